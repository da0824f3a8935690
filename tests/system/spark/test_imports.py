"""Which packages the connector imports: the public ones of the client side, and nothing of the broker."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
CONNECTOR = ROOT / "pyspark_leveret"
BROKER = ("broker", "node", "management", "cli", "storage", "replication", "raft", "sessions", "links", "testing")

EVERYTHING = """
    import pkgutil, sys, importlib, pyspark_leveret
    for one in pkgutil.walk_packages(pyspark_leveret.__path__, "pyspark_leveret."):
        if not one.name.endswith(".demo"):
            importlib.import_module(one.name)
    print(*sorted(name for name in sys.modules if name.startswith("leveret.")))
"""


def imported(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from (f"{node.module}.{name.name}" for name in node.names)


def test_the_broker_and_its_commands_do_not_import_the_connector() -> None:
    files = (ROOT / "leveret").rglob("*.py")
    found = [(file, name) for file in files for name in imported(file) if name.startswith("pyspark_leveret")]
    assert found == []


def test_the_connector_does_not_import_the_command_line() -> None:
    files = CONNECTOR.rglob("*.py")
    found = [(file, name) for file in files for name in imported(file) if name.split(".")[:2] == ["leveret", "cli"]]
    assert found == []


def test_the_connector_loads_nothing_of_the_broker() -> None:
    """Wherever an import stands: an executor that reads queues has no use for a broker."""
    code = "\n".join(line[4:] for line in EVERYTHING.strip("\n").splitlines())
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = {name.split(".")[1] for name in done.stdout.split()}
    assert {"client", "data"} <= loaded
    assert not loaded & set(BROKER), done.stdout


def test_packages_are_small_and_say_what_they_are() -> None:
    for folder in [CONNECTOR, *(one.parent for one in CONNECTOR.glob("**/__init__.py"))]:
        modules = [file for file in folder.glob("*.py") if file.name != "__init__.py"]
        assert len(modules) <= 14, folder
        assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))), folder
