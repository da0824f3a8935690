"""The subscriptions of a client: queues, bindings and consumers for them, and retained messages when they begin.

A session has two queues, named as RabbitMQ names them. `mqtt-subscription-CLIENTqos0` is for subscriptions of QoS 0: it
is exclusive, and goes with the connection. `mqtt-subscription-CLIENTqos1` is for QoS 1 and 2: it is durable if the
session outlives the connection, and exclusive otherwise. A filter is a binding of one of them to the exchange.

A shared subscription has a queue of its own, `mqtt-subscription-$share/GROUP/FILTER`, which all members of the group
consume from. It is deleted with the last subscription, or when nobody has consumed from it for as long as a session can
last.

Retained messages that a new subscription finds are put into its queue, and take their way from there: so they are
acknowledged, sent again and paced like all others. See `retained_handover`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from leveret.broker.client_ids.client_ids import SessionChange
from leveret.broker.session.wanted import BindingWanted, ConsumerWanted, QueueWanted
from leveret.metadata.model.records import Binding
from leveret.metadata.model.refusals import Refusal
from leveret.metadata.mqtt.records import Subscription
from leveret.protocol.errors import ReplyCode
from leveret.protocol.mqtt import packets as k
from leveret.protocol.mqtt.properties import Prop
from leveret.protocol.mqtt.reason_codes import Reason, protocol_error
from leveret.protocol.mqtt.topic_index import FilterIndex
from leveret.protocol.mqtt.topics import BadTopic, SharedFilter, matches, parse_shared
from leveret.protocol.tables import Field, Table
from leveret.sessions.mqtt.deliveries import IDS, MqttConsumer
from leveret.sessions.mqtt.limits import NEVER_S
from leveret.sessions.mqtt.login import QUEUE_PREFIX, reason_of
from leveret.sessions.mqtt.retained_handover import RetainedHandover
from leveret.sessions.mqtt.routing_keys import pattern_of
from leveret.sessions.mqtt.system_topics import SYSTEM, SystemFeed

if TYPE_CHECKING:
    from leveret.broker.broker import AnyQueue
    from leveret.broker.delivery.offsets import Start
    from leveret.broker.session.wanted import QueueFound
    from leveret.metadata.mqtt.records import ClientSession
    from leveret.sessions.mqtt.connection import Connection
    from leveret.sessions.mqtt.messages import Message

EXPIRES_MS_MAX: Final = 10 * 365 * 86_400_000  # As for `x-expires`.
FILTERS_MAX: Final = 10_000  # Of one client.


class Granted(NamedTuple):
    """What the subscriptions that match a message say about it."""

    qos: int
    retain_as_published: bool
    identifiers: tuple[int, ...]


class Countdown:
    """Calls `then` when so many answers have come, with the first refusal among them."""

    def __init__(self, count: int, then: Callable[[Refusal | None], None]) -> None:
        self.left = count + 1
        self.then = then
        self.refusal: Refusal | None = None
        self.tick(None)

    def tick(self, answer: object) -> None:
        if isinstance(answer, Refusal):
            self.refusal = self.refusal or answer
        self.left -= 1
        if not self.left:
            self.then(self.refusal)


class Subscriptions:
    """The subscribing side of a connection."""

    __slots__ = ("connection", "declared", "handovers", "index", "is_kept", "options", "system")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.options: dict[str, Subscription] = {}  # By filter, as the client wrote it.
        self.index: FilterIndex[None, Subscription] = FilterIndex()  # Those that are not shared.
        self.is_kept = False  # The session outlives the connection.
        self.declared: set[str] = set()  # Names of queues.
        self.system: SystemFeed | None = None  # While there is a subscription to a topic below `$SYS`.
        self.handovers: dict[str, RetainedHandover] = {}  # By filter: under way.

    # -- Names ---------------------------------------------------------------------------------------------------

    def queue_of(self, topic_filter: str, options: Subscription) -> str:
        if parse_shared(topic_filter).group:
            return QUEUE_PREFIX + topic_filter
        return f"{QUEUE_PREFIX}{self.connection.client_id}qos{min(options.qos, 1)}"

    def _wanted(self, name: str) -> QueueWanted:
        limits = self.connection.limits
        kind: Table = {}
        if limits.durable_queue_type != "classic":
            kind["x-queue-type"] = Field("S", limits.durable_queue_type)
        if name.startswith(f"{QUEUE_PREFIX}$share/"):
            if limits.session_expiry_max_s != NEVER_S:
                last_ms = max(limits.session_expiry_max_s * 1_000, 60_000)
                kind["x-expires"] = Field("l", min(last_ms, EXPIRES_MS_MAX))
            return QueueWanted(name, durable=True, arguments=kind)
        vhost = self.connection.vhost
        there = None if vhost is None else vhost.queues.get(name)
        # A session that was to last, and now ends with this connection, has a durable queue with messages.
        was_kept = there is not None and there.spec.owner is None
        if (self.is_kept or was_kept) and name.endswith("qos1"):
            return QueueWanted(name, durable=True, arguments=kind)
        return QueueWanted(name, exclusive=True)

    def binding(self, topic_filter: str, queue: str) -> BindingWanted:
        pattern = pattern_of(parse_shared(topic_filter).filter)
        return BindingWanted(self.connection.limits.exchange, "queue", queue, pattern)

    # -- What a message is to its client -------------------------------------------------------------------------

    def granted(self, message: Message, is_high: bool, group: str) -> Granted | None:
        """What the subscriptions say about a message from one of the queues; None if they do not want it."""
        if group:
            options = self.options.get(group)
            if options is None or not matches(parse_shared(group).filter, message.topic):
                return None
            identifiers = (options.identifier,) if options.identifier else ()
            return Granted(options.qos, options.retain_as_published, identifiers)
        own = message.publisher == self.connection.client_id
        matching = [one for _, _, one in self.index.find(message.topic) if not (own and one.no_local)]
        found = [one for one in matching if (one.qos > 0) == is_high]
        if not found and message.is_told and not message.topic.startswith("$"):
            # It came while the subscription had another QoS, and must not be lost. For other topics, what is in this
            # queue may be in the right one, too: see `routing_keys`.
            found = matching
        if not found:
            return None
        return Granted(
            max(one.qos for one in found),
            any(one.retain_as_published for one in found),
            tuple(one.identifier for one in found if one.identifier),
        )

    def changed(self) -> None:
        connection = self.connection
        connection.deliveries.on_subscriptions()
        wants_others = any(one.no_local for one in self.options.values())
        connection.publisher.set_publisher(connection.client_id if wants_others else "")

    def put(self, topic_filter: str, options: Subscription) -> None:
        self.options[topic_filter] = options
        if not parse_shared(topic_filter).group:
            self.index.put(topic_filter, None, options)
            if topic_filter.startswith(SYSTEM) and self.system is None and self.connection.limits.sys_interval_s:
                self.system = SystemFeed(self.connection)

    def drop(self, topic_filter: str) -> None:
        self.stop_retained(topic_filter)
        self.options.pop(topic_filter, None)
        self.index.remove(topic_filter, None)
        if self.system is not None and not any(one.startswith(SYSTEM) for one in self.options):
            self.system = None

    # -- Queues and consumers ------------------------------------------------------------------------------------

    def declare(self, names: Iterable[str], then: Callable[[Refusal | None], None]) -> None:
        missing = [name for name in dict.fromkeys(names) if name not in self.declared]
        countdown = Countdown(len(missing), then)
        for name in missing:
            self._declare_one(name, 0, countdown)

    def _declare_one(self, name: str, tries: int, countdown: Countdown) -> None:
        session = self.connection.session
        assert session is not None

        def on_declared(answer: QueueFound | Refusal) -> None:
            if isinstance(answer, Refusal):
                # The queue of a former connection of this client that has yet to be deleted.
                again = lambda: self._declare_one(name, tries + 1, countdown)  # noqa: E731
                if answer.code == ReplyCode.RESOURCE_LOCKED and self.connection.try_later(tries, again):
                    return
            else:
                self.declared.add(name)
            countdown.tick(answer)

        session.topology.declare_queue(self._wanted(name), on_declared)

    def consume_from(self, names: Iterable[str], then: Callable[[Refusal | None], None]) -> None:
        missing = [name for name in dict.fromkeys(names) if name not in self.connection.deliveries.consumers]
        countdown = Countdown(len(missing), then)
        for name in missing:
            self._consume_one(name, 0, countdown)

    def _consume_one(self, name: str, tries: int, countdown: Countdown) -> None:
        connection = self.connection
        session, deliveries = connection.session, connection.deliveries
        assert session is not None
        is_shared = name.startswith(f"{QUEUE_PREFIX}$share/")
        group = name.removeprefix(QUEUE_PREFIX) if is_shared else ""
        low = not is_shared and name.endswith("qos0")
        wanted = ConsumerWanted(
            name, no_ack=low, exclusive=not is_shared, prefetch=0 if low else min(deliveries.window, IDS)
        )

        def on_consuming(answer: str | Refusal) -> None:
            if isinstance(answer, Refusal):
                # The consumer of a former connection of this client that has yet to end.
                again = lambda: self._consume_one(name, tries + 1, countdown)  # noqa: E731
                in_use = answer.code == ReplyCode.ACCESS_REFUSED and "in exclusive use" in answer.text
                if in_use and connection.try_later(tries, again):
                    return
                deliveries.consumers.pop(name, None)
            countdown.tick(answer)

        def make(queue: AnyQueue, start: Start | None) -> MqttConsumer:
            consumer = deliveries.consumers[name] = MqttConsumer(connection, queue, wanted, start, group)
            return consumer

        session.subscribe(wanted, make, on_consuming)

    def on_queue_deleted(self, consumer: MqttConsumer) -> None:
        """Somebody has deleted a queue of the session: its subscriptions lead nowhere, which the client must know."""
        connection = self.connection
        connection.deliveries.consumers.pop(consumer.queue.spec.name, None)
        if not connection.closed:
            connection.end(Reason.ADMINISTRATIVE_ACTION, "a queue of the session was deleted")

    # -- The session goes on -------------------------------------------------------------------------------------

    def resume(self, session: ClientSession, is_kept: bool, then: Callable[[Refusal | None], None]) -> None:
        """Make what the subscriptions of the session need, and is not there: queues and bindings."""
        self.is_kept = is_kept
        for topic_filter, options in session.subscriptions.items():
            self.put(topic_filter, options)
        self.changed()
        queues = {topic_filter: self.queue_of(topic_filter, one) for topic_filter, one in self.options.items()}

        def on_declared(refusal: Refusal | None) -> None:
            if refusal is not None or self.connection.closed:
                then(refusal)
                return
            wanted = [self.binding(topic_filter, queue) for topic_filter, queue in queues.items()]
            self._bind([one for one in wanted if not self.is_bound(one)], then)

        self.declare(queues.values(), on_declared)

    def consume(self, then: Callable[[Refusal | None], None]) -> None:
        """Have the messages of the session delivered."""
        names = [self.queue_of(topic_filter, options) for topic_filter, options in self.options.items()]
        self.consume_from(names, then)

    def is_bound(self, wanted: BindingWanted) -> bool:
        vhost = self.connection.vhost
        assert vhost is not None
        binding = Binding(vhost.name, wanted.source, wanted.kind, wanted.destination, wanted.key, wanted.arguments)
        return binding in self.connection.broker.metadata.bindings

    def _bind(self, wanted: list[BindingWanted], then: Callable[[Refusal | None], None]) -> None:
        session = self.connection.session
        assert session is not None
        countdown = Countdown(len(wanted), then)
        for one in wanted:
            session.topology.bind(one, countdown.tick)

    # -- SUBSCRIBE -----------------------------------------------------------------------------------------------

    def on_subscribe(self, packet: k.Subscribe) -> None:
        """Raises `MqttError`."""
        self.connection.hold()
        _Subscribing(self, packet).begin()

    def on_unsubscribe(self, packet: k.Unsubscribe) -> None:
        self.connection.hold()
        _Unsubscribing(self, packet).begin()

    def unbind(self, topic_filter: str, options: Subscription, then: Callable[[bool | Refusal], None]) -> None:
        """Take away the binding of a subscription, unless another one of the same queue needs it: `*` is a level of a
        topic, and a wildcard in a binding."""
        session, queue = self.connection.session, self.queue_of(topic_filter, options)
        assert session is not None
        wanted = self.binding(topic_filter, queue)
        for other, its in self.options.items():
            if other != topic_filter and self.queue_of(other, its) == queue and self.binding(other, queue) == wanted:
                then(True)
                return
        session.topology.unbind(wanted, then)

    # -- Retained messages ---------------------------------------------------------------------------------------

    def send_retained(self, topic_filter: str) -> None:
        """Put the retained messages that a filter finds into the queue of its subscription."""
        self.stop_retained(topic_filter)
        handover = self.handovers[topic_filter] = RetainedHandover(self.connection, topic_filter)
        handover.begin()
        if self.system is not None and topic_filter.startswith(SYSTEM):
            self.system.send_all(topic_filter)

    def stop_retained(self, topic_filter: str) -> None:
        handover = self.handovers.get(topic_filter)
        if handover is not None:
            handover.stop()

    def forget(self) -> None:
        """The connection ends."""
        for handover in list(self.handovers.values()):
            handover.stop()


class _Subscribing:
    """One SUBSCRIBE: queues and consumers, then bindings, then the record of the session, then SUBACK."""

    def __init__(self, subscriptions: Subscriptions, packet: k.Subscribe) -> None:
        self.subscriptions = subscriptions
        self.connection = subscriptions.connection
        self.packet = packet
        self.reasons: list[int] = [one.qos for one in packet.subscriptions]
        self.text = ""
        self.before: dict[str, Subscription | None] = {}  # What there was of each filter.
        self.wanted: dict[str, Subscription] = {}  # Filters that can be subscribed to.

    def begin(self) -> None:
        (identifier,) = self.packet.properties.get(Prop.SUBSCRIPTION_ID, [0])
        parts = self.subscriptions
        for at, one in enumerate(self.packet.subscriptions):
            try:
                shared = self._check(one)
            except BadTopic as error:
                self._refuse(at, Reason.TOPIC_FILTER_INVALID, str(error))
                continue
            if shared.group and one.no_local:
                self.connection.waits -= 1
                raise protocol_error("a shared subscription with no local")
            if len(parts.options) + len(self.wanted) >= FILTERS_MAX and one.topic_filter not in parts.options:
                self._refuse(at, Reason.QUOTA_EXCEEDED, f"more than {FILTERS_MAX} filters")
                continue
            self.wanted[one.topic_filter] = Subscription(
                one.qos, one.no_local, one.retain_as_published, one.retain_handling, identifier
            )
        names = [parts.queue_of(topic_filter, options) for topic_filter, options in self.wanted.items()]
        parts.declare(names, self._on_declared)

    @staticmethod
    def _check(one: k.Subscription) -> SharedFilter:
        shared = parse_shared(one.topic_filter)
        if shared.group and len((QUEUE_PREFIX + one.topic_filter).encode()) > 255:
            raise BadTopic("a shared subscription has at most 237 bytes")
        return shared

    def _refuse(self, at: int, reason: Reason, text: str) -> None:
        self.reasons[at], self.text = reason, text

    def _refuse_all(self, refusal: Refusal) -> None:
        for at, one in enumerate(self.packet.subscriptions):
            if one.topic_filter in self.wanted:
                self._refuse(at, reason_of(refusal), refusal.text)
        self._undo(list(self.wanted))
        self._answer()

    def _undo(self, filters: list[str]) -> None:
        for topic_filter in filters:
            self.wanted.pop(topic_filter, None)
            if topic_filter in self.before:
                before = self.before.pop(topic_filter)
                if before is None:
                    self.subscriptions.drop(topic_filter)
                else:
                    self.subscriptions.put(topic_filter, before)
        self.subscriptions.changed()

    def _on_declared(self, refusal: Refusal | None) -> None:
        if self.connection.closed:
            return
        if refusal is not None:
            self._refuse_all(refusal)
            return
        parts = self.subscriptions
        for topic_filter, options in self.wanted.items():
            self.before[topic_filter] = parts.options.get(topic_filter)
            parts.put(topic_filter, options)
        parts.changed()
        parts.consume_from([parts.queue_of(one, options) for one, options in self.wanted.items()], self._on_consuming)

    def _on_consuming(self, refusal: Refusal | None) -> None:
        if self.connection.closed:
            return
        if refusal is not None:
            self._refuse_all(refusal)
            return
        parts, session = self.subscriptions, self.connection.session
        assert session is not None
        countdown = Countdown(len(self.wanted), self._on_bound)
        for topic_filter, options in list(self.wanted.items()):
            binding = parts.binding(topic_filter, parts.queue_of(topic_filter, options))
            if parts.is_bound(binding):
                countdown.tick(True)
            else:
                session.topology.bind(binding, self._bound(topic_filter, countdown))

    def _bound(self, topic_filter: str, countdown: Countdown) -> Callable[[bool | Refusal], None]:
        def on_bound(answer: bool | Refusal) -> None:
            if isinstance(answer, Refusal) and not self.connection.closed:
                for at, one in enumerate(self.packet.subscriptions):
                    if one.topic_filter == topic_filter:
                        self._refuse(at, reason_of(answer), answer.text)
                self._undo([topic_filter])
            countdown.tick(True)

        return on_bound

    def _on_bound(self, refusal: Refusal | None) -> None:
        """The bindings are there. One that led to the session's other queue goes."""
        if self.connection.closed:
            return
        parts = self.subscriptions
        moved = {
            topic_filter: before
            for topic_filter, before in self.before.items()
            if before is not None and (before.qos > 0) != (self.wanted[topic_filter].qos > 0)
        }
        countdown = Countdown(len(moved), lambda refusal: self._record())
        for topic_filter, before in moved.items():
            parts.unbind(topic_filter, before, countdown.tick)

    def _record(self) -> None:
        if self.connection.closed:
            return
        if self.subscriptions.is_kept and self.wanted:
            self.connection.change_session(SessionChange(subscribe=dict(self.wanted)), self._on_recorded)
        else:
            self._on_recorded(None)

    def _on_recorded(self, refusal: Refusal | None) -> None:
        if self.connection.closed:
            return
        if refusal is not None:
            self._refuse_all(refusal)
            return
        self._answer()

    def _answer(self) -> None:
        connection = self.connection
        connection.send(k.Suback(self.packet.packet_id, self.reasons, connection.told(self.text)))
        for topic_filter, options in self.wanted.items():
            is_new = self.before.get(topic_filter) is None
            if not parse_shared(topic_filter).group and (
                options.retain_handling == 0 or (options.retain_handling == 1 and is_new)
            ):
                self.subscriptions.send_retained(topic_filter)
        connection.release()


class _Unsubscribing:
    """One UNSUBSCRIBE: bindings, then the record of the session, then UNSUBACK."""

    def __init__(self, subscriptions: Subscriptions, packet: k.Unsubscribe) -> None:
        self.subscriptions = subscriptions
        self.connection = subscriptions.connection
        self.packet = packet
        self.found = {one: subscriptions.options[one] for one in packet.filters if one in subscriptions.options}
        self.reasons = [
            Reason.SUCCESS if one in self.found else Reason.NO_SUBSCRIPTION_EXISTED for one in packet.filters
        ]

    def begin(self) -> None:
        countdown = Countdown(len(self.found), self._on_unbound)
        for topic_filter, options in self.found.items():
            if parse_shared(topic_filter).group:
                self._leave_group(topic_filter, countdown)
            else:
                self.subscriptions.unbind(topic_filter, options, countdown.tick)

    def _leave_group(self, topic_filter: str, countdown: Countdown) -> None:
        """The last member of a group takes its queue along."""
        connection, name = self.connection, QUEUE_PREFIX + topic_filter
        session, vhost = connection.session, connection.vhost
        assert session is not None and vhost is not None
        consumer = connection.deliveries.consumers.pop(name, None)
        others = any(
            topic_filter in one.subscriptions and one.client_id != connection.client_id
            for one in connection.broker.client_ids.sessions(vhost.name)
        )

        self.subscriptions.declared.discard(name)
        if consumer is not None:
            consumer.queue.remove_consumer(consumer)
            session.forget_consumer(consumer.tag)
        if others:
            countdown.tick(None)
        else:  # Members without a session that lasts are consumers: then it is in use, and stays.
            session.topology.delete_queue(name, lambda answer: countdown.tick(None), if_unused=True)

    def _on_unbound(self, refusal: Refusal | None) -> None:
        if self.connection.closed:
            return
        if refusal is not None:
            self.found = {}
            self.reasons = [reason_of(refusal)] * len(self.reasons)
        for topic_filter in self.found:
            self.subscriptions.drop(topic_filter)
        self.subscriptions.changed()
        if self.subscriptions.is_kept and self.found:
            self.connection.change_session(SessionChange(unsubscribe=tuple(self.found)), self._on_recorded)
        else:
            self._on_recorded(None)

    def _on_recorded(self, refusal: Refusal | None) -> None:
        if not self.connection.closed:
            self.connection.send(k.Unsuback(self.packet.packet_id, list(self.reasons)))
            self.connection.release()
