"""`spark.read.format("leveret")`: reads the messages that queues have now, and changes nothing in them.

A batch reads messages that are safe when it is planned. Of a stream it reads all of the range; of any other queue, the
messages that still exist when the task reads them: ready, unacknowledged, or leased.

Filters (see `filters`) are handed over to a reader that has `pushFilters`. But Spark fails a query whose reader has it
while `spark.sql.python.filterPushdown.enabled` is not set, which is the default. It hands filters over in a process
that runs a module of its own, and reads the setting in another one. So a reader has `pushFilters` in that process only,
and the setting alone decides.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition

from leveret.data.client import QueueInfo
from pyspark_leveret.connect import PLANNING_PATIENCE_S, LeveretError, client, explained
from pyspark_leveret.options import SourceOptions
from pyspark_leveret.schema import Column
from pyspark_leveret.source.filters import Condition, between_times, condition, is_wanted, narrowed, rows_that_meet
from pyspark_leveret.source.planning import find_queues, pieces_for, position, without_down
from pyspark_leveret.source.reading import Piece, count, cut, read_piece

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter

PUSHDOWN_WORKER: Final = "pyspark.sql.worker.data_source_pushdown_filters"


def _check_order(options: SourceOptions, info: QueueInfo, first: int, last: int) -> None:
    """Refuses an end before the start if both are said: by a number and by a time."""
    if last < first - 1 and options.starting.says(info.name) and options.ending.says(info.name):
        raise LeveretError(f"queue '{info.name}' would be read from {first} on, and only up to {last + 1}")


class LeveretReader(DataSourceReader):
    """The batch reader that Spark calls."""

    def __init__(self, options: SourceOptions, columns: Sequence[Column]) -> None:
        if options.access.speaks_amqp:
            raise LeveretError(
                "only Leveret's management port gives a queue as a table: name http://host:15672 with option 'servers'"
            )
        self.options = options
        self.columns = columns
        self.conditions: tuple[Condition, ...] = ()

    def partitions(self) -> Sequence[InputPartition]:
        options = self.options
        asked = client(options.access, PLANNING_PATIENCE_S)
        pieces: list[InputPartition] = []
        queues = without_down(find_queues(options, asked))
        for info in queues.values():
            if not is_wanted(info.name, self.conditions):
                continue
            first = position(options, options.starting, info, asked)
            last = position(options, options.ending, info, asked) - 1
            if last < first:
                _check_order(options, info, first, last)
                continue
            with explained(options.access, f"look for a time in queue '{info.name}'"):
                first, last = between_times(asked, info, first, last, self.conditions)
            ranges = narrowed([(first, last)] if first <= last else [], self.conditions)
            if not ranges:
                continue
            lives = min(info.messages, count(ranges))
            parts = max(pieces_for(info, lives), -(-options.min_partitions // len(queues)))
            is_whole = info.type == "stream"
            pieces += [Piece(info.name, info.master, part, is_whole) for part in cut(ranges, parts)]
        # Spark makes one task of an empty list, and calls `read` without a piece.
        return pieces or [Piece("", "", (), False)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Piece)
        conditions = self.conditions
        meeting = (lambda sheet: rows_that_meet(sheet, conditions)) if conditions else None
        return read_piece(self.options.access, self.columns, partition, self.options.fail_on_data_loss, meeting)


class FilteringReader(LeveretReader):
    """The batch reader that is told the filters of the query."""

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        """Keeps the filters that the source applies, and returns the others."""
        for given in filters:
            found = condition(given)
            if found is None:
                yield given
            else:
                self.conditions += (found,)


def reader_class() -> type[LeveretReader]:
    """Returns the reader that Spark bears in this process."""
    runs = getattr(sys.modules["__main__"], "__spec__", None)
    is_told = PUSHDOWN_WORKER in sys.modules or (runs is not None and runs.name == PUSHDOWN_WORKER)
    return FilteringReader if is_told else LeveretReader
