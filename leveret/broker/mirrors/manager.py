"""The mirrored queues that this node has a copy of, and what the ring says of each put into effect.

A `Member` (see `leveret.replication.member`) decides; it says what to send, what to write, what is confirmed, and when
this node leads a queue or leads it no longer. Here that becomes a `Queue` that clients use, or one that they use no
longer.

    enqueue, settle …                            Member.submit ─▶ Blocks to the right ─▶ … ─▶ numbers come home
         │                                            ▲      └──▶ Write: this node's log, in the next group commit
         ▼                                            │
       Queue ──take_block, when the disk is free──────┘           Confirmed ─▶ the publishers' Pending

Three things differ from a queue without mirrors. All messages go into blocks, transient ones too, because the mirrors
know only blocks. A publisher is told when the ring has confirmed its block, not when this disk has it. And while the
node has no contact to the majority, its master does not serve: nothing is delivered, nothing is taken.

**Becoming master.** `Started` brings the blocks that are not applied yet; what is stored plus these is the queue. All
that was out with consumers of the old master waits again, marked as redelivered.

**Being master no longer.** Messages and publishers' waits of this node's `Queue` are void: the new master has what
counts. Messages that were not confirmed are sent to it again, by whoever has them from a client (see `outbox`). Those
that came from other nodes are not in doubt if the queue was handed over: then the new master has them, and they are
confirmed when this node hears so. Consumers subscribe at the new master by themselves
(see `remote`), and what they acknowledge of earlier deliveries is passed on (see `bequest`).

**Mirrored no longer.** When a queue's master is all that is left of its ring, and nobody wants it mirrored (`placing`),
the view ends, and the queue goes on as one that never had mirrors, with all it has: see `adopting`.

**Handing over.** Publishes and questions wait (`Queue.hold`) from the moment in which the last block
was taken until there is another master, or none; then they go there. So nobody is refused anything.

**So much in a turn.** A node may have a hundred thousand copies, and one event may concern them all. Nothing here goes
through all of them at once: `rounds` tells them what happened, some in each turn, and `flush` puts into effect what has
come of it, in the order in which they were touched, and ends after so many effects. Then `has_work` says that there is
more, and whatever else the node has to do comes between. While more is to be done than a turn has room for, the time
of copies goes more slowly, by up to `TICKS_SKIPPED_MAX`: otherwise thousands would ask again for answers that wait
here, and have still more to do.

**Used ones first.** When a node is lost, thousands of queues need another view, and each is a command that all nodes
agree on and apply. Queues that are used are told first (`rounds`). Others are told when these have their views, and
while fewer than `PROPOSED_AT_ONCE` views of this node are under way. So a queue that somebody uses waits for a few
dozen commands at most, whenever its turn comes, and not for thousands. While clients publish here, the others are told
a few in each tick, so that most of the node's time is left for these.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from leveret.broker.delivery.confirms import DOUBTED
from leveret.broker.event_journal.queue_journal import QueueJournal
from leveret.broker.kinds.priority_queue import claims_of
from leveret.broker.kinds.stream import StreamQueue, make_queue, restore_stream
from leveret.broker.mirrors.broadcast import Rounds
from leveret.broker.mirrors.convert import Adoption, give_back, take_over
from leveret.broker.mirrors.copy_store import MirrorStore, Reading, restore_queue, stored_marks
from leveret.broker.mirrors.ha_rules import Governing
from leveret.broker.mirrors.log_lines import Journal
from leveret.broker.queue.delivery_limit import Returns
from leveret.broker.queue.hold import go_on, release
from leveret.broker.queue.state import Access
from leveret.broker.remote.outbox import begin_reign, rescue
from leveret.links.frame_types import RING
from leveret.links.proposals import BadFrame
from leveret.metadata.model import commands as c
from leveret.metadata.model.view import JOINED
from leveret.replication import frame_codec
from leveret.replication import ring_frames as f
from leveret.replication.frame_codec import Packer, Unpacker
from leveret.replication.member import Member
from leveret.replication.ring_frames import Options

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.delivery.batch import Batch
    from leveret.broker.delivery.confirms import Pending
    from leveret.broker.queue.queue import Queue
    from leveret.broker.remote.outbox import Post
    from leveret.metadata.model.records import QueueSpec
    from leveret.metadata.model.view import View
    from leveret.metadata.store import Applied

BUSY_TICKS: Final = 5  # After a block of any queue, this node counts as one that has work.
EFFECTS_AT_ONCE: Final = 256  # In a turn; most take some microseconds, to become master takes a hundred.
TICKED_AT_ONCE: Final = 128
PROPOSED_AT_ONCE: Final = 32  # Views under way; while there are more, no further queues hear of what happened.
TICKS_SKIPPED_MAX: Final = 10


class Mirror:
    """This node's copy of one queue."""

    __slots__ = (
        "handed", "heard", "in_blocks", "joined", "member", "posts", "proposed", "queue", "spec", "syncing",
        "unapplied",
    )  # fmt: skip

    def __init__(self, spec: QueueSpec, member: Member) -> None:
        self.spec = spec
        self.member = member
        self.heard = 0  # See `rounds`.
        self.joined = spec.joined[member.me]  # The version of the view with which it became a member.
        self.queue: Queue | None = None  # While this node leads it.
        self.in_blocks: deque[tuple[int, Batch | None, list[Pending]]] = deque()  # Not confirmed yet, by number.
        self.posts: deque[tuple[int, Batch | None, list[Post]]] = deque()  # Likewise: which messages are awaited.
        # Confirmed by the master's word alone: the store does not know their messages yet, so the queue must.
        self.unapplied: deque[tuple[int, Batch]] = deque()
        # Handed over before they were confirmed, which the next master does: see `Mirrors._stopped`.
        self.handed: deque[tuple[int, list[Pending]]] = deque()
        self.syncing = False  # As the log has been told.
        self.proposed: View | None = None  # What became of it is not known yet.

    def start(self, queue: Queue) -> None:
        """This node leads the queue."""
        self.queue = queue

    def set_spec(self, spec: QueueSpec) -> None:
        """The metadata says something else of the same queue."""
        self.spec = spec

    def hear(self, told: int) -> None:
        """It has heard so much of what is told to all copies: see `broadcast`."""
        self.heard = told

    def set_syncing(self, syncing: bool) -> None:
        """Mirrors are being filled, or are no longer; the log has been told."""
        self.syncing = syncing

    def hand_on(self, number: int, awaiting: list[Pending]) -> None:
        """A block was handed over before it was confirmed."""
        self.handed.append((number, awaiting))

    def forget_posts(self) -> None:
        """Somebody else sees to the messages that are awaited."""
        self.posts.clear()

    def let_go(self) -> None:
        """This node leads the queue no longer."""
        self.queue = None

    def stop(self) -> None:
        """Likewise, and its blocks that are not confirmed are somebody else's business."""
        self.let_go()
        self.forget_blocks()

    def forget_blocks(self) -> None:
        self.in_blocks.clear()
        self.posts.clear()
        self.unapplied.clear()

    def add_block(self, number: int, batch: Batch | None, awaiting: list[Pending], posts: list[Post]) -> None:
        """A block of the master is on its way round the ring."""
        self.in_blocks.append((number, batch, awaiting))
        if posts:
            self.posts.append((number, batch, posts))

    @property
    def ordered(self) -> bool | None:
        """Whether its mirrors are to be filled; None: as the policy says."""
        return self.member.ordered

    @ordered.setter
    def ordered(self, wanted: bool | None) -> None:
        self.member.ordered = wanted


class Mirrors:
    """All copies on this node."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.me = broker.node_name
        self.disk = ""  # The id of this node's data folder.
        self.life = 0
        self.held_back: dict[Queue, None] = {}  # Have something for a block, and cannot give it now.
        self.mirrors: dict[int, Mirror] = {}
        self.rounds = Rounds(self.mirrors)
        self.touched: dict[Mirror, None] = {}
        self.performing: list[Mirror] = []  # Those that were touched before; the next one last.
        self.ticking: dict[Mirror, None] = {}  # For whom time matters now.
        self.adopting: dict[Mirror, Adoption] = {}  # Whose messages from before they were mirrored are not all stored.
        self.due: list[Mirror] = []  # Whose tick has come; the next one last.
        self.skipped = 0  # Ticks, since there was one.
        self.packers: dict[str, Packer] = {}
        self.unpackers: dict[str, Unpacker] = {}
        self.majority = True
        self.confirmed = 0  # Messages, since the shell last looked.
        self.busy = 0  # Ticks for which mirrors that are being filled leave time for others,
        self.serving = 0  # and for which all that concerns very many queues does.
        self.published = 0  # As of the last tick.
        self.journal = Journal(broker)
        self.governing = Governing(broker)
        self.proposed = 0  # Views that not every node has heard of yet.
        self.proposed_for_used = 0  # Those of them that belong to queues in use.
        self.leaving = False  # This node stops: that it loses its links says nothing about the others.
        # Views are followed once the node has caught up: the barrier that the ring asks for.
        self.store: MirrorStore | None = None

    def __iter__(self) -> Iterator[Mirror]:
        return iter(self.mirrors.values())

    @property
    def has_work(self) -> bool:
        """Whether there is something for `flush`."""
        if self.touched or self.performing or self.due or self.rounds.is_urgent:
            return True
        return bool(self.rounds) and self._may_tell()

    def _may_tell(self) -> bool:
        """Whether the next few copies may hear of what concerns all."""
        if self.rounds.is_urgent:
            return True
        waits = self.is_serving or self.proposed_for_used > 0 or self.proposed >= PROPOSED_AT_ONCE
        return self.rounds.may_follow and not waits

    @property
    def is_serving(self) -> bool:
        """Whether clients have published to queues of this node, through it, or to those it mirrors, a moment ago."""
        return self.serving > 0

    def touch(self, mirror: Mirror) -> None:
        """A copy has something to do: see `flush`."""
        self.touched[mirror] = None

    def on_released(self, queue: Queue) -> None:
        """A queue is mirrored no longer."""
        self.held_back.pop(queue, None)

    def on_adopted(self, mirror: Mirror) -> None:
        """All messages from before a queue was mirrored are stored."""
        del self.adopting[mirror]

    def leave(self) -> None:
        """This node stops."""
        self.leaving = True

    def take_confirmed(self) -> int:
        """How many messages were confirmed since this was last asked."""
        confirmed, self.confirmed = self.confirmed, 0
        return confirmed

    # -- Views ---------------------------------------------------------------------------------------------------

    def open(self, store: MirrorStore, disk: str, life: int) -> None:
        """The node has caught up with what is agreed on."""
        self.store, self.disk, self.life = store, disk, life
        for spec in self.broker.metadata.queues.values():
            if spec.view is not None:
                self.on_view(spec, born=False)
            elif spec.node == self.me and store.is_mirrored(spec.id):
                self._release_late(spec)
        self.flush()

    def _release_late(self, spec: QueueSpec) -> None:
        """The last run ended between the agreement that the queue is mirrored no longer and the log's record of it. The
        queue that stands for it since the start has nothing of it (see `Node.adopt`)."""
        assert self.store is not None
        self.store.release(spec.id)
        old = self.broker.queues_by_id[spec.id]
        assert old.is_local
        self.broker.give_way(old, self.broker.make_queue(spec))

    def on_view(self, spec: QueueSpec, born: bool, existing: Queue | None = None) -> None:
        """A queue has a view, or another one. `born`: it has its first, since a moment ago. `existing`: it was a queue
        of this node before it was mirrored."""
        view = spec.view
        if self.store is None or view is None:
            return
        mirror = self.mirrors.get(spec.id)
        if mirror is not None and self.me in view.ring and mirror.joined != spec.joined[self.me]:
            # It left and came back, and heard of neither. What it led meanwhile it has led in vain.
            if mirror.member.master is not None:
                self._stopped(mirror, f.Stopped(mirror.member.master.epoch))
            self._left(mirror, f.Left(view.version))
            mirror = None
        if mirror is None:
            if self.me not in view.ring:
                return
            mirror = self.mirrors[spec.id] = self._make(spec, born, existing)
        self.rounds.catch_up(mirror)
        mirror.set_spec(spec)
        self._perform(mirror)  # What was said under the old view is done first.
        old = mirror.member.view
        mirror.member.joined = spec.joined
        mirror.member.on_view(view)
        self._perform(mirror)
        self.journal.on_view(mirror, old, born)

    def _make(self, spec: QueueSpec, born: bool, existing: Queue | None) -> Mirror:
        store = self.store
        assert store is not None
        if existing is not None:
            if existing.departure is not None:
                existing.departure.end("it has become mirrored meanwhile")
            store.adopt(spec.id, existing.epoch, existing.next_seq, take_over(self.broker, existing))
        recovered = store.recovered(spec.id)
        joined = spec.joined[self.me]
        disk = disk_id(self.disk, self.broker.run, spec.durable, store.disk(spec.id), joined)
        # Neither ever falls, and for each member that this node makes of the group one of them has risen.
        life = self.life + joined
        member = Member(spec.id, self.me, disk, life, store.lost(spec.id), Options(), recovered, born)
        for peer in self.unpackers:
            member.on_peer_up(peer)
        member.on_majority(self.majority)
        mirror = Mirror(spec, member)
        mirror.hear(self.rounds.told)
        if existing is not None:
            mirror.start(existing)
        if existing is not None and store.stored(spec.id).spilled:
            self.adopting[mirror] = Adoption(self, mirror)
        self.governing.refresh(mirror)
        return mirror

    def on_ended(self, spec: QueueSpec) -> None:
        """The queue is mirrored no longer. Its master goes on with it; who else has a copy was told to go before, and
        has not heard it."""
        mirror = self.mirrors.get(spec.id)
        if mirror is None:
            return
        self.rounds.catch_up(mirror)
        self._perform(mirror)  # What was said under the last view is done first.
        if spec.node != self.me:
            if mirror.member.master is not None:
                self._stopped(mirror, f.Stopped(mirror.member.master.epoch))
            self._left(mirror, f.Left(spec.last_version))
        elif mirror.queue is not None:  # Else its disk has failed, and this node stops: see `open` for its next start.
            assert self.store is not None
            member = mirror.member
            self.store.release(spec.id, member.tail.upto(member.confirmed + 1, member.tail.end))
            give_back(self.broker, mirror.queue, mirror)
            self._drop(mirror)

    def _drop(self, mirror: Mirror) -> None:
        self.mirrors.pop(mirror.spec.id, None)
        self.touched.pop(mirror, None)
        self.ticking.pop(mirror, None)
        self.adopting.pop(mirror, None)
        self.governing.forget(mirror)
        self.rounds.forget(mirror)

    def on_deleted(self, spec: QueueSpec) -> None:
        mirror = self.mirrors.get(spec.id)
        if mirror is not None:
            self._drop(mirror)
            queue = mirror.queue
            mirror.let_go()
            if queue is not None:
                release(queue)
                self.broker.on_loaded(queue)  # Who wanted to get one, and waited until it may be given out.
                self.held_back.pop(queue, None)
                self.broker.unlogged.pop(queue, None)  # What was settled last needs no block any more,
                self.broker.delivering.pop(queue, None)  # and there is no store that would take one.
            for awaiting in (*(one[2] for one in mirror.in_blocks), *(one[1] for one in mirror.handed)):
                for pending in awaiting:  # Whoever deleted the queue has taken care of its messages.
                    pending.on_safe()
            self._forget(spec.id)

    def queue_of(self, number: int) -> Queue | None:
        """The queue, if this node leads it."""
        mirror = self.mirrors.get(number)
        return None if mirror is None else mirror.queue

    # -- Input ---------------------------------------------------------------------------------------------------

    def on_peer_up(self, peer: str) -> None:
        self.packers[peer], self.unpackers[peer] = Packer(), Unpacker()
        if self.broker.journal is not None:
            self.broker.journal.tell("partition", peer, state="linked")
        self.governing.on_peer_up(peer)

        def tell(mirror: Mirror) -> None:
            mirror.member.on_peer_up(peer)
            self.journal.on_peer_up(mirror, peer)
            self.touched[mirror] = None

        self.rounds.tell(tell)

    def on_peer_down(self, peer: str) -> None:
        if self.broker.journal is not None and peer in self.packers:
            self.broker.journal.tell("partition", peer, state="lost")
        self.packers.pop(peer, None)
        self.unpackers.pop(peer, None)
        has_failed = peer not in self.governing.departed

        def tell(mirror: Mirror) -> None:
            mirror.member.on_peer_down(peer)
            if has_failed:
                self.broker.detachment.on_failed(mirror, peer)
                self.governing.on_failed(mirror, peer)
            self.journal.on_peer_down(mirror, peer)
            self.touched[mirror] = None

        self.rounds.tell(tell)
        self.governing.on_lost(peer)

    def on_frame(self, peer: str, payload: bytes) -> None:
        """Raises `BadFrame`."""
        try:
            found = self.unpackers[peer].feed(payload)
        except frame_codec.BadFrame as error:
            raise BadFrame(str(error)) from None
        for group, frame in found:
            mirror = self.mirrors.get(group)
            if mirror is not None:
                self.rounds.catch_up(mirror)
                mirror.member.on_frame(peer, frame)
                self.touched[mirror] = None

    def on_majority(self, reachable: bool) -> None:
        if reachable != self.majority:
            self.majority = reachable
            if self.broker.journal is not None:
                self.broker.journal.tell("partition", state="majority" if reachable else "minority")
            if reachable:
                self.broker.detachment.end()
            else:  # That nothing is handed out any more is all that cannot wait.
                for mirror in self.mirrors.values():
                    if mirror.queue is not None:
                        mirror.queue.freeze()

            def tell(mirror: Mirror) -> None:
                mirror.member.on_majority(reachable)
                self.touched[mirror] = None
                self._serve(mirror)

            self.rounds.tell(tell)
            self.broker.spools.on_majority(reachable)

    def catch_up(self, mirror: Mirror) -> None:
        """Put into effect all that a copy has heard of."""
        self.rounds.catch_up(mirror)
        self._perform(mirror)

    def hasten(self, number: int) -> None:
        """A client of this node waits for the next master of a queue."""
        mirror = self.mirrors.get(number)
        if mirror is not None:
            self.rounds.hasten(mirror)

    def on_synced(self, group: int, write: int) -> None:
        mirror = self.mirrors.get(group)
        if mirror is not None:
            self.rounds.catch_up(mirror)
            mirror.member.on_synced(write)
            self.touched[mirror] = None
            if mirror in self.adopting:
                self.adopting[mirror].on_synced(write)

    def on_disk_failed(self) -> None:
        for mirror in self.mirrors.values():
            mirror.member.on_disk_failed()
            self.touched[mirror] = None

    def tick(self) -> None:
        self.rounds.on_tick()
        if self.rounds and not self._may_tell():
            self.rounds.go_on()  # Slowly, for nobody may lead the cluster just now, and more follows than views.
        self.journal.tick()
        self.governing.tick()
        self.busy = max(0, self.busy - 1)
        published = self.broker.totals.published
        self.serving = BUSY_TICKS if published != self.published else max(0, self.serving - 1)
        self.published = published
        for adoption in list(self.adopting.values()):
            adoption.on_tick()
        is_behind = bool(self.performing or self.due or self.rounds)
        self.skipped = self.skipped + 1 if is_behind else 0
        if not self.due and (not is_behind or self.skipped > TICKS_SKIPPED_MAX):
            self.skipped = 0
            self.due = list(self.ticking)
            self.due.reverse()
            self.ticking.clear()
        self._tick_some()

    def _tick_some(self) -> None:
        for _ in range(min(TICKED_AT_ONCE, len(self.due))):
            mirror = self.due.pop()
            if self._is_kept(mirror) and mirror.member.wants_tick:
                self.rounds.catch_up(mirror)
                mirror.member.filling.yielding = self.busy > 0
                mirror.member.on_tick()
                self.touched[mirror] = None

    def _is_kept(self, mirror: Mirror) -> bool:
        """Whether the copy is still there: the queue may be deleted since its turn was noted."""
        return self.mirrors.get(mirror.spec.id) is mirror

    # -- Operators -----------------------------------------------------------------------------------------------

    def order_sync(self, mirror: Mirror, wanted: bool) -> None:
        """At the master: have the mirrors that lack messages fetch them, or not. It tells them; others have no say."""
        self.rounds.catch_up(mirror)
        if mirror.member.master is not None and self.journal.on_order(mirror, wanted):
            mirror.member.order(wanted)
            self.journal.on_sync(mirror)
        self.touched[mirror] = None

    def force(self, mirror: Mirror) -> bool:
        """Have this copy lead, whatever is lost by it. False: not now."""
        self.rounds.catch_up(mirror)
        self.touched[mirror] = None
        return mirror.member.force()

    def hand_over(self, mirror: Mirror, to: str, hasty: bool = False) -> bool:
        """Have another copy lead, with nothing lost: publishes wait until it does. False: not now. `hasty`: this one
        stays in the ring."""
        self.rounds.catch_up(mirror)
        queue, member = mirror.queue, mirror.member
        if queue is None or not member.serving:
            return False
        if queue.has_changes():
            self.submit(mirror, self.governing.wall_ms)
        queue.note_deliveries()  # The next master is to know what was delivered. See also `is_prompt`.
        self.submit(mirror, self.governing.wall_ms)
        if not member.hand_over(to, hasty):
            return False
        queue.hold()
        self.touched[mirror] = None
        return True

    # -- The master's blocks -------------------------------------------------------------------------------------

    def submit(self, mirror: Mirror, time_ms: int) -> None:
        """Take a block of the queue and send it round; later, if its master does not serve now."""
        self.rounds.catch_up(mirror)
        queue, member = mirror.queue, mirror.member
        if queue is None:
            return
        if not member.serving:
            self.held_back[queue] = None
            return
        batch = queue.open
        block = queue.take_block(time_ms)
        if block is not None:
            assert queue.gate is not None
            queue.gate.put_into(block)
            run = block.enqueued
            if run is not None:
                # The queue drops contents that are logged or settled; a mirror that is behind needs them still.
                block.enqueued = run.cut(0, len(run.contents))
            mirror.add_block(block.number, batch, queue.take_awaiting(), queue.take_posts())
            taken = member.submit(block)
            assert taken  # It serves.
            self.touched[mirror] = None

    def on_confirmed(self, mirror: Mirror, durable: int) -> None:
        queue, in_blocks, posts = mirror.queue, mirror.in_blocks, mirror.posts
        while posts and posts[0][0] <= durable:
            posts.popleft()
        while in_blocks and in_blocks[0][0] <= durable:
            number, batch, awaiting = in_blocks.popleft()
            if batch is not None and queue is not None:
                queue.tell_safe(batch)
                if number <= mirror.member.confirmed:
                    queue.on_logged(batch)
                else:
                    mirror.unapplied.append((number, batch))
            for pending in awaiting:
                self.confirmed += pending.count
                pending.on_safe()

    # -- Effects -------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Do what has come of all input, as far as a turn goes."""
        if self.rounds and self._may_tell():
            self.rounds.go_on()
        if self.due:
            self._tick_some()
        left = EFFECTS_AT_ONCE
        while left > 0 and (self.performing or self.touched):
            if not self.performing:
                self.performing = list(self.touched)
                self.performing.reverse()
                self.touched.clear()
            mirror = self.performing.pop()
            if self._is_kept(mirror):
                self.rounds.catch_up(mirror)
                left -= self._perform(mirror)
        for peer, packer in self.packers.items():
            for payload in packer.take():
                self.broker.shell.send(peer, RING, payload)  # type: ignore[arg-type]

    def finish(self) -> None:
        """All of it, however long it takes: the node stops."""
        while self.has_work or self.rounds:
            if self.rounds:
                self.rounds.go_on()
            self.flush()

    def _perform(self, mirror: Mirror) -> int:
        """How much that was."""
        done = 1
        while effects := mirror.member.take():
            done += len(effects)
            for effect in effects:
                _EFFECTS[type(effect)](self, mirror, effect)
        if mirror.member.wants_tick:
            self.ticking[mirror] = None
        if mirror in self.journal.begun:
            self.journal.tell_begun(mirror)
        queue = mirror.queue
        if queue is not None:
            queue.set_pressed(mirror.member.is_crowded or mirror in self.governing.late)
        return done

    def _send(self, mirror: Mirror, effect: f.Send) -> None:
        packer = self.packers.get(effect.to)
        if packer is not None:
            packer.add(mirror.spec.id, effect.frame)

    def _write(self, mirror: Mirror, effect: f.Write) -> None:
        assert self.store is not None
        self.store.write(mirror.spec.id, effect)
        if mirror.handed and isinstance(effect.change, f.Truncate | f.Restart):
            self._refuse_handed(mirror, effect.change.number if isinstance(effect.change, f.Truncate) else 0)
        if self.broker.journal is not None and mirror.queue is None:
            self.broker.journal.on_written(mirror, effect.change)
        if effect.change.__class__ is f.Append:
            self.busy = BUSY_TICKS
            last = effect.change.blocks[-1]
            if last.enqueued is not None or last.settled:  # Else a master has only said that it leads.
                self.serving = BUSY_TICKS
                self.rounds.on_used(mirror)

    def _apply(self, mirror: Mirror, effect: f.Apply) -> None:
        assert self.store is not None
        self.store.apply(effect)
        while mirror.handed and mirror.handed[0][0] <= effect.blocks[-1].number:
            for pending in mirror.handed.popleft()[1]:
                pending.on_safe()
        unapplied = mirror.unapplied
        while unapplied and unapplied[0][0] <= effect.blocks[-1].number:
            _, batch = unapplied.popleft()
            if mirror.queue is not None:
                mirror.queue.on_logged(batch)

    def _confirmed(self, mirror: Mirror, effect: f.Confirmed) -> None:
        queue = mirror.queue
        if queue is not None and queue.gate is not None and queue.gate.on_confirmed(effect.durable):
            self.broker.dirty[queue] = None
            self.broker.on_loaded(queue)  # Those who want to get one.
        if self.governing.may_confirm(mirror, effect.durable):
            self.on_confirmed(mirror, effect.durable)

    def _propose(self, mirror: Mirror, effect: f.ProposeView) -> None:
        spec, view = mirror.spec, effect.view
        # A member repeats itself, not knowing what became of it. While nobody leads the cluster, a thousand queues
        # that do so would have many thousand commands waiting for whoever comes to lead it.
        if self.leaving or mirror.proposed == view:
            return

        is_used = self.rounds.is_used(mirror)

        def then(applied: Applied) -> None:
            self.proposed -= 1
            self.proposed_for_used -= is_used
            if mirror.proposed is view:
                mirror.proposed = None

        mirror.proposed = view
        self.proposed += 1
        self.proposed_for_used += is_used
        self.broker.propose(c.ChangeView(spec.vhost, spec.name, spec.id, view), then)

    def _started(self, mirror: Mirror, effect: f.Started) -> None:
        assert self.store is not None
        queue = mirror.queue  # It becomes mirrored as it is.
        marks: dict[bytes, bytes] | None = None
        mirror.forget_blocks()
        if queue is not None:
            queue.note_deliveries()  # The mirrors will have to know what is out with consumers.
            returns = queue.extension(Returns)
            if returns is not None:
                returns.tell_all()
            self.broker.dirty[queue] = None
        else:
            queue = make_queue(mirror.spec, self.broker)
            stored = self.store.stored(mirror.spec.id)
            if isinstance(queue, StreamQueue):
                batches = restore_stream(queue, stored, effect)
            else:
                batches = restore_queue(queue, stored, effect)
                self.broker.on_restored(queue)
                queue.count_bytes()  # What is only in the log is counted when it is read.
            marks = stored_marks(stored, effect.tail)
            told = queue.extension(QueueJournal)
            if told is not None:
                told.inherit(effect.tail)
            for number, batch in batches:
                mirror.add_block(number, batch, [], [])
        before = effect.number - 1
        queue.lead(mirror, effect.epoch, effect.number, (mirror.member.tail.epoch_at(before), before))
        queue.restore_state(marks) if marks is not None else queue.durable_state.tell_all()
        if marks is not None:
            begin_reign(queue)
        queue.set_gate(claims_of(queue))
        if not mirror.member.serving:
            queue.freeze()
        mirror.start(queue)
        if marks is not None:
            self.broker.detachment.on_started(mirror, queue)
        self.broker.detachment.tell(queue)
        if mirror in self.adopting:
            self.adopting[mirror].go_on()

    def _stopped(self, mirror: Mirror, effect: f.Stopped) -> None:
        queue = mirror.queue
        if self.adopting.pop(mirror, None) is not None and self.store is not None:
            self.store.drop_spilled(mirror.spec.id)
        awaiting: list[Pending] = []
        sents = [] if queue is None else rescue(self.broker, mirror, queue)
        for number, _, several in mirror.in_blocks:
            if effect.handed:
                mirror.hand_on(number, several)
            else:
                awaiting += several
        mirror.stop()
        if queue is not None:
            awaiting += queue.stop_leading(self.broker.outboxes.parked(queue, sents))
            self.held_back.pop(queue, None)
        _doubt(awaiting)

    def _refuse_handed(self, mirror: Mirror, above: int = 0) -> None:
        """Blocks that this node led with are void, or it will not hear what becomes of them."""
        while mirror.handed and mirror.handed[-1][0] > above:
            _doubt(mirror.handed.pop()[1])

    def _read(self, mirror: Mirror, effect: f.Read) -> None:
        assert self.store is not None
        if mirror in self.adopting:  # It would be told that what is not stored yet is gone.
            mirror.member.on_read_failed(effect.request)
            return
        reading = self.store.read(mirror.spec.id, effect.request)
        if reading.job is None:
            reading.answer(mirror.member)
            self.touched[mirror] = None
        else:
            self.broker.shell.read(reading.job, lambda done: self._on_read(mirror, reading, done))

    def _on_read(self, mirror: Mirror, reading: Reading, done: bool) -> None:
        if self.mirrors.get(mirror.spec.id) is not mirror:
            return  # The queue was deleted, or this copy of it given up.
        self.rounds.catch_up(mirror)
        if done:
            reading.answer(mirror.member)
        else:
            mirror.member.on_read_failed(reading.request)
        self.touched[mirror] = None

    def _hand_over_due(self, mirror: Mirror, effect: f.HandOverDue) -> None:
        self.hand_over(mirror, effect.to)

    def _resumed(self, mirror: Mirror, effect: f.Resumed) -> None:
        self._serve(mirror)
        if mirror.queue is not None and not self._is_blocked(mirror):
            go_on(mirror.queue, mirror.queue)  # Also if the majority was lost meanwhile.

    def block(self, mirror: Mirror) -> None:
        """A sync has begun or ended, during which the queue stands still if its policy says so."""
        queue = mirror.queue
        if queue is None or not mirror.member.serving:
            return
        if self._is_blocked(mirror):
            queue.hold()
        elif queue.access is Access.HELD:
            self._serve(mirror)

    def _is_blocked(self, mirror: Mirror) -> bool:
        return mirror.syncing and mirror in self.governing.blocking

    def _serve(self, mirror: Mirror) -> None:
        """Let the queue do what its copy may do now."""
        queue = mirror.queue
        if queue is None:
            return
        if not mirror.member.serving:
            queue.freeze()
        elif self._is_blocked(mirror):
            queue.hold()
        else:
            queue.thaw()
            self.broker.detachment.tell(queue)
            self.broker.dirty[queue] = None
            if queue in self.held_back:
                del self.held_back[queue]
                self.broker.unlogged[queue] = None
            if queue.access is Access.HELD:
                go_on(queue, queue)

    def _left(self, mirror: Mirror, effect: f.Left) -> None:
        self._drop(mirror)
        self._refuse_handed(mirror)
        self._forget(mirror.spec.id)

    def _forget(self, number: int) -> None:
        assert self.store is not None
        self.store.left(number)
        self.broker.shell.forget_log(number)


def _doubt(awaiting: list[Pending]) -> None:
    for pending in awaiting:
        pending.refuse(DOUBTED)


def disk_id(folder: str, run: str, durable: bool, losses: int = 0, joined: int = 1) -> str:
    """By which the ring knows a copy: another one if it may lack what it once had. `folder` names the node's data,
    `run` its present run, which is as long as a queue that is not durable lasts; `joined` is the version of the view
    with which the copy came into being, since one that leaves its ring is forgotten."""
    name = f"{folder}.{losses}" if durable else run
    return name if joined == 1 else f"{name}{JOINED}{joined}"


_EFFECTS: Final[dict[type, Callable[[Mirrors, Mirror, Any], None]]] = {
    f.Send: Mirrors._send,
    f.Write: Mirrors._write,
    f.Apply: Mirrors._apply,
    f.Confirmed: Mirrors._confirmed,
    f.ProposeView: Mirrors._propose,
    f.Started: Mirrors._started,
    f.Stopped: Mirrors._stopped,
    f.Read: Mirrors._read,
    f.HandOverDue: Mirrors._hand_over_due,
    f.Resumed: Mirrors._resumed,
    f.Left: Mirrors._left,
}
