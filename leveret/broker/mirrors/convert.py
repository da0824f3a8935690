"""Turns a queue into a mirrored one, and a mirrored queue back into one without mirrors.

**A queue becomes mirrored**: its messages that the log does not hold for good are written there, because mirrors are
filled from the log.

Without mirrors, the log has the persistent messages of durable queues and nothing else. A mirror is filled with what
its master's log holds, so a transient message that is ready or unacknowledged, or whose dead letter is not safe yet,
would be on the master only, although transient messages are mirrored like all others from now on. They are written in
the same form as the messages that a mirror is filled with: the queue's numbers stay as they are, and so does the order.

From memory (`take_over`) they are written at once, before the first block of the ring.

Spilled messages are in the log already, but only to have them out of memory: after a restart the log has everything
except what it calls spilled. There may be very many. So they are read and stored again piece by piece, while the queue
is used (`StoreSpilled`), the next piece when the last one is on disk: memory holds one piece, and a slow disk slows
nothing else. A message that is acknowledged meanwhile is settled wherever it is. Consumers are given these messages
from where they are: the log reads both forms.

Until the last piece is on disk no mirror is given anything of what is stored here: it would take the messages that are
not stored yet for settled. And if it were given one that is stored but not synced, and the master restarted, then a
mirror in sync would have a message that its master lacks. So no mirror becomes complete before, however few messages it
lacks, since each has to be given a first piece. If the master dies in the middle, no other node is in sync: the queue
comes back with its node, without the transient messages that were not stored yet, as it would have without a policy. If
another copy is made master by force, these messages are lost with all else that only this node had, and are dropped
here, so that they do not turn up again.

**A queue is mirrored no longer**, and this node's copy is the queue: all blocks of the ring count from now on, whether
they are on disk or not, for no other node is left that could have different ones. The log is told first
(`MirrorStore.release`). Publishers whose messages are in blocks that are not on disk yet get their confirms with the
queue's next block: it is written behind those. Nothing waits meanwhile, and consumers notice nothing. Transient
messages that the ring's blocks held stay in the log, and in the queue after a restart; those that come from now on do
not.

If the node dies before the log has written that, its next start does the same with what is on disk
(`MirrorManager.open`). Only messages that were not confirmed are lost then.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from leveret.broker.delivery.batch import Batch, Gap, Span
from leveret.broker.queue.hold import go_on
from leveret.broker.queue.leases import Leases

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.mirrors.copy_store import Loading
    from leveret.broker.mirrors.manager import Mirror, MirrorManager
    from leveret.broker.queue.local_queue import LocalQueue
    from leveret.broker.queue.queue import Queue
    from leveret.storage.format.queue_block import Run

PIECE_MESSAGES: Final = 1024  # Messages in one record, so that few are read back where few are wanted.
PIECE_BYTES: Final = 1 << 18  # Spilled messages read at a time: some milliseconds of the event loop's time.
AGAIN_TICKS: Final = 100  # Until spilled messages that could not be read are tried again.


def take_over(broker: Broker, queue: Queue) -> list[Run]:
    """Returns the messages that the log has to be given; what becomes of them is logged from now on."""
    queue.end_batch()  # So that it is stored with those before it, and not as a block of any size.
    if queue.rules.max_priority:  # Without an order by numbers, `delivered_through` does not say which were delivered.
        queue.note_requeued((batch.first + lo, batch.first + hi - 1) for batch, lo, hi in _out(broker, queue))
        for gap in queue.ready:
            if isinstance(gap, Gap) and gap.redelivered:
                queue.note_requeued(gap.ranges or [(gap.first, gap.last)])
    runs: list[Run] = []
    for batch, lo, hi in _held(broker, queue):
        if batch is queue.open or batch.all_logged or batch.paged:
            continue
        if not batch.times:
            batch.stamp(broker.wall_ms)
        for run in batch.transient_runs(lo, hi) if queue.durable else [batch.cut(lo, hi)]:
            runs += _pieces(run)
    for batch, _, _ in _held(broker, queue):
        if batch is not queue.open:
            batch.mark_stored()
    return _joined(sorted(runs, key=lambda run: run.first))


def _pieces(run: Run) -> Iterator[Run]:
    for start in range(0, len(run.contents), PIECE_MESSAGES):
        yield run.cut(start, min(start + PIECE_MESSAGES, len(run.contents)))


def _joined(runs: list[Run]) -> list[Run]:
    """Join neighbouring runs, so that a million messages that came one by one make a thousand records."""
    found: list[Run] = []
    for run in runs:
        if found and found[-1].last + 1 == run.first and len(found[-1]) + len(run) <= PIECE_MESSAGES:
            found[-1].join(run)
        else:
            found.append(run)
    return found


def give_back(broker: Broker, queue: LocalQueue, mirror: Mirror) -> None:
    """Make the queue one without mirrors again; the log has been told."""
    for _, batch, _ in mirror.in_blocks:
        if batch is not None:
            queue.tell_safe(batch)  # The confirms wait for the next block, which is written behind these.
            queue.on_logged(batch)
    for _, batch in mirror.unapplied:
        queue.on_logged(batch)
    queue.leave_ring([pending for _, _, awaiting in mirror.in_blocks for pending in awaiting])
    mirror.stop()
    broker.mirrors.on_released(queue)
    broker.dirty[queue] = None
    broker.on_loaded(queue)  # For basic.get that waited for a claim.
    if queue.parked is not None:
        go_on(queue, queue)


def _held(broker: Broker, queue: Queue) -> Iterator[tuple[Batch, int, int]]:
    """Yields all messages of a queue that are in memory and not settled."""
    yield from _waiting(queue)
    yield from _out(broker, queue)
    yield from broker.dead_letters.held(queue)


def _waiting(queue: Queue) -> Iterator[tuple[Batch, int, int]]:
    for entry in queue.ready:
        if isinstance(entry, Span):
            yield entry.batch, entry.lo, entry.hi


def _out(broker: Broker, queue: LocalQueue) -> Iterator[tuple[Batch, int, int]]:
    """Yields messages unacknowledged by clients of this and of other nodes, and leased ones, as far as in memory."""
    leases = queue.extension(Leases)
    if leases is not None:
        yield from leases.held()
    for session in broker.sessions:
        for one in session.unacked.all_out():
            if one.queue is queue:
                yield one.batch, one.lo, one.hi
    for owner_end in broker.owner_ends.values():
        for one in owner_end.unacked:
            if one.queue is queue:
                yield one.batch, one.lo, one.hi


class StoreSpilled:
    """Stores the spilled messages of one queue, at its master, piece by piece."""

    def __init__(self, mirrors: MirrorManager, mirror: Mirror) -> None:
        self.mirrors = mirrors
        self.mirror = mirror
        self.write = 0  # The write that has to be synced before the next piece is read; 0: none.
        self.rest = 0  # Ticks until a piece that could not be read is tried again.

    def go_on(self) -> None:
        """Store the next piece; without one, all are stored and this is done."""
        mirrors, mirror = self.mirrors, self.mirror
        assert mirrors.store is not None
        job = mirrors.store.spilled(mirror.spec.id, PIECE_BYTES)
        if job is None:
            mirrors.on_spilled_stored(mirror)
        else:
            mirrors.broker.node.read(job, lambda done: self._on_read(job, done))

    def _on_read(self, job: Loading, done: bool) -> None:
        if self.mirrors.storing_spilled.get(self.mirror) is not self:
            return  # The queue was deleted, or is led elsewhere.
        self.mirrors.broadcast.catch_up(self.mirror)
        if not done:
            self.rest = AGAIN_TICKS
            return
        for run in job.runs:
            run.times = run.times or [(0, self.mirrors.broker.wall_ms)]
            for piece in _pieces(run):
                self.write = self.mirror.member.adopt(piece)
        self.mirrors.touch(self.mirror)

    def on_synced(self, write: int) -> None:
        if self.write and write >= self.write:
            self.write = 0
            self.go_on()

    def on_tick(self) -> None:
        if self.rest:
            self.rest -= 1
            if not self.rest:
                self.go_on()
