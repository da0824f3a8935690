"""AMQP 0-9-1 as a client speaks it, implemented a second time.

The broker's own codec is under test, so it is not used here. Only the methods of the simulated clients are known;
anything else that arrives is an error of the broker.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from simulation.amqp import contents
from simulation.amqp.contents import NO_EXTRAS, Extras

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
FRAME_END: Final = 0xCE
FRAME_MAX: Final = 131_072
HEARTBEAT_FRAME: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"

# Arguments in wire order. o octet, h short, l long, q longlong, s shortstr, S longstr, t table, b bit.
# Bits that follow each other share octets.
METHODS: Final[dict[str, tuple[int, int, str]]] = {
    "connection.start": (10, 10, "ootSS"),
    "connection.start-ok": (10, 11, "tsSs"),
    "connection.tune": (10, 30, "hlh"),
    "connection.tune-ok": (10, 31, "hlh"),
    "connection.open": (10, 40, "ssb"),
    "connection.open-ok": (10, 41, "s"),
    "connection.close": (10, 50, "hshh"),
    "connection.close-ok": (10, 51, ""),
    "connection.blocked": (10, 60, "s"),
    "connection.unblocked": (10, 61, ""),
    "channel.open": (20, 10, "s"),
    "channel.open-ok": (20, 11, "S"),
    "channel.close": (20, 40, "hshh"),
    "channel.close-ok": (20, 41, ""),
    "exchange.declare": (40, 10, "hssbbbbbt"),
    "exchange.declare-ok": (40, 11, ""),
    "exchange.delete": (40, 20, "hsbb"),
    "exchange.delete-ok": (40, 21, ""),
    "exchange.bind": (40, 30, "hsssbt"),
    "exchange.bind-ok": (40, 31, ""),
    "queue.declare": (50, 10, "hsbbbbbt"),
    "queue.declare-ok": (50, 11, "sll"),
    "queue.bind": (50, 20, "hsssbt"),
    "queue.bind-ok": (50, 21, ""),
    "queue.purge": (50, 30, "hsb"),
    "queue.purge-ok": (50, 31, "l"),
    "queue.delete": (50, 40, "hsbbb"),
    "queue.delete-ok": (50, 41, "l"),
    "queue.unbind": (50, 50, "hssst"),
    "queue.unbind-ok": (50, 51, ""),
    "basic.qos": (60, 10, "lhb"),
    "basic.qos-ok": (60, 11, ""),
    "basic.consume": (60, 20, "hssbbbbt"),
    "basic.consume-ok": (60, 21, "s"),
    "basic.cancel": (60, 30, "sb"),
    "basic.cancel-ok": (60, 31, "s"),
    "basic.publish": (60, 40, "hssbb"),
    "basic.return": (60, 50, "hsss"),
    "basic.deliver": (60, 60, "sqbss"),
    "basic.get": (60, 70, "hsb"),
    "basic.get-ok": (60, 71, "qbssl"),
    "basic.get-empty": (60, 72, "s"),
    "basic.ack": (60, 80, "qb"),
    "basic.reject": (60, 90, "qb"),
    "basic.nack": (60, 120, "qbb"),
    "confirm.select": (85, 10, "b"),
    "confirm.select-ok": (85, 11, ""),
    "tx.select": (90, 10, ""),
    "tx.select-ok": (90, 11, ""),
    "tx.commit": (90, 20, ""),
    "tx.commit-ok": (90, 21, ""),
    "tx.rollback": (90, 30, ""),
    "tx.rollback-ok": (90, 31, ""),
}
BY_ID: Final = {(class_id, method_id): (name, kinds) for name, (class_id, method_id, kinds) in METHODS.items()}
WITH_CONTENT: Final = frozenset({"basic.return", "basic.deliver", "basic.get-ok"})
_HEAD: Final = struct.Struct(">BHI")


class Malformed(AssertionError):
    """The broker sent something that no client understands."""


class Received(NamedTuple):
    """A method, with its content if it has one."""

    channel: int
    name: str
    arguments: tuple[Any, ...]
    properties: dict[str, Any] | None = None
    body: bytes = b""


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return _HEAD.pack(kind, channel, len(payload)) + payload + b"\xce"


def method(channel: int, name: str, *arguments: Any) -> bytes:
    class_id, method_id, kinds = METHODS[name]
    assert len(arguments) == len(kinds), name
    parts = [struct.pack(">HH", class_id, method_id)]
    bits = -1
    for kind, value in zip(kinds, arguments, strict=True):
        if kind == "b":
            bits += 1
            if bits % 8 == 0:
                parts.append(b"\x00")
            parts[-1] = bytes([parts[-1][0] | bool(value) << bits % 8])
            continue
        bits = -1
        if kind == "s":
            text = value.encode()
            parts.append(bytes([len(text)]) + text)
        elif kind == "S":
            parts.append(struct.pack(">I", len(value)) + value)
        elif kind == "t":
            parts.append(struct.pack(">I", len(value)) + value)  # Already encoded, mostly empty.
        else:
            parts.append(struct.pack({"o": ">B", "h": ">H", "l": ">I", "q": ">Q"}[kind], value))
    return frame(METHOD, channel, b"".join(parts))


def content(
    channel: int,
    body: bytes,
    persistent: bool,
    piece: int = FRAME_MAX - 8,
    extras: Extras = NO_EXTRAS,
    copies: tuple[str, str] | None = None,
) -> bytes:
    """Returns header and body frames."""
    header = contents.header(len(body), persistent, extras, copies)
    pieces = [body[at : at + piece] for at in range(0, len(body), piece)]
    return frame(HEADER, channel, header) + b"".join(frame(BODY, channel, one) for one in pieces)


def true_entry(name: str) -> bytes:
    """Returns an entry of a table with the value true."""
    return bytes([len(name)]) + name.encode() + b"t\x01"


def table_entry(name: str, entries: bytes) -> bytes:
    return bytes([len(name)]) + name.encode() + b"F" + struct.pack(">I", len(entries)) + entries


class Reader:
    """Turns bytes into methods with their contents."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._contents: dict[int, tuple[str, tuple[Any, ...], bytes | None, list[bytes], int]] = {}

    def receive(self, data: bytes) -> Iterator[Received | None]:
        """Returns the methods in these bytes; None stands for a heartbeat."""
        buffer = self._buffer
        buffer += data
        at = 0
        while len(buffer) - at >= 8:
            kind, channel, size = _HEAD.unpack_from(buffer, at)
            if size > FRAME_MAX:
                raise Malformed(f"a frame of {size} bytes")
            end = at + 7 + size
            if len(buffer) <= end:
                break
            if buffer[end] != FRAME_END:
                raise Malformed(f"a frame of kind {kind} ends with {buffer[end]}")
            payload = bytes(buffer[at + 7 : end])
            at = end + 1
            if kind == HEARTBEAT:
                yield None
                continue
            received = self._on_frame(kind, channel, payload)
            if received is not None:
                yield received
        del buffer[:at]

    def _on_frame(self, kind: int, channel: int, payload: bytes) -> Received | None:
        if kind == METHOD:
            if channel in self._contents:
                raise Malformed(f"a method on channel {channel} before a content's end")
            name, arguments = decode(payload)
            if name not in WITH_CONTENT:
                return Received(channel, name, arguments)
            self._contents[channel] = (name, arguments, None, [], 0)
            return None
        if channel not in self._contents:
            raise Malformed(f"a content on channel {channel} that no method announced")
        name, arguments, header, pieces, left = self._contents[channel]
        if kind == HEADER and header is None:
            header = payload
            left = struct.unpack_from(">Q", payload, 4)[0]
        elif kind == BODY and header is not None:
            pieces.append(payload)
            left -= len(payload)
        else:
            raise Malformed(f"a frame of kind {kind} within a content")
        if left < 0:
            raise Malformed("a body is longer than announced")
        if left:
            self._contents[channel] = (name, arguments, header, pieces, left)
            return None
        del self._contents[channel]
        try:
            properties = contents.properties(header)
        except (ValueError, IndexError, struct.error) as error:
            raise Malformed(f"a header that makes no sense: {error}") from None
        return Received(channel, name, arguments, properties, b"".join(pieces))


def decode(payload: bytes) -> tuple[str, tuple[Any, ...]]:
    known = BY_ID.get(struct.unpack_from(">HH", payload))
    if known is None:
        raise Malformed(f"an unknown method: {payload[:40]!r}")
    name, kinds = known
    values: list[Any] = []
    at, bits = 4, -1
    for kind in kinds:
        if kind == "b":
            bits += 1
            at += bits % 8 == 0
            values.append(bool(payload[at - 1] >> bits % 8 & 1))
            continue
        bits = -1
        if kind == "s":
            size, at = payload[at], at + 1
        elif kind in "St":
            size, at = struct.unpack_from(">I", payload, at)[0], at + 4
        else:
            size = {"o": 1, "h": 2, "l": 4, "q": 8}[kind]
            values.append(int.from_bytes(payload[at : at + size], "big"))
            at += size
            continue
        value = payload[at : at + size]
        values.append(value.decode() if kind == "s" else value)
        at += size
    if at != len(payload):
        raise Malformed(f"{name} is {len(payload)} bytes long, not {at}")
    return name, tuple(values)
