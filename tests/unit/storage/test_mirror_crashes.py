"""Mirrored queues on a disk that forgets, from seeds. As `test_crashes`, and more by the same variable."""

from __future__ import annotations

import os

import pytest

from .mirror_world import MirrorWorld

_FIRST, _, _END = os.environ.get("LEVERET_LOG_SEEDS", "0-200").partition("-")


@pytest.mark.parametrize("seed", range(int(_FIRST), int(_END or int(_FIRST) + 1)))
def test_seed(seed: int) -> None:
    try:
        MirrorWorld(seed).run(steps=240)
    except BaseException:
        print(f'replay: python -m pytest "tests/unit/storage/test_mirror_crashes.py::test_seed[{seed}]"')
        raise


def test_the_seeds_see_everything() -> None:
    seen: dict[str, int] = {}
    for seed in range(15):
        world = MirrorWorld(seed)
        world.run(steps=240)
        for what, count in world.tally.items():
            seen[what] = seen.get(what, 0) + count
    changes = {"Append", "Truncate", "Restart", "Fill", "Complete", "Apply"}
    assert changes | {"kept", "fresh", "stray", "pieces"} <= set(seen)
