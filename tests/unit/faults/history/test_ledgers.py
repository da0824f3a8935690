"""Histories are written as ledgers."""

from __future__ import annotations

import json
from pathlib import Path

from faults.history.ledgers import write


def test_confirmed_messages_and_all_deliveries(tmp_path: Path) -> None:
    (tmp_path / "case.json").write_text("{}")
    base = {"queue": "q", "producer": "p.1", "start": 1}
    sent = [{**base, "op": "publish", "number": 1, "end": 5_000_000, "outcome": "ok"}]
    sent.append({**base, "op": "publish", "number": 2, "end": None, "outcome": "unknown"})
    got = {**base, "op": "deliver", "number": 1, "end": 9_000_000, "outcome": "ok", "redelivered": True}
    (tmp_path / "p.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in sent))
    (tmp_path / "c.jsonl").write_text(f"{json.dumps(got)}\n")
    assert write(tmp_path, tmp_path / "out") == (1, 1)
    published = json.loads((tmp_path / "out" / "published" / "histories.jsonl").read_text())
    consumed = json.loads((tmp_path / "out" / "consumed" / "histories.jsonl").read_text())
    assert published == {"queue": "q", "message_id": "p.1/1", "confirmed_at": 5}
    assert consumed == {"queue": "q", "message_id": "p.1/1", "received_at": 9, "redelivered": True}
