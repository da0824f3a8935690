"""The election of the next master.

An in-sync member that no longer hears its master asks the others of the in-sync set for their state. If one of them
hears a working master, nothing happens: a single broken link deposes no master. Otherwise the best of those that
answered is proposed with the next epoch: one that reaches the majority, because no other could serve; then the highest
last epoch, then the longest log, then the oldest. All members in sync have all that is confirmed, so the choice
concerns only what is *not* confirmed yet, and transient messages. Several may propose at once; compare-and-set takes
one.

**Hearing a master.** There are no heartbeats here: the links between nodes have their own, and a silent or closed link
is reported as down. A member hears its master if their link is up and the master itself has said, since the link came
up, that it leads this epoch and reaches the majority (`Pulse`, or its `Standing`). That a third member hears it only
prevents an election, and does not count as hearing: otherwise two members that lost their master could assure each
other for ever.

A poll contains the asker's own state. So when a master dies, the members, each of which notices that by itself, know
each other's state after one frame, whichever noticed first.

**No member in sync.** Then the queue is down until one returns, or an operator forces the promotion of another. With
`promote_always` the others do that by themselves after a while: they ask each other as members in sync do, and the best
of them, complete copies first, forces its own promotion. Messages that only the lost ones had are lost then.

**Restarted masters.** A process that starts and is named master did not lead: an earlier process did, and may have lost
blocks that it had sent. It polls like the others, saying that there is no master, and may be chosen again, with a new
epoch. A master whose disk was wiped is not in sync, and cannot be chosen; it says that there is no master, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.base.shared_values import NO_SET
from leveret.metadata.model.view import View, forced
from leveret.replication.ring_frames import Poll, Standing

if TYPE_CHECKING:
    from leveret.replication.member import Member


class MasterWatch:
    """Watches whether the master is there, and takes part in the election of the next one."""

    __slots__ = ("member", "heard", "age", "standings", "poll_age", "left")

    def __init__(self, member: Member) -> None:
        self.member = member
        self.heard = False
        self.age = 0  # Ticks without hearing the master.
        self.standings: dict[str, Standing] | None = None  # By member: its state; None: no poll is under way.
        self.poll_age = 0
        # Members that have left in this epoch: their disks have failed, or lost something.
        self.left: frozenset[str] = NO_SET

    @property
    def hears(self) -> bool:
        member = self.member
        if member.master is not None:
            return member.majority
        return self.heard and member.view is not None and member.view.master in member.links

    @property
    def is_vacant(self) -> bool:
        member = self.member
        return member.master is None and member.view is not None and member.view.master == member.me

    @property
    def is_open(self) -> bool:
        return not self.hears and (self.member.in_sync or self.member.options.promote_always)

    def standing(self) -> Standing:
        member = self.member
        assert member.view is not None
        tail = member.tail
        return Standing(
            member.view.version, member.disk, tail.last_epoch, tail.end, self.hears, member.complete, member.majority
        )

    # -- events ----------------------------------------------------------------------

    def on_view(self, is_new_epoch: bool) -> None:
        self.standings = None
        if is_new_epoch:
            self.heard, self.age = self.member.is_newborn, 0  # Who creates a group leads it, and says only otherwise.
            self.left = NO_SET
        elif self.left and self.member.view is not None:
            self.left = self.left.intersection(self.member.view.ring)  # If it returns to the ring, it is another copy.

    def on_peer_up(self, peer: str) -> None:
        if self.standings is not None and peer in dict(self._in_sync()):
            self._ask(peer)

    def on_peer_down(self, peer: str) -> None:
        view = self.member.view
        assert view is not None
        if self.standings is not None:
            self.standings.pop(peer, None)
        if peer == view.master:
            self.heard = False
            self.check(at_once=True)
        elif self.standings is not None:
            self._decide()

    def on_pulse(self, working: bool) -> None:
        self.heard, self.age = working, 0
        if working:
            self.standings = None
        else:
            self.check(at_once=True)

    def on_leave(self, peer: str) -> None:
        view = self.member.view
        assert view is not None
        self.left |= {peer}
        if peer == view.master:
            self.heard = False
            self.check(at_once=True)

    def on_tick(self) -> None:
        self.age += 1
        self.poll_age += 1
        if self.is_vacant and not self.member.in_sync and self.standings is None:
            self._say_vacant()
        if self.member.in_sync or not self.member.options.promote_always:
            self.check(at_once=False)
        else:
            self._check_orphaned()

    def check(self, at_once: bool) -> None:
        member = self.member
        if member.master is not None or not member.in_sync or self.hears:
            if member.in_sync or not member.options.promote_always:
                self.standings = None
            return
        retry = member.options.retry
        if self.standings is None:
            # If the link is up, the master of a new epoch may be about to send its first Pulse.
            assert member.view is not None
            linked = member.view.master in member.links and member.view.master not in self.left
            if not at_once and linked and not self.is_vacant and self.age <= 2 * retry:
                return
        elif self.poll_age <= retry:
            self._decide()
            return
        self.standings, self.poll_age = {}, 0
        for name, _ in self._in_sync():
            self._ask(name)
        self._decide()

    def _say_vacant(self) -> None:
        """Tell the members in sync that there is no master. This one lost its disk, so it is no candidate and need not
        know their states; but members of a new group take it for one that works, without having heard it."""
        if self.poll_age > self.member.options.retry:
            self.poll_age = 0
            for name, _ in self._in_sync():
                self._ask(name)

    def _check_orphaned(self) -> None:
        member = self.member
        assert member.view is not None
        if self.hears:
            self.age, self.standings = 0, None
        elif not member.majority:
            self.age, self.standings = 0, None  # See `_decide`.
        elif self.age > member.options.orphaned and (self.standings is None or self.poll_age > member.options.retry):
            if self.standings is not None:
                self._force_best(self.standings)
            self.standings, self.poll_age = {}, 0
            for name in member.view.ring:
                self._ask(name)

    def _force_best(self, standings: dict[str, Standing]) -> None:
        """Force the promotion of this member if it is the best. All members have the same states and find the same
        best."""
        member, in_sync = self.member, self._in_sync()
        if any(standing.hears or (name, standing.disk) in in_sync for name, standing in standings.items()):
            return
        if any(name in member.links and name not in standings for name, _ in in_sync):
            return  # It is unknown whether this member still has the disk that was in sync.
        best = (member.complete, member.tail.last_epoch, member.tail.end, member.me)
        for name, standing in standings.items():
            best = max(best, (standing.complete, standing.last_epoch, standing.end, name))
        if best[3] == member.me:
            self.force()

    def _in_sync(self) -> tuple[tuple[str, str], ...]:
        assert self.member.view is not None
        return self.member.view.in_sync

    def _ask(self, name: str) -> None:
        member = self.member
        assert member.view is not None
        if name != member.me:
            member.send(name, Poll(member.view.version, self.is_vacant, self.standing()))

    def on_poll(self, src: str, frame: Poll) -> None:
        member = self.member
        assert member.view is not None
        if frame.vacant and src == member.view.master:
            self.heard = False
        member.send(src, self.standing())
        if not frame.standing.hears:
            if self.standings is None and member.in_sync:
                self.check(at_once=frame.vacant)
            if self.standings is not None:
                self.on_standing(src, frame.standing)

    def on_standing(self, src: str, frame: Standing) -> None:
        member = self.member
        assert member.view is not None
        if src == member.view.master and frame.hears and member.master is None:
            self.heard, self.age, self.standings = True, 0, None
            return
        if frame.last_epoch == member.view.epoch and member.master is None:
            member.neighbours.on_lag(frame.end)
        if self.standings is not None:
            self.standings[src] = frame
            self._decide()

    # -- deciding ----------------------------------------------------------------------

    def _decide(self) -> None:
        member, standings = self.member, self.standings
        view = member.view
        if standings is None or view is None or member.proposal_age is not None or not member.in_sync:
            return
        if not member.majority:
            # Nothing can be committed now. A proposal that waits until it can would depose a master that served all the
            # time, and with asynchronous replication lose messages that it has confirmed.
            return
        if not member.may_lead:
            return  # It was made master by force and lost messages before it learned that. Only force helps.
        asked = [name for name, _ in view.in_sync if name != member.me and name in member.links]
        if any(name not in standings and name not in self.left for name in asked):
            if self.poll_age <= member.options.retry:
                return
        if any(standing.hears for standing in standings.values()):
            return
        ages = {key: -place for place, key in enumerate(view.in_sync)}
        best = (member.tail.last_epoch, member.tail.end, ages[member.me, member.disk], member.me)
        for name, standing in standings.items():
            if (name, standing.disk) in ages and name not in self.left and standing.majority:
                best = max(best, (standing.last_epoch, standing.end, ages[name, standing.disk], name))
        keep = tuple(key for key in view.in_sync if not self._is_gone(key, view.master))
        ring = tuple(name for name in view.ring if name not in self.left)
        member.propose(View(view.version + 1, view.epoch + 1, best[3], ring, keep, view.lossy, view.void))

    def _is_gone(self, key: tuple[str, str], master: str) -> bool:
        name, disk = key
        if name == self.member.me:
            return False
        known = self.standings.get(name) if self.standings is not None else None
        wiped = known is not None and known.disk != disk
        return wiped or name in self.left or (name == master and name not in self.member.links)

    def force(self) -> bool:
        member = self.member
        if member.view is None or member.me not in member.view.ring or member.proposal_age is not None:
            return False
        member.propose(forced(member.view, member.me, member.disk, member.complete))
        return True
