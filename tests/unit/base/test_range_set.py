from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leveret.base import range_set as module
from leveret.base.range_set import RangeSet

operations = st.lists(st.tuples(st.booleans(), st.integers(0, 80), st.integers(0, 25)), max_size=50)


@settings(max_examples=200, deadline=None)
@given(operations, st.sampled_from([2, 4, 1024]))
def test_like_a_set(steps: list[tuple[bool, int, int]], chunk: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_CHUNK_RANGES_MAX", chunk)
        ranges, model = RangeSet(), set[int]()
        for adds, low, length in steps:
            high = low + length
            there = set(range(low, high + 1))
            if adds:
                assert ranges.add(low, high) == len(there - model)
                model |= there
            else:
                assert ranges.remove(low, high) == len(there & model)
                model -= there
            assert ranges.covers(low, high) == (there <= model)
            assert ranges.count_within(low, high) == len(there & model)
        assert [number for low, high in ranges for number in range(low, high + 1)] == sorted(model)
        assert ranges.count == len(model) and bool(ranges) == bool(model)
        assert (ranges.first, ranges.last) == (min(model, default=None), max(model, default=None))
        pairs = list(ranges)
        assert all(a[1] + 1 < b[0] for a, b in pairwise(pairs)), "ranges touch"
        for number in range(0, 110):
            assert (number in ranges) == (number in model)
            assert ranges.next(number) == min((one for one in model if one >= number), default=None)
        assert RangeSet.unpack(ranges.pack()) == ranges == ranges.copy()


def test_ranges_are_cut_to_what_was_asked() -> None:
    ranges = RangeSet([(1, 10), (20, 30), (40, 50)])
    assert list(ranges.ranges(5, 42)) == [(5, 10), (20, 30), (40, 42)]
    assert list(ranges.ranges(11, 19)) == []
    assert list(ranges.ranges(0, limit=1)) == [(1, 10)]


@pytest.mark.parametrize("numbers", [[5, 4], [1, 2, 3, 4], [1, 5, 2, 9], [1]])
def test_unpack_refuses_what_pack_never_gives(numbers: list[int]) -> None:
    data = b"".join(number.to_bytes(8, "little") for number in numbers)
    with pytest.raises(ValueError):
        RangeSet.unpack(data)


def test_every_second_of_many() -> None:
    ranges = RangeSet([(1, 20_000)])
    for number in range(2, 20_001, 2):
        assert ranges.remove(number, number) == 1
    assert ranges.count == ranges.range_count == 10_000
    assert ranges.add(1, 20_000) == 10_000
    assert list(ranges) == [(1, 20_000)]


@pytest.mark.parametrize("gap", [1, 2, 10])
@pytest.mark.parametrize(("before", "behind"), [(0, 3), (3, 0), (1, 1), (3, 1), (1, 3), (50, 70)])
def test_a_set_takes_over_a_higher_one(monkeypatch: pytest.MonkeyPatch, before: int, behind: int, gap: int) -> None:
    monkeypatch.setattr(module, "_CHUNK_RANGES_MAX", 4)
    low = [(3 * number, 3 * number + 1) for number in range(before)]
    start = (low[-1][1] if low else 0) + gap
    high = [(start + 3 * number, start + 3 * number + 1) for number in range(behind)]
    ranges, other = RangeSet(low), RangeSet(high)
    ranges.extend(other)
    assert ranges == RangeSet(low + high) and ranges.count == 2 * (before + behind)
    assert all(number in ranges for first, last in low + high for number in (first, last))
    ranges.add(start + 1_000, start + 1_000)
    assert ranges.remove(0, start + 1_000) == 2 * (before + behind) + 1 and not ranges
