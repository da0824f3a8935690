"""Stores the blocks of mirrored queues in the node's log, and tells their members what is on disk.

One node has one log for all its queues, and one write and one sync for whatever has gathered. A member's effects go
there like any queue's blocks, and cost no sync of their own:

    member.take() ─▶ Write ─▶ store.write ─▶ log.take() … log.on_done(job) ─▶ store.synced(job) ─▶ member.on_synced
                     Apply ─▶ store.apply                 (what is live, settled and loadable changes)
                     Read  ─▶ store.read ─▶ reading.job … log.on_done(job) ─▶ reading.answer(member)

**A start.** The node recovers its log, then makes each member: `recovered(queue)` says where its log ends, and gives
the blocks that wait; `disk(queue)` is the part of the disk's id that changes when this queue lost something that was
once synced. The id must contain the data folder's own id as well, which is another after the folder was wiped. A queue
that is not durable keeps nothing over a restart: the node leaves it out of the queues it says are known, its log is
forgotten, and its disk's id must contain the id of this run, or an empty copy would be taken for the one that was in
sync.

**Transient messages** are sent, and logged, in their blocks like all others; no publisher waits for the sync because of
them. They stay when one node restarts, since a copy that dropped them would differ from what its numbers promise.
To have them gone after all members were down, the new master would settle them: by a block, so that all agree.

**The queue on its master.** `Queue` holds what waits, in memory or as gaps. Its blocks go to `Member.submit`, come back
as Write, and are applied when they are confirmed, which on a master means that they are durable here. Only then may
memory forget their contents (`Queue.on_logged` with the Apply): `Log.load` finds what is applied, and nothing else.

**Promotion.** The log's index holds what is applied. Blocks above that, `Started.tail`, are part of the queue too: the
new master keeps its whole log. They cannot be applied yet, for they are not confirmed. So `restore_queue` makes the
queue out of both: what is applied becomes gaps, cut where the tail settles something that the index still has; messages
of the tail become batches in memory. As each of its blocks is applied, the batch it is returned with is told that it is
logged. No content is read, so a queue of a million messages is there at once.

A queue that was not mirrored becomes so when its member is made: its blocks so far are the beginning of its ring's log.
There the queue is in memory already, and only goes on with the number of `Started`. Messages that it has on disk only
for lack of memory follow in pieces, and until they are stored no mirror is given anything: see `convert`. When it is
mirrored no longer, all blocks of its last copy count (`release`), and those that follow are the queue's own again. The
log gets a record of that, behind all blocks of the ring. If the node dies before the record is written, the next start
finds a mirrored queue in the log that has no view in the metadata, and releases it then, with what has survived.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from leveret.base.range_set import RangeSet, stretches
from leveret.broker.delivery.batch import Batch, Gap
from leveret.broker.queue.delivery_limit import DeliveryLimit
from leveret.replication.catch_up import BATCHES
from leveret.replication.packed_block import PackedBlock
from leveret.replication.ring_frames import (
    Append,
    Apply,
    Complete,
    Counts,
    Fill,
    History,
    Ranges,
    Recovered,
    Request,
    Restart,
    Started,
    Truncate,
    Write,
)
from leveret.storage.format.queue_block import Block, Run
from leveret.storage.format.queue_marks import Mark, Marks

if TYPE_CHECKING:
    from leveret.broker.queue.ordered_queue import OrderedQueue
    from leveret.broker.queue.queue import Queue

_LIFE_BITS = 40  # Write ids of one member are below this.


# -- what the log has to offer -----------------------------------------------------------


class Written(Protocol):
    """A job that wrote something."""

    @property
    def marks(self) -> list[tuple[int, int]]: ...


class Loading(Protocol):
    """A job that reads contents. It goes to the log's on_done or on_failed like every other."""

    runs: list[Run]


class MirrorState(Protocol):
    @property
    def base(self) -> int: ...
    @property
    def history(self) -> History: ...
    @property
    def complete(self) -> bool: ...
    @property
    def read_at(self) -> int: ...
    @property
    def cut(self) -> int: ...
    @property
    def bound(self) -> int: ...
    @property
    def after(self) -> int: ...
    @property
    def have(self) -> Ranges: ...
    @property
    def marked(self) -> bool: ...
    @property
    def disk(self) -> int: ...
    def take_blocks(self) -> tuple[Block, ...]: ...


class Stored(Protocol):
    """The state of a queue by all blocks that are applied."""

    @property
    def live(self) -> RangeSet: ...
    @property
    def redelivered(self) -> RangeSet: ...
    @property
    def spilled(self) -> RangeSet: ...
    @property
    def counts(self) -> dict[int, int]: ...
    @property
    def marks(self) -> Marks: ...
    @property
    def next_seq(self) -> int: ...
    @property
    def delivered_through(self) -> int: ...
    @property
    def last_block_first(self) -> int: ...
    def mark_again(self) -> None: ...
    def redeliver(self, low: int, high: int) -> None: ...
    def pieces(self, piece_bytes: int) -> list[tuple[int, int, int]]: ...


class Mirrors(Protocol):
    def open(self, queue: int) -> tuple[Stored, MirrorState]: ...
    def look(self, queue: int) -> tuple[Stored, MirrorState]: ...
    def append(self, block: Block, raw: tuple[bytes, bytes] | None, confirmed: int, mark: int | None) -> None: ...
    def truncate(self, queue: int, number: int, confirmed: int, mark: int | None) -> None: ...
    def restart(
        self,
        queue: int,
        cut: int,
        history: History,
        bound: int,
        have: Ranges,
        read_at: int,
        confirmed: int,
        mark: int | None,
        delivered: int = 0,
    ) -> None: ...
    def fill(
        self,
        queue: int,
        after: int,
        upto: int,
        live: Sequence[tuple[int, int]],
        runs: Iterable[Run],
        read_at: int,
        confirmed: int,
        mark: int | None,
        counts: Sequence[tuple[int, int, int]] = (),
        marks: Sequence[Mark] = (),
        requeued: Sequence[tuple[int, int]] = (),
    ) -> None: ...
    def complete(self, queue: int, read_at: int, confirmed: int, mark: int | None) -> None: ...
    def begin(self, queue: int, epoch: int) -> None: ...
    def is_mirrored(self, queue: int) -> bool: ...
    def unmark(self, queue: int, ranges: Iterable[tuple[int, int]]) -> None: ...
    def apply(self, blocks: Sequence[Block]) -> None: ...
    def release(self, queue: int, blocks: Sequence[Block]) -> None: ...
    def fetch(
        self, queue: int, after: int, bound: int, have: Sequence[tuple[int, int]], bytes_max: int, count_max: int
    ) -> tuple[list[tuple[int, int]], int, Loading | None]: ...
    def lost(self, queue: int) -> list[tuple[int, int]]: ...
    def spilled(self, queue: int, bytes_max: int) -> Loading | None: ...
    def drop_spilled(self, queue: int) -> None: ...


class Reader(Protocol):
    """A member that asked for a Read."""

    def on_read(
        self,
        request: Request,
        live: Ranges,
        runs: tuple[Run, ...],
        upto: int,
        counts: Counts = (),
        marks: tuple[Mark, ...] = (),
        requeued: Ranges = (),
    ) -> None: ...


class Reading:
    """A read for a member: the live messages are known; if there is a job, it reads their contents."""

    __slots__ = ("request", "job", "_counts", "_live", "_marks", "_requeued", "_upto")

    def __init__(
        self,
        request: Request,
        live: list[tuple[int, int]],
        upto: int,
        job: Loading | None,
        counts: Counts = (),
        marks: tuple[Mark, ...] = (),
        requeued: Ranges = (),
    ) -> None:
        self.request = request
        self.job = job
        self._counts = counts
        self._marks = marks
        self._requeued = requeued
        self._live = tuple(live)
        self._upto = upto

    def answer(self, member: Reader) -> None:
        """Answer the member; the job, if there was one, is done."""
        runs = tuple(self.job.runs) if self.job is not None else ()
        member.on_read(self.request, self._live, runs, self._upto, self._counts, self._marks, self._requeued)


# -- the store -----------------------------------------------------------------------------


class MirrorStore:
    """All mirrored queues of a node, on `Log.mirrors`."""

    def __init__(self, mirrors: Mirrors) -> None:
        self._mirrors = mirrors
        # By queue: its present member's number, from its first write on. Writes of others are not reported.
        self._lives: dict[int, int] = {}
        self._life = 0

    # -- a member's start --------------------------------------------------------------

    def recovered(self, queue: int) -> Recovered:
        """Returns the log's end for a member that begins now. Writes of an earlier one are not reported any more."""
        stored, mirror = self._mirrors.look(queue)
        self._lives.pop(queue, None)
        return Recovered(
            base=mirror.base,
            history=mirror.history,
            messages=stored.next_seq - 1,
            blocks=mirror.take_blocks(),
            complete=mirror.complete,
            read_at=mirror.read_at,
            cut=mirror.cut,
            bound=mirror.bound,
            after=mirror.after,
            have=mirror.have,
            marked=mirror.marked,
            delivered=stored.delivered_through,
        )

    def adopt(self, queue: int, epoch: int, next_seq: int, runs: Sequence[Run]) -> None:
        """The queue becomes mirrored here. `runs`: messages of it that were not in the log until now. `spilled` reads
        those that are in the log only for lack of memory."""
        stored, mirror = self._mirrors.open(queue)
        if runs or stored.spilled:
            self._mirrors.begin(queue, epoch)
        for run in runs:  # An empty range after..upto, so that this settles nothing.
            self._mirrors.fill(queue, run.last, run.last, (), (run,), mirror.read_at, mirror.base, None)
        if stored.next_seq < next_seq:  # The last messages are gone already; their numbers are not used again.
            self._mirrors.fill(queue, next_seq - 1, next_seq - 1, (), (), mirror.read_at, mirror.base, None)

    def spilled(self, queue: int, bytes_max: int) -> Loading | None:
        """Returns a job that reads some of the messages which were spilled before the queue was mirrored, the lowest
        numbers first. None: there are none, or they were stored since by a `Fill`."""
        return self._mirrors.spilled(queue, bytes_max)

    def drop_spilled(self, queue: int) -> None:
        """Drop spilled messages: another node leads the queue now, and they are not part of it."""
        self._mirrors.drop_spilled(queue)

    def is_mirrored(self, queue: int) -> bool:
        """Returns whether the queue is mirrored by the log. If not by the metadata, `release` was never written."""
        return self._mirrors.is_mirrored(queue)

    def disk(self, queue: int) -> int:
        """Returns a number that changes each time the queue has lost something that had been synced."""
        return self._mirrors.look(queue)[1].disk

    def lost(self, queue: int) -> list[tuple[int, int]]:
        return self._mirrors.lost(queue)

    def stored(self, queue: int) -> Stored:
        """Returns the state by all applied blocks, for `restore_queue` and for figures."""
        return self._mirrors.look(queue)[0]

    def unmark(self, queue: int, ranges: Iterable[tuple[int, int]]) -> None:
        """Have these messages read back without the mark that they are redelivered, as long as this node leads."""
        self._mirrors.unmark(queue, ranges)

    def release(self, queue: int, tail: Sequence[Block] | None = None) -> None:
        """The queue is mirrored no longer and this node goes on with it: everything its copy has counts, and its blocks
        go to `Log.append` like those of other queues. `tail`: blocks not applied yet; None: there was no member since
        the start."""
        _, mirror = self._mirrors.open(queue)
        self._mirrors.release(queue, mirror.take_blocks() if tail is None else tail)
        self._lives.pop(queue, None)

    def left(self, queue: int) -> None:
        """The queue's member is gone. The caller tells `Log.forget`, unless the queue's log is to stay."""
        self._lives.pop(queue, None)

    # -- effects -----------------------------------------------------------------------

    def _begin(self, queue: int) -> int:
        self._life += 1
        self._lives[queue] = self._life
        return self._life

    def write(self, queue: int, effect: Write) -> None:
        mirrors, change, confirmed = self._mirrors, effect.change, effect.confirmed
        mark = (self._lives.get(queue) or self._begin(queue)) << _LIFE_BITS | effect.id
        if isinstance(change, Append):
            last = change.blocks[-1]
            for block in change.blocks:
                raw = (block.meta, block.body) if isinstance(block, PackedBlock) else None
                mirrors.append(block, raw, confirmed, mark if block is last else None)
        elif isinstance(change, Truncate):
            mirrors.truncate(queue, change.number, confirmed, mark)
        elif isinstance(change, Restart):
            cut, history, bound, have, read_at, delivered = change
            mirrors.restart(queue, cut, history, bound, have, read_at, confirmed, mark, delivered)
        elif isinstance(change, Fill):
            after, upto, live, runs, read_at, counts, marks, requeued = change
            mirrors.fill(queue, after, upto, live, runs, read_at, confirmed, mark, counts, marks, requeued)
        elif isinstance(change, Complete):
            mirrors.complete(queue, change.read_at, confirmed, mark)

    def apply(self, effect: Apply) -> None:
        if effect.blocks:
            self._mirrors.apply(effect.blocks)

    def read(self, queue: int, request: Request) -> Reading:
        live, upto, job = self._mirrors.fetch(
            queue, request.after, request.bound, request.have, request.bytes_max, request.batch * BATCHES
        )
        stored = self._mirrors.look(queue)[0]
        known = stored.counts
        counts = stretches({number: known[number] for number in known if request.after < number <= upto})
        marks = () if request.after else tuple(stored.marks.all())
        requeued = tuple(stored.redelivered.ranges(request.after + 1, upto)) if upto > request.after else ()
        return Reading(request, live, upto, job, tuple(counts), marks, requeued)

    def synced(self, job: Written) -> dict[int, int]:
        """Returns, by queue, the write up to which all are durable now, for `Member.on_synced`."""
        found: dict[int, int] = {}
        for queue, mark in job.marks:
            if self._lives.get(queue) == mark >> _LIFE_BITS:
                found[queue] = mark & ((1 << _LIFE_BITS) - 1)
        return found


# -- promotion -----------------------------------------------------------------------------


def restore_queue(queue: Queue, stored: Stored, started: Started) -> list[tuple[int, Batch]]:
    """Fill an empty queue from its log, now that its member is master. Returns the batches that hold the messages of
    blocks which are not applied yet, by block number: call `queue.on_logged` with each when its block is applied."""
    tail = started.tail
    stored.mark_again()
    through = max((block.delivered_through for block in tail), default=0)
    through = max(through, stored.delivered_through)
    queue.restore(started.number, started.epoch, stored.next_seq, 0, 0, 0, through)
    settled = RangeSet(pair for block in tail for pair in block.settled)
    requeued = [pair for block in tail for pair in block.requeued]
    for low, high in [(1, through), *requeued] if through else requeued:
        for start, end in list(stored.live.ranges(low, high)):
            stored.redeliver(start, end)
    for gap in gaps_of(stored.live, settled):
        queue.restore_gap(gap)
    marks = RangeSet([(1, through)] if through else ())
    for low, high in requeued:
        marks.add(low, high)
    batches = []
    for block in tail:
        run = block.enqueued
        if run is not None and run.contents:
            batches.append((block.number, add_batch(queue, run, settled, marks)))
    returns = queue.extension(DeliveryLimit)
    if returns is not None:
        returns.restore(_counts(stored.counts, tail, settled, queue.next_seq), queue.rules.delivery_limit)
    return batches


def stored_marks(stored: Stored, tail: Sequence[Block]) -> dict[bytes, bytes]:
    """Returns the marks of a queue whose member is master now, from applied blocks and from the others."""
    marks = stored.marks.values()
    for block in tail:
        marks.update(block.marks)
    return {key: value for key, value in marks.items() if value}


def _counts(stored: dict[int, int], tail: Sequence[Block], settled: RangeSet, next_seq: int) -> dict[int, int]:
    """Returns how often ready messages were requeued, by applied blocks and by the others."""
    counts = dict(stored)
    for low, high, count in [one for block in tail for one in block.counts]:
        for number in range(low, min(high + 1, next_seq)):
            counts[number] = max(count, counts.get(number, 0))
    return {number: count for number, count in counts.items() if number not in settled}


def gaps_of(live: RangeSet, settled: RangeSet) -> Iterator[Gap]:
    """Yields gaps of the messages that live and are not settled. A gap stands for all live messages between its ends,
    so each ends where a live message is settled. The last one, which may be long, is not gone through to be counted."""
    rest, start = live.count, live.first or 1
    for low, high in settled:
        there = live.count_within(low, high)
        if there:
            count = live.count_within(start, low - 1) if low > start else 0
            if count:
                yield Gap(live.next(start) or start, low - 1, count)
            rest -= there + count
            start = high + 1
    if rest:
        assert live.last is not None
        yield Gap(live.next(start) or start, live.last, rest)


def add_batch(queue: OrderedQueue, run: Run, settled: RangeSet, marks: RangeSet) -> Batch:
    """Append the messages of a block that is not applied to the ready ones, without those that are settled."""
    batch = Batch.loaded(Run(run.first, run.contents, run.keys, bytearray(run.kinds), run.times))
    batch.mark_unlogged()  # It cannot be read back before its block is applied.
    for low, high in marks.ranges(run.first, run.last):
        batch.mark_redelivered(low - run.first, high - run.first + 1)
    queue.restore_batch(batch, settled.ranges(run.first, run.last))
    return batch
