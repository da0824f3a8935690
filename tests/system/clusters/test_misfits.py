"""Peers that are not as they should be: one that takes connections and says nothing, one of another version, one whose
clock jumps. The others are not troubled, and what is wrong is said."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pika
import pytest

from tests.support.consumer import fill, get_all, numbers, waiting
from tests.support.members import PERSISTENT, Cluster, Member, StartCluster
from tests.support.servers import until

HOUR = 3600


@contextmanager
def mute(port: int) -> Iterator[list[socket.socket]]:
    """Somebody listens there, accepts whoever comes, and never says a word."""
    accepted: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", port)) as listener:

        def accept() -> None:
            while True:
                try:
                    accepted.append(listener.accept()[0])
                except OSError:  # It was closed.
                    return

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield accepted
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            for one in accepted:
                one.close()


def test_a_peer_that_accepts_and_never_answers(nodes: Cluster, name: str) -> None:
    """In the place of a member. The others count it as gone, agree without it, and let the member back in."""
    gone = nodes.others(nodes.leader())[0]
    one, other = nodes.others(gone)
    gone.kill()
    with mute(gone.cluster_port) as accepted:
        until(lambda: len(accepted) >= 2, "both have dialed it")
        channel = one.channel(confirms=True)
        channel.queue_declare(name, durable=True)
        fill(other.channel(confirms=True), name, range(20), properties=PERSISTENT)
        assert set(one.status()["running_nodes"]) == {one.name, other.name}
        assert get_all(other.channel(), name) == numbers(*range(20))
    gone.start()
    nodes.wait_until_whole()
    assert waiting(gone.channel(), name) == 0


def faulty(node: Member) -> Member:
    node.launcher = (sys.executable, "-m", "tests.support.faulty", str(node.folder))
    return node


def test_a_peer_of_another_version(nodes: Cluster, name: str) -> None:
    """A member comes back as a program that speaks only later versions. It says so, is no part of the cluster, and does
    no harm to it; as the program it was, it is let in."""
    gone = nodes.others(nodes.leader())[0]
    one, other = nodes.others(gone)
    gone.kill()
    usual, before = gone.launcher, len(one.log())
    try:
        (faulty(gone).folder / "versions").write_text("7 9")
        gone.spawn()
        until(lambda: "no version of the protocol in common" in one.log()[before:], "one says why")
        until(lambda: "no version of the protocol in common" in gone.log(), "and the other")
        one.channel().queue_declare(name, durable=True)
        assert waiting(other.channel(), name) == 0
        assert set(one.status()["running_nodes"]) == {one.name, other.name}
        assert gone.is_running
    finally:
        gone.kill()
        gone.launcher = usual
    gone.start()
    nodes.wait_until_whole()
    assert waiting(gone.channel(), name) == 0


@pytest.mark.long  # The simulation's clocks jump in every test.
def test_clocks_that_jump(start_cluster: StartCluster, name: str) -> None:
    """By a day, forward and back, at one node after the other. Links, leases of leadership and heartbeats go by clocks
    that do not jump. How old messages are goes by the time of day, as it must to outlive a restart."""
    nodes = start_cluster(begin=False)
    for node in nodes:
        faulty(node)
    nodes.start()
    status = [node.status() for node in nodes]
    logs = [len(node.log()) for node in nodes]
    clients = [node.connect(heartbeat=60) for node in nodes]
    channel = clients[0].channel()
    channel.confirm_delivery()
    channel.queue_declare(name, durable=True)
    hour = pika.BasicProperties(delivery_mode=2, expiration=str(HOUR * 1000))
    fill(channel, name, range(3), properties=hour)
    fill(channel, name, range(3, 6), properties=PERSISTENT)
    for offset, expected in ((-24 * HOUR, 6), (24 * HOUR, 3)):
        for node, client in zip(nodes, clients, strict=True):
            (node.folder / "clock").write_text(str(offset))
            client.process_data_events(0.4)
        until(lambda expected=expected: waiting(channel, name) == expected, f"{expected} at {offset}")  # type: ignore[misc]
    assert get_all(channel, name) == numbers(3, 4, 5)
    assert all(client.is_open for client in clients)
    assert [node.status()["leader"] for node in nodes] == [one["leader"] for one in status]
    for node, begin in zip(nodes, logs, strict=True):
        said = node.log()[begin:]
        assert " is down" not in said and "leads the cluster" not in said and "missed heartbeats" not in said
