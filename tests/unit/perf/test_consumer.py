"""Deliveries, alike or not, in pieces of any size."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Iterator
from typing import cast

import pytest

from leveret.client import amqp
from leveret.client.amqp import BrokerError
from leveret.client.connection import Connection
from leveret.perf.consumer import Consumer
from leveret.perf.publisher import MARK, STAMP


class Scripted:
    """As much of a connection as a consumer needs."""

    def __init__(self) -> None:
        self.socket, self.other = socket.socketpair()
        self.received = bytearray()
        self.prefetch = 0
        self.consumed: list[tuple[str, str, bool]] = []

    def set_prefetch(self, count: int) -> None:
        self.prefetch = count

    def consume(self, queue: str, tag: str, no_ack: bool, nowait: bool = False) -> None:
        self.consumed.append((queue, tag, no_ack))

    def sent(self) -> bytes:
        self.other.setblocking(False)
        try:
            return self.other.recv(1 << 20)
        except BlockingIOError:
            return b""


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    one = Scripted()
    yield one
    one.socket.close()
    one.other.close()


def consumer(scripted: Scripted, ack_every: int = 0) -> Consumer:
    return Consumer(cast(Connection, scripted), ["q"], prefetch=10, ack_every=ack_every)


def delivery(tag: int, body: bytes, key: str = "q", redelivered: bool = False, frame_max: int = 131_072) -> bytes:
    arguments = amqp.short("perf-00000") + struct.pack(">QB", tag, redelivered) + amqp.short("") + amqp.short(key)
    header = struct.pack(">HHQ", 60, 0, len(body)) + b"\x10\x00\x02"
    room = frame_max - amqp.OVERHEAD
    bodies = [amqp.frame(amqp.BODY, body[at : at + room]) for at in range(0, len(body), room)]
    return b"".join([amqp.method(amqp.BASIC_DELIVER, arguments), amqp.frame(amqp.HEADER, header), *bodies])


def stamped(size: int = 100, stamp: int = 1) -> bytes:
    return (MARK + STAMP.pack(stamp) + bytes(size))[:size]


def test_acks_that_the_socket_does_not_take_spoil_nothing(scripted: Scripted) -> None:
    """What came is dealt with, whether the answer can be sent now or not."""
    one = consumer(scripted, ack_every=1)
    one.socket.setblocking(False)
    with pytest.raises(BlockingIOError):
        while True:
            one.socket.send(bytes(1 << 16))
    first, second = delivery(1, stamped()), delivery(2, stamped())
    assert one.on_data(first + second[:-5]) == second[:-5]
    assert (one.received, bytes(one.unsent)) == (1, amqp.ack_each(1, 1))
    assert one.on_data(second) == b""
    assert (one.received, bytes(one.unsent)) == (2, amqp.ack_each(1, 1))


def test_what_is_asked_for(scripted: Scripted) -> None:
    consumer(scripted)
    assert (scripted.prefetch, scripted.consumed) == (10, [("q", "perf-00000", True)])


def test_alike(scripted: Scripted) -> None:
    one = consumer(scripted)
    assert one.on_data(b"".join(delivery(tag, stamped(stamp=tag % 3)) for tag in range(1, 1001))) == b""
    assert (one.received, one.latency.count) == (1_000, 1_000)


@pytest.mark.parametrize("seed", range(30))
def test_any_mixture_in_any_pieces(scripted: Scripted, seed: int) -> None:
    rng = random.Random(seed)
    data, with_time = b"", 0
    for tag in range(1, 101):
        kind = rng.choice(("usual", "usual", "usual", "other key", "other size", "empty", "foreign", "frames", "beat"))
        if kind == "beat":
            data += amqp.frame(amqp.HEARTBEAT, b"", 0)
        body = {"other size": stamped(50), "empty": b"", "foreign": bytes(100)}.get(kind, stamped())
        key = "another" if kind == "other key" else "q"
        data += delivery(tag, body, key, rng.random() < 0.3, 4096 if kind != "frames" else 60)
        with_time += kind not in ("empty", "foreign")
    one = consumer(scripted)
    rest, at = b"", 0
    while at < len(data):
        size = rng.choice((1, 10, 200, 5_000))
        rest = one.on_data(rest + data[at : at + size])
        at += size
    assert (rest, one.received, one.latency.count) == (b"", 100, with_time)


def test_a_body_that_looks_like_frames(scripted: Scripted) -> None:
    """The bytes of a delivery within a delivery count for nothing."""
    inner = delivery(9, stamped(12))
    one = consumer(scripted)
    one.on_data(delivery(1, stamped(12)) + delivery(2, inner * 3) + delivery(3, stamped(12)))
    assert (one.received, one.latency.count) == (3, 2)


def test_acks_of_each(scripted: Scripted) -> None:
    one = consumer(scripted, ack_every=1)
    one.on_data(b"".join(delivery(tag, stamped()) for tag in (1, 2, 3)))
    acks = [amqp.method(amqp.BASIC_ACK, struct.pack(">QB", tag, 0)) for tag in (1, 2, 3)]
    assert scripted.sent() == b"".join(acks)


def test_acks_of_several(scripted: Scripted) -> None:
    one = consumer(scripted, ack_every=2)
    one.on_data(b"".join(delivery(tag, stamped()) for tag in range(1, 6)))
    assert scripted.sent() == amqp.ack_through(4)
    one.ack_rest()
    one.ack_rest()
    assert scripted.sent() == amqp.ack_through(5)


def test_no_acks(scripted: Scripted) -> None:
    one = consumer(scripted)
    one.on_data(delivery(1, stamped()))
    one.ack_rest()
    assert scripted.sent() == b""


def test_the_broker_ends_it(scripted: Scripted) -> None:
    close = struct.pack(">H", 406) + amqp.short("PRECONDITION_FAILED - late") + bytes(4)
    with pytest.raises(BrokerError, match="channel closed by the broker: 406 PRECONDITION_FAILED - late"):
        consumer(scripted).on_data(amqp.method(amqp.CHANNEL_CLOSE, close))
    with pytest.raises(BrokerError, match="cancelled the consumer"):
        consumer(scripted).on_data(amqp.method(amqp.BASIC_CANCEL, amqp.short("perf-00000") + b"\1"))
