"""Virtual hosts and their limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leveret.broker import firehose
from leveret.management.api.common import request_body
from leveret.management.api.common.aggregate import AllNodes, added
from leveret.management.api.common.base import Handlers, created, done
from leveret.management.api.common.listing import past_of, query_of
from leveret.management.http.http_messages import bad_request, json_response, not_found
from leveret.metadata.model import commands as c
from leveret.metadata.rules.policy_validation import VHOST_LIMITS, limits_error
from leveret.node.admin.queues.lists import running_nodes
from leveret.node.admin.statistics.peer_stats import FIGURES_MAX
from leveret.node.cluster import bulk_delete

if TYPE_CHECKING:
    from leveret.management.api.common.listing import Row
    from leveret.management.app import Management
    from leveret.management.http.http_messages import Request, Response
    from leveret.management.http.routes import Router
    from leveret.metadata.model.records import VhostSpec


class VhostHandlers(Handlers):
    def __init__(self, management: Management) -> None:
        super().__init__(management)
        self.everyone = AllNodes(management)

    def add_to(self, router: Router) -> None:
        router.add("GET", "/api/vhosts", self.vhosts)
        router.add("GET", "/api/vhosts/{vhost}", self.vhost)
        router.add("PUT", "/api/vhosts/{vhost}", self.put)
        router.add("DELETE", "/api/vhosts/{vhost}", self.delete)
        router.add("GET", "/api/vhosts/{vhost}/permissions", self.permissions)
        router.add("GET", "/api/vhosts/{vhost}/topic-permissions", self.topic_permissions)
        router.add("POST", "/api/vhosts/{vhost}/start/{node}", self.start)
        router.add("GET", "/api/vhost-limits", self.limits)
        router.add("GET", "/api/vhost-limits/{vhost}", self.limits)
        router.add("PUT", "/api/vhost-limits/{vhost}/{limit}", self.put_limit)
        router.add("DELETE", "/api/vhost-limits/{vhost}/{limit}", self.delete_limit)

    def _spec(self, request: Request) -> VhostSpec:
        """Raises Problem."""
        self.rights.check_administrator(request)
        spec = self.metadata.vhosts.get(request.parameters["vhost"])
        if spec is None:
            raise not_found()
        return spec

    def shown(self, spec: VhostSpec) -> dict[str, Any]:
        return {
            "name": spec.name,
            "description": spec.description,
            "tags": list(spec.tags),
            "default_queue_type": "undefined",
            "metadata": {"description": spec.description, "tags": list(spec.tags)},
            "tracing": firehose.is_traced(self.node.broker, spec.name),
            "cluster_state": dict.fromkeys(running_nodes(self.management.server.control), "running"),
        }

    async def vhosts(self, request: Request) -> Response:
        self.rights.check(request)
        specs = sorted(self.metadata.vhosts.items())
        found = [self.shown(spec) for name, spec in specs if self.rights.may_see(request, name)]
        return await self.listed(request, await self._with_figures(request, found), is_paged=True)

    async def vhost(self, request: Request) -> Response:
        [row] = await self._with_figures(request, [self.shown(self._spec(request))])
        return json_response(query_of(request).shown(row))

    async def _with_figures(self, request: Request, rows: list[Row]) -> list[Row]:
        """Add the statistics of all nodes, unless there are very many vhosts."""
        if request.asked("disable_stats") == "true" or len(rows) > FIGURES_MAX:
            return rows
        asked = {"vhosts": [row["name"] for row in rows], "past": past_of(request)}
        told = (await self.everyone.ask("local_vhost_stats", asked)).values()
        for row in rows:
            parts = [dict(answer[row["name"]]) for answer in told if row["name"] in answer]
            stats = added(part.pop("message_stats", {}) for part in parts)
            octets = added(part.pop("octets", {}) for part in parts)
            row |= octets | added(parts) | ({"message_stats": stats} if stats else {})
        return rows

    async def put(self, request: Request) -> Response:
        """Create a vhost, and give its creator all permissions in it, as RabbitMQ does."""
        self.rights.check_administrator(request)
        name = request.parameters["vhost"]
        body = await request_body.object_of(request)
        existing = self.metadata.vhosts.get(name)
        tracing = request_body.flag(body, "tracing")
        default_type = body.get("default_queue_type", "undefined")
        if default_type not in ("undefined", "classic", None):
            raise bad_request("a vhost's default_queue_type is classic here; give queues an x-queue-type")
        if body or existing is None:  # Without a body it stays as it is.
            tags = request_body.tags(body.get("tags", []))
            vhost = c.AddVhost(name, request_body.text(body, "description"), tags)
            await self.to_the_end(self._add(vhost, None if existing else request.user))
        if "tracing" in body:
            firehose.trace(self.node.broker, name, tracing)
        return created(existing is not None)

    async def _add(self, vhost: c.AddVhost, maker: str | None) -> None:
        await self.change(vhost)
        if maker is not None:
            await self.change(c.SetPermissions(maker, vhost.name, ".*", ".*", ".*"))

    async def delete(self, request: Request) -> Response:
        name = self._spec(request).name
        await self.to_the_end(self.agreed(bulk_delete.delete_vhost(self.node.cluster, self.metadata, name)))
        return done()

    async def start(self, request: Request) -> Response:
        """A vhost runs wherever the node runs."""
        self.rights.check_administrator(request)
        vhost, node = request.parameters["vhost"], request.parameters["node"]
        if node not in running_nodes(self.management.server.control):
            raise bad_request(f"Request to node {node} failed with nodedown")
        if vhost not in self.metadata.vhosts:
            raise bad_request(f'Request to node {node} failed with {{no_such_vhost,<<"{vhost}">>}}')
        return done()

    # -- Permissions ---------------------------------------------------------------------------------------------

    async def permissions(self, request: Request) -> Response:
        vhost = self._spec(request).name
        kept = sorted(self.metadata.permissions.items())
        found = [{"vhost": vhost, "user": user, **one._asdict()} for (user, where), one in kept if where == vhost]
        return await self.listed(request, found)

    async def topic_permissions(self, request: Request) -> Response:
        vhost = self._spec(request).name
        found = [
            {"vhost": vhost, "user": user, "exchange": exchange, **one._asdict()}
            for (user, where), kept in sorted(self.metadata.topic_permissions.items())
            if where == vhost
            for exchange, one in sorted(kept.items())
        ]
        return await self.listed(request, found)

    # -- Limits --------------------------------------------------------------------------------------------------

    async def limits(self, request: Request) -> Response:
        self.rights.check(request)
        wanted = request.parameters.get("vhost")
        if wanted is not None:
            self.rights.check_vhost(request, wanted)
        found = [
            {"vhost": name, "value": dict(spec.limits)}
            for name, spec in sorted(self.metadata.vhosts.items())
            if spec.limits and wanted in (None, name) and self.rights.may_see(request, name)
        ]
        return json_response(found)

    async def put_limit(self, request: Request) -> Response:
        self.rights.check_administrator(request)
        vhost, limit = request.parameters["vhost"], request.parameters["limit"]
        self.check_vhost_exists(vhost)
        value = (await request_body.object_of(request, "value"))["value"]
        error = limits_error({limit: value}, VHOST_LIMITS, "limits")
        if error is not None:
            raise bad_request(f"Validation failed\n\n{error}\n")
        await self.change(c.SetVhostLimits(vhost, {limit: value}))
        return done()

    async def delete_limit(self, request: Request) -> Response:
        await self.change(c.ClearVhostLimits(self._spec(request).name, request.parameters["limit"]))
        return done()
