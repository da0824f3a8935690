"""`/api/consumers`: who consumes, at any node."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from leveret.management.api.common.aggregate import AllNodes
from leveret.management.api.common.base import Handlers
from leveret.management.api.common.listing import Listing, Row, query_of
from leveret.management.http.http_messages import Request, Response

if TYPE_CHECKING:
    from leveret.management.app import Management
    from leveret.management.http.routes import Router


class ConsumerHandlers(Handlers):
    def __init__(self, management: Management, listing: Listing) -> None:
        super().__init__(management)
        self.listing = listing
        self.everyone = AllNodes(management)

    def add_to(self, router: Router) -> None:
        router.add("GET", "/api/consumers", self.consumers)
        router.add("GET", "/api/consumers/{vhost}", self.consumers)

    async def consumers(self, request: Request) -> Response:
        rows = consumer_rows(self.everyone, self.rights.vhosts(request))
        return await self.listing.of_rows(query_of(request), rows, is_paged=False)


async def consumer_rows(everyone: AllNodes, vhosts: list[str]) -> AsyncIterator[Row]:
    """Yield the consumers of these vhosts, node by node; a node that does not answer is left out."""
    for name in everyone.running():
        after: int | None = 0
        while after is not None:
            answer = await everyone.one(name, "local_consumer_rows", {"vhosts": vhosts, "after": after})
            if answer is None:
                break
            for row in answer["rows"]:
                yield row
            after = answer["next"]
