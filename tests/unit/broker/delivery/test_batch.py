"""Batches: sizes that deliveries are planned by."""

from __future__ import annotations

from leveret.broker.delivery.batch import Batch, Span
from leveret.broker.queue.queue import Queue
from leveret.metadata.model.records import QueueSpec
from leveret.storage.format.queue_block import PERSISTENT, Run
from tests.support.machines import World


def test_average_after_all_was_taken_and_more_came() -> None:
    """While a block waits for the disk its batch stays open, even if consumers have emptied it by then.

    An average over all that ever was in the batch would be far too low, or 0, and a consumer be given gigabytes.
    """
    world = World()
    queue = Queue(QueueSpec(7, "/", "q"), world.broker)
    for _ in range(100):
        queue.enqueue([b"x" * 50], [b"k"], PERSISTENT, 50, None)
        head = queue.ready[0]
        assert isinstance(head, Span)
        queue.ready.clear()
        queue.settle(head.batch, head.lo, head.hi)
    queue.enqueue([b"x" * 70_000], [b"k"], PERSISTENT, 70_000, None)
    head = queue.ready[0]
    assert isinstance(head, Span)
    assert (len(head.batch.contents), head.batch.average_bytes()) == (101, 70_000)


def test_what_memory_drops_stays_in_the_block_that_brought_it() -> None:
    run = Run(1, [b"1", b"2", b"3"], [b""] * 3, bytearray(3), [])
    batch = Batch.loaded(run)
    batch.blank(0, 2)
    batch.blank(2, 3)
    assert batch.contents == [b"", b"", b""] and run.contents == [b"1", b"2", b"3"]
