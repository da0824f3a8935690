"""All queues that this node serves by itself because it has lost the other node of two; and what a master does then.

`detached` describes what is done and why that is safe. This module decides when: a node is *detached* while it has no
majority, no link, is one of two, and its partition handling says that it serves on. After `DUE_TICKS` seconds of that,
a queue is served from its copy as soon as a client wants something from it. A link, or a majority, ends it at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from leveret.base.range_set import RangeSet, merged
from leveret.base.visible_text import visible
from leveret.broker.delivery.batch import Gap
from leveret.broker.delivery.priority_ready import rows_of
from leveret.broker.delivery.reserve import reserve
from leveret.broker.delivery.unacked import Unacked
from leveret.broker.mirrors.copy_store import gaps_of, stored_marks
from leveret.broker.mirrors.detached import ACKED, DETACHED, Anchor, Anchors, DetachedQueue
from leveret.broker.queue.queue import Queue
from leveret.broker.remote import peer_frames as w
from leveret.broker.remote.remote_queue import resubscribe
from leveret.links.proposals import BadFrame
from leveret.metadata.model.hidden_queues import is_hidden_queue
from leveret.metadata.model.refusals import Refusal, resource
from leveret.metadata.rules.ha_policy import is_quorum, is_stream
from leveret.replication.packed_block import last_message

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leveret.broker.broker import AnyQueue, Broker
    from leveret.broker.delivery.consumer import Subscriber
    from leveret.broker.mirrors.manager import Mirror
    from leveret.broker.queue.local_queue import LocalQueue
    from leveret.broker.remote.remote_queue import RemoteQueue
    from leveret.broker.remote.spool_registry import Stored
    from leveret.metadata.model.records import QueueSpec
    from leveret.storage.format.queue_block import Block

# Seconds. A node that is cut off notices silence after `net_ticktime`, and so does the other one, not much later.
DUE_TICKS: Final = 10
SHOWN_MAX: Final = 100  # Queues that are named in one answer.
RESERVED: Final = (w.OUT, w.ACKED, w.DISCARDED)


class DetachedRecord(NamedTuple):
    """The record that a node sends to the master of a queue which it has served while detached."""

    anchors: Anchors
    verdicts: list[tuple[int, int, int]]

    def pack(self) -> bytes:
        return self.anchors.pack() + b"".join(w.VERDICT.pack(*one) for one in self.verdicts)

    def upto(self, bound: int) -> list[tuple[int, int, int]]:
        """Returns the verdicts on messages up to this one."""
        return [(verdict, first, min(last, bound)) for verdict, first, last in self.verdicts if first <= bound]


class Detachment:
    """The queues that one node serves, or has served, from its copies while detached."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.is_pair: Callable[[], bool] = lambda: False  # Whether the cluster has two nodes, and no witness.
        self.ticks = 0  # How many seconds this node has been cut off.
        self.queues: dict[int, DetachedQueue] = {}  # By the number of the queue itself.
        self.reserved: dict[int, Unacked] = {}  # Likewise, of queues this node leads now: still unacknowledged.

    @property
    def is_due(self) -> bool:
        """Returns whether queues are served from their copies."""
        return self.ticks > DUE_TICKS

    @property
    def serving(self) -> list[DetachedQueue]:
        return [one for one in self.queues.values() if one.is_serving]

    def open(self, numbers: Mapping[int, Stored]) -> set[int]:
        """At the start: restore the records in the log. Returns which of their numbers are still needed."""
        kept: set[int] = set()
        for number in numbers:
            queue = self.broker.queues_by_id.get(number & ~DETACHED) if number & DETACHED else None
            if queue is not None:
                kept.add(number)
                self.broker.dirty[self._make(queue)] = None
        return kept

    def _make(self, queue: AnyQueue) -> DetachedQueue:
        detached = self.queues[queue.spec.id] = DetachedQueue(self, queue.spec)
        self.broker.node.adopt(detached)
        return detached

    # -- Serving -------------------------------------------------------------------------------------------------

    @staticmethod
    def settle_record(queue: Queue, unacked: Unacked, record: DetachedRecord, then: Callable[[bool], None]) -> None:
        """Settle, at the master of a queue, what clients of another node have settled there.

        `unacked`: messages reserved here for clients of that node. `then` is called when all that is safe; False: this
        node does not lead the queue any more.
        """
        bound = _bound(queue, record.anchors)
        if not bound:
            then(True)  # The numbers mean other messages here.
            return
        mark_shown(queue, bound)
        verdicts = record.upto(bound)
        named = merged([(first, last) for verdict, first, last in verdicts if verdict in RESERVED])
        pieces = [(one.batch, one.lo, one.hi) for one in unacked.take_all() if one.queue is queue]
        pieces += reserve(queue, named)
        for batch, lo, hi in sorted(pieces, key=lambda piece: piece[0].first + piece[1]):
            unacked.add(batch.first + lo, hi - lo, queue, None, batch, lo, queue.host.now_ms)
        for verdict, first, last in verdicts:
            for one in unacked.take_range(first, last) if verdict != w.OUT else ():
                if verdict == w.ACKED:
                    queue.settle_delivered(one.batch, one.lo, one.hi)
                elif verdict == w.DISCARDED:
                    queue.discard(one.batch, one.lo, one.hi)
                else:
                    queue.requeue(one.batch, one.lo, one.hi)
        queue.durable_state.when_block_safe(then)

    @staticmethod
    def read(payload: bytes) -> DetachedRecord:
        """Raises `BadFrame`."""
        anchors = Anchors.unpack(payload)
        verdicts = w.unpack_verdicts(payload[w.DETACHED_HEAD.size :])
        if any(verdict not in (*RESERVED, w.REQUEUED) for verdict, _, _ in verdicts):
            raise BadFrame("an unknown verdict on messages")
        return DetachedRecord(anchors, verdicts)

    def tick(self) -> None:
        """Once a second."""
        broker = self.broker
        is_cut = not broker.mirrors.majority and not broker.client_ends and broker.partition_handling.spools
        self.ticks = self.ticks + 1 if is_cut and self.is_pair() else 0
        if not self.ticks:
            self.end()
        if self.is_due:
            for front in list(broker.spools.fronts):
                queue = front.successor
                if queue is not None and queue.is_local and queue.consumers and front.detached() is not None:
                    self._take_consumers(queue)
        for detached in list(self.queues.values()):
            if detached.is_serving:
                self._refill(detached)
            else:
                self.pass_on(detached)

    def begin(self, front: RemoteQueue) -> DetachedQueue | None:
        """Serve a queue from this node's copy; None: it has no copy, or none that may be served."""
        spec, mirrors = front.spec, self.broker.mirrors
        mirror = mirrors.mirrors.get(spec.id)
        if mirror is None or not _may_be_detached(spec):
            return None
        mirrors.catch_up(mirror)
        anchors = self._anchors(mirror)
        if anchors is None:
            return None
        detached = self.queues.get(spec.id)
        if detached is not None and not _knows(mirror, detached.anchors.end):
            self._drop(detached)
            detached = None
        if detached is None:
            detached = self._make(front)
        detached.begin(front, anchors, self._marks(mirror))
        if isinstance(mirror.queue, Queue):  # What it could not confirm is in the spool, too, and delivered from there.
            mark_shown(mirror.queue, mirror.queue.next_seq - 1)
        self._refill(detached)
        name = resource("queue", spec.name, spec.vhost)
        self.note("warning", f"the master of {name} cannot be reached: this node hands out the "
                  f"{detached.ready_count} messages that it has, marked as redelivered, and what is published here")
        return detached

    def _anchors(self, mirror: Mirror) -> Anchors | None:
        """Returns where this node's copy ends; None: it is not in sync and complete, so that it may not be served."""
        member, store = mirror.member, self.broker.mirrors.store
        if store is None or not member.in_sync or not member.complete or member.failed:
            return None
        if mirror in self.broker.mirrors.storing_spilled:
            return None
        tail, applied = member.tail, store.stored(mirror.spec.id).next_seq - 1
        sure = end = Anchor(tail.epoch_at(member.confirmed), member.confirmed, applied)
        if mirror.queue is None and tail.end > member.confirmed:
            last = max(map(last_message, tail.upto(member.confirmed + 1, tail.end)))
            end = Anchor(tail.last_epoch, tail.end, max(applied, last))
        return Anchors(sure, end) if end.epoch > 0 or not end.bound else None

    def _marks(self, mirror: Mirror) -> dict[bytes, bytes]:
        """Returns the durable state of this node's copy, as far as its messages are delivered from here."""
        assert self.broker.mirrors.store is not None
        member = mirror.member
        tail = () if mirror.queue is not None else member.tail.upto(member.confirmed + 1, member.tail.end)
        return stored_marks(self.broker.mirrors.store.stored(mirror.spec.id), tail)

    def _refill(self, detached: DetachedQueue) -> None:
        """Add messages of the copy that the detached queue does not have: all of them at first; later, those that
        clients have requeued at this node as the queue's master, which delivers nothing."""
        mirrors = self.broker.mirrors
        mirror = mirrors.mirrors.get(detached.target)
        if mirror is None or mirrors.store is None:
            return
        live = mirrors.store.stored(detached.target).live
        tail: tuple[Block, ...] = ()
        if isinstance(mirror.queue, Queue):
            others = _not_waiting(mirror.queue, live)
        elif detached.known:
            return
        else:
            member = mirror.member
            tail = member.tail.upto(member.confirmed + 1, member.tail.end)
            others = RangeSet(pair for block in tail for pair in block.settled)
        for ranges in (detached.known, detached.acked, detached.rejected, detached.out):
            for pair in ranges:
                others.add(*pair)
        gaps = list(gaps_of(live, others))
        detached.take_in(gaps, [block.enqueued for block in tail if block.enqueued is not None], others)

    def _take_consumers(self, queue: LocalQueue) -> None:
        """Take over the consumers of a queue that this node led, and that delivers nothing now."""
        detached = self.queues[queue.spec.id]
        for consumer in queue.take_consumers():
            consumer.queue = detached  # type: ignore[attr-defined]  # Consumers of other nodes went with the link.
            detached.add_consumer(consumer)

    def end(self) -> None:
        """The other node is back, or this one goes on without it, or is not to serve."""
        self.ticks = 0
        for detached in self.serving:
            self._end(detached)

    def on_peer_up(self) -> None:
        self.end()
        for detached in list(self.queues.values()):
            self.pass_on(detached)

    def _end(self, detached: DetachedQueue) -> None:
        self._hear(detached)
        consumers = detached.finish()
        self.pass_on(detached)  # Before the master delivers anything.
        self.broker.on_loaded(detached)  # basic.get that waits here goes to the master.
        standing = self.standing(detached)
        for consumer in consumers:
            subscriber: Subscriber = consumer  # type: ignore[assignment]  # None of them is of another node.
            if standing is None or subscriber.cancels_on_failover:
                subscriber.on_queue_deleted()
            else:
                resubscribe(subscriber, standing)

    def _hear(self, detached: DetachedQueue) -> None:
        """Record what clients acknowledged to this node as the queue's master and the ring has not confirmed."""
        mirror = self.broker.mirrors.mirrors.get(detached.target)
        if mirror is None or mirror.queue is None:
            return
        member, bound = mirror.member, detached.anchors.sure.bound
        blocks = member.tail.upto(member.confirmed + 1, member.tail.end)
        for first, last in [*mirror.queue.settled, *(pair for block in blocks for pair in block.settled)]:
            if first <= bound:
                detached.record(ACKED, first, min(last, bound))

    def standing(self, detached: DetachedQueue) -> AnyQueue | None:
        """Returns the object that stands for the queue in its vhost now."""
        vhost = self.broker.vhosts.get(detached.spec.vhost)
        found = None if vhost is None else vhost.queues.get(detached.spec.name)
        return found if found is not None and found.spec.id == detached.target else None

    # -- Passing on ----------------------------------------------------------------------------------------------

    def tell(self, queue: AnyQueue) -> None:
        """The queue has a master, here or at another node: send the record before that delivers anything."""
        detached = self.queues.get(queue.spec.id)
        if detached is not None:
            if detached.is_serving:
                self._end(detached)
            self.pass_on(detached, queue)

    def pass_on(self, detached: DetachedQueue, target: AnyQueue | None = None) -> None:
        target = target or self.broker.queues_by_id.get(detached.target)
        if target is None:
            self._drop(detached)
        if target is None or detached.is_asking or detached.is_serving or not self._has_way(target):
            return
        version, returned = detached.version, detached.returned
        record = DetachedRecord(detached.anchors, detached.verdicts())
        detached.set_asking(True)

        def then(done: bool) -> None:
            detached.set_asking(False)
            if not done:
                detached.returned[:0] = returned
            elif not detached.is_serving and not detached.deleted:
                if detached.version != version:
                    self.pass_on(detached)
                elif not detached.out and not self.broker.spools.has_lent(detached.target):
                    self._drop(detached)

        if isinstance(target, Queue):
            self.settle_record(target, self.reserved.setdefault(detached.target, Unacked()), record, then)
        elif not target.is_local:
            client_end = target.client_end
            assert client_end is not None
            data = record.pack()
            client_end.ask(target, w.DETACHED_RECORD, data, lambda answer: then(not isinstance(answer, Refusal)))

    @staticmethod
    def _has_way(target: AnyQueue) -> bool:
        return target.client_end is not None if not target.is_local else target.parked is None

    def _drop(self, detached: DetachedQueue) -> None:
        """Delete the record, which is not needed any more."""
        del self.queues[detached.target]
        self.reserved.pop(detached.target, None)
        if detached.is_serving:
            for consumer in detached.finish():
                consumer.on_queue_deleted()
        self.broker.spools.recall(detached.target)
        detached.let_go_of_all()
        self.broker.forget(detached)
        if self.broker.ended is not None:
            self.broker.ended.pop(detached, None)

    def on_deleted(self, number: int) -> None:
        """The queue was deleted."""
        detached = self.queues.get(number)
        if detached is not None:
            self._drop(detached)

    # -- Leading -------------------------------------------------------------------------------------------------

    def may_be_served_elsewhere(self, spec: QueueSpec) -> bool:
        """Returns whether a node that this one has lost may deliver messages from its copy of the queue."""
        return self.broker.partition_handling.spools and _may_be_detached(spec) and self.is_pair()

    def on_failed(self, mirror: Mirror, peer: str) -> None:
        """A node is lost that had not said farewell: it may deliver all messages of a queue that this one leads."""
        queue, view = mirror.queue, mirror.member.view
        if not isinstance(queue, Queue) or view is None or peer not in view.ring:
            return
        if self.may_be_served_elsewhere(queue.spec):
            mark_shown(queue, queue.next_seq - 1)

    def on_started(self, mirror: Mirror, queue: LocalQueue) -> None:
        """This node leads a queue from now on."""
        view, departed = mirror.member.view, self.broker.mirrors.ha_rules.departed
        assert view is not None
        in_sync = {name for name, _ in view.in_sync}
        others = [name for name in view.ring if name != self.broker.node_name and name not in departed]
        is_whole = all(one in in_sync and one in mirror.member.links for one in others)
        if not is_whole and isinstance(queue, Queue) and self.may_be_served_elsewhere(queue.spec):
            mark_shown(queue, queue.next_seq - 1)

    # -- For people ----------------------------------------------------------------------------------------------

    def figures(self) -> dict[str, Any]:
        """Returns how many queues this node serves while detached, and the first of them by name; how many messages are
        ready there, those of spools included; and how many settled ones their masters have still to be told of."""
        serving = sorted(self.serving, key=lambda one: (one.spec.vhost, one.spec.name))
        return {
            "queues": len(serving),
            "messages": sum(one.ready_total for one in serving),
            "settled": sum(one.acked.count + one.rejected.count for one in self.queues.values()),
            "served": [{"vhost": one.spec.vhost, "name": one.spec.name, "messages": one.ready_total,
                        "messages_unacknowledged": one.unacked_count, "consumers": len(one.consumers)}
                       for one in serving[:SHOWN_MAX]],
        }  # fmt: skip

    def note(self, level: str, text: str) -> None:
        self.broker.node.note("queue", level, visible(text))


def _may_be_detached(spec: QueueSpec) -> bool:
    """Returns whether a queue is of a kind that is served from a copy. A quorum queue promises that it is not, readers
    of a stream remember offsets, and hidden queues of delayed messages concern their node alone."""
    return not (is_stream(spec.arguments) or is_quorum(spec.arguments) or is_hidden_queue(spec.name))


def _not_waiting(queue: Queue, live: RangeSet) -> RangeSet:
    """Returns those messages of a queue that this node led which are unacknowledged here, or settled."""
    others = live.copy()
    for entry in (entry for row in rows_of(queue.ready) for entry in row):
        if isinstance(entry, Gap) and entry.ranges is not None:
            for pair in entry.ranges:
                others.remove(*pair)
        else:
            others.remove(entry.first, entry.last)
    return others


# -- At the master -----------------------------------------------------------------------------------------------------


def _knows(mirror: Mirror, anchor: Anchor) -> bool:
    """Returns whether a log has this very block, and so means the same messages by numbers up to there. All logs have
    the beginning in common, and no message with it: one that a queue had before it was mirrored is in no block."""
    has_block = mirror.member.tail.epoch_at(anchor.block) == anchor.epoch
    return has_block and (anchor.block > 0 or not anchor.bound)


def _bound(queue: LocalQueue, anchors: Anchors) -> int:
    """Returns the number up to which a record means messages of this very log; 0: none."""
    if queue.mirror is None:
        return 0
    return max((one.bound for one in anchors if _knows(queue.mirror, one)), default=0)


def mark_shown(queue: Queue, through: int) -> None:
    """Mark messages up to this one as redelivered: another node may have delivered them."""
    if not through:
        return  # The queue has never had a message: a block about an empty range could not be read back.
    for entry in (entry for row in rows_of(queue.ready) for entry in row):
        if entry.first > through:
            continue
        if isinstance(entry, Gap):
            entry.redelivered = True
        else:
            entry.batch.mark_redelivered(entry.lo, min(entry.hi, through - entry.batch.first + 1))
    if queue.rules.max_priority:
        queue.note_requeued([(1, through)])
    else:
        queue.raise_delivered(through)
    queue.note_deliveries()
    queue.host.dirty[queue] = None
