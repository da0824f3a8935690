"""One virtual host at work: its queues, its routes, and a memory of where publishes go.

Publishers repeat themselves. What the raw arguments of a publish (exchange, routing key, bits) lead to is remembered
in `routes`, so that a repeated publish costs one look-up and no decoding. The memory is bounded, and dropped whole
when a binding, an exchange, a queue or a permission changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from leveret.amqp.tables import Field
from leveret.broker.routing import Router

if TYPE_CHECKING:
    from leveret.broker.broker import AnyQueue

ROUTES_MAX = 65_536


class Route:
    """Where one kind of publish goes."""

    __slots__ = (
        "by_headers", "exchange", "immediate", "is_plain", "key", "mandatory", "queues", "routing_key", "writers",
    )  # fmt: skip

    def __init__(self, arguments: bytes) -> None:
        middle = 1 + arguments[0]
        self.key = arguments[:-1]  # Exchange and routing key as short strings, as a delivery wants them.
        self.exchange = self.key[1:middle].decode("utf-8", "surrogateescape")
        self.routing_key = self.key[middle + 1 :].decode("utf-8", "surrogateescape")
        self.mandatory = bool(arguments[-1] & 1)
        self.immediate = bool(arguments[-1] & 2)
        self.queues: tuple[AnyQueue, ...] = ()
        self.by_headers = False  # Not to be remembered: each message goes its own way.
        self.is_plain = False  # Leads to at least one queue, whatever the message.
        self.writers: set[str] = set()  # Users whose permission was checked.

    def arguments(self) -> bytes:
        """What it was made of."""
        return self.key + bytes((self.mandatory | self.immediate << 1,))


class Vhost:
    """The running side of a virtual host; what lasts of it is in the metadata."""

    __slots__ = ("generation", "name", "queues", "router", "routes", "targets")

    def __init__(self, name: str) -> None:
        self.name = name
        self.queues: dict[str, AnyQueue] = {}
        self.router: Router[AnyQueue] = Router()
        self.routes: dict[bytes, Route] = {}
        self.targets: dict[tuple[AnyQueue, ...], tuple[AnyQueue, ...]] = {}
        self.generation = 0  # Rises when remembered routes are void; connections remember their last one too.

    def forget_routes(self) -> None:
        """A binding, an exchange, a queue or a permission changed."""
        self.routes.clear()
        self.targets.clear()
        self.generation += 1

    def route(self, route: Route, headers: Callable[[], dict[str, Field]]) -> tuple[AnyQueue, ...]:
        return self.router.route(route.exchange, route.routing_key, headers)

    def resolve(self, arguments: bytes, route: Route) -> None:
        """Find the queues of a route and remember it."""
        if self.router.needs_headers(route.exchange):
            route.by_headers = True
            return
        if len(self.routes) >= ROUTES_MAX:
            self.forget_routes()
        queues = self.router.route(route.exchange, route.routing_key, dict)
        # One object for equal sets of queues, so that a bundle for the same queues is recognised by identity.
        route.queues = self.targets.setdefault(queues, queues)
        route.is_plain = bool(queues)
        self.routes[arguments] = route
