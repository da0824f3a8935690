"""How things end with a queue at another node: consumers, channels, clients, queues, links, in the middle of anything;
and who is held until when."""

from __future__ import annotations

from typing import Any, Final

import pytest

from leveret.broker.broker import MASTERLESS_TICKS_MAX
from leveret.broker.remote import client_end
from leveret.broker.remote.remote_queue import RemoteQueue, resubscribe
from leveret.links import frame_types
from leveret.metadata.model import commands as c
from leveret.protocol import methods as m
from leveret.sessions.output import OUT_BYTES_MAX
from tests.support.brokers import Cluster
from tests.support.machines import publish
from tests.support.remote import DOWN, client_with_queue, cut, cut_and_join, delivered, depth, types

RETURNS: Final = OUT_BYTES_MAX // 100_000 + 1


# -- Endings -------------------------------------------------------------------------------------------------------


def test_cancel_with_deliveries_under_way(cluster: Cluster) -> None:
    client, publisher = client_with_queue(cluster), cluster["b"].client()
    client.consume("q")
    cluster.hold("b", "a")
    publisher.publish("q", b"1")
    client.send(m.BasicCancel("c"))
    publisher.publish("q", b"2")
    assert client.take() == []
    cluster.release("b", "a")
    first, second = client.take()
    assert first.body == b"1" and isinstance(second.method, m.BasicCancelOk)
    assert depth(client) == (1, 0)
    client.send(m.BasicAck(1))


def test_cancel_gives_back_what_the_client_has_no_room_for(cluster: Cluster) -> None:
    client, publisher = client_with_queue(cluster), cluster["b"].client()
    client.consume("q", "acks")
    client.consume("q", "none", no_ack=True)
    client.connection.output.set_writable(False)
    for at in range(4):
        publisher.publish("q", b"%d" % at)
    client.send(m.BasicCancel("none"), m.BasicCancel("acks"))  # The other way round, one would get what the other had.
    client.connection.output.set_writable(True)
    client.connection.on_room()
    cluster.run()
    # What needs no acknowledgement is gone from the queue, so it goes to the client whatever its room.
    assert [body for body, _ in delivered(client)] == [b"1", b"3"]
    assert depth(client) == (2, 0)
    client.send(m.BasicGet(queue="q"))
    assert [body for body, _ in delivered(client)] == [b"0"]


def test_channel_closed_with_deliveries_under_way_buffered_and_out(cluster: Cluster) -> None:
    client, publisher = client_with_queue(cluster), cluster["b"].client()
    client.consume("q", channel=2)
    publisher.publish("q", b"1")
    assert delivered(client) == [(b"1", False)]
    client.connection.output.set_writable(False)
    publisher.publish("q", b"2")
    assert cluster["a"].client_end("b").subscriptions[1].feed
    cluster.hold("b", "a")
    publisher.publish("q", b"3")
    client.connection.output.set_writable(True)
    client.send(m.ChannelClose(200, ""), channel=2)
    assert m.ChannelCloseOk() not in client.methods()  # What is under way comes before.
    cluster.release("b", "a")
    assert client.methods()[-1] == m.ChannelCloseOk()
    assert depth(client) == (3, 0)
    client.send(m.BasicGet(queue="q"), m.BasicGet(queue="q"), m.BasicGet(queue="q"))
    assert delivered(client) == [(b"1", True), (b"2", True), (b"3", True)]


@pytest.mark.parametrize("lost", [False, True])
def test_client_gone_while_a_question_is_under_way(cluster: Cluster, lost: bool) -> None:
    client, other = client_with_queue(cluster), cluster["b"].client()
    client.publish("q", b"1")
    questions: list[m.Method] = [
        m.BasicGet(queue="q"),
        m.BasicConsume(queue="q", consumer_tag="c"),
        m.QueueDeclare(queue="q", passive=True),
        m.QueuePurge(queue="q"),
    ]
    for question in questions[:3]:
        cluster.hold("a", "b")
        asking = cluster["a"].client()
        asking.send(question)
        asking.lose()
        if lost:
            cut_and_join(cluster)
        cluster.release("a", "b")
        assert depth(other) == (1, 0)
    other.send(m.BasicGet(queue="q"))
    assert len(delivered(other)) == 1


def test_a_consumer_that_asked_and_lost_its_queue_is_not_left_behind(cluster: Cluster) -> None:
    """The queue goes while the answer to basic.consume is on its way: no cancel before consume-ok, and no ghost."""
    client, other = client_with_queue(cluster), cluster["b"].client()
    cluster.hold("b", "a")
    client.send(m.BasicConsume(queue="q", consumer_tag="c"))
    other.send(m.QueueDelete(queue="q"))
    cluster.release("b", "a")
    (close,) = client.methods()
    assert isinstance(close, m.ChannelClose) and close.reply_text == "NOT_FOUND - no queue 'q' in vhost '/'"
    assert not any(channel.consumers for channel in client.connection.channels.values())
    other.take()


@pytest.mark.parametrize(
    "method", [m.BasicGet(queue="q"), m.QueuePurge(queue="q"), m.BasicConsume(queue="q", consumer_tag="c")]
)
def test_a_queue_deleted_before_a_question_arrives_is_not_found(cluster: Cluster, method: m.Method) -> None:
    client, other = client_with_queue(cluster), cluster["b"].client()
    cluster.hold("a", "b")
    client.send(method)
    other.send(m.QueueDelete(queue="q"))
    cluster.release("a", "b")
    (close,) = client.methods()
    assert isinstance(close, m.ChannelClose)
    assert (close.reply_code, close.reply_text) == (404, "NOT_FOUND - no queue 'q' in vhost '/'")
    other.take()


def test_a_declare_that_meets_a_delete_makes_the_queue_anew(cluster: Cluster) -> None:
    client, other = client_with_queue(cluster), cluster["b"].client()
    client.publish("q")
    cluster.hold("a", "b")
    client.send(m.QueueDeclare(queue="q", durable=True))
    other.send(m.QueueDelete(queue="q"))
    cluster.release("a", "b")
    (answer,) = client.methods()
    assert answer == m.QueueDeclareOk("q", 0, 0)
    assert depth(client) == (0, 0)
    other.take()


def test_two_who_delete_the_same_queue_are_both_told_that_it_is_gone(cluster: Cluster) -> None:
    client, other = client_with_queue(cluster), cluster["b"].client()
    cluster.hold("a", "b")
    client.send(m.QueueDelete(queue="q"))
    other.send(m.QueueDelete(queue="q"))
    cluster.release("a", "b")
    assert client.methods() == other.methods() == [m.QueueDeleteOk(0)]


def test_queue_deleted_with_deliveries_in_every_state(cluster: Cluster) -> None:
    client, other = client_with_queue(cluster), cluster["b"].client()
    client.consume("q")
    other.publish("q", b"1")
    assert delivered(client) == [(b"1", False)]
    client.connection.output.set_writable(False)
    other.publish("q", b"2")
    cluster.hold("b", "a")
    other.publish("q", b"3")
    other.send(m.QueueDelete(queue="q"))
    cluster.release("b", "a")
    client.connection.output.set_writable(True)
    client.send(m.BasicAck(1))
    assert client.methods() == [m.BasicCancel("c", True)]
    home = cluster["b"].broker.owner_ends["a"]
    assert home.unacked.count == 0
    other.take()


def test_what_is_got_of_a_deleted_queue_is_forgotten_at_its_home(cluster: Cluster) -> None:
    client = client_with_queue(cluster)
    client.publish("q", b"1")
    client.publish("q", b"2")
    client.send(m.BasicGet(queue="q"), m.BasicGet(queue="q"), m.QueueDelete(queue="q"), m.BasicNack(1, False, True))
    client.send(m.ChannelClose(200, ""))
    client.take()
    assert cluster["b"].broker.owner_ends["a"].unacked.count == 0


def test_auto_delete_queue_goes_with_its_remote_consumer_and_without_a_word(cluster: Cluster) -> None:
    client = client_with_queue(cluster, auto_delete=True)
    client.consume("q", "one")
    client.consume("q", "two", channel=2)
    client.send(m.BasicCancel("one"))
    assert client.methods() == [m.BasicCancelOk("one")]
    cluster.hold("b", "a")
    client.send(m.BasicCancel("two"), channel=2)  # The deletion is agreed on before the answer has come.
    cluster.release("b", "a")
    assert client.methods() == [m.BasicCancelOk("two")]
    assert "q" not in cluster["a"].broker.vhosts["/"].queues


@pytest.mark.parametrize("ending", ["channel", "client", "link"])
def test_auto_delete_queue_goes_with_whatever_its_consumer_goes_with(cluster: Cluster, ending: str) -> None:
    client = client_with_queue(cluster, auto_delete=True)
    client.consume("q")
    client.publish("q", b"x")
    if ending == "channel":
        client.send(m.ChannelClose(200, ""))
    elif ending == "client":
        client.lose()
    else:
        cut_and_join(cluster)
    assert not cluster["a"].metadata.queues and not cluster["b"].metadata.queues


@pytest.mark.parametrize("options", [{"exclusive": True}, {"durable": False}, {"durable": True, "exclusive": True}])
@pytest.mark.parametrize("outcome", ["gone", "back", "unclear"])
def test_a_queue_that_goes_with_its_node_is_declared_again(
    cluster: Cluster, options: dict[str, Any], outcome: str
) -> None:
    """By a client that was at that node, say. Whether its node has only lost a link is not clear at once."""
    cluster.home = None
    cluster["b"].client().declare("q", **options)
    client = cluster["a"].client()
    cut(cluster)
    client.send(m.QueueDeclare(queue="q", **options))
    assert client.take() == []
    if outcome == "gone":
        cluster.apply(c.NodeStarted("b"))
        cluster.run()
        assert client.methods() == [m.QueueDeclareOk("q", 0, 0)]
        assert cluster["a"].metadata.queues["/", "q"].node == "a"
        return
    if outcome == "back":
        cluster.join("a", "b")
        cluster.run()
    else:
        for _ in range(MASTERLESS_TICKS_MAX + 1):
            cluster.tick()
    (method,) = client.methods()
    if outcome == "back" and not options.get("exclusive"):
        assert method == m.QueueDeclareOk("q", 0, 0)
    else:
        assert isinstance(method, m.ChannelClose)
        assert method.reply_code == (405 if outcome == "back" else 404)


def test_exclusive_consumers_of_two_nodes(cluster: Cluster) -> None:
    client, other = client_with_queue(cluster), cluster["b"].client(channels=(1, 2))
    client.consume("q", "mine", exclusive=True)
    close = other.call(m.BasicConsume(queue="q", consumer_tag="theirs"))
    assert isinstance(close, m.ChannelClose)
    assert close.reply_text == "ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use"
    client.send(m.BasicCancel("mine"))
    client.take()
    other.consume("q", "theirs", channel=2)
    refused = client.call(m.BasicConsume(queue="q", exclusive=True))
    assert isinstance(refused, m.ChannelClose) and refused.reply_text == close.reply_text
    assert not cluster["a"].client_end("b").subscriptions


def test_an_exclusive_queue_belongs_to_a_connection_wherever_it_is(cluster: Cluster) -> None:
    client, other = cluster["a"].client(), cluster["b"].client()
    client.declare("q", exclusive=True)
    client.publish("q", b"x")
    reply = other.call(m.BasicGet(queue="q"))
    assert isinstance(reply, m.ChannelClose) and reply.reply_code == 405
    client.send(m.BasicGet(queue="q"))
    assert delivered(client) == [(b"x", False)]
    client.lose()
    assert not cluster["b"].metadata.queues


# -- The link is lost ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lose", [cut, cut_and_join])
def test_consumers_are_cancelled_and_messages_come_back(cluster: Cluster, lose: Any) -> None:
    client, other = client_with_queue(cluster), cluster["b"].client()
    client.consume("q")
    for at in range(3):
        client.publish("q", b"%d" % at)
    assert len(delivered(client)) == 3
    client.send(m.BasicAck(1))
    client.connection.output.set_writable(False)
    other.publish("q", b"3")
    cluster.hold("b", "a")
    other.publish("q", b"4")
    lose(cluster)
    client.connection.output.set_writable(True)
    client.connection.on_room()
    cluster.release("b", "a")
    assert client.methods() == [m.BasicCancel("c", True)]
    client.send(m.BasicAck(2), m.BasicNack(3))
    assert client.take() == [], "a late word is no error"
    assert depth(other) == (4, 0)
    other.send(*[m.BasicGet(queue="q")] * 4)
    assert delivered(other) == [(b"%d" % at, True) for at in range(1, 5)]
    assert cluster["b"].queue("q").unacked_count == 4
    client.send(m.BasicRecover(True))
    assert client.methods() == [m.BasicRecoverOk()]


@pytest.mark.parametrize(
    "method",
    [
        m.QueueDeclare(queue="q", durable=True),
        m.QueueDeclare(queue="q", passive=True),
        m.QueuePurge(queue="q"),
        m.BasicGet(queue="q"),
        m.BasicConsume(queue="q"),
        m.QueueDelete(queue="q", if_empty=True),
        m.QueueDelete(queue="q", if_unused=True),
    ],
    ids=lambda method: method.name,
)
@pytest.mark.parametrize("held", ["before", "to", "back"])
def test_questions_without_an_answer_fail(cluster: Cluster, method: m.Method, held: str) -> None:
    client = client_with_queue(cluster)
    client.publish("q", b"x")
    if held == "before":
        cut(cluster)
    elif held == "to":
        cluster.hold("a", "b")
    else:
        cluster.hold("b", "a")
    client.send(method)
    if held != "before":
        assert client.take() == []
        cut(cluster)
    (close,) = client.methods()
    assert isinstance(close, m.ChannelClose) and (close.reply_code, close.reply_text) == (404, DOWN)
    cluster.held.clear()
    cluster.join("a", "b")
    client.send(m.ChannelCloseOk(), m.ChannelOpen())
    client.take()
    assert depth(client) == (0 if held == "back" and isinstance(method, m.QueuePurge) else 1, 0)


def test_a_queue_whose_home_is_down_can_be_given_up(cluster: Cluster) -> None:
    client = client_with_queue(cluster)
    client.publish("q", b"x")
    cut(cluster)
    assert client.call(m.QueueDelete(queue="q")) == m.QueueDeleteOk(0)


def test_cancel_under_way_when_the_link_breaks(cluster: Cluster) -> None:
    client, other = client_with_queue(cluster), cluster["b"].client()
    client.consume("q")
    client.connection.output.set_writable(False)
    other.publish("q", b"1")
    cluster.hold("a", "b")
    client.send(m.BasicCancel("c"))
    cut_and_join(cluster)
    client.connection.output.set_writable(True)
    client.connection.on_room()
    cluster.release("a", "b")
    assert client.methods() == [m.BasicCancelOk("c")]
    assert depth(other) == (1, 0)
    assert cluster["b"].queue("q").unacked_count == 0


def test_another_session_begins_from_nothing(cluster: Cluster) -> None:
    client = client_with_queue(cluster)
    client.consume("q")
    client.publish("q", b"1")
    assert delivered(client) == [(b"1", False)]
    cut_and_join(cluster)
    assert client.methods() == [m.BasicCancel("c", True)]
    client.consume("q")
    assert delivered(client) == [(b"1", True)]
    client.send(m.BasicAck(1))  # Of before: not the one that is out now.
    assert depth(client) == (0, 1) and cluster["b"].queue("q").unacked_count == 1
    client.send(m.BasicAck(2))
    assert cluster["b"].queue("q").unacked_count == 0


def test_a_question_that_is_never_answered_ends_the_session(cluster: Cluster) -> None:
    client = client_with_queue(cluster)
    cluster.hold("b", "a")
    client.send(m.BasicGet(queue="q"))
    for _ in range(client_end.ASK_TICKS_MAX + 1):
        assert not cluster.bad
        cluster.tick()
    assert len(cluster.bad) == 1
    (close,) = client.methods()
    assert isinstance(close, m.ChannelClose) and close.reply_text == DOWN


def test_an_answer_that_makes_no_sense_ends_the_session_and_holds_nobody(cluster: Cluster) -> None:
    client = client_with_queue(cluster)
    for payload in (b"\0\0short", b"\0" * 3, b"\x00\x11no code of AMQP"):
        cluster.hold("a", "b")
        client.send(m.QueueDeclare(queue="q", passive=True))
        number = next(iter(cluster["a"].client_end("b").asks))
        cluster.send("b", "a", frame_types.ANSWER, [number.to_bytes(8, "big"), payload])
        cluster.bad.clear()
        cluster.run()
        assert len(cluster.bad) == 1
        cluster.release("a", "b")
        (close,) = client.methods()
        assert isinstance(close, m.ChannelClose) and close.reply_text == DOWN
        client.send(m.ChannelCloseOk(), m.ChannelOpen())
        client.take()


# -- Held ------------------------------------------------------------------------------------------------------------


def test_what_follows_a_delete_or_a_declare_waits_for_all_of_it(cluster: Cluster) -> None:
    """Both ask the home and change the metadata, one after the other."""
    client = client_with_queue(cluster)
    client.publish("q", b"x")
    client.send(
        m.QueueDelete(queue="q"),
        m.QueueDeclare(queue="q", durable=True, auto_delete=True),
        m.BasicQos(prefetch_count=1),
        m.QueueDeclare(queue="other"),
        m.QueuePurge(queue="other"),
    )
    answers = client.methods()
    assert [type(one) for one in answers] == [
        m.QueueDeleteOk, m.QueueDeclareOk, m.BasicQosOk, m.QueueDeclareOk, m.QueuePurgeOk,
    ]  # fmt: skip
    assert answers[1] == m.QueueDeclareOk("q", 0, 0)


def test_a_client_that_waits_for_an_answer_and_for_room_waits_for_both(cluster: Cluster) -> None:
    client = client_with_queue(cluster)
    cluster.hold("a", "b")
    returned = publish(1, "", "none", bytes(100_000), mandatory=True) * RETURNS
    client.feed(returned + m.encode(1, m.QueueDeclare(queue="q", passive=True)))
    client.feed(m.encode(1, m.BasicQos(prefetch_count=1)))
    assert client.connection.full
    cluster.run()
    assert types(client) == [m.BasicReturn] * RETURNS, "there is room now, and still no answer"
    cluster.release("a", "b")
    assert types(client) == [m.QueueDeclareOk, m.BasicQosOk]


def test_an_answer_is_there_and_still_no_room(cluster: Cluster) -> None:
    client = client_with_queue(cluster)
    client.connection.output.set_writable(False)
    client.feed(publish(1, "", "none", bytes(100_000), mandatory=True) * RETURNS)
    client.feed(m.encode(1, m.QueueDeclare(queue="q", passive=True)) + m.encode(1, m.BasicQos(prefetch_count=1)))
    cluster.run()
    assert types(client) == [m.BasicReturn] * RETURNS
    client.connection.output.set_writable(True)
    client.connection.on_room()
    cluster.run()
    assert types(client) == [m.QueueDeclareOk, m.BasicQosOk]


def test_a_consumer_that_ends_while_it_waits_for_its_queue_stays_ended() -> None:
    cluster = Cluster("a", "b")
    owner, client = cluster["a"].client(), cluster["b"].client()
    owner.declare("q")
    cluster.run()
    client.consume("q")
    remote = cluster["b"].broker.vhosts["/"].queues["q"]
    assert isinstance(remote, RemoteQueue)
    consumer = client.connection.channels[1].consumers["c"]
    remote.remove_consumer(consumer)
    remote.suspend()
    resubscribe(consumer, remote)  # As when another node has become master, and is not linked with this one yet.
    client.send(m.BasicCancel(consumer_tag="c"))
    cluster.run()
    assert client.methods() == [m.BasicCancelOk("c")]
    remote.resume()
    cluster.run()
    owner.publish("q", b"for somebody else")
    cluster.run()
    assert client.take() == []
    assert cluster["a"].queue("q").ready_count == 1
    cluster.finish()
