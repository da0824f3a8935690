"""All mirrored queues of which this node has a copy; puts into effect what the ring decides for each of them.

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
messages that were unacknowledged at the old master are ready again, marked as redelivered.

**Being master no longer.** Messages and publishers' waits of this node's `Queue` are void: the new master has what
counts. Messages that were not confirmed are sent to it again, by whoever has them from a client (see `outbox`). Those
that came from other nodes are not in doubt if the queue was handed over: then the new master has them, and they are
confirmed when this node hears so. Consumers subscribe at the new master by themselves
(see `broker.remote.remote_queue`), and what they acknowledge of earlier deliveries is passed on (see
`broker.remote.handover`).

**Mirrored no longer.** When a queue's master is the only member of its ring that is left, and no policy wants the queue
mirrored (`member_changes`), the view ends, and the queue goes on as one that never had mirrors, with all its messages:
see `convert`.

**Handing over.** Publishes and questions wait (`Queue.hold`) from the moment in which the last block was taken until
there is another master, or the hand-over has failed; then they go to whichever node leads the queue. So no client is
refused anything.

**Limited work in a turn.** A node may have a hundred thousand copies, and one event may concern them all. Nothing here
goes through all of them at once: `broadcast` tells them what happened, some in each turn, and `flush` puts the results
into effect, in the order in which the copies were touched, and ends after `EFFECTS_AT_ONCE` effects. Then `has_work`
says that there is more, and whatever else the node has to do comes between. While there is more to do than fits into a
turn, copies get fewer ticks, up to `TICKS_SKIPPED_MAX` times fewer: otherwise thousands would ask again for answers
that already wait here, and cause still more work.

**Queues in use first.** When a node is lost, thousands of queues need another view, and each is a command that all
nodes agree on and apply. Queues that clients use are told first (`broadcast`). Others are told when these have their
views, and while fewer than `PROPOSED_AT_ONCE` views of this node are under way. So a queue in use waits for a few dozen
commands at most, whenever its turn comes, and not for thousands. While clients publish here, the others are told a few
in each tick, so that most of the node's time is left for the publishing clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from leveret.base.shared_values import NO_LIST, NO_SET, shared
from leveret.broker.delivery.confirms import DOUBTED
from leveret.broker.event_journal.queue_journal import QueueJournal
from leveret.broker.kinds.priority_queue import claims_of
from leveret.broker.kinds.stream import StreamQueue, make_queue, restore_stream
from leveret.broker.mirrors.broadcast import Broadcast
from leveret.broker.mirrors.convert import StoreSpilled, give_back, take_over
from leveret.broker.mirrors.copy_store import MirrorStore, Reading, restore_queue, stored_marks
from leveret.broker.mirrors.ha_rules import HaRules
from leveret.broker.mirrors.hand_overs import HandOvers
from leveret.broker.mirrors.log_lines import LogLines
from leveret.broker.queue.delivery_limit import DeliveryLimit
from leveret.broker.queue.hold import go_on, release
from leveret.broker.queue.queue import Queue
from leveret.broker.queue.state import Access
from leveret.broker.remote.outbox import former_epoch_mark, note_former_epoch, take_unconfirmed
from leveret.links.frame_types import RING
from leveret.links.proposals import BadFrame
from leveret.metadata.model import commands as c
from leveret.metadata.model.view import JOINED
from leveret.replication import frame_codec
from leveret.replication import ring_frames as f
from leveret.replication.frame_codec import Packer, Unpacker
from leveret.replication.member import Member
from leveret.replication.packed_block import last_message
from leveret.replication.ring_frames import PLAIN

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.delivery.batch import Batch
    from leveret.broker.delivery.confirms import Pending
    from leveret.broker.queue.local_queue import LocalQueue
    from leveret.broker.remote.outbox import DueConfirm
    from leveret.metadata.model.records import QueueSpec
    from leveret.metadata.model.view import View
    from leveret.metadata.store import Applied
    from leveret.storage.format.queue_block import Block

EARLY_MAX: Final = 4_096  # Frames for queues that are not known yet; others are asked for again.
EARLY_TICKS: Final = 50
BUSY_TICKS: Final = 5  # After a block of any queue, this node counts as one that has work.
EFFECTS_AT_ONCE: Final = 256  # In a turn; most take some microseconds, to become master takes a hundred.
TICKED_AT_ONCE: Final = 128
PROPOSED_AT_ONCE: Final = 32  # Views under way; while there are more, no further queues hear of what happened.
TICKS_SKIPPED_MAX: Final = 10


class Mirror:
    """This node's copy of one queue."""

    __slots__ = (
        "handed", "heard", "in_blocks", "joined", "member", "due_confirms", "proposed", "queue", "spec", "syncing",
        "unapplied",
    )  # fmt: skip

    def __init__(self, spec: QueueSpec, member: Member) -> None:
        self.spec = spec
        self.member = member
        self.heard = 0  # How many events it was told of: see `broadcast`.
        self.joined = spec.joined[member.me]  # The version of the view with which it became a member.
        self.queue: LocalQueue | None = None  # The queue that clients use, while this node is its master.
        self.in_blocks: list[tuple[int, Batch | None, list[Pending]]] = NO_LIST  # Not confirmed yet, by number.
        # Likewise: publishes awaiting a confirm.
        self.due_confirms: list[tuple[int, Batch | None, list[DueConfirm]]] = NO_LIST
        # Batches of blocks that are confirmed but not applied: the store cannot read them yet, so the queue keeps them.
        self.unapplied: list[tuple[int, Batch]] = NO_LIST
        # Blocks handed over before they were confirmed; the next master confirms them: see `MirrorManager._stopped`.
        self.handed: list[tuple[int, list[Pending]]] = NO_LIST
        self.syncing = False  # Whether the node's log says that its mirrors are being synchronised.
        self.proposed: View | None = None  # A view proposed by this node that is neither accepted nor refused yet.

    def start(self, queue: LocalQueue) -> None:
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
        self.handed = [*self.handed, (number, awaiting)]

    def forget_due_confirms(self) -> None:
        """Somebody else sees to the messages that are awaited."""
        self.due_confirms = NO_LIST

    def let_go(self) -> None:
        """This node leads the queue no longer."""
        self.queue = None

    def stop(self) -> None:
        """This node leads the queue no longer, and need not remember its blocks that are not confirmed."""
        self.let_go()
        self.forget_blocks()

    def forget_blocks(self) -> None:
        self.in_blocks = self.due_confirms = self.unapplied = NO_LIST

    def add_block(
        self, number: int, batch: Batch | None, awaiting: list[Pending], due_confirms: list[DueConfirm]
    ) -> None:
        """A block of the master is on its way round the ring."""
        self.in_blocks = self.in_blocks or []
        self.in_blocks.append((number, batch, awaiting))
        if due_confirms:
            self.due_confirms = self.due_confirms or []
            self.due_confirms.append((number, batch, due_confirms))

    def keep_unapplied(self, number: int, batch: Batch) -> None:
        """The block with this batch is confirmed, and the store cannot read it yet."""
        self.unapplied = self.unapplied or []
        self.unapplied.append((number, batch))

    @property
    def ordered(self) -> bool | None:
        """Returns whether its mirrors are to be synchronised; None: as the policy says."""
        return self.member.ordered

    def propose(self, view: View) -> None:
        self.proposed = view

    def on_proposal_answered(self, view: View) -> None:
        """A view that this node proposed was accepted or refused."""
        if self.proposed is view:
            self.proposed = None


class MirrorManager:
    """All copies on this node."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.me = broker.node_name
        self.disk = ""  # The id of this node's data folder.
        self.life = 0
        self.held_back: dict[LocalQueue, None] = {}  # Queues with changes for a block whose master cannot take one.
        self.mirrors: dict[int, Mirror] = {}
        self.broadcast = Broadcast(self.mirrors)
        self.touched: dict[Mirror, None] = {}
        self.performing: list[Mirror] = []  # Copies whose effects are being carried out; the next one last.
        self.ticking: dict[Mirror, None] = {}  # Copies that want the next tick.
        self.storing_spilled: dict[Mirror, StoreSpilled] = {}  # Copies whose spilled messages are not all stored.
        self.due: list[Mirror] = []  # Copies that still have to get the present tick; the next one last.
        self.skipped = 0  # Ticks that copies were not given, since the last one they got.
        # By queue and peer: mirrors of queues that this node has not created yet, as it is a little behind, and that
        # want to be fed by it. Without this they would have to ask again.
        self.early: dict[tuple[int, str], f.Attach] = {}
        self.early_age = 0  # Ticks since there was none.
        self.older: set[str] = set()  # Peers that do not know pieces with the field `requeued`.
        self.packers: dict[str, Packer] = {}
        self.packed = False  # They have frames.
        self.unpackers: dict[str, Unpacker] = {}
        self.links: frozenset[str] = NO_SET  # The peers of these, one object for all copies that are made.
        self.majority = True
        self.confirmed = 0  # Messages confirmed since the node last looked.
        self.busy = 0  # Ticks for which mirrors that are being filled go slowly, to leave time for other work.
        self.serving = 0  # Ticks for which work that concerns very many queues goes slowly, for publishing clients.
        self.published = 0  # The node's count of publishes at the last tick.
        self.journal = LogLines(broker)
        self.ha_rules = HaRules(broker)
        self.hand_overs = HandOvers(broker)
        self.proposed = 0  # Views that not every node has heard of yet.
        self.proposed_for_used = 0  # Those of them that belong to queues in use.
        self.leaving = False  # This node stops: losing its links does not mean that other nodes have failed.
        # None until the node has caught up with the metadata: views are not followed before, as the ring demands.
        self.store: MirrorStore | None = None
        self.start_marks = self._start_marks  # One object for all copies, like the next.
        self.lost: f.Lost = self._lost

    def __iter__(self) -> Iterator[Mirror]:
        return iter(self.mirrors.values())

    @property
    def has_work(self) -> bool:
        """Returns whether there is something for `flush` to do."""
        if self.touched or self.performing or self.due or self.packed:
            return True
        return bool(self.broadcast.events) and self._may_tell()

    def _may_tell(self) -> bool:
        """Returns whether the next few copies may be told of events that concern all."""
        if self.broadcast.is_urgent:
            return True
        if self.leaving:
            return False  # Links that this node gives up concern only copies that still have something to do.
        waits = self.is_serving or self.proposed_for_used > 0 or self.proposed >= PROPOSED_AT_ONCE
        return self.broadcast.may_follow and not waits

    @property
    def is_serving(self) -> bool:
        """Returns whether clients published a moment ago: through this node, to its queues, or to queues it mirrors."""
        return self.serving > 0

    def touch(self, mirror: Mirror) -> None:
        """A copy has something to do: see `flush`."""
        self.touched[mirror] = None

    def on_released(self, queue: LocalQueue) -> None:
        """A queue is mirrored no longer."""
        self.held_back.pop(queue, None)

    def on_spilled_stored(self, mirror: Mirror) -> None:
        """All messages from before a queue was mirrored are stored."""
        del self.storing_spilled[mirror]

    def leave(self) -> None:
        """This node stops."""
        self.leaving = True

    def take_confirmed(self) -> int:
        """Returns how many messages were confirmed since the last call."""
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

    def on_view(self, spec: QueueSpec, born: bool, existing: LocalQueue | None = None) -> None:
        """A queue has a view, or another one. `born`: it has its first, since a moment ago. `existing`: it was a queue
        of this node before it was mirrored."""
        view = spec.view
        if self.store is None or view is None:
            return
        mirror = self.mirrors.get(spec.id)
        if mirror is not None and self.me in view.ring and mirror.joined != spec.joined[self.me]:
            # This copy left the ring and joined it again, and was told of neither: what it did as master is void.
            if mirror.member.master is not None:
                self._stopped(mirror, f.Stopped(mirror.member.master.epoch))
            self._left(mirror, f.Left(view.version))
            mirror = None
        if mirror is None:
            if self.me not in view.ring:
                return
            mirror = self.mirrors[spec.id] = self._make(spec, born, existing)
        else:
            self.broadcast.catch_up(mirror)
            mirror.set_spec(spec)
            self._perform(mirror)  # What was said under the old view is done first.
        old = mirror.member.view
        mirror.member.set_joined(spec.joined)
        mirror.member.on_view(view)
        if self.early:
            for peer in view.ring:
                if (early := self.early.pop((spec.id, peer), None)) is not None:
                    mirror.member.on_frame(peer, early)
        self._perform(mirror)
        self.journal.on_view(mirror, old, born)

    def _make(self, spec: QueueSpec, born: bool, existing: LocalQueue | None) -> Mirror:
        store = self.store
        assert store is not None
        self.broker.arrivals.drop(spec.id)  # Not later: the log has it and the copy as one queue.
        if existing is not None:
            if existing.departure is not None:
                existing.departure.end("it has become mirrored meanwhile")
            runs = take_over(self.broker, existing) if isinstance(existing, Queue) else []
            # What is in no block yet is part of the first one. If its numbers counted as used before, a mirror that is
            # filled up to that block would take the messages for settled.
            next_seq = existing.next_seq if existing.open is None else existing.open.first
            store.adopt(spec.id, existing.epoch, next_seq, runs)
        recovered = store.recovered(spec.id)
        joined = spec.joined[self.me]
        disk = disk_id(self.disk, self.broker.run, spec.durable, store.disk(spec.id), joined)
        # Neither number ever falls, and one of them has risen with each member that this node makes for the queue.
        life = self.life + joined
        marks = self.start_marks
        member = Member(spec.id, self.me, shared(disk), life, self.lost, PLAIN, recovered, born, marks)
        member.start(self.links, self.majority)
        mirror = Mirror(spec, member)
        mirror.hear(self.broadcast.told)
        if existing is not None:
            mirror.start(existing)
        if existing is not None and store.stored(spec.id).spilled:
            self.storing_spilled[mirror] = StoreSpilled(self, mirror)
        self.ha_rules.refresh(mirror)
        return mirror

    def _lost(self, number: int) -> list[tuple[int, int]]:
        assert self.store is not None
        return self.store.lost(number)

    def _start_marks(self, number: int, epoch: int, tail: tuple[Block, ...]) -> dict[bytes, bytes]:
        """Returns what the first block of this node as master says of the epoch before."""
        assert self.store is not None
        queue = self.queue_of(number)  # Also that of its own last epoch, of which no `Stopped` has told yet.
        if not epoch or (queue is not None and queue.mirror is None):
            return {}  # The queue is new, or was not mirrored before.
        stored = self.store.stored(number)
        through = max([stored.next_seq - 1, *map(last_message, tail)])
        return former_epoch_mark(stored_marks(stored, tail), epoch, through, self.broker.wall_ms)

    def on_ended(self, spec: QueueSpec) -> None:
        """The queue is mirrored no longer. Its master goes on with it; a node that still has a copy was told to drop
        it, and has not heard of that."""
        mirror = self.mirrors.get(spec.id)
        if mirror is None:
            return
        self.broadcast.catch_up(mirror)
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
        self.storing_spilled.pop(mirror, None)
        self.ha_rules.forget(mirror)
        self.broadcast.forget(mirror)

    def on_deleted(self, spec: QueueSpec) -> None:
        mirror = self.mirrors.get(spec.id)
        if mirror is not None:
            self._drop(mirror)
            queue = mirror.queue
            mirror.let_go()
            if queue is not None:
                release(queue)
                self.broker.on_loaded(queue)  # For basic.get that waited for a claim.
                self.held_back.pop(queue, None)
                self.broker.unlogged.pop(queue, None)  # The last acknowledgements need no block any more.
                self.broker.delivering.pop(queue, None)  # Nor do the last deliveries: no store would take a block.
            for awaiting in (*(one[2] for one in mirror.in_blocks), *(one[1] for one in mirror.handed)):
                for pending in awaiting:  # Whoever deleted the queue has taken care of its messages.
                    pending.on_safe()
            self._forget(spec.id)

    def queue_of(self, number: int) -> LocalQueue | None:
        """The queue, if this node leads it."""
        mirror = self.mirrors.get(number)
        return None if mirror is None else mirror.queue

    # -- Input ---------------------------------------------------------------------------------------------------

    def on_linked(self, peer: str, knows_requeued: bool) -> None:
        """There is a new link to a peer; `on_peer_up` follows when frames may be sent."""
        if knows_requeued:
            self.older.discard(peer)
        else:
            self.older.add(peer)

    def on_peer_up(self, peer: str) -> None:
        self.packers[peer], self.unpackers[peer] = Packer(knows_requeued=peer not in self.older), Unpacker()
        self.links = shared(frozenset(self.unpackers))
        if self.broker.journal is not None:
            self.broker.journal.tell("partition", peer, state="linked")
        self.ha_rules.on_peer_up(peer)

        def tell(mirror: Mirror) -> None:
            mirror.member.on_peer_up(peer)
            self.journal.on_peer_up(mirror, peer)
            self.touched[mirror] = None

        self.broadcast.tell(tell)

    def on_peer_down(self, peer: str) -> None:
        if self.broker.journal is not None and peer in self.packers:
            self.broker.journal.tell("partition", peer, state="lost")
        self.packers.pop(peer, None)
        self.unpackers.pop(peer, None)
        self.links = shared(frozenset(self.unpackers))
        self.early = {key: frame for key, frame in self.early.items() if key[1] != peer}
        has_failed = peer not in self.ha_rules.departed

        def tell(mirror: Mirror) -> None:
            mirror.member.on_peer_down(peer)
            if has_failed:
                self.broker.detachment.on_failed(mirror, peer)
                self.ha_rules.on_failed(mirror, peer)
            self.journal.on_peer_down(mirror, peer)
            self.touched[mirror] = None

        self.broadcast.tell(tell)
        self.ha_rules.on_lost(peer)

    def on_frame(self, peer: str, payload: bytes) -> None:
        """Raises `BadFrame`."""
        try:
            found = self.unpackers[peer].feed(payload)
        except frame_codec.BadFrame as error:
            raise BadFrame(str(error)) from None
        for group, frame in found:
            mirror = self.mirrors.get(group)
            if mirror is not None:
                if mirror.heard != self.broadcast.told:
                    self.broadcast.catch_up(mirror)
                mirror.member.on_frame(peer, frame)
                self.touched[mirror] = None
            elif frame.__class__ is f.Attach and len(self.early) < EARLY_MAX:
                self.early[group, peer] = frame

    def on_majority(self, reachable: bool) -> None:
        if reachable != self.majority:
            self.majority = reachable
            if self.broker.journal is not None:
                self.broker.journal.tell("partition", state="majority" if reachable else "minority")
            if reachable:
                self.broker.detachment.end()
            else:  # Only this cannot wait: nothing may be delivered any more.
                for mirror in self.mirrors.values():
                    if mirror.queue is not None:
                        mirror.queue.freeze()

            def tell(mirror: Mirror) -> None:
                mirror.member.on_majority(reachable)
                self.touched[mirror] = None
                self._serve(mirror)

            self.broadcast.tell(tell)
            self.broker.spools.on_majority(reachable)

    def catch_up(self, mirror: Mirror) -> None:
        """Put into effect all that a copy has heard of."""
        self.broadcast.catch_up(mirror)
        self._perform(mirror)

    def tell_first(self, number: int) -> None:
        """A client of this node waits for the next master of a queue."""
        mirror = self.mirrors.get(number)
        if mirror is not None:
            self.broadcast.tell_first(mirror)

    def on_synced(self, group: int, write: int) -> None:
        mirror = self.mirrors.get(group)
        if mirror is not None:
            if mirror.heard != self.broadcast.told:
                self.broadcast.catch_up(mirror)
            mirror.member.on_synced(write)
            self.touched[mirror] = None
            if mirror in self.storing_spilled:
                self.storing_spilled[mirror].on_synced(write)

    def on_disk_failed(self) -> None:
        for mirror in self.mirrors.values():
            mirror.member.on_disk_failed()
            self.touched[mirror] = None

    def tick(self) -> None:
        self.broadcast.on_tick()
        if self.broadcast and not self._may_tell():
            self.broadcast.go_on()  # A few per tick: the cluster may have no leader, and more follows than views.
        self.journal.tick()
        self.ha_rules.tick()
        self.early_age = self.early_age + 1 if self.early else 0
        if self.early_age > EARLY_TICKS:
            self.early.clear()
        self.busy = max(0, self.busy - 1)
        published = self.broker.totals.published
        self.serving = BUSY_TICKS if published != self.published else max(0, self.serving - 1)
        self.published = published
        for adoption in list(self.storing_spilled.values()):
            adoption.on_tick()
        is_behind = bool(self.performing or self.due or self.broadcast)
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
                self.broadcast.catch_up(mirror)
                if not mirror.member.complete:
                    mirror.member.filling.yielding = self.busy > 0
                mirror.member.on_tick()
                self.touched[mirror] = None

    def _is_kept(self, mirror: Mirror) -> bool:
        """Returns whether the copy still exists: the queue may have been deleted since its turn was noted."""
        return self.mirrors.get(mirror.spec.id) is mirror

    # -- Operators -----------------------------------------------------------------------------------------------

    def order_sync(self, mirror: Mirror, wanted: bool) -> None:
        """At the master: have the unsynchronised mirrors fetch what they lack, or stop that. Only the master can."""
        self.broadcast.catch_up(mirror)
        if mirror.member.master is not None and self.journal.on_order(mirror, wanted):
            mirror.member.order(wanted)
            self.journal.on_sync(mirror)
        self.touched[mirror] = None

    def allow_sync(self, mirror: Mirror) -> None:
        """At the master: forget that an operator has cancelled the synchronisation, if one has."""
        if mirror.ordered is False:
            mirror.member.end_order()
            self.touched[mirror] = None  # The mirrors are told.

    def force(self, mirror: Mirror) -> bool:
        """Make this copy the master, even if messages that it lacks are lost. False: not now."""
        self.broadcast.catch_up(mirror)
        self.touched[mirror] = None
        return mirror.member.force()

    def hand_over(self, mirror: Mirror, to: str, hasty: bool = False) -> bool:
        """Make another copy master, with nothing lost: publishes wait until it is. False: not now. `hasty`: this one
        stays in the ring."""
        self.broadcast.catch_up(mirror)
        queue, member = mirror.queue, mirror.member
        if queue is None or not member.serving:
            return False
        if queue.has_changes():
            self.submit(mirror, self.ha_rules.wall_ms)
        queue.note_deliveries()  # The next master has to know what was delivered.
        self.submit(mirror, self.ha_rules.wall_ms)
        if not member.hand_over(to, hasty):
            return False
        queue.hold()
        self.touched[mirror] = None
        return True

    # -- The master's blocks -------------------------------------------------------------------------------------

    def submit(self, mirror: Mirror, time_ms: int) -> None:
        """Take a block of the queue and send it round; later, if its master does not serve now."""
        if mirror.heard != self.broadcast.told:
            self.broadcast.catch_up(mirror)
        queue, member = mirror.queue, mirror.member
        if queue is None:
            return
        if not member.serving:
            self.held_back[queue] = None
            return
        batch = queue.open
        block = queue.take_block(time_ms)
        if block is not None:
            if queue.gate is not None:
                queue.gate.put_into(block)
            run = block.enqueued
            if run is not None:
                # The queue drops contents that are logged or settled, and a mirror that is behind still needs them.
                block.enqueued = run.cut(0, len(run.contents))
            mirror.add_block(block.number, batch, queue.take_awaiting(), queue.take_due_confirms())
            taken = member.submit(block)
            assert taken  # It serves.
            self.touched[mirror] = None

    def on_confirmed(self, mirror: Mirror, durable: int) -> None:
        queue, in_blocks, due_confirms = mirror.queue, mirror.in_blocks, mirror.due_confirms
        while due_confirms and due_confirms[0][0] <= durable:
            del due_confirms[0]
        while in_blocks and in_blocks[0][0] <= durable:
            number, batch, awaiting = in_blocks.pop(0)
            if batch is not None and queue is not None:
                queue.tell_safe(batch)
                if number <= mirror.member.confirmed:
                    queue.on_logged(batch)
                else:
                    mirror.keep_unapplied(number, batch)
            for pending in awaiting:
                self.confirmed += pending.count
                pending.on_safe()

    # -- Effects -------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Carry out the effects of all input, as many as fit into a turn."""
        if self.broadcast and self._may_tell():
            self.broadcast.go_on()
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
                if mirror.heard != self.broadcast.told:
                    self.broadcast.catch_up(mirror)
                left -= self._perform(mirror)
        self.packed = False
        for peer, packer in self.packers.items():
            for payload in packer.take():
                self.broker.node.send(peer, RING, payload)  # type: ignore[arg-type]

    def finish(self) -> None:
        """Carry out all effects, however long it takes: the node stops."""
        while self.has_work:
            self.flush()

    def _perform(self, mirror: Mirror) -> int:
        """Carry out all effects of one copy. Returns how many there were, and one more."""
        done, member = 1, mirror.member
        while effects := member.take():
            done += len(effects)
            for effect in effects:
                _EFFECTS[type(effect)](self, mirror, effect)
        if mirror not in self.ticking and member.wants_tick:
            self.ticking[mirror] = None
        if mirror in self.journal.begun:
            self.journal.tell_begun(mirror)
        queue = mirror.queue
        if queue is not None:
            queue.set_pressed(member.is_crowded or mirror in self.ha_rules.late)
        return done

    def _send(self, mirror: Mirror, effect: f.Send) -> None:
        packer = self.packers.get(effect.to)
        if packer is not None:
            packer.add(mirror.spec.id, effect.frame)
            self.packed = True

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
                self.broadcast.on_used(mirror)

    def _apply(self, mirror: Mirror, effect: f.Apply) -> None:
        assert self.store is not None
        self.store.apply(effect)
        while mirror.handed and mirror.handed[0][0] <= effect.blocks[-1].number:
            for pending in mirror.handed.pop(0)[1]:
                pending.on_safe()
        unapplied = mirror.unapplied
        while unapplied and unapplied[0][0] <= effect.blocks[-1].number:
            _, batch = unapplied.pop(0)
            if mirror.queue is not None:
                mirror.queue.on_logged(batch)

    def _confirmed(self, mirror: Mirror, effect: f.Confirmed) -> None:
        queue = mirror.queue
        if queue is not None and queue.gate is not None and queue.gate.on_confirmed(effect.durable):
            self.broker.dirty[queue] = None
            self.broker.on_loaded(queue)  # For basic.get that waits for a claim.
        if not self.ha_rules.windows or self.ha_rules.may_confirm(mirror, effect.durable):
            self.on_confirmed(mirror, effect.durable)

    def _propose(self, mirror: Mirror, effect: f.ProposeView) -> None:
        spec, view = mirror.spec, effect.view
        # A member repeats a proposal as long as it has no answer. While the cluster has no leader, a thousand queues
        # that do so would have many thousand commands waiting for the next leader.
        if self.leaving or mirror.proposed == view:
            return

        is_used = self.broadcast.is_used(mirror)

        def then(applied: Applied) -> None:
            self.proposed -= 1
            self.proposed_for_used -= is_used
            mirror.on_proposal_answered(view)

        mirror.propose(view)
        self.proposed += 1
        self.proposed_for_used += is_used
        self.broker.propose(c.ChangeView(spec.vhost, spec.name, spec.id, view), then)

    def _started(self, mirror: Mirror, effect: f.Started) -> None:
        assert self.store is not None
        queue = mirror.queue  # Not None: a queue of this node becomes mirrored.
        marks: dict[bytes, bytes] | None = None
        mirror.forget_blocks()
        if queue is not None:
            queue.note_deliveries()  # The mirrors have to know what is unacknowledged.
            returns = queue.extension(DeliveryLimit)
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
        last_block = shared((mirror.member.tail.epoch_at(before), before))  # Most new queues have none.
        queue.lead(mirror, effect.epoch, effect.number, last_block)
        queue.restore_state(marks) if marks is not None else queue.durable_state.tell_all()
        if marks is not None:
            note_former_epoch(queue)
        if isinstance(queue, Queue):
            queue.set_gate(claims_of(queue))
        if not mirror.member.serving:
            queue.freeze()
        mirror.start(queue)
        if marks is not None:
            self.broker.detachment.on_started(mirror, queue)
        self.broker.detachment.tell(queue)
        if mirror in self.storing_spilled:
            self.storing_spilled[mirror].go_on()

    def _stopped(self, mirror: Mirror, effect: f.Stopped) -> None:
        queue = mirror.queue
        if self.storing_spilled.pop(mirror, None) is not None and self.store is not None:
            self.store.drop_spilled(mirror.spec.id)
        awaiting: list[Pending] = []
        if queue is not None:
            take_unconfirmed(self.broker, mirror, queue)
        for number, _, several in mirror.in_blocks:
            if effect.handed:
                mirror.hand_on(number, several)
            else:
                awaiting += several
        mirror.stop()
        if queue is not None:
            awaiting += queue.stop_leading()
            self.held_back.pop(queue, None)
        _doubt(awaiting)

    def _refuse_handed(self, mirror: Mirror, above: int = 0) -> None:
        """Blocks that this node made as master are void, or it will not learn whether they are confirmed."""
        while mirror.handed and mirror.handed[-1][0] > above:
            _doubt(mirror.handed.pop()[1])

    def _read(self, mirror: Mirror, effect: f.Read) -> None:
        assert self.store is not None
        if mirror in self.storing_spilled:  # The reader would take messages that are not stored yet for settled.
            mirror.member.on_read_failed(effect.request)
            return
        reading = self.store.read(mirror.spec.id, effect.request)
        if reading.job is None:
            reading.answer(mirror.member)
            self.touched[mirror] = None
        else:
            self.broker.node.read(reading.job, lambda done: self._on_read(mirror, reading, done))

    def _on_read(self, mirror: Mirror, reading: Reading, done: bool) -> None:
        if self.mirrors.get(mirror.spec.id) is not mirror:
            return  # The queue was deleted, or this copy of it given up.
        self.broadcast.catch_up(mirror)
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
            go_on(mirror.queue, mirror.queue)  # Also if the majority was lost meanwhile: `_serve` has frozen it.

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
        return mirror.syncing and mirror in self.ha_rules.blocking

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
        self.broker.node.forget_log(number)


def _doubt(awaiting: list[Pending]) -> None:
    for pending in awaiting:
        pending.refuse(DOUBTED)


def disk_id(folder: str, run: str, durable: bool, losses: int = 0, joined: int = 1) -> str:
    """Returns the id by which the ring knows a copy: another one if it may lack what it once had.

    `folder` names the node's data, `run` its present run, which is as long as a queue that is not durable lasts;
    `joined` is the version of the view with which the copy came into being, since one that leaves its ring is
    forgotten.
    """
    name = f"{folder}.{losses}" if durable else run
    return name if joined == 1 else f"{name}{JOINED}{joined}"


_EFFECTS: Final[dict[type, Callable[[MirrorManager, Mirror, Any], None]]] = {
    f.Send: MirrorManager._send,
    f.Write: MirrorManager._write,
    f.Apply: MirrorManager._apply,
    f.Confirmed: MirrorManager._confirmed,
    f.ProposeView: MirrorManager._propose,
    f.Started: MirrorManager._started,
    f.Stopped: MirrorManager._stopped,
    f.Read: MirrorManager._read,
    f.HandOverDue: MirrorManager._hand_over_due,
    f.Resumed: MirrorManager._resumed,
    f.Left: MirrorManager._left,
}
