"""A queue served by one node of two that has lost the other, where the operator has chosen to go on (`ignore`).

Of two nodes that lose each other without proof that one is dead, at most one goes on by itself: the cluster's leader.
The other one waits. It can neither lead a mirrored queue nor change its log. But it has a copy, and with
`cluster_partition_handling = ignore` its clients are to get the messages that are there, as RabbitMQ's would. So it
delivers, from its copy, what the ring has confirmed, and *nothing of the queue's own state is changed by that*:

    cut      copy ──marked as redelivered──▶ clients here ──ack──▶ a record in this node's log
    healed   record ──▶ master: settles these numbers, marks what may have been shown ──durable there──▶ forgotten here

**Which messages.** Those of applied blocks: the next master of the queue has them under the same numbers, because every
member in sync had them on its disk. And those of blocks that a mirror has from the master and that are not applied,
because it learns only with the next block that they are confirmed. The master has these, unless it died before its own
disk had them; then their numbers go to other messages. So the record names two blocks by epoch and number, the last
applied one and the last of all (`Anchor`), and a master applies it up to the one that its own log has. If it has
neither, after a promotion by force, numbers mean other messages, and the record is void. A node that led the queue
itself delivers what is applied: publishers of the rest get their confirms from the spool, which has it too (see
`broker.remote.outbox`).

**Redelivered.** The other node may deliver the same messages at the same time, so a client may see one twice. Each
delivery from a copy is marked as redelivered. And so is each at the other node: a master that loses a member of its
ring, and a new master whose ring is not whole, marks all messages that it has (`mark_shown`). To notice the loss takes
that node a moment, so a copy is not served for the first `DUE_TICKS` seconds. The record says, on disk before the first
delivery, up to which number messages may have been delivered; so the next master marks them even if the other node
never noticed anything, because it was dead. A proof that the other node is dead does not spare the marks: that node may
have served its copy before it died, while this one was frozen and had noticed nothing. Its record would tell, but only
its own log has that.

**Failures.**
- This node dies before an acknowledgement is synced: the master has the message, marked, and delivers it again. After
  that: the record is read at the next start, and sent to the master.
- The master dies before the record arrives: it is kept here, and the next master gets it.
- The master dies after it has applied the record: it says so only when its block is safe. Until then the record is sent
  again; to settle what is settled changes nothing.
- A client dies: its unacknowledged messages are delivered to others here, or after the partition by the master.

**Unacknowledged when the link is back.** The master is told what is unacknowledged here, and reserves it as long as the
session lasts. Later acknowledgements and rejections go the same way as the record. What a client of the master has by
then stays with that client, whatever the record says: it is settled, or comes back, as that client decides.

**Publishes** go to the spool, which lends them to this queue. They are delivered behind all that the copy has, under
numbers that no message of the copy has; what is said of them is told to the spool (see `remote.spool_delivery`).

**What it does not do.** It drops what has expired from its own list and leaves the rest to the master: dead-lettering,
length limits, delivery counts. What a client rejects is rejected by the master. Priorities are ignored. Purging is
refused, for only the master may drop messages.

The record is a table of ranges (see `queue.durable_state`), with the limit of such tables. When it is full, nothing is
delivered until some of the ranges have grown together.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from leveret.base.range_set import RangeSet
from leveret.broker.delivery.answers import Status, unreachable
from leveret.broker.delivery.batch import Gap, GapRead, Span
from leveret.broker.mirrors.copy_store import add_batch
from leveret.broker.queue.dedup import taken_of
from leveret.broker.queue.durable_state import note_range, restore_ranges
from leveret.broker.queue.ordered_queue import OrderedQueue, waiting_again
from leveret.broker.remote import peer_frames as w
from leveret.broker.remote.spool_delivery import SpooledBatch
from leveret.metadata.model.records import QueueSpec
from leveret.metadata.model.refusals import Refusal
from leveret.metadata.rules.queue_rules import QueueRules
from leveret.storage.format import queue_block

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from leveret.broker.broker import AnyQueue
    from leveret.broker.delivery.batch import Batch
    from leveret.broker.delivery.confirms import Pending
    from leveret.broker.delivery.consumer import Consumer
    from leveret.broker.mirrors.detachment import Detachment
    from leveret.broker.remote.remote_queue import RemoteQueue
    from leveret.broker.remote.store_and_forward import Spool
    from leveret.storage.format.queue_block import Run

DETACHED: Final = 1 << 61  # Set in the number under which the log has the record about a queue.
LOAD_BYTES: Final = 1 << 20
ANCHOR: Final = b"anchor"  # Key of the record's `Anchors`.
ACKED: Final = b"a"  # Key, with the number of the first message, of a range of acknowledged messages.
REJECTED: Final = b"r"  # Likewise of rejected messages.


class Stage(Enum):
    """The stages of a detached queue."""

    OPENING = "opening"  # Waits until the record that it may hand out messages is on disk.
    SERVING = "serving"
    PASSING = "passing"  # The other node is back: sends it all settlements, also later ones.


NEXT: Final = {
    Stage.OPENING: (Stage.SERVING, Stage.PASSING),
    Stage.SERVING: (Stage.PASSING,),
    Stage.PASSING: (Stage.OPENING,),
}


class Anchor(NamedTuple):
    """A block of a copy, by epoch and number, and the last message up to there."""

    epoch: int
    block: int
    bound: int


class Anchors(NamedTuple):
    """The ends of a copy."""

    sure: Anchor  # The end of the blocks that are applied.
    end: Anchor  # The end of all blocks.

    def pack(self) -> bytes:
        return w.DETACHED_HEAD.pack(*self.sure, *self.end)

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """Raises `BadFrame`."""
        numbers = w.unpack_one(w.DETACHED_HEAD, data)
        return cls(Anchor(*numbers[:3]), Anchor(*numbers[3:]))


NOWHERE: Final = Anchors(Anchor(0, 0, 0), Anchor(0, 0, 0))


class DetachedQueue(OrderedQueue):
    """A queue that this node serves from its copy while it cannot reach the other node of two."""

    __slots__ = (
        "acked", "anchors", "detachment", "front", "is_asking", "is_full", "known", "marks", "out", "rejected",
        "returned", "stage", "target", "version",
    )  # fmt: skip

    def __init__(self, detachment: Detachment, target: QueueSpec) -> None:
        node = detachment.broker.node_name
        spec = QueueSpec(DETACHED | target.id, target.vhost, target.name, arguments=target.arguments, node=node)
        # Only the master applies the other rules.
        rules = detachment.broker.rules_of(spec)
        super().__init__(spec, detachment.broker)
        self.set_rules(QueueRules(ttl_ms=rules.ttl_ms, single_active=rules.single_active))
        self.detachment = detachment
        self.target = target.id
        self.front: RemoteQueue | None = None  # The object that stands for the queue in its vhost here.
        self.stage = Stage.PASSING
        self.anchors = NOWHERE
        self.known = RangeSet()  # All messages that it has, or had, since it last began to serve.
        self.marks: Mapping[bytes, bytes] = {}  # The durable state of the copy.
        self.out = RangeSet()
        self.acked = RangeSet()
        self.rejected = RangeSet()
        self.returned: list[tuple[int, int]] = []  # Requeued since the other node is back.
        self.version = 0  # Rises with everything that clients settle or requeue.
        self.is_asking = False  # The record was sent to the master, which has not answered.
        self.is_full = False

    @property
    def is_serving(self) -> bool:
        return self.stage is not Stage.PASSING

    def set_asking(self, is_asking: bool) -> None:
        self.is_asking = is_asking

    def change(self, stage: Stage) -> None:
        assert stage in NEXT[self.stage], f"{self.stage} to {stage}"
        self.stage = stage
        self.host.dirty[self] = None

    # -- Opening and ending --------------------------------------------------------------------------------------

    def restore(self, number: int, epoch: int, next_seq: int, first: int, last: int, count: int, through: int) -> None:
        """Restore the record after a start. It contains no messages."""
        self.number, self.epoch = number, epoch

    def restore_state(self, table: dict[bytes, bytes]) -> None:
        super().restore_state(table)
        if ANCHOR in table:
            self.anchors = Anchors.unpack(table[ANCHOR])
        self.acked = restore_ranges(self.durable_state, ACKED)
        self.rejected = restore_ranges(self.durable_state, REJECTED)

    def begin(self, front: RemoteQueue, anchors: Anchors, marks: Mapping[bytes, bytes]) -> None:
        """Begin to serve. Nothing is delivered before the log has the anchors. `front`: the object that stands for the
        queue in its vhost. `marks`: the copy's durable state."""
        self.front = front
        self.anchors, self.marks = anchors, marks
        self.returned.clear()
        self.known = RangeSet()
        self.change(Stage.OPENING)
        self.durable_state.set(ANCHOR, anchors.pack())
        self.durable_state.when_safe(self._on_recorded)

    def _on_recorded(self, safe: bool) -> None:
        if safe and self.stage is Stage.OPENING:
            self.change(Stage.SERVING)
            self.detachment.broker.spools.begin_delivery(self.target, self)
            self.detachment.broker.on_loaded(self)

    def take_in(self, gaps: list[Gap], runs: list[Run], others: RangeSet) -> None:
        """Add messages of the copy that can be delivered: `gaps` of the log, and `runs` of blocks that are not applied,
        without the numbers in `others`."""
        for gap in gaps:
            gap.redelivered = True
            self.known.add(gap.first, gap.last)
            self.ready_count += gap.count
            self.put_back(gap)
        for run in runs:
            if run.contents:
                self.known.add(run.first, run.last)
                add_batch(self, run, others, RangeSet([(run.first, run.last)]))
        if gaps or runs:
            self.host.dirty[self] = None

    def finish(self) -> list[Consumer]:
        """Stop serving: the other node is back. Returns the consumers, which subscribe elsewhere."""
        self.change(Stage.PASSING)
        consumers = self.take_consumers()
        unseen = []
        for entry in self.ready:
            if isinstance(entry, Span):
                self._let_go(entry.batch, entry.count)
                if isinstance(entry.batch, SpooledBatch):
                    unseen.append((entry.batch, entry.lo, entry.hi))
        self.detachment.broker.spools.end_delivery(self.target, unseen)
        if self.ready:
            self.ready.clear()
        self.ready_count, self.loading, self.front = 0, None, None
        return consumers

    # -- The spool -----------------------------------------------------------------------------------------------
    # See `remote.spool_delivery`.

    @property
    def spool(self) -> Spool | None:
        return self.detachment.broker.spools.by_target.get(self.target)

    def taken_of(self, producer: bytes) -> int:
        return taken_of(self.marks, producer)

    def take_spooled(self, batch: SpooledBatch) -> None:
        """Deliver these, too, behind all that the copy has."""
        if batch.expires:
            self.watch_ages()
        self.count_in(batch)
        self.ready_count += batch.left
        self.put_back(Span(batch, 0, batch.left))
        self.host.dirty[self] = None

    def on_lent(self) -> None:
        self.detachment.broker.on_loaded(self)

    def enqueue(self, contents: list[bytes], keys: list[bytes], kind: int, size: int, pending: Pending | None) -> bool:
        raise AssertionError("publishes go to the spool")

    def on_logged(self, batch: Batch) -> None:
        """Do nothing: its blocks have no messages, only the record."""

    def close_batch(self) -> None:
        self.active_ms = self.host.now_ms

    # -- Questions -----------------------------------------------------------------------------------------------

    def later(self, call: Callable[[AnyQueue], None]) -> bool:
        """True: the master serves the queue again, and the question goes to it."""
        standing = None if self.is_serving else self.detachment.standing(self)
        if standing is not None:
            call(standing)
        return standing is not None

    @property
    def ready_total(self) -> int:
        """Returns how many messages are ready here, with those that the spool has still to lend."""
        spool = self.spool
        return self.ready_count + (spool.ready_count if spool is not None and self.is_serving else 0)

    def status(self, then: Callable[[Status | Refusal], None]) -> None:
        def on_status(status: Status | Refusal) -> None:
            then(status if isinstance(status, Refusal) else Status(self.ready_total, status.consumers))

        super().status(on_status)

    def purge_all(self, then: Callable[[int | Refusal], None]) -> None:
        if not self.later(lambda queue: queue.purge_all(then)):
            front = self.front
            then(self._gone() if front is None else unreachable(front.spec))

    # -- Delivering ----------------------------------------------------------------------------------------------

    def pump(self) -> None:
        if self.stage is Stage.PASSING:
            self.detachment.pass_on(self)
        elif self.stage is Stage.SERVING and not self.is_full:
            super().pump()
            self.noted_through = self.delivered_through  # The record says that all may have been delivered.

    def get(self) -> tuple[Batch, int] | Gap | None:
        if self.stage is Stage.OPENING:
            return Gap(0, 0, 1)  # The client waits as for a message that is being read.
        if self.is_full:
            return None
        got = super().get()
        if isinstance(got, tuple):
            self._hand(*got, got[1] + 1)
        elif got is None and self.spool is not None and self.spool.delivery.is_lending:
            return Gap(0, 0, 1)  # Likewise: it is being written, or read.
        return got

    def hand_over(self, consumer: Consumer, head: Span, count: int) -> None:
        batch, lo = head.batch, head.lo
        super().hand_over(consumer, head, count)
        if not consumer.no_ack:
            self._hand(batch, lo, head.lo)

    def _hand(self, batch: Batch, lo: int, hi: int) -> None:
        if isinstance(batch, SpooledBatch):
            batch.delivery.on_shown(batch, hi)
        else:
            self.out.add(batch.first + lo, batch.first + hi - 1)

    def _load(self, read: GapRead) -> None:
        """Have the beginning of a gap read from the copy."""

        def then(runs: list[Run] | None, following: int) -> None:
            if runs is None:  # As any queue, it delivers nothing beyond what cannot be read.
                text = "its messages cannot be read from this node's copy"
                self.detachment.note("error", f"{self} delivers nothing more: {text}")
                return
            self.on_loaded(read, runs, following)
            self.detachment.broker.on_loaded(self)

        self.host.read_range(self.target, read.first, read.last, LOAD_BYTES, then)

    # -- Settling ------------------------------------------------------------------------------------------------

    def settle(self, batch: Batch, lo: int, hi: int) -> None:
        if not self.deleted:
            self._settle(batch, lo, hi, ACKED, queue_block.ACKNOWLEDGED)

    def discard(self, batch: Batch, lo: int, hi: int) -> None:
        self.unacked_count -= hi - lo
        if not self.deleted:
            self._settle(batch, lo, hi, REJECTED, queue_block.REJECTED)

    def _settle(self, batch: Batch, lo: int, hi: int, kind: bytes, spooled_kind: int) -> None:
        self._let_go(batch, hi - lo)
        if isinstance(batch, SpooledBatch):
            batch.delivery.settle(batch, lo, hi, spooled_kind)
            self.host.dirty[self] = None
        else:
            self.record(kind, batch.first + lo, batch.first + hi - 1)

    def dead_letter_or_drop(self, batch: Batch, lo: int, hi: int, reason: str) -> None:
        """Drop expired messages from this node's list. The master dead-letters them."""
        self._let_go(batch, hi - lo)
        if isinstance(batch, SpooledBatch):
            batch.delivery.give_back(batch, lo, hi)

    def _give_back(self, batch: Batch, lo: int, hi: int, shown: bool, counted: bool) -> list[Span | Gap]:
        if self.deleted:
            return []
        first, last = batch.first + lo, batch.first + hi - 1
        self.unacked_count -= hi - lo
        if not isinstance(batch, SpooledBatch):
            self.out.remove(first, last)
            self.version += 1
        waiting: list[Span | Gap] = []
        if self.is_serving:
            self.ready_count += hi - lo
            batch.mark_redelivered(lo, hi)
            waiting = waiting_again(Span(batch, lo, hi))
        elif isinstance(batch, SpooledBatch):
            batch.delivery.give_back(batch, lo, hi)
            self._let_go(batch, hi - lo)
        else:
            self.returned.append((first, last))
            self._let_go(batch, hi - lo)
        self.host.dirty[self] = None
        return waiting

    def record(self, kind: bytes, first: int, last: int) -> None:
        """Record messages as settled. The log gets each range of neighbours under the number of its first."""
        ranges, state = self.acked if kind == ACKED else self.rejected, self.durable_state
        self.out.remove(first, last)
        self.version += 1
        was_full = self.is_full
        self.is_full = not note_range(state, kind, ranges, first, last)
        if self.is_full and not was_full:
            self.detachment.note("warning", f"{self} delivers nothing more: its record of settled messages is full")
        self.host.dirty[self] = None

    def verdicts(self) -> list[tuple[int, int, int]]:
        """Returns all verdicts for the master, by numbers of messages."""
        returned, self.returned = self.returned, []
        return [
            *[(w.OUT, *pair) for pair in self.out],
            *[(w.ACKED, *pair) for pair in self.acked],
            *[(w.DISCARDED, *pair) for pair in self.rejected],
            *[(w.REQUEUED, *pair) for pair in returned],
        ]
