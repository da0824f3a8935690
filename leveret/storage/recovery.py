"""Recovery of the log at start: reads the checkpoint, then segment indexes, then scans segments without one.

`run` reads and checks everything and changes nothing, so that a damaged log is left as it was found. `install` then
fills an empty log, and cleans up: cuts off a torn tail, removes files that are dead by the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import compress
from typing import TYPE_CHECKING

from leveret.storage.format.block_format import GROUP_HEAD, parse_group_head
from leveret.storage.format.errors import Damage, FormatError, LogDamaged
from leveret.storage.mirror_recovery import DamagedMirrors, MirrorRecovery
from leveret.storage.segments.checkpoint import CheckpointState, checkpoint_path, decode_checkpoint
from leveret.storage.segments.content_index import Columns
from leveret.storage.segments.disk import Disk
from leveret.storage.segments.queue_index import QueueLog
from leveret.storage.segments.segment import (
    SegmentIndex,
    index_path,
    numbered,
    scan_segment,
    segment_path,
    spare_path,
)
from leveret.storage.segments.segment_index import Entry, decode_index, to_columns

if TYPE_CHECKING:
    from leveret.storage.log import Log

_PIECE_BYTES = 4 << 20
_NOBODY = (1 << 64) - 1  # A number that no queue has.


class Found:
    """A segment as it was found."""

    __slots__ = ("index", "entries", "indexed", "size", "synced", "torn")

    def __init__(
        self, index: SegmentIndex, entries: dict[int, Entry], indexed: bool, size: int, synced: int, torn: str | None
    ) -> None:
        self.index = index
        self.entries = entries
        self.indexed = indexed
        self.size = size
        self.synced = synced
        self.torn = torn


class Recovery:
    """Reads a log from disk."""

    def __init__(self, disk: Disk, folder: str, progress: Callable[[str], None]) -> None:
        self.disk = disk
        self.folder = folder
        self.progress = progress
        self.damages: list[Damage] = []
        self.checkpoint: CheckpointState | None = None
        self.checkpoint_bytes = 0
        self.through = 1
        self.segments: list[Found] = []
        self.damaged: set[int] = set()  # Segments with wrong bytes.
        self.bad_indexes: list[str] = []  # Damaged segment indexes; they are simply made again.
        self.base = 1
        self.missing: dict[int, list[tuple[int, int]]] = {}  # By queue: live messages without contents.
        self._names: list[str] = []

    # -- reading -----------------------------------------------------------------

    def run(self, use_indexes: bool = True) -> None:
        """Read all. `damages` lists damage; what is good is kept all the same, for `repair`."""
        self._names = self.disk.names(f"{self.folder}/segments")
        self._read_checkpoint()
        present = set(numbered(self._names, "log"))
        named = set(self.checkpoint.segments) if self.checkpoint else set()
        newer = {number for number in present if number >= self.through}
        expected = named | set(range(self.through, max(newer, default=0) + 1))
        for number in sorted(expected - present):
            self.base = number + 1  # The number of a missing segment is not used again.
            path = segment_path(self.folder, number)
            self.damages.append(Damage(path, 0, 0, None, None, None, None, "the segment is missing"))
        numbers = sorted(expected & present)
        for number in numbers:
            self._read_segment(number, present, use_indexes)

    def _read_checkpoint(self) -> None:
        path = checkpoint_path(self.folder)
        if "checkpoint" not in self.disk.names(self.folder):
            return
        data = self.disk.read(path, 0, self.disk.size(path))
        try:
            self.checkpoint = decode_checkpoint(data)
        except FormatError as error:
            what = f"{error}; without it, settled messages may come back"
            self.damages.append(Damage(path, 0, len(data), None, None, None, None, what))
            present = numbered(self._names, "log")
            self.through = min(present, default=1)
        else:
            self.checkpoint_bytes = len(data)
            self.through = self.checkpoint.through

    def _read_segment(self, number: int, present: set[int], use_indexes: bool) -> None:
        path = segment_path(self.folder, number)
        size = self.disk.size(path)
        has_index = f"{number:016x}.index" in self._names
        if has_index and use_indexes and self._read_index(number, path, size):
            return
        claimed = self.checkpoint.segments.get(number, 0) if self.checkpoint else 0
        if has_index and not use_indexes:
            claimed = max(claimed, self._length_by_index(number))
        if number + 1 in present:
            claimed = max(claimed, self._length_by_next(number + 1))
        scan = scan_segment(self.disk, path, number, claimed)
        self.damages += scan.damages
        if scan.damages:
            self.damaged.add(number)
        entries = {queue: Entry(fold, to_columns(fold, number)) for queue, fold in scan.index.queues.items()}
        self.segments.append(Found(scan.index, entries, False, size, scan.synced, scan.torn))

    def _read_index(self, number: int, path: str, size: int) -> bool:
        aside = index_path(self.folder, number)
        try:
            index, entries = decode_index(self.disk.read(aside, 0, self.disk.size(aside)), number)
        except FormatError as error:
            self.progress(f"{aside}: {error}; made anew from its segment")
            return False
        if size < index.length:
            what = "the file ends too early"
            self.damages.append(Damage(path, size, index.length - size, None, None, None, None, what))
            self.damaged.add(number)
            return False
        self.segments.append(Found(index, entries, True, size, index.length, None))
        return True

    def _length_by_index(self, number: int) -> int:
        path = index_path(self.folder, number)
        try:
            index, _ = decode_index(self.disk.read(path, 0, self.disk.size(path)), number)
        except FormatError as error:
            self.bad_indexes.append(f"{path}: {error}")
            return 0
        return index.length

    def _length_by_next(self, number: int) -> int:
        """Return the length of a segment by the first group of the next one."""
        try:
            data = self.disk.read(segment_path(self.folder, number), 0, GROUP_HEAD.size)
            return parse_group_head(data, number, 0).previous_length
        except FormatError:
            return 0  # That one has no group, or its own scan will report damage.

    def all_queues(self) -> set[int]:
        found = {number for segment in self.segments for number in segment.entries}
        return found | set(self.checkpoint.queues if self.checkpoint else ())

    # -- folding -----------------------------------------------------------------

    def install(self, log: Log, known: Collection[int] | None) -> set[int]:
        """Fill an empty log and clean up. Return the queues that are not known and not yet forgotten in the log."""
        unknown = self.fold_into(log, self.all_queues() if known is None else set(known))
        if self.damages:
            raise LogDamaged(self.damages)
        self.tidy(log)
        waiting = sum(queue.count for queue in log.queues.values())
        self.progress(f"{len(self.segments)} segments, {len(log.queues)} queues, {waiting} messages")
        return unknown

    def damaged_mirrors(self, log: Log, mirrored: Collection[int]) -> DamagedMirrors:
        return DamagedMirrors(log, self.through, self.damages, self.missing, mirrored)

    def fold_into(self, log: Log, known: set[int]) -> set[int]:
        """Fill an empty log without changing anything on disk."""
        from leveret.storage.log import Segment

        for found in self.segments:
            index, recycled = found.index, found.size > found.index.length
            segment = Segment.found(index.segment, index.length, index.blocks, recycled, found.indexed)
            log.segment_table[segment.number] = log.shares[segment.number] = segment
            log.current, log.chain = segment, found.index.chain
        if log.current is not None and not log.current.indexed:
            log.current.unseal()
        log.base = max(self.through, self.base)
        replay = MirrorRecovery(log, self.damages)
        unknown = self._fold(log, known, replay)
        for queue in log.queues.values():
            if queue.mirror is not None:
                replay.finish(queue)
        self._reconcile(log)
        log.upkeep.through = self.through if self.checkpoint else 0
        log.upkeep.checkpoint_bytes = self.checkpoint_bytes
        return unknown

    def _fold(self, log: Log, known: set[int], replay: MirrorRecovery) -> set[int]:
        unknown = set()
        for number, state in (self.checkpoint.queues if self.checkpoint else {}).items():
            if number not in known:
                unknown.add(number)
                continue
            queue = log.queues[number] = QueueLog(number, log.shares)
            queue.advance(state.epoch, state.number, state.next_seq, state.delivered_through)
            queue.restore(state.floor, state.live, state.gone, state.redelivered, state.counts, state.mirror)
            queue.marks.fold(state.marks)
        reset = {
            number: found.index.segment
            for found in self.segments
            for number, entry in found.entries.items()
            if entry.fold.reset
        }
        for found in self.segments:
            for number, entry in found.entries.items():
                if number in known:
                    if found.index.segment < reset.get(number, 0):
                        continue  # Void: records from before the queue was forgotten.
                    self._fold_queue(log, number, entry, found.index.segment, replay)
                elif found.index.segment >= self.through:
                    if entry.fold.reset:
                        unknown.discard(number)
                    if entry.fold.number or entry.fold.records or entry.columns is not None:
                        unknown.add(number)
            found.entries = {}  # The references were copied: those of a long queue must not be in memory twice.
        return unknown

    def _fold_queue(self, log: Log, number: int, entry: Entry, segment: int, replay: MirrorRecovery) -> None:
        queue = log.queues.get(number)
        fold = entry.fold
        columns = entry.columns
        if segment < self.through:
            if queue is None or segment < queue.floor:
                return
            if columns is not None and queue.mirror is not None:
                columns = _less(columns, queue.mirror.unreferenced(segment))
        else:
            if queue is None or fold.reset:
                queue = log.queues[number] = QueueLog(number, log.shares)
                queue.begin_at(segment)
            # Marks up to this block are in the checkpoint already, removals included.
            queue.marks.fold(mark for mark in fold.marks.all() if mark[0] > queue.number)
            queue.advance(fold.epoch, fold.number, fold.next_seq, fold.delivered_through)
            for low, high in fold.enqueued:
                queue.enqueue(low, high)
            queue.requeue(fold.requeued)
            queue.count_returns((number, number, count) for number, count in fold.counts.items())
            for low, high in fold.settled:
                queue.end(low, high)
                queue.live.remove(low, high)
                queue.redelivered.remove(low, high)
                queue.uncount(low, high)
            if fold.records:
                dropped = replay.run(queue, segment, fold.records)
                columns = _less(columns, dropped) if columns is not None else None
        if columns is not None and len(columns):
            queue.index().load(columns)
            table = log.segment_table[segment]
            table.note(number, columns.first[0])
            table.note(number, columns.first[-1])
        applied = replay.take_rows()
        if applied is not None:
            queue.index().load(applied)
            for first, place in zip(applied.first, applied.segment, strict=True):
                log.segment_table[place].note(number, first)

    def _reconcile(self, log: Log) -> None:
        """Check that every live message has a place."""
        for queue in log.queues.values():
            if queue.refs.reconcile(queue.live) != queue.live.count:
                missing = queue.live.copy()
                for ref in queue.refs:
                    missing.remove(ref.first, ref.last)
                for low, high in missing:
                    what = "messages are nowhere in the log"
                    self.damages.append(Damage(f"{self.folder}/segments", 0, 0, queue.id, None, low, high, what))
                    queue.live.remove(low, high)
                    queue.redelivered.remove(low, high)
                    queue.uncount(low, high)
                self.missing[queue.id] = list(missing)
            for item in queue.mirror.tail if queue.mirror is not None else ():
                log.mirrors.keep(queue, item)
            for low, high in queue.live.ranges(0, queue.delivered_through):
                queue.redeliver(low, high)
            if queue.mirror is None or queue.mirror.complete:
                queue.marks.tidy()
            if queue.counts and (queue.mirror is None or queue.mirror.released):
                # Drop the counts of transient messages, which are gone.
                queue.drop_other_counts()

    # -- damage ------------------------------------------------------------------------

    def drop_damaged(self, log: Log) -> None:
        """Write the live messages of damaged segments to another one, write a checkpoint, and delete the damaged ones.
        It can be interrupted and done again: until the checkpoint is written, the same damage is found."""
        before = log.upkeep.through
        log.upkeep.checkpoint_due = True
        log.upkeep.forced = self.damaged & set(log.segment_table)
        for segment in log.segment_table.values():
            segment.seal(segment.number not in self.damaged and segment.indexed)
        log.forget(_NOBODY)  # Something must be written to start a new segment.
        while (job := log.take() or log.maintenance(idle=True)) is not None:
            job.perform(self.disk)
            log.on_done(job)
        if log.upkeep.through <= before:
            raise LogDamaged(self.damages)

    # -- cleaning up--------------------------------------------------------------

    def _write_again(self, path: str, start: int, end: int) -> None:
        """Sync bytes that are not synced by any group's evidence. They were read, so they must be durable: the next
        group will say that they are.

        A killed process leaves them in the system's page cache. After a failed sync they may even be there as if they
        had been written, and a second sync would do nothing; so they are written again."""
        while start < end:
            data = self.disk.read(path, start, min(end - start, _PIECE_BYTES))
            assert data  # Else this would go on for ever: `end` is not behind the end of the file.
            self.disk.write(path, start, [data])
            start += len(data)
        self.disk.sync(path)

    def tidy(self, log: Log) -> None:
        folder = f"{self.folder}/segments"
        if self.segments:
            last = self.segments[-1]
            path = segment_path(self.folder, last.index.segment)
            if last.torn is not None:
                end = last.index.length
                if not is_empty(self.disk, path, end, last.size):
                    self.progress(f"{path}: {last.size - end} bytes of an unfinished write cut off at {end}")
                self.disk.truncate(path, end)
                log.segment_table[last.index.segment].recycled = False
            # Where damage has taken the end of the file, the index says more than there is to read.
            self._write_again(path, last.synced, min(last.index.length, last.size))
        changed = False
        for name in self._names:
            stem, _, ending = name.partition(".")
            number = int(stem, 16) if numbered([name], ending) else None
            segment = log.segment_table.get(number) if number is not None else None
            if ending == "spare" and number is not None and len(log.spares) < log.options.spares_max:
                log.spares[number] = self.disk.size(spare_path(self.folder, number))
            elif not (segment and (ending == "log" or (ending == "index" and segment.indexed))):
                self.disk.delete(f"{folder}/{name}")
                changed = True
        if changed:
            self.disk.sync_folder(folder)


def is_empty(disk: Disk, path: str, start: int, end: int) -> bool:
    """Return whether these bytes of a file are zeros: written ahead, not part of an unfinished write."""
    while start < end:
        data = disk.read(path, start, min(end - start, _PIECE_BYTES))
        if data.count(0) != len(data) or not data:
            return False
        start += len(data)
    return True


def _less(columns: Columns, offsets: set[int]) -> Columns:
    """Return references without those to blocks at these offsets."""
    if not offsets:
        return columns
    kept = [offset not in offsets for offset in columns.offset]
    return Columns(tuple(type(column)(column.typecode, compress(column, kept)) for column in columns.all))
