"""What a queue answers to a declare, a get, or a question that its home node cannot be asked.

Local queues and proxies of queues at other nodes give the same answers, so these stand below both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from leveret.metadata.model.refusals import Refusal, resource

if TYPE_CHECKING:
    from leveret.broker.delivery.batch import Batch
    from leveret.broker.queue.ordered_queue import OrderedQueue
    from leveret.broker.remote.remote_queue import RemoteQueue
    from leveret.metadata.model.records import QueueSpec


class Status(NamedTuple):
    """Answers queue.declare."""

    ready: int
    consumers: int


class Got(NamedTuple):
    """One message that basic.get fetched."""

    batch: Batch
    at: int
    remaining: int
    queue: OrderedQueue | RemoteQueue  # Where it is to be settled: the queue may have moved meanwhile.


def unreachable(spec: QueueSpec) -> Refusal:
    """Refuses an operation on a queue whose home node is down."""
    durable = "durable " if spec.durable else ""
    name = resource("queue", spec.name, spec.vhost)
    return Refusal(404, f"home node '{spec.node}' of {durable}{name} is down or inaccessible")
