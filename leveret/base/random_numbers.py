"""Choices at random that can be made again.

The broker draws no random numbers of its own: its shell gives it one seed, and what follows is arithmetic (Steele, Lea
and Flood's SplitMix64). So a simulated node makes the same choices in every run of one seed, and a choice costs no call
into the system.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_MASK: Final = (1 << 64) - 1
_STEP: Final = 0x9E3779B97F4A7C15


def mixed(number: int) -> int:
    """64 bits of which each depends on all bits of the number."""
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    number = (number ^ number >> 27) * 0x94D049BB133111EB & _MASK
    return number ^ number >> 31


class Dice:
    """The seed is asked for with the first choice: most brokers never make one."""

    __slots__ = ("_seed", "_state")

    def __init__(self, seed: Callable[[], int]) -> None:
        self._seed = seed
        self._state: int | None = None

    def draw(self, count: int) -> int:
        """A number from 0 to count - 1."""
        if self._state is None:
            self._state = self._seed() & _MASK
        self._state = self._state + _STEP & _MASK
        return mixed(self._state) * count >> 64
