"""Whole clusters whose nodes are taken out of service and back: see `simulation.scenarios.drained`."""

from __future__ import annotations

import pytest

from simulation.plan import Plan
from simulation.world import run


def test_seeds() -> None:
    worlds = [run(Plan(seed, 3, mirrored=True, drained=True)) for seed in (1, 13)]
    assert sum(world.rebalancing.obeyed for world in worlds) > 0


@pytest.mark.long
@pytest.mark.parametrize(("nodes", "varied"), [(2, False), (3, False), (3, True), (5, False)])
def test_many_seeds(nodes: int, varied: bool) -> None:
    for seed in range(100, 130):
        run(Plan(seed, nodes, mirrored=True, varied=varied, drained=True))


def test_plans_of_other_runs_are_what_they_were() -> None:
    drained, usual = Plan(8, mirrored=True, drained=True), Plan(8, mirrored=True)
    assert drained.command() == f"{usual.command()} --drained"
    assert {"drain", "empty"}.isdisjoint(step.what for step in usual.draw())
    steps = {step.what for seed in range(10) for step in Plan(seed, mirrored=True, drained=True).draw()}
    assert {"drain", "empty"} <= steps
