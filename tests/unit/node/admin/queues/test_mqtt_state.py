"""Retained messages and MQTT sessions, as leveretctl lists and deletes them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from leveret.metadata.mqtt.commands import ClaimClientIds, ClaimRow, KeepRetained, RetainedRow
from leveret.metadata.mqtt.records import RetainedMessage
from tests.support.control_world import ask, cluster, refusal, rows
from tests.support.ring_world import Rings


@pytest.fixture
def rings() -> Rings:
    rings = Rings(cluster("one@host", "two@host"))
    kept = [RetainedRow("/", topic, RetainedMessage(topic, topic.encode() * 3, 1)) for topic in ("a/b", "c")]
    rings._propose(KeepRetained(tuple(kept), 10, 1000))
    run = rings.servers["two@host"].world.metadata.runs.get("two@host", "")
    claim = ClaimRow("/", "sensor", 1, "guest", True, 60, ("q",))
    rings._propose(ClaimClientIds("two@host", run, (claim,), 0, 10))
    return rings


async def done(rings: Rings, command: str, **arguments: Any) -> None:
    asked = asyncio.ensure_future(ask(rings.servers["one@host"], command, vhost="/", **arguments))
    while not asked.done():
        await asyncio.sleep(0)
        rings.run()
    await asked


async def test_retained_messages_are_listed_at_any_node_and_deleted(rings: Rings) -> None:
    columns = ["topic", "qos", "payload_bytes", "payload", "expires_in"]
    for server in rings.servers.values():
        found = await rows(server, "list_retained_messages", vhost="/", columns=columns)
        assert found == [["a/b", 1, 9, "a/ba/ba/b", ""], ["c", 1, 3, "ccc", ""]]
    await done(rings, "delete_retained_message", topic="a/b")
    assert await rows(server, "list_retained_messages", vhost="/", columns=["topic"]) == [["c"]]


async def test_sessions_are_listed_at_any_node_and_deleted(rings: Rings) -> None:
    columns = ["client_id", "user", "node", "state", "subscriptions", "queues", "session_expiry_interval", "has_will"]
    for server in rings.servers.values():
        found = await rows(server, "list_mqtt_sessions", vhost="/", columns=columns)
        assert found == [["sensor", "guest", "two@host", "connected", 0, ["q"], 60, False]]
    await done(rings, "delete_mqtt_session", client_id="sensor")
    assert await rows(server, "list_mqtt_sessions", vhost="/", columns=["client_id"]) == []


async def test_what_is_refused(rings: Rings) -> None:
    one = rings.servers["one@host"]
    assert (await refusal(one, "delete_retained_message", vhost="/", topic="none"))[0] == 64
    assert (await refusal(one, "delete_mqtt_session", vhost="/", client_id="none"))[0] == 64
    for command in ("list_retained_messages", "list_mqtt_sessions"):
        assert (await refusal(one, command, vhost="none", columns=[]))[0] == 64
        assert (await refusal(one, command, vhost="/", columns=["colour"]))[0] == 64
