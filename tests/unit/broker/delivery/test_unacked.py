"""Deliveries that wait for an acknowledgement, against a plain dictionary of tags."""

from __future__ import annotations

from random import Random
from typing import cast

import pytest

from leveret.broker.delivery.batch import Batch
from leveret.broker.delivery.consumer import Consumer
from leveret.broker.delivery.unacked import COMPACT_AT, Delivered, Unacked
from leveret.broker.queue.queue import Queue

QUEUE = cast(Queue, object())
CONSUMERS = tuple(cast(Consumer, object()) for _ in range(2))


def tags(taken: list[Delivered] | None) -> list[int]:
    assert taken is not None
    return [tag for one in taken for tag in range(one.first_tag, one.last_tag + 1)]


def places(taken: list[Delivered]) -> list[tuple[Batch, int]]:
    return [(one.batch, at) for one in taken for at in range(one.lo, one.hi)]


def filled(count: int = 10) -> Unacked:
    unacked = Unacked()
    unacked.add(1, count, QUEUE, CONSUMERS[0], Batch(1), 0, 0)
    return unacked


def test_deliveries_in_a_row_are_one_entry() -> None:
    unacked, batch = Unacked(), Batch(1)
    unacked.add(1, 2, QUEUE, CONSUMERS[0], batch, 0, 5)
    unacked.add(3, 2, QUEUE, CONSUMERS[0], batch, 2, 6)
    assert len(list(unacked)) == 1
    unacked.add(5, 1, QUEUE, CONSUMERS[1], batch, 4, 7)  # To somebody else.
    unacked.add(6, 1, QUEUE, CONSUMERS[1], batch, 6, 8)  # One was left out.
    unacked.add(7, 1, QUEUE, CONSUMERS[1], Batch(9), 7, 9)  # Of another batch.
    assert [(one.first_tag, one.last_tag) for one in unacked] == [(1, 4), (5, 5), (6, 6), (7, 7)]
    assert unacked.count == 7
    assert unacked.oldest_ms() == 5


def test_take_through_cuts_an_entry() -> None:
    unacked = filled()
    assert tags(unacked.take_through(3)) == [1, 2, 3]
    assert unacked.count == 7
    taken = unacked.take_through(10)
    assert tags(taken) == [4, 5, 6, 7, 8, 9, 10]
    assert taken is not None and taken[0].lo == 3
    assert unacked.count == 0 and unacked.oldest_ms() is None


def test_take_one_in_the_middle_leaves_both_sides() -> None:
    unacked = filled()
    one = unacked.take_one(5)
    assert one is not None and (one.first_tag, one.last_tag, one.lo, one.hi) == (5, 5, 4, 5)
    assert [(each.first_tag, each.last_tag, each.lo) for each in unacked] == [(1, 4, 0), (6, 10, 5)]
    assert tags(unacked.take_through(6)) == [1, 2, 3, 4, 6]


@pytest.mark.parametrize("tag", [0, 11, 2**64 - 1])
def test_tags_nobody_was_given(tag: int) -> None:
    unacked = filled()
    assert unacked.take_one(tag) is None
    assert unacked.take_through(tag) is None
    assert unacked.count == 10


def test_a_tag_is_taken_once() -> None:
    unacked = filled()
    for tag in (1, 10, 4):
        assert unacked.take_one(tag) is not None
        assert unacked.take_one(tag) is None
        assert unacked.take_through(tag) is None
    assert tags(unacked.take_all()) == [2, 3, 5, 6, 7, 8, 9]
    assert unacked.take_all() == []


@pytest.mark.parametrize("seed", range(40))
def test_any_sequence(seed: int) -> None:
    random, unacked = Random(seed), Unacked()
    expected: dict[int, tuple[Batch, int]] = {}
    batch, lo, tag = Batch(1), 0, 0
    for _ in range(4 * COMPACT_AT):
        step = random.random()
        if step < 0.45:
            if random.random() < 0.5:
                batch, lo = Batch(1), 0
            count = random.choice((1, 1, 2, 9))
            unacked.add(tag + 1, count, QUEUE, random.choice((None, *CONSUMERS)), batch, lo, tag)
            for _ in range(count):
                tag += 1
                expected[tag] = (batch, lo)
                lo += 1
        elif step < 0.8:
            wanted = random.choice([*list(expected)[:3], random.randint(0, tag + 1)])
            one = unacked.take_one(wanted)
            assert (one is None) == (wanted not in expected)
            if one is not None:
                assert places([one]) == [expected.pop(wanted)]
        elif step < 0.995:
            wanted = random.choice([*list(expected)[:9], random.randint(0, tag + 1)])
            taken = unacked.take_through(wanted)
            assert (taken is None) == (wanted not in expected)
            if taken is not None:
                before = [each for each in expected if each <= wanted]
                assert tags(taken) == before
                assert places(taken) == [expected.pop(each) for each in before]
        else:
            assert places(unacked.take_all()) == list(expected.values())
            expected.clear()
        assert unacked.count == len(expected)
        assert tags(list(unacked)) == list(expected)
