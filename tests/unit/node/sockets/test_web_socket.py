"""A WebSocket without sockets: the client's end is another machine of the library, the transport below a list."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Message, Ping, Pong, TextMessage

from leveret.node.sockets.web_socket import (
    READ_BYTES_MAX,
    REQUEST_BYTES_MAX,
    SENT_MESSAGE_BYTES_MAX,
    Service,
    WebSocket,
)

MQTT = Service("/ws", ("mqtt",), message_bytes_max=100_000)
KEY = "dGhlIHNhbXBsZSBub25jZQ=="
ACCEPT = b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="  # RFC 6455, 1.3.


class Raw(asyncio.Transport):
    """A TCP transport."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.calls: list[str] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.is_closing()
        self.written += data

    def take(self) -> bytes:
        written, self.written = self.written, b""
        return written

    def close(self) -> None:
        self.calls.append("close")

    def abort(self) -> None:
        self.calls.append("abort")

    def is_closing(self) -> bool:
        return "close" in self.calls or "abort" in self.calls

    def pause_reading(self) -> None:
        self.calls.append("pause")

    def resume_reading(self) -> None:
        self.calls.append("resume")

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("192.0.2.1", 5) if name == "peername" else default


class Inside(asyncio.Protocol):
    """The protocol behind a WebSocket."""

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.events: list[str] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, WebSocket)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.got.append(data)

    def pause_writing(self) -> None:
        self.events.append("pause_writing")

    def resume_writing(self) -> None:
        self.events.append("resume_writing")

    def connection_lost(self, error: Exception | None) -> None:
        self.events.append("lost")


class Later:
    """As much of an event loop as there has to be."""

    def __init__(self) -> None:
        self.timers: list[Any] = []
        self.soon: list[Any] = []

    def call_soon(self, callback: Any) -> None:
        self.soon.append(callback)

    def run(self) -> None:
        while self.soon:
            self.soon.pop(0)()

    def call_later(self, seconds: float, callback: Any) -> Any:
        self.timers.append(callback)
        return self

    def cancel(self) -> None:
        self.timers.clear()


def request(path: str = "/ws", method: str = "GET", drop: str = "", **changed: str) -> bytes:
    headers = {
        "Host": "broker",
        "Upgrade": "websocket",
        "Connection": "keep-alive, Upgrade",
        "Sec-WebSocket-Key": KEY,
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Protocol": "x, mqtt",
        "Sec-WebSocket-Extensions": "permessage-deflate",
    }
    headers |= {name.replace("_", "-"): value for name, value in changed.items()}
    headers.pop(drop, None)
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode()


class Pair:
    """A client and a server. Only `send` and `deliver` move bytes."""

    def __init__(self, service: Service = MQTT, upgraded: bool = True) -> None:
        self.raw, self.inside, self.loop = Raw(), Inside(), Later()
        self.server = WebSocket(service, self.loop, lambda: self.inside)  # type: ignore[arg-type]
        self.server.connection_made(self.raw)
        self.client = Connection(ConnectionType.CLIENT)
        if upgraded:
            self.server.data_received(request())
            assert self.status() == 101

    def send(self, *events: Event) -> None:
        self.server.data_received(b"".join(map(self.client.send, events)))
        self.loop.run()

    def events(self) -> list[Event]:
        """Returns what the server has sent, as the client reads it."""
        self.client.receive_data(self.raw.take())
        return list(self.client.events())

    def status(self) -> int:
        head = self.raw.take()
        assert head.startswith(b"HTTP/1.1 ")
        return int(head[9:12])


def data(*pieces: bytes) -> list[BytesMessage]:
    return [BytesMessage(piece) for piece in pieces]


# -- The upgrade ----------------------------------------------------------------------------------------------------


def test_an_upgrade_names_the_subprotocol_and_agrees_on_no_extension() -> None:
    pair = Pair(upgraded=False)
    pair.server.data_received(request())
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method="GET", target="/ws", headers=[("Host", "x"), ("Upgrade", "websocket")]))
    client.send(h11.EndOfMessage())
    client.receive_data(pair.raw.take())
    answer = client.next_event()
    assert isinstance(answer, h11.InformationalResponse) and answer.status_code == 101
    assert dict(answer.headers) == {
        b"upgrade": b"websocket",
        b"connection": b"Upgrade",
        b"sec-websocket-accept": ACCEPT,
        b"sec-websocket-protocol": b"mqtt",
    }


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        (request("/"), 404),
        (request("/ws/"), 404),
        (request("/api/overview", drop="Upgrade"), 404),
        (request(method="POST"), 405),
        (request(drop="Upgrade"), 426),
        (request(drop="Connection"), 426),
        (request(Upgrade="h2c"), 426),
        (request(drop="Sec-WebSocket-Version"), 426),
        (request(Sec_WebSocket_Version="8"), 426),
        (request(drop="Sec-WebSocket-Key"), 400),
        (request(drop="Sec-WebSocket-Protocol"), 400),
        (request(Sec_WebSocket_Protocol="stomp, mqttv3.1"), 400),
        (request(Content_Length="5"), 400),
        (b"CONNECT\x00\x04MQTT\r\n\r\n", 400),
        (b"\x10\x10\x00\x04MQTT\x04\x02\x00\x3c\x00\x04abcd\r\n\r\n", 400),
        (b"GET /ws HTTP/1.1\r\nX: " + b"a" * REQUEST_BYTES_MAX, 431),
    ],
)
def test_other_requests_are_refused(asked: bytes, status: int) -> None:
    pair = Pair(upgraded=False)
    pair.server.data_received(asked)
    assert pair.status() == status
    assert pair.raw.calls == ["close"]
    pair.server.data_received(request())
    assert not pair.raw.written and not pair.inside.got


def test_a_path_may_have_a_query() -> None:
    pair = Pair(upgraded=False)
    pair.server.data_received(request("/ws?token=1"))
    assert pair.status() == 101


def test_a_request_comes_byte_by_byte_and_frames_right_behind_it() -> None:
    pair = Pair(upgraded=False)
    first = pair.client.send(BytesMessage(b"at once"))
    asked = request()
    for place in range(len(asked) - 1):
        pair.server.data_received(asked[place : place + 1])
        assert not pair.raw.written
    pair.server.data_received(asked[-1:] + first)
    assert pair.status() == 101
    assert pair.inside.got == [b"at once"]


def test_nothing_is_written_before_the_upgrade() -> None:
    pair = Pair(upgraded=False)
    pair.server.write(b"early")
    assert not pair.raw.written
    pair.server.close()
    assert not pair.raw.written and pair.raw.calls == ["close"]


# -- Messages -------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.binary(max_size=300), st.booleans()), max_size=8), st.lists(st.integers(1, 200)))
def test_bytes_come_in_order_however_they_are_cut(messages: list[tuple[bytes, bool]], cuts: list[int]) -> None:
    pair = Pair()
    stream = b"".join(pair.client.send(BytesMessage(one, message_finished=is_last)) for one, is_last in messages)
    for cut in cuts:
        pair.server.data_received(stream[:cut])
        stream = stream[cut:]
    pair.server.data_received(stream)
    assert b"".join(pair.inside.got) == b"".join(one for one, _ in messages)
    assert not pair.raw.calls


def test_frames_of_one_read_are_handed_over_together() -> None:
    pair = Pair()
    pair.send(*data(b"a", b"b"), Ping(b"p"), *data(b"c"))
    assert pair.inside.got == [b"abc"]


def test_a_frame_is_not_waited_for() -> None:
    pair = Pair(Service("/ws", ("mqtt",)))
    frame = pair.client.send(BytesMessage(b"x" * 1_000_000))
    pair.server.data_received(frame[:5_000])
    assert b"".join(pair.inside.got) == b"x" * (5_000 - 14)


def test_what_is_written_becomes_messages_of_a_limited_size() -> None:
    pair = Pair()
    payload = bytes(range(256)) * 1024
    pair.inside.transport.writelines([payload, b"end"])
    events = pair.events()
    assert all(isinstance(one, BytesMessage) for one in events)
    assert b"".join(one.data for one in events if isinstance(one, BytesMessage)) == payload + b"end"
    sizes = [len(one.data) for one in events if isinstance(one, BytesMessage)]
    assert max(sizes) <= SENT_MESSAGE_BYTES_MAX


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        ([TextMessage("text")], 1003),
        ([BytesMessage(b"x" * 100_001)], 1009),
        ([BytesMessage(b"x" * 50_001, message_finished=False), BytesMessage(b"x" * 50_000)], 1009),
    ],
)
def test_messages_that_are_refused(sent: list[Message[Any]], code: int) -> None:
    pair = Pair()
    pair.send(*data(b"before"))
    pair.send(*sent, *data(b"after"))
    (close,) = pair.events()
    assert isinstance(close, CloseConnection) and close.code == code
    assert pair.raw.calls[-1] == "close" and pair.raw.calls.count("close") == 1
    assert pair.inside.got[0] == b"before" and b"after" not in b"".join(pair.inside.got)


def test_bytes_before_a_mistake_count() -> None:
    pair = Pair()
    pair.send(*data(b"before"), TextMessage("text"))
    assert pair.inside.got == [b"before"]
    assert pair.raw.calls == ["close"]


def test_text_for_a_protocol_of_text() -> None:
    pair = Pair(Service("/ws", ("mqtt",), takes_text=True))
    pair.send(TextMessage("grüße"))
    assert pair.inside.got == ["grüße".encode()]


@pytest.mark.parametrize(
    "frame",
    [
        b"\x82\x01a",  # It is not masked.
        b"\xc2\x81\x00\x00\x00\x00a",  # A bit of an extension that was not agreed on.
        b"\x83\x81\x00\x00\x00\x00a",  # An unknown kind of frame.
        b"\x80\x81\x00\x00\x00\x00a",  # It continues nothing.
        b"\x89\xfe\x00\x7e\x00\x00\x00\x00",  # A control frame that is too long.
        b"\x09\x81\x00\x00\x00\x00a",  # A control frame in pieces.
        b"\x82\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x00",  # More bytes than there can be.
    ],
)
def test_frames_that_are_none(frame: bytes) -> None:
    pair = Pair()
    pair.server.data_received(frame)
    (close,) = pair.events()
    assert isinstance(close, CloseConnection) and close.code == 1002
    assert pair.raw.calls == ["close"] and not pair.inside.got


# -- Pings, flow control, ends --------------------------------------------------------------------------------------


def test_the_last_of_several_pings_is_answered() -> None:
    pair = Pair()
    pair.send(Ping(b"one"), Ping(b"two"))
    assert pair.events() == [Pong(b"two")]


def test_a_client_that_does_not_read_gets_one_pong_when_it_reads_again() -> None:
    pair = Pair()
    pair.server.pause_writing()
    for number in range(1000):
        pair.send(Ping(b"%d" % number))
    assert not pair.raw.written
    pair.server.resume_writing()
    assert pair.events() == [Pong(b"999")]
    assert pair.inside.events == ["pause_writing", "resume_writing"]


def test_reading_is_paused_below() -> None:
    pair = Pair()
    pair.inside.transport.pause_reading()
    pair.inside.transport.resume_reading()
    assert pair.raw.calls == ["pause", "resume"]


def test_a_large_read_is_handled_in_parts() -> None:
    """So that many small frames of one client do not stop the event loop for everybody."""
    pair = Pair(Service("/ws", ("mqtt",)))
    payload = bytes(range(256)) * (READ_BYTES_MAX // 64)
    pair.server.data_received(pair.client.send(BytesMessage(payload)))
    assert len(b"".join(pair.inside.got)) < READ_BYTES_MAX and pair.raw.calls == ["pause"]
    while pair.loop.soon:
        assert pair.raw.calls == ["pause"]
        (go_on,) = pair.loop.soon
        pair.loop.soon.clear()
        go_on()
    assert b"".join(pair.inside.got) == payload and pair.raw.calls == ["pause", "resume"]


def test_parts_wait_while_reading_is_paused() -> None:
    pair = Pair(Service("/ws", ("mqtt",)))
    payload = b"x" * 3 * READ_BYTES_MAX
    pair.server.data_received(pair.client.send(BytesMessage(payload)))
    pair.inside.transport.pause_reading()
    pair.loop.run()
    held = len(b"".join(pair.inside.got))
    assert held < READ_BYTES_MAX and "resume" not in pair.raw.calls
    for _ in range(3):  # To pause and resume before the loop comes to it hands out nothing twice.
        pair.inside.transport.resume_reading()
        pair.inside.transport.pause_reading()
    pair.loop.run()
    assert len(b"".join(pair.inside.got)) == held
    pair.inside.transport.resume_reading()
    pair.loop.run()
    assert b"".join(pair.inside.got) == payload and pair.raw.calls[-1] == "resume"


def test_what_was_read_is_not_handled_after_the_end() -> None:
    pair = Pair(Service("/ws", ("mqtt",)))
    pair.server.data_received(pair.client.send(BytesMessage(b"x" * 3 * READ_BYTES_MAX)))
    held = len(pair.inside.got)
    pair.server.connection_lost(None)
    pair.loop.run()
    assert len(pair.inside.got) == held and pair.raw.calls == ["pause"]


@pytest.mark.parametrize(("code", "answer"), [(1000, 1000), (1001, 1001), (1005, 1000), (4000, 4000)])
def test_a_close_of_the_client_is_answered(code: int, answer: int) -> None:
    pair = Pair()
    pair.send(CloseConnection(code, None))
    (close,) = pair.events()
    assert isinstance(close, CloseConnection) and close.code == answer
    assert pair.raw.calls == ["close"]
    pair.inside.transport.write(b"late")
    assert not pair.raw.written
    pair.server.connection_lost(None)
    assert pair.inside.events == ["lost"] and not pair.loop.timers


def test_an_end_without_a_close_of_the_socket() -> None:
    """As `lingering` needs it: what the client still sends is read, up to its close frame."""
    pair = Pair()
    last = pair.client.send(BytesMessage(b"on its way"))
    assert pair.inside.transport.can_write_eof()
    pair.inside.transport.write_eof()
    (close,) = pair.events()
    assert isinstance(close, CloseConnection) and close.code == 1000
    pair.server.data_received(last)
    assert pair.inside.got == [b"on its way"] and not pair.raw.calls
    pair.send(close.response())
    assert pair.raw.calls == ["close"] and not pair.raw.written


def test_a_close_of_ours() -> None:
    pair = Pair()
    pair.inside.transport.write(b"last")
    pair.inside.transport.close()
    last, close = pair.events()
    assert last == BytesMessage(b"last") and isinstance(close, CloseConnection)
    assert pair.raw.calls == ["close"] and pair.inside.transport.is_closing()
    (abort,) = pair.loop.timers  # The client may not read it.
    abort()
    assert pair.raw.calls == ["close", "abort"]


def test_another_protocol_takes_over() -> None:
    pair = Pair()
    other = Inside()
    pair.inside.transport.set_protocol(other)
    pair.send(*data(b"x"))
    pair.server.connection_lost(None)
    assert other.got == [b"x"] and other.events == ["lost"] and not pair.inside.events
