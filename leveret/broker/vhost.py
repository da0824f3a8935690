"""One virtual host at work: its queues, its routes, and a memory of where publishes go.

Publishers repeat themselves. What the raw arguments of a publish (exchange, routing key, bits) lead to is remembered
in `routes`, so that a repeated publish costs one look-up and no decoding. The memory is bounded, and dropped whole
when a binding, an exchange, a queue or a permission changes.

A route that leads nowhere, that depends on the message, or that somebody watches (`firehose`) is not plain: its
publishes are dealt with one by one. So none of these costs the plain ones anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from leveret.base.counters import ExchangeCounters
from leveret.broker.routing.reply_address import PREFIX
from leveret.broker.routing.router import Router, first_of
from leveret.broker.routing.upkeep import Upkeep
from leveret.metadata.model.hidden_queues import is_hidden_queue
from leveret.protocol.frames import HEADER_AT
from leveret.protocol.properties import correlation_id, headers, message_id, timestamp

if TYPE_CHECKING:
    from leveret.broker.broker import AnyQueue
    from leveret.broker.firehose import Firehose

ROUTES_MAX = 65_536


class Route:
    """The queues that publishes with one exchange and routing key go to."""

    __slots__ = (
        "counters", "exchange", "immediate", "is_plain", "key", "mandatory", "queues", "routing_key", "varies",
        "writers",
    )  # fmt: skip

    def __init__(self, arguments: bytes) -> None:
        middle = 1 + arguments[0]
        self.key = arguments[:-1]  # Exchange and routing key as short strings, as a delivery wants them.
        self.exchange = self.key[1:middle].decode("utf-8", "surrogateescape")
        self.routing_key = self.key[middle + 1 :].decode("utf-8", "surrogateescape")
        self.mandatory = bool(arguments[-1] & 1)
        self.immediate = bool(arguments[-1] & 2)
        self.queues: tuple[AnyQueue, ...] = ()
        self.counters = ExchangeCounters()  # Its exchange's, once it is known.
        self.varies = False  # Not to be remembered: each message goes its own way.
        self.is_plain = False  # Leads to at least one queue, whatever the message, and is not traced by a firehose.
        self.writers: set[str] = set()  # Users whose permission was checked.

    def arguments(self) -> bytes:
        """Returns the raw arguments of the publish that it was made from."""
        return self.key + bytes((self.mandatory | self.immediate << 1,))


class Vhost:
    """The running side of a virtual host; what lasts of it is in the metadata."""

    __slots__ = (
        "deleting", "exchange_counters", "firehose", "generation", "name", "queues", "router", "routes", "targets",
    )  # fmt: skip

    def __init__(self, name: str, draw: Callable[[int], int] = first_of, upkeep: Upkeep | None = None) -> None:
        self.name = name
        self.queues: dict[str, AnyQueue] = {}
        self.router: Router[AnyQueue] = Router(lambda queue: queue.spec.name, draw, upkeep)
        self.exchange_counters: dict[str, ExchangeCounters] = {}  # Of exchanges that were published to at this node.
        self.firehose: Firehose | None = None  # While somebody watches the messages of this vhost.
        self.routes: dict[bytes, Route] = {}
        self.targets: dict[tuple[AnyQueue, ...], tuple[AnyQueue, ...]] = {}
        self.deleting: set[AnyQueue] = set()  # `Life.DELETING`, and no longer to be published to.
        self.generation = 0  # Rises when remembered routes are void; connections remember their last one too.

    def queue(self, name: str) -> AnyQueue | None:
        """Returns a queue by name, for clients: hidden queues are left out."""
        return None if is_hidden_queue(name) else self.queues.get(name)

    def forget_routes(self) -> None:
        """A binding, an exchange, a queue or a permission changed."""
        self.routes.clear()
        self.targets.clear()
        self.generation += 1

    def route(self, exchange: str, keys: Sequence[str], content: bytes) -> tuple[AnyQueue, ...]:
        """Returns the queues for a message whose content decides, or that has several keys."""
        router = self.router
        if len(keys) == 1:
            found = router.route(exchange, keys[0], lambda: headers(content, HEADER_AT) or {}, _properties(content))
        else:
            found = router.route_keys(exchange, keys, lambda: headers(content, HEADER_AT) or {}, _properties(content))
        return self._lasting(found) if self.deleting else found

    def _lasting(self, queues: tuple[AnyQueue, ...]) -> tuple[AnyQueue, ...]:
        return tuple(queue for queue in queues if queue not in self.deleting)

    def end_publishes_to(self, queue: AnyQueue) -> None:
        """The queue is being deleted, because its last consumer is gone. Who was told of that consumer's end must not
        publish to the queue any more: the message would be lost in it without a word."""
        self.deleting.add(queue)
        self.forget_routes()

    def resolve(self, arguments: bytes, route: Route) -> None:
        """Find the queues of a route and remember it."""
        route.counters = self.exchange_counters.setdefault(route.exchange, route.counters)
        if self.router.varies(route.exchange):
            route.varies = True
            return
        if not route.exchange and route.routing_key.startswith(PREFIX):
            return  # An address of direct reply-to: see `remote.direct_reply_to`.
        if len(self.routes) >= ROUTES_MAX:
            self.forget_routes()
        queues = self.router.route(route.exchange, route.routing_key, dict)
        if self.deleting:
            queues = self._lasting(queues)
        # One object for equal sets of queues, so that a bundle for the same queues is recognised by identity.
        route.queues = self.targets.setdefault(queues, queues)
        # Messages for a queue that may reject publishes go one by one, so that each is confirmed or refused by itself.
        route.is_plain = bool(queues) and self.firehose is None and not any(queue.rules.rejects for queue in queues)
        self.routes[arguments] = route


_READERS = {"correlation_id": correlation_id, "message_id": message_id, "timestamp": timestamp}


def _properties(content: bytes) -> Callable[[str], str | int | None]:
    return lambda name: _READERS[name](content, HEADER_AT)
