"""A node's data folder: what lies where, and that only one process works in it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

METADATA: Final = "metadata"  # Commands and snapshots; see `journal`.
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
