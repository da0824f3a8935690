"""A disk in memory that forgets, at a crash, some of what was not synced.

Of a file's content each sector is, after a crash, as it was at the last sync, or as it was last written. Of the
creations, renames and deletions since a folder's last sync each has happened or not.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from random import Random

SECTOR = 16  # Small, so that small files have many.


class Crash(BaseException):
    """The power went. Not an Exception, so that nothing handles it."""


class _File:
    def __init__(self) -> None:
        self.live = b""
        self.synced = b""


class ForgetfulDisk:
    """`plan` is called before each operation with its name and path, and may raise."""

    def __init__(self) -> None:
        self.plan: Callable[[str, str], None] = lambda operation, path: None
        self._live: dict[str, _File] = {}
        self._durable: dict[str, _File] = {}
        self._changes: list[tuple[str, str, str, _File]] = []  # Kind, path, new path, file.

    def names(self, folder: str) -> list[str]:
        return sorted(path.rpartition("/")[2] for path in self._live if path.rpartition("/")[0] == folder)

    def size(self, path: str) -> int:
        return len(self._live[path].live)

    def read(self, path: str, offset: int, size: int) -> bytes:
        return self._live[path].live[offset : offset + size]

    def write(self, path: str, offset: int, buffers: Sequence[bytes]) -> None:
        if path not in self._live:
            self._live[path] = _File()
            self._changes.append(("create", path, "", self._live[path]))
        file = self._live[path]
        data = b"".join(buffers)
        try:
            self.plan("write", path)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                data = data[: len(data) // 2]
            self._put(file, offset, data)
            raise
        except Crash:
            self._put(file, offset, data)
            raise
        self._put(file, offset, data)

    @staticmethod
    def _put(file: _File, offset: int, data: bytes) -> None:
        file.live = file.live[:offset].ljust(offset, b"\0") + data + file.live[offset + len(data) :]

    def sync(self, path: str) -> None:
        self.plan("sync", path)
        file = self._live[path]
        file.synced = file.live

    def truncate(self, path: str, size: int) -> None:
        self.plan("truncate", path)
        self._live[path].live = self._live[path].live[:size]

    def rename(self, old: str, new: str) -> None:
        self.plan("rename", old)
        self._changes.append(("rename", old, new, self._live[old]))
        self._live[new] = self._live.pop(old)

    def delete(self, path: str) -> None:
        self.plan("delete", path)
        self._changes.append(("delete", path, "", self._live.pop(path)))

    def make_folder(self, path: str) -> None:
        self.plan("make_folder", path)

    def sync_folder(self, path: str) -> None:
        self.plan("sync_folder", path)
        self._durable = {name: file for name, file in self._durable.items() if name.rpartition("/")[0] != path}
        self._durable |= {name: file for name, file in self._live.items() if name.rpartition("/")[0] == path}
        self._changes = [change for change in self._changes if change[1].rpartition("/")[0] != path]

    def free_bytes(self) -> int:
        return 1 << 40

    def flip(self, path: str, offset: int, bits: int) -> None:
        """Damage a byte."""
        data = bytearray(self._live[path].live)
        data[offset] ^= bits
        self._live[path].live = self._live[path].synced = bytes(data)

    def crash(self, rng: Random) -> None:
        """Lose what may be lost."""
        keep = rng.choice((0.0, 0.5, 1.0))  # All lost and all kept are likelier than chance would have it.
        for kind, path, new, file in self._changes:
            if rng.random() >= keep:
                continue
            if kind == "create":
                self._durable[path] = file
            else:
                if self._durable.get(path) is file:
                    del self._durable[path]
                if kind == "rename":
                    self._durable[new] = file
        self._changes = []
        self._live = dict(self._durable)
        for file in self._live.values():
            file.live = file.synced = _torn(file, rng, keep)


def _torn(file: _File, rng: Random, keep: float) -> bytes:
    length = len(file.live) if rng.random() < keep else len(file.synced)
    out = b""
    for at in range(0, length, SECTOR):
        source = file.live if rng.random() < keep else file.synced
        out += source[at : at + SECTOR].ljust(SECTOR, b"\0")
    return out[:length]
