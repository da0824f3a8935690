"""Alternate exchanges by policy, as clients see them."""

from __future__ import annotations

import pytest

from leveret.broker.broker import Broker
from leveret.metadata.model import commands as c
from leveret.metadata.store import Metadata
from leveret.protocol import methods as m
from leveret.protocol.tables import Field
from tests.support.machines import UNLIMITED, Client, World

POLICY = c.SetPolicy("/", "p", "^x", "exchanges", 0, {"alternate-exchange": "amq.fanout"})


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def client(world: World) -> Client:
    client = world.client()
    client.declare("q")
    client.call(m.QueueBind(queue="q", exchange="amq.fanout"))
    return client


def declare(client: Client, name: str, **arguments: Field) -> None:
    table = {key.replace("_", "-"): value for key, value in arguments.items()}
    assert client.call(m.ExchangeDeclare(exchange=name, type="direct", arguments=table)) == m.ExchangeDeclareOk()


def is_routed(client: Client, exchange: str) -> bool:
    client.publish("k", exchange=exchange, mandatory=True)
    return client.methods() == []


def test_from_when_it_is_set_until_it_is_cleared(world: World, client: Client) -> None:
    declare(client, "x")
    declare(client, "other")
    assert not is_routed(client, "x")
    world.apply(POLICY)
    assert is_routed(client, "x") and not is_routed(client, "other")
    declare(client, "x2")
    assert is_routed(client, "x2")
    world.apply(c.ClearPolicy("/", "p"))
    assert not is_routed(client, "x") and not is_routed(client, "x2")


def test_an_argument_goes_first(world: World, client: Client) -> None:
    world.apply(POLICY)
    declare(client, "x", alternate_exchange=Field("S", "amq.direct"))
    assert not is_routed(client, "x")
    world.apply(c.ClearPolicy("/", "p"))
    client.call(m.QueueBind(queue="q", exchange="amq.direct", routing_key="k"))
    assert is_routed(client, "x")


def test_a_declaration_is_not_compared_with_policies(world: World, client: Client) -> None:
    world.apply(POLICY)
    declare(client, "x")
    declare(client, "x")


def test_policies_for_queues_do_not_count(world: World, client: Client) -> None:
    declare(client, "x")
    world.apply(c.SetPolicy("/", "p", "^x", "queues", 0, {"alternate-exchange": "amq.fanout"}))
    assert not is_routed(client, "x")


def test_the_default_exchange_has_none(world: World, client: Client) -> None:
    world.apply(c.SetPolicy("/", "p", "", "exchanges", 0, {"alternate-exchange": "amq.fanout"}))
    assert not is_routed(client, "")


def test_a_node_that_starts_with_both(world: World, client: Client) -> None:
    world.apply(POLICY)
    declare(client, "x")
    restored = Metadata()
    restored.restore(world.metadata.snapshot())
    again = Broker(restored, world, "node", "cluster", "3.11", UNLIMITED, UNLIMITED).vhosts["/"]
    assert again.router.route("x", "k", dict) == (again.queues["q"],)


def test_commands_may_all_be_applied_before_their_events_are_told(world: World, client: Client) -> None:
    applied = [
        world.metadata.apply(POLICY),
        world.metadata.apply(c.DeclareExchange("/", "x", "direct")),
        world.metadata.apply(c.DeclareExchange("/", "x3", "direct")),
        world.metadata.apply(c.DeleteExchange("/", "x3")),
    ]
    world.broker.on_applied(tuple(event for each in applied for event in each.events))
    assert is_routed(client, "x")


def test_many_exchanges_are_told_in_several_turns(world: World, client: Client) -> None:
    """Searching for slow patterns in the names of all of them at once would hold the node up."""
    for number in range(200):
        declare(client, f"x{number}")
    world.apply(c.SetPolicy("/", "slow", "^(n+n+)+$", "exchanges", 1, {"alternate-exchange": "amq.direct"}))
    world.apply(POLICY)
    assert world.broker.is_behind
    declare(client, "x-later")
    client.call(m.ExchangeDelete(exchange="x0"))  # Which may be among those that are left.
    turns = 0
    while world.broker.is_behind:
        world.broker.pump()
        turns += 1
    assert 1 < turns < 200
    assert all(is_routed(client, f"x{number}") for number in (1, 100, 199))
    assert is_routed(client, "x-later")
