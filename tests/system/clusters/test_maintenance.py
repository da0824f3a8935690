"""Nodes are drained, revived, restarted one after the other, and leave, as an operator does it: by leveretctl."""

from __future__ import annotations

import json
import random
import threading
import urllib.error
import urllib.request
from typing import Any

import pika
import pytest

from leveret.cli.ctl.main import main
from tests.support.members import COOKIE, Cluster, Member, StartCluster
from tests.support.servers import until
from tests.system.mirrors.ledger import Ledger
from tests.system.mirrors.rings import await_in_sync, copies, declare, fill_fast, list_copies, mirror

HTTP = "management.tcp.port = 0\nmanagement.tcp.ip = 127.0.0.1"


class Operator:
    """Who types commands."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, node: Member, *words: str, code: int = 0) -> str:
        """What stands on the terminal then, errors and warnings too."""
        ended = main(["--host", "127.0.0.1", "--port", str(node.cluster_port), *words])
        shown = self.capsys.readouterr()
        text = shown.out + shown.err
        assert ended == code, f"{words} at {node.name}: exit code {ended}\n{text}"
        return text

    def json(self, node: Member, *words: str) -> Any:
        return json.loads(self(node, *words, "--formatter", "json"))


@pytest.fixture
def ctl(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Operator:
    monkeypatch.setenv("LEVERET_COOKIE", COOKIE)
    return Operator(capsys)


def http(node: Member, path: str) -> tuple[int, Any]:
    request = urllib.request.Request(f"http://127.0.0.1:{node.management_port}{path}")
    request.add_header("Authorization", "Basic Z3Vlc3Q6Z3Vlc3Q=")
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


class Polite(threading.Thread):
    """A client that hears when it is told to go, and says goodbye."""

    def __init__(self, node: Member, queue: str | None = None) -> None:
        super().__init__()
        self.connection = node.connect()
        if queue is not None:
            self.connection.channel().basic_consume(queue, lambda *delivery: None)
        self.told = ""
        self.start()

    def run(self) -> None:
        try:
            while True:
                self.connection.process_data_events(10)
        except pika.exceptions.AMQPConnectionError as error:
            self.told = str(error)


def pids(nodes: Cluster) -> list[int]:
    return [node.pid for node in nodes]


def test_drain_and_revive(start_cluster: StartCluster, ctl: Operator) -> None:
    nodes = start_cluster(HTTP)
    one, two, three = nodes
    mirror(one, "kept")
    for number in range(4):
        declare(two, f"kept{number}")
        await_in_sync(one, f"kept{number}", nodes)
        fill_fast(two, f"kept{number}", range(5))
    declare(two, "lone")
    fill_fast(two, "lone", range(5))
    two.disconnect()
    client = Polite(two)
    text = ctl(two, "drain")
    assert text.startswith(f"Will put node {two.name} into maintenance mode. The node will no longer serve any client")
    assert "4 queues handed over to mirrors, 0 moved, 1 stay" in text
    assert "is still the master of 1 queues: lone in / (it has no mirrors)" in text
    assert "drain --move-unmirrored" in text
    client.join()
    assert client.told == "(320, 'CONNECTION_FORCED - Node was put into maintenance mode')"
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        two.connect()
    assert {found.master for name, found in list_copies(one).items() if name != "lone"} == {one.name, three.name}
    assert one.status()["leader"] != two.name
    for node in nodes:
        assert f"Node: {two.name}, status: marked for maintenance" in ctl(node, "cluster_status")
    assert "Is under maintenance?: true" in ctl(two, "status")
    rows = json.loads(http(one, "/api/nodes")[1])
    assert {row["name"]: row["being_drained"] for row in rows} == {one.name: False, two.name: True, three.name: False}
    assert http(two, "/api/health/checks/is-in-service")[0] == 503
    assert http(two, "/api/health/checks/node-is-mirror-sync-critical")[0] == 200
    assert b"rabbitmq_node_maintenance 1" in http(two, "/metrics")[1]

    declare(one, "later", arguments={"x-queue-master-locator": "min-masters"})
    assert copies(one, "later").master != two.name, "though it leads the fewest"
    assert one.channel().queue_declare("lone", passive=True).method.message_count == 5, "what stays is served"
    assert "0 queues handed over to mirrors, 1 moved, 0 stay" in ctl(two, "drain", "--move-unmirrored")
    assert copies(one, "lone").master != two.name and copies(one, "lone").messages == 5

    assert "again serve client traffic" in ctl(two, "revive")
    two.connect().close()
    assert set(one.status()["maintenance_status"].values()) == {"not under maintenance"}
    assert http(two, "/api/health/checks/is-in-service")[0] == 200

    ctl(two, "drain", "-q")
    assert f"Node {two.name} is back" in ctl(two, "restart_node")
    assert set(one.status()["maintenance_status"].values()) == {"not under maintenance"}, "it ends with a restart"
    two.connect().close()


def test_what_comes_to_lead_while_it_is_drained_goes_on(nodes: Cluster, ctl: Operator, name: str) -> None:
    """The masters of two nodes that drain go to the third; when that is lost, to one of the two, and on to it again."""
    one, two, three = nodes
    mirror(one, name)
    declare(three, name)
    await_in_sync(one, name, nodes)
    for node in (one, two):
        ctl(node, "drain", "-q")
    assert copies(one, name).master == three.name
    three.kill()
    until(lambda: copies(one, name).master != three.name, "a drained node leads, if no other can")
    three.start()
    until(lambda: copies(one, name).master == three.name, "it is handed over again")
    for node in (one, two):
        ctl(node, "revive", "-q")


def test_a_rolling_restart_under_load(nodes: Cluster, ctl: Operator, name: str) -> None:
    mirror(nodes[0], name)
    ledger = Ledger(nodes, random.Random(1))
    for number, node in enumerate(nodes):
        declare(node, f"{name}-{number}")
        await_in_sync(nodes[0], f"{name}-{number}", nodes)
        ledger.add(f"{name}-{number}", publishers=1)
    nodes.disconnect()
    leader, before = nodes.leader(), pids(nodes)
    planned = ctl.json(nodes[1], "rolling_restart", "--dry-run")
    assert planned["order"][-1] == leader.name and planned["problem"] is None
    with ledger:
        ledger.await_progress(50)
        told = ctl(nodes[1], "rolling_restart", "--rebalance", "--timeout", "60")
        for node in nodes:
            assert f"{node.name}: back, and all mirrors are synchronised" in told
        ledger.await_progress(50)
        assert ledger.finish() > 300
    assert pids(nodes) == before
    assert [book.refused_count for book in ledger.books] == [0, 0, 0], "no error but the connection's end"
    assert [book.cancels for book in ledger.books] == [0, 0, 0]
    for number in range(3):
        await_in_sync(nodes[0], f"{name}-{number}", nodes)


def test_a_rolling_restart_of_two_nodes(start_cluster: StartCluster, ctl: Operator) -> None:
    """The one that stays counts alone meanwhile, so that nothing is refused."""
    nodes: Cluster = start_cluster(size=2)
    mirror(nodes[0], "q")
    ledger = Ledger(nodes, random.Random(1))
    declare(nodes[0], "q")
    await_in_sync(nodes[0], "q", nodes)
    ledger.add("q", publishers=1)
    nodes.disconnect()
    with ledger:
        ledger.await_progress(50)
        told = ctl(nodes[1], "rolling_restart", "--timeout", "60")
        for node in nodes:
            assert f"{node.name}: back, and all mirrors are synchronised" in told
        ledger.await_progress(50)
        assert ledger.finish() > 100
    assert [book.refused_count for book in ledger.books] == [0]
    assert [node.control("local_partition")["pauses"] for node in nodes] == [0, 0]


def test_a_rolling_restart_that_must_not_begin(nodes: Cluster, ctl: Operator, name: str) -> None:
    one, two, three = nodes
    declare(one, name)
    fill_fast(one, name, range(100))
    mirror(one, name, **{"ha-sync-mode": "manual"})
    until(lambda: len(copies(one, name).mirrors) == 2, "it has mirrors")
    before = [node.control("service_state")["run"] for node in nodes]
    told = ctl(one, "rolling_restart", code=69)
    assert f"mirrors of 1 queues are not synchronised: {name} in /" in told and "--sync does" in told
    assert "not in the cluster: four@localhost" in ctl(one, "rolling_restart", "--nodes", "four@localhost", code=65)
    ctl(three, "drain", "-q")
    assert f"node {three.name} is in maintenance" in ctl(one, "rolling_restart", "--nodes", two.name, code=69)
    ctl(three, "revive", "-q")
    three.kill()
    until(lambda: three.name not in one.status()["running_nodes"], "it is missed")
    assert f"not in contact with node {three.name}" in ctl(one, "rolling_restart", "--nodes", two.name, code=69)
    three.start()
    nodes.wait_until_whole()
    assert [node.control("service_state")["run"] for node in (one, two)] == before[:2], "none was restarted"
    ctl(one, "rolling_restart", "--nodes", two.name, "--sync", "--timeout", "30")
    await_in_sync(one, name, nodes)


def test_a_node_that_does_not_come_back(nodes: Cluster, ctl: Operator, name: str) -> None:
    one, two, _ = nodes
    told = ctl(one, "rolling_restart", "--nodes", two.name, "--command", "false {node}", code=69)
    assert f"'false {two.name}' ended with code 1" in told
    words = ("--nodes", two.name, "--command", "true", "--timeout", "0.3")
    told = ctl(one, "rolling_restart", *words, code=75)
    assert f"node {two.name} did not serve clients again within 0.3 seconds" in told
    assert f"continue with: leveretctl rolling_restart --nodes {two.name} --command true" in told
    assert one.control("service_state")["state"] is None and two.control("service_state")["state"] == "draining"
    ctl(one, "rolling_restart", "--nodes", two.name)  # One that was left in maintenance is taken up.
    assert two.control("service_state")["state"] is None


def test_a_node_leaves_when_its_clients_have_gone(start_cluster: StartCluster, ctl: Operator) -> None:
    one, two = start_cluster("cluster_rebalance = run", size=2)
    declare(two, "lone")
    two.disconnect()
    idle, client = Polite(two), two.connect()
    producer, consumer = client.channel(), client.channel()
    producer.confirm_delivery()
    got: list[bytes] = []
    consumer.basic_consume("lone", lambda c, method, p, body: got.append(body), auto_ack=True)
    producer.basic_publish("", "lone", b"0", pika.BasicProperties(delivery_mode=2))
    told = ctl(two, "leave_cluster", "--timeout", "1", code=75)
    assert "1 producers and 1 consumers" in told and "stays a member of the cluster until they are gone" in told
    assert one.status()["disk_nodes"] == [one.name, two.name]
    assert one.status()["maintenance_status"][two.name] == "leaves the cluster when its clients are gone"
    until(lambda: copies(one, "lone").master == one.name, "what it led is elsewhere")
    producer.basic_publish("", "lone", b"1", pika.BasicProperties(delivery_mode=2))
    while len(got) < 2:
        client.process_data_events(1)  # They notice nothing.
    assert idle.is_alive() and got == [b"0", b"1"]

    leaving = threading.Thread(target=lambda: main(["--port", str(two.cluster_port), "leave_cluster", "-q"]))
    leaving.start()
    try:
        until(lambda: "as soon as these are gone" in two.log(), "it waits")
        assert leaving.is_alive() and two.name in one.status()["disk_nodes"]
    finally:
        client.close()
        leaving.join(60)
    assert not leaving.is_alive()
    assert one.status()["disk_nodes"] == [one.name] and one.status()["maintenance_status"].keys() == {one.name}
    idle.join()


def test_clients_are_sent_away_by_force_and_the_others_rebalance(start_cluster: StartCluster, ctl: Operator) -> None:
    one, two, three = start_cluster("cluster_rebalance = run")
    until(lambda: one.control("rebalance_status")["runs"], "who leads has looked, and by itself never will again")
    for number in range(4):
        declare(one, f"q{number}")
    declare(two, "lone")
    fill_fast(two, "lone", range(10))
    two.disconnect()
    client = Polite(two, "lone")
    assert "has left its cluster" in ctl(two, "leave_cluster", "--force")
    client.join()
    assert "CONNECTION_FORCED" in client.told
    assert one.status()["disk_nodes"] == [one.name, three.name]
    assert one.channel().queue_declare("lone", passive=True).method.message_count == 10

    def is_even() -> bool:
        masters = [found.master for found in list_copies(one).values()]
        return sorted(map(masters.count, (one.name, three.name))) == [2, 3]

    until(is_even, "they lead as many")
