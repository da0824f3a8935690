"""The home of a queue and what another node may say to it; and the other way round: frames that a good node never
sends end the session, and leave everything in order."""

from __future__ import annotations

import pytest

from leveret.broker.delivery.publish_numbers import Origin
from leveret.broker.remote import peer_frames as w
from leveret.links import frame_types
from leveret.links.proposals import BadFrame
from leveret.protocol import methods as m
from tests.support.brokers import Cluster
from tests.support.machines import Client

KEY = b"\0\x01q"


def started() -> tuple[Cluster, Client]:
    """A client at a with a queue at b, and one message of it in hand."""
    cluster = Cluster("a", "b", home="b")
    client = cluster["a"].client()
    client.declare("q", durable=True)
    client.consume("q")
    client.publish("q", b"1")
    assert [reply.body for reply in client.take()] == [b"1"]
    return cluster, client


def ask(cluster: Cluster, what: int, rest: bytes = b"", queue: int = 1, number: int = 99) -> bytes:
    return w.ASK_HEAD.pack(cluster["b"].metadata.index, number, what, queue) + rest


def run(content: bytes = b"x") -> bytes:
    return b"".join(w.pack_run([content], [KEY], b"\0"))


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (frame_types.PUBLISH, b"short"),
        (frame_types.PUBLISH, w.U64.pack(0) + w.BUNDLE.pack(1, 0)),
        (frame_types.PUBLISH, w.U64.pack(0) + w.BUNDLE.pack(1, 7) + run()),  # A token that is not the next.
        (frame_types.PRODUCE, b"short"),
        (frame_types.PRODUCE, w.U64.pack(0) + w.BUNDLE.pack(1, 1)),
        (frame_types.PRODUCE, w.U64.pack(0) + w.BUNDLE.pack(1, 0) + w.pack_origin(Origin(b"p", 1, 0)) + run()),
        (frame_types.PRODUCE, w.U64.pack(0) + w.BUNDLE.pack(1, 7) + w.pack_origin(Origin(b"p", 1, 0)) + run()),
        (frame_types.PRODUCE, w.U64.pack(0) + w.BUNDLE.pack(1, 1) + w.pack_origin(Origin(b"p", 5, 5)) + run()),
        (frame_types.SETTLE, b"short"),
        (frame_types.SETTLE, w.VERDICT.pack(4, 1, 1)),
        (frame_types.SETTLE, w.VERDICT.pack(1, 2, 1)),
        (frame_types.PASSED, w.PASSED_HEAD.pack(0, 1, 1, 1) + w.VERDICT.pack(1, 2, 1)),
        (frame_types.LIMIT, b"short"),
        (frame_types.TAKEN, b"short"),
        (frame_types.ASK, b"short"),
        (frame_types.STAGE, b"short"),
        (frame_types.STAGE, w.BUNDLE.pack(1, 7) + run()),
        (frame_types.STAGE, w.BUNDLE.pack(1, 1) + run() + w.U32.pack(2) + w.TIME_ENTRY.pack(0, 5)),
        (frame_types.STAGE, w.BUNDLE.pack(1, 1) + run() + w.U32.pack(1) + w.TIME_ENTRY.pack(99, 5)),
        (39, b""),
    ],
)
def test_bad_frames_for_a_home(kind: int, payload: bytes) -> None:
    cluster, client = started()
    with pytest.raises(BadFrame):
        cluster["b"].broker.on_peer_frame("a", kind, payload)
    cluster.close("a", "b")
    cluster.run()
    assert client.methods() == [m.BasicCancel("c", True)]
    queue = cluster["b"].queue("q")
    assert (queue.ready_count, queue.unacked_count, len(queue.consumers)) == (1, 0, 0)
    cluster.join("a", "b")
    cluster.finish()


def test_bad_questions() -> None:
    cluster, _ = started()
    broker = cluster["b"].broker
    for payload in (
        ask(cluster, 77),
        ask(cluster, w.GET),
        ask(cluster, w.CANCEL, b"x"),
        ask(cluster, w.SUBSCRIBE, b"x"),
        ask(cluster, w.SUBSCRIBE, w.SUBSCRIBE_HEAD.pack(1, 0, 0, 0, 0, 0, 0) + b"again"),  # There is a subscription 1.
    ):
        with pytest.raises(BadFrame):
            broker.on_peer_frame("a", frame_types.ASK, payload)
    assert len(cluster["b"].queue("q").consumers) == 1


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (frame_types.SAFE, b"short"),
        (frame_types.DELIVER, b"short"),
        (frame_types.DELIVER, w.DELIVERY.pack(1, 9) + b"short"),
        (frame_types.ANSWER, b"short"),
        (frame_types.ANSWER, w.ANSWER_HEAD.pack(99, 0)),
        (frame_types.CANCELLED, b"short"),
        (frame_types.CREDIT, b"short"),
    ],
)
def test_bad_frames_for_an_edge(kind: int, payload: bytes) -> None:
    cluster, _ = started()
    with pytest.raises(BadFrame):
        cluster["a"].broker.on_peer_frame("b", kind, payload)
    cluster.close("a", "b")
    cluster.join("a", "b")
    cluster.run()
    cluster.finish()


def test_what_speaks_of_what_is_gone_is_harmless() -> None:
    """Tags and subscriptions that ended while a frame was on its way."""
    cluster, client = started()
    for receiver, sender, kind, payload in (
        ("b", "a", frame_types.SETTLE, w.VERDICT.pack(w.ACKED, 50, 60) + w.VERDICT.pack(w.REQUEUED, 61, 90)),
        ("b", "a", frame_types.LIMIT, w.LIMIT_ENTRY.pack(50, 1)),
        ("b", "a", frame_types.TAKEN, w.TAKEN_ENTRY.pack(50, 1)),
        ("b", "a", frame_types.PUBLISH, w.U64.pack(0) + w.BUNDLE.pack(50, 0) + run()),
        ("a", "b", frame_types.SAFE, w.SAFE_ENTRY.pack(50, 1, 0)),
        ("a", "b", frame_types.CANCELLED, w.U64.pack(50)),
        ("a", "b", frame_types.DELIVER, w.DELIVERY.pack(50, 50) + run()),
    ):
        cluster[receiver].broker.on_peer_frame(sender, kind, payload)
        cluster.run()
    assert client.take() == []
    client.send(m.BasicAck(1))
    assert cluster["b"].queue("q").unacked_count == 0
    cluster.finish()


def test_messages_given_back_in_one_frame_go_to_their_old_places() -> None:
    cluster = Cluster("a", "b", home="b")
    client = cluster["a"].client(channels=(1, 2))
    for name in ("q", "r"):
        client.declare(name)
        client.consume(name, name)
        client.consume(name, name * 2, channel=2)
    for number in range(40):
        client.publish("qr"[number % 2], b"%d" % number)
    assert len(client.take()) == 40
    cluster.frames.clear()
    client.feed(m.encode(2, m.ChannelClose(200, "")) + m.encode(1, m.BasicRecover(True)))
    client.feed(m.encode(1, m.BasicCancel("q")) + m.encode(1, m.BasicCancel("r")))
    cluster.run()
    client.take()
    client.send(m.BasicNack(0, True, True))
    client.take()
    for name, odd in (("q", 0), ("r", 1)):
        client.feed(m.encode(1, m.BasicGet(queue=name, no_ack=True)) * 20)
        cluster.run()
        assert client.bodies() == [b"%d" % number for number in range(odd, 40, 2)]
    cluster.finish()
