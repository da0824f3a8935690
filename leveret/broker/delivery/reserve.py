"""Takes chosen messages of a queue out of those that are ready, because somebody holds them already.

A new master does so with what its former one has delivered, and a lease with what it had read before a restart.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from leveret.base.range_set import RangeSet
from leveret.broker.delivery.batch import Batch, Gap, Span
from leveret.broker.delivery.priority_ready import gap_of, rows_of

if TYPE_CHECKING:
    from leveret.broker.queue.queue import Queue

Piece = tuple[Batch, int, int]  # A batch, and which part of it: from the first index to before the second.


def reserve(queue: Queue, ranges: list[tuple[int, int]]) -> list[Piece]:
    """Take messages with these numbers, ascending, from those that wait. What is with somebody already is not there.
    The pieces are ascending, too, whatever the priorities of messages are."""
    taken: list[Piece] = []
    for row in rows_of(queue.ready):
        taken += _reserve_from(queue, row, deque(ranges))
    taken.sort(key=_first_of)
    queue.on_reserved(sum(hi - lo for _, lo, hi in taken))
    return taken


def _first_of(piece: Piece) -> int:
    batch, lo, _ = piece
    return batch.first + lo


def _reserve_from(queue: Queue, row: deque[Span | Gap], wanted: deque[tuple[int, int]]) -> list[Piece]:
    taken: list[Piece] = []
    kept: deque[Span | Gap] = deque()
    for entry in row:
        low, end = entry.first, entry.last
        while wanted and wanted[0][0] <= end:
            first, last = max(low, wanted[0][0]), min(end, wanted[0][1])
            if first <= last:
                _keep(queue, kept, entry, low, first - 1)
                taken += _take(queue, entry, first, last)
                low = last + 1
            if wanted[0][1] > end:
                break
            wanted.popleft()
        _keep(queue, kept, entry, low, end)
    row.clear()
    row.extend(kept)
    return taken


def _keep(queue: Queue, kept: deque[Span | Gap], entry: Span | Gap, first: int, last: int) -> None:
    if first > last:
        return
    if isinstance(entry, Span):
        kept.append(Span(entry.batch, first - entry.batch.first, last - entry.batch.first + 1))
    elif (first, last) == (entry.first, entry.last):
        kept.append(entry)  # Perhaps it is being read.
    elif entry.ranges is not None:
        numbers = RangeSet(entry.ranges.ranges(first, last))
        if numbers:
            kept.append(gap_of(numbers, entry.redelivered))
    else:
        count = sum(end - start + 1 for start, end in queue.host.stored_within(queue, first, last))
        if count:
            kept.append(Gap(first, last, count, entry.redelivered))


def _take(queue: Queue, entry: Span | Gap, first: int, last: int) -> list[Piece]:
    if isinstance(entry, Span):
        return [(entry.batch, first - entry.batch.first, last - entry.batch.first + 1)]
    queue.stop_loading(entry)
    taken: list[Piece] = []
    within = queue.host.stored_within(queue, first, last) if entry.ranges is None else entry.ranges.ranges(first, last)
    for start, end in within:
        batch = Batch.unread(start, end - start + 1)
        taken.append((batch, 0, batch.left))
    return taken
