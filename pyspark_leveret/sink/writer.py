"""`df.write.format("leveret")` and `writeStream`: publishes every row as a message, and waits for its confirm.

Columns have the names of the source's. `body` is required; `exchange` and `routing_key` may be columns or options, and
an option holds for all rows. The other columns are properties. Columns that a message has only in a queue (`queue`,
`offset`, `enqueued`, `redelivered`, `node`) are left out, so that rows of the source can be written as they are.

**Exactly once.** Spark runs a task again when its executor dies, and a batch again when the driver does. The rows of a
task are numbered in their order, and published under a name for that task; the broker takes each number once (see
`publisher`). For a streaming query

    name = id of the query / partition        number = batch << 32 | row

The id is in the checkpoint, so it is the same after a restart. A batch job has a new name each time: a repeated attempt
of a task is recognized, a job that is started again is not. Unless it says who it is, with the options `producer` and
`producerBatch`, which take the places of query and batch: so a job that is run again, and `foreachBatch`, whose
function writes as a batch job, publish each row once, too.

This requires that the rows of a partition come in the same order whenever the batch runs. It holds for queries that
read, map and filter. After a shuffle (groupBy, join, repartition) the order may differ from run to run; the option
`sortRows` sorts the rows of each partition before they are numbered, and holds them in memory for that.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from pyspark_leveret.connect import LeveretError
from pyspark_leveret.options import SinkOptions
from pyspark_leveret.sink.encoding import Encoder, Row, check_columns
from pyspark_leveret.sink.publisher import Publisher
from pyspark_leveret.spark_versions import WRITES_ARROW, DataSourceStreamArrowWriter, as_batches

if TYPE_CHECKING:
    import pyarrow as pa

ROW_BITS: Final = 32
CHUNK_BYTES: Final = 256 << 10
BATCH_ID: Final = "streaming.sql.batchId"
QUERY_ID: Final = "sql.streaming.queryId"


@dataclass
class Published(WriterCommitMessage):
    """The result of a task."""

    rows: int


class LeveretWriter(DataSourceArrowWriter):
    """The batch writer that Spark calls."""

    def __init__(self, options: SinkOptions, fields: Sequence[Any], overwrite: bool) -> None:
        if overwrite:
            raise LeveretError("queues cannot be overwritten: write with .mode('append')")
        check_columns(fields, options)
        self.options = options
        self.job = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        task, options = _task(), self.options
        producer = f"spark/{options.producer or self.job}/{task.partitionId()}"
        base = options.producer_batch << ROW_BITS
        return publish(options, iterator, producer, base, was_here=task.attemptNumber() > 0)

    def commit(self, messages: list[Any]) -> None:
        """Does nothing: `write` has waited for all confirms."""

    def abort(self, messages: list[Any]) -> None:
        """Does nothing: published messages stay, since they may have been consumed."""


class LeveretStreamWriter(DataSourceStreamArrowWriter):
    """The stream writer that Spark calls."""

    def __init__(self, options: SinkOptions, fields: Sequence[Any], overwrite: bool) -> None:
        self.fields = fields
        check_columns(fields, options)  # With `overwrite` (mode complete) Spark passes all rows every time.
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        task = _task()
        query, batch = task.getLocalProperty(QUERY_ID), task.getLocalProperty(BATCH_ID)
        if query is None or batch is None:
            raise LeveretError("Spark does not tell the query and the batch that this task belongs to")
        if not WRITES_ARROW:
            iterator = as_batches(iterator, self.fields)
        producer, base = f"spark/{query}/{task.partitionId()}", int(batch) << ROW_BITS
        return publish(self.options, iterator, producer, base, was_here=task.attemptNumber() > 0 or base > 0)

    def commit(self, messages: list[Any], batchId: int) -> None:
        """Does nothing: `write` has waited for all confirms."""

    def abort(self, messages: list[Any], batchId: int) -> None:
        """Does nothing: published messages stay, and are recognized when the batch runs again."""


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise LeveretError("this is no task of Spark's")
    return task


def publish(
    options: SinkOptions, batches: Iterator[pa.RecordBatch], producer: str, base: int, was_here: bool = False
) -> Published:
    """Publishes all rows of a task and waits for their confirms. Raises LeveretError."""
    publisher = Publisher(options.access, producer, base, was_here)
    try:
        encoder = Encoder(options, publisher.frame_max)
        rows: Iterable[Row] = chain.from_iterable(map(encoder.rows, batches))
        if options.sort_rows:
            rows = sorted(rows)
        count = 0
        for frames, more in encoder.chunks(rows, CHUNK_BYTES):
            count += more
            if count >= 1 << ROW_BITS:
                raise LeveretError("a partition has more than 4,294,967,295 rows: repartition it")
            publisher.send(frames, more)
        publisher.finish()
        return Published(count)
    finally:
        publisher.close()
