"""What spools need of the node, and a node that leaves of them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from leveret.metadata.rules.partition_handling import PartitionHandling, Strategy
from leveret.node.cluster import drain_spools
from leveret.node.cluster.consensus import AdminError
from leveret.node.system.alarms import Alarms
from tests.support.brokers import Cluster
from tests.support.machines import publish
from tests.support.remote import client_with_queue, confirming


def test_how_much_room_a_disk_has() -> None:
    free = [100]
    alarms = Alarms(1 << 40, 50, lambda: 0, lambda: free[0])
    alarms.check()
    assert alarms.room_bytes() == 50
    free[0] = 50 + (1 << 30) - 1
    alarms.check()
    assert alarms.room_bytes() == 31 << 25
    alarms.disk_full = True  # Whatever the system says is free.
    assert alarms.room_bytes() == 0
    alarms.disk_full = False
    free[0] = 10
    alarms.check()
    assert alarms.room_bytes() == 0


def kept() -> tuple[Cluster, Any]:
    """Two nodes, of which one keeps messages for a queue of the other; and that one's shell."""
    cluster = Cluster("a", "b", home="b")
    for member in cluster.members.values():
        member.broker.partition_handling = PartitionHandling(Strategy.IGNORE)
    client = client_with_queue(cluster)
    confirming(client)
    cluster.close("a", "b")
    cluster.run()
    client.feed(publish(1, "", "q", b"1", client.frame_max, delivery_mode=2))
    client.world.turn()
    loop = asyncio.get_running_loop()
    node = SimpleNamespace(
        broker=cluster["a"].broker, loop=loop, fatal=None, stopped=loop.create_future(), schedule=lambda: None
    )
    assert node.broker.spools.active
    return cluster, node


async def test_a_node_leaves_when_all_is_sent_on() -> None:
    cluster, node = kept()
    leaving = asyncio.ensure_future(drain_spools.sent_on(node))
    await asyncio.sleep(0)
    assert not leaving.done() and len(node.broker.spools.watchers) == 1
    cluster.join("a", "b")
    cluster.run()
    assert not node.broker.spools.active
    async with asyncio.timeout(drain_spools.STUCK_S / 2):
        await leaving
    assert not node.broker.spools.watchers


async def test_a_node_stays_if_nothing_can_be_sent_on(monkeypatch: pytest.MonkeyPatch) -> None:
    _, node = kept()
    monkeypatch.setattr(drain_spools, "STUCK_S", 0.01)
    with pytest.raises(AdminError, match="'q' in vhost '/' cannot be sent on: b cannot be reached"):
        await drain_spools.sent_on(node)
    assert not node.broker.spools.watchers


async def test_a_node_that_stops_waits_for_nothing() -> None:
    _, node = kept()
    node.stopped.set_result(None)
    await drain_spools.sent_on(node)
