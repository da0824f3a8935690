"""When memory or disk run short: publishers wait and are told, consumers go on, nothing breaks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from resource import RLIM_INFINITY
from typing import Any

import aio_pika
import pika
import pytest

import leveret.testing
from leveret.node.system.alarms import UNLIMITED, Alarms, sockets_limit
from leveret.protocol import methods as m
from leveret.protocol.frames import HEARTBEAT
from leveret.testing import Broker
from tests.support.consumer import Consumer, get_all, waiting
from tests.support.raw import RawClient, publish_frames
from tests.support.servers import until
from tests.system.conftest import Start

PERSISTENT = pika.BasicProperties(delivery_mode=2)
LOW_ON_MEMORY = "vm_memory_high_watermark.absolute = 1MB\n"
LOW_ON_DISK = "disk_free_limit.absolute = 1000TB\n"


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (LOW_ON_MEMORY, "low on memory"),
        (LOW_ON_DISK, "low on disk"),
        (LOW_ON_MEMORY + LOW_ON_DISK, "low on memory & disk"),
    ],
)
def test_publisher_is_told(start: Start, config: str, reason: str) -> None:
    server = start(config)
    connection = server.connect()
    channel = connection.channel()
    channel.queue_declare("q")  # Declaring is not publishing.
    told: list[str] = []
    connection.add_on_connection_blocked_callback(lambda _, frame: told.append(frame.method.reason))
    channel.basic_publish("", "q", b"x")
    until(lambda: connection.process_data_events(0.05) or told, "connection.blocked")
    assert told == [reason]
    for resource in reason.removeprefix("low on ").split(" & "):
        assert f"{resource} resource limit alarm set on node" in server.log()


async def test_aio_pika_is_told(start: Start) -> None:
    server = start(LOW_ON_MEMORY)
    connection = await aio_pika.connect(server.url)
    channel = await connection.channel(publisher_confirms=True)
    await channel.declare_queue("q")
    waits = asyncio.ensure_future(channel.default_exchange.publish(aio_pika.Message(b"waits"), "q"))
    done, _ = await asyncio.wait([waits], timeout=0.5)
    assert not done
    server.kill()
    with pytest.raises(aio_pika.exceptions.CONNECTION_EXCEPTIONS):
        await waits


def test_consumers_go_on(start: Start) -> None:
    """Connections that only consume are neither blocked nor told."""
    server = start()
    channel = server.channel(confirms=True)
    channel.queue_declare("q", durable=True)
    for number in range(100):
        channel.basic_publish("", "q", b"%d" % number, PERSISTENT)
    assert server.stop() == 0
    server.config = LOW_ON_MEMORY
    server.start()
    consumer_connection = server.connect()
    told: list[Any] = []
    consumer_connection.add_on_connection_blocked_callback(lambda *arguments: told.append(arguments))
    taker = consumer_connection.channel()
    taker.basic_qos(prefetch_count=10)
    with RawClient(server.port) as publisher:
        publisher.open()
        publisher.send(publish_frames("", "q", b"one more") * 2)
        publisher.expect(m.ConnectionBlocked)
        publisher.method(m.BasicQos())  # Not read, for now.
        consumer = Consumer(taker, "q")
        for number in range(100):
            [(method, _, body)] = consumer.take(1)
            assert body == b"%d" % number
            taker.basic_ack(method.delivery_tag)
        assert waiting(taker, "q") == 0 and consumer.is_idle()  # Not even the first that was published is taken in.
        assert not told


@pytest.fixture(scope="module")
def shared() -> Iterator[Broker]:
    with leveret.testing.broker(where="inside") as running:
        yield running


@pytest.fixture
def subject(shared: Broker) -> Iterator[Broker]:
    """A broker whose alarms a test sets."""
    yield shared
    shared.faults.clear()
    shared.admin.delete_all()


def states(subject: Broker) -> list[str]:
    return sorted(one.state for one in subject.admin.connections())


def test_clients_that_would_not_understand_are_not_told(subject: Broker) -> None:
    with RawClient(subject.port) as client:
        client.begin()
        client.method(m.ConnectionStartOk({}, "PLAIN", b"\0guest\0guest", "en_US"), 0)
        client.expect(m.ConnectionTune)
        client.method(m.ConnectionTuneOk(2047, 131_072, 0), 0)
        client.method(m.ConnectionOpen(), 0)
        client.method(m.ChannelOpen())
        client.expect(m.ConnectionOpenOk)
        client.expect(m.ChannelOpenOk)
        with subject.faults.raise_alarm("memory"):
            client.method(m.QueueDeclare(queue="q"))
            client.expect(m.QueueDeclareOk)
            client.send(publish_frames("", "q", b"x"))
            until(lambda: states(subject) == ["blocked"], "the alarm to be noticed")
        client.method(m.QueueDeclare(queue="q", passive=True))
        assert client.expect(m.QueueDeclareOk).message_count == 1


@pytest.mark.parametrize("resource", ["memory", "disk"])
def test_a_connection_is_blocked_when_it_publishes_and_not_before(subject: Broker, resource: Any) -> None:
    """What it does besides may be what ends the alarm. What it publishes waits, with all that comes behind it."""
    with RawClient(subject.port) as client:
        client.open()
        client.method(m.QueueDeclare(queue="q"))
        client.expect(m.QueueDeclareOk)
        client.send(publish_frames("", "q", b"before") * 2)
        client.method(m.QueueDeclare(queue="q", passive=True))
        assert client.expect(m.QueueDeclareOk).message_count == 2
        assert states(subject) == ["running"]
        with subject.faults.raise_alarm(resource):
            client.method(m.BasicGet(queue="q"))
            assert client.expect(m.BasicGetOk).delivery_tag == 1
            client.frame(), client.frame()
            client.method(m.BasicAck(1))
            client.method(m.QueuePurge(queue="q"))
            assert client.expect(m.QueuePurgeOk).message_count == 1
            assert states(subject) == ["blocking"]
            message = publish_frames("", "q", b"meanwhile")
            client.send(message * 1_000)
            client.method(m.QueueDeclare(queue="q", passive=True))
            assert client.expect(m.ConnectionBlocked).reason == f"low on {resource}"
            assert states(subject) == ["blocked"]
            client.send(message * 1_000)
            assert subject.admin.queue("q").messages == 0
        client.expect(m.ConnectionUnblocked)
        assert client.expect(m.QueueDeclareOk).message_count == 1_000
        client.method(m.QueueDeclare(queue="q", passive=True))
        assert client.expect(m.QueueDeclareOk).message_count == 2_000


def test_many_blocked_publishers_go_on(subject: Broker) -> None:
    """More than are let go in one turn."""
    clients = [RawClient(subject.port).open() for _ in range(50)]
    clients[0].method(m.QueueDeclare(queue="q"))
    clients[0].expect(m.QueueDeclareOk)
    with subject.faults.raise_alarm("disk"):
        for client in clients:
            client.send(publish_frames("", "q", b"x") * 10)
            client.expect(m.ConnectionBlocked)
        assert subject.admin.queue("q").messages == 0
    for client in clients:
        client.expect(m.ConnectionUnblocked)
        client.method(m.BasicQos())
        client.expect(m.BasicQosOk)
        client.socket.close()
    assert subject.admin.queue("q").messages == 500


def test_blocked_clients_are_told_of_a_forced_close(subject: Broker) -> None:
    with RawClient(subject.port) as client, subject.faults.raise_alarm("memory"):
        client.open()
        client.send(publish_frames("", "q", b"x") * 100)
        client.expect(m.ConnectionBlocked)
        assert subject.admin.close_connections() == 1
        assert client.expect(m.ConnectionClose).reply_code == 320
        client.method(m.ConnectionCloseOk(), 0)
        assert client.is_cut()


def test_heartbeats_do_not_cut_a_blocked_client(subject: Broker) -> None:
    """It is not read from, so nobody can say that it is silent."""
    with RawClient(subject.port) as client:
        client.open(heartbeat_s=1)
        with subject.faults.raise_alarm("memory"):
            client.send(publish_frames("", "nowhere", b"x"))
            client.expect(m.ConnectionBlocked)
            for _ in range(5):  # One each second; two missed ones would be the end.
                assert client.frame()[0] == HEARTBEAT
        client.expect(m.ConnectionUnblocked)
        client.method(m.BasicQos())
        client.expect(m.BasicQosOk)


def test_memory_comes_back(start: Start) -> None:
    """A watermark just above what an empty node needs: transient messages push it over, their consumption clears it."""
    probe = start()
    idle = probe.resident_bytes()
    probe.kill()
    server = start(
        f"vm_memory_high_watermark.absolute = {idle + 60_000_000}\nmemory_monitor_interval = 50ms\n"
        "vm_memory_high_watermark_paging_ratio = 1.0\ncontent_cache_bytes = 1GB\n"
    )
    channel = server.channel()
    channel.queue_declare("q")
    with RawClient(server.port) as publisher:
        publisher.open()
        message = publish_frames("", "q", b"x" * 1_000_000)
        blocked = threading.Event()

        def publish() -> None:
            with contextlib.suppress(OSError):
                for _ in range(400):
                    publisher.send(message)

        thread = threading.Thread(target=publish)
        thread.start()
        publisher.expect(m.ConnectionBlocked)
        blocked.set()
        seen = 0
        consumer = Consumer(channel, "q", auto_ack=True)
        while seen < 400:
            seen += len(consumer.take(1))
        assert isinstance(publisher.receive(), m.ConnectionUnblocked)
        thread.join()


# -- A disk that is really full -------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 100 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=100m", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    ) if os.access("/bin/mount", os.X_OK) else None  # fmt: skip
    if mount is None or mount.returncode:
        pytest.skip(f"cannot mount a small file system here: {mount.stderr.strip() if mount else 'no mount'}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


CONFIG = "disk_free_limit.absolute = 45MB\nsegment_bytes = 4MiB\nmemory_monitor_interval = 100ms\n"
NO_LIMIT = "disk_free_limit.absolute = 1\nsegment_bytes = 4MiB\nmemory_monitor_interval = 100ms\n"
TOTAL = 1_500


def body(number: int) -> bytes:
    return b"%04d" % number * 25_000


class Publisher(threading.Thread):
    """Publishes TOTAL large messages as fast as it may. What the server says is read by the test."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self.client = RawClient(port).open()
        self.client.method(m.ConfirmSelect())
        self.client.expect(m.ConfirmSelectOk)
        self.start()

    def run(self) -> None:
        with contextlib.suppress(OSError):  # The server was killed.
            for number in range(TOTAL):
                self.client.send(publish_frames("", "q", body(number), persistent=True))


def test_disk_full(start: Start, small_disk: Path) -> None:
    """150 MB through 55: publishers wait whenever it is full, consumers make room, publishers go on. Nothing breaks."""
    server = start(CONFIG, folder=small_disk / "node")
    channel = server.channel()
    channel.queue_declare("q", durable=True)
    publisher = Publisher(server.port)
    consumer = None
    confirmed, blocked, unblocked, taken = 0, 0, 0, 0
    while confirmed < TOTAL or unblocked < blocked:  # The last alarm may still hold when all is confirmed.
        method = publisher.client.receive()
        if isinstance(method, m.BasicAck):
            confirmed = max(confirmed, method.delivery_tag)
        elif isinstance(method, m.ConnectionBlocked):
            assert method.reason == "low on disk"
            blocked += 1
            consumer = consumer or Consumer(channel, "q")
            taken += take(consumer, waiting(channel, "q") + len(consumer.seen))
        else:
            assert isinstance(method, m.ConnectionUnblocked)
            unblocked += 1
    publisher.join()
    publisher.client.socket.close()
    assert blocked > 1 and unblocked == blocked
    server.kill()
    server.start()
    bodies = get_all(server.channel(), "q")
    assert bodies == [body(number) for number in range(TOTAL - len(bodies), TOTAL)]
    assert len(bodies) >= TOTAL - taken
    assert server.stop() == 0


def take(consumer: Consumer, count: int) -> int:
    """Consume and acknowledge, as a consumer that is not blocked does."""
    messages = consumer.take(count)
    if messages:
        consumer.channel.basic_ack(messages[-1][0].delivery_tag, multiple=True)
    consumer.channel.connection.process_data_events(0)
    return len(messages)


@pytest.mark.parametrize("reserve", [True, False], ids=["limit", "no-limit"])
def test_disk_full_and_killed(start: Start, small_disk: Path, reserve: bool) -> None:
    """Kill it when it is full, up to a limit or up to the last byte: it starts, and has all that was confirmed."""
    server = start(CONFIG if reserve else NO_LIMIT, folder=small_disk / "node")
    server.channel().queue_declare("q", durable=True)
    publisher = Publisher(server.port)
    confirmed = 0
    while not isinstance(method := publisher.client.receive(), m.ConnectionBlocked):
        assert isinstance(method, m.BasicAck)
        confirmed = max(confirmed, method.delivery_tag)
    server.kill()
    publisher.join()
    publisher.client.socket.close()
    assert confirmed > 100
    server.start()
    channel = server.channel()
    count = waiting(channel, "q")
    assert count >= confirmed
    assert Consumer(channel, "q", auto_ack=True).bodies(count) == [body(number) for number in range(count)]
    server.channel(confirms=True).basic_publish("", "q", b"after", PERSISTENT)


def test_declare_on_a_full_disk(start: Start, small_disk: Path) -> None:
    """A lasting declaration waits for space; what need not last does not."""
    server = start("disk_free_limit.absolute = 1\n", folder=small_disk / "node")
    filler = small_disk / "filler"
    with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    other = server.channel()
    other.queue_declare("passing")
    assert waiting(other, "passing") == 0
    names = [f"{number:03}" + "x" * 200 for number in range(100)]  # More than the space left in the last block.
    with RawClient(server.port) as client:
        client.open()
        for name in names:
            client.method(m.QueueDeclare(queue=name, durable=True))
        until(lambda: "no space left" in server.log(), "the log line")
        filler.unlink()
        for name in names:
            assert client.expect(m.QueueDeclareOk).queue == name
    server.kill()
    server.start()
    channel = server.channel()
    for name in names:
        assert waiting(channel, name) == 0


def test_what_the_log_is_told() -> None:
    """RabbitMQ's lines, which people have patterns for."""
    used = [10]
    alarms = Alarms(100, 10, lambda: used[0], lambda: 60)
    alarms.check()
    assert alarms.news("one@host") == []
    used[0] = 200
    alarms.check()
    measured, told = alarms.news("one@host")
    assert measured == "vm_memory_high_watermark set. Memory used:200 allowed:100"
    assert told.splitlines()[0] == "memory resource limit alarm set on node one@host."
    assert told.splitlines()[3] == "*** Publishers will be blocked until this alarm clears ***"
    alarms.others["two@host"] = frozenset({"memory"})
    (told,) = alarms.news("one@host")
    assert told.startswith("memory resource limit alarm set on node two@host.")
    used[0] = 10
    alarms.check()
    assert alarms.news("one@host") == [
        "vm_memory_high_watermark clear. Memory used:10 allowed:100",
        "memory resource limit alarm cleared on node one@host",
    ]
    alarms.others.clear()
    assert alarms.news("one@host") == [
        "memory resource limit alarm cleared on node two@host",
        "memory resource limit alarm cleared across the cluster",
    ]


def test_how_many_clients_there_may_be(caplog: pytest.LogCaptureFixture) -> None:
    """As many as RabbitMQ would have; and a little less than that before others come, lest the log tells of each."""
    assert [sockets_limit(limit) for limit in (1024, 65_536, 100, 0)] == [829, 58_890, 1, 1]
    assert sockets_limit(RLIM_INFINITY) == UNLIMITED
    alarms = Alarms(100, 10, lambda: 0, lambda: 60)
    assert alarms.has_room(828, 1024) and not alarms.has_room(829, 1024) and alarms.crowded
    assert not alarms.has_room(788, 1024) and alarms.has_room(787, 1024)
    assert not alarms.has_room(829, 1024) and alarms.has_room(829, 4096), "the limit was raised"
    told = [record.getMessage().splitlines()[0] for record in caplog.records]
    assert told == ["file descriptor limit alarm set.", "file descriptor limit alarm cleared"] * 2
