"""One of two nodes that have lost each other goes on with what it has: a leads the cluster, b is left alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from leveret.broker.delivery.answers import Got
from leveret.broker.mirrors.detached import Anchor, Anchors, DetachedQueue, Stage
from leveret.broker.mirrors.detachment import DUE_TICKS, mark_shown
from leveret.broker.queue.queue import Queue
from leveret.metadata.model import commands as c
from leveret.metadata.model.refusals import Refusal
from leveret.metadata.model.view import View
from leveret.metadata.rules.partition_handling import PartitionHandling, Strategy
from leveret.protocol import methods as m
from leveret.protocol.tables import Field
from tests.support.brokers import Cluster, Member, Then
from tests.support.machines import Client
from tests.support.mirrored_brokers import RingMember
from tests.support.remote import delivered, depth

IGNORE = PartitionHandling(Strategy.IGNORE)
PAUSE = PartitionHandling(Strategy.PAUSE_MINORITY)


class Pair(Cluster):
    """Two nodes with a queue `q` that both have."""

    member_class = RingMember

    def __init__(self, master: str = "a", handling: PartitionHandling = IGNORE, **arguments: Any) -> None:
        self.is_cut = False
        super().__init__("a", "b")
        for member in self.members.values():
            member.broker.partition_handling = handling
            member.broker.detachment.is_pair = lambda: True
        view = View(1, 1, master, ("a", "b"), (("a", "a.0"), ("b", "b.0")))
        self.apply(c.DeclareQueue("/", "q", durable=True, node=master, view=view, arguments=arguments))

    def propose(self, origin: Member, command: c.Command, then: Then) -> None:
        if not self.is_cut or origin.name == "a":
            super().propose(origin, command, then)

    def cut(self, ticks: int = DUE_TICKS + 2) -> None:
        """For so many seconds, with which b begins to serve by itself."""
        self.is_cut = True
        self.behind.add("b")
        self["b"].broker.mirrors.on_majority(False)
        self.close("a", "b")
        self.run()
        self.pass_time(ticks)

    def pass_time(self, ticks: int) -> None:
        for _ in range(ticks):
            for member in self.members.values():
                member.broker.now_ms += 1_000
                for _ in range(RING_TICKS):
                    member.broker.mirrors.tick()
            self.tick()

    def heal(self) -> None:
        self.is_cut = False
        self.behind.clear()
        self.join("a", "b")
        self["b"].broker.mirrors.on_majority(True)
        self.run()
        self.pass_time(3)

    @property
    def number(self) -> int:
        return self["a"].metadata.queues["/", "q"].id

    @property
    def detached(self) -> DetachedQueue:
        return self["b"].broker.detachment.queues[self.number]

    def fill(self, *bodies: bytes) -> None:
        client = self["a"].client()
        for body in bodies:
            client.publish("q", body, delivery_mode=2)
        client.lose()

    def ready(self) -> int:
        return self["a"].queue("q").ready_count

    def is_forgotten(self) -> bool:
        return not self["b"].broker.detachment.queues


def consumer(pair: Pair, at: str, prefetch: int = 0, **options: Any) -> Client:
    client = pair[at].client()
    if prefetch:
        client.call(m.BasicQos(prefetch_count=prefetch))
    client.consume("q", **options)
    return client


RING_TICKS = 10  # In a second.
BODIES = (b"1", b"2", b"3")
MARKED = [(body, True) for body in BODIES]


@pytest.mark.parametrize("master", ["a", "b"])
def test_a_consumer_gets_what_the_copy_has_and_what_it_acknowledges_is_gone(master: str) -> None:
    pair = Pair(master)
    pair.fill(*BODIES)
    pair.cut()
    client = consumer(pair, "b")
    assert delivered(client) == MARKED
    client.send(m.BasicAck(2, multiple=True))
    pair.heal()
    assert delivered(client) == []  # The third is with it still.
    client.send(m.BasicAck(3))
    assert pair.ready() == 0 and pair.is_forgotten()
    other = consumer(pair, "a")
    assert delivered(other) == []
    assert pair["a"].queue("q").unacked_count == 0


@pytest.mark.parametrize("master", ["a", "b"])
def test_a_consumer_of_before_goes_on(master: str) -> None:
    pair = Pair(master)
    client = consumer(pair, "b", prefetch=1)
    pair.fill(*BODIES)
    assert delivered(client) == [(b"1", False)]
    pair.cut()
    client.send(m.BasicAck(1))  # A master that stands still hears it; the way to the other one is lost.
    expected = MARKED[1:] if master == "b" else MARKED
    for number, one in enumerate(expected, 2):
        assert delivered(client) == [one]
        client.send(m.BasicAck(number))
    pair.heal()
    other = consumer(pair, "a")
    assert delivered(other) == []
    client.publish("q", b"4", delivery_mode=2)
    assert sorted(delivered(client) + delivered(other)) == [(b"4", False)]


@pytest.mark.parametrize("master", ["a", "b"])
def test_the_other_node_marks_what_there_was(master: str) -> None:
    pair = Pair(master)
    pair.fill(*BODIES)
    pair.cut()
    pair.fill(b"4")
    client = consumer(pair, "a")
    pair.pass_time(2)
    assert delivered(client) == [*MARKED, (b"4", False)]


def test_a_node_that_dies_and_leads_again_marks_too() -> None:
    pair = Pair()
    pair.fill(*BODIES)
    pair.cut()
    mirror = pair["a"].broker.mirrors.mirrors[pair.number]
    queue = mirror.queue
    assert isinstance(queue, Queue) and mirror.member.view is not None
    for entry in queue.ready:  # As if its block was not written.
        entry.batch.unmark(entry.lo, entry.hi)  # type: ignore[union-attr]
    pair["a"].broker.detachment.on_started(mirror, queue)
    client = consumer(pair, "a")
    pair.pass_time(2)
    assert delivered(client) == MARKED


def test_a_queue_that_never_had_a_message_marks_nothing() -> None:
    priorities: dict[str, Any] = {"x-max-priority": Field("I", 3)}
    pair = Pair(**priorities)
    queue = pair["a"].queue("q")
    assert isinstance(queue, Queue)
    mark_shown(queue, queue.next_seq - 1)
    assert not queue.requeued  # A range from 1 to 0 would stop each node that reads the block back.


@pytest.mark.parametrize("master", ["a", "b"])
def test_a_queue_that_nobody_used_before_is_served_by_both(master: str) -> None:
    pair = Pair(master)
    assert pair["b"].broker.mirrors.mirrors[pair.number].member.tail.end == 0
    pair.cut()
    pair.fill(b"1")
    client = consumer(pair, "b")
    client.publish("q", b"2", delivery_mode=2)
    assert delivered(client) == [(b"2", False)]
    client.send(m.BasicAck(1))
    pair.heal()
    pair.pass_time(20)
    client.lose()
    assert delivered(consumer(pair, "a")) == [(b"1", True)] and pair.is_forgotten()


def test_without_ignore_nothing_is_handed_out_and_nothing_marked() -> None:
    pair = Pair(handling=PAUSE)
    pair.fill(*BODIES)
    pair.cut()
    client = pair["b"].client()
    client.send(m.BasicConsume(queue="q"))
    assert delivered(client) == []
    other = consumer(pair, "a")
    pair.pass_time(2)
    assert delivered(other) == [(body, False) for body in BODIES]


def test_nothing_is_handed_out_too_early() -> None:
    pair = Pair()
    pair.fill(*BODIES)
    pair.cut(DUE_TICKS - 2)
    client = pair["b"].client()
    client.send(m.BasicConsume(queue="q"))
    assert client.take() == []
    pair.pass_time(DUE_TICKS + 2)
    assert delivered(client) == MARKED


def test_what_is_given_back_comes_again_here_and_there() -> None:
    pair = Pair()
    pair.fill(*BODIES)
    pair.cut()
    client = consumer(pair, "b")
    assert delivered(client) == MARKED
    client.send(m.BasicNack(1, requeue=True))
    assert delivered(client) == MARKED[:1]
    client.lose()
    assert pair.detached.ready_count == 3
    pair.heal()
    assert pair.is_forgotten()
    assert delivered(consumer(pair, "a")) == MARKED


def test_what_is_given_back_later_is_released_by_the_master() -> None:
    pair = Pair()
    pair.fill(*BODIES)
    pair.cut()
    client = consumer(pair, "b")
    pair.heal()
    assert delivered(client) == MARKED and pair.ready() == 0
    assert pair["a"].queue("q").unacked_count == 3
    client.lose()
    assert pair.ready() == 3 and pair.is_forgotten()
    assert delivered(consumer(pair, "a")) == MARKED


def test_what_is_rejected_is_rejected_by_the_master() -> None:
    pair = Pair()
    pair.fill(*BODIES)
    pair.cut()
    client = consumer(pair, "b")
    client.send(m.BasicReject(2, requeue=False))
    assert pair.detached.rejected.count == 1
    pair.heal()
    client.send(m.BasicAck(3, multiple=True))
    assert pair.is_forgotten() and pair.ready() == pair["a"].queue("q").unacked_count == 0


def test_get_counts_and_refusals() -> None:
    pair = Pair()
    pair.fill(*BODIES)
    pair.cut()
    client = pair["b"].client()
    assert depth(client) == (3, 0)
    client.send(m.BasicGet(queue="q", no_ack=True))
    assert delivered(client) == MARKED[:1]
    client.send(m.BasicGet(queue="q"))
    assert delivered(client) == MARKED[1:2]
    client.send(m.QueuePurge(queue="q"))
    (closed,) = client.methods()
    assert isinstance(closed, m.ChannelClose) and "is down or inaccessible" in closed.reply_text
    pair.heal()
    assert pair.ready() == 2 and pair.is_forgotten()


def test_somebody_else_has_it_meanwhile() -> None:
    """Both have it, both acknowledge it, and it is gone once."""
    pair = Pair()
    pair.fill(*BODIES)
    pair.cut()
    here, there = consumer(pair, "b"), consumer(pair, "a")
    pair.pass_time(2)
    assert delivered(here) == delivered(there) == MARKED
    here.send(m.BasicAck(3, multiple=True))
    pair.heal()
    assert pair["a"].queue("q").unacked_count == 3
    there.send(m.BasicAck(3, multiple=True))
    assert pair.is_forgotten() and pair.ready() == pair["a"].queue("q").unacked_count == 0


def test_the_record_outlives_the_link_and_the_node() -> None:
    pair = Pair()
    pair.fill(*BODIES)
    pair.cut()
    client = consumer(pair, "b")
    client.send(m.BasicAck(1), m.BasicAck(3))
    old = pair.detached
    assert old.stage is Stage.SERVING
    fresh = DetachedQueue(pair["b"].broker.detachment, pair["b"].metadata.queues["/", "q"])
    fresh.restore_state(dict(old.durable_state.table))
    assert fresh.anchors == old.anchors and fresh.stage is Stage.PASSING
    assert list(fresh.acked) == list(old.acked) == [(1, 1), (3, 3)]
    pair.hold("b", "a")
    pair.join("a", "b")
    pair.run()
    pair.close("a", "b")  # What was said is lost, and said again.
    pair.held.clear()
    assert not old.is_serving and pair.ready() == 3
    pair.heal()
    client.lose()
    assert pair.is_forgotten() and pair.ready() == 1


def test_ranges_that_grow_together_are_one_mark() -> None:
    pair = Pair()
    pair.fill(*BODIES)
    pair.cut()
    client = consumer(pair, "b")
    for tag in (1, 3, 2):
        client.send(m.BasicAck(tag))
    assert len(pair.detached.durable_state.table) == 2 and list(pair.detached.acked) == [(1, 3)]


@pytest.mark.parametrize("names_block", [True, False])
def test_a_record_about_other_messages_is_void(names_block: bool) -> None:
    """As after a promotion by force: the same numbers may be those of others. The beginning of a log, which is no
    block, is the same in all of them, and says nothing about their messages."""
    pair = Pair()
    pair.fill(*BODIES)
    pair.cut()
    client = consumer(pair, "b")
    client.send(m.BasicAck(3, multiple=True))
    sure, end = pair.detached.anchors
    other = sure._replace(epoch=7) if names_block else Anchor(0, 0, sure.bound)
    pair.detached.anchors = Anchors(other, end._replace(epoch=7))
    pair.heal()
    assert delivered(client) == [*MARKED, *MARKED] and pair.is_forgotten()


def test_a_second_cut_goes_on_with_what_is_left() -> None:
    pair = Pair()
    pair.fill(*BODIES)
    pair.cut()
    client = consumer(pair, "b", prefetch=2)
    client.send(m.BasicAck(1))
    client.take()
    pair.heal()
    pair.pass_time(20)
    in_sync = pair["a"].broker.mirrors.mirrors[pair.number].member.view
    assert in_sync is not None and len(in_sync.in_sync) == 2
    pair.cut()
    other = consumer(pair, "b")
    assert delivered(other) == []  # The first one has them, or has acknowledged them.
    client.lose()
    assert sorted(delivered(other)) == MARKED[1:]
    other.send(m.BasicAck(2, multiple=True))
    pair.heal()
    assert pair.ready() == 0 and pair.is_forgotten()


def test_a_queue_that_is_deleted() -> None:
    pair = Pair()
    pair.fill(*BODIES)
    pair.cut()
    client = consumer(pair, "b")
    client.take()
    pair["a"].client().call(m.QueueDelete(queue="q"))
    pair.heal()
    assert pair.is_forgotten()
    assert [type(one) for one in client.methods()] == [m.BasicCancel]
    client.send(m.BasicAck(1))
    assert client.take() == []


def test_a_node_that_hears_late_that_it_leads_no_longer() -> None:
    """Another master was agreed on before the cut, and a slow disk has delayed that. Then two objects stand for the
    queue: one for clients, and the one that a get turns to which has waited for the disk."""
    pair = Pair("b")
    pair.fill(*BODIES)
    old, broker = pair["b"].queue("q"), pair["b"].broker
    spec = pair["b"].metadata.queues["/", "q"]
    assert spec.view is not None
    pair.cut()
    client = consumer(pair, "b", prefetch=1)
    assert delivered(client) == MARKED[:1]
    got: list[Got | Refusal | None] = []
    broker.when_loaded(old, lambda: old.fetch(False, lambda: True, got.append))
    broker._on_view(replace(spec, node="a", view=spec.view._replace(version=2, epoch=2, master="a")))
    pair.run()
    assert pair.detached.stage is Stage.SERVING and len(pair.detached.consumers) == 1
    (answer,) = got
    assert isinstance(answer, Got) and answer.queue is pair.detached
    client.send(m.BasicGet(queue="q"))
    assert delivered(client) == MARKED[2:]
    client.send(m.BasicAck(2, multiple=True))
    pair.heal()
    assert not pair.detached.is_serving and list(pair.detached.out) == [(2, 2)]
