"""A disk that forgets what was not synced when its power fails, and can stall, be full and fail to sync.

    python -m faults.machines.forgetful FOLDER      mounts it; one command in JSON per line of stdin, each answered

A file has two contents: the one that programs see, and the one that is on the disk. Writes change the first; `fsync`
brings the second up to date. In the same way a folder has entries that programs see and entries that are on the disk:
a file that was created, renamed or deleted is so on the disk only when its *folder* has been synced, which is all that
POSIX promises. ext4 does more: it stores a file's entry with the file. Commands:

    {"do": "entries", "with_files": true}    as ext4

    {"do": "lose", "seed": 7, "keep": 0.0}   power failed: what was not synced is gone. With `keep`, that share of the
                                             unsynced sectors has reached the disk, in any order, so writes are torn
                                             and reordered; of the changes of a folder the first ones have
    {"do": "sync"}                           all is written, as the system does by itself in time
    {"do": "slow", "ms": 4}                  a sync takes so long; what is written meanwhile may be lost
    {"do": "stall"}, {"do": "go on"}         writes and syncs are not answered until it goes on
    {"do": "fail"}                           each sync fails with EIO, and what it should have written never is, though
                                             programs still see it: what Linux does ("fsyncgate")
    {"do": "lie"}                            syncs are answered and nothing is written, as by disks that lie
    {"do": "full"}                           no byte is free
    {"do": "mend"}                           ends "fail", "lie" and "full"
    {"do": "count"}                          answers how many syncs there were, and how many bytes are not synced
"""

from __future__ import annotations

import errno
import itertools
import json
import random
import selectors
import stat
import sys
import time
from collections import deque

from faults.machines.fuse import ROOT, Attributes, FileSystem, Later, Mount, Refused, unmount

SECTOR = 512
TOTAL_BYTES = 8 << 30
Change = tuple[int, bytes | int]  # An offset and the bytes there; or -1 and the size that a file was cut to.


class File:
    """A file: what programs see, what is on the disk, and the changes that make the difference."""

    def __init__(self, number: int, mode: int) -> None:
        self.number, self.mode = number, mode
        self.seen = bytearray()
        self.stored = bytearray()
        self.changes: list[Change] = []
        self.parent: Folder | None = None

    @property
    def size(self) -> int:
        return len(self.seen)

    def write(self, offset: int, data: bytes) -> None:
        _write(self.seen, offset, data)
        self.changes.append((offset, data))

    def resize(self, size: int) -> None:
        _resize(self.seen, size)
        self.changes.append((-1, size))

    def sync(self) -> None:
        for change in self.changes:
            _apply(self.stored, change)
        self.changes.clear()

    def lose(self, rng: random.Random, keep: float) -> None:
        """Forgets the changes that were not synced, except a share of their sectors."""
        for offset, change in self.changes:
            if isinstance(change, int):
                if rng.random() < keep:
                    _resize(self.stored, change)
                continue
            end = offset + len(change)
            while offset < end:
                until = min(end, offset - offset % SECTOR + SECTOR)
                if rng.random() < keep:
                    _write(self.stored, offset, change[len(change) - end + offset :][: until - offset])
                offset = until
        self.changes.clear()
        self.seen = bytearray(self.stored)


class Folder:
    """A folder: the same with its entries."""

    size = 4096

    def __init__(self, number: int, mode: int) -> None:
        self.number, self.mode = number, mode
        self.seen: dict[str, File | Folder] = {}
        self.stored: dict[str, File | Folder] = {}
        self.changes: list[dict[str, File | Folder | None]] = []  # Names that came (with what) or went, at once.
        self.parent: Folder | None = None

    def put(self, entries: dict[str, File | Folder | None]) -> None:
        _put(self.seen, entries)
        self.changes.append(entries)
        for entry in entries.values():
            if entry is not None:
                entry.parent = self

    def sync(self) -> None:
        for entries in self.changes:
            _put(self.stored, entries)
        self.changes.clear()

    def lose(self, rng: random.Random, keep: float) -> None:
        for entries in self.changes:
            if rng.random() >= keep:
                break
            _put(self.stored, entries)
        self.changes.clear()
        self.seen = dict(self.stored)


def _put(entries: dict[str, File | Folder], changed: dict[str, File | Folder | None]) -> None:
    for name, what in changed.items():
        if what is None:
            entries.pop(name, None)
        else:
            entries[name] = what


def _write(content: bytearray, offset: int, data: bytes) -> None:
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def _resize(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


def _apply(content: bytearray, change: Change) -> None:
    offset, what = change
    if isinstance(what, int):
        _resize(content, what)
    else:
        _write(content, offset, what)


class ForgetfulDisk(FileSystem):
    """All files and folders of a disk."""

    def __init__(self) -> None:
        self.root = Folder(ROOT, stat.S_IFDIR | 0o755)
        self.known: dict[int, File | Folder] = {ROOT: self.root}
        self.is_stalled = self.is_failing = self.is_full = self.is_lying = False
        self.sync_s = 0.0
        self.stores_entries_with_files = False
        self.syncs = 0
        self._numbers = itertools.count(ROOT + 1)

    # -- Faults --------------------------------------------------------------------------------------------------

    def lose(self, seed: int, keep: float) -> int:
        """Fails the power. Returns how many bytes were not synced."""
        rng = random.Random(seed)
        unsynced = self.unsynced_bytes()
        for number in sorted(self.known):
            self.known[number].lose(rng, keep)
        self.known = {}
        self._remember(self.root)
        self.is_stalled = self.is_failing = self.is_full = self.is_lying = False
        return unsynced

    def _remember(self, one: File | Folder) -> None:
        """Knows what can still be reached from the root."""
        self.known[one.number] = one
        if isinstance(one, Folder):
            for entry in one.seen.values():
                self._remember(entry)

    def unsynced_bytes(self) -> int:
        files = [one for one in self.known.values() if isinstance(one, File)]
        return sum(len(what) for one in files for _, what in one.changes if isinstance(what, bytes))

    # -- Requests ------------------------------------------------------------------------------------------------

    def _get(self, number: int) -> File | Folder:
        found = self.known.get(number)
        if found is None:
            raise Refused(errno.ESTALE)
        return found

    def _folder(self, number: int) -> Folder:
        found = self._get(number)
        if not isinstance(found, Folder):
            raise Refused(errno.ENOTDIR)
        return found

    def _file(self, number: int) -> File:
        found = self._get(number)
        if not isinstance(found, File):
            raise Refused(errno.EISDIR)
        return found

    def lookup(self, folder: int, name: str) -> Attributes:
        found = self._folder(folder).seen.get(name)
        if found is None:
            raise Refused(errno.ENOENT)
        return _of(found)

    def attributes(self, number: int) -> Attributes:
        return _of(self._get(number))

    def make(self, folder: int, name: str, mode: int) -> Attributes:
        self._check()
        parent = self._folder(folder)
        if name in parent.seen:
            raise Refused(errno.EEXIST)
        number = next(self._numbers)
        made = Folder(number, mode) if stat.S_ISDIR(mode) else File(number, mode)
        self.known[number] = made
        parent.put({name: made})
        return _of(made)

    def remove(self, folder: int, name: str, is_folder: bool) -> None:
        parent = self._folder(folder)
        found = parent.seen.get(name)
        if found is None:
            raise Refused(errno.ENOENT)
        if isinstance(found, Folder) != is_folder:
            raise Refused(errno.ENOTDIR if is_folder else errno.EISDIR)
        if isinstance(found, Folder) and found.seen:
            raise Refused(errno.ENOTEMPTY)
        parent.put({name: None})

    def rename(self, folder: int, name: str, to_folder: int, to_name: str) -> None:
        source, target = self._folder(folder), self._folder(to_folder)
        found = source.seen.get(name)
        if found is None:
            raise Refused(errno.ENOENT)
        if source is target:
            source.put({name: None, to_name: found} if name != to_name else {})
        else:
            target.put({to_name: found})
            source.put({name: None})

    def link(self, number: int, folder: int, name: str) -> Attributes:
        found = self._file(number)
        self._folder(folder).put({name: found})
        return _of(found)

    def names(self, number: int) -> list[tuple[str, Attributes]]:
        return [(name, _of(one)) for name, one in sorted(self._folder(number).seen.items())]

    def read(self, number: int, offset: int, size: int) -> bytes:
        return bytes(self._file(number).seen[offset : offset + size])

    def write(self, number: int, offset: int, data: bytes) -> None:
        self._check()
        self._file(number).write(offset, data)

    def resize(self, number: int, size: int) -> None:
        file = self._file(number)
        if size > file.size:
            self._check()
        file.resize(size)

    def set_mode(self, number: int, mode: int) -> None:
        found = self._get(number)
        found.mode = stat.S_IFMT(found.mode) | stat.S_IMODE(mode)

    def sync(self, number: int) -> None:
        if self.is_stalled or self.sync_s:
            raise Later
        self.sync_now(number)

    def sync_now(self, number: int) -> None:
        self.syncs += 1
        found = self._get(number)
        if self.is_failing:
            if isinstance(found, File):
                found.changes.clear()  # They count as written now, and are not.
            raise Refused(errno.EIO)
        if not self.is_lying:
            found.sync()
            while self.stores_entries_with_files and found.parent is not None:
                found = found.parent
                found.sync()

    def free_bytes(self) -> tuple[int, int]:
        return (0 if self.is_full else TOTAL_BYTES // 2), TOTAL_BYTES

    def _check(self) -> None:
        if self.is_stalled:
            raise Later
        if self.is_full:
            raise Refused(errno.ENOSPC)


def _of(one: File | Folder) -> Attributes:
    return Attributes(one.number, one.mode, one.size)


class SlowMount(Mount):
    """A mount whose syncs take their time, and that keeps requests while its disk stalls."""

    def __init__(self, folder: str, disk: ForgetfulDisk) -> None:
        super().__init__(folder, disk)
        self.disk = disk
        self.waiting: list[Later] = []
        self.syncing: deque[tuple[float, int, int]] = deque()  # When it is due, the request, the file.

    def on_later(self, later: Later) -> None:
        if self.disk.is_stalled:
            self.waiting.append(later)
        else:
            _, unique, node, _ = later.args
            self.syncing.append((time.monotonic() + self.disk.sync_s, unique, node))

    def finish_syncs(self, really_all: bool = False) -> float | None:
        """Ends the syncs whose time has come; returns in how many seconds the next one is due."""
        while self.syncing and (really_all or self.syncing[0][0] <= time.monotonic()):
            _, unique, node = self.syncing.popleft()
            try:
                self.disk.sync_now(node)
            except Refused as refused:
                self.answer(unique, b"", refused.number)
            else:
                self.answer(unique, b"")
        return max(0.0, self.syncing[0][0] - time.monotonic()) if self.syncing else None

    def go_on(self) -> None:
        waiting, self.waiting = self.waiting, []
        for later in waiting:
            self.perform(*later.args)


def obey(disk: ForgetfulDisk, mount: SlowMount, command: dict[str, object]) -> dict[str, object]:
    """Performs a command."""
    action = command["do"]
    if action == "lose":
        seed, keep = command.get("seed", 0), command.get("keep", 0.0)
        assert isinstance(seed, int) and isinstance(keep, float)
        lost = disk.lose(seed, keep)
        mount.finish_syncs(really_all=True)  # Nobody waits for them any more.
        mount.go_on()
        return {"unsynced": lost}
    if action == "sync":
        for one in disk.known.values():
            one.sync()
    elif action == "entries":
        disk.stores_entries_with_files = bool(command["with_files"])
    elif action == "slow":
        ms = command["ms"]
        assert isinstance(ms, int)
        disk.sync_s = ms / 1000
    elif action == "stall":
        disk.is_stalled = True
    elif action == "go on":
        disk.is_stalled = False
        mount.go_on()
    elif action == "fail":
        disk.is_failing = True
    elif action == "lie":
        disk.is_lying = True
    elif action == "full":
        disk.is_full = True
    elif action == "mend":
        disk.is_failing = disk.is_full = disk.is_lying = False
    elif action != "count":
        raise ValueError(f"no such command: {action}")
    return {"syncs": disk.syncs, "unsynced": disk.unsynced_bytes()}


def main() -> int:
    folder = sys.argv[1]
    disk = ForgetfulDisk()
    mount = SlowMount(folder, disk)
    print(json.dumps({"mounted": folder}), flush=True)
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(mount.descriptor, selectors.EVENT_READ)
            selector.register(sys.stdin, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select(mount.finish_syncs()):
                    if key.fd == mount.descriptor:
                        if not mount.on_request():
                            return 0
                    elif line := sys.stdin.readline():
                        print(json.dumps(obey(disk, mount, json.loads(line))), flush=True)
                    else:
                        return 0
    finally:
        unmount(folder)


if __name__ == "__main__":
    sys.exit(main())
