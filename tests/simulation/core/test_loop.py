"""Virtual time behaves like time, and a virtual loop like a loop."""

from __future__ import annotations

import asyncio
import random
from asyncio import sleep as virtual_sleep  # Nobody waits for it.
from collections.abc import Coroutine
from typing import Any

import pytest

from simulation.core.loop import Endless, NodeLoop, Scheduler
from simulation.core.network import Network


class Place:
    """A loop, and what it could not handle."""

    def __init__(self, name: str = "a", scheduler: Scheduler | None = None, network: Network | None = None) -> None:
        self.scheduler = scheduler or Scheduler()
        self.network = network or Network(self.scheduler, random.Random(1))
        self.faults: list[str] = []
        self.loop = NodeLoop(self.scheduler, self.network, name, random.Random(2), self.faults.append)

    def run(self, coroutine: Coroutine[Any, Any, Any], seconds: float = 100.0) -> Any:
        task = self.loop.create_task(coroutine)
        self.scheduler.run(seconds)
        return task.result()


def test_tasks_sleep_in_virtual_time() -> None:
    place = Place()

    async def work() -> float:
        began = place.loop.time()
        await virtual_sleep(30)
        return place.loop.time() - began

    assert place.run(work()) == pytest.approx(30, abs=0.01)
    assert place.scheduler.now == 100


def test_what_asyncio_offers_works() -> None:
    place = Place()

    async def work() -> list[Any]:
        assert asyncio.get_running_loop() is place.loop
        future = place.loop.create_future()
        place.loop.call_later(2, future.set_result, "late")
        done, pending = await asyncio.wait([future], timeout=1)
        assert not done and pending
        try:
            async with asyncio.timeout(0.5):
                await virtual_sleep(5)
        except TimeoutError:
            return [await future, await asyncio.gather(virtual_sleep(1, "a"), virtual_sleep(0, "b"))]
        return []

    assert place.run(work()) == ["late", ["a", "b"]]


def test_a_pass_takes_in_all_that_is_there_and_leaves_what_it_causes() -> None:
    place, seen = Place(), []
    place.loop.after_pass = lambda: seen.append("|")

    def first() -> None:
        place.loop.call_soon(seen.append, "later")

    place.loop.call_soon(first)
    place.loop.call_soon(seen.append, "same")
    place.scheduler.run(1.0)
    assert seen == ["same", "|", "later", "|"]


def test_a_cancelled_timer_does_not_fire() -> None:
    place = Place()
    seen: list[str] = []
    place.loop.call_later(1, seen.append, "no").cancel()
    place.loop.call_later(1, seen.append, "yes")
    place.scheduler.run(2.0)
    assert seen == ["yes"]


def test_a_paused_process_goes_on_where_it_was() -> None:
    place, seen = Place(), []
    place.loop.call_later(1, lambda: seen.append(place.scheduler.now))
    place.loop.pause(5)
    place.scheduler.run(4.0)
    assert seen == []
    place.scheduler.run(6.0)
    assert seen == [5.0]


def test_a_killed_process_does_nothing_any_more() -> None:
    place = Place()
    seen: list[str] = []

    async def work() -> None:
        try:
            await virtual_sleep(1)
            seen.append("alive")
        finally:
            seen.append("closed")
            await virtual_sleep(1)
            seen.append("never")

    place.loop.create_task(work())
    place.scheduler.run(0.5)
    place.loop.kill()
    place.loop.call_soon(seen.append, "never")
    place.scheduler.run(5.0)
    assert seen == ["closed"] and not place.faults


def test_what_nobody_handles_is_told() -> None:
    place = Place()

    def fail() -> None:
        raise ValueError("mine")

    place.loop.call_soon(fail)
    place.scheduler.run(1.0)
    assert len(place.faults) == 1 and "ValueError('mine')" in place.faults[0]


def test_a_loop_that_calls_itself_for_ever_is_found_out() -> None:
    place = Place()

    def again() -> None:
        place.loop.call_soon(again)

    again()
    with pytest.raises(Endless):
        place.scheduler.run(60.0)


def test_running_stops_when_it_is_done() -> None:
    place, ticks = Place(), []

    def tick() -> None:
        ticks.append(place.scheduler.now)
        place.loop.call_later(1, tick)

    tick()
    assert place.scheduler.run(100.0, lambda: len(ticks) == 4)
    assert place.scheduler.now < 5
    assert not place.scheduler.run(20.0, lambda: False)
    assert place.scheduler.now == 20
