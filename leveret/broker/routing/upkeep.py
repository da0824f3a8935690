"""Work on routing indexes that can wait, spread over turns: a trie of a million patterns takes seconds to build.

A job is a function that does at most so many steps of its work, and returns how many it did: fewer than it was allowed
if nothing is left. A step takes some microseconds. Until a job is done, the exchange that it works on answers rightly
all the same (`Exchange`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias

STEPS: Final = 1_000  # In a turn: some milliseconds.
STEPS_STARTING: Final = 50  # The same before clients can come: a start takes many turns, which must not wait for it.

Job: TypeAlias = Callable[[int], int]


class Upkeep:
    """The jobs of a node, of all its vhosts."""

    __slots__ = ("jobs",)

    def __init__(self) -> None:
        self.jobs: deque[Job] = deque()

    def add(self, job: Job) -> None:
        self.jobs.append(job)

    def go_on(self, left: int = STEPS) -> None:
        """Do as many steps as fit into a turn; there is more to do while there are `jobs`."""
        while self.jobs and left > 0:
            done = self.jobs[0](left)
            if done < left:
                self.jobs.popleft()
            left -= done
