"""What a mirrored queue tells its mirrors of deliveries, before it makes them.

When another node becomes master, all that was out with consumers waits again, and whoever gets one of those messages
must see that it may have been delivered before (`redelivered`). Each block of a queue says up to which number messages
were delivered. But a delivery leaves at once, and the next block later; if the master dies between the two, a message
that a client has seen would come to the next one as new. To claim that everything that waits was delivered, on the
other hand, marks a backlog of a million because one of them was.

So a block *claims* a little more than was delivered, and nothing is handed out that no claim covers:

    messages      1 … 40 41 … 56 57 …………… 900
                  delivered  │ahead│ wait for the next claim
                             └─────┘ may be delivered: the mirrors have the block that says so

A message may be handed out if whoever has it also has a claim to it. That is so in two cases, and neither costs work
for a message:

- A claim of an earlier block covers it, and the ring has confirmed that block.
- It is in no block yet. Its own block will claim it, and a mirror that lacks that block lacks the message.

The second is how a queue is used whose consumers keep up: nothing waits, nothing is claimed in advance. The first is
for backlogs. There `ahead` is twice as much as before whenever consumers had to wait for a claim, and shrinks to twice
what is delivered between two blocks: enough for a round trip of the ring, at whatever pace messages are consumed.
What is marked without need after the loss of a master is never more than that. A new claim is made when half of the
last one is used up; most travel in blocks that acknowledgements or publishes make necessary anyway.

basic.get takes one message and claims that one. For who gets one after the other, slowly more.

A queue with priorities does not deliver by ascending numbers, and claims certain messages: see `priorities`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.broker.delivery.batch import Gap

if TYPE_CHECKING:
    from leveret.broker.queue.queue import Queue
    from leveret.storage.format.queue_block import Block

AHEAD_MIN: Final = 16
AHEAD_MAX: Final = 16_384
GETS_EXACT: Final = 8  # After so many gets that had to wait, one more message is claimed with each,
GETS_AHEAD_MAX: Final = 64  # and so on, up to this.
EVERYTHING: Final = 1 << 62


class DeliveryClaims:
    """Claims of a mirrored queue at its master: which messages may be delivered without a further block."""

    __slots__ = ("ahead", "claimed", "gets", "held", "known", "needed", "noted", "queue", "taken", "under_way")

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.claimed = queue.delivered_through  # In blocks; of those,
        self.known = queue.delivered_through  # in blocks that whoever has the messages has, too.
        self.taken = queue.next_seq - 1  # Messages up to here are in blocks.
        self.under_way: list[tuple[int, int]] = []  # Number of the block, and what it claims.
        self.ahead = 0
        self.noted = queue.delivered_through  # When the last block was taken.
        self.held = False  # Consumers had to wait since.
        self.needed = 0  # A get waits for this one.
        self.gets = 0
        self._limit()

    def _limit(self) -> None:
        self.queue.open_up_to(EVERYTHING if self.known >= self.taken else self.known)

    def open_unwritten(self, first: int) -> bool:
        """Opens the queue if its first message is in no block yet, and with it none that waits: until the next block is
        taken. Whatever blocks have that no claim covers has left the queue unserved."""
        if first <= self.taken:
            return False
        self.queue.open_up_to(EVERYTHING)
        return True

    def end(self) -> None:
        """The queue has no mirrors any more."""

    # -- The queue -----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """The queue has handed out what it could: does it need another claim?"""
        queue = self.queue
        if not queue.consumers or self.claimed >= self.taken:
            return
        if queue.ready and queue.ready[0].first > queue.open_through:
            if not self.under_way:
                self.held = True
                queue.note_deliveries()
        elif self.claimed - queue.delivered_through < self.ahead // 2:
            queue.note_deliveries()

    def want(self, number: int) -> Gap:
        """A get is to be answered with this message; what to wait for until it may be."""
        if number > self.claimed:
            self.gets += 1
            self.needed = number + min(self.gets // GETS_EXACT, GETS_AHEAD_MAX)
            self.queue.note_deliveries()
            self.queue.host.dirty[self.queue] = None
        return Gap(number, number, 1)

    def claimed_undelivered(self) -> list[tuple[int, int]]:
        """Return the ranges of messages that are claimed and were never delivered."""
        first = self.queue.delivered_through + 1
        return [(first, self.claimed)] if self.claimed >= first else []

    # -- Blocks --------------------------------------------------------------------------------------------------

    def put_into(self, block: Block) -> None:
        """The queue's next block, with all that was enqueued until now."""
        queue = self.queue
        all_known, before = self.known >= self.taken, self.claimed
        self.taken = queue.next_seq - 1
        self._step(queue.delivered_through)
        block.delivered_through = self.claimed
        queue.note_through(self.claimed)
        if all_known:  # What is claimed now and was not before is in this block itself.
            self.known = max(self.known, self.claimed)
        elif self.claimed > before:
            self.under_way.append((block.number, self.claimed))
        self._limit()

    def _step(self, delivered: int) -> None:
        recent, self.noted = delivered - self.noted, delivered
        if not self.queue.consumers:
            self.ahead = 0
        elif self.held:
            self.ahead = min(max(2 * self.ahead, AHEAD_MIN), AHEAD_MAX)
        else:
            self.ahead = min(max(self.ahead // 2, 2 * recent, AHEAD_MIN), AHEAD_MAX)
        self.held = False
        # Numbers are skipped when a node starts, and when messages leave unserved: what counts is what waits.
        ready = self.queue.ready
        first = ready[0].first - 1 if ready and self.ahead else delivered
        wanted = min(max(max(delivered, first) + self.ahead, self.needed), self.taken)
        self.claimed = max(self.claimed, delivered, wanted)

    def on_confirmed(self, number: int) -> bool:
        """Blocks up to this one are where they must be. True: one has claimed something, so gets should ask again. What
        they waited for may be gone, and the queue be open, for what came after it."""
        under_way = self.under_way
        before = len(under_way)
        while under_way and under_way[0][0] <= number:
            self.known = max(self.known, under_way.pop(0)[1])
        self._limit()
        return len(under_way) < before
