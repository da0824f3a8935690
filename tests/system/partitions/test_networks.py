"""Real links that are cut, under load, for each strategy: see `soak`, of which this is the short form."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pika
import pytest

from tests.support.members import PERSISTENT
from tests.support.networks import Archipelago, Network, why_not
from tests.support.servers import until
from tests.system.mirrors.ledger import Ledger
from tests.system.mirrors.rings import await_in_sync, declare, mirror
from tests.system.partitions.soak import CONFIG, STRATEGIES, set_strategy, soak, spooled

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


@pytest.mark.parametrize("strategy", ["ignore", "autoheal"])
def test_a_publisher_at_a_master_that_is_cut_off_has_its_answers(nodes: Archipelago, strategy: str) -> None:
    """What it had sent before the cut is confirmed while the network is still parted, and is in the queue once."""
    set_strategy(nodes, strategy)
    queue = f"in-doubt-{strategy}"
    mirror(nodes[0], queue)
    declare(nodes[0], queue)
    await_in_sync(nodes[0], queue, nodes)
    ledger = Ledger(nodes, random.Random(7))
    book = ledger.add(queue, publishers=1, readers=1, at=[nodes[0]], window=500, pause_s=0.1)
    with ledger:
        ledger.await_progress(1_000)
        nodes.network.part([1])
        until(lambda: nodes[1].name not in nodes[0].status()["running_nodes"], "the master is cut off")
        before = book.confirmed_count
        until(lambda: book.confirmed_count >= before + 1_000, "publishes are confirmed though the master is cut off")
        nodes.network.heal()
        nodes.mend()
        ledger.await_progress(1_000)
        ledger.finish()
        until(lambda: not spooled(nodes[0]), "the spool is empty")
    assert not book.refused_count


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
