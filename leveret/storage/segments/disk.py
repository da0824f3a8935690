"""The interface to files.

The log, the metadata log and all else that must survive a crash use a `Disk`, so that the simulation can use its own,
which loses what was not synced. `FileDisk` is the real one.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

_DESCRIPTORS_MAX = 64
_RESERVE = 8  # Descriptors kept for when there are no others: each thread that uses files needs one or two.
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
_BUFFERS_PER_CALL = min(os.sysconf("SC_IOV_MAX"), 1024) if hasattr(os, "sysconf") else 16


class Disk(Protocol):
    """A disk. Paths are relative to the node's data folder, separated by "/". Errors are OSError with errno set."""

    def names(self, folder: str) -> list[str]: ...

    def size(self, path: str) -> int: ...

    def read(self, path: str, offset: int, size: int) -> bytes: ...

    def write(self, path: str, offset: int, buffers: Sequence[bytes]) -> None: ...

    def sync(self, path: str) -> None: ...

    def truncate(self, path: str, size: int) -> None: ...

    def rename(self, old: str, new: str) -> None: ...

    def delete(self, path: str) -> None: ...

    def make_folder(self, path: str) -> None: ...

    def sync_folder(self, path: str) -> None: ...

    def free_bytes(self) -> int: ...


class Job(Protocol):
    """Work on the disk for a worker thread: uses only the disk and its own fields."""

    def perform(self, disk: Disk) -> None: ...


class _Handle:
    __slots__ = ("descriptor", "users", "dropped")

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.users = 0
        self.dropped = False


class FileDisk:
    """Files under `root`. Safe for several threads as long as they use different files or only read."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._lock = threading.Lock()
        self._handles: OrderedDict[str, _Handle] = OrderedDict()
        self._reserve: list[int] = []
        self._is_closed = False  # Running jobs may still open and close files, and reserve no descriptors.
        os.makedirs(root, exist_ok=True)
        self._set_aside()

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(os.listdir(self._path(folder)))
        except FileNotFoundError:
            return []

    def size(self, path: str) -> int:
        return os.stat(self._path(path)).st_size

    def read(self, path: str, offset: int, size: int) -> bytes:
        handle = self._acquire(path, os.O_RDWR)
        try:
            data = os.pread(handle.descriptor, size, offset)
            if len(data) in (0, size):
                return data
            parts = [data]
            while data and (size := size - len(data)) > 0:
                offset += len(data)
                data = os.pread(handle.descriptor, size, offset)
                parts.append(data)
            return b"".join(parts)
        finally:
            self._release(handle)

    def write(self, path: str, offset: int, buffers: Sequence[bytes]) -> None:
        handle = self._acquire(path, os.O_RDWR | os.O_CREAT)
        try:
            for at in range(0, len(buffers), _BUFFERS_PER_CALL):
                offset = self._write_all(handle.descriptor, offset, buffers[at : at + _BUFFERS_PER_CALL])
        finally:
            self._release(handle)

    @staticmethod
    def _write_all(descriptor: int, offset: int, buffers: Sequence[bytes | memoryview]) -> int:
        """Write all buffers, and return the offset after them. One system call may write less than it was given."""
        left = list(buffers)
        total = sum(map(len, left))
        while total:
            written = os.pwritev(descriptor, left, offset)
            offset += written
            total -= written
            while left and written >= len(left[0]):
                written -= len(left.pop(0))
            if written:
                left[0] = memoryview(left[0])[written:]
        return offset

    def sync(self, path: str) -> None:
        handle = self._acquire(path, os.O_RDWR)
        try:
            os.fdatasync(handle.descriptor)
        finally:
            self._release(handle)

    def truncate(self, path: str, size: int) -> None:
        handle = self._acquire(path, os.O_RDWR)
        try:
            os.ftruncate(handle.descriptor, size)
        finally:
            self._release(handle)

    def rename(self, old: str, new: str) -> None:
        self._drop(old)
        self._drop(new)
        os.rename(self._path(old), self._path(new))

    def delete(self, path: str) -> None:
        self._drop(path)
        os.unlink(self._path(path))

    def make_folder(self, path: str) -> None:
        os.makedirs(self._path(path), exist_ok=True)

    def sync_folder(self, path: str) -> None:
        with self._lock:
            descriptor = self._descriptor(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            self._give_back(descriptor)

    def free_bytes(self) -> int:
        stat = os.statvfs(self.root)
        return stat.f_bavail * stat.f_frsize

    def close(self) -> None:
        for path in list(self._handles):
            self._drop(path)
        with self._lock:
            self._is_closed = True
            while self._reserve:
                os.close(self._reserve.pop())

    def _path(self, path: str) -> str:
        return os.path.join(self.root, *path.split("/")) if path else self.root

    def _acquire(self, path: str, flags: int) -> _Handle:
        """Return a cached descriptor, which stays open for its users despite an eviction, a rename or a deletion."""
        with self._lock:
            handle = self._handles.get(path)
            if handle is None:
                handle = self._handles[path] = _Handle(self._descriptor(path, flags))
            self._handles.move_to_end(path)
            handle.users += 1
            if len(self._handles) > _DESCRIPTORS_MAX:
                self._drop_locked(next(iter(self._handles)))
        return handle

    def _release(self, handle: _Handle) -> None:
        with self._lock:
            handle.users -= 1
            if handle.dropped and not handle.users:
                self._give_back(handle.descriptor)

    def _drop(self, path: str) -> None:
        with self._lock:
            self._drop_locked(path)

    def _drop_locked(self, path: str) -> None:
        handle = self._handles.pop(path, None)
        if handle is not None:
            handle.dropped = True
            if not handle.users:
                self._give_back(handle.descriptor)

    def _descriptor(self, path: str, flags: int) -> int:
        while True:
            try:
                return os.open(self._path(path), flags | os.O_CLOEXEC, 0o640)
            except OSError as error:
                if error.errno not in _NO_DESCRIPTORS or not self._make_room():
                    raise

    def _make_room(self) -> bool:
        """Free a descriptor, so that a file can be opened. Return whether that was possible."""
        idle = next((path for path, handle in self._handles.items() if not handle.users), None)
        if idle is not None:
            os.close(self._handles.pop(idle).descriptor)
        elif self._reserve:
            os.close(self._reserve.pop())
        else:
            return False
        return True

    def _give_back(self, descriptor: int) -> None:
        os.close(descriptor)
        if len(self._reserve) < _RESERVE:
            self._set_aside()

    def _set_aside(self) -> None:
        try:
            while len(self._reserve) < _RESERVE and not self._is_closed:
                self._reserve.append(os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        except OSError as error:
            if error.errno not in _NO_DESCRIPTORS:
                raise
