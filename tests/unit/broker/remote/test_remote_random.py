"""Random scripts against an oracle: what a single broker answers, a cluster answers too.

A script is what some clients send, chunk by chunk. In the cluster the clients sit at one node or the other and queues
are spread over both; links deliver late. While no link is lost, each client's answers are the same and in the same
order as with a single broker, but for where among them the deliveries and confirms come, which come when they come:
these are compared by themselves. In the end all queues hold the same.

With links that are lost now and then, there is no oracle; then nothing that was confirmed may be missing, and nothing
may come twice without being marked, and nothing is left behind.
"""

from __future__ import annotations

from random import Random
from typing import Final

import pytest

from leveret.protocol import methods as m
from tests.support.brokers import Cluster
from tests.support.machines import Client, World, publish

QUEUES: Final = ("q0", "q1", "q2")
CLIENTS: Final = 4


def chunk(random: Random, number: int, published: list[int]) -> bytes:
    """Something that a client sends at once: what it answers does not depend on what other clients do meanwhile."""
    queue = f"{QUEUES[random.randrange(3)]}-{number}"
    out = []
    for _ in range(random.randint(1, 6)):
        match random.randrange(9):
            case 0 | 1 | 2 | 3:
                published[number] += 1
                body = b"%d.%d" % (number, published[number])
                out.append(publish(1, "", queue, body, delivery_mode=random.randint(1, 2)))
            case 4:
                out.append(m.encode(1, m.QueueDeclare(queue=queue, durable=True)))
            case 5:
                out.append(m.encode(2, m.BasicGet(queue=queue, no_ack=random.random() < 0.5)))
            case 6:
                out.append(m.encode(2, m.BasicNack(0, True, random.random() < 0.5)))
            case 7:
                out.append(m.encode(1, m.QueuePurge(queue=queue)) if random.random() < 0.3 else b"")
            case 8:
                if random.random() < 0.2:
                    out.append(m.encode(1, m.QueueDelete(queue=queue)))
                    out.append(m.encode(1, m.QueueDeclare(queue=queue, durable=True)))
    return b"".join(out)


def first_words(number: int) -> bytes:
    declares = [m.encode(1, m.QueueDeclare(queue=f"{name}-{number}", durable=True)) for name in QUEUES]
    return b"".join(declares) + m.encode(1, m.ConfirmSelect())


def answers(client: Client) -> tuple[list[str], set[int]]:
    """All but confirms, and which publishes were confirmed."""
    said, confirmed, last = [], set(), 0
    for reply in client.take():
        if isinstance(reply.method, m.BasicAck):
            tag = reply.method.delivery_tag
            confirmed |= set(range(last + 1 if reply.method.multiple else tag, tag + 1))
            last = max(last, tag) if reply.method.multiple else last
        else:
            assert not isinstance(reply.method, m.BasicNack | m.ChannelClose | m.ConnectionClose), reply
            said.append(str(reply))
    return said, confirmed


def contents(worlds: list[World]) -> dict[str, list[bytes]]:
    """What waits in each queue, in order."""
    found: dict[str, list[bytes]] = {}
    for world in worlds:
        client = world.client()
        for name, queue in world.broker.vhosts["/"].queues.items():
            if queue.is_local:
                while True:
                    client.send(m.BasicGet(queue=name, no_ack=True))
                    (reply,) = client.take()
                    if isinstance(reply.method, m.BasicGetEmpty):
                        break
                    found.setdefault(name, []).append(reply.body)
        client.lose()
    return found


@pytest.mark.parametrize("seed", range(60))
def test_answers_are_those_of_one_node(seed: int) -> None:
    random = Random(seed)
    published = [0] * CLIENTS
    script = [(number, first_words(number)) for number in range(CLIENTS)]
    for _ in range(60):
        number = random.randrange(CLIENTS)
        script.append((number, chunk(random, number, published)))

    world = World()
    single = [world.client(channels=(1, 2)) for _ in range(CLIENTS)]
    for number, data in script:
        single[number].feed(data)
        world.turn()

    cluster = Cluster("a", "b")
    several = [cluster["ab"[number % 2]].client(channels=(1, 2)) for number in range(CLIENTS)]
    for number, data in script:
        cluster.home = random.choice("ab")
        for link in (("a", "b"), ("b", "a")):
            (cluster.held.add if random.random() < 0.5 else cluster.held.discard)(link)
        cluster.behind = {"a", "b"} - {random.choice("ab"), random.choice("ab")}
        several[number].feed(data)
        cluster.run()
    cluster.held.clear()
    cluster.behind.clear()
    cluster.run()

    for number in range(CLIENTS):
        assert answers(several[number]) == answers(single[number])
    for client in (*single, *several):
        client.lose()
    assert contents([world]) == contents(list(cluster.members.values()))
    cluster.finish()


@pytest.mark.parametrize("seed", range(40))
def test_consumers_get_each_message_once_and_in_order(seed: int) -> None:
    """One publisher and competing consumers at both nodes that settle in all ways; links are late, none is lost."""
    random = Random(seed)
    cluster = Cluster("a", "b", home="b")
    publisher = cluster[random.choice("ab")].client()
    publisher.declare("q", durable=True)
    assert isinstance(publisher.call(m.ConfirmSelect()), m.ConfirmSelectOk)
    consumers = [cluster["ab"[number % 2]].client() for number in range(4)]
    for number, client in enumerate(consumers):
        if number < 3:
            client.call(m.BasicQos(prefetch_count=random.randint(1, 5), global_=random.random() < 0.3))
        client.send(m.BasicConsume(queue="q", consumer_tag="c", no_ack=number == 3))
    count = 0
    done: list[int] = []
    fresh: list[list[int]] = [[] for _ in consumers]
    out: list[dict[int, int]] = [{} for _ in consumers]

    def collect() -> None:
        for number, client in enumerate(consumers):
            for reply in client.take():
                if isinstance(reply.method, m.BasicDeliver):
                    message = int(reply.body)
                    if number == 3:
                        done.append(message)
                    else:
                        out[number][reply.method.delivery_tag] = message
                    if not reply.method.redelivered:
                        fresh[number].append(message)

    for _ in range(80):
        cluster.held = {link for link in (("a", "b"), ("b", "a")) if random.random() < 0.4}
        for _ in range(random.randint(0, 5)):
            count += 1
            publisher.feed(publish(1, "", "q", b"%d" % count, delivery_mode=1 + count % 2))
        for number, client in enumerate(consumers[:3]):
            held = out[number]
            if held and random.random() < 0.5:
                tag = random.choice(list(held))
                requeue = random.random() < 0.3
                multiple = random.random() < 0.5
                taken = [one for one in held if one == tag or (multiple and one < tag)]
                settled = [held.pop(one) for one in taken]
                if requeue:
                    client.feed(m.encode(1, m.BasicNack(tag, multiple, True)))
                else:
                    done.extend(settled)
                    client.feed(m.encode(1, m.BasicAck(tag, multiple)))
        if random.random() < 0.1:
            cluster.tick()
        cluster.run()
        collect()
    cluster.held.clear()
    while any(out) or len(done) < count:
        cluster.run()
        collect()
        for number, client in enumerate(consumers[:3]):
            if out[number]:
                done.extend(out[number].values())
                out[number].clear()
                client.send(m.BasicAck(0, True))
                collect()
    assert sorted(done) == list(range(1, count + 1)), "each exactly once"
    for numbers in fresh:
        assert numbers == sorted(numbers), "in order, unless marked"
    queue = cluster["b"].queue("q")
    assert (queue.ready_count, queue.unacked_count, len(queue.consumers)) == (0, 0, 4)
    assert cluster["b"].broker.content_bytes == 0
    cluster.finish()


@pytest.mark.parametrize("seed", range(60))
def test_links_are_lost_and_no_confirmed_message_is(seed: int) -> None:
    random = Random(seed)
    cluster = Cluster("a", "b", home="b")
    publisher = cluster["a"].client()
    publisher.declare("q", durable=True)
    assert isinstance(publisher.call(m.ConfirmSelect()), m.ConfirmSelectOk)
    consumer = cluster["a"].client(channels=())
    count = 0
    confirmed: set[int] = set()
    acked: set[int] = set()
    seen: set[int] = set()
    open_channel, consuming = 0, False
    out: dict[int, int] = {}
    last = 0

    def collect() -> None:
        nonlocal open_channel, consuming, last
        for reply in publisher.take():
            assert isinstance(reply.method, m.BasicAck | m.BasicNack), reply
            first = last + 1 if reply.method.multiple else reply.method.delivery_tag
            if isinstance(reply.method, m.BasicAck):
                confirmed.update(range(first, reply.method.delivery_tag + 1))
            last = max(last, reply.method.delivery_tag)
        for reply in consumer.take():
            if isinstance(reply.method, m.BasicDeliver):
                message = int(reply.body)
                assert message not in acked or late(message), "it was acknowledged, and the home knew"
                assert reply.method.redelivered or message not in seen, "it comes again, unmarked"
                seen.add(message)
                out[reply.method.delivery_tag] = message
            elif isinstance(reply.method, m.BasicCancel):
                consuming = False
            elif isinstance(reply.method, m.ChannelClose):
                consuming, open_channel = False, 0
                out.clear()
                consumer.feed(m.encode(1, m.ChannelCloseOk()))

    at_risk: set[int] = set()  # Acknowledged, and the link was lost before the home knew.
    unsettled: set[int] = set()  # Acknowledged since the links were last quiet.

    def late(message: int) -> bool:
        return message in at_risk

    for _ in range(80):
        cluster.held = {link for link in (("a", "b"), ("b", "a")) if random.random() < 0.3}
        cluster["b"].holds_disk = random.random() < 0.3
        if not open_channel:
            open_channel = 1
            consumer.feed(m.encode(1, m.ChannelOpen()))
        if not consuming:
            consuming = True
            out.clear()
            consumer.feed(m.encode(1, m.BasicConsume(queue="q", consumer_tag="c")))
        for _ in range(random.randint(0, 4)):
            count += 1
            publisher.feed(publish(1, "", "q", b"%d" % count, delivery_mode=2))
        if out and random.random() < 0.7:
            tag = random.choice(list(out))
            settled = [out.pop(one) for one in [one for one in out if one <= tag]]
            acked.update(settled)
            unsettled.update(settled)
            consumer.feed(m.encode(1, m.BasicAck(tag, True)))
        if random.random() < 0.15 and ("a", "b") in cluster.links:
            at_risk |= unsettled
            cluster.close("a", "b")
        if random.random() < 0.6 and ("a", "b") not in cluster.links:
            cluster.join("a", "b")
        cluster.run()
        collect()
        if not cluster.held:
            unsettled.clear()
    cluster.held.clear()
    cluster["b"].holds_disk = False
    if ("a", "b") not in cluster.links:
        cluster.join("a", "b")
    cluster.run()
    collect()
    consumer.lose()
    rest = {int(body) for bodies in contents([cluster["b"]]).values() for body in bodies}
    assert confirmed <= acked | rest, "a confirmed message is lost"
    cluster.finish()
