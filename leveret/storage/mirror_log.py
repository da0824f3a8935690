"""Mirrored queues in the log: blocks that do not count yet, and how a start tells which do.

A queue's own blocks count as soon as they are appended. Those of a mirrored queue are appended and synced in the same
groups, but take effect (`apply`) only when they are confirmed, and until then may be cut off again. So for a mirrored
queue, what is in the log and what counts are different things:

    segments:   … 41 42 43 44 45 46 47      44..47: in the log, `Mirror.tail`: where they are, and no more
    QueueLog:   the sum of … 43             live, gone, references: as for any queue

**Order.** What other queues' blocks add up to does not depend on their order. Here it does: a block may be cut off, and
another take its number, and its messages' numbers. So each record has a *note*: the queue's own serial number of it,
and what was confirmed when it was written. A start goes through them in this order and does again what was done:
before each record, the blocks up to what it calls confirmed take effect; TRUNCATED drops waiting blocks; RESTARTED
drops them all, and with FRESH everything; FILLED adds and settles; and the blocks that wait in the end are handed out.
Nothing is ever written for the sake of a confirmed number alone.

**Serial numbers have no gaps**, which makes loss visible. If a record is missing, all that come after it are void: the
log ends before the damage (see `replay`). A queue that is forgotten and returns, or begins anew from nothing, goes on
with higher numbers, and the first of its records says that it is the first. Otherwise, were the record lost that voids
its former life, the new one could pass for the continuation of the old.

**Checkpoints.** A checkpoint holds the state after some serial number; records up to it that are read again behind the
checkpoint only say where blocks lie. The waiting blocks are in it by epoch and number, which name a block for ever. Not
in it are the references to contents, which a start takes from the segments. Therefore it must know which blocks there
never were (*void* places): a block cut off may have held messages with the numbers of others that came instead.

**Room.** A waiting block keeps its segment alive. If its segment is emptied, it is written again as it is (COPY), and
its former place is void. Applied messages are moved as those of any queue, without those that are settled; but what
settled them is perhaps nowhere noted as confirmed, and after a start that block would wait and those messages live. So
a copy, too, notes what is applied. It has no serial number of its own and names the last one: if that record is
missing, its word does not count.

**Whole blocks.** Messages that are settled before they are written are left out of other queues' blocks. Here a block
is one thing, to be sent on and compared; it is written as it is, transient messages included. These stay over a restart
of one node: a copy that lacked them would no longer be what its numbers say.

**Filling** (a member that lacks messages gets them in pieces) is several records, one for each stretch of contents and
one that says what lives; the contents count only if that last one is there.

**Spilled messages** of a queue that becomes mirrored are on disk, but in blocks that a start ignores. They are read
(`spilled`) and stored again, by fillings that say nothing of others; with that they are spilled no longer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

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
from leveret.storage.format.queue_block import Block, Run
from leveret.storage.format.queue_marks import Mark, marks_bytes, marks_of
from leveret.storage.segments.content_index import PENDING, SHORT
from leveret.storage.segments.disk_jobs import RECORD_OVERHEAD, Load, MirrorEntry, Written
from leveret.storage.segments.mirror_copy import APPLIED, VOID, WAITING, Mirror, Pairs, Unapplied
from leveret.storage.segments.queue_index import QueueLog

if TYPE_CHECKING:
    from leveret.storage.log import Log, Segment
    from leveret.storage.segments.block_reader import Place

FETCH_RANGES_MAX = 16_384  # In one answer: what a frame can hold.


class Mirrors:
    """The mirrored queues of a log. `mark`: a number of the caller's, reported by `Write.marks` when all that the call
    wrote is durable."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.voiding = 0  # Blocks that were cut off before their place was known.
        self._top = 0  # No record has a higher serial number.

    def open(self, queue: int) -> tuple[QueueLog, Mirror]:
        """The queue, which from now on is mirrored if it was not."""
        log = self._log
        if log.stopped:
            raise LogStopped(log.stopped)
        found = log.queue(queue)
        if found.mirror is None:
            found.mirror = Mirror(found.number, found.epoch)
            found.mirror.serial = self._unused()
        elif found.mirror.released:
            found.mirror.adopt(found.number, found.epoch)
        return found, found.mirror

    def is_mirrored(self, queue: int) -> bool:
        """Whether the log takes it for a queue that is."""
        found = self._log.queues.get(queue)
        return found is not None and found.mirror is not None and not found.mirror.released

    def unmark(self, queue: int, ranges: Iterable[tuple[int, int]]) -> None:
        """Whatever blocks say, nobody was given these. After a start, what they say counts again."""
        found = self._log.queues.get(queue)
        if found is not None:
            for low, high in ranges:
                found.redelivered.remove(low, high)

    def _unused(self) -> int:
        """A serial number above all that an earlier life of some queue had here. Each of them took more than one byte
        of the log, so its length is one."""
        current = self._log.current
        position = current.number << 32 | current.length if current is not None else 0
        self._top = max(position, self._top)
        return self._top

    # -- writing -----------------------------------------------------------------------

    def append(self, block: Block, raw: tuple[bytes, bytes] | None, confirmed: int, mark: int | None = None) -> None:
        """A block that waits. `raw`: its meta and body, if it came as bytes from another node."""
        queue, mirror = self.open(block.queue)
        assert block.number == mirror.end + 1, f"block {block.number} behind {mirror.end}"
        entry = MirrorEntry(MIRRORED, 0, queue)
        entry.epoch, entry.number, entry.time_ms = block.epoch, block.number, block.time_ms
        entry.delivered_through = block.delivered_through
        entry.settled, entry.requeued, entry.counts = block.settled, block.requeued, block.counts
        entry.marks = marks_of(block.number, block.marks)
        if raw is not None:
            content_bytes, count = self._hold_raw(entry, block, raw)
        else:
            content_bytes, count = self._hold(entry, block.enqueued)
        if content_bytes > CONTENT_BYTES_MAX:
            raise ValueError(f"a block of {content_bytes} bytes; the log takes {CONTENT_BYTES_MAX}")
        entry.bytes = content_bytes + RECORD_OVERHEAD * (count + len(block.settled) + len(block.requeued))
        entry.bytes += marks_bytes(entry.marks)
        item = entry.item = Unapplied(block.epoch, block.number, entry.first, count, content_bytes)
        item.entry = entry
        mirror.tail.append(item)
        mirror.note_epoch(block.epoch, block.number)
        self._gather(entry, mirror, confirmed, (), mark)

    @staticmethod
    def _hold(entry: MirrorEntry, run: Run | None) -> tuple[int, int]:
        if run is None or not run.contents:
            return 0, 0
        entry.first, entry.next = run.first, run.last + 1
        entry.held = Records.of([run])
        return sum(map(len, run.contents)), len(run.contents)

    @staticmethod
    def _hold_raw(entry: MirrorEntry, block: Block, raw: tuple[bytes, bytes]) -> tuple[int, int]:
        fields = BLOCK_HEAD.unpack_from(raw[0])
        if fields[0] != len(raw[0]) or fields[1] != len(raw[1]):
            raise FormatError("a block that is not what its head says")  # Its sum was looked at when it came.
        entry.raw, entry.packed = raw, block
        entry.first, entry.next = fields[6], fields[7]
        return fields[1], fields[9]

    def truncate(self, queue: int, number: int, confirmed: int, mark: int | None = None) -> None:
        """Blocks above `number` never were."""
        found, mirror = self.open(queue)
        while mirror.tail and mirror.tail[-1].number > number:
            self._void(mirror, mirror.tail.pop())
        mirror.cut_history(number)
        entry = MirrorEntry(TRUNCATED, 0, found)
        entry.number = number
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
        """The log begins anew behind `cut`; what is stored stays, if it is named in `have`. Messages up to `delivered`
        may have been."""
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
            found.mirror, old = Mirror(), mirror
            mirror = found.mirror
            mirror.disk, mirror.serial = old.disk, max(self._unused(), old.serial)
            flags = FRESH
        mirror.begin(cut, history, bound, have, read_at)
        found.marks.cut(cut)  # They come with the first piece, and in blocks.
        found.advance(history[-1][0] if history else 0, cut, bound + 1, delivered)
        entry = MirrorEntry(RESTARTED, flags, found)
        entry.number, entry.delivered_through = cut, delivered
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
    ) -> None:
        """Of the messages after + 1 to upto only `live` are left; these are contents of some, and how often some were
        given back. With the first piece also the queue's marks."""
        found, mirror = self.open(queue)
        found.settle(outside(after + 1, upto, live))
        bundles = _together(found, runs)
        for bundle in bundles:
            self._store(found, mirror, bundle, confirmed)
        mirror.after, mirror.read_at, mirror.marked = upto, read_at, not mirror.complete
        found.advance(0, 0, upto + 1, 0)
        found.count_returns(counts)
        found.marks.fold(marks)
        entry = MirrorEntry(FILLED, 0, found)
        entry.counts = list(counts)
        entry.marks = list(marks)
        entry.bytes = 20 * len(counts) + marks_bytes(marks)
        flat = (number for pair in live for number in pair)
        self._gather(entry, mirror, confirmed, (after, upto, read_at, len(bundles), *flat), mark)

    def _store(self, queue: QueueLog, mirror: Mirror, runs: list[Run], confirmed: int) -> None:
        entry = MirrorEntry(FILLED, PART, queue)
        entry.first, entry.next = runs[0].first, runs[-1].last + 1
        entry.held = Records.of(runs)
        count = len(entry.held.contents)
        content_bytes = sum(map(len, entry.held.contents))
        entry.bytes = content_bytes + RECORD_OVERHEAD * count
        item = entry.item = Unapplied(0, 0, entry.first, count, content_bytes)
        item.state = APPLIED
        entry.source = (PENDING, (self._log.serial + 1) & SHORT)
        for low, high in entry.held.ranges:
            queue.enqueue(low, high)
            if queue.spilled:
                queue.unspill(low, high)
        queue.refs.append(entry.first, entry.next - entry.first, count, *entry.source, content_bytes)
        self._gather(entry, mirror, confirmed, (), None)

    def begin(self, queue: int, epoch: int) -> None:
        """Messages that came in no block are stored: as if a first one had held them. Else a member that has no block
        at all would be given those that follow, and lack nothing that it knows of."""
        found, mirror = self.open(queue)
        if not mirror.base:
            mirror.adopt(1, epoch)
            found.advance(epoch, 1, 0, 0)

    def drop_spilled(self, queue: int) -> None:
        """The copy goes on as one of many, and they are no part of it."""
        found, _ = self.open(queue)
        if found.spilled.first is not None and found.spilled.last is not None:
            found.unspill(found.spilled.first, found.spilled.last)

    def complete(self, queue: int, read_at: int, confirmed: int, mark: int | None = None) -> None:
        found, mirror = self.open(queue)
        mirror.complete, mirror.read_at, mirror.marked = True, read_at, False
        found.marks.tidy()
        self._gather(MirrorEntry(COMPLETED, 0, found), mirror, confirmed, (read_at,), mark)

    def release(self, queue: int, blocks: Sequence[Block]) -> None:
        """The queue is no longer mirrored, and this is the copy that goes on: all its blocks count. `blocks`: those
        that wait. From now on it is written to with `Log.append`."""
        found, mirror = self.open(queue)
        assert len(blocks) == len(mirror.tail)
        if blocks:
            self.apply(blocks)
        self._gather(MirrorEntry(RELEASED, 0, found), mirror, mirror.base, (), None)
        mirror.released = True

    def _gather(
        self, entry: MirrorEntry, mirror: Mirror, confirmed: int, more: tuple[int, ...], mark: int | None
    ) -> None:
        mirror.serial += 1
        self._top = max(self._top, mirror.serial)
        if not mirror.begun:
            mirror.begun = True
            entry.flags |= BEGUN
            more = (mirror.base, mirror.history[0][0] if mirror.history else 0, *more)
        entry.note = pack_u64((mirror.serial, confirmed, *more))
        entry.bytes += len(entry.note)
        entry.mark = mark
        self._log.gather(entry)

    def _void(self, mirror: Mirror, item: Unapplied) -> None:
        item.state = VOID
        if item.segment:
            self._count(item, -1)
            mirror.void.add(item.place)
        if item.entry is not None:
            item.entry.void = True
            self.voiding += 1

    # -- taking effect -----------------------------------------------------------------

    def apply(self, blocks: Sequence[Block]) -> None:
        """The next waiting blocks of a queue are confirmed."""
        queue = self._log.queues[blocks[0].queue]
        mirror = queue.mirror
        assert mirror is not None
        for block in blocks:
            item = mirror.tail.popleft()
            assert (item.epoch, item.number) == (block.epoch, block.number), "blocks are applied in their order"
            mirror.base = item.number
            item.state = APPLIED
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
            item.entry.source = (PENDING, item.entry.serial & SHORT)
            queue.refs.append(first, count, live, *item.entry.source, item.bytes)
        else:
            queue.refs.append(first, count, live, *item.place, item.bytes)
            queue.refs.relocate(first, item.place, *item.place, item.length, item.extra)
            self._log.segment_table[item.segment].note(queue.id, first)

    def _count(self, item: Unapplied, sign: int) -> None:
        share = self._log.shares[item.segment]
        share.live += sign * item.weight
        share.live_bytes += sign * (item.bytes + item.extra)

    def keep(self, queue: QueueLog, item: Unapplied) -> None:
        """It waits where it is: its segment must stay."""
        self._count(item, 1)
        self._log.segment_table[item.segment].note(queue.id, item.first)

    # -- what the log reports ------------------------------------------------------------

    def on_placed(self, entry: MirrorEntry, place: Written, segment: Segment) -> None:
        """An entry was written."""
        queue, item = entry.queue, entry.item
        if entry.void:
            self.voiding -= 1
        entry.raw = entry.packed = None
        if self._log.queues.get(queue.id) is not queue:
            return
        if entry.flags & FRESH:
            queue.floor = segment.number
        if item is None or queue.mirror is None:
            return
        item.entry = None
        there = (segment.number, place.offset)
        if item.state == VOID:
            queue.mirror.void.add(there)
        elif item.state == APPLIED:
            if queue.refs.relocate(item.first, entry.source, *there, place.length, place.overhead):
                segment.note(queue.id, item.first)
        else:
            if item.segment:  # This is a copy.
                self._count(item, -1)
                queue.mirror.void.add(item.place)
            item.segment, item.offset = there
            item.length, item.extra = place.length, place.overhead
            self.keep(queue, item)

    def wants(self, entry: MirrorEntry) -> bool:
        """Whether a copy is still worth writing. Applied meanwhile: its messages may be, one by one."""
        mirror, item = entry.queue.mirror, entry.item
        assert mirror is not None
        if item is not None:
            if item.state != WAITING or item.place != entry.source:
                return False
            item.entry = entry
        entry.note = pack_u64((0, mirror.base, mirror.serial if mirror.begun else 0))
        return True

    def on_dropped(self, entry: MirrorEntry) -> None:
        """It is not written after all, for its queue was forgotten."""
        if entry.void:
            self.voiding -= 1

    def clear(self, queue: QueueLog) -> None:
        for item in queue.mirror.tail if queue.mirror is not None else ():
            if item.segment:
                self._count(item, -1)

    # -- reading -----------------------------------------------------------------------

    def fetch(
        self, queue: int, after: int, bound: int, have: Sequence[tuple[int, int]], bytes_max: int
    ) -> tuple[list[tuple[int, int]], int, Load | None]:
        """(what lives of after + 1 to upto, upto, a job that reads contents of what lives there and is not in `have`).
        An `upto` below the bound: there is more."""
        found = self._log.queues.get(queue)
        if found is None:
            return [], bound, None
        live = list(found.live.ranges(after + 1, bound, limit=FETCH_RANGES_MAX + 1))
        if len(live) > FETCH_RANGES_MAX:
            bound = live[FETCH_RANGES_MAX - 1][1]
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
        """A job that reads the first of the messages that are spilled: blocks of about so many bytes, at least one."""
        found = self._log.queues.get(queue)
        if found is None or found.spilled.first is None or found.spilled.last is None:
            return None
        places: list[Place] = []
        pending: list[Run] = []
        first = found.spilled.first
        last = self._log.plan_range(found, True, first, found.spilled.last, bytes_max, places, pending)
        return self._log.make_load(found, places, pending, first, last)

    def lost(self, queue: int) -> list[tuple[int, int]]:
        """Message numbers that are not stored, up to the highest that ever was."""
        found = self._log.queues.get(queue)
        return outside(1, found.next_seq - 1, list(found.live)) if found is not None else []


def outside(low: int, high: int, ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """What of low..high is in none of the ranges, which ascend."""
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
    """The ranges less the others. Both ascend."""
    if not others:
        return ranges
    return [piece for low, high in ranges for piece in outside(low, high, [o for o in others if o[1] >= low])]


def _at_most(ranges: list[tuple[int, int]], count: int) -> tuple[list[tuple[int, int]], bool]:
    """The first `count` numbers of some ranges, and whether there are more."""
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
    """Messages that the queue lacks, in bundles for one reference each: none that is stored elsewhere lies between."""
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
    """What of first..last has neither been stored nor settled. A mirror that fills up from below, or is sent a block
    again, may bring messages a second time."""
    return outside(first, last, sorted([*queue.live.ranges(first, last), *queue.gone.ranges(first, last)]))
