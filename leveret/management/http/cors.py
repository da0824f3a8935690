"""Pages of other origins, as browsers call them, and what these may do: nothing, unless the configuration names them.

A browser sends the credentials that it was given for a node with whatever some page makes it ask, says from which page
that came, and shows the answer to the page only if the node agrees (CORS). So without an agreement a page sees nothing,
and since a request has its effect whether its answer is seen or not, nothing is changed for one either.

From where a request came is said by three headers that no page can forge. `Sec-Fetch-Site` says it best, but browsers
send it only over HTTPS and to their own machine. `Origin` comes with every request but plain reads; it is compared with
the host that the request was sent to, or that a proxy says it was (`X-Forwarded-Host`: a page cannot set that without
being asked about first). `Referer` is for what sends neither. Tools send none of them, and have no credentials that
somebody else gave them.

`management.cors.allow_origins.N` names origins that are trusted as the node's own page is. `*` is for pages of anybody,
which cannot be trusted with credentials that a person gave to the browser: they may send some of their own. A browser
asks before it sends such a request, and is told that it must not add what it remembers. RabbitMQ tells it that it may.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from leveret.management.http.http_messages import JSON, Problem

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leveret.management.http.http_messages import Request

ANYBODY: Final = "*"
READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
METHODS: Final = "DELETE, GET, HEAD, OPTIONS, POST, PUT"
HEADERS_CHARACTERS_MAX: Final = 1_000
ORIGIN: Final = re.compile(r"(https?)://([^/?#@\s]+)(?:[/?#]|$)")
PORTS: Final = {"http": 80, "https": 443}


class AllowedOrigins:
    """Origins of other sites whose pages may read from this node."""

    def __init__(self, allowed: tuple[str, ...], max_age_s: int) -> None:
        self.allowed = frozenset(allowed)
        self.max_age_s = max_age_s

    def check(self, request: Request) -> None:
        """Raises Problem for a request that some page was not to make."""
        if request.method in READING or _is_own(request.headers):
            return
        if request.headers.get("origin") in self.allowed:
            return
        # Those of anybody are asked about beforehand, and come without what the browser remembers; unless they are of
        # the old kind that a form can send, about which browsers do not ask.
        is_asked_about = request.method != "POST" or request.headers.get("content-type", "").startswith(JSON)
        if ANYBODY in self.allowed and is_asked_about:
            return
        raise Problem(403, "forbidden", "pages of other origins must not change anything")

    def headers(self, request: Request) -> list[tuple[str, str]]:
        """Return the CORS headers of any answer to this request."""
        if not self.allowed:
            return []
        origin = request.headers.get("origin", "")
        if not origin or not self.allowed & {origin, ANYBODY}:
            return [("vary", "origin")]
        found = [("vary", "origin"), ("access-control-allow-origin", origin)]
        if origin in self.allowed:
            found.append(("access-control-allow-credentials", "true"))
        if request.method == "OPTIONS":
            found += [("access-control-allow-methods", METHODS), ("access-control-max-age", str(self.max_age_s))]
            wanted = request.headers.get("access-control-request-headers", "")
            if wanted and len(wanted) <= HEADERS_CHARACTERS_MAX:
                found.append(("access-control-allow-headers", wanted))
        return found


def _is_own(headers: Mapping[str, str]) -> bool:
    """Tell whether a request came from the node's own page, or from no page at all."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site in ("same-origin", "none")
    origin = headers.get("origin", headers.get("referer"))
    if origin is None:
        return True
    found = ORIGIN.match(origin.lower())
    if found is None:
        return False  # "null" is a page that hides where it is from.
    default = f":{PORTS[found[1]]}"
    page = found[2].removesuffix(default)
    sent_to = (headers.get("host", ""), headers.get("x-forwarded-host", "").partition(",")[0].strip())
    return any(page == one.lower().removesuffix(default) for one in sent_to)
