"""Whole clusters on machines that are not well: see `simulation.scenarios.resource_faults`."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from simulation.plan import Plan
from simulation.scenarios.resource_faults import AILING_FAULTS
from simulation.world import Violation, run
from tests.support.mutating import Change, check, replace


def test_seeds() -> None:
    worlds = [run(Plan(seed, 3, ailing=True)) for seed in (2,)]
    worlds += [run(Plan(seed, 3, mirrored=True, ailing=True)) for seed in (5,)]
    assert all(world.resources.recovered for world in worlds)


@pytest.mark.long
@pytest.mark.parametrize(("nodes", "mirrored"), [(1, False), (3, False), (3, True), (5, True)])
def test_many_seeds(nodes: int, mirrored: bool) -> None:
    worlds = [run(Plan(seed, nodes, mirrored=mirrored, ailing=True)) for seed in range(200, 240)]
    assert nodes == 1 or sum(world.resources.recovered for world in worlds) > 10


def test_plans_of_other_runs_are_what_they_were() -> None:
    ailing, usual = Plan(8, mirrored=True, ailing=True), Plan(8, mirrored=True)
    assert ailing.command() == f"{usual.command()} --ailing"
    wanted = {what for what, _ in AILING_FAULTS}
    assert wanted.isdisjoint(step.what for step in usual.draw())
    assert wanted <= {step.what for seed in range(10) for step in Plan(seed, ailing=True).draw()}


class Bug(NamedTuple):
    name: str
    function: str
    old: str
    new: str
    first: int  # Seed to begin with.
    mirrored: bool = False

    @property
    def change(self) -> Change:
        return Change(self.function, self.old, self.new)


BUGS = (
    Bug(
        "who takes its own place loses its queues",
        "Cluster.admit",
        'logger.info("node %s at %s replaces its former incarnation", member.name, member.address)',
        "await self.change(c.ForgetNode(member.name))",
        2,
    ),
    Bug(
        "messages are given up before it is known which queues there are",
        "Node.__init__",
        "log.recover(None, logger.info)",
        "log.recover([] if recovered.snapshot is None and not recovered.entries else None)",
        2,
    ),
    Bug(
        "memory that was short once is short for ever",
        "Alarms.check",
        "self.memory = self.memory_used_bytes > self.memory_limit_bytes",
        "self.memory = self.memory or self.memory_used_bytes > self.memory_limit_bytes",
        1,
    ),
    Bug(
        "a copy is known by the name of its node",
        "Node.prepare",
        "self.broker.mirrors.open(self.storage.mirrors, self.cluster.me.id, life)",
        "self.broker.mirrors.open(self.storage.mirrors, self.cluster.me.name, life)",
        1,
        True,
    ),
)


@pytest.mark.parametrize(
    "bug",
    [pytest.param(bug, id=bug.name, marks=() if number < 2 else pytest.mark.long) for number, bug in enumerate(BUGS)],
)
def test_the_seeds_notice(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    replace(monkeypatch, bug.name, bug.change)
    with pytest.raises(Violation):
        for seed in range(bug.first, bug.first + 40):
            run(Plan(seed, 3, mirrored=bug.mirrored, ailing=True))


def test_the_code_is_there() -> None:
    for bug in BUGS:
        check(bug.name, bug.change)
