"""A disk in memory that does everything a real one may do.

What was not synced survives a crash or does not, sector by sector, in any mixture; so does a file's size. Creations,
renames and deletions that were not synced with their folder survive up to some point of their order (file systems
journal them) or not at all. Syncing a file does not make its name durable. A failed sync drops the pages it should have
written: they can still be read, and never reach the disk, whatever is synced later.

`crash_after` makes the disk raise `Crashed` at the n-th change from now: before it, in the middle, or after it took
effect. Then `crash()` decides what survives.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Sequence

_SECTOR_BYTES = 512


class Crashed(BaseException):
    """The node died here. Not an Exception: nobody may handle it but the test."""


class _File:
    __slots__ = ("data", "stable", "dirty", "resized")

    def __init__(self) -> None:
        self.data = bytearray()
        self.stable = bytearray()
        self.dirty: set[int] = set()  # Sectors.
        self.resized = False


class FaultyDisk:
    def __init__(self, rng: random.Random, capacity_bytes: int = 1 << 40, sector_bytes: int = _SECTOR_BYTES) -> None:
        self.rng = rng
        self.capacity_bytes = capacity_bytes
        self.sector_bytes = sector_bytes
        self.crash_after: int | None = None
        self.fail_sync_after: int | None = None
        self.changes = 0
        self._files: dict[str, _File] = {}
        self._stable_files: dict[str, _File] = {}
        self._pending: list[tuple[str, str, str]] = []  # (what, path, other path) in their order.
        self._pending_files: dict[int, _File] = {}
        self._folders: set[str] = {""}

    # -- the Disk protocol -------------------------------------------------------

    def names(self, folder: str) -> list[str]:
        prefix = f"{folder}/" if folder else ""
        inside = [path[len(prefix) :] for path in (*self._files, *self._folders) if path.startswith(prefix)]
        return sorted({path.split("/")[0] for path in inside} - {""})

    def size(self, path: str) -> int:
        return len(self._file(path).data)

    def read(self, path: str, offset: int, size: int) -> bytes:
        return bytes(self._file(path).data[offset : offset + size])

    def write(self, path: str, offset: int, buffers: Sequence[bytes]) -> None:
        data = b"".join(buffers)
        cut = self._step()
        if path not in self._files:
            if self._folder(path) not in self._folders:
                raise OSError(errno.ENOENT, "no such folder", path)
            file = self._files[path] = _File()
            self._note("create", path, "", file)
        file = self._files[path]
        room = self.free_bytes() + max(len(file.data) - offset, 0)
        taken = data[: self.rng.randrange(len(data) + 1)] if cut == "during" else data[: max(room, 0)]
        self._put(file, offset, taken)
        self._crash_if(cut)
        if len(taken) < len(data):
            raise OSError(errno.ENOSPC, "no space left", path)

    def sync(self, path: str) -> None:
        file = self._file(path)
        cut = self._step()
        if self.fail_sync_after is not None:
            self.fail_sync_after -= 1
            if self.fail_sync_after < 0:
                self.fail_sync_after = None
                file.dirty.clear()
                file.resized = False
                raise OSError(errno.EIO, "input/output error", path)
        if cut == "during":
            self._survive(file, clear=False)
        else:
            self._make_stable(file)
        self._crash_if(cut)

    def truncate(self, path: str, size: int) -> None:
        file = self._file(path)
        cut = self._step()
        if size < len(file.data):
            del file.data[size:]
        else:
            file.data.extend(bytes(size - len(file.data)))
        file.resized = True
        self._crash_if(cut)

    def rename(self, old: str, new: str) -> None:
        file = self._file(old)
        cut = self._step()
        if cut != "during":
            del self._files[old]
            self._files[new] = file
            self._note("rename", old, new, file)
        self._crash_if(cut)

    def delete(self, path: str) -> None:
        file = self._file(path)
        cut = self._step()
        if cut != "during":
            del self._files[path]
            self._note("delete", path, "", file)
        self._crash_if(cut)

    def make_folder(self, path: str) -> None:
        parts = path.split("/")
        for end in range(1, len(parts) + 1):
            self._folders.add("/".join(parts[:end]))

    def sync_folder(self, path: str) -> None:
        cut = self._step()
        self._apply_names(path, self.rng.randrange(len(self._pending) + 1) if cut == "during" else None)
        self._crash_if(cut)

    def free_bytes(self) -> int:
        return self.capacity_bytes - sum(len(file.data) for file in self._files.values())

    # -- faults ------------------------------------------------------------------

    def crash(self) -> None:
        """The node is dead; decides what it finds at its next start."""
        self.crash_after = None
        self.fail_sync_after = None
        for folder in sorted(self._folders):
            count = sum(1 for _, path, _ in self._pending if self._folder(path) == folder)
            self._apply_names(folder, self.rng.randrange(count + 1))
        self._pending.clear()
        self._pending_files.clear()
        self._files = dict(self._stable_files)
        for file in {id(file): file for file in self._files.values()}.values():
            self._survive(file, clear=True)
            file.data = bytearray(file.stable)

    def flip(self, path: str, offset: int, bit: int) -> None:
        """Flips a bit on the medium."""
        file = self._file(path)
        file.data[offset] ^= 1 << bit
        if offset < len(file.stable):
            file.stable[offset] ^= 1 << bit

    # -- inside ------------------------------------------------------------------

    @staticmethod
    def _folder(path: str) -> str:
        return path.rpartition("/")[0]

    def _file(self, path: str) -> _File:
        if path not in self._files:
            raise OSError(errno.ENOENT, "no such file", path)
        return self._files[path]

    def _step(self) -> str | None:
        """Counts a change. Returns whether the node dies in the middle of it or after it; raises here if before it."""
        self.changes += 1
        if self.crash_after is None:
            return None
        self.crash_after -= 1
        if self.crash_after >= 0:
            return None
        when = self.rng.choice(["before", "during", "after"])
        if when == "before":
            raise Crashed
        return when

    @staticmethod
    def _crash_if(cut: str | None) -> None:
        if cut is not None:
            raise Crashed

    def _put(self, file: _File, offset: int, data: bytes) -> None:
        end = offset + len(data)
        if end > len(file.data):
            file.data.extend(bytes(end - len(file.data)))
            file.resized = True
        file.data[offset:end] = data
        if data:
            file.dirty.update(range(offset // self.sector_bytes, (end - 1) // self.sector_bytes + 1))

    def _make_stable(self, file: _File) -> None:
        for sector in file.dirty:
            self._stabilize(file, sector)
        if file.resized:
            self._resize_stable(file, len(file.data))
        file.dirty.clear()
        file.resized = False

    def _stabilize(self, file: _File, sector: int) -> None:
        start = sector * self.sector_bytes
        piece = file.data[start : start + self.sector_bytes]
        if len(file.stable) < start + len(piece):
            self._resize_stable(file, start + len(piece))
        file.stable[start : start + len(piece)] = piece

    @staticmethod
    def _resize_stable(file: _File, size: int) -> None:
        if size < len(file.stable):
            del file.stable[size:]
        else:
            file.stable.extend(bytes(size - len(file.stable)))

    def _survive(self, file: _File, clear: bool) -> None:
        """Writes some of what was not synced."""
        mood = self.rng.random()
        for sector in sorted(file.dirty):
            if self.rng.random() < mood:
                self._stabilize(file, sector)
                if not clear:
                    file.dirty.discard(sector)
        if file.resized and self.rng.random() < 0.5:
            self._resize_stable(file, len(file.data))
        if clear:
            file.dirty.clear()
            file.resized = False

    def _note(self, what: str, path: str, other: str, file: _File) -> None:
        self._pending.append((what, path, other))
        self._pending_files[len(self._pending) - 1] = file

    def _apply_names(self, folder: str, limit: int | None) -> None:
        """Makes the first `limit` changes of names in a folder durable, or all."""
        kept: list[tuple[tuple[str, str, str], _File]] = []
        done = 0
        for index, change in enumerate(self._pending):
            what, path, other = change
            file = self._pending_files[index]
            if self._folder(path) != folder or (limit is not None and done >= limit):
                kept.append((change, file))
                continue
            done += 1
            if what == "create":
                self._stable_files[path] = file
            elif what == "rename":
                self._stable_files.pop(path, None)
                self._stable_files[other] = file
            else:
                self._stable_files.pop(path, None)
        self._pending = [change for change, _ in kept]
        self._pending_files = dict(enumerate(file for _, file in kept))
