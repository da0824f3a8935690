"""Retained messages and MQTT sessions over HTTP."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from leveret.management.api.common.listing import Listing
from leveret.management.api.extensions.mqtt_state import MqttStateHandlers
from leveret.management.http.http_messages import Problem, Request, Response
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


@pytest.fixture
def handlers(rings: Rings, monkeypatch: pytest.MonkeyPatch) -> MqttStateHandlers:
    """Those of the node, for a user who may see and change everything."""
    made = MqttStateHandlers.__new__(MqttStateHandlers)
    server = rings.servers["one@host"]
    made.node = cast(Any, server.node)
    made.metadata = made.node.metadata
    made.listing = Listing()
    made.rights = cast(Any, SimpleNamespace(check_vhost=lambda *_: None, check_policymaker=lambda *_: None))

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


async def test_sessions(handlers: MqttStateHandlers) -> None:
    (found,) = said(await handlers.sessions(request()))
    assert (found["client_id"], found["state"], found["node"]) == ("sensor", "connected", "one@host")
    assert (await handlers.delete_session(request(client_id="sensor"))).status == 204
    assert said(await handlers.sessions(request())) == []
    with pytest.raises(Problem):
        await handlers.delete_session(request(client_id="sensor"))
    with pytest.raises(Problem):
        await handlers.sessions(request(vhost="none"))
