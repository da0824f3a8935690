"""The state of a queue in the log: the sum of its blocks.

It consists of sets: live = enqueued − gone. Numbers are never reused, so the order of blocks does not matter, a block
may be applied twice, and a settle may come before the message (as in a mirror that is being filled). Recovery relies on
that: see `storage.log`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from leveret.base.range_set import NO_RANGES, RangeSet
from leveret.base.shared_values import NO_DICT
from leveret.storage.format.queue_marks import Marks
from leveret.storage.segments.content_index import NO_REFS, ContentIndex, Share

if TYPE_CHECKING:
    from leveret.storage.segments.mirror_copy import MirrorCopy


class QueueLog:
    __slots__ = (
        "id", "epoch", "number", "next_seq", "delivered_through", "live", "gone", "redelivered", "counts", "marks",
        "spilled", "refs", "spill_refs", "floor", "mirror", "unmarked", "_shares",
    )  # fmt: skip

    def __init__(self, id: int, shares: dict[int, Share]) -> None:
        self.id = id
        self.epoch = 0
        self.number = 0  # Of the queue's last block.
        self.next_seq = 1
        self.delivered_through = 0
        # Most queues of a node may be empty: none has a set or an index of its own before something is in it.
        self.live = NO_RANGES  # Messages that are stored and not settled.
        self.gone = NO_RANGES  # All messages ever settled.
        self.redelivered = NO_RANGES  # A part of `live`.
        self.counts: dict[int, int] = NO_DICT  # By message that is not settled: how often it was requeued.
        self.marks = Marks()
        self.spilled = NO_RANGES  # Transient messages, not settled, on disk until the node stops.
        self.refs = NO_REFS
        self.spill_refs = NO_REFS
        self.floor = 0  # Blocks in segments before this one are void: the queue was forgotten since.
        self.mirror: MirrorCopy | None = None  # If the queue is mirrored: then the above is the sum of applied blocks.
        self.unmarked: RangeSet | None = None  # Messages that its master here reads as not redelivered.
        self._shares = shares

    def restore(
        self,
        floor: int,
        live: RangeSet,
        gone: RangeSet,
        redelivered: RangeSet,
        counts: dict[int, int],
        mirror: MirrorCopy | None,
    ) -> None:
        """Take over what a checkpoint has."""
        self.floor = floor
        self.live, self.gone, self.redelivered = live or NO_RANGES, gone or NO_RANGES, redelivered or NO_RANGES
        self.counts, self.mirror = counts or NO_DICT, mirror

    def begin_at(self, segment: int) -> None:
        """Take blocks in earlier segments as void."""
        self.floor = segment

    def set_mirror(self, mirror: MirrorCopy) -> MirrorCopy:
        self.mirror = mirror
        return mirror

    def drop_other_counts(self) -> None:
        """Drop the counts of messages that are not stored."""
        self.counts = {number: count for number, count in self.counts.items() if number in self.live}

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
        """Return the number of the first message of the last block with messages."""
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
        """Add stored messages. Those that were settled before stay settled."""
        if self.live is NO_RANGES:
            self.live = RangeSet()
        self.live.add(low, high)
        last = self.gone.last
        if last is not None and low <= last:
            for start, end in list(self.gone.ranges(low, high)):
                self.live.remove(start, end)

    def requeue(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Note requeued messages. A mirror that is being filled may not have them yet."""
        is_filling = self.mirror is not None and not self.mirror.complete
        for low, high in ranges:
            if self.unmarked is not None:
                self.unmarked.remove(low, high)
            if is_filling:
                self.redeliver(low, high)
                for start, end in self.gone.ranges(low, high):
                    self.redelivered.remove(start, end)
                continue
            for start, end in self.live.ranges(low, high):
                self.redeliver(start, end)
            if self.mirror is not None:  # Spilled messages are about to be stored: see `unspill`.
                for start, end in self.spilled.ranges(low, high):
                    self.redeliver(start, end)

    def redeliver(self, low: int, high: int) -> None:
        """Note messages that may have been delivered."""
        if self.redelivered is NO_RANGES:
            self.redelivered = RangeSet()
        self.redelivered.add(low, high)

    def unmark(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Have messages read back here as not redelivered, until they are requeued. Pieces and checkpoints, from which
        other masters come, still have them as such."""
        if self.unmarked is None:
            self.unmarked = RangeSet()
        for low, high in ranges:
            self.unmarked.add(low, high)

    def mark_again(self) -> None:
        """Undo `unmark`: another node may have led the queue since."""
        self.unmarked = None

    def read_as_redelivered(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return which messages of first..last the queue's master here reads back as redelivered."""
        found = RangeSet(self.redelivered.ranges(first, last))
        for low, high in () if self.unmarked is None else self.unmarked.ranges(first, last):
            found.remove(low, high)
        return list(found)

    def count_returns(self, counts: Iterable[tuple[int, int, int]]) -> None:
        """Note how often messages were requeued. The larger of two counts is valid. A mirror may not have the message
        yet: see `replication.catch_up`."""
        known = self.counts or {}
        for low, high, count in counts:
            for number in range(low, min(high + 1, self.next_seq)):
                if count > known.get(number, -1) and number not in self.gone:
                    known[number] = count
        self.counts = known or NO_DICT

    def uncount(self, low: int, high: int) -> None:
        """Drop the counts of settled messages."""
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
            self.end(low, high)
            if self.counts:
                self.uncount(low, high)
            self.refs.settle(low, high, self.live)
            self.live.remove(low, high)
            if self.redelivered:
                self.redelivered.remove(low, high)
            if self.unmarked is not None:
                self.unmarked.remove(low, high)
            if self.spilled:
                self.unspill(low, high)

    def end(self, low: int, high: int) -> None:
        """Note that messages are settled."""
        if self.gone is NO_RANGES:
            self.gone = RangeSet()
        self.gone.add(low, high)

    def index(self) -> ContentIndex:
        """Return the index of stored contents, to add something to it."""
        if self.refs is NO_REFS:
            self.refs = ContentIndex(self._shares)
        return self.refs

    def spill(self, low: int, high: int) -> ContentIndex:
        """Add spilled messages. Return the index of their contents, to add these to it."""
        if self.spilled is NO_RANGES:
            self.spilled = RangeSet()
        if self.spill_refs is NO_REFS:
            self.spill_refs = ContentIndex(self._shares)
        self.spilled.add(low, high)
        return self.spill_refs

    def unspill(self, low: int, high: int) -> None:
        """Drop spilled messages: they are settled, or stored like all others."""
        self.spill_refs.settle(low, high, self.spilled)
        self.spilled.remove(low, high)
