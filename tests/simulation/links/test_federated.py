"""Federation links through the faults of the simulation, and whether it would notice if they were broken."""

from __future__ import annotations

import pytest

from simulation.links.played import run
from simulation.plan import Plan
from tests.simulation.bugs.mutations import Mutation
from tests.simulation.links.noticing import notice

STEPS = 20


@pytest.mark.parametrize(("nodes", "mirrored", "seed"), [(1, False, 3), (3, False, 13), (3, True, 32)])
def test_links(nodes: int, mirrored: bool, seed: int) -> None:
    world = run(Plan(seed, nodes, STEPS, mirrored=mirrored, links="federation"))
    assert world.moved and world.runners


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 130))
def test_many_seeds(seed: int) -> None:
    run(Plan(seed, 3, 40, mirrored=seed % 2 == 0, links="federation"))


MUTATIONS = (
    Mutation(
        "every node runs every link",
        3,
        "Federation._compare",
        "missing = [one for one in links.values() if one.node == name and one.key not in self.workers]",
        "missing = [one for one in links.values() if one.key not in self.workers]",
    ),
    pytest.param(
        Mutation(
            "origins are taken out of messages",
            3,
            "HeaderWriter.__call__",
            "return with_origins([made], origin.source, origin.number)[0] if origin.number else made",
            "return made",
            first=1,
            mirrored=True,
        ),
        marks=pytest.mark.long,
    ),
)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=["every node", "origins"])
def test_the_seeds_notice(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    notice(monkeypatch, mutation, STEPS, "federation")
