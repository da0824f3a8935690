"""Publishes for queues that cannot be reached, as users see it: real brokers, the links between them cut."""

from __future__ import annotations

import base64
import json
import urllib.request
from collections.abc import Collection, Iterator
from contextlib import closing
from typing import Any

import pika
import pytest

import leveret.testing
from leveret.cli.ctl.main import main as leveretctl
from leveret.node.cluster import drain_spools
from leveret.testing import AdminError, Broker, Cluster
from tests.support.servers import until

CONFIG = "cluster_partition_handling = ignore\nmanagement.tcp.port = 0\n"
COLUMNS = ["node", "queue", "home", "state", "messages", "sent"]
PROPERTIES = pika.BasicProperties(
    delivery_mode=2, headers={"x": 1, "list": [1, "two"]}, priority=3, expiration="600000", message_id="m", type="t"
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with leveret.testing.cluster(3, config=CONFIG) as running:
        yield running


@pytest.fixture
def brokers(cluster: Cluster) -> Iterator[list[Broker]]:
    yield cluster.brokers
    for broker in cluster.brokers:
        broker.faults.clear()
    until(lambda: all(len(running(one)) == 3 for one in cluster.brokers), "all nodes see each other")
    until(lambda: not any(row["messages"] for one in cluster.brokers for row in spools(one)), "all is sent on")
    cluster.admin.delete_all()


def running(broker: Broker) -> list[str]:
    return [str(one) for one in broker.admin.call("cluster_status")["running_nodes"]]


def spools(broker: Broker) -> list[dict[str, Any]]:
    """Of this node, by what leveretctl asks."""
    rows = broker.admin.call("local_spools", columns=COLUMNS, after=0)["rows"]
    return [dict(zip(COLUMNS, row, strict=True)) for row in rows]


def connect(broker: Broker) -> Any:
    return closing(pika.BlockingConnection(pika.URLParameters(broker.url)))


def declare(broker: Broker, queue: str) -> None:
    with connect(broker) as connection:
        connection.channel().queue_declare(queue, durable=True)


def cut(one: Broker, *others: Broker) -> leveret.testing.Fault:
    fault = one.faults.part(*others)
    until(lambda: len(running(one)) == 3 - len(others), "the links are cut")
    return fault


def publish(broker: Broker, queue: str, numbers: range) -> None:
    """Each confirmed."""
    with connect(broker) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for number in numbers:
            channel.basic_publish("", queue, b"%d" % number, PROPERTIES)


def take_all(
    broker: Broker, queue: str, count: int, marked: Collection[int] = (), in_doubt: Collection[int] = ()
) -> list[int]:
    """What is in the queue, as soon as there are so many; and that nothing follows. `marked`: those that a client may
    have seen before; of those `in_doubt` so many of the first ones as were sent before a race ended."""
    until(lambda: depth(broker, queue) >= count, f"{count} messages in {queue}")
    found, doubted = [], []
    with connect(broker) as connection:
        channel = connection.channel()
        while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
            assert got[1].headers == PROPERTIES.headers and got[1].priority == 3 and got[1].expiration == "600000"
            number = int(got[2])
            if number in in_doubt:
                doubted.append(got[0].redelivered)
            else:
                assert got[0].redelivered == (number in marked)
            found.append(number)
    assert doubted == sorted(doubted, reverse=True)
    return found


def depth(broker: Broker, queue: str) -> int:
    with connect(broker) as connection:
        return int(connection.channel().queue_declare(queue, passive=True).method.message_count)


def ask(broker: Broker, path: str) -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{broker.ports['management']}/{path}")
    request.add_header("authorization", "Basic " + base64.b64encode(b"guest:guest").decode())
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(answer.read().decode())


def test_kept_confirmed_and_sent_on(brokers: list[Broker]) -> None:
    one, two, three = brokers
    declare(two, "kept")
    publish(one, "kept", range(3))
    fault = cut(one, two, three)
    publish(one, "kept", range(3, 60))
    assert spools(one) == [
        {"node": one.name, "queue": "kept", "home": two.name, "state": "collecting", "messages": 57, "sent": 0}
    ]
    told = json.loads(ask(one, "api/leveret/spools"))
    assert told["alarms"] == ["spool_in_use"] and told["spools"][0]["reason"] == f"{two.name} cannot be reached"
    metrics = ask(one, "metrics")
    assert "\nrabbitmq_spool_messages 57\n" in metrics and "\nrabbitmq_alarms_spool_in_use 1\n" in metrics
    assert depth(two, "kept") == 3
    fault.clear()
    assert take_all(three, "kept", 60) == list(range(60))
    until(lambda: spools(one)[0]["state"] == "empty", "the spool is empty")
    assert spools(one)[0]["sent"] == 57
    assert "\nrabbitmq_alarms_spool_in_use 0\n" in ask(one, "metrics")


def test_the_node_that_keeps_them_is_killed(brokers: list[Broker]) -> None:
    one, two, three = brokers
    declare(two, "killed")
    cut(one, two, three)
    publish(one, "killed", range(40))
    one.kill()
    one.start()  # A broker that is started again has no faults.
    assert take_all(two, "killed", 40, marked=range(40)) == list(range(40))


def test_the_home_is_killed_and_its_queue_filled_meanwhile(brokers: list[Broker]) -> None:
    """Here no link is cut: the home is not there."""
    one, two, three = brokers
    declare(three, "away")
    publish(one, "away", range(5))
    three.kill()
    until(lambda: len(running(one)) == 2, "the node is missed")
    publish(one, "away", range(5, 30))
    three.start()
    assert take_all(two, "away", 30) == list(range(30))


def test_nobody_leaves_with_them(brokers: list[Broker], monkeypatch: pytest.MonkeyPatch) -> None:
    one, two, three = brokers
    declare(three, "left")
    fault = cut(two, three)
    publish(two, "left", range(4))
    monkeypatch.setattr(drain_spools, "STUCK_S", 0.1)
    with pytest.raises(AdminError, match="4 messages wait in this node's spools, and only this node has them"):
        two.admin.call("leave_cluster")
    two.admin.call("stop_app")
    with pytest.raises(AdminError, match=r"4 messages wait in this node.s spools.*force_reset"):
        two.admin.call("reset", force=False)
    two.admin.call("start_app")
    fault.clear()
    two.stop()
    two.start()  # The app alone came back at another port.
    assert take_all(one, "left", 4, marked=range(4)) == list(range(4))


def test_a_master_that_is_cut_off_from_its_mirrors(brokers: list[Broker]) -> None:
    """The others have another master by then; what the old one has taken meanwhile goes there."""
    one, two, three = brokers
    one.admin.set_policy("mirrored", "^mirrored$", {"ha-mode": "all"})
    declare(one, "mirrored")
    publish(one, "mirrored", range(3))
    fault = cut(one, two, three)
    publish(one, "mirrored", range(3, 20))
    assert spools(one)[0]["messages"] == 17
    until(lambda: depth(two, "mirrored") == 3, "another master leads the queue")
    fault.clear()
    # The old one may see a majority before it hears what that has agreed on, and takes itself for the master then: its
    # clients may have been shown what was in the spool.
    assert take_all(three, "mirrored", 20, in_doubt=range(3, 20)) == list(range(20))
    publish(one, "mirrored", range(20, 22))
    assert take_all(one, "mirrored", 2) == [20, 21]


def test_autoheal_waits_for_room_at_the_receiver(brokers: list[Broker]) -> None:
    one, two, three = brokers
    declare(two, "roomy")
    one.admin.call("set_partition_handling", strategy="autoheal")
    fault = cut(one, two, three)
    publish(one, "roomy", range(5))
    with two.faults.raise_alarm("disk"):
        fault.clear()
        until(lambda: spools(one)[0]["state"] == "waiting", "the spool waits")
        told = json.loads(ask(one, "api/leveret/spools"))
        assert told["alarms"] == ["spool_in_use", "spool_without_room"] and told["waited_for_disk"] == 1
        assert told["spools"][0]["reason"].startswith(f"{two.name} has room for 0 bytes, and ")
        metrics = ask(one, "metrics")
        assert "\nrabbitmq_alarms_spool_without_room 1\n" in metrics and "\nrabbitmq_spool_waits_total 1\n" in metrics
        assert depth(three, "roomy") == 0
    assert take_all(three, "roomy", 5) == list(range(5))
    until(lambda: "\nrabbitmq_alarms_spool_without_room 0\n" in ask(one, "metrics"), "the alarm is cleared")
    one.admin.call("clear_partition_handling")


def test_leveretctl(brokers: list[Broker], capsys: pytest.CaptureFixture[str]) -> None:
    one, two, three = brokers
    declare(two, "listed")
    cut(one, two, three)
    publish(one, "listed", range(2))
    assert leveretctl([*one.leveretctl, "list_spools", "queue", "state", "messages", "--silent"]) == 0
    assert "listed\tcollecting\t2" in capsys.readouterr().out
    for command in ("partition_status", "status"):
        assert leveretctl([*one.leveretctl, command]) == 0
        shown = capsys.readouterr().out
        assert "Spooled for 1 unreachable queues: 2 messages, the oldest for" in shown
        assert "(spool_in_use)" in shown
