"""Nodes that join, leave, are renamed and restarted under load."""

from __future__ import annotations

import shutil

from faults.cases.case import Case
from faults.cases.run import Run
from faults.machines.leveret_node import LeveretNode


def _load(run: Run) -> None:
    run.add_queues(2)
    run.add_registrars()


def _load_and_cut(run: Run) -> None:
    run.add_queues(2)
    run.add_registrars(linearizable=False)  # See `networks`.


def _join_and_forget(run: Run) -> None:
    """A fourth node joins, is cut off from a part of the cluster or not, dies and is forgotten."""
    (node,) = run.cluster.spares
    with run.fault(f"{node.name} joins, and is forgotten"):
        node.spawn()
        node.await_ready()
        run.cluster.nodes.append(node)
        try:
            if run.rng.random() < 0.5:
                side = run.rng.sample(run.cluster.nodes[:3], 1)
                run.note(f"  {side[0].name} is cut off meanwhile")
                run.cluster.part(side)
                run.wait(5.0, 8.0)
                run.cluster.heal()
            run.cluster.await_whole()
        finally:
            run.cluster.nodes.remove(node)
        node.kill()
        run.wait(0.0, 1.0)
        run.cluster.asked().forget(node.name)
        shutil.rmtree(node.data, ignore_errors=True)


def _rename(run: Run) -> None:
    node = run.rng.choice(run.cluster.nodes[1:])
    assert isinstance(node, LeveretNode)
    old = node.name
    base = f"m{node.number}" if node.base.startswith("n") else f"n{node.number}"
    with run.fault(f"{old} is stopped, renamed to {base}@{node.host} and started"):
        node.stop()
        other = next(one for one in run.cluster.nodes if one is not node)
        assert isinstance(other, LeveretNode)
        other.control("rename_cluster_node", old=old, new=f"{base}@{node.host}")
        node.base = base
        run.restart(node)
        run.cluster.await_whole()


def _rolling(run: Run) -> None:
    """Each node is restarted in an orderly way, as in an upgrade."""
    for node in run.cluster.nodes:
        with run.fault(f"{node.name} is stopped and started"):
            node.stop()
            run.restart(node)
            run.cluster.await_whole()
            run.cluster.await_in_sync(run.queues)
        run.wait(1.0, 10.0, short=0.5)


CASES = (
    Case(
        "join-forget", "a node joins, dies and is forgotten", _load_and_cut, _join_and_forget, 16, spare=1,
    ),
    Case("rename", "a node is renamed", _load, _rename, 16, only_leveret=True),
    Case("rolling-restart", "one node after the other is restarted", _load, _rolling, 17),
)  # fmt: skip
