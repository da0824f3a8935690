"""The master of a queue, or a mirror, is killed, stopped or frozen under load: what clients at the other nodes see."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pika
import pytest

from leveret.protocol import methods as m
from tests.support.consumer import Consumer, fill, get_all, numbers, waiting
from tests.support.machines import publish
from tests.support.members import PERSISTENT, Cluster, Member
from tests.support.raw import RawClient
from tests.support.servers import until
from tests.system.mirrors.ledger import Ledger
from tests.system.mirrors.rings import (
    await_in_sync,
    await_master,
    count,
    declare,
    drain,
    fill_fast,
    master_of,
    mirror,
    settle_durably,
)


def lose(node: Member, how: str) -> None:
    if how == "kill":
        node.kill()
    elif how == "freeze":
        node.freeze()
    else:
        assert node.stop() == 0


def bring_back(nodes: Cluster, node: Member) -> None:
    if node.frozen:
        node.thaw()
        nodes.wait_until_whole()
    else:
        nodes.start()


def at_leader(nodes: Cluster, is_leader: bool) -> Member:
    """A node that leads the consensus, or one that does not."""
    leader = nodes.leader()
    return leader if is_leader else nodes.others(leader)[0]


def test_a_publish_that_comes_with_the_news_waits_for_the_next_master(nodes: Cluster, name: str) -> None:
    """A node so busy that it reads of its peer's end and what a client has published after that in one pass."""
    master, one, other = nodes
    mirror(master, name)
    declare(master, name)
    await_in_sync(master, name, nodes)
    with RawClient(one.port) as client:
        client.open()
        client.method(m.ConfirmSelect())
        client.expect(m.ConfirmSelectOk)
        one.freeze()
        master.kill()
        client.send(publish(1, "", name, b"1", delivery_mode=2))
        one.thaw()
        assert client.receive() == m.BasicAck(1, False)
    assert [body for body, _ in drain(other, name)] == numbers(1)


@pytest.mark.parametrize("is_leader", [True, False], ids=["leader", "follower"])
@pytest.mark.parametrize("how", ["kill", "stop", "freeze"])
def test_the_master_is_lost_under_load(nodes: Cluster, name: str, how: str, is_leader: bool) -> None:
    """Clients of other nodes notice nothing but a pause: no consumer is cancelled, no connection lost."""
    master = at_leader(nodes, is_leader)
    others = nodes.others(master)
    mirror(master, name)
    declare(master, name)
    ledger = Ledger(nodes, random.Random(1))
    book = ledger.add(name, publishers=2, readers=2, at=others)
    with ledger:
        ledger.await_progress()
        lose(master, how)
        ledger.await_progress()
        await_master(others[0], name, others)
        bring_back(nodes, master)
        await_in_sync(others[0], name, nodes)
        ledger.await_progress()
        ledger.finish()
    assert book.cancels == 0
    assert all(client.connections == 1 for client in ledger.clients)
    until(lambda: count(master, name) == 0, "all was acknowledged")


@pytest.mark.parametrize("how", ["kill", "stop", "freeze"])
def test_a_mirror_is_lost_under_load(nodes: Cluster, name: str, how: str) -> None:
    master = nodes[0]
    lost = nodes[2]
    mirror(master, name)
    declare(master, name)
    ledger = Ledger(nodes, random.Random(1))
    book = ledger.add(name, publishers=2, readers=2, at=nodes.nodes[:2])
    with ledger:
        ledger.await_progress()
        lose(lost, how)
        ledger.await_progress()
        assert master_of(nodes, name, master) is master
        bring_back(nodes, lost)
        await_in_sync(master, name, nodes)
        ledger.finish()
    assert book.cancels == 0
    assert all(client.connections == 1 for client in ledger.clients)


def test_what_was_unacknowledged_comes_again_marked(nodes: Cluster, name: str) -> None:
    """And what was acknowledged does not; what nobody was shown comes for the first time, in order."""
    master, one, other = nodes
    mirror(master, name)
    declare(master, name)
    fill(other.channel(confirms=True), name, range(20), properties=PERSISTENT)
    reader = one.channel()
    reader.basic_qos(prefetch_count=10)
    consumer = Consumer(reader, name)
    tags = [method.delivery_tag for method, _, _ in consumer.take(10)]
    settle_durably(reader, name, tags[4])
    tags += [method.delivery_tag for method, _, _ in consumer.take(5)]  # In place of what was acknowledged.
    settle_durably(reader, name, tags[6])
    tags += [method.delivery_tag for method, _, _ in consumer.take(2)]
    master.kill()
    reader.basic_ack(tags[-1], multiple=True)  # Of deliveries from before: taken, and without a meaning.
    taken = consumer.take(10)
    assert [body for _, _, body in taken] == numbers(*range(7, 17))
    assert all(method.redelivered for method, _, _ in taken)
    reader.connection.close()
    rest = drain(other, name)
    assert [body for body, _ in rest] == [*numbers(*range(7, 20)), b"fence", b"fence"]
    assert all(redelivered for _, redelivered in rest[:10])


def test_a_message_got_and_not_acknowledged_comes_again_marked(nodes: Cluster, name: str) -> None:
    master, one, other = nodes
    mirror(master, name)
    declare(master, name)
    fill(other.channel(confirms=True), name, range(3), properties=PERSISTENT)
    for channel in (one.channel(), other.channel()):
        method, _, _ = channel.basic_get(name)
        assert not method.redelivered
    fill(other.channel(confirms=True), f"{name}", range(3, 4), properties=PERSISTENT)  # The note is on its way, too.
    master.kill()
    assert drain(one, name) == [(b"0", True), (b"1", True), (b"2", False), (b"3", False)]


def test_of_a_backlog_only_what_was_shown_comes_marked(nodes: Cluster, name: str) -> None:
    """And perhaps a few more. The same for a queue that was not mirrored yet when its messages were shown."""
    master, one, other = nodes
    queues = (name, f"later-{name}")
    mirror(master, name)
    for queue in queues:
        declare(master, queue)
        fill_fast(master, queue, range(20_000))
    readers = [one.channel(), other.channel()]
    for reader, queue in zip(readers, queues, strict=True):
        reader.basic_qos(prefetch_count=50)
        assert Consumer(reader, queue).bodies(50) == numbers(*range(50))
    mirror(master, f"later-{name}")
    await_in_sync(one, queues[1], nodes)
    master.kill()
    for reader, queue in zip(readers, queues, strict=True):
        await_master(one, queue, (one, other))
        reader.connection.close()
        taken = drain(other, queue)
        assert [body for body, _ in taken] == numbers(*range(20_000))
        marked = [redelivered for _, redelivered in taken]
        assert all(marked[:50]) and sum(marked) <= 250


def test_transient_messages_and_queues(nodes: Cluster, name: str) -> None:
    """They are mirrored like the others: they are lost only when all nodes are."""
    master, one, other = nodes
    mirror(master, name)
    for durable in (True, False):
        queue = f"{name}-{durable}"
        declare(master, queue, durable)
        fill(one.channel(confirms=True), queue, range(50))
    master.kill()
    for durable in (True, False):
        queue = f"{name}-{durable}"
        fill(other.channel(confirms=True), queue, range(50, 60))
        assert waiting(one.channel(), queue) == 60
    second = master_of(nodes, f"{name}-False", one)
    nodes.start()
    for durable in (True, False):
        await_in_sync(one, f"{name}-{durable}", nodes)
    second.kill()
    survivor = nodes.others(second)[0]
    for durable in (True, False):
        assert get_all(survivor.channel(), f"{name}-{durable}") == numbers(*range(60))


def test_everything_else_works_during_a_failover(nodes: Cluster, name: str) -> None:
    """Questions that find no master wait for the next one."""
    master, one, other = nodes
    mirror(master, name)
    for number in range(6):
        declare(master, f"{name}-{number}")
        fill(one.channel(confirms=True), f"{name}-{number}", range(3), properties=PERSISTENT)
    channels = [node.channel(confirms=True) for node in (one, other)]
    more = [node.channel() for node in (one, other)]
    master.kill()
    assert channels[0].queue_declare(f"{name}-0", durable=True).method.message_count == 3
    assert channels[1].basic_get(f"{name}-1", auto_ack=True)[2] == b"0"
    assert channels[0].queue_purge(f"{name}-2").method.message_count == 3
    assert channels[1].queue_delete(f"{name}-3").method.message_count == 3
    channels[0].basic_publish("", f"{name}-4", b"3", PERSISTENT)
    consumer = Consumer(more[1], f"{name}-4")
    assert consumer.bodies(4) == numbers(0, 1, 2, 3)
    more[0].queue_bind(f"{name}-5", "amq.fanout")
    channels[1].queue_declare(f"{name}-new", durable=True)
    assert waiting(channels[0], f"{name}-1") == 2
    assert waiting(channels[0], f"{name}-2") == 0


def test_declared_means_mirrored(nodes: Cluster, name: str) -> None:
    """Declare, publish, and the node is dead: the message is there."""
    master, one, _ = nodes
    mirror(master, name)
    channel = master.channel(confirms=True)
    channel.queue_declare(name, durable=True)
    channel.basic_publish("", name, b"once", PERSISTENT)
    master.kill()
    assert get_all(one.channel(), name) == [b"once"]


def test_master_after_master(nodes: Cluster, name: str) -> None:
    """Each master that follows is killed as soon as there is one, and the one before returns."""
    mirror(nodes[0], name)
    declare(nodes[0], name)
    ledger = Ledger(nodes, random.Random(1))
    ledger.add(name, publishers=3, readers=2)
    with ledger:
        for _ in range(3):
            ledger.await_progress(50)
            await_in_sync(nodes[0], name, nodes)
            master = master_of(nodes, name)
            master.kill()
            await_master(nodes.others(master)[0], name, nodes.others(master))
            nodes.start()
        ledger.finish()


def test_two_of_three_die_at_once(nodes: Cluster, name: str) -> None:
    """The one that is left has no majority and pauses; with the first that returns it goes on."""
    master, one, left = nodes
    mirror(master, name)
    declare(master, name)
    fill(left.channel(confirms=True), name, range(100), properties=PERSISTENT)
    reader = left.channel()
    master.kill()
    one.kill()
    until(lambda: len(left.status()["running_nodes"]) == 1, "it knows that it is alone")
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="320"):
        reader.basic_get(name)
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        left.channel()
    one.start()
    until(lambda: count(one, name) == 100, "the queue is back")
    until(lambda: "amqp" in {each["protocol"] for each in left.status()["listeners"][left.name]}, "it serves again")
    assert [body for body, _ in drain(left, name)] == numbers(*range(100))


def test_a_master_without_a_majority_does_not_serve(steady: Cluster, name: str) -> None:
    """Its mirrors are frozen: whatever it gave out now might be given out by them as well."""
    master, one, other = steady
    mirror(master, name)
    declare(master, name)
    channel = master.channel(confirms=True)
    fill(channel, name, range(10), properties=PERSISTENT)
    one.freeze()
    other.freeze()
    until(lambda: len(master.status()["running_nodes"]) == 1, "it knows that it is alone")
    until(lambda: _is_refused(master, name), "it does not serve")
    with ThreadPoolExecutor(1) as threads:
        late = threads.submit(publish_until_confirmed, channel, name, b"10")
        one.thaw()
        other.thaw()
        late.result()
    until(lambda: count(one, name) > 10, "what was kept for the queue meanwhile is sent on")
    taken = get_all(one.channel(), name)
    assert taken[:10] == numbers(*range(10))
    assert set(taken[10:]) == {b"10"}  # One that was refused may be there all the same.


def publish_until_confirmed(channel: Any, queue: str, body: bytes) -> None:
    while True:
        try:
            channel.basic_publish("", queue, body, PERSISTENT)
            return
        except pika.exceptions.NackError:
            channel.connection.process_data_events(0.05)


def _is_refused(node: Member, queue: str) -> bool:
    channel = node.channel()
    try:
        method, _, _ = channel.basic_get(queue)
    except pika.exceptions.ChannelClosedByBroker as error:
        return bool(error.reply_code == 404)
    if method is not None:
        channel.basic_nack(method.delivery_tag)
    return False


def test_an_exclusive_queue_goes_with_its_connection(nodes: Cluster, name: str) -> None:
    """It is not mirrored: with its node it is gone from the others, and stays gone."""
    owner, one, _ = nodes
    mirror(owner, name)
    owner.channel().queue_declare(name, exclusive=True)
    owner.kill()

    def is_gone() -> bool:
        try:
            one.channel().queue_declare(name, passive=True)
        except pika.exceptions.ChannelClosedByBroker as error:
            return bool(error.reply_code == 404)
        return False

    until(is_gone, "the queue is gone")
    nodes.start()
    assert is_gone()


def test_messages_of_any_size(nodes: Cluster, name: str) -> None:
    master, one, other = nodes
    mirror(master, name)
    declare(master, name)
    sent: list[Any] = [bytes([number]) * size for number, size in enumerate((0, 1, 100_000, 3_000_000, 10_000_000))]
    channel = one.channel(confirms=True)
    for body in sent:
        channel.basic_publish("", name, body, PERSISTENT)
    master.kill()
    assert get_all(other.channel(), name) == sent


def test_a_new_master_knows_how_often_messages_came_back(nodes: Cluster, name: str) -> None:
    """What was out when the old one was lost has come back by that, too."""
    master, *others = nodes
    limit: Any = {"delivery-limit": 3}
    mirror(master, name, **limit)
    declare(master, name)
    await_in_sync(master, name, nodes)
    channel = others[0].channel(confirms=True)
    channel.basic_publish("", name, b"often", PERSISTENT)
    for expected in (0, 1):
        method, properties, _ = channel.basic_get(name)
        assert properties.headers == {"x-delivery-count": expected}
        channel.basic_nack(method.delivery_tag, requeue=True)
    channel.basic_publish("", name, b"out", PERSISTENT)
    often, _, _ = channel.basic_get(name)
    assert channel.basic_get(name)[2] == b"out"
    channel.basic_nack(often.delivery_tag, requeue=True)
    channel.basic_publish("", name, b"last", PERSISTENT)  # Confirmed behind the nack.
    master.kill()
    await_master(others[0], name, others)
    until(lambda: count(others[0], name) == 3, "all wait again")
    taken = [channel.basic_get(name, auto_ack=True) for _ in range(3)]
    found = [(body, properties.headers["x-delivery-count"]) for _, properties, body in taken]
    assert found == [(b"often", 3), (b"out", 1), (b"last", 0)]
    nodes.start()
