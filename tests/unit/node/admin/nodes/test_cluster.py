from __future__ import annotations

import pytest

from leveret.metadata.model.commands import DeclareQueue, SetGlobalParameter
from leveret.node.cluster.consensus import AdminError
from leveret.node.sockets.listeners import StartFailed
from tests.support.control_world import FakeServer, ask, cluster, refusal


@pytest.fixture
def pair() -> list[FakeServer]:
    return cluster("one@host", "two@host")


async def test_life(pair: list[FakeServer]) -> None:
    one = pair[0]
    await ask(one, "stop_app")
    await ask(one, "reset", force=False)
    await ask(one, "reset", force=True)
    await ask(one, "force_boot")
    await ask(one, "start_app")
    await ask(one, "stop")
    assert one.done == ["stop_app", ("reset", False), ("reset", True), "force_boot", "start_app", "stop"]


async def test_a_start_that_fails_says_why(pair: list[FakeServer]) -> None:
    one = pair[0]
    await ask(one, "stop_app")
    one.failure = StartFailed("cannot listen")
    assert await refusal(one, "start_app") == (69, "cannot listen")
    one.failure = AdminError("no majority")
    assert await refusal(one, "reset", force=False) == (69, "no majority")


# -- Joining -------------------------------------------------------------------------------------------------------


async def stopped_stranger(name: str = "new@host") -> tuple[FakeServer, FakeServer]:
    """A node of a cluster, and one that is no member and could become it."""
    (one,) = cluster("one@host")
    (new,) = cluster(name)
    new.all.servers["elsewhere"] = one  # Its calls arrive there; it is no member of that cluster.
    one.address = "127.0.0.1:1111"
    await ask(new, "stop_app")
    new.done.clear()
    return one, new


@pytest.mark.parametrize("name", [None, "one@host", "one@127.0.0.1"])
async def test_join(name: str | None) -> None:
    _, new = await stopped_stranger()
    assert await ask(new, "join_cluster", host="127.0.0.1", port=1111, name=name) == {"already_member": False}
    assert new.done == [("join", ("127.0.0.1", 1111))]


async def test_joining_the_cluster_one_is_in_deletes_nothing() -> None:
    one, new = await stopped_stranger()
    one.all.servers["new@host"] = new
    assert await ask(new, "join_cluster", host="127.0.0.1", port=1111) == {"already_member": True}
    assert new.done == []


async def test_joining_a_cluster_that_knows_another_of_that_name() -> None:
    one, new = await stopped_stranger()
    namesake = one.all.add("new@host")
    namesake.uuid = "of another life"
    code, text = await refusal(new, "join_cluster", host="127.0.0.1", port=1111)
    assert code == 69
    assert "leveretctl -n one@host forget_cluster_node new@host" in text
    assert new.done == []


@pytest.mark.parametrize(
    ("port", "name", "code", "words"),
    [
        (1111, "new@host", 70, "Error: cannot cluster node with itself: new@host"),
        (25672, None, 70, "Error: cannot cluster node with itself: new@host"),
        (1111, "two@host", 69, "the node at 127.0.0.1:1111 is one@host, not two@host"),
        (1, None, 69, "no node answers at 127.0.0.1:1: Connection refused. Is that its cluster port"),
    ],
)
async def test_joining_what_cannot_be_joined(port: int, name: str | None, code: int, words: str) -> None:
    _, new = await stopped_stranger()
    answered, text = await refusal(new, "join_cluster", host="127.0.0.1", port=port, name=name)
    assert answered == code
    assert text.startswith(words)
    assert new.done == []


async def test_joining_a_node_whose_app_is_stopped() -> None:
    one, new = await stopped_stranger()
    await ask(one, "stop_app")
    code, text = await refusal(new, "join_cluster", host="127.0.0.1", port=1111)
    assert code == 69
    assert "requires the 'leveret' app to be running" in text


# -- Members -------------------------------------------------------------------------------------------------------


async def test_forget(pair: list[FakeServer]) -> None:
    one, two = pair
    assert await refusal(one, "forget_cluster_node", name="x@host") == (
        69,
        "The node selected is not in the cluster: x@host",
    )
    code, text = await refusal(one, "forget_cluster_node", name="two@host")
    assert (code, "must be stopped with 'leveretctl -n two@host stop_app'" in text) == (69, True)
    await ask(two, "stop_app")
    await ask(one, "forget_cluster_node", name="two@host")
    assert one.node is not None and one.node.cluster.forgotten == ["two@host"]


async def test_who_is_half_forgotten_or_half_renamed_can_be_asked_for_again(pair: list[FakeServer]) -> None:
    """No member of that name is left, but queues, or the word that it is to have another name."""
    one = pair[0]
    assert one.node is not None
    one.world.apply(DeclareQueue("/", "left", node="gone@host"))
    await ask(one, "forget_cluster_node", name="gone@host")
    assert one.node.cluster.forgotten == ["gone@host"]
    one.world.apply(SetGlobalParameter("node_renaming:was@host", {"new": "two@host", "id": "1"}))
    await ask(one, "rename_cluster_node", old="was@host", new="two@host")
    assert one.node.cluster.renamed == [("was@host", "two@host")]
    assert (await refusal(one, "rename_cluster_node", old="was@host", new="one@host"))[0] == 69


async def test_rename(pair: list[FakeServer]) -> None:
    one = pair[0]
    assert (await refusal(one, "rename_cluster_node", old="x@host", new="y@host"))[0] == 69
    assert (await refusal(one, "rename_cluster_node", old="one@host", new="two@host"))[0] == 69
    assert (await refusal(one, "rename_cluster_node", old="two@host", new=""))[0] == 65
    await ask(one, "rename_cluster_node", old="two@host", new="second@host")
    assert one.node is not None and one.node.cluster.renamed == [("two@host", "second@host")]


async def test_members_and_who_runs(pair: list[FakeServer]) -> None:
    one, two = pair
    both = {"one@host": "uuid-of-one@host", "two@host": "uuid-of-two@host"}
    assert await ask(one, "cluster_nodes") == {"members": both, "running": ["one@host", "two@host"]}
    await ask(two, "stop_app")
    assert await ask(one, "cluster_nodes") == {"members": both, "running": ["one@host"]}


async def test_cluster_status_is_gathered(pair: list[FakeServer]) -> None:
    one, two = pair
    assert two.node is not None
    two.node.alarms.memory = True
    status = await ask(one, "cluster_status")
    assert status["disk_nodes"] == status["running_nodes"] == ["one@host", "two@host"]
    assert status["cluster_name"] == "founded"
    assert status["leader"] == "one@host"
    assert status["alarms"] == [{"type": "resource_limit", "resource": "memory", "node": "two@host"}]
    assert [one["port"] for one in status["listeners"]["two@host"]] == [25673, 5673]
    assert set(status["versions"]) == {"one@host", "two@host"}
    assert status["ram_nodes"] == [] and status["partitions"] == {}


async def test_cluster_status_without_the_word_of_a_node_that_is_cut_off(pair: list[FakeServer]) -> None:
    one = pair[0]
    one.all.cut_off.add("two@host")
    status = await ask(one, "cluster_status")
    assert status["disk_nodes"] == ["one@host", "two@host"]
    assert set(status["versions"]) == {"one@host"}


async def test_cluster_name(pair: list[FakeServer]) -> None:
    one, two = pair
    await ask(one, "set_cluster_name", name="production")
    assert one.all.changes == [SetGlobalParameter("cluster_name", "production")]
    assert (await ask(two, "cluster_status"))["cluster_name"] == "production"


# -- How it is -----------------------------------------------------------------------------------------------------


async def test_status(pair: list[FakeServer]) -> None:
    one = pair[0]
    one.world.client().declare("q")
    status = await ask(one, "status")
    assert status["node"] == "one@host"
    assert status["totals"] == {"connection_count": 1, "queue_count": 1, "virtual_host_count": 1}
    assert (status["memory"]["total"]["rss"], status["disk_free"]) == (50, 60)
    assert [(one["protocol"], one["port"]) for one in status["listeners"]] == [("clustering", 25672), ("amqp", 5672)]


async def test_alarms(pair: list[FakeServer]) -> None:
    one = pair[0]
    assert await ask(one, "alarms") == {"alarms": []}
    assert one.node is not None
    one.node.alarms.disk_full = True
    assert await ask(one, "alarms") == {"alarms": [{"type": "resource_limit", "resource": "disk", "node": "one@host"}]}
