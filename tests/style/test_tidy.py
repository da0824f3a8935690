"""Style that matters is a test."""

from __future__ import annotations

import ast
import functools
import re
import warnings
from collections.abc import Callable
from pathlib import Path

Check = Callable[[list[ast.AST]], list[int]]  # Of the nodes of a module: numbers of the lines that break a rule.

ROOT = Path(__file__).parents[2]
FOLDERS = ("leveret", "pyspark_leveret", "simulation", "benchmarks", "faults", "tests", "docs", "packaging", ".ci")
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


@functools.cache
def found() -> dict[Check, list[str]]:
    """By check: file and line of all that breaks it. Trees are not kept: collecting garbage among them takes longer."""
    lines: dict[Check, list[str]] = {check: [] for check in CHECKS}
    for file in modules():
        nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
        for check, folder in CHECKS.items():
            if file.is_relative_to(ROOT / folder):
                lines[check] += [f"{name(file)}:{line}" for line in check(nodes)]
    return lines


def lines_with(pattern: re.Pattern[str]) -> list[str]:
    lines_found = []
    for file in texts():
        if file.name != "LICENSE":
            lines = file.read_text(encoding="utf-8").splitlines()
            numbered = [(at, line) for at, line in enumerate(lines, 1) if pattern.search(line)]
            lines_found += [f"{name(file)}:{at}: {line.strip()}" for at, line in numbered]
    return lines_found


def test_no_path_of_one_machine() -> None:
    assert lines_with(MACHINE_PATH) == []


def test_nothing_is_left_for_later() -> None:
    assert lines_with(LEFTOVER) == []


def test_no_error_is_hidden() -> None:
    assert found()[silent_handlers] == []


def test_what_is_logged_is_an_argument_of_a_text_of_ours() -> None:
    assert found()[raw_entries] == []


def test_tests_await_events_instead_of_sleeping() -> None:
    assert found()[sleeps] == []


def test_functions_that_do_not_fit_on_a_screen() -> None:
    """They are named as a hint, and fail nothing."""
    if found()[long_functions]:
        warnings.warn(f"functions of more than {FUNCTION_LINES_MAX} lines: {found()[long_functions]}", stacklevel=1)


def silent_handlers(nodes: list[ast.AST]) -> list[int]:
    """Lines that catch anything at all, or catch every Exception and do nothing about it."""
    found = []
    for node in nodes:
        if not isinstance(node, ast.ExceptHandler):
            continue
        names = {one.id for one in ast.walk(node.type) if isinstance(one, ast.Name)} if node.type else set()
        idle = all(isinstance(line, ast.Pass | ast.Continue) or _is_ellipsis(line) for line in node.body)
        if node.type is None or (idle and names & {"Exception", "BaseException"}):
            found.append(node.lineno)
    return found


def raw_entries(nodes: list[ast.AST]) -> list[int]:
    """Lines that log a text made at run time, in which what strangers sent could not be told from our own."""
    found = []
    for node in nodes:
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


def long_functions(nodes: list[ast.AST]) -> list[int]:
    return [
        node.lineno
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno >= FUNCTION_LINES_MAX
    ]


def sleeps(nodes: list[ast.AST]) -> list[int]:
    """Lines that wait for time to pass. `asyncio.sleep(0)` waits for nothing but its turn."""
    found = []
    for node in nodes:
        if not isinstance(node, ast.Call):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        zero = len(node.args) == 1 and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0
        if called == "sleep" and not zero:
            found.append(node.lineno)
    return found


# By check: the folder whose modules it is for.
CHECKS: dict[Check, str] = {silent_handlers: "", raw_entries: "leveret", sleeps: "tests", long_functions: ""}


def test_the_checks_notice() -> None:
    cases: list[tuple[Check, str]] = [
        (silent_handlers, "try: ...\nexcept: raise"),
        (silent_handlers, "try: ...\nexcept Exception: pass"),
        (silent_handlers, "for x in y:\n try: ...\n except (ValueError, BaseException): continue"),
        (raw_entries, 'logger.info(f"{name}")'),
        (raw_entries, "logger.log(level, text)"),
        (raw_entries, 'logging.getLogger("x").warning("a " + b)'),
        (sleeps, "time.sleep(1)"),
        (sleeps, "async def f(): await sleep(delay)"),
        (long_functions, "def f():\n" + " x\n" * FUNCTION_LINES_MAX),
    ]
    for check, source in cases:
        assert check(list(ast.walk(ast.parse(source)))), source


def test_the_patterns_notice() -> None:
    assert MACHINE_PATH.search("see '/" + "work/main/x.py'")
    assert LEFTOVER.search("# TO" + "DO later")
    assert not MACHINE_PATH.search("https://example.org/" + "work/1 and ./" + "work/x")
    assert len(texts()) > len(modules()) > 500
