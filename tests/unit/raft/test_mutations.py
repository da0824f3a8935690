"""Would the tests notice? Each deliberate bug must make one of them fail.

Normally each one is tried on the scenarios that are meant to notice it. `LEVERET_MUTATIONS=all` tries the seeds of the
simulation on all of them too, which takes minutes, and says which the seeds alone would have missed.
"""

from __future__ import annotations

from functools import partial

import pytest

from simulation.raft.checker import Violation
from simulation.raft.world import Plan, run
from tests.support.mutating import failing, missed, only_with_all

from .mutations import MUTATIONS, Mutation, failing_scenario, put

SEEDS = 100
SEEN = [mutation for mutation in MUTATIONS if mutation.noticed_by == "scenarios"]
# The seeds must notice at least these, or the simulation's own checkers are blind.
OBVIOUS = (
    "votes for an older log",
    "votes for all who ask",
    "forgets its term",
    "answers before the disk has it",
    "truncates without a conflict",
    "takes late snapshots",
    "half is a majority",
    "tells to commit what may differ",
    "what was replaced counts as written",
    "no sync",
    "snapshots are not synced",
    "a reset is not read",
)


def failing_seed() -> int | None:
    return failing(((seed, partial(run, Plan(seed), 1)) for seed in range(SEEDS)), Violation)


def test_without_a_bug_nothing_fails() -> None:
    assert failing_scenario() is None


@pytest.mark.parametrize("mutation", SEEN, ids=lambda one: one.name)
def test_the_scenarios_notice(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, mutation)
    assert failing_scenario() is not None


@pytest.mark.parametrize("name", OBVIOUS)
def test_the_seeds_notice(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, next(mutation for mutation in MUTATIONS if mutation.name == name))
    assert failing_seed() is not None


@only_with_all
def test_what_the_seeds_notice(capsys: pytest.CaptureFixture[str]) -> None:
    assert not missed(MUTATIONS, put, failing_seed, capsys) & set(OBVIOUS)
