"""The login, without a socket."""

from __future__ import annotations

import struct

import pytest

from leveret.client import amqp
from leveret.client.address import Address
from leveret.client.amqp import BrokerError, take_frame
from leveret.client.handshake import Handshake

ADDRESS = Address("h", 5672, "ann", "secret", "shop")


def tune(frame_max: int) -> bytes:
    return struct.pack(">HIH", 2047, frame_max, 60)


def methods(data: bytes) -> list[amqp.Name]:
    received, found = bytearray(data), []
    while (frame := take_frame(received)) is not None:
        found.append(amqp.METHOD_ID.unpack_from(frame[1]))
    assert not received
    return found


def test_all_steps() -> None:
    handshake = Handshake(ADDRESS, {"product": "test"})
    said = handshake.on_method(amqp.CONNECTION_START, b"server properties")
    assert methods(said) == [amqp.CONNECTION_START_OK]
    assert b"\0ann\0secret" in said and b"product" in said
    assert handshake.server_properties == b"server properties"
    assert not handshake.is_authenticated
    said = handshake.on_method(amqp.CONNECTION_TUNE, tune(8192))
    assert methods(said) == [amqp.CONNECTION_TUNE_OK, amqp.CONNECTION_OPEN]
    assert struct.pack(">HIH", 2047, 8192, 0) in said and b"\x04shop" in said
    assert handshake.frame_max == 8192 and handshake.is_authenticated
    assert methods(handshake.on_method(amqp.CONNECTION_OPEN_OK, b"\0")) == [amqp.CHANNEL_OPEN]
    assert not handshake.is_open
    assert handshake.on_method(amqp.CHANNEL_OPEN_OK, b"\0\0\0\0") == b""
    assert handshake.is_open


@pytest.mark.parametrize(("offered", "chosen"), [(0, amqp.FRAME_MAX), (1 << 20, amqp.FRAME_MAX), (4096, 4096)])
def test_frame_max(offered: int, chosen: int) -> None:
    handshake = Handshake(ADDRESS, {})
    handshake.on_method(amqp.CONNECTION_START, b"")
    handshake.on_method(amqp.CONNECTION_TUNE, tune(offered))
    assert handshake.frame_max == chosen


@pytest.mark.parametrize(
    ("wanted", "offered", "chosen"), [(0, 2047, 2047), (5, 2047, 5), (5, 3, 3), (5, 0, 5), (0, 0, 0)]
)
def test_channel_max(wanted: int, offered: int, chosen: int) -> None:
    handshake = Handshake(ADDRESS, {}, channel_max=wanted)
    handshake.on_method(amqp.CONNECTION_START, b"")
    assert struct.pack(">HIH", chosen, 8192, 0) in handshake.on_method(
        amqp.CONNECTION_TUNE, struct.pack(">HIH", offered, 8192, 0)
    )


def test_a_refusal_is_told() -> None:
    handshake = Handshake(ADDRESS, {})
    handshake.on_method(amqp.CONNECTION_START, b"")
    with pytest.raises(BrokerError, match="connection closed by the broker: 403 ACCESS_REFUSED"):
        handshake.on_method(amqp.CONNECTION_CLOSE, struct.pack(">H", 403) + amqp.short("ACCESS_REFUSED") + bytes(4))


def test_a_method_out_of_order() -> None:
    with pytest.raises(BrokerError, match=r"unexpected method 10\.30"):
        Handshake(ADDRESS, {}).on_method(amqp.CONNECTION_TUNE, tune(0))


def test_frames_in_pieces() -> None:
    data = amqp.method(amqp.CHANNEL_OPEN, b"\0") + amqp.frame(amqp.HEARTBEAT, b"", 0)
    received, found = bytearray(), []
    for byte in data:
        received.append(byte)
        if (frame := take_frame(received)) is not None:
            found.append(frame)
    assert found == [(amqp.METHOD, amqp.METHOD_ID.pack(*amqp.CHANNEL_OPEN) + b"\0"), (amqp.HEARTBEAT, b"")]
