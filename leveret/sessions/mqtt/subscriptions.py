"""The subscriptions of a client: queues, bindings and consumers for them, and retained messages when they begin.

A session has two queues, named as RabbitMQ names them. `mqtt-subscription-CLIENTqos0` is for subscriptions of QoS 0: it
is exclusive, and goes with the connection. `mqtt-subscription-CLIENTqos1` is for QoS 1 and 2: it is durable if the
session outlives the connection, and exclusive otherwise. A filter is a binding of one of them to the exchange.

A shared subscription has a queue of its own, `mqtt-subscription-$share/GROUP/FILTER`, which all members of the group
consume from. It is deleted with the last subscription, or when nobody has consumed from it for as long as a session can
last. Messages of QoS 2 go through the queue of the member's session if that lasts: see `shared_delivery`.

Retained messages that a new subscription finds are put into its queue, and take their way from there: so they are
acknowledged, sent again and paced like all others. See `retained_handover`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

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
from leveret.sessions.mqtt.granted import Granted
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
COPIES: Final = 512  # A SUBSCRIBE costs so much of a turn as so many copies of a publish to many queues.

Place = tuple[str, str]  # A binding of a session: the queue, and the pattern.


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


class Refusals:
    """Calls `then` when so many answers have come, with the refusals among them, by name."""

    def __init__(self, count: int, then: Callable[[dict[str, Refusal]], None]) -> None:
        self.found: dict[str, Refusal] = {}
        self.countdown = Countdown(count, lambda refusal: then(self.found))

    def tick(self, name: str, answer: object) -> None:
        if isinstance(answer, Refusal):
            self.found[name] = answer
        self.countdown.tick(None)


class Subscriptions:
    """The subscribing side of a connection."""

    __slots__ = (
        "connection", "declared", "handovers", "index", "is_kept", "no_local", "options", "places", "system",
        "system_filters",
    )  # fmt: skip

    def __init__(self, connection: Connection, is_kept: bool) -> None:
        self.connection = connection
        self.options: dict[str, Subscription] = {}  # By filter, as the client wrote it.
        self.index: FilterIndex[None, Subscription] = FilterIndex()  # Those that are not shared.
        self.is_kept = is_kept  # The session outlives the connection.
        self.places: Counter[Place] = Counter()  # How many subscriptions need each binding.
        # Sets as dicts: an empty dict is a third of an empty set.
        self.no_local: dict[str, None] = {}  # Filters that want none of the client's own messages.
        self.system_filters: dict[str, None] = {}  # Filters of topics below `$SYS`.
        self.declared: dict[str, None] = {}  # Names of queues.
        self.system: SystemFeed | None = None  # While there is a subscription to a topic below `$SYS`.
        self.handovers: dict[str, RetainedHandover] = {}  # By filter: under way.

    # -- Names ---------------------------------------------------------------------------------------------------

    def queue_of(self, topic_filter: str, options: Subscription) -> str:
        if parse_shared(topic_filter).group:
            return QUEUE_PREFIX + topic_filter
        return f"{QUEUE_PREFIX}{self.connection.client_id}qos{min(options.qos, 1)}"

    @property
    def own_queue(self) -> str:
        """The queue of the session for QoS 1 and 2."""
        return f"{QUEUE_PREFIX}{self.connection.client_id}qos1"

    def passes_on(self, topic_filter: str, options: Subscription) -> bool:
        """Messages of a shared subscription go through the queue of the session: see `shared_delivery`."""
        return options.qos == 2 and self.is_kept and bool(parse_shared(topic_filter).group)

    def queues_of(self, wanted: Mapping[str, Subscription]) -> list[str]:
        """The queues that subscriptions need, by name."""
        names = [self.queue_of(topic_filter, options) for topic_filter, options in wanted.items()]
        if any(self.passes_on(topic_filter, options) for topic_filter, options in wanted.items()):
            names.append(self.own_queue)
        return names

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

    def _place(self, topic_filter: str, options: Subscription) -> Place:
        return self.queue_of(topic_filter, options), pattern_of(parse_shared(topic_filter).filter)

    def binding(self, topic_filter: str, options: Subscription) -> BindingWanted:
        return self._binding_at(self._place(topic_filter, options))

    def _binding_at(self, place: Place) -> BindingWanted:
        return BindingWanted(self.connection.limits.exchange, "queue", *place)

    # -- What a message is to its client -------------------------------------------------------------------------

    def granted(self, message: Message, is_high: bool, group: str) -> Granted | None:
        """What the subscriptions say about a message from one of the queues; None if they do not want it."""
        if group:
            options = self.options.get(group)
            if options is None or not matches(parse_shared(group).filter, message.topic):
                return None
            identifiers = (options.identifier,) if options.identifier else ()
            return Granted(options.qos, options.retain_as_published, identifiers)
        matching = self.index.values(message.topic)
        if message.publisher == self.connection.client_id:
            matching = [one for one in matching if not one.no_local]
        if len(matching) == 1 and (matching[0].qos > 0) == is_high:
            one = matching[0]
            return Granted(one.qos, one.retain_as_published, (one.identifier,) if one.identifier else ())
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
        connection.set_publisher_name()

    def put(self, topic_filter: str, options: Subscription) -> None:
        self._forget(topic_filter)
        self.options[topic_filter] = options
        self.places[self._place(topic_filter, options)] += 1
        if options.no_local:
            self.no_local[topic_filter] = None
        if options.qos == 2:
            self.connection.deliveries.expect_exact()
        if not parse_shared(topic_filter).group:
            self.index.put(topic_filter, None, options)
            if topic_filter.startswith(SYSTEM) and self.connection.limits.sys_interval_s:
                self.system_filters[topic_filter] = None
                self.system = self.system or SystemFeed(self.connection)

    def drop(self, topic_filter: str) -> None:
        self.stop_retained(topic_filter)
        self._forget(topic_filter)
        self.index.remove(topic_filter, None)
        if not self.system_filters:
            self.system = None

    def _forget(self, topic_filter: str) -> None:
        options = self.options.pop(topic_filter, None)
        if options is not None:
            place = self._place(topic_filter, options)
            self.places[place] -= 1
            if not self.places[place]:
                del self.places[place]
        self.no_local.pop(topic_filter, None)
        self.system_filters.pop(topic_filter, None)

    # -- Queues and consumers ------------------------------------------------------------------------------------

    def declare(self, names: Iterable[str], then: Callable[[dict[str, Refusal]], None]) -> None:
        """Declare queues. `then` gets the refusals, by name: a vhost may have room for some of them only."""
        missing = [name for name in dict.fromkeys(names) if name not in self.declared]
        refusals = Refusals(len(missing), then)
        for name in missing:
            self._declare_one(name, 0, refusals)

    def _declare_one(self, name: str, tries: int, refusals: Refusals) -> None:
        session = self.connection.session
        assert session is not None

        def on_declared(answer: QueueFound | Refusal) -> None:
            if isinstance(answer, Refusal):
                # The queue of a former connection of this client that has yet to be deleted.
                again = lambda: self._declare_one(name, tries + 1, refusals)  # noqa: E731
                if answer.code == ReplyCode.RESOURCE_LOCKED and self.connection.try_later(tries, again):
                    return
            else:
                self.declared[name] = None
            refusals.tick(name, answer)

        session.topology.declare_queue(self._wanted(name), on_declared)

    def consume_from(self, names: Iterable[str], then: Callable[[dict[str, Refusal]], None]) -> None:
        missing = [name for name in dict.fromkeys(names) if name not in self.connection.deliveries.consumers]
        refusals = Refusals(len(missing), then)
        for name in missing:
            self._consume_one(name, 0, refusals)

    def _consume_one(self, name: str, tries: int, refusals: Refusals) -> None:
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
                again = lambda: self._consume_one(name, tries + 1, refusals)  # noqa: E731
                in_use = answer.code == ReplyCode.ACCESS_REFUSED and "in exclusive use" in answer.text
                if in_use and connection.try_later(tries, again):
                    return
                deliveries.consumers.pop(name, None)
            refusals.tick(name, answer)

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

    def resume(self, session: ClientSession, then: Callable[[Refusal | None], None]) -> None:
        """Make what the subscriptions of the session need, and is not there: queues and bindings."""
        for topic_filter, options in session.subscriptions.items():
            self.put(topic_filter, options)
        self.changed()
        queues = self.queues_of(self.options)

        def on_declared(refusals: dict[str, Refusal]) -> None:
            if refusals or self.connection.closed:
                then(next(iter(refusals.values()), None))
                return
            wanted = [self.binding(topic_filter, one) for topic_filter, one in self.options.items()]
            self._bind([one for one in wanted if not self.is_bound(one)], then)

        self.declare(queues, on_declared)

    def consume(self, then: Callable[[dict[str, Refusal]], None]) -> None:
        """Have the messages of the session delivered."""
        names = self.queues_of(self.options)
        if self.has_own_queue():  # What was begun is completed, whatever the client has unsubscribed from.
            names.append(self.own_queue)
        self.consume_from(names, then)

    def has_own_queue(self) -> bool:
        vhost = self.connection.vhost
        return self.is_kept and vhost is not None and self.own_queue in vhost.queues

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

    def unbind(self, leaving: Mapping[str, Subscription], then: Callable[[Refusal | None], None]) -> None:
        """Take away the bindings of subscriptions, unless another one of the same queue needs them: `*` is a level of a
        topic, and a wildcard in a binding."""
        session = self.connection.session
        assert session is not None
        places = {topic_filter: self._place(topic_filter, options) for topic_filter, options in leaving.items()}
        own = Counter(
            place
            for topic_filter, place in places.items()
            if topic_filter in self.options and self._place(topic_filter, self.options[topic_filter]) == place
        )
        unneeded = [place for place in dict.fromkeys(places.values()) if self.places[place] == own[place]]
        countdown = Countdown(len(unneeded), then)
        for place in unneeded:
            session.topology.unbind(self._binding_at(place), countdown.tick)

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
        self.at: dict[str, list[int]] = {}  # Where each filter is among them.
        for at, one in enumerate(packet.subscriptions):
            self.at.setdefault(one.topic_filter, []).append(at)
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
                self.connection.drop_wait()
                raise protocol_error("a shared subscription with no local")
            if len(parts.options) + len(self.wanted) >= FILTERS_MAX and one.topic_filter not in parts.options:
                self._refuse(at, Reason.QUOTA_EXCEEDED, f"more than {FILTERS_MAX} filters")
                continue
            self.wanted[one.topic_filter] = Subscription(
                one.qos, one.no_local, one.retain_as_published, one.retain_handling, identifier
            )
        subscribing = self.connection.broker.subscribing
        if subscribing.left > 0:
            self.on_portion()
        else:
            subscribing.waiting[self] = None

    def on_portion(self) -> None:
        """Go on, in this turn or in a later one: thousands of clients may subscribe at once."""
        if self.connection.closed:
            return
        parts = self.subscriptions
        self.connection.broker.subscribing.left -= COPIES
        parts.declare(parts.queues_of(self.wanted), self._on_declared)

    @staticmethod
    def _check(one: k.Subscription) -> SharedFilter:
        shared = parse_shared(one.topic_filter)
        if shared.group and len((QUEUE_PREFIX + one.topic_filter).encode()) > 255:
            raise BadTopic("a shared subscription has at most 237 bytes")
        return shared

    def _refuse(self, at: int, reason: Reason, text: str) -> None:
        self.reasons[at], self.text = reason, text

    def _refuse_all(self, refusal: Refusal) -> None:
        for topic_filter in list(self.wanted):
            self._refuse_filter(topic_filter, refusal)
        self.subscriptions.changed()
        self._answer()

    def _refuse_queues(self, refusals: dict[str, Refusal]) -> None:
        """Refuse the filters whose queues were refused; the others go on."""
        for topic_filter, options in list(self.wanted.items()):
            refusal = refusals.get(self.subscriptions.queue_of(topic_filter, options))
            if refusal is None and self.subscriptions.passes_on(topic_filter, options):
                refusal = refusals.get(self.subscriptions.own_queue)
            if refusal is not None:
                self._refuse_filter(topic_filter, refusal)

    def _refuse_filter(self, topic_filter: str, refusal: Refusal) -> None:
        """Refuse a filter wherever the packet has it; what there was of it before is there again."""
        for at in self.at[topic_filter]:
            self._refuse(at, reason_of(refusal), refusal.text)
        del self.wanted[topic_filter]
        if topic_filter in self.before:
            before = self.before.pop(topic_filter)
            if before is None:
                self.subscriptions.drop(topic_filter)
            else:
                self.subscriptions.put(topic_filter, before)

    def _on_declared(self, refusals: dict[str, Refusal]) -> None:
        if self.connection.closed:
            return
        self._refuse_queues(refusals)
        parts = self.subscriptions
        for topic_filter, options in self.wanted.items():
            self.before[topic_filter] = parts.options.get(topic_filter)
            parts.put(topic_filter, options)
        parts.changed()
        parts.consume_from(parts.queues_of(self.wanted), self._on_consuming)

    def _on_consuming(self, refusals: dict[str, Refusal]) -> None:
        if self.connection.closed:
            return
        self._refuse_queues(refusals)
        parts, session = self.subscriptions, self.connection.session
        assert session is not None
        countdown = Countdown(len(self.wanted), self._on_bound)
        for topic_filter, options in list(self.wanted.items()):
            binding = parts.binding(topic_filter, options)
            if parts.is_bound(binding):
                countdown.tick(True)
            else:
                session.topology.bind(binding, self._bound(topic_filter, countdown))

    def _bound(self, topic_filter: str, countdown: Countdown) -> Callable[[bool | Refusal], None]:
        def on_bound(answer: bool | Refusal) -> None:
            if isinstance(answer, Refusal) and not self.connection.closed:
                self._refuse_filter(topic_filter, answer)
            countdown.tick(True)

        return on_bound

    def _on_bound(self, refusal: Refusal | None) -> None:
        """The bindings are there. One that led to the session's other queue goes."""
        if self.connection.closed:
            return
        parts = self.subscriptions
        parts.changed()
        moved = {
            topic_filter: before
            for topic_filter, before in self.before.items()
            if before is not None and (before.qos > 0) != (self.wanted[topic_filter].qos > 0)
        }
        parts.unbind(moved, lambda refusal: self._record())

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
        shared = {topic_filter for topic_filter in self.found if parse_shared(topic_filter).group}
        used = self._used_by_others(shared)
        countdown = Countdown(len(shared) + 1, self._on_unbound)
        for topic_filter in shared:
            self._leave_group(topic_filter, topic_filter in used, countdown)
        leaving = {one: options for one, options in self.found.items() if one not in shared}
        self.subscriptions.unbind(leaving, countdown.tick)

    def _used_by_others(self, shared: set[str]) -> set[str]:
        """Return those of the shared subscriptions that other sessions have."""
        connection = self.connection
        if not shared or connection.vhost is None:
            return set()
        others = connection.broker.client_ids.sessions(connection.vhost.name)
        return {
            topic_filter
            for one in others
            if one.client_id != connection.client_id
            for topic_filter in one.subscriptions.keys() & shared
        }

    def _leave_group(self, topic_filter: str, is_used: bool, countdown: Countdown) -> None:
        """The last member of a group takes its queue along."""
        connection, name = self.connection, QUEUE_PREFIX + topic_filter
        session = connection.session
        assert session is not None
        consumer = connection.deliveries.consumers.pop(name, None)
        self.subscriptions.declared.pop(name, None)
        if consumer is not None:
            consumer.queue.remove_consumer(consumer)
            session.forget_consumer(consumer.tag)
        if is_used:
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
