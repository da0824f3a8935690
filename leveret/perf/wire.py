"""As much AMQP 0-9-1 as a load needs, in bytes put together by hand, and calls that wait for their answer to set up."""

from __future__ import annotations

import os
import socket
import ssl
import struct
from collections.abc import Mapping
from types import TracebackType
from typing import Final, NamedTuple, Self
from urllib.parse import unquote, urlsplit

CALL_TIMEOUT_S: Final = 30.0
RECEIVE_BYTES: Final = 1 << 18
URI_CHARACTERS_MAX: Final = 4096
DEFAULT_PORTS: Final = {"amqp": 5672, "amqps": 5671}
FRAME_MAX: Final = 131_072
CHANNEL: Final = 1

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
END: Final = 0xCE
HEAD: Final = struct.Struct(">BHI")
OVERHEAD: Final = HEAD.size + 1
METHOD_ID: Final = struct.Struct(">HH")
CONFIRM: Final = struct.Struct(">QB")
ACK_FRAME: Final = struct.Struct(">BHIHHQBB")

Name = tuple[int, int]
CONNECTION_START, CONNECTION_START_OK = (10, 10), (10, 11)
CONNECTION_TUNE, CONNECTION_TUNE_OK = (10, 30), (10, 31)
CONNECTION_OPEN, CONNECTION_CLOSE = (10, 40), (10, 50)
CONNECTION_BLOCKED, CONNECTION_UNBLOCKED = (10, 60), (10, 61)
CHANNEL_OPEN, CHANNEL_CLOSE = (20, 10), (20, 40)
EXCHANGE_DECLARE, EXCHANGE_DELETE = (40, 10), (40, 20)
QUEUE_DECLARE, QUEUE_BIND, QUEUE_DELETE = (50, 10), (50, 20), (50, 40)
BASIC_QOS, BASIC_CONSUME, BASIC_CANCEL = (60, 10), (60, 20), (60, 30)
BASIC_PUBLISH, BASIC_RETURN, BASIC_DELIVER = (60, 40), (60, 50), (60, 60)
BASIC_ACK, BASIC_NACK = (60, 80), (60, 120)
CONFIRM_SELECT = (85, 10)

DURABLE, NO_ACK, NOWAIT, MANDATORY = 2, 2, 8, 1
CAPABILITIES: Final = {
    name: True
    for name in (
        "publisher_confirms",
        "basic.nack",
        "connection.blocked",
        "consumer_cancel_notify",
        "authentication_failure_close",
    )
}

Argument = bool | int | str
Table = Mapping[str, "Argument | Mapping[str, bool]"]


class BrokerError(Exception):
    """The broker refused something, or went away; the text is for people."""


class BadUri(ValueError):
    """No address of an AMQP broker."""


class Address(NamedTuple):
    host: str
    port: int
    user: str
    password: str
    vhost: str
    tls: bool = False

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def parse_uri(text: str) -> Address:
    """amqp://user:password@host:port/vhost, or amqps; what is missing is guest, 5672 or 5671, and the vhost "/". Raises
    BadUri."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise BadUri(f"{text}: {error}") from None
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname:
        raise BadUri(f"{text}: give amqp://user:password@host:port/vhost, or amqps:// for TLS")
    if parts.query:
        raise BadUri(f"{text}: parameters in the address ({parts.query}) are not supported")
    vhost = unquote(parts.path[1:]) if len(parts.path) > 1 else "/"
    return Address(
        parts.hostname,
        port or DEFAULT_PORTS[parts.scheme],
        unquote(parts.username or "guest"),
        unquote(parts.password or "guest"),
        vhost,
        parts.scheme == "amqps",
    )


def read_uri(text: str) -> Address:
    """The same, or `@FILE` or `env:NAME` for an address that is kept there: what stands in a command line, everybody on
    the machine can read. Raises BadUri, which does not tell what a file or a variable has."""
    if text.startswith("@"):
        where = f"the address in {text[1:]}"
        try:
            with open(text[1:], encoding="utf-8") as file:
                found = file.read(URI_CHARACTERS_MAX).strip()
        except (OSError, UnicodeDecodeError) as error:
            raise BadUri(f"{where} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    elif text.startswith("env:"):
        where = f"the address in the variable {text[4:]}"
        found = os.environ.get(text[4:], "").strip()
    else:
        return parse_uri(text)
    try:
        return parse_uri(found)
    except BadUri:
        raise BadUri(f"{where} is none: amqp://user:password@host:port/vhost is meant, or amqps:// for TLS") from None


# -- Bytes ---------------------------------------------------------------------------------------------------------


def short(text: str) -> bytes:
    raw = text.encode()
    if len(raw) > 255:
        raise BrokerError(f"a name has at most 255 bytes, this one has {len(raw)}: {text[:40]}...")
    return bytes((len(raw),)) + raw


def long(raw: bytes) -> bytes:
    return struct.pack(">I", len(raw)) + raw


def table(fields: Table) -> bytes:
    return long(b"".join(short(name) + _field(value) for name, value in fields.items()))


def _field(value: Argument | Mapping[str, bool]) -> bytes:
    match value:
        case bool():
            return b"t" + bytes((value,))
        case int():
            return b"l" + struct.pack(">q", value)
        case str():
            return b"S" + long(value.encode())
        case _:
            return b"F" + table(value)


def frame(kind: int, payload: bytes, channel: int = CHANNEL) -> bytes:
    return HEAD.pack(kind, channel, len(payload)) + payload + bytes((END,))


def method(name: Name, arguments: bytes = b"", channel: int = CHANNEL) -> bytes:
    return frame(METHOD, METHOD_ID.pack(*name) + arguments, channel)


def publish(exchange: str, key: str, persistent: bool, mandatory: bool, body: bytes, frame_max: int) -> bytes:
    """All frames of one message."""
    routing = b"\0\0" + short(exchange) + short(key) + bytes((MANDATORY if mandatory else 0,))
    properties = b"\x10\x00\x02" if persistent else b"\x10\x00\x01"
    header = struct.pack(">HHQ", 60, 0, len(body)) + properties
    room = frame_max - OVERHEAD
    bodies = [frame(BODY, body[at : at + room]) for at in range(0, len(body), room)]
    return b"".join([method(BASIC_PUBLISH, routing), frame(HEADER, header), *bodies])


def ack_each(first: int, last: int) -> bytes:
    pack = ACK_FRAME.pack
    return b"".join([pack(METHOD, CHANNEL, 13, *BASIC_ACK, tag, 0, END) for tag in range(first, last + 1)])


def ack_through(tag: int) -> bytes:
    return ACK_FRAME.pack(METHOD, CHANNEL, 13, *BASIC_ACK, tag, 1, END)


def closing_text(name: Name, arguments: bytes) -> str:
    """What a close of the broker's says; or what else came instead of what was awaited."""
    if name in (CONNECTION_CLOSE, CHANNEL_CLOSE):
        code = int.from_bytes(arguments[:2], "big")
        text = arguments[3 : 3 + arguments[2]].decode("utf-8", "replace")
        return f"{'connection' if name == CONNECTION_CLOSE else 'channel'} closed by the broker: {code} {text}"
    return f"unexpected method {name[0]}.{name[1]}"


# -- A connection --------------------------------------------------------------------------------------------------


class Connection:
    """Logged in, with channel 1 open and no heartbeats. `socket` and `received` are taken over by an endpoint."""

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
        self.frame_max = FRAME_MAX
        self.greeting = b""  # The arguments of connection.start: versions, and what the server says of itself.
        self.socket = socket.create_connection((address.host, address.port), timeout_s)
        try:
            if tls is not None:
                self.socket = tls.wrap_socket(self.socket, server_hostname=address.host)
            self._log_in({"product": "leveret perf", "connection_name": name, **(properties or {})})
        except EOFError:
            self.socket.close()
            shown = "does it want another certificate, " if tls is not None else ""
            raise BrokerError(
                f"{address} closed the connection: is it a broker, {shown}are user and password right?"
            ) from None
        except BaseException:
            self.socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _log_in(self, said: Table) -> None:
        address = self.address
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(b"AMQP\0\0\x09\x01")
        self.greeting = self.expect(CONNECTION_START)
        properties = table({**said, "capabilities": CAPABILITIES})
        response = f"\0{address.user}\0{address.password}".encode()
        self.socket.sendall(
            method(CONNECTION_START_OK, properties + short("PLAIN") + long(response) + short("en_US"), 0)
        )
        channel_max, frame_max, _ = struct.unpack(">HIH", self.expect(CONNECTION_TUNE))
        self.frame_max = min(frame_max or FRAME_MAX, FRAME_MAX)
        tuned = method(CONNECTION_TUNE_OK, struct.pack(">HIH", channel_max, self.frame_max, 0), 0)
        self.socket.sendall(tuned)
        self._ask(CONNECTION_OPEN, short(address.vhost) + b"\0\0", 0)
        self.call(CHANNEL_OPEN, b"\0")

    def close(self) -> None:
        """Without a word, since deliveries may still be on their way and would have to be read first."""
        self.socket.close()

    def read_frame(self) -> tuple[int, bytes]:
        received = self.received
        while True:
            if len(received) >= OVERHEAD:
                kind, _, size = HEAD.unpack_from(received)
                if len(received) >= size + OVERHEAD:
                    payload = bytes(received[HEAD.size : HEAD.size + size])
                    del received[: size + OVERHEAD]
                    return kind, payload
            data = self.socket.recv(RECEIVE_BYTES)
            if not data:
                raise EOFError
            received += data
            if received[:4] == b"AMQP":
                raise BrokerError(f"{self.address} speaks another protocol than AMQP 0-9-1")

    def expect(self, name: Name) -> bytes:
        """The arguments of the next method, which must be this one."""
        while True:
            kind, payload = self.read_frame()
            if kind != HEARTBEAT:
                break
        got = METHOD_ID.unpack_from(payload)
        if kind != METHOD or got != name:
            raise BrokerError(closing_text(got, payload[METHOD_ID.size :]))
        return payload[METHOD_ID.size :]

    def call(self, name: Name, arguments: bytes) -> bytes:
        return self._ask(name, arguments, CHANNEL)

    def _ask(self, name: Name, arguments: bytes, channel: int) -> bytes:
        self.socket.sendall(method(name, arguments, channel))
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
        """With `nowait` there is no answer, for which one could not wait once deliveries come."""
        flags = (NO_ACK if no_ack else 0) | (NOWAIT if nowait else 0)
        arguments = b"\0\0" + short(queue) + short(tag) + bytes((flags,)) + table({})
        if nowait:
            self.socket.sendall(method(BASIC_CONSUME, arguments))
        else:
            self.call(BASIC_CONSUME, arguments)
