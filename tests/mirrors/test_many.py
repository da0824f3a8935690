"""A long queue and many queues change their master as quickly as a short one does."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pika.exceptions

from tests.clients.consumer import numbers
from tests.members import PERSISTENT, Cluster
from tests.mirrors.rings import await_in_sync, declare, drain, fill_fast, list_copies, master_of, mirror
from tests.servers import until

LONG = 200_000
MANY = 1_000
THREADS = 8


def test_a_long_queue_has_another_master_at_once(nodes: Cluster, name: str) -> None:
    """The better of two tries counts: others use this machine, too."""
    mirror(nodes[0], name)
    declare(nodes[0], name)
    fill_fast(nodes[0], name, range(LONG))
    pauses: list[float] = []
    for _ in range(2):
        await_in_sync(nodes[0], name, nodes)
        master = master_of(nodes, name)
        channel = nodes.others(master)[0].channel(confirms=True)
        master.kill()
        began = time.monotonic()
        try:
            channel.basic_publish("", name, b"%d" % (LONG + len(pauses)), PERSISTENT)
        except pika.exceptions.NackError:  # It was faster than the news, and went to the one that is dead.
            channel.basic_publish("", name, b"%d" % (LONG + len(pauses)), PERSISTENT)
        method, _, body = channel.basic_get(name)
        pauses.append(time.monotonic() - began)
        assert (body, method.message_count) == (b"0", LONG + len(pauses) - 1)
        channel.basic_nack(method.delivery_tag)
        nodes.start()
    assert [body for body, _ in drain(nodes[1], name)] == numbers(*range(LONG + 2))
    assert min(pauses) < 1.0, pauses


def test_many_queues_have_another_master(nodes: Cluster, name: str) -> None:
    victim, one, other = nodes
    mirror(victim, name)
    queues = [f"{name}-{number}" for number in range(MANY)]

    def make(some: list[str]) -> None:
        channel = victim.channel(confirms=True)
        for queue in some:
            channel.queue_declare(queue, durable=True)
            channel.basic_publish("", queue, queue.encode(), PERSISTENT)

    in_threads(make, queues)
    victim.kill()
    asking = other.channel()
    began = time.monotonic()
    for queue in queues:
        assert asking.queue_declare(queue, passive=True).method.message_count == 1
    assert time.monotonic() - began < 15
    masters = {found.master for queue, found in list_copies(one).items() if queue in set(queues)}
    assert victim.name not in masters
    nodes.start()

    def are_in_sync() -> bool:
        found = list_copies(one)
        return all(len(found[queue].synchronised) == 2 for queue in queues)

    until(are_in_sync, "all queues have three copies again")

    def delete(some: list[str]) -> None:
        channel = one.channel()
        for queue in some:
            channel.queue_delete(queue)

    in_threads(delete, queues)


def in_threads(work: Callable[[list[str]], None], queues: list[str]) -> None:
    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(work, [queues[at::THREADS] for at in range(THREADS)]))
