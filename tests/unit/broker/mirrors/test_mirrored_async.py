"""A master that confirms by its own word, before its mirrors have the messages."""

from __future__ import annotations

from leveret.broker.delivery.batch import Span
from leveret.broker.queue.queue import Queue
from leveret.protocol import methods as m
from leveret.replication.ring_frames import Options
from tests.support.mirrored_brokers import Rings
from tests.support.remote import confirming, types


def test_messages_stay_in_memory_until_the_ring_has_them() -> None:
    """Before, their blocks are not applied: whoever read them back would find that there are none."""
    rings = Rings()
    mirror = rings.mirror("a")
    rings.lost = {"b", "c"}  # They cannot depose it.
    for other in sorted(rings.lost):
        rings.close("a", other)
    mirror.member.change_options(Options(asynchronous=True))
    publisher = rings["a"].client()
    confirming(publisher)
    publisher.publish("q", b"1", delivery_mode=2)
    assert types(publisher) == [m.BasicAck]
    queue = mirror.queue
    assert isinstance(queue, Queue) and isinstance(queue.ready[0], Span)
    batch = queue.ready[0].batch
    assert mirror.member.confirmed < mirror.member.own_durable and not batch.all_logged
    for other in sorted(rings.lost):
        rings.join("a", other)
    rings.lost.clear()
    rings.run()
    assert mirror.member.confirmed == mirror.member.tail.end and batch.all_logged and not mirror.unapplied
    rings.finish()
