"""`/api/leveret/retained-messages` and `/api/leveret/mqtt-sessions`: what the cluster keeps for MQTT clients.

    GET    /api/leveret/retained-messages/{vhost}            with ?filter=sensors/# only those that a filter matches
    DELETE /api/leveret/retained-messages/{vhost}/{topic}
    GET    /api/leveret/mqtt-sessions, /api/leveret/mqtt-sessions/{vhost}        with ?state=connected only those
    GET    /api/leveret/mqtt-sessions/{vhost}/{client_id}    with its subscriptions
    DELETE /api/leveret/mqtt-sessions/{vhost}/{client_id}

The lists can be sorted and had in pages, as those of RabbitMQ; `name` looks for topics, or client ids. Every node has
all of it, except the figures of session queues and what is known of a connection: these are asked for where they are,
for the rows that are shown. A user who does not monitor is shown no connections of others, as in `/api/connections`.

Deleting is for policymakers of the vhost.
"""

from __future__ import annotations

import asyncio
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from leveret.management.api.common.aggregate import AllNodes
from leveret.management.api.common.base import done
from leveret.management.api.common.listing import figures_by_rows, query_of
from leveret.management.api.extensions.mirror_rings import OwnPathHandlers
from leveret.management.http.http_messages import Request, Response, bad_request, json_response, not_found
from leveret.node.admin.queues.mqtt_state import RETAINED, SESSION
from leveret.node.admin.queues.queues import ask_homes
from leveret.protocol.mqtt.topics import BadTopic, check_filter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leveret.management.api.common.listing import Row
    from leveret.management.app import Management
    from leveret.management.http.routes import Router
    from leveret.metadata.mqtt.records import ClientSession, RetainedMessage

STATES: Final = ("connected", "disconnected")
SUBSCRIPTION: Final = ("filter", "qos", "no_local", "retain_as_published", "retain_handling", "identifier")


class MqttStateHandlers(OwnPathHandlers):
    def __init__(self, management: Management) -> None:
        super().__init__(management)
        self.control = management.server.control
        self.everyone = AllNodes(management)

    def add_to(self, router: Router) -> None:
        router.add("GET", "/api/leveret/retained-messages/{vhost}", self.retained_messages)
        router.add("DELETE", "/api/leveret/retained-messages/{vhost}/{topic}", self.delete_retained_message)
        router.add("GET", "/api/leveret/mqtt-sessions", self.sessions)
        router.add("GET", "/api/leveret/mqtt-sessions/{vhost}", self.sessions)
        router.add("GET", "/api/leveret/mqtt-sessions/{vhost}/{client_id}", self.session)
        router.add("DELETE", "/api/leveret/mqtt-sessions/{vhost}/{client_id}", self.delete_session)

    # -- Retained messages ---------------------------------------------------------------------------------------

    async def retained_messages(self, request: Request) -> Response:
        vhost = request.parameters["vhost"]
        self.rights.check_vhost(request, vhost)
        query, wanted = query_of(request), request.asked("filter")
        found: list[RetainedMessage]
        if wanted is None:
            found = list(self.metadata.retained.by_vhost.get(vhost, {}).values())
        else:
            try:
                check_filter(wanted)
            except BadTopic as error:
                raise bad_request(f"filter: {error}") from None
            found = self.node.broker.retained.find(vhost, wanted)
        broker = self.node.broker

        async def fetch(messages: Sequence[RetainedMessage]) -> list[Row]:
            return [{"vhost": vhost, **{name: get(broker, one) for name, get in RETAINED.items()}} for one in messages]

        async def figures(messages: list[RetainedMessage], path: list[str]) -> Callable[[RetainedMessage], Any]:
            get = RETAINED.get(path[0]) if len(path) == 1 else None
            return lambda one: None if get is None else get(broker, one)

        topic: Callable[[RetainedMessage], str] = attrgetter("topic")
        chosen, total, filtered = await self.listing.choose(query, found, topic, topic, figures)
        return await self.listing.answer(query, chosen, total, filtered, fetch)

    async def delete_retained_message(self, request: Request) -> Response:
        vhost, topic = request.parameters["vhost"], request.parameters["topic"]
        self.rights.check_policymaker(request, vhost)
        if self.metadata.retained.get(vhost, topic) is None:
            raise not_found()
        await self.ask("delete_retained_message", vhost=vhost, topic=topic)
        return done()

    # -- Sessions ------------------------------------------------------------------------------------------------

    async def sessions(self, request: Request) -> Response:
        query, state = query_of(request), request.asked("state")
        if state not in (None, "", *STATES):
            raise bad_request(f"state is one of {', '.join(STATES)}")
        found = [one for vhost in self.rights.vhosts(request) for one in self.node.broker.client_ids.sessions(vhost)]
        if state:
            found = [one for one in found if bool(one.node) == (state == "connected")]

        async def fetch(sessions: Sequence[ClientSession]) -> list[Row]:
            return await self._rows(request, sessions)

        async def figures(sessions: list[ClientSession], path: list[str]) -> Callable[[ClientSession], Any]:
            name = path[0]
            if name in SESSION:
                return lambda one: SESSION[name](self.node.broker, one)
            if name == "vhost":
                return attrgetter("vhost")
            by_epoch = await figures_by_rows([one.epoch for one in sessions], path, _fetch_by_epoch(sessions, fetch))
            return lambda one: by_epoch.get(one.epoch)

        chosen, total, filtered = await self.listing.choose(query, found, attrgetter("client_id"), _place, figures)
        return await self.listing.answer(query, chosen, total, filtered, fetch)

    async def session(self, request: Request) -> Response:
        vhost, client_id = request.parameters["vhost"], request.parameters["client_id"]
        self.rights.check_vhost(request, vhost)
        session = self.node.broker.client_ids.find(vhost, client_id)
        if session is None:
            raise not_found()
        [row] = await self._rows(request, [session])
        asked = {"vhost": vhost, "client_id": client_id}
        found = await self.everyone.one(session.node or self.control.name, "local_mqtt_subscriptions", asked)
        filters = [dict(zip(SUBSCRIPTION, one, strict=True)) for one in found or []]
        return json_response({**row, "subscription_details": filters})

    async def _rows(self, request: Request, sessions: Sequence[ClientSession]) -> list[Row]:
        broker, sees_all = self.node.broker, self.rights.is_monitor(request)
        messages, connections = await asyncio.gather(
            self._messages(sessions),
            self._connections([one for one in sessions if one.node and (sees_all or one.user == request.user)]),
        )
        rows = []
        for one in sessions:
            row = {"vhost": one.vhost} | {name: get(broker, one) for name, get in SESSION.items()}
            row["messages"] = sum(messages.get((one.vhost, queue), 0) for queue in one.queues)
            row["connection"] = connection = connections.get((one.vhost, one.client_id))
            if connection is not None:  # The cluster knows none of a session that ends with its connection.
                row["subscriptions"] = connection.pop("subscriptions")
            rows.append(row)
        return rows

    async def _messages(self, sessions: Sequence[ClientSession]) -> dict[tuple[str, str], int]:
        """Returns how many messages the sessions' queues have; those whose node does not answer are left out."""
        keys = [(one.vhost, queue) for one in sessions for queue in one.queues]
        specs = [spec for key in keys if (spec := self.metadata.queues.get(key)) is not None]
        if not specs:
            return {}
        totals, _ = await ask_homes(self.control, specs, "local_queue_totals", {})
        return {(spec.vhost, spec.name): sum(totals[spec.id]) for spec in specs if spec.id in totals}

    async def _connections(self, sessions: Sequence[ClientSession]) -> dict[tuple[str, str], Row]:
        """Returns what their nodes say of the connections."""
        by_node: dict[str, list[ClientSession]] = {}
        for one in sessions:
            by_node.setdefault(one.node, []).append(one)
        asked = (
            self.everyone.one(
                node,
                "local_mqtt_clients",
                {"vhosts": [one.vhost for one in there], "client_ids": [one.client_id for one in there]},
            )
            for node, there in by_node.items()
        )
        found: dict[tuple[str, str], Row] = {}
        for there, rows in zip(by_node.values(), await asyncio.gather(*asked), strict=True):
            for one, row in zip(there, rows or [], strict=False):
                if row is not None:
                    found[one.vhost, one.client_id] = row
        return found

    async def delete_session(self, request: Request) -> Response:
        vhost, client_id = request.parameters["vhost"], request.parameters["client_id"]
        self.rights.check_policymaker(request, vhost)
        if self.metadata.sessions.get(vhost, client_id) is None:
            raise not_found()
        await self.ask("delete_mqtt_session", vhost=vhost, client_id=client_id)
        return done()


def _place(session: ClientSession) -> tuple[str, str]:
    return session.vhost, session.client_id


def _fetch_by_epoch(sessions: Sequence[ClientSession], fetch: Callable[..., Any]) -> Callable[[Sequence[int]], Any]:
    """A session has lists in it, so it is no key of a dictionary; its epoch is one."""
    by_epoch = {one.epoch: one for one in sessions}

    async def fetch_some(epochs: Sequence[int]) -> list[Row]:
        rows: list[Row] = await fetch([by_epoch[epoch] for epoch in epochs])
        return rows

    return fetch_some
