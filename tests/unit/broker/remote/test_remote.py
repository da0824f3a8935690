"""A client at one node, its queues at another: what no single node can show.

That the answers are those of a single node is shown by `test_remote_conversations`. Here links are slow or full, and
nodes learn of the metadata one after the other. How things end is in `test_remote_endings`.
"""

from __future__ import annotations

from leveret.broker.queue.ordered_queue import CROWDED_AT
from leveret.broker.remote.client_end import FEED_BYTES_MAX, FIRST_CREDIT
from leveret.links import frame_types
from leveret.metadata.model import commands as c
from leveret.protocol import methods as m
from leveret.protocol.origins import NAME
from leveret.protocol.tables import table_from_python
from tests.support.brokers import Cluster
from tests.support.machines import publish
from tests.support.remote import client_with_queue, confirming, cut, cut_and_join, delivered, depth, remote_queue

# -- Order ---------------------------------------------------------------------------------------------------------


def test_a_question_comes_after_what_was_published_and_settled_before_it(cluster: Cluster) -> None:
    client = client_with_queue(cluster)
    client.feed(publish(1, "", "q", b"1") + publish(1, "", "q", b"2") + m.encode(1, m.BasicGet(queue="q")))
    client.send(m.BasicReject(1, True), m.QueueDeclare(queue="q", passive=True))
    got, count = client.take()
    assert isinstance(got.method, m.BasicGetOk) and got.method.message_count == 1
    assert isinstance(count.method, m.QueueDeclareOk) and count.method.message_count == 2


def test_publishes_gather_in_one_frame_and_acks_too(cluster: Cluster) -> None:
    client = client_with_queue(cluster)
    client.consume("q")
    cluster.frames.clear()
    client.feed(b"".join(publish(1, "", "q", b"%d" % at) for at in range(100)))
    cluster.run()
    assert len(delivered(client)) == 100
    client.feed(b"".join(m.encode(1, m.BasicAck(tag)) for tag in range(1, 101)))
    cluster.run()
    kinds = [kind for _, _, kind, _ in cluster.frames]
    assert kinds.count(frame_types.PUBLISH) == kinds.count(frame_types.DELIVER) == kinds.count(frame_types.SETTLE) == 1
    assert cluster["b"].queue("q").unacked_count == 0


def test_messages_of_both_kinds_keep_their_order(cluster: Cluster) -> None:
    client = client_with_queue(cluster)
    for at in range(12):
        client.feed(publish(1 + at % 2, "", "q", b"%d" % at, delivery_mode=1 + at // 3 % 2))
    cluster.run()
    client.consume("q")
    assert [body for body, _ in delivered(client)] == [b"%d" % at for at in range(12)]


def test_what_the_home_has_not_heard_of_waits(cluster: Cluster) -> None:
    first, second = cluster["a"].client(), cluster["a"].client()
    confirming(second)
    cluster.behind = {"b"}
    first.send(m.QueueDeclare(queue="q", durable=True))
    assert first.take() == [], "not everybody knows of it"
    second.publish("q", b"early", delivery_mode=2)
    second.send(m.BasicGet(queue="q"), m.BasicAck(1))
    assert second.take() == []
    assert len(cluster["b"].broker.owner_ends["a"].early) == 2
    cluster.behind.clear()
    cluster.run()
    assert isinstance(first.methods()[-1], m.QueueDeclareOk)
    confirmed, got = sorted(second.take(), key=lambda reply: type(reply.method).__name__)
    assert isinstance(confirmed.method, m.BasicAck) and got.body == b"early"


def test_what_comes_after_something_that_waits_waits_too(cluster: Cluster) -> None:
    client, other = client_with_queue(cluster), cluster["a"].client()
    client.publish("q", b"old")
    client.consume("q")
    assert delivered(client) == [(b"old", False)]
    cluster.behind = {"b"}
    other.send(m.QueueDeclare(queue="new"))
    client.publish("new", b"x")
    client.send(m.BasicAck(1))
    assert cluster["b"].queue("q").unacked_count == 1
    cluster.behind.clear()
    cluster.run()
    assert cluster["b"].queue("q").unacked_count == 0
    assert cluster["b"].queue("new").ready_count == 1
    client.take()
    other.take()


def test_a_bad_frame_that_waited_ends_the_session_and_nothing_else(cluster: Cluster) -> None:
    client = client_with_queue(cluster)
    cluster.behind = {"b"}
    index = cluster["b"].metadata.index + 1
    cluster.send("a", "b", frame_types.PUBLISH, [index.to_bytes(8, "big"), b"nonsense"])
    cluster.run()
    cluster.behind.clear()
    cluster.apply(c.SetGlobalParameter("x", 1))
    assert len(cluster.bad) == 1
    assert depth(client) == (0, 0)


# -- Confirms ------------------------------------------------------------------------------------------------------


def test_a_persistent_message_is_confirmed_when_its_home_has_it_on_disk(cluster: Cluster) -> None:
    client = client_with_queue(cluster)
    confirming(client)
    cluster["b"].holds_disk = True
    client.publish("q", b"1", delivery_mode=2)
    client.publish("q", b"2", delivery_mode=1)
    assert client.methods() == [m.BasicAck(2, False)]
    cluster["b"].sync()
    cluster.run()
    assert client.methods() == [m.BasicAck(1, False)]


def test_a_message_for_queues_of_three_nodes_is_confirmed_by_the_last_of_them() -> None:
    cluster = Cluster("a", "b", "c")
    client = cluster["a"].client()
    for name in "abc":
        cluster.home = name
        client.declare(f"q{name}", durable=True)
        client.call(m.QueueBind(queue=f"q{name}", exchange="amq.fanout"))
    confirming(client)
    for member in cluster.members.values():
        member.holds_disk = True
    client.publish("", b"x", exchange="amq.fanout", delivery_mode=2)
    for name in "bac":
        assert client.take() == []
        cluster[name].sync()
        cluster.run()
    assert client.methods() == [m.BasicAck(1, False)]
    cluster["b"].holds_disk = False
    client.publish("", b"y", exchange="amq.fanout", delivery_mode=2)
    cluster.close("a", "c")
    cluster["a"].sync()
    cluster.run()
    assert client.methods() == []
    cluster.wait_in_vain()
    assert client.methods() == [m.BasicNack(2, False, False)]
    client.publish("", b"z", exchange="amq.fanout", delivery_mode=1)
    assert client.methods() == [m.BasicNack(3, False, False)], "one of its queues is out of reach"
    assert [cluster[name].queue(f"q{name}").ready_count for name in "abc"] == [3, 3, 2]
    cluster.join("a", "c")
    for member in cluster.members.values():
        member.holds_disk = False
    cluster.finish()


def test_publishes_under_way_are_refused_when_the_link_is_broken_for_long(cluster: Cluster) -> None:
    client = client_with_queue(cluster)
    confirming(client)
    cluster.hold("a", "b")
    client.publish("q", b"1", delivery_mode=2)
    client.publish("q", b"2")
    assert client.take() == []
    cut(cluster)
    assert client.methods() == [], "the link may be back in a moment"
    cluster.wait_in_vain()
    assert client.methods() == [m.BasicNack(2, True, False)]
    client.publish("q", b"3")
    assert client.methods() == [m.BasicNack(3, False, False)]
    cluster.held.clear()
    cluster.join("a", "b")
    cluster.run()
    assert cluster["b"].queue("q").ready_count == 0, "what was refused is not sent"


def test_publishes_that_gathered_and_were_not_sent_are_refused_too(cluster: Cluster) -> None:
    client = client_with_queue(cluster)
    confirming(client)
    client.feed(publish(1, "", "q", b"1"))
    cut(cluster)
    assert client.methods() == [m.BasicNack(1, False, False)]


def test_what_an_earlier_session_had_safe_confirms_nothing_of_this_one(cluster: Cluster) -> None:
    client = client_with_queue(cluster)
    confirming(client)
    cluster["b"].holds_disk = True
    client.publish("q", b"1", delivery_mode=2)
    cut_and_join(cluster)
    assert client.methods() == []
    cluster.hold("a", "b")
    client.publish("q", b"2", delivery_mode=2)
    cluster["b"].sync()
    cluster["b"].sync()
    cluster.run()
    assert client.methods() == [m.BasicAck(1, False)], "the second has not even arrived"
    cluster.release("a", "b")
    cluster["b"].sync()
    cluster.run()
    assert client.methods() == [m.BasicAck(2, False)]
    assert cluster["b"].queue("q").ready_count == 2


def test_a_queue_deleted_under_a_publish_counts_as_done(cluster: Cluster) -> None:
    client, other = client_with_queue(cluster), cluster["b"].client()
    confirming(client)
    cluster["b"].holds_disk = True
    client.publish("q", b"1", delivery_mode=2)
    cluster.hold("a", "b")
    client.publish("q", b"2", delivery_mode=2)
    other.send(m.QueueDelete(queue="q"))
    cluster.release("a", "b")
    assert client.methods() == [m.BasicAck(2, False)]
    cluster["b"].sync()
    cluster.run()
    assert client.methods() == [m.BasicAck(1, False)]


# -- Frames within bounds ------------------------------------------------------------------------------------------


def test_a_fanout_to_many_queues_of_a_node_fits_into_frames(cluster: Cluster) -> None:
    client = cluster["a"].client()
    confirming(client)
    for number in range(40):
        client.declare(f"q{number}")
        client.call(m.QueueBind(queue=f"q{number}", exchange="amq.fanout"))
    client.publish("", bytes(1 << 20), exchange="amq.fanout")
    assert client.methods() == [m.BasicAck(1, False)]
    assert all(cluster["b"].queue(f"q{number}").ready_count == 1 for number in range(40))


def test_a_large_message_goes_there_and_back(cluster: Cluster) -> None:
    client = client_with_queue(cluster)
    body = bytes(9 << 20)
    client.feed(publish(1, "", "q", body) * 2)
    cluster.run()
    client.send(m.BasicGet(queue="q", no_ack=True))
    assert client.take()[0].body == body
    client.consume("q")
    assert delivered(client) == [(body, False)]


# -- Flow ----------------------------------------------------------------------------------------------------------


def test_publishers_wait_when_the_credit_is_used_up(cluster: Cluster) -> None:
    client = client_with_queue(cluster)
    queue, connection = remote_queue(cluster), client.connection
    cluster["b"].crowded = True  # Too much waits for the disk there.
    size = FIRST_CREDIT // 8
    for _ in range(7):
        client.publish("q", bytes(size))
        assert connection.crowded_queue is None and not queue.is_crowded()
    client.publish("q", bytes(size))
    client.publish("q", bytes(size))
    assert connection.crowded_queue is queue and queue.is_crowded()
    assert list(cluster["b"].broker.waiting_links) == [cluster["b"].broker.owner_ends["a"]]
    cluster["b"].crowded = False
    cluster.run()
    assert not queue.is_crowded() and not cluster["b"].broker.waiting_links
    for _ in range(100):
        connection.crowded_queue = None
        client.publish("q", bytes(size))
        assert connection.crowded_queue is None
    assert depth(client) == (109, 0)


def test_publishers_wait_when_the_link_takes_no_more(cluster: Cluster) -> None:
    client = client_with_queue(cluster)
    cluster.deaf.add(("a", "b"))
    client.publish("q")
    assert client.connection.crowded_queue is remote_queue(cluster)
    cluster.drain("a", "b")
    assert not remote_queue(cluster).is_crowded()


def test_nobody_waits_for_a_home_that_is_gone(cluster: Cluster) -> None:
    client = client_with_queue(cluster)
    cluster["b"].crowded = True
    client.feed(publish(1, "", "q", bytes(FIRST_CREDIT)))
    cluster.run()
    assert remote_queue(cluster).is_crowded()
    cut(cluster)
    assert not remote_queue(cluster).is_crowded() and not cluster["b"].broker.waiting_links


def test_publishers_are_slowed_down_while_the_queue_grows_though_consumers_work(cluster: Cluster) -> None:
    client, consumer = client_with_queue(cluster), cluster["b"].client()
    consumer.call(m.BasicQos(prefetch_count=1))
    consumer.consume("q")
    while not remote_queue(cluster).is_crowded():
        client.feed(b"".join(publish(1, "", "q", bytes(500)) for _ in range(200)))
        cluster.run()
        assert cluster["b"].queue("q").ready_count < 2 * CROWDED_AT
    home = cluster["b"].broker.owner_ends["a"]
    assert remote_queue(cluster).is_crowded() and home in cluster["b"].broker.waiting_links
    home.on_paced()  # They had their time.
    cluster.run()
    assert not remote_queue(cluster).is_crowded()


def test_a_client_that_does_not_read_holds_no_more_than_a_window(cluster: Cluster) -> None:
    client, publisher = client_with_queue(cluster), cluster["b"].client()
    client.consume("q", no_ack=True)
    client.connection.output.set_writable(False)
    for _ in range(300):
        publisher.publish("q", bytes(10_000))
    (consumer,) = cluster["b"].queue("q").consumers
    (subscription,) = cluster["a"].client_end("b").subscriptions.values()
    waiting = sum(len(content) for span in subscription.feed for content in span.batch.contents)
    assert 0 < waiting <= FEED_BYTES_MAX
    assert cluster["b"].queue("q").ready_count > 250
    client.connection.output.set_writable(True)
    client.connection.on_room()
    cluster.run()
    assert len(delivered(client)) == 300
    assert consumer.sent_bytes == consumer.taken_bytes  # type: ignore[attr-defined]


def test_a_link_that_takes_no_more_stops_deliveries_for_a_while(cluster: Cluster) -> None:
    client, publisher = client_with_queue(cluster), cluster["b"].client()
    client.consume("q")
    cluster.deaf.add(("b", "a"))
    publisher.publish("q", b"1")
    assert client.take() == []
    cluster.drain("b", "a")
    assert delivered(client) == [(b"1", False)]


def test_a_message_larger_than_the_window_is_delivered_alone(cluster: Cluster) -> None:
    client, publisher = client_with_queue(cluster), cluster["b"].client()
    for _ in range(3):
        publisher.publish("q", bytes(2 * FEED_BYTES_MAX))
    client.consume("q")
    assert len(delivered(client)) == 3


def test_delivered_contents_are_not_kept_until_they_are_acknowledged(cluster: Cluster) -> None:
    client = client_with_queue(cluster)
    client.consume("q")
    client.feed(b"".join(publish(1, "", "q", b"x") for _ in range(10)))
    cluster.run()
    client.publish("q", b"y")
    client.send(m.BasicCancel("c"))
    client.publish("q", b"z")
    client.send(m.BasicGet(queue="q"))
    (channel,) = (one for one in client.connection.channels.values() if one.number == 1)
    assert channel.session.unacked.count == 12
    assert [one.batch.contents for one in channel.session.unacked if one.batch.contents] == []
    client.send(m.BasicNack(0, True, True))
    client.take()
    assert depth(client) == (12, 0)


# -- Prefetch ------------------------------------------------------------------------------------------------------


def test_a_consumer_that_wants_origins_waits_until_the_home_has_noted_its_first_run(cluster: Cluster) -> None:
    client = client_with_queue(cluster)
    client.publish("q", b"1", delivery_mode=2)
    cluster["b"].holds_disk = True
    client.consume("q", arguments=table_from_python({NAME: True}))
    assert delivered(client) == []
    cluster["b"].holds_disk = False
    cluster.run()
    assert delivered(client) == [(b"1", False)]


def test_prefetch_of_each_consumer(cluster: Cluster) -> None:
    client = client_with_queue(cluster)
    client.call(m.BasicQos(prefetch_count=2))
    client.consume("q", "one")
    client.call(m.BasicQos(prefetch_count=3))
    client.consume("q", "two")
    for at in range(10):
        client.publish("q", b"%d" % at)
    assert [body for body, _ in delivered(client)] == [b"0", b"1", b"2", b"3", b"4"]
    assert depth(client) == (5, 2)
    client.send(m.BasicAck(1), m.BasicAck(5))
    assert [body for body, _ in delivered(client)] == [b"5", b"6"]


def test_prefetch_of_a_channel_changed_while_it_consumes(cluster: Cluster) -> None:
    client = client_with_queue(cluster)
    client.call(m.BasicQos(prefetch_count=2, global_=True))
    client.consume("q")
    for at in range(10):
        client.publish("q", b"%d" % at)
    assert [body for body, _ in delivered(client)] == [b"0", b"1"]
    client.send(m.BasicQos(prefetch_count=4, global_=True))
    assert [body for body, _ in delivered(client)] == [b"2", b"3"]
    client.send(m.BasicQos(prefetch_count=1, global_=True), m.BasicAck(2, True))
    assert delivered(client) == []
    client.send(m.BasicAck(4, True))
    assert [body for body, _ in delivered(client)] == [b"4"]
    client.send(m.BasicQos(prefetch_count=0, global_=True))
    assert [body for body, _ in delivered(client)] == [b"5", b"6", b"7", b"8", b"9"]


def test_a_prefetch_shared_by_consumers_is_honoured_and_lets_others_have_the_rest(cluster: Cluster) -> None:
    client, other = client_with_queue(cluster), cluster["b"].client()
    client.call(m.BasicQos(prefetch_count=2, global_=True))
    client.consume("q", "one")
    client.consume("q", "two")
    for at in range(5):
        client.publish("q", b"%d" % at)
    assert [body for body, _ in delivered(client)] == [b"0", b"1"]
    other.send(m.BasicConsume(queue="q", consumer_tag="c"))
    cluster.tick()
    cluster.tick()
    got = [body for body, _ in delivered(other)]
    client.send(m.BasicAck(2, True))
    got += [body for body, _ in delivered(client)]
    client.send(m.BasicAck(4, True))
    got += [body for body, _ in delivered(client)]
    assert sorted(got) == [b"2", b"3", b"4"]
