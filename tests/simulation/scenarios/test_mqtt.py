"""Clients of MQTT through the faults of the simulation, and whether it would notice if what serves them were broken.

A few seeds are tried always, the others, and most of the deliberate bugs, by `make long`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulation.mqtt.world import run
from simulation.plan import Plan
from simulation.world import Violation
from tests.simulation.bugs.mutations import Mutation, check_code, put
from tests.simulation.bugs.mutations_mqtt import MQTT

STEPS = 25
SEEDS = 8
ALWAYS = 2  # Deliberate bugs.

KINDS = {
    "alone": Plan(0, 1, STEPS),
    "together": Plan(0, 3, STEPS),
    "mirrored": Plan(0, 3, STEPS, mirrored=True),
    "ailing": Plan(0, 3, STEPS, mirrored=True, ailing=True),
    "drained": Plan(0, 3, STEPS, mirrored=True, drained=True),
}


@pytest.mark.parametrize("kind", ["together", "mirrored"])
def test_clients(kind: str) -> None:
    world = run(replace(KINDS[kind], seed=1))
    assert all(sum(one.counts[what] for one in world.devices) for what in world.devices[0].counts)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_many(kind: str) -> None:
    for seed in range(100, 112):
        run(replace(KINDS[kind], seed=seed))


@pytest.mark.parametrize(
    "mutation",
    [
        pytest.param(one, id=one.name, marks=() if number < ALWAYS else pytest.mark.long)
        for number, one in enumerate(MQTT)
    ],
)
def test_the_seeds_notice(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, mutation)
    for seed in range(mutation.first, mutation.first + SEEDS):
        try:
            run(Plan(seed, mutation.nodes, STEPS, mirrored=mutation.mirrored))
        except Violation:
            return
    pytest.fail("no seed noticed")


def test_the_code_is_there() -> None:
    for mutation in MQTT:
        check_code(mutation)
