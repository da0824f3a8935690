"""The index of a queue's contents on disk: one packed reference per block, sorted by sequence number.

A long queue has nothing else in memory, so a reference is 36 bytes in eight parallel arrays, and the arrays are split
into chunks: dead references are removed from a chunk once they are the larger part of it, and a reference that is
inserted late (a copy, or a mirror that is being filled) moves at most one chunk.

A reference means: all live messages of `first .. first+span-1` are in this block. `live`, `bytes` and `extra` are the
number of live messages, their content bytes, and their share of the block's own overhead. They shrink as messages are
settled; sizes of single messages are not known here, so bytes shrink by the block's average and are exact when a block
is all live or all settled.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from itertools import compress
from typing import Final, NamedTuple

from leveret.base.range_set import RangeSet
from leveret.base.shared_values import NO_ARRAY, NO_LIST

PENDING = 0  # The segment of a block that is not written yet; its `offset` is the entry's serial number.
SHORT = 0xFFFFFFFF  # The low 32 bits of a serial number: far more blocks than ever wait to be written.

_CHUNK_REFS = 4096
_TYPES = "QIIIIIII"


class Share:
    """Counts the live messages of a segment, or of blocks that are not written yet."""

    __slots__ = ("live", "live_bytes")

    def __init__(self) -> None:
        self.live = 0
        self.live_bytes = 0

    def add(self, live: int, live_bytes: int) -> None:
        """Count more live messages, or fewer."""
        self.live += live
        self.live_bytes += live_bytes


class Ref(NamedTuple):
    """A reference to a block."""

    first: int
    span: int
    live: int
    segment: int
    offset: int
    length: int
    bytes: int
    extra: int

    @property
    def last(self) -> int:
        return self.first + self.span - 1


class Columns:
    """References as arrays. `all` has the order of Ref's fields."""

    __slots__ = ("first", "span", "live", "segment", "offset", "length", "bytes", "extra", "all", "dead")

    def __init__(self, columns: tuple[array[int], ...] | None = None) -> None:
        self.all = columns or tuple(array(code) for code in _TYPES)
        (
            self.first, self.span, self.live, self.segment, self.offset, self.length, self.bytes, self.extra,
        ) = self.all  # fmt: skip
        self.dead = 0

    def __len__(self) -> int:
        return len(self.first)

    def at(self, index: int) -> Ref:
        return Ref(*(column[index] for column in self.all))

    def slice(self, start: int, end: int) -> Columns:
        return Columns(tuple(column[start:end] for column in self.all))


class ContentIndex:
    """The references to all blocks of a queue that have live messages."""

    __slots__ = ("_chunks", "_starts", "_shares", "bytes")

    def __init__(self, shares: dict[int, Share]) -> None:
        self._chunks: list[Columns] = NO_LIST
        self._starts: array[int] = NO_ARRAY
        self._shares = shares  # By segment; this object updates their counts.
        self.bytes = 0  # Content bytes of live messages.

    def __len__(self) -> int:
        return sum(map(len, self._chunks))

    def __iter__(self) -> Iterator[Ref]:
        for chunk in self._chunks:
            for index in range(len(chunk)):
                yield chunk.at(index)

    def from_seq(self, seq: int) -> Iterator[Ref]:
        """Yield the references that reach to `seq` or further, in order. They must not change meanwhile."""
        at = max(bisect_right(self._starts, seq) - 1, 0)
        for chunk in self._chunks[at:]:
            start = max(bisect_right(chunk.first, seq) - 1, 0) if chunk is self._chunks[at] else 0
            for index in range(start, len(chunk)):
                ref = chunk.at(index)
                if ref.live and ref.last >= seq:
                    yield ref

    def within(self, segment: int, first: int, last: int) -> Iterator[Ref]:
        """Yield the live references into one segment whose first number is in first..last."""
        at = max(bisect_right(self._starts, first) - 1, 0)
        while at < len(self._chunks) and self._starts[at] <= last:
            chunk = self._chunks[at]
            if chunk.segment.count(segment):
                for index, number in enumerate(chunk.segment):
                    if number == segment and chunk.live[index]:
                        yield chunk.at(index)
            at += 1

    def pieces(self, piece_bytes: int) -> list[tuple[int, int, int]]:
        """Return live messages in pieces of about so many bytes: first and last number, and content bytes."""
        pieces: list[tuple[int, int, int]] = []
        first, total = 0, 0
        for chunk in self._chunks:
            for index, size in enumerate(chunk.bytes):
                if chunk.live[index]:
                    if not first:
                        first = chunk.first[index]
                    total += size
                    if total >= piece_bytes:
                        pieces.append((first, chunk.first[index] + chunk.span[index] - 1, total))
                        first, total = 0, 0
        if first:
            last = self._chunks[-1]
            pieces.append((first, last.first[-1] + last.span[-1] - 1, total))
        return pieces

    @property
    def last_first(self) -> int:
        """Return the first number of the last block; 0 if there is none."""
        return self._chunks[-1].first[-1] if self._chunks else 0

    # -- changing --------------------------------------------------------------

    def append(self, first: int, span: int, live: int, segment: int, offset: int, content_bytes: int) -> None:
        """Add a new block of `live` stored messages."""
        self._shares[segment].add(live, content_bytes)
        self.bytes += content_bytes
        chunk = self._chunks[-1] if self._chunks else None
        if chunk is not None and first <= chunk.first[-1]:
            one = Columns()
            for column, value in zip(one.all, (first, span, live, segment, offset, 0, content_bytes, 0), strict=True):
                column.append(value)
            self._insert(one)
            return
        if chunk is None or len(chunk) >= _CHUNK_REFS:
            if chunk is not None:  # The chunk is full: free the memory that its arrays allocated ahead.
                dead = chunk.dead
                chunk = self._chunks[-1] = chunk.slice(0, len(chunk))
                chunk.dead = dead
            chunk = Columns()
            self._begin()
            self._chunks.append(chunk)
            self._starts.append(first)
        chunk.first.append(first)
        chunk.span.append(span)
        chunk.live.append(live)
        chunk.segment.append(segment)
        chunk.offset.append(offset)
        chunk.length.append(0)
        chunk.bytes.append(content_bytes)
        chunk.extra.append(0)

    def _begin(self) -> None:
        if not self._chunks:
            self._chunks, self._starts = [], array("Q")

    def relocate(
        self, first: int, old: tuple[int, int], segment: int, offset: int, length: int, extra: int
    ) -> bool:
        """Point the reference at `first` to a copy of its block. False if the reference is gone or was relocated
        meanwhile. `extra`: the overhead of the live messages."""
        at = bisect_right(self._starts, first) - 1
        if at < 0:
            return False
        chunk = self._chunks[at]
        index = bisect_right(chunk.first, first) - 1
        if index < 0 or chunk.first[index] != first or (chunk.segment[index], chunk.offset[index]) != old:
            return False
        live, content_bytes = chunk.live[index], chunk.bytes[index]
        if not live:
            return False
        before, after = self._shares[old[0]], self._shares[segment]
        before.live -= live
        before.live_bytes -= content_bytes + chunk.extra[index]
        after.live += live
        after.live_bytes += content_bytes + extra
        chunk.segment[index] = segment
        chunk.offset[index] = offset
        chunk.length[index] = length
        chunk.extra[index] = extra
        return True

    def settle(self, low: int, high: int, live: RangeSet) -> None:
        """Count low..high as settled, before it is removed from `live`."""
        at = max(bisect_right(self._starts, low) - 1, 0)
        while at < len(self._chunks) and self._starts[at] <= high:
            chunk = self._chunks[at]
            self._settle_chunk(chunk, low, high, live)
            if chunk.dead == len(chunk):
                del self._chunks[at], self._starts[at]
                continue
            if chunk.dead * 2 > len(chunk) and (len(chunk) >= 64 or at < len(self._chunks) - 1):
                self._squeeze(at)
            at += 1

    def _settle_chunk(self, chunk: Columns, low: int, high: int, live: RangeSet) -> None:
        firsts, spans, lives = chunk.first, chunk.span, chunk.live
        index = max(bisect_right(firsts, low) - 1, 0)
        end = bisect_right(firsts, high)
        while index < end:
            there = lives[index]
            if there:
                first = firsts[index]
                last = first + spans[index] - 1
                if low <= first and last <= high:
                    self._reduce(chunk, index, there, there)
                elif last >= low:
                    gone = int(low in live) if low == high else live.count_within(max(low, first), min(high, last))
                    if gone:
                        self._reduce(chunk, index, there, gone)
            index += 1

    def _reduce(self, chunk: Columns, index: int, there: int, gone: int) -> None:
        content_bytes, extra = chunk.bytes[index], chunk.extra[index]
        gone_bytes = content_bytes * gone // there
        gone_extra = extra * gone // there
        chunk.live[index] = there - gone
        chunk.bytes[index] = content_bytes - gone_bytes
        chunk.extra[index] = extra - gone_extra
        self._shares[chunk.segment[index]].add(-gone, -gone_bytes - gone_extra)
        self.bytes -= gone_bytes
        if gone == there:
            chunk.dead += 1

    def clear(self) -> None:
        """Remove all references: the queue is deleted."""
        for chunk in self._chunks:
            for segment, live, content_bytes, extra in zip(
                chunk.segment, chunk.live, chunk.bytes, chunk.extra, strict=True
            ):
                if live:  # The segment of a dead reference may be deleted.
                    self._shares[segment].add(-live, -content_bytes - extra)
        self._chunks, self._starts, self.bytes = NO_LIST, NO_ARRAY, 0

    def _squeeze(self, at: int) -> None:
        chunk = self._chunks[at]
        kept = Columns(tuple(array(column.typecode, compress(column, chunk.live)) for column in chunk.all))
        self._chunks[at] = kept
        self._starts[at] = kept.first[0]

    # -- at start ----------------------------------------------------------------

    def load(self, columns: Columns) -> None:
        """Add references sorted by first number. A reference to the same block replaces the earlier one: a copy is
        written before the original is deleted, so the later one is valid. `reconcile` sets the counts."""
        if not self._chunks or columns.first[0] > self._chunks[-1].first[-1]:
            self._extend(columns)
            return
        at = 0
        while at < len(columns):
            above = self._first_above(columns.first[at])
            end = len(columns) if above is None else max(bisect_right(columns.first, above - 1), at + 1)
            self._insert(columns.slice(at, end))
            at = end

    def _first_above(self, first: int) -> int | None:
        at = bisect_right(self._starts, first) - 1
        if at >= 0:
            chunk = self._chunks[at]
            index = bisect_right(chunk.first, first)
            if index < len(chunk):
                return chunk.first[index]
        return self._starts[at + 1] if at + 1 < len(self._starts) else None

    def _extend(self, columns: Columns) -> None:
        self._begin()
        for at in range(0, len(columns), _CHUNK_REFS):
            self._chunks.append(columns.slice(at, at + _CHUNK_REFS))
            self._starts.append(columns.first[at])

    def _insert(self, columns: Columns) -> None:
        """Insert references between whose first numbers there is no other; the first one may replace an equal one."""
        at = max(bisect_right(self._starts, columns.first[0]) - 1, 0)
        chunk = self._chunks[at]
        index = bisect_right(chunk.first, columns.first[0])
        replaced = 1 if index and chunk.first[index - 1] == columns.first[0] else 0
        if replaced and not chunk.live[index - 1]:
            chunk.dead -= 1
        for column, more in zip(chunk.all, columns.all, strict=True):
            column[index - replaced : index] = more
        self._starts[at] = chunk.first[0]
        if len(chunk) > 2 * _CHUNK_REFS:
            pieces = [chunk.slice(start, start + _CHUNK_REFS) for start in range(0, len(chunk), _CHUNK_REFS)]
            for piece in pieces:
                piece.dead = piece.live.count(0)
            self._chunks[at : at + 1] = pieces
            self._starts[at : at + 1] = array("Q", [piece.first[0] for piece in pieces])

    def reconcile(self, live: RangeSet) -> int:
        """Set the live count of each reference, drop dead ones, and update the counts of segments. Return the number of
        live messages with a reference."""
        total = 0
        kept = []
        for chunk in self._chunks:
            first, last = chunk.first[0], chunk.first[-1] + chunk.span[-1] - 1
            # The usual case: a long queue without holes. Then single references need no work.
            if not (live.covers(first, last) and sum(chunk.live) == last - first + 1):
                chunk = self._reconcile_chunk(chunk, live)
            if not len(chunk):
                continue
            kept.append(chunk)
            total += sum(chunk.live)
            self.bytes += sum(chunk.bytes)
            self._count_shares(chunk)
        self._chunks = kept or NO_LIST
        self._starts = array("Q", [chunk.first[0] for chunk in kept]) if kept else NO_ARRAY
        return total

    @staticmethod
    def _reconcile_chunk(chunk: Columns, live: RangeSet) -> Columns:
        for index, (first, span, stored) in enumerate(zip(chunk.first, chunk.span, chunk.live, strict=True)):
            there = live.count_within(first, first + span - 1)
            if there != stored:
                chunk.live[index] = there
                chunk.bytes[index] = chunk.bytes[index] * there // stored
                chunk.extra[index] = chunk.extra[index] * there // stored
        return Columns(tuple(array(column.typecode, compress(column, chunk.live)) for column in chunk.all))

    def _count_shares(self, chunk: Columns) -> None:
        segment = chunk.segment[0]
        if chunk.segment.count(segment) == len(chunk):
            self._shares[segment].add(sum(chunk.live), sum(chunk.bytes) + sum(chunk.extra))
            return
        for number, live, content_bytes, extra in zip(
            chunk.segment, chunk.live, chunk.bytes, chunk.extra, strict=True
        ):
            self._shares[number].add(live, content_bytes + extra)


class _NoRefs(ContentIndex):
    __slots__ = ()

    def append(self, first: int, span: int, live: int, segment: int, offset: int, content_bytes: int) -> None:
        raise TypeError("this index is that of all queues that have none: make another one first")

    def load(self, columns: Columns) -> None:
        raise TypeError("this index is that of all queues that have none: make another one first")


NO_REFS: Final[ContentIndex] = _NoRefs({})
