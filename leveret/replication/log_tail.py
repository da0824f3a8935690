"""The tail of a log: its newest blocks, and the epochs of all earlier numbers.

A member holds all blocks that are not confirmed, and for a while some that are, for neighbours that lack them. Blocks
at or below `base` are known only by their sum. The *history* (epoch, number of its first block) reaches further back:
two logs are equal up to the last number at which both have the same epoch with the same first number, because one epoch
has one master, and a master numbers without gaps.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from leveret.base.shared_values import NO_LIST, shared_if_short
from leveret.replication.packed_block import block_bytes, message_count
from leveret.replication.ring_frames import History, ProtocolError
from leveret.storage.format.mirror_limits import HISTORY_MAX
from leveret.storage.format.queue_block import Block


def epoch_of(history: Iterable[tuple[int, int]], number: int) -> tuple[int, int]:
    """Return the epoch of a number, and the first number of that epoch."""
    found = (0, 0)
    for item in history:
        if item[1] > number:
            break
        found = item
    return found


class Tail:
    """The blocks base + 1 to end of a log, and its history."""

    __slots__ = ("base", "end", "last_epoch", "history", "_blocks", "_sums", "_base_sum", "_counts", "_base_count")

    def __init__(self, base: int = 0, history: Iterable[tuple[int, int]] = (), blocks: Iterable[Block] = ()) -> None:
        self.base = self.end = base
        self.history: History = shared_if_short(tuple(history))
        self.last_epoch = self.history[-1][0] if self.history else 0
        # A queue at rest keeps no blocks.
        self._blocks: list[Block] = NO_LIST
        self._sums: list[int] = NO_LIST  # Bytes ever appended, up to each block.
        self._base_sum = 0
        self._counts: list[int] = NO_LIST  # Messages ever appended, up to each block.
        self._base_count = 0
        for block in blocks:
            self.append(block)

    def epoch_at(self, number: int) -> int:
        """Return the epoch of a number; -1: the log does not reach so far."""
        if number > self.end:
            return -1
        history = self.history
        if history and number >= history[-1][1]:
            return self.last_epoch
        return epoch_of(history, number)[0]

    def common(self, history: History, end: int) -> int:
        """Return the greatest number at which this log and another have the same block."""
        number = min(self.end, end)
        while number > 0:
            own, other = epoch_of(self.history, number), epoch_of(history, number)
            if own == other:
                return number if own[0] else 0
            number = max(own[1], other[1]) - 1
        return 0

    def history_to(self, number: int) -> History:
        return tuple(item for item in self.history if item[1] <= number)

    # -- blocks --------------------------------------------------------------------

    def append(self, block: Block) -> None:
        if block.number != self.end + 1 or block.epoch < self.last_epoch:
            raise ProtocolError(f"block {block.epoch}/{block.number} after {self.last_epoch}/{self.end}")
        self.end += 1
        if block.epoch != self.last_epoch:
            self.last_epoch = block.epoch
            self.history = shared_if_short((*self.history[1 - HISTORY_MAX :], (block.epoch, block.number)))
        if not self._blocks:
            self._blocks, self._sums, self._counts = [], [], []
        self._blocks.append(block)
        self._sums.append((self._sums[-1] if self._sums else self._base_sum) + block_bytes(block))
        self._counts.append((self._counts[-1] if self._counts else self._base_count) + message_count(block))

    def truncate(self, number: int) -> None:
        if number < self.base:
            raise ProtocolError(f"truncate to {number}, below {self.base}")
        keep = number - self.base
        if self._blocks:
            del self._blocks[keep:], self._sums[keep:], self._counts[keep:]
        self.end = min(self.end, number)
        self.history = shared_if_short(self.history_to(number))
        self.last_epoch = self.history[-1][0] if self.history else 0

    def restart(self, cut: int, history: History) -> None:
        """All blocks are gone; the next one is cut + 1. Counting bytes goes on."""
        self._base_sum, self._base_count = self.sum_to(self.end), self._count_to(self.end)
        self._blocks = self._sums = self._counts = NO_LIST
        self.base = self.end = cut
        self.history = shared_if_short(history)
        self.last_epoch = self.history[-1][0] if self.history else 0

    def since(self, start: int, count_max: int, bytes_max: int) -> tuple[Block, ...]:
        """Blocks from `start` on: as many as fit, and always one if there is one."""
        at = start - 1 - self.base
        sums = self._sums
        stop = bisect_right(sums, self.sum_to(start - 1) + bytes_max, at)
        return tuple(self._blocks[at : min(max(stop, at + 1), at + count_max)])

    def upto(self, start: int, number: int) -> tuple[Block, ...]:
        """Blocks from `start` to `number`."""
        return tuple(self._blocks[start - 1 - self.base : number - self.base])

    def forget_to(self, number: int) -> None:
        """Blocks up to `number` are no longer kept."""
        if number <= self.base:
            return
        self._base_sum, self._base_count = self.sum_to(number), self._count_to(number)
        forgotten = number - self.base
        if forgotten < len(self._blocks):
            del self._blocks[:forgotten], self._sums[:forgotten], self._counts[:forgotten]
        else:
            self._blocks = self._sums = self._counts = NO_LIST
        self.base = number

    # -- bytes ---------------------------------------------------------------------

    def sum_to(self, number: int) -> int:
        """Bytes appended up to and with this block; of forgotten blocks, up to the last of them."""
        if number <= self.base:
            return self._base_sum
        return self._sums[number - 1 - self.base]

    def bytes_between(self, low: int, high: int) -> int:
        """Bytes of the blocks low + 1 to high, as far as they are kept."""
        return self.sum_to(high) - self.sum_to(low)

    def messages_after(self, number: int) -> int:
        """Messages in the blocks behind this one, as far as they are kept."""
        return self._count_to(self.end) - self._count_to(number)

    def _count_to(self, number: int) -> int:
        return self._base_count if number <= self.base else self._counts[number - 1 - self.base]

    def time_after(self, number: int) -> int | None:
        """When the first block behind this one was taken, of those that are kept and say it."""
        for at in range(max(number - self.base, 0), len(self._blocks)):
            if self._blocks[at].time_ms:
                return self._blocks[at].time_ms
        return None

    def first_within(self, bytes_max: int) -> int:
        """The number behind which the kept blocks have at most `bytes_max` bytes together."""
        floor = self.sum_to(self.end) - bytes_max
        if floor <= self._base_sum:
            return self.base
        return self.base + 1 + bisect_left(self._sums, floor)
