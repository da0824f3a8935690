"""A driver that comes to a stop at a chosen step of each of its queries, for others to kill.

    python -m tests.system.spark.stuck plan.json

The plan names queries: what they read, where they write, and at which step of their second batch they stop. The source
`stuck` is Leveret's, and its sink too, but for that: at its step it makes a file (`mark`), and goes no further. These
are the steps, in the order in which Spark comes to them:

    taken      messages are in the lease, and the batch is not in Spark's offset log
    planned    it is in the log, and nothing of it has been read
    reading    one task has written its share, another one is in the middle
    sunk       all is written, and the batch is not in Spark's commit log (the sink's commit)
    logged     it is in the commit log, and its messages are not acknowledged; the next one is planned
    acked      they are
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from pyspark_leveret import LeveretDataSource
from tests.system.spark.sessions import TRIES, is_slow_start

FIRST = 100  # Messages of the first batch, which goes through.


def stop(mark: str) -> None:
    """Until whoever started this process is gone."""
    Path(mark).touch()
    parent, nobody = os.getppid(), threading.Event()
    while os.getppid() == parent:
        nobody.wait(0.2)
    os._exit(1)


def is_second(end: Mapping[str, Any]) -> bool:
    """Whether that is where the second batch begins, or something behind it."""
    return any(about["next"] >= FIRST for about in end["queues"].values())


class Stuck(LeveretDataSource):
    def __init__(self, options: Mapping[str, str]) -> None:
        given = dict(options)
        self.step, self.mark = given.pop("step", ""), given.pop("mark", "")
        super().__init__(given)

    @classmethod
    def name(cls) -> str:
        return "stuck"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return StuckReader(super().streamReader(schema), self.step, self.mark)

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamArrowWriter:
        return StuckWriter(super().streamWriter(schema, overwrite), self.mark)


class StuckReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, inner: Any, step: str, mark: str) -> None:
        self.inner, self.step, self.mark = inner, step, mark

    def initialOffset(self) -> Any:
        return self.inner.initialOffset()

    def getDefaultReadLimit(self) -> ReadLimit:
        return self.inner.getDefaultReadLimit()  # type: ignore[no-any-return]

    def prepareForTriggerAvailableNow(self) -> None:
        self.inner.prepareForTriggerAvailableNow()

    def latestOffset(self, start: Any, limit: ReadLimit) -> Any:
        end = self.inner.latestOffset(start, limit)
        if self.step == "taken" and is_second(start):
            stop(self.mark)
        return end

    def partitions(self, start: Any, end: Any) -> Sequence[InputPartition]:
        if self.step == "planned" and is_second(start):
            stop(self.mark)
        return self.inner.partitions(start, end)  # type: ignore[no-any-return]

    def read(self, partition: Any) -> Iterator[Any]:
        for batch in self.inner.read(partition):
            yield batch.slice(0, 5)
            if self.step == "reading" and partition.ranges[0][0] > FIRST:
                stop(self.mark)
            yield batch.slice(5)

    def commit(self, end: Any) -> None:
        is_there = end["queues"] and any(about["next"] > FIRST for about in end["queues"].values())
        if self.step == "logged" and is_there:
            stop(self.mark)
        self.inner.commit(end)
        if self.step == "acked" and is_there:
            stop(self.mark)


class StuckWriter(DataSourceStreamArrowWriter):
    def __init__(self, inner: Any, mark: str) -> None:
        self.inner, self.mark = inner, mark

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return self.inner.write(iterator)  # type: ignore[no-any-return]

    def commit(self, messages: list[Any], batchId: int) -> None:
        if batchId == 1 and self.mark:
            stop(self.mark)
        self.inner.commit(messages, batchId)


def start(spark: SparkSession, query: Mapping[str, Any], form: str) -> Any:
    """One of a plan's queries, with the given format as its source, and as its sink if that is none of Spark's."""
    stops = {"step": query["step"], "mark": query["mark"]} if form == "stuck" else {}
    at_sink = stops if query["step"] == "sunk" else {}
    given = query["source"] if at_sink else {**query["source"], **stops}
    messages = spark.readStream.format(form).options(**given).load()
    if "path" in query["sink"]:
        writer = messages.writeStream.format("parquet").options(**query["sink"])
    else:
        writer = messages.select("body").writeStream.format(form).options(**query["sink"], **at_sink)
    return writer.option("checkpointLocation", query["checkpoint"]).trigger(availableNow=True).start()


def await_step(begin: Callable[[], Any], mark: Path) -> None:
    """Run a query until it is at its step."""
    for attempt in range(1, TRIES + 1):
        begun = begin()
        try:
            while not mark.exists():
                if begun.awaitTermination(0.1):
                    raise SystemExit(f"ended without coming to its step: {mark}")
            return
        except Exception as error:
            if not is_slow_start(error, attempt):
                raise


def main() -> None:
    plan = json.loads(Path(sys.argv[1]).read_text())
    builder = SparkSession.builder
    for name, value in plan["config"].items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.dataSource.register(Stuck)
    for query in plan["queries"]:  # One after the other: Spark gives up on Python processes that are slow to start.
        await_step(partial(start, spark, query, "stuck"), Path(query["mark"]))
    threading.Event().wait()


if __name__ == "__main__":
    main()
