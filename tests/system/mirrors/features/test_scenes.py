"""The three scenes that mirrored queues have to pass, as their users describe them."""

from __future__ import annotations

from typing import Any

from tests.support.consumer import Consumer, fill, get_all, numbers, waiting
from tests.support.members import PERSISTENT, StartCluster
from tests.system.mirrors.rings import await_in_sync, await_master, copies, declare, mirror

CONFIG = "cluster.operation_timeout = 5000"


def test_a_stopped_server_gets_its_copy_when_it_returns(start_cluster: StartCluster) -> None:
    """Two servers, a queue, a subscriber. The other server is stopped and started again, and once its copy is in sync
    the first one may be stopped, too. Two servers need both to serve, so nothing is published while one is down."""
    here, other = nodes = start_cluster(CONFIG, size=2)
    mirror(here, "orders")
    declare(here, "orders")
    subscriber = Consumer(here.channel(), "orders")
    fill(here.channel(confirms=True), "orders", range(10), properties=PERSISTENT)
    taken = subscriber.take(10)
    subscriber.channel.basic_ack(taken[-1][0].delivery_tag, multiple=True)
    subscriber.channel.basic_cancel(subscriber.tag)

    other.stop()
    other.start()
    nodes.wait_until_whole()
    await_in_sync(here, "orders", nodes)
    fill(here.channel(confirms=True), "orders", range(10, 30), properties=PERSISTENT)
    here.stop()
    here.start()
    nodes.wait_until_whole()
    assert waiting(other.channel(), "orders") == 20
    assert Consumer(other.channel(), "orders").bodies(20) == numbers(*range(10, 30))


def test_consumption_goes_on_while_one_server_is_down(start_cluster: StartCluster) -> None:
    """A subscriber at each server, and one server after the other goes down and returns. The others' subscribers go on
    by themselves, and each message arrives."""
    nodes = start_cluster(CONFIG)
    mirror(nodes[0], "orders")
    declare(nodes[0], "orders")
    number = 0
    for down in nodes:
        up = nodes.others(down)
        await_in_sync(up[0], "orders", nodes)
        subscribers = [Consumer(node.channel(), "orders") for node in up]
        publisher = up[0].channel(confirms=True)
        down.stop()
        fill(publisher, "orders", range(number, number + 20), properties=PERSISTENT)
        seen = sorted(int(body) for body in _take_from_all(subscribers, 20))
        assert seen == list(range(number, number + 20))
        assert copies(up[0], "orders").master != down.name
        number += 20
        for subscriber in subscribers:
            subscriber.channel.connection.close()
        down.start()
        nodes.wait_until_whole()
    assert get_all(nodes[0].channel(), "orders") == []


def _take_from_all(consumers: list[Consumer], count: int) -> list[bytes]:
    """What all of them get together, acknowledged."""
    taken: list[bytes] = []
    for _ in range(1_000):
        for consumer in consumers:
            consumer.channel.connection.process_data_events(0.01)
            seen, consumer.seen = consumer.seen, []
            for method, _properties, body in seen:
                consumer.channel.basic_ack(method.delivery_tag)
                taken.append(body)
        if len(taken) >= count:
            break
    return taken


def test_three_brokers_three_queues_three_masters(start_cluster: StartCluster) -> None:
    """Each broker is the master of one queue and has copies of the two others. One broker is lost: its queue has
    another master, and all three queues have all their messages, wherever one asks."""
    nodes = start_cluster(CONFIG)
    mirror(nodes[0], "queue")
    queues = ["queue-1", "queue-2", "queue-3"]
    for node, queue in zip(nodes, queues, strict=True):
        declare(node, queue)
    for number, queue in enumerate(queues):
        publisher = nodes[(number + 1) % 3].channel(confirms=True)
        fill(publisher, queue, range(100 * number, 100 * number + 50), properties=PERSISTENT)
    for node, queue in zip(nodes, queues, strict=True):
        assert copies(nodes[0], queue).master == node.name
        await_in_sync(nodes[0], queue, nodes)

    nodes[1].kill()
    await_master(nodes[0], "queue-2", (nodes[0], nodes[2]))
    for number, queue in enumerate(queues):
        first: Any = nodes[0].channel()
        assert waiting(first, queue) == waiting(nodes[2].channel(), queue) == 50
        assert get_all(nodes[2].channel(), queue) == numbers(*range(100 * number, 100 * number + 50))
        assert waiting(first, queue) == 0
