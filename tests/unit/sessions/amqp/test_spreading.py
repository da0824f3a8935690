"""Publishes to many queues: in slices, in order, and counted once."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from leveret.broker import fanout
from leveret.broker.delivery.batch import MESSAGE_OVERHEAD, PLACE_BYTES, Batch, Span
from leveret.broker.queue.queue import Queue
from leveret.protocol import methods as m
from leveret.protocol.tables import Field
from tests.support.machines import World, publish

QUEUES = 20
BUDGET = QUEUES * (5 + fanout.BUNDLE_COPIES)  # Five messages to all queues.


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(fanout, "COPIES_MAX", BUDGET)
    monkeypatch.setattr("leveret.broker.broker.COPIES_MAX", BUDGET)
    world = World()
    world.broker.fanout.left = BUDGET
    client = world.client()
    client.call(m.ExchangeDeclare(exchange="x", type="fanout"))
    for number in range(QUEUES):
        client.declare(f"q{number}", durable=True)
        client.call(m.QueueBind(queue=f"q{number}", exchange="x"))
    return world


def queues(world: World) -> list[Queue]:
    return [world.queue(f"q{number}") for number in range(QUEUES)]


def bodies(world: World, name: str) -> list[bytes]:
    reader = world.client()
    found: list[bytes] = []
    while True:
        reader.send(m.BasicGet(queue=name, no_ack=True))
        (reply,) = reader.take()
        if not isinstance(reply.method, m.BasicGetOk):
            return found
        found.append(reply.body)


def written(count: int, size: int = 4, **properties: Any) -> bytes:
    return b"".join(publish(1, "x", "", b"%0*d" % (size, number), **properties) for number in range(count))


def deepest(world: World) -> int:
    return max(queue.ready_count for queue in queues(world))


@pytest.mark.parametrize("size", [4, 200_000])  # The larger come in several frames each.
def test_one_read_is_taken_in_over_several_turns(world: World, size: int) -> None:
    client = world.client()
    client.feed(written(23, size))
    depths = [deepest(world)]
    while world.broker.fanout.waiting:
        assert client.connection.held  # Its socket is not read from.
        world.broker.pump()
        depths.append(deepest(world))
    assert all(0 < after - before <= 5 for before, after in pairwise([0, *depths]))
    assert not client.connection.held
    assert {queue.ready_count for queue in queues(world)} == {23}
    world.turn()
    assert bodies(world, "q7") == [b"%0*d" % (size, number) for number in range(23)]


def test_few_messages_with_keys_of_their_own_use_up_a_turn(world: World) -> None:
    """Each is a bundle of its own, which each queue takes by itself."""
    client = world.client()
    client.feed(b"".join(publish(1, "x", f"key {number}", b"%d" % number) for number in range(5)))
    depths = [deepest(world)]
    while world.broker.fanout.waiting:
        world.broker.pump()
        depths.append(deepest(world))
    assert depths == [2, 4, 5]
    assert bodies(world, "q7") == [b"%d" % number for number in range(5)]


def test_what_follows_sees_all_that_came_before(world: World) -> None:
    client = world.client()
    client.feed(written(23) + m.encode(1, m.QueueDeclare(queue="q3", passive=True)))
    world.turn()
    assert client.methods() == [m.QueueDeclareOk("q3", 23, 0)]


def test_all_is_confirmed(world: World) -> None:
    client = world.client()
    client.call(m.ConfirmSelect())
    client.feed(written(23, delivery_mode=2))
    world.turn()
    assert client.methods()[-1] == m.BasicAck(23, multiple=True)


def test_publishers_share_the_turns(world: World) -> None:
    """Nobody waits until all that others have sent is taken in, and who waits comes before what is new."""
    first, second, third = world.client(), world.client(), world.client()
    first.feed(written(50))
    second.feed(written(5))
    assert deepest(world) == 5 and list(world.broker.fanout.waiting) == [first.connection, second.connection]
    world.broker.pump()
    third.feed(written(1))
    assert list(world.broker.fanout.waiting) == [second.connection, first.connection, third.connection]
    world.broker.pump()
    assert not second.connection.rest and first.connection.rest
    world.turn()
    assert deepest(world) == 56


def test_others_are_served_meanwhile(world: World) -> None:
    publisher, other = world.client(), world.client()
    publisher.feed(written(50))
    other.declare("mine")
    other.feed(publish(1, "", "mine", b"hello"))
    assert world.queue("mine").ready_count == 1
    world.turn()


def test_publishers_wait_while_too_much_waits_for_the_disk(world: World) -> None:
    client = world.client()
    client.feed(written(50, delivery_mode=2))
    world.crowded = True
    for _ in range(10):
        world.broker.pump()
    assert deepest(world) == 5 and client.connection.held
    world.crowded = False
    world.turn()
    assert deepest(world) == 50 and not client.connection.held


def test_an_alarm_blocks_who_waits(world: World) -> None:
    """It must not wait in silence: its acks may be what ends the alarm."""
    client = world.client()
    client.connection.capabilities = {"connection.blocked": True}
    client.feed(written(50))
    world.broker.alarm = "low on memory"
    world.crowded = True
    world.turn()
    assert client.methods() == [m.ConnectionBlocked("low on memory")]
    world.broker.alarm = None
    world.crowded = False
    client.connection.unblock()
    world.turn()
    assert client.methods() == [m.ConnectionUnblocked()]
    assert deepest(world) == 50


def test_a_client_that_is_lost_waits_no_longer(world: World) -> None:
    client = world.client()
    client.feed(written(50))
    client.connection.on_socket_lost()
    world.turn()
    assert not world.broker.fanout.waiting and deepest(world) == 5


def test_a_connection_that_is_closed_by_an_operator_hears_the_answer(world: World) -> None:
    client = world.client()
    client.feed(written(50))
    client.connection.close(320, "CONNECTION_FORCED - bye")
    client.feed(m.encode(0, m.ConnectionCloseOk()))
    world.turn()
    assert client.connection.closed and deepest(world) == 5


def test_a_transaction_is_committed_in_slices(world: World) -> None:
    client = world.client()
    client.call(m.TxSelect())
    client.feed(written(23))
    world.turn()
    assert deepest(world) == 0
    client.feed(m.encode(1, m.TxCommit()))
    assert deepest(world) == 5
    world.turn()
    assert client.methods() == [m.TxCommitOk()] and deepest(world) == 23
    assert bodies(world, "q0") == [b"%04d" % number for number in range(23)]


def test_few_queues_are_no_matter(world: World) -> None:
    client = world.client()
    client.call(m.ExchangeDeclare(exchange="few", type="fanout"))
    for number in range(fanout.FEW):
        client.call(m.QueueBind(queue=f"q{number}", exchange="few"))
    client.feed(b"".join(publish(1, "few", "", b"x") for _ in range(1_000)))
    assert not client.connection.held and deepest(world) == 1_000
    world.turn()


# -- Contents are one object, and count once -----------------------------------------------------------------------


def counted(world: World) -> int:
    """What the queues hold, by themselves."""
    held = [content for queue in queues(world) for batch in batches(queue) for content in batch.contents]
    objects = {id(content): content for content in held}
    overhead = (MESSAGE_OVERHEAD - PLACE_BYTES) * len(objects) + PLACE_BYTES * len(held)
    return sum(map(len, objects.values())) + overhead


def batches(queue: Queue) -> list[Batch]:
    return [entry.batch for entry in queue.ready if isinstance(entry, Span)]


@pytest.mark.parametrize("mode", [1, 2])
def test_contents_of_many_queues_count_once(world: World, mode: int) -> None:
    client = world.client()
    client.feed(written(4, 1_000, delivery_mode=mode))
    contents = [batches(queue)[0].contents for queue in queues(world)]
    assert all(one is other for many in contents[1:] for one, other in zip(contents[0], many, strict=True))
    assert world.broker.content_bytes == counted(world) < 4 * (2_000 + QUEUES * PLACE_BYTES)
    if mode == 2:
        assert world.broker.unlogged_bytes == world.broker.content_bytes
    world.turn()
    assert world.broker.unlogged_bytes == 0
    assert world.broker.content_bytes == counted(world)
    assert queues(world)[0].memory_bytes > 4_000  # For somebody who looks at this queue alone.


def test_contents_count_until_the_last_queue_lets_go(world: World) -> None:
    client, consumer = world.client(), world.client()
    client.feed(written(4, 1_000))
    world.turn()
    for number in range(QUEUES - 2):
        client.call(m.QueuePurge(queue=f"q{number}"))
        assert world.broker.content_bytes == counted(world) > 4_000
    consumer.send(m.BasicConsume(queue="q18", consumer_tag="c"))
    assert len(consumer.take()) == 1 + 4
    client.call(m.QueueDelete(queue="q19"))
    assert world.broker.content_bytes > 4_000  # Out with a consumer.
    client.call(m.QueueDelete(queue="q18"))
    assert world.broker.content_bytes > 4_000  # The channel has them still.
    consumer.connection.on_socket_lost()
    consumer.connection.channels.clear()
    del consumer
    world.clients.clear()
    world.turn()
    assert world.broker.content_bytes == 0


def test_a_letter_is_not_taken_for_what_is_shared(world: World) -> None:
    """A queue that turns a message away may dead-letter it, in the middle of a publish to several queues."""
    client = world.client()
    client.declare("grave")
    arguments = {
        "x-max-length": Field("I", 0),
        "x-overflow": Field("S", "reject-publish-dlx"),
        "x-dead-letter-exchange": Field("S", ""),
        "x-dead-letter-routing-key": Field("S", "grave"),
    }
    client.declare("full", arguments=arguments)
    client.call(m.QueueBind(queue="full", exchange="x"))
    client.feed(written(3, 10_000))
    world.turn()
    grave = world.queue("grave")
    assert grave.ready_count == 3 and grave.shared_bytes == 0
    assert world.broker.content_bytes == counted(world) + grave.memory_bytes


def test_little_may_count_for_each_queue(world: World) -> None:
    client = world.client()
    client.feed(written(2, 100))
    assert world.broker.content_bytes == sum(queue.memory_bytes for queue in queues(world))
    world.turn()
    for number in range(QUEUES):
        client.call(m.QueuePurge(queue=f"q{number}"))
    assert world.broker.content_bytes == 0
