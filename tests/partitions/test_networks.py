"""Real links that are cut, under load, for each strategy: see `soak`, of which this is the short form."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pika
import pytest

from tests.members import PERSISTENT
from tests.networks import Archipelago, Network, why_not
from tests.partitions.soak import CONFIG, STRATEGIES, set_strategy, soak, spooled
from tests.servers import until

pytestmark = pytest.mark.skipif(why_not() is not None, reason=why_not() or "")

ALWAYS = ("pause_minority", "ignore")
SECONDS = float(os.environ.get("LEVERET_PARTITION_SECONDS", "4"))


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Archipelago]:
    with Network(3) as network:
        nodes = Archipelago(network, tmp_path_factory.mktemp("archipelago"), CONFIG)
        try:
            nodes.start()
            yield nodes
        finally:
            nodes.end()


@pytest.mark.parametrize(
    "strategy", [pytest.param(one, marks=() if one in ALWAYS else pytest.mark.long) for one in STRATEGIES]
)
def test_nothing_confirmed_is_lost(nodes: Archipelago, strategy: str) -> None:
    assert soak(nodes, strategy, seed=7, seconds=SECONDS, prefix=strategy) > 0


def test_publishers_that_are_cut_off_are_confirmed_by_the_spool(nodes: Archipelago) -> None:
    """And what they sent arrives once, in order, when the network is whole again."""
    set_strategy(nodes, "ignore")
    home, _, edge = nodes
    there = home.channel(confirms=True)
    there.queue_declare("far", durable=True)
    publisher = edge.channel(confirms=True)
    publisher.basic_publish("", "far", b"0", PERSISTENT)
    nodes.network.part([3])
    until(lambda: home.name not in edge.status()["running_nodes"], "the edge has lost the queue's home")
    for number in range(1, 50):
        publisher.basic_publish("", "far", b"%d" % number, PERSISTENT)
    assert spooled(edge) == 49
    assert there.queue_declare("far", passive=True).method.message_count == 1
    edge.kill()
    edge.spawn()
    nodes.network.heal()
    edge.wait_until_ready()
    nodes.wait_until_whole()
    until(lambda: not spooled(edge), "the spool is empty")
    found = [there.basic_get("far", auto_ack=True) for _ in range(50)]
    assert [body for _, _, body in found] == [b"%d" % number for number in range(50)]
    # The edge may have sent them before it died, and somebody seen them.
    assert [method.redelivered for method, _, _ in found] == [False] + 49 * [True]
    assert there.basic_get("far")[0] is None


def test_a_paused_minority_refuses_and_the_majority_goes_on(nodes: Archipelago) -> None:
    set_strategy(nodes, "pause_minority")
    left, one, other = nodes
    nodes.network.part([1])
    until(lambda: left.control("local_partition")["paused_since_ms"] is not None, "the minority pauses")
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        left.connect()
    for queue, node in (("at one", one), ("at the other", other)):
        channel = node.channel(confirms=True)
        channel.queue_declare(queue, durable=True)
        channel.basic_publish("", queue, b"1", PERSISTENT)
    nodes.network.heal()
    nodes.wait_until_whole()
    assert left.channel().basic_get("at one", auto_ack=True)[2] == b"1"
