"""Spark and the checkers of `faults` say the same of the same histories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from faults.history import ledgers
from faults.history.verdict import judge
from pyspark_leveret.jobs.analysis import ledgers as spark_ledgers

pytestmark = pytest.mark.spark
COUNT = 400


def write(folder: Path, lost: set[int], doubled: set[int], marked: set[int]) -> None:
    folder.mkdir()
    promises = {"queues": {"q": {"kept": True, "marked": True}}}
    (folder / "case.json").write_text(json.dumps({"promises": promises, "finished": True}))
    sent, got = [], []
    for number in range(1, COUNT + 1):
        base = {"queue": "q", "producer": "p.1", "number": number, "start": number, "end": number * 1_000_000}
        sent.append({**base, "op": "publish", "outcome": "unknown" if number % 50 == 0 else "ok"})
        times = 0 if number in lost else 2 if number in doubled | marked else 1
        for time in range(times):
            again = time > 0 and number in marked
            got.append({**base, "op": "deliver", "outcome": "ok", "consumer": "c.1", "redelivered": again})
    for name, lines in (("p", sent), ("c", got)):
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))


@pytest.mark.parametrize("lost, doubled, marked", [(set(), set(), {3}), ({7, 8, 50}, {9}, {10, 11})])
def test_spark_agrees(spark: Any, tmp_path: Path, lost: set[int], doubled: set[int], marked: set[int]) -> None:
    write(tmp_path / "histories", lost, doubled, marked)
    figures = judge(tmp_path / "histories").figures
    assert ledgers.write(tmp_path / "histories", tmp_path / "ledger")[0] == figures["confirmed"]
    published = spark_ledgers.read(spark, str(tmp_path / "ledger" / "published"), "confirmed_at")
    consumed = spark_ledgers.read(spark, str(tmp_path / "ledger" / "consumed"), "received_at")
    assert spark_ledgers.missing_ids(published, consumed).count() == figures["lost"] == len(lost - {50})
    unmarked = consumed.filter("not redelivered")
    assert spark_ledgers.repeated_ids(unmarked).count() == figures["doubled"] == len(doubled)
    again = figures["delivered again, marked"] + figures["doubled"]
    assert spark_ledgers.repeated_ids(consumed).count() == again
