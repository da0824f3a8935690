"""The consumer of a session whose protocol has none of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from leveret.broker.queue.delivery_limit import DeliveryLimit
from leveret.broker.session.message import Delivery, names_in
from leveret.storage.format.queue_block import REDELIVERED

if TYPE_CHECKING:
    from leveret.broker.broker import AnyQueue
    from leveret.broker.delivery.batch import Batch
    from leveret.broker.delivery.offsets import Start
    from leveret.broker.session.session import Session
    from leveret.broker.session.wanted import ConsumerWanted


class Receiver(Protocol):
    """The machine of a client, to which messages are delivered."""

    def room(self, average_bytes: int) -> int:
        """Return how many messages of about this size may be delivered now; 0 or less: none.

        It is asked between deliveries of one turn, too, so what was received and is not yet written counts.
        """

    def receive(self, deliveries: list[Delivery]) -> None:
        """Deliver these to the client."""

    def on_cancelled(self, tag: str) -> None:
        """The subscription is over, because its queue is gone."""


class SessionConsumer:
    """Gives its receiver what the queue delivers."""

    is_exact = False

    __slots__ = (
        "begins_at", "cancels_on_failover", "exclusive", "no_ack", "prefetch", "priority", "queue", "receiver",
        "session", "tag", "timeout_ms", "unacked",
    )  # fmt: skip

    def __init__(
        self, session: Session, receiver: Receiver, queue: AnyQueue, wanted: ConsumerWanted, start: Start | None
    ) -> None:
        self.session = session
        self.receiver = receiver
        self.queue = queue
        self.tag = wanted.tag
        self.no_ack = wanted.no_ack
        self.exclusive = wanted.exclusive
        self.prefetch = 0 if wanted.no_ack else wanted.prefetch
        self.begins_at = start
        self.cancels_on_failover, self.priority, self.timeout_ms = session.consumer_options(wanted.arguments)
        self.unacked = 0

    def room(self, average_bytes: int) -> int:
        room, session = self.receiver.room(average_bytes), self.session
        if session.prefetch:
            shared = session.prefetch - session.consumed
            if shared <= 0 or not self.no_ack:
                room = min(room, shared)
        return min(room, self.prefetch - self.unacked) if self.prefetch else room

    def limit(self) -> int:
        limits = [limit for limit in (self.prefetch, self.session.prefetch) if limit]
        return min(limits, default=0) if not self.no_ack else 0

    def shares_prefetch(self) -> bool:
        return bool(self.session.prefetch)

    def deliver(self, batch: Batch, lo: int, hi: int) -> None:
        queue, contents = self.queue, batch.contents[lo:hi]
        if batch.redelivered and queue.is_local and (returns := queue.extension(DeliveryLimit)) is not None:
            contents = returns.labelled(batch, lo, hi)  # Else its own node has done so.
        first = self.session.on_delivered(self, batch, lo, hi)
        self.receiver.receive(
            [
                Delivery(first + at, *names_in(key), kind & REDELIVERED != 0, content, self.tag)
                for at, (content, key, kind) in enumerate(
                    zip(contents, batch.keys[lo:hi], batch.kinds[lo:hi], strict=True)
                )
            ]
        )

    def on_queue_deleted(self) -> None:
        self.session.forget_consumer(self.tag)
        self.receiver.on_cancelled(self.tag)
