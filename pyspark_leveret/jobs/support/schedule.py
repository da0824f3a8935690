"""The times of a job that is repeated (`--every`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator


def times(begin_s: float, every_s: int, now_s: Callable[[], float]) -> Iterator[float]:
    """Yields, each time a run begins, when the next one is due: a whole number of intervals after the first. Runs that
    took longer than an interval are followed by one at the next such time, and not by several at once."""
    while True:
        yield begin_s + every_s * (int(max(now_s() - begin_s, 0.0) // every_s) + 1)
