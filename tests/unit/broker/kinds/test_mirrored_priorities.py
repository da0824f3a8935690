"""Queues with priorities that have mirrors, or get another home."""

from __future__ import annotations

from random import Random
from typing import Any, cast

import pytest

from leveret.broker.delivery.batch import Batch, Gap
from leveret.broker.delivery.offsets import Start
from leveret.broker.kinds.priority_queue import ExactClaims, PriorityQueue
from leveret.broker.queue import ordered_queue
from leveret.broker.queue.queue import Queue
from leveret.broker.remote.migrate import move
from leveret.metadata.model import commands as c
from leveret.protocol import methods as m
from leveret.protocol.tables import table_from_python
from leveret.storage.format.queue_block import REDELIVERED
from tests.support.brokers import Cluster
from tests.support.control_world import cluster
from tests.support.mirrored_brokers import Rings as BrokerRings
from tests.support.remote import delivered
from tests.support.ring_world import Rings
from tests.unit.broker.kinds.priority_queues import content, put

ONE, TWO, THREE = "one@host", "two@host", "three@host"


@pytest.fixture
def keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordered_queue, "KEEP_BYTES", 0)


# -- Mirrors -----------------------------------------------------------------------------------------------------------


class Reader:
    """A consumer with a prefetch, of a mirrored queue."""

    tag = "reader"
    priority = 0
    no_ack = exclusive = False
    timeout_ms: int | None = None
    begins_at: Start | None = None
    is_exact = False

    def __init__(self, queue: Queue, prefetch: int) -> None:
        self.queue = queue
        self.prefetch = prefetch
        self.unacked = 0
        self.seen: list[int] = []
        self.marked: list[bool] = []
        self.pieces: list[tuple[Batch, int, int]] = []

    def room(self, average_bytes: int) -> int:
        return self.prefetch - self.unacked

    def deliver(self, batch: Batch, lo: int, hi: int) -> None:
        self.seen += range(batch.first + lo, batch.first + hi)
        self.marked += [bool(kind & REDELIVERED) for kind in batch.kinds[lo:hi]]
        self.unacked += hi - lo
        self.pieces.append((batch, lo, hi))

    def ack(self) -> None:
        pieces, self.pieces, self.unacked = self.pieces, [], 0
        for piece in pieces:
            self.queue.settle_delivered(*piece)

    def on_queue_deleted(self) -> None:
        pass


def a_ring() -> tuple[Rings, int, PriorityQueue]:
    rings = Rings(cluster(ONE, THREE, TWO))
    number = rings.declare("q", ONE, TWO, THREE, arguments=table_from_python({"x-max-priority": 5}))
    return rings, number, master(rings, ONE, number)


def master(rings: Rings, node: str, number: int) -> PriorityQueue:
    queue = rings.copy(node, number).queue
    assert isinstance(queue, PriorityQueue) and isinstance(queue.gate, ExactClaims)
    return queue


def fill(rings: Rings, queue: Queue, *levels: int) -> None:
    put(queue, *(content(b"%d" % at, level) for at, level in enumerate(levels)))
    rings.run()


def after_the_loss(rings: Rings, number: int, prefetch: int = 1 << 20) -> Reader:
    """The master is lost: what a consumer gets from the next one."""
    rings.kill(ONE)
    rings.tick(20)
    node = rings.servers[TWO].world.metadata.queues["/", "q"].node
    queue = master(rings, node, number)
    reader = Reader(queue, prefetch)
    queue.add_consumer(reader)
    for _ in range(100):
        rings.run()
        if not rings.servers[node].world.loads:
            break
        # The log that is played here does not mark by itself what it reads.
        kept = rings.stores[node].stored(number)
        log = rings.servers[node].world.log.queues[number]
        for low, high in kept.redelivered:
            for seq in log.keys() & set(range(low, high + 1)):
                stored, key, kind = log[seq]
                log[seq] = (stored, key, kind | REDELIVERED)
        rings.servers[node].world.finish_loads()
    return reader


def test_the_next_master_hands_out_in_the_same_order() -> None:
    rings, number, queue = a_ring()
    fill(rings, queue, 0, 3, 5, 3, 0, 1)
    reader = after_the_loss(rings, number)
    assert reader.seen == [3, 2, 4, 6, 1, 5] and not any(reader.marked)


@pytest.mark.parametrize("prefetch", [1, 3, 100])
def test_what_was_delivered_is_marked_and_little_else(prefetch: int) -> None:
    rings, number, queue = a_ring()
    rng = Random(prefetch)
    fill(rings, queue, *(rng.randrange(6) for _ in range(1_000)))
    reader = Reader(queue, prefetch)
    queue.add_consumer(reader)
    rings.run()
    assert len(reader.seen) == prefetch
    again = after_the_loss(rings, number)
    marked = {seq for seq, mark in zip(again.seen, again.marked, strict=True) if mark}
    assert set(reader.seen) <= marked and len(marked) <= prefetch + max(4 * prefetch, 32)
    assert again.seen[:prefetch] == reader.seen and len(again.seen) == 1_000


@pytest.mark.parametrize("step", range(1, 25))
def test_nothing_is_handed_out_that_the_mirrors_do_not_know_to_be(step: int) -> None:
    """The frames of one turn are lost with the master, wherever it is in its work."""
    rings, number, queue = a_ring()
    rng = Random(step)
    fill(rings, queue, *(rng.randrange(4) for _ in range(60)))
    reader = Reader(queue, 20)
    queue.add_consumer(reader)
    for turn in range(step):
        if turn % 4 == 1:  # More important than all that is claimed.
            put(queue, *(content(b"new", rng.randrange(6)) for _ in range(5)))
        for name in (ONE, TWO, THREE):
            rings._turn(rings.servers[name])
        if rings.frames:
            src, dst, payload = rings.frames.popleft()
            rings.servers[dst].world.broker.mirrors.on_frame(src, payload)
        if turn % 3 == 2:
            reader.ack()
    rings.frames = type(rings.frames)(frame for frame in rings.frames if frame[0] != ONE)
    assert not any(reader.marked)
    again = after_the_loss(rings, number)
    unmarked = {seq for seq, mark in zip(again.seen, again.marked, strict=True) if not mark}
    assert not unmarked & set(reader.seen)


def test_fast_consumers_are_not_held_up_for_long() -> None:
    rings, _, queue = a_ring()
    rng = Random(1)
    fill(rings, queue, *(rng.randrange(6) for _ in range(5_000)))
    reader = Reader(queue, 1 << 20)
    queue.add_consumer(reader)
    blocks = queue.number
    rings.run()
    assert len(reader.seen) == 5_000 and queue.number - blocks < 20


def test_what_is_acknowledged_is_claimed_no_longer() -> None:
    rings, _, queue = a_ring()
    reader = Reader(queue, 10)
    queue.add_consumer(reader)
    for _ in range(20):
        fill(rings, queue, *(seq % 6 for seq in range(10)))
        reader.ack()
        rings.run()
    claims = queue.gate
    assert isinstance(claims, ExactClaims)
    assert len(reader.seen) == 200 and not claims.claims and not claims.sure and not claims.waiting


def test_one_get_after_the_other() -> None:
    rings, number, queue = a_ring()
    fill(rings, queue, *(seq % 6 for seq in range(100)))
    found: list[Any] = []
    for _ in range(50):
        queue.fetch(False, lambda: True, found.append)
        rings.run()
    taken = [one.batch.first + one.at for one in found]
    assert taken == sorted(range(1, 101), key=lambda seq: (-((seq - 1) % 6), seq))[:50]
    again = after_the_loss(rings, number)
    marked = {seq for seq, mark in zip(again.seen, again.marked, strict=True) if mark}
    assert set(taken) <= marked and len(marked) < 80


@pytest.mark.parametrize(
    ("levels", "is_purged", "expected"),
    [((), True, [None]), ((5,), False, [3]), ((0,), True, [3])],
    ids=["nothing is left", "a higher one comes", "another one is left"],
)
def test_a_get_is_answered_if_what_it_waited_for_is_not_first_any_more(
    levels: tuple[int, ...], is_purged: bool, expected: list[int | None]
) -> None:
    rings, _, queue = a_ring()
    fill(rings, queue, 1, 2)
    found: list[Any] = []
    queue.fetch(False, lambda: True, found.append)
    if is_purged:
        queue.purge()
    for level in levels:
        put(queue, content(b"new", level))
    rings.run()
    assert [one and one.batch.first + one.at for one in found] == expected


def test_a_get_is_answered_if_another_one_takes_a_higher_message_meanwhile() -> None:
    rings, _, queue = a_ring()
    fill(rings, queue, 1, 2)
    found: list[Any] = []
    queue.fetch(False, lambda: True, found.append)
    put(queue, content(b"new", 5))
    queue.fetch(False, lambda: True, found.append)
    rings.run()
    assert [one.batch.first + one.at for one in found] == [3, 2]


@pytest.mark.usefixtures("keeps_nothing")
def test_what_was_claimed_and_forgotten_is_no_redelivery() -> None:
    rings, _, queue = a_ring()
    fill(rings, queue, *[0] * 40)
    reader = Reader(queue, 1)
    queue.add_consumer(reader)
    rings.run()
    assert isinstance(queue.gate, ExactClaims) and queue.gate.waiting
    fill(rings, queue, 5, 5)
    queue.host.content_bytes_max = 0
    queue.page_out()
    assert any(isinstance(entry, Gap) for entry in queue.ready)
    reader.prefetch = 1 << 20
    queue.host.dirty[queue] = None
    for _ in range(100):
        rings.run()
        rings.servers[ONE].world.finish_loads()
    assert len(reader.seen) == 42 and not any(reader.marked)


@pytest.mark.usefixtures("keeps_nothing")
def test_what_the_master_before_had_delivered_stays_marked_when_it_is_forgotten() -> None:
    rings, number, queue = a_ring()
    fill(rings, queue, *[0] * 100)  # So many that not all are claimed: what is forgotten is marked in part.
    first = Reader(queue, 2)
    queue.add_consumer(first)
    rings.run()
    again = after_the_loss(rings, number, prefetch=1)
    queue = cast(PriorityQueue, again.queue)
    assert again.seen == [1] and again.marked == [True]
    queue.host.content_bytes_max = 0
    queue.page_out()
    assert any(isinstance(entry, Gap) for entry in queue.ready)
    again.prefetch = 2
    queue.host.dirty[queue] = None
    for _ in range(10):
        rings.run()
        rings.servers[queue.host.node_name].world.finish_loads()  # type: ignore[attr-defined]
    assert again.seen == [1, 2] and again.marked == [True, True]


def test_a_queue_that_becomes_mirrored_tells_what_is_out() -> None:
    rings = Rings(cluster(ONE, THREE, TWO))
    rings.declare("q", arguments=table_from_python({"x-max-priority": 5}))
    world = rings.servers[ONE].world
    queue = world.queue("q")
    client = world.client()
    for level in (0, 5, 0, 4, 0):
        client.publish("q", b"x", priority=level)
    client.send(m.BasicQos(prefetch_count=2))
    client.send(m.BasicConsume(queue="q", consumer_tag="c"))
    assert queue.unacked_count == 2
    rings._propose(c.SetPolicy("/", "p", "^q$", "queues", 0, {"ha-mode": "all", "ha-sync-mode": "automatic"}, False))
    rings.place()
    number = world.metadata.queues["/", "q"].id
    again = after_the_loss(rings, number)
    assert list(zip(again.seen, again.marked, strict=True))[:2] == [(2, True), (4, True)]
    assert again.seen[2:] == [1, 3, 5]


@pytest.mark.parametrize("at", ["a", "b", "c"])
def test_a_planned_hand_over_leaves_with_clients_what_they_have(at: str) -> None:
    rings = BrokerRings(table_from_python({"x-max-priority": 5}))
    client = rings[at].client()
    for number, level in enumerate((0, 3, 5, 3, 0, 4)):
        client.publish("q", b"%d" % number, priority=level, delivery_mode=2)
    client.send(m.BasicQos(prefetch_count=3))
    client.send(m.BasicConsume(queue="q", consumer_tag="c"))
    assert delivered(client) == [(b"2", False), (b"5", False), (b"1", False)]
    rings.hand_over()
    assert delivered(client) == [] and type(rings["b"].queue("q")) is PriorityQueue
    client.send(m.BasicCancel(consumer_tag="c"))
    client.send(m.BasicAck(delivery_tag=2))
    client.publish("q", b"new", priority=4, delivery_mode=2)
    client.send(m.BasicNack(delivery_tag=3, multiple=True, requeue=True))
    client.take()
    found = []
    while True:
        client.send(m.BasicGet(queue="q", no_ack=True))
        if not (got := delivered(client)):
            break
        found += got
    assert found[:3] == [(b"2", True), (b"new", False), (b"1", True)]
    assert [body for body, _ in found[3:]] == [b"3", b"0", b"4"]
    rings.finish()


# -- Another home ------------------------------------------------------------------------------------------------------


def test_a_queue_that_moves_keeps_its_order() -> None:
    brokers = Cluster("a", "b")
    for name in ("a", "b"):
        brokers[name].broker.run = f"run of {name}"
        brokers.apply(c.NodeStarted(name, run=f"run of {name}"))
    client = brokers["a"].client()
    client.declare("q", durable=True, arguments=table_from_python({"x-max-priority": 5}))
    for number, level in enumerate((0, 3, 5, 3, 0, 4)):
        client.publish("q", b"%d" % number, priority=level, delivery_mode=2)
    client.send(m.BasicGet(queue="q"))
    client.take()
    ended: list[str | None] = []
    move(brokers["a"].queue("q"), "b", ended.append)
    brokers.run()
    assert ended == [None] and type(brokers["b"].queue("q")) is PriorityQueue
    found = []
    for _ in range(6):
        client.send(m.BasicGet(queue="q", no_ack=True))
        found += delivered(client)
    assert [body for body, _ in found] == [b"2", b"5", b"1", b"3", b"0", b"4"]
    assert [mark for _, mark in found] == [True] + [False] * 5
    brokers.finish()
