"""What is due when: numbers by time, millions of them, in eight bytes each.

Most of what is delayed is far from due, and need not be in order yet. So there are three tiers, each a finer sorting of
what the one before it holds; what lies ahead is moved to the next tier when its time begins:

    far      65,536 ms a bucket      packed, as it came. A delay has at most 2^32 ms, so there are few buckets
    near      1,024 ms a bucket      packed, as it came: the buckets of `far` that have begun
    present                          a heap: the buckets of `near` that have begun

A bucket of `far` may hold all of a million, and the node has other things to do: it is moved in pieces, from a while
before it begins, so that it is done by then.

An entry of a bucket is its time within the bucket and its number, in one unsigned integer of 64 bits. In the heap it is
an object, five times as large; but that holds for the second that has begun, and for what is overdue.
"""

from __future__ import annotations

from array import array
from heapq import heapify, heappop, heappush
from typing import Final

NUMBER_BITS: Final = 48  # Of a message: at a million a second, enough for nine years.
FAR_BITS: Final = 16
NEAR_BITS: Final = 10
LEAD_MS: Final = 1 << 14  # So much before a far bucket begins it is moved on,
MOVED_MAX: Final = 16_384  # as many of it at a time.
_NUMBER_MASK: Final = (1 << NUMBER_BITS) - 1
_FAR_MASK: Final = (1 << FAR_BITS) - 1
_NEAR_MASK: Final = (1 << NEAR_BITS) - 1


class Tier:
    """Buckets by the time at which they begin, and which of them begins first."""

    __slots__ = ("buckets", "starts")

    def __init__(self) -> None:
        self.buckets: dict[int, array[int]] = {}
        self.starts: list[int] = []

    def add(self, start: int, entry: int) -> None:
        bucket = self.buckets.get(start)
        if bucket is None:
            self.buckets[start] = array("Q", (entry,))
            heappush(self.starts, start)
        else:
            bucket.append(entry)

    def pop(self) -> tuple[int, array[int]]:
        start = heappop(self.starts)
        return start, self.buckets.pop(start)


class Agenda:
    """Numbers, each with the time at which it is due, in milliseconds."""

    __slots__ = ("_far", "_far_begun", "_near", "_near_begun", "_present")

    def __init__(self) -> None:
        self._far, self._near = Tier(), Tier()
        self._present: list[int] = []  # time << NUMBER_BITS | number
        self._far_begun = self._near_begun = -1  # The last buckets that were moved on.

    def __len__(self) -> int:
        waiting = (*self._far.buckets.values(), *self._near.buckets.values())
        return len(self._present) + sum(map(len, waiting))

    def add(self, due_ms: int, number: int) -> None:
        assert due_ms >= 0 and 0 <= number <= _NUMBER_MASK
        if due_ms >> NEAR_BITS <= self._near_begun:
            heappush(self._present, due_ms << NUMBER_BITS | number)
        elif due_ms >> FAR_BITS <= self._far_begun:
            self._near.add(due_ms >> NEAR_BITS, (due_ms & _NEAR_MASK) << NUMBER_BITS | number)
        else:
            self._far.add(due_ms >> FAR_BITS, (due_ms & _FAR_MASK) << NUMBER_BITS | number)

    def next_ms(self) -> int | None:
        """When to look again: nothing is due before, nor to be moved. None: there is nothing."""
        times: list[int] = []
        if self._present:
            times.append(self._present[0] >> NUMBER_BITS)
        if self._near.starts:
            times.append(self._near.starts[0] << NEAR_BITS)
        if self._far.starts:
            times.append((self._far.starts[0] << FAR_BITS) - LEAD_MS)
        return min(times, default=None)

    def take(self, now_ms: int, count_max: int) -> list[int]:
        """Those that are due, the first to be due first; of two that are due together, the lower number."""
        self._begin(now_ms)
        present = self._present
        taken: list[int] = []
        limit = (now_ms + 1) << NUMBER_BITS
        while present and present[0] < limit and len(taken) < count_max:
            taken.append(heappop(present) & _NUMBER_MASK)
        return taken

    def _begin(self, now_ms: int) -> None:
        self._move(now_ms)
        near = self._near
        begun: list[int] = []
        while near.starts and near.starts[0] << NEAR_BITS <= now_ms:
            start, entries = near.pop()
            self._near_begun = max(self._near_begun, start)
            base = start << (NEAR_BITS + NUMBER_BITS)
            begun += [base + entry for entry in entries]
        if begun:
            self._present += begun
            heapify(self._present)

    def _move(self, now_ms: int) -> None:
        far, near, room = self._far, self._near, MOVED_MAX
        while room > 0 and far.starts and (far.starts[0] << FAR_BITS) - LEAD_MS <= now_ms:
            start = self._far_begun = far.starts[0]
            bucket = far.buckets[start]
            base_ms = start << FAR_BITS
            piece = bucket[-room:]
            for entry in piece:
                due_ms = base_ms + (entry >> NUMBER_BITS)
                near.add(due_ms >> NEAR_BITS, (due_ms & _NEAR_MASK) << NUMBER_BITS | entry & _NUMBER_MASK)
            del bucket[-room:]
            room -= len(piece)
            if not bucket:
                far.pop()
