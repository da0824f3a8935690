"""Recovery of mirrored queues at start: replays their records in order (see `mirror_log`), and handles damage.

**Damage** stops the start, whichever queue it is in: an operator must learn that a disk fails before anything is
overwritten. `check.repair` then drops what is damaged. Messages of a queue that only this node has are lost. A mirrored
queue has other copies. Its log *ends before the damage*: serial numbers show that a record is missing, and later
records are void. Applied blocks before it stay, and so do unapplied ones. If contents of applied blocks are lost, the
copy must be filled, and says what it still has. In any case it no longer has all that its disk once promised:
`MirrorCopy.disk` gets another number, so that the ring takes it for a new copy.

Damage that hides whose records it hit may concern every queue. A queue that has a later record, with no serial number
missing, is not concerned. Of the other mirrored queues the last records may be lost, so they count as damaged. Of some
nothing may be left at all, which looks the same as a copy that never existed: so the metadata must say which queues are
mirrored.
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
from leveret.storage.segments.mirror_copy import MirrorCopy, Unapplied
from leveret.storage.segments.queue_index import QueueLog
from leveret.storage.segments.segment import SHARED_DAMAGED, segment_path

if TYPE_CHECKING:
    from leveret.storage.log import Log

EVERYWHERE = (1 << 64, 0)  # After all places.
Row = tuple[int, int, int, int, int, int, int, int]


class Part(NamedTuple):
    """Contents of a piece whose last record was not read yet."""

    header: Header
    place: tuple[int, int]


class MirrorRecovery:
    """Replays the records of mirrored queues."""

    def __init__(self, log: Log, damages: list[Damage]) -> None:
        self._log = log
        self._damages = damages
        self._parts: dict[int, list[Part]] = {}
        self.rows: list[Row] = []  # References to applied blocks.

    # -- one segment -------------------------------------------------------------------

    def run(self, queue: QueueLog, segment: int, records: list[tuple[int, bytes]]) -> set[int]:
        """Replay records. Return the offsets of blocks that need no reference, or have one in `rows`."""
        dropped: set[int] = set()
        for offset, meta in records:
            header = parse_meta(memoryview(meta), segment, offset)
            mirror = queue.mirror
            if mirror is None:
                if not header.note()[0]:
                    continue  # A copy made between two starts, when the queue was still mirrored.
                mirror = queue.set_mirror(MirrorCopy())
                self._parts.pop(queue.id, None)
            if self._takes(queue, mirror, header, (segment, offset)) and header.count:
                dropped.add(offset)
        return dropped

    def _takes(self, queue: QueueLog, mirror: MirrorCopy, header: Header, place: tuple[int, int]) -> bool:
        """Replay a record. Return whether its contents are handled, and need no reference of the queue."""
        serial, confirmed, *more = header.note()
        if not serial and not mirror.broken:
            if more[0] > mirror.serial:
                self._break(queue, place, "records of this queue before this one are missing")
            else:
                self._confirm(queue, mirror, confirmed)
        item = mirror.find(header.epoch, header.number) if header.type == MIRRORED else None
        if serial <= mirror.serial:
            if serial:
                mirror.reach(place)
            if item is not None:
                _place(mirror, item, header, place)
                return True
            if header.type == MIRRORED and header.number > mirror.base:
                mirror.add_void(place)
            return place in mirror.void
        begins = header.flags & BEGUN and (mirror.released or not mirror.begun) and mirror.serial in (0, serial - 1)
        if begins and not mirror.broken:
            base, epoch, *more = more
            mirror.adopt(base, epoch)
        elif not mirror.broken and (serial != mirror.serial + 1 or not mirror.begun):
            self._break(queue, place, "records of this queue before this one are missing")
        if not mirror.broken:
            mirror.on_record(serial, place)
            self._confirm(queue, mirror, confirmed)
        if not mirror.broken and header.type == MIRRORED and header.number != mirror.end + 1:
            self._break(queue, place, f"block {header.number} stands behind {mirror.end}")
        if mirror.broken:
            mirror.add_void(place)
        else:
            self._do(queue, mirror, header, place, more)
        return True

    def _do(
        self, queue: QueueLog, mirror: MirrorCopy, header: Header, place: tuple[int, int], more: list[int]
    ) -> None:
        parts = self._parts.setdefault(queue.id, [])
        if header.type == FILLED:
            if header.flags & PART:
                parts.append(Part(header, place))
            else:
                self._fill(queue, mirror, parts, more)
                queue.requeue(header.requeued())
                queue.count_returns(header.counts())
                queue.marks.fold(header.marks())
            return
        self._leave(mirror, parts)
        if header.type == MIRRORED:
            item = Unapplied(
                header.epoch, header.number, header.first, header.count, header.content_bytes() if header.count else 0
            )
            mirror.add_item(item)
            mirror.note_epoch(header.epoch, header.number)
            _place(mirror, item, header, place)
        elif header.type == TRUNCATED:
            while mirror.tail and mirror.tail[-1].number > header.number:
                mirror.add_void(mirror.tail.pop().place)
            mirror.cut_history(header.number)
        elif header.type == RESTARTED:
            while mirror.tail:
                mirror.add_void(mirror.tail.pop().place)
            bound, disk, read_at, epochs, *flat = more
            mirror.set_disk(disk)
            pairs = list(zip(flat[::2], flat[1::2], strict=True))
            mirror.begin(header.number, pairs[:epochs], bound, tuple(pairs[epochs:]), read_at)
            queue.marks.cut(header.number)
            epoch = mirror.history[-1][0] if epochs else 0
            queue.advance(epoch, header.number, bound + 1, header.delivered_through)
        elif header.type == COMPLETED:
            mirror.on_complete(more[0])
        elif header.type == RELEASED:
            mirror.release()

    def _fill(self, queue: QueueLog, mirror: MirrorCopy, parts: list[Part], more: list[int]) -> None:
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
        mirror.on_piece(upto, read_at)
        queue.advance(0, 0, upto + 1, 0)

    @staticmethod
    def _leave(mirror: MirrorCopy, parts: list[Part]) -> None:
        """Void the contents of a piece whose last record was never written."""
        mirror.add_void(*(part.place for part in parts))
        parts.clear()

    def _confirm(self, queue: QueueLog, mirror: MirrorCopy, number: int) -> None:
        while mirror.tail and mirror.tail[0].number <= number:
            item = mirror.tail[0]
            header = item.header or self._read(queue, item)
            if header is None:
                return
            mirror.take_first()
            mirror.advance(item.number)
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
        queue.mirror.break_off()
        path = segment_path(self._log.folder, place[0])
        self._damages.append(Damage(path, place[1], 0, queue.id, None, None, None, what))

    def _read(self, queue: QueueLog, item: Unapplied) -> Header | None:
        block = self._read_block(queue, item)
        return block[0] if block is not None else None

    def _read_block(self, queue: QueueLog, item: Unapplied) -> tuple[Header, Run | None] | None:
        """Return a block; None: it is damaged, and the log ends before it."""
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
        """Return the references to blocks applied since the last call, in order."""
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
        """Read the unapplied blocks, after all records were replayed."""
        mirror = queue.mirror
        assert mirror is not None
        self._leave(mirror, self._parts.pop(queue.id, []))
        for at, item in enumerate(mirror.tail):
            found = self._read_block(queue, item)
            if found is None:
                while len(mirror.tail) > at:
                    mirror.add_void(mirror.tail.pop().place)
                mirror.cut_history(mirror.end)
                break
            header, run = found
            item.forget_header()
            mirror.add_block(
                Block(
                    queue.id, header.epoch, header.number, header.time_ms, run, header.settled(), header.requeued(),
                    header.delivered_through, header.counts(),
                    {key: value for _, key, value in header.marks()},
                )
            )  # fmt: skip


def settle(queue: QueueLog, ranges: list[tuple[int, int]]) -> None:
    """Settle messages before references are counted."""
    for low, high in ranges:
        queue.end(low, high)
        queue.live.remove(low, high)
        queue.redelivered.remove(low, high)
        queue.uncount(low, high)


def _place(mirror: MirrorCopy, item: Unapplied, header: Header, place: tuple[int, int]) -> None:
    if item.segment and item.place != place:
        mirror.add_void(item.place)
    item.set_place(*place, header.length, header.overhead, header)


# -- damage ------------------------------------------------------------------------------------


class DamagedMirrors:
    """Finds the mirrored queues that have lost something."""

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
        self._missing = missing  # By queue: live messages without contents.
        self._mirrored = mirrored
        places = [place for damage in damages if (place := _blind_place(damage)) is not None]
        # Records of any queue may be missing up to here.
        self._furthest = max((place for place in places if place[0] >= through), default=(0, 0))

    def is_mirrored(self, queue: int) -> bool:
        found = self._log.queues.get(queue)
        if found is not None and (found.mirror or found.number or found.count):
            return found.mirror is not None and not found.mirror.released
        return queue in self._mirrored  # The log has nothing of it.

    def mark(self) -> list[int]:
        """Give each queue that lost something another disk number, mark it as incomplete if it is, and return them."""
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
            mirror.set_disk(disk)
            touched.append(queue.id)
        return touched

    def _lacks(self, queue: QueueLog, mirror: MirrorCopy, lost: list[tuple[int, int]]) -> MirrorCopy:
        """Return the state of a copy that must be filled. Settled messages between lost ones need not be in `have`."""
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
            mirror.lack(bound, tuple(have))
            return mirror
        log = self._log
        log.drop(log.queues.pop(queue.id))
        fresh = log.queue(queue.id)
        fresh.begin_at(max(log.segment_table, default=0) + 1)
        return fresh.set_mirror(MirrorCopy())


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for low, high in sorted(pair for pair in ranges if pair[0] <= pair[1]):
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return found


def _blind_place(damage: Damage) -> tuple[int, int] | None:
    """Return segment and offset of damage to unknown queues; that of the checkpoint concerns all."""
    if damage.queue is not None or damage.what == SHARED_DAMAGED:
        return None
    stem, _, ending = damage.file.rpartition("/")[2].partition(".")
    if ending != "log":
        return EVERYWHERE
    try:
        return int(stem, 16), damage.offset
    except ValueError:
        raise FormatError(f"{damage.file} is no segment") from None
