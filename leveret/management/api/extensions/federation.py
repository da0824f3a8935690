"""`/api/federation-links`: the federation links of the cluster, as RabbitMQ's management plugin lists them.

    GET    /api/federation-links                    also /api/federation-links/{vhost}
    GET    /api/federation-links/state/down/        also /api/federation-links/{vhost}/state/down
    DELETE /api/federation-links/vhost/{vhost}/{id}/{node}/restart

Upstreams are made with `PUT /api/parameters/federation-upstream/{vhost}/{name}`, and links by policies. Beginning one
anew is for policymakers of the vhost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from leveret.management.api.common.base import done
from leveret.management.api.extensions.mirror_rings import OwnPathHandlers
from leveret.management.http.http_messages import Request, Response, not_found
from leveret.metadata.federation.links import link_id

if TYPE_CHECKING:
    from leveret.management.http.routes import Router

UP: Final = ("running", "starting")


class FederationHandlers(OwnPathHandlers):
    def add_to(self, router: Router) -> None:
        links = "/api/federation-links"
        router.add("GET", links, self.links)
        router.add("GET", f"{links}/state/down", self.down)
        router.add("GET", f"{links}/{{vhost}}", self.links)
        router.add("GET", f"{links}/{{vhost}}/state/down", self.down)
        router.add("DELETE", f"{links}/vhost/{{vhost}}/{{id}}/{{node}}/restart", self.restart)

    async def _rows(self, request: Request) -> list[dict[str, Any]]:
        vhosts = set(self.rights.vhosts(request))
        found = await self.ask("federation_status")
        return [_shown(row) for row in found if row["vhost"] in vhosts]

    async def links(self, request: Request) -> Response:
        return await self.listed(request, await self._rows(request))

    async def down(self, request: Request) -> Response:
        return await self.listed(request, [row for row in await self._rows(request) if row["status"] not in UP])

    async def restart(self, request: Request) -> Response:
        vhost, wanted = request.parameters["vhost"], request.parameters["id"]
        self.rights.check_policymaker(request, vhost)
        if not any(key.vhost == vhost and link_id(key) == wanted for key in self.metadata.links):
            raise not_found()
        await self.ask("restart_federation_link", id=wanted)
        return done()


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """Leave out what says nothing, as RabbitMQ does, and name the channel of a link that runs."""
    shown = {key: value for key, value in row.items() if value not in (None, "")}
    if row["local_connection"]:
        shown["local_channel"] = {
            "name": f"{row['local_connection']} (1)",
            "connection_name": row["local_connection"],
            "number": 1,
            "node": row["node"],
            "vhost": row["vhost"],
        }
    return shown
