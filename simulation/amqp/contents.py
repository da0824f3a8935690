"""Contents as a client makes and reads them: the properties of a header, and the tables in them.

As in `protocol`, the broker's codec is not used, so that dead letters which the broker makes are read by independent
code. Tables become dicts, arrays lists, and a value that no broker should send is an error.
"""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

_FLAGS: Final = (
    ("content_type", 15, "s"),
    ("content_encoding", 14, "s"),
    ("headers", 13, "F"),
    ("delivery_mode", 12, "o"),
    ("priority", 11, "o"),
    ("correlation_id", 10, "s"),
    ("reply_to", 9, "s"),
    ("expiration", 8, "s"),
    ("message_id", 7, "s"),
    ("timestamp", 6, "T"),
    ("type", 5, "s"),
    ("user_id", 4, "s"),
    ("app_id", 3, "s"),
    ("cluster_id", 2, "s"),
)
_NUMBERS: Final = {"t": ">?", "b": ">b", "s": ">h", "I": ">i", "l": ">q", "d": ">d", "T": ">Q"}


class Extras(NamedTuple):
    """The properties that a message has beside its body."""

    expires_ms: int | None = None  # Its own expiration.
    priority: int | None = None
    via: str = ""  # How it reaches its queue; see `features.queue_features`.
    delay_ms: int | None = None  # Delay before it is routed to its queue; see `delays`.


NO_EXTRAS: Final = Extras()


def header(size: int, persistent: bool, extras: Extras, copies: tuple[str, str] | None = None) -> bytes:
    """Returns the payload of a header. `copies`: "CC" or "BCC", and the key in it."""
    flags, parts, table = 1 << 12, [bytes([2 if persistent else 1])], b""
    if copies is not None:
        name, key = copies
        array = b"S" + struct.pack(">I", len(key)) + key.encode()
        table += bytes([len(name)]) + name.encode() + b"A" + struct.pack(">I", len(array)) + array
    if extras.delay_ms is not None:
        table += entry("x-delay", extras.delay_ms)
    if table:
        flags |= 1 << 13
        parts.insert(0, struct.pack(">I", len(table)) + table)
    if extras.priority is not None:
        flags |= 1 << 11
        parts.append(bytes([extras.priority]))
    if extras.expires_ms is not None:
        flags |= 1 << 8
        text = str(extras.expires_ms).encode()
        parts.append(bytes([len(text)]) + text)
    return struct.pack(">HHQH", 60, 0, size, flags) + b"".join(parts)


def properties(payload: bytes) -> dict[str, Any]:
    """Returns the properties in a header's payload. Raises Python's own errors if it is malformed."""
    (flags,) = struct.unpack_from(">H", payload, 12)
    at = 14
    found: dict[str, Any] = {}
    for name, bit, kind in _FLAGS:
        if not flags >> bit & 1:
            continue
        if kind == "o":
            found[name], at = payload[at], at + 1
        elif kind == "s":
            end = at + 1 + payload[at]
            found[name], at = payload[at + 1 : end].decode(), end
        else:
            found[name], at = _value(kind, payload, at)
    if at != len(payload):
        raise ValueError(f"a header has {len(payload) - at} bytes more than its flags say")
    return found


def _value(kind: str, data: bytes, at: int) -> tuple[Any, int]:
    if kind in _NUMBERS:
        (number,) = struct.unpack_from(_NUMBERS[kind], data, at)
        return number, at + struct.calcsize(_NUMBERS[kind])
    if kind == "V":
        return None, at
    (size,) = struct.unpack_from(">I", data, at)
    at, end = at + 4, at + 4 + size
    if end > len(data):
        raise ValueError("a field is longer than what it is in")
    if kind in "Sx":
        return data[at:end].decode(), end
    if kind == "A":
        items = []
        while at < end:
            item, at = _value(chr(data[at]), data, at + 1)
            items.append(item)
        return items, end
    if kind != "F":
        raise ValueError(f"a field of the unknown kind {kind!r}")
    table: dict[str, Any] = {}
    while at < end:
        name_end = at + 1 + data[at]
        name = data[at + 1 : name_end].decode()
        table[name], at = _value(chr(data[name_end]), data, name_end + 1)
    return table, end


def entry(name: str, value: object) -> bytes:
    """Returns an entry of a table: a text, a number or a boolean."""
    head = bytes([len(name)]) + name.encode()
    if isinstance(value, bool):
        return head + b"t" + bytes([value])
    if isinstance(value, int):
        return head + b"l" + struct.pack(">q", value)
    text = str(value).encode()
    return head + b"S" + struct.pack(">I", len(text)) + text


def number_of(content: bytes) -> int:
    """Returns the number of a simulated client's message in the form in which queues hold it: a header frame, then
    body frames."""
    body_at = int.from_bytes(content[3:7], "big") + 15
    return int(content[body_at : body_at + 20].partition(b" ")[0])
