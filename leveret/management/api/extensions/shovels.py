"""`/api/shovels`: the shovels of the cluster, as RabbitMQ's management plugin lists them.

    GET    /api/shovels                              also /api/shovels/{vhost}
    GET    /api/shovels/vhost/{vhost}/{name}
    DELETE /api/shovels/vhost/{vhost}/{name}
    DELETE /api/shovels/vhost/{vhost}/{name}/restart
    PUT    /api/shovels/vhost/{vhost}/{name}/pause   and .../resume, which RabbitMQ does not have

They are made with `PUT /api/parameters/shovel/{vhost}/{name}`. Changing is for policymakers of the vhost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leveret.management.api.common.base import done
from leveret.management.api.extensions.mirror_rings import OwnPathHandlers
from leveret.management.http.http_messages import Request, Response, json_response, not_found
from leveret.metadata.shovel.records import SHOVEL, WorkKey

if TYPE_CHECKING:
    from leveret.management.http.routes import Router


class ShovelHandlers(OwnPathHandlers):
    def add_to(self, router: Router) -> None:
        one = "/api/shovels/vhost/{vhost}/{name}"
        router.add("GET", "/api/shovels", self.shovels)
        router.add("GET", "/api/shovels/{vhost}", self.shovels)
        router.add("GET", one, self.shovel)
        router.add("DELETE", one, self.delete)
        router.add("DELETE", f"{one}/restart", self.restart)
        router.add("PUT", f"{one}/pause", self.pause)
        router.add("PUT", f"{one}/resume", self.resume)

    async def _rows(self, request: Request) -> list[dict[str, Any]]:
        vhosts = set(self.rights.vhosts(request))
        found = await self.ask("shovel_status")
        return [_shown(row) for row in found if row["vhost"] in vhosts]

    async def shovels(self, request: Request) -> Response:
        return await self.listed(request, await self._rows(request))

    async def shovel(self, request: Request) -> Response:
        rows = await self._rows(request)
        found = [row for row in rows if row["name"] == request.parameters["name"]]
        if not found:
            raise not_found()
        return json_response(found[0])

    def _named(self, request: Request) -> dict[str, str]:
        """Return vhost and name of a shovel that the user may change. Raises Problem."""
        vhost, name = request.parameters["vhost"], request.parameters["name"]
        self.rights.check_policymaker(request, vhost)
        if WorkKey(SHOVEL, vhost, name) not in self.metadata.assignments:
            raise not_found()
        return {"vhost": vhost, "name": name}

    async def delete(self, request: Request) -> Response:
        await self.ask("delete_shovel", **self._named(request))
        return done()

    async def restart(self, request: Request) -> Response:
        await self.ask("restart_shovel", **self._named(request))
        return done()

    async def pause(self, request: Request) -> Response:
        await self.ask("pause_shovel", **self._named(request), paused=True)
        return done()

    async def resume(self, request: Request) -> Response:
        await self.ask("pause_shovel", **self._named(request), paused=False)
        return done()


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """Leave out what says nothing, as RabbitMQ does."""
    return {key: value for key, value in row.items() if value is not None and (key != "reason" or value)}
