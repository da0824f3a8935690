"""Histories in the form that `leveret pipeline audit` reads: ledgers of publishers and of consumers.

    python -m faults ledgers FOLDER OUT      then: leveret pipeline audit --servers … --ledger OUT

Spark then compares what was confirmed with what was received by itself, with code that shares nothing with the checkers
here. A message goes by its `message_id`: producer and number.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from faults.history.entries import OK, Entry, Histories


def write(folder: Path, out: Path) -> tuple[int, int]:
    """Writes the ledgers; returns how many confirms and how many deliveries they have. Raises ValueError."""
    histories = Histories(folder)
    published = [_line(entry, "confirmed_at") for entry in histories.of("publish") if entry["outcome"] == OK]
    consumed = [
        _line(entry, "received_at") | {"redelivered": entry["redelivered"]} for entry in histories.of("deliver")
    ]
    for kind, lines in (("published", published), ("consumed", consumed)):
        (out / kind).mkdir(parents=True, exist_ok=True)
        text = "".join(f"{json.dumps(line)}\n" for line in lines)
        (out / kind / "histories.jsonl").write_text(text, encoding="utf-8")
    return len(published), len(consumed)


def _line(entry: Entry, at: str) -> dict[str, Any]:
    message = f"{entry['producer']}/{entry['number']}"
    return {"queue": entry["queue"], "message_id": message, at: entry["end"] // 1_000_000}
