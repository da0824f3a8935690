"""`/api/connections`, `/api/channels`: who is connected, at any node.

Each node knows its own. So all are asked for the names of theirs, from these it is chosen, and what is shown is then
asked for where it is. A user who does not monitor sees connections of its own alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from leveret.management.api.common.aggregate import AllNodes
from leveret.management.api.common.base import Handlers
from leveret.management.api.common.listing import Listing, Row, figures_by_rows, past_of, query_of
from leveret.management.http.http_messages import Request, Response, json_response, not_found

if TYPE_CHECKING:
    from leveret.management.app import Management
    from leveret.management.http.routes import Router


class Client(NamedTuple):
    """A connection, or a channel of one (whose number is not 0)."""

    node: str
    number: int
    name: str
    user: str
    vhost: str
    channel: int = 0


class ConnectionHandlers(Handlers):
    def __init__(self, management: Management, listing: Listing) -> None:
        super().__init__(management)
        self.listing = listing
        self.everyone = AllNodes(management)

    def add_to(self, router: Router) -> None:
        router.add("GET", "/api/connections", self.connections)
        router.add("GET", "/api/connections/{connection}", self.connection)
        router.add("GET", "/api/connections/{connection}/channels", self.channels_of_connection)
        router.add("GET", "/api/connections/username/{user}", self.connections_of_user)
        router.add("GET", "/api/vhosts/{vhost}/connections", self.connections)
        router.add("GET", "/api/vhosts/{vhost}/channels", self.channels)
        router.add("GET", "/api/channels", self.channels)
        router.add("GET", "/api/channels/{channel}", self.channel)

    # -- Who is there --------------------------------------------------------------------------------------------

    async def _clients(self, request: Request, channels: bool) -> list[Client]:
        """Return connections or channels that the user may see, of the vhost that the path names or of all."""
        self.rights.check(request)
        vhost = request.parameters.get("vhost")
        if vhost is not None:
            self.rights.check_vhost(request, vhost)
        sees_all = self.rights.is_monitor(request)
        found: list[Client] = []
        # Not in RabbitMQ: connections of one protocol, such as `stomp`.
        only = {"protocol": protocol.lower()} if (protocol := request.asked("protocol")) else {}
        for node in self.everyone.running():
            after: int | None = 0
            while after is not None:
                answer = await self.everyone.one(node, "local_client_names", {"after": after, **only})
                if answer is None:
                    break
                after = answer["next"]
                for number, name, user, there, numbers in answer["clients"]:
                    if vhost in (None, there) and (sees_all or user == request.user):
                        one = Client(node, number, name, user, there)
                        found += [one] if not channels else _channels(one, numbers)
                await asyncio.sleep(0)
        return found

    async def _list(self, request: Request, there: list[Client], fetch: Callable[..., Any]) -> Response:
        query = query_of(request)

        async def figures(some: list[Client], path: list[str]) -> Callable[[Client], Any]:
            found = await figures_by_rows(some, path, fetch)
            return found.get

        chosen, total, filtered = await self.listing.choose(query, there, _name, _place, figures)
        return await self.listing.answer(query, chosen, total, filtered, fetch)

    def _fetcher(self, past: dict[str, list[int]]) -> Callable[[Sequence[Client]], Any]:
        async def fetch(clients: Sequence[Client]) -> list[Row]:
            by_node: dict[str, list[Client]] = {}
            for one in clients:
                by_node.setdefault(one.node, []).append(one)
            answers = await asyncio.gather(*(self._rows(name, there, past) for name, there in by_node.items()))
            found = {one: row for answer in answers for one, row in answer.items()}
            return [found.get(one) or {"name": one.name, "node": one.node, "state": "closed"} for one in clients]

        return fetch

    async def _rows(self, node: str, clients: list[Client], past: dict[str, list[int]]) -> dict[Client, Row]:
        if clients[0].channel:
            names = [f"{one.number}.{one.channel}" for one in clients]
            answer = await self.everyone.one(node, "local_channel_rows", {"channels": names, "past": past})
        else:
            names = [str(one.number) for one in clients]
            numbers = [one.number for one in clients]
            answer = await self.everyone.one(node, "local_connection_rows", {"connections": numbers, "past": past})
        return {one: answer[name] for one, name in zip(clients, names, strict=True) if name in (answer or {})}

    # -- Connections ---------------------------------------------------------------------------------------------

    async def connections(self, request: Request) -> Response:
        there = await self._clients(request, channels=False)
        return await self._list(request, there, self._fetcher(past_of(request)))

    async def connections_of_user(self, request: Request) -> Response:
        user = request.parameters["user"]
        there = [one for one in await self._clients(request, channels=False) if one.user == user]
        rows = [{"name": one.name, "vhost": one.vhost, "user": one.user, "node": one.node} for one in there]
        query = query_of(request)
        return json_response([query.shown(row) for row in rows])

    async def _named(self, request: Request) -> Client:
        for one in await self._clients(request, channels=False):
            if one.name == request.parameters["connection"]:
                return one
        raise not_found()

    async def connection(self, request: Request) -> Response:
        one = await self._named(request)
        row = (await self._rows(one.node, [one], past_of(request))).get(one)
        if row is None:
            raise not_found()
        # An oddity of RabbitMQ's: what is null in a list is an empty text here.
        return json_response(query_of(request).shown({name: "" if row[name] is None else row[name] for name in row}))

    async def channels_of_connection(self, request: Request) -> Response:
        connection = await self._named(request)
        there = await self._clients(request, channels=True)
        mine = [one for one in there if (one.node, one.number) == (connection.node, connection.number)]
        return await self._list(request, mine, self._fetcher(past_of(request)))

    # -- Channels ------------------------------------------------------------------------------------------------

    async def channels(self, request: Request) -> Response:
        there = await self._clients(request, channels=True)
        return await self._list(request, there, self._fetcher(past_of(request)))

    async def channel(self, request: Request) -> Response:
        name, query = request.parameters["channel"], query_of(request)
        for one in await self._clients(request, channels=True):
            if one.name == name:
                row = (await self._rows(one.node, [one], past_of(request))).get(one)
                if row is not None:
                    return json_response(query.shown(await self._with_consumers(one, row)))
        raise not_found()

    async def _with_consumers(self, one: Client, row: Row) -> Row:
        asked = {"vhosts": [one.vhost], "channel": one.name, "after": 0}
        answer = await self.everyone.one(one.node, "local_consumer_rows", asked)
        return {**row, "consumer_details": [] if answer is None else answer["rows"], "deliveries": [], "publishes": []}


def _channels(one: Client, numbers: list[int]) -> list[Client]:
    return [one._replace(channel=number, name=f"{one.name} ({number})") for number in numbers]


def _name(one: Client) -> str:
    return one.name


def _place(one: Client) -> tuple[str, str, int, int]:
    return one.name, one.node, one.number, one.channel
