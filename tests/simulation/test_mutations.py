"""Would the simulation notice? Each deliberate bug must make one of the first seeds fail.

A run that notices a bug costs a moment; most of the time goes into those that do not. So each bug comes with the seed
from which on it is looked for: one that noticed it when it was written.
"""

from __future__ import annotations

import pytest

from simulation.plan import STEPS, Plan
from simulation.world import Violation, run

from .mutations import ALONE, MIRRORED, TOGETHER, VARIED, Mutation, put
from .mutations_featured import FEATURED
from .mutations_special import SPECIAL

SEEDS = 60


def failing_seed(mutation: Mutation) -> int | None:
    for seed in range(mutation.first, mutation.first + SEEDS):
        try:
            kind = (mutation.mirrored, mutation.varied, mutation.featured, mutation.special)
            run(Plan(seed, mutation.nodes, STEPS, (), 0, *kind))
        except Violation:
            return seed
    return None


@pytest.mark.parametrize(
    "mutation", ALONE + TOGETHER + MIRRORED + VARIED + FEATURED + SPECIAL, ids=lambda one: one.name
)
def test_the_seeds_notice(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, mutation)
    assert failing_seed(mutation) is not None
