"""Would the tests notice? Each deliberate bug must make a scene or a seed fail.

`LEVERET_MUTATIONS=all` tries the seeds of the simulation on all of them, which takes minutes, and says which the seeds
alone would have missed.
"""

from __future__ import annotations

from functools import partial

import pytest

from simulation.ring.checker import Violation
from simulation.ring.world import Plan, run
from tests.support.mutating import failing, missed, only_with_all

from .mutations import MUTATIONS, Mutation, failing_scenario, put

SEEDS = 40
TIME = 40.0
# What no scene can show, because it is in the shell or takes several members.
BY_SEEDS = (
    "settles that pass a filling member are forgotten",
    "the first view of a process is an old one",
    "a damaged disk keeps its id",
)
# The seeds must notice at least these too, or the simulation's own checkers are blind.
OBVIOUS = (
    *BY_SEEDS,
    "additions of unknown outcome do not count",
    "who has no link does not count",
    "the own copy counts at once",
    "received is enough",
    "whose removal is proposed does not count",
    "a new master drops what is not confirmed",
    "a joiner need not be complete",
    "an unmatched log reports its numbers",
    "the start block does not matter",
    "a restarted master resumes its epoch",
    "blocks are forgotten before they are confirmed",
    "older views are taken",
    "a shorter neighbour truncates",
    "mirrors apply what is not confirmed",
    "what is confirmed is not told at rest",
    "a promotion keeps the epoch",
    "nobody asks",
)


def failing_seed() -> int | None:
    plans = (Plan(seed, "lossy" if seed % 4 == 3 else "safe", TIME) for seed in range(SEEDS))
    return failing(((plan.seed, partial(run, plan)) for plan in plans), Violation)


def test_every_rule_is_broken_once() -> None:
    assert {mutation.rule for mutation in MUTATIONS} == set(range(13))


def test_without_a_bug_nothing_fails() -> None:
    assert failing_scenario() is None


@pytest.mark.parametrize(
    "mutation", [one for one in MUTATIONS if one.name not in BY_SEEDS], ids=lambda one: f"{one.rule}: {one.name}"
)
def test_the_scenes_notice(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, mutation)
    assert failing_scenario() is not None


@pytest.mark.parametrize("name", OBVIOUS)
def test_the_seeds_notice(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, next(mutation for mutation in MUTATIONS if mutation.name == name))
    assert failing_seed() is not None


@only_with_all
def test_what_the_seeds_notice(capsys: pytest.CaptureFixture[str]) -> None:
    assert not missed(MUTATIONS, put, failing_seed, capsys) & set(OBVIOUS)
