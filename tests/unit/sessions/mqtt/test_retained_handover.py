"""Very many retained messages for one subscription: they come in portions, and nothing else waits for them."""

from __future__ import annotations

import pytest

from leveret.broker.fanout import COPIES_MAX
from leveret.metadata.mqtt.commands import KeepRetained, RetainedRow
from leveret.metadata.mqtt.records import RetainedMessage
from leveret.protocol.mqtt import packets as k
from leveret.protocol.mqtt.encoder import encode
from leveret.protocol.mqtt.properties import Prop
from leveret.sessions.mqtt import subscriptions
from tests.support.machines import World
from tests.unit.sessions.mqtt.clients import MqttClient, connected, messages

PORTION_MAX = 256


def world_with(count: int, size: int = 10) -> World:
    world = World()
    rows = (RetainedRow("/", f"t/{at}", RetainedMessage(f"t/{at}", b"%d" % at + b"x" * size, 1)) for at in range(count))
    world.apply(KeepRetained(tuple(rows), 1 << 30, 1 << 30))
    return world


def begin(client: MqttClient, topic_filter: str = "#", qos: int = 0) -> None:
    """Send SUBSCRIBE, and play no turn."""
    packet = k.Subscribe(1, [k.Subscription(topic_filter, qos)], {})
    client.connection.receive(encode(packet, client.version))


def portions(world: World, client: MqttClient) -> list[int]:
    """Play turn after turn; return how many messages each brought into the client's queue."""
    counts = []
    queue = world.queue("mqtt-subscription-cqos0")
    before = 1
    while True:
        counts.append(queue.next_seq - before)
        before = queue.next_seq
        if not client.connection.subscriptions.handovers:
            return counts
        world.broker.pump()


def test_they_come_in_portions() -> None:
    world = world_with(5_000)
    client = connected(world)
    begin(client)
    counts = portions(world, client)
    assert sum(counts) == 5_000 and len(counts) >= 5 and max(counts) <= PORTION_MAX
    got = messages(client.heard())
    assert len(got) == 5_000 == len({topic for topic, _, _ in got})
    assert not world.broker.fanout.waiting


def test_large_messages_come_in_smaller_portions() -> None:
    world = world_with(200, size=200_000)
    client = connected(world)
    begin(client)
    counts = portions(world, client)
    assert sum(counts) == 200 and max(counts) <= 22
    assert len(messages(client.heard())) == 200


def test_live_messages_and_changes_meanwhile() -> None:
    world = world_with(5_000)
    client, publisher = connected(world), connected(world, "p")
    begin(client)
    order = [one.topic for one in world.broker.retained.find("/", "#")]
    publisher.connection.receive(
        b"".join(
            encode(one, k.V5)
            for one in (
                k.Publish("live", b"1"),
                k.Publish(order[-1], b"new", retain=True),
                k.Publish(order[-2], b"", retain=True),
                k.Publish("t/new", b"2", retain=True),
            )
        )
    )
    got = messages(client.heard())
    assert ("live", b"1", 0) in got and ("t/new", b"2", 0) in got
    assert [payload for topic, payload, _ in got if topic == order[-1]][-1] == b"new"
    assert [payload for topic, payload, _ in got if topic == order[-2]] == [b""]
    assert {topic for topic, _, _ in got} == {*order, "live", "t/new"}
    assert not world.broker.retained.find("/", order[-2])


def test_it_ends_with_the_subscription() -> None:
    world = world_with(5_000)
    client = connected(world)
    begin(client)
    client.connection.receive(encode(k.Unsubscribe(2, ["#"]), k.V5))
    assert not world.broker.fanout.waiting and not client.connection.subscriptions.handovers
    got = client.heard()
    assert k.Unsuback(2, [0]) in got
    assert len(messages(got)) <= PORTION_MAX
    assert len(messages(client.subscribe("t/+"))) == 5_000


def test_it_ends_with_the_connection() -> None:
    world = world_with(5_000)
    lasting = {Prop.SESSION_EXPIRY: 100}
    for leave in ("disconnect", "lost", "taken over"):
        client = connected(world, properties=lasting)
        begin(client, qos=1)
        world.broker.pump()
        assert world.broker.fanout.waiting
        if leave == "disconnect":
            client.connection.receive(encode(k.Disconnect(), k.V5))
        elif leave == "lost":
            client.connection.on_socket_lost()
        else:
            connected(world, properties=lasting)
        assert not world.broker.fanout.waiting and not client.connection.subscriptions.handovers
        world.turn()


def test_another_subscribe_begins_again() -> None:
    world = world_with(5_000)
    client = connected(world)
    begin(client)
    begin(client)
    assert len(world.broker.fanout.waiting) == 1
    assert 5_000 <= len(messages(client.heard())) <= 5_000 + PORTION_MAX


def test_another_qos_without_retained_messages_goes_on() -> None:
    world = world_with(5_000)
    client = connected(world)
    begin(client)
    packet = k.Subscribe(2, [k.Subscription("#", 1, retain_handling=1)], {})
    client.connection.receive(encode(packet, k.V5))
    world.broker.pump()
    assert world.queue("mqtt-subscription-cqos1").next_seq > 1


def test_two_subscribers_share_the_turns() -> None:
    world = world_with(3_000)
    first, second = connected(world), connected(world, "d")
    begin(first)
    begin(second)
    world.broker.pump()
    waiting = list(world.broker.fanout.waiting)
    assert waiting == [client.connection.subscriptions.handovers["#"] for client in (second, first)]
    assert len(messages(first.heard())) == len(messages(second.heard())) == 3_000


def test_of_many_clients_that_subscribe_at_once_each_turn_serves_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "COPIES", COPIES_MAX // 2)
    world = world_with(1)
    clients = [connected(world, f"c{number}") for number in range(9)]
    world.broker.pump()
    for client in clients:
        begin(client)

    def subscribed() -> int:
        return sum(f"mqtt-subscription-c{number}qos0" in world.broker.vhosts["/"].queues for number in range(9))

    assert subscribed() == 2
    clients[4].connection.on_socket_lost()  # While it waits.
    while world.broker.is_behind:
        before = subscribed()
        world.broker.pump()
        assert subscribed() - before <= 2
    world.turn()
    got = [len(messages(client.heard())) for client in clients]
    assert got == [1, 1, 1, 1, 0, 1, 1, 1, 1] and not world.broker.fanout.waiting
