"""Mirrored queues in the log: blocks that have no effect until they are confirmed.

Blocks of other queues take effect as soon as they are appended. Those of a mirrored queue are appended and synced in
the same groups, but take effect (`apply`) only when they are confirmed, and until then may be cut off. So a mirrored
queue has blocks in the log that have no effect yet:

    segments:   … 41 42 43 44 45 46 47      44..47: unapplied, `MirrorCopy.tail` has their places
    QueueLog:   the sum of … 43             live, gone, references: as for any queue

**Order.** The sum of other queues' blocks does not depend on their order. Here it does: a block may be cut off, and
another gets its number and its messages' numbers. So each record has a *note*: its serial number within the queue, and
the number confirmed when it was written. A start replays the records in this order: before each record, the blocks up
to its confirmed number take effect; TRUNCATED drops unapplied blocks; RESTARTED drops them all, and with FRESH
everything; FILLED adds and settles; the blocks that are unapplied in the end are given to the member of the ring. A
confirmed number alone is never a reason to write.

**Serial numbers have no gaps**, so that loss is noticed. If a record is missing, all later ones are void: the log ends
before the damage (see `mirror_recovery`). A queue that is forgotten and returns, or starts again from nothing,
continues with higher numbers, and its first record says that it is the first. Otherwise, if the record that voids the
earlier ones were lost, the new records could be taken for a continuation of the old.

**Checkpoints.** A checkpoint has the state after some serial number; records up to it that are read again behind the
checkpoint only give the places of blocks. It has unapplied blocks by epoch and number, which identify a block for ever.
It does not have the references to contents, which a start takes from the segments. Therefore it must have the places of
blocks that were cut off (*void* places): such a block may have messages with the same numbers as later ones.

**Space.** An unapplied block keeps its segment. If its segment is emptied, it is written again as it is (COPY), and its
former place is void. Applied messages are moved like those of any queue, without settled ones; but the block that
settled them may not be noted as confirmed anywhere, and after a start that block would be unapplied and those messages
live. So a copy also notes what is applied. It has no serial number of its own and names the last one: if that record is
missing, its note is ignored.

**Whole blocks.** Messages that are settled before they are written are left out of other queues' blocks. Blocks of a
mirrored queue are sent to other nodes and compared, so they are written whole, transient messages included. These
survive a restart of one node: a copy without them would not match its block numbers.

**Filling** (a member that lacks messages gets them in pieces) writes several records, one for each run of contents and
a last one with the live messages; the contents have an effect only if the last one is there.

**Spilled messages** of a queue that becomes mirrored are on disk, but in blocks that a start ignores. They are read
(`spilled`) and stored again, by pieces that concern only them; then they are no longer spilled.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from leveret.storage.format.block_format import (
    BEGUN,
    BLOCK_HEAD,
    COMPLETED,
    CONTENT_BYTES_MAX,
    FILLED,
    FRESH,
    MIRRORED,
    PART,
    RELEASED,
    RESTARTED,
    TRUNCATED,
    Records,
    pack_u64,
)
from leveret.storage.format.errors import FormatError, LogStopped
from leveret.storage.format.mirror_limits import PIECE_RANGES_MAX
from leveret.storage.format.queue_block import Block, Run
from leveret.storage.format.queue_marks import Mark, marks_bytes, marks_of
from leveret.storage.segments.content_index import PENDING, SHORT
from leveret.storage.segments.disk_jobs import RECORD_OVERHEAD, Load, MirrorEntry, Written
from leveret.storage.segments.mirror_copy import APPLIED, VOID, WAITING, MirrorCopy, Pairs, Unapplied
from leveret.storage.segments.queue_index import QueueLog

if TYPE_CHECKING:
    from leveret.storage.log import Log, Segment
    from leveret.storage.segments.block_reader import Place


# Stand for queues without a record.
_EMPTY: Final = QueueLog(0, {})
_NO_COPY: Final = MirrorCopy()


class MirrorLog:
    """The mirrored queues of a log. `mark`: a number of the caller's, which `Write.marks` reports when all that the
    call wrote is durable."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.voiding = 0  # The number of blocks that were cut off before their place was known.
        self._top = 0  # The highest serial number of all records.

    def open(self, queue: int) -> tuple[QueueLog, MirrorCopy]:
        """Return a queue, and make it mirrored if it was not."""
        log = self._log
        if log.stopped:
            raise LogStopped(log.stopped)
        found = log.queue(queue)
        if found.mirror is None:
            found.set_mirror(MirrorCopy(found.number, found.epoch)).number_from(self._unused())
        elif found.mirror.released:
            found.mirror.adopt(found.number, found.epoch)
        assert found.mirror is not None
        return found, found.mirror

    def look(self, queue: int) -> tuple[QueueLog, MirrorCopy]:
        """Return a queue for reading only. One that never had a record is empty, and takes no space here."""
        if self._log.stopped:
            raise LogStopped(self._log.stopped)
        return self.open(queue) if queue in self._log.queues else (_EMPTY, _NO_COPY)

    def is_mirrored(self, queue: int) -> bool:
        """Return whether the log has a queue as mirrored."""
        found = self._log.queues.get(queue)
        return found is not None and found.mirror is not None and not found.mirror.released

    def unmark(self, queue: int, ranges: Iterable[tuple[int, int]]) -> None:
        """Have the queue's master here read messages as not redelivered, whatever blocks say."""
        found = self._log.queues.get(queue)
        if found is not None:
            found.unmark(ranges)

    def _unused(self) -> int:
        """Return a serial number above all that a forgotten queue had here. Each record took more than one byte, so the
        length of the log is such a number."""
        current = self._log.current
        position = current.number << 32 | current.length if current is not None else 0
        self._top = max(position, self._top)
        return self._top

    # -- writing -----------------------------------------------------------------------

    def append(self, block: Block, raw: tuple[bytes, bytes] | None, confirmed: int, mark: int | None = None) -> None:
        """Append a block, which has no effect yet. `raw`: its meta and body, if it came as bytes from another node."""
        queue, mirror = self.open(block.queue)
        assert block.number == mirror.end + 1, f"block {block.number} behind {mirror.end}"
        entry = MirrorEntry(MIRRORED, 0, queue)
        entry.set_head(block.epoch, block.number, block.time_ms, block.delivered_through)
        marks = marks_of(block.number, block.marks) if block.marks else []
        entry.set_changes(block.settled, block.requeued, block.counts, marks)
        if raw is not None:
            content_bytes, count = self._hold_raw(entry, block, raw)
        else:
            content_bytes, count = self._hold(entry, block.enqueued)
        if content_bytes > CONTENT_BYTES_MAX:
            raise ValueError(f"a block of {content_bytes} bytes; the log takes {CONTENT_BYTES_MAX}")
        entry.add_bytes(content_bytes + RECORD_OVERHEAD * (count + len(block.settled) + len(block.requeued)))
        if marks:
            entry.add_bytes(marks_bytes(marks))
        item = Unapplied(block.epoch, block.number, entry.first, count, content_bytes)
        entry.write_item(item)
        mirror.add_item(item)
        mirror.note_epoch(block.epoch, block.number)
        self._gather(entry, mirror, confirmed, (), mark)

    @staticmethod
    def _hold(entry: MirrorEntry, run: Run | None) -> tuple[int, int]:
        if run is None or not run.contents:
            return 0, 0
        entry.hold(run.first, run.last + 1, Records.of([run]))
        return sum(map(len, run.contents)), len(run.contents)

    @staticmethod
    def _hold_raw(entry: MirrorEntry, block: Block, raw: tuple[bytes, bytes]) -> tuple[int, int]:
        fields = BLOCK_HEAD.unpack_from(raw[0])
        if fields[0] != len(raw[0]) or fields[1] != len(raw[1]):
            # Its checksum was checked when it arrived.
            raise FormatError("a block whose length is not that in its head")
        entry.hold_raw(fields[6], fields[7], raw, block)
        return fields[1], fields[9]

    def truncate(self, queue: int, number: int, confirmed: int, mark: int | None = None) -> None:
        """Cut off the blocks above `number`."""
        found, mirror = self.open(queue)
        while mirror.tail and mirror.tail[-1].number > number:
            self._void(mirror, mirror.tail.pop())
        mirror.cut_history(number)
        entry = MirrorEntry(TRUNCATED, 0, found)
        entry.set_head(0, number, 0)
        self._gather(entry, mirror, confirmed, (), mark)

    def restart(
        self,
        queue: int,
        cut: int,
        history: Pairs,
        bound: int,
        have: Pairs,
        read_at: int,
        confirmed: int,
        mark: int | None = None,
        delivered: int = 0,
    ) -> None:
        """Start the queue's log again after `cut`; stored messages stay if they are in `have`. Messages up to
        `delivered` may have been delivered."""
        found, mirror = self.open(queue)
        flags = 0
        if have:
            assert all(any(a <= low and high <= b for a, b in have) for low, high in found.live)
            while mirror.tail:
                self._void(mirror, mirror.tail.pop())
            self.drop_spilled(queue)
        else:
            log = self._log
            log.drop(log.queues.pop(queue))
            found = log.queue(queue)
            disk, serial = mirror.disk, max(self._unused(), mirror.serial)
            mirror = found.set_mirror(MirrorCopy())
            mirror.set_disk(disk)
            mirror.number_from(serial)
            flags = FRESH
        mirror.begin(cut, history, bound, have, read_at)
        found.marks.cut(cut)  # The marks come with the first piece, and in blocks.
        found.advance(history[-1][0] if history else 0, cut, bound + 1, delivered)
        entry = MirrorEntry(RESTARTED, flags, found)
        entry.set_head(0, cut, 0, delivered)
        pairs = [number for pair in (*history, *have) for number in pair]
        self._gather(entry, mirror, confirmed, (bound, mirror.disk, read_at, len(history), *pairs), mark)

    def fill(
        self,
        queue: int,
        after: int,
        upto: int,
        live: Sequence[tuple[int, int]],
        runs: Iterable[Run],
        read_at: int,
        confirmed: int,
        mark: int | None = None,
        counts: Sequence[tuple[int, int, int]] = (),
        marks: Sequence[Mark] = (),
        requeued: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Store a piece: of the messages after + 1 to upto only `live` are left; `runs` are contents of some of them,
        `counts` how often some were requeued. `requeued` may have been delivered. The first piece also has the queue's
        marks."""
        found, mirror = self.open(queue)
        found.settle(outside(after + 1, upto, live))
        bundles = _together(found, runs)
        for bundle in bundles:
            self._store(found, mirror, bundle, confirmed)
        mirror.on_piece(upto, read_at)
        found.advance(0, 0, upto + 1, 0)
        found.requeue(requeued)
        found.count_returns(counts)
        found.marks.fold(marks)
        entry = MirrorEntry(FILLED, 0, found)
        entry.set_changes([], list(requeued), list(counts), list(marks))
        entry.add_bytes(16 * len(requeued) + 20 * len(counts) + marks_bytes(marks))
        flat = (number for pair in live for number in pair)
        self._gather(entry, mirror, confirmed, (after, upto, read_at, len(bundles), *flat), mark)

    def _store(self, queue: QueueLog, mirror: MirrorCopy, runs: list[Run], confirmed: int) -> None:
        held = Records.of(runs)
        count = len(held.contents)
        content_bytes = sum(map(len, held.contents))
        item = Unapplied(0, 0, runs[0].first, count, content_bytes)
        item.become(APPLIED)
        entry = MirrorEntry(FILLED, PART, queue, item)
        entry.hold(runs[0].first, runs[-1].last + 1, held)
        entry.add_bytes(content_bytes + RECORD_OVERHEAD * count)
        entry.refer_to(PENDING, (self._log.serial + 1) & SHORT)
        for low, high in held.ranges:
            queue.enqueue(low, high)
            if queue.spilled:
                queue.unspill(low, high)
        queue.index().append(entry.first, entry.next - entry.first, count, *entry.source, content_bytes)
        self._gather(entry, mirror, confirmed, (), None)

    def begin(self, queue: int, epoch: int) -> None:
        """Count messages that came in no block as a first block. Otherwise a member without any block would get the
        later blocks only, and not know what it lacks."""
        found, mirror = self.open(queue)
        if not mirror.base:
            mirror.adopt(1, epoch)
            found.advance(epoch, 1, 0, 0)

    def drop_spilled(self, queue: int) -> None:
        """Drop spilled messages: they are not part of a mirrored copy."""
        found, _ = self.open(queue)
        if found.spilled.first is not None and found.spilled.last is not None:
            found.unspill(found.spilled.first, found.spilled.last)

    def complete(self, queue: int, read_at: int, confirmed: int, mark: int | None = None) -> None:
        found, mirror = self.open(queue)
        mirror.on_complete(read_at)
        found.marks.tidy()
        self._gather(MirrorEntry(COMPLETED, 0, found), mirror, confirmed, (read_at,), mark)

    def release(self, queue: int, blocks: Sequence[Block]) -> None:
        """End the mirroring of a queue of which this is the remaining copy: all its blocks take effect. `blocks`: the
        unapplied ones. From now on its blocks are appended with `Log.append`."""
        found, mirror = self.open(queue)
        assert len(blocks) == len(mirror.tail)
        if blocks:
            self.apply(blocks)
        self._gather(MirrorEntry(RELEASED, 0, found), mirror, mirror.base, (), None)
        mirror.release()

    def _gather(
        self, entry: MirrorEntry, mirror: MirrorCopy, confirmed: int, more: tuple[int, ...], mark: int | None
    ) -> None:
        is_first = not mirror.begun
        self._top = max(self._top, mirror.next_serial())
        if is_first:
            more = (mirror.base, mirror.history[0][0] if mirror.history else 0, *more)
        note = pack_u64((mirror.serial, confirmed, *more))
        entry.add_bytes(len(note))
        entry.set_note(note, mark, BEGUN if is_first else 0)
        self._log.gather(entry)

    def _void(self, mirror: MirrorCopy, item: Unapplied) -> None:
        item.become(VOID)
        if item.segment:
            self._count(item, -1)
            mirror.add_void(item.place)
        if item.entry is not None:
            item.entry.cut_off()
            self.voiding += 1

    # -- taking effect -----------------------------------------------------------------

    def apply(self, blocks: Sequence[Block]) -> None:
        """Let the next unapplied blocks of a queue take effect: they are confirmed."""
        queue = self._log.queues[blocks[0].queue]
        mirror = queue.mirror
        assert mirror is not None
        for block in blocks:
            item = mirror.take_first()
            assert (item.epoch, item.number) == (block.epoch, block.number), "blocks are applied in their order"
            mirror.advance(item.number)
            item.become(APPLIED)
            if item.segment:
                self._count(item, -1)
            queue.advance(item.epoch, item.number, item.first + item.count, block.delivered_through)
            if item.count:
                self._enqueue(queue, item)
            if block.requeued:
                queue.requeue(block.requeued)
            if block.counts:
                queue.count_returns(block.counts)
            if block.marks:
                queue.marks.fold(marks_of(block.number, block.marks))
                if mirror.complete:
                    queue.marks.tidy()
            if block.settled:
                queue.settle(block.settled)

    def _enqueue(self, queue: QueueLog, item: Unapplied) -> None:
        first, count = item.first, item.count
        queue.enqueue(first, item.last)
        gone = queue.gone.last
        live = count if gone is None or gone < first else queue.live.count_within(first, item.last)
        if not live:
            return
        if item.segment == PENDING:
            assert item.entry is not None
            item.entry.refer_to(PENDING, item.entry.serial & SHORT)
            queue.index().append(first, count, live, *item.entry.source, item.bytes)
        else:
            queue.index().append(first, count, live, *item.place, item.bytes)
            queue.refs.relocate(first, item.place, *item.place, item.length, item.extra)
            self._log.segment_table[item.segment].note(queue.id, first)

    def _count(self, item: Unapplied, sign: int) -> None:
        self._log.shares[item.segment].add(sign * item.weight, sign * (item.bytes + item.extra))

    def keep(self, queue: QueueLog, item: Unapplied) -> None:
        """Keep the segment of an unapplied block."""
        self._count(item, 1)
        self._log.segment_table[item.segment].note(queue.id, item.first)

    # -- events of the log ---------------------------------------------------------------

    def on_placed(self, entry: MirrorEntry, place: Written, segment: Segment) -> None:
        """Note where an entry was written."""
        queue, item = entry.queue, entry.item
        if entry.void:
            self.voiding -= 1
        entry.forget_raw()
        if self._log.queues.get(queue.id) is not queue:
            return
        if entry.flags & FRESH:
            queue.begin_at(segment.number)
        if item is None or queue.mirror is None:
            return
        item.write_by(None)
        there = (segment.number, place.offset)
        if item.state == VOID:
            queue.mirror.add_void(there)
        elif item.state == APPLIED:
            if queue.refs.relocate(item.first, entry.source, *there, place.length, place.overhead):
                segment.note(queue.id, item.first)
        else:
            if item.segment:  # It is a copy.
                self._count(item, -1)
                queue.mirror.add_void(item.place)
            item.set_place(*there, place.length, place.overhead)
            self.keep(queue, item)

    def wants(self, entry: MirrorEntry) -> bool:
        """Return whether a copy must still be written. Not if the block was applied meanwhile: then its messages are
        moved."""
        mirror, item = entry.queue.mirror, entry.item
        assert mirror is not None
        if item is not None:
            if item.state != WAITING or item.place != entry.source:
                return False
            item.write_by(entry)
        entry.set_note(pack_u64((0, mirror.base, mirror.serial if mirror.begun else 0)))
        return True

    def on_dropped(self, entry: MirrorEntry) -> None:
        """Note that an entry is not written: its queue was forgotten."""
        if entry.void:
            self.voiding -= 1

    def clear(self, queue: QueueLog) -> None:
        for item in queue.mirror.tail if queue.mirror is not None else ():
            if item.segment:
                self._count(item, -1)

    # -- reading -----------------------------------------------------------------------

    def fetch(
        self, queue: int, after: int, bound: int, have: Sequence[tuple[int, int]], bytes_max: int, count_max: int = 0
    ) -> tuple[list[tuple[int, int]], int, Load | None]:
        """Return (the live messages of after + 1 to upto, upto, a job that reads the contents of those not in `have`):
        at most `count_max` of them, unless that is 0. If `upto` is below the bound, there are more."""
        found = self._log.queues.get(queue)
        if found is None:
            return [], bound, None
        marked = list(found.redelivered.ranges(after + 1, bound, limit=PIECE_RANGES_MAX + 1))
        if len(marked) > PIECE_RANGES_MAX:
            bound = marked[PIECE_RANGES_MAX - 1][1]
        live = list(found.live.ranges(after + 1, bound, limit=PIECE_RANGES_MAX + 1))
        if len(live) > PIECE_RANGES_MAX:
            bound = live[PIECE_RANGES_MAX - 1][1]
        for low, high in live if count_max else ():
            if high - low + 1 > count_max:
                bound = min(bound, low + count_max - 1)
                break
            count_max -= high - low + 1
        places: list[Place] = []
        pending: list[Run] = []
        upto, room = bound, bytes_max
        for ref in found.refs.from_seq(after + 1):
            if ref.first > bound:
                break
            wanted = without(list(found.live.ranges(max(after + 1, ref.first), min(bound, ref.last))), have)
            if not wanted:
                continue
            if room <= 0:
                upto = wanted[0][0] - 1
                break
            each = max(ref.bytes // ref.live, 1)
            taken, cut = _at_most(wanted, max(room // each, 1))
            self._log.plan(ref, taken, places, pending)
            room -= each * sum(high - low + 1 for low, high in taken)
            if cut:
                upto = taken[-1][1]
                break
        live = list(found.live.ranges(after + 1, upto)) if upto > after else []
        if not places and not pending:
            return live, upto, None
        return live, upto, self._log.make_load(found, places, pending, after + 1, upto)

    def spilled(self, queue: int, bytes_max: int) -> Load | None:
        """Return a job that reads the first spilled messages: blocks of about so many bytes, at least one."""
        found = self._log.queues.get(queue)
        if found is None or found.spilled.first is None or found.spilled.last is None:
            return None
        places: list[Place] = []
        pending: list[Run] = []
        first = found.spilled.first
        last = self._log.plan_range(found, True, first, found.spilled.last, bytes_max, places, pending)
        return self._log.make_load(found, places, pending, first, last)

    def lost(self, queue: int) -> list[tuple[int, int]]:
        """Return the message numbers that are not stored, up to the highest one ever used."""
        found = self._log.queues.get(queue)
        return outside(1, found.next_seq - 1, list(found.live)) if found is not None else []


def outside(low: int, high: int, ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the parts of low..high that are in none of the ascending ranges."""
    found = []
    for first, last in ranges:
        if first > high:
            break
        if first > low:
            found.append((low, first - 1))
        low = max(low, last + 1)
    if low <= high:
        found.append((low, high))
    return found


def without(ranges: list[tuple[int, int]], others: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the ranges without the others. Both are ascending."""
    if not others:
        return ranges
    return [piece for low, high in ranges for piece in outside(low, high, [o for o in others if o[1] >= low])]


def _at_most(ranges: list[tuple[int, int]], count: int) -> tuple[list[tuple[int, int]], bool]:
    """Return the first `count` numbers of some ranges, and whether there are more."""
    taken: list[tuple[int, int]] = []
    for low, high in ranges:
        if count <= 0:
            return taken, True
        taken.append((low, min(high, low + count - 1)))
        if high > taken[-1][1]:
            return taken, True
        count -= high - low + 1
    return taken, False


def _together(queue: QueueLog, runs: Iterable[Run]) -> list[list[Run]]:
    """Return the messages that the queue lacks, in groups for one reference each: no stored message is in between."""
    bundles: list[list[Run]] = []
    for run in runs:
        for low, high in unknown_part(queue, run.first, run.last):
            piece = run.cut(low - run.first, high - run.first + 1)
            if bundles and not queue.live.count_within(bundles[-1][-1].last + 1, low - 1):
                bundles[-1].append(piece)
            else:
                bundles.append([piece])
    return bundles


def unknown_part(queue: QueueLog, first: int, last: int) -> list[tuple[int, int]]:
    """Return the part of first..last that is neither stored nor settled. A mirror that is being filled, or gets a block
    again, may get messages a second time."""
    return outside(first, last, sorted([*queue.live.ranges(first, last), *queue.gone.ranges(first, last)]))
