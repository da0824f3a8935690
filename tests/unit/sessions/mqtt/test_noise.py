"""Whatever clients send, in whatever pieces: the machine answers or ends the connection, and nothing is left of it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from leveret.protocol.mqtt import packets as k
from leveret.protocol.mqtt.encoder import encode
from leveret.protocol.mqtt.properties import Prop
from tests.support.machines import World
from tests.unit.protocol.mqtt.strategies import packets
from tests.unit.sessions.mqtt.clients import MqttClient, connected

VERSIONS = st.sampled_from((k.V31, k.V311, k.V5))
TOPICS = st.sampled_from(("a", "a/b", "b.c", "$x", "a/*"))
FILTERS = st.sampled_from(("a", "a/+", "#", "b.c", "+/b", "$share/g/a/#", "a/*"))
QOS = st.integers(0, 2)
IDS = st.integers(1, 4)
SENSIBLE = st.one_of(
    st.builds(lambda topic, qos, number: k.Publish(topic, b"x", qos, packet_id=number if qos else 0), TOPICS, QOS, IDS),
    st.builds(lambda topic: k.Publish(topic, b"kept", retain=True), TOPICS),
    st.builds(k.Ack, st.integers(4, 7), IDS),
    st.builds(lambda topic_filter, qos: k.Subscribe(9, [k.Subscription(topic_filter, qos)]), FILTERS, QOS),
    st.builds(lambda topic_filter: k.Unsubscribe(9, [topic_filter]), FILTERS),
    st.just(k.Pingreq()),
)


def check_gone(world: World, client: MqttClient) -> None:
    client.lose()
    broker = world.broker
    assert client.connection.closed and client.connection not in broker.connections
    assert client.connection not in broker.clients and client.connection.session not in broker.sessions
    for queue in broker.vhosts["/"].queues.values():
        assert not queue.is_local or not any(
            getattr(consumer, "connection", None) is client.connection for consumer in queue.consumers
        )


@settings(max_examples=60)
@given(VERSIONS.flatmap(lambda version: st.tuples(st.just(version), st.lists(packets(version), max_size=6))), st.data())
def test_any_packets_in_any_pieces(case: tuple[int, list[k.Packet]], data: st.DataObject) -> None:
    version, sent = case
    world = World()
    client = connected(world, "c", version) if data.draw(st.booleans()) else MqttClient(world)
    client.version = version
    stream = b"".join(encode(packet, version) for packet in sent) + data.draw(st.binary(max_size=8))
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        client.connection.receive(stream[:size])
        client.heard()
        stream = stream[size:]
    check_gone(world, client)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 1), SENSIBLE), max_size=30), st.booleans())
def test_clients_that_do_anything(script: list[tuple[int, k.Packet]], lasting: bool) -> None:
    """Two clients of one world, whose sessions may outlive them."""
    world = World()
    properties = {Prop.SESSION_EXPIRY: 1_000} if lasting else {}
    clients = [connected(world, name, properties=properties) for name in "ab"]
    for which, packet in script:
        if clients[which].connection.closed:
            clients[which] = connected(world, "ab"[which], clean=False, properties=properties)
        clients[which].send(packet)
    for client in clients:
        check_gone(world, client)
    if not lasting:
        names = [name for name in world.broker.vhosts["/"].queues if not name.startswith("mqtt-subscription-$share")]
        assert names == []
