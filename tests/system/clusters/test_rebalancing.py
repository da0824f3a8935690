"""Where queues are led: by hand, by labels, and by a rebalance while they are used."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pika
import pytest

import leveret.testing
from leveret.node.admin.nodes import rebalancer
from tests.support.members import Cluster, Member, Refused
from tests.support.servers import PATIENCE_S, until
from tests.system.mirrors.rings import await_in_sync, copies, declare, fill_fast, list_copies

ZONES = {0: "node.label.zone = a", 1: "node.label.zone = b", 2: "node.label.zone = b\nnode.capacity = 2"}


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("labelled"), configs=ZONES)
    try:
        yield cluster.start()
    finally:
        cluster.end()


@pytest.fixture
def three(labelled: Cluster) -> Iterator[Cluster]:
    """Three nodes in two zones, without queues and policies."""
    yield labelled
    labelled.disconnect()
    one = labelled[0]
    for row in one.control("list_policies", vhost="/", operator=False):
        one.control("clear_policy", vhost="/", name=row["name"], operator=False)
    for name in list_copies(one):
        one.control("delete_queue", vhost="/", name=name, if_empty=False, if_unused=False)


def policy(node: Member, name: str, **definition: Any) -> None:
    told = {key.replace("_", "-"): value for key, value in definition.items()}
    node.control(
        "set_policy", vhost="/", name=name, pattern=f"^{name}$", definition=told, priority=0, apply_to="queues",
        operator=False,
    )  # fmt: skip


def masters(node: Member) -> dict[str, str]:
    return {name: found.master for name, found in list_copies(node).items()}


# -- The documents' scene --------------------------------------------------------------------------------------------


def test_three_brokers_three_queues_by_policies(three: Cluster) -> None:
    """Q1's master on node 1, Q2's on node 2, Q3's on node 3, mirrors on the others. Clients need not know."""
    one = three[0]
    for number, node in enumerate(three, 1):
        label = f"node={node.name}"
        policy(one, f"Q{number}", ha_mode="all", ha_sync_mode="automatic", queue_master_label=label)
        declare(one, f"Q{number}")  # All by a client of node 1.
    for number, node in enumerate(three, 1):
        await_in_sync(one, f"Q{number}", three)
        assert copies(one, f"Q{number}").master == node.name
        fill_fast(three[number % 3], f"Q{number}", range(10))
        assert copies(one, f"Q{number}").messages == 10


def test_three_brokers_three_queues_by_commands(three: Cluster) -> None:
    one = three[0]
    for number, node in enumerate(three, 1):
        name = f"Q{number}"
        declare(one, name)
        fill_fast(one, name, range(10))
        one.control("move_queue_master", vhost="/", name=name, node=node.name)
        for other in three.others(node):
            one.control("add_queue_mirror_link", vhost="/", source=name, node=other.name)
    for number, node in enumerate(three, 1):
        await_in_sync(one, f"Q{number}", three)
        assert copies(one, f"Q{number}")[::3] == (node.name, 10)


def test_locators_are_honoured(three: Cluster) -> None:
    one = three[0]
    for number in range(3):
        arguments = {"x-queue-master-locator": "min-masters"}
        one.channel().queue_declare(f"L{number}", durable=True, arguments=arguments)
    assert sorted(masters(one).values()) == [node.name for node in three]
    policy(one, "spread[0-9]", queue_master_locator="min-masters")
    for number in range(3):
        declare(one, f"spread{number}")
    found = list(masters(one).values())
    assert [found.count(node.name) for node in three] == [2, 2, 2]


def test_the_configured_locator_is_honoured() -> None:
    with leveret.testing.cluster(2, config="queue_master_locator = min-masters") as cluster:
        nodes = cluster.brokers
        channel = pika.BlockingConnection(pika.URLParameters(nodes[0].url)).channel()
        for number in range(4):
            channel.queue_declare(f"q{number}")
        rows = nodes[0].admin.call("list_queues", vhost="/", columns=["node"])["rows"]
        assert sorted(name for (name,) in rows) == sorted([node.name for node in nodes] * 2)


# -- Labels --------------------------------------------------------------------------------------------------------


def test_copies_are_in_different_zones(three: Cluster) -> None:
    one, two, far = three
    shown = {member["name"]: member["labels"] for member in two.status()["members"]}
    assert shown == {one.name: {"zone": "a"}, two.name: {"zone": "b"}, far.name: {"zone": "b"}}
    policy(one, "z[0-9]", ha_mode="exactly", ha_params=2, ha_sync_mode="automatic", ha_spread="zone")
    for number in range(3):
        declare(two, f"z{number}")
        declare(far, f"z{number + 3}")
    for number in range(3):
        await_in_sync(one, f"z{number}", [two, one])
        await_in_sync(one, f"z{number + 3}", [far, one])


def test_a_master_by_its_label(three: Cluster) -> None:
    one, two, far = three
    policy(one, "only-b", queue_master_label="zone=b")
    declare(one, "only-b")
    assert masters(one)["only-b"] in (two.name, far.name)
    plan = one.control("rebalance", dry_run=True, queues="only-b", target=one.name)
    assert plan["moves"] == []
    assert plan["stays"][0]["why"] == f"its policy asks for a node with zone = b, which {one.name} is not"


# -- Rebalancing ---------------------------------------------------------------------------------------------------


BACKLOG = 100  # So that more is claimed than is out: see `leveret.broker.queue.delivery_claims`.


class Used(threading.Thread):
    """A client at each of two nodes: one publishes numbers with confirms, the other acknowledges what it gets."""

    def __init__(self, name: str, publish_at: Member, consume_at: Member) -> None:
        super().__init__()
        self.queue = name
        self.publishing, self.consuming = publish_at.connect(), consume_at.connect()
        self.sent = 0
        self.came: list[int] = []
        self.marked: list[int] = []  # Of these, those of which it was said that somebody may have had them before.
        self.is_enough = False
        self.cancelled = False

    def run(self) -> None:
        publishing, consuming = self.publishing.channel(), self.consuming.channel()
        publishing.confirm_delivery()
        consuming.basic_qos(prefetch_count=20)
        consuming.add_on_cancel_callback(lambda frame: setattr(self, "cancelled", True))
        for _ in range(BACKLOG):
            self._publish(publishing)
        consuming.basic_consume(self.queue, self._on_message)
        while not self.is_enough:
            self._publish(publishing)
            self.consuming.process_data_events(0)
        deadline = time.monotonic() + PATIENCE_S
        while len(self.came) < self.sent and time.monotonic() < deadline:
            self.consuming.process_data_events(0.05)

    def _publish(self, channel: Any) -> None:
        channel.basic_publish("", self.queue, b"%d" % self.sent, pika.BasicProperties(delivery_mode=2))
        self.sent += 1

    def _on_message(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        self.came.append(int(body))
        if method.redelivered:
            self.marked.append(int(body))
        channel.basic_ack(method.delivery_tag)

    def end(self) -> None:
        self.is_enough = True
        self.join()
        assert self.came == list(range(self.sent))  # In order, once, and none is missing.
        assert not self.marked
        assert not self.cancelled and self.publishing.is_open and self.consuming.is_open


@pytest.mark.parametrize("mirrored", [False, True], ids=["plain", "mirrored"])
def test_nobody_notices_a_move(three: Cluster, mirrored: bool) -> None:
    one, two, far = three
    if mirrored:
        policy(one, "busy", ha_mode="all", ha_sync_mode="automatic")
    declare(one, "busy")
    used = Used("busy", one, far)
    used.start()
    try:
        for target in (two, far, one, far):
            seen = len(used.came)
            until(lambda: len(used.came) > seen + 20, "it is used")  # noqa: B023
            two.control("move_queue_master", vhost="/", name="busy", node=target.name)
            assert masters(two)["busy"] == target.name
    finally:
        used.end()


def test_a_rebalance_spreads_queues_of_all_kinds(three: Cluster) -> None:
    one, two, far = three
    policy(one, "m[0-9]", ha_mode="all", ha_sync_mode="automatic")
    for number in range(3):
        declare(one, f"m{number}")
        declare(one, f"p{number}")
        await_in_sync(one, f"m{number}", three)
    fill_fast(one, "p0", range(500))
    plan = two.control("rebalance", dry_run=True)
    assert list(plan["after"].values()) == [2, 2, 2]
    done = far.control("rebalance")  # Whoever is asked.
    assert (done["moves"], done["done"], done["failed"]) == (plan["moves"], 4, [])
    found = list(masters(one).values())
    assert [found.count(node.name) for node in three] == [2, 2, 2]
    assert two.control("rebalance")["moves"] == []
    weighted = one.control("rebalance", strategy="weighted", dry_run=True)
    assert weighted["after"][far.name] == 3
    assert copies(one, "p0").messages == 500


def test_a_plan_of_the_pipeline_is_carried_out(three: Cluster) -> None:
    from leveret.data.client import MemberInfo, QueueInfo
    from pyspark_leveret.jobs.balance import Figures, balance

    one, two, _ = three
    names = [node.name for node in three]
    for number in range(3):
        declare(one, f"s{number}")
    members = (MemberInfo(one.name, "http://one", True),)
    infos = [QueueInfo(f"s{at}", at, "classic", True, 1, 2, 1, 100, one.name, members, ()) for at in range(3)]
    planned = balance("messages", [Figures("/", info) for info in infos], {}, names)
    made = json.loads(json.dumps(planned.as_json()))
    done = two.control("rebalance", plan=made)
    assert done["done"] == len(made["moves"]) == 2
    assert sorted(masters(one).values()) == names


def test_a_bad_plan_is_refused(three: Cluster) -> None:
    with pytest.raises(Refused, match="bad plan: move 1 must be an object"):
        three[1].control("rebalance", plan={"version": 1, "moves": [1]})


def test_a_cluster_rebalances_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebalancer, "SETTLE_S", 0.1)
    config = "cluster_rebalance = timer\ncluster_rebalance.interval = 1s\ncluster_rebalance.rest = 0"
    with leveret.testing.cluster(2, config=config) as cluster:
        nodes = cluster.brokers
        channel = pika.BlockingConnection(pika.URLParameters(nodes[0].url)).channel()
        for number in range(4):
            channel.queue_declare(f"q{number}")

        def is_spread() -> bool:
            rows = nodes[1].admin.call("list_queues", vhost="/", columns=["node"])["rows"]
            return sorted(name for (name,) in rows) == sorted([node.name for node in nodes] * 2)

        until(is_spread, "queues are spread")
        until(lambda: nodes[1].admin.call("rebalance_status")["cluster"]["moves"] >= 2, "it is told of")


def test_only_what_is_named_is_moved_where_that_is_configured() -> None:
    with leveret.testing.broker(config="cluster_rebalance = appoint") as broker:
        with pytest.raises(leveret.testing.AdminError, match="cluster_rebalance is appoint: name queues or nodes"):
            broker.admin.call("rebalance")
        assert broker.admin.call("rebalance", queues="^q")["moves"] == []
