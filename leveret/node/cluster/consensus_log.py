"""Stores on disk what Raft must not forget: its log, term and vote, and snapshots of the state machine.

Three kinds of files lie in the folder:

    identity                         the id of this incarnation of the node, written once
    snapshot-00000000000000000420    the state machine after entry 420, and the membership then
    log-00000000000000000017         batches from number 17 on

**Writing.** All that one Ready wants stored is one *batch*: one write, one sync. A batch has a head (marker, length,
number, checksum) and carries term and vote, the commit index as known then, and entries. Files are only ever appended
to. Entries that a new leader's replace are not cut off: the batch with the new ones comes later, and reading back it
counts. So there is no moment at which a crash could find the old gone and the new not there, and nothing to undo when
a conflict arrives while a write is under way. Every batch has term and vote, so the last one alone says how this node
voted, and any older file may go once a snapshot covers its entries.

**Reading.** A batch is whole or it is not there. The last one may be torn, because the power went while it was written;
nothing was said on the strength of it, and it is cut off. But a batch is written only after the sync of the one before,
so a whole batch *after* a broken one proves that the broken one had been synced: that is damage, and so is a gap in
the numbers. To go on without it could mean to vote twice or to forget an entry that was counted, and others would pay
for it; so the node refuses to start and says where. (A damaged last batch cannot be told from a torn one.) The checksum
covers the batch's place too: a command's bytes that look like a batch do not pass for one.

**The last batch is written and synced again** before anyone acts on it: after a crash of the process alone it may be
readable without being on the disk. Syncing would not be enough: if a sync of it failed before, the kernel counts it as
written. Those before it are on the disk, because each was synced before the next was begun.

**Snapshots** are written under another name, synced, renamed, and the folder synced. One of this node's own is written
beside the batches, by a job of its own: it may be large, and heartbeats wait for batches. One from the leader is part
of a batch, because what follows it makes no sense without it; the batch says *reset*: the entries before it are void,
even those beyond the snapshot, for they are another history. If the power goes between the two, the snapshot is there
and the reset is not: then the log's entry at the snapshot's index has another term or is missing, which says the same,
and the next batch carries the reset.

**When the disk fails.** No space: the file is cut back, and the owner may try again. Any other error in writing, and
any in syncing, stops the log for good: after a failed sync the kernel may have thrown the data away and call the next
sync a success, so what the disk holds is known only after a restart.
"""

from __future__ import annotations

import errno
import struct
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final, Literal, NamedTuple

from leveret.base.packing import BadMessage, Reader, pack_text
from leveret.raft.membership import Member, encode_membership, is_id, read_membership
from leveret.raft.messages import NO_SNAPSHOT, NO_STATE, Entry, HardState, Kind, Snapshot, SnapshotChunk, SnapshotMeta
from leveret.raft.start import bootstrap, force_alone
from leveret.storage.segments.disk import Disk

SEGMENT_BYTES: Final = 8 * 1024 * 1024
SNAPSHOT_SHARE: Final = 8  # The log may grow by so much less than a snapshot before the next one is written.
SNAPSHOT_AFTER_BYTES: Final = 4 * 1024 * 1024  # Read in well under a second; less would mean to write snapshots often.

_BATCH_MARKER: Final = b"\xc3\xf5\xb8\xdb"
_SNAPSHOT_MARKER: Final = b"\xc3\xf5\xb9\xdc"
_HEAD: Final = struct.Struct(">4sIQ")  # Marker, length of the body, number.
_PLACE: Final = struct.Struct(">QQ")  # Number of the file, offset in it: part of the checksum, not written.
_STATE: Final = struct.Struct(">QQB")  # Term, commit, whether a reset follows.
_RESET: Final = struct.Struct(">QQ")
_FIRST: Final = struct.Struct(">QI")  # Index of the first entry, count.
_ENTRY: Final = struct.Struct(">QBI")
_SNAPSHOT_HEAD: Final = struct.Struct(">4sQQIQI")  # Marker, index, term, bytes of membership and data, checksum.
_CRC: Final = struct.Struct(">I")
_HEAD_BYTES: Final = _HEAD.size + _CRC.size
_NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)
_KINDS: Final = {int(kind): kind for kind in Kind}


class ConsensusLogDamaged(Exception):
    """Data that had been synced is wrong or missing; the text says where."""


class ConsensusLogStopped(Exception):
    """The disk failed; nothing more is written before a restart."""


class Recovered(NamedTuple):
    """The state found on disk at a start: arguments for `Raft`, and the state machine's data."""

    hard_state: HardState
    snapshot: Snapshot | None
    entries: list[Entry]
    commit: int

    @property
    def meta(self) -> SnapshotMeta:
        return self.snapshot.meta if self.snapshot is not None else NO_SNAPSHOT

    @property
    def last_index(self) -> int:
        return self.entries[-1].index if self.entries else self.meta.index


class Batch(NamedTuple):
    """The data of one Ready that must be stored."""

    hard_state: HardState
    commit: int
    reset: tuple[int, int] | None  # Index and term of a snapshot after which the log begins anew.
    entries: Sequence[Entry]


class _Stored(NamedTuple):
    """A snapshot on disk."""

    meta: SnapshotMeta
    data_offset: int
    data_bytes: int
    checksum: int


class _Segment:
    """A file of batches: the number of its first one, how far it is written, the highest index in it that counts."""

    __slots__ = ("bytes", "first", "index_max")

    def __init__(self, first: int, length: int = 0) -> None:
        self.first = first
        self.bytes = length
        self.index_max = 0


# Jobs


class WriteBatch:
    """A job: write a batch behind what is there, and sync; before it, the snapshot that it builds on."""

    __slots__ = ("batch", "buffers", "folder", "offset", "path", "snapshot", "undone")

    def __init__(self, folder: str, segment: _Segment, number: int, batch: Batch, snapshot: Snapshot | None) -> None:
        self.folder = folder
        self.path = f"{folder}/{_log_name(segment.first)}"
        self.offset = segment.bytes
        self.batch = batch
        self.snapshot = snapshot
        self.buffers = pack_batch(segment.first, segment.bytes, number, batch)
        self.undone = False  # Failed for want of space, and the disk is as it was before.

    def perform(self, disk: Disk) -> None:
        """Write and sync; without space for it, leave the file as it was."""
        try:
            if self.snapshot is not None:
                _write_snapshot(disk, self.folder, self.snapshot)
            disk.write(self.path, self.offset, self.buffers)
        except OSError as error:
            if error.errno in _NO_SPACE:
                if self.path.rpartition("/")[2] in disk.names(self.folder):
                    disk.truncate(self.path, self.offset)
                self.undone = True
            raise
        disk.sync(self.path)
        if self.offset == 0:
            disk.sync_folder(self.folder)  # Or the file's name could be lost, and its synced content with it.


class WriteSnapshot:
    """A job: write a snapshot of this node's own."""

    __slots__ = ("folder", "snapshot", "undone")

    def __init__(self, folder: str, snapshot: Snapshot) -> None:
        self.folder = folder
        self.snapshot = snapshot
        self.undone = False

    def perform(self, disk: Disk) -> None:
        try:
            _write_snapshot(disk, self.folder, self.snapshot)
        except OSError as error:
            self.undone = error.errno in _NO_SPACE
            raise


class Cleanup:
    """A job: delete what a snapshot has replaced, the oldest first, so that a crash leaves no gap."""

    __slots__ = ("folder", "names")

    def __init__(self, folder: str, names: Sequence[str]) -> None:
        self.folder = folder
        self.names = names

    def perform(self, disk: Disk) -> None:
        for name in self.names:
            disk.delete(f"{self.folder}/{name}")


class FillChunk:
    """A job: read the piece of a snapshot that a chunk wants."""

    __slots__ = ("_chunk", "_data", "_path", "_size", "_stored")

    def __init__(self, folder: str, stored: _Stored, chunk: SnapshotChunk, size: int) -> None:
        self._path = f"{folder}/{_snapshot_name(stored.meta.index)}"
        self._stored = stored
        self._chunk = chunk
        self._size = min(size, max(0, stored.data_bytes - chunk.offset))
        self._data = b""

    def perform(self, disk: Disk) -> None:
        self._data = disk.read(self._path, self._stored.data_offset + self._chunk.offset, self._size)

    @property
    def chunk(self) -> SnapshotChunk:
        """Ready to be sent, once performed."""
        stored = self._stored
        return replace(self._chunk, total=stored.data_bytes, checksum=stored.checksum, data=self._data)


def _write_snapshot(disk: Disk, folder: str, snapshot: Snapshot) -> None:
    """Writes a snapshot, under another name first: under its own name a snapshot is always whole."""
    meta, data = snapshot
    name = f"{_snapshot_name(meta.index)}.temporary"
    membership = encode_membership(meta.membership)
    checksum = zlib.crc32(data)
    head = _SNAPSHOT_HEAD.pack(_SNAPSHOT_MARKER, meta.index, meta.term, len(membership), len(data), checksum)
    try:
        disk.write(f"{folder}/{name}", 0, [head, _CRC.pack(zlib.crc32(membership, zlib.crc32(head))), membership, data])
    except OSError as error:
        if error.errno in _NO_SPACE and name in disk.names(folder):
            disk.delete(f"{folder}/{name}")
        raise
    disk.sync(f"{folder}/{name}")
    disk.rename(f"{folder}/{name}", f"{folder}/{_snapshot_name(meta.index)}")
    disk.sync_folder(folder)


# The log


class ConsensusLog:
    """Stores Raft's Readys. Call `recover` first; then for each Ready `save`, `take`, perform, `on_done`."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        segment_bytes: int = SEGMENT_BYTES,
        snapshot_after_bytes: int = SNAPSHOT_AFTER_BYTES,
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._snapshot_after_bytes = snapshot_after_bytes
        self._hard_state = NO_STATE
        self._number = 0  # The number of the last batch written, or being written.
        self._segments: list[_Segment] = []  # Oldest first; the last one is written to.
        self._roll = False  # The next batch begins another file.
        self._snapshots: dict[int, _Stored] = {}
        self._reset_due: tuple[int, int] | None = None
        self._gathered: tuple[Batch, Snapshot | None] | None = None
        self._job: WriteBatch | None = None
        self._snapshot_job: WriteSnapshot | None = None
        self._cleanup: Cleanup | None = None
        self._grown_bytes = 0  # Growth of the log since the last snapshot was begun.
        self._stopped: OSError | None = None

    # Batches

    def save(
        self, hard_state: HardState | None, entries: Sequence[Entry], commit: int, snapshot: Snapshot | None
    ) -> None:
        """Keep what a Ready with `must_sync` says, by the next job."""
        if self._stopped is not None:
            raise ConsensusLogStopped(f"the consensus log was stopped by: {self._stopped}")
        assert self._gathered is None and self._job is None  # One Ready at a time.
        if hard_state is not None:
            self._hard_state = hard_state
        reset = (snapshot.meta.index, snapshot.meta.term) if snapshot is not None else self._reset_due
        self._gathered = Batch(self._hard_state, commit, reset, entries), snapshot

    def take(self) -> WriteBatch | None:
        """The next job; None if there is nothing to do, or one is in flight."""
        if self._gathered is None or self._job is not None or self._stopped is not None:
            return None
        last = self._segments[-1] if self._segments else None
        if last is None or (last.bytes and (self._roll or last.bytes >= self._segment_bytes)):
            last = _Segment(self._number + 1)
            self._segments.append(last)
        self._roll = False
        self._job = WriteBatch(self._folder, last, self._number + 1, *self._gathered)
        return self._job

    def on_done(self, job: WriteBatch) -> None:
        """Called when what was saved is durable."""
        assert job is self._job
        self._job = self._gathered = self._reset_due = None
        self._number += 1
        if job.batch.reset is not None:
            for older in self._segments:
                older.index_max = 0
        if job.snapshot is not None:
            self._note_snapshot(job.snapshot)
            self._grown_bytes = 0
        segment = self._segments[-1]
        size = sum(map(len, job.buffers))
        segment.bytes += size
        self._grown_bytes += size
        if job.batch.entries:
            segment.index_max = max(segment.index_max, job.batch.entries[-1].index)

    def on_failed(self, job: WriteBatch, error: OSError) -> Literal["retry", "stopped"]:
        """A batch was not written. "retry": nothing is lost, take again later; "stopped": nothing will ever be."""
        assert job is self._job
        self._job = None
        return self._retry_or_stop(job.undone, error)

    def _retry_or_stop(self, undone: bool, error: OSError) -> Literal["retry", "stopped"]:
        if not undone:
            self._stopped = error
        return "stopped" if self._stopped is not None else "retry"

    # Snapshots

    @property
    def snapshot_index(self) -> int:
        """The index of the newest durable snapshot."""
        return max(self._snapshots, default=0)

    def snapshot_due(self, applied: int) -> bool:
        """Returns whether the log has outgrown the last snapshot, so that a new one is due (`put_snapshot`)."""
        if self._stopped is not None or self._snapshot_job is not None or applied <= self.snapshot_index:
            return False
        return self._grown_bytes > self._growth_wanted()

    def _growth_wanted(self) -> int:
        # A snapshot costs its size, and what the log has grown since must be applied again at a start, command by
        # command: a byte of that takes some ten times as long as a byte of a snapshot takes to be written.
        newest = self._snapshots.get(self.snapshot_index)
        return max(self._snapshot_after_bytes, newest.data_bytes // SNAPSHOT_SHARE if newest is not None else 0)

    def put_snapshot(self, snapshot: Snapshot) -> WriteSnapshot | None:
        """A job that writes a snapshot of this node's own; may be performed beside one that writes a batch. None if
        another is being written, or the leader has sent a newer one."""
        if self._stopped is not None or self._snapshot_job is not None or snapshot.meta.index <= self.snapshot_index:
            return None
        assert snapshot.data
        self._grown_bytes = 0
        self._snapshot_job = WriteSnapshot(self._folder, snapshot)
        return self._snapshot_job

    def on_snapshot_done(self, job: WriteSnapshot) -> None:
        """The snapshot is durable; Raft may compact."""
        assert job is self._snapshot_job
        self._snapshot_job = None
        self._note_snapshot(job.snapshot)
        self._roll = True

    def on_snapshot_failed(self, job: WriteSnapshot, error: OSError) -> Literal["retry", "stopped"]:
        assert job is self._snapshot_job
        self._snapshot_job = None
        # The next attempt comes soon, but not in every turn while the disk is full.
        self._grown_bytes = max(self._grown_bytes, self._growth_wanted() * 3 // 4)
        return self._retry_or_stop(job.undone, error)

    def _note_snapshot(self, snapshot: Snapshot) -> None:
        meta, data = snapshot
        offset = _SNAPSHOT_HEAD.size + _CRC.size + len(encode_membership(meta.membership))
        self._snapshots[meta.index] = _Stored(meta, offset, len(data), zlib.crc32(data))

    def cleanup(self, in_use: Collection[int] = ()) -> Cleanup | None:
        """A job that deletes what the newest snapshot replaced, but for snapshots in use; None if there is nothing.
        To be asked for after a batch or a snapshot is done, and reported with `on_cleaned`."""
        if self._stopped is not None or self._cleanup is not None:
            return None
        newest = self.snapshot_index
        names = []
        # A file may go only if a durable batch follows in another: the last one holds term and vote.
        for segment, after in zip(self._segments, self._segments[1:], strict=False):
            if segment.index_max > newest or not after.bytes:
                break
            names.append(_log_name(segment.first))
        names += [_snapshot_name(index) for index in sorted(self._snapshots) if index < newest and index not in in_use]
        if not names:
            return None
        gone = set(names)
        self._segments = [segment for segment in self._segments if _log_name(segment.first) not in gone]
        self._snapshots = {at: one for at, one in self._snapshots.items() if _snapshot_name(at) not in gone}
        self._cleanup = Cleanup(self._folder, names)
        return self._cleanup

    def on_cleaned(self, job: Cleanup, error: OSError | None = None) -> None:
        """Files that could not be deleted are in nobody's way; the next start finds them."""
        assert job is self._cleanup
        self._cleanup = None

    def fill(self, chunk: SnapshotChunk, size: int) -> FillChunk | None:
        """A job that reads what a chunk wants; None if there is no such snapshot any more, and nothing is to be sent.
        Raft asks again by itself."""
        stored = self._snapshots.get(chunk.meta.index)
        return FillChunk(self._folder, stored, chunk, size) if stored is not None else None

    # Starting

    def recover(self) -> Recovered:
        """Read what is there, and make it durable. Raises `ConsensusLogDamaged`."""
        assert not self._segments and not self._snapshots
        disk, folder = self._disk, self._folder
        disk.make_folder(folder)
        disk.sync_folder(folder.rpartition("/")[0])
        # The rename of the newest snapshot may not be durable yet; it must be before anything older is deleted.
        disk.sync_folder(folder)
        snapshots, starts = self._scan_names()
        snapshot = self._read_snapshot(snapshots[-1]) if snapshots else None
        batches = self._read_segments(starts)
        entries, commit, resets_to = self._replay(batches)
        meta = snapshot.meta if snapshot is not None else NO_SNAPSHOT
        if resets_to > meta.index:
            raise ConsensusLogDamaged(f"{folder}: the log begins after a snapshot at {resets_to}, which is missing")
        entries = self._joined(meta, entries)
        if commit > max(meta.index, entries[-1].index if entries else 0):
            raise ConsensusLogDamaged(f"{folder}: entry {commit} was committed, and the log ends before it")
        for old in snapshots[:-1]:
            disk.delete(f"{folder}/{_snapshot_name(old)}")
        self._grown_bytes = sum(segment.bytes for segment in self._segments)
        if batches:
            self._hard_state = batches[-1].hard_state
        if self._hard_state.term < meta.term:  # A joiner's first batch was torn, and its snapshot was not.
            self._hard_state = HardState(meta.term, None)
        return Recovered(self._hard_state, snapshot, entries, max(meta.index, commit))

    def found(self, member: Member) -> Recovered:
        """Begin a cluster of this node alone; call instead of `recover`, where nothing is yet."""
        recovered = self.recover()
        assert recovered.last_index == 0 and recovered.hard_state == NO_STATE
        hard_state, entry = bootstrap(member)
        self._save_now(hard_state, entry)
        return Recovered(hard_state, None, [entry], 0)

    def force_alone(self, member: Member) -> Recovered:
        """UNSAFE: make this node the only member, whoever else there was. See `raft.start.force_alone`. Call instead of
        `recover`."""
        recovered = self.recover()
        state, last = recovered.hard_state, recovered.last_index
        hard_state, entry = force_alone(member, state, last, recovered.entries)
        self._save_now(hard_state, entry)
        return Recovered(hard_state, recovered.snapshot, [*recovered.entries, entry], recovered.commit)

    def _save_now(self, hard_state: HardState, entry: Entry) -> None:
        self.save(hard_state, [entry], 0, None)
        job = self.take()
        assert job is not None
        job.perform(self._disk)
        self.on_done(job)

    def _scan_names(self) -> tuple[list[int], list[int]]:
        snapshots: list[int] = []
        starts: list[int] = []
        for name in self._disk.names(self._folder):
            kind, _, number = name.partition("-")
            if name.endswith(".temporary"):
                self._disk.delete(f"{self._folder}/{name}")
            elif kind == "snapshot" and name == _snapshot_name(_number(number)):
                snapshots.append(_number(number))
            elif kind == "log" and name == _log_name(_number(number)):
                starts.append(_number(number))
            elif kind in ("snapshot", "log"):
                raise ConsensusLogDamaged(f"{self._folder}/{name}: not a name this program gives to a file")
        return sorted(snapshots), sorted(starts)

    def _read_snapshot(self, index: int) -> Snapshot:
        path = f"{self._folder}/{_snapshot_name(index)}"
        stored = self._disk.read(path, 0, self._disk.size(path))
        try:
            snapshot = unpack_snapshot(stored)
        except BadMessage as error:
            raise ConsensusLogDamaged(f"{path}: {error}") from error
        if snapshot.meta.index != index:
            raise ConsensusLogDamaged(f"{path}: is the snapshot at index {snapshot.meta.index}")
        self._note_snapshot(snapshot)
        return snapshot

    def _read_segments(self, starts: list[int]) -> list[Batch]:
        """All batches; cuts the torn tail off the last file, and makes the last batch durable."""
        batches: list[Batch] = []
        expected = starts[0] if starts else 1
        for first in starts:
            path = f"{self._folder}/{_log_name(first)}"
            if first != expected:
                raise ConsensusLogDamaged(f"{path}: batches {expected} to {first - 1} before it are missing or damaged")
            stored = self._disk.read(path, 0, self._disk.size(path))
            segment, last = _Segment(first), 0
            while (found := unpack_batch(stored, first, segment.bytes, expected)) is not None:
                last = segment.bytes
                batch, segment.bytes = found
                batches.append(batch)
                if batch.reset is not None:
                    for older in [*self._segments, segment]:
                        older.index_max = 0
                if batch.entries:
                    segment.index_max = max(segment.index_max, batch.entries[-1].index)
                expected += 1
            self._refuse_damage(path, stored, segment, expected)
            self._segments.append(segment)
        if starts:
            if starts[0] > 1 and not batches:
                raise ConsensusLogDamaged(f"{self._folder}: the batches before {starts[0]} are missing")
            if segment.bytes < len(stored):
                self._disk.truncate(path, segment.bytes)
            self._disk.write(path, last, [stored[last : segment.bytes]])
            self._disk.sync(path)
        self._number = expected - 1
        return batches

    def _refuse_damage(self, path: str, stored: bytes, segment: _Segment, expected: int) -> None:
        """No whole batch may follow the place where reading stopped."""
        at = stored.find(_BATCH_MARKER, segment.bytes + 1)
        while at >= 0:
            if unpack_batch(stored, segment.first, at, None) is not None:
                where = f"batch {expected} at byte {segment.bytes}"
                raise ConsensusLogDamaged(f"{path}: {where} is damaged; a whole one follows at byte {at}")
            at = stored.find(_BATCH_MARKER, at + 1)

    def _replay(self, batches: list[Batch]) -> tuple[list[Entry], int, int]:
        """The entries that count in the end, the highest commit index written, the index of the last reset."""
        entries: list[Entry] = []
        commit = resets_to = 0
        for batch in batches:
            commit = max(commit, batch.commit)
            if batch.reset is not None:
                entries, resets_to = [], batch.reset[0]
            if not batch.entries:
                continue
            first = batch.entries[0].index
            position = first - entries[0].index if entries else 0
            expected = entries[-1].index + 1 if entries else resets_to + 1 if resets_to else first
            if first > expected:
                raise ConsensusLogDamaged(f"{self._folder}: entries {expected} to {first - 1} are missing")
            entries[max(0, position) :] = batch.entries
        return entries, commit, resets_to

    def _joined(self, meta: SnapshotMeta, entries: list[Entry]) -> list[Entry]:
        """The entries that follow the snapshot."""
        if not entries:
            return []
        first = entries[0].index
        if first > meta.index + 1:
            missing = f"entries {meta.index + 1} to {first - 1}"
            raise ConsensusLogDamaged(f"{self._folder}: {missing} are missing between the snapshot and the log")
        if first == meta.index + 1:
            return entries
        position = meta.index - first
        if position < len(entries) and entries[position].term == meta.term:
            return entries[position + 1 :]
        # The leader's snapshot arrived, and the batch with the reset did not.
        self._reset_due = (meta.index, meta.term)
        for segment in self._segments:
            segment.index_max = 0
        return []


# Identity


def has_log(names: Iterable[str]) -> bool:
    """Tells whether a node with these files has founded or joined a cluster."""
    return any(name.startswith(("log-", "snapshot-")) and not name.endswith(".temporary") for name in names)


def load_identity(disk: Disk, folder: str, new_id: str) -> str:
    """The id of this incarnation of the node: `new_id`, if it is its first start. Raises `ConsensusLogDamaged`."""
    assert is_id(new_id)
    disk.make_folder(folder)
    disk.sync_folder(folder.rpartition("/")[0])
    names = disk.names(folder)
    path = f"{folder}/identity"
    if "identity" in names:
        found = read_identity(disk, folder)
        disk.sync_folder(folder)
        return found
    if has_log(names):
        # With another id, this node could not be told from one that never voted.
        raise ConsensusLogDamaged(f"{path}: is missing, and the log beside it is not")
    disk.write(f"{path}.temporary", 0, [_pack_identity(new_id)])
    disk.truncate(f"{path}.temporary", len(_pack_identity(new_id)))
    disk.sync(f"{path}.temporary")
    disk.rename(f"{path}.temporary", path)
    disk.sync_folder(folder)
    return new_id


def read_identity(disk: Disk, folder: str) -> str:
    """Raises `ConsensusLogDamaged`."""
    stored = disk.read(f"{folder}/identity", 0, 256)
    found = stored.partition(b" ")[0].decode("ascii", "replace")
    if not is_id(found) or stored != _pack_identity(found):
        raise ConsensusLogDamaged(f"{folder}/identity: does not match its checksum")
    return found


def _pack_identity(own_id: str) -> bytes:
    return f"{own_id} {zlib.crc32(own_id.encode()):08x}\n".encode()


# Format


def pack_batch(segment: int, offset: int, number: int, batch: Batch) -> list[bytes]:
    """A batch as buffers to write at an offset of a file."""
    state = batch.hard_state
    parts = [_STATE.pack(state.term, batch.commit, batch.reset is not None), pack_text(state.vote or "")]
    if batch.reset is not None:
        parts.append(_RESET.pack(*batch.reset))
    parts.append(_FIRST.pack(batch.entries[0].index if batch.entries else 0, len(batch.entries)))
    for entry in batch.entries:
        parts.append(_ENTRY.pack(entry.term, entry.kind, len(entry.data)))
        parts.append(entry.data)
    body = b"".join(parts)
    head = _HEAD.pack(_BATCH_MARKER, len(body), number)
    return [head, _CRC.pack(_checksum(segment, offset, head, body)), body]


def unpack_batch(stored: bytes, segment: int, at: int, number: int | None) -> tuple[Batch, int] | None:
    """The batch at an offset of a file and the offset after it; None if there is no whole one (of that number)."""
    start = at + _HEAD_BYTES
    if start > len(stored):
        return None
    marker, length, found = _HEAD.unpack_from(stored, at)
    end = start + length
    if marker != _BATCH_MARKER or end > len(stored) or (number is not None and found != number):
        return None
    body = stored[start:end]
    if _checksum(segment, at, stored[at : at + _HEAD.size], body) != _CRC.unpack_from(stored, at + _HEAD.size)[0]:
        return None
    try:
        return _unpack_body(Reader(body)), end
    except BadMessage as error:
        raise ConsensusLogDamaged(f"batch {found} matches its checksum and cannot be read: {error}") from error


def batches_in(stored: bytes, segment: int) -> Iterator[Batch]:
    """All whole batches of a file, damaged ones between them left out."""
    at = 0
    while (at := stored.find(_BATCH_MARKER, at)) >= 0:
        found = unpack_batch(stored, segment, at, None)
        if found is None:
            at += 1
        else:
            batch, at = found
            yield batch


def _unpack_body(reader: Reader) -> Batch:
    term, commit, resets = reader.u64(), reader.u64(), reader.flag()
    vote = reader.text()
    reset = (reader.u64(), reader.u64()) if resets else None
    first, count = reader.u64(), reader.u32()
    entries = []
    data, at = reader.data, reader.at  # Not by the reader's methods: a start reads very many entries.
    for index in range(first, first + count):
        start = at + _ENTRY.size
        if start > len(data):
            raise BadMessage(f"ends at byte {len(data)}, before the head of entry {index}")
        entry_term, kind, size = _ENTRY.unpack_from(data, at)
        if kind not in _KINDS:
            raise BadMessage(f"entry {index} is of kind {kind}, which this version does not know")
        at = start + size
        if at > len(data):
            raise BadMessage(f"ends at byte {len(data)}, in the middle of entry {index}")
        entries.append(Entry(index, entry_term, _KINDS[kind], data[start:at]))
    reader.at = at
    reader.end()
    return Batch(HardState(term, vote or None), commit, reset, entries)


def unpack_snapshot(stored: bytes) -> Snapshot:
    """Raises `BadMessage`."""
    start = _SNAPSHOT_HEAD.size + _CRC.size
    if len(stored) < start:
        raise BadMessage(f"{len(stored)} bytes are no snapshot")
    head = stored[: _SNAPSHOT_HEAD.size]
    marker, index, term, membership_bytes, data_bytes, checksum = _SNAPSHOT_HEAD.unpack(head)
    membership, data = stored[start : start + membership_bytes], stored[start + membership_bytes :]
    if marker != _SNAPSHOT_MARKER or zlib.crc32(membership, zlib.crc32(head)) != _CRC.unpack_from(stored, len(head))[0]:
        raise BadMessage("the head of the snapshot does not match its checksum")
    if len(data) != data_bytes or zlib.crc32(data) != checksum:
        raise BadMessage(f"the {len(data)} bytes of the snapshot do not match their checksum")
    reader = Reader(membership)
    meta = SnapshotMeta(index, term, read_membership(reader))
    reader.end()
    return Snapshot(meta, data)


def _checksum(segment: int, offset: int, head: bytes, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(head, zlib.crc32(_PLACE.pack(segment, offset))))


def _snapshot_name(index: int) -> str:
    return f"snapshot-{index:020}"


def _log_name(first: int) -> str:
    return f"log-{first:020}"


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0
