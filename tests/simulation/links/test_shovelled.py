"""Shovels through the faults of the simulation, and whether it would notice if what they rely on were broken."""

from __future__ import annotations

import pytest

from simulation.links.played import run
from simulation.plan import Plan
from tests.simulation.bugs.mutations import Mutation
from tests.simulation.links.noticing import notice

STEPS = 20


@pytest.mark.parametrize(("nodes", "mirrored", "seed"), [(1, False, 3), (3, False, 13), (3, True, 32)])
def test_shovels(nodes: int, mirrored: bool, seed: int) -> None:
    world = run(Plan(seed, nodes, STEPS, mirrored=mirrored, links="shovels"))
    assert world.moved and world.runners


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 130))
def test_many_seeds(seed: int) -> None:
    run(Plan(seed, 3, 40, mirrored=seed % 2 == 0, links="shovels"))


MUTATIONS = (
    Mutation(
        "a worker goes on when another epoch has begun",
        3,
        "Shovels.tick",
        "is_over = wanted is None or wanted.node != name or wanted.epoch != epoch",
        "is_over = wanted is None",
    ),
    Mutation(
        "every node runs every shovel",
        3,
        "Shovels.tick",
        "missing = [one for one in assignments.values() if one.node == name and one.key not in self.workers]",
        "missing = [one for one in assignments.values() if one.key not in self.workers]",
    ),
    Mutation(
        "messages are acknowledged when they are published",
        3,
        "Link.on_bundle",
        "self.published += count",
        "self.published += count\nself.settlements.append(Settlement(self.published, True, False))",
        first=29,
    ),
    Mutation(
        "a queue takes an origin again",
        3,
        "origins:take",
        "old = taken.count_within(first, last)",
        "old = 0",
        first=6,
    ),
    Mutation(
        "a queue takes everything up to the highest number for something that it has",
        3,
        "origins:take",
        "taken.add(first, last)",
        "taken.add(1, last + 5)",
        first=2,
    ),
)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda one: one.name)
def test_the_seeds_notice(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    notice(monkeypatch, mutation, STEPS, "shovels")
