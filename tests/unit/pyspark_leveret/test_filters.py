"""Filters that the source applies: what they keep is what Spark would keep."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import datasource

from leveret.protocol.properties import Properties
from leveret.protocol.tables import Field
from pyspark_leveret.schema import COLUMNS, Column
from pyspark_leveret.source.arrow import Converter
from pyspark_leveret.source.filters import SKEW_MS, Condition, between_times, condition, narrowed, rows_that_meet
from tests.unit.pyspark_leveret.sheets import Message, sheet_of
from tests.unit.pyspark_leveret.test_reading import info

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOON_MS = 1_767_268_800_000
ALL = [Column(name) for name in COLUMNS]
TEXTS = st.sampled_from(["", "a", "ab", "b", "ba", "é"])
KINDS = ("EqualTo", "EqualNullSafe", "GreaterThan", "GreaterThanOrEqual", "LessThan", "LessThanOrEqual")
PARTS = ("StringStartsWith", "StringEndsWith", "StringContains")


def pushed(kind: str, column: str, *value: Any) -> Any:
    return getattr(datasource, kind)((column,), *value)


def naive(kind: str, one: Any, value: Any) -> bool:
    """What the kind means for a value of a row. Null meets nothing."""
    if one is None:
        return False
    if kind in PARTS:
        return {PARTS[0]: one.startswith, PARTS[1]: one.endswith, PARTS[2]: one.__contains__}[kind](value)  # type: ignore[no-any-return]
    if kind == "In":
        return one in value
    order = (one > value) - (one < value)
    return order in {
        "EqualTo": (0,), "EqualNullSafe": (0,), "GreaterThan": (1,), "GreaterThanOrEqual": (0, 1), "LessThan": (-1,),
        "LessThanOrEqual": (-1, 0),
    }[kind]  # fmt: skip


MESSAGES = st.lists(
    st.builds(
        Message,
        body=st.sampled_from([b"", b"x" * 30]),
        properties=st.sampled_from([Properties(), Properties(content_type="t", headers={"a": Field("S", "b")})]),
        number=st.none(),
        kind=st.sampled_from([0, 3]),
        exchange=TEXTS.map(str.encode),
        key=TEXTS.map(str.encode),
        ms=st.sampled_from([0, NOON_MS - 1, NOON_MS, NOON_MS + 5]),
    ),
    min_size=1,
    max_size=20,
)
ON_TEXT = st.tuples(st.sampled_from(KINDS + PARTS), st.sampled_from(["exchange", "routing_key"]), TEXTS)
ON_LISTS = st.tuples(st.just("In"), st.sampled_from(["exchange", "routing_key"]), st.lists(TEXTS).map(tuple))
ON_TIMES = st.tuples(
    st.sampled_from([kind for kind in KINDS if kind != "EqualNullSafe"]),
    st.just("enqueued"),
    st.sampled_from([NOON, NOON + timedelta(microseconds=1), NOON - timedelta(milliseconds=1)]),
)


@given(MESSAGES, st.lists(st.tuples(ON_TEXT | ON_LISTS | ON_TIMES, st.booleans()), max_size=3))
def test_rows_are_those_that_spark_would_keep(messages: list[Message], wanted: list[tuple[Any, bool]]) -> None:
    sheet = sheet_of(messages)
    conditions = []
    rows = [row for batch in Converter(ALL, "q").batches(sheet) for row in batch.to_pylist()]
    for (kind, column, value), is_negated in wanted:
        given_one = pushed(kind, column, value)
        found = condition(datasource.Not(given_one) if is_negated else given_one)
        if found is None:
            assert is_negated and column == "enqueued"
            continue
        conditions.append(pickle.loads(pickle.dumps(found)))
        rows = [row for row in rows if naive(kind, row[column], value) is not is_negated]
    keep = rows_that_meet(sheet, conditions)
    assert [row for batch in Converter(ALL, "q").batches(sheet, keep) for row in batch.to_pylist()] == rows


ON_OFFSETS = st.tuples(st.sampled_from([kind for kind in KINDS if kind != "EqualNullSafe"]), st.integers(-3, 60))


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 15)), max_size=4),
    st.lists(ON_OFFSETS | st.tuples(st.just("In"), st.lists(st.integers(-3, 60)).map(tuple)), max_size=3),
)
def test_ranges_are_narrowed_to_what_is_wanted(steps: list[tuple[int, int]], wanted: list[tuple[str, Any]]) -> None:
    ranges, at = [], 0
    for gap, size in steps:
        ranges.append((at + gap, at + gap + size - 1))
        at += gap + size
    conditions = [condition(pushed(kind, "offset", value)) for kind, value in wanted]
    assert None not in conditions
    found = narrowed(ranges, [one for one in conditions if one is not None])
    assert [number for first, last in found for number in range(first, last + 1)] == [
        number
        for first, last in ranges
        for number in range(first, last + 1)
        if all(naive(kind, number, value) for kind, value in wanted)
    ]


@pytest.mark.parametrize(
    "given_one",
    [
        pushed("EqualTo", "body", b"x"),
        pushed("EqualTo", "offset", 1.5),
        pushed("EqualTo", "routing_key", None),
        pushed("In", "routing_key", ("a", None)),
        pushed("In", "offset", tuple(range(2000))),
        pushed("IsNull", "enqueued"),
        pushed("EqualNullSafe", "enqueued", NOON),
        pushed("EqualTo", "enqueued", datetime(2026, 1, 1)),
        datasource.Not(pushed("EqualTo", "offset", 5)),
        datasource.EqualTo(("headers", "a"), "x"),
    ],
)
def test_filters_that_are_left_to_spark(given_one: Any) -> None:
    assert condition(given_one) is None


class Clock:
    """Stands for a client: message n arrived n minutes after 1970."""

    def number_at(self, queue: str, ms: int) -> int:
        return -(-ms // 60_000)


def test_times_narrow_a_stream_and_leave_room_for_clocks() -> None:
    def found(kind: str, *conditions: Any) -> tuple[int, int]:
        known = [one for one in map(condition, conditions) if one is not None]
        return between_times(Clock(), info(0, 1000, kind), 0, 999, known)  # type: ignore[arg-type]

    skew = SKEW_MS // 60_000
    since = pushed("GreaterThanOrEqual", "enqueued", EPOCH + timedelta(minutes=100))
    until = pushed("LessThan", "enqueued", EPOCH + timedelta(minutes=200))
    assert found("stream", since, until, pushed("IsNotNull", "enqueued")) == (100 - skew, 200 + skew)
    assert found("stream", until)[0] == 0
    assert found("classic", since, until) == (0, 999)
    assert found("stream", pushed("EqualTo", "enqueued", EPOCH)) == (0, skew)


def test_nothing_to_drop() -> None:
    sheet = sheet_of([Message(), Message()])
    assert rows_that_meet(sheet, []) is None
    assert rows_that_meet(sheet, [Condition("routing_key", "IsNotNull", None)]) is None
    none = rows_that_meet(sheet, [Condition("routing_key", "IsNull", None)])
    assert none is not None and not np.any(none)
