"""How tests are shared out to processes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.processes.order import SECONDS, Item, seconds, shared_out

ROOT = Path(__file__).parents[2]
UNIT = [Item(f"tests/unit/test_{number // 50}.py") for number in range(1_000)]
SYSTEM = [
    *(Item(f"tests/system/cli/test_{number // 10}.py") for number in range(70)),
    *(Item(f"tests/system/clusters/test_{number // 10}.py") for number in range(150)),
    *(Item("tests/system/faults/test_cases.py") for number in range(10)),
    *(Item(f"tests/system/spark/test_{number // 10}.py", needs_spark=number % 10 < 5) for number in range(100)),
]
TESTS = SYSTEM + UNIT


def parts(tests: list[Item], processes: int) -> list[list[int]]:
    """Returns the parts of the list that `--dist worksteal` begins with."""
    order = shared_out(tests, processes)
    found = []
    for left in range(processes, 0, -1):
        size = len(order) // left
        found.append(order[:size])
        del order[:size]
    return found


def taken(part: list[int]) -> float:
    return sum(seconds(TESTS[place].file) for place in part)


@pytest.mark.parametrize("processes", [1, 2, 3, 4, 10])
def test_each_test_is_there_once(processes: int) -> None:
    mixed = random.Random(processes).sample(TESTS, len(TESTS))
    for tests in (TESTS, SYSTEM, UNIT, mixed, TESTS[:3], []):
        assert sorted(shared_out(tests, processes)) == list(range(len(tests)))


def test_parts_take_the_same_time_and_have_the_long_tests_first() -> None:
    for part in parts(TESTS, 4):
        assert taken(part) == pytest.approx(taken(list(range(len(TESTS)))) / 4, rel=0.15)
        are_short = [not seconds(TESTS[place].file) for place in part]
        assert are_short == sorted(are_short) and any(are_short)


def test_what_is_shared_stays_in_one_process() -> None:
    first, *others = parts(TESTS, 4)
    assert [TESTS[place].needs_spark for place in first[:50]] == [True] * 50
    assert not any(TESTS[place].needs_spark for part in others for place in part)
    homes = [number for number, part in enumerate([first, *others]) for place in part if "/cli/" in TESTS[place].file]
    assert len(homes) == 70 and len(set(homes)) == 1


def test_long_tests_are_shared_out_one_by_one() -> None:
    counts = [sum("/faults/" in TESTS[place].file for place in part) for part in parts(TESTS, 4)]
    assert sum(counts) == 10 and max(counts) <= 4


def test_more_long_tests_than_a_part_has_room_for() -> None:
    assert [len(part) for part in parts(SYSTEM, 4)] == [82, 82, 83, 83]


def test_folders_that_are_named_exist() -> None:
    assert [folder for folder in SECONDS if not (ROOT / folder).exists()] == []
