"""A node's data folder: what lies where, and that only one process works in it."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from leveret.log.disk import Disk

JOIN_FILE: Final = "join"  # Where to ask to be let in, at the next start without data.
REPLACE_FILE: Final = "replace"  # The id of the member in whose place to be let in then: see `recovering`,
UNKNOWN_ID: Final = "unknown"  # or this, if it cannot be read.
METADATA: Final = "metadata"  # The log of commands and its snapshots; see `consensus_log`.
MESSAGES: Final = "log"  # Segments and their checkpoint; see `leveret.log`.


class FolderInUse(Exception):
    """Another process works in the data folder."""


@contextmanager
def folder_lock(folder: str) -> Iterator[None]:
    """Nobody else may write here: two nodes in one folder would overwrite each other's log."""
    with open(os.path.join(folder, "lock"), "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderInUse(f"another process works in {folder}: a node is running there") from None
        yield


def problem_of(folder: str) -> str | None:
    """Why a process of this user could not make a folder, or write in it; None: it can."""
    there = folder
    while not os.path.lexists(there):  # The rest of the path would be made.
        there = os.path.dirname(there)
    if not os.path.isdir(there):
        return f"{there} is no folder"
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".leveret-", dir=there))  # To ask for rights would not tell of all obstacles.
    except OSError as error:
        return f"cannot write in {there}: {error.strerror or error}"
    return None


def make_folder(folder: str) -> str | None:
    """Why there is none in which a node could write."""
    try:
        os.makedirs(folder, mode=0o750, exist_ok=True)
    except OSError as error:
        return f"cannot make the data folder {folder}: {error.strerror or error}"
    problem = problem_of(folder)
    return None if problem is None else f"the data folder cannot be used: {problem}"


def wipe(disk: Disk) -> None:
    """Delete all messages and metadata, the node's identity included.

    Messages first: they are found by the numbers of their queues. If they outlived the metadata, the queues of another
    life could find them.
    """
    for folder in (f"{MESSAGES}/segments", MESSAGES, METADATA):
        # The identity last: without it, what is left would be taken for damage.
        for name in sorted(disk.names(folder), key=lambda name: name == "identity"):
            if f"{folder}/{name}" != f"{MESSAGES}/segments":
                disk.delete(f"{folder}/{name}")
        disk.make_folder(folder)
        disk.sync_folder(folder)


# -- Notes: small files in which an operator's wish outlives the process ---------------------------------------------


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
