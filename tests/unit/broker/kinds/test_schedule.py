from __future__ import annotations

import random

from leveret.broker.kinds.schedule import FAR_BITS, MOVED_MAX, NUMBER_MASK, Agenda, packed

START_MS = 1_700_000_000_000


def take(agenda: Agenda, until_ms: int, count_max: int = 1 << 40) -> list[int]:
    return [one & NUMBER_MASK for one in agenda.take(until_ms, count_max)]


def drained(agenda: Agenda, until_ms: int) -> list[tuple[int, int]]:
    """Everything in the order in which it is given out, looking only when the agenda says so: (time, number)."""
    found: list[tuple[int, int]] = []
    now_ms = 0
    while (next_ms := agenda.next_ms()) is not None and next_ms <= until_ms:
        now_ms = max(now_ms, next_ms)
        found += [(now_ms, number) for number in take(agenda, now_ms)]
    return found


def test_each_comes_when_it_is_due_whatever_the_distance() -> None:
    agenda, dice = Agenda(), random.Random(7)
    due = {number: START_MS + dice.choice((5, 900, 70_000, 10**7, (1 << 32) - 1)) + number for number in range(2_000)}
    for number, due_ms in due.items():
        agenda.add(due_ms, number)
    assert len(agenda) == 2_000
    found = drained(agenda, 1 << 50)
    assert found == sorted((due_ms, number) for number, due_ms in due.items())
    assert len(agenda) == 0 and agenda.next_ms() is None


def test_what_is_added_later_finds_its_place() -> None:
    agenda = Agenda()
    agenda.add(START_MS + 3_000, 1)
    assert take(agenda, START_MS + 2_999) == []
    agenda.add(START_MS - 50, 2)  # Long due.
    agenda.add(START_MS + 2_500, 3)
    agenda.add(START_MS + 3_000, 0)
    agenda.add(START_MS + 3_500, 4)
    assert take(agenda, START_MS + 3_000) == [2, 3, 0, 1]
    assert take(agenda, START_MS + 3_500) == [4]


def test_no_more_than_asked_for() -> None:
    agenda = Agenda()
    for number in range(5):
        agenda.add(START_MS, number)
    assert [take(agenda, START_MS, 2) for _ in range(3)] == [[0, 1], [2, 3], [4]]


def test_what_is_given_out_tells_when_it_was_due() -> None:
    agenda = Agenda()
    agenda.add(START_MS + 70_000, 2)
    agenda.add(START_MS, 1)
    assert agenda.take(START_MS + 70_000, 10) == [packed(START_MS, 1), packed(START_MS + 70_000, 2)]


def test_a_large_bucket_is_moved_in_pieces_and_given_out_when_it_is_in_order() -> None:
    agenda = Agenda()
    begin_ms = (START_MS >> FAR_BITS) + 1 << FAR_BITS
    count = 2 * MOVED_MAX + 1
    for number in reversed(range(count)):
        agenda.add(begin_ms, number)
    agenda.add(begin_ms - 1, count)
    assert agenda.advance(begin_ms - (1 << FAR_BITS) - 1)  # Nothing to do.
    assert not agenda.advance(begin_ms)
    assert take(agenda, begin_ms, 10) == [count]
    assert take(agenda, begin_ms) == list(range(count))
