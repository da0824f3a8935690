"""When a commit begins, and what it takes."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from leveret.node import storage
from leveret.node.gathering import GATHER_S_MAX
from leveret.node.storage import Storage
from leveret.protocol import methods as m
from leveret.storage.format.queue_block import Block
from leveret.storage.log import Log, LogOptions
from simulation.core.disk import FaultyDisk
from tests.support.machines import Client, World, publish


class Files:
    """A log that takes blocks and writes none."""

    mirrors = None

    def __init__(self) -> None:
        self.blocks: list[Block] = []

    def append(self, block: Block) -> None:
        self.blocks.append(block)

    def take(self) -> None:
        return None


def test_a_commit_takes_a_part_of_very_many_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order in which they changed; what changes meanwhile comes last."""
    monkeypatch.setattr(storage, "BLOCKS_MAX", 3)
    shell = SimpleNamespace(loop=SimpleNamespace(time=float), disk=None, worker=str, wall_ms=lambda: 5)
    files, world = Files(), World()
    disk = Storage(cast(Any, shell), cast(Any, files), *[lambda *_: None] * 5)
    client = world.client()
    for number in range(7):
        client.declare(f"q{number}", durable=True)
        client.call(m.QueueBind(queue=f"q{number}", exchange="amq.fanout"))
    names = {world.queue(f"q{number}").spec.id: number for number in range(7)}
    client.feed(publish(1, "amq.fanout", "", b"x", delivery_mode=2))
    world.broker.pump()
    order = [queue.spec.id for queue in world.broker.unlogged]
    disk.commit(world.broker, lambda: None)
    assert [block.queue for block in files.blocks] == order[:3]
    first = world.queue(f"q{names[order[0]]}")
    client.feed(publish(1, "amq.fanout", "", b"x", delivery_mode=2))
    world.broker.pump()
    disk.commit(world.broker, lambda: None)
    disk.commit(world.broker, lambda: None)
    assert [block.queue for block in files.blocks[:7]] == order
    while world.broker.unlogged:
        disk.commit(world.broker, lambda: None)
    assert sum(len(block.enqueued.contents) for block in files.blocks if block.enqueued is not None) == 14
    assert world.broker.unlogged_bytes == 0 and first.open is None


class Pausable:
    """An event loop whose time stands still until a test moves it; calls for later are kept."""

    def __init__(self) -> None:
        self.now = 7.0
        self.later: list[tuple[float, Callable[[], None]]] = []
        self.soon: list[Callable[[], None]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, then: Callable[[], None]) -> SimpleNamespace:
        self.later.append((when, then))
        return SimpleNamespace(cancel=lambda: None)

    def call_later(self, seconds: float, then: Callable[[], None]) -> SimpleNamespace:
        return self.call_at(self.now + seconds, then)

    def call_soon(self, then: Callable[..., None], *arguments: Any) -> None:
        self.soon.append(partial(then, *arguments))

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        due = [then for when, then in self.later if when <= self.now]
        self.later = [one for one in self.later if one[0] > self.now]
        for then in due:
            then()


class Committing:
    """A storage with a real log, whose jobs are done when a test says so, and a client that publishes to a queue."""

    def __init__(self) -> None:
        self.loop, self.jobs = Pausable(), list[tuple[Callable[[], None], Callable[[Exception | None], None]]]()
        self.disk = FaultyDisk(random.Random(1), 1 << 30)
        self.precise = 1.0
        self.writes_first = True  # The output of all clients is written before a commit.
        self.is_fast = False  # The disk does a job at once if it is waited for.
        self.waits_s: list[float] = []
        self.fatal: list[str] = []
        self.told: list[str] = []
        log = Log(self.disk, "messages", LogOptions())
        log.recover(None)
        shell = SimpleNamespace(
            loop=self.loop,
            disk=self.disk,
            worker=lambda name: SimpleNamespace(submit=self.submit),
            wall_ms=lambda: 5,
            precise_s=lambda: self.precise,
            yield_to_writer=lambda: None,
            yield_processor=lambda: None,
        )
        self.world = World()
        self.broker = self.world.broker
        self.storage = Storage(
            cast(Any, shell), log, self.turn, self.on_safe, self.on_blocks, lambda full: None, self.fatal.append
        )
        self.client = self.world.client()
        self.client.declare("q", durable=True)
        self.client.call(m.ConfirmSelect())

    def submit(
        self,
        work: Callable[[], None],
        then: Callable[[Exception | None], None],
        wait_s: float = 0.0,
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        self.jobs.append((work, then))
        self.waits_s.append(wait_s)
        if meanwhile is not None:
            self.told.append("committing")
            meanwhile()
        if wait_s and self.is_fast:
            self.finish()

    def turn(self) -> None:
        self.told.append("turn")
        if self.storage.should_deliver(self.broker):
            self.broker.pump()
        if self.storage.should_wait(self.broker):
            self.serve()
            self.storage.wait(self.broker)
        else:
            self.storage.commit(self.broker, self.serve)

    def serve(self) -> None:
        if self.writes_first and self.broker.take_writers():
            self.told.append("served")

    def on_safe(self) -> None:
        self.told.append("safe")

    def on_blocks(self) -> None:
        assert not self.jobs, "the disk has the blocks already"
        self.told.append("sent")

    def publish(self, count: int = 1) -> None:
        for _ in range(count):
            self.client.feed(publish(1, "", "q", b"x", delivery_mode=2))
        self.turn()

    def finish(self, took_s: float = 0.001) -> None:
        work, then = self.jobs.pop(0)
        error: Exception | None = None
        try:
            work()
        except OSError as raised:
            error = raised
        self.precise += took_s
        then(error)


@pytest.fixture
def committing() -> Committing:
    return Committing()


def consumed(committing: Committing) -> Client:
    """Has a message delivered, and returns the consumer."""
    consumer = committing.world.client()
    consumer.call(m.BasicConsume(queue="q", consumer_tag="c"))
    committing.publish()
    committing.finish()
    return consumer


def test_acknowledgements_wait_for_a_commit_that_somebody_waits_for(committing: Committing) -> None:
    consumer = consumed(committing)
    consumer.feed(m.encode(1, m.BasicAck(1, False)))
    committing.turn()
    assert not committing.jobs and committing.broker.unlogged
    committing.publish()
    assert len(committing.jobs) == 1 and not committing.broker.unlogged
    committing.finish()
    committing.loop.pass_time(1)
    assert not committing.jobs and not committing.loop.later


def test_acknowledgements_wait_for_a_moment_only(committing: Committing) -> None:
    consumer = consumed(committing)
    consumer.feed(m.encode(1, m.BasicAck(1, False)))
    committing.turn()
    committing.loop.pass_time(storage.PATIENCE_S / 2)
    assert not committing.jobs
    committing.loop.pass_time(storage.PATIENCE_S)
    assert len(committing.jobs) == 1 and not committing.broker.unlogged


def test_a_timer_that_comes_a_little_early_ends_the_wait_of_acknowledgements(committing: Committing) -> None:
    """It would be set again for no time at all, and the event loop would turn until the time has come."""
    consumer = consumed(committing)
    consumer.feed(m.encode(1, m.BasicAck(1, False)))
    committing.turn()
    ((when, then),) = committing.loop.later
    committing.loop.later = []
    committing.loop.now = when - 1e-9
    then()
    assert len(committing.jobs) == 1 and not committing.loop.later


def test_the_wait_of_acknowledgements_begins_anew_after_a_commit(committing: Committing) -> None:
    consumer = consumed(committing)
    consumer.feed(m.encode(1, m.BasicAck(1, False)))
    committing.turn()
    committing.loop.pass_time(storage.PATIENCE_S * 0.75)
    committing.publish()
    committing.finish()
    consumer.feed(m.encode(1, m.BasicAck(2, False)))
    committing.turn()
    committing.loop.pass_time(storage.PATIENCE_S / 2)
    assert not committing.jobs
    committing.loop.pass_time(storage.PATIENCE_S)
    assert len(committing.jobs) == 1


def test_a_node_that_stops_writes_acknowledgements_at_once(committing: Committing) -> None:
    consumer = consumed(committing)
    consumer.feed(m.encode(1, m.BasicAck(1, False)))
    committing.storage.hurry()
    committing.turn()
    assert len(committing.jobs) == 1


def test_a_message_that_is_rejected_back_to_its_queue_does_not_wait(committing: Committing) -> None:
    consumer = consumed(committing)
    consumer.feed(m.encode(1, m.BasicNack(1, False, True)))
    committing.turn()
    assert len(committing.jobs) == 1


def test_confirms_are_sent_before_the_next_turn(committing: Committing) -> None:
    committing.publish()
    committing.told.clear()
    committing.finish()
    assert committing.told == ["safe", "turn"]


def test_blocks_are_sent_to_mirrors_before_the_loop_waits_for_the_disk(
    committing: Committing, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirrors = committing.broker.mirrors
    monkeypatch.setattr(mirrors, "mirrors", {1: None})
    monkeypatch.setattr(mirrors, "flush", lambda: committing.told.append("made"))
    committing.is_fast = True
    committing.publish()
    assert committing.waits_s == [storage.AWAITED_S_MAX]
    assert committing.told == ["turn", "served", "made", "sent", "safe"]


def test_a_turn_goes_on_after_a_commit_that_it_waited_for(committing: Committing) -> None:
    """A turn within a turn could go on for ever, and would find what the outer one has half done."""
    committing.is_fast = True
    committing.publish()
    assert not committing.jobs and not committing.storage.committing
    assert committing.told == ["turn", "served", "safe"]
    assert not committing.storage.commit(committing.broker, committing.serve)  # There is nothing more.
    committing.client.feed(publish(1, "", "q", b"x", delivery_mode=2))
    committing.broker.pump()
    committing.broker.take_writers()
    assert committing.storage.commit(committing.broker, committing.serve)


def test_waits_for_a_slow_disk_become_rare(committing: Committing) -> None:
    for _ in range(2000):
        committing.publish()
        committing.finish()
    assert 5 < sum(wait_s > 0 for wait_s in committing.waits_s) < 25
    committing.is_fast = True
    for _ in range(2 * storage.UNAWAITED_MAX):
        committing.publish()
        if committing.jobs:
            committing.finish()
    assert committing.waits_s[-100:] == [storage.AWAITED_S_MAX] * 100


def test_the_loop_waits_for_small_commits_only(committing: Committing) -> None:
    committing.is_fast = True
    committing.client.feed(publish(1, "", "q", bytes(storage.AWAITED_BYTES_MAX), delivery_mode=2))
    committing.turn()
    assert committing.waits_s == [0.0] and len(committing.jobs) == 1


def test_nobody_waits_for_a_commit_who_could_be_served_first(committing: Committing) -> None:
    committing.is_fast = True
    committing.writes_first = False
    committing.publish()
    assert committing.broker.writers
    assert committing.waits_s == [0.0]


def test_nothing_is_confirmed_if_an_awaited_sync_fails(committing: Committing) -> None:
    committing.is_fast = True
    committing.disk.fail_sync_after = 0
    committing.publish()
    assert committing.storage.failed and "safe" not in committing.told
    assert len(committing.fatal) == 1 and committing.fatal[0].startswith("the disk failed: [Errno 5]")
    committing.publish()
    assert not committing.jobs


def test_the_loop_does_not_wait_for_a_disk_that_was_full(committing: Committing) -> None:
    committing.is_fast = True
    free = committing.disk.free_bytes()
    committing.disk.capacity_bytes -= free
    committing.publish()
    assert committing.storage.full and not committing.jobs
    committing.disk.capacity_bytes += free
    committing.loop.pass_time(storage.RETRY_S)
    assert committing.waits_s == [storage.AWAITED_S_MAX, 0.0] and committing.storage.full
    committing.finish()
    assert not committing.storage.full and "safe" in committing.told


def test_a_commit_waits_for_as_many_publishes_as_were_confirmed(committing: Committing) -> None:
    committing.publish(3)
    committing.finish()
    committing.publish(2)
    assert not committing.jobs
    committing.loop.soon.pop()()
    assert not committing.jobs and len(committing.loop.soon) == 1
    committing.publish(1)
    assert len(committing.jobs) == 1


def test_a_whole_window_is_delivered_while_it_is_committed(committing: Committing) -> None:
    consumer = committing.world.client()
    consumer.call(m.BasicConsume(queue="q", consumer_tag="c", no_ack=True))
    committing.publish(3)
    committing.finish()
    for _ in range(2):  # The first shows that publishers wait for confirms.
        committing.publish(1)
        committing.told.clear()
        committing.publish(2)
        assert len(committing.jobs) == 1
        order = committing.told.copy()
        committing.finish()
    assert order == ["turn", "committing", "served"]


def test_publishers_that_go_on_during_a_commit_are_served_before_the_next(committing: Committing) -> None:
    committing.is_fast = True
    consumer = committing.world.client()
    consumer.call(m.BasicConsume(queue="q", consumer_tag="c", no_ack=True))
    committing.publish(3)
    for _ in range(4):
        committing.publish(1)
        committing.told.clear()
        committing.publish(2)
        if "safe" not in committing.told:  # It waits for a moment: there might be the other half of a window.
            committing.precise += GATHER_S_MAX
            committing.loop.soon.pop()()
        assert committing.told[:2] == ["turn", "served"] and committing.told[-1] == "safe"
        assert "committing" not in committing.told
        committing.client.feed(publish(1, "", "q", b"x", delivery_mode=2))  # It came during the commit.
        for _ in range(2):
            soon, committing.loop.soon = committing.loop.soon, []
            for then in soon:
                then()


def delivered(consumer: Client) -> int:
    """Returns how many messages the consumer got since the last call."""
    consumer.flush()
    return len(consumer.bodies())


def busy(committing: Committing) -> Client:
    """Has a commit begun that many messages have come for, and returns a consumer that has them."""
    consumer = committing.world.client()
    consumer.call(m.BasicConsume(queue="q", consumer_tag="c", no_ack=True))
    committing.publish(storage.BUSY_MIN)
    assert len(committing.jobs) == 1 and delivered(consumer) == storage.BUSY_MIN
    return consumer


def test_a_busy_node_delivers_when_a_commit_ends(committing: Committing) -> None:
    consumer = busy(committing)
    committing.publish(2)
    committing.publish(2)
    assert not delivered(consumer)
    committing.finish()
    assert delivered(consumer) == 4


def test_a_busy_node_delivers_at_once_when_there_is_enough(committing: Committing) -> None:
    consumer = busy(committing)
    committing.publish(storage.ENOUGH - 1)
    assert not delivered(consumer)
    committing.publish(1)
    assert delivered(consumer) == storage.ENOUGH


def test_deliveries_do_not_wait_for_a_slow_disk(committing: Committing) -> None:
    consumer = busy(committing)
    committing.publish(2)
    committing.publish(2)
    committing.precise += storage.LATER_S_MAX
    committing.loop.pass_time(storage.LATER_S_MAX)
    assert delivered(consumer) == 4
    committing.publish(1)
    assert delivered(consumer) == 1 and not committing.loop.later


def test_deliveries_do_not_wait_for_less_than_a_timer_can_measure(committing: Committing) -> None:
    consumer = busy(committing)
    committing.publish(2)
    committing.precise += storage.LATER_S_MAX - storage.EARLY_S
    committing.loop.pass_time(storage.LATER_S_MAX)
    assert delivered(consumer) == 2 and not committing.loop.later


def test_a_node_that_is_not_busy_delivers_at_once(committing: Committing) -> None:
    consumer = busy(committing)
    committing.finish()
    committing.publish(storage.BUSY_MIN - 1)
    while not committing.jobs:
        committing.precise += GATHER_S_MAX
        committing.loop.soon.pop()()
    delivered(consumer)
    committing.publish(1)
    assert delivered(consumer) == 1


def test_waits_in_vain_become_rare(committing: Committing) -> None:
    """Publishers that send at their own pace should not wait for confirms of each other."""
    waits = 0
    for _ in range(100):
        committing.publish(4)
        if not committing.jobs:
            waits += 1
            committing.precise += GATHER_S_MAX
            committing.loop.soon.pop()()
        committing.finish()
        committing.publish(1)
        if not committing.jobs:
            waits += 1
            committing.precise += GATHER_S_MAX
            committing.loop.soon.pop()()
        committing.finish()
    assert 5 < waits < 25


def test_traffic_leaves_nothing_to_the_garbage_collector(committing: Committing) -> None:
    """What is freed by its last reference costs no collection, which would stop the event loop."""
    consumer = consumed(committing)
    while gc.collect():  # Finalizers of what earlier tests left may leave something in turn.
        pass
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)  # A failure shows what was left.
    try:
        for number in range(1, 51):
            consumer.feed(m.encode(1, m.BasicAck(number, False)))
            committing.publish(2 if number % 5 else 3)
            if not committing.jobs:
                committing.precise += GATHER_S_MAX
                committing.loop.soon.pop()()
            committing.finish()
            committing.broker.tell_confirms()
            committing.client.take()
            consumer.take()
        gc.collect()
        assert gc.garbage == []
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
