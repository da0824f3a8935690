"""Whose turn it is, in a queue whose consumers are not all alike.

Where they are, the queue hands out in turn by itself. Here is what else clients can ask for:

**Priorities** (`x-priority`). A consumer gets messages only while none with a higher priority has room. Those of one
priority take turns.

**A single active consumer** (`x-single-active-consumer`). One consumer gets everything, until it goes; then the one
with the highest priority that has waited longest. A new one never takes over from one that works,
whatever its priority.

**Origins** (`x-leveret-origin`). A link, which moves messages, gets only those that are safe. What is not safe yet goes
to others, even of a lower priority, if they have room: it may take long to become safe. Nobody stands in for a single
active consumer, though.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.broker.delivery.consumer import may_have, wants_origins

if TYPE_CHECKING:
    from leveret.broker.delivery.batch import Span
    from leveret.broker.delivery.consumer import Consumer
    from leveret.broker.queue.ordered_queue import OrderedQueue


class ConsumerOrder:
    """Chooses the next consumer of a queue: by priority, or the single active one, and links only for what is safe."""

    __slots__ = ("active", "has_links", "queue")

    def __init__(self, queue: OrderedQueue) -> None:
        self.queue = queue
        self.active: Consumer | None = None  # With a single active one: who that is.
        self.has_links = False  # Some consumers get only what is safe. Others need not be asked for every message.
        self.choose()

    def choose(self) -> None:
        """Choose the active consumer, after one came or went."""
        queue = self.queue
        self.has_links = any(map(wants_origins, queue.consumers))
        if not queue.rules.single_active:
            self.active = None
        elif self.active is None or self.active not in queue.consumers:
            self.active = max(queue.consumers, key=lambda one: one.priority, default=None)  # The first of the highest.

    def is_needed(self) -> bool:
        """Tell whether the consumers are still not all alike."""
        queue = self.queue
        return self.has_links or queue.rules.single_active or any(one.priority for one in queue.consumers)

    def share(self, head: Span) -> bool:
        """Hand out from the front. False if nobody who may have it has room."""
        if self.active is not None:
            return self._give_all(self.active, head)
        queue = self.queue
        average_bytes = head.batch.average_bytes()
        for priority in sorted({one.priority for one in queue.consumers}, reverse=True):
            equals = [one for one in queue.consumers if one.priority == priority]
            if len(equals) == 1:
                if self._give_all(equals[0], head):
                    return True
                continue
            for one in equals:
                if one.room(average_bytes) > 0 and self._may_have(one, head):
                    queue.consumers.remove(one)
                    queue.consumers.append(one)
                    queue.hand_over(one, head, 1)
                    return True
        return False

    def _give_all(self, consumer: Consumer, head: Span) -> bool:
        room = consumer.room(head.batch.average_bytes())
        if room <= 0 or not self._may_have(consumer, head):
            return False
        self.queue.hand_over(consumer, head, min(room, head.count))
        return True

    def _may_have(self, consumer: Consumer, head: Span) -> bool:
        return not self.has_links or may_have(consumer, head.batch)
