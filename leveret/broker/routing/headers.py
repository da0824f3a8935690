"""Headers exchanges: bindings that match a message's header table instead of its routing key.

A binding's arguments are its conditions: a void value asks only that the header is there, any other value that it is
there and equal. `x-match` says whether all must hold (the default) or any; names that begin with `x-` are no
conditions, unless `x-match` is `all-with-x` or `any-with-x`; `x-match` itself never is one. `all` without conditions
matches every message, `any` without conditions none.

Equality is RabbitMQ's, which compares decoded values and forgets their AMQP types, but at the outermost level only. A
number equals a number of another width, a float, or a timestamp with the same value; a string equals a byte array with
the same bytes; a boolean equals no number. Within arrays and tables the types count, and so does the order of a table's
fields. An empty array equals an empty table (both are the empty list in RabbitMQ).

RabbitMQ tries each binding against each message. Here a binding is filed under conditions, and a message looks only at
the bindings filed under one of its own headers: an `any` binding under each of its conditions, an `all` binding under
just one (all must hold, so that one must), the one that fewest others are filed under when it is added. A thousand
bindings that share `format=pdf` and differ in `customer` thus cost a message one look-up instead of a thousand trials.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Generic, TypeVar

from leveret.protocol.tables import Field, canonical, type_name

D = TypeVar("D", bound=Hashable)

MATCH_KINDS: Final = ("all", "any", "all-with-x", "any-with-x")


# Values.


class _Present:
    """The value of a void condition, which asks only that the header is there; equal to no other value."""


PRESENT: Final = _Present()


def comparable(field: Field) -> Hashable:
    """A value such that two header values are equal to RabbitMQ exactly if these are equal."""
    kind, value = field
    if kind == "S":
        return str(value)
    if kind == "x":
        return bytes(value).decode("utf-8", "surrogateescape")
    if kind == "t":
        return ("bool", bool(value))  # Bare, True would equal 1.
    if kind == "V":
        return ("void",)
    if kind == "D":
        return ("decimal", *value)
    if kind in "AF":
        return ("list", _ordered(field)[1])
    number: Hashable = value
    return number


def _ordered(field: Field) -> tuple[str, Hashable]:
    """A hashable form that keeps types and order. (The canonical form of a table forgets the order.)"""
    kind, value = field
    if kind == "A":
        return kind, tuple([_ordered(item) for item in value])
    if kind == "F":
        return kind, tuple([(name, *_ordered(item)) for name, item in value.items()])
    return kind, value


# Bindings.


class Conditions(Generic[D]):
    """One binding, made ready for matching."""

    __slots__ = ("all", "destination", "filed", "wanted")

    def __init__(self, destination: D, arguments: dict[str, Field]) -> None:
        kind = arguments["x-match"].value if "x-match" in arguments else "all"
        with_x = kind in ("all-with-x", "any-with-x")
        self.destination = destination
        self.all = kind not in ("any", "any-with-x")  # Anything else counts as `all`, as with RabbitMQ.
        self.wanted: tuple[tuple[str, Hashable], ...] = tuple(
            (name, PRESENT if field.kind == "V" else comparable(field))
            for name, field in arguments.items()
            if name != "x-match" and (with_x or not name.startswith("x-"))
        )
        self.filed: tuple[tuple[str, Hashable], ...] = ()

    def hold(self, values: dict[str, Hashable]) -> bool:
        """Returns whether all conditions hold for headers with these comparable values."""
        for name, value in self.wanted:
            if name not in values or (value is not PRESENT and values[name] != value):
                return False
        return True


class HeadersIndex(Generic[D]):
    def __init__(self) -> None:
        self._bindings: dict[tuple[D, str, tuple[Hashable, ...]], Conditions[D]] = {}
        self._files: dict[tuple[str, Hashable], dict[Conditions[D], None]] = {}
        self._always: dict[Conditions[D], None] = {}

    def add(self, key: str, destination: D, arguments: dict[str, Field]) -> bool:
        """False where this very binding exists already."""
        identity = (destination, key, canonical(arguments))
        if identity in self._bindings:
            return False
        conditions = Conditions(destination, arguments)
        self._bindings[identity] = conditions
        if not conditions.all:
            conditions.filed = conditions.wanted
        elif conditions.wanted:
            conditions.filed = (min(conditions.wanted, key=lambda wanted: len(self._files.get(wanted, ()))),)
        else:
            self._always[conditions] = None
        for wanted in conditions.filed:
            self._files.setdefault(wanted, {})[conditions] = None
        return True

    def remove(self, key: str, destination: D, arguments: dict[str, Field]) -> bool:
        """False where there is no such binding."""
        conditions = self._bindings.pop((destination, key, canonical(arguments)), None)
        if conditions is None:
            return False
        self._always.pop(conditions, None)
        for wanted in conditions.filed:
            file = self._files[wanted]
            del file[conditions]
            if not file:
                del self._files[wanted]
        return True

    def match(self, headers: dict[str, Field]) -> tuple[D, ...]:
        """The destinations whose conditions the headers meet, each once."""
        found: dict[D, None] = {conditions.destination: None for conditions in self._always}
        values = {name: comparable(field) for name, field in headers.items()}
        files = self._files
        for name, value in values.items():
            for wanted in ((name, value), (name, PRESENT)):
                for conditions in files.get(wanted, ()):
                    if not conditions.all or conditions.hold(values):
                        found[conditions.destination] = None
        return tuple(found)


# Refusals, in RabbitMQ's words, which print values as Erlang terms.


def check_x_match(arguments: dict[str, Field]) -> str | None:
    """Why these arguments cannot bind to a headers exchange; None where they can."""
    field = arguments.get("x-match")
    if field is None or (field.kind == "S" and field.value in MATCH_KINDS):
        return None
    if field.kind == "S":
        return f"Invalid x-match field value {_erlang_term(field)}; expected all, any, all-with-x, or any-with-x"
    return f"Invalid x-match field type {type_name(field)} (value {_erlang_term(field)}); expected longstr"


def _erlang_term(field: Field) -> str:
    kind, value = field
    if kind == "S":
        return erlang_binary(str(value).encode("utf-8", "surrogateescape"))
    if kind == "x":
        return erlang_binary(bytes(value))
    if kind == "t":
        return "true" if value else "false"
    if kind == "V":
        return "undefined"
    if kind == "D":
        scale, unscaled = value
        return f"{{{scale},{unscaled}}}"
    if kind == "A":
        return f"[{','.join(f'{{{type_name(item)},{_erlang_term(item)}}}' for item in value)}]"
    if kind == "F":
        return f"[{','.join(_erlang_entry(name, item) for name, item in value.items())}]"
    return str(value)


def _erlang_entry(name: str, field: Field) -> str:
    name_term = erlang_binary(name.encode("utf-8", "surrogateescape"))
    return f"{{{name_term},{type_name(field)},{_erlang_term(field)}}}"


ERLANG_ESCAPES: Final = {
    0x08: "\\b", 0x09: "\\t", 0x0A: "\\n", 0x0B: "\\v", 0x0C: "\\f", 0x0D: "\\r", 0x1B: "\\e",
    0x22: '\\"', 0x5C: "\\\\",
}  # fmt: skip


def erlang_binary(data: bytes) -> str:
    """Returns a binary as Erlang prints it: text where every byte is printable Latin-1, numbers otherwise."""
    if not data:
        return "<<>>"
    if all(0x20 <= byte <= 0x7E or byte >= 0xA0 or byte in ERLANG_ESCAPES for byte in data):
        text = b"".join(ERLANG_ESCAPES[byte].encode() if byte in ERLANG_ESCAPES else bytes((byte,)) for byte in data)
        return f'<<"{text.decode("utf-8", "surrogateescape")}">>'
    return f"<<{','.join(map(str, data))}>>"
