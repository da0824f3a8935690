"""What a client may not do, found out before anything is changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from leveret.amqp import methods as m
from leveret.amqp.errors import ConnectionFault, ReplyCode, protocol_error, resource
from leveret.amqp.tables import type_name
from leveret.broker.routing import EXCHANGE_TYPES, check_binding
from leveret.cluster.permissions import Kind, Which, refused_text, topic_refused_text

if TYPE_CHECKING:
    from leveret.amqp.connection import Connection
    from leveret.amqp.tables import Table
    from leveret.cluster.specs import ExchangeSpec

MethodOrType = m.Method | type[m.Method]

# Arguments of a queue that RabbitMQ 3.10 acts on and this version does not: refused, because a limit or a dead-letter
# exchange that is accepted and ignored loses somebody's messages.
UNSUPPORTED_QUEUE_ARGUMENTS: Final = frozenset(
    {
        "x-expires",
        "x-message-ttl",
        "x-dead-letter-exchange",
        "x-dead-letter-routing-key",
        "x-dead-letter-strategy",
        "x-max-length",
        "x-max-length-bytes",
        "x-max-in-memory-length",
        "x-max-in-memory-bytes",
        "x-max-priority",
        "x-overflow",
        "x-queue-mode",
        "x-queue-version",
        "x-single-active-consumer",
        "x-quorum-initial-group-size",
        "x-initial-cluster-size",
        "x-max-age",
        "x-stream-max-segment-size-bytes",
        "x-queue-leader-locator",
        "x-queue-master-locator",
        "x-delivery-limit",
        "x-consumer-timeout",
    }
)


def check_permission(connection: Connection, kind: Kind, name: str, which: Which, method: MethodOrType) -> None:
    """`which` is configure, write or read."""
    vhost = connection.vhost
    assert vhost is not None
    if not connection.broker.permissions.check(connection.user, vhost.name, kind, name, which):
        text = refused_text(connection.user, vhost.name, kind, name)
        raise protocol_error(ReplyCode.ACCESS_REFUSED, text, method)


def check_topic(
    connection: Connection, exchange: ExchangeSpec, key: str, which: Literal["write", "read"], method: MethodOrType
) -> None:
    """Topic permissions: patterns of routing keys, for those users that have any."""
    if exchange.type == "topic" and not connection.broker.permissions.check_topic(
        connection.user, exchange.vhost, exchange.name, key, which
    ):
        text = topic_refused_text(connection.user, exchange.vhost, exchange.name, key)
        raise protocol_error(ReplyCode.ACCESS_REFUSED, text, method)


def check_queue_arguments(vhost: str, name: str, method: m.QueueDeclare) -> None:
    kind = method.arguments.get("x-queue-type")
    if kind is not None and (kind.kind != "S" or kind.value != "classic"):
        known = kind.kind == "S" and kind.value in ("quorum", "stream")
        why = "not supported by this version" if known else "unsupported queue type"
        _refuse_argument("x-queue-type", vhost, name, why, method)
    for key in method.arguments:
        if key in UNSUPPORTED_QUEUE_ARGUMENTS:
            _refuse_argument(key, vhost, name, "not supported by this version", method)


def _refuse_argument(key: str, vhost: str, name: str, why: str, method: m.Method) -> None:
    text = f"invalid arg '{key}' for {resource('queue', name, vhost)}: {why}"
    raise protocol_error(ReplyCode.PRECONDITION_FAILED, text, method)


def check_exchange_type(method: m.ExchangeDeclare) -> None:
    if method.type not in EXCHANGE_TYPES:
        raise ConnectionFault(
            ReplyCode.COMMAND_INVALID, f"unknown exchange type '{method.type}'", method.class_id, method.method_id
        )


def check_exchange_arguments(connection: Connection, method: m.ExchangeDeclare) -> None:
    """Who names an alternate exchange must be allowed to read the one and write to the other."""
    alternate = method.arguments.get("alternate-exchange")
    if alternate is None:
        return
    vhost = connection.vhost
    assert vhost is not None
    if alternate.kind != "S":
        where = resource("exchange", method.exchange, vhost.name)
        text = f"invalid type '{type_name(alternate)}' for arg 'alternate-exchange' in {where}"
        raise protocol_error(ReplyCode.PRECONDITION_FAILED, text, method)
    check_permission(connection, "exchange", method.exchange, "read", method)
    check_permission(connection, "exchange", alternate.value, "write", method)


def check_binding_arguments(exchange: ExchangeSpec, arguments: Table, method: m.Method) -> None:
    problem = check_binding(exchange.type, arguments)
    if problem is not None:
        raise protocol_error(ReplyCode.PRECONDITION_FAILED, problem, method)
