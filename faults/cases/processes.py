"""Processes that die and stand still."""

from __future__ import annotations

from faults.cases.case import Case
from faults.cases.run import Run
from faults.machines.cluster import TICK_S


def _load(run: Run) -> None:
    run.add_queues()


def _large_windows(run: Run) -> None:
    run.add_queues(2, publishers=2, window=2_000, pause_s=run.short(0.5, 0.0))


def _kill_master(run: Run) -> None:
    node = run.master()
    with run.fault(f"kill -9 {node.name}, a master"):
        node.kill()
        run.wait(0.0, 1.0, 5.0)
        run.restart(node)


def _kill_all(run: Run) -> None:
    with run.fault("kill -9 of all nodes at once"):
        for node in run.cluster.nodes:
            node.kill()
        nodes = list(run.cluster.nodes)
        run.rng.shuffle(nodes)
        run.restart(*nodes)


def _freeze(run: Run) -> None:
    node = run.master()
    with run.fault(f"SIGSTOP {node.name} for longer than net_ticktime"):
        node.freeze()
        run.wait(TICK_S + 2.0, TICK_S * 3.0, short=TICK_S + 2.0)
        node.thaw()


def _kill_within(run: Run) -> None:
    """Kills the next master while it is being promoted."""
    first = run.master()
    with run.fault(f"kill -9 {first.name}, and another node while the next master is promoted"):
        first.kill()
        run.wait(0.0, 0.02, 0.05, 0.2)
        second = run.rng.choice([node for node in run.cluster.nodes if node is not first])
        second.kill()
        run.wait(0.0, 1.0)
        run.restart(second)
        run.restart(first)


CASES = (
    Case("kill-master", "kill -9 of a master while it confirms windows of 2,000", _large_windows, _kill_master, 4),
    Case("kill-all", "kill -9 of all nodes at once", _load, _kill_all, 5),
    Case("kill-promotion", "kill -9 of a master, and of another node during the promotion", _load, _kill_within, 9),
    Case("freeze", "SIGSTOP of a master past net_ticktime", _load, _freeze, 8),
)
