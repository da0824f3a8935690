"""Where a stream's reader begins, and how each message that it gets says where it stands.

A message's *offset* is its number in the queue less one: the first message ever has 0. It travels to clients as the
header `x-stream-offset`, as in RabbitMQ. Contents are stored without it, so that what is published is what is stored.
It is put in when a batch is first read, for all readers at once:

    header frame: … flags | content type, encoding | table size | what else is in the table ◀ here ▶ | …

Messages of one publisher tend to have equal header frames. For a stretch of those, everything before and behind the
number is made once, and a message costs a comparison, a number and a join.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from leveret.metadata.rules.queue_rules import parse_age
from leveret.protocol.frames import HEADER_AT, with_header
from leveret.protocol.properties import (
    CONTENT_ENCODING,
    CONTENT_TYPE,
    FLAGS_AT,
    HEADERS,
    PROPERTIES_AT,
    body_size,
    decode_content,
    encode,
    headers,
)
from leveret.protocol.tables import Field

NAME: Final = "x-stream-offset"
NUMBER: Final = Struct(">q")
_SIZE: Final = Struct(">I")
_FIELD: Final = bytes((len(NAME),)) + NAME.encode() + b"l"
_FIELD_BYTES: Final = len(_FIELD) + NUMBER.size

# Where to begin, as it is said between nodes.
FIRST: Final = 1
LAST: Final = 2
NEXT: Final = 3
OFFSET: Final = 4
TIME: Final = 5  # In milliseconds.
ORIGINS: Final = 6  # Of a queue that is no stream: each message tells its origin.
STARTS: Final = frozenset({0, FIRST, LAST, NEXT, OFFSET, TIME, ORIGINS})  # 0: nowhere, of a queue that is no stream.
TIME_MS_MAX: Final = 1 << 62
_WORDS: Final = {"first": FIRST, "last": LAST, "next": NEXT}
_INTEGERS: Final = frozenset("bBsuIil")


class Start(NamedTuple):
    """The place where a reader begins.

    That is the first message, the last batch, the next message (and its number, once it is known), an offset, or the
    first message of a time.
    """

    kind: int
    value: int = 0


def parse_start(field: Field | None, wall_ms: int) -> Start | None:
    """Return the start that a consumer's argument names; None if it is invalid."""
    if field is None:
        return Start(NEXT)
    if field.kind == "T":
        return Start(TIME, min(field.value * 1000, TIME_MS_MAX))
    if field.kind in _INTEGERS:
        return Start(OFFSET, max(field.value, 0))
    if field.kind != "S":
        return None
    if field.value in _WORDS:
        return Start(_WORDS[field.value])
    age_ms = parse_age(field.value)
    return Start(TIME, wall_ms - age_ms) if age_ms else None


def offset_of(content: bytes) -> int:
    """Return the offset of a message that came from a stream."""
    table = headers(content, HEADER_AT)
    assert table is not None
    offset: int = table[NAME].value
    return offset


def with_offsets(contents: list[bytes], offset: int) -> list[bytes]:
    """The contents, each with its offset among its headers; the first has this one."""
    made = []
    header, before, behind = b"\x00", b"", 0  # Of the last one: no header begins like this.
    for each, content in enumerate(contents, offset):
        if not content.startswith(header):
            header = content[: HEADER_AT + _SIZE.unpack_from(content, 3)[0] + 1]
            if _FIELD[:-1] in header:
                made.append(_with_own(content, each))
                header = b"\x00"
                continue
            before, behind = _cut(content)
        made.append(b"".join((before, NUMBER.pack(each), content[behind:])))
    return made


def _cut(content: bytes) -> tuple[bytes, int]:
    """Return the bytes before the offset, and the position of those behind it."""
    flags_at = HEADER_AT + FLAGS_AT
    flags = content[flags_at] << 8 | content[flags_at + 1]
    at = HEADER_AT + PROPERTIES_AT
    for flag in (CONTENT_TYPE, CONTENT_ENCODING):
        if flags & flag:
            at += 1 + content[at]
    table, behind, grown = b"", at, 4 + _FIELD_BYTES
    if flags & HEADERS:
        behind = at + 4 + _SIZE.unpack_from(content, at)[0]
        table, grown = content[at + 4 : behind], _FIELD_BYTES
    frame_bytes = _SIZE.unpack_from(content, 3)[0] + grown
    flags |= HEADERS
    before = (
        content[:3],
        _SIZE.pack(frame_bytes),
        content[HEADER_AT:flags_at],
        bytes((flags >> 8, flags & 0xFF)),
        content[flags_at + 2 : at],
        _SIZE.pack(len(table) + _FIELD_BYTES),
        table,
        _FIELD,
    )
    return b"".join(before), behind


def _with_own(content: bytes, offset: int) -> bytes:
    """Set the offset header of a message that was published with one of its own, which it loses."""
    properties = decode_content(content, HEADER_AT)
    table = dict(properties.headers or {})
    table[NAME] = Field("l", offset)
    properties.headers = table
    return with_header(content, encode(properties, body_size(content, HEADER_AT)))
