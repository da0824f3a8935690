"""Queues as data: `/api/data` reads them in bulk, `/api/leases` works with leases. See docs/data.md.

A node answers for the queues that it has a copy of. Of the others it answers 421, with the management URLs of those
that have one, and the client goes there: messages do not pass through a node that does not have them.

How much is read at once is bounded three times: an answer has no more than `SHEET_BYTES_MAX` of contents (unless one
message alone has), so many answers are under way at most (`ANSWERS_MAX`, from the read until the client has taken it),
and the log is asked for few of them at a time (`leveret.node.stats.range_reads`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from leveret.base.safe_regex import BadPattern, filter_of
from leveret.broker.delivery.answers import unreachable
from leveret.broker.queue.leases import TIMEOUT_MS_MAX, ack_lease, open_lease, release_lease, take_lease
from leveret.data.sheet import MEDIA_TYPE
from leveret.management.http.http_messages import Problem, Request, Response, bad_request, json_bytes, json_response
from leveret.management.http.pause_check import check_serving
from leveret.metadata.model.hidden_queues import is_hidden_queue
from leveret.metadata.model.refusals import Refusal
from leveret.metadata.rules.ha_policy import is_quorum, is_stream
from leveret.node.admin.common.command import NoAnswer, Refused
from leveret.node.admin.statistics.peer_data import lease_row
from leveret.node.stats.range_reads import Elsewhere, Unreadable
from leveret.node.system.time_slices import TimeSlices, picked

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.broker.queue.lease import LeaseView
    from leveret.broker.queue.local_queue import LocalQueue
    from leveret.management.app import Management
    from leveret.management.http.routes import Router
    from leveret.metadata.model.records import QueueSpec

SHEET_BYTES_MAX: Final = 8 << 20
ANSWERS_MAX: Final = 8
BODY_BYTES_MAX: Final = 16 << 10  # Of what is asked about a lease.
NUMBER_MAX: Final = (1 << 63) - 1
WAIT_S_MAX: Final = 60.0
RANGES_MAX: Final = 50_000  # In one answer.
QUEUES_MAX: Final = 10_000  # In one answer.
PATTERN_CHARACTERS_MAX: Final = 1_000
STATUS_OF: Final = {403: 401, 404: 404, 405: 409, 406: 400, 530: 423, 540: 400, 311: 400}


class DataHandlers:
    def __init__(self, management: Management) -> None:
        self.management = management
        self.node = management.node
        self.gate = management.gate
        self.answers = asyncio.Semaphore(ANSWERS_MAX)

    def add_to(self, router: Router) -> None:
        router.add("GET", "/api/data/{vhost}/queues", self.queues)
        router.add("GET", "/api/data/{vhost}/{queue}/range", self.range)
        router.add("GET", "/api/data/{vhost}/{queue}/numbers", self.numbers)
        router.add("GET", "/api/data/{vhost}/{queue}/at", self.at)
        router.add("GET", "/api/data/{vhost}/{queue}/wait", self.wait)
        router.add("GET", "/api/leases", self.leases)
        router.add("GET", "/api/leases/{vhost}", self.leases)
        router.add("GET", "/api/leases/{vhost}/{queue}", self.leases)
        router.add("PUT", "/api/leases/{vhost}/{queue}/{name}", self.open_lease, BODY_BYTES_MAX)
        router.add("POST", "/api/leases/{vhost}/{queue}/{name}/take", self.take, BODY_BYTES_MAX)
        router.add("POST", "/api/leases/{vhost}/{queue}/{name}/ack", self.ack, BODY_BYTES_MAX)
        router.add("DELETE", "/api/leases/{vhost}/{queue}/{name}", self.release)

    # -- Finding queues ------------------------------------------------------------------------------------------

    def _spec(self, request: Request) -> QueueSpec:
        """The queue that the path names, which the user may read. Raises Problem."""
        vhost, name = request.parameters["vhost"], request.parameters["queue"]
        self.gate.check_vhost(request, vhost)
        check_serving(self.node)
        spec = self.node.metadata.queues.get((vhost, name))
        if spec is None or is_hidden_queue(name):
            raise Problem(404, "Object Not Found", f"Not Found: queue '{name}'")  # Of several, this one.
        self.gate.check_read(request, spec)
        return spec

    async def _named(self, request: Request, vhost: str) -> list[QueueSpec]:
        """Return the queues that the query names, or all, as far as the user may read them."""
        names = [value for key, value in request.query if key == "name"]
        pattern = request.asked("pattern")
        queues = self.node.metadata.queues
        if names and pattern is not None:
            raise bad_request("give either names or a pattern")
        if names:
            request.parameters["queue"] = ""
            specs = []
            for name in dict.fromkeys(names):
                request.parameters["queue"] = name
                specs.append(self._spec(request))
            return specs
        if pattern is not None and len(pattern) > PATTERN_CHARACTERS_MAX:
            raise bad_request(f"a pattern has at most {PATTERN_CHARACTERS_MAX} characters")
        try:
            matches = filter_of(".*" if pattern is None else pattern, whole=True).finds
        except BadPattern as error:
            raise bad_request(f"the pattern is bad: {error}") from None

        def is_wanted(spec: QueueSpec) -> bool:
            is_there = spec.vhost == vhost and not is_hidden_queue(spec.name)
            return is_there and matches(spec.name) and self.gate.may_read(request, spec)

        return await picked(list(queues.values()), is_wanted, steps=1)

    async def queues(self, request: Request) -> Response:
        vhost = request.parameters["vhost"]
        self.gate.check_vhost(request, vhost)
        specs = sorted(await self._named(request, vhost), key=lambda spec: spec.name)
        if len(specs) > QUEUES_MAX:
            raise bad_request(f"that are {len(specs)} queues, and at most {QUEUES_MAX} are told of at once")
        is_named = any(key == "name" for key, _ in request.query)
        known = await self._ask_masters(specs, may_be_down=not is_named)
        members = {name for spec in specs for name in _members(spec)}
        urls = await self.management.urls_of(members, request.is_tls)
        slices, rows = TimeSlices(), []
        async for spec in slices.each(specs):
            if spec.id in known or self._is_there(spec):
                rows.append(json_bytes(self._row(spec, known.get(spec.id), urls)))
        return Response(200, b"[" + b",".join(rows) + b"]")

    async def _ask_masters(self, specs: Iterable[QueueSpec], may_be_down: bool) -> dict[int, dict[str, Any]]:
        """By id: what only its master knows of a queue. Queues of nodes that are down are left out, if they may be.
        Raises Problem if a master does not answer."""
        by_node: dict[str, list[QueueSpec]] = {}
        for spec in specs:
            if not may_be_down or not self._is_down(spec):
                by_node.setdefault(spec.node, []).append(spec)
        control = self.management.server.control
        try:
            answers = await asyncio.gather(
                *(control.at(name, "local_data_queues", {"ids": [one.id for one in there]})
                  for name, there in by_node.items())
            )  # fmt: skip
        except (NoAnswer, Refused) as error:
            raise Problem(503, "service_unavailable", str(error)) from None
        known = {row["id"]: row for rows in answers for row in rows}
        unknown = [spec for there in by_node.values() for spec in there if spec.id not in known]
        missing = [spec.name for spec in unknown if self._is_there(spec)]  # Others were deleted meanwhile.
        if missing:
            raise Problem(503, "service_unavailable", f"queue '{missing[0]}' has no master at the moment")
        return known

    def _is_there(self, spec: QueueSpec) -> bool:
        found = self.node.metadata.queues.get((spec.vhost, spec.name))
        return found is not None and found.id == spec.id

    def _is_down(self, spec: QueueSpec) -> bool:
        """Returns whether no node runs that leads the queue, or could within a moment."""
        nodes = [spec.node] if spec.view is None else [spec.node, *(name for name, _ in spec.view.in_sync)]
        me, cluster = self.node.settings.node_name, self.node.cluster
        return not any(name == me or cluster.is_running(name) for name in nodes)

    def _row(self, spec: QueueSpec, known: dict[str, Any] | None, urls: dict[str, str | None]) -> dict[str, Any]:
        """`known`: what its master says; None if it is down, and nothing is known."""
        shift = _shift(spec)
        numbers: dict[str, int | None] = dict.fromkeys(("first", "next", "messages", "bytes"))
        if known is not None:
            numbers = {"first": known["first"] + shift, "next": known["next"] + shift}
            numbers |= {"messages": known["messages"], "bytes": known["bytes"]}
        in_sync = {spec.node} if spec.view is None else dict(spec.view.in_sync)
        return {
            "name": spec.name,
            "id": spec.id,
            "type": "stream" if shift else "quorum" if is_quorum(spec.arguments) else "classic",
            "durable": spec.durable,
            "state": "down" if known is None else "running",
            **numbers,
            "master": spec.node,
            "members": [
                {"node": name, "url": urls[name], "in_sync": name in in_sync} for name in _members(spec)
            ],
            "leases": [] if known is None else known["leases"],
        }  # fmt: skip

    async def _elsewhere(self, request: Request, nodes: Iterable[str]) -> Problem:
        urls = await self.management.urls_of(nodes, request.is_tls)
        return Problem(
            421,
            "elsewhere",
            "another node answers for this queue",
            urls=[url for url in urls.values() if url is not None],
        )

    # -- Reading -------------------------------------------------------------------------------------------------

    async def range(self, request: Request) -> Response:
        spec = self._spec(request)
        shift = _shift(spec)
        first = request.number("first", None, 0, NUMBER_MAX)
        last = request.number("last", NUMBER_MAX, 0, NUMBER_MAX)
        bytes_max = min(request.number("bytes", SHEET_BYTES_MAX, 1, NUMBER_MAX), SHEET_BYTES_MAX)
        await self.answers.acquire()
        try:
            read = await self.node.reads.read(spec, first - shift, last - shift, bytes_max)
        except Elsewhere as elsewhere:
            self.answers.release()
            raise await self._elsewhere(request, elsewhere.nodes) from None
        except Unreadable as error:
            self.answers.release()
            raise Problem(500, "unreadable", str(error)) from None
        except BaseException:
            self.answers.release()
            raise
        headers = [("x-next", str(read.next + shift))]
        return Response(200, read.sheet, MEDIA_TYPE, headers, on_sent=self.answers.release)

    async def numbers(self, request: Request) -> Response:
        spec = self._spec(request)
        shift = _shift(spec)
        first = request.number("first", None, 0, NUMBER_MAX)
        last = request.number("last", NUMBER_MAX, 0, NUMBER_MAX)
        try:
            found, following = self.node.reads.stored(spec, max(first - shift, 1), last - shift, RANGES_MAX)
        except Elsewhere as elsewhere:
            raise await self._elsewhere(request, elsewhere.nodes) from None
        ranges = [[low + shift, high + shift] for low, high in found]
        return json_response({"ranges": ranges, "next": following + shift})

    async def at(self, request: Request) -> Response:
        spec = self._spec(request)
        ms = request.number("ms", None, 0, NUMBER_MAX)
        try:
            number = await self.node.reads.number_at(spec, ms)
        except Elsewhere as elsewhere:
            raise await self._elsewhere(request, elsewhere.nodes) from None
        except Unreadable as error:
            raise Problem(500, "unreadable", str(error)) from None
        return json_response({"number": number + _shift(spec)})

    async def wait(self, request: Request) -> Response:
        spec = self._spec(request)
        shift = _shift(spec)
        beyond = request.number("beyond", None, 0, NUMBER_MAX)
        try:
            seconds = min(float(request.asked("seconds") or 0.0), WAIT_S_MAX)
        except ValueError:
            raise bad_request("seconds must be a number") from None
        if not seconds >= 0:
            raise bad_request("seconds must not be negative")
        try:
            following = await self.node.reads.wait(spec, beyond - shift, seconds)
        except Elsewhere as elsewhere:
            raise await self._elsewhere(request, elsewhere.nodes) from None
        return json_response({"next": following + shift})

    # -- Leases --------------------------------------------------------------------------------------------------

    async def leases(self, request: Request) -> Response:
        """List leases: of one queue, of a vhost, or of all queues that the user may read."""
        if "queue" in request.parameters:
            specs = [self._spec(request)]
        else:
            vhost = request.parameters.get("vhost")
            if vhost is not None:
                self.gate.check_vhost(request, vhost)
            specs = [
                spec for spec in self.node.metadata.queues.values()
                if (vhost is None or spec.vhost == vhost) and not is_hidden_queue(spec.name)
                and self.gate.may_read(request, spec)
            ]  # fmt: skip
        known = await self._ask_masters(specs, may_be_down="queue" not in request.parameters)
        return json_response([lease for spec in specs if spec.id in known for lease in known[spec.id]["leases"]])

    async def open_lease(self, request: Request) -> Response:
        self._spec(request)  # Whether there is such a queue, and the user may read it, before anything else.
        asked = await request.json()
        timeout_ms = _number(asked, "timeout_ms", None, 1, TIMEOUT_MS_MAX) if "timeout_ms" in asked else None
        owner, takeover = _owner(asked), asked.get("takeover", False)
        if not isinstance(takeover, bool) or (takeover and not owner):
            raise bad_request("takeover is true or false, and needs an owner")
        return await self._lease(
            request, lambda queue, name, then: open_lease(queue, name, timeout_ms, then, owner, takeover)
        )

    async def take(self, request: Request) -> Response:
        self._spec(request)
        asked = await request.json()
        count = _number(asked, "count", None, 1, NUMBER_MAX)
        bytes_max = _number(asked, "bytes", NUMBER_MAX, 1, NUMBER_MAX)
        owner = _owner(asked)
        return await self._lease(
            request, lambda queue, name, then: take_lease(queue, name, count, bytes_max, then, owner)
        )

    async def ack(self, request: Request) -> Response:
        self._spec(request)
        asked = await request.json()
        through, owner = _number(asked, "through", None, 0, NUMBER_MAX), _owner(asked)
        return await self._lease(request, lambda queue, name, then: ack_lease(queue, name, through, then, owner))

    async def release(self, request: Request) -> Response:
        await self._lease(request, release_lease)
        return Response(204)

    async def _lease(
        self, request: Request, act: Callable[[LocalQueue, str, Callable[[LeaseView | Refusal], None]], None]
    ) -> Response:
        """Have the master do something with a lease, and wait until it is safe. Raises Problem."""
        spec, name = self._spec(request), request.parameters["name"]
        if not name.isprintable():  # Nor is what was no UTF-8.
            raise bad_request("the name of a lease is text")
        queue = self.node.reads.master(spec)
        if queue is None:
            raise await self._elsewhere(request, [spec.node])
        done: asyncio.Future[LeaseView | Refusal] = self.node.loop.create_future()

        def then(view: LeaseView | Refusal) -> None:
            if not done.done():
                done.set_result(view)

        self.node.set_clock()
        act(queue, name, then)
        self.node.schedule()
        try:
            view = await asyncio.wait_for(done, self.node.settings.operation_timeout_ms / 1000)
        except TimeoutError:
            raise Problem(503, "service_unavailable", "the queue did not answer in time") from None
        if isinstance(view, Refusal):
            raise await self._refused(request, spec, view)
        return json_response(lease_row(spec, view))

    async def _refused(self, request: Request, spec: QueueSpec, refusal: Refusal) -> Problem:
        now = self.node.metadata.queues.get((spec.vhost, spec.name))
        if now is not None and now.id == spec.id:
            if self.node.reads.master(now) is None:
                return await self._elsewhere(request, [now.node])
            if refusal == unreachable(now):
                return Problem(503, "service_unavailable", refusal.text)
        return Problem(STATUS_OF.get(refusal.code, 503), "refused", refusal.text)


def _shift(spec: QueueSpec) -> int:
    """Return what turns a message's number into what clients see: offsets of a stream begin with 0."""
    return -1 if is_stream(spec.arguments) else 0


def _members(spec: QueueSpec) -> tuple[str, ...]:
    return (spec.node,) if spec.view is None else spec.view.order()


def _number(asked: dict[str, Any], name: str, default: int | None, low: int, high: int) -> int:
    value = asked.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise bad_request(f"{name} must be a whole number from {low} to {high}")
    return value


def _owner(asked: dict[str, Any]) -> str:
    """Return the owner of the lease that the request names; "" if it names none."""
    owner = asked.get("owner", "")
    if not isinstance(owner, str):
        raise bad_request("owner is text")
    return owner
