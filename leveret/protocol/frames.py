"""Frames, and *contents*: a message's header frame and body frames as one byte string.

    frame:    type 1 | channel 2 | payload size 4 | payload | 0xCE
    content:  header frame, then body frames until their payloads have the size in the header

Contents are stored and replicated as if on channel 1, with the body frames of their publisher, within the publisher's
frame_max. A consumer has another channel and may have a smaller frame_max: `rechannel` rewrites the channel numbers,
`reframe` also splits the body again if it must. Both return the same object if nothing changes, which is the usual case
(one channel per connection).

Contents come from our own memory or from checksummed storage. Their frames are bounds-checked all the same, and errors
are `BadContent`: a wrong size must not cause an endless loop or return bytes of another message.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
# A client may also announce AMQP 0-9, which is served as 0-9-1, as in RabbitMQ.
PROTOCOL_HEADERS: Final = (PROTOCOL_HEADER, b"AMQP\x01\x01\x00\x09")

METHOD: Final = 1
HEADER: Final = 2
BODY: Final = 3
HEARTBEAT: Final = 8
END: Final = 0xCE
END_BYTE: Final = b"\xce"
FRAME_MIN_SIZE: Final = 4096  # No frame_max may be smaller.

HEAD: Final = struct.Struct(">BHI")  # type, channel, payload size
OVERHEAD: Final = 8  # Bytes of a frame around its payload.
HEADER_AT: Final = 7  # The offset of the header payload in a content.

HEARTBEAT_FRAME: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"

CONTENT_CHANNEL: Final = 1

_CONTENT_HEADER: Final = struct.Struct(">HHQ")  # class id, weight, body size
_MARK: Final = struct.Struct(">BH")
_SIZE: Final = struct.Struct(">I")


class BadContent(ValueError):
    """Bytes are not a content."""


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    """Return a complete frame."""
    return HEAD.pack(kind, channel, len(payload)) + payload + END_BYTE


def content(header_payload: bytes, body: bytes, frame_max: int, channel: int = CONTENT_CHANNEL) -> bytes:
    """Return the content with this header and body, in frames of at most frame_max bytes (0: no limit).

    AMQP cannot split the header. `header_payload` must contain the size of `body`.
    """
    header = frame(HEADER, channel, header_payload)
    size = len(body)
    if size == 0:
        return header
    if frame_max == 0 or size + OVERHEAD <= frame_max:
        return b"".join((header, HEAD.pack(BODY, channel, size), body, END_BYTE))
    room = frame_max - OVERHEAD
    if room <= 0:
        raise BadContent(f"frame_max {frame_max} leaves no room for a body")
    parts = [header]
    for at in range(0, size, room):
        part = body[at : at + room]
        parts += (HEAD.pack(BODY, channel, len(part)), part, END_BYTE)
    return b"".join(parts)


def body_size(content: bytes) -> int:
    """Return the size of the body by the header."""
    return _announced(content)[1]


def split(content: bytes) -> tuple[bytes, bytes]:
    """Return the header payload and the body; all frames are checked."""
    second, announced = _announced(content)
    parts = []
    for at, end in _bodies(content, second):
        if content[at] != BODY:
            raise BadContent(f"frame of type {content[at]} at {at} instead of a body")
        if content[end - 1] != END:
            raise BadContent(f"body frame at {at} does not end with a frame end")
        parts.append(content[at + 7 : end - 1])
    body = parts[0] if len(parts) == 1 else b"".join(parts)
    if len(body) != announced:
        raise BadContent(f"body of {len(body)} bytes where the header announces {announced}")
    return content[HEADER_AT : second - 1], body


def with_header(content: bytes, header_payload: bytes) -> bytes:
    """Return the content with other properties; its body frames stay as they are."""
    return frame(HEADER, content[1] << 8 | content[2], header_payload) + content[header_end(content) :]


def rechannel(content: bytes, channel: int) -> bytes:
    """Return the content with every frame on this channel. Its frames must all be on one channel, as they always are.
    """
    second = header_end(content)
    if content[1] << 8 | content[2] == channel:
        return content
    size = len(content)
    if second == size:
        return _MARK.pack(HEADER, channel) + content[3:]
    if second + OVERHEAD > size:
        raise BadContent(f"frame at {second} is cut off")
    if second + OVERHEAD + _SIZE.unpack_from(content, second + 3)[0] == size:
        mark = _MARK.pack(HEADER, channel)
        return b"".join((mark, content[3:second], b"\x03", mark[1:], content[second + 3 :]))
    view = memoryview(content)  # A large body is copied once, by the join.
    mark = _MARK.pack(BODY, channel)
    parts: list[bytes | memoryview] = [_MARK.pack(HEADER, channel), view[3:second]]
    for at, end in _bodies(content, second):
        parts += (mark, view[at + 3 : end])
    return b"".join(parts)


def reframe(content_: bytes, channel: int, frame_max: int) -> bytes:
    """Return the content on this channel, its body split again if a frame exceeds frame_max (0: no limit)."""
    if frame_max == 0 or len(content_) <= frame_max:
        return rechannel(content_, channel)
    if all(end - at <= frame_max for at, end in _bodies(content_, header_end(content_))):
        return rechannel(content_, channel)
    header_payload, body = split(content_)
    return content(header_payload, body, frame_max, channel)


def header_end(content: bytes) -> int:
    """Return the end of the header frame."""
    size = len(content)
    if size < OVERHEAD:
        raise BadContent("header frame is cut off")
    second: int = OVERHEAD + _SIZE.unpack_from(content, 3)[0]
    if second > size:
        raise BadContent("header frame is cut off")
    if content[0] != HEADER:
        raise BadContent(f"frame of type {content[0]} instead of a header")
    if content[second - 1] != END:
        raise BadContent("header frame does not end with a frame end")
    return second


def _announced(content: bytes) -> tuple[int, int]:
    """Return the end of the header frame, and the body size in it."""
    second = header_end(content)
    if second < OVERHEAD + _CONTENT_HEADER.size:
        raise BadContent("content header is cut off")
    announced: int = _CONTENT_HEADER.unpack_from(content, HEADER_AT)[2]
    return second, announced


def _bodies(content: bytes, at: int) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each frame after the header."""
    size = len(content)
    while at < size:
        if at + OVERHEAD > size:
            raise BadContent(f"frame at {at} is cut off")
        end: int = at + OVERHEAD + _SIZE.unpack_from(content, at + 3)[0]
        if end > size:
            raise BadContent(f"frame at {at} is cut off")
        yield at, end
        at = end
