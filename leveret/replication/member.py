"""A member of the ring of a mirrored queue.

    master ──blocks──▶ mirror ──blocks──▶ mirror          bodies travel each hop once
       ▲                 │                  │
       └────numbers──────┴──────numbers─────┘             what each has received and has on disk

A member is *fed* by the nearest reachable member on its left and feeds its *children* on the right (`feeding`). It
appends a block, passes it on in the same turn, and reports its numbers to the master. The master confirms blocks that
all members in sync have on disk (`master`), and with the next blocks all members learn what is confirmed. Only then a
block takes effect on the stored state of a member (`Apply`): so blocks that were never confirmed are cut off without
undoing anything. When the master is lost, the members in sync agree on the next one (`election`); a member that lacks
messages fetches them while the queue is in use (`catch_up`).

**One log, many copies.** A log is *matched* when its last block is of the view's epoch; then it is a beginning of the
master's log. That follows from three rules. A master opens its epoch with a start block after its whole log, and no
other member makes blocks of that epoch. A member takes a block only after the same block (number and epoch) that it
followed at the sender. And only a matched member feeds others. While a log is not matched, its numbers say nothing
about the master's blocks, so it reports zeros, and keeps what it has.

**Old and new epochs.** Frames of an older or a newer epoch are dropped. What matters is sent again: a member attaches
and reports with each new epoch, a master pulses when it starts, and an Attach that came too early is kept. Frames are
lost only with their link, and both ends report and attach again when a link comes up; so nothing is repeated by timers
while all is well, and an idle queue sends nothing at all.

**Disks.** Writes are numbered, and durability follows those numbers, never the numbers of blocks: when a block was cut
off and another took its place, the sync of the first says nothing about the second. A member whose sync has failed does
not know the contents of its disk; it leaves. So does one in sync that is told to start again: its disk has lost what
was synced, as if an old backup had been put back. One whose disk is full or slow makes no progress, is removed from the
in-sync set when it holds up a confirm, and comes back like any that was down.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from leveret.base.shared_values import NO_LIST, NO_SET, shared
from leveret.metadata.model.view import View
from leveret.replication.catch_up import Filling, Source
from leveret.replication.election import MasterWatch
from leveret.replication.feeding import Feeding
from leveret.replication.log_tail import Tail
from leveret.replication.master import Master
from leveret.replication.packed_block import last_message
from leveret.replication.ring_frames import (
    PLAIN,
    Append,
    Apply,
    Attach,
    Blocks,
    Change,
    Complete,
    Counts,
    Deny,
    Detach,
    Effect,
    Entry,
    Fetch,
    Fill,
    Frame,
    Got,
    History,
    Leave,
    Left,
    Lost,
    Newer,
    Numbers,
    Options,
    Piece,
    Poll,
    ProposeView,
    ProtocolError,
    Pulse,
    Ranges,
    Recovered,
    Request,
    Reset,
    Restart,
    Send,
    Standing,
    StartMarks,
    Stopped,
    Truncate,
    Write,
)
from leveret.storage.format.queue_block import Block, Run
from leveret.storage.format.queue_marks import Mark

_STAMPS_PER_LIFE: Final = 1 << 36
_NOBODY: Final[Mapping[str, int]] = {}


class Member:
    """One copy of a mirrored queue. `life` rises with every member that this node makes for the group, over its
    restarts too: frames of an earlier one may still arrive. `born`: the group was created while this very process
    follows the metadata, so no earlier one can have led its first epoch, or had a copy. `start_marks`: what the queue
    has to remember of the epoch before, for the start block."""

    __slots__ = (
        "group", "me", "disk", "lost", "options", "born", "out", "view", "joined", "version", "links", "majority",
        "ordered", "failed", "ticks", "proposal_age", "tail", "confirmed", "messages", "delivered", "durable",
        "complete", "read_at", "written", "synced_to", "floor", "unsynced", "_report", "_forget_due", "_stamp",
        "neighbours", "master", "doubt", "_filling", "_source", "start_marks",
    )  # fmt: skip

    def __init__(
        self,
        group: int,
        me: str,
        disk: str,
        life: int,
        lost: Lost,
        options: Options | None = None,
        recovered: Recovered | None = None,
        born: bool = False,
        start_marks: StartMarks | None = None,
    ) -> None:
        found = recovered or Recovered()
        self.group = group
        self.me = me
        self.disk = disk
        self.lost = lost
        self.options = options or PLAIN
        self.born = born
        self.start_marks = start_marks
        self.out: list[Effect] = NO_LIST
        self.view: View | None = None
        self.joined: Mapping[str, int] = _NOBODY  # By member: the version with which it joined, if known.
        self.version = 0  # The newest version on which the state here depends: of the view, or of what was confirmed.
        self.links: frozenset[str] = NO_SET
        self.majority = True
        self.ordered: bool | None = None  # An operator's order to fill mirrors or not; None: as the options say.
        self.failed = False
        self.ticks = 0
        self.proposal_age: int | None = None
        # The log.
        self.tail = Tail(found.base, [item for item in found.history if item[1] <= found.base], found.blocks)
        self.confirmed = found.base  # Up to here blocks are confirmed and applied.
        self.messages = found.messages  # The highest message number in applied blocks.
        self.delivered = found.delivered  # Messages up to here may have been delivered, by the applied blocks.
        self.durable = self.tail.end
        self.complete = found.complete
        self.read_at = found.read_at  # A complete copy is exact only from this block on: pieces were read so late.
        self.written = 0
        self.synced_to = 0
        self.floor = 0  # The write with which the log starts. Before its sync, no number is valid.
        self.unsynced: list[tuple[int, int]] = NO_LIST  # Write id, number of its last block.
        # What to do at the end of the turn.
        self._report = False
        self._forget_due = False
        # Roles.
        self._stamp = life * _STAMPS_PER_LIFE
        self.neighbours = Feeding(self)
        self.master: Master | None = None
        self.doubt = MasterWatch(self)
        # Most copies never lack anything, and have nothing to give.
        self._filling = Filling(self, found) if not found.complete else None
        self._source: Source | None = None

    # -- state for the shell ---------------------------------------------------------

    @property
    def filling(self) -> Filling:
        if self._filling is None:
            self._filling = Filling(self, Recovered())
        return self._filling

    @property
    def source(self) -> Source:
        if self._source is None:
            self._source = Source(self)
        return self._source

    @property
    def in_sync(self) -> bool:
        return self.view is not None and (self.me, self.disk) in self.view.in_sync

    @property
    def matched(self) -> bool:
        """Whether the log is a beginning of the master's log of this epoch, and reaches into the epoch."""
        return self.view is not None and self.tail.last_epoch == self.view.epoch

    @property
    def is_newborn(self) -> bool:
        """Whether the group was created while this process runs, and this copy has no block yet. The master assumes as
        much, so nothing is reported: very many groups may be created at once, and wait long for their first block."""
        is_first = self.view is not None and self.view.version == 1
        return self.born and is_first and self.tail.end == 0 and self.in_sync

    @property
    def has_lost_blocks(self) -> bool:
        """Whether a log that has to be started again is that of a member in sync, except after a forced promotion."""
        return self.view is not None and self.in_sync and self.view.lossy <= self.tail.last_epoch

    @property
    def may_lead(self) -> bool:
        """Whether this member can be master: a copy that lacks messages only by a forced promotion that the view names.
        """
        return self.complete or (self.view is not None and self.view.void > self.tail.last_epoch)

    @property
    def serving(self) -> bool:
        return self.master is not None and self.master.handing is None and self.majority

    @property
    def is_crowded(self) -> bool:
        """Whether publishers must wait: too much is not confirmed yet."""
        return self.tail.bytes_between(self.confirmed, self.tail.end) > self.options.unconfirmed_bytes_max

    @property
    def wants_tick(self) -> bool:
        """Whether the member needs ticks. A group at rest does not."""
        if not self._takes_part:
            return False
        if self.proposal_age is not None or self.neighbours.wants_tick:
            return True
        if self.master is not None:
            return self.master.wants_tick
        return not self.complete or self.doubt.is_open

    @property
    def _takes_part(self) -> bool:
        return self.view is not None and not self.failed and self.me in self.view.ring

    def take(self) -> list[Effect]:
        """Return the effects of all input so far, to be performed in this order. Once a turn is enough."""
        if self._report or self.neighbours.moved or self._forget_due:
            self._flush()
        out, self.out = self.out, NO_LIST
        return out

    def do(self, effect: Effect) -> None:
        """Have the shell perform an effect, after those before it."""
        if self.out:
            self.out.append(effect)
        else:
            self.out = [effect]

    # -- events of the shell -----------------------------------------------------------

    def start(self, links: frozenset[str], majority: bool) -> None:
        """Note which links are up, and whether this node reaches the metadata's majority, before the first view."""
        assert self.view is None
        self.links, self.majority = links, majority

    def on_peer_up(self, peer: str) -> None:
        self.links = shared(self.links | {peer})
        if not self._takes_part:
            return
        assert self.view is not None
        self._report = True
        if self.master is None:
            self.neighbours.on_peer_up(peer)
        elif peer in self.view.ring:
            self.master.pulse(peer)
        self.doubt.on_peer_up(peer)

    def on_peer_down(self, peer: str) -> None:
        self.links = shared(self.links - {peer})
        if self.out:  # Frames for it belong to the session that is over.
            self.out = [one for one in self.out if one.__class__ is not Send or one.to != peer]
        if self._source is not None:
            self._source.forget(peer)
        if self._filling is not None:
            self._filling.on_peer_down(peer)
        self.neighbours.on_peer_down(peer)
        if not self._takes_part:
            return
        if self.master is not None:
            self.master.on_peer_down(peer)
        self.doubt.on_peer_down(peer)
        self._report = True

    def on_majority(self, reachable: bool) -> None:
        """Note whether this node reaches the metadata's majority. A master that does not stops serving: it could
        neither remove a silent member nor learn that it was replaced."""
        if reachable != self.majority:
            self.majority = reachable
            if self.master is not None:
                self.master.pulse_all()

    def on_view(self, view: View) -> None:
        """Note a committed view. The first one of a process must come from a read through the consensus (a *barrier*):
        otherwise the member could acknowledge in an epoch that it has left."""
        old = self.view
        if (old is not None and view.version <= old.version) or self.failed:
            return
        self.view = view
        self.version = max(self.version, view.version)
        self.proposal_age = None
        is_new_epoch = old is None or view.epoch != old.epoch
        self.neighbours.on_view(view, is_new_epoch)
        self.doubt.on_view(is_new_epoch)
        if self.master is not None and (view.epoch != self.master.epoch or view.master != self.me):
            handing = self.master.handing
            self._stop(handing is not None and (handing[0], self.master.epoch + 1) == (view.master, view.epoch))
        if is_new_epoch:
            self._on_epoch(old, view)
        if self.master is not None:
            self.master.on_view(view)
        if (self.in_sync and view.master != self.me) or (self.ordered is not None and _is_whole(view)):
            self.end_order()  # Until it lacks something again, or at the master: until somebody does.
        if self.me not in view.ring:
            if old is not None and self.me in old.ring:
                self.do(Left(view.version))
            return
        if self.master is None:
            self.neighbours.seek()
        self._report = True

    def on_synced(self, write: int) -> None:
        """Note that all writes up to this one are on disk."""
        if self.failed or write <= self.synced_to:
            return
        self.synced_to = write
        unsynced = self.unsynced
        while unsynced and unsynced[0][0] <= write:
            self.durable = unsynced.pop(0)[1]
        if not unsynced:
            self.unsynced = NO_LIST
        self._report = self._forget_due = True
        if not self.complete:
            self.filling.on_synced()

    def on_disk_failed(self) -> None:
        """Note a failed sync: the contents of the disk are unknown. This member says that it leaves, and stops."""
        if self.failed:
            return
        if self.view is not None:
            self.withdraw()
        if self.master is not None:
            self._stop()
        self.failed = True

    def withdraw(self) -> None:
        """Have the others go on without this copy: its disk has lost blocks that it had reported. Nothing is dropped
        before a view without it is agreed on. Then it is forgotten and, if it is still wanted, made anew."""
        assert self.view is not None
        for peer in sorted(self.links & set(self.view.ring)):
            self.send(peer, Leave(self.view.epoch))

    def on_tick(self) -> None:
        self.ticks += 1
        if not self._takes_part:
            return
        if self.proposal_age is not None:
            self.proposal_age += 1
            if self.proposal_age > self.options.retry:
                self.proposal_age = None
        self.neighbours.on_tick()
        if self.master is not None:
            self.master.on_tick()
            return
        self.doubt.on_tick()
        if not self.complete:
            self.filling.on_tick()

    def on_read(
        self,
        request: Request,
        live: Ranges,
        runs: tuple[Run, ...],
        upto: int,
        counts: Counts = (),
        marks: tuple[Mark, ...] = (),
        requeued: Ranges = (),
    ) -> None:
        """Handle the answer to a Read: the live messages of request.after + 1 to `upto`, and contents of those that the
        asker lacks. If upto is below the bound, there are more, or (`bytes_max` 0) the next one needs its content."""
        self.source.on_read(request, live, runs, upto, counts, marks, requeued)

    def on_read_failed(self, request: Request) -> None:
        if self.source.reads.get(request.to) is request:
            self.source.forget(request.to)

    # -- requests of the shell -----------------------------------------------------------

    def submit(self, block: Block) -> bool:
        """Take the queue's next block. Return False if this member does not serve, and the block is not taken."""
        if not self.serving:
            return False
        assert self.view is not None
        if block.epoch != self.view.epoch:
            raise ProtocolError(f"a block of epoch {block.epoch} in epoch {self.view.epoch}")
        if self.master is not None:
            self.master.open()
        self.append((block,))
        return True

    def adopt(self, run: Run) -> int:
        """At the master of a queue that was not mirrored before: store messages that came in no block. Return the
        write. No other member may read from here before all of it is stored."""
        self.write(Fill(run.last, run.last, (), (run,), self.read_at))
        return self.written

    def hand_over(self, to: str, hasty: bool = False) -> bool:
        """Take no more blocks; when all members have all blocks, make `to` master. The block submitted last, with the
        state of deliveries, is then part of its log. Ends with Stopped, or with Resumed. `hasty`: this member stays in
        the ring, to learn whether its last blocks are confirmed."""
        return self.serving and self.master is not None and self.master.hand_over(to, hasty)

    def step_down(self) -> bool:
        """Make a member master that is not in sync, whatever is lost: there is no other, and this node stops. Return
        False if there is none, or it is not possible now."""
        return self.serving and self.master is not None and self.master.step_down()

    def may_step_down_soon(self) -> bool:
        """Return whether `step_down` is only too early: the mirrors have just started, and none has reported yet."""
        return self.serving and self.master is not None and self.master.has_no_reports()

    def change_ring(self, ring: tuple[str, ...]) -> bool:
        """Propose other members. Only a serving master can: it alone may remove a member from the in-sync set. Return
        False if it is not possible now."""
        return self.serving and self.master is not None and self.master.change_ring(ring)

    def change_options(self, options: Options) -> None:
        """Change the options, which come from a policy."""
        self.options = options
        if self._filling is not None:
            self._filling.wanted = options.filling if self.ordered is None else self.ordered
        if self.view is not None:
            self.neighbours.on_view(self.view, False)
            if self.master is None and self._takes_part:
                self.neighbours.seek()
        self._report = True

    def order(self, fill: bool) -> None:
        """For an operator, at the master: let mirrors that lack messages fetch them, or not, whatever the options say.
        Mirrors that join while one lacks messages are told as well."""
        self.ordered = fill
        if self.master is not None:
            self.master.pulse_all()

    def force(self) -> bool:
        """Become master whatever is lost, for an operator or a policy. Return False if it is not possible now."""
        return not self.failed and self.master is None and self.doubt.force()

    # -- the log -------------------------------------------------------------------------

    def end_order(self) -> None:
        """Have mirrors filled as the options say again. A master tells them if they were not to be."""
        was, self.ordered = self.ordered, None
        if self._filling is not None:
            self._filling.wanted = self.options.filling
        if was is False and self.master is not None:
            self.master.pulse_all()

    def set_joined(self, joined: Mapping[str, int]) -> None:
        self.joined = joined

    def become_complete(self, read_at: int) -> None:
        """Note that the copy has all messages, as of this block."""
        self.complete, self.read_at = True, read_at
        self.write(Complete(read_at))
        self.floor = self.written

    def raise_read_at(self, read_at: int) -> int:
        """Note that messages were read as of this block, or a later one. Return which."""
        self.read_at = max(self.read_at, read_at)
        return self.read_at

    def raise_version(self, version: int) -> None:
        if version > self.version:
            self.version = version

    def write(self, change: Change) -> None:
        self.written += 1
        self.do(Write(self.written, change, self.confirmed))

    def append(self, blocks: tuple[Block, ...]) -> None:
        for block in blocks:
            self.tail.append(block)
        self.write(Append(blocks))
        self.unsynced = self.unsynced or []
        self.unsynced.append((self.written, self.tail.end))
        self.neighbours.moved = True

    def truncate(self, number: int) -> None:
        if number < self.confirmed:
            raise ProtocolError(f"{self.me} truncates to {number}, below what is confirmed: {self.confirmed}")
        self.tail.truncate(number)
        self.write(Truncate(number))
        unsynced = self.unsynced
        while unsynced and unsynced[-1][1] > number:
            write, _ = unsynced.pop()
            if number > (unsynced[-1][1] if unsynced else self.durable):
                unsynced.append((write, number))  # Its first blocks stay, and are durable when it is.
                break
        self.durable = min(self.durable, number)
        self.neighbours.on_truncated(number)

    def restart(self, cut: int, history: History, known: int, bound: int, delivered: int = 0) -> None:
        """Start the log again after the cut. Stored messages of a common beginning, up to `known`, are kept."""
        if self.has_lost_blocks:
            raise ProtocolError(f"in-sync {self.me} is to drop its log")
        have = self.filling.kept(known)
        self.read_at = self.read_at if have else 0
        self.tail.restart(cut, history)
        self.delivered = max(delivered, self.delivered) if have else delivered
        self.write(Restart(cut, history, bound, have, self.read_at, self.delivered))
        self.floor = self.written
        self.unsynced = NO_LIST
        self.confirmed = self.durable = cut
        self.messages = bound
        self.complete = cut == 0
        self._source = None
        self.neighbours.on_restarted()
        self.filling.begin(cut, bound, have)

    def confirm_to(self, number: int) -> None:
        if number <= self.confirmed:
            return
        blocks = self.tail.upto(self.confirmed + 1, number)
        self.confirmed = number
        for block in blocks:
            last = last_message(block)
            if last > self.messages:
                self.messages = last
            if block.delivered_through > self.delivered:
                self.delivered = block.delivered_through
        self.do(Apply(blocks))
        self._forget_due = True
        if not self.complete:
            self.filling.check()

    def _forget(self, view: View) -> None:
        """Drop blocks that no member needs, or that take too much memory."""
        tail = self.tail
        floor = min(self.confirmed, self.durable)
        if floor <= tail.base:
            return
        lowest = self.master.lowest() if self.master is not None else self.neighbours.lowest(view)
        if lowest is not None and lowest < floor:
            floor = min(floor, max(lowest, tail.first_within(self.options.retain_bytes)))
        tail.forget_to(floor)

    # -- views ---------------------------------------------------------------------------

    def _on_epoch(self, old: View | None, view: View) -> None:
        self._source = None
        if self._filling is not None:
            self._filling.on_epoch()
        if self.ordered is False:
            self.end_order()  # The next master does not know of it: it would wait for mirrors that fetch nothing.
        leads = view.master == self.me
        if view.lossy > self.tail.last_epoch and not leads and (not self.complete or view.void > self.tail.last_epoch):
            self.restart(0, (), 0, 0)  # Messages being filled or stored here may belong to what was lost.
        # The first view of a process comes from a barrier. If it names this member, an earlier process may have led
        # the epoch and lost its last blocks, which others have: this epoch must not be led again. Nor may a wiped disk
        # lead.
        if leads and (old is not None or self.born) and self.in_sync and self.may_lead:
            self.master = Master(self, view)
            self.master.start()

    def _stop(self, handed: bool = False) -> None:
        assert self.master is not None
        self.do(Stopped(self.master.epoch, handed))
        self.master = None

    def propose(self, view: View) -> None:
        self.proposal_age = 0
        self.do(ProposeView(view))

    # -- frames --------------------------------------------------------------------------

    def send(self, to: str, frame: Frame) -> None:
        if to in self.links:
            self.do(Send(to, frame))

    def on_frame(self, src: str, frame: Frame) -> None:
        view = self.view
        if self.failed:
            return
        if view is None:
            if isinstance(frame, Attach):
                self.neighbours.wait(src, frame)
        elif isinstance(frame, Newer):
            pass  # The metadata brings every view by itself.
        elif isinstance(frame, Poll):
            if frame.version == view.version:
                self.doubt.on_poll(src, frame)
        elif isinstance(frame, Standing):
            if frame.version == view.version:
                self.doubt.on_standing(src, frame)
        elif frame.epoch == view.epoch and self.me not in view.ring:
            if isinstance(frame, Blocks):  # Its feeder does not know yet that this member has left.
                self.send(src, Detach(view.epoch))
        elif frame.epoch == view.epoch:
            _HANDLERS[frame.__class__](self, src, frame)
        elif frame.epoch > view.epoch and isinstance(frame, Attach):
            self.neighbours.wait(src, frame)  # Answered when this member has the view of that epoch.

    def on_pulse(self, src: str, frame: Pulse) -> None:
        assert self.view is not None
        if src == self.view.master and self.master is None:
            self._report = True
            self.doubt.on_pulse(frame.working)
            self.neighbours.on_lag(frame.end)
            if frame.fill is None and self.ordered is False:
                self.end_order()
            if frame.fill is not None and not self.in_sync:
                self.ordered = frame.fill
                if frame.fill != self.filling.wanted:
                    self.filling.start() if frame.fill else self.filling.stop()

    def on_leave(self, src: str, frame: Leave) -> None:
        self.neighbours.on_peer_down(src)
        if self.master is not None:
            self.master.on_leave(src)
        else:
            self.doubt.on_leave(src)

    # -- numbers -------------------------------------------------------------------------

    @property
    def own_durable(self) -> int:
        return self.durable if self.synced_to >= self.floor else 0

    def entry(self) -> Entry:
        self._stamp += 1
        if not self.matched:
            return Entry(self.disk, self._stamp, 0, 0, False)
        solid = self.synced_to >= self.floor
        complete = self.complete and solid
        lacks = () if self.complete else self.filling.lacks
        return Entry(self.disk, self._stamp, self.tail.end, self.durable if solid else 0, complete, lacks)

    def report(self) -> None:
        """Report to the master at the end of the turn, or if this is the master, count again."""
        self._report = True

    def _flush(self) -> None:
        view = self.view
        if view is None or self.failed:
            return
        if self.me not in view.ring:
            return
        if self._report and self.master is not None:
            self._report = False
            self.master.count_reports()
        if self.neighbours.moved:
            self.neighbours.flush()
        if self._report and self.master is None:
            self._report = not (self.is_newborn or self.neighbours.tell(view))
        if self._forget_due:
            self._forget_due = False
            self._forget(view)


def _is_whole(view: View) -> bool:
    """Return whether all members are in sync."""
    return all(view.disk_of(name) is not None for name in view.ring)


_HANDLERS: Final[dict[type, Callable[[Member, str, Any], None]]] = {
    Attach: lambda member, src, frame: member.neighbours.on_attach(src, frame),
    Blocks: lambda member, src, frame: member.neighbours.on_blocks(src, frame),
    Deny: lambda member, src, frame: member.neighbours.on_deny(src, frame),
    Detach: lambda member, src, frame: member.neighbours.on_detach(src, frame),
    Fetch: lambda member, src, frame: member.source.on_fetch(src, frame),
    Got: lambda member, src, frame: member.neighbours.on_got(src, frame),
    Leave: lambda member, src, frame: member.on_leave(src, frame),
    Numbers: lambda member, src, frame: member.neighbours.on_numbers(src, frame),
    Piece: lambda member, src, frame: member.filling.on_piece(frame),
    Pulse: lambda member, src, frame: member.on_pulse(src, frame),
    Reset: lambda member, src, frame: member.neighbours.on_reset(src, frame),
}
