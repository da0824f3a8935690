"""Arguments of queues and consumers: which of them a queue's type knows, what values they take, and what is said of
others.

An argument that is known does what it says, and one with a value that makes no sense is refused, in RabbitMQ's words.
Arguments that nobody knows are stored and shown, as RabbitMQ does: clients use them for notes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from leveret.broker.session.checks import Refused
from leveret.metadata.model.refusals import Refusal, resource
from leveret.metadata.rules.ha_policy import HA_ARGUMENTS, LEADER_LOCATORS, LOCATORS, MIRROR_ARGUMENTS
from leveret.metadata.rules.queue_rules import OVERFLOWS, PRIORITY_MAX, is_routing_key, parse_age
from leveret.protocol.errors import ReplyCode
from leveret.protocol.tables import Field, Table, type_name

if TYPE_CHECKING:
    from leveret.broker.session.wanted import QueueWanted
    from leveret.metadata.model.records import QueueSpec

Problem = Callable[[Field], str | None]  # What is wrong with a value, as it stands behind the colon.

QUEUE_TYPES: Final = {
    "classic": "rabbit_classic_queue", "quorum": "rabbit_quorum_queue", "stream": "rabbit_stream_queue",
}  # fmt: skip
CLASSIC: Final = Field("S", "classic")
EXPIRY_MS_MAX: Final = 10 * 365 * 86_400_000
SEGMENT_BYTES_MAX: Final = 3_000_000_000

# What queues of other types know, and those of a type do not.
_QUORUM_ONLY: Final = {
    "x-quorum-initial-group-size", "x-delivery-limit", "x-max-in-memory-length", "x-max-in-memory-bytes",
    "x-dead-letter-strategy",
}  # fmt: skip
_STREAM_ONLY: Final = {"x-max-age", "x-stream-max-segment-size-bytes", "x-initial-cluster-size"}
_CLASSIC_ONLY: Final = {"x-max-priority", "x-queue-mode", "x-queue-version", "x-queue-master-locator", *HA_ARGUMENTS}
_NOT_STREAM: Final = {
    "x-expires", "x-message-ttl", "x-dead-letter-exchange", "x-dead-letter-routing-key", "x-max-length", "x-overflow",
    "x-single-active-consumer",
}  # fmt: skip
OF_OTHER_TYPES: Final = {
    "classic": frozenset(_QUORUM_ONLY | _STREAM_ONLY | {"x-queue-leader-locator"}),
    "quorum": frozenset(_CLASSIC_ONLY | _STREAM_ONLY),
    "stream": frozenset(_CLASSIC_ONLY | _QUORUM_ONLY | _NOT_STREAM),
}
_CONSUMERS_OF_OTHER_TYPES: Final = {
    "classic": frozenset({"x-stream-offset"}),
    "quorum": frozenset({"x-stream-offset", "x-cancel-on-ha-failover"}),
    "stream": frozenset({"x-priority", "x-cancel-on-ha-failover"}),
}


def check_queue_arguments(vhost: str, name: str, wanted: QueueWanted) -> None:
    """`name`: which the queue will have; `wanted` has none if the broker is to make one up."""
    arguments = wanted.arguments
    where = resource("queue", name, vhost)
    exchange = arguments.get("x-dead-letter-exchange")
    if exchange is not None and exchange.kind != "S":
        raise _refusal(f"invalid type '{type_name(exchange)}' for arg 'x-dead-letter-exchange' in {where}")
    kind = arguments.get("x-queue-type", CLASSIC)
    problem = _unless_text(kind) or (
        None if kind.value in QUEUE_TYPES else f"\"unsupported queue type '{kind.value}'\""
    )
    if problem is not None:
        raise _refusal(f"invalid arg 'x-queue-type' for {where}: {problem}")
    others = OF_OTHER_TYPES[kind.value]
    for key in arguments:
        if key in others:
            raise _refusal(f"invalid arg '{key}' for {where} of queue type {QUEUE_TYPES[kind.value]}")
    for key, check in _CHECKS.items():
        if key in arguments and (problem := check(arguments[key])) is not None:
            raise _refusal(f"invalid arg '{key}' for {where}: {problem}")
    if "x-dead-letter-routing-key" in arguments and exchange is None:
        raise _refusal(f"invalid arg 'x-dead-letter-routing-key' for {where}: routing_key_but_no_dlx_defined")
    wrong = _mirrors_problem(arguments)
    if wrong is not None:
        raise _refusal(f"invalid arg '{wrong[0]}' for {where}: {wrong[1]}")
    size = arguments.get("x-stream-max-segment-size-bytes")
    if size is not None and size.value > SEGMENT_BYTES_MAX:
        raise _refusal("Exceeded max value for x-stream-max-segment-size-bytes")
    if kind.value != "classic":
        _check_replicated(kind.value, where, wanted)


def _mirrors_problem(arguments: Table) -> tuple[str, str] | None:
    """Return the mirroring argument that is wrong, and why, in RabbitMQ's words for policies."""
    mode, params = arguments.get("ha-mode"), arguments.get("ha-params")
    if mode is None:
        given = next((key for key in HA_ARGUMENTS if key in arguments), None)
        return None if given is None else (given, "ha-mode must be specified, too")
    if mode.value == "all":
        return None if params is None else ("ha-params", 'ha-mode="all" does not take parameters')
    if mode.value == "exactly":
        fits = params is not None and _unless_positive(params) is None
        return None if fits else ("ha-params", 'ha-mode="exactly" takes an integer')
    fits = params is not None and params.kind == "A" and bool(params.value)
    if params is None or not fits or not all(one.kind == "S" for one in params.value):
        return "ha-params", 'ha-mode="nodes" takes a list of strings'
    return None


def _check_replicated(kind: str, where: str, wanted: QueueWanted) -> None:
    """Quorum queues and streams last, and belong to nobody."""
    if not wanted.name:
        raise _refusal(f"Cannot declare a server-named queue for type {QUEUE_TYPES[kind]}")
    for what, given in (
        ("auto-delete", wanted.auto_delete),
        ("exclusive-owner", wanted.exclusive),
        ("non-durable", not wanted.durable),
    ):
        if given:
            raise _refusal(f"invalid property '{what}' for {where}")


def _refusal(text: str) -> Refused:
    return Refused(Refusal(ReplyCode.PRECONDITION_FAILED, text))


def _unless_text(field: Field) -> str | None:
    return None if field.kind == "S" else f"{{unacceptable_type,{type_name(field)}}}"


def _unless_key(field: Field) -> str | None:
    """RabbitMQ takes longer ones, and loses every dead letter with them."""
    return _unless_text(field) or (None if is_routing_key(field.value) else "longer than 255 bytes")


def _unless_switch(field: Field) -> str | None:
    return None if field.kind == "t" else f"{{unacceptable_type,{type_name(field)}}}"


def _unless_number(field: Field) -> str | None:
    if not isinstance(field.value, int) or isinstance(field.value, bool) or field.kind == "T":
        return f'"expected integer, got {type_name(field)}"'
    return f"{{value_negative,{field.value}}}" if field.value < 0 else None


def _unless_positive(field: Field) -> str | None:
    return _unless_number(field) or (None if field.value else "{value_zero,0}")


def _unless_expiry(field: Field) -> str | None:
    return _unless_number(field) or (
        f"{{value_too_large,{field.value}}}" if field.value > EXPIRY_MS_MAX else None
    )


def _unless_lease(field: Field) -> str | None:
    return _unless_positive(field) or _unless_expiry(field)


def _unless_priority(field: Field) -> str | None:
    return _unless_number(field) or (
        f"{{max_value_exceeded,{field.value}}}" if field.value > PRIORITY_MAX else None
    )


def _unless_version(field: Field) -> str | None:
    return _unless_number(field) or (
        None if field.value in (1, 2) else f"\"unsupported queue version '{field.value}'\""
    )


def _one_of(values: tuple[str, ...], otherwise: str) -> Problem:
    return lambda field: _unless_text(field) or (
        None if field.value in values else otherwise.replace("%", str(field.value))
    )


def _unless_age(field: Field) -> str | None:
    """RabbitMQ ends the connection over some of these; a channel that is told why serves its client better."""
    return _unless_text(field) or (None if parse_age(field.value) else "invalid_max_age")


_CHECKS: Final[dict[str, Problem]] = {
    "x-expires": _unless_lease,
    "x-message-ttl": _unless_expiry,
    "x-dead-letter-routing-key": _unless_key,
    "x-dead-letter-strategy": _one_of(("at-most-once", "at-least-once"), "invalid_dlx_strategy"),
    "x-max-length": _unless_number,
    "x-max-length-bytes": _unless_number,
    "x-max-in-memory-length": _unless_number,
    "x-max-in-memory-bytes": _unless_number,
    "x-max-priority": _unless_priority,
    "x-overflow": _one_of(OVERFLOWS, "invalid_overflow"),
    "x-queue-mode": _one_of(("default", "lazy"), "\"unsupported queue mode '%'\""),
    "x-queue-version": _unless_version,
    "x-single-active-consumer": _unless_switch,
    "x-quorum-initial-group-size": _unless_positive,
    "x-max-age": _unless_age,
    "x-stream-max-segment-size-bytes": _unless_number,
    "x-initial-cluster-size": _unless_positive,
    "x-queue-leader-locator": _one_of(tuple(LEADER_LOCATORS), "invalid_queue_locator_arg"),
    # RabbitMQ ends the connection over this one.
    "x-queue-master-locator": _one_of(LOCATORS, "unknown locator '%'"),
    # RabbitMQ takes whatever stands here, and then does not act on it.
    "x-delivery-limit": _unless_number,
    "x-consumer-timeout": _unless_positive,
    "x-consumer-timeout-action": _one_of(("close", "requeue"), "unknown action '%'"),
    **dict.fromkeys(MIRROR_ARGUMENTS, _unless_switch),
    "ha-mode": _one_of(("all", "exactly", "nodes"), "\"'%' is not a valid ha-mode value\""),
    "ha-sync-mode": _one_of(("manual", "automatic"), "\"must be manual or automatic, got '%'\""),
}


def expiration_problem(text: str) -> str | None:
    """Return what is wrong with the expiration property of a message."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    end = next((at for at, sign in enumerate(digits) if not "0" <= sign <= "9"), len(digits))
    if not end:
        return "no_integer"
    number = int(text[: len(text) - len(digits) + end])
    if end < len(digits):
        return f'{{leftover_string,"{digits[end:]}"}}'
    if number < 0:
        return f"{{value_negative,{number}}}"
    return f"{{value_too_large,{number}}}" if number > EXPIRY_MS_MAX else None


def check_consume_arguments(spec: QueueSpec, arguments: Table) -> None:
    where = resource("queue", spec.name, spec.vhost)
    kind = spec.arguments.get("x-queue-type", CLASSIC).value
    for name in arguments:
        if name in _CONSUMERS_OF_OTHER_TYPES[kind]:
            raise _refusal(f"invalid arg '{name}' for {where} of queue type {QUEUE_TYPES[kind]}")
    for name, field in arguments.items():
        if name == "x-cancel-on-ha-failover":
            if field.kind != "t":
                raise _refusal(f"invalid arg '{name}' for {where}: {{unacceptable_type,{type_name(field)}}}")
        elif name == "x-priority" and (not isinstance(field.value, int) or field.kind in ("t", "T")):
            found = f'"expected integer, got {type_name(field)}"'
            raise _refusal(f"invalid arg 'x-priority' for {where}: {found}")
        elif name == "x-consumer-timeout" and (problem := _unless_positive(field)) is not None:
            raise _refusal(f"invalid arg '{name}' for {where}: {problem}")
