"""The management port of a node: its service, from the check of credentials to the answer.

Where other nodes have theirs is asked of them (`management_urls`, a control call over the cluster port) when an answer
has to name them, and remembered for as long as that run of the other node lasts: each run has a name of its own in the
metadata. That a node has none is not remembered, for it may be about to open it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from leveret.management.api.changes.declare import DeclareHandlers
from leveret.management.api.changes.definitions import DefinitionHandlers
from leveret.management.api.changes.messages import MessageHandlers
from leveret.management.api.changes.operations import OperationHandlers
from leveret.management.api.changes.policies import PolicyHandlers
from leveret.management.api.changes.users import UserHandlers
from leveret.management.api.changes.vhosts import VhostHandlers
from leveret.management.api.common.listing import Listing
from leveret.management.api.extensions.cluster_views import ClusterViewHandlers
from leveret.management.api.extensions.federation import FederationHandlers
from leveret.management.api.extensions.jobs import JobHandlers
from leveret.management.api.extensions.mirror_rings import RingHandlers
from leveret.management.api.extensions.mqtt_state import MqttStateHandlers
from leveret.management.api.extensions.page_queries import PageQueryHandlers
from leveret.management.api.extensions.shovels import ShovelHandlers
from leveret.management.api.extensions.spools import SpoolHandlers
from leveret.management.api.lists.bindings import BindingHandlers
from leveret.management.api.lists.connections import ConnectionHandlers
from leveret.management.api.lists.consumers import ConsumerHandlers
from leveret.management.api.lists.exchanges import ExchangeHandlers
from leveret.management.api.lists.overview import OverviewHandlers
from leveret.management.api.lists.queues import QueueHandlers
from leveret.management.api.monitoring.health import HealthHandlers
from leveret.management.api.monitoring.prometheus import Exporter, MetricHandlers
from leveret.management.bulk_data import DataHandlers
from leveret.management.http.auth import Authentication
from leveret.management.http.cors import METHODS, READING, AllowedOrigins
from leveret.management.http.http_messages import Problem, Request, Response
from leveret.management.http.http_server import HttpServer, Limits
from leveret.management.http.routes import Router
from leveret.management.page import PageHandlers
from leveret.node.admin.common.command import NoAnswer, Refused
from leveret.node.system.alarms import clients_limit

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leveret.node.node import Node
    from leveret.node.server import Server

logger = logging.getLogger("leveret.management")

CLOSE_S: Final = 5.0
BODIES_BYTES_MAX: Final = 64 << 20
READING_BYTES_MAX: Final = 4 << 10  # Of a body that nobody reads.
DECODED_AT_ONCE: Final = 4  # Long bodies of requests: each takes a millisecond of a turn.
ACTIONS: Final = (
    UserHandlers, VhostHandlers, PolicyHandlers, DeclareHandlers, MessageHandlers, DefinitionHandlers, HealthHandlers,
    OperationHandlers,
)  # fmt: skip
OPEN: Final = frozenset({("GET", "/api/auth"), ("POST", "/api/login")})  # To whoever has not said yet who it is.


class Management:
    """Answers for one run of a node's app."""

    def __init__(self, server: Server, node: Node) -> None:
        settings = server.settings
        self.server = server
        self.node = node
        self.gate = Authentication(node.broker, settings.loopback_users, node.loop.time)
        self.origins = AllowedOrigins(settings.management_origins, settings.management_cors_s)
        self.router = Router(settings.management_prefix)
        limits = Limits(
            body_bytes=settings.management_body_bytes_max,
            bodies_bytes=max(BODIES_BYTES_MAX, 2 * settings.management_body_bytes_max),
            request_s=settings.management_request_ms / 1000,
            idle_s=settings.management_idle_ms / 1000,
            connections=clients_limit(node.environment.descriptors_max()),
        )
        self.http = HttpServer(node.loop, self, limits)
        self.decoding = asyncio.Semaphore(DECODED_AT_ONCE)
        self._urls: dict[str, tuple[str, dict[str, str]]] = {}  # By node: its run, and its URLs by scheme.
        self.background: set[asyncio.Task[Any]] = set()  # What goes on without whoever asked for it.
        DataHandlers(self).add_to(self.router)
        listing = Listing()
        for lists in (
            OverviewHandlers, QueueHandlers, ConnectionHandlers, ConsumerHandlers, ExchangeHandlers, BindingHandlers,
        ):  # fmt: skip
            lists(self, listing).add_to(self.router)
        metrics = MetricHandlers(self)
        metrics.add_to(self.router)
        self.metrics = HttpServer(node.loop, Exporter(metrics), limits)
        for kind in ACTIONS:
            kind(self).add_to(self.router)
        RingHandlers(self).add_to(self.router)
        ShovelHandlers(self).add_to(self.router)
        FederationHandlers(self).add_to(self.router)
        SpoolHandlers(self).add_to(self.router)
        MqttStateHandlers(self).add_to(self.router)
        PageQueryHandlers(self).add_to(self.router)
        ClusterViewHandlers(self).add_to(self.router)
        JobHandlers(self).add_to(self.router)
        self.page = PageHandlers(settings.management_prefix)
        self.page.add_to(self.router)

    # -- Requests ------------------------------------------------------------------------------------------------

    def admit(self, request: Request) -> Response | None:
        try:
            self.origins.check(request)
            if request.method == "OPTIONS":
                request.body_bytes_max = READING_BYTES_MAX
                return None
            if not self.page.is_open(request) and not self._is_open(request):
                self.gate.check(request)
            route, request.parameters = self.router.route(request.method, request.path)
            request.handler, request.body_bytes_max = route.handler, route.body_bytes_max
            if request.method in READING:
                request.body_bytes_max = READING_BYTES_MAX
            request.decoding = self.decoding
            route.allow(request)
        except Problem as problem:
            return self._told(request, problem.response())
        return None

    def _told(self, request: Request, response: Response) -> Response:
        response.headers += self.origins.headers(request)
        return response

    def _is_open(self, request: Request) -> bool:
        return (request.method, request.path.removeprefix(self.router.prefix)) in OPEN

    async def handle(self, request: Request) -> Response:
        if request.method == "OPTIONS":
            allowed = ", ".join(self.router.allowed(request.path)) or METHODS
            return self._told(request, Response(200, headers=[("allow", allowed)]))
        try:
            assert request.handler is not None  # It was admitted.
            return self._told(request, await request.handler(request))
        except Problem as problem:
            return self._told(request, problem.response())

    async def close(self) -> None:
        self.node.reads.stop_waiting()
        await self.http.close(CLOSE_S)
        for task in self.background:
            task.cancel()
        await self.metrics.close(CLOSE_S)

    # -- Other nodes ---------------------------------------------------------------------------------------------

    async def urls_of(self, names: Iterable[str], is_tls: bool) -> dict[str, str | None]:
        """Return the addresses of the nodes' management ports; None for a node that is down or has none.

        A client that uses TLS (`is_tls`) is not sent to a port without: it would send its password there.
        """
        wanted = list(dict.fromkeys(names))
        found = await asyncio.gather(*map(self._urls_of, wanted))
        schemes = ("https",) if is_tls else ("http", "https")
        return {
            name: next((urls[scheme] for scheme in schemes if scheme in urls), None)
            for name, urls in zip(wanted, found, strict=True)
        }

    async def _urls_of(self, name: str) -> dict[str, str]:
        if name == self.node.settings.node_name:
            return self.server.listeners.management_urls
        if not self.node.cluster.is_running(name):
            return {}
        run = self.node.metadata.runs.get(name, "")
        known = self._urls.get(name)
        if known is not None and known[0] == run:
            return known[1]
        try:
            urls: dict[str, str] = await self.server.control.at(name, "management_urls", {})
        except (NoAnswer, Refused) as error:
            logger.info("the management port of %s is not known: %s", name, error)
            return {}
        if urls:
            self._urls[name] = (run, urls)
        return urls
