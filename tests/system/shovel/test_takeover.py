"""The node that runs a shovel is killed, frozen, cut off or restarted: another one takes over within a second.

Source and destination are brokers of their own, so that the nodes of the cluster only run the shovel. A publisher goes
on all the time. What is measured is the time from the loss until a message that another worker has moved arrives: for a
kill from the signal on, and for a node that falls silent from the moment that the others take it to be down, which
`net_ticktime` decides.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pika
import pytest

import leveret.testing
from tests.support.members import Cluster, Member
from tests.support.networks import Archipelago, Islander, Network, why_not
from tests.support.servers import until
from tests.system.partitions.soak import set_strategy
from tests.system.shovel.conftest import Site
from tests.system.shovel.test_once import COUNT, publish

CONFIG = "net_ticktime = 1"
TAKEOVER_S = 1.0
PREFETCH = 50
TRIES = 3  # A busy machine may make one attempt slow, and never all of them.


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("takeover"), CONFIG)
    try:
        yield cluster.start()
    finally:
        cluster.end()


class Feed:
    """Publishes to the source until it is closed, and knows what was confirmed."""

    def __init__(self, url: str, queue: str) -> None:
        self.url = url
        self.queue = queue
        self.confirmed: list[bytes] = []
        self.is_over = threading.Event()
        self.thread = threading.Thread(target=self._run)

    def __enter__(self) -> Feed:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_over.set()
        self.thread.join()

    def _run(self) -> None:
        with pika.BlockingConnection(pika.URLParameters(self.url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            while not self.is_over.wait(0.005):
                body = b"message %d" % len(self.confirmed)
                channel.basic_publish("", self.queue, body, pika.BasicProperties(delivery_mode=2))
                self.confirmed.append(body)


def set_shovel(node: Member, source: str, destination: str, **keys: Any) -> None:
    value = {
        "src-uri": source, "src-queue": "a", "dest-uri": destination, "dest-queue": "b", "src-prefetch-count": PREFETCH,
        "reconnect-delay": 0.1, **keys,
    }  # fmt: skip
    node.control("set_parameter", vhost="/", component="shovel", name="s", value=value)


def answering(nodes: Cluster) -> list[Member]:
    return [node for node in nodes if node.is_running and not node.frozen and not node.fresh]


def workers(nodes: Cluster) -> list[Member]:
    """The nodes that have a worker, of those that answer."""
    return [node for node in answering(nodes) if node.control("local_shovels")["running"]]


def worker_of(nodes: Cluster, among: list[Member] | None = None) -> Member:
    """The only node that runs the shovel, once it does."""
    found: list[Member] = []

    def runs() -> bool:
        states: dict[Member, Any] = {
            node: node.control("local_shovels")["running"] for node in (among or answering(nodes))
        }
        found[:] = [node for node, rows in states.items() if rows]
        assert len(found) <= 1, found
        return len(found) == 1 and states[found[0]][0]["state"] == "running"

    until(runs, "one node that runs it")
    return found[0]


def await_news(far: Site, feed: Feed) -> None:
    """Wait for a message at the destination that was published after this call."""
    known = len(feed.confirmed) + 1  # One may just be confirmed.
    until(lambda: far.count("b") > known, "news arrive")


def check_all(here: Site, far: Site, feed: Feed) -> None:
    """Nothing is lost, nothing is doubled."""
    expected = Counter(feed.confirmed)
    until(lambda: far.count("b") >= len(expected) and here.count("a") == 0, "all to be moved")
    found = Counter(far.take("b"))
    assert found == expected


@pytest.fixture
def feed(nodes: Cluster, here: Site, far: Site) -> Iterator[Feed]:
    nodes.mend()
    here.queue("a")
    far.queue("b")
    set_shovel(nodes[0], here.url, far.url)
    try:
        with Feed(here.url, "a") as feed:
            until(lambda: far.count("b") > 0, "the first message")
            yield feed
        check_all(here, far, feed)
    finally:
        nodes.mend()
        nodes[0].control("delete_shovel", vhost="/", name="s")
        until(lambda: not workers(nodes), "no node runs it any more")


def silent_s(far: Site, feed: Feed, lost: Member, others: list[Member]) -> float:
    """Return how long after a node was found to be down something new arrives at the destination."""
    found: list[float] = []

    def is_down() -> bool:
        if all(lost.name not in node.status()["running_nodes"] for node in others):
            found.append(time.monotonic())
        return bool(found)

    until(is_down, f"{lost.name} to be down")
    await_news(far, feed)
    return time.monotonic() - found[0]


def test_a_node_that_is_killed(nodes: Cluster, here: Site, far: Site, feed: Feed) -> None:
    """The leader too, if the shovel is there."""
    took: list[float] = []
    for _ in range(TRIES):
        lost = worker_of(nodes)
        lost.kill()
        began = time.monotonic()
        await_news(far, feed)
        took.append(time.monotonic() - began)
        assert worker_of(nodes) is not lost
        nodes.start()
        if min(took) < TAKEOVER_S:
            break
    print("taken over after a kill within", [round(one, 3) for one in took])
    assert min(took) < TAKEOVER_S


def test_a_node_that_is_frozen_and_wakes_up(nodes: Cluster, here: Site, far: Site, feed: Feed) -> None:
    took: list[float] = []
    for _ in range(TRIES):
        lost = worker_of(nodes)
        lost.freeze()
        took.append(silent_s(far, feed, lost, nodes.others(lost)))
        lost.thaw()
        until(lambda: len(workers(nodes)) == 1, "one worker")
        nodes.wait_until_whole()
        if min(took) < TAKEOVER_S:
            break
    print("taken over from a frozen node within", [round(one, 3) for one in took])
    assert min(took) < TAKEOVER_S


def test_a_rolling_restart_and_changes_of_the_leader(nodes: Cluster, here: Site, far: Site, feed: Feed) -> None:
    for node in nodes:
        node.stop()
        began = time.monotonic()
        await_news(far, feed)
        print(f"news after a stop of {node.name} within", round(time.monotonic() - began, 3))
        worker_of(nodes)
        nodes.start()
    nodes.leader().kill()
    nodes.leader()
    await_news(far, feed)
    worker_of(nodes)


# -- A number of messages ------------------------------------------------------------------------------------------


def test_a_kill_loses_nothing_of_the_count(nodes: Cluster, here: Site, far: Site) -> None:
    """The cluster knows how many messages were moved before they are acknowledged."""
    nodes.mend()
    here.queue("a")
    far.queue("b")
    set_shovel(nodes[0], here.url, far.url, **{"src-delete-after": 250})
    for moved in (100, 200):
        runner = worker_of(nodes)
        publish(here.url, 100)
        until(lambda moved=moved: far.count("b") == moved and here.count("a") == 0, "all to be moved")  # type: ignore[misc]
        runner.kill()
        (row,) = worker_of(nodes).control("local_shovels")["running"]
        assert (row["forwarded"], row["remaining"]) == (moved, 250 - moved)
        nodes.start()
    publish(here.url, 100)
    until(lambda: not nodes[0].control("shovel_status"), "it to end")
    assert (far.count("b"), here.count("a")) == (250, 50)


def test_no_kill_in_the_midst_makes_it_move_more(tmp_path: Path) -> None:
    """The node has source and destination too: acknowledgements may be lost with it, and then count twice."""
    wanted, kills = 3_000, 0
    alone = Cluster(tmp_path, size=1)
    node = alone[0]
    try:
        alone.start()
        publish(f"amqp://127.0.0.1:{node.port}", COUNT)
        set_shovel(node, "amqp://", "amqp://", **{"src-delete-after": wanted})

        def counts() -> dict[str, int]:
            rows = node.control("list_queues", vhost="/", columns=["name", "messages"], after=None)["rows"]
            return {name: count for name, count in rows}

        for part in (200, 1_200):
            until(lambda part=part: counts().get("b", 0) > part, f"{part} messages")  # type: ignore[misc]
            node.kill()
            kills += 1
            alone.start()
        until(lambda: not node.control("shovel_status"), "it to end")
        until(lambda: sum(counts().values()) == COUNT, "all to be where they should")
        print("moved after two kills:", counts()["b"])
        assert wanted - kills * PREFETCH <= counts()["b"] <= wanted
    finally:
        alone.end()


# -- A network that parts ------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.skipif(why_not() is not None, reason=why_not() or "")
def test_a_node_that_is_cut_off(tmp_path: Path) -> None:
    """It goes on until it knows, and what it publishes is taken once: all nodes reach source and destination."""
    with Network(3) as network, ends(network) as (here, far):
        islands = Archipelago(network, tmp_path, CONFIG)
        try:
            islands.start()
            here.queue("a")
            far.queue("b")
            set_shovel(islands[0], here.url, far.url)
            with Feed(here.url, "a") as feed:
                for strategy in ("pause_minority", "ignore", "autoheal"):
                    set_strategy(islands, strategy)
                    lost = worker_of(islands)
                    assert isinstance(lost, Islander)
                    network.part([lost.number])
                    took = silent_s(far, feed, lost, islands.others(lost))
                    print(f"taken over from a node that is cut off ({strategy}) within", round(took, 3))
                    assert took < TAKEOVER_S
                    until(lambda lost=lost: not lost.control("local_shovels")["running"], "the former worker ends")  # type: ignore[misc]
                    worker_of(islands)
                    network.heal()
                    islands.mend()
                    await_news(far, feed)
            check_all(here, far, feed)
        finally:
            islands.end()


@contextmanager
def ends(network: Network) -> Iterator[tuple[Site, Site]]:
    """Two brokers at the host's end of the network."""
    with ExitStack() as stack:
        sites = []
        for _ in range(2):
            broker = leveret.testing.broker(config="loopback_users = none")
            broker.host = broker._values["host"] = f"{network.subnet}.254"
            sites.append(Site(stack.enter_context(broker)))
            stack.callback(sites[-1].close)
        yield sites[0], sites[1]
