"""Leases through the faults of the simulation, and whether it would notice if they were broken."""

from __future__ import annotations

import pytest

from simulation.leased import run
from simulation.plan import Plan
from simulation.world import Violation

from .mutations import Mutation, put

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
        "broker.leases",
        "        self.reserve()\n        queue.host.dirty[queue] = None\n",
        "        queue.host.dirty[queue] = None\n",
    ),
    Mutation(
        "who takes is told before it is safe",
        1,
        "broker.leases",
        "    queue.when_safe(on_safe)\n",
        "    on_safe(True)\n",
    ),
    Mutation(
        "blocks that were not applied have no marks for the next master",
        3,
        "mirror.store",
        "        marks.update(block.marks)\n",
        "        pass\n",
        first=15,
        mirrored=True,
    ),
    Mutation(
        "numbers stay what they were where a queue moves to",
        3,
        "broker.leases",
        "            copy.runs = [run for old in lease.runs for run in there.translate(*old)]\n",
        "            copy.runs = list(lease.runs)\n",
        first=53,
    ),
    Mutation(
        "what moves does not bring its marks",
        3,
        "broker.moving",
        "        elif marks:\n",
        "        elif False:\n",
    ),
    Mutation(
        "a lease that is opened again begins anew",
        1,
        "broker.leases",
        "            lease = self.closed.pop(name, None) or Lease(name)\n",
        "            lease = Lease(name)\n",
    ),
    Mutation(
        "what is acknowledged in a lease is not settled",
        1,
        "broker.leases",
        "        for first, last in numbers:\n            queue.settle_numbers(first, last)\n",
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
