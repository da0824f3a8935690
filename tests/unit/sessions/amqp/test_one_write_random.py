"""Whether methods arrive in one write or one by one makes no difference to what they see of a queue.

Random methods are sent both ways. Compared is what each client is answered, without delivery tags: answers about one
queue may overtake deliveries from another. Acknowledgements are left out. They make room for consumers, and who of
several gets the next message depends on when there is room.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from leveret.protocol import methods as m
from leveret.protocol.tables import Field, Table
from tests.support.brokers import Cluster
from tests.support.machines import Reply, World, publish

QUEUES: dict[str, Table] = {
    "plain": {},
    "short": {"x-max-length": Field("I", 2)},
    "small": {"x-max-length-bytes": Field("I", 3)},
    "brief": {"x-message-ttl": Field("I", 0)},
    "full": {"x-max-length": Field("I", 2), "x-overflow": Field("S", "reject-publish")},
}
CONSUMERS = ("c", "d")
STEPS = 14
RECOVER = m.encode(1, m.BasicRecover(requeue=True))


def draw(rng: random.Random) -> list[bytes]:
    """What a client may send next. A tag is cancelled before it is used again."""
    queue, tag = rng.choice(list(QUEUES)), rng.choice(CONSUMERS)
    cancel = m.encode(1, m.BasicCancel(tag))
    match rng.randrange(10):
        case 0 | 1 | 2 | 3:
            return [publish(1, "", queue, b"%d" % rng.randrange(1000))]
        case 4:
            return [m.encode(1, m.BasicGet(queue=queue, no_ack=rng.random() < 0.5))]
        case 5:
            return [m.encode(1, m.QueuePurge(queue=queue))]
        case 6:
            return [m.encode(1, m.QueueDeclare(queue=queue, passive=True))]
        case 7:
            return [cancel]
        case 8:
            consume = m.BasicConsume(queue=queue, consumer_tag=tag, no_ack=rng.random() < 0.5)
            return [cancel, m.encode(1, consume)]
        case _:
            return [RECOVER]


def script(seed: int) -> list[bytes]:
    rng = random.Random(seed)
    return [data for _ in range(STEPS) for data in draw(rng)]


def shown(replies: list[Reply]) -> dict[str, list[str]]:
    """What was answered, by what it is about: the deliveries of each consumer in order, everything else in order."""
    found: dict[str, list[str]] = {}
    for reply in replies:
        method: Any = reply.method
        if isinstance(method, m.BasicDeliver | m.BasicGetOk):
            method.delivery_tag = 0
        about = f"consumer {method.consumer_tag}" if isinstance(method, m.BasicDeliver) else "answers"
        found.setdefault(about, []).append(f"{method} {reply.body!r}")
    return found


def hold(seed: int, at_once: bool, world: World, may_recover: bool = True) -> list[dict[str, list[str]]]:
    client, other = world.client(), world.client()
    for queue, arguments in QUEUES.items():
        client.declare(queue, arguments=arguments)
    other.call(m.BasicQos(prefetch_count=2))
    for queue in ("plain", "short"):
        other.consume(queue, queue)
    steps = [data for data in script(seed) if may_recover or data != RECOVER]
    for data in [b"".join(steps)] if at_once else steps:
        client.feed(data)
        world.turn()
    return [shown(each.take()) for each in (client, other)]


@pytest.mark.parametrize("seed", range(150))
def test_one_write_is_as_good_as_many(seed: int) -> None:
    assert hold(seed, True, World()) == hold(seed, False, World())


@pytest.mark.parametrize("seed", range(150, 200))
def test_with_queues_at_another_node(seed: int) -> None:
    """What is under way from there is not the channel's yet, so a recover cannot give it back."""
    here, there = (Cluster("a", "b", home="b") for _ in range(2))
    assert hold(seed, True, here["a"], False) == hold(seed, False, there["a"], False)
