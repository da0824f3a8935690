"""Consumers with priorities, single active ones, and links among others."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.broker.delivery.offsets import ORIGINS, Start
from leveret.broker.queue import ordered_queue
from leveret.broker.queue.queue import Queue
from leveret.metadata.rules.queue_rules import QueueRules
from leveret.protocol import methods as m
from leveret.protocol.origins import NAME
from leveret.protocol.tables import table_from_python
from tests.support.machines import Client, World
from tests.support.mirrored_brokers import Rings
from tests.unit.broker.kinds import priority_queues
from tests.unit.broker.queue.test_queue import Host, Taker, a_queue, put


@pytest.fixture
def world() -> World:
    return World()


def consume(client: Client, tag: str, **arguments: Any) -> None:
    client.consume("q", tag, arguments=table_from_python({f"x-{key}": value for key, value in arguments.items()}))


def tags(client: Client) -> list[str]:
    return [reply.method.consumer_tag for reply in client.take() if isinstance(reply.method, m.BasicDeliver)]


def prefetching(world: World, count: int) -> Client:
    client = world.client()
    client.call(m.BasicQos(prefetch_count=count))
    return client


def test_the_highest_gets_all_until_it_is_full(world: World) -> None:
    client = prefetching(world, 2)
    client.declare("q")
    consume(client, "low", priority=-1)
    consume(client, "high", priority=10)
    consume(client, "usual")
    for _ in range(6):
        client.publish("q")
    assert tags(client) == ["high", "high", "usual", "usual", "low", "low"]
    client.send(m.BasicAck(delivery_tag=1))
    client.publish("q")
    assert tags(client) == ["high"]


def test_equals_take_turns(world: World) -> None:
    client = prefetching(world, 10)
    client.declare("q")
    for tag in ("a", "b"):
        consume(client, tag, priority=5)
    consume(client, "idle")
    for _ in range(4):
        client.publish("q")
    assert tags(client) == ["a", "b", "a", "b"]


def test_one_is_active_until_it_goes(world: World) -> None:
    client = prefetching(world, 10)
    client.declare("q", arguments=table_from_python({"x-single-active-consumer": True}))
    consume(client, "first")
    consume(client, "second")
    consume(client, "urgent", priority=9)
    for _ in range(3):
        client.publish("q")
    assert tags(client) == ["first"] * 3
    client.send(m.BasicCancel(consumer_tag="first"))
    client.publish("q")
    assert tags(client) == ["urgent"]
    client.send(m.BasicCancel(consumer_tag="urgent"))
    client.publish("q")
    assert tags(client) == ["second"]


def test_the_active_one_does_not_share_even_when_it_is_full(world: World) -> None:
    client = prefetching(world, 1)
    client.declare("q", arguments=table_from_python({"x-single-active-consumer": True}))
    consume(client, "first")
    consume(client, "second")
    for _ in range(3):
        client.publish("q")
    assert tags(client) == ["first"]


def test_nobody_is_exclusive_where_one_is_active(world: World) -> None:
    client = world.client()
    client.declare("q", arguments=table_from_python({"x-single-active-consumer": True}))
    answer = client.call(m.BasicConsume(queue="q", exclusive=True))
    assert isinstance(answer, m.ChannelClose) and answer.reply_code == 403


# -- A link among other consumers ----------------------------------------------------------------------------------


def a_link(tag: str = "link", room: int = 1 << 30, priority: int = 0) -> Taker:
    link = Taker(tag, room)
    link.begins_at, link.priority = Start(ORIGINS), priority
    return link


def shared_queue(*takers: Taker, single_active: bool = False) -> tuple[Host, Queue]:
    host = Host()
    host.rules = QueueRules(single_active=single_active)
    queue = a_queue(host)
    queue.set_rules(host.rules)
    for taker in takers:
        queue.add_consumer(taker)
    return host, queue


def until_safe(host: Host, queue: Queue) -> None:
    """The block is in the log, and the queue goes on if that has woken it."""
    host.dirty.clear()
    host.flush(queue)
    if queue in host.dirty:
        queue.pump()


@pytest.mark.parametrize("priorities", [(0, 0), (-1, 0), (0, -1), (5, 5)])
@pytest.mark.parametrize("is_link_first", [True, False])
def test_a_link_gets_only_what_is_safe_and_others_do_not_wait(priorities: tuple[int, int], is_link_first: bool) -> None:
    link, other = a_link(priority=priorities[0]), Taker("other", room=2)
    other.priority = priorities[1]
    host, queue = shared_queue(*([link, other] if is_link_first else [other, link]))
    put(queue, b"1", b"2", b"3", b"4")
    queue.pump()
    assert (other.bodies, link.bodies) == ([b"1", b"2"], [])
    until_safe(host, queue)
    assert (other.bodies, link.bodies) == ([b"1", b"2"], [b"3", b"4"])


@pytest.mark.parametrize("priority", [0, 5])
def test_several_links_wait_among_others(priority: int) -> None:
    """Of the same priority as one of the others, and of another one than the rest."""
    links, others = [a_link("a", 1, priority), a_link("b", 1, priority)], [Taker("c", 1), Taker("d", 1)]
    others[0].priority = priority
    host, queue = shared_queue(*links, *others)
    put(queue, b"1", b"2", b"3", b"4")
    queue.pump()
    assert [taker.bodies for taker in links + others] == [[], [], [b"1"], [b"2"]]
    until_safe(host, queue)
    assert [taker.bodies for taker in links] == [[b"3"], [b"4"]]


def test_a_link_does_not_wait_for_what_is_never_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transient messages, some of which are in the log because memory was short; one was with a consumer then."""
    monkeypatch.setattr(ordered_queue, "KEEP_BYTES", 0)
    link, other = a_link(), Taker("other", room=1)
    host, queue = shared_queue(other)
    put(queue, b"1", b"2", b"3", kind=0)
    queue.pump()
    host.content_bytes_max = host.spill_bytes_max = 0
    queue.page_out()
    host.content_bytes_max = host.spill_bytes_max = 1 << 40
    queue.requeue_many([(other.got[0][0], 0, 1)])
    queue.remove_consumer(other)
    host.flush(queue)
    queue.add_consumer(link)
    queue.pump()
    assert link.bodies == [b"1"]
    host.finish_load(10)
    queue.pump()
    assert link.bodies == [b"1", b"2", b"3"]


def test_what_is_safe_is_shared_with_a_link_in_turn() -> None:
    link, other = a_link(), Taker("other")
    host, queue = shared_queue()
    put(queue, b"1", b"2", b"3", b"4")
    host.flush(queue)
    queue.add_consumer(link)
    queue.add_consumer(other)
    queue.pump()
    assert (link.bodies, other.bodies) == ([b"1", b"3"], [b"2", b"4"])


def test_nobody_stands_in_for_a_link_that_is_the_active_consumer() -> None:
    link, other = a_link(), Taker("other")
    host, queue = shared_queue(link, other, single_active=True)
    put(queue, b"1", b"2")
    queue.pump()
    assert (link.bodies, other.bodies) == ([], [])
    until_safe(host, queue)
    assert (link.bodies, other.bodies) == ([b"1", b"2"], [])


def test_a_link_waits_for_the_first_of_a_queue_with_priorities() -> None:
    host = priority_queues.Host()
    queue, link, other = priority_queues.a_queue(host), a_link(), Taker("other", room=1)
    queue.add_consumer(link)
    queue.add_consumer(other)
    priority_queues.put(queue, priority_queues.content(b"1", 1), priority_queues.content(b"2", 5))
    queue.pump()
    assert (len(link.got), len(other.got)) == (0, 1)
    host.dirty.clear()
    host.flush(queue)
    assert queue in host.dirty
    queue.pump()
    assert (len(link.got), len(other.got)) == (1, 1)


@pytest.mark.parametrize("at", ["a", "c"])
def test_a_link_waits_until_the_mirrors_of_a_queue_have_it(at: str) -> None:
    """At its master, and at another node."""
    rings = Rings()
    client = rings[at].client()
    client.call(m.BasicQos(prefetch_count=1))
    client.consume("q", "link", arguments=table_from_python({NAME: True}))
    client.consume("q", "other")
    rings.lose("b")
    for _ in range(2):
        client.publish("q", delivery_mode=2)
    assert tags(client) == ["other"]
    rings.mend()
    rings.pass_time()
    assert tags(client) == ["link"]


def test_a_queue_whose_link_has_left_shares_out_as_before() -> None:
    link, others = a_link(), [Taker("a"), Taker("b")]
    _, queue = shared_queue(link, *others)
    assert queue.consumer_order is not None
    queue.remove_consumer(link)
    assert queue.consumer_order is None
    put(queue, b"1", b"2", b"3", b"4")
    queue.pump()
    assert [taker.bodies for taker in others] == [[b"1", b"3"], [b"2", b"4"]]
