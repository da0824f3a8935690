"""Figures of queues and minutes out of journals."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from leveret.cli.pipeline import pipeline
from pyspark_leveret.jobs import rollup, rollup_page
from pyspark_leveret.jobs.analysis import latency
from pyspark_leveret.jobs.analysis.latency import measure
from tests.support.servers import Server, until
from tests.system.spark.journals import Journals, event

BEGIN = datetime(2026, 11, 15, 13)


# -- Latencies, without Spark ------------------------------------------------------------------------------------------


def measured(*events: tuple[int, str, int, int], nodes: Sequence[str] = ()) -> dict[tuple[str, int], int]:
    """(ms, kind, first, last) each; gives by kind and ms how many."""
    ms, kinds, firsts, lasts = zip(*events, strict=True)
    table = pa.table(
        {
            "vhost": ["/"] * len(ms), "queue": ["q"] * len(ms), "id": [7] * len(ms), "epoch": [1] * len(ms),
            "node": list(nodes) or ["n1"] * len(ms), "kind": kinds, "first": firsts, "last": lasts, "ms": ms,
        }
    )  # fmt: skip
    found: dict[tuple[str, int], int] = {}
    for row in measure(table, 60).to_pylist():
        found[row["kind"], row["ms"]] = found.get((row["kind"], row["ms"]), 0) + row["count"]
    return found


def test_ranges_are_matched_number_by_number() -> None:
    found = measured(
        (100, "published", 1, 10), (110, "published", 11, 20), (115, "confirmed", 6, 15), (130, "delivered", 1, 20),
        (150, "acked", 1, 5),
    )  # fmt: skip
    assert found == {
        ("confirmed", 15): 5, ("confirmed", 5): 5, ("delivered", 30): 10, ("delivered", 20): 10, ("acked", 20): 5,
    }  # fmt: skip


def test_a_message_that_came_back_counts_once_for_its_delivery() -> None:
    found = measured((100, "published", 1, 2), (120, "delivered", 1, 2), (200, "delivered", 2, 2), (250, "acked", 1, 2))
    assert found == {("delivered", 20): 2, ("acked", 130): 1, ("acked", 50): 1}


def test_without_a_beginning_there_is_no_time_and_none_is_below_zero() -> None:
    assert measured((100, "confirmed", 1, 9), (120, "acked", 1, 9)) == {}
    found = measured((90, "replicated", 1, 5), (100, "published", 1, 5), nodes=("n2", "n1"))
    assert found == {("replicated", 0): 5}


# -- Figures -----------------------------------------------------------------------------------------------------------


def two_minutes() -> Journals:
    told = Journals()
    told.tell(1, event("published", first=1, last=60, who="a -> b (1)"), event("published", "p", 65_530, 65_545, id=2))
    told.tell(1.005, event("confirmed", first=1, last=60), event("confirmed", "p", 65_530, 65_545, id=2))
    told.tell(2, event("delivered", first=1, last=30), event("delivered", first=31, last=60, who="moving to n2"))
    told.tell(3, event("requeued", first=30, last=30), event("acked", first=1, last=20))
    told.tell(61, event("delivered", first=30, last=30), event("acked", first=21, last=30))
    told.tell(
        62,
        event("dead-lettered", first=31, last=33, reason="expired"),
        event("dropped", first=34, last=35, reason="maxlen"),
    )
    told.tell(
        63,
        event("expired", first=36, last=36),
        event("refused", count=4),
        event("replicated", first=1, last=60, what="published"),
    )
    return told


@pytest.mark.spark
def test_the_tail_of_a_killed_node_is_missing_and_said_to_be(spark: Any) -> None:
    told = Journals()
    told.tell(0, event("started", ""), event("published", first=1, last=10), run="one")
    told.tell(61, event("published", first=11, last=20), event("published", "p", 1, 5, id=2), run="one")
    told.tell(100, event("started", ""), event("published", first=31, last=40), run="two")
    told.tell(125, event("stopped", ""), event("published", "p", 6, 7, id=2), run="two")
    told.tell(190, event("started", ""), event("published", first=41, last=50), run="three")
    told.tell(61, event("published", "r", 1, 5, id=3), node="n2")
    figures = rollup.rollup(told.events(spark)).cache()
    rows = figures.collect()
    page = rollup_page.page(figures)
    assert page.count("<svg") == 2 and "n1 killed: counts of this minute are incomplete" in page
    assert "<td>q</td>" in page and 'class="number"' in page
    found = {((row.minute - BEGIN) // timedelta(minutes=1), row.queue): row.incomplete for row in rows}
    assert found == {
        (0, "q"): None, (1, "q"): ["n1"], (1, "p"): ["n1"], (1, "r"): None, (2, "p"): None, (3, "q"): None,
    }  # fmt: skip


@pytest.mark.spark
def test_counts_rates_times_and_reasons(spark: Any) -> None:
    events = two_minutes().events(spark)
    split = latency.histogram(events, 60).filter("queue = 'p'").agg({"count": "sum"}).collect()
    assert split[0][0] == 16  # It lies across the border of two stretches.
    rows = rollup.rollup(events).orderBy("minute", "queue").collect()
    assert [(row.minute, row.queue) for row in rows] == [
        (BEGIN, "p"),
        (BEGIN, "q"),
        (BEGIN + timedelta(minutes=1), "q"),
    ]
    other, first, second = rows
    assert (other.published, other.confirm_p50_ms, other.reasons) == (16, 5, {})
    assert (first.published, first.confirmed, first.delivered, first.acked, first.requeued) == (60, 60, 30, 20, 1)
    assert (first.published_rate, first.delivered_rate) == (1.0, 0.5)
    assert (first.confirm_p50_ms, first.confirm_max_ms, first.deliver_p99_ms, first.ack_p50_ms) == (5, 5, 1000, 1000)
    assert (second.acked, second.dead_lettered, second.dropped, second.expired, second.refused) == (10, 3, 2, 1, 4)
    assert (second.deliver_p50_ms, second.ack_p50_ms, second.ack_p99_ms) == (None, 59_000, 59_000)
    assert second.reasons == {"dead-lettered: expired": 3, "dropped: maxlen": 2, "expired": 1}


@pytest.mark.spark
def test_it_does_not_matter_in_which_batches_events_come(spark: Any, tmp_path: Path) -> None:
    told, later, out = two_minutes(), Journals(), str(tmp_path)
    later.rows = [told.rows.pop(1), told.rows.pop()]  # The confirms, and the last of them.
    first, second = told.events(spark), later.events(spark)
    for events, batch in ((first, "a-0"), (second, "a-1")):
        rollup.take_in(events, out, batch, rollup.LOOKBACK_S)
    first, second = spark.read.parquet(out).filter("queue = 'q'").orderBy("minute").collect()
    assert (first.confirmed, first.confirm_p50_ms, first.deliver_p99_ms, first.hour) == (60, 5, 1000, 13)
    assert (second.acked, second.ack_p50_ms, second.expired, second.refused) == (10, 59_000, 1, 4)


@pytest.mark.spark
def test_hours_are_one_table(spark: Any, tmp_path: Path) -> None:
    """What began in one hour and ended in the next has a time, in the hour in which it ended."""
    journals = Journals()
    journals.tell(3599, event("published", "q", 1, 2))
    journals.tell(3601, event("confirmed", "q", 1, 2))
    rollup.take_in(journals.events(spark), str(tmp_path), "b0", rollup.LOOKBACK_S)
    first, second = spark.read.parquet(str(tmp_path)).orderBy("minute").collect()
    assert (first.published, first.confirmed, first.confirm_p50_ms) == (2, 0, None)
    assert (second.published, second.confirmed, second.confirm_p50_ms) == (0, 2, 2000)
    assert (first.hour + 1) % 24 == second.hour


@pytest.mark.spark
def test_a_brokers_journal(spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = Server(tmp_path / "node", "journal.default = full", arguments=("--management-port", "0")).start()
    try:
        channel = server.channel(confirms=True)
        channel.queue_declare("orders", durable=True)
        for number in range(5):
            channel.basic_publish("", "orders", str(number).encode())
        for _ in range(3):
            channel.basic_get("orders", auto_ack=True)
        access = {"servers": f"127.0.0.1:{server.management_port}"}

        def told() -> bool:
            from leveret.data.client import DataClient

            with DataClient(access["servers"]) as client:
                sheets = [
                    sheet for info in client.queues() if "journal" in info.name for sheet in client.read(info.name, 0)
                ]
                return b'"acked"' in b"".join(message.body for sheet in sheets for message in sheet)

        until(told, "the journal tells of what was acknowledged")
        rollup.follow_journals(spark, access, str(tmp_path / "out")).awaitTermination()
    finally:
        server.end()
    rows = spark.read.parquet(str(tmp_path / "out")).groupBy("queue").sum("published", "delivered", "acked").collect()
    assert [tuple(row) for row in rows] == [("orders", 5, 3, 3)]


@pytest.mark.parametrize("words", [["--every", "0"], ["--lookback", "long"]])
def test_arguments_that_make_no_sense(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert pipeline(["rollup", "--out", "/nowhere", *words]) == 64
    assert "is not a number of seconds" in capsys.readouterr().err
