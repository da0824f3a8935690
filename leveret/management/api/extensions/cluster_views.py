"""Views of the web page for which RabbitMQ's HTTP API has no path.

    GET /api/leveret/nodes/{node}          event loop, Raft, links and listeners; settings, for administrators
    GET /api/leveret/topology/{vhost}      exchanges and what is bound to them, as a graph
    GET /api/leveret/consumers[/{vhost}]   consumers in pages, which RabbitMQ lists only as a whole
    GET /api/leveret/bindings/{vhost}/{exchange}   bindings from an exchange in pages, found by their destination
    GET /api/leveret/tracing/{vhost}       nodes at which the firehose of a vhost is on
    PUT /api/leveret/tracing/{vhost}       switches it on or off at all nodes, for administrators
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from leveret.management.api.common import request_body
from leveret.management.api.common.aggregate import AllNodes
from leveret.management.api.common.listing import Row, query_of, value_of
from leveret.management.api.extensions.mirror_rings import OwnPathHandlers
from leveret.management.api.lists.bindings import exchange_name, shown
from leveret.management.api.lists.consumers import consumer_rows
from leveret.management.http.http_messages import Problem, Request, Response, bad_request, json_response, not_found
from leveret.metadata.model.hidden_queues import is_hidden_queue
from leveret.node.system.time_slices import TimeSlices, picked

if TYPE_CHECKING:
    from leveret.management.app import Management
    from leveret.management.http.routes import Router
    from leveret.metadata.model.records import Binding

EDGES_MAX: Final = 2_000
KEYS_SHOWN: Final = 5  # Routing keys of one edge that are named.
BODY_BYTES_MAX: Final = 1 << 10


class ClusterViewHandlers(OwnPathHandlers):
    def __init__(self, management: Management) -> None:
        super().__init__(management)
        self.everyone = AllNodes(management)

    def add_to(self, router: Router) -> None:
        router.add("GET", "/api/leveret/nodes/{node}", self.node_details)
        router.add("GET", "/api/leveret/topology/{vhost}", self.topology)
        router.add("GET", "/api/leveret/consumers", self.consumers)
        router.add("GET", "/api/leveret/consumers/{vhost}", self.consumers)
        router.add("GET", "/api/leveret/bindings/{vhost}/{exchange}", self.bindings)
        router.add("GET", "/api/leveret/tracing/{vhost}", self.tracing)
        router.add("PUT", "/api/leveret/tracing/{vhost}", self.set_tracing, BODY_BYTES_MAX)

    # -- Nodes ---------------------------------------------------------------------------------------------------

    async def node_details(self, request: Request) -> Response:
        self.rights.check_monitor(request)
        name = request.parameters["node"]
        if name not in {member.name for member in self.node.cluster.members()}:
            raise not_found()
        asked = {"settings": self.rights.is_administrator(request)}
        found = await self.everyone.one(name, "local_node_details", asked)
        if found is None:
            raise Problem(503, "service_unavailable", f"{name} does not answer")
        return json_response(found)

    # -- Topology ------------------------------------------------------------------------------------------------

    async def topology(self, request: Request) -> Response:
        """List edges from exchanges to queues and exchanges whose source or destination contains `name`."""
        vhost = request.parameters["vhost"]
        self.rights.check_vhost(request, vhost)
        wanted = (request.asked("name") or "").lower()
        most = request.number("limit", 300, 1, EDGES_MAX)
        edges: dict[tuple[str, str, str], Row] = {}
        left_out: set[tuple[str, str, str]] = set()
        async for one in TimeSlices().each(self.metadata.bindings.in_vhost(vhost)):
            if is_hidden_queue(one.destination):
                continue
            if wanted and wanted not in one.source.lower() and wanted not in one.destination.lower():
                continue
            key = (one.source, one.destination_kind, one.destination)
            edge = edges.get(key)
            if edge is None:
                if len(edges) >= most:
                    left_out.add(key)
                    continue
                edge = edges[key] = {
                    "source": one.source, "destination": one.destination, "destination_type": one.destination_kind,
                    "count": 0, "keys": [],
                }  # fmt: skip
            edge["count"] += 1
            if len(edge["keys"]) < KEYS_SHOWN:
                edge["keys"].append(one.key)
        names = {name for source, kind, to in edges for name in ((source, to) if kind == "exchange" else (source,))}
        types = {name: self.metadata.exchanges[vhost, name].type for name in names if self._is_exchange(vhost, name)}
        return json_response({"edges": list(edges.values()), "left_out": len(left_out), "exchanges": types})

    def _is_exchange(self, vhost: str, name: str) -> bool:
        return (vhost, name) in self.metadata.exchanges

    # -- Bindings ------------------------------------------------------------------------------------------------

    async def bindings(self, request: Request) -> Response:
        vhost, source = request.parameters["vhost"], exchange_name(request.parameters["exchange"])
        self.rights.check_vhost(request, vhost)
        if not self._is_exchange(vhost, source):
            raise not_found()
        query = query_of(request)
        all_of_it = self.metadata.bindings_from(vhost, source)
        there = await picked(all_of_it, lambda one: not is_hidden_queue(one.destination))
        chosen, total, filtered = await self.listing.choose(query, there, _destination, _place, _figures)
        return await self.listing.answer(query, chosen, total, filtered, _rows)

    # -- Consumers -----------------------------------------------------------------------------------------------

    async def consumers(self, request: Request) -> Response:
        rows = self._consumers(self.rights.vhosts(request))
        return await self.listing.of_rows(query_of(request), rows)

    async def _consumers(self, vhosts: list[str]) -> AsyncIterator[Row]:
        async for row in consumer_rows(self.everyone, vhosts):
            yield {**row, "name": f"{row['queue']['name']} {row['consumer_tag']}"}  # By which it is found.

    # -- The firehose --------------------------------------------------------------------------------------------

    async def tracing(self, request: Request) -> Response:
        vhost = request.parameters["vhost"]
        self.rights.check_vhost(request, vhost)
        return json_response({"nodes": await self._traced(vhost), "running": self.everyone.running()})

    async def _traced(self, vhost: str) -> list[str]:
        told = await self.everyone.ask("local_tracing", {"vhost": vhost})
        return sorted(name for name, is_on in told.items() if is_on)

    async def set_tracing(self, request: Request) -> Response:
        """Switch the firehose on or off at all nodes. A node that starts later has it off, as in RabbitMQ."""
        vhost = request.parameters["vhost"]
        self.rights.check_administrator(request)
        self.check_vhost_exists(vhost)
        body: dict[str, Any] = await request_body.object_of(request, "tracing")
        if not isinstance(body["tracing"], bool):
            raise bad_request("tracing must be true or false")
        await self.everyone.ask("set_tracing", {"vhost": vhost, "on": body["tracing"]})
        return json_response({"nodes": await self._traced(vhost), "running": self.everyone.running()})


def _destination(one: Binding) -> str:
    return one.destination


def _place(one: Binding) -> tuple[str, str]:
    return one.destination, one.key


async def _figures(some: list[Binding], path: list[str]) -> Callable[[Binding], Any]:
    return lambda one: value_of(shown(one), path)


async def _rows(some: Sequence[Binding]) -> list[Row]:
    return [shown(one) for one in some]
