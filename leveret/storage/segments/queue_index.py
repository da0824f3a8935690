"""What a queue's blocks add up to.

The fold is one of sets: live = enqueued − gone. Numbers are never reused, so the order of blocks does not matter, a
block may be applied twice, and a settle may come before the message it settles (a mirror that fills up from below sees
that). This is what recovery rests on: see `log`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from leveret.base.range_set import RangeSet
from leveret.storage.format.queue_marks import Marks
from leveret.storage.segments.content_index import Refs, Share

if TYPE_CHECKING:
    from leveret.storage.segments.mirror_copy import Mirror


class QueueLog:
    __slots__ = (
        "id", "epoch", "number", "next_seq", "delivered_through", "live", "gone", "redelivered", "counts", "marks",
        "spilled", "refs", "spill_refs", "floor", "mirror",
    )  # fmt: skip

    def __init__(self, id: int, shares: dict[int, Share]) -> None:
        self.id = id
        self.epoch = 0
        self.number = 0  # Of the last block.
        self.next_seq = 1
        self.delivered_through = 0
        self.live = RangeSet()  # Stored and not settled.
        self.gone = RangeSet()  # Settled, ever.
        self.redelivered = RangeSet()  # Part of live.
        self.counts: dict[int, int] = {}  # How often messages were given back that are not settled yet.
        self.marks = Marks()
        self.spilled = RangeSet()  # Transient, not settled, put away on disk until the node stops.
        self.refs = Refs(shares)
        self.spill_refs = Refs(shares)
        self.floor = 0  # What segments before this one say about the queue is void: it was forgotten since.
        self.mirror: Mirror | None = None  # Of a mirrored queue: then the above is what was applied.

    @property
    def count(self) -> int:
        return self.live.count

    @property
    def message_bytes(self) -> int:
        return self.refs.bytes

    def pieces(self, piece_bytes: int) -> list[tuple[int, int, int]]:
        return self.refs.pieces(piece_bytes)

    @property
    def last_block_first(self) -> int:
        """The number of the first message of the last block with messages."""
        return self.refs.last_first

    def advance(self, epoch: int, number: int, next_seq: int, delivered_through: int) -> None:
        if epoch > self.epoch:
            self.epoch = epoch
        if number > self.number:
            self.number = number
        if next_seq > self.next_seq:
            self.next_seq = next_seq
        if delivered_through > self.delivered_through:
            self.delivered_through = delivered_through

    def enqueue(self, low: int, high: int) -> None:
        """Messages low..high are stored. What was settled before stays settled."""
        self.live.add(low, high)
        last = self.gone.last
        if last is not None and low <= last:
            for start, end in list(self.gone.ranges(low, high)):
                self.live.remove(start, end)

    def requeue(self, ranges: Iterable[tuple[int, int]]) -> None:
        """A mirror that is being filled may hear of it before it has the message."""
        is_filling = self.mirror is not None and not self.mirror.complete
        for low, high in ranges:
            if is_filling:
                self.redelivered.add(low, high)
                for start, end in self.gone.ranges(low, high):
                    self.redelivered.remove(start, end)
                continue
            for start, end in self.live.ranges(low, high):
                self.redelivered.add(start, end)
            if self.mirror is not None:  # What is spilled is about to be stored: see `unspill`.
                for start, end in self.spilled.ranges(low, high):
                    self.redelivered.add(start, end)

    def count_returns(self, counts: Iterable[tuple[int, int, int]]) -> None:
        """Of two counts the larger holds. A mirror may hear of one before it has the message: see `mirror.sync`."""
        known = self.counts
        for low, high, count in counts:
            for number in range(low, min(high + 1, self.next_seq)):
                if count > known.get(number, -1) and number not in self.gone:
                    known[number] = count

    def uncount(self, low: int, high: int) -> None:
        """Nobody will ask again how often these were given back."""
        known = self.counts
        if not known:
            return
        if high - low < len(known):
            for number in range(low, high + 1):
                known.pop(number, None)
        else:
            self.counts = {number: count for number, count in known.items() if not low <= number <= high}

    def settle(self, ranges: Iterable[tuple[int, int]]) -> None:
        for low, high in ranges:
            self.gone.add(low, high)
            if self.counts:
                self.uncount(low, high)
            self.refs.settle(low, high, self.live)
            self.live.remove(low, high)
            if self.redelivered:
                self.redelivered.remove(low, high)
            if self.spilled:
                self.unspill(low, high)

    def unspill(self, low: int, high: int) -> None:
        """These need not be kept as spilled any longer: they are gone, or stored like all others."""
        self.spill_refs.settle(low, high, self.spilled)
        self.spilled.remove(low, high)
