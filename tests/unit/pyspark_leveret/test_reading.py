"""How a batch is cut into tasks, and what limits mean."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.data.client import QueueInfo
from pyspark_leveret.connect import LeveretError
from pyspark_leveret.options import Options
from pyspark_leveret.source.planning import checked, pieces_for, shares
from pyspark_leveret.source.reading import GAP_MAX, count, cut, numbers_at, spans

RANGES = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 40)), min_size=1, max_size=8)


def info(
    first: int = 1, following: int = 101, kind: str = "classic", messages: int = 100, size: int = 20_000
) -> QueueInfo:
    return QueueInfo("q", 1, kind, True, first, following, messages, size, "n", (), ())


@given(RANGES, st.integers(1, 12))
def test_cutting_loses_nothing_and_is_even(steps: list[tuple[int, int]], parts: int) -> None:
    ranges, at = [], 0
    for gap, size in steps:
        ranges.append((at + gap, at + gap + size - 1))
        at += gap + size
    pieces = cut(ranges, parts)
    assert [n for piece in pieces for first, last in piece for n in range(first, last + 1)] == [
        n for first, last in ranges for n in range(first, last + 1)
    ]
    sizes = [count(piece) for piece in pieces]
    assert len(sizes) == min(parts, count(ranges))
    assert max(sizes) - min(sizes) <= 1


def test_ranges_with_little_between_are_read_as_one() -> None:
    near, far = (10, 19 + GAP_MAX), (5000, 5001)
    assert list(spans([(1, 5), (8, 9), near, far, (4000, 4001), (4000 + 1, 4002)])) == [
        [(1, 5), (8, 9), near],
        [far],
        [(4000, 4001)],
        [(4001, 4002)],
    ]
    assert list(spans([])) == []


def test_places_of_a_lease_are_numbers_of_messages() -> None:
    runs = [(5, 101, 110), (15, 50, 50), (16, 200, 203)]
    assert numbers_at(runs, 5, 14) == [(101, 110)]
    assert numbers_at(runs, 13, 17) == [(109, 110), (50, 50), (200, 201)]
    assert numbers_at(runs, 0, 4) == []  # Acknowledged.
    assert numbers_at(runs, 19, 30) == [(203, 203)]


@given(st.dictionaries(st.text(max_size=3), st.integers(0, 1000), max_size=6), st.none() | st.integers(0, 2000))
def test_shares_are_fair(wanted: dict[str, int], limit: int | None) -> None:
    given = shares(wanted, limit)
    assert given.keys() == wanted.keys()
    assert all(given[name] <= wanted[name] for name in wanted)
    total = sum(wanted.values())
    assert sum(given.values()) == (total if limit is None else min(limit, total))
    short = [given[name] for name in wanted if given[name] < wanted[name]]
    if short:  # Whoever gets less than it wants gets as much as anybody.
        assert min(short) >= max(given.values()) - 1


def test_large_queues_are_several_tasks() -> None:
    assert pieces_for(info(messages=1_000_000, size=130 << 20), 1_000_000) == 2
    assert pieces_for(info(messages=1_000_000, size=130 << 20), 100_000) == 1
    assert pieces_for(info(messages=1_000_000, size=130 << 20), 200_000) == 2
    assert pieces_for(info(messages=10_000_000, size=1300 << 20), 10_000_000) == 16
    assert pieces_for(info(), 100) == 1
    assert pieces_for(info(messages=0, size=0), 5) == 1


def test_numbers_outside_of_a_queue() -> None:
    strict = Options({"subscribe": "q"}).source(streaming=False)
    lax = Options({"subscribe": "q", "failOnDataLoss": "false"}).source(streaming=False)
    assert checked(strict, info(first=50), 10) == 50  # What was consumed is no loss,
    with pytest.raises(LeveretError, match="it begins with 50"):
        checked(strict, info(first=50, kind="stream"), 10)  # and what a stream has dropped is.
    assert checked(lax, info(first=50, kind="stream"), 10) == 50
    with pytest.raises(LeveretError, match="beyond its end"):
        checked(strict, info(), 102)
    assert checked(lax, info(), 102) == 101
    assert checked(strict, info(), 101) == 101
