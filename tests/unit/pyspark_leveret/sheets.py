"""Sheets for tests, made of messages one by one."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from leveret.data.sheet import Part, Sheet, decode, encode
from leveret.protocol import properties
from leveret.protocol.properties import Properties

END = b"\xce"


class Message(NamedTuple):
    body: bytes = b"body"
    properties: Properties = Properties()
    exchange: bytes = b""
    key: bytes = b"orders"
    number: int | None = None  # One more than that of the message before.
    ms: int = 1_700_000_000_123
    kind: int = 1


def frame(kind: int, payload: bytes, channel: int = 1) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + END


def content(message: Message, frame_max: int = 131_072) -> bytes:
    """As a publisher sends it."""
    header = properties.encode(message.properties, len(message.body))
    room = frame_max - 8
    bodies = [frame(3, message.body[at : at + room]) for at in range(0, len(message.body), room)]
    return frame(2, header) + b"".join(bodies)


def sheet_of(messages: Sequence[Message], frame_max: int = 131_072, first: int = 1) -> Sheet:
    parts = []
    number = first - 1
    for message in messages:
        number = number + 1 if message.number is None else message.number
        stored = content(message, frame_max)
        key = bytes((len(message.exchange),)) + message.exchange + bytes((len(message.key),)) + message.key
        parts.append(
            Part(
                [(number, number)],
                [(0, message.ms)],
                struct.pack("<I", len(stored)),
                bytes((message.kind,)),
                struct.pack("<IH", 1, len(key)) + key,
                [stored],
            )
        )
    return decode(b"".join(encode(parts, number + 1)))
