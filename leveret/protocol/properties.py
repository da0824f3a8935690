"""Basic properties, read in place from a content header.

A message passes through the broker as bytes. A property that a feature needs (delivery mode, priority, expiration,
headers …) is read in place: the flags say which properties are present, and those in front of the wanted one are
skipped. Nothing is decoded that is not needed, and nothing is encoded again.

The payload of a content header:

    class id 2 | weight 2 | body size 8 | flags 2 | the properties whose flag is set, in the order of the flags

`check` is called once for each published message; after that the look-ups can be trusted. On unchecked bytes a look-up
may return nonsense, but raises nothing other than `BadProperties`. All functions take the offset of the payload in the
data, so that properties can be read from a stored content without copying its header (`start=7`). For data that begins
with the flags, start is -12.

Like RabbitMQ, `check` ignores the flag 2, which has no meaning. Flag 1 says that more flags follow; no property has
such a flag, RabbitMQ fails on it, and a client would misread the rest, so it is refused.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, fields
from typing import Any, Final

from leveret.protocol.tables import FIELDS_MAX, BadTable, Table, decode_table, encode_table, field_values, table_end

CONTENT_TYPE: Final = 0x8000
CONTENT_ENCODING: Final = 0x4000
HEADERS: Final = 0x2000
DELIVERY_MODE: Final = 0x1000
PRIORITY: Final = 0x0800
CORRELATION_ID: Final = 0x0400
REPLY_TO: Final = 0x0200
EXPIRATION: Final = 0x0100
MESSAGE_ID: Final = 0x0080
TIMESTAMP: Final = 0x0040
TYPE: Final = 0x0020
USER_ID: Final = 0x0010
APP_ID: Final = 0x0008
CLUSTER_ID: Final = 0x0004
CONTINUATION: Final = 0x0001

BASIC_CLASS: Final = 60
FLAGS_AT: Final = 12
PROPERTIES_AT: Final = 14
BODY_SIZE_AT: Final = 7 + 4  # In a content. What follows, to the end of the header, are the properties.
BODY_SIZE_END: Final = 7 + FLAGS_AT
KIND_PERSISTENT: Final = 1  # Bits of a stored message's kind byte.
KIND_EXPIRES: Final = 8
DELICATE: Final = 256  # Not in a kind byte: the message may have a property that is refused or changed.

_TRANSIENT: Final = 1  # Delivery modes.
_PERSISTENT: Final = 2
_ASKS: Final = (
    b"\x15amq.rabbitmq.reply-to"  # Replaced by an address: see `leveret.broker.remote.direct_reply_to`.
)

_HEAD: Final = struct.Struct(">HHQH")
_SIZE: Final = struct.Struct(">I")
_LONGLONG: Final = struct.Struct(">Q")

# Forms of a property: a positive number is a fixed size.
_SHORTSTR: Final = 0
_TABLE: Final = -1
_MODE: Final = -2  # One byte too; used in plans only.
_FORMS: Final = {
    CONTENT_TYPE: _SHORTSTR,
    CONTENT_ENCODING: _SHORTSTR,
    HEADERS: _TABLE,
    DELIVERY_MODE: 1,
    PRIORITY: 1,
    CORRELATION_ID: _SHORTSTR,
    REPLY_TO: _SHORTSTR,
    EXPIRATION: _SHORTSTR,
    MESSAGE_ID: _SHORTSTR,
    TIMESTAMP: 8,
    TYPE: _SHORTSTR,
    USER_ID: _SHORTSTR,
    APP_ID: _SHORTSTR,
    CLUSTER_ID: _SHORTSTR,
}


class BadProperties(ValueError):
    """A content header is malformed."""


@dataclass(slots=True)
class Properties:
    """All properties, None where absent, in wire order."""

    content_type: str | None = None
    content_encoding: str | None = None
    headers: Table | None = None
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | None = None
    message_id: str | None = None
    timestamp: int | None = None
    type: str | None = None
    user_id: str | None = None
    app_id: str | None = None
    cluster_id: str | None = None


_NAMES: Final = dict(zip(_FORMS, (each.name for each in fields(Properties)), strict=True))


# Checking


def check(data: bytes, start: int = 0, end: int | None = None) -> None:
    """Raise `BadProperties` unless data[start:end] is a well-formed content header of class basic."""
    stop = len(data) if end is None else end
    if start < 0 or stop > len(data) or stop - start < PROPERTIES_AT:
        raise BadProperties("content header is cut off")
    class_id, weight, _, _ = _HEAD.unpack_from(data, start)
    if class_id != BASIC_CLASS:
        raise BadProperties(f"content header of class {class_id}")
    if weight:
        raise BadProperties(f"content header of weight {weight}")
    survey(data, start, stop)


def survey(data: bytes, start: int, stop: int) -> int:
    """Check the properties of a header payload, and return in the same pass what every publish needs.

    The result has KIND_PERSISTENT set if the message is, and DELICATE if it has a property that must be examined.
    """
    at = start + PROPERTIES_AT
    if at > stop:
        raise BadProperties("content header is cut off")
    flags = data[at - 2] << 8 | data[at - 1]
    mode = _TRANSIENT
    for form in _PLANS.get(flags) or _plan(flags):
        if at >= stop:
            raise BadProperties("properties are cut off")
        if form == _SHORTSTR:
            at += 1 + data[at]
        elif form > 0:
            at += form
        elif form == _TABLE:
            at = _table_end(data, at, stop)
        else:
            mode = data[at]
            at += 1
    if at != stop:
        raise BadProperties("properties are cut off" if at > stop else f"{stop - at} bytes after the properties")
    kind = KIND_PERSISTENT if mode == _PERSISTENT else 0
    if flags & EXPIRATION:
        kind |= KIND_EXPIRES
    if flags & (EXPIRATION | USER_ID) or (flags & HEADERS and data.find(b"CC", start, stop) >= 0):
        return kind | DELICATE
    if (flags & REPLY_TO and data.find(_ASKS, start, stop) >= 0) or not _TRANSIENT <= mode <= _PERSISTENT:
        return kind | DELICATE
    return kind


def layout(data: bytes, start: int, stop: int) -> list[tuple[int, int]] | None:
    """Return where the values of a checked header payload are whose bytes say nothing about how the header is read.

    Returns None if it has a property that must be examined for each message.
    """
    at = start + PROPERTIES_AT
    flags = data[at - 2] << 8 | data[at - 1]
    if flags & (EXPIRATION | USER_ID | REPLY_TO):
        return None
    values: list[tuple[int, int]] = []
    for form in _plan(flags):
        if form == _SHORTSTR:
            values.append((at + 1, at + 1 + data[at]))
        elif form > 0:
            values.append((at, at + form))
        elif form == _TABLE:
            if data.find(b"CC", at, stop) >= 0:
                return None
            end = table_end(data, at, stop)
            values += field_values(data, at + 4, end)
            at = end
            continue
        else:
            at += 1
            continue
        at = values[-1][1]
    return values


_PLANS: Final[dict[int, tuple[int, ...]]] = {}


def _plan(flags: int) -> tuple[int, ...]:
    """Return the forms of the properties that are present. Cached: of 16,384 possible sets publishers use few."""
    if flags & CONTINUATION:
        raise BadProperties("more property flags than there are properties")
    plan = _PLANS[flags] = tuple(
        _MODE if flag == DELIVERY_MODE else form for flag, form in _FORMS.items() if flags & flag
    )
    return plan


def _table_end(data: bytes, at: int, stop: int) -> int:
    try:
        return table_end(data, at, stop)
    except BadTable as error:
        raise BadProperties(f"headers: {error}") from None


# Look-ups


def body_size(data: bytes, start: int = 0) -> int:
    """Return the size of the body by the header."""
    try:
        size: int = _LONGLONG.unpack_from(data, start + 4)[0]
    except struct.error:
        raise BadProperties("content header is cut off") from None
    return size


def is_persistent(data: bytes, start: int = 0) -> bool:
    """Return whether the delivery mode is 2. Called for every message, hence without a loop."""
    try:
        flags = data[start + FLAGS_AT]
        if not flags & 0x10:
            return False
        at = start + PROPERTIES_AT
        if flags & 0xE0:
            if flags & 0x80:
                at += 1 + data[at]
            if flags & 0x40:
                at += 1 + data[at]
            if flags & 0x20:
                at += 4 + int.from_bytes(data[at : at + 4], "big")
        return data[at] == _PERSISTENT
    except IndexError:
        raise BadProperties("properties are cut off") from None


def delivery_mode(data: bytes, start: int = 0) -> int | None:
    at = _find(data, start, DELIVERY_MODE)
    return None if at is None else data[at]


def priority(data: bytes, start: int = 0) -> int | None:
    at = _find(data, start, PRIORITY)
    return None if at is None else data[at]


def timestamp(data: bytes, start: int = 0) -> int | None:
    at = _find(data, start, TIMESTAMP)
    if at is None:
        return None
    if at + 8 > len(data):
        raise BadProperties("properties are cut off")
    value: int = _LONGLONG.unpack_from(data, at)[0]
    return value


def headers(data: bytes, start: int = 0) -> Table | None:
    at = _find(data, start, HEADERS)
    return None if at is None else _read_table(data, at)[0]


def expiration(data: bytes, start: int = 0) -> str | None:
    return _text(data, start, EXPIRATION)


def user_id(data: bytes, start: int = 0) -> str | None:
    return _text(data, start, USER_ID)


def correlation_id(data: bytes, start: int = 0) -> str | None:
    return _text(data, start, CORRELATION_ID)


def message_id(data: bytes, start: int = 0) -> str | None:
    return _text(data, start, MESSAGE_ID)


def reply_to(data: bytes, start: int = 0) -> str | None:
    return _text(data, start, REPLY_TO)


def with_reply_to(content: bytes, start: int, address: str) -> bytes:
    """Return a content with another reply_to, which it must have. Its header payload is at `start`, after its size."""
    at = _find(content, start, REPLY_TO)
    assert at is not None
    end, raw = at + 1 + content[at], address.encode("utf-8", "surrogateescape")
    size = _SIZE.unpack_from(content, start - 4)[0] + at + 1 + len(raw) - end
    head = content[: start - 4] + _SIZE.pack(size)
    return b"".join((head, content[start:at], bytes((len(raw),)), raw, content[end:]))


def has(data: bytes, flags: int, start: int = 0) -> bool:
    """Return whether any of the properties with these flags is present: `has(content, HEADERS | USER_ID, 7)`."""
    try:
        return bool((data[start + FLAGS_AT] << 8 | data[start + FLAGS_AT + 1]) & flags)
    except IndexError:
        raise BadProperties("content header is cut off") from None


def _find(data: bytes, start: int, wanted: int) -> int | None:
    """Return the offset of a property in the data; None if it is absent."""
    try:
        flags = data[start + FLAGS_AT] << 8 | data[start + FLAGS_AT + 1]
        if not flags & wanted:
            return None
        at = start + PROPERTIES_AT
        for form in _plan(flags & ~(wanted * 2 - 1) & ~CONTINUATION):
            if form > 0:
                at += form
            elif form == _SHORTSTR:
                at += 1 + data[at]
            elif form == _MODE:
                at += 1
            else:
                at += 4 + _SIZE.unpack_from(data, at)[0]
    except (IndexError, struct.error):
        raise BadProperties("properties are cut off") from None
    if at >= len(data):
        raise BadProperties("properties are cut off")
    return at


def _text(data: bytes, start: int, wanted: int) -> str | None:
    at = _find(data, start, wanted)
    return None if at is None else _read_shortstr(data, at)[0]


def _read_shortstr(data: bytes, at: int) -> tuple[str, int]:
    end = at + 1 + data[at]
    if end > len(data):
        raise BadProperties("properties are cut off")
    return data[at + 1 : end].decode("utf-8", "surrogateescape"), end


def _read_table(data: bytes, at: int) -> tuple[Table, int]:
    try:
        return decode_table(data, at, 2 * FIELDS_MAX)  # The broker may have added fields (x-death).
    except BadTable as error:
        raise BadProperties(f"headers: {error}") from None


# All properties


def decode(data: bytes, start: int = 0, end: int | None = None) -> Properties:
    """Return all properties of data[start:end], after a check."""
    check(data, start, end)
    return decode_content(data, start)


def decode_content(data: bytes, start: int) -> Properties:
    """Return all properties of a checked content whose header payload is at `start`."""
    flags = data[start + FLAGS_AT] << 8 | data[start + FLAGS_AT + 1]
    at = start + PROPERTIES_AT
    found: dict[str, Any] = {}
    for flag, form in _FORMS.items():
        if not flags & flag:
            continue
        if form == _SHORTSTR:
            found[_NAMES[flag]], at = _read_shortstr(data, at)
        elif form == _TABLE:
            found[_NAMES[flag]], at = _read_table(data, at)
        else:
            found[_NAMES[flag]] = int.from_bytes(data[at : at + form], "big")
            at += form
    return Properties(**found)


def encode(properties: Properties, body_size: int) -> bytes:
    """Return the content-header payload for a body of this size."""
    flags = 0
    out = []
    try:
        for flag, form in _FORMS.items():
            value = getattr(properties, _NAMES[flag])
            if value is None:
                continue
            flags |= flag
            if form == _SHORTSTR:
                text = value.encode("utf-8", "surrogateescape")
                out.append(len(text).to_bytes(1, "big") + text)
            elif form == _TABLE:
                out.append(encode_table(value))
            else:
                out.append(value.to_bytes(form, "big"))
        return _HEAD.pack(BASIC_CLASS, 0, body_size, flags) + b"".join(out)
    except (OverflowError, UnicodeEncodeError, BadTable, struct.error) as error:
        raise BadProperties(str(error)) from None
