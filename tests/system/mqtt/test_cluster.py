"""MQTT in a cluster of three: retained messages, client ids and wills, also when the node of a client is killed."""

from __future__ import annotations

import queue
from collections.abc import Iterator

import pytest

from tests.support.members import Cluster
from tests.system.mqtt.paho_client import Paho
from tests.system.mqtt.test_clients import CONFIG


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("mqtt-trio"), f"{CONFIG}net_ticktime = 2\n")
    try:
        yield cluster.start()
    finally:
        cluster.end()


def retained(port: int, client_id: str, topic_filter: str, count: int) -> dict[str, bytes]:
    """Returns the retained messages that a new subscriber gets."""
    client = Paho(port, client_id)
    client.subscribe(topic_filter, 1)
    found = [client.message() for _ in range(count)]
    client.end()
    assert all(one.retain for one in found)
    return {one.topic: bytes(one.payload) for one in found}


def test_a_client_id_is_taken_over_from_another_node(trio: Cluster) -> None:
    first = Paho(trio[0].mqtt_port, "taken")
    second = Paho(trio[1].mqtt_port, "taken")
    name, reason = first.event()
    assert name == "disconnect" and reason.value == 0x8E
    first.end()
    second.end()


def test_retained_messages_are_found_at_every_node(trio: Cluster) -> None:
    publisher = Paho(trio[0].mqtt_port, "keeper")
    for number in range(20):
        publisher.publish(f"rooms/{number % 4}/state", b"%d" % number, 1, retain=True)
    publisher.end()
    for number, node in enumerate(trio):
        found = retained(node.mqtt_port, f"reader {number}", "rooms/+/state", 4)
        assert found == {f"rooms/{number}/state": b"%d" % (16 + number) for number in range(4)}


def test_a_killed_node_leaves_the_wills_of_its_clients_once(trio: Cluster) -> None:
    leader = trio.leader()
    other, last = trio.others(leader)
    watcher = Paho(last.mqtt_port, "watcher")
    watcher.subscribe("wills/#", 1)
    lost = [Paho(leader.mqtt_port, f"lost {number}", will=(f"wills/{number}", b"gone", 1, True)) for number in range(5)]
    leader.kill()
    for client in lost:
        client.end()
    found = sorted(watcher.message().topic for _ in range(5))
    assert found == [f"wills/{number}" for number in range(5)]
    assert len(retained(other.mqtt_port, "later", "wills/+", 5)) == 5
    leader.start()
    trio.wait_until_whole()
    with pytest.raises(queue.Empty):
        watcher.messages.get(timeout=2)
    watcher.end()
