"""What a client may not do, found out before anything is changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from leveret.broker.routing.delayed_exchange import DELAYED_TYPE
from leveret.broker.routing.router import EXCHANGE_TYPES, check_binding, check_exchange
from leveret.metadata.model.hidden_queues import DELAYED, is_journal
from leveret.metadata.rules.ha_policy import is_quorum
from leveret.metadata.rules.permissions import Kind, Which, refused_text, topic_refused_text
from leveret.protocol import methods as m
from leveret.protocol.errors import ConnectionFault, ReplyCode, protocol_error, resource
from leveret.protocol.tables import type_name

if TYPE_CHECKING:
    from leveret.metadata.model.records import ExchangeSpec, QueueSpec
    from leveret.protocol.tables import Table
    from leveret.sessions.amqp.connection import Connection

MethodOrType = m.Method | type[m.Method]


def routed_as(exchange: ExchangeSpec) -> str:
    """The type by which an exchange routes."""
    return str(exchange.arguments[DELAYED_TYPE].value) if exchange.type == DELAYED else exchange.type


def check_permission(connection: Connection, kind: Kind, name: str, which: Which, method: MethodOrType) -> None:
    """`which` is configure, write or read."""
    vhost = connection.vhost
    assert vhost is not None
    if not connection.broker.permissions.check(connection.user, vhost.name, kind, name, which):
        text = refused_text(connection.user, vhost.name, kind, name)
        raise protocol_error(ReplyCode.ACCESS_REFUSED, text, method)


def refuse_journal(connection: Connection, name: str, method: MethodOrType) -> None:
    """The node that keeps a journal makes it, and fills it: to clients it is there to be read."""
    if is_journal(name):
        assert connection.vhost is not None
        text = f"{resource('queue', name, connection.vhost.name)} is a journal of the broker, which can only be read"
        raise protocol_error(ReplyCode.ACCESS_REFUSED, text, method)


def check_quorum_delete(spec: QueueSpec, method: m.QueueDelete) -> None:
    for flag, given in (("if-unused", method.if_unused), ("if-empty", method.if_empty)):
        if given and is_quorum(spec.arguments):
            text = (
                f"cannot delete {resource('queue', spec.name, spec.vhost)}. "
                f"queue.delete operations with {flag} flag set are not supported by quorum queues"
            )
            raise protocol_error(ReplyCode.NOT_IMPLEMENTED, text, method)


def check_quorum_qos(spec: QueueSpec, channel_prefetch: int, method: m.BasicConsume) -> None:
    if channel_prefetch and is_quorum(spec.arguments):
        text = f"{resource('queue', spec.name, spec.vhost)} does not support global qos"
        raise protocol_error(ReplyCode.NOT_IMPLEMENTED, text, method)


def check_topic(
    connection: Connection, exchange: ExchangeSpec, key: str, which: Literal["write", "read"], method: MethodOrType
) -> None:
    """Topic permissions: patterns of routing keys, for those users that have any."""
    if routed_as(exchange) == "topic" and not connection.broker.permissions.check_topic(
        connection.user, exchange.vhost, exchange.name, key, which
    ):
        text = topic_refused_text(connection.user, exchange.vhost, exchange.name, key)
        raise protocol_error(ReplyCode.ACCESS_REFUSED, text, method)


def check_exchange_type(method: m.ExchangeDeclare) -> None:
    if method.type not in EXCHANGE_TYPES and method.type != DELAYED:
        raise ConnectionFault(
            ReplyCode.COMMAND_INVALID, f"unknown exchange type '{method.type}'", method.class_id, method.method_id
        )


def check_exchange_arguments(connection: Connection, method: m.ExchangeDeclare) -> None:
    """Who names an alternate exchange must be allowed to read the one and write to the other."""
    alternate = method.arguments.get("alternate-exchange")
    if alternate is not None:
        vhost = connection.vhost
        assert vhost is not None
        if alternate.kind != "S":
            where = resource("exchange", method.exchange, vhost.name)
            text = f"invalid type '{type_name(alternate)}' for arg 'alternate-exchange' in {where}"
            raise protocol_error(ReplyCode.PRECONDITION_FAILED, text, method)
        check_permission(connection, "exchange", method.exchange, "read", method)
        check_permission(connection, "exchange", alternate.value, "write", method)
    problem = check_exchange(method.type, method.arguments)
    if problem is not None:
        raise protocol_error(ReplyCode.PRECONDITION_FAILED, problem, method)


def check_binding_arguments(exchange: ExchangeSpec, key: str, arguments: Table, method: m.Method) -> None:
    problem = check_binding(routed_as(exchange), key, arguments)
    if problem is not None:
        raise protocol_error(ReplyCode.PRECONDITION_FAILED, problem, method)
