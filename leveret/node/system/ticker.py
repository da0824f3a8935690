"""Ticks of a node: one every `TICK_MS` while something goes on, and several at once while nothing does.

Much of a node counts time in ticks (elections, heartbeats, mirrors that are being filled). A timer every 20 ms is cheap
beside any work, but on an idle machine it is the work: each wake-up finds the processor's caches cold. So when nothing
has gone on for `CALM_TICKS`, the timer is set to `LONG_TICKS`, and when it fires, so many ticks have passed. Whoever
begins something calls `wake`: from then on ticks come one by one. What has a period of its own comes with long ticks,
if it can: the links' heartbeats (`PeerLinks.tick_along`) and the watch over the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from leveret.node.config.settings import TICK_MS

TICK_S: Final = TICK_MS / 1000
CALM_TICKS: Final = 10
LONG_TICKS: Final = 20  # As long as Raft's heartbeats are apart.
LONG_MS: Final = LONG_TICKS * TICK_MS


class Ticker:
    """Calls `on_ticks` with the number of ticks that have passed, and asks `is_calm` whether nothing goes on."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_ticks: Callable[[int], None], is_calm: Callable[[], bool]
    ) -> None:
        self._loop = loop
        self._on_ticks = on_ticks
        self._is_calm = is_calm
        self._calm = 0  # Ticks since something went on.
        self._ticked = 0.0  # When the last tick was.
        self._timer: asyncio.TimerHandle | None = None
        self.is_long = False  # The next tick stands for several.
        self.on_woken: Callable[[], None] = lambda: None
        self.on_long_tick: Callable[[], None] = lambda: None  # Called when a tick that stands for several begins.

    def start(self) -> None:
        self._ticked = self._loop.time()
        self._fire()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def wake(self) -> None:
        """Something begins: ticks come one by one from now on, at the times at which they would have come anyway. Those
        that were left out do not count: elections and timeouts come no earlier."""
        self._calm = 0
        if self.is_long and self._timer is not None:
            self._timer.cancel()
            self.is_long = False
            passed_s = max(0.0, self._loop.time() - self._ticked)
            self._timer = self._loop.call_later(TICK_S - passed_s % TICK_S, self._fire)
            self.on_woken()

    def _fire(self) -> None:
        now = self._loop.time()
        if self.is_long:
            self.on_long_tick()
        # A process that was stopped for a while has no ticks to make up for: to others it was silent, too.
        passed = min(max(1, round((now - self._ticked) / TICK_S)), LONG_TICKS) if self.is_long else 1
        self._ticked = now
        self._calm = self._calm + 1 if self._is_calm() else 0
        self.is_long = self._calm >= CALM_TICKS
        self._timer = self._loop.call_later((LONG_TICKS if self.is_long else 1) * TICK_S, self._fire)
        self._on_ticks(passed)
