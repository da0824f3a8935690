"""Nothing is lost and nothing comes twice between two Leverets, whatever breaks meanwhile; one node runs a shovel."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

import pika
import pytest

import leveret.testing
from leveret.node.shovels import supervisor
from leveret.protocol import bundles
from leveret.sessions.amqp import handshake
from leveret.sessions.amqp.origin_channel import OriginChannel
from leveret.testing import Broker, Cluster
from tests.support.servers import until
from tests.system.shovel.conftest import Site

COUNT = 4_000


def bodies(count: int) -> list[bytes]:
    return [b"message %d" % number for number in range(count)]


def publish(url: str, count: int) -> None:
    """Publish persistent messages fast, and wait for the confirms of all."""
    with CommittedChannel(url) as channel:
        for body in bodies(count):
            channel.basic_publish("", "a", body, pika.BasicProperties(delivery_mode=2))


class CommittedChannel:
    """A channel whose messages are confirmed when it is closed."""

    def __init__(self, url: str) -> None:
        self.connection = pika.BlockingConnection(pika.URLParameters(url))
        self.channel = self.connection.channel()

    def __enter__(self) -> pika.adapters.blocking_connection.BlockingChannel:
        self.channel.queue_declare("a", durable=True)
        self.channel.tx_select()
        return self.channel

    def __exit__(self, *_: object) -> None:
        self.channel.tx_commit()
        self.connection.close()


def taken(site: Site, queue: str, count: int) -> Counter[bytes]:
    """Take messages until so many have come, and a moment longer, in case there are more."""
    found: list[bytes] = []

    def has_all() -> bool:
        found.extend(site.take(queue))
        return len(set(found)) >= count

    until(has_all, f"{count} messages")
    found.extend(site.take(queue))
    return Counter(found)


@pytest.mark.parametrize("at", ["source", "destination", "both"])
def test_connections_that_break_again_and_again(here: Site, far: Site, at: str) -> None:
    publish(here.url, COUNT)
    here.shovel(
        "s", src_uri=here.url, src_queue="a", dest_uri=far.url, dest_queue="b", reconnect_delay=0.05,
        src_prefetch_count=500,
    )  # fmt: skip
    broken = {"source": [here], "destination": [far], "both": [here, far]}[at]
    far.queue("b")
    for _ in range(8):
        before = far.count("b")
        until(lambda before=before: far.count("b") > before or here.count("a") == 0, "progress")  # type: ignore[misc]
        for site in broken:
            site.broker.admin.close_clients(["Leveret"])
    found = taken(far, "b", COUNT)
    assert found == Counter(bodies(COUNT))
    until(lambda: here.count("a") == 0, "the source to be empty")


def test_a_leveret_that_knows_no_bundles(here: Site, far: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of an older version: messages go one by one, and none comes twice either."""
    older = tuple(name for name in handshake.CAPABILITIES if name != bundles.CAPABILITY)
    monkeypatch.setattr(handshake, "CAPABILITIES", older)

    def no_bundle(*_: object) -> None:
        raise AssertionError("a bundle was sent")

    monkeypatch.setattr(OriginChannel, "on_bundle", no_bundle)
    test_connections_that_break_again_and_again(here, far, "both")


def test_another_consumer_that_returns_messages(here: Site, far: Site) -> None:
    """Numbers come out of order: what another consumer had is not taken for something that was moved."""
    publish(here.url, 500)
    for _ in range(50):
        here.channel.basic_get("a")
    here.shovel("s", src_uri="amqp://", src_queue="a", dest_uri=far.url, dest_queue="b")
    until(lambda: far.count("b") == 450, "what is not out with the other one")
    here.channel.basic_nack(0, multiple=True, requeue=True)
    assert taken(far, "b", 500) == Counter(bodies(500))


# -- Clusters ------------------------------------------------------------------------------------------------------


@pytest.fixture
def three() -> Iterator[Cluster]:
    with leveret.testing.cluster(3) as cluster:
        yield cluster


def runner_of(cluster: Cluster, name: str = "s") -> Broker:
    """The node that runs a shovel, once one does."""
    found: list[Broker] = []

    def runs() -> bool:
        for broker in cluster.brokers:
            if broker.is_running:
                rows = [one for one in broker.admin.call("shovel_status") if one["name"] == name]
                found[:] = [one for one in cluster.brokers for row in rows if one.name == row["node"]]
                return bool(found) and rows[0]["state"] == "running"
        return False

    until(runs, "a node that runs it")
    return found[0]


def workers(cluster: Cluster) -> int:
    """How many nodes run a worker."""
    running = [one for one in cluster.brokers if one.is_running]
    return sum(len(one.admin.call("local_shovels")["running"]) for one in running)


def test_another_node_takes_over_and_nothing_is_lost_or_doubled(three: Cluster, far: Site) -> None:
    home = three.brokers[0]
    publish(home.url, COUNT)
    far.queue("b")
    value = {
        "src-uri": home.url, "src-queue": "a", "dest-uri": far.url, "dest-queue": "b", "reconnect-delay": 0.05,
        "src-prefetch-count": 200,
    }  # fmt: skip
    home.admin.call("set_parameter", vhost="/", component="shovel", name="s", value=value)
    runner = runner_of(three)
    assert workers(three) == 1
    if runner is home:  # Let another one run it, so that the queue stays.
        home.admin.call("pause_shovel", vhost="/", name="s", paused=True)
        for number in range(2):
            filler = {**value, "src-queue": f"x{number}", "dest-queue": f"y{number}"}
            home.admin.call("set_parameter", vhost="/", component="shovel", name=f"filler {number}", value=filler)
        home.admin.call("pause_shovel", vhost="/", name="s", paused=False)
        runner = runner_of(three)
    if runner is not home:
        runner.kill()
        began = time.monotonic()
        after = runner_of(three)
        assert after is not runner
        assert time.monotonic() - began < 10
    assert taken(far, "b", COUNT) == Counter(bodies(COUNT))


def test_deleted_stays_deleted_when_all_nodes_restart(three: Cluster, far: Site) -> None:
    first = three.brokers[0]
    value = {"src-uri": "amqp://", "src-queue": "a", "dest-uri": far.url, "dest-queue": "b"}
    for name in ("kept", "gone"):
        first.admin.call("set_parameter", vhost="/", component="shovel", name=name, value=value)
    runner_of(three, "gone")
    first.admin.call("pause_shovel", vhost="/", name="kept", paused=True)
    first.admin.call("delete_shovel", vhost="/", name="gone")
    for node in three.brokers:
        node.restart()
    for node in three.brokers:
        rows = node.admin.call("shovel_status")
        assert [(one["name"], one["state"]) for one in rows] == [("kept", "paused")]


def test_a_node_that_comes_gets_its_part(three: Cluster, far: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "BALANCE_S", 0.3)
    first, _, last = three.brokers
    last.kill()
    for number in range(6):
        value = {"src-uri": far.url, "src-queue": f"a{number}", "dest-uri": far.url, "dest-queue": f"b{number}"}
        first.admin.call("set_parameter", vhost="/", component="shovel", name=f"s{number}", value=value)

    def counts() -> list[int]:
        found = [one.admin.call("local_shovels")["running"] for one in three.brokers if one.is_running]
        return [sum(row["state"] == "running" for row in rows) for rows in found]

    until(lambda: counts() == [3, 3], "two nodes run all")
    last.start()
    until(lambda: counts() == [2, 2, 2], "three nodes run all")


def test_counts_go_on_over_a_pause_a_restart_and_a_stop(three: Cluster, far: Site) -> None:
    """Of a shovel that ends after a number of messages, nobody moves more, whoever runs it meanwhile."""
    first = three.brokers[0]
    publish(far.url, 100)
    value = {
        "src-uri": far.url, "src-queue": "a", "dest-uri": far.url, "dest-queue": "b", "src-delete-after": 350,
        "src-prefetch-count": 10,
    }  # fmt: skip
    first.admin.call("set_parameter", vhost="/", component="shovel", name="s", value=value)
    until(lambda: far.count("b") == 100, "the first part")
    first.admin.call("pause_shovel", vhost="/", name="s", paused=True)
    (row,) = first.admin.call("shovel_status")
    assert (row["state"], row["forwarded"], row["next_attempt"]) == ("paused", 100, None) and row["reason"]
    publish(far.url, 100)
    first.admin.call("pause_shovel", vhost="/", name="s", paused=False)
    until(lambda: far.count("b") == 200, "the second part")
    first.admin.call("restart_shovel", vhost="/", name="s")
    publish(far.url, 100)
    until(lambda: far.count("b") == 300, "the third part")
    runner = runner_of(three)
    runner.stop()
    after = runner_of(three)
    assert after is not runner
    (row,) = after.admin.call("shovel_status")
    assert (row["forwarded"], row["remaining"]) == (300, 50)
    publish(far.url, 100)
    until(lambda: not after.admin.call("shovel_status"), "it to end")
    assert (far.count("b"), far.count("a")) == (350, 50)
