"""As much AMQP 0-9-1 as a load needs, in bytes put together by hand.

A client library would spend more time on a message than the brokers measured here, and the figures would be its own. So
publishes are encoded once and sent again and again (`publish`), and only what sets the scene goes through calls that
wait for their answer (`Connection`).
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self

HOST: Final = "127.0.0.1"
CALL_TIMEOUT_S: Final = 120.0
RECEIVE_BYTES: Final = 1 << 18

METHOD, HEADER, BODY = 1, 2, 3
HEAD: Final = struct.Struct(">BHI")
HEAD_AND_END: Final = HEAD.size + 1
METHOD_ID: Final = struct.Struct(">HH")
CONFIRM: Final = struct.Struct(">QB")

CONNECTION_START, CONNECTION_START_OK = (10, 10), (10, 11)
CONNECTION_TUNE, CONNECTION_TUNE_OK = (10, 30), (10, 31)
CONNECTION_OPEN, CONNECTION_OPEN_OK = (10, 40), (10, 41)
CONNECTION_CLOSE, CHANNEL_CLOSE = (10, 50), (20, 40)
CHANNEL_OPEN = (20, 10)
EXCHANGE_DECLARE, EXCHANGE_DELETE = (40, 10), (40, 20)
QUEUE_DECLARE, QUEUE_BIND, QUEUE_DELETE = (50, 10), (50, 20), (50, 40)
BASIC_QOS, BASIC_CONSUME, BASIC_PUBLISH, BASIC_DELIVER = (60, 10), (60, 20), (60, 40), (60, 60)
BASIC_GET, BASIC_GET_OK = (60, 70), (60, 71)
BASIC_ACK, BASIC_NACK = (60, 80), (60, 120)
CONFIRM_SELECT = (85, 10)

DURABLE, PASSIVE, NO_ACK, NOWAIT_BIND = 2, 1, 2, 1


class BrokerError(Exception):
    """The broker refused something, or went away."""


def short(text: str) -> bytes:
    raw = text.encode()
    return bytes((len(raw),)) + raw


def long(raw: bytes) -> bytes:
    return struct.pack(">I", len(raw)) + raw


def table(fields: Mapping[str, bool | int | str | Mapping[str, bool]]) -> bytes:
    return long(b"".join(short(name) + _field(value) for name, value in fields.items()))


def _field(value: bool | int | str | Mapping[str, bool]) -> bytes:
    match value:
        case bool():
            return b"t" + bytes((value,))
        case int():
            return b"l" + struct.pack(">q", value)
        case str():
            return b"S" + long(value.encode())
        case _:
            return b"F" + table(value)


def frame(kind: int, payload: bytes, channel: int = 1) -> bytes:
    return HEAD.pack(kind, channel, len(payload)) + payload + b"\xce"


def method(name: tuple[int, int], arguments: bytes = b"", channel: int = 1) -> bytes:
    return frame(METHOD, METHOD_ID.pack(*name) + arguments, channel)


def publish(exchange: str, key: str, body: bytes, persistent: bool, message_id: str | None = None) -> bytes:
    """The frames of one message. With a message id it also gets headers and the usual other properties."""
    delivery_mode = b"\2" if persistent else b"\1"
    if message_id is None:
        properties = b"\x10\x00" + delivery_mode
    else:
        properties = b"".join(
            (
                struct.pack(">H", 0b1011_0100_1100_0000),
                short("application/json"),
                table({"tenant": "t1", "attempt": 3, "trace": message_id}),
                delivery_mode,
                short(message_id),  # correlation-id
                short(message_id),
                struct.pack(">Q", 1_700_000_000),
            )
        )
    header = struct.pack(">HHQ", 60, 0, len(body)) + properties
    routing = b"\0\0" + short(exchange) + short(key) + b"\0"
    return method(BASIC_PUBLISH, routing) + frame(HEADER, header) + frame(BODY, body)


def ack_through(tag: int) -> bytes:
    return method(BASIC_ACK, CONFIRM.pack(tag, 1))


def bind(queue: str, exchange: str, key: str, nowait: bool = False) -> bytes:
    names = b"\0\0" + short(queue) + short(exchange) + short(key)
    return method(QUEUE_BIND, names + bytes((NOWAIT_BIND if nowait else 0,)) + table({}))


def declare(queue: str, kind: str = "") -> bytes:
    arguments = {"x-queue-type": kind} if kind else {}
    return method(QUEUE_DECLARE, b"\0\0" + short(queue) + bytes((DURABLE,)) + table(arguments))


def get(queue: str) -> bytes:
    """Without acknowledgement."""
    return method(BASIC_GET, b"\0\0" + short(queue) + b"\1")


def delete(queue: str) -> bytes:
    return method(QUEUE_DELETE, b"\0\0" + short(queue) + b"\0")


def answer_to(name: tuple[int, int]) -> tuple[int, int]:
    return name[0], name[1] + 1


class Connection:
    """A logged-in connection with channel 1 open, without heartbeats. `socket` and `received` may be taken over."""

    def __init__(self, port: int, timeout_s: float = CALL_TIMEOUT_S) -> None:
        self.received = bytearray()
        self.socket = socket.create_connection((HOST, port), timeout_s)
        try:
            self._log_in()
        except BaseException:
            self.socket.close()
            raise

    def _log_in(self) -> None:
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(b"AMQP\0\0\x09\x01")
        self.version = _version(self.expect(CONNECTION_START))
        properties = table({"capabilities": {"publisher_confirms": True, "basic.nack": True}})
        login = properties + short("PLAIN") + long(b"\0guest\0guest") + short("en_US")
        self.socket.sendall(method(CONNECTION_START_OK, login, 0))
        self.expect(CONNECTION_TUNE)
        tuned = method(CONNECTION_TUNE_OK, struct.pack(">HIH", 2047, 131_072, 0), 0)
        self.socket.sendall(tuned + method(CONNECTION_OPEN, short("/") + b"\0\0", 0))
        self.expect(CONNECTION_OPEN_OK)
        self.call(CHANNEL_OPEN, b"\0")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Without a word, since deliveries may still be on their way and would have to be read first."""
        self.socket.close()

    def read_frame(self) -> tuple[int, bytes]:
        received = self.received
        while True:
            if len(received) >= HEAD_AND_END:
                kind, _, size = HEAD.unpack_from(received)
                if len(received) >= size + HEAD_AND_END:
                    payload = bytes(received[HEAD.size : HEAD.size + size])
                    del received[: size + HEAD_AND_END]
                    return kind, payload
            data = self.socket.recv(RECEIVE_BYTES)
            if not data:
                raise BrokerError("the broker closed the connection")
            received += data

    def expect(self, name: tuple[int, int]) -> bytes:
        """The arguments of the next frame, which must be this method."""
        kind, payload = self.read_frame()
        if kind != METHOD or METHOD_ID.unpack_from(payload) != name:
            raise BrokerError(f"expected method {name}, got {payload[:200]!r}")
        return payload[METHOD_ID.size :]

    def call(self, name: tuple[int, int], arguments: bytes) -> bytes:
        return self.ask(method(name, arguments), name)

    def ask(self, request: bytes, name: tuple[int, int]) -> bytes:
        self.socket.sendall(request)
        return self.expect(answer_to(name))

    def declare_queue(self, name: str, kind: str = "") -> None:
        self.ask(declare(name, kind), QUEUE_DECLARE)

    def count_messages(self, queue: str) -> int:
        answer = self.call(QUEUE_DECLARE, b"\0\0" + short(queue) + bytes((PASSIVE,)) + table({}))
        return int.from_bytes(answer[-8:-4], "big")

    def delete_queue(self, name: str) -> None:
        self.ask(delete(name), QUEUE_DELETE)

    def declare_exchange(self, name: str, kind: str) -> None:
        self.call(EXCHANGE_DECLARE, b"\0\0" + short(name) + short(kind) + bytes((DURABLE,)) + table({}))

    def delete_exchange(self, name: str) -> None:
        self.call(EXCHANGE_DELETE, b"\0\0" + short(name) + b"\0")

    def bind(self, queue: str, exchange: str, key: str) -> None:
        self.ask(bind(queue, exchange, key), QUEUE_BIND)

    def select_confirms(self) -> None:
        self.call(CONFIRM_SELECT, b"\0")

    def set_prefetch(self, count: int) -> None:
        self.call(BASIC_QOS, struct.pack(">IHB", 0, count, 0))

    def consume(self, queue: str, tag: str, ack: bool) -> None:
        flags = 0 if ack else NO_ACK
        self.call(BASIC_CONSUME, b"\0\0" + short(queue) + short(tag) + bytes((flags,)) + table({}))


def _version(start: bytes) -> str:
    """What connection.start's properties give as `version`, a long string."""
    mark = b"\x07versionS"
    at = start.index(mark) + len(mark)
    (size,) = struct.unpack_from(">I", start, at)
    return start[at + 4 : at + 4 + size].decode()
