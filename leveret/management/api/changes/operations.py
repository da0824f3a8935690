"""What an operator does now and then: close connections, spread masters over the nodes, look at what is switched on.

*Rebalancing* is done in the background, as RabbitMQ does it: see `leveret.node.admin.nodes.rebalancer`. A body, which
RabbitMQ does not take, says how; with `dry_run` it is answered with what would be done.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from leveret.management.api.common import request_body
from leveret.management.api.common.base import Handlers, NoAnswer, done
from leveret.management.http.auth import refused
from leveret.management.http.http_messages import Problem, bad_request, json_response, not_found
from leveret.node.admin.nodes.diagnostics import FEATURE_FLAGS
from leveret.node.admin.nodes.rebalance import WANTED
from leveret.node.admin.queues.lists import running_nodes

if TYPE_CHECKING:
    from leveret.management.app import Management
    from leveret.management.http.http_messages import Request, Response
    from leveret.management.http.routes import Router

logger = logging.getLogger("leveret.management")

CLOSED: Final = "Closed via management plugin"
REASON_CHARACTERS_MAX: Final = 200
BODY_BYTES_MAX: Final = 16 << 10  # Of what a rebalance is asked for.


class OperationHandlers(Handlers):
    def __init__(self, management: Management) -> None:
        super().__init__(management)
        self.rebalancing: asyncio.Task[None] | None = None
        # The logins when somebody last cleared their counts.
        self.cleared = dict.fromkeys(("amqp091", "mqtt", "stomp"), (0, 0))

    def add_to(self, router: Router) -> None:
        router.add("DELETE", "/api/connections/{connection}", self.close_connection)
        router.add("DELETE", "/api/connections/username/{user}", self.close_connections)
        router.add("POST", "/api/rebalance/queues", self.rebalance, BODY_BYTES_MAX)
        router.add("GET", "/api/rebalance", self.rebalance_status)
        router.add("GET", "/api/feature-flags", self.feature_flags)
        router.add("PUT", "/api/feature-flags/{flag}/enable", self.enable)
        router.add("GET", "/api/extensions", self.extensions)
        router.add("DELETE", "/api/reset", self.reset)
        router.add("DELETE", "/api/reset/{node}", self.reset)
        router.add("GET", "/api/auth/attempts/{node}", self.attempts)
        router.add("DELETE", "/api/auth/attempts/{node}", self.clear_attempts)
        router.add("GET", "/api/auth/attempts/{node}/source", self.attempts_by_source)
        router.add("DELETE", "/api/auth/attempts/{node}/source", self.clear_attempts)

    # -- Connections ---------------------------------------------------------------------------------------------

    async def close_connection(self, request: Request) -> Response:
        """One's own, or, for administrators, anybody's."""
        self.rights.check(request)
        name, reason = request.parameters["connection"], _reason(request)
        found = await self._named(name)
        if not found:
            raise not_found()
        if not self.rights.is_administrator(request) and any(user != request.user for _, _, user in found):
            raise refused("User not authorised to access object")
        for node, number, _ in found:
            await self._close_at(node, number=number, reason=reason)
        return done()

    async def _named(self, name: str) -> list[tuple[str, int, str]]:
        """The connections of that name: node, number, user. A node that does not answer has none to close."""

        async def at(node: str) -> list[tuple[str, int, str]]:
            try:
                rows = await self.ask_node(node, "local_connections_named", name=name)
            except NoAnswer as error:
                logger.info("%s", error)
                return []
            return [(node, row["number"], row["user"]) for row in rows]

        nodes = running_nodes(self.management.server.control)
        return [one for rows in await asyncio.gather(*map(at, nodes)) for one in rows]

    async def _close_at(self, node: str, **arguments: Any) -> None:
        try:
            await self.ask_node(node, "local_close_connections", **arguments)
        except NoAnswer as error:
            raise Problem(503, "service_unavailable", str(error)) from None

    async def close_connections(self, request: Request) -> Response:
        """All of a user."""
        self.rights.check(request)
        user = request.parameters["user"]
        if user != request.user and not self.rights.is_administrator(request):
            raise refused("User not authorised to access object")
        await self.ask("close_connections", user=user, reason=_reason(request))
        return done()

    # -- Masters -------------------------------------------------------------------------------------------------

    async def rebalance(self, request: Request) -> Response:
        """In the background, as in RabbitMQ, where nothing else can be said. A dry run is answered with the plan."""
        self.rights.check_administrator(request)
        asked = await request_body.object_of(request)
        wrong = [name for name, value in asked.items() if name not in WANTED or not WANTED[name].fits(value)]
        if wrong:
            known = WANTED.get(wrong[0])
            raise bad_request(f"{wrong[0]} must be {known.words}" if known else f"there is no {wrong[0]} here")
        if asked.get("dry_run"):
            return json_response(await self.ask("rebalance", **asked))
        if self.rebalancing is None or self.rebalancing.done():
            self.rebalancing = self.node.loop.create_task(self._rebalance(asked))
            self.management.background.add(self.rebalancing)
            self.rebalancing.add_done_callback(self.management.background.discard)
        return done()

    async def _rebalance(self, asked: dict[str, Any]) -> None:
        try:
            await self.ask("rebalance", **asked)
        except Problem as problem:
            logger.warning("rebalancing: %s", problem)

    async def rebalance_status(self, request: Request) -> Response:
        self.rights.check_monitor(request)
        return json_response(await self.ask("rebalance_status"))

    # -- What there is -------------------------------------------------------------------------------------------

    async def feature_flags(self, request: Request) -> Response:
        self.rights.check_administrator(request)
        return await self.listed(request, await self.ask("feature_flags"))

    async def enable(self, request: Request) -> Response:
        """All are enabled."""
        self.rights.check_administrator(request)
        if request.parameters["flag"] not in FEATURE_FLAGS:
            raise bad_request("unsupported")
        return done()

    async def extensions(self, request: Request) -> Response:
        """Scripts that RabbitMQ's plugins add to its page; there are none."""
        self.rights.check(request)
        return json_response([])

    async def reset(self, request: Request) -> Response:
        """RabbitMQ forgets its statistics then. Here counts are those of the queues and channels themselves."""
        self.rights.check_administrator(request)
        raise bad_request("statistics are not kept apart from what they count, so there is nothing to reset")

    # -- Logins --------------------------------------------------------------------------------------------------

    def _check_here(self, request: Request) -> None:
        self.rights.check_monitor(request)
        node = request.parameters["node"]
        if node not in {one.name for one in self.node.cluster.members()}:
            raise not_found()
        if node != self.node.settings.node_name:
            raise bad_request(f"logins are counted where they are tried: ask {node} itself")

    async def attempts(self, request: Request) -> Response:
        self._check_here(request)
        counts = self.management.gate.attempts
        over_http = {"protocol": "http", "auth_attempts": sum(counts.values()), **counts}
        found = [over_http]
        for protocol, now in self._logins().items():
            tried, bad = (count - before for count, before in zip(now, self.cleared[protocol], strict=True))
            if tried:
                found.append(
                    {
                        "protocol": protocol,
                        "auth_attempts": tried,
                        "auth_attempts_failed": bad,
                        "auth_attempts_succeeded": tried - bad,
                    }
                )
        return json_response(found)

    def _logins(self) -> dict[str, tuple[int, int]]:
        """Tried, and refused, since the start; Prometheus has those, and they never go back."""
        totals = self.node.broker.totals
        return {
            "amqp091": (totals.logins, totals.logins_refused),
            "mqtt": (totals.mqtt_logins, totals.mqtt_logins_refused),
            "stomp": (totals.stomp_logins, totals.stomp_logins_refused),
        }

    async def clear_attempts(self, request: Request) -> Response:
        self._check_here(request)
        self.rights.check_administrator(request)
        self.management.gate.attempts.update(dict.fromkeys(self.management.gate.attempts, 0))
        self.cleared = self._logins()
        return done()

    async def attempts_by_source(self, request: Request) -> Response:
        """RabbitMQ counts by address only if it is told to, and nothing can tell this node to."""
        self._check_here(request)
        return json_response([])


def _reason(request: Request) -> str:
    return request.headers.get("x-reason", "")[:REASON_CHARACTERS_MAX] or CLOSED
