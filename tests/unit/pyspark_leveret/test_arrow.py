"""Sheets as Arrow batches: the same as when each message is decoded by itself."""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_schema

from leveret.data.sheet import BadSheet, Part, Sheet, decode, encode
from leveret.protocol.properties import Properties
from leveret.protocol.tables import Field
from pyspark_leveret.schema import COLUMNS, BadSchema, Column, arrow_schema, chosen
from pyspark_leveret.source import arrow
from pyspark_leveret.source.arrow import Converter, header_pairs, header_text, spread_ranges
from tests.unit.pyspark_leveret.sheets import Message, content, sheet_of

TYPES = {
    "string": types.StringType(),
    "bigint": types.LongType(),
    "int": types.IntegerType(),
    "binary": types.BinaryType(),
    "boolean": types.BooleanType(),
    "timestamp": types.TimestampType(),
    "map<string,string>": types.MapType(types.StringType(), types.StringType()),
}
ALL = [Column(name) for name in COLUMNS]
SHORT = st.text(st.characters(codec="utf-8"), max_size=12)
PROPERTIES = st.builds(
    Properties,
    content_type=st.none() | SHORT,
    content_encoding=st.none() | SHORT,
    headers=st.none()
    | st.dictionaries(SHORT, st.sampled_from([Field("S", "v"), Field("l", 5), Field("t", True)]), max_size=3),
    delivery_mode=st.none() | st.sampled_from([1, 2]),
    priority=st.none() | st.integers(0, 255),
    correlation_id=st.none() | SHORT,
    reply_to=st.none() | SHORT,
    expiration=st.none() | SHORT,
    message_id=st.none() | SHORT,
    timestamp=st.none() | st.integers(0, 4_000_000_000),
    type=st.none() | SHORT,
    user_id=st.none() | SHORT,
    app_id=st.none() | SHORT,
    cluster_id=st.none() | SHORT,
)
MESSAGES = st.builds(
    Message,
    body=st.binary(max_size=300),
    properties=PROPERTIES,
    exchange=st.sampled_from([b"", b"events"]),
    key=st.sampled_from([b"a", b"b.c"]),
    ms=st.sampled_from([0, 1_700_000_000_123, 1_700_000_000_999]),
    kind=st.sampled_from([0, 1, 2, 3]),
    number=st.none(),
)


def rows(sheet: Sheet, columns: list[Column] = ALL, node: str | None = "n1") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for batch in Converter(columns, "orders", node).batches(sheet):
        batch.validate(full=True)
        found += batch.to_pylist()
    return found


def expected(message: Message, number: int) -> dict[str, Any]:
    wanted: dict[str, Any] = {name: getattr(message.properties, name, None) for name in COLUMNS}
    headers = message.properties.headers
    wanted["headers"] = None if headers is None else [(name, header_text(field)) for name, field in headers.items()]
    seconds = message.properties.timestamp
    return {
        **wanted,
        "queue": "orders",
        "offset": number,
        "exchange": message.exchange.decode(),
        "routing_key": message.key.decode(),
        "body": message.body,
        "timestamp": None if seconds is None else datetime.fromtimestamp(seconds, UTC),
        "enqueued": datetime.fromtimestamp(message.ms / 1000, UTC) if message.ms else None,
        "redelivered": bool(message.kind & 2),
        "node": "n1",
    }


@settings(max_examples=40)
@given(st.lists(MESSAGES, min_size=1, max_size=20), st.sampled_from([64, 131_072]))
def test_all_columns_of_any_messages(messages: list[Message], frame_max: int) -> None:
    wanted = [expected(message, number) for number, message in enumerate(messages, 7)]
    assert rows(sheet_of(messages, frame_max, first=7)) == wanted


def test_the_arrow_types_are_those_that_spark_wants() -> None:
    schema = types.StructType([types.StructField(name, TYPES[kind], name != "node") for name, kind in COLUMNS.items()])
    assert arrow_schema(chosen(schema.fields)).equals(to_arrow_schema(schema, timezone="UTC"))


def test_a_column_can_be_had_once() -> None:
    twice = [types.StructField(name, TYPES[COLUMNS[name]]) for name in ("offset", "body", "offset")]
    with pytest.raises(BadSchema, match="column 'offset' is in the schema twice"):
        chosen(twice)


def test_only_wanted_columns_in_the_wanted_order() -> None:
    [row] = rows(
        sheet_of([Message(properties=Properties(content_type="t", priority=3))]), [Column("priority"), Column("body")]
    )
    assert list(row.items()) == [("priority", 3), ("body", b"body")]


def test_holes_in_the_numbers() -> None:
    sheet = sheet_of([Message(number=number) for number in (3, 4, 9, 20, 21)])
    assert [row["offset"] for row in rows(sheet)] == [3, 4, 9, 20, 21]


def test_batches_are_bounded_by_rows_and_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    sheet = sheet_of([Message(body=bytes(1000), properties=Properties(message_id=str(n))) for n in range(25)])
    monkeypatch.setattr(arrow, "ROWS_MAX", 10)
    sizes = [batch.num_rows for batch in Converter(ALL, "q").batches(sheet)]
    assert sizes == [9, 8, 8]
    monkeypatch.setattr(arrow, "BYTES_MAX", 3 * len(content(Message(bytes(1000), Properties(message_id="10")))))
    batches = list(Converter(ALL, "q").batches(sheet))
    assert {batch.num_rows for batch in batches} == {3, 1}
    ids = [one for batch in batches for one in batch.column("message_id").to_pylist()]
    assert ids == [str(n) for n in range(25)]
    monkeypatch.setattr(arrow, "BYTES_MAX", 10)  # Less than a message: each is a batch.
    assert [batch.num_rows for batch in Converter(ALL, "q").batches(sheet)] == [1] * 25


def test_what_all_rows_share_is_there_in_batches_of_any_length() -> None:
    converter = Converter(ALL, "q", "n")
    for count in (3, 2, 7, 1):
        plain = sheet_of([Message() for _ in range(count)])
        [batch] = converter.batches(plain)
        batch.validate(full=True)
        for name, value in (("queue", "q"), ("node", "n"), ("headers", None), ("message_id", None), ("priority", None)):
            assert batch.column(name).to_pylist() == [value] * count
    given = sheet_of([Message(properties=Properties(message_id="m", priority=3)), Message()])
    [batch] = converter.batches(given)
    assert (batch.column("message_id").to_pylist(), batch.column("priority").to_pylist()) == (["m", None], [3, None])


def test_text_that_is_no_utf8() -> None:
    strange = "\udcff"  # As `surrogateescape` gives the byte 255.
    table = {strange: Field("S", strange), "ok": Field("S", "é")}
    messages = [Message(properties=Properties(type=strange, headers=table), key=b"\xff"), Message()]
    first, second = rows(sheet_of(messages))
    assert (first["type"], first["routing_key"], second["type"]) == ("\ufffd", "\ufffd", None)
    assert first["headers"] == [("\ufffd", "\ufffd"), ("ok", "é")]


def test_timestamps_that_no_calendar_has_are_null() -> None:
    times = [1_700_000_000, 1_700_000_000_000, (1 << 64) - 1, 0]
    found = rows(sheet_of([Message(properties=Properties(timestamp=one)) for one in times]))
    assert [row["timestamp"] and row["timestamp"].year for row in found] == [2023, None, None, 1970]


@pytest.mark.parametrize(
    ("field", "text"),
    [
        (Field("S", "plain"), "plain"),
        (Field("l", -5), "-5"),
        (Field("t", True), "true"),
        (Field("d", 0.5), "0.5"),
        (Field("V", None), None),
        (Field("x", b"\x00\xff"), "AP8="),
        (Field("D", (2, 314)), "3.14"),
        (Field("T", 1_700_000_000), "1700000000"),
        (Field("A", [Field("S", "a"), Field("V", None)]), '["a",null]'),
        (Field("F", {"é": Field("x", b"1"), "n": Field("F", {})}), '{"é":"MQ==","n":{}}'),
    ],
)
def test_header_values_as_text(field: Field, text: str | None) -> None:
    assert header_text(field) == text
    [row] = rows(sheet_of([Message(properties=Properties(headers={"h": field}))]))
    assert row["headers"] == [("h", text)]


def test_equal_headers_are_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = []

    def counting(raw: bytes) -> list[tuple[str, str | None]]:
        parsed.append(raw)
        return header_pairs(raw)

    monkeypatch.setattr(arrow, "header_pairs", counting)
    one, other = Properties(headers={"n": Field("l", 1)}), Properties(headers={"n": Field("l", 2)})
    converter = Converter([Column("headers")], "q")
    for _ in range(3):
        batches = list(
            converter.batches(sheet_of([Message(properties=each) for each in (one, other, one, Properties())]))
        )
        assert batches[0].column("headers").to_pylist() == [[("n", "1")], [("n", "2")], [("n", "1")], None]
    assert len(parsed) == 2


def test_spread_ranges() -> None:
    assert spread_ranges([(1, 3), (7, 7), (10, 11)]).tolist() == [1, 2, 3, 7, 10, 11]
    assert spread_ranges([]).tolist() == []


def test_an_empty_sheet_has_no_batches() -> None:
    assert rows(decode(b"".join(encode([], 5)))) == []


def damaged(stored: bytes, size: int | None = None) -> Sheet:
    part = Part(
        [(1, 1)], [], struct.pack("<I", len(stored) if size is None else size), b"\1", b"\1\0\0\0\2\0\0\0", [stored]
    )
    return decode(b"".join(encode([part], 2)))


WHOLE = content(Message(b"body", Properties(content_type="text/plain", headers={"a": Field("S", "b")})))


@pytest.mark.parametrize(
    ("stored", "size"),
    [
        (WHOLE[:10], None),
        (WHOLE[:-3], None),
        (WHOLE, len(WHOLE) - 1),
        (WHOLE[:3] + b"\x00\x00\x10\x00" + WHOLE[7:], None),  # A header longer than the message,
        (WHOLE[:21] + b"\xff" + WHOLE[22:], None),  # a property longer than the header,
        (WHOLE[:32] + b"\x7f\xff\xff\xff" + WHOLE[36:], None),  # a table beyond everything.
    ],
)
def test_damaged_contents_are_noticed(stored: bytes, size: int | None) -> None:
    with pytest.raises(BadSheet):
        rows(damaged(stored, size))


def test_any_damage_ends_in_an_error_of_our_own_or_in_rows() -> None:
    for at in range(len(WHOLE)):
        for value in (0, 1, 127, 255):
            try:
                rows(damaged(WHOLE[:at] + bytes((value,)) + WHOLE[at + 1 :]))
            except BadSheet:
                continue


def test_batches_can_be_sent() -> None:
    batches = list(Converter(ALL, "q").batches(sheet_of([Message(), Message()])))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as stream:
        stream.write_batch(batches[0])
    assert pa.ipc.open_stream(sink.getvalue()).read_all().num_rows == 2
