"""The dead that wait: messages which have left their queue unserved, and whose letters are not on their way.

There are two reasons to wait. A letter was refused, by a target that is full or out of reach, or because there is no
target, and is to be tried again until it is taken (`QueueRules.keeps_dead`). Or a consumer has rejected a message whose
contents are in the log only, and a letter cannot be made before they are read.

**How much is tried.** A target that is full may refuse millions, so not everything is tried each time. Once a second a
queue gets `TRIES`, and each refusal costs one of them, while what is taken costs nothing and makes room for the next.
So a second costs as much as was delivered in it, and a little; and as soon as there is room again, all of them follow
at full speed. One that is refused goes to the end: others may have targets with room.

**How much is in memory.** What waits here is in the log, until its letter is safe and it is settled. So its contents
are forgotten when memory is short, as those of waiting messages are: a piece is a few numbers then. They are read in
bites, and the next bite only when all letters of the last have met their fate.

**If the node stops**, or the queue goes to another, none of it is lost: nothing of this is settled, so it waits in its
queue again, dies again, or is rejected again.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

from leveret.broker.delivery.batch import Batch, Gap, Span

if TYPE_CHECKING:
    from leveret.broker.dead_letter.publisher import DeadLetterPublisher
    from leveret.broker.queue.queue import Queue
    from leveret.storage.format.queue_block import Run

TRIES: Final = 64
BITE_BYTES: Final = 1 << 20
BITE_MESSAGES: Final = 4_096
SKIPPED_MAX: Final = 64  # Pieces that cannot be forgotten now, after which looking for others is given up.


class Piece:
    """The messages `first`..`last` of a queue, all of them dead; in `batch`, or if that is None, in the log only."""

    __slots__ = ("batch", "first", "last", "reason", "tried")

    def __init__(self, batch: Batch | None, first: int, last: int, reason: str, tried: bool) -> None:
        self.batch = batch
        self.first = first
        self.last = last
        self.reason = reason
        self.tried = tried  # It was refused before: whoever could be told without a queue was told then.

    def is_followed_by(self, other: Piece) -> bool:
        """Whether the two are better one."""
        alike = self.batch is other.batch is None and self.reason == other.reason and self.tried == other.tried
        return alike and self.last + 1 == other.first


class Row:
    """What waits of one queue."""

    __slots__ = ("bite", "busy", "count", "pieces", "tries", "under_way")

    def __init__(self) -> None:
        self.pieces: deque[Piece] = deque()
        self.count = 0  # Messages in them.
        self.under_way = 0  # Dead-lettered messages.
        self.tries = TRIES
        self.bite: Piece | None = None  # Being read.
        self.busy = False

    def join(self) -> None:
        pieces, self.pieces, self.count = self.pieces, deque(), 0
        for piece in pieces:
            self.add(piece)

    def put_first(self, piece: Piece) -> None:
        self.count += piece.last - piece.first + 1
        self.pieces.appendleft(piece)

    def take_first(self) -> Piece:
        piece = self.pieces.popleft()
        self.count -= piece.last - piece.first + 1
        return piece

    def add(self, piece: Piece) -> None:
        self.count += piece.last - piece.first + 1
        if self.pieces and self.pieces[-1].is_followed_by(piece):
            self.pieces[-1].last = piece.last
        else:
            self.pieces.append(piece)


class DeadLetterRetry:
    """Of all queues of a node."""

    def __init__(self, letters: DeadLetterPublisher) -> None:
        self.letters = letters
        self.rows: dict[Queue, Row] = {}

    def add_refused(self, queue: Queue, batch: Batch, lo: int, hi: int, reason: str) -> None:
        """Their letter was refused."""
        row = self._row(queue)
        row.tries = max(0, row.tries - 1)
        piece = Piece(batch, batch.first + lo, batch.first + hi - 1, reason, True)
        if queue.host.content_bytes > queue.host.content_bytes_max:
            _forget(queue, piece)
        row.add(piece)

    def add_unread(self, queue: Queue, first: int, last: int, reason: str) -> None:
        """They are in the log only."""
        row = self._row(queue)
        row.add(Piece(None, first, last, reason, False))
        self.go_on(queue)

    def _row(self, queue: Queue) -> Row:
        row = self.rows.get(queue)
        if row is None:
            row = self.rows[queue] = Row()
        return row

    def on_fate(self, queue: Queue) -> None:
        """A letter that was sent from here is safe, or refused again."""
        row = self.rows.get(queue)
        if row is not None:
            row.under_way -= 1
            self.go_on(queue)

    def tick(self) -> None:
        """Once in a while."""
        for queue, row in list(self.rows.items()):
            # Not more than wait: a second round would be refused as the first was, and would mix up their order.
            row.tries = max(1, min(TRIES, self.count(queue)))
            self.go_on(queue)

    def go_on(self, queue: Queue) -> None:
        """Send as much as may be sent now."""
        row = self.rows[queue]
        if row.busy:
            return  # Whatever was sent has met its fate at once; the loop below sees to the rest.
        row.busy = True
        while row.pieces and row.under_way < row.tries and row.bite is None and not queue.deleted:
            piece = row.take_first()
            if piece.batch is not None:
                self._send(queue, piece.batch, piece)
            elif not self.letters.has_exchange(queue):
                if queue.rules.keeps_dead and queue.rules.dead_letter_exchange is not None:
                    self.letters.strand(queue)
                    row.put_first(piece)
                    break
                queue.settle_numbers(piece.first, piece.last, piece.reason)
            elif row.under_way:
                row.put_first(piece)
                break
            else:
                self._read(queue, row, piece)
        row.busy = False
        if queue.deleted or not (row.pieces or row.under_way or row.bite):
            del self.rows[queue]

    def _send(self, queue: Queue, batch: Batch, piece: Piece) -> None:
        lo, hi = piece.first - batch.first, piece.last - batch.first + 1
        count = self.letters.send_held(queue, batch, lo, hi, piece.reason, piece.tried)
        self.rows[queue].under_way += count  # Not before: some of them may be safe by now, and have been taken off.

    def _read(self, queue: Queue, row: Row, piece: Piece) -> None:
        """The first of what is in the log only: not more than may be refused, if some has been."""
        row.bite = piece
        last = min(piece.last, piece.first + (BITE_MESSAGES if row.tries == TRIES else row.tries) - 1)
        then = partial(self._on_read, queue, row, piece)
        queue.host.read_range(queue.spec.id, piece.first, last, BITE_BYTES, then)

    def _on_read(self, queue: Queue, row: Row, piece: Piece, runs: list[Run] | None, following: int) -> None:
        if row.bite is not piece or queue.deleted:
            return  # The queue has gone elsewhere.
        row.bite = None
        if runs is None:  # The shell has said so; it is tried again with the next tick.
            row.put_first(piece)
            row.tries = 0
            return
        if following <= piece.last:
            row.put_first(Piece(None, following, piece.last, piece.reason, piece.tried))
        row.busy = True
        for run in runs:
            batch = Batch.loaded(run)
            queue.count_in(batch)
            self._send(queue, batch, Piece(batch, run.first, run.last, piece.reason, piece.tried))
        row.busy = False
        self.go_on(queue)

    def count(self, queue: Queue) -> int:
        """How many of a queue's messages wait here."""
        row = self.rows.get(queue)
        return 0 if row is None else row.count + (row.bite.last - row.bite.first + 1 if row.bite is not None else 0)

    def page_out(self) -> None:
        """Memory is short."""
        host = self.letters.broker
        for queue, row in self.rows.items():
            skipped = 0
            for piece in row.pieces:
                if host.content_bytes <= host.content_bytes_max or skipped >= SKIPPED_MAX:
                    return
                if piece.batch is not None:
                    _forget(queue, piece)
                    skipped += piece.batch is not None
            row.join()

    def take_back(self, queue: Queue) -> None:
        """All that waits here waits in its queue again."""
        row = self.rows.pop(queue, None)
        if row is None:
            return
        bite, row.bite = row.bite, None
        for piece in (*row.pieces, *([] if bite is None else [bite])):
            if piece.batch is not None:
                queue.revive(piece.batch, piece.first - piece.batch.first, piece.last - piece.batch.first + 1)
            else:
                was_seen = piece.reason == "rejected"
                queue.revive_numbers(Gap(piece.first, piece.last, piece.last - piece.first + 1, was_seen))


def _forget(queue: Queue, piece: Piece) -> None:
    batch = piece.batch
    if batch is not None and queue.forget_dead(Span(batch, piece.first - batch.first, piece.last - batch.first + 1)):
        piece.batch = None
