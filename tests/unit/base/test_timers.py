from __future__ import annotations

import random

from leveret.base.timers import STALE_MIN, Timers


def test_the_earlier_time_counts() -> None:
    timers: Timers[str] = Timers()
    timers.set("a", 10)
    timers.set("a", 20)
    timers.set("b", 5)
    assert timers.due(4) == []
    assert timers.due(10) == ["b", "a"]
    assert timers.due(100) == [] and not len(timers)


def test_a_time_can_be_moved_and_cleared() -> None:
    timers: Timers[str] = Timers()
    timers.set("a", 10)
    timers.move("a", 30)
    timers.set("b", 10)
    timers.clear("b")
    assert timers.due(29) == []
    assert timers.due(30) == ["a"]


def test_of_very_many_some_are_asked_for() -> None:
    timers: Timers[int] = Timers()
    for sleeper in range(5):
        timers.set(sleeper, 9 - sleeper)
    assert timers.due(8, 2) == [4, 3]
    assert timers.due(8, 2) == [2, 1] and len(timers) == 1
    assert timers.due(8, 2) == []


def test_against_a_plain_dictionary() -> None:
    rng = random.Random(7)
    timers: Timers[int] = Timers()
    model: dict[int, int] = {}
    now = 0
    for _ in range(20_000):
        sleeper, at = rng.randrange(50), now + rng.randrange(1, 200)
        action = rng.randrange(4)
        if action == 0:
            timers.clear(sleeper)
            model.pop(sleeper, None)
        elif action == 1:
            timers.move(sleeper, at)
            model[sleeper] = at
        elif action == 2:
            timers.set(sleeper, at)
            model[sleeper] = min(at, model.get(sleeper, at))
        else:
            now += rng.randrange(20)
            due = {one for one, when in model.items() if when <= now}
            assert set(timers.due(now)) == due
            for one in due:
                del model[one]
        assert len(timers._heap) <= 2 * len(model) + STALE_MIN + 1
