"""Limits of vhosts and users: counted at each node, told to the others, and answered with RabbitMQ's texts."""

from __future__ import annotations

import pytest

from leveret.broker.connection_limits import OF_USER
from leveret.links import frame_types
from leveret.links.proposals import BadFrame
from leveret.metadata.model import commands as c
from leveret.protocol import methods as m
from tests.support.brokers import Cluster
from tests.support.machines import ALL_CAPABILITIES, Client, World, hello


@pytest.fixture
def cluster() -> Cluster:
    return Cluster("a", "b")


def refusal(world: World, user: str = "guest", channels: tuple[int, ...] = ()) -> str | None:
    """Open a connection; the text of the close, or None if it is open."""
    client = Client(world)
    client.feed(hello(user, user, "/", ALL_CAPABILITIES, 131_072, 2047, 0, channels))
    world.turn()
    closes = [method for method in client.methods() if isinstance(method, m.ConnectionClose)]
    return closes[0].reply_text if closes else None


IN_VHOST = "NOT_ALLOWED - access to vhost '/' refused for user 'guest': connection limit ({}) is reached"
CONNECTIONS = "NOT_ALLOWED - connection refused for user 'guest': user connection limit ({}) is reached"
CHANNELS = "NOT_ALLOWED - number of channels opened for user 'guest' has reached the maximum allowed user limit of ({})"


def test_connections_of_a_vhost_and_of_a_user() -> None:
    world = World()
    first = world.client()
    world.apply(c.SetVhostLimits("/", {"max-connections": 1}))
    assert refusal(world) == IN_VHOST.format(1)
    world.apply(c.SetUserLimits("guest", {"max-connections": 1}))
    world.apply(c.SetVhostLimits("/", {"max-connections": -1}))
    assert refusal(world) == CONNECTIONS.format(1)
    first.lose()
    assert refusal(world) is None
    assert refusal(world) == CONNECTIONS.format(1)
    world.apply(c.ClearUserLimits("guest"))
    assert refusal(world) is None


def test_who_was_refused_does_not_count() -> None:
    world = World()
    world.apply(c.SetVhostLimits("/", {"max-connections": 1}))
    assert refusal(world) is None
    for _ in range(3):
        assert refusal(world) == IN_VHOST.format(1)
    assert world.broker.connection_limits.own["v/"] == 1


def test_channels_of_a_user() -> None:
    world = World()
    client = world.client(channels=(1, 2))
    world.apply(c.SetUserLimits("guest", {"max-channels": 2}))
    assert refusal(world, channels=(1,)) == CHANNELS.format(2)
    client.send(m.ChannelClose(200, ""), channel=2)
    client.take()
    assert refusal(world, channels=(1,)) is None
    client.send(m.ChannelOpen(), channel=2)
    assert client.methods() == [m.ConnectionClose(530, CHANNELS.format(2), 0, 0)]
    client.lose()
    assert world.broker.connection_limits.own["cguest"] == 1


def test_a_channel_counts_until_its_close_is_answered() -> None:
    world = World()
    client = world.client()
    client.send(m.QueueDeclare(queue="none", passive=True))
    assert world.broker.connection_limits.own["cguest"] == 1
    client.send(m.ChannelCloseOk())
    assert world.broker.connection_limits.own["cguest"] == 0
    client.lose()
    assert not world.broker.connection_limits.own


def test_other_nodes_count(cluster: Cluster) -> None:
    at_a, at_b = cluster["a"], cluster["b"]
    client = at_b.client()
    cluster.propose(at_a, c.SetUserLimits("guest", {"max-connections": 1}), lambda applied: None)
    cluster.run()
    assert refusal(at_a) == CONNECTIONS.format(1)
    cluster.close("a", "b")
    cluster.run()
    limits = at_a.broker.connection_limits
    assert limits.limit_reached(OF_USER + "guest") is None  # The connections of a lost node are not counted.
    cluster.join("a", "b")
    cluster.run()
    assert refusal(at_a) == CONNECTIONS.format(1)
    client.lose()
    assert refusal(at_a) is None


def test_without_limits_nodes_tell_only_whether_they_have_clients(cluster: Cluster) -> None:
    first, second = cluster["a"].client(), cluster["a"].client()
    cluster.run()
    limits = cluster["b"].broker.connection_limits
    assert limits.others == {"a": {"a": 1}} and limits.has_clients
    assert cluster["a"].broker.connection_limits.has_clients
    first.lose()
    cluster.run()
    assert limits.has_clients
    second.lose()
    cluster.run()
    assert limits.others == {"a": {}} and not limits.has_clients
    assert not cluster["a"].broker.connection_limits.has_clients


def test_clients_of_a_lost_node_are_forgotten_and_told_again(cluster: Cluster) -> None:
    cluster["a"].client()
    cluster.run()
    limits = cluster["b"].broker.connection_limits
    cluster.close("a", "b")
    cluster.run()
    assert not limits.has_clients
    cluster.join("a", "b")
    cluster.run()
    assert limits.has_clients


@pytest.mark.parametrize(
    "payload", [b"", b"[]", b'{"ux": -1}', b'{"ux": "1"}', b'{"ux": true}', b"\xff", b"[" * 100_000]
)
def test_bad_frames(cluster: Cluster, payload: bytes) -> None:
    with pytest.raises(BadFrame):
        cluster["a"].broker.on_peer_frame("b", frame_types.CONNECTION_COUNTS, payload)
