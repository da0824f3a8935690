"""What is due when: numbers by time, millions of them, in eight bytes each.

Most of what is delayed is far from due, and need not be in order yet. So there are three tiers, each a finer sorting of
what the one before it holds; what lies ahead is moved to the next tier when its time begins:

    far      65,536 ms a bucket      packed, as it came. A delay has at most 2^32 ms, so there are few buckets
    near      1,024 ms a bucket      packed, as it came: the buckets of `far` that have begun
    present                          a heap: the buckets of `near` that have begun

A bucket of `far` may hold all of a million, and the node has other things to do. So it is moved in pieces (`advance`),
by who looks ahead far enough to be done before it begins. Until it is, nothing of it is given out.

An entry of a bucket is its time within the bucket and its number, in one unsigned integer of 64 bits. In the heap it is
an object, five times as large; but that holds for the second that has begun, and for what is overdue.
"""

from __future__ import annotations

from array import array
from heapq import heappop, heappush
from typing import Final

NUMBER_BITS: Final = 48  # Of a message: at a million a second, enough for nine years.
FAR_BITS: Final = 16
NEAR_BITS: Final = 10
MOVED_MAX: Final = 16_384  # Entries of `far`, at a time.
NUMBER_MASK: Final = (1 << NUMBER_BITS) - 1
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


class Schedule:
    """Numbers, each with the time at which it is due, in milliseconds."""

    __slots__ = ("_far", "_far_begun", "_near", "_near_begun", "_present")

    def __init__(self) -> None:
        self._far, self._near = Tier(), Tier()
        self._present: list[int] = []  # See `packed`.
        self._far_begun = self._near_begun = -1  # The last buckets that were moved on.

    def __len__(self) -> int:
        waiting = (*self._far.buckets.values(), *self._near.buckets.values())
        return len(self._present) + sum(map(len, waiting))

    def add(self, due_ms: int, number: int) -> None:
        assert due_ms >= 0 and 0 <= number <= NUMBER_MASK
        if due_ms >> NEAR_BITS <= self._near_begun:
            heappush(self._present, packed(due_ms, number))
        elif due_ms >> FAR_BITS <= self._far_begun:
            self._near.add(due_ms >> NEAR_BITS, (due_ms & _NEAR_MASK) << NUMBER_BITS | number)
        else:
            self._far.add(due_ms >> FAR_BITS, (due_ms & _FAR_MASK) << NUMBER_BITS | number)

    def next_ms(self) -> int | None:
        """Returns when to look again: nothing is due before. None: there is nothing."""
        times: list[int] = []
        if self._present:
            times.append(self._present[0] >> NUMBER_BITS)
        if self._near.starts:
            times.append(self._near.starts[0] << NEAR_BITS)
        if self._far.starts:
            times.append(self._far.starts[0] << FAR_BITS)
        return min(times, default=None)

    def advance(self, until_ms: int) -> bool:
        """Put more of what is due until then in order. False: not all of it is."""
        far, near, room = self._far, self._near, MOVED_MAX
        while room > 0 and far.starts and far.starts[0] << FAR_BITS <= until_ms:
            start = self._far_begun = far.starts[0]
            bucket = far.buckets[start]
            base_ms = start << FAR_BITS
            piece = bucket[-room:]
            for entry in piece:
                due_ms = base_ms + (entry >> NUMBER_BITS)
                near.add(due_ms >> NEAR_BITS, (due_ms & _NEAR_MASK) << NUMBER_BITS | entry & NUMBER_MASK)
            del bucket[-room:]
            room -= len(piece)
            if not bucket:
                far.pop()
        return not far.starts or far.starts[0] << FAR_BITS > until_ms

    def take(self, until_ms: int, count_max: int) -> list[int]:
        """Take what is due until then, ordered by time, then by number, both in one integer as `packed` makes it."""
        if not self.advance(until_ms):
            until_ms = (self._far.starts[0] << FAR_BITS) - 1
        near, limit = self._near, packed(until_ms + 1, 0)
        taken: list[int] = []
        while len(taken) < count_max:
            first = self._present[0] if self._present else limit
            if near.starts and packed(near.starts[0] << NEAR_BITS, 0) <= min(first, limit - 1):
                self._begin()
            elif first < limit:
                taken.append(heappop(self._present))
            else:
                break
        return taken

    def _begin(self) -> None:
        """The next bucket of `near`."""
        start, entries = self._near.pop()
        self._near_begun = max(self._near_begun, start)
        base = packed(start << NEAR_BITS, 0)
        if self._present:
            for entry in entries:
                heappush(self._present, base + entry)
        else:
            self._present = sorted([base + entry for entry in entries])  # Which is a heap.


def packed(due_ms: int, number: int) -> int:
    return due_ms << NUMBER_BITS | number
