"""A blocking AMQP connection with one open channel."""

from __future__ import annotations

import socket
import ssl
import struct
from types import TracebackType
from typing import Final, Self

from leveret.client.address import Address
from leveret.client.amqp import (
    BASIC_CONSUME,
    BASIC_QOS,
    CHANNEL,
    CONFIRM_SELECT,
    DURABLE,
    EXCHANGE_DECLARE,
    HEARTBEAT,
    METHOD,
    METHOD_ID,
    NO_ACK,
    NOWAIT,
    QUEUE_BIND,
    QUEUE_DECLARE,
    QUEUE_DELETE,
    BrokerError,
    Name,
    Table,
    closing_text,
    method,
    short,
    table,
    take_frame,
)
from leveret.client.handshake import PROTOCOL_HEADER, Handshake

CALL_TIMEOUT_S: Final = 30.0
RECEIVE_BYTES: Final = 1 << 18
PRODUCT: Final = "leveret client"


class Connection:
    """A connection that is logged in, with channel 1 open and no heartbeats. An endpoint takes over `socket` and
    `received`, the bytes that came and are not taken apart yet."""

    def __init__(
        self,
        address: Address,
        name: str,
        properties: Table | None = None,
        tls: ssl.SSLContext | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> None:
        """Logs in with these client properties besides the usual ones. Raises OSError, BrokerError."""
        self.address = address
        self.received = bytearray()
        handshake = Handshake(address, {"product": PRODUCT, "connection_name": name, **(properties or {})})
        self.socket = socket.create_connection((address.host, address.port), timeout_s)
        try:
            if tls is not None:
                self.socket = tls.wrap_socket(self.socket, server_hostname=address.host)
            self._log_in(handshake)
        except EOFError:
            self.socket.close()
            hint = ""
            if not handshake.is_authenticated:
                shown = "does it want another certificate, " if tls is not None else ""
                hint = f": is it a broker, {shown}are user and password right?"
            raise BrokerError(f"{address} closed the connection{hint}") from None
        except BaseException:
            self.socket.close()
            raise
        self.frame_max = handshake.frame_max
        self.server_properties = handshake.server_properties

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _log_in(self, handshake: Handshake) -> None:
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(PROTOCOL_HEADER)
        while not handshake.is_open:
            self.socket.sendall(handshake.on_method(*self._read_method()))

    def close(self) -> None:
        """Closes the socket without connection.close: its answer might stand behind many deliveries."""
        self.socket.close()

    def read_frame(self) -> tuple[int, bytes]:
        """Returns the type and payload of the next frame. Raises EOFError when the broker has closed the connection."""
        while True:
            found = take_frame(self.received)
            if found is not None:
                return found
            data = self.socket.recv(RECEIVE_BYTES)
            if not data:
                raise EOFError
            self.received += data
            if self.received[:4] == b"AMQP":
                raise BrokerError(f"{self.address} speaks another protocol than AMQP 0-9-1")
            if self.received[:5] == b"HTTP/":
                raise BrokerError(f"{self.address} speaks HTTP: it is no port for AMQP")

    def _read_method(self) -> tuple[Name, bytes]:
        """Returns the next method and its arguments, skipping heartbeats."""
        while True:
            kind, payload = self.read_frame()
            if kind != HEARTBEAT:
                break
        name = METHOD_ID.unpack_from(payload)
        if kind != METHOD:
            raise BrokerError(closing_text(name, payload[METHOD_ID.size :]))
        return name, payload[METHOD_ID.size :]

    def expect(self, name: Name) -> bytes:
        """Returns the arguments of the next method, which must be this one."""
        got, arguments = self._read_method()
        if got != name:
            raise BrokerError(closing_text(got, arguments))
        return arguments

    def call(self, name: Name, arguments: bytes) -> bytes:
        """Sends a method on the channel and returns the arguments of its answer."""
        self.socket.sendall(method(name, arguments, CHANNEL))
        try:
            return self.expect((name[0], name[1] + 1))
        except EOFError:
            raise BrokerError(f"{self.address} closed the connection") from None

    def declare_queue(self, name: str, arguments: Table | None = None) -> None:
        self.call(QUEUE_DECLARE, b"\0\0" + short(name) + bytes((DURABLE,)) + table(arguments or {}))

    def delete_queue(self, name: str) -> None:
        self.call(QUEUE_DELETE, b"\0\0" + short(name) + b"\0")

    def declare_exchange(self, name: str, kind: str) -> None:
        self.call(EXCHANGE_DECLARE, b"\0\0" + short(name) + short(kind) + bytes((DURABLE,)) + table({}))

    def bind(self, queue: str, exchange: str, key: str) -> None:
        self.call(QUEUE_BIND, b"\0\0" + short(queue) + short(exchange) + short(key) + b"\0" + table({}))

    def select_confirms(self) -> None:
        self.call(CONFIRM_SELECT, b"\0")

    def set_prefetch(self, count: int) -> None:
        self.call(BASIC_QOS, struct.pack(">IHB", 0, count, 0))

    def consume(self, queue: str, tag: str, no_ack: bool, nowait: bool = False) -> None:
        """Starts a consumer. Use `nowait` once deliveries come: `call` takes only the answer as the next method."""
        flags = (NO_ACK if no_ack else 0) | (NOWAIT if nowait else 0)
        arguments = b"\0\0" + short(queue) + short(tag) + bytes((flags,)) + table({})
        if nowait:
            self.socket.sendall(method(BASIC_CONSUME, arguments))
        else:
            self.call(BASIC_CONSUME, arguments)
