"""Where copies are, of nodes that are played: see `tests.support.ring_world`."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.broker.mirrors.member_changes import MemberChanges
from leveret.metadata.model import commands as c
from leveret.metadata.model.maintenance_mark import DRAINING, MAINTENANCE, mark
from leveret.metadata.model.view import View
from leveret.metadata.rules.ha_policy import EVERYWHERE, Defaults
from leveret.metadata.rules.placement import MOVES
from leveret.protocol.tables import table_from_python
from tests.support.control_world import cluster
from tests.support.ring_world import Rings

ONE, TWO, THREE = "one@host", "two@host", "three@host"
QUORUM = {"x-queue-type": "quorum"}


@pytest.fixture
def rings() -> Rings:
    return Rings(cluster(ONE, THREE, TWO))


def member_changes(rings: Rings, defaults: Defaults | None = None) -> MemberChanges:
    found = rings.servers[ONE].world.broker.member_changes
    assert found is not None
    found.defaults = defaults or found.defaults
    return found


def policy(rings: Rings, **definition: Any) -> None:
    keys = {key.replace("_", "-"): value for key, value in definition.items()}
    rings._propose(c.SetPolicy("/", "p", "^q$", "queues", 0, keys))
    rings.run()


def view(rings: Rings) -> View:
    running = next(server for server in rings.servers.values() if server.node is not None)
    found = running.world.metadata.queues["/", "q"].view
    assert found is not None
    return found


def first(rings: Rings, arguments: dict[str, Any] | None = None, defaults: Defaults | None = None) -> tuple[str, ...]:
    found = member_changes(rings, defaults).first_view("/", "q", True, table_from_python(arguments or {}), ONE)
    return () if found is None else found.ring


def pass_time(rings: Rings, *names: str) -> None:
    """Lets some nodes look at what is due. Unlike `Rings.place`, this has them look at nothing else."""
    for _ in range(10):
        for name in names:
            found = rings.servers[name].world.broker.member_changes
            assert found is not None
            found.watch()
            found.tick()
        rings.tick(5)


def test_where_a_new_queue_is(rings: Rings) -> None:
    for name in ("a", "b"):
        rings._propose(c.DeclareQueue("/", name, node=ONE))
    rings._propose(c.DeclareQueue("/", "c", node=TWO))

    def home(**arguments: str) -> str:
        table = table_from_python({f"x-queue-{key}": value for key, value in arguments.items()})
        return member_changes(rings).home("/", "q", table)

    assert home() == ONE
    assert home(**{"master-locator": "min-masters"}) == THREE
    assert home(**{"type": "quorum", "leader-locator": "balanced"}) == THREE
    policy(rings, ha_mode="nodes", ha_params=[ONE, TWO], queue_master_locator="min-masters")
    assert home() == TWO
    assert home(**{"master-locator": "client-local"}) == ONE


def test_a_new_queue_is_not_at_a_node_in_maintenance(rings: Rings) -> None:
    rings._propose(c.DeclareQueue("/", "a", node=TWO))
    run = rings.servers[ONE].world.metadata.runs[ONE]
    rings._propose(c.SetGlobalParameter(MAINTENANCE + ONE, mark(DRAINING, run)))
    home = member_changes(rings).home
    assert home("/", "q", table_from_python({})) == THREE, "though the client is there"
    assert home("/", "q", table_from_python({"x-queue-master-locator": "min-masters"})) == THREE
    policy(rings, ha_mode="nodes", ha_params=[ONE])
    assert home("/", "q", table_from_python({})) == THREE, "first_view sees to the rest"
    for name in (TWO, THREE):
        run = rings.servers[ONE].world.metadata.runs[name]
        rings._propose(c.SetGlobalParameter(MAINTENANCE + name, mark(DRAINING, run)))
    assert home("/", "r", table_from_python({})) == ONE, "if all are, there is no better"


def test_with_whom_a_queue_begins(rings: Rings) -> None:
    assert first(rings) == ()
    assert first(rings, {"ha-mirror-queues": True}) == (ONE, THREE, TWO)
    assert first(rings, QUORUM) == (ONE, THREE, TWO)
    assert first(rings, {**QUORUM, "x-quorum-initial-group-size": 1}) == (ONE,)
    stream = {"x-queue-type": "stream"}
    assert first(rings, stream) == (ONE, THREE, TWO)
    assert len(first(rings, {**stream, "x-initial-cluster-size": 2})) == 2
    policy(rings, initial_cluster_size=1)
    assert first(rings, {**stream, "x-initial-cluster-size": 2}) == (ONE,)
    assert first(rings, QUORUM) == (ONE, THREE, TWO)
    policy(rings, ha_mode="exactly", ha_params=2)
    assert first(rings, stream) == (ONE, THREE, TWO)
    assert len(first(rings)) == 2
    policy(rings, ha_mode="exactly", ha_params=2, ha_forbid_copying=True)
    assert first(rings) == ()
    assert len(first(rings, QUORUM)) == 3


def test_a_default_for_all_queues(rings: Rings) -> None:
    assert len(first(rings, defaults=Defaults(EVERYWHERE))) == 3
    assert first(rings, {"ha-mirror-queues": False}) == ()
    assert first(rings, defaults=Defaults(EVERYWHERE, frozenset({"other"}))) == ()


def test_nodes_without_the_master(rings: Rings) -> None:
    number = rings.declare("q", ONE, TWO)
    rings.publish(ONE, "q", 10)
    policy(rings, ha_mode="nodes", ha_params=[THREE])
    rings.place()
    assert view(rings).master == ONE, "three is not in sync, and nobody fills it"
    policy(rings, ha_mode="nodes", ha_params=[TWO, THREE])
    rings.place()
    assert view(rings).master == TWO and set(view(rings).ring) >= {TWO, THREE}
    policy(rings, ha_mode="nodes", ha_params=[THREE], ha_sync_mode="automatic")
    rings.place()
    assert view(rings)[2:4] == (THREE, (THREE,))
    queue = rings.copy(THREE, number).queue
    assert queue is not None and queue.ready_count == 10


def test_no_queue_is_handed_over_to_a_node_in_maintenance(rings: Rings) -> None:
    rings.declare("q", TWO, ONE)
    rings.publish(TWO, "q", 10)
    run = rings.servers[ONE].world.metadata.runs[ONE]
    rings._propose(c.SetGlobalParameter(MAINTENANCE + ONE, mark(DRAINING, run)))
    policy(rings, ha_mode="nodes", ha_params=[ONE], ha_sync_mode="automatic")
    rings.place()
    assert view(rings)[2:4] == (TWO, (TWO, ONE)), "though it is in sync, and the only one that the policy names"
    policy(rings, ha_mode="nodes", ha_params=[ONE, THREE], ha_sync_mode="automatic")
    rings.place()
    assert view(rings).master == THREE and set(view(rings).ring) == {ONE, THREE}
    policy(rings, ha_mode="nodes", ha_params=[ONE], ha_sync_mode="automatic")
    rings.place()
    assert view(rings).master == THREE
    rings._propose(c.ClearGlobalParameter(MAINTENANCE + ONE))
    rings.place()
    assert view(rings)[2:4] == (ONE, (ONE,))


def test_exactly_refills_and_keeps_to_the_number(rings: Rings) -> None:
    policy(rings, ha_mode="exactly", ha_params=2, ha_sync_mode="automatic")
    rings.declare("q", ONE, TWO)
    rings.publish(ONE, "q", 10)
    rings.kill(TWO)
    rings.place()
    assert set(view(rings).ring) == {ONE, THREE}
    assert {name for name, _ in view(rings).in_sync} == {ONE, THREE}


def test_the_last_copy_is_not_given_up_for_one_that_lacks_messages(rings: Rings) -> None:
    policy(rings, ha_mode="exactly", ha_params=2)
    rings.declare("q", ONE, TWO)
    rings.publish(ONE, "q", 10)
    rings.kill(TWO)
    rings.place()
    assert set(view(rings).ring) == {ONE, TWO, THREE}, "three has nothing of it yet"


def test_which_nodes_run_is_looked_at_now_and_then(rings: Rings) -> None:
    found = member_changes(rings)
    found.watch()
    found.due.clear()
    rings.declare("q", ONE)
    found.due.clear()
    found.watch()
    assert not found.due
    rings.servers[THREE].node = None
    found.watch()
    assert found.due


def test_a_queue_that_has_moved_is_an_ordinary_one(rings: Rings) -> None:
    number = rings.declare("q")
    rings.publish(ONE, "q", 10)
    rings._propose(c.SetParameter(MOVES, "/", "q", {"queue": number, "to": TWO}))
    rings.place()
    spec = rings.servers[THREE].world.metadata.queues["/", "q"]
    assert (spec.node, spec.view) == (TWO, None) and spec.last_version > 1
    assert not any(number in server.world.broker.mirrors.mirrors for server in rings.servers.values())
    queue = rings.servers[TWO].world.queue("q")
    assert queue.ready_count == 10 and queue.mirror is None and queue.gate is None
    queue.purge()
    queue.enqueue([b"t"], [b""], 0, 1, None)
    assert queue.open is not None and not queue.open.stored, "it is transient, and no business of the disk"
    policy(rings, ha_mode="all", ha_sync_mode="automatic")
    rings.place()
    assert view(rings).version > spec.last_version and view(rings).epoch > spec.last_epoch
    assert len(view(rings).in_sync) == 3
    assert [disk for name, disk in view(rings).in_sync if name == TWO] == [f"{TWO}.0+{spec.last_version + 1}"]


def test_a_queue_whose_declaration_did_not_know_of_its_policy_gets_mirrors(rings: Rings) -> None:
    policy(rings, ha_mode="all", ha_sync_mode="automatic")
    pass_time(rings, ONE, TWO, THREE)
    for name, exclusive in (("q", False), ("x", True)):
        rings._propose(c.DeclareQueue("/", name, durable=not exclusive, exclusive=exclusive, node=ONE))
    pass_time(rings, ONE, TWO, THREE)
    assert set(view(rings).ring) == {ONE, TWO, THREE}
    assert rings.servers[ONE].world.metadata.queues["/", "x"].view is None


@pytest.mark.parametrize("named", [[ONE], [ONE, TWO, THREE]])
def test_a_queue_that_was_migrated_gets_the_copies_of_its_policy(rings: Rings, named: list[str]) -> None:
    number = rings.declare("q")
    policy(rings, ha_mode="nodes", ha_params=named, ha_sync_mode="automatic")
    pass_time(rings, TWO, THREE)  # These have looked, and the queue is not theirs.
    rings._propose(c.MoveQueue("/", "q", number, ONE, TWO, rings.servers[ONE].world.metadata.runs[TWO]))
    assert rings.servers[THREE].world.metadata.queues["/", "q"].node == TWO
    pass_time(rings, ONE, TWO, THREE)
    assert set(view(rings).ring) == set(named)
    assert view(rings).master == (ONE if named == [ONE] else TWO)


def test_without_its_policy_a_queue_has_no_ring(rings: Rings) -> None:
    policy(rings, ha_mode="all", ha_sync_mode="automatic")
    rings.declare("q", ONE, TWO, THREE)
    rings.publish(ONE, "q", 10)
    policy(rings, ha_mode="exactly", ha_params=1)
    rings.place()
    assert view(rings).ring == (ONE,), "somebody has said how many copies there are to be"
    rings._propose(c.ClearPolicy("/", "p"))
    rings.place()
    assert rings.servers[TWO].world.metadata.queues["/", "q"].view is None
    assert rings.servers[ONE].world.queue("q").ready_count == 10


def test_a_first_view_is_asked_for_once_however_long_it_takes(rings: Rings) -> None:
    rings._propose(c.DeclareQueue("/", "q", node=ONE))
    policy(rings, ha_mode="all")
    world, changes = rings.servers[ONE].world, member_changes(rings)
    spec = world.metadata.queues["/", "q"]
    assert spec.view is None
    asked: list[c.Command] = []
    answers: list[Any] = []

    def propose(command: c.Command, then: Any, patient: bool = False) -> None:
        asked.append(command)
        answers.append(then)

    world.propose = propose  # type: ignore[method-assign]
    for _ in range(3):
        changes.watch()
        changes.tick()
    (command,) = asked
    assert isinstance(command, c.ChangeView)
    answers[0](None)  # It was refused, or overtaken by another.
    changes.watch()
    changes.tick()
    assert len(asked) == 2
