"""Integers, strings and binary data as MQTT writes them, and a cursor that reads them from one packet."""

from __future__ import annotations

from typing import Final

from leveret.protocol.mqtt.reason_codes import malformed
from leveret.protocol.mqtt.topics import BadTopic, text_of

VARINT_MAX: Final = 268_435_455


def encode_varint(value: int) -> bytes:
    if value < 128:
        return bytes((value,))
    assert value <= VARINT_MAX
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_binary(value: bytes) -> bytes:
    if len(value) > 65_535:
        raise ValueError("binary data of more than 65,535 bytes")
    return len(value).to_bytes(2, "big") + value


def encode_text(value: str) -> bytes:
    return encode_binary(value.encode())


class Cursor:
    """Reads one packet, and never beyond its end. Raises `MqttError` (malformed packet) where it is too short."""

    __slots__ = ("at", "data", "end")

    def __init__(self, data: bytes, at: int, end: int) -> None:
        self.data = data
        self.at = at
        self.end = end

    def left(self) -> int:
        return self.end - self.at

    def _take(self, count: int) -> int:
        """The place of so many bytes, which are passed over."""
        at = self.at
        if count > self.end - at:
            raise malformed("the packet is cut off")
        self.at = at + count
        return at

    def byte(self) -> int:
        return self.data[self._take(1)]

    def integer(self, size: int) -> int:
        at = self._take(size)
        return int.from_bytes(self.data[at : at + size], "big")

    def varint(self) -> int:
        value, shift = 0, 0
        while True:
            byte = self.byte()
            value |= (byte & 127) << shift
            if byte < 128:
                break
            shift += 7
            if shift > 21:
                raise malformed("a variable byte integer has more than four bytes")
        if shift and not byte:
            raise malformed("a variable byte integer has more bytes than it needs")
        return value

    def binary(self) -> bytes:
        size = self.integer(2)
        at = self._take(size)
        return self.data[at : at + size]

    def text(self) -> str:
        try:
            return text_of(self.binary())
        except BadTopic as error:
            raise malformed(str(error)) from None

    def rest(self) -> bytes:
        at = self._take(self.left())
        return self.data[at : self.end]

    def finish(self) -> None:
        if self.at != self.end:
            raise malformed("bytes are left at the end of the packet")
