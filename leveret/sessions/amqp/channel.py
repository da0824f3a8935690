"""A channel: AMQP's methods and contents, on a session of the broker that knows neither.

Handlers raise `ChannelFault` (this channel dies) or `ConnectionFault` (all of it does); the connection turns either
into bytes. What the session refuses becomes one of the two, by its code. Those that declare, bind and delete are in
`topology`.

Publishes do not go through `Session.publish`, one by one, but to the queues in bundles, and their bytes as they came:
see `intake`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from leveret.base.shared_values import NO_LIST
from leveret.broker.delivery.batch import MESSAGE_OVERHEAD, begin_sharing
from leveret.broker.delivery.confirms import Pending
from leveret.broker.fanout import FEW
from leveret.broker.routing.reply_address import ADDRESS
from leveret.broker.session.checks import Refused
from leveret.broker.session.session import Session
from leveret.broker.session.stream_checks import refuse_return
from leveret.broker.session.wanted import ConsumerWanted
from leveret.metadata.model.refusals import Refusal
from leveret.protocol import methods as m
from leveret.protocol.codec import printed
from leveret.protocol.errors import ChannelFault, ConnectionFault, ReplyCode, protocol_error
from leveret.protocol.frames import BODY, END, HEADER, HEADER_AT, METHOD, OVERHEAD, frame, rechannel, reframe
from leveret.protocol.properties import BASIC_CLASS, body_size, reply_to, with_reply_to
from leveret.sessions.amqp.channel_consumer import ChannelConsumer
from leveret.sessions.amqp.declare import DECLARATIONS, Declarations
from leveret.sessions.amqp.publish_fast_path import frame_error
from leveret.sessions.amqp.transactions import Transaction
from leveret.storage.format.queue_block import SHARED

if TYPE_CHECKING:
    from leveret.broker.broker import AnyQueue, Broker
    from leveret.broker.delivery.offsets import Start
    from leveret.broker.remote.direct_reply_to import Inbox
    from leveret.broker.session.message import Delivery
    from leveret.broker.vhost import Route
    from leveret.sessions.amqp.connection import Connection

T = TypeVar("T")
CONFIRM: Final = Struct(">BHIHHQ?B")  # The frame of a basic.ack: a confirm is the answer that is made most often.
ACK_IDS: Final = (60, 80)


def fault_of(refusal: Refusal, method: m.Method | type[m.Method]) -> ChannelFault | ConnectionFault:
    """Return the AMQP error for a refusal of the broker."""
    return protocol_error(ReplyCode(refusal.code), refusal.text, method)


class Channel:
    """One channel of a connection."""

    __slots__ = (
        "asks", "body", "body_left", "broker", "cancelled", "closing", "connection", "copies",
        "generation", "header", "inbox", "last_queue", "new_consumer_prefetch", "number", "route", "session",
        "transaction", "waits",
    )  # fmt: skip

    def __init__(self, connection: Connection, number: int) -> None:
        assert connection.login is not None
        self.connection = connection
        self.broker: Broker = connection.broker
        self.number = number
        self.session = Session(connection.login, connection, connection.peer, number)
        self.closing = False
        self.waits = 0  # Changes of metadata under way. Until their end, the next ones of the channel are put off.
        self.last_queue: str | None = None  # What a method means that names no queue.
        self.cancelled: list[str] | None = None  # Consumers that end while the channel itself deletes their queue.
        self.new_consumer_prefetch = 0
        self.transaction: Transaction | None = None  # After tx.select, for good.
        # The content under assembly: the route it will take, then its header, then body frames.
        self.route: Route | None = None
        self.generation = 0  # Of the vhost's routes, when the route was found.
        self.header = b""
        self.body: list[bytes] = NO_LIST
        self.body_left = 0
        # Of the message whose properties were just checked: its further keys, None if there is nothing special to it.
        self.copies: list[str] | None = None
        self.asks = False  # It has to be given an address for the answer.
        self.inbox: Inbox | None = None  # For such answers.

    @property
    def who(self) -> str:
        """For people, as RabbitMQ names channels."""
        return self.session.who

    @property
    def consumers(self) -> dict[str, ChannelConsumer]:
        """The consumers of its session, which the channel has made."""
        return cast("dict[str, ChannelConsumer]", self.session.consumers)

    # -- Answers -------------------------------------------------------------------------------------------------

    def reply(self, method: m.Method) -> None:
        self.connection.send(self.number, method)

    def ask(
        self, ask: Callable[[Callable[[T | Refusal], None]], None], method: m.Method, then: Callable[[T], None]
    ) -> None:
        """Ask the session something, then go on with `then`, unless the client is gone. If that takes a while, nothing
        is done meanwhile that may depend on it."""
        connection = self.connection
        at_once: list[T | Refusal] = []
        waits = False

        def on_answer(answer: T | Refusal) -> None:
            if not waits:
                at_once.append(answer)
                return
            if not self._is_gone():
                self._guarded(lambda: self._take_answer(answer, method, then))
            connection.release_from(self, method)

        ask(on_answer)
        if at_once:
            self._take_answer(at_once[0], method, then)
        else:
            waits = True
            connection.hold_for(self, method)

    @staticmethod
    def _take_answer(answer: T | Refusal, method: m.Method, then: Callable[[T], None]) -> None:
        if isinstance(answer, Refusal):
            raise fault_of(answer, method)
        then(answer)

    def _is_gone(self) -> bool:
        """Tell whether the channel or its connection is closing, so that no answer is sent any more."""
        return self.connection.closed or self.connection.closing or self.closing

    def _guarded(self, action: Callable[[], None]) -> None:
        """Later than when the method came, so that faults are not caught by whoever processes input."""
        try:
            action()
        except ChannelFault as error:
            self.fail(error)
        except ConnectionFault as error:
            self.connection.close_with(error)

    def begin_wait(self) -> bool:
        """A change of metadata is under way. True: it is the only one."""
        self.waits += 1
        return self.waits == 1

    def end_wait(self) -> bool:
        """End one wait; return True if no other one is under way."""
        self.waits -= 1
        return not self.waits

    def queue_name(self, name: str, method: m.Method) -> str:
        """The name given, or that of the queue this channel declared last."""
        if name:
            return name
        if self.last_queue is None:
            raise protocol_error(ReplyCode.NOT_FOUND, "no previously declared queue", method)
        return self.last_queue

    def on_declared(self, name: str) -> None:
        """The queue that is meant by methods that name none."""
        self.last_queue = name

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
        self.route, self.header, self.body = None, b"", NO_LIST
        self.connection.on_content(self, route, header, content)

    # -- Publishing ----------------------------------------------------------------------------------------------

    def find_route(self, arguments: bytes) -> Route:
        """Return the route for the raw arguments of a publish, after the permission check."""
        middle = 1 + arguments[0] if arguments else 1
        if middle >= len(arguments) or middle + 2 + arguments[middle] != len(arguments):
            text = f"cannot decode {printed(bytes(2) + arguments)}"  # The ticket, which nobody uses, included.
            raise ConnectionFault(ReplyCode.FRAME_ERROR, text, 60, 40)
        try:
            return self.session.find_route(arguments)
        except Refused as refused:
            raise fault_of(refused.refusal, m.BasicPublish) from None

    def publish(self, bundles: list[tuple[tuple[AnyQueue, ...], list[bytes], list[bytes]]], kind: int) -> None:
        """Messages of one kind: for each bundle its queues, contents and keys. They share one confirm."""
        session = self.session
        confirms = session.confirms
        count = sum([len(contents) for _, contents, _ in bundles])
        session.traffic.published += count
        if self.broker.refusing:
            self._refuse(count)
            return
        self.send(bundles, kind, None if confirms is None else confirms.begin(count))

    def send(
        self, bundles: list[tuple[tuple[AnyQueue, ...], list[bytes], list[bytes]]], kind: int, pending: Pending | None
    ) -> None:
        journal = self.broker.journal if pending is None else None
        if journal is not None:
            journal.begin_publish(self.who)
        totals = self.broker.totals
        add_sizes = totals.sizes["amqp"].add
        for queues, contents, keys in bundles:
            count = len(contents)
            totals.published += count
            size = add_sizes(contents) + MESSAGE_OVERHEAD * count
            if self.number != 1:
                contents = [rechannel(content, 1) for content in contents]
            if len(queues) == 1:
                if queues[0].enqueue(contents, keys, kind, size, pending):
                    self.connection.on_crowded(queues[0])
            else:
                self._spread(queues, contents, keys, kind, size, pending)
        if journal is not None:
            journal.end_publish()
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
                    self.connection.on_crowded(queue)
        finally:
            if shared is not None:
                shared.end()
        if len(queues) > FEW:
            self._on_spread(len(contents), len(queues))

    def _on_spread(self, messages: int, queues: int) -> None:
        if self.broker.fanout.spend(messages, queues):
            self.connection.rest_from_spreading()

    def publish_one(self, route: Route, content: bytes, kind: int, further: Sequence[str] = ()) -> None:
        """A message with something special to it: it has further keys, or its route is not plain."""
        if self.broker.refusing and self.transaction is None:  # That is refused as a whole.
            self._refuse(1)
            return
        session = self.session
        queues = session.queues_of(route, content, further)
        if self.transaction is not None:
            self.transaction.publish(route, queues, content, kind)
        elif queues:
            self.publish([(queues, [content], [route.key])], kind)
        else:
            self.on_unroutable(route, content)
            if session.confirms is not None:
                session.confirms.on_complete(session.confirms.begin(1))

    def on_unroutable(self, route: Route, content: bytes) -> None:
        traffic = self.session.traffic
        self.broker.totals.published += 1
        self.broker.totals.unroutable += 1
        self.broker.totals.sizes["amqp"].add((content,))
        traffic.published += 1
        if route.mandatory:
            traffic.returned += 1
            self._return(route, content)
        else:
            traffic.dropped += 1

    def _refuse(self, count: int) -> None:
        """Take none of these publishes. Whoever did not ask for confirms is not told, as with a queue that is full."""
        confirms = self.session.confirms
        if confirms is not None:
            pending = confirms.begin(count)
            pending.mark_refused()
            confirms.on_complete(pending)

    def _return(self, route: Route, content: bytes) -> None:
        connection = self.connection
        method = m.BasicReturn(312, "NO_ROUTE", route.exchange, route.routing_key)
        connection.send_content(self.number, method, reframe(content, self.number, connection.frame_max))

    def check_properties(self, data: bytes, start: int) -> None:
        """The properties that can make a message unacceptable. `data` has the header payload at `start`."""
        self.asks = reply_to(data, start) == ADDRESS
        if self.asks and self.inbox is None:
            raise protocol_error(ReplyCode.PRECONDITION_FAILED, "fast reply consumer does not exist", m.BasicPublish)
        try:
            further = self.session.check_properties(data, start)
        except Refused as refused:
            raise fault_of(refused.refusal, m.BasicPublish) from None
        self.copies = [] if further is None and self.asks else further

    def publish_copies(self, route: Route, content: bytes, kind: int) -> None:
        """A message that `check_properties` found to have CC or BCC headers, or to want an answer."""
        further, self.copies = self.copies, None
        if self.asks and self.inbox is not None:
            content = with_reply_to(content, HEADER_AT, self.inbox.address)
        assert further is not None
        try:
            content = self.session.checked_copies(route, content, further)
        except Refused as refused:
            raise fault_of(refused.refusal, m.BasicPublish) from None
        self.publish_one(route, content, kind, further)

    def _on_confirmed(self) -> None:
        self.broker.confirming[self] = None

    def send_confirms(self) -> None:
        """Tell the publisher what became safe since the last time."""
        confirms = self.session.confirms
        if confirms is None or self.closing:
            return
        for number, multiple, refused in confirms.take():
            if refused:
                self.reply(m.BasicNack(number, multiple, False))
            else:
                self.connection.output.send(CONFIRM.pack(METHOD, self.number, 13, *ACK_IDS, number, multiple, END))

    # -- Settling ------------------------------------------------------------------------------------------------

    def on_ack(self, tag: int, multiple: int) -> None:
        """The fast path calls this without `on_method`, so it translates a refusal itself."""
        session = self.session
        try:
            taken = session.take(tag, bool(multiple))
        except Refused as refused:
            raise fault_of(refused.refusal, m.BasicAck) from None
        if self.transaction is None:
            session.acknowledge(taken)
        else:
            self.transaction.settle(session.acknowledge, taken)

    def _on_nack(self, tag: int, multiple: bool, requeue: bool) -> None:
        session = self.session
        if requeue:
            session.catch_up()
        taken = session.take(tag, multiple)
        action = session.take_back if requeue else session.reject
        if self.transaction is None:
            action(taken)
        else:
            self.transaction.settle(action, taken)
        refuse_return(taken, "basic.nack and basic.reject")

    def end(self) -> None:
        """The channel is closed, by either side."""
        self.release_all()
        self.closing = True

    def release_all(self) -> None:
        """The channel ends: its consumers go, what was out comes back."""
        self.route, self.header, self.body = None, b"", NO_LIST
        self._close_inbox()
        if self.transaction is not None:
            self.transaction.rollback()
        self.session.close()

    # -- Methods -------------------------------------------------------------------------------------------------

    def on_method(self, method: m.Method) -> None:
        if self.route is not None:
            raise self._unexpected()
        handler, declaration = HANDLERS.get(type(method)), DECLARATIONS.get(type(method))
        try:
            if handler is not None:
                handler(self, method)
            elif declaration is not None:
                declaration(Declarations(self), method)
            else:
                raise protocol_error(ReplyCode.COMMAND_INVALID, "unimplemented method", method)
        except Refused as refused:
            raise fault_of(refused.refusal, method) from None

    def on_open(self, method: m.ChannelOpen) -> None:
        raise protocol_error(ReplyCode.CHANNEL_ERROR, "second 'channel.open' seen", method)

    def on_close(self, method: m.ChannelClose) -> None:
        def then(_: bool) -> None:
            self.connection.on_channel_closed(self)
            self.reply(m.ChannelCloseOk())

        self.ask(self.session.cancel_all, method, then)

    def on_close_ok(self, method: m.ChannelCloseOk) -> None:
        pass  # To a close that we did not send; nothing to close.

    def on_flow(self, method: m.ChannelFlow) -> None:
        if not method.active:
            raise protocol_error(ReplyCode.NOT_IMPLEMENTED, "active=false", method)
        self.reply(m.ChannelFlowOk(True))

    def on_access_request(self, method: m.AccessRequest) -> None:
        self.reply(m.AccessRequestOk(1))

    def on_basic_ack(self, method: m.BasicAck) -> None:
        self.on_ack(method.delivery_tag, method.multiple)

    def on_basic_nack(self, method: m.BasicNack) -> None:
        self._on_nack(method.delivery_tag, method.multiple, method.requeue)

    def on_basic_reject(self, method: m.BasicReject) -> None:
        self._on_nack(method.delivery_tag, False, method.requeue)

    def on_basic_recover(self, method: m.BasicRecover | m.BasicRecoverAsync) -> None:
        if not method.requeue:
            raise protocol_error(ReplyCode.NOT_IMPLEMENTED, "requeue=false", method)
        session = self.session
        refuse_return(session.unacked, method.name)
        session.catch_up()
        session.take_back(session.unacked.take_all())
        if isinstance(method, m.BasicRecover):
            self.reply(m.BasicRecoverOk())

    def on_basic_qos(self, method: m.BasicQos) -> None:
        if method.prefetch_size:
            raise protocol_error(ReplyCode.NOT_IMPLEMENTED, f"prefetch_size!=0 ({method.prefetch_size})", method)
        if method.global_:
            self.session.set_prefetch(method.prefetch_count)
        else:
            self.new_consumer_prefetch = method.prefetch_count
        self.reply(m.BasicQosOk())

    def on_tx_select(self, method: m.TxSelect) -> None:
        if self.session.confirms is not None:
            raise protocol_error(ReplyCode.PRECONDITION_FAILED, "cannot switch from confirm to tx mode", method)
        if self.transaction is None:
            self.connection.forget_publish()  # What looks like the last one is no longer dealt with like that one.
            self.transaction = Transaction(self)
            self.session.begin_transaction(self.transaction)
        self.reply(m.TxSelectOk())

    def on_tx_commit(self, method: m.TxCommit) -> None:
        self.ask(self._transaction(method).commit, method, lambda _: self.reply(m.TxCommitOk()))

    def on_tx_rollback(self, method: m.TxRollback) -> None:
        self._transaction(method).rollback()
        self.reply(m.TxRollbackOk())

    def _transaction(self, method: m.Method) -> Transaction:
        if self.transaction is None:
            raise protocol_error(ReplyCode.PRECONDITION_FAILED, "channel is not transactional", method)
        return self.transaction

    def on_confirm_select(self, method: m.ConfirmSelect) -> None:
        if self.transaction is not None:
            raise protocol_error(ReplyCode.PRECONDITION_FAILED, "cannot switch from tx to confirm mode", method)
        self.session.confirm(self._on_confirmed)
        if not method.nowait:
            self.reply(m.ConfirmSelectOk())

    # -- Consuming -----------------------------------------------------------------------------------------------

    def on_consumer_ended(self, tag: str) -> None:
        """The queue of a consumer is gone."""
        self.session.forget_consumer(tag)
        if self.cancelled is not None:
            self.cancelled.append(tag)
        else:
            self._tell_cancelled(tag)

    def _tell_cancelled(self, tag: str) -> None:
        if self.connection.capabilities.get("consumer_cancel_notify"):
            self.reply(m.BasicCancel(tag, True))

    def begin_deleting(self) -> None:
        """The channel deletes a queue, perhaps one that it consumes from."""
        self.cancelled = []

    def end_deleting(self) -> None:
        """Tell of cancelled consumers, now that the deletion of their queue was answered."""
        cancelled, self.cancelled = self.cancelled or [], None
        for tag in cancelled:
            self._tell_cancelled(tag)

    def _open_inbox(self, method: m.BasicConsume) -> None:
        """Consume from the pseudo-queue of direct reply-to."""
        tag = self.session.new_tag(method.consumer_tag)
        if not method.no_ack:
            raise protocol_error(ReplyCode.PRECONDITION_FAILED, "reply consumer cannot acknowledge", method)
        if self.inbox is not None:
            raise protocol_error(ReplyCode.PRECONDITION_FAILED, "reply consumer already set", method)
        self.inbox = self.broker.replies.open(self, tag)
        if not method.nowait:
            self.reply(m.BasicConsumeOk(tag))

    def _close_inbox(self) -> None:
        if self.inbox is not None:
            self.broker.replies.close(self.inbox)
            self.inbox = None

    def on_consume(self, method: m.BasicConsume) -> None:
        if method.queue == ADDRESS:
            self._open_inbox(method)
            return
        name = self.queue_name(method.queue, method)
        prefetch, arguments = self.new_consumer_prefetch, method.arguments
        wanted = ConsumerWanted(name, method.consumer_tag, method.no_ack, method.exclusive, prefetch, arguments)

        def make(queue: AnyQueue, start: Start | None) -> ChannelConsumer:
            return ChannelConsumer(self, queue, wanted, start)

        def then(tag: str) -> None:
            if not method.nowait:
                self.reply(m.BasicConsumeOk(tag))

        self.ask(lambda done: self.session.subscribe(wanted, make, done), method, then)

    def on_cancel(self, method: m.BasicCancel) -> None:
        def then(_: bool) -> None:
            if not method.nowait:
                self.reply(m.BasicCancelOk(method.consumer_tag))

        if self.inbox is not None and self.inbox.tag == method.consumer_tag:
            self._close_inbox()
            then(True)
        else:
            self.ask(lambda done: self.session.cancel(method.consumer_tag, done), method, then)

    def on_get(self, method: m.BasicGet) -> None:
        name = self.queue_name(method.queue, method)

        def then(delivery: Delivery | None) -> None:
            if delivery is None:
                self.reply(m.BasicGetEmpty())
            else:
                self._got(delivery)

        self.ask(lambda done: self.session.fetch(name, method.no_ack, done), method, then)

    def _got(self, got: Delivery) -> None:
        connection = self.connection
        ok = m.BasicGetOk(got.number, got.redelivered, got.exchange, got.routing_key, got.remaining)
        connection.send_content(self.number, ok, reframe(got.content, self.number, connection.frame_max))


HANDLERS: Final[dict[type[m.Method], Callable[[Channel, Any], None]]] = {
    m.ChannelOpen: Channel.on_open,
    m.ChannelClose: Channel.on_close,
    m.ChannelCloseOk: Channel.on_close_ok,
    m.ChannelFlow: Channel.on_flow,
    m.AccessRequest: Channel.on_access_request,
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
