"""A WebSocket as a transport: the socket of any protocol works behind it as it does behind TCP.

To the event loop a `WebSocket` is the protocol of an accepted socket. To the protocol inside (`MqttSocket`,
`StompSocket`) it is the transport. That protocol is told of its connection when the socket is accepted, before the
upgrade: so the login timeout and all limits of connections include the upgrade, and no limit is here twice.

Nothing is gathered. The bytes of a frame go to the protocol inside as they come, whether the frame is whole or not,
for MQTT and STOMP do not care where messages begin (MQTT 5, 6.0). What a client may have in memory is up to the
protocol inside, as with TCP. A request has a limit in bytes, and control frames have the specification's. Of several
pings the last is answered, once the client reads: a client that only sends pings would fill our memory otherwise.

`wsproto` makes and reads frames. The upgrade is read with `h11`, because `wsproto` loses what a client sends right
after its request. No extension is agreed on, so nothing is compressed.
"""

from __future__ import annotations

import asyncio
import base64
import enum
import http
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

import h11
from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Message, Ping, TextMessage
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import generate_accept_token

from leveret.node.sockets.proxy_protocol import Header

logger = logging.getLogger("leveret.connection")

REQUEST_BYTES_MAX: Final = 16 * 1024
SENT_MESSAGE_BYTES_MAX: Final = 64 * 1024  # Some clients refuse messages of more than a megabyte, or gather them.
READ_BYTES_MAX: Final = 32 * 1024  # Handled at a time. A read can have 40,000 empty frames, which take 0.3 s.
CLOSE_S: Final = 10.0  # For a client to read what is written to it before a close.
VERSION: Final = b"13"


@dataclass(frozen=True, slots=True)
class Service:
    """What is behind WebSockets of a listener, and how clients ask for it."""

    path: str
    subprotocols: tuple[str, ...]  # Those that a client may offer, the best first.
    needs_subprotocol: bool = True  # A client must offer one of them.
    takes_text: bool = False
    sends_text: bool = False  # What is text is sent in text frames.
    message_bytes_max: int | None = None  # Of a message, in all its frames.
    takes_login: bool = False  # A login in the request is that of the client: see `TakesLogin`.


class TakesLogin(Protocol):
    """A protocol inside of a WebSocket that can be told who has asked for it."""

    def on_http_login(self, user: str, password: str) -> None: ...


class Refused(Exception):
    """The upgrade is refused."""

    def __init__(self, status: int, reason: str, headers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(reason)
        self.status = status
        self.headers = headers


def accepted(request: h11.Request, service: Service) -> bytes:
    """Returns the answer to a request for an upgrade. Raises Refused."""
    values: dict[bytes, list[bytes]] = {}
    for name, value in request.headers:
        values.setdefault(name, []).append(value)

    def words(name: bytes) -> list[str]:
        joined = b",".join(values.get(name, ())).decode("latin-1")
        return [word.strip() for word in joined.split(",") if word.strip()]

    path = request.target.decode("latin-1").partition("?")[0]
    if path != service.path:
        raise Refused(404, f"there is nothing at this path; here: {service.path}")
    if request.method != b"GET":
        raise Refused(405, "only GET can be upgraded", (("allow", "GET"),))
    asks = "websocket" in map(str.lower, words(b"upgrade")) and "upgrade" in map(str.lower, words(b"connection"))
    if not asks or request.http_version < b"1.1":
        raise Refused(426, "this port is for WebSockets", (("upgrade", "websocket"),))
    if values.get(b"sec-websocket-version") != [VERSION]:
        raise Refused(426, "version 13 of WebSocket is spoken here", (("sec-websocket-version", "13"),))
    keys = values.get(b"sec-websocket-key", [])
    if len(keys) != 1 or not keys[0]:
        raise Refused(400, "one Sec-WebSocket-Key is needed")
    offered = words(b"sec-websocket-protocol")
    chosen = next((one for one in service.subprotocols if one in offered), None)
    if chosen is None and service.needs_subprotocol:
        raise Refused(400, f"Sec-WebSocket-Protocol must offer {' or '.join(service.subprotocols)}")
    headers = [
        ("upgrade", "websocket"),
        ("connection", "Upgrade"),
        ("sec-websocket-accept", generate_accept_token(keys[0]).decode("ascii")),
    ]
    if chosen is not None:
        headers.append(("sec-websocket-protocol", chosen))
    return _response(101, headers)


def login_in(request: h11.Request) -> tuple[str, str] | None:
    """Returns the user and the password that a request names, if it does. Raises Refused."""
    values = [value for name, value in request.headers if name == b"authorization"]
    if not values:
        return None
    scheme, _, encoded = values[0].partition(b" ")
    try:
        user, colon, password = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
    except ValueError:
        colon = ""
    if len(values) != 1 or scheme.lower() != b"basic" or not colon:
        raise Refused(400, "the header Authorization must be Basic, with a user and a password")
    return user, password


def refusal(refused: Refused) -> bytes:
    body = f"{refused}\n".encode()
    headers = (("connection", "close"), ("content-type", "text/plain"), ("content-length", str(len(body))))
    return _response(refused.status, (*headers, *refused.headers)) + body


def _response(status: int, headers: Iterable[tuple[str, str]]) -> bytes:
    lines = [f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}", *(f"{name}: {value}" for name, value in headers)]
    return "\r\n".join([*lines, "", ""]).encode("ascii")


class State(enum.Enum):
    UPGRADING = enum.auto()
    OPEN = enum.auto()  # Also while only one end has sent its close frame.
    ENDED = enum.auto()  # Nothing is read or written any more; the socket is being closed.


class WebSocket(asyncio.Protocol, asyncio.Transport):
    """One accepted socket. What is called by the event loop comes first, then what the protocol inside calls."""

    def __init__(
        self,
        service: Service,
        loop: asyncio.AbstractEventLoop,
        accept: Callable[[], asyncio.Protocol],
        header: Header | None = None,
    ) -> None:
        super().__init__()
        self.service = service
        self.inner: asyncio.BaseProtocol = accept()
        self.state = State.UPGRADING
        self._loop = loop
        self._header = header  # Of the PROXY protocol.
        self._http: h11.Connection | None = h11.Connection(h11.SERVER, max_incomplete_event_size=REQUEST_BYTES_MAX)
        self._frames = Connection(ConnectionType.SERVER)
        self._message_bytes = 0  # Of the message that is being received.
        self._rest = b""  # Read, and not handled yet. Nothing is read meanwhile.
        self._is_due = False  # The event loop will call `_go_on`.
        self._is_paused = False  # By the protocol inside.
        self._is_writable = True
        self._ping: Ping | None = None  # To be answered when the client reads.
        self._timer: asyncio.TimerHandle | None = None

    # -- Calls by the event loop ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.raw = cast(asyncio.Transport, transport)
        self.inner.connection_made(self)

    def data_received(self, data: bytes) -> None:
        if self._rest:
            self._rest += data
        elif len(data) <= READ_BYTES_MAX:
            self._handle(data)
        else:
            self._rest = data
            if not self._is_paused:
                self.raw.pause_reading()
            self._go_on()

    def _go_on(self) -> None:
        """Handles the next part of what was read; the event loop does other things before the one after it."""
        self._is_due = False
        if self._is_paused or self.is_closing():
            return
        data, self._rest = self._rest[:READ_BYTES_MAX], self._rest[READ_BYTES_MAX:]
        self._handle(data)
        if not self._is_paused and not self.is_closing():
            self._read_on()

    def _read_on(self) -> None:
        if not self._rest:
            self.raw.resume_reading()
        elif not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._go_on)

    def _handle(self, data: bytes) -> None:
        if self.state is State.UPGRADING:
            data = self._upgrade(data)
        if self.state is State.OPEN and data:
            self._take(data)

    def eof_received(self) -> bool | None:
        return cast(asyncio.Protocol, self.inner).eof_received()

    def pause_writing(self) -> None:
        self._is_writable = False
        self.inner.pause_writing()

    def resume_writing(self) -> None:
        self._is_writable = True
        self._answer_ping()
        self.inner.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self.state = State.ENDED
        if self._timer is not None:
            self._timer.cancel()
        self.inner.connection_lost(error)

    # -- The upgrade ---------------------------------------------------------------------------------------------

    def _upgrade(self, data: bytes) -> bytes:
        """Reads the request. Returns the bytes that came after it."""
        reader = self._http
        assert reader is not None
        try:
            reader.receive_data(data)
            request = reader.next_event()
            if request is h11.NEED_DATA:
                return b""
            if not isinstance(request, h11.Request):
                raise Refused(400, "no request")
            answer = accepted(request, self.service)
            if not isinstance(reader.next_event(), h11.EndOfMessage):
                raise Refused(400, "a request for an upgrade has no body")
            if self.service.takes_login and (login := login_in(request)) is not None:
                cast(TakesLogin, self.inner).on_http_login(*login)
        except h11.RemoteProtocolError as error:
            self._refuse(Refused(error.error_status_hint, "the request is no HTTP, or too long"))
            return b""
        except Refused as refused:
            self._refuse(refused)
            return b""
        self._http = None
        self.state = State.OPEN
        self.raw.write(answer)
        return reader.trailing_data[0]

    def _refuse(self, refused: Refused) -> None:
        ends = None if self._header is None else self._header.ends
        host = (ends or self.raw.get_extra_info("peername") or ("",))[0]
        logger.warning("a WebSocket from %s is refused: %d, %s", host, refused.status, refused)
        self.raw.write(refusal(refused))
        self._end()

    # -- Frames --------------------------------------------------------------------------------------------------

    def _take(self, data: bytes) -> None:
        self._frames.receive_data(data)
        taken: list[bytes] = []
        close: CloseConnection | None = None
        for event in self._frames.events():
            if isinstance(event, CloseConnection):
                close = event
            elif isinstance(event, Ping):
                self._ping = event
            elif isinstance(event, Message):
                close = self._problem_of(event)
                if close is None:
                    taken.append(event.data.encode() if isinstance(event, TextMessage) else event.data)
            if close is not None:
                break  # What comes after a close is not read.
        self._answer_ping()
        if taken:
            # At once, as from TCP: the protocol inside stops the reading of what comes after it, not of this.
            cast(asyncio.Protocol, self.inner).data_received(b"".join(taken))
        if close is not None and self.state is State.OPEN:
            self._on_close(close)

    def _problem_of(self, event: Message[Any]) -> CloseConnection | None:
        if isinstance(event, TextMessage) and not self.service.takes_text:
            return CloseConnection(CloseReason.UNSUPPORTED_DATA, "binary frames only")
        self._message_bytes += len(event.data)
        limit = self.service.message_bytes_max
        if limit is not None and self._message_bytes > limit:
            return CloseConnection(CloseReason.MESSAGE_TOO_BIG, f"messages have {limit} bytes at most")
        if event.message_finished:
            self._message_bytes = 0
        return None

    def _on_close(self, close: CloseConnection) -> None:
        """Ends the connection: the client has sent a close frame, or made a mistake."""
        if self._frames.state is ConnectionState.REMOTE_CLOSING:
            close = close.response()
        self._send(close)
        self._end()

    def _answer_ping(self) -> None:
        if self._ping is not None and self._is_writable:
            self._send(self._ping.response())
            self._ping = None

    def _send(self, event: Event) -> None:
        """Writes a frame, unless this end has sent its close frame."""
        frames = self._frames.state
        answers = frames is ConnectionState.REMOTE_CLOSING and isinstance(event, CloseConnection)
        if self.state is State.OPEN and (frames is ConnectionState.OPEN or answers):
            self.raw.write(self._frames.send(event))

    def _end(self) -> None:
        """Closes the socket when the client has read what is written; it gets some seconds for that."""
        if self.state is not State.ENDED:
            self.state = State.ENDED
            self.raw.close()
            self._timer = self._loop.call_later(CLOSE_S, self.raw.abort)

    # -- Calls by the protocol inside ----------------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Returns what the socket below has, and True for `websocket`."""
        return True if name == "websocket" else self.raw.get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.inner = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self.inner

    def is_closing(self) -> bool:
        return self.state is State.ENDED or self.raw.is_closing()

    def is_reading(self) -> bool:
        return self.raw.is_reading()

    def pause_reading(self) -> None:
        self._is_paused = True
        if not self._rest:
            self.raw.pause_reading()

    def resume_reading(self) -> None:
        self._is_paused = False
        self._read_on()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.raw.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self.raw.get_write_buffer_size()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self.raw.get_write_buffer_limits()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.service.sends_text:
            try:
                text = bytes(data).decode()
            except UnicodeDecodeError:
                pass  # Some body in it is no text: a client that cannot take binary frames could not take it, either.
            else:
                for start in range(0, len(text), SENT_MESSAGE_BYTES_MAX // 4):
                    self._send(TextMessage(text[start : start + SENT_MESSAGE_BYTES_MAX // 4]))
                return
        for start in range(0, len(data), SENT_MESSAGE_BYTES_MAX):
            self._send(BytesMessage(bytes(data[start : start + SENT_MESSAGE_BYTES_MAX])))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return self.state is State.OPEN

    def write_eof(self) -> None:
        """Sends a close frame. What the client still sends is read, up to its own close frame."""
        self._send(CloseConnection(CloseReason.NORMAL_CLOSURE))

    def close(self) -> None:
        if self.state is State.OPEN:
            self.write_eof()
        self._end()

    def abort(self) -> None:
        self.state = State.ENDED
        self.raw.abort()
