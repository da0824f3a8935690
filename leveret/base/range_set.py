"""Sets of sequence numbers as packed ranges.

A queue's messages are nearly always few ranges, whatever their number: acks come roughly in order. The worst case
(every second of millions of messages acked) must stay bounded too, so ranges are in packed arrays, 16 bytes each, and
the arrays are split into chunks: removing a range from the middle moves the rest of one chunk, never the rest of the
set. `_starts` has the first number of each chunk, so that finding a number takes two bisections.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from leveret.base.shared_values import NO_ARRAY, NO_LIST

_CHUNK_RANGES_MAX = 1024


class RangeSet:
    """A set of unsigned 64-bit numbers, stored as sorted inclusive ranges that never touch."""

    __slots__ = ("_lows", "_highs", "_starts", "count")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._lows: list[array[int]] = NO_LIST  # No chunk is ever empty.
        self._highs: list[array[int]] = NO_LIST
        self._starts: array[int] = NO_ARRAY
        self.count = 0  # Of numbers, not ranges.
        for low, high in ranges:
            self.add(low, high)

    # -- reading ---------------------------------------------------------------

    def __bool__(self) -> bool:
        return self.count > 0

    def __contains__(self, number: int) -> bool:
        chunk = bisect_right(self._starts, number) - 1
        if chunk < 0:
            return False
        return number <= self._highs[chunk][bisect_right(self._lows[chunk], number) - 1]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for lows, highs in zip(self._lows, self._highs, strict=True):
            yield from zip(lows, highs, strict=True)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RangeSet):
            return NotImplemented
        return self.count == other.count and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ", ".join(f"{low}..{high}" for low, high in self.ranges(0, limit=8))
        return f"RangeSet({shown}{', …' if self.range_count > 8 else ''})"

    @property
    def range_count(self) -> int:
        return sum(map(len, self._lows))

    @property
    def first(self) -> int | None:
        return self._starts[0] if self._starts else None

    @property
    def last(self) -> int | None:
        return self._highs[-1][-1] if self._starts else None

    def ranges(self, start: int, end: int | None = None, limit: int | None = None) -> Iterator[tuple[int, int]]:
        """Yield the ranges within start..end, cut to it. The set must not change meanwhile."""
        chunk = max(bisect_right(self._starts, start) - 1, 0)
        given = 0
        for index in range(chunk, len(self._starts)):
            lows, highs = self._lows[index], self._highs[index]
            at = bisect_left(highs, start) if index == chunk else 0
            for place in range(at, len(lows)):
                low, high = lows[place], highs[place]
                if (end is not None and low > end) or (limit is not None and given >= limit):
                    return
                yield max(low, start), high if end is None else min(high, end)
                given += 1

    def next(self, start: int) -> int | None:
        """Return the first number from `start` on."""
        for low, _ in self.ranges(start, limit=1):
            return low
        return None

    def covers(self, low: int, high: int) -> bool:
        chunk = bisect_right(self._starts, low) - 1
        if chunk < 0:
            return False
        return high <= self._highs[chunk][bisect_right(self._lows[chunk], low) - 1]

    def around(self, number: int) -> tuple[int, int]:
        """Return the range that contains a number of the set."""
        assert number in self
        return self._range_at(number)

    def count_within(self, low: int, high: int) -> int:
        return sum(end - start + 1 for start, end in self.ranges(low, high))

    def copy(self) -> RangeSet:
        twin = RangeSet()
        twin._lows = [lows[:] for lows in self._lows]
        twin._highs = [highs[:] for highs in self._highs]
        twin._starts = self._starts[:]
        twin.count = self.count
        return twin

    # -- changing --------------------------------------------------------------

    def clear(self) -> None:
        self._lows, self._highs, self._starts, self.count = NO_LIST, NO_LIST, NO_ARRAY, 0

    def add(self, low: int, high: int) -> int:
        """Add a range. Return how many of its numbers are new."""
        assert 0 <= low <= high
        starts = self._starts
        if not starts:
            self._begin(low, high)
            self.count = added = high - low + 1
            return added
        highs = self._highs[-1]
        end = highs[-1]
        if low == end + 1:  # The usual case: a queue grows at its end.
            highs[-1] = high
        elif low > end:
            if len(highs) >= _CHUNK_RANGES_MAX:
                self._lows.append(array("Q", (low,)))
                self._highs.append(array("Q", (high,)))
                starts.append(low)
            else:
                self._lows[-1].append(low)
                highs.append(high)
        else:
            return self._add_inside(low, high)
        added = high - low + 1
        self.count += added
        return added

    def extend(self, other: RangeSet) -> None:
        """Take over another set, all of whose numbers are higher: its chunks, not range by range."""
        if not self or not other:
            for low, high in other:
                self.add(low, high)
            return
        first, last = other.first, self.last
        assert first is not None and last is not None and last < first
        if last + 1 == first:
            low, high = other.around(first)
            other.remove(low, high)
            self.add(low, high)
        self._lows += other._lows
        self._highs += other._highs
        self._starts += other._starts
        self.count += other.count
        other.clear()

    def _begin(self, low: int, high: int) -> None:
        if self._lows is NO_LIST:
            self._lows, self._highs, self._starts = [], [], array("Q")
        self._lows.append(array("Q", (low,)))
        self._highs.append(array("Q", (high,)))
        self._starts.append(low)

    def _add_inside(self, low: int, high: int) -> int:
        """Replace all ranges that touch or overlap low..high by one."""
        before = self.count
        start, end = low, high
        if low > 0 and low - 1 in self:
            start = self._range_at(low - 1)[0]
        if high + 1 in self:
            end = self._range_at(high + 1)[1]
        self.remove(start, end)
        self._insert(start, end)
        self.count += end - start + 1
        return self.count - before

    def _range_at(self, number: int) -> tuple[int, int]:
        chunk = bisect_right(self._starts, number) - 1
        place = bisect_right(self._lows[chunk], number) - 1
        return self._lows[chunk][place], self._highs[chunk][place]

    def _insert(self, low: int, high: int) -> None:
        """Insert a range that touches no other, without counting it."""
        if not self._starts:
            self._begin(low, high)
            return
        chunk = max(bisect_right(self._starts, low) - 1, 0)
        lows, highs = self._lows[chunk], self._highs[chunk]
        place = bisect_right(lows, low)
        lows.insert(place, low)
        highs.insert(place, high)
        self._starts[chunk] = lows[0]
        self._cut_if_large(chunk)

    def remove(self, low: int, high: int) -> int:
        """Remove a range. Return how many of its numbers were in the set."""
        assert 0 <= low <= high
        removed = 0
        starts = self._starts
        chunk = max(bisect_right(starts, low) - 1, 0)
        while chunk < len(starts) and starts[chunk] <= high:
            taken = self._remove_from_chunk(chunk, low, high)
            removed += taken
            if not self._lows[chunk]:
                del self._lows[chunk], self._highs[chunk], starts[chunk]
            else:
                starts[chunk] = self._lows[chunk][0]
                chunk += 1
        self.count -= removed
        return removed

    def _remove_from_chunk(self, chunk: int, low: int, high: int) -> int:
        lows, highs = self._lows[chunk], self._highs[chunk]
        begin = bisect_left(highs, low)
        end = bisect_right(lows, high)  # Ranges begin..end-1 overlap low..high.
        if begin >= end:
            return 0
        first_low, last_high = lows[begin], highs[end - 1]
        if begin + 1 == end:
            removed = min(last_high, high) - max(first_low, low) + 1
        else:
            removed = sum(highs[begin:end]) - sum(lows[begin:end]) + (end - begin)
            removed -= max(low - first_low, 0) + max(last_high - high, 0)
        left, right = first_low < low, last_high > high
        if left and right:
            if begin + 1 == end:
                highs.insert(begin, low - 1)
                lows.insert(begin + 1, high + 1)
                self._cut_if_large(chunk)
                return removed
            highs[begin] = low - 1
            lows[end - 1] = high + 1
            del lows[begin + 1 : end - 1], highs[begin + 1 : end - 1]
        elif left:
            highs[begin] = low - 1
            del lows[begin + 1 : end], highs[begin + 1 : end]
        elif right:
            lows[end - 1] = high + 1
            del lows[begin : end - 1], highs[begin : end - 1]
        else:
            del lows[begin:end], highs[begin:end]
        return removed

    def _cut_if_large(self, chunk: int) -> None:
        lows, highs = self._lows[chunk], self._highs[chunk]
        if len(lows) > _CHUNK_RANGES_MAX:
            half = len(lows) // 2
            self._lows.insert(chunk + 1, lows[half:])
            self._highs.insert(chunk + 1, highs[half:])
            self._starts.insert(chunk + 1, lows[half])
            del lows[half:], highs[half:]

    # -- packed form -------------------------------------------------------------

    def pack(self) -> bytes:
        """Return low, high, low, high, … as little-endian u64."""
        packed = array("Q", bytes(16 * self.range_count))
        at = 0
        for lows, highs in zip(self._lows, self._highs, strict=True):
            end = at + 2 * len(lows)
            packed[at:end:2] = lows
            packed[at + 1 : end : 2] = highs
            at = end
        if sys.byteorder == "big":
            packed.byteswap()
        return packed.tobytes()

    @classmethod
    def unpack(cls, data: bytes | memoryview) -> RangeSet:
        """Return the set that `pack` wrote. Raises `ValueError` for any other bytes."""
        packed = array("Q")
        packed.frombytes(data)
        if sys.byteorder == "big":
            packed.byteswap()
        if len(packed) % 2:
            raise ValueError("a range without an end")
        lows, highs = packed[::2], packed[1::2]
        one = cls()
        if not packed:
            return one
        one._lows, one._highs, one._starts = [], [], array("Q")
        last = -2
        for low, high in zip(lows, highs, strict=True):
            if low <= last + 1 or high < low:
                raise ValueError(f"ranges out of order at {low}..{high}")
            last = high
        for at in range(0, len(lows), _CHUNK_RANGES_MAX):
            one._lows.append(lows[at : at + _CHUNK_RANGES_MAX])
            one._highs.append(highs[at : at + _CHUNK_RANGES_MAX])
            one._starts.append(lows[at])
        one.count = sum(highs) - sum(lows) + len(lows)
        return one


class _NoRanges(RangeSet):
    __slots__ = ()

    def add(self, low: int, high: int) -> int:
        raise TypeError("this set is that of all who have none: make another one first")


NO_RANGES: Final[RangeSet] = _NoRanges()  # Like the empty values of `shared_values`.


def stretches(values: dict[int, int]) -> list[tuple[int, int, int]]:
    """Return (first, last, value) for each run of consecutive numbers with the same value, ascending."""
    found: list[tuple[int, int, int]] = []
    for number in sorted(values):
        value = values[number]
        if found and found[-1][1] == number - 1 and found[-1][2] == value:
            found[-1] = (found[-1][0], number, value)
        else:
            found.append((number, number, value))
    return found


def merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the same numbers as ascending ranges that do not touch."""
    if len(ranges) < 2:
        return ranges
    ranges.sort()
    result = [ranges[0]]
    for first, last in ranges[1:]:
        low, high = result[-1]
        if first <= high + 1:
            if last > high:
                result[-1] = (low, last)
        else:
            result.append((first, last))
    return result


class Wanted(NamedTuple):
    """A request for the sizes of stored messages from `first` to `last`, up to any of the limits but at least one: see
    `storage.size_estimate`."""

    first: int
    last: int
    count_max: int = 1 << 62
    bytes_max: int = 1 << 62
    among: RangeSet | None = None  # Only messages in this set.
    ranges_max: int = 1 << 62


class Measured(NamedTuple):
    """The answer to a `Wanted`."""

    ranges: list[tuple[int, int]]  # Ascending.
    bytes: int
