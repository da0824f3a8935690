"""Counted latencies."""

from __future__ import annotations

import random

import pytest

from leveret.perf.histogram import Histogram


def test_small_values_are_exact() -> None:
    histogram = Histogram()
    for value in range(1, 101):
        histogram.add(value)
    assert [histogram.percentile(share) for share in (0.5, 0.75, 0.95, 0.99, 1.0)] == [50, 75, 95, 99, 100]


@pytest.mark.parametrize("seed", range(5))
def test_large_values_are_nearly_exact(seed: int) -> None:
    rng = random.Random(seed)
    values = sorted(int(rng.expovariate(1e-7)) for _ in range(5_000))
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    for share in (0.5, 0.75, 0.95, 0.99):
        exact = values[int(share * len(values)) - 1]
        assert abs(histogram.percentile(share) - exact) <= exact * 0.01 + 1
    assert (histogram.least, histogram.most, histogram.count) == (values[0], values[-1], 5_000)
    assert len(histogram.counts) < 5_000


def test_milliseconds() -> None:
    histogram = Histogram()
    assert histogram.milliseconds() is None
    histogram.add(1_500_000, 3)
    assert histogram.milliseconds() == {
        "min": 1.5, "median": 1.5, "75th": 1.5, "95th": 1.5, "99th": 1.5, "max": 1.5,
    }  # fmt: skip


def test_merge() -> None:
    parts = [Histogram() for _ in range(3)]
    parts[0].add(10, 5)
    parts[2].add(20, 5)
    merged = Histogram().merge(parts)
    assert (merged.count, merged.least, merged.most, merged.percentile(0.5)) == (10, 10, 20, 10)


def test_a_clock_that_was_set_back() -> None:
    histogram = Histogram()
    histogram.add(-5)
    assert (histogram.least, histogram.most, histogram.count) == (0, 0, 1)
