"""Measures how long turns of the event loop take, and logs what the long ones did.

One turn of the loop serves everybody who is connected, so a turn that takes long makes all of them wait. asyncio has
no hook for the end of a turn, and its debug mode, which has one, costs every callback. So a timer is set to `BEAT_S`
again and again, and what counts is how late it fires: a turn of L seconds shows as a delay between L - `BEAT_S` and L.
That is one callback in 20 ms, as many as the consensus has anyway. While the node's own ticks are long, because
nothing goes on (see `ticker`), so are the beats, and each comes with a tick, so that the loop wakes up once for both:
then a turn that begins without waking the ticks shows as up to `CALM_BEAT_S` shorter than it was.

What a long turn did can be seen only while it lasts, from outside: a thread sleeps until the next beat would be late by
`SUSPICIOUS_S`, and if there was none by then, it notes where the loop's thread is. A turn longer than a second
(`LONG_S`) is logged with that note and with the processor time that it took. A long turn that took little processor
time is no fault of the node: the machine was busy, suspended, or short of memory.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from bisect import bisect_left
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

logger = logging.getLogger("leveret")

BEAT_S: Final = 0.02
CALM_BEAT_S: Final = 0.4  # As long as a long tick.
SLOW_S: Final = 0.1
LONG_S: Final = 1.0
SUSPICIOUS_S: Final = 0.5
LOOK_S: Final = 0.25  # At least so long between two looks.
FRAMES_MAX: Final = 12
BOUNDS_S: Final = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class TurnTimes:
    """A histogram of the durations of turns."""

    __slots__ = ("busiest_s", "counts", "longest_s", "slow", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)  # For each bound those up to it, and last the longer ones.
        self.sum_s = 0.0
        self.slow = 0  # Longer than `SLOW_S`.
        self.longest_s = 0.0
        self.busiest_s = 0.0  # The longest in processor time, with what came before it since the last beat.

    def note(self, seconds: float, worked_s: float = 0.0) -> None:
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds
        if seconds > SLOW_S:
            self.slow += 1
        if seconds > self.longest_s:
            self.longest_s = seconds
        if worked_s > self.busiest_s:
            self.busiest_s = worked_s


class LoopWatch:
    """Measures the turns of one event loop, from `start` on, which the loop's own thread must call."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        processor: Callable[[], float] = time.thread_time,
    ) -> None:
        self.turns = TurnTimes()
        self._clock = clock
        self._processor = processor
        self._due = 0.0
        self._worked_s = 0.0  # Processor time of the loop's thread at the last beat.
        self._seen = ""  # Where the loop was when the thread looked and no beat had come for long.
        self._thread_id = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_long = False  # The present beat is one of `CALM_BEAT_S`.
        self.is_calm: Callable[[], bool] = lambda: False
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._thread_id = threading.get_ident()
        self._arm(loop)
        self._thread = threading.Thread(target=self._look_on, name="watch the event loop", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    # -- In the loop ---------------------------------------------------------------------------------------------

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        self._is_long = self.is_calm()
        beat_s = CALM_BEAT_S if self._is_long else BEAT_S
        self._worked_s = self._processor()
        self._due = self._clock() + beat_s
        # A long beat comes with the next long tick. The timer is for the case that there is none.
        self._timer = loop.call_later(beat_s + BEAT_S if self._is_long else beat_s, self._beat, loop)

    def on_long_tick(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._is_long and self._timer is not None:
            self._timer.cancel()
            self._beat(loop)

    def wake(self, loop: asyncio.AbstractEventLoop) -> None:
        """The node's ticks are short again: so are the beats, from now on."""
        if self._is_long and self._timer is not None:
            self._timer.cancel()
            self._arm(loop)

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        late_s = max(0.0, self._clock() - self._due)
        worked_s = self._processor() - self._worked_s
        self.turns.note(late_s, worked_s)
        if late_s > LONG_S:
            logger.warning(
                "a turn of the event loop took %.2f s, %.2f s of it on the processor; it was in: %s",
                late_s, worked_s, self._seen or "not known",
            )  # fmt: skip
        self._seen = ""
        self._arm(loop)

    # -- In the thread -------------------------------------------------------------------------------------------

    def _look_on(self) -> None:
        while not self._stopped.wait(self.rest_s()):
            self.look()

    def rest_s(self) -> float:
        """Returns for how long there is nothing to see: until the beat that is awaited now is late."""
        return max(LOOK_S, self._due + SUSPICIOUS_S - self._clock())

    def look(self) -> None:
        """Notes where the loop is if it is late. The first note of a turn is kept: it most likely shows the cause."""
        if self._clock() - self._due >= SUSPICIOUS_S and not self._seen:
            frame = sys._current_frames().get(self._thread_id)
            if frame is not None:
                self._seen = where(frame)


def where(frame: FrameType) -> str:
    """Returns the innermost calls as text, the innermost first."""
    found: list[str] = []
    at: FrameType | None = frame
    while at is not None and len(found) < FRAMES_MAX:
        code = at.f_code
        found.append(f"{code.co_name} ({_short(code.co_filename)}:{at.f_lineno})")
        at = at.f_back
    return " < ".join(found)


def _short(path: str) -> str:
    """Returns a file's name with its folder, which tells modules of the same name apart."""
    return "/".join(path.rsplit("/", 2)[-2:])
