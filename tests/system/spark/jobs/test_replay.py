"""A lake is published again: what was asked for, in order, once, and not too fast."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from leveret.cli.pipeline import pipeline
from pyspark_leveret.jobs import lake, replay
from pyspark_leveret.jobs.replay import BadRequest, Request
from pyspark_leveret.jobs.support.rate_limit import BURST_S, Pace
from pyspark_leveret.schema import COLUMNS, ddl
from tests.support.servers import Server

BEGIN = datetime(2026, 11, 1, tzinfo=UTC)


def drained(channel: Any, queue: str) -> list[tuple[int, Any]]:
    found: list[tuple[int, Any]] = []
    while True:
        method, properties, body = channel.basic_get(queue, auto_ack=True)
        if method is None:
            return found
        found.append((int(body), properties))


@pytest.fixture
def filled(spark: Any, tmp_path: Path, name: str) -> str:
    """A lake with 90 messages, one a second, every third of another queue; in files that are not in their order."""
    rows = []
    for number in range(90):
        row: dict[str, Any] = {**dict.fromkeys(COLUMNS), "redelivered": False}
        row |= {"queue": f"{name}-b" if number % 3 == 0 else f"{name}-a", "offset": number, "exchange": ""}
        row |= {"routing_key": row["queue"], "body": str(number).encode(), "delivery_mode": 2, "user_id": "somebody"}
        row |= {"headers": {"tenant": str(number % 2), "x-death": "[]"}, "enqueued": BEGIN + timedelta(seconds=number)}
        rows.append(row)
    path = str(tmp_path / "lake")
    for batch, part in enumerate((rows[60:], rows[:60])):
        lake.write_batch(spark.createDataFrame(part, ddl()), path, "ab" * 16, batch)
    return path


@pytest.mark.spark
def test_it_goes_on_where_it_was(
    spark: Any, data_broker: Server, data_channel: Any, name: str, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for queue in ("a", "b"):
        data_channel.queue_declare(f"{name}-{queue}", durable=True)
    target = {"servers": f"127.0.0.1:{data_broker.port}"}
    until = (BEGIN + timedelta(seconds=80)).isoformat()
    request = Request(filled, since=(BEGIN + timedelta(seconds=10)).isoformat(), until=until)
    publish_part, calls = replay._publish_part, [0]

    def dies_once(*given: Any) -> int:
        """The second part is published, and nobody notes that."""
        count = publish_part(*given)
        calls[0] += 1
        if calls[0] == 2:
            raise ConnectionAbortedError
        return count

    monkeypatch.setattr(replay, "_publish_part", dies_once)
    told: list[str] = []
    with pytest.raises(ConnectionAbortedError):
        replay.replay(spark, target, request, part_rows=25, tell=told.append)
    with pytest.raises(BadRequest, match="is the checkpoint of another replay"):
        replay.replay(spark, target, Request(filled), f"{filled}/_replay/{request.digest}")
    assert replay.replay(spark, target, request, part_rows=25, tell=told.append) < 70
    found = {queue: drained(data_channel, f"{name}-{queue}") for queue in ("a", "b")}
    assert [body for body, _ in found["a"]] == [number for number in range(10, 80) if number % 3]
    assert [body for body, _ in found["b"]] == [number for number in range(10, 80) if number % 3 == 0]
    assert all(about.headers == {"tenant": str(body % 2)} and about.user_id is None for body, about in found["a"])
    assert told[0].startswith("70 messages; ")
    assert any(text.startswith("going on: 1 of ") for text in told)
    assert replay.replay(spark, target, request, tell=told.append) == 0  # It is done.
    assert "--again" in told[-1]


@pytest.mark.spark
def test_another_target_and_a_filter(
    spark: Any, data_broker: Server, data_channel: Any, name: str, filled: str
) -> None:
    data_channel.queue_declare(name, durable=True)
    data_channel.exchange_declare(name, "direct")
    data_channel.queue_bind(name, name, "again")
    request = Request(
        filled, where="headers['tenant'] = '1'", exchange=name, routing_key="again", queues=(f"{name}-b",)
    )
    target = {"servers": f"127.0.0.1:{data_broker.port}"}
    assert replay.counted(spark, request) == (
        15,
        BEGIN.replace(tzinfo=None) + timedelta(seconds=3),
        BEGIN.replace(tzinfo=None) + timedelta(seconds=87),
    )
    assert replay.replay(spark, target, request, rate=1000.0) == 15
    assert [body for body, _ in drained(data_channel, name)] == list(range(3, 90, 6))


@pytest.mark.spark
def test_nothing_to_replay_leaves_nothing_behind(
    spark: Any, data_broker: Server, data_channel: Any, name: str, filled: str, tmp_path: Path
) -> None:
    target, told = {"servers": f"127.0.0.1:{data_broker.port}"}, list[str]()
    with pytest.raises(lake.BadLake, match="there is no lake"):
        replay.replay(spark, target, Request(str(tmp_path / "nowhere")), tell=told.append)
    assert not (tmp_path / "nowhere").exists()
    early = Request(filled, queues=(f"{name}-late",))
    assert replay.replay(spark, target, early, tell=told.append) == 0
    assert told == [f"nothing in {filled} is what was asked for"]
    # What comes into the lake later is replayed by the same command.
    data_channel.queue_declare(f"{name}-late", durable=True)
    row = {**dict.fromkeys(COLUMNS), "redelivered": False, "queue": f"{name}-late", "offset": 1, "exchange": ""}
    row |= {"routing_key": f"{name}-late", "body": b"7", "enqueued": BEGIN}
    lake.write_batch(spark.createDataFrame([row], ddl()), filled, "cd" * 16, 0)
    assert replay.replay(spark, target, early, tell=told.append) == 1
    assert [body for body, _ in drained(data_channel, f"{name}-late")] == [7]


# -- Pace ------------------------------------------------------------------------------------------------------------


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def clock(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


@pytest.mark.parametrize("rate", [0.5, 7.0, 900.0, 50_000.0])
def test_a_rate_is_kept(rate: float) -> None:
    time = Time()
    pace = Pace(rate, 0.0, time.clock, time.wait)
    wanted = max(int(rate * 10), 5)
    sent = 0
    while sent < wanted:
        count = pace.take(wanted - sent)
        assert 1 <= count <= max(rate * 0.02 + 1, 1)
        sent += count
        time.now += 0.001 if rate < 900 else 0.0  # Publishing takes some time, too.
    assert sent == wanted
    assert (sent - 1) / rate <= time.now - 100 + 1e-6
    assert time.now - 100 <= sent / rate + 0.03


def test_who_was_held_up_catches_up_a_little() -> None:
    time = Time()
    pace = Pace(100.0, 0.0, time.clock, time.wait)
    assert pace.take(1000) == 2
    time.now += 3600
    assert pace.take(1000) == 100 * BURST_S + 1
    assert pace.take(1000) == 2
    assert Pace(100.0, 0.5, time.clock, time.wait).take(1000) == 51
    assert Pace(100.0, 500.0, time.clock, time.wait).take(1000) == 101


def test_rows_are_cut_by_pace() -> None:
    time = Time()
    batch = pa.RecordBatch.from_pydict({"n": list(range(10))})
    pieces = list(replay.paced([batch], Pace(100.0, 0.0, time.clock, time.wait)))
    assert [piece.num_rows for piece in pieces] == [2] * 5
    assert [n for piece in pieces for n in piece.column("n").to_pylist()] == list(range(10))
    assert list(replay.paced([batch], None)) == [batch]


# -- The command -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--since", "yesterday"], "'yesterday' is not a time like 2026-11-01T12:00"),
        (["--rate", "0"], "'0' is not a number of messages a second"),
        (["--parallel", "0"], "invalid choice: 0"),
    ],
)
def test_arguments_that_make_no_sense(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert pipeline(["replay", "--from", "/nowhere", *words]) == 64
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("request_", "rate", "text"),
    [
        (Request("/nowhere", parallel=2), 5.0, "a rate is kept by one publisher"),
        (Request("/nowhere", own_queue=True, routing_key="x"), None, "--own-queue says where messages go"),
    ],
)
def test_requests_that_make_no_sense(request_: Request, rate: float | None, text: str) -> None:
    with pytest.raises(BadRequest, match=text):
        replay.replay(None, {}, request_, rate=rate)  # type: ignore[arg-type]


def test_times_without_a_zone_are_utc() -> None:
    assert replay._time("2026-11-01") == BEGIN
    assert replay._time("2026-11-01T01:00+01:00") == BEGIN


def test_another_request_has_another_checkpoint() -> None:
    assert Request("/l").digest == Request("/l").digest
    assert Request("/l").digest != Request("/l", where="1").digest
