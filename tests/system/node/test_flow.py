"""Nobody can make the server grow without bound by being fast, or slow, or deaf."""

from __future__ import annotations

import selectors
from contextlib import ExitStack
from socket import socket
from typing import Any

import pika
import pytest

from leveret.protocol import methods as m
from tests.support.consumer import Consumer, waiting
from tests.support.raw import RawClient, publish_frames
from tests.support.servers import PATIENCE_S, until
from tests.system.conftest import Start

MIB = 1 << 20
COUNT = 8_000
# A cache this small makes the server page at once; the rest of the bounds below is for buffers and the allocator.
SMALL_CACHE = "content_cache_bytes = 8MiB\nvm_memory_high_watermark.absolute = 2GB\n"


@pytest.mark.parametrize("persistent", [False, True], ids=["transient", "persistent"])
def test_publisher_that_never_stops(start: Start, persistent: bool) -> None:
    """Deliveries keep pace: when a consumer has taken 100,000, few wait behind them.

    One thread sends whenever the server would take more and reads whatever it delivered, so that it is the server, and
    not how a busy machine shares its time between clients, which decides how many wait.
    """
    server = start()
    channel = server.channel()
    channel.queue_declare("q", durable=True)
    message = publish_frames("", "q", b"x" * 100, persistent)
    with RawClient(server.port) as publisher, RawClient(server.port) as consumer, selectors.DefaultSelector() as ready:
        publisher.open()
        consumer.open()
        consumer.method(m.BasicQos(prefetch_count=20_000))
        consumer.expect(m.BasicQosOk)
        consumer.method(m.BasicConsume(queue="q"))
        tag = consumer.expect(m.BasicConsumeOk).consumer_tag
        publish = m.encode(1, m.BasicPublish(routing_key="q"))
        delivery_bytes = len(m.encode(1, m.BasicDeliver(tag, 1, False, "", "q"))) + len(message) - len(publish)
        ready.register(publisher.socket, selectors.EVENT_WRITE)
        ready.register(consumer.socket, selectors.EVENT_READ)
        bundle = memoryview(message * 10_000)
        sent = received = taken = 0
        while taken < 100_000:
            can = {key.fileobj for key, _ in ready.select(PATIENCE_S)}
            assert can, "the server neither takes nor gives"
            if publisher.socket in can:
                sent += publisher.socket.send(bundle[sent % len(bundle) :])
            if consumer.socket in can:
                received += len(consumer.socket.recv(1 << 20))
                if received // delivery_bytes > taken:
                    taken = received // delivery_bytes
                    consumer.method(m.BasicAck(taken, True))
        assert waiting(channel, "q") < taken / 5
    assert server.resident_bytes() < 200 * MIB


@pytest.mark.parametrize("persistent", [False, True], ids=["transient", "persistent"])
@pytest.mark.parametrize("no_ack", [False, True], ids=["acks", "no-acks"])
def test_consumer_that_stops_reading(start: Start, persistent: bool, no_ack: bool) -> None:
    """380 MB for a deaf consumer without prefetch limit: they wait on disk, not in memory, nor in its socket."""
    server = start(SMALL_CACHE + "vm_memory_high_watermark_paging_ratio = 0.01\n")
    channel = server.channel(confirms=True)
    channel.queue_declare("q", durable=True)
    with RawClient(server.port, receive_buffer_bytes=65_536) as deaf:
        deaf.open()
        deaf.method(m.BasicConsume(queue="q", no_ack=no_ack))
        deaf.expect(m.BasicConsumeOk)
        before = server.resident_bytes()
        message = publish_frames("", "q", b"x" * 100_000, persistent)
        with RawClient(server.port) as publisher:
            publisher.open()
            for _ in range(380):
                publisher.send(message * 10)
            publisher.method(m.BasicQos())
            publisher.expect(m.BasicQosOk)
        grown = server.resident_bytes() - before
        assert waiting(channel, "q") > 3_500
        assert grown < 150 * MIB, f"{grown / MIB:.0f} MiB"
        # It hears again, and goes on where it was.
        got = 0
        while got < 500:
            method = deaf.expect(m.BasicDeliver)
            deaf.frame(), deaf.frame()
            got += 1
            assert method.delivery_tag == got and not method.redelivered
    assert server.stop() == 0


def test_unlimited_prefetch(start: Start) -> None:
    """A consumer that reads all and acknowledges nothing: contents leave memory; all of them come back in order."""
    server = start(SMALL_CACHE)
    channel = server.channel(confirms=True)
    channel.queue_declare("q", durable=True)
    with RawClient(server.port) as greedy:
        greedy.open()
        greedy.method(m.BasicConsume(queue="q"))
        greedy.expect(m.BasicConsumeOk)
        with RawClient(server.port) as publisher:
            publisher.open()
            for number in range(COUNT):
                publisher.send(publish_frames("", "q", b"%05d" % number * 10_000, persistent=True))
                greedy.expect(m.BasicDeliver)
                greedy.frame(), greedy.frame()
                if number == COUNT // 2:
                    before = server.resident_bytes()
        grown = server.resident_bytes() - before
        assert grown < COUNT * 50_000 / 4, f"{grown / MIB:.0f} MiB"
    expected = 0
    consumer = Consumer(channel, "q", auto_ack=True)
    while expected < COUNT:
        for method, _, body in consumer.take(min(100, COUNT - expected)):
            assert body[:5] == b"%05d" % expected and len(body) == 50_000 and method.redelivered
            expected += 1
    assert waiting(channel, "q") == 0


@pytest.mark.parametrize("mandatory", [True, False], ids=["returns", "gets"])
def test_client_that_asks_and_never_listens(start: Start, mandatory: bool) -> None:
    """Answers that nobody reads pile up only so far; then the server stops listening too."""
    server = start(SMALL_CACHE)
    channel = server.channel(confirms=True)
    channel.queue_declare("q", durable=True)
    for _ in range(1_000):
        channel.basic_publish("", "q", b"x" * 100_000, pika.BasicProperties(delivery_mode=2))
    before = server.resident_bytes()
    ask = m.encode(1, m.BasicGet(queue="q"))
    if mandatory:
        ask = publish_frames("", "nowhere", b"x" * 10_000, mandatory=True)
    with RawClient(server.port, receive_buffer_bytes=65_536) as deaf:
        deaf.open()
        deaf.socket.settimeout(3)
        try:
            for _ in range(20_000 if mandatory else 1_000):
                deaf.send(ask)
        except TimeoutError:
            pass  # The server does not read on. That is what it should do.
        assert server.resident_bytes() - before < 60 * MIB
        assert waiting(channel, "q") > 500  # The server is there, and has not spent all on the deaf one.


def test_slow_and_fast_consumers_do_not_hinder_each_other(start: Start) -> None:
    """One connection is deaf; the queue it shares with another goes on through that one."""
    server = start()
    channel = server.channel()
    channel.queue_declare("q")
    with RawClient(server.port, receive_buffer_bytes=4096) as deaf:
        deaf.open()
        deaf.method(m.BasicConsume(queue="q"))
        deaf.expect(m.BasicConsumeOk)
        other: Any = server.channel()
        consumer = Consumer(other, "q", auto_ack=True)
        for _ in range(4_000):  # The buffers of the kernel and the node hold some eight megabytes for the deaf one.
            channel.basic_publish("", "q", b"x" * 10_000, pika.BasicProperties())
        until(lambda: other.connection.process_data_events(0.05) or waiting(channel, "q") == 0, "an empty queue")
        assert len(consumer.seen) > 2_000


@pytest.mark.parametrize("persistent", [False, True], ids=["transient", "persistent"])
def test_publishers_to_very_many_queues(start: Start, persistent: bool) -> None:
    """30 publishers, 300 queues: what one read brings would be nine million places in lists, and as many records.
    Others are served meanwhile, and the memory is given back when the queues are gone."""
    server = start("vm_memory_high_watermark.absolute = 2GB\n")
    channel = server.channel()
    for number in range(300):
        channel.queue_declare(f"q{number}", durable=True)
        channel.queue_bind(f"q{number}", "amq.fanout")
    before = server.resident_bytes()
    message = publish_frames("amq.fanout", "", b"x" * 100, persistent)
    with ExitStack() as publishers, selectors.DefaultSelector() as ready:
        for _ in range(30):
            publisher = publishers.enter_context(RawClient(server.port))
            publisher.open()
            publisher.socket.setblocking(False)
            ready.register(publisher.socket, selectors.EVENT_WRITE, [memoryview(message * 500)])
        while ready.get_map():
            channel.queue_declare("q0", passive=True)  # Somebody else is answered.
            for key, _ in ready.select(PATIENCE_S):
                assert isinstance(key.fileobj, socket)
                key.data[0] = key.data[0][key.fileobj.send(key.data[0]) :]
                if not key.data[0]:
                    ready.unregister(key.fileobj)
        until(lambda: waiting(channel, "q299") == 30 * 500, "all is taken in")
        # 15,000 contents, and as many places in 300 lists.
        assert server.resident_bytes() - before < 200 * MIB


def test_memory_of_a_backlog_is_given_back_though_some_of_its_queues_stay(start: Start) -> None:
    """What stays lies between what goes: in small pieces all over the heap it would keep all of it."""
    server = start()
    channel = server.channel()
    for number in range(200):
        channel.queue_declare(f"q{number}")
        channel.queue_bind(f"q{number}", "amq.fanout")
    before = server.resident_bytes()
    message = publish_frames("amq.fanout", "", b"x" * 100, False)
    with RawClient(server.port) as publisher:
        publisher.open()
        for _ in range(600):
            publisher.send(message * 10)
            publisher.method(m.BasicQos())  # It comes in many small pieces, each in a turn of its own.
            publisher.expect(m.BasicQosOk)
    for number in range(2, 200):
        channel.queue_delete(f"q{number}")
    assert waiting(channel, "q0") == waiting(channel, "q1") == 6_000
    until(lambda: server.resident_bytes() - before < 40 * MIB, "the memory is given back")
