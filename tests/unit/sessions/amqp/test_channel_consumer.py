"""Deliveries: consuming, fetching, acknowledging, and how much of it at a time."""

from __future__ import annotations

from collections import Counter

import pytest

from leveret.broker.queue import ordered_queue
from leveret.protocol import methods as m
from leveret.protocol.tables import Field
from leveret.sessions.output import OUT_BYTES_MAX
from tests.support.machines import Client, Conversation, World, converse, publish, written_conversations


@pytest.mark.parametrize("conversation", written_conversations("consumers"))
def test_conversation(conversation: Conversation) -> None:
    assert converse(conversation) == conversation.lines


def tags(client: Client) -> list[int]:
    return [reply.method.delivery_tag for reply in client.take() if isinstance(reply.method, m.BasicDeliver)]


@pytest.mark.parametrize("channel", [1, 5])
@pytest.mark.parametrize("size", [0, 1, 4087, 4088, 4089, 100_000])
def test_a_consumer_with_small_frames_gets_them_small(channel: int, size: int) -> None:
    world = World()
    publisher, consumer = world.client(), world.client(frame_max=4096, channels=(channel,))
    publisher.declare("q")
    body = bytes(number % 251 for number in range(size))
    publisher.publish("q", body, message_id="m")
    consumer.consume("q", channel=channel)
    (reply,) = consumer.take()
    assert reply.body == body and reply.properties is not None and reply.properties.message_id == "m"
    assert consumer.reader.largest_frame <= 4096
    consumer.send(m.BasicCancel("c"), m.BasicNack(1), channel=channel)
    consumer.take()
    consumer.send(m.BasicGet(queue="q"), channel=channel)
    assert consumer.take()[-1].body == body
    publisher.publish("none", body, mandatory=True)
    assert publisher.take()[0].body == body


def test_what_is_returned_to_a_publisher_with_small_frames_is_small() -> None:
    world = World()
    client = world.client(frame_max=4096)
    client.publish("none", bytes(10_000), mandatory=True)
    (reply,) = client.take()
    assert reply.body == bytes(10_000) and isinstance(reply.method, m.BasicReturn)


def test_many_keys_and_many_consumers() -> None:
    world = World()
    client = world.client(channels=(1, 2))
    client.declare("q")
    client.call(m.QueueBind(queue="q", exchange="amq.topic", routing_key="#"))
    client.consume("q", "one" * 20, channel=1)
    client.consume("q", "two", channel=2)
    for number in range(20):
        client.feed(publish(1, "amq.topic", f"key.{number % 3}" * (1 + number % 2), b"%d" % number))
    world.turn()
    taken = client.take()
    assert sorted(int(reply.body) for reply in taken) == list(range(20))
    for reply in taken:
        number, method = int(reply.body), reply.method
        assert isinstance(method, m.BasicDeliver)
        assert method.routing_key == f"key.{number % 3}" * (1 + number % 2)
        assert method.consumer_tag == ("one" * 20 if reply.channel == 1 else "two")


def test_a_turn_makes_so_many_bytes_and_the_next_goes_on() -> None:
    world = World()
    client, consumer = world.client(), world.client()
    client.declare("q")
    for _ in range(30):
        client.feed(publish(1, "", "q", bytes(100_000)))
    consumer.feed(m.encode(1, m.BasicConsume(queue="q", consumer_tag="c")))
    world.broker.pump()
    assert 0 < sum(map(len, consumer.connection.output.pieces)) <= OUT_BYTES_MAX
    world.turn()
    assert len(consumer.bodies()) == 30


def test_a_consumer_that_does_not_read_gets_no_more() -> None:
    world = World()
    client, consumer = world.client(), world.client()
    client.declare("q")
    consumer.consume("q")
    consumer.connection.output.set_writable(False)
    client.publish("q", b"abc")
    assert consumer.take() == [] and list(consumer.connection.output.stalled) == [world.queue("q")]
    consumer.connection.output.set_writable(True)
    world.broker.dirty.update(consumer.connection.output.stalled)
    world.turn()
    assert consumer.bodies() == [b"abc"]


def test_a_message_larger_than_the_budget_is_delivered_alone() -> None:
    world = World()
    client = world.client()
    client.declare("q")
    client.feed(publish(1, "", "q", bytes(OUT_BYTES_MAX + 10)))
    client.consume("q")
    assert [len(body) for body in client.bodies()] == [OUT_BYTES_MAX + 10]


def test_prefetch_of_the_channel_holds_for_two_consumers_of_one_queue() -> None:
    world = World()
    client = world.client()
    client.declare("q")
    client.call(m.BasicQos(prefetch_count=1, global_=True))
    client.consume("q", "one")
    client.consume("q", "two")
    client.feed(publish(1, "", "q", b"a") * 4)
    world.turn()
    assert tags(client) == [1]
    for tag in (1, 2, 3):
        client.send(m.BasicAck(tag))
        assert tags(client) == [tag + 1]


def test_cancel_is_told_only_to_those_who_understand() -> None:
    world = World()
    told, untold = world.client(), world.client(capabilities={})
    told.declare("q")
    told.consume("q")
    untold.consume("q")
    world.client().send(m.QueueDelete(queue="q"))
    assert told.methods() == [m.BasicCancel("c", True)]
    assert untold.methods() == []


def test_a_tag_is_free_again_when_its_queue_is_gone() -> None:
    world = World()
    client = world.client()
    for _ in range(2):
        client.declare("q")
        client.consume("q", "c")
        client.send(m.QueueDelete(queue="q"))
        assert m.QueueDeleteOk(0) in client.methods()


def test_deliveries_of_a_deleted_queue_can_be_settled_in_any_way() -> None:
    for last in (m.BasicAck(3, True), m.BasicNack(3, True, True), m.BasicNack(3, True, False), m.BasicRecover(True)):
        world = World()
        client = world.client()
        client.declare("q")
        client.feed(publish(1, "", "q", b"a") * 3)
        client.consume("q")
        client.take()
        client.send(m.QueueDelete(queue="q"))
        client.take()
        client.send(last, m.ChannelFlow(True))
        assert client.methods()[-1] == m.ChannelFlowOk(True)
        assert world.broker.content_bytes == 0
        channel = client.connection.channels[1]
        assert (channel.session.consumed, channel.session.unacked.count) == (0, 0)


# -- Fetching what must be read from the log -----------------------------------------------------------------------


@pytest.fixture
def paged(monkeypatch: pytest.MonkeyPatch) -> World:
    """A queue `q` with ten messages, none of them in memory; reads bring one at a time, when told to."""
    monkeypatch.setattr(ordered_queue, "KEEP_BYTES", 0)
    world = World(content_bytes_max=0)
    client = world.client()
    client.declare("q", durable=True)
    for number in range(10):
        client.publish("q", b"%d" % number, delivery_mode=2)
    assert world.broker.content_bytes == 0
    world.holds_loads = True
    world.load_messages_max = 1
    return world


def test_a_get_waits_for_the_log(paged: World) -> None:
    client = paged.client()
    client.send(m.BasicGet(queue="q"), m.ChannelFlow(True))
    assert client.take() == [] and client.connection.held
    paged.finish_loads()
    paged.turn()
    got, flow = client.take()
    assert (got.body, flow.method) == (b"0", m.ChannelFlowOk(True))
    assert isinstance(got.method, m.BasicGetOk) and got.method.message_count == 9
    assert not client.connection.held


def test_gets_of_several_clients_wait_for_their_turn(paged: World) -> None:
    clients = [paged.client() for _ in range(3)]
    for client in clients:
        client.send(m.BasicGet(queue="q"), m.BasicGet(queue="q"))
    for _ in range(20):
        paged.finish_loads()
        paged.turn()
    bodies = [body for client in clients for body in client.bodies()]
    assert sorted(bodies) == [b"%d" % number for number in range(6)]
    assert not any(client.connection.held for client in clients)


@pytest.mark.parametrize("event", ["purge", "delete", "lose", "close"])
def test_what_may_happen_while_a_get_waits(paged: World, event: str) -> None:
    client, other = paged.client(), paged.client()
    client.send(m.BasicGet(queue="q"))
    if event == "purge":
        other.send(m.QueuePurge(queue="q"))
    elif event == "delete":
        other.send(m.QueueDelete(queue="q"))
    elif event == "lose":
        client.lose()
    else:
        client.connection.close(320, "bye")
    paged.finish_loads()
    paged.turn()
    methods = client.methods()
    if event in ("purge", "delete"):
        gone = m.ChannelClose(404, "NOT_FOUND - no queue 'q' in vhost '/'", 60, 70)
        assert methods == [m.BasicGetEmpty() if event == "purge" else gone]
        assert not client.connection.held
    else:
        assert [type(method) for method in methods] == ([] if event == "lose" else [m.ConnectionClose])
        assert paged.queue("q").ready_count == 10
    if event == "close":
        client.send(m.ConnectionCloseOk(), channel=0)
        assert client.connection.closed


def test_gets_and_consumers_share_what_is_read(paged: World) -> None:
    getter, consumer = paged.client(), paged.client()
    consumer.call(m.BasicQos(prefetch_count=1))
    consumer.consume("q")
    bodies: list[bytes] = []
    getter.send(*[m.BasicGet(queue="q", no_ack=True)] * 5)
    for _ in range(60):
        paged.finish_loads()
        paged.turn()
        for reply in consumer.take():
            assert isinstance(reply.method, m.BasicDeliver)
            bodies.append(reply.body)
            consumer.send(m.BasicAck(reply.method.delivery_tag))
    bodies += getter.bodies()
    assert sorted(bodies) == [b"%d" % number for number in range(10)]
    assert not getter.connection.held
    assert paged.broker.content_bytes == 0


# -- Who is served -------------------------------------------------------------------------------------------------


def tags_served(client: Client, count: int, acks: int) -> Counter[str]:
    """By consumer, the deliveries of a client that acknowledges `acks` of them in one write."""
    served: Counter[str] = Counter()
    tags: list[int] = []
    while served.total() < count:
        for method in client.methods():
            assert isinstance(method, m.BasicDeliver)
            served[method.consumer_tag] += 1
            tags.append(method.delivery_tag)
        assert tags, "nothing more is delivered"
        client.send(*map(m.BasicAck, tags[:acks]))
        del tags[:acks]
    return served


@pytest.mark.parametrize("prefetch", [1, 2, 5])
def test_two_consumers_of_a_queue_share_a_prefetch(prefetch: int) -> None:
    world = World()
    client = world.client()
    client.declare("q")
    client.call(m.BasicQos(prefetch_count=prefetch, global_=True))
    client.consume("q", "c")
    client.consume("q", "d")
    for _ in range(20):
        client.publish("q")
    assert tags_served(client, 20, 1) == {"c": 10, "d": 10}


@pytest.mark.parametrize("acks", [1, 2, 3, 9])
@pytest.mark.parametrize("prefetch", [1, 9])
def test_queues_share_a_prefetch(prefetch: int, acks: int) -> None:
    world = World()
    client = world.client()
    client.call(m.BasicQos(prefetch_count=prefetch, global_=True))
    for name in "pqr":
        client.declare(name)
        client.feed(publish(1, "", name, b"x") * 100)
    client.send(*(m.BasicConsume(queue=name, consumer_tag=name, nowait=True) for name in "pqr"))
    served = tags_served(client, 180, min(acks, prefetch))
    assert all(abs(served[name] - 60) <= prefetch for name in "pqr"), served


def test_consumers_without_acknowledgements_wait_for_a_shared_prefetch() -> None:
    world = World()
    client = world.client()
    client.declare("q")
    client.declare("free")
    client.call(m.BasicQos(prefetch_count=1, global_=True))
    client.consume("q", "c")
    client.consume("free", "f", no_ack=True)
    client.publish("free")
    client.publish("free")
    assert [reply.method.consumer_tag for reply in client.take()] == ["f", "f"]  # type: ignore[union-attr]
    client.publish("q")
    client.publish("free")
    assert [reply.method.consumer_tag for reply in client.take()] == ["c"]  # type: ignore[union-attr]
    client.send(m.BasicAck(3))
    assert [reply.method.consumer_tag for reply in client.take()] == ["f"]  # type: ignore[union-attr]


def test_no_queue_starves_behind_a_slow_client() -> None:
    """One queue at a time fills what the client takes; the others come before it next time."""
    world = World()
    client = world.client()
    for name in "pqr":
        client.declare(name)
        for _ in range(12):
            client.publish(name, bytes(400_000))
    client.send(*(m.BasicConsume(queue=name, consumer_tag=name, nowait=True) for name in "pqr"))
    order = [reply.method.consumer_tag for reply in client.take()]  # type: ignore[union-attr]
    assert len(order) == 36
    assert set(order[:9]) == set("pqr"), order


# -- What gathers in a turn ----------------------------------------------------------------------------------------


def test_a_declaration_counts_what_the_limit_leaves() -> None:
    world = World()
    client = world.client()
    client.declare("q", arguments={"x-max-length": Field("I", 1)})
    client.feed(publish(1, "", "q", b"x") * 3)
    assert client.call(m.QueueDeclare(queue="q", passive=True)) == m.QueueDeclareOk("q", 1, 0)


def test_what_another_client_published_before_is_handed_out_first() -> None:
    world = World()
    publisher, getter, consumer = world.client(), world.client(), world.client()
    publisher.declare("q")
    consumer.consume("q")
    publisher.feed(publish(1, "", "q", b"x"))
    assert getter.call(m.BasicGet(queue="q")) == m.BasicGetEmpty()
    assert consumer.bodies() == [b"x"]


def test_a_connection_that_closes_has_its_deliveries_first() -> None:
    world = World()
    client, other = world.client(), world.client()
    client.declare("q")
    client.consume("q", no_ack=True)
    client.feed(publish(1, "", "q", b"x") + m.encode(0, m.ConnectionClose(200, "bye")))
    world.turn()
    assert [type(method) for method in client.methods()] == [m.BasicDeliver, m.ConnectionCloseOk]
    assert other.call(m.QueueDeclare(queue="q", passive=True)) == m.QueueDeclareOk("q", 0, 0)


def test_a_client_that_is_gone_takes_nothing_with_it() -> None:
    world = World()
    client, other = world.client(), world.client()
    client.declare("q")
    client.consume("q", no_ack=True)
    client.feed(publish(1, "", "q", b"x"))
    client.lose()
    assert other.call(m.QueueDeclare(queue="q", passive=True)) == m.QueueDeclareOk("q", 1, 0)
