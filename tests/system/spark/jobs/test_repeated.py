"""Jobs that are repeated (`--every`), with a real journal: the second round has what came after the first."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from leveret.data.client import DataClient
from pyspark_leveret.jobs import audit, command, rollup
from pyspark_leveret.jobs.support import common, job_status, signals
from tests.support.members import PERSISTENT
from tests.support.servers import Server, until


@pytest.fixture
def journaled(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "node", "journal.default = full", arguments=("--management-port", "0")).start()
    yield server
    server.end()


def servers(broker: Server) -> str:
    return f"127.0.0.1:{broker.management_port}"


def work(broker: Server, count: int, all_of_them: int) -> None:
    """Publishes and takes so many messages, and waits until the journal tells of all."""
    channel = broker.channel(confirms=True)
    channel.queue_declare("orders", durable=True)
    for number in range(count):
        channel.basic_publish("", "orders", str(number).encode(), PERSISTENT)
        assert channel.basic_get("orders", auto_ack=True)[0] is not None

    def told() -> int:
        with DataClient(servers(broker)) as client:
            journals = [one.name for one in client.queues() if "journal" in one.name]
            sheets = [sheet for name in journals for sheet in client.read(name, 0)]
        events = [event for sheet in sheets for one in sheet for event in json.loads(one.body)["events"]]
        return sum(count for kind, _, _, _, _, count, *_ in events if kind == "acked")

    until(lambda: told() == all_of_them, f"the journal tells of {all_of_them} that were acknowledged")


def asked(job: Any, *words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    job.add_arguments(parser)
    common.add_access(parser, False)
    common.add_session(parser)
    return parser.parse_args(words)


@pytest.mark.spark
def test_an_audit_is_repeated(
    spark: Any, journaled: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = str(tmp_path / "out")
    parsed = asked(audit, "--servers", servers(journaled), "--out", out, "--every", "1h")
    status = job_status.begin(job_status.JobStatus("audit", common.access_of(parsed), None, common.say))
    rounds: list[tuple[int, int]] = []

    def pause(seconds: float) -> None:
        assert 3_000 < seconds <= 3_600
        verdict = spark.read.parquet(f"{out}/verdict").first()
        rounds.append((verdict.confirmed, verdict.lost))
        assert status.value["figures"]["confirmed"] == verdict.confirmed
        if len(rounds) == 2:
            raise signals.Stopped
        work(journaled, 7, 12)

    monkeypatch.setattr(command, "time", SimpleNamespace(time=time.time, sleep=pause))
    work(journaled, 5, 5)
    with pytest.raises(signals.Stopped):
        command._repeat("audit", audit, parsed, spark, status)
    assert rounds == [(5, 0), (12, 0)]
    assert "12" in Path(out, "report.html").read_text()


@pytest.mark.spark
def test_a_rollup_goes_on_with_what_comes_later(spark: Any, journaled: Server, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    work(journaled, 5, 5)
    query = rollup.follow_journals(spark, {"servers": servers(journaled)}, out, 1)

    def counted() -> tuple[int, int]:
        query.processAllAvailable()  # While a round rewrites an hour, nobody can read it.
        row = spark.read.parquet(out).filter("queue = 'orders'").selectExpr("sum(published)", "sum(acked)").first()
        return tuple(row)

    try:
        assert counted() == (5, 5)
        work(journaled, 7, 12)
        assert counted() == (12, 12)
    finally:
        query.stop()
