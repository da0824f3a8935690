"""Shovels between two clusters through the faults of both and of the line, and deliberate bugs that must be noticed."""

from __future__ import annotations

import pytest

from simulation.links.played import run
from simulation.plan import Plan
from tests.simulation.bugs.mutations import Mutation
from tests.simulation.links.noticing import notice

STEPS = 12


@pytest.mark.parametrize(("nodes", "seed"), [(1, 504), (2, 7)])
def test_shovels(nodes: int, seed: int) -> None:
    world = run(Plan(seed, nodes, STEPS, links="shovels", two_clusters=True))
    assert world.moved and len(world.runners) > 4


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 140))
def test_many_seeds(seed: int) -> None:
    run(Plan(seed, 1 + seed % 3, 40, links="shovels", two_clusters=True))


# By what should notice: two workers, a loss, a double, a loop, a shovel that stands still.
MUTATIONS = (
    Mutation(
        "every node runs every shovel",
        2,
        "Shovels.tick",
        "missing = [one for one in assignments.values() if one.node == name and one.key not in self.workers]",
        "missing = [one for one in assignments.values() if one.key not in self.workers]",
    ),
    Mutation(
        "a message is acknowledged when it was published",
        1,
        "Link.on_deliveries",
        "if self.mode != 'on-confirm' and deliveries and self.acknowledges: ...",
        "if deliveries: ...",
        first=31,
    ),
    Mutation(
        "a queue takes an origin again",
        1,
        "origins:take",
        "old = taken.count_within(first, last)",
        "old = 0",
        first=1,
    ),
    Mutation(
        "the note of a queue's first run is in no block",
        1,
        "note_first_run",
        "state.set(RUNS, mark)",
        "state.restore({**state.table, RUNS: mark})",
    ),
    Mutation(
        "a shovel publishes where it consumes",
        1,
        "ShovelWorker._attempt",
        "destination = await self._connect(shovel.dest_uris, 'destination', numbered)",
        "destination = await self._connect(shovel.src_uris, 'destination', numbered)",
    ),
    Mutation(
        "a shovel that fails is not tried again",
        1,
        "Retries.on_failed",
        "not self.first_s",
        "True",
    ),
    Mutation(
        "a worker goes on when another epoch has begun",
        1,
        "Shovels.tick",
        "is_over = wanted is None or wanted.node != name or wanted.epoch != epoch",
        "is_over = wanted is None",
    ),
)
NOTICED = ("runs", "lost", "twice", "twice", "came to", "is run by", "runs")


@pytest.mark.parametrize(
    ("mutation", "text"), list(zip(MUTATIONS, NOTICED, strict=True)), ids=lambda one: str(one)[:40]
)
def test_the_seeds_notice(mutation: Mutation, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    notice(monkeypatch, mutation, STEPS, "shovels", text, two=True)
