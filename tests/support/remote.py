"""Helpers for tests of remote queues: clients are at a, queues at b."""

from __future__ import annotations

from typing import Any, Final

from leveret.broker.remote.remote_queue import RemoteQueue
from leveret.protocol import methods as m
from tests.support.brokers import Cluster
from tests.support.machines import Client

DOWN: Final = "NOT_FOUND - home node 'b' of durable queue 'q' in vhost '/' is down or inaccessible"


def client_with_queue(cluster: Cluster, at: str = "a", **options: Any) -> Client:
    client = cluster[at].client(channels=(1, 2))
    client.declare("q", **{"durable": True, **options})
    return client


def depth(client: Client, channel: int = 1) -> tuple[int, int]:
    answer = client.call(m.QueueDeclare(queue="q", passive=True), channel)
    assert isinstance(answer, m.QueueDeclareOk)
    return answer.message_count, answer.consumer_count


def confirming(client: Client, channel: int = 1) -> None:
    assert isinstance(client.call(m.ConfirmSelect(), channel), m.ConfirmSelectOk)


def remote_queue(cluster: Cluster, name: str = "q") -> RemoteQueue:
    queue = cluster["a"].broker.vhosts["/"].queues[name]
    assert isinstance(queue, RemoteQueue)
    return queue


def delivered(client: Client) -> list[tuple[bytes, bool]]:
    """Returns bodies, and whether they are marked as redelivered."""
    return [
        (reply.body, reply.method.redelivered)
        for reply in client.take()
        if isinstance(reply.method, m.BasicDeliver | m.BasicGetOk)
    ]


def cut(cluster: Cluster) -> None:
    cluster.close("a", "b")
    cluster.run()


def cut_and_join(cluster: Cluster) -> None:
    """Closes and opens the link so fast that there is no turn in between."""
    cluster.close("a", "b")
    cluster.join("a", "b")
    cluster.run()


def types(client: Client) -> list[type]:
    return [type(method) for method in client.methods()]
