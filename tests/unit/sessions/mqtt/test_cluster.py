"""MQTT clients at several nodes: their sessions, queues and retained messages are the cluster's."""

from __future__ import annotations

import pytest

from leveret.protocol.mqtt import packets as k
from leveret.protocol.mqtt import properties as p
from leveret.protocol.mqtt.properties import Prop, Properties
from leveret.protocol.mqtt.reason_codes import Reason
from tests.support.brokers import Cluster
from tests.unit.sessions.mqtt.clients import MqttClient, ack, connected, messages

LASTING: Properties = {Prop.SESSION_EXPIRY: 1_000}


@pytest.fixture
def cluster() -> Cluster:
    return Cluster("a", "b", "c")


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_publish_at_one_node_and_subscribe_at_another(cluster: Cluster, qos: int) -> None:
    subscriber, publisher = connected(cluster["b"], "s"), connected(cluster["a"], "p")
    assert subscriber.subscribe("t/+", qos=qos) == [k.Suback(1, [qos])]
    answers = publisher.send(*(k.Publish("t/x", b"%d" % n, qos, packet_id=n + 1 if qos else 0) for n in range(20)))
    assert len(answers) == (20 if qos else 0)
    got = subscriber.heard()
    assert messages(got) == [("t/x", b"%d" % number, qos) for number in range(20)]
    if qos:
        subscriber.send(*(ack(p.PUBACK if qos == 1 else p.PUBREC, one) for one in got))
    session = subscriber.connection.session
    assert session is not None and session.unacked.count == 0


def test_a_session_goes_on_at_another_node(cluster: Cluster) -> None:
    first = connected(cluster["a"], "c", properties=LASTING)
    first.subscribe("t", qos=1)
    first.subscribe("u", qos=0)
    publisher = connected(cluster["c"], "p")
    publisher.publish("t", b"1", 1)
    assert messages(first.heard()) == [("t", b"1", 1)]
    second = MqttClient(cluster["b"])
    connack, *got = second.connect("c", clean=False, properties=LASTING)
    assert isinstance(connack, k.Connack) and connack.session_present
    (disconnect,) = first.heard()
    assert isinstance(disconnect, k.Disconnect) and disconnect.reason == Reason.SESSION_TAKEN_OVER
    for _ in range(3):  # What the former connection let go of may come late.
        second.connection.on_tick(cluster["b"].broker.now_ms)
        got += second.heard()
    assert messages(got) == [("t", b"1", 1)]
    assert isinstance(got[0], k.Publish) and got[0].dup
    publisher.publish("t", b"2", 1)
    publisher.publish("u", b"3", 1)
    assert sorted(messages(second.heard())) == [("t", b"2", 1), ("u", b"3", 0)]


def test_qos_2_of_a_client_that_changes_its_node(cluster: Cluster) -> None:
    subscriber = connected(cluster["c"], "s")
    subscriber.subscribe("t", qos=2)
    client = connected(cluster["a"], "p", properties=LASTING)
    assert client.publish("t", b"1", 2, 5) == [k.Ack(p.PUBREC, 5)]
    client.lose()
    client = connected(cluster["b"], "p", clean=False, properties=LASTING)
    assert client.publish("t", b"1", 2, 5, dup=True) == [k.Ack(p.PUBREC, 5)]
    assert client.send(k.Ack(p.PUBREL, 5)) == [k.Ack(p.PUBCOMP, 5)]
    assert client.publish("t", b"2", 2, 5) == [k.Ack(p.PUBREC, 5)]
    assert messages(subscriber.heard()) == [("t", b"1", 2), ("t", b"2", 2)]


def test_retained_and_shared(cluster: Cluster) -> None:
    connected(cluster["a"], "p").publish("t/x", b"kept", 1, retain=True)
    client = connected(cluster["b"], "c")
    assert messages(client.subscribe("t/#", qos=1)) == [("t/x", b"kept", 1)]
    members = [connected(cluster[name], f"m{name}") for name in "abc"]
    for member in members:
        assert member.subscribe("$share/g/s", qos=1) == [k.Suback(1, [1])]
    publisher = connected(cluster["c"], "q")
    for number in range(9):
        publisher.publish("s", b"%d" % number, 1)
    got = [messages(member.heard()) for member in members]
    assert sorted(payload for part in got for _, payload, _ in part) == [b"%d" % number for number in range(9)]
