"""The MQTT machine, spoken to in packets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from leveret.base.json_values import Json
from leveret.metadata.model import commands as c
from leveret.protocol.mqtt import packets as k
from leveret.protocol.mqtt import properties as p
from leveret.protocol.mqtt.encoder import encode
from leveret.protocol.mqtt.properties import Prop
from leveret.protocol.mqtt.reason_codes import Reason
from leveret.sessions.mqtt.connection import Connection
from leveret.sessions.mqtt.limits import MqttLimits
from leveret.sessions.peer import Peer
from tests.support.machines import World
from tests.unit.sessions.mqtt.clients import LOOPBACK, MqttClient, ack, connected, messages

VERSIONS = (k.V31, k.V311, k.V5)


@pytest.fixture
def world() -> World:
    return World()


# -- CONNECT -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_connect_and_ping(world: World, version: int) -> None:
    client = MqttClient(world)
    (connack,) = client.connect("c", version)
    assert isinstance(connack, k.Connack) and connack.reason == 0 and not connack.session_present
    assert client.send(k.Pingreq()) == [k.Pingresp()]
    assert client.send(k.Disconnect()) == [] and client.connection.closed
    assert not world.broker.clients and not world.broker.sessions


def test_limits_are_told(world: World) -> None:
    client = MqttClient(world)
    (connack,) = client.connect("", properties={Prop.SESSION_EXPIRY: 1_000_000})
    assert isinstance(connack, k.Connack)
    assigned = connack.properties.pop(Prop.ASSIGNED_CLIENT_ID)
    assert assigned == client.connection.client_id
    assert connack.properties == {
        Prop.RECEIVE_MAXIMUM: 8_192,
        Prop.MAXIMUM_PACKET_SIZE: 16_777_216,
        Prop.TOPIC_ALIAS_MAXIMUM: 16,
        Prop.SESSION_EXPIRY: 86_400,
    }


@pytest.mark.parametrize(
    ("version", "options", "reason"),
    [
        (k.V5, {"password": b"wrong"}, Reason.BAD_USER_NAME_OR_PASSWORD),
        (k.V5, {"username": "nobody"}, Reason.BAD_USER_NAME_OR_PASSWORD),
        (k.V311, {"password": b"wrong"}, 4),
        (k.V31, {"client_id": ""}, 2),
        (k.V311, {"client_id": "", "clean": False}, 2),
        (k.V5, {"client_id": "x" * 250}, Reason.CLIENT_IDENTIFIER_NOT_VALID),
        (k.V5, {"properties": {Prop.AUTH_METHOD: "SCRAM"}}, Reason.BAD_AUTHENTICATION_METHOD),
    ],
)
def test_connects_that_are_refused(world: World, version: int, options: dict[str, object], reason: int) -> None:
    client = MqttClient(world)
    (connack,) = client.connect(version=version, **options)  # type: ignore[arg-type]
    assert isinstance(connack, k.Connack) and connack.reason == reason and client.connection.closed
    assert not world.broker.clients and not world.broker.sessions


def test_vhost_and_anonymous_logins(world: World) -> None:
    world.apply(c.AddVhost("v"))
    world.apply(c.SetPermissions("guest", "v", ".*", ".*", ".*"))
    client = connected(world, username="v:guest")
    assert client.connection.vhost is not None and client.connection.vhost.name == "v"
    assert connected(world, "d", username=None, password=None).connection.user == "guest"
    other = MqttClient(world, MqttLimits(allow_anonymous=False))
    (connack,) = other.connect(username=None, password=None)
    assert isinstance(connack, k.Connack) and connack.reason == Reason.BAD_USER_NAME_OR_PASSWORD
    world.apply(c.ClearPermissions("guest", "v"))
    (connack,) = MqttClient(world).connect("e", username="v:guest")
    assert isinstance(connack, k.Connack) and connack.reason == Reason.NOT_AUTHORIZED


CERTIFIED = Peer("127.0.0.1", 40_000, "127.0.0.1", 8883, True, True, "CN=guest")


@pytest.mark.parametrize(
    ("peer", "username", "vhost"),
    [
        (LOOPBACK, "guest", "port"),
        (LOOPBACK, "own:guest", "own"),
        (LOOPBACK, "none:guest", None),  # No vhost, so all of it is the name of a user, and there is none.
        (LOOPBACK, None, "port"),
        (CERTIFIED, "guest", "certified"),
        (CERTIFIED, "own:guest", None),
        (CERTIFIED, None, "certified"),
        (replace(CERTIFIED, certificate="CN=other"), "guest", "/"),
        (replace(CERTIFIED, certificate="CN=other"), "own:guest", "own"),
        (replace(CERTIFIED, certificate="CN=other", local_port=1883), "guest", "port"),
        (replace(LOOPBACK, local_port=1884), "guest", "/"),
        (replace(LOOPBACK, local_port=1885), "guest", None),
    ],
)
def test_vhosts_by_port_and_certificate(world: World, peer: Peer, username: str | None, vhost: str | None) -> None:
    for name in ("port", "own", "certified"):
        world.apply(c.AddVhost(name))
        world.apply(c.SetPermissions("guest", name, ".*", ".*", ".*"))
    by_port: Json = {"1883": "port", "1885": "missing", "8883": 7}
    world.apply(c.SetGlobalParameter("mqtt_port_to_vhost_mapping", by_port))
    world.apply(c.SetGlobalParameter("mqtt_default_vhosts", {"CN=guest": "certified"}))
    client = MqttClient(world, peer=peer)
    (connack,) = client.connect(username=username, password=None if username is None else b"guest")
    assert isinstance(connack, k.Connack)
    if vhost is None:
        assert connack.reason in (Reason.BAD_USER_NAME_OR_PASSWORD, Reason.NOT_AUTHORIZED)
    else:
        assert client.connection.vhost is not None and client.connection.vhost.name == vhost


def test_a_mapping_that_is_none(world: World) -> None:
    world.apply(c.SetGlobalParameter("mqtt_port_to_vhost_mapping", "1883"))
    assert connected(world).connection.login_part.mechanism == "PLAIN"


def test_other_versions(world: World) -> None:
    newer = MqttClient(world)
    (connack,) = newer.send_bytes(b"\x10\x0d\0\4MQTT\x06\x02\0\x3c\0\0\0")
    assert isinstance(connack, k.Connack) and connack.reason == Reason.UNSUPPORTED_PROTOCOL_VERSION
    older = MqttClient(world)
    older.version = k.V311
    assert older.send_bytes(b"\x10\x0c\0\4MQTT\x02\x02\0\x3c\0\0") == [k.Connack(False, 1)]
    assert newer.connection.closed and older.connection.closed


def test_what_comes_first_is_connect(world: World) -> None:
    client = MqttClient(world)
    assert client.send(k.Pingreq()) == [] and client.connection.closed
    client = MqttClient(world)
    assert client.send_bytes(b"GET / HTTP/1.1\r\n") == [] and client.connection.closed, "no length is waited for"
    client = connected(world)
    (disconnect,) = client.connect()
    assert isinstance(disconnect, k.Disconnect) and disconnect.reason == Reason.PROTOCOL_ERROR


def test_packets_that_are_too_large(world: World) -> None:
    client = MqttClient(world)
    assert client.send_bytes(b"\x10\xff\xff\xff\x7f") == [] and client.connection.closed
    client = connected(world, limits=MqttLimits(packet_max=1_000))
    (disconnect,) = client.send_bytes(b"\x30\xe8\x07")
    assert isinstance(disconnect, k.Disconnect) and disconnect.reason == Reason.PACKET_TOO_LARGE


def test_any_split_of_bytes(world: World) -> None:
    other = connected(world, "s")
    other.subscribe("a/b")
    data = encode(k.Connect(k.V5, "c", username="guest", password=b"guest"), k.V5)
    data += encode(k.Publish("a/b", b"1" * 200, 1, packet_id=5), k.V5) + encode(k.Publish("a/b", b"2"), k.V5)
    client = MqttClient(world)
    for at in range(len(data)):
        client.connection.receive(data[at : at + 1])
    answers = client.heard()
    assert isinstance(answers[0], k.Connack) and answers[1:] == [k.Ack(p.PUBACK, 5)]
    assert messages(other.heard()) == [("a/b", b"1" * 200, 0), ("a/b", b"2", 0)]


def test_keep_alive(world: World) -> None:
    client = connected(world, keep_alive=10)
    now_ms = world.broker.now_ms
    for second in range(1, 15):
        client.connection.on_tick(now_ms + second * 1_000)
    assert client.heard() == []
    for second in range(15, 20):
        client.connection.on_tick(now_ms + second * 1_000)
    (disconnect,) = client.heard()
    assert isinstance(disconnect, k.Disconnect) and disconnect.reason == Reason.KEEP_ALIVE_TIMEOUT


def test_the_server_says_why_it_ends_a_connection(world: World) -> None:
    for text, reason in (
        ("broker forced connection closure with reason 'shutdown'", Reason.SERVER_SHUTTING_DOWN),
        ("Closed via management plugin", Reason.ADMINISTRATIVE_ACTION),
    ):
        client = connected(world)
        client.connection.close(320, text)
        (disconnect,) = client.heard()
        assert isinstance(disconnect, k.Disconnect) and disconnect.reason == reason
    old = connected(world, version=k.V311)
    old.connection.close(320, "x")
    assert old.heard() == [] and old.connection.closed


# -- PUBLISH -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("granted", [0, 1, 2])
def test_qos(world: World, version: int, published: int, granted: int) -> None:
    subscriber, publisher = connected(world, "s", version), connected(world, "p", version)
    assert subscriber.subscribe("a/+", qos=granted) == [k.Suback(1, [granted])]
    for number in range(3):
        answer = publisher.publish("a/b", b"%d" % number, published, 7)
        if published == 1:
            assert answer == [k.Ack(p.PUBACK, 7)]
        elif published == 2:
            assert answer == [k.Ack(p.PUBREC, 7)]
            assert publisher.publish("a/b", b"%d" % number, 2, 7, dup=True) == [k.Ack(p.PUBREC, 7)]
            assert publisher.send(k.Ack(p.PUBREL, 7)) == [k.Ack(p.PUBCOMP, 7)]
        else:
            assert answer == []
    got = subscriber.heard()
    qos = min(published, granted)
    assert messages(got) == [("a/b", b"%d" % number, qos) for number in range(3)]
    for packet in got:
        if qos == 1:
            assert subscriber.send(ack(p.PUBACK, packet)) == []
        elif qos == 2:
            assert subscriber.send(ack(p.PUBREC, packet)) == [ack(p.PUBREL, packet)]
            assert subscriber.send(ack(p.PUBREC, packet)) == [ack(p.PUBREL, packet)]
            assert subscriber.send(ack(p.PUBCOMP, packet)) == []
    deliveries = subscriber.connection.deliveries
    assert not deliveries.inflight and not deliveries.releasing and not deliveries.received
    session = subscriber.connection.session
    assert session is not None and session.unacked.count == 0
    assert not publisher.connection.publisher.phases and not publisher.connection.publisher.open_count


def test_what_is_not_safe_is_not_acknowledged(world: World) -> None:
    keeper = connected(world, "s", properties={Prop.SESSION_EXPIRY: 100})
    keeper.subscribe("a", qos=1)
    publisher = connected(world, "p")
    world.holds_disk = True
    assert publisher.publish("a", qos=1, packet_id=1) == publisher.publish("a", qos=2, packet_id=2) == []
    world.holds_disk = False
    world.sync()
    assert publisher.heard() == [k.Ack(p.PUBACK, 1), k.Ack(p.PUBREC, 2)]


def test_nobody_subscribes(world: World) -> None:
    client, old = connected(world), connected(world, "d", k.V311)
    assert client.publish("a", qos=1) == [k.Ack(p.PUBACK, 7, Reason.NO_MATCHING_SUBSCRIBERS)]
    assert old.publish("a", qos=1) == [k.Ack(p.PUBACK, 7)]


def test_a_queue_that_refuses(world: World) -> None:
    world.apply(c.SetPolicy("/", "p", "qos1$", "queues", 0, {"max-length": 1, "overflow": "reject-publish"}))
    subscriber = connected(world, "s", properties={Prop.RECEIVE_MAXIMUM: 1})
    subscriber.subscribe("a", qos=1)
    client, old = connected(world), connected(world, "d", k.V311)
    for packet_id in (1, 2):
        assert client.publish("a", qos=1, packet_id=packet_id) == [k.Ack(p.PUBACK, packet_id)]
    assert client.publish("a", qos=1, packet_id=3) == [k.Ack(p.PUBACK, 3, Reason.QUOTA_EXCEEDED)]
    assert client.publish("a", qos=2, packet_id=4) == [k.Ack(p.PUBREC, 4, Reason.QUOTA_EXCEEDED)]
    assert old.publish("a", qos=1) == [] and old.connection.closed


def test_topic_aliases_of_a_client(world: World) -> None:
    subscriber, client = connected(world, "s"), connected(world)
    subscriber.subscribe("#")
    client.publish("a", b"1", properties={Prop.TOPIC_ALIAS: 3})
    client.publish("", b"2", properties={Prop.TOPIC_ALIAS: 3})
    client.publish("b", b"3", properties={Prop.TOPIC_ALIAS: 3})
    client.publish("", b"4", properties={Prop.TOPIC_ALIAS: 3})
    assert messages(subscriber.heard()) == [("a", b"1", 0), ("a", b"2", 0), ("b", b"3", 0), ("b", b"4", 0)]
    for alias, reason in ((4, Reason.PROTOCOL_ERROR), (17, Reason.TOPIC_ALIAS_INVALID)):
        (disconnect,) = connected(world, "e").publish("", properties={Prop.TOPIC_ALIAS: alias})
        assert isinstance(disconnect, k.Disconnect) and disconnect.reason == reason


def test_topic_aliases_of_the_server(world: World) -> None:
    subscriber = connected(world, "s", properties={Prop.TOPIC_ALIAS_MAXIMUM: 1})
    subscriber.subscribe("#", qos=1)
    client = connected(world)
    for topic in ("a", "a", "b", "a"):
        client.publish(topic, qos=1)
    got = [one for one in subscriber.heard() if isinstance(one, k.Publish)]
    assert [(one.topic, one.properties) for one in got] == [
        ("a", {Prop.TOPIC_ALIAS: 1}), ("", {Prop.TOPIC_ALIAS: 1}), ("b", {}), ("", {Prop.TOPIC_ALIAS: 1})
    ]  # fmt: skip


def test_receive_maximum(world: World) -> None:
    subscriber = connected(world, "s", properties={Prop.RECEIVE_MAXIMUM: 2})
    subscriber.subscribe("a", qos=2)
    client = connected(world)
    for packet_id in range(1, 6):
        client.publish("a", b"%d" % packet_id, qos=2, packet_id=packet_id)
    first, second = subscriber.heard()
    assert messages([first, second]) == [("a", b"1", 2), ("a", b"2", 2)]
    assert subscriber.send(ack(p.PUBREC, first)) == [ack(p.PUBREL, first)]
    (third,) = subscriber.send(ack(p.PUBCOMP, first))
    assert messages([third]) == [("a", b"3", 2)]
    failed = k.Ack(p.PUBREC, second.packet_id, Reason.UNSPECIFIED_ERROR)  # type: ignore[union-attr]
    (fourth,) = subscriber.send(failed)
    assert messages([fourth]) == [("a", b"4", 2)]
    greedy = connected(world, "g", limits=MqttLimits(receive_max=2))
    world.holds_disk = True
    keeper = connected(world, "k", properties={Prop.SESSION_EXPIRY: 100})
    keeper.subscribe("b", qos=1)
    (disconnect,) = greedy.send(*(k.Publish("b", b"", 1, packet_id=one) for one in (1, 2, 3)))
    assert isinstance(disconnect, k.Disconnect) and disconnect.reason == Reason.RECEIVE_MAXIMUM_EXCEEDED


def test_packets_that_a_client_does_not_take(world: World) -> None:
    subscriber = connected(world, "s", properties={Prop.MAXIMUM_PACKET_SIZE: 20})
    subscriber.subscribe("a", qos=1)
    client = connected(world)
    client.publish("a", b"x" * 30, qos=1)
    client.publish("a", b"y", qos=1)
    assert messages(subscriber.heard()) == [("a", b"y", 1)]
    assert subscriber.connection.deliveries.dropped == 1


def test_properties_come_through(world: World) -> None:
    subscriber, client = connected(world, "s"), connected(world)
    subscriber.subscribe("a")
    properties: p.Properties = {
        Prop.PAYLOAD_FORMAT: 1,
        Prop.CONTENT_TYPE: "text/plain",
        Prop.RESPONSE_TOPIC: "answers/to.me",
        Prop.CORRELATION_DATA: b"\xff\0",
        Prop.USER_PROPERTY: [("b", "1"), ("a", "2"), ("b", "3"), ("CC", "4")],
    }
    client.publish("a", properties=dict(properties))
    (got,) = subscriber.heard()
    assert isinstance(got, k.Publish) and got.properties == properties
    simple: p.Properties = {Prop.RESPONSE_TOPIC: "r/s", Prop.CORRELATION_DATA: b"id", Prop.USER_PROPERTY: [("k", "v")]}
    client.publish("a", properties=dict(simple))
    (got,) = subscriber.heard()
    assert isinstance(got, k.Publish) and got.properties == simple
    old = connected(world, "o", k.V311)
    old.subscribe("a")
    client.publish("a", properties=dict(simple))
    assert messages(old.heard()) == [("a", b"x", 0)]


def test_messages_expire(world: World) -> None:
    world.broker.wall_ms = 1_000_000
    subscriber = connected(world, "s", properties={Prop.SESSION_EXPIRY: 1_000})
    subscriber.subscribe("a", qos=1)
    subscriber.lose()
    client = connected(world)
    for seconds in (5, 60):
        client.publish("a", b"%d" % seconds, qos=1, properties={Prop.MESSAGE_EXPIRY: seconds})
    world.broker.wall_ms += 10_000
    world.broker.on_time()
    world.turn()
    subscriber = connected(world, "s", clean=False)
    (got,) = subscriber.heard()
    assert isinstance(got, k.Publish) and (got.payload, got.properties) == (b"60", {Prop.MESSAGE_EXPIRY: 50})


def test_a_publisher_waits_for_the_end_of_an_alarm(world: World) -> None:
    subscriber, client = connected(world, "s"), connected(world)
    subscriber.subscribe("a")
    world.broker.alarm = "low on memory"
    assert client.send(k.Pingreq(), k.Publish("a", b"1"), k.Pingreq()) == [k.Pingresp()]
    assert client.connection.blocked and client.connection.held and subscriber.heard() == []
    world.broker.alarm = None
    client.connection.unblock()
    assert client.heard() == [k.Pingresp()] and messages(subscriber.heard()) == [("a", b"1", 0)]


# -- Permissions ---------------------------------------------------------------------------------------------------


def test_permissions(world: World) -> None:
    guest = world.metadata.users["guest"]
    world.apply(c.PutUser("u", guest.password_hash, guest.hashing))
    world.apply(c.SetPermissions("u", "/", "^mqtt-", "^(mqtt-|amq.topic)", "^(mqtt-|amq.topic)"))
    world.apply(c.SetTopicPermissions("u", "/", "amq.topic", "^{client_id}\\.", "^{client_id}\\.open"))
    client = connected(world, "me", username="u")
    (suback,) = client.subscribe("me/open/#", "me/secret")
    assert isinstance(suback, k.Suback) and suback.reasons == [0, Reason.NOT_AUTHORIZED]
    assert list(client.connection.subscriptions.options) == ["me/open/#"]
    assert messages(client.publish("me/open/1")) == [("me/open/1", b"x", 0)]
    (puback,) = client.publish("you/1", qos=1)
    assert isinstance(puback, k.Ack) and (puback.kind, puback.reason) == (p.PUBACK, Reason.NOT_AUTHORIZED)
    (disconnect,) = client.publish("you/1")
    assert isinstance(disconnect, k.Disconnect) and disconnect.reason == Reason.NOT_AUTHORIZED
    will = k.Will("you/will", b"")
    (connack,) = MqttClient(world).connect("me", username="u", will=will)
    assert isinstance(connack, k.Connack) and connack.reason == Reason.NOT_AUTHORIZED
    assert not world.broker.clients


def test_a_client_that_wants_no_reason_strings(world: World) -> None:
    for wanted in (0, 1):
        client = connected(world, properties={Prop.REQUEST_PROBLEM_INFO: wanted})
        (suback,) = client.subscribe("a/#/b")
        assert isinstance(suback, k.Suback) and bool(suback.properties) is bool(wanted)


def test_publishes_in_a_row(world: World) -> None:
    """They are taken in at once: all of one size, of another, of another topic, with properties, and again."""
    subscriber, client = connected(world, "s"), connected(world)
    subscriber.subscribe("#", qos=2)
    packets: list[k.Packet] = []
    for qos in (0, 1, 2):
        for at in range(40):
            topic = "a" if at % 10 else "b"
            properties = {Prop.CONTENT_TYPE: "t"} if at == 15 else {}
            payload = b"%d" % at * (1 if at < 30 else 3)
            number = 100 * qos + at + 1
            packets.append(k.Publish(topic, payload, qos, packet_id=number if qos else 0, properties=properties))
    answers = client.send(*packets)
    sent = [one for one in packets if isinstance(one, k.Publish)]
    assert answers == [
        k.Ack(p.PUBACK if one.qos == 1 else p.PUBREC, one.packet_id) for one in sent if one.qos
    ]
    got: list[k.Packet] = []
    new = subscriber.heard()
    while new:
        got += new
        numbered = [one for one in new if isinstance(one, k.Publish) and one.qos]
        answer = [ack(p.PUBACK if one.qos == 1 else p.PUBREC, one) for one in numbered]
        answer += [ack(p.PUBCOMP, one) for one in new if isinstance(one, k.Ack)]
        new = subscriber.send(*answer)
    assert sorted(messages(got)) == sorted((one.topic, one.payload, one.qos) for one in sent)
    for qos in (0, 1, 2):
        of_topic = [one for one in messages(got) if one[2] == qos and one[0] == "a"]
        assert of_topic == [(one.topic, one.payload, one.qos) for one in sent if one.qos == qos and one.topic == "a"]
    assert client.send(*(k.Ack(p.PUBREL, one.packet_id) for one in sent if one.qos == 2)) == [
        k.Ack(p.PUBCOMP, one.packet_id) for one in sent if one.qos == 2
    ]
    for one in (client.connection, subscriber.connection):
        assert not one.publisher.open_count and not one.publisher.phases
        assert not one.deliveries.inflight and not one.deliveries.releasing


def test_what_came_before_a_fault_is_published(world: World) -> None:
    subscriber = connected(world, "s")
    subscriber.subscribe("a", qos=1)
    for version in VERSIONS:
        client = connected(world, f"c{version}", version)
        client.publish("a", b"0", 1, 1)
        client.send(*(k.Publish("a", b"%d" % one, 1, packet_id=one) for one in (1, 2, 0, 3)))
        assert client.connection.closed
        assert [payload for _, payload, _ in messages(subscriber.heard())] == [b"0", b"1", b"2"]


def test_a_publish_to_many_queues_waits_for_its_turn(world: World) -> None:
    clients = [connected(world, f"s{number}") for number in range(20)]
    for client in clients:
        client.subscribe("a")
    publisher = connected(world)
    world.broker.fanout.left = 25
    publisher.connection.receive(b"".join(encode(k.Publish("a", b"%04d" % one), k.V5) for one in range(5_000)))
    assert publisher.connection.spreads
    assert [len(messages(client.heard())) for client in clients] == [5_000] * 20 and not publisher.connection.held


# -- Server keep alive, and a CONNECT that is none -----------------------------------------------------------------


def test_server_keep_alive(world: World) -> None:
    limits = MqttLimits(server_keep_alive_s=20)
    client = MqttClient(world, limits)
    (connack,) = client.connect(keep_alive=60)
    assert isinstance(connack, k.Connack) and connack.properties[Prop.SERVER_KEEP_ALIVE] == 20
    client.connection.on_tick(0)
    for now_ms, closed in ((29_000, False), (31_000, True)):
        for at in range(client.connection.ticked_ms + 1_000, now_ms + 1, 1_000):
            client.connection.on_tick(at)
        assert client.connection.closed is closed
    (disconnect,) = client.heard()
    assert isinstance(disconnect, k.Disconnect) and disconnect.reason == Reason.KEEP_ALIVE_TIMEOUT
    same, old = MqttClient(world, limits), MqttClient(world, limits)
    (connack,) = same.connect("same", keep_alive=20)
    assert isinstance(connack, k.Connack) and Prop.SERVER_KEEP_ALIVE not in connack.properties
    old.connect("old", k.V311, keep_alive=60)
    assert old.connection.keep_alive_s == 60


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x10\x0d\0\4MQTT\x05\x03\0\x3c\0\0\0", Reason.MALFORMED_PACKET),  # The reserved flag.
        (b"\x11\x0d\0\4MQTT\x05\x02\0\x3c\0\0\0", Reason.MALFORMED_PACKET),  # Flags of the packet.
        (b"\x10\x0b\0\4MQTT\x05\x02\0\x3c\0", Reason.MALFORMED_PACKET),  # It ends too soon.
        (b"\x10\x10\0\4MQTT\x05\x02\0\x3c\3\x21\0\0\0\0", Reason.PROTOCOL_ERROR),  # Receive maximum 0.
        (b"\x10\x80\x80\x80\x01\0\4MQTT\x05\x02\0\x3c", Reason.PACKET_TOO_LARGE),
    ],
)
def test_a_malformed_connect_of_5_is_answered(world: World, data: bytes, reason: Reason) -> None:
    client = MqttClient(world)
    (connack,) = client.send_bytes(data)
    assert isinstance(connack, k.Connack) and connack.reason == reason and client.connection.closed
    older = MqttClient(world)
    assert older.send_bytes(data.replace(b"MQTT\x05", b"MQTT\x04")) == [] and older.connection.closed


def test_a_goodbye_that_had_to_wait(world: World) -> None:
    """The socket is gone before the connection, which was held, came to it."""
    for goodbye, count in ((k.Disconnect(0), 0), (k.Disconnect(4), 1), (k.Pingreq(), 1)):
        client = connected(world, will=k.Will("w", b"lost", 0))
        world.holds_metadata = True
        client.send(k.Subscribe(1, [k.Subscription("t", 1)]), k.Publish("t", b"x"), goodbye)
        client.connection.on_socket_lost()
        world.release_metadata()
        world.turn()
        assert len(world.metadata.wills) == count
        world.metadata.wills.clear()


def test_a_fault_behind_what_had_to_wait_ends_its_client_only(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connected(world)
    monkeypatch.setattr(Connection, "_on_packet", lambda self, packet: self.subscriptions.on_subscribe(packet))
    world.holds_metadata = True
    client.send(k.Subscribe(1, [k.Subscription("t", 1)]), k.Pingreq())
    world.release_metadata()
    world.turn()
    assert client.connection.closed and any("internal error" in text for _, _, text in world.notes)
