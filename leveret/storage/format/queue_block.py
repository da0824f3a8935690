"""What one queue changed in one flush: the unit that is written, mirrored, replayed and read.

A block is plain data. How it looks on disk is `format`, what a queue's blocks add up to is `queue`.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import itemgetter

from leveret.base import message_flags

PERSISTENT = message_flags.PERSISTENT
REDELIVERED = message_flags.REDELIVERED
EXPIRES = message_flags.EXPIRES
SHARED = 4  # The same content object also goes to other queues in this batch: stored once.
KEPT = 16  # Its publisher was told that it is safe: no limit turns it away. Means nothing once it is in its queue.
OVERDUE = 32  # Its time was up before it came: its queue only sends its dead letter. Likewise.
NOTED = REDELIVERED | EXPIRES | KEPT | OVERDUE

# As a table for `bytes.translate`: what of a kind means something outside the batch in which the message came.
LASTING_KIND = bytes(kind & (PERSISTENT | REDELIVERED | EXPIRES) for kind in range(256))

_INDEX = itemgetter(0)


class Run:
    """Messages in a row in one queue. The i-th has the sequence number `first + i`.

    `times` says when they came, in milliseconds, as far as that is known: for each stretch the index at which it
    begins, and the time. It is not part of what makes two runs equal.
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
        """Those with the indexes lo..hi - 1, by themselves."""
        times = self.times
        if times:
            before = bisect_right(times, lo, key=_INDEX)
            times = [(0, times[max(before - 1, 0)][1]), *((at - lo, time) for at, time in times[before:] if at < hi)]
        return Run(self.first + lo, self.contents[lo:hi], self.keys[lo:hi], self.kinds[lo:hi], times)

    def join(self, more: Run) -> None:
        """Append the run that goes on where this one ends."""
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
    """What one queue changed in one flush.

    `settled` and `requeued` are inclusive ranges of sequence numbers, ascending and apart from each other. A range may
    cover numbers that are not waiting (settled before, never stored), which changes nothing, but none that are still to
    be given: what is settled stays settled. Within a block the order is: enqueued, then requeued, then settled.

    `counts` says how often messages have been given back in all, for queues that keep count: (first, last, count) for
    each stretch. Of two counts of a message the larger one holds, so that a block may be applied twice.

    `marks` are changes to a small table of names that the queue keeps for good; an empty value removes one. See
    `marks`.
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
