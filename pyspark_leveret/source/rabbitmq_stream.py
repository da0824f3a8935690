"""Streams queues of RabbitMQ, or of any AMQP 0-9-1 broker, into Spark: each message at least once.

Such a broker has neither leases nor range reads: a message that is consumed and not acknowledged belongs to the
channel, and goes back to the queue when the channel ends. So the driver consumes, and passes messages to the tasks
inside the partitions; it acknowledges them when Spark says that their batch is done (`commit`).

- Messages get places in the order of their delivery. An offset is `{"session": "…", "next": 1200, "tail": 0}`: all
  messages below place 1200 of that session, which is one connection.
- A batch that Spark runs again in the same process gets the same messages: they are kept until they are acknowledged.
- A batch of another session, from before a restart or a lost connection, is empty. Its messages were never
  acknowledged, so the broker delivers them again, into another batch. If the sink had written them already, they are
  there twice.

One connection consumes all queues. Its prefetch count and its limit of bytes are those of two batches
(`maxOffsetsPerTrigger`, `maxBytesPerTrigger`): one is processed while the next gathers. The last batch is acknowledged
as in `stream`, by an empty batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from leveret.data.sheet import REDELIVERED, Part, decode, encode
from pyspark_leveret.connect import LeveretError, Lost
from pyspark_leveret.options import SourceOptions
from pyspark_leveret.schema import Column
from pyspark_leveret.source.amqp_consumer import AmqpConsumer, Delivery
from pyspark_leveret.source.arrow import Converter
from pyspark_leveret.source.reading import log
from pyspark_leveret.spark_versions import ReadLimit, SupportsTriggerAvailableNow

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS: Final = 10_000
BATCH_BYTES: Final = 64 << 20
ROWS_MAX: Final = 65_535  # The largest prefetch count.
POLL_S: Final = 0.5
LAST_S: Final = 5.0  # With availableNow: longest wait for messages, which other consumers may have got.
_STRETCH: Final = Struct("<IH")
_SIZE: Final = Struct("<I")

Offset = dict[str, Any]


class Handful(InputPartition):
    """The messages of one queue that one task reads, as a sheet."""

    def __init__(self, queue: str, sheet: bytes) -> None:
        super().__init__(None)
        self.queue = queue
        self.sheet = sheet

    def __repr__(self) -> str:
        return f"Handful({self.queue!r}, {len(self.sheet)} bytes)"


class RabbitMQStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader that Spark calls. Its consumer lives in the driver."""

    def __init__(self, options: SourceOptions, columns: Sequence[Column]) -> None:
        rows = options.max_offsets or BATCH_ROWS
        if rows > ROWS_MAX:
            raise LeveretError(f"option 'maxOffsetsPerTrigger' is at most {ROWS_MAX} for a plain RabbitMQ")
        self.options = options
        self.columns = columns
        self.rows_max = rows
        self.bytes_max = options.max_bytes or BATCH_BYTES
        self._consumer: AmqpConsumer | None = None
        self._target: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_consumer": None}

    def initialOffset(self) -> Offset:
        return {"session": "", "next": 0, "tail": 0}

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._connected().waiting

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        try:
            return self._look(start)
        except (OSError, Lost) as error:
            log.warning("connection lost, messages that were not acknowledged come again: %s", error)
            self.stop()
            return self._look(start)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        consumer = self._consumer
        if consumer is None or end["session"] != consumer.session:
            return []  # The session has ended: the broker delivers these messages again.
        first = start["next"] if start["session"] == consumer.session else 0
        taken = [one for one in consumer.kept if first <= one.place < end["next"]]
        pieces: list[InputPartition] = []
        for queue in self.options.queues:
            own = [one for one in taken if one.queue == queue]
            size = max(-(-len(own) // -(-self.options.min_partitions // len(self.options.queues))), 1)
            pieces += [Handful(queue, sheet_of(own[at : at + size])) for at in range(0, len(own), size)]
        return pieces

    def commit(self, end: Offset) -> None:
        if self._consumer is not None and end["session"] == self._consumer.session:
            try:
                self._consumer.acknowledge(end["next"])
            except OSError as error:  # latestOffset meets the same error and connects again.
                log.warning("could not acknowledge, messages will come again: %s", error)

    def stop(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Handful)
        return Converter(self.columns, partition.queue).batches(decode(partition.sheet))

    def _look(self, start: Offset) -> Offset:
        consumer = self._connected()
        goes_on = start["session"] == consumer.session
        first = start["next"] if goes_on else 0
        consumer.pump(0.0)
        if consumer.next == first and goes_on and consumer.acked < first:
            return {**start, "tail": start["tail"] + 1}
        if consumer.next == first and (self._target is None or first < self._target):
            consumer.pump(POLL_S if self._target is None else LAST_S)
        end = consumer.next if self._target is None else min(consumer.next, self._target)
        after = self._limited(consumer, first, end)
        return {"session": consumer.session, "next": after, "tail": start["tail"]} if after > first else start

    def _limited(self, consumer: AmqpConsumer, first: int, after: int) -> int:
        held = 0
        for one in consumer.kept:
            if first <= one.place < after:
                held += len(one.content)
                if one.place - first >= self.rows_max or (held > self.bytes_max and one.place > first):
                    return one.place
        return after

    def _connected(self) -> AmqpConsumer:
        if self._consumer is None:
            prefetch = min(2 * self.rows_max, ROWS_MAX)  # One batch is processed while the next gathers.
            self._consumer = AmqpConsumer(self.options, prefetch, 2 * self.bytes_max)
        return self._consumer


def sheet_of(messages: Sequence[Delivery]) -> bytes:
    """Returns messages in the form in which a Leveret node sends them, without the times of their arrival."""
    part = Part(
        ranges=[(one.place, one.place) for one in messages],
        times=[],
        sizes=b"".join([_SIZE.pack(len(one.content)) for one in messages]),
        kinds=bytes([REDELIVERED if one.redelivered else 0 for one in messages]),
        keys=b"".join([_STRETCH.pack(1, len(one.key)) + one.key for one in messages]),
        body=[one.content for one in messages],
    )
    return b"".join(encode([part], messages[-1].place + 1))
