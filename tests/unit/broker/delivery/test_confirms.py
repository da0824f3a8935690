"""Publisher confirms: as few frames as possible, every number exactly once."""

from __future__ import annotations

from random import Random

import pytest

from leveret.broker.delivery.confirms import Confirms, Pending


def waiting(confirms: Confirms, count: int, queues: int = 1) -> Pending:
    pending = confirms.begin(count)
    pending.waiting = queues
    return pending


def test_complete_bundles_in_a_row_are_one_frame() -> None:
    calls: list[int] = []
    confirms = Confirms(lambda: calls.append(1))
    first, second = waiting(confirms, 3), waiting(confirms, 2)
    assert confirms.take() == []
    first.on_safe()
    second.on_safe()
    assert len(calls) == 2
    assert confirms.take() == [(5, True, False)]
    assert confirms.take() == []


def test_one_publish_is_no_multiple() -> None:
    confirms = Confirms(lambda: None)
    waiting(confirms, 1).on_safe()
    assert confirms.take() == [(1, False, False)]


def test_all_queues_must_have_it() -> None:
    confirms = Confirms(lambda: None)
    pending = waiting(confirms, 1, queues=2)
    pending.on_safe()
    assert confirms.take() == []
    pending.on_safe()
    assert confirms.take() == [(1, False, False)]


def test_what_overtakes_is_told_number_by_number_and_only_once() -> None:
    confirms = Confirms(lambda: None)
    slow, fast, last = waiting(confirms, 2), waiting(confirms, 2), waiting(confirms, 1)
    fast.on_safe()
    assert confirms.take() == [(3, False, False), (4, False, False)]
    slow.on_safe()
    assert confirms.take() == [(2, True, False)]
    last.on_safe()
    assert confirms.take() == [(5, False, False)]
    assert not confirms.open


def test_what_caught_up_before_it_was_told_goes_along() -> None:
    confirms = Confirms(lambda: None)
    slow, fast = waiting(confirms, 2), waiting(confirms, 2)
    fast.on_safe()
    slow.on_safe()
    assert confirms.take() == [(4, True, False)]


def test_refusals_stand_alone() -> None:
    confirms = Confirms(lambda: None)
    pendings = [waiting(confirms, 1) for _ in range(4)]
    pendings[1].refused = pendings[2].refused = True
    for pending in pendings:
        pending.on_safe()
    assert confirms.take() == [(1, False, False), (3, True, True), (4, False, False)]


def test_nothing_to_wait_for() -> None:
    confirms = Confirms(lambda: None)
    confirms.on_complete(confirms.begin(1))
    confirms.on_complete(confirms.begin(1))
    assert confirms.take() == [(2, True, False)]


@pytest.mark.parametrize("seed", range(30))
def test_every_number_is_told_once(seed: int) -> None:
    random, confirms = Random(seed), Confirms(lambda: None)
    pendings: list[Pending] = []
    told: list[int] = []
    outstanding: set[int] = set()
    for _ in range(200):
        step = random.random()
        if step < 0.4:
            pending = waiting(confirms, random.choice((1, 2, 5)), random.choice((1, 2)))
            pendings.append(pending)
            outstanding.update(range(pending.first, pending.last + 1))
        elif step < 0.85 and pendings:
            pending = random.choice(pendings)
            pending.on_safe()
            if not pending.waiting:
                pendings.remove(pending)
        else:
            for number, multiple, _ in confirms.take():
                now = sorted(each for each in outstanding if each <= number) if multiple else [number]
                assert now[-1] == number
                outstanding.difference_update(now)
                told += now
                open_numbers = {each for one in pendings for each in range(one.first, one.last + 1)}
                assert not open_numbers & set(now), "told before it was safe"
    for pending in pendings:
        while pending.waiting:
            pending.on_safe()
    for number, multiple, _ in confirms.take():
        now = sorted(each for each in outstanding if each <= number) if multiple else [number]
        outstanding.difference_update(now)
        told += now
    assert sorted(told) == list(range(1, confirms.published + 1))
