"""The firehose: what goes to amq.rabbitmq.trace while it is on, with RabbitMQ 3.10.8's keys, headers and types."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.broker.firehose import is_traced, trace
from leveret.metadata.model import commands as c
from leveret.protocol import methods as m
from leveret.protocol.tables import DEPTH_MAX, Field, Table, table_from_python, to_python
from tests.support.brokers import Cluster
from tests.support.machines import Client, Reply, World


@pytest.fixture
def world() -> World:
    return World()


def watching(world: World, pattern: str = "#", queue: str = "t") -> Client:
    """A client that is shown what is traced."""
    client = world.client()
    client.declare(queue)
    client.call(m.QueueBind(queue=queue, exchange="amq.rabbitmq.trace", routing_key=pattern))
    client.consume(queue, no_ack=True)
    return client


def shown(client: Client) -> list[tuple[str, dict[str, Any], bytes]]:
    """Key, headers and body of what was traced."""
    return [_shown(reply) for reply in client.take()]


def _shown(reply: Reply) -> tuple[str, dict[str, Any], bytes]:
    assert isinstance(reply.method, m.BasicDeliver) and reply.method.exchange == "amq.rabbitmq.trace"
    assert reply.properties is not None and reply.properties.headers is not None
    assert reply.properties.delivery_mode is None
    return reply.method.routing_key, to_python(reply.properties.headers), reply.body


def keys(client: Client) -> list[str]:
    return [key for key, _, _ in shown(client)]


def test_a_publish(world: World) -> None:
    trace(world.broker, "/", True)
    watcher, client = watching(world), world.client(channels=(1, 5))
    client.declare("q")
    client.call(m.QueueBind(queue="q", exchange="amq.fanout"))
    headers = table_from_python({"CC": ["k2"], "BCC": ["k3"], "h": 5})
    client.publish(
        "k", b"body", "amq.fanout", channel=5, headers=headers, delivery_mode=2, timestamp=1 << 40, content_type="text"
    )
    ((key, got, body),) = shown(watcher)
    peer = str(client.connection.peer)
    assert (key, body) == ("publish.amq.fanout", b"body")
    assert got == {
        "exchange_name": "amq.fanout",
        "routing_keys": ["k", "k2", "k3"],
        "properties": {
            "timestamp": 1 << 40,
            "delivery_mode": 2,
            "headers": {"CC": ["k2"], "h": 5},
            "content_type": "text",
        },
        "node": "node",
        "vhost": "/",
        "connection": peer,
        "channel": 5,
        "user": "guest",
        "routed_queues": ["q"],
    }
    assert list(got) == [
        "exchange_name", "routing_keys", "properties", "node", "vhost", "connection", "channel", "user",
        "routed_queues",
    ]  # fmt: skip
    assert list(got["properties"]) == ["timestamp", "delivery_mode", "headers", "content_type"]


def test_the_types_of_headers(world: World) -> None:
    trace(world.broker, "/", True)
    watcher, client = watching(world), world.client()
    client.publish("k", b"", "amq.direct", priority=3, timestamp=5)
    (reply,) = watcher.take()
    assert reply.properties is not None and reply.properties.headers is not None
    headers = reply.properties.headers
    assert headers["channel"] == Field("I", 1) and headers["routed_queues"] == Field("A", [])
    assert headers["properties"].value == {"timestamp": Field("I", 5), "priority": Field("I", 3)}


def test_deliveries(world: World) -> None:
    trace(world.broker, "/", True)
    watcher, client = watching(world, "deliver.q"), world.client()
    client.declare("q")
    client.publish("q", b"body", headers=table_from_python({"CC": ["k2"]}))
    client.call(m.BasicGet(queue="q"))
    ((key, got, body),) = shown(watcher)
    assert (key, body, got["redelivered"]) == ("deliver.q", b"body", 0)
    assert list(got) == [
        "exchange_name", "routing_keys", "properties", "node", "redelivered", "vhost", "connection", "channel", "user",
    ]  # fmt: skip
    assert got["routing_keys"] == ["q", "k2"] and got["exchange_name"] == ""
    client.send(m.BasicNack(1, False, True))
    client.consume("q")
    ((_, got, _),) = shown(watcher)
    assert got["redelivered"] == 1


def test_a_bundle_is_told_one_by_one_and_in_order(world: World) -> None:
    trace(world.broker, "/", True)
    watcher, client = watching(world, "deliver.*"), world.client(channels=(1, 2))
    client.declare("q")
    for number in range(5):
        client.publish("q", b"%d" % number)
    client.consume("q", channel=2, no_ack=True)
    assert [body for _, _, body in shown(watcher)] == [b"%d" % number for number in range(5)]


def test_where_a_message_of_the_default_exchange_would_go(world: World) -> None:
    """It leads to a name, as RabbitMQ tells it, whether or not there is a queue."""
    trace(world.broker, "/", True)
    watcher, client = watching(world), world.client()
    client.publish("none", mandatory=True)
    assert isinstance(client.methods()[0], m.BasicReturn)
    ((key, got, _),) = shown(watcher)
    assert key == "publish." and got["routed_queues"] == ["none"]


def test_on_and_off_at_once(world: World) -> None:
    watcher, client = watching(world), world.client()
    client.declare("q")
    client.publish("q")
    client.publish("q")
    assert keys(watcher) == [] and not is_traced(world.broker, "/")
    trace(world.broker, "/", True)
    client.publish("q")
    assert keys(watcher) == ["publish."] and is_traced(world.broker, "/")
    trace(world.broker, "/", True)
    trace(world.broker, "/", False)
    client.publish("q")
    client.consume("q", no_ack=True)
    assert keys(watcher) == [] and len(client.take()) == 4


def test_off_it_is_as_before(world: World) -> None:
    """What is remembered of routes and consumers does not depend on what once was."""
    client = world.client()
    client.declare("q")
    client.publish("q")
    vhost = world.broker.vhosts["/"]
    assert [route.is_plain for route in vhost.routes.values()] == [True]
    trace(world.broker, "/", True)
    client.publish("q")
    assert [route.is_plain for route in vhost.routes.values()] == [False]
    trace(world.broker, "/", False)
    client.publish("q")
    assert [route.is_plain for route in vhost.routes.values()] == [True]
    assert world.queue("q").ready_count == 3


def test_the_firehose_does_not_feed_itself(world: World) -> None:
    """A queue with what is traced is a queue like any other, and may be bound elsewhere too."""
    trace(world.broker, "/", True)
    watcher = watching(world)
    watcher.call(m.QueueBind(queue="t", exchange="amq.direct", routing_key="k"))
    watcher.publish("k", b"body", "amq.direct")
    replies = watcher.take()
    got = [reply.method.routing_key for reply in replies if isinstance(reply.method, m.BasicDeliver)]
    assert sorted(got) == ["deliver.t", "k", "publish.amq.direct"]
    watcher.send(m.BasicQos(0, 1, False))
    assert isinstance(watcher.take()[0].method, m.BasicQosOk)


def test_vhosts_are_apart(world: World) -> None:
    world.apply(c.AddVhost("v"))
    world.apply(c.SetPermissions("guest", "v", ".*", ".*", ".*"))
    trace(world.broker, "v", True)
    watcher, client = watching(world), world.client()
    client.declare("q")
    client.publish("q")
    assert keys(watcher) == []
    world.apply(c.DeleteVhost("v"))
    assert not is_traced(world.broker, "v")


def test_other_routes_are_told_as_well(world: World) -> None:
    """By headers, and in several frames."""
    trace(world.broker, "/", True)
    watcher, client = watching(world, "publish.#"), world.client(frame_max=4096)
    client.declare("q")
    arguments = table_from_python({"x-match": "all", "a": 1})
    client.call(m.QueueBind(queue="q", exchange="amq.headers", arguments=arguments))
    client.publish("k", b"x" * 9000, "amq.headers", headers=table_from_python({"a": 1}))
    ((key, got, body),) = shown(watcher)
    assert (key, body, got["routed_queues"]) == ("publish.amq.headers", b"x" * 9000, ["q"])


def test_with_queues_at_another_node() -> None:
    cluster = Cluster("a", "b", home="b")
    trace(cluster["a"].broker, "/", True)
    watcher, client, other = watching(cluster["b"]), cluster["a"].client(), cluster["b"].client()
    client.declare("q")
    client.publish("q", b"1")
    client.consume("q", no_ack=True)
    assert [(key, got["node"]) for key, got, _ in shown(watcher)] == [("publish.", "a"), ("deliver.q", "a")]
    other.publish("q", b"2")  # A client of a node that does not trace; its consumer is at one that does.
    assert keys(watcher) == ["deliver.q"]
    cluster.finish()


def test_headers_nested_as_deep_as_may_be(world: World) -> None:
    """In a copy they would be nested deeper. It is made without them, and nobody is the worse for it."""
    client = world.client()
    client.declare("q")
    headers: Table = {"a": Field("S", "x")}
    for _ in range(DEPTH_MAX - 1):
        headers = {"a": Field("F", headers)}
    client.publish("q", b"before", headers=headers)
    trace(world.broker, "/", True)
    watcher = watching(world)
    client.publish("q", b"deep", headers=headers)
    client.consume("q", no_ack=True)
    assert client.bodies() == [b"before", b"deep"]
    assert [(key, body) for key, _, body in shown(watcher)] == [
        ("publish.", b"deep"),
        ("deliver.q", b"before"),
        ("deliver.q", b"deep"),
    ]
