"""Streams and journals for Spark 4.0 and 4.1.

These versions ask for the newest offset without telling where the query is. That suffices to read all there is: the end
of a batch is the end of each queue, and `partitions` is told the start. It does not for a lease, which gives places to
messages when a batch is planned, nor for a limit, which counts from the start. Both are refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.datasource import InputPartition

from pyspark_leveret.connect import LeveretError, client
from pyspark_leveret.options import SourceOptions
from pyspark_leveret.schema import Column
from pyspark_leveret.source.planning import lose
from pyspark_leveret.source.stream import LeveretStreamReader, Offset


class EarlierStreamReader(LeveretStreamReader):
    """The stream reader of Spark 4.0 and 4.1."""

    def __init__(self, options: SourceOptions, columns: Sequence[Column]) -> None:
        limits = {"lease": options.lease, "maxOffsetsPerTrigger": options.max_offsets}
        limits |= {"maxBytesPerTrigger": options.max_bytes, "reportAs": options.report_as}
        for name, value in limits.items():
            if value is not None:
                raise LeveretError(f"option '{name}' needs Spark 4.2 or newer, which tells a source where its query is")
        super().__init__(options, columns)
        self._ends: Offset | None = None

    def latestOffset(self) -> Offset:  # type: ignore[override]
        end = self._newest()
        if end == self._ends:
            self._wait()
            end = self._newest()
        self._ends = end
        return end

    def _newest(self) -> Offset:
        queues = self._queues(client(self.options.access))
        self._nexts = {info.name: info.next for info in queues.values()}
        return self._offset(
            {info.name: {"id": info.id, "from": info.first, "next": info.next} for info in queues.values()}, 0
        )

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Reads each queue from where the start says; one that is new to the query from its first message then."""
        ends = {}
        for name in start["queues"]:
            if name not in end["queues"]:
                lose(self.options, f"queue '{name}' was deleted")
        for name, about in end["queues"].items():
            before = start["queues"].get(name)
            if before is not None and before["id"] != about["id"]:
                lose(self.options, f"queue '{name}' was deleted and declared anew")
                before = None
            ends[name] = about if before is None else {**about, "from": before["next"]}
        return super().partitions(start, {**end, "queues": ends})
