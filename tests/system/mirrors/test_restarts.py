"""All nodes go down, in whatever order, and come back, in whatever order: the queue has what was confirmed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pika
import pytest

from tests.support.consumer import fill, numbers, waiting
from tests.support.members import PERSISTENT, Cluster, Member
from tests.support.servers import until
from tests.system.mirrors.rings import (
    await_in_sync,
    count,
    declare,
    drain,
    fill_fast,
    master_of,
    mirror,
    settle_durably,
)


def test_all_are_killed_at_once(nodes: Cluster, name: str) -> None:
    mirror(nodes[0], name)
    declare(nodes[0], name)
    fill_fast(nodes[1], name, range(2_000))
    channel = nodes[2].channel()
    channel.basic_qos(prefetch_count=100)
    tags = [channel.basic_get(name)[0].delivery_tag for _ in range(20)]
    settle_durably(channel, name, tags[9])
    for node in nodes:
        node.kill()
    nodes.start()
    await_in_sync(nodes[0], name, nodes)
    taken = drain(nodes[0], name)
    assert [body for body, _ in taken] == [*numbers(*range(10, 2_000)), b"fence"]
    assert all(redelivered for _, redelivered in taken[:10])


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 2, 0), (2, 0, 1)], ids=["first", "last", "second"])
def test_stopped_one_by_one_while_publishing(nodes: Cluster, name: str, order: tuple[int, ...]) -> None:
    """Two return first, one of which missed the last messages. The other one has them all. The master is the first to
    go, or the last, or neither."""
    first, second, last = (nodes[at] for at in order)
    master = nodes[0]
    mirror(master, name)
    declare(master, name)
    fill(master.channel(confirms=True), name, range(20), properties=PERSISTENT)
    first.stop()
    fill(last.channel(confirms=True), name, range(20, 40), properties=PERSISTENT)
    second.stop()
    last.kill()
    # The one that was first to go, and one of those that saw it all.
    knows = second if order[0] == 0 else last
    for node in (first, knows):
        node.spawn()
    for node in (first, knows):
        node.wait_until_ready()
    until(lambda: count(first, name) == 40, "all is there again")
    fill(first.channel(confirms=True), name, range(40, 60), properties=PERSISTENT)
    nodes.start()
    await_in_sync(first, name, nodes)
    assert [body for body, _ in drain(last, name)] == numbers(*range(60))


def test_its_only_copy_is_down(nodes: Cluster, name: str) -> None:
    """The other copy lacks messages, and does not lead: the queue is down, says so, and returns with its node. If
    nobody wants to wait for that, it can be deleted, and declared again."""
    master, mirror_, witness = nodes
    params = [master.name, mirror_.name]
    mirror(master, name, "nodes", params, **{"ha-promote-on-failure": "when-synced"})
    given_up = f"{name}-given-up"
    for queue in (name, given_up):
        declare(master, queue)
        fill(witness.channel(confirms=True), queue, range(10), properties=PERSISTENT)
    mirror_.kill()
    for queue in (name, given_up):
        fill(witness.channel(confirms=True), queue, range(10, 20), properties=PERSISTENT)
    master.kill()
    mirror_.start()
    asked = [(node, queue) for node in (witness, mirror_) for queue in (name, given_up)]
    with ThreadPoolExecutor(len(asked)) as threads:  # Each waits for a while, in case another master comes.
        assert all(threads.map(lambda one: is_down(*one), asked))
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match=r"406.*may not be empty"):
        witness.channel().queue_delete(given_up, if_empty=True)
    witness.channel().queue_delete(given_up)
    declare(witness, given_up, durable=False)
    nodes.start()
    until(lambda: not is_down(witness, name), "the queue is back")
    assert waiting(mirror_.channel(), name) == 20
    assert waiting(master.channel(), given_up) == 0
    await_in_sync(witness, name, (master, mirror_))
    master_of(nodes, name).kill()
    assert [body for body, _ in drain(witness, name)] == numbers(*range(20))


def is_down(node: Member, queue: str) -> bool:
    try:
        node.channel().queue_declare(queue, passive=True)
    except pika.exceptions.ChannelClosedByBroker as error:
        assert error.reply_code == 404
        assert "is down or inaccessible" in error.reply_text
        return True
    return False


def test_a_whole_cluster_restarts_node_by_node(nodes: Cluster, name: str) -> None:
    """As for a new version: one after the other, each waits for the one before. Nothing is out of reach meanwhile."""
    mirror(nodes[0], name)
    declare(nodes[0], name)
    number = 0
    for node in nodes:
        await_in_sync(nodes.others(node)[0], name, nodes)
        assert node.stop() == 0
        other = nodes.others(node)[0]
        fill(other.channel(confirms=True), name, range(number, number + 10), properties=PERSISTENT)
        number += 10
        nodes.start()
    await_in_sync(nodes[0], name, nodes)
    assert [body for body, _ in drain(nodes[0], name)] == numbers(*range(number))
