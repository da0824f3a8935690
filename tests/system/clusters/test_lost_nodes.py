"""A node is killed: what its queues' users at other nodes see, and what is there when it returns."""

from __future__ import annotations

import selectors
from typing import Any

import pika
import pytest

from leveret.protocol import methods as m
from leveret.protocol.frames import HEARTBEAT
from tests.support.consumer import Consumer, fill, get_all, numbers, waiting
from tests.support.members import PERSISTENT, Cluster, Member, StartCluster, refusal
from tests.support.raw import RawClient, publish_frames
from tests.support.servers import until


def down(node: Member, queue: str) -> tuple[int, str]:
    return 404, f"NOT_FOUND - home node '{node.name}' of durable queue '{queue}' in vhost '/' is down or inaccessible"


def await_unreachable(node: Member, queue: str) -> None:
    """Until a node has noticed that another one is gone."""

    def is_down() -> bool:
        try:
            node.channel().queue_declare(queue, passive=True)
        except pika.exceptions.ChannelClosedByBroker:
            return True
        return False

    until(is_down, "its loss was noticed")


@pytest.mark.parametrize("which", ["leader", "follower"])
def test_the_owner_is_killed(nodes: Cluster, name: str, which: str) -> None:
    leader = nodes.leader()
    owner = leader if which == "leader" else nodes.others(leader)[0]
    one, other = nodes.others(owner)
    channel = owner.channel(confirms=True)
    channel.queue_declare(name, durable=True)
    channel.queue_declare(f"{name}-spare", durable=True)
    channel.queue_declare(f"{name}-transient")
    channel.queue_declare(f"{name}-exclusive", durable=True, exclusive=True)
    fill(one.channel(confirms=True), name, range(20), properties=PERSISTENT)

    reader = one.channel()
    reader.basic_qos(prefetch_count=5)
    cancelled: list[str] = []
    reader.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    consumer = Consumer(reader, name)
    tags = [method.delivery_tag for method, _, _ in consumer.take(5)]
    reader.basic_ack(tags[1], multiple=True)
    until(lambda: waiting(reader, name) == 20 - 7, "the acks have arrived")
    channel.basic_publish("", f"{name}-exclusive", b"its sync is that of the acks too", PERSISTENT)
    publisher = other.channel(confirms=True)

    owner.kill()
    until(lambda: reader.connection.process_data_events(0.05) or cancelled, "the consumer is cancelled")
    assert cancelled == [consumer.tag]
    assert reader.is_open
    reader.basic_ack(tags[2])  # Late, and harmless.
    await_unreachable(other, name)
    with pytest.raises(pika.exceptions.NackError):
        publisher.basic_publish("", name, b"x", PERSISTENT)
    publisher.basic_publish("", f"{name}-elsewhere", b"unroutable is confirmed")
    for node in (one, other):
        for attempt in (
            lambda channel: channel.queue_declare(name, passive=True),
            lambda channel: channel.queue_declare(name, durable=True),
            lambda channel: channel.basic_get(name),
            lambda channel: channel.basic_consume(name, lambda *_: None),
            lambda channel: channel.queue_purge(name),
        ):
            assert refusal(attempt, node.channel()) == down(owner, name)
    check_gone_queues(one, other, name)
    # Whoever gives up on a queue may.
    assert other.channel().queue_delete(f"{name}-spare").method.message_count == 0
    one.channel().queue_declare(f"{name}-spare", durable=True)

    owner.start()
    nodes.wait_until_whole()
    assert waiting(other.channel(), f"{name}-spare") == 0
    returned = Consumer(one.channel(), name).take(18)
    assert [body for _, _, body in returned] == numbers(*range(2, 20))
    marked = [method.redelivered for method, _, _ in returned]
    assert not any(marked[10:])  # It may be in doubt on the last ones before the crash, not on all.
    channel = other.channel()
    assert waiting(channel, f"{name}-transient") == 1
    publisher.basic_publish("", name, b"20", PERSISTENT)


def check_gone_queues(one: Member, other: Member, name: str) -> None:
    """Those that cannot outlive their node vanish, and their names are free."""
    channel = other.connect()

    def are_gone() -> bool:
        gone = 0
        for queue in (f"{name}-transient", f"{name}-exclusive"):
            try:
                channel.channel().queue_declare(queue, passive=True)
            except pika.exceptions.ChannelClosedByBroker as error:
                gone += "no queue" in error.reply_text
        return gone == 2

    until(are_gone, "transient and exclusive queues are gone")
    fresh = one.channel(confirms=True)
    fresh.queue_declare(f"{name}-transient", durable=True)
    fresh.queue_declare(f"{name}-exclusive")
    fresh.basic_publish("", f"{name}-transient", b"new", PERSISTENT)


def test_publishes_under_way_are_refused_or_kept(nodes: Cluster, name: str) -> None:
    """A window of publishes through another node is open when the owner dies: each is answered, and acks hold."""
    owner, edge, _ = nodes
    owner.channel().queue_declare(name, durable=True)
    connection = edge.connect()
    channel = connection.channel()
    answers: dict[int, bool] = {}
    impl = channel._impl

    def on_answer(frame: Any) -> None:
        acked = isinstance(frame.method, pika.spec.Basic.Ack)
        tag = frame.method.delivery_tag
        first = min((one for one in range(1, tag + 1) if one not in answers), default=tag)
        for number in range(first, tag + 1) if frame.method.multiple else [tag]:
            answers.setdefault(number, acked)

    done: list[Any] = []
    impl.confirm_delivery(on_answer, callback=done.append)
    until(lambda: connection.process_data_events(0.01) or done, "confirms")
    for number in range(1, 2001):
        impl.basic_publish("", name, b"%d" % number, PERSISTENT)
        if number == 1000:
            until(lambda: connection.process_data_events(0.01) or answers, "some confirms")
            owner.kill()
    until(lambda: connection.process_data_events(0.05) or len(answers) == 2000, "an answer to every publish")
    confirmed = [number for number, acked in answers.items() if acked]
    refused = [number for number, acked in answers.items() if not acked]
    assert confirmed and refused
    owner.start()
    nodes.wait_until_whole()
    kept = [int(body) for body in get_all(owner.channel(), name)]
    assert kept == sorted(kept)
    assert set(confirmed) <= set(kept)


def test_an_edge_is_killed_with_deliveries_in_hand(nodes: Cluster, name: str) -> None:
    owner, edge, other = nodes
    channel = other.channel(confirms=True)
    owner.channel().queue_declare(name, durable=True)
    fill(channel, name, range(10), properties=PERSISTENT)
    taken = Consumer(edge.channel(), name).take(10)
    assert not any(method.redelivered for method, _, _ in taken)
    rest = Consumer(channel, name)
    edge.kill()
    again = rest.take(10)
    assert [body for _, _, body in again] == numbers(*range(10))
    assert all(method.redelivered for method, _, _ in again)


def test_exclusive_queues_at_a_killed_edge(nodes: Cluster, name: str) -> None:
    """Their owner's connection was at the node that is gone; they lived there too, and vanish."""
    edge, other = nodes.others(nodes.leader())
    channel = edge.channel()
    channel.queue_declare(name, exclusive=True)
    edge.kill()
    fresh = other.connect()

    def is_free() -> bool:
        try:
            fresh.channel().queue_declare(name, exclusive=True)
        except pika.exceptions.ChannelClosedByBroker:
            return False
        return True

    until(is_free, "the name is free")
    edge.start()
    nodes.wait_until_whole()
    fresh.channel().queue_declare(name, passive=True, exclusive=True)
    assert refusal(edge.channel().queue_declare, name, passive=True)[0] == 405


def test_the_leader_is_killed(nodes: Cluster, name: str) -> None:
    """Changes go on at the others; those under way are done once, or were never promised."""
    leader = nodes.leader()
    one, other = nodes.others(leader)
    channels = [one.channel(), other.channel()]
    channels[0].queue_declare(f"{name}-before", durable=True)
    leader.kill()
    for number in range(10):  # Each fails by itself if it takes longer than the operation timeout.
        channels[number % 2].queue_declare(f"{name}-{number}", durable=True)
        assert waiting(channels[1 - number % 2], f"{name}-{number}") == 0
    assert nodes.leader() in (one, other)
    leader.start()
    nodes.wait_until_whole()
    back = leader.channel()
    assert [waiting(back, f"{name}-{number}") for number in range(10)] == [0] * 10


def test_a_frozen_node(nodes: Cluster, name: str) -> None:
    """For longer than net_ticktime: the others go on without it; when it wakes up, it finds its place again."""
    leader = nodes.leader()
    one, other = nodes.others(leader)
    channel = leader.channel(confirms=True)
    channel.queue_declare(name, durable=True)
    fill(channel, name, range(5), properties=PERSISTENT)
    cancelled: list[Any] = []
    reader = one.channel()
    reader.add_on_cancel_callback(cancelled.append)
    consumer = Consumer(reader, name)
    consumer.take(5)
    leader.freeze()
    until(lambda: reader.connection.process_data_events(0.05) or cancelled, "the consumer is cancelled")
    assert refusal(reader.queue_declare, name, passive=True) == down(leader, name)
    fresh = other.channel()
    fresh.queue_declare(f"{name}-meanwhile", durable=True)
    leader.thaw()
    nodes.wait_until_whole()
    again = Consumer(fresh, name).take(5)
    assert [(body, method.redelivered) for method, _, body in again] == [(body, True) for body in numbers(*range(5))]
    try:
        assert waiting(channel, f"{name}-meanwhile") == 0
    except pika.exceptions.ConnectionClosedByBroker as error:  # The others' links were not there yet when it woke up.
        assert error.reply_code == 320
        channel = leader.channel(confirms=True)
        assert waiting(channel, f"{name}-meanwhile") == 0
    channel.basic_publish("", name, b"5", PERSISTENT)


def test_who_publishes_to_a_frozen_node_is_not_taken_for_silent(start_cluster: StartCluster, name: str) -> None:
    """It beats, but it is not listened to, for the queue it fills takes no more."""
    home, edge = start_cluster("net_ticktime = 60", size=2)
    home.channel().queue_declare(name)
    message = publish_frames("", name, b"x" * 100_000)
    with RawClient(edge.port) as client, selectors.DefaultSelector() as writable:
        client.open(heartbeat_s=1)
        writable.register(client.socket, selectors.EVENT_WRITE)
        home.freeze()
        sent = 0
        while writable.select(1.0):
            sent += client.socket.send(message[sent % len(message) :])
        for _ in range(5):  # Two that are missed are enough to be cut.
            assert client.frame()[0] == HEARTBEAT
        home.thaw()
        client.send(message[sent % len(message) :] + m.encode(1, m.BasicQos()))
        client.expect(m.BasicQosOk)
