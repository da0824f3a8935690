"""The part of AMQP 0-9-1 that our clients speak: encodes methods and messages, and takes received frames apart.

The bytes are put together by hand, since a load generator must cost less than the broker that it measures.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

FRAME_MAX: Final = 131_072
CHANNEL: Final = 1

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
BUNDLE = 76  # A Leveret's: see `leveret.protocol.bundles`.
END: Final = 0xCE
HEAD: Final = struct.Struct(">BHI")
OVERHEAD: Final = HEAD.size + 1
METHOD_ID: Final = struct.Struct(">HH")
CONFIRM: Final = struct.Struct(">QB")
ACK_FRAME: Final = struct.Struct(">BHIHHQBB")

Name = tuple[int, int]
CONNECTION_START, CONNECTION_START_OK = (10, 10), (10, 11)
CONNECTION_TUNE, CONNECTION_TUNE_OK = (10, 30), (10, 31)
CONNECTION_OPEN, CONNECTION_OPEN_OK, CONNECTION_CLOSE = (10, 40), (10, 41), (10, 50)
CONNECTION_BLOCKED, CONNECTION_UNBLOCKED = (10, 60), (10, 61)
CHANNEL_OPEN, CHANNEL_OPEN_OK, CHANNEL_CLOSE = (20, 10), (20, 11), (20, 40)
EXCHANGE_DECLARE, EXCHANGE_DELETE = (40, 10), (40, 20)
EXCHANGE_BIND, EXCHANGE_UNBIND, EXCHANGE_UNBIND_OK = (40, 30), (40, 40), (40, 51)
QUEUE_DECLARE, QUEUE_BIND, QUEUE_DELETE = (50, 10), (50, 20), (50, 40)
BASIC_QOS, BASIC_CONSUME, BASIC_CANCEL = (60, 10), (60, 20), (60, 30)
BASIC_PUBLISH, BASIC_RETURN, BASIC_DELIVER = (60, 40), (60, 50), (60, 60)
BASIC_GET, BASIC_GET_OK, BASIC_GET_EMPTY = (60, 70), (60, 71), (60, 72)
BASIC_ACK, BASIC_NACK = (60, 80), (60, 120)
CONFIRM_SELECT = (85, 10)
CONNECTION_CLOSE_OK, CHANNEL_CLOSE_OK = (10, 51), (20, 41)

# Bits of queue.declare and exchange.declare, of basic.consume, and of basic.publish.
PASSIVE, DURABLE, AUTO_DELETE = 1, 2, 4
EXCLUSIVE = 4  # Of queue.declare, where auto-delete is 8.
QUEUE_AUTO_DELETE = 8
REQUEUE = 2  # Of basic.nack.
NO_ACK, NOWAIT = 2, 8
MANDATORY = 1

Argument = bool | int | float | str | None
Table = Mapping[str, "Value"]
Value = Argument | Mapping[str, Any] | Sequence[Any]


class BrokerError(Exception):
    """The broker refused something or went away. The text is for people."""


# -- Encoding ------------------------------------------------------------------------------------------------------


def short(text: str) -> bytes:
    raw = text.encode()
    if len(raw) > 255:
        raise BrokerError(f"a name has at most 255 bytes, this one has {len(raw)}: {text[:40]}...")
    return bytes((len(raw),)) + raw


def long(raw: bytes) -> bytes:
    return struct.pack(">I", len(raw)) + raw


def table(fields: Table) -> bytes:
    return long(b"".join(short(name) + _field(value) for name, value in fields.items()))


def _field(value: Value) -> bytes:
    match value:
        case bool():
            return b"t" + bytes((value,))
        case int():
            return b"l" + struct.pack(">q", value)
        case float():
            return b"d" + struct.pack(">d", value)
        case str():
            return b"S" + long(value.encode())
        case None:
            return b"V"
        case Mapping():
            return b"F" + table(value)
        case _:
            return b"A" + long(b"".join(map(_field, value)))


def frame(kind: int, payload: bytes, channel: int = CHANNEL) -> bytes:
    return HEAD.pack(kind, channel, len(payload)) + payload + bytes((END,))


def method(name: Name, arguments: bytes = b"", channel: int = CHANNEL) -> bytes:
    return frame(METHOD, METHOD_ID.pack(*name) + arguments, channel)


def publish(exchange: str, key: str, persistent: bool, mandatory: bool, body: bytes, frame_max: int) -> bytes:
    """Returns all frames of one message."""
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


# -- Decoding ------------------------------------------------------------------------------------------------------


def take_frame(received: bytearray) -> tuple[int, bytes] | None:
    """Removes the first frame from `received` and returns its type and payload; None if it is not complete yet."""
    if len(received) < OVERHEAD:
        return None
    kind, _, size = HEAD.unpack_from(received)
    if len(received) < size + OVERHEAD:
        return None
    payload = bytes(received[HEAD.size : HEAD.size + size])
    del received[: size + OVERHEAD]
    return kind, payload


def closing_text(name: Name, arguments: bytes) -> str:
    """Returns the reason of a connection.close or channel.close for people; names any other method as unexpected."""
    if name in (CONNECTION_CLOSE, CHANNEL_CLOSE):
        code = int.from_bytes(arguments[:2], "big")
        text = arguments[3 : 3 + arguments[2]].decode("utf-8", "replace")
        return f"{'connection' if name == CONNECTION_CLOSE else 'channel'} closed by the broker: {code} {text}"
    return f"unexpected method {name[0]}.{name[1]}"
