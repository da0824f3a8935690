"""Demands that a run with links notices a deliberate bug."""

from __future__ import annotations

import pytest

from simulation.links.played import run
from simulation.plan import Plan
from simulation.world import Violation
from tests.simulation.bugs.mutations import Mutation, put

SEEDS = 4


def notice(
    patch: pytest.MonkeyPatch, mutation: Mutation, steps: int, links: str, text: str = "", two: bool = False
) -> None:
    """Run the first seeds with a bug, until one fails with this text in its report."""
    put(patch, mutation)
    found = []
    for seed in range(mutation.first, mutation.first + SEEDS):
        try:
            run(Plan(seed, mutation.nodes, steps, mirrored=mutation.mirrored, links=links, two_clusters=two))
        except Violation as violation:
            found.append(str(violation))
            if text in found[-1]:
                return
    pytest.fail(f"no seed noticed: {found}")
