"""Parts of objects of which there are very many: each equal value once, and none where a part is empty.

A node has tens of thousands of queues, and most of them are alike: the same ring, the same options, nothing waiting.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Hashable
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, TypeVar, cast

V = TypeVar("V", bound=Hashable)

# Stand for what nothing was put into yet (an empty deque takes 760 bytes). Whoever adds something makes the real
# one first: to add to one of these raises an error.
NO_DEQUE: Final = cast("deque[Any]", ())
NO_LIST: Final = cast("list[Any]", ())
NO_ARRAY: Final = cast("array[int]", ())
NO_SET: Final[frozenset[Any]] = frozenset()  # Python makes another one with each call.
NO_DICT: Final = cast("dict[Any, Any]", MappingProxyType({}))


@lru_cache(maxsize=4_096)
def _first_equal(value: Hashable) -> Hashable:
    return value


def shared(value: V) -> V:
    """Return the value, or an equal one that was given before, so that many objects have it once."""
    return _first_equal(value)  # type: ignore[return-value]  # An equal value is of the same type.


def shared_if_short(values: tuple[V, ...]) -> tuple[V, ...]:
    """Return the same as `shared` for a tuple of one or two. Longer ones are seldom equal, and would be kept here."""
    return shared(values) if len(values) <= 2 else values
