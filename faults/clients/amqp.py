"""An AMQP connection with one channel on a plain socket. Everything has a deadline, and nothing is done twice."""

from __future__ import annotations

import socket
import time
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

from leveret.protocol import methods as m
from leveret.protocol.frames import BODY, HEAD, HEADER, HEARTBEAT, HEARTBEAT_FRAME, METHOD, PROTOCOL_HEADER, frame
from leveret.protocol.tables import decode_table, table_from_python

T = TypeVar("T", bound=m.Method)
CAPABILITIES = {"authentication_failure_close": True, "consumer_cancel_notify": True, "connection.blocked": True}
HEARTBEAT_S = 5
FRAME_MAX = 131_072


class Lost(Exception):
    """The connection is gone, or its broker is silent."""


class ChannelError(Exception):
    """The broker closed the channel."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code} {text}")
        self.code = code


class Message(NamedTuple):
    """A message with the method it came with."""

    method: m.BasicDeliver | m.BasicGetOk
    body: bytes
    properties: bytes  # Flags and fields, as on the wire.

    @property
    def stream_offset(self) -> int:
        """Returns the offset of a message of a stream. Its headers must be its first property."""
        offset = decode_table(self.properties, 2)[0]["x-stream-offset"].value
        assert isinstance(offset, int)
        return offset


class Returned(NamedTuple):
    """A message for which there was no queue."""

    body: bytes


class Amqp:
    """A connection. Methods raise Lost."""

    def __init__(self, host: str, port: int, timeout_s: float, heartbeat_s: int = HEARTBEAT_S) -> None:
        self.timeout_s, self.heartbeat_s = timeout_s, heartbeat_s
        self.rest = b""
        self.heard_s = self.said_s = time.monotonic()
        try:
            self.socket = socket.create_connection((host, port), timeout_s)
            self._log_in()
        except OSError as error:
            raise Lost(str(error)) from None

    def __enter__(self) -> Amqp:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.socket.close()

    def _log_in(self) -> None:
        self.socket.sendall(PROTOCOL_HEADER)
        self.expect(m.ConnectionStart)
        properties = table_from_python({"product": "faults", "capabilities": CAPABILITIES})
        self.send(m.ConnectionStartOk(properties, "PLAIN", b"\0guest\0guest", "en_US"), 0)
        self.expect(m.ConnectionTune)
        self.send(m.ConnectionTuneOk(2047, FRAME_MAX, self.heartbeat_s), 0)
        self.send(m.ConnectionOpen("/"), 0)
        self.expect(m.ConnectionOpenOk)
        self.open_channel()

    def open_channel(self) -> None:
        self.call(m.ChannelOpen(), m.ChannelOpenOk)

    # -- Sending -------------------------------------------------------------------------------------------------

    def send_bytes(self, data: bytes) -> None:
        try:
            self.socket.settimeout(self.timeout_s)
            self.socket.sendall(data)
        except OSError as error:
            raise Lost(str(error)) from None
        self.said_s = time.monotonic()

    def send(self, method: m.Method, channel: int = 1) -> None:
        self.send_bytes(m.encode(channel, method))

    def call(self, method: m.Method, answer: type[T]) -> T:
        self.send(method)
        return self.expect(answer)

    # -- Receiving -----------------------------------------------------------------------------------------------

    def expect(self, wanted: type[T], timeout_s: float | None = None) -> T:
        """Returns an answer. Deliveries must not come in between."""
        deadline = time.monotonic() + (self.timeout_s if timeout_s is None else timeout_s)
        while True:
            found = self.next(deadline - time.monotonic())
            if isinstance(found, wanted):
                return found
            if found is None and time.monotonic() >= deadline:
                raise Lost(f"no {wanted.__name__} in time")

    def next(self, seconds: float) -> m.Method | Message | Returned | None:
        """Returns the next method or message; None if there is none in time. Raises ChannelError."""
        try:
            kind, payload = self._frame(time.monotonic() + max(0.0, seconds))
        except TimeoutError:
            self._mind_heartbeats()
            return None
        if kind == HEARTBEAT:
            self._mind_heartbeats()
            return None
        if kind != METHOD:
            raise Lost(f"frame of kind {kind}")
        method = m.decode_payload(payload)
        if isinstance(method, m.ConnectionClose):
            raise Lost(f"{method.reply_code} {method.reply_text}")
        if isinstance(method, m.ChannelClose):
            self.send(m.ChannelCloseOk())
            raise ChannelError(method.reply_code, method.reply_text)
        if isinstance(method, m.BasicDeliver | m.BasicGetOk):
            return Message(method, *self._content())
        if isinstance(method, m.BasicReturn):
            return Returned(self._content()[0])
        return method

    def _content(self) -> tuple[bytes, bytes]:
        deadline = time.monotonic() + self.timeout_s
        try:
            header = self._frame(deadline)[1]
            size = int.from_bytes(header[4:12], "big")
            body = b""
            while len(body) < size:
                body += self._frame(deadline)[1]
        except TimeoutError:
            raise Lost("half a message") from None
        return body, header[12:]

    def _frame(self, deadline: float) -> tuple[int, bytes]:
        """Raises TimeoutError; what has come of a frame is kept."""
        self._fill(HEAD.size, deadline)
        kind, _, size = HEAD.unpack_from(self.rest)
        self._fill(HEAD.size + size + 1, deadline)
        payload = self.rest[HEAD.size : HEAD.size + size]
        self.rest = self.rest[HEAD.size + size + 1 :]
        return kind, payload

    def _fill(self, size: int, deadline: float) -> None:
        while len(self.rest) < size:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            try:
                self.socket.settimeout(left)
                data = self.socket.recv(1 << 16)
            except TimeoutError:
                raise
            except OSError as error:
                raise Lost(str(error)) from None
            if not data:
                raise Lost("closed")
            self.heard_s = time.monotonic()
            self.rest += data

    def _mind_heartbeats(self) -> None:
        now = time.monotonic()
        if now - self.said_s > self.heartbeat_s / 2:
            self.send_bytes(HEARTBEAT_FRAME)
        if now - self.heard_s > 2 * self.heartbeat_s:
            raise Lost("missed heartbeats")


def publish_frames(exchange: str, key: str, body: bytes, properties: bytes = b"\x10\x00\x02") -> bytes:
    """Returns the frames of a message, by default a persistent one. It comes back if there is no queue for it."""
    header = b"\x00\x3c\x00\x00" + len(body).to_bytes(8, "big") + properties
    method = m.encode(1, m.BasicPublish(exchange=exchange, routing_key=key, mandatory=True))
    return method + frame(HEADER, 1, header) + frame(BODY, 1, body)


def declare(client: Amqp, queue: str, arguments: dict[str, Any] | None = None, passive: bool = False) -> int:
    """Declares a durable queue; returns how many messages are ready."""
    table = table_from_python(arguments or {})
    asked = m.QueueDeclare(queue=queue, durable=True, passive=passive, arguments=table)
    return client.call(asked, m.QueueDeclareOk).message_count
