"""Counters of messages by size."""

from __future__ import annotations

from leveret.base.counters import SizeCounters


def sizes_of(*sizes: int) -> list[bytes]:
    return [bytes(size + SizeCounters.HEADS) for size in sizes]


def test_messages_are_counted_in_rabbitmqs_ranges() -> None:
    counters = SizeCounters()
    counters.add(sizes_of(0, 100, 101, 1_000))
    counters.add(sizes_of(20_000, 20_000))
    counts, total = counters.histogram()
    assert counts == [2, 2, 0, 2, 0, 0, 0, 0, 0] and total == 41_201
    counters.add(sizes_of(5))
    assert counters.histogram() == ([3, *counts[1:]], total + 5)  # What was told is not forgotten.


def test_different_sizes_do_not_pile_up() -> None:
    counters = SizeCounters()
    for size in range(3 * SizeCounters.DIFFERENT_MAX):
        counters.add(sizes_of(size))
        assert len(counters.recent) <= SizeCounters.DIFFERENT_MAX + 1
    assert sum(counters.histogram()[0]) == 3 * SizeCounters.DIFFERENT_MAX


def test_bundles_of_different_sizes_do_not_pile_up() -> None:
    counters, sizes, count = SizeCounters(), range(7), 0
    while count < 3 * SizeCounters.UNCOUNTED_MAX:
        assert counters.add(sizes_of(*sizes)) == sum(sizes) + len(sizes) * SizeCounters.HEADS
        count += len(sizes)
        assert len(counters.lengths) <= SizeCounters.UNCOUNTED_MAX
    assert counters.histogram() == ([count, 0, 0, 0, 0, 0, 0, 0, 0], count // len(sizes) * sum(sizes))
    for size in range(0, 3 * SizeCounters.DIFFERENT_MAX, 2):
        counters.add(sizes_of(size, size + 1))
        assert len(counters.recent) <= SizeCounters.DIFFERENT_MAX + SizeCounters.UNCOUNTED_MAX
    assert sum(counters.histogram()[0]) == count + 3 * SizeCounters.DIFFERENT_MAX


def test_a_content_shorter_than_its_heads_has_no_size() -> None:
    counters = SizeCounters()
    counters.add([b"x"])
    assert counters.histogram() == ([1, 0, 0, 0, 0, 0, 0, 0, 0], 0)
