"""A turn delivers from so many queues at most; the others follow in the next turns."""

from __future__ import annotations

import pytest

from leveret.broker import broker
from leveret.protocol import methods as m
from tests.support.machines import Client, World, publish

QUEUES = 10
NAMES = [f"q{number}" for number in range(QUEUES)]
AT_ONCE = 3


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(broker, "PUMPED_AT_ONCE", AT_ONCE)
    return World()


def fan_out(world: World) -> Client:
    """Has a message published to all queues, each of which has a consumer."""
    client = world.client()
    client.call(m.ExchangeDeclare(exchange="x", type="fanout"))
    for name in NAMES:
        client.declare(name)
        client.call(m.QueueBind(queue=name, exchange="x"))
        client.consume(name, tag=name)
    world.turn()
    client.feed(publish(1, "x", "", b"hello"))
    return client


def served(client: Client) -> list[str]:
    """Returns the consumers that were given messages since the last call."""
    client.flush()
    return [one.method.consumer_tag for one in client.take() if isinstance(one.method, m.BasicDeliver)]


def test_a_turn_has_some_of_the_queues_and_all_get_theirs(world: World) -> None:
    client = fan_out(world)
    found: list[list[str]] = []
    while world.broker.dirty:
        world.broker.pump()
        found.append(served(client))
    assert [len(some) for some in found] == [3, 3, 3, 1]
    assert sorted(tag for some in found for tag in some) == NAMES


def test_what_was_touched_first_does_not_wait_for_what_is_touched_later(world: World) -> None:
    client = fan_out(world)
    waiting = list(world.broker.dirty)
    for _ in range(QUEUES):
        world.broker.pump()
        client.feed(publish(1, "x", "", b"more"))  # Touches the queues that have been served.
        if served(client).count(waiting[-1].spec.name):
            break
    else:
        raise AssertionError(f"{waiting[-1]} was never served")
    world.turn()


def test_a_queue_that_is_deleted_before_its_turn_hands_out_what_came_before(world: World) -> None:
    client = fan_out(world)
    world.broker.pump()
    waiting = [queue.spec.name for queue in world.broker.dirty]
    client.feed(m.encode(1, m.QueueDelete(queue=waiting[0])))
    world.turn()
    assert sorted(served(client)) == NAMES
    assert not world.broker.dirty
