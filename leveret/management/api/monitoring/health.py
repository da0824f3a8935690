"""Health checks: 200 and `ok`, or 503 and what is wrong.

They speak of the node that is asked; whoever wants to know of another asks that one. Load balancers ask often, so
nothing here asks other nodes, but for `healthchecks/node/{node}`.
"""

from __future__ import annotations

import datetime
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from leveret.management.api.common.base import Handlers, NoAnswer
from leveret.management.api.common.internal_client import Closed, Session
from leveret.management.http.auth import refused
from leveret.management.http.http_messages import Response, bad_request, json_response, not_found
from leveret.management.http.pause_check import paused_text
from leveret.node.admin.nodes.cluster import listeners, local_alarms
from leveret.protocol import methods as m
from leveret.protocol.properties import Properties

if TYPE_CHECKING:
    from leveret.management.http.http_messages import Request
    from leveret.management.http.routes import Router

UNITS: Final = {"days": 1, "weeks": 7, "months": 30, "years": 365}
COUNT_MAX: Final = 10_000
ALIVENESS: Final = "aliveness-test"
TRIES: Final = 3  # The message of another test may be found in its place.
PROTOCOLS: Final = {"amqp091": "amqp", "amqp0.9.1": "amqp", "amqps": "amqp/ssl", "http/ssl": "https"}
PATH: Final = "/api/health/checks/"
Check = Callable[["Request"], Awaitable[Response]]


class HealthHandlers(Handlers):
    def add_to(self, router: Router) -> None:
        router.add("GET", "/api/aliveness-test/{vhost}", self.in_service(self.aliveness))
        router.add("GET", "/api/healthchecks/node", self.in_service(self.node_check))
        router.add("GET", "/api/healthchecks/node/{node}", self.unless_paused(self.node_check))
        router.add("GET", PATH + "is-in-service", self.in_service(self.virtual_hosts))
        router.add("GET", PATH + "ready-to-serve-clients", self.in_service(self.virtual_hosts))
        router.add("GET", PATH + "alarms", self.unless_paused(self.alarms))
        router.add("GET", PATH + "local-alarms", self.unless_paused(self.local_alarms))
        router.add("GET", PATH + "certificate-expiration/{count}/{unit}", self.unless_paused(self.certificates))
        router.add("GET", PATH + "port-listener/{port}", self.unless_paused(self.port))
        router.add("GET", PATH + "protocol-listener/{protocol}", self.unless_paused(self.protocol))
        router.add("GET", PATH + "virtual-hosts", self.unless_paused(self.virtual_hosts))
        router.add("GET", PATH + "node-is-mirror-sync-critical", self.unless_paused(self.mirror_critical))
        router.add("GET", PATH + "node-is-quorum-critical", self.unless_paused(self.quorum_critical))

    def unless_paused(self, check: Check) -> Check:
        """A paused node is healthy in no respect: whoever asks is to send clients elsewhere."""

        async def checked(request: Request) -> Response:
            if not self.node.pausing.paused:
                return await check(request)
            self.rights.check(request)
            return _failed(paused_text(self.node))

        return checked

    def in_service(self, check: Check) -> Check:
        """A node in maintenance is healthy, and yet nobody should be sent there. Checks that say whether it may be
        stopped answer as always."""

        async def checked(request: Request) -> Response:
            if self.node.maintenance.state is None:
                return await check(request)
            self.rights.check(request)
            return _failed("this node is in maintenance, and takes no clients")

        return self.unless_paused(checked)

    # -- A message comes through ---------------------------------------------------------------------------------

    async def aliveness(self, request: Request) -> Response:
        """Declare a queue, publish, get. The queue stays, as RabbitMQ's does: many ask every few seconds."""
        vhost = request.parameters["vhost"]
        self.rights.check_entry(request, vhost)
        try:
            async with Session(self.node, request, vhost) as session:
                await session.ask(m.QueueDeclare(queue=ALIVENESS), m.QueueDeclareOk)
                await session.publish("", ALIVENESS, Properties(), b"test_message")
                for _ in range(TRIES):
                    got = await session.get(ALIVENESS)
                    if got is not None:
                        session.say(m.BasicAck(got.ok.delivery_tag))
                        return _fine()
        except Closed as closed:
            raise refused(closed.text) if closed.code == 403 else bad_request(closed.text) from None
        return _failed("aliveness-test message could not be read back")

    # -- The node ------------------------------------------------------------------------------------------------

    async def node_check(self, request: Request) -> Response:
        self.rights.check(request)
        name = request.parameters.get("node", self.node.settings.node_name)
        control = self.management.server.control
        if control.member(name) is None:
            raise not_found()
        try:
            found = await self.ask_node(name, "alarms")
        except NoAnswer as error:
            return _failed(str(error), 200)  # RabbitMQ's words are in the body alone; the checks below replace it.
        alarms = [one["resource"] for one in found["alarms"]]
        return _failed(f"resource alarm(s) in effect:{alarms}", 200) if alarms else _fine()

    async def alarms(self, request: Request) -> Response:
        self.rights.check(request)
        found = await self.ask("all_alarms")
        alarms = [*found["local"], *found["global"]]
        return _failed("There are alarms in effect in the cluster", alarms=_shown(alarms)) if alarms else _fine()

    async def local_alarms(self, request: Request) -> Response:
        self.rights.check(request)
        alarms = local_alarms(self.management.server.control)
        return _failed("There are alarms in effect on the node", alarms=_shown(alarms)) if alarms else _fine()

    async def virtual_hosts(self, request: Request) -> Response:
        """Always succeeds: a node that answers serves all its vhosts."""
        self.rights.check(request)
        return _fine()

    # -- Listeners -----------------------------------------------------------------------------------------------

    async def port(self, request: Request) -> Response:
        self.rights.check(request)
        text = request.parameters["port"]
        if not (text.isascii() and text.isdecimal()) or len(text) > 5:
            raise bad_request("Invalid port")
        ports = [one["port"] for one in listeners(self.management.server.control)]
        if int(text) not in ports:
            return _failed("No active listener", missing=int(text), ports=ports)
        return _fine(port=int(text))

    async def protocol(self, request: Request) -> Response:
        self.rights.check(request)
        given = request.parameters["protocol"].lower()
        wanted = PROTOCOLS.get(given, given)
        protocols = list(dict.fromkeys(one["protocol"] for one in listeners(self.management.server.control)))
        if wanted not in protocols:
            return _failed("No active listener", missing=wanted, protocols=protocols)
        return _fine(protocol=wanted)

    async def certificates(self, request: Request) -> Response:
        self.rights.check(request)
        unit, count = request.parameters["unit"], request.parameters["count"]
        if unit not in UNITS:
            raise bad_request(f"Time unit not recognised. Supported units: {', '.join(UNITS)}.")
        if not (count.isascii() and count.isdecimal()) or len(count) > 5 or int(count) > COUNT_MAX:
            raise bad_request("Invalid expiration value.")
        until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=UNITS[unit] * int(count))
        found = (await self.ask("tls"))["certificates"]
        ending = [one for one in found if one["error"] or datetime.datetime.fromisoformat(one["not_after"]) < until]
        if not ending:
            return _fine()
        expired = [
            {"name": one["name"], "certfile": one["file"], "certfile_expires_on": [one["not_after"] or one["error"]]}
            for one in ending
        ]
        return _failed("Certificates expiring", expired=expired)

    # -- Without it ----------------------------------------------------------------------------------------------

    async def mirror_critical(self, request: Request) -> Response:
        self.rights.check(request)
        found = await self.ask("mirror_sync_critical")
        if found["single"]:
            return _fine(reason="single node cluster")
        if not found["queues"]:
            return _fine()
        queues = [_queue(one) for one in found["queues"]]
        return _failed("There are classic mirrored queues without online synchronised mirrors", queues=queues)

    async def quorum_critical(self, request: Request) -> Response:
        self.rights.check(request)
        found = await self.ask("quorum_critical")
        if found["single"]:
            return _fine(reason="single node cluster")
        if found["queues"]:
            queues = [_queue(one) for one in found["queues"]]
            return _failed("There are quorum queues that would lose their quorum", queues=queues)
        if found["left"] < found["majority"]:
            left = f"{found['left']} of {found['voters']} nodes would run, and changes need {found['majority']}"
            return _failed(f"The cluster would lose its majority: {left}", queues=[])
        return _fine()


def _fine(**more: object) -> Response:
    return json_response({"status": "ok", **more})


def _failed(reason: str, status: int = 503, **more: object) -> Response:
    return json_response({"status": "failed", "reason": reason, **more}, status)


def _shown(alarms: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"node": one["node"], "resource": one["resource"]} for one in alarms]


def _queue(one: dict[str, Any]) -> dict[str, Any]:
    named = f"queue '{one['name']}' in vhost '{one['vhost']}'"
    return {"readable_name": named, "name": one["name"], "virtual_host": one["vhost"], "type": "queue"}
