"""A stream in a cluster: read at any node, and on from the same offset when another node leads it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.consumer import Consumer, fill
from tests.support.members import Cluster, Member
from tests.system.mirrors.rings import await_in_sync, await_master, declare

STREAM = {"x-queue-type": "stream"}


def reader(node: Member, name: str, offset: Any, prefetch: int = 40) -> Consumer:
    channel = node.channel()
    channel.basic_qos(prefetch_count=prefetch)
    return Consumer(channel, name, arguments={"x-stream-offset": offset})


def read(there: Consumer, count: int) -> list[tuple[int, bytes]]:
    """What comes next, acknowledged as it comes."""
    found: list[tuple[int, bytes]] = []
    while len(found) < count:
        ((method, properties, body),) = there.take(1)
        there.channel.basic_ack(method.delivery_tag)
        found.append((properties.headers["x-stream-offset"], body))
    return found


def numbered(*wanted: int) -> list[tuple[int, bytes]]:
    return [(number, b"%d" % number) for number in wanted]


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_readers_go_on_when_the_master_is_lost(nodes: Cluster, name: str, how: str) -> None:
    master, other, third = nodes
    declare(master, name, arguments=STREAM)
    await_in_sync(other, name, nodes)  # Without a word, it has members everywhere.
    publisher = third.channel(confirms=True)
    fill(publisher, name, range(200))
    busy, held, waiting = reader(other, name, "first"), reader(third, name, 50), reader(other, name, "next")
    assert read(busy, 100) == numbered(*range(100))
    unacknowledged = held.take(40)
    master.kill() if how == "kill" else master.stop()
    fill(publisher, name, range(200, 300))
    await_master(other, name, (other, third))
    assert read(busy, 200) == numbered(*range(100, 300))
    assert read(waiting, 100) == numbered(*range(200, 300))
    held.channel.basic_ack(unacknowledged[-1][0].delivery_tag, multiple=True)
    assert read(held, 210) == numbered(*range(90, 300))
    nodes.start()
    await_in_sync(other, name, nodes)
    assert read(reader(master, name, 290), 10) == numbered(*range(290, 300))
    assert all(there.is_idle() for there in (busy, held, waiting))
