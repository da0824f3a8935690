"""`/api/leveret/retained-messages` and `/api/leveret/mqtt-sessions`: what the cluster keeps for MQTT clients.

    GET    /api/leveret/retained-messages/{vhost}            with ?filter=sensors/# only those that a filter matches
    DELETE /api/leveret/retained-messages/{vhost}/{topic}
    GET    /api/leveret/mqtt-sessions/{vhost}
    DELETE /api/leveret/mqtt-sessions/{vhost}/{client_id}

Deleting is for policymakers of the vhost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leveret.management.api.common.base import done
from leveret.management.api.common.listing import query_of
from leveret.management.api.extensions.mirror_rings import OwnPathHandlers
from leveret.management.http.http_messages import Request, Response, bad_request, not_found
from leveret.node.admin.queues.mqtt_state import RETAINED, SESSION
from leveret.protocol.mqtt.topics import BadTopic, check_filter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from leveret.broker.broker import Broker
    from leveret.management.http.routes import Router
    from leveret.metadata.mqtt.records import RetainedMessage


class MqttStateHandlers(OwnPathHandlers):
    def add_to(self, router: Router) -> None:
        router.add("GET", "/api/leveret/retained-messages/{vhost}", self.retained_messages)
        router.add("DELETE", "/api/leveret/retained-messages/{vhost}/{topic}", self.delete_retained_message)
        router.add("GET", "/api/leveret/mqtt-sessions/{vhost}", self.sessions)
        router.add("DELETE", "/api/leveret/mqtt-sessions/{vhost}/{client_id}", self.delete_session)

    async def retained_messages(self, request: Request) -> Response:
        vhost = self._vhost(request)
        wanted = request.asked("filter")
        found: list[RetainedMessage]
        if wanted is None:
            found = list(self.metadata.retained.by_vhost.get(vhost, {}).values())
        else:
            try:
                check_filter(wanted)
            except BadTopic as error:
                raise bad_request(f"filter: {error}") from None
            found = self.node.broker.retained.find(vhost, wanted)
        return await self.listing.of_rows(query_of(request), self._rows(vhost, found, RETAINED))

    async def sessions(self, request: Request) -> Response:
        vhost = self._vhost(request)
        found = list(self.node.broker.client_ids.sessions(vhost))
        return await self.listing.of_rows(query_of(request), self._rows(vhost, found, SESSION))

    def _vhost(self, request: Request) -> str:
        vhost = request.parameters["vhost"]
        self.rights.check_vhost(request, vhost)
        if vhost not in self.metadata.vhosts:
            raise not_found()
        return vhost

    async def _rows(
        self, vhost: str, found: list[Any], getters: Mapping[str, Callable[[Broker, Any], Any]]
    ) -> AsyncIterator[dict[str, Any]]:
        for one in found:
            yield {"vhost": vhost, **{name: get(self.node.broker, one) for name, get in getters.items()}}

    async def delete_retained_message(self, request: Request) -> Response:
        vhost, topic = request.parameters["vhost"], request.parameters["topic"]
        self.rights.check_policymaker(request, vhost)
        if self.metadata.retained.get(vhost, topic) is None:
            raise not_found()
        await self.ask("delete_retained_message", vhost=vhost, topic=topic)
        return done()

    async def delete_session(self, request: Request) -> Response:
        vhost, client_id = request.parameters["vhost"], request.parameters["client_id"]
        self.rights.check_policymaker(request, vhost)
        if self.metadata.sessions.get(vhost, client_id) is None:
            raise not_found()
        await self.ask("delete_mqtt_session", vhost=vhost, client_id=client_id)
        return done()
