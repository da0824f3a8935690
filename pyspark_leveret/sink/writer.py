"""`df.write.format("leveret")` and `writeStream`: every row becomes a message, and is confirmed.

Columns are named as those of the source. `body` is needed; `exchange` and `routing_key` may be columns or options, and
an option holds for all rows. The other columns are properties. What a message has only in a queue (`queue`, `offset`,
`enqueued`, `redelivered`, `node`) is left out, so that rows of the source can be written as they are.

**Exactly once.** Spark runs a task again when its executor dies, and a batch again when the driver does. The rows of a
task are numbered, in the order in which they come, and published under a name for that task; the broker takes each
number once (see `publisher`). For a streaming query

    name = id of the query / partition        number = batch << 32 | row

The id is in the checkpoint, so it is the same after a restart. For a batch job the name is a new one; an attempt of
a task that is repeated is recognized, a job that is started again is not.

That rests on one thing: the rows of a partition come in the same order whenever the batch is run. It holds for all
that reads, maps and filters. Behind a shuffle (groupBy, join, repartition) the order may differ from run to run; the
option `sortRows` puts the rows of each partition into an order of their own before they are numbered, which holds them
in memory.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from pyspark_leveret.connect import LeveretError
from pyspark_leveret.options import SinkOptions
from pyspark_leveret.sink.encoding import Encoder, Row, check_columns
from pyspark_leveret.sink.publisher import Publisher

if TYPE_CHECKING:
    import pyarrow as pa

ROW_BITS: Final = 32
CHUNK_BYTES: Final = 256 << 10
BATCH_ID: Final = "streaming.sql.batchId"
QUERY_ID: Final = "sql.streaming.queryId"


@dataclass
class Published(WriterCommitMessage):
    """What a task reports."""

    rows: int


class LeveretWriter(DataSourceArrowWriter):
    def __init__(self, options: SinkOptions, fields: Sequence[Any], overwrite: bool) -> None:
        if overwrite:
            raise LeveretError("queues cannot be overwritten: write with .mode('append')")
        check_columns(fields, options)
        self.options = options
        self.job = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        return publish(self.options, iterator, f"spark/{self.job}/{_task().partitionId()}", 0)

    def commit(self, messages: list[Any]) -> None:
        """All is published, and confirmed, by now."""

    def abort(self, messages: list[Any]) -> None:
        """What was published stays: nobody can take a message back that may have been consumed."""


class LeveretStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: SinkOptions, fields: Sequence[Any], overwrite: bool) -> None:
        check_columns(fields, options)  # With `overwrite` (mode complete) Spark gives all rows every time, as it says.
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        task = _task()
        query, batch = task.getLocalProperty(QUERY_ID), task.getLocalProperty(BATCH_ID)
        if query is None or batch is None:
            raise LeveretError("Spark does not tell the query and the batch that this task belongs to")
        return publish(self.options, iterator, f"spark/{query}/{task.partitionId()}", int(batch) << ROW_BITS)

    def commit(self, messages: list[Any], batchId: int) -> None:
        """All is published, and confirmed, by now."""

    def abort(self, messages: list[Any], batchId: int) -> None:
        """What was published stays, and is recognized when the batch is run again."""


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise LeveretError("this is no task of Spark's")
    return task


def publish(options: SinkOptions, batches: Iterator[pa.RecordBatch], producer: str, base: int) -> Published:
    """Raises LeveretError."""
    publisher = Publisher(options.access, producer, base)
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
