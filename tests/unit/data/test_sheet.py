"""Sheets: what is written is read, and nothing else is taken for one."""

from __future__ import annotations

import random
from struct import pack

import pytest

from leveret.data.sheet import HEAD, REDELIVERED, BadSheet, Part, decode, encode

SHORT = b"\x02ex\x03key"
OTHER = b"\x00\x04\xc3\xa4bc"


def content(body: bytes, properties: bytes = b"\x00\x00") -> bytes:
    """A header frame and a body frame, of some channel."""
    header = b"\x00\x3c\x00\x00" + pack(">Q", len(body)) + properties
    return (
        b"\x02\x00\x05" + pack(">I", len(header)) + header + b"\xce"
        + (b"\x03\x00\x05" + pack(">I", len(body)) + body + b"\xce" if body else b"")
    )  # fmt: skip


def part(
    first: int, bodies: list[bytes], key: bytes = SHORT, times: list[tuple[int, int]] | None = None, kind: int = 1
) -> Part:
    contents = [content(body) for body in bodies]
    return Part(
        [(first, first + len(bodies) - 1)],
        times or [],
        b"".join(pack("<I", len(one)) for one in contents),
        bytes((kind,)) * len(bodies),
        pack("<IH", len(bodies), len(key)) + key,
        contents,
    )


def joined(parts: list[Part], following: int, shift: int = 0) -> bytes:
    return b"".join(encode(parts, following, shift))


def test_messages_as_they_were() -> None:
    parts = [part(5, [b"a", b""], times=[(0, 100), (1, 200)]), part(9, [b"ccc"], OTHER, kind=REDELIVERED)]
    sheet = decode(joined(parts, 20))
    assert (len(sheet), sheet.next, sheet.ranges) == (3, 20, [(5, 6), (9, 9)])
    assert [(one.number, one.ms, one.kind, one.body) for one in sheet] == [
        (5, 100, 1, b"a"),
        (6, 200, 1, b""),
        (9, 0, 2, b"ccc"),  # When it came is not known.
    ]
    assert [(one.exchange, one.routing_key) for one in sheet] == [(b"ex", b"key")] * 2 + [(b"", b"\xc3\xa4bc")]
    assert bytes(next(iter(sheet)).header) == b"\x00\x3c\x00\x00" + pack(">Q", 1) + b"\x00\x00"


def test_neighbours_become_one_stretch() -> None:
    parts = [part(1, [b"a"], times=[(0, 7)]), part(2, [b"b", b"c"], times=[(0, 7)]), part(4, [b"d"], OTHER)]
    sheet = decode(joined(parts, 5))
    assert sheet.ranges == [(1, 4)]
    assert sheet.times == [(0, 7), (3, 0)]
    assert sheet.keys == [(3, b"ex", b"key"), (1, b"", b"\xc3\xa4bc")]
    assert [one.body for one in sheet] == [b"a", b"b", b"c", b"d"]


def test_offsets_of_streams_begin_with_zero() -> None:
    sheet = decode(joined([part(1, [b"a", b"b"])], 3, -1))
    assert (list(sheet.numbers()), sheet.next, sheet.times) == ([0, 1], 2, [])


def test_an_empty_sheet() -> None:
    sheet = decode(joined([], 42))
    assert (sheet.count, sheet.next, list(sheet), sheet.ranges, sheet.keys) == (0, 42, [], [], [])


def test_a_body_of_several_frames() -> None:
    data = content(b"ab") + b"\x03\x00\x05\x00\x00\x00\x01c\xce"
    one = Part([(1, 1)], [], pack("<I", len(data)), b"\x01", pack("<IH", 1, len(SHORT)) + SHORT, [data])
    assert [message.body for message in decode(joined([one], 2))] == [b"abc"]


def test_what_is_cut_off_is_no_sheet() -> None:
    data = joined([part(1, [b"a", b"b"], times=[(0, 1)])], 3)
    for end in range(len(data)):
        with pytest.raises(BadSheet):
            decode(data[:end])
    with pytest.raises(BadSheet):
        decode(data + b"\0")


@pytest.mark.parametrize(
    ("at", "value", "text"),
    [
        (0, b"X", "no sheet"),
        (4, b"\x02", "version 2"),
        (6, b"\x01", "flags 1"),
        (HEAD.size, b"\x02", "numbers"),  # Runs from 2 to 2 hold one message.
        (HEAD.size + 24, b"\xff", "sizes"),
        (HEAD.size + 32, b"\x02", "times"),
    ],
)
def test_what_does_not_fit_is_no_sheet(at: int, value: bytes, text: str) -> None:
    data = bytearray(joined([part(1, [b"a", b"b"], times=[(0, 1)])], 3))
    data[at : at + 1] = value
    with pytest.raises(BadSheet, match=text):
        decode(data)


def test_damaged_sheets_never_surprise() -> None:
    """Whatever a byte is turned into, it is a sheet whose messages can be gone through, or none."""
    rng = random.Random(5)
    good = joined([part(1, [b"a", b"bb"], times=[(0, 1), (1, 2)]), part(9, [b"c"], OTHER)], 10)
    refused = 0
    for _ in range(3_000):
        data = bytearray(good)
        data[rng.randrange(HEAD.size + 100)] = rng.randrange(256)
        try:
            sheet = decode(data)
        except BadSheet:
            refused += 1
        else:
            assert sum(1 for _ in sheet) == sheet.count == 3
    assert 500 < refused < 3_000
