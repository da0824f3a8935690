"""MQTT 3.1.1 and 5.0 as a client speaks it, implemented a second time.

The broker's own codec is under test, so it is not used here. Only what the simulated clients need is known; anything
else that arrives is an error of the broker.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

V4, V5 = 4, 5
CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = 1, 2, 3, 4, 5, 6, 7
SUBSCRIBE, SUBACK, PINGREQ, PINGRESP, DISCONNECT = 8, 9, 12, 13, 14
NEVER_S: Final = 0xFFFF_FFFF
SESSION_EXPIRY: Final = 0x11
WILL_DELAY: Final = 0x18


class Malformed(Exception):
    """The broker sent something that is no packet."""


class Will(NamedTuple):
    topic: str
    payload: bytes
    qos: int


class Packet(NamedTuple):
    """A packet of the broker. `flag`: session present, or DUP."""

    kind: int
    packet_id: int = 0
    reason: int = 0
    flag: bool = False
    qos: int = 0
    retain: bool = False
    topic: str = ""
    payload: bytes = b""


def _text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return len(data).to_bytes(2, "big") + data


def _packet(head: int, body: bytes) -> bytes:
    size, length = bytearray(), len(body)
    while True:
        size.append(length % 128 | (128 if length > 127 else 0))
        length //= 128
        if not length:
            return bytes((head,)) + size + body


def connect(version: int, client_id: str, clean: bool, keep_alive_s: int, expiry_s: int, will: Will | None) -> bytes:
    flags = 0xC0 | (2 if clean else 0) | (0 if will is None else 4 | will.qos << 3)
    body = _text("MQTT") + bytes((version, flags)) + keep_alive_s.to_bytes(2, "big")
    if version == V5:
        body += b"\x05\x11" + expiry_s.to_bytes(4, "big")
    body += _text(client_id)
    if will is not None:
        body += (b"\0" if version == V5 else b"") + _text(will.topic) + _text(will.payload)
    return _packet(CONNECT << 4, body + _text("guest") + _text("guest"))


def publish(version: int, topic: str, payload: bytes, qos: int, packet_id: int, retain: bool, dup: bool) -> bytes:
    body = _text(topic) + (packet_id.to_bytes(2, "big") if qos else b"") + (b"\0" if version == V5 else b"") + payload
    return _packet(PUBLISH << 4 | dup << 3 | qos << 1 | retain, body)


def ack(kind: int, packet_id: int) -> bytes:
    return _packet(kind << 4 | (2 if kind == PUBREL else 0), packet_id.to_bytes(2, "big"))


def subscribe(version: int, packet_id: int, filters: tuple[tuple[str, int], ...]) -> bytes:
    body = packet_id.to_bytes(2, "big") + (b"\0" if version == V5 else b"")
    return _packet(SUBSCRIBE << 4 | 2, body + b"".join(_text(one) + bytes((qos,)) for one, qos in filters))


def pingreq() -> bytes:
    return _packet(PINGREQ << 4, b"")


def disconnect() -> bytes:
    return _packet(DISCONNECT << 4, b"")


class Reader:
    """Takes bytes of the broker apart."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.data = b""

    def receive(self, data: bytes) -> Iterator[Packet]:
        """Raises `Malformed`."""
        self.data += data
        while (span := self._span()) is not None:
            start, end = span
            head, body = self.data[0], self.data[start:end]
            self.data = self.data[end:]
            yield self._parse(head >> 4, head & 15, body)

    def _span(self) -> tuple[int, int] | None:
        size = shift = 0
        for at in range(1, min(len(self.data), 5)):
            size |= (self.data[at] & 127) << shift
            shift += 7
            if self.data[at] < 128:
                return (at + 1, at + 1 + size) if len(self.data) > at + size else None
        if len(self.data) >= 5:
            raise Malformed("a length of more than four bytes")
        return None

    def _parse(self, kind: int, flags: int, body: bytes) -> Packet:
        if kind == CONNACK:
            return Packet(kind, reason=body[1], flag=bool(body[0] & 1))
        if kind == PUBLISH:
            return self._publish(flags, body)
        if kind in (PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK):
            if flags != (2 if kind == PUBREL else 0):
                raise Malformed(f"packet {kind} with flags {flags}")
            reason = body[-1] if kind == SUBACK else body[2] if len(body) > 2 else 0
            return Packet(kind, int.from_bytes(body[:2], "big"), reason)
        if kind == DISCONNECT and self.version == V5:
            return Packet(kind, reason=body[0] if body else 0)
        if kind == PINGRESP:
            return Packet(kind)
        raise Malformed(f"packet {kind} of {len(body)} bytes")

    def _publish(self, flags: int, body: bytes) -> Packet:
        qos, at = flags >> 1 & 3, 2 + int.from_bytes(body[:2], "big")
        topic, packet_id = body[2:at].decode(), 0
        if qos:
            packet_id = int.from_bytes(body[at : at + 2], "big")
            at += 2
        if self.version == V5:
            at += 1 + body[at]  # The clients give no properties that would need a longer length.
        if qos == 3 or (qos and not packet_id) or (flags & 8 and not qos):
            raise Malformed(f"PUBLISH with flags {flags} and identifier {packet_id}")
        return Packet(PUBLISH, packet_id, 0, bool(flags & 8), qos, bool(flags & 1), topic, body[at:])
