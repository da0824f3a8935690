"""What concerns all copies reaches each of them once and in order, a few in each turn, or before it is used."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from leveret.broker.mirrors import broadcast
from leveret.broker.mirrors.broadcast import Broadcast


class Copies:
    """Copies that note what they hear."""

    def __init__(self, count: int) -> None:
        self.mirrors: dict[int, Any] = {}
        self.broadcast = Broadcast(self.mirrors)
        self.tellings = 0
        for number in range(count):
            self.add(number)

    def add(self, number: int) -> Any:
        mirror = SimpleNamespace(spec=SimpleNamespace(id=number), heard=self.broadcast.told, news=[])
        mirror.hear = lambda told: setattr(mirror, "heard", told)
        self.mirrors[number] = mirror
        return mirror

    def tell(self, word: str) -> None:
        def tell(mirror: Any) -> None:
            self.tellings += 1
            mirror.news.append(word)

        self.broadcast.tell(tell)

    def news(self, number: int) -> str:
        return "".join(self.mirrors[number].news)


def test_a_turn_tells_a_few() -> None:
    copies = Copies(3 * broadcast.TOLD_AT_ONCE)
    copies.tell("a")
    assert copies.broadcast and copies.tellings == 0
    for turn in (1, 2, 3):
        copies.broadcast.go_on()
        assert copies.tellings == turn * broadcast.TOLD_AT_ONCE
    assert not copies.broadcast, "all have heard it"


def test_who_is_used_hears_everything_first_and_only_once() -> None:
    copies = Copies(3 * broadcast.TOLD_AT_ONCE)
    last = copies.mirrors[3 * broadcast.TOLD_AT_ONCE - 1]
    copies.tell("a")
    copies.tell("b")
    copies.broadcast.catch_up(last)
    assert last.news == ["a", "b"]
    while copies.broadcast:
        copies.broadcast.go_on()
    assert {tuple(one.news) for one in copies.mirrors.values()} == {("a", "b")}


def test_a_round_is_finished_before_the_next_begins() -> None:
    """Otherwise, if something happened in each turn, the last would never hear anything."""
    copies = Copies(2 * broadcast.TOLD_AT_ONCE)
    copies.tell("a")
    copies.broadcast.go_on()
    copies.tell("b")
    copies.broadcast.go_on()
    assert copies.news(0) == "a"
    assert copies.news(2 * broadcast.TOLD_AT_ONCE - 1) == "ab"
    assert copies.broadcast, "the first have not heard the second"
    copies.broadcast.go_on()
    assert copies.news(0) == "ab"


def test_who_comes_later_finds_the_world_as_it_is() -> None:
    copies = Copies(1)
    copies.tell("a")
    copies.add(1)
    copies.tell("b")
    while copies.broadcast:
        copies.broadcast.go_on()
    assert (copies.news(0), copies.news(1)) == ("ab", "b")


def test_who_is_given_up_meanwhile_hears_nothing() -> None:
    copies = Copies(broadcast.TOLD_AT_ONCE + 2)
    gone, replaced = copies.mirrors[broadcast.TOLD_AT_ONCE], copies.mirrors[broadcast.TOLD_AT_ONCE + 1]
    copies.tell("a")
    copies.broadcast.go_on()
    del copies.mirrors[broadcast.TOLD_AT_ONCE]
    copies.add(broadcast.TOLD_AT_ONCE + 1)
    copies.broadcast.go_on()
    assert not copies.broadcast and gone.news == replaced.news == []


def test_nothing_is_kept_where_there_are_no_copies() -> None:
    copies = Copies(0)
    copies.tell("a")
    assert not copies.broadcast
    copies.add(0)
    copies.tell("b")
    del copies.mirrors[0]
    copies.broadcast.go_on()
    assert not copies.broadcast


def test_tidings_do_not_grow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broadcast, "EVENTS_MAX", 3)
    monkeypatch.setattr(broadcast, "TOLD_AT_ONCE", 1)
    copies = Copies(5)
    for word in "abcd":
        copies.tell(word)
    assert copies.news(4) == "abc"
    while copies.broadcast:
        copies.broadcast.go_on()
    assert [copies.news(number) for number in range(5)] == ["abcd"] * 5


def test_in_any_order_of_events_all_hear_all_in_order() -> None:
    for seed in range(200):
        rng = random.Random(seed)
        copies = Copies(rng.randrange(200))
        due = dict.fromkeys(copies.mirrors, "")
        words = iter("abcdefghijklmnopqrstuvwxyz")
        for _ in range(25):
            what = rng.random()
            if what < 0.4:
                word = next(words)
                copies.tell(word)
                due = {number: due[number] + word for number in due}
            elif what < 0.7:
                copies.broadcast.go_on()
            elif what < 0.8:
                number = rng.randrange(1000)
                if number not in due:
                    copies.add(number)
                    due[number] = ""
            elif what < 0.9 and due:
                number = rng.choice(list(due))
                del due[number], copies.mirrors[number]
            elif due:
                number = rng.choice(list(due))
                copies.broadcast.catch_up(copies.mirrors[number])
                assert copies.news(number) == due[number]
        while copies.broadcast:
            copies.broadcast.go_on()
        assert {number: copies.news(number) for number in copies.mirrors} == due, f"seed {seed}"


# -- Used ones first -------------------------------------------------------------------------------------------------


def test_who_was_used_hears_of_it_first_the_last_one_before_all() -> None:
    copies = Copies(10 * broadcast.TOLD_AT_ONCE)
    last = len(copies.mirrors) - 1
    for number in (last - 2, last, last - 2, last - 1):
        copies.broadcast.on_used(copies.mirrors[number])
        copies.broadcast.on_tick()
    order: list[int] = []
    copies.broadcast.tell(lambda mirror: order.append(mirror.spec.id))
    assert copies.broadcast.is_urgent and not copies.broadcast.may_follow
    copies.broadcast.go_on()
    assert order == [last - 1, last - 2, last] and not copies.broadcast.is_urgent
    assert not copies.broadcast.may_follow, "they have a moment for what they do about it"
    copies.broadcast.on_tick()
    copies.broadcast.on_tick()
    assert copies.broadcast.may_follow
    while copies.broadcast:
        copies.broadcast.go_on()
    assert sorted(order) == sorted(copies.mirrors), "each once"


def test_however_many_are_used_a_turn_tells_a_few() -> None:
    copies = Copies(4 * broadcast.TOLD_AT_ONCE)
    for number in range(0, 4 * broadcast.TOLD_AT_ONCE, 2):
        copies.broadcast.on_used(copies.mirrors[number])
    copies.tell("a")
    for turn in (1, 2):
        assert copies.broadcast.is_urgent
        copies.broadcast.go_on()
        assert copies.tellings == turn * broadcast.TOLD_AT_ONCE
    assert not copies.broadcast.is_urgent
    assert all(copies.news(number) == "a" for number in range(0, 4 * broadcast.TOLD_AT_ONCE, 2))


def test_who_was_used_long_ago_has_no_precedence() -> None:
    copies = Copies(2)
    copies.broadcast.on_used(copies.mirrors[1])
    for _ in range(broadcast.USED_TICKS + 1):
        copies.broadcast.on_tick()
    assert not copies.broadcast.is_used(copies.mirrors[1])
    copies.tell("a")
    assert not copies.broadcast.is_urgent and copies.broadcast.may_follow


def test_who_is_waited_for_comes_first_if_it_has_not_heard_of_it() -> None:
    copies = Copies(3 * broadcast.TOLD_AT_ONCE)
    copies.tell("a")
    copies.broadcast.go_on()
    copies.broadcast.tell_first(copies.mirrors[0])
    assert not copies.broadcast.is_urgent, "it has"
    last = copies.mirrors[3 * broadcast.TOLD_AT_ONCE - 1]
    copies.broadcast.tell_first(last)
    assert copies.broadcast.is_urgent
    copies.broadcast.go_on()
    assert last.news == ["a"] and copies.tellings == broadcast.TOLD_AT_ONCE + 1
    gone = copies.mirrors.pop(3 * broadcast.TOLD_AT_ONCE - 2)
    copies.broadcast.tell_first(gone)
    copies.broadcast.forget(gone)
    while copies.broadcast:
        copies.broadcast.go_on()
    assert gone.news == []
