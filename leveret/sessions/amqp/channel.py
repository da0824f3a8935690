"""A channel: its methods, its consumers, its deliveries to be acknowledged, its confirms.

Handlers raise `ChannelFault` (this channel dies) or `ConnectionFault` (all of it does); the connection turns either
into bytes. Those that declare, bind and delete are in `topology`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from leveret.base.counters import Traffic
from leveret.broker.delivery.batch import MESSAGE_OVERHEAD, Batch, begin_sharing
from leveret.broker.delivery.confirms import Confirms, Pending
from leveret.broker.delivery.unacked import Delivered, Unacked
from leveret.broker.fanout import FEW
from leveret.broker.routing.delayed_exchange import delay_ms
from leveret.broker.routing.reply_address import ADDRESS
from leveret.broker.vhost import Route
from leveret.metadata.model.hidden_queues import DELAYED
from leveret.protocol import methods as m
from leveret.protocol.cc_bcc import BCC, CC, BadCopies, further_keys, without_bcc
from leveret.protocol.codec import printed
from leveret.protocol.errors import ChannelFault, ConnectionFault, ReplyCode, protocol_error, resource
from leveret.protocol.frames import BODY, HEADER, HEADER_AT, OVERHEAD, frame, rechannel, reframe
from leveret.protocol.properties import (
    BASIC_CLASS,
    body_size,
    delivery_mode,
    expiration,
    headers,
    reply_to,
    user_id,
    with_reply_to,
)
from leveret.sessions.amqp.channel_consumer import ChannelConsumer
from leveret.sessions.amqp.declare import Topology
from leveret.sessions.amqp.permission_checks import check_quorum_qos, check_topic
from leveret.sessions.amqp.publish_fast_path import frame_error
from leveret.sessions.amqp.queue_arguments import check_consume_arguments, expiration_problem
from leveret.sessions.amqp.stream_checks import refuse_for_stream, refuse_return, start_of
from leveret.sessions.amqp.transactions import Transaction
from leveret.storage.format.queue_block import REDELIVERED, SHARED

if TYPE_CHECKING:
    from leveret.broker.broker import AnyQueue
    from leveret.broker.delivery.answers import Got
    from leveret.broker.remote.direct_reply_to import Inbox
    from leveret.sessions.amqp.connection import Connection


class Channel(Topology):
    """One channel of a connection."""

    __slots__ = (
        "asks", "body", "body_left", "cancelled", "confirms", "consumed", "consumers", "copies", "delivery_tag",
        "forgiven", "generation", "header", "inbox", "last_served", "new_consumer_prefetch", "prefetch", "route",
        "traffic", "transaction", "unacked",
    )  # fmt: skip

    def __init__(self, connection: Connection, number: int) -> None:
        super().__init__(connection, number)
        self.consumers: dict[str, ChannelConsumer] = {}
        self.last_served: ChannelConsumer | None = None  # Of those that share a prefetch; the next one's turn is next.
        self.cancelled: list[str] | None = None  # Consumers that end while the channel itself deletes their queue.
        self.delivery_tag = 0
        self.unacked = Unacked()
        self.consumed = 0  # Unacknowledged deliveries to consumers; those of basic.get do not count.
        self.prefetch = 0  # For all consumers together; 0 is no limit.
        self.new_consumer_prefetch = 0
        self.confirms: Confirms | None = None
        self.transaction: Transaction | None = None  # After tx.select, for good.
        # The content under assembly: the route it will take, then its header, then body frames.
        self.route: Route | None = None
        self.generation = 0  # Of the vhost's routes, when the route was found.
        self.header = b""
        self.body: list[bytes] = []
        self.body_left = 0
        self.forgiven: set[int] = set()  # Tags that came too late, and may still be acknowledged: see `lateness`.
        # Of the message whose properties were just checked: its further keys, None if there is nothing special to it.
        self.copies: list[str] | None = None
        self.asks = False  # It has to be given an address for the answer.
        self.inbox: Inbox | None = None  # For such answers.
        self.traffic = Traffic()

    @property
    def who(self) -> str:
        """For people, as RabbitMQ names channels."""
        return f"{self.connection.peer} ({self.number})"

    def fail(self, fault: ChannelFault) -> None:
        self.connection.close_channel(self, fault)

    # -- Content in several frames -------------------------------------------------------------------------------

    def is_idle(self) -> bool:
        """Open, and not in the middle of a content."""
        return self.route is None and not self.closing

    def begin_content(self, route: Route | None) -> None:
        assert self.connection.vhost is not None
        self.route, self.generation = route, self.connection.vhost.generation

    def on_header(self, payload: bytes) -> None:
        if self.route is None or self.header:
            raise self._unexpected()
        if len(payload) < 14:
            raise frame_error(HEADER, payload, "unknown_frame")
        class_id = int.from_bytes(payload[:2], "big")
        if class_id != BASIC_CLASS:
            text = f"expected content header for class 60, got one for class {class_id} instead"
            raise ConnectionFault(ReplyCode.UNEXPECTED_FRAME, text, 60, 40)
        if payload[2] or payload[3]:  # A weight: the header of something else than AMQP has had since 0-8.
            raise self._unexpected()
        self.body_left = body_size(payload)
        size_max = self.connection.limits.message_bytes_max
        if self.body_left > size_max:
            raise protocol_error(
                ReplyCode.PRECONDITION_FAILED,
                f"message size {self.body_left} is larger than configured max size {size_max}",
                m.BasicPublish,
            )
        self.header = payload
        self.body = [frame(HEADER, 1, payload)]
        self._end_content()

    def on_body(self, payload: bytes) -> None:
        if not self.header:
            raise self._unexpected()
        self.body_left -= len(payload)
        if self.body_left < 0:
            raise ConnectionFault(ReplyCode.FRAME_ERROR, "body is larger than its header announced", 60, 40)
        # A frame may be eight bytes too long for others to have it as it is.
        room = self.connection.frame_max - OVERHEAD
        self.body += [frame(BODY, 1, payload[at : at + room]) for at in range(0, len(payload), room)]
        self._end_content()

    def _unexpected(self) -> ConnectionFault:
        """The fault for a frame that is not what must come next on this channel."""
        code = ReplyCode.UNEXPECTED_FRAME
        if self.route is None:
            return ConnectionFault(code, "expected method frame, got non method frame instead")
        if self.header:
            return ConnectionFault(code, "expected content body, got non content body frame instead", 60, 40)
        text = "expected content header for class 60, got non content header frame instead"
        return ConnectionFault(code, text, 60, 40)

    def _end_content(self) -> None:
        if self.body_left:
            return
        route, header, content = self.route, self.header, b"".join(self.body)
        assert route is not None
        self.route, self.header, self.body = None, b"", []
        self.connection.on_content(self, route, header, content)

    # -- Publishing ----------------------------------------------------------------------------------------------

    def find_route(self, arguments: bytes) -> Route:
        """What the raw arguments of a publish lead to, permissions checked."""
        vhost = self.connection.vhost
        assert vhost is not None
        middle = 1 + arguments[0] if arguments else 1
        if middle >= len(arguments) or middle + 2 + arguments[middle] != len(arguments):
            text = f"cannot decode {printed(bytes(2) + arguments)}"  # The ticket, which nobody uses, included.
            raise ConnectionFault(ReplyCode.FRAME_ERROR, text, 60, 40)
        route = Route(arguments)
        if route.immediate:
            raise protocol_error(ReplyCode.NOT_IMPLEMENTED, "immediate=true", m.BasicPublish)
        self._check("exchange", route.exchange, "write", m.BasicPublish)
        spec = self.broker.metadata.exchanges.get((vhost.name, route.exchange))
        if spec is None:
            raise self._no("exchange", route.exchange, m.BasicPublish)
        if spec.internal:
            text = f"cannot publish to internal {resource('exchange', route.exchange, vhost.name)}"
            raise protocol_error(ReplyCode.ACCESS_REFUSED, text, m.BasicPublish)
        check_topic(self.connection, spec, route.routing_key, "write", m.BasicPublish)
        known = vhost.routes.get(arguments)
        if known is None:
            vhost.resolve(arguments, route)
            known = route
        known.writers.add(self.connection.user)
        return known

    def publish(self, bundles: list[tuple[tuple[AnyQueue, ...], list[bytes], list[bytes]]], kind: int) -> None:
        """Messages of one kind: for each bundle its queues, contents and keys. They share one confirm."""
        confirms, broker = self.confirms, self.broker
        count = sum([len(contents) for _, contents, _ in bundles])
        self.traffic.published += count
        if broker.refusing:
            self._refuse(count)
            return
        self.send(bundles, kind, None if confirms is None else confirms.begin(count))

    def send(
        self, bundles: list[tuple[tuple[AnyQueue, ...], list[bytes], list[bytes]]], kind: int, pending: Pending | None
    ) -> None:
        journal = self.broker.journal if pending is None else None
        if journal is not None:
            journal.source = self.who
        for queues, contents, keys in bundles:
            count = len(contents)
            self.broker.totals.published += count
            if self.number != 1:
                contents = [rechannel(content, 1) for content in contents]
            size = sum(map(len, contents)) + MESSAGE_OVERHEAD * count
            if len(queues) == 1:
                if queues[0].enqueue(contents, keys, kind, size, pending):
                    self.connection.crowding = queues[0]
            else:
                self._spread(queues, contents, keys, kind, size, pending)
        if journal is not None:
            journal.source = ""
        if pending is not None and not pending.waiting:
            pending.confirms.on_complete(pending)

    def _spread(
        self,
        queues: tuple[AnyQueue, ...],
        contents: list[bytes],
        keys: list[bytes],
        kind: int,
        size: int,
        pending: Pending | None,
    ) -> None:
        """A bundle to several queues."""
        broker = self.broker
        shared = begin_sharing(broker, contents, size, len(queues))
        kind |= SHARED
        try:
            for queue in queues:
                if queue.enqueue(contents, keys, kind, size, pending):
                    self.connection.crowding = queue
        finally:
            if shared is not None:
                shared.contents = broker.sharing = None
        if len(queues) > FEW:
            self._on_spread(len(contents) * len(queues))

    def _on_spread(self, copies: int) -> None:
        spreading = self.broker.spreading
        spreading.left -= copies
        if spreading.left <= 0:
            self.connection.rest_from_spreading()

    def publish_one(self, route: Route, content: bytes, kind: int, further: Sequence[str] = ()) -> None:
        """A message with something special to it: it has further keys, or its route is not plain."""
        if self.broker.refusing and self.transaction is None:  # That is refused as a whole.
            self._refuse(1)
            return
        vhost = self.connection.vhost
        assert vhost is not None
        queues = route.queues
        if route.varies or further:
            queues = vhost.route(route.exchange, (route.routing_key, *further), content)
        if not route.exchange:
            self.broker.replies.answer(self, (route.routing_key, *further), route.key, content)
        if vhost.firehose is not None:
            vhost.firehose.on_published(self, route.exchange, (route.routing_key, *further), content, queues)
        route.passage.came += 1
        route.passage.went += len(queues)
        if self.transaction is not None:
            self.transaction.publish(route, queues, content, kind)
        elif queues:
            self.publish([(queues, [content], [route.key])], kind)
        else:
            self.on_unroutable(route, content)
            if self.confirms is not None:
                self.confirms.on_complete(self.confirms.begin(1))

    def on_unroutable(self, route: Route, content: bytes) -> None:
        self.broker.totals.published += 1
        self.broker.totals.unroutable += 1
        self.traffic.published += 1
        if route.mandatory:
            self.traffic.returned += 1
            self._return(route, content)
        else:
            self.traffic.dropped += 1

    def _refuse(self, count: int) -> None:
        """Take none of these publishes. Whoever did not ask for confirms is not told, as with a queue that is full."""
        if self.confirms is not None:
            pending = self.confirms.begin(count)
            pending.refused = True
            self.confirms.on_complete(pending)

    def _return(self, route: Route, content: bytes) -> None:
        connection = self.connection
        method = m.BasicReturn(312, "NO_ROUTE", route.exchange, route.routing_key)
        connection.send_content(self.number, method, reframe(content, self.number, connection.frame_max))

    def check_properties(self, data: bytes, start: int) -> None:
        """The properties that can make a message unacceptable. `data` has the header payload at `start`."""
        self.asks = reply_to(data, start) == ADDRESS
        if self.asks and self.inbox is None:
            raise protocol_error(ReplyCode.PRECONDITION_FAILED, "fast reply consumer does not exist", m.BasicPublish)
        sender = user_id(data, start)
        if sender is not None and sender != self.connection.user:
            if "impersonator" not in self.broker.tags_of(self.connection.user):
                text = f"user_id property set to '{sender}' but authenticated user was '{self.connection.user}'"
                raise protocol_error(ReplyCode.PRECONDITION_FAILED, text, m.BasicPublish)
        time_to_live = expiration(data, start)
        if time_to_live is not None and (problem := expiration_problem(time_to_live)) is not None:
            text = f"invalid expiration '{time_to_live}': {problem}"
            raise protocol_error(ReplyCode.PRECONDITION_FAILED, text, m.BasicPublish)
        mode = delivery_mode(data, start)
        if mode not in (None, 1, 2):
            text = f"invalid message: {{delivery_mode_unknown,{mode}}}"
            raise protocol_error(ReplyCode.PRECONDITION_FAILED, text, m.BasicPublish)
        table = headers(data, start) or {}
        try:
            self.copies = further_keys(table) if CC in table or BCC in table or self.asks else None
        except BadCopies as error:
            raise protocol_error(ReplyCode.PRECONDITION_FAILED, str(error), m.BasicPublish) from None

    def publish_copies(self, route: Route, content: bytes, kind: int) -> None:
        """A message that `check_properties` found to have CC or BCC headers, or to want an answer."""
        further, self.copies = self.copies, None
        if self.asks and self.inbox is not None:
            content = with_reply_to(content, HEADER_AT, self.inbox.address)
        assert further is not None and self.connection.vhost is not None
        spec = self.broker.metadata.exchanges.get((self.connection.vhost.name, route.exchange))
        if spec is not None:
            for key in further:
                check_topic(self.connection, spec, key, "write", m.BasicPublish)
        # A keeper cuts BCC out when it lets the message go: until then it needs to know where to.
        is_kept = spec is not None and spec.type == DELAYED and delay_ms(headers(content, HEADER_AT) or {}) > 0
        self.publish_one(route, content if is_kept else without_bcc(content), kind, further)

    def _on_confirmed(self) -> None:
        self.broker.confirming[self] = None

    def send_confirms(self) -> None:
        """Tell the publisher what became safe since the last time."""
        if self.confirms is None or self.closing:
            return
        for number, multiple, refused in self.confirms.take():
            answer = m.BasicNack(number, multiple, False) if refused else m.BasicAck(number, multiple)
            self.connection.send(self.number, answer)

    # -- Acknowledging -------------------------------------------------------------------------------------------

    def on_ack(self, tag: int, multiple: int) -> None:
        taken = self._take(tag, bool(multiple), m.BasicAck)
        if self.transaction is None:
            self._acknowledge(taken)
        else:
            self.transaction.settle(self._acknowledge, taken)

    def _acknowledge(self, taken: list[Delivered]) -> None:
        self._on_taken(taken)
        for delivered in taken:
            self.traffic.acked += delivered.last_tag - delivered.first_tag + 1
            delivered.queue.settle_delivered(delivered.batch, delivered.lo, delivered.hi)

    def _take(self, tag: int, multiple: bool, method: type[m.Method]) -> list[Delivered]:
        if multiple and tag == 0:
            taken: list[Delivered] | None = self.unacked.take_all()
        elif multiple:
            taken = self.unacked.take_through(tag)
        else:
            one = self.unacked.take_one(tag)
            taken = None if one is None else [one]
        if taken is None:
            if tag not in self.forgiven:
                raise protocol_error(ReplyCode.PRECONDITION_FAILED, f"unknown delivery tag {tag}", method)
            self.forgiven.discard(tag)
            taken = self.unacked.take_range(1, tag) if multiple else []
        return taken

    def _on_taken(self, taken: list[Delivered]) -> None:
        """Deliveries are no longer out: their consumers have room again."""
        dirty = self.broker.dirty
        for delivered in taken:
            consumer = delivered.consumer
            if consumer is not None:
                count = delivered.last_tag - delivered.first_tag + 1
                consumer.unacked -= count
                self.consumed -= count
                # Where the consumer is now: its queue may have another home than when this was delivered.
                dirty[consumer.queue if isinstance(consumer, ChannelConsumer) else delivered.queue] = None
        if self.prefetch:
            self._share_prefetch()

    def _on_nack(self, tag: int, multiple: bool, requeue: bool, method: type[m.Method]) -> None:
        if requeue:
            self._catch_up()
        taken = self._take(tag, multiple, method)
        action = self.take_back if requeue else self._discard
        if self.transaction is None:
            action(taken)
        else:
            self.transaction.settle(action, taken)
        refuse_return(taken, "basic.nack and basic.reject", method)

    def _discard(self, taken: list[Delivered]) -> None:
        self._on_taken(taken)
        for delivered in taken:
            delivered.queue.discard(delivered.batch, delivered.lo, delivered.hi)

    def _requeue(self, taken: list[Delivered]) -> None:
        by_queue: dict[AnyQueue, list[tuple[Batch, int, int]]] = {}
        for delivered in taken:
            by_queue.setdefault(delivered.queue, []).append((delivered.batch, delivered.lo, delivered.hi))
        for queue, pieces in by_queue.items():
            if not queue.deleted or not queue.is_local:  # At another node, they are to be forgotten there too.
                queue.requeue_many(pieces)

    def take_back(self, taken: list[Delivered]) -> None:
        """These are no longer the client's: its queues have them again."""
        self._on_taken(taken)
        self._requeue(taken)

    def _catch_up(self) -> None:
        """Lets the queues that the channel consumes from hand out what came before: see `Queue.catch_up`."""
        for consumer in list(self.consumers.values()):
            if consumer.queue.is_local:
                consumer.queue.catch_up()

    def unsubscribe_all(self, then: Callable[[bool], None]) -> None:
        """Ends the subscriptions at other nodes, after what came before has been handed out there and here.

        Without that, messages under way to a consumer without acknowledgements would reach nobody.
        """
        self._catch_up()
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

    def release_all(self) -> None:
        """The channel ends: its consumers go, what was out comes back."""
        if self.broker.ended is not None:
            self.broker.ended[self] = None
        for consumer in list(self.consumers.values()):
            consumer.queue.remove_consumer(consumer)
        self.consumers.clear()
        self.route, self.header, self.body = None, b"", []
        self._close_inbox()
        if self.transaction is not None:
            self.transaction.rollback()
        self.take_back(self.unacked.take_all())

    # -- Methods -------------------------------------------------------------------------------------------------

    def on_method(self, method: m.Method) -> None:
        if self.route is not None:
            raise self._unexpected()
        handler = HANDLERS.get(type(method))
        if handler is not None:
            handler(self, method)
        else:
            raise protocol_error(ReplyCode.COMMAND_INVALID, "unimplemented method", method)

    def on_open(self, method: m.ChannelOpen) -> None:
        raise protocol_error(ReplyCode.CHANNEL_ERROR, "second 'channel.open' seen", method)

    def on_close(self, method: m.ChannelClose) -> None:
        def then(_: bool) -> None:
            self.connection.on_channel_closed(self)
            self._reply(m.ChannelCloseOk())

        self._ask(self.unsubscribe_all, method, then)

    def on_close_ok(self, method: m.ChannelCloseOk) -> None:
        pass  # To a close that we did not send; nothing to close.

    def on_flow(self, method: m.ChannelFlow) -> None:
        if not method.active:
            raise protocol_error(ReplyCode.NOT_IMPLEMENTED, "active=false", method)
        self._reply(m.ChannelFlowOk(True))

    def on_access_request(self, method: m.AccessRequest) -> None:
        self._reply(m.AccessRequestOk(1))

    def on_basic_ack(self, method: m.BasicAck) -> None:
        self.on_ack(method.delivery_tag, method.multiple)

    def on_basic_nack(self, method: m.BasicNack) -> None:
        self._on_nack(method.delivery_tag, method.multiple, method.requeue, m.BasicNack)

    def on_basic_reject(self, method: m.BasicReject) -> None:
        self._on_nack(method.delivery_tag, False, method.requeue, m.BasicReject)

    def on_basic_recover(self, method: m.BasicRecover | m.BasicRecoverAsync) -> None:
        if not method.requeue:
            raise protocol_error(ReplyCode.NOT_IMPLEMENTED, "requeue=false", method)
        refuse_return(self.unacked, method.name, method)
        self._catch_up()
        self.take_back(self.unacked.take_all())
        if isinstance(method, m.BasicRecover):
            self._reply(m.BasicRecoverOk())

    def on_basic_qos(self, method: m.BasicQos) -> None:
        if method.prefetch_size:
            raise protocol_error(ReplyCode.NOT_IMPLEMENTED, f"prefetch_size!=0 ({method.prefetch_size})", method)
        if method.global_:
            self.prefetch = method.prefetch_count
            self._share_prefetch()
            for consumer in self.consumers.values():
                consumer.queue.set_limit(consumer)
        else:
            self.new_consumer_prefetch = method.prefetch_count
        self._reply(m.BasicQosOk())

    def on_tx_select(self, method: m.TxSelect) -> None:
        if self.confirms is not None:
            raise protocol_error(ReplyCode.PRECONDITION_FAILED, "cannot switch from confirm to tx mode", method)
        if self.transaction is None:
            self.connection.forget_publish()  # What looks like the last one is no longer dealt with like that one.
            self.transaction = Transaction(self)
        self._reply(m.TxSelectOk())

    def on_tx_commit(self, method: m.TxCommit) -> None:
        self._ask(self._transaction(method).commit, method, lambda _: self._reply(m.TxCommitOk()))

    def on_tx_rollback(self, method: m.TxRollback) -> None:
        self._transaction(method).rollback()
        self._reply(m.TxRollbackOk())

    def _transaction(self, method: m.Method) -> Transaction:
        if self.transaction is None:
            raise protocol_error(ReplyCode.PRECONDITION_FAILED, "channel is not transactional", method)
        return self.transaction

    def on_confirm_select(self, method: m.ConfirmSelect) -> None:
        if self.transaction is not None:
            raise protocol_error(ReplyCode.PRECONDITION_FAILED, "cannot switch from tx to confirm mode", method)
        if self.confirms is None:
            self.confirms = Confirms(self._on_confirmed, self.who)
        if not method.nowait:
            self._reply(m.ConfirmSelectOk())

    # -- Consuming -----------------------------------------------------------------------------------------------

    def _share_prefetch(self) -> None:
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

    def on_consumer_ended(self, consumer: ChannelConsumer) -> None:
        """The queue of a consumer is gone."""
        self.consumers.pop(consumer.tag, None)
        if self.cancelled is not None:
            self.cancelled.append(consumer.tag)
        else:
            self._tell_cancelled(consumer.tag)

    def _tell_cancelled(self, tag: str) -> None:
        if self.connection.capabilities.get("consumer_cancel_notify"):
            self._reply(m.BasicCancel(tag, True))

    def _begin_deleting(self) -> None:
        self.cancelled = []

    def _end_deleting(self) -> None:
        cancelled, self.cancelled = self.cancelled or [], None
        for tag in cancelled:
            self._tell_cancelled(tag)

    def _open_inbox(self, method: m.BasicConsume) -> None:
        """Consume from the pseudo-queue of direct reply-to."""
        if method.consumer_tag in self.consumers:
            text = f"attempt to reuse consumer tag '{method.consumer_tag}'"
            raise protocol_error(ReplyCode.NOT_ALLOWED, text, method)
        if not method.no_ack:
            raise protocol_error(ReplyCode.PRECONDITION_FAILED, "reply consumer cannot acknowledge", method)
        if self.inbox is not None:
            raise protocol_error(ReplyCode.PRECONDITION_FAILED, "reply consumer already set", method)
        tag = method.consumer_tag or self.broker.unique_name("amq.ctag-")
        self.inbox = self.broker.replies.open(self, tag)
        if not method.nowait:
            self._reply(m.BasicConsumeOk(tag))

    def _close_inbox(self) -> None:
        if self.inbox is not None:
            self.broker.replies.close(self.inbox)
            self.inbox = None

    def on_consume(self, method: m.BasicConsume) -> None:
        if method.queue == ADDRESS:
            self._open_inbox(method)
            return
        queue = self._queue(self._queue_name(method.queue, method), "read", method)
        tag = method.consumer_tag or self.broker.unique_name("amq.ctag-")
        if tag in self.consumers:
            raise protocol_error(ReplyCode.NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'", method)
        check_consume_arguments(queue.spec, tag, method)
        check_quorum_qos(queue.spec, self.prefetch, method)
        start = start_of(self, queue.spec, method)
        prefetch = 0 if method.no_ack else self.new_consumer_prefetch
        consumer = ChannelConsumer(self, queue, tag, method.no_ack, method.exclusive, prefetch, method.arguments, start)

        def then(_: bool) -> None:
            self.consumers[tag] = consumer
            if not method.nowait:
                self._reply(m.BasicConsumeOk(tag))

        self._ask(
            lambda done: queue.subscribe(consumer, lambda refused: done(refused or True)),
            method,
            then,
            lambda _: consumer.queue.remove_consumer(consumer),  # Its queue may have moved while it waited.
        )

    def on_cancel(self, method: m.BasicCancel) -> None:
        consumer = self.consumers.get(method.consumer_tag)
        if self.inbox is not None and self.inbox.tag == method.consumer_tag:
            self._close_inbox()
            consumer = None
        if consumer is None:
            if not method.nowait:
                self._reply(m.BasicCancelOk(method.consumer_tag))
            return

        def then(_: bool) -> None:
            self.consumers.pop(method.consumer_tag, None)
            if not method.nowait:
                self._reply(m.BasicCancelOk(method.consumer_tag))

        self._ask(lambda done: consumer.queue.unsubscribe(consumer, lambda: done(True)), method, then)

    def on_get(self, method: m.BasicGet) -> None:
        queue = self._queue(self._queue_name(method.queue, method), "read", method)
        refuse_for_stream(queue.spec, "basic.get", method)

        def then(got: Got | None) -> None:
            if got is None:
                self.traffic.got_nothing += 1
                self._reply(m.BasicGetEmpty())
            else:
                self._got(method, got)

        self._ask(lambda done: queue.fetch(method.no_ack, lambda: not self._is_gone(), done), method, then)

    def _got(self, method: m.BasicGet, got: Got) -> None:
        self.delivery_tag += 1
        batch, at, queue = got.batch, got.at, got.queue
        key = batch.keys[at]
        middle = 1 + key[0]
        ok = m.BasicGetOk(
            self.delivery_tag,
            bool(batch.kinds[at] & REDELIVERED),
            key[1:middle].decode("utf-8", "surrogateescape"),
            key[middle + 1 :].decode("utf-8", "surrogateescape"),
            got.remaining,
        )
        content = batch.contents[at]
        if queue.is_local and queue.returns is not None:  # Else its own node has done so.
            (content,) = queue.returns.labelled(batch, at, at + 1, always=True)
        self.connection.send_content(self.number, ok, reframe(content, self.number, self.connection.frame_max))
        vhost = self.connection.vhost
        if vhost is not None and vhost.firehose is not None:
            vhost.firehose.on_delivered(self, queue, batch, at, at + 1)
        self.traffic.redelivered += ok.redelivered
        if not method.no_ack:
            self.traffic.got += 1
            self.unacked.add(self.delivery_tag, 1, queue, None, batch, at, self.broker.now_ms)
            return
        self.traffic.got_no_ack += 1
        if queue.is_local:  # Otherwise its node has done so.
            queue.settle_got(batch, at)


HANDLERS: Final[dict[type[m.Method], Callable[[Channel, Any], None]]] = {
    m.ChannelOpen: Channel.on_open,
    m.ChannelClose: Channel.on_close,
    m.ChannelCloseOk: Channel.on_close_ok,
    m.ChannelFlow: Channel.on_flow,
    m.AccessRequest: Channel.on_access_request,
    m.ExchangeDeclare: Channel.on_exchange_declare,
    m.ExchangeDelete: Channel.on_exchange_delete,
    m.ExchangeBind: Channel.on_exchange_bind,
    m.ExchangeUnbind: Channel.on_exchange_unbind,
    m.QueueDeclare: Channel.on_queue_declare,
    m.QueueDelete: Channel.on_queue_delete,
    m.QueuePurge: Channel.on_queue_purge,
    m.QueueBind: Channel.on_queue_bind,
    m.QueueUnbind: Channel.on_queue_unbind,
    m.BasicQos: Channel.on_basic_qos,
    m.BasicConsume: Channel.on_consume,
    m.BasicCancel: Channel.on_cancel,
    m.BasicGet: Channel.on_get,
    m.BasicAck: Channel.on_basic_ack,
    m.BasicNack: Channel.on_basic_nack,
    m.BasicReject: Channel.on_basic_reject,
    m.BasicRecover: Channel.on_basic_recover,
    m.BasicRecoverAsync: Channel.on_basic_recover,
    m.ConfirmSelect: Channel.on_confirm_select,
    m.TxSelect: Channel.on_tx_select,
    m.TxCommit: Channel.on_tx_commit,
    m.TxRollback: Channel.on_tx_rollback,
}
