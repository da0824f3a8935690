"""When a shovel that has failed tries again: after its delay, then after twice as long, up to a limit."""

from __future__ import annotations

from typing import Final

DELAY_S_MAX: Final = 60.0
CALM_FACTOR: Final = 2.0  # A link that ran for so many of its last delay begins with the first one again.


class Retries:
    """The delays of one shovel. Without a delay (0) it does not try again."""

    def __init__(self, delay_s: float) -> None:
        self.first_s = delay_s
        self.limit_s = max(delay_s, DELAY_S_MAX)
        self.failures = 0
        self.last_s = delay_s

    def on_failed(self, ran_s: float) -> float | None:
        """Return after how many seconds to try again; None: never. `ran_s`: how long the link ran."""
        if not self.first_s:
            return None
        if ran_s > CALM_FACTOR * self.last_s:
            self.failures = 0
        self.last_s = min(self.first_s * 2.0 ** min(self.failures, 30), self.limit_s)
        self.failures += 1
        return self.last_s
