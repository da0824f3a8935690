"""The sink without Spark: rows as frames, and a publisher that numbers, confirms, and sends again."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types

from pyspark_leveret import LeveretDataSource
from pyspark_leveret.connect import LeveretError
from pyspark_leveret.options import Options, SinkOptions
from pyspark_leveret.sink import publisher as publishing
from pyspark_leveret.sink.encoding import Encoder, check_columns
from pyspark_leveret.sink.publisher import Confirmed, Publisher
from pyspark_leveret.sink.writer import publish
from tests.support.servers import Server, until

CHUNK = 1 << 16
SELECT_OK = bytes((0, 85, 0, 11))


def sink(broker: Server | int = 1, /, **more: str) -> SinkOptions:
    port = broker if isinstance(broker, int) else broker.port
    return Options({"servers": f"127.0.0.1:{port}", **more}).sink()


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def numbered(first: int, count: int) -> pa.RecordBatch:
    return batch(body=[str(number).encode() for number in range(first, first + count)])


def drained(channel: Any, queue: str) -> list[tuple[bytes, Any, str]]:
    found: list[tuple[bytes, Any, str]] = []
    while True:
        method, properties, body = channel.basic_get(queue, auto_ack=True)
        if method is None:
            return found
        found.append((body, properties, method.routing_key))


# -- Rows --------------------------------------------------------------------------------------------------------------


def test_every_column_becomes_a_property(data_broker: Server, data_channel: Any, name: str) -> None:
    data_channel.queue_declare(name, durable=True)
    rows = batch(
        body=[b"one", b""],
        routing_key=[name, name],
        content_type=["text/plain", None],
        headers=pa.array([[("a", "b"), ("c", None)], None], pa.map_(pa.string(), pa.string())),
        delivery_mode=pa.array([1, None], pa.int32()),
        priority=pa.array([7, None], pa.int32()),
        correlation_id=["c", None],
        reply_to=["r", None],
        expiration=["600000", None],
        message_id=["m", None],
        timestamp=pa.array([datetime(2026, 1, 2, 3, 4, 5, 999, UTC), None], pa.timestamp("us", "UTC")),
        type=["t", None],
        app_id=["app", None],
        queue=["elsewhere", "elsewhere"],
        offset=pa.array([5, 6]),
    )
    assert publish(sink(data_broker), iter([rows]), name, 0).rows == 2
    (body, given, _), (empty, bare, _) = drained(data_channel, name)
    assert (body, empty) == (b"one", b"")
    assert given.headers == {"a": "b", "c": None}
    assert (given.content_type, given.delivery_mode, given.priority, given.correlation_id) == ("text/plain", 1, 7, "c")
    assert (given.reply_to, given.expiration, given.message_id, given.type) == ("r", "600000", "m", "t")
    assert (given.timestamp, given.app_id) == (1767323045, "app")
    assert (bare.delivery_mode, bare.headers, bare.content_type) == (2, None, None)


def test_options_hold_for_all_rows(data_broker: Server, data_channel: Any, name: str) -> None:
    data_channel.queue_declare(name, durable=True)
    data_channel.exchange_declare(name, "fanout")
    data_channel.queue_bind(name, name)
    rows = batch(body=["text", "other"], routing_key=["a", None])
    publish(sink(data_broker, exchange=name), iter([rows]), f"{name}-1", 0)
    publish(sink(data_broker, exchange=name, routingKey="k"), iter([rows]), f"{name}-2", 0)
    assert [key for _, _, key in drained(data_channel, name)] == ["a", "", "k", "k"]


def test_large_bodies_are_several_frames(data_broker: Server, data_channel: Any, name: str) -> None:
    data_channel.queue_declare(name, durable=True)
    bodies = [bytes([index]) * size for index, size in enumerate((131_064, 131_065, 500_000, 1))]
    publish(sink(data_broker, routingKey=name), iter([batch(body=bodies)]), name, 0)
    assert [body for body, _, _ in drained(data_channel, name)] == bodies


def test_sorted_rows_are_the_same_whatever_their_order(data_broker: Server, data_channel: Any, name: str) -> None:
    data_channel.queue_declare(name, durable=True)
    options = sink(data_broker, routingKey=name, sortRows="true")
    publish(options, iter([numbered(0, 5), numbered(5, 4)]), name, 0)
    publish(options, iter([numbered(5, 4), numbered(0, 5)]), name, 0)  # The same task again, after another shuffle.
    assert [int(body) for body, _, _ in drained(data_channel, name)] == list(range(9))


@pytest.mark.parametrize(
    ("columns", "given", "text"),
    [
        ("routing_key string", {}, "rows need a column 'body'"),
        ("body binary", {}, "say where messages go"),
        ("body binary, routingkey string", {}, "no column 'routingkey'; did you mean 'routing_key'?"),
        ("body int, routing_key string", {}, "column 'body' must be binary or string, and is int: cast it"),
        ("body binary, priority string", {"routingKey": "k"}, "column 'priority' must be an integer"),
        ("body binary, headers array<string>", {"routingKey": "k"}, "column 'headers' must be a map"),
        ("body binary, timestamp bigint", {"routingKey": "k"}, "column 'timestamp' must be timestamp"),
    ],
)
def test_columns_that_cannot_be_published(columns: str, given: dict[str, str], text: str) -> None:
    with pytest.raises(LeveretError) as caught:
        check_columns(fields(columns), sink(**given))
    assert text in str(caught.value)


def test_columns_that_can(data_broker: Server) -> None:
    check_columns(fields("body string, queue string, offset bigint, headers map<string,bigint>"), sink(exchange="e"))
    check_columns(fields("body binary, exchange string"), sink())


def fields(ddl: str) -> list[types.StructField]:
    plain = {
        "string": types.StringType(), "binary": types.BinaryType(), "int": types.IntegerType(),
        "bigint": types.LongType(), "array<string>": types.ArrayType(types.StringType()),
        "map<string,bigint>": types.MapType(types.StringType(), types.LongType()),
    }  # fmt: skip
    return [types.StructField(*_pair(part, plain)) for part in ddl.split(", ")]


def _pair(part: str, plain: dict[str, types.DataType]) -> tuple[str, types.DataType]:
    name, kind = part.split(" ")
    return name, plain[kind]


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (batch(body=[b"x", None]), "column 'body' is null"),
        (batch(body=[b"x"], priority=pa.array([300])), "column 'priority' is a number from 0 to 255, and 300 in a row"),
        (batch(body=[b"x"], priority=pa.array([-1])), "column 'priority' is a number from 0 to 255, and -1 in a row"),
        (batch(body=[b"x"], message_id=["m" * 256]), "column 'message_id' has at most 255 bytes, and 256 in the row"),
        (batch(body=[b"x"], timestamp=pa.array([-1], pa.timestamp("us", "UTC"))), "timestamp' begins with 1970"),
    ],
)
def test_rows_that_cannot_be_published(data_broker: Server, data_channel: Any, name: str, rows: Any, text: str) -> None:
    data_channel.queue_declare(name[-60:], durable=True)
    with pytest.raises(LeveretError) as caught:
        publish(sink(data_broker, routingKey=name[-60:]), iter([rows]), "strange", 0)
    assert text in str(caught.value)


def test_a_port_that_is_none_for_amqp() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def refuse() -> None:
            client, _ = other.accept()
            client.recv(8)
            client.close()

        thread = threading.Thread(target=refuse)
        thread.start()
        options = Options({"servers": f"127.0.0.1:{other.getsockname()[1]}"}).sink()
        with pytest.raises(LeveretError, match="what is meant is a port for AMQP"):
            Publisher(options.access, "strange", 0)
        thread.join()


def test_the_management_port(data_broker: Server) -> None:
    options = Options({"servers": f"127.0.0.1:{data_broker.management_port}"}).sink()
    with pytest.raises(LeveretError, match=r"speaks HTTP.*what is meant is a port for AMQP"):
        Publisher(options.access, "strange", 0)


# -- Exactly once ------------------------------------------------------------------------------------------------------


def test_a_task_that_is_run_again_publishes_nothing_twice(data_broker: Server, data_channel: Any, name: str) -> None:
    data_channel.queue_declare(name, durable=True)
    options = sink(data_broker, routingKey=name)
    publish(options, iter([numbered(0, 7)]), f"{name}/0", 5 << 32)  # An attempt that got so far,
    publish(options, iter([numbered(0, 20)]), f"{name}/0", 5 << 32)  # and the one after it.
    publish(options, iter([numbered(20, 3)]), f"{name}/0", 6 << 32)  # The next batch,
    publish(options, iter([numbered(0, 20)]), f"{name}/0", 5 << 32)  # and one that took its time.
    publish(options, iter([numbered(23, 2)]), f"{name}/1", 5 << 32)  # Another partition.
    assert [int(body) for body, _, _ in drained(data_channel, name)] == list(range(25))


class Proxy:
    """Between a publisher and a broker. Each of the first connections is cut after so many bytes that were sent, or got
    since the publisher asked for confirms."""

    def __init__(self, port: int, cuts: list[tuple[str, int]]) -> None:
        self.port_behind = port
        self.cuts = cuts
        self.connections = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.listener.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            self.connections += 1
            server = socket.create_connection(("127.0.0.1", self.port_behind))
            side, most = self.cuts.pop(0) if self.cuts else ("", 0)
            ways = (
                (client, server, most if side == "sent" else None),
                (server, client, most if side == "got" else None),
            )
            for source, target, limit in ways:
                threading.Thread(target=self._copy, args=(source, target, limit), daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket, limit: int | None) -> None:
        passed, quiet = 0, limit is not None and limit < 100
        try:
            while data := source.recv(65536):
                if quiet:
                    quiet = SELECT_OK not in data
                    passed = -len(data)
                if limit is not None and passed + len(data) >= limit:
                    target.sendall(data[: limit - passed])
                    break
                passed += len(data)
                target.sendall(data)
        except OSError:
            pass  # The other side is gone; what follows ends this one as well.
        for one in (source, target):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # Already.


@pytest.mark.parametrize(
    "cuts",
    [[("sent", 30_000)], [("got", 5)], [("sent", 2_000), ("got", 1), ("sent", 100_000), ("got", 9)]],
    ids=["on the way there", "on the way back", "again and again"],
)
def test_lost_connections_lose_nothing_and_double_nothing(
    data_broker: Server, data_channel: Any, name: str, cuts: list[tuple[str, int]]
) -> None:
    data_channel.queue_declare(name, durable=True)
    wanted = len(cuts) + 1
    proxy = Proxy(data_broker.port, list(cuts))
    publisher = Publisher(sink(proxy.port).access, name, 7 << 32)
    encoder = Encoder(sink(routingKey=name), publisher.frame_max)
    for first in range(0, 3000, 100):
        for frames, count in encoder.chunks(encoder.rows(numbered(first, 100)), CHUNK):
            publisher.send(frames, count)
    publisher.finish()
    publisher.close()
    proxy.close()
    assert publisher.knows_producers
    assert proxy.connections == wanted
    assert [int(body) for body, _, _ in drained(data_channel, name)] == list(range(3000))


def test_a_queue_that_refuses_for_a_while(data_broker: Server, data_channel: Any, name: str) -> None:
    arguments = {"x-max-length": 10, "x-overflow": "reject-publish"}
    data_channel.queue_declare(name, durable=True, arguments=arguments)
    taken: list[int] = []
    done = threading.Event()

    def consume() -> None:
        connection = data_broker.connect()
        channel = connection.channel()
        for method, _, body in channel.consume(name, inactivity_timeout=0.05):
            if method is not None:
                taken.append(int(body))
                channel.basic_ack(method.delivery_tag)
            if done.is_set() and method is None:
                break
        connection.close()
        data_broker.connections.remove(connection)

    consumer = threading.Thread(target=consume)
    consumer.start()
    publish(sink(data_broker, routingKey=name), iter([numbered(0, 30), numbered(30, 30)]), name, 0)
    until(lambda: len(taken) >= 60, "all have come")
    done.set()
    consumer.join()
    assert taken == list(range(60))


def test_confirms_in_any_order() -> None:
    confirmed = Confirmed()
    seen = []
    for tag, multiple in ((2, False), (1, False), (5, False), (4, True), (4, False), (8, False), (7, True)):
        confirmed.on_ack(tag, multiple)
        seen.append(confirmed.through)
    assert seen == [0, 2, 2, 5, 5, 5, 8]


# -- Refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"routingKey": "leads-nowhere"}, "with routing key 'leads-nowhere' reached no queue (312 NO_ROUTE)"),
        ({"exchange": "no-such"}, "404 NOT_FOUND - no exchange 'no-such'"),
        ({"routingKey": "k", "password": "wrong"}, "refuses user 'guest': wrong user or password?"),
        ({"routingKey": "k", "vhost": "nowhere"}, "in vhost 'nowhere'"),
    ],
)
def test_refusals_end_it_at_once(data_broker: Server, more: dict[str, str], text: str) -> None:
    with pytest.raises(LeveretError) as caught:
        publish(sink(data_broker, **more), iter([numbered(0, 3)]), "refused", 0)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_leads_nowhere_may_be_lost_if_one_says_so(data_broker: Server) -> None:
    options = sink(data_broker, routingKey="leads-nowhere", mandatory="false")
    assert publish(options, iter([numbered(0, 3)]), "lost", 0).rows == 3


def test_nobody_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "FIRST_PATIENCE_S", 0.1)
    with pytest.raises(LeveretError, match=r"nobody answers at 127\.0\.0\.1:1 .*refused"):
        publish(sink(1, routingKey="k"), iter([numbered(0, 1)]), "nobody", 0)


@pytest.mark.parametrize("is_silent", [False, True], ids=["nobody", "silent"])
def test_a_wrong_port_is_told_before_any_task(is_silent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "FIRST_PATIENCE_S", 0.1)
    monkeypatch.setattr(publishing, "FIRST_LOGIN_S", 0.2)
    schema = types.StructType([types.StructField("body", types.BinaryType())])
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1] if is_silent else 1
        source = LeveretDataSource({"servers": f"127.0.0.1:{port}", "routingKey": "k"})
        with pytest.raises(LeveretError, match=rf"cannot publish: nobody answers at 127\.0\.0\.1:{port} .*'servers'"):
            source.writer(schema, False)


def test_a_wrong_password_is_told_before_any_task(data_broker: Server) -> None:
    options = {"servers": f"127.0.0.1:{data_broker.port}", "routingKey": "k", "password": "wrong"}
    with pytest.raises(LeveretError, match="refuses user 'guest': wrong user or password"):
        LeveretDataSource(options).writer(types.StructType([types.StructField("body", types.BinaryType())]), False)


def test_a_queue_that_stays_full_is_given_up(
    data_broker: Server, data_channel: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "PATIENCE_S", 0.3)
    data_channel.queue_declare(name, arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
    with pytest.raises(LeveretError, match="a queue is full"):
        publish(sink(data_broker, routingKey=name), iter([numbered(0, 5)]), name, 0)


def test_the_next_server_is_tried(data_broker: Server, data_channel: Any, name: str) -> None:
    data_channel.queue_declare(name, durable=True)
    options = Options({"servers": f"127.0.0.1:1,127.0.0.1:{data_broker.port}", "routingKey": name}).sink()
    assert publish(options, iter([numbered(0, 2)]), name, 0).rows == 2


Start = Callable[..., Server]


def test_a_broker_that_is_killed_and_comes_back(start: Start, name: str) -> None:
    broker = start()
    channel = broker.connect().channel()
    channel.queue_declare(name, durable=True)
    options = sink(broker, routingKey=name)
    publisher = Publisher(options.access, name, 0)
    encoder = Encoder(options, publisher.frame_max)
    for first in range(0, 4_000, 200):
        for frames, count in encoder.chunks(encoder.rows(numbered(first, 200)), CHUNK):
            publisher.send(frames, count)
        if first == 2_000:
            port = broker.port
            broker.kill()
            broker.start(port)
    publisher.finish()
    publisher.close()
    connection = broker.connect()
    assert [int(body) for body, _, _ in drained(connection.channel(), name)] == list(range(4_000))
