"""Very many messages of a queue grow old, or are too many, in one moment: each turn drops some of them."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from leveret.broker import broker
from leveret.broker.queue import ttl_and_length
from leveret.broker.queue.lease import LeaseView
from leveret.broker.queue.leases import open_lease, take_lease
from leveret.broker.queue.ordered_queue import OrderedQueue
from leveret.metadata.model import commands as c
from leveret.metadata.model.refusals import Refusal
from leveret.protocol import methods as m
from leveret.protocol.tables import table_from_python
from tests.support.machines import Client, World, publish
from tests.support.mirrored_brokers import Rings

AT_ONCE = 3
COUNT = 20
BODIES = [b"%d" % number for number in range(COUNT)]
START_MS = 1_000_000_000


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    for module in ("leveret.broker.queue.ttl_and_length", "leveret.broker.broker"):
        monkeypatch.setattr(f"{module}.EXPIRED_AT_ONCE", AT_ONCE)
    for name in ("DROPPED_AT_ONCE", "SIZED_AT_ONCE"):
        monkeypatch.setattr(ttl_and_length, name, AT_ONCE)
    world = World()
    world.broker.wall_ms = START_MS
    return world


@pytest.fixture
def client(world: World) -> Client:
    return world.client()


def fill(client: Client, own_ms: int = 100, **arguments: Any) -> None:
    table = table_from_python({f"x-{key.replace('_', '-')}": value for key, value in arguments.items()})
    client.call(m.QueueDeclare(queue="q", durable=True, arguments=table))
    for body in BODIES:
        client.publish("q", body, delivery_mode=2, expiration=str(own_ms))


def grow_old(world: World, ms: int = 200) -> None:
    world.broker.wall_ms += ms
    world.broker.now_ms += ms
    world.broker.on_time()


def ready(world: World, name: str = "q") -> int:
    return world.queue(name).ready_count


def test_each_turn_drops_some_that_have_grown_old(world: World, client: Client) -> None:
    fill(client)
    client.publish("q", b"fresh")
    grow_old(world)
    turns = 0
    while ready(world) > 1:
        before = ready(world)
        world.broker.pump()
        turns += 1
        assert before - AT_ONCE <= ready(world) < before
        assert ready(world) == 1 or world.broker.is_behind  # The node has another turn.
    assert turns == -(-COUNT // AT_ONCE)
    world.turn()
    assert not world.broker.is_behind and not world.broker.dirty


def test_the_rest_goes_also_when_the_clock_is_set_back(world: World, client: Client) -> None:
    fill(client)
    separate(world, client)
    world.metadata.apply(c.SetPolicy("/", "p", "^q$", "queues", 0, {"max-length": 0}))
    world.broker.refresh_rules()
    world.broker.pump()
    assert ready(world) > AT_ONCE
    world.broker.wall_ms -= 3_600_000
    while ready(world):
        before = ready(world)
        assert world.broker.is_behind
        world.broker.pump()
        assert ready(world) < before


def test_a_get_is_answered_also_when_the_clock_is_set_back(world: World, client: Client) -> None:
    fill(client)
    grow_old(world)
    world.broker.pump()
    client.feed(m.encode(1, m.BasicGet(queue="q", no_ack=True)))
    world.broker.wall_ms -= 3_600_000
    world.turn()
    assert [one.body for one in client.take()] == [BODIES[AT_ONCE]]  # None is overdue any more.


def test_a_turn_has_some_of_very_many_queues_that_have_more_to_drop(
    world: World, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker, "GOING_ON_AT_ONCE", AT_ONCE)
    names = [f"q{number}" for number in range(3 * AT_ONCE)]
    for name in names:
        client.declare(name, durable=True)
        for body in BODIES:
            client.publish(name, body, expiration="100")
    grow_old(world)
    world.broker.pump()
    left = {name: ready(world, name) for name in names}
    asked: set[str] = set()
    for _ in range(3):
        world.broker.pump()
        dropping = [name for name in names if ready(world, name) < left[name]]
        assert len(dropping) <= AT_ONCE
        left = {name: ready(world, name) for name in names}
        asked.update(dropping)
    assert len(asked) == len(names)  # Each has had a turn.
    while world.broker.is_behind:
        world.broker.pump()
    assert not any(ready(world, name) for name in names)


def test_floods_of_other_queues_do_not_keep_one_from_dropping_its_own(world: World, client: Client) -> None:
    names = ["flood1", "flood2", "q", "flood3", "flood4"]
    for name in names:
        client.declare(name, durable=True)
        for body in BODIES if name != "q" else [b"old"]:
            client.publish(name, body, expiration="100")
    client.publish("q", b"fresh")
    client.consume("q", no_ack=True)
    assert client.bodies() == [b"old", b"fresh"]
    client.send(m.BasicCancel(consumer_tag="c"))
    client.publish("q", b"old", expiration="100")
    client.publish("q", b"fresh")
    client.take()
    grow_old(world)
    client.feed(m.encode(1, m.BasicConsume(queue="q", no_ack=True)))
    for _ in range(2):
        world.broker.pump()
    assert ready(world) == 0
    before = {name: ready(world, name) for name in names}
    for _ in range(len(names)):
        world.broker.pump()
    # Each flood has had a turn in which it was the first.
    assert all(before[name] - ready(world, name) >= AT_ONCE for name in names if name != "q")


@pytest.mark.parametrize("levels", [{}, {"max_priority": 3}], ids=["plain", "priorities"])
def test_a_consumer_gets_none_of_them(world: World, client: Client, levels: dict[str, Any]) -> None:
    fill(client, **levels)
    client.publish("q", b"fresh")
    grow_old(world)
    world.broker.pump()
    assert ready(world) > AT_ONCE
    client.consume("q", no_ack=True)
    world.turn()
    assert client.bodies() == [b"fresh"] and ready(world) == 0


def test_a_get_waits_until_they_are_gone(world: World, client: Client) -> None:
    fill(client)
    client.publish("q", b"fresh")
    grow_old(world)
    world.broker.pump()
    client.feed(m.encode(1, m.BasicGet(queue="q", no_ack=True)))
    client.feed(m.encode(1, m.BasicGet(queue="q", no_ack=True)))
    assert ready(world) > AT_ONCE and not client.take()
    world.turn()
    got, empty = client.take()
    assert got.body == b"fresh" and isinstance(empty.method, m.BasicGetEmpty)
    assert not world.broker.waiting_for_load


@pytest.mark.parametrize("levels", [{}, {"max_priority": 3}], ids=["plain", "priorities"])
def test_a_lease_waits_until_they_are_gone(world: World, client: Client, levels: dict[str, Any]) -> None:
    fill(client, **levels)
    client.publish("q", b"fresh", delivery_mode=2)
    answers: list[LeaseView | Refusal] = []
    open_lease(world.queue("q"), "l", None, answers.append)
    world.turn()
    grow_old(world)
    world.broker.pump()
    take_lease(world.queue("q"), "l", 10, 1 << 20, answers.append)
    assert ready(world) > AT_ONCE and len(answers) == 1
    world.turn()
    view = answers[-1]
    assert isinstance(view, LeaseView) and (view.next, view.runs) == (1, [(0, COUNT + 1, COUNT + 1)])


class Calls:
    """Counts how often anybody asks a queue for its first message."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        fetch = OrderedQueue.fetch

        def counted(queue: OrderedQueue, *arguments: Any) -> None:
            self.count += 1
            fetch(queue, *arguments)

        monkeypatch.setattr(OrderedQueue, "fetch", counted)


def test_gets_that_wait_together_ask_no_more_often_than_one(
    world: World, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(client)
    client.publish("q", b"fresh")
    others = [world.client() for _ in range(10)]
    grow_old(world)
    world.broker.pump()
    calls = Calls(monkeypatch)
    for one in others:
        one.feed(m.encode(1, m.BasicGet(queue="q", no_ack=True)))
    assert calls.count == len(others) and ready(world) > AT_ONCE
    while ready(world) > AT_ONCE:
        before = calls.count
        world.broker.pump()
        assert calls.count - before <= 1
    world.turn()
    assert calls.count <= 3 * len(others)
    assert [one.take()[0].body for one in others] == [b"fresh"] + [b""] * 9
    assert not world.broker.waiting_for_load and not world.broker.overdue


def test_gets_from_a_mirrored_queue_ask_when_the_mirrors_know_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    rings = Rings(table_from_python({"x-message-ttl": 1_000_000}))
    clients = [rings["a"].client() for _ in range(10)]
    for body in BODIES:
        clients[0].publish("q", body, delivery_mode=2)
    rings.run()
    calls = Calls(monkeypatch)
    for one in clients:
        one.feed(m.encode(1, m.BasicGet(queue="q", no_ack=True)))
    rings.run()
    assert [one.bodies() for one in clients] == [[body] for body in BODIES[:10]]
    assert calls.count <= 10 * len(clients)


def test_a_get_that_waits_when_the_queue_is_deleted(world: World, client: Client) -> None:
    other = world.client()
    fill(client)
    grow_old(world)
    world.broker.pump()
    client.feed(m.encode(1, m.BasicGet(queue="q", no_ack=True)))
    other.feed(m.encode(1, m.QueueDelete(queue="q")))
    world.turn()
    assert [type(one.method) for one in client.take()] == [m.ChannelClose]
    assert not world.broker.waiting_for_load


def test_what_is_purged_meanwhile(world: World, client: Client) -> None:
    fill(client)
    grow_old(world)
    world.broker.pump()
    client.send(m.QueuePurge(queue="q"))
    assert ready(world) == 0 and not world.broker.is_behind
    assert not world.log.queues[world.queue("q").spec.id]


def test_they_are_dead_lettered_in_order(world: World, client: Client) -> None:
    client.declare("dead", durable=True)
    fill(client, dead_letter_exchange="", dead_letter_routing_key="dead")
    grow_old(world)
    while ready(world):
        world.broker.pump()
    client.consume("dead", no_ack=True)
    assert client.bodies() == BODIES


def test_a_queue_that_is_full_of_them_takes_messages(world: World, client: Client) -> None:
    fill(client, max_length=COUNT, overflow="reject-publish")
    grow_old(world)
    client.call(m.ConfirmSelect())
    for _ in range(AT_ONCE + 2):
        client.feed(publish(1, "", "q", b"new", client.frame_max))
    world.turn()
    assert [type(one.method) for one in client.take()] == [m.BasicAck]
    assert ready(world) == AT_ONCE + 2


def separate(world: World, client: Client) -> None:
    """Has each message be a piece by itself."""
    client.consume("q", tag="q")
    deliveries = [one.method for one in client.take() if isinstance(one.method, m.BasicDeliver)]
    for one in deliveries[1::2]:
        client.send(m.BasicAck(delivery_tag=one.delivery_tag))
    client.send(m.BasicCancel(consumer_tag="q"), m.BasicNack(delivery_tag=0, multiple=True, requeue=True))
    client.take()


@pytest.mark.parametrize("definition", [{"max-length": 0}, {"max-length-bytes": 0}], ids=["number", "bytes"])
def test_each_turn_drops_some_that_exceed_a_limit(world: World, client: Client, definition: dict[str, Any]) -> None:
    fill(client, own_ms=1_000_000)
    separate(world, client)
    world.metadata.apply(c.SetPolicy("/", "p", "^q$", "queues", 0, definition))
    world.broker.refresh_rules()
    turns = 0
    while ready(world):
        before = ready(world)
        world.broker.pump()
        turns += 1
        assert before - ready(world) <= AT_ONCE
    assert turns >= COUNT // 2 // AT_ONCE


def test_what_exceeds_a_limit_does_not_grow(world: World, client: Client) -> None:
    fill(client, own_ms=1_000_000)
    separate(world, client)
    world.metadata.apply(c.SetPolicy("/", "p", "^q$", "queues", 0, {"max-length": 0}))
    world.broker.refresh_rules()
    world.broker.pump()
    for _ in range(COUNT):
        before = ready(world)
        for _ in range(4 * AT_ONCE):
            client.feed(publish(1, "", "q", b"new", client.frame_max))
        world.broker.pump()
        assert ready(world) < before or not before
    world.turn()
    assert ready(world) == 0


@pytest.mark.parametrize("levels", [{}, {"max_priority": 3}], ids=["plain", "priorities"])
def test_what_a_deleted_queue_had_is_freed_over_turns(
    world: World, client: Client, levels: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker, "FREED_AT_ONCE", AT_ONCE)
    monkeypatch.setattr(broker, "FREED_A_STEP", 1)
    monkeypatch.setattr(broker, "STEPS", AT_ONCE)
    world.broker.opened_ms = 1
    fill(client, own_ms=1_000_000, **levels)
    client.feed(m.encode(1, m.QueueDelete(queue="q")))
    (job,) = world.broker.upkeep.jobs
    assert isinstance(job, partial)
    (rows,) = job.args
    left = COUNT
    while world.broker.is_behind:
        before, left = left, sum(map(len, rows))
        assert before - left <= AT_ONCE
        world.broker.pump()
    assert not rows and world.broker.content_bytes == 0
