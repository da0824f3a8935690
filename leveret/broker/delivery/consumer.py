"""What a queue knows of a consumer: how much it may have now, and how to hand it over.

The consumer of an AMQP channel is in `leveret.sessions.amqp.channel_consumer`; one at another node is in `home`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from leveret.broker.delivery.offsets import ORIGINS

if TYPE_CHECKING:
    from leveret.broker.broker import AnyQueue
    from leveret.broker.delivery.batch import Batch
    from leveret.broker.delivery.offsets import Start


class Consumer(Protocol):
    """Takes messages from one queue."""

    tag: str
    no_ack: bool
    exclusive: bool
    priority: int  # Others get nothing while one with a higher one has room.
    timeout_ms: int | None  # How long it may keep a message; None: as its queue says, or the node.
    unacked: int  # Messages out with this consumer.
    begins_at: Start | None  # Of a stream's consumer: where it begins, or goes on.

    @property
    def is_exact(self) -> bool:
        """Return whether it takes only messages that are safe, so that what it has seen can be told by their numbers: a
        number that was lost with its message would be another message's."""

    def room(self, average_bytes: int) -> int:
        """Return how many messages of about this size it takes in this turn; 0 or less: none."""

    def deliver(self, batch: Batch, lo: int, hi: int) -> None:
        """Take the messages `lo`..`hi - 1` of the batch; never more than `room` said."""

    def on_queue_deleted(self) -> None:
        """The queue is gone, and so is the subscription."""


class Subscriber(Consumer, Protocol):
    """A consumer whose queue may be at another node, or go there."""

    queue: AnyQueue
    cancels_on_failover: bool  # It is to be told when another node leads its queue, and goes on only if asked again.

    def limit(self) -> int:
        """Return how many unacknowledged messages it may have, as far as its queue can count them; 0 is no limit."""

    def shares_prefetch(self) -> bool:
        """Tell whether unacknowledged messages of other consumers count for its prefetch."""


def may_have(consumer: Consumer, batch: Batch) -> bool:
    """Return whether a consumer may have messages of this batch now. Else `on_logged` lets its queue go on."""
    return batch.logged or not batch.stored or not awaits_log(consumer)


def awaits_log(consumer: Consumer) -> bool:
    """Return whether a consumer takes only messages that are safe. One that moves messages does: what it has moved, and
    a crash takes back, would come again under another number."""
    return consumer.is_exact or wants_origins(consumer)


def wants_origins(consumer: Consumer) -> bool:
    """Return whether each message is to tell a consumer its origin."""
    begins_at = consumer.begins_at
    return begins_at is not None and begins_at.kind == ORIGINS
