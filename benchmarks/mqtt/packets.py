"""The packets of MQTT 3.1.1 that the benchmarks send, and a client that waits for answers.

All brokers that are measured speak this version. Packets are made by hand, so that a client costs little: what is
published is encoded once, and what arrives is told apart by its first byte and its known size.
"""

from __future__ import annotations

import socket
import struct
from types import TracebackType
from typing import Final, Self

from benchmarks.ruler.calls import HOST
from leveret.client.amqp import BrokerError

CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = 0x10, 0x20, 0x30, 0x40, 0x50, 0x62, 0x70
SUBSCRIBE, SUBACK, DISCONNECT = 0x82, 0x90, 0xE0
RETAIN: Final = 1
LEVEL: Final = 4  # Of the protocol: 3.1.1.
CLEAN_SESSION, HAS_NAME_AND_PASSWORD = 0x02, 0xC0
ACK_BYTES: Final = 4  # PUBACK, PUBREC, PUBREL and PUBCOMP: two bytes, then the packet identifier.
TIMEOUT_S: Final = 60.0


def packet(head: int, body: bytes) -> bytes:
    size, length = len(body), bytearray()
    while True:
        size, digit = divmod(size, 128)[0], size % 128
        length.append(digit | (0x80 if size else 0))
        if not size:
            return bytes((head,)) + length + body


def text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack(">H", len(encoded)) + encoded


def connect(client_id: str, is_clean: bool) -> bytes:
    flags = HAS_NAME_AND_PASSWORD | (CLEAN_SESSION if is_clean else 0)
    keep_alive = b"\0\0"  # None: an idle client sends nothing.
    body = text("MQTT") + bytes((LEVEL, flags)) + keep_alive + text(client_id) + text("guest") + text("guest")
    return packet(CONNECT, body)


def publish(topic: str, body: bytes, qos: int, identifier: int = 0, flags: int = 0) -> bytes:
    middle = struct.pack(">H", identifier) if qos else b""
    return packet(PUBLISH | qos << 1 | flags, text(topic) + middle + body)


def subscribe(topic_filter: str, qos: int) -> bytes:
    return packet(SUBSCRIBE, b"\0\1" + text(topic_filter) + bytes((qos,)))


def acks(head: int, high: bytes, low: bytes) -> bytes:
    """Returns one answer for each packet identifier, whose bytes are in `high` and `low`."""
    count = len(low)
    answers = bytearray(ACK_BYTES * count)
    answers[0::ACK_BYTES] = bytes((head,)) * count
    answers[1::ACK_BYTES] = b"\2" * count
    answers[2::ACK_BYTES] = high
    answers[3::ACK_BYTES] = low
    return bytes(answers)


class NotSupported(Exception):
    """The broker does not do what the workload asks for."""


class Client:
    """A connection that is open: its CONNECT was accepted, unless it `is_waiting` for that. Calls wait for their
    answer."""

    def __init__(
        self,
        port: int,
        client_id: str,
        is_clean: bool = True,
        timeout_s: float = TIMEOUT_S,
        is_waiting: bool = False,
    ) -> None:
        self.received = b""
        self.socket = socket.create_connection((HOST, port), timeout_s)
        try:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.socket.sendall(connect(client_id, is_clean))
            if not is_waiting:
                self.expect_accepted()
        except BaseException:
            self.socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def expect_accepted(self) -> None:
        code = self.expect(CONNACK, 4)[3]
        if code:
            raise BrokerError(f"CONNECT was refused with code {code}")

    def expect(self, head: int, size: int) -> bytes:
        """Returns the next packet, which has this first byte and size. What came with it stays in `received`."""
        while len(self.received) < size:
            more = self.socket.recv(1 << 16)
            if not more:
                raise BrokerError("the broker closed the connection")
            self.received += more
        answer, self.received = self.received[:size], self.received[size:]
        if answer[0] != head:
            raise BrokerError(f"expected a packet that begins with {head:#x}, not {answer!r}")
        return answer

    def subscribe(self, topic_filter: str, qos: int) -> None:
        self.socket.sendall(subscribe(topic_filter, qos))
        self.expect_granted(qos)

    def expect_granted(self, qos: int) -> None:
        granted = self.expect(SUBACK, 5)[4]
        if granted != qos:
            raise NotSupported(f"asked for QoS {qos} and got {granted:#x}")

    def disconnect(self) -> None:
        self.socket.sendall(packet(DISCONNECT, b""))
