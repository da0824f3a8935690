"""What clients ask of a queue without mirrors while it goes to another node: see `leveret.broker.remote.migrate`."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.broker.queue.queue import Queue
from leveret.broker.queue.state import Life
from leveret.broker.remote.migrate import move
from leveret.metadata.model import commands as c
from leveret.metadata.model.refusals import Refusal
from leveret.metadata.model.view import View
from leveret.protocol import methods as m
from leveret.protocol.tables import table_from_python
from tests.support.brokers import Cluster
from tests.support.machines import Client
from tests.support.mirrored_brokers import Rings
from tests.support.remote import delivered, depth, types

NAMES = ("a", "b", "c")


@pytest.fixture
def cluster() -> Any:
    """A queue at a, with three messages."""
    cluster = Cluster(*NAMES)
    for name in NAMES:
        cluster[name].broker.run = f"run of {name}"
        cluster.apply(c.NodeStarted(name, run=f"run of {name}"))
    client = cluster["a"].client()
    client.declare("q", durable=True)
    for body in (b"1", b"2", b"3"):
        client.publish("q", body, delivery_mode=2)
    yield cluster
    cluster.finish()


class Move:
    """Of the queue to b. Nothing that b says arrives until it is released."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.ended: list[str | None] = []
        cluster.hold("b", "a")
        move(cluster["a"].queue("q"), "b", self.ended.append)
        cluster.run()

    def adopt(self) -> None:
        """The target has made room, and gets the messages."""
        self.cluster.release("b", "a", 1)

    def finish(self) -> None:
        self.cluster.release("b", "a")
        assert self.ended == [None]


def rest(client: Client, queue: str = "q") -> list[bytes]:
    found: list[bytes] = []
    while True:
        client.send(m.BasicGet(queue=queue, no_ack=True))
        bodies = client.bodies()
        if not bodies:
            return found
        found += bodies


@pytest.mark.parametrize("adopted", [False, True])
@pytest.mark.parametrize("at", NAMES)
def test_a_get_is_answered_by_the_target(cluster: Cluster, at: str, adopted: bool) -> None:
    client = cluster[at].client()
    moving = Move(cluster)
    if adopted:
        moving.adopt()
    client.send(m.BasicGet(queue="q"))
    assert not client.take()
    moving.finish()
    assert delivered(client) == [(b"1", False)]
    client.lose()  # It was not acknowledged, so it is still there.
    assert rest(cluster["c"].client()) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("at", NAMES)
def test_a_purge_happens_at_the_target(cluster: Cluster, at: str) -> None:
    client = cluster[at].client()
    moving = Move(cluster)
    moving.adopt()
    client.send(m.QueuePurge(queue="q"))
    moving.finish()
    (purged,) = client.methods()
    assert isinstance(purged, m.QueuePurgeOk) and purged.message_count == 3
    assert depth(client) == (0, 0)


@pytest.mark.parametrize("at", ["a", "c"])
def test_whoever_asks_how_many_there_are_need_not_wait(cluster: Cluster, at: str) -> None:
    client = cluster[at].client()
    moving = Move(cluster)
    moving.adopt()
    assert depth(client) == (3, 0)
    moving.finish()
    assert depth(client) == (3, 0)


@pytest.mark.parametrize("overflow", ["reject-publish", "reject-publish-dlx"])
def test_a_queue_that_rejects_publishes_moves_with_more_than_its_limit(cluster: Cluster, overflow: str) -> None:
    """What was out with a consumer did not count, and waits at the target with all others."""
    client = cluster["a"].client()
    client.declare("dead", durable=True)
    limited = {"x-max-length": 3, "x-overflow": overflow, "x-dead-letter-exchange": ""}
    dead = {"x-dead-letter-routing-key": "dead"}
    client.declare("full", durable=True, arguments=table_from_python(limited | dead))
    consumer = cluster["a"].client()
    for body in (b"1", b"2"):
        client.publish("full", body, delivery_mode=2)
        consumer.send(m.BasicGet(queue="full"))
    for body in (b"3", b"4", b"5"):
        client.publish("full", body, delivery_mode=2)
    ended: list[str | None] = []
    move(cluster["a"].queue("full"), "b", ended.append)
    cluster.run()
    assert ended == [None]
    consumer.lose()
    assert rest(client, "full") == [b"1", b"2", b"3", b"4", b"5"]
    assert rest(client, "dead") == []


@pytest.mark.parametrize("adopted", [False, True])
def test_nobody_waits_for_a_queue_that_is_deleted_meanwhile(cluster: Cluster, adopted: bool) -> None:
    clients = [cluster[at].client() for at in NAMES]
    moving = Move(cluster)
    if adopted:
        moving.adopt()
    for client in clients:
        client.send(m.BasicGet(queue="q"))
    cluster.apply(c.DeleteQueue("/", "q", cluster["a"].metadata.queues["/", "q"].id))
    cluster.release("b", "a")
    assert moving.ended == ["the queue was deleted"]
    for client in clients:
        assert types(client) == [m.ChannelClose]


def test_link_lost_before_anything_is_sent(cluster: Cluster) -> None:
    """It was adopted, and in the same moment the link was lost: there is no message whose refusal would tell."""
    moving, client = Move(cluster), cluster["a"].client()
    client.send(m.BasicGet(queue="q", no_ack=True))
    cluster._deliver("b", "a")
    cluster.close("a", "b")
    cluster.run()
    cluster.tick()
    assert moving.ended == ["the link to node b was lost"]
    assert client.bodies() == [b"1"]
    cluster.held.clear()
    cluster.join("a", "b")
    cluster.run()


@pytest.mark.parametrize("at", NAMES)
def test_a_move_that_fails_answers_at_the_home(cluster: Cluster, at: str) -> None:
    client = cluster[at].client()
    moving = Move(cluster)
    moving.adopt()
    client.send(m.BasicGet(queue="q", no_ack=True))
    cluster.close("a", "b")
    cluster.run()
    assert moving.ended and moving.ended[0] is not None
    cluster.held.clear()
    cluster.join("a", "b")
    cluster.run()
    if at == "b":
        assert types(client) == [m.ChannelClose]  # With the link, its question was lost.
        assert rest(cluster["c"].client()) == [b"1", b"2", b"3"]
    else:
        assert client.bodies() == [b"1"]
        assert rest(client) == [b"2", b"3"]


def test_a_consumer_that_is_cancelled_while_it_waits_for_the_target(cluster: Cluster) -> None:
    client = cluster["c"].client()
    client.consume("q", no_ack=True)
    assert client.bodies() == [b"1", b"2", b"3"]
    moving = Move(cluster)
    cluster.hold("a", "c")  # So that its node waits for what the home has passed on.
    moving.finish()
    client.send(m.BasicCancel(consumer_tag="c"))
    cluster.release("a", "c")
    assert types(client) == [m.BasicCancelOk]
    cluster["a"].client().publish("q", b"4", delivery_mode=2)
    assert not client.take()
    assert rest(client) == [b"4"]


def test_messages_stay_as_old_as_they_are(cluster: Cluster) -> None:
    client = cluster["a"].client()
    for name in NAMES:
        cluster[name].broker.wall_ms = 1_000_000
    client.call(m.QueueDelete(queue="q"))
    client.declare("q", durable=True, arguments=table_from_python({"x-message-ttl": 1_000}))
    for passed_ms in (0, 300, 300):
        cluster["a"].broker.wall_ms += passed_ms
        client.publish("q", b"%d" % cluster["a"].broker.wall_ms, delivery_mode=2)
        cluster.run()
    cluster["b"].broker.wall_ms = cluster["a"].broker.wall_ms
    move = Move(cluster)
    move.adopt()
    move.finish()
    target = cluster["b"]
    for at_ms, left in ((1_000_999, 3), (1_001_000, 2), (1_001_300, 1), (1_001_599, 1), (1_001_600, 0)):
        target.broker.wall_ms = at_ms
        target.broker.on_time()
        cluster.run()
        assert target.queue("q").ready_count == left, at_ms


@pytest.mark.parametrize("adopted", [False, True])
def test_a_queue_that_becomes_mirrored_does_not_move(adopted: bool) -> None:
    """The view was proposed before the move began, and is agreed on in the middle of it."""
    rings = Rings()
    rings.apply(c.DeclareQueue("/", "p", node="a"))
    client = rings["a"].client()
    for body in (b"1", b"2"):
        client.publish("p", body)
    queue = rings["a"].queue("p")
    ended: list[str | None] = []
    rings.hold("b", "a")
    move(queue, "b", ended.append)
    rings.run()
    if adopted:
        rings.release("b", "a", 1)
        rings.hold("b", "a")
    rings.apply(c.ChangeView("/", "p", queue.spec.id, View(1, 1, "a", ("a",), (("a", "a.0"),))))
    assert ended == ["it has become mirrored meanwhile"]
    rings.release("b", "a")
    assert isinstance(queue, Queue) and queue.life is Life.HERE and queue.mirror is not None
    assert queue.ready_count == 2 and not queue.consumers
    assert rest(rings["a"].client(), "p") == [b"1", b"2"]
    rings.finish()


def test_a_copy_outlives_what_was_staged_of_its_queue() -> None:
    """The queue becomes mirrored in the middle of a move, and its target has a copy of it before it hears that the move
    has failed. The log of the target has both as one queue."""
    rings = Rings()
    rings.apply(c.DeclareQueue("/", "p", node="a"))
    queue, target = rings["a"].queue("p"), rings["b"]
    number = queue.spec.id
    rings.hold("b", "a")
    move(queue, "b", lambda problem: None)
    rings.run()
    assert number in target.broker.arrivals.staged
    rings.hold("a", "b")
    rings.apply(c.ChangeView("/", "p", number, View(1, 1, "a", ("a", "b"), (("a", "a.0"), ("b", "b.0")))))
    assert number in target.broker.mirrors.mirrors and number not in target.broker.arrivals.staged
    refused = target.broker.arrivals.adopt(number, "a", 1)
    assert isinstance(refused, Refusal) and refused.text == "it has become mirrored meanwhile"
    rings.held.clear()
    rings.run()
    rings.finish()


def test_a_queue_that_waits_for_its_next_master_does_not_move() -> None:
    rings = Rings()
    rings.begin("b")
    ended: list[str | None] = []
    move(rings["a"].queue("q"), "c", ended.append)
    assert ended == ["it is not clear yet which node leads it; try again when it is"]
    rings.end()
    rings.finish()
