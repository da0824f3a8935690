"""Counts latencies. A value keeps its first eight bits, so that a percentile is wrong by less than one in a hundred,
and all values need some thousand counters at most."""

from __future__ import annotations

from collections.abc import Iterable

KEPT_BITS = 8
PERCENTILES = (("median", 0.5), ("75th", 0.75), ("95th", 0.95), ("99th", 0.99))


class Histogram:
    """Counts values in nanoseconds."""

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.count = 0
        self.least = self.most = 0

    def add(self, nanoseconds: int, count: int = 1) -> None:
        value = max(nanoseconds, 0)  # A clock may have been set back.
        shift = max(value.bit_length() - KEPT_BITS, 0)
        kept = value >> shift << shift
        self.counts[kept] = self.counts.get(kept, 0) + count
        if not self.count or value < self.least:
            self.least = value
        self.most = max(self.most, value)
        self.count += count

    def merge(self, others: Iterable[Histogram]) -> Histogram:
        for other in others:
            if not other.count:
                continue
            self.least = min(self.least, other.least) if self.count else other.least
            self.most = max(self.most, other.most)
            self.count += other.count
            for value, count in other.counts.items():
                self.counts[value] = self.counts.get(value, 0) + count
        return self

    def percentile(self, share: float) -> int:
        """Returns the value that this share of all values does not exceed. There must be a value."""
        assert self.count
        left = share * self.count
        for value in sorted(self.counts):
            left -= self.counts[value]
            if left <= 0:
                return max(value, self.least)
        return self.most

    def milliseconds(self) -> dict[str, float] | None:
        """Returns min, median, 75th, 95th, 99th and max; None without values."""
        if not self.count:
            return None
        found = {"min": self.least, **{name: self.percentile(share) for name, share in PERCENTILES}, "max": self.most}
        return {name: round(value / 1e6, 3) for name, value in found.items()}
