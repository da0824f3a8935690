"""The channel methods that declare, bind and delete, and what all of a channel's methods have in common.

An operation on metadata is proposed and answered when it is in force. Meanwhile its channel waits, and other channels
go on: what they propose is agreed on together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from leveret.broker.routing.reply_address import ADDRESS
from leveret.metadata.model import commands as c
from leveret.metadata.model.hidden_queues import DELAYED, keeper_arguments, keeper_name
from leveret.metadata.model.records import NO_ARGUMENTS, Binding
from leveret.metadata.model.refusals import Refusal, not_found
from leveret.metadata.rules.redeclare import exchange_mismatch, queue_declare_locked, queue_locked, queue_mismatch
from leveret.protocol import methods as m
from leveret.protocol.errors import ChannelFault, ConnectionFault, ReplyCode, protocol_error, resource
from leveret.sessions.amqp.permission_checks import (
    check_binding_arguments,
    check_exchange_arguments,
    check_exchange_type,
    check_permission,
    check_quorum_delete,
    check_topic,
    refuse_journal,
)
from leveret.sessions.amqp.queue_arguments import check_queue_arguments
from leveret.sessions.amqp.stream_checks import refuse_for_stream

if TYPE_CHECKING:
    from leveret.broker.broker import AnyQueue, Broker
    from leveret.broker.delivery.answers import Status
    from leveret.metadata.model.records import ExchangeSpec, QueueSpec
    from leveret.metadata.rules.permissions import Kind, Which
    from leveret.metadata.store import Applied
    from leveret.protocol.tables import Table
    from leveret.sessions.amqp.connection import Connection

T = TypeVar("T")


class Topology:
    """The part of a channel that deals with metadata."""

    __slots__ = ("broker", "closing", "connection", "last_queue", "number", "waits")

    def __init__(self, connection: Connection, number: int) -> None:
        self.connection = connection
        self.broker: Broker = connection.broker
        self.number = number
        self.closing = False
        self.waits = 0  # Changes of metadata under way. Until their end, the next ones of the channel are put off.
        self.last_queue: str | None = None  # What a method means that names no queue.

    def fail(self, fault: ChannelFault) -> None:
        """End the channel."""
        raise NotImplementedError

    def _begin_deleting(self) -> None:
        """The channel deletes a queue, perhaps one that it consumes from."""
        raise NotImplementedError

    def _end_deleting(self) -> None:
        """It is gone, and the client was told."""
        raise NotImplementedError

    # -- Common ground -------------------------------------------------------------------------------------------

    def _reply(self, method: m.Method) -> None:
        self.connection.send(self.number, method)

    def _propose(
        self,
        command: c.Command,
        method: m.Method,
        then: Callable[[], None],
        otherwise: Callable[[], None] | None = None,
        missing_is_done: bool = False,
    ) -> None:
        """Change the metadata, then go on with `then`; nothing further is done on the channel until it is in force.

        `otherwise` is called instead if the client is gone by then.
        """
        connection = self.connection
        connection.hold_for(self, method)

        def on_applied(applied: Applied) -> None:
            if self._is_gone():
                if otherwise is not None:
                    otherwise()
            else:
                self._guarded(lambda: check(applied))
            connection.release_from(self, method)

        def check(applied: Applied) -> None:
            refused = applied.refused
            if refused is not None and not (missing_is_done and refused.code == ReplyCode.NOT_FOUND):
                raise protocol_error(ReplyCode(refused.code), refused.text, method)
            then()

        self.broker.propose(command, on_applied)

    def _ask(
        self,
        ask: Callable[[Callable[[T | Refusal], None]], None],
        method: m.Method,
        then: Callable[[T], None],
        otherwise: Callable[[T], None] | None = None,
    ) -> None:
        """Ask a queue something, then go on with `then`. If the queue is at another node, that takes a while, in which
        nothing further is done that may depend on it. `otherwise` is called instead if the client is gone by then."""
        connection = self.connection
        at_once: list[T | Refusal] = []
        waits = False

        def on_answer(answer: T | Refusal) -> None:
            if not waits:
                at_once.append(answer)
                return
            if self._is_gone():
                if otherwise is not None and not isinstance(answer, Refusal):
                    otherwise(answer)
            else:
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
            raise protocol_error(ReplyCode(answer.code), answer.text, method)
        then(answer)

    def _is_gone(self) -> bool:
        """Whether nobody is there any more who could be answered."""
        return self.connection.closed or self.connection.closing or self.closing

    def _guarded(self, action: Callable[[], None]) -> None:
        """Later than when the method came, so that faults are not caught by whoever processes input."""
        try:
            action()
        except ChannelFault as error:
            self.fail(error)
        except ConnectionFault as error:
            self.connection.close_with(error)

    def _queue_name(self, name: str, method: m.Method) -> str:
        """The name given, or that of the queue this channel declared last."""
        if name:
            return name
        if self.last_queue is None:
            raise protocol_error(ReplyCode.NOT_FOUND, "no previously declared queue", method)
        return self.last_queue

    def _queue(self, name: str, which: Which | None, method: m.Method) -> AnyQueue:
        """The queue of that name, if the user may use it so and nobody else owns it."""
        vhost = self.connection.vhost
        assert vhost is not None
        if which is not None:
            self._check("queue", name, which, method)
        queue = vhost.queue(name)
        if queue is None:
            raise self._no("queue", name, method)
        self._check_owner(queue.spec, method)
        return queue

    def _check_owner(self, spec: QueueSpec, method: m.Method) -> None:
        locked = queue_locked(spec, self.broker.id_of(self.connection))
        if locked is not None:
            raise protocol_error(ReplyCode.RESOURCE_LOCKED, locked, method)

    def _check(self, kind: Kind, name: str, which: Which, method: m.Method | type[m.Method]) -> None:
        check_permission(self.connection, kind, name, which, method)

    def _not_default(self, exchange: str, method: m.Method) -> None:
        if not exchange:
            text = "operation not permitted on the default exchange"
            raise protocol_error(ReplyCode.ACCESS_REFUSED, text, method)

    def _no(self, kind: Kind, name: str, method: m.Method | type[m.Method]) -> ChannelFault | ConnectionFault:
        vhost = self.connection.vhost
        assert vhost is not None
        return protocol_error(ReplyCode.NOT_FOUND, f"no {resource(kind, name, vhost.name)}", method)

    @staticmethod
    def _named(spec: QueueSpec) -> str:
        return resource("queue", spec.name, spec.vhost)

    # -- Queues --------------------------------------------------------------------------------------------------

    def on_queue_declare(self, method: m.QueueDeclare) -> None:
        connection, broker = self.connection, self.broker
        vhost = connection.vhost
        assert vhost is not None
        name = method.queue = in_one_line(method.queue)
        if name.startswith(ADDRESS):
            self._declare_inbox(method)
            return
        broker.totals.queues_declared += 1
        if method.passive:
            self._declared(method, self._queue(name, None, method))
            return
        if not name:
            name = broker.unique_name("amq.gen-")
        self._check("queue", name, "configure", method)
        refuse_journal(connection, name, method)
        if vhost.queue(name) is not None:
            self._redeclare(method, name)
            return
        if method.queue.startswith("amq."):
            text = f"queue name '{name}' contains reserved prefix 'amq.*'"
            raise protocol_error(ReplyCode.ACCESS_REFUSED, text, method)
        check_queue_arguments(vhost.name, name, method)
        if (letters := method.arguments.get("x-dead-letter-exchange")) is not None:
            # Who names a dead-letter exchange must be allowed to read the queue and write to the exchange.
            self._check("queue", name, "read", method)
            self._check("exchange", letters.value, "write", method)
        owner = broker.id_of(connection) if method.exclusive else None
        home, view = broker.node_name, None
        if broker.placing is not None and not method.exclusive:
            home = broker.placing.home(vhost.name, name, method.arguments)
            view = broker.placing.first_view(vhost.name, name, method.durable, method.arguments, home)
        command = c.DeclareQueue(
            vhost.name,
            name,
            method.durable,
            method.exclusive,
            method.auto_delete,
            method.arguments,
            owner,
            home,
            view,
        )

        def on_declared() -> None:
            queue = vhost.queues.get(name)
            if queue is None:
                raise self._no("queue", name, method)
            broker.totals.queues_created += 1
            if owner is not None and queue.spec.owner == owner:
                connection.exclusive_queues[queue] = None
            self._redeclare(method, name)  # Somebody at another node may have been faster, with other properties.

        def on_abandoned() -> None:
            queue = vhost.queues.get(name)
            if queue is not None and owner is not None and queue.spec.owner == owner:
                broker.on_unused(queue)  # Nobody else can ever use or delete it.

        self._propose(command, method, on_declared, on_abandoned)

    def _declare_inbox(self, method: m.QueueDeclare) -> None:
        """The pseudo-queue of direct reply-to, or the address of somebody who waits for an answer; always passive."""
        assert self.connection.vhost is not None
        name, nobody = method.queue, not_found("queue", method.queue, self.connection.vhost.name)

        def then(_: bool) -> None:
            self.last_queue = name
            if not method.nowait:
                self._reply(m.QueueDeclareOk(name, 0, 1))

        self._ask(lambda done: self.broker.replies.ask(name, lambda there: done(there or nobody)), method, then)

    def _redeclare(self, method: m.QueueDeclare, name: str) -> None:
        """The queue exists: it must be what is wanted."""
        assert self.connection.vhost is not None
        queue = self.connection.vhost.queues[name]
        locked = queue_declare_locked(queue.spec, method.exclusive, self.broker.id_of(self.connection))
        if locked is not None:
            self._refuse_locked(method, queue, protocol_error(ReplyCode.RESOURCE_LOCKED, locked, method))
            return
        mismatch = queue_mismatch(queue.spec, method.durable, method.auto_delete, method.arguments)
        if mismatch is not None:
            raise protocol_error(ReplyCode.PRECONDITION_FAILED, mismatch, method)
        self._declared(method, queue)

    def _refuse_locked(self, method: m.QueueDeclare, queue: AnyQueue, fault: ChannelFault | ConnectionFault) -> None:
        """Unless the owner's node is lost: if the queue goes with it, the name is free."""
        if queue.is_local or queue.edge is not None:
            raise fault

        def then(status: Status | None) -> None:
            if status is not None:
                raise fault
            self.on_queue_declare(method)

        self._ask(self._status_of(queue), method, then)

    def _declared(self, method: m.QueueDeclare, queue: AnyQueue) -> None:
        self.last_queue = queue.spec.name

        def then(status: Status | None) -> None:
            if status is None:
                self.on_queue_declare(method)
            elif not method.nowait:
                self._reply(m.QueueDeclareOk(queue.spec.name, status.ready, status.consumers))

        self._ask(self._status_of(queue), method, then)

    @staticmethod
    def _status_of(queue: AnyQueue) -> Callable[[Callable[[Status | Refusal | None], None]], None]:
        """To be asked. The answer is None if the queue was deleted before its node had the question; that this node has
        not heard of that yet makes no difference."""
        gone = not_found("queue", queue.spec.name, queue.spec.vhost)

        def ask(done: Callable[[Status | Refusal | None], None]) -> None:
            def then(status: Status | Refusal) -> None:
                done(None if status == gone or (isinstance(status, Refusal) and queue.deleted) else status)

            queue.status(then)

        return ask

    def on_queue_delete(self, method: m.QueueDelete) -> None:
        vhost = self.connection.vhost
        assert vhost is not None
        name = in_one_line(self._queue_name(method.queue, method))
        self._check("queue", name, "configure", method)
        refuse_journal(self.connection, name, method)
        queue = vhost.queue(name)
        if queue is None:  # Deleting what is not there is done already.
            if not method.nowait:
                self._reply(m.QueueDeleteOk(0))
            return
        self._check_owner(queue.spec, method)
        check_quorum_delete(queue.spec, method)
        if not queue.is_local and queue.edge is None:
            if not method.if_unused and not method.if_empty:
                self._delete_queue(method, queue, 0)  # Its node is down, which must not keep anybody from giving it up.
                return
            if method.if_empty and queue.spec.view is not None:  # RabbitMQ's code for one that nobody can look into.
                text = f"{self._named(queue.spec)} may not be empty: nobody leads it"
                raise protocol_error(ReplyCode.PRECONDITION_FAILED, text, method)

        def then(status: Status | None) -> None:
            if status is None:
                if not method.nowait:
                    self._reply(m.QueueDeleteOk(0))
                return
            if method.if_unused and status.consumers:
                raise protocol_error(ReplyCode.PRECONDITION_FAILED, f"{self._named(queue.spec)} in use", method)
            if method.if_empty and status.ready:
                raise protocol_error(ReplyCode.PRECONDITION_FAILED, f"{self._named(queue.spec)} not empty", method)
            self._delete_queue(method, queue, status.ready)

        self._ask(self._status_of(queue), method, then)

    def _delete_queue(self, method: m.QueueDelete, queue: AnyQueue, count: int) -> None:
        """What comes into the queue from now until this is agreed on counts as having come after it: nobody's.

        The answer comes before the end of this channel's own consumers is told. Clients that wait for the answer take
        no other method on the channel for it.
        """

        def on_deleted() -> None:
            if not method.nowait:
                self._reply(m.QueueDeleteOk(count))
            self._end_deleting()

        self._begin_deleting()
        command = c.DeleteQueue(queue.spec.vhost, queue.spec.name, queue.spec.id)
        self._propose(command, method, on_deleted, missing_is_done=True)

    def on_queue_purge(self, method: m.QueuePurge) -> None:
        queue = self._queue(self._queue_name(method.queue, method), "read", method)
        refuse_for_stream(queue.spec, "queue.purge", method)

        def then(count: int) -> None:
            if not method.nowait:
                self._reply(m.QueuePurgeOk(count))

        self._ask(queue.purge_all, method, then)

    def on_queue_bind(self, method: m.QueueBind) -> None:
        name = self._queue_name(method.queue, method)
        # The short form: bind the queue just declared, by its own name.
        key = name if not method.queue and not method.routing_key else method.routing_key
        answer = m.QueueBindOk()
        self._bind(c.Bind, method, method.exchange, "queue", name, key, method.arguments, answer, method.nowait)

    def on_queue_unbind(self, method: m.QueueUnbind) -> None:
        name = self._queue_name(method.queue, method)
        key = name if not method.queue and not method.routing_key else method.routing_key
        self._bind(c.Unbind, method, method.exchange, "queue", name, key, method.arguments, m.QueueUnbindOk(), False)

    # -- Exchanges -----------------------------------------------------------------------------------------------

    def on_exchange_declare(self, method: m.ExchangeDeclare) -> None:
        vhost = self.connection.vhost
        assert vhost is not None
        name = method.exchange = in_one_line(method.exchange)
        spec = self.broker.metadata.exchanges.get((vhost.name, name))
        if method.passive:
            self._not_default(name, method)
            if spec is None:
                raise self._no("exchange", name, method)
        else:
            check_exchange_type(method)
            self._not_default(name, method)
            self._check("exchange", name, "configure", method)
            if spec is None:
                self._new_exchange(method)
                return
            self._check_exchange(method, spec)
        if not method.nowait:
            self._reply(m.ExchangeDeclareOk())

    def _new_exchange(self, method: m.ExchangeDeclare) -> None:
        vhost = self.connection.vhost
        assert vhost is not None
        name = method.exchange
        if name.startswith("amq."):
            text = f"exchange name '{name}' contains reserved prefix 'amq.*'"
            raise protocol_error(ReplyCode.ACCESS_REFUSED, text, method)
        check_exchange_arguments(self.connection, method)

        def on_declared() -> None:
            spec = self.broker.metadata.exchanges.get((vhost.name, name))
            if spec is not None:  # Somebody at another node may have been faster, with other properties.
                self._check_exchange(method, spec)
            if not method.nowait:
                self._reply(m.ExchangeDeclareOk())

        home, view = self.broker.node_name, None
        if method.type == DELAYED and self.broker.placing is not None:
            keeper, arguments = keeper_name(name), keeper_arguments(name)
            home = self.broker.placing.home(vhost.name, keeper, arguments)
            view = self.broker.placing.first_view(vhost.name, keeper, True, arguments, home)
        command = c.DeclareExchange(
            vhost.name,
            name,
            method.type,
            method.durable,
            method.auto_delete,
            method.internal,
            method.arguments,
            home if method.type == DELAYED else "",
            view,
        )
        self._propose(command, method, on_declared)

    @staticmethod
    def _check_exchange(method: m.ExchangeDeclare, spec: ExchangeSpec) -> None:
        """The exchange exists: it must be what is wanted."""
        mismatch = exchange_mismatch(
            spec, method.type, method.durable, method.auto_delete, method.internal, method.arguments
        )
        if mismatch is not None:
            raise protocol_error(ReplyCode.PRECONDITION_FAILED, mismatch, method)

    def on_exchange_delete(self, method: m.ExchangeDelete) -> None:
        vhost = self.connection.vhost
        assert vhost is not None
        method.exchange = in_one_line(method.exchange)
        self._not_default(method.exchange, method)
        self._check("exchange", method.exchange, "configure", method)

        def on_deleted() -> None:
            if not method.nowait:
                self._reply(m.ExchangeDeleteOk())

        command = c.DeleteExchange(vhost.name, method.exchange, method.if_unused)
        self._propose(command, method, on_deleted, missing_is_done=True)

    def on_exchange_bind(self, method: m.ExchangeBind) -> None:
        self._bind(
            c.Bind, method, method.source, "exchange", method.destination, method.routing_key, method.arguments,
            m.ExchangeBindOk(), method.nowait,
        )  # fmt: skip

    def on_exchange_unbind(self, method: m.ExchangeUnbind) -> None:
        self._bind(
            c.Unbind, method, method.source, "exchange", method.destination, method.routing_key, method.arguments,
            m.ExchangeUnbindOk(), method.nowait,
        )  # fmt: skip

    def _bind(
        self,
        command: type[c.Bind] | type[c.Unbind],
        method: m.Method,
        source: str,
        kind: Kind,
        destination: str,
        key: str,
        arguments: Table,
        answer: m.Method,
        nowait: bool,
    ) -> None:
        """All four: bind and unbind, of queues and of exchanges."""
        broker = self.broker
        vhost = self.connection.vhost
        assert vhost is not None
        source, destination = in_one_line(source), in_one_line(destination)
        if kind == "exchange":
            self._not_default(destination, method)
        self._check(kind, destination, "write", method)
        if kind == "queue":
            refuse_journal(self.connection, destination, method)
        self._not_default(source, method)
        self._check("exchange", source, "read", method)
        spec = broker.metadata.exchanges.get((vhost.name, source))
        if spec is not None:
            check_topic(self.connection, spec, key, "read", method)
        if command is c.Unbind:
            binding = Binding(vhost.name, source, kind, destination, key, arguments or NO_ARGUMENTS)
            if binding not in broker.metadata.bindings:  # Unbinding what is not bound, or not even there, is done.
                if not nowait:
                    self._reply(answer)
                return
        there = broker.metadata.exchanges if kind == "exchange" else broker.metadata.queues
        if spec is not None and command is c.Bind and (vhost.name, destination) in there:
            check_binding_arguments(spec, key, arguments, method)
        if kind == "queue":
            queue = vhost.queue(destination)
            if queue is not None:
                self._check_owner(queue.spec, method)

        def on_bound() -> None:
            if not nowait:
                self._reply(answer)

        change = command(vhost.name, source, kind, destination, key, arguments)
        self._propose(change, method, on_bound, missing_is_done=command is c.Unbind)


def in_one_line(name: str) -> str:
    """A name as RabbitMQ takes it: without line breaks, which would tear logs and listings apart."""
    return name.replace("\n", "").replace("\r", "")


