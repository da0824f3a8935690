"""The view of a mirrored queue: its master, its ring, and the copies in sync.

A view is one small value in the cluster's metadata, and the only thing about a mirrored queue that consensus decides.
It changes by compare-and-set: a proposal carries the version after the one it was made from, and is refused if another
was committed meanwhile. `misfit` has the other rules for a successor; the metadata store checks them.

- `epoch` rises with every promotion. Blocks carry it, so that blocks of the same number from different masters can be
  told apart. A queue that becomes mirrored starts with an epoch above that of any block it has, or ever had on another
  node: it may have been mirrored before.
- `version` rises during the whole life of the queue, also while it has no view: so messages about an earlier ring of
  the queue, and copies that belong to one, can be told apart from those of the present ring.
- `in_sync` names members *with their disk ids*, oldest first. A disk that was wiped, or lost data it had synced, gets
  another id: a member that returns without its data must not be taken for the one that was trusted. So does a member
  that left the ring and joined it again, because it deletes its copy when it learns that it left. Messages that it
  sends before that come from the old copy: `is_of` tells them apart from those of the new one.
- `lossy` is the epoch of the last forced promotion. A member with blocks of an older epoch knows that messages which it
  holds as confirmed may be lost.
- `void` is the epoch of the last forced promotion of a copy that lacked messages. Such a copy does not contain what its
  blocks add up to, so no older copy has a beginning in common with it: the other members start from nothing.

The *order* of a view is the ring: master, in-sync members by age, then the others. So an in-sync member's left
neighbour is in sync too, and confirms never wait for blocks that pass through a member that is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

Disk = tuple[str, str]  # A member and its disk id.
JOINED: Final = "+"  # Separates, in a disk id, the version of the view with which the copy started, unless that was 1.


class View(NamedTuple):
    """The master, the ring and the copies in sync of a mirrored queue."""

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
        """Return the disk id with which this member is in sync."""
        for name, disk in self.in_sync:
            if name == member:
                return disk
        return None


def first_joined(view: View | None) -> dict[str, int]:
    """Return `QueueSpec.joined` of a new queue with this view. Queues with the same ring share it."""
    return _all_joined(() if view is None else view.ring)


@lru_cache(maxsize=1_024)
def _all_joined(ring: tuple[str, ...]) -> dict[str, int]:
    return dict.fromkeys(ring, 1)


def is_of(member: str, disk: str, joined: Mapping[str, int]) -> bool:
    """Return whether a copy started with the view with which its member joined, as far as that is known."""
    began = disk.partition(JOINED)[2]
    return member not in joined or joined[member] == (int(began) if began else 1)


def forced(view: View, member: str, disk: str, complete: bool) -> View:
    """Return the view that makes a member master although it may lack confirmed messages; those are lost."""
    epoch = view.epoch + 1
    void = view.void if complete else epoch
    return View(view.version + 1, epoch, member, view.ring, ((member, disk),), epoch, void)


def misfit(old: View | None, new: View, last: tuple[int, int] = (0, 0)) -> str | None:
    """Return why `new` cannot follow `old` (None: the queue was not mirrored); None if it can. `last`: the last version
    and epoch of the time when the queue was mirrored before."""
    members = [member for member, _ in new.in_sync]
    if len(set(members)) != len(members) or len(set(new.ring)) != len(new.ring):
        return "a member is named twice"
    if not set(members) <= set(new.ring) or new.master not in members:
        return "in-sync members must be in the ring, and the master among them"
    if old is None:
        # A new queue is empty, so all copies are in sync. A queue that becomes mirrored later is on its master only.
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
    """Return the view without a node that has left for good; None if it had the only copy in sync."""
    in_sync = tuple(disk for disk in view.in_sync if disk[0] != node)
    if not in_sync:
        return None
    ring = tuple(name for name in view.ring if name != node)
    fewer = view._replace(version=view.version + 1, ring=ring, in_sync=in_sync)
    return fewer if view.master != node else fewer._replace(epoch=view.epoch + 1, master=in_sync[0][0])


def renamed(view: View, old: str, new: str) -> View:
    """Return the view with another name for a node."""

    def name(one: str) -> str:
        return new if one == old else one

    in_sync = tuple((name(member), disk) for member, disk in view.in_sync)
    ring = tuple(name(member) for member in view.ring)
    return view._replace(version=view.version + 1, master=name(view.master), ring=ring, in_sync=in_sync)
