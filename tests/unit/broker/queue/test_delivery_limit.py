"""How often messages come back: what is counted, what consumers are told, and the end of those that come too often."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.broker.delivery.batch import Gap, Span
from leveret.broker.queue.delivery_limit import DeliveryLimit, with_count
from leveret.broker.remote.migrate import LIFE, move
from leveret.metadata.model import commands as c
from leveret.protocol import methods as m
from leveret.protocol.frames import content
from leveret.protocol.properties import Properties, decode_content, encode
from leveret.protocol.tables import Field, table_from_python, to_python
from leveret.storage.format.queue_block import Block
from tests.support.brokers import Cluster
from tests.support.machines import Client, Reply, World
from tests.support.mirrored_brokers import Rings

COUNT = "x-delivery-count"


@pytest.fixture
def world() -> World:
    world = World()
    world.broker.wall_ms = 5_000_000
    return world


@pytest.fixture
def client(world: World) -> Client:
    return world.client()


def limit(world: World, value: int, pattern: str = "^q$", **more: Any) -> None:
    world.apply(c.SetPolicy("/", "limit", pattern, "classic_queues", 0, {"delivery-limit": value, **more}))


def declare(client: Client, name: str = "q", **arguments: Any) -> None:
    table = table_from_python({f"x-{key.replace('_', '-')}": value for key, value in arguments.items()})
    client.declare(name, durable=True, arguments=table)


def get(client: Client, name: str = "q", channel: int = 1, no_ack: bool = False) -> Reply | None:
    client.send(m.BasicGet(queue=name, no_ack=no_ack), channel=channel)
    (reply,) = client.take()
    return None if isinstance(reply.method, m.BasicGetEmpty) else reply


def count(reply: Reply | None) -> Any:
    """What a message says of its returns; None: it says nothing."""
    assert reply is not None and reply.properties is not None
    return to_python(reply.properties.headers or {}).get(COUNT)


def tag(reply: Reply | None) -> int:
    assert reply is not None and isinstance(reply.method, m.BasicGetOk | m.BasicDeliver)
    return reply.method.delivery_tag


def give_back(client: Client, how: str, reply: Reply | None) -> None:
    if how == "nack":
        client.send(m.BasicNack(delivery_tag=tag(reply), requeue=True))
    elif how == "reject":
        client.send(m.BasicReject(delivery_tag=tag(reply), requeue=True))
    elif how == "recover":
        client.send(m.BasicRecover(requeue=True))
    else:
        client.send(m.ChannelClose(200, "", 0, 0))
        client.send(m.ChannelOpen())
    client.take()


@pytest.mark.parametrize("how", ["nack", "reject", "recover", "close"])
def test_a_message_dies_when_it_came_back_more_often_than_the_limit(world: World, client: Client, how: str) -> None:
    limit(world, 2, **{"dead-letter-exchange": "", "dead-letter-routing-key": "dead"})
    declare(client, "dead")
    declare(client)
    client.publish("q", b"m", delivery_mode=2)
    for expected in (0, 1, 2):
        reply = get(client)
        assert count(reply) == expected
        assert isinstance(reply.method, m.BasicGetOk)  # type: ignore[union-attr]
        assert reply.method.redelivered == (expected > 0)  # type: ignore[union-attr]
        give_back(client, how, reply)
    assert get(client) is None
    dead = get(client, "dead", no_ack=True)
    assert dead is not None and dead.body == b"m" and dead.properties is not None
    headers: Any = to_python(dead.properties.headers or {})
    (death,) = headers["x-death"]
    assert (death["reason"], death["queue"], death["count"]) == ("delivery_limit", "q", 1)
    assert headers["x-first-death-reason"] == "delivery_limit" and COUNT not in headers
    queue = world.queue("q")
    returns = queue.extension(DeliveryLimit)
    assert returns is not None and not returns.counts and not returns.overdue
    assert (queue.ready_count, queue.unacked_count) == (0, 0)


def test_a_limit_of_nothing_gives_one_delivery(world: World, client: Client) -> None:
    limit(world, 0)
    declare(client)
    client.publish("q")
    give_back(client, "nack", get(client))
    assert get(client) is None and not world.log.queues.get(world.queue("q").spec.id)


def test_consumers_are_told_from_the_first_return_on(world: World, client: Client) -> None:
    """As RabbitMQ has it: a first delivery says nothing, the answer to a first get says 0."""
    limit(world, 5)
    declare(client)
    client.publish("q", b"m", headers=table_from_python({"z": 1, COUNT: 77, "b": 2}))
    client.send(m.BasicConsume(queue="q", consumer_tag="t"))
    _, first = client.take()
    assert count(first) == 77, "that is the publisher's word"
    client.send(m.BasicNack(delivery_tag=tag(first), requeue=True))
    (second,) = client.take()
    assert second.properties is not None and second.properties.headers is not None
    assert list(to_python(second.properties.headers).items()) == [("b", 2), (COUNT, 1), ("z", 1)]
    client.send(m.BasicAck(delivery_tag=tag(second)))
    assert world.queue("q").extension(DeliveryLimit).counts == {}  # type: ignore[union-attr]


def test_a_queue_without_a_limit_counts_nothing(world: World, client: Client) -> None:
    declare(client)
    client.publish("q", b"m")
    for _ in range(5):
        reply = get(client)
        assert count(reply) is None
        give_back(client, "nack", reply)
    assert world.queue("q").extension(DeliveryLimit) is None
    assert world.blocks == [] or not any(block.counts for block in world.blocks)


def test_a_quorum_queue_counts_without_a_limit(world: World, client: Client) -> None:
    spec = c.DeclareQueue("/", "q", durable=True, arguments={"x-queue-type": Field("S", "quorum")}, node="node")
    world.apply(spec)
    client.publish("q", b"m")
    for expected in range(4):
        reply = get(client)
        assert count(reply) == expected
        give_back(client, "nack", reply)
    assert not world.queue("q").has_upkeep, "there is nothing to look after"


def test_those_that_came_too_often_leave_from_among_others(world: World, client: Client) -> None:
    limit(world, 1, **{"dead-letter-exchange": "", "dead-letter-routing-key": "dead"})
    declare(client, "dead")
    declare(client)
    for number in range(6):
        client.publish("q", b"%d" % number)
    first = [get(client) for _ in range(6)]
    for number in (1, 2, 4):
        give_back(client, "nack", first[number])
    again = [get(client) for _ in range(3)]
    for number in (0, 3, 5):
        give_back(client, "nack", first[number])
    client.send(*(m.BasicNack(delivery_tag=tag(reply), requeue=True) for reply in again))
    assert world.queue("q").ready_count == 3
    assert [get(client, no_ack=True).body for _ in range(3)] == [b"0", b"3", b"5"]  # type: ignore[union-attr]
    assert [get(client, "dead", no_ack=True).body for _ in range(3)] == [b"1", b"2", b"4"]  # type: ignore[union-attr]


def test_what_memory_has_forgotten_is_read_to_be_buried(client: Client, world: World) -> None:
    limit(world, 0)  # Without letters: where there are some, memory does not forget what is out.
    declare(client, "dead")
    declare(client)
    for number in range(3):
        client.publish("q", b"%d" % number, delivery_mode=2)
    replies = [get(client) for _ in range(3)]
    world.broker.content_bytes_max = 0
    world.broker.page_out_unacked()
    assert all(one.batch.paged for one in client.connection.channels[1].session.unacked)
    world.broker.content_bytes_max = 1 << 40
    limit(world, 0, **{"dead-letter-exchange": "", "dead-letter-routing-key": "dead"})
    client.send(m.BasicNack(delivery_tag=tag(replies[-1]), multiple=True, requeue=True))
    client.take()
    assert world.queue("q").ready_count == 0
    assert sorted(get(client, "dead", no_ack=True).body for _ in range(3)) == [b"0", b"1", b"2"]  # type: ignore[union-attr]


def test_a_log_that_knows_of_one_that_was_about_to_leave(world: World, client: Client) -> None:
    """The node stopped before its letter was safe. Nobody is given it again, wherever it waits."""
    limit(world, 1, **{"dead-letter-exchange": "", "dead-letter-routing-key": "dead"})
    declare(client, "dead")
    declare(client)
    queue = world.queue("q")
    for number in range(6):
        client.publish("q", b"%d" % number, delivery_mode=2)
    queue.ready.clear()
    queue.restore(queue.number, 2, 7, 1, 6, 6, 4)
    returns = queue.extension(DeliveryLimit)
    assert returns is not None
    returns.restore({1: 2, 2: 1, 4: 2}, 1)
    world.load_messages_max = 2
    assert isinstance(queue.ready[0], Gap)
    client.send(m.BasicConsume(queue="q", consumer_tag="t", no_ack=True))
    assert client.bodies() == [b"1", b"2", b"4", b"5"]
    assert [get(client, "dead", no_ack=True).body for _ in range(2)] == [b"0", b"3"]  # type: ignore[union-attr]


def test_a_message_marked_as_redelivered_came_back_once(world: World, client: Client) -> None:
    """A node that died with it has told nobody."""
    limit(world, 1)
    declare(client)
    queue = world.queue("q")
    client.publish("q", b"m", delivery_mode=2)
    head = queue.ready[0]
    assert isinstance(head, Span)
    head.batch.mark_redelivered(0, 1)
    reply = get(client)
    assert count(reply) == 1
    give_back(client, "nack", reply)
    assert get(client) is None


def test_what_no_client_was_shown_does_not_count(world: World, client: Client) -> None:
    limit(world, 0)
    declare(client)
    client.publish("q", b"m")
    queue = world.queue("q")
    got = queue.get()
    assert isinstance(got, tuple)
    queue.requeue(got[0], got[1], got[1] + 1, shown=False)
    world.turn()
    assert count(get(client)) == 0


def test_what_is_marked_only_because_it_comes_out_of_order_does_not_count(world: World, client: Client) -> None:
    limit(world, 1)
    declare(client)
    world.holds_disk = True
    for body in (b"1", b"2"):
        client.publish("q", body, delivery_mode=2)
    queue = world.queue("q")
    got = queue.get()
    assert isinstance(got, tuple)
    assert count(get(client)) == 0
    world.blocks.clear()
    queue.requeue(got[0], got[1], got[1] + 1, shown=False)
    world.turn()
    assert [block.counts for block in world.blocks] == [[(1, 1, 0)]], "so that the next master knows it, too"
    for expected in (0, 1):
        reply = get(client)
        assert count(reply) == expected
        assert reply is not None and isinstance(reply.method, m.BasicGetOk) and reply.method.redelivered
        give_back(client, "nack", reply)
    assert get(client) is None


def test_blocks_carry_the_counts_of_what_is_logged(world: World, client: Client) -> None:
    limit(world, 9)
    declare(client)
    world.holds_disk = True
    for body in (b"1", b"2"):
        client.publish("q", body, delivery_mode=2)
    client.publish("q", b"3")
    replies = [get(client) for _ in range(3)]
    world.blocks.clear()
    client.send(m.BasicNack(delivery_tag=tag(replies[2]), multiple=True, requeue=True))
    assert [block.counts for block in world.blocks] == [[(1, 2, 1)]], "the third is in memory only"
    world.blocks.clear()
    give_back(client, "nack", get(client))
    assert [block.counts for block in world.blocks] == [[(1, 1, 2)]]


def test_purging_and_dropping_forget_counts(world: World, client: Client) -> None:
    limit(world, 9)
    declare(client)
    client.publish("q")
    give_back(client, "nack", get(client))
    returns = world.queue("q").extension(DeliveryLimit)
    assert returns is not None and returns.counts == {1: 1}
    client.send(m.QueuePurge(queue="q"))
    assert returns.counts == {}


def test_a_header_is_added_to_whatever_a_message_has() -> None:
    properties = Properties(content_type="a/b", delivery_mode=2)
    old = content(encode(properties, 3), b"abc", 0)
    new = with_count(old, 3)
    found = decode_content(new, 7)
    assert (found.content_type, found.delivery_mode, found.headers) == ("a/b", 2, {COUNT: Field("l", 3)})
    assert new.endswith(old[-11:]) and decode_content(old, 7).headers is None


# -- More than one node ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("out", [False, True])
def test_the_next_master_goes_on_counting(out: bool) -> None:
    """Whether the message waits when the master changes, or is with a client, who gives it back to the former one."""
    nodes = Rings()
    nodes.apply(c.SetPolicy("/", "limit", "^q$", "classic_queues", 0, {"delivery-limit": 2}))
    at_b = nodes["b"].client()
    at_b.publish("q", b"m", delivery_mode=2)
    nodes.run()
    for expected in (0, 1):
        at_b.feed(m.encode(1, m.BasicGet(queue="q")))
        nodes.run()
        (reply,) = at_b.take()
        assert count(reply) == expected, "its home puts the number in"
        at_b.feed(m.encode(1, m.BasicNack(delivery_tag=tag(reply), requeue=True)))
        nodes.run()
    if not out:
        nodes.hand_over("c")
    at_b.take()
    at_b.feed(m.encode(1, m.BasicConsume(queue="q", consumer_tag="t")))
    nodes.run()
    reply = at_b.take()[-1]
    assert count(reply) == 2
    if out:
        nodes.hand_over("c")
    at_b.feed(m.encode(1, m.BasicNack(delivery_tag=tag(reply), requeue=True)))
    nodes.run()
    assert not at_b.take()
    queue = nodes["c"].broker.queues_by_id[nodes.number]
    assert queue.is_local and queue.ready_count == 0 and queue.unacked_count == 0


def test_the_next_master_does_not_take_a_mark_for_a_return() -> None:
    """A message waited at the client's node for room, while another client was shown a later one."""
    nodes = Rings()
    nodes.apply(c.SetPolicy("/", "limit", "^q$", "classic_queues", 0, {"delivery-limit": 2}))
    at_a, at_b = nodes["a"].client(), nodes["b"].client()
    for body in (b"1", b"2"):
        at_a.publish("q", body, delivery_mode=2)
    nodes.run()
    queue = nodes["a"].broker.queues_by_id[nodes.number]
    assert queue.is_local
    for _ in range(2):
        at_b.feed(m.encode(1, m.BasicGet(queue="q")))
        nodes.run()
    assert [count(reply) for reply in at_b.take()[-2:]] == [0, 0]
    (one,) = [home for home in nodes["a"].broker.owner_ends.values() if home.unacked.count]
    one._requeue(one.unacked.take_range(1, 1), shown=False)
    nodes.run()
    nodes.hand_over("c")
    at_c = nodes["c"].client()
    at_c.feed(m.encode(1, m.BasicGet(queue="q")))
    nodes.run()
    reply = at_c.take()[-1]
    assert reply.body == b"1" and isinstance(reply.method, m.BasicGetOk) and reply.method.redelivered
    assert count(reply) == 0


def test_counts_move_with_their_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """And moving it counts for nothing, whoever has what in hand."""
    cluster = Cluster("a", "b")
    for name in ("a", "b"):
        cluster[name].broker.run = f"run of {name}"
        cluster.apply(c.NodeStarted(name, run=f"run of {name}"))
    cluster.apply(c.SetPolicy("/", "limit", "^q$", "classic_queues", 0, {"delivery-limit": 2}))
    client = cluster["a"].client()
    declare(client)
    for body in (b"0", b"1", b"2"):
        client.publish("q", body, delivery_mode=2)
    for often in (1, 2):
        for _ in range(often):
            reply = get(client)
            assert reply is not None
            client.send(m.BasicNack(delivery_tag=tag(reply), requeue=True))
        client.send(m.BasicGet(queue="q"))  # Stays out, so that the next one is at the front.
        client.take()
    ended: list[str | None] = []
    logged: list[tuple[int, int, int]] = []
    log = cluster["b"].log
    append = log.append

    def watched(block: Block) -> None:
        logged.extend(block.counts)
        append(block)

    monkeypatch.setattr(log, "append", watched)
    move(cluster["a"].queue("q"), "b", ended.append)
    cluster.run()
    assert ended == [None]
    at_b = cluster["b"].client()
    found = [get(at_b) for _ in range(3)]
    assert [(reply.body, count(reply)) for reply in found if reply is not None] == [(b"0", 1), (b"1", 2), (b"2", 0)]
    assert cluster["b"].queue("q").extension(DeliveryLimit).counts == {LIFE: 1, LIFE + 1: 2}  # type: ignore[union-attr]
    assert logged == [(LIFE, LIFE, 1), (LIFE + 1, LIFE + 1, 2)]
    cluster.finish()
