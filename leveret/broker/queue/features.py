"""Which extensions a queue has (see `leveret.broker.delivery.extension`), and what it is given with them.

A queue asks for them by way of its host, so that `queue` itself need not know leases, the event journal, delivery
counts or deduplication.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.broker.delivery import origins
from leveret.broker.event_journal import node_journal
from leveret.broker.queue import dedup
from leveret.broker.queue.delivery_limit import DeliveryLimit
from leveret.broker.queue.lease import PREFIX
from leveret.broker.queue.leases import Leases

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.broker.delivery.batch import Batch
    from leveret.broker.delivery.confirms import Pending
    from leveret.broker.delivery.publish_numbers import Origin
    from leveret.broker.queue.local_queue import LocalQueue
    from leveret.broker.queue.queue import Queue
    from leveret.metadata.rules.queue_rules import QueueRules

NO_CLUSTER: Final = b"0" * 32
DETACHED: Final = 1 << 60  # From here on, ids are not those of queues: see `broker.mirrors.detached`.


class Features:
    """Gives queues their extensions. `draw` gives random numbers below a bound; `cluster` names the cluster."""

    def __init__(self, draw: Callable[[int], int] = lambda bound: 0, cluster: Callable[[], bytes] = lambda: NO_CLUSTER):
        self.draw = draw
        self.cluster = cluster

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
        origins.begin_run(queue, self.draw)

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
        if origin.producer.startswith(origins.PRODUCER):
            return origins.take(queue, origin, contents, keys, kind, size, pending, dedup.make_room)
        return dedup.take(queue, origin, contents, keys, kind, size, pending)

    def begin_origins(self, queue: LocalQueue) -> None:
        """A consumer wants the origins of messages: see `has_origins`."""
        if queue.spec.id < DETACHED:
            origins.note_first_run(queue, self.draw)

    def has_origins(self, queue: LocalQueue) -> bool:
        """Tells whether messages may be handed out with their origins already."""
        return queue.extension(origins.FirstRun) is None

    def with_origins(self, queue: LocalQueue, batch: Batch, lo: int, hi: int, contents: list[bytes]) -> list[bytes]:
        """Returns contents of a batch, each with its origin. What a detached queue delivers has no lasting number."""
        if queue.spec.id >= DETACHED:
            return contents
        return origins.labelled(queue, batch, lo, hi, contents, self.cluster())

    def sources_of(self, queue: LocalQueue, batch: Batch, lo: int, hi: int) -> list[tuple[bytes, int, int]]:
        """Returns the sources of messages of a batch, each with the places that it has; nothing if they have none."""
        if queue.spec.id >= DETACHED:
            return []
        return origins.runs_of(queue, batch, lo, hi, self.cluster())
