"""Consistent-hash exchanges: of all destinations one, the same for the same value, and fair by weight.

The value is the routing key, or what the exchange's arguments name instead (`hash-header`, `hash-property`). The key of
a binding is its weight: a queue bound with 3 gets three times as many values as one bound with 1; a queue that is bound
several times has the sum. A message without the header or property has the empty value, and all such go one way.

RabbitMQ keeps a list of buckets, as many for a destination as its weight, in the order in which they were bound. Every
node of a cluster has to come to the same destination for the same value, and here the order of bindings is not the same
everywhere: a queue that changes its home is bound anew at the nodes concerned. So the choice depends on names only.
Each destination draws a number for the value, by hash, and the lowest wins ("highest random weight", by Thaler and
Ravishankar); drawn from an exponential distribution with the weight as its rate, the chances are as the weights. It
needs no table, whatever the weights; a destination that comes or goes moves only what it gains or leaves behind; and a
draw takes about a microsecond, for each value once while it is remembered.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from hashlib import blake2b
from math import log
from typing import Final, Generic, TypeVar

from leveret.base.random_numbers import mixed
from leveret.broker.routing.headers import comparable, erlang_binary
from leveret.protocol.tables import Field, type_name

D = TypeVar("D", bound=Hashable)

HEADER: Final = "hash-header"
PROPERTY: Final = "hash-property"
PROPERTIES: Final = ("correlation_id", "message_id", "timestamp")
REMEMBERED_MAX: Final = 4096
ABSENT: Final = b""

_WEIGHT: Final = re.compile(r"[+-]?[0-9]+")


def check_weight(key: str) -> str | None:
    """Why this is no weight, in RabbitMQ's words; None if it is one."""
    if _WEIGHT.fullmatch(key) is None:
        return f"The binding key must be an integer: {erlang_binary(_raw(key))}"
    return None if int(key) > 0 else "The binding key must be greater than 0"


def check_hash_arguments(arguments: dict[str, Field]) -> str | None:
    """Why no exchange can be declared with these arguments. RabbitMQ ends the connection over a wrong type."""
    if HEADER in arguments and PROPERTY in arguments:
        return "hash-header and hash-property are mutually exclusive"
    for name in (HEADER, PROPERTY):
        field = arguments.get(name)
        if field is not None and field.kind != "S":
            return f"invalid type '{type_name(field)}' for arg '{name}'"
    field = arguments.get(PROPERTY)
    return None if field is None or field.value in PROPERTIES else f"Unsupported property: {field.value}"


def header_value(field: Field | None) -> bytes:
    """A header's value as bytes that are equal where RabbitMQ takes the values for equal."""
    if field is None:
        return ABSENT
    value = comparable(field)
    return _raw(value if isinstance(value, str) else ascii(value))


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _hashed(value: bytes) -> int:
    return int.from_bytes(blake2b(value, digest_size=8).digest(), "big")


class HashIndex(Generic[D]):
    """`name_of` gives a destination's name, by which every node knows it."""

    def __init__(self, name_of: Callable[[D], str]) -> None:
        self._name_of = name_of
        self._weights: dict[D, dict[str, int]] = {}  # By the keys with which it is bound.
        # Each destination with the hash of its name and its weight; None where that is to be found out anew.
        self._seats: list[tuple[D, int, float]] | None = None
        self._remembered: dict[bytes, tuple[D, ...]] = {}

    def add(self, key: str, destination: D) -> bool:
        weights = self._weights.setdefault(destination, {})
        if key in weights:
            return False
        # Checked when it was bound; a binding of an older cluster that was not must not stop a node from starting.
        weights[key] = max(int(key), 0) if _WEIGHT.fullmatch(key) else 0
        self._changed()
        return True

    def remove(self, key: str, destination: D) -> bool:
        weights = self._weights.get(destination, {})
        if weights.pop(key, None) is None:
            return False
        if not weights:
            del self._weights[destination]
        self._changed()
        return True

    def _changed(self) -> None:
        self._seats = None
        self._remembered.clear()

    def _seated(self) -> list[tuple[D, int, float]]:
        if self._seats is None:
            weights = {one: sum(bound.values()) for one, bound in self._weights.items()}
            self._seats = [(one, _hashed(_raw(self._name_of(one))), float(w)) for one, w in weights.items() if w]
        return self._seats

    def choose(self, value: bytes) -> tuple[D, ...]:
        """The destination of a value; none if there is none at all."""
        seats = self._seated()
        if len(seats) < 2:
            return tuple([one for one, _, _ in seats])
        found = self._remembered.get(value)
        if found is None:
            if len(self._remembered) >= REMEMBERED_MAX:
                self._remembered.clear()
            number = _hashed(value)
            chosen = min(seats, key=lambda seat: _waited(number ^ seat[1]) / seat[2])[0]
            found = self._remembered[value] = (chosen,)
        return found


def _waited(number: int) -> float:
    """A number from the exponential distribution of rate 1."""
    return -log((mixed(number) + 1) / 18446744073709551617)
