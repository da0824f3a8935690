"""Two nodes and a witness, any one of which often is lost: see `simulation.scenarios.witnessed`."""

from __future__ import annotations

from typing import Any

import pytest

from simulation.plan import Plan
from simulation.world import run


def plan(seed: int, **more: Any) -> Plan:
    return Plan(seed, 2, mirrored=True, witnessed=True, **more)


@pytest.mark.parametrize("seed", [4, 17, 19, 25])
def test_seeds(seed: int) -> None:
    run(plan(seed))


def test_the_two_that_are_left_are_looked_at() -> None:
    assert run(plan(20)).witnessing.losses > 10


@pytest.mark.long
@pytest.mark.parametrize("more", [{}, {"strategies": True}, {"spooled": True}, {"varied": True}], ids=str)
def test_many_seeds(more: dict[str, bool]) -> None:
    for seed in range(100, 130):
        run(plan(seed, **more))


def test_faults_of_all_three() -> None:
    faults = [step for seed in range(20) for step in plan(seed).draw() if "seconds" in step.arguments]
    lost = {step.arguments["node"] for step in faults if step.what == "lose"}
    assert lost == {0, 1, 2} and {step.arguments["how"] for step in faults if step.what == "lose"} == {
        "kill",
        "power",
        "isolate",
        "pause",
    }
    assert {step.arguments["node"] for step in faults if step.what == "restart_app"} <= {0, 1}


def test_plans_of_other_runs_are_what_they_were() -> None:
    assert plan(8).command() == f"{Plan(8, 2, mirrored=True).command()} --witnessed"
    assert not plan(8).proofs().is_visible and not plan(8).proofs().trusts_refusals
