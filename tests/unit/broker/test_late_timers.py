"""Of very many queues whose time has come at the same moment, each turn has some."""

from __future__ import annotations

import pytest

from leveret.broker import broker
from leveret.protocol import methods as m
from leveret.protocol.tables import table_from_python
from tests.support.machines import Client, World

QUEUES = 10
NAMES = [f"q{number}" for number in range(QUEUES)]
AT_ONCE = 3


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(broker, "DUE_AT_ONCE", AT_ONCE)
    monkeypatch.setattr(broker, "IDLE_AT_ONCE", AT_ONCE)
    return World()


def declare(world: World, **arguments: int) -> Client:
    client = world.client()
    table = table_from_python({f"x-{key.replace('_', '-')}": value for key, value in arguments.items()})
    for name in NAMES:
        client.call(m.QueueDeclare(queue=name, arguments=table))
    world.turn()
    return client


def pass_time(world: World, ms: int) -> None:
    world.broker.wall_ms += ms
    world.broker.now_ms += ms
    assert world.broker.on_time()


def full(world: World) -> list[str]:
    return [name for name in there(world) if world.queue(name).ready_count]


def there(world: World) -> list[str]:
    return [name for name in NAMES if name in world.broker.vhosts["/"].queues]


def with_old_messages(world: World) -> Client:
    client = declare(world, message_ttl=100)
    for name in NAMES:
        client.publish(name)
    world.turn()
    pass_time(world, 200)
    return client


def test_messages_grow_old_in_some_queues_of_a_turn(world: World) -> None:
    with_old_messages(world)
    turns = 0
    while full(world):
        before = len(full(world))
        world.broker.pump()
        world.broker.on_time()  # A tick adds nothing.
        turns += 1
        assert before - len(full(world)) <= AT_ONCE
        assert world.broker.dirty or not full(world)  # The node has another turn.
    assert turns == -(-QUEUES // AT_ONCE)
    assert not world.broker.is_behind


def test_nobody_gets_an_old_message_meanwhile(world: World) -> None:
    client = with_old_messages(world)
    world.broker.pump()
    name = full(world)[-1]
    client.send(m.BasicGet(queue=name, no_ack=True))
    assert isinstance(client.take()[-1].method, m.BasicGetEmpty)
    client.consume(NAMES[-1])
    while full(world):
        world.turn()
    assert client.bodies() == []


def test_one_that_is_deleted_meanwhile_is_none_of_them(world: World) -> None:
    client = with_old_messages(world)
    world.broker.pump()
    client.call(m.QueueDelete(queue=full(world)[-1]))
    world.turn()
    assert not full(world) and not world.broker.is_behind


def test_unused_queues_go_some_in_a_turn(world: World) -> None:
    declare(world, expires=100)
    pass_time(world, 200)
    while there(world):
        before = len(there(world))
        assert world.broker.is_behind
        world.broker.pump()
        world.broker.on_time()  # A tick adds nothing.
        assert before - len(there(world)) <= AT_ONCE
    world.broker.pump()
    assert not world.broker.is_behind


def test_one_that_is_used_meanwhile_stays(world: World) -> None:
    client = declare(world, expires=100)
    pass_time(world, 200)
    last = there(world)[-1]
    client.consume(last)
    while world.broker.is_behind:
        world.broker.pump()
    assert there(world) == [last]
