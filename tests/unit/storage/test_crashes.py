"""The log on a disk that forgets, from seeds. A failing seed is replayed by its test id, which pytest prints:
python -m pytest "tests/unit/storage/test_crashes.py::test_seed[17]". More: LEVERET_LOG_SEEDS=300-2000."""

from __future__ import annotations

import os

import pytest

from .world import World

_FIRST, _, _END = os.environ.get("LEVERET_LOG_SEEDS", "0-300").partition("-")


@pytest.mark.parametrize("seed", range(int(_FIRST), int(_END or int(_FIRST) + 1)))
def test_seed(seed: int) -> None:
    try:
        World(seed).run(steps=160)
    except BaseException:
        print(f'replay: python -m pytest "tests/unit/storage/test_crashes.py::test_seed[{seed}]"')
        raise
