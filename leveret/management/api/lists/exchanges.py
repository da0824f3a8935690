"""`/api/exchanges`: what exchanges there are, and what came to them, at all nodes together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from leveret.management.api.common.aggregate import AllNodes, added
from leveret.management.api.common.base import Handlers
from leveret.management.api.common.listing import Listing, Row, figures_by_rows, past_of, query_of
from leveret.management.http.http_messages import Request, Response, json_response, not_found
from leveret.metadata.definitions import from_table
from leveret.node.system.time_slices import picked

if TYPE_CHECKING:
    from leveret.management.app import Management
    from leveret.management.http.routes import Router
    from leveret.metadata.model.records import ExchangeSpec

INTERNAL: Final = "rmq-internal"
DEFAULT: Final = "amq.default"  # What stands in paths for the exchange without a name.


class ExchangeHandlers(Handlers):
    def __init__(self, management: Management, listing: Listing) -> None:
        super().__init__(management)
        self.listing = listing
        self.everyone = AllNodes(management)

    def add_to(self, router: Router) -> None:
        router.add("GET", "/api/exchanges", self.exchanges)
        router.add("GET", "/api/exchanges/{vhost}", self.exchanges)
        router.add("GET", "/api/exchanges/{vhost}/{exchange}", self.exchange)

    async def exchanges(self, request: Request) -> Response:
        wanted = set(self.rights.vhosts(request))
        query = query_of(request)
        there = await picked(list(self.metadata.exchanges.values()), lambda spec: spec.vhost in wanted)
        fetch = self._fetcher(past_of(request))

        async def figures(some: list[ExchangeSpec], path: list[str]) -> Callable[[ExchangeSpec], Any]:
            places = {(spec.vhost, spec.name): spec for spec in some}

            async def rows(keys: Sequence[tuple[str, str]]) -> list[Row]:
                return await fetch([places[key] for key in keys])

            found = await figures_by_rows(list(places), path, rows)
            return lambda spec: found[spec.vhost, spec.name]

        chosen, total, filtered = await self.listing.choose(query, there, _name, _place, figures)
        return await self.listing.answer(query, chosen, total, filtered, fetch)

    def _fetcher(self, past: dict[str, list[int]]) -> Callable[[Sequence[ExchangeSpec]], Awaitable[list[Row]]]:
        async def fetch(specs: Sequence[ExchangeSpec]) -> list[Row]:
            stats: dict[tuple[str, str], Row] = {}
            by_vhost: dict[str, list[str]] = {}
            for spec in specs:
                by_vhost.setdefault(spec.vhost, []).append(spec.name)
            for vhost, names in by_vhost.items():
                asked = {"vhost": vhost, "names": names, "past": past}
                answers = (await self.everyone.ask("local_exchange_stats", asked)).values()
                for name in names:
                    told = [answer[name] for answer in answers if name in answer]
                    if told:
                        stats[vhost, name] = added(told)
            return [self._row(spec, stats.get((spec.vhost, spec.name))) for spec in specs]

        return fetch

    def _row(self, spec: ExchangeSpec, stats: Row | None) -> Row:
        row: Row = {
            "name": spec.name,
            "vhost": spec.vhost,
            "type": spec.type,
            "durable": spec.durable,
            "auto_delete": spec.auto_delete,
            "internal": spec.internal,
            "arguments": from_table(spec.arguments),
            "user_who_performed_action": INTERNAL if not spec.name or spec.name.startswith("amq.") else "",
        }
        policy = self.management.server.control.policies.effective("exchange", spec.vhost, spec.name).policy
        if policy is not None:
            row["policy"] = policy
        if stats is not None:
            row["message_stats"] = stats
        return row

    async def exchange(self, request: Request) -> Response:
        vhost, name = request.parameters["vhost"], request.parameters["exchange"]
        self.rights.check_vhost(request, vhost)
        spec = self.metadata.exchanges.get((vhost, "" if name == DEFAULT else name))
        if spec is None:
            raise not_found()
        [row] = await self._fetcher(past_of(request))([spec])
        return json_response(query_of(request).shown({**row, "incoming": [], "outgoing": []}))


def _name(spec: ExchangeSpec) -> str:
    return spec.name


def _place(spec: ExchangeSpec) -> tuple[str, str]:
    return spec.vhost, spec.name
