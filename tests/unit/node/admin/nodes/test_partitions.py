from __future__ import annotations

from dataclasses import replace

import pytest

from leveret.cli.ctl.nodes.partitions import _recovered, local_lines
from leveret.cli.ctl.nodes.status_text import cluster_status
from leveret.metadata.model.commands import DeclareQueue
from leveret.metadata.model.view import View
from leveret.metadata.rules.partition_handling import PARAMETER, Partitions
from leveret.node.admin.nodes.partitions import parted
from tests.support.control_world import FakeServer, ask, cluster, refusal


@pytest.fixture
def three() -> list[FakeServer]:
    return cluster("one@host", "two@host", "three@host")


def seen(server: FakeServer) -> Partitions:
    assert server.node is not None
    names = [one.name for one in server.node.cluster.members()]
    found = server.node.pausing.partitions
    found.in_sight = set(names) - found.lost.keys()
    found.set_members(names, names, 1_000)
    return found


async def test_setting_and_clearing(three: list[FakeServer]) -> None:
    one = three[0]
    told = await ask(one, "set_partition_handling", strategy="pause_if_all_down", nodes=["two@host", "x@y"])
    wanted = {"strategy": "pause_if_all_down", "nodes": ["two@host", "x@y"], "recover": "ignore"}
    assert told == {"handling": wanted, "unknown_nodes": ["x@y"]}
    assert all(server.world.metadata.global_parameters[PARAMETER] == wanted for server in three)
    assert (await ask(one, "local_partition"))["set_by"] == "cluster"
    assert await ask(one, "clear_partition_handling") == {"handling": {"strategy": "pause_minority"}}
    assert await refusal(one, "clear_partition_handling") == (
        69, "cluster_partition_handling is as the configuration says already",
    )  # fmt: skip
    code, text = await refusal(one, "set_partition_handling", strategy="autoheal", nodes=["two@host"])
    assert (code, text) == (
        65, "cluster_partition_handling: nodes belongs to pause_if_all_down, and autoheal is chosen",
    )  # fmt: skip
    code, text = await refusal(one, "set_global_parameter", name=PARAMETER, value="often")
    assert code == 69 and text.startswith("cluster_partition_handling: one of pause_minority")


async def test_who_sees_whom(three: list[FakeServer]) -> None:
    one, two = seen(three[0]), seen(three[1])
    one.on_down("three@host", "nothing was heard for 4000 ms", True, 5_000)
    two.on_down("three@host", "the connection was closed", False, 6_000)
    status = await ask(three[0], "cluster_status")
    # Of the three, all run: whoever does not see the third is parted from it, however it noticed.
    assert status["partitions"] == {"one@host": ["three@host"], "two@host": ["three@host"]}
    assert status["unreachable"]["two@host"][0]["since_ms"] == 6_000 and status["paused_nodes"] == []
    shown = cluster_status(status, str)
    assert "Node one@host cannot communicate with three@host" in shown
    assert (
        "Node one@host is out of contact with three@host since 1970-01-01 00:00:05 UTC (nothing was heard for 4000 ms)"
        in shown
    )
    one.on_down("two@host", "closed", False, 7_000)
    assert one.look(True, 8_000)
    status = await ask(three[0], "cluster_status")
    assert status["paused_nodes"] == ["one@host"] and "one@host is paused" in cluster_status(status, str)
    assert (await ask(three[0], "app_state"))["paused"] == "1 of 3 nodes are in contact, which is no majority"


def test_who_has_died_is_not_parted() -> None:
    lost = {"since_ms": 1, "reason": "closed"}
    told = {"a": {"unreachable": [{"node": "b", "silent": False, **lost}, {"node": "c", "silent": True, **lost}]}}
    assert parted(told, ["a"]) == {"a": ["c"]}
    assert parted(told, ["a", "b"]) == {"a": ["b", "c"]}
    assert parted({"a": {"unreachable": []}}, ["a"]) == {}


async def test_recovery_by_hand(three: list[FakeServer]) -> None:
    one, two, _ = three
    assert one.node is not None
    for name, node in (
        ("plain", "three@host"),
        ("mirrored", "three@host"),
        ("lagging", "three@host"),
        ("own", "one@host"),
    ):
        one.node.metadata.apply(DeclareQueue("/", name, node=node))
    queues = one.node.metadata.queues
    disks = {server.name: server.uuid for server in three}
    for name, in_sync in (("mirrored", ("three@host", "one@host")), ("lagging", ("three@host",))):
        spec = queues["/", name]
        synced = tuple((member, disks[member]) for member in in_sync)
        queues["/", name] = replace(spec, view=View(1, 1, "three@host", ("three@host", "one@host"), synced))
    sight = seen(one)
    sight.on_down("three@host", "the connection was closed", False, 5_000)
    told = await ask(one, "recover_partition")
    assert one.peers.retries == 1 and told["dialed"] == ["three@host"]
    advice = {row["name"]: row["advice"] for row in told["queues"]}
    assert advice == {
        "plain": "its messages are on three@host only: bring that node, or the way to it, back",
        "mirrored": "one@host is synchronised and will lead it by itself",
        "lagging": "no synchronised copy is in contact: bring back one of three@host; or, and what only they have is "
        "lost then: leveretctl -n one@host promote_queue lagging",
    }
    lines = _recovered(told)
    assert lines[0] == "Dialed: three@host" and "Unreachable queues: 3" in lines
    assert " * plain in vhost /, on three@host: its messages are on three@host only" in "\n".join(lines)
    sight.on_down("two@host", "nothing was heard", True, 6_000)
    one.node.cluster.has_majority = False
    told = await ask(one, "recover_partition")
    assert told["now"]["paused_since_ms"] == 2_000
    text = "\n".join(_recovered(told))
    assert "The node resumes by itself" in text and "nothing can be declared, changed or promoted" in text
    assert {row["advice"] for row in told["queues"] if row["name"] == "mirrored"} == {
        "one@host is synchronised and will lead it once a majority of the nodes is in contact"
    }
    for name in ("two@host", "three@host"):
        sight.on_up(name)
    told = await ask(one, "recover_partition")
    assert told["queues"] == [] and "The node was paused, and serves clients again" in _recovered(told)
    assert local_lines(told["now"]) == ["Partition handling: pause_minority, from the configuration"]
    assert two.peers.retries == 0
