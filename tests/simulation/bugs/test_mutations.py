"""Would the simulation notice? Each deliberate bug must make one of the first seeds fail.

A run that notices a bug costs a moment; most of the time goes into those that do not. So each bug comes with the seed
from which on it is looked for: one that noticed it when it was written. All of them take minutes (`make long`); some of
each kind are tried always, and that the code that each changes is there.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulation.plan import STEPS, Plan
from simulation.world import Violation, run
from tests.simulation.bugs.mutations import ALONE, MIRRORED, TOGETHER, VARIED, Mutation, check_code, put
from tests.simulation.bugs.mutations_featured import FEATURED
from tests.simulation.bugs.mutations_paired import DETACHED, PAIRED
from tests.simulation.bugs.mutations_special import SPECIAL
from tests.simulation.bugs.mutations_strategies import STRATEGIES
from tests.simulation.bugs.mutations_witnessed import WITNESSED

SEEDS = 60


def failing_seed(mutation: Mutation) -> int | None:
    for seed in range(mutation.first, mutation.first + SEEDS):
        try:
            kind = (mutation.mirrored, mutation.varied, mutation.featured, mutation.special, mutation.strategies)
            plan = Plan(seed, mutation.nodes, STEPS, (), 0, *kind, mutation.spooled)
            run(replace(plan, paired=mutation.paired, witnessed=mutation.witnessed))
        except Violation:
            return seed
    return None


KINDS = (ALONE, TOGETHER, MIRRORED, VARIED, FEATURED, SPECIAL, STRATEGIES, PAIRED, DETACHED, WITNESSED)
ALWAYS = 2  # Of each kind.


@pytest.mark.parametrize(
    "mutation",
    [
        pytest.param(one, id=one.name, marks=() if number < ALWAYS else pytest.mark.long)
        for kind in KINDS
        for number, one in enumerate(kind)
    ],
)
def test_the_seeds_notice(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, mutation)
    assert failing_seed(mutation) is not None


def test_the_code_is_there() -> None:
    for kind in KINDS:
        for mutation in kind:
            check_code(mutation)
