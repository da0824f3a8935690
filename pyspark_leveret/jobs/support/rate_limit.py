"""Limits the rate of publishing: says how many messages may go now, and waits for the next.

Every message has a time at which it is due, one after the other. After a delay the publisher may catch up by `BURST_S`
at most: an hour's pause must not be followed by an hour's messages at once. At high rates the machine cannot wait for
each message, so messages that are due within `SLICE_S` go together.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

BURST_S: Final = 1.0
SLICE_S: Final = 0.02


class Pace:
    """Limits to `rate` messages a second. `head_start_s`: time before now in which messages might have been sent."""

    def __init__(
        self,
        rate: float,
        head_start_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self.rate = rate
        self._clock = clock
        self._wait = wait
        self._due = clock() - max(head_start_s, 0.0)  # When the next message may go.

    def take(self, wanted: int) -> int:
        """Waits until messages may go, and returns how many of `wanted` go now: at least one."""
        now = self._clock()
        self._due = max(self._due, now - BURST_S)
        together = min(wanted, max(int(self.rate * SLICE_S), 1))
        ready_at = self._due + (together - 1) / self.rate
        if ready_at > now:
            self._wait(ready_at - now)
            now = ready_at
        count = min(wanted, max(int((now - self._due) * self.rate) + 1, together))
        self._due += count / self.rate
        return count
