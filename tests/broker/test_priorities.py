"""Queues with priorities: order, what comes back, contents that come and go, restarts, mirrors."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pika
import pytest

from leveret.amqp import methods as m
from leveret.amqp.properties import Properties, body_size, encode, priority
from leveret.amqp.tables import Field, table_from_python
from leveret.broker import queue as queue_module
from leveret.broker.batch import Batch, Gap, Span
from leveret.broker.bequest import reserve
from leveret.broker.confirms import Pending
from leveret.broker.levels import HEADER_AT, Levels
from leveret.broker.priorities import ExactClaims, PriorityQueue
from leveret.broker.queue import Queue
from leveret.broker.timers import Timers
from leveret.cluster import commands as c
from leveret.cluster.queue_rules import QueueRules
from leveret.cluster.specs import QueueSpec
from leveret.log.block import PERSISTENT, REDELIVERED, Block, Run
from tests.conftest import Start
from tests.machines import Client, MemoryLog, World, publish
from tests.node.control_world import cluster
from tests.node.ring_world import Rings

ONE, TWO, THREE = "one@host", "two@host", "three@host"
UNLIMITED = 1 << 40


class Host:
    """The broker as a queue sees it, with a log that answers when told to."""

    def __init__(self, log: MemoryLog | None = None) -> None:
        self.dirty: dict[Queue, None] = {}
        self.content_bytes = self.unlogged_bytes = self.now_ms = self.wall_ms = 0
        self.content_bytes_max = self.spill_bytes_max = UNLIMITED
        self.log = log or MemoryLog()
        self.spilled: set[int] = set()
        self.wanted: list[tuple[Queue, Gap]] = []
        self.timers: Timers[Queue] = Timers()
        self.idle: Timers[Queue] = Timers()
        self.rules = QueueRules(max_priority=5)

    def rules_of(self, spec: QueueSpec) -> QueueRules:
        return self.rules

    def load(self, queue: Queue, gap: Gap) -> None:
        self.wanted.append((queue, gap))

    def spill(self, queue: Queue, runs: list[Run]) -> None:
        for run in runs:
            numbers = set(range(run.first, run.last + 1))
            assert not numbers & self.spilled, "messages are spilled once"
            self.spilled |= numbers
            self.log.put(queue.spec.id, run)

    def when_loaded(self, queue: Queue, then: Callable[[], None]) -> None:
        raise NotImplementedError

    def stored_within(self, queue: Queue, first: int, last: int) -> list[tuple[int, int]]:
        return [(seq, seq) for seq in sorted(self.log.queues[queue.spec.id]) if first <= seq <= last]

    def finish_load(self, messages_max: int) -> None:
        queue, gap = self.wanted.pop(0)
        runs, after = self.log.read(queue.spec.id, gap.first, gap.last, messages_max)
        queue.on_loaded(gap, runs, after)

    def flush(self, queue: Queue) -> Block | None:
        queue.close_batch()
        block = queue.take_block(0)
        if block is not None:
            self.log.append(block)
            if block.enqueued is not None:
                assert isinstance(block.enqueued, Batch)
                queue.on_logged(block.enqueued)
        return block


class Taker:
    """A consumer that takes so many, and remembers them."""

    tag = "c"
    no_ack = exclusive = False
    priority = unacked = 0
    timeout_ms: int | None = None
    begins_at = None

    def __init__(self, room: int = 1 << 30) -> None:
        self.left = room
        self.got: list[tuple[Batch, int]] = []

    def room(self, average_bytes: int) -> int:
        assert average_bytes > 0
        return self.left

    def deliver(self, batch: Batch, lo: int, hi: int) -> None:
        assert 0 < hi - lo <= self.left
        self.left -= hi - lo
        self.got += [(batch, at) for at in range(lo, hi)]

    def on_queue_deleted(self) -> None:
        pass


def content(body: bytes, level: int | None, more: bool = False, mode: int | None = None) -> bytes:
    """As messages are stored. `more`: with properties in front of the priority."""
    properties = Properties(priority=level, delivery_mode=mode)
    if more:
        properties.content_type, properties.headers = "text/plain", {"a": Field("S", "b")}
    header = encode(properties, len(body))
    frames = b"\x02\x00\x01" + len(header).to_bytes(4, "big") + header + b"\xce"
    return frames + b"\x03\x00\x01" + len(body).to_bytes(4, "big") + body + b"\xce"


def body_of(stored: bytes) -> bytes:
    return stored[-1 - body_size(stored, HEADER_AT) : -1]


def a_queue(host: Host, highest: int = 5, durable: bool = True) -> PriorityQueue:
    return PriorityQueue(QueueSpec(7, "/", "q", durable, False, False, {}, None, "node"), host, highest)


def put(queue: Queue, *contents: bytes, kind: int = PERSISTENT) -> None:
    queue.enqueue(list(contents), [b"\x00\x01q"] * len(contents), kind, sum(map(len, contents)), None)


def take(host: Host, queue: Queue, count: int, piece: int = 1000) -> list[tuple[Batch, int]]:
    """What a consumer with so much room gets, once all that is needed for it is read."""
    taker = Taker(count)
    queue.add_consumer(taker)
    queue.pump()
    while host.wanted:
        host.finish_load(piece)
        queue.pump()
    queue.remove_consumer(taker)
    return taker.got


def bodies(got: list[tuple[Batch, int]]) -> list[bytes]:
    return [body_of(batch.contents[at]) for batch, at in got]


@pytest.fixture
def keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_module, "KEEP_BYTES", 0)


# -- Levels ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize("mode", [None, 2])
@pytest.mark.parametrize("level", [None, 0, 1, 5, 6, 255])
def test_the_level_of_a_message_is_its_priority(level: int | None, mode: int | None, more: bool) -> None:
    stored = content(b"abc", level, more, mode)
    assert priority(stored, HEADER_AT) == level
    batch = Batch(1)
    batch.contents = [stored]
    assert list(Levels(5).split(batch, 0, 1)) == [(min(level or 0, 5), 0, 1)]


def test_a_bundle_is_cut_where_the_level_changes() -> None:
    batch = Batch(1)
    batch.contents = [content(b"", level) for level in (None, 0, 3, 9, 200, 5, 1)]
    assert list(Levels(5).split(batch, 0, 7)) == [(0, 0, 2), (3, 2, 3), (5, 3, 6), (1, 6, 7)]
    assert list(Levels(5).split(batch, 4, 6)) == [(5, 4, 6)]


def test_a_bundle_of_one_level_is_one_span() -> None:
    queue = a_queue(Host())
    put(queue, *(content(b"x", 2) for _ in range(100)))
    put(queue, *(content(b"x", 2) for _ in range(100)))
    assert [(entry.first, entry.last) for entry in queue.ready] == [(1, 200)]


# -- Order -------------------------------------------------------------------------------------------------------------


def test_the_highest_first_and_within_a_priority_the_oldest() -> None:
    host = Host()
    queue = a_queue(host)
    for body, level in ((b"a", None), (b"b", 9), (b"c", 3), (b"d", 5), (b"e", 0), (b"f", 255), (b"g", 3)):
        put(queue, content(body, level))
    assert bodies(take(host, queue, 100)) == [b"b", b"d", b"f", b"c", b"g", b"a", b"e"]
    assert not queue.ready and queue.ready_count == 0


def test_what_is_given_back_goes_to_its_old_place() -> None:
    host = Host()
    queue = a_queue(host)
    put(queue, *(content(b"%d" % number, number % 3) for number in range(6)))
    first = take(host, queue, 4)
    assert bodies(first) == [b"2", b"5", b"1", b"4"]
    put(queue, content(b"n", 1))
    for index in (2, 0, 3, 1):
        batch, at = first[index]
        queue.requeue(batch, at, at + 1)
    again = take(host, queue, 100)
    assert bodies(again) == [b"2", b"5", b"1", b"4", b"n", b"0", b"3"]
    assert [bool(batch.kinds[at] & REDELIVERED) for batch, at in again] == [True] * 4 + [False] * 3


def test_a_bundle_of_several_levels_that_was_delivered_in_one_comes_back_sorted() -> None:
    host = Host()
    queue = a_queue(host)
    put(queue, content(b"high", 5), content(b"low", 0))
    (batch, _), _ = take(host, queue, 2)
    put(queue, content(b"middle", 3))
    queue.requeue(batch, 0, 2)
    assert bodies(take(host, queue, 3)) == [b"high", b"middle", b"low"]


def test_several_consumers_share_what_is_first() -> None:
    host = Host()
    queue = a_queue(host)
    one, two = Taker(), Taker()
    queue.add_consumer(one)
    queue.add_consumer(two)
    put(queue, *(content(b"%d" % number, number % 2) for number in range(6)))
    queue.pump()
    assert sorted(bodies(one.got + two.got)) == [b"%d" % number for number in range(6)]
    assert bodies(one.got)[0] == b"1" and bodies(two.got)[0] == b"3"


# -- What the log knows ------------------------------------------------------------------------------------------------


def test_only_what_was_delivered_is_marked_after_a_crash() -> None:
    """The last one was delivered; those below it in number, and in priority, were not."""
    host = Host()
    queue = a_queue(host)
    put(queue, *(content(b"%d" % number, 0) for number in range(5)), content(b"high", 4), content(b"higher", 5))
    host.flush(queue)
    got = take(host, queue, 2)
    assert queue.delivered_through > queue.noted_through  # Which the broker looks at, and has a block made.
    queue.settle_delivered(got[0][0], got[0][1], got[0][1] + 1)
    block = host.flush(queue)
    assert block is not None
    assert (block.settled, block.requeued, block.delivered_through) == ([(7, 7)], [(6, 6)], 0)
    assert queue.delivered_through == queue.noted_through
    assert not queue.has_changes()


def test_a_get_is_noted_as_well() -> None:
    host = Host()
    queue = a_queue(host)
    put(queue, content(b"a", 0), content(b"b", 1))
    host.flush(queue)
    assert isinstance(queue.get(), tuple)
    queue.note_due = True
    block = host.flush(queue)
    assert block is not None and block.requeued == [(2, 2)]


# -- Contents that come and go -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("keeps_nothing")
def test_the_lowest_is_forgotten_first_although_its_batch_stays() -> None:
    host = Host()
    queue = a_queue(host)
    put(queue, *(content(b"%d" % number * 50, number % 3) for number in range(9)))
    host.flush(queue)
    whole = host.content_bytes
    host.content_bytes_max = whole // 3 + 100
    queue.page_out()
    assert [type(entry) for entry in queue.ready] == [Span, Span, Span, Gap, Gap]
    assert [list(entry.ranges or ()) for entry in queue.ready if isinstance(entry, Gap)] == [
        [(2, 2), (5, 5), (8, 8)],
        [(1, 1), (4, 4), (7, 7)],
    ]
    assert host.content_bytes == queue.memory_bytes <= host.content_bytes_max
    assert sum(map(len, queue.ready[0].batch.contents)) < whole // 2  # type: ignore[union-attr]
    assert bodies(take(host, queue, 100, piece=2)) == [b"%d" % number * 50 for number in (2, 5, 8, 1, 4, 7, 0, 3, 6)]


@pytest.mark.usefixtures("keeps_nothing")
def test_a_purge_settles_what_is_forgotten_and_nothing_else() -> None:
    host = Host()
    queue = a_queue(host)
    put(queue, *(content(b"%d" % number, number % 3) for number in range(9)))
    host.flush(queue)
    out = take(host, queue, 4)
    host.content_bytes_max = 0
    queue.page_out()
    assert queue.purge() == 5
    block = host.flush(queue)
    assert block is not None
    gone = {seq for first, last in block.settled for seq in range(first, last + 1)}
    assert gone == set(range(1, 10)) - {batch.first + at for batch, at in out}


@pytest.mark.usefixtures("keeps_nothing")
@pytest.mark.parametrize("durable", [True, False])
def test_transient_messages_are_spilled_level_by_level(durable: bool) -> None:
    host = Host()
    queue = a_queue(host, durable=durable)
    put(queue, *(content(b"%d" % number, number % 3) for number in range(9)), kind=0)
    host.flush(queue)
    host.content_bytes_max = host.spill_bytes_max = host.content_bytes // 2
    queue.page_out()
    assert 0 < len(host.spilled) < 9
    host.content_bytes_max = host.spill_bytes_max = 0
    queue.page_out()
    assert len(host.spilled) == 9 and not host.content_bytes
    assert bodies(take(host, queue, 100, piece=2)) == [b"%d" % number for number in (2, 5, 8, 1, 4, 7, 0, 3, 6)]


@pytest.mark.usefixtures("keeps_nothing")
def test_what_comes_while_all_is_unsorted_waits_its_turn() -> None:
    host = Host()
    queue = a_queue(host)
    put(queue, *(content(b"%d" % number, number % 2) for number in range(6)))
    host.flush(queue)
    again = a_queue(Host(host.log))
    again.restore(queue.number, 2, queue.next_seq, 1, 6, 6, 0)
    put(again, content(b"new", 1), content(b"newest", 5))
    taker = Taker()
    again.add_consumer(taker)
    host = again.host  # type: ignore[assignment]
    for _ in range(3):
        again.pump()
        assert not taker.got
        host.finish_load(2)
    again.pump()
    assert bodies(taker.got) == [b"newest", b"1", b"3", b"5", b"new", b"0", b"2", b"4"]


# -- A model -----------------------------------------------------------------------------------------------------------


class Model:
    """What a queue with priorities is, in the plainest way."""

    def __init__(self) -> None:
        self.level: dict[int, int] = {}
        self.body: dict[int, bytes] = {}
        self.lasting: set[int] = set()
        self.marked: set[int] = set()
        self.waiting: set[int] = set()
        self.out: set[int] = set()

    def next(self, count: int) -> list[int]:
        return sorted(self.waiting, key=lambda seq: (-self.level[seq], seq))[:count]


class Play:
    """One life of a queue after the other, with dice."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.model = Model()
        self.host = Host()
        self.queue = a_queue(self.host)
        self.out: dict[int, tuple[Batch, int]] = {}
        self.check_redelivered = True

    def run(self, steps: int) -> None:
        moves = [
            self.publish, self.publish, self.publish, self.consume, self.consume, self.ack, self.give_back, self.flush,
            self.flush, self.page, self.page_unacked, self.inherit, self.restart, self.purge,
        ]  # fmt: skip
        weights = [6, 6, 6, 6, 6, 6, 5, 6, 6, 8, 2, 2, 1, 0.3]
        for _ in range(steps):
            self.dice.choices(moves, weights)[0]()
            self.check()
        self.host.content_bytes_max = UNLIMITED
        self._consume(1 << 20)

    def check(self) -> None:
        queue, model = self.queue, self.model
        assert queue.ready_count == len(model.waiting) == sum(entry.count for entry in queue.ready)
        assert queue.unacked_count == len(model.out)
        assert queue.memory_bytes == self.host.content_bytes >= 0
        levels = queue.levels
        assert levels.filled == sum(1 << level for level, row in levels.rows.items() if row)
        for row in levels.rows.values():
            assert all(one.last < other.first for one, other in zip(row, list(row)[1:], strict=False))

    def publish(self) -> None:
        dice, model = self.dice, self.model
        kind = dice.choice([PERSISTENT, PERSISTENT, 0])
        levels = [dice.randrange(8)] * dice.randrange(1, 9)
        if dice.random() < 0.6:
            levels = [dice.randrange(8) for _ in levels]
        contents = []
        for level in levels:
            seq = self.queue.next_seq + len(contents)
            body = b"%d" % seq * dice.randrange(1, 20)
            contents.append(content(body, level, dice.random() < 0.3))
            model.level[seq], model.body[seq] = min(level, 5), body
            model.waiting.add(seq)
            if kind:
                model.lasting.add(seq)
        put(self.queue, *contents, kind=kind)

    def consume(self) -> None:
        self._consume(self.dice.randrange(1, 12))

    def _consume(self, count: int) -> None:
        model = self.model
        expected = model.next(count)
        got = take(self.host, self.queue, count, self.dice.randrange(1, 20))
        assert [batch.first + at for batch, at in got] == expected
        assert bodies(got) == [model.body[seq] for seq in expected]
        assert {batch.first + at for batch, at in got if batch.kinds[at] & REDELIVERED} == model.marked & set(expected)
        for batch, at in got:
            self.out[batch.first + at] = (batch, at)
        model.waiting -= set(expected)
        model.out |= set(expected)

    def _some_out(self) -> list[int]:
        return self.dice.sample(sorted(self.out), min(len(self.out), self.dice.randrange(6)))

    def ack(self) -> None:
        for seq in self._some_out():
            batch, at = self.out.pop(seq)
            self.model.out.discard(seq)
            self.queue.settle_delivered(batch, at, at + 1)

    def give_back(self) -> None:
        some = self._some_out()
        self.queue.requeue_many([(batch, at, at + 1) for batch, at in (self.out.pop(seq) for seq in some)])
        self.model.out -= set(some)
        self.model.waiting |= set(some)
        self.model.marked |= set(some)

    def flush(self) -> None:
        self.host.flush(self.queue)

    def page(self) -> None:
        self.host.content_bytes_max = self.dice.choice([0, self.host.content_bytes // 2, UNLIMITED])
        self.host.spill_bytes_max = max(self.host.content_bytes_max, self.dice.choice([0, UNLIMITED]))
        self.queue.page_out()
        self.host.flush(self.queue)  # The log is to know of what came back before it is read.

    def page_unacked(self) -> None:
        by_batch: dict[int, list[int]] = {}
        for seq, (batch, _) in self.out.items():
            by_batch.setdefault(id(batch), []).append(seq)
        for seqs in by_batch.values():
            self.queue.page_out_unacked(self.out[seqs[0]][0], len(seqs))

    def inherit(self) -> None:
        """Somebody turns out to have some of them."""
        self.host.flush(self.queue)
        stored = self.host.log.queues.get(7, {})
        spans = [entry for entry in self.queue.ready if isinstance(entry, Span)]
        there = {seq for entry in spans for seq in range(entry.first, entry.last + 1)} | set(stored)
        some = self.dice.sample(sorted(self.model.waiting & there), min(3, len(self.model.waiting & there)))
        pieces = reserve(self.queue, [(seq, seq) for seq in sorted(some)])
        taken = {batch.first + at: (batch, at) for batch, lo, hi in pieces for at in range(lo, hi)}
        assert taken.keys() == set(some)
        self.out.update(taken)
        self.model.waiting -= set(some)
        self.model.out |= set(some)

    def restart(self) -> None:
        model, queue = self.model, self.queue
        queue.note_due = True
        self.host.flush(queue)
        log = self.host.log
        live = log.queues.setdefault(7, {})
        for seq in self.host.spilled | (model.waiting | model.out) - model.lasting:
            live.pop(seq, None)
        model.marked |= model.out
        model.waiting, model.out = set(live), set()
        assert model.waiting <= model.lasting
        self.out.clear()
        self.host = Host(log)
        self.queue = a_queue(self.host)
        numbers = sorted(live) or [0]
        self.queue.restore(queue.number, queue.epoch + 1, queue.next_seq, numbers[0], numbers[-1], len(live), 0)

    def purge(self) -> None:
        assert self.queue.purge() == len(self.model.waiting)
        self.host.wanted.clear()
        self.model.waiting.clear()


@pytest.mark.usefixtures("keeps_nothing")
@pytest.mark.parametrize("seed", range(40))
def test_a_queue_does_what_its_model_does(seed: int) -> None:
    Play(seed).run(120)
