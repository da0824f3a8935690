"""Faults of real clusters in their short form: one fault of each kind, and the checkers' verdict on the histories."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import IO

import pytest

from faults.cases.case import Case
from faults.cases.every import CASES
from faults.cases.run import Run, cluster_for
from faults.clients.consumer import Consumer
from faults.history.verdict import BROKEN, KEPT
from faults.machines.cluster import Cluster, why_not
from faults.machines.leveret_node import LeveretNode
from faults.machines.node import Process, launch
from tests.support.processes.forked import can_fork, fork

SEED = 1
# Cases that share a cluster, one after the other: a cluster takes longer to start than most faults last. `make faults`
# gives each case a cluster of its own, and a minute.
TOGETHER = (
    ("kill-master", "kill-all", "kill-promotion", "freeze", "one-way", "lossy", "slow"),
    ("power-one", "power-two", "power-all", "power-strict", "power-and-pause"),
    ("disk-stalls", "disk-full", "failed-sync", "descriptors", "memory"),
    ("lock-message", "lock-single-active", "lock-exclusive", "lock-fenced", "halves"),
    ("bit-flip", "truncated", "old-folder", "foreign-folder", "lost-folder"),
    ("join-forget", "rename", "rolling-restart"),
    ("leases", "mqtt", "dead-letters", "shovel", "federation"),
    ("clock-jumps", "clock-strobes"),
    ("ring",),
)


def launch_quickly(command: list[str], environment: dict[str, str], log: IO[bytes]) -> Process:
    if can_fork(command, {}):
        return fork(command, environment, log, all_to_log=True, own_group=True)
    return launch(command, environment, log)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    reason = why_not(disks=True)
    if reason is not None:
        pytest.skip(reason)
    monkeypatch.setattr(LeveretNode, "launch", staticmethod(launch_quickly))
    return tmp_path


def test_each_case_has_a_short_form() -> None:
    assert sorted(chain(*TOGETHER)) == sorted(CASES)


@pytest.mark.parametrize("names", TOGETHER, ids=lambda names: names[0])
def test_short_forms(folder: Path, names: tuple[str, ...]) -> None:
    cases = [CASES[name] for name in names]
    with cluster_for(cases, folder / "nodes") as cluster:
        cluster.start()
        for case in cases:
            verdict = Run(case, cluster, folder / case.name, SEED, 0.0, print).play()
            assert verdict.code == KEPT, f"{case.name}: {verdict.told()}"


def test_disks_that_lie(folder: Path) -> None:
    """The suite notices disks that say they have synced and have not."""
    with Cluster(folder / "nodes", disks=True) as cluster:
        cluster.start()

        def lie(run: Run) -> None:
            for node in cluster.nodes:
                assert node.disk is not None
                node.disk("lie")
            confirmed = run.board.confirmed
            while run.board.confirmed < confirmed + 500:
                run.pause.wait(0.01)
            with run.fault("power fails, and disks have lied"):
                for node in cluster.nodes:
                    node.kill()
                for node in cluster.nodes:
                    node.lose_power(1, 0.0)
                run.restart(*cluster.nodes)

        def load(run: Run) -> None:
            run.drain_s = 3.0
            (queue,) = run.add_queues(1, consumers=0)
            run.at_end(lambda: run.add(Consumer("late", run.folder, run.board, run.pick(), queue)))

        case = Case("lying", "disks that lie", load, lie)
        verdict = Run(case, cluster, folder / "histories", SEED, 0.0, print).play()
    # Of those 500, a window or two may have been synced just before.
    assert verdict.code == BROKEN and verdict.figures["lost"] >= 400 and verdict.figures["delivered"] > 0
