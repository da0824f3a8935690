"""Power that fails, and disks that stall, are full and fail to sync."""

from __future__ import annotations

from faults.cases.case import Case
from faults.cases.run import Run
from faults.machines.cluster import TICK_S
from faults.machines.leveret_node import LeveretNode
from faults.machines.node import Node, NodeError, until


def _load(run: Run) -> None:
    """Disks write without a pause, so that there is something to forget at any moment."""
    _store_entries(run, with_files=True)
    run.add_queues(publishers=2, window=run.short(20, 100), pause_s=0.0, size=300)


def _strict_load(run: Run) -> None:
    """Only what POSIX promises is kept: an entry of a folder that was not synced is gone, with its synced file."""
    _load(run)
    _store_entries(run, with_files=False)


def _store_entries(run: Run, with_files: bool) -> None:
    for node in run.cluster.nodes:
        if node.disk is not None:
            node.disk("entries", with_files=with_files)


def _cut_power(run: Run, nodes: list[Node]) -> None:
    """The power of all fails at the same moment; each disk keeps none, some or most of what was not synced."""
    for node in nodes:
        node.kill()
    for node in nodes:
        keep = run.rng.choice((0.0, 0.0, 0.5, 0.9))
        unsynced = node.lose_power(run.rng.randrange(1 << 30), keep)
        run.note(f"  {node.name}: {unsynced} bytes were not synced, {keep:.0%} of their sectors are kept")


def _power(name: str, count: int, what: str, is_strict: bool = False) -> Case:
    def strike(run: Run) -> None:
        nodes = run.cluster.nodes
        victims = [run.master()] if count == 1 else run.rng.sample(nodes, min(count, len(nodes)))
        run.wait(0.5, 1.0, 2.0)
        with run.fault(f"power fails at {', '.join(node.name for node in victims)}"):
            _cut_power(run, victims)
            run.wait(0.0, 1.0, 6.0, short=1.0)
            run.restart(*victims)

    load = _strict_load if is_strict else _load
    return Case(name, f"power failure {what}", load, strike, 6, disks=True)


def _power_and_pause(run: Run) -> None:
    one, other = run.rng.sample(run.cluster.nodes, 2)
    with run.fault(f"power fails at {one.name} while {other.name} stands still"):
        other.freeze()
        run.wait(0.1, 1.0, TICK_S + 1.0)
        _cut_power(run, [one])
        run.wait(0.5, TICK_S + 1.0)
        one.spawn()
        run.wait(0.5, 2.0)
        other.thaw()
        run.restart(one)


def _stall(run: Run) -> None:
    node = run.master()
    assert node.disk is not None
    with run.fault(f"the disk of {node.name}, a master, stalls"):
        node.disk("stall")
        run.wait(5.0, 20.0, short=8.0)
        node.disk("go on")


def _full(run: Run) -> None:
    node = run.master()
    assert node.disk is not None
    with run.fault(f"the disk of {node.name}, a master, is full"):
        node.disk("full")
        run.wait(5.0, 15.0, short=4.0)
        if run.rng.random() < 0.3:
            run.note(f"  and {node.name} is killed meanwhile")
            node.kill()
        node.disk("mend")
        try:
            run.restart(node)
        except NodeError:
            if isinstance(node, LeveretNode) or node.is_running:
                raise
            run.note(f"  {node.name} has ended by itself, and is started again")
            run.restart(node)


def _failed_sync(run: Run) -> None:
    """A node must not confirm after a failed sync, even if the next one succeeds."""
    node = run.master()
    assert node.disk is not None
    with run.fault(f"a sync of {node.name}, a master, fails with EIO; later ones succeed and the bytes are gone"):
        node.disk("fail")
        try:
            until(lambda: not node.is_running, f"{node.name} ends", 5.0)
        except NodeError:
            run.note(f"  {node.name} goes on")
        node.disk("mend")
        run.wait(0.5, 3.0, short=0.5)
        _cut_power(run, [node])
        run.restart(node)


CASES = (
    _power("power-one", 1, "of a master: unsynced writes are lost or torn"),
    _power("power-two", 2, "of two nodes: the same"),
    _power("power-all", 3, "of all nodes: the same"),
    _power("power-strict", 3, "of all nodes, and entries of folders that were not synced are lost too", True),
    Case("power-and-pause", "power failure of one node, another stands still", _load, _power_and_pause, 7, disks=True),
    Case("disk-stalls", "the disk of a master stalls", _load, _stall, 13, disks=True),
    Case("disk-full", "the disk of a master is full, also when it is killed", _load, _full, 13, disks=True),
    Case("failed-sync", "a sync fails (EIO), later ones do not, then power fails", _load, _failed_sync, 13, disks=True),
)
