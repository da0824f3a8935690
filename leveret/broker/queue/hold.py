"""Publishes for a queue that is between two homes: they wait, unconfirmed, until it is clear where it is.

So do questions (get, purge, how many are there, consume): `Queue.later` puts them off, `go_on` puts them to whom they
concern by then. Questions also wait while a queue that nobody uses any more is being deleted (`Life.DELETING`): who is
told that it exists must not find it gone a moment later, by a deletion that was certain before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from leveret.broker.delivery.confirms import DOUBTED

if TYPE_CHECKING:
    from leveret.broker.broker import AnyQueue
    from leveret.broker.delivery.confirms import Pending
    from leveret.broker.delivery.publish_numbers import Origin
    from leveret.broker.queue.local_queue import LocalQueue


class Parked(NamedTuple):
    contents: list[bytes]
    keys: list[bytes]
    kind: int
    size: int
    pending: Pending | None
    origin: Origin | None


def park(
    parked: list[Parked],
    contents: list[bytes],
    keys: list[bytes],
    kind: int,
    size: int,
    pending: Pending | None,
    origin: Origin | None = None,
) -> bool:
    """Put publishes aside. True, as from `enqueue`: slow down."""
    if pending is not None:
        pending.waiting += 1
    parked.append(Parked(contents, keys, kind, size, pending, origin))
    return True


def unpark(parked: list[Parked], queue: AnyQueue) -> None:
    """Go on with what was put aside."""
    for contents, keys, kind, size, pending, origin in parked:
        if pending is not None and not pending.is_wanted():
            pending.refuse(DOUBTED)  # Its client was told, and will publish it again.
            continue
        if origin is None or pending is None:
            queue.enqueue(contents, keys, kind, size, pending)
        else:
            queue.enqueue_from(origin, contents, keys, kind, size, pending)
        if pending is not None:
            pending.on_safe()  # Done with waiting here; what the queue asks for was counted before.


def go_on(queue: LocalQueue, successor: AnyQueue) -> None:
    """Send held publishes to where the queue is now, and then the questions that waited."""
    parked, waiting = queue.resume()
    unpark(parked, successor)
    for call in waiting:
        call(successor)


def release(queue: LocalQueue) -> None:
    """The queue is deleted, and whoever did that has taken care of what was put aside."""
    parked, waiting = queue.resume()
    for one in parked:
        if one.pending is not None:
            one.pending.on_safe()
    for call in waiting:
        call(queue)
