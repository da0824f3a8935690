"""Partitions, as users and operators see them: who pauses, what clients are told, and how it ends by itself.

Processes on one machine share its network, so a node is cut off by freezing the others, or by a fault that has both
ends refuse each other (`leveret.testing`). Cuts in one direction only are tried in the simulation.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from typing import Any

import pika
import pytest

import leveret.testing
from leveret.node.sockets.peer_socket import CallFailed
from leveret.testing import Broker
from tests.support.consumer import fill, numbers, waiting
from tests.support.members import PERSISTENT, Cluster, Member, Refused, StartCluster
from tests.support.servers import until


def is_paused(node: Member) -> bool:
    return node.control("local_partition")["paused_since_ms"] is not None


def serves(node: Member) -> bool:
    return any(one["protocol"] == "amqp" for one in node.status()["listeners"][node.name])


def http(node: Member, path: str) -> tuple[int, Any]:
    url = node.control("management_url")
    request = urllib.request.Request(url + path, headers={"authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            data = answer.read()
            return answer.status, data.decode() if path == "/metrics" else json.loads(data)
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_a_minority_pauses_and_resumes(nodes: Cluster, name: str) -> None:
    left, one, other = nodes
    channel = left.channel(confirms=True)
    channel.queue_declare(name, durable=True)
    fill(channel, name, range(5), properties=PERSISTENT)
    one.freeze()
    other.freeze()
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as caught:
        until(lambda: channel.connection.process_data_events(0.1), "the connection ends")
    assert caught.value.reply_code == 320
    assert caught.value.reply_text == "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'"
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        left.connect()

    status = left.status()
    missing = [one.name, other.name]
    assert status["paused_nodes"] == [left.name] and status["partitions"] == {left.name: missing}
    assert [each["node"] for each in status["unreachable"][left.name]] == missing
    assert all("nothing was heard" in each["reason"] for each in status["unreachable"][left.name])
    assert "Cluster minority/secondary status detected - awaiting recovery" in left.log()
    told = left.control("recover_partition")
    assert told["dialed"] == missing and not told["has_majority"] and told["now"]["paused_since_ms"] is not None

    one.thaw()
    other.thaw()
    nodes.wait_until_whole()
    again = left.channel(confirms=True)
    assert waiting(again, name) == 5
    fill(again, name, range(5, 7), properties=PERSISTENT)
    assert [again.basic_get(name, auto_ack=True)[2] for _ in range(7)] == numbers(*range(7))


def test_the_majority_goes_on_without_the_queues_of_a_paused_node(nodes: Cluster, name: str) -> None:
    """A node that pauses though it is in contact with all others: for them it is as one that is down."""
    listed, one, other = nodes
    other.channel().queue_declare(name, durable=True)
    user = one.channel(confirms=True)
    user.basic_publish("", name, b"0", PERSISTENT)
    stranger = {"strategy": "pause_if_all_down", "nodes": [listed.name], "recover": "ignore"}
    one.control("set_partition_handling", **stranger)
    listed.freeze()
    until(lambda: is_paused(one) and is_paused(other), "both pause")
    assert one.status()["has_majority"]
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        other.connect()
    one.control("set_partition_handling", strategy="pause_minority")  # They are two of three.
    until(lambda: serves(one) and serves(other), "both serve again")
    assert waiting(one.channel(), name) == 1
    listed.thaw()
    nodes.wait_until_whole()
    one.control("clear_partition_handling")


def test_two_nodes(start_cluster: StartCluster) -> None:
    """One of two is no majority, unless it can know that the other one is dead, or leads."""
    one, other = start_cluster(size=2)
    channel = one.channel(confirms=True)
    channel.queue_declare("q", durable=True)
    fill(channel, "q", range(3), properties=PERSISTENT)
    one, other = other, one
    os.unlink(other.data / "lock")  # As if it were on another machine.
    other.kill()
    until(lambda: is_paused(one), "it pauses")
    status = one.status()
    assert status["partitions"] == {}  # It closed its links: it has died, and nothing is wrong with the network.
    assert [each["node"] for each in status["unreachable"][one.name]] == [other.name]
    assert one.control("app_state")["paused"] == "1 of 2 nodes are in contact, which is no majority"
    other.start()
    until(lambda: serves(one), "it serves again")
    assert waiting(one.channel(), "q") == 3


def test_who_is_left_for_good_does_not_pause(start_cluster: StartCluster) -> None:
    one, other = start_cluster(size=2)
    channel = one.channel(confirms=True)
    channel.queue_declare("q", durable=True)
    with pytest.raises(CallFailed):  # A node that leaves closes the links of its old life.
        other.control("leave_cluster")
    until(lambda: one.status()["disk_nodes"] == [one.name], "it is alone")
    channel.basic_publish("", "q", b"0", PERSISTENT)
    assert waiting(channel, "q") == 1 and one.control("local_partition")["pauses"] == 0


def test_the_management_port_of_a_paused_node(start_cluster: StartCluster) -> None:
    one, other = start_cluster("management.tcp.port = 0\nmanagement.tcp.ip = 127.0.0.1", size=2)
    assert http(one, "/api/health/checks/virtual-hosts") == (200, {"status": "ok"})
    one, other = other, one  # The first one leads, and would go on alone.
    other.freeze()
    until(lambda: is_paused(one), "it pauses")
    code, told = http(one, "/api/health/checks/virtual-hosts")
    assert code == 503 and told["reason"].startswith("this node is paused and serves nobody: 1 of 2 nodes")
    assert http(one, "/api/aliveness-test/%2F")[0] == 503
    rows = {row["name"]: row for row in http(one, "/api/nodes")[1]}
    assert rows[one.name]["paused"] and rows[one.name]["partitions"] == [other.name]
    metrics = http(one, "/metrics")[1]
    assert "rabbitmq_alarms_partition_paused 1\n" in metrics and "rabbitmq_unreachable_peers 1\n" in metrics
    assert f'rabbitmq_unreachable_peer_seconds{{peer="{other.name}"}}' in metrics
    other.thaw()
    until(lambda: http(one, "/api/aliveness-test/%2F") == (200, {"status": "ok"}), "it serves again")


def test_the_setting_is_kept(start_cluster: StartCluster) -> None:
    nodes = start_cluster("cluster_partition_handling = autoheal", size=1)
    (one,) = nodes
    assert one.control("local_partition")["handling"] == {"strategy": "autoheal"}
    with pytest.raises(Refused, match="pause_if_all_down needs nodes"):
        one.control("set_partition_handling", strategy="pause_if_all_down")
    with pytest.raises(Refused, match="recover is one of ignore, autoheal, not 'never'"):
        one.control("set_partition_handling", strategy="pause_if_all_down", nodes=["a@b"], recover="never")
    told = one.control("set_partition_handling", strategy="pause_if_all_down", nodes=["a@b"], recover="autoheal")
    assert told["unknown_nodes"] == ["a@b"]
    one.stop()
    nodes.start()
    seen = one.control("local_partition")
    assert seen["handling"] == {"strategy": "pause_if_all_down", "nodes": ["a@b"], "recover": "autoheal"}
    assert seen["set_by"] == "cluster" and not is_paused(one)
    one.control("set_partition_handling", strategy="autoupgrade")
    assert "cluster_partition_handling = autoupgrade is treated as autoheal" in one.log()
    one.control("clear_partition_handling")
    assert one.control("local_partition")["handling"] == {"strategy": "autoheal"}


# -- Between two of three nodes ------------------------------------------------------------------------------------


def sees(broker: Broker) -> list[str]:
    return [str(name) for name in broker.admin.call("cluster_status")["running_nodes"]]


def pauses(broker: Broker) -> int:
    return int(broker.admin.call("local_partition")["pauses"])


def test_a_partial_partition() -> None:
    """Two nodes do not see each other, a third sees both: all have a majority, and serve, and can change metadata."""
    with leveret.testing.cluster(3) as cluster:
        brokers = {broker.name: broker for broker in cluster.brokers}
        leading = brokers.pop(cluster.brokers[0].admin.call("cluster_status")["leader"])
        hub, other = brokers.values()
        with pika.BlockingConnection(pika.URLParameters(other.url)) as connection:
            mine = connection.channel()
            mine.queue_declare("exclusive", exclusive=True)
            with leading.faults.part(other):
                until(lambda: other.name not in sees(leading) and leading.name not in sees(other), "they part")
                status = hub.admin.call("cluster_status")
                parted = {leading.name: [other.name], other.name: [leading.name]}
                assert status["partitions"] == parted and status["paused_nodes"] == []
                until(lambda: hub.admin.call("cluster_status")["leader"] == hub.name, "who sees all leads")
                for number, broker in enumerate(cluster.brokers):
                    broker.admin.add_vhost(f"v{number}")
                with pytest.raises(leveret.testing.AdminError, match=f"node {other.name} is running"):
                    leading.admin.call("forget_cluster_node", name=other.name)
                mine.basic_publish("", "exclusive", b"still mine")
                assert mine.basic_get("exclusive", auto_ack=True)[2] == b"still mine"
            until(lambda: all(len(sees(broker)) == 3 for broker in cluster.brokers), "they meet again")
            assert mine.queue_declare("exclusive", passive=True).method.message_count == 0
        assert [pauses(broker) for broker in cluster.brokers] == [0, 0, 0]


def test_a_node_is_cut_off() -> None:
    with leveret.testing.cluster(3) as cluster:
        alone, one, other = cluster.brokers
        with alone.faults.part(one, other):
            until(lambda: pauses(alone) == 1, "it pauses")
            with pytest.raises(pika.exceptions.AMQPConnectionError):
                pika.BlockingConnection(pika.URLParameters(alone.url))
            with pika.BlockingConnection(pika.URLParameters(one.url)) as connection:
                connection.channel().queue_declare("meanwhile", durable=True)

        def is_back() -> bool:
            try:
                with pika.BlockingConnection(pika.URLParameters(alone.url)) as connection:
                    return bool(connection.channel().queue_declare("meanwhile", passive=True))
            except pika.exceptions.AMQPConnectionError:
                return False

        until(is_back, "it serves again, and knows what was agreed on without it")
