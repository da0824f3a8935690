from __future__ import annotations

import struct
from typing import Any

import pamqp.encode
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.protocol.tables import (
    DEPTH_MAX,
    FIELDS_MAX,
    BadTable,
    Field,
    Table,
    canonical,
    decode_table,
    encode_table,
    equivalent,
    from_python,
    table_end,
    table_from_python,
    to_python,
    type_name,
)


def raw(fields: bytes) -> bytes:
    return struct.pack(">I", len(fields)) + fields


def integers(kind: str, low: int, high: int) -> st.SearchStrategy[Field]:
    return st.builds(Field, st.just(kind), st.integers(low, high))


escaped = st.binary(max_size=40).map(lambda data: data.decode("utf-8", "surrogateescape"))
keys = escaped.filter(lambda text: len(text.encode("utf-8", "surrogateescape")) <= 255)
leaves = st.one_of(
    st.builds(Field, st.just("t"), st.booleans()),
    integers("b", -(2**7), 2**7 - 1),
    integers("B", 0, 2**8 - 1),
    integers("s", -(2**15), 2**15 - 1),
    integers("u", 0, 2**16 - 1),
    integers("I", -(2**31), 2**31 - 1),
    integers("i", 0, 2**32 - 1),
    integers("l", -(2**63), 2**63 - 1),
    integers("T", 0, 2**64 - 1),
    st.builds(Field, st.just("f"), st.floats(width=32, allow_nan=False, allow_infinity=False)),
    st.builds(Field, st.just("d"), st.floats(allow_nan=False, allow_infinity=False)),
    st.builds(Field, st.just("D"), st.tuples(st.integers(0, 255), st.integers(0, 2**32 - 1))),
    st.builds(Field, st.just("S"), escaped),
    st.builds(Field, st.just("x"), st.binary(max_size=40)),
    st.just(Field("V", None)),
)
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(Field, st.just("A"), st.lists(inner, max_size=4)),
        st.builds(Field, st.just("F"), st.dictionaries(keys, inner, max_size=4)),
    ),
    max_leaves=12,
)
tables = st.dictionaries(keys, values, max_size=6)


@given(tables, st.binary(max_size=5), st.binary(max_size=5))
def test_round_trip_anywhere_in_the_data(table: Table, before: bytes, after: bytes) -> None:
    encoded = encode_table(table)
    decoded, end = decode_table(before + encoded + after, len(before))
    assert decoded == table
    assert end == len(before) + len(encoded)
    assert [type(field.value) for field in decoded.values()] == [type(field.value) for field in table.values()]


@given(tables)
def test_every_prefix_is_refused(table: Table) -> None:
    encoded = encode_table(table)
    for end in range(len(encoded)):
        with pytest.raises(BadTable):
            decode_table(encoded[:end])


plain = st.recursive(
    st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), st.text(max_size=20), st.none()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=20), inner, max_size=3)),
    max_leaves=10,
)


@given(st.dictionaries(st.text(max_size=20), plain, max_size=5))
def test_pamqp_writes_what_we_read(value: dict[str, Any]) -> None:
    decoded, end = decode_table(encoded := pamqp.encode.field_table(value))
    assert to_python(decoded) == value
    assert end == len(encoded)


# Keys sorted and values of types on which both agree: then even the bytes are the same.
same = st.one_of(
    st.booleans(), st.text(max_size=20), st.lists(st.text(max_size=5), max_size=3), st.integers(2**40, 2**63 - 1)
)


@given(st.dictionaries(st.text(max_size=20), same, max_size=5))
def test_pamqp_writes_the_same_bytes(value: dict[str, Any]) -> None:
    ordered = dict(sorted(value.items()))
    assert encode_table(table_from_python(ordered)) == pamqp.encode.field_table(ordered)


def many(count: int, kind: str) -> bytes:
    """A table with so many fields, the first of which holds all others."""
    if kind == "plain":
        inner = b"".join(b"\x02%c%cV" % divmod(number, 256) for number in range(count))
        return struct.pack(">I", len(inner)) + inner
    inner = b"V" * (count - 1) if kind == "A" else b"\x00V" * (count - 1)
    field = b"\x01n" + kind.encode() + struct.pack(">I", len(inner)) + inner
    return struct.pack(">I", len(field)) + field


@pytest.mark.parametrize("kind", ["plain", "A", "F"])
def test_so_many_fields_and_no_more(kind: str) -> None:
    """Each costs the loop time: an array of 128 KiB of nothing took a tenth of a second to read."""
    data = many(FIELDS_MAX, kind)
    assert decode_table(data)[1] == table_end(data, 0, len(data)) == len(data)
    data = many(FIELDS_MAX + 1, kind)
    for read in (decode_table, lambda data: table_end(data, 0, len(data))):
        with pytest.raises(BadTable, match="more than 4096 fields"):
            read(data)
    assert decode_table(data, 0, 2 * FIELDS_MAX)[1] == len(data)


def test_large_values_are_no_many_fields() -> None:
    table = {"large": Field("S", "x" * 100_000), "bytes": Field("x", b"A" * 100_000), "n": Field("d", 1.5)}
    data = encode_table(table)
    assert decode_table(data) == (table, len(data))


@pytest.mark.parametrize(
    ("letter", "data", "field", "name"),
    [
        ("t", "00", Field("t", False), "bool"),
        ("t", "07", Field("t", True), "bool"),
        ("b", "ff", Field("b", -1), "byte"),
        ("B", "ff", Field("B", 255), "unsignedbyte"),
        ("s", "ffff", Field("s", -1), "short"),
        ("u", "ffff", Field("u", 65535), "unsignedshort"),
        ("I", "ffffffff", Field("I", -1), "signedint"),
        ("i", "ffffffff", Field("i", 2**32 - 1), "unsignedint"),
        ("l", "ffffffffffffffff", Field("l", -1), "long"),
        ("L", "ffffffffffffffff", Field("l", -1), "long"),
        ("f", "3f000000", Field("f", 0.5), "float"),
        ("d", "3fe0000000000000", Field("d", 0.5), "double"),
        ("D", "02ffffffff", Field("D", (2, 2**32 - 1)), "decimal"),
        ("T", "ffffffffffffffff", Field("T", 2**64 - 1), "timestamp"),
        ("S", "00000002c3a9", Field("S", "é"), "longstr"),
        ("S", "00000001ff", Field("S", "\udcff"), "longstr"),
        ("x", "00000001ff", Field("x", b"\xff"), "binary"),
        ("V", "", Field("V", None), "void"),
        ("A", "000000035662ff", Field("A", [Field("V", None), Field("b", -1)]), "array"),
        ("F", "00000003016b56", Field("F", {"k": Field("V", None)}), "table"),
    ],
)
def test_kinds_as_rabbitmq_reads_and_names_them(letter: str, data: str, field: Field, name: str) -> None:
    encoded = raw(b"\x01k" + letter.encode() + bytes.fromhex(data))
    table, _ = decode_table(encoded)
    assert table == {"k": field}
    assert type_name(field) == name
    if letter != "L" and data != "07":
        assert encode_table(table) == encoded


def test_first_of_equal_keys_wins() -> None:
    assert decode_table(raw(b"\x01kb\x01\x01kb\x02"))[0] == {"k": Field("b", 1)}


@pytest.mark.parametrize(
    "fields",
    [
        b"\x01",  # the name is missing
        b"\x01k",  # the type is missing
        b"\x01kq",  # no such type
        b"\x01kt",
        b"\x01kl1234567",
        b"\x01kD\x01123",
        b"\x01kd1234567",
        b"\x01kS\x00\x00\x00\x02a",
        b"\x01kS\x00\x00\x00",
        b"\x01kS\xff\xff\xff\xff",
        b"\x01kx\x00\x00\x00\x01",
        b"\x01kA\x00\x00\x00\x01q",
        b"\x01kF\x00\x00\x00\x02\x01k",
        b"\x01kd\x7f\xf8\x00\x00\x00\x00\x00\x00",  # NaN
        b"\x01kf\xff\x80\x00\x00",  # -inf
    ],
)
def test_malformed(fields: bytes) -> None:
    with pytest.raises(BadTable):
        decode_table(raw(fields))
    # A value must not reach beyond its table into bytes that happen to follow.
    with pytest.raises(BadTable):
        decode_table(raw(fields) + bytes(16))


def nest(levels: int, kind: str) -> Field:
    field = Field(kind, {} if kind == "F" else [])
    for _ in range(levels - 1):
        field = Field(kind, {"k": field} if kind == "F" else [field])
    return field


@pytest.mark.parametrize("kind", ["F", "A"])
def test_nesting_is_limited(kind: str) -> None:
    deepest = {"k": nest(DEPTH_MAX - 1, kind)}
    encoded = encode_table(deepest)
    assert decode_table(encoded)[0] == deepest
    with pytest.raises(BadTable, match="nested"):
        encode_table({"k": nest(DEPTH_MAX, kind)})
    inner = encoded[4:] if kind == "F" else encoded[6:]
    deeper = raw(b"\x01k" + kind.encode() + raw(inner))
    with pytest.raises(BadTable, match="nested"):
        decode_table(deeper)


@pytest.mark.parametrize(
    "field",
    [
        Field("b", 128),
        Field("B", -1),
        Field("l", 2**63),
        Field("T", -1),
        Field("D", (256, 1)),
        Field("f", 1e300),
        Field("d", float("nan")),
        Field("S", "\ud800"),
        Field("L", 1),
        Field("?", 1),
    ],
)
def test_what_cannot_be_written(field: Field) -> None:
    with pytest.raises(BadTable):
        encode_table({"k": field})
    with pytest.raises(BadTable):
        encode_table({"k": Field("A", [field])})


def test_key_length() -> None:
    assert decode_table(encode_table({"k" * 255: Field("V", None)}))[0] == {"k" * 255: Field("V", None)}
    with pytest.raises(BadTable, match="256"):
        encode_table({"é" * 128: Field("V", None)})


def test_equivalence_is_by_class_of_types() -> None:
    assert equivalent(Field("I", 5), Field("l", 5))
    assert equivalent(Field("f", 0.5), Field("d", 0.5))
    assert equivalent(None, None)
    assert not equivalent(Field("I", 5), Field("I", 6))
    assert not equivalent(Field("I", 1), Field("t", True))
    assert not equivalent(Field("I", 1), Field("d", 1.0))
    assert not equivalent(Field("I", 5), Field("T", 5))
    assert not equivalent(Field("S", "a"), Field("x", b"a"))
    assert not equivalent(None, Field("V", None))


@given(tables)
def test_canonical_ignores_order_only(table: Table) -> None:
    backwards = dict(reversed(table.items()))
    assert hash(canonical(table)) == hash(canonical(backwards))
    assert canonical(table) == canonical(backwards)
    assert canonical(table) != canonical({**table, "added": Field("V", None), "also": Field("t", True)})


def test_canonical_tells_types_apart() -> None:
    assert canonical({"k": Field("t", True)}) != canonical({"k": Field("b", 1)})
    assert canonical({"k": Field("A", [Field("I", 1)])}) != canonical({"k": Field("A", [Field("l", 1)])})


def test_python_values() -> None:
    value = {"a": True, "b": 1, "c": 1.5, "d": "s", "e": b"x", "f": None, "g": [1, {"h": "i"}]}
    table = table_from_python(value)
    assert "".join(field.kind for field in table.values()) == "tldSxVA"
    assert to_python(table) == value
    assert from_python(Field("I", 1)) == Field("I", 1)
    assert to_python({"k": Field("D", (2, 314))}) == {"k": 3.14}
    with pytest.raises(BadTable):
        from_python(object())
