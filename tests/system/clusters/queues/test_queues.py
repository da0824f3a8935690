"""Queues used from nodes that do not own them: as at the owner, in order, with the same errors in the same words."""

from __future__ import annotations

import os
from itertools import permutations
from typing import Any

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker, UnroutableError

from leveret.protocol import methods as m
from leveret.protocol.frames import METHOD
from tests.support.consumer import Consumer, fill, get_all, numbers, waiting
from tests.support.members import PERSISTENT, Cluster, refusal
from tests.support.raw import RawClient
from tests.support.servers import until

MIB = 1 << 20


@pytest.fixture(params=[(0, 1), (1, 2), (2, 0)], ids=["1-2", "2-3", "3-1"])
def ends(request: pytest.FixtureRequest, cluster: Cluster) -> tuple[Any, Any]:
    """Channels at the node that owns the queue and at one that does not."""
    home, edge = request.param
    return cluster[home].channel(), cluster[edge].channel()


# -- Publish, get, consume ---------------------------------------------------------------------------------------


def test_get_ack_nack_reject(ends: tuple[Any, Any], name: str) -> None:
    home, edge = ends
    home.queue_declare(name, durable=True)
    edge.confirm_delivery()
    fill(edge, name, range(6), properties=PERSISTENT)
    assert waiting(home, name) == 6
    method, properties, body = edge.basic_get(name)
    assert (body, method.redelivered, method.message_count, properties.delivery_mode) == (b"0", False, 5, 2)
    assert (method.exchange, method.routing_key) == ("", name)
    edge.basic_nack(method.delivery_tag)
    method, _, body = edge.basic_get(name)
    assert (body, method.redelivered) == (b"0", True)
    edge.basic_ack(method.delivery_tag)
    edge.basic_reject(edge.basic_get(name)[0].delivery_tag, requeue=False)
    method, _, body = edge.basic_get(name, auto_ack=True)
    assert (body, method.redelivered, method.message_count) == (b"2", False, 3)
    tags = [edge.basic_get(name)[0].delivery_tag for _ in range(3)]
    assert edge.basic_get(name) == (None, None, None)
    edge.basic_nack(tags[-1], multiple=True)
    assert waiting(edge, name) == 3
    assert get_all(home, name) == numbers(3, 4, 5)


def test_a_closed_channel_gives_back(ends: tuple[Any, Any], name: str) -> None:
    home, edge = ends
    home.queue_declare(name)
    fill(home, name, range(10))
    other = edge.connection.channel()
    consumer = Consumer(other, name)
    assert consumer.bodies(10) == numbers(*range(10))
    other.close()
    assert waiting(edge, name) == 10
    taken = Consumer(edge, name).take(10)
    assert [body for _, _, body in taken] == numbers(*range(10))
    assert all(method.redelivered for method, _, _ in taken)


def test_a_lost_client_gives_back(cluster: Cluster, name: str) -> None:
    home = cluster[0].channel()
    home.queue_declare(name)
    fill(home, name, range(10))
    edge = cluster[1].channel()
    assert len(Consumer(edge, name).take(10)) == 10
    cluster[1].disconnect()
    taken = Consumer(home, name).take(10)
    assert [(body, method.redelivered) for method, _, body in taken] == [(body, True) for body in numbers(*range(10))]


def test_order_and_confirms_both_ways(cluster: Cluster, name: str) -> None:
    """Publisher and consumer each at another node than the queue."""
    home, publisher, reader = (node.channel() for node in cluster)
    home.queue_declare(name, durable=True)
    publisher.confirm_delivery()
    reader.basic_qos(prefetch_count=7)
    consumer = Consumer(reader, name)
    for start in range(0, 300, 100):
        fill(publisher, name, range(start, start + 100), properties=PERSISTENT if start else None)
    for number in range(300):
        ((method, _, body),) = consumer.take(1)
        assert (body, method.redelivered) == (b"%d" % number, False)
        reader.basic_ack(method.delivery_tag)
    assert waiting(publisher, name) == 0
    assert consumer.is_idle()


def test_a_publisher_finds_its_own_messages_counted(ends: tuple[Any, Any], name: str) -> None:
    home, edge = ends
    home.queue_declare(name)
    for number in range(1, 50):
        edge.basic_publish("", name, b"x")
        assert waiting(edge, name) == number
    assert edge.queue_purge(name).method.message_count == 49
    assert waiting(home, name) == 0


def test_fanout_to_queues_of_all_nodes(cluster: Cluster, name: str) -> None:
    """One publish, one confirm, a copy at each node; also when one of the queues goes meanwhile."""
    channels = [node.channel() for node in cluster]
    channels[0].exchange_declare(name, "fanout")
    for number, channel in enumerate(channels):
        for copy in range(2):
            channel.queue_declare(f"{name}-{number}-{copy}")
            channel.queue_bind(f"{name}-{number}-{copy}", name)
    publisher = cluster[1].channel(confirms=True)
    for number in range(20):
        publisher.basic_publish(name, "", b"%d" % number, PERSISTENT, mandatory=True)
    for number, _ in enumerate(channels):
        assert get_all(channels[2], f"{name}-{number}-1") == numbers(*range(20))
        channels[0].queue_delete(f"{name}-{number}-1")
    publisher.basic_publish(name, "", b"20", mandatory=True)
    assert waiting(channels[1], f"{name}-2-0") == 21


def test_mandatory(ends: tuple[Any, Any], name: str) -> None:
    home, edge = ends
    edge.confirm_delivery()
    with pytest.raises(UnroutableError) as caught:
        edge.basic_publish("", name, b"lost", mandatory=True)
    assert caught.value.messages[0].method.reply_text == "NO_ROUTE"
    home.queue_declare(name)
    edge.basic_publish("", name, b"kept", mandatory=True)
    home.queue_delete(name)
    with pytest.raises(UnroutableError):
        edge.basic_publish("", name, b"lost", mandatory=True)


@pytest.mark.parametrize("mode", [1, 2], ids=["transient", "persistent"])
def test_large_messages(cluster: Cluster, name: str, mode: int) -> None:
    """Much larger than what a link or a subscription has on the way; got, and consumed without and with acks."""
    home, edge = cluster[0].channel(), cluster[1].channel(confirms=True)
    home.queue_declare(name, durable=True)
    bodies = [os.urandom(size) for size in (20 * MIB, 0, 3 * MIB, 131_065, 9 * MIB)]
    for body in bodies:
        edge.basic_publish("", name, body, pika.BasicProperties(delivery_mode=mode))
    assert edge.basic_get(name, auto_ack=True)[2] == bodies[0]
    far = cluster[2].channel()
    far.basic_qos(prefetch_count=1)
    consumer = Consumer(far, name)
    for body in bodies[1:3]:
        ((method, _, received),) = consumer.take(1)
        assert received == body
        far.basic_ack(method.delivery_tag)
    far.connection.close()
    assert Consumer(edge, name, auto_ack=True).bodies(2) == bodies[3:]


# -- Prefetch ----------------------------------------------------------------------------------------------------


def test_prefetch_across_the_link(ends: tuple[Any, Any], name: str) -> None:
    home, edge = ends
    home.queue_declare(name)
    fill(home, name, range(30))
    edge.basic_qos(prefetch_count=4)
    consumer = Consumer(edge, name)
    first = consumer.take(4)
    assert consumer.is_idle()
    assert waiting(home, name) == 26
    edge.basic_ack(first[1][0].delivery_tag, multiple=True)
    consumer.take(2)
    assert consumer.is_idle()
    edge.basic_qos(prefetch_count=0)
    home.basic_qos(prefetch_count=5)
    near = Consumer(home, name)
    assert near.bodies(5) == numbers(*range(6, 11))


def test_a_shared_prefetch(cluster: Cluster, name: str) -> None:
    """Two consumers of one channel, at queues of another node, and one limit for both: what is too much goes back."""
    home, edge = cluster[0].channel(), cluster[1].channel()
    for queue in "ab":
        home.queue_declare(f"{name}-{queue}")
        fill(home, f"{name}-{queue}", range(5))
    edge.basic_qos(prefetch_count=3, global_qos=True)
    one, other = Consumer(edge, f"{name}-a"), Consumer(edge, f"{name}-b")
    until(lambda: edge.connection.process_data_events(0.05) or len(one.seen) + len(other.seen) >= 3, "messages")
    near = [Consumer(home, f"{name}-{queue}") for queue in "ab"]
    # What the client has no room for is not kept from whoever wants it.
    until(lambda: home.connection.process_data_events(0.05) or sum(len(one.seen) for one in near) == 7, "the rest")
    edge.connection.process_data_events(0)
    assert len(one.seen) + len(other.seen) == 3
    for queue, far, local in ("a", one, near[0]), ("b", other, near[1]):
        assert sorted(body for _, _, body in far.seen + local.seen) == numbers(*range(5)), queue


def test_work_is_shared_among_nodes(cluster: Cluster, name: str) -> None:
    """Consumers at all nodes with a prefetch of one each get their share."""
    channels = [node.channel() for node in cluster]
    channels[0].queue_declare(name)
    consumers = []
    for channel in channels:
        channel.basic_qos(prefetch_count=1)
        consumers.append(Consumer(channel, name))
    fill(channels[1], name, range(60))
    seen: list[list[bytes]] = [[], [], []]
    while sum(map(len, seen)) < 60:
        for number, consumer in enumerate(consumers):
            consumer.channel.connection.process_data_events(0.01)
            assert len(consumer.seen) <= 1
            for method, _, body in consumer.seen:
                seen[number].append(body)
                consumer.channel.basic_ack(method.delivery_tag)
            consumer.seen.clear()
    assert sorted(int(body) for bodies in seen for body in bodies) == list(range(60))
    assert min(map(len, seen)) >= 5


# -- Declaring and deleting --------------------------------------------------------------------------------------


def test_errors_have_the_owners_words(cluster: Cluster, name: str) -> None:
    """Each mistake at the owner, then at another node: the same code and the same text."""
    def mistakes(channel_of: Any) -> list[tuple[int, str]]:
        seen = [
            refusal(channel_of().queue_declare, name, durable=False),
            refusal(channel_of().queue_declare, name, durable=True, auto_delete=True),
            refusal(channel_of().queue_declare, name, durable=True, arguments={"x-max-length": 3}),
            refusal(channel_of().queue_declare, name, durable=True, exclusive=True),
            refusal(channel_of().queue_delete, name, if_empty=True),
            ack_of_nothing(channel_of()),
            refusal(channel_of().queue_bind, name, "nowhere", "k"),
        ]
        consumer = channel_of()
        Consumer(consumer, name, exclusive=True)
        other = channel_of()
        seen += [
            refusal(channel_of().queue_delete, name, if_unused=True),
            refusal(other.basic_consume, name, lambda *_: None),
        ]
        consumer.close()
        plain = channel_of()
        Consumer(plain, name)
        seen.append(refusal(channel_of().basic_consume, name, lambda *_: None, exclusive=True))
        plain.close()
        return seen

    cluster[0].channel().queue_declare(name, durable=True)
    cluster[1].channel(confirms=True).basic_publish("", name, b"x")
    connections = [node.connect() for node in cluster]
    at_owner, at_second, at_third = (mistakes(connection.channel) for connection in connections)
    assert at_owner == at_second == at_third
    texts = [text for _, text in at_owner]
    assert f"PRECONDITION_FAILED - queue '{name}' in vhost '/' not empty" in texts
    assert f"PRECONDITION_FAILED - queue '{name}' in vhost '/' in use" in texts
    assert f"ACCESS_REFUSED - queue '{name}' in vhost '/' in exclusive use" in texts


def ack_of_nothing(channel: Any) -> tuple[int, str]:
    channel.basic_ack(77)
    with pytest.raises(ChannelClosedByBroker) as caught:
        while True:
            channel.connection.process_data_events(5)
            channel.queue_declare("", exclusive=True)
    return caught.value.reply_code, caught.value.reply_text


LOCKED = (
    "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{}' in vhost '/'. It could be originally "
    "declared on another connection or the exclusive property value does not match that of the original declaration."
)


def test_exclusive_queues(cluster: Cluster, name: str) -> None:
    owner = cluster[0].channel()
    owner.queue_declare(name, exclusive=True)
    locked = (405, LOCKED.format(name))
    other = cluster[1].connect()
    for attempt in (
        lambda channel: channel.queue_declare(name, passive=True),
        lambda channel: channel.queue_declare(name, exclusive=True),
        lambda channel: channel.basic_get(name),
        lambda channel: channel.basic_consume(name, lambda *_: None),
        lambda channel: channel.queue_purge(name),
        lambda channel: channel.queue_delete(name),
        lambda channel: channel.queue_bind(name, "amq.direct", "k"),
    ):
        assert refusal(attempt, other.channel()) == locked
    other.channel().basic_publish("", name, b"anyone may")
    assert Consumer(owner, name).bodies(1) == [b"anyone may"]


def test_exclusive_queues_are_gone_when_close_is_answered(cluster: Cluster, name: str) -> None:
    other = cluster[1].channel()
    for number in range(10):
        owner = cluster[number % 3].connect()
        owner.channel().queue_declare(name, exclusive=True)
        owner.close()
        other.queue_declare(name, durable=bool(number % 2))
        other.queue_delete(name)


def test_deleted_at_all_nodes_at_once(cluster: Cluster, name: str) -> None:
    """To delete what is gone already is no error, however late it is found out."""
    channels = [node.channel() for node in cluster]
    done: list[Any] = []
    for number in range(20):
        channels[number % 3].queue_declare(name)
        for channel in channels:
            channel._impl.queue_delete(name, callback=done.append)
            channel.connection._flush_output()
        while len(done) < 3:
            for channel in channels:
                channel.connection.process_data_events(0.01)
                assert channel.is_open, channel._closing_reason
        done.clear()


def test_auto_delete_with_consumers_at_two_nodes(cluster: Cluster, name: str) -> None:
    home, one, other = (node.channel() for node in cluster)
    home.queue_declare(name, auto_delete=True)
    consumers = [Consumer(one, name), Consumer(other, name)]
    one.basic_cancel(consumers[0].tag)
    assert waiting(home, name) == 0
    other.connection.close()
    until(lambda: is_gone(home, name), "the queue is deleted with its last consumer")


def is_gone(channel: Any, name: str) -> bool:
    try:
        channel.connection.channel().queue_declare(name, passive=True)
    except ChannelClosedByBroker as error:
        assert error.reply_code == 404
        return True
    return False


@pytest.mark.parametrize(("home", "deleter", "reader"), list(permutations(range(3))))
def test_consumers_are_told_when_their_queue_is_deleted(
    cluster: Cluster, name: str, home: int, deleter: int, reader: int
) -> None:
    cluster[home].channel().queue_declare(name)
    channel = cluster[reader].channel()
    channel.basic_publish("", name, b"x")
    cancelled: list[str] = []
    channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    consumer = Consumer(channel, name)
    tag = consumer.take(1)[0][0].delivery_tag
    cluster[deleter].channel().queue_delete(name)
    until(lambda: channel.connection.process_data_events(0.05) or cancelled, "the cancel")
    assert cancelled == [consumer.tag]
    channel.basic_ack(tag)  # Of a message that is no more: harmless.
    channel.queue_declare(name)
    assert waiting(channel, name) == 0


def test_cancel_and_consume_again(ends: tuple[Any, Any], name: str) -> None:
    home, edge = ends
    home.queue_declare(name)
    for start in range(0, 50, 10):
        fill(home, name, range(start, start + 10))
        consumer = Consumer(edge, name, consumer_tag="same", auto_ack=bool(start % 20))
        taken = consumer.take(10)
        assert [body for _, _, body in taken] == numbers(*range(start, start + 10))
        edge.basic_cancel("same")
        if not start % 20:
            edge.basic_ack(taken[-1][0].delivery_tag, multiple=True)
        assert waiting(home, name) == 0
    fill(home, name, range(3))
    assert waiting(home, name) == 3


@pytest.mark.parametrize("no_ack", [True, False], ids=["no-ack", "acks"])
def test_cancel_in_mid_flow(cluster: Cluster, name: str, no_ack: bool) -> None:
    """What is under way over the link at that moment is delivered before cancel-ok, or is still there."""
    home = cluster[0].channel()
    home.queue_declare(name)
    for number in range(3000):
        home.basic_publish("", name, b"%04d" % number + bytes(5000))
    assert waiting(home, name) == 3000
    with RawClient(cluster[1].port) as client:
        client.open()
        client.method(m.BasicConsume(queue=name, consumer_tag="c", no_ack=no_ack))
        client.expect(m.BasicConsumeOk)
        delivered = 0
        while True:
            kind, _, payload = client.frame()
            if kind == METHOD and isinstance(m.decode_payload(payload), m.BasicCancelOk):
                break
            delivered += kind == METHOD
            if delivered == 1 and kind == METHOD:
                client.method(m.BasicCancel(consumer_tag="c"))
        assert 0 < delivered < 3000
        left = [int(body[:4]) for body in get_all(home, name)]
        assert left == list(range(delivered, 3000))
        client.method(m.ChannelClose(200, "", 0, 0))
        client.expect(m.ChannelCloseOk)
    until(lambda: no_ack or waiting(home, name) == delivered, "what it had is back")
    assert [int(body[:4]) for body in get_all(home, name)] == ([] if no_ack else list(range(delivered)))


def test_a_consumer_that_does_not_read(cluster: Cluster, name: str) -> None:
    """It is given what fits on the way to it, and no more: memory stays, and others get the rest."""
    home, edge = cluster[0], cluster[1]
    channel = home.channel(confirms=True)
    channel.queue_declare(name)
    body = os.urandom(100_000)
    for _ in range(600):
        channel.basic_publish("", name, body)
    before = edge.resident_bytes()
    with RawClient(edge.port, receive_buffer_bytes=65_536) as deaf:
        deaf.open()
        deaf.method(m.BasicConsume(queue=name, consumer_tag="deaf", no_ack=True))
        deaf.expect(m.BasicConsumeOk)
        until(lambda: waiting(channel, name) < 600, "it is given some")
        taken = get_all(channel, name)
        assert len(taken) > 450
        assert edge.resident_bytes() < before + 40 * MIB


def test_used_while_it_is_deleted(cluster: Cluster, name: str) -> None:
    """Whoever is too late is told so in RabbitMQ's words, whichever node found out."""
    home, edge = cluster[0].channel(), cluster[1].connect()
    deleted: list[Any] = []
    refused = 0
    for number in range(60):
        home.queue_declare(name)
        channel = edge.channel()
        home._impl.queue_delete(name, callback=deleted.append)
        home.connection._flush_output()
        try:
            if number % 3 == 0:
                channel.basic_get(name)
            elif number % 3 == 1:
                channel.basic_consume(name, lambda *_: None)
            else:
                channel.queue_declare(name, passive=True)
        except ChannelClosedByBroker as error:
            refused += 1
            assert (error.reply_code, error.reply_text) == (404, f"NOT_FOUND - no queue '{name}' in vhost '/'")
        else:
            channel.close()
        until(lambda: home.connection.process_data_events(0.01) or deleted, "delete-ok")
        deleted.clear()
    print(f"{refused} of 60 were too late")


def test_recover(ends: tuple[Any, Any], name: str) -> None:
    home, edge = ends
    home.queue_declare(name)
    fill(home, name, range(3))
    consumer = Consumer(edge, name)
    consumer.take(3)
    edge.basic_recover(requeue=True)
    assert [(body, method.redelivered) for method, _, body in consumer.take(3)] == [
        (body, True) for body in numbers(0, 1, 2)
    ]


# -- Reply queues ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("client", "server"), list(permutations(range(3), 2)))
def test_rpc(cluster: Cluster, name: str, client: int, server: int) -> None:
    """Server-named exclusive reply queues; the request queue lives at the third node."""
    (third,) = {0, 1, 2} - {client, server}
    cluster[third].channel().queue_declare(name)
    worker = cluster[server].channel()
    requests = Consumer(worker, name, auto_ack=True)
    caller = cluster[client].channel()
    reply_to = caller.queue_declare("", exclusive=True).method.queue
    assert reply_to.startswith("amq.gen-")
    replies = Consumer(caller, reply_to, auto_ack=True)
    for number in range(10):
        properties = pika.BasicProperties(reply_to=reply_to, correlation_id=str(number))
        caller.basic_publish("", name, b"%d" % number, properties)
        ((_, asked, body),) = requests.take(1)
        answer = pika.BasicProperties(correlation_id=asked.correlation_id)
        worker.basic_publish("", asked.reply_to, body * 2, answer, mandatory=True)
        ((_, got, body),) = replies.take(1)
        assert (got.correlation_id, body) == (str(number), b"%d" % number * 2)


# -- Many --------------------------------------------------------------------------------------------------------


def test_many_connections(cluster: Cluster, name: str) -> None:
    """Sixty clients at three nodes, each with a queue at the next node, all at once."""
    channels = [(number, cluster[number % 3].channel(confirms=True)) for number in range(60)]
    for number, channel in channels:
        channel.queue_declare(f"{name}-{number}")
    consumers = []
    for number, channel in channels:
        consumers.append(Consumer(channel, f"{name}-{(number + 1) % 60}", auto_ack=True))
    for number, channel in channels:
        fill(channel, f"{name}-{(number + 2) % 60}", range(10))
    for consumer in consumers:
        assert consumer.bodies(10) == numbers(*range(10))
