"""The metadata commands of a node on disk, in order.

Two kinds of files lie in the journal's folder, and the number in a name is the index of a command (the first is 1):

    snapshot-00000000000000000420    all that commands 1 to 420 made
    commands-00000000000000000421    the commands from 421 on

**Writing.** Commands gather while a write is under way; `take` puts all that have gathered into one *batch*: one write,
one sync. A batch is a head (marker, length, index of its first command, count, checksum) and the commands' lines. When
its job is done, `on_done` says up to which index commands are durable; nobody may be told of a command before that.

**Reading.** A batch is whole or it is not there: its checksum covers all of it. The last batch of the last file may be
torn, because the power went while it was written; it was never acknowledged and is cut off. But one batch is written
only after the sync of the one before, so a whole batch *after* a broken one proves that the broken one had been synced:
that is damage, and so is a gap in the indexes. To drop it would silently undo what somebody was told is done, so the
node refuses to start and says where. (A damaged last batch cannot be told from a torn one. That is the price of a
journal that is not written twice.) The marker's bytes are all above 127 and the lines below, so that no text in
a command can pass for a batch.

**The last batch is written and synced again** before anyone acts on it: after a crash of the process alone it may be
readable without being on the disk, and a power failure later would take back what had been shown to clients. A sync
alone would prove nothing if the one before the crash failed: the kernel then holds the pages for clean.

**Snapshots.** When the commands have outgrown the last snapshot, `snapshot_due` asks the owner for another one. It is
written under another name, synced, renamed, and the folder synced, before any file it replaces is deleted; so at every
moment there is a snapshot and an unbroken row of commands after it. At the same time a new file of commands is begun,
since only whole files can be deleted. Files that a crash kept from being deleted are found and deleted by `recover`.

**When the disk fails.** No space to write: the file is cut back to its last batch, the commands wait, and the owner may
try again. Any other error in writing, and any in syncing, stops the journal for good: after a failed sync the kernel
may have thrown the data away and call the next sync a success, so what the disk holds is known only after a restart.
"""

from __future__ import annotations

import errno
import struct
import zlib
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from leveret.cluster.codec import COMMAND_BYTES_MAX, BadEncoding, decode_command, encode_command
from leveret.cluster.commands import Command
from leveret.log.disk import Disk

BATCH_BYTES_MAX: Final = 2 * COMMAND_BYTES_MAX  # So that reading back never needs more memory than this at once.
PENDING_BYTES_MAX: Final = 16 * COMMAND_BYTES_MAX
SNAPSHOT_AFTER_BYTES: Final = 4 * 1024 * 1024  # Read in well under a second; less would mean to write snapshots often.

_BATCH_MARKER: Final = b"\xc3\xf5\xb6\xd9"
_SNAPSHOT_MARKER: Final = b"\xc3\xf5\xb7\xda"
_HEAD: Final = struct.Struct(">4sIQI")  # Marker, length of the lines, index of the first command, count.
_SNAPSHOT_HEAD: Final = struct.Struct(">4sQQ")  # Marker, length, index.
_CRC: Final = struct.Struct(">I")
_HEAD_BYTES: Final = _HEAD.size + _CRC.size
_SNAPSHOT_HEAD_BYTES: Final = _SNAPSHOT_HEAD.size + _CRC.size
_NO_SPACE: Final = (errno.ENOSPC, errno.EDQUOT)


class JournalDamaged(Exception):
    """What had been synced is wrong or missing; the text says where."""


class JournalStopped(Exception):
    """The disk failed; nothing more is written before a restart."""


class JournalFull(Exception):
    """More commands wait for the disk than memory should hold."""


class Recovered(NamedTuple):
    """What to start from: a snapshot, and the commands after it."""

    snapshot: bytes | None
    commands: list[Command]


class WriteBatch:
    """A job: write commands behind what is there, and sync."""

    __slots__ = ("count", "data", "lines", "offset", "path", "undone")

    def __init__(self, path: str, offset: int, first: int, lines: list[bytes]) -> None:
        self.path = path
        self.offset = offset
        self.lines = lines
        self.count = len(lines)
        self.data = pack_batch(first, lines)
        self.undone = False  # Failed for want of space, and the disk is as it was before.

    def perform(self, disk: Disk) -> None:
        """Write and sync; without space for it, leave the file as it was."""
        folder, _, name = self.path.rpartition("/")
        try:
            disk.write(self.path, self.offset, self.data)
        except OSError as error:
            if error.errno in _NO_SPACE:
                if name in disk.names(folder):
                    disk.truncate(self.path, self.offset)
                self.undone = True
            raise
        disk.sync(self.path)
        if self.offset == 0:
            disk.sync_folder(folder)  # Or the file's name could be lost, and its synced content with it.


class WriteSnapshot:
    """A job: write a snapshot, put it in force, delete what it replaces."""

    __slots__ = ("data", "folder", "index", "replaced", "undone")

    def __init__(self, folder: str, index: int, data: bytes, replaced: Sequence[str]) -> None:
        self.folder = folder
        self.index = index
        self.data = data
        self.replaced = replaced
        self.undone = False  # Failed for want of space, and the disk is as it was before.

    def perform(self, disk: Disk) -> None:
        """Write under another name first: under its own name a snapshot is always whole."""
        temporary = f"{self.folder}/snapshot.temporary"
        head = _SNAPSHOT_HEAD.pack(_SNAPSHOT_MARKER, len(self.data), self.index)
        crc = _CRC.pack(zlib.crc32(self.data, zlib.crc32(head)))
        try:
            disk.write(temporary, 0, [head, crc, self.data])
        except OSError as error:
            if error.errno in _NO_SPACE:
                if "snapshot.temporary" in disk.names(self.folder):
                    disk.delete(temporary)
                self.undone = True
            raise
        disk.sync(temporary)
        disk.rename(temporary, f"{self.folder}/{_snapshot_name(self.index)}")
        disk.sync_folder(self.folder)
        for name in self.replaced:
            disk.delete(f"{self.folder}/{name}")


class _File:
    """A file of commands: the index of its first one, and how far it is written."""

    __slots__ = ("bytes", "first")

    def __init__(self, first: int, length: int) -> None:
        self.first = first
        self.bytes = length


class Journal:
    """Keeps commands. `recover` first; then `append`, and `take` whenever no job is in flight."""

    def __init__(self, disk: Disk, folder: str, snapshot_after_bytes: int = SNAPSHOT_AFTER_BYTES) -> None:
        self._disk = disk
        self._folder = folder
        self._snapshot_after_bytes = snapshot_after_bytes
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0
        self._last = 0  # Index of the last command appended.
        self._written = 0  # Index of the last command in a batch that is written, or being written.
        self._durable = 0
        self._files: list[_File] = []  # Oldest first; the last one is written to.
        self._snapshot_index = 0
        self._snapshot_bytes = 0
        self._snapshot: tuple[int, bytes] | None = None  # Waits to be written.
        self._snapshot_retry_bytes = 0
        self._job: WriteBatch | WriteSnapshot | None = None
        self._stopped: OSError | None = None

    # Writing

    @property
    def last_index(self) -> int:
        """Of the last command appended."""
        return self._last

    @property
    def durable_index(self) -> int:
        """Up to which commands outlive a crash."""
        return self._durable

    @property
    def pending_bytes(self) -> int:
        """Of commands that are not durable yet and not on their way."""
        return self._gathered_bytes

    def append(self, command: Command) -> int:
        """Gather a command. Gives its index; it is durable when `on_done` gives that index or a later one."""
        if self._stopped is not None:
            raise JournalStopped(f"the journal was stopped by: {self._stopped}")
        line = encode_command(command)
        if self._gathered_bytes + len(line) > PENDING_BYTES_MAX:
            raise JournalFull(f"{self._gathered_bytes} bytes of commands wait for the disk")
        self._gathered.append(line)
        self._gathered_bytes += len(line)
        self._last += 1
        return self._last

    @property
    def snapshot_due(self) -> bool:
        """Whether the commands on disk have outgrown the last snapshot, and a new one should be given."""
        if self._stopped is not None or self._snapshot is not None or isinstance(self._job, WriteSnapshot):
            return False
        grown = sum(file.bytes for file in self._files)
        # A snapshot costs its size, so one as large as the last must have paid for the next.
        return grown > max(self._snapshot_after_bytes, self._snapshot_bytes, self._snapshot_retry_bytes)

    def put_snapshot(self, index: int, data: bytes) -> None:
        """Give a snapshot of all commands up to `index`, to be written by the next job."""
        assert self._snapshot_index <= index <= self._last
        self._snapshot = (index, data)

    def take(self) -> WriteBatch | WriteSnapshot | None:
        """The next job; None if there is nothing to do, or one is in flight."""
        if self._job is not None or self._stopped is not None:
            return None
        if self._snapshot is not None:
            self._job = self._snapshot_job(*self._snapshot)
            self._snapshot = None
        elif self._gathered:
            self._job = self._batch_job()
        return self._job

    def _batch_job(self) -> WriteBatch:
        count, length = 0, 0
        for line in self._gathered:
            if count and length + len(line) + 1 > BATCH_BYTES_MAX:
                break
            count, length = count + 1, length + len(line) + 1
        lines, self._gathered = self._gathered[:count], self._gathered[count:]
        self._gathered_bytes -= length - count
        if not self._files:
            self._files.append(_File(self._written + 1, 0))
        file = self._files[-1]
        job = WriteBatch(f"{self._folder}/{_commands_name(file.first)}", file.bytes, self._written + 1, lines)
        self._written += count
        return job

    def _snapshot_job(self, index: int, data: bytes) -> WriteSnapshot:
        # The next batch begins a new file. An empty one stays the last: its name would be the same.
        if self._files and self._files[-1].bytes:
            self._files.append(_File(self._written + 1, 0))
        covered = [file for file, after in zip(self._files, self._files[1:], strict=False) if after.first <= index + 1]
        replaced = [_commands_name(file.first) for file in covered]
        if self._snapshot_index and self._snapshot_index != index:
            replaced.append(_snapshot_name(self._snapshot_index))
        return WriteSnapshot(self._folder, index, data, replaced)

    def on_done(self, job: WriteBatch | WriteSnapshot) -> int:
        """A job has been performed. Gives the index up to which commands are durable now."""
        assert job is self._job
        self._job = None
        if isinstance(job, WriteBatch):
            self._files[-1].bytes += sum(map(len, job.data))
            self._durable = max(self._durable, self._written)
        else:
            self._snapshot_index, self._snapshot_bytes = job.index, len(job.data)
            self._snapshot_retry_bytes = 0
            gone = set(job.replaced)
            self._files = [file for file in self._files if _commands_name(file.first) not in gone]
            self._durable = max(self._durable, job.index)
        return self._durable

    def on_failed(self, job: WriteBatch | WriteSnapshot, error: OSError) -> Literal["retry", "stopped"]:
        """A job has failed. "retry": nothing is lost, take again later; "stopped": nothing will be written any more."""
        assert job is self._job
        self._job = None
        if not job.undone:
            self._stopped = error
            return "stopped"
        if isinstance(job, WriteBatch):
            self._gathered[:0] = job.lines
            self._gathered_bytes += sum(map(len, job.lines))
            self._written -= job.count
        else:
            # Without this the owner would make a snapshot in every turn of a full disk.
            self._snapshot_retry_bytes = sum(file.bytes for file in self._files) + self._snapshot_after_bytes // 4
        return "retry"

    # Starting

    def recover(self) -> Recovered:
        """Read what is there, and make it durable. Raises `JournalDamaged`."""
        assert not self._last and not self._files
        disk, folder = self._disk, self._folder
        disk.make_folder(folder)
        disk.sync_folder(folder.rpartition("/")[0])
        # The rename of the newest snapshot may not be durable yet; it must be before anything older is deleted.
        disk.sync_folder(folder)
        snapshots, starts = self._scan_names()
        snapshot = self._read_snapshot(snapshots[-1]) if snapshots else None
        index = snapshots[-1] if snapshots else 0
        needed = _needed(starts, index)
        if needed and needed[0] > index + 1:
            missing = f"commands {index + 1} to {needed[0] - 1}"
            raise JournalDamaged(f"{folder}: {missing} are missing; the first file begins with {needed[0]}")
        lines = self._read_files(needed, index)
        self._delete_old([_snapshot_name(old) for old in snapshots[:-1]])
        self._delete_old([_commands_name(first) for first in starts if first not in needed])
        self._snapshot_index, self._snapshot_bytes = index, len(snapshot or b"")
        self._last = self._written = self._durable = index + len(lines)
        return Recovered(snapshot, [self._decode(line, index + 1 + at) for at, line in enumerate(lines)])

    def _scan_names(self) -> tuple[list[int], list[int]]:
        snapshots: list[int] = []
        starts: list[int] = []
        for name in self._disk.names(self._folder):
            kind, _, number = name.partition("-")
            if name == "snapshot.temporary":
                self._disk.delete(f"{self._folder}/{name}")
            elif kind == "snapshot" and name == _snapshot_name(_number(number)):
                snapshots.append(_number(number))
            elif kind == "commands" and name == _commands_name(_number(number)):
                starts.append(_number(number))
            elif kind in ("snapshot", "commands"):
                raise JournalDamaged(f"{self._folder}/{name}: not a name this program gives to a file")
        return sorted(snapshots), sorted(starts)

    def _read_snapshot(self, index: int) -> bytes:
        path = f"{self._folder}/{_snapshot_name(index)}"
        stored = self._disk.read(path, 0, self._disk.size(path))
        head, data = stored[: _SNAPSHOT_HEAD.size], stored[_SNAPSHOT_HEAD_BYTES:]
        whole = (
            len(stored) >= _SNAPSHOT_HEAD_BYTES
            and _SNAPSHOT_HEAD.unpack(head) == (_SNAPSHOT_MARKER, len(data), index)
            and _CRC.unpack_from(stored, _SNAPSHOT_HEAD.size)[0] == zlib.crc32(data, zlib.crc32(head))
        )
        if not whole:
            raise JournalDamaged(f"{path}: the snapshot of {len(stored)} bytes does not match its checksum")
        return data

    def _read_files(self, starts: list[int], index: int) -> list[bytes]:
        """The lines after the command `index`; cuts the torn tail off the last file, makes its last batch durable."""
        lines: list[bytes] = []
        expected = starts[0] if starts else 1
        for first in starts:
            path = f"{self._folder}/{_commands_name(first)}"
            if first != expected:
                raise JournalDamaged(f"{path}: commands {expected} to {first - 1} before it are missing")
            stored = self._disk.read(path, 0, self._disk.size(path))
            last = end = 0
            while (batch := unpack_batch(stored, end, expected)) is not None:
                last, (found, end) = end, batch
                lines += found[max(0, index + 1 - expected) :]
                expected += len(found)
            self._refuse_damage(path, stored, end)
            self._files.append(_File(first, end))
        if starts:
            if end < len(stored):
                self._disk.truncate(path, end)
            self._disk.write(path, last, [stored[last:end]])
            self._disk.sync(path)
            if expected <= index:  # All of it is older than the snapshot: the file after it was deleted first.
                self._files = []
                self._delete_old([_commands_name(first) for first in starts])
        return lines

    def _refuse_damage(self, path: str, stored: bytes, end: int) -> None:
        """Nothing whole may follow the place where reading stopped."""
        at = stored.find(_BATCH_MARKER, end + 1)
        while at >= 0:
            batch = unpack_batch(stored, at, None)
            if batch is not None:
                raise JournalDamaged(f"{path}: the batch at byte {end} is damaged; a whole one follows at byte {at}")
            at = stored.find(_BATCH_MARKER, at + 1)

    def _decode(self, line: bytes, index: int) -> Command:
        try:
            return decode_command(line)
        except BadEncoding as error:
            raise JournalDamaged(f"{self._folder}: command {index} cannot be read: {error}") from error

    def _delete_old(self, names: list[str]) -> None:
        for name in names:
            self._disk.delete(f"{self._folder}/{name}")


# Format


def pack_batch(first: int, lines: Sequence[bytes]) -> list[bytes]:
    """A batch as buffers to write."""
    body = b"\n".join(lines) + b"\n"
    head = _HEAD.pack(_BATCH_MARKER, len(body), first, len(lines))
    return [head, _CRC.pack(zlib.crc32(body, zlib.crc32(head))), body]


def unpack_batch(stored: bytes, at: int, first: int | None) -> tuple[list[bytes], int] | None:
    """The lines of the batch at an offset and the offset after it; None if there is no whole one (of that index)."""
    start = at + _HEAD_BYTES
    if start > len(stored):
        return None
    marker, length, index, count = _HEAD.unpack_from(stored, at)
    end = start + length
    if marker != _BATCH_MARKER or end > len(stored) or (first is not None and index != first):
        return None
    body = stored[start:end]
    crc = zlib.crc32(body, zlib.crc32(stored[at : at + _HEAD.size]))
    if crc != _CRC.unpack_from(stored, at + _HEAD.size)[0]:
        return None
    lines = body.split(b"\n")[:-1]
    return (lines, end) if len(lines) == count else None


def _needed(starts: list[int], index: int) -> list[int]:
    """The files with commands after the snapshot: from the last one on that begins at or before the next command."""
    older = [first for first in starts if first <= index + 1]
    return (older[-1:] if older else []) + [first for first in starts if first > index + 1]


def _snapshot_name(index: int) -> str:
    return f"snapshot-{index:020}"


def _commands_name(first: int) -> str:
    return f"commands-{first:020}"


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0
