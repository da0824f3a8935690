"""Two nodes whose link is cut for real, with `ignore`: clients at both go on, and nothing is lost or there twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pika
import pytest

from tests.support.consumer import get_all, numbers
from tests.support.members import PERSISTENT, Member
from tests.support.networks import Archipelago, Network, why_not
from tests.support.servers import until
from tests.system.mirrors.rings import await_in_sync, await_master, declare, master_of, mirror
from tests.system.partitions.soak import spooled

pytestmark = pytest.mark.skipif(why_not() is not None, reason=why_not() or "")

CONFIG = "net_ticktime = 1\ncluster.operation_timeout = 2000\ncluster_partition_handling = ignore"
QUEUE = "q"


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Archipelago]:
    with Network(2) as network:
        nodes = Archipelago(network, tmp_path_factory.mktemp("pair"), CONFIG)
        try:
            nodes.start()
            mirror(nodes[0], QUEUE)
            yield nodes
        finally:
            nodes.end()


@pytest.fixture
def pair(nodes: Archipelago) -> Archipelago:
    """With an empty queue that both have."""
    nodes[0].channel().queue_delete(QUEUE)
    declare(nodes[0], QUEUE)
    await_in_sync(nodes[0], QUEUE, nodes)
    return nodes


class Reader:
    """A consumer that acknowledges what it gets, and notes it."""

    def __init__(self, node: Member) -> None:
        self.channel = node.channel()
        self.channel.basic_qos(prefetch_count=10)
        self.seen: list[tuple[int, bool]] = []
        self.channel.basic_consume(QUEUE, self._on_message)

    def _on_message(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        self.seen.append((int(body), method.redelivered))
        channel.basic_ack(method.delivery_tag)

    def wait_for(self, *wanted: int) -> None:
        def has_all() -> bool:
            self.channel.connection.process_data_events(0.05)
            return {number for number, _ in self.seen} >= set(wanted)

        until(has_all, f"{len(wanted)} messages come, {len(self.seen)} have")


def cut(pair: Archipelago, master: str) -> tuple[Member, Member]:
    """The leader, which goes on, and the node that is left alone; `master` says which of them leads the queue."""
    leader = pair.leader()
    alone = pair.others(leader)[0]
    wanted = leader if master == "leader" else alone
    if master_of(pair, QUEUE) is not wanted:
        wanted.control("move_queue_master", vhost="/", name=QUEUE, node=wanted.name)
        await_master(wanted, QUEUE, [wanted])
        await_in_sync(wanted, QUEUE, pair)
    publish(leader, *range(50))
    pair.network.cut(1, 2)
    until(lambda: not alone.status()["running_nodes"][1:], "they have lost each other")
    return leader, alone


def heal(pair: Archipelago) -> None:
    pair.network.heal()
    pair.wait_until_whole()
    until(lambda: not any(spooled(node) for node in pair), "the spools are empty")
    until(lambda: not any(settled(node) for node in pair), "what was acknowledged is known to the master")
    await_in_sync(pair[0], QUEUE, pair)


def settled(node: Member) -> int:
    """How many messages were acknowledged there while it was alone, and the master does not know."""
    count: int = node.control("local_partition")["detached"]["settled"]
    return count


def publish(node: Member, *wanted: int) -> None:
    channel = node.channel(confirms=True)
    for body in numbers(*wanted):
        channel.basic_publish("", QUEUE, body, PERSISTENT)


def in_queue(pair: Archipelago) -> list[int]:
    return sorted(map(int, get_all(pair[0].channel(), QUEUE)))


@pytest.mark.parametrize("master", ["leader", "other"])
def test_clients_at_both_nodes_go_on(pair: Archipelago, master: str) -> None:
    """The node that is alone hands out what it has, marked; what is acknowledged there is gone when all is healed."""
    leader, alone = cut(pair, master)
    reader = Reader(alone)
    reader.wait_for(*range(50))
    assert all(redelivered for _, redelivered in reader.seen)
    assert sorted(number for number, _ in reader.seen) == list(range(50))
    reader.channel.connection.close()
    command = f"leveretctl -n {alone.name} go_on_alone"
    assert f"This node waits for {leader.name}" in alone.log() and command in alone.log()
    with pytest.raises(pika.exceptions.AMQPError, match=f"To go on without {leader.name}: {command}"):
        alone.channel().queue_declare("another", durable=True)
    publish(alone, *range(100, 120))
    publish(leader, *range(200, 220))
    heal(pair)
    assert in_queue(pair) == [*range(100, 120), *range(200, 220)]


def test_both_consume_and_the_second_delivery_is_marked(pair: Archipelago) -> None:
    leader, alone = cut(pair, "leader")
    here, there = Reader(alone), Reader(leader)
    here.wait_for(*range(50))
    there.wait_for(*range(50))
    assert all(redelivered for _, redelivered in here.seen + there.seen)
    publish(leader, *range(200, 210))
    there.wait_for(*range(200, 210))
    assert [redelivered for number, redelivered in there.seen if number >= 200] == 10 * [False]
    heal(pair)
    for reader in (here, there):
        reader.channel.connection.close()
    assert in_queue(pair) == []


def test_the_node_that_is_alone_dies_and_what_it_acknowledged_stays_acknowledged(pair: Archipelago) -> None:
    _, alone = cut(pair, "leader")
    channel = alone.channel()
    channel.basic_qos(prefetch_count=20)
    got: list[int] = []
    channel.basic_consume(QUEUE, lambda _, method, properties, body: got.append(int(body)))

    def has_some() -> bool:
        channel.connection.process_data_events(0.05)
        return len(got) == 20

    until(has_some, "20 messages come")
    channel.basic_ack(10, multiple=True)
    proof = alone.channel(confirms=True)  # Its confirm says that the disk has what came before it.
    until(lambda: settled(alone) == 10, "they are acknowledged")
    proof.basic_publish("", QUEUE, b"100", PERSISTENT)
    alone.kill()
    alone.spawn()
    pair.network.heal()
    alone.wait_until_ready()
    heal(pair)
    assert in_queue(pair) == sorted({*range(50), 100} - set(got[:10]))


@pytest.mark.parametrize("master", ["leader", "other"])
def test_what_is_published_at_the_node_that_is_alone_is_delivered_there(pair: Archipelago, master: str) -> None:
    """Not marked, for nobody else has it; what is acknowledged never enters the queue, and the rest does once."""
    _, alone = cut(pair, master)
    reader = Reader(alone)
    publish(alone, *range(100, 120))
    reader.wait_for(*range(50), *range(100, 120))
    assert [one for one in reader.seen if one[0] >= 100] == [(number, False) for number in range(100, 120)]
    until(lambda: spooled(alone) == 0, "what was acknowledged is not kept any more")
    reader.channel.connection.close()
    publish(alone, *range(200, 210))
    holder = alone.channel()
    holder.basic_qos(prefetch_count=5)
    held: list[int] = []
    holder.basic_consume(QUEUE, lambda _, method, properties, body: held.append(int(body)))

    def has_five() -> bool:
        holder.connection.process_data_events(0.05)
        return len(held) == 5

    until(has_five, "5 messages come")
    assert held == list(range(200, 205))
    holder.basic_ack(2, multiple=True)
    until(lambda: spooled(alone) == 8, "two of them are gone")
    holder.connection.close()
    heal(pair)
    there = Reader(pair[0])
    there.wait_for(*range(202, 210))
    there.channel.connection.close()
    assert there.seen == [(number, number < 207) for number in range(202, 210)]  # Two more came for those two.
    assert in_queue(pair) == []


def test_the_node_that_is_alone_dies_and_what_it_delivered_out_of_its_spool_comes_once_more(pair: Archipelago) -> None:
    """Marked, unless it was acknowledged; then it does not come again."""
    _, alone = cut(pair, "leader")
    publish(alone, *range(100, 120))
    reader = alone.channel()
    reader.basic_qos(prefetch_count=60)
    got: list[int] = []
    reader.basic_consume(QUEUE, lambda _, method, properties, body: got.append(int(body)))

    def has_all() -> bool:
        reader.connection.process_data_events(0.05)
        return len(got) == 60

    until(has_all, "60 messages come")
    reader.basic_ack(55, multiple=True)
    until(lambda: spooled(alone) == 15, "five of the new ones are acknowledged")
    alone.channel(confirms=True).basic_publish("", QUEUE, b"200", PERSISTENT)  # So the disk has that, too.
    alone.kill()
    alone.spawn()
    pair.network.heal()
    alone.wait_until_ready()
    heal(pair)
    there = Reader(pair[0])
    there.wait_for(*range(105, 120), 200)
    there.channel.connection.close()
    assert sorted(there.seen) == [(number, True) for number in (*range(105, 120), 200)]
