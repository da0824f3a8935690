"""How far long work has come: a line that moves on a terminal, whole lines elsewhere, and the last figure always."""

from __future__ import annotations

import io

import pytest

from leveret.cli.ctl.base.progress import CLEAR, Progress, lasting
from leveret.cli.ctl.queues.rebalance import summary


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_whole_lines_for_a_pipe(clock: Clock) -> None:
    said: list[str] = []
    progress = Progress(said.append, None, clock)
    for done in range(0, 21):
        progress.tell(f"{done} of 20 queues moved")
        clock.now_s += 0.125
    progress.end()
    assert said[0] == "0 of 20 queues moved (0 %)"
    assert said[1] == "8 of 20 queues moved (40 %), 8/s, 2 s left"
    assert said[-1] == "20 of 20 queues moved (100 %)"
    assert len(said) <= 4, "not more than one line a second, and the last"


def test_the_last_figure_is_told_however_fast_it_came(clock: Clock) -> None:
    said: list[str] = []
    progress = Progress(said.append, None, clock)
    progress.tell("0 of 20", "two@host")
    progress.tell("0 of 20", "three@host")
    progress.tell("20 of 20", "two@host")
    progress.tell("20 of 20", "three@host")
    progress.end()
    assert said == ["two@host: 0 of 20 (0 %)", "two@host: 20 of 20 (100 %)", "three@host: 20 of 20 (100 %)"]


def test_one_line_that_moves_on_a_terminal(clock: Clock) -> None:
    terminal, said = io.StringIO(), list[str]()
    progress = Progress(said.append, terminal, clock)
    for done in (0, 5, 10):
        progress.tell(f"{done} of 10 queues moved")
        clock.now_s += 1
    progress.end()
    assert terminal.getvalue().count("\n") == 1 and not said
    states = terminal.getvalue().rstrip("\n").split(CLEAR)[1:]
    assert states[0] == "0 of 10 queues moved (0 %)"
    assert states[1] == "5 of 10 queues moved (50 %), 5/s, 1 s left"
    assert states[-1] == "10 of 10 queues moved (100 %)"


def test_other_lines_begin_below_the_one_that_moves(clock: Clock) -> None:
    terminal = io.StringIO()
    progress = Progress(lambda _: None, terminal, clock)
    progress.tell("waiting")
    progress.make_room()
    progress.make_room()
    assert terminal.getvalue() == f"{CLEAR}waiting\n"


def test_another_count_has_its_own_rate(clock: Clock) -> None:
    said: list[str] = []
    progress = Progress(said.append, None, clock)
    progress.tell("9 of 10 queues handed over")
    clock.now_s += 100
    progress.tell("0 of 4 queues moved")
    clock.now_s += 2
    progress.tell("1 of 4 queues moved")
    assert said[-1] == "1 of 4 queues moved (25 %), 6 s left"


@pytest.mark.parametrize(("seconds", "text"), [(5.2, "5 s"), (125, "2 min 5 s"), (10_920, "3 h 2 min")])
def test_times(seconds: float, text: str) -> None:
    assert lasting(seconds) == text


def test_what_a_rebalance_has_left_is_told() -> None:
    move = {"vhost": "/", "queue": "a", "from": "two", "to": "one", "why": "two has 7 masters, one 2"}
    other = {**move, "queue": "b"}
    answer = {
        "unit": "masters", "before": {"one": 2, "two": 7}, "after": {"one": 4, "two": 5}, "strategy": "least-masters",
        "moves": [move, other], "moves_max": 2, "done": 1, "stays": [],
        "failed": [{"vhost": "/", "queue": "b", "to": "one", "why": "its mirror is not synchronised"}],
    }  # fmt: skip
    assert summary(answer, 1).splitlines() == [
        "node  before  after  masters",
        "one        2      3",
        "two        7      6",
        "1 queues moved; strategy: least-masters",
        "1 queue not moved: its mirror is not synchronised",
        "2 moves are the limit of one run; to move the rest, run it again",
    ]
