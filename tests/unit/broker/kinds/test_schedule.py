from __future__ import annotations

import random

from leveret.broker.kinds.schedule import FAR_BITS, MOVED_MAX, NUMBER_MASK, Schedule, packed

START_MS = 1_700_000_000_000


def take(schedule: Schedule, until_ms: int, count_max: int = 1 << 40) -> list[int]:
    return [one & NUMBER_MASK for one in schedule.take(until_ms, count_max)]


def drained(schedule: Schedule, until_ms: int) -> list[tuple[int, int]]:
    """Everything in the order in which it is given out, looking only when the agenda says so: (time, number)."""
    found: list[tuple[int, int]] = []
    now_ms = 0
    while (next_ms := schedule.next_ms()) is not None and next_ms <= until_ms:
        now_ms = max(now_ms, next_ms)
        found += [(now_ms, number) for number in take(schedule, now_ms)]
    return found


def test_each_comes_when_it_is_due_whatever_the_distance() -> None:
    schedule, rng = Schedule(), random.Random(7)
    due = {number: START_MS + rng.choice((5, 900, 70_000, 10**7, (1 << 32) - 1)) + number for number in range(2_000)}
    for number, due_ms in due.items():
        schedule.add(due_ms, number)
    assert len(schedule) == 2_000
    found = drained(schedule, 1 << 50)
    assert found == sorted((due_ms, number) for number, due_ms in due.items())
    assert len(schedule) == 0 and schedule.next_ms() is None


def test_what_is_added_later_finds_its_place() -> None:
    schedule = Schedule()
    schedule.add(START_MS + 3_000, 1)
    assert take(schedule, START_MS + 2_999) == []
    schedule.add(START_MS - 50, 2)  # Long due.
    schedule.add(START_MS + 2_500, 3)
    schedule.add(START_MS + 3_000, 0)
    schedule.add(START_MS + 3_500, 4)
    assert take(schedule, START_MS + 3_000) == [2, 3, 0, 1]
    assert take(schedule, START_MS + 3_500) == [4]


def test_no_more_than_asked_for() -> None:
    schedule = Schedule()
    for number in range(5):
        schedule.add(START_MS, number)
    assert [take(schedule, START_MS, 2) for _ in range(3)] == [[0, 1], [2, 3], [4]]


def test_what_is_given_out_tells_when_it_was_due() -> None:
    schedule = Schedule()
    schedule.add(START_MS + 70_000, 2)
    schedule.add(START_MS, 1)
    assert schedule.take(START_MS + 70_000, 10) == [packed(START_MS, 1), packed(START_MS + 70_000, 2)]


def test_a_large_bucket_is_moved_in_pieces_and_given_out_when_it_is_in_order() -> None:
    schedule = Schedule()
    begin_ms = (START_MS >> FAR_BITS) + 1 << FAR_BITS
    count = 2 * MOVED_MAX + 1
    for number in reversed(range(count)):
        schedule.add(begin_ms, number)
    schedule.add(begin_ms - 1, count)
    assert schedule.advance(begin_ms - (1 << FAR_BITS) - 1)  # Nothing to do.
    assert not schedule.advance(begin_ms)
    assert take(schedule, begin_ms, 10) == [count]
    assert take(schedule, begin_ms) == list(range(count))
