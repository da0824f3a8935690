"""Direct reply-to: within a node, between nodes, and with clients that do not read."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.broker.remote import direct_reply_to
from leveret.broker.routing.reply_address import ADDRESS
from leveret.links import frame_types
from leveret.links.proposals import BadFrame
from leveret.protocol import methods as m
from tests.support.brokers import Cluster
from tests.support.machines import Client, Conversation, World, converse, publish, written_conversations


@pytest.mark.parametrize("conversation", written_conversations("replies"))
def test_replies(conversation: Conversation) -> None:
    assert converse(conversation) == conversation.lines


def asking(client: Client, **properties: Any) -> str:
    """Ask something; gives the address for the answer."""
    client.declare("q", exclusive=True)
    client.consume(ADDRESS, no_ack=True)
    client.publish("q", reply_to=ADDRESS, **properties)
    client.send(m.BasicGet(queue="q", no_ack=True))
    (got,) = client.take()
    assert got.properties is not None and got.properties.reply_to is not None
    return got.properties.reply_to


def test_answers_come_from_every_node(cluster: Cluster) -> None:
    asker, server = cluster["a"].client(), cluster["b"].client()
    address = asking(asker)
    assert address.endswith(".a")
    server.publish(address, b"answer")
    assert asker.bodies() == [b"answer"]
    assert server.call(m.QueueDeclare(queue=address, passive=True)) == m.QueueDeclareOk(address, 0, 1)
    asker.lose()
    server.publish(address, b"answer")
    server.send(m.QueueDeclare(queue=address, passive=True))
    (close,) = server.methods()
    assert isinstance(close, m.ChannelClose) and close.reply_code == 404


def test_nobody_answers_for_a_node_that_is_lost(cluster: Cluster) -> None:
    """A question to it is answered by its loss, and whoever asked goes on."""
    asker, server = cluster["a"].client(), cluster["b"].client()
    address = asking(asker)
    cluster.hold("b", "a")
    server.send(m.QueueDeclare(queue=address, passive=True))
    assert server.take() == []
    cluster.close("a", "b")
    cluster.run()
    (close,) = server.methods()
    assert isinstance(close, m.ChannelClose) and close.reply_code == 404
    assert not cluster["b"].broker.replies.questions
    server.send(m.ChannelCloseOk(), m.ChannelOpen())
    server.take()
    server.publish(address, b"answer")
    assert server.call(m.QueueDeclare(queue="", exclusive=True)).name == "queue.declare_ok"


def test_a_link_that_does_not_keep_up_makes_publishers_wait(cluster: Cluster) -> None:
    asker, server = cluster["a"].client(), cluster["b"].client()
    address = asking(asker)
    cluster.deaf.add(("b", "a"))
    server.publish(address, b"answer")
    crowded_queue = server.connection.crowded_queue
    assert crowded_queue is not None and crowded_queue.is_crowded()
    cluster.drain("b", "a")
    assert not crowded_queue.is_crowded()


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (frame_types.REPLY, b""),
        (frame_types.REPLY, b"\x00\x05abc"),
        (frame_types.REPLY, b"\x00\x01a\x00\x04abcd"),
        (frame_types.REPLY_ASK, b"\x00"),
        (frame_types.REPLY_ASK, bytes(8) + b"\x00\x05abc"),
        (frame_types.REPLY_ANSWER, b"\x00"),
        (frame_types.REPLY_ANSWER, bytes(8) + b"\x01"),
    ],
)
def test_bad_frames(cluster: Cluster, kind: int, payload: bytes) -> None:
    with pytest.raises(BadFrame):
        cluster["a"].broker.on_peer_frame("b", kind, payload)


def test_a_reply_that_is_no_content_is_a_bad_frame(cluster: Cluster) -> None:
    address = asking(cluster["a"].client()).encode()
    payload = len(address).to_bytes(2, "big") + address + b"\x00\x02\x00\x00" + b"\x02\x00\x02\x00\x00"
    with pytest.raises(BadFrame):
        cluster["a"].broker.on_peer_frame("b", frame_types.REPLY, payload)


def test_one_who_does_not_read_loses_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to a bound they wait; what comes then is dropped, and told to the log once."""
    monkeypatch.setattr(direct_reply_to, "INBOX_BYTES_MAX", 1000)
    world = World()
    asker, server = world.client(), world.client()
    address = asking(asker)
    asker.connection.output.set_writable(False)
    for number in range(20):
        server.publish(address, bytes([number]) * 300)
    assert asker.take() == []
    assert [text for _, level, text in world.notes if level == "warning" and "replies" in text] == [
        "connection 127.0.0.1:40000 -> 127.0.0.1:5672, channel 1: does not read its replies, and further ones are "
        "dropped"
    ]
    asker.connection.output.set_writable(True)
    assert asker.connection.on_room()
    world.turn()
    bodies = asker.bodies()
    assert bodies == [bytes([number]) * 300 for number in range(len(bodies))] and 0 < len(bodies) < 20
    server.publish(address, b"again")
    assert asker.bodies() == [b"again"]
    assert not asker.connection.inboxes


def test_many_answers_in_one_turn_are_written_in_several() -> None:
    world = World()
    asker, server = world.client(), world.client()
    address = asking(asker)
    server.feed(publish(1, "", address, bytes(100_000)) * 30)
    assert asker.connection.output.size < 1_300_000
    world.turn()
    assert len(asker.bodies()) == 30


def test_nothing_is_left_of_an_asker() -> None:
    world = World()
    asker, server = world.client(), world.client()
    address = asking(asker)
    asker.connection.output.set_writable(False)
    server.publish(address, b"answer")
    asker.connection.output.set_writable(True)
    asker.send(m.ChannelClose(200, ""))
    assert not world.broker.replies.inboxes and not asker.connection.inboxes


def test_addresses_are_not_remembered_as_routes() -> None:
    world = World()
    server = world.client()
    for number in range(5):
        server.publish(f"{ADDRESS}.{number}.node", b"answer")
    assert not world.broker.vhosts["/"].routes
