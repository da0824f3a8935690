"""STOMP in a cluster of three: queues of other nodes, and a mirrored queue whose master is killed."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.members import Cluster, Member
from tests.system.mirrors.rings import await_in_sync, master_of, mirror
from tests.system.stomp.stomp_client import StompPy

CONFIG = "stomp.listeners.tcp.1 = 127.0.0.1:0\nnet_ticktime = 2\n"


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("stomp-trio"), CONFIG)
    try:
        yield cluster.start()
    finally:
        cluster.end()


def listed(node: Member, command: str, columns: list[str]) -> list[list[Any]]:
    rows, after = [], None
    while True:
        answer = node.control(command, columns=columns, after=after)
        rows += answer["rows"]
        after = answer["next"]
        if after is None:
            return rows


def test_a_queue_of_another_node(trio: Cluster) -> None:
    consumer, producer = StompPy(trio[1].stomp_port), StompPy(trio[2].stomp_port)
    StompPy(trio[0].stomp_port).client.send("/queue/far", "first")
    assert consumer.client.is_connected()
    consumer.client.subscribe("/queue/far", id="1", ack="client-individual")
    assert consumer.message().body == "first"
    for number in range(50):
        producer.client.send("/queue/far", str(number), headers={"persistent": "true", "receipt": str(number)})
    assert [producer.receipt() for _ in range(50)] == list(map(str, range(50)))
    got = [consumer.message() for _ in range(50)]
    assert [one.body for one in got] == list(map(str, range(50)))
    columns = ["version", "subscriptions", "conn_name", "node"]
    assert {(row[0], row[1]) for row in listed(trio[0], "list_stomp_connections", columns)} >= {("1.2", 1), ("1.2", 0)}
    assert ["STOMP 1.2"] in listed(trio[0], "list_connections", ["protocol"])
    consumer.end()
    producer.end()


def test_a_killed_master(trio: Cluster) -> None:
    """Nothing that has a receipt is lost; what comes twice is marked."""
    mirror(trio[0], "ha.stomp")
    first = StompPy(trio[0].stomp_port)
    first.client.send("/queue/ha.stomp", "-1", headers={"persistent": "true", "receipt": "-1"})
    assert first.receipt() == "-1"  # Without one, the message may be lost with the node that it was sent to.
    await_in_sync(trio[0], "ha.stomp", trio)
    master = master_of(trio, "ha.stomp")
    other, last = trio.others(master)
    consumer, producer = StompPy(other.stomp_port), StompPy(last.stomp_port)
    consumer.client.subscribe("/queue/ha.stomp", id="1", ack="client-individual")
    for number in range(300):
        producer.client.send("/queue/ha.stomp", str(number), headers={"persistent": "true", "receipt": str(number)})
        if number == 150:
            master.kill()
    receipts = {producer.receipt() for _ in range(300)}
    assert receipts == set(map(str, range(300)))
    seen: dict[str, int] = {}
    while len(seen) < 301:
        message = consumer.message()
        assert message.body not in seen or message.headers["redelivered"] == "true"
        seen[message.body] = seen.get(message.body, 0) + 1
        consumer.client.ack(message.headers["ack"])
    with pytest.raises(queue.Empty):
        consumer.events.get_nowait()
    consumer.end()
    producer.end()
    master.start()
    trio.wait_until_whole()
