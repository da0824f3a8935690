"""Cuts long work in the event loop into slices: a loop over a hundred thousand queues lets other callbacks run.

A slice is short compared with what a client notices. The clock is asked every few steps only, so a step must be short
too: some microseconds. What cannot be cut (sorting a list, encoding a large value) is done in pieces that can.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from heapq import merge
from time import perf_counter
from typing import Any, Final, TypeVar

SLICE_S: Final = 0.001
STEPS: Final = 16  # Steps between two looks at the clock.
# Passes of the event loop between two slices: a message is read in one pass and handled in the next, and should not
# wait for a slice in between. Where nobody else has anything to do, a pass takes some microseconds.
PASSES: Final = 3
SORTED_AT_ONCE: Final = 256
FEW: Final = 1_024  # Up to so many wanted items, only the best so far are kept while the list is read.

_T = TypeVar("_T")


class TimeSlices:
    """The slices of one piece of work."""

    __slots__ = ("_left", "_steps", "_until")

    def __init__(self, steps: int = STEPS) -> None:
        """`steps` between two looks at the clock: fewer where one of them may take long."""
        self._until = perf_counter() + SLICE_S
        self._left = self._steps = steps

    def is_over(self) -> bool:
        """Returns, after each step, whether the slice has been long enough. Then `rest` is due."""
        self._left -= 1
        if self._left > 0:
            return False
        self._left = self._steps
        return perf_counter() >= self._until

    async def rest(self) -> None:
        """Lets all other callbacks of the event loop run first."""
        for _ in range(PASSES):
            await asyncio.sleep(0)
        self._until = perf_counter() + SLICE_S

    async def each(self, items: Iterable[_T]) -> AsyncIterator[_T]:
        """Yields the items, with rests between them. They must not change meanwhile."""
        for item in items:
            yield item
            if self.is_over():
                await self.rest()


async def in_portions(items: Iterable[_T], count: int) -> AsyncIterator[_T]:
    """Yields the items, and lets all other callbacks run after each `count` of them: for what a simulation does, too,
    where a run must not depend on a clock."""
    for number, item in enumerate(items, 1):
        yield item
        if not number % count:
            await asyncio.sleep(0)


async def picked(items: Iterable[_T], wanted: Callable[[_T], bool], steps: int = STEPS) -> list[_T]:
    """Returns the wanted items, like a list comprehension, in slices."""
    slices, found = TimeSlices(steps), []
    for item in items:
        if wanted(item):
            found.append(item)
        if slices.is_over():
            await slices.rest()
    return found


async def in_order(
    items: list[_T], key: Callable[[_T], Any], reverse: bool = False, most: int | None = None
) -> list[_T]:
    """Sorts like `sorted`, in slices, and returns no more than the first `most`. Runs are sorted one by one, then
    merged."""
    slices = TimeSlices()
    if most is not None and most <= FEW:
        best: list[_T] = []
        for at in range(0, len(items), SORTED_AT_ONCE):
            best = sorted(best + items[at : at + SORTED_AT_ONCE], key=key, reverse=reverse)[:most]
            await slices.rest()
        return best
    runs = []
    for at in range(0, len(items), SORTED_AT_ONCE):
        runs.append(sorted(items[at : at + SORTED_AT_ONCE], key=key, reverse=reverse))
        await slices.rest()
    if len(runs) <= 1:
        return [] if not runs else runs[0] if most is None else runs[0][:most]
    found: list[_T] = []
    for item in merge(*runs, key=key, reverse=reverse):
        if most is not None and len(found) >= most:
            break
        found.append(item)
        if slices.is_over():
            await slices.rest()
    return found
