"""One conversation of a client with the broker. What it offers, and to whom, is told in `leveret.broker.session`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from leveret.base.counters import MessageCounters
from leveret.base.shared_values import NO_DICT
from leveret.broker.delivery.batch import MESSAGE_OVERHEAD, Batch, begin_sharing
from leveret.broker.delivery.confirms import Confirms, Pending
from leveret.broker.delivery.unacked import Delivered, Unacked
from leveret.broker.fanout import FEW
from leveret.broker.queue.delivery_limit import DeliveryLimit
from leveret.broker.routing.delayed_exchange import delay_ms
from leveret.broker.routing.reply_address import ADDRESS
from leveret.broker.session.arguments import check_consume_arguments, expiration_problem
from leveret.broker.session.checks import (
    CLOSED,
    Refused,
    check_permission,
    check_quorum_qos,
    check_topic,
    missing,
    refuse,
)
from leveret.broker.session.consumer import SessionConsumer
from leveret.broker.session.message import Delivery, names_in
from leveret.broker.session.stream_checks import refuse_for_stream, start_of
from leveret.broker.session.topology import Topology
from leveret.broker.vhost import Route
from leveret.metadata.model.hidden_queues import DELAYED
from leveret.metadata.model.refusals import Refusal, resource
from leveret.protocol.cc_bcc import BCC, CC, BadCopies, further_keys, without_bcc
from leveret.protocol.errors import ReplyCode
from leveret.protocol.frames import HEAD, HEADER_AT
from leveret.protocol.properties import (
    DELICATE,
    delivery_mode,
    expiration,
    headers,
    reply_to,
    survey,
    user_id,
)
from leveret.storage.format.queue_block import REDELIVERED, SHARED

if TYPE_CHECKING:
    from leveret.broker.broker import AnyQueue
    from leveret.broker.delivery.answers import Got
    from leveret.broker.delivery.consumer import Subscriber
    from leveret.broker.delivery.offsets import Start
    from leveret.broker.login import Login
    from leveret.broker.remote.direct_reply_to import BusyLink
    from leveret.broker.session.consumer import Receiver
    from leveret.broker.session.wanted import ConsumerWanted
    from leveret.protocol.tables import Table

_NO_TAGS: Final[set[int]] = set()  # Of all sessions without any: nothing is ever added to it.


class Client(Protocol):
    """The machine that speaks a protocol with one client, as far as the broker knows it."""

    def close(self, code: int, text: str) -> None:
        """The broker ends the connection: an operator wants it, its user or its vhost is deleted."""

    def fail(self, session: Session, refusal: Refusal) -> None:
        """The broker ends one session, and says why: it has kept messages for too long."""

    def on_crowded(self, queue: AnyQueue | BusyLink) -> None:
        """The client publishes faster than a queue, or the link to it, takes: it should be read from no further, until
        `queue.is_crowded()` is false, or for a short while."""


class Committing(Protocol):
    """A protocol's own transaction."""

    def overdue(self, looks: int) -> int:
        """Called at even intervals. Gives up what has been waiting for so many of them, and says how much that is."""


class Session:
    """One conversation of a client: its consumers, what is out with it, and what it has published."""

    __slots__ = (
        "awaited", "broker", "client", "confirms", "consumed", "consumers", "delivery_tag", "late_tags", "is_closed",
        "last_served", "login", "number", "peer", "prefetch", "traffic", "transaction", "unacked",
    )  # fmt: skip

    def __init__(self, login: Login, client: Client, peer: object, number: int = 1) -> None:
        self.login = login
        self.broker = login.broker
        self.client = client
        self.peer = peer  # Where the client is, in print.
        self.number = number  # Among the sessions of its client.
        self.is_closed = False
        self.consumers: dict[str, Subscriber] = {}
        self.last_served: Subscriber | None = None  # Of those that share a prefetch; the next one's turn is next.
        self.delivery_tag = 0  # The number of the last delivery.
        self.unacked = Unacked()
        self.consumed = 0  # Unacknowledged deliveries to consumers; those that were fetched do not count.
        self.prefetch = 0  # For all consumers together; 0 is no limit.
        self.late_tags = _NO_TAGS  # Tags that came too late, and may still be acknowledged: see `lateness`.
        self.confirms: Confirms | None = None
        self.awaited: dict[int, Callable[[bool], None]] = NO_DICT  # By number: whom to tell of a publish.
        self.transaction: Committing | None = None
        self.traffic = MessageCounters()
        self.broker.sessions[self] = None

    @property
    def topology(self) -> Topology:
        """The part of this session that declares and deletes."""
        return Topology(self)

    @property
    def who(self) -> str:
        """For people, as RabbitMQ names channels."""
        return f"{self.peer} ({self.number})"

    # -- Consuming -----------------------------------------------------------------------------------------------

    def consume(self, wanted: ConsumerWanted, receiver: Receiver, then: Callable[[str | Refusal], None]) -> None:
        """Subscribe to a queue. The answer is the consumer's tag; deliveries may come before it."""
        self.subscribe(wanted, lambda queue, start: SessionConsumer(self, receiver, queue, wanted, start), then)

    def subscribe(
        self,
        wanted: ConsumerWanted,
        make: Callable[[AnyQueue, Start | None], Subscriber],
        then: Callable[[str | Refusal], None],
    ) -> None:
        """The same, with a consumer that `make` gives."""
        try:
            consumer = self._consumer(wanted, make)
        except Refused as refused:
            then(refused.refusal)
            return

        def on_subscribed(refusal: Refusal | None) -> None:
            if self.is_closed:
                if refusal is None:
                    consumer.queue.remove_consumer(consumer)  # Its queue may have moved while it waited.
                then(CLOSED)
            elif refusal is not None:
                then(refusal)
            else:
                self.consumers[consumer.tag] = consumer
                then(consumer.tag)

        consumer.queue.subscribe(consumer, on_subscribed)

    def _consumer(self, wanted: ConsumerWanted, make: Callable[[AnyQueue, Start | None], Subscriber]) -> Subscriber:
        queue = self.topology.queue(wanted.queue, "read")
        wanted.tag = self.new_tag(wanted.tag)
        check_consume_arguments(queue.spec, wanted.arguments)
        check_quorum_qos(queue.spec, self.prefetch)
        start = start_of(
            queue.spec, wanted.arguments, wanted.prefetch, self.prefetch, wanted.no_ack, self.broker.wall_ms
        )
        return make(queue, start)

    def new_tag(self, tag: str) -> str:
        """The tag of a consumer that is to be: the one that is wished for, if it is new. Raises `Refused`."""
        if not tag:
            return self.broker.unique_name("amq.ctag-")
        if tag in self.consumers:
            refuse(ReplyCode.NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'")
        return tag

    def consumer_options(self, arguments: Table) -> tuple[bool, int, int | None]:
        """Return what a consumer's checked arguments say.

        That is whether it is to be cancelled at a failover, its priority, and its timeout in milliseconds.
        """
        cancels, priority = arguments.get("x-cancel-on-ha-failover"), arguments.get("x-priority")
        timeout = arguments.get("x-consumer-timeout")
        if timeout is not None:
            self.broker.policies.on_consumer_timeout()
        return (
            cancels is not None and cancels.value is True,
            0 if priority is None else priority.value,
            None if timeout is None else timeout.value,
        )

    def cancel(self, tag: str, then: Callable[[bool | Refusal], None]) -> None:
        """End a subscription, after what came before has been delivered. False: there is none of that tag."""
        consumer = self.consumers.get(tag)
        if consumer is None:
            then(False)
            return

        def on_ended() -> None:
            if self.is_closed:
                then(CLOSED)
            else:
                self.forget_consumer(tag)
                then(True)

        consumer.queue.unsubscribe(consumer, on_ended)
        if consumer.queue.is_local:
            self.forget_consumer(tag)  # It is over, though its client may hear of that later.

    def forget_consumer(self, tag: str) -> None:
        """A subscription is over."""
        self.consumers.pop(tag, None)

    def cancel_all(self, then: Callable[[bool], None]) -> None:
        """Ends the subscriptions at other nodes, after what came before has been handed out there and here.

        Without that, messages under way to a consumer without acknowledgements would reach nobody.
        """
        self.catch_up()
        remote = [consumer for consumer in self.consumers.values() if not consumer.queue.is_local]
        waiting = len(remote)
        if not waiting:
            then(True)

        def on_ended() -> None:
            nonlocal waiting
            waiting -= 1
            if not waiting:
                then(True)

        for consumer in remote:
            consumer.queue.unsubscribe(consumer, on_ended)

    def catch_up(self) -> None:
        """Lets the queues that are consumed from hand out what came before: see `Queue.catch_up`."""
        for consumer in list(self.consumers.values()):
            if consumer.queue.is_local:
                consumer.queue.catch_up()

    def set_prefetch(self, count: int) -> None:
        """Set how many deliveries all consumers together may have unacknowledged; 0 is no limit."""
        self.prefetch = count
        self.share_prefetch()
        for consumer in self.consumers.values():
            consumer.queue.set_limit(consumer)

    def share_prefetch(self) -> None:
        """The prefetch that all consumers share has room: their queues are asked in turn, beginning behind the last.

        The broker's turn begins with the queue that was touched last.
        """
        dirty, order = self.broker.dirty, list(self.consumers.values())
        if self.last_served in order:
            at = order.index(self.last_served) + 1
            order = order[at:] + order[:at]
        for consumer in reversed(order):
            dirty.pop(consumer.queue, None)
            dirty[consumer.queue] = None

    def on_room(self) -> None:
        """The client takes more again: its queues are asked in the next turn."""
        for consumer in self.consumers.values():
            self.broker.dirty[consumer.queue] = None

    def on_delivered(self, consumer: Subscriber, batch: Batch, lo: int, hi: int) -> int:
        """Messages go to a consumer. Gives the number of the first. AMQP's consumers do this themselves, in the midst
        of making bytes, since it is done for every bundle."""
        count, first = hi - lo, self.delivery_tag + 1
        self.delivery_tag += count
        if self.prefetch:
            self.last_served = consumer
        if consumer.no_ack:
            self.traffic.delivered_no_ack += count
        else:
            consumer.unacked += count
            self.consumed += count
            self.unacked.add(first, count, consumer.queue, consumer, batch, lo, self.broker.now_ms)
        if batch.redelivered:
            self.traffic.redelivered += batch.redelivered_within(lo, hi)
        firehose = self.login.vhost.firehose
        if firehose is not None:
            firehose.on_delivered(self, consumer.queue, batch, lo, hi)
        return first

    def fetch(self, name: str, no_ack: bool, then: Callable[[Delivery | Refusal | None], None]) -> None:
        """Take one message. The answer is None if there is none."""

        def on_got(got: Got | Refusal | None) -> None:
            if self.is_closed:
                then(CLOSED)
            elif got is None:
                self.traffic.got_nothing += 1
                then(None)
            else:
                then(got if isinstance(got, Refusal) else self._fetched(got, no_ack))

        try:
            queue = self.topology.queue(name, "read")
            refuse_for_stream(queue.spec, "basic.get")
        except Refused as refused:
            then(refused.refusal)
        else:
            queue.fetch(no_ack, lambda: not self.is_closed, on_got)

    def _fetched(self, got: Got, no_ack: bool) -> Delivery:
        batch, at, remaining, queue = got
        self.delivery_tag += 1
        content = batch.contents[at]
        returns = queue.extension(DeliveryLimit) if queue.is_local else None  # Else its own node has done so.
        if returns is not None:
            (content,) = returns.labelled(batch, at, at + 1, always=True)
        redelivered = bool(batch.kinds[at] & REDELIVERED)
        delivery = Delivery(self.delivery_tag, *names_in(batch.keys[at]), redelivered, content, remaining=remaining)
        firehose = self.login.vhost.firehose
        if firehose is not None:
            firehose.on_delivered(self, queue, batch, at, at + 1)
        self.traffic.redelivered += redelivered
        if not no_ack:
            self.traffic.got += 1
            self.unacked.add(self.delivery_tag, 1, queue, None, batch, at, self.broker.now_ms)
        else:
            self.traffic.got_no_ack += 1
            if queue.is_local:  # Otherwise its node has done so.
                queue.settle_got(batch, at)
        return delivery

    # -- Settling ------------------------------------------------------------------------------------------------

    def take(self, tag: int, multiple: bool) -> list[Delivered]:
        """The deliveries that a client settles: one, or all up to it; with the number 0, all. Raises `Refused`."""
        if multiple and tag == 0:
            taken: list[Delivered] | None = self.unacked.take_all()
        elif multiple:
            taken = self.unacked.take_through(tag)
        else:
            one = self.unacked.take_one(tag)
            taken = None if one is None else [one]
        if taken is None:
            if tag not in self.late_tags:
                refuse(ReplyCode.PRECONDITION_FAILED, f"unknown delivery tag {tag}")
            self.late_tags.discard(tag)
            taken = self.unacked.take_range(1, tag) if multiple else []
        return taken

    def acknowledge(self, taken: list[Delivered]) -> None:
        """The client has dealt with these."""
        self._free(taken)
        for delivered in taken:
            self.traffic.acked += delivered.last_tag - delivered.first_tag + 1
            delivered.queue.settle_delivered(delivered.batch, delivered.lo, delivered.hi)

    def reject(self, taken: list[Delivered]) -> None:
        """The client does not want these, and nobody else is to have them: they are dead letters, or gone."""
        self._free(taken)
        for delivered in taken:
            delivered.queue.discard(delivered.batch, delivered.lo, delivered.hi)

    def take_back(self, taken: list[Delivered]) -> None:
        """These are no longer the client's: its queues have them again."""
        self._free(taken)
        by_queue: dict[AnyQueue, list[tuple[Batch, int, int]]] = {}
        for delivered in taken:
            by_queue.setdefault(delivered.queue, []).append((delivered.batch, delivered.lo, delivered.hi))
        for queue, pieces in by_queue.items():
            if not queue.deleted or not queue.is_local:  # At another node, they are to be forgotten there too.
                queue.requeue_many(pieces)

    def take_back_late(self, delivered: Delivered) -> None:
        """A delivery was kept too long, and goes back. Its tags may still be acknowledged."""
        self.late_tags = self.late_tags | set(range(delivered.first_tag, delivered.last_tag + 1))
        self.take_back(self.unacked.take_range(delivered.first_tag, delivered.last_tag))

    def _free(self, taken: list[Delivered]) -> None:
        """Deliveries are no longer out: their consumers have room again."""
        dirty = self.broker.dirty
        for delivered in taken:
            consumer = delivered.consumer
            if consumer is not None:
                count = delivered.last_tag - delivered.first_tag + 1
                consumer.unacked -= count
                self.consumed -= count
                # Where the consumer is now: its queue may have another home than when this was delivered.
                dirty[consumer.queue] = None  # type: ignore[attr-defined]  # A session's consumers have one.
        if self.prefetch:
            self.share_prefetch()

    # -- Publishing ----------------------------------------------------------------------------------------------

    def publish(
        self, exchange: str, routing_key: str, content: bytes, then: Callable[[bool], None] | None = None
    ) -> int:
        """Publish a message (`content`: see `message`). Gives how many queues it goes to. `then` is told whether all of
        them have it safe; if there is none, nobody waits for that. Raises `Refused`.

        AMQP's channels publish bundles of messages instead, by their own way: see `leveret.broker.session`.
        """
        route = self.find_route(arguments_of(exchange, routing_key))
        kind, further = self.examine(content)
        if further:
            content = self.checked_copies(route, content, further)
        queues = self.queues_of(route, content, further)
        if not queues and not self.broker.refusing:
            self.broker.totals.unroutable += 1
            self.traffic.dropped += 1
        self.publish_bundle(queues, [content], [route.key], kind, self._begin(then))
        return len(queues)

    def publish_bundle(
        self,
        queues: tuple[AnyQueue, ...],
        contents: list[bytes],
        keys: list[bytes],
        kind: int,
        pending: Pending | None,
        enqueue: Callable[[AnyQueue, int, int], bool] | None = None,
    ) -> bool:
        """Publish messages of one kind that go to the same queues. `pending` is their part of `confirms`; without it,
        nobody waits for them. `enqueue` gets kind and size, and puts them into a queue in a way of its own. Returns
        whether publishes to many queues have used up the turn: the client should wait for the next one."""
        broker, count = self.broker, len(contents)
        broker.totals.published += count
        self.traffic.published += count
        if broker.refusing:
            if pending is not None:
                pending.mark_refused()
                pending.confirms.on_complete(pending)
            return False
        journal = broker.journal if pending is None else None
        if journal is not None:
            journal.begin_publish(self.who)
        size = sum(map(len, contents)) + MESSAGE_OVERHEAD * count
        if len(queues) > 1:
            kind |= SHARED
        shared = begin_sharing(broker, contents, size, len(queues)) if queues else None
        try:
            for queue in queues:
                if enqueue is None:
                    is_crowded = queue.enqueue(contents, keys, kind, size, pending)
                else:
                    is_crowded = enqueue(queue, kind, size)
                if is_crowded:
                    self.client.on_crowded(queue)
        finally:
            if shared is not None:
                shared.end()
        if journal is not None:
            journal.end_publish()
        if pending is not None and not pending.waiting:
            pending.confirms.on_complete(pending)
        if len(queues) <= FEW:
            return False
        return broker.fanout.spend(count, len(queues))

    def _begin(self, then: Callable[[bool], None] | None) -> Pending | None:
        if then is None:
            return None
        if self.confirms is None:
            self.confirms = Confirms(self._on_confirmed, self.who)
        pending = self.confirms.begin(1)
        if not self.awaited:
            self.awaited = {}
        self.awaited[pending.first] = then
        return pending

    def _on_confirmed(self) -> None:
        self.broker.confirming[self] = None

    def send_confirms(self) -> None:
        """Tell of publishes whose fate is known since the last time."""
        if self.confirms is None or self.is_closed:
            return
        for number, multiple, refused in self.confirms.take():
            numbers = [one for one in self.awaited if one <= number] if multiple else [number]
            for one in numbers:
                self.awaited.pop(one)(not refused)

    def confirm(self, on_ready: Callable[[], None]) -> None:
        """Number the publishes from now on; `on_ready` is called when `confirms` knows more of their fate. For
        protocols that tell their clients by numbers: others have `publish` tell them."""
        if self.confirms is None:
            self.confirms = Confirms(on_ready, self.who)

    def begin_transaction(self, transaction: Committing) -> None:
        """Publishes wait for a commit from now on."""
        self.transaction = transaction

    def overdue(self, looks: int) -> int:
        """Refuse publishes of which nothing has been known for so many looks at the clock, and say how many."""
        if self.confirms is not None:
            return self.confirms.overdue(looks)
        return 0 if self.transaction is None else self.transaction.overdue(looks)

    def find_route(self, arguments: bytes) -> Route:
        """Return where a publish goes, after the permission check. Raises `Refused`.

        `arguments`: exchange and routing key as AMQP writes them, and a byte of flags; routes are remembered by them.
        """
        login, vhost = self.login, self.login.vhost
        route = Route(arguments)
        if route.immediate:
            refuse(ReplyCode.NOT_IMPLEMENTED, "immediate=true")
        check_permission(login, "exchange", route.exchange, "write")
        spec = self.broker.metadata.exchanges.get((vhost.name, route.exchange))
        if spec is None:
            raise missing("exchange", route.exchange, vhost.name)
        if spec.internal:
            text = f"cannot publish to internal {resource('exchange', route.exchange, vhost.name)}"
            refuse(ReplyCode.ACCESS_REFUSED, text)
        check_topic(login, spec, route.routing_key, "write")
        known = vhost.routes.get(arguments)
        if known is None:
            vhost.resolve(arguments, route)
            known = route
        if not login.client_id:  # Otherwise another client of the user may not be allowed the same.
            known.writers.add(login.user)
        return known

    def queues_of(self, route: Route, content: bytes, further: Sequence[str] = ()) -> tuple[AnyQueue, ...]:
        """The queues that one message goes to, which is counted, and shown to those who watch. `further`: its keys
        beside that of the route."""
        vhost, queues, keys = self.login.vhost, route.queues, (route.routing_key, *further)
        if route.varies or further:
            queues = vhost.route(route.exchange, keys, content)
        if not route.exchange:
            self.broker.replies.answer(self.client, keys, route.key, content)
        if vhost.firehose is not None:
            vhost.firehose.on_published(self, route.exchange, keys, content, queues)
        route.counters.published_in += 1
        route.counters.published_out += len(queues)
        return queues

    def examine(self, content: bytes) -> tuple[int, list[str]]:
        """The kind of a message, and its further keys. Raises `Refused`, and what a header that is none raises."""
        _, _, size = HEAD.unpack_from(content)
        kind = survey(content, HEADER_AT, HEADER_AT + size)
        if not kind & DELICATE:
            return kind, []
        if reply_to(content, HEADER_AT) == ADDRESS:
            refuse(ReplyCode.PRECONDITION_FAILED, "fast reply consumer does not exist")
        return kind - DELICATE, self.check_properties(content, HEADER_AT) or []

    def check_properties(self, data: bytes, start: int) -> list[str] | None:
        """The properties that can make a message unacceptable. `data` has the header payload at `start`. Gives its
        further keys (CC, BCC), if it has such headers. Raises `Refused`."""
        user = self.login.user
        sender = user_id(data, start)
        if sender is not None and sender != user and "impersonator" not in self.broker.tags_of(user):
            text = f"user_id property set to '{sender}' but authenticated user was '{user}'"
            refuse(ReplyCode.PRECONDITION_FAILED, text)
        time_to_live = expiration(data, start)
        if time_to_live is not None and (problem := expiration_problem(time_to_live)) is not None:
            refuse(ReplyCode.PRECONDITION_FAILED, f"invalid expiration '{time_to_live}': {problem}")
        mode = delivery_mode(data, start)
        if mode not in (None, 1, 2):
            refuse(ReplyCode.PRECONDITION_FAILED, f"invalid message: {{delivery_mode_unknown,{mode}}}")
        table = headers(data, start) or {}
        try:
            return further_keys(table) if CC in table or BCC in table else None
        except BadCopies as error:
            raise Refused(Refusal(ReplyCode.PRECONDITION_FAILED, str(error))) from None

    def checked_copies(self, route: Route, content: bytes, further: Sequence[str]) -> bytes:
        """A message that has CC or BCC headers, as it is to be routed. Raises `Refused` if it may not have them."""
        spec = self.broker.metadata.exchanges.get((self.login.vhost.name, route.exchange))
        if spec is not None:
            for key in further:
                check_topic(self.login, spec, key, "write")
        # A hidden queue cuts BCC out when it lets the message go: until then it needs to know where to.
        is_kept = spec is not None and spec.type == DELAYED and delay_ms(headers(content, HEADER_AT) or {}) > 0
        return content if is_kept else without_bcc(content)

    # -- The end -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """The conversation is over: its consumers go, and what was out with it comes back."""
        self.is_closed = True
        self.broker.on_session_closed(self)
        for consumer in list(self.consumers.values()):
            consumer.queue.remove_consumer(consumer)
        self.consumers.clear()
        self.awaited = NO_DICT
        self.take_back(self.unacked.take_all())
        self.confirms = None  # Nobody is told any more; and it refers to the session, as the session does to it.


def arguments_of(exchange: str, routing_key: str) -> bytes:
    """Return the bytes by which a route is remembered. Raises `Refused` if a name is too long."""
    names = [name.encode("utf-8", "surrogateescape") for name in (exchange, routing_key)]
    if any(len(name) > 255 for name in names):
        refuse(ReplyCode.PRECONDITION_FAILED, "names have at most 255 bytes")
    return b"".join(bytes((len(name),)) + name for name in names) + b"\0"
