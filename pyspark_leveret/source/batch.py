"""`spark.read.format("leveret")`: reads the messages that queues have now, and changes nothing in them.

A batch reads messages that are safe when it is planned. Of a stream it reads all of the range; of any other queue, the
messages that still exist when the task reads them: ready, unacknowledged, or leased.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_leveret.connect import PLANNING_PATIENCE_S, LeveretError, client
from pyspark_leveret.options import SourceOptions
from pyspark_leveret.schema import Column
from pyspark_leveret.source.planning import find_queues, pieces_for, position
from pyspark_leveret.source.reading import Piece, cut, read_piece

if TYPE_CHECKING:
    import pyarrow as pa


class LeveretReader(DataSourceReader):
    """The batch reader that Spark calls."""

    def __init__(self, options: SourceOptions, columns: Sequence[Column]) -> None:
        if options.access.speaks_amqp:
            raise LeveretError(
                "only Leveret's management port gives a queue as a table: name http://host:15672 with option 'servers'"
            )
        self.options = options
        self.columns = columns

    def partitions(self) -> Sequence[InputPartition]:
        options = self.options
        asked = client(options.access, PLANNING_PATIENCE_S)
        pieces: list[InputPartition] = []
        queues = find_queues(options, asked)
        for info in queues.values():
            first = position(options, options.starting, info, asked)
            last = position(options, options.ending, info, asked) - 1
            if last < first:
                continue
            lives = min(info.messages, last - first + 1)
            parts = max(pieces_for(info, lives), -(-options.min_partitions // len(queues)))
            is_whole = info.type == "stream"
            pieces += [Piece(info.name, info.master, ranges, is_whole) for ranges in cut([(first, last)], parts)]
        # Spark makes one task of an empty list, and calls `read` without a piece.
        return pieces or [Piece("", "", (), False)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Piece)
        return read_piece(self.options.access, self.columns, partition, self.options.fail_on_data_loss)
