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

Very many bindings are not indexed, unindexed or freed in one turn (`upkeep`). An exchange that gets them in bulk, at a
start, indexes them while nobody asks, and what is left when somebody does. A queue that is gone leads nowhere from that
moment, whatever the indexes of exchanges still have of it. Another object for the same queue needs no change of any
index: they lead to a `Target`, which knows the object.

A route may be remembered by its key for as long as `version` stays, unless `varies` says that it depends on more than
the key: on the headers, on a property, or on what is drawn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic, Protocol, TypeVar, cast

from leveret.broker.routing import consistent_hash
from leveret.broker.routing.delayed_exchange import DELAYED_TYPE, check_delayed_arguments, delay_ms
from leveret.broker.routing.headers import HeadersIndex, check_x_match
from leveret.broker.routing.topic import Many, TopicTrie, holds, joined, parted
from leveret.broker.routing.upkeep import Upkeep
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
FEW: Final = 32  # Bindings of one destination that are indexed, or removed from the index, at once.
IN_BULK: Final = 5  # Keys that cost as much as one step, where many are indexed by one call.


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

    def add_new(self, keys: Sequence[str], destination: D) -> bool:
        """Add a destination with each of these keys, at once. False, and nothing is added, if some key is there."""
        if self._entries and not self._entries.keys().isdisjoint(keys):
            return False
        self._entries.update(dict.fromkeys(keys, destination))
        return True


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


class Target(Generic[T]):
    """A queue as a destination: whatever object stands for it now, None if it is gone."""

    __slots__ = ("queue",)

    def __init__(self, queue: T) -> None:
        self.queue: T | None = queue


def is_live(destination: object) -> bool:
    return not isinstance(destination, Target) or destination.queue is not None


class Bundle(Generic[D]):
    """Bindings of one destination that are to be added to an index, or removed from it."""

    __slots__ = ("at", "destination", "keys", "rows")

    def __init__(self, destination: D, keys: Sequence[str], rows: Sequence[tuple[str, dict[str, Field]]]) -> None:
        self.destination = destination
        self.keys = keys  # Of bindings without arguments.
        self.rows = rows  # Routing key and arguments of the others.
        self.at = 0  # The number of those that are dealt with: first the keys, then the rows.

    @property
    def is_done(self) -> bool:
        return self.at >= len(self.keys) + len(self.rows)

    def take(self) -> tuple[str, dict[str, Field]]:
        at, self.at = self.at, self.at + 1
        return (self.keys[at], {}) if at < len(self.keys) else self.rows[at - len(self.keys)]


class Exchange(Generic[D]):
    """One exchange and the bindings of which it is the source."""

    __slots__ = (
        "_forms", "alternate", "downstream", "draw", "hash_header", "hash_property", "hashed", "headed", "incoming",
        "hidden_queue", "is_gone", "keyed", "later", "name", "outgoing", "own_alternate", "single", "stale", "type",
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
        self.later: deque[Bundle[D]] = deque()  # Bindings that are not in the index yet, the first ones first.
        self.stale = 0  # The number of queues that are gone, while the index still has bindings to them.
        self.is_gone = False  # The exchange itself is.

    def add(self, destination: D, key: str, arguments: dict[str, Field]) -> bool:
        """Whether a route may have changed."""
        if self.later:
            keys, rows = ((), ((key, arguments),)) if arguments else ((key,), ())
            self.later.append(Bundle(destination, keys, rows))
            return True
        return self._add(destination, key, arguments)

    def remove(self, destination: D, key: str, arguments: dict[str, Field]) -> bool:
        """Whether a route may have changed."""
        if self.later:
            self._index_all()
        return self._remove(destination, key, arguments)

    def index_some(self, most: int) -> int:
        """A job: index some of the bindings that are left for `later`."""
        done = 0
        while self.later and done < most:
            bundle = self.later[0]
            if not is_live(bundle.destination) or bundle.is_done:
                self.later.popleft()
                continue
            if bundle.at < len(bundle.keys) and isinstance(self.keyed, DirectIndex):
                keys = bundle.keys[bundle.at : bundle.at + IN_BULK * (most - done)]
                done += 1 + len(keys) // IN_BULK
                if self.keyed.add_new(keys, bundle.destination):
                    bundle.at += len(keys)
                    continue
            while not bundle.is_done and done < most:
                key, arguments = bundle.take()
                self._add(bundle.destination, key, arguments)
                done += 1
        return min(done, most) if self.later else min(done, most - 1)

    def _index_all(self) -> None:
        while self.later:
            self.index_some(1 << 30)

    def unindex_some(self, bundle: Bundle[D], most: int) -> int:
        """A job: remove some of the bindings to a queue that is gone."""
        done = 0
        while not (bundle.is_done or self.is_gone) and done < most:
            key, arguments = bundle.take()
            self._remove(bundle.destination, key, arguments)
            done += 1
        if done < most:
            self.stale -= 1
        return done

    def free_some(self, most: int) -> int:
        """A job: free the index of an exchange that is gone. Freed at once, a large trie takes long."""
        return self.keyed.free_some(most) if isinstance(self.keyed, TopicTrie) else 0

    def _add(self, destination: D, key: str, arguments: dict[str, Field]) -> bool:
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

    def _remove(self, destination: D, key: str, arguments: dict[str, Field]) -> bool:
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
        if self.later:
            self._index_all()
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
        if self.stale:
            found = tuple(filter(is_live, found))
        return (found[self.draw(len(found))],) if self.single and len(found) > 1 else found

    def match_key(self, key: str) -> tuple[D, ...]:
        """Returns the same for an exchange that looks at nothing but the key."""
        if self.later:
            self._index_all()
        assert self.keyed is not None
        found = self.keyed.match(key)
        return tuple(filter(is_live, found)) if self.stale else found

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
    all nodes; `draw` a number below the one it is given; `upkeep` does what can wait."""

    def __init__(
        self,
        name_of: Callable[[T], str] = str,
        draw: Callable[[int], int] = first_of,
        upkeep: Upkeep | None = None,
    ) -> None:
        self.version = 0
        self._name_of = name_of
        self._draw = draw
        self._upkeep = Upkeep() if upkeep is None else upkeep
        self._exchanges: dict[str, Exchange[Target[T] | Hop]] = {}
        self._targets: dict[T, Target[T]] = {}  # Of queues that are bound, or were.
        self._queues: dict[str, T] = {}
        self._hidden_queues: dict[str, T] = {}
        self._varying: dict[str, bool] = {}

    def _changed(self) -> None:
        self.version += 1
        if self._varying:
            self._varying.clear()

    def _exchange(self, name: str) -> Exchange[Target[T] | Hop]:
        exchange = self._exchanges.get(name)
        if exchange is None:
            raise UnknownExchange(name)
        return exchange

    # Exchanges and queues

    def add_exchange(self, name: str, type: str, arguments: dict[str, Field]) -> None:
        assert name not in self._exchanges, name  # A second one would silently lose the bindings of the first.
        self._exchanges[name] = Exchange(name, type, arguments, self._destination_name, self._draw)
        self._changed()

    def _destination_name(self, destination: Target[T] | Hop) -> str:
        if isinstance(destination, Hop):
            return f"exchange {destination.name}"
        assert destination.queue is not None  # Bindings of a gone queue are removed at once where names count.
        return f"queue {self._name_of(destination.queue)}"

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
        self._retire(exchange)
        self._changed()

    def _retire(self, exchange: Exchange[Target[T] | Hop]) -> None:
        exchange.is_gone = True
        exchange.later.clear()
        self._upkeep.add(exchange.free_some)

    def close(self) -> None:
        """The vhost is gone."""
        for exchange in self._exchanges.values():
            self._retire(exchange)
        self._exchanges.clear()

    def add_queue(self, name: str, target: T) -> None:
        queues = self._hidden_queues if is_closed(name) else self._queues
        queues[name] = target
        self._changed()

    def remove_queue(self, name: str) -> None:
        """From the default exchange, after its bindings: no index by queue is kept here."""
        queues = self._hidden_queues if is_closed(name) else self._queues
        queue = queues.pop(name, None)
        if queue is not None:
            target = self._targets.pop(queue, None)
            if target is not None:
                target.queue = None
            self._changed()

    def replace_queue(self, name: str, old: T, new: T) -> None:
        """Another object stands for the queue, with the same bindings."""
        queues = self._hidden_queues if is_closed(name) else self._queues
        queues[name] = new
        target = self._targets.pop(old, None)
        if target is not None:
            target.queue = new
            self._targets[new] = target
        self._changed()

    # Bindings. To unbind what is not bound, or no longer, is no error: AMQP has it so, and a removal that cascades may
    # name an exchange before its bindings.

    def _target(self, queue: T) -> Target[T]:
        target = self._targets.get(queue)
        if target is None:
            target = self._targets[queue] = Target(queue)
        return target

    def bind_queue(self, source: str, queue: T, key: str, arguments: dict[str, Field]) -> None:
        if self._exchange(source).add(self._target(queue), key, arguments):
            self._changed()

    def bind_queue_often(
        self, source: str, queue: T, keys: Sequence[str], rows: Sequence[tuple[str, dict[str, Field]]]
    ) -> None:
        """Bind a queue with each of these keys, and with each of these keys and arguments."""
        exchange = self._exchange(source)
        bundle: Bundle[Target[T] | Hop] = Bundle(self._target(queue), keys, rows)
        if len(keys) + len(rows) > FEW:
            if not exchange.later:
                self._upkeep.add(exchange.index_some)
            exchange.later.append(bundle)
        else:
            while not bundle.is_done:
                exchange.add(bundle.destination, *bundle.take())
        self._changed()

    def unbind_queue(self, source: str, queue: T, key: str, arguments: dict[str, Field]) -> None:
        exchange, target = self._exchanges.get(source), self._targets.get(queue)
        if exchange is not None and target is not None and exchange.remove(target, key, arguments):
            self._changed()

    def unbind_gone(
        self, source: str, queue: T, keys: Sequence[str], rows: Sequence[tuple[str, dict[str, Field]]]
    ) -> None:
        """Unbind a queue that is about to be removed: these are all its bindings of that source."""
        exchange, target = self._exchanges.get(source), self._targets.get(queue)
        if exchange is None or target is None:
            return
        bundle: Bundle[Target[T] | Hop] = Bundle(target, keys, rows)
        if len(keys) + len(rows) > FEW and exchange.hashed is None:
            exchange.stale += 1
            self._upkeep.add(partial(exchange.unindex_some, bundle))
        else:
            while not bundle.is_done:
                exchange.remove(target, *bundle.take())
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
            found = cast(tuple[Target[T], ...], start.match_key(key))  # No binding to an exchange, so no hop.
            if found or start.alternate is None:
                return tuple([one.queue for one in found if one.queue is not None])
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
        self, start: Exchange[Target[T] | Hop], keys: Sequence[str], headers: Headers, properties: Properties
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
                    if destination.queue is not None:
                        targets[destination.queue] = None
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

    def _meets_varying(self, start: Exchange[Target[T] | Hop]) -> bool:
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
