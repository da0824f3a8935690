"""Turns of the event loop are measured, and what long ones did is told."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop

from leveret.management.api.monitoring import metrics
from leveret.node.system import loop_watch
from leveret.node.system.loop_watch import BEAT_S, BOUNDS_S, CALM_BEAT_S, LOOK_S, SUSPICIOUS_S, LoopWatch, TurnTimes


def test_a_histogram_of_turns() -> None:
    turns = TurnTimes()
    for seconds in (0.0, BOUNDS_S[0], 0.0500001, 0.1, 0.11, 99.0):
        turns.note(seconds)
    assert turns.counts[0] == 2
    assert turns.counts[BOUNDS_S.index(0.1)] == 2
    assert turns.counts[-1] == 1
    assert sum(turns.counts) == 6
    assert (turns.slow, turns.longest_s) == (2, 99.0)
    assert turns.sum_s == pytest.approx(99.2650001)


def test_the_histogram_as_prometheus_reads_it() -> None:
    turns = TurnTimes()
    for seconds in (0.001, 0.3, 0.3, 60.0):
        turns.note(seconds, seconds / 2)
    figures = {figure.name: figure for figure in metrics._turns(turns)}
    found = figures["event_loop_turn_seconds"]
    buckets = {sample.labels: sample.value for sample in found.samples if sample.suffix == "_bucket"}
    assert (found.type, found.family) == ("histogram", "node_metrics")
    assert (buckets['le="0.005"'], buckets['le="0.2"'], buckets['le="0.5"']) == (1, 1, 3)  # Each has those before it.
    assert buckets['le="+Inf"'] == found.samples[-1].value == 4
    assert found.samples[-2].suffix == "_sum" and found.samples[-2].value == pytest.approx(60.601)
    assert figures["event_loop_slow_turns_total"].samples == [("", 3, "")]
    assert figures["event_loop_busiest_turn_seconds"].samples == [("", 30.0, "")]


class Loop:
    """Has one timer."""

    def __init__(self) -> None:
        self.due: Callable[[], None] = lambda: None
        self.delays: list[float] = []

    def call_later(self, delay: float, then: Callable[..., None], *arguments: Any) -> Any:
        self.delays.append(delay)
        self.due = lambda: then(*arguments)
        return SimpleNamespace(cancel=lambda: None)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def watched() -> tuple[LoopWatch, Loop, Clock, Clock]:
    loop, clock, processor = Loop(), Clock(), Clock()
    made = LoopWatch(clock, processor)
    made._thread_id = threading.get_ident()
    made._arm(loop)  # type: ignore[arg-type]
    return made, loop, clock, processor


def test_a_turn_is_as_long_as_the_beat_is_late() -> None:
    made, loop, clock, _ = watched()
    for late in (0.0, 0.3, 0.05):
        clock.now += BEAT_S + late
        loop.due()
    assert made.turns.slow == 1
    assert made.turns.longest_s == pytest.approx(0.3)
    assert set(loop.delays) == {BEAT_S}


def test_while_nothing_goes_on_beats_come_with_the_ticks() -> None:
    made, loop, clock, _ = watched()
    made.on_long_tick(loop)  # type: ignore[arg-type]
    assert sum(made.turns.counts) == 0, "its beats are short still"
    made.is_calm = lambda: True
    clock.now += BEAT_S
    loop.due()
    assert loop.delays[-1] > CALM_BEAT_S, "a tick comes first"
    for late in (0.0, 0.3):
        clock.now += CALM_BEAT_S + late
        made.on_long_tick(loop)  # type: ignore[arg-type]
    assert sum(made.turns.counts) == 3
    assert made.turns.longest_s == pytest.approx(0.3)
    made.is_calm = lambda: False
    made.wake(loop)  # type: ignore[arg-type]
    assert loop.delays[-1] == BEAT_S


def test_a_long_turn_is_logged_with_what_it_did(caplog: pytest.LogCaptureFixture) -> None:
    made, loop, clock, processor = watched()

    def dawdle() -> None:
        clock.now += BEAT_S + 1.5
        processor.now += 0.25
        made.look()

    with caplog.at_level(logging.WARNING, "leveret"):
        dawdle()
        loop.due()
        clock.now += BEAT_S + 0.9
        made.look()
        loop.due()
    [line] = [one.getMessage() for one in caplog.records]
    assert "took 1.50 s, 0.25 s of it on the processor" in line
    assert "dawdle (system/test_loop_watch.py:" in line
    assert made._seen == ""
    assert made.turns.busiest_s == pytest.approx(0.25)


def test_the_thread_sleeps_until_a_beat_is_late() -> None:
    made, loop, clock, _ = watched()
    made.is_calm = lambda: True
    clock.now += BEAT_S
    loop.due()
    assert made.rest_s() == pytest.approx(CALM_BEAT_S + SUSPICIOUS_S)
    clock.now += CALM_BEAT_S + SUSPICIOUS_S - 0.001
    made.look()
    assert made._seen == ""
    assert made.rest_s() == LOOK_S, "it does not spin"
    clock.now += 0.002
    made.look()
    assert "test_the_thread_sleeps" in made._seen


def test_with_a_real_loop(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A callback that lasts until the thread has seen it is told of by its name."""
    for name in ("LONG_S", "SUSPICIOUS_S", "LOOK_S"):
        monkeypatch.setattr(loop_watch, name, 0.001)

    async def main() -> None:
        made = LoopWatch()
        made.start(asyncio.get_running_loop())
        try:

            def hold_up_everybody() -> None:
                while not made._seen:
                    pass

            hold_up_everybody()
            beat = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_later(2 * BEAT_S, beat.set_result, None)
            await beat
            assert any("hold_up_everybody" in one.getMessage() for one in caplog.records)
        finally:
            made.stop()
        assert made.turns.longest_s > 0
        assert sum(made.turns.counts) >= 1

    with caplog.at_level(logging.WARNING, "leveret"), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(main(), 60))
