"""Methods and bytes that the benchmarks send to a broker, beyond those of `leveret perf`.

A client library would spend more time on a message than the brokers measured here, and the figures would be its own. So
publishes are encoded once and sent again and again, and only what sets the scene goes through calls that wait for their
answer. What is sent many at a time (declarations, bindings, gets) can be had as bytes.
"""

from __future__ import annotations

import struct
from typing import Final

from leveret.client import amqp, connection
from leveret.client.address import Address
from leveret.client.amqp import (
    CHANNEL,
    CHANNEL_OPEN,
    DURABLE,
    EXCHANGE_DELETE,
    QUEUE_BIND,
    QUEUE_DECLARE,
    QUEUE_DELETE,
    Name,
    method,
    short,
    table,
)

HOST: Final = "127.0.0.1"
CALL_TIMEOUT_S: Final = 120.0
BASIC_GET, BASIC_GET_OK = (60, 70), (60, 71)
PASSIVE, NOWAIT_BIND = 1, 1


def publish(exchange: str, key: str, body: bytes, persistent: bool, message_id: str | None = None) -> bytes:
    """Returns the frames of one message. With a message id it also gets headers and the usual other properties."""
    if message_id is None:
        return amqp.publish(exchange, key, persistent, False, body, amqp.FRAME_MAX)
    properties = b"".join(
        (
            struct.pack(">H", 0b1011_0100_1100_0000),
            short("application/json"),
            table({"tenant": "t1", "attempt": 3, "trace": message_id}),
            b"\2" if persistent else b"\1",
            short(message_id),  # correlation-id
            short(message_id),
            struct.pack(">Q", 1_700_000_000),
        )
    )
    header = struct.pack(">HHQ", 60, 0, len(body)) + properties
    routing = b"\0\0" + short(exchange) + short(key) + b"\0"
    frames = (method(amqp.BASIC_PUBLISH, routing), amqp.frame(amqp.HEADER, header), amqp.frame(amqp.BODY, body))
    return b"".join(frames)


def bind(queue: str, exchange: str, key: str, nowait: bool = False) -> bytes:
    names = b"\0\0" + short(queue) + short(exchange) + short(key)
    return method(QUEUE_BIND, names + bytes((NOWAIT_BIND if nowait else 0,)) + table({}))


def declare(queue: str, channel: int = CHANNEL) -> bytes:
    return method(QUEUE_DECLARE, b"\0\0" + short(queue) + bytes((DURABLE,)) + table({}), channel)


def get(queue: str) -> bytes:
    """Returns a basic.get without acknowledgement."""
    return method(BASIC_GET, b"\0\0" + short(queue) + b"\1")


def delete(queue: str, channel: int = CHANNEL) -> bytes:
    return method(QUEUE_DELETE, b"\0\0" + short(queue) + b"\0", channel)


def open_channel(channel: int) -> bytes:
    return method(CHANNEL_OPEN, b"\0", channel)


def answer_to(name: Name) -> Name:
    return name[0], name[1] + 1


class Connection(connection.Connection):
    """A connection to a broker on this machine."""

    def __init__(self, port: int, timeout_s: float = CALL_TIMEOUT_S) -> None:
        super().__init__(Address(HOST, port, "guest", "guest", "/"), "benchmark", timeout_s=timeout_s)

    @property
    def version(self) -> str:
        """Returns the `version` in the properties of connection.start, a long string."""
        mark = b"\x07versionS"
        at = self.server_properties.index(mark) + len(mark)
        (size,) = struct.unpack_from(">I", self.server_properties, at)
        return self.server_properties[at + 4 : at + 4 + size].decode()

    def count_messages(self, queue: str) -> int:
        answer = self.call(QUEUE_DECLARE, b"\0\0" + short(queue) + bytes((PASSIVE,)) + table({}))
        return int.from_bytes(answer[-8:-4], "big")

    def delete_exchange(self, name: str) -> None:
        self.call(EXCHANGE_DELETE, b"\0\0" + short(name) + b"\0")
