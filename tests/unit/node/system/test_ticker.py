"""Ticks come one by one while something goes on, and several at once while nothing does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from leveret.node.system.ticker import CALM_TICKS, LONG_TICKS, TICK_S, Ticker


class Timer:
    def __init__(self, at: float, then: Callable[[], None]) -> None:
        self.at, self.then, self.is_cancelled = at, then, False

    def cancel(self) -> None:
        self.is_cancelled = True


class Loop:
    """An event loop in virtual time, with one timer at a time."""

    def __init__(self) -> None:
        self.now = 50.0
        self.timer: Timer | None = None

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, then: Callable[[], None]) -> Any:
        assert self.timer is None or self.timer.is_cancelled or self.timer.at <= self.now
        self.timer = Timer(self.now + delay, then)
        return self.timer

    def fire(self, late_s: float = 0.0) -> None:
        assert self.timer is not None and not self.timer.is_cancelled
        self.now = self.timer.at + late_s
        self.timer.then()


class World:
    def __init__(self) -> None:
        self.loop, self.passed, self.is_calm = Loop(), list[int](), True
        loop = cast(asyncio.AbstractEventLoop, self.loop)
        self.ticker = Ticker(loop, self.passed.append, lambda: self.is_calm)
        self.ticker.start()


@pytest.fixture
def world() -> World:
    return World()


def calm_down(world: World) -> None:
    while not world.ticker.is_long:
        world.loop.fire()


def test_ticks_are_short_while_something_goes_on(world: World) -> None:
    world.is_calm = False
    for _ in range(5 * CALM_TICKS):
        world.loop.fire()
    assert set(world.passed) == {1}
    assert world.loop.now == pytest.approx(50 + 5 * CALM_TICKS * TICK_S)


def test_ticks_are_long_after_a_while_without_anything(world: World) -> None:
    calm_down(world)
    assert len(world.passed) == CALM_TICKS
    world.loop.fire()
    assert world.passed[-1] == LONG_TICKS
    assert sum(world.passed) == pytest.approx((world.loop.now - 50) / TICK_S, abs=1)


def test_whoever_begins_something_gets_short_ticks(world: World) -> None:
    calm_down(world)
    woken: list[float] = []
    world.ticker.on_woken = lambda: woken.append(world.loop.now)
    world.loop.now += 3.75 * TICK_S
    world.ticker.wake()
    assert not world.ticker.is_long and len(woken) == 1
    assert world.loop.timer is not None and world.loop.timer.at - world.loop.now == pytest.approx(TICK_S / 4)
    world.loop.fire()
    assert world.passed[-1] == 1
    world.ticker.wake()
    assert len(woken) == 1
    for _ in range(CALM_TICKS - 2):
        world.loop.fire()
        assert not world.ticker.is_long


def test_something_that_goes_on_ends_long_ticks(world: World) -> None:
    calm_down(world)
    world.is_calm = False
    world.loop.fire()
    assert not world.ticker.is_long


def test_a_process_that_stood_still_makes_up_for_one_long_tick_at_most(world: World) -> None:
    calm_down(world)
    world.loop.fire(late_s=60)
    assert world.passed[-1] == LONG_TICKS


def test_a_stopped_ticker_does_not_wake(world: World) -> None:
    calm_down(world)
    world.ticker.stop()
    world.ticker.wake()
    assert world.loop.timer is not None and world.loop.timer.is_cancelled


def test_long_ticks_are_told_of(world: World) -> None:
    told: list[int] = []
    world.ticker.on_long_tick = lambda: told.append(len(world.passed))
    calm_down(world)
    assert not told
    world.loop.fire()
    assert told == [len(world.passed) - 1], "before the tick itself"
    world.ticker.wake()
    world.loop.fire()
    assert len(told) == 1
