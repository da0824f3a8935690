"""How often messages come back, and the end of those that come back too often.

A message that makes its consumer fall over is given back, goes to the next consumer, and makes that one fall over. With
a delivery limit it goes round so many times and then leaves, to the dead-letter exchange if there is one.

**What counts.** Each time a client that was shown a message gives it back, or is lost with it: nack and reject with
requeue, recover, a channel or connection that ends. What never left the broker and comes back (it was on its way to a
client of another node) does not count, nor what is taken back because its queue moves. Only queues with a limit count,
and those of type quorum, which tell their consumers (`x-delivery-count`) whether there is a limit or not; all others
have no `DeliveryLimit`. A queue whose limit is taken away goes on counting until its node restarts, so that a limit
that is set again finds true counts. After a start it is counted from the moment in which the node has learned of the
limit, with what the log knows.

**Where counts are kept.** Here, for messages that were given back and are not settled; and in the log, where a block
that gives messages back says how often that has happened to each in all. These are absolute numbers, so that replaying
a block twice, or on a copy that was filled with a later state, changes nothing. Mirrors have them from the blocks, new
mirrors from the one that fills them, so that a count outlives its node as its message does.

**A node that dies** with messages out has told nobody that they came back. But they are marked as redelivered at the
next start, or at the next master, and a message so marked was delivered at least once: it counts as returned once, if
no number is known. So the first delivery that ends with its node counts, and a later one does not. Where a whole claim
of deliveries is marked because some of it was made (see `claims`), the others are one return ahead. What is marked for
another reason (nobody was shown it, but others were given later ones) has a number that says so: 0.

**Who is to leave** (`overdue`) first goes back to its place among those that wait, since its contents may be in the log
only. Before the queue hands out anything it is taken out there: see `dead_letter_overdue`. What is at the beginning of
a gap is read for that purpose; what is deeper inside, as may be after a restart that came before its dead letter was
safe, leaves when the gap is read up to there, and is handed to nobody either.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from leveret.base.range_set import stretches
from leveret.broker.delivery.batch import Gap, Span
from leveret.broker.delivery.extension import Extension
from leveret.broker.delivery.priority_ready import rows_of
from leveret.protocol.frames import HEADER_AT, with_header
from leveret.protocol.properties import body_size, decode_content, encode
from leveret.protocol.tables import Field
from leveret.storage.format.queue_block import REDELIVERED

if TYPE_CHECKING:
    from leveret.broker.delivery.batch import Batch
    from leveret.broker.queue.queue import Queue
    from leveret.storage.format.queue_block import Block

DELIVERY_LIMIT: Final = "delivery_limit"  # Reason of a dead letter, as x-death has it.
COUNT_HEADER: Final = "x-delivery-count"
COUNT_MAX: Final = (1 << 32) - 1  # That the log can tell.


class DeliveryLimit(Extension):
    """Counts how often messages of a queue were returned, and enforces its delivery limit."""

    __slots__ = ("counts", "due", "overdue", "queue", "unlogged")

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.counts: dict[int, int] = {}  # By message number.
        self.unlogged: dict[int, int] = {}  # Those of which the log has not been told.
        self.overdue: set[int] = set()  # Wait, and must not be handed out any more.
        self.due = False  # Some of them may be where they can be taken out.

    def restore(self, counts: dict[int, int], limit: int | None) -> None:
        """Take over the counts that the log has: after a start, as a new master, or when a limit is set."""
        self.counts = dict(counts)
        if limit is not None:
            self.overdue = {number for number, count in counts.items() if count > limit}
        self.due = bool(self.overdue)

    def count(self, batch: Batch, at: int) -> int:
        """Return how often a message was returned."""
        known = self.counts.get(batch.first + at)
        if known is None:
            return 1 if batch.kinds[at] & REDELIVERED else 0
        return known

    def on_failed(self, batch: Batch, lo: int, hi: int) -> None:
        """Counts that messages are given back once more. They are not yet marked for it."""
        limit = self.queue.rules.delivery_limit
        for at in range(lo, hi):
            count = min(self.count(batch, at) + 1, COUNT_MAX)
            number = batch.first + at
            self.counts[number] = count
            if batch.stored:
                self.unlogged[number] = count
            if limit is not None and count > limit:
                self.overdue.add(number)
                self.due = True

    def on_recalled(self, batch: Batch, lo: int, hi: int) -> None:
        """Messages come back and that does not count, but they are about to be marked for it."""
        for at in range(lo, hi):
            number = batch.first + at
            if number not in self.counts and not batch.kinds[at] & REDELIVERED:
                self.counts[number] = 0
                if batch.stored:
                    self.unlogged[number] = 0

    def on_settled(self, first: int, last: int) -> None:
        counts = self.counts
        if last - first < len(counts):
            for number in range(first, last + 1):
                counts.pop(number, None)
        elif counts:
            self.counts = {number: count for number, count in counts.items() if not first <= number <= last}

    def tell_all(self) -> None:
        """From now on the log has all messages of the queue, those too that it did not have before."""
        self.unlogged = dict(self.counts)

    def on_block(self, block: Block) -> None:
        """Has the log told what it does not know yet."""
        unlogged, self.unlogged = self.unlogged, {}
        block.counts = stretches(unlogged)

    def before_hand_out(self) -> None:
        if self.due:
            dead_letter_overdue(self.queue, self)

    def on_loaded(self) -> None:
        self.due = bool(self.overdue)

    # -- What consumers see --------------------------------------------------------------------------------------

    def labelled(self, batch: Batch, lo: int, hi: int, always: bool = False) -> list[bytes]:
        """The contents of these messages as they are delivered: a message that comes again says how often it has.
        `always`: one that comes for the first time says so, too, as RabbitMQ has it for basic.get."""
        contents = batch.contents[lo:hi]
        for at in range(lo, hi):
            count = self.count(batch, at)
            if count or always:
                contents[at - lo] = with_count(contents[at - lo], count)
        return contents

    # -- Moving to another node ----------------------------------------------------------------------------------

    def within(self, batch: Batch, lo: int, hi: int) -> list[tuple[int, int]]:
        """By place among these messages: how often."""
        counts, first = self.counts, batch.first + lo
        return [(at, counts[first + at]) for at in range(hi - lo) if first + at in counts]

    def arrive(self, first: int, counts: list[tuple[int, int]]) -> None:
        """Messages from `first` on have come from another node, with what was said by `within` there."""
        for at, count in counts:
            self.counts[first + at] = self.unlogged[first + at] = count


def with_count(content: bytes, count: int) -> bytes:
    properties = decode_content(content, HEADER_AT)
    headers = properties.headers or {}
    headers[COUNT_HEADER] = Field("l", count)
    properties.headers = dict(sorted(headers.items()))
    return with_header(content, encode(properties, body_size(content, HEADER_AT)))


# -- Leaving -----------------------------------------------------------------------------------------------------------


def dead_letter_overdue(queue: Queue, returns: DeliveryLimit) -> None:
    """Take those that came back too often out of those that wait."""
    returns.due = False
    unseen: set[int] = set()  # In gaps.
    dying: list[Span] = []
    unread: Gap | None = None
    for row in rows_of(queue.ready):
        wanted = deque(sorted(returns.overdue))
        kept: list[Span | Gap] = []
        for entry in row:
            rest: Span | Gap | None = entry
            while wanted and rest is not None and wanted[0] <= rest.last:
                number = wanted.popleft()
                if number < rest.first:
                    continue
                if isinstance(rest, Span):
                    rest = _cut(rest, number, kept, dying)
                elif rest.ranges is None or number in rest.ranges:
                    unseen.add(number)
                    if number == rest.first and unread is None:
                        unread = rest
            if rest is not None:
                kept.append(rest)
        row.clear()
        row.extend(kept)
    returns.overdue = unseen
    for span in dying:
        queue.count_out(span.batch, span.lo, span.hi)
        queue.dead_letter_or_drop(span.batch, span.lo, span.hi, DELIVERY_LIMIT)
    if unread is not None:
        queue.want(unread)


def _cut(span: Span, number: int, kept: list[Span | Gap], dying: list[Span]) -> Span | None:
    """Cut a span at a message, and return what is left behind it."""
    batch, at = span.batch, number - span.batch.first
    if at > span.lo:
        kept.append(Span(batch, span.lo, at))
    if dying and dying[-1].batch is batch and dying[-1].hi == at:
        dying[-1].hi += 1
    else:
        dying.append(Span(batch, at, at + 1))
    return Span(batch, at + 1, span.hi) if at + 1 < span.hi else None
