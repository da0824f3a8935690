"""Samples of counters: rates and charts from them, sums that lose nothing, and bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest

from leveret.base.counters import ExchangeCounters, MessageCounters, NodeCounters
from leveret.broker.queue.queue import Queue
from leveret.metadata.model.records import QueueSpec
from leveret.node.stats import stats_history as s
from leveret.node.stats.stats_history import (
    AGE_MAX,
    IDLE_EVERY,
    KEPT,
    STEPS,
    ObjectHistory,
    StatsHistory,
    Window,
    row_at,
    tick_of,
)
from leveret.node.system import time_slices
from tests.unit.broker.queue.test_queue import Host


class World:
    """A node with queues and clients that count what a test says."""

    def __init__(self) -> None:
        self.vhosts = {"/": SimpleNamespace(name="/", exchange_counters={})}
        self.broker = SimpleNamespace(
            queues_by_id={}, connections={}, sessions={}, vhosts=self.vhosts, totals=NodeCounters(), ended={}, now_ms=0
        )
        self.broker.take_ended = self._take_ended
        alarms = SimpleNamespace(memory_used_bytes=1, disk_free_bytes=2)
        storage = SimpleNamespace(log=SimpleNamespace(appended_bytes=3))
        settings = SimpleNamespace(statistics_interval_ms=5_000)
        node = SimpleNamespace(settings=settings, broker=self.broker, alarms=alarms, clients={}, storage=storage)
        self.samples = StatsHistory(cast(Any, node))
        self.tick = 100

    def _take_ended(self) -> dict[Any, None]:
        ended: dict[Any, None] = self.broker.ended
        self.broker.ended = {}
        return ended

    def queue(self, number: int, name: str = "q") -> Queue:
        queue = Queue(QueueSpec(number, "/", f"{name}{number}", node="n"), cast(Any, Host()))
        self.broker.queues_by_id[number] = queue
        return queue

    def session(self) -> Any:
        connection: Any = SimpleNamespace(
            received_bytes=0, output=SimpleNamespace(sent_bytes=0), vhost=self.vhosts["/"]
        )
        login = SimpleNamespace(vhost=self.vhosts["/"])
        session = SimpleHash(
            SimpleNamespace(traffic=MessageCounters(), confirms=None, delivery_tag=0, is_closed=False, login=login)
        )
        self.broker.connections[SimpleHash(connection)] = "n.1"
        self.broker.sessions[session] = None
        return session

    def sample(self, *touched: Queue) -> None:
        self.broker.now_ms += 5_000
        for queue in touched:
            queue.active_ms = self.broker.now_ms
        asyncio.run(self.samples.take(self.tick))
        self.tick += 1

    def past(self, queue: Queue) -> ObjectHistory:
        return ObjectHistory(self.samples, s.OF_QUEUE, self.samples.queues.get(queue))


class SimpleHash:
    """An object that can be a key, and otherwise is another."""

    def __init__(self, one: Any) -> None:
        self.__dict__ = one.__dict__


@pytest.fixture
def world() -> Iterator[World]:
    yield World()


def test_rate(world: World) -> None:
    queue = world.queue(1)
    world.sample(queue)
    queue.totals.published = 50
    world.sample(queue)
    assert world.past(queue).rate("publish") == 10.0
    world.sample()  # Nothing has happened.
    assert world.past(queue).rate("publish") == 0.0
    queue.totals.published = 55
    world.sample(queue)
    assert world.past(queue).rate("publish") == 1.0


def test_what_is_younger_than_an_interval_has_no_rate(world: World) -> None:
    queue = world.queue(1)
    queue.totals.published = 50
    world.sample(queue)
    assert world.past(queue).details(("publish",), None) == {"rate": 0.0}
    other = world.queue(2)
    assert world.past(other).rate("publish") == 0.0


def test_chart(world: World) -> None:
    queue = world.queue(1)
    for count in (0, 10, 10, 40):
        queue.ready_count = count
        world.sample(queue)
    shown = world.past(queue).details(("messages_ready", "messages_unacknowledged"), Window(4, 2))
    times = [(world.tick - 1 - back) * world.samples.interval_ms for back in (0, 2, 4)]
    assert shown == {
        "rate": 6.0,
        "samples": [{"sample": 40, "timestamp": times[0]}, {"sample": 10, "timestamp": times[1]},
                    {"sample": 0, "timestamp": times[2]}],
        "avg_rate": 2.0,
        "avg": 50 / 3,
    }  # fmt: skip


def test_only_what_has_changed_is_noted(world: World) -> None:
    busy, idle = world.queue(1), world.queue(2)
    for number in range(5):
        busy.totals.published = number
        world.sample(busy)
    assert [len(world.samples.queues[one]) for one in (busy, idle)] == [5, 1]


def test_histories_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s, "SAMPLES_MAX", 40)
    queues = [world.queue(number) for number in range(1, 11)]
    for round_ in range(20):
        for queue in queues:
            queue.totals.published = round_ * 5
        world.sample(*queues)
    assert {len(world.samples.queues[queue]) for queue in queues} == {4}
    assert world.past(queues[0]).rate("publish") == 1.0


def test_old_samples_go(world: World) -> None:
    queue = world.queue(1)
    for number in range(5):
        queue.totals.published = number
        world.sample(queue)
    world.tick = (world.tick + AGE_MAX + IDLE_EVERY) // IDLE_EVERY * IDLE_EVERY
    world.sample()
    assert len(world.samples.queues[queue]) == 1
    assert world.past(queue).details(("publish",), Window(2, 1))["samples"][-1]["sample"] == 4


@pytest.mark.parametrize("every", [1, 40])  # Intervals between two uses of the queue.
async def test_a_chart_of_a_day_has_fewer_samples_of_long_ago(world: World, every: int) -> None:
    queue = world.queue(1)
    for number in range(AGE_MAX + 500):
        world.broker.now_ms += 5_000
        if number % every == 0:
            queue.totals.published += 1
            queue.active_ms = world.broker.now_ms
        await world.samples.take(number + 100)
    rows = world.samples.queues[queue]
    assert len(rows) <= KEPT
    now = world.samples.tick
    if every == 1:
        recent = [tick_of(row) for row in rows if tick_of(row) > now - STEPS[0][1]]
        assert recent == list(range(recent[0], now + 1))
    for step, kept in STEPS:
        found = world.past(queue).details(("publish",), Window(step * (kept - 2), step))["samples"]
        assert found[-1]["sample"] > 0
        for newer, older in pairwise(found):
            # A point is at most a step older than it says, and each has what was counted in about one step.
            assert abs(newer["sample"] - older["sample"] - step / every) <= step / every + 1


def test_sums_keep_what_has_ended(world: World) -> None:
    queue, other = world.queue(1), world.queue(2)
    queue.totals.acked, queue.ready_count, other.totals.acked = 5, 7, 1
    world.sample(queue, other)
    queue.totals.acked = 8
    del world.broker.queues_by_id[1]
    world.broker.ended[queue] = None
    world.sample()
    sums = dict(zip(s.QUEUE, world.samples.sums, strict=True))
    assert (sums["ack"], sums["messages_ready"]) == (9, 0)
    assert queue not in world.samples.queues
    world.broker.ended[queue] = None
    world.sample()  # Ended once more: it counts no more.
    assert dict(zip(s.QUEUE, world.samples.sums, strict=True))["ack"] == 9
    assert dict(zip(s.QUEUE, world.samples.by_type["classic"], strict=True))["ack"] == 9


def test_many_that_have_ended_let_others_have_their_turn(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_slices, "SLICE_S", 0.0)
    for number in range(10 * time_slices.STEPS):
        queue = world.queue(number)
        queue.totals.acked = 1
        world.broker.ended[queue] = None
    world.broker.queues_by_id.clear()
    turns = 0

    async def take() -> None:
        nonlocal turns
        taking = asyncio.create_task(world.samples.take(world.tick))
        while not taking.done():
            turns += 1
            await asyncio.sleep(0)

    asyncio.run(take())
    assert turns >= 10
    assert dict(zip(s.QUEUE, world.samples.sums, strict=True))["ack"] == 10 * time_slices.STEPS


def test_sessions_add_what_they_published(world: World) -> None:
    session = world.session()
    session.traffic.published = 3
    session.delivery_tag, session.traffic.delivered_no_ack, session.traffic.got = 10, 2, 1
    world.sample()
    session.traffic.published, session.traffic.dropped = 5, 1
    session.confirms = SimpleNamespace(confirmed=2, published=4)
    world.broker.connections.clear()
    world.broker.sessions.clear()
    world.broker.ended[session] = None
    world.sample()
    sums = dict(zip(s.QUEUE, world.samples.by_vhost["/"], strict=True))
    assert [sums[name] for name in ("publish", "confirm", "drop_unroutable", "deliver")] == [5, 2, 1, 0]
    assert world.samples.published_to_confirm == 4
    assert dict(zip(s.CHANNEL, s.counted(session), strict=True))["deliver"] == 7
    assert not world.samples.sessions and not world.samples.connections


def test_exchanges(world: World) -> None:
    counters = world.vhosts["/"].exchange_counters["x"] = ExchangeCounters()
    counters.published_in, counters.published_out = 2, 4
    world.sample()
    counters.published_in = 12
    world.sample()
    past = ObjectHistory(world.samples, s.OF_EXCHANGE, world.samples.exchanges["/", "x"])
    assert (past.rate("publish_in"), past.rate("publish_out")) == (2.0, 0.0)
    world.vhosts["/"].exchange_counters.clear()
    world.sample()
    assert not world.samples.exchanges


def test_the_whole_is_kept_for_a_day(world: World) -> None:
    for tick in range(100, 100 + 2 * 17_280, 3):  # Two days, with gaps.
        world.samples._take_whole(tick)
    assert [len(rows) for rows in world.samples.whole] == [kept for _, kept in s.STEPS]
    assert tick_of(world.samples.whole[3][-1]) - tick_of(world.samples.whole[3][0]) >= 17_000


def test_a_clock_that_is_set_back_adds_nothing(world: World) -> None:
    queue = world.queue(1)
    world.sample(queue)
    world.tick -= 50
    queue.totals.published = 9
    world.sample(queue)
    assert len(world.samples.queues[queue]) == 1
    assert row_at(world.samples.queues[queue], 0) is None
