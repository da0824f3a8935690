"""A queue of a broker that knows nothing but AMQP 0-9-1, as a streaming source: at least once."""

from __future__ import annotations

from typing import Any

import pika
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pyspark_leveret.connect import LeveretError
from pyspark_leveret.options import BadOption, Options
from pyspark_leveret.schema import COLUMNS, Column
from pyspark_leveret.source import rabbitmq_stream
from pyspark_leveret.source.rabbitmq_stream import RabbitMQStreamReader
from tests.support import servers
from tests.support.servers import Server

Offset = dict[str, Any]


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rabbitmq_stream, "POLL_S", 0.05)
    monkeypatch.setattr(rabbitmq_stream, "LAST_S", 0.2)


def new_reader(broker: Server, queue: str, **more: str) -> RabbitMQStreamReader:
    given = {"servers": f"amqp://127.0.0.1:{broker.port}", "subscribe": queue, **more}
    return RabbitMQStreamReader(Options(given).source(streaming=True), [Column(name) for name in COLUMNS])


def publish(channel: Any, queue: str, first: int, count: int) -> None:
    properties = pika.BasicProperties(content_type="text/plain", headers={"n": 1}, delivery_mode=2)
    for number in range(first, first + count):
        channel.basic_publish("", queue, str(number).encode(), properties)


def rows(reader: RabbitMQStreamReader, start: Offset, end: Offset) -> list[dict[str, Any]]:
    return [row for piece in reader.partitions(start, end) for batch in reader.read(piece) for row in batch.to_pylist()]


def bodies(found: list[dict[str, Any]]) -> list[int]:
    return [int(row["body"]) for row in found]


def until(reader: RabbitMQStreamReader, start: Offset, count: int) -> Offset:
    """The end of a batch once so many have come."""
    limit, ends = ReadAllAvailable(), [start]

    def have_come() -> bool:
        ends.append(reader.latestOffset(start, limit))
        return bool(ends[-1]["next"] >= count)

    servers.until(have_come, f"{count} messages have come")
    return ends[-1]


def test_messages_are_acknowledged_when_their_batch_is_done(data_broker: Server, data_channel: Any, name: str) -> None:
    data_channel.queue_declare(name, durable=True)
    publish(data_channel, name, 0, 10)
    reader = new_reader(data_broker, name)
    start = reader.initialOffset()
    end = until(reader, start, 10)
    found = rows(reader, start, end)
    assert bodies(found) == list(range(10))
    assert found[0]["headers"] == [("n", "1")]
    assert (found[0]["content_type"], found[0]["routing_key"], found[0]["redelivered"]) == ("text/plain", name, False)
    assert (found[3]["offset"], found[3]["enqueued"], found[3]["node"]) == (3, None, None)
    assert bodies(rows(reader, start, end)) == list(range(10))  # Again, as long as nothing is acknowledged.
    tail = reader.latestOffset(end, ReadAllAvailable())
    assert tail == {**end, "tail": 1}
    reader.commit(end)
    assert rows(reader, end, tail) == []
    assert reader.latestOffset(tail, ReadAllAvailable()) == tail
    reader.stop()
    connection = data_broker.connect()
    assert connection.channel().basic_get(name)[0] is None
    connection.close()
    data_broker.connections.remove(connection)


def test_what_was_not_acknowledged_comes_again_after_a_restart(
    data_broker: Server, data_channel: Any, name: str
) -> None:
    data_channel.queue_declare(name, durable=True)
    publish(data_channel, name, 0, 6)
    before = new_reader(data_broker, name)
    start = before.initialOffset()
    end = until(before, start, 6)
    before.stop()
    after = new_reader(data_broker, name)
    assert rows(after, start, end) == []  # The batch that was planned is run again,
    again = until(after, end, 6)
    assert again["session"] != end["session"]
    found = rows(after, end, again)  # and its messages are in the next one.
    assert bodies(found) == list(range(6))
    assert {row["redelivered"] for row in found} == {True}
    after.stop()


def test_a_lost_connection_begins_a_new_session(data_broker: Server, data_channel: Any, name: str) -> None:
    data_channel.queue_declare(name, durable=True)
    publish(data_channel, name, 0, 4)
    reader = new_reader(data_broker, name)
    start = reader.initialOffset()
    end = until(reader, start, 4)
    assert reader._consumer is not None
    reader._consumer.connection.socket.shutdown(2)
    again = until(reader, end, 4)
    assert bodies(rows(reader, end, again)) == list(range(4))
    reader.commit(end)  # Of the session that is gone: nothing to acknowledge.
    assert reader._consumer.acked == 0
    reader.commit(again)
    assert reader._consumer.acked == 4
    reader.stop()


def test_limits(data_broker: Server, data_channel: Any, name: str) -> None:
    data_channel.queue_declare(name, durable=True)
    publish(data_channel, name, 0, 25)
    reader = new_reader(data_broker, name, maxOffsetsPerTrigger="10", minPartitions="3")
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    publish(data_channel, name, 25, 5)
    read: list[int] = []
    batches = []
    while True:
        end = reader.latestOffset(start, ReadAllAvailable())
        if end == start:
            break
        if start["session"]:
            reader.commit(start)
        batches.append(len(reader.partitions(start, end)))
        found = bodies(rows(reader, start, end))
        assert len(found) <= 10
        read += found
        start = end
    assert read == list(range(25))
    assert max(batches) == 3
    reader.stop()


def test_several_queues_and_large_messages(data_broker: Server, data_channel: Any, name: str) -> None:
    for queue in (f"{name}-1", f"{name}-2"):
        data_channel.queue_declare(queue, durable=True)
    large = bytes(400_000)
    data_channel.basic_publish("", f"{name}-1", large)
    data_channel.basic_publish("", f"{name}-2", b"")
    reader = new_reader(data_broker, f"{name}-1,{name}-2", maxBytesPerTrigger="1k")
    start = reader.initialOffset()
    found = []
    for count in (1, 2):
        end = until(reader, start, count)
        found += rows(reader, start, end)
        reader.commit(end)  # Without it, nothing is read behind the large one.
        start = end
    assert sorted((row["queue"], row["body"]) for row in found) == [(f"{name}-1", large), (f"{name}-2", b"")]
    reader.stop()


def test_refusals(data_broker: Server) -> None:
    with pytest.raises(LeveretError, match="404 NOT_FOUND - no queue 'missing'"):
        new_reader(data_broker, "missing").prepareForTriggerAvailableNow()
    with pytest.raises(LeveretError, match="wrong user or password"):
        new_reader(data_broker, "q", password="wrong").prepareForTriggerAvailableNow()
    with pytest.raises(LeveretError, match="at most 65535"):
        new_reader(data_broker, "q", maxOffsetsPerTrigger="100000")
    with pytest.raises(BadOption, match="means nothing for a source that speaks AMQP"):
        new_reader(data_broker, "q", startingOffsets="earliest")


def test_a_queue_that_is_deleted_ends_the_query(data_broker: Server, data_channel: Any, name: str) -> None:
    data_channel.queue_declare(name, durable=True)
    reader = new_reader(data_broker, name)
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadAllAvailable()) == start
    data_channel.queue_delete(name)
    with pytest.raises(LeveretError, match="was a queue deleted"):
        until(reader, start, 1)
    reader.stop()
