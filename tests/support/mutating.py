"""Deliberate bugs: tests replace a piece of a function, and demand that the bug is detected.

The author of a test has to see it fail once; the author of a simulation has to see that again after each change, or its
checkers stop detecting anything without notice. So bugs are kept in lists, each with a piece of a function's code and
its replacement, and tests demand that each is detected.

A function is found by its name, `Class.method` or `function`, in any module, and the piece by its syntax tree, so that
code may move, be indented, wrapped and commented, and get types. The piece is an expression, a statement or several
consecutive ones, and occurs once. `...` in place of a block of statements stands for any block, which is kept where the
new piece has `...` too: `if ready: ...` becomes `if True: ...`. If several functions of one name have the piece, the
end of the module's name tells them apart: `segments.disk_jobs:Write.perform`.

The changed function is compiled, and the real function object runs that code for the time of a test. So every holder of
the function runs it, and it sees the same classes and limits as all other code.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy, deepcopy
from functools import cache
from itertools import chain
from pathlib import Path
from textwrap import dedent
from types import CodeType, FunctionType
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import pytest

# `LEVERET_MUTATIONS=all` tries the seeds of a simulation on every bug, which takes minutes, and says which they missed.
ALL: Final = os.environ.get("LEVERET_MUTATIONS") == "all"
only_with_all: Final = pytest.mark.skipif(not ALL, reason="LEVERET_MUTATIONS=all runs the seeds on every bug")

PACKAGES: Final = ("leveret", "simulation")
# What two pieces may differ in: types, and how a text is written.
_IGNORED: Final = ("annotation", "returns", "simple", "type_comment", "kind")


class Named(Protocol):
    @property
    def name(self) -> str: ...


class Change(NamedTuple):
    function: str  # `Class.method` or `function`, after the end of its module's name and a colon where that is needed.
    old: str
    new: str


Function = ast.FunctionDef | ast.AsyncFunctionDef
T = TypeVar("T")
N = TypeVar("N", bound=Named)


class Found(NamedTuple):
    """A function that contains the piece to be changed."""

    module: str
    imports: list[ast.stmt]  # All imports of its module.
    classes: list[ast.ClassDef]  # The classes that contain it.
    function: Function

    @property
    def name(self) -> str:
        return ".".join(one.name for one in (*self.classes, self.function))


def replace(patch: pytest.MonkeyPatch, name: str, *changes: Change) -> None:
    """Puts the bug of that name into the functions that it changes."""
    changed: dict[tuple[str, int], Found] = {}
    for change in changes:
        found = find(name, change)
        first = changed.setdefault((found.module, found.function.lineno), found)
        _change(name, change, first.function)
    for found in changed.values():
        real = _real(found)
        code = _compiled(found)
        assert _meaning(code) != _meaning(real.__code__), f"{name}: {found.name} does the same"
        assert code.co_freevars == real.__code__.co_freevars, (
            f"{name}: {found.name} must call super() as before, or not"
        )
        patch.setattr(real, "__code__", code)


def check(name: str, *changes: Change) -> None:
    """Checks that the code which the bug changes exists, and that the result is a function."""
    for change in changes:
        found = find(name, change)
        _change(name, change, found.function)
        _compiled(found)


def find(name: str, change: Change, texts: Mapping[str, str] | None = None) -> Found:
    """Returns a copy of the one function that the bug of that name changes."""
    hint, _, function = change.function.rpartition(":")
    named = list(_named(function, hint, texts or _texts()))
    if not named:
        alike = ", ".join(_alike(function, texts or _texts()))
        raise AssertionError(f"{name}: there is no function {change.function}" + (alike and f", but {alike}"))
    found = [one for one in named if len(_places(one.function, change)) == 1]
    if not found:
        times = max(len(_places(one.function, change)) for one in named)
        problem = f"{times} times in it: give more of it" if times else "no longer there"
        raise AssertionError(f"{name}: it changes {change.function}, but its code is {problem}:\n{change.old}")
    modules = ", ".join(one.module for one in found)
    assert len(found) == 1, f"{name}: which {function}? Put the end of a module's name and a colon before it: {modules}"
    return found[0]._replace(function=deepcopy(found[0].function))


# -- Functions by their names ----------------------------------------------------------------------------------------


@cache
def _texts() -> dict[str, str]:
    """Returns the source of every module, by the module's name."""
    texts = {}
    for package in PACKAGES:
        root = Path(importlib.import_module(package).__path__[0])
        for path in sorted(root.rglob("*.py")):
            parts = path.relative_to(root.parent).with_suffix("").parts
            texts[".".join(parts).removesuffix(".__init__")] = path.read_text("utf-8")
    return texts


def _named(function: str, hint: str, texts: Mapping[str, str]) -> Iterator[Found]:
    *classes, last = function.split(".")
    words = [f"def {last}(", *(f"class {one}" for one in classes)]  # Most modules need not be parsed at all.
    for module, text in texts.items():
        if f".{module}".endswith(f".{hint}" if hint else "") and all(word in text for word in words):
            tree = _parsed(text)
            imports = list(_imports(tree.body))
            for path in _functions(tree.body, []):
                found = Found(module, imports, *path)
                if found.name == function:
                    yield found


def _alike(function: str, texts: Mapping[str, str]) -> Iterator[str]:
    """Returns functions of that name elsewhere: perhaps it moved to another class."""
    last = function.rpartition(".")[2]
    for module, text in texts.items():
        if f"def {last}(" in text:
            for classes, one in _functions(_parsed(text).body, []):
                if one.name == last:
                    yield f"{module}:{'.'.join(part.name for part in (*classes, one))}"


@cache
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


def _functions(body: Iterable[ast.AST], classes: list[ast.ClassDef]) -> Iterator[tuple[list[ast.ClassDef], Function]]:
    for statement in body:
        if isinstance(statement, Function):
            yield classes, statement
        elif isinstance(statement, ast.ClassDef):
            yield from _functions(statement.body, [*classes, statement])
        elif isinstance(statement, ast.stmt):  # A definition may depend on a condition.
            yield from _functions(ast.iter_child_nodes(statement), classes)


def _imports(body: Iterable[ast.AST]) -> Iterator[ast.stmt]:
    for statement in body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            yield statement
        elif isinstance(statement, ast.stmt) and not isinstance(statement, Function | ast.ClassDef):
            yield from _imports(ast.iter_child_nodes(statement))


# -- Pieces of a function --------------------------------------------------------------------------------------------


class _Place(NamedTuple):
    """The place of a piece: items of a list, or the field of a node."""

    owner: Any
    at: slice | str


def _places(function: Function, change: Change) -> list[_Place]:
    old, new = _body(change.old), _body(change.new)
    assert old, f"{change.function}: nothing is to be replaced"
    expression = _expression(old) if _expression(new) is not None else None
    wanted: list[Any] = old if expression is None else [expression]
    found = []
    for node in ast.walk(ast.Module(function.body, [])):
        for field, value in ast.iter_fields(node):
            if field in _IGNORED:
                continue
            if isinstance(value, list):
                parts = (slice(first, first + len(wanted)) for first in range(len(value) - len(wanted) + 1))
                found += [_Place(value, part) for part in parts if _is_same(value[part], wanted)]
            elif _is_same([value], wanted):
                found.append(_Place(node, field))
    return found


def _body(text: str) -> list[ast.stmt]:
    return ast.parse(dedent(text)).body


def _expression(body: list[ast.stmt]) -> ast.expr | None:
    return body[0].value if len(body) == 1 and isinstance(body[0], ast.Expr) else None


def _is_same(real: Any, wanted: Any) -> bool:
    real, wanted = _without_type(real), _without_type(wanted)
    if type(real) is not type(wanted):
        return False
    if isinstance(real, list):
        return (bool(real) and _is_any(wanted)) or (len(real) == len(wanted) and all(map(_is_same, real, wanted)))
    if isinstance(real, ast.AST):
        fields = [field for field in real._fields if field not in _IGNORED]
        return all(_is_same(getattr(real, field, None), getattr(wanted, field, None)) for field in fields)
    return bool(real == wanted)


def _is_any(wanted: list[Any]) -> bool:
    """Returns whether it is `...`, which stands for a block of any statements."""
    value = _expression(wanted)
    return isinstance(value, ast.Constant) and value.value is Ellipsis


def _blocks(real: Any, wanted: Any) -> Iterator[list[ast.stmt]]:
    """Returns the blocks that `...` stands for, in the order of the text."""
    if isinstance(wanted, list):
        if _is_any(wanted):
            yield real
        else:
            yield from chain.from_iterable(map(_blocks, real or [], wanted))
    elif isinstance(wanted, ast.AST):
        for field, value in ast.iter_fields(wanted):
            if field not in _IGNORED:
                yield from _blocks(getattr(real, field, None), value)


def _fill(new: Any, blocks: Iterator[list[ast.stmt]]) -> None:
    """Replaces each `...` by its block."""
    if isinstance(new, ast.AST):
        for _, value in ast.iter_fields(new):
            _fill(value, blocks)
    elif isinstance(new, list):
        if _is_any(new):
            new[:] = next(blocks)
        else:
            for one in new:
                _fill(one, blocks)


def _without_type(node: Any) -> Any:
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        return ast.Assign([node.target], node.value)
    return node


def _change(name: str, change: Change, function: Function) -> None:
    places = _places(function, change)
    assert len(places) == 1, f"{name}: after its other changes, this code is not in {change.function}:\n{change.old}"
    owner, at = places[0]
    new = _body(change.new)
    replaced = owner[at][0] if isinstance(at, slice) else getattr(owner, at)
    for node in (node for one in new for node in ast.walk(one)):
        ast.copy_location(node, replaced)
    if isinstance(at, str):
        setattr(owner, at, _expression(new))
    elif isinstance(replaced, ast.stmt):
        _fill(new, _blocks(owner[at], _body(change.old)))
        owner[at] = new
        if not owner:
            owner.append(ast.copy_location(ast.Pass(), replaced))
    else:
        owner[at] = [_expression(new)]


# -- Code ------------------------------------------------------------------------------------------------------------


def _compiled(found: Found) -> CodeType:
    """Returns the function's code, compiled within its classes, which decide about its names and about super().

    Python compiles calls of imported names differently.
    """
    inner: ast.stmt = found.function
    for one in reversed(found.classes):
        outer = copy(one)
        outer.bases, outer.keywords, outer.decorator_list, outer.body = [], [], [], [inner]
        inner = outer
    module = compile(ast.Module([*found.imports, inner], []), f"{found.module} (mutated)", "exec", dont_inherit=True)
    return next(code for code in _codes(module) if code.co_qualname == found.name)


def _real(found: Found) -> FunctionType:
    value: Any = importlib.import_module(found.module)
    for key in found.name.split("."):
        value = inspect.getattr_static(value, key)
    parts = (value.fget, value.fset, value.fdel) if isinstance(value, property) else (value,)
    line = min(one.lineno for one in (found.function, *found.function.decorator_list))
    for part in filter(None, parts):
        function = inspect.unwrap(getattr(part, "__func__", getattr(part, "func", part)))
        if isinstance(function, FunctionType) and function.__code__.co_firstlineno == line:
            return function
    raise AssertionError(f"{found.module} has another {found.name} than its source")


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _codes(inner)


def _meaning(code: CodeType) -> object:
    """Returns a form that is equal for two functions that do the same."""
    return [
        (one.co_code, one.co_names, [const for const in one.co_consts if not isinstance(const, CodeType)])
        for one in _codes(code)
    ]


# -- Detection -------------------------------------------------------------------------------------------------------


def check_meaning(error: BaseException) -> None:
    """Raises RuntimeError if the mutation itself is broken: every test would detect it, which proves nothing."""
    if isinstance(error.__cause__ or error, NameError | AttributeError | SyntaxError | TypeError):
        raise RuntimeError("the mutation itself is broken") from error


def failing(attempts: Iterable[tuple[T, Callable[[], object]]], noticed: type[Exception] = Exception) -> T | None:
    """Returns the first run that raises the error; the others are not tried any more."""
    for name, attempt in attempts:
        try:
            attempt()
        except noticed as error:
            check_meaning(error)
            return name
    return None


def missed(
    mutations: Sequence[N],
    put: Callable[[pytest.MonkeyPatch, N], None],
    failing_seed: Callable[[], int | None],
    capsys: pytest.CaptureFixture[str],
) -> set[str]:
    """Returns the bugs that no seed detects, each tried by itself, and prints a list if one was requested."""
    names = []
    for mutation in mutations:
        with pytest.MonkeyPatch.context() as patch:
            put(patch, mutation)
            if failing_seed() is None:
                names.append(mutation.name)
    with capsys.disabled():
        print(f"\n{len(mutations) - len(names)} of {len(mutations)} were noticed by the seeds; not these:")
        print("\n".join(f"  {name}" for name in names))
    return set(names)
