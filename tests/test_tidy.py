"""Style that matters is a test."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("leveret", "pyspark_leveret", "simulation", "benchmarks", "tests", "docs", "packaging", ".ci")
TEXTS = (".py", ".md", ".toml", ".js", ".txt", ".conf", ".yaml", ".service", "")
FUNCTION_LINES_MAX = 90
LOG_METHODS = ("debug", "info", "warning", "error", "critical", "exception", "log")

# What only holds on the machine somebody wrote it on. Put together here, so that this file does not name one.
MACHINE_PATH = re.compile("|".join(rf"(?<![\w.]){re.escape('/' + name + '/')}" for name in ("work", "root")))
LEFTOVER = re.compile(r"\b(?:" + "|".join(("TO" + "DO", "FIX" + "ME", "X" * 3)) + r")\b")


def texts() -> list[Path]:
    files = [file for file in ROOT.iterdir() if file.is_file() and not file.name.startswith(".git")]
    for folder in FOLDERS:
        files += [file for file in (ROOT / folder).rglob("*") if file.is_file()]
    return sorted(file for file in files if file.suffix in TEXTS and not _made(file))


def _made(file: Path) -> bool:
    parts = file.relative_to(ROOT).parts
    return "__pycache__" in parts or "node_modules" in parts or any(part.endswith(".egg-info") for part in parts)


def modules() -> list[Path]:
    return [file for file in texts() if file.suffix == ".py"]


def name(file: Path) -> str:
    return str(file.relative_to(ROOT))


@pytest.mark.parametrize("file", texts(), ids=name)
def test_text(file: Path) -> None:
    if file.name == "LICENSE":
        return
    text = file.read_text(encoding="utf-8")
    assert not MACHINE_PATH.findall(text)
    assert not LEFTOVER.findall(text)


@pytest.mark.parametrize("file", modules(), ids=name)
def test_module(file: Path) -> None:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    assert silent_handlers(tree) == [], "an error is hidden"
    assert long_functions(tree) == [], "a function fits on a screen"
    if file.is_relative_to(ROOT / "leveret"):
        assert raw_entries(tree) == [], "what is logged is put into a text of ours as an argument"
    if file.is_relative_to(ROOT / "tests"):
        assert sleeps(tree) == [], "await an event instead"


def silent_handlers(tree: ast.AST) -> list[int]:
    """Lines that catch anything at all, or catch every Exception and do nothing about it."""
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.ExceptHandler):
            continue
        names = {one.id for one in ast.walk(node.type) if isinstance(one, ast.Name)} if node.type else set()
        idle = all(isinstance(line, ast.Pass | ast.Continue) or _is_ellipsis(line) for line in node.body)
        if node.type is None or (idle and names & {"Exception", "BaseException"}):
            found.append(node.lineno)
    return found


def raw_entries(tree: ast.AST) -> list[int]:
    """Lines that log a text made at run time, in which what strangers sent could not be told from our own."""
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        method, owner = node.func.attr, ast.unparse(node.func.value)
        if method not in LOG_METHODS or "logger" not in owner.lower():
            continue
        text = node.args[method == "log"]
        if not isinstance(text, ast.Constant):
            found.append(node.lineno)
    return found


def _is_ellipsis(line: ast.stmt) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) and line.value.value is ...


def long_functions(tree: ast.AST) -> list[str]:
    return [
        f"{node.name}: {node.end_lineno - node.lineno + 1} lines"
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno >= FUNCTION_LINES_MAX
    ]


def sleeps(tree: ast.AST) -> list[int]:
    """Lines that wait for time to pass. `asyncio.sleep(0)` waits for nothing but its turn."""
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        zero = len(node.args) == 1 and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0
        if called == "sleep" and not zero:
            found.append(node.lineno)
    return found


@pytest.mark.parametrize(
    ("check", "source"),
    [
        (silent_handlers, "try: ...\nexcept: raise"),
        (silent_handlers, "try: ...\nexcept Exception: pass"),
        (silent_handlers, "for x in y:\n try: ...\n except (ValueError, BaseException): continue"),
        (raw_entries, 'logger.info(f"{name}")'),
        (raw_entries, "logger.log(level, text)"),
        (raw_entries, 'logging.getLogger("x").warning("a " + b)'),
        (sleeps, "time.sleep(1)"),
        (sleeps, "async def f(): await sleep(delay)"),
        (long_functions, "def f():\n" + " x\n" * FUNCTION_LINES_MAX),
    ],
)
def test_the_checks_notice(check: object, source: str) -> None:
    assert callable(check)
    assert check(ast.parse(source))


def test_the_patterns_notice() -> None:
    assert MACHINE_PATH.search("see '/" + "work/main/x.py'")
    assert LEFTOVER.search("# TO" + "DO later")
    assert not MACHINE_PATH.search("https://example.org/" + "work/1 and ./" + "work/x")
