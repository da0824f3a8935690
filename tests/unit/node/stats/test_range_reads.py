"""What may be read by number: nothing that a crash could give another meaning."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from leveret.broker.delivery.batch import Batch
from leveret.broker.queue.leases import Leases, open_lease, take_lease
from leveret.broker.queue.queue import Queue
from leveret.data.sheet import decode
from leveret.metadata.model.records import QueueSpec
from leveret.node.stats import range_reads
from leveret.node.stats.range_reads import BUSY_BYTES_PER_S, Elsewhere, RangeReads, memory_only
from leveret.storage.format.queue_block import PERSISTENT, Block
from leveret.storage.log import Log, LogOptions
from simulation.core.disk import FaultyDisk
from tests.unit.broker.queue.test_queue import Host

SPEC = QueueSpec(1, "/", "q", node="n")
KEY = b"\x00\x01q"


class Desk:
    """A node with one queue, whose disk is as slow as the test wants."""

    def __init__(self, spec: QueueSpec = SPEC) -> None:
        self.spec = spec
        self.disk = FaultyDisk(random.Random(1))
        self.log = Log(self.disk, "log", LogOptions())
        self.log.recover([])
        self.queue = Queue(spec, cast(Any, Host()))
        self.in_blocks: dict[tuple[int, int], tuple[Queue, Batch | None, list[Any]]] = {}
        self.now = 0.0
        self.totals = SimpleNamespace(published=0)
        broker = SimpleNamespace(queues_by_id={1: self.queue}, mirrors=SimpleNamespace(mirrors={}), totals=self.totals)
        storage = SimpleNamespace(log=self.log, in_blocks=self.in_blocks, disk=self.disk, reader=self)
        self.node = SimpleNamespace(
            broker=broker,
            storage=storage,
            settings=SimpleNamespace(node_name="n"),
            metadata=SimpleNamespace(queues={("/", "q"): spec}),
            loop=self,
        )
        self.reads = RangeReads(cast(Any, self.node))

    def time(self) -> float:
        return self.now

    def create_future(self) -> asyncio.Future[None]:
        return asyncio.get_running_loop().create_future()

    def submit(self, work: Any, then: Any) -> None:
        work()
        then(None)

    def publish(self, *bodies: bytes, kind: int = PERSISTENT) -> None:
        self.queue.enqueue(list(bodies), [KEY] * len(bodies), kind, sum(map(len, bodies)), None)

    def take(self) -> Block:
        """A block is on its way to the disk."""
        batch = self.queue.open
        block = self.queue.take_block(5)
        assert block is not None
        self.in_blocks[1, block.number] = (self.queue, batch, [])
        self.log.append(block)
        return block

    def sync(self) -> None:
        """All that is on its way has arrived."""
        while (write := self.log.take()) is not None:
            write.perform(self.disk)
            for block in self.log.on_done(write):
                _, batch, _ = self.in_blocks.pop((1, block.number))
                if batch is not None:
                    self.queue.on_logged(batch)

    async def found(self, first: int = 1, last: int = 1 << 40) -> tuple[dict[int, bytes], int]:
        job = await self.reads.read(self.spec, first, last, 1 << 20)
        sheet = decode(b"".join(job.sheet))
        return {one.number: bytes(one.content) for one in sheet}, sheet.next


async def test_only_what_is_on_disk_is_shown() -> None:
    desk = Desk()
    assert await desk.found() == ({}, 1)
    desk.publish(b"a", b"b")
    assert await desk.found() == ({}, 1)
    desk.take()
    desk.publish(b"c")
    desk.take()
    desk.publish(b"d")
    assert await desk.found() == ({}, 1)
    assert desk.reads.extent(SPEC)[:2] == (1, 1)
    desk.sync()
    assert await desk.found() == ({1: b"a", 2: b"b", 3: b"c"}, 4)
    desk.take()
    assert await desk.found() == ({1: b"a", 2: b"b", 3: b"c"}, 4)
    desk.sync()
    assert (await desk.found())[1] == 5
    assert await desk.found(9) == ({}, 9)


async def test_what_memory_alone_has_is_as_safe_as_it_will_be() -> None:
    desk = Desk()
    desk.publish(b"a", kind=0)
    desk.queue.close_batch()
    assert await desk.found() == ({1: b"a"}, 2)
    desk.publish(b"b", b"c")
    assert await desk.found() == ({1: b"a"}, 2)
    desk.take()
    desk.sync()
    desk.publish(b"d", kind=0)
    assert await desk.found() == ({1: b"a", 2: b"b", 3: b"c", 4: b"d"}, 5)
    assert await desk.found(2, 3) == ({2: b"b", 3: b"c"}, 4)
    assert [run.first for run in memory_only(desk.queue, desk.log.queues[1], 1, 4)] == [1, 4]


async def test_where_all_is_in_the_log_memory_is_not_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    desk.publish(b"a", b"b")
    desk.take()
    desk.sync()
    desk.publish(b"c")
    monkeypatch.setattr(range_reads, "_entries", None)
    assert memory_only(desk.queue, desk.log.queues[1], 1, 2) == []


async def test_who_waits_is_told_when_it_is_safe() -> None:
    desk = Desk()
    waiting = asyncio.ensure_future(desk.reads.wait(SPEC, 2, 60))
    await asyncio.sleep(0)
    assert len(desk.reads.waiting) == 1
    desk.publish(b"a", b"b")
    desk.take()
    desk.reads.look()
    assert len(desk.reads.waiting) == 1
    desk.sync()
    desk.reads.look()
    assert await waiting == 3
    assert not desk.reads.waiting
    stopping = asyncio.ensure_future(desk.reads.wait(SPEC, 5, 60))
    await asyncio.sleep(0)
    desk.reads.stop_waiting()
    assert await stopping == 3
    gone = asyncio.ensure_future(desk.reads.wait(SPEC, 5, 60))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.wait([gone])
    assert not desk.reads.waiting


async def test_the_queue_goes_elsewhere_while_somebody_waits() -> None:
    desk = Desk()
    waiting = asyncio.ensure_future(desk.reads.wait(SPEC, 2, 60))
    await asyncio.sleep(0)
    desk.node.broker.queues_by_id.clear()
    desk.node.metadata.queues["/", "q"] = QueueSpec(1, "/", "q", node="m")
    desk.reads.look()
    with pytest.raises(Elsewhere) as caught:
        await waiting
    assert caught.value.nodes == ("m",)


async def test_a_busy_node_reads_at_a_measured_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    desk.publish(*[bytes(100_000)] * 10)
    desk.take()
    desk.sync()
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        desk.now += seconds

    monkeypatch.setattr("leveret.node.stats.range_reads.asyncio.sleep", pause)
    for _ in range(3):
        desk.now += 1
        await desk.found()
    assert pauses == []  # Nobody publishes.
    for _ in range(3):
        desk.now += 0.001
        desk.totals.published += 100_000
        desk.reads._looked = (0.0, 0)
        await desk.found()
    assert len(pauses) == 3
    assert all(0 < seconds < 2_000_000 / BUSY_BYTES_PER_S for seconds in pauses)


async def test_what_is_leased_and_in_memory_alone_belongs_to_the_queue() -> None:
    desk = Desk()
    desk.publish(b"a", b"b", kind=0)
    desk.queue.close_batch()
    answers: list[Any] = []
    open_lease(desk.queue, "job", None, answers.append)
    take_lease(desk.queue, "job", 2, 1 << 20, answers.append)
    desk.publish(b"c", kind=0)
    desk.queue.close_batch()
    held = desk.queue.extension(Leases)
    assert held is not None and held.all["job"].next == 2
    assert desk.reads.extent(SPEC)[:3] == (1, 4, 3)
    assert await desk.found() == ({1: b"a", 2: b"b", 3: b"c"}, 4)
