"""Header tables parsed together: the same as one by one."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.data.sheet import BadSheet
from leveret.protocol.tables import Field, encode_table
from pyspark_leveret.schema import arrow_type
from pyspark_leveret.source import headers
from pyspark_leveret.source.arrow import header_pairs
from pyspark_leveret.source.headers import maps_of

KIND = arrow_type("map<string,string>")
FIELDS = st.sampled_from(
    [
        Field("S", ""), Field("S", "text"), Field("S", "é"), Field("b", -5), Field("B", 200), Field("s", -300),
        Field("u", 60_000), Field("I", -70_000), Field("i", 4_000_000_000), Field("l", -(2**63)), Field("l", 2**63 - 1),
        Field("t", True), Field("t", False), Field("V", None), Field("d", 1.5), Field("x", b"\xff"),
        Field("F", {"a": Field("S", "b")}), Field("A", [Field("I", 1)]), Field("T", 5),
    ]
)  # fmt: skip
TABLES = st.dictionaries(st.sampled_from(["", "a", "id", "ö", "n" * 255]), FIELDS, max_size=5).map(encode_table)


def expected(tables: list[bytes]) -> list[list[tuple[str, str | None]]]:
    return [header_pairs(table) for table in tables]


@given(st.lists(TABLES, max_size=30))
def test_tables_are_the_same_as_one_by_one(tables: list[bytes]) -> None:
    found = maps_of(pa.array(tables, pa.binary()), header_pairs, KIND)
    assert found.type == KIND
    found.validate(full=True)
    assert found.to_pylist() == expected(tables)
    some = maps_of(pa.array([b"\0\0\0\0", *tables], pa.binary())[1:], header_pairs, KIND)
    assert some.to_pylist() == expected(tables), "of an array that begins elsewhere"


@given(st.lists(TABLES | st.binary(max_size=40) | TABLES.map(lambda table: table[:-1]), min_size=1, max_size=8))
def test_bytes_that_make_no_sense_are_noticed(tables: list[bytes]) -> None:
    try:
        wanted = expected(tables)
    except BadSheet:
        with pytest.raises(BadSheet):
            maps_of(pa.array(tables, pa.binary()), header_pairs, KIND)
        return
    assert maps_of(pa.array(tables, pa.binary()), header_pairs, KIND).to_pylist() == wanted


def test_the_first_of_equal_names_counts_and_bytes_are_no_text() -> None:
    field = b"\x01aS\0\0\0\x01"
    twice = field + b"1" + field + b"2"
    strange = b"\x01\xffS\0\0\0\x01\xfe"
    many = b"".join(b"\x02%02dt\x01" % number for number in range(headers.FIELDS_MAX + 1))
    tables = [len(body).to_bytes(4, "big") + body for body in (twice, strange, many, field + b"3")]
    found = maps_of(pa.array(tables, pa.binary()), header_pairs, KIND)
    assert found.to_pylist() == expected(tables)
    assert found.to_pylist()[0] == [("a", "1")]
