"""Nodes are stopped and started, alone and all together, in any order, under load, at other ports."""

from __future__ import annotations

import random
import threading

import pika
import pytest

from tests.support.consumer import Consumer, fill, get_all, numbers, waiting
from tests.support.members import PERSISTENT, Cluster, StartCluster, free_port, refusal
from tests.support.servers import until


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_all_stopped_and_started(nodes: Cluster, name: str, how: str) -> None:
    """In one order down, in another one up; the first up waits for a majority."""
    queues = [f"{name}-{number}" for number in range(3)]
    for node, queue in zip(nodes, queues, strict=True):
        channel = node.channel(confirms=True)
        channel.queue_declare(queue, durable=True)
        channel.queue_declare(f"{queue}-transient")
        channel.exchange_declare(queue, "fanout", durable=True)
        channel.queue_bind(queue, queue)
        channel.basic_publish(queue, "", b"kept", PERSISTENT)
    order = random.sample(nodes.nodes, 3)
    for node in order:
        if how == "stop":
            assert node.stop() == 0
        else:
            node.kill()
    order = random.sample(nodes.nodes, 3)
    print("started in this order:", [node.name for node in order])
    for node in order:
        node.spawn()
    for node in order:
        node.wait_until_ready()
    nodes.wait_until_whole()
    for node in nodes:
        channel = node.channel()
        assert [waiting(channel, queue) for queue in queues] == [1, 1, 1]
    for queue in queues:
        assert get_all(nodes[0].channel(), queue) == [b"kept"]
        assert refusal(nodes[1].channel().queue_declare, f"{queue}-transient", passive=True)[0] == 404


def declare_transient(nodes: Cluster, name: str) -> None:
    """A non-durable exchange between durable ones, bound to a durable queue."""
    channel = nodes[0].channel()
    channel.exchange_declare(name, "fanout", durable=False)
    channel.exchange_declare(f"{name}-durable", "fanout", durable=True)
    channel.queue_declare(name, durable=True)
    channel.queue_bind(name, name)
    channel.queue_bind(name, f"{name}-durable")
    channel.exchange_bind(name, f"{name}-durable")


def kept(nodes: Cluster, name: str) -> list[bool]:
    """Whether each node has the non-durable exchange with its bindings. The durable one must be there in any case."""
    found = []
    for node in nodes:
        channel = node.channel(confirms=True)
        channel.queue_purge(name)
        channel.basic_publish(f"{name}-durable", "", b"", PERSISTENT, mandatory=True)
        is_there = True
        try:
            channel.basic_publish(name, "", b"", PERSISTENT, mandatory=True)
        except pika.exceptions.ChannelClosedByBroker as error:
            assert error.reply_code == 404
            is_there = False
        assert waiting(node.channel(), name) == 1 + is_there
        found.append(is_there)
    return found


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_non_durable_exchanges_end_with_the_last_node(nodes: Cluster, name: str, how: str) -> None:
    declare_transient(nodes, name)
    assert kept(nodes, name) == [True, True, True]
    for node in nodes:
        if how == "stop":
            assert node.stop() == 0
        else:
            node.kill()
    for node in nodes:
        node.spawn()
    for node in nodes:
        node.wait_until_ready()
    nodes.wait_until_whole()
    assert kept(nodes, name) == [False, False, False]
    declare_transient(nodes, name)  # As another type, too, it could be declared: nothing is left of it.
    assert kept(nodes, name) == [True, True, True]


def test_non_durable_exchanges_end_although_a_node_stays_away(nodes: Cluster, name: str) -> None:
    declare_transient(nodes, name)
    for node in nodes:
        node.kill()
    first, second, third = nodes
    first.spawn()
    second.start()
    first.wait_until_ready()
    assert refusal(first.channel().exchange_declare, name, passive=True)[0] == 404
    first.channel().exchange_declare(name, "direct")  # Of this time, and not the third's to take away.
    third.start()
    nodes.wait_until_whole()
    for node in nodes:
        node.channel().exchange_declare(name, "direct")


def test_non_durable_exchanges_outlive_single_nodes(nodes: Cluster, name: str) -> None:
    """One after the other is restarted, and then two of three at the same time."""
    declare_transient(nodes, name)
    for node in nodes:
        assert node.stop() == 0
        node.start()
        nodes.wait_until_whole()
    assert kept(nodes, name) == [True, True, True]
    for node in nodes.nodes[1:]:
        node.kill()
    for node in nodes.nodes[1:]:
        node.spawn()
    for node in nodes.nodes[1:]:
        node.wait_until_ready()
    nodes.wait_until_whole()
    assert kept(nodes, name) == [True, True, True]


def test_restarted_under_load(nodes: Cluster, name: str) -> None:
    """A node goes and comes five times while others publish to its queues and theirs; nothing confirmed is lost."""
    victim, one, other = nodes
    for node in nodes:
        node.channel().queue_declare(f"{name}-{node.name}", durable=True)
    confirmed: dict[str, list[int]] = {f"{name}-{node.name}": [] for node in nodes}
    stop = threading.Event()
    failures: list[BaseException] = []

    def publish() -> None:
        channel = one.channel(confirms=True)
        number = 0
        while not stop.is_set():
            number += 1
            for queue, numbers_ in confirmed.items():
                try:
                    channel.basic_publish("", queue, b"%d" % number, PERSISTENT)
                except pika.exceptions.NackError:
                    continue
                numbers_.append(number)

    def guarded() -> None:
        try:
            publish()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=guarded)
    thread.start()
    try:
        for _ in range(5):
            victim.kill()
            victim.start()
            before = len(confirmed[f"{name}-{victim.name}"])
            until(lambda before=before: len(confirmed[f"{name}-{victim.name}"]) > before or failures, "it takes part")  # type: ignore[misc]
    finally:
        stop.set()
        thread.join()
    assert not failures, failures
    nodes.wait_until_whole()
    for queue, numbers_ in confirmed.items():
        kept = [int(body) for body in get_all(other.channel(), queue)]
        assert kept == sorted(set(kept)), "in order, once"
        assert set(numbers_) <= set(kept)


def test_a_node_at_another_port(nodes: Cluster, name: str) -> None:
    """It tells the others where it is; they need not be restarted."""
    mover = nodes.others(nodes.leader(), nodes[0])[0]  # Later tests start nodes that join at the first one's port.
    mover.channel().queue_declare(name, durable=True)
    mover.stop()
    mover.cluster_port, mover.port = free_port(), free_port()
    mover.start()
    nodes.wait_until_whole()
    addresses = {one["name"]: one["address"] for one in nodes.leader().status()["members"]}
    assert addresses[mover.name] == f"127.0.0.1:{mover.cluster_port}"
    channel = nodes.leader().channel(confirms=True)
    fill(channel, name, range(3), properties=PERSISTENT)
    assert get_all(mover.channel(), name) == numbers(0, 1, 2)


def test_a_controlled_stop_tells_clients(nodes: Cluster, name: str) -> None:
    """The leader stops in order: its own clients are told, consumers elsewhere are cancelled, others lead at once."""
    leader = nodes.leader()
    one, other = nodes.others(leader)
    connection = leader.connect()
    leader.channel().queue_declare(name, durable=True)
    reader = one.channel()
    cancelled: list[str] = []
    reader.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    consumer = Consumer(reader, name)
    assert leader.stop() == 0
    assert "leads the cluster" in leader.log().rpartition("] stopping")[2]  # It knows to whom it has handed over.
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as caught:
        connection.process_data_events(60)
    assert caught.value.reply_code == 320
    until(lambda: reader.connection.process_data_events(0.05) or cancelled, "the cancel")
    assert cancelled == [consumer.tag]
    channel = other.channel()
    channel.queue_declare(f"{name}-after")
    assert waiting(reader, f"{name}-after") == 0


def test_a_cluster_of_five_loses_two(start_cluster: StartCluster) -> None:
    nodes = start_cluster(size=5)
    leader = nodes.leader()
    gone = [leader, nodes.others(leader)[0]]
    rest = nodes.others(*gone)
    for node in gone:
        node.kill()
    for number, node in enumerate(rest):
        node.channel().queue_declare(f"q{number}", durable=True)
    for node in rest:
        channel = node.channel()
        assert [waiting(channel, f"q{number}") for number in range(3)] == [0, 0, 0]


def test_counts_of_returns_outlive_a_restart_where_a_policy_asks_for_them(start_cluster: StartCluster) -> None:
    """After a start, queues are there before the node has learned of the policy again."""
    (node,) = start_cluster(size=1)
    channel = node.channel(confirms=True)
    channel.queue_declare("q", durable=True)
    node.control(
        "set_policy", vhost="/", name="limit", pattern="^q$", definition={"delivery-limit": 3}, priority=0,
        apply_to="classic_queues", operator=False,
    )  # fmt: skip
    channel.basic_publish("", "q", b"m", PERSISTENT)
    for expected in (0, 1):
        method, properties, _ = channel.basic_get("q")
        assert properties.headers == {"x-delivery-count": expected}
        channel.basic_nack(method.delivery_tag, requeue=True)
    channel.basic_publish("", "q", b"later", PERSISTENT)  # Confirmed behind the nack.
    node.kill()
    node.spawn()
    node.wait_until_ready()
    _, properties, body = node.channel().basic_get("q")
    assert (body, properties.headers) == (b"m", {"x-delivery-count": 2})
