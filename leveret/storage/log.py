"""The durable log of one node: the blocks of all its queues, in common segment files.

Blocks are collected (`append`) and written as one *group* with one sync (`take` returns the job, `on_done` the blocks
that are durable now). While one group is being written the next is collected, so groups grow with load and an idle node
waits for nothing. Memory has, per queue, the sets of live numbers and one packed reference per block; contents are read
with `load`.

Only `recover` uses the disk: `take`, `load` and `maintenance` return jobs (`segments.disk_jobs`) that a worker thread
performs, and `on_done` or `on_failed` must be called with each of them afterwards.

**How space is freed.** A segment is dead when it has no live message. Then a *checkpoint* (all queues' sets, and the
list of segments that are still needed) is written, and only after that the segment's file is deleted, or kept as a
spare to be overwritten by a later segment. A segment with few live messages is emptied first: they are written again as
*moved* blocks, a limited number of bytes at a time. So one old message keeps its own size on disk, not its segment.

**Why no settle is ever lost while a copy of its message is on disk.** Let `through` be the checkpoint's segment number;
a place is *before* or *behind* it by its segment.

1. Only two things make a message live at start: the checkpoint's live set, and a NORMAL block in a segment not before
   `through`. Moved blocks say where contents are, never that they are live. So copies before `through`, in any number
   and order, original or moved, in a dead file or a spare, have no effect.
2. Segments not before `through` are never deleted: that takes a checkpoint with a higher `through` that does not name
   them. So every settle written there is still there, next to every enqueue written there.
3. A settle written before `through` is in the checkpoint's gone set, since the set was taken after the settle was
   appended and only grows. live = enqueued − gone whatever the order, so neither a message of the checkpoint nor one
   found behind it comes back.
4. The sets are copied at any moment, when collected blocks may not be written yet. Therefore the checkpoint is written
   only when all of those are durable: otherwise it would contain messages without contents, and block numbers that do
   not exist. Blocks that are contained in the sets and read again behind `through` change nothing.
5. Contents of live messages are on disk when the checkpoint is: references move to a copy only when the copy is
   durable, segments are left out of the list only when no reference points there, and if not every write is synced, the
   current segment is synced before the checkpoint is written (all others are synced before the next one is started).
6. The checkpoint is replaced by a rename: after a crash there is the old one or the new one. Deletions follow a durable
   new one, so a crash in between leaves files that the checkpoint does not name, which recovery removes. A recycled
   file has its old name until a synced rename makes it a spare, and a spare has no effect until a synced rename makes
   it a segment; its contents are valid only for the segment number for which they were written.
7. A forgotten queue whose number is used again (a mirror that leaves and returns) must not get its former messages.
   FORGET voids all earlier blocks; `floor` is its segment in the checkpoint, and a queue that the checkpoint does not
   contain has `through` as its floor.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from leveret.base.range_set import RangeSet
from leveret.storage.compaction import Compaction
from leveret.storage.format.block_format import (
    CONTENT_BYTES_MAX,
    FORGET,
    MIRRORED,
    MOVED,
    NORMAL,
    PART,
    SPILL,
    Records,
)
from leveret.storage.format.errors import LogStopped
from leveret.storage.format.queue_block import LASTING_KIND, PERSISTENT, SHARED, Block, Run
from leveret.storage.format.queue_marks import marks_bytes, marks_of
from leveret.storage.mirror_log import MirrorLog, unknown_part
from leveret.storage.recovery import Recovery
from leveret.storage.segments.block_reader import Place, pick
from leveret.storage.segments.content_index import PENDING, SHORT, Ref, Share
from leveret.storage.segments.disk import Disk, Job
from leveret.storage.segments.disk_jobs import (
    DISK_FULL,
    RECORD_OVERHEAD,
    Checkpoint,
    Compact,
    Entry,
    Load,
    MirrorEntry,
    Reclaim,
    Seal,
    Write,
)
from leveret.storage.segments.queue_index import QueueLog
from leveret.storage.segments.segment import segment_path

_ENTRY_OVERHEAD = 128
_WITHOUT = (0, 0)  # The bounds of blocks without messages: one object for all queues.
_PERSISTENT_BIT = bytes(kind & PERSISTENT for kind in range(256))
_PERSISTENT_STRETCH = re.compile(b"\x01+")


@dataclass(frozen=True)
class LogOptions:
    """Sizes and limits of the log."""

    segment_bytes: int = 64 << 20  # A segment of this size is full; its last group may exceed it.
    segment_blocks: int = 65_536
    group_bytes: int = 16 << 20
    sync: Literal["always", "interval", "never"] = "always"
    spares_max: int = 4
    sparse_percent: int = 25  # Segments with a smaller live part are emptied.
    compact_bytes: int = 4 << 20  # The bytes that one compaction job reads and the log writes again.
    checkpoint_segments: int = 8  # There is a checkpoint at least every so many new segments.
    ahead_bytes: int = 0  # Zeros that are written behind a small group, for the next ones to overwrite.

    def __post_init__(self) -> None:
        if not 1 <= self.segment_bytes <= 1 << 31 or not 1 <= self.group_bytes <= 1 << 28:
            raise ValueError("segment_bytes is at most 2 GiB, group_bytes at most 256 MiB")
        if self.sync not in ("always", "interval", "never"):
            raise ValueError(f"sync is always, interval or never, not {self.sync!r}")


class Segment(Share):
    """A segment file of the log."""

    __slots__ = (
        "number", "length", "synced", "blocks", "reach", "pins", "created", "recycled", "sealed", "indexed", "bad",
        "queues",
    )  # fmt: skip

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.length = 0
        self.synced = 0
        self.blocks = 0
        self.reach = 0  # Its file has at least this size: what is written up to here does not extend it.
        self.pins = 0  # The number of jobs that read from it.
        self.created = False
        self.recycled = False
        self.sealed = False  # It is synced, and nothing more is written to it.
        self.indexed = False  # Its index file exists.
        self.bad = False  # Damage was found in it: it is left alone.
        self.queues: dict[int, tuple[int, int]] = {}  # By queue: lowest and highest first number of its references.

    @classmethod
    def found(cls, number: int, length: int, blocks: int, recycled: bool, indexed: bool) -> Segment:
        """Return a segment that was there at the start."""
        segment = cls(number)
        segment.extend(length, blocks, True)
        segment.seal(indexed)
        if recycled:
            segment.recycle()
        return segment

    def extend(self, length: int, blocks: int, synced: bool) -> None:
        """Note that so much was written to its end."""
        self.created = True
        self.length += length
        self.blocks += blocks
        if synced:
            self.synced = self.length

    def sync_to(self, length: int) -> None:
        self.synced = max(self.synced, length)

    def reach_to(self, size: int) -> None:
        """Note the size of its file."""
        self.reach = max(self.reach, size)

    def recycle(self) -> None:
        """Note that its file has stale bytes behind its end."""
        self.recycled = True

    def seal(self, indexed: bool | None = None) -> None:
        """Write nothing more to it. `indexed`: whether its index file can be used, if that is known."""
        self.sealed = True
        if indexed is not None:
            self.indexed = indexed

    def unseal(self) -> None:
        self.sealed = False

    def pin(self, jobs: int) -> None:
        """Count jobs that read from it, or do no longer."""
        self.pins += jobs

    def note(self, queue: int, first: int) -> None:
        known = self.queues.get(queue)
        if known is None:
            self.queues[queue] = (first, first) if first else _WITHOUT
        elif not known[0] <= first <= known[1]:
            self.queues[queue] = (min(known[0], first), max(known[1], first))


class Log:
    """The durable log of a node."""

    def __init__(self, disk: Disk, folder: str, options: LogOptions) -> None:
        self.disk = disk
        self.folder = folder
        self.options = options
        self.stopped: str | None = None  # Why the log has stopped writing; None: it has not.
        self.damage: list[str] = []  # Damage found at run time, in segments that are left alone since.
        self.queues: dict[int, QueueLog] = {}
        self.segment_table: dict[int, Segment] = {}
        self.shares: dict[int, Share] = {PENDING: Share()}
        self.current: Segment | None = None
        self.chain = 0
        self.spares: dict[int, int] = {}
        self.gathered: deque[Entry] = deque()
        self.entries: dict[int, Entry] = {}  # Not written yet, by `short` serial number.
        self.serial = 0
        self.written_serial = 0
        self.gathered_bytes = 0
        self.shared: tuple[list[bytes], int] = ([], 0)  # Contents of the last run with shared contents; their bytes.
        self.appended_bytes = 0  # In all; determines when checkpoints are taken.
        self._writing: Write | None = None
        self._writing_bytes = 0
        self._sync_due = False
        self.base = 1  # The lowest number for a new segment.
        self.upkeep = Compaction(self)
        self.mirrors = MirrorLog(self)

    # -- state -------------------------------------------------------------------

    @property
    def pending_bytes(self) -> int:
        return self.gathered_bytes + self._writing_bytes

    @property
    def disk_bytes(self) -> int:
        return sum(segment.length for segment in self.segment_table.values()) + sum(self.spares.values())

    @property
    def segments(self) -> int:
        return len(self.segment_table)

    def queue(self, queue: int) -> QueueLog:
        found = self.queues.get(queue)
        if found is None:
            found = self.queues[queue] = QueueLog(queue, self.shares)
            found.floor = self.current.number if self.current else 0
        return found

    def recover(
        self,
        known: Collection[int] | None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        """Read the log from disk. Queues not in `known` are deleted; None: keep all. Raises `LogDamaged` without having
        changed anything."""
        assert not self.segment_table and not self.serial, "recover comes first, and once"
        recovery = Recovery(self.disk, self.folder, progress or (lambda text: None))
        self.disk.make_folder(f"{self.folder}/segments")
        # A killed process may have left renames unsynced. What is read now must be durable.
        self.disk.sync_folder(self.folder)
        self.disk.sync_folder(f"{self.folder}/segments")
        recovery.run()
        for queue in recovery.install(self, known):
            self._gather_forget(QueueLog(queue, self.shares))
        for number in [
            number for number, queue in self.queues.items()
            if not queue.number and not queue.count and queue.mirror is None
        ]:  # fmt: skip
            del self.queues[number]  # It is forgotten in the log already.

    # -- gathering -----------------------------------------------------------------

    def append(self, block: Block) -> None:
        """Collect a block, which must not change any more."""
        if self.stopped:
            raise LogStopped(self.stopped)
        queue = self.queue(block.queue)
        assert queue.mirror is None or queue.mirror.released, "blocks of a mirrored queue go through its ring"
        run = block.enqueued
        entry = Entry(NORMAL, 0, queue, block)
        entry.set_head(block.epoch, block.number, block.time_ms, block.delivered_through)
        marks = marks_of(block.number, block.marks) if block.marks else []
        entry.set_changes(block.settled, block.requeued, block.counts, marks)
        entry.add_bytes(16 * (len(block.settled) + len(block.requeued)) + 20 * len(block.counts))
        if marks:
            entry.add_bytes(marks_bytes(marks))
            queue.marks.fold(marks)
            queue.marks.tidy()
        if run is not None and run.contents:
            self._append_run(entry, run)
        self.gather(entry)
        queue.advance(block.epoch, block.number, entry.next, block.delivered_through)
        if block.requeued:
            queue.requeue(block.requeued)
        if block.counts:
            queue.count_returns(block.counts)
        if block.settled:
            queue.settle(block.settled)

    def _append_run(self, entry: Entry, run: Run) -> None:
        """Put the run into `entry`, or its last part, with entries before it for the other parts."""
        queue = entry.queue
        first, last = run.first, run.last
        assert first > 0 and len(run.contents) == len(run.keys) == len(run.kinds)
        fresh = [(first, last)]
        gone = queue.gone.last
        if first < queue.next_seq or (gone is not None and first <= gone):
            fresh = unknown_part(queue, first, last)
        content_bytes = self._content_bytes(run)
        if content_bytes > self.options.group_bytes:
            sizes = list(map(len, run.contents))
            if max(sizes) > CONTENT_BYTES_MAX:
                raise ValueError(f"a message of {max(sizes)} bytes; the log takes {CONTENT_BYTES_MAX}")
            ends = [first + index - 1 for index in _cuts(sizes, self.options.group_bytes)]
            fresh = [part for low, high in fresh for part in _split(low, high, ends)]
        if not run.kinds[0] & PERSISTENT or run.kinds.count(run.kinds[0]) != len(run.kinds):
            # If the queue becomes mirrored later, its transient messages get blocks of their own, and a reference must
            # not span messages of another block.
            stored = RangeSet(_persistent(run.kinds, first))
            fresh = [part for low, high in fresh for part in stored.ranges(low, high)]
        is_last = bool(fresh) and fresh[-1][1] == last
        for low, high in fresh[:-1] if is_last else fresh:
            part = Entry(NORMAL, PART, queue)
            part.set_head(entry.epoch, entry.number, entry.time_ms, entry.delivered_through)
            self._hold(part, run, low, high, None)
            self.gather(part)
        if is_last:
            self._hold(entry, run, *fresh[-1], content_bytes if fresh[0] == (first, last) else None)
        else:
            entry.hold(last + 1, last + 1, None)

    def _hold(self, entry: Entry, run: Run, low: int, high: int, whole_bytes: int | None) -> None:
        """Put low..high of the run, all persistent, into `entry`, and count it. `whole_bytes`: its size, if that is all
        of the run."""
        held = run if whole_bytes is not None else run.cut(low - run.first, high - run.first + 1)
        entry.hold(low, high + 1, Records.of([held]))
        content_bytes = whole_bytes if whole_bytes is not None else sum(map(len, held.contents))
        self._weigh(entry, held, content_bytes)
        entry.refer_to(PENDING, (self.serial + 1) & SHORT)
        entry.queue.enqueue(low, high)
        entry.queue.index().append(low, high - low + 1, len(held.contents), *entry.source, content_bytes)

    def _content_bytes(self, run: Run) -> int:
        contents, content_bytes = self.shared
        if run.kinds[0] & SHARED and run.contents == contents:  # In a fan-out these are the same objects.
            return content_bytes
        return sum(map(len, run.contents))

    def _weigh(self, entry: Entry, run: Run, content_bytes: int) -> None:
        """Set the bytes that an entry adds to its group: contents shared with the one before are written once."""
        entry.add_bytes(RECORD_OVERHEAD * len(run.contents))
        if run.kinds[0] & SHARED:
            if run.contents == self.shared[0]:
                entry.leans_bytes = content_bytes
                return
            self.shared = (run.contents, content_bytes)
        else:
            self.shared = ([], 0)
        entry.add_bytes(content_bytes)

    def spill(self, queue: int, runs: Iterable[Run]) -> None:
        """Write transient messages to disk, so that their memory can be freed once the Write is done (`Write.spilled`).
        They can be loaded until the node stops; a restart drops them."""
        if self.stopped:
            raise LogStopped(self.stopped)
        owner = self.queue(queue)
        for run in runs:
            entry = Entry(SPILL, 0, owner)
            entry.hold(run.first, run.last + 1, Records.of([run]))
            content_bytes = self._content_bytes(run)
            self._weigh(entry, run, content_bytes)
            entry.refer_to(PENDING, (self.serial + 1) & SHORT)
            assert not owner.spilled.count_within(run.first, run.last), "messages are spilled once"
            index = owner.spill(run.first, run.last)
            index.append(run.first, len(run.contents), len(run.contents), *entry.source, content_bytes)
            self.gather(entry)

    def forget(self, queue: int) -> None:
        """Drop all messages of a queue: it was deleted, or is no longer mirrored here. Its blocks that are not written
        yet are dropped, and never reported as durable."""
        found = self.queues.pop(queue, None)
        if found is None:
            found = QueueLog(queue, self.shares)
        self.drop(found)
        if not self.stopped:
            self._gather_forget(found)

    def drop(self, found: QueueLog) -> None:
        """Remove a queue from memory."""
        found.refs.clear()
        found.spill_refs.clear()
        self.mirrors.clear(found)
        self.upkeep.drop_snapshot()  # It may contain blocks that are dropped here.
        if any(entry.queue is found for entry in self.gathered):
            for entry in self.gathered:
                if entry.queue is found:
                    self.gathered_bytes -= entry.bytes
                    if entry.source[0] != PENDING:
                        self.upkeep.on_moved()
                    self.entries.pop(entry.serial & SHORT, None)
                    if isinstance(entry, MirrorEntry):
                        self.mirrors.on_dropped(entry)
            self.gathered = deque(entry for entry in self.gathered if entry.queue is not found)

    def _gather_forget(self, queue: QueueLog) -> None:
        self.gather(Entry(FORGET, 0, queue))

    def gather(self, entry: Entry) -> None:
        self.serial = entry.serial = self.serial + 1
        entry.add_bytes(_ENTRY_OVERHEAD)
        self.gathered_bytes += entry.bytes
        self.gathered.append(entry)
        self.entries[entry.serial & SHORT] = entry

    def gather_moved(self, entries: Iterable[Entry]) -> int:
        """Collect copies of live messages of a sparse segment. Return how many will be written."""
        count = 0
        for entry in entries:
            if self.queues.get(entry.queue.id) is entry.queue:
                if isinstance(entry, MirrorEntry) and not self.mirrors.wants(entry):
                    continue
                self.gather(entry)
                count += 1
        return count

    # -- writing -------------------------------------------------------------------

    def sync_due(self) -> None:
        """For sync="interval": sync the next write, or what was written, without one."""
        if self.options.sync == "interval":
            self._sync_due = True

    def take(self) -> Write | None:
        """Return a job that writes the collected blocks, up to one group. None if there are none, or one is under way.
        """
        if self._writing is not None or self.stopped:
            return None
        unsynced = self.current is not None and self.current.synced < self.current.length
        if not self.gathered and not (self._sync_due and unsynced):
            return None
        entries = self._take_entries()
        write = self._prepare(entries)
        self._writing = write
        self._writing_bytes = sum(entry.bytes for entry in entries)
        self.gathered_bytes -= self._writing_bytes
        if not self.gathered:
            self.shared = ([], 0)
        self._sync_due = False
        return write

    def _take_entries(self) -> list[Entry]:
        room = self.options.group_bytes
        entries: list[Entry] = []
        gathered = self.gathered
        while gathered and (not entries or gathered[0].bytes <= room):
            entry = gathered.popleft()
            room -= entry.bytes if entries else entry.bytes + entry.leans_bytes
            entry.records = self._live_records(entry)
            entries.append(entry)
        return entries

    def _live_records(self, entry: Entry) -> Records | None:
        """Return the messages of an entry that are written: not those that were settled meanwhile, which the block's
        ranges leave out. A crash may keep this block and lose the settle: the message is still gone, as it should be.
        Only a checkpoint that was taken before the settle and waits for this block needs the message: it contains it as
        live."""
        if entry.type >= MIRRORED:
            return entry.whole()
        held = entry.held
        if held is None:
            return None
        queue = entry.queue
        live = queue.spilled if entry.type == SPILL else queue.live
        if entry.type == NORMAL and entry.serial <= self.upkeep.snapshot_serial:
            live = RangeSet(held.ranges)
        low, high = held.ranges[0][0], held.ranges[-1][1]
        if entry.type == MOVED:
            # A copy replaces its original at the next start, so it leaves out only messages settled before it was
            # collected: a later settle may be lost, and then the message must be here.
            return held if live.count_within(low, high) else None
        if len(held.ranges) == 1 and live.covers(low, high):
            if (low, high + 1) == (entry.first, entry.next):
                return held.all_of()
            return held
        wanted = list(live.ranges(low, high))
        if not wanted:
            return None
        runs = pick(held, held.ranges, wanted)
        if not runs:
            return None
        return Records.of(runs)

    def _prepare(self, entries: list[Entry]) -> Write:
        segment = self.current
        before: Segment | None = None
        if segment is None or (entries and self._full(segment)):
            before = segment
            segment = Segment(max(before.number + 1 if before else 1, self.base))
        elif not segment.length:
            before = self.segment_table.get(segment.number - 1)
        sync = self.options.sync == "always" or self._sync_due
        write = Write(self.folder, segment.number, segment.length, segment.synced, entries, sync)
        write.follow(before.length if before else 0, self.chain)
        spare, reach = None, segment.reach
        if not segment.created:
            unsynced = before.number if before is not None and before.synced < before.length else None
            spare = min(self.spares) if self.spares and not segment.recycled else None
            write.create(unsynced, spare)
            reach = self.spares[spare] if spare is not None else reach
        if segment.recycled or spare is not None:
            write.overwrite()
        group_bytes = sum(entry.bytes for entry in entries)
        if sync and segment.length + group_bytes > reach and 0 < group_bytes < self.options.ahead_bytes // 4:
            write.write_ahead(self.options.ahead_bytes)
        return write

    def _full(self, segment: Segment) -> bool:
        full = segment.length >= self.options.segment_bytes or segment.blocks >= self.options.segment_blocks
        return full or segment.sealed  # After a start it may have an index, which lacks later blocks.

    def _opened(self, write: Write) -> Segment:
        """Return the segment of a write whose file exists now."""
        segment = self.segment_table.get(write.segment)
        if segment is None:
            segment = Segment(write.segment)
            self.segment_table[write.segment] = self.shares[write.segment] = segment
            if self.current is not None:
                self.current.seal()
                self.current.sync_to(self.current.length)
            self.current = segment
        if write.spare is not None and write.opened:
            segment.reach_to(self.spares.pop(write.spare, 0))
            segment.recycle()
        return segment

    def on_done(self, job: Job) -> list[Block]:
        """Note that a job is done. Return the blocks that are durable now, in the order in which they were appended."""
        if isinstance(job, Load):
            self._unpin(job)
            return []
        if not isinstance(job, Write):
            self.upkeep.on_done(job)
            return []
        assert job is self._writing
        self._writing = None
        self._writing_bytes = 0
        segment = self._opened(job)
        segment.extend(job.length, len(job.entries), job.sync)
        segment.reach_to(job.reach)
        if job.entries:
            self.chain = job.crc
            self.appended_bytes += job.length
            self._index(job, segment)
        return job.blocks

    def _index(self, write: Write, segment: Segment) -> None:
        for entry, place in zip(write.entries, write.places, strict=True):
            self.written_serial = entry.serial
            self.entries.pop(entry.serial & SHORT, None)
            queue = entry.queue
            if entry.type >= MIRRORED:
                assert isinstance(entry, MirrorEntry)
                self.mirrors.on_placed(entry, place, segment)
            elif entry.type == FORGET:
                reborn = self.queues.get(queue.id)
                if reborn is not None:
                    reborn.floor = segment.number
            elif entry.records is not None and self.queues.get(queue.id) is queue:
                refs = queue.spill_refs if entry.type == SPILL else queue.refs
                if refs.relocate(
                    entry.first, entry.source, segment.number, place.offset, place.length, place.overhead
                ):
                    segment.note(queue.id, entry.first)
            if entry.source[0] != PENDING:
                self.upkeep.on_moved()
            entry.forget_contents()

    def on_failed(self, job: Job, error: Exception) -> Literal["retry", "stopped"]:
        """Note that a job failed. `retry`: the disk is full, or a read failed; blocks that were not written are
        collected again, to be taken later. `stopped`: the contents of the disk are unknown; this log confirms nothing
        any more."""
        if isinstance(job, Load):
            self._unpin(job)
            return "retry"
        full = isinstance(error, OSError) and error.errno in DISK_FULL
        if not isinstance(job, Write):
            if full:
                self.upkeep.release_spares()
            if self.upkeep.on_failed(job, error) or full:
                return "retry"
            return self._stop(error)
        assert job is self._writing
        self._writing = None
        self._writing_bytes = 0
        if not full or job.syncing:
            return self._stop(error)
        self.upkeep.release_spares()
        if job.opened:
            self._opened(job)
        self.gathered.extendleft(reversed(job.entries))
        self.gathered_bytes += sum(entry.bytes for entry in job.entries)
        return "retry"

    def take_spares(self) -> list[int]:
        """Return all spare files that no write is about to use."""
        free = [number for number in self.spares if self._writing is None or number != self._writing.spare]
        for number in free:
            del self.spares[number]
        return free

    def _stop(self, error: Exception) -> Literal["stopped"]:
        self.stopped = f"writing the log failed: {error}"
        return "stopped"

    # -- reading -------------------------------------------------------------------

    def load(self, queue: int, first: int, last: int, max_bytes: int) -> Load | None:
        """Return a job that reads live messages of first..last, in order: whole blocks until `max_bytes` are reached,
        so at most one block more. None if there are none. Messages settled while it is under way are still included."""
        found = self.queues.get(queue)
        if found is None:
            return None
        places: list[Place] = []
        pending: list[Run] = []
        last = self.plan_range(found, False, first, last, max_bytes, places, pending)
        last = self.plan_range(found, True, first, last, max_bytes, places, pending)
        places = [_cut_place(place, last) for place in places if place.first <= last]
        pending = [_cut_run(run, last) for run in pending if run.first <= last]
        if not places and not pending:
            return None
        load = self.make_load(found, places, pending, first, last)
        if found.unmarked is not None:
            load.redelivered = found.read_as_redelivered(first, last)
        return load

    def make_load(self, queue: QueueLog, places: list[Place], pending: list[Run], first: int, last: int) -> Load:
        load = Load(queue.id, places, pending, last + 1)
        load.redelivered = list(queue.redelivered.ranges(first, last))
        for place in places:
            segment = self.segment_table[place.segment]
            segment.pin(1)
            load.pinned.append(place.segment)
        return load

    def plan_range(
        self,
        queue: QueueLog,
        spilled: bool,
        first: int,
        last: int,
        max_bytes: int,
        places: list[Place],
        pending: list[Run],
    ) -> int:
        """Plan a read of stored or of spilled messages. Return the last number that it covers."""
        live, refs = (queue.spilled, queue.spill_refs) if spilled else (queue.live, queue.refs)
        if not live:
            return last
        room = max_bytes
        for ref in refs.from_seq(first):
            if ref.first > last:
                break
            if room <= 0:
                return min(last, ref.first - 1)
            wanted = list(live.ranges(max(first, ref.first), min(last, ref.last)))
            if not wanted:
                continue
            room -= max(ref.bytes, 1)
            self.plan(ref, wanted, places, pending)
        return last

    def plan(self, ref: Ref, wanted: list[tuple[int, int]], places: list[Place], pending: list[Run]) -> None:
        """Add the places of wanted messages of a block: on disk, or not written yet."""
        if ref.segment == PENDING:
            held = self.entries[ref.offset].contents()
            for run in pick(held, held.ranges, wanted):
                run.kinds = run.kinds.translate(LASTING_KIND)
                pending.append(run)
        else:
            path = segment_path(self.folder, ref.segment)
            places.append(Place(path, ref.segment, ref.offset, ref.length, wanted, wanted[0][0], wanted[-1][1]))

    def _unpin(self, load: Load) -> None:
        for number in load.pinned:
            self.segment_table[number].pin(-1)
        load.pinned = []

    # -- compaction ----------------------------------------------------------------

    def maintenance(self, idle: bool = False) -> Seal | Checkpoint | Reclaim | Compact | None:
        """Return the next compaction job, one at a time. Call it after on_done; then `take` may have something to write
        too. `idle`: look at every segment, however many there are."""
        if self.stopped:
            return None
        return self.upkeep.next(idle)


def _persistent(kinds: bytearray, first: int) -> list[tuple[int, int]]:
    """Return the numbers of persistent messages as ranges."""
    marks = kinds.translate(_PERSISTENT_BIT)
    return [(first + match.start(), first + match.end() - 1) for match in _PERSISTENT_STRETCH.finditer(marks)]


def _cut_place(place: Place, last: int) -> Place:
    if place.last <= last:
        return place
    wanted = [(low, min(high, last)) for low, high in place.wanted if low <= last]
    return place._replace(wanted=wanted, last=last)


def _cut_run(run: Run, last: int) -> Run:
    return run.cut(0, min(last, run.last) - run.first + 1)


def _cuts(sizes: list[int], room: int) -> list[int]:
    """Return where to cut contents of these sizes so that each part has at most `room` bytes, or one message."""
    cuts = []
    start = 0
    ends = list(accumulate(sizes))
    for index, end in enumerate(ends):
        if end - start > room and index and start != ends[index - 1]:
            cuts.append(index)
            start = ends[index - 1]
    return cuts


def _split(low: int, high: int, ends: list[int]) -> list[tuple[int, int]]:
    """Return low..high in parts that end at `ends`."""
    parts = []
    for end in ends:
        if low <= end < high:
            parts.append((low, end))
            low = end + 1
    parts.append((low, high))
    return parts
