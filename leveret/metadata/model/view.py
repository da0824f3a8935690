"""The view: who mirrors a queue, in which order, and whose copy counts.

A view is one small value in the cluster's metadata, and the only thing about a mirrored queue that consensus decides.
It changes by compare-and-set: a proposal carries the version after the one it was made from, and is refused if another
was committed meanwhile. `misfit` says what else a successor must obey; the metadata store asks it before it commits.

- `epoch` rises with every promotion. Blocks carry it, so that equal numbers of different masters are told apart. A
  queue that becomes mirrored begins with an epoch above that of any block it has, or ever had at another node: it may
  have been mirrored before.
- `version` rises as long as there is the queue, also where it has no view for a while: what was said about an earlier
  ring of the same queue, and copies that know of no other, can be told from what concerns the present one.
- `in_sync` names members *with their disks*, oldest first. A disk that was wiped, or lost what it had once synced, gets
  another id: a member that returns without its data must not be taken for the one that was trusted. So does one that
  left the ring and joined it again, because it forgets what it had when it hears that it left. Until it does, its words
  are those of a copy that is about to go: `is_of` tells them from the new one's.
- `lossy` is the epoch of the last forced promotion. Whoever has blocks of an older epoch knows that what it holds as
  confirmed may be gone.
- `void` is the epoch of the last forced promotion of a log that lacked messages. What such a log stores is not what its
  blocks add up to, so no older log has a beginning in common with it: the others start from nothing.

The *order* of a view is the ring: master, in-sync members by age, then the others. So an in-sync member's left
neighbour is in sync too, and nobody who is waited for stands behind somebody who is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

Disk = tuple[str, str]  # A member and the id of its disk.
JOINED: Final = "+"  # In that id: before the version of the view that a copy began with, unless that was the first.


class View(NamedTuple):
    version: int
    epoch: int
    master: str
    ring: tuple[str, ...]
    in_sync: tuple[Disk, ...]
    lossy: int = 0
    void: int = 0

    def order(self) -> tuple[str, ...]:
        names = dict.fromkeys((self.master, *(member for member, _ in self.in_sync), *self.ring))
        return tuple(names)

    def disk_of(self, member: str) -> str | None:
        """The disk that counts as in sync for this member."""
        for name, disk in self.in_sync:
            if name == member:
                return disk
        return None


def is_of(member: str, disk: str, joined: Mapping[str, int]) -> bool:
    """Whether a copy began with the view that its member joined with, as far as that is known."""
    began = disk.partition(JOINED)[2]
    return member not in joined or joined[member] == (int(began) if began else 1)


def forced(view: View, member: str, disk: str, complete: bool) -> View:
    """The view that makes a member master whatever it lacks. What others confirmed and it has not is lost."""
    epoch = view.epoch + 1
    void = view.void if complete else epoch
    return View(view.version + 1, epoch, member, view.ring, ((member, disk),), epoch, void)


def misfit(old: View | None, new: View, last: tuple[int, int] = (0, 0)) -> str | None:
    """Why `new` cannot follow `old` (None: a new group), or None. `last`: the version and the epoch with which the last
    group of the same queue ended."""
    members = [member for member, _ in new.in_sync]
    if len(set(members)) != len(members) or len(set(new.ring)) != len(new.ring):
        return "a member is named twice"
    if not set(members) <= set(new.ring) or new.master not in members:
        return "in-sync members must be in the ring, and the master among them"
    if old is None:
        # Of a new queue everybody holds all there is. One that becomes mirrored later is at its master alone.
        fits = new.epoch == 1 or (new.epoch > 1 and members == [new.master])
        if new.version == last[0] + 1 and new.epoch > last[1] and fits and not new.lossy and not new.void:
            return None
        begin = f"a group begins with version {last[0] + 1}, above epoch {last[1]}"
        return f"{begin}, and unless it is new and of epoch 1, with its master alone in sync"
    if new.version != old.version + 1:
        return f"made from version {new.version - 1}, which is not {old.version}"
    if new.epoch == old.epoch:
        same = (new.master, new.lossy, new.void) == (old.master, old.lossy, old.void)
        return None if same else "the master changes with the epoch"
    if new.epoch != old.epoch + 1:
        return "epochs rise by one"
    if new.lossy == new.epoch:
        if new.void not in (old.void, new.epoch) or members != [new.master]:
            return "after a forced promotion nobody else is in sync"
        return None
    if new.lossy != old.lossy or new.void != old.void:
        return "a forced promotion is not undone"
    if new.master not in dict(old.in_sync) or not set(new.in_sync) <= set(old.in_sync):
        return "only an in-sync member is promoted, and nobody joins with it"
    return None


def without(view: View, node: str) -> View | None:
    """The view when a node is gone for good; None if it had the only copy that counts."""
    in_sync = tuple(disk for disk in view.in_sync if disk[0] != node)
    if not in_sync:
        return None
    ring = tuple(name for name in view.ring if name != node)
    fewer = view._replace(version=view.version + 1, ring=ring, in_sync=in_sync)
    return fewer if view.master != node else fewer._replace(epoch=view.epoch + 1, master=in_sync[0][0])


def renamed(view: View, old: str, new: str) -> View:
    """The view when a node has another name."""

    def name(one: str) -> str:
        return new if one == old else one

    in_sync = tuple((name(member), disk) for member, disk in view.in_sync)
    ring = tuple(name(member) for member in view.ring)
    return view._replace(version=view.version + 1, master=name(view.master), ring=ring, in_sync=in_sync)
