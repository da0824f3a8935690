"""Two nodes, one of which often is lost: see `simulation.scenarios.paired`."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.node.cluster.two_nodes import REST_S
from simulation.core.machine import Machine
from simulation.plan import Plan
from simulation.scenarios.paired import draw_proofs
from simulation.world import World, quiet, run


def plan(seed: int, **more: Any) -> Plan:
    return Plan(seed, 2, mirrored=True, paired=True, **more)


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_seeds(seed: int) -> None:
    run(plan(seed))


@pytest.mark.parametrize("seed", [3, 11])
def test_seeds_in_which_both_serve(seed: int) -> None:
    """They lose each other for so long that the one that waits hands out what it has (`scenarios.detached`)."""
    world = run(plan(seed, spooled=True))
    assert world.ledger.apart.delivered and world.ledger.apart.heard
    assert world.ledger.apart.spooled and world.ledger.apart.settled


def test_seeds_with_strategies() -> None:
    run(plan(5, strategies=True))


@pytest.mark.long
@pytest.mark.parametrize("more", [{}, {"strategies": True}, {"spooled": True}, {"varied": True}], ids=str)
def test_many_seeds(more: dict[str, bool]) -> None:
    for seed in range(100, 130):
        run(plan(seed, **more))


def term_of(machine: Machine) -> int:
    assert machine.server is not None and machine.server.node is not None
    return machine.server.node.cluster.raft.term


def voters_of(machine: Machine) -> list[str]:
    assert machine.server is not None and machine.server.node is not None
    return [one.name for one in machine.server.node.cluster.raft.membership.voters]


@pytest.mark.parametrize("delay_s", [0.0, 0.002, 0.02])
@pytest.mark.parametrize("leads", [True, False], ids=["leader", "follower"])
@pytest.mark.parametrize("seed", [2, 3, 5, 7])
def test_two_that_stop_together_agree_at_once_which_one_goes_on_alone(seed: int, leads: bool, delay_s: float) -> None:
    """Neither hands back what it was handed because the other one stops."""
    world = World(plan(seed))
    try:
        with quiet():
            world._begin()
            world.run_for(3.0)
            first, last = sorted(world.machines, key=lambda one: world.consensus.leads(one.name) is not leads)
            clusters = [one.server.node.cluster for one in (first, last) if one.server and one.server.node]
            begun, term = world.scheduler.now, term_of(first)
            first.terminate()
            world.scheduler.after(delay_s, last.terminate)
            world.must(REST_S + 1.0, lambda: not (first.alive or last.alive), world.standing)
            assert max(first.died_at, last.died_at) - begun < 1.0 < REST_S
            assert max(one.raft.term for one in clusters) <= term + 3
            (alone,) = {tuple(one.raft.membership.voters) for one in clusters}
            assert len(alone) == 1
            for machine in (first, last):
                machine.start()
            world.must(10.0, world.all_serve, world.standing)
            world.must(10.0, lambda: len(voters_of(first)) == len(voters_of(last)) == 2, world.standing)
    finally:
        world.close()


def test_proofs_of_all_kinds_are_tried() -> None:
    proofs = [draw_proofs(seed) for seed in range(40)]
    assert {one.is_visible for one in proofs} == {one.trusts_refusals for one in proofs} == {True, False}
    assert {0.0, 3.0} <= {one.delay_s for one in proofs if one.is_visible}
    assert {one.is_visible for one in proofs if one.is_unlocked} == {False}
    assert {one.trusts_refusals for one in proofs if one.is_rejecting} == {False}


def test_plans_of_other_runs_are_what_they_were() -> None:
    assert plan(8).command() == f"{Plan(8, 2, mirrored=True).command()} --paired"
    assert not Plan(8, 2, mirrored=True).proofs().is_visible
