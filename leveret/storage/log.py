"""The durable log of one node: the blocks of all its queues, in common segment files.

Blocks are gathered (`append`) and written as one *group* with one sync (`take` gives the job, `on_done` the blocks that
are durable now). While one group is being written the next gathers, so batches grow with load and an idle node waits
for nothing. Memory holds, per queue, the sets of numbers that live and one packed reference a block; contents are read
back with `load`.

Nothing here touches the disk except `recover`: `take`, `load` and `maintenance` give jobs (see `jobs`) that a worker
thread performs, and `on_done` or `on_failed` must be called with each of them afterwards.

**How space comes back.** A segment is dead when no message in it lives. Then a *checkpoint* (all queues' sets, and the
list of segments that still matter) is put in place, and only after that the segment's file goes, or is kept as a spare
to be overwritten by a later segment. A segment of which little lives is emptied first: its live messages are written
again as *moved* blocks, a bounded number of bytes at a time. So one old message pins its own size, not its segment.

**Why no settle is ever forgotten while a copy of its message is on disk.** Let `through` be the checkpoint's segment
number, and say a place is *before* or *behind* by comparing its segment with it.

1. Only two things make a message live at start: the checkpoint's live set, and a NORMAL block in a segment not before
   `through`. Moved blocks say where contents are, never that they live. So copies before `through`, in whatever
   number and order, original or moved, dead file or spare, count for nothing.
2. Segments not before `through` are never deleted: a segment dies only by a checkpoint with a higher `through` that
   does not name it. So every settle written there is there still, next to every enqueue written there.
3. A settle written before `through` is in the checkpoint's gone set, since the set was taken after the settle was
   appended and only grows. live = enqueued − gone whatever the order, so neither a message of the checkpoint nor one
   found behind it comes back.
4. The sets are taken at any moment, with blocks gathered that are not written yet. Therefore the checkpoint is put in
   place only when all of those are durable: it would otherwise know of messages without contents, and of block numbers
   that never were. Blocks that are contained in the sets and read again behind `through` change nothing.
5. Contents of what the sets call live are on disk when the checkpoint is: references move to a copy only when the copy
   is durable, segments are left out of the list only when no reference points there, and where writes are not synced
   one by one, the current segment is synced before the checkpoint is put in place (all others are synced before their
   successor is begun).
6. The checkpoint is replaced by a rename: the old one or the new one. Deletions follow a durable new one, so a crash
   between leaves files the checkpoint does not name, which recovery removes. A recycled file carries its old name until
   a synced rename makes it a spare, and a spare counts for nothing until a synced rename makes it a segment; what is
   inside is valid only for the segment number it was written for.
7. A forgotten queue whose number comes again (a mirror that leaves and returns) must not see its former life. FORGET
   voids all before it; `floor` remembers the segment of it in the checkpoint, and a queue the checkpoint does not know
   has `through` for a floor.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from leveret.base.range_set import RangeSet
from leveret.storage.compaction import Maintenance
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
from leveret.storage.mirror_log import Mirrors, unknown_part
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
_PERSISTENT_BIT = bytes(kind & PERSISTENT for kind in range(256))
_PERSISTENT_STRETCH = re.compile(b"\x01+")


@dataclass(frozen=True)
class LogOptions:
    segment_bytes: int = 64 << 20  # A segment is full from here on; its last group may reach over.
    segment_blocks: int = 65_536
    group_bytes: int = 16 << 20
    sync: Literal["always", "interval", "never"] = "always"
    spares_max: int = 4
    sparse_percent: int = 25  # Segments of which less lives are emptied.
    compact_bytes: int = 4 << 20  # What one maintenance job reads and the log writes again.
    checkpoint_segments: int = 8  # At least one checkpoint for so many new segments.

    def __post_init__(self) -> None:
        if not 1 <= self.segment_bytes <= 1 << 31 or not 1 <= self.group_bytes <= 1 << 28:
            raise ValueError("segment_bytes is at most 2 GiB, group_bytes at most 256 MiB")
        if self.sync not in ("always", "interval", "never"):
            raise ValueError(f"sync is always, interval or never, not {self.sync!r}")


class Segment(Share):
    __slots__ = (
        "number", "length", "synced", "blocks", "pins", "created", "recycled", "sealed", "indexed", "bad", "queues",
    )  # fmt: skip

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.length = 0
        self.synced = 0
        self.blocks = 0
        self.pins = 0  # Jobs that read from it.
        self.created = False
        self.recycled = False
        self.sealed = False  # Synced, and nothing more is written to it.
        self.indexed = False  # Its sidecar is in place.
        self.bad = False  # Damage was met in it: left alone.
        self.queues: dict[int, tuple[int, int]] = {}  # Lowest and highest first number of references to here.

    def note(self, queue: int, first: int) -> None:
        low, high = self.queues.get(queue, (first, first))
        self.queues[queue] = (min(low, first), max(high, first))


class Log:
    def __init__(self, disk: Disk, folder: str, options: LogOptions) -> None:
        self.disk = disk
        self.folder = folder
        self.options = options
        self.stopped: str | None = None  # Why nothing is written any more.
        self.damage: list[str] = []  # Met while running, in segments that are now left alone.
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
        self.shared: tuple[list[bytes], int] = ([], 0)  # Contents of the last run gathered that is shared; their bytes.
        self.appended_bytes = 0  # Ever; the pace of checkpoints.
        self._writing: Write | None = None
        self._writing_bytes = 0
        self._sync_due = False
        self.base = 1  # No segment that is begun has a lower number.
        self.upkeep = Maintenance(self)
        self.mirrors = Mirrors(self)

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
        """Read what is on disk. Queues not in `known` are dead; None: who lives is not known yet, keep all. Raises
        `LogDamaged`, and then has changed nothing."""
        assert not self.segment_table and not self.serial, "recover comes first, and once"
        recovery = Recovery(self.disk, self.folder, progress or (lambda text: None))
        self.disk.make_folder(f"{self.folder}/segments")
        # A process that was killed may have left renames unsynced. What is about to be believed must stay.
        self.disk.sync_folder(self.folder)
        self.disk.sync_folder(f"{self.folder}/segments")
        recovery.run()
        for queue in recovery.install(self, known):
            self._gather_forget(QueueLog(queue, self.shares))
        for number in [
            number for number, queue in self.queues.items()
            if not queue.number and not queue.count and queue.mirror is None
        ]:  # fmt: skip
            del self.queues[number]  # Forgotten, and the log says so already.

    # -- gathering -----------------------------------------------------------------

    def append(self, block: Block) -> None:
        """The block must not change any more."""
        if self.stopped:
            raise LogStopped(self.stopped)
        queue = self.queue(block.queue)
        assert queue.mirror is None or queue.mirror.released, "blocks of a mirrored queue go through its ring"
        run = block.enqueued
        entry = Entry(NORMAL, 0, queue)
        entry.epoch, entry.number, entry.time_ms = block.epoch, block.number, block.time_ms
        entry.delivered_through = block.delivered_through
        entry.settled, entry.requeued, entry.block = block.settled, block.requeued, block
        entry.counts = block.counts
        entry.bytes = 16 * (len(block.settled) + len(block.requeued)) + 20 * len(block.counts)
        if block.marks:
            entry.marks = marks_of(block.number, block.marks)
            entry.bytes += marks_bytes(entry.marks)
            queue.marks.fold(entry.marks)
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
        """Make `entry` hold the run, or its last part, with entries gathered before it for the others."""
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
            # Should the queue be mirrored one day, its transient messages get blocks of their own, and a reference
            # must not span messages of another block.
            stored = RangeSet(_persistent(run.kinds, first))
            fresh = [part for low, high in fresh for part in stored.ranges(low, high)]
        is_last = bool(fresh) and fresh[-1][1] == last
        for low, high in fresh[:-1] if is_last else fresh:
            part = Entry(NORMAL, PART, queue)
            part.epoch, part.number, part.time_ms = entry.epoch, entry.number, entry.time_ms
            part.delivered_through = entry.delivered_through
            self._hold(part, run, low, high, None)
            self.gather(part)
        if is_last:
            self._hold(entry, run, *fresh[-1], content_bytes if fresh[0] == (first, last) else None)
        else:
            entry.first = entry.next = last + 1

    def _hold(self, entry: Entry, run: Run, low: int, high: int, whole_bytes: int | None) -> None:
        """Make `entry` hold low..high of the run, all persistent, and count it in. `whole_bytes`: where that is all of
        the run."""
        held = run if whole_bytes is not None else run.cut(low - run.first, high - run.first + 1)
        entry.first, entry.next = low, high + 1
        entry.held = Records.of([held])
        content_bytes = whole_bytes if whole_bytes is not None else sum(map(len, held.contents))
        self._weigh(entry, held, content_bytes)
        entry.source = (PENDING, (self.serial + 1) & SHORT)
        entry.queue.enqueue(low, high)
        entry.queue.refs.append(low, high - low + 1, len(held.contents), *entry.source, content_bytes)

    def _content_bytes(self, run: Run) -> int:
        contents, content_bytes = self.shared
        if run.kinds[0] & SHARED and run.contents == contents:  # In a fan-out, they are the same objects.
            return content_bytes
        return sum(map(len, run.contents))

    def _weigh(self, entry: Entry, run: Run, content_bytes: int) -> None:
        """What the entry adds to its group: contents that the one before it has are written once."""
        entry.bytes += RECORD_OVERHEAD * len(run.contents)
        if run.kinds[0] & SHARED:
            if run.contents == self.shared[0]:
                entry.leans_bytes = content_bytes
                return
            self.shared = (run.contents, content_bytes)
        else:
            self.shared = ([], 0)
        entry.bytes += content_bytes

    def spill(self, queue: int, runs: Iterable[Run]) -> None:
        """Put transient messages away so that their memory can be freed once a Write that holds them is done
        (`Write.spilled`). They can be loaded until the node stops; a restart drops them."""
        if self.stopped:
            raise LogStopped(self.stopped)
        owner = self.queue(queue)
        for run in runs:
            entry = Entry(SPILL, 0, owner)
            entry.first, entry.next = run.first, run.last + 1
            entry.held = Records.of([run])
            content_bytes = self._content_bytes(run)
            self._weigh(entry, run, content_bytes)
            entry.source = (PENDING, (self.serial + 1) & SHORT)
            assert not owner.spilled.count_within(run.first, run.last), "messages are spilled once"
            owner.spilled.add(run.first, run.last)
            owner.spill_refs.append(run.first, len(run.contents), len(run.contents), *entry.source, content_bytes)
            self.gather(entry)

    def forget(self, queue: int) -> None:
        """The queue was deleted, or is no longer mirrored here: all its messages are dead. Blocks of it that are still
        gathered are dropped, and never reported as durable."""
        found = self.queues.pop(queue, None)
        if found is None:
            found = QueueLog(queue, self.shares)
        self.drop(found)
        if not self.stopped:
            self._gather_forget(found)

    def drop(self, found: QueueLog) -> None:
        """Nothing of it counts any longer."""
        found.refs.clear()
        found.spill_refs.clear()
        self.mirrors.clear(found)
        self.upkeep.drop_snapshot()  # It may count on blocks that are dropped here.
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
        entry.bytes += _ENTRY_OVERHEAD
        self.gathered_bytes += entry.bytes
        self.gathered.append(entry)
        self.entries[entry.serial & SHORT] = entry

    def gather_moved(self, entries: Iterable[Entry]) -> int:
        """Copies of live messages out of a sparse segment. Returns how many are worth writing."""
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
        """For sync="interval": the next write is to be synced, or what was written is to be synced without one."""
        if self.options.sync == "interval":
            self._sync_due = True

    def take(self) -> Write | None:
        """A job that writes what is gathered, up to one group. None if nothing is, or one is under way."""
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
        """What of an entry is worth writing: messages that were settled meanwhile are not, and the block then says by
        its ranges that it does not hold them. A crash may keep this block and lose the settle: the message is gone all
        the same, which is right, for it was settled. Only a checkpoint that was taken before the settle and waits for
        this block must not find it without the message: it would call it live."""
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
            # A copy replaces its original at the next start, so it lacks only what was settled before it was gathered:
            # a later settle may be lost, and then the message is to be found here.
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
        write = Write(self.folder, segment.number, segment.length, entries)
        write.synced = segment.synced
        write.previous_length = before.length if before else 0
        write.previous_crc = self.chain
        write.sync = self.options.sync == "always" or self._sync_due
        write.open = not segment.created
        write.overwrites = segment.recycled
        if write.open:
            if before is not None and before.synced < before.length:
                write.sync_before = before.number
            if self.spares and not segment.recycled:
                write.spare = min(self.spares)
                write.overwrites = True
        return write

    def _full(self, segment: Segment) -> bool:
        full = segment.length >= self.options.segment_bytes or segment.blocks >= self.options.segment_blocks
        return full or segment.sealed  # After a start: it has an index, which knows of nothing that comes later.

    def _opened(self, write: Write) -> Segment:
        """The segment of a write whose file exists now."""
        segment = self.segment_table.get(write.segment)
        if segment is None:
            segment = Segment(write.segment)
            self.segment_table[write.segment] = self.shares[write.segment] = segment
            if self.current is not None:
                self.current.sealed = True
                self.current.synced = self.current.length
            self.current = segment
        if write.spare is not None and write.opened:
            self.spares.pop(write.spare, None)
            segment.recycled = True
        return segment

    def on_done(self, job: Job) -> list[Block]:
        """Returns the blocks that are durable now, in the order they were appended."""
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
        segment.created = True
        segment.length += job.length
        segment.blocks += len(job.entries)
        if job.sync:
            segment.synced = segment.length
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
            entry.held = entry.records = None

    def on_failed(self, job: Job, error: Exception) -> Literal["retry", "stopped"]:
        """`retry`: the disk is full, or a read failed. What was to be written is gathered again; take it when there is
        hope. `stopped`: what the disk holds is unknown. This log confirms nothing any more."""
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
        """All spare files that no write is about to use."""
        free = [number for number in self.spares if self._writing is None or number != self._writing.spare]
        for number in free:
            del self.spares[number]
        return free

    def _stop(self, error: Exception) -> Literal["stopped"]:
        self.stopped = f"writing the log failed: {error}"
        return "stopped"

    # -- reading -------------------------------------------------------------------

    def load(self, queue: int, first: int, last: int, max_bytes: int) -> Load | None:
        """A job that reads live messages of first..last, in order: whole blocks until `max_bytes` are reached, so at
        most one block more. None if there are none. Messages settled while it is under way are still among them."""
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
        return self.make_load(found, places, pending, first, last)

    def make_load(self, queue: QueueLog, places: list[Place], pending: list[Run], first: int, last: int) -> Load:
        load = Load(queue.id, places, pending, last + 1)
        load.redelivered = list(queue.redelivered.ranges(first, last))
        for place in places:
            segment = self.segment_table[place.segment]
            segment.pins += 1
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
        """Collect what to read of the stored or of the spilled messages. Returns the last number this covers."""
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
        """Where these messages of a block are: on disk, or still to be written."""
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
            self.segment_table[number].pins -= 1
        load.pinned = []

    # -- upkeep --------------------------------------------------------------------

    def maintenance(self, idle: bool = False) -> Seal | Checkpoint | Reclaim | Compact | None:
        """The next job of upkeep, one at a time. Call it after on_done; then `take` may have something to write too.
        `idle`: look at every segment, however many there are."""
        if self.stopped:
            return None
        return self.upkeep.next(idle)


def _persistent(kinds: bytearray, first: int) -> list[tuple[int, int]]:
    """The numbers of persistent messages."""
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
    """Where to cut contents of these sizes so that each piece has at most `room` bytes, or is one message."""
    cuts = []
    start = 0
    ends = list(accumulate(sizes))
    for index, end in enumerate(ends):
        if end - start > room and index and start != ends[index - 1]:
            cuts.append(index)
            start = ends[index - 1]
    return cuts


def _split(low: int, high: int, ends: list[int]) -> list[tuple[int, int]]:
    """low..high in pieces that end at `ends`."""
    parts = []
    for end in ends:
        if low <= end < high:
            parts.append((low, end))
            low = end + 1
    parts.append((low, high))
    return parts
