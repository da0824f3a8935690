"""Which handler answers which path.

A table of patterns such as `/api/data/{vhost}/{queue}/range`, kept as a tree by the words between the slashes, so that
a look-up takes as long as the path has words, however many routes there are. A word that is written out goes before one
in braces. What stands for a name in braces is given to the handler unquoted: `%2F` is the vhost `/`.

A route also says how large a body it takes, and who may send one where it is large (`allow`): both are looked at before
any of the body is taken in.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple
from urllib.parse import unquote

from leveret.management.http.http_messages import Problem, Request, Response, not_found

Handler = Callable[[Request], Awaitable[Response]]
Check = Callable[[Request], None]

BODY_BYTES_MAX: Final = 256 << 10  # What becomes metadata is kept in the memory of every node.


class Branch:
    """A node of the tree of routes: what may follow after some words of a path."""

    __slots__ = ("any", "handlers", "words")

    def __init__(self) -> None:
        self.words: dict[str, Branch] = {}
        self.any: Branch | None = None
        self.handlers: dict[str, Route] = {}  # By method.


class Route(NamedTuple):
    handler: Handler
    names: tuple[str, ...]  # In braces, in their order.
    body_bytes_max: int | None  # None: as much as the server takes.
    allow: Check  # By the head. Raises Problem.


class Found(NamedTuple):
    handler: Handler
    parameters: dict[str, str]


def _anybody(request: Request) -> None:
    """The handler says who may."""


class Router:
    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix.rstrip("/")  # management.path_prefix
        self._root = Branch()

    def add(
        self,
        method: str,
        pattern: str,
        handler: Handler,
        body_bytes_max: int | None = BODY_BYTES_MAX,
        allow: Check = _anybody,
    ) -> None:
        branch = self._root
        names = []
        for word in pattern.strip("/").split("/"):
            if word.startswith("{"):
                names.append(word.strip("{}"))
                branch.any = branch.any or Branch()
                branch = branch.any
            else:
                branch = branch.words.setdefault(word, Branch())
        assert method not in branch.handlers, f"two handlers for {method} {pattern}"
        branch.handlers[method] = Route(handler, tuple(names), body_bytes_max, allow)

    def find(self, method: str, path: str) -> Found:
        """Raises Problem."""
        route, parameters = self.route(method, path)
        return Found(route.handler, parameters)

    def route(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        """Raises Problem. What answers GET answers HEAD."""
        values: list[str] = []
        branch = self._branch(path, values)
        if branch is None:
            raise not_found()
        route = branch.handlers.get("GET" if method == "HEAD" else method)
        if route is None:
            problem = Problem(405, "Method Not Allowed", "Method Not Allowed")
            problem.headers.append(("allow", ", ".join(self.allowed(path))))
            raise problem
        return route, dict(zip(route.names, values, strict=True))

    def allowed(self, path: str) -> list[str]:
        """The methods that are answered at a path; none where there is nothing."""
        branch = self._branch(path, [])
        if branch is None:
            return []
        return sorted({*branch.handlers, "OPTIONS", *(("HEAD",) if "GET" in branch.handlers else ())})

    def _branch(self, path: str, values: list[str]) -> Branch | None:
        if not path.startswith(self.prefix + "/"):
            return None
        return _walk(self._root, path[len(self.prefix) :].strip("/").split("/"), 0, values)


def _walk(branch: Branch, words: list[str], at: int, values: list[str]) -> Branch | None:
    if at == len(words):
        return branch if branch.handlers else None
    written = branch.words.get(words[at])
    if written is not None:
        found = _walk(written, words, at + 1, values)
        if found is not None:
            return found
    if branch.any is None or not words[at]:
        return None
    values.append(unquote(words[at], errors="surrogateescape"))
    found = _walk(branch.any, words, at + 1, values)
    if found is None:
        values.pop()
    return found
