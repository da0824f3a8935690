"""Two nodes, and one of them is lost: what clients at the other see, with real processes and pika.

The acceptance tests of the source documents: a consumer at one of two servers goes on while the other is stopped or
killed, whichever it is, and gets what was published before, meanwhile and after.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.support.consumer import fill, get_all, numbers, waiting
from tests.support.members import PERSISTENT, Cluster, Member, Refused, StartCluster
from tests.support.servers import ROOT, until
from tests.system.mirrors.rings import await_in_sync, await_master, declare, drain, fill_fast, master_of, mirror

QUEUE = "q"


@pytest.fixture
def pair(start_cluster: StartCluster) -> Iterator[Cluster]:
    """Two nodes with one queue that both have."""
    pair: Cluster = start_cluster("net_ticktime = 2\ncluster.operation_timeout = 5000", size=2)
    mirror(pair[0], QUEUE, **{"ha-sync-mode": "automatic"})
    declare(pair[0], QUEUE)
    await_in_sync(pair[0], QUEUE, pair)
    yield pair


class Subscriber:
    """A consumer that acknowledges all it gets, and a publisher, on connections that must not end."""

    def __init__(self, node: Member) -> None:
        self.node = node
        self.channel = node.channel()
        self.channel.basic_qos(prefetch_count=5)
        self.seen: list[tuple[bytes, bool]] = []
        self.channel.basic_consume(QUEUE, self._on_message)
        self.publisher = node.channel(confirms=True)
        self.confirmed: list[bytes] = []

    def _on_message(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        self.seen.append((body, method.redelivered))
        channel.basic_ack(method.delivery_tag)

    def publish(self, *wanted: int) -> None:
        """Until each is confirmed: one that was under way to a master that died may be refused."""
        for body in numbers(*wanted):
            while True:
                try:
                    self.publisher.basic_publish("", QUEUE, body, PERSISTENT)
                    break
                except pika.exceptions.NackError:
                    continue
            self.confirmed.append(body)

    def wait_for_all(self) -> None:
        until(self._has_all, f"all {len(self.confirmed)} messages come, {len(self.seen)} have")

    def _has_all(self) -> bool:
        self.channel.connection.process_data_events(0.05)
        return {body for body, _ in self.seen} >= set(self.confirmed)

    def check(self) -> None:
        """Nothing came twice without being marked, and the connections are those of the beginning."""
        first: set[bytes] = set()
        for body, redelivered in self.seen:
            assert redelivered or body not in first
            first.add(body)
        assert self.channel.is_open and self.publisher.is_open


def lead_by(pair: Cluster, node: Member) -> None:
    if master_of(pair, QUEUE) is not node:
        node.control("move_queue_master", vhost="/", name=QUEUE, node=node.name)
        await_master(node, QUEUE, [node])
        await_in_sync(node, QUEUE, pair)


def lose(node: Member, how: str) -> None:
    if how == "kill":
        node.kill()
    else:
        assert node.stop() == 0


def pauses(node: Member) -> int:
    count: int = node.control("local_partition")["pauses"]
    return count


def voters(node: Member) -> list[str]:
    return [one["name"] for one in node.status()["members"] if one["voter"]]


@pytest.mark.parametrize("leads", [True, False], ids=["leader", "follower"])
@pytest.mark.parametrize("is_master", [True, False], ids=["master", "mirror"])
@pytest.mark.parametrize("how", ["kill", "stop"])
def test_consumption_goes_on(pair: Cluster, how: str, is_master: bool, leads: bool) -> None:
    leader = pair.leader()
    lost = leader if leads else pair.others(leader)[0]
    left = pair.others(lost)[0]
    lead_by(pair, lost if is_master else left)
    subscriber = Subscriber(left)
    subscriber.publish(*range(20))
    lose(lost, how)
    subscriber.publish(*range(20, 40))
    subscriber.wait_for_all()
    assert voters(left) == [left.name] and pauses(left) == 0
    left.channel().queue_declare("another", durable=True)  # Metadata can be changed.
    pair.start()  # The other one is back, and both count.
    assert voters(left) == sorted(one.name for one in pair)
    await_in_sync(left, QUEUE, pair)
    subscriber.publish(*range(40, 50))
    subscriber.wait_for_all()
    subscriber.check()
    # And the other way round.
    other = Subscriber(lost)
    other.publish(*range(50, 60))
    lose(left, how)
    other.publish(*range(60, 80))
    other.wait_for_all()
    other.check()
    assert pauses(lost) == 0


def test_a_server_is_stopped_filled_again_and_the_first_one_goes(pair: Cluster) -> None:
    """Two servers, a queue and a subscriber. One is stopped; it is started, and its copy filled; the other is stopped.
    The subscriber reads at the one that is left, and nothing is missing."""
    one, other = pair
    lead_by(pair, one)
    fill_fast(one, QUEUE, range(50))
    assert other.stop() == 0
    fill_fast(one, QUEUE, range(50, 100))
    pair.start()
    await_in_sync(one, QUEUE, pair)
    subscriber = Subscriber(other)
    subscriber.confirmed += numbers(*range(100))
    assert one.stop() == 0
    await_master(other, QUEUE, [other])
    subscriber.wait_for_all()
    subscriber.publish(*range(100, 110))
    subscriber.wait_for_all()
    subscriber.check()


def test_who_stopped_first_does_not_count(pair: Cluster) -> None:
    first, last = pair
    lead_by(pair, first)
    fill_fast(first, QUEUE, range(10))
    assert first.stop() == 0
    await_master(last, QUEUE, [last])
    fill_fast(last, QUEUE, range(10, 20))  # That the first one does not have.
    assert last.stop() == 0

    first.spawn()
    text = "this node is not a voter: when it stopped, n2@localhost went on without it"
    until(lambda: text in first.log(), "it tells")
    state = first.control("app_state")
    assert state["starting"] and "Start that node. If it will never return" in state["waiting"]
    with pytest.raises(Refused, match="is not a voter"):
        first.control("go_on_alone")

    last.spawn()  # Alone it is a majority, and the other one follows.
    last.wait_until_ready()
    first.wait_until_ready()
    pair.wait_until_whole()
    await_in_sync(last, QUEUE, pair)
    assert sorted(int(body) for body, _ in drain(first, QUEUE)) == list(range(20))


def test_both_are_stopped_at_once(pair: Cluster) -> None:
    fill_fast(pair[0], QUEUE, range(10))
    for node in pair:
        assert node.process is not None
        node.process.terminate()
    assert [node.wait() for node in pair] == [0, 0]
    pair.start()
    await_in_sync(pair[0], QUEUE, pair)
    assert sorted(get_all(pair[1].channel(), QUEUE)) == sorted(numbers(*range(10)))


def test_both_are_killed_at_once(pair: Cluster) -> None:
    """Neither knows that it may go on, and none does before the other is there."""
    fill_fast(pair[0], QUEUE, range(10))
    for node in pair:
        node.freeze()
    for node in pair:
        node.kill()
    pair.start()
    await_in_sync(pair[0], QUEUE, pair)
    assert sorted(get_all(pair[1].channel(), QUEUE)) == sorted(numbers(*range(10)))


def test_the_leader_goes_on_without_one_that_is_silent(pair: Cluster) -> None:
    """And the silent one, when it is back, has what it missed and confirms nothing of its own."""
    leader = pair.leader()
    silent = pair.others(leader)[0]
    lead_by(pair, silent)
    subscriber = Subscriber(leader)
    subscriber.publish(*range(10))
    silent.freeze()
    subscriber.publish(*range(10, 20))
    subscriber.wait_for_all()
    assert pauses(leader) == 0
    silent.thaw()
    pair.wait_until_whole()
    subscriber.publish(*range(20, 30))
    subscriber.wait_for_all()
    subscriber.check()


def test_a_follower_waits_and_tells_and_goes_on_when_the_leader_is_proved_dead(pair: Cluster) -> None:
    leader = pair.leader()
    left = pair.others(leader)[0]
    fill_fast(leader, QUEUE, range(10))
    client = left.connect()
    leader.freeze()  # It has its lock still.
    until(lambda: left.control("local_partition")["paused_since_ms"] is not None, "it pauses")
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match=f"leveretctl -n {left.name} go_on_alone"):
        until(lambda: client.process_data_events(0.1), "the connection ends")
    status = left.status()
    told = status["waiting_for"][left.name]
    assert told["nodes"] == [leader.name] and told["command"] == f"leveretctl -n {left.name} go_on_alone"
    assert f"{leader.name} is removed from the cluster" in told["cost"]
    assert f"This node waits for {leader.name}" in left.log() and told["command"] in left.log()
    leader.kill()
    until(lambda: not left.status()["paused_nodes"], "it serves")
    assert voters(left) == [left.name] and left.status()["waiting_for"] == {}
    assert sorted(get_all(left.channel(), QUEUE)) == sorted(numbers(*range(10)))
    pair.start()


def test_a_node_that_was_left_behind_does_not_take_the_others_place(pair: Cluster) -> None:
    """The leader has gone on alone, and confirmed something, before it dies: its death proves nothing then."""
    leader = pair.leader()
    left = pair.others(leader)[0]
    lead_by(pair, leader)
    left.freeze()
    until(lambda: voters(leader) == [leader.name], "the leader goes on alone")
    fill_fast(leader, QUEUE, range(10))
    leader.kill()
    left.thaw()
    text = f"node {leader.name} has ended, but"
    until(lambda: text in left.log(), "it has seen that it must not")
    until(lambda: left.control("local_partition")["paused_since_ms"] is not None, "it pauses")
    assert "has gone on without" in left.control("local_partition")["waiting_for"]["doubt"]
    pair.start()
    await_in_sync(leader, QUEUE, pair)
    assert sorted(get_all(left.channel(), QUEUE)) == sorted(numbers(*range(10)))


def test_all_others_that_a_node_knows_are_gone(pair: Cluster, tmp_path: Path) -> None:
    """Another node has joined while it was away, and has gone on alone since: nobody whom it knows can tell it that. It
    waits, and is admitted in place of its former self, with its messages, if an operator wants that."""
    first, away = pair
    channel = away.channel(confirms=True)
    channel.queue_declare("own", durable=True)
    fill(channel, "own", range(10), properties=PERSISTENT)
    away.kill()
    until(lambda: voters(first) == [first.name], "one goes on alone")
    joined = Member(tmp_path / "joined", "joined@localhost", "net_ticktime = 2", join=(first.cluster_port,))
    try:
        joined.start()
        until(lambda: voters(joined) == sorted([first.name, joined.name]), "the new one has a vote")
        first.kill()
        until(lambda: voters(joined) == [joined.name], "the new one goes on alone")
        away.spawn()
        text = f"{joined.name} is not a member of the cluster of {away.name}"
        until(lambda: text in away.log(), "it takes no stranger's word")
        away.kill()
        (away.data / "metadata" / "identity").rename(away.data / "identity-before")
        command = ["leveret", "recover", str(away.data), "--from", f"127.0.0.1:{joined.cluster_port}"]
        subprocess.run([sys.executable, "-m", *command], cwd=ROOT, timeout=60, check=True)
        away.start()
        until(lambda: voters(joined) == sorted([away.name, joined.name]), "it has a vote")
        assert get_all(away.channel(), "own") == numbers(*range(10))
    finally:
        joined.end()


@pytest.mark.parametrize("trusts", [True, False])
def test_a_connection_that_is_refused(start_cluster: StartCluster, trusts: bool) -> None:
    """It proves that the leader is dead, if the nodes are told that it does."""
    config = "cluster.refused_connection_is_proof = true" if trusts else ""
    pair: Cluster = start_cluster(f"net_ticktime = 2\n{config}", size=2)
    mirror(pair[0], QUEUE)
    declare(pair[0], QUEUE)
    await_in_sync(pair[0], QUEUE, pair)
    leader = pair.leader()
    left = pair.others(leader)[0]
    fill_fast(leader, QUEUE, range(10))
    for node in pair:
        os.unlink(node.data / "lock")  # As if it were on another machine.
    leader.kill()
    if trusts:
        until(lambda: voters(left) == [left.name], "it goes on alone")
        assert pauses(left) == 0 and "its host refuses connections" in left.log()
    else:
        until(lambda: left.control("local_partition")["paused_since_ms"] is not None, "it pauses")
    pair.start()
    assert waiting(left.channel(), QUEUE) == 10


def test_a_leader_needs_a_proof_too_where_refused_connections_are_one(start_cluster: StartCluster) -> None:
    """Otherwise it might have gone on alone before it died, and the other one would not see that."""
    pair: Cluster = start_cluster("net_ticktime = 2\ncluster.refused_connection_is_proof = true", size=2)
    leader = pair.leader()
    other = pair.others(leader)[0]
    other.freeze()
    until(lambda: leader.control("local_partition")["paused_since_ms"] is not None, "it pauses")
    assert leader.control("local_partition")["waiting_for"]["nodes"] == [other.name]
    other.thaw()
    pair.wait_until_whole()


def test_an_operator_has_the_last_word(pair: Cluster) -> None:
    leader = pair.leader()
    left = pair.others(leader)[0]
    fill_fast(leader, QUEUE, range(10))
    with pytest.raises(Refused, match="in contact with a majority"):
        left.control("go_on_alone")
    os.unlink(leader.data / "lock")  # As if it were on another machine.
    leader.kill()
    until(lambda: left.control("local_partition")["paused_since_ms"] is not None, "it pauses")
    assert left.control("go_on_alone") == {"removed": leader.name}
    until(lambda: not left.status()["paused_nodes"], "it serves")
    assert left.status()["disk_nodes"] == [left.name]
    assert sorted(get_all(left.channel(), QUEUE)) == sorted(numbers(*range(10)))
    leader.spawn()  # It is no member any more, and says so.
    assert leader.wait() == 69 and "no longer count this one as a member" in leader.log()
