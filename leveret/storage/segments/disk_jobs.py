"""The jobs of the log for a worker thread. Each uses only the disk and its own fields."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from contextlib import suppress

from leveret.storage.format.block_format import (
    CONTENTS,
    COPY,
    GROUP_HEAD,
    MIRRORED,
    MOVED,
    NORMAL,
    SPILL,
    Records,
    SharedBody,
    encode_again,
    encode_block,
    encode_group_head,
    meta_crc,
    share_contents,
    stored_kinds,
)
from leveret.storage.format.errors import Damage, LogDamaged
from leveret.storage.format.queue_block import PERSISTENT, REDELIVERED, Block, Run
from leveret.storage.format.queue_marks import Mark
from leveret.storage.segments.block_reader import Place, pick, read_blocks, read_whole, thin
from leveret.storage.segments.checkpoint import checkpoint_path
from leveret.storage.segments.content_index import PENDING
from leveret.storage.segments.disk import Disk
from leveret.storage.segments.mirror_copy import Unapplied
from leveret.storage.segments.queue_index import QueueLog
from leveret.storage.segments.segment import index_path, scan_segment, segment_path, spare_path
from leveret.storage.segments.segment_index import encode_index

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
RECORD_OVERHEAD = 16  # The approximate bytes of a message in a group besides its content.


class Entry:
    """A block to be written: a whole one, or part of one that is too large for a group."""

    __slots__ = (
        "type", "flags", "queue", "epoch", "number", "time_ms", "first", "next", "delivered_through", "held", "settled",
        "requeued", "counts", "marks", "bytes", "leans_bytes", "serial", "block", "source", "records",
    )  # fmt: skip

    def __init__(self, type: int, flags: int, queue: QueueLog, block: Block | None = None) -> None:
        """`block`: the block that is durable once this entry is."""
        self.type = type
        self.flags = flags
        self.queue = queue
        self.epoch = 0
        self.number = 0
        self.time_ms = 0
        self.first = 0  # The block is about the messages first..next-1.
        self.next = 0
        self.delivered_through = 0
        self.held: Records | None = None  # All messages of the block.
        self.settled: list[tuple[int, int]] = []
        self.requeued: list[tuple[int, int]] = []
        self.counts: list[tuple[int, int, int]] = []
        self.marks: list[Mark] = []  # Changes of the queue's marks.
        self.bytes = 0  # The approximate bytes that it adds to a group.
        self.leans_bytes = 0  # Contents shared with the entry before; in another group they count as its own.
        self.serial = 0
        self.block = block
        self.source = (0, 0)  # The place to which the reference points until this is written.
        self.records: Records | None = None  # The part of `held` that is written, chosen when the write is made.

    def set_head(self, epoch: int, number: int, time_ms: int, delivered_through: int = 0) -> None:
        self.epoch, self.number, self.time_ms, self.delivered_through = epoch, number, time_ms, delivered_through

    def set_changes(
        self,
        settled: list[tuple[int, int]],
        requeued: list[tuple[int, int]],
        counts: list[tuple[int, int, int]],
        marks: list[Mark],
    ) -> None:
        self.settled, self.requeued, self.counts, self.marks = settled, requeued, counts, marks

    def hold(self, first: int, next: int, held: Records | None) -> None:
        """Take the block's messages, first..next-1. None: it has none, or they are in the bytes of a packed block."""
        self.first, self.next, self.held = first, next, held

    def add_bytes(self, count: int) -> None:
        self.bytes += count

    def refer_to(self, segment: int, offset: int) -> None:
        """Note the place to which the queue's reference points until the entry is written."""
        self.source = (segment, offset)

    def forget_contents(self) -> None:
        """Drop the contents: they are written."""
        self.held = self.records = None

    def contents(self) -> Records:
        assert self.held is not None
        return self.held

    def whole(self) -> Records | None:
        return self.held


class MirrorEntry(Entry):
    """A record of a mirrored queue, or a copy of its messages. It is always written whole."""

    __slots__ = ("note", "raw", "packed", "mark", "item", "void")

    def __init__(self, type: int, flags: int, queue: QueueLog, item: Unapplied | None = None) -> None:
        super().__init__(type, flags, queue)
        self.note = b""
        self.raw: tuple[bytes, bytes] | None = None  # Meta and body of a block that came as bytes.
        self.packed: Block | None = None  # The block that came as bytes.
        self.mark: int | None = None  # A number of the caller's, reported when this entry is durable.
        self.item = item
        self.void = False  # It was cut off before it was written.

    def hold_raw(self, first: int, next: int, raw: tuple[bytes, bytes], packed: Block) -> None:
        """Take the messages of a block that came as bytes."""
        self.hold(first, next, None)
        self.raw, self.packed = raw, packed

    def forget_raw(self) -> None:
        self.raw = self.packed = None

    def write_item(self, item: Unapplied) -> None:
        """Write this block, which has no effect yet."""
        self.item = item
        item.write_by(self)

    def set_note(self, note: bytes, mark: int | None = None, flags: int = 0) -> None:
        """Add numbers of the ring, and a number of the caller's that is reported when this entry is durable."""
        self.note, self.mark = note, mark
        self.flags |= flags

    def cut_off(self) -> None:
        """Void the block: it was cut off before it was written."""
        self.void = True

    def contents(self) -> Records:
        if self.held is None:
            assert self.packed is not None and self.packed.enqueued is not None
            run = self.packed.enqueued
            self.held = Records.of([run])
        return self.held

    def whole(self) -> Records | None:
        held = self.held
        if held is None or self.raw is not None:
            return None
        if held.ranges == [(self.first, self.next - 1)]:
            return held.all_of()
        return held


class Written:
    """The place of a written entry."""

    __slots__ = ("offset", "length", "overhead")

    def __init__(self, offset: int, length: int, overhead: int) -> None:
        self.offset = offset
        self.length = length
        self.overhead = overhead


class Write:
    """Writes the gathered blocks as one group: one write, at most one sync."""

    def __init__(self, folder: str, segment: int, offset: int, synced: int, entries: list[Entry], sync: bool) -> None:
        self.folder = folder
        self.segment = segment
        self.offset = offset
        self.synced = synced
        self.entries = entries
        self.previous_length = 0
        self.previous_crc = 0
        self.sync = sync
        self.sync_before: int | None = None  # The segment before, if this is the first group of a new one.
        self.open = False  # Create the segment's file, from `spare` if given.
        self.spare: int | None = None
        self.overwrites = False  # The file has stale bytes after `offset`.
        self.ahead_bytes = 0  # Zeros to be written behind the group.
        # Results.
        self.opened = False
        self.syncing = False
        self.length = 0
        self.reach = 0  # The file has at least this size.
        self.crc = 0
        self.places: list[Written] = []

    def follow(self, length: int, crc: int) -> None:
        """Note the length of the segment before, if this is the first group of a new one, and the last checksum."""
        self.previous_length, self.previous_crc = length, crc

    def create(self, sync_before: int | None, spare: int | None) -> None:
        """Create the segment's file first. `sync_before`: the segment before, if it is not synced."""
        self.open, self.sync_before, self.spare = True, sync_before, spare

    def overwrite(self) -> None:
        """Note that the file has stale bytes."""
        self.overwrites = True

    def write_ahead(self, size: int) -> None:
        """Write so many zeros behind the group. Groups that overwrite them do not extend the file, so that their sync
        has no metadata to write: that takes a third of its time."""
        self.ahead_bytes = size

    @property
    def blocks(self) -> list[Block]:
        return [entry.block for entry in self.entries if entry.block is not None]

    @property
    def marks(self) -> list[tuple[int, int]]:
        """Return (queue, mark) for the entries with a mark, in order: they are durable once this is done."""
        return [
            (entry.queue.id, entry.mark)
            for entry in self.entries
            if isinstance(entry, MirrorEntry) and entry.mark is not None
        ]

    @property
    def spilled(self) -> list[tuple[int, int, int]]:
        """Return (queue, first, last) of transient messages that are on disk once this is done."""
        return [
            (entry.queue.id, entry.first, entry.next - 1)
            for entry in self.entries
            if entry.type == SPILL and entry.source[0] == PENDING
        ]

    def perform(self, disk: Disk) -> None:
        path = segment_path(self.folder, self.segment)
        if self.sync_before is not None:
            # A group in the new segment proves that all of the old one is synced.
            self._sync(disk, segment_path(self.folder, self.sync_before))
        if self.open and self.spare is not None:
            disk.rename(spare_path(self.folder, self.spare), path)
            self.opened = True
        if self.entries:
            buffers = self._encode()
            if not self._has_written_ahead(disk, path, buffers):
                self._write(disk, path, buffers)
        if self.sync:
            self._sync(disk, path)
        if self.open:
            self.opened = True
            self.syncing = True
            disk.sync_folder(f"{self.folder}/segments")
            self.syncing = False

    def _has_written_ahead(self, disk: Disk, path: str, buffers: list[bytes]) -> bool:
        """Write the group and zeros behind it. Return whether there was space for both."""
        if not self.ahead_bytes:
            return False
        try:
            self._write(disk, path, [*buffers, bytes(self.ahead_bytes)])
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise
            return False
        self.reach = self.offset + self.length + self.ahead_bytes
        return True

    def _write(self, disk: Disk, path: str, buffers: list[bytes]) -> None:
        try:
            disk.write(path, self.offset, buffers)
        except OSError as error:
            # Free the space. It is no problem if that fails: the rest of this group has no valid successor.
            if error.errno in DISK_FULL and not self.overwrites:
                with suppress(OSError):
                    disk.truncate(path, self.offset)
            raise

    def _sync(self, disk: Disk, path: str) -> None:
        self.syncing = True
        disk.sync(path)
        self.syncing = False

    def _encode(self) -> list[bytes]:
        at = self.offset + GROUP_HEAD.size
        buffers: list[bytes] = [b""]
        crcs = []
        self.places = []
        special = [
            entry.records for entry in self.entries
            if entry.records is not None
            and entry.records.kinds.count(PERSISTENT if entry.type != SPILL else 0) != len(entry.records.kinds)
        ]  # fmt: skip
        shared: SharedBody | None = None
        if special:
            contents, places = share_contents(special)
            if contents:
                meta, body = encode_contents(self.segment, at, contents)
                buffers += (meta, *body)
                crcs.append(meta_crc(meta))
                shared = SharedBody(at + len(meta), places)
                at += len(meta) + sum(map(len, body))
        for entry in self.entries:
            meta, body, overhead = self._encode_entry(entry, at, shared)
            length = len(meta) + sum(map(len, body))
            self.places.append(Written(at, length, overhead))
            crcs.append(meta_crc(meta))
            buffers.append(meta)
            buffers += body
            at += length
        self.length = at - self.offset
        buffers[0], self.crc = encode_group_head(
            self.segment, self.offset, self.length, self.synced, self.previous_length, self.previous_crc, crcs
        )
        return buffers

    def _encode_entry(
        self, entry: Entry, at: int, shared: SharedBody | None
    ) -> tuple[bytes, list[bytes], int]:
        records = entry.records
        refers = False
        note = b""
        if entry.type != NORMAL and isinstance(entry, MirrorEntry):
            note = entry.note
            if entry.raw is not None:
                meta, overhead = encode_again(self.segment, at, entry.raw[0], entry.type, entry.flags, note)
                return meta, [entry.raw[1]] if entry.raw[1] else [], overhead
        if records is not None and (
            entry.type == SPILL or records.kinds.count(PERSISTENT) != len(records.kinds)
        ):
            if shared is not None:
                refers = shared.has_some(records.contents)
            kinds = stored_kinds(records.kinds, entry.type)
            records = Records(records.ranges, records.contents, records.keys, kinds, records.times)
        fields = (
            entry.queue.id, entry.epoch, entry.number, entry.time_ms, entry.first, entry.next, entry.delivered_through,
        )  # fmt: skip
        return encode_block(
            self.segment, at, fields, records, entry.settled, entry.requeued, entry.type, entry.flags,
            shared if refers else None, note, entry.counts,
            entry.marks,
        )  # fmt: skip


def encode_contents(segment: int, offset: int, contents: list[bytes]) -> tuple[bytes, list[bytes]]:
    records = Records([], contents, [b""] * len(contents), bytes((PERSISTENT,)) * len(contents), [])
    meta, body, _ = encode_block(segment, offset, (0,) * 7, records, (), (), CONTENTS)
    return meta, body


class Load:
    """Reads messages. Afterwards `runs` has them in order; continue from `next`. Must be given to the log's on_done or
    on_failed in the end: until then its segments are kept."""

    def __init__(self, queue: int, places: list[Place], pending: list[Run], next: int) -> None:
        self.queue = queue
        self.places = places
        self.next = next
        self.redelivered: list[tuple[int, int]] = []
        self.runs: list[Run] = pending
        self.pinned: list[int] = []

    def perform(self, disk: Disk) -> None:
        runs = list(self.runs)
        for place, (_, records) in zip(self.places, read_blocks(disk, self.places), strict=True):
            picked = pick(records, records.ranges, place.wanted)
            if sum(map(len, picked)) != place.messages:
                raise LogDamaged([_lacking(place)])
            runs += picked
            if not self.runs and len(runs) > 1:  # In order, and joined at once: a long list of small runs is slow.
                runs[-1 - len(picked) :] = _joined(runs[-1 - len(picked) :])
        runs.sort(key=lambda run: run.first)  # Stored and spilled messages may be interleaved.
        self.runs = _joined(runs)
        self._mark()

    def _mark(self) -> None:
        at = 0
        for low, high in self.redelivered:
            while at < len(self.runs) and self.runs[at].last < low:
                at += 1
            for run in self.runs[at:]:
                if run.first > high:
                    break
                for index in range(max(low - run.first, 0), min(high, run.last) - run.first + 1):
                    run.kinds[index] |= REDELIVERED


def _lacking(place: Place) -> Damage:
    return Damage(place.path, place.offset, place.length, None, None, place.first, place.last, "messages are missing")


def _joined(more: Sequence[Run]) -> list[Run]:
    """Return the runs with neighbours joined."""
    runs: list[Run] = []
    for run in more:
        if runs and runs[-1].first + len(runs[-1].contents) == run.first:
            runs[-1].join(run)
        else:
            runs.append(run)
    return runs


class Seal:
    """Writes the index of a full segment."""

    def __init__(self, folder: str, segment: int, length: int) -> None:
        self.folder = folder
        self.segment = segment
        self.length = length

    def perform(self, disk: Disk) -> None:
        scan = scan_segment(disk, segment_path(self.folder, self.segment), self.segment, self.length)
        if scan.damages:
            raise LogDamaged(scan.damages)
        replace_file(disk, f"{self.folder}/segments", index_path(self.folder, self.segment), encode_index(scan.index))


def replace_file(disk: Disk, folder: str, path: str, buffers: Sequence[bytes]) -> None:
    """Replace a file atomically: after a crash it is the whole new one or the whole old one."""
    aside = f"{path}.new"
    disk.write(aside, 0, buffers)
    disk.truncate(aside, sum(map(len, buffers)))  # An earlier attempt may have left a longer file.
    disk.sync(aside)
    disk.rename(aside, path)
    disk.sync_folder(folder)


class Checkpoint:
    """Writes a checkpoint."""

    def __init__(self, folder: str, through: int, segments: dict[int, int], buffers: list[bytes], serial: int) -> None:
        self.folder = folder
        self.through = through
        self.segments = segments
        self.buffers = buffers
        self.serial = serial  # The checkpoint contains all entries up to this one.
        self.sync_before: int | None = None
        self.sync_length = 0  # The length of that segment when this job was made.

    @property
    def bytes(self) -> int:
        return sum(map(len, self.buffers))

    def perform(self, disk: Disk) -> None:
        if self.sync_before is not None:
            disk.sync(segment_path(self.folder, self.sync_before))
        replace_file(disk, self.folder, checkpoint_path(self.folder), self.buffers)


class Reclaim:
    """Deletes dead segments, or keeps their files for new ones."""

    def __init__(self, folder: str, segments: list[int], indexed: set[int], keep: int) -> None:
        self.folder = folder
        self.segments = segments
        self.indexed = indexed
        self.keep = keep
        self.spare_bytes_max = 0  # A larger file, of a huge message, is not kept.
        self.release: list[int] = []  # Spare files to delete, because the disk is full.
        self.kept: dict[int, int] = {}  # The spare files kept, and their sizes.
        self.gone: list[int] = []

    def perform(self, disk: Disk) -> None:
        for spare in self.release:
            disk.delete(spare_path(self.folder, spare))
        for segment in self.segments:
            path = segment_path(self.folder, segment)
            if segment in self.indexed:
                disk.delete(index_path(self.folder, segment))
                self.indexed.discard(segment)
            size = disk.size(path)
            if len(self.kept) < self.keep and size <= self.spare_bytes_max:
                disk.rename(path, spare_path(self.folder, segment))
                self.kept[segment] = size
            else:
                disk.delete(path)
            self.gone.append(segment)
        disk.sync_folder(f"{self.folder}/segments")  # A spare must not be used before its renaming is synced.


class Compact:
    """Reads the live messages of a sparse segment, to be written again."""

    def __init__(
        self, segment: int, path: str, places: list[tuple[QueueLog, Place]], items: list[tuple[QueueLog, Unapplied]]
    ) -> None:
        self.segment = segment
        self.path = path
        self.places = places
        self.items = [(queue, item, item.offset, item.length) for queue, item in items]
        self.entries: list[Entry] = []

    def perform(self, disk: Disk) -> None:
        blocks = read_blocks(disk, [place for _, place in self.places])
        for (queue, place), (header, records) in zip(self.places, blocks, strict=True):
            type = SPILL if header.type == SPILL else MOVED
            plain = queue.mirror is None or type == SPILL
            entry = Entry(type, 0, queue) if plain else MirrorEntry(type, 0, queue)
            entry.set_head(header.epoch, header.number, header.time_ms)
            held = thin(records, place.wanted)
            entry.hold(header.first, header.next, held)
            entry.refer_to(place.segment, place.offset)
            entry.add_bytes(sum(map(len, held.contents)))
            self.entries.append(entry)
        for queue, item, offset, length in self.items:
            self.entries.append(self._copy(disk, queue, item, offset, length))

    def _copy(self, disk: Disk, queue: QueueLog, item: Unapplied, offset: int, length: int) -> MirrorEntry:
        """Return a copy of a block that has no effect yet."""
        header, records = read_whole(disk, self.path, self.segment, offset, length)
        entry = MirrorEntry(MIRRORED, COPY, queue, item)
        entry.set_head(header.epoch, header.number, header.time_ms, header.delivered_through)
        entry.set_changes(header.settled(), header.requeued(), header.counts(), header.marks())
        entry.hold(header.first, header.next, records)
        entry.refer_to(self.segment, offset)
        entry.add_bytes(length)
        return entry
