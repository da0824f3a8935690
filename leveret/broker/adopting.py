"""A queue becomes mirrored, or is mirrored no longer.

**It becomes mirrored**: what of it only memory holds goes to the log, where mirrors can be given it.

Until then the log knows persistent messages of durable queues and nothing else. A mirror is filled with what its
master's log holds, so a transient message that waits, or is out with a consumer, would be the master's alone, although
transient messages are mirrored like all others from now on. They are written as what a mirror is filled with is: the
queue's numbers stay as they are, and so does the order.

**It is mirrored no longer**, and this node's copy is the queue: all blocks of the ring count from now on, whether they
are on disk or not, for nobody is left who could know others. The log is told first (`MirrorStore.release`). Publishers
whose messages are in blocks that are not on disk yet are told with the queue's next block: it is written behind those.
Nothing waits meanwhile, and consumers see nothing of it. Transient messages that the ring's blocks held stay in the
log, and in the queue after a restart; those that come now do not.

If the node dies before the log has written that, its next start does the same with what is on disk (`Mirrors.open`).
What is lost then was confirmed to nobody.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Final

from leveret.broker.batch import Batch, Span
from leveret.broker.marking import NEVER
from leveret.broker.parking import go_on
from leveret.log.block import PERSISTENT

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.mirrored import Mirror
    from leveret.broker.queue import Queue
    from leveret.log.block import Run

PIECE_MESSAGES: Final = 1024  # In one record, so that few are read back where few are wanted.


def take_over(broker: Broker, queue: Queue) -> list[Run]:
    """Messages that the log has to be given; whatever becomes of them from now on is recorded."""
    if queue.open is not None:
        queue.open.stored = True  # It is the queue's next block.
    if queue.rules.max_priority:  # No number says which of them are out.
        queue.requeued += [(batch.first + lo, batch.first + hi - 1) for batch, lo, hi in _out(broker, queue)]
    runs: list[Run] = []
    for batch, lo, hi in chain(_waiting(queue), _out(broker, queue)):
        if batch is queue.open or batch.all_logged or batch.paged:
            continue
        if not batch.times:
            batch.stamp(broker.wall_ms)
        for run in batch.transient_runs(lo, hi) if queue.durable else [batch.cut(lo, hi)]:
            for start in range(0, len(run.contents), PIECE_MESSAGES):
                runs.append(run.cut(start, min(start + PIECE_MESSAGES, len(run.contents))))
    for batch, _, _ in chain(_waiting(queue), _out(broker, queue)):
        if batch is not queue.open:
            batch.stored = batch.logged = batch.all_logged = True
    return sorted(runs, key=lambda run: run.first)


def give_back(broker: Broker, queue: Queue, mirror: Mirror) -> None:
    """The queue is an ordinary one again; the log knows."""
    for _, batch, _ in mirror.in_blocks:
        if batch is not None:
            if queue.journal is not None:
                queue.journal.is_safe(batch)  # What it tells of that is written behind these blocks, too.
            queue.on_logged(batch)
    for _, batch in mirror.unapplied:
        queue.on_logged(batch)
    queue.awaiting[:0] = [pending for _, _, awaiting in mirror.in_blocks for pending in awaiting]
    mirror.in_blocks.clear()
    mirror.unapplied.clear()
    mirror.queue = queue.mirror = None
    if queue.claims is not None:
        queue.claims.end()
    queue.logs = PERSISTENT if queue.durable else NEVER
    queue.note_due = True  # So that there is a next block.
    queue.frozen = False
    queue.set_pressed(False)
    broker.mirrors.held_back.pop(queue, None)
    broker.dirty[queue] = None
    broker.on_loaded(queue)  # Those who want to get one, and waited for a claim.
    if queue.parked is not None:
        go_on(queue, queue)


def _waiting(queue: Queue) -> Iterator[tuple[Batch, int, int]]:
    for entry in queue.ready:
        if isinstance(entry, Span):
            yield entry.batch, entry.lo, entry.hi


def _out(broker: Broker, queue: Queue) -> Iterator[tuple[Batch, int, int]]:
    """What clients have, of this node and of others; and leases, as far as it is in memory."""
    if queue.leases is not None:
        yield from queue.leases.held()
    for connection in broker.connections:
        for channel in connection.channels.values():
            for one in channel.unacked.all_out():
                if one.queue is queue:
                    yield one.batch, one.lo, one.hi
    for home in broker.homes.values():
        for one in home.unacked:
            if one.queue is queue:
                yield one.batch, one.lo, one.hi
