"""Filters of a query that the source itself applies, so that what they exclude is not read, or not converted.

Spark 4.1 and later tell a batch reader the conditions that a query has on single columns (`pushFilters`). Those on
`queue` and `offset` choose queues and ranges when the batch is planned. Those on `exchange`, `routing_key` and
`enqueued` are looked at in tasks: a sheet has these columns in stretches of equal values, so that a condition is
evaluated once for a stretch, and rows that do not meet it are never converted.

A condition on `enqueued` also narrows the range of a stream, whose offsets mostly ascend with time. They do not where a
node with another clock became master, or a clock was set. So a range is narrowed only to `SKEW_MS` before and after the
times that are asked for, and tasks look at the rest. Of other queues, messages that are only in memory have no time,
and nothing is narrowed.

All conditions that are accepted here are met by every row of the batch: Spark does not look again. A condition whose
meaning for null or for a strange value is not simple is left to Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

import numpy as np

from leveret.data.client import DataClient, QueueInfo
from leveret.data.sheet import Sheet
from pyspark_leveret.source.reading import Range

SKEW_MS: Final = 600_000
VALUES_MAX: Final = 1_000  # Of a list of values (`IN`).
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_COMPARISONS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "EqualTo": lambda one, value: one == value,
    "GreaterThan": lambda one, value: one > value,
    "GreaterThanOrEqual": lambda one, value: one >= value,
    "LessThan": lambda one, value: one < value,
    "LessThanOrEqual": lambda one, value: one <= value,
}
_OF_TEXT: Final[dict[str, Callable[[Any, Any], Any]]] = {
    **_COMPARISONS,
    "EqualNullSafe": lambda one, value: one == value,
    "In": lambda one, value: one in value,
    "StringStartsWith": lambda one, value: one.startswith(value),
    "StringEndsWith": lambda one, value: one.endswith(value),
    "StringContains": lambda one, value: value in one,
    "IsNotNull": lambda one, value: True,
    "IsNull": lambda one, value: False,
}

Bools = np.ndarray[Any, np.dtype[np.bool_]]


class Condition(NamedTuple):
    """A condition on one column, with Spark's name of its kind. Times are microseconds since 1970."""

    column: str
    kind: str
    value: Any
    is_negated: bool = False

    def holds(self, text: str) -> bool:
        """Whether a text meets it."""
        return bool(_OF_TEXT[self.kind](text, self.value)) is not self.is_negated


def condition(given: Any) -> Condition | None:
    """Returns a filter of Spark's (`pyspark.sql.datasource.Filter`) as a condition; None if the source cannot apply
    it."""
    kind, is_negated = type(given).__name__, False
    if kind == "Not":
        given = given.child
        kind, is_negated = type(given).__name__, True
    if len(given.attribute) != 1:
        return None
    column, value = given.attribute[0], getattr(given, "value", None)
    if column in ("queue", "exchange", "routing_key"):
        return _condition_on_text(column, kind, value, is_negated)
    if is_negated:
        return None
    if column == "offset":
        return _condition_on_offset(kind, value)
    return _condition_on_time(kind, value) if column == "enqueued" else None


def _condition_on_text(column: str, kind: str, value: Any, is_negated: bool) -> Condition | None:
    if kind in ("IsNull", "IsNotNull"):
        return Condition(column, kind, None, is_negated)
    if kind == "In":
        if len(value) > VALUES_MAX or not all(isinstance(one, str) for one in value):
            return None
        return Condition(column, kind, frozenset(value), is_negated)
    return Condition(column, kind, value, is_negated) if kind in _OF_TEXT and isinstance(value, str) else None


def _condition_on_offset(kind: str, value: Any) -> Condition | None:
    if kind == "IsNotNull":
        return Condition("offset", kind, None)
    if kind == "In":
        is_usable = len(value) <= VALUES_MAX and all(type(one) is int for one in value)
        return Condition("offset", kind, tuple(sorted(set(value)))) if is_usable else None
    return Condition("offset", kind, value) if kind in _COMPARISONS and type(value) is int else None


def _condition_on_time(kind: str, value: Any) -> Condition | None:
    if kind == "IsNotNull":
        return Condition("enqueued", kind, None)
    if kind not in _COMPARISONS or not isinstance(value, datetime) or value.tzinfo is None:
        return None
    return Condition("enqueued", kind, (value - _EPOCH) // _MICROSECOND)


# -- When a batch is planned -------------------------------------------------------------------------------------------


def is_wanted(queue: str, conditions: Iterable[Condition]) -> bool:
    return all(one.holds(queue) for one in conditions if one.column == "queue")


def narrowed(ranges: Sequence[Range], conditions: Iterable[Condition]) -> list[Range]:
    """Returns the parts of ascending ranges that the conditions on `offset` allow."""
    found = list(ranges)
    for one in conditions:
        if one.column == "offset" and one.kind != "IsNotNull":
            found = [
                (max(first, low), min(last, high))
                for first, last in found
                for low, high in _allowed(one, last)
                if max(first, low) <= min(last, high)
            ]
    return found


def _allowed(one: Condition, last: int) -> list[Range]:
    match one.kind:
        case "GreaterThan":
            return [(one.value + 1, last)]
        case "GreaterThanOrEqual":
            return [(one.value, last)]
        case "LessThan":
            return [(0, one.value - 1)]
        case "LessThanOrEqual":
            return [(0, one.value)]
        case "EqualTo":
            return [(one.value, one.value)]
    return [(value, value) for value in one.value]


def between_times(
    client: DataClient, info: QueueInfo, first: int, last: int, conditions: Iterable[Condition]
) -> tuple[int, int]:
    """Narrows a range of a stream to the neighbourhood of the times that are asked for."""
    if info.type != "stream" or last < first:
        return first, last
    times = [one for one in conditions if one.column == "enqueued" and one.value is not None]
    since = [one.value for one in times if one.kind.startswith(("Greater", "Equal"))]
    until = [one.value for one in times if one.kind.startswith(("Less", "Equal"))]
    if since and (ms := max(since) // 1000 - SKEW_MS) > 0:
        first = max(first, client.number_at(info.name, ms))
    if until:
        last = min(last, client.number_at(info.name, max(min(until) // 1000 + 1 + SKEW_MS, 0)) - 1)
    return first, last


# -- In tasks ----------------------------------------------------------------------------------------------------------


def rows_that_meet(sheet: Sheet, conditions: Sequence[Condition]) -> Bools | None:
    """Returns which messages of a sheet meet the conditions on its columns; None if all do."""
    keep: Bools | None = None
    for column in ("exchange", "routing_key"):
        texts = [one for one in conditions if one.column == column]
        if texts:
            keys = [exchange if column == "exchange" else key for _, exchange, key in sheet.keys]
            known = {key: all(one.holds(key.decode("utf-8", "replace")) for one in texts) for key in set(keys)}
            keep = _both(keep, [known[key] for key in keys], [count for count, _, _ in sheet.keys])
    times = [one for one in conditions if one.column == "enqueued"]
    if times:
        keep = _both(keep, *_meeting_times(sheet, times))
    return None if keep is None or keep.all() else keep


def _meeting_times(sheet: Sheet, times: Sequence[Condition]) -> tuple[list[bool], list[int]]:
    begins = [at for at, _ in sheet.times]
    counts = np.diff([*begins, sheet.count]).tolist() if begins else [sheet.count]
    meets = [
        ms != 0 and all(one.value is None or _COMPARISONS[one.kind](ms * 1000, one.value) for one in times)
        for _, ms in sheet.times or ((0, 0),)
    ]
    return meets, counts


def _both(keep: Bools | None, meets: Sequence[bool], counts: Sequence[int]) -> Bools:
    rows: Bools = np.repeat(np.array(meets, np.bool_), counts)
    return rows if keep is None else keep & rows
