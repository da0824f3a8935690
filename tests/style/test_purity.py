"""Machines decide, shells act: what decides does not wait, look at a clock, draw random numbers or touch a disk.

Only so can the simulation run a whole cluster in virtual time and replay a failure from its seed. One import is enough
to lose that, and nothing else would notice.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PURE_PACKAGES = (
    "base",
    "protocol",
    "metadata",
    "shovel",
    "federation",
    "raft",
    "links",
    "replication",
    "broker",
    "sessions",
    "storage/format",
)
IMPURE = frozenset(
    {
        "asyncio",
        "concurrent",
        "datetime",
        "ftplib",
        "http",
        "importlib",
        "io",
        "logging",
        "multiprocessing",
        "os",
        "pathlib",
        "random",
        "sched",
        "secrets",
        "select",
        "selectors",
        "shutil",
        "signal",
        "socket",
        "socketserver",
        "ssl",
        "subprocess",
        "tempfile",
        "threading",
        "time",
        "urllib",
        "uuid",
        "uvloop",
    }
)

# Modules without I/O in packages that have some.
PURE_MODULES = ("urllib.parse", "leveret.client.machine")
IMPURE_CALLS = ("open", "print", "input")


def pure_files() -> list[Path]:
    leveret = ROOT / "leveret"
    files = [file for package in PURE_PACKAGES for file in (leveret / package).rglob("*.py")]
    return sorted(files)


def imported(tree: ast.AST, package: str) -> Iterator[tuple[int, str]]:
    """Lines and full names of what a module of `package` imports, wherever in it the import stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, name.name) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join(parts + ([node.module] if node.module else []))
            yield from ((node.lineno, f"{base}.{name.name}") for name in node.names)


def is_pure(name: str) -> bool:
    first, *rest = name.split(".")
    if name.startswith(PURE_MODULES):
        return True
    if first != "leveret":
        return first not in IMPURE
    if not rest or rest == ["__version__"]:
        return True
    return any("/".join(rest).startswith(f"{package}/") for package in PURE_PACKAGES)


def impurities(source: str, package: str) -> list[str]:
    """`:LINE: what is wrong with it`, each."""
    tree = ast.parse(source)
    found = [f":{line}: imports {name}" for line, name in imported(tree, package) if not is_pure(name)]
    for node in ast.walk(tree):
        if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith):
            found.append(f":{node.lineno}: waits")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS:
            found.append(f":{node.lineno}: calls {node.func.id}")
    return found


def test_pure() -> None:
    found = []
    for file in pure_files():
        path = file.relative_to(ROOT)
        found += [f"{path}{what}" for what in impurities(file.read_text(encoding="utf-8"), ".".join(path.parent.parts))]
    assert found == []


def test_there_is_something_to_check() -> None:
    packages = {file.relative_to(ROOT).parts[1] for file in pure_files()}
    assert {"protocol", "broker", "metadata", "storage"} <= packages


def test_the_check_notices() -> None:
    for source in (
        "import time",
        "import os.path",
        "from random import Random",
        "def f():\n    import asyncio",
        "from leveret.node import server",
        "from leveret import node",
        "from ..node import server",
        "from .. import storage",
        "from leveret.storage.segments.disk import Disk",
        "async def f(): ...",
        "open('x')",
    ):
        assert impurities(source, "leveret.broker"), source


def test_the_check_lets_through() -> None:
    for source in (
        "import struct",
        "from leveret.protocol.tables import Field",
        "from . import topic",
        "from ..storage.format.queue_block import Run",
    ):
        assert impurities(source, "leveret.broker") == [], source
