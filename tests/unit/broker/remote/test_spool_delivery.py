"""What is published at one of two nodes that has lost the other is delivered there, too: b is left alone."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.broker.remote.spool_delivery import PATIENCE_TICKS
from leveret.broker.remote.store_and_forward import Spool
from leveret.metadata.model import commands as c
from leveret.metadata.model.view import View
from leveret.protocol import methods as m
from leveret.protocol.tables import table_from_python
from tests.support.machines import Client
from tests.support.remote import confirming, delivered, depth
from tests.unit.broker.mirrors.test_detached import MARKED, Pair, consumer

NEW = (b"4", b"5", b"6")
FIRST = [(body, False) for body in NEW]
AGAIN = [(body, True) for body in NEW]


def spool_of(pair: Pair) -> Spool:
    return pair["b"].broker.spools.by_target[pair.number]


def publish(pair: Pair, *bodies: bytes, at: str = "b", **properties: Any) -> Client:
    """They are confirmed."""
    client = pair[at].client()
    confirming(client)
    for body in bodies:
        client.publish("q", body, delivery_mode=2, **properties)
    acks = [one for one in client.methods() if isinstance(one, m.BasicAck)]
    assert acks and acks[-1].delivery_tag == len(bodies)
    return client


def cut_pair(master: str = "a", *bodies: bytes, **arguments: Any) -> Pair:
    pair = Pair(master, **arguments)
    if bodies:
        pair.fill(*bodies)
    pair.cut()
    return pair


def pair_with(values: dict[str, Any]) -> Pair:
    """With such arguments of the queue."""
    arguments: dict[str, Any] = table_from_python(values)
    return Pair(**arguments)


def declare(pair: Pair, name: str) -> None:
    """A queue that only a has."""
    pair.apply(c.DeclareQueue("/", name, durable=True, node="a", view=View(1, 1, "a", ("a",), (("a", "a.0"),))))


def in_queue(pair: Pair) -> list[tuple[bytes, bool]]:
    assert not pair["b"].broker.spools.active and pair.is_forgotten()
    return delivered(consumer(pair, "a"))


@pytest.mark.parametrize("master", ["a", "b"])
def test_what_is_published_here_is_delivered_here_behind_what_the_copy_has(master: str) -> None:
    pair = cut_pair(master, b"1", b"2", b"3")
    client = consumer(pair, "b")
    publish(pair, *NEW)
    assert delivered(client) == [*MARKED, *FIRST]
    client.send(m.BasicAck(6, multiple=True))
    assert spool_of(pair).count == 0
    pair.heal()
    assert in_queue(pair) == []


@pytest.mark.parametrize("master", ["a", "b"])
def test_what_was_spooled_before_anybody_consumed_is_delivered_once(master: str) -> None:
    pair = cut_pair(master)
    publish(pair, *NEW)
    client = consumer(pair, "b", no_ack=True)
    assert delivered(client) == FIRST
    client.publish("q", b"7", delivery_mode=2)
    assert delivered(client) == [(b"7", False)]
    pair.heal()
    assert delivered(client) == [] == in_queue(pair)


def test_what_nobody_has_seen_comes_unmarked_when_the_other_node_is_back() -> None:
    pair = cut_pair()
    client = consumer(pair, "b", prefetch=1)
    publish(pair, *NEW)
    assert delivered(client) == FIRST[:1]
    client.send(m.BasicAck(1))
    assert delivered(client) == FIRST[1:2]
    client.send(m.BasicAck(2))
    assert delivered(client) == FIRST[2:]
    publish(pair, b"7")
    client.lose()
    pair.heal()
    assert in_queue(pair) == [(b"6", True), (b"7", False)]


def test_an_acknowledgement_counts_also_a_moment_after_the_heal() -> None:
    pair = cut_pair()
    client = consumer(pair, "b")
    publish(pair, *NEW)
    assert delivered(client) == FIRST
    client.send(m.BasicAck(1))
    pair.heal()
    other = consumer(pair, "a")
    assert delivered(other) == []  # They are waited for.
    client.send(m.BasicAck(3, multiple=True))
    assert delivered(other) == delivered(client) == [] and not pair["b"].broker.spools.active
    publish(pair, b"7")
    assert sorted(delivered(other) + delivered(client)) == [(b"7", False)]
    pair.pass_time(2)
    assert pair.is_forgotten()


def test_what_is_unacknowledged_for_long_comes_again_marked_and_in_order() -> None:
    pair = cut_pair()
    client = consumer(pair, "b")
    publish(pair, *NEW)
    assert delivered(client) == FIRST
    client.send(m.BasicAck(2))
    pair.heal()
    later = publish(pair, b"7")  # It waits behind them, and is confirmed all the same.
    other = consumer(pair, "a")
    pair.pass_time(PATIENCE_TICKS)
    found = delivered(other) + delivered(client)
    assert sorted(found) == [(b"4", True), (b"6", True), (b"7", False)]
    client.send(m.BasicAck(3, multiple=True))  # Too late, and without effect.
    later.lose()
    client.lose()
    other.lose()
    assert [body for body, _ in in_queue(pair)] == [b"4", b"6", b"7"]


def test_given_back_here_comes_again_here_marked() -> None:
    pair = cut_pair()
    client = consumer(pair, "b")
    publish(pair, *NEW)
    assert delivered(client) == FIRST
    client.send(m.BasicNack(2, requeue=True))
    assert delivered(client) == AGAIN[1:2]
    client.lose()
    other = consumer(pair, "b")
    assert delivered(other) == AGAIN
    other.send(m.BasicAck(3, multiple=True))
    pair.heal()
    assert in_queue(pair) == []


def test_a_consumer_that_dies_after_the_heal_gives_back_to_the_queue() -> None:
    pair = cut_pair()
    client = consumer(pair, "b")
    publish(pair, *NEW)
    pair.heal()
    client.lose()
    pair.run()
    pair.pass_time(1)
    assert in_queue(pair) == AGAIN


def test_several_consumers_and_prefetch() -> None:
    pair = cut_pair()
    first, second = consumer(pair, "b", prefetch=1), consumer(pair, "b", prefetch=1)
    publish(pair, *NEW)
    assert sorted(delivered(first) + delivered(second)) == FIRST[:2]
    first.send(m.BasicAck(1))
    assert delivered(first) == FIRST[2:]


def test_get_and_count() -> None:
    pair = cut_pair("a", b"1")
    client = publish(pair, *NEW)
    assert depth(client) == (4, 0)
    for expected in [(b"1", True), *FIRST]:
        client.send(m.BasicGet(queue="q", no_ack=True))
        assert delivered(client) == [expected]
    client.send(m.BasicGet(queue="q"))
    assert [type(one) for one in client.methods()] == [m.BasicGetEmpty]
    pair.heal()
    assert in_queue(pair) == []


def test_a_get_right_after_an_unconfirmed_publish_waits_for_the_disk() -> None:
    pair = cut_pair("a")
    client = pair["b"].client()
    client.send(m.BasicGet(queue="q"))
    assert [type(one) for one in client.methods()] == [m.BasicGetEmpty]
    client.publish("q", b"4", delivery_mode=2)
    client.send(m.BasicGet(queue="q"))
    assert delivered(client) == FIRST[:1]


def test_what_is_in_doubt_comes_marked_and_an_acknowledgement_ends_it_where_the_master_lacks_it() -> None:
    pair = Pair()
    pair.hold("b", "a")
    client = pair["b"].client()
    confirming(client)
    client.publish("q", b"4", delivery_mode=2)
    pair.held.clear()
    pair.cut()
    assert [type(one) for one in client.methods()] == [m.BasicAck]
    reader = consumer(pair, "b")
    publish(pair, b"5")
    assert delivered(reader) == [(b"4", True), (b"5", False)]
    reader.send(m.BasicAck(2, multiple=True))
    assert spool_of(pair).count == 1  # The master is told of the first.
    pair.heal()
    pair.pass_time(2)
    assert in_queue(pair) == [] and pair["a"].queue("q").unacked_count == 0


def test_what_is_in_doubt_and_has_arrived_comes_again_marked() -> None:
    pair = Pair()
    pair.hold("a", "b")  # The publish arrives; neither its block nor its confirm does.
    client = pair["b"].client()
    confirming(client)
    client.publish("q", b"4", delivery_mode=2)
    assert pair.ready() == 1
    pair.held.clear()
    pair.cut()
    assert [type(one) for one in client.methods()] == [m.BasicAck]
    here, there = consumer(pair, "b"), consumer(pair, "a")
    pair.pass_time(2)
    assert delivered(here) == delivered(there) == AGAIN[:1]
    here.send(m.BasicAck(1))
    there.lose()
    pair.heal()
    pair.pass_time(2)
    assert delivered(here) == AGAIN[:1] and in_queue(pair) == []


def test_what_is_in_doubt_and_in_the_copy_is_delivered_from_there_alone() -> None:
    pair = Pair()
    client = pair["b"].client()
    confirming(client)
    pair.hold("b", "a")
    client.publish("q", b"4", delivery_mode=2)
    pair.hold("a", "b")
    pair.release("b", "a")
    pair.hold("b", "a")
    pair.release("a", "b", 1)  # The block; not the confirm.
    pair.held.clear()
    pair.cut()
    assert [type(one) for one in client.methods()] == [m.BasicAck]
    here = consumer(pair, "b")
    assert delivered(here) == AGAIN[:1]
    here.send(m.BasicAck(1))
    pair.heal()
    pair.pass_time(2)
    assert in_queue(pair) == []


def test_the_master_of_before_delivers_what_it_could_not_confirm() -> None:
    pair = Pair("b")
    pair.hold("a", "b")
    client = pair["b"].client()
    confirming(client)
    client.publish("q", b"4", delivery_mode=2)
    assert client.methods() == []
    pair.held.clear()
    pair.cut()
    assert [type(one) for one in client.methods()] == [m.BasicAck]
    here = consumer(pair, "b")
    assert delivered(here) == AGAIN[:1]
    here.send(m.BasicAck(1))
    pair.heal()
    pair.pass_time(2)
    assert in_queue(pair) in ([], AGAIN[:1])


def test_a_rejected_message_becomes_a_dead_letter_when_the_other_node_is_back() -> None:
    pair = pair_with({"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    declare(pair, "dead")
    pair.cut()
    client = consumer(pair, "b")
    publish(pair, *NEW)
    client.send(m.BasicReject(2, requeue=False))
    client.send(m.BasicAck(3, multiple=True))
    assert spool_of(pair).count == 1
    pair.heal()
    assert in_queue(pair) == []
    reader = pair["a"].client()
    reader.consume("dead")
    assert delivered(reader) == [(b"5", False)]


def test_a_rejected_message_without_a_dead_letter_exchange_is_gone() -> None:
    pair = cut_pair()
    client = consumer(pair, "b")
    publish(pair, *NEW)
    client.send(m.BasicReject(2, requeue=False))
    assert spool_of(pair).count == 2
    client.send(m.BasicAck(3, multiple=True))
    pair.heal()
    assert in_queue(pair) == []


def test_an_expired_message_is_not_delivered_here() -> None:
    pair = cut_pair()
    publish(pair, b"4", expiration="1000")
    pair["b"].broker.wall_ms += 2_000
    client = consumer(pair, "b")
    publish(pair, b"5")
    assert delivered(client) == [(b"5", False)]
    client.send(m.BasicAck(1))
    assert spool_of(pair).count == 1
    pair.heal()
    assert [body for body, _ in delivered(client)] == [b"4"]  # Its time begins when it enters the queue.


def test_transient_messages_stay_transient() -> None:
    pair = cut_pair()
    client = consumer(pair, "b")
    publisher = pair["b"].client()
    publisher.publish("q", b"4", delivery_mode=1)
    assert delivered(client) == FIRST[:1]
    client.send(m.BasicNack(1, requeue=True))
    assert delivered(client) == AGAIN[:1]
    client.lose()
    pair.heal()
    assert in_queue(pair) == AGAIN[:1]


def test_a_priority_queue_passes_over_what_was_acknowledged() -> None:
    pair = pair_with({"x-max-priority": 9})
    pair.fill(b"1")
    pair.hold("b", "a")
    client = pair["b"].client()
    confirming(client)
    client.publish("q", b"4", delivery_mode=2, priority=5)
    pair.held.clear()
    pair.cut()
    reader = consumer(pair, "b")
    assert delivered(reader) == [(b"1", True), (b"4", True)]
    reader.send(m.BasicAck(2))
    reader.lose()
    pair.heal()
    pair.pass_time(2)
    assert in_queue(pair) == [(b"1", True)]


def test_a_second_cut_before_all_is_sent_on() -> None:
    pair = cut_pair()
    client = consumer(pair, "b")
    publish(pair, *NEW)
    assert delivered(client) == FIRST
    pair.heal()
    pair.pass_time(20)
    assert delivered(client) == AGAIN
    client.lose()
    pair.cut()
    again = consumer(pair, "b")
    publish(pair, b"7")
    assert delivered(again) == [*AGAIN, (b"7", False)]
    again.send(m.BasicAck(4, multiple=True))
    pair.heal()
    assert in_queue(pair) == []


def test_a_second_cut_while_clients_have_messages_in_hand() -> None:
    pair = cut_pair()
    client = consumer(pair, "b")
    publish(pair, *NEW)
    assert delivered(client) == FIRST
    pair.is_cut = False
    pair.join("a", "b")
    pair.run()
    pair.cut()
    other = consumer(pair, "b")
    publish(pair, b"7")
    found = delivered(client) + delivered(other)
    assert found in ([(b"7", False)], [(b"7", True)]) or sorted(body for body, _ in found) == [b"4", b"5", b"6", b"7"]
    client.send(m.BasicAck(3, multiple=True))
    client.lose()
    other.lose()
    pair.heal()
    pair.pass_time(PATIENCE_TICKS + 1)
    assert {body for body, _ in in_queue(pair)} <= {b"4", b"5", b"6", b"7"}


def test_the_queue_is_deleted_meanwhile() -> None:
    pair = cut_pair()
    client = consumer(pair, "b")
    publish(pair, *NEW)
    client.take()
    pair["a"].client().call(m.QueueDelete(queue="q"))
    pair.heal()
    assert pair.is_forgotten() and not pair["b"].broker.spools.by_target
    client.send(m.BasicAck(2, multiple=True), m.BasicNack(3, requeue=True))
    client.lose()
    assert pair["b"].broker.content_bytes == 0


def test_nothing_is_left_in_memory() -> None:
    pair = cut_pair()
    client = consumer(pair, "b")
    publish(pair, *NEW)
    client.send(m.BasicAck(1))
    pair.heal()
    client.send(m.BasicAck(3, multiple=True))
    pair.finish()


def test_only_so_much_is_lent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leveret.broker.remote.spool_delivery.LENT_BYTES_MAX", 10)
    pair = cut_pair()
    client = consumer(pair, "b")
    for body in NEW:
        publish(pair, body)
    assert delivered(client) == FIRST[:1]
    client.send(m.BasicAck(1))
    assert delivered(client) == FIRST[1:2]
    client.send(m.BasicAck(2))
    assert delivered(client) == FIRST[2:]


def test_a_queue_without_a_copy_here_waits() -> None:
    pair = Pair()
    declare(pair, "p")
    pair.cut()
    client = pair["b"].client()
    confirming(client)
    client.publish("p", b"4", delivery_mode=2)
    assert [type(one) for one in client.methods()] == [m.BasicAck]
    client.send(m.BasicConsume(queue="p"))
    assert delivered(client) == []
    pair.heal()
    assert delivered(client) == FIRST[:1]
