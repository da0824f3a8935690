"""A queue whose messages are at this node, of whatever kind: its record, its state, its consumers and its log.

    LocalQueue            all that the broker, the log, the ring and the links need of a queue
    ├── OrderedQueue      messages wait in order, and each goes to one consumer (see `ordered_queue`)
    │   ├── Queue         and what becomes of them is in its blocks; PriorityQueue, DelayedQueue, Spool are of this kind
    │   └── DetachedQueue and what becomes of them is kept for the master
    └── StreamQueue       messages stay, and each consumer reads all of them (see `stream`)

A queue's life is a list of changes (enqueue, settle, requeue, purge), and the log holds just that list, cut into
blocks. Here are those lists until their block is taken (`take_block`), the publishers that wait for it, and the
durable state that travels in it. Which messages are waiting, who is given them, and what is forgotten when memory is
short differs by kind: the methods at the end are what each kind does itself.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Literal, cast

from leveret.base.counters import MessageCounters
from leveret.base.range_set import Wanted, merged
from leveret.base.shared_values import NO_DEQUE, NO_LIST
from leveret.base.visible_text import visible
from leveret.broker.delivery.answers import Status
from leveret.broker.delivery.confirms import NEVER
from leveret.broker.delivery.extension import Extensions
from leveret.broker.queue.durable_state import DurableState
from leveret.broker.queue.hold import Parked, park
from leveret.broker.queue.state import ACCESS_LEGAL, LIFE_LEGAL, Access, Life
from leveret.metadata.model.refusals import Refusal, not_found, resource
from leveret.metadata.rules.queue_rules import PLAIN
from leveret.storage.format.queue_block import PERSISTENT, Block

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from leveret.broker.broker import AnyQueue
    from leveret.broker.delivery.answers import Got
    from leveret.broker.delivery.batch import Batch
    from leveret.broker.delivery.confirms import Pending
    from leveret.broker.delivery.consumer import Consumer, Subscriber
    from leveret.broker.delivery.extension import E, Extension, Gate
    from leveret.broker.delivery.publish_numbers import Origin
    from leveret.broker.mirrors.manager import Mirror
    from leveret.broker.queue.host import Host
    from leveret.broker.remote.migrate import Departure
    from leveret.broker.remote.outbox import DueConfirm
    from leveret.metadata.model.records import QueueSpec
    from leveret.metadata.rules.queue_rules import QueueRules


class LocalQueue:
    """A queue at its master.

    The kinds of queues are subclasses, and their contents in memory no parts of them, for speed: `enqueue`,
    `hand_over` and `settle` change what is here for every bundle of messages, and would have to look up a part each
    time. It is no `ABC`, which would make `isinstance` slower.
    """

    __slots__ = (
        "access", "active_ms", "applied_rules", "awaiting", "born_ms", "consumers", "crowded_at", "deleted",
        "delivered_through", "departure", "durable", "durable_state", "epoch", "exclusive_consumer", "extensions",
        "former_last_block", "frozen", "gate", "has_upkeep", "host", "life", "logs", "memory_bytes", "mirror",
        "next_seq", "note_due", "noted_through", "number", "open", "parked", "policy_version", "due_confirms",
        "ready_count", "requeued", "settled", "shared_bytes", "spec", "totals", "unacked_count", "used_ms",
        "waiting", "waiting_consumers",
    )  # fmt: skip

    is_local: Literal[True] = True

    def __init__(self, spec: QueueSpec, host: Host) -> None:
        self.spec = spec
        self.host = host
        self.durable = spec.durable
        # Messages with all these bits of their kind go to the log: persistent ones; `NEVER`: none, nor durable state.
        self.logs = PERSISTENT if spec.durable else NEVER
        self.mirror: Mirror | None = None
        self.gate: Gate | None = None  # What of it may be handed out, while it has mirrors; None: everything.
        self.extensions: Extensions | None = None  # What was added to it: see `features`.
        self.born_ms = host.now_ms  # When it was made here, by the host's clock; 0: when the node started.
        self.active_ms = 0  # When it was last touched; 0: not yet.
        self.access = Access.OPEN  # Only `_change_access` changes this and the next two.
        self.frozen = False  # Nothing is handed out.
        self.parked: list[Parked] | None = None  # Publishes that wait; None: they are taken.
        self.life = Life.HERE  # Only `_change_life` changes this and the next one.
        self.deleted = False  # It is `Life.GONE`.
        self.applied_rules, self.policy_version = PLAIN, host.policy_version  # See `policy_refresh`.
        self.has_upkeep = False  # It does something with its messages by itself: see `ttl_and_length`.
        self.epoch = 1
        self.number = 0  # Of the last block taken.
        self.next_seq = 1
        self.ready_count = 0  # Messages that wait; of a stream, all that it has.
        self.unacked_count = 0
        self.memory_bytes = 0
        self.shared_bytes = 0  # Of these, what is counted for all queues together that have it.
        self.delivered_through = 0
        self.noted_through = 0  # What of it the log knows.
        self.note_due = False
        self.open: Batch | None = None  # The batch that publishes are added to until its block is taken.
        self.settled: list[tuple[int, int]] = NO_LIST
        self.requeued: list[tuple[int, int]] = NO_LIST
        self.durable_state = DurableState(self)
        self.awaiting: list[Pending] = NO_LIST  # What its next block is awaited by.
        # Where it has mirrors: which messages of its next block are awaited.
        self.due_confirms: list[DueConfirm] | None = None
        self.consumers: deque[Consumer] = NO_DEQUE
        self.exclusive_consumer: Consumer | None = None
        self.crowded_at = NEVER  # More messages than this: publishers are slowed down.
        self.departure: Departure | None = None  # It is on its way to another node.
        self.waiting: list[Callable[[AnyQueue], None]] = NO_LIST  # Questions that are put off: see `is_deferring`.
        self.waiting_consumers: list[Consumer] = NO_LIST  # Who wants to consume is among those that wait.
        self.former_last_block = (0, 0)  # Epoch and number of the last block of the master before: see `handover`.
        self.totals = MessageCounters()
        self.used_ms = host.now_ms  # When somebody last asked for it, or consumed from it.

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.spec.vhost!r}, {self.spec.name!r})"

    def __str__(self) -> str:
        """Return what the node's log calls it."""
        return visible(resource("queue", self.spec.name, self.spec.vhost))

    # -- State --------------------------------------------------------------------------------------------------------

    def _change_access(self, to: Access) -> None:
        assert to in ACCESS_LEGAL[self.access], f"{self} cannot be {to.name} after {self.access.name}"
        self.access = to
        self.frozen = to is Access.FROZEN or to is Access.HELD
        waits = to is Access.HELD or to is Access.SEALED
        self.parked = [] if waits else None
        if to is Access.OPEN:
            self.host.on_opened(self)

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

    def hold(self) -> None:
        """Has publishes and questions wait until `resume`, and hands out nothing."""
        if self.access is not Access.HELD:
            self._change_access(Access.HELD)

    def resume(self) -> tuple[list[Parked], list[Callable[[AnyQueue], None]]]:
        """Ends holding and sealing. Gives the publishes and the questions that waited: see `parking`."""
        parked, waiting = self.parked, self.waiting
        self.waiting = NO_LIST
        if parked is not None:
            is_cut_off = self.mirror is not None and not self.mirror.member.serving
            self._change_access(Access.FROZEN if is_cut_off else Access.OPEN)
        return parked or [], waiting or []

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
        self.spec = spec
        self.reset_totals()

    def reset_totals(self) -> None:
        self.totals = MessageCounters()

    def begin_epoch(self, after: int) -> None:
        """Its epoch is later than this one: copies that it had may turn up again, one day."""
        self.epoch = max(self.epoch, after + 1)

    # -- Rules --------------------------------------------------------------------------------------------------------

    @property
    def rules(self) -> QueueRules:
        """Return the rules that apply to the queue's messages now."""
        if self.policy_version != self.host.policy_version:
            self.host.refresh(self)
        return self.applied_rules

    def refresh_rules(self) -> None:
        """Before anything is counted: if policies have changed since, then what holds now holds for it. In the middle,
        `rules` would find messages that are neither counted nor gone."""
        if self.policy_version != self.host.policy_version:
            self.host.refresh(self)

    def refresh(self, policy_version: int, rules: QueueRules) -> None:
        """Policies have changed so many times, and this holds now."""
        self.policy_version = policy_version
        self.set_rules(rules)

    # -- Mirrors ------------------------------------------------------------------------------------------------------

    def lead(self, mirror: Mirror, epoch: int, number: int, former_last_block: tuple[int, int]) -> None:
        """Its blocks go round a ring from now on, after the one with this number."""
        self.mirror, self.epoch, self.number, self.former_last_block = mirror, epoch, number, former_last_block
        self.logs = 0  # The mirrors know only what is in blocks.
        if self.due_confirms is None:
            self.due_confirms = NO_LIST

    def set_gate(self, gate: Gate) -> None:
        """From now on the gate decides what may be handed out."""
        self.gate = gate

    def stop_leading(self) -> list[Pending]:
        """This node leads the queue no longer. Gives who waits for a block that will not be.

        Until the view says who leads it now, it takes nothing in and gives nothing out: the block of what would come in
        would be in no ring, and its publisher must not hear that it is safe.
        """
        awaiting = self.take_awaiting()
        self.mirror = None
        self.hold()
        return awaiting

    def leave_ring(self, awaiting: list[Pending]) -> None:
        """Become a queue without mirrors again.

        `awaiting`: publishes that wait for blocks of the ring; they are confirmed with the queue's next block, which is
        written behind those.
        """
        self.awaiting = [*awaiting, *self.awaiting]
        self.mirror = self.due_confirms = None
        if self.gate is not None:
            self.gate.end()
            self.gate = None
        self.logs = PERSISTENT if self.durable else NEVER
        self.note_deliveries()  # So that there is a next block.
        self.thaw()
        self.set_pressed(False)

    # -- Extensions ---------------------------------------------------------------------------------------------------

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

    # -- Publishing ---------------------------------------------------------------------------------------------------

    def enqueue_from(
        self, origin: Origin, contents: list[bytes], keys: list[bytes], kind: int, size: int, pending: Pending
    ) -> bool:
        """Enqueue messages of a producer, except those that it has sent before."""
        if self.parked is not None:
            return park(self.parked, contents, keys, kind, size, pending, origin)
        return self.host.features.enqueue_once(self, origin, contents, keys, kind, size, pending)

    def is_crowded(self) -> bool:
        """Tell whether publishers that were told to slow down should still wait."""
        return self.parked is not None or self.ready_count * 2 > self.crowded_at

    # -- Questions ----------------------------------------------------------------------------------------------------

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
        self.waiting = self.waiting or []
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

    def subscribe(self, consumer: Consumer, then: Callable[[Refusal | None], None]) -> None:
        if self.later(lambda queue: self._adopt_orphan(cast("Subscriber", consumer), queue, then)):
            self.waiting_consumers = [*self.waiting_consumers, consumer]  # Unless its client ends it before that.
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
        """Ends a subscription, after what came before has been handed out. If an auto-delete queue goes with it, `then`
        is called when it is gone, and with it exchanges that lose their last binding: the client may rely on that."""
        self.catch_up()
        if self.spec.auto_delete and not self.deleted and self.is_last(consumer):
            self.remove_consumer(consumer, then)
        else:
            then()
            self.remove_consumer(consumer)

    def is_last(self, consumer: Consumer) -> bool:
        """Tell whether it has this consumer, and no other."""
        return len(self.consumers) == 1 and consumer in self.consumers

    def set_limit(self, consumer: Consumer) -> None:
        """Do nothing: local consumers are asked for their room at each delivery."""

    # -- Consumers ----------------------------------------------------------------------------------------------------

    def remove_consumer(self, consumer: Consumer, then: Callable[[], None] | None = None) -> None:
        """`then`: called when the auto-delete queue that this is the last consumer of is gone."""
        if self.departure is not None and consumer in self.departure.consumers:
            self.departure.consumers.remove(consumer)
            return
        if consumer in self.waiting_consumers:
            self.waiting_consumers.remove(consumer)
            return
        self.consumers.remove(consumer)
        if self.exclusive_consumer is consumer:
            self.exclusive_consumer = None
        if not self.consumers:
            self.consumers = NO_DEQUE
            self.touch()
            self.crowded_at = NEVER
            if self.spec.auto_delete and not self.deleted:
                self.host.on_unused(self, then)

    def _append_consumer(self, consumer: Consumer) -> None:
        if not self.consumers:
            self.consumers = deque()
        self.consumers.append(consumer)

    def _drop_consumers(self) -> None:
        if self.consumers:
            self.consumers.clear()  # Whoever goes through them sees that there are none.
            self.consumers = NO_DEQUE

    def take_consumers(self) -> list[Consumer]:
        """All its consumers, who have to go on elsewhere or wait: it has none any more."""
        consumers = list(self.consumers)
        self._drop_consumers()
        self.exclusive_consumer = None
        return consumers

    def on_deleted(self) -> None:
        """The queue is gone from the metadata: nothing of it counts any longer."""
        self.tell_gone("deleted")
        self._change_life(Life.GONE)
        for consumer in list(self.consumers):
            consumer.on_queue_deleted()
        self._drop_consumers()
        self.let_go_of_all()

    def let_go_of_all(self) -> None:
        """No message of it is this object's business any more."""
        self.tell_gone("elsewhere")
        if not self.deleted:
            self._change_life(Life.GONE)
        self.extensions = None
        self.host.content_bytes -= self.memory_bytes - self.shared_bytes
        self.memory_bytes = self.shared_bytes = self.ready_count = 0
        if self.open is not None:
            self._on_taken(self.open)
        self.open = None
        # Whoever deleted the queue has taken care of its messages; or they are safe where it has gone.
        for pending in self.awaiting:
            pending.on_safe()
        self.awaiting = NO_LIST

    # -- The log ------------------------------------------------------------------------------------------------------

    def has_changes(self) -> bool:
        """Tell whether `take_block` would return a block."""
        if self.settled or self.requeued or self.note_due or self.durable_state.changes:
            return True
        return self.open is not None and self.open.stored

    def is_urgent(self) -> bool:
        """Tell whether the next block, if there is one, has more than settled messages. Nobody waits until those are on
        disk: if the node dies before, they are delivered again."""
        if self.open is not None and self.open.stored:
            return True
        return bool(self.awaiting or self.requeued or self.note_due or self.durable_state.changes)

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
        settled, self.settled = merged(self.settled or []), NO_LIST
        if self.extensions is not None:
            for tell in self.extensions.on_settlement:
                tell(settled)
        requeued, self.requeued = merged(self.requeued or []), NO_LIST
        through, state = self.delivered_through, self.durable_state
        changes = state.take() if state.changes or state.quiet else None
        block = Block(self.spec.id, self.epoch, self.number, time_ms, batch, settled, requeued, through, None, changes)
        if self.extensions is not None:
            for add_to in self.extensions.on_block:
                add_to(block)
        return block

    def has_shown_stored(self) -> bool:
        """Tell whether messages were delivered that the log has, and the log does not know."""
        wanted = Wanted(self.noted_through + 1, self.delivered_through, count_max=1)
        return bool(self.host.measure(self, wanted).ranges)

    def note_deliveries(self) -> None:
        """There is to be a next block, which says what was delivered."""
        self.note_due = True

    def note_through(self, number: int) -> None:
        """The block that is being taken says that messages up to this one were delivered."""
        self.noted_through = number

    def note_requeued(self, ranges: Iterable[tuple[int, int]]) -> None:
        """The next block says that these were given back."""
        self.requeued = [*self.requeued, *ranges]

    def raise_delivered(self, through: int) -> None:
        """Messages up to this one may have been delivered, by another node."""
        self.delivered_through = max(self.delivered_through, through)

    def lower_delivered(self, through: int) -> None:
        """No message with a higher number than this was delivered, after all."""
        self.delivered_through = min(self.delivered_through, through)

    def take_awaiting(self) -> list[Pending]:
        """Take the publishes that wait for the block that is being taken, or for one that is not needed."""
        awaiting, self.awaiting = self.awaiting or [], NO_LIST
        return awaiting

    def _await_safe(self, pending: Pending, count: int) -> None:
        """A publisher waits until the last `count` messages are safe."""
        pending.waiting += 1
        if self.awaiting:
            self.awaiting.append(pending)
        else:
            self.awaiting = [pending]
        if self.due_confirms is not None:
            self.due_confirms = self.due_confirms or []
            self.due_confirms.append((self.next_seq - count, count, pending))

    def take_due_confirms(self) -> list[DueConfirm]:
        """Take the confirms that are due for messages of the block that is being taken."""
        due_confirms = self.due_confirms
        if not due_confirms:
            return []
        self.due_confirms = NO_LIST
        return due_confirms

    def drop_last_due_confirm(self) -> None:
        """Forget the last due confirm: the caller keeps account of those messages itself."""
        if self.due_confirms:
            self.due_confirms.pop()

    def await_block(self, pending: Pending) -> None:
        """Is told when the queue's next block is safe."""
        self.awaiting = [*self.awaiting, pending]

    def restore_state(self, table: dict[bytes, bytes]) -> None:
        """Its durable state has come from its log, or from where it was."""
        self.durable_state.restore(table)

    def _on_taken(self, batch: Batch) -> None:
        self.host.unlogged_bytes -= batch.unlogged_bytes
        batch.unlogged_bytes = 0

    def number_from(self, number: int) -> None:
        """The next message has this number, or a higher one."""
        self.next_seq = max(self.next_seq, number)

    # -- Memory -------------------------------------------------------------------------------------------------------

    def _let_go(self, batch: Batch, count: int) -> None:
        batch.left -= count
        if batch.left <= 0:
            if batch.shared_bytes:
                self._uncount(batch, batch.size)
            else:  # The same, without a call: this is done for every batch.
                self.memory_bytes -= batch.size
                self.host.content_bytes -= batch.size
                batch.size = 0
            batch.gone = len(batch.contents)

    def _uncount(self, batch: Batch, size: int) -> None:
        """So many bytes of a batch are not held any longer for this queue's sake."""
        self.memory_bytes -= size
        batch.size -= size
        if batch.shared_bytes:
            shared = min(batch.shared_bytes, size)
            batch.shared_bytes -= shared
            self.shared_bytes -= shared
            size -= shared
            if not batch.size:
                batch.shares = None
        self.host.content_bytes -= size

    def count_in(self, batch: Batch) -> None:
        """Counts contents that were read and are not among those that wait."""
        self.memory_bytes += batch.size
        self.host.content_bytes += batch.size

    # -- What each kind of queue does ----------------------------------------------------------------------------

    @abstractmethod
    def set_rules(self, rules: QueueRules) -> None:
        """Applies other rules to the queue from now on."""

    @abstractmethod
    def set_pressed(self, pressed: bool) -> None:
        """Notes whether mirrors do not keep up, so that every publisher should wait."""

    @abstractmethod
    def enqueue(self, contents: list[bytes], keys: list[bytes], kind: int, size: int, pending: Pending | None) -> bool:
        """Takes messages of one kind, at the end. True: the queue is crowded, slow down."""

    @abstractmethod
    def fetch(self, no_ack: bool, wanted: Callable[[], bool], then: Callable[[Got | Refusal | None], None]) -> None:
        """Gets the first message, unless it is no longer wanted by the time that it is read back."""

    @abstractmethod
    def purge_all(self, then: Callable[[int | Refusal], None]) -> None:
        """Drops all messages that wait, and says how many they were."""

    @abstractmethod
    def add_consumer(self, consumer: Consumer) -> None:
        """Begins to deliver to a consumer."""

    @abstractmethod
    def settle_delivered(self, batch: Batch, lo: int, hi: int) -> None:
        """A consumer has acknowledged messages."""

    @abstractmethod
    def discard(self, batch: Batch, lo: int, hi: int) -> None:
        """A consumer has rejected messages for good."""

    @abstractmethod
    def requeue_many(self, pieces: list[tuple[Batch, int, int]], shown: bool = True, counted: bool = True) -> None:
        """Consumers give messages back, or are gone."""

    @abstractmethod
    def pump(self) -> None:
        """Does all that is due: delivers, drops, sends."""

    @abstractmethod
    def close_batch(self) -> None:
        """The turn is over."""

    @abstractmethod
    def on_logged(self, batch: Batch) -> None:
        """The block with this batch is on disk; that of a mirrored queue, on those of all mirrors that count."""

    @abstractmethod
    def page_out(self) -> None:
        """Forgets contents that the log has, until memory is within its bounds."""

    @abstractmethod
    def page_out_unacked(self, batch: Batch, count: int) -> None:
        """Forgets the contents of messages that are out with a consumer."""

    @abstractmethod
    def restore(self, number: int, epoch: int, next_seq: int, first: int, last: int, count: int, through: int) -> None:
        """After a start: takes over what the log holds."""
