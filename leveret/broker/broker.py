"""The broker of one node: virtual hosts at work, and the turn in which all that was touched is dealt with.

What lasts is in the metadata (exchanges, queues, bindings, users) and in the log (messages). The broker holds what is
made of them: queue objects and routers, kept up to date by the events of applied commands. It asks its node for the
rest (`node_interface`): to get a command agreed on, to read a gap back, to send a frame, to write a line to the log.

A *turn*: connections receive what arrived, touching queues; then the node calls `pump` (deliveries), takes blocks for
the log if it has room, calls `tell_confirms`, and writes what every connection has in `out`. Work is per touched queue
and per touched connection, however many there are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from leveret.base.counters import NodeCounters
from leveret.base.random_numbers import RandomNumbers
from leveret.base.range_set import Wanted
from leveret.base.timers import Timers
from leveret.base.visible_text import visible
from leveret.broker.client_ids.client_ids import ClientIds
from leveret.broker.client_log import ClientLog
from leveret.broker.connection_limits import IN_VHOST, OF_USER, ConnectionLimits
from leveret.broker.consumer_timeout import check_age
from leveret.broker.dead_letter.publisher import WORK_MAX, DeadLetterPublisher
from leveret.broker.delivery.batch import Gap, GapRead, Span
from leveret.broker.event_journal.node_journal import NodeJournal, Options, keep
from leveret.broker.fanout import COPIES_MAX, Fanout
from leveret.broker.kinds.stream import make_queue
from leveret.broker.login import Login
from leveret.broker.login_attempts import LoginAttempts
from leveret.broker.mirrors.detachment import Detachment
from leveret.broker.mirrors.manager import MirrorManager
from leveret.broker.mqtt_totals import MqttTotals
from leveret.broker.policy_refresh import PolicyRefresh
from leveret.broker.queue.features import NO_CLUSTER, Features
from leveret.broker.queue.hold import go_on, release
from leveret.broker.queue.local_queue import LocalQueue
from leveret.broker.queue.queue import Queue
from leveret.broker.queue.ttl_and_length import EXPIRED_AT_ONCE
from leveret.broker.remote.client_end import FROM_OWNER_END, ClientEnd
from leveret.broker.remote.direct_reply_to import DirectReplyTo
from leveret.broker.remote.migrate import Arrivals, demote
from leveret.broker.remote.outbox import Outboxes
from leveret.broker.remote.owner_end import FROM_CLIENT_END, OwnerEnd
from leveret.broker.remote.remote_queue import RemoteQueue
from leveret.broker.remote.spool_registry import BATCHES_AT_ONCE, SpoolRegistry
from leveret.broker.retained.retained_messages import RetainedMessages
from leveret.broker.routing.alternate_exchange import AlternateExchanges
from leveret.broker.routing.upkeep import STEPS, STEPS_STARTING, Upkeep
from leveret.broker.vhost import Vhost
from leveret.links.frame_types import CONNECTION_COUNTS, LINKED, REPLY, REPLY_ANSWER, REPLY_ASK, RING, STOPPING
from leveret.links.proposals import BadFrame
from leveret.metadata.model import commands as c
from leveret.metadata.model import events as e
from leveret.metadata.model.queue_counts import QueueCounts
from leveret.metadata.model.refusals import resource
from leveret.metadata.mqtt.events import RetainedChanged, SessionChanged
from leveret.metadata.rules.global_parameters import CLUSTER_ID, CLUSTER_NAME, parse_cluster_id
from leveret.metadata.rules.partition_handling import PartitionHandling
from leveret.metadata.rules.passwords import verify_password
from leveret.metadata.rules.permissions import OPERATOR, Permissions
from leveret.metadata.store import Applied, Metadata

if TYPE_CHECKING:
    from leveret.base.range_set import Measured
    from leveret.broker.client_connection import ClientConnection, Sent
    from leveret.broker.delivery.batch import Shared
    from leveret.broker.firehose import Firehose
    from leveret.broker.mirrors.member_changes import MemberChanges
    from leveret.broker.node_interface import NodeInterface
    from leveret.broker.session.session import Client, Session
    from leveret.metadata.model.bindings import BindingGroup
    from leveret.metadata.model.records import Binding, QueueSpec
    from leveret.metadata.rules.queue_rules import QueueRules
    from leveret.storage.format.queue_block import Run


READ_AT_ONCE: Final = 16
PUMPED_AT_ONCE: Final = 1_024  # Queues in one turn.
DUE_AT_ONCE: Final = 250  # Queues in one turn, of those whose messages grow old.
GOING_ON_AT_ONCE: Final = 250  # Queues in one turn, of those that have more to drop.
CLOSED_AT_ONCE: Final = 128  # Clients in one turn.
IDLE_AT_ONCE: Final = 100  # Queues in one turn, of those that go since nobody uses them: each is a command.
FREED_AT_ONCE: Final = 4_096  # Pieces of what was ready in a queue that is gone.
FREED_A_STEP: Final = 8  # Of those, where they are freed over several turns.
OPERATORS_TAGS: Final = ("administrator", "impersonator")
MASTERLESS_TICKS_MAX: Final = 10  # Seconds in which it is waited for who has a queue now.

AnyQueue: TypeAlias = LocalQueue | RemoteQueue


class Confirming(Protocol):
    """A session, or what stands for it, that tells its client in each turn which publishes are safe."""

    def send_confirms(self) -> None: ...


class Broker:
    """All virtual hosts of one node."""

    def __init__(
        self,
        metadata: Metadata,
        node: NodeInterface,
        node_name: str,
        cluster_name: str,
        python_version: str,
        content_bytes_max: int,
        spill_bytes_max: int,
    ) -> None:
        self.metadata = metadata
        self.node = node
        self.node_name = node_name
        self.default_cluster_name = cluster_name
        self.python_version = python_version
        self.permissions = Permissions(metadata)
        self.alternates = AlternateExchanges(metadata)
        self.upkeep = Upkeep()
        self.random_numbers = RandomNumbers(node.seed)
        self.vhosts: dict[str, Vhost] = {}
        self.totals = NodeCounters()
        self.ended: dict[LocalQueue | Session, None] | None = None  # Ended since the last sample; None: nobody samples.
        self.refusing = False  # Publishes are refused, all of them: a fault that tests can ask for.
        self.now_ms = 0  # Of a clock that never jumps; as of this turn.
        self.opened_ms = 0  # When clients could first come, by the same clock.
        self.wall_ms = 0  # The time of day, as of this turn.
        self.alarm: str | None = None  # What the cluster is low on, in the words of connection.blocked.
        self.expiring_left = EXPIRED_AT_ONCE
        # Queues that have more to drop than a turn had room for, and the numbers of their next messages then: those
        # that go on in the next turns, and in this one. They have no timers: the time of day may be set back.
        self.going_on: dict[LocalQueue, int] = {}
        self.gone_on: dict[LocalQueue, int] = {}
        self.overdue: dict[LocalQueue, None] = {}  # Of which somebody waits until overdue messages are gone.
        self.is_late = False  # More timers are due than a turn has room for.
        self.timers: Timers[LocalQueue] = Timers()
        self.idle: Timers[LocalQueue] = Timers()
        self.unread: deque[Queue] = deque()  # Of whose first message nobody knows whether it grows old.
        self.policy_version = 0  # How often policies have changed.
        self.policies = PolicyRefresh(self)
        self.partition_handling = PartitionHandling()  # As of now: it is changed while the node runs.
        self.journaling = Options()
        self.journal: NodeJournal | None = None  # Where some policy asks for it.
        self.dead_letters = DeadLetterPublisher(self)
        self.features = Features(self.random_numbers.draw, self._cluster_digits)
        self.replies = DirectReplyTo(self)
        self.connection_limits = ConnectionLimits(self)
        self.notes = ClientLog(node)
        self.logins = LoginAttempts()
        self.content_bytes = 0
        self.sharing: Shared | None = None
        self.uncommitted_bytes = 0  # Of publishes that wait for their commit, of all transactions.
        self.unlogged_bytes = 0
        self.content_bytes_max = content_bytes_max
        self.spill_bytes_max = max(spill_bytes_max, content_bytes_max)
        self.connections: dict[ClientConnection, str] = {}  # That have entered: by what exclusive queues are owned.
        self.clients: dict[Client, Login] = {}  # Of all protocols.
        self.closing: deque[tuple[Client, str]] = deque()  # Those to be closed, and why.
        self.sessions: dict[Session, None] = {}
        self.connection_count = 0
        # What was touched in this turn, in order.
        self.dirty: dict[AnyQueue, None] = {}
        self.unlogged: dict[LocalQueue, None] = {}
        self.hurries = False  # Some of `unlogged` has more than acknowledgements, which may wait for company.
        self.delivering: dict[LocalQueue, None] = {}  # Delivered from, and the log does not know how far.
        self.confirming: dict[Confirming, None] = {}
        self.writers: dict[Sent, None] = {}  # What is to be written to clients.
        self.firehoses_due: dict[Firehose, None] = {}
        self.linked: dict[ClientEnd | OwnerEnd | ConnectionLimits, None] = {}  # Those with something to send.
        self.still_out = 0  # Unacknowledged messages that this node delivered from queues which others lead now.
        self.waiting_links: dict[OwnerEnd, None] = {}  # Links whose publishers have to wait.
        self.client_ends: dict[str, ClientEnd] = {}  # By the name of the node at the other end, while the link is up.
        self.owner_ends: dict[str, OwnerEnd] = {}
        self.queues_by_id: dict[int, AnyQueue] = {}
        self.loads = QueueCounts()
        self.suspended: dict[RemoteQueue, int] = {}  # Without a home, for so many ticks.
        self.arrivals = Arrivals(self)
        self.mirrors = MirrorManager(self)
        self.spools = SpoolRegistry(self)
        self.detachment = Detachment(self)
        self.fanout = Fanout()
        self.subscribing = Fanout()  # Clients of MQTT that subscribe: a budget of its own, as if they published.
        self.retained = RetainedMessages(self)
        self.outboxes = Outboxes(self)
        self.client_ids = ClientIds(self)
        self.mqtt_totals = MqttTotals(self)
        self.member_changes: MemberChanges | None = None
        self.run = ""  # The name of this run of the node.
        self.waiting_for_load: dict[LocalQueue, list[Callable[[], None]]] = {}
        self._build()

    def _build(self) -> None:
        """Routers and queues for what the metadata holds at the start."""
        metadata = self.metadata
        for name in metadata.vhosts:
            self._on_event(e.VhostAdded(name))
        for exchange in metadata.exchanges.values():
            self._on_event(e.ExchangeDeclared(exchange))
        for queue in metadata.queues.values():
            self._on_event(e.QueueDeclared(queue))
        for group in metadata.bindings.groups():
            self._bind_group(group)

    @property
    def cluster_name(self) -> str:
        name = self.metadata.global_parameters.get(CLUSTER_NAME)
        return name if isinstance(name, str) else self.default_cluster_name

    @property
    def is_spreading(self) -> bool:
        """Returns whether publishes to many queues, or dead letters, were left for later turns. They go on when there
        is room for them on the way to the disk."""
        return bool(self.fanout.waiting or self.dead_letters.retry.waiting)

    @property
    def is_behind(self) -> bool:
        """Returns whether there is work that was left for later turns: queues whose time has come, or that have more
        to drop, clients of a user that is gone, clients that subscribe, queues and exchanges that have not been told of
        changed policies, indexes of exchanges."""
        if self.is_late or self.going_on or self.closing or self.subscribing.waiting:
            return True
        return bool(self.policies.outdated or self.alternates.left or self.upkeep.jobs)

    # -- The turn ------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Deliver what can be delivered. Of very many queues, those that have waited longest; the others follow in the
        next turns."""
        policies = self.policies
        if self.closing:
            self._close_some()  # First, so that others get what their consumers would have got.
        if policies.outdated:
            policies.refresh_some()
        if self.alternates.left:
            self.alternates.go_on()
        if self.upkeep.jobs:
            self.upkeep.go_on(STEPS if self.opened_ms else STEPS_STARTING)
        if self.fanout.left < COPIES_MAX:
            self.fanout.begin_turn(self.alarm is None and self.node.is_crowded())
        if self.subscribing.left < COPIES_MAX:
            self.subscribing.begin_turn(is_crowded=False)
        self.expiring_left = EXPIRED_AT_ONCE
        if self.going_on or self.gone_on:
            self._go_on()
        if self.dead_letters.left < WORK_MAX or self.dead_letters.retry.waiting:
            self.dead_letters.begin_turn(self.alarm is None and self.node.is_crowded())
        dirty, unlogged, left = self.dirty, self.unlogged, PUMPED_AT_ONCE
        if len(dirty) > left:
            self._put_first(left)
        while dirty or self.firehoses_due:
            if not dirty or not left:
                if not self.firehoses_due:
                    break
                self.firehoses_due.popitem()[0].flush()
                continue
            queue, _ = dirty.popitem()
            left -= 1
            if queue.deleted:
                continue
            if queue.policy_version != self.policy_version and queue.is_local:
                policies.refresh(queue)
            queue.pump()
            dirty.pop(queue, None)  # Settling without acks touches it again.
            if not queue.is_local:
                continue
            queue.close_batch()
            if self.content_bytes > self.spill_bytes_max:
                queue.page_out()
            if queue.has_changes():
                unlogged[queue] = None
                if not self.hurries:
                    self.hurries = queue.is_urgent()
            elif queue.delivered_through > queue.noted_through and queue.durable:
                if queue.gate is None and queue.has_shown_stored():
                    queue.note_deliveries()  # At once: what comes back after a crash is marked as redelivered.
                    unlogged[queue] = None
                    self.hurries = True
                else:
                    self.delivering[queue] = None
        if self.spools.later or self.spools.batches_left < BATCHES_AT_ONCE:
            self.spools.on_turn()
        if self.retained.gathered:
            self.retained.flush()
        ids = self.client_ids
        if ids.claims or ids.releases or ids.changes:
            ids.flush()
        if self.overdue:
            self._call_waiting()
        if self.is_late:
            self._wake_due()  # For the next turn.

    def _put_first(self, count: int) -> None:
        """Have `pump` begin with so many of the queues, those that were touched first."""
        touched = list(self.dirty)
        self.dirty.clear()
        self.dirty.update(dict.fromkeys(touched[count:] + touched[count - 1 :: -1]))

    def lead(self) -> None:
        """Called in each tick at the node that leads the cluster: do what one node has to do for all."""
        self.client_ids.lead()
        self.retained.lead()

    def touch_stalled(self, stalled: dict[AnyQueue, None]) -> None:
        """Queues that had more for a client than it could take go on, as it takes more."""
        self._touch_in_turn(stalled)
        stalled.clear()

    def _touch_in_turn(self, queues: Iterable[AnyQueue]) -> None:
        """Touch queues that had to wait for room: each is the first in turn.

        The first of them has used up the room, so it comes last now. `pump` begins with what was touched last.
        """
        first, *others = queues
        for queue in (first, *reversed(others)):
            self.dirty.pop(queue, None)
            self.dirty[queue] = None

    def on_time(self) -> bool:
        """Called every few milliseconds: whose time has come? True if there is something to do. Queues that were made
        together grow old together: of very many, each turn has some."""
        if self.unread:
            self._read_fronts()
        if not self.is_late:  # Otherwise each turn does.
            self._wake_due()
        return bool(self.dirty) or self.is_late

    def _wake_due(self) -> None:
        due, idle = self.timers.due(self.wall_ms, DUE_AT_ONCE), self.idle.due(self.now_ms, IDLE_AT_ONCE)
        for queue in due:
            if not queue.deleted:
                self.dirty[queue] = None
        for queue in idle:
            if not queue.deleted:
                self._on_idle(queue)
        self.is_late = len(due) == DUE_AT_ONCE or len(idle) == IDLE_AT_ONCE

    def free_later(self, rows: list[deque[Span | Gap]]) -> None:
        """Let go of what was ready in a queue that is gone, in later turns if it is much."""
        if sum(map(len, rows)) > FREED_AT_ONCE:
            self.upkeep.add(partial(_free_some, rows))

    def go_on_soon(self, queue: LocalQueue) -> None:
        """Have a queue pumped in the next turn; or if very many ask, in one of the next."""
        self.going_on[queue] = queue.next_seq

    def _go_on(self) -> None:
        """Begin a turn: queues go on that have more to drop, those first that have waited longest."""
        self.gone_on, self.going_on = self.going_on, {}
        if len(self.gone_on) > GOING_ON_AT_ONCE:
            waiting = iter(self.gone_on.items())
            self.gone_on, self.going_on = dict(islice(waiting, GOING_ON_AT_ONCE)), dict(waiting)
        if self.gone_on:
            self._touch_in_turn(self.gone_on)

    def came_meanwhile(self, queue: LocalQueue) -> int:
        """Return how many messages came since the queue asked for another turn."""
        asked = self.gone_on.get(queue) or self.going_on.get(queue)
        return 0 if asked is None else queue.next_seq - asked

    def on_opened(self, queue: LocalQueue) -> None:
        """A queue does again what it does when it is neither frozen nor held."""
        if isinstance(queue, Queue):
            self.dead_letters.retry.on_opened(queue)

    def _on_idle(self, queue: LocalQueue) -> None:
        """A queue that goes when nobody has used it for a while."""
        expires_ms = queue.rules.expires_ms
        if expires_ms is None:
            return
        # Nobody can use it while the node is starting.
        is_used = bool(queue.consumers) or queue.departure is not None or queue.frozen or not self.arrivals.is_open
        if is_used:
            queue.touch()
        due_ms = max(queue.used_ms, self.opened_ms) + expires_ms
        if due_ms > self.now_ms:
            self.idle.set(queue, due_ms)
        else:
            spec = queue.spec
            self.node.note("queue", "info", f"{resource('queue', spec.name, spec.vhost)} is unused and expires")
            self._delete(queue)

    def end_slow_channels(self, timeout_ms: int | None) -> None:
        """Close channels whose consumers do not acknowledge, so that others get the messages."""
        for session in list(self.sessions):
            check_age(session, self.now_ms, timeout_ms)

    def note_deliveries(self) -> None:
        """Once in a while: let the log know what was delivered, also where nothing else changes, and nothing is there
        that would have to be marked as redelivered after a crash."""
        for queue in self.delivering:
            if not queue.deleted and queue.delivered_through > queue.noted_through:
                queue.note_deliveries()
                self.unlogged[queue] = None
        self.delivering.clear()

    def tell_confirms(self) -> None:
        confirming, self.confirming = self.confirming, {}
        for one in confirming:
            one.send_confirms()

    def on_loaded(self, queue: LocalQueue) -> None:
        """A gap of the queue was read back, or the queue is gone."""
        for then in self.waiting_for_load.pop(queue, ()):
            then()

    def _call_waiting(self) -> None:
        """Call those that wait until overdue messages are gone, once in a turn. Where one has to go on waiting, so have
        those behind it. Whoever asks for a message has the queue hand out. If that called those that wait, each of them
        would have it call the others, each of which would have it do so again."""
        overdue, self.overdue = self.overdue, {}
        for queue in overdue:
            waiting = self.waiting_for_load.pop(queue, [])
            for at, then in enumerate(waiting, start=1):
                then()
                if queue in self.waiting_for_load:
                    self.waiting_for_load[queue] += waiting[at:]
                    break

    # -- Metadata ------------------------------------------------------------------------------------------------

    def propose(self, command: c.Command, then: Callable[[Applied], None], patient: bool = False) -> None:
        self.node.propose(command, then, patient)

    def propose_for(self, client: str, command: c.Command, then: Callable[[Applied], None]) -> None:
        self.node.propose_for(client, command, then)

    def on_applied(self, events: tuple[e.Event, ...]) -> None:
        """Commands took effect: bring queues and routers up to date."""
        # An exchange takes the bindings from it along, and a queue those to it.
        gone = {(event.spec.vhost, event.spec.name) for event in events if isinstance(event, e.ExchangeDeleted)}
        queues = {(event.spec.vhost, event.spec.name) for event in events if isinstance(event, e.QueueDeleted)}
        for event in events:
            if isinstance(event, e.BindingsRemoved):
                group = event.group
                if (group.vhost, group.source) not in gone:
                    is_queue = group.destination_kind == "queue"
                    self._unbind_group(group, is_queue and (group.vhost, group.destination) in queues)
            else:
                self._on_event(event)
        for owner_end in self.owner_ends.values():
            if owner_end.early:
                owner_end.on_metadata()

    def _on_event(self, event: e.Event) -> None:
        vhosts = self.vhosts
        if isinstance(event, e.QueueDeclared):
            self.loads.put(event.spec)
            self._add_queue(event.spec)
        elif isinstance(event, e.QueueDeleted):
            self.loads.drop(event.spec.id)
            self._remove_queue(event.spec)
        elif isinstance(event, e.QueueMoved):
            self.loads.put(event.spec)
            self._move_queue(event.spec)
        elif isinstance(event, e.ViewChanged):
            self.loads.put(event.spec)
            self._on_view(event.spec)
        elif isinstance(event, e.BindingAdded):
            self._bind(event.binding)
        elif isinstance(event, e.BindingRemoved):
            self._unbind(event.binding)
        elif isinstance(event, e.BindingsAdded):
            self._bind_group(event.group)
        elif isinstance(event, SessionChanged):
            self.client_ids.on_changed(event)
        elif isinstance(event, RetainedChanged):
            self.retained.on_changed(event.vhost, event.topic)
        elif isinstance(event, e.ExchangeDeclared):
            vhosts[event.spec.vhost].router.add_exchange(event.spec.name, event.spec.type, event.spec.arguments)
            self.alternates.on_declared(vhosts[event.spec.vhost], event.spec.name)
            vhosts[event.spec.vhost].forget_routes()
        elif isinstance(event, e.ExchangeDeleted):
            vhosts[event.spec.vhost].router.remove_exchange(event.spec.name)
            vhosts[event.spec.vhost].exchange_counters.pop(event.spec.name, None)
            vhosts[event.spec.vhost].forget_routes()
        elif isinstance(event, e.VhostAdded):
            vhosts[event.name] = Vhost(event.name, self.random_numbers.draw, self.upkeep)
        elif isinstance(event, e.VhostDeleted):
            vhosts.pop(event.name).router.close()
            self._close_all_of(event.name)
        elif isinstance(event, e.UserDeleted):
            why = f"user '{event.name}' is deleted"
            self.closing.extend((client, why) for client, login in self.clients.items() if login.user == event.name)
        elif isinstance(event, e.PolicyChanged):
            self.refresh_rules()
            self.alternates.on_policies(vhosts[event.vhost])
            if self.member_changes is not None:
                self.member_changes.look_at_all()
                self.mirrors.ha_rules.refresh_all()
        elif isinstance(event, e.ParameterChanged | e.GlobalParameterChanged):
            if self.member_changes is not None:
                self.member_changes.on_parameter(event)
        elif isinstance(event, e.VhostChanged):
            self.connection_limits.on_limits()
        elif isinstance(event, e.PermissionsChanged | e.UserChanged):
            self.connection_limits.on_limits()
            for vhost in vhosts.values():
                vhost.forget_routes()

    def refresh_rules(self) -> None:
        """Policies have changed. Routes remember which queues may refuse something, so they are forgotten."""
        self.policy_version += 1
        for vhost in self.vhosts.values():
            vhost.forget_routes()
        self.policies.on_changed()

    def keep_journal(self) -> None:
        """Some queue is to be told of in the journal of this node."""
        self.journal = keep(self)

    def _add_queue(self, spec: QueueSpec) -> None:
        vhost = self.vhosts[spec.vhost]
        queue = self._local(spec) or RemoteQueue(spec, self)
        self.queues_by_id[spec.id] = queue
        vhost.queues[spec.name] = queue
        vhost.router.add_queue(spec.name, queue)
        vhost.forget_routes()
        if queue.is_local and spec.view is None and self.member_changes is not None:
            self.member_changes.on_declared(spec)

    def _remove_queue(self, spec: QueueSpec) -> None:
        vhost = self.vhosts[spec.vhost]
        standing: AnyQueue | None = vhost.queues.pop(spec.name)
        vhost.router.remove_queue(spec.name)
        vhost.forget_routes()
        self.queues_by_id.pop(spec.id, None)
        while standing is not None:
            queue, standing = standing, None if standing.is_local else standing.successor
            queue.on_deleted()
            vhost.deleting.discard(queue)
            self.dirty.pop(queue, None)
            if queue.is_local:
                self.totals.queues_deleted += 1
                self._drop_touched(queue)
            if spec.view is None and isinstance(queue, LocalQueue):
                self.forget(queue)
                release(queue)
        if spec.view is not None:
            self.mirrors.on_deleted(spec)
        self.arrivals.drop(spec.id)
        self.spools.on_deleted(spec.id)
        self.detachment.on_deleted(spec.id)
        self.outboxes.on_deleted(spec.id)

    def _local(self, spec: QueueSpec) -> LocalQueue | None:
        """The queue, if this node is its home; and if it is mirrored, if this node leads it."""
        if spec.view is not None:
            self.mirrors.on_view(spec, born=True)
            return self.mirrors.queue_of(spec.id)
        return self.make_queue(spec) if spec.node == self.node_name else None

    def make_queue(self, spec: QueueSpec) -> LocalQueue:
        """A queue of this node, with what the log holds of it."""
        queue = make_queue(spec, self)
        self.node.adopt(queue)
        queue.begin_epoch(spec.last_epoch)
        if isinstance(queue, Queue):
            self.on_restored(queue)
        return queue

    def take_unlogged(self) -> dict[LocalQueue, None]:
        """Take the queues of which a block is to be written."""
        unlogged, self.unlogged = self.unlogged, {}
        self.hurries = False
        return unlogged

    def put_back_unlogged(self, queues: dict[LocalQueue, None]) -> None:
        """Have blocks of these queues written with the next commit."""
        self.unlogged = queues
        self.hurries = True

    def take_writers(self) -> dict[Sent, None]:
        """Take the outputs of connections that have something to send."""
        writers, self.writers = self.writers, {}
        return writers

    def set_clock(self, now_ms: int, wall_ms: int) -> None:
        self.now_ms, self.wall_ms = now_ms, wall_ms

    def open(self) -> None:
        """Clients can come from now on: no queue was unused before, since none could be used."""
        self.opened_ms = self.now_ms

    def set_alarm(self, alarm: str | None) -> str | None:
        """Set what alarm there is. Returns what was before."""
        before, self.alarm = self.alarm, alarm
        return before

    def collect_ended(self, wanted: bool) -> None:
        """Begin, or stop, to remember queues and sessions that end, for statistics."""
        if not wanted:
            self.ended = None
        elif self.ended is None:
            self.ended = {}

    def take_ended(self) -> dict[LocalQueue | Session, None]:
        """Take the queues and sessions that ended since the last sample."""
        ended, self.ended = self.ended or {}, {}
        return ended

    def count_still_out(self, count: int) -> None:
        """Count unacknowledged messages of queues which others lead now."""
        self.still_out += count

    def on_restored(self, queue: Queue) -> None:
        """The queue was restored with messages that are not read yet. If the first of them has a TTL, that must be
        known. If not, no message behind it matters before the first is gone."""
        if queue.ready and not queue.timed:
            self.unread.append(queue)

    def _read_fronts(self) -> None:
        """A few at a time: after a start there may be very many."""
        for _ in range(min(len(self.unread), READ_AT_ONCE)):
            queue = self.unread.popleft()
            if queue.ready and not queue.deleted and isinstance(queue.ready[0], Gap):
                self.node.read_kind(queue, queue.ready[0].first, queue.on_kind)

    def unmake_queue(self, queue: LocalQueue) -> None:
        """Discard a queue that was made for a move which has failed."""
        queue.tell_gone("abandoned")
        queue.on_deleted()
        self.dirty.pop(queue, None)
        self.forget(queue)

    def forget(self, queue: LocalQueue) -> None:
        """Nothing of it counts any longer, also not in the log."""
        self._drop_touched(queue)
        self.node.forget(queue)
        self.on_loaded(queue)

    def _move_queue(self, spec: QueueSpec) -> None:
        """A queue has come here, has gone from here, or has moved elsewhere; or its node has another name."""
        old = self.queues_by_id[spec.id]
        if spec.view is not None or old.spec.node == spec.node:
            return  # The view, or its end, has said so.
        is_here = spec.node == self.node_name
        if isinstance(old, LocalQueue):
            if is_here:
                old.set_spec(spec)
            else:
                self._leave(old, RemoteQueue(spec, self))
        elif is_here:
            self._arrive(old, self.arrivals.take(spec.id) or self.make_queue(spec), spec)
            if self.member_changes is not None:
                self.member_changes.due[spec.id] = None  # Its policy may want it elsewhere, or mirrored.
        else:
            old.on_moved(spec, None)

    def _on_view(self, spec: QueueSpec) -> None:
        """A queue has another view, and perhaps another master; or it is mirrored from now on, or no longer."""
        old = self.queues_by_id[spec.id]
        if spec.view is None:
            self._on_view_ended(old, spec)
            return
        is_first = old.spec.view is None
        self.mirrors.on_view(spec, born=is_first, existing=old if is_first and isinstance(old, LocalQueue) else None)
        new = self.mirrors.queue_of(spec.id)
        if new is not None and self.member_changes is not None:
            self.member_changes.due[spec.id] = None
        if old is new:
            old.set_spec(spec)
        elif isinstance(old, LocalQueue):
            if new is None:
                self._leave(old, RemoteQueue(spec, self))
            else:
                self.give_way(old, new)
        elif new is not None:
            self._arrive(old, new, spec)
        else:
            self._look_elsewhere(old, spec)

    def _on_view_ended(self, old: AnyQueue, spec: QueueSpec) -> None:
        """A queue is mirrored no longer, and its master goes on with it as with any that never was."""
        is_here = spec.node == self.node_name
        if is_here and isinstance(old, LocalQueue):
            old.set_spec(spec)
        self.mirrors.on_ended(spec)
        if isinstance(old, LocalQueue):
            if not is_here:
                self.give_way(old, RemoteQueue(spec, self))  # It was led here in vain.
        elif is_here:
            self._arrive(old, self.make_queue(spec), spec)  # The node is catching up.
        else:
            self._look_elsewhere(old, spec)
        if is_here and self.member_changes is not None:
            self.member_changes.due[spec.id] = None

    def _look_elsewhere(self, old: RemoteQueue, spec: QueueSpec) -> None:
        if old.spec.node != spec.node:
            old.on_moved(spec, None)
        else:
            old.on_new_view(spec)

    def _arrive(self, old: RemoteQueue, new: LocalQueue, spec: QueueSpec) -> None:
        """A queue has come to this node. Other nodes use the new object at once. Clients of this node do so when all
        that was sent through the old one has arrived; until then the queue may have been led by several nodes, and by
        this one again."""
        new.arrive(spec)
        self.queues_by_id[spec.id] = new
        old.on_moved(spec, new)

    def give_way(self, old: LocalQueue, new: AnyQueue) -> None:
        """This node led a queue, and another does now; or this one, from something else than what it had."""
        self.detachment.tell(new)
        self.replace(old, new)
        self._drop_touched(old)
        demote(old, new)
        self._drop_letters(old)
        front = self._front(new)
        go_on(old, front)
        if not front.is_local:
            front.resume()
        self.on_loaded(old)

    def _front(self, queue: AnyQueue) -> AnyQueue:
        """Returns what clients of this node publish to: the queue, or something in its place as long as it has to be
        sent publishes again that came before."""
        outbox = self.outboxes.by_target.get(queue.spec.id)
        vhost = self.vhosts.get(queue.spec.vhost)
        is_free = outbox is None or not outbox.open
        if is_free or not queue.is_local or vhost is None or vhost.queues.get(queue.spec.name) is not queue:
            return queue
        front = RemoteQueue(queue.spec, self)
        front.set_successor(queue)
        self.replace(queue, front)
        self.queues_by_id[queue.spec.id] = queue  # For everything but clients nothing changes.
        return front

    def _leave(self, old: LocalQueue, remote: RemoteQueue) -> None:
        """A queue of this node is another's now."""
        if remote.spec.view is not None:
            self.give_way(old, remote)
            return
        self.replace(old, remote)
        self._drop_touched(old)
        if old.departure is not None:
            old.departure.on_moved(remote)
        else:
            old.on_deleted()
        self._drop_letters(old)
        self.forget(old)

    def _drop_letters(self, old: LocalQueue) -> None:
        """Publish nothing more of a queue that is another node's: what was to be dead-lettered here waits there. Now,
        since later it might look like a queue that was deleted."""
        if isinstance(old, Queue):
            self.dead_letters.retry.take(old)

    def _drop_touched(self, queue: LocalQueue) -> None:
        if self.ended is not None:
            self.ended[queue] = None
        self.on_opened(queue)  # Else what a closed queue has to publish would wait for ever.
        self.dirty.pop(queue, None)
        self.going_on.pop(queue, None)
        self.overdue.pop(queue, None)
        self.unlogged.pop(queue, None)
        self.delivering.pop(queue, None)

    def replace(self, old: AnyQueue, new: AnyQueue) -> None:
        """Another object stands for the same queue from now on: for clients, or after one that does."""
        spec = new.spec
        vhost = self.vhosts.get(spec.vhost)
        standing = None if vhost is None else vhost.queues.get(spec.name)
        if vhost is None or standing is None or standing.spec.id != spec.id:
            return  # Deleted meanwhile.
        if self.queues_by_id[spec.id] is old:
            self.queues_by_id[spec.id] = new
        if standing is not old:
            while not standing.is_local and standing.successor is not None:
                if standing.successor is old:
                    standing.set_successor(new)
                    return
                standing = standing.successor
            return
        vhost.router.replace_queue(spec.name, old, new)
        vhost.deleting.discard(old)
        vhost.queues[spec.name] = new
        vhost.forget_routes()

    def _bind(self, binding: Binding) -> None:
        vhost = self.vhosts[binding.vhost]
        if binding.destination_kind == "queue":
            queue = vhost.queues[binding.destination]
            vhost.router.bind_queue(binding.source, queue, binding.key, binding.arguments)
        else:
            vhost.router.bind_exchange(binding.source, binding.destination, binding.key, binding.arguments)
        vhost.forget_routes()

    def _bind_group(self, group: BindingGroup) -> None:
        vhost = self.vhosts[group.vhost]
        if group.destination_kind == "queue":
            queue = vhost.queues[group.destination]
            vhost.router.bind_queue_often(group.source, queue, group.plain_keys(), group.with_arguments())
            vhost.forget_routes()
        else:
            for binding in group:
                self._bind(binding)

    def _unbind_group(self, group: BindingGroup, is_queue_gone: bool) -> None:
        if is_queue_gone:
            vhost = self.vhosts[group.vhost]
            queue = vhost.queues[group.destination]
            vhost.router.unbind_gone(group.source, queue, group.plain_keys(), group.with_arguments())
            vhost.forget_routes()
        else:
            for binding in group:
                self._unbind(binding)

    def _unbind(self, binding: Binding) -> None:
        vhost = self.vhosts[binding.vhost]
        if binding.destination_kind == "queue":
            queue = vhost.queues[binding.destination]
            vhost.router.unbind_queue(binding.source, queue, binding.key, binding.arguments)
        else:
            vhost.router.unbind_exchange(binding.source, binding.destination, binding.key, binding.arguments)
        vhost.forget_routes()

    # -- Other nodes ---------------------------------------------------------------------------------------------

    def on_peer_up(self, peer: str) -> None:
        self.mirrors.on_peer_up(peer)
        self.client_ends[peer] = ClientEnd(self, peer)
        self.owner_ends[peer] = OwnerEnd(self, peer)
        self.connection_limits.on_peer_up(peer)
        self.outboxes.again()  # Before what came later.
        self.detachment.on_peer_up()
        for queue in [queue for queue in self.suspended if queue.spec.node == peer]:
            queue.resume()
        self.spools.wake()
        self.mirrors.ha_rules.tell_links()

    def on_peer_down(self, peer: str) -> None:
        self.mirrors.on_peer_down(peer)
        client_end, owner_end = self.client_ends.pop(peer, None), self.owner_ends.pop(peer, None)
        for end in (client_end, owner_end):
            if end is not None:
                self.linked.pop(end, None)
                end.on_down()
        if owner_end is not None:
            self.waiting_links.pop(owner_end, None)
        self.replies.on_down(peer)
        self.connection_limits.on_peer_down(peer)
        self.mirrors.ha_rules.tell_links()

    def on_peer_drained(self, peer: str) -> None:
        owner_end = self.owner_ends.get(peer)
        if owner_end is not None:
            owner_end.on_room()
        self.spools.on_room()

    def on_peer_frame(self, peer: str, kind: int, payload: bytes) -> None:
        """Raises `BadFrame`, which ends the session."""
        if kind in FROM_CLIENT_END:
            self.owner_ends[peer].on_frame(kind, payload)
        elif kind in FROM_OWNER_END:
            self.client_ends[peer].on_frame(kind, payload)
        elif kind == RING:
            self.mirrors.on_frame(peer, payload)
        elif kind in (REPLY, REPLY_ASK, REPLY_ANSWER):
            self.replies.on_frame(peer, kind, payload)
        elif kind == CONNECTION_COUNTS:
            self.connection_limits.on_frame(peer, payload)
        elif kind == STOPPING:
            self.mirrors.ha_rules.on_farewell(peer, payload)
        elif kind == LINKED:
            self.mirrors.ha_rules.on_linked(peer, payload)
        else:
            raise BadFrame(f"frame {kind} is not known to this version")

    def flush_links(self) -> None:
        """Send other nodes what gathered for them in this turn."""
        while self.linked:
            end, _ = self.linked.popitem()
            end.flush()

    def grant(self) -> None:
        """Perhaps those who had to wait may go on."""
        waiting_links, self.waiting_links = self.waiting_links, {}
        for owner_end in waiting_links:
            owner_end.grant()

    def tick_links(self) -> None:
        self.arrivals.tick()
        self.detachment.tick()
        for queue, ticks in list(self.suspended.items()):
            self.suspended[queue] = ticks + 1
            if ticks >= MASTERLESS_TICKS_MAX:
                queue.give_up()
            elif ticks * 1_000 >= self.outboxes.answer_ms:
                queue.answer_publishers()
        for client_end in self.client_ends.values():
            client_end.tick()
        self.spools.tick()

    # -- What queues ask -----------------------------------------------------------------------------------------

    def rules_of(self, spec: QueueSpec) -> QueueRules:
        return self.policies.rules_of(spec)

    def refresh(self, queue: LocalQueue) -> None:
        self.policies.refresh(queue)

    def load(self, queue: Queue, read: GapRead) -> None:
        self.node.load(queue, read)

    def read_range(
        self, queue: int, first: int, last: int, bytes_max: int, then: Callable[[list[Run] | None, int], None]
    ) -> None:
        self.node.read_range(queue, first, last, bytes_max, then)

    def spill(self, queue: LocalQueue, runs: list[Run]) -> None:
        self.node.spill(queue, runs)

    def page_out_unacked(self) -> None:
        """Consumers without a prefetch limit may hold a whole backlog in hand, and full targets may refuse a whole
        backlog of dead letters; memory need not."""
        self.dead_letters.retry.page_out()
        for session in self.sessions:
            for delivered in session.unacked.all_out():
                if self.content_bytes <= self.content_bytes_max:
                    return
                delivered.queue.page_out_unacked(delivered.batch, delivered.count)
        for owner_end in self.owner_ends.values():
            for delivered in owner_end.unacked:
                if self.content_bytes <= self.content_bytes_max:
                    return
                delivered.queue.page_out_unacked(delivered.batch, delivered.count)

    def when_loaded(self, queue: LocalQueue, then: Callable[[], None]) -> None:
        self.waiting_for_load.setdefault(queue, []).append(then)

    def successor(self, queue: AnyQueue) -> AnyQueue | None:
        found = self.queues_by_id.get(queue.spec.id)
        return None if found is queue else found

    def counts_of(self, queue: LocalQueue) -> dict[int, int]:
        return self.node.counts_of(queue.spec.id)

    def stored_within(self, queue: LocalQueue, first: int, last: int) -> list[tuple[int, int]]:
        return self.node.measure(queue.spec.id, Wanted(first, last)).ranges

    def measure(self, queue: LocalQueue, wanted: Wanted) -> Measured:
        return self.node.measure(queue.spec.id, wanted)

    def note(self, text: str) -> None:
        self.node.note("queue", "info", visible(text))

    def on_unused(self, queue: AnyQueue, then: Callable[[], None] | None = None) -> None:
        if then is None or not self.mirrors.majority:
            self._delete(queue)
            if then is not None:
                then()
            return

        def on_answer(applied: Applied) -> None:
            if applied.refused is not None and not queue.deleted:
                self._delete(queue)  # The majority is lost: whenever it is back.
            then()

        self._delete(queue, on_answer, patient=False)

    def _delete(
        self, queue: AnyQueue, then: Callable[[Applied], None] = lambda applied: None, patient: bool = True
    ) -> None:
        """Nothing keeps the queue any more. Clients may know that before it is agreed on (they were told that its last
        consumer is gone): what they ask from now on, they ask of a queue that is not there."""
        spec = queue.spec
        if queue.is_local:
            queue.begin_deletion()
            self.vhosts[spec.vhost].end_publishes_to(queue)
        self.propose(c.DeleteQueue(spec.vhost, spec.name, spec.id), then, patient)

    # -- What connections ask ------------------------------------------------------------------------------------

    def refuse_login(self, user: str, password: str | None) -> str | None:
        """Why these credentials do not do, for the log; None if they do. Without a password: a certificate has said who
        it is."""
        spec = self.metadata.users.get(user)
        if spec is None:
            return f"user '{user}' does not exist"
        if password is None:
            return None
        if not spec.password_hash:
            return f"user '{user}' has no password"
        if not verify_password(password, spec.password_hash, spec.hashing):
            return f"user '{user}' - invalid credentials"
        return None

    def tags_of(self, user: str) -> tuple[str, ...]:
        spec = self.metadata.users.get(user)
        if spec is None:
            return OPERATORS_TAGS if user == OPERATOR else ()
        return spec.tags

    def _cluster_digits(self) -> bytes:
        """The id of the cluster, as origins of messages name it."""
        found = parse_cluster_id(self.metadata.global_parameters.get(CLUSTER_ID))
        return NO_CLUSTER if found is None else found.hex().encode()

    def number_connection(self) -> int:
        self.connection_count += 1
        return self.connection_count

    def refuse_entry(self, user: str, vhost: str) -> str | None:
        """Why a user that has logged in may not enter a vhost now, in RabbitMQ's words; None if it may."""
        if vhost not in self.vhosts:
            return f"vhost {vhost} not found"
        limit = self.connection_limits.limit_reached(IN_VHOST + vhost)
        if limit is not None:
            return f"access to vhost '{vhost}' refused for user '{user}': connection limit ({limit}) is reached"
        limit = self.connection_limits.limit_reached(OF_USER + user)
        if limit is not None:
            return f"connection refused for user '{user}': user connection limit ({limit}) is reached"
        if not self.permissions.may_enter(user, vhost):
            return f"access to vhost '{vhost}' refused for user '{user}'"
        return None

    def enter(self, client: Client, user: str, vhost: str, number: int | None = None, counts: bool = True) -> Login:
        """A client of any protocol has logged in, and enters a vhost that is there. Unless it `counts`, it is not
        counted against the limits of its user and vhost."""
        number = self.number_connection() if number is None else number
        login = self.clients[client] = Login(self, user, self.vhosts[vhost], number, counts)
        self.connection_limits.on_clients()
        if counts:
            self.totals.connections_opened += 1
            self.connection_limits.on_connection(user, vhost, 1)
        return login

    def leave(self, client: Client) -> None:
        """The client is gone; its sessions were closed. The queues are deleted that only it could use."""
        login = self.clients.pop(client, None)
        if login is None:
            return
        self.connection_limits.on_clients()
        for queue in login.take_exclusive_queues():
            self.give_up(queue, lambda applied: None)
        if login.counts:
            self.totals.connections_closed += 1
            self.connection_limits.on_connection(login.user, login.vhost.name, -1)

    def on_connection_opened(self, connection: ClientConnection, login: Login) -> None:
        """A client has entered over the network."""
        self.connections[connection] = login.id

    def on_connection_closed(self, connection: ClientConnection) -> None:
        self.connections.pop(connection, None)
        self.leave(connection)  # type: ignore[arg-type]  # It is a `Client`, too: it entered as one.

    def give_up(self, queue: AnyQueue, then: Callable[[Applied], None]) -> None:
        """Delete a queue that only a client could use that goes."""
        self._delete(queue, then)

    def on_session_closed(self, session: Session) -> None:
        self.sessions.pop(session, None)
        if self.ended is not None:
            self.ended[session] = None

    def unique_name(self, prefix: str) -> str:
        return self.node.unique_name(prefix)

    def _close_all_of(self, vhost: str) -> None:
        """Close the clients of a vhost that is gone, at once: nothing that they ask for has a meaning any more."""
        for client, login in list(self.clients.items()):
            if login.vhost.name == vhost:
                client.close(320, "vhost deleted")

    def _close_some(self) -> None:
        """Close some of the clients whose user is gone. The others may do nothing any more, and follow in later
        turns."""
        for _ in range(min(len(self.closing), CLOSED_AT_ONCE)):
            client, why = self.closing.popleft()
            if client in self.clients:
                client.close(320, why)


def _free_some(rows: list[deque[Span | Gap]], steps: int) -> int:
    """A job: free some of these."""
    left = steps * FREED_A_STEP
    while rows and left > 0:
        row = rows[-1]
        for _ in range(min(left, len(row))):
            row.pop()
            left -= 1
        if not row:
            rows.pop()
    return steps if rows else 0
