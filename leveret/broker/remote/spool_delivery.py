"""Delivers messages of a spool to clients of this node while their queue is served here from a copy.

One of two nodes that has lost the other serves its clients from its copy of a mirrored queue (`mirrors.detached`). What
they publish meanwhile is in the spool, and they are to get that, too, behind all that the copy has. A spool *lends* its
messages to the detached queue, its *reader*, in pieces (`SpooledBatch`); consumers, prefetch, basic.get and requeues
are the reader's business, and the spool hears what became of each message:

    spool ──lends, in order──▶ reader ──▶ clients ──ack──▶ settled in the spool's log, never sent on
      ▲                          │
      └──all that is left, when the other node is back; then it is sent on──

**Sure** is a message that was never sent to the queue: it is nowhere but here. It is delivered like any first delivery,
not marked; and an acknowledgement settles it in the spool. It has its number in vain then, which a queue does not mind:
a producer may leave numbers out (see `broker.queue.dedup`).

**In doubt** is what was under way when the link was lost, or was here before a start. The master may have it, and may
deliver it. So it comes marked as redelivered, and an acknowledgement alone does not end it: the spool keeps it, with a
durable note that it is *acknowledged*, and sends it on as such. A master that lacks it takes its number and nothing
else; one that has it passes the number over, and has marked the message when it lost this node. What the copy has, too,
by the numbers in its marks, is delivered from there, and not lent.

**Rejected** messages are dead-lettered by the master, like those of a copy: they stay in the spool, with a note. If the
queue has no dead-letter exchange, and the message is sure, it is settled at once.

**Expired** ones are not lent. What becomes of them is decided when they are sent on.

**When the other node is back** nothing is lent any more. What clients have in hand is waited for, some seconds
(`PATIENCE_TICKS`), before anything is sent on: most of it is acknowledged by then. The rest is sent on in its order,
marked as redelivered, as is all up to the highest number that a client has seen; what their clients say of it later has
no effect.

**Failures.** A message leaves the spool's log by the block that has its acknowledgement. If the process dies before,
the message is there at the next start, and in doubt like all others, so that it comes again, marked. A consumer that
dies gives its messages back to the reader, or to the spool. The notes are entries of the spool's durable state; if they
have no room there, the message is sent on as if nothing had been said of it, marked.

**Bounds.** What is lent is in memory, and bounded (`LENT_BYTES_MAX`): beyond that clients have to acknowledge first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from leveret.base.range_set import RangeSet
from leveret.broker.delivery.batch import Batch, Gap, Span
from leveret.broker.queue.durable_state import forget_ranges, note_range, restore_ranges
from leveret.storage.format.queue_block import ACKNOWLEDGED, EXPIRES, PERSISTENT, REDELIVERED, REJECTED

if TYPE_CHECKING:
    from leveret.broker.remote.store_and_forward import Spool

# Added to the number that a message has in the spool: to its reader, all of them come after those of the copy.
SPOOLED: Final = 1 << 61
# No message in a spool's log is marked as redelivered, so the bit for that has another meaning there: the message was
# published as transient, and is to be transient in its queue.
TRANSIENT: Final = REDELIVERED
LENT_BYTES_MAX: Final = 16 << 20
PIECE_MESSAGES: Final = 4_096
PIECE_BYTES: Final = 256 << 10
PATIENCE_TICKS: Final = 5  # Seconds.
# Keys, with the number of the first message of a range, of what clients have said of messages that are still here.
NOTES: Final = {ACKNOWLEDGED: b"acked:", REJECTED: b"rejected:"}


def published_kind(kind: int) -> int:
    """Returns the kind that a message of a spool was published with."""
    return kind & EXPIRES if kind & TRANSIENT else kind & (EXPIRES | PERSISTENT)


class SpoolReader(Protocol):
    """A queue that delivers what a spool lends."""

    def taken_of(self, producer: bytes) -> int:
        """Returns up to which number the copy has the messages of a producer."""

    def take_spooled(self, batch: SpooledBatch) -> None: ...

    def on_lent(self) -> None:
        """All is lent that can be lent now."""


class SpooledBatch(Batch):
    """Messages of a spool that are lent to a reader, all of them sure or all in doubt."""

    __slots__ = ("at", "delivery", "in_doubt", "lent_bytes", "rest", "source")

    source: Batch
    at: int  # Index of the first in `source`.
    delivery: SpoolDelivery
    in_doubt: bool
    lent_bytes: int
    rest: RangeSet  # Numbers, in the spool, of those that are still lent.

    @classmethod
    def lent(cls, delivery: SpoolDelivery, span: Span, in_doubt: bool) -> SpooledBatch:
        batch = cls.loaded(span.batch.cut(span.lo, span.hi))
        batch._lend(delivery, span, in_doubt)
        return batch

    def _lend(self, delivery: SpoolDelivery, span: Span, in_doubt: bool) -> None:
        self.delivery, self.source, self.at, self.in_doubt = delivery, span.batch, span.lo, in_doubt
        self.rest, self.lent_bytes = RangeSet([(span.first, span.last)]), self.size
        self.first = SPOOLED + span.first
        self.mark_unlogged()  # Its reader cannot read it back.
        self.kinds, self.redelivered = bytearray(map(published_kind, self.kinds)), False
        if in_doubt:
            self.mark_redelivered(0, self.left)

    def take(self, lo: int, hi: int) -> list[Span]:
        """Take messages out of those that are lent. Returns them as the spool has them."""
        base = self.first - SPOOLED
        found = list(self.rest.ranges(base + lo, base + hi - 1))
        self.rest.remove(base + lo, base + hi - 1)
        return [Span(self.source, self.at + low - base, self.at + high + 1 - base) for low, high in found]


class SpoolDelivery:
    """The messages of one spool that are delivered to clients of this node."""

    __slots__ = ("aside", "lent", "lent_bytes", "lent_count", "notes", "patience", "settled_count", "shown", "spool")

    def __init__(self, spool: Spool) -> None:
        self.spool = spool
        self.lent: dict[int, SpooledBatch] = {}  # By the number of the first.
        self.lent_bytes = 0
        self.lent_count = 0  # Messages that are lent, and those that are aside.
        self.aside = RangeSet()  # What is not delivered here, or was settled and is to be sent on with its note.
        self.settled_count = 0
        self.shown = 0  # The highest number that a client has seen.
        self.patience = 0  # For so many seconds nothing is sent on, because clients have messages in hand.
        self.notes = {kind: RangeSet() for kind in NOTES}

    @property
    def reader(self) -> SpoolReader | None:
        return self.spool.spools.readers.get(self.spool.target)

    @property
    def may_send(self) -> bool:
        """Returns whether messages can be sent on: nobody delivers them here."""
        return not self.patience and self.reader is None

    def restore(self) -> None:
        """After a start: what the log says of messages that are there."""
        for kind, prefix in NOTES.items():
            self.notes[kind] = restore_ranges(self.spool.durable_state, prefix)

    def forget(self) -> None:
        """The spool is empty."""
        for kind, prefix in NOTES.items():
            if self.notes[kind]:
                forget_ranges(self.spool.durable_state, prefix)
                self.notes[kind].clear()

    # -- Lending -------------------------------------------------------------------------------------------------

    @property
    def is_lending(self) -> bool:
        """Returns whether there is more that the reader will get without doing anything."""
        return bool(self.spool.ready) and (self.lent_bytes < LENT_BYTES_MAX or not self.lent)

    def lend(self, reader: SpoolReader) -> None:
        """Lend as much as possible."""
        spool = self.spool
        self.patience = 0
        while self.is_lending:
            head = spool.ready[0]
            if isinstance(head, Gap):
                spool.want(head)
                break
            if not head.batch.logged:
                break
            count, is_for_reader = self._first_alike(head, reader)
            span = Span(head.batch, head.lo, head.lo + count)
            spool.take_out(head, count)
            self.lent_count += count
            if is_for_reader:
                self._lend(span, reader)
            else:
                self._put_aside(span)
        reader.on_lent()

    def _lend(self, span: Span, reader: SpoolReader) -> None:
        batch = SpooledBatch.lent(self, span, self.spool.is_in_doubt(span.first))
        self.lent[span.first] = batch
        self.lent_bytes += batch.lent_bytes
        reader.take_spooled(batch)

    def _first_alike(self, head: Span, reader: SpoolReader) -> tuple[int, bool]:
        """Returns how many at the front have the same fate, and whether it is to be lent."""
        spool, first = self.spool, head.first
        overdue = spool.overdue(head)
        if overdue:
            return overdue, False
        noted, end = self.note_at(first, min(head.last, first + PIECE_MESSAGES - 1))
        producer, number, end = spool.numbers_of(first, end)
        in_copy = reader.taken_of(producer) - number + 1 if spool.is_in_doubt(first) and not noted else 0
        if in_copy > 0:
            end = min(end, first + in_copy - 1)
        size, at = 0, head.lo
        while at <= head.lo + end - first and size < PIECE_BYTES:
            size += len(head.batch.contents[at])
            at += 1
        return at - head.lo, not noted and in_copy <= 0

    # -- What clients do -----------------------------------------------------------------------------------------

    def on_shown(self, batch: SpooledBatch, hi: int) -> None:
        self.shown = max(self.shown, batch.first - SPOOLED + hi - 1)

    def settle(self, batch: SpooledBatch, lo: int, hi: int, kind: int) -> None:
        """Clients have acknowledged or rejected messages."""
        spool = self.spool
        is_final = not batch.in_doubt and (kind == ACKNOWLEDGED or not spool.has_dead_letters())
        for span in self._take(batch, lo, hi):
            self.settled_count += span.count
            if is_final:
                self.lent_count -= span.count
                spool.settle_lent(span)
                continue
            note_range(spool.durable_state, NOTES[kind], self.notes[kind], span.first, span.last)
            self._put_aside(span)
        spool.host.dirty[spool] = None

    def give_back(self, batch: SpooledBatch, lo: int, hi: int) -> None:
        """The reader does not deliver these: they have expired, or the other node is back."""
        for span in self._take(batch, lo, hi):
            self._put_aside(span)

    def _take(self, batch: SpooledBatch, lo: int, hi: int) -> list[Span]:
        spans = batch.take(lo, hi)
        if spans and not batch.rest and self.lent.pop(batch.first - SPOOLED, None) is not None:
            self.lent_bytes -= batch.lent_bytes
            self.spool.host.dirty[self.spool] = None  # There is room for others.
            if not self.lent:
                self.patience = 0
        return spans

    def _put_aside(self, span: Span) -> None:
        """Have the spool send these on, as soon as nothing is lent any more. Until then memory does without them."""
        if self.reader is None or not self.spool.forget_dead(span):
            self.lent_count -= span.count
            self.spool.take_back(span)
        else:
            self.aside.add(span.first, span.last)

    # -- The end -------------------------------------------------------------------------------------------------

    def end(self, unseen: list[tuple[SpooledBatch, int, int]]) -> None:
        """Lend nothing more. What was not delivered waits again; what clients have in hand is waited for."""
        self.spool.raise_doubt(self.shown)
        for piece in unseen:
            self.give_back(*piece)
        aside, self.aside = self.aside, RangeSet()
        for first, last in aside:
            self.lent_count -= last - first + 1
            self.spool.put_back_gap(Gap(first, last, last - first + 1))
        self.patience = PATIENCE_TICKS if self.lent else 0
        self.spool.host.dirty[self.spool] = None

    def tick(self) -> None:
        """Once a second."""
        if self.patience:
            self.patience = self.patience - 1 if self.lent else 0
            if not self.patience:
                self.recall()

    def recall(self) -> None:
        """Send on what clients still have in hand, whatever they say of it later."""
        for batch in list(self.lent.values()):
            self.give_back(batch, 0, len(batch.contents))
        self.patience = 0

    # -- Sending on ----------------------------------------------------------------------------------------------

    def note_at(self, first: int, last: int) -> tuple[int, int]:
        """Returns what was noted of a message, and up to which number that is so; 0: nothing."""
        for kind, ranges in self.notes.items():
            if first in ranges:
                return kind, min(last, ranges.around(first)[1])
            following = ranges.next(first)
            if following is not None:
                last = min(last, following - 1)
        return 0, last
