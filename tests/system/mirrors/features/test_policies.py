"""Policies say where copies are, and may change their mind while a queue is used."""

from __future__ import annotations

import random

import pytest

from tests.support.consumer import fill, get_all, numbers, waiting
from tests.support.members import PERSISTENT, Cluster, Member, StartCluster
from tests.support.servers import until
from tests.system.mirrors.ledger import Ledger
from tests.system.mirrors.rings import await_in_sync, copies, declare, is_in_sync, mirror, unmirror


def test_a_policy_changes_under_load(nodes: Cluster, name: str) -> None:
    """all, exactly 2, nodes, nodes without the master, none: each takes effect, and clients notice nothing."""
    master, one, other = nodes
    mirror(master, name)
    declare(master, name)
    ledger = Ledger(nodes, random.Random(1))
    book = ledger.add(name, publishers=3, readers=2)
    with ledger:
        await_in_sync(one, name, nodes)
        ledger.await_progress(50)

        mirror(one, name, "exactly", 2)
        until(lambda: len(copies(one, name).synchronised) == 1 == len(copies(one, name).mirrors), "there are two")
        assert copies(one, name).master == master.name
        ledger.await_progress(50)

        mirror(one, name, "nodes", [master.name, other.name])
        await_in_sync(one, name, (master, other))
        assert copies(one, name).master == master.name
        ledger.await_progress(50)

        mirror(one, name, "nodes", [one.name])
        until(lambda: copies(one, name).master == one.name, "the queue has moved to the only node that is wanted")
        await_in_sync(one, name, (one,))
        ledger.await_progress(50)

        mirror(one, name, "nodes", [other.name, one.name])
        await_in_sync(one, name, (one, other))
        assert copies(one, name).master == one.name

        unmirror(one, name)
        await_in_sync(one, name, (one,))
        ledger.await_progress(50)
        ledger.finish()
    assert book.cancels == 0
    assert all(client.connections == 1 for client in ledger.clients)
    declare(other, name)
    assert waiting(master.channel(), name) == 0


def test_exactly_two_stay_two(nodes: Cluster, name: str) -> None:
    """When one of them is lost, the third node takes its place."""
    master = nodes[0]
    mirror(master, name, "exactly", 2)
    declare(master, name)
    fill(master.channel(confirms=True), name, range(100), properties=PERSISTENT)
    until(lambda: len(copies(master, name).synchronised) == 1, "there are two")
    (second,) = (node for node in nodes if node.name in copies(master, name).mirrors)
    (third,) = nodes.others(master, second)
    second.kill()
    await_in_sync(master, name, (master, third))
    master.kill()
    nodes.start()
    assert get_all(second.channel(), name) == numbers(*range(100))


def test_a_policy_comes_and_goes(nodes: Cluster, name: str) -> None:
    """Declared, used and deleted while the policy flips: every message is delivered."""
    for round_ in range(12):
        node = nodes[round_ % 3]
        mirror(node, name) if round_ % 2 else unmirror_quietly(node, name)
        channel = node.channel(confirms=True)
        channel.queue_declare(name, durable=True)
        fill(channel, name, range(10), properties=PERSISTENT)
        unmirror_quietly(nodes[0], name) if round_ % 2 else mirror(nodes[0], name)
        fill(channel, name, range(10, 20), properties=PERSISTENT)
        assert get_all(nodes[(round_ + 1) % 3].channel(), name) == numbers(*range(20))
        channel.queue_delete(name)
        channel.connection.close()


def unmirror_quietly(node: Member, name: str) -> None:
    if any(policy["name"] == name for policy in node.control("list_policies", vhost="/", operator=False)):
        unmirror(node, name)


@pytest.mark.parametrize("durable", [True, False], ids=["durable", "not-durable"])
def test_rapid_redeclare(nodes: Cluster, name: str, durable: bool) -> None:
    mirror(nodes[0], name)
    channel = nodes[1].channel(confirms=True)
    for _ in range(20):
        channel.queue_declare(name, durable=durable)
        channel.basic_publish("", name, b"x", PERSISTENT)
        channel.queue_delete(name)


def test_nodes_come_and_go(start_cluster: StartCluster) -> None:
    """A node that joins gets a copy of what is mirrored to all; one that is forgotten is missed by nobody."""
    nodes = start_cluster("cluster.operation_timeout = 5000")
    mirror(nodes[0], "q")
    declare(nodes[0], "q")
    fill(nodes[0].channel(confirms=True), "q", range(100), properties=PERSISTENT)
    fourth = Member(nodes[0].folder.parent / "n4", "n4@localhost", nodes[0].config, join=(nodes[0].cluster_port,))
    nodes.nodes.append(fourth)
    nodes.start()
    await_in_sync(fourth, "q", nodes)
    nodes[0].kill()
    assert waiting(fourth.channel(), "q") == 100
    until(lambda: len(nodes[1].status()["running_nodes"]) == 3, "its loss was noticed")
    nodes[1].control("forget_cluster_node", name=nodes[0].name)
    left = nodes.nodes[1:]
    until(lambda: is_in_sync(nodes[1], "q", left), "the ring goes on without it")
    fill(nodes[1].channel(confirms=True), "q", range(100, 110), properties=PERSISTENT)
    assert get_all(fourth.channel(), "q") == numbers(*range(110))
