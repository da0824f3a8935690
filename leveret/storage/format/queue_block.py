"""Blocks: the changes of one queue in one flush, the unit that is written, mirrored, replayed and read.

A block is plain data. `block_format` has its bytes, `segments.queue_index` what a queue's blocks add up to.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import itemgetter

from leveret.base import message_flags

PERSISTENT = message_flags.PERSISTENT
REDELIVERED = message_flags.REDELIVERED
EXPIRES = message_flags.EXPIRES
SHARED = 4  # Other queues have the same content object in this batch: it is stored once.
KEPT = 16  # It is confirmed already, so no limit may reject it. No meaning once it is in its queue.
OVERDUE = 32  # It expired before it arrived: its queue only dead-letters it. Likewise.
# A client has acknowledged or rejected it while it was in a spool: its queue only takes its number. Likewise.
ACKNOWLEDGED = 64
REJECTED = 128
PASSING = KEPT | OVERDUE | ACKNOWLEDGED | REJECTED  # No meaning once a message is in its queue.
NOTED = REDELIVERED | EXPIRES | PASSING

# A table for `bytes.translate`: keeps the flags that have a meaning outside the batch in which a message arrived.
LASTING_KIND = bytes(kind & (PERSISTENT | REDELIVERED | EXPIRES) for kind in range(256))

_INDEX = itemgetter(0)


class Run:
    """Consecutive messages of a queue. The i-th has the sequence number `first + i`.

    `times` has the times of arrival in milliseconds, as far as known: the index of the first message with a time, and
    the time. It does not count for equality.
    """

    __slots__ = ("first", "contents", "keys", "kinds", "times")

    def __init__(
        self,
        first: int,
        contents: list[bytes],
        keys: list[bytes],
        kinds: bytearray,
        times: list[tuple[int, int]] | None = None,
    ) -> None:
        self.first = first
        self.contents = contents
        self.keys = keys
        self.kinds = kinds
        self.times = [] if times is None else times

    def cut(self, lo: int, hi: int) -> Run:
        """Return the messages with the indexes lo..hi - 1 as a run."""
        times = self.times
        if times:
            before = bisect_right(times, lo, key=_INDEX)
            times = [(0, times[max(before - 1, 0)][1]), *((at - lo, time) for at, time in times[before:] if at < hi)]
        return Run(self.first + lo, self.contents[lo:hi], self.keys[lo:hi], self.kinds[lo:hi], times)

    def join(self, more: Run) -> None:
        """Append the run that starts where this one ends."""
        count = len(self.contents)
        self.contents += more.contents
        self.keys += more.keys
        self.kinds += more.kinds
        for at, time in more.times:
            if not self.times or self.times[-1][1] != time:
                self.times.append((at + count if self.times else 0, time))

    @property
    def last(self) -> int:
        return self.first + len(self.contents) - 1

    def __len__(self) -> int:
        return len(self.contents)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Run):
            return NotImplemented
        return (self.first, self.contents, self.keys, self.kinds) == (
            other.first,
            other.contents,
            other.keys,
            other.kinds,
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Run({self.first}..{self.last})"


class Block:
    """The changes of one queue in one flush.

    `settled` and `requeued` are inclusive ranges of sequence numbers, ascending and not touching. A range may cover
    numbers that are not in the queue (settled before, never stored), which has no effect, but none that are not given
    out yet: a settled number stays settled. Within a block the order is: enqueued, then requeued, then settled.

    `counts` has how often messages have been requeued in all, for queues with a delivery limit: (first, last, count).
    The larger of two counts of a message is valid, so that a block may be applied twice.

    `marks` are changes to the queue's marks; an empty value removes one. See `queue_marks`.
    """

    __slots__ = (
        "queue", "epoch", "number", "time_ms", "enqueued", "settled", "requeued", "delivered_through", "counts",
        "marks",
    )  # fmt: skip

    def __init__(
        self,
        queue: int,
        epoch: int,
        number: int,
        time_ms: int,
        enqueued: Run | None,
        settled: list[tuple[int, int]],
        requeued: list[tuple[int, int]],
        delivered_through: int,
        counts: list[tuple[int, int, int]] | None = None,
        marks: dict[bytes, bytes] | None = None,
    ) -> None:
        self.queue = queue
        self.epoch = epoch
        self.number = number
        self.time_ms = time_ms
        self.enqueued = enqueued
        self.settled = settled
        self.requeued = requeued
        self.delivered_through = delivered_through
        self.counts = counts or []
        self.marks = marks or {}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Block):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in Block.__slots__)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return (
            f"Block(queue={self.queue}, epoch={self.epoch}, number={self.number}, enqueued={self.enqueued}, "
            f"settled={self.settled}, requeued={self.requeued}, delivered_through={self.delivered_through})"
        )
