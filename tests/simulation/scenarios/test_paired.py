"""Two nodes, one of which often is lost: see `simulation.scenarios.paired`."""

from __future__ import annotations

from typing import Any

import pytest

from simulation.plan import Plan
from simulation.scenarios.paired import draw_proofs
from simulation.world import run


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


def test_proofs_of_all_kinds_are_tried() -> None:
    proofs = [draw_proofs(seed) for seed in range(40)]
    assert {one.is_visible for one in proofs} == {one.trusts_refusals for one in proofs} == {True, False}
    assert {0.0, 3.0} <= {one.delay_s for one in proofs if one.is_visible}
    assert {one.is_visible for one in proofs if one.is_unlocked} == {False}
    assert {one.trusts_refusals for one in proofs if one.is_rejecting} == {False}


def test_plans_of_other_runs_are_what_they_were() -> None:
    assert plan(8).command() == f"{Plan(8, 2, mirrored=True).command()} --paired"
    assert not Plan(8, 2, mirrored=True).proofs().is_visible
