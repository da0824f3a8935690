"""What rules mean for the copies of nodes that are played: see `tests.support.ring_world`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from leveret.broker.delivery.confirms import Confirms
from leveret.broker.mirrors.hand_overs import BEGUN_AT_ONCE, HandOvers
from leveret.broker.mirrors.manager import Mirror
from leveret.broker.queue.queue import Queue
from leveret.broker.queue.state import Access
from leveret.broker.remote.peer_frames import U64
from leveret.links.frame_types import LINKED, STOPPING
from leveret.links.proposals import BadFrame
from leveret.metadata.model import commands as c
from leveret.metadata.model.maintenance_mark import DRAINING, MAINTENANCE, mark
from leveret.metadata.model.view import View
from leveret.metadata.rules.ha_policy import FORBID
from tests.support.control_world import cluster
from tests.support.ring_world import Rings

ONE, TWO, THREE = "one@host", "two@host", "three@host"
HOUR_MS = 3_600_000
MANY = 2 * BEGUN_AT_ONCE + 3


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
            server.world.broker.mirrors.ha_rules.wall_ms = hour * HOUR_MS
            server.world.broker.mirrors.ha_rules.on_minute()
        rings.tick(30)

    policy(rings, ha_mode="all", ha_sync_mode="automatic", ha_replication_window={"hours": "22-6"})
    for server in rings.servers.values():
        server.world.broker.mirrors.ha_rules.wall_ms = 12 * HOUR_MS
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


def test_a_queue_stands_still_while_it_is_filled_if_its_policy_says_so(rings: Rings) -> None:
    definition: dict[str, Any] = {"ha_mode": "nodes", "ha_params": [ONE, TWO], "ha_sync_blocking": True}
    policy(rings, **definition)
    number = rings.declare("q", ONE)
    rings.publish(ONE, "q", 10)
    rings.place()
    queue = rings.copy(ONE, number).queue
    assert queue is not None and not queue.frozen, "nobody fills it yet"
    rings.stuck.add(TWO)
    policy(rings, ha_sync_mode="automatic", **definition)
    rings.tick(5)
    assert queue.frozen
    confirms = publish(rings, queue, 3)
    rings.tick(5)
    assert confirms.take() == [] and queue.ready_count == 10
    rings.stuck.clear()
    rings.tick(30)
    assert synced(rings) == {ONE, TWO} and not queue.frozen
    assert confirms.take() == [(1, False, False)] and queue.ready_count == 13


def test_a_queue_that_stands_still_goes_on_when_nobody_is_filled_any_more(rings: Rings) -> None:
    """The sync is cancelled, or the policy is another, or the mirror is gone."""
    definition: dict[str, Any] = {"ha_mode": "nodes", "ha_params": [ONE, TWO]}
    policy(rings, ha_sync_blocking=True, **definition)
    number = rings.declare("q", ONE)
    rings.publish(ONE, "q", 10)
    rings.place()
    mirror, mirrors = rings.copy(ONE, number), rings.servers[ONE].world.broker.mirrors
    assert mirror.queue is not None
    rings.stuck.add(TWO)
    ends: list[Callable[[], None]] = [
        lambda: mirrors.order_sync(mirror, False),
        lambda: policy(rings, **definition),
        lambda: rings.kill(TWO),
    ]
    for end in ends:
        policy(rings, ha_sync_blocking=True, **definition)
        mirrors.order_sync(mirror, True)
        rings.run()
        assert mirror.queue.frozen and mirror.queue.parked == []
        end()
        rings.run()
        assert not mirror.queue.frozen and mirror.queue.parked is None


def standing_still(rings: Rings, *nodes: str) -> tuple[Mirror, Confirms]:
    """A queue that stands still because three is filled, and a publish that waits for it."""
    policy(rings, ha_mode="nodes", ha_params=[*nodes, THREE], ha_sync_blocking=True)
    number = rings.declare("q", *nodes)
    rings.publish(ONE, "q", 10)
    rings.tick(1)  # Mirrors hear that it is confirmed and drop its block, so that three cannot have it from them.
    rings.place()
    mirror = rings.copy(ONE, number)
    rings.stuck.add(THREE)
    rings.servers[ONE].world.broker.mirrors.order_sync(mirror, True)
    rings.run()
    assert mirror.queue is not None and mirror.queue.access is Access.HELD
    confirms = publish(rings, mirror.queue, 3)
    assert mirror.queue.parked
    return mirror, confirms


def test_what_waits_for_a_sync_goes_to_the_next_master(rings: Rings) -> None:
    mirror, _ = standing_still(rings, ONE, TWO)
    broker = rings.servers[ONE].world.broker
    assert broker.mirrors.hand_over(mirror, TWO)
    rings.tick(30)
    assert master_of(rings, "q") == TWO
    parked = broker.queues_by_id[mirror.spec.id].parked  # There are no links here by which it would be sent.
    assert parked is not None and [one.contents for one in parked] == [[b"x"] * 3]


def test_a_queue_goes_on_if_its_sync_ended_while_the_majority_was_lost(rings: Rings) -> None:
    mirror, confirms = standing_still(rings, ONE)
    mirrors, queue = rings.servers[ONE].world.broker.mirrors, mirror.queue
    assert queue is not None
    mirrors.on_majority(False)
    mirrors.order_sync(mirror, False)
    rings.run()
    assert queue.parked is not None, "nothing is handed out anyway"
    mirrors.on_majority(True)
    rings.stuck.clear()
    rings.tick(20)
    assert queue.parked is None and not queue.frozen
    assert confirms.take() == [(1, False, False)]


def ordered(rings: Rings) -> int:
    """A queue whose mirror at two an operator wants to be filled, which takes a while."""
    policy(rings, ha_mode="nodes", ha_params=[ONE, TWO])
    number = rings.declare("q", ONE)
    rings.publish(ONE, "q", 10)
    rings.place()
    assert view(rings).ring == (ONE, TWO) and synced(rings) == {ONE}
    mirrors = rings.servers[ONE].world.broker.mirrors
    mirrors.order_sync(rings.copy(ONE, number), True)
    return number


def test_who_joins_while_others_are_filled_by_order_is_filled_too(rings: Rings) -> None:
    ordered(rings)
    rings.servers[TWO].node = None  # It takes its time.
    policy(rings, ha_mode="all")
    rings.place()
    assert {name for name, _ in view(rings, at=THREE).in_sync} == {ONE, THREE}


def cancelled(rings: Rings) -> int:
    """A queue whose mirror at two is not filled, because an operator has cancelled that."""
    policy(rings, ha_mode="nodes", ha_params=[ONE, TWO])
    number = rings.declare("q", ONE)
    rings.publish(ONE, "q", 10)
    rings.place()
    rings.servers[ONE].world.broker.mirrors.order_sync(rings.copy(ONE, number), False)
    policy(rings, ha_mode="nodes", ha_params=[ONE, TWO], ha_sync_mode="automatic", ha_sync_blocking=True)
    rings.tick(30)
    assert synced(rings) == {ONE} and rings.copy(ONE, number).ordered is False
    return number


def test_an_order_not_to_fill_ends_when_the_mirror_is_in_sync(rings: Rings) -> None:
    """It became so because what it lacked was consumed. When it lacks something again, its policy holds."""
    number = cancelled(rings)
    mirror = rings.copy(TWO, number).member
    assert not mirror.filling.wanted
    queue = rings.copy(ONE, number).queue
    assert isinstance(queue, Queue)
    queue.purge()
    rings.publish(ONE, "q", 1)
    rings.tick(60)
    assert synced(rings) == {ONE, TWO}
    assert mirror.ordered is None and mirror.filling.wanted
    assert rings.copy(ONE, number).ordered is None


def test_there_is_no_order_not_to_fill_where_nobody_is_filled(rings: Rings) -> None:
    """As there is none to fill. Who lacks something later is filled as the policy says."""
    policy(rings, ha_mode="nodes", ha_params=[ONE, TWO], ha_sync_mode="automatic")
    number = rings.declare("q", ONE, TWO)
    mirrors = rings.servers[ONE].world.broker.mirrors
    for wanted in (False, True):
        mirrors.order_sync(rings.copy(ONE, number), wanted)
        assert rings.copy(ONE, number).ordered is None


def test_a_mirror_that_restarts_while_it_is_filled_by_order_goes_on(rings: Rings) -> None:
    number = ordered(rings)
    rings.restart(TWO)
    assert rings.copy(TWO, number).member.ordered is None
    rings.tick(30)
    assert synced(rings) == {ONE, TWO}
    assert rings.copy(ONE, number).ordered is rings.copy(TWO, number).ordered is None


def test_an_order_ends_with_what_it_was_about(rings: Rings) -> None:
    """Who joins later begins as the policy says."""
    ordered(rings)
    rings.tick(30)
    assert synced(rings) == {ONE, TWO}
    policy(rings, ha_mode="all")
    rings.place()
    rings.tick(30)
    assert synced(rings) == {ONE, TWO} and len(view(rings).ring) == 3


def test_a_mirror_whose_sync_was_cancelled_is_filled_when_it_comes_back(rings: Rings) -> None:
    number = cancelled(rings)
    one, two = (rings.servers[name].world.broker.mirrors for name in (ONE, TWO))
    for ends in ((one, TWO), (two, ONE)):
        ends[0].on_peer_down(ends[1])
    rings.run()
    for ends in ((one, TWO), (two, ONE)):
        ends[0].on_peer_up(ends[1])
    rings.tick(60)
    assert synced(rings) == {ONE, TWO}
    queue = rings.copy(ONE, number).queue
    assert queue is not None and not queue.frozen


def test_a_mirror_whose_sync_was_cancelled_is_filled_after_a_restart(rings: Rings) -> None:
    cancelled(rings)
    rings.restart(TWO)
    rings.tick(60)
    assert synced(rings) == {ONE, TWO}


def test_mirrors_whose_sync_was_cancelled_are_filled_with_one_that_joins(rings: Rings) -> None:
    cancelled(rings)
    policy(rings, ha_mode="all", ha_sync_mode="automatic")
    rings.place()
    rings.tick(60)
    assert synced(rings) == {ONE, TWO, THREE}


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


def test_a_master_to_which_only_this_link_is_broken_has_not_failed(rings: Rings) -> None:
    """Another node, which has no copy, still sees it."""
    policy(rings, ha_mode="nodes", ha_params=[ONE, TWO], ha_promote_on_failure="always")
    rings.declare("q", ONE)
    rings.publish(ONE, "q", 10)
    rings.place()
    assert view(rings).ring == (ONE, TWO) and synced(rings) == {ONE}
    here = rings.servers[TWO].world.broker.mirrors
    here.ha_rules.on_linked(THREE, f"{ONE}\n{TWO}".encode())
    here.on_peer_down(ONE)
    rings.servers[ONE].world.broker.mirrors.on_peer_down(TWO)
    rings.tick(200)
    assert view(rings).master == ONE
    here.ha_rules.on_linked(THREE, TWO.encode())
    rings.tick(200)
    assert view(rings).master == TWO


def test_the_word_of_a_node_that_is_lost_as_well_counts_no_longer(rings: Rings) -> None:
    policy(rings, ha_mode="nodes", ha_params=[ONE, TWO], ha_promote_on_failure="always")
    rings.declare("q", ONE)
    rings.publish(ONE, "q", 10)
    rings.place()
    here = rings.servers[TWO].world.broker.mirrors
    here.ha_rules.on_linked(THREE, ONE.encode())
    rings.kill(ONE)
    rings.tick(200)
    assert view(rings).master == ONE
    here.on_peer_down(THREE)
    rings.tick(200)
    assert view(rings).master == TWO


def test_nodes_tell_each_other_whom_they_see(rings: Rings) -> None:
    broker = rings.servers[ONE].world.broker
    told: list[tuple[str, int, bytes]] = []
    rings.servers[ONE].world.send = lambda peer, kind, parts: told.append((peer, kind, b"".join(parts)))  # type: ignore[method-assign]
    broker.on_peer_up(TWO)
    broker.on_peer_up(THREE)
    linked = [(peer, data) for peer, kind, data in told if kind == LINKED]
    both = f"{TWO}\n{THREE}".encode()
    assert linked == [(TWO, TWO.encode()), (TWO, both), (THREE, both)]
    told.clear()
    broker.on_peer_down(TWO)
    assert [(peer, data) for peer, kind, data in told if kind == LINKED] == [(THREE, THREE.encode())]
    broker.on_peer_frame(THREE, LINKED, TWO.encode())
    assert broker.mirrors.ha_rules.linked == {THREE: {TWO}}
    with pytest.raises(BadFrame):
        broker.on_peer_frame(THREE, LINKED, b"\xff")


def test_a_master_that_said_farewell_is_waited_for(rings: Rings) -> None:
    policy(rings, ha_mode="all", ha_promote_on_failure="always")
    hollow(rings)
    for name in (TWO, THREE):
        rings.servers[name].world.broker.mirrors.ha_rules.on_farewell(ONE, U64.pack(0))
    rings.kill(ONE)
    rings.tick(200)
    assert view(rings).master == ONE
    spec = rings.servers[TWO].world.metadata.queues["/", "q"]
    assert rings.servers[TWO].world.broker.mirrors.ha_rules.is_down(spec)


def test_a_farewell_counts_once_all_is_known_that_came_before_it(rings: Rings) -> None:
    policy(rings, ha_mode="all")
    hollow(rings)
    told: list[bytes] = []
    stopping, broker = rings.servers[ONE].world, rings.servers[TWO].world.broker
    stopping.broker.on_peer_up(TWO)
    stopping.metadata.index = broker.metadata.index + 1  # A view, perhaps, that the other one has not heard of.
    stopping.send = lambda peer, kind, parts: told.append(b"".join(parts)) if kind == STOPPING else None  # type: ignore[method-assign]
    stopping.broker.mirrors.ha_rules.say_farewell()
    broker.on_peer_frame(ONE, STOPPING, told[0])
    spec = broker.metadata.queues["/", "q"]
    assert not broker.mirrors.ha_rules.is_down(spec)
    broker.metadata.index += 1
    assert broker.mirrors.ha_rules.is_down(spec)
    with pytest.raises(BadFrame):
        broker.on_peer_frame(ONE, STOPPING, b"")


def test_one_that_leaves_hands_over(rings: Rings) -> None:
    numbers = [rings.declare(name, ONE, TWO, THREE) for name in ("q", "r")]
    rings.publish(ONE, "q", 10)
    hand_overs = rings.servers[ONE].world.broker.mirrors.hand_overs
    assert hand_overs.leave()
    rings.tick(10)
    assert not hand_overs.leave()
    masters = {name: rings.servers[TWO].world.metadata.queues["/", name].node for name in ("q", "r")}
    assert sorted(masters.values()) == [THREE, TWO], "each of the others leads one"
    queue = rings.copy(masters["q"], numbers[0]).queue
    assert queue is not None and queue.ready_count == 10


def out_of_service(rings: Rings, *names: str) -> None:
    for name in names:
        run = rings.servers[ONE].world.metadata.runs[name]
        rings._propose(c.SetGlobalParameter(MAINTENANCE + name, mark(DRAINING, run)))
    rings.run()


def master_of(rings: Rings, name: str) -> str:
    return rings.servers[TWO].world.metadata.queues["/", name].node


def test_one_in_maintenance_gives_away_a_few_at_a_time(rings: Rings) -> None:
    for name in ("q", "r", "s"):
        rings.declare(name, ONE, TWO, THREE)
    out_of_service(rings, ONE, THREE)
    hand_overs = rings.servers[ONE].world.broker.mirrors.hand_overs
    assert hand_overs.give_away(2) == 3
    rings.tick(10)
    assert hand_overs.give_away(2) == 1, "two have gone at the same time"
    rings.tick(10)
    assert hand_overs.give_away(2) == 0
    assert {master_of(rings, name) for name in ("q", "r", "s")} == {TWO}, "the third is out of service itself"


def test_nothing_is_given_to_those_out_of_service_but_before_a_stop(rings: Rings) -> None:
    rings.declare("q", ONE, TWO, THREE)
    out_of_service(rings, ONE, TWO, THREE)
    hand_overs = rings.servers[ONE].world.broker.mirrors.hand_overs
    assert hand_overs.give_away(9) == 0 and master_of(rings, "q") == ONE
    assert hand_overs.leave()
    rings.tick(10)
    assert master_of(rings, "q") != ONE


def test_no_unsynced_mirror_leads_for_the_sake_of_maintenance(rings: Rings) -> None:
    policy(rings, ha_mode="nodes", ha_params=[ONE, TWO], ha_promote_on_shutdown="always")
    rings.declare("q", ONE)
    rings.publish(ONE, "q", 10)
    rings.place()
    out_of_service(rings, ONE)
    assert rings.servers[ONE].world.broker.mirrors.hand_overs.give_away(9) == 0
    rings.tick(10)
    assert master_of(rings, "q") == ONE


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
    rings.servers[ONE].world.broker.mirrors.hand_overs.leave()
    rings.tick(10)
    assert view(rings).master == leads


def test_one_that_leaves_waits_for_mirrors_that_have_not_said_what_they_have(rings: Rings) -> None:
    policy(rings, ha_mode="nodes", ha_params=[ONE, TWO], ha_promote_on_shutdown="always")
    number = rings.declare("q", ONE)
    rings.publish(ONE, "q", 10)
    rings.place()
    master = rings.copy(ONE, number).member.master
    assert master is not None
    entries, master.table = master.table, {}  # As long as the view is new.
    hand_overs = rings.servers[ONE].world.broker.mirrors.hand_overs
    assert hand_overs.leave(), "it will say so in a moment"
    master.table = entries
    assert hand_overs.leave()
    rings.tick(10)
    assert view(rings).master == TWO
    assert not hand_overs.leave()


def test_one_that_leaves_does_not_wait_for_mirrors_that_are_not_there(rings: Rings) -> None:
    policy(rings, ha_mode="nodes", ha_params=[ONE, TWO], ha_promote_on_shutdown="always")
    rings.declare("q", ONE)
    rings.publish(ONE, "q", 10)
    rings.place()
    rings.kill(TWO)
    assert not rings.servers[ONE].world.broker.mirrors.hand_overs.leave()


# -- Handing over very many queues -------------------------------------------------------------------------------------


@pytest.fixture
def many(rings: Rings) -> Rings:
    for number in range(MANY):
        rings.declare(f"q{number}", ONE, TWO, THREE)
    return rings


def begun(rings: Rings) -> int:
    mirrors = rings.servers[ONE].world.broker.mirrors
    return sum(mirror.member.master is not None and mirror.member.master.handing is not None for mirror in mirrors)


def led(rings: Rings, name: str) -> int:
    return sum(spec.node == name for spec in rings.servers[TWO].world.metadata.queues.values())


def hand_overs(rings: Rings) -> HandOvers:
    return rings.servers[ONE].world.broker.mirrors.hand_overs


def test_one_that_stops_hands_over_a_portion_at_a_time(many: Rings) -> None:
    steps = 0
    while hand_overs(many).leave():
        assert begun(many) <= BEGUN_AT_ONCE
        many.tick(10)
        steps += 1
    assert steps == 3 and led(many, ONE) == 0
    assert abs(led(many, TWO) - led(many, THREE)) <= 1


def test_no_more_are_on_their_way_than_the_caller_allows(many: Rings) -> None:
    assert hand_overs(many).give_away(5) == MANY and begun(many) == 5
    assert hand_overs(many).give_away(5) == MANY and begun(many) == 5
    many.tick(10)
    assert hand_overs(many).give_away(5) == MANY - 5 and begun(many) == 5


def test_a_turn_looks_at_some_of_the_queues(many: Rings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leveret.broker.mirrors.hand_overs.LOOKS_AT_ONCE", 10)
    assert hand_overs(many).leave() and begun(many) == 10
    assert hand_overs(many).leave() and begun(many) == 20


def test_a_stop_looks_again_at_queues_that_maintenance_has_passed_over(
    many: Rings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leveret.broker.mirrors.hand_overs.LOOKS_AT_ONCE", MANY - 1)
    out_of_service(many, ONE, TWO, THREE)  # No other node is to get a queue, unless this one stops.
    assert hand_overs(many).give_away(5) == 1 and hand_overs(many).is_looking
    (left,) = hand_overs(many)._round
    many._propose(c.DeleteQueue("/", left.spec.name, left.spec.id))
    many.run()
    assert hand_overs(many).leave()
    while hand_overs(many).leave():
        hand_overs(many).give_away(5)  # Ticks of the maintenance go on until the node has stopped.
        many.tick(10)
    assert led(many, ONE) == 0


def test_a_node_that_does_not_leave_after_all_can_be_drained(many: Rings) -> None:
    assert hand_overs(many).leave()
    hand_overs(many).stay()
    while hand_overs(many).give_away(5):
        many.tick(10)
    assert led(many, ONE) == 0


def test_one_that_fails_is_tried_again(many: Rings) -> None:
    assert hand_overs(many).give_away(1) == MANY
    (mirror,) = _going(many)
    assert mirror.member.master is not None
    mirror.member.master._give_up()
    left = MANY
    for _ in range(2 * MANY):
        left = hand_overs(many).give_away(1)
        many.tick(10)
        if not left:
            break
    assert not left and led(many, ONE) == 0


def test_one_that_is_deleted_meanwhile_is_not_waited_for(many: Rings) -> None:
    assert hand_overs(many).give_away(1) == MANY
    (mirror,) = _going(many)
    many._propose(c.DeleteQueue("/", mirror.spec.name, mirror.spec.id))
    many.run()
    assert hand_overs(many).give_away(1) == MANY - 1
    assert begun(many) == 1


def _going(rings: Rings) -> list[Mirror]:
    mirrors = rings.servers[ONE].world.broker.mirrors
    return [one for one in mirrors if one.member.master is not None and one.member.master.handing is not None]


# -- Asynchronous mirrors ----------------------------------------------------------------------------------------------


def late(rings: Rings, mirror: Mirror) -> bool:
    return mirror in rings.servers[ONE].world.broker.mirrors.ha_rules.late


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


# -- Disks -------------------------------------------------------------------------------------------------------------


def confirmed(rings: Rings, at: str, number: int, count: int = 1) -> bool:
    """Whether what is published now is confirmed, in the end."""
    queue = rings.copy(at, number).queue
    assert queue is not None
    confirms = publish(rings, queue, count)
    rings.tick(100)
    return confirms.take() == [(1, False, False)]


def test_a_mirror_whose_disk_is_full_is_not_waited_for_and_comes_back(rings: Rings) -> None:
    number = rings.declare("q", ONE, TWO, THREE)
    rings.stuck.add(TWO)
    assert confirmed(rings, ONE, number, 10)
    assert synced(rings) == {ONE, THREE} and set(view(rings).ring) == {ONE, TWO, THREE}
    assert confirmed(rings, ONE, number, 10), "the ring goes on, past it"
    rings.stuck.clear()
    rings.tick(50)
    assert synced(rings) == {ONE, TWO, THREE}
    assert rings.stores[TWO].stored(number).live.count == 20


def test_a_mirror_whose_sync_failed_leaves(rings: Rings) -> None:
    number = rings.declare("q", ONE, TWO, THREE)
    rings.publish(ONE, "q", 10)
    rings.stuck.add(TWO)
    rings.servers[TWO].world.broker.mirrors.on_disk_failed()
    assert confirmed(rings, ONE, number)
    assert synced(rings) == {ONE, THREE} and view(rings).master == ONE


def test_a_master_whose_sync_failed_is_replaced(rings: Rings) -> None:
    number = rings.declare("q", ONE, TWO, THREE)
    rings.publish(ONE, "q", 10)
    rings.stuck.add(ONE)
    rings.servers[ONE].world.broker.mirrors.on_disk_failed()
    rings.tick(20)
    master = view(rings).master
    assert master in (TWO, THREE) and synced(rings) == {TWO, THREE}
    assert confirmed(rings, master, number)
    queue = rings.copy(master, number).queue
    assert queue is not None and queue.ready_count == 11


def test_a_master_with_a_slow_disk_lets_another_lead(rings: Rings) -> None:
    """By itself, with nothing lost; and what was published meanwhile is confirmed by the next one."""
    number = rings.declare("q", ONE, TWO, THREE)
    rings.publish(ONE, "q", 10)
    rings.stuck.add(ONE)
    rings.publish(ONE, "q", 5)
    rings.tick(100)
    master = view(rings).master
    assert master in (TWO, THREE)
    queue = rings.copy(master, number).queue
    assert queue is not None and queue.ready_count == 15
    assert confirmed(rings, master, number)
