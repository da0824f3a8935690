"""What rules mean for the copies of nodes that are played: see `tests.node.ring_world`."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.broker.confirms import Confirms
from leveret.broker.mirrored import Mirror
from leveret.cluster import commands as c
from leveret.cluster.mirroring import FORBID
from leveret.mirror.view import View
from tests.node.control_world import cluster
from tests.node.ring_world import Rings

ONE, TWO, THREE = "one@host", "two@host", "three@host"
HOUR_MS = 3_600_000


@pytest.fixture
def rings() -> Rings:
    return Rings(cluster(ONE, THREE, TWO))


def policy(rings: Rings, operator: bool = False, **definition: Any) -> None:
    keys = {key.replace("_", "-"): value for key, value in definition.items()}
    rings._propose(c.SetPolicy("/", "p", "^q$", "queues", 0, keys, operator))
    rings.run()


def view(rings: Rings, at: str = TWO) -> View:
    found = rings.servers[at].world.metadata.queues["/", "q"].view
    assert found is not None
    return found


def synced(rings: Rings) -> set[str]:
    return {name for name, _ in view(rings).in_sync}


def hollow(rings: Rings) -> int:
    """A queue at one, with messages, whose two mirrors have none of them."""
    number = rings.declare("q", ONE)
    rings.publish(ONE, "q", 10)
    rings.place()
    assert view(rings).ring == (ONE, TWO, THREE) or set(view(rings).ring) == {ONE, TWO, THREE}
    assert synced(rings) == {ONE}
    return number


# -- Filling -----------------------------------------------------------------------------------------------------------


def test_manual_until_the_policy_says_automatic(rings: Rings) -> None:
    policy(rings, ha_mode="all")
    number = hollow(rings)
    rings.tick(30)
    assert synced(rings) == {ONE}
    policy(rings, ha_mode="all", ha_sync_mode="automatic")
    rings.tick(30)
    assert synced(rings) == {ONE, TWO, THREE}
    assert rings.stores[TWO].stored(number).live.count == 10


def test_what_forbids_copying(rings: Rings) -> None:
    policy(rings, ha_mode="all")
    hollow(rings)
    rings._propose(c.SetGlobalParameter(FORBID, True))
    policy(rings, ha_mode="all", ha_sync_mode="automatic")
    rings.tick(30)
    assert synced(rings) == {ONE}
    rings._propose(c.ClearGlobalParameter(FORBID))
    rings.tick(30)
    assert synced(rings) == {ONE, TWO, THREE}


def test_an_operator_policy_forbids_new_mirrors_and_takes_none_away(rings: Rings) -> None:
    policy(rings, operator=True, ha_forbid_copying=True)
    policy(rings, ha_mode="all")
    rings.declare("q", ONE, TWO)
    rings.place()
    assert view(rings).ring == (ONE, TWO)


def test_only_in_the_hours_of_the_window(rings: Rings) -> None:
    def at(hour: int) -> None:
        for server in rings.servers.values():
            server.world.broker.mirrors.governing.wall_ms = hour * HOUR_MS
            server.world.broker.mirrors.governing.on_minute()
        rings.tick(30)

    policy(rings, ha_mode="all", ha_sync_mode="automatic", ha_replication_window={"hours": "22-6"})
    for server in rings.servers.values():
        server.world.broker.mirrors.governing.wall_ms = 12 * HOUR_MS
    hollow(rings)
    at(21)
    assert synced(rings) == {ONE}
    at(23)
    assert synced(rings) == {ONE, TWO, THREE}


@pytest.mark.parametrize(("strategy", "incremental"), [("full", False), ("incremental", True)])
def test_strategies(rings: Rings, strategy: str, incremental: bool) -> None:
    number = rings.declare("q", ONE, TWO)
    policy(rings, ha_mode="all", ha_sync_mode="automatic", ha_sync_strategy=strategy)
    assert rings.copy(TWO, number).member.options.incremental is incremental
    policy(rings, ha_mode="all", ha_sync_strategy="event")
    assert not rings.copy(TWO, number).member.options.filling


# -- Promotion ---------------------------------------------------------------------------------------------------------


def test_a_failed_master_without_a_synced_mirror(rings: Rings) -> None:
    policy(rings, ha_mode="all")
    hollow(rings)
    rings.kill(ONE)
    rings.tick(200)
    assert view(rings).master == ONE, "when-synced is the default"
    policy(rings, ha_mode="all", ha_promote_on_failure="always")
    rings.tick(200)
    assert view(rings).master in (TWO, THREE)
    assert view(rings).lossy == view(rings).epoch


def test_a_master_that_said_farewell_is_waited_for(rings: Rings) -> None:
    policy(rings, ha_mode="all", ha_promote_on_failure="always")
    hollow(rings)
    for name in (TWO, THREE):
        rings.servers[name].world.broker.mirrors.governing.on_farewell(ONE)
    rings.kill(ONE)
    rings.tick(200)
    assert view(rings).master == ONE
    spec = rings.servers[TWO].world.metadata.queues["/", "q"]
    assert rings.servers[TWO].world.broker.mirrors.governing.is_down(spec)


def test_one_that_leaves_hands_over(rings: Rings) -> None:
    numbers = [rings.declare(name, ONE, TWO, THREE) for name in ("q", "r")]
    rings.publish(ONE, "q", 10)
    governing = rings.servers[ONE].world.broker.mirrors.governing
    assert governing.leave()
    rings.tick(10)
    assert not governing.leave()
    masters = {name: rings.servers[TWO].world.metadata.queues["/", name].node for name in ("q", "r")}
    assert sorted(masters.values()) == [THREE, TWO], "each of the others leads one"
    queue = rings.copy(masters["q"], numbers[0]).queue
    assert queue is not None and queue.ready_count == 10


def test_what_is_published_during_a_hand_over_waits_for_the_next_master(rings: Rings) -> None:
    rings.declare("q", ONE, TWO)
    mirrors = rings.servers[ONE].world.broker.mirrors
    (mirror,) = mirrors
    assert mirrors.hand_over(mirror, TWO)
    queue = mirror.queue
    assert queue is not None and queue.frozen
    confirms = Confirms(lambda: None)
    pending = confirms.begin(1)
    assert queue.enqueue([b"x"], [b""], 1, 1, pending)
    assert queue.parked is not None and pending.waiting == 1
    mirror.member.on_peer_down(TWO)
    for _ in range(20):
        mirror.member.on_tick()
        mirrors.touched[mirror] = None
        mirrors.flush()
    assert queue.parked is None and not queue.frozen, "it was given up"
    assert queue.ready_count == 1


@pytest.mark.parametrize(
    ("definition", "leads"),
    [
        ({}, ONE),
        ({"ha_promote_on_shutdown": "when-synced"}, ONE),
        ({"ha_promote_on_shutdown": "always"}, TWO),
        ({"ha_promote_on_shutdown": "always", "ha_promote_on_failure": "when-synced"}, ONE),
    ],
)
def test_leaving_unsynced_mirrors(rings: Rings, definition: dict[str, Any], leads: str) -> None:
    policy(rings, ha_mode="nodes", ha_params=[ONE, TWO], **definition)
    rings.declare("q", ONE)
    rings.publish(ONE, "q", 10)
    rings.place()
    assert synced(rings) == {ONE} and len(view(rings).ring) == 2
    rings.servers[ONE].world.broker.mirrors.governing.leave()
    rings.tick(10)
    assert view(rings).master == leads


# -- Asynchronous mirrors ----------------------------------------------------------------------------------------------


def late(rings: Rings, mirror: Mirror) -> bool:
    return mirror in rings.servers[ONE].world.broker.mirrors.governing.late


def publish(rings: Rings, queue: Any, count: int) -> Confirms:
    confirms = Confirms(lambda: None)
    pending = confirms.begin(1)
    queue.enqueue([b"x"] * count, [b""] * count, 1, count, pending)
    if not pending.waiting:
        confirms.on_complete(pending)
    return confirms


def test_confirms_do_not_wait_for_an_asynchronous_mirror_within_its_window(rings: Rings) -> None:
    window = {"messages": 5}
    policy(rings, ha_mode="nodes", ha_params=[ONE, TWO], ha_replication="async", ha_replication_window=window)
    number = rings.declare("q", ONE, TWO)
    mirror = rings.copy(ONE, number)
    assert mirror.member.options.asynchronous
    rings.servers[TWO].node = None  # It hears nothing, and nobody notices.
    confirms = publish(rings, mirror.queue, 5)
    rings.run()
    assert confirms.take() == [(1, False, False)]
    confirms = publish(rings, mirror.queue, 1)
    rings.run()
    assert confirms.take() == [] and late(rings, mirror)
    assert mirror.queue is not None and mirror.queue.is_crowded()
    policy(rings, ha_mode="nodes", ha_params=[ONE, TWO], ha_replication="async")
    rings.run()
    assert confirms.take() == [(1, False, False)] and not late(rings, mirror)
