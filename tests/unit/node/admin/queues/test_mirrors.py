from __future__ import annotations

import asyncio
from typing import Any

import pytest

from leveret.metadata.model.commands import DeclareQueue, DeleteQueue, SetPolicy
from leveret.metadata.rules.placement import LINKS, moving_to
from leveret.node.admin.common import listing_columns
from leveret.node.admin.queues import mirrors
from tests.support.control_world import FakeServer, ask, cluster, refusal, rows
from tests.support.ring_world import Rings

ONE, TWO, THREE = "one@host", "two@host", "three@host"


@pytest.fixture
def rings(monkeypatch: pytest.MonkeyPatch) -> Rings:
    rings = Rings(cluster(ONE, THREE, TWO))

    pause = asyncio.sleep

    async def wait(seconds: float) -> None:
        """What goes on meanwhile."""
        rings.tick(3)
        await pause(0)

    monkeypatch.setattr(asyncio, "sleep", wait)
    return rings


def unsynced(rings: Rings) -> int:
    """A queue led by one, with two as a mirror that has two of seven messages."""
    number = rings.declare("q", ONE)
    rings.publish(ONE, "q", 5)
    rings.add_member(number, TWO)
    rings.publish(ONE, "q", 2)
    return number


async def statuses(server: FakeServer, *columns: str, **more: Any) -> list[list[Any]]:
    return await rows(server, "mirror_status_rows", columns=list(columns), **more)


# -- Synchronising -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [ONE, TWO, THREE])
async def test_sync_on_demand_from_any_node(rings: Rings, name: str) -> None:
    number = unsynced(rings)
    server = rings.servers[name]
    assert (await ask(server, "cancel_sync_queue", vhost="/", name="q")) == {"syncing": False}
    await ask(server, "sync_queue", vhost="/", name="q")
    assert rings.copy(ONE, number).ordered
    assert (await ask(server, "cancel_sync_queue", vhost="/", name="q")) == {"syncing": True}
    rings.tick()
    assert not rings.copy(TWO, number).member.in_sync
    await ask(server, "sync_queue", vhost="/", name="q")
    rings.tick()
    assert rings.copy(TWO, number).member.in_sync


async def test_what_cannot_be_synchronised(rings: Rings) -> None:
    one = rings.servers[ONE]
    rings.declare("plain")
    for command in ("sync_queue", "cancel_sync_queue"):
        assert await refusal(one, command, vhost="/", name="nope") == (69, "not_found")
        assert await refusal(one, command, vhost="nowhere", name="plain") == (69, "not_found")
    assert await refusal(one, "sync_queue", vhost="/", name="plain") == (69, "not_mirrored")
    assert await ask(one, "cancel_sync_queue", vhost="/", name="plain") == {"syncing": False}
    unsynced(rings)
    rings.kill(ONE)
    code, text = await refusal(rings.servers[TWO], "sync_queue", vhost="/", name="q")
    assert code == 69
    assert text.startswith(f"home node '{ONE}' of durable queue 'q' in vhost '/' is down or inaccessible")


async def test_a_policy_that_copies_nothing(rings: Rings) -> None:
    unsynced(rings)
    one = rings.servers[ONE]
    assert one.node is not None
    definition = {"ha-mode": "all", "ha-sync-strategy": "event"}
    await one.node.cluster.change(SetPolicy("/", "p", "^q", "queues", 0, definition))  # type: ignore[arg-type]
    code, text = await refusal(one, "sync_queue", vhost="/", name="q")
    assert code == 69 and "ha-sync-strategy is event" in text


# -- Mirrors by hand -----------------------------------------------------------------------------------------------


async def test_a_mirror_that_no_policy_wants(rings: Rings) -> None:
    number = rings.declare("q")
    one, two = rings.servers[ONE], rings.servers[TWO]
    rings.publish(ONE, "q", 3)
    link = {"vhost": "/", "source": "q", "node": TWO}
    await ask(two, "add_queue_mirror_link", **link)
    await ask(two, "add_queue_mirror_link", **link)
    rings.place()
    assert [name for name, _ in one.world.queue("q").spec.view.in_sync] == [ONE, TWO]  # type: ignore[union-attr]
    await ask(one, "add_queue_mirror_link", vhost="/", source=f"<{ONE}.2.{number}.0>", node=THREE)
    await ask(one, "add_queue_mirror_link", vhost="/", source=str(number), node=THREE)
    assert two.world.metadata.parameters[LINKS, "/", "q"] == {"queue": number, "nodes": [TWO, THREE]}
    rings.place()
    assert await rows(one, "list_queues", vhost="/", columns=["queue_slave_nodes"]) == [[[TWO, THREE]]]
    await ask(one, "remove_queue_mirror_link", **link)
    rings.place()
    assert await rows(one, "list_queues", vhost="/", columns=["queue_slave_nodes"]) == [[[THREE]]]
    await ask(one, "remove_queue_mirror_link", vhost="/", source="q", node=THREE)
    assert two.world.metadata.parameters == {}


async def test_links_of_deleted_queues_are_cleared_away(rings: Rings) -> None:
    number = rings.declare("old")
    rings.declare("new")
    one = rings.servers[ONE]
    assert one.node is not None
    await ask(one, "add_queue_mirror_link", vhost="/", source="old", node=TWO)
    await one.node.cluster.change(DeleteQueue("/", "old", number))
    await ask(one, "add_queue_mirror_link", vhost="/", source="new", node=TWO)
    assert [key[2] for key in one.world.metadata.parameters] == ["new"]


async def test_links_that_make_no_sense(rings: Rings) -> None:
    one = rings.servers[ONE]
    assert one.node is not None
    rings.declare("q", ONE, TWO)
    await one.node.cluster.change(DeclareQueue("/", "mine", exclusive=True, owner=f"{ONE}.1", node=ONE))
    add = "add_queue_mirror_link"
    assert await refusal(one, add, vhost="/", source="nope", node=TWO) == (69, "not_found")
    assert await refusal(one, add, vhost="/", source="77", node=TWO) == (69, "not_found")
    assert await refusal(one, add, vhost="/", source="q", node="x@host") == (
        69,
        "The node selected is not in the cluster: x@host",
    )
    assert await refusal(one, add, vhost="/", source="q", node=ONE) == (
        69,
        f"node {ONE} is where the master of queue 'q' in vhost '/' is",
    )
    assert "is exclusive" in (await refusal(one, add, vhost="/", source="mine", node=TWO))[1]
    await one.node.cluster.change(SetPolicy("/", "ha", "^q", "queues", 0, {"ha-mode": "all"}))
    assert await refusal(one, "remove_queue_mirror_link", vhost="/", source="q", node=TWO) == (
        69,
        f"queue 'q' in vhost '/' has no mirror link to node {TWO}; its mirror there comes from policy 'ha'",
    )


# -- Another master ------------------------------------------------------------------------------------------------


async def test_a_mirror_takes_over_with_nothing_lost(rings: Rings) -> None:
    number = rings.declare("q", ONE, TWO)
    rings.publish(ONE, "q", 4)
    for _ in range(2):
        await ask(rings.servers[THREE], "move_queue_master", vhost="/", name="q", node=TWO)
        assert rings.copy(TWO, number).member.master is not None
    assert await rows(rings.servers[THREE], "list_queues", vhost="/", columns=["node", "messages"]) == [[TWO, 4]]


async def test_masters_that_cannot_move(rings: Rings) -> None:
    three = rings.servers[THREE]
    unsynced(rings)

    async def moved(name: str, node: str) -> str:
        code, text = await refusal(three, "move_queue_master", vhost="/", name=name, node=node)
        assert code == 69
        return text

    assert await moved("nope", TWO) == "not_found"
    assert await moved("q", "x@host") == "The node selected is not in the cluster: x@host"
    assert await moved("q", TWO) == f"the mirror of queue 'q' in vhost '/' on node {TWO} is not synchronised"
    assert (await moved("q", THREE)).endswith(f"have one made first: add_queue_mirror_link q {THREE}")
    rings.kill(TWO)
    assert await moved("q", TWO) == f"node {TWO} is not running"


async def begun(rings: Rings, node: str) -> asyncio.Task[Any]:
    """A move of q that was asked for, and not carried out as yet."""
    metadata = rings.servers[ONE].world.metadata
    move = asyncio.get_running_loop().create_task(
        ask(rings.servers[TWO], "move_queue_master", vhost="/", name="q", node=node)
    )
    while moving_to(metadata, metadata.queues["/", "q"]) is None and not move.done():
        await asyncio.wait([move], timeout=0)
    return move


async def test_a_queue_without_mirrors_is_moved(rings: Rings) -> None:
    number = rings.declare("q")
    rings.publish(ONE, "q", 4)
    move = await begun(rings, THREE)
    rings.place()
    await move
    metadata = rings.servers[TWO].world.metadata
    spec = metadata.queues["/", "q"]
    assert (spec.node, spec.view) == (THREE, None), "it has no mirrors, as before"
    assert metadata.parameters == {}
    assert number not in rings.servers[ONE].world.broker.mirrors.mirrors
    assert await rows(rings.servers[ONE], "list_queues", vhost="/", columns=["node", "messages"]) == [[THREE, 4]]
    move = await begun(rings, TWO)  # From there it goes on.
    rings.place()
    await move
    assert await rows(rings.servers[ONE], "list_queues", vhost="/", columns=["node", "messages"]) == [[TWO, 4]]


async def test_a_queue_that_was_moved_is_none_that_lacks_mirrors(rings: Rings) -> None:
    """Whoever waits until no queue does would wait for ever."""
    rings.declare("q")
    move = await begun(rings, THREE)
    rings.place()
    await move
    three = rings.servers[THREE]
    assert (await ask(three, "mirror_sync_critical"))["queues"] == []
    assert (await ask(three, "status"))["mirrored_queues"]["masters"] == 0


async def test_a_move_ends_with_the_loss_of_where_it_goes(rings: Rings) -> None:
    rings.declare("q")
    rings.publish(ONE, "q", 4)
    move = await begun(rings, THREE)
    rings.kill(THREE)
    rings.place()
    with pytest.raises(AssertionError, match="was given up, or node three@host was lost"):
        await move
    spec = rings.servers[ONE].world.metadata.queues["/", "q"]
    assert spec.node == ONE and (spec.view is None or spec.view.ring == (ONE,))
    assert await rows(rings.servers[TWO], "list_queues", vhost="/", columns=["node", "messages"]) == [[ONE, 4]]


async def test_a_move_is_given_up_by_asking_for_where_the_queue_is(rings: Rings) -> None:
    rings.declare("q")
    move = await begun(rings, THREE)
    await ask(rings.servers[THREE], "move_queue_master", vhost="/", name="q", node=ONE)
    with pytest.raises(AssertionError, match="was given up"):
        await move
    rings.place()
    assert rings.servers[ONE].world.metadata.queues["/", "q"].node == ONE


async def test_a_move_that_makes_no_progress_is_given_up(rings: Rings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirrors, "STALL_S", -1.0)
    rings.declare("q")
    rings.stuck.add(THREE)
    move = await begun(rings, THREE)
    with pytest.raises(AssertionError, match="makes no progress; it stays"):
        await move
    assert rings.servers[ONE].world.metadata.parameters == {}


async def test_a_queue_that_is_deleted_on_its_way_leaves_nothing(rings: Rings) -> None:
    rings.declare("q")
    move = await begun(rings, THREE)
    await rings.servers[ONE].control.change(DeleteQueue("/", "q"))
    with pytest.raises(AssertionError, match="was deleted meanwhile"):
        await move
    assert rings.servers[ONE].world.metadata.parameters == {}


async def test_promotion_by_force_says_first_what_is_lost(rings: Rings) -> None:
    number = unsynced(rings)
    three = rings.servers[THREE]
    asked = {"vhost": "/", "name": "q", "node": TWO}
    loss = await ask(three, "promote_queue", **asked, confirmed=False)
    assert loss == {
        "done": False,
        "messages": 2,
        "lost": 5,
        "synchronised": [ONE],
        "unreachable": [],
        "complete": False,
        "filling": False,
        "sync_done": 0,
        "sync_total": 5,
    }
    rings.kill(ONE)
    loss = await ask(three, "promote_queue", **asked, confirmed=False)
    assert (loss["lost"], loss["synchronised"], loss["unreachable"]) == (None, [], [ONE])
    assert rings.copy(TWO, number).member.master is None
    done = await ask(three, "promote_queue", **asked, confirmed=True)
    assert (done["done"], done["messages"], done["lost"], done["unreachable"]) == (True, 2, None, [ONE])
    assert rings.copy(TWO, number).member.master is not None


async def test_promotions_that_are_refused(rings: Rings) -> None:
    three = rings.servers[THREE]
    rings.declare("q", ONE, TWO)
    rings.declare("plain")

    async def refused(name: str, node: str) -> str:
        code, text = await refusal(three, "promote_queue", vhost="/", name=name, node=node, confirmed=True)
        assert code == 69
        return text

    assert await refused("plain", TWO) == "not_mirrored"
    assert await refused("q", THREE) == f"node {THREE} has no copy of queue 'q' in vhost '/'"
    assert await refused("q", ONE) == f"node {ONE} leads queue 'q' in vhost '/' already"
    assert (await refused("q", TWO)).endswith(f"move_queue_master q {TWO} makes it lead with nothing lost")


# -- How they are --------------------------------------------------------------------------------------------------


async def test_critical_nodes(rings: Rings) -> None:
    unsynced(rings)
    rings.declare("safe", ONE, TWO)
    rings.declare("plain")
    alone = {"single": False, "queues": [{"name": "q", "vhost": "/"}]}
    assert await ask(rings.servers[ONE], "mirror_sync_critical") == alone
    assert await ask(rings.servers[TWO], "mirror_sync_critical") == {"single": False, "queues": []}
    (single,) = cluster("solo@host")
    assert await ask(single, "mirror_sync_critical") == {"single": True, "queues": []}


async def test_copies_of_all_queues_and_of_one(rings: Rings) -> None:
    unsynced(rings)
    rings.declare("r", TWO, ONE, THREE)
    rings.publish(TWO, "r", 1)
    columns = ("queue", "node", "role", "state", "messages", "lag_messages", "sync_done", "sync_total")
    all_of_them = [
        ["q", ONE, "master", "running", 7, "", "", ""],
        ["q", TWO, "mirror", "unsynchronised", 2, 5, 0, 5],
        ["r", TWO, "master", "running", 1, "", "", ""],
        ["r", ONE, "mirror", "synchronised", 1, 0, "", ""],
        ["r", THREE, "mirror", "synchronised", 1, 0, "", ""],
    ]
    for server in rings.servers.values():
        assert await statuses(server, *columns) == all_of_them
        assert await statuses(server, *columns, vhost="/", only="r") == all_of_them[2:]
    assert await statuses(rings.servers[ONE], *columns, vhost="elsewhere") == []
    assert (await refusal(rings.servers[ONE], "mirror_status_rows", columns=["x"]))[0] == 64
    missing = await refusal(rings.servers[ONE], "mirror_status_rows", columns=[], vhost="/", only="s")
    assert missing == (69, "not_found")
    rings.kill(ONE)
    assert await statuses(rings.servers[THREE], *columns[:5], vhost="/", only="q") == [
        ["q", ONE, "master", "down", ""],
        ["q", TWO, "mirror", "unsynchronised", 2],
    ]


async def test_every_column_of_a_copy_can_be_asked_for(rings: Rings) -> None:
    rings.declare("r", TWO, ONE)
    assert len((await statuses(rings.servers[ONE], *listing_columns.MIRRORS))[0]) == len(listing_columns.MIRRORS)


async def test_figures_are_in_the_status(rings: Rings) -> None:
    unsynced(rings)
    found = (await ask(rings.servers[ONE], "status"))["mirrored_queues"]
    assert (found["masters"], found["masters_without_synchronised_mirror"]) == (1, 1)
