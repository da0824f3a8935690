"""The times of a job that is repeated (`--every`)."""

from __future__ import annotations


def next_time(begin_s: float, every_s: int, now_s: float) -> float:
    """Returns when a job that has ended is due again: a whole number of intervals after its first begin. What a run
    missed that took longer than an interval is left out."""
    return begin_s + every_s * (int(max(now_s - begin_s, 0.0) // every_s) + 1)
