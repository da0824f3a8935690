"""QoS 2 to a client: each message once, whatever is lost before PUBCOMP, and wherever the client returns."""

from __future__ import annotations

import pytest

from leveret.metadata.model import commands as c
from leveret.protocol.mqtt import packets as k
from leveret.protocol.mqtt import properties as p
from leveret.protocol.mqtt.properties import Prop, Properties
from leveret.protocol.mqtt.reason_codes import Reason
from leveret.sessions.mqtt import publisher as publisher_module
from tests.support.brokers import Cluster
from tests.support.machines import World
from tests.unit.sessions.mqtt.clients import MqttClient, ack, connected, messages

LASTING: Properties = {Prop.SESSION_EXPIRY: 1_000}


@pytest.fixture
def cluster() -> Cluster:
    return Cluster("a", "b", "c")


def publishes(packets: list[k.Packet]) -> list[k.Publish]:
    return [one for one in packets if isinstance(one, k.Publish)]


def subscriber(world: World, qos: int = 2) -> MqttClient:
    client = connected(world, "s", properties=LASTING)
    assert client.subscribe("t", qos=qos) == [k.Suback(1, [qos])]
    return client


def back(world: World) -> MqttClient:
    client = connected(world, "s", clean=False, properties=LASTING)
    for _ in range(3):  # What the former connection had may come late.
        client.connection.on_tick(world.broker.now_ms)
        client.world.turn()
    return client


def publish(world: World, *payloads: bytes, qos: int = 2) -> None:
    publisher = connected(world, f"p{world.broker.unique_name('')}")
    for at, payload in enumerate(payloads):
        publisher.publish("t", payload, qos, at + 1)


def test_a_message_has_its_first_identifier_at_every_node(cluster: Cluster) -> None:
    client = subscriber(cluster["a"])
    publish(cluster["c"], b"1", b"2", b"3", b"4")
    first = publishes(client.heard())
    assert [one.payload for one in first] == [b"1", b"2", b"3", b"4"]
    assert client.send(ack(p.PUBREC, first[0])) == [ack(p.PUBREL, first[0])]
    assert client.send(ack(p.PUBCOMP, first[0])) == []
    for name in ("b", "c", "a", "b"):
        client.lose()
        client = back(cluster[name])
        again = publishes(client.got)
        assert [(one.payload, one.packet_id, one.dup) for one in again] == [
            (one.payload, one.packet_id, True) for one in first[1:]
        ]


def test_a_message_whose_settlement_was_lost_does_not_come_again(cluster: Cluster) -> None:
    subscriber(cluster["a"]).lose()
    client = back(cluster["b"])
    publish(cluster["c"], b"1", b"2")
    one, two = publishes(client.heard())
    cluster.hold("b", "a")  # The queue is at a.
    assert client.send(ack(p.PUBREC, one)) == [ack(p.PUBREL, one)]
    client.send(ack(p.PUBCOMP, one))
    cluster.close("a", "b")
    cluster.release("b", "a")
    cluster.join("a", "b")
    client.lose()
    client = back(cluster["b"])
    again, client.got = publishes(client.got), []
    assert [(one.payload, one.packet_id) for one in again] == [(two.payload, two.packet_id)]
    publish(cluster["c"], b"3")
    assert messages(client.heard()) == [("t", b"3", 2)]


def test_a_message_is_not_sent_before_it_is_safe() -> None:
    world = World()
    client, other = subscriber(world), connected(world, "o", properties=LASTING)
    other.subscribe("t", qos=1)
    world.holds_disk = True
    publish(world, b"1")
    assert messages(other.heard()) == [("t", b"1", 1)]
    assert client.heard() == []
    world.holds_disk = False
    assert messages(client.heard()) == [("t", b"1", 2)]


def test_a_queue_that_was_made_anew_begins_anew(cluster: Cluster) -> None:
    client = subscriber(cluster["a"])
    publish(cluster["c"], b"1", b"2")
    for one in publishes(client.heard()):
        client.send(ack(p.PUBREC, one), ack(p.PUBCOMP, one))
    spec = cluster["a"].metadata.queues["/", "mqtt-subscription-sqos1"]
    cluster.apply(c.DeleteQueue("/", spec.name, spec.id))
    assert client.connection.closed
    client = back(cluster["a"])
    publish(cluster["c"], b"3", b"4")
    assert messages(client.heard()) == [("t", b"3", 2), ("t", b"4", 2)]


def test_an_identifier_in_use_is_waited_for() -> None:
    world = World()
    client = subscriber(world)
    queue = world.queue("mqtt-subscription-sqos1")
    publish(world, b"1")
    (first,) = publishes(client.heard())
    queue.end_batch()
    queue.number_from(first.packet_id - 1 + 65_535)
    publish(world, b"2", b"3")
    assert client.heard() == []
    assert client.send(ack(p.PUBREC, first)) == [ack(p.PUBREL, first)]
    rest = publishes(client.send(ack(p.PUBCOMP, first)))
    assert [one.payload for one in rest] == [b"2", b"3"]
    assert [one.packet_id for one in rest] == [first.packet_id, first.packet_id + 1]
    for one in rest:
        client.send(ack(p.PUBREC, one), ack(p.PUBCOMP, one))
    assert queue.unacked_count == 0 and client.connection.deliveries.room() == 256


def test_the_identifier_of_a_refused_publish_is_free() -> None:
    """The next message that has it is another one, also for a queue that took the refused one."""
    world = World()
    taker, refuser = subscriber(world), connected(world, "r", properties=LASTING)
    refuser.subscribe("t", qos=2)
    refuser.lose()
    world.apply(c.SetPolicy("/", "p", "-rqos1$", "queues", 0, {"max-length": 0, "overflow": "reject-publish"}))
    publisher = connected(world, "p", properties=LASTING)
    assert publisher.publish("t", b"1", 2, 5) == [k.Ack(p.PUBREC, 5, Reason.QUOTA_EXCEEDED)]
    world.apply(c.ClearPolicy("/", "p"))
    assert publisher.publish("t", b"2", 2, 5) == [k.Ack(p.PUBREC, 5)]
    assert publisher.send(k.Ack(p.PUBREL, 5)) == [k.Ack(p.PUBCOMP, 5)]
    session = world.broker.client_ids.find("/", "p")
    assert session is not None and not session.received
    assert messages(taker.heard()) == [("t", b"1", 2), ("t", b"2", 2)]
    assert world.queue("mqtt-subscription-rqos1").ready_count == 1


def refused_at_one(cluster: Cluster) -> MqttClient:
    """A subscriber whose queue takes messages of the topic, while that of another refuses them."""
    taker, refuser = subscriber(cluster["a"]), connected(cluster["a"], "r", properties=LASTING)
    refuser.subscribe("t", qos=2)
    refuser.lose()
    cluster.apply(c.SetPolicy("/", "p", "-rqos1$", "queues", 0, {"max-length": 0, "overflow": "reject-publish"}))
    return taker


def test_a_refused_publish_is_refused_again_if_its_client_had_no_answer(cluster: Cluster) -> None:
    """A queue that took it would have it twice, if it were published again under another number."""
    taker = refused_at_one(cluster)
    publisher = connected(cluster["b"], "p", properties=LASTING)
    refusal = k.Ack(p.PUBREC, 5, Reason.QUOTA_EXCEEDED)
    assert publisher.publish("t", b"1", 2, 5) + publisher.heard() == [refusal]
    cluster.apply(c.ClearPolicy("/", "p"))
    again = k.Publish("t", b"1", 2, dup=True, packet_id=5)
    for name in ("c", "b", "b"):
        publisher.lose()
        publisher = connected(cluster[name], "p", clean=False, properties=LASTING)
        assert publisher.send(again) == [refusal]
        assert publisher.send(again) == [refusal]
    assert messages(taker.heard()) == [("t", b"1", 2)]
    other = k.Publish("t", b"2", 2, packet_id=5)
    assert publisher.send(other) == [k.Ack(p.PUBREC, 5)]
    assert publisher.send(k.Publish("t", b"2", 2, dup=True, packet_id=5)) == [k.Ack(p.PUBREC, 5)]
    assert publisher.send(k.Ack(p.PUBREL, 5)) == [k.Ack(p.PUBCOMP, 5)]
    assert messages(taker.heard()) == [("t", b"2", 2)]


def test_a_refusal_is_forgotten_when_a_later_message_is_completed(cluster: Cluster) -> None:
    taker = refused_at_one(cluster)
    publisher = connected(cluster["b"], "p", properties=LASTING)
    publisher.publish("t", b"1", 2, 5)
    cluster.apply(c.ClearPolicy("/", "p"))
    assert publisher.heard() == [k.Ack(p.PUBREC, 5, Reason.QUOTA_EXCEEDED)]
    publisher.publish("t", b"2", 2, 6)
    session = cluster["a"].broker.client_ids.find("/", "p")
    assert session is not None and session.received == {5: 0, 6: 2}
    publisher.send(k.Ack(p.PUBREL, 6))
    session = cluster["a"].broker.client_ids.find("/", "p")
    assert session is not None and not session.received
    publisher.send(k.Publish("t", b"3", 2, dup=True, packet_id=5))
    assert messages(taker.heard()) == [("t", b"1", 2), ("t", b"2", 2), ("t", b"3", 2)]


def test_only_the_last_refusals_are_remembered(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher_module, "REFUSED_MAX", 3)
    refused_at_one(cluster)
    publisher = connected(cluster["b"], "p", properties=LASTING)
    for packet_id in range(1, 9):
        answers = publisher.publish("t", b"1", 2, packet_id) + publisher.heard()
        assert answers == [k.Ack(p.PUBREC, packet_id, Reason.QUOTA_EXCEEDED)]
    session = cluster["a"].broker.client_ids.find("/", "p")
    assert session is not None and session.received == {6: 0, 7: 0, 8: 0}


def test_publishes_in_a_row_are_agreed_on_at_once(cluster: Cluster) -> None:
    taker, publisher = subscriber(cluster["a"]), connected(cluster["b"], "p", properties=LASTING)
    publisher.publish("t", b"first", 2, 1)
    commands = len(cluster.order)
    ids = [*range(2, 30), *range(40, 60)]
    sent = [k.Publish("t", b"%d" % packet_id, 2, packet_id=packet_id) for packet_id in ids]
    assert publisher.send(*sent) == [k.Ack(p.PUBREC, packet_id) for packet_id in ids]
    assert len(cluster.order) == commands + 1
    publisher.lose()
    publisher = connected(cluster["c"], "p", clean=False, properties=LASTING)
    again = [k.Publish("t", b"%d" % packet_id, 2, dup=True, packet_id=packet_id) for packet_id in (1, *ids)]
    assert publisher.send(*again) == [k.Ack(p.PUBREC, packet_id) for packet_id in (1, *ids)]
    commands = len(cluster.order)
    releases = [k.Ack(p.PUBREL, packet_id) for packet_id in (1, *ids)]
    assert publisher.send(*releases) == [k.Ack(p.PUBCOMP, packet_id) for packet_id in (1, *ids)]
    assert len(cluster.order) == commands + 1
    session = cluster["a"].broker.client_ids.find("/", "p")
    assert session is not None and not session.received and session.last_number == 49
    assert [one.payload for one in publishes(taker.heard())] == [b"first", *(b"%d" % packet_id for packet_id in ids)]


def test_too_much_that_waits_for_agreement_holds_its_client_back() -> None:
    world = World()
    publisher = connected(world, "p", properties=LASTING)
    world.holds_metadata = True
    for packet_id in range(1, 8):
        publisher.publish("t", bytes(1 << 20), 2, packet_id)
    connection = publisher.connection
    assert connection.held and connection.publisher.last_number < 7
    world.release_metadata()
    world.turn()
    assert not connection.held and connection.publisher.last_number == 7
    assert [one for one in publisher.heard() if isinstance(one, k.Ack)] == [k.Ack(p.PUBREC, n, 16) for n in range(1, 8)]


# -- Shared subscriptions --------------------------------------------------------------------------------------------

GROUP = "$share/g/t"


def member(world: World, client_id: str, clean: bool = True) -> MqttClient:
    client = connected(world, client_id, clean=clean, properties=LASTING)
    if clean:
        suback, *client.got = client.subscribe(GROUP, qos=2)
        assert suback == k.Suback(1, [2])
    return client


def test_what_a_member_was_sent_is_completed_when_it_returns(cluster: Cluster) -> None:
    first, second = member(cluster["a"], "m1"), member(cluster["b"], "m2")
    publish(cluster["c"], *(b"%d" % number for number in range(10)))
    mine, others = publishes(first.heard()), publishes(second.heard())
    assert sorted(one.payload for one in mine + others) == [b"%d" % number for number in range(10)]
    assert mine and others and all(one.qos == 2 for one in mine + others)
    done, *rest = mine
    first.send(ack(p.PUBREC, done), ack(p.PUBCOMP, done))
    first.lose()
    assert second.heard() == []  # Nothing of it goes to another member.
    for one in others:
        second.send(ack(p.PUBREC, one), ack(p.PUBCOMP, one))
    first = member(cluster["c"], "m1", clean=False)
    for _ in range(3):
        first.connection.on_tick(cluster["c"].broker.now_ms)
        first.world.turn()
    again = publishes(first.got)
    assert [(one.payload, one.packet_id) for one in again] == [(one.payload, one.packet_id) for one in rest]
    for one in again:
        first.send(ack(p.PUBREC, one), ack(p.PUBCOMP, one))
    for name in (f"mqtt-subscription-{GROUP}", "mqtt-subscription-m1qos1", "mqtt-subscription-m2qos1"):
        queue = cluster["a"].broker.vhosts["/"].queues[name]
        home = cluster[queue.spec.node].queue(name)
        assert home.ready_count == home.unacked_count == 0, name


def test_a_session_that_ends_takes_its_messages_along() -> None:
    world = World()
    first = member(world, "m1")
    publish(world, b"1")
    assert messages(first.heard()) == [("t", b"1", 2)]
    second = member(world, "m2")
    first.send(k.Disconnect(0, {Prop.SESSION_EXPIRY: 0}))
    assert second.heard() == []
    publish(world, b"2")
    assert messages(second.heard()) == [("t", b"2", 2)]


def test_a_member_that_is_full_leaves_the_rest_to_others() -> None:
    world = World()
    first = connected(world, "m1", properties={**LASTING, Prop.RECEIVE_MAXIMUM: 3})
    first.subscribe(GROUP, qos=2)
    publish(world, *(b"%d" % number for number in range(8)))
    assert len(publishes(first.heard())) == 3
    assert world.queue(f"mqtt-subscription-{GROUP}").ready_count == 5
    second = member(world, "m2")
    assert len(publishes(second.heard())) == 5
    assert first.unsubscribe(GROUP) == [k.Unsuback(2, [Reason.SUCCESS])]
    first.lose()
    first = connected(world, "m1", clean=False, properties=LASTING)
    assert len(publishes(first.got)) == 3  # They are its own, although it has left the group.


def test_the_own_queue_refuses() -> None:
    world = World()
    world.apply(c.SetPolicy("/", "p", "qos1$", "queues", 0, {"max-length": 0, "overflow": "reject-publish"}))
    first = member(world, "m1")
    publish(world, b"1")
    (disconnect,) = first.heard()
    assert isinstance(disconnect, k.Disconnect) and disconnect.reason == Reason.SERVER_BUSY
    assert world.queue(f"mqtt-subscription-{GROUP}").ready_count == 1
