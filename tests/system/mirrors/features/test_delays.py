"""Delayed messages outlive the node that keeps them, without any policy."""

from __future__ import annotations

from typing import Any

import pika

from tests.support.consumer import Consumer
from tests.support.members import Cluster, Member

COUNT = 50
DELAY_MS = 10_000  # Long enough for a busy machine to do all that comes before.


def copies(node: Member, name: str) -> int:
    """Those of the hidden queue."""
    columns = ["queue", "node"]
    rows = node.control("mirror_status_rows", vhost="/", only=None, columns=columns, after=None)["rows"]
    return sum(queue == f"amq.delayed.{name}" for queue, _ in rows)


def publish(channel: Any, name: str, bodies: list[bytes], delay_ms: int) -> None:
    properties = pika.BasicProperties(headers={"x-delay": delay_ms}, delivery_mode=2)
    for body in bodies:
        channel.basic_publish(name, "k", body, properties)


def test_the_hidden_queue_is_lost(nodes: Cluster, name: str) -> None:
    """Declared and published at one node and at another; the first one dies before anything is due."""
    master, other, _ = nodes
    channel = master.channel()
    channel.exchange_declare(name, "x-delayed-message", durable=True, arguments={"x-delayed-type": "fanout"})
    elsewhere = other.channel(confirms=True)
    elsewhere.queue_declare(name, durable=True)
    elsewhere.queue_bind(name, name)
    assert copies(other, name) == 3
    wanted = [b"%d" % number for number in range(2 * COUNT)]
    publish(channel, name, wanted[1:COUNT], DELAY_MS)
    channel.confirm_delivery()
    publish(channel, name, wanted[:1], DELAY_MS)
    publish(elsewhere, name, wanted[COUNT:], DELAY_MS)
    consumer = Consumer(elsewhere, name)
    assert consumer.is_idle()
    master.kill()
    came: set[bytes] = set()
    while len(came) < len(wanted):
        came.update(consumer.bodies(1))
    assert came == set(wanted)
    publish(elsewhere, name, [b"after"], 100)
    while b"after" not in consumer.bodies(1):
        pass
    elsewhere.exchange_delete(name)
    assert copies(other, name) == 0
