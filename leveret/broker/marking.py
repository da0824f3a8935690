"""What a queue remembers for good beside its messages: a small table, part of its log (see `leveret.log.marks`).

A change goes into the queue's next block, together with whatever else has happened to the queue by then. It is safe
when that block is, as a message is: at the next start, at the next master and where the queue moves to, the table is as
that block left it. Whoever wants to be told puts a `Pending` among those that the queue's next block is awaited by.

A queue that is not durable and has no mirrors has no log, and its table lasts as long as it does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.broker.confirms import NEVER, Pending
from leveret.broker.paging import Paging
from leveret.log.marks import fits

if TYPE_CHECKING:
    from collections.abc import Callable


class Marking(Paging):
    """The part of a queue that has marks."""

    __slots__ = ("awaiting", "deleted", "logs", "marks", "quiet", "unmarked")

    awaiting: list[Pending]  # What its next block is awaited by.
    deleted: bool
    logs: int  # Messages with all these bits of their kind go to the log; `NEVER`: none does, and no marks.
    marks: dict[bytes, bytes]
    unmarked: dict[bytes, bytes]  # Changes that are in no block yet,
    quiet: dict[bytes, bytes]  # and those that can wait until one is made.

    def mark(self, key: bytes, value: bytes) -> None:
        """Set a name, or remove it if the value is empty. Limits are the caller's to keep: see `fits`."""
        assert fits(self.marks, key, value), "marks are limited"
        if value:
            self.marks[key] = value
        else:
            self.marks.pop(key, None)
        if self.logs != NEVER:
            self.unmarked[key] = value
        self.host.dirty[self] = None

    def remark(self, key: bytes, value: bytes) -> None:
        """Set a name that is there to a value that is as long as its last one."""
        self.marks[key] = value
        if self.logs != NEVER:
            self.unmarked[key] = value
        self.host.dirty[self] = None

    def mark_quietly(self, key: bytes, value: bytes) -> None:
        """Set a name that no block has to be made for: it goes into the next one that is made for something else."""
        assert fits(self.marks, key, value), "marks are limited"
        self.marks[key] = value
        if self.logs != NEVER and key not in self.unmarked:
            self.quiet[key] = value
        elif key in self.unmarked:
            self.unmarked[key] = value

    def take_marks(self) -> dict[bytes, bytes] | None:
        """Those that go into a block."""
        marks, self.unmarked = self.unmarked, {}
        if self.quiet:
            marks, self.quiet = self.quiet | marks, {}
        return marks or None

    def tell_marks(self) -> None:
        """All of them go into the next block: from now on there is a log that has to know of them."""
        if self.logs != NEVER:
            self.unmarked = dict(self.marks)
            self.host.dirty[self] = None

    def restore_marks(self, marks: dict[bytes, bytes]) -> None:
        """After a start, as a new master: what the log knows. The messages are there already."""
        self.marks = marks

    def when_safe(self, then: Callable[[bool], None]) -> None:
        """Call `then` when the marks are safe, with whether they are: False if the queue is led by another node now, or
        gone."""
        if not self.unmarked:
            then(True)
            return
        pending = Pending(_Told(self, then), 1, 0)  # It stands for no message.
        pending.waiting = 1
        self.awaiting.append(pending)


class _Told:
    __slots__ = ("queue", "then")

    def __init__(self, queue: Marking, then: Callable[[bool], None]) -> None:
        self.queue = queue
        self.then = then

    def on_complete(self, pending: Pending) -> None:
        self.then(not pending.refused and not self.queue.deleted)
