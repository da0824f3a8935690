"""MQTT and AMQP clients of one broker: what each sees of the other's messages."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.metadata.model import commands as c
from leveret.protocol import methods as m
from leveret.protocol.mqtt import packets as k
from leveret.protocol.mqtt import properties as p
from leveret.protocol.mqtt.properties import Prop
from leveret.protocol.properties import Properties
from leveret.protocol.tables import table_from_python, to_python
from leveret.sessions.mqtt.messages import from_content, to_content
from leveret.sessions.mqtt.routing_keys import exact_key_of, is_told_by, key_of, pattern_of, topic_of
from tests.support.machines import Client, World
from tests.unit.sessions.mqtt.clients import connected, messages

FRAME_MAX = 131_072


@pytest.fixture
def world() -> World:
    return World()


def consumer(world: World, *keys: str) -> Client:
    client = world.client()
    client.call(m.QueueDeclare(queue="q"))
    for key in keys:
        client.call(m.QueueBind(queue="q", exchange="amq.topic", routing_key=key))
    client.call(m.BasicConsume(queue="q", no_ack=True))
    return client


def delivered(client: Client) -> list[tuple[str, Properties, bytes]]:
    return [
        (reply.method.routing_key, reply.properties, reply.body)
        for reply in client.take()
        if isinstance(reply.method, m.BasicDeliver) and reply.properties is not None
    ]


@pytest.mark.parametrize(
    ("topic", "key", "bindings"),
    [
        ("a/b/c", "a.b.c", ["a.*.c"]),
        ("a/b.d/c", "a.b.d.c", ["a.b.d.c"]),
        ("a/b.d/c", "a.b.d.c", ["a.*.*.c"]),
        ("/a", ".a", ["#.a"]),
        ("a", "a", ["#"]),
    ],
)
def test_keys_are_as_with_rabbitmq(world: World, topic: str, key: str, bindings: list[str]) -> None:
    client = consumer(world, *bindings)
    connected(world).publish(topic, b"x", qos=1)
    ((found, properties, body),) = delivered(client)
    assert (found, body) == (key, b"x")
    headers = to_python(properties.headers or {})
    told = {} if "." not in topic else {"x-mqtt-topic": topic}
    assert headers == {"x-mqtt-publish-qos": 1, "x-mqtt-dup": False, **told} and properties.delivery_mode == 2


def test_properties_to_amqp(world: World) -> None:
    client = consumer(world, "a")
    properties: p.Properties = {
        Prop.CONTENT_TYPE: "text/plain",
        Prop.CORRELATION_DATA: b"id",
        Prop.RESPONSE_TOPIC: "r/s",
        Prop.MESSAGE_EXPIRY: 5,
        Prop.USER_PROPERTY: [("k", "v"), ("l", "w")],
    }
    connected(world).publish("a", properties=properties)
    ((_, found, _),) = delivered(client)
    headers = to_python(found.headers or {})
    assert headers["k"] == "v" and headers["l"] == "w" and headers["x-reply-to-topic"] == "r.s"
    assert (found.content_type, found.correlation_id, found.expiration) == ("text/plain", "id", "5000")
    assert found.delivery_mode == 1


def test_messages_of_amqp(world: World) -> None:
    subscriber, old = connected(world, "s"), connected(world, "o", k.V311)
    subscriber.subscribe("a/+", qos=2)
    old.subscribe("a/#", qos=0)
    publisher = world.client()
    headers: dict[str, Any] = {"text": "t", "number": 5, "yes": True, "x-secret": "s", "table": {"a": 1}}
    publisher.publish(
        "a.b", b"body", "amq.topic", headers=table_from_python(headers), content_type="c", correlation_id="i"
    )
    (got,) = subscriber.heard()
    assert isinstance(got, k.Publish) and (got.topic, got.payload, got.qos) == ("a/b", b"body", 1)
    assert got.properties == {
        Prop.CONTENT_TYPE: "c",
        Prop.CORRELATION_DATA: b"i",
        Prop.USER_PROPERTY: [("text", "t"), ("number", "5"), ("yes", "true")],
    }
    assert messages(old.heard()) == [("a/b", b"body", 0)]


def test_keys_that_are_no_topics(world: World) -> None:
    subscriber = connected(world)
    subscriber.subscribe("#", qos=1)
    publisher = world.client()
    for key in ("a.#", "+", "a\0", ""):
        publisher.publish(key, exchange="amq.topic")
    publisher.publish("a/b.c", exchange="amq.topic")
    assert messages(subscriber.heard()) == [("a.b/c", b"x", 1)]
    assert subscriber.connection.deliveries.dropped == 4
    assert world.queue("mqtt-subscription-cqos1").ready_count == 0


def test_what_a_client_id_allows_is_not_allowed_to_amqp(world: World) -> None:
    guest = world.metadata.users["guest"]
    world.apply(c.PutUser("u", guest.password_hash, guest.hashing))
    world.apply(c.SetPermissions("u", "/", ".*", ".*", ".*"))
    world.apply(c.SetTopicPermissions("u", "/", "amq.topic", "^{client_id}", ".*"))
    subscriber = connected(world, "s")
    subscriber.subscribe("me/x")
    connected(world, "me", username="u").publish("me/x", b"mine")
    client = world.client(user="u")
    client.publish("me.x", b"theirs", "amq.topic")
    assert any(isinstance(one, m.ChannelClose) and one.reply_code == 403 for one in client.methods())
    assert messages(subscriber.heard()) == [("me/x", b"mine", 0)]


def test_large_bodies(world: World) -> None:
    """In AMQP they have several frames."""
    subscriber, publisher = connected(world, "s"), connected(world)
    subscriber.subscribe("a", qos=1)
    client = consumer(world, "a")
    body = bytes(range(256)) * 2_000
    publisher.publish("a", body, qos=1)
    assert messages(subscriber.heard()) == [("a", body, 1)] and delivered(client)[0][2] == body
    client.publish("a", body, "amq.topic")
    publisher.publish("a", b"", qos=1)
    assert messages(subscriber.heard()) == [("a", body, 1), ("a", b"", 1)]


LONG = ["x" * 400, "ü/" * 100 + "x", "y" * 250 + "/" + "z" * 9]


@pytest.mark.parametrize("topic", ["a", "a/b", "a.b/c", "/", ".", "a//", *LONG])
def test_names(topic: str) -> None:
    key = key_of(topic)
    assert len(key.encode()) <= 255
    assert is_told_by(key, topic) == ("." not in topic and len(topic.encode()) <= 255)
    assert topic_of(exact_key_of(topic)) == topic
    assert len(pattern_of(topic).encode()) <= 255
    content = to_content(topic, b"p", 1, {}, FRAME_MAX, 0)
    message = from_content(key.encode(), content)
    assert message is not None and message.topic == topic


def test_patterns() -> None:
    assert [pattern_of(one) for one in ("a/+/#", "+", "#", "a.b/c", "/+")] == ["a.*.#", "*", "#", "a/b.c", ".*"]
    assert pattern_of("a/" + "b" * 300) == "a.#" and pattern_of("b" * 300) == "#"
