"""Sessions and subscriptions of MQTT clients: what outlives a connection, what is retained, what is shared."""

from __future__ import annotations

import pytest

from leveret.metadata.model import commands as c
from leveret.metadata.model.records import Binding
from leveret.protocol.mqtt import packets as k
from leveret.protocol.mqtt import properties as p
from leveret.protocol.mqtt.encoder import encode
from leveret.protocol.mqtt.properties import Prop, Properties
from leveret.protocol.mqtt.reason_codes import Reason
from tests.support.machines import World
from tests.unit.sessions.mqtt.clients import MqttClient, ack, connected, messages

LASTING: Properties = {Prop.SESSION_EXPIRY: 1_000}


@pytest.fixture
def world() -> World:
    return World()


def publishes(packets: list[k.Packet]) -> list[k.Publish]:
    return [one for one in packets if isinstance(one, k.Publish)]


# -- Sessions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "clean", "properties", "lasts"),
    [
        (k.V311, True, {}, False),
        (k.V311, False, {}, True),
        (k.V31, False, {}, True),
        (k.V5, True, {}, False),
        (k.V5, True, LASTING, True),
        (k.V5, False, {}, False),
    ],
)
def test_what_lasts(world: World, version: int, clean: bool, properties: Properties, lasts: bool) -> None:
    client = connected(world, "c", version, clean=clean, properties=properties)
    client.subscribe("a", qos=1)
    client.subscribe("b", qos=0)
    client.lose()
    queues = [name for name in world.broker.vhosts["/"].queues if name.startswith("mqtt-")]
    assert queues == (["mqtt-subscription-cqos1"] if lasts else [])
    publisher = connected(world, "p")
    publisher.publish("a", b"1", qos=1)
    publisher.publish("b", b"2", qos=1)
    client = MqttClient(world)
    connack, *got = client.connect("c", version, clean=False)
    assert isinstance(connack, k.Connack) and connack.session_present is (lasts and version != k.V31)
    assert messages(got) == ([("a", b"1", 1)] if lasts else [])
    publisher.publish("a", b"3", qos=1)
    publisher.publish("b", b"4", qos=1)
    assert sorted(messages(client.heard())) == ([("a", b"3", 1), ("b", b"4", 0)] if lasts else [])


def test_a_clean_start_ends_the_session(world: World) -> None:
    client = connected(world, properties=LASTING)
    client.subscribe("a", qos=1)
    client.lose()
    client = MqttClient(world)
    (connack,) = client.connect(properties=LASTING)
    assert isinstance(connack, k.Connack) and not connack.session_present
    assert not client.connection.subscriptions.options
    assert "mqtt-subscription-cqos1" not in world.broker.vhosts["/"].queues


def test_a_second_connection_takes_over(world: World) -> None:
    first = connected(world, properties=LASTING)
    first.subscribe("a", qos=1)
    connected(world, "p").publish("a", qos=1)
    (message,) = publishes(first.heard())
    second = MqttClient(world)
    connack, again = second.connect(clean=False, properties=LASTING)
    assert isinstance(connack, k.Connack) and connack.session_present
    (disconnect,) = first.heard()
    assert isinstance(disconnect, k.Disconnect) and disconnect.reason == Reason.SESSION_TAKEN_OVER
    assert isinstance(again, k.Publish) and again.dup and again.packet_id == message.packet_id
    assert second.send(ack(p.PUBACK, again)) == []
    assert world.queue("mqtt-subscription-cqos1").ready_count == 0


def test_clean_sessions_take_over_each_other(world: World) -> None:
    for _ in range(3):
        client = connected(world)
        assert client.subscribe("a", qos=1) == [k.Suback(1, [1])]
    assert messages(client.publish("a", qos=1)) == [("a", b"x", 1)]


def test_qos_2_of_a_client_survives_its_connection(world: World) -> None:
    subscriber = connected(world, "s", properties=LASTING)
    subscriber.subscribe("a", qos=2)
    client = connected(world, properties=LASTING)
    assert client.publish("a", b"1", 2, 5) == [k.Ack(p.PUBREC, 5)]
    client.lose()
    client = connected(world, clean=False, properties=LASTING)
    assert client.publish("a", b"1", 2, 5, dup=True) == [k.Ack(p.PUBREC, 5)]
    assert client.send(k.Ack(p.PUBREL, 5)) == [k.Ack(p.PUBCOMP, 5)]
    assert client.send(k.Ack(p.PUBREL, 5)) == [k.Ack(p.PUBCOMP, 5, Reason.PACKET_IDENTIFIER_NOT_FOUND)]
    assert client.publish("a", b"2", 2, 5) == [k.Ack(p.PUBREC, 5)]
    assert messages(subscriber.heard()) == [("a", b"1", 2), ("a", b"2", 2)]

def test_a_permission_is_taken_away_while_a_qos_2_publish_is_agreed_on(world: World) -> None:
    guest = world.metadata.users["guest"]
    world.apply(c.PutUser("u", guest.password_hash, guest.hashing))
    world.apply(c.SetPermissions("u", "/", ".*", ".*", ".*"))
    client = connected(world, username="u", properties=LASTING)
    client.connection.receive(encode(k.Publish("a", b"1", 2, packet_id=5), k.V5))
    world.apply(c.SetPermissions("u", "/", ".*", "^$", ".*"))
    (disconnect,) = client.heard()
    assert isinstance(disconnect, k.Disconnect) and disconnect.reason == Reason.NOT_AUTHORIZED


def test_qos_2_to_a_client_survives_its_connection(world: World) -> None:
    client = connected(world, properties=LASTING)
    client.subscribe("a", qos=2)
    publisher = connected(world, "p")
    for number in (1, 2, 3):
        publisher.publish("a", b"%d" % number, 2, number)
    first, second, third = publishes(client.heard())
    client.send(ack(p.PUBREC, first), ack(p.PUBCOMP, first), ack(p.PUBREC, second))
    client.lose()
    client = connected(world, clean=False, properties=LASTING)
    (release, again), client.got = client.got, []
    assert release == ack(p.PUBREL, second)
    assert isinstance(again, k.Publish)
    assert (again.payload, again.dup, again.packet_id) == (b"3", True, third.packet_id)
    assert client.send(ack(p.PUBCOMP, second), ack(p.PUBREC, again)) == [ack(p.PUBREL, again)]
    assert client.send(ack(p.PUBCOMP, again)) == []
    session = world.broker.client_ids.find("/", "c")
    assert session is not None and not session.releasing


def test_disconnect_changes_the_expiry(world: World) -> None:
    client = connected(world, properties=LASTING)
    client.subscribe("a", qos=1)
    client.send(k.Disconnect(0, {Prop.SESSION_EXPIRY: 0}))
    assert "mqtt-subscription-cqos1" not in world.broker.vhosts["/"].queues
    (answer,) = connected(world).send(k.Disconnect(0, {Prop.SESSION_EXPIRY: 1}))
    assert isinstance(answer, k.Disconnect) and answer.reason == Reason.PROTOCOL_ERROR


# -- SUBSCRIBE and UNSUBSCRIBE -------------------------------------------------------------------------------------


def bindings(world: World) -> set[tuple[str, str]]:
    return {
        (one.destination, one.key)
        for one in world.metadata.bindings
        if isinstance(one, Binding) and one.source == "amq.topic"
    }


def test_subscriptions_are_bindings(world: World) -> None:
    client = connected(world)
    assert client.subscribe("a/+/#", "b", qos=1) == [k.Suback(1, [1, 1])]
    high, low = "mqtt-subscription-cqos1", "mqtt-subscription-cqos0"
    assert bindings(world) == {(high, "a.*.#"), (high, "b")}
    client.subscribe("b", qos=0)
    assert bindings(world) == {(high, "a.*.#"), (low, "b")}
    assert client.unsubscribe("b", "c") == [k.Unsuback(2, [0, Reason.NO_SUBSCRIPTION_EXISTED])]
    assert bindings(world) == {(high, "a.*.#")}


def test_filters_that_are_none(world: World) -> None:
    client = connected(world)
    (suback,) = client.subscribe("a/#/b", "a+", "ok", "$share/g", "")
    bad = Reason.TOPIC_FILTER_INVALID
    assert isinstance(suback, k.Suback) and suback.reasons == [bad, bad, 0, bad, bad]
    old = connected(world, "o", k.V311)
    assert old.subscribe("a/#/b", "ok") == [k.Suback(1, [0x80, 0])]


def test_the_highest_qos_of_overlapping_filters(world: World) -> None:
    client = connected(world)
    client.subscribe("a/+", qos=1, properties={Prop.SUBSCRIPTION_ID: [1]})
    client.subscribe("a/#", qos=2, properties={Prop.SUBSCRIPTION_ID: [2]}, packet_id=2)
    connected(world, "p").publish("a/b", qos=2)
    (got,) = publishes(client.heard())
    assert got.qos == 2 and sorted(got.properties[Prop.SUBSCRIPTION_ID]) == [1, 2]


def test_nothing_is_lost_by_another_qos(world: World) -> None:
    client = connected(world, properties={Prop.RECEIVE_MAXIMUM: 1, **LASTING})
    client.subscribe("a", qos=1)
    publisher = connected(world, "p")
    for number in range(3):
        publisher.publish("a", b"%d" % number, 1)
    (first,) = publishes(client.heard())
    assert messages(client.subscribe("a", qos=0)) == []
    assert messages(client.send(ack(p.PUBACK, first))) == [("a", b"1", 0), ("a", b"2", 0)]
    assert messages(publisher.publish("a", b"3", 1) + client.heard()) == [("a", b"3", 0)]


def test_no_local(world: World) -> None:
    client, other = connected(world), connected(world, "o")
    client.subscribe("a", no_local=True)
    other.subscribe("a")
    assert client.publish("a", b"1") == [] and messages(other.publish("a", b"2")) == [("a", b"1", 0), ("a", b"2", 0)]
    assert messages(client.heard()) == [("a", b"2", 0)]
    (disconnect,) = client.subscribe("$share/g/a", no_local=True)
    assert isinstance(disconnect, k.Disconnect) and disconnect.reason == Reason.PROTOCOL_ERROR


TOPICS = ["a/b.d/c", "a.b", ".", "*", "a/*/c", "a//c", "/", "x" * 300, "ä/" * 120 + "b", "$x/y"]


@pytest.mark.parametrize("topic", TOPICS)
def test_names_stay_as_they_are(world: World, topic: str) -> None:
    client, publisher = connected(world), connected(world, "p", k.V311)
    filters = [topic, "#", "/".join("+" for _ in topic.split("/")), topic.replace(".", "/"), topic.replace("*", "x")]
    for at, topic_filter in enumerate(filters):
        client.subscribe(topic_filter, qos=1, properties={Prop.SUBSCRIPTION_ID: [at + 1]}, packet_id=at + 1)
    publisher.publish(topic, qos=1)
    (got,) = publishes(client.heard())
    expected = {at + 1 for at, one in enumerate(filters) if one == topic} | ({2, 3} if topic[0] != "$" else set())
    last = {one: at + 1 for at, one in enumerate(filters)}  # A filter that is there twice has the last identifier.
    assert got.topic == topic and set(got.properties[Prop.SUBSCRIPTION_ID]) == {
        last[filters[one - 1]] for one in expected
    }


def test_an_unwanted_topic_is_not_delivered(world: World) -> None:
    """Their bindings match; their filters do not."""
    client, publisher = connected(world), connected(world, "p")
    client.subscribe("a/b/c", "#", "x/*/z", qos=1)
    client.unsubscribe("#")
    client.subscribe("+/y")
    publisher.publish("a/b.c", qos=1)
    publisher.publish("x/y/z", qos=1)
    publisher.publish("$q/y", qos=1)
    assert publishes(client.heard()) == [] and client.connection.deliveries.dropped >= 2
    assert world.queue("mqtt-subscription-cqos1").ready_count == 0


# -- Retained messages ---------------------------------------------------------------------------------------------


def test_retained(world: World) -> None:
    publisher = connected(world, "p")
    for topic, qos in (("a/1", 0), ("a/2", 1), ("b", 2), ("$c", 0)):
        publisher.publish(topic, topic.encode(), qos, 5 if qos else 0, retain=True)
        publisher.send(k.Ack(p.PUBREL, 5))
    client = connected(world, "c")
    got = client.subscribe("a/+", qos=1)
    assert sorted(messages(got)) == [("a/1", b"a/1", 0), ("a/2", b"a/2", 1)]
    assert all(one.retain for one in publishes(got))
    assert messages(client.subscribe("#", qos=2, retain_handling=2)) == []
    assert sorted(messages(client.subscribe("#", qos=2))) == [("a/1", b"a/1", 0), ("a/2", b"a/2", 1), ("b", b"b", 2)]
    assert messages(client.subscribe("#", qos=2, retain_handling=1)) == []
    (live,) = publishes(connected(world, "d").publish("nobody", retain=True) + client.heard())
    assert not live.retain
    publisher.publish("a/1", b"", retain=True)
    assert messages(connected(world, "e").subscribe("a/1")) == []


def test_retain_as_published(world: World) -> None:
    client, publisher = connected(world), connected(world, "p")
    client.subscribe("a", retain_as_published=True)
    publisher.publish("a", retain=True)
    publisher.publish("a", retain=False)
    assert [one.retain for one in publishes(client.heard())] == [True, False]


def test_retained_properties(world: World) -> None:
    world.broker.wall_ms = 5_000_000
    properties: Properties = {Prop.CONTENT_TYPE: "t", Prop.USER_PROPERTY: [("a", "b")]}
    connected(world, "p").publish("a", retain=True, properties={**properties, Prop.MESSAGE_EXPIRY: 100})
    world.broker.wall_ms += 40_000
    (got,) = publishes(connected(world).subscribe("a"))
    assert got.properties == {**properties, Prop.MESSAGE_EXPIRY: 60}


# -- Shared subscriptions ------------------------------------------------------------------------------------------


def test_shared(world: World) -> None:
    clients = [connected(world, name) for name in "abc"]
    for client in clients:
        assert client.subscribe("$share/g/t/+", qos=1) == [k.Suback(1, [1])]
    other = connected(world, "o")
    other.subscribe("t/1")
    publisher = connected(world, "p")
    for number in range(9):
        publisher.publish("t/1", b"%d" % number, qos=1)
    got = [messages(client.heard()) for client in clients]
    assert sorted(payload for part in got for _, payload, _ in part) == [b"%d" % number for number in range(9)]
    assert all(got) and len(messages(other.heard())) == 9
    name = "mqtt-subscription-$share/g/t/+"
    for client in clients:
        assert name in world.broker.vhosts["/"].queues
        assert client.unsubscribe("$share/g/t/+") == [k.Unsuback(2, [0])]
    assert name not in world.broker.vhosts["/"].queues


def test_what_a_member_did_not_acknowledge_goes_to_another(world: World) -> None:
    first, second = connected(world, "a"), connected(world, "b")
    first.subscribe("$share/g/t", qos=1)
    connected(world, "p").publish("t", qos=1)
    assert len(messages(first.heard())) == 1
    second.subscribe("$share/g/t", qos=1)
    first.lose()
    assert messages(second.heard()) == [("t", b"x", 1)]


@pytest.mark.parametrize(
    "goodbye",
    [
        pytest.param(encode(k.Disconnect(), k.V5), id="DISCONNECT"),
        pytest.param(b"\x00\x00", id="a malformed packet"),
    ],
)
@pytest.mark.parametrize("sent_alone", range(5))
def test_what_a_member_acknowledges_last_goes_to_nobody_else(world: World, sent_alone: int, goodbye: bytes) -> None:
    """Its last acknowledgements come together with the packet that ends its connection."""
    first, second = connected(world, "a"), connected(world, "b")
    first.subscribe("$share/g/t", qos=1)
    publisher = connected(world, "p")
    for number in range(5):
        publisher.publish("t", b"%d" % number, qos=1)
    acks = [encode(ack(p.PUBACK, one), k.V5) for one in publishes(first.heard())]
    second.subscribe("$share/g/t", qos=1)
    for one in acks[:sent_alone]:
        first.send_bytes(one)
    first.send_bytes(b"".join(acks[sent_alone:4]) + goodbye)
    assert messages(second.heard()) == [("t", b"4", 1)], "the one that was not acknowledged"


@pytest.mark.parametrize("qos", [1, 2])
def test_what_is_acknowledged_last_does_not_come_again(world: World, qos: int) -> None:
    """Neither to the session when it goes on, nor to another member, whose session ended with its connection."""
    lasting, member = connected(world, "c", properties=LASTING), connected(world, "m")
    lasting.subscribe("t", qos=qos)
    member.subscribe("$share/g/t", qos=qos)
    connected(world, "p").publish("t", b"x", qos)
    kind = p.PUBACK if qos == 1 else p.PUBREC
    for client in (lasting, member):
        (message,) = publishes(client.heard())
        client.send(ack(kind, message), k.Disconnect())
    assert publishes(connected(world, "c", clean=False, properties=LASTING).got) == []
    assert publishes(connected(world, "n").subscribe("$share/g/t", qos=qos)) == []


# -- Wills ---------------------------------------------------------------------------------------------------------


def test_wills_are_the_clusters(world: World) -> None:
    will = k.Will("w.x/y", b"gone", 1, True, {Prop.WILL_DELAY: 7, Prop.MESSAGE_EXPIRY: 9})
    client = connected(world, will=will, properties=LASTING)
    kept = world.broker.client_ids.find("/", "c")
    assert kept is not None and kept.will is not None
    assert (kept.will.exchange, kept.will.routing_key, kept.will.delay_s) == ("amq.topic", "w.x.y", 7)
    assert kept.will.retained is not None and kept.will.retained.topic == "w.x/y" and kept.will.expiry_s == 9
    client.send(k.Disconnect())


def lead(world: World) -> None:
    """What the leader of a cluster does in some ticks."""
    for _ in range(3):
        world.broker.lead()
        world.turn()


def test_a_normal_disconnect_publishes_no_will(world: World) -> None:
    watcher = connected(world, "w")
    watcher.subscribe("will/+")
    for reason, published in ((0, []), (Reason.DISCONNECT_WITH_WILL, [("will/x", b"gone", 0)])):
        client = connected(world, will=k.Will("will/x", b"gone"))
        client.send(k.Disconnect(reason))
        lead(world)
        assert messages(watcher.heard()) == published
    for topic in ("will/a", "will/b.c"):
        connected(world, will=k.Will(topic, b"lost")).lose()
        lead(world)
        assert messages(watcher.heard()) == [(topic, b"lost", 0)]


# -- A queue that is deleted ---------------------------------------------------------------------------------------


def test_somebody_deletes_a_queue_of_a_session(world: World) -> None:
    client = connected(world, properties=LASTING)
    client.subscribe("a", qos=1)
    spec = world.queue("mqtt-subscription-cqos1").spec
    world.apply(c.DeleteQueue("/", spec.name, spec.id))
    (disconnect,) = client.heard()
    assert isinstance(disconnect, k.Disconnect) and disconnect.reason == Reason.ADMINISTRATIVE_ACTION


def test_two_subscriptions_with_one_binding_go_together(world: World) -> None:
    """`*` is a level of a topic for MQTT, and a wildcard in a binding."""
    client = connected(world)
    client.subscribe("a/+", "a/*", qos=1)
    binding = Binding("/", "amq.topic", "queue", "mqtt-subscription-cqos1", "a.*")
    assert binding in world.metadata.bindings
    client.send(k.Unsubscribe(2, ["a/*"]))
    assert binding in world.metadata.bindings, "the other one needs it"
    client.subscribe("a/*", qos=1)
    client.send(k.Unsubscribe(3, ["a/+", "a/*"]))
    assert binding not in world.metadata.bindings
