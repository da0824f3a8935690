"""Dead-lettered messages that wait to be published, or published again.

There are three reasons to wait. A publish was refused, by a target that is full or out of reach, or because there is
no target, and is to be tried again until it is accepted (`QueueRules.keeps_dead`). Or a consumer has rejected a message
whose contents are in the log only, and it cannot be published before they are read. Or so many leave at once that a
turn has no room for all: those are new, and are published in the next turns, in their order and before refused ones.

**How much is tried.** A target that is full may refuse millions, so not everything is tried each time. Once a second a
queue gets `TRIES`, and each refusal costs one of them, while an accepted publish costs nothing and makes room for the
next. So a second costs as much as was accepted in it, and a little; and as soon as there is room again, all messages
follow at full speed. One that is refused goes to the end: others may have targets with room.

**How much is in memory.** A message that waits here is in the log until the targets have it and it is settled. So its
contents are dropped from memory when that is short, as those of ready messages are: a piece is a few numbers then. They
are read a part at a time, and the next part only when all publishes of the last one are answered. What was read stays
in memory until it is published, however short that is: it might have to be read over and over otherwise, while other
queues have their turns. So only a few queues (`READERS_MAX`) read at a time.

**If the node stops**, or the queue moves to another node, nothing is lost: none of these messages is settled, so they
are ready in their queue again, and are dead-lettered or rejected again. **If the queue is deleted**, new ones are
published all the same, as they would have been at once if they were few: of those whose contents are in the log only,
nothing is left to publish. **While the queue is not open**, what waits stays: another node may have the queue, or is
about to, and would publish the same.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from itertools import chain, takewhile
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from leveret.broker.delivery.batch import Batch, Gap, Span

if TYPE_CHECKING:
    from collections.abc import Iterator

    from leveret.broker.dead_letter.publisher import DeadLetterPublisher
    from leveret.broker.queue.queue import Queue
    from leveret.storage.format.queue_block import Run

TRIES: Final = 64
BITE_BYTES: Final = 1 << 20
BITE_MESSAGES: Final = 1_024
READERS_MAX: Final = 16  # Queues that have a part in memory which was read, or is being read.
SKIPPED_MAX: Final = 64  # After so many pieces that cannot be paged out now, no more are looked at.
_IS_READ: Final = attrgetter("is_read")


class Piece:
    """Dead-lettered messages `first`..`last` of a queue; in `batch`, or if that is None, in the log only."""

    __slots__ = ("batch", "first", "is_read", "last", "reason", "tried")

    def __init__(self, batch: Batch | None, first: int, last: int, reason: str, tried: bool) -> None:
        self.batch = batch
        self.first = first
        self.last = last
        self.reason = reason
        self.tried = tried  # It was refused before: replies to direct reply-to were sent then.
        self.is_read = False  # It was read to be published, and stays in memory.

    def entry(self) -> Span | Gap:
        """Returns it as an entry of those that wait in its queue."""
        batch, first, last = self.batch, self.first, self.last
        if batch is not None:
            return Span(batch, first - batch.first, last - batch.first + 1)
        return Gap(first, last, last - first + 1, redelivered=self.reason == "rejected")

    def is_followed_by(self, other: Piece) -> bool:
        """Returns whether the two pieces can be merged."""
        alike = self.batch is other.batch and self.reason == other.reason and self.tried == other.tried
        return alike and self.last + 1 == other.first


class Line:
    """Pieces in their order."""

    __slots__ = ("count", "pieces")

    def __init__(self) -> None:
        self.pieces: deque[Piece] = deque()
        self.count = 0  # Messages in all pieces.

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


class Row:
    """The messages of one queue that wait."""

    __slots__ = ("busy", "new", "reading", "refused", "tries", "under_way")

    def __init__(self) -> None:
        self.new = Line()  # They were not published yet.
        self.refused = Line()
        self.under_way = 0  # Publishes without an answer.
        self.tries = TRIES
        self.reading: Piece | None = None  # The piece that is being read.
        self.busy = False

    @property
    def has_new(self) -> bool:
        """Returns whether there are messages that were not published yet."""
        return bool(self.new.pieces) or (self.reading is not None and not self.reading.tried)

    @property
    def has_read(self) -> bool:
        """Returns whether something was read and not published since. It is what comes first."""
        return any(line.pieces and line.pieces[0].is_read for line in (self.new, self.refused))

    def keep_nothing(self) -> None:
        """Memory may forget what was read."""
        for line in (self.new, self.refused):
            for piece in takewhile(_IS_READ, line.pieces):
                piece.is_read = False

    def next(self) -> Line | None:
        """Returns the line whose first piece is to be sent now."""
        if self.reading is not None:
            return None
        if self.new.pieces:
            return self.new
        return self.refused if self.refused.pieces and self.under_way < self.tries else None

    def line_of(self, piece: Piece) -> Line:
        return self.refused if piece.tried else self.new


class DeadLetterRetry:
    """The dead-lettered messages of all queues of a node that wait."""

    def __init__(self, dead_letters: DeadLetterPublisher) -> None:
        self.dead_letters = dead_letters
        self.rows: dict[Queue, Row] = {}
        # Queues that have something for which there was no room in a turn, and the numbers of their next messages then.
        self.waiting: dict[Queue, int] = {}
        self.closed: dict[Queue, int] = {}  # Likewise, of queues that may publish nothing before they are open again.
        self.readers: dict[Queue, None] = {}  # Queues for which something is being read, or was and is not published.
        self.unread: dict[Queue, None] = {}  # Queues that wait until they may read, since others do.

    def begin_turn(self) -> None:
        """Send what a turn has room for. Of each queue that is at least as much as was published to it meanwhile."""
        waiting, self.waiting = self.waiting, {}
        for queue, next_seq in waiting.items():
            if _is_closed(queue):
                self._wait_until_open(queue, next_seq)
            else:
                self.go_on(queue, least=queue.next_seq - next_seq)
        if self.waiting:  # Another one is the first in the next turn.
            first = next(iter(self.waiting))
            self.waiting[first] = self.waiting.pop(first)

    def add_refused(self, queue: Queue, batch: Batch, lo: int, hi: int, reason: str) -> None:
        """Add messages whose publish was refused."""
        row = self._row(queue)
        row.tries = max(0, row.tries - 1)
        piece = Piece(batch, batch.first + lo, batch.first + hi - 1, reason, True)
        if queue.host.content_bytes > queue.host.content_bytes_max:
            _forget(queue, piece)
        row.refused.add(piece)

    def on_opened(self, queue: Queue) -> None:
        """A queue is open again, or gone: the next turn sends what waits of it."""
        next_seq = self.closed.pop(queue, None)
        if next_seq is not None or queue in self.readers:
            self.waiting.setdefault(queue, queue.next_seq if next_seq is None else next_seq)

    def has_new(self, queue: Queue) -> bool:
        """Returns whether messages of a queue wait that were not published yet, so that others have to follow them."""
        row = self.rows.get(queue)
        return row is not None and row.has_new

    def add_new(self, queue: Queue, batch: Batch, lo: int, hi: int, reason: str) -> None:
        """Add messages for which a turn had no room, or in front of which others wait."""
        row = self._row(queue)
        if not row.has_new:
            self.waiting.setdefault(queue, queue.next_seq)
        row.new.add(Piece(batch, batch.first + lo, batch.first + hi - 1, reason, False))

    def add_unread(self, queue: Queue, first: int, last: int, reason: str) -> None:
        """Add messages that are in the log only."""
        row = self._row(queue)
        row.new.add(Piece(None, first, last, reason, False))
        self.go_on(queue)

    def _row(self, queue: Queue) -> Row:
        row = self.rows.get(queue)
        if row is None:
            row = self.rows[queue] = Row()
        return row

    def on_fate(self, queue: Queue) -> None:
        """A publish from here was accepted, or refused again."""
        row = self.rows.get(queue)
        if row is not None:
            row.under_way -= 1
            self.go_on(queue)

    def tick(self) -> None:
        """Called once a second: try again."""
        for queue, row in list(self.rows.items()):
            # Not more than there are: a second try would be refused as the first was, and would change their order.
            row.tries = max(1, min(TRIES, self.count(queue)))
            self.go_on(queue)

    def go_on(self, queue: Queue, least: int = 0) -> None:
        """Send as much as may be sent now: `least` messages even if the turn has no room."""
        row = self.rows.get(queue)
        if row is None or row.busy:
            return  # A publish was answered at once; the loop below goes on.
        if _is_closed(queue):
            self._wait_until_open(queue, queue.next_seq)
            return
        if queue.deleted:
            row.reading = None  # Whatever comes of it.
        row.busy = True
        while (line := row.next()) is not None and not self._is_over(queue, row):
            if self.dead_letters.left <= 0 and least <= 0:
                self.waiting.setdefault(queue, queue.next_seq)
                break
            piece = line.take_first()
            if piece.batch is not None:
                least -= self._send(queue, piece.batch, piece, max(least, 1))
            elif queue.deleted:
                continue  # Its contents were in the log only.
            elif not self.dead_letters.has_exchange(queue):
                if queue.rules.keeps_dead and queue.rules.dead_letter_exchange is not None:
                    self.dead_letters.log_unroutable(queue)
                    line.put_first(piece)
                    break
                queue.settle_numbers(piece.first, piece.last, piece.reason)
            elif row.under_way:
                line.put_first(piece)
                break
            elif len(self.readers) >= READERS_MAX and queue not in self.readers:
                self.unread[queue] = None
                line.put_first(piece)
                break
            else:
                self._read(queue, row, piece)
        row.busy = False
        is_empty = not (row.new.pieces or row.refused.pieces or row.under_way or row.reading)
        if is_empty or self._is_over(queue, row):
            del self.rows[queue]
            self._drop(queue)
        elif row.reading is None and not (queue in self.waiting and row.has_read):
            self._end_read(queue, row)

    def _drop(self, queue: Queue) -> None:
        """Nothing of a queue waits any more."""
        for queues in (self.waiting, self.closed, self.unread):
            queues.pop(queue, None)
        self._end_read(queue)

    def _wait_until_open(self, queue: Queue, next_seq: int) -> None:
        self.closed.setdefault(queue, next_seq)
        row = self.rows.get(queue)
        if row is not None and row.reading is None:
            self._end_read(queue, row)

    def _end_read(self, queue: Queue, row: Row | None = None) -> None:
        """What was read of a queue is published, or need not stay in memory: others may read."""
        if queue not in self.readers:
            return
        del self.readers[queue]
        if row is not None:
            row.keep_nothing()
        while self.unread and len(self.readers) < READERS_MAX:
            following = next(iter(self.unread))
            del self.unread[following]
            self.go_on(following)

    def _is_over(self, queue: Queue, row: Row) -> bool:
        """Returns whether nothing of a queue is to be published any more: it is elsewhere, or was deleted."""
        return queue.deleted and (not row.new.pieces or queue.spec.id in self.dead_letters.broker.queues_by_id)

    def _send(self, queue: Queue, batch: Batch, piece: Piece, least: int) -> int:
        """Returns how many messages were sent. The others are the first that wait."""
        row, lo, hi = self.rows[queue], piece.first - batch.first, piece.last - batch.first + 1
        count, end = self.dead_letters.send_held(queue, batch, lo, hi, piece.reason, piece.tried, least)
        row.under_way += count  # Added afterwards: those already answered have been subtracted.
        if end < hi:
            piece.first = batch.first + end
            row.line_of(piece).put_first(piece)
        return end - lo

    def _read(self, queue: Queue, row: Row, piece: Piece) -> None:
        """Read the first messages of a piece from the log: of refused ones, after refusals, only what may be tried."""
        row.reading = piece
        self.readers[queue] = None
        most = row.tries if piece.tried and row.tries < TRIES else BITE_MESSAGES
        assert most > 0  # `Row.next` offers refused ones only while some may be tried.
        last = min(piece.last, piece.first + most - 1)
        then = partial(self._on_read, queue, row, piece)
        queue.host.read_range(queue.spec.id, piece.first, last, BITE_BYTES, then)

    def _on_read(self, queue: Queue, row: Row, piece: Piece, runs: list[Run] | None, following: int) -> None:
        if row.reading is not piece or queue.deleted:
            return  # The queue was deleted, or has moved.
        row.reading = None
        line = row.line_of(piece)
        if runs is None:  # The node has logged it; tried again with the next tick.
            line.put_first(piece)
            row.tries = 0
            self._end_read(queue)
            return
        if following <= piece.last:
            line.put_first(Piece(None, following, piece.last, piece.reason, piece.tried))
        for run in reversed(runs):
            batch = Batch.loaded(run)
            queue.count_in(batch)
            read = Piece(batch, run.first, run.last, piece.reason, piece.tried)
            read.is_read = True
            line.put_first(read)
        self.go_on(queue)

    def count(self, queue: Queue) -> int:
        """Returns how many messages of a queue wait here."""
        row = self.rows.get(queue)
        if row is None:
            return 0
        reading = row.reading
        return row.new.count + row.refused.count + (0 if reading is None else reading.last - reading.first + 1)

    def held(self, queue: Queue) -> Iterator[tuple[Batch, int, int]]:
        """Yield the messages of a queue that wait here, as far as in memory."""
        row = self.rows.get(queue)
        for piece in () if row is None else chain(row.new.pieces, row.refused.pieces):
            batch = piece.batch
            if batch is not None:
                yield batch, piece.first - batch.first, piece.last - batch.first + 1

    def page_out(self) -> None:
        """Drop contents from memory, which is short."""
        host = self.dead_letters.broker
        for queue, row in self.rows.items():
            if queue.deleted:
                continue  # The log has nothing of it.
            for line in (row.refused, row.new):
                skipped = 0
                for piece in reversed(line.pieces):  # The first ones are wanted next.
                    if host.content_bytes <= host.content_bytes_max or skipped >= SKIPPED_MAX:
                        break
                    if piece.batch is not None and not piece.is_read:
                        _forget(queue, piece)
                        skipped += piece.batch is not None
                line.join()

    def take(self, queue: Queue) -> list[Span | Gap]:
        """Take all messages of a queue that wait here."""
        row = self.rows.pop(queue, None)
        if row is None:
            return []
        self._drop(queue)
        reading, row.reading = row.reading, None
        pieces = chain(row.new.pieces, row.refused.pieces, () if reading is None else (reading,))
        return [piece.entry() for piece in pieces]


def _is_closed(queue: Queue) -> bool:
    """Returns whether another node may have the queue, or is about to."""
    return (queue.frozen or queue.parked is not None) and not queue.deleted


def _forget(queue: Queue, piece: Piece) -> None:
    batch = piece.batch
    if batch is not None and queue.forget_dead(Span(batch, piece.first - batch.first, piece.last - batch.first + 1)):
        piece.batch = None
