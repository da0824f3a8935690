"""After the loss of a master, what was delivered is marked, and of the rest only a little: see `claims`."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.broker.delivery.batch import Batch, Gap, Span
from leveret.broker.delivery.offsets import Start
from leveret.broker.queue.delivery_claims import AHEAD_MAX, AHEAD_MIN, DeliveryClaims
from leveret.broker.queue.queue import Queue
from leveret.metadata.model import commands as c
from leveret.storage.format.queue_block import PERSISTENT, REDELIVERED
from tests.support.control_world import cluster
from tests.support.ring_world import Rings

ONE, TWO, THREE = "one@host", "two@host", "three@host"
BACKLOG = 50_000


class Reader:
    """A consumer with a prefetch (0: none)."""

    tag = "reader"
    exclusive = False
    priority = 0
    begins_at: Start | None = None
    is_exact = False
    timeout_ms: int | None = None

    def __init__(self, queue: Queue, prefetch: int, no_ack: bool = False) -> None:
        self.queue = queue
        self.prefetch = prefetch
        self.no_ack = no_ack
        self.unacked = 0
        self.seen: list[int] = []
        self.pieces: list[tuple[Batch, int, int]] = []

    def room(self, average_bytes: int) -> int:
        return self.prefetch - self.unacked if self.prefetch else 1_000

    def deliver(self, batch: Batch, lo: int, hi: int) -> None:
        assert 0 < hi - lo <= self.room(1)
        self.seen += range(batch.first + lo, batch.first + hi)
        if not self.no_ack:
            self.unacked += hi - lo
            self.pieces.append((batch, lo, hi))

    def ack(self) -> None:
        pieces, self.pieces, self.unacked = self.pieces, [], 0
        for piece in pieces:
            self.queue.settle_delivered(*piece)

    def on_queue_deleted(self) -> None:
        pass


@pytest.fixture
def rings() -> Rings:
    return Rings(cluster(ONE, THREE, TWO))


def queue_at(rings: Rings, node: str, number: int) -> Queue:
    queue = rings.copy(node, number).queue
    assert isinstance(queue, Queue)
    return queue


def backlog(rings: Rings, count: int = BACKLOG) -> tuple[int, Queue]:
    number = rings.declare("q", ONE, TWO, THREE)
    rings.publish(ONE, "q", count)
    return number, queue_at(rings, ONE, number)


def marked(rings: Rings, number: int) -> list[int]:
    """The master is lost: messages that the next one takes for delivered."""
    rings.kill(ONE)
    rings.tick(20)
    master = rings.servers[TWO].world.metadata.queues["/", "q"].node
    queue = queue_at(rings, master, number)
    found: list[int] = []
    for entry in queue.ready:
        if isinstance(entry, Span):
            kinds = entry.batch.kinds[entry.lo : entry.hi]
            found += [entry.first + at for at, kind in enumerate(kinds) if kind & REDELIVERED]
        else:
            kept = rings.stores[master].stored(number)
            for low, high in kept.redelivered.ranges(entry.first, entry.last):
                found += range(low, high + 1)
    return found


def test_a_backlog_that_nobody_consumes_is_new_to_the_next_master(rings: Rings) -> None:
    number, _ = backlog(rings)
    assert marked(rings, number) == []


@pytest.mark.parametrize("prefetch", [1, 10, 300])
def test_of_a_backlog_only_what_was_delivered_and_a_few_more_is_marked(rings: Rings, prefetch: int) -> None:
    number, queue = backlog(rings)
    reader = Reader(queue, prefetch)
    queue.add_consumer(reader)
    rings.run()
    assert reader.seen == list(range(1, prefetch + 1))
    again = marked(rings, number)
    assert again[:prefetch] == reader.seen
    assert len(again) <= prefetch + max(2 * prefetch, AHEAD_MIN)


def test_publishes_do_not_make_it_more(rings: Rings) -> None:
    number, queue = backlog(rings)
    reader = Reader(queue, 10)
    queue.add_consumer(reader)
    rings.run()
    for _ in range(20):
        rings.publish(ONE, "q", 100)
    again = marked(rings, number)
    assert again[:10] == reader.seen and len(again) <= 10 + 2 * AHEAD_MIN


@pytest.mark.parametrize("prefetch", [3, 1_000])
def test_while_messages_are_acknowledged(rings: Rings, prefetch: int) -> None:
    """The claim is renewed before it is used up, and what is acknowledged is not marked but gone."""
    number, queue = backlog(rings)
    reader = Reader(queue, prefetch)
    queue.add_consumer(reader)
    for _ in range(12):
        rings.run()
        reader.ack()
    rings.run()
    assert len(reader.seen) == 13 * prefetch
    again = marked(rings, number)
    assert again[:prefetch] == reader.seen[-prefetch:]
    assert len(again) <= prefetch + 8 * prefetch + AHEAD_MIN


def test_what_is_published_and_delivered_at_once_is_marked(rings: Rings) -> None:
    number = rings.declare("q", ONE, TWO, THREE)
    queue = queue_at(rings, ONE, number)
    reader = Reader(queue, 100)
    queue.add_consumer(reader)
    rings.publish(ONE, "q", 40)
    assert reader.seen == list(range(1, 41)) == marked(rings, number)


@pytest.mark.parametrize("readers", [1, 2])
@pytest.mark.parametrize("gone", ["purged", "settled"])
def test_what_is_in_no_block_is_handed_out_at_once_if_nothing_waits_before_it(
    rings: Rings, gone: str, readers: int
) -> None:
    """Otherwise a message whose time to live is 0 would be dropped, though a consumer waits for it."""
    number, queue = backlog(rings, 5)
    if gone == "purged":
        queue.purge()
    else:
        for _ in range(5):
            got = queue.get()
            while isinstance(got, Gap):
                rings.run()
                got = queue.get()
            assert got is not None
            queue.settle_got(*got)
    rings.run()
    listening = [Reader(queue, 10) for _ in range(readers)]
    for reader in listening:
        queue.add_consumer(reader)
    for count in (1, 3):
        queue.enqueue([b"x"] * count, [b""] * count, PERSISTENT, count, None)
        queue.pump()
        assert queue.ready_count == 0
    rings.run()
    seen = sorted(one for reader in listening for one in reader.seen)
    assert seen == [6, 7, 8, 9] == marked(rings, number)


@pytest.mark.parametrize("readers", [1, 3])
def test_nothing_is_handed_out_that_the_mirrors_do_not_know_to_be(rings: Rings, readers: int) -> None:
    """The frames of one turn are lost with the master, wherever it is in its work."""
    for step in range(1, 30):
        number, queue = backlog(rings, 200)
        everybody = [Reader(queue, 20) for _ in range(readers)]
        for reader in everybody:
            queue.add_consumer(reader)
        server = rings.servers[ONE]
        for _ in range(step):
            for other in (server, rings.servers[TWO], rings.servers[THREE]):
                rings._turn(other)
            if rings.frames:
                src, dst, payload = rings.frames.popleft()
                rings.servers[dst].world.broker.mirrors.on_frame(src, payload)
            for reader in everybody[: step % 3]:
                reader.ack()
        rings.frames = type(rings.frames)(frame for frame in rings.frames if frame[0] != ONE)
        out = sorted(seq for reader in everybody for seq in reader.seen)
        again = marked(rings, number)
        kept = rings.stores[TWO].stored(number)
        spans = [entry for entry in queue_at(rings, TWO, number).ready if isinstance(entry, Span)]
        waiting = [seq for seq in out if seq in kept.live or any(one.first <= seq <= one.last for one in spans)]
        assert [seq for seq in waiting if seq not in again] == []
        rings = Rings(cluster(ONE, THREE, TWO))


def test_fast_consumers_are_not_held_up_for_long(rings: Rings) -> None:
    """Each claim that was too small doubles the next, up to a limit."""
    _, queue = backlog(rings)
    reader = Reader(queue, 0)
    queue.add_consumer(reader)
    blocks = queue.number
    rings.run()
    assert len(reader.seen) == BACKLOG
    assert queue.number - blocks < 20
    assert isinstance(queue.gate, DeliveryClaims) and queue.gate.ahead <= AHEAD_MAX


def test_get_claims_what_it_takes(rings: Rings) -> None:
    number, queue = backlog(rings, 100)
    got: list[Any] = []
    for _ in range(3):
        queue.fetch(False, lambda: True, got.append)
        rings.run()
    assert [one.batch.first + one.at for one in got] == [1, 2, 3]
    assert marked(rings, number) == [1, 2, 3]


def test_one_get_after_the_other(rings: Rings) -> None:
    """The ring is not asked for each of them."""
    number, queue = backlog(rings, 2_000)
    got: list[Any] = []
    blocks = queue.number
    for _ in range(1_000):
        queue.fetch(False, lambda: True, got.append)
        rings.run()
    assert [one.batch.first + one.at for one in got] == list(range(1, 1_001))
    assert queue.number - blocks < 200
    again = marked(rings, number)
    assert again[:1_000] == list(range(1, 1_001)) and len(again) < 1_070


def test_a_get_is_answered_if_what_it_waited_for_is_gone(rings: Rings) -> None:
    """A consumer has taken what came after that, which no claim was needed for."""
    number = rings.declare("q", ONE)
    rings.publish(ONE, "q", 1)
    queue = queue_at(rings, ONE, number)
    got: list[Any] = []
    queue.fetch(False, lambda: True, got.append)
    rings._turn(rings.servers[ONE])
    assert isinstance(queue.gate, DeliveryClaims) and queue.gate.under_way
    queue.purge()
    reader = Reader(queue, 10)
    queue.add_consumer(reader)
    queue.enqueue([b"x"], [b""], PERSISTENT, 1, None)
    queue.pump()
    assert reader.seen == [2] and got == []
    rings.servers[ONE].world.broker.dirty.clear()  # The next block waits for the disk.
    rings.run()
    assert got == [None]


def test_a_get_that_waits_is_answered_by_the_next_master(rings: Rings) -> None:
    """This node led it, and leads it again with the next epoch."""
    number, queue = backlog(rings, 10)
    got: list[Any] = []
    queue.fetch(False, lambda: True, got.append)
    assert got == []
    view = rings.servers[ONE].world.metadata.queues["/", "q"].view
    assert view is not None
    rings._propose(c.ChangeView("/", "q", number, view._replace(version=view.version + 1, epoch=2)))
    rings.run()
    rings.servers[ONE].world.finish_loads()
    assert queue.deleted and queue_at(rings, ONE, number) is not queue
    assert [(one.queue, one.batch.first + one.at) for one in got] == [(queue_at(rings, ONE, number), 1)]


def test_a_queue_that_becomes_mirrored_tells_what_is_out(rings: Rings) -> None:
    rings.declare("q")
    world = rings.servers[ONE].world
    queue = world.queue("q")
    assert isinstance(queue, Queue)
    reader = Reader(queue, 5)
    queue.add_consumer(reader)
    rings.publish(ONE, "q", 10)
    assert len(reader.seen) == 5
    rings._propose(c.SetPolicy("/", "p", "^q$", "queues", 0, {"ha-mode": "all", "ha-sync-mode": "automatic"}, False))
    rings.place()
    number = world.metadata.queues["/", "q"].id
    assert marked(rings, number)[:5] == reader.seen


def test_gaps_wait_as_well(rings: Rings) -> None:
    _, queue = backlog(rings, 100)
    assert queue.gate is not None and queue.open_through == 0
    (entry,) = queue.ready
    queue.ready.clear()
    queue.ready.append(Gap(entry.first, entry.last, entry.count))
    reader = Reader(queue, 0)
    queue.add_consumer(reader)
    queue.pump()
    assert queue.loading is None and queue.note_due and not reader.seen


def test_a_backlog_behind_numbers_that_were_never_used_is_delivered(rings: Rings) -> None:
    """A queue that was moved before it was mirrored has such a gap before its first message, or within."""
    number, queue = backlog(rings, 10)
    for _ in range(2):
        queue.number_from(queue.next_seq + (1 << 32))
        rings.publish(ONE, "q", 100)
    reader = Reader(queue, 0)
    queue.add_consumer(reader)
    rings.run()
    assert len(reader.seen) == 210
    assert marked(rings, number) == reader.seen
