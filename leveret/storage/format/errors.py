"""The errors of the log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Damage(NamedTuple):
    """A place where stored bytes are not what was written and synced there."""

    file: str
    offset: int
    length: int  # 0: unknown.
    queue: int | None  # None: the bytes that name it are damaged too.
    number: int | None
    first: int | None  # The messages first..last are affected.
    last: int | None
    what: str

    def __str__(self) -> str:
        where = f"{self.file} at {self.offset}" + (f"+{self.length}" if self.length else "")
        parts = [f"{where}: {self.what}"]
        if self.queue is not None:
            parts.append(f"queue {self.queue}")
        if self.number is not None:
            parts.append(f"block {self.number}")
        if self.first is not None:
            parts.append(f"messages {self.first}..{self.last}")
        return ", ".join(parts)


class LogDamaged(Exception):
    """Synced data is wrong or missing. To continue could silently lose confirmed messages."""

    def __init__(self, items: Sequence[Damage], advice: str = "") -> None:
        self.items = list(items)
        advice = advice or (
            "Restore the files from a backup, or run `leveret recover`, which goes on without just what is listed."
        )
        super().__init__("\n".join(["the log is damaged:", *(f"  {item}" for item in self.items), advice]))


class LogStopped(Exception):
    """A sync failed: the contents of the disk are unknown, so this log must not confirm anything any more."""


class FormatError(ValueError):
    """Bytes are not a valid group or block. The scan decides whether that is a torn tail or damage."""
