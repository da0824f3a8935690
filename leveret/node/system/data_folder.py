"""A node's data folder: the names of its files, and the lock that lets only one process use it.

The lock of the folder is the kernel's, and ends with the process that has it, however that ends. So another process on
the same machine can tell for certain whether the node runs: see `leveret.node.cluster.two_nodes`. A node tells others
where its lock is (`Place`); they find out whether they can see that lock by testing it while the node runs.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Final, NamedTuple

from leveret.storage.segments.disk import FileDisk

if TYPE_CHECKING:
    from leveret.storage.segments.disk import Disk

JOIN_FILE: Final = "join"  # The addresses of the cluster to join, at the next start without data.
REPLACE_FILE: Final = "replace"  # The id of the member in whose place to join then: see `leveret.node.cluster.repair`.
UNKNOWN_ID: Final = "unknown"  # Stands in `REPLACE_FILE` if the id cannot be read.
WITNESS_FILE: Final = "witness"  # The folder is that of a witness, which keeps no messages.
METADATA: Final = "metadata"  # The log of commands and its snapshots; see `leveret.node.cluster.consensus_log`.
MESSAGES: Final = "log"  # Segments and their checkpoint; see `leveret.storage`.


LOCK: Final = "lock"
# How long a start waits for the lock: another node may have it while it reads this one's consensus log.
PATIENCE_S: Final = 3.0
OTHER_FOLDER: Final = "give the node another folder with --data, or data_dir in its configuration"
_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"


class FolderInUse(Exception):
    """Another process works in the data folder."""


@contextmanager
def folder_lock(folder: str, patience_s: float = 0.0) -> Iterator[None]:
    """Locks a data folder: two nodes in one folder would overwrite each other's log. Raises FolderInUse."""
    with open(os.path.join(folder, LOCK), "w") as file:
        deadline = time.monotonic() + patience_s
        while not _lock(file):
            if time.monotonic() >= deadline:
                raise FolderInUse(f"another process works in {folder}: a node is running there")
            time.sleep(0.02)
        yield


def problem_of(folder: str) -> str | None:
    """Returns why a process of this user could not make a folder, or write in it; None if it can."""
    there = folder
    while not os.path.lexists(there):  # The node would create the rest of the path.
        there = os.path.dirname(there)
    if not os.path.isdir(there):
        return f"{there} is no folder"
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".leveret-", dir=there))  # Permission bits would not show all obstacles.
    except OSError as error:
        return f"cannot write in {there}: {error.strerror or error}"
    return None


def make_folder(folder: str) -> str | None:
    """Makes the data folder. Returns why that failed, or why a node could not write in it; None if it can."""
    try:
        os.makedirs(folder, mode=0o750, exist_ok=True)
    except OSError as error:
        return f"cannot make the data folder {folder}: {error.strerror or error}"
    problem = problem_of(folder)
    return None if problem is None else f"the data folder cannot be used: {problem}"


def _lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# -- The folder of another node on this machine ----------------------------------------------------------------------


class Place(NamedTuple):
    """The location of the lock of a node's folder."""

    machine: str  # The boot id of its kernel.
    folder: str
    device: int
    inode: int


class Taken:
    """The locked folder of a node that does not run, and cannot start until it is released."""

    def __init__(self, file: IO[str], folder: str) -> None:
        self._file = file
        self._files = FileDisk(folder)
        self.disk: Disk = self._files

    def release(self) -> None:
        self._files.close()
        self._file.close()


def place_of(folder: str) -> Place | None:
    """Returns where the lock of a folder is; None if there is no lock, or this system has no boot id."""
    try:
        with open(_BOOT_ID, encoding="ascii") as file:
            machine = file.read(64).strip()
        found = os.stat(os.path.join(folder, LOCK))
    except OSError:
        return None
    return Place(machine, os.path.realpath(folder), found.st_dev, found.st_ino)


def is_held(place: Place) -> bool:
    """Returns whether that lock is on this machine, where this process can see it, and a process has it."""
    file = _open_lock(place)
    if file is None:
        return False
    with file:
        return not _lock(file)


def take(place: Place) -> Taken | None:
    """Locks the folder of another node. Returns None if a process has the lock, or it cannot be seen from here."""
    file = _open_lock(place)
    if file is None:
        return None
    if not _lock(file):
        file.close()
        return None
    return Taken(file, place.folder)


def _open_lock(place: Place) -> IO[str] | None:
    """Opens exactly that lock file: a folder of the same name, in another container say, is another place."""
    if place_of(place.folder) != place:
        return None
    try:
        file = open(os.path.join(place.folder, LOCK), "r+")  # noqa: SIM115 (whoever asks closes it)
    except OSError:
        return None
    found = os.fstat(file.fileno())
    if (found.st_dev, found.st_ino) != (place.device, place.inode):
        file.close()
        return None
    return file


def wipe(disk: Disk) -> None:
    """Deletes all messages and metadata, the node's identity included.

    Messages are deleted first: they are found by the numbers of their queues. If a crash left messages without the
    metadata, new queues with the same numbers could get them.
    """
    for folder in (f"{MESSAGES}/segments", MESSAGES, METADATA):
        # The identity is deleted last: without it, the other files would be taken for damage.
        for name in sorted(disk.names(folder), key=lambda name: name == "identity"):
            if f"{folder}/{name}" != f"{MESSAGES}/segments":
                disk.delete(f"{folder}/{name}")
        disk.make_folder(folder)
        disk.sync_folder(folder)


# -- Notes: small files that keep an operator's request for the next start -------------------------------------------


def read_note(disk: Disk, name: str) -> str | None:
    return disk.read(name, 0, 4096).decode() if name in disk.names("") else None


def write_note(disk: Disk, name: str, text: str) -> None:
    disk.write(f"{name}.new", 0, [text.encode()])
    disk.truncate(f"{name}.new", len(text.encode()))
    disk.sync(f"{name}.new")
    disk.rename(f"{name}.new", name)
    disk.sync_folder("")


def delete_note(disk: Disk, name: str) -> None:
    if name in disk.names(""):
        disk.delete(name)
        disk.sync_folder("")
