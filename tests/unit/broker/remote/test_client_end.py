"""What becomes of publishes and questions for a queue of another node when the link to it is lost."""

from __future__ import annotations

from leveret.broker.broker import MASTERLESS_TICKS_MAX
from leveret.broker.delivery.batch import Span
from leveret.metadata.model import commands as c
from leveret.protocol import methods as m
from tests.support.brokers import Cluster
from tests.support.machines import Client, publish
from tests.support.mirrored_brokers import Rings


def publisher(cluster: Cluster, at: str) -> Client:
    client = cluster[at].client()
    client.call(m.ConfirmSelect())
    return client


def said(client: Client) -> list[m.Method | None]:
    client.flush()
    return client.methods()


def test_what_was_still_to_be_sent_waits_for_the_next_master() -> None:
    rings = Rings()
    client, other, silent = publisher(rings, "c"), publisher(rings, "c"), rings["c"].client()
    for one, body in ((client, b"1"), (other, b"2"), (client, b"3"), (silent, b"4")):
        one.feed(publish(1, "", "q", body, delivery_mode=2))
    rings.lose("a")
    rings.pass_time(20)
    assert said(client) == [m.BasicAck(2, True)] and said(other) == [m.BasicAck(1, False)]
    queue = rings[rings.master].queue("q")
    spans = [entry for entry in queue.ready if isinstance(entry, Span)]
    bodies = [content[-2:-1] for span in spans for content in span.batch.contents[span.lo : span.hi]]
    assert rings.master in ("b", "c") and bodies == [b"1", b"2", b"3", b"4"]


def test_what_was_sent_is_sent_again_to_the_next_master() -> None:
    rings = Rings()
    client = publisher(rings, "c")
    rings.hold("c", "a")
    client.publish("q", b"1", delivery_mode=2)
    client.feed(publish(1, "", "q", b"2", delivery_mode=2))
    rings.lose("a")
    rings.pass_time(20)
    answers = said(client)
    assert all(isinstance(one, m.BasicAck) for one in answers)
    assert answers and isinstance(answers[-1], m.BasicAck) and answers[-1].delivery_tag == 2
    assert rings[rings.master].queue("q").ready_count == 2


def test_where_nobody_else_will_lead_it_is_refused() -> None:
    cluster = Cluster("a", "b")
    cluster.apply(c.DeclareQueue("/", "q", durable=True, node="a"))
    client = publisher(cluster, "b")
    client.feed(publish(1, "", "q", b"1", delivery_mode=2))
    cluster.close("a", "b")
    cluster.run()
    assert said(client) == [m.BasicNack(1, False, False)]


def test_a_queue_that_was_given_up_and_came_back_is_waited_for_again() -> None:
    rings = Rings()
    consumer, publishing = rings["c"].client(), publisher(rings, "c")
    rings.close("a", "c")
    consumer.send(m.BasicConsume(queue="q", consumer_tag="given up"))
    for _ in range(MASTERLESS_TICKS_MAX + 1):
        rings["c"].broker.tick_links()
    rings.run()
    (refused,) = said(consumer)
    assert isinstance(refused, m.ChannelClose) and refused.reply_code == 404
    rings.join("a", "c")
    rings.hold("c", "a")
    consumer.send(m.ChannelCloseOk())
    consumer.call(m.ChannelOpen())
    consumer.send(m.BasicConsume(queue="q", consumer_tag="waiting"))
    rings.lose("a")
    publishing.publish("q", b"1", delivery_mode=2)
    rings.pass_time(20)
    answer, delivery, *_ = said(consumer)
    assert answer == m.BasicConsumeOk("waiting") and isinstance(delivery, m.BasicDeliver)
    assert said(publishing) == [m.BasicAck(1, False)]
    assert not consumer.connection.waits  # Answered once.
