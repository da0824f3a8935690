"""Retained messages and MQTT sessions over HTTP."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from leveret.management.api.common.aggregate import AllNodes
from leveret.management.api.common.listing import Listing
from leveret.management.api.extensions.mqtt_state import MqttStateHandlers
from leveret.management.http.http_messages import Problem, Request, Response, not_found
from leveret.metadata.mqtt.commands import ClaimClientIds, ClaimRow, KeepRetained, RetainedRow
from leveret.metadata.mqtt.records import RetainedMessage
from tests.support.control_world import ask, cluster
from tests.support.ring_world import Rings


@pytest.fixture
def rings() -> Rings:
    rings = Rings(cluster("one@host"))
    kept = [RetainedRow("/", topic, RetainedMessage(topic, b"x", 1)) for topic in ("a/b", "a/c", "d")]
    rings._propose(KeepRetained(tuple(kept), 10, 1000))
    run = rings.servers["one@host"].world.metadata.runs.get("one@host", "")
    rings._propose(ClaimClientIds("one@host", run, (ClaimRow("/", "sensor", 1, "guest", True, 60),), 0, 10))
    rings.run()
    return rings


class SeesAll:
    def check_vhost(self, request: Request, vhost: str) -> None:
        if vhost != "/":
            raise not_found()

    def check_policymaker(self, request: Request, vhost: str) -> None: ...

    def vhosts(self, request: Request) -> list[str]:
        self.check_vhost(request, request.parameters["vhost"])
        return ["/"]

    def is_monitor(self, request: Request) -> bool:
        return request.user == "monitor"


@pytest.fixture
def handlers(rings: Rings, monkeypatch: pytest.MonkeyPatch) -> MqttStateHandlers:
    """Those of the node, for a user who may see and change everything."""
    made = MqttStateHandlers.__new__(MqttStateHandlers)
    server = rings.servers["one@host"]
    made.node = cast(Any, server.node)
    made.metadata = made.node.metadata
    made.listing = Listing()
    made.control = server.control
    made.everyone = AllNodes(cast(Any, SimpleNamespace(server=server, node=server.node)))
    made.rights = cast(Any, SeesAll())

    async def told(command: str, /, **arguments: Any) -> Any:
        asked = asyncio.ensure_future(ask(server, command, **arguments))
        while not asked.done():
            await asyncio.sleep(0)
            rings.run()
        return await asked

    monkeypatch.setattr(made, "ask", told)
    return made


def request(query: dict[str, str] | None = None, **parameters: str) -> Request:
    return Request("GET", "/", list((query or {}).items()), {}, "::1", parameters={"vhost": "/", **parameters})


def said(response: Response) -> Any:
    assert not isinstance(response.body, bytes)
    return json.loads(b"".join(cast(Any, response.body)))


async def test_retained_messages(handlers: MqttStateHandlers) -> None:
    found = said(await handlers.retained_messages(request()))
    assert [one["topic"] for one in found] == ["a/b", "a/c", "d"]
    assert found[0] == {"vhost": "/", "topic": "a/b", "qos": 1, "payload_bytes": 1, "payload": "x", "expires_in": ""}
    found = said(await handlers.retained_messages(request({"filter": "a/+"})))
    assert sorted(one["topic"] for one in found) == ["a/b", "a/c"]
    with pytest.raises(Problem):
        await handlers.retained_messages(request({"filter": "a/#/b"}))
    assert (await handlers.delete_retained_message(request(topic="a/b"))).status == 204
    with pytest.raises(Problem):
        await handlers.delete_retained_message(request(topic="a/b"))
    assert len(said(await handlers.retained_messages(request()))) == 2


async def test_pages_of_retained_messages(handlers: MqttStateHandlers) -> None:
    asked = {"page": "1", "page_size": "2", "sort": "payload_bytes", "sort_reverse": "true"}
    found = said(await handlers.retained_messages(request(asked)))
    assert (found["page_count"], found["total_count"], len(found["items"])) == (2, 3, 2)
    found = said(await handlers.retained_messages(request({"page": "1", "name": "A/", "sort": "name"})))
    assert (found["filtered_count"], [one["topic"] for one in found["items"]]) == (2, ["a/b", "a/c"])


async def test_a_hundred_thousand_retained_messages_are_paged(handlers: MqttStateHandlers) -> None:
    table = handlers.metadata.retained.by_vhost["/"]
    table |= {f"t/{number:06}": RetainedMessage(f"t/{number:06}", b"x") for number in range(100_000)}
    found = said(await handlers.retained_messages(request({"page": "2000", "page_size": "50", "sort": "name"})))
    assert found["total_count"] == 100_003 and found["items"][0]["topic"] == "t/099947"


async def test_sessions(handlers: MqttStateHandlers) -> None:
    (found,) = said(await handlers.sessions(request()))
    assert (found["client_id"], found["state"], found["node"]) == ("sensor", "connected", "one@host")
    assert (found["messages"], found["connection"], found["disconnected_at"]) == (0, None, "")
    for state, count in (("connected", 1), ("disconnected", 0)):
        assert len(said(await handlers.sessions(request({"state": state})))) == count
    with pytest.raises(Problem):
        await handlers.sessions(request({"state": "asleep"}))
    for column in ("name", "vhost", "state", "messages", "connection.protocol"):
        assert len(said(await handlers.sessions(request({"page": "1", "sort": column})))["items"]) == 1
    one = json.loads(cast(bytes, (await handlers.session(request(client_id="sensor"))).body))
    assert one["subscription_details"] == []
    assert (await handlers.delete_session(request(client_id="sensor"))).status == 204
    assert said(await handlers.sessions(request())) == []
    with pytest.raises(Problem):
        await handlers.delete_session(request(client_id="sensor"))
    with pytest.raises(Problem):
        await handlers.sessions(request(vhost="none"))
