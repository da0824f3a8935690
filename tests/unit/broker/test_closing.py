"""The clients of a user that is deleted are closed some in each turn, and may do nothing until then."""

from __future__ import annotations

import pytest

from leveret.broker import broker
from leveret.metadata.model import commands as c
from leveret.protocol import methods as m
from tests.support.machines import Client, World

CLIENTS = 10
AT_ONCE = 3


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(broker, "CLOSED_AT_ONCE", AT_ONCE)
    return World()


@pytest.fixture
def clients(world: World) -> list[Client]:
    return [world.client() for _ in range(CLIENTS)]


def told(clients: list[Client]) -> list[Client]:
    return [one for one in clients if one.connection.closing]


def test_a_turn_closes_a_few(world: World, clients: list[Client]) -> None:
    world.apply(c.DeleteUser("guest"))
    turns = 0
    while world.broker.is_behind:
        before = len(told(clients))
        world.broker.pump()
        turns += 1
        assert len(told(clients)) - before <= AT_ONCE
    assert len(told(clients)) == CLIENTS and turns == -(-CLIENTS // AT_ONCE)


def test_a_turn_closes_a_few_of_many_users(world: World) -> None:
    guest = world.metadata.users["guest"]
    clients: list[Client] = []
    for name in ("a", "b", "c"):
        world.apply(c.PutUser(name, guest.password_hash, guest.hashing, guest.tags))
        world.apply(c.SetPermissions(name, "/", ".*", ".*", ".*"))
        clients += [world.client(user=name) for _ in range(AT_ONCE)]
    for name in ("a", "b", "c"):
        world.apply(c.DeleteUser(name))
    assert not told(clients)
    for turn in range(1, 4):
        assert world.broker.is_behind
        world.broker.pump()
        assert len(told(clients)) == turn * AT_ONCE
    assert not world.broker.is_behind


def test_the_others_may_do_nothing_meanwhile(world: World, clients: list[Client]) -> None:
    last = clients[-1]
    last.declare("q")
    last.publish("q")
    world.turn()
    world.apply(c.DeleteUser("guest"))
    assert last not in told(clients)
    last.publish("q")
    answer = last.take()[-1].method
    assert isinstance(answer, m.ChannelClose) and answer.reply_code == 403
    assert world.queue("q").ready_count == 1


def test_one_that_goes_by_itself_meanwhile(world: World, clients: list[Client]) -> None:
    world.apply(c.DeleteUser("guest"))
    clients[-1].lose()
    while world.broker.is_behind:
        world.broker.pump()
    assert told(clients) == clients[:-1]


def test_a_user_of_the_same_name_does_not_save_them(world: World, clients: list[Client]) -> None:
    user = world.metadata.users["guest"]
    world.apply(c.DeleteUser("guest"))
    world.apply(c.PutUser("guest", user.password_hash, user.hashing, user.tags))
    world.apply(c.SetPermissions("guest", "/", ".*", ".*", ".*"))
    newer = world.client()
    while world.broker.is_behind:
        world.broker.pump()
    assert told(clients) == clients and not newer.connection.closing
