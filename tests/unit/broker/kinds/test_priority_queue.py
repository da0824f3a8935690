"""Queues with priorities: order, what comes back, contents that come and go, limits, restarts."""

from __future__ import annotations

from random import Random
from typing import Any, cast

import pytest

from leveret.broker.delivery.batch import Batch, Gap, Span
from leveret.broker.delivery.priority_ready import PriorityReady
from leveret.broker.delivery.reserve import reserve
from leveret.broker.kinds import priority_queue
from leveret.broker.kinds.priority_queue import PriorityQueue
from leveret.broker.queue import ordered_queue
from leveret.broker.queue.queue import Queue
from leveret.metadata.model import commands as c
from leveret.protocol import methods as m
from leveret.protocol.frames import HEADER_AT
from leveret.protocol.properties import priority
from leveret.protocol.tables import table_from_python
from leveret.storage.format.queue_block import PERSISTENT, REDELIVERED
from tests.support.machines import Client, World
from tests.unit.broker.kinds.priority_queues import UNLIMITED, Host, Taker, a_queue, bodies, content, put, take


@pytest.fixture
def keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordered_queue, "KEEP_BYTES", 0)


# -- Levels ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize("mode", [None, 2])
@pytest.mark.parametrize("level", [None, 0, 1, 5, 6, 255])
def test_the_level_of_a_message_is_its_priority(level: int | None, mode: int | None, more: bool) -> None:
    stored = content(b"abc", level, more, mode)
    assert priority(stored, HEADER_AT) == level
    batch = Batch(1)
    batch.contents = [stored]
    assert list(PriorityReady(5).split(batch, 0, 1)) == [(min(level or 0, 5), 0, 1)]


def test_a_bundle_is_cut_where_the_level_changes() -> None:
    batch = Batch(1)
    batch.contents = [content(b"", level) for level in (None, 0, 3, 9, 200, 5, 1)]
    assert list(PriorityReady(5).split(batch, 0, 7)) == [(0, 0, 2), (3, 2, 3), (5, 3, 6), (1, 6, 7)]
    assert list(PriorityReady(5).split(batch, 4, 6)) == [(5, 4, 6)]


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
    head = queue.ready[0]
    assert isinstance(head, Span)
    of_others = head.batch.contents  # A block that is to be sent somewhere may have it.
    host.content_bytes_max = whole // 3
    queue.page_out()
    assert [type(entry) for entry in queue.ready] == [Span, Span, Span, Gap, Gap]
    assert [list(entry.ranges or ()) for entry in queue.ready if isinstance(entry, Gap)] == [
        [(2, 2), (5, 5), (8, 8)],
        [(1, 1), (4, 4), (7, 7)],
    ]
    assert host.content_bytes == queue.memory_bytes <= host.content_bytes_max
    assert sum(map(len, head.batch.contents)) < whole // 2 and all(of_others)
    assert head.batch.average_bytes() == whole // 9
    assert bodies(take(host, queue, 100, piece=2)) == [b"%d" % number * 50 for number in (2, 5, 8, 1, 4, 7, 0, 3, 6)]


@pytest.mark.usefixtures("keeps_nothing")
def test_marks_that_the_log_does_not_know_outlive_the_contents() -> None:
    host = Host()
    queue = a_queue(host)
    put(queue, *(content(b"%d" % number, 1) for number in range(5)))
    host.flush(queue)
    head = queue.ready[0]
    assert isinstance(head, Span)
    head.batch.mark_redelivered(0, 2)
    host.content_bytes_max = 0
    queue.page_out()
    host.content_bytes_max = 1 << 20
    taken = take(host, queue, 100, piece=2)
    assert bodies(taken) == [b"%d" % number for number in range(5)]
    assert [bool(batch.kinds[at] & REDELIVERED) for batch, at in taken] == [True, True, False, False, False]


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
    host = cast(Any, again.host)
    for _ in range(3):
        again.pump()
        assert not taker.got
        host.finish_load(2)
    again.pump()
    assert bodies(taker.got) == [b"newest", b"1", b"3", b"5", b"new", b"0", b"2", b"4"]


def test_after_a_start_all_is_sorted_though_nobody_consumes() -> None:
    host = Host()
    queue = a_queue(host)
    put(queue, *(content(b"%d" % number, number % 2) for number in range(6)))
    host.flush(queue)
    host = Host(host.log)
    again = a_queue(host)
    again.restore(queue.number, 2, queue.next_seq, 1, 6, 6, 0)
    again.on_kind(PERSISTENT)
    while host.wanted:
        host.finish_load(4)
    assert [entry.first for entry in again.ready] == [2, 4, 6, 1, 3, 5]


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
    """One life of a queue after the other, with rng."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.model = Model()
        self.host = Host()
        self.queue = a_queue(self.host)
        self.out: dict[int, tuple[Batch, int]] = {}
        self.inherited: set[int] = set()

    def run(self, steps: int) -> None:
        moves = [
            self.publish, self.publish, self.publish, self.consume, self.consume, self.ack, self.give_back, self.flush,
            self.flush, self.page, self.page_unacked, self.inherit, self.restart, self.purge,
        ]  # fmt: skip
        weights = [6, 6, 6, 6, 6, 6, 5, 6, 6, 8, 2, 2, 1, 0.3]
        for _ in range(steps):
            self.rng.choices(moves, weights)[0]()
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
        rng, model = self.rng, self.model
        kind = rng.choice([PERSISTENT, PERSISTENT, 0])
        levels = [rng.randrange(8)] * rng.randrange(1, 9)
        if rng.random() < 0.6:
            levels = [rng.randrange(8) for _ in levels]
        contents: list[bytes] = []
        for level in levels:
            seq = self.queue.next_seq + len(contents)
            body = b"%d" % seq * rng.randrange(1, 20)
            contents.append(content(body, level, rng.random() < 0.3))
            model.level[seq], model.body[seq] = min(level, 5), body
            model.waiting.add(seq)
            if kind:
                model.lasting.add(seq)
        put(self.queue, *contents, kind=kind)

    def consume(self) -> None:
        self._consume(self.rng.randrange(1, 12))

    def _consume(self, count: int) -> None:
        model = self.model
        expected = model.next(count)
        got = take(self.host, self.queue, count, self.rng.randrange(1, 20), self.meanwhile)
        assert [batch.first + at for batch, at in got] == expected
        assert bodies(got) == [model.body[seq] for seq in expected]
        assert {batch.first + at for batch, at in got if batch.kinds[at] & REDELIVERED} == model.marked & set(expected)
        for batch, at in got:
            self.out[batch.first + at] = (batch, at)
        model.waiting -= set(expected)
        model.out |= set(expected)

    def meanwhile(self) -> None:
        """While something is being read."""
        if self.rng.random() < 0.3:
            self.queue.page_out()

    def _some_out(self) -> list[int]:
        return self.rng.sample(sorted(self.out), min(len(self.out), self.rng.randrange(6)))

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
        self.host.content_bytes_max = self.rng.choice([0, self.host.content_bytes // 2, UNLIMITED])
        self.host.spill_bytes_max = max(self.host.content_bytes_max, self.rng.choice([0, UNLIMITED]))
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
        some = self.rng.sample(sorted(self.model.waiting & there), min(3, len(self.model.waiting & there)))
        pieces = reserve(self.queue, [(seq, seq) for seq in sorted(some)])
        taken = {batch.first + at: (batch, at) for batch, lo, hi in pieces for at in range(lo, hi)}
        assert taken.keys() == set(some)
        self.out.update(taken)
        self.model.waiting -= set(some)
        self.model.out |= set(some)
        self.inherited |= set(some)

    def restart(self) -> None:
        model, queue = self.model, self.queue
        queue.note_due = True
        self.host.flush(queue)
        log = self.host.log
        live = log.queues.setdefault(7, {})
        for seq in self.host.spilled | (model.waiting | model.out) - model.lasting:
            live.pop(seq, None)
        model.marked |= model.out - self.inherited  # Those were marked by whoever delivered them.
        self.inherited.clear()
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


# -- Limits, age, dead letters: a client's view ------------------------------------------------------------------------


@pytest.fixture
def world() -> World:
    world = World()
    world.broker.wall_ms = 1_000_000_000
    return world


@pytest.fixture
def client(world: World) -> Client:
    client = world.client()
    client.call(m.ConfirmSelect())
    return client


def declare(client: Client, name: str = "q", **arguments: Any) -> Any:
    named = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    return client.call(m.QueueDeclare(queue=name, durable=True, arguments=table_from_python(named)))


def send(client: Client, *messages: tuple[bytes, int | None], **properties: Any) -> None:
    for body, level in messages:
        client.publish("q", body, priority=level, **properties)


def got(client: Client, name: str = "q") -> list[bytes]:
    found: list[bytes] = []
    while True:
        client.send(m.BasicGet(queue=name, no_ack=True))
        (reply,) = [one for one in client.take() if isinstance(one.method, m.BasicGetOk | m.BasicGetEmpty)]
        if reply.properties is None:
            return found
        found.append(reply.body)


def pass_time(world: World, ms: int) -> None:
    world.broker.wall_ms += ms
    world.broker.now_ms += ms
    world.broker.on_time()
    world.turn()


def test_an_argument_makes_the_queue_one_with_priorities(world: World, client: Client) -> None:
    declare(client, max_priority=255)
    declare(client, "plain", max_priority=0)
    assert type(world.queue("q")) is PriorityQueue and type(world.queue("plain")) is Queue
    refused = declare(client, "r", max_priority=3, queue_type="quorum")
    assert isinstance(refused, m.ChannelClose)
    assert refused.reply_text == (
        "PRECONDITION_FAILED - invalid arg 'x-max-priority' for queue 'r' in vhost '/' of queue type"
        " rabbit_quorum_queue"
    )


def test_too_many_go_from_the_front_the_highest_first(client: Client) -> None:
    declare(client, max_priority=5, max_length=3)
    send(client, (b"a", 5), (b"b", 0), (b"c", 3), (b"d", 0), (b"e", 0), (b"f", 4))
    assert got(client) == [b"b", b"d", b"e"]


def test_too_many_bytes_likewise(client: Client) -> None:
    declare(client, max_priority=3, max_length_bytes=5)
    send(client, (b"aaa", 3), (b"bb", 0), (b"c", 1))
    assert got(client) == [b"c", b"bb"]


def test_messages_expire_at_the_front_only(world: World, client: Client) -> None:
    declare(client, max_priority=5)
    send(client, (b"low", 0), expiration="50")
    send(client, (b"high", 4), expiration="100")
    send(client, (b"none", 4))
    pass_time(world, 60)
    assert world.queue("q").ready_count == 3
    pass_time(world, 60)
    assert world.queue("q").ready_count == 2
    assert got(client) == [b"none"]


def test_what_leaves_goes_to_the_dead_letter_exchange(client: Client) -> None:
    declare(client, "dead")
    declare(client, max_priority=5, max_length=1, dead_letter_exchange="", dead_letter_routing_key="dead")
    send(client, (b"a", 1), (b"b", 4), (b"c", 2), delivery_mode=2)
    assert got(client) == [b"a"] and got(client, "dead") == [b"b", b"c"]


@pytest.mark.usefixtures("keeps_nothing")
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("letters", [False, True])
def test_limits_hold_for_a_backlog_on_disk(letters: bool, mixed: bool) -> None:
    world = World(content_bytes_max=0)
    world.load_messages_max = 7
    client = world.client()
    declare(client, "dead")
    more = {"dead_letter_exchange": "", "dead_letter_routing_key": "dead"} if letters else {}
    declare(client, max_priority=3, **more)
    levels = [number % 3 if mixed else number // 20 for number in range(60)]
    send(client, *((b"%d" % number, level) for number, level in enumerate(levels)), delivery_mode=2)
    assert any(isinstance(entry, Gap) for entry in world.queue("q").ready)
    world.apply(c.SetPolicy("/", "p", "^q$", "queues", 0, {"max-length": 10}, False))
    world.turn()
    lowest = [b"%d" % number for number, level in enumerate(levels) if level == 0]
    assert got(client) == lowest[-10:]
    assert len(got(client, "dead")) == (50 if letters else 0)


def test_bytes_are_counted_through_all_that_comes_and_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordered_queue, "KEEP_BYTES", 0)
    world = World(content_bytes_max=2_000)
    world.load_messages_max = 5
    client = world.client()
    declare(client, max_priority=3, max_length_bytes=1 << 20)
    send(client, *((b"x" * (number + 1), number % 4) for number in range(60)), delivery_mode=2)
    queue = world.queue("q")
    assert queue.ready_bytes == sum(range(1, 61))
    client.call(m.BasicQos(prefetch_count=31))
    client.send(m.BasicConsume(queue="q", consumer_tag="c"))
    client.take()
    client.send(m.BasicNack(delivery_tag=20, multiple=True, requeue=True))
    client.send(m.BasicCancel(consumer_tag="c"))
    client.send(m.BasicNack(multiple=True, requeue=True))
    client.take()
    assert queue.ready_count == 60 and queue.ready_bytes == sum(range(1, 61))
    assert len(got(client)) == 60 and queue.ready_bytes == 0


def test_a_delivery_limit_finds_its_messages_at_every_level(world: World, client: Client) -> None:
    declare(client, "dead")
    declare(client, max_priority=5, dead_letter_exchange="", dead_letter_routing_key="dead")
    world.apply(c.SetPolicy("/", "p", "^q$", "classic_queues", 0, {"delivery-limit": 1}, False))
    send(client, (b"low", 0), (b"high", 5), delivery_mode=2)
    for _ in range(2):
        for _ in range(2):
            client.send(m.BasicGet(queue="q"))
        tags = [one.method.delivery_tag for one in client.take() if isinstance(one.method, m.BasicGetOk)]
        client.send(m.BasicNack(delivery_tag=tags[-1], multiple=True, requeue=True))
    send(client, (b"new", 3), delivery_mode=2)
    assert got(client) == [b"new"]
    assert sorted(got(client, "dead")) == [b"high", b"low"]


def test_each_turn_forgets_some_contents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(priority_queue, "PAGED_AT_ONCE", 3)
    monkeypatch.setattr(ordered_queue, "KEEP_BYTES", 0)
    world = World()
    client = world.client()
    client.declare("q", durable=True, arguments=table_from_python({"x-max-priority": 3}))
    bodies = {level: [b"%d %d" % (level, number) for number in range(10)] for level in (0, 1)}
    for pair in zip(bodies[0], bodies[1], strict=True):
        for level, body in enumerate(pair):
            client.publish("q", body, delivery_mode=2, priority=level)
    queue = world.queue("q")
    assert isinstance(queue, PriorityQueue)
    world.broker.content_bytes_max = 0
    queue.page_out()

    def in_memory() -> int:
        return sum(entry.count for entry in queue.ready if isinstance(entry, Span))

    assert in_memory() == 17
    while in_memory():
        before = in_memory()
        assert world.broker.is_behind or world.broker.dirty
        world.broker.pump()
        assert before - in_memory() <= 3
    world.turn()
    assert not world.broker.is_behind and queue.ready_count == 20
    world.broker.content_bytes_max = 1 << 40
    client.consume("q", no_ack=True)
    world.turn()
    assert client.bodies() == bodies[1] + bodies[0]
