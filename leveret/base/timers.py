"""Timers of queues.

A queue has one timer: the earliest time that was set counts until it is due or cleared. A heap finds the timers that
are due; outdated entries stay in it until they come up, and are removed when they are more than half of it.
"""

from __future__ import annotations

import sys
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

Sleeper = TypeVar("Sleeper")
STALE_MIN: Final = 1_000
ALL: Final = sys.maxsize


class Timers(Generic[Sleeper]):
    """The timers of many sleepers by one clock."""

    def __init__(self) -> None:
        self._due: dict[Sleeper, int] = {}
        self._heap: list[tuple[int, int, Sleeper]] = []
        self._count = 0  # Breaks ties in the heap: sleepers have no order.

    def __len__(self) -> int:
        return len(self._due)

    def set(self, sleeper: Sleeper, at_ms: int) -> None:
        """Set a timer, unless an earlier time is set."""
        known = self._due.get(sleeper)
        if known is None or at_ms < known:
            self._put(sleeper, at_ms)

    def move(self, sleeper: Sleeper, at_ms: int) -> None:
        """Set a timer, whatever was set before."""
        if self._due.get(sleeper) != at_ms:
            self._put(sleeper, at_ms)

    def clear(self, sleeper: Sleeper) -> None:
        self._due.pop(sleeper, None)

    def _put(self, sleeper: Sleeper, at_ms: int) -> None:
        self._due[sleeper] = at_ms
        self._count += 1
        heappush(self._heap, (at_ms, self._count, sleeper))
        if len(self._heap) > 2 * len(self._due) + STALE_MIN:
            self._heap = [entry for entry in self._heap if self._due.get(entry[2]) == entry[0]]
            heapify(self._heap)

    def is_due(self, at_ms: int) -> bool:
        """Return whether a timer may be due at that time. One that was cleared or moved may count."""
        return bool(self._heap) and self._heap[0][0] <= at_ms

    def due(self, now_ms: int, most: int = ALL) -> list[Sleeper]:
        """Return those whose timers are due, the earliest first and no more than `most`, and clear these timers."""
        found: list[Sleeper] = []
        heap = self._heap
        while heap and heap[0][0] <= now_ms and len(found) < most:
            at_ms, _, sleeper = heappop(heap)
            if self._due.get(sleeper) == at_ms:
                del self._due[sleeper]
                found.append(sleeper)
        return found
