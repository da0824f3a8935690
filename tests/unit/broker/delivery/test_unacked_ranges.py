"""Ranges of tags, as another node settles them, against a plain set of tags."""

from __future__ import annotations

from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from leveret.broker.delivery.batch import Batch
from leveret.broker.delivery.consumer import Consumer
from leveret.broker.delivery.unacked import COMPACT_AT, FIRST_TAG, Delivered, Unacked
from leveret.broker.queue.queue import Queue

QUEUE = cast(Queue, object())
CONSUMERS = tuple(cast(Consumer, object()) for _ in range(2))


def tags(entries: list[Delivered]) -> list[int]:
    return [tag for one in entries for tag in range(one.first_tag, one.last_tag + 1)]


@given(st.lists(st.tuples(st.integers(1, 5), st.booleans(), st.booleans()), max_size=20), st.data())
def test_ranges_against_a_set(adds: list[tuple[int, bool, bool]], data: st.DataObject) -> None:
    unacked, batch, place, tag = Unacked(), Batch(1), 0, 0
    where: dict[int, tuple[Batch, int]] = {}
    for count, second, fresh in adds:
        if fresh:
            batch, place = Batch(1), 0
        unacked.add(tag + 1, count, QUEUE, CONSUMERS[second], batch, place, 0)
        for _ in range(count):
            tag += 1
            where[tag] = (batch, place)
            place += 1
    while where:
        first = data.draw(st.integers(0, tag + 1))
        last = data.draw(st.integers(first - 1, tag + 2))
        taken = unacked.take_range(first, last)
        expected = [one for one in where if first <= one <= last]
        assert tags(taken) == expected
        places = [(one.batch, at) for one in taken for at in range(one.lo, one.hi)]
        assert places == [where.pop(one) for one in expected]
        assert unacked.count == len(where) and tags(list(unacked)) == list(where)
        if not expected:
            unacked.take_all()
            where.clear()


def test_what_somebody_else_holds_is_not_looked_at() -> None:
    """A consumer that never settles must not make it slow for all the others of its node."""
    unacked, looks = Unacked(), 0

    class Counted(Delivered):
        __slots__ = ()

        def cut(self, first_tag: int, last_tag: int) -> Delivered:
            nonlocal looks
            looks += 1
            return super().cut(first_tag, last_tag)

    for tag in range(1, 10 * COMPACT_AT):
        unacked.entries.append(Counted(tag, tag, QUEUE, CONSUMERS[0], Batch(tag), 0, 0))
    unacked.entries.sort(key=FIRST_TAG)
    assert tags(unacked.take_range(9 * COMPACT_AT, 9 * COMPACT_AT)) == [9 * COMPACT_AT]
    assert looks == 1
