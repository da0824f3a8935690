"""What a queue knows of a consumer: how much it may have now, and how to hand it over.

The consumer of an AMQP channel is in `leveret.amqp.channel`; one that sits behind a peer link is another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from leveret.broker.batch import Batch


class Consumer(Protocol):
    """Somebody who takes messages from one queue."""

    tag: str
    no_ack: bool
    exclusive: bool
    unacked: int  # Messages out with this consumer.

    def room(self, average_bytes: int) -> int:
        """How many messages of about this size it may be given in this turn; 0 or less: none."""

    def deliver(self, batch: Batch, lo: int, hi: int) -> None:
        """Take the messages `lo`..`hi - 1` of the batch; never more than `room` said."""

    def on_queue_deleted(self) -> None:
        """The queue is gone, and so is the subscription."""
