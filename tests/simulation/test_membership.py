"""Members that come and go while others are away."""

from __future__ import annotations

import pytest

from leveret.node.cluster import repair
from leveret.node.cluster.consensus import TryAgain
from leveret.node.cluster.maintenance import LEAVE_S
from leveret.node.cluster.membership import HAND_OVER_S
from leveret.node.system.data_folder import JOIN_FILE, METADATA, REPLACE_FILE, UNKNOWN_ID, write_note
from leveret.raft.membership import Remove
from simulation.core.machine import CLUSTER_PORT, Machine
from simulation.plan import Plan
from simulation.world import World, quiet

SIZE = 5


def test_a_node_comes_back_to_a_leader_that_it_does_not_know() -> None:
    """While it was away another node lost its disk, joined anew, and leads by now: only that one can tell it so."""
    world = World(Plan(1, SIZE, 0, mirrored=True))
    away, wiped = world.machines[2], world.machines[0]
    try:
        with quiet():
            world._begin()
            world.ledger.on_disturbed(1_000.0)
            world.fault_wipe(0, 0.5)
            away.kill(power=True)
            world.must(60.0, lambda: world.wiping is None and wiped.serving, lambda: "it does not join again")
            world.must(60.0, lambda: _lead(world, wiped.node_name), lambda: "it does not lead")
            away.start()
            world.must(60.0, lambda: away.serving, lambda: "a node that was away does not find its leader")
            assert _lead(world, wiped.node_name)
    finally:
        world.close()


@pytest.mark.parametrize("seed", [3, 5, 8])
def test_a_leader_that_stops_with_all_others_waits_for_no_heir(seed: int) -> None:
    world = World(Plan(seed, 3, 0, mirrored=True))
    try:
        with quiet():
            world._begin()
            world.run_for(3.0)
            begun = world.scheduler.now
            for machine in world.machines:
                machine.terminate()
            world.must(60.0, lambda: not any(one.alive for one in world.machines), world.standing)
            assert max(one.died_at for one in world.machines) - begun < HAND_OVER_S / 2
    finally:
        world.close()


@pytest.mark.parametrize(("seed", "delay_s"), [(0, 0.0), (1, 0.0), (6, 0.02), (13, 0.02)])
def test_nodes_that_stop_together_wait_for_no_new_masters(seed: int, delay_s: float) -> None:
    world = World(Plan(seed, 3, 0, mirrored=True))
    try:
        with quiet():
            world._begin()
            world.run_for(6.0)
            begun = world.scheduler.now
            for place, machine in enumerate(world.machines):
                world.scheduler.after(place * delay_s, machine.terminate)
            world.run_for(3 * delay_s + 0.1)
            world.must(60.0, lambda: not any(one.alive for one in world.machines), world.standing)
            assert max(one.died_at for one in world.machines) - begun < LEAVE_S / 2
    finally:
        world.close()


@pytest.mark.parametrize("repair_by", ["one that it knows", "its own admission"])
def test_a_node_comes_back_when_all_others_that_it_knows_are_gone(repair_by: str) -> None:
    """The node that serves has joined while it was away, and it takes no stranger's word: it waits, and has no vote. It
    comes in when one that it knows is back, or when it is admitted in place of its former self."""
    world = World(Plan(1, 3, 0, mirrored=True))
    first, away, joined = world.machines
    try:
        with quiet():
            _begin_and_change(world, first, away, joined)
            first.kill(power=True)
            world.must(60.0, lambda: _voters(joined) == {joined.node_name}, lambda: "it does not go on")
            away.start()
            world.run_for(60.0)
            assert joined.serving and not away.serving
            assert _voters(away) == {first.node_name, away.node_name}
            assert away.server is not None and away.server.node is not None
            text = f"these nodes take this one for a member, and are not known here: {joined.node_name}. If they joined"
            assert text in away.server.node.cluster.why_waiting()
            waiting_for = away.server.node.cluster.two_nodes.waiting_for()
            assert waiting_for is not None and text in waiting_for["cost"]
            if repair_by == "one that it knows":
                first.start()
            else:
                away.kill(power=True)
                _have_admitted(away, joined)
                away.start()
            world.must(60.0, lambda: away.serving, lambda: "it does not come back")
            world.must(60.0, lambda: away.node_name in _voters(joined), lambda: "it gets no vote")
    finally:
        world.close()


def test_of_two_voters_the_leader_cannot_be_done_without() -> None:
    """Whoever damages metadata or disks in a simulated run asks first (`World.is_dispensable`)."""
    world = World(Plan(1, 3, 0, mirrored=True))
    first, away, joined = world.machines
    try:
        with quiet():
            _begin_and_change(world, first, away, joined)
            assert world.is_dispensable(first) and not world.is_dispensable(joined)
            away.start()
            world.must(60.0, lambda: len(_voters(first)) == len(_voters(away)) == 3, lambda: "it gets no vote")
            assert all(map(world.is_dispensable, world.machines))
    finally:
        world.close()


def test_an_operator_is_told_that_the_node_stops_which_he_asks() -> None:
    """It knows no leader and will know none, and must not go round in circles."""
    world = World(Plan(1, 3, 0))
    try:
        with quiet():
            world._begin()
            world.ledger.on_disturbed(1_000.0)
            for other in world.machines[1:]:
                other.kill(power=True)
            world.run_for(20.0)
            asked = world.machines[0]
            assert asked.server is not None and asked.server.node is not None and asked.loop is not None
            asked.server.node.cluster.consensus.stopped = True
            task = asked.loop.create_task(asked.server.node.cluster.forget("leveret@n3"))
            world.must(60.0, task.done, lambda: "he waits for ever")
            assert str(task.exception()) == "this node is stopping"
    finally:
        world.close()


def test_who_is_half_forgotten_can_be_forgotten() -> None:
    """The leader died between its two steps: the node is no member any more, and the metadata has it still."""
    world = World(Plan(1, 3, 0))
    gone, asked = world.machines[2], world.machines[0]
    try:
        with quiet():
            _begin_without(world, gone, asked)
            assert asked.server is not None and asked.server.node is not None and asked.loop is not None
            cluster, metadata = asked.server.node.cluster, asked.server.node.metadata
            member = next(one for one in cluster.raft.membership.members if one.name == gone.node_name)
            first = asked.loop.create_task(cluster.change_membership(Remove(member.id)))
            world.must(60.0, first.done, lambda: "it stays a member")
            assert first.exception() is None and any(one.node == gone.node_name for one in metadata.queues.values())
            again = asked.loop.create_task(cluster.forget(gone.node_name))
            world.must(60.0, again.done, lambda: "he waits for ever")
            assert again.exception() is None
            assert all(one.node != gone.node_name for one in metadata.queues.values())
            unknown = asked.loop.create_task(cluster.forget(gone.node_name))
            world.must(60.0, unknown.done, lambda: "he waits for ever")
            assert str(unknown.exception()) == f"node {gone.node_name} is not a member of this cluster"
    finally:
        world.close()


@pytest.mark.parametrize("asked", [1, 0], ids=["another is asked", "the leader is asked"])
@pytest.mark.parametrize("delay_ms", [1, 4, 10, 20, 40])
def test_a_node_has_one_name_if_the_leader_falls_while_it_gets_another(asked: int, delay_ms: int) -> None:
    """Its queues are where the members are, whenever that happens, and whoever asked has a true answer."""
    world = World(Plan(1, 5, 0))
    leader, renamed, driver = world.machines[0], world.machines[3], world.machines[asked]
    old, new = renamed.node_name, "leveret@other"
    try:
        with quiet():
            _begin_without(world, renamed, leader)
            world.run_for(5.0)
            assert driver.server is not None and driver.server.node is not None and driver.loop is not None
            assert any(one.node == old for one in driver.server.node.metadata.queues.values())
            task = driver.loop.create_task(driver.server.node.cluster.rename(old, new))
            world.run_for(delay_ms / 1000)
            leader.kill(power=True)
            world.run_for(20.0)
            node = world.machines[2].server.node  # type: ignore[union-attr]
            assert node is not None
            members = {one.name for one in node.cluster.raft.membership.members}
            assert len(members & {old, new}) == 1
            assert {one.node for one in node.metadata.queues.values()} <= members
            if asked:
                assert task.done() and task.exception() is None and new in members
    finally:
        world.close()


def test_who_gets_another_name_is_let_in_when_he_has_it_everywhere() -> None:
    world = World(Plan(1, 3, 0))
    renamed, asked = world.machines[2], world.machines[0]
    old, new = renamed.node_name, "leveret@other"
    try:
        with quiet():
            _begin_without(world, renamed, asked)
            world.run_for(5.0)
            assert asked.server is not None and asked.server.node is not None and asked.loop is not None
            cluster = asked.server.node.cluster
            member = next(one for one in cluster.raft.membership.members if one.name == old)
            cluster.renaming.add(old)  # So that it goes no further than its first word.
            task = asked.loop.create_task(cluster.rename(old, new))
            world.run_for(1.0)
            for one in (member, member._replace(name=new), member._replace(id="0" * 32, name=new)):
                early = asked.loop.create_task(cluster.admit(one))
                world.must(10.0, early.done, lambda: "he waits for ever")
                assert isinstance(early.exception(), TryAgain)
            cluster.renaming.clear()
            world.must(10.0, task.done, lambda: "it gets no name")
            assert task.exception() is None
            late = asked.loop.create_task(cluster.admit(member._replace(name=new)))
            world.must(10.0, late.done, lambda: "he waits for ever")
            assert late.exception() is None
    finally:
        world.close()


def _begin_and_change(world: World, first: Machine, away: Machine, joined: Machine) -> None:
    """The last of three nodes is forgotten and joins anew, and leads, while the second one is away."""
    world._begin()
    world.ledger.on_disturbed(1_000.0)
    assert world.mirrors is not None and joined.server is not None and joined.server.node is not None
    world.ledger.on_wiped(joined.name)
    world.mirrors.on_wiped(joined.name, joined.server.node)
    joined.wipe(((first.name, CLUSTER_PORT),))
    world.must(60.0, lambda: _lead(world, first.node_name), lambda: "it does not lead")
    world.run_for(10.0)
    assert first.server is not None and first.server.node is not None and first.loop is not None
    task = first.loop.create_task(first.server.node.cluster.forget(joined.node_name))
    world.must(60.0, task.done, lambda: "he waits for ever")
    assert task.exception() is None
    away.kill(power=True)
    world.must(60.0, lambda: _voters(first) == {first.node_name}, lambda: "it does not go on")
    world.mirrors.on_rejoined(joined.name)
    joined.start()
    two = {first.node_name, joined.node_name}
    world.must(60.0, lambda: joined.serving and _voters(joined) == two, lambda: "it gets no vote")
    world.must(60.0, lambda: _lead(world, joined.node_name), lambda: "it does not lead")


def _have_admitted(away: Machine, joined: Machine) -> None:
    """Does what `leveret recover --from` does when the identity of a node is gone."""
    away.disk.delete(f"{METADATA}/identity")
    assert repair.check_metadata(away.disk) is not None
    write_note(away.disk, JOIN_FILE, f"{joined.name}:{CLUSTER_PORT}")
    write_note(away.disk, REPLACE_FILE, UNKNOWN_ID)
    repair.set_metadata_aside(away.disk)


def _voters(machine: Machine) -> set[str]:
    node = None if machine.server is None else machine.server.node
    return set() if node is None else {one.name for one in node.cluster.raft.membership.voters}


def _begin_without(world: World, lost: Machine, leader: Machine) -> None:
    """A node is lost, and that one leads the others."""
    world._begin()
    world.ledger.on_disturbed(1_000.0)
    lost.kill(power=True)
    world.must(60.0, lambda: _lead(world, leader.node_name), lambda: "it does not lead")


def _lead(world: World, name: str) -> bool:
    """Whether this node leads; whoever else does is asked to let it."""
    for machine in world.machines:
        node = machine.server.node if machine.serving and machine.server is not None else None
        if node is not None and node.cluster.raft.is_leader:
            if machine.node_name == name:
                return True
            heir = next((one for one in node.cluster.raft.membership.voters if one.name == name), None)
            if heir is not None:
                node.cluster.raft.transfer(heir.id)
    return False
