"""`/api/leveret/spools`: what nodes keep for queues that they cannot reach, and whether that is a reason to look."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from leveret.management.api.extensions.mirror_rings import OwnPathHandlers
from leveret.management.http.http_messages import Request, Response, json_response
from leveret.node.admin.common.listing_columns import SPOOLS

if TYPE_CHECKING:
    from leveret.management.http.routes import Router

SPOOLS_MAX: Final = 1_000


class SpoolHandlers(OwnPathHandlers):
    def add_to(self, router: Router) -> None:
        router.add("GET", "/api/leveret/spools", self.spools)

    async def spools(self, request: Request) -> Response:
        """List spools of queues that the user may see, with the alarms of this node."""
        self.rights.check(request)
        found: list[dict[str, Any]] = []
        missing: set[str] = set()
        after: dict[str, Any] | None = None
        while True:
            page = await self.ask("list_spools", columns=list(SPOOLS), after=after)
            rows = (dict(zip(SPOOLS, row, strict=True)) for row in page["rows"])
            found += (row for row in rows if self.rights.may_see(request, row["vhost"]))
            missing.update(page["missing"])
            after = page["next"]
            if after is None or len(found) > SPOOLS_MAX:
                break
        spools = self.node.broker.spools
        answer = {
            "spools": found[:SPOOLS_MAX],
            "more": len(found) > SPOOLS_MAX,
            "missing": sorted(missing),
            "alarms": spools.alarms,
            "bytes": spools.content_bytes,
            "limit": spools.content_bytes_max,
            "dropped": spools.dropped,
            "waited_for_disk": spools.waited,
        }
        return json_response(answer)
