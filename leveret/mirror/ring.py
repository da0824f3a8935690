"""One member of the ring of one mirrored queue.

    master ──blocks──▶ mirror ──blocks──▶ mirror          bodies travel each hop once
       ▲                 │                  │
       └────numbers──────┴──────numbers─────┘             what each has received, and has on disk

A member is *fed* by the nearest reachable member on its left and feeds its *children* on the right. It appends a block,
passes it on in the same turn, and tells the master its numbers. The master confirms what everybody who counts has on
disk (`master`), and with the next blocks everybody learns what is confirmed. Only then does a block take effect on what
a mirror stores (`Apply`): so whatever turns out never to have been confirmed is cut off without undoing anything.

**One log, many copies.** A log is *matched* when its last block is of the view's epoch; then it is a beginning of the
master's log. That follows from three habits. A master opens its epoch with a start block behind its whole log, and
nobody else makes blocks of that epoch. A member takes a block only behind the very block (number and epoch) that it
stood behind at the sender. And only a matched member feeds others. While a log is not matched, its numbers say nothing
about the master's blocks, so it reports zeros, and it keeps whatever it has: a neighbour that is shorter proves nothing
(it may have been restarted), only a different block under the same number does. Then the log is cut there, and never
below what is confirmed.

**After a death** the member on the right of the gap attaches to the next one on the left, tells where its log ends, and
is fed from there. All living members keep every unconfirmed block, so what one of them has, all will have. A neighbour
that has forgotten the blocks that are asked for answers with Reset: the asker begins anew at the cut and fetches what is
live below it (`sync`). An in-sync member is never in that place, for it has everything that is confirmed, and nothing
else is forgotten.

**Old and new epochs.** A frame of an older epoch is refused, and its sender told to look up the view. A frame of a newer
one is dropped, the view looked up, and what matters comes again: a member attaches and reports with each new epoch, a
master pulses when it starts, an Attach that came too early is kept. Frames are lost only with their link, and whoever
sees a link come up reports and attaches again; so nothing is ever repeated by the clock while all is well, and an idle
queue sends nothing at all.

**Bounds.** A neighbour is sent at most `window_bytes` that are not on its disk yet, so a slow disk or a full one holds
a bounded number of blocks in memory, there and here; the master's publishers wait above `unconfirmed_bytes_max`.
Confirmed blocks are kept for members that lack them up to `retain_bytes`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from leveret.log.block import Block
from leveret.mirror.blocks import is_prompt, last_message
from leveret.mirror.frames import (
    Append,
    Apply,
    Attach,
    Blocks,
    Change,
    Deny,
    Detach,
    Effect,
    Entry,
    Fetch,
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
    Refresh,
    Request,
    Reset,
    Restart,
    Send,
    Standing,
    Stopped,
    Truncate,
    Write,
)
from leveret.mirror.master import Master
from leveret.mirror.promotion import Doubt
from leveret.mirror.sync import Filling, Source
from leveret.mirror.tail import Tail
from leveret.mirror.view import View

_STAMPS_PER_LIFE = 1 << 40


class Child:
    """A member that this one feeds."""

    __slots__ = ("next", "acked", "told")

    def __init__(self, following: int) -> None:
        self.next = following  # The first block that was not sent.
        self.acked = following - 1  # On its disk.
        self.told = -1  # What it was told to be confirmed.


class Member:
    """`life` counts the starts of this node's process. `born`: the group was created by a command that this very process
    proposed, so nobody can have led its first epoch before."""

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
    ) -> None:
        found = recovered or Recovered()
        self.group = group
        self.me = me
        self.disk = disk
        self.lost = lost
        self.options = options or Options()
        self.born = born
        self.out: list[Effect] = []
        self.view: View | None = None
        self.version = 0  # The newest of which something here is a consequence: of the view, or of what was confirmed.
        self.links: set[str] = set()
        self.majority = True
        self.failed = False
        self.ticks = 0
        self.proposal_age: int | None = None
        # The log.
        self.tail = Tail(found.base, [item for item in found.history if item[1] <= found.base], found.blocks)
        self.confirmed = found.base  # And applied.
        self.messages = found.messages  # No applied block holds a message with a higher number.
        self.durable = self.tail.end
        self.complete = found.complete
        self.read_at = found.read_at  # Exact, if complete, only from here on: what filled it was read so late.
        self.written = 0
        self.synced_to = 0
        self.floor = 0  # The write that made the log begin where it does. Before its sync, no number counts.
        self.unsynced: deque[tuple[int, int]] = deque()  # Write, number of its last block.
        # Neighbours.
        self.left: tuple[str, ...] = ()  # Who may feed me, nearest first.
        self.feed: str | None = None
        self.children: dict[str, Child] = {}
        self.waiting: dict[str, Attach] = {}  # Who wants to be fed once my log is matched.
        self.relay: dict[str, Entry] = {}  # Numbers of others that are on their way home through me.
        self._stamp = life * _STAMPS_PER_LIFE
        self._probe = 0  # How many on the left were tried.
        self._quiet = 0  # Ticks since the last try, or since blocks came.
        self._pulsed = -1  # Where the log ended at the last pulse that said it lags.
        self._asked = False  # To be fed again, because of a gap; once a tick, for many frames show the same gap.
        self._got_sum = 0  # Bytes up to what the feed knows to be durable here.
        # To be done at the end of the turn.
        self._moved = False
        self._report = False
        self._refresh = False
        self._trim = False
        # Roles.
        self.master: Master | None = None
        self.doubt = Doubt(self)
        self.filling = Filling(self, found)
        self.source = Source(self)

    # -- what the shell asks ---------------------------------------------------------

    @property
    def in_sync(self) -> bool:
        return self.view is not None and (self.me, self.disk) in self.view.in_sync

    @property
    def matched(self) -> bool:
        """The log is a beginning of this epoch's master's, and reaches into the epoch."""
        return self.view is not None and self.tail.last_epoch == self.view.epoch

    @property
    def may_lead(self) -> bool:
        """A log that lacks messages is a master's only by force, and only if everybody was told so."""
        return self.complete or (self.view is not None and self.view.void > self.tail.last_epoch)

    @property
    def serving(self) -> bool:
        return self.master is not None and self.master.handing is None and self.majority

    @property
    def is_crowded(self) -> bool:
        """Whether publishers are to wait: too much is under way to the disks that count."""
        return self.tail.bytes_between(self.confirmed, self.tail.end) > self.options.unconfirmed_bytes_max

    @property
    def wants_tick(self) -> bool:
        """Whether time matters now. A group at rest may be left out of the shell's rounds."""
        if self.view is None or self.failed or self.me not in self.view.ring:
            return False
        if self.proposal_age is not None or any(child.told < self.confirmed for child in self.children.values()):
            return True
        if self.master is not None:
            return self.master.wants_tick
        nearest = next((member for member in self.left if member in self.links), None)
        settled = self.matched and self.feed == nearest and self.complete and not self._asked
        return not settled or self.doubt.is_open

    def take(self) -> list[Effect]:
        """All that has come of the input so far, to be done in this order. Once a turn is enough."""
        self._flush()
        out, self.out = self.out, []
        return out

    # -- what the shell tells ----------------------------------------------------------

    def on_peer_up(self, peer: str) -> None:
        self.links.add(peer)
        view = self.view
        if view is None or self.failed or self.me not in view.ring:
            return
        self._report = True
        if self.master is not None:
            if peer in view.ring:
                self.master.pulse(peer)
        elif self.feed is None or peer in self.left:
            self._seek()
        self.doubt.on_peer_up(peer)

    def on_peer_down(self, peer: str) -> None:
        self.links.discard(peer)
        self.children.pop(peer, None)
        self.waiting.pop(peer, None)
        self.source.reads.pop(peer, None)
        self.filling.on_peer_down(peer)
        if self.view is None or self.failed or self.me not in self.view.ring:
            return
        if self.feed == peer:
            self.feed = None
            self._seek()
        if self.master is not None:
            self.master.on_peer_down(peer)
        self.doubt.on_peer_down(peer)
        self._report = True

    def on_majority(self, reachable: bool) -> None:
        """Whether this node reaches the metadata's majority. A master that does not steps back: it could neither remove
        a silent member nor learn that it was replaced."""
        if reachable != self.majority:
            self.majority = reachable
            if self.master is not None:
                self.master.pulse_all()

    def on_view(self, view: View) -> None:
        """A committed view. The first one a process gives must come from a read that went through the consensus (a
        *barrier*): otherwise the member acknowledges once more in an epoch that it has left."""
        old = self.view
        if (old is not None and view.version <= old.version) or self.failed:
            return
        self.view = view
        self.version = max(self.version, view.version)
        self.proposal_age = None
        order = view.order()
        self.left = tuple(reversed(order[: order.index(self.me)])) if self.me in order else ()
        if self.options.star:
            self.left = self.left[-1:] + self.left[:-1]
        self.doubt.on_view(old)
        if self.master is not None and (view.epoch != self.master.epoch or view.master != self.me):
            self._stop()
        if old is None or view.epoch != old.epoch:
            self._on_epoch(old, view)
        if self.master is not None:
            self.master.on_view(view)
        if self.me not in view.ring:
            if old is not None and self.me in old.ring:
                self.out.append(Left(view.version))
            return
        if self.master is None:
            if self.feed is not None and self.feed not in self.left:
                self.send(self.feed, Detach(view.epoch))
                self.feed = None
            self._seek()
        self._report = True

    def on_synced(self, write: int) -> None:
        """All writes up to this one are on disk."""
        if self.failed or write <= self.synced_to:
            return
        self.synced_to = write
        unsynced = self.unsynced
        while unsynced and unsynced[0][0] <= write:
            self.durable = unsynced.popleft()[1]
        self._report = self._trim = True
        self.filling.on_synced()

    def on_disk_failed(self) -> None:
        """A sync failed: what the disk holds is unknown. This member is out, and says so, and does nothing more."""
        if self.failed:
            return
        if self.view is not None:
            for peer in sorted(self.links & set(self.view.ring)):
                self.out.append(Send(peer, Leave(self.view.epoch, self.disk)))
        if self.master is not None:
            self._stop()
        self.failed = True

    def on_tick(self) -> None:
        self.ticks += 1
        view = self.view
        if view is None or self.failed or self.me not in view.ring:
            return
        if self.proposal_age is not None:
            self.proposal_age += 1
            if self.proposal_age > self.options.retry:
                self.proposal_age = None
        for name, child in list(self.children.items()):
            if child.told < self.confirmed:
                self._push(name, child, True)
        if self.master is not None:
            self.master.on_tick()
            return
        self._asked = False
        self._quiet += 1
        if self.feed is None or not self.matched:
            if self._quiet >= self.options.retry:
                self.feed = None
                self._seek()
        elif self._quiet >= 4 * self.options.retry:
            self._seek()
        self.doubt.on_tick()
        self.filling.on_tick()

    def on_read(self, request: Request, live: Ranges, runs: tuple[Any, ...], upto: int) -> None:
        """The answer to a Read: what lives of request.after + 1 to `upto`, and contents of what the asker lacks. An
        upto below the bound: there is more, or (`bytes_max` 0) the next one cannot be given without its content."""
        self.source.on_read(request, live, runs, upto)

    def on_read_failed(self, request: Request) -> None:
        if self.source.reads.get(request.to) is request:
            del self.source.reads[request.to]

    # -- what the shell wants ------------------------------------------------------------

    def submit(self, block: Block) -> bool:
        """Take the queue's next block. False: this member does not serve, and the block is not taken."""
        if not self.serving:
            return False
        assert self.view is not None
        if block.epoch != self.view.epoch:
            raise ProtocolError(f"a block of epoch {block.epoch} in epoch {self.view.epoch}")
        self.append((block,))
        return True

    def hand_over(self, to: str) -> bool:
        """Take nothing more; when everybody has everything, make `to` master. The block submitted last, with what the
        next master is to know of deliveries, is then part of its log. Ends with Stopped, or with Resumed."""
        return self.serving and self.master is not None and self.master.hand_over(to)

    def change_ring(self, ring: tuple[str, ...]) -> bool:
        """Propose other members. Only a working master can: it alone may take somebody out of the in-sync set. False:
        not now."""
        return self.serving and self.master is not None and self.master.change_ring(ring)

    def force(self) -> bool:
        """Become master whatever is lost by it. For an operator, or a policy that says so. False: not now."""
        return not self.failed and self.master is None and self.doubt.force()

    # -- the log -------------------------------------------------------------------------

    def write(self, change: Change) -> None:
        self.written += 1
        self.out.append(Write(self.written, change, self.confirmed))

    def append(self, blocks: tuple[Block, ...]) -> None:
        for block in blocks:
            self.tail.append(block)
        self.write(Append(blocks))
        self.unsynced.append((self.written, self.tail.end))
        self._moved = True

    def _truncate(self, number: int) -> None:
        if number < self.confirmed:
            raise ProtocolError(f"{self.me} truncates to {number}, below what is confirmed: {self.confirmed}")
        self.tail.truncate(number)
        self.write(Truncate(number))
        while self.unsynced and self.unsynced[-1][1] > number:
            # A write may reach further back than it is void: what is left of it is durable when it is, not before.
            write, _ = self.unsynced.pop()
            if number > (self.unsynced[-1][1] if self.unsynced else self.durable):
                self.unsynced.append((write, number))
                break
        self.durable = min(self.durable, number)
        for child in self.children.values():
            child.next = min(child.next, number + 1)
            child.acked = min(child.acked, number)
        self._got_sum = min(self._got_sum, self.tail.sum_to(self.durable))

    def restart(self, cut: int, history: History, known: int, bound: int) -> None:
        """Begin anew behind the cut. What is stored of a common beginning is kept."""
        assert self.view is not None
        if self.in_sync and self.view.lossy <= self.tail.last_epoch:
            raise ProtocolError(f"in-sync {self.me} is to drop its log")
        have = self.filling.kept(known)
        for child in self.children:
            self.send(child, Deny(self.view.epoch))
        self.children.clear()
        self.source.reads.clear()
        self.tail.restart(cut, history)
        self.write(Restart(cut, history, bound, have))
        self.floor = self.written
        self.unsynced.clear()
        self.confirmed = self.durable = cut
        self.messages = bound
        self.complete, self.read_at = cut == 0, 0
        self._got_sum = self.tail.sum_to(cut)
        self.filling.begin(cut, bound, have)

    def confirm_to(self, number: int) -> None:
        if number > self.confirmed:
            blocks = self.tail.upto(self.confirmed + 1, number)
            self.confirmed = number
            for block in blocks:
                last = last_message(block)
                if last > self.messages:
                    self.messages = last
            self.out.append(Apply(blocks))
            self._trim = True
            if not self.complete:
                self.filling.check()

    def _forget(self) -> None:
        """Let go of blocks that nobody needs, or that take too much room."""
        floor = min(self.confirmed, self.durable)
        if floor <= self.tail.base:
            return
        if self.master is not None:
            lowest = self.master.lowest()
        else:
            assert self.view is not None
            members = dict(self.view.in_sync)  # They have all that is confirmed.
            lowest = min((child.acked for name, child in self.children.items() if name not in members), default=floor)
        if lowest < floor:
            floor = min(floor, max(lowest, self.tail.first_within(self.options.retain_bytes)))
        self.tail.forget_to(floor)

    # -- views ---------------------------------------------------------------------------

    def _on_epoch(self, old: View | None, view: View) -> None:
        self.children.clear()
        self.relay.clear()
        self.source.reads.clear()
        self.filling.on_epoch()
        self.waiting = {peer: attach for peer, attach in self.waiting.items() if attach.epoch >= view.epoch}
        self.feed, self._pulsed = None, -1
        leads = view.master == self.me
        if view.lossy > self.tail.last_epoch and not leads and (not self.complete or view.void > self.tail.last_epoch):
            self.restart(0, (), 0, 0)  # What was being filled may belong to what is lost; or what is stored does.
        # The first view of a process comes from a barrier. If it names this member, an earlier process may have led
        # the epoch and lost its last blocks, which others hold: its epoch is burnt. Nor may a wiped disk lead.
        if leads and (old is not None or self.born) and self.in_sync and self.may_lead:
            self.master = Master(self, view)
            self.master.start()
        self.born = False

    def _stop(self) -> None:
        assert self.master is not None
        self.out.append(Stopped(self.master.epoch))
        self.master = None

    def propose(self, view: View) -> None:
        self.proposal_age = 0
        self.out.append(ProposeView(view))

    # -- frames --------------------------------------------------------------------------

    def send(self, to: str, frame: Frame) -> None:
        if to in self.links:
            self.out.append(Send(to, frame))

    def on_frame(self, src: str, frame: Frame) -> None:
        view = self.view
        if self.failed:
            return
        if view is None:
            if isinstance(frame, Attach):
                self.waiting[src] = frame
            return
        if isinstance(frame, Poll | Standing | Newer):
            self._on_version(src, frame, view)
        elif frame.epoch == view.epoch:
            self._HANDLERS[frame.__class__](self, src, frame)
        elif frame.epoch > view.epoch:
            self._refresh = True
            if isinstance(frame, Attach):
                self.waiting[src] = frame
        else:
            self.send(src, Newer(view.version))

    def _on_version(self, src: str, frame: Poll | Standing | Newer, view: View) -> None:
        if frame.version > view.version:
            self._refresh = True
        elif frame.version < view.version:
            if isinstance(frame, Poll):
                self.send(src, Newer(view.version))
        elif isinstance(frame, Poll):
            self.doubt.on_poll(src, frame)
        elif isinstance(frame, Standing):
            self.doubt.on_standing(src, frame)

    # -- the feed ------------------------------------------------------------------------

    def _seek(self) -> None:
        """Ask the nearest on the left for blocks; whoever did not answer is passed over."""
        left = [member for member in self.left if member in self.links]
        self._quiet = 0
        if not left:
            return
        if self.feed is None:
            self._attach(left[self._probe % len(left)])
            self._probe += 1
        elif left[0] != self.feed:
            self._attach(left[0])

    def _attach(self, to: str) -> None:
        assert self.view is not None
        self._got_sum = self.tail.sum_to(self.durable)
        self.send(to, Attach(self.view.epoch, self.view.version, tuple(self.tail.history), self.tail.end))

    def _on_deny(self, src: str, frame: Deny) -> None:
        if self.feed in (None, src) and self.master is None:
            self.feed = None
            if self._probe < len(self.left):  # Not round and round: after each was asked once, the tick does it.
                self._seek()

    def _on_reset(self, src: str, frame: Reset) -> None:
        assert self.view is not None
        if frame.version > self.view.version:  # As far as I know, I am still counted on.
            self._refresh = True
        elif self.master is None and self.tail.common(frame.history, frame.cut) < frame.cut:
            self.restart(frame.cut, frame.history, frame.known, frame.bound)
            self.feed = src

    def _on_blocks(self, src: str, frame: Blocks) -> None:
        if self.master is not None:
            return
        tail = self.tail
        if tail.epoch_at(frame.previous) != frame.previous_epoch:
            if not self._asked:  # There is a gap between, or a conflict further back.
                self._asked = True
                self._attach(src)
            return
        self._asked = False
        was_matched = self.matched
        if frame.blocks:
            blocks = frame.blocks if frame.previous == tail.end else self._unknown(src, frame.blocks)
            if blocks:
                self.append(blocks)
                if any(map(is_prompt, blocks)):
                    self._report = True
        if not self.matched:
            return
        self._quiet = 0
        if src != self.feed:
            self._choose(src)
        if not was_matched:
            self._report = True
            for peer, attach in list(self.waiting.items()):
                self._on_attach(peer, attach)
            self.waiting.clear()
        if frame.version > self.version:
            self.version = frame.version
        self.confirm_to(min(frame.confirmed, tail.end))

    def _unknown(self, src: str, blocks: tuple[Block, ...]) -> tuple[Block, ...]:
        """The blocks that are not in the log yet, after making room for them."""
        assert self.view is not None
        tail = self.tail
        for at, block in enumerate(blocks):
            if block.number > tail.end:
                return blocks[at:]
            if tail.epoch_at(block.number) == block.epoch:
                continue
            if block.number <= max(self.confirmed, self.read_at):
                if self.view.lossy <= tail.epoch_at(self.confirmed):
                    raise ProtocolError(f"{self.me} holds another block {block.number} as confirmed")
                self.restart(0, (), 0, 0)  # Lost by a forced promotion. What was applied cannot be undone.
                self._attach(src)
                return ()
            self._truncate(block.number - 1)
            return blocks[at:]
        return ()

    def _choose(self, src: str) -> None:
        """Be fed by the nearest of those who do."""
        assert self.view is not None
        left = self.left
        if src not in left:
            return
        other = self.feed
        if other is None or other not in left or left.index(src) < left.index(other):
            self.feed, self._probe = src, 0
        else:
            other = src
        if other is not None:
            self.send(other, Detach(self.view.epoch))

    def _on_pulse(self, src: str, frame: Pulse) -> None:
        assert self.view is not None
        if src != self.view.master or self.master is not None:
            return
        self._report = True
        self.doubt.on_pulse(frame.working)
        self.lags(frame.end)

    def lags(self, end: int) -> None:
        """Somebody's log of this epoch ends there. If mine gets no nearer, whoever feeds me has nothing to give."""
        if end > self.tail.end or not self.matched:
            if self.tail.end == self._pulsed and self.durable == self.tail.end:
                self.feed = None
                self._seek()
            self._pulsed = self.tail.end

    # -- feeding -------------------------------------------------------------------------

    def _on_attach(self, src: str, frame: Attach) -> None:
        assert self.view is not None
        if not self.matched:
            self.waiting[src] = frame  # Whether my own log stands is not known yet.
            return
        known = self.tail.common(frame.history, frame.end)
        start = known + 1
        if known < self.tail.base:
            if not self.complete or self.confirmed < self.read_at:
                self.send(src, Deny(self.view.epoch))
                return
            cut = self.confirmed
            history = self.tail.history_to(cut)
            # What is forgotten here was confirmed, and that may be a consequence of a view without the asker, which
            # neither of us has seen. It must have seen it before it drops anything.
            self.send(src, Reset(self.view.epoch, self.version, cut, history, known, self.messages))
            start = cut + 1
        child = self.children[src] = Child(start)
        self._push(src, child, True)

    def _on_detach(self, src: str, frame: Detach) -> None:
        self.children.pop(src, None)

    def _on_got(self, src: str, frame: Got) -> None:
        child = self.children.get(src)
        if child is not None and child.acked < frame.durable < child.next:
            child.acked = frame.durable
            self._moved = True

    def _push(self, name: str, child: Child, always: bool) -> None:
        """Send what the child lacks, as far as it has room. `always`: at least what is confirmed."""
        assert self.view is not None
        tail, options = self.tail, self.options
        if child.next <= tail.base:  # It was too slow for what is kept here: it will be reset when it asks again.
            del self.children[name]
            self.send(name, Deny(self.view.epoch))
            return
        while True:
            flying = tail.bytes_between(child.acked, child.next - 1)
            room = options.window_bytes - flying
            blocks: tuple[Block, ...] = ()
            if child.next <= tail.end and (room > 0 or not flying):
                blocks = tail.since(child.next, options.frame_blocks, min(room, options.frame_bytes))
            if not blocks and not always:
                return
            previous = child.next - 1
            self.send(name, Blocks(*self._head(), tail.epoch_at(previous), previous, blocks))
            child.next += len(blocks)
            child.told = self.confirmed
            always = False
            if child.next > tail.end:
                return

    def _head(self) -> tuple[int, int, int]:
        view = self.view
        assert view is not None
        # What was confirmed before a forced promotion may be lost by it: it is not passed on as confirmed.
        lasting = not view.lossy or self.tail.epoch_at(self.confirmed) >= view.lossy
        return view.epoch, self.version, self.confirmed if lasting else 0

    # -- numbers -------------------------------------------------------------------------

    @property
    def own_durable(self) -> int:
        return self.durable if self.synced_to >= self.floor else 0

    def entry(self) -> Entry:
        self._stamp += 1
        if not self.matched:
            return Entry(self.disk, self._stamp, 0, 0, False)
        solid = self.synced_to >= self.floor
        return Entry(self.disk, self._stamp, self.tail.end, self.durable if solid else 0, self.complete and solid)

    def _on_numbers(self, src: str, frame: Numbers) -> None:
        for name, entry in frame.entries:
            if name == src and (child := self.children.get(src)) is not None:
                if child.acked < entry.durable < child.next:
                    child.acked = entry.durable
                    self._moved = True
            if self.master is not None:
                self.master.on_entry(name, entry)
            elif name in self.left or name in self.children:
                self.relay[name] = entry
        self._report = True

    def _on_leave(self, src: str, frame: Leave) -> None:
        self.children.pop(src, None)
        if self.feed == src:
            self.feed = None
            self._seek()
        if self.master is not None:
            self.master.on_leave(src, frame.disk)
        else:
            self.doubt.on_leave(src)

    def _flush(self) -> None:
        view = self.view
        if view is None or self.failed:
            return
        if self._refresh:
            self._refresh = False
            self.out.append(Refresh())
        if self.me not in view.ring:
            return
        if self._report and self.master is not None:
            self._report = False
            self.master.judge()
        if self._moved:
            self._moved = False
            for name, child in list(self.children.items()):
                if child.next <= self.tail.end:
                    self._push(name, child, False)
        if self.master is None and self._report:
            self._tell(view)
        if self._trim:
            self._trim = False
            self._forget()

    def _tell(self, view: View) -> None:
        home = view.master if view.master in self.links else self.feed
        if home is None:
            return  # With the next link.
        self._report = False
        entries = ((self.me, self.entry()), *self.relay.items())
        self.relay.clear()
        self.send(home, Numbers(view.epoch, entries))
        feed = self.feed
        if feed is not None and feed != home and self.matched:
            sum_now = self.tail.sum_to(self.durable)
            if sum_now - self._got_sum >= self.options.window_bytes // 4:
                self._got_sum = sum_now
                self.send(feed, Got(view.epoch, self.own_durable))

    _HANDLERS: dict[type, Callable[[Member, str, Any], None]] = {
        Attach: _on_attach,
        Blocks: _on_blocks,
        Deny: _on_deny,
        Detach: _on_detach,
        Fetch: lambda self, src, frame: self.source.on_fetch(src, frame),
        Got: _on_got,
        Leave: _on_leave,
        Numbers: _on_numbers,
        Piece: lambda self, src, frame: self.filling.on_piece(frame),
        Pulse: _on_pulse,
        Reset: _on_reset,
    }
