"""What RabbitMQ's HTTP API has no words for: the ring of a mirrored queue, and who of the cluster is there.

`/api/leveret/cluster` says what this node knows without asking anybody (members, majority, alarms): the page asks for
it every second or two, and a node that hangs must not make that slow. `/api/leveret/rings` counts the mirrored queues
and names those in which something is missing, by the views alone. `/api/leveret/rings/{vhost}/{queue}` asks every
member of one ring how far it is. The other two have another copy lead: `move` loses nothing, `promote` may, and says
what before it is done.

A walk over all queues is done in slices, and gives way to the broker between them.
"""

from __future__ import annotations

from bisect import insort
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from leveret.management.api.common.base import Handlers
from leveret.management.http.auth import refused
from leveret.management.http.http_messages import Request, Response, bad_request, json_response, not_found
from leveret.metadata.model.hidden_queues import is_hidden_queue
from leveret.metadata.model.maintenance_mark import state_of
from leveret.metadata.rules.ha_policy import is_quorum, is_stream
from leveret.metadata.rules.permissions import refused_text
from leveret.node.admin.common.listing_columns import MIRRORS
from leveret.node.system.time_slices import TimeSlices

if TYPE_CHECKING:
    from leveret.management.http.routes import Router
    from leveret.metadata.model.records import QueueSpec

RINGS_MAX: Final = 500  # In one answer.
TRIES: Final = 3  # To count them while all the same nodes run.
NODE_CHARACTERS_MAX: Final = 255


class OwnPathHandlers(Handlers):
    """Base of the handlers of paths that RabbitMQ does not have."""

    def spec(self, request: Request) -> QueueSpec:
        """The queue that the path names. Raises Problem."""
        vhost, name = request.parameters["vhost"], request.parameters["queue"]
        self.rights.check_vhost(request, vhost)
        spec = self.node.metadata.queues.get((vhost, name))
        if spec is None or is_hidden_queue(name):
            raise not_found()
        return spec

    def check_configure(self, request: Request, vhost: str, name: str) -> None:
        """Raises Problem."""
        if not self.node.broker.permissions.check(request.user, vhost, "queue", name, "configure"):
            raise refused(refused_text(request.user, vhost, "queue", name))

    def running(self) -> frozenset[str]:
        return frozenset(one.name for one in self.node.cluster.members() if one.running)


class RingHandlers(OwnPathHandlers):
    def add_to(self, router: Router) -> None:
        router.add("GET", "/api/leveret/cluster", self.cluster)
        router.add("GET", "/api/leveret/rings", self.rings)
        router.add("GET", "/api/leveret/rings/{vhost}/{queue}", self.ring)
        router.add("POST", "/api/leveret/rings/{vhost}/{queue}/move", self.move)
        router.add("POST", "/api/leveret/rings/{vhost}/{queue}/promote", self.promote)

    # -- The cluster ---------------------------------------------------------------------------------------------

    async def cluster(self, request: Request) -> Response:
        self.rights.check(request)
        cluster, alarms = self.node.cluster, self.node.alarms
        me = self.management.server.settings.node_name
        short = {me: alarms.own(), **alarms.others}
        members = cluster.members()
        answer: dict[str, Any] = {
            "node": me,
            "cluster_name": self.node.metadata.global_parameters.get("cluster_name") or me,
            "leader": cluster.leader,
            "has_majority": cluster.has_majority,
            "waiting_for": cluster.two_nodes.waiting_for(),
            "members": [
                {
                    "name": one.name,
                    "running": one.running,
                    "voter": one.voter,
                    "paused": self.node.pausing.is_paused(one.name),
                    "maintenance": state_of(self.node.metadata, one.name),
                }
                for one in members
            ],
            "witnesses": [
                {"name": one.name, "running": one.running, "voter": one.voter} for one in cluster.attending()
            ],
            "detached": self.node.broker.detachment.figures(),
            "spooled": sum(spool.count for spool in self.node.broker.spools.active),
            "alarms": [
                {"node": name, "resource": resource} for name in sorted(short) for resource in sorted(short[name])
            ],
        }
        return json_response(answer)

    # -- Rings ---------------------------------------------------------------------------------------------------

    async def rings(self, request: Request) -> Response:
        """Count rings by their health, and list the first whose queue's name contains `name`, unhealthy ones first."""
        self.rights.check(request)
        wanted, vhost = request.asked("name") or "", request.asked("vhost")
        most = request.number("limit", 50, 1, RINGS_MAX)
        for _ in range(TRIES):
            running = self.running()
            answer = await self._count_rings(request, wanted, vhost, most, running)
            if running == self.running():
                break  # Else a node was lost meanwhile, and what was counted before is no longer so.
        return json_response(answer)

    async def _count_rings(
        self, request: Request, wanted: str, vhost: str | None, most: int, running: frozenset[str]
    ) -> dict[str, Any]:
        queues, total = self.node.metadata.queues, 0
        troubled: list[tuple[str, str, QueueSpec]] = []  # The first by name so far, in order: not more than are shown.
        sound: list[tuple[str, str, QueueSpec]] = []
        counts = dict.fromkeys(("sound", "unsynchronised", "down"), 0)
        seen: dict[str, bool] = {}
        async for key in TimeSlices().each(list(queues)):
            spec = queues.get(key)
            if spec is None or spec.view is None or is_hidden_queue(spec.name) or (vhost and spec.vhost != vhost):
                continue
            if self._is_plain(spec) or not seen.setdefault(spec.vhost, self.rights.may_see(request, spec.vhost)):
                continue
            total += 1
            health = _health(spec, running)
            counts[health] += 1
            there = sound if health == "sound" else troubled
            if wanted in spec.name and (len(there) < most or (spec.name, spec.vhost) < there[-1][:2]):
                insort(there, (spec.name, spec.vhost, spec), key=itemgetter(0, 1))
                del there[most:]
        shown = [spec for _, _, spec in [*troubled, *sound][:most]]
        rings = [{**_outline(spec, running), "health": _health(spec, running)} for spec in shown]
        return {"total": total, **counts, "rings": rings}

    def _is_plain(self, spec: QueueSpec) -> bool:
        """Return whether a queue has no mirrors and is to have none, as after its policy was deleted."""
        member_changes = self.node.broker.member_changes
        return member_changes is not None and member_changes.is_plain(spec)

    async def ring(self, request: Request) -> Response:
        spec = self.spec(request)
        if spec.view is None or self._is_plain(spec):
            outline = _outline(spec, self.running())
            return json_response({**outline, "id": spec.id, "durable": spec.durable, "mirrored": False})
        asked = {"vhost": spec.vhost, "only": spec.name, "columns": list(MIRRORS), "after": None}
        told = await self.ask("mirror_status_rows", **asked)
        rows = [dict(zip(MIRRORS, row, strict=True)) for row in told["rows"]]
        # Looked up now: a node that was asked may have been lost before it answered, and another one leads the queue.
        running = self.running()
        answer = {**_outline(spec, running), "id": spec.id, "durable": spec.durable}
        now = self.node.metadata.queues.get((spec.vhost, spec.name), spec)
        view = now.view or spec.view
        answer |= {
            "mirrored": True,
            "epoch": view.epoch,
            "version": view.version,
            "master": now.node,
            "health": _health(now, running),
            "members": [
                {
                    "node": row["node"],
                    "role": row["role"],
                    "state": row["state"],
                    "running": row["node"] in running,
                    "in_sync": view.disk_of(row["node"]) is not None,
                    **{key: None if row[key] == "" else row[key] for key in MIRRORS[5:]},
                }
                for row in rows
            ],
        }
        return json_response(answer)

    # -- Another master ------------------------------------------------------------------------------------------

    async def _target(self, request: Request) -> tuple[QueueSpec, str, dict[str, Any]]:
        """Raises Problem. Who may configure a queue may say where it is led."""
        spec = self.spec(request)
        self.check_configure(request, spec.vhost, spec.name)
        asked = await request.json()
        node = asked.get("node")
        if not isinstance(node, str) or not 0 < len(node) <= NODE_CHARACTERS_MAX:
            raise bad_request("node must name a member of the cluster")
        return spec, node, asked

    async def move(self, request: Request) -> Response:
        spec, node, _ = await self._target(request)
        await self.ask("move_queue_master", vhost=spec.vhost, name=spec.name, node=node)
        return Response(204)

    async def promote(self, request: Request) -> Response:
        """Tell what a forced promotion would lose; with `confirmed`, promote."""
        spec, node, asked = await self._target(request)
        confirmed = asked.get("confirmed", False)
        if not isinstance(confirmed, bool):
            raise bad_request("confirmed must be true or false")
        told = await self.ask("promote_queue", vhost=spec.vhost, name=spec.name, node=node, confirmed=confirmed)
        return json_response(told)


def _outline(spec: QueueSpec, running: frozenset[str]) -> dict[str, Any]:
    """Return what the metadata knows about a queue's copies."""
    in_sync = {spec.node} if spec.view is None else dict(spec.view.in_sync).keys()
    return {
        "vhost": spec.vhost,
        "name": spec.name,
        "type": "stream" if is_stream(spec.arguments) else "quorum" if is_quorum(spec.arguments) else "classic",
        "master": spec.node,
        "members": [
            {
                "node": name,
                "role": "master" if name == spec.node else "mirror",
                "running": name in running,
                "in_sync": name in in_sync,
            }
            for name in ((spec.node,) if spec.view is None else spec.view.order())
        ],
    }


def _health(spec: QueueSpec, running: frozenset[str]) -> str:
    """`sound`: every member runs and has all messages. `down`: its master does not run."""
    view = spec.view
    assert view is not None
    if spec.node not in running:
        return "down"
    complete = len(view.in_sync) == len(view.ring) and running.issuperset(view.ring)
    return "sound" if complete else "unsynchronised"
