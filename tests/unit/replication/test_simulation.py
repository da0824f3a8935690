"""Seeds of the simulation. A failure says how to replay it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from leveret.replication.ring_frames import Options
from simulation.ring.checker import Checker, Violation
from simulation.ring.world import Plan, World, run

SEEDS = {"safe": 160, "lossy": 80, "async": 20}
ALWAYS = {"safe": 80, "lossy": 20, "async": 20}  # The others are run with the long tests only.
GROUP = 20
GROUPS = [
    pytest.param(mode, at, marks=() if at < ALWAYS[mode] else pytest.mark.long)
    for mode in SEEDS
    for at in range(0, SEEDS[mode], GROUP)
]
TIME = 45.0


@pytest.mark.parametrize(("mode", "first"), GROUPS)
def test_seeds(mode: str, first: int) -> None:
    for seed in range(first, first + GROUP):
        run(Plan(seed, mode, TIME))


def test_the_faults_happen() -> None:
    count: dict[str, int] = {}
    for seed in range(30):
        for what, number in run(Plan(seed, "lossy", TIME)).count.items():
            count[what] = count.get(what, 0) + number
    wanted = {"crashes", "damages", "epochs", "joins", "pieces", "resets", "truncations", "hand-overs", "forced"}
    assert wanted <= set(count), count


@pytest.mark.parametrize("star", [False, True])
def test_a_master_with_a_slow_disk_gives_way(star: bool) -> None:
    """Nobody is lost, nobody else gets slower, and the one with the slow disk leads no longer."""
    world = World(Plan(1, "safe", nodes=3, faults=("heal",), options=Options(star=star, own_slow=4, slow=30)))
    world.faults.faults = ["heal"]
    world.net, world.fsync, world.meta, world.pace, world.every = 0.02, 0.05, 0.1, 0.2, 1000
    world.run(20)
    first = world.view.master
    world.nodes[first].speed = 200
    world.run(60)
    assert world.view.master != first and world.count["disks given way"]
    world.finish()


def test_a_member_without_a_link_to_the_master_stays() -> None:
    world = World(Plan(3, "safe", nodes=3, faults=("heal",), options=Options(retry=2)))
    world.faults.faults = ["restart"]
    world.net, world.fsync, world.meta, world.pace = 0.02, 0.05, 0.1, 0.3
    world.view = world.view._replace(ring=("n0", "n1", "n2"))
    world.views = [world.view]
    world.run(30)
    assert len(world.view.in_sync) == 3
    master, _, last = world.view.order()
    world.blocked = {(master, last), (last, master)}
    world.run(60)
    before = world.checker.end
    world.run(90)
    assert world.checker.end > before + 20 and len(world.view.in_sync) == 3 and world.view.master == master
    world.finish()


def quiet(seed: int, **options: bool) -> World:
    """Three members in sync, and nothing happens any more."""
    world = World(Plan(seed, "safe", nodes=3, options=Options(**options)))
    world.faults.faults, world.lazy = ["heal"], True
    world.net, world.fsync, world.meta, world.pace = 0.02, 0.05, 0.1, 0.2
    world.run(30)
    world.faults.command("add", list(world.nodes), world.view.master)
    world.run(45)
    world.events = [event for event in world.events if event[2] not in (world.publish, world.consume)]
    world.run(60)
    assert len(world.view.in_sync) == 3 and world.checker.end > 50
    return world


@pytest.mark.parametrize("keep", [0, 40])
@pytest.mark.parametrize("seed", [1, 2])
def test_at_rest_a_damaged_mirror_is_filled_again(seed: int, keep: int) -> None:
    world = quiet(seed)
    victim = world.view.order()[1]
    world.damage(victim, keep)
    world.run(100)
    assert world.view.disk_of(victim) == world.nodes[victim].disk and len(world.view.in_sync) == 3
    assert len({world.end_of(name) for name in world.view.ring}) == 1
    frames = world.count["frames"]
    world.run(200)
    assert world.count["frames"] == frames, "a queue at rest sends nothing"


@pytest.mark.parametrize("deaths", [1, 2])
def test_at_rest_a_dead_master_is_replaced(deaths: int) -> None:
    world = quiet(3)
    order = world.view.order()
    for name in order[:deaths]:
        world.crash(name)
    if deaths == 1:
        world.run(70)
        assert world.serving() and world.view.master != order[0]
    else:
        world.run(70)
        assert not world.serving(), "one of three nodes is no majority"
        world.start(order[1])
        world.run(90)
        assert world.serving() and world.view.master in order[1:]
    world.start(order[0])
    world.run(120)
    assert {world.end_of(name)[1:] for name in world.view.ring} == {(world.checker.end, world.checker.end, True)}


def test_a_seed_is_a_run() -> None:
    def trace(seed: int) -> list[str]:
        world = World(Plan(seed))
        world.run(60)
        return [str(event) for event in world.trace]

    assert trace(5) == trace(5) != trace(6)


def test_a_failure_tells_how_to_replay_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Checker, *arguments: object) -> None:
        raise Violation("for a test")

    monkeypatch.setattr(Checker, "at_the_end", fail)
    with pytest.raises(Violation, match=r"(?s)for a test.*last events:.*replay: python -m simulation.ring --seed 4 "):
        run(Plan(4, time=20))


def test_the_command_line() -> None:
    words = [sys.executable, "-m", "simulation.ring", "--seed", "3", "--count", "2", "--mode", "lossy"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("seed 3: ") and "seed 4: " in done.stdout
