from __future__ import annotations

import random

from leveret.broker.agenda import FAR_BITS, LEAD_MS, MOVED_MAX, Agenda

START_MS = 1_700_000_000_000


def drained(agenda: Agenda, until_ms: int) -> list[tuple[int, int]]:
    """Everything in the order in which it is given out, looking only when the agenda says so: (time, number)."""
    found: list[tuple[int, int]] = []
    now_ms = 0
    while (next_ms := agenda.next_ms()) is not None and next_ms <= until_ms:
        now_ms = max(now_ms, next_ms)
        found += [(now_ms, number) for number in agenda.take(now_ms, 1 << 40)]
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
    assert agenda.take(START_MS + 2_999, 10) == []
    agenda.add(START_MS - 50, 2)  # Long due.
    agenda.add(START_MS + 2_500, 3)
    agenda.add(START_MS + 3_000, 0)
    agenda.add(START_MS + 3_500, 4)
    assert agenda.take(START_MS + 3_000, 10) == [2, 3, 0, 1]
    assert agenda.take(START_MS + 3_500, 10) == [4]


def test_no_more_than_asked_for() -> None:
    agenda = Agenda()
    for number in range(5):
        agenda.add(START_MS, number)
    assert [agenda.take(START_MS, 2) for _ in range(3)] == [[0, 1], [2, 3], [4]]


def test_a_large_bucket_is_moved_in_pieces_before_it_begins() -> None:
    agenda = Agenda()
    begin_ms = (START_MS >> FAR_BITS) + 1 << FAR_BITS
    count = 2 * MOVED_MAX + 1
    for number in range(count):
        agenda.add(begin_ms, number)
    steps = 0
    while (next_ms := agenda.next_ms()) is not None and next_ms < begin_ms:
        assert next_ms == begin_ms - LEAD_MS
        assert agenda.take(next_ms, 10) == []
        steps += 1
    assert steps == 3
    assert agenda.take(begin_ms, count) == list(range(count))
