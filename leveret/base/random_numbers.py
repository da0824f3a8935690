"""Random numbers that can be reproduced from a seed.

The broker gets one seed from its shell, and computes all numbers from it (SplitMix64 by Steele, Lea and Flood). So a
simulated node makes the same choices in every run with the same seed, and a choice costs no system call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_MASK: Final = (1 << 64) - 1
_STEP: Final = 0x9E3779B97F4A7C15


def mixed(number: int) -> int:
    """Return 64 bits, each of which depends on all bits of the number."""
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    number = (number ^ number >> 27) * 0x94D049BB133111EB & _MASK
    return number ^ number >> 31


class RandomNumbers:
    """The seed is asked for with the first choice: most brokers never make one."""

    __slots__ = ("_seed", "_state")

    def __init__(self, seed: Callable[[], int]) -> None:
        self._seed = seed
        self._state: int | None = None

    def draw(self, count: int) -> int:
        """Return a number from 0 to count - 1."""
        if self._state is None:
            self._state = self._seed() & _MASK
        self._state = self._state + _STEP & _MASK
        return mixed(self._state) * count >> 64
