"""Would the tests notice? Each deliberate bug must make one of them fail.

Normally each one is tried on the scenarios that are meant to notice it. `LEVERET_MUTATIONS=all` tries the seeds of the
simulation on all of them too, which takes minutes, and says which the seeds alone would have missed.
"""

from __future__ import annotations

import os

import pytest

from simulation.raft import Plan, run
from simulation.raft_checker import Violation

from .mutations import MUTATIONS, Mutation, check_meaning, failing_scenario, put

ALL = os.environ.get("LEVERET_MUTATIONS") == "all"
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
    "reads without a majority",
    "tells to commit what may differ",
    "what was replaced counts as written",
    "no sync",
    "snapshots are not synced",
    "a reset is not read",
)


def failing_seed(limit: int) -> int | None:
    for seed in range(limit):
        try:
            run(Plan(seed), 1)
        except Violation as violation:
            check_meaning(violation)
            return seed
    return None


def test_without_a_bug_nothing_fails() -> None:
    assert failing_scenario() is None


@pytest.mark.parametrize("mutation", SEEN, ids=lambda one: one.name)
def test_the_scenarios_notice(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, mutation)
    assert failing_scenario() is not None


@pytest.mark.parametrize("name", OBVIOUS)
def test_the_seeds_notice(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, next(mutation for mutation in MUTATIONS if mutation.name == name))
    assert failing_seed(SEEDS) is not None


@pytest.mark.skipif(not ALL, reason="LEVERET_MUTATIONS=all runs the seeds on every bug")
def test_what_the_seeds_notice(capsys: pytest.CaptureFixture[str]) -> None:
    missed = []
    for mutation in MUTATIONS:
        with pytest.MonkeyPatch.context() as patch:
            put(patch, mutation)
            if failing_seed(SEEDS) is None:
                missed.append(mutation.name)
    with capsys.disabled():
        print(f"\n{len(MUTATIONS) - len(missed)} of {len(MUTATIONS)} were noticed by {SEEDS} seeds; not these:")
        print("\n".join(f"  {name}" for name in missed))
    assert not set(missed) & set(OBVIOUS)
