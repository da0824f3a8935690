"""Many runs are told as one."""

from __future__ import annotations

import gc
import weakref
from collections import Counter

from simulation.many import KINDS, all_kinds, linked_kinds, plans, run_many
from simulation.plan import Plan
from simulation.world import Violation, World, quiet


def play(plan: Plan) -> tuple[World, str | None]:
    world = World(plan)
    try:
        with quiet():
            world.play()
    except Violation as violation:
        return world, str(violation)
    return world, None


def test_a_summary_of_a_few_runs() -> None:
    said: list[str] = []
    tally = run_many(7, 3, 15, play, said.append)
    assert tally.runs == 3 and not tally.failures
    assert tally.faults.total() + tally.operations.total() >= 3 * 15
    assert tally.told().startswith("3 runs, 0 failed\n  runs by kind: ")


def test_a_run_leaves_nothing_behind() -> None:
    """Otherwise thousands of runs would fill the memory."""
    world, failure = play(Plan(7, 3, 15, mirrored=True, spooled=True))
    ended = weakref.ref(world)
    del world
    gc.collect()
    assert failure is None and ended() is None


def test_a_failure_is_told_with_its_command() -> None:
    tally = run_many(7, 2, 5, lambda plan: (play(plan)[0], "lost"), lambda text: None)
    assert len(tally.failures) == 2 and "python -m simulation --seed 8" in tally.told()


def test_all_kinds_come_equally_often() -> None:
    count = 7 * len(all_kinds())
    drawn = [(plan, kinds) for plan, kinds in plans(1, 2 * count // 7 * 8, 10)]
    assert set(Counter(kinds for plan, kinds in drawn if not plan.links).values()) == {14}
    assert {kind for plan, kinds in drawn for kind in kinds if not plan.links} == set(KINDS)


def test_every_eighth_has_links() -> None:
    drawn = [(plan, kinds) for plan, kinds in plans(1, 8 * len(linked_kinds()), 10)]
    linked = [kinds for plan, kinds in drawn if plan.links]
    assert Counter(linked) == Counter(linked_kinds())
    between = [plan for plan, _ in drawn if plan.two_clusters]
    assert {plan.links for plan in between} == {"shovels", "federation"} and 2 * len(between) == len(linked)
    assert all(set(plan.command().split()) >= {"--two-clusters", f"--{plan.links}"} for plan in between)


def test_a_plan_follows_from_the_first_seed() -> None:
    assert list(plans(5, 20, 10)) == list(plans(5, 20, 10))


def test_runs_that_are_interrupted_are_summed_up() -> None:
    said: list[str] = []

    def play_two(plan: Plan) -> tuple[World, str | None]:
        if plan.seed == 9:
            raise KeyboardInterrupt
        return play(plan)

    assert run_many(7, 5, 5, play_two, said.append).runs == 2
    assert said == ["interrupted after 2 of 5 runs"]
