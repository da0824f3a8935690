"""What was promised survives kill -9: everything confirmed, in order; nothing that was settled comes back."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import threading
from typing import Any

import pika
import pytest
from pika.exceptions import AMQPError, ChannelClosedByBroker

from leveret.protocol import methods as m
from tests.support.consumer import Consumer, get_all, waiting
from tests.support.raw import RawClient, publish_frames
from tests.support.servers import PATIENCE_S, ROOT, Server, until
from tests.system.conftest import Start

PERSISTENT = pika.BasicProperties(delivery_mode=2)
MIB = 1 << 20


# -- The ledger ---------------------------------------------------------------------------------------------------


class Publisher(threading.Thread):
    """Publishes rising numbers, up to 200 ahead of their confirms, until the server is gone."""

    def __init__(self, port: int, first: int) -> None:
        super().__init__()
        self.client = RawClient(port).open()
        self.client.method(m.ConfirmSelect())
        self.client.expect(m.ConfirmSelectOk)
        self.first = self.next = first
        self.confirmed = first - 1  # All up to this one.
        self.singles: set[int] = set()
        self.moved = threading.Condition()

    def run(self) -> None:
        try:
            while True:
                while self.next - self.confirmed <= 200:
                    body = b"%d" % self.next + b" " * (self.next % 500)
                    self.client.send(publish_frames("amq.direct", "ledger", body, persistent=True))
                    self.next += 1
                self._on_confirm(self.client.expect(m.BasicAck))
        except (EOFError, OSError):
            with self.moved:
                self.moved.notify_all()

    def _on_confirm(self, ack: m.BasicAck) -> None:
        number = self.first + ack.delivery_tag - 1
        with self.moved:
            if ack.multiple:
                self.confirmed = number
            else:
                self.singles.add(number)
            while self.confirmed + 1 in self.singles:
                self.confirmed += 1
            self.moved.notify_all()

    def wait_for(self, number: int) -> None:
        with self.moved:
            assert self.moved.wait_for(lambda: self.confirmed >= number, PATIENCE_S)


def test_ledger(start: Start) -> None:
    """Rounds of publishing and consuming, each ended by kill -9 at a random moment.

    At the end each confirmed number is there exactly once per queue unless it was settled; an ack counts as settled
    once a publish that came after it was confirmed, since confirms follow the disk.
    """
    seed = int(os.environ.get("LEDGER_SEED") or random.randrange(1 << 32))
    rng = random.Random(seed)
    print(f"the same rng again: LEDGER_SEED={seed} python -m pytest {__file__} -k ledger")
    server = start("segment_bytes = 64KB\n")  # Small, so that segments end, get sparse and go away meanwhile.
    channel = server.channel(confirms=True)
    channel.queue_declare("q", durable=True)
    channel.queue_bind("q", "amq.direct", "ledger")
    acked: set[int] = set()  # By us; whether the disk knows is another question.
    settled: set[int] = set()  # And the disk knows.
    delivered: set[int] = set()
    confirmed: set[int] = set()
    first = 1
    for _ in range(6):
        publisher = Publisher(server.port, first)
        publisher.start()
        publisher.wait_for(first + rng.randrange(300, 1500))
        consume_some(server, rng, acked, settled, delivered)
        publisher.wait_for(publisher.confirmed + rng.randrange(1, 300))
        server.kill()
        publisher.join()
        confirmed |= set(range(first, publisher.confirmed + 1)) | publisher.singles
        first = publisher.next
        server.start()
    there = [(int(body), method.redelivered) for method, _, body in drain(server)]
    found = [number for number, _ in there]
    assert found == sorted(set(found)), "each once, in order"
    assert confirmed - acked <= set(found), "what was confirmed is there"
    assert not settled & set(found), "what was settled is not"
    assert all(redelivered for number, redelivered in there if number in delivered), "what was delivered says so"


def consume_some(
    server: Server, rng: random.Random, acked: set[int], settled: set[int], delivered: set[int]
) -> None:
    """Take some, acknowledge a part in a random way, make sure of it by a confirmed publish, then ack some more."""
    channel = server.channel(confirms=True)
    channel.queue_declare("marks", durable=True)
    channel.basic_qos(prefetch_count=400)
    taken = Consumer(channel, "q").take(rng.randrange(100, 400))
    delivered |= {int(body) for _, _, body in taken}
    mine: set[int] = set()
    for method, _, body in taken[: len(taken) * 2 // 3]:
        if rng.random() < 0.7:
            channel.basic_ack(method.delivery_tag)
            mine.add(int(body))
    acked |= mine
    channel.basic_publish("", "marks", b"", PERSISTENT)
    settled |= mine
    for method, _, body in taken[len(taken) * 2 // 3 :]:
        channel.basic_ack(method.delivery_tag)
        acked.add(int(body))
    channel.connection.process_data_events(0)


def drain(server: Server) -> list[tuple[Any, Any, bytes]]:
    channel = server.channel()
    count = waiting(channel, "q")
    return Consumer(channel, "q", auto_ack=True).take(count)


# -- Metadata -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_what_lasts_and_what_does_not(start: Start, end: str) -> None:
    server = start()
    channel = server.channel(confirms=True)
    channel.exchange_declare("lasting", "topic", durable=True)
    channel.exchange_declare("passing", "topic")
    for queue, options in {
        "lasting": {"durable": True},
        "passing": {},
        "mine": {"exclusive": True, "durable": True},
    }.items():
        channel.queue_declare(queue, **options)
        for exchange in ("lasting", "passing"):
            channel.queue_bind(queue, exchange, "k.#")
    channel.exchange_bind("lasting", "amq.fanout")
    channel.basic_publish("lasting", "k.1", b"persistent", PERSISTENT)
    channel.basic_publish("lasting", "k.1", b"transient")
    server.kill() if end == "kill" else server.stop()
    server.start()
    channel = server.channel(confirms=True)
    for verb, gone in (("exchange_declare", "passing"), ("queue_declare", "passing"), ("queue_declare", "mine")):
        with pytest.raises(ChannelClosedByBroker) as caught:
            getattr(server.channel(), verb)(gone, passive=True)
        assert caught.value.reply_code == 404
    channel.basic_publish("amq.fanout", "k.2", b"through both", PERSISTENT)
    assert get_all(channel, "lasting") == [b"persistent", b"through both"]
    channel.queue_declare("mine", durable=True)  # Its bindings are gone with it.
    channel.basic_publish("lasting", "k.3", b"x", PERSISTENT)
    assert get_all(channel, "mine") == []


def test_deleted_stays_deleted(start: Start) -> None:
    """Also when a queue of the same name is made again: the messages of the old one are not its."""
    server = start()
    channel = server.channel(confirms=True)
    channel.queue_declare("q", durable=True)
    for _ in range(10):
        channel.basic_publish("", "q", b"old", PERSISTENT)
    channel.queue_delete("q")
    channel.queue_declare("q", durable=True)
    channel.basic_publish("", "q", b"new", PERSISTENT)
    server.kill()
    server.start()
    assert get_all(server.channel(), "q") == [b"new"]


def test_purged_stays_purged(start: Start) -> None:
    server = start()
    channel = server.channel(confirms=True)
    channel.queue_declare("q", durable=True)
    for _ in range(10):
        channel.basic_publish("", "q", b"old", PERSISTENT)
    channel.queue_purge("q")
    channel.basic_publish("", "q", b"new", PERSISTENT)
    server.kill()
    server.start()
    assert get_all(server.channel(), "q") == [b"new"]


def test_order_and_marks_of_what_was_given_back(start: Start) -> None:
    server = start()
    channel = server.channel(confirms=True)
    channel.queue_declare("q", durable=True)
    for number in range(6):
        channel.basic_publish("", "q", b"%d" % number, PERSISTENT)
    tags = [channel.basic_get("q")[0].delivery_tag for _ in range(4)]
    channel.basic_ack(tags[0])
    channel.basic_nack(tags[2], requeue=True)
    channel.basic_nack(tags[3], requeue=False)
    channel.basic_publish("", "q", b"6", PERSISTENT)
    server.kill()
    server.start()
    channel = server.channel()
    got = [channel.basic_get("q") for _ in range(5)]
    assert [(body, method.redelivered) for method, _, body in got] == [
        (b"1", True), (b"2", True), (b"4", False), (b"5", False), (b"6", False)
    ]  # fmt: skip
    assert channel.basic_get("q")[0] is None


@pytest.mark.parametrize("arguments", [{}, {"x-max-priority": 3}], ids=["plain", "priority"])
@pytest.mark.parametrize("how", ["consume", "get"])
def test_what_was_delivered_from_a_backlog_says_so_after_a_crash(
    start: Start, how: str, arguments: dict[str, Any]
) -> None:
    """Nothing else is done with the queue after the deliveries, so only they can make the log note them."""
    server = start()
    connection = server.connect()
    channel, confirming = connection.channel(), connection.channel()
    confirming.confirm_delivery()
    channel.queue_declare("q", durable=True, arguments=arguments)
    channel.queue_declare("other", durable=True)
    for number in range(6):
        confirming.basic_publish("", "q", b"%d" % number, PERSISTENT)
    if how == "get":
        got = [channel.basic_get("q")[2] for _ in range(3)]
    else:
        channel.basic_qos(prefetch_count=3)
        messages = channel.consume("q")
        got = [next(messages)[2] for _ in range(3)]
    assert got == [b"0", b"1", b"2"]
    confirming.basic_publish("", "other", b"", PERSISTENT)  # It is confirmed when all before it is on disk.
    server.kill()
    server.start()
    channel = server.channel()
    there = [channel.basic_get("q") for _ in range(6)]
    assert [(body, method.redelivered) for method, _, body in there] == [
        (b"%d" % number, number < 3) for number in range(6)
    ]


# -- Space --------------------------------------------------------------------------------------------------------


def test_fan_out_is_stored_once(start: Start) -> None:
    server = start()
    channel = server.channel(confirms=True)
    for queue in ("a", "b", "c"):
        channel.queue_declare(queue, durable=True)
        channel.queue_bind(queue, "amq.fanout")
    before = log_bytes(server)
    body = os.urandom(MIB)
    for _ in range(8):
        channel.basic_publish("amq.fanout", "", body, PERSISTENT)
    assert 8 * MIB <= log_bytes(server) - before < 9 * MIB
    server.kill()
    server.start()
    for queue in ("a", "b", "c"):
        assert get_all(server.channel(), queue) == [body] * 8


def log_bytes(server: Server) -> int:
    """How much the log holds, without what is set aside."""
    total = 0
    for path in server.segments():
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            pass  # Reclaimed while we looked.
    return total


@pytest.mark.parametrize("leave_one", [False, True], ids=["all", "all-but-the-oldest"])
def test_space_is_reclaimed(start: Start, leave_one: bool) -> None:
    """200 MB through a queue leave next to nothing behind, even if the first message is never acknowledged."""
    server = start("segment_bytes = 8MiB\n")
    channel = server.channel()
    channel.queue_declare("q", durable=True)
    with RawClient(server.port) as publisher:
        publisher.open()
        publisher.method(m.ConfirmSelect())
        publisher.expect(m.ConfirmSelectOk)
        bundle = publish_frames("", "q", b"x" * 100_000, persistent=True) * 10
        for _ in range(200):
            publisher.send(bundle)
        confirmed = 0
        while confirmed < 2000:
            ack = publisher.expect(m.BasicAck)
            confirmed = max(confirmed, ack.delivery_tag)
    full = server.disk_bytes()
    assert full > 200_000_000
    if leave_one:
        channel.basic_get("q")
    with RawClient(server.port) as consumer:
        consumer.open()
        consumer.method(m.BasicConsume(queue="q"))
        consumer.expect(m.BasicConsumeOk)
        for _ in range(1999 if leave_one else 2000):
            tag = consumer.expect(m.BasicDeliver).delivery_tag
            consumer.frame(), consumer.frame()
            if tag % 50 == 0:
                consumer.method(m.BasicAck(tag, True))
        if tag % 50:
            consumer.method(m.BasicAck(tag, True))
        until(lambda: log_bytes(server) < 20_000_000, "segments to go")
        # A few files are kept to be written over, which is faster than to make new ones.
        until(lambda: server.disk_bytes() < 100_000_000, "space to be given back")
        consumer.method(m.BasicQos())
        consumer.expect(m.BasicQosOk)
    certain = server.channel(confirms=True)
    certain.queue_declare("marks", durable=True)
    certain.basic_publish("", "marks", b"", PERSISTENT)
    server.kill()
    server.start()
    assert waiting(server.channel(), "q") == (1 if leave_one else 0)


# -- Damage -------------------------------------------------------------------------------------------------------


def filled(start: Start) -> Server:
    """A server that was killed after 300 confirmed messages, in groups of one."""
    server = start()
    channel = server.channel(confirms=True)
    channel.queue_declare("q", durable=True)
    for number in range(300):
        channel.basic_publish("", "q", b"%03d" % number * 100, PERSISTENT)
    server.kill()
    return server


@pytest.mark.parametrize("cut", [1, 20, 200])
def test_torn_tail(start: Start, cut: int) -> None:
    """The last write is incomplete: it is dropped, and all before it is there."""
    server = filled(start)
    last = server.segments()[-1]
    data = last.read_bytes()
    os.truncate(last, len(data) - cut)
    server.start()
    bodies = get_all(server.channel(), "q")
    assert 298 <= len(bodies) <= 300
    assert bodies == [b"%03d" % number * 100 for number in range(len(bodies))]
    channel = server.channel(confirms=True)
    channel.basic_publish("", "q", b"more", PERSISTENT)
    server.kill()
    server.start()
    assert get_all(server.channel(), "q")[-1] == b"more"


def test_damage_in_the_middle(start: Start) -> None:
    """A flipped byte in what was synced: the node refuses to start and names the place; `log check` finds the same."""
    server = filled(start)
    segment = server.segments()[0]
    data = bytearray(segment.read_bytes())
    at = len(data) // 2
    data[at] ^= 0x55
    segment.write_bytes(data)
    process = server.spawn()
    output, _ = process.communicate(timeout=60)
    server.process = None
    assert "ready" not in output
    assert process.returncode == 65
    assert names_the_place(server.log(), segment.name, at)
    assert "Traceback" not in server.log()
    check = run_tool("log", "check", str(server.data))
    assert check.returncode == 65
    assert names_the_place(check.stdout, segment.name, at)
    repair = run_tool("log", "repair", str(server.data))
    assert repair.returncode == 0, repair.stderr
    server.start()
    bodies = get_all(server.channel(), "q")
    assert 250 < len(bodies) < 300
    assert bodies == sorted(bodies)


def names_the_place(text: str, name: str, at: int) -> bool:
    """Whether it says which bytes of which file are damaged, and they are the ones."""
    places = re.findall(re.escape(name) + r" at (\d+)\+(\d+)", text)
    return any(int(first) <= at < int(first) + int(size) for first, size in places)


def run_tool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "leveret", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )


def test_two_nodes_cannot_share_a_folder(start: Start) -> None:
    server = start()
    second = Server(server.folder, server.config)
    process = second.spawn()
    output, _ = process.communicate(timeout=60)
    assert "ready" not in output and process.returncode != 0
    assert server.channel().connection.is_open


def test_stop_in_order_keeps_what_was_not_confirmed(start: Start) -> None:
    """A publisher without confirms, and then SIGTERM: what the server had taken is written."""
    server = start()
    channel = server.channel()
    channel.queue_declare("q", durable=True)
    for number in range(2000):
        channel.basic_publish("", "q", b"%d" % number, PERSISTENT)
    assert waiting(channel, "q") == 2000
    assert server.stop() == 0
    with pytest.raises(AMQPError):
        channel.connection.process_data_events(60)
    server.start()
    assert get_all(server.channel(), "q") == [b"%d" % number for number in range(2000)]


# -- Returns ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_how_often_a_message_came_back_outlives_a_restart(start: Start, end: str) -> None:
    server = start()
    channel = server.channel(confirms=True)
    channel.queue_declare("dead", durable=True)
    limited = {"x-delivery-limit": 2, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    channel.queue_declare("q", durable=True, arguments={"x-queue-type": "quorum", **limited})
    channel.basic_publish("", "q", b"m", PERSISTENT)
    for expected in (0, 1):
        method, properties, _ = channel.basic_get("q")
        assert properties.headers == {"x-delivery-count": expected}
        channel.basic_nack(method.delivery_tag, requeue=True)
    channel.basic_publish("", "dead", b"mark", PERSISTENT)  # Confirmed behind the nack, so the disk knows of that, too.
    server.kill() if end == "kill" else server.stop()
    server.start()
    channel = server.channel()
    method, properties, _ = next(channel.consume("q"))
    assert (method.redelivered, properties.headers) == (True, {"x-delivery-count": 2})
    channel.basic_nack(method.delivery_tag, requeue=True)
    channel.cancel()
    until(lambda: waiting(channel, "dead") == 2, "it is dead")
    assert waiting(channel, "q") == 0
    (_, _, mark), (_, properties, body) = [channel.basic_get("dead", auto_ack=True) for _ in range(2)]
    assert (mark, body) == (b"mark", b"m")
    assert properties.headers["x-death"][0]["reason"] == "delivery_limit"


def test_priorities_outlive_a_crash(start: Start) -> None:
    server = start("content_cache_bytes = 64KB\n")
    connection = server.connect()
    channel, confirming = connection.channel(), connection.channel()
    confirming.confirm_delivery()
    channel.queue_declare("q", durable=True, arguments={"x-max-priority": 10})
    rng = random.Random(1)
    levels = [rng.randrange(13) for _ in range(600)]
    for number, level in enumerate(levels):
        properties = pika.BasicProperties(delivery_mode=2, priority=level)
        channel.basic_publish("", "q", b"%d" % number + b" " * 1_000, properties)
    order = sorted(range(600), key=lambda number: (-min(levels[number], 10), number))
    for number in order[:100]:
        method, _, body = channel.basic_get("q")
        assert int(body) == number
        if number % 2:
            channel.basic_ack(method.delivery_tag)
    channel.queue_declare("q", passive=True)  # The acks have come.
    confirming.basic_publish("", "q", b"600", pika.BasicProperties(delivery_mode=2))  # And all is on disk.
    server.kill()
    server.start()
    channel = server.connect().channel()
    expected = [number for number in order if number % 2 == 0 or number not in order[:100]] + [600]
    found = []
    for _ in expected:
        method, _, body = channel.basic_get("q", auto_ack=True)
        found.append((int(body), method.redelivered))
    assert [number for number, _ in found] == expected
    assert {number for number, mark in found if mark} == {number for number in order[:100] if number % 2 == 0}
    assert channel.basic_get("q")[0] is None
