"""Seeds of the simulation. A failure says how to replay it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from simulation.raft.checker import Checker, Violation
from simulation.raft.world import Plan, World, run

SEEDS = 300
ALWAYS = 120  # The others are run with the long tests only.
GROUP = 10
GROUPS = [pytest.param(at, marks=() if at < ALWAYS else pytest.mark.long) for at in range(0, SEEDS, GROUP)]


@pytest.mark.parametrize("first", GROUPS)
def test_seeds(first: int) -> None:
    for seed in range(first, first + GROUP):
        run(Plan(seed))


@pytest.mark.parametrize(("first", "end"), [(0, 25), pytest.param(25, 60, marks=pytest.mark.long)])
@pytest.mark.parametrize("nodes", [2, 3])
def test_seeds_of_two_voters(nodes: int, first: int, end: int) -> None:
    for seed in range(first, end):
        run(Plan(seed, nodes, 30, paired=True))


def test_five_nodes_and_many_faults() -> None:
    world = run(Plan(7, nodes=5, steps=60))
    assert len(world.checker.leaders) > 3 and len(world.checker.committed) > 100


def test_seven_voters() -> None:
    world = run(Plan(3, nodes=7, steps=10))
    assert max(len(membership.voters) for membership in world.memberships()) >= 6


def test_a_seed_is_a_run() -> None:
    def trace(seed: int) -> list[str]:
        world = World(Plan(seed), trace_max=100_000)
        world.play()
        return [str(event) for event in world.trace]

    assert trace(5) == trace(5) != trace(6)


def test_a_failure_tells_how_to_replay_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Checker, commit: int) -> None:
        raise Violation("for a test")

    monkeypatch.setattr(Checker, "at_the_end", fail)
    with pytest.raises(Violation, match=r"(?s)for a test.*last events:.*replay: python -m simulation.raft --seed 4 "):
        run(Plan(4))


def test_the_command_line() -> None:
    words = [sys.executable, "-m", "simulation.raft", "--seed", "3", "--count", "2", "--nodes", "3", "--steps", "5"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("seed 3: ") and "seed 4: " in done.stdout
