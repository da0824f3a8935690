"""How a node takes the data folder of a dead node on the same machine.

The seed decides which nodes see each other's folders, and how long after a death: see `scenarios.paired`. It also
decides whether a folder has no working lock, and can be taken while its node lives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.node.system.data_folder import Place

if TYPE_CHECKING:
    from leveret.storage.segments.disk import Disk
    from simulation.core.loop import NodeLoop
    from simulation.core.machine import Machine


class BorrowedFolder:
    """The folder of a dead node, while another one holds its lock."""

    def __init__(self, machine: Machine, by: NodeLoop) -> None:
        self.disk: Disk = machine.disk
        self.machine = machine
        self.by = by

    @property
    def is_over(self) -> bool:
        return not self.by.alive

    def release(self) -> None:
        if self.machine.borrowed is self:
            self.machine.borrowed = None


def place_of(machine: Machine) -> Place | None:
    proofs = machine.world.plan.proofs()
    return Place("one machine", machine.name, 0, machine.lives) if proofs.is_visible or proofs.is_unlocked else None


def find(machine: Machine, place: Place) -> Machine | None:
    """Returns the machine with that folder."""
    return next((one for one in machine.world.machines if one.name == place.folder), None)


def is_held(machine: Machine, place: Place) -> bool:
    other = find(machine, place)
    is_seen = other is not None and other.alive and other.lives == place.inode
    return is_seen and machine.world.plan.proofs().is_visible


def take(machine: Machine, loop: NodeLoop, place: Place) -> BorrowedFolder | None:
    """Takes the folder. A power failure hits both nodes of a machine, so a disk that has lost something cannot be
    taken."""
    other = find(machine, place)
    if other is not None and machine.world.plan.proofs().is_unlocked:
        machine.world.note(machine.name, f"takes the folder of {other.name}, which nobody locks")
        return BorrowedFolder(other, loop)
    if other is None or other.alive or other.borrowed is not None or other.lives != place.inode or other.is_dark:
        return None
    if loop.scheduler.now < other.died_at + machine.world.plan.proofs().delay_s:
        return None
    machine.world.note(machine.name, f"takes the folder of {other.name}")
    other.borrowed = BorrowedFolder(other, loop)
    return other.borrowed
