"""Leases through the faults of the simulation, and whether it would notice if they were broken."""

from __future__ import annotations

import pytest

from simulation.leased import run
from simulation.plan import Plan
from simulation.world import Violation
from tests.simulation.bugs.mutations import Mutation, put

STEPS = 40
SEEDS = 12


@pytest.mark.parametrize(("nodes", "mirrored"), [(1, False), (3, False), (3, True)])
def test_leases(nodes: int, mirrored: bool) -> None:
    world = run(Plan(11, nodes, STEPS, mirrored=mirrored))
    assert world.counts["contents"] and world.counts["answers"] > world.counts["refused"]


MUTATIONS = (
    Mutation(
        "what is leased waits again after a start",
        1,
        "Leases.restore",
        "self.reserve()",
        "",
    ),
    Mutation(
        "who takes is told before it is safe",
        1,
        "_tell",
        "queue.durable_state.when_safe(on_safe)",
        "on_safe(True)",
    ),
    Mutation(
        "blocks that were not applied have no marks for the next master",
        3,
        "stored_marks",
        "marks.update(block.marks)",
        "pass",
        first=15,
        mirrored=True,
    ),
    Mutation(
        "numbers stay what they were where a queue moves to",
        3,
        "Leases.moved",
        "copy.runs = [run for old in lease.runs for run in there.translate(*old)]",
        "copy.runs = list(lease.runs)",
        first=81,
    ),
    Mutation(
        "what moves does not bring its marks",
        3,
        "Departure._check",
        "if marks: ...\nelse: ...",
        "if False: ...\nelse: ...",
    ),
    Mutation(
        "a lease that is opened again begins anew",
        1,
        "Leases.open",
        "lease = self.closed.pop(name, None) or Lease(name)",
        "lease = Lease(name)",
    ),
    Mutation(
        "what is acknowledged in a lease is not settled",
        1,
        "Leases._settle",
        "for first, last in numbers:\n    queue.settle_numbers(first, last)",
        "",
    ),
)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda one: one.name)
def test_the_seeds_notice(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, mutation)
    for seed in range(mutation.first, mutation.first + SEEDS):
        try:
            run(Plan(seed, mutation.nodes, STEPS, mirrored=mutation.mirrored))
        except Violation:
            return
    pytest.fail("no seed noticed")
