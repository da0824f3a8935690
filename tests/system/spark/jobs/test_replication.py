"""Lag of mirrors out of journals."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from leveret.cli.pipeline import pipeline
from pyspark_leveret.jobs import replication
from tests.system.spark.journals import Journals, event

BEGIN = datetime(2026, 11, 15, 13)


def a_failover() -> Journals:
    """n2 is a second late, n3 is away for a while, then n1 dies, and n2 leads; n1 comes back as a mirror."""
    told = Journals()
    told.tell(
        0, event("started", ""), event("view", who="n1", version=1, ring=["n1", "n2", "n3"], in_sync=["n1", "n2", "n3"])
    )
    told.tell(0, event("view", who="n1", version=1, ring=["n1", "n2", "n3"], in_sync=["n1", "n2", "n3"]), node="n2")
    told.tell(1, event("started", first=1, last=0), event("published", first=1, last=100))
    told.tell(1.02, event("replicated", first=1, last=100, what="published"), node="n3")
    told.tell(2, event("replicated", first=1, last=100, what="published"), node="n2")
    told.tell(3, event("published", first=101, last=150), event("partition", "", who="n3", state="lost"))
    told.tell(3.5, event("replicated", first=101, last=150, what="published"), node="n2")
    told.tell(4.5, event("replicated", first=100, last=150, what="filled", epoch=0), node="n3")
    told.tell(5, event("published", first=151, last=160))  # Never confirmed, and withdrawn.
    told.tell(6, event("promoted", first=1, last=150, who="n1", epoch=2), node="n2")
    told.tell(7, event("published", first=151, last=151, epoch=2), node="n2")
    told.tell(7, event("replicated", first=151, last=151, what="published", epoch=2), node="n3")
    told.tell(7, event("published", "alone", 1, 5, id=9))  # A queue without mirrors.
    return told


def a_mirror_that_was_away() -> Journals:
    """n2 misses 101 to 2,000, which are settled when it is back: nothing is left to fill it with. n3 was killed before
    it told that it had written 91 to 100."""
    told, ring = Journals(), ["n1", "n2", "n3"]
    told.tell(1, event("started", first=1, last=0), event("published", first=1, last=100))
    told.tell(1.1, event("replicated", first=1, last=100, what="published"), node="n2")
    told.tell(1.2, event("replicated", first=1, last=90, what="published"), node="n3")
    told.tell(3, event("view", who="n1", version=2, ring=["n1"], in_sync=["n1"]))
    told.tell(4, event("published", first=101, last=2_000), event("acked", first=1, last=2_000))
    told.tell(9, event("view", who="n1", version=3, ring=ring, in_sync=ring))
    told.tell(9, event("view", who="n1", version=3, ring=ring, in_sync=ring), node="n2")
    return told


@pytest.mark.spark
def test_a_mirror_in_sync_is_not_behind(spark: Any) -> None:
    found = replication.replication(a_mirror_that_was_away().events(spark).cache())
    assert found is not None
    ends = {row.mirror: (row.behind_max, row.behind_end) for row in found.mirrors.collect()}
    assert ends == {"n2": (1_900, 0), "n3": (1_910, 0)}


@pytest.mark.spark
def test_behind_by_the_second(spark: Any, tmp_path: Path) -> None:
    found = replication.replication(a_failover().events(spark).cache())
    assert found is not None
    assert found.step_s == 1
    lag = found.lag.cache()
    rows = {((row.time - BEGIN) // timedelta(seconds=1), row.mirror): row for row in lag.collect()}
    assert {row.queue for row in rows.values()} == {"q"}
    behind = {
        mirror: {at: rows[at, mirror].behind for at, name in sorted(rows) if name == mirror}
        for mirror in ("n1", "n2", "n3")
    }
    assert behind["n2"] == {2: 0, 3: 0, 4: 0, 5: 10}  # It says nothing of itself before; from 6 on it leads.
    assert behind["n3"] == {1: 0, 2: 0, 3: 50, 4: 0, 5: 10, 6: 0, 7: 0}
    assert behind["n1"] == {6: 0, 7: 0}
    first = rows[1, "n3"]
    assert (first.replicated, first.rate, first.master, first.lag_p50_ms, first.lag_max_ms) == (
        100,
        100.0,
        "n1",
        20,
        20,
    )
    assert (rows[2, "n2"].lag_p95_ms, rows[4, "n3"].filled, rows[7, "n3"].master) == (1000, 51, "n2")
    summed = {row.mirror: row for row in found.mirrors.collect()}
    n3 = summed["n3"]
    assert (n3.replicated, n3.filled, n3.behind_max, n3.behind_end) == (101, 51, 50, 0)
    assert (summed["n2"].behind_max, summed["n2"].behind_end) == (10, None)
    told = [(row.kind, row.text) for row in found.happenings.orderBy("time", "kind").collect()]
    assert told == [
        ("started", "n1 started"),
        ("view", "view 1: master n1, in sync n1, n2, n3"),
        ("partition", "n1: lost n3"),
        ("promoted", "n2 took over from n1"),
    ]
    html = replication.page(found)
    assert html.count("<svg") == 3
    assert "n2 took over from n1" in html
    assert not re.search(r"<script|https?://", html)


def test_slots_are_not_too_many() -> None:
    assert replication.fitting_step(0) == 1
    assert replication.fitting_step(600_000) == 1
    assert replication.fitting_step(601_000) == 2
    assert replication.fitting_step(7 * 86_400_000) == 3600
    assert replication.fitting_step(10**13) == 86_400


def test_arguments_that_make_no_sense(capsys: pytest.CaptureFixture[str]) -> None:
    assert pipeline(["replication", "--out", "/nowhere", "--step", "0"]) == 64
    assert "'0' is not a number of seconds up to a day" in capsys.readouterr().err
