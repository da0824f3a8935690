"""The form of histories: a folder with lines of JSON.

    case.json          what was run, and what is promised for which queue, lock and register
    CLIENT.jsonl       operations of one client, in the order in which they ended

Each operation has `op`, `start` and `end` (nanoseconds of a clock that all clients of a run share and that never
jumps) and `outcome`; `unknown` means that the client never had an answer. The others:

    publish    queue, producer, number; outcome ok (confirmed), refused, unknown
    deliver    queue, consumer, producer, number, redelivered; outcome ok
    hold       lock, holder, token; from `start` to `end` the client believed that it was the only holder
    use        lock, holder, token; the resource that the lock guards took (ok) or refused (refused) the token
    register   key, call (declare, delete, read), value; outcome ok, refused (another value is there), unknown, and
               for a read present or absent
    lease      lease, owner, call (open, take, ack, release), acked and next of the answer, through of an ack; refused
               means that another one owns the lease, or that it was released
    read       queue, producer, number, lease, owner, place: what a reader found at a place of a lease
    fault      what; from `start` to `end`, written by the one who made it

A producer never uses a number twice, and a new connection is a new producer: a message that is delivered twice was
delivered twice by the broker.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

Entry = dict[str, Any]
OK, REFUSED, UNKNOWN = "ok", "refused", "unknown"
FLUSH_NS = 200_000_000


def now_ns() -> int:
    return time.monotonic_ns()


class Writer:
    """Writes the history of a client. Safe for several threads."""

    def __init__(self, folder: Path, client: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file: IO[str] = open(folder / f"{client}.jsonl", "w", encoding="utf-8")  # noqa: SIM115
        self._lock = threading.Lock()
        self._flushed_ns = 0

    def write(self, op: str, start: int, end: int | None, outcome: str, **more: Any) -> None:
        line = json.dumps({"op": op, "start": start, "end": end, "outcome": outcome, **more})
        with self._lock:
            self._file.write(line + "\n")
            if start - self._flushed_ns > FLUSH_NS:  # A run that is interrupted keeps its histories.
                self._flushed_ns = start
                self._file.flush()

    def close(self) -> None:
        with self._lock:
            self._file.close()


class Histories:
    """All histories of a run. Raises ValueError for what is no history."""

    def __init__(self, folder: Path) -> None:
        try:
            self.case: dict[str, Any] = json.loads((folder / "case.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ValueError(f"{folder} has no case.json, so it holds no histories") from None
        self.entries: list[Entry] = []
        for file in sorted(folder.glob("*.jsonl")):
            self.entries += read(file)

    def of(self, *ops: str) -> Iterator[Entry]:
        return (entry for entry in self.entries if entry["op"] in ops)

    @property
    def promises(self) -> dict[str, Any]:
        promises: dict[str, Any] = self.case.get("promises", {})
        return promises


def read(file: Path) -> Iterator[Entry]:
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        try:
            entry = json.loads(line)
            entry["op"], entry["start"], entry["end"], entry["outcome"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{file}, line {number}: {error!r}") from None
        entry["client"] = file.stem
        yield entry
