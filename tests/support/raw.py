"""A client on a plain socket that sends exactly what a test wants, and can be silent or stop reading."""

from __future__ import annotations

import socket
from types import TracebackType
from typing import Any, TypeVar

from leveret.protocol import methods as m
from leveret.protocol.frames import BODY, HEAD, HEADER, HEARTBEAT, METHOD, PROTOCOL_HEADER, frame
from leveret.protocol.tables import table_from_python
from tests.support.servers import PATIENCE_S

T = TypeVar("T", bound=m.Method)
CAPABILITIES = {"authentication_failure_close": True, "consumer_cancel_notify": True, "connection.blocked": True}


class Unexpected(AssertionError):
    """The server sent something else."""

    def __init__(self, method: m.Method) -> None:
        super().__init__(method)
        self.method = method


class RawClient:
    """A blocking client. Every read has a deadline, so that a test fails instead of hanging."""

    def __init__(
        self, port: int, timeout_s: float = PATIENCE_S, receive_buffer_bytes: int | None = None, host: str = "127.0.0.1"
    ) -> None:
        self.socket = socket.socket()
        if receive_buffer_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.socket.settimeout(timeout_s)
        self.socket.connect((host, port))
        self.rest = b""

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.socket.close()

    # -- Sending -------------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def method(self, method: m.Method, channel: int = 1) -> None:
        self.send(m.encode(channel, method))

    # -- Receiving -----------------------------------------------------------------------------------------------

    def read(self, size: int) -> bytes:
        """Raises EOFError when the server closed the connection; a reset counts as that."""
        while len(self.rest) < size:
            try:
                data = self.socket.recv(1 << 16)
            except ConnectionResetError:
                data = b""
            if not data:
                raise EOFError
            self.rest += data
        data, self.rest = self.rest[:size], self.rest[size:]
        return data

    def frame(self) -> tuple[int, int, bytes]:
        kind, channel, length = HEAD.unpack(self.read(HEAD.size))
        payload = self.read(length + 1)
        assert payload[-1] == 0xCE
        return kind, channel, payload[:-1]

    def receive(self) -> m.Method:
        """Returns the next method; skips heartbeats, and expects no contents."""
        while True:
            kind, _, payload = self.frame()
            if kind != HEARTBEAT:
                assert kind == METHOD
                return m.decode_payload(payload)

    def expect(self, wanted: type[T]) -> T:
        method = self.receive()
        if not isinstance(method, wanted):
            raise Unexpected(method)
        return method

    def is_cut(self) -> bool:
        """Waits for the server to close the connection; returns False if it sends something else than heartbeats."""
        try:
            while True:
                if self.frame()[0] != HEARTBEAT:
                    return False
        except EOFError:
            return True

    # Login ---------------------------------------------------------------------------------------------------

    def begin(self) -> m.ConnectionStart:
        self.send(PROTOCOL_HEADER)
        return self.expect(m.ConnectionStart)

    def log_in(self, mechanism: str = "PLAIN", response: bytes = b"\0guest\0guest", **more: Any) -> None:
        """Logs in; `more` are further client properties."""
        properties = table_from_python({"product": "raw", "capabilities": CAPABILITIES, **more})
        self.method(m.ConnectionStartOk(properties, mechanism, response, "en_US"), 0)

    def open(self, vhost: str = "/", frame_max: int = 131_072, heartbeat_s: int = 0, **login: Any) -> RawClient:
        """Logs in, and opens the vhost and channel 1."""
        self.begin()
        self.log_in(**login)
        self.expect(m.ConnectionTune)
        self.method(m.ConnectionTuneOk(2047, frame_max, heartbeat_s), 0)
        self.method(m.ConnectionOpen(vhost), 0)
        self.expect(m.ConnectionOpenOk)
        self.method(m.ChannelOpen())
        self.expect(m.ChannelOpenOk)
        return self


def publish_frames(
    exchange: str, key: str, body: bytes, persistent: bool = False, mandatory: bool = False, frame_max: int = 131_072
) -> bytes:
    """Returns the frames of one message on channel 1."""
    properties = b"\x10\x00\x02" if persistent else b"\x00\x00"
    header = b"\x00\x3c\x00\x00" + len(body).to_bytes(8, "big") + properties
    method = m.encode(1, m.BasicPublish(exchange=exchange, routing_key=key, mandatory=mandatory))
    step = frame_max - 8
    bodies = [frame(BODY, 1, body[at : at + step]) for at in range(0, len(body), step)]
    return b"".join([method, frame(HEADER, 1, header), *bodies])
