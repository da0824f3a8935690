"""Faults of real clusters in their short form: one fault of each kind, and the checkers' verdict on the histories."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.cases.case import Case
from faults.cases.every import CASES
from faults.cases.run import Run, cluster_for
from faults.clients.consumer import Consumer
from faults.history.verdict import BROKEN, KEPT
from faults.machines.cluster import Cluster, why_not

SEED = 1
# Cases that share a cluster in every run of the tests. `make long` runs the others, `make faults` all at length.
TOGETHER = ("power-all", "kill-promotion", "one-way")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    reason = why_not(disks=True)
    if reason is not None:
        pytest.skip(reason)
    yield tmp_path


def test_short_forms(folder: Path) -> None:
    """One cluster, on disks that forget, for one case after the other."""
    with Cluster(folder / "nodes", disks=True) as cluster:
        cluster.start()
        for name in TOGETHER:
            verdict = Run(CASES[name], cluster, folder / name, SEED, 0.0, print).play()
            assert verdict.code == KEPT, f"{name}: {verdict.told()}"
        assert lying(cluster, folder / "lying")


def lying(cluster: Cluster, folder: Path) -> bool:
    """Returns whether the suite notices disks that say they have synced and have not."""

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
        run.at_end(lambda: run.add(Consumer("late", folder, run.board, run.pick(), queue)))

    verdict = Run(Case("lying", "disks that lie", load, lie), cluster, folder, SEED, 0.0, print).play()
    # Of those 500, a window or two may have been synced just before.
    return verdict.code == BROKEN and verdict.figures["lost"] >= 400 and verdict.figures["delivered"] > 0


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in CASES if name not in TOGETHER])
def test_each_once(folder: Path, name: str) -> None:
    case = CASES[name]
    reason = why_not("leveret", case.disks, case.clocks)
    if reason is not None:
        pytest.skip(reason)
    with cluster_for(case, folder / "nodes") as cluster:
        cluster.start()
        verdict = Run(case, cluster, folder / "histories", SEED, 0.0, print).play()
    assert verdict.code == KEPT, verdict.told()
