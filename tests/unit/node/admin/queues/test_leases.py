"""Leases, as leveretctl lists and releases them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from leveret.broker.queue import leases
from leveret.broker.queue.queue import Queue
from tests.support.control_world import ask, cluster, refusal, rows
from tests.support.ring_world import Rings

COLUMNS = ["name", "queue", "acked", "next", "out", "lag", "runs", "timeout", "node"]


@pytest.fixture
def rings() -> Rings:
    rings = Rings(cluster("one@host", "two@host"))
    rings.declare("empty")
    rings.declare("q", "two@host", "one@host")
    rings.publish("two@host", "q", 5)
    return rings


def lease(rings: Rings, what: str, *arguments: Any) -> None:
    queue = rings.servers["two@host"].world.broker.vhosts["/"].queues["q"]
    assert isinstance(queue, Queue)
    getattr(leases, f"{what}_lease")(queue, "job", *arguments, lambda view: None)
    rings.run()


async def test_leases_are_listed_and_released_from_any_node(rings: Rings) -> None:
    lease(rings, "open", 60_000)
    lease(rings, "take", 3, 1 << 20)
    lease(rings, "ack", 1)
    for server in rings.servers.values():
        found = await rows(server, "list_leases", vhost="/", columns=COLUMNS)
        assert found == [["job", "q", 1, 3, 2, 4, 1, 60, "two@host"]]
    asked = asyncio.ensure_future(
        ask(rings.servers["one@host"], "release_lease", vhost="/", queue="q", name="job")
    )
    while not asked.done():
        await asyncio.sleep(0)
        rings.run()
    assert await asked == {"messages": 2}
    assert await rows(rings.servers["one@host"], "list_leases", vhost="/", columns=COLUMNS) == []


async def test_what_is_refused(rings: Rings) -> None:
    one = rings.servers["one@host"]
    assert await refusal(one, "release_lease", vhost="/", queue="none", name="job") == (64, "Queue not found")
    code, text = await refusal(one, "release_lease", vhost="/", queue="q", name="none")
    assert (code, text) == (64, "no lease 'none' of queue 'q' in vhost '/'")
    assert (await refusal(one, "list_leases", vhost="none", columns=["name"]))[0] == 64
    assert (await refusal(one, "list_leases", vhost="/", columns=["colour"]))[0] == 64
