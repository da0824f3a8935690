"""`/api/queues`: what queues there are, and how they are.

Which queues there are is in the metadata, so any node can choose and order them by what they are called and how they
were declared. Their figures are known to their masters: who is shown is asked for there, and to sort by a figure, that
one figure of all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from leveret.management.api.common.aggregate import AllNodes
from leveret.management.api.common.base import Handlers
from leveret.management.api.common.listing import Listing, Query, Row, past_of, query_of, value_of
from leveret.management.http.http_messages import Request, Response, json_response, not_found
from leveret.metadata.model.hidden_queues import is_hidden_queue
from leveret.node.admin.queues.queues import ask_homes
from leveret.node.stats.queue_rows import queue_down, queue_head
from leveret.node.system.time_slices import in_order, picked

if TYPE_CHECKING:
    from leveret.management.app import Management
    from leveret.management.http.routes import Router
    from leveret.metadata.model.records import QueueSpec

HEAD: Final = frozenset(
    {
        "name", "vhost", "durable", "auto_delete", "exclusive", "arguments", "type", "node", "policy",
        "operator_policy", "effective_policy_definition", "slave_nodes", "synchronised_slave_nodes", "leader",
        "members", "online", "recoverable_slaves",
    }
)  # fmt: skip
QUICK: Final = frozenset({"vhost", "durable", "auto_delete", "exclusive", "node"})
PLAIN: Final = ("arguments", "auto_delete", "durable", "exclusive", "name", "node", "type", "vhost")
MORE: Final = ("policy", "leader", "members", "online")  # Of those that have them.


class QueueHandlers(Handlers):
    def __init__(self, management: Management, listing: Listing) -> None:
        super().__init__(management)
        self.control = management.server.control
        self.listing = listing
        self.everyone = AllNodes(management)
        self._ordered: tuple[int, list[QueueSpec]] | None = None  # As of that index of the metadata.

    def add_to(self, router: Router) -> None:
        router.add("GET", "/api/queues", self.queues)
        router.add("GET", "/api/queues/{vhost}", self.queues)
        router.add("GET", "/api/queues/{vhost}/{queue}", self.queue)

    # -- Lists ---------------------------------------------------------------------------------------------------

    async def queues(self, request: Request) -> Response:
        wanted = set(self.rights.vhosts(request))
        query = query_of(request)
        there = await picked(await self._in_order(), lambda spec: spec.vhost in wanted)
        is_ordered = query.sort is None or len(wanted) <= 1
        chosen, total, filtered = await self.listing.choose(query, there, _name, _place, self._figures, is_ordered)
        fetch = self._fetcher(request, query)
        return await self.listing.answer(query, chosen, total, filtered, fetch)

    async def _in_order(self) -> list[QueueSpec]:
        """All that clients know of, by vhost and name. Whoever turns pages finds the order that was made for the first
        one, unless something has changed."""
        index = self.metadata.index
        if self._ordered is None or self._ordered[0] != index:
            there = await picked(list(self.metadata.queues.values()), lambda spec: not is_hidden_queue(spec.name))
            self._ordered = (index, await in_order(there, _place))
        return self._ordered[1]

    def _fetcher(self, request: Request, query: Query) -> Callable[[Sequence[QueueSpec]], Any]:
        past = past_of(request)
        is_bare = request.asked("disable_stats") == "true"
        totals = is_bare and request.asked("enable_queue_totals") == "true"
        needs_little = query.columns is not None and all(path[0] in HEAD for path in query.columns)

        async def fetch(specs: Sequence[QueueSpec]) -> list[Row]:
            if is_bare:
                return await self._bare(specs, totals)
            if needs_little:
                return [queue_head(self.control, spec) for spec in specs]
            return await self.rows(specs, past)

        return fetch

    async def rows(self, specs: Sequence[QueueSpec], past: dict[str, list[int]]) -> list[Row]:
        """In full, in the same order; of one without a master, what is known of it all the same."""
        found, _ = await ask_homes(self.control, list(specs), "local_queue_rows", {"past": past})
        queues = self.metadata.queues  # As they are now: some may have another master since.
        return [
            found.get(spec.id) or queue_down(self.control, queues.get((spec.vhost, spec.name), spec)) for spec in specs
        ]

    async def _bare(self, specs: Sequence[QueueSpec], totals: bool) -> list[Row]:
        """Return rows without statistics, as `disable_stats` asks for."""
        counts: dict[int, Any] = {}
        if totals:
            counts, _ = await ask_homes(self.control, list(specs), "local_queue_totals", {})
        rows, running = [], self.everyone.running()
        for spec in specs:
            head = queue_head(self.control, spec)
            row = {name: head[name] for name in PLAIN}
            row |= {name: head[name] for name in MORE if head.get(name) is not None}
            row["state"] = "running" if spec.node in running else "down"
            if spec.id in counts:
                ready, out = counts[spec.id]
                row |= {"messages": ready + out, "messages_ready": ready, "messages_unacknowledged": out}
            rows.append(row)
        return rows

    async def _figures(self, specs: list[QueueSpec], path: list[str]) -> Callable[[QueueSpec], Any]:
        """Return a function that gives a queue's value of a column."""
        if path[0] in HEAD:
            if len(path) == 1 and path[0] in QUICK:
                return attrgetter(path[0])
            return lambda spec: value_of(queue_head(self.control, spec), path)
        found: dict[int, Any] = {}
        for name in self.everyone.running():
            after: int | None = 0
            while after is not None:
                answer = await self.everyone.one(name, "local_queue_figures", {"path": path, "after": after})
                if answer is None:
                    break
                found |= {int(number): value for number, value in answer["figures"].items()}
                after = answer["next"]
        return lambda spec: found.get(spec.id)

    # -- One -----------------------------------------------------------------------------------------------------

    async def queue(self, request: Request) -> Response:
        vhost, name = request.parameters["vhost"], request.parameters["queue"]
        self.rights.check_vhost(request, vhost)
        spec = self.metadata.queues.get((vhost, name))
        if spec is None or is_hidden_queue(name):
            raise not_found()
        query = query_of(request)
        [row] = await self.rows([spec], past_of(request))
        row |= {"consumer_details": await self._consumers(vhost, name), "deliveries": [], "incoming": []}
        if row["state"] == "syncing":
            row["sync_messages"] = await self._sync_messages(vhost, name)
        return json_response(query.shown(row))

    async def _consumers(self, vhost: str, name: str) -> list[Row]:
        """The first of them, of each node."""
        asked = {"vhosts": [vhost], "queue": name, "after": 0}
        answers = await self.everyone.ask("local_consumer_rows", asked)
        return [row for answer in answers.values() for row in answer["rows"]]

    async def _sync_messages(self, vhost: str, name: str) -> int:
        asked = {"vhost": vhost, "only": name, "columns": ["sync_messages"]}
        page = await self.ask("list_queues", **asked)
        value = page["rows"][0][0] if page["rows"] else 0
        return int(value or 0)


def _name(spec: QueueSpec) -> str:
    return spec.name


def _place(spec: QueueSpec) -> tuple[str, str]:
    return spec.vhost, spec.name
