"""A short run of the fuzzer on every target, and the fuzzer itself."""

from __future__ import annotations

import pytest

from tests.system.fuzz.fuzzer import FuzzFailed, Target, fuzz
from tests.system.fuzz.targets import TARGETS

INPUTS = 200_000


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_target_raises_only_what_it_names(target: Target) -> None:
    result = fuzz(target, INPUTS // len(TARGETS) // target.cost, seed=1)
    # A target that accepts or refuses everything would be fuzzed in vain.
    assert result.accepted > 500
    assert result.refused > 500


def test_same_seed_gives_the_same_inputs() -> None:
    seen: list[list[bytes]] = []
    for seed in (1, 1, 2):
        inputs: list[bytes] = []
        fuzz(Target("any", inputs.append, [b"abc", b"\x00" * 20], ()), 200, seed)
        seen.append(inputs)
    assert len(seen[0]) == 200
    assert seen[0] == seen[1] != seen[2]


def test_finding_prints_its_replay() -> None:
    def stumble(data: bytes) -> None:
        if len(data) < 3:
            raise IndexError("off by one")

    with pytest.raises(
        FuzzFailed, match=r"IndexError: off by one\n +python -m tests.system.fuzz --target any --hex [0-9a-f]*$"
    ):
        fuzz(Target("any", stumble, [b"abcd"], (ValueError,)), 1000, seed=1)
