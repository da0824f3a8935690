"""The reference of the public Python API: signatures and docstrings, read from the sources."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import leveret.testing
from tests.support.references import markdown as md

ROOT: Final = Path(__file__).parents[3]
TESTING: Final = """\
Everything that `leveret.testing` offers, and the fixtures of its pytest plugin. [Brokers in tests](../testing.md) shows
how they are used."""
DATA: Final = """\
`leveret.data` reads queues in bulk over HTTP, with nothing but Python's standard library. [Bulk reads](../data.md) has
an example and the requests behind it."""

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def testing() -> str:
    parts = ["## leveret.testing"]
    here = "leveret/testing/__init__.py"
    parts += [part for name in ("broker", "cluster") for part in _described(here, name)]
    for name, module in leveret.testing._HOMES.items():
        parts += _described(_home(f"leveret/testing/{module}.py", name), name)
    parts.append("## Rows of `admin`")
    parts += [part for one in _definitions("leveret/testing/admin.py") if isinstance(one, ast.ClassDef)
              and one.name not in leveret.testing.__all__ and not one.name.startswith("_")
              for part in _class(one, "###")]  # fmt: skip
    parts.append("## Fixtures")
    parts += [part for one in _definitions("leveret/testing/plugin.py") if _is_fixture(one) for part in _function(one)]
    return md.page("leveret.testing", TESTING, *parts)


def data() -> str:
    parts = []
    for module in ("client", "sheet"):
        parts.append(f"## leveret.data.{module}")
        for one in _definitions(f"leveret/data/{module}.py"):
            if not one.name.startswith("_"):
                parts += _class(one, "###") if isinstance(one, ast.ClassDef) else _function(one)
    return md.page("leveret.data", DATA, *parts)


def _home(file: str, name: str) -> str:
    """Returns the file in which a name is defined that this one may only import."""
    if any(one.name == name for one in _definitions(file)):
        return file
    for node in ast.parse((ROOT / file).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and any(one.name == name for one in node.names):
            return f"{(node.module or '').replace('.', '/')}.py"
    raise AssertionError(f"{name} is not in {file}")


def _definitions(file: str) -> list[Definition]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return [node for node in tree.body if isinstance(node, Definition)]


def _described(file: str, name: str) -> list[str]:
    found = next(one for one in _definitions(file) if one.name == name)
    return _class(found, "###") if isinstance(found, ast.ClassDef) else _function(found)


def _class(node: ast.ClassDef, level: str) -> list[str]:
    parts = [f"{level} {node.name}", _doc(node)]
    fields = [
        (md.code(one.target.id), md.code(ast.unparse(one.annotation)))
        for one in node.body
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and not one.target.id.startswith("_")
    ]
    if fields:
        parts.append(md.table(("field", "type"), fields))
    for one in node.body:
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
            is_made = one.name == "__init__" and len(one.args.args + one.args.kwonlyargs) > 1
            if is_made or not one.name.startswith("_"):
                parts.append(_signature(one))
    return [part for part in parts if part]


def _function(node: Definition) -> list[str]:
    assert not isinstance(node, ast.ClassDef)
    return [f"### {node.name}", _signature(node)]


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    if any(ast.unparse(one) == "property" for one in node.decorator_list):
        line = node.name + (f": {ast.unparse(node.returns)}" if node.returns is not None else "")
    else:
        arguments = re.sub(r"^self(, )?", "", ast.unparse(node.args))
        returns = "" if node.returns is None or node.name == "__init__" else f" -> {ast.unparse(node.returns)}"
        prefix = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
        line = f"{prefix}{node.name}({arguments}){returns}"
    text = _doc(node)
    return f"- `{line}`" + (f"\n  {text}" if text else "")


def _doc(node: Definition) -> str:
    text = ast.get_docstring(node) or ""
    return re.sub(r"[ \t]*\n[ \t]*", " ", text.replace("\n\n", "\0")).replace("\0", " ").replace("<", "&lt;").strip()


def _is_fixture(node: Definition) -> bool:
    return any("fixture" in ast.unparse(one) for one in node.decorator_list)


def names() -> Iterator[str]:
    """Yields what the references must have: the public names."""
    yield from leveret.testing.__all__
    yield from ("DataClient", "Sheet", "leveret_broker", "leveret_server")
