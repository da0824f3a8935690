"""The clients' own AMQP against the broker's: two who learnt it from the same book."""

from __future__ import annotations

import pytest

from leveret.protocol import methods as m
from leveret.protocol.codec import encode
from simulation.amqp import protocol as p


def test_methods_are_what_the_broker_takes_them_for() -> None:
    sent = p.method(3, "queue.declare", 0, "q", False, True, True, False, False, b"")
    assert sent == encode(3, m.QueueDeclare(queue="q", durable=True, exclusive=True))
    assert p.method(1, "basic.nack", 7, True, False) == encode(1, m.BasicNack(7, True, False))
    assert p.method(0, "connection.tune-ok", 5, 6, 7) == encode(0, m.ConnectionTuneOk(5, 6, 7))


def test_what_the_broker_says_is_understood_however_it_is_cut() -> None:
    data = (
        encode(1, m.BasicDeliver("tag", 9, True, "", "key"))
        + p.content(1, b"12 body", persistent=True, piece=3)
        + p.HEARTBEAT_FRAME
        + encode(2, m.QueueDeclareOk("q", 4, 5))
    )
    expected = [
        p.Received(1, "basic.deliver", ("tag", 9, True, "", "key"), {"delivery_mode": 2}, b"12 body"),
        None,
        p.Received(2, "queue.declare-ok", ("q", 4, 5)),
    ]
    for size in (1, 2, 13, len(data)):
        reader, received = p.Reader(), []
        for at in range(0, len(data), size):
            received += list(reader.receive(data[at : at + size]))
        assert received == expected


@pytest.mark.parametrize(
    "data",
    [
        b"\x01\x00\x00\x00\x00\x00\x04\x00\x0a\x00\x33\x00",  # The end is not where it should be.
        p.frame(p.METHOD, 1, b"\x00\x3c\x00\x63"),
        p.frame(p.BODY, 1, b"x"),
        encode(1, m.BasicDeliver("tag", 9, True, "", "key")) + encode(1, m.BasicDeliver("tag", 9, True, "", "key")),
        encode(1, m.BasicDeliver("tag", 9, True, "", "key")) + p.content(1, b"abc", True)[:-4] + b"abcd\xce",
        p.frame(p.METHOD, 1, b"\x00\x14\x00\x29\x00"),
    ],
)
def test_what_makes_no_sense_is_an_error(data: bytes) -> None:
    with pytest.raises(p.Malformed):
        list(p.Reader().receive(data + b"\x00" * 8))
