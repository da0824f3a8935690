"""Routing: which queues a message published to an exchange reaches.

One `Router` holds the exchanges and bindings of one virtual host, in a form made for one question asked once a message:
`route(exchange, key, headers)`. It knows queues only as opaque hashable targets, keeps nothing durable, and checks no
permission: the metadata store says what exists, the router is its index.

The rules are RabbitMQ's:

- A binding is source, destination, key *and* arguments. The same binding made twice is one; two that differ only in
  their arguments are two, and the queue stays bound until both are gone, though outside headers exchanges the arguments
  change nothing about the route.
- Every target is reached once, by however many bindings.
- The default exchange leads to the queue whose name is the routing key. It is implied, has no bindings, and as an
  alternate exchange leads nowhere.
- An exchange bound to another gets the message with the same key and headers. Each exchange is visited once, so that a
  cycle of bindings ends.
- Where none of an exchange's own bindings match, its alternate exchange is visited. A binding that matches and leads to
  an exchange which leads nowhere is a match all the same: the alternate is not asked.
- What a binding or an alternate names need not exist; it is passed over until it does.
- A message with CC or BCC headers has several keys. They are one question, not several (`route_keys`): the alternate is
  visited only where none of the keys match.
- An exchange of type `x-random` leads to one of what is bound to it, `x-consistent-hash` to one that depends on the
  message (see `hashing`; of several keys it looks at the first). One rule is not RabbitMQ's: an exchange of any type
  with the argument `x-single-target: true` leads to one of those that match. `draw` says which, anew for each message.
- An exchange of type `x-federation-upstream`, which another broker makes here to take messages from it, leads to all
  that is bound to it, unless the message must not go to that broker (see `protocol.received_from`).
- A message that is to be delayed goes no further than the first delayed exchange on its way, which leads to its hidden
  queue (see `delayed_exchange`). That routes the message again when its time has come.

A route may be remembered by its key for as long as `version` stays, unless `varies` says that it depends on more than
the key: on the headers, on a property, or on what is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar, cast

from leveret.broker.routing import consistent_hash
from leveret.broker.routing.delayed_exchange import DELAYED_TYPE, check_delayed_arguments, delay_ms
from leveret.broker.routing.headers import HeadersIndex, check_x_match
from leveret.broker.routing.topic import Many, TopicTrie, holds, joined, parted
from leveret.metadata.model.hidden_queues import DELAYED, hidden_queue_name, is_closed
from leveret.protocol.received_from import (
    DOWNSTREAM_NAME,
    DOWNSTREAM_VHOST,
    MAX_HOPS_ARGUMENT,
    UPSTREAM_TYPE,
    check_upstream_arguments,
    may_go_on,
)
from leveret.protocol.tables import Field, canonical, type_name

T = TypeVar("T", bound=Hashable)
D = TypeVar("D", bound=Hashable)

Headers = Callable[[], dict[str, Field]]
Properties = Callable[[str], str | int | None]

HASH: Final = "x-consistent-hash"
RANDOM: Final = "x-random"
DELAYABLE_TYPES: Final = ("direct", "fanout", "topic", "headers", HASH, RANDOM)
EXCHANGE_TYPES: Final = (*DELAYABLE_TYPES, UPSTREAM_TYPE)
SINGLE_TARGET: Final = "x-single-target"
NO_ARGUMENTS: Final[tuple[Hashable, ...]] = ()


class UnknownExchange(LookupError):
    def __init__(self, name: str) -> None:
        super().__init__(f"no exchange '{name}'")
        self.name = name


class UnknownExchangeType(ValueError):
    """Its text is RabbitMQ's."""

    def __init__(self, type: str) -> None:
        super().__init__(f"unknown exchange type '{type}'")
        self.type = type


def no_properties(name: str) -> str | int | None:
    """Stands for the properties of a message that has none."""
    return None


def first_of(count: int) -> int:
    """Returns 0: the draw where nothing is random."""
    return 0


def check_exchange(type: str, arguments: dict[str, Field]) -> str | None:
    """Why no exchange of this type can have these arguments, in RabbitMQ's words; None if one can."""
    single = arguments.get(SINGLE_TARGET)
    if single is not None and single.kind != "t":
        return f"invalid type '{type_name(single)}' for arg '{SINGLE_TARGET}'"
    if type == HASH:
        return consistent_hash.check_hash_arguments(arguments)
    if type == UPSTREAM_TYPE:
        return check_upstream_arguments(arguments)
    return check_delayed_arguments(arguments, DELAYABLE_TYPES) if type == DELAYED else None


def check_binding(type: str, key: str, arguments: dict[str, Field]) -> str | None:
    """Why an exchange of this type refuses a binding with these, in RabbitMQ's words; None if it does not."""
    if type == HASH:
        return consistent_hash.check_weight(key)
    return check_x_match(arguments) if type == "headers" else None


# Indexes by key, one for each type of exchange that looks at no more than the key. The trie for topics is another.


class KeyIndex(Protocol[D]):
    def add(self, key: str, destination: D, /) -> bool:
        """False where this destination is bound with this key already."""

    def remove(self, key: str, destination: D, /) -> bool:
        """False where it is not."""

    def match(self, key: str, /) -> tuple[D, ...]: ...


class DirectIndex(Generic[D]):
    def __init__(self) -> None:
        self._entries: dict[str, D | Many[D]] = {}

    def add(self, key: str, destination: D) -> bool:
        entry = self._entries.get(key)
        if holds(entry, destination):
            return False
        self._entries[key] = joined(entry, destination)
        return True

    def remove(self, key: str, destination: D) -> bool:
        entry = self._entries.get(key)
        if entry is None or not holds(entry, destination):
            return False
        rest = parted(entry, destination)
        if rest is None:
            del self._entries[key]
        else:
            self._entries[key] = rest
        return True

    def match(self, key: str) -> tuple[D, ...]:
        entry = self._entries.get(key)
        if entry is None:
            return ()
        return entry.all() if isinstance(entry, Many) else (entry,)


class FanoutIndex(Generic[D]):
    """Keys do not route, but they are part of a binding: a destination stays until the last of its keys is unbound."""

    def __init__(self) -> None:
        self._keys: dict[D, str | Many[str]] = {}
        self._routed: tuple[D, ...] | None = None

    def add(self, key: str, destination: D) -> bool:
        keys = self._keys.get(destination)
        if holds(keys, key):
            return False
        self._keys[destination] = joined(keys, key)
        self._routed = None
        return True

    def remove(self, key: str, destination: D) -> bool:
        keys = self._keys.get(destination)
        if keys is None or not holds(keys, key):
            return False
        rest = parted(keys, key)
        if rest is None:
            del self._keys[destination]
        else:
            self._keys[destination] = rest
        self._routed = None
        return True

    def match(self, key: str) -> tuple[D, ...]:
        if self._routed is None:
            self._routed = tuple(self._keys)
        return self._routed


# Exchanges.


@dataclass(frozen=True, slots=True)
class Hop:
    """An exchange as a destination. By name, so that it can be unbound after the exchange is gone."""

    name: str


class Exchange(Generic[D]):
    """One exchange and the bindings of which it is the source."""

    __slots__ = (
        "_forms", "alternate", "downstream", "draw", "hash_header", "hash_property", "hashed", "headed", "incoming",
        "hidden_queue", "keyed", "name", "outgoing", "own_alternate", "single", "type",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        type: str,
        arguments: dict[str, Field],
        name_of: Callable[[D], str],
        draw: Callable[[int], int],
    ) -> None:
        self.name = name
        # The queue for messages that have to wait.
        self.hidden_queue = hidden_queue_name(name) if type == DELAYED else None
        self.type = type = str(arguments[DELAYED_TYPE].value) if type == DELAYED else type
        self.alternate = self.own_alternate = _text(arguments, "alternate-exchange")
        self.draw = draw
        self.single = type == RANDOM or (SINGLE_TARGET in arguments and arguments[SINGLE_TARGET].value is True)
        self.keyed: KeyIndex[D] | None = None
        self.headed: HeadersIndex[D] | None = None
        self.hashed: consistent_hash.HashIndex[D] | None = None
        self.hash_header = self.hash_property = None
        # Where messages go from here, and by how many links they may have come: cluster, vhost, hops.
        self.downstream: tuple[str | None, str | None, int] | None = None
        if type == UPSTREAM_TYPE:
            hops = int(arguments[MAX_HOPS_ARGUMENT].value)
            self.downstream = (_text(arguments, DOWNSTREAM_NAME), _text(arguments, DOWNSTREAM_VHOST), hops)
        if type == "direct":
            self.keyed = DirectIndex()
        elif type in ("fanout", RANDOM, UPSTREAM_TYPE):
            self.keyed = FanoutIndex()
        elif type == "topic":
            self.keyed = TopicTrie()
        elif type == "headers":
            self.headed = HeadersIndex()
        elif type == HASH:
            self.hashed = consistent_hash.HashIndex(name_of)
            self.hash_header = _text(arguments, consistent_hash.HEADER)
            self.hash_property = _text(arguments, consistent_hash.PROPERTY)
        else:
            raise UnknownExchangeType(type)
        # Exchanges bound to this one, and the bindings by which this one is bound to others.
        self.outgoing: set[str] = set()
        self.incoming: dict[str, dict[tuple[str, tuple[Hashable, ...]], dict[str, Field]]] = {}
        # The arguments with which a destination and key are bound, kept only where there are any: nearly all bindings
        # have none, and a million of them should not pay for it.
        self._forms: dict[tuple[D, str], set[tuple[Hashable, ...]]] = {}

    def add(self, destination: D, key: str, arguments: dict[str, Field]) -> bool:
        """Whether a route may have changed."""
        if self.headed is not None:
            return self.headed.add(key, destination, arguments)
        added = self._by_key().add(key, destination)
        form = canonical(arguments) if arguments else NO_ARGUMENTS
        forms = self._forms.get((destination, key))
        if forms is not None:
            forms.add(form)
        elif form != NO_ARGUMENTS:
            self._forms[destination, key] = {form} if added else {NO_ARGUMENTS, form}
        return added

    def remove(self, destination: D, key: str, arguments: dict[str, Field]) -> bool:
        """Whether a route may have changed."""
        if self.headed is not None:
            return self.headed.remove(key, destination, arguments)
        index = self._by_key()
        form = canonical(arguments) if arguments else NO_ARGUMENTS
        forms = self._forms.get((destination, key))
        if forms is None:
            return form == NO_ARGUMENTS and index.remove(key, destination)
        forms.discard(form)
        if not forms:
            del self._forms[destination, key]
            return index.remove(key, destination)
        if forms == {NO_ARGUMENTS}:
            del self._forms[destination, key]
        return False

    def _by_key(self) -> KeyIndex[D] | consistent_hash.HashIndex[D]:
        index = self.hashed if self.keyed is None else self.keyed
        assert index is not None
        return index

    def varies(self) -> bool:
        """Returns whether its own bindings depend on more than the routing key."""
        by_header = self.headed is not None or self.hash_header is not None or self.hidden_queue is not None
        return by_header or self.single or self.hash_property is not None or self.downstream is not None

    def match(self, keys: Sequence[str], headers: Headers, properties: Properties) -> tuple[D, ...]:
        """Returns the destinations of the exchange's own bindings."""
        if self.downstream is not None:
            cluster, vhost, hops = self.downstream
            if not may_go_on(headers(), hops, cluster, vhost):
                return ()
        if self.headed is not None:
            found = self.headed.match(headers())
        elif self.hashed is not None:
            return self.hashed.choose(self._hash_value(keys[0], headers, properties))
        else:
            assert self.keyed is not None
            found = self.keyed.match(keys[0])
            if len(keys) > 1 and self.type not in ("fanout", RANDOM, UPSTREAM_TYPE):
                union = dict.fromkeys(found)
                for key in keys[1:]:
                    union.update(dict.fromkeys(self.keyed.match(key)))
                found = tuple(union)
        return (found[self.draw(len(found))],) if self.single and len(found) > 1 else found

    def _hash_value(self, key: str, headers: Headers, properties: Properties) -> bytes:
        if self.hash_header is not None:
            return consistent_hash.header_value(headers().get(self.hash_header))
        if self.hash_property is not None:
            value = properties(self.hash_property)
            return consistent_hash.ABSENT if value is None else str(value).encode("utf-8", "surrogateescape")
        return key.encode("utf-8", "surrogateescape")


def _text(arguments: dict[str, Field], name: str) -> str | None:
    field = arguments.get(name)
    return None if field is None else str(field.value)


class Router(Generic[T]):
    """`version` rises with every change that can alter a route. `name_of` gives a target's name, which is the same at
    all nodes; `draw` a number below the one it is given."""

    def __init__(self, name_of: Callable[[T], str] = str, draw: Callable[[int], int] = first_of) -> None:
        self.version = 0
        self._name_of = name_of
        self._draw = draw
        self._exchanges: dict[str, Exchange[T | Hop]] = {}
        self._queues: dict[str, T] = {}
        self._hidden_queues: dict[str, T] = {}
        self._varying: dict[str, bool] = {}

    def _changed(self) -> None:
        self.version += 1
        if self._varying:
            self._varying.clear()

    def _exchange(self, name: str) -> Exchange[T | Hop]:
        exchange = self._exchanges.get(name)
        if exchange is None:
            raise UnknownExchange(name)
        return exchange

    # Exchanges and queues

    def add_exchange(self, name: str, type: str, arguments: dict[str, Field]) -> None:
        assert name not in self._exchanges, name  # A second one would silently lose the bindings of the first.
        self._exchanges[name] = Exchange(name, type, arguments, self._destination_name, self._draw)
        self._changed()

    def _destination_name(self, destination: T | Hop) -> str:
        return f"exchange {destination.name}" if isinstance(destination, Hop) else f"queue {self._name_of(destination)}"

    def set_alternate(self, name: str, alternate: str | None) -> bool:
        """For an alternate exchange that a policy gives or takes away; the exchange's own argument goes first. Whether
        a route may have changed."""
        exchange = self._exchange(name)
        if exchange.own_alternate is not None or exchange.alternate == alternate:
            return False
        exchange.alternate = alternate
        self._changed()
        return True

    def has_exchange(self, name: str) -> bool:
        return name in self._exchanges

    def exchange_names(self) -> list[str]:
        return list(self._exchanges)

    def remove_exchange(self, name: str) -> None:
        """Its bindings go too, those from it and those to it."""
        exchange = self._exchange(name)
        for source_name, bindings in exchange.incoming.items():
            source = self._exchanges[source_name]
            source.outgoing.discard(name)
            for (key, _), arguments in bindings.items():
                source.remove(Hop(name), key, arguments)
        for destination in exchange.outgoing:
            self._exchanges[destination].incoming.pop(name, None)
        del self._exchanges[name]
        self._changed()

    def add_queue(self, name: str, target: T) -> None:
        queues = self._hidden_queues if is_closed(name) else self._queues
        queues[name] = target
        self._changed()

    def remove_queue(self, name: str) -> None:
        """From the default exchange. Bindings to the queue are unbound one by one: no index by queue is kept here."""
        queues = self._hidden_queues if is_closed(name) else self._queues
        if queues.pop(name, None) is not None:
            self._changed()

    # Bindings. To unbind what is not bound, or no longer, is no error: AMQP has it so, and a removal that cascades may
    # name an exchange before its bindings.

    def bind_queue(self, source: str, target: T, key: str, arguments: dict[str, Field]) -> None:
        if self._exchange(source).add(target, key, arguments):
            self._changed()

    def unbind_queue(self, source: str, target: T, key: str, arguments: dict[str, Field]) -> None:
        exchange = self._exchanges.get(source)
        if exchange is not None and exchange.remove(target, key, arguments):
            self._changed()

    def bind_exchange(self, source: str, destination: str, key: str, arguments: dict[str, Field]) -> None:
        start, end = self._exchange(source), self._exchange(destination)
        end.incoming.setdefault(source, {})[key, canonical(arguments)] = arguments
        start.outgoing.add(destination)
        if start.add(Hop(destination), key, arguments):
            self._changed()

    def unbind_exchange(self, source: str, destination: str, key: str, arguments: dict[str, Field]) -> None:
        start, end = self._exchanges.get(source), self._exchanges.get(destination)
        if start is None or end is None:
            return  # Removing either has taken the binding along.
        bindings = end.incoming.get(source, {})
        if bindings.pop((key, canonical(arguments)), None) is None:
            return
        if not bindings:
            del end.incoming[source]
            start.outgoing.discard(destination)
        if start.remove(Hop(destination), key, arguments):
            self._changed()

    # Routes

    def route(self, exchange: str, key: str, headers: Headers, properties: Properties = no_properties) -> tuple[T, ...]:
        """Each target once, in an order that depends only on what was bound when. Headers are asked for at most once,
        and only where an exchange is met that looks at them."""
        if exchange == "":
            target = self._queues.get(key)
            return () if target is None else (target,)
        start = self._exchange(exchange)
        is_plain = start.keyed is not None and start.downstream is None and start.hidden_queue is None
        if is_plain and not start.outgoing and not start.single:
            assert start.keyed is not None
            found = start.keyed.match(key)
            if found or start.alternate is None:
                return cast(tuple[T, ...], found)  # No binding to an exchange, so no hop among them.
        return self._visit(start, (key,), headers, properties)

    def route_keys(
        self, exchange: str, keys: Sequence[str], headers: Headers, properties: Properties = no_properties
    ) -> tuple[T, ...]:
        """For a message that has further keys in its CC and BCC headers; at least one key."""
        assert keys
        if exchange == "":
            named = (self._queues.get(key) for key in keys)
            return tuple(dict.fromkeys(target for target in named if target is not None))
        return self._visit(self._exchange(exchange), keys, headers, properties)

    def _visit(
        self, start: Exchange[T | Hop], keys: Sequence[str], headers: Headers, properties: Properties
    ) -> tuple[T, ...]:
        table: dict[str, Field] | None = None

        def headers_once() -> dict[str, Field]:
            nonlocal table
            if table is None:
                table = headers()
            return table

        targets: dict[T, None] = {}
        seen = {start.name}
        ahead = [start]
        for exchange in ahead:  # Grows as it goes.
            if exchange.hidden_queue is not None and delay_ms(headers_once()):
                targets[self._hidden_queues[exchange.hidden_queue]] = None
                continue
            found = exchange.match(keys, headers_once, properties)
            if not found and exchange.alternate is not None:
                found = (Hop(exchange.alternate),)
            for destination in found:
                if not isinstance(destination, Hop):
                    targets[destination] = None
                elif destination.name not in seen:
                    seen.add(destination.name)
                    following = self._exchanges.get(destination.name)
                    if following is not None:
                        ahead.append(following)
        return tuple(targets)

    def varies(self, exchange: str) -> bool:
        """Returns whether a route from this exchange may depend on more than the routing key."""
        if exchange == "":
            return False
        varies = self._varying.get(exchange)
        if varies is None:
            varies = self._varying[exchange] = self._meets_varying(self._exchange(exchange))
        return varies

    def _meets_varying(self, start: Exchange[T | Hop]) -> bool:
        seen = {start.name}
        ahead = [start]
        for exchange in ahead:
            if exchange.varies():
                return True
            names = exchange.outgoing if exchange.alternate is None else {*exchange.outgoing, exchange.alternate}
            for name in names - seen:
                seen.add(name)
                if name in self._exchanges:
                    ahead.append(self._exchanges[name])
        return False
