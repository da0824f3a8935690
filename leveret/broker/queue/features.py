"""Which extensions a queue has (see `leveret.broker.delivery.extension`), and what it is given with them.

A queue asks for them by way of its host, so that `queue` itself need not know leases, the event journal, delivery
counts or deduplication.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.broker.event_journal import node_journal
from leveret.broker.queue import dedup
from leveret.broker.queue.delivery_limit import DeliveryLimit
from leveret.broker.queue.lease import PREFIX
from leveret.broker.queue.leases import Leases

if TYPE_CHECKING:
    from leveret.broker.delivery.confirms import Pending
    from leveret.broker.delivery.publish_numbers import Origin
    from leveret.broker.queue.local_queue import LocalQueue
    from leveret.broker.queue.queue import Queue
    from leveret.metadata.rules.queue_rules import QueueRules


class Features:
    """Gives queues their extensions."""

    def apply(self, queue: Queue, rules: QueueRules) -> None:
        """Gives a queue what its rules ask for, and takes away what they do not any more."""
        if rules.counts_returns and queue.extension(DeliveryLimit) is None:
            returns = DeliveryLimit(queue)
            returns.restore(queue.host.counts_of(queue), rules.delivery_limit)
            queue.extend(returns)
        self.apply_journal(queue, rules)

    def apply_journal(self, queue: LocalQueue, rules: QueueRules) -> None:
        """Likewise, of those that a stream can have."""
        if rules.journal or queue.extension(node_journal.QueueJournal) is not None:
            node_journal.watch(queue)

    def restore(self, queue: Queue) -> None:
        """Gives a queue what its durable state tells of, after that has come from the log or from where it was."""
        if any(key.startswith(PREFIX) for key in queue.durable_state.table):
            leases = Leases(queue)
            queue.extend(leases)
            leases.restore()

    def enqueue_once(
        self,
        queue: LocalQueue,
        origin: Origin,
        contents: list[bytes],
        keys: list[bytes],
        kind: int,
        size: int,
        pending: Pending,
    ) -> bool:
        """Enqueues what of a producer's messages the queue has not taken before."""
        return dedup.take(queue, origin, contents, keys, kind, size, pending)
