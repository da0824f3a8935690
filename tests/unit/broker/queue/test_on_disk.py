"""Queues whose contents are on disk rather than in memory, however much room there is."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.broker.queue.ordered_queue import KEEP_BYTES
from leveret.metadata.model import commands as c
from leveret.metadata.rules.queue_rules import VERSION_2_MESSAGES
from leveret.protocol.tables import table_from_python
from tests.support.machines import Client, World

BODY = bytes(1_000)
FEW, MANY = VERSION_2_MESSAGES - 100, VERSION_2_MESSAGES + 400


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def client(world: World) -> Client:
    return world.client()


def fill(world: World, client: Client, count: int, **arguments: Any) -> int:
    """Put so many into a queue; how many bytes of them are in memory."""
    client.declare("q", durable=True, arguments=table_from_python(arguments))
    for number in range(count):
        client.publish("q", b"%d" % number + BODY, delivery_mode=2)
    return world.queue("q").memory_bytes


@pytest.mark.parametrize(
    ("arguments", "count", "is_on_disk"),
    [
        ({}, MANY, False),
        ({"x-queue-mode": "lazy"}, 400, True),
        ({"x-queue-version": 1}, MANY, False),
        ({"x-queue-version": 2}, FEW, False),
        ({"x-queue-version": 2}, MANY, True),
    ],
)
def test_what_stays_in_memory(
    world: World, client: Client, arguments: dict[str, Any], count: int, is_on_disk: bool
) -> None:
    held = fill(world, client, count, **arguments)
    assert (held <= KEEP_BYTES) is is_on_disk
    client.consume("q", no_ack=True)
    assert client.bodies() == [b"%d" % number + BODY for number in range(count)]


def test_a_policy_says_so(world: World, client: Client) -> None:
    world.apply(c.SetPolicy("/", "p", "^q$", "queues", 0, {"queue-version": 2}))
    assert fill(world, client, MANY) <= KEEP_BYTES
