"""Messages of STOMP as contents of AMQP, and back, as with RabbitMQ.

What AMQP has a property for is that property (`PROPERTIES`). All other headers of a SEND are headers of the message,
also those that concern only the frame (content-length, receipt, transaction): consumers of RabbitMQ may rely on seeing
them. RabbitMQ has them in the reverse order of the frame, and so they are here.

A MESSAGE has the headers that are texts or numbers, then the properties. Whatever a message has in its headers, the
lines of ours come first, and the first of a name counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from leveret.broker.session.checks import refuse
from leveret.broker.session.message import content_of
from leveret.protocol import frames
from leveret.protocol import properties as amqp
from leveret.protocol.errors import ReplyCode
from leveret.protocol.stomp.encoder import head_of
from leveret.protocol.tables import Field, Table
from leveret.sessions.stomp.destinations import reply_shown
from leveret.sessions.stomp.queues import number_in

PROPERTIES: Final = {  # By header: the property of AMQP, in the order in which a MESSAGE has them.
    "app-id": "app_id",
    "user-id": "user_id",
    "type": "type",
    "timestamp": "timestamp",
    "amqp-message-id": "message_id",
    "expiration": "expiration",
    "reply-to": "reply_to",
    "correlation-id": "correlation_id",
    "priority": "priority",
    "persistent": "delivery_mode",
    "content-encoding": "content_encoding",
    "content-type": "content_type",
}
_NUMBERS: Final = {"timestamp": 1 << 64, "priority": 1 << 8}
_OURS: Final = frozenset(("destination", *PROPERTIES))
OURS: Final = frozenset(name.encode() for name in _OURS)  # Other headers of a SEND are passed on as they are.
_WHOLE: Final = "bBsuIilL"  # Kinds of fields that are whole numbers.
SHORT_BYTES_MAX: Final = 255
FLAGS_AT: Final = frames.HEADER_AT + 12
TEXT: Final = ord("S")
KNOWN_MAX: Final = 32
KNOWN_BYTES_MAX: Final = 512
_AS_THEY_ARE: Final = re.compile(rb"(?:[^\\\r\n:\0]+:[^\\\r\n:\0]*\n)*\Z")  # Lines without anything to be escaped.


def properties_of(headers: Mapping[str, str]) -> amqp.Properties:
    """The properties of a message that is sent with these headers. Raises `StompError` or `Refused`."""
    found = amqp.Properties()
    for header, name in PROPERTIES.items():
        text = headers.get(header)
        if text is None:
            continue
        if header == "persistent":
            if text == "true":
                found.delivery_mode = 2
        elif header in _NUMBERS:
            number = number_in(headers, header)
            assert number is not None
            setattr(found, name, number % _NUMBERS[header])
        else:
            _check_short(header, text)
            setattr(found, name, text)
    table: Table = {}
    for header in reversed(list(headers)):
        if header not in _OURS:
            _check_short("name of a header", header)
            table[header] = Field("S", headers[header])
    if table:
        found.headers = table
    return found


def _check_short(what: str, text: str) -> None:
    if len(text) * 4 > SHORT_BYTES_MAX and len(text.encode("utf-8", "surrogateescape")) > SHORT_BYTES_MAX:
        refuse(ReplyCode.PRECONDITION_FAILED, f"{what} is longer than {SHORT_BYTES_MAX} bytes")


def content_for(headers: Mapping[str, str], body: bytes, frame_max: int) -> bytes:
    """The content of a SEND. Raises `StompError` or `Refused`."""
    return content_of(properties_of(headers), body, frame_max)


def headers_of(content: bytes) -> list[tuple[str, str]]:
    """The headers of a MESSAGE that its content tells."""
    found = amqp.decode(frames.split(content)[0])
    lines = [
        (name, one.value if one.kind == "S" else str(one.value))
        for name, one in (found.headers or {}).items()
        if (one.kind == "S" or one.kind in _WHOLE) and name != "content-length"
    ]
    return lines + property_lines(found)


def property_lines(found: amqp.Properties) -> list[tuple[str, str]]:
    """The headers of a MESSAGE that its properties tell."""
    lines = []
    for header, name in PROPERTIES.items():
        value = getattr(found, name)
        if value is None:
            continue
        if header == "persistent":
            if value == 2:
                lines.append((header, "true"))
        else:
            lines.append((header, reply_shown(value) if header == "reply-to" else str(value)))
    return lines


class HeaderLines:
    """Writes the lines of a MESSAGE that its content tells, without decoding what is only passed on.

    The properties of many messages are the same, and remembered by their bytes. Headers are written as they are stored,
    if they are texts that need no escapes.
    """

    __slots__ = ("_known", "escapes")

    def __init__(self, escapes: bool) -> None:
        self.escapes = escapes
        self._known: dict[tuple[bytes, bytes], bytes] = {}  # What is before and behind the table: the lines of it.

    def of(self, content: bytes) -> bytes:
        end = frames.HEADER_AT + int.from_bytes(content[3:7], "big")
        flags, at = content[FLAGS_AT] << 8 | content[FLAGS_AT + 1], FLAGS_AT + 2
        for flag in (amqp.CONTENT_TYPE, amqp.CONTENT_ENCODING):
            if flags & flag:
                at += 1 + content[at]
        before, lines = content[FLAGS_AT:at], b""
        if flags & amqp.HEADERS:
            table_end = at + 4 + int.from_bytes(content[at : at + 4], "big")
            lines = _table_lines(content, at + 4, table_end)
            if not _AS_THEY_ARE.match(lines):
                return self._decoded(headers_of(content))
            at = table_end
        after = content[at:end]
        known = self._known.get((before, after))
        if known is None:
            payload = content[7:FLAGS_AT] + (flags & ~amqp.HEADERS).to_bytes(2, "big") + before[2:] + after
            known = self._decoded(property_lines(amqp.decode(payload)))
            if len(before) + len(after) <= KNOWN_BYTES_MAX:
                if len(self._known) >= KNOWN_MAX:
                    self._known.clear()
                self._known[before, after] = known
        return lines + known

    def _decoded(self, lines: list[tuple[str, str]]) -> bytes:
        return head_of("", lines, self.escapes)[1:]


def _table_lines(content: bytes, at: int, end: int) -> bytes:
    """The lines of a table that has texts only. Another one gives something that `_AS_THEY_ARE` does not match."""
    lines = []
    while at < end:
        value = at + 1 + content[at]
        name = content[at + 1 : value]
        if content[value] != TEXT:
            return b"\\"
        at = value + 5 + int.from_bytes(content[value + 1 : value + 5], "big")
        if name != b"content-length":
            lines.append(b"%b:%b\n" % (name, content[value + 5 : at]))
    return b"".join(lines)


def body_at(content: bytes) -> int:
    """Where the body begins in a content whose body is one frame; 0 if it is none or several."""
    second = int.from_bytes(content[3:7], "big") + frames.OVERHEAD
    size = int.from_bytes(content[second + 3 : second + 7], "big")
    return second + 7 if size and second + frames.OVERHEAD + size == len(content) else 0


def body_of(content: bytes) -> bytes:
    return frames.split(content)[1]
