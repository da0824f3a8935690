"""The master of a ring: what is confirmed, and which members are waited for.

**Confirm.** A block is confirmed when it is on the disk of every member that may be promoted: those of the committed
in-sync set, those whose addition was proposed and whose outcome is unknown (`maybe`: they may be in it already), and
those for which confirms wait while they join. A member whose *removal* was only proposed still counts. The master's own
copy counts like any other, when it is synced. And nothing is confirmed before the start block is: older blocks that the
master before did not confirm are confirmed with it, because only then every in-sync member has a log that cannot be
taken for the old one. So an older master lacks the acknowledgement of at least one member that is in the new epoch.

Numbers are kept per member, and the newest report of each counts, whichever way it came. A minimum alone would not say
which member is behind, nor over which in-sync set it was taken.

**A new group** that was made while the processes of all its members ran has nothing to agree on: no member has a block,
and each knows that of the others. Its master appends the start block only before the first block of the queue, or when
anything else happens in the group: another view, a report. Until then the group costs no disk, no frames and no ticks.

**Removing.** A member that holds up a confirm without progress is removed from the in-sync set by a committed view, and
only then the master confirms without it. A queue at rest waits for no member, so the loss of one does not matter: it
has all that is confirmed, and may well be promoted when it is back.

**Joining.** A member is added when it lacks nothing, has the start block, and has all confirmed blocks on its disk.
Under load it would never reach the end of the log; so once it has what the log had two ticks ago, confirms wait for it,
for a limited time.

**Handing over.** The master takes no more blocks, waits until all members have all blocks on disk, and proposes the
other with the next epoch. Giving up is safe at any time: until the new epoch has its start block on every in-sync disk,
the rules of this one hold. A master whose own disk is the only slow one asks for a hand-over by itself, and then does
not wait for its own copy: the others have all blocks.

A *hasty* hand-over waits only until all members that count have received all blocks: the nodes agree while the disks
write, so publishers wait for one sync less. Blocks that are not confirmed by then are confirmed by the next master,
with its start block, which follows them in every log. The former master learns that as a mirror. A master that leaves
the ring or stops at once might not learn it, so its hand-over is not hasty. If the next master dies before, it is as if
the former had died.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.base.shared_values import NO_DICT, NO_SET, shared
from leveret.metadata.model.view import Disk, View, forced, is_of
from leveret.replication.packed_block import start_block
from leveret.replication.ring_frames import NEWBORN_PATIENCE, Confirmed, Entry, HandOverDue, Pulse, Resumed, Started

if TYPE_CHECKING:
    from leveret.replication.member import Member
    from leveret.storage.format.queue_block import Block

_NOBODY = 1 << 62


class Master:
    """The state of the master, for one epoch."""

    __slots__ = (
        "member", "view", "epoch", "start_number", "table", "told_order", "maybe", "joining", "not_again", "marks",
        "stuck", "handing", "hasty", "own_late", "opened", "_others", "_rested", "_told", "_needed",
    )  # fmt: skip

    def __init__(self, member: Member, view: View) -> None:
        self.member = member
        self.view = view
        self.epoch = view.epoch
        self.start_number = member.tail.end + 1
        self.table: dict[str, Entry] = NO_DICT  # The last report of each other member, in this epoch.
        self.told_order: dict[str, str] = NO_DICT  # Members, with their disk ids, that know the operator's order.
        self.maybe: frozenset[Disk] = NO_SET
        self.joining: dict[Disk, int] = NO_DICT  # By joining member: ticks for which confirms have waited.
        self.not_again: dict[Disk, int] = NO_DICT  # Members waited for in vain, and until when they are not again.
        self.marks: tuple[int, ...] = (self.start_number,)  # The ends of the log at the last ticks.
        self.stuck: dict[Disk, tuple[int, int, int]] = NO_DICT  # Received, durable, ticks without a change.
        self.handing: tuple[str, int] | None = None  # The next master, and the time limit.
        self.hasty = False  # The hand-over does not wait for disks.
        self.own_late = 0  # Ticks for which only this node's disk has held up confirms.
        self.opened = False  # The log has the start block.
        self._others = 0  # The block that all others had on disk at the last tick.
        self._rested = 0  # The end of the log when all that count last had all of it; then `stuck` is empty.
        self._told = (0, 0)
        self._needed: tuple[Disk, ...] = ()  # The other members that count.
        self._recount()

    def start(self) -> None:
        member = self.member
        tail = member.tail.upto(member.confirmed + 1, member.tail.end)
        works = self._is_new and member.majority  # The others assume that the master of a new group does.
        if not (works and self._may_rest()):
            self._open(tail)
        member.do(Started(self.epoch, self.start_number, tail, self.view.lossy == self.epoch))
        if not works:
            self.pulse_all()

    @property
    def _is_new(self) -> bool:
        return self.member.born and self.view.version == 1

    def _may_rest(self) -> bool:
        """Return whether the start block can wait for the first block of the queue: nothing has been in it, and nobody
        else has anything to report."""
        member, view = self.member, self.view
        return member.is_newborn and not member.messages and 1 < len(view.ring) == len(view.in_sync)

    def open(self) -> None:
        """Append the start block, unless that is done."""
        if not self.opened:
            self._open(())

    def _open(self, tail: tuple[Block, ...]) -> None:
        self.opened = True
        member = self.member
        lost = [] if member.complete else member.lost(member.group)
        marks = None if member.start_marks is None else member.start_marks(member.group, member.tail.last_epoch, tail)
        member.append((start_block(member.group, self.epoch, self.start_number, lost, marks),))
        if not member.complete:  # It was promoted by force: all members must agree on what is left of the queue.
            member.become_complete(self.start_number)

    @property
    def wants_tick(self) -> bool:
        if not self.opened:
            return self.handing is not None
        end = self.member.tail.end
        waits = self.member.confirmed < end or self.handing is not None or bool(self.joining or self.maybe)
        return waits or self.marks[0] < end or self._lags() or self._is_unsettled()

    def report_of(self, name: str) -> Entry | None:
        """Return the last report of a member. One that is in sync by the first view of a new group need not report that
        it has no block."""
        entry, disk = self.table.get(name), self.view.disk_of(name)
        if entry is None and disk is not None and self._is_new:
            return Entry(disk, 0, 0, 0, True)
        return entry

    def lowest(self) -> int:
        """Return the block that every other connected member has on disk. Others will have to be filled anyway."""
        found = _NOBODY
        for name in self.view.ring:
            if name in self.member.links:
                entry = self.table.get(name)
                found = min(found, entry.durable if entry is not None else 0)
        return found

    # -- events ----------------------------------------------------------------------

    def on_view(self, view: View) -> None:
        """Note a newer view of this epoch: all earlier proposals are decided."""
        self.view = view
        if view.version > 1:
            self.open()
        self.maybe = NO_SET
        ring, in_sync, joined = set(view.ring), set(view.in_sync), self.member.joined
        left = {key: age for key, age in self.joining.items() if key not in in_sync and key[0] in ring}
        self.joining = left or NO_DICT
        self.table = {
            name: entry for name, entry in self.table.items() if name in ring and is_of(name, entry.disk, joined)
        }
        if self.handing is not None and view.disk_of(self.handing[0]) is None:
            self._give_up()
        self._recount()

    def on_entry(self, name: str, entry: Entry) -> None:
        old = self.table.get(name)
        if name not in self.view.ring or name == self.member.me or (old is not None and entry.stamp <= old.stamp):
            return
        if (old is not None and entry.disk == old.disk) or is_of(name, entry.disk, self.member.joined):
            self.open()
            self.table = self.table or {}
            self.table[name] = entry  # Another copy has left, does not know it yet, and will be deleted.
            if not entry.complete and self.member.ordered is not None and self.told_order.get(name) != entry.disk:
                # It is new, or was restarted since the order.
                self.told_order = {**self.told_order, name: entry.disk}
                self.pulse(name)

    def on_peer_down(self, peer: str) -> None:
        if peer in self.told_order:
            del self.told_order[peer]
        if self.view.disk_of(peer) is None:
            self._forget_report(peer)  # It must report again before it is waited for.

    def _forget_report(self, peer: str) -> None:
        if peer in self.table:
            del self.table[peer]

    def on_leave(self, peer: str) -> None:
        self.open()
        if peer != self.member.me and peer in self.view.ring:
            self._forget_report(peer)
            ring = tuple(name for name in self.view.ring if name != peer)
            self._propose(ring=ring, in_sync=tuple(key for key in self.view.in_sync if key[0] != peer))

    def on_tick(self) -> None:
        member = self.member
        self.marks = (*self.marks[-2:], member.tail.end)
        for key in list(self.joining):
            self.joining[key] += 1
            if self.joining[key] > member.options.patience and key not in self.maybe:
                del self.joining[key]
                self.not_again = {**self.not_again, key: member.ticks + 4 * member.options.patience}
                self._recount()
        self._tell_lagging()
        bad = self._find_stuck()
        if bad and member.proposal_age is None:
            self._propose(in_sync=tuple(key for key in self.view.in_sync if key not in bad))
        self._watch_own_disk()
        if self.handing is not None and member.ticks > self.handing[1]:
            self._give_up()
        self.count_reports()
        if self.maybe and member.proposal_age is None:
            # The member to be added cannot be proposed again now, but may have been added. Proposing the present view
            # again, with the next version, settles that: either it is committed, or the addition was.
            self._propose()

    # -- confirming --------------------------------------------------------------------

    def _recount(self) -> None:
        needed = set(self.view.in_sync) | self.maybe | set(self.joining)
        self._needed = shared(tuple(sorted(key for key in needed if key[0] != self.member.me)))

    def _entry(self, key: Disk) -> Entry:
        entry = self.table.get(key[0])
        return entry if entry is not None and entry.disk == key[1] else Entry(key[1], 0, 0, 0, False)

    def _have(self) -> tuple[int, int]:
        """Return the blocks that all other members that count have on disk, and have received."""
        durable = received = _NOBODY
        table = self.table
        for name, disk in self._needed:
            entry = table.get(name)
            if entry is None or entry.disk != disk:
                return 0, 0
            if entry.durable < durable:
                durable = entry.durable
            if entry.received < received:
                received = entry.received
        return durable, received

    def count_reports(self) -> None:
        """Confirm, add or remove members after a report."""
        member = self.member
        durable, received = self._have()
        durable = min(durable, member.own_durable)
        if durable >= self.start_number:
            member.confirm_to(durable)
        if member.options.asynchronous:
            told = (member.own_durable, member.tail.end)
        else:
            told = (member.confirmed, max(member.confirmed, min(received, member.tail.end)))
        if told != self._told and (member.confirmed >= self.start_number or member.options.asynchronous):
            self._told = told
            member.do(Confirmed(self.epoch, *told))
        if len(self.view.ring) > len(self.view.in_sync):
            self._add_members()
        if self.handing is not None:
            self._hand()

    def _add_members(self) -> None:
        member = self.member
        for name in self.view.ring:
            entry = self.table.get(name)
            if entry is None or (name, entry.disk) in self.view.in_sync or (name, entry.disk) in self.joining:
                continue
            if not entry.complete or entry.durable < self.start_number or entry.received < self.marks[0]:
                continue
            if self.not_again.get((name, entry.disk), 0) <= member.ticks:
                self.joining = {**self.joining, (name, entry.disk): 0}
                self._recount()
        floor = max(member.confirmed, self.start_number)
        ready = [key for key in self.joining if self._entry(key).complete and self._entry(key).durable >= floor]
        if ready and member.proposal_age is None:
            self.maybe = self.maybe.union(ready)
            self._recount()
            names = {name for name, _ in ready}
            self._propose(in_sync=(*(key for key in self.view.in_sync if key[0] not in names), *ready))

    # -- slow members ------------------------------------------------------------------

    def _find_stuck(self) -> list[Disk]:
        """Return the in-sync members that lack blocks and have made no progress for too long."""
        member, options = self.member, self.member.options
        bad = []
        self.stuck = self.stuck or {}
        lacks_any = False
        for key in self.view.in_sync:
            name, disk = key
            if name == member.me:
                continue
            entry = self._entry(key)
            received, durable, age = self.stuck.get(key, (self._rested, self._rested, 0))
            if entry.durable >= member.tail.end or entry.durable > durable or entry.received > received:
                age = 0
            else:
                age += 1
            self.stuck[key] = (entry.received, entry.durable, age)
            lacks_any = lacks_any or entry.durable < member.tail.end
            other = self.table.get(name)
            wiped = other is not None and other.disk != disk
            if age > (options.slow if name in member.links and not wiped else options.unlinked):
                bad.append(key)
        if not lacks_any:
            self.stuck, self._rested = NO_DICT, member.tail.end  # The queue may rest for long.
        return bad

    def _watch_own_disk(self) -> None:
        member = self.member
        durable = member.own_durable
        # Late by a whole tick, not just because one sync took a little longer.
        self.own_late = self.own_late + 1 if durable < self._others else 0
        self._others = min(self._have()[0], member.tail.end)
        if self.own_late > member.options.own_slow and self.handing is None:
            self.own_late = 1
            fit = [name for name, disk in self.view.in_sync if name != member.me and name in member.links]
            if fit and member.proposal_age is None:
                member.do(HandOverDue(fit[0]))

    def _lags(self) -> bool:
        return any(
            name not in self.table or self.table[name].received < self.marks[0]
            for name in self.view.ring
            if name != self.member.me and name in self.member.links
        )

    def _is_unsettled(self) -> bool:
        """Return whether a member wants to join, or has come back with another disk id than the one in sync."""
        for name, entry in self.table.items():
            disk = self.view.disk_of(name)
            if disk != entry.disk and (entry.complete or disk is not None):
                return True
        return False

    def _tell_lagging(self) -> None:
        """Tell members that get no blocks: their left neighbour may have none, which they cannot know."""
        member = self.member
        retry = member.options.retry
        if self.start_number == 1 and not member.confirmed and member.ticks < NEWBORN_PATIENCE * retry:
            return  # The group is just being created everywhere.
        if member.ticks % retry == 0 and self._lags():
            for name in self.view.ring:
                if name not in self.table or self.table[name].received < self.marks[0]:
                    self.pulse(name)

    def pulse(self, to: str) -> None:
        member = self.member
        member.send(to, Pulse(self.epoch, member.majority, member.tail.end, member.ordered))

    def pulse_all(self) -> None:
        for name in self.view.ring:
            self.pulse(name)

    # -- changing the view ---------------------------------------------------------------

    def _propose(
        self,
        *,
        epoch: int | None = None,
        master: str | None = None,
        ring: tuple[str, ...] | None = None,
        in_sync: tuple[Disk, ...] | None = None,
    ) -> None:
        view = self.view
        self.member.propose(
            View(
                view.version + 1,
                epoch or view.epoch,
                master or view.master,
                view.ring if ring is None else ring,
                view.in_sync if in_sync is None else in_sync,
                view.lossy,
                view.void,
            )
        )

    def change_ring(self, ring: tuple[str, ...]) -> bool:
        if self.member.proposal_age is not None or self.member.me not in ring:
            return False
        self._propose(ring=ring, in_sync=tuple(key for key in self.view.in_sync if key[0] in ring))
        return True

    def hand_over(self, to: str, hasty: bool) -> bool:
        if to == self.member.me or self.view.disk_of(to) is None:
            return False
        self.hasty = hasty
        self.handing = (to, self.member.ticks + 4 * self.member.options.retry)
        self.member.report()
        return True

    def step_down(self) -> bool:
        """Make the best member that is not in sync master, because this one stops. Return False if there is none."""
        member, view = self.member, self.view
        if member.proposal_age is not None or any(name in member.links for name, _ in view.in_sync):
            return False
        fit = [(entry.complete, entry.received, name) for name, entry in self.table.items() if name in member.links]
        if not fit:
            return False
        best = max(fit)[2]
        member.propose(forced(view, best, self.table[best].disk, self.table[best].complete))
        return True

    def has_no_reports(self) -> bool:
        """Return whether no other member has reported yet, although one is connected."""
        links = self.member.links
        others = [name for name in self.view.ring if name in links]
        return bool(others) and not any(name in self.table for name in others)

    def _hand(self) -> None:
        assert self.handing is not None
        member, to = self.member, self.handing[0]
        if member.proposal_age is not None or to not in member.links or not member.majority:
            return
        if self._is_drained():
            self._propose(epoch=self.epoch + 1, master=to)

    def _is_drained(self) -> bool:
        """Return whether the next master has all blocks that it must have."""
        member, end = self.member, self.member.tail.end
        durable, received = self._have()
        if self.hasty:
            return received >= end
        return durable >= end and (member.confirmed == end or self.own_late > 0)

    def _give_up(self) -> None:
        self.handing = None
        self.member.do(Resumed(self.epoch))
