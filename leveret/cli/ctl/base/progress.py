"""How far something has come, for who waits for it.

On a terminal it is one line that moves. Into a pipe or a file go whole lines, one each second at most, since a log is
read later. Both end with the last figure, also where that came too fast to be shown: a line of a success that says
"0 of 20" would look like a failure.

A count is told with its rate and the time that is left, once there is something to compute them from.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from typing import Final, TextIO

LINES_S: Final = 1.0  # Between two lines in a file.
MOVES_S: Final = 0.1  # Between two states of the line on a terminal.
RATE_S: Final = 0.5  # Before that, a rate would say little.
COUNT: Final = re.compile(r"(\d+) of (\d+)\b")
CLEAR: Final = "\r\x1b[K"


def lasting(seconds: float) -> str:
    """For people: "5 s", "2 min 5 s", "3 h 2 min"."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


class Count:
    """One thing that is counted: how fast it goes, and how long it will take."""

    def __init__(self, now_s: float, done: int) -> None:
        self.began_s, self.began = now_s, done

    def told(self, now_s: float, done: int, total: int) -> str:
        """Text to add to "done of total"."""
        share = f" ({100 * done // total} %)" if total > 0 else ""
        passed_s = now_s - self.began_s
        if done >= total or done <= self.began or passed_s < RATE_S:
            return share
        rate = (done - self.began) / passed_s
        pace = f", {rate:,.0f}/s" if rate >= 1 else ""
        return f"{share}{pace}, {lasting((total - done) / rate)} left"


class Progress:
    """`terminal`: where the moving line is written; None: there is none, and `say` gets whole lines."""

    def __init__(
        self,
        say: Callable[[str], None],
        terminal: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._say = say
        self._terminal = terminal
        self._clock = clock
        self._counts: dict[str, Count] = {}
        self._shown: dict[str, str] = {}  # What was told last of each thing.
        self._latest: dict[str, str] = {}  # What there is to tell of each.
        self._shown_s = float("-inf")
        self._moving = False  # A line on the terminal has no end yet.

    def tell(self, text: str, of: str = "") -> None:
        """Show how far the work is, of one of several things if they are named; a count is followed by its rate."""
        self._latest[of] = self._with_rate(text, of)
        every_s = LINES_S if self._terminal is None else MOVES_S
        if self._clock() - self._shown_s >= every_s:
            self._show()

    def _with_rate(self, text: str, of: str) -> str:
        found = COUNT.search(text)
        if found is None:
            return text
        done, total = int(found[1]), int(found[2])
        key = of + text[found.end() :]  # Another thing is counted from its own beginning.
        count = self._counts.get(key)
        if count is None or done < count.began:
            count = self._counts[key] = Count(self._clock(), done)
        return text + count.told(self._clock(), done, total)

    def _lines(self) -> list[str]:
        latest = {of: text for of, text in self._latest.items() if self._shown.get(of) != text}
        self._shown |= latest
        return [f"{of}: {text}" if of else text for of, text in latest.items()]

    def _show(self) -> None:
        self._shown_s = self._clock()
        if self._terminal is None:
            for line in self._lines():
                self._say(line)
            return
        text = ";  ".join(f"{of}: {text}" if of else text for of, text in self._latest.items())
        self._terminal.write(CLEAR + text[: _width(self._terminal) - 1])
        self._terminal.flush()
        self._moving = True

    def end(self) -> None:
        """End the line; the last figures stay to be read."""
        if self._latest and (self._terminal is None or self._moving):
            self._show()
        self.make_room()
        self._counts, self._shown, self._latest = {}, {}, {}
        self._shown_s = float("-inf")

    def make_room(self) -> None:
        """Something else is to be printed: on a line of its own."""
        if self._moving and self._terminal is not None:
            self._terminal.write("\n")
            self._terminal.flush()
            self._moving = False


def _width(terminal: TextIO) -> int:
    try:
        return os.get_terminal_size(terminal.fileno()).columns or 80
    except (OSError, ValueError):
        return 80
