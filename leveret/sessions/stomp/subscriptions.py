"""The subscriptions of a client: SUBSCRIBE and UNSUBSCRIBE, the queues behind them, and queues for answers.

    /queue/NAME       the queue is declared              ─▶ consume
    /amq/queue/NAME                                         consume
    /topic, /exchange a queue is declared ─▶ bind        ─▶ consume

Each step may have to be agreed on in the cluster: until the last is answered, the connection is held. A queue that was
made for a subscription which then fails, or whose client is gone by then, is deleted: nobody else knows its name.

A client knows a subscription by its `id`, and so does the consumer's tag (`T_ID`); one without an id (STOMP 1.0) by its
destination (`Q_DESTINATION`). A queue for answers (`/temp-queue/NAME` in reply-to) has a subscription with that id.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from leveret.broker.session.wanted import BindingWanted, ConsumerWanted, QueueWanted
from leveret.metadata.model.refusals import Refusal
from leveret.sessions.stomp.deliveries import ACK_MODES, StompConsumer
from leveret.sessions.stomp.destinations import SUBSCRIPTION_QUEUE, TEMP_QUEUE, Destination, Kind, durable_queue, parse
from leveret.sessions.stomp.errors import StompError, bad_value, printed, told
from leveret.sessions.stomp.limits import SUBSCRIPTIONS_MAX
from leveret.sessions.stomp.queues import consumer_arguments, is_durable, number_in, queue_of, refuse_selector

if TYPE_CHECKING:
    from leveret.broker.broker import AnyQueue
    from leveret.broker.delivery.offsets import Start
    from leveret.broker.session.session import Session
    from leveret.broker.session.wanted import QueueFound
    from leveret.protocol.stomp.frames import Frame
    from leveret.sessions.stomp.connection import Connection

PREFETCH_MAX = 65_535


class Subscription(NamedTuple):
    """One SUBSCRIBE that is in force."""

    consumer: StompConsumer
    destination: Destination
    description: str


class Subscriptions:
    """The subscribing side of a connection."""

    __slots__ = ("connection", "declared", "making", "of_tag", "reply_queues")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.of_tag: dict[str, Subscription] = {}
        self.declared: set[str] = set()  # Queues that the client has sent or subscribed to: declared once a session.
        self.reply_queues: dict[str, str] = {}  # By name in /temp-queue: the queue.
        self.making: str | None = None  # A queue with a name of our own, until it has its consumer.

    @property
    def _session(self) -> Session:
        session = self.connection.session
        assert session is not None
        return session

    # -- SUBSCRIBE -----------------------------------------------------------------------------------------------

    def on_subscribe(self, frame: Frame) -> None:
        """Raises `StompError`."""
        headers, connection = frame.headers, self.connection
        if is_durable(headers) and "id" not in headers:
            raise StompError("Missing Header", "Header 'id' is required for durable subscriptions")
        text = headers.get("destination")
        if text is None:
            raise StompError("Missing destination", "\"SUBSCRIBE\" must include a 'destination' header\n")
        destination = parse(text)
        if destination.kind is Kind.TEMP_QUEUE:
            raise StompError("Invalid destination", f"'{text}' is not a valid destination for 'SUBSCRIBE'\n")
        refuse_selector(headers)
        mode = ACK_MODES.get(headers.get("ack", "auto"))
        if mode is None:
            raise bad_value("ack", headers["ack"])
        prefetch = min(max(number_in(headers, "prefetch-count") or 0, 0), PREFETCH_MAX)
        subscription = headers.get("id")
        if subscription is not None and subscription.startswith(TEMP_QUEUE):
            raise StompError("Invalid id", f"SUBSCRIBE 'id' may not start with {TEMP_QUEUE}\n")
        tag, description = _named(subscription, text)
        if tag in self.of_tag:
            detail = f"A subscription identified by '{tag}' already exists."
            raise StompError("Duplicated subscription identifier", detail, ends=True)
        self._check_count()
        wanted = ConsumerWanted("", tag, mode.no_ack, False, prefetch, consumer_arguments(headers))

        def on_consumed(consumer: StompConsumer) -> None:
            self.of_tag[tag] = Subscription(consumer, destination, description)
            connection.send_receipt(frame)

        def on_queue(name: str) -> None:
            wanted.queue = name
            self._consume(wanted, mode.is_cumulative, subscription, on_consumed)

        if destination.kind is Kind.QUEUE:
            self.declare_target(destination, frame, lambda: on_queue(destination.name), is_source=True)
        elif destination.kind in (Kind.TOPIC, Kind.EXCHANGE):
            self._bound_queue(destination, frame, on_queue)
        else:
            on_queue(destination.name)

    def _check_count(self) -> None:
        if len(self.connection.deliveries.consumers) >= SUBSCRIPTIONS_MAX:
            text = f"A client has at most {SUBSCRIPTIONS_MAX} subscriptions\n"
            raise StompError("Too many subscriptions", text, ends=True)

    def declare_target(
        self, destination: Destination, frame: Frame, then: Callable[[], None], is_source: bool = False
    ) -> None:
        """Have the queue of a /queue destination. It is declared once a session, and again if it is gone."""
        name, vhost = destination.name, self.connection.vhost
        assert vhost is not None
        if name in self.declared and vhost.queue(name) is not None:
            then()
            return
        wanted = queue_of(destination, frame.headers, name, is_source)

        def on_declared(found: QueueFound) -> None:
            if len(self.declared) >= SUBSCRIPTIONS_MAX:
                self.declared.clear()
            self.declared.add(name)
            then()

        self._step(lambda answer: self._session.topology.declare_queue(wanted, answer), on_declared)

    def _bound_queue(self, destination: Destination, frame: Frame, then: Callable[[str], None]) -> None:
        """Have a queue that is bound to a topic or an exchange."""
        headers, topology = frame.headers, self._session.topology
        exchange, key = destination.route(self.connection.limits.default_topic_exchange)
        name = headers.get("x-queue-name", "")
        is_ours = not name and not is_durable(headers)
        if is_ours:
            name = self.connection.broker.unique_name(SUBSCRIPTION_QUEUE)
        elif not name:
            name = durable_queue(key, headers["id"])
        wanted = queue_of(destination, headers, name, True)

        def on_found(answer: bool) -> None:
            if is_ours:
                self.making = name
            self._step(lambda answer: topology.declare_queue(wanted, answer), on_declared)

        def on_declared(found: QueueFound) -> None:
            self._step(lambda answer: topology.bind(BindingWanted(exchange, "queue", name, key), answer), on_bound)

        def on_bound(answer: bool) -> None:
            then(name)

        self._step(lambda answer: topology.find_exchange(exchange, answer), on_found)

    def _consume(
        self,
        wanted: ConsumerWanted,
        is_cumulative: bool,
        subscription: str | None,
        then: Callable[[StompConsumer], None],
    ) -> None:
        connection = self.connection
        made: list[StompConsumer] = []

        def make(queue: AnyQueue, start: Start | None) -> StompConsumer:
            consumer = StompConsumer(connection, queue, wanted, start, is_cumulative, subscription)
            # A message may come, and be acknowledged, before the answer does.
            connection.deliveries.add(consumer)
            made.append(consumer)
            return consumer

        def on_consuming(tag: str) -> None:
            self.making = None
            then(made[0])

        self._step(lambda answer: self._session.subscribe(wanted, make, answer), on_consuming)

    def _step(self, ask: Callable[[Callable[[Any], None]], None], then: Callable[[Any], None]) -> None:
        """Ask the broker, and go on with its answer; meanwhile the connection is held. A refusal ends it."""
        connection = self.connection

        def on_answer(answer: Any) -> None:
            if connection.closed:
                self._abandon()
            elif isinstance(answer, Refusal):
                connection.fail_with(told(answer))
            else:
                connection.attempt(lambda: then(answer))
            connection.release()

        connection.hold()
        ask(on_answer)

    def _abandon(self) -> None:
        """Delete a queue that was made for a subscription which there will not be."""
        name, vhost = self.making, self.connection.vhost
        queue = None if name is None or vhost is None else vhost.queues.get(name)
        if queue is not None:
            self.making = None
            self.connection.broker.on_unused(queue)

    # -- UNSUBSCRIBE ---------------------------------------------------------------------------------------------

    def on_unsubscribe(self, frame: Frame) -> None:
        """Raises `StompError`."""
        headers, connection = frame.headers, self.connection
        subscription, text = headers.get("id"), headers.get("destination")
        if is_durable(headers) and subscription is None:
            raise StompError("Missing Header", "Header 'id' is required for durable subscriptions")
        if subscription is not None and subscription.startswith(TEMP_QUEUE):
            raise StompError("Invalid id", f"UNSUBSCRIBE 'id' may not start with {TEMP_QUEUE}\n")
        if subscription is None and text is None:
            detail = "UNSUBSCRIBE must include a 'destination' or 'id' header"
            raise StompError("Missing destination or id", detail)
        tag, description = _named(subscription, text or "")
        found = self.of_tag.get(tag)
        if found is None:
            detail = "UNSUBSCRIBE must refer to an existing subscription.\nSubscription to "
            raise StompError("No subscription found", f"{detail}{printed(description)} not found.\n")
        queue = found.consumer.queue.spec.name

        def on_ended(answer: object) -> None:
            connection.send_receipt(frame)

        self._remove(found.consumer)
        if is_durable(headers) and found.destination.kind is Kind.TOPIC:  # The consumer goes with its queue.
            self._step(lambda answer: self._session.topology.delete_queue(queue, answer), on_ended)
        else:
            self._step(lambda answer: self._session.cancel(tag, answer), on_ended)

    def _remove(self, consumer: StompConsumer) -> None:
        self.of_tag.pop(consumer.tag, None)
        self.connection.deliveries.remove(consumer)

    def on_cancelled(self, consumer: StompConsumer) -> None:
        """The server ends a subscription: its queue is gone."""
        found = self.of_tag.get(consumer.tag)
        self._remove(consumer)
        if consumer.id is not None and consumer.id.startswith(TEMP_QUEUE):
            self.reply_queues.pop(consumer.id.removeprefix(TEMP_QUEUE), None)
        if found is None or found.consumer is not consumer:
            return
        detail = (
            "The server has canceled a subscription.\n"
            f"No more messages will be delivered for {printed(found.description)}.\n"
        )
        named = consumer.tag[2:] if consumer.id is None else consumer.id
        self.connection.tell(StompError("Server cancelled subscription", detail, more=(("subscription", named),)))

    # -- Answers -------------------------------------------------------------------------------------------------

    def reply_queue(self, name: str, then: Callable[[str], None]) -> None:
        """Have a queue for answers, and a subscription to it. `then` is told the name of the queue. Raises
        `StompError`."""
        known, connection = self.reply_queues.get(name), self.connection
        if known is not None:
            then(known)
            return
        self._check_count()
        subscription = TEMP_QUEUE + name
        tag, description = _named(subscription, "")
        wanted = ConsumerWanted("", tag, no_ack=True)

        def on_declared(found: QueueFound) -> None:
            wanted.queue = found.name
            self._consume(wanted, False, subscription, on_consumed)

        def on_consumed(consumer: StompConsumer) -> None:
            self.reply_queues[name] = wanted.queue
            destination = Destination(Kind.TEMP_QUEUE, name)
            self.of_tag[tag] = Subscription(consumer, destination, description)
            then(wanted.queue)

        exclusive = QueueWanted("", exclusive=True, auto_delete=True)
        self._step(lambda answer: connection.topology.declare_queue(exclusive, answer), on_declared)

    def forget(self) -> None:
        """The connection is over."""
        self._abandon()
        self.of_tag.clear()
        self.reply_queues.clear()


def _named(subscription: str | None, destination: str) -> tuple[str, str]:
    """The tag of a subscription's consumer, and what it is called for people."""
    if subscription is None:
        return f"Q_{destination}", f"destination='{destination}'"
    return f"T_{subscription}", f"id='{subscription}'"
