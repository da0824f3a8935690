"""Reads messages of queues by their numbers: which messages may be read here, and from where.

    number   1 ……… first ………………………………………………………………… next ……… next_seq
             settled │  live, with holes where others were settled  │  not safe yet, shown to nobody

**Nodes that can answer.** The master of a queue, and each mirror that is in sync and complete. Others name these
(`Elsewhere`).

**Safe messages.** A reader remembers numbers, as readers of streams do, so a number must never come to mean another
message. Hence `next`, the first number that is not safe: for a mirrored queue all blocks that are applied are safe, at
the master as at its mirrors (the log does not even refer to anything else); for another queue, all messages that are in
no block on its way to the disk. A transient message of a queue without mirrors is safe when it is in memory, as far as
it can be. It is lost with its node, and its number may then be given again: a reader that relies on numbers must not
use queues with transient messages.

**Source.** Messages are read from the log as they are stored there (see `leveret.node.stats.sheet_reader`), also those
that are unacknowledged. Messages that are in memory only are read from there if they are ready or leased, not if they
are unacknowledged.

**Limits.** Reads of the log are done by the thread that also reads paged-out messages back for queues, and these must
not wait behind many reads: so few reads are given to it at a time. And the processor time that a read takes is missing
for publishes. A node that is busy with publishes reads no more than `BUSY_BYTES_PER_S`, which is about a tenth of what
it could and takes about a tenth of one processor; a node that is not busy reads as fast as it can.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections.abc import Iterable
from itertools import islice, starmap
from typing import TYPE_CHECKING, Final, NamedTuple

from leveret.base.range_set import RangeSet
from leveret.broker.delivery.batch import Gap, Span
from leveret.broker.kinds.priority_queue import PriorityQueue
from leveret.broker.kinds.stream import StreamQueue
from leveret.broker.queue.leases import Leases
from leveret.broker.queue.local_queue import LocalQueue
from leveret.broker.queue.queue import Queue
from leveret.metadata.rules.ha_policy import is_stream

if TYPE_CHECKING:
    from leveret.metadata.model.records import QueueSpec
    from leveret.node.node import Node
    from leveret.node.stats.sheet_reader import RangeRead
    from leveret.storage.format.queue_block import Run
    from leveret.storage.segments.queue_index import QueueLog

logger = logging.getLogger("leveret")

READS_MAX: Final = 2  # Reads given to the thread at a time.
WAITING_MAX: Final = 4_096
BUSY_PER_S: Final = 2_000  # The rate of publishes above which a node is busy.
LOOK_S: Final = 0.02
BUSY_BYTES_PER_S: Final = 96 << 20


class Elsewhere(Exception):
    """This node cannot answer; `nodes` can, the best first."""

    def __init__(self, nodes: tuple[str, ...]) -> None:
        super().__init__("this node has no copy of the queue that counts")
        self.nodes = nodes


class Unreadable(Exception):
    """The log is damaged there, or the node is stopping."""


class Extent(NamedTuple):
    """The range of numbers of a queue, and the size of what it holds, as its master knows them."""

    first: int
    next: int
    messages: int
    bytes: int


class Waiting:
    """A caller that waits until a message is safe."""

    __slots__ = ("beyond", "spec", "told")

    def __init__(self, spec: QueueSpec, beyond: int, told: asyncio.Future[None]) -> None:
        self.spec = spec
        self.beyond = beyond
        self.told = told


class RangeReads:
    """The reads by number at one node."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.waiting: dict[Waiting, None] = {}
        self._slots = asyncio.Semaphore(READS_MAX)
        self._due = 0.0  # When the next read may begin.
        # When the node was last tested for being busy, and the number of publishes until then.
        self._looked = (0.0, 0)
        self._busy = False

    # -- Copies, and which messages are safe ---------------------------------------------------------------------

    def master(self, spec: QueueSpec) -> LocalQueue | None:
        """Returns the queue, if its master is at this node."""
        queue = self.node.broker.queues_by_id.get(spec.id)
        return queue if isinstance(queue, LocalQueue) and not queue.deleted else None

    def readers(self, spec: QueueSpec) -> tuple[str, ...]:
        """Returns the nodes whose copies can be read according to the metadata, the master's first."""
        return (spec.node,) if spec.view is None else tuple(dict.fromkeys((spec.node, *dict(spec.view.in_sync))))

    def _mirror(self, spec: QueueSpec) -> QueueLog | None:
        """Returns the log of this node's mirror, if it is in sync and complete."""
        me = self.node.settings.node_name
        if spec.view is None or spec.view.disk_of(me) is None or spec.id not in self.node.broker.mirrors.mirrors:
            return None
        state = self.node.storage.log.queues.get(spec.id)
        return state if state is not None and state.mirror is not None and state.mirror.complete else None

    def elsewhere(self, spec: QueueSpec) -> Elsewhere:
        me = self.node.settings.node_name
        return Elsewhere(tuple(name for name in self.readers(spec) if name != me))

    def next(self, spec: QueueSpec) -> int:
        """Returns the first number that is not safe, as far as this node knows. Raises Elsewhere."""
        queue = self.master(spec)
        if queue is None:
            state = self._mirror(spec)
            if state is None:
                raise self.elsewhere(spec)
            return state.next_seq
        if queue.mirror is not None:
            state = self.node.storage.log.queues.get(spec.id)
            return 1 if state is None else state.next_seq
        if isinstance(queue, StreamQueue):
            return queue.committed + 1
        following = queue.next_seq
        if queue.open is not None and queue.open.stored:
            following = queue.open.first
        under_way, number = self.node.storage.in_blocks, queue.number
        while (entry := under_way.get((spec.id, number))) is not None:
            if entry[1] is not None:
                following = entry[1].first
            number -= 1
        return following

    def extent(self, spec: QueueSpec) -> Extent:
        """Returns the extent of a queue. Raises Elsewhere, unless its master is at this node."""
        queue = self.master(spec)
        if queue is None:
            raise self.elsewhere(spec)
        state = self.node.storage.log.queues.get(spec.id)
        following = self.next(spec)
        if isinstance(queue, StreamQueue):
            messages = max(following - queue.first, 0)
            return Extent(min(queue.first, following), following, messages, queue.retention.bytes)
        firsts = [] if state is None else [one for one in (state.live.first, state.spilled.first) if one is not None]
        if queue.mirror is None and isinstance(queue, Queue) and queue.ready:
            firsts.append(min(entry.first for entry in _fronts(queue)))
        leases = queue.extension(Leases)
        if queue.mirror is None and leases is not None:
            firsts += [batch.first + lo for batch, lo, _ in leases.held()]
        stored = 0 if state is None else state.message_bytes
        first = min((one for one in firsts if one < following), default=following)
        return Extent(first, following, queue.ready_count + queue.unacked_count, max(stored, queue.memory_bytes))

    # -- Reading -------------------------------------------------------------------------------------------------

    async def read(self, spec: QueueSpec, first: int, last: int, bytes_max: int) -> RangeRead:
        """Reads those of these messages that are safe and not settled. Raises Elsewhere, Unreadable."""
        async with self._slots:
            await self._pause()
            following = self.next(spec)  # Asked only now, because it may have changed during the wait.
            last = min(last, following - 1)
            if first >= following and self.master(spec) is None:
                raise self.elsewhere(spec)  # Other copies may know newer messages.
            queue = self.master(spec)
            memory = [] if queue is None or last < first else memory_only(queue, self._state(spec), first, last)
            shift = -1 if is_stream(spec.arguments) else 0
            return await self._perform(spec, max(first, 1), last, memory, bytes_max, shift)

    def stored(self, spec: QueueSpec, first: int, last: int, ranges_max: int) -> tuple[list[tuple[int, int]], int]:
        """Returns which of these messages are safe and in the log, and the number to go on with. Raises Elsewhere."""
        following = self.next(spec)
        if first >= following and self.master(spec) is None:
            raise self.elsewhere(spec)
        last, state = min(last, following - 1), self._state(spec)
        if state is None or last < first:
            return [], max(last + 1, first)
        found = list(state.live.ranges(first, last, ranges_max))
        return found, last + 1 if len(found) < ranges_max else found[-1][1] + 1

    def _state(self, spec: QueueSpec) -> QueueLog | None:
        return self.node.storage.log.queues.get(spec.id)

    async def _perform(
        self, spec: QueueSpec, first: int, last: int, memory: list[Run], bytes_max: int, shift: int
    ) -> RangeRead:
        from leveret.node.stats.sheet_reader import RangeRead  # Most nodes are never read from, and all of them start.

        storage = self.node.storage
        load = storage.log.load(spec.id, first, last, bytes_max) if first <= last else None
        job = RangeRead(load, memory, max(last, first - 1), bytes_max, shift)
        done: asyncio.Future[None] = self.node.loop.create_future()

        def on_done(error: Exception | None) -> None:
            if load is not None:
                storage.log.on_done(load) if error is None else storage.log.on_failed(load, error)
            if error is not None:
                logger.error("messages %d to %d of %s cannot be read: %s", first, last, spec.name, error)
            if done.done():
                return  # The caller was cancelled.
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(Unreadable(f"messages {first} to {last} cannot be read: {error}"))

        storage.reader.submit(lambda: job.perform(storage.disk), on_done)
        await done
        self._due = max(self._due, self.node.loop.time()) + sum(map(len, job.sheet)) / BUSY_BYTES_PER_S
        return job

    async def _pause(self) -> None:
        """Waits, if the node is busy with publishes."""
        now, published = self.node.loop.time(), self.node.broker.totals.published
        then, before = self._looked
        if now - then >= LOOK_S:
            self._busy = published - before > BUSY_PER_S * (now - then)
            self._looked = (now, published)
        if not self._busy:
            self._due = now
        elif self._due > now:
            await asyncio.sleep(self._due - now)

    async def number_at(self, spec: QueueSpec, ms: int) -> int:
        """Returns the number of the first message published at that time or later: a binary search, in which each step
        reads one block."""
        state = self._state(spec)
        high = self.next(spec)
        low = high if state is None or state.live.first is None else min(state.live.first, high)
        while low < high:
            middle = (low + high) // 2
            async with self._slots:
                read = await self._perform(spec, middle, high - 1, [], 1 << 20, 0)
            part = read.parts[0] if read.parts else None
            if part is None:
                high = middle
                continue
            at = next((at for at, came_ms in part.times if came_ms >= ms), None)
            if at is None:
                low = part.ranges[-1][1] + 1
            elif at:
                return _number(part.ranges, at)
            else:
                high = middle
        return low

    # -- Waiting -------------------------------------------------------------------------------------------------

    async def wait(self, spec: QueueSpec, beyond: int, seconds: float) -> int:
        """Waits until message `beyond` is safe, or the time is over, and returns `next`. Raises Elsewhere."""
        following = self.next(spec)
        if following > beyond or seconds <= 0 or len(self.waiting) >= WAITING_MAX:
            return following
        waiting = Waiting(spec, beyond, self.node.loop.create_future())
        self.waiting[waiting] = None
        try:
            await asyncio.wait([waiting.told], timeout=seconds)
        finally:
            self.waiting.pop(waiting, None)
        return self.next(self._newest(spec))

    def _newest(self, spec: QueueSpec) -> QueueSpec:
        """Returns the queue's present spec: its master and the mirrors in sync may have changed."""
        found = self.node.metadata.queues.get((spec.vhost, spec.name))
        return spec if found is None or found.id != spec.id else found

    def look(self) -> None:
        """Answers callers whose message is safe now. Called after a turn, if there are any."""
        for waiting in list(self.waiting):
            try:
                ready = self.next(self._newest(waiting.spec)) > waiting.beyond
            except Elsewhere:
                ready = True
            if ready:
                self._tell(waiting)

    def stop_waiting(self) -> None:
        """Answers all waiting callers, when the node stops."""
        for waiting in list(self.waiting):
            self._tell(waiting)

    def _tell(self, waiting: Waiting) -> None:
        del self.waiting[waiting]
        if not waiting.told.done():
            waiting.told.set_result(None)


def memory_only(queue: LocalQueue, state: QueueLog | None, first: int, last: int) -> list[Run]:
    """Returns the messages that are ready or leased, and not in the log."""
    if queue.mirror is not None or not isinstance(queue, Queue):
        return []
    spilled = RangeSet() if state is None else state.spilled
    stored = 0 if state is None else state.live.count + spilled.count
    untaken = queue.open.left if queue.open is not None and queue.open.stored else 0
    if queue.durable and queue.ready_count + queue.unacked_count <= stored + untaken:
        return []  # The usual case. A look at each batch would cost more than the read.
    runs: list[Run] = []
    for entry in _entries(queue, first):
        if entry.first > last:
            if isinstance(queue, PriorityQueue):
                continue
            break
        if isinstance(entry, Span) and entry.last >= first:
            runs += _unstored(queue, entry, spilled, first, last)
    leases = queue.extension(Leases)
    for span in () if leases is None else starmap(Span, leases.held()):
        if span.first <= last and span.last >= first:
            runs += _unstored(queue, span, spilled, first, last)
    runs.sort(key=lambda run: run.first)
    return runs


def _entries(queue: Queue, first: int) -> Iterable[Span | Gap]:
    """Returns the ready entries from a number on; perhaps some before it, too."""
    if isinstance(queue, PriorityQueue):
        return queue.ready
    return islice(queue.ready, bisect_left(queue.ready, first, key=lambda entry: entry.last), None)


def _fronts(queue: Queue) -> Iterable[Span | Gap]:
    return queue.ready if isinstance(queue, PriorityQueue) else (queue.ready[0],)


def _unstored(queue: LocalQueue, span: Span, spilled: RangeSet, first: int, last: int) -> list[Run]:
    batch = span.batch
    lo, hi = max(span.lo, first - batch.first), min(span.hi, last - batch.first + 1)
    found = batch.transient_runs(lo, hi) if queue.durable else [batch.cut(lo, hi)]
    if not spilled:
        return found
    runs: list[Run] = []
    for run in found:
        left = RangeSet([(run.first, run.last)])
        for low, high in spilled.ranges(run.first, run.last):
            left.remove(low, high)
        runs += [run.cut(low - run.first, high - run.first + 1) for low, high in left]
    return runs


def _number(ranges: Iterable[tuple[int, int]], index: int) -> int:
    for low, high in ranges:
        if index <= high - low:
            return low + index
        index -= high - low + 1
    raise AssertionError("an index past the end")
