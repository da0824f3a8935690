"""Consumers with priorities, and single active ones."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.protocol import methods as m
from leveret.protocol.tables import table_from_python
from tests.support.machines import Client, World


@pytest.fixture
def world() -> World:
    return World()


def consume(client: Client, tag: str, **arguments: Any) -> None:
    client.consume("q", tag, arguments=table_from_python({f"x-{key}": value for key, value in arguments.items()}))


def tags(client: Client) -> list[str]:
    return [reply.method.consumer_tag for reply in client.take() if isinstance(reply.method, m.BasicDeliver)]


def prefetching(world: World, count: int) -> Client:
    client = world.client()
    client.call(m.BasicQos(prefetch_count=count))
    return client


def test_the_highest_gets_all_until_it_is_full(world: World) -> None:
    client = prefetching(world, 2)
    client.declare("q")
    consume(client, "low", priority=-1)
    consume(client, "high", priority=10)
    consume(client, "usual")
    for _ in range(6):
        client.publish("q")
    assert tags(client) == ["high", "high", "usual", "usual", "low", "low"]
    client.send(m.BasicAck(delivery_tag=1))
    client.publish("q")
    assert tags(client) == ["high"]


def test_equals_take_turns(world: World) -> None:
    client = prefetching(world, 10)
    client.declare("q")
    for tag in ("a", "b"):
        consume(client, tag, priority=5)
    consume(client, "idle")
    for _ in range(4):
        client.publish("q")
    assert tags(client) == ["a", "b", "a", "b"]


def test_one_is_active_until_it_goes(world: World) -> None:
    client = prefetching(world, 10)
    client.declare("q", arguments=table_from_python({"x-single-active-consumer": True}))
    consume(client, "first")
    consume(client, "second")
    consume(client, "urgent", priority=9)
    for _ in range(3):
        client.publish("q")
    assert tags(client) == ["first"] * 3
    client.send(m.BasicCancel(consumer_tag="first"))
    client.publish("q")
    assert tags(client) == ["urgent"]
    client.send(m.BasicCancel(consumer_tag="urgent"))
    client.publish("q")
    assert tags(client) == ["second"]


def test_the_active_one_does_not_share_even_when_it_is_full(world: World) -> None:
    client = prefetching(world, 1)
    client.declare("q", arguments=table_from_python({"x-single-active-consumer": True}))
    consume(client, "first")
    consume(client, "second")
    for _ in range(3):
        client.publish("q")
    assert tags(client) == ["first"]


def test_nobody_is_exclusive_where_one_is_active(world: World) -> None:
    client = world.client()
    client.declare("q", arguments=table_from_python({"x-single-active-consumer": True}))
    answer = client.call(m.BasicConsume(queue="q", exclusive=True))
    assert isinstance(answer, m.ChannelClose) and answer.reply_code == 403
