"""What waits in a queue with priorities, ordered as it is handed out: by level, and within a level by number.

`PriorityReady` stands where other queues have one deque, and has those operations of a deque that `Queue` uses. Its
first entry is the first one of the highest level at which something waits. So whatever looks at the front of a queue,
such as delivery, age and limits, needs to know nothing of levels.

    level 9   ▸ Span 41, Span 57
          3   ▸ Span 12..19, Gap {23, 25..31, 44}, Span 58..60
          0   ▸ Gap {1..11, 20, 24}
    unsorted  ▸ (nothing)

The level of a message is the priority among its properties, none being 0, and more than the highest that the queue
knows being that one. It is looked up when a message comes, and kept nowhere: an entry is of one level throughout, and a
bundle of messages with different priorities becomes several spans of its batch.

**Gaps.** Elsewhere a gap stands for whatever the log holds within its bounds. Here messages of other levels lie between
those of one, so a gap in a row says which numbers are its own (`Gap.ranges`).

**Unsorted.** The log keeps no order but that of arrival. After a start, and at a new master, nobody knows the level of
a message before its contents are read; so what the log holds is one gap, in a row of its own, which has to be read and
sorted before anything is handed out: it is the first entry as long as it is there. What comes meanwhile waits behind
it, so that each level grows at its end. The first of the unsorted is always a gap, for spans can be sorted at once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from heapq import merge
from operator import attrgetter
from typing import TYPE_CHECKING, Final, cast

from leveret.base.range_set import RangeSet
from leveret.broker.delivery.batch import Gap, Span
from leveret.protocol.frames import HEADER_AT
from leveret.protocol.properties import priority

if TYPE_CHECKING:
    from collections.abc import Iterator

    from leveret.broker.delivery.batch import Batch

Entry = Span | Gap

FLAGS_AT: Final = HEADER_AT + 12
LONG: Final = 1_024  # Messages of each of two gaps, from which joining them one by one takes long.
_HAS_PRIORITY: Final = 0x08  # In the first byte of the flags.
_AFTER_OTHERS: Final = 0xE0  # Some property of variable size is in front of it.
_HAS_MODE: Final = 0x10
_NONE_TO_GROW: Final = Gap(0, 0, 0)


class PriorityReady:
    """All entries of one queue that wait."""

    __slots__ = ("filled", "highest", "rows", "unsorted")

    def __init__(self, highest: int) -> None:
        self.highest = highest
        self.rows: dict[int, deque[Entry]] = {}  # By level, ascending numbers in each; made when first needed.
        self.filled = 0  # A bit for each level whose row is not empty.
        self.unsorted: deque[Entry] = deque()

    # -- As a deque ----------------------------------------------------------------------------------------------

    def __bool__(self) -> bool:
        return bool(self.filled or self.unsorted)

    def __len__(self) -> int:
        return len(self.unsorted) + sum(map(len, self.rows.values()))

    def __iter__(self) -> Iterator[Entry]:
        yield from self.unsorted
        for level in self.levels():
            yield from self.rows[level]

    def __getitem__(self, at: int) -> Entry:
        """The first (0) or second (1). The last one (-1), to which `Queue` would add what comes, is none that can grow:
        what comes may be of another level."""
        if at < 0:
            return _NONE_TO_GROW
        if not at:
            return self.unsorted[0] if self.unsorted else self.rows[self.filled.bit_length() - 1][0]
        return next(entry for index, entry in enumerate(self) if index == at)

    def popleft(self) -> Entry:
        """The first entry, of which nothing is left."""
        assert not self.unsorted  # They are read, not taken.
        level = self.filled.bit_length() - 1
        row = self.rows[level]
        entry = row.popleft()
        assert not entry.count
        if not row:
            self.filled &= ~(1 << level)
        return entry

    def append(self, entry: Entry) -> None:
        """Newer than all others. A gap is one whose levels are not known."""
        unsorted = self.unsorted
        if isinstance(entry, Gap):
            unsorted.append(entry)
        elif not unsorted:
            self._sort_in(entry)
        else:
            last = unsorted[-1]
            if isinstance(last, Span) and last.batch is entry.batch and last.hi == entry.lo:
                last.hi = entry.hi
            else:
                unsorted.append(entry)

    def clear(self) -> None:
        self.rows.clear()
        self.unsorted.clear()
        self.filled = 0

    # -- Levels --------------------------------------------------------------------------------------------------

    def levels(self) -> list[int]:
        """Return the priorities with ready messages, the highest first."""
        return [level for level in range(self.filled.bit_length() - 1, -1, -1) if self.filled >> level & 1]

    def split(self, batch: Batch, lo: int, hi: int) -> Iterator[tuple[int, int, int]]:
        """Messages of a batch as stretches of one level each: the level, and from where to where."""
        highest, contents = self.highest, batch.contents
        start, before = lo, -1
        for at in range(lo, hi):
            content = contents[at]
            flags = content[FLAGS_AT]
            if not flags & _HAS_PRIORITY:
                level = 0
            elif flags & _AFTER_OTHERS:
                level = priority(content, HEADER_AT) or 0
            else:
                level = content[FLAGS_AT + 3 if flags & _HAS_MODE else FLAGS_AT + 2]
            if level > highest:
                level = highest
            if level != before:
                if at > start:
                    yield before, start, at
                start, before = at, level
        yield before, start, hi

    def row(self, level: int) -> deque[Entry]:
        """The row of a level that is about to have something."""
        self.filled |= 1 << level
        row = self.rows.get(level)
        if row is None:
            row = self.rows[level] = deque()
        return row

    def _sort_in(self, span: Span) -> None:
        """Put what is newer than all others at the ends of its levels."""
        batch = span.batch
        for level, lo, hi in self.split(batch, span.lo, span.hi):
            row = self.row(level)
            last = row[-1] if row else None
            if isinstance(last, Span) and last.batch is batch and last.hi == lo:
                last.hi = hi
            else:
                row.append(Span(batch, lo, hi))

    def put_back(self, entry: Entry) -> None:
        """To the places that its messages had. Those are near the front, since they have been there before."""
        if isinstance(entry, Gap):
            _insert(self.unsorted, entry)
            return
        for level, lo, hi in self.split(entry.batch, entry.lo, entry.hi):
            _insert(self.row(level), Span(entry.batch, lo, hi))

    def put_back_many(self, entries: list[Entry]) -> None:
        """Likewise, many at once."""
        unsorted: list[Entry] = []
        found: dict[int, list[Entry]] = {}
        for entry in sorted(entries, key=_first):
            if isinstance(entry, Gap):
                unsorted.append(entry)
                continue
            for level, lo, hi in self.split(entry.batch, entry.lo, entry.hi):
                found.setdefault(level, []).append(Span(entry.batch, lo, hi))
        insert_many(self.unsorted, unsorted)
        for level, spans in found.items():
            insert_many(self.row(level), spans)

    def sort(self, batches: list[Batch]) -> None:
        """Messages that were unsorted until now, ascending. They go where their numbers belong: behind what was sorted
        before them, and in front of what was given back meanwhile if that is newer."""
        found: dict[int, list[Entry]] = {}
        for batch in batches:
            for level, lo, hi in self.split(batch, 0, len(batch.contents)):
                found.setdefault(level, []).append(Span(batch, lo, hi))
        for level, spans in found.items():
            row = self.row(level)
            newer: list[Entry] = []
            while row and row[-1].last > spans[0].first and isinstance(row[-1], Span):
                newer.append(row.pop())
            if row and row[-1].last > spans[0].first:  # There is something in a gap's midst: no usual thing.
                row.extend(reversed(newer))
                for span in spans:
                    _insert(row, span)
            else:
                row.extend(merge(reversed(newer), spans, key=_first) if newer else spans)

    def settle_unsorted(self) -> None:
        """Sort what is in memory, up to the next gap."""
        unsorted = self.unsorted
        while unsorted and isinstance(unsorted[0], Span):
            span = unsorted.popleft()
            assert isinstance(span, Span)
            for level, lo, hi in self.split(span.batch, span.lo, span.hi):
                row = self.row(level)
                part = Span(span.batch, lo, hi)
                row.append(part) if not row or row[-1].first < part.first else _insert(row, part)

    def front(self, count: int) -> list[tuple[Batch, int, int]]:
        """The next messages that can be handed out: so many, or up to what has to be read first."""
        found: list[tuple[Batch, int, int]] = []
        if self.unsorted:
            return found
        for entry in self:
            if isinstance(entry, Gap) or count <= 0:
                break
            found.append((entry.batch, entry.lo, min(entry.hi, entry.lo + count)))
            count -= entry.count
        return found

    def refresh(self) -> None:
        """Rows were changed from outside."""
        self.filled = sum(1 << level for level, row in self.rows.items() if row)
        self.settle_unsorted()


def rows_of(ready: deque[Entry]) -> Iterator[deque[Entry]]:
    """Yield the ready messages of a queue in rows of ascending numbers, which may be changed; most have one or none."""
    levels = cast("PriorityReady | deque[Entry]", ready)
    if not isinstance(levels, PriorityReady):
        if levels:
            yield levels
        return
    yield levels.unsorted
    for level in levels.levels():
        yield levels.rows[level]
    levels.refresh()


_first: Final = attrgetter("first")


def insert_many(row: deque[Entry], entries: list[Entry]) -> None:
    """Put many entries, in whatever order, to where their numbers belong, going once through what is in front of the
    last one."""
    if not entries:
        return
    entries = sorted(entries, key=_first)
    if not row or entries[-1].first < row[0].first:  # The usual case: what comes back was given out first.
        row.extendleft(reversed(entries))
        return
    before = [row.popleft() for _ in range(bisect_left(row, entries[-1].first, key=_first))]
    if Gap in set(map(type, before)) and any(isinstance(one, Gap) and one.ranges is not None for one in before):
        row.extendleft(reversed(before))
        for entry in reversed(entries):  # It may be in the midst of a gap.
            _insert(row, entry)
    else:
        row.extendleft(reversed(sorted(before + entries, key=_first)))  # Two sorted lists are merged, not sorted.


def _insert(row: deque[Entry], entry: Entry) -> None:
    """To where its numbers belong, be it in the midst of a gap: that is two gaps then."""
    first, at = entry.first, 0
    while at < len(row) and row[at].first < first:
        at += 1
    before = row[at - 1] if at else None
    if isinstance(before, Gap) and before.last > first:
        row.insert(at, _cut(before, first))
    row.insert(at, entry)


# -- Gaps with numbers of their own ------------------------------------------------------------------------------------


def gap_of(ranges: RangeSet, redelivered: bool) -> Gap:
    assert ranges.first is not None and ranges.last is not None
    return Gap(ranges.first, ranges.last, ranges.count, redelivered, ranges)


def _cut(gap: Gap, number: int) -> Gap:
    """Let a gap end before this number. Gives the rest; the first part may be being read, and is what it was."""
    assert gap.ranges is not None
    rest = gap_of(RangeSet(gap.ranges.ranges(number)), gap.redelivered)
    gap.ranges.remove(number, gap.last)
    assert gap.ranges.last is not None
    gap.last = gap.ranges.last
    rest.body_bytes = gap.body_bytes * rest.count // gap.count  # About; what is read is counted anew.
    gap.body_bytes -= rest.body_bytes
    gap.count -= rest.count
    return rest


def join(left: Gap, right: Gap, loading: Gap | None) -> Gap | None:
    """Two neighbours of a row as one; None if they must stay two. What is being read must be found again when it is
    there, and may not be given messages in front of those that are read."""
    if left.redelivered != right.redelivered or right is loading:
        return None
    if left.ranges is None or right.ranges is None:
        if left.ranges is not right.ranges or left.last + 1 != right.first:
            return None
    elif min(left.count, right.count) > LONG:
        left.ranges.extend(right.ranges)
    elif left.count < right.count and left is not loading:  # However long a gap is, one more costs little.
        for low, high in left.ranges:
            right.ranges.add(low, high)
        left.ranges = right.ranges
    else:
        for low, high in right.ranges:
            left.ranges.add(low, high)
    left.last = right.last
    left.count += right.count
    left.body_bytes += right.body_bytes
    return left
