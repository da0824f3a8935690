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

A route may be remembered by its key for as long as `version` stays, unless `needs_headers` says that it depends on more
than the key.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar, cast

from leveret.amqp.tables import Field, canonical
from leveret.broker.headers import HeadersIndex, check_x_match
from leveret.broker.topic import Many, TopicTrie, holds, joined, parted

T = TypeVar("T", bound=Hashable)
D = TypeVar("D", bound=Hashable)

Headers = Callable[[], dict[str, Field]]

EXCHANGE_TYPES: Final = ("direct", "fanout", "topic", "headers")
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


def check_binding(type: str, arguments: dict[str, Field]) -> str | None:
    """Why an exchange of this type refuses a binding with these arguments, in RabbitMQ's words; None if it does not."""
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

    __slots__ = ("_forms", "alternate", "headed", "incoming", "keyed", "name", "outgoing", "type")

    def __init__(self, name: str, type: str) -> None:
        self.name = name
        self.type = type
        self.alternate: str | None = None
        self.keyed: KeyIndex[D] | None = None
        self.headed: HeadersIndex[D] | None = None
        if type == "direct":
            self.keyed = DirectIndex()
        elif type == "fanout":
            self.keyed = FanoutIndex()
        elif type == "topic":
            self.keyed = TopicTrie()
        elif type == "headers":
            self.headed = HeadersIndex()
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
        assert self.keyed is not None
        added = self.keyed.add(key, destination)
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
        assert self.keyed is not None
        form = canonical(arguments) if arguments else NO_ARGUMENTS
        forms = self._forms.get((destination, key))
        if forms is None:
            return form == NO_ARGUMENTS and self.keyed.remove(key, destination)
        forms.discard(form)
        if not forms:
            del self._forms[destination, key]
            return self.keyed.remove(key, destination)
        if forms == {NO_ARGUMENTS}:
            del self._forms[destination, key]
        return False

    def match(self, keys: Sequence[str], headers: Headers) -> tuple[D, ...]:
        """What the exchange's own bindings lead to."""
        if self.headed is not None:
            return self.headed.match(headers())
        assert self.keyed is not None
        found = self.keyed.match(keys[0])
        if len(keys) == 1 or self.type == "fanout":
            return found
        union = dict.fromkeys(found)
        for key in keys[1:]:
            union.update(dict.fromkeys(self.keyed.match(key)))
        return tuple(union)


class Router(Generic[T]):
    """`version` rises with every change that can alter a route."""

    def __init__(self) -> None:
        self.version = 0
        self._exchanges: dict[str, Exchange[T | Hop]] = {}
        self._queues: dict[str, T] = {}
        self._headers_needed: dict[str, bool] = {}

    def _changed(self) -> None:
        self.version += 1
        if self._headers_needed:
            self._headers_needed.clear()

    def _exchange(self, name: str) -> Exchange[T | Hop]:
        exchange = self._exchanges.get(name)
        if exchange is None:
            raise UnknownExchange(name)
        return exchange

    # Exchanges and queues

    def add_exchange(self, name: str, type: str, arguments: dict[str, Field]) -> None:
        assert name not in self._exchanges, name  # A second one would silently lose the bindings of the first.
        exchange: Exchange[T | Hop] = Exchange(name, type)
        alternate = arguments.get("alternate-exchange")
        if alternate is not None:
            exchange.alternate = str(alternate.value)
        self._exchanges[name] = exchange
        self._changed()

    def set_alternate(self, name: str, alternate: str | None) -> None:
        """For an alternate exchange that a policy gives or takes away; the exchange's own argument goes first."""
        self._exchange(name).alternate = alternate
        self._changed()

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
        self._queues[name] = target
        self._changed()

    def remove_queue(self, name: str) -> None:
        """From the default exchange. Bindings to the queue are unbound one by one: no index by queue is kept here."""
        if self._queues.pop(name, None) is not None:
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

    def route(self, exchange: str, key: str, headers: Headers) -> tuple[T, ...]:
        """Each target once, in an order that depends only on what was bound when. Headers are asked for at most once,
        and only where a headers exchange is met."""
        if exchange == "":
            target = self._queues.get(key)
            return () if target is None else (target,)
        start = self._exchange(exchange)
        if start.keyed is not None and not start.outgoing:
            found = start.keyed.match(key)
            if found or start.alternate is None:
                return cast(tuple[T, ...], found)  # No binding to an exchange, so no hop among them.
        return self._visit(start, (key,), headers)

    def route_keys(self, exchange: str, keys: Sequence[str], headers: Headers) -> tuple[T, ...]:
        """For a message that has further keys in its CC and BCC headers; at least one key."""
        assert keys
        if exchange == "":
            named = (self._queues.get(key) for key in keys)
            return tuple(dict.fromkeys(target for target in named if target is not None))
        return self._visit(self._exchange(exchange), keys, headers)

    def _visit(self, start: Exchange[T | Hop], keys: Sequence[str], headers: Headers) -> tuple[T, ...]:
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
            found = exchange.match(keys, headers_once)
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

    def needs_headers(self, exchange: str) -> bool:
        """Whether a route from here may depend on headers: then the key alone does not say where it leads."""
        if exchange == "":
            return False
        needed = self._headers_needed.get(exchange)
        if needed is None:
            needed = self._headers_needed[exchange] = self._meets_headers(self._exchange(exchange))
        return needed

    def _meets_headers(self, start: Exchange[T | Hop]) -> bool:
        seen = {start.name}
        ahead = [start]
        for exchange in ahead:
            if exchange.headed is not None:
                return True
            names = exchange.outgoing if exchange.alternate is None else {*exchange.outgoing, exchange.alternate}
            for name in names - seen:
                seen.add(name)
                if name in self._exchanges:
                    ahead.append(self._exchanges[name])
        return False
