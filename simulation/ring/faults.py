"""Faults in a world of one mirrored queue: crashes, cuts, disks, and operators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.metadata.model.view import forced

if TYPE_CHECKING:
    from simulation.ring.world import World

FAULTS: Final = (
    "crash", "bounce", "crash master", "bounce master", "bounce all", "part", "one way", "pair", "isolate master",
    "break", "slow disk", "full disk", "failed sync", "hand over", "add", "remove", "wipe", "damage", "kill promoted",
    "no majority", "stall master", "slow own disk", "reconnect",
)  # fmt: skip


class Faults:
    def __init__(self, world: World, faults: list[str]) -> None:
        self.world = world
        self.faults = faults

    def operate(self) -> None:
        world = self.world
        if not world.calm:
            world.at(world.wait(world.every), self.operate)
            self.fault(world.rng.choice(self.faults))

    def fault(self, what: str) -> None:
        world = self.world
        rng, names, master = world.rng, list(world.nodes), world.view.master
        living = [name for name in names if world.nodes[name].alive]
        dead = [name for name in names if name not in living]
        world.note("fault", what)
        if what in ("crash", "bounce") and living:
            (world.crash if what == "crash" else world.bounce)(rng.choice(living))
        elif what == "crash master":
            world.crash(master)
        elif what == "bounce master":
            world.bounce(master)
        elif what == "bounce all":
            for name in living:
                world.bounce(name)
        elif what == "restart" and dead:
            world.start(rng.choice(dead))
        elif what == "kill promoted":
            world.kill_next = True
        elif what == "break" and world.links:
            world.break_link(world.links[rng.choice(sorted(world.links))])
        elif what == "reconnect" and world.links:
            pair = rng.choice(sorted(world.links))
            if not world.links[pair].dead:
                world.connect(*pair)  # One end may see the new link long before the other.
        elif what == "stall master":
            world.stalled = {master}
            world.at(world.wait(12), world.stalled.discard, master)
        elif what == "no majority":
            world.cut_off = {rng.choice(names)}
        elif what == "heal":
            self.heal()
        elif not self.fault_of_network(what, names, master):
            self.fault_of_disk(what, names, master)

    def heal(self) -> None:
        world = self.world
        world.blocked, world.cut_off, world.stalled = set(), set(), set()
        for node in world.nodes.values():
            node.speed, node.full = 1.0, False
            if node.alive:
                node.syncing = False  # The pending write of a slow disk is done soon.
                world.sync(node)

    def fault_of_network(self, what: str, names: list[str], master: str) -> bool:
        world = self.world
        if what == "part":
            apart = set(world.rng.sample(names, world.rng.randint(1, len(names) - 1)))
        elif what == "isolate master":
            apart = {master}
        elif what in ("one way", "pair"):
            a, b = world.rng.sample(names, 2)
            world.blocked |= {(a, b)} if what == "one way" else {(a, b), (b, a)}
            return True
        else:
            return False
        world.blocked = {(a, b) for a in names for b in names if (a in apart) != (b in apart)}
        return True

    def fault_of_disk(self, what: str, names: list[str], master: str) -> None:
        world = self.world
        rng = world.rng
        name = rng.choice(names)
        node = world.nodes[name]
        if what == "slow disk":
            node.speed = rng.choice((5, 30))
        elif what == "slow own disk":
            world.nodes[master].speed = 60
        elif what == "full disk":
            node.full = True
        elif what == "failed sync":
            if node.member is not None and (len(world.view.in_sync) > 1 or world.view.disk_of(name) is None):
                node.member.on_disk_failed()
                world.act(node)
                world.at(world.wait(0.5), world.bounce, name)
        elif what in ("wipe", "damage"):
            # While one in-sync disk survives. A pending removal might make it the only one.
            intact = [other for other, disk in world.view.in_sync if other != name and world.nodes[other].disk == disk]
            if intact and not world.flying:
                world.tally("damages")
                world.damage(name, 0 if what == "wipe" else rng.randint(0, node.synced))
        else:
            self.command(what, names, master)

    def command(self, what: str, names: list[str], master: str) -> None:
        """Returns a command of an operator or a policy to the master."""
        world = self.world
        rng, node = world.rng, world.nodes[master]
        member = node.member
        if what == "force":
            self.force()
        if member is None or not member.serving or member.view is None or node.front is None:
            return
        ring = member.view.ring
        if what == "hand over":
            others = [name for name, _ in member.view.in_sync if name != master]
            if others:
                world.submit(node, [], [])
                if member.hand_over(rng.choice(others), hasty=member.ticks % 2 == 0):
                    world.tally("hand-overs")
        elif what == "add":
            others = [name for name in names if name not in ring]
            if others:
                member.change_ring((*ring, rng.choice(others)))
        elif what == "remove" and len(ring) > 2:
            gone = rng.choice([name for name in ring if name != master])
            member.change_ring(tuple(name for name in ring if name != gone))
        world.act(node)

    def force(self) -> None:
        world = self.world
        fit = [
            (node.member.tail.last_epoch, node.member.tail.end, name, node.member.complete)
            for name, node in world.nodes.items()
            if node.member is not None and node.member.view == world.view and name in world.view.ring
        ]
        fit = [one for one in fit if one[2] != world.view.master or world.calm]
        if fit:
            _, _, name, complete = max(fit)
            world.tally("forced")
            world.commit("", forced(world.view, name, world.nodes[name].disk, complete))
