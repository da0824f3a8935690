"""One queue on its master: what waits, who takes it, and what of it the log must know.

A queue's life is a list of changes (enqueue, settle, requeue, purge), and the log holds just that list, cut into
blocks. What is here is the state those changes add up to, plus what never goes to disk: consumers, and who has which
message in hand.

Messages are numbered in the order in which they came, without reuse. `ready` holds those that wait, ascending, as
spans (contents in memory) and gaps (contents in the log). A message that is taken back goes to its old place, so order
is that of arrival, whoever had it meanwhile.

    enqueue ──▶ ready ──pump──▶ consumer ──settle──▶ gone
                  ▲                │
                  └────requeue─────┘

Nothing here waits for the disk. A block is taken with `take_block` when the log has room for another write; whatever
was enqueued until then is in it, and the publishers' `Pending` go with it. So a message may be delivered before it is
on disk: if the node dies then, its publisher has no confirm and will send it again, which is what at-least-once means.
A message settled before its block was taken is never written at all.

Memory: contents are forgotten (`page_out`) once their block is on disk and the node holds more than its cache allows;
the newest go first, because the oldest are wanted next. A gap at the front is read back with `Host.load`.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Literal, cast

from leveret.base.counters import MessageCounters
from leveret.base.range_set import merged
from leveret.broker.delivery.answers import Got, Status, unreachable
from leveret.broker.delivery.batch import PLACE_BYTES, Batch, Gap, Span
from leveret.broker.delivery.confirms import NEVER
from leveret.broker.delivery.consumer_order import ConsumerOrder
from leveret.broker.delivery.extension import Extensions
from leveret.broker.queue import ttl_and_length
from leveret.broker.queue.durable_state import DurableState
from leveret.broker.queue.hold import Parked, park
from leveret.broker.queue.paging import KEEP_BYTES, Paging
from leveret.broker.queue.state import ACCESS_LEGAL, LIFE_LEGAL, Access, Life
from leveret.metadata.model.refusals import Refusal, not_found, resource
from leveret.metadata.rules.queue_rules import PLAIN
from leveret.storage.format.queue_block import EXPIRES, NOTED, PERSISTENT, Block

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from leveret.broker.broker import AnyQueue
    from leveret.broker.delivery.batch import Shared
    from leveret.broker.delivery.confirms import Pending
    from leveret.broker.delivery.consumer import Consumer, Subscriber
    from leveret.broker.delivery.extension import E, Extension, Gate
    from leveret.broker.delivery.publish_numbers import Origin
    from leveret.broker.mirrors.manager import Mirror
    from leveret.broker.queue.host import Host
    from leveret.broker.remote.migrate import Departure
    from leveret.broker.remote.outbox import Post
    from leveret.metadata.model.records import QueueSpec
    from leveret.metadata.rules.queue_rules import QueueRules

CROWDED_AT = 4_000  # Waiting messages, with consumers present, from which publishers are slowed down.
BATCH_MESSAGES_MAX = 16_384


class Queue(Paging):
    """A queue, at its master.

    Its contents in memory are a base class and not a part, for speed: `enqueue`, `hand_over` and `settle` change them
    for every bundle of messages, and would have to look up a part each time.
    """

    __slots__ = (
        "access",
        "active_ms",
        "awaiting",
        "born_ms",
        "consumers",
        "crowded_at",
        "deleted",
        "departure",
        "durable_state",
        "exclusive_consumer",
        "extensions",
        "frozen",
        "gate",
        "former_last_block",
        "life",
        "logs",
        "mirror",
        "note_due",
        "open_through",
        "waiting_consumers",
        "parked",
        "posts",
        "requeued",
        "settled",
        "spec",
        "consumer_order",
        "unacked_count",
        "used_ms",
        "waiting",
    )

    is_local: Literal[True] = True

    def __init__(self, spec: QueueSpec, host: Host) -> None:
        self.spec = spec
        self.host = host
        self.durable = spec.durable
        # Messages with all these bits of their kind go to the log: persistent ones; `NEVER`: none, nor durable state.
        self.logs = PERSISTENT if spec.durable else NEVER
        self.mirror: Mirror | None = None
        self.gate: Gate | None = None  # While it has mirrors: what of it may be handed out.
        self.extensions: Extensions | None = None  # What was added to it: see `features`.
        self.open_up_to(NEVER)
        self.born_ms = host.now_ms  # When it was made here, by the host's clock; 0: when the node started.
        self.active_ms = 0  # When it was last touched; 0: not yet.
        self.access = Access.OPEN  # Only `_change_access` changes this and the next two.
        self.frozen = False  # Nothing is handed out.
        self.parked: list[Parked] | None = None  # Publishes that wait; None: they are taken.
        self.epoch = 1
        self.number = 0  # Of the last block taken.
        self.next_seq = 1
        self.ready: deque[Span | Gap] = deque()
        self.ready_count = 0
        self.ready_bytes = 0  # Of their bodies; counted only where there is a limit to it.
        self.unacked_count = 0
        self.memory_bytes = 0
        self.shared_bytes = 0  # Of these, what is counted for all queues together that have it.
        self.delivered_through = 0
        self.noted_through = 0  # What of it the log knows.
        self.note_due = False
        self.open: Batch | None = None  # The batch that publishes are added to until its block is taken.
        self.settled: list[tuple[int, int]] = []
        self.requeued: list[tuple[int, int]] = []
        self.durable_state = DurableState(self)
        self.awaiting: list[Pending] = []  # What its next block is awaited by.
        self.posts: list[Post] | None = None  # Where it has mirrors: which messages of its next block are awaited.
        self.loading: Gap | None = None
        self.consumers: deque[Consumer] = deque()
        self.exclusive_consumer: Consumer | None = None
        self.crowded_at = NEVER
        self.life = Life.HERE  # Only `_change_life` changes this and the next one.
        self.deleted = False  # It is `Life.GONE`.
        self.consumer_order: ConsumerOrder | None = None  # Where its consumers are not all alike.
        self.applied_rules, self.policy_version = PLAIN, host.policy_version  # See `policy_refresh`.
        self.timed = False  # Its messages, or some of them, grow old.
        self.has_upkeep = False  # It does something with its messages by itself: see `upkeep`.
        self.departure: Departure | None = None  # It is on its way to another node.
        self.waiting: list[Callable[[AnyQueue], None]] = []  # Questions that are put off: see `is_deferring`.
        self.waiting_consumers: set[Consumer] = set()  # Who wants to consume is among those that wait.
        self.former_last_block = (0, 0)  # Epoch and number of the last block of the master before: see `handover`.
        self.totals = MessageCounters()
        self.used_ms = host.now_ms  # When somebody last asked for it, or consumed from it.
        self.set_rules(host.rules_of(spec))

    def __repr__(self) -> str:
        return f"Queue({self.spec.vhost!r}, {self.spec.name!r})"

    # -- State ---------------------------------------------------------------------------------------------------
    # See `queue_state`.

    def _change_access(self, to: Access) -> None:
        assert to in ACCESS_LEGAL[self.access], f"{self} cannot be {to.name} after {self.access.name}"
        self.access = to
        self.frozen = to is Access.FROZEN or to is Access.HELD
        waits = to is Access.HELD or to is Access.SEALED
        self.parked = [] if waits else None

    def _change_life(self, to: Life) -> None:
        assert to in LIFE_LEGAL[self.life], f"{self} cannot be {to.name} after {self.life.name}"
        self.life = to
        self.deleted = to is Life.GONE

    def freeze(self) -> None:
        """Hands out nothing until it is thawed. A queue that is held is frozen anyway."""
        if not self.frozen:
            self._change_access(Access.FROZEN)

    def thaw(self) -> None:
        """Hands out messages again, unless the queue is held."""
        if self.access is Access.FROZEN:
            self._change_access(Access.OPEN)

    def hold(self, first: Sequence[Parked] = ()) -> None:
        """Has publishes and questions wait until `resume`, and hands out nothing. `first`: publishes that came before
        all that wait already."""
        if self.access is not Access.HELD:
            self._change_access(Access.HELD)
        assert self.parked is not None
        self.parked[:0] = first

    def resume(self) -> tuple[list[Parked], list[Callable[[AnyQueue], None]]]:
        """Ends holding and sealing. Gives the publishes and the questions that waited: see `parking`."""
        parked, waiting = self.parked, self.waiting
        self.waiting = []
        if parked is not None:
            is_cut_off = self.mirror is not None and not self.mirror.member.serving
            self._change_access(Access.FROZEN if is_cut_off else Access.OPEN)
        return parked or [], waiting

    def begin_move(self, departure: Departure) -> None:
        """Goes to another node from now on. Where it is being deleted, too, that goes on."""
        self.departure = departure
        if self.life is Life.HERE:
            self._change_life(Life.MOVING)

    def seal(self) -> None:
        """The node it moves to has all its messages: publishes wait until it is agreed where the queue is."""
        self._change_access(Access.SEALED)

    def end_move(self) -> None:
        """Its move has failed, or is done, or was overtaken by its deletion."""
        self.departure = None
        if self.life is Life.MOVING:
            self._change_life(Life.HERE)

    def begin_deletion(self) -> None:
        """The queue is being deleted: whoever asks for it waits until there is none."""
        if self.life is not Life.DELETING:
            self._change_life(Life.DELETING)

    def set_spec(self, spec: QueueSpec) -> None:
        """The metadata says something else of the same queue."""
        self.spec = spec

    def arrive(self, spec: QueueSpec) -> None:
        """The queue has come to this node. What it brought along was not published now."""
        self.spec, self.totals = spec, MessageCounters()

    def begin_epoch(self, after: int) -> None:
        """Its epoch is later than this one: copies that it had may turn up again, one day."""
        self.epoch = max(self.epoch, after + 1)

    # -- Mirrors -------------------------------------------------------------------------------------------------

    def lead(self, mirror: Mirror, epoch: int, number: int, former_last_block: tuple[int, int]) -> None:
        """Its blocks go round a ring from now on, after the one with this number."""
        self.mirror, self.epoch, self.number, self.former_last_block = mirror, epoch, number, former_last_block
        self.logs = 0  # The mirrors know only what is in blocks.
        if self.posts is None:
            self.posts = []

    def set_gate(self, gate: Gate) -> None:
        """From now on the gate decides what may be handed out."""
        self.gate = gate

    def open_up_to(self, number: int) -> None:
        """No message with a higher number may be handed out yet."""
        self.open_through = number

    def stop_leading(self, parked: Sequence[Parked]) -> list[Pending]:
        """This node leads the queue no longer. Gives who waits for a block that will not be.

        Until the view says who leads it now, it takes nothing in and gives nothing out: the block of what would come in
        would be in no ring, and its publisher must not hear that it is safe. `parked`: publishes that came before what
        waits already.
        """
        awaiting = self.take_awaiting()
        self.mirror = None
        self.hold(parked)
        return awaiting

    def leave_ring(self, awaiting: list[Pending]) -> None:
        """Become a queue without mirrors again.

        `awaiting`: publishes that wait for blocks of the ring; they are confirmed with the queue's next block, which is
        written behind those.
        """
        self.awaiting[:0] = awaiting
        self.mirror = self.posts = None
        if self.gate is not None:
            self.gate.end()
            self.gate = None
        self.open_up_to(NEVER)
        self.logs = PERSISTENT if self.durable else NEVER
        self.note_deliveries()  # So that there is a next block.
        self.thaw()
        self.set_pressed(False)

    # -- Extensions ----------------------------------------------------------------------------------------------

    def extension(self, kind: type[E]) -> E | None:
        """Return the queue's extension of this kind, if it has one."""
        return None if self.extensions is None else self.extensions.find(kind)

    def extend(self, extension: Extension) -> None:
        known = () if self.extensions is None else self.extensions.all.values()
        self.extensions = Extensions([*known, extension])

    def remove_extension(self, extension: Extension) -> None:
        known = () if self.extensions is None else self.extensions.all.values()
        rest = [one for one in known if one is not extension]
        self.extensions = Extensions(rest) if rest else None

    def tell_delivered(self, taker: Consumer | str | None, first: int, last: int) -> None:
        """Messages were given to somebody who is not a consumer: to a get, or to a reader with a name."""
        if self.extensions is not None:
            for tell in self.extensions.on_delivered:
                tell(taker, first, last)

    def tell_refused(self, count: int, pending: Pending | None) -> None:
        """Messages were not taken, because the queue is full."""
        if self.extensions is not None:
            for tell in self.extensions.on_refused:
                tell(count, pending)

    def tell_safe(self, batch: Batch) -> None:
        """The block with this batch is where it has to be, and its publishers are being told."""
        if self.extensions is not None:
            for tell in self.extensions.on_safe:
                tell(batch)

    def tell_before_hand_out(self) -> None:
        """Let extensions take out messages that must not be delivered."""
        if self.extensions is not None:
            for tell in self.extensions.before_hand_out:
                tell()

    def tell_gone(self, reason: str) -> None:
        """The queue is no longer this node's business."""
        if self.extensions is not None:
            for tell in self.extensions.on_gone:
                tell(reason)

    def _tell_unserved(self, reason: str, first: int, last: int, kind: str = "") -> None:
        if self.extensions is not None:
            for tell in self.extensions.on_unserved:
                tell(reason, first, last, kind)

    def _tell_settled(self, first: int, last: int) -> None:
        if self.extensions is not None:
            for tell in self.extensions.on_settled:
                tell(first, last)

    def _tell_returned(self, first: int, last: int) -> None:
        if self.extensions is not None:
            for tell in self.extensions.on_returned:
                tell(first, last)

    def _tell_loaded(self) -> None:
        if self.extensions is not None:
            for tell in self.extensions.on_loaded:
                tell()

    def _tell_page_out(self) -> None:
        if self.extensions is not None:
            for tell in self.extensions.on_page_out:
                tell()

    # -- Publishing ----------------------------------------------------------------------------------------------

    def enqueue(self, contents: list[bytes], keys: list[bytes], kind: int, size: int, pending: Pending | None) -> bool:
        """Messages of one kind, at the end. True: the queue is crowded, slow down."""
        if self.parked is not None:
            return park(self.parked, contents, keys, kind, size, pending)
        if self.policy_version != self.host.policy_version:
            self.refresh_rules()
        if self.has_upkeep and self._is_refused(contents, keys, kind, pending):
            return False
        batch = self.open
        # Messages of a batch that was carried over may have been read: none is added to them that waits for the disk.
        if (
            batch is None
            or (batch.carried and kind & self.logs == self.logs)
            or (len(batch.contents) >= BATCH_MESSAGES_MAX and not batch.stored)
        ):
            if batch is not None and self.timed:
                batch.stamp(self.host.wall_ms)  # Only the next one will be.
            batch = self.open = Batch(self.next_seq)
        count, lo = len(contents), len(batch.contents)
        batch.contents += contents
        batch.keys += keys
        batch.kinds += bytes((kind,)) * count
        if kind & NOTED:
            kind = self._note_kind(batch, kind, count)
        batch.left += count
        batch.size += size
        self.memory_bytes += size
        self.next_seq += count
        self.ready_count += count
        host = self.host
        shared = host.sharing
        if shared is not None:
            if shared.contents is contents:
                size = self._share(batch, shared, count, size)
            else:  # A letter, because one of the queues has turned them away.
                shared = None
        host.content_bytes += size
        ready = self.ready
        last = ready[-1] if ready else None
        if last.__class__ is Span and last.batch is batch and last.hi == lo:
            last.hi += count
        else:
            ready.append(Span(batch, lo, lo + count))
        if kind & self.logs == self.logs:
            batch.stored = True
            if shared is not None:
                size += shared.take_unlogged()
            batch.unlogged_bytes += size
            host.unlogged_bytes += size
            if pending is not None:
                pending.waiting += 1
                self.awaiting.append(pending)
                if self.posts is not None:
                    self.posts.append((self.next_seq - count, count, pending))
        self.totals.published += count
        host.dirty[self] = None
        if self.extensions is not None:
            for tell in self.extensions.on_enqueued:
                tell(count, kind, pending)
        return self.ready_count > self.crowded_at

    def _share(self, batch: Batch, shared: Shared, count: int, size: int) -> int:
        """Other queues get these contents too. Gives what they cost here besides."""
        own = PLACE_BYTES * count
        if batch.shares is None:
            batch.shares = []
        batch.shares.append(shared)
        batch.shared_bytes += size - own
        self.shared_bytes += size - own
        return own

    def enqueue_from(
        self, origin: Origin, contents: list[bytes], keys: list[bytes], kind: int, size: int, pending: Pending
    ) -> bool:
        """Enqueue messages of a producer, except those that it has sent before."""
        if self.parked is not None:
            return park(self.parked, contents, keys, kind, size, pending, origin)
        return self.host.features.enqueue_once(self, origin, contents, keys, kind, size, pending)

    def _is_refused(self, contents: list[bytes], keys: list[bytes], kind: int, pending: Pending | None) -> bool:
        """Count a publish against the limits; True if it exceeds them, and the publisher is to know."""
        if self.rules.rejects and ttl_and_length.turn_away(self, contents, keys, kind, pending):
            return True
        if self.rules.max_bytes is not None:
            self.ready_bytes += ttl_and_length.bodies(contents)
        return False

    def _note_kind(self, batch: Batch, kind: int, count: int) -> int:
        if kind & EXPIRES:
            self.watch_ages()
        return batch.note_kind(kind, count)

    def came_at(self, times: list[tuple[int, int]], count: int) -> None:
        """The last `count` messages came at these times: for each stretch the place of its first message, and when.
        What lies before the first of them says when that came."""
        batch = self.open
        if batch is not None and times:
            base = len(batch.contents) - count
            known = [one for one in times if one[0] <= 0][-1:]
            for at, ms in [*known, *(one for one in times if one[0] > 0)]:
                batch.times.append((base + max(at, 0) if batch.times else 0, ms))
            batch.stamped = len(batch.contents)

    def on_kind(self, kind: int) -> None:
        """Note the flags of the first message, after it was read from the log."""
        if kind & EXPIRES:
            self.watch_ages()
            self.host.dirty[self] = None

    def refresh(self, policy_version: int, rules: QueueRules) -> None:
        """Policies have changed so many times, and this holds now."""
        self.policy_version = policy_version
        self.set_rules(rules)

    def set_rules(self, rules: QueueRules) -> None:
        """Apply other rules to the queue from now on."""
        if rules == self.applied_rules:
            return
        if rules.expires_ms is not None:
            self.host.idle.set(self, self.host.now_ms + rules.expires_ms)
        counted = self.applied_rules.max_bytes is not None
        self.applied_rules = rules
        if rules.single_active:
            self.consumer_order = ConsumerOrder(self)
        self.timed = self.timed or rules.ttl_ms is not None
        limits = (rules.max_length, rules.max_bytes, rules.delivery_limit)
        self.has_upkeep = self.timed or any(limit is not None for limit in limits)
        if rules.max_bytes is not None and not counted:
            self.count_bytes()
        self.host.features.apply(self, rules)
        self.host.dirty[self] = None

    def set_pressed(self, pressed: bool) -> None:
        """Note whether mirrors do not keep up, so that every publisher should wait."""
        self.crowded_at = -1 if pressed else CROWDED_AT if self.consumers else NEVER

    def is_crowded(self) -> bool:
        """Tell whether publishers that were told to slow down should still wait."""
        return self.parked is not None or self.ready_count * 2 > self.crowded_at

    # -- Questions -----------------------------------------------------------------------------------------------
    # Answered at once, unless the queue is about to go, or to have another home. At another node (`RemoteQueue`) they
    # take a while, hence the form.

    def catch_up(self) -> None:
        """Lets all that was done to the queue in this turn take effect: limits, times to live, hand-out.

        Publishes gather until the end of the turn. A method that asks or changes something must not come before them:
        a get would take what a waiting consumer is to have, and a purge would count what a limit has dropped.
        """
        if (self.consumers or self.has_upkeep) and self in self.host.dirty and not self.deleted:
            self.refresh_rules()
            self.pump()

    def later(self, call: Callable[[AnyQueue], None]) -> bool:
        """True: the question is put off until it is clear where the queue is. An answer of now might not hold there."""
        if not self.is_deferring:
            return False
        self.waiting.append(call)
        return True

    @property
    def is_deferring(self) -> bool:
        """Tell whether questions wait until it is clear where the queue is, or that it is gone."""
        return self.parked is not None or self.life is Life.MOVING or self.life is Life.DELETING

    def _gone(self) -> Refusal:
        """Return the refusal for a queue that was deleted while a client waited."""
        return not_found("queue", self.spec.name, self.spec.vhost)

    def touch(self) -> None:
        """Note that the queue is used, so that it does not expire."""
        self.used_ms = self.host.now_ms

    def status(self, then: Callable[[Status | Refusal], None]) -> None:
        self.touch()
        if self.departure is not None and self.parked is None:  # That may take long, and so much is known.
            then(Status(self.ready_count + self.departure.unacked, len(self.departure.consumers)))
        elif not self.later(lambda queue: queue.status(then)):
            self.catch_up()
            then(self._gone() if self.deleted else Status(self.ready_count, len(self.consumers)))

    def purge_all(self, then: Callable[[int | Refusal], None]) -> None:
        if not self.later(lambda queue: queue.purge_all(then)):
            self.catch_up()
            then(self._gone() if self.deleted else self.purge())

    def fetch(self, no_ack: bool, wanted: Callable[[], bool], then: Callable[[Got | Refusal | None], None]) -> None:
        """The first message, once it is read back if need be, unless it is no longer wanted by then."""
        if not wanted():
            then(None)
            return
        successor = self.host.successor(self) if self.deleted else None
        if successor is not None:
            successor.fetch(no_ack, wanted, then)
            return
        if self.later(lambda queue: queue.fetch(no_ack, wanted, then)):
            return
        if self.deleted:
            then(self._gone())
            return
        if self.frozen:
            then(unreachable(self.spec))
            return
        self.touch()
        self.catch_up()
        got = self.get()
        if isinstance(got, Gap):
            self.host.when_loaded(self, lambda: self.fetch(no_ack, wanted, then))
        elif got is None:
            self.totals.got_nothing += 1
            self.active_ms = self.host.now_ms
            then(None)
        else:
            self._count_got(*got, no_ack)
            then(Got(*got, self.ready_count, self))

    def _count_got(self, batch: Batch, at: int, no_ack: bool) -> None:
        if no_ack:
            self.totals.got_no_ack += 1
        else:
            self.totals.got += 1
        if batch.redelivered:
            self.totals.redelivered += batch.redelivered_within(at, at + 1)

    def subscribe(self, consumer: Consumer, then: Callable[[Refusal | None], None]) -> None:
        if self.later(lambda queue: self._adopt_orphan(cast("Subscriber", consumer), queue, then)):
            self.waiting_consumers.add(consumer)  # Unless its client ends it before that.
            return
        if self.deleted:
            then(self._gone())
            return
        alone = consumer.exclusive and (bool(self.consumers) or self.rules.single_active)
        if self.exclusive_consumer is not None or alone:
            then(Refusal(403, f"{resource('queue', self.spec.name, self.spec.vhost)} in exclusive use"))
            return
        self.catch_up()
        self.add_consumer(consumer)
        then(None)

    def _adopt_orphan(self, consumer: Subscriber, queue: AnyQueue, then: Callable[[Refusal | None], None]) -> None:
        """Subscribe a consumer that waited, now that it is clear where the queue is.

        Consumers of other nodes do not come here: their `OwnerEnd` holds them back.
        """
        if consumer in self.waiting_consumers:
            self.waiting_consumers.remove(consumer)
            consumer.queue = queue
            queue.subscribe(consumer, then)

    def unsubscribe(self, consumer: Consumer, then: Callable[[], None]) -> None:
        """Ends a subscription, after what came before has been handed out."""
        self.catch_up()
        then()
        self.remove_consumer(consumer)

    def set_limit(self, consumer: Consumer) -> None:
        """Do nothing: local consumers are asked for their room at each delivery."""

    # -- Consumers -----------------------------------------------------------------------------------------------

    def add_consumer(self, consumer: Consumer) -> None:
        if consumer.exclusive:
            self.exclusive_consumer = consumer
        self.consumers.append(consumer)
        if self.consumer_order is None and consumer.priority:
            self.consumer_order = ConsumerOrder(self)
        elif self.consumer_order is not None:
            self.consumer_order.choose()
        self.touch()
        self.crowded_at = CROWDED_AT
        self.host.dirty[self] = None

    def remove_consumer(self, consumer: Consumer) -> None:
        if self.departure is not None and consumer in self.departure.consumers:
            self.departure.consumers.remove(consumer)
            return
        if consumer in self.waiting_consumers:
            self.waiting_consumers.remove(consumer)
            return
        self.consumers.remove(consumer)
        if self.consumer_order is not None:
            self.consumer_order.choose()
        if self.exclusive_consumer is consumer:
            self.exclusive_consumer = None
        if not self.consumers:
            self.touch()
            self.crowded_at = NEVER
            if self.spec.auto_delete and not self.deleted:
                self.host.on_unused(self)

    def take_consumers(self) -> list[Consumer]:
        """All its consumers, who have to go on elsewhere or wait: it has none any more."""
        consumers = list(self.consumers)
        self.consumers.clear()
        self.exclusive_consumer = None
        if self.consumer_order is not None:
            self.consumer_order.choose()
        return consumers

    def on_deleted(self) -> None:
        """The queue is gone from the metadata: nothing of it counts any longer."""
        self.tell_gone("deleted")
        self._change_life(Life.GONE)
        for consumer in list(self.consumers):
            consumer.on_queue_deleted()
        self.consumers.clear()
        self.let_go_of_all()

    def let_go_of_all(self) -> None:
        """No message of it is this object's business any more."""
        self.tell_gone("elsewhere")
        if not self.deleted:
            self._change_life(Life.GONE)
        self.extensions = None
        self.ready.clear()
        self.host.content_bytes -= self.memory_bytes - self.shared_bytes
        self.memory_bytes = self.shared_bytes = self.ready_count = 0
        if self.open is not None:
            self._on_taken(self.open)
        self.loading = self.open = None
        # Whoever deleted the queue has taken care of its messages; or they are safe where it has gone.
        for pending in self.awaiting:
            pending.on_safe()
        self.awaiting.clear()

    # -- Delivering ----------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Hand out what waits, as far as the consumers have room."""
        if self.frozen:
            return
        if self.extensions is not None:
            for tell in self.extensions.on_turn:
                tell()
        if self.has_upkeep:
            ttl_and_length.before_pump(self)
            self._hand_out()
            ttl_and_length.after_pump(self)
        else:
            self._hand_out()

    def _hand_out(self) -> None:
        ready, consumers = self.ready, self.consumers
        while ready and consumers:
            head = ready[0]
            if head.first > self.open_through and not self._opens(head):
                break
            if head.__class__ is Gap:
                self.want(head)
                return
            assert isinstance(head, Span)
            if (
                self.timed
                and (head.batch.expires or self.rules.max_priority)
                and not ttl_and_length.is_fresh(self, head)
            ):
                continue
            if len(consumers) == 1:
                consumer = consumers[0]
                room = consumer.room(head.batch.average_bytes())
                if room <= 0:
                    break
                self.hand_over(consumer, head, min(room, head.hi - head.lo))
            elif not (self._share_out(head) if self.consumer_order is None else self.consumer_order.share(head)):
                break
        if len(ready) > 1 and ready[1].__class__ is Gap and consumers:
            self.want(ready[1])
        if self.gate is not None:
            self.gate.check()

    def _opens(self, head: Span | Gap) -> bool:
        """Tell whether the first message, and those behind it, may be delivered before they are written."""
        return self.gate is not None and self.gate.open_unwritten(head.first)

    def _share_out(self, head: Span) -> bool:
        """Several consumers: in turn, one message each. False if none has room."""
        consumers = self.consumers
        average_bytes = head.batch.average_bytes()
        served, passed_over, last = 0, 0, consumers[0]
        for _ in range(len(consumers)):
            consumer = consumers[0]
            consumers.rotate(-1)
            if consumer.room(average_bytes) > 0:
                self.hand_over(consumer, head, 1)
                served, passed_over, last = served + 1, 0, consumer
                if head.lo == head.hi or head.first > self.open_through:
                    return True
            else:
                passed_over += 1
        # Those behind the last one served are next. Where consumers share a prefetch, one would take all of it else.
        consumers.rotate(passed_over)
        if served == 1:  # Nobody to share with: all it can take, at once.
            room = last.room(average_bytes)
            if room > 0:
                self.hand_over(last, head, min(room, head.hi - head.lo))
        return served > 0

    def hand_over(self, consumer: Consumer, head: Span, count: int) -> None:
        batch, lo = head.batch, head.lo
        if batch.first + lo + count - 1 > self.open_through:
            count = self.open_through - batch.first - lo + 1
        hi = head.lo = lo + count
        if hi == head.hi:
            self.ready.popleft()
        self.ready_count -= count
        if self.has_upkeep:
            self.take_bytes(batch, lo, hi)
        through = batch.first + hi - 1
        if through > self.delivered_through:
            self.delivered_through = through
        consumer.deliver(batch, lo, hi)
        if self.extensions is not None:
            for tell in self.extensions.on_delivered:
                tell(consumer, batch.first + lo, through)
        if batch.redelivered:
            self.totals.redelivered += batch.redelivered_within(lo, hi)
        if consumer.no_ack:
            self.totals.delivered_no_ack += count
            self.settle(batch, lo, hi)
        else:
            self.totals.delivered += count
            self.unacked_count += count

    def get(self) -> tuple[Batch, int] | Gap | None:
        """The first waiting message, now unacknowledged; or the gap it is in, to be loaded first, or one that stands
        for it until it may be handed out; or None."""
        self.refresh_rules()
        if self.has_upkeep:
            ttl_and_length.before_pump(self)
        if not self.ready:
            return None
        head = self.ready[0]
        if head.first > self.open_through and not self._opens(head):
            assert self.gate is not None
            return self.gate.want(head.first)
        if isinstance(head, Gap):
            self.want(head)
            return head
        batch, at = head.batch, head.lo
        self.take_bytes(batch, at, at + 1)
        head.lo += 1
        if head.lo == head.hi:
            self.ready.popleft()
        self.ready_count -= 1
        self.unacked_count += 1
        self.delivered_through = max(self.delivered_through, batch.first + at)
        self.tell_delivered(None, batch.first + at, batch.first + at)
        self.host.dirty[self] = None  # The log is to know of it.
        if self.timed:
            ttl_and_length.before_pump(self)  # So that nobody is told of more that would not be given.
        return batch, at

    # -- Settling ------------------------------------------------------------------------------------------------

    def settle_delivered(self, batch: Batch, lo: int, hi: int) -> None:
        """A consumer is done with messages it had in hand."""
        self.unacked_count -= hi - lo
        self.totals.acked += hi - lo
        self.settle(batch, lo, hi)

    def settle_got(self, batch: Batch, at: int) -> None:
        """Settle a message that basic.get fetched with automatic acknowledgement."""
        self.unacked_count -= 1
        self.settle(batch, at, at + 1)

    def count_acked(self, count: int) -> None:
        """Count messages as acknowledged that are settled by their numbers."""
        self.unacked_count -= count
        self.totals.acked += count

    def count_unacked(self, count: int) -> None:
        """Messages that were taken out of those that wait are out with somebody."""
        self.unacked_count += count

    def on_reserved(self, count: int) -> None:
        """So many messages were taken out of `ready`, wherever they were, and are out with somebody."""
        self.count_unacked(count)
        self.ready_count = sum(entry.count for entry in self.ready)
        self.count_bytes()

    def discard(self, batch: Batch, lo: int, hi: int) -> None:
        """A consumer rejected messages for good."""
        self.unacked_count -= hi - lo
        if batch.paged and self.rules.dead_letter_exchange is not None and not self.deleted:
            self.host.dead_letters.send_unread(self, batch.first + lo, batch.first + hi - 1, "rejected")
        else:
            self.dead_letter_or_drop(batch, lo, hi, "rejected")

    def dead_letter_or_drop(self, batch: Batch, lo: int, hi: int, reason: str) -> None:
        """These messages, which neither wait nor are out with anybody, leave unserved."""
        if self.rules.dead_letter_exchange is None or self.deleted:
            self.settle_unserved(batch, lo, hi, reason)
        else:
            self.host.dead_letters.send(self, batch, lo, hi, reason)

    def put_back_dead_letters(self, batch: Batch, lo: int, hi: int) -> None:
        """Messages that were to leave stay, where they were."""
        self.ready_count += hi - lo
        if self.rules.max_bytes is not None:
            self.ready_bytes += ttl_and_length.bodies(batch.contents[lo:hi])
        self.put_back(Span(batch, lo, hi))
        self.host.dirty[self] = None

    def put_back_gap(self, gap: Gap) -> None:
        """Likewise, where only the log has them."""
        self.ready_count += gap.count
        self.put_back(gap)
        self.host.dirty[self] = None

    def take_first(self, head: Span, count: int) -> tuple[Batch, int, int]:
        """Takes the first of those that wait out of these."""
        batch, lo = head.batch, head.lo
        head.lo += count
        if head.lo == head.hi:
            self.ready.popleft()
        self.count_out(batch, lo, lo + count)
        return batch, lo, lo + count

    def drop_first(self, head: Span, count: int, reason: str) -> None:
        """The first of those that wait leave unserved."""
        self.dead_letter_or_drop(*self.take_first(head, count), reason)

    def drop_last(self, span: Span, count: int, reason: str) -> None:
        """The last of those that wait leave unserved."""
        batch, hi = span.batch, span.hi
        span.hi -= count
        if span.lo == span.hi:
            self.ready.pop()
        self.count_out(batch, hi - count, hi)
        self.dead_letter_or_drop(batch, hi - count, hi, reason)

    def drop_gap(self, gap: Gap, count: int) -> int:
        """Drop that many messages, or all, of a gap without holes at the head; no dead letters. Return the count."""
        count = min(count, gap.count)
        self.settle_numbers(gap.first, gap.first + count - 1, "maxlen")
        self.ready_count -= count
        gap.first += count
        gap.count -= count
        if not gap.count:
            self.ready.popleft()
        self.stop_loading(gap)
        return count

    def settle_numbers(self, first: int, last: int, reason: str = "") -> None:
        """Messages that only the log has are gone; for a reason, if nobody has acknowledged them."""
        if reason:
            self._tell_unserved(reason, first, last)
        self.settled.append((first, last))
        self._tell_settled(first, last)
        self.host.dirty[self] = None

    def settle_unserved(self, batch: Batch, lo: int, hi: int, reason: str, kind: str = "") -> None:
        """These messages are gone, and nobody has acknowledged them."""
        self._tell_unserved(reason, batch.first + lo, batch.first + hi - 1, kind)
        self.settle(batch, lo, hi)

    def settle(self, batch: Batch, lo: int, hi: int) -> None:
        """These messages are gone."""
        if self.deleted:
            return
        first, last = batch.first + lo, batch.first + hi - 1
        if self.extensions is not None:
            self._tell_settled(first, last)
        if batch.stored:
            settled = self.settled
            if settled and settled[-1][1] == first - 1:
                settled[-1] = (settled[-1][0], last)
            else:
                settled.append((first, last))
        elif self.extensions is not None:
            for tell in self.extensions.on_settlement:
                tell([(first, last)])
        self._let_go(batch, hi - lo)
        self.host.dirty[self] = None

    def requeue(self, batch: Batch, lo: int, hi: int, shown: bool = True, counted: bool = True) -> None:
        """A consumer gives messages back: to their old places, marked as redelivered if it was shown them."""
        self.refresh_rules()
        count = hi - lo
        self.unacked_count -= count
        self.ready_count += count
        if self.rules.max_bytes is not None and not batch.paged:
            self.ready_bytes += ttl_and_length.bodies(batch.contents[lo:hi])
        first, last = batch.first + lo, batch.first + hi - 1
        counted = counted and shown
        # Where others were given later ones meanwhile, only the mark tells why this one comes out of order.
        shown = shown or last < self.delivered_through
        if self.extensions is not None and shown:
            for tell in self.extensions.on_failed if counted else self.extensions.on_recalled:
                tell(batch, lo, hi)
        if shown:
            batch.mark_redelivered(lo, hi)
            if batch.stored:
                self.requeued.append((first, last))
        elif not batch.paged and not batch.redelivered_within(lo, hi):  # Else somebody was shown them before.
            self.delivered_through = min(first - 1, self.delivered_through)
        self._tell_returned(first, last)
        self._put_back_again(Span(batch, lo, hi))
        self.host.dirty[self] = None

    def _put_back_again(self, span: Span) -> None:
        """Put unacknowledged messages back, seen by a client or not. Their contents may be in the log only by now."""
        batch = span.batch
        if batch.paged:
            for piece in reversed(span.alike()):
                self.put_back(Gap(piece.first, piece.last, piece.count, batch.is_marked(piece.lo)))
        else:
            self.put_back(span)

    def put_back(self, entry: Span | Gap) -> None:
        """To the place that its numbers have among those that wait."""
        ready, first, at = self.ready, entry.first, 0
        while at < len(ready) and ready[at].first < first:
            at += 1
        ready.insert(at, entry)

    def requeue_numbers(self, first: int, last: int, shown: bool) -> None:
        """Likewise, of messages that only the log has, and no consumer has failed with."""
        self.unacked_count -= last - first + 1
        if shown:
            self.note_requeued([(first, last)])
        self._tell_returned(first, last)
        self.put_back_gap(Gap(first, last, last - first + 1, redelivered=shown))

    def requeue_many(self, pieces: list[tuple[Batch, int, int]], shown: bool = True, counted: bool = True) -> None:
        """Many at once (a channel closed): last first, so that each insertion is near the front."""
        for batch, lo, hi in sorted(pieces, key=lambda piece: -(piece[0].first + piece[1])):
            self.requeue(batch, lo, hi, shown, counted)

    def purge(self) -> int:
        """Drop all that waits; what is out with consumers stays theirs."""
        count = self.ready_count
        for entry in self.ready:
            if isinstance(entry, Span):
                self.settle_unserved(entry.batch, entry.lo, entry.hi, "purged")
            else:
                self.settle_numbers(entry.first, entry.last, "purged")
        self.ready.clear()
        self.ready_count = self.ready_bytes = 0
        self.loading = None
        self.host.dirty[self] = None
        return count

    # -- The log -------------------------------------------------------------------------------------------------

    def has_changes(self) -> bool:
        """Tell whether `take_block` would return a block."""
        if self.settled or self.requeued or self.note_due or self.durable_state.changes:
            return True
        return self.open is not None and self.open.stored

    def take_block(self, time_ms: int) -> Block | None:
        """Return a block with all changes since the last one; None if there is nothing for the log."""
        batch, self.open = self.open, None
        if batch is not None and not batch.stored:
            batch = None
        if batch is None and not self.has_changes():
            return None
        if batch is not None:
            self._on_taken(batch)
            self.totals.written += len(batch.contents)
        self.number += 1
        self.note_due, self.noted_through = False, self.delivered_through
        settled, self.settled = merged(self.settled), []
        if self.extensions is not None:
            for tell in self.extensions.on_settlement:
                tell(settled)
        requeued, self.requeued = merged(self.requeued), []
        through, changes = self.delivered_through, self.durable_state.take()
        block = Block(self.spec.id, self.epoch, self.number, time_ms, batch, settled, requeued, through, None, changes)
        if self.extensions is not None:
            for add_to in self.extensions.on_block:
                add_to(block)
        return block

    def note_deliveries(self) -> None:
        """There is to be a next block, which says what was delivered."""
        self.note_due = True

    def note_through(self, number: int) -> None:
        """The block that is being taken says that messages up to this one were delivered."""
        self.noted_through = number

    def note_requeued(self, ranges: Iterable[tuple[int, int]]) -> None:
        """The next block says that these were given back."""
        self.requeued += ranges

    def raise_delivered(self, through: int) -> None:
        """Messages up to this one may have been delivered, by another node."""
        self.delivered_through = max(self.delivered_through, through)

    def lower_delivered(self, through: int) -> None:
        """No message with a higher number than this was delivered, after all."""
        self.delivered_through = min(self.delivered_through, through)

    def take_awaiting(self) -> list[Pending]:
        """Take the publishes that wait for the block that is being taken, or for one that is not needed."""
        awaiting, self.awaiting = self.awaiting, []
        return awaiting

    def take_posts(self) -> list[Post]:
        """Take the confirms that are due for messages of the block that is being taken."""
        posts = self.posts
        if not posts:
            return []
        self.posts = []
        return posts

    def drop_last_post(self) -> None:
        """Forget the last due confirm: the caller keeps account of those messages itself."""
        if self.posts:
            self.posts.pop()

    def await_block(self, pending: Pending) -> None:
        """Is told when the queue's next block is safe."""
        self.awaiting.append(pending)

    def restore_state(self, table: dict[bytes, bytes]) -> None:
        """Its durable state has come from its log, or from where it was. All its messages wait."""
        self.durable_state.restore(table)
        self.host.features.restore(self)

    def page_out(self) -> None:
        super().page_out()
        self._tell_page_out()

    def _on_taken(self, batch: Batch) -> None:
        self.host.unlogged_bytes -= batch.unlogged_bytes
        batch.unlogged_bytes = 0

    def end_batch(self) -> None:
        """Let the next message begin another batch, if the open one has nothing for the log."""
        if self.open is not None and not self.open.stored:
            self.open = None

    def close_batch(self) -> None:
        """The turn is over: a batch with nothing for the log need not stay open.

        Nobody takes anything of it: then it does, until it has some size. A backlog of large batches costs less than
        one of small ones, and its lists are given back to the system when it is gone: see `node.allocator`. Where
        messages leave by themselves, one after the other, the contents of a large batch would outlive most of them.
        """
        self.active_ms = self.host.now_ms
        batch = self.open
        if batch is not None and not batch.stored:
            leave = self.consumers or self.has_upkeep or self.applied_rules.dead_letter_exchange is not None
            if leave or batch.left < len(batch.contents) or batch.size >= KEEP_BYTES:
                self.open = None
            else:
                batch.carried = True

    def on_logged(self, batch: Batch) -> None:
        """The block with this batch is on disk; that of a mirrored queue, on those of all mirrors that count."""
        batch.logged = True
        batch.all_logged = self.mirror is not None or batch.all_persistent()
        if self.extensions is not None:
            for tell in self.extensions.on_logged:
                tell()
        held, rules = self.host.content_bytes, self.rules
        if held > self.host.content_bytes_max or rules.wants_disk(self.ready_count, self.memory_bytes):
            self.page_out()
