"""`/api/overview` and `/api/nodes`: the cluster at a glance, and its nodes."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

from leveret import __version__
from leveret.management.api.common.aggregate import AllNodes, added
from leveret.management.api.common.base import Handlers
from leveret.management.api.common.listing import Listing, Row, past_of, query_of
from leveret.management.http.http_messages import Request, Response, json_response, not_found
from leveret.node.admin.statistics.node_rows import RETENTION, exchange_types
from leveret.node.system.time_slices import TimeSlices
from leveret.sessions.peer import COMPATIBLE_VERSION

if TYPE_CHECKING:
    from leveret.management.app import Management
    from leveret.management.http.routes import Router


class OverviewHandlers(Handlers):
    def __init__(self, management: Management, listing: Listing) -> None:
        super().__init__(management)
        self.listing = listing
        self.everyone = AllNodes(management)

    def add_to(self, router: Router) -> None:
        router.add("GET", "/api/overview", self.overview)
        router.add("GET", "/api/nodes", self.nodes)
        router.add("GET", "/api/nodes/{node}", self.node_)
        router.add("GET", "/api/nodes/{node}/memory", self.memory)
        router.add("GET", "/api/nodes/{node}/memory/relative", self.memory_relative)

    # -- The cluster ---------------------------------------------------------------------------------------------

    async def overview(self, request: Request) -> Response:
        self.rights.check(request)
        query, past = query_of(request), past_of(request)
        control = self.management.server.control
        row: Row = {
            "management_version": COMPATIBLE_VERSION,
            "rabbitmq_version": COMPATIBLE_VERSION,
            "product_name": "Leveret",
            "product_version": __version__,
            "erlang_version": f"Python {platform.python_version()}",
            "erlang_full_version": f"Python {platform.python_version()} [{platform.python_implementation()}]",
            "release_series_support_status": "supported",
            "cluster_name": self.node.broker.cluster_name,
            "node": control.name,
            "rates_mode": "basic",
            "sample_retention_policies": RETENTION,
            "exchange_types": exchange_types(),
            "disable_stats": False,
            "enable_queue_totals": False,
            "statistics_db_event_queue": 0,
        }
        if self.rights.is_monitor(request):
            row |= await self._of_all(past)
        else:
            row |= await self._of_some(request, past)
        return json_response(query.shown(row))

    async def _of_all(self, past: dict[str, list[int]]) -> Row:
        told = list((await self.everyone.ask("local_overview", {"past": past})).values())
        found: Row = {
            name: added(one[name] for one in told) for name in ("message_stats", "queue_totals", "churn_rates")
        }
        found["object_totals"] = {
            "connections": sum(one["connections"] for one in told),
            "channels": sum(one["channels"] for one in told),
            "consumers": sum(one["consumers"] for one in told),
            "exchanges": len(self.metadata.exchanges),
            "queues": sum(self.metadata.queue_counts.values()),
        }
        for name in ("listeners", "contexts", "alarms"):
            found[name] = [row for one in told for row in one[name]]
        if witnesses := self._witnesses():
            found["witnesses"] = witnesses
        return found

    async def _of_some(self, request: Request, past: dict[str, list[int]]) -> Row:
        """For a user who sees its own vhosts alone, and its own connections."""
        mine = [name for name in self.metadata.vhosts if self.rights.may_see(request, name)]
        told = await self.everyone.ask("local_vhost_stats", {"vhosts": mine, "past": past})
        sums = added(row for answer in told.values() for row in _flat(answer))
        stats = {name.removeprefix("stats."): value for name, value in sums.items() if name.startswith("stats.")}
        totals = {name: value for name, value in sums.items() if not name.startswith("stats.")}
        connections = channels = 0
        slices, exchanges = TimeSlices(), 0
        for node in self.everyone.running():
            after: int | None = 0
            while after is not None:
                answer = await self.everyone.one(node, "local_client_names", {"after": after})
                for _, _, user, _, numbers in answer["clients"] if answer is not None else ():
                    connections += user == request.user
                    channels += len(numbers) if user == request.user else 0
                after = None if answer is None else answer["next"]
        for vhost, _ in list(self.metadata.exchanges):
            exchanges += vhost in mine
            if slices.is_over():
                await slices.rest()
        counts = {
            "connections": connections,
            "channels": channels,
            "consumers": 0,
            "exchanges": exchanges,
            "queues": sum(self.metadata.queue_counts[name] for name in mine),
        }
        return {"message_stats": stats, "queue_totals": totals, "object_totals": counts}

    # -- Nodes ---------------------------------------------------------------------------------------------------

    async def _rows(self, names: list[str], past: dict[str, list[int]]) -> list[Row]:
        running = [name for name in names if name in self.everyone.running()]
        told = await self.everyone.ask("local_node_row", {"past": past}, running)
        return [told.get(name) or {"name": name, "type": "disc", "running": False, "partitions": []} for name in names]

    def _witnesses(self) -> list[Row]:
        """Return rows of witnesses, short as those of nodes that are down: a witness has no broker to measure."""
        return [
            {"name": one.name, "type": "witness", "running": one.running, "voter": one.voter, "partitions": []}
            for one in self.node.cluster.attending()
        ]

    async def nodes(self, request: Request) -> Response:
        self.rights.check_monitor(request)
        names = sorted(member.name for member in self.node.cluster.members())
        query = query_of(request)
        rows = [*await self._rows(names, past_of(request)), *self._witnesses()]
        if query.sort is not None:
            path = query.sort[0]
            rows.sort(key=lambda row: str(row.get(path, "")), reverse=query.reverse)
        return json_response([query.shown(row) for row in rows])

    def _member(self, request: Request) -> str:
        self.rights.check_monitor(request)
        name = request.parameters["node"]
        if all(member.name != name for member in self.node.cluster.members()):
            raise not_found()
        return name

    async def node_(self, request: Request) -> Response:
        self.rights.check_monitor(request)
        for row in self._witnesses():
            if row["name"] == request.parameters["node"]:
                return json_response(query_of(request).shown(row))
        name = self._member(request)
        [row] = await self._rows([name], past_of(request))
        if request.asked("memory") == "true" and row["running"]:
            row["memory"] = await self._memory(name)
        return json_response(query_of(request).shown(row))

    async def _memory(self, name: str) -> Any:
        answer = await self.everyone.one(name, "local_node_memory", {})
        if answer is None:
            raise not_found()
        return answer

    async def memory(self, request: Request) -> Response:
        return json_response({"memory": await self._memory(self._member(request))})

    async def memory_relative(self, request: Request) -> Response:
        """In percent of all that the process has, and at least one where there is something."""
        parts = await self._memory(self._member(request))
        total = max(1, parts.pop("total")["rss"])
        del parts["strategy"]
        shares = {name: min(100, -(-value * 100 // total)) for name, value in parts.items()}
        return json_response({"memory": {"total": 100, **shares}})


def _flat(answer: dict[str, Row]) -> list[Row]:
    rows = []
    for row in answer.values():
        stats = row.pop("message_stats", {})
        row.pop("octets", None)
        rows.append({**row, **{f"stats.{name}": value for name, value in stats.items()}})
    return rows
