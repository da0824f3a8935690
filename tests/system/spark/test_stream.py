"""The streaming source, driven as Spark drives it, with a real broker: each message in one batch, whoever dies when."""

from __future__ import annotations

from typing import Any

import pika
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from leveret.data.client import DataClient
from pyspark_leveret.connect import LeveretError
from pyspark_leveret.options import Options
from pyspark_leveret.schema import COLUMNS, Column
from pyspark_leveret.source import stream
from pyspark_leveret.source.batch import LeveretReader
from pyspark_leveret.source.stream import LeveretStreamReader, Offset
from tests.support.servers import Server

COLUMNS_ALL = [Column(name) for name in COLUMNS]
STREAM = {"x-queue-type": "stream"}
PERSISTENT = pika.BasicProperties(delivery_mode=2)


def options(broker: Server, queue: str, **more: str) -> dict[str, str]:
    return {"servers": f"127.0.0.1:{broker.management_port}", "subscribe": queue, **more}


def new_reader(broker: Server, queue: str, **more: str) -> LeveretStreamReader:
    """As in the process of a query that has just been started."""
    return LeveretStreamReader(Options(options(broker, queue, **more)).source(streaming=True), COLUMNS_ALL)


def publish(channel: Any, queue: str, first: int, count: int) -> None:
    for number in range(first, first + count):
        channel.basic_publish("", queue, str(number).encode(), PERSISTENT)


def rows(reader: LeveretStreamReader, start: Offset, end: Offset) -> list[int]:
    return [
        int(body)
        for piece in reader.partitions(start, end)
        for batch in reader.read(piece)
        for body in batch.column("body").to_pylist()
    ]


def waiting(channel: Any, queue: str) -> int:
    found: int = channel.queue_declare(queue, passive=True).method.message_count
    return found


def lease_of(broker: Server, queue: str) -> Any:
    with DataClient(f"127.0.0.1:{broker.management_port}") as client:
        [info] = client.queues([queue])
    return info.leases[0] if info.leases else None


@pytest.fixture(autouse=True)
def _short_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "POLL_S", 0.05)


class Query:
    """What Spark keeps in its checkpoint, and does with a reader."""

    def __init__(self, broker: Server, queue: str, **more: str) -> None:
        self.given = (broker, queue, more)
        self.reader = new_reader(broker, queue, **more)
        self.start = self.reader.initialOffset()
        self.done: Offset | None = None  # The end of the last batch that is in the commit log.
        self.read: list[int] = []

    def restart(self) -> None:
        self.reader.stop()
        broker, queue, more = self.given
        self.reader = new_reader(broker, queue, **more)

    def plan(self) -> Offset:
        """Up to the offset log."""
        return self.reader.latestOffset(self.start, self.reader.getDefaultReadLimit())

    def batch(self) -> bool:
        end = self.plan()
        if end == self.start:
            return False
        self.run(end)
        return True

    def run(self, end: Offset) -> None:
        if self.done is not None:
            self.reader.commit(self.done)
        self.read += rows(self.reader, self.start, end)
        self.start = self.done = end

    def run_all(self) -> None:
        self.reader.prepareForTriggerAvailableNow()
        while self.batch():
            pass


def test_a_stream_from_its_beginning_and_from_its_end(data_broker: Server, data_channel: Any, name: str) -> None:
    data_channel.queue_declare(name, durable=True, arguments=STREAM)
    publish(data_channel, name, 0, 30)
    earliest, latest = Query(data_broker, name, startingOffsets="earliest"), Query(data_broker, name)
    publish(data_channel, name, 30, 5)
    earliest.run_all()
    latest.run_all()
    assert (earliest.read, latest.read) == (list(range(35)), list(range(30, 35)))
    assert not earliest.batch()
    publish(data_channel, name, 35, 1)
    earliest.restart()
    assert earliest.batch()
    assert earliest.read[-1] == 35


def test_limits_bound_a_batch(data_broker: Server, data_channel: Any, name: str) -> None:
    data_channel.queue_declare(name, durable=True, arguments=STREAM)
    publish(data_channel, name, 0, 100)
    query = Query(data_broker, name, startingOffsets="earliest", maxOffsetsPerTrigger="30")
    assert query.reader.getDefaultReadLimit() == ReadMaxRows(30)
    query.batch()
    assert query.read == list(range(30))
    everything = query.reader.latestOffset(query.start, ReadAllAvailable())
    assert everything["queues"][name]["next"] == 100
    by_bytes = new_reader(data_broker, name, maxBytesPerTrigger="1")
    assert by_bytes.getDefaultReadLimit() == ReadMaxBytes(1)
    one = by_bytes.latestOffset(query.start, ReadMaxBytes(1))  # A message larger than the limit does not stop a query.
    assert one["queues"][name] == {**query.start["queues"][name], "from": 30, "next": 31}


def test_a_queue_that_comes_later_is_read_from_its_beginning(data_broker: Server, data_channel: Any, name: str) -> None:
    name = name[-40:]
    base = {"servers": f"127.0.0.1:{data_broker.management_port}", "subscribePattern": f"{name}-.*"}
    reader = LeveretStreamReader(Options(base).source(streaming=True), COLUMNS_ALL)
    start = reader.initialOffset()
    assert start["queues"] == {}
    assert reader.latestOffset(start, ReadAllAvailable()) == start
    data_channel.queue_declare(f"{name}-1", durable=True, arguments=STREAM)
    publish(data_channel, f"{name}-1", 0, 3)
    end = reader.latestOffset(start, ReadAllAvailable())
    assert rows(reader, start, end) == [0, 1, 2]
    data_channel.queue_declare(f"{name}-2", durable=True, arguments=STREAM)
    publish(data_channel, f"{name}-2", 7, 2)
    publish(data_channel, f"{name}-1", 3, 1)
    after = reader.latestOffset(end, ReadAllAvailable())
    assert sorted(rows(reader, end, after)) == [3, 7, 8]
    reader.stop()


def test_min_partitions_cuts_a_batch_as_it_was_planned(data_broker: Server, data_channel: Any, name: str) -> None:
    data_channel.queue_declare(name, durable=True, arguments=STREAM)
    publish(data_channel, name, 0, 10)
    query = Query(data_broker, name, startingOffsets="earliest", minPartitions="4")
    end = query.plan()
    pieces = [piece.ranges for piece in query.reader.partitions(query.start, end)]  # type: ignore[attr-defined]
    assert pieces == [((0, 1),), ((2, 4),), ((5, 6),), ((7, 9),)]
    other = new_reader(data_broker, name, minPartitions="1")  # Restarted with another option.
    assert [piece.ranges for piece in other.partitions(query.start, end)] == pieces  # type: ignore[attr-defined]


def test_the_broker_is_told_how_far_a_query_is(data_broker: Server, data_channel: Any, name: str) -> None:
    data_channel.queue_declare(name, durable=True, arguments=STREAM)
    publish(data_channel, name, 0, 25)
    told = {"maxOffsetsPerTrigger": "10", "reportAs": f"clicks {name[-20:]}"}
    query = Query(data_broker, name, startingOffsets="earliest", **told)
    query.batch()
    assert query.reader.reportLatestOffset() == {"queues": {name: {"next": 25, "lag": 15}}, "lag": 15}
    with DataClient(f"127.0.0.1:{data_broker.management_port}") as client:
        [job] = [one for one in client._ask("", "GET", "/api/leveret/jobs") if one["name"] == told["reportAs"]]
    assert (job["state"], job["summary"]) == ("running", "a streaming query of Spark, 15 messages behind")
    assert job["figures"] == {"behind": 15, "queues": 1, "arriving a second": 0, f"behind in {name}": 15}


# -- Leases ------------------------------------------------------------------------------------------------------------


def test_a_classic_queue_needs_a_lease(data_broker: Server, data_channel: Any, name: str) -> None:
    data_channel.queue_declare(name, durable=True)
    with pytest.raises(LeveretError, match="name a lease for this query"):
        Query(data_broker, name)


def test_a_leased_queue_is_read_once_and_its_tail_acknowledged(
    data_broker: Server, data_channel: Any, name: str
) -> None:
    data_channel.queue_declare(name, durable=True)
    publish(data_channel, name, 0, 25)
    query = Query(data_broker, name, lease="job", maxOffsetsPerTrigger="10")
    query.run_all()
    assert query.read == list(range(25))
    assert query.start["tail"] == 1
    view = lease_of(data_broker, name)
    assert (view.acked, view.next, view.runs) == (25, 25, ())
    publish(data_channel, name, 25, 3)
    query.restart()
    query.run_all()
    assert query.read == list(range(28))
    assert (lease_of(data_broker, name).acked, query.start["tail"]) == (28, 2)


def test_what_comes_while_a_run_is_under_way_is_for_the_next_one(
    data_broker: Server, data_channel: Any, name: str
) -> None:
    data_channel.queue_declare(name, durable=True)
    publish(data_channel, name, 0, 5)
    query = Query(data_broker, name, lease="job", maxOffsetsPerTrigger="2")
    query.reader.prepareForTriggerAvailableNow()
    query.batch()
    publish(data_channel, name, 5, 4)
    while query.batch():
        pass
    assert query.read == list(range(5))


@pytest.mark.parametrize("moment", ["taken", "planned", "committed before", "read", "done"])
def test_a_driver_that_dies(data_broker: Server, data_channel: Any, name: str, moment: str) -> None:
    """After each step of the second batch; another driver goes on with what the checkpoint says."""
    data_channel.queue_declare(name, durable=True)
    publish(data_channel, name, 0, 20)
    query = Query(data_broker, name, lease="job", maxOffsetsPerTrigger="8")
    query.batch()
    end = query.plan()
    if moment != "taken":  # Else the end was not written down, and is asked for again.
        assert query.done is not None
        if moment != "planned":
            query.reader.commit(query.done)
        if moment in ("read", "done"):
            first_try = rows(query.reader, query.start, end)
        if moment == "done":
            query.read += first_try
            query.start = query.done = end
            query.restart()
        else:
            query.restart()
            if moment == "read":
                assert rows(query.reader, query.start, end) == first_try
            query.run(end)
    else:
        query.restart()
    query.run_all()
    assert query.read == list(range(20))
    assert lease_of(data_broker, name).acked == 20
    assert waiting(data_channel, name) == 0


def test_a_lease_that_was_released_is_noticed(data_broker: Server, data_channel: Any, name: str) -> None:
    data_channel.queue_declare(name, durable=True)
    publish(data_channel, name, 0, 10)
    query = Query(data_broker, name, lease="job", maxOffsetsPerTrigger="4")
    query.batch()
    end = query.plan()
    with DataClient(f"127.0.0.1:{data_broker.management_port}") as client:
        client.lease_release(name, "job")
    query.restart()
    pieces = query.reader.partitions(query.start, end)
    with pytest.raises(LeveretError, match="was it released"):
        [list(query.reader.read(piece)) for piece in pieces]
    with pytest.raises(LeveretError, match="settled up to 9, this query had only 4: was it released"):
        query.plan()


def test_a_release_of_what_was_done_and_not_acknowledged_is_noticed(
    data_broker: Server, data_channel: Any, name: str
) -> None:
    """The batch is in the sink, and its messages are in the queue again: to go on would be to have them twice."""
    data_channel.queue_declare(name, durable=True)
    publish(data_channel, name, 0, 4)
    query = Query(data_broker, name, lease="job")
    query.batch()
    with DataClient(f"127.0.0.1:{data_broker.management_port}") as client:
        client.lease_release(name, "job")
    query.restart()
    with pytest.raises(LeveretError, match="settled up to 5, this query had only 4: was it released"):
        query.plan()
    lax = Query(data_broker, name, lease="job", failOnDataLoss="false")
    lax.start, lax.done = query.start, query.done
    lax.run_all()
    assert lax.read == list(range(4))
    assert waiting(data_channel, name) == 0


def test_a_lease_that_held_nothing_may_be_released(data_broker: Server, data_channel: Any, name: str) -> None:
    """As happens to the lease of a query that rests for longer than its time limit."""
    data_channel.queue_declare(name, durable=True)
    publish(data_channel, name, 0, 10)
    query = Query(data_broker, name, lease="job")
    query.run_all()
    with DataClient(f"127.0.0.1:{data_broker.management_port}") as client:
        client.lease_release(name, "job")
    publish(data_channel, name, 10, 3)
    query.restart()
    query.run_all()
    assert query.read == list(range(13))
    view = lease_of(data_broker, name)
    assert view.acked == view.next


def test_a_second_query_with_one_lease_is_refused(data_broker: Server, data_channel: Any, name: str) -> None:
    """Whenever it begins; and what it did before changes nothing for the first."""
    data_channel.queue_declare(name, durable=True)
    publish(data_channel, name, 0, 10)
    one, other = (Query(data_broker, name, lease="job", maxOffsetsPerTrigger="4") for _ in range(2))
    ends = [one.plan(), other.plan()]
    one.run(ends[0])
    with pytest.raises(LeveretError, match=f"lease 'job' of queue '{name}' belongs to another query") as told:
        other.run(ends[1])
    assert f"leveretctl release_lease {name} job" in str(told.value)
    for _ in range(2):
        with pytest.raises(LeveretError, match="belongs to another query"):
            other.plan()
        other.restart()
    with pytest.raises(LeveretError, match="belongs to another query"):
        Query(data_broker, name, lease="job")
    assert lease_of(data_broker, name).owner == one.start["reader"]
    one.restart()
    one.run_all()
    assert one.read == list(range(10)) and other.read == []


def test_a_query_that_wrote_nothing_down_owns_nothing(data_broker: Server, data_channel: Any, name: str) -> None:
    data_channel.queue_declare(name, durable=True)
    publish(data_channel, name, 0, 5)
    Query(data_broker, name, lease="job").plan()  # It has taken messages, and dies before its checkpoint has them.
    again = Query(data_broker, name, lease="job")
    again.run_all()
    assert again.read == list(range(5))


def test_a_query_takes_a_lease_over(data_broker: Server, data_channel: Any, name: str) -> None:
    data_channel.queue_declare(name, durable=True)
    publish(data_channel, name, 0, 10)
    one = Query(data_broker, name, lease="job", maxOffsetsPerTrigger="4")
    one.batch()
    one.batch()
    other = Query(data_broker, name, lease="job", leaseTakeover="true")
    other.run_all()
    assert one.read == list(range(8)) and other.read == list(range(4, 10)), "from where the first had been settled"
    with pytest.raises(LeveretError, match="belongs to another query"):
        one.run(one.start)
    with pytest.raises(LeveretError, match="belongs to another query"):
        one.plan()


def test_a_checkpoint_from_before_leases_had_owners(data_broker: Server, data_channel: Any, name: str) -> None:
    data_channel.queue_declare(name, durable=True)
    publish(data_channel, name, 0, 8)
    query = Query(data_broker, name, lease="job", maxOffsetsPerTrigger="4")
    end = query.plan()
    for offset in (query.start, end):
        del offset["reader"]
    query.run(end)
    assert lease_of(data_broker, name).owner == ""
    query.restart()
    query.run_all()
    assert query.read == list(range(8)) and lease_of(data_broker, name).owner == query.start["reader"]


def test_a_lease_in_many_pieces(
    data_broker: Server, data_channel: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others have consumed every other message: runs of one message each, of which a lease holds only so many."""
    monkeypatch.setattr(stream, "RUNS_MAX", 10)
    data_channel.queue_declare(name, durable=True)
    publish(data_channel, name, 0, 60)
    for _ in range(30):
        method, _, _ = data_channel.basic_get(name)
        data_channel.basic_ack(method.delivery_tag)
        data_channel.basic_get(name)
    data_channel.connection.channel().close()
    data_channel.close()  # What was got and not acknowledged goes back.
    query = Query(data_broker, name, lease="job", maxOffsetsPerTrigger="7")
    query.run_all()
    assert query.read == list(range(1, 60, 2))


def test_a_queue_that_was_deleted_is_noticed(data_broker: Server, data_channel: Any, name: str) -> None:
    data_channel.queue_declare(name, durable=True, arguments=STREAM)
    publish(data_channel, name, 0, 5)
    query = Query(data_broker, name, startingOffsets="earliest")
    lax = Query(data_broker, name, startingOffsets="earliest", failOnDataLoss="false")
    query.batch()
    lax.batch()
    end = query.reader.latestOffset(query.start, ReadAllAvailable())
    assert end == query.start
    data_channel.queue_delete(name)
    data_channel.queue_declare(name, durable=True, arguments=STREAM)
    publish(data_channel, name, 5, 7)
    with pytest.raises(LeveretError, match="deleted and declared anew"):
        query.plan()
    lax.batch()
    assert lax.read == list(range(12))


@pytest.mark.parametrize("lease", [{}, {"lease": "job"}], ids=["stream", "lease"])
def test_a_deleted_queue_does_not_end_a_query_that_bears_losses(
    data_broker: Server, data_channel: Any, name: str, lease: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """Two queues are subscribed by name. One is deleted when its batch is planned, read, and to be acknowledged."""
    one, other = f"{name[-60:]}-1", f"{name[-60:]}-2"
    arguments = {} if lease else STREAM
    for queue in (one, other):
        data_channel.queue_declare(queue, durable=True, arguments=arguments)
    publish(data_channel, one, 0, 5)
    publish(data_channel, other, 100, 5)
    starting = {} if lease else {"startingOffsets": "earliest"}
    strict = Query(data_broker, f"{one},{other}", **starting, **lease)
    query = Query(data_broker, f"{one},{other}", failOnDataLoss="false", **starting, **lease)
    end = query.plan()
    planned = query.reader.partitions(query.start, end)
    data_channel.queue_delete(one)
    read = [int(body) for piece in planned for batch in query.reader.read(piece) for body in batch["body"].to_pylist()]
    assert read == list(range(100, 105)), "tasks that were planned before"
    query.run(end)
    assert query.read == list(range(100, 105)), "a batch that is planned again"
    query.restart()
    publish(data_channel, other, 105, 2)
    query.run_all()
    assert query.read == list(range(100, 107))
    query.restart()
    for _ in range(3):
        query.batch()
    told = [record.getMessage() for record in caplog.records if f"queue '{one}' was deleted" in record.getMessage()]
    assert 0 < len(told) < 8, "not at each look"
    data_channel.queue_declare(one, durable=True, arguments=arguments)
    publish(data_channel, one, 200, 2)
    query.run_all()
    assert sorted(query.read) == [*range(100, 107), 200, 201], "the queue is declared again"
    data_channel.queue_delete(one)
    with pytest.raises(LeveretError, match=f"not found in vhost '/' .*'{one}'"):
        strict.plan()
    with pytest.raises(LeveretError, match=f"not found in vhost '/' .*'{one}'"):
        Query(data_broker, f"{one},{other}", failOnDataLoss="false", **lease)  # A new one: the name may be wrong.


# -- Batches -----------------------------------------------------------------------------------------------------------


def batch_rows(broker: Server, queue: str, **more: str) -> list[int]:
    reader = LeveretReader(Options(options(broker, queue, **more)).source(streaming=False), COLUMNS_ALL)
    return [
        int(body)
        for piece in reader.partitions()
        for batch in reader.read(piece)
        for body in batch.column("body").to_pylist()
    ]


@pytest.mark.parametrize("arguments", [STREAM, {}], ids=["stream", "classic"])
def test_a_batch_reads_a_range_and_takes_nothing(
    data_broker: Server, data_channel: Any, name: str, arguments: Any
) -> None:
    data_channel.queue_declare(name, durable=True, arguments=arguments)
    assert batch_rows(data_broker, name) == []
    publish(data_channel, name, 0, 20)
    first = 0 if arguments else 1
    assert batch_rows(data_broker, name) == list(range(20))
    assert batch_rows(data_broker, name, minPartitions="3") == list(range(20))
    some = {"startingOffsets": f'{{"{name}": {first + 5}}}', "endingOffsets": f'{{"{name}": {first + 8}}}'}
    assert batch_rows(data_broker, name, **some) == [5, 6, 7]
    times = {"startingOffsetsByTimestamp": f'{{"{name}": 4000000000000}}'}
    assert batch_rows(data_broker, name, **times) == []
    assert waiting(data_channel, name) == 20


def test_a_batch_whose_time_to_begin_is_behind_its_end(data_broker: Server, data_channel: Any, name: str) -> None:
    data_channel.queue_declare(name, durable=True, arguments=STREAM)
    publish(data_channel, name, 0, 20)
    some = {"startingOffsetsByTimestamp": f'{{"{name}": 4000000000000}}', "endingOffsets": f'{{"{name}": 5}}'}
    with pytest.raises(LeveretError, match=f"queue '{name}' would be read from 20 on, and only up to 5"):
        batch_rows(data_broker, name, **some)


def test_a_batch_sees_what_is_leased_and_not_what_was_consumed(
    data_broker: Server, data_channel: Any, name: str
) -> None:
    data_channel.queue_declare(name, durable=True)
    publish(data_channel, name, 0, 10)
    method, _, _ = data_channel.basic_get(name)
    data_channel.basic_ack(method.delivery_tag)
    Query(data_broker, name, lease="job", maxOffsetsPerTrigger="5").batch()
    assert batch_rows(data_broker, name) == list(range(1, 10))


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"subscribe": "no-such-queue"}, "cannot subscribe to queue 'no-such-queue': not found in vhost '/'"),
        ({"password": "wrong"}, "user 'guest' is unknown, or the password is wrong"),
        ({"vhost": "nowhere"}, "not found in vhost 'nowhere'"),
        ({"servers": "amqp://127.0.0.1:1"}, "only Leveret's management port gives a queue as a table"),
    ],
)
def test_errors_are_one_clear_line(data_broker: Server, more: dict[str, str], text: str) -> None:
    with pytest.raises(LeveretError) as caught:
        batch_rows(data_broker, "orders", **more)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_nobody_there(data_broker: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_leveret.source.batch.PLANNING_PATIENCE_S", 0.05)
    with pytest.raises(LeveretError, match=r"no node answers at 127\.0\.0\.1:1 .*Connection refused"):
        batch_rows(data_broker, "orders", servers="127.0.0.1:1")
