"""The web page: static files at the root of the management port, open to everybody.

What is secret is behind `/api`, where each request brings credentials; these files are the same for all who ask, so
nobody has to log in to be shown the form in which one logs in. The page needs no build: its files lie in `page/` as
they are served, plain modules and one style sheet.

- They are read once, when the page is asked for first: a node that shows it to nobody does not spend memory on it.
- A browser keeps them and asks whether they have changed (`no-cache` with an ETag): after an upgrade nobody has half of
  the old page and half of the new one.
- The policy for contents lets no script run but ours, and lets nobody put the page into a frame, where a click could be
  meant for something else. Names of queues come from whoever may declare them, so the page builds its elements by text
  alone; the policy is the second fence.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from leveret.management.http.http_messages import NO_SNIFFING, Request, Response, not_found
from leveret.management.http.routes import Router

FOLDER: Final = Path(__file__).with_name("page")
INDEX: Final = "index.html"
TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
CACHING: Final = "no-cache"
HEADERS: Final = (
    ("content-security-policy", POLICY),
    NO_SNIFFING,
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
)


class File(NamedTuple):
    data: bytes
    type: str
    tag: str


@cache
def files() -> dict[str, File]:
    """By name. Only what lies there can be asked for, so no path leads out of the folder."""
    found = {}
    for path in FOLDER.iterdir():
        if path.suffix in TYPES:
            data = path.read_bytes()
            tag = f'"{hashlib.blake2b(data, digest_size=12).hexdigest()}"'
            found[path.name] = File(data, TYPES[path.suffix], tag)
    return found


class PageHandlers:
    def __init__(self, prefix: str) -> None:
        self._prefix = prefix.rstrip("/")

    def add_to(self, router: Router) -> None:
        router.add("GET", "/", self.index)
        router.add("GET", "/page/{file}", self.file)

    def is_open(self, request: Request) -> bool:
        """Tell whether the request is for a file of the page, which needs no credentials."""
        path = request.path.removeprefix(self._prefix)
        return request.method in ("GET", "HEAD") and (path in ("", "/") or path.startswith("/page/"))

    async def index(self, request: Request) -> Response:
        return _answer(request, INDEX)

    async def file(self, request: Request) -> Response:
        return _answer(request, request.parameters["file"])


def _answer(request: Request, name: str) -> Response:
    file = files().get(name)
    if file is None:
        raise not_found()
    headers = [*HEADERS, ("etag", file.tag)]
    if _is_known(file.tag, request.headers.get("if-none-match", "")):
        return Response(304, type=file.type, headers=headers, caching=CACHING)
    return Response(200, file.data, file.type, headers, CACHING)


def _is_known(tag: str, wanted: str) -> bool:
    """Tell from If-None-Match whether the client has the file. Proxies may have made the tag a weak one."""
    return any(one.strip().removeprefix("W/") in (tag, "*") for one in wanted.split(","))
