"""A mirrored queue with priorities loses its master."""

from __future__ import annotations

from random import Random

import pika

from tests.support.members import Cluster
from tests.support.servers import until


def test_the_next_master_goes_on_in_order(nodes: Cluster, name: str) -> None:
    owner = nodes.others(nodes.leader())[0]
    one, other = nodes.others(owner)
    channel = owner.channel(confirms=True)
    channel.queue_declare(name, durable=True, arguments={"x-max-priority": 5, "ha-mirror-queues": True})
    rng = Random(5)
    levels = [rng.randrange(7) for _ in range(200)]
    for number, level in enumerate(levels):
        channel.basic_publish("", name, b"%d" % number, pika.BasicProperties(delivery_mode=2, priority=level))
    order = sorted(range(200), key=lambda number: (-min(levels[number], 5), number))
    reader = one.channel()
    taken = [reader.basic_get(name) for _ in range(8)]
    assert [int(body) for _, _, body in taken] == order[:8]
    assert not any(method.redelivered for method, _, _ in taken)
    for method, _, _ in taken[:3]:
        reader.basic_ack(method.delivery_tag)
    assert reader.queue_declare(name, passive=True).method.message_count == 192  # The acks have come before that.
    channel.basic_publish("", name, b"200", pika.BasicProperties(delivery_mode=2))  # Confirmed: the mirrors know them.

    def is_served() -> bool:
        try:
            return bool(other.channel().queue_declare(name, passive=True).method.message_count == 198)
        except pika.exceptions.AMQPError:
            return False

    owner.kill()
    until(is_served, "there is another master")
    last = other.channel()
    found = [last.basic_get(name, auto_ack=True) for _ in range(198)]
    assert [int(body) for _, _, body in found] == [*order[3:], 200]
    marks = [method.redelivered for method, _, _ in found]
    assert all(marks[:5]) and sum(marks) < 100
    assert last.basic_get(name)[0] is None
