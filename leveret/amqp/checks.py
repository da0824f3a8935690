"""What a client may not do, found out before anything is changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal

from leveret.amqp import methods as m
from leveret.amqp.errors import ConnectionFault, ReplyCode, protocol_error, resource
from leveret.amqp.tables import Field, type_name
from leveret.broker.routing import EXCHANGE_TYPES, check_binding
from leveret.cluster.mirroring import LEADER_LOCATORS, LOCATORS, MIRROR_ARGUMENTS, is_quorum
from leveret.cluster.permissions import Kind, Which, refused_text, topic_refused_text

if TYPE_CHECKING:
    from leveret.amqp.connection import Connection
    from leveret.amqp.tables import Table
    from leveret.cluster.specs import ExchangeSpec, QueueSpec

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
        "x-initial-cluster-size",
        "x-max-age",
        "x-stream-max-segment-size-bytes",
        "x-delivery-limit",
        "x-consumer-timeout",
    }
)

QUEUE_TYPES: Final = {"classic": "rabbit_classic_queue", "quorum": "rabbit_quorum_queue"}
# Arguments that RabbitMQ refuses because only queues of another type know them.
OF_OTHER_TYPES: Final = {
    "classic": frozenset({"x-quorum-initial-group-size", "x-queue-leader-locator"}),
    "quorum": frozenset(
        {"x-queue-master-locator", "x-queue-mode", "x-queue-version", "x-max-priority", "x-initial-cluster-size"}
        | {"x-max-age", "x-stream-max-segment-size-bytes"}
    ),
}


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
    """`name`: which it will have; in the method there is none if the server is to choose one."""
    arguments = method.arguments
    kind = arguments.get("x-queue-type", Field("S", "classic"))
    if kind.kind != "S":
        _refuse_argument("x-queue-type", vhost, name, f"{{unacceptable_type,{type_name(kind)}}}", method)
    if kind.value == "stream":
        _refuse_argument("x-queue-type", vhost, name, "not supported by this version", method)
    if kind.value not in QUEUE_TYPES:
        _refuse_argument("x-queue-type", vhost, name, f"\"unsupported queue type '{kind.value}'\"", method)
    for key in arguments:
        if key in OF_OTHER_TYPES[kind.value]:
            text = f"invalid arg '{key}' for {resource('queue', name, vhost)} of queue type {QUEUE_TYPES[kind.value]}"
            raise protocol_error(ReplyCode.PRECONDITION_FAILED, text, method)
        if key in UNSUPPORTED_QUEUE_ARGUMENTS:
            _refuse_argument(key, vhost, name, "not supported by this version", method)
    for key, check in _MIRRORING.items():
        if key in arguments and (problem := check(arguments[key])) is not None:
            _refuse_argument(key, vhost, name, problem, method)
    if kind.value == "quorum":
        _check_quorum(vhost, name, method)


def _check_quorum(vhost: str, name: str, method: m.QueueDeclare) -> None:
    if not method.queue:
        text = f"Cannot declare a server-named queue for type {QUEUE_TYPES['quorum']}"
        raise protocol_error(ReplyCode.PRECONDITION_FAILED, text, method)
    for what, given in (
        ("auto-delete", method.auto_delete),
        ("exclusive-owner", method.exclusive),
        ("non-durable", not method.durable),
    ):
        if given:
            text = f"invalid property '{what}' for {resource('queue', name, vhost)}"
            raise protocol_error(ReplyCode.PRECONDITION_FAILED, text, method)


def _size_problem(field: Field) -> str | None:
    if not isinstance(field.value, int) or isinstance(field.value, bool):
        return f'"expected integer, got {type_name(field)}"'
    if field.value == 0:
        return "{value_zero,0}"
    return f"{{value_negative,{field.value}}}" if field.value < 0 else None


def _leader_locator_problem(field: Field) -> str | None:
    if field.kind != "S":
        return f"{{unacceptable_type,{type_name(field)}}}"
    return None if field.value in LEADER_LOCATORS else "invalid_queue_locator_arg"


def _master_locator_problem(field: Field) -> str | None:
    """RabbitMQ ends the connection with an internal error; a channel that is told why serves its client better."""
    if field.kind != "S":
        return f"{{unacceptable_type,{type_name(field)}}}"
    return None if field.value in LOCATORS else f"unknown locator '{field.value}'"


def _switch_problem(field: Field) -> str | None:
    return None if field.kind == "t" else f"{{unacceptable_type,{type_name(field)}}}"


_MIRRORING: Final[dict[str, Callable[[Field], str | None]]] = {
    "x-quorum-initial-group-size": _size_problem,
    "x-queue-leader-locator": _leader_locator_problem,
    "x-queue-master-locator": _master_locator_problem,
    **dict.fromkeys(MIRROR_ARGUMENTS, _switch_problem),
}


def check_consume_arguments(spec: QueueSpec, tag: str, method: m.BasicConsume) -> None:
    for name, field in method.arguments.items():
        if name == "x-cancel-on-ha-failover":
            if is_quorum(spec.arguments):
                queue = resource("queue", spec.name, spec.vhost)
                text = f"invalid arg '{name}' for {queue} of queue type {QUEUE_TYPES['quorum']}"
                raise protocol_error(ReplyCode.PRECONDITION_FAILED, text, method)
            if field.kind != "t":
                _refuse_argument(name, spec.vhost, spec.name, f"{{unacceptable_type,{type_name(field)}}}", method)
        elif name.startswith("x-"):
            text = f"invalid arg '{name}' for consumer '{tag}': not supported by this version"
            raise protocol_error(ReplyCode.PRECONDITION_FAILED, text, method)


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
