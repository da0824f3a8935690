"""The state of a mirrored queue in the log, besides that of any queue. `storage.mirror_log` uses it."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

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
        self.history: list[tuple[int, int]] = [(epoch, 1)] if base else []  # (epoch, number of its first block)
        self.complete = True
        self.read_at = 0
        self.cut = 0  # While the copy is not complete: where its blocks start.
        self.bound = 0
        self.after = 0
        self.have: Pairs = ()
        self.marked = False  # While the copy is not complete: it has the queue's marks.
        self.disk = 0  # Raised after each loss of synced data.
        self.tail: deque[Unapplied] = deque()  # The blocks base + 1 to the end, without gaps.
        self.void: set[tuple[int, int]] = set()  # Places of blocks that were cut off, or were moved.
        # The rest is used at start only.
        self.blocks: list[Block] = []  # The blocks of `tail`.
        self.broken = False  # A record is missing: all later ones are void.
        self.reached = (0, 0)  # The place of the last good record.

    @property
    def end(self) -> int:
        return self.tail[-1].number if self.tail else self.base

    def find(self, epoch: int, number: int) -> Unapplied | None:
        """Return the unapplied block with this number, if it is of this epoch."""
        at = number - self.base - 1
        if 0 <= at < len(self.tail) and self.tail[at].epoch == epoch:
            return self.tail[at]
        return None

    def take_blocks(self) -> tuple[Block, ...]:
        """Return the blocks that were unapplied at start, once; later only the member of the ring has them."""
        blocks, self.blocks = tuple(self.blocks), []
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
            history.append((epoch, number))
            del history[:-HISTORY_MAX]

    def cut_history(self, number: int) -> None:
        while self.history and self.history[-1][1] > number:
            self.history.pop()

    def begin(self, cut: int, history: Iterable[tuple[int, int]], bound: int, have: Pairs, read_at: int) -> None:
        """Start the queue's log again after the cut."""
        self.base, self.history = cut, list(history)
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
        (
            queue, mirror.serial, mirror.base, flags, mirror.read_at, mirror.cut, mirror.bound, mirror.after,
            mirror.disk, *counts,
        ) = numbers[:_HEAD_FIELDS]  # fmt: skip
        mirror.complete, mirror.begun, mirror.released = bool(flags & 1), bool(flags & 2), bool(flags & 4)
        mirror.marked = bool(flags & 8)
        at = _HEAD_FIELDS
        if len(numbers) != at + 2 * sum(counts[:3]) + _ITEM_FIELDS * counts[3]:
            raise FormatError("a mirrored queue's parts do not fit")
        sections: list[list[tuple[int, int]]] = []
        for count in counts[:3]:
            flat = numbers[at : at + 2 * count]
            sections.append(list(zip(flat[::2], flat[1::2], strict=True)))
            at += 2 * count
        mirror.history, mirror.have, mirror.void = sections[0], tuple(sections[1]), set(sections[2])
        for start in range(at, len(numbers), _ITEM_FIELDS):
            item = Unapplied(*numbers[start : start + 5])
            item.segment, item.offset, item.length, item.extra = numbers[start + 5 : start + _ITEM_FIELDS]
            mirror.tail.append(item)
        return queue, mirror
