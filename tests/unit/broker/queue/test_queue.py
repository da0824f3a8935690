"""Queues: order, sharing, what the log is told, and contents that come and go."""

from __future__ import annotations

import gc
import tracemalloc
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from leveret.base.range_set import Measured, Wanted, merged
from leveret.base.shared_values import NO_DEQUE
from leveret.base.timers import Timers
from leveret.broker.delivery.batch import Batch, Gap, GapRead, Shared, Span
from leveret.broker.delivery.confirms import Confirms
from leveret.broker.delivery.offsets import Start
from leveret.broker.event_journal.node_journal import NodeJournal
from leveret.broker.queue import ordered_queue
from leveret.broker.queue.features import Features
from leveret.broker.queue.local_queue import LocalQueue
from leveret.broker.queue.queue import Queue
from leveret.metadata.model.records import QueueSpec
from leveret.metadata.rules.queue_rules import PLAIN, QueueRules
from leveret.protocol import methods as m
from leveret.protocol.frames import HEADER_AT
from leveret.protocol.tables import table_from_python
from leveret.storage.format.queue_block import PERSISTENT, REDELIVERED, Block, Run
from tests.support.machines import MemoryLog, World


class Host:
    """The broker as a queue sees it, with a log that answers when told to."""

    def __init__(self, content_bytes_max: int = 1 << 40, spill_bytes_max: int = 1 << 40) -> None:
        self.dirty: dict[Queue, None] = {}
        self.content_bytes = 0
        self.content_bytes_max = content_bytes_max
        self.spill_bytes_max = spill_bytes_max
        self.unlogged_bytes = 0
        self.sharing: Shared | None = None
        self.log = MemoryLog()
        self.wanted: list[tuple[Queue, GapRead]] = []
        self.unused: list[LocalQueue] = []
        self.blocks: list[Block] = []
        self.waiting: list[Callable[[], None]] = []
        self.now_ms = self.wall_ms = 0
        self.timers: Timers[Queue] = Timers()
        self.idle: Timers[Queue] = Timers()
        self.expiring_left = 0
        self.overdue: dict[Queue, None] = {}
        self.rules = PLAIN
        self.policy_version = 0
        self.features = Features()
        self.dead_letters: Any = None  # No queue here has any.
        self.vhosts: dict[str, Any] = {}  # Nor is any published from here.
        self.journal: NodeJournal | None = None

    def rules_of(self, spec: QueueSpec) -> QueueRules:
        return self.rules

    def refresh(self, queue: LocalQueue) -> None:
        raise AssertionError("there are no policies here")

    def load(self, queue: Queue, read: GapRead) -> None:
        self.wanted.append((queue, read))

    def spill(self, queue: LocalQueue, runs: list[Run]) -> None:
        for run in runs:
            self.log.put(queue.spec.id, run)

    def when_loaded(self, queue: LocalQueue, then: Callable[[], None]) -> None:
        self.waiting.append(then)

    def on_opened(self, queue: LocalQueue) -> None:
        """Nothing waits here until a queue is open."""

    def came_meanwhile(self, queue: LocalQueue) -> int:
        return 0

    def free_later(self, rows: list[deque[Span | Gap]]) -> None:
        rows.clear()

    def go_on_soon(self, queue: LocalQueue) -> None:
        raise AssertionError("nothing here grows old")

    def on_unused(self, queue: LocalQueue, then: Callable[[], None] | None) -> None:
        self.unused.append(queue)

    def successor(self, queue: Any) -> None:
        """Nobody else leads it."""

    def counts_of(self, queue: LocalQueue) -> dict[int, int]:
        return {}

    def read_range(
        self, queue: int, first: int, last: int, bytes_max: int, then: Callable[[list[Run] | None, int], None]
    ) -> None:
        raise AssertionError("there is no stream")

    def stored_within(self, queue: LocalQueue, first: int, last: int) -> list[tuple[int, int]]:
        return self.log.measure(queue.spec.id, Wanted(first, last)).ranges

    def measure(self, queue: LocalQueue, wanted: Wanted) -> Measured:
        return self.log.measure(queue.spec.id, wanted)

    def note(self, text: str) -> None:
        raise AssertionError(text)

    def finish_load(self, messages_max: int) -> None:
        queue, read = self.wanted.pop(0)
        runs, after = self.log.read(queue.spec.id, read.first, read.last, messages_max)
        queue.on_loaded(read, runs, after)

    def flush(self, queue: Queue) -> Block | None:
        """A turn without deliveries: what changed is in the log, synced."""
        queue.close_batch()
        block = queue.take_block(0)
        if block is not None:
            self.log.append(block)
            self.blocks.append(block)
            if block.enqueued is not None:
                assert isinstance(block.enqueued, Batch)
                queue.on_logged(block.enqueued)
        return block


class Taker:
    """A consumer that takes so many, and remembers them."""

    def __init__(self, tag: str = "c", room: int = 1 << 30, no_ack: bool = False, exclusive: bool = False) -> None:
        self.tag = tag
        self.left = room
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.priority = 0
        self.begins_at: Start | None = None
        self.is_exact = False
        self.timeout_ms: int | None = None
        self.unacked = 0
        self.got: list[tuple[Batch, int]] = []
        self.cancelled = False

    def room(self, average_bytes: int) -> int:
        return self.left

    def deliver(self, batch: Batch, lo: int, hi: int) -> None:
        assert 0 < hi - lo <= self.left
        self.left -= hi - lo
        self.got += [(batch, at) for at in range(lo, hi)]

    def on_queue_deleted(self) -> None:
        self.cancelled = True

    @property
    def bodies(self) -> list[bytes]:
        return [batch.contents[at] for batch, at in self.got]


def a_queue(host: Host, durable: bool = True, auto_delete: bool = False) -> Queue:
    return Queue(QueueSpec(7, "/", "q", durable, False, auto_delete, {}, None, "node"), host)


def put(queue: Queue, *contents: bytes, kind: int = PERSISTENT) -> None:
    size = sum(map(len, contents))
    queue.enqueue(list(contents), [b"\x00\x01q"] * len(contents), kind, size, None)


def drained(queue: Queue) -> list[bytes]:
    taker = Taker()
    queue.add_consumer(taker)
    queue.pump()
    queue.remove_consumer(taker)
    return taker.bodies


def seqs(taker: Taker) -> list[int]:
    return [batch.first + at for batch, at in taker.got]


# -- Order and sharing ---------------------------------------------------------------------------------------------


def test_messages_leave_in_the_order_in_which_they_came() -> None:
    queue = a_queue(Host())
    put(queue, b"a", b"b")
    put(queue, b"c")
    assert (queue.ready_count, queue.next_seq) == (3, 4)
    assert drained(queue) == [b"a", b"b", b"c"]
    assert (queue.ready_count, queue.unacked_count, queue.delivered_through) == (0, 3, 3)


def test_what_is_given_back_goes_to_its_old_place() -> None:
    host = Host()
    queue, first = a_queue(host), Taker(room=4)
    put(queue, b"a", b"b", b"c", b"d", b"e")
    queue.add_consumer(first)
    queue.pump()
    queue.remove_consumer(first)
    batch = first.got[0][0]
    queue.requeue(batch, 2, 3)
    queue.requeue(batch, 0, 1)
    queue.settle_delivered(batch, 1, 2)
    queue.requeue(batch, 3, 4)
    second = Taker()
    queue.add_consumer(second)
    queue.pump()
    assert second.bodies == [b"a", b"c", b"d", b"e"]
    assert [bool(batch.kinds[at] & REDELIVERED) for batch, at in second.got] == [True, True, True, False]


def test_many_are_given_back_in_order_whatever_the_order_of_the_pieces() -> None:
    queue = a_queue(Host())
    put(queue, *(bytes((number,)) for number in range(10)))
    taker = Taker()
    queue.add_consumer(taker)
    queue.pump()
    queue.remove_consumer(taker)
    batch = taker.got[0][0]
    queue.requeue_many([(batch, 4, 6), (batch, 0, 4), (batch, 8, 10), (batch, 6, 8)])
    assert (queue.ready_count, queue.unacked_count) == (10, 0)
    assert drained(queue) == [bytes((number,)) for number in range(10)]


@pytest.mark.parametrize("arguments", [{}, {"x-max-priority": 3}], ids=["plain", "priorities"])
def test_what_lies_between_that_of_others_is_given_back_in_one_go(
    arguments: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two clients that had every other message are killed together."""
    world = World()
    first, second, publisher = world.client(), world.client(), world.client()
    publisher.declare("q", arguments=table_from_python(arguments))
    for client in (first, second):
        client.consume("q", tag="c")
    for number in range(400):
        publisher.publish("q", b"%03d" % number)
    queue = world.queue("q")
    assert first.connection.channels[1].session.unacked.count == 200
    looks = 0
    assert isinstance(Span.first, property) and Span.first.fget is not None
    number_of = Span.first.fget

    def counted(span: Span) -> int:
        nonlocal looks
        looks += 1
        return int(number_of(span))

    monkeypatch.setattr(Span, "first", property(counted))
    first.connection.on_socket_lost()
    second.connection.on_socket_lost()
    assert queue.ready_count == 400
    assert looks < 10 * 400
    publisher.take()
    publisher.consume("q", tag="c")
    assert publisher.bodies() == [b"%03d" % number for number in range(400)]


def test_consumers_take_turns_until_they_are_full() -> None:
    queue = a_queue(Host())
    small, middle, large = Taker("s", 1), Taker("m", 3), Taker("l", 100)
    for taker in (small, middle, large):
        queue.add_consumer(taker)
    put(queue, *(bytes((number,)) for number in range(12)))
    queue.pump()
    assert seqs(small) == [1]
    assert seqs(middle) == [2, 4, 6]
    assert seqs(large) == [3, 5, 7, 8, 9, 10, 11, 12]


def test_taking_turns_goes_on_where_it_stopped() -> None:
    queue = a_queue(Host())
    takers = [Taker(str(number)) for number in range(3)]
    for taker in takers:
        queue.add_consumer(taker)
    for number in range(7):
        put(queue, bytes((number,)))
        queue.pump()
    assert [seqs(taker) for taker in takers] == [[1, 4, 7], [2, 5], [3, 6]]


def test_a_full_consumer_gets_more_when_it_has_room() -> None:
    queue, taker = a_queue(Host()), Taker(room=1)
    queue.add_consumer(taker)
    put(queue, b"a", b"b")
    queue.pump()
    assert taker.bodies == [b"a"]
    taker.left = 1
    queue.pump()
    assert taker.bodies == [b"a", b"b"]


def test_no_ack_settles_at_once() -> None:
    host = Host()
    queue, taker = a_queue(host), Taker(no_ack=True)
    queue.add_consumer(taker)
    put(queue, b"a", b"b")
    queue.pump()
    assert (queue.ready_count, queue.unacked_count, host.content_bytes) == (0, 0, 0)


def test_get_takes_the_first() -> None:
    queue = a_queue(Host())
    assert queue.get() is None
    put(queue, b"a", b"b")
    got = queue.get()
    assert isinstance(got, tuple) and got[0].contents[got[1]] == b"a"
    assert (queue.ready_count, queue.unacked_count) == (1, 1)


def test_the_last_consumer_of_an_auto_delete_queue() -> None:
    host = Host()
    queue = a_queue(host, auto_delete=True)
    one, two = Taker("1"), Taker("2")
    queue.add_consumer(one)
    queue.add_consumer(two)
    queue.remove_consumer(one)
    assert host.unused == []
    queue.remove_consumer(two)
    assert host.unused == [queue]


def test_deletion_cancels_consumers_and_confirms() -> None:
    host, taker, ready = Host(), Taker(room=1), [0]
    queue = a_queue(host)
    queue.add_consumer(taker)
    confirms = Confirms(lambda: ready.append(1))
    pending = confirms.begin(2)
    queue.enqueue([b"abc", b"def"], [b"", b""], PERSISTENT, 6, pending)
    queue.pump()
    queue.on_deleted()
    assert taker.cancelled and not queue.consumers
    assert confirms.take() == [(2, True, False)]
    assert host.content_bytes == 0
    # Whoever still has one in hand settles it, and nothing happens.
    batch, at = taker.got[0]
    queue.settle_delivered(batch, at, at + 1)
    assert host.content_bytes == 0 and not queue.settled


# -- What the log is told ------------------------------------------------------------------------------------------


def test_a_block_holds_what_changed() -> None:
    host = Host()
    queue, taker = a_queue(host), Taker(room=3)
    put(queue, b"a", b"b", b"c", b"d")
    block = host.flush(queue)
    assert block is not None and block.enqueued is not None
    assert (block.number, block.enqueued.first, len(block.enqueued)) == (1, 1, 4)
    assert (block.settled, block.requeued, block.delivered_through) == ([], [], 0)
    queue.add_consumer(taker)
    queue.pump()
    batch = taker.got[0][0]
    queue.settle_delivered(batch, 2, 3)
    queue.settle_delivered(batch, 0, 1)
    queue.requeue(batch, 1, 2)
    block = host.flush(queue)
    assert block is not None
    assert (block.number, block.enqueued, block.settled, block.requeued) == (2, None, [(1, 1), (3, 3)], [(2, 2)])
    assert block.delivered_through == 3
    assert host.flush(queue) is None


def test_transient_messages_and_transient_queues_tell_the_log_nothing() -> None:
    for durable, kind in ((True, 0), (False, PERSISTENT)):
        host = Host()
        queue = a_queue(host, durable)
        put(queue, b"a", kind=kind)
        assert drained(queue) == [b"a"]
        assert not queue.has_changes() and host.flush(queue) is None


def test_what_is_settled_before_its_block_is_taken_is_in_the_block_as_settled() -> None:
    host = Host()
    queue = a_queue(host)
    taker = Taker(no_ack=True)
    queue.add_consumer(taker)
    put(queue, b"a", b"b")
    queue.pump()
    block = host.flush(queue)
    assert block is not None and block.settled == [(1, 2)]
    assert host.log.queues[7] == {}


def test_ranges_are_merged() -> None:
    assert merged([]) == []
    assert merged([(5, 6), (1, 2), (3, 3), (9, 9), (2, 5)]) == [(1, 6), (9, 9)]


# -- Contents that come and go -------------------------------------------------------------------------------------


@pytest.fixture
def keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordered_queue, "KEEP_BYTES", 0)


@pytest.mark.usefixtures("keeps_nothing")
def test_contents_the_log_has_are_forgotten_and_read_again() -> None:
    host = Host(content_bytes_max=0)
    queue = a_queue(host)
    put(queue, b"a", b"b", b"c")
    host.flush(queue)
    assert [type(entry) for entry in queue.ready] == [Gap]
    assert (queue.ready_count, host.content_bytes, queue.memory_bytes) == (3, 0, 0)
    taker = Taker()
    queue.add_consumer(taker)
    queue.pump()
    assert taker.got == [] and len(host.wanted) == 1
    host.finish_load(2)
    queue.pump()
    assert taker.bodies == [b"a", b"b"]
    host.finish_load(2)
    queue.pump()
    assert taker.bodies == [b"a", b"b", b"c"]
    for batch, at in taker.got:
        queue.settle_delivered(batch, at, at + 1)
    host.flush(queue)
    assert (queue.ready_count, queue.unacked_count, host.content_bytes) == (0, 0, 0)
    assert host.log.queues[7] == {}


@pytest.mark.usefixtures("keeps_nothing")
def test_a_gap_that_is_being_read_is_not_joined_to_another() -> None:
    host = Host(content_bytes_max=3)
    queue = a_queue(host)
    put(queue, b"aaa")
    host.flush(queue)
    put(queue, b"bbb")
    host.flush(queue)
    assert [type(entry) for entry in queue.ready] == [Span, Gap]
    queue.add_consumer(Taker(room=0))
    queue.pump()
    assert queue.loading is not None and queue.loading.gap is queue.ready[1]
    host.content_bytes_max = 0
    queue.page_out()
    host.finish_load(10)
    host.content_bytes_max = 100
    while host.wanted:
        host.finish_load(10)
        queue.pump()
    taker = Taker()
    queue.consumers = deque([taker])
    while queue.ready:
        queue.pump()
        if host.wanted:
            host.finish_load(10)
    assert taker.bodies == [b"aaa", b"bbb"]


@pytest.mark.usefixtures("keeps_nothing")
def test_a_purge_while_a_gap_is_being_read() -> None:
    host = Host(content_bytes_max=0)
    queue = a_queue(host)
    put(queue, b"a", b"b")
    host.flush(queue)
    assert isinstance(queue.get(), Gap)
    assert queue.purge() == 2
    put(queue, b"c")
    host.finish_load(10)
    assert queue.ready_count == 1
    assert drained(queue) == [b"c"]
    host.flush(queue)
    assert set(host.log.queues[7]) == {3}


def a_gap(host: Host, *contents: bytes) -> tuple[Queue, Gap]:
    """A queue whose messages only the log has."""
    queue = a_queue(host)
    put(queue, *contents)
    host.flush(queue)
    queue.page_out()
    (gap,) = queue.ready
    assert isinstance(gap, Gap)
    return queue, gap


@pytest.mark.usefixtures("keeps_nothing")
def test_a_read_that_another_one_has_replaced_does_not_count() -> None:
    host, taker = Host(content_bytes_max=0), Taker()
    queue, gap = a_gap(host, b"a", b"b", b"c", b"d", b"e")
    queue.add_consumer(taker)
    queue.pump()
    queue.stop_loading(gap)
    queue.take_from_gap(gap, 2, 2)  # As a lease does.
    queue.pump()
    assert len(host.wanted) == 2
    while host.wanted:
        host.finish_load(10)
        queue.pump()
    assert taker.bodies == [b"c", b"d", b"e"]
    assert queue.ready_count == 0


@pytest.mark.usefixtures("keeps_nothing")
@pytest.mark.parametrize(("dropped", "read"), [(1, 5), (2, 5), (2, 3), (3, 2), (4, 2), (5, 2)])
def test_what_a_length_limit_drops_while_it_is_read_is_gone(dropped: int, read: int) -> None:
    """The read itself goes on: where every publish drops a message, consumers would get none otherwise."""
    host, taker, contents = Host(content_bytes_max=0), Taker(), [b"a", b"b", b"c", b"d", b"e"]
    queue, gap = a_gap(host, *contents)
    queue.add_consumer(taker)
    queue.pump()
    assert queue.drop_gap(gap, dropped) == dropped
    queue.pump()
    assert len(host.wanted) == 1
    while host.wanted:
        host.finish_load(read)
        queue.pump()
    assert taker.bodies == contents[dropped:]
    assert queue.ready_count == 0 and not queue.ready


@pytest.mark.usefixtures("keeps_nothing")
def test_bytes_of_dropped_messages_count_no_longer() -> None:
    host = Host(content_bytes_max=0)
    host.rules = QueueRules(max_bytes=1_000)
    head = bytes(HEADER_AT + 4) + (100).to_bytes(8, "big")  # As far as the size of the body.
    queue, gap = a_gap(host, head, head, head, head)
    assert queue.ready_bytes == 400
    queue.drop_gap(gap, 1)
    assert queue.ready_bytes == 300
    queue.add_consumer(Taker(room=1))
    queue.pump()
    host.finish_load(10)
    queue.pump()
    assert queue.ready_bytes == 200 and queue.ready_count == 2


@pytest.mark.usefixtures("keeps_nothing")
def test_contents_stay_as_long_as_one_of_their_batch_is_out() -> None:
    host = Host()
    queue, taker = a_queue(host), Taker(room=1)
    put(queue, b"a", b"b", b"c")
    host.flush(queue)
    queue.add_consumer(taker)
    queue.pump()
    host.content_bytes_max = 0
    queue.page_out()
    assert host.content_bytes > 0
    batch, at = taker.got[0]
    queue.remove_consumer(taker)
    queue.requeue(batch, at, at + 1)
    queue.page_out()
    assert (host.content_bytes, queue.ready_count) == (0, 3)
    host.content_bytes_max = 100
    again = Taker()
    queue.add_consumer(again)
    queue.pump()
    while host.wanted:
        host.finish_load(10)
        queue.pump()
    assert again.bodies == [b"a", b"b", b"c"]


@pytest.mark.usefixtures("keeps_nothing")
@pytest.mark.parametrize("marked", [[0, 1], [1], [0, 2, 4], [1, 2], list(range(0, 40, 2))])
def test_marks_that_the_log_does_not_know_outlive_the_contents(marked: list[int]) -> None:
    """A master's log does not know what was given out by the one before it."""
    host = Host()
    queue, count = a_queue(host), 1 + max(marked[-1], 4)
    put(queue, *(b"%d" % number for number in range(count)))
    host.flush(queue)
    head = queue.ready[0]
    assert isinstance(head, Span)
    for at in marked:
        head.batch.mark_redelivered(at, at + 1)
    host.content_bytes_max = 0
    queue.page_out()
    assert not host.content_bytes and all(isinstance(entry, Gap) for entry in queue.ready)
    host.content_bytes_max = 1 << 20
    again = Taker()
    queue.add_consumer(again)
    queue.pump()
    while host.wanted:
        host.finish_load(10)
        queue.pump()
    assert again.bodies == [b"%d" % number for number in range(count)]
    told = [number for number, (batch, at) in enumerate(again.got) if batch.kinds[at] & REDELIVERED]
    assert told == marked if len(marked) < 8 else told == list(range(count))


@pytest.mark.usefixtures("keeps_nothing")
def test_marks_stay_with_what_comes_back_unseen_after_its_contents_were_forgotten() -> None:
    host = Host()
    queue, taker = a_queue(host), Taker()
    put(queue, b"a", b"b", b"c")
    host.flush(queue)
    head = queue.ready[0]
    assert isinstance(head, Span)
    head.batch.mark_redelivered(0, 1)
    queue.add_consumer(taker)
    queue.pump()
    batch, _ = taker.got[0]
    queue.page_out_unacked(batch, 3)
    queue.remove_consumer(taker)
    queue.requeue(batch, 0, 3, shown=False)
    again = Taker()
    queue.add_consumer(again)
    queue.pump()
    while host.wanted:
        host.finish_load(10)
        queue.pump()
    assert again.bodies == [b"a", b"b", b"c"]
    assert [bool(batch.kinds[at] & REDELIVERED) for batch, at in again.got] == [True, False, False]


@pytest.mark.usefixtures("keeps_nothing")
def test_transient_contents_are_spilled_when_memory_is_very_short() -> None:
    host = Host(content_bytes_max=0, spill_bytes_max=0)
    queue = a_queue(host, durable=False)
    put(queue, b"a", b"b", kind=0)
    queue.close_batch()
    queue.page_out()
    assert (host.content_bytes, queue.ready_count) == (0, 2)
    host.content_bytes_max = 100
    taker = Taker(no_ack=True)
    queue.add_consumer(taker)
    queue.pump()
    host.finish_load(10)
    queue.pump()
    assert taker.bodies == [b"a", b"b"]
    host.flush(queue)
    assert host.log.queues[7] == {}, "what was spilled must be settled in the log"


@pytest.mark.usefixtures("keeps_nothing")
@pytest.mark.parametrize("durable", [True, False])
def test_the_rest_of_a_batch_that_was_spilled_can_be_spilled_too(durable: bool) -> None:
    """The first message is out with a consumer while those behind it are spilled, and comes back."""
    host = Host(content_bytes_max=0, spill_bytes_max=0)
    queue = a_queue(host, durable)
    put(queue, b"a", b"b", b"c", kind=0)
    got = queue.get()
    assert isinstance(got, tuple)
    queue.close_batch()
    queue.page_out()
    queue.requeue_many([(got[0], 0, 1)])
    queue.page_out()
    assert (host.content_bytes, queue.ready_count) == (0, 3)
    host.content_bytes_max = 100
    taker = Taker(no_ack=True)
    queue.add_consumer(taker)
    queue.pump()
    while host.wanted:
        host.finish_load(10)
        queue.pump()
    assert taker.bodies == [b"a", b"b", b"c"]
    host.flush(queue)
    assert host.log.queues[7] == {}, "what was spilled must be settled in the log"


@pytest.mark.usefixtures("keeps_nothing")
@pytest.mark.parametrize("seed", range(150))
def test_any_sequence_of_operations_keeps_order_and_counts(seed: int) -> None:
    """Against a list: what waits, and a dictionary: what is out."""
    random = Random(seed)
    host = Host(content_bytes_max=random.choice((0, 5, 20)), spill_bytes_max=random.choice((0, 30, 1 << 40)))
    queue = a_queue(host, durable=random.random() < 0.8)
    waiting: list[int] = []
    out: dict[int, tuple[Batch, int]] = {}
    delivered: set[int] = set()
    for _ in range(120):
        step = random.choice(
            ("put", "put", "get", "get", "ack", "requeue", "purge", "drop", "flush", "flush", "load", "page")
        )
        if step == "put":
            first = queue.next_seq
            waiting += range(first, first + 3)
            put(queue, *(str(seq).encode() for seq in range(first, first + 3)), kind=random.choice((0, PERSISTENT)))
        elif step == "get":
            got = queue.get()
            if isinstance(got, tuple):
                seq = got[0].first + got[1]
                assert seq == waiting.pop(0), "out of order"
                assert got[0].contents[got[1]] == str(seq).encode()
                assert bool(got[0].kinds[got[1]] & REDELIVERED) == (seq in delivered)
                out[seq] = got
                delivered.add(seq)
            else:
                assert (got is None) == (not waiting)
        elif step in ("ack", "requeue") and out:
            seq = random.choice(sorted(out))
            batch, at = out.pop(seq)
            if step == "ack":
                queue.settle_delivered(batch, at, at + 1)
            else:
                queue.requeue_many([(batch, at, at + 1)])
                waiting = sorted([*waiting, seq])
        elif step == "purge" and random.random() < 0.2:
            assert queue.purge() == len(waiting)
            waiting = []
        elif step == "drop":
            chosen = sorted(random.sample(range(1, queue.next_seq + 2), min(3, queue.next_seq)))
            assert queue.drop_numbers([(seq, seq) for seq in chosen]) == len({*chosen} & {*waiting})
            waiting = [seq for seq in waiting if seq not in chosen]
        elif step == "flush":
            host.flush(queue)
        elif step == "load" and host.wanted:
            host.finish_load(random.choice((1, 2, 100)))
        elif step == "page":
            queue.page_out()
            for batch, _ in out.values():
                queue.page_out_unacked(batch, sum(1 for other, _ in out.values() if other is batch))
        assert queue.ready_count == len(waiting)
        assert queue.unacked_count == len(out)
        assert queue.memory_bytes == host.content_bytes >= 0
        firsts = [entry.first for entry in queue.ready]
        assert firsts == sorted(firsts)
    for batch, at in out.values():
        queue.settle_delivered(batch, at, at + 1)
    queue.purge()
    host.flush(queue)
    assert host.content_bytes == 0
    assert not host.log.queues.get(7)


# -- With clients --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("keeps_nothing")
def test_a_backlog_goes_through_a_small_memory() -> None:
    world = World(content_bytes_max=2000)
    world.load_messages_max = 7
    client = world.client()
    client.declare("q", durable=True)
    for number in range(100):
        client.publish("q", b"%03d" % number * 10, delivery_mode=2)
    assert world.broker.content_bytes <= 2000
    assert world.queue("q").ready_count == 100
    client.call(m.BasicQos(prefetch_count=10))
    client.consume("q")
    bodies = []
    while taken := client.take():
        bodies += [reply.body for reply in taken]
        last = taken[-1].method
        assert isinstance(last, m.BasicDeliver)
        client.send(m.BasicAck(last.delivery_tag, True))
    assert bodies == [b"%03d" % number * 10 for number in range(100)]
    assert world.broker.content_bytes == 0
    assert not any(world.log.queues.values())


@pytest.mark.usefixtures("keeps_nothing")
@pytest.mark.parametrize("end", ["delete", "purge", "lose"])
def test_contents_are_given_up_however_a_queue_ends(end: str) -> None:
    world = World(content_bytes_max=500)
    client = world.client()
    client.declare("q", durable=True, exclusive=end == "lose")
    for number in range(20):
        client.publish("q", bytes(100), delivery_mode=1 + number % 2)
    client.send(m.BasicGet(queue="q"), m.BasicGet(queue="q"), m.BasicGet(queue="q"))
    if end == "delete":
        client.send(m.QueueDelete(queue="q"))
    elif end == "purge":
        client.send(m.QueuePurge(queue="q"), m.BasicAck(3, True))
    else:
        client.lose()
    assert world.broker.content_bytes == 0
    assert not any(world.log.queues.values())


def test_deletion_of_a_queue_frees_confirms_and_acks() -> None:
    world = World()
    world.holds_disk = True
    client, other = world.client(), world.client()
    client.declare("q", durable=True)
    client.send(m.ConfirmSelect(), m.BasicConsume(queue="q", consumer_tag="c"))
    client.publish("q", b"abc", delivery_mode=2)
    assert len(client.methods()) == 3
    other.send(m.QueueDelete(queue="q"))
    world.sync()
    world.turn()
    assert client.methods() == [m.BasicCancel("c", True), m.BasicAck(1, False)]
    client.send(m.BasicAck(1), m.ChannelFlow(True))
    assert client.methods() == [m.ChannelFlowOk(True)]


# -- Memory of a queue that nobody uses ------------------------------------------------------------------------------


def test_a_queue_that_nobody_uses_takes_little_memory() -> None:
    host, count = Host(), 200
    spec = QueueSpec(7, "/", "q", True, False, False, {}, None, "node")
    Queue(spec, host)  # What is made once for all queues is there.
    host.dirty.clear()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        queues = [Queue(spec, host) for _ in range(count)]
        host.dirty.clear()
        gc.collect()  # Python 3.11 keeps up to 2,000 tuples of 20, as comparing rules makes, and never uses them.
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (after - before) / len(queues) < 1_000  # Empty deques and dictionaries of its own would be 3,000.


def test_an_empty_queue_without_consumers_gives_its_parts_back_and_counts_on() -> None:
    host = Host()
    queue, taker = a_queue(host), Taker()
    put(queue, b"a")
    queue.add_consumer(taker)
    queue.pump()
    queue.remove_consumer(taker)
    host.flush(queue)
    assert queue.ready is NO_DEQUE and queue.consumers is NO_DEQUE
    queue.requeue(taker.got[0][0], 0, 1)
    put(queue, b"b")
    assert drained(queue) == [b"a", b"b"]
    assert (queue.totals.published, queue.totals.delivered) == (2, 3)
