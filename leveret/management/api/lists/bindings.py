"""`/api/bindings`: what leads where. All of it is in the metadata, of which there may be a million."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import TYPE_CHECKING
from urllib.parse import unquote

from leveret.management.api.common.base import Handlers
from leveret.management.api.common.binding_keys import properties_key
from leveret.management.api.common.listing import Listing, Row, query_of
from leveret.management.api.lists.exchanges import DEFAULT
from leveret.management.http.http_messages import Request, Response, json_response, not_found
from leveret.metadata.definitions import from_table
from leveret.metadata.model.hidden_queues import is_hidden_queue
from leveret.metadata.model.implicit_bindings import implicit_binding
from leveret.metadata.model.records import DestinationKind
from leveret.node.system.time_slices import TimeSlices

if TYPE_CHECKING:
    from leveret.management.app import Management
    from leveret.management.http.routes import Router
    from leveret.metadata.model.records import Binding


class BindingHandlers(Handlers):
    def __init__(self, management: Management, listing: Listing) -> None:
        super().__init__(management)
        self.listing = listing

    def add_to(self, router: Router) -> None:
        router.add("GET", "/api/bindings", self.bindings)
        router.add("GET", "/api/bindings/{vhost}", self.bindings)
        router.add("GET", "/api/bindings/{vhost}/e/{source}/q/{queue}", self.between)
        router.add("GET", "/api/bindings/{vhost}/e/{source}/e/{exchange}", self.between)
        router.add("GET", "/api/bindings/{vhost}/e/{source}/q/{queue}/{properties}", self.binding)
        router.add("GET", "/api/bindings/{vhost}/e/{source}/e/{exchange}/{properties}", self.binding)
        router.add("GET", "/api/queues/{vhost}/{queue}/bindings", self.of_queue)
        router.add("GET", "/api/exchanges/{vhost}/{exchange}/bindings/source", self.from_exchange)
        router.add("GET", "/api/exchanges/{vhost}/{exchange}/bindings/destination", self.to_exchange)

    # -- All -----------------------------------------------------------------------------------------------------

    async def bindings(self, request: Request) -> Response:
        rows = self._all(set(self.rights.vhosts(request)))
        return await self.listing.of_rows(query_of(request), rows, is_paged=False)

    async def _all(self, vhosts: set[str]) -> AsyncIterator[Row]:
        """Yield the bindings of one source after the other; bindings may change meanwhile."""
        slices = TimeSlices()
        for spec in list(self.metadata.queues.values()):
            if spec.vhost in vhosts and not is_hidden_queue(spec.name):
                yield shown(implicit_binding(spec))
            if slices.is_over():
                await slices.rest()
        for group in self.metadata.bindings.groups():
            for binding in group if group.vhost in vhosts else ():
                yield shown(binding)
                if slices.is_over():
                    await slices.rest()

    async def _these(self, request: Request, bindings: Iterable[Binding]) -> Response:
        async def rows() -> AsyncIterator[Row]:
            slices = TimeSlices()
            for binding in bindings:
                yield shown(binding)
                if slices.is_over():
                    await slices.rest()

        return await self.listing.of_rows(query_of(request), rows(), is_paged=False)

    # -- Of one thing --------------------------------------------------------------------------------------------

    async def of_queue(self, request: Request) -> Response:
        vhost, queue = request.parameters["vhost"], request.parameters["queue"]
        self.rights.check_vhost(request, vhost)
        if is_hidden_queue(queue):
            raise not_found()
        return await self._these(request, self.metadata.bindings_to(vhost, "queue", queue))

    async def from_exchange(self, request: Request) -> Response:
        vhost, source = request.parameters["vhost"], exchange_name(request.parameters["exchange"])
        self.rights.check_vhost(request, vhost)
        return await self._these(request, self.metadata.bindings_from(vhost, source))

    async def to_exchange(self, request: Request) -> Response:
        vhost, name = request.parameters["vhost"], exchange_name(request.parameters["exchange"])
        self.rights.check_vhost(request, vhost)
        return await self._these(request, self.metadata.bindings_to(vhost, "exchange", name))

    def _between(self, request: Request) -> Iterator[Binding]:
        given = request.parameters
        self.rights.check_vhost(request, given["vhost"])
        kind: DestinationKind = "queue" if "queue" in given else "exchange"
        name = given["queue"] if kind == "queue" else exchange_name(given["exchange"])
        return self.metadata.bindings_between(given["vhost"], exchange_name(given["source"]), kind, name)

    async def between(self, request: Request) -> Response:
        return await self._these(request, self._between(request))

    async def binding(self, request: Request) -> Response:
        wanted = request.parameters["properties"]
        for binding in self._between(request):
            key = properties_key(binding)
            if wanted in (key, unquote(key, errors="surrogateescape")):  # Quoted as it is, or as part of a path.
                return json_response(query_of(request).shown(shown(binding)))
        raise not_found()


def shown(binding: Binding) -> Row:
    return {
        "source": binding.source,
        "vhost": binding.vhost,
        "destination": binding.destination,
        "destination_type": binding.destination_kind,
        "routing_key": binding.key,
        "arguments": from_table(binding.arguments),
        "properties_key": properties_key(binding),
    }


def exchange_name(name: str) -> str:
    return "" if name == DEFAULT else name
