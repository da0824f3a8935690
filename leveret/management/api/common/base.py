"""What all handlers of the API have at hand."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from leveret.management.api.common.authorization import Authorization
from leveret.management.api.common.listing import Listing, Row, query_of
from leveret.management.http.auth import refused
from leveret.management.http.http_messages import Problem, Response, bad_request, not_found
from leveret.node.admin.common.command import NoAnswer, Refused
from leveret.node.cluster.consensus import AdminError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Coroutine

    from leveret.management.api.common.internal_client import Closed
    from leveret.management.app import Management
    from leveret.management.http.http_messages import Request
    from leveret.metadata.model.commands import Command
    from leveret.metadata.store import Applied


logger = logging.getLogger("leveret.management")

_T = TypeVar("_T")


class Handlers:
    def __init__(self, management: Management) -> None:
        self.management = management
        self.node = management.node
        self.metadata = management.node.metadata
        self.rights = Authorization(management.node.broker)
        self.listing = Listing()

    async def listed(self, request: Request, rows: list[Row], is_paged: bool = False) -> Response:
        """Rows of the metadata, which all are at hand. RabbitMQ gives few of these lists in pages."""
        return await self.listing.of_rows(query_of(request), _each(rows), is_paged)

    async def to_the_end(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Several changes that belong together. A request ends with its client; this does not, but with the node."""
        task = self.node.loop.create_task(work)
        self.management.background.add(task)
        task.add_done_callback(self._on_end)
        return await asyncio.shield(task)

    def _on_end(self, task: asyncio.Task[Any]) -> None:
        self.management.background.discard(task)
        if not task.cancelled() and task.exception() is not None:  # Which its client is told, if it is still there.
            logger.debug("a request ended with: %s", task.exception())

    async def change(self, command: Command) -> None:
        """Have the cluster agree on a change. Raises Problem."""
        await self.agreed(self.node.cluster.change(command))

    async def agreed(self, change: Awaitable[Applied]) -> None:
        try:
            applied = await change
        except AdminError as error:
            raise unavailable(str(error)) from None
        if applied.refused is not None:
            # What the caller looked up was overtaken by somebody else's change, or cannot be named so.
            raise not_found() if applied.refused.code == 404 else bad_request(applied.refused.text)

    async def ask(self, command: str, /, **arguments: Any) -> Any:
        """Run a command of leveretctl at this node. Raises Problem: 400 with the reason."""
        try:
            return await self.management.server.control.run(command, arguments)
        except Refused as error:
            raise bad_request(error.text) from None

    async def ask_node(self, at: str, command: str, /, **arguments: Any) -> Any:
        """The same, of another node. Raises Problem, and NoAnswer."""
        try:
            return await self.management.server.control.at(at, command, arguments)
        except Refused as error:
            raise bad_request(error.text) from None

    def check_vhost_exists(self, vhost: str) -> None:
        """RabbitMQ's words where something is to be put into a vhost that does not exist."""
        if vhost not in self.metadata.vhosts:
            raise Problem(404, "not_found", "vhost_not_found")


async def _each(rows: list[Row]) -> AsyncIterator[Row]:
    for row in rows:
        yield row


def unavailable(reason: str) -> Problem:
    return Problem(503, "service_unavailable", reason)


def created(existed: bool) -> Response:
    """The answer to a PUT."""
    return Response(204 if existed else 201)


def done() -> Response:
    return Response(204)


def refuse(closed: Closed) -> NoReturn:
    """Raise the Problem for a declaration, binding or deletion that closed the channel."""
    if closed.code == 403:
        raise refused("Access refused.") from None
    if closed.code == 404:
        raise Problem(404, "not_found", closed.explanation) from None
    raise bad_request(closed.explanation) from None


__all__ = ["Handlers", "NoAnswer", "created", "done", "refuse", "unavailable"]
