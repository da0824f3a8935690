"""Methods that follow publishes in one write to a mirrored queue, at its master or at another node: they come after."""

from __future__ import annotations

import pytest

from leveret.protocol import methods as m
from leveret.protocol.tables import Field, Table
from tests.support.machines import Client, publish
from tests.support.mirrored_brokers import Rings

KINDS: dict[str, Table] = {
    "plain": {},
    "priorities": {"x-max-priority": Field("I", 3)},
    "limited": {"x-max-length": Field("I", 1)},
    "at once": {"x-message-ttl": Field("I", 0)},
}


@pytest.fixture(params=KINDS)
def rings(request: pytest.FixtureRequest) -> Rings:
    return Rings(KINDS[request.param])


@pytest.fixture(params=["a", "b"])
def client(request: pytest.FixtureRequest, rings: Rings) -> Client:
    """At the master, or at a mirror's node."""
    return rings[request.param].client()


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        (m.BasicGet(queue="q"), m.BasicGetEmpty()),
        (m.QueuePurge(queue="q"), m.QueuePurgeOk(0)),
        (m.QueueDeclare(queue="q", passive=True), m.QueueDeclareOk("q", 0, 1)),
    ],
)
def test_a_waiting_consumer_has_the_message(rings: Rings, client: Client, method: m.Method, answer: m.Method) -> None:
    consumer = rings["c"].client()
    consumer.consume("q")
    client.feed(publish(1, "", "q", b"x", delivery_mode=2) + m.encode(1, method))
    rings.run()
    assert client.methods() == [answer]
    assert consumer.bodies() == [b"x"]


@pytest.mark.parametrize("closes", [m.BasicCancel("c"), m.ChannelClose(200, "bye"), m.ConnectionClose(200, "bye")])
def test_who_goes_has_the_message_first(rings: Rings, client: Client, closes: m.Method) -> None:
    client.consume("q", no_ack=True)
    channel = 0 if isinstance(closes, m.ConnectionClose) else 1
    client.feed(publish(1, "", "q", b"x", delivery_mode=2) + m.encode(channel, closes))
    rings.run()
    first, last = client.take()
    assert first.body == b"x"
    assert isinstance(last.method, m.BasicCancelOk | m.ChannelCloseOk | m.ConnectionCloseOk)
    assert rings["a"].queue("q").ready_count == 0


@pytest.mark.parametrize("kind", ["plain", "priorities"])
@pytest.mark.parametrize("node", ["a", "b"])
def test_a_backlog_goes_to_a_consumer_before_a_get(kind: str, node: str) -> None:
    """The master has to tell its mirrors before it hands out what has waited."""
    rings = Rings(KINDS[kind])
    client, consumer = rings[node].client(), rings["c"].client()
    client.feed(publish(1, "", "q", b"x", delivery_mode=2) * 3)
    rings.run()
    consumer.consume("q")
    assert client.call(m.BasicGet(queue="q")) == m.BasicGetEmpty()
    assert consumer.bodies() == [b"x"] * 3
