"""How blocks travel along the ring: the member that feeds this one, and those that this one feeds.

A member asks the nearest reachable member on its left to feed it (Attach: its log's epochs, and where it ends), and
gets the blocks after the last one that both have. With `star` the nearest is always the master; nothing else differs.

**After the loss of a member** the one on its right attaches to the next one on the left. All live members keep every
unconfirmed block, so blocks that one of them has reach all. A neighbour that has dropped the blocks that are asked for
answers with Reset: the asker starts again at the cut and fetches the live messages below it (`catch_up`). That never
happens to an in-sync member: it has all that is confirmed, and only confirmed blocks are dropped.

A log must not be cut off because its left neighbour's is shorter: the neighbour may have been restarted with a disk
that was behind, and others rely on the blocks. Only a different block with the same number is a reason to cut the log
there, never below what is confirmed. For the same reason only a matched log feeds others: a member that does not know
yet whether its own blocks are valid lets the asker wait.

**Silence.** A feeder without blocks does not know that there are any, and there are no heartbeats to miss. The master
sees which member makes no progress and tells it (Pulse). A member that is told twice, without progress in between, asks
the next one on the left, in the end the master itself, and returns when the nearest answers.

**Limits.** A child is sent at most `window_bytes` that are not on its disk yet (one block may be larger). It reports
how far its disk is, to the master with its numbers, to another feeder with Got, once for every quarter of the window.
So a slow or full disk keeps a limited number of blocks in memory, there and here. A child that is too slow for the
blocks that are kept is refused, and reset when it asks again.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from leveret.base.shared_values import NO_DICT, shared
from leveret.metadata.model.view import View
from leveret.replication.packed_block import is_prompt
from leveret.replication.ring_frames import (
    NEWBORN_PATIENCE,
    Attach,
    Blocks,
    Deny,
    Detach,
    Entry,
    Got,
    Numbers,
    ProtocolError,
    Reset,
)
from leveret.storage.format.queue_block import Block

if TYPE_CHECKING:
    from leveret.replication.member import Member


@lru_cache(maxsize=1_024)
def _left(view: View, me: str, star: bool) -> tuple[str, ...]:
    """Return the members that may feed this one, nearest first. Most queues of a node have one of a few views."""
    order = view.order()
    left = tuple(reversed(order[: order.index(me)])) if me in order else ()
    return shared(left[-1:] + left[:-1] if star else left)


class Child:
    """A member that this one feeds."""

    __slots__ = ("name", "next", "acked", "told")

    def __init__(self, name: str, following: int) -> None:
        self.name = name
        self.next = following  # The first block that was not sent to it.
        self.acked = following - 1  # The last block on its disk.
        self.told = -1  # The confirmed number that it was told.


class Feeding:
    """The neighbours of a member in the ring."""

    __slots__ = (
        "member", "left", "feed", "children", "waiting", "relay", "moved", "_tried", "_quiet", "_asked", "_lagged",
        "_got_sum",
    )  # fmt: skip

    def __init__(self, member: Member) -> None:
        self.member = member
        self.left: tuple[str, ...] = ()  # Members that may feed this one, nearest first.
        self.feed: str | None = None
        self.children: tuple[Child, ...] = ()
        self.waiting: tuple[tuple[str, Attach], ...] = ()  # Members to be fed once this log is matched.
        self.relay: dict[str, Entry] = NO_DICT  # Numbers of others, to be passed on towards the master.
        self.moved = False  # There are blocks or numbers for the children.
        self._tried = 0  # How many members on the left were asked in vain.
        self._quiet = 0  # Ticks since one was asked, or since blocks arrived.
        self._asked = False  # It has asked to be fed again because of a gap, in this tick.
        self._lagged = -1  # The end of the log when the master last said that it lags.
        self._got_sum = 0  # Bytes up to the block that the feeder knows to be durable here.

    @property
    def wants_tick(self) -> bool:
        member = self.member
        if member.master is not None:
            return self.has_news
        if member.is_newborn:
            return False  # Its group is at rest before its first block.
        if not member.matched or self._asked or self.has_news:
            return True
        for name in self.left:
            if name in member.links:
                return name != self.feed
        return self.feed is not None

    @property
    def has_news(self) -> bool:
        """Whether a child does not know all that is confirmed. Its next blocks or the tick tell it."""
        confirmed = self.member.confirmed
        for child in self.children:  # noqa: SIM110 (asked very often)
            if child.told < confirmed:
                return True
        return False

    def child(self, name: str) -> Child | None:
        for child in self.children:
            if child.name == name:
                return child
        return None

    def _drop(self, name: str) -> None:
        if self.children:
            self.children = tuple(child for child in self.children if child.name != name)

    def lowest(self, view: View) -> int | None:
        """Return the block that every child that is not in sync has on disk. Those in sync have all that is confirmed.
        """
        found = None
        for child in self.children:
            if view.disk_of(child.name) is None and (found is None or child.acked < found):
                found = child.acked
        return found

    # -- events ----------------------------------------------------------------------

    def on_view(self, view: View, is_new_epoch: bool) -> None:
        self.left = _left(view, self.member.me, self.member.options.star)
        if is_new_epoch:
            self.children, self.relay = (), NO_DICT
            if self.waiting:
                self.waiting = tuple(item for item in self.waiting if item[1].epoch >= view.epoch)
            self.feed, self._lagged = None, -1

    def on_peer_up(self, peer: str) -> None:
        if self.feed is None or peer in self.left:
            self.seek()

    def on_peer_down(self, peer: str) -> None:
        self._drop(peer)
        self._wait_no_longer(peer)
        if self.feed == peer or (self.member.is_newborn and peer in self.left):
            self.feed = None
            self.seek()

    def on_tick(self) -> None:
        for child in self.children:
            if child.told < self.member.confirmed:
                self._push(child, True)
        if self.member.master is not None:
            return
        self._asked = False
        self._quiet += 1
        retry = self.member.options.retry * (NEWBORN_PATIENCE if self.member.is_newborn else 1)
        if self.feed is None or not self.member.matched:
            if self._quiet >= retry:
                self.feed = None
                self.seek()
        elif self._quiet >= 4 * retry:
            self.seek()

    def on_truncated(self, number: int) -> None:
        for child in self.children:
            child.next = min(child.next, number + 1)
            child.acked = min(child.acked, number)
        self._got_sum = min(self._got_sum, self.member.tail.sum_to(self.member.durable))

    def on_restarted(self) -> None:
        """Refuse all children: the log starts again."""
        member = self.member
        assert member.view is not None
        for child in self.children:
            member.send(child.name, Deny(member.view.epoch))
        self.children = ()
        self._got_sum = member.tail.sum_to(member.tail.end)

    # -- being fed -------------------------------------------------------------------

    def seek(self) -> None:
        """Ask the nearest member on the left for blocks, except those that did not answer."""
        view = self.member.view
        assert view is not None
        if self.feed is not None and self.feed not in self.left:
            self.member.send(self.feed, Detach(view.epoch))
            self.feed = None
        left = [name for name in self.left if name in self.member.links]
        self._quiet = 0
        if not left:
            return
        if self.feed is None:
            self._attach(left[self._tried % len(left)])
            self._tried += 1
        elif left[0] != self.feed:
            self._attach(left[0])

    def _attach(self, to: str) -> None:
        member = self.member
        assert member.view is not None
        self._got_sum = member.tail.sum_to(member.durable)
        member.send(to, Attach(member.view.epoch, member.view.version, member.tail.history, member.tail.end))

    def on_deny(self, src: str, frame: Deny) -> None:
        if self.feed in (None, src) and self.member.master is None:
            self.feed = None
            if self._tried < len(self.left):  # After each was asked once, the tick asks again.
                self.seek()

    def on_reset(self, src: str, frame: Reset) -> None:
        member = self.member
        assert member.view is not None
        if frame.version > member.view.version:
            return  # By its own view this member is still in sync, so it must not drop anything.
        if member.master is None and member.tail.common(frame.history, frame.cut) < frame.cut:
            if member.has_lost_blocks:
                member.withdraw()
                return
            member.restart(frame.cut, frame.history, frame.known, frame.bound, frame.delivered)
            self.feed = src

    def on_blocks(self, src: str, frame: Blocks) -> None:
        member = self.member
        tail = member.tail
        if member.master is not None:
            return
        if tail.epoch_at(frame.previous) != frame.previous_epoch:
            if not self._asked:  # There is a gap, or a conflict further back.
                self._asked = True
                self._attach(src)
            return
        self._asked = False
        was_matched, was_newborn = member.matched, member.is_newborn
        if frame.blocks:
            blocks = frame.blocks if frame.previous == tail.end else self._unknown(src, frame.blocks)
            if blocks:
                member.append(blocks)
                if any(map(is_prompt, blocks)) and not (was_newborn and tail.end == 1):
                    member.report()
        if not member.matched:
            return
        self._quiet = 0
        if src != self.feed:
            self._choose(src)
        if not was_matched:
            if not (was_newborn and tail.end == 1):  # The start block of a new group is reported when it is on disk.
                member.report()
        member.raise_version(frame.version)
        member.confirm_to(min(frame.confirmed, tail.end))

    def _unknown(self, src: str, blocks: tuple[Block, ...]) -> tuple[Block, ...]:
        """Return the blocks that are not in the log yet, after cutting off conflicting ones."""
        member = self.member
        tail = member.tail
        assert member.view is not None
        for at, block in enumerate(blocks):
            if block.number > tail.end:
                return blocks[at:]
            if tail.epoch_at(block.number) == block.epoch:
                continue
            if block.number <= max(member.confirmed, member.read_at):
                if member.view.lossy <= tail.epoch_at(member.confirmed):
                    raise ProtocolError(f"{member.me} holds another block {block.number} as confirmed")
                member.restart(0, (), 0, 0)  # After a forced promotion; applied blocks cannot be undone.
                self._attach(src)
                return ()
            member.truncate(block.number - 1)
            return blocks[at:]
        return ()

    def _choose(self, src: str) -> None:
        """Be fed by the nearest of the members that feed this one."""
        assert self.member.view is not None
        left, other = self.left, self.feed
        if src not in left:
            return
        if other is None or other not in left or left.index(src) < left.index(other):
            self.feed, self._tried = src, 0
        else:
            other = src
        if other is not None:
            self.member.send(other, Detach(self.member.view.epoch))

    def on_lag(self, end: int) -> None:
        """Note where the master's log ends. If this log makes no progress towards it, its feeder has no blocks."""
        member = self.member
        if end > member.tail.end or not member.matched:
            if member.tail.end == self._lagged and member.durable == member.tail.end:
                self.feed = None
                self.seek()
            self._lagged = member.tail.end

    # -- feeding -----------------------------------------------------------------------

    def on_attach(self, src: str, frame: Attach) -> None:
        member = self.member
        tail, view = member.tail, member.view
        assert view is not None
        if not member.matched:
            self.wait(src, frame)
            return
        known = tail.common(frame.history, frame.end)
        start = known + 1
        if known < tail.base:
            if not member.complete or member.confirmed < member.read_at:
                member.send(src, Deny(view.epoch))
                return
            cut = member.confirmed
            # The dropped blocks were confirmed, perhaps under a view without the asker that neither of the two has yet.
            # The asker must have that view before it drops anything; hence not the version of this member's view.
            history, messages = tail.history_to(cut), member.messages
            member.send(src, Reset(view.epoch, member.version, cut, history, known, messages, member.delivered))
            start = cut + 1
        child = Child(src, start)
        self._drop(src)
        self.children = (*self.children, child)
        self._push(child, True)

    def wait(self, src: str, frame: Attach) -> None:
        """Note a member that wants to be fed, and cannot be yet."""
        self._wait_no_longer(src)
        waiting = (*self.waiting, (src, frame))
        self.waiting = waiting if frame.end else shared(waiting)  # The same members wait at many new queues.

    def _wait_no_longer(self, src: str) -> None:
        if self.waiting:
            self.waiting = tuple(item for item in self.waiting if item[0] != src)

    def serve_waiting(self) -> None:
        waiting, self.waiting = self.waiting, ()
        for peer, attach in waiting:
            self.on_attach(peer, attach)

    def on_detach(self, src: str, frame: Detach) -> None:
        self._drop(src)

    def on_got(self, src: str, frame: Got) -> None:
        self._on_durable(src, frame.durable)

    def _on_durable(self, src: str, durable: int) -> None:
        child = self.child(src)
        if child is not None and child.acked < durable < child.next:
            child.acked = durable
            self.moved = True

    def flush(self) -> None:
        self.moved = False
        if self.waiting and self.member.matched:
            self.serve_waiting()
        end = self.member.tail.end
        for child in self.children:
            if child.next <= end:
                self._push(child, False)

    def _push(self, child: Child, always: bool) -> None:
        """Send the blocks that a child lacks, within its window. `always`: at least the confirmed number."""
        member = self.member
        tail, options, view = member.tail, member.options, member.view
        assert view is not None
        if child.next <= tail.base:
            self._drop(child.name)
            member.send(child.name, Deny(view.epoch))
            return
        # Blocks confirmed before a forced promotion may be lost by it, so they are not passed on as confirmed.
        lasting = not view.lossy or tail.epoch_at(member.confirmed) >= view.lossy
        confirmed = member.confirmed if lasting else 0
        while True:
            flying = tail.bytes_between(child.acked, child.next - 1)
            room = options.window_bytes - flying
            blocks: tuple[Block, ...] = ()
            if child.next <= tail.end and (room > 0 or not flying):
                blocks = tail.since(child.next, options.frame_blocks, min(room, options.frame_bytes))
            if not blocks and not always:
                return
            previous = child.next - 1
            epoch = tail.epoch_at(previous)
            member.send(child.name, Blocks(view.epoch, member.version, confirmed, epoch, previous, blocks))
            child.next += len(blocks)
            child.told = member.confirmed
            always = False
            if child.next > tail.end:
                return

    # -- numbers -----------------------------------------------------------------------

    def on_numbers(self, src: str, frame: Numbers) -> None:
        master = self.member.master
        for name, entry in frame.entries:
            if name == src:
                self._on_durable(src, entry.durable)
            if master is not None:
                master.on_entry(name, entry)
            elif name in self.left or self.child(name) is not None:
                self.relay = {**self.relay, name: entry}
        self.member.report()

    def tell(self, view: View) -> bool:
        """Send numbers towards the master. Return False if there is no link; they are sent with the next one."""
        member = self.member
        home = view.master if view.master in member.links else self.feed
        if home is None:
            return False
        entries = ((member.me, member.entry()), *self.relay.items())
        self.relay = NO_DICT
        member.send(home, Numbers(view.epoch, entries))
        feed = self.feed
        if feed is not None and feed != home and member.matched:
            sum_now = member.tail.sum_to(member.durable)
            if sum_now - self._got_sum >= member.options.window_bytes // 4:
                self._got_sum = sum_now
                member.send(feed, Got(view.epoch, member.own_durable))
        return True
