"""Masters that are deposed while they hold what nobody else has: nothing of it is confirmed."""

from __future__ import annotations

from dataclasses import replace

from leveret.broker.remote.migrate import demote
from leveret.broker.remote.remote_queue import RemoteQueue
from leveret.protocol import methods as m
from tests.support.machines import Client, publish
from tests.support.mirrored_brokers import Rings


def publisher(rings: Rings, at: str) -> Client:
    client = rings[at].client()
    client.call(m.ConfirmSelect())
    return client


def test_what_is_in_no_block_is_refused() -> None:
    rings = Rings()
    client = publisher(rings, "a")
    queue = rings["a"].queue("q")
    client.feed(publish(1, "", "q", b"x", delivery_mode=2))
    assert queue.awaiting
    demote(queue, RemoteQueue(queue.spec, rings["a"].broker))
    rings["a"].broker.tell_confirms()
    client.flush()
    assert client.methods() == [m.BasicNack(1, False, False)]


def test_who_left_and_came_back_without_hearing_of_it_has_led_in_vain() -> None:
    """As happens when a node that was away is given a snapshot of what the others have agreed on."""
    rings = Rings()
    client = publisher(rings, "a")
    rings.lose("a")
    client.publish("q", b"x", delivery_mode=2)
    assert client.methods() == []
    spec = rings["a"].metadata.queues["/", "q"]
    assert spec.view is not None
    view = spec.view._replace(version=5, epoch=2, master="b")
    rings["a"].broker._on_view(replace(spec, node="b", view=view, joined={**spec.joined, "a": 4}))
    rings["a"].broker.tell_confirms()
    client.flush()
    assert client.methods() == []
    (sent,) = rings["a"].broker.outboxes.of(spec.id).open
    assert (sent.name, sent.first, len(sent.contents)) == (b"epoch 1", 1, 1)
