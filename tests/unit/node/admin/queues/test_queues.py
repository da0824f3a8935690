"""Columns of mirrored queues, and the filter by a queue's name."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from leveret.metadata.model.commands import SetPolicy
from leveret.node.admin.queues import lists
from tests.support.control_world import FakeServer, ask, cluster, refusal, rows
from tests.support.ring_world import Rings

COLUMNS = ["name", "state", "master_node", "slave_pids", "synchronised_slave_pids", "recoverable_mirrors"]


@pytest.fixture
def rings() -> Rings:
    return Rings(cluster("one@host", "three@host", "two@host"))


def servers(rings: Rings) -> list[FakeServer]:
    return [server for server in rings.servers.values() if server.node is not None]


async def everywhere(rings: Rings, columns: list[str], **more: Any) -> list[list[Any]]:
    """What each node that runs lists, which must be the same."""
    answers = [await rows(server, "list_queues", vhost="/", columns=columns, **more) for server in servers(rings)]
    assert answers[1:] == answers[:-1]
    return answers[0]


async def test_who_mirrors_a_queue_is_the_same_from_every_node(rings: Rings) -> None:
    rings.declare("plain")
    number = rings.declare("q", "two@host", "one@host", "three@host")
    one, three = f"<one@host.2.{number}.0>", f"<three@host.2.{number}.0>"
    assert await everywhere(rings, COLUMNS) == [
        ["plain", "running", "one@host", "", "", ""],
        ["q", "running", "two@host", [one, three], [one, three], ["one@host", "three@host"]],
    ]
    same = ["mirror_pids", "synchronised_mirror_pids", "queue_slave_nodes", "recoverable_slaves", "pid"]
    both = ["one@host", "three@host"]
    master = f"<two@host.2.{number}.0>"
    assert await everywhere(rings, same, only="q") == [[[one, three], [one, three], both, both, master]]
    rings.kill("three@host")
    assert (await everywhere(rings, COLUMNS))[1] == ["q", "running", "two@host", [one], [one], both]
    rings.kill("two@host")
    rings.tick()
    assert (await everywhere(rings, COLUMNS))[1] == ["q", "running", "one@host", [], [], ["two@host", "three@host"]]


async def test_a_mirror_that_lacks_messages_and_its_progress(rings: Rings) -> None:
    number = rings.declare("q", "one@host")
    rings.publish("one@host", "q", 5)
    rings.add_member(number, "two@host")
    rings.publish("one@host", "q", 2)
    columns = ["state", "slave_pids", "synchronised_slave_pids", "sync_messages", "messages"]
    assert await everywhere(rings, columns) == [["running", [f"<two@host.2.{number}.0>"], [], "", 7]]
    rings.copy("one@host", number).member.ordered = True
    rings.copy("two@host", number).member.filling.wanted = True
    assert await everywhere(rings, columns) == [["syncing", [f"<two@host.2.{number}.0>"], [], 2, 7]]
    rings.kill("three@host")
    rings.tick()
    assert (await everywhere(rings, columns))[0][2:4] == [[f"<two@host.2.{number}.0>"], ""]


async def test_a_queue_without_a_copy_that_may_lead_is_down(rings: Rings) -> None:
    number = rings.declare("q", "one@host")
    rings.publish("one@host", "q", 5)
    rings.add_member(number, "two@host")
    rings.kill("one@host")
    rings.tick()
    (found,) = await everywhere(rings, [*COLUMNS, "messages"])
    assert found == ["q", "down", "one@host", [f"<two@host.2.{number}.0>"], [], ["two@host"], ""]


async def test_a_master_without_the_majority_says_so(rings: Rings) -> None:
    rings.declare("q", "one@host", "two@host")
    mirrors = rings.servers["one@host"].world.broker.mirrors
    mirrors.on_majority(False)
    mirrors.flush()
    assert await everywhere(rings, ["state"]) == [["minority"]]


async def test_policies_of_a_queue(rings: Rings) -> None:
    (one, *_) = servers(rings)
    rings.declare("q")
    assert await rows(one, "list_queues", vhost="/", columns=["policy", "effective_policy_definition"]) == [["", {}]]
    assert one.node is not None
    await one.node.cluster.change(SetPolicy("/", "p", "^q", "queues", 0, {"max-length": 9, "ha-sync-batch-size": 5}))
    await one.node.cluster.change(SetPolicy("/", "o", "^q", "queues", 0, {"max-length": 3}, operator=True))
    columns = ["policy", "operator_policy", "effective_policy_definition"]
    assert await everywhere(rings, columns) == [["p", "o", {"max-length": 3, "ha-sync-batch-size": 5}]]


async def test_messages_in_memory_and_on_disk(rings: Rings) -> None:
    rings.declare("q")
    server = rings.servers["one@host"]
    client = server.world.client()
    for _ in range(3):
        client.publish("q")
    columns = ["messages_ready", "messages_ready_ram", "messages_ready_disk", "idle_since"]
    (found,) = await rows(server, "list_queues", vhost="/", columns=columns)
    assert found[:3] == [3, 3, 0]
    assert found[3].endswith(" UTC") and len(found[3]) == len("2021-07-19 15:39:05 UTC")


async def test_a_new_queue_is_idle_since_its_declaration(rings: Rings) -> None:
    """Not since the node's start: a script that deletes idle queues would take new ones."""
    server = rings.servers["one@host"]
    control = server.control
    control.started_s -= 7_200  # Two hours ago.
    server.world.broker.now_ms = int(asyncio.get_running_loop().time() * 1000)
    before = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(time.time() - 1))
    rings.declare("q")
    ((idle_since,),) = await rows(server, "list_queues", vhost="/", columns=["idle_since"])
    assert idle_since >= before


# -- One queue -----------------------------------------------------------------------------------------------------


async def test_only_the_queue_of_that_name(rings: Rings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists, "PAGE", 1)
    for name in ("a", "b", "c"):
        rings.declare(name)
    rings.declare("there", "two@host", "one@host")
    assert await everywhere(rings, ["name"], only="b") == [["b"]]
    assert await everywhere(rings, ["name", "node"], only="there") == [["there", "two@host"]]
    assert await everywhere(rings, ["name"]) == [["a"], ["b"], ["c"], ["there"]]


async def test_a_queue_whose_master_changes_meanwhile_is_listed_once(
    rings: Rings, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = rings.declare("q", "one@host", "two@host")
    one, three = rings.servers["one@host"], rings.servers["three@host"]
    answer = one.control.answer

    async def late(payload: bytes) -> bytes:
        """The question finds a node that leads the queue no longer."""
        if rings.copy("one@host", number).member.master is not None:
            assert one.world.broker.mirrors.hand_over(rings.copy("one@host", number), "two@host")
            rings.tick()
        return await answer(payload)

    monkeypatch.setattr(one.control, "answer", late)
    found = await ask(three, "list_queues", vhost="/", columns=["name", "state", "node"])
    assert found == {"rows": [["q", "running", "two@host"]], "next": None, "missing": []}


async def test_a_name_that_is_none_was_meant_as_a_column(rings: Rings) -> None:
    (one, *_) = servers(rings)
    rings.declare("q")
    asked = {"vhost": "/", "columns": ["name"]}
    assert await refusal(one, "list_queues", **asked, only="nope") == (
        64,
        "Info key(s) nope are not supported, and there is no such queue in vhost '/'",
    )
    assert await refusal(one, "list_queues", **asked, only="name,z,y") == (64, "Info key(s) y,z are not supported")
    assert (await ask(one, "list_queues", vhost="/", columns=["name"], only="q", offline=True))["rows"] == []


@pytest.mark.parametrize("columns", [["name", "state"], ["name", "state", "sync_messages"]])
async def test_what_a_node_said_before_it_was_lost_is_not_shown(
    rings: Rings, columns: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers, and is gone before the list is complete."""
    rings.declare("q", "two@host", "one@host", "three@host")
    peers = rings.servers["one@host"].peers
    call = peers.call

    async def answered(*arguments: Any) -> bytes:
        answer = await call(*arguments)
        rings.kill("two@host")
        return answer

    monkeypatch.setattr(peers, "call", answered)
    found = await rows(rings.servers["one@host"], "list_queues", vhost="/", columns=columns)
    assert [row[:2] for row in found] == [["q", "down"]]
