"""What is fuzzed, and what each target promises besides raising nothing unforeseen."""

from __future__ import annotations

import struct
from typing import Final

from leveret.protocol import codec, frames, methods, properties
from leveret.protocol.properties import Properties
from leveret.protocol.tables import BadTable, Field, Table, canonical, decode_table, encode_table, to_python
from tests.system.fuzz.fuzzer import Target
from tests.system.fuzz.links import LINK_TARGETS
from tests.system.fuzz.peers import PEER_TARGETS
from tests.system.fuzz.sessions import SESSION_TARGETS
from tests.system.fuzz.stomp import STOMP_TARGETS

EVERY_KIND: Final[Table] = {
    "t": Field("t", True),
    "b": Field("b", -5),
    "B": Field("B", 200),
    "s": Field("s", -300),
    "u": Field("u", 40_000),
    "I": Field("I", -70_000),
    "i": Field("i", 3_000_000_000),
    "l": Field("l", -(2**40)),
    "f": Field("f", 0.5),
    "d": Field("d", 1e100),
    "D": Field("D", (2, 314)),
    "T": Field("T", 1_700_000_000),
    "S": Field("S", "grün"),
    "x": Field("x", b"\x00\xff"),
    "V": Field("V", None),
    "F": Field("F", {"inner": Field("F", {"deep": Field("S", "x")})}),
    "A": Field("A", [Field("I", 1), Field("A", [Field("t", False)]), Field("F", {"a": Field("V", None)})]),
}


def nested(depth: int, kind: bytes) -> bytes:
    """A table with tables or arrays in it, so many levels deep."""
    value = b""
    for _ in range(depth):
        inner = struct.pack(">I", len(value)) + value
        value = (b"\x01k" if kind == b"F" else b"") + kind + inner
    if kind == b"A":
        value = b"\x01k" + value
    return struct.pack(">I", len(value)) + value


def run_tables(data: bytes) -> None:
    table, end = decode_table(data)
    assert 4 <= end <= len(data)
    again, again_end = decode_table(encode_table(table))
    assert again == table and again_end == len(encode_table(table))
    assert hash(canonical(again)) == hash(canonical(table))
    assert to_python(table).keys() == table.keys()


def run_methods(data: bytes) -> None:
    method = methods.decode_payload(data)
    payload = methods.encode_payload(method)
    assert methods.decode_payload(payload) == method
    assert methods.encode_payload(methods.decode_payload(payload)) == payload
    assert struct.unpack_from(">HH", data) == (method.class_id, method.method_id)


def run_properties(data: bytes) -> None:
    """What the look-ups say must be what decoding all of it says."""
    found = properties.decode(data)
    assert properties.is_persistent(data) == (found.delivery_mode == 2)
    assert properties.survey(data, 0, len(data)) & properties.KIND_PERSISTENT == (found.delivery_mode == 2)
    for start, where in ((0, data), (7, bytes(7) + data + b"\xce")):
        assert properties.delivery_mode(where, start) == found.delivery_mode
        assert properties.priority(where, start) == found.priority
        assert properties.timestamp(where, start) == found.timestamp
        assert properties.headers(where, start) == found.headers
        assert properties.expiration(where, start) == found.expiration
        assert properties.user_id(where, start) == found.user_id
        assert properties.message_id(where, start) == found.message_id
        assert properties.reply_to(where, start) == found.reply_to
        assert properties.has(where, properties.HEADERS, start) == (found.headers is not None)
    again = properties.encode(found, properties.body_size(data))
    assert properties.decode(again) == found


def run_unchecked(data: bytes) -> None:
    """Look-ups on bytes that nobody checked."""
    properties.is_persistent(data)
    properties.priority(data)
    properties.timestamp(data)
    properties.expiration(data)
    properties.user_id(data)
    properties.headers(data)
    properties.body_size(data)


def run_kinds(data: bytes) -> None:
    """`survey` and `check` must refuse the same headers."""
    payload = struct.pack(">HHQ", 60, 0, 0) + data
    properties.check(payload)
    kind = properties.survey(payload, 0, len(payload))
    assert kind & ~(properties.KIND_PERSISTENT | properties.KIND_EXPIRES | properties.DELICATE) == 0


def run_contents(data: bytes) -> None:
    header, body = frames.split(data)
    assert frames.body_size(data) == len(body)
    for channel, frame_max in ((1, 0), (2, 0), (65535, 16), (3, 4096)):
        sent = frames.reframe(data, channel, frame_max)
        assert frames.split(sent) == (header, body)
        assert frames.split(frames.rechannel(data, channel)) == (header, body)


def run_walk(data: bytes) -> None:
    """The rewriting without the check that `split` makes."""
    assert len(frames.rechannel(data, 2)) == len(data)
    frames.reframe(data, 2, 16)


_FULL: Final = Properties(
    "text/plain",
    "gzip",
    EVERY_KIND,
    2,
    9,
    "c",
    "amq.rabbitmq.reply-to",
    "60000",
    "m",
    1_700_000_000,
    "t",
    "guest",
    "a",
    "k",
)
_HEADERS: Final = [
    properties.encode(each, 3)
    for each in (
        Properties(),
        Properties(delivery_mode=2),
        Properties("application/json", delivery_mode=1, priority=5),
        Properties(headers={"x-delay": Field("I", 5)}, delivery_mode=2),
        Properties(user_id="guest", expiration="1", message_id="é", timestamp=2**64 - 1),
        _FULL,
    )
]
_CONTENTS: Final = [
    *(frames.content(header, b"abc", 0) for header in _HEADERS),
    *(frames.content(header, b"abc", 9) for header in _HEADERS),
    frames.content(properties.encode(Properties(), 0), b"", 0),
    frames.content(properties.encode(Properties(), 300), bytes(300), 100),
]


def _method_corpus() -> list[bytes]:
    samples = {"Bit": True, "Octet": 9, "Short": 300, "Long": 70_000, "LongLong": 2**40, "ShortStr": "näme"}
    out = []
    for ids, made in methods.METHODS.items():
        values = [
            b"bytes" if form == "LongStr" else EVERY_KIND if form == "Table" else samples[str(form)]
            for form in (each.type for each in made.__dataclass_fields__.values())  # type: ignore[attr-defined]
        ]
        out.append(codec.encode_payload(codec._CODECS[ids].build(*values)))
    return out


TARGETS: Final = [
    *STOMP_TARGETS,
    Target(
        "tables",
        run_tables,
        [
            b"\x00\x00\x00\x00",
            encode_table(EVERY_KIND),
            nested(60, b"F"),
            nested(70, b"F"),
            nested(60, b"A"),
            nested(800, b"A"),
        ]
        + [encode_table({name: field}) for name, field in EVERY_KIND.items()],
        (BadTable,),
    ),
    Target("methods", run_methods, _method_corpus(), (methods.BadMethod,)),
    Target("properties", run_properties, _HEADERS, (properties.BadProperties,)),
    Target("kinds", run_kinds, [each[12:] for each in _HEADERS], (properties.BadProperties,)),
    Target("unchecked", run_unchecked, _HEADERS, (properties.BadProperties,)),
    Target("contents", run_contents, _CONTENTS, (frames.BadContent,)),
    Target("walk", run_walk, _CONTENTS, (frames.BadContent,)),
    *SESSION_TARGETS,
    *LINK_TARGETS,
    *PEER_TARGETS,
]
