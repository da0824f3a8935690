"""What the page needs to let a person look before they act: messages that stay where they are, those that contain a
text, whom a policy would reach, and the leases of all queues.

- *Peeking* takes nothing and marks nothing; RabbitMQ's `get` with requeue would mark every message as redelivered, and
  change their order for consumers.
- *A policy that is only being written* is tried on all names. A pattern can be made such that one match takes for ever,
  and no thread can be stopped over it; so only who may set such a policy anyway can ask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from leveret.base.safe_regex import BadPattern, Pattern, compiled
from leveret.management.api.common import request_body
from leveret.management.api.extensions.mirror_rings import OwnPathHandlers
from leveret.management.http.http_messages import Request, Response, bad_request, json_response
from leveret.management.http.pause_check import check_serving
from leveret.metadata.model.hidden_queues import is_hidden_queue
from leveret.metadata.rules.ha_policy import is_stream
from leveret.metadata.rules.policies import APPLIES, EXCHANGE, is_applicable, queue_kind
from leveret.node.admin.common.listing_columns import LEASES
from leveret.node.admin.queues.peek import PEEK_BYTES_MAX, PEEK_MAX
from leveret.node.system.time_slices import TimeSlices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from leveret.management.http.routes import Router

BODY_BYTES_MAX: Final = 64 << 10
POSITION_MAX: Final = 1 << 53
PATTERN_CHARACTERS_MAX: Final = 1_000
NAMES_SHOWN: Final = 100
LEASES_MAX: Final = 1_000
APPLY_TO: Final = frozenset().union(*APPLIES.values())


class PageQueryHandlers(OwnPathHandlers):
    def add_to(self, router: Router) -> None:
        router.add("GET", "/api/leveret/peek/{vhost}/{queue}", self.peek)
        router.add("GET", "/api/leveret/search/{vhost}/{queue}", self.search)
        router.add("POST", "/api/leveret/messages/{vhost}/{queue}/delete", self.delete, BODY_BYTES_MAX)
        router.add("GET", "/api/leveret/matches/{vhost}", self.matches)
        router.add("GET", "/api/leveret/leases", self.leases)
        router.add("DELETE", "/api/leveret/leases/{vhost}/{queue}/{name}", self.release)

    # -- Messages ------------------------------------------------------------------------------------------------

    async def peek(self, request: Request) -> Response:
        spec = self.spec(request)
        self.management.gate.check_read(request, spec)
        asked = {
            "vhost": spec.vhost,
            "name": spec.name,
            "position": request.number("position", 1, 1, POSITION_MAX),
            "count": request.number("count", 10, 1, PEEK_MAX),
            "bytes_max": request.number("bytes", 4096, 0, PEEK_BYTES_MAX),
        }
        if is_stream(spec.arguments):
            del asked["position"]
            at = {name: request.number(name, 0, 0, POSITION_MAX) for name in ("offset", "time") if request.asked(name)}
            return json_response(await self.ask("peek_stream", **asked, offset=at.get("offset"), time=at.get("time")))
        return json_response(await self.ask("peek_many", **asked))

    async def search(self, request: Request) -> Response:
        """Look for a text in ready messages, from a cursor of an earlier answer on."""
        spec = self.spec(request)
        self.management.gate.check_read(request, spec)
        asked = {
            "vhost": spec.vhost,
            "name": spec.name,
            "text": request.asked("text") or "",
            "cursor": _cursor(request.asked("cursor") or ""),
            "count": request.number("count", 10, 1, PEEK_MAX),
            "bytes_max": request.number("bytes", 4096, 0, PEEK_BYTES_MAX),
        }
        return json_response(await self.ask("search_messages", **asked))

    async def delete(self, request: Request) -> Response:
        """Delete ready messages: those that `messages` names, or those that contain `text`."""
        spec = self.spec(request)
        self.rights.check_entry(request, spec.vhost)
        self.management.gate.check_read(request, spec)  # As a purge asks for.
        check_serving(self.node)
        body = await request_body.object_of(request)
        place: dict[str, Any] = {"vhost": spec.vhost, "name": spec.name}
        if "messages" in body:
            return json_response(await self.ask("delete_messages", **place, messages=body["messages"]))
        text, cursor = body.get("text"), body.get("cursor")
        if not isinstance(text, str) or not (cursor is None or _is_cursor(cursor)):
            raise bad_request("give messages, or a text and perhaps a cursor")
        return json_response(await self.ask("delete_matching", **place, text=text, cursor=cursor))

    # -- Policies ------------------------------------------------------------------------------------------------

    async def matches(self, request: Request) -> Response:
        """Names that a policy with `pattern` and `apply-to` would reach, and how many there are."""
        vhost = request.parameters["vhost"]
        self.rights.check_vhost(request, vhost)
        self.rights.check_policymaker(request, vhost)
        pattern, apply_to = request.asked("pattern") or "", request.asked("apply-to") or "all"
        if apply_to not in APPLY_TO:
            raise bad_request(f"apply-to must be one of {', '.join(sorted(APPLY_TO))}")
        if len(pattern) > PATTERN_CHARACTERS_MAX:
            raise bad_request(f"a pattern has at most {PATTERN_CHARACTERS_MAX} characters")
        try:
            search = compiled(pattern)
        except BadPattern as error:
            raise bad_request(f"not a valid regular expression: {error}") from None
        # A key that some type does not know keeps a policy from its queues.
        definition = dict.fromkeys(key for name, key in request.query if name == "key")
        metadata = self.node.metadata
        fits = {kind: is_applicable(kind, apply_to, definition) for kind in APPLIES}
        queues = await _found(
            search,
            list(metadata.queues.values()),
            lambda spec: spec.vhost == vhost and not is_hidden_queue(spec.name) and fits[queue_kind(spec.arguments)],
        )
        exchanges = await _found(
            search, list(metadata.exchanges.values()), lambda spec: spec.vhost == vhost and spec.name and fits[EXCHANGE]
        )
        return json_response({"queues": queues, "exchanges": exchanges})

    # -- Leases --------------------------------------------------------------------------------------------------

    async def leases(self, request: Request) -> Response:
        """List leases of all queues that the user may see, and name the nodes that did not answer."""
        self.rights.check(request)
        wanted = request.asked("vhost")
        found: list[dict[str, Any]] = []
        missing: set[str] = set()
        for vhost in list(self.node.metadata.vhosts):
            if wanted not in (None, "", vhost) or not self.rights.may_see(request, vhost):
                continue
            after: dict[str, Any] | None = None
            while True:
                asked = {"vhost": vhost, "columns": list(LEASES), "after": after}
                page = await self.ask("list_leases", **asked)
                found += ({"vhost": vhost, **dict(zip(LEASES, row, strict=True))} for row in page["rows"])
                missing.update(page["missing"])
                after = page["next"]
                if after is None or len(found) > LEASES_MAX:
                    break
        answer = {"leases": found[:LEASES_MAX], "more": len(found) > LEASES_MAX, "missing": sorted(missing)}
        return json_response(answer)

    async def release(self, request: Request) -> Response:
        spec = self.spec(request)
        self.management.gate.check_read(request, spec)
        self.check_configure(request, spec.vhost, spec.name)
        asked = {"vhost": spec.vhost, "queue": spec.name, "name": request.parameters["name"]}
        await self.ask("release_lease", **asked)
        return Response(204)


def _cursor(text: str) -> list[int] | None:
    """Raises Problem."""
    if not text:
        return None
    parts = text.split(",")
    if len(parts) != 2 or not all(part.isascii() and part.isdigit() and len(part) < 20 for part in parts):
        raise bad_request("a cursor is two numbers")
    return [int(part) for part in parts]


def _is_cursor(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(type(one) is int and one >= 0 for one in value)


async def _found(search: Pattern, specs: Iterable[Any], fits: Callable[[Any], object]) -> dict[str, Any]:
    count = 0
    shown: list[str] = []
    async for spec in TimeSlices(steps=1).each(specs):
        if fits(spec) and search.finds(spec.name):
            count += 1
            if len(shown) < NAMES_SHOWN:
                shown.append(spec.name)
    return {"count": count, "names": shown}
