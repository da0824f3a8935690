"""Limits of vhosts and users hold for MQTT clients."""

from __future__ import annotations

from leveret.metadata.model import commands as c
from leveret.protocol.mqtt import packets as k
from leveret.protocol.mqtt.properties import Prop
from leveret.protocol.mqtt.reason_codes import Reason
from tests.support.brokers import Cluster
from tests.support.machines import World
from tests.unit.sessions.mqtt.clients import MqttClient, connected

LASTING = {Prop.SESSION_EXPIRY: 1_000}


def suback(packets: list[k.Packet]) -> list[int]:
    (answer,) = packets
    assert isinstance(answer, k.Suback)
    return list(answer.reasons)


def test_shared_subscriptions_make_no_more_queues_than_the_vhost_may_have() -> None:
    world = World()
    world.apply(c.SetVhostLimits("/", {"max-queues": 3}))
    client = connected(world, properties=LASTING)
    filters = [f"$share/g/{number}" for number in range(6)]
    assert suback(client.subscribe(*filters, qos=1)) == [1] * 3 + [Reason.QUOTA_EXCEEDED] * 3
    assert len(world.broker.vhosts["/"].queues) == 3
    assert suback(client.subscribe("plain", qos=1)) == [Reason.QUOTA_EXCEEDED]
    assert list(client.connection.subscriptions.options) == filters[:3]
    assert client.unsubscribe(filters[0]) == [k.Unsuback(2, [Reason.SUCCESS])]
    assert suback(client.subscribe("plain", qos=1)) == [1]
    session = world.broker.client_ids.find("/", "c")
    assert session is not None and list(session.subscriptions) == [*filters[1:3], "plain"]


def test_clients_at_several_nodes_share_the_limit_of_their_vhost() -> None:
    cluster = Cluster("a", "b")
    cluster.apply(c.SetVhostLimits("/", {"max-queues": 4}))
    clients = [connected(cluster[name], name) for name in "ab"]
    reasons = [suback(client.subscribe(*(f"$share/{n}{n}/x" for n in range(3)), qos=1)) for client in clients]
    assert reasons == [[1, 1, 1], [1, 1, 1]]  # They are members of the same groups.
    assert suback(clients[0].subscribe("t", qos=1)) == [1]
    assert suback(clients[1].subscribe("t", qos=1)) == [Reason.QUOTA_EXCEEDED]


def test_connections_of_a_user_and_of_a_vhost() -> None:
    world = World()
    for command in (c.SetUserLimits("guest", {"max-connections": 1}), c.SetVhostLimits("/", {"max-connections": 1})):
        world.apply(command)
        first = connected(world, "first")
        (connack,) = MqttClient(world).connect("second")
        assert isinstance(connack, k.Connack) and connack.reason == Reason.QUOTA_EXCEEDED
        first.lose()
        world.apply(c.ClearUserLimits("guest", "all"))
