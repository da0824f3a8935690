"""Two of three nodes are gone: what the last one still does where it is not paused, and what it refuses, in words that
help. What it does where it is: see `test_partitions`."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pika
import pytest

from leveret.node.sockets.peer_socket import PeersOptions
from tests.support.consumer import Consumer, fill, numbers, waiting
from tests.support.members import PERSISTENT, Cluster, Refused
from tests.support.servers import PATIENCE_S, until


@pytest.mark.parametrize("which", ["leader", "follower"])
def test_a_minority(steady: Cluster, name: str, which: str) -> None:
    nodes = steady
    leader = nodes.leader()
    left = leader if which == "leader" else nodes.others(leader)[0]
    channel = left.channel(confirms=True)
    channel.queue_declare(name, durable=True)
    channel.queue_declare(f"{name}-spare", durable=True)
    reader = left.channel()
    consumer = Consumer(reader, name)
    for node in nodes.others(left):
        node.kill()

    changes = (
        lambda: left.channel().queue_declare(f"{name}-new"),
        lambda: left.channel().exchange_declare(f"{name}-new"),
        lambda: left.channel().queue_delete(f"{name}-spare"),
        lambda: left.channel().queue_bind(name, "amq.fanout"),
        lambda: left.add_user(name, "secret"),
    )
    with ThreadPoolExecutor(len(changes)) as threads:
        for refused in threads.map(refusal_text, changes, timeout=PATIENCE_S):
            assert "no contact to a majority of the cluster's nodes" in refused

    # What is here goes on: publishing with confirms, consuming, declaring what exists.
    fill(channel, name, range(10), properties=PERSISTENT)
    taken = consumer.take(10)
    assert [body for _, _, body in taken] == numbers(*range(10))
    reader.basic_ack(taken[-1][0].delivery_tag, multiple=True)
    channel.queue_declare(name, durable=True)
    assert left.connect().is_open
    with pytest.raises(Refused, match="no contact to a majority"):  # As patient as leveretctl, not as its net_ticktime.
        left.control("add_vhost", PeersOptions(), name=name, description=None, tags=None)
    status = left.status()
    assert (status["has_majority"], status["running_nodes"]) == (False, [left.name])

    nodes.others(left)[0].start()
    fresh = left.channel()
    fresh.queue_declare(f"{name}-after")
    assert waiting(nodes.others(left)[0].channel(), f"{name}-after") == 0
    assert waiting(fresh, name) == 0


def refusal_text(change: Callable[[], Any]) -> str:
    with pytest.raises((pika.exceptions.AMQPError, Refused)) as caught:
        change()
    return str(caught.value)


def test_a_client_goes_and_its_queues_follow_when_there_is_a_majority(nodes: Cluster, name: str) -> None:
    left, one, other = nodes
    owner = left.channel()
    owner.queue_declare(name, exclusive=True)
    auto = left.channel()
    auto.queue_declare(f"{name}-auto", auto_delete=True)
    Consumer(auto, f"{name}-auto")
    for node in (one, other):
        node.kill()
    left.disconnect()
    nodes.start()
    channel = other.connect()

    def are_gone() -> bool:
        gone = 0
        for queue in (name, f"{name}-auto"):
            try:
                channel.channel().queue_declare(queue, passive=True)
            except pika.exceptions.ChannelClosedByBroker as error:
                gone += error.reply_code == 404
        return gone == 2

    until(are_gone, "both queues are gone")
