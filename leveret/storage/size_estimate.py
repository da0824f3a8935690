"""Estimates of the number and the size of stored messages, without reading them.

The index has the total size of each block's messages. So the size of a message is estimated as the mean of its block,
which is exact for equal messages, and a sum is never off by more than a block.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge

from leveret.base.range_set import Measured, RangeSet, Wanted
from leveret.storage.segments.content_index import ContentIndex
from leveret.storage.segments.queue_index import QueueLog


def measure(queue: QueueLog, wanted: Wanted) -> Measured:
    """Return which of the wanted messages the log has, up to the limits."""
    first, last, count_max, bytes_max, among, ranges_max = wanted
    found: list[tuple[int, int]] = []
    count = size = 0
    stored, spilled = _parts(queue.live, queue.refs, first, last), _parts(queue.spilled, queue.spill_refs, first, last)
    for start, end, each in merge(stored, spilled):
        for low, high in [(start, end)] if among is None else among.ranges(start, end):
            room = min(count_max - count, (bytes_max - size) // each if count else max(bytes_max // each, 1))
            touches = bool(found) and found[-1][1] + 1 == low
            if room <= 0 or (len(found) >= ranges_max and not touches):
                return Measured(found, size)
            is_cut, high = low + room - 1 < high, min(high, low + room - 1)
            if touches:
                found[-1] = (found[-1][0], high)
            else:
                found.append((low, high))
            count += high - low + 1
            size += each * (high - low + 1)
            if is_cut:  # Later, smaller ones must not be taken before the rest of these.
                return Measured(found, size)
    return Measured(found, size)


def _parts(numbers: RangeSet, refs: ContentIndex, first: int, last: int) -> Iterator[tuple[int, int, int]]:
    """Yield ranges of one block each, ascending, with the mean size of its messages."""
    if not numbers:
        return
    for ref in refs.from_seq(first):
        if ref.first > last:
            return
        each = max(ref.bytes // max(ref.live, 1), 1)
        for low, high in numbers.ranges(max(first, ref.first), min(last, ref.last)):
            yield low, high, each
