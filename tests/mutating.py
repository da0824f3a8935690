"""Deliberate bugs: what a test does with a piece of source text that is replaced.

Who writes a test has to see it fail once; who writes a simulation has to see that again after each change of it, or its
checkers go blind without a word. So bugs are kept in lists, each a piece of a module's source and what stands there
instead, and tests demand that each is noticed.

The changed source is compiled, and those of its functions that differ are put in place of the real ones for the time of
a test. They live in the real module's namespace, so that they see the same classes and the same limits as all others: a
second class of the same name would not recognize the objects of the first. A function that calls super() is tied to its
class and cannot be put elsewhere, so a bug must be in another.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final, Protocol, TypeVar

import pytest

# `LEVERET_MUTATIONS=all` tries the seeds of a simulation on every bug, which takes minutes, and says which they missed.
ALL: Final = os.environ.get("LEVERET_MUTATIONS") == "all"
only_with_all: Final = pytest.mark.skipif(not ALL, reason="LEVERET_MUTATIONS=all runs the seeds on every bug")


class Named(Protocol):
    @property
    def name(self) -> str: ...


T = TypeVar("T")
N = TypeVar("N", bound=Named)


def replace(patch: pytest.MonkeyPatch, name: str, module: ModuleType, *pieces: tuple[str, str]) -> None:
    """Put the bug of that name into a module: each piece of its source, which is there once, becomes the other."""
    source = inspect.getsource(module)
    for old, new in pieces:
        assert source.count(old) == 1, f"{name}: its text is {source.count(old)} times there"
        source = source.replace(old, new)
    changed: dict[str, Any] = {"__name__": module.__name__}
    exec(compile(source, f"{module.__name__} (mutated)", "exec"), changed)
    replaced = 0
    for key, real in list(vars(module).items()):
        if getattr(real, "__module__", None) != module.__name__:
            continue
        if isinstance(real, type):
            replaced += _replace_methods(patch, module, real, changed[key])
        elif isinstance(real, FunctionType) and _meaning(changed[key]) != _meaning(real):
            replaced += 1
            at_home = _at_home(changed[key], module)
            for other in [one for one in sys.modules.values() if one.__name__.startswith(("leveret.", "simulation."))]:
                if vars(other).get(key) is real:  # Others have it by its name.
                    patch.setattr(other, key, at_home)
    assert replaced, f"{name}: no function differs"


def _replace_methods(patch: pytest.MonkeyPatch, module: ModuleType, real: type, changed: type) -> int:
    replaced = 0
    for key, value in vars(changed).items():
        function = value.fget if isinstance(value, property) else value
        if isinstance(function, FunctionType) and _meaning(function) != _meaning(vars(real).get(key)):
            replaced += 1
            at_home = _at_home(function, module)
            _put_in_tables(patch, module, vars(real).get(key), at_home)
            patch.setattr(real, key, property(at_home) if isinstance(value, property) else at_home)
    return replaced


def _put_in_tables(patch: pytest.MonkeyPatch, module: ModuleType, real: object, changed: FunctionType) -> None:
    for table in [value for value in vars(module).values() if isinstance(value, dict)]:
        for key in [key for key, value in table.items() if value is real]:
            patch.setitem(table, key, changed)


def _meaning(value: object) -> object:
    """What two functions have in common that do the same."""
    inner = value.fget if isinstance(value, property) else value
    if not isinstance(inner, FunctionType):
        return None
    pending, parts = [inner.__code__], []
    while pending:
        code = pending.pop()
        pending += [one for one in code.co_consts if isinstance(one, CodeType)]
        parts.append((code.co_code, code.co_names, [one for one in code.co_consts if not isinstance(one, CodeType)]))
    return parts


def _at_home(function: FunctionType, module: ModuleType) -> FunctionType:
    assert not function.__closure__
    moved = FunctionType(function.__code__, vars(module), function.__name__, function.__defaults__)
    moved.__kwdefaults__ = function.__kwdefaults__
    return moved


def check_meaning(error: BaseException) -> None:
    """A mutation that is no program is noticed by everybody, and proves nothing."""
    if isinstance(error.__cause__ or error, NameError | AttributeError | SyntaxError | TypeError):
        raise RuntimeError("the mutation itself is broken") from error


def failing(attempts: Iterable[tuple[T, Callable[[], object]]], noticed: type[Exception] = Exception) -> T | None:
    """The first that raises that; the others are not tried any more."""
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
    """The names of those that no seed notices, each tried by itself; and a list of them for who asked."""
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
