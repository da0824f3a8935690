"""Packages import in one direction, and every module can be imported by itself.

`LAYERS` is that direction: a package imports, when it is loaded, only packages that stand above it in the list. Imports
for type checkers only do not count, since they do not run. Imports inside functions count, except for those in `LATE`,
each of which says why it is there.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
MODULES_MAX = 14
FOLDERS = ("leveret", "pyspark_leveret", "simulation", "benchmarks", "faults", "tests")  # In which packages are small.
LAYERED = ("leveret", "simulation", "benchmarks", "faults")  # Whose packages stand in `LAYERS`.

LAYERS = (
    "leveret",
    "leveret.base",
    "leveret.client",
    "leveret.data",
    "leveret.protocol",
    "leveret.protocol.mqtt",
    "leveret.protocol.stomp",
    "leveret.storage.format",
    "leveret.storage.segments",
    "leveret.storage",
    "leveret.raft",
    "leveret.metadata.mqtt",
    "leveret.metadata.shovel",
    "leveret.metadata.model",
    "leveret.metadata.rules",
    "leveret.metadata.federation",
    "leveret.metadata",
    "leveret.shovel",
    "leveret.federation",
    "leveret.links",
    "leveret.replication",
    "leveret.broker.routing",
    "leveret.broker.delivery",
    "leveret.broker.dead_letter",
    "leveret.broker.event_journal",
    "leveret.broker.queue",
    "leveret.broker.kinds",
    "leveret.broker.remote",
    "leveret.broker.mirrors",
    "leveret.broker.retained",
    "leveret.broker.client_ids",
    "leveret.broker",
    "leveret.broker.session",
    "leveret.sessions",
    "leveret.sessions.amqp",
    "leveret.sessions.mqtt",
    "leveret.sessions.stomp",
    "leveret.node.config",
    "leveret.node.system",
    "leveret.node.sockets",
    "leveret.node.admin.common",
    "leveret.node.cluster",
    "leveret.node.shovels",
    "leveret.node.federation",
    "leveret.node.stats",
    "leveret.node.admin.metadata",
    "leveret.node.admin.queues",
    "leveret.node.admin.nodes",
    "leveret.node.admin.statistics",
    "leveret.node.admin",
    "leveret.node",
    "leveret.management.http",
    "leveret.management.api.common",
    "leveret.management.api.lists",
    "leveret.management.api.changes",
    "leveret.management.api.extensions",
    "leveret.management.api.monitoring",
    "leveret.management.api",
    "leveret.management",
    "leveret.perf",
    "leveret.cli",
    "leveret.cli.ctl.base",
    "leveret.cli.ctl.metadata",
    "leveret.cli.ctl.queues",
    "leveret.cli.ctl.nodes",
    "leveret.cli.ctl",
    "leveret.cli.rabbitmq",
    "leveret.testing",
    "simulation.core",
    "simulation.raft",
    "simulation.ring",
    "simulation.amqp",
    "simulation.features",
    "simulation.checkers",
    "simulation.clients",
    "simulation.scenarios",
    "simulation",
    "simulation.links",
    "simulation.mqtt",
    "benchmarks.ruler",
    "benchmarks.single",
    "benchmarks.clusters",
    "benchmarks.mqtt",
    "benchmarks.stomp",
    "benchmarks.report",
    "benchmarks.scaling",
    "benchmarks",
    "faults.history",
    "faults.machines",
    "faults.clients",
    "faults.cases",
    "faults",
)

# Imports inside functions that go against the direction: the module, the package it imports, and why.
LATE = {
    ("leveret.cli.completion", "leveret.cli.ctl"): "`leveret completion` writes the completion of leveretctl, too",
    ("leveret.cli.completion", "leveret.cli.ctl.base"): "the same",
    (
        "leveret.node.admin.statistics.peer_queries",
        "leveret.management.api.common",
    ): "it serves another node's HTTP API",
    ("leveret.node.admin.statistics.peer_queries", "leveret.management.http"): "the same",
    (
        "leveret.node.server",
        "leveret.management",
    ): "the HTTP port starts with the node, and is loaded when it is wanted",
    ("simulation.__main__", "simulation.links"): "its command runs them, too, and they are built on its worlds",
}


class Import(NamedTuple):
    module: str
    target: str
    line: int
    late: bool  # Inside a function.


@cache
def modules() -> dict[str, Path]:
    found = {}
    for path in sorted(path for folder in LAYERED for path in (ROOT / folder).rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found


def imports(module: str, path: Path, source: str, known: dict[str, Path]) -> Iterator[Import]:
    """Imports of modules of the project that run, when the module is loaded or later."""
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]

    def walk(node: ast.AST, late: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            if isinstance(child, ast.Import):
                yield from (Import(module, name.name, child.lineno, late) for name in child.names if name.name in known)
            elif isinstance(child, ast.ImportFrom):
                base = package[: len(package) - child.level + 1] if child.level else []
                origin = ".".join([*base, *([child.module] if child.module else [])])
                for name in child.names:
                    full = f"{origin}.{name.name}"
                    if full in known or origin in known:
                        yield Import(module, full if full in known else origin, child.lineno, late)
            else:
                inner = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
                yield from walk(child, late or inner)

    yield from walk(ast.parse(source), False)


def package_of(module: str, known: dict[str, Path]) -> str:
    return module if known[module].name == "__init__.py" else module.rpartition(".")[0]


@cache
def all_imports() -> list[Import]:
    known = modules()
    return [
        one
        for module, path in known.items()
        if module != "leveret.__main__"
        for one in imports(module, path, path.read_text(encoding="utf-8"), known)
    ]


def wrong_imports(found: list[Import], known: dict[str, Path]) -> list[str]:
    rank = {package: place for place, package in enumerate(LAYERS)}
    wrong = []
    for one in found:
        mine, theirs = package_of(one.module, known), package_of(one.target, known)
        if rank[theirs] > rank[mine] and not (one.late and (one.module, theirs) in LATE):
            wrong.append(f"{one.module}, line {one.line}: {one.target} is above it")
    return wrong


def cycles(found: list[Import]) -> list[list[str]]:
    """Modules that import each other when they are loaded, directly or through others."""
    edges: dict[str, set[str]] = {}
    for one in found:
        if not one.late and one.module != one.target:
            edges.setdefault(one.module, set()).add(one.target)
    while True:  # Whoever imports nothing that is left is in no cycle.
        ends = {name for name, targets in edges.items() if not targets & edges.keys()}
        if not ends:
            return [sorted(edges)] if edges else []
        edges = {name: targets for name, targets in edges.items() if name not in ends}


def grounds(found: list[Import], known: dict[str, Path]) -> dict[str, str]:
    """Returns for each module the one among those it imports that loads most others; "" if it imports none."""
    direct: dict[str, set[str]] = {name: set() for name in known}
    for one in found:
        if not one.late and one.module != one.target:
            direct[one.module].add(one.target)

    @cache
    def loaded(name: str) -> frozenset[str]:
        return frozenset({name}).union(*(loaded(target) for target in direct[name]))

    return {name: max(sorted(direct[name]), key=lambda one: len(loaded(one)), default="") for name in known}


def test_every_package_has_its_layer() -> None:
    known = modules()
    packages = {package_of(module, known) for module in known}
    assert packages == set(LAYERS)


def test_imports_go_one_way() -> None:
    assert wrong_imports(all_imports(), modules()) == []


def test_protocols_import_nothing_of_each_other() -> None:
    known = modules()
    protocols = [package for package in LAYERS if package.startswith("leveret.sessions.")]
    crossing = [
        f"{one.module}, line {one.line}: {one.target}"
        for one in all_imports()
        if package_of(one.module, known) in protocols
        and package_of(one.target, known) in protocols
        and package_of(one.module, known) != package_of(one.target, known)
    ]
    assert len(protocols) > 1 and crossing == []


def test_no_module_imports_itself_through_others() -> None:
    assert cycles(all_imports()) == []


def test_late_imports_are_still_there() -> None:
    known = modules()
    late = {(one.module, package_of(one.target, known)) for one in all_imports() if one.late}
    assert late >= LATE.keys()


def test_the_checks_notice() -> None:
    known = modules()
    broker = known["leveret.broker.broker"]
    up = list(imports("leveret.broker.broker", broker, "from leveret.node.node import Node", known))
    machine = known["simulation.core.machine"]
    from_core = list(imports("simulation.core.machine", machine, "from simulation.world import World", known))
    inside = list(imports("leveret.broker.broker", broker, "def f():\n    from leveret.node import server", known))
    typed = "if TYPE_CHECKING:\n    from leveret.node.node import Node"
    assert all(wrong_imports(found, known) for found in (up, inside, from_core))
    assert not list(imports("leveret.broker.broker", broker, typed, known))
    assert cycles([Import("a", "b", 1, False), Import("b", "a", 1, False)]) and not cycles([Import("a", "b", 1, False)])


def test_rooms_are_small() -> None:
    crowded = []
    for folder in FOLDERS:
        for place in [ROOT / folder, *(ROOT / folder).rglob("*/")]:
            count = len([file for file in place.glob("*.py") if file.name != "__init__.py"])
            if count > MODULES_MAX:
                crowded.append(f"{place.relative_to(ROOT)}: {count} modules")
    assert crowded == []


def test_packages_say_what_they_are() -> None:
    packages = [path for path in modules().values() if path.name == "__init__.py"]
    silent = [str(path.relative_to(ROOT)) for path in packages if not ast.get_docstring(ast.parse(path.read_text()))]
    assert silent == []


def test_packages_say_what_they_import() -> None:
    """Or who may import them; that of `leveret` itself names the program."""
    packages = [path for name, path in modules().items() if path.name == "__init__.py" and name.startswith("leveret.")]
    texts = {path.relative_to(ROOT): ast.get_docstring(ast.parse(path.read_text())) or "" for path in packages}
    assert [str(path) for path, text in texts.items() if "import" not in text] == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_every_module_imports_alone() -> None:
    """In a process of its own each, in which nothing of Leveret is loaded but what the module itself imports."""
    script = Path(__file__).with_name("import_alone.py")
    names = {name for name in modules() if name.startswith("leveret") and not name.endswith("__main__")}
    lines = [f"{name} {ground}" for name, ground in grounds(all_imports(), modules()).items() if name in names]
    result = subprocess.run(
        [sys.executable, str(script)], input="\n".join(lines), capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert set(result.stdout.split()) == names
