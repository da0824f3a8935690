"""What one queue changed in one flush: the unit that is written, mirrored, replayed and read.

A block is plain data. How it looks on disk is `format`, what a queue's blocks add up to is `queue`.
"""

from __future__ import annotations

PERSISTENT = 1  # Kept over a restart: written to the log.
REDELIVERED = 2  # May have been delivered before.
SHARED = 4  # The same content object also goes to other queues in this batch: stored once.


class Run:
    """Messages in a row in one queue. The i-th has the sequence number `first + i`."""

    __slots__ = ("first", "contents", "keys", "kinds")

    def __init__(self, first: int, contents: list[bytes], keys: list[bytes], kinds: bytearray) -> None:
        self.first = first
        self.contents = contents
        self.keys = keys
        self.kinds = kinds

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
    """

    __slots__ = ("queue", "epoch", "number", "time_ms", "enqueued", "settled", "requeued", "delivered_through")

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
    ) -> None:
        self.queue = queue
        self.epoch = epoch
        self.number = number
        self.time_ms = time_ms
        self.enqueued = enqueued
        self.settled = settled
        self.requeued = requeued
        self.delivered_through = delivered_through

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
