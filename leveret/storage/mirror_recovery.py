"""Mirrored queues at start: their records again, in order (see `mirrored`), and what is left of a damaged one.

**Damage** stops the start, whichever queue it is in: that a disk rots is something to know of, and what is left is not
to be written over before somebody has seen it. `check.repair` then goes on without what is damaged. What queues lost
that only this node has is lost. Of a mirrored queue there are other copies. Its log *ends before the damage*: serial
numbers show that a record is missing, and those after it are void. What was applied before stays, and so do the waiting
blocks before it. Where contents of what is applied are lost, the copy is one that has to be filled, and says what it
still has. In any case it is no longer what its disk once promised to hold: `Mirror.disk` gets another number, by which
the ring knows it as a copy that has to join anew.

Damage that hides whose records it was may have hit every queue. One that has a later record, with no serial number
missing, was not. Of the other mirrored ones the last records may be gone, so they count as damaged. Of some nothing may
be left at all, and a copy that has never been looks the same: so the metadata have to say which queues are mirrored.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

from zlib_ng.zlib_ng import crc32

from leveret.storage.format.block_format import (
    BEGUN,
    COMPLETED,
    FILLED,
    MIRRORED,
    PART,
    RELEASED,
    RESTARTED,
    TRUNCATED,
    Header,
    parse_meta,
)
from leveret.storage.format.errors import Damage, FormatError, LogDamaged
from leveret.storage.format.mirror_limits import HAVE_MAX
from leveret.storage.format.queue_block import Block, Run
from leveret.storage.mirror_log import outside, without
from leveret.storage.segments.block_reader import read_whole
from leveret.storage.segments.content_index import PENDING, Columns
from leveret.storage.segments.mirror_copy import Mirror, Unapplied
from leveret.storage.segments.queue_index import QueueLog
from leveret.storage.segments.segment import SHARED_DAMAGED, segment_path

if TYPE_CHECKING:
    from leveret.storage.log import Log

EVERYWHERE = (1 << 64, 0)  # Behind all places.
Row = tuple[int, int, int, int, int, int, int, int]


class Part(NamedTuple):
    """Contents of a filling that is not finished yet."""

    header: Header
    place: tuple[int, int]


class Replay:
    def __init__(self, log: Log, damages: list[Damage]) -> None:
        self._log = log
        self._damages = damages
        self._parts: dict[int, list[Part]] = {}
        self.rows: list[Row] = []  # References to what was applied.

    # -- one segment -------------------------------------------------------------------

    def run(self, queue: QueueLog, segment: int, records: list[tuple[int, bytes]]) -> set[int]:
        """Do again what these say. Returns the offsets of blocks that are not to be referred to, or are in `rows`."""
        dropped: set[int] = set()
        for offset, meta in records:
            header = parse_meta(memoryview(meta), segment, offset)
            mirror = queue.mirror
            if mirror is None:
                if not header.note()[0]:
                    continue  # Moved between two starts of which the first found it mirrored, and nothing came of it.
                mirror = queue.mirror = Mirror()
                self._parts.pop(queue.id, None)
            if self._takes(queue, mirror, header, (segment, offset)) and header.count:
                dropped.add(offset)
        return dropped

    def _takes(self, queue: QueueLog, mirror: Mirror, header: Header, place: tuple[int, int]) -> bool:
        """Whether the contents of this record are dealt with."""
        serial, confirmed, *more = header.note()
        if not serial and not mirror.broken:
            if more[0] > mirror.serial:
                self._break(queue, place, "records of this queue before this one are missing")
            else:
                self._confirm(queue, mirror, confirmed)
        item = mirror.find(header.epoch, header.number) if header.type == MIRRORED else None
        if serial <= mirror.serial:
            if serial:
                mirror.reached = max(mirror.reached, place)
            if item is not None:
                _place(mirror, item, header, place)
                return True
            if header.type == MIRRORED and header.number > mirror.base:
                mirror.void.add(place)
            return place in mirror.void
        begins = header.flags & BEGUN and (mirror.released or not mirror.begun) and mirror.serial in (0, serial - 1)
        if begins and not mirror.broken:
            base, epoch, *more = more
            mirror.adopt(base, epoch)
        elif not mirror.broken and (serial != mirror.serial + 1 or not mirror.begun):
            self._break(queue, place, "records of this queue before this one are missing")
        if not mirror.broken:
            mirror.serial, mirror.begun, mirror.reached = serial, True, place
            self._confirm(queue, mirror, confirmed)
        if not mirror.broken and header.type == MIRRORED and header.number != mirror.end + 1:
            self._break(queue, place, f"block {header.number} stands behind {mirror.end}")
        if mirror.broken:
            mirror.void.add(place)
        else:
            self._do(queue, mirror, header, place, more)
        return True

    def _do(
        self, queue: QueueLog, mirror: Mirror, header: Header, place: tuple[int, int], more: list[int]
    ) -> None:
        parts = self._parts.setdefault(queue.id, [])
        if header.type == FILLED:
            if header.flags & PART:
                parts.append(Part(header, place))
            else:
                self._fill(queue, mirror, parts, more)
                queue.count_returns(header.counts())
                queue.marks.fold(header.marks())
            return
        self._leave(mirror, parts)
        if header.type == MIRRORED:
            item = Unapplied(
                header.epoch, header.number, header.first, header.count, header.content_bytes() if header.count else 0
            )
            mirror.tail.append(item)
            mirror.note_epoch(header.epoch, header.number)
            _place(mirror, item, header, place)
        elif header.type == TRUNCATED:
            while mirror.tail and mirror.tail[-1].number > header.number:
                mirror.void.add(mirror.tail.pop().place)
            mirror.cut_history(header.number)
        elif header.type == RESTARTED:
            while mirror.tail:
                mirror.void.add(mirror.tail.pop().place)
            bound, mirror.disk, read_at, epochs, *flat = more
            pairs = list(zip(flat[::2], flat[1::2], strict=True))
            mirror.begin(header.number, pairs[:epochs], bound, tuple(pairs[epochs:]), read_at)
            queue.marks.cut(header.number)
            epoch = mirror.history[-1][0] if epochs else 0
            queue.advance(epoch, header.number, bound + 1, header.delivered_through)
        elif header.type == COMPLETED:
            mirror.complete, mirror.read_at, mirror.marked = True, more[0], False
        elif header.type == RELEASED:
            mirror.released = True

    def _fill(self, queue: QueueLog, mirror: Mirror, parts: list[Part], more: list[int]) -> None:
        after, upto, read_at, count, *flat = more
        live = list(zip(flat[::2], flat[1::2], strict=True))
        settle(queue, outside(after + 1, upto, live))
        mine = parts[len(parts) - count :]
        del parts[len(parts) - count :]
        self._leave(mirror, parts)
        for header, place in mine:
            for low, high in header.stored():
                queue.enqueue(low, high)
            span, size = header.next - header.first, header.content_bytes()
            self.rows.append((header.first, span, header.count, *place, header.length, size, header.overhead))
        mirror.after, mirror.read_at, mirror.marked = upto, read_at, not mirror.complete
        queue.advance(0, 0, upto + 1, 0)

    @staticmethod
    def _leave(mirror: Mirror, parts: list[Part]) -> None:
        """Contents of a filling of which the last word was never written."""
        mirror.void.update(part.place for part in parts)
        parts.clear()

    def _confirm(self, queue: QueueLog, mirror: Mirror, number: int) -> None:
        while mirror.tail and mirror.tail[0].number <= number:
            item = mirror.tail[0]
            header = item.header or self._read(queue, item)
            if header is None:
                return
            mirror.tail.popleft()
            mirror.base = item.number
            queue.advance(item.epoch, item.number, header.next, header.delivered_through)
            if item.count:
                queue.enqueue(item.first, item.last)
                self.rows.append((item.first, item.count, item.count, *item.place, item.length, item.bytes, item.extra))
            queue.requeue(header.requeued())
            queue.count_returns(header.counts())
            queue.marks.fold(header.marks())
            settle(queue, header.settled())

    def _break(self, queue: QueueLog, place: tuple[int, int], what: str) -> None:
        assert queue.mirror is not None
        queue.mirror.broken = True
        path = segment_path(self._log.folder, place[0])
        self._damages.append(Damage(path, place[1], 0, queue.id, None, None, None, what))

    def _read(self, queue: QueueLog, item: Unapplied) -> Header | None:
        block = self._read_block(queue, item)
        return block[0] if block is not None else None

    def _read_block(self, queue: QueueLog, item: Unapplied) -> tuple[Header, Run | None] | None:
        """None: it is not there any more, and the log ends before it."""
        log = self._log
        if item.segment == PENDING or item.segment not in log.segment_table:
            self._break(queue, item.place, f"block {item.number} is nowhere in the log")
            return None
        path = segment_path(log.folder, item.segment)
        try:
            header, records = read_whole(log.disk, path, item.segment, item.offset, item.length)
        except LogDamaged as error:
            self._break(queue, item.place, f"block {item.number}: {error.items[0].what}")
            return None
        assert (header.type, header.epoch, header.number) == (MIRRORED, item.epoch, item.number)
        if records is None:
            return header, None
        return header, Run(header.first, records.contents, records.keys, bytearray(records.kinds), records.times)

    def take_rows(self) -> Columns | None:
        """References to what was applied since the last call, in order."""
        if not self.rows:
            return None
        rows = sorted({row[0]: row for row in self.rows}.values())
        self.rows = []
        columns = Columns()
        for column, values in zip(columns.all, zip(*rows, strict=True), strict=True):
            column.extend(values)
        return columns

    # -- all of it ---------------------------------------------------------------------

    def finish(self, queue: QueueLog) -> None:
        """All records were seen: read the blocks that wait."""
        mirror = queue.mirror
        assert mirror is not None
        self._leave(mirror, self._parts.pop(queue.id, []))
        for at, item in enumerate(mirror.tail):
            found = self._read_block(queue, item)
            if found is None:
                while len(mirror.tail) > at:
                    mirror.void.add(mirror.tail.pop().place)
                mirror.cut_history(mirror.end)
                break
            header, run = found
            item.header = None
            mirror.blocks.append(
                Block(
                    queue.id, header.epoch, header.number, header.time_ms, run, header.settled(), header.requeued(),
                    header.delivered_through, header.counts(),
                    {key: value for _, key, value in header.marks()},
                )
            )  # fmt: skip


def settle(queue: QueueLog, ranges: list[tuple[int, int]]) -> None:
    """Before references are counted."""
    for low, high in ranges:
        queue.gone.add(low, high)
        queue.live.remove(low, high)
        queue.redelivered.remove(low, high)
        queue.uncount(low, high)


def _place(mirror: Mirror, item: Unapplied, header: Header, place: tuple[int, int]) -> None:
    if item.segment and item.place != place:
        mirror.void.add(item.place)
    item.segment, item.offset = place
    item.length, item.extra = header.length, header.overhead
    item.header = header


# -- damage ------------------------------------------------------------------------------------


class Judgement:
    """Which queues are no longer what they were."""

    def __init__(
        self,
        log: Log,
        through: int,
        damages: list[Damage],
        missing: dict[int, list[tuple[int, int]]],
        mirrored: Collection[int],
    ) -> None:
        self._log = log
        self._damages = damages
        self._missing = missing  # By queue: messages that live and are nowhere.
        self._mirrored = mirrored
        places = [place for damage in damages if (place := _blind_place(damage)) is not None]
        # Up to where records may be missing of any queue.
        self._furthest = max((place for place in places if place[0] >= through), default=(0, 0))

    def is_mirrored(self, queue: int) -> bool:
        found = self._log.queues.get(queue)
        if found is not None and (found.mirror or found.number or found.count):
            return found.mirror is not None and not found.mirror.released
        return queue in self._mirrored  # There is nothing of it here.

    def mark(self) -> list[int]:
        """Queues that lost something, with another disk number each, and as copies to be filled where they must."""
        for number in self._mirrored:
            is_hit = self._furthest > (0, 0) or any(damage.queue == number for damage in self._damages)
            if is_hit and self.is_mirrored(number):
                self._log.mirrors.open(number)
        text = "\n".join(map(str, self._damages)).encode()
        disk = crc32(text) << 32 | crc32(text, 1)
        touched = []
        for queue in list(self._log.queues.values()):
            mirror = queue.mirror
            if mirror is None or mirror.released:
                continue
            named = any(damage.queue == queue.id for damage in self._damages)
            if not (mirror.broken or named or mirror.reached < self._furthest):
                continue
            if queue.id in self._missing:
                mirror = self._lacks(queue, mirror, self._missing[queue.id])
            mirror.disk = disk
            touched.append(queue.id)
        return touched

    def _lacks(self, queue: QueueLog, mirror: Mirror, lost: list[tuple[int, int]]) -> Mirror:
        """It is to be filled. What lies between lost messages and is settled need not be named as what it has."""
        bound = queue.next_seq - 1
        holes = [lost[0]]
        for low, high in lost[1:]:
            if queue.live.count_within(holes[-1][1] + 1, low - 1):
                holes.append((low, high))
            else:
                holes[-1] = (holes[-1][0], high)
        have = [(1, bound)]
        if not mirror.complete:
            have = _merged([(1, mirror.after), *mirror.have, (mirror.bound + 1, bound)])
        have = without(have, holes)
        if len(have) <= HAVE_MAX:
            mirror.complete, mirror.cut, mirror.bound, mirror.after, mirror.have = (
                False, mirror.base, bound, 0, tuple(have),
            )  # fmt: skip
            mirror.marked = False
            return mirror
        log = self._log
        log.drop(log.queues.pop(queue.id))
        fresh = log.queue(queue.id)
        fresh.floor = max(log.segment_table, default=0) + 1
        fresh.mirror = Mirror()
        return fresh.mirror


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for low, high in sorted(pair for pair in ranges if pair[0] <= pair[1]):
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return found


def _blind_place(damage: Damage) -> tuple[int, int] | None:
    """Segment and offset of damage that does not tell whose records it hit. The checkpoint is about all of them."""
    if damage.queue is not None or damage.what == SHARED_DAMAGED:
        return None
    stem, _, ending = damage.file.rpartition("/")[2].partition(".")
    if ending != "log":
        return EVERYWHERE
    try:
        return int(stem, 16), damage.offset
    except ValueError:
        raise FormatError(f"{damage.file} is no segment") from None
