"""The benchmark of turns of the event loop: that its operations happen, and that turns are measured as they are."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import cli
from benchmarks.clusters import turns
from benchmarks.clusters.timed_node import BEAT_S, BOUNDS_MS, SUSPICIOUS_S, Meter, Turns
from benchmarks.clusters.turns import ABOUT, Amounts, Bench, section, table


def test_all_operations_happen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "QUICK", Amounts(queues=20, connections=6, messages=100))
    monkeypatch.setattr(turns, "QUICK_OLD_S", 2.0)
    assert cli.main(["--only", "turns", "--leveret-only", "--quick", "--output", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["problems"] == []
    assert set(found["turns"]) == set(ABOUT)
    for row in found["turns"].values():
        assert row["seconds"] > 0 and sum(row["counts"]) > 0
        assert row["longest_ms"] <= row["worked_ms"]
    assert "Turns of the event loop, in processor time: 20 queues, 6 connections" in capsys.readouterr().out


def test_operations_are_chosen_by_name(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = ["--quick", "--queues", "7", "--only", "import-again", "list-control", "--data", str(tmp_path)]
    assert turns.main(arguments) == 0
    told = capsys.readouterr()
    assert [line.split("**")[1] for line in told.out.splitlines() if "**" in line] == ["import-again", "list-control"]
    assert "x-expires" not in told.err and "nodes: 3" not in told.err
    assert list(tmp_path.iterdir()) == []


def test_what_did_not_happen_is_a_problem() -> None:
    bench = Bench([], turns.QUICK, True, None, lambda text: None)
    bench._expect("queues", 1, 1)
    assert bench.problems == []
    bench._expect("queues", 1, 2)
    assert bench.problems == ["turns: queues: 1 instead of 2"]


def test_turns_is_a_part_of_the_benchmarks() -> None:
    assert turns.PART in cli.parse([]).only
    assert not set(turns.ONE) & set(turns.THREE)


def test_a_table_of_turns() -> None:
    assert table({}) == section({}) == ""
    counted = Turns()
    for ms in (0.5, 10, 10.5, 20.5, 50, 50.5, 700):
        counted.note(ms)
    row = {"seconds": 1.5, "long": counted.long} | vars(counted) | turns.FULL._asdict()
    assert "10,000 queues, 2,000 connections" in section({"data": row})
    assert table({"data": row}).splitlines()[-1].endswith("| 1.5 | 700 | 2 | 1 | 2 | 1 | 1 |")


def test_turns_of_several_nodes() -> None:
    one, other = Turns(), Turns.read({"counts": [3] + [0] * len(BOUNDS_MS), "longest_ms": 0.7, "worked_ms": 2.0})
    one.note(60, "here")
    one.join(other)
    assert (sum(one.counts), one.long, one.longest_ms, one.worked_ms, one.was_in) == (4, 1, 60, 62, "here")
    other.join(one)
    assert (other.longest_ms, other.was_in) == (60, "here")


class Loop:
    """Has one timer."""

    due: Callable[[], None]

    def call_later(self, delay: float, then: Callable[[], None]) -> None:
        assert delay == BEAT_S
        self.due = then


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def metered() -> tuple[Meter, Loop, Clock, Clock]:
    loop, clock, processor = Loop(), Clock(), Clock()
    meter = Meter(clock, processor)
    meter._loop, meter._thread_id = loop, threading.get_ident()  # type: ignore[assignment]
    meter._arm()
    return meter, loop, clock, processor


def test_a_turn_is_what_the_thread_has_done_since_the_last_beat(metered: tuple[Meter, Loop, Clock, Clock]) -> None:
    meter, loop, clock, processor = metered
    clock.now += 0.5  # The machine was busy.
    loop.due()
    processor.now += 0.06
    clock.now += 0.06
    loop.due()
    loop.due()
    assert meter.turns.longest_ms == pytest.approx(60) and meter.turns.long == 1
    assert sum(meter.turns.counts) == 3
    meter.begin_anew()
    loop.due()
    assert meter.turns.longest_ms == 0 and sum(meter.turns.counts) == 1


def test_what_the_benchmark_asks_does_not_count(metered: tuple[Meter, Loop, Clock, Clock]) -> None:
    meter, loop, _, processor = metered
    processor.now += 0.01
    began = processor.now
    processor.now += 0.5
    meter.leave_out(began)
    loop.due()
    assert meter.turns.longest_ms == pytest.approx(10)


def test_the_longest_turn_is_told_with_where_it_was(metered: tuple[Meter, Loop, Clock, Clock]) -> None:
    meter, loop, clock, processor = metered

    def dawdle() -> None:
        clock.now += BEAT_S + SUSPICIOUS_S + 0.001
        processor.now += 0.03
        meter.look()

    meter.look()
    loop.due()
    assert meter.turns.was_in == ""
    dawdle()
    loop.due()
    processor.now += 0.02
    loop.due()
    assert meter.turns.was_in.count("dawdle (benchmarks/test_turns.py:") == 1


def test_definitions_bind_each_queue() -> None:
    found: dict[str, Any] = Bench([], turns.QUICK, True, None, print)._definitions("v", {"x-expires": 1}, bound=True)
    names = [queue["name"] for queue in found["queues"]]
    assert len(set(names)) == turns.QUICK.queues
    bindings = [(binding["source"], binding["destination"]) for binding in found["bindings"]]
    assert bindings == [(exchange, name) for exchange in turns.EXCHANGES.values() for name in names]
