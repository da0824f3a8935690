"""The header that tells where a message came from: `x-leveret-origin`, always the first of its headers.

    x-leveret-origin: S  CLUSTER/QUEUE/RUN/NUMBER      32, 16, 16 and 16 hexadecimal digits

`source` is all of it but the number. The text has a fixed length and a fixed place, so that it is put in and taken out
by slices: messages of one publisher tend to have equal header frames, and for a stretch of those everything before the
number is made once.

A number has its highest bit (`MARK`) set if the message may have been brought before: its source has delivered it
again. Only brokers with the capability `leveret_origin_marks` know of that, so it is the link that sets it (`marked`).
"""

from __future__ import annotations

import re
from itertools import islice
from struct import Struct
from typing import Final, NamedTuple

from leveret.protocol.frames import HEADER_AT
from leveret.protocol.properties import CONTENT_ENCODING, CONTENT_TYPE, FLAGS_AT, HEADERS, PROPERTIES_AT

NAME: Final = "x-leveret-origin"
MARKS: Final = "leveret_origin_marks"  # The capability of a broker that knows marks.
MARK: Final = 1 << 63
SOURCE_BYTES: Final = 32 + 1 + 16 + 1 + 16
TEXT_BYTES: Final = SOURCE_BYTES + 1 + 16
_SIZE: Final = Struct(">I")
_FIELD: Final = bytes((len(NAME),)) + NAME.encode() + b"S" + _SIZE.pack(TEXT_BYTES)
HEADER_BYTES_MAX: Final = 100_000  # AMQP cannot split a header frame: a larger one has no room for an origin.
FIELD_BYTES: Final = len(_FIELD) + TEXT_BYTES
_TEXT: Final = re.compile(rb"([0-9a-f]{32}/[0-9a-f]{16}/[0-9a-f]{16})/([0-9a-f]{16})")
_DIGITS: Final = re.compile(rb"[0-9a-f]{16}")
_SOURCE: Final = re.compile(rb"[0-9a-f]{32}/[0-9a-f]{16}/[0-9a-f]{16}")
_FLAGS_AT: Final = HEADER_AT + FLAGS_AT
_HEADERS_BYTE: Final = HEADERS >> 8


class Labelled(NamedTuple):
    """A message without its origin, and the origin. `number` is 0 if it has none."""

    source: bytes
    number: int
    content: bytes


def source_of(cluster: bytes, queue: int, run: int) -> bytes:
    """Return the part of an origin that messages of one queue share. `cluster`: 32 hexadecimal digits."""
    return b"%b/%016x/%016x" % (cluster, queue, run)


def is_source(data: bytes) -> bool:
    return _SOURCE.fullmatch(data) is not None


def with_origins(contents: list[bytes], source: bytes, number: int) -> list[bytes]:
    """Return the contents, each with its origin; the first has this number."""
    made = []
    header, before, behind = b"\x00", b"", 0  # Of the last one: no header begins like this.
    for each, content in enumerate(contents, number):
        if not content.startswith(header):
            header = content[: HEADER_AT + _SIZE.unpack_from(content, 3)[0] + 1]
            if len(header) > HEADER_BYTES_MAX:
                made.append(content)
                header = b"\x00"
                continue
            before, behind = _cut(content, source)
        made.append(b"%b%016x%b" % (before, each, content[behind:]))
    return made


def _table_at(content: bytes) -> int:
    """Return where the table of headers is, or would be."""
    flags = content[_FLAGS_AT] << 8
    at = HEADER_AT + PROPERTIES_AT
    for flag in (CONTENT_TYPE, CONTENT_ENCODING):
        if flags & flag:
            at += 1 + content[at]
    return at


def _cut(content: bytes, source: bytes) -> tuple[bytes, int]:
    """Return the bytes before the number, and the position of those behind it."""
    at = _table_at(content)
    flags, behind, table_bytes, grown = content[_FLAGS_AT], at, 0, 4 + FIELD_BYTES
    if flags & _HEADERS_BYTE:
        behind, table_bytes, grown = at + 4, _SIZE.unpack_from(content, at)[0], FIELD_BYTES
    before = (
        content[:3],
        _SIZE.pack(_SIZE.unpack_from(content, 3)[0] + grown),
        content[HEADER_AT:_FLAGS_AT],
        bytes((flags | _HEADERS_BYTE,)),
        content[_FLAGS_AT + 1 : at],
        _SIZE.pack(table_bytes + FIELD_BYTES),
        _FIELD,
        source,
        b"/",
    )
    return b"".join(before), behind


def marked(content: bytes) -> bytes:
    """Return a content whose origin says that it may have been brought before. One without an origin stays as it is.

    Raises ValueError if it is malformed.
    """
    if len(content) < HEADER_AT + PROPERTIES_AT:
        raise ValueError("it has no header")
    try:
        at = _table_at(content) + 4
    except IndexError:
        raise ValueError("its properties are cut off") from None
    if not content[_FLAGS_AT] & _HEADERS_BYTE or not content.startswith(_FIELD, at):
        return content
    at += len(_FIELD) + SOURCE_BYTES + 1
    digits = content[at : at + 16]
    if not _DIGITS.fullmatch(digits):
        return content
    return b"%b%016x%b" % (content[:at], int(digits, 16) | MARK, content[at + 16 :])


def take_origin(content: bytes) -> Labelled:
    """Take the origin out of a content whose properties were checked."""
    at = _table_at(content)
    start = at + 4
    if not content[_FLAGS_AT] & _HEADERS_BYTE or not content.startswith(_FIELD, start):
        return Labelled(b"", 0, content)
    end = start + FIELD_BYTES
    found = _TEXT.fullmatch(content, start + len(_FIELD), end)
    table_bytes: int = _SIZE.unpack_from(content, at)[0] - FIELD_BYTES
    if found is None or table_bytes < 0:
        return Labelled(b"", 0, content)
    flags, table, shrunk = content[_FLAGS_AT], _SIZE.pack(table_bytes), FIELD_BYTES
    if not table_bytes:
        flags, table, shrunk = flags & ~_HEADERS_BYTE, b"", FIELD_BYTES + 4
    stripped = b"".join(
        (
            content[:3],
            _SIZE.pack(_SIZE.unpack_from(content, 3)[0] - shrunk),
            content[HEADER_AT:_FLAGS_AT],
            bytes((flags,)),
            content[_FLAGS_AT + 1 : at],
            table,
            content[end:],
        )
    )
    return Labelled(found[1], int(found[2], 16), stripped)


class OriginReader:
    """Takes origins out of contents, one after the other.

    While header frames differ in the number only, as those of one publisher mostly do, that costs two comparisons and a
    slice.
    """

    __slots__ = ("before", "header", "number_at", "source", "tail")

    def __init__(self) -> None:
        self.before = b"\x00"  # The header frame of the last one up to its number: no header begins like this,
        self.number_at = 0
        self.tail = b""  # the rest of it,
        self.header = b""  # and all of it without the origin.
        self.source = b""

    def take(self, content: bytes) -> Labelled:
        """Take the origin out of a content whose properties were checked."""
        at = self.number_at
        if content.startswith(self.before) and content.startswith(self.tail, at + 16):
            digits = content[at : at + 16]
            if _DIGITS.fullmatch(digits):
                return Labelled(self.source, int(digits, 16), self.header + content[at + 16 + len(self.tail) :])
        found = take_origin(content)
        if found.source:
            self.number_at = at = _table_at(content) + 4 + len(_FIELD) + SOURCE_BYTES + 1
            self.before, self.source = content[:at], found.source
            self.tail = content[at + 16 : HEADER_AT + _SIZE.unpack_from(content, 3)[0] + 1]
            self.header = found.content[: HEADER_AT + _SIZE.unpack_from(found.content, 3)[0] + 1]
        return found

    def take_row(self, contents: list[bytes], first: int, number: int) -> list[bytes]:
        """Take the origins out of the contents from `first` on, as long as they go on with this number, and the next.

        `take` was called for the one before, and returned an origin.
        """
        at, before, tail, header = self.number_at, self.before, self.tail, self.header
        body_at = at + 16 + len(tail)
        made: list[bytes] = []
        for content in islice(contents, first, None):
            if not content.startswith(b"%b%016x%b" % (before, number, tail)):
                break
            made.append(header + content[body_at:])
            number += 1
        return made
