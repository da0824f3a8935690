"""A small table that a queue keeps for good beside its messages, as part of its log.

See `leveret.storage.format.queue_marks`.

A change goes into the queue's next block, together with whatever else has happened to the queue by then. It is safe
when that block is, as a message is: at the next start, at the next master and where the queue moves to, the table is as
that block left it. Whoever wants to be told puts a `Pending` among those that the queue's next block is awaited by.

A queue that is not durable and has no mirrors has no log, and its table lasts as long as it does.

Ranges of message numbers are kept with each range of neighbours as one entry, under its first number. Numbers are added
in any order, and ranges that grow together become one entry.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from leveret.base.range_set import RangeSet
from leveret.base.shared_values import NO_DICT
from leveret.broker.delivery.confirms import NEVER, Pending
from leveret.storage.format.queue_marks import fits

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.broker.queue.local_queue import LocalQueue

NUMBER: Final = Struct(">Q")


class DurableState:
    """The table of one queue, and what of it its log does not know yet."""

    __slots__ = ("changes", "queue", "quiet", "table")

    def __init__(self, queue: LocalQueue) -> None:
        self.queue = queue
        self.table: dict[bytes, bytes] = NO_DICT
        self.changes: dict[bytes, bytes] = NO_DICT  # In no block yet. While there are some, there is a next block.
        self.quiet: dict[bytes, bytes] = NO_DICT  # Changes that wait until a block is made for something else.

    @property
    def is_logged(self) -> bool:
        """Tell whether the queue has a log, so that the table is written to it."""
        return self.queue.logs != NEVER

    def fits(self, key: bytes, value: bytes) -> bool:
        """Tell whether the table has room for an entry."""
        return fits(self.table, key, value)

    def set(self, key: bytes, value: bytes) -> None:
        """Sets an entry, or removes it if the value is empty. The caller keeps the limits: see `fits`."""
        assert self.fits(key, value), "the table is limited"
        if value:
            self._put(key, value)
        elif key in self.table:
            del self.table[key]
        self._change(key, value)

    def _put(self, key: bytes, value: bytes) -> None:
        self.table = self.table or {}
        self.table[key] = value

    def _put_change(self, key: bytes, value: bytes) -> None:
        self.changes = self.changes or {}
        self.changes[key] = value

    def renew(self, key: bytes, value: bytes) -> None:
        """Sets an entry that is there to a value that is as long as its last one."""
        self._put(key, value)
        self._change(key, value)

    def _change(self, key: bytes, value: bytes) -> None:
        if self.is_logged:
            self._put_change(key, value)
        self.queue.host.dirty[self.queue] = None

    def set_quietly(self, key: bytes, value: bytes) -> None:
        """Sets an entry that no block has to be made for: it goes into the next one that is made for something else."""
        assert self.fits(key, value), "the table is limited"
        self._put(key, value)
        if self.is_logged and key not in self.changes:
            self.quiet = self.quiet or {}
            self.quiet[key] = value
        elif key in self.changes:
            self.changes[key] = value

    def set_in_block(self, key: bytes, value: bytes) -> None:
        """Sets an entry in the block that is being taken."""
        self._put(key, value)
        self._put_change(key, value)

    def tell(self, key: bytes) -> None:
        """The next block tells this entry again."""
        if self.is_logged:
            self._put_change(key, self.table[key])

    def tell_all(self) -> None:
        """The next block tells the whole table: from now on there is a log that has to know of it."""
        if self.is_logged:
            self.changes = dict(self.table) if self.table else NO_DICT
            self.queue.host.dirty[self.queue] = None

    def take(self) -> dict[bytes, bytes] | None:
        """The changes, for a block."""
        changes, self.changes = self.changes, NO_DICT
        if self.quiet:
            changes, self.quiet = self.quiet | dict(changes), NO_DICT
        return changes or None

    def restore(self, table: dict[bytes, bytes]) -> None:
        """The table as the log knows it: after a start, as a new master, or where the queue has moved to."""
        self.table = table or NO_DICT

    def when_safe(self, then: Callable[[bool], None]) -> None:
        """Calls `then` when all changes are safe, with whether they are: False if the queue is led by another node now,
        or gone."""
        if self.changes:
            self.when_block_safe(then)
        else:
            then(True)

    def when_block_safe(self, then: Callable[[bool], None]) -> None:
        """Calls `then` when the queue's next block is safe, with whether it is: see `when_safe`."""
        pending = Pending(_Told(self.queue, then), 1, 0)  # It stands for no message.
        pending.waiting = 1
        self.queue.await_block(pending)


class _Told:
    __slots__ = ("queue", "then")

    def __init__(self, queue: LocalQueue, then: Callable[[bool], None]) -> None:
        self.queue = queue
        self.then = then

    def on_complete(self, pending: Pending) -> None:
        self.then(not pending.refused and not self.queue.deleted)


# -- Ranges ------------------------------------------------------------------------------------------------------------


def note_range(state: DurableState, prefix: bytes, ranges: RangeSet, first: int, last: int) -> bool:
    """Add a range. False: there is no room for it in the table; then it is in `ranges` alone."""
    for start, _ in list(ranges.ranges(first, last + 1)):
        if prefix + NUMBER.pack(start) in state.table:
            state.set(prefix + NUMBER.pack(start), b"")
    ranges.add(first, last)
    start, end = ranges.around(first)
    has_room = state.fits(prefix + NUMBER.pack(start), NUMBER.pack(end))
    if has_room:
        state.set(prefix + NUMBER.pack(start), NUMBER.pack(end))
    return has_room


def restore_ranges(state: DurableState, prefix: bytes) -> RangeSet:
    ranges = RangeSet()
    for key in _keys(state, prefix):
        ranges.add(*NUMBER.unpack(key[len(prefix) :]), *NUMBER.unpack(state.table[key]))
    return ranges


def forget_ranges(state: DurableState, prefix: bytes) -> None:
    for key in _keys(state, prefix):
        state.set(key, b"")


def _keys(state: DurableState, prefix: bytes) -> list[bytes]:
    return [key for key in state.table if key.startswith(prefix) and len(key) == len(prefix) + NUMBER.size]
