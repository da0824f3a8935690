"""The state of a mirrored queue in the log, besides that of any queue. `storage.mirror_log` uses it."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from leveret.base.shared_values import NO_LIST, NO_SET, shared_if_short
from leveret.storage.format.errors import FormatError
from leveret.storage.format.mirror_limits import HISTORY_MAX
from leveret.storage.segments.content_index import PENDING

if TYPE_CHECKING:
    from leveret.storage.format.block_format import Header
    from leveret.storage.format.queue_block import Block
    from leveret.storage.segments.disk_jobs import MirrorEntry

Pairs = tuple[tuple[int, int], ...]

WAITING, APPLIED, VOID = 0, 1, 2
_ITEM_FIELDS = 9
_HEAD_FIELDS = 13


class Unapplied:
    """A block that is in the log and has no effect yet."""

    __slots__ = (
        "epoch", "number", "first", "count", "bytes", "segment", "offset", "length", "extra", "state", "entry",
        "header",
    )  # fmt: skip

    def __init__(self, epoch: int, number: int, first: int, count: int, content_bytes: int) -> None:
        self.epoch = epoch
        self.number = number
        self.first = first  # It has the messages first..first+count-1.
        self.count = count
        self.bytes = content_bytes
        self.segment = PENDING  # Where it is written; PENDING: it is not yet.
        self.offset = 0
        self.length = 0
        self.extra = 0
        self.state = WAITING
        self.entry: MirrorEntry | None = None  # It, or a copy of it, is to be written.
        self.header: Header | None = None  # Used at start only.

    def become(self, state: int) -> None:
        self.state = state

    def write_by(self, entry: MirrorEntry | None) -> None:
        """Note the entry that writes it, or a copy of it; None: it is written."""
        self.entry = entry

    def set_place(self, segment: int, offset: int, length: int, extra: int, header: Header | None = None) -> None:
        self.segment, self.offset, self.length, self.extra, self.header = segment, offset, length, extra, header

    def forget_header(self) -> None:
        self.header = None

    @property
    def place(self) -> tuple[int, int]:
        return self.segment, self.offset

    @property
    def last(self) -> int:
        return self.first + self.count - 1

    @property
    def weight(self) -> int:
        """Return its part of the live count of its segment: at least 1, because a block without messages must stay too.
        """
        return self.count or 1


class MirrorCopy:
    __slots__ = (
        "serial", "begun", "base", "history", "complete", "read_at", "cut", "bound", "after", "have", "disk", "tail",
        "marked", "void", "blocks", "broken", "reached", "released",
    )  # fmt: skip

    def __init__(self, base: int = 0, epoch: int = 0) -> None:
        self.serial = 0  # Of the queue's last record.
        self.begun = False  # A record was written.
        self.released = False  # The queue is no longer mirrored. Void places stay void.
        self.base = base  # Blocks up to here have taken effect.
        # (epoch, number of its first block)
        self.history: Pairs = shared_if_short(((epoch, 1),)) if base else ()
        self.complete = True
        self.read_at = 0
        self.cut = 0  # While the copy is not complete: where its blocks start.
        self.bound = 0
        self.after = 0
        self.have: Pairs = ()
        self.marked = False  # While the copy is not complete: it has the queue's marks.
        self.disk = 0  # Raised after each loss of synced data.
        self.tail: list[Unapplied] = NO_LIST  # The blocks base + 1 to the end, without gaps.
        # Places of blocks that were cut off, or were moved.
        self.void: set[tuple[int, int]] | frozenset[tuple[int, int]] = NO_SET
        # The rest is used at start only.
        self.blocks: list[Block] = NO_LIST  # The blocks of `tail`.
        self.broken = False  # A record is missing: all later ones are void.
        self.reached = (0, 0)  # The place of the last good record.

    def add_void(self, *places: tuple[int, int]) -> None:
        """Note the places of blocks that were cut off, or were moved."""
        if places:
            self.void = self.void if isinstance(self.void, set) else set()
            self.void.update(places)

    def number_from(self, serial: int) -> None:
        """Give the next record a higher number than this."""
        self.serial = serial

    def next_serial(self) -> int:
        """Return the number of the next record, which is being written."""
        self.serial += 1
        self.begun = True
        return self.serial

    def on_record(self, serial: int, place: tuple[int, int]) -> None:
        """At the start: take over a record."""
        self.serial, self.begun, self.reached = serial, True, place

    def reach(self, place: tuple[int, int]) -> None:
        self.reached = max(self.reached, place)

    def break_off(self) -> None:
        """Take all later records as void: one is missing."""
        self.broken = True

    def set_disk(self, disk: int) -> None:
        self.disk = disk

    def advance(self, number: int) -> None:
        """Note that the block with this number has taken effect, the next one."""
        self.base = number

    def on_piece(self, upto: int, read_at: int) -> None:
        """Note that all messages up to this one are there, while the copy is filled."""
        self.after, self.read_at, self.marked = upto, read_at, not self.complete

    def on_complete(self, read_at: int) -> None:
        self.complete, self.read_at, self.marked = True, read_at, False

    def release(self) -> None:
        """End the mirroring of the queue."""
        self.released = True

    def lack(self, bound: int, have: Pairs) -> None:
        """Have the copy filled up to this message, except for the ranges in `have`."""
        self.complete, self.cut, self.bound, self.after, self.have = False, self.base, bound, 0, have
        self.marked = False

    @property
    def end(self) -> int:
        return self.tail[-1].number if self.tail else self.base

    def find(self, epoch: int, number: int) -> Unapplied | None:
        """Return the unapplied block with this number, if it is of this epoch."""
        at = number - self.base - 1
        if 0 <= at < len(self.tail) and self.tail[at].epoch == epoch:
            return self.tail[at]
        return None

    def add_item(self, item: Unapplied) -> None:
        """Note the next block that has no effect yet."""
        self.tail = self.tail or []
        self.tail.append(item)

    def take_first(self) -> Unapplied:
        """Return the next block that takes effect, which it does now."""
        item = self.tail.pop(0)
        if not self.tail:
            self.tail = NO_LIST
        return item

    def add_block(self, block: Block) -> None:
        """At the start: note the next block of `tail`."""
        self.blocks = self.blocks or []
        self.blocks.append(block)

    def take_blocks(self) -> tuple[Block, ...]:
        """Return the blocks that were unapplied at start, once; later only the member of the ring has them."""
        blocks, self.blocks = tuple(self.blocks), NO_LIST
        assert len(blocks) == len(self.tail), "blocks wait that nobody has in memory"
        return blocks

    def unreferenced(self, segment: int) -> set[int]:
        """Return the offsets of blocks in a segment to which the queue must not refer."""
        found = {offset for number, offset in self.void if number == segment}
        found.update(item.offset for item in self.tail if item.segment == segment)
        return found

    def note_epoch(self, epoch: int, number: int) -> None:
        history = self.history
        if not history or history[-1][0] != epoch:
            self.history = shared_if_short((*history[1 - HISTORY_MAX :], (epoch, number)))

    def cut_history(self, number: int) -> None:
        self.history = shared_if_short(tuple(item for item in self.history if item[1] <= number))

    def begin(self, cut: int, history: Iterable[tuple[int, int]], bound: int, have: Pairs, read_at: int) -> None:
        """Start the queue's log again after the cut."""
        self.base, self.history = cut, shared_if_short(tuple(history))
        self.complete, self.read_at = cut == 0, read_at
        self.cut, self.bound, self.after, self.have, self.marked = cut, bound, 0, have, False

    def adopt(self, base: int, epoch: int) -> None:
        """Make the queue mirrored again. Its blocks so far are the beginning of the ring's log."""
        self.begin(base, [(epoch, 1)] if base else [], 0, (), 0)
        self.complete, self.cut = True, 0
        if self.released:
            self.disk = 0  # Losses concerned the earlier ring only.
        self.begun = self.released = False

    # -- in a checkpoint ---------------------------------------------------------------

    def pack(self, queue: int, segments: Collection[int]) -> array[int]:
        """Return the state as numbers. `segments`: those that the checkpoint names; void places in others do not
        matter."""
        if self.void:
            self.void = {place for place in self.void if place[0] in segments}
        numbers = array(
            "Q",
            (
                queue, self.serial, self.base,
                self.complete | self.begun << 1 | self.released << 2 | self.marked << 3, self.read_at, self.cut,
                self.bound, self.after, self.disk, len(self.history), len(self.have), len(self.void),
                len(self.tail),
            ),
        )  # fmt: skip
        for pairs in (self.history, self.have, sorted(self.void)):
            for pair in pairs:
                numbers.extend(pair)
        for item in self.tail:
            numbers.extend(
                (
                    item.epoch, item.number, item.first, item.count, item.bytes, item.segment, item.offset, item.length,
                    item.extra,
                )
            )  # fmt: skip
        return numbers

    @classmethod
    def unpack(cls, numbers: array[int]) -> tuple[int, MirrorCopy]:
        """Return (queue, its state)."""
        if len(numbers) < _HEAD_FIELDS:
            raise FormatError("a mirrored queue is cut off")
        mirror = cls()
        queue, *counts = mirror._unpack_head(numbers[:_HEAD_FIELDS])
        at = _HEAD_FIELDS
        if len(numbers) != at + 2 * sum(counts[:3]) + _ITEM_FIELDS * counts[3]:
            raise FormatError("a mirrored queue's parts do not fit")
        sections: list[list[tuple[int, int]]] = []
        for count in counts[:3]:
            flat = numbers[at : at + 2 * count]
            sections.append(list(zip(flat[::2], flat[1::2], strict=True)))
            at += 2 * count
        history, have, void = sections
        mirror._unpack_sections(history, tuple(have), set(void))
        for start in range(at, len(numbers), _ITEM_FIELDS):
            item = Unapplied(*numbers[start : start + 5])
            segment, offset, length, extra = numbers[start + 5 : start + _ITEM_FIELDS]
            item.set_place(segment, offset, length, extra)
            mirror.add_item(item)
        return queue, mirror

    def _unpack_head(self, numbers: array[int]) -> list[int]:
        """Return the queue, and the lengths of the sections."""
        (
            queue, self.serial, self.base, flags, self.read_at, self.cut, self.bound, self.after, self.disk, *counts,
        ) = numbers  # fmt: skip
        self.complete, self.begun, self.released = bool(flags & 1), bool(flags & 2), bool(flags & 4)
        self.marked = bool(flags & 8)
        return [queue, *counts]

    def _unpack_sections(self, history: list[tuple[int, int]], have: Pairs, void: set[tuple[int, int]]) -> None:
        self.history, self.have, self.void = shared_if_short(tuple(history)), have, void or NO_SET
