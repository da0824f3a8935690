"""A node's data folder: what lies where, and that only one process works in it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from leveret.log.disk import Disk

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
