"""Faults of a machine's resources: stalled disks, no memory or descriptors, clocks that jump, damaged files.

In a run with `--ailing`, all of these happen beside the faults of the other runs, for as long as half a minute. The
checks are those of every run: nothing confirmed is lost, no client waits for ever, all nodes serve when everything is
healed.

    stall      no request to a disk is done before the time is up. (`slow_disk` delays each by a second.)
    press      a node's process is too large: publishers of all nodes are blocked
    cramp      a node has hardly any descriptors: new connections are refused
    leap       a clock jumps by up to a day
    forsake    a node dies, and its metadata is found damaged. An operator runs the code of `leveret recover`, and
               starts it: it must come back as another voter, and with every message that it had

Damage to stored messages is not among them: what may be lost depends on the very bytes. It is tested where the bytes
are known, in `test_damage.py` and `test_mirror_damage.py` of `tests/unit/storage`, and with rings in `simulation.ring`.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Final

from leveret.node.cluster import repair
from leveret.node.system.data_folder import JOIN_FILE, METADATA, REPLACE_FILE, write_note

if TYPE_CHECKING:
    from simulation.core.machine import Machine
    from simulation.world import World

AILING_FAULTS: Final = (("stall", 12), ("press", 4), ("cramp", 3), ("leap", 3), ("forsake", 7))
DAY_MS: Final = 86_400_000
TOO_MUCH: Final = 1 << 40
TOO_FEW: Final = 101


def draw_ailing(rng: random.Random, what: str, node: int) -> dict[str, Any]:
    """Draws the arguments of a step."""
    if what == "leap":
        return {"node": node, "ms": rng.choice((-DAY_MS, -60_000, 60_000, DAY_MS))}
    if what == "forsake":
        return {
            "node": node,
            "power": rng.random() < 0.5,
            "seconds": round(rng.choice((0.5, 5.0)) * rng.random(), 3),
        }
    return {"node": node, "seconds": round(rng.choice((2.0, 6.0, 15.0, 30.0)) * (0.5 + rng.random()), 3)}


class ResourceFaults:
    """Takes memory, descriptors, time and metadata from nodes."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.recovered = 0

    def fault_stall(self, node: int, seconds: float) -> None:
        self.world.everybody[node].stalled_until = self.world.scheduler.now + seconds
        self.world.ledger.on_slow(self.world.everybody[node].name, self.world.scheduler.now + seconds)

    def fault_press(self, node: int, seconds: float) -> None:
        machine = self.world.machines[node]
        machine.memory_used = TOO_MUCH
        self.world.scheduler.after(seconds, machine.relieve)

    def fault_cramp(self, node: int, seconds: float) -> None:
        machine = self.world.machines[node]
        machine.descriptors_max = TOO_FEW
        self.world.scheduler.after(seconds, machine.relieve)

    def fault_leap(self, node: int, ms: int) -> None:
        self.world.fault_skew(node, ms)

    def fault_forsake(self, node: int, power: bool, seconds: float) -> None:
        """Damages a node's metadata, if a majority of the others can admit it again."""
        machine = self.world.machines[node]
        if (
            self.world.wiping is not None
            or len(self.world.machines) < 3
            or not self.world.all_serve()
            or not self.world.is_dispensable(machine)
            or self._alone_in_sync(machine)
        ):
            return
        assert machine.server is not None
        former = machine.server.uuid
        machine.kill(power)
        disk = machine.disk
        disk.flip(f"{METADATA}/identity", 3, 0)
        if repair.check_metadata(disk) is None:
            self.world.fail(f"{machine.name} does not see that its metadata is damaged")
        if self.world.mirrors is not None:
            self.world.mirrors.on_forsaken(former)
        addresses = repair.others_of(repair.find_members(disk), former)
        write_note(disk, JOIN_FILE, " ".join(addresses))
        write_note(disk, REPLACE_FILE, former)
        repair.set_metadata_aside(disk)
        self.recovered += 1
        self.world.start_later(machine, seconds)

    def _alone_in_sync(self, machine: Machine) -> bool:
        """Returns whether a queue has its only copy in sync there, and would need an operator to choose a master."""
        if self.world.mirrors is None or machine.server is None:
            return False
        views = self.world.mirrors.views.values()
        return any({name for name, _ in view.in_sync} == {machine.node_name} for view in views)
