"""What the log says when it cannot go on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Damage(NamedTuple):
    """One place where stored bytes are not what was written and synced there."""

    file: str
    offset: int
    length: int  # 0 where unknown.
    queue: int | None  # None where the bytes that name it are themselves damaged.
    number: int | None
    first: int | None  # Sequence numbers first..last are concerned.
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
    """Stored data that was synced is wrong or missing. Going on could lose confirmed messages silently."""

    def __init__(self, items: Sequence[Damage], advice: str = "") -> None:
        self.items = list(items)
        advice = advice or (
            "Restore the files from a backup, or run `leveret recover`, which goes on without just what is listed."
        )
        super().__init__("\n".join(["the log is damaged:", *(f"  {item}" for item in self.items), advice]))


class LogStopped(Exception):
    """A sync failed: what the disk holds is unknown, so nothing may be confirmed by this log any more."""


class FormatError(ValueError):
    """Bytes that are no valid group or block. The scan decides whether that is a torn tail or damage."""
