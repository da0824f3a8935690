"""Jobs of a disk thread: those that the loop waits for, and the others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest

from leveret.node.system.disk_thread import DiskThread

LONG_S = 60.0
SHORT_S = 0.001


class Threaded:
    """A loop, a thread beside it, and what was told of jobs."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = DiskThread(self.loop, "test")
        self.told: list[tuple[str, str]] = []
        self.ended = asyncio.Event()

    def submit(self, name: str, work: Callable[[], object], wait_s: float = 0.0) -> None:
        def run() -> None:
            work()

        def then(error: Exception | None) -> None:
            self.told.append((name, str(error)))
            self.ended.set()

        self.thread.submit(run, then, wait_s)

    def until(self, count: int) -> None:
        """Runs the loop until so many jobs have ended."""

        async def wait() -> None:
            while len(self.told) < count:
                self.ended.clear()
                await self.ended.wait()

        self.loop.run_until_complete(asyncio.wait_for(wait(), LONG_S))


@pytest.fixture
def threaded() -> Iterator[Threaded]:
    one = Threaded()
    yield one
    one.thread.stop()
    one.loop.close()


def fail() -> None:
    raise OSError("the disk is gone")


def test_the_loop_is_told_of_a_job_that_it_does_not_wait_for(threaded: Threaded) -> None:
    done = threading.Event()
    threaded.submit("a", done.set)
    done.wait(LONG_S)
    assert not threaded.told
    threaded.until(1)
    assert threaded.told == [("a", "None")]


def test_an_awaited_job_is_over_when_submit_returns(threaded: Threaded) -> None:
    for _ in range(100):
        threaded.told.clear()
        threaded.submit("a", lambda: None, LONG_S)
        assert threaded.told == [("a", "None")]


def test_the_error_of_an_awaited_job_is_told(threaded: Threaded) -> None:
    threaded.submit("a", fail, LONG_S)
    threaded.submit("b", lambda: None, LONG_S)
    assert threaded.told == [("a", "the disk is gone"), ("b", "None")]


def test_the_loop_does_not_wait_for_a_job_that_hangs(threaded: Threaded) -> None:
    goes_on = threading.Event()
    threaded.submit("a", lambda: goes_on.wait(LONG_S), SHORT_S)
    assert not threaded.told
    goes_on.set()
    threaded.until(1)
    assert threaded.told == [("a", "None")]
    threaded.submit("b", lambda: None, LONG_S)
    assert threaded.told == [("a", "None"), ("b", "None")]


def test_each_job_is_told_once_if_it_ends_when_the_loop_stops_waiting(threaded: Threaded) -> None:
    for number in range(300):
        threaded.submit(str(number), lambda: threading.Event().wait(SHORT_S), SHORT_S)
        threaded.until(number + 1)
    assert [name for name, _ in threaded.told] == [str(number) for number in range(300)]


def test_a_job_before_an_awaited_one_is_told_too(threaded: Threaded) -> None:
    threaded.submit("a", lambda: None)
    threaded.submit("b", lambda: None, LONG_S)
    threaded.until(2)
    assert sorted(name for name, _ in threaded.told) == ["a", "b"]


def test_the_loop_serves_others_while_an_awaited_job_runs(threaded: Threaded) -> None:
    served = threading.Event()
    told: list[str] = []

    def meanwhile() -> None:
        told.append("served")
        served.set()

    def work() -> None:
        told.append(str(served.wait(LONG_S)))

    threaded.thread.submit(work, lambda error: told.append("over"), LONG_S, meanwhile)
    assert told == ["served", "True", "over"]
