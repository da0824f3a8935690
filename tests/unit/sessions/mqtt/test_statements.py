"""Statements of the specifications that no other test shows. See docs/mqtt-conformance.md."""

from __future__ import annotations

import pytest

from leveret.protocol.mqtt import packets as k
from leveret.protocol.mqtt import properties as p
from leveret.protocol.mqtt.encoder import encode
from leveret.protocol.mqtt.properties import Prop, Properties
from leveret.protocol.mqtt.reason_codes import Reason
from tests.support.machines import World
from tests.unit.sessions.mqtt.clients import MqttClient, ack, connected, messages
from tests.unit.sessions.mqtt.test_sessions import lead, publishes

VERSIONS = (k.V31, k.V311, k.V5)
LASTING: Properties = {Prop.SESSION_EXPIRY: 1_000}


@pytest.fixture
def world() -> World:
    return World()


def ended_with(client: MqttClient, data: bytes) -> int | None:
    """Returns the reason of the DISCONNECT that answers these bytes; None if the connection is cut off without one."""
    answers = client.send_bytes(data)
    assert client.connection.closed
    if not answers:
        return None
    (disconnect,) = answers
    assert isinstance(disconnect, k.Disconnect)
    return disconnect.reason


# -- CONNECT and CONNACK -------------------------------------------------------------------------------------------

# Whether a field is there is said by the flags, and all fields have their order; what is left over is malformed.
PAYLOADS = [
    (0x82, b"\0\1c"),  # A user name is said to be there.
    (0xC2, b"\0\1c\0\1u"),  # A password is.
    (0x02, b"\0\1c\0\1u"),  # None is said to be there.
    (0x82, b"\0\1c\0\1u\0\1p"),
    (0x06, b"\0\1c"),  # A will is.
    (0x06, b"\0\1c\0\1t"),  # Its payload is missing.
    (0x02, b"\0\2\xc3\x28"),  # A client id that is no UTF-8.
    (0x06, b"\0\1c\0\2\xc3\x28\0\0"),  # A will topic.
    (0x82, b"\0\1c\0\2\xc3\x28"),  # A user name.
    (0x02, b""),  # No client id.
]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("flags", "payload"), PAYLOADS)
def test_fields_of_connect_are_those_that_its_flags_say(world: World, version: int, flags: int, payload: bytes) -> None:
    name = b"\0\6MQIsdp" if version == k.V31 else b"\0\4MQTT"
    properties = b""
    if version == k.V5:
        properties = b"\0"
        if flags & 4 and len(payload) > 3:
            payload = payload[:3] + b"\0" + payload[3:]  # The properties of the will.
    body = name + bytes((version, flags)) + b"\0\0" + properties + payload
    client = MqttClient(world)
    client.version = version
    answers = client.send_bytes(bytes((0x10, len(body))) + body)
    assert client.connection.closed
    if version == k.V5:
        (connack,) = answers
        assert isinstance(connack, k.Connack) and connack.reason == Reason.MALFORMED_PACKET
    else:
        assert answers == []


@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_behind_a_refused_connect_is_processed(world: World, version: int) -> None:
    subscriber = connected(world, "s")
    subscriber.subscribe("a")
    client = MqttClient(world)
    client.version = version
    connect = k.Connect(version, "c", username="guest", password=b"wrong")
    (connack,) = client.send(connect, k.Publish("a", b"x"), k.Pingreq())
    assert isinstance(connack, k.Connack) and connack.reason and not connack.session_present
    assert client.connection.closed and subscriber.heard() == []


def test_client_ids_that_every_server_takes(world: World) -> None:
    for client_id in ("0123456789abcdefghijklm", "nopqrstuvwxyzABCDEFGHIJ", "KLMNOPQRSTUVWXYZ", "1"):
        assert connected(world, client_id).connection.client_id == client_id


def test_assigned_client_ids_differ(world: World) -> None:
    clients = [connected(world, "") for _ in range(3)]
    assert len({client.connection.client_id for client in clients}) == 3
    assert not any(client.connection.closed for client in clients)


def test_connack_tells_nothing_that_nobody_asked_for(world: World) -> None:
    client = MqttClient(world)
    (connack,) = client.connect()
    assert isinstance(connack, k.Connack) and encode(connack, k.V5)[2] in (0, 1)  # All other flags are reserved.
    assert not {Prop.RESPONSE_INFO, Prop.AUTH_METHOD, Prop.AUTH_DATA} & set(connack.properties)


def test_a_will_is_not_published_if_the_client_returns_before_its_delay_is_over(world: World) -> None:
    watcher = connected(world, "w")
    watcher.subscribe("will")
    will = k.Will("will", b"gone", 0, False, {Prop.WILL_DELAY: 10})
    for returns, published in ((True, []), (False, [("will", b"gone", 0)])):
        client = connected(world, will=will, properties=LASTING)
        client.lose()
        if returns:
            client = connected(world, clean=False, properties=LASTING)
        world.broker.wall_ms += 20_000
        lead(world)
        assert messages(watcher.heard()) == published


def test_a_will_is_published_once_with_its_user_properties_in_order(world: World) -> None:
    watcher = connected(world, "w")
    watcher.subscribe("will")
    pairs = [("b", "1"), ("a", "2"), ("b", "3")]
    will = k.Will("will", b"gone", 0, False, {Prop.USER_PROPERTY: pairs})
    connected(world, will=will, properties=LASTING).lose()
    lead(world)
    (got,) = publishes(watcher.heard())
    assert got.properties[Prop.USER_PROPERTY] == pairs
    connected(world, clean=False, properties=LASTING).lose()  # Without a will: that of before is no longer there.
    lead(world)
    assert watcher.heard() == []


def test_retained_messages_outlive_the_session(world: World) -> None:
    client = connected(world, version=k.V311)
    client.publish("kept", b"x", retain=True)
    client.send(k.Disconnect())
    assert messages(connected(world, "d").subscribe("kept")) == [("kept", b"x", 0)]


# -- PUBLISH -------------------------------------------------------------------------------------------------------


def test_dup_of_a_client_is_not_passed_on(world: World) -> None:
    subscriber, client = connected(world, "s"), connected(world)
    subscriber.subscribe("a", qos=2)
    client.publish("a", b"1", 1, 7, dup=True)
    client.publish("a", b"2", 2, 8, dup=True)
    assert [one.dup for one in publishes(subscriber.heard())] == [False, False]


def test_after_puback_an_identifier_is_a_new_message(world: World) -> None:
    subscriber, client = connected(world, "s"), connected(world)
    subscriber.subscribe("a", qos=1)
    for payload, dup in ((b"1", False), (b"2", True)):
        assert client.publish("a", payload, 1, 7, dup=dup) == [k.Ack(p.PUBACK, 7)]
    assert [payload for _, payload, _ in messages(subscriber.heard())] == [b"1", b"2"]


def test_a_client_sends_no_subscription_identifier(world: World) -> None:
    assert ended_with(connected(world), b"\x30\x06\0\1a\2\x0b\1") == Reason.PROTOCOL_ERROR


def test_strings_of_publish_are_utf8(world: World) -> None:
    for prop in (0x08, 0x03):  # Response topic, content type.
        data = b"\x30\x09\0\1a\5" + bytes((prop,)) + b"\0\2\xc3\x28"
        assert ended_with(connected(world), data) == Reason.MALFORMED_PACKET
    pair = b"\x26\0\1a\0\2\xc3\x28"  # A user property.
    assert ended_with(connected(world), b"\x30\x0c\0\1a\x08" + pair) == Reason.MALFORMED_PACKET


def test_what_waits_for_acknowledgements_delays_nothing_else(world: World) -> None:
    client = connected(world, properties={Prop.RECEIVE_MAXIMUM: 1})
    client.subscribe("a", qos=1)
    publisher = connected(world, "p")
    for packet_id in (1, 2, 3):
        publisher.publish("a", b"x", 1, packet_id)
    assert len(publishes(client.heard())) == 1
    assert client.send(k.Pingreq()) == [k.Pingresp()]
    assert client.subscribe("b", qos=0, packet_id=9) == [k.Suback(9, [0])]
    assert client.publish("c", b"x", 2, 5) == [k.Ack(p.PUBREC, 5, Reason.NO_MATCHING_SUBSCRIBERS)]
    publisher.publish("b", b"QoS 0")
    assert messages(client.heard()) == [("b", b"QoS 0", 0)]


def test_nothing_expires_that_was_sent(world: World) -> None:
    client = connected(world, properties=LASTING)
    client.subscribe("a", qos=2)
    connected(world, "p").publish("a", b"x", 2, 5, properties={Prop.MESSAGE_EXPIRY: 10})
    (first,) = publishes(client.heard())
    world.broker.wall_ms += 60_000
    world.broker.now_ms += 60_000
    assert client.send(ack(p.PUBREC, first)) == [ack(p.PUBREL, first)]
    assert client.send(ack(p.PUBCOMP, first)) == []


@pytest.mark.parametrize("kind", [p.PUBACK, p.PUBREC])
def test_what_a_client_refuses_is_not_sent_again(world: World, kind: int) -> None:
    client = connected(world, properties=LASTING)
    client.subscribe("a", qos=1 if kind == p.PUBACK else 2)
    connected(world, "p").publish("a", b"x", 2, 5)
    (first,) = publishes(client.heard())
    assert client.send(k.Ack(kind, first.packet_id, Reason.UNSPECIFIED_ERROR)) == []
    client.lose()
    again = connected(world, clean=False, properties=LASTING)
    assert again.got == []


def test_what_a_member_refuses_goes_to_nobody_else(world: World) -> None:
    first, second = connected(world, "a"), connected(world, "b")
    first.subscribe("$share/g/t", qos=1)
    connected(world, "p").publish("t", b"x", 1)
    (message,) = publishes(first.heard())
    second.subscribe("$share/g/t", qos=1)
    assert first.send(k.Ack(p.PUBACK, message.packet_id, Reason.UNSPECIFIED_ERROR)) == []
    first.lose()
    assert publishes(second.heard()) == []


def test_members_have_the_qos_that_each_was_granted(world: World) -> None:
    client = connected(world)
    client.subscribe("$share/g/t", qos=0)
    connected(world, "p").publish("t", b"x", 2, 5)
    assert messages(client.heard()) == [("t", b"x", 0)]


# -- SUBSCRIBE and UNSUBSCRIBE -------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_filters_of_one_packet_are_handled_in_their_order(world: World, version: int) -> None:
    client, publisher = connected(world, "c", version), connected(world, "p")
    wanted = [k.Subscription("a", 2), k.Subscription("b", 0), k.Subscription("a", 1)]
    assert client.send(k.Subscribe(3, wanted, {})) == [k.Suback(3, [2, 0, 1])]
    publisher.publish("a", b"x", 2, 5)
    assert messages(client.heard()) == [("a", b"x", 1)]
    (unsuback,) = client.unsubscribe("b", "none", "a", packet_id=4)
    assert isinstance(unsuback, k.Unsuback) and unsuback.packet_id == 4
    if version == k.V5:
        assert unsuback.reasons == [0, Reason.NO_SUBSCRIPTION_EXISTED, 0]
    publisher.publish("a", b"y", 2, 6)
    publisher.publish("b", b"y")
    assert client.heard() == []


def test_a_filter_is_compared_by_its_characters(world: World) -> None:
    client = connected(world)
    client.subscribe("a/+")
    for other in ("a/b", "a/#", "A/+", "a/+/"):
        assert client.unsubscribe(other) == [k.Unsuback(2, [Reason.NO_SUBSCRIPTION_EXISTED])]
    assert client.unsubscribe("a/+") == [k.Unsuback(2, [0])]


def test_what_was_begun_is_completed_after_unsubscribe(world: World) -> None:
    client = connected(world)
    client.subscribe("a", qos=2)
    connected(world, "p").publish("a", b"x", 2, 5)
    (message,) = publishes(client.heard())
    assert client.unsubscribe("a") == [k.Unsuback(2, [0])]
    assert client.send(ack(p.PUBREC, message)) == [ack(p.PUBREL, message)]
    assert client.send(ack(p.PUBCOMP, message)) == []


def test_filters_are_utf8(world: World) -> None:
    assert ended_with(connected(world), b"\x82\x08\0\1\0\0\2\xc3\x28\0") == Reason.MALFORMED_PACKET
    assert ended_with(connected(world), b"\xa2\x07\0\1\0\0\2\xc3\x28") == Reason.MALFORMED_PACKET


# -- Reason strings, DISCONNECT and AUTH ---------------------------------------------------------------------------


def test_a_reason_string_that_is_too_large_is_left_out(world: World) -> None:
    """The packet without it is sent, if the client takes that."""
    client = connected(world, properties={Prop.MAXIMUM_PACKET_SIZE: 10})
    assert client.subscribe("a/#/b") == [k.Suback(1, [Reason.TOPIC_FILTER_INVALID])]
    (disconnect,) = client.send_bytes(b"\x30\x04\0\1+\0")
    assert disconnect == k.Disconnect(Reason.TOPIC_NAME_INVALID)
    refused: Properties = {Prop.MAXIMUM_PACKET_SIZE: 10, Prop.AUTH_METHOD: "SCRAM"}
    assert MqttClient(world).connect(properties=refused) == [k.Connack(False, Reason.BAD_AUTHENTICATION_METHOD)]


def test_flags_of_disconnect_and_auth(world: World) -> None:
    assert ended_with(connected(world), b"\xe1\0") == Reason.MALFORMED_PACKET
    assert ended_with(connected(world), b"\xf1\0") == Reason.MALFORMED_PACKET
    assert ended_with(connected(world, version=k.V311), b"\xe1\0") is None


def test_auth_without_a_method(world: World) -> None:
    assert ended_with(connected(world), b"\xf0\0") == Reason.PROTOCOL_ERROR
    first = MqttClient(world)
    assert first.send_bytes(b"\xf0\0") == [] and first.connection.closed  # No DISCONNECT before CONNACK.


def test_nothing_is_sent_after_disconnect(world: World) -> None:
    client = connected(world)
    client.subscribe("a")
    assert ended_with(client, b"\x36\x04\0\1a\0") == Reason.MALFORMED_PACKET
    connected(world, "p").publish("a")
    assert client.heard() == []
    other = connected(world, "o")
    (disconnect,) = other.send_bytes(b"\x36\x04\0\1a\0")
    assert isinstance(disconnect, k.Disconnect) and Prop.SESSION_EXPIRY not in disconnect.properties


# -- Malformed packets ---------------------------------------------------------------------------------------------

# Packets that a client of MQTT 3.1.1 must not send, most of which have no counterpart among those of MQTT 5.0.
WRONG_IN_311 = [
    b"\x00\0", b"\xf0\0",  # No packets.
    b"\x36\x05\0\1a\0\1", b"\x38\x03\0\1a",  # QoS 3; DUP with QoS 0.
    b"\x32\x05\0\1a\0\0", b"\x30\x03\0\1+", b"\x30\x03\0\1#", b"\x30\x02\0\0",  # Identifier 0; no topics.
    b"\x30\x04\0\2\xc3\x28", b"\x30\x03\0\1\0", b"\x30\x03\0\5a",  # No UTF-8, U+0000, beyond the end.
    b"\x41\2\0\1", b"\x60\2\0\1", b"\x61\2\0\1", b"\x51\2\0\1", b"\x71\2\0\1",  # Flags.
    b"\x40\1\0", b"\x40\3\0\1\0", b"\x62\0",  # Sizes.
    b"\x80\6\0\1\0\1a\0", b"\x82\2\0\1", b"\x82\6\0\1\0\1a\3", b"\x82\6\0\1\0\1a\4", b"\x82\6\0\0\0\1a\0",
    b"\x82\5\0\1\0\1a", b"\x82\7\0\1\0\2\xc3\x28\0",
    b"\xa0\5\0\1\0\1a", b"\xa2\2\0\1", b"\xa2\5\0\0\0\1a",
    b"\xc0\1\0", b"\xc1\0", b"\xe0\1\0", b"\xe1\0",
    b"\x20\2\0\0", b"\x90\3\0\1\0", b"\xb0\2\0\1", b"\xd0\0",  # Packets of a server.
    b"\x30\xff\xff\xff\xff\x01",  # A length of five bytes.
]  # fmt: skip


@pytest.mark.parametrize("version", [k.V31, k.V311])
@pytest.mark.parametrize("data", WRONG_IN_311)
def test_older_clients_are_cut_off(world: World, version: int, data: bytes) -> None:
    assert ended_with(connected(world, version=version), data) is None


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x20\3\0\0\0", Reason.PROTOCOL_ERROR),  # Packets of a server.
        (b"\x90\4\0\1\0\0", Reason.PROTOCOL_ERROR),
        (b"\xb0\4\0\1\0\0", Reason.PROTOCOL_ERROR),
        (b"\xd0\0", Reason.PROTOCOL_ERROR),
        (b"\x30\xff\xff\xff\xff\x01", Reason.MALFORMED_PACKET),
        (b"\x51\2\0\1", Reason.MALFORMED_PACKET),  # Flags.
        (b"\x71\2\0\1", Reason.MALFORMED_PACKET),
        (b"\xc1\0", Reason.MALFORMED_PACKET),
        (b"\xa0\6\0\1\0\0\1a", Reason.MALFORMED_PACKET),
        (b"\x82\7\0\0\0\0\1a\0", Reason.PROTOCOL_ERROR),  # Packet identifier 0.
        (b"\xa2\6\0\0\0\0\1a", Reason.PROTOCOL_ERROR),
        (b"\x30\x07\0\1a\3\x02\0\0", Reason.MALFORMED_PACKET),  # An expiry that ends too soon.
        (b"\x30\x08\0\1a\4\1\1\1\1", Reason.PROTOCOL_ERROR),  # A payload format twice.
        (b"\x30\x06\0\1a\2\1\2", Reason.PROTOCOL_ERROR),  # A payload format that is none.
    ],
)
def test_clients_of_5_are_told(world: World, data: bytes, reason: Reason) -> None:
    assert ended_with(connected(world), data) == reason
