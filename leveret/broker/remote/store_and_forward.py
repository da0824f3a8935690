"""A spool: publishes for a queue that cannot be reached, on this node's disk until they can be sent on.

A node that is cut off from a queue's master can do three things with a publish: refuse it, make its publisher wait, or
keep it. Where `cluster_partition_handling` says so (`PartitionHandling.spools`), it keeps it: in the log, in a hidden
queue, one for each queue that is out of reach. The publisher gets a confirm when it is synced, which promises a little
less than usual: the message is safe as long as the disk of this one node is.

    no link     publish ──▶ spool ──sync──▶ confirmed
    link back              spool ──in order, numbered──▶ the queue ──safe──▶ settled in the spool
    empty       publish ──────────────────────────────▶ the queue

**Once.** To the queue, the spool is a producer (see `broker.queue.dedup`): it has a name, and each message has the
number that it has in the spool. The queue keeps the highest number it took, in the very block that holds the messages.
So whatever fails while something is under way (this node, the link, the master), all that is not known to be safe is
sent again, and what had arrived is passed over. That rests on two things. A message is sent only when it is synced
here: if it were sent before, and the spool's block lost with this process, the next message would get its number, and
be passed over. And no number is given twice, even by a log that was told not to sync: after a start the spool goes on
far behind its last one. The name is drawn when the spool is made and kept in its log, so that a node with a new disk is
not taken for the old.

**Redelivered.** A queue delivers messages before they are safe. If its master is lost in between, or was master no
longer, a client has seen messages that are in no queue; they are sent again, and only the spool knows that they come
for the second time. So batches that were under way when the link or the master was lost are sent as `redelivered`, and
after a start all messages from before it: which of them were under way is not known then.

**In order.** Batches (`PendingForward`) are numbered in a row, each tells the queue the number before it, and a queue
that has not taken that one refuses it. Batches of another producer (see below) follow when all before are answered.
After a refusal nothing more is sent until all batches under way are answered; then sending begins anew with the first
that is not safe. As long as something is in the spool, publishes go there, behind it. So that a steady publisher does
not keep it filled for ever, publishes wait while the last few megabytes are sent; before that, each bundle of publishes
waits for a batch to be sent.

**Out of reach** is a queue without a link to its node; a mirrored one only if no majority is reachable that could agree
on its next master, or none has come. A master that has lost the majority may be master no longer, and confirms nothing.
To clients of its own node it is out of reach, too: `SpoolRegistry.on_majority` puts a `RemoteQueue` in its place. The
same holds for a queue that has come to this node while messages wait in its spool: until these have entered the queue,
the `RemoteQueue` that stood for it still does.

**Confirmed messages are kept.** The publisher has a confirm, which cannot be revoked. So a queue that rejects publishes
when it is full takes spooled messages all the same (`KEPT`): if they had to wait, publishers at the queue's own node
would take all room before them. To make up for it, a spool rejects what exceeds the limits of its queue, as the queue
would, whatever is in the queue. A message is dropped in two cases. If its queue is deleted: its other messages are,
too. And where the strategy says so (`heals`), if its TTL has expired, which then counts from when it came here;
otherwise the TTL begins when it enters the queue. Both are counted and logged.

**In doubt.** What was under way when the link broke, or is in blocks of a master that has lost the majority, may have
arrived. It has numbers already (see `outbox`), of another producer than the spool. It is kept with these: a mark says
which messages of the spool have other numbers, and of which producer (`Borrowed`), and they are sent on with them.

**Delivered here.** A spool whose queue is served by this node from a copy lends its messages to be delivered, and those
that are acknowledged are not sent on (see `spool_delivery`).

**What is not kept.** Publishes for queues that are exclusive or not durable: these may not outlive the partition.
Publishes of named producers: they send again by themselves, and their own numbers detect duplicates. What there is no
room for is refused.

Nothing here blocks, and nothing counts messages one by one: a `PendingForward` is a piece of a block.
"""

from __future__ import annotations

from collections import deque
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from leveret.base.range_set import Wanted
from leveret.broker.delivery.batch import MESSAGE_OVERHEAD, Gap, Span
from leveret.broker.delivery.confirms import REFUSED, Numbers, Pending
from leveret.broker.delivery.publish_numbers import NAME_BYTES_MAX, Origin
from leveret.broker.queue.hold import Parked, park, unpark
from leveret.broker.queue.queue import Queue
from leveret.broker.queue.ttl_and_length import own_ttl_ms
from leveret.broker.remote.outbox import Receipt
from leveret.broker.remote.spool_delivery import TRANSIENT, SpoolDelivery, published_kind
from leveret.metadata.model.records import QueueSpec
from leveret.metadata.rules.ha_policy import is_stream
from leveret.metadata.rules.queue_rules import PLAIN, REJECT_TO_DLX
from leveret.storage.format.queue_block import KEPT, OVERDUE, PERSISTENT, REDELIVERED

if TYPE_CHECKING:
    from leveret.broker.broker import AnyQueue
    from leveret.broker.delivery.batch import Batch
    from leveret.broker.remote.outbox import Sent
    from leveret.broker.remote.remote_queue import RemoteQueue
    from leveret.broker.remote.spool_registry import SpoolRegistry

SPOOL: Final = 1 << 62  # Set in the number under which the log has the spool of a queue.
BATCH_BYTES: Final = 256 << 10
BATCH_MESSAGES: Final = 4_096
WINDOW_BYTES: Final = 1 << 20  # Limit of what is under way; half of the first credit, which leaves some for others.
HOLD_BYTES: Final = 4 << 20  # With so little left, publishes wait until it is sent.
RECORD_BYTES: Final = 16  # About what a log needs for a message besides its content.
LEAP: Final = 1 << 32  # Between the last number before a start and the first one after it.
NAME: Final = b"name"  # Mark of a spool: its producer name.
SINCE: Final = b"since"  # Mark: when its first message came, by the wall clock.
BORROWED: Final = b"borrowed:"  # Mark, with the number of the first: messages with numbers of another producer.
BORROWED_ENTRY: Final = Struct(">QQ")  # Last number; producer number of the first; then the producer name.


class Borrowed(NamedTuple):
    """Messages of a spool, `first` to `last`, that have numbers of another producer."""

    first: int
    last: int
    producer: bytes
    number: int  # That producer's number of the first.

    def pack(self) -> bytes:
        return BORROWED_ENTRY.pack(self.last, self.number) + self.producer


class PendingForward(Pending):
    """Messages sent to the queue and not answered yet: lo..hi - 1 of a batch."""

    __slots__ = ("batch", "hi", "is_overdue", "lo", "numbers", "size")

    def __init__(self, spool: Spool, batch: Batch, lo: int, hi: int, is_overdue: bool) -> None:
        super().__init__(spool, batch.first + lo, batch.first + hi - 1)
        self.batch = batch
        self.lo = lo
        self.hi = hi
        self.is_overdue = is_overdue
        self.size = sum(map(len, batch.contents[lo:hi]))
        self.numbers: Numbers | None = None

    @property
    def numbered(self) -> Numbers | None:
        return self.numbers

    @property
    def senders(self) -> list[tuple[Pending | None, int]]:
        return []  # They were told when they came into the spool.

    def take_part(self, low: int, high: int) -> None:
        assert self.numbers is not None  # It was sent.
        self.numbers = self.numbers._replace(low=low, high=high)


class Spool(Queue):
    """The publishes that this node keeps for one queue."""

    __slots__ = (
        "batches_under_way", "borrowed", "content_bytes", "delivery", "doubtful", "expired", "flows", "fronts", "held",
        "is_paced", "last_producer", "name", "previous", "refused", "resting", "sent", "spools", "target",
        "turned_away", "under_way_bytes", "under_way_count",
    )  # fmt: skip

    def __init__(self, spools: SpoolRegistry, target: QueueSpec) -> None:
        node = spools.broker.node_name
        spec = QueueSpec(SPOOL | target.id, target.vhost, target.name, node=node)
        super().__init__(spec, spools.broker, PLAIN)  # The queue's rules apply when its messages are there.
        self.spools = spools
        self.target = target.id
        self.delivery = SpoolDelivery(self)
        self.fronts: list[RemoteQueue] = []  # What stands for the queue in its vhost here.
        self.name = b""
        self.content_bytes = 0
        self.batches_under_way = 0
        self.under_way_bytes = self.under_way_count = 0
        self.refused: list[PendingForward] = []  # The refused ones, until all that were under way are answered.
        self.previous: dict[bytes, int] = {}  # By producer: the last number sent since sending last began anew.
        self.last_producer = b""  # Of the batch that was sent last.
        self.borrowed: deque[Borrowed] = deque()
        self.doubtful = 0  # Messages up to this number may have been delivered to a client.
        self.resting = False  # True until the next second after a refusal.
        self.flows = False  # The last batch was accepted, and more can be sent.
        self.is_paced = False  # Publishers wait until the next batch is answered.
        self.held: list[Parked] | None = None  # Publishes that wait until the spool is empty.
        self.sent = self.expired = self.turned_away = 0

    @property
    def who(self) -> str:
        return f"spool of {self.spec.node}"

    @property
    def count(self) -> int:
        return self.ready_count + self.under_way_count + self.delivery.lent_count

    @property
    def waiting_bytes(self) -> int:
        """Returns the bytes of messages that are not under way, as they will be in a log."""
        return max(self.content_bytes - self.under_way_bytes, 0) + RECORD_BYTES * self.ready_count

    def add_front(self, front: RemoteQueue) -> None:
        """Publishers of this node take this for the queue."""
        self.fronts.append(front)

    def remove_front(self, front: RemoteQueue) -> None:
        """Publishers of this node take this for the queue no longer."""
        self.fronts = [one for one in self.fronts if one is not front]

    def take_fronts(self) -> list[RemoteQueue]:
        """Publishes go straight to the queue again."""
        fronts, self.fronts = self.fronts, []
        return fronts

    def begin(self) -> None:
        """Begin, as a new spool or with what was read from the log."""
        self.name = self.durable_state.table.get(NAME, b"")
        if not self.name or not self.count:  # An empty one may not know its last number: it was not synced.
            prefix = f"spool {self.spec.node} ".encode()[: NAME_BYTES_MAX - 32].decode(errors="ignore")
            self.name = self.spools.broker.unique_name(prefix).encode()
            self.durable_state.set(NAME, self.name)
        for key in sorted(key for key in self.durable_state.table if key.startswith(BORROWED)):
            if self.count:
                last, number = BORROWED_ENTRY.unpack_from(self.durable_state.table[key])
                producer = self.durable_state.table[key][BORROWED_ENTRY.size :]
                first = int.from_bytes(key[len(BORROWED) :], "big")
                self.borrowed.append(Borrowed(first, last, producer, number))
            else:
                self.durable_state.set(key, b"")
        self.delivery.restore()
        if not self.count:
            self.delivery.forget()
        else:
            self.doubtful = self.next_seq - 1
            self.next_seq += LEAP
            self.content_bytes = self.host.measure(self, Wanted(1, self.next_seq)).bytes

    # -- Coming in -----------------------------------------------------------------------------------------------

    def accept(self, contents: list[bytes], keys: list[bytes], kind: int, size: int, pending: Pending | None) -> bool:
        """Take a publish for the queue, behind all that is here. True, as from `enqueue`: slow down."""
        if self.held is None and self.flows and self.content_bytes <= HOLD_BYTES:
            self.held = []
        if self.held is not None:
            return park(self.held, contents, keys, kind, size, pending)
        spools = self.spools
        if not spools.may_keep(self, size) or self._turns_away(contents, keys, kind):
            self.turned_away += len(contents)
            if pending is not None:
                pending.mark_refused()
            return False
        spools.activate(self)
        self.is_paced = self.flows
        first = self.next_seq
        self.enqueue(contents, keys, kind, size, pending)
        self._tell_routed(first, len(contents), pending)
        return self.is_paced

    def _tell_routed(self, first: int, count: int, pending: Pending | None) -> None:
        """The journal says whose messages the spool sends under its own name, some day."""
        journal, target = self.spools.broker.journal, self.spools.broker.queues_by_id.get(self.target)
        if journal is not None and target is not None and target.rules.journal and pending is not None:
            sender = (pending, journal.publisher(pending), count)
            journal.on_routed(target, 0, Numbers(self.name, first, first + count - 1), [sender])

    def adopt(self, sents: list[Sent]) -> None:
        """Take publishes in doubt. They are confirmed when this node's disk has them."""
        for sent in sents:
            if not sent.is_wanted():
                continue
            first = self.next_seq
            if not self.spools.may_keep(self, sent.size) or not self._borrow(first, sent):
                self.turned_away += sent.count
                sent.answer(REFUSED)
                continue
            self.spools.activate(self)
            receipt = Pending(Receipt(sent), 1, sent.count)
            self.enqueue(sent.contents, sent.keys, sent.kind & ~REDELIVERED, sent.size, receipt)

    def _borrow(self, first: int, sent: Sent) -> bool:
        """Note that the next messages have numbers of another producer. False: there are too many such notes."""
        before = self.borrowed[-1] if self.borrowed else None
        note = Borrowed(first, first + sent.count - 1, sent.name, sent.first)
        if before is not None and before.last + 1 == first and before.producer == sent.name:
            if before.number + first - before.first == sent.first:
                note = before._replace(last=note.last)
        key = BORROWED + note.first.to_bytes(8, "big")
        if not self.durable_state.fits(key, note.pack()):
            return False
        if before is not None and note.first == before.first:
            self.borrowed.pop()
        self.borrowed.append(note)
        self.durable_state.set(key, note.pack())
        return True

    def _turns_away(self, contents: list[bytes], keys: list[bytes], kind: int) -> bool:
        """Returns whether the queue itself would reject this. Publishes to such a queue come one by one."""
        target = self.spools.broker.queues_by_id.get(self.target)
        if target is None or not target.rules.rejects:
            return False
        rules, size = target.rules, sum(map(len, contents))
        is_long = rules.max_length is not None and self.count + len(contents) > rules.max_length
        if not is_long and (rules.max_bytes is None or self.content_bytes + size <= rules.max_bytes):
            return False
        if rules.overflow == REJECT_TO_DLX:
            self.spools.broker.dead_letters.send_refused(target, contents, keys, kind)
        return True

    def enqueue(self, contents: list[bytes], keys: list[bytes], kind: int, size: int, pending: Pending | None) -> bool:
        kind |= PERSISTENT if kind & PERSISTENT else PERSISTENT | TRANSIENT
        if not self.count:
            self.durable_state.set(SINCE, self.host.wall_ms.to_bytes(8, "big"))
        slow = super().enqueue(contents, keys, kind, size, pending)
        if self.open is not None:
            self.open.stamp(self.host.wall_ms)
        self._count(size - MESSAGE_OVERHEAD * len(contents))
        return slow

    def _count(self, size: int) -> None:
        self.content_bytes += size
        self.spools.content_bytes += size

    def is_crowded(self) -> bool:
        """Returns whether publishers should wait."""
        return self.held is not None or (self.is_paced and self.batches_under_way > 0)

    def on_logged(self, batch: Batch) -> None:
        super().on_logged(batch)
        self.host.dirty[self] = None

    # -- Going out -----------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Send messages to the queue, as many as possible; or lend them to whoever delivers them here."""
        spools, heals, reader = self.spools, self.spools.heals, self.delivery.reader
        if reader is not None or self.delivery.patience:
            self._stop()
            if reader is not None:
                self.delivery.lend(reader)
            return
        while self.ready and not self.refused and not self.resting and self.under_way_bytes < WINDOW_BYTES:
            if not spools.batches_left:
                spools.later.append(self)
                return
            target = spools.way(self)
            if target is None:
                self._stop()
                return
            head = self.ready[0]
            if isinstance(head, Gap):
                self.want(head)
                return
            if not head.batch.logged:
                return
            overdue = self._overdue(head, target) if heals else 0
            if overdue and target.rules.dead_letter_exchange is None:
                self._drop_expired(head, overdue)
                continue  # Also while there is no disk space for the others: this may be what makes it.
            if spools.shortage(target):
                self._stop()
                return
            if not target.is_local and target.client_end is not None and target.client_end.is_crowded():
                spools.stalled[self] = None
                return
            if self.batches_under_way and self.numbers_of(head.first, head.last)[0] != self.last_producer:
                return  # Its numbers would not tell the queue whether it has those under way.
            spools.batches_left -= 1
            self._send(head, target, overdue)
        if self.batches_under_way and self.ready and isinstance(self.ready[0], Gap):
            self.want(self.ready[0])  # Read ahead while others are under way.
        if not self.count and not self.refused:
            self._finish()

    def _overdue(self, head: Span, target: AnyQueue) -> int:
        """Returns how many messages at the front have expired."""
        batch, at, now_ms, ttl_ms = head.batch, head.lo, self.host.wall_ms, target.rules.ttl_ms
        if (ttl_ms is None and not batch.expires) or is_stream(target.spec.arguments):
            return 0
        while at < head.hi:
            came_ms, end = batch.time_at(at) if batch.times else (now_ms, head.hi)
            own_ms = own_ttl_ms(batch, at)
            lives_ms = min(ms for ms in (own_ms, ttl_ms, 1 << 62) if ms is not None)
            if came_ms + lives_ms > now_ms:
                break
            at = at + 1 if batch.expires else min(end, head.hi)
        return at - head.lo

    def _drop_expired(self, head: Span, count: int) -> None:
        """Drop expired messages of a queue without a dead-letter exchange."""
        batch, lo, hi = head.batch, head.lo, head.lo + count
        self.take_out(head, count)
        self.expired += count
        self.settle(batch, lo, hi)
        self._count(-sum(map(len, batch.contents[lo:hi])))
        self.spools.on_progress()

    def take_out(self, head: Span, count: int) -> None:
        """Take the first messages out of those that wait."""
        head.lo += count
        self.ready_count -= count
        if head.lo == head.hi:
            self.ready.popleft()

    def _send(self, head: Span, target: AnyQueue, overdue: int) -> None:
        """Send a batch. `overdue`: so many have expired, and their queue is to dead-letter them."""
        batch, lo = head.batch, head.lo
        note = self._note_of(batch.first + lo)
        hi, kind = self._cut(head, overdue, note), batch.kinds[lo]
        forward = PendingForward(self, batch, lo, hi, overdue > 0)
        self.take_out(head, hi - lo)
        is_borrowed = note is not None and note.first <= forward.first
        producer, number = self.name, forward.first
        if note is not None and is_borrowed:
            producer, number = note.producer, note.number + forward.first - note.first
        origin = Origin(producer, number, self.previous.get(producer, 0))
        self.previous[producer] = number + forward.count - 1
        self.last_producer = producer
        forward.numbers = Numbers(producer, number, number + forward.count - 1)
        self.batches_under_way += 1
        self.under_way_count += forward.count
        self.under_way_bytes += forward.size
        kind = published_kind(kind) | self.delivery.note_at(forward.first, forward.last)[0]
        in_doubt = is_borrowed or forward.first <= self.doubtful
        if in_doubt and not is_stream(target.spec.arguments):  # A stream delivers only what is safe.
            kind |= REDELIVERED
        kind |= KEPT | OVERDUE if overdue else KEPT
        contents, keys = batch.contents[lo:hi], batch.keys[lo:hi]
        target.enqueue_from(origin, contents, keys, kind, forward.size + MESSAGE_OVERHEAD * forward.count, forward)
        if not forward.waiting:
            self.on_complete(forward)

    def _note_of(self, number: int) -> Borrowed | None:
        """Returns the first note about this message, or about one behind it."""
        return next((one for one in self.borrowed if one.last >= number), None)

    def _cut(self, head: Span, overdue: int, note: Borrowed | None) -> int:
        """Returns the end of the messages of one kind, numbered in a row, that make up a batch."""
        batch, lo, size = head.batch, head.lo, 0
        end = min(lo + overdue if overdue else head.hi, lo + BATCH_MESSAGES)
        if note is not None:
            end = min(end, (note.last + 1 if note.first <= batch.first + lo else note.first) - batch.first)
        if batch.first + lo <= self.doubtful:
            end = min(end, self.doubtful - batch.first + 1)
        end = min(end, self.delivery.note_at(batch.first + lo, batch.first + end - 1)[1] - batch.first + 1)
        for at in range(lo, end):
            size += len(batch.contents[at])
            if batch.kinds[at] != batch.kinds[lo] or (size > BATCH_BYTES and at > lo):
                return at
        return end

    def on_complete(self, pending: Pending) -> None:
        """The queue has answered."""
        assert isinstance(pending, PendingForward)
        if self.deleted:
            return
        self.batches_under_way -= 1
        self.under_way_bytes -= pending.size
        self.is_paced = False
        if pending.refused:
            self.refused.append(pending)
        else:
            self.flows = not self.refused
            self.under_way_count -= pending.count
            if pending.is_overdue:
                self.expired += pending.count
            else:
                self.sent += pending.count
            self.settle(pending.batch, pending.lo, pending.hi)
            self._count(-pending.size)
            self.spools.on_progress()
        if self.refused and not self.batches_under_way:
            self._begin_anew()
        self.host.dirty[self] = None

    def _begin_anew(self) -> None:
        """Requeue what was refused, now that all batches are answered."""
        for forward in self.refused:
            self.doubtful = max(self.doubtful, forward.last)
            self.under_way_count -= forward.count
            self.ready_count += forward.count
            self.put_back(Span(forward.batch, forward.lo, forward.hi))
        self.refused.clear()
        self.previous.clear()
        self.resting = True
        self._stop()

    def _stop(self) -> None:
        """Nothing is sent for a while: publishes do not wait for it any longer."""
        self.flows = self.is_paced = False
        held, self.held = self.held, None
        if held:
            unpark(held, self)

    def _finish(self) -> None:
        """All is sent: publishes go straight to the queue again, first those that waited."""
        self.flows = self.is_paced = False
        self.previous.clear()
        while self.borrowed:
            self.durable_state.set(BORROWED + self.borrowed.popleft().first.to_bytes(8, "big"), b"")
        self.delivery.forget()
        self._count(-self.content_bytes)  # What the log said at the start was an estimate.
        held, self.held = self.held, None
        self.spools.on_empty(self)
        target = self.spools.broker.queues_by_id.get(self.target)
        if held and target is not None:
            unpark(held, target)

    # -- Lending -------------------------------------------------------------------------------------------------
    # See `spool_delivery`.

    def overdue(self, head: Span) -> int:
        """Returns how many messages at the front have expired."""
        target = self.spools.broker.queues_by_id.get(self.target)
        return 0 if target is None else self._overdue(head, target)

    def is_in_doubt(self, number: int) -> bool:
        """Returns whether the queue may have this message."""
        note = self._note_of(number)
        return number <= self.doubtful or (note is not None and note.first <= number)

    def numbers_of(self, first: int, last: int) -> tuple[bytes, int, int]:
        """Returns the producer of a message, its number there, and up to which message both are so."""
        note = self._note_of(first)
        if note is not None and note.first <= first:
            return note.producer, note.number + first - note.first, min(last, note.last)
        if note is not None:
            last = min(last, note.first - 1)
        return self.name, first, min(last, self.doubtful) if first <= self.doubtful else last

    def raise_doubt(self, number: int) -> None:
        """Messages up to this one may have been delivered to a client."""
        self.doubtful = max(self.doubtful, number)

    def has_dead_letters(self) -> bool:
        target = self.spools.broker.queues_by_id.get(self.target)
        return target is not None and target.rules.dead_letter_exchange is not None

    def settle_lent(self, span: Span) -> None:
        """Messages that were lent are done with."""
        self.settle(span.batch, span.lo, span.hi)
        self._count(-sum(map(len, span.batch.contents[span.lo : span.hi])))
        self.spools.on_progress()

    def take_back(self, span: Span) -> None:
        """Messages that were lent wait again."""
        self.ready_count += span.count
        self.put_back(span)
        self.host.dirty[self] = None

    def oldest_ms(self) -> int:
        """Returns about when the first of its messages came."""
        head = self.ready[0] if self.ready else None
        if isinstance(head, Span) and head.batch.times and not self.batches_under_way:
            return head.batch.time_at(head.lo)[0]
        return int.from_bytes(self.durable_state.table.get(SINCE, b""), "big")

    def on_deleted(self) -> None:
        held, self.held = self.held, None
        self.spools.content_bytes -= self.content_bytes
        super().on_deleted()
        for one in held or ():  # Whoever deleted the queue has taken care of its messages.
            if one.pending is not None:
                one.pending.on_safe()
