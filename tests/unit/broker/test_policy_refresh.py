"""A policy holds at once for every queue that is used, and soon for all others, a few of them in each turn."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.broker import policy_refresh
from leveret.metadata.model import commands as c
from leveret.metadata.rules.queue_rules import QueueRules
from leveret.protocol import methods as m
from tests.support.machines import Client, World

QUEUES = 20


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(policy_refresh, "RULED_AT_ONCE", 3)
    return World()


@pytest.fixture
def client(world: World) -> Client:
    client = world.client()
    for number in range(QUEUES):
        client.declare(f"q{number:02}", durable=True)
    world.turn()
    return client


def set_policy(world: World, **definition: Any) -> None:
    said = {key.replace("_", "-"): value for key, value in definition.items()}
    world.apply(c.SetPolicy("/", "p", "^q", "queues", 0, said))


def told(world: World) -> int:
    return sum(queue.applied_rules != QueueRules() for queue in world.broker.queues_by_id.values())


def test_a_turn_tells_a_few(world: World, client: Client) -> None:
    set_policy(world, max_length=7)
    assert told(world) == 0
    turns = 0
    while world.broker.policies.outdated:
        before = told(world)
        world.broker.pump()
        turns += 1
        assert told(world) - before <= policy_refresh.RULED_AT_ONCE
    assert told(world) == QUEUES and turns == -(-QUEUES // policy_refresh.RULED_AT_ONCE)


def test_a_change_in_the_middle_reaches_all(world: World, client: Client) -> None:
    set_policy(world, max_length=7)
    world.broker.pump()
    set_policy(world, max_length=8)
    while world.broker.policies.outdated:
        world.broker.pump()
    assert {queue.applied_rules.max_length for queue in world.broker.queues_by_id.values()} == {8}


def last(world: World) -> Any:
    """The queue whose turn comes last."""
    return world.queue(f"q{QUEUES - 1:02}")


def test_what_is_published_meets_the_new_limit(world: World, client: Client) -> None:
    name = f"q{QUEUES - 1:02}"
    client.publish(name)  # Its route is remembered.
    client.call(m.ConfirmSelect())
    set_policy(world, max_length=1, overflow="reject-publish")
    assert last(world).applied_rules == QueueRules()
    for _ in range(3):
        client.publish(name)
    assert last(world).ready_count == 1


def test_so_does_what_comes_from_another_node(world: World, client: Client) -> None:
    """That has looked for the queue's route there."""
    set_policy(world, max_length=1, overflow="reject-publish")
    for _ in range(3):
        last(world).enqueue([b"x"], [b""], 1, 1, None)
    assert last(world).ready_count == 1


def test_what_is_rejected_goes_to_the_new_exchange(world: World, client: Client) -> None:
    name = f"q{QUEUES - 1:02}"
    client.declare("dead")
    client.publish(name)
    client.send(m.BasicGet(queue=name))
    (reply,) = client.take()
    assert isinstance(reply.method, m.BasicGetOk)
    set_policy(world, dead_letter_exchange="", dead_letter_routing_key="dead")
    client.send(m.BasicReject(delivery_tag=reply.method.delivery_tag, requeue=False))
    world.turn()
    assert world.queue("dead").ready_count == 1


def test_what_comes_back_is_counted(world: World, client: Client) -> None:
    name = f"q{QUEUES - 1:02}"
    client.publish(name)
    client.send(m.BasicGet(queue=name))
    (reply,) = client.take()
    assert isinstance(reply.method, m.BasicGetOk)
    world.apply(c.SetPolicy("/", "p", "^q", "classic_queues", 0, {"delivery-limit": 0}))
    client.send(m.BasicReject(delivery_tag=reply.method.delivery_tag, requeue=True))
    world.turn()
    assert last(world).ready_count == 0, "it came back once, and may not at all"


def test_bytes_are_counted_right_whenever_the_limit_comes(world: World, client: Client) -> None:
    name = f"q{QUEUES - 1:02}"
    for _ in range(4):
        client.publish(name, b"12345")
    client.send(m.BasicGet(queue=name))
    (reply,) = client.take()
    assert isinstance(reply.method, m.BasicGetOk)
    set_policy(world, max_length_bytes=1_000)
    last(world).requeue(*_out(client))
    assert (last(world).ready_count, last(world).ready_bytes) == (4, 20)


def _out(client: Client) -> tuple[Any, int, int]:
    (channel,) = client.connection.channels.values()
    (one,) = channel.session.unacked.all_out()
    return one.batch, one.lo, one.hi


def test_a_queue_of_another_node_has_the_new_rules_at_once(world: World) -> None:
    world.apply(c.DeclareQueue("/", "q-elsewhere", node="other"))
    world.turn()
    set_policy(world, max_length=7, overflow="reject-publish")
    assert world.broker.vhosts["/"].queues["q-elsewhere"].rules.rejects


def test_what_is_no_queue_any_more_is_left_alone(world: World, client: Client) -> None:
    queue = last(world)
    del world.broker.queues_by_id[queue.spec.id]
    set_policy(world, max_length=7)
    assert queue.rules == QueueRules() and queue not in world.broker.dirty
