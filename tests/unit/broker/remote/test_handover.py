"""A planned hand-over of a mirrored queue's master, while it is used: see `leveret.broker.remote.handover`."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.base.range_set import RangeSet
from leveret.broker.delivery.batch import Gap, Span
from leveret.broker.delivery.reserve import reserve
from leveret.broker.queue.delivery_claims import DeliveryClaims
from leveret.broker.queue.queue import Queue
from leveret.metadata.model import commands as c
from leveret.metadata.model.refusals import Refusal
from leveret.protocol import methods as m
from leveret.protocol.tables import table_from_python
from tests.support.machines import Client, World
from tests.support.mirrored_brokers import NAMES, Rings
from tests.support.remote import confirming, delivered, depth, types

PERSISTENT: dict[str, Any] = {"delivery_mode": 2}


@pytest.fixture
def rings() -> Any:
    rings = Rings()
    yield rings
    rings.mend()
    rings.finish()
    assert all(member.broker.still_out == 0 for member in rings.members.values())
    assert not any(home.inherited for member in rings.members.values() for home in member.broker.owner_ends.values())


def fill(rings: Rings, *bodies: bytes, at: str = "a") -> Client:
    client = rings[at].client()
    for body in bodies:
        client.publish("q", body, **PERSISTENT)
    return client


def get(client: Client, no_ack: bool = True) -> list[tuple[bytes, bool]]:
    client.send(m.BasicGet(queue="q", no_ack=no_ack))
    return delivered(client)


def rest(rings: Rings, at: str = "c") -> list[bytes]:
    """All that waits, which is taken."""
    client = rings[at].client()
    found: list[bytes] = []
    while got := get(client):
        found += [body for body, _ in got]
    return found


# -- Questions in the middle of it -------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", NAMES)
@pytest.mark.parametrize("at", NAMES)
def test_a_get_is_answered_by_the_new_master(rings: Rings, at: str, first: str) -> None:
    fill(rings, b"1", b"2")
    client = rings[at].client()
    rings.begin()
    client.send(m.BasicGet(queue="q"))
    assert not client.take()
    rings.end(first)
    assert delivered(client) == [(b"1", False)]
    client.send(m.BasicAck(1))
    assert rings["b"].queue("q").unacked_count == 0
    assert rest(rings) == [b"2"]


@pytest.mark.parametrize("at", ["b", "c"])
def test_what_is_got_does_not_depend_on_the_former_master(rings: Rings, at: str) -> None:
    """It may be about to stop: then the acknowledgement must find another way."""
    fill(rings, b"1", b"2")
    client = rings[at].client()
    rings.begin()
    client.send(m.BasicGet(queue="q"))
    rings.end()
    rings.lose("a")
    assert delivered(client) == [(b"1", False)]
    client.send(m.BasicAck(1))
    rings.pass_time()  # In which it is found out that nobody should wait for the one that is gone.
    assert rest(rings) == [b"2"]


@pytest.mark.parametrize("at", NAMES)
def test_purge_declare_consume(rings: Rings, at: str) -> None:
    fill(rings, b"1", b"2", b"3")
    clients = [rings[at].client() for _ in range(3)]
    rings.begin()
    clients[0].send(m.QueueDeclare(queue="q", passive=True))
    clients[1].send(m.QueuePurge(queue="q"))
    clients[2].send(m.BasicConsume(queue="q", consumer_tag="c"))
    assert not any(client.take() for client in clients)
    rings.end()
    (declared,), (purged,), (begun,) = (client.methods() for client in clients)
    assert isinstance(declared, m.QueueDeclareOk) and declared.message_count == 3
    assert isinstance(purged, m.QueuePurgeOk) and purged.message_count == 3
    assert isinstance(begun, m.BasicConsumeOk)
    fill(rings, b"4")
    assert delivered(clients[2]) == [(b"4", False)]


@pytest.mark.parametrize("at", NAMES)
def test_a_delete_looks_at_the_queue_of_the_new_master(rings: Rings, at: str) -> None:
    fill(rings, b"1")
    clients = [rings[at].client() for _ in range(2)]
    rings.begin()
    for client in clients:
        client.send(m.QueueDelete(queue="q", if_empty=client is clients[0]))
        assert not client.take()
    rings.end()
    assert types(clients[0]) == [m.ChannelClose]
    (deleted,) = clients[1].methods()
    assert isinstance(deleted, m.QueueDeleteOk) and deleted.message_count == 1


@pytest.mark.parametrize("at", NAMES)
def test_publishes_wait_and_keep_their_order(rings: Rings, at: str) -> None:
    client = fill(rings, b"1", at=at)
    confirming(client)
    rings.begin()
    for body in (b"2", b"3"):
        client.publish("q", body, **PERSISTENT)
    assert not client.take()
    rings.end()
    assert types(client) == [m.BasicAck]
    assert rest(rings) == [b"1", b"2", b"3"]


def test_nobody_waits_for_a_queue_that_is_deleted_meanwhile(rings: Rings) -> None:
    clients = [rings[at].client() for at in NAMES]
    rings.begin()
    for client in clients:
        client.send(m.BasicGet(queue="q"))
    rings.order.clear()
    for member in rings.members.values():
        member.applied = 0
    rings.behind = set()
    rings.apply(c.DeleteQueue("/", "q", rings.number))
    for client in clients:
        assert [type(method) for method in client.methods()] == [m.ChannelClose]


def test_a_get_that_waits_for_a_claim_is_answered_when_the_queue_is_deleted(rings: Rings) -> None:
    fill(rings, b"1", b"2")
    client = rings["a"].client()
    queue = rings["a"].queue("q")
    assert queue.open_through == 0, "nothing may be given out before the mirrors know"
    answers: list[Any] = []
    queue.fetch(True, lambda: True, answers.append)
    assert not answers
    client.call(m.QueueDelete(queue="q"))
    (answer,) = answers
    assert isinstance(answer, Refusal) and answer.code == 404


def test_a_hand_over_that_is_given_up_leaves_everything_as_it_was(rings: Rings) -> None:
    client, other = fill(rings, b"1"), rings["c"].client()
    confirming(client)
    rings.begin()
    client.publish("q", b"2", **PERSISTENT)
    other.send(m.BasicGet(queue="q", no_ack=True))
    del rings.order[-1]
    for _ in range(30):
        rings["a"].broker.mirrors.tick()
        rings.run()
    rings.order.clear()
    for member in rings.members.values():
        member.applied = 0
    rings.behind = set()
    assert rings["a"].queue("q").parked is None
    assert types(client) == [m.BasicAck]
    assert delivered(other) == [(b"1", False)]
    assert rest(rings) == [b"2"]


@pytest.mark.parametrize("first", NAMES)
def test_the_new_master_confirms_without_any_tick(rings: Rings, first: str) -> None:
    """Whoever hears of the view first: the ring must not wait until somebody asks again."""
    rings.begin()
    rings.end(first)
    client = rings["c"].client()
    confirming(client)
    client.publish("q", **PERSISTENT)
    assert types(client) == [m.BasicAck]


# -- What is out -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before", "between", "after"])
@pytest.mark.parametrize("at", NAMES)
def test_what_is_acknowledged_is_not_given_out_again(rings: Rings, at: str, when: str) -> None:
    fill(rings, b"1", b"2", b"3")
    client = rings[at].client()
    client.consume("q")
    assert delivered(client) == [(b"1", False), (b"2", False), (b"3", False)]
    rings.begin()
    if when == "before":
        client.send(m.BasicAck(2, multiple=True))
    rings.end()
    assert not client.take()  # They are with the client, and stay there.
    if when == "between":
        client.send(m.BasicAck(2, multiple=True))
    assert depth(client)[0] == 0
    if when == "after":
        client.send(m.BasicAck(2, multiple=True))
    assert rings["b"].queue("q").unacked_count == 1
    client.lose()
    assert get(rings["c"].client()) == [(b"3", True)]
    assert rest(rings) == []


@pytest.mark.parametrize("at", NAMES)
def test_what_is_given_back_waits_in_its_old_place(rings: Rings, at: str) -> None:
    fill(rings, b"1", b"2", b"3", b"4")
    client = rings[at].client()
    client.call(m.BasicQos(prefetch_count=3))
    client.consume("q")
    rings.hand_over()
    client.take()
    client.call(m.BasicCancel(consumer_tag="c"))
    client.send(m.BasicReject(1, requeue=False), m.BasicNack(2, requeue=True))
    assert rest(rings) == [b"2", b"4"]
    client.lose()
    assert rest(rings) == [b"3"]


@pytest.mark.parametrize("at", ["b", "c"])
def test_what_is_out_when_the_former_master_goes_comes_again(rings: Rings, at: str) -> None:
    fill(rings, b"1", b"2", b"3")
    client = rings[at].client()
    client.consume("q")
    client.take()
    rings.hand_over()
    client.send(m.BasicAck(1))
    rings.lose("a")
    client.send(m.BasicAck(2))  # Of the first delivery: too late.
    assert delivered(client) == [(b"2", True), (b"3", True)]
    client.send(m.BasicAck(5, multiple=True))
    assert rest(rings, at) == []


def test_from_master_to_master(rings: Rings) -> None:
    """What was delivered first is told by way of both."""
    fill(rings, b"1", b"2", b"3", b"4")
    client = rings["c"].client()
    client.consume("q")
    client.take()
    rings.hand_over("b")
    client.send(m.BasicAck(1))
    rings.hand_over("a")
    client.send(m.BasicAck(2))
    rings.hand_over("b")
    client.send(m.BasicAck(3))
    assert not client.take()
    assert rings["b"].queue("q").unacked_count == 1
    client.lose()
    assert rest(rings) == [b"4"]


def test_a_message_in_the_middle_of_what_the_log_holds(rings: Rings) -> None:
    """The new master has nothing of it in memory."""
    fill(rings, *(b"%d" % number for number in range(20)))
    client = rings["c"].client()
    client.call(m.BasicQos(prefetch_count=12))
    client.consume("q")
    client.take()
    client.call(m.BasicCancel(consumer_tag="c"))
    client.send(m.BasicAck(2), m.BasicAck(7))
    rings.hand_over()
    assert rings["b"].queue("q").ready_count == 8
    client.send(m.BasicNack(5, requeue=True), m.BasicAck(6))
    assert rest(rings) == [b"4", *(b"%d" % number for number in range(12, 20))]
    client.lose()


def test_a_cancel_while_the_consumer_waits_for_the_new_master(rings: Rings) -> None:
    client = rings["c"].client()
    client.consume("q")
    rings.begin()
    rings.hold("c", "a")  # The question by way of the former master takes its time.
    rings.end()
    client.send(m.BasicCancel(consumer_tag="c"))
    assert types(client) == [m.BasicCancelOk]
    rings.release("c", "a")
    fill(rings, b"1")
    assert not client.take()
    assert rest(rings) == [b"1"]


def test_what_a_consumer_was_never_shown_is_new_to_the_next(rings: Rings) -> None:
    client = rings["c"].client()
    client.call(m.BasicQos(prefetch_count=1, global_=True))
    client.consume("q", "x")
    client.consume("q", "y")
    fill(rings, b"1", b"2")
    assert delivered(client) == [(b"1", False)]
    rings.hand_over()
    client.lose()
    other = rings["c"].client()
    assert get(other) + get(other) == [(b"1", True), (b"2", False)]


KINDS: list[dict[str, Any]] = [{}, {"x-max-priority": 3}]


@pytest.mark.parametrize("arguments", KINDS, ids=["plain", "priorities"])
@pytest.mark.parametrize("lost", ["before", "after"])
@pytest.mark.parametrize("new_master", ["b", "c"])
def test_what_comes_back_behind_later_ones_is_marked(arguments: dict[str, Any], lost: str, new_master: str) -> None:
    """Though its client was never shown the second message: only the mark tells why it comes out of order. The client
    is lost before the new master is known, or the message comes back when it is."""
    rings = Rings(table_from_python(arguments))
    client, other = rings["c"].client(), rings["c"].client()
    client.call(m.BasicQos(prefetch_count=1, global_=True))
    client.consume("q", "x")
    client.consume("q", "y")
    fill(rings, b"1", b"2")
    assert delivered(client) == [(b"1", False)]
    other.consume("q", arguments=table_from_python({"x-priority": 1}))
    fill(rings, b"3")
    assert delivered(other) == [(b"3", False)]
    other.send(m.BasicAck(1))
    rings.begin(new_master)
    if lost == "before":
        client.lose()
    rings.end()
    if lost == "after":
        assert delivered(other) == [(b"2", True)]
        client.lose()
    assert sorted(delivered(other)) == [(b"1", True), (b"2", True)][: 1 if lost == "after" else 2]
    other.lose()
    rings.finish()


def test_what_was_shown_once_stays_marked_though_another_never_saw_it(rings: Rings) -> None:
    client = fill(rings, b"1")
    assert get(client, no_ack=False) == [(b"1", False)]
    client.lose()
    queue = rings["a"].queue("q")
    found = queue.get()
    assert isinstance(found, tuple) and queue.gate is not None
    batch, at = found
    queue.requeue(batch, at, at + 1, shown=False)
    assert not queue.gate.claimed_undelivered(), "the next master would be told that nobody has seen it"
    rings.hand_over()
    assert get(rings["c"].client()) == [(b"1", True)]


@pytest.mark.parametrize("at", NAMES)
def test_what_was_only_claimed_is_new_to_the_next(rings: Rings, at: str) -> None:
    """A block says of more messages than were delivered that they may have been: see `claims`."""
    fill(rings, *(b"%d" % number for number in range(40)))
    client = rings[at].client()
    client.call(m.BasicQos(prefetch_count=4))
    client.consume("q")
    assert delivered(client) == [(b"%d" % number, False) for number in range(4)]
    claims = rings["a"].queue("q").gate
    assert isinstance(claims, DeliveryClaims) and claims.claimed > 4
    client.send(m.BasicNack(2, multiple=False, requeue=True))
    assert delivered(client) == [(b"1", True)]
    rings.hand_over()
    ahead = 0 if at == "b" else 4  # Another node has as many more ready for when its client has room.
    assert rings["b"].queue("q").delivered_through == 4 + ahead
    client.send(m.BasicAck(5, multiple=True))
    rings.run()
    expected = [(b"%d" % number, False) for number in range(4, 8)]
    assert delivered(client) == expected
    rings.hand_over("c")  # What was not acknowledged stays out, and what is given back by loss is marked.
    client.lose()
    other = rings["c"].client()
    found = [one for _ in range(36) for one in get(other)]
    assert found == [(body, True) for body, _ in expected] + [(b"%d" % number, False) for number in range(8, 40)]


def test_what_another_log_numbered_means_nothing(rings: Rings) -> None:
    """A master that was replaced, with blocks that nobody has: what it says of their messages is not heard."""
    fill(rings, b"1")
    client = rings["a"].client()
    client.consume("q")
    client.take()
    rings.begin()
    rings["a"].queue("q").number += 1
    rings.end()
    assert client.bodies() == [b"1"]
    client.send(m.BasicAck(1))
    assert rings["b"].queue("q").unacked_count == 1
    client.send(m.BasicAck(2))
    assert rings["b"].queue("q").unacked_count == 0


# -- Taking what waits -------------------------------------------------------------------------------------------------


class Held(World):
    """Holds these in its log."""

    def __init__(self) -> None:
        super().__init__()
        self.live = RangeSet()
        self.broker.stored_within = lambda queue, first, last: list(self.live.ranges(first, last))  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("ranges", "taken", "left"),
    [
        ([], [], [(10, 19, 8), (30, 35, 6)]),
        ([(1, 9), (20, 29), (36, 99)], [], [(10, 19, 8), (30, 35, 6)]),
        ([(10, 10)], [(10, 10)], [(11, 19, 7), (30, 35, 6)]),
        ([(12, 16)], [(12, 12), (15, 16)], [(10, 11, 2), (17, 19, 3), (30, 35, 6)]),
        ([(11, 31)], [(11, 12), (15, 19), (30, 31)], [(10, 10, 1), (32, 35, 4)]),
        ([(31, 31), (33, 34)], [(31, 31), (33, 34)], [(10, 19, 8), (30, 30, 1), (32, 32, 1), (35, 35, 1)]),
        ([(1, 99)], [(10, 12), (15, 19), (30, 35)], []),
    ],
)
def test_reserve(ranges: Any, taken: Any, left: Any) -> None:
    """A gap from 10 to 19, in which 13 and 14 are no more, and six messages in memory."""
    world = Held()
    client = world.client()
    client.declare("q", durable=True)
    queue: Queue = world.queue("q")
    for low, high in ((10, 12), (15, 19)):
        world.live.add(low, high)
    queue.next_seq = 30
    queue.begin_ready().append(Gap(10, 19, 8))
    queue.ready_count = 8
    queue.enqueue([b"x"] * 6, [b""] * 6, 1, 6, None)
    pieces = reserve(queue, ranges)
    assert [(batch.first + lo, batch.first + hi - 1) for batch, lo, hi in pieces] == taken
    assert [(entry.first, entry.last, entry.count) for entry in queue.ready] == left
    assert queue.ready_count == sum(count for _, _, count in left)
    assert queue.unacked_count == sum(high - low + 1 for low, high in taken)
    queue.requeue_many(pieces)
    assert (queue.ready_count, queue.unacked_count) == (14, 0)
    assert all(isinstance(entry, Span | Gap) for entry in queue.ready)
    firsts = [entry.first for entry in queue.ready]
    assert firsts == sorted(firsts)


def test_what_is_reserved_of_a_priority_queue_is_in_the_order_of_numbers() -> None:
    """They are found by priority, and what becomes of them is told, and looked up, by their numbers."""
    world = World()
    client = world.client()
    client.declare("q", durable=True, arguments=table_from_python({"x-max-priority": 5}))
    for priority in (1, 5, 2, 5, 1, 3):
        client.publish("q", b"x", priority=priority, **PERSISTENT)
    queue: Queue = world.queue("q")
    numbers = [batch.first + at for batch, lo, hi in reserve(queue, [(1, 4), (6, 6)]) for at in range(lo, hi)]
    assert numbers == [1, 2, 3, 4, 6]
    assert (queue.ready_count, queue.unacked_count) == (1, 5)


def test_a_former_master_that_learns_nothing_is_not_waited_for_long(rings: Rings) -> None:
    """Its disk stalls, so that it does not apply what made another one master. Publishers elsewhere go on without."""
    client = rings["c"].client()
    confirming(client)
    client.publish("q", b"1", **PERSISTENT)
    assert client.methods() == [m.BasicAck(1)]
    rings.begin()
    rings.behind = {"a"}
    rings.run()
    client.publish("q", b"2", **PERSISTENT)
    assert rings.master == "b" and not client.take()
    for _ in range(6):
        assert not rings.bad and not client.take()
        rings.tick()
    assert rings.bad == ["a question was not answered for 5 s"]  # c has asked; b has sent nothing to a.
    rings.lost.add("a")
    rings.pass_time(50)
    assert client.methods() == [m.BasicAck(2)]
    rings.bad.clear()
    rings.mend()
    rings.end()
    assert rest(rings) == [b"1", b"2"]


def test_a_former_master_is_not_asked_about_a_queue_that_was_not_used(rings: Rings) -> None:
    """What is published now can overtake nothing. So a start asks nothing of thousands of queues."""
    client = rings["c"].client()
    confirming(client)
    rings.begin()
    rings.behind = {"a"}
    rings.run()
    client.publish("q", b"1", **PERSISTENT)
    rings.run()
    assert rings.master == "b" and rings["b"].queue("q").ready_count == 1
    for _ in range(6):
        rings.tick()
    assert not rings.bad
    rings.behind = set()
    rings.run()
    assert client.methods() == [m.BasicAck(1)]
    rings.end()


def test_a_queue_that_moves_on_is_waited_for_though_it_was_not_used_since(rings: Rings) -> None:
    """Its first home has a publish that must come first, and has not answered."""
    client = rings["c"].client()
    confirming(client)
    rings.behind = {"a"}
    client.publish("q", b"1", **PERSISTENT)
    queue = rings["c"].broker.vhosts["/"].queues["q"]
    assert not queue.is_local and queue.is_used
    queue.on_moved(queue.spec, None)
    assert queue.is_moving
    queue.on_moved(queue.spec, None)
    assert queue.is_moving and queue.parked is not None
    rings.behind = set()
    rings.run()
    assert not queue.is_moving and queue.parked is None
