"""The origin among a message's headers: put in, taken out, and nothing else changed."""

from __future__ import annotations

import pytest

from leveret.protocol.frames import HEADER_AT, content, split
from leveret.protocol.origins import (
    HEADER_BYTES_MAX,
    MARK,
    NAME,
    OriginReader,
    marked,
    source_of,
    take_origin,
    with_origins,
)
from leveret.protocol.properties import Properties, check, decode_content, encode
from leveret.protocol.tables import Field

SOURCE = source_of(b"a" * 32, 7, 9)
SHAPES = [
    Properties(),
    Properties(headers={"x": Field("l", 1)}),
    Properties(content_type="text/plain", content_encoding="gzip", headers={"x": Field("S", "y")}, message_id="m"),
    Properties(content_type="text/plain", delivery_mode=2, expiration="5"),
]


def message(properties: Properties, body: bytes = b"hello") -> bytes:
    return content(encode(properties, len(body)), body, 0)


@pytest.mark.parametrize("properties", SHAPES)
def test_there_and_back(properties: Properties) -> None:
    plain = message(properties)
    (labelled,) = with_origins([plain], SOURCE, 17)
    check(labelled, HEADER_AT, HEADER_AT + int.from_bytes(labelled[3:7], "big"))
    headers = decode_content(labelled, HEADER_AT).headers
    assert headers is not None and next(iter(headers)) == NAME
    assert headers[NAME].value == f"{SOURCE.decode()}/{17:016x}"
    assert split(labelled)[1] == b"hello"
    assert take_origin(labelled) == (SOURCE, 17, plain)


def test_a_stretch_has_numbers_in_a_row() -> None:
    plain = [message(SHAPES[at % 4], b"body %d" % at) for at in (0, 0, 1, 1, 2, 3, 3)]
    made = with_origins(plain, SOURCE, 5)
    assert [take_origin(one) for one in made] == [(SOURCE, 5 + at, one) for at, one in enumerate(plain)]


@pytest.mark.parametrize(
    "properties",
    [
        *SHAPES,
        Properties(headers={NAME: Field("l", 5)}),
        Properties(headers={NAME: Field("S", "short")}),
        Properties(headers={NAME: Field("S", "g" * 83)}),
        Properties(headers={"a": Field("l", 1), NAME: Field("S", f"{SOURCE.decode()}/{1:016x}")}),
    ],
)
def test_what_is_no_origin_stays(properties: Properties) -> None:
    plain = message(properties)
    assert take_origin(plain) == (b"", 0, plain)
    assert marked(plain) == plain


@pytest.mark.parametrize("properties", SHAPES)
def test_a_mark(properties: Properties) -> None:
    plain = message(properties)
    (labelled,) = with_origins([plain], SOURCE, 17)
    assert take_origin(marked(labelled)) == (SOURCE, 17 | MARK, plain)
    assert marked(marked(labelled)) == marked(labelled)


@pytest.mark.parametrize("size", [0, 10, 20, 22, 30])
def test_a_mark_on_what_is_cut_off(size: int) -> None:
    whole = message(Properties(content_type="text/plain", content_encoding="gzip", headers={"x": Field("l", 1)}))
    with pytest.raises(ValueError, match=r"header|cut off"):
        marked(whole[:size])


def test_an_origin_of_a_message_that_has_one_comes_first() -> None:
    inner = with_origins([message(Properties())], SOURCE, 1)
    (outer,) = with_origins(inner, source_of(b"b" * 32, 1, 1), 2)
    assert take_origin(outer)[1:] == (2, inner[0])


def test_a_header_without_room_has_no_origin() -> None:
    large = message(Properties(headers={"x": Field("S", "y" * HEADER_BYTES_MAX)}))
    assert with_origins([large, message(Properties())], SOURCE, 1)[0] == large


def test_a_reader_of_many_takes_the_same() -> None:
    plain = [message(SHAPES[at % 4], b"body %d" % at) for at in (0, 0, 1, 1, 2, 3, 3, 10, 0)]
    contents = with_origins(plain[:5], SOURCE, 5) + with_origins(plain[5:], source_of(b"b" * 32, 1, 1), 70)
    contents += plain
    reader = OriginReader()
    assert [reader.take(one) for one in contents] == [take_origin(one) for one in contents]


@pytest.mark.parametrize("digits", [b"000000000000000g", b"+000000000000001", b"0_00000000000001", b"000000000000001 "])
def test_a_reader_is_not_fooled_by_what_looks_alike(digits: bytes) -> None:
    reader = OriginReader()
    first, second = with_origins([message(Properties()), message(Properties())], SOURCE, 1)
    assert reader.take(first).number == 1
    forged = second.replace(b"%016x" % 2, digits)
    assert reader.take(forged) == (b"", 0, forged) == take_origin(forged)


def test_a_row_ends_where_the_next_number_does_not_come() -> None:
    plain = content(encode(Properties(delivery_mode=2), 4), b"body", 0)
    other = content(encode(Properties(delivery_mode=1), 4), b"body", 0)
    source = source_of(b"a" * 32, 1, 2)
    row = with_origins([plain] * 5, source, 10)
    reader = OriginReader()
    assert reader.take(row[0]) == (source, 10, plain)
    assert reader.take_row(row, 1, 11) == [plain] * 4
    assert reader.take_row(row, 1, 12) == []
    assert reader.take_row([row[0], row[1], row[3]], 1, 11) == [plain]
    assert reader.take_row([row[0], row[1], plain, row[2]], 1, 11) == [plain]
    assert reader.take_row([row[0], row[1], *with_origins([other], source, 12)], 1, 11) == [plain]
    assert reader.take_row([row[0], *with_origins([plain], source_of(b"b" * 32, 1, 2), 11)], 1, 11) == []
