"""Consumers that keep messages too long, by the rules of the node, of the queue and of their own."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.broker import consumer_timeout
from leveret.metadata.model import commands as c
from leveret.protocol import methods as m
from leveret.protocol.tables import table_from_python
from tests.support.machines import Client, World


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def client(world: World) -> Client:
    return world.client()


def declare(client: Client, **arguments: Any) -> None:
    client.declare("q", durable=True, arguments=table_from_python({f"x-{key}": one for key, one in arguments.items()}))


def pass_time(world: World, ms: int, node_ms: int | None = None) -> None:
    world.broker.now_ms += ms
    world.broker.end_slow_channels(node_ms)
    world.turn()


def closed(client: Client) -> list[str]:
    return [one.reply_text for one in client.methods() if isinstance(one, m.ChannelClose)]


def test_the_queue_says_how_long(world: World, client: Client) -> None:
    declare(client, **{"consumer-timeout": 1_000})
    client.consume("q")
    client.publish("q")
    client.take()
    pass_time(world, 1_000, node_ms=60_000)
    assert closed(client) == []
    pass_time(world, 1, node_ms=60_000)
    (text,) = closed(client)
    assert "Timeout value used: 1000 ms" in text
    assert world.queue("q").ready_count == 1


def test_the_consumer_says_how_long(world: World, client: Client) -> None:
    declare(client, **{"consumer-timeout": 1_000})
    client.consume("q", arguments=table_from_python({"x-consumer-timeout": 5_000}))
    client.publish("q")
    client.take()
    pass_time(world, 5_000)
    assert closed(client) == []
    pass_time(world, 1)
    assert len(closed(client)) == 1


def test_a_policy_says_how_long(world: World, client: Client) -> None:
    declare(client)
    client.consume("q")
    client.publish("q")
    client.take()
    world.apply(c.SetPolicy("/", "p", "", "queues", 0, {"consumer-timeout": 1_000}))
    pass_time(world, 1_001)
    assert len(closed(client)) == 1


@pytest.mark.parametrize("multiple", [False, True])
def test_just_what_is_late_goes_back(world: World, client: Client, multiple: bool) -> None:
    declare(client, **{"consumer-timeout": 10_000, "consumer-timeout-action": "requeue"})
    client.consume("q")
    client.publish("q", b"late")
    world.broker.now_ms += 9_000
    client.publish("q", b"in time")
    client.take()
    other = world.client()
    client.send(m.BasicCancel(consumer_tag="c"))
    client.take()
    pass_time(world, 1_001)
    assert client.take() == []
    other.consume("q", "d")
    assert [(reply.body, reply.method.redelivered) for reply in other.take()] == [(b"late", True)]  # type: ignore[union-attr]
    # The first consumer is done with both at last. One of them is no longer its own, and that is forgiven.
    for tag in (2,) if multiple else (1, 2):
        client.send(m.BasicAck(delivery_tag=tag, multiple=multiple))
    assert client.take() == []
    assert world.queue("q").unacked_count == 1, "with the other one"
    client.send(m.BasicAck(delivery_tag=1))
    assert len(closed(client)) == (0 if multiple else 1), "it is forgiven once"


def test_a_late_ack_of_many_settles_those_in_time(world: World, client: Client) -> None:
    declare(client, **{"consumer-timeout": 10_000, "consumer-timeout-action": "requeue"})
    client.consume("q")
    client.publish("q", b"in time")
    world.broker.now_ms += 9_000
    client.take()
    pass_time(world, 1_001)
    assert world.queue("q").unacked_count == 1, "it went back, and to the only consumer again"
    client.send(m.BasicAck(delivery_tag=1, multiple=True))
    assert world.queue("q").unacked_count == 1
    client.send(m.BasicAck(delivery_tag=2, multiple=True))
    assert world.queue("q").unacked_count == 0


def test_who_is_late_too_often_is_closed(world: World, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_timeout, "LATE_TAGS_MAX", 2)
    declare(client, **{"consumer-timeout": 1_000, "consumer-timeout-action": "requeue"})
    client.consume("q")
    client.publish("q")
    for _ in range(2):
        pass_time(world, 1_001)
        assert closed(client) == []
    pass_time(world, 1_001)
    assert len(closed(client)) == 1
