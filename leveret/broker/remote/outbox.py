"""Keeps what clients of this node have published until it is known to be safe, and sends it again if it may be lost.

A publish for a queue of another node is sent over a link, and may be lost with the link, or with the node at its end,
or because that node leads the queue no longer. The client would get no confirm, or a nack; and most of what is refused
in such a moment has been kept all the same, so that its client publishes it a second time and it is there twice. So
this node numbers what it sends, as a producer does (see `broker.queue.dedup`), keeps it until it is confirmed, and
sends it again under the same numbers to the queue's next master. What that one has already is passed over; the client
gets an ack.

    publish ──▶ Sent 17…20 ──PRODUCE──▶ home             SAFE ──▶ the clients' acks
                     │        ╳ lost, or led by another: in doubt
                     └──again, 17…20──▶ the next home    has 17 and 18, takes 19 and 20

**Numbers** are given to the bundles in which publishes travel anyway, one for each message, ascending for each queue.
The name of the producer is drawn for each run of the node. It costs a queue one mark for each node in each block.

**In order, without holes.** Each bundle says which number was sent before it, and a home that has not taken that one
does not take this one either: it comes back in doubt. What is in doubt is sent again when the fate of all that was sent
is known, in its order, and before anything that came later. Only what a queue has refused for good (it is full, and
rejects publishes) is left out. The queue remembers that (see `broker.queue.dedup`): so it takes what comes behind, and
what it has refused is not passed over as a duplicate if it comes again.

A number before says nothing about bundles of other names, or about messages without numbers. So bundles of another name
are sent when all before them are answered, and a client's publishes wait (`is_ahead_of`) while there are bundles of a
former epoch, or while any is under way to a former home and the queue is here now.

**Redelivered.** What is sent again may have been delivered to a consumer by a master that was lost. It is sent as
`redelivered`.

**Named producers.** Their publishes have numbers already (see `broker.queue.dedup`), and go to any queue with these,
also to one of this node. Each producer has an outbox of its own for each queue, so that its publishes, too, are sent
again when they come back in doubt. Each names the same previous number as the first time: what was refused is missing
still, and is sent again by its client, on another connection, with all that followed. So what comes behind it is
refused as well.

**A master's own clients.** Their publishes go to a queue of this node, and into blocks. If the ring does not confirm
these and another node becomes master, they are in doubt, too. They need no numbers of their own: a message has its
number in the queue, and the block that brought it has an epoch. Whoever begins to lead a queue marks up to which number
it has the messages of the epoch before (`note_former_epoch`), as if that epoch were a producer. So what the former
master sends again, as that producer, is passed over or taken like anything else. The mark is in the very block with
which the new epoch begins (`former_epoch_mark`). If it came with a later one, and the new master died before, the next
would have the mark of that master's epoch, and know nothing of the one before.

**In time.** Where nodes have spools, what was not confirmed within `net_ticktime` goes there, with its numbers, and is
confirmed when this node's disk has it; so does what a master without a majority has in doubt. Where they have none, its
client is refused then (see `Confirms.overdue`), and what is in doubt is dropped, unless it is on its way.

**Bounds.** Contents that are kept are bounded: clients that publish to queues for which too much is kept are not read
from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.base.shared_values import NO_DICT
from leveret.broker.delivery.batch import MESSAGE_OVERHEAD
from leveret.broker.delivery.confirms import DOUBTED, NOBODY, REFUSED, Confirms, Numbers, Pending
from leveret.broker.delivery.origins import PRODUCER
from leveret.broker.delivery.publish_numbers import ENTRY, PREFIX, Origin
from leveret.broker.queue.dedup import PRODUCERS_MAX, make_room
from leveret.metadata.rules.ha_policy import is_stream
from leveret.storage.format.queue_block import EXPIRES, PERSISTENT, REDELIVERED, SHARED
from leveret.storage.format.queue_marks import fits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leveret.broker.broker import AnyQueue, Broker
    from leveret.broker.delivery.batch import Batch
    from leveret.broker.mirrors.manager import Mirror
    from leveret.broker.queue.local_queue import LocalQueue
    from leveret.broker.remote.remote_queue import RemoteQueue

QUEUE_BYTES_MAX: Final = 8 << 20  # Contents kept for one queue.
NODE_BYTES_MAX: Final = 64 << 20  # Contents kept for all queues.
AGAIN_MS: Final = 100  # Pause before publishes in doubt are sent again over a link that is up; interval of checks.
SWEEP_MS: Final = 250  # How often clients are looked for that have waited for a confirm too long.
GRACE_MS: Final = 1_000  # Beyond `net_ticktime`: for the next master of a queue whose last one is silent.
EARLY_MS: Final = 250  # Before that, so that the client has its answer in time though the node is busy.
ANSWER_MS: Final = 4_000  # If the node does not say otherwise.

Parts = list[tuple[Pending | None, int]]
# The number of its first message in the queue, the number of messages, the waiting publish.
DueConfirm = tuple[int, int, Pending]


class Sent(Pending):
    """Messages under way to a queue, all of one kind. `first` and `last` are their numbers."""

    __slots__ = ("contents", "keys", "kind", "name", "part_high", "part_low", "parts", "previous", "since_ms", "size")

    def __init__(
        self,
        outbox: Outbox,
        name: bytes,
        first: int,
        contents: list[bytes],
        keys: list[bytes],
        kind: int,
        size: int,
        parts: Parts,
        since_ms: int,
        previous: int = 0,
    ) -> None:
        self.confirms = outbox  # What `Pending` has, without a call: this is made for each bundle.
        self.first = first
        self.count = len(contents)
        self.last = first + self.count - 1
        self.part_low, self.part_high = first, self.last  # Those that are new to the queue.
        self.waiting = self.refused = 0
        self.sent = False
        self.name = name
        self.contents = contents
        self.keys = keys
        self.kind = kind
        self.parts = parts  # As they came: the waiting publish, and how many messages.
        self.since_ms = since_ms
        self.size = size
        self.previous = previous  # For a named producer: the number that its connection sent before.

    @property
    def client_publish(self) -> Pending:
        (first, _), *others = self.parts or [(self, 0)]
        return self if first is None or others else first

    @property
    def numbered(self) -> Numbers:
        return Numbers(self.name, self.part_low, self.part_high)

    @property
    def senders(self) -> list[tuple[Pending | None, int]]:
        return self.parts

    def take_part(self, low: int, high: int) -> None:
        self.part_low, self.part_high = low, high

    @property
    def is_kept(self) -> bool:
        outbox = self.confirms
        return isinstance(outbox, Outbox) and self not in outbox.open

    def is_wanted(self) -> bool:
        """Returns whether a client still waits for a confirm."""
        return any(pending is not None and pending.is_wanted() for pending, _ in self.parts)

    def answer(self, refused: int) -> None:
        """Confirm or refuse the publishes that wait, once."""
        parts, self.parts = self.parts, []
        for pending, _ in parts:
            if pending is None:
                continue
            pending.refuse(refused) if refused else pending.on_safe()


class Receipt:
    """Waits for the spool on behalf of the clients that wait for a `Sent`."""

    __slots__ = ("sent",)

    def __init__(self, sent: Sent) -> None:
        self.sent = sent

    def on_complete(self, pending: Pending) -> None:
        self.sent.answer(pending.refused)


class Outbox:
    """Publishes to one queue that are not known to be safe yet."""

    __slots__ = (
        "doubtful", "under_way", "name", "number", "open", "open_bytes", "outboxes", "previous", "rested_ms",
        "retained", "target", "waiting",
    )  # fmt: skip

    def __init__(self, outboxes: Outboxes, target: int, name: bytes) -> None:
        self.outboxes = outboxes
        self.name = name
        self.target = target
        self.number = 0  # The last that was given.
        self.open: dict[Sent, None] = {}  # In the order in which they came.
        self.open_bytes = 0
        self.under_way = 0  # How many of these are sent and not answered yet.
        self.doubtful: dict[Sent, None] = {}  # Those of `open` that are to be sent again.
        self.previous: dict[
            bytes, int
        ] = {}  # By producer: the last number that was sent, if one before may be missing.
        self.rested_ms = 0
        self.retained = 0  # How many of `open` were published when this node led the queue.
        self.waiting: dict[RemoteQueue, None] = NO_DICT  # Those whose publishes wait for what is open.

    @property
    def queue(self) -> AnyQueue | None:
        return self.outboxes.broker.queues_by_id.get(self.target)

    def is_crowded(self) -> bool:
        return self.open_bytes > QUEUE_BYTES_MAX or self.outboxes.open_bytes > NODE_BYTES_MAX

    # -- Going out -----------------------------------------------------------------------------------------------

    def send(
        self, contents: list[bytes], keys: list[bytes], kind: int, size: int, parts: Parts
    ) -> tuple[Sent, int, int]:
        """Number messages that are about to be sent for the first time. Gives the number of the first of them, and that
        which was sent before."""
        outboxes, name, first = self.outboxes, self.name, self.number + 1
        sent = Sent(self, name, first, contents, keys, kind, size, parts, outboxes.broker.now_ms)
        if not self.open:
            outboxes.busy[self] = None
        self.open[sent] = None
        self.open_bytes += size
        outboxes.open_bytes += size
        previous = self.previous.get(name, 0)
        self.previous[name] = self.number = sent.last
        self.under_way += 1
        sent.waiting = 1
        return sent, first, previous

    def _add(self, sent: Sent) -> None:
        self.open[sent] = None
        self.open_bytes += sent.size
        self.outboxes.open_bytes += sent.size
        self.outboxes.busy[self] = None

    def _drop(self, sent: Sent) -> None:
        if self.open.pop(sent, 0) is None:
            self.open_bytes -= sent.size
            self.outboxes.open_bytes -= sent.size
            self.doubtful.pop(sent, None)
            if sent.name != self.name:
                self._count_retained(-1)
            if not self.open:
                self.previous.clear()  # Nothing that is missing will ever be sent again.
                self.outboxes.busy.pop(self, None)

    def origin(self, sent: Sent) -> Origin:
        previous = self.previous.get(sent.name, 0)
        self.previous[sent.name] = sent.last
        return Origin(sent.name, sent.first, previous)

    def on_complete(self, pending: Pending) -> None:
        """The queue has answered, or will not."""
        assert isinstance(pending, Sent)
        self.under_way -= 1
        if pending not in self.open:
            return  # The spool has it.
        if pending.refused == DOUBTED and pending.is_wanted() and not self._is_hopeless(pending):
            self.doubtful[pending] = None
        else:
            self._drop(pending)
            pending.answer(pending.refused)
            self.release()

    def _is_hopeless(self, sent: Sent) -> bool:
        """Returns whether the queue would refuse it again."""
        return False

    # -- Again ---------------------------------------------------------------------------------------------------

    def again(self) -> None:
        """Send what is in doubt, if everything sent was answered and the queue can be reached."""
        if not self.doubtful or self.under_way:
            return
        queue = self.queue
        if queue is None:  # Whoever deleted it has taken care of its messages.
            for sent in list(self.open):
                self._drop(sent)
                sent.answer(0)
            return
        if not self._has_way(queue):
            return
        self.previous.clear()
        self.rested_ms = self.outboxes.broker.now_ms
        for sent in self._next_in_doubt():
            sent.refused = 0
            self.under_way += 1
            kind, origin = sent_again(queue, sent.kind), self.origin(sent)
            self._enqueue(queue, origin, sent, kind)
            if not sent.waiting:
                self.on_complete(sent)
        self.release()

    def _enqueue(self, queue: AnyQueue, origin: Origin, sent: Sent, kind: int) -> None:
        """Sends something again before all that waits."""
        enqueue_from = queue.enqueue_from if queue.is_local else queue.send_from
        enqueue_from(origin, sent.contents, sent.keys, kind, sent.size, sent)

    def _next_in_doubt(self) -> list[Sent]:
        """Takes what can be sent again at once: what is in doubt up to the next bundle of another name."""
        sents: list[Sent] = []
        for sent in [sent for sent in self.open if sent in self.doubtful]:
            if not sent.is_wanted():
                self._drop(sent)
                continue
            if sents and sent.name != sents[0].name:
                break
            sents.append(sent)
        for sent in sents:
            del self.doubtful[sent]
        return sents

    def _has_way(self, queue: AnyQueue) -> bool:
        """Returns whether something can be sent to the queue now. Else what is kept goes into the spool, if there is
        one; or the queue waits for its next master, and has what is in doubt sent again then."""
        if queue.is_local:
            return queue.parked is None
        if queue.spool is None and queue.has_way():
            return queue.is_reachable()
        if queue.spool is not None or self.outboxes.broker.spools.may_take_unconfirmed(queue):
            queue.answer_publishers()
        return False

    # -- What waits ----------------------------------------------------------------------------------------------

    def is_ahead_of(self, queue: RemoteQueue) -> bool:
        """Returns whether a publish to the queue could overtake what is kept here."""
        return self.retained > 0 or (queue.successor is not None and len(self.open) > 0)

    def have_wait(self, queue: RemoteQueue) -> None:
        """Calls the queue when nothing is left that its publishes could overtake."""
        self.waiting = self.waiting or {}
        self.waiting[queue] = None

    def release(self) -> None:
        """Lets those go on that have waited for what was kept here."""
        if self.waiting and not all(self.is_ahead_of(queue) for queue in self.waiting):
            self.have_look()

    def have_look(self) -> None:
        """Has those that wait look whether they still have to."""
        waiting, self.waiting = self.waiting, NO_DICT
        for queue in waiting:
            queue.on_outbox_changed()

    def _count_retained(self, change: int) -> None:
        self.retained += change
        if self.retained:
            self.outboxes.retaining[self.target] = None
        else:
            self.outboxes.retaining.pop(self.target, None)

    def retain(
        self, name: bytes, first: int, contents: list[bytes], keys: list[bytes], kind: int, part: Pending
    ) -> Sent:
        """Keep what a client of this node has published to a queue that was led here, and is in doubt."""
        since_ms, size = self.outboxes.broker.now_ms, sum(map(len, contents)) + MESSAGE_OVERHEAD * len(contents)
        sent = Sent(self, name, first, contents, keys, kind, size, [(part, len(contents))], since_ms)
        self._add(sent)
        self._count_retained(1)
        self.doubtful[sent] = None
        return sent

    def take_all(self) -> list[Sent]:
        """Take everything out, for a spool. What was sent may still arrive as well."""
        sents = list(self.open)
        for sent in sents:
            self._drop(sent)
        return sents

    def tick(self, now_ms: int) -> None:
        if self.doubtful and now_ms - self.rested_ms >= AGAIN_MS:
            self.again()
        oldest = next(iter(self.open), None)
        if oldest is None or now_ms - oldest.since_ms < self.outboxes.answer_ms:
            return
        if not self._is_spooled():
            self._refuse_late(now_ms)

    def _is_spooled(self) -> bool:
        """Returns whether a spool takes what has waited too long."""
        queue = self.queue
        if queue is None or not self.outboxes.broker.spools.may_take_unconfirmed(queue):
            return False
        for one in list(self.waiting) if queue.is_local else [queue]:
            one.answer_publishers()
        return True

    def _refuse_late(self, now_ms: int) -> None:
        for sent in list(self.doubtful):
            if now_ms - sent.since_ms >= self.outboxes.answer_ms + GRACE_MS - EARLY_MS:
                self._drop(sent)
                sent.answer(REFUSED)
        self.release()


class ProducerOutbox(Outbox):
    """Publishes of a named producer to one queue. They are not spooled: see `store_and_forward`."""

    __slots__ = ("hole",)

    def __init__(self, outboxes: Outboxes, target: int, name: bytes) -> None:
        super().__init__(outboxes, target, name)
        self.hole = 0  # Publishes behind this number follow one that was refused; 0: none was.

    def keep(
        self, origin: Origin, contents: list[bytes], keys: list[bytes], kind: int, size: int, pending: Pending
    ) -> Sent:
        """Publishes that are about to be sent for the first time."""
        part, now_ms = (pending, len(contents)), self.outboxes.broker.now_ms
        name, first, previous = origin
        sent = Sent(self, name, first, contents, keys, kind, size, [part], now_ms, previous)
        pending.waiting += 1
        if first <= self.hole:
            self.hole = 0
        self._add(sent)
        self.under_way += 1
        return sent

    def is_refused_at_once(self, queue: AnyQueue) -> bool:
        """Returns whether a publish that was just sent and came back at once would come back again: the earlier
        publish that its queue misses is not here either; or the queue cannot be reached, and it was never sent."""
        return len(self.open) == 1 if queue.is_local else not queue.has_way()

    def origin(self, sent: Sent) -> Origin:
        return Origin(sent.name, sent.first, sent.previous)

    def _drop(self, sent: Sent) -> None:
        super()._drop(sent)
        if sent.refused or not sent.is_wanted():
            self.hole = min(self.hole or sent.first, sent.first)
        if not self.open and not self.hole:
            self.outboxes.by_producer.pop((self.target, self.name), None)

    def _is_hopeless(self, sent: Sent) -> bool:
        return 0 < self.hole < sent.first

    def _has_way(self, queue: AnyQueue) -> bool:
        return queue.is_local or queue.has_way()

    def _enqueue(self, queue: AnyQueue, origin: Origin, sent: Sent, kind: int) -> None:
        queue.enqueue_from(origin, sent.contents, sent.keys, kind, sent.size, sent)

    def _is_spooled(self) -> bool:
        return False


class OriginOutbox(ProducerOutbox):
    """Publishes whose origins tell what is new, in any order: see `broker.delivery.origins`. There are no holes."""

    __slots__ = ()

    def _drop(self, sent: Sent) -> None:
        Outbox._drop(self, sent)
        if not self.open:
            self.outboxes.by_producer.pop((self.target, self.name), None)

    def is_refused_at_once(self, queue: AnyQueue) -> bool:
        return not queue.is_local and not queue.has_way()


class Outboxes:
    """The outboxes of a node, and what they may hold together."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._name = b""
        self.answer_ms = ANSWER_MS  # `net_ticktime`
        self.by_target: dict[int, Outbox] = {}
        self.by_producer: dict[tuple[int, bytes], ProducerOutbox] = {}  # Those with publishes, or with a hole.
        self.busy: dict[Outbox, None] = {}  # Those with publishes.
        self.retaining: dict[int, None] = {}  # By target: those with publishes of former epochs.
        self.open_bytes = 0
        self.looked_ms = self.swept_ms = 0
        self.looks = 0  # How often it was looked for clients that wait too long.
        self.late = 0  # Publishes that were refused because no answer came in time.

    @property
    def name(self) -> bytes:
        """Returns the producer name under which queues know this run of the node."""
        if not self._name:
            self._name = self.broker.unique_name("node ").encode()
        return self._name

    def of(self, target: int) -> Outbox:
        outbox = self.by_target.get(target)
        if outbox is None:
            outbox = self.by_target[target] = Outbox(self, target, self.name)
        return outbox

    def is_crowded(self, target: int) -> bool:
        outbox = self.by_target.get(target)
        return self.open_bytes > NODE_BYTES_MAX if outbox is None else outbox.is_crowded()

    def produce(
        self, queue: AnyQueue, origin: Origin, contents: list[bytes], keys: list[bytes], kind: int, size: int,
        pending: Pending,
    ) -> bool:  # fmt: skip
        """Send publishes of a named producer whose client is here. True, as from `enqueue`: slow down."""
        outbox = self._of_producer(queue.spec.id, origin.producer)
        sent = outbox.keep(origin, contents, keys, kind, size, pending)
        slow = queue.enqueue_from(origin, contents, keys, kind, size, sent)
        if not sent.waiting:
            if sent.refused and outbox.is_refused_at_once(queue):
                sent.refused = REFUSED
            outbox.on_complete(sent)
        return slow

    def _of_producer(self, target: int, name: bytes) -> ProducerOutbox:
        outbox = self.by_producer.get((target, name))
        if outbox is None:
            if len(self.by_producer) >= PRODUCERS_MAX:
                self.by_producer = {key: one for key, one in self.by_producer.items() if one.open}
            kind = OriginOutbox if name.startswith(PRODUCER) else ProducerOutbox
            outbox = self.by_producer[target, name] = kind(self, target, name)
        return outbox

    def on_deleted(self, target: int) -> None:
        named = [key for key in self.by_producer if key[0] == target]
        gone = [self.by_target.pop(target, None), *(self.by_producer.pop(key) for key in named)]
        for outbox in gone:
            if outbox is not None:
                outbox.again()

    def again(self) -> None:
        """A link is up, or a queue has another master: send what is in doubt."""
        for outbox in list(self.busy):
            if outbox.doubtful:
                outbox.again()

    def on_link_lost(self) -> None:
        """Send what is in doubt elsewhere. Nothing waits for it at queues that are out of reach now."""
        self.again()
        for outbox in [outbox for outbox in self.busy if outbox.waiting]:
            outbox.have_look()

    def again_for(self, queue: AnyQueue) -> None:
        """A queue has another master: send what is in doubt of it."""
        outbox = self.by_target.get(queue.spec.id)
        if outbox is not None:
            outbox.again()

    def ahead_of(self, queue: RemoteQueue) -> Outbox | None:
        """Returns the outbox with publishes that have to enter the queue before any other, if there are some."""
        if queue.successor is None and not self.retaining:
            return None  # So it is almost always.
        outbox = self.by_target.get(queue.spec.id)
        return outbox if outbox is not None and outbox.is_ahead_of(queue) else None

    # -- Time ----------------------------------------------------------------------------------------------------

    def tick(self) -> bool:
        """Called every few milliseconds. True: there is something to send to clients or nodes."""
        now_ms, broker = self.broker.now_ms, self.broker
        if self.busy and now_ms - self.looked_ms >= AGAIN_MS:
            self.looked_ms = now_ms
            for outbox in list(self.busy):
                outbox.tick(now_ms)
        if now_ms - self.swept_ms >= SWEEP_MS:
            self.swept_ms = now_ms - now_ms % SWEEP_MS  # At even intervals, and once if the node stood still.
            if broker.alarm is None:  # Else clients know what they wait for.
                self._sweep()
        return bool(broker.confirming or broker.linked or broker.dirty or broker.writers)

    def _sweep(self) -> None:
        """Refuse publishes that have waited for a confirm too long."""
        looks, late = (self.answer_ms + GRACE_MS) // SWEEP_MS - 1, 0
        self.looks += 1
        for session in list(self.broker.sessions):
            late += session.overdue(looks)
        if late:
            self.late += late
            text = f"{late} publishes are refused: nothing is known of them after {looks * SWEEP_MS} ms"
            self.broker.node.note("channel", "warning", text)


def sent_again(queue: AnyQueue, kind: int) -> int:
    """Returns the kind of a message that is sent again. A stream delivers only what is safe: it needs no mark."""
    return kind if is_stream(queue.spec.arguments) else kind | REDELIVERED


# -- Masters and their own clients -------------------------------------------------------------------------------------


def epoch_producer(epoch: int) -> bytes:
    """Returns the producer name of the messages of an epoch."""
    return b"epoch %d" % epoch


def former_epoch_mark(table: Mapping[bytes, bytes], epoch: int, through: int, wall_ms: int) -> dict[bytes, bytes]:
    """For the first block of a new master: the mark that it has all messages up to here of the epoch before, and no
    others. Empty: the queue never had a message, so that idle queues have no marks; or the table is full."""
    name, entry = PREFIX + epoch_producer(epoch), ENTRY.pack(through, wall_ms)
    return {name: entry} if through and fits(table, name, entry) else {}


def note_former_epoch(queue: LocalQueue) -> None:
    """At a new master: note in memory what its first block says of the epoch before, and make room for it. If the table
    was full, its next block says so."""
    epoch = queue.former_last_block[0]
    if epoch:
        _note_epoch(queue, epoch, queue.next_seq - 1)


def _note_epoch(queue: LocalQueue, epoch: int, through: int) -> None:
    name = PREFIX + epoch_producer(epoch)
    if name in queue.durable_state.table or make_room(queue, name):
        queue.durable_state.set_quietly(name, ENTRY.pack(through, queue.host.wall_ms))


def take_unconfirmed(broker: Broker, mirror: Mirror, queue: LocalQueue) -> list[Sent]:
    """Take what clients of this node have published to a queue that it leads, or led, and that the ring has not
    confirmed. The queue will not confirm it any more: its next master does, through the outbox. So what a deposed
    master refuses afterwards (`MirrorManager._stopped`) are publishes of other nodes, which send them again themselves,
    and
    those whose contents are not here any more."""
    found: list[Sent] = []
    taken: set[Pending] = set()
    outbox, name = broker.outboxes.of(queue.spec.id), epoch_producer(queue.epoch)
    batches: list[tuple[Batch | None, list[DueConfirm]]] = [(batch, due) for _, batch, due in mirror.due_confirms]
    for batch, due in (*batches, (queue.open, queue.due_confirms or [])):
        for seq, count, pending in due:
            if batch is None or not batch.contents or _is_of_others(pending):
                continue
            lo, hi = seq - batch.first, seq - batch.first + count
            if not all(batch.contents[lo:hi]):
                continue  # A delayed one that has gone out already.
            kind = batch.kinds[lo] & (PERSISTENT | EXPIRES | SHARED)
            found.append(outbox.retain(name, seq, batch.contents[lo:hi], batch.keys[lo:hi], kind, pending))
            taken.add(pending)
    mirror.forget_due_confirms()
    queue.take_due_confirms()
    if found:
        _note_epoch(queue, queue.epoch, found[-1].last)
        for awaiting in (*(one[2] for one in mirror.in_blocks), queue.awaiting):
            if awaiting:
                awaiting[:] = [pending for pending in awaiting if pending not in taken]
    return found


def _is_of_others(pending: Pending) -> bool:
    """Returns whether another node or outbox waits, which sends it again."""
    confirms = pending.confirms
    return confirms is NOBODY or isinstance(pending, Sent) or (isinstance(confirms, Confirms) and confirms.is_of_link)
