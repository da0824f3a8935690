"""Whole clusters whose queues are moved about: see `simulation.scenarios.rebalanced`."""

from __future__ import annotations

import pytest

from leveret.metadata.rebalancing import TIMER
from simulation.plan import Plan
from simulation.scenarios.rebalanced import draw_schedule
from simulation.world import run


def test_seeds() -> None:
    worlds = [run(Plan(seed, 3, mirrored=True, rebalanced=True)) for seed in (3,)]
    assert sum(world.rebalancing.obeyed for world in worlds) > 0


def test_acknowledgements_behind_the_loss_of_a_link_are_in_vain() -> None:
    """A client held a message for longer than the checkers thought that links matter."""
    run(Plan(35, 3, mirrored=True, rebalanced=True))


@pytest.mark.long
@pytest.mark.parametrize(("nodes", "varied"), [(2, False), (3, False), (3, True), (5, False)])
def test_many_seeds(nodes: int, varied: bool) -> None:
    for seed in range(100, 130):
        run(Plan(seed, nodes, mirrored=True, varied=varied, rebalanced=True))


def test_plans_of_other_runs_are_what_they_were() -> None:
    moved, usual = Plan(8, mirrored=True, rebalanced=True), Plan(8, mirrored=True)
    assert moved.command() == f"{usual.command()} --rebalanced"
    assert {"appoint", "rebalance", "unsettle"}.isdisjoint(step.what for step in usual.draw())
    steps = {step.what for seed in range(10) for step in Plan(seed, mirrored=True, rebalanced=True).draw()}
    assert {"appoint", "rebalance", "unsettle"} <= steps
    assert 3 < sum(draw_schedule(seed).trigger == TIMER for seed in range(10)) < 10
