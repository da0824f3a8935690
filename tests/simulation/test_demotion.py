"""A master that is cut off from the others, and deposed, while its clients publish without a pause.

Between the moment in which others lead and the one in which it hears of that, nothing that it takes in is in any ring.
Whatever it confirms must be there when all is over, and what it cannot keep it must refuse or pass on.
"""

from __future__ import annotations

import pytest

from leveret.broker.queue.local_queue import LocalQueue
from simulation.clients.client import Step
from simulation.core.machine import Machine
from simulation.plan import Plan
from simulation.world import World, quiet

QUEUE = "d0"
PUBLISH = {"queue": QUEUE, "count": 2, "padding": 10, "persistent": True, "wait": False}


@pytest.mark.parametrize(("seed", "how"), [(1, "isolate"), (2, "isolate"), (3, "pause"), (5, "hand_over")])
def test_what_a_deposed_master_confirms_is_kept(seed: int, how: str) -> None:
    world = World(Plan(seed, 3, 0, mirrored=True))
    try:
        with quiet():
            world._begin()
            world.operators.fault_policy("", {"ha-mode": "all", "ha-sync-mode": "automatic"})
            world.run_for(10.0)
            found = world.operators.leading(QUEUE)
            assert found is not None and found[2].mirror is not None
            master = world.machines.index(found[0])
            _publish_without_a_pause(world, master)
            world.run_for(2.0)
            world.ledger.on_disturbed(world.scheduler.now + 100.0)
            if how == "hand_over":
                world.operators.fault_hand_over(QUEUE, (master + 1) % 3, True)
            else:
                getattr(world, f"fault_{how}")(master, 8.0)
            world.run_for(20.0)
            led = world.operators.leading(QUEUE)
            assert led is not None and led[0] is not found[0], "another one leads"
            world._heal()
            world._empty()
        confirmed = [one for one in world.ledger.messages.values() if one.state == "confirmed"]
        assert len(confirmed) > 100
    finally:
        world.close()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_one_that_hears_of_it_from_the_ring_alone(seed: int) -> None:
    """The new master can be reached again, and whoever leads the cluster cannot: no view comes that says who leads."""
    world = World(Plan(seed, 3, 0, mirrored=True))
    try:
        with quiet():
            world._begin()
            world.operators.fault_policy("", {"ha-mode": "all", "ha-sync-mode": "automatic"})
            world.run_for(10.0)
            found = world.operators.leading(QUEUE)
            assert found is not None
            old = found[0]
            _publish_without_a_pause(world, world.machines.index(old))
            world.run_for(1.0)
            world.ledger.on_disturbed(world.scheduler.now + 100.0)
            world.fault_isolate(world.machines.index(old), 6.0)
            world.run_for(5.5)
            new = next(one for one in world.machines if one is not old and _leads(one))
            (third,) = [one for one in world.machines if one not in (old, new)]
            _have_lead(world, third.node_name)
            world.run_for(0.4)
            assert world.consensus.leads(third.name)
            ways = [(third.name, old.name), (old.name, third.name)]
            world.scheduler.after(0.1, lambda: world.cut(ways, 2.5))  # Just when the others are mended.
            world.run_for(20.0)
            world._heal()
            world._empty()
        assert sum(one.state == "confirmed" for one in world.ledger.messages.values()) > 100
    finally:
        world.close()


@pytest.mark.parametrize("seed", [1, 2, 5])
def test_one_that_is_cut_off_has_paused_before_others_lead(seed: int) -> None:
    """Else two clients would have one message, or one exclusive consumer each, though they hear from their nodes."""
    world = World(Plan(seed, 3, 0, mirrored=True, strategies=True))
    try:
        with quiet():
            world._begin()
            world.operators.fault_policy("", {"ha-mode": "all", "ha-sync-mode": "automatic"})
            world.fault("handling")(value={"strategy": "pause_minority"})
            world.run_for(10.0 + seed / 7)
            old = next(one for one in world.machines if _leads(one))
            others = [one for one in world.machines if one is not old]
            world.ledger.on_disturbed(world.scheduler.now + 100.0)
            world.fault_isolate(world.machines.index(old), 8.0)
            assert old.server is not None and old.server.node is not None
            pausing = old.server.node.pausing
            while not any(map(_leads, others)) and not pausing.paused:
                world.run_for(0.005)
            assert pausing.paused
            began = world.scheduler.now
            while not any(map(_leads, others)):
                world.run_for(0.005)
            assert world.scheduler.now - began > 0.25  # For clients to be told, and for machines that are busy.
            world._heal()
            world._empty()
    finally:
        world.close()


def _leads(machine: Machine) -> bool:
    node = machine.server.node if machine.serving and machine.server is not None else None
    return node is not None and isinstance(node.broker.vhosts["/"].queues.get(QUEUE), LocalQueue)


def _have_lead(world: World, name: str) -> None:
    for machine in world.machines:
        node = machine.server.node if machine.server is not None else None
        if node is not None and node.cluster.raft.is_leader and machine.node_name != name:
            heir = next(one for one in node.cluster.raft.membership.voters if one.name == name)
            node.cluster.raft.transfer(heir.id)
            node.cluster.consensus.drive()


def _publish_without_a_pause(world: World, master: int) -> None:
    """Two clients at the master, two elsewhere."""
    start = world.scheduler.now
    for number, client in enumerate(world.clients):
        client.give(Step(0, 0.0, "go", {"node": (master + number // 2) % 3}))
        for at in range(150):
            world.scheduler.at(start + at / 10, client.give, Step(0, 0.0, "publish", PUBLISH))
