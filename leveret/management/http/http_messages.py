"""Requests and answers, as handlers see them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from leveret.management.http.json_decoding import VALUES_MAX, WINDOW, BadJson, decoded

if TYPE_CHECKING:
    import asyncio

    from leveret.management.http.routes import Handler

JSON: Final = "application/json"
NO_SNIFFING: Final = ("x-content-type-options", "nosniff")  # A browser takes an answer for what it is said to be.

Buffer = bytes | bytearray | memoryview


@dataclass(slots=True)
class Request:
    """A request of a client. `path` is without the query, and still quoted: a vhost may be called `/`."""

    method: str
    path: str
    query: list[tuple[str, str]]
    headers: Mapping[str, str]  # By name in small letters; of those given twice the last.
    host: str  # The client's address.
    is_loopback: bool = False
    is_tls: bool = False
    body: bytes = b""
    user: str = ""  # Set by the check of credentials.
    parameters: dict[str, str] = field(default_factory=dict)  # What stood for the names in the route's pattern.
    body_bytes_max: int | None = None  # Set by who admits it; None: as much as the server takes.
    handler: Handler | None = None  # Likewise: who answers it.
    decoding: asyncio.Semaphore | None = None  # Of how many long bodies are read at a time.

    def asked(self, name: str) -> str | None:
        """The last value of a parameter of the query."""
        return next((value for key, value in reversed(self.query) if key == name), None)

    def number(self, name: str, default: int | None, low: int, high: int) -> int:
        """A whole number of the query. Raises Problem."""
        text = self.asked(name)
        if text is None and default is not None:
            return default
        if text is None or len(text) > 20 or not (text.isascii() and text.isdecimal()) or not low <= int(text) <= high:
            raise bad_request(f"{name} must be a whole number from {low} to {high}")
        return int(text)

    async def decoded(self, values_max: int = VALUES_MAX) -> Any:
        """The body, which is JSON. Raises BadJson."""
        if len(self.body) <= WINDOW or self.decoding is None:
            return await decoded(self.body, values_max)
        async with self.decoding:
            return await decoded(self.body, values_max)

    async def json(self) -> dict[str, Any]:
        """The body as an object; an empty one if there is none. Raises Problem."""
        if not self.body:
            return {}
        try:
            value = await self.decoded()
        except BadJson as error:
            raise bad_request(f"the body is no JSON: {error}") from None
        if not isinstance(value, dict):
            raise bad_request("the body must be a JSON object")
        return value


@dataclass(slots=True)
class Response:
    """An answer. A body of several pieces is sent without being joined; one that is iterated over is sent in chunks,
    and not asked for more until the client has taken most of what there is."""

    status: int = 200
    body: bytes | list[Buffer] | AsyncIterator[Buffer] = b""
    type: str = JSON
    headers: list[tuple[str, str]] = field(default_factory=list)
    caching: str = "no-store"  # Answers hold names, figures, hashes of passwords: nobody keeps them on the way.
    close: bool = False  # The connection, afterwards.
    on_sent: Callable[[], None] | None = None  # Called once, whether it could be sent or not.
    late_s: float = 0.0  # So long it is held back.


class Problem(Exception):
    """An answer other than the one that was asked for, to be raised by whoever finds out."""

    def __init__(self, status: int, error: str, reason: object, **more: object) -> None:
        super().__init__(str(reason))
        self.status = status
        self.error = error
        self.reason = reason
        self.more = more
        self.headers: list[tuple[str, str]] = []
        self.late_s = 0.0

    def response(self) -> Response:
        response = json_response({"error": self.error, "reason": self.reason, **self.more}, self.status)
        response.headers = self.headers
        response.late_s = self.late_s
        return response


def json_response(value: object, status: int = 200) -> Response:
    return Response(status, json_bytes(value))


def json_bytes(value: object) -> bytes:
    # ASCII: a name that is no UTF-8 is told by lone surrogates, which cannot be written otherwise.
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def bad_request(reason: str) -> Problem:
    return Problem(400, "bad_request", reason)


def not_found() -> Problem:
    return Problem(404, "Object Not Found", "Not Found")
