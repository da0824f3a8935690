"""Comparison of an existing queue or exchange with a repeated declaration.

RabbitMQ's answers, texts and order of checks, taken from a running 3.10 server:

- A queue's exclusive lock is checked first and has its own code, 405; all other differences are 406.
- Only the arguments that the queue's type supports are compared, in a fixed order; others are ignored. Of an exchange's
  arguments only `alternate-exchange` is compared, and `x-single-target`, which RabbitMQ does not have.
- Values are compared, types hardly: 5 equals 5 as a byte, a long or a timestamp, and a string equals the same bytes;
  but 5 equals neither 5.0 nor true. Where both sides have a value, the error text shows values only, so that it may
  read `received '5' but current is '5'`.
- No `x-queue-type` means `classic`.
"""

from __future__ import annotations

from typing import Any, Final

from leveret.metadata.model.records import ExchangeSpec, QueueSpec
from leveret.metadata.model.refusals import resource
from leveret.protocol.erlang_format import described, printed_value
from leveret.protocol.tables import Field, Table, type_name

_CLASSIC: Final = (
    "x-expires",
    "x-message-ttl",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-max-length",
    "x-max-length-bytes",
    "x-max-priority",
    "x-overflow",
    "x-queue-mode",
    "x-queue-version",
    "x-single-active-consumer",
    "x-queue-type",
    "x-queue-master-locator",
)
_QUORUM: Final = (
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-dead-letter-strategy",
    "x-expires",
    "x-max-length",
    "x-max-length-bytes",
    "x-max-in-memory-length",
    "x-max-in-memory-bytes",
    "x-overflow",
    "x-single-active-consumer",
    "x-queue-type",
    "x-quorum-initial-group-size",
    "x-delivery-limit",
    "x-message-ttl",
    "x-queue-leader-locator",
)
_STREAM: Final = (
    "x-max-length-bytes",
    "x-queue-type",
    "x-max-age",
    "x-stream-max-segment-size-bytes",
    "x-initial-cluster-size",
    "x-queue-leader-locator",
)
_COMPARED: Final = {"classic": _CLASSIC, "quorum": _QUORUM, "stream": _STREAM}
_DEFAULT_TYPE: Final = Field("S", "classic")


def queue_locked(spec: QueueSpec, connection: str | None) -> str | None:
    """Return the text of the 405 for a connection that wants to use the queue; None if it may."""
    return _locked_text(spec) if spec.exclusive and spec.owner != connection else None


def queue_declare_locked(spec: QueueSpec, exclusive: bool, connection: str | None) -> str | None:
    """Return the text of the 405 for a connection that declares the queue again; None if the lock allows it."""
    if spec.exclusive == exclusive and (not exclusive or spec.owner == connection):
        return None
    return _locked_text(spec)


def _locked_text(spec: QueueSpec) -> str:
    return (
        f"cannot obtain exclusive access to locked {resource('queue', spec.name, spec.vhost)}. It could be originally "
        "declared on another connection or the exclusive property value does not match that of the original "
        "declaration."
    )


def queue_mismatch(spec: QueueSpec, durable: bool, auto_delete: bool, arguments: Table) -> str | None:
    """Return the text of the 406 for a declaration that differs from the queue; None if it does not."""
    name = resource("queue", spec.name, spec.vhost)
    for what, wanted, current in (
        ("durable", durable, spec.durable),
        ("auto_delete", auto_delete, spec.auto_delete),
    ):
        if wanted != current:
            return _inequivalent(what, name, f"'{_bool(wanted)}'", f"'{_bool(current)}'")
    kind = spec.arguments.get("x-queue-type", _DEFAULT_TYPE).value
    return _arguments_mismatch(name, _COMPARED.get(kind, _CLASSIC), arguments, spec.arguments)


def exchange_mismatch(
    spec: ExchangeSpec, type: str, durable: bool, auto_delete: bool, internal: bool, arguments: Table
) -> str | None:
    """Return the text of the 406 for a declaration that differs from the exchange; None if it does not."""
    name = resource("exchange", spec.name, spec.vhost)
    if type != spec.type:
        return _inequivalent("type", name, _type(type), _type(spec.type))
    for what, wanted, current in (
        ("durable", durable, spec.durable),
        ("auto_delete", auto_delete, spec.auto_delete),
        ("internal", internal, spec.internal),
    ):
        if wanted != current:
            return _inequivalent(what, name, f"'{_bool(wanted)}'", f"'{_bool(current)}'")
    return _arguments_mismatch(name, ("alternate-exchange", "x-single-target"), arguments, spec.arguments)


def _arguments_mismatch(name: str, compared: tuple[str, ...], wanted: Table, current: Table) -> str | None:
    for argument in compared:
        new, old = wanted.get(argument), current.get(argument)
        if new == old:
            continue
        if argument == "x-queue-type" and _term(new or _DEFAULT_TYPE) == _term(old or _DEFAULT_TYPE):
            continue
        if new is None or old is None:
            return _inequivalent(argument, name, described(new), described(old))
        if _term(new) != _term(old):
            return _inequivalent(argument, name, _quoted(new), _quoted(old))
    return None


def _inequivalent(what: str, name: str, received: str, current: str) -> str:
    return f"inequivalent arg '{what}' for {name}: received {received} but current is {current}"


def _term(field: Field) -> tuple[str, Any]:
    """Return what Erlang compares of a value: the type of the term, not the type on the wire."""
    kind, value = field
    if kind == "S":
        return "binary", value.encode("utf-8", "surrogateescape")
    if kind == "x":
        return "binary", value
    if kind == "A":
        return "list", [(type_name(each), _term(each)) for each in value]
    if kind == "F":
        return "list", [(key, type_name(each), _term(each)) for key, each in sorted(value.items())]
    return type(value).__name__, value


def _type(name: str) -> str:
    """Return a type as RabbitMQ's texts show it: an atom, which has quotes of its own if it contains a dash."""
    return f"''{name}''" if "-" in name else f"'{name}'"


def _quoted(field: Field) -> str:
    return "none" if field.kind == "V" else f"'{printed_value(field)}'"


def _bool(value: bool) -> str:
    return "true" if value else "false"
