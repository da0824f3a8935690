"""The spools of one node: which queues have one, how much they may hold, their figures. See `store_and_forward`.

**Room.** Where the strategy says so (`heals`), nothing is sent to a node whose disk cannot hold all that waits for it
here. Nodes tell each other how much they may write before their disk alarm (`DISK_ROOM`, in `links.frame_types`): at
once when they connect, then whenever they have measured it. What waits for a node is what all spools hold for queues
that it leads or mirrors, without what is under way. Both are as old as the last measurement, which does not matter:
what was sent since is missing from the one and will be from the other. A mirror that has no link to this node cannot
tell; its master hears of its alarm. The disk of this node counts only for queues that it has copies of: sending the
others on makes room here.

The result of a survey holds until one of its inputs changes, and for a second at most: a survey looks at all spools,
and is not made for each batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from leveret.base.visible_text import visible
from leveret.broker.remote.outbox import take_unconfirmed
from leveret.broker.remote.remote_queue import RemoteQueue
from leveret.broker.remote.store_and_forward import SPOOL, Spool
from leveret.metadata.model.refusals import resource

if TYPE_CHECKING:
    from leveret.broker.broker import AnyQueue, Broker
    from leveret.broker.remote.spool_delivery import SpooledBatch, SpoolReader

MAX_BYTES: Final = 1 << 30
REMINDER_TICKS: Final = 60
# Limit for a turn. Publishes that came in small bundles are sent as small batches, thousands in a window; if all
# were sent at once, by several spools, a node whose links are just back would be silent so long that they were lost.
BATCHES_AT_ONCE: Final = 128
UNLIMITED: Final = 1 << 62


class Stored(Protocol):
    """What the log holds of a spool."""

    @property
    def count(self) -> int: ...


class Short(NamedTuple):
    """A node whose disk cannot hold what waits to be sent there."""

    node: str
    due_bytes: int
    room_bytes: int

    def __str__(self) -> str:
        return f"{self.node} has room for {self.room_bytes} bytes, and {self.due_bytes} wait to be sent there"


class Figures(NamedTuple):
    """The figures shown of a spool."""

    queue: str
    vhost: str
    home: str  # The node of its queue.
    state: str  # collecting, delivering, sending, waiting, empty
    reason: str  # Why nothing is sent.
    messages: int
    bytes: int
    oldest: int  # Age of its first message in seconds.
    sent: int  # This and what follows: since the node started.
    expired: int
    refused: int  # Publishes that it had no room for.
    delivered: int  # Messages that clients of this node were given and are done with.


class SpoolRegistry:
    """All spools of one node."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.content_bytes_max = MAX_BYTES
        self.room_of: Callable[[str], int | None] = lambda node: UNLIMITED  # Free bytes on its disk; None: not known.
        self.by_target: dict[int, Spool] = {}
        self.active: dict[Spool, None] = {}  # Those with messages.
        self.readers: dict[int, SpoolReader] = {}  # By target: who delivers what is in its spool to clients here.
        self.fronts: dict[RemoteQueue, None] = {}  # In place of queues led here, while there is no majority.
        self.stalled: dict[Spool, None] = {}  # Those whose link has no room.
        self.batches_left = BATCHES_AT_ONCE  # Batches that all spools may still send in this turn.
        self.later: list[Spool] = []  # Those that go on in the next turn.
        self.watchers: list[Callable[[], None]] = []  # Called once, when the next messages have left some spool.
        self.content_bytes = 0
        self.is_full = False
        self.dropped = 0  # Messages whose queues were deleted.
        self.waited = 0  # How often sending stopped because a disk was too small.
        self.short: dict[str, Short] = {}  # The nodes whose disk is too small now.
        self.is_surveyed = False
        self.ticks = 0

    @property
    def heals(self) -> bool:
        return self.broker.partition_handling.heals

    # -- Making and ending ---------------------------------------------------------------------------------------

    def open(self, numbers: Mapping[int, Stored]) -> set[int]:
        """At the start: restore the spools in the log. Returns which of their numbers are still needed. A spool may
        exist already, for a dead-lettered message: queues work by themselves while a node catches up."""
        kept = {spool.spec.id for spool in self.by_target.values()}
        for number, stored in list(numbers.items()):
            if not number & SPOOL or not stored.count or number in kept:
                continue  # An empty one is not needed: the next spool has another name.
            queue = self.broker.queues_by_id.get(number & ~SPOOL)
            if queue is None:
                self.dropped += stored.count
                self._note("warning", f"{stored.count} messages kept for a queue are dropped: it was deleted meanwhile")
                continue
            kept.add(number)
            self._make(queue)
            if not queue.is_local:
                queue.set_spool(self.attach(queue))
        return kept

    def _make(self, queue: AnyQueue) -> Spool:
        """Make a spool with what the log has of it: a new one would give its numbers a second time."""
        spool = self.by_target[queue.spec.id] = Spool(self, queue.spec)
        self.broker.node.adopt(spool)
        spool.begin()
        if spool.count:
            self.content_bytes += spool.content_bytes
            self.activate(spool)
        return spool

    def attach(self, remote: RemoteQueue) -> Spool | None:
        """Returns the spool, if it has messages, of a queue that is led by another node from now on."""
        spool = self.by_target.get(remote.spec.id)
        if spool is None or spool not in self.active:
            return None
        spool.add_front(remote)
        self.is_surveyed = False
        return spool

    def release(self, remote: RemoteQueue) -> None:
        """Part a queue from a spool that has no messages: one may be begun and take none, and then nothing that is
        sent on would ever empty it."""
        spool = remote.spool
        if spool is not None and spool not in self.active:
            spool.remove_front(remote)
            remote.set_spool(None)

    def may_begin(self, remote: RemoteQueue) -> bool:
        """Returns whether publishes for a queue that is out of reach are spooled. Those for a mirrored queue wait
        instead where a majority can agree on its next master."""
        spec, mirrors = remote.spec, self.broker.mirrors
        if not self.broker.partition_handling.spools or not spec.durable or spec.exclusive or remote.deleted:
            return False
        is_hopeless = remote.is_hopeless or remote.is_late or not mirrors.majority or mirrors.ha_rules.is_down(spec)
        return spec.view is None or is_hopeless

    def may_take_unconfirmed(self, queue: AnyQueue) -> bool:
        """Returns whether publishes in doubt are spooled, to be sent again with their numbers."""
        spec = queue.spec
        return self.broker.partition_handling.spools and spec.durable and not spec.exclusive and not queue.deleted

    def begin(self, remote: RemoteQueue) -> Spool:
        spool = self.by_target.get(remote.spec.id)
        if spool is None:
            spool = self._make(remote)
        remote.set_spool(spool)
        spool.add_front(remote)
        self.take_unconfirmed(spool)  # Before later publishes.
        return spool

    def take_unconfirmed(self, spool: Spool) -> None:
        """Have a spool take what the outbox of its queue has. Publishes that waited for that follow."""
        outbox = self.broker.outboxes.of(spool.target)
        spool.adopt(outbox.take_all())
        outbox.have_look()

    def on_majority(self, reachable: bool) -> None:
        """A master that is cut off from the majority confirms nothing: another node may lead its queue by now. To its
        own clients such a queue is out of reach like one of another node, so a `RemoteQueue` takes its place."""
        fronts, self.fronts = self.fronts, {}
        for front in fronts:
            front.step_aside()
        if reachable or not self.broker.partition_handling.spools:
            return
        for mirror in self.broker.mirrors:
            queue, spec = mirror.queue, mirror.spec
            vhost = self.broker.vhosts.get(spec.vhost)
            if queue is None or not queue.frozen or vhost is None or vhost.queues.get(spec.name) is not queue:
                continue
            front = RemoteQueue(queue.spec, self.broker)
            front.set_successor(queue)
            self.broker.replace(queue, front)
            self.broker.queues_by_id[spec.id] = queue  # For everything but clients nothing changes.
            self.fronts[front] = None
            if self.may_take_unconfirmed(queue) and take_unconfirmed(self.broker, mirror, queue):
                front.answer_publishers()

    def activate(self, spool: Spool) -> None:
        """A spool has messages, or is about to."""
        if spool not in self.active:
            self.active[spool] = None
            self.is_surveyed = False
            queue = resource("queue", spool.spec.name, spool.spec.vhost)
            self._note("warning", f"messages for {queue} are kept in a spool until its node can be reached")
        self.broker.dirty[spool] = None

    def may_keep(self, spool: Spool, size: int) -> bool:
        """Returns whether there is room for a publish, and a reason to spool it."""
        if not self.broker.partition_handling.spools and self._obstacle(spool, self._target(spool)):
            return False
        if self.content_bytes + size <= self.content_bytes_max:
            return True
        if not self.is_full:
            self.is_full = True
            self._note("error", f"spools are full: {self.content_bytes} of {self.content_bytes_max} bytes; "
                       "publishes for queues that cannot be reached are refused")  # fmt: skip
        return False

    def on_empty(self, spool: Spool) -> None:
        if self.active.pop(spool, 0) is None:
            queue = resource("queue", spool.spec.name, spool.spec.vhost)
            self._note("info", f"the spool of {queue} is empty: {spool.sent} sent on, {spool.expired} expired")
        for front in spool.take_fronts():
            front.set_spool(None)
            if front not in self.fronts:  # Else its queue is still cut off.
                front.step_aside()
        self._look()
        self.on_progress()

    def on_progress(self) -> None:
        """Messages have left a spool: sent, expired or dropped."""
        watchers, self.watchers = self.watchers, []
        for watcher in watchers:
            watcher()

    def on_deleted(self, target: int) -> None:
        spool = self.by_target.pop(target, None)
        if spool is None:
            return
        if spool.count:
            self.dropped += spool.count
            queue = resource("queue", spool.spec.name, spool.spec.vhost)
            self._note("warning", f"{spool.count} messages kept for {queue} are dropped: it was deleted")
        self.active.pop(spool, None)
        self.stalled.pop(spool, None)
        spool.on_deleted()
        self.broker.forget(spool)
        if self.broker.ended is not None:
            del self.broker.ended[spool]  # Its queue counts what was published.
        self._look()
        self.on_progress()

    def _look(self) -> None:
        if self.is_full and self.content_bytes < self.content_bytes_max * 9 // 10:
            self.is_full = False
            self._note("info", "spools have room again")

    # -- Delivering here -----------------------------------------------------------------------------------------

    def begin_delivery(self, target: int, reader: SpoolReader) -> None:
        """Have what is in a queue's spool, and comes there, delivered to clients of this node."""
        self.readers[target] = reader
        spool = self.by_target.get(target)
        if spool is not None:
            self.broker.dirty[spool] = None

    def end_delivery(self, target: int, unseen: list[tuple[SpooledBatch, int, int]]) -> None:
        """Deliver nothing more here. `unseen`: what was lent and not delivered."""
        if self.readers.pop(target, None) is not None and target in self.by_target:
            self.by_target[target].delivery.end(unseen)

    def has_lent(self, target: int) -> bool:
        """Returns whether clients of this node have messages of a spool in hand."""
        return target in self.by_target and bool(self.by_target[target].delivery.lent)

    def recall(self, target: int) -> None:
        """Send on what clients of this node have in hand, too: nobody hears any more what they say of it."""
        if target in self.by_target:
            self.by_target[target].delivery.recall()

    # -- Sending on ----------------------------------------------------------------------------------------------

    def _target(self, spool: Spool) -> AnyQueue | None:
        return self.broker.queues_by_id.get(spool.target)

    def _obstacle(self, spool: Spool, target: AnyQueue | None) -> str:
        """Returns why nothing can be sent on; empty: nothing is in the way."""
        if target is None:
            return "its queue is gone"
        if target.parked is not None:
            return "its queue is between two nodes"
        if target.is_local:
            return "its queue is cut off from its mirrors" if target.frozen else ""
        if target.client_end is None:
            return f"{target.spec.node} cannot be reached"
        return ""

    def way(self, spool: Spool) -> AnyQueue | None:
        """Returns the queue if its messages can be sent now."""
        target = self._target(spool)
        return None if target is None or self._obstacle(spool, target) else target

    def shortage(self, target: AnyQueue) -> str:
        """Returns which disk that this queue needs is too small for what waits to be sent there; empty: none."""
        if not self.heals:
            return ""
        if not self.is_surveyed:
            self._survey()
        if self.room_of(target.spec.node) is None:
            return f"{target.spec.node} has not told how much room it has"
        return next((str(self.short[node]) for node in _takers(target) if node in self.short), "")

    def _survey(self) -> None:
        """Compare what waits for each node with the room that it has."""
        self.is_surveyed = True
        due: dict[str, int] = {}
        for spool in self.active:
            target = self._target(spool)
            if target is not None and self.heals and not self._obstacle(spool, target):
                for node in _takers(target):
                    due[node] = due.get(node, 0) + spool.waiting_bytes
        before, short = self.short, {}
        for node, due_bytes in due.items():
            room = self.room_of(node)
            if room is not None and room < due_bytes:
                short[node] = Short(node, due_bytes, room)
        self.short = short
        for node in short.keys() - before.keys():
            self.waited += 1
            self._note("warning", f"spools are not sent on until there is enough disk space: {short[node]}")
        for node in before.keys() - short.keys():
            self._note("info", f"spools no longer wait for disk space at {node}")

    def on_room(self) -> None:
        """A link has room again."""
        for spool in self.stalled:
            self.broker.dirty[spool] = None
        self.stalled.clear()

    def on_turn(self) -> None:
        """A turn is over: the spools that had to wait go on in the next one."""
        self.batches_left = BATCHES_AT_ONCE
        if self.later:
            first, *others = self.later  # The first used the limit up: it goes last. `dirty` is taken from its end.
            self.later = []
            self.broker.dirty.update(dict.fromkeys((first, *reversed(others))))

    def wake(self) -> None:
        """Let all spools try to send."""
        self.is_surveyed = False
        for spool in self.active:
            self.broker.dirty[spool] = None

    def tick(self) -> None:
        """Once a second."""
        self.ticks = self.ticks + 1 if self.active else 0
        if self.ticks and self.ticks % REMINDER_TICKS == 0:
            self._remind()  # Before they try again, which changes their state.
        for spool in self.active:
            spool.resting = False
            spool.delivery.tick()
        self.wake()
        if self.short:
            self._survey()  # Else it would not be made when nothing waits for the node any more.
        self._look()

    def _remind(self) -> None:
        for one in self.figures():
            if one.messages:
                queue = resource("queue", one.queue, one.vhost)
                why = f"; {one.reason}" if one.reason else ""
                kept = f"{one.messages} messages ({one.bytes} bytes), the first for {one.oldest} s"
                self._note("warning", f"the spool of {queue} has {kept}{why}")

    # -- For people ----------------------------------------------------------------------------------------------

    @property
    def alarms(self) -> list[str]:
        told = (("spool_in_use", self.active), ("spool_full", self.is_full), ("spool_without_room", self.short))
        return [name for name, is_set in told if is_set]

    def figures(self) -> list[Figures]:
        return [self.figures_of(spool) for spool in self.by_target.values()]

    def figures_of(self, spool: Spool) -> Figures:
        target = self._target(spool)
        reason = self._obstacle(spool, target) if spool.count else ""
        state = "collecting" if reason else "sending" if spool.count else "empty"
        if spool.target in self.readers:
            state = "delivering"
        if not reason and spool.count and target is not None:
            reason = self.shortage(target) or ("its queue refuses them" if spool.resting else "")
            state = "waiting" if reason else state
        oldest = max(self.broker.wall_ms - spool.oldest_ms(), 0) // 1000 if spool.count else 0
        home = "" if target is None else target.spec.node
        return Figures(
            spool.spec.name, spool.spec.vhost, home, state, reason, spool.count, spool.content_bytes, oldest,
            spool.sent, spool.expired, spool.turned_away, spool.delivery.settled_count,
        )  # fmt: skip

    def _note(self, level: str, text: str) -> None:
        self.broker.node.note("queue", level, visible(text))


def _takers(target: AnyQueue) -> tuple[str, ...]:
    """Returns the nodes whose disks take what is sent to a queue."""
    view = target.spec.view
    return (target.spec.node,) if view is None else view.ring
