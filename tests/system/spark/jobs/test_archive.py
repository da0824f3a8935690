"""Queues into a lake, each message once, whoever dies when."""

from __future__ import annotations

import argparse
import shutil
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pika
import pytest
from pyspark.errors import PySparkException

from leveret.cli.pipeline import pipeline
from pyspark_leveret.jobs import archive, lake
from pyspark_leveret.jobs.support.hadoop_files import Entry, Files
from tests.support.servers import Server

STREAM = {"x-queue-type": "stream"}


class Died(Exception):
    pass


def publish(channel: Any, queue: str, first: int, count: int) -> None:
    for number in range(first, first + count):
        channel.basic_publish("", queue, str(number).encode(), pika.BasicProperties(delivery_mode=2))


def options(broker: Server, queue: str, **more: str) -> dict[str, str]:
    return {"servers": f"127.0.0.1:{broker.management_port}", "subscribe": queue, **more}


def run(spark: Any, given: dict[str, str], to: Path) -> None:
    archive.archive(spark, given, str(to), once=True).awaitTermination()


def numbers(spark: Any, to: Path) -> list[int]:
    return sorted(int(row.body) for row in lake.read(spark, str(to)).select("body").collect())


@pytest.mark.spark
def test_queues_are_archived_once(
    spark: Any, data_broker: Server, data_channel: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver dies when the files of its third batch are written, and before Spark notes that."""
    stream, classic = f"{name}/1", "0815"  # A name that cannot be a folder's, and one that looks like a number.
    data_channel.queue_declare(stream, durable=True, arguments=STREAM)
    data_channel.queue_declare(classic, durable=True)
    publish(data_channel, stream, 0, 30)
    publish(data_channel, classic, 100, 15)
    given = options(data_broker, f"{stream},{classic}", lease="lake", maxOffsetsPerTrigger="20")
    write_batch = lake.write_batch

    def write_and_die(rows: Any, path: str, query: str, batch: int) -> None:
        write_batch(rows, path, query, batch)
        if batch == 2:
            raise Died

    monkeypatch.setattr(lake, "write_batch", write_and_die)
    with pytest.raises(PySparkException, match="Died"):
        run(spark, given, tmp_path)
    monkeypatch.undo()
    assert numbers(spark, tmp_path) == [*range(30), *range(100, 115)]
    assert archive.compact(spark, str(tmp_path)) == 2
    publish(data_channel, classic, 115, 5)
    run(spark, given, tmp_path)
    assert numbers(spark, tmp_path) == [*range(30), *range(100, 120)]
    assert data_channel.queue_declare(classic, passive=True).method.message_count == 0
    assert len(list(tmp_path.glob("queue=0815/date=*/batch=compacted-*"))) == 1
    page = Path(archive.write_page(spark, str(tmp_path)))
    assert page == tmp_path / archive.PAGE and "50 messages of 2 queues" in page.read_text()
    queues = lake.read(spark, str(tmp_path)).select("queue").distinct().collect()
    assert {row.queue for row in queues} == {stream, classic}


@pytest.mark.spark
def test_days_and_times_choose_rows(spark: Any, tmp_path: Path) -> None:
    first = datetime(2026, 11, 14, 23, 59, 59, tzinfo=UTC)
    rows = spark.createDataFrame(
        [("q", at, str(at).encode(), first + timedelta(seconds=at), None) for at in range(4)]
        + [("p", 9, b"9", None, first)],
        "queue string, offset bigint, body binary, enqueued timestamp, timestamp timestamp",
    )
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        lake.write_batch(rows, str(tmp_path), "ab" * 16, 0)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert sorted(str(one.relative_to(tmp_path)) for one in tmp_path.glob("queue=*/date=*")) == [
        "queue=p/date=2026-11-14", "queue=q/date=2026-11-14", "queue=q/date=2026-11-15",
    ]  # fmt: skip
    everything = lake.read(spark, str(tmp_path))

    def chosen(**by: Any) -> list[int]:
        return sorted(row.offset for row in lake.select(everything, **by).collect())

    assert chosen(since=first + timedelta(seconds=1), until=first + timedelta(seconds=3)) == [1, 2]
    assert chosen(queues=["p"], until=first + timedelta(seconds=1)) == [9]
    assert chosen(where="offset > 2 and queue = 'q'") == [3]
    for wrong in ("ofset > 2", "offset >", "queue"):
        with pytest.raises(lake.BadLake, match=f"'{wrong}' cannot be understood: ") as refused:
            chosen(where=wrong)
        assert "\n" not in str(refused.value)


# -- Compacting, without Spark ---------------------------------------------------------------------------------------

DAY = "queue=q/date=2026-11-15"
ONE, OTHER = "ab" * 16, "cd" * 16


class Local(Files):
    """Files of this machine, without Spark. Dies before the change after so many."""

    def __init__(self, changes: int = -1) -> None:
        self.left = changes

    def _change(self) -> None:
        if self.left == 0:
            raise Died
        self.left -= 1

    def exists(self, path: str) -> bool:
        return Path(path).exists()

    def entries(self, folder: str) -> list[Entry]:
        found = sorted(Path(folder).iterdir()) if Path(folder).exists() else []
        return [Entry(str(one), one.name, one.is_dir(), one.stat().st_size, 0) for one in found]

    def total_bytes(self, folder: str) -> int:
        return sum(one.stat().st_size for one in Path(folder).rglob("*") if one.is_file())

    def delete(self, path: str) -> None:
        self._change()
        if Path(path).is_dir():
            shutil.rmtree(path)
        else:
            Path(path).unlink(missing_ok=True)

    def rename(self, path: str, to: str) -> None:
        self._change()
        Path(path).rename(to)

    def create(self, path: str, text: str) -> bool:
        self._change()
        if Path(path).exists():
            return False
        Path(path).write_text(text)
        return True

    def read(self, path: str) -> str:
        return Path(path).read_text()


def put(root: Path, folder: str, *rows: int) -> None:
    (root / folder).mkdir(parents=True)
    (root / folder / "part").write_text(" ".join(map(str, rows)))


def visible(root: Path) -> Counter[int]:
    parts = root.glob("queue=*/date=*/batch=*/part")
    return Counter(int(row) for part in parts for row in part.read_text().split())


@pytest.mark.parametrize("changes", range(7))
def test_whoever_dies_while_compacting_is_followed_by_one_that_does_the_rest(tmp_path: Path, changes: int) -> None:
    for batch in range(4):
        put(tmp_path, f"{DAY}/batch={lake.batch_name(ONE, batch)}", batch)
    dying = Local(changes)
    [plan] = lake.plan_compaction(dying, str(tmp_path))
    put(tmp_path, f"{DAY}/.compacting-{plan.id}", 0, 1, 2)
    if changes < 6:  # A note, three folders, a name, and the note again.
        with pytest.raises(Died):
            lake.swap(dying, plan)
    else:
        lake.swap(dying, plan)
    assert max(visible(tmp_path).values()) == 1
    lake.recover(Local(), str(tmp_path))
    assert visible(tmp_path) == Counter(range(4))
    left = {one.name.partition("-")[0] for one in (tmp_path / DAY).iterdir()}
    assert left == ({"batch=abababababab"} if changes == 0 else {"batch=abababababab", "batch=compacted"})


def test_the_last_batch_of_each_query_is_left_alone(tmp_path: Path) -> None:
    other_day = "queue=q/date=2026-11-16"
    for query, batch, day in ((ONE, 0, DAY), (ONE, 1, DAY), (ONE, 2, other_day), (OTHER, 7, DAY), (OTHER, 8, DAY)):
        put(tmp_path, f"{day}/batch={lake.batch_name(query, batch)}", batch)
    put(tmp_path, f"{DAY}/batch=compacted-1", 9)
    put(tmp_path, f"{DAY}/batch=compacted-2", *range(1000))  # Large enough already.
    put(tmp_path, f"{DAY}/batch=somebody-elses", 9)
    [plan] = lake.plan_compaction(Local(), str(tmp_path), file_bytes=1000)
    assert [one.name.removeprefix("batch=") for one in plan.folders] == [
        lake.batch_name(ONE, 0), lake.batch_name(ONE, 1), lake.batch_name(OTHER, 7), "compacted-1",
    ]  # fmt: skip


def test_the_days_of_a_lake(tmp_path: Path) -> None:
    for folder in ("queue=q/date=2026-11-16/batch=1", "queue=p/date=2026-11-02/batch=1", f"{DAY}/batch=2", "_x/date=1"):
        put(tmp_path, folder, 1)
    assert [str(day) for day in lake.dates(Local(), str(tmp_path))] == ["2026-11-02", "2026-11-15", "2026-11-16"]
    assert lake.dates(Local(), str(tmp_path / "none")) == []


def test_two_that_compact_do_not_replace_the_same(tmp_path: Path) -> None:
    for batch in range(3):
        put(tmp_path, f"{DAY}/batch={lake.batch_name(ONE, batch)}", batch)
    [plan] = lake.plan_compaction(Local(), str(tmp_path))
    put(tmp_path, f"{DAY}/.compacting-{plan.id}", 0, 1)
    shutil.rmtree(plan.folders[0].path)
    with pytest.raises(lake.BadLake, match="do two processes compact it"):
        lake.swap(Local(), plan)
    assert visible(tmp_path) == Counter([1, 2])


def test_what_was_not_finished_is_cleared_away(tmp_path: Path) -> None:
    put(tmp_path, f"{DAY}/batch={lake.batch_name(ONE, 0)}", 1)
    put(tmp_path, f"{DAY}/.compacting-0", 1)
    put(tmp_path, ".spark-staging-1", 1)
    (tmp_path / DAY / lake.NOTE).write_text('{"hid')  # It was cut off: nothing was deleted yet.
    lake.recover(Local(), str(tmp_path))
    assert [one.name for one in (tmp_path / DAY).iterdir()] == [f"batch={lake.batch_name(ONE, 0)}"]
    assert [one.name for one in tmp_path.iterdir()] == ["queue=q"]


# -- The command -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["--max-offsets", "0"], ["--every", "soon"], ["--file-size", "x"]])
def test_arguments_that_make_no_sense(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert pipeline(["archive", "--to", "/nowhere", *words]) == 64
    assert "error: argument" in capsys.readouterr().err


def test_it_must_be_told_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    archive.add_arguments(parser)
    assert archive.run(None, parser.parse_args(["--to", "/nowhere"])) == 64  # type: ignore[arg-type]
    assert "--subscribe or --pattern" in capsys.readouterr().err
