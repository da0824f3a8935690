"""Queues with priorities without a broker: their host, what they hold, and who takes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from leveret.base.timers import Timers
from leveret.broker.delivery.batch import MESSAGE_OVERHEAD, Batch, GapRead
from leveret.broker.delivery.offsets import Start
from leveret.broker.kinds.priority_queue import PriorityQueue
from leveret.broker.queue.features import Features
from leveret.broker.queue.queue import Queue
from leveret.metadata.model.records import QueueSpec
from leveret.metadata.rules.queue_rules import QueueRules
from leveret.protocol.frames import HEADER_AT
from leveret.protocol.properties import Properties, body_size, encode
from leveret.protocol.tables import Field
from leveret.storage.format.queue_block import PERSISTENT, Block, Run
from tests.support.machines import MemoryLog

UNLIMITED = 1 << 40


class Host:
    """The broker as a queue sees it, with a log that answers when told to."""

    def __init__(self, log: MemoryLog | None = None) -> None:
        self.dirty: dict[Queue, None] = {}
        self.content_bytes = self.unlogged_bytes = self.now_ms = self.wall_ms = 0
        self.sharing = None
        self.content_bytes_max = self.spill_bytes_max = UNLIMITED
        self.log = log or MemoryLog()
        self.spilled: set[int] = set()
        self.wanted: list[tuple[Queue, GapRead]] = []
        self.timers: Timers[Queue] = Timers()
        self.idle: Timers[Queue] = Timers()
        self.rules = QueueRules(max_priority=5)
        self.policy_version = 0
        self.features = Features()

    def came_meanwhile(self, queue: Queue) -> int:
        return 0

    def rules_of(self, spec: QueueSpec) -> QueueRules:
        return self.rules

    def load(self, queue: Queue, read: GapRead) -> None:
        self.wanted.append((queue, read))

    def spill(self, queue: Queue, runs: list[Run]) -> None:
        for run in runs:
            numbers = set(range(run.first, run.last + 1))
            assert not numbers & self.spilled, "messages are spilled once"
            self.spilled |= numbers
            self.log.put(queue.spec.id, run)

    def when_loaded(self, queue: Queue, then: Callable[[], None]) -> None:
        raise NotImplementedError

    def counts_of(self, queue: Queue) -> dict[int, int]:
        return {}

    def stored_within(self, queue: Queue, first: int, last: int) -> list[tuple[int, int]]:
        return [(seq, seq) for seq in sorted(self.log.queues[queue.spec.id]) if first <= seq <= last]

    def finish_load(self, messages_max: int) -> None:
        queue, read = self.wanted.pop(0)
        runs, after = self.log.read(queue.spec.id, read.first, read.last, messages_max)
        queue.on_loaded(read, runs, after)

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
    begins_at: Start | None = None
    is_exact = False

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


def a_queue(host: Host, durable: bool = True) -> PriorityQueue:
    spec = QueueSpec(7, "/", "q", durable, False, False, {}, None, "node")
    return PriorityQueue(spec, cast(Any, host), 5)


def put(queue: Queue, *contents: bytes, kind: int = PERSISTENT) -> None:
    size = sum(map(len, contents)) + MESSAGE_OVERHEAD * len(contents)
    queue.enqueue(list(contents), [b"\x00\x01q"] * len(contents), kind, size, None)


def take(
    host: Host, queue: Queue, count: int, piece: int = 1000, meanwhile: Callable[[], None] = lambda: None
) -> list[tuple[Batch, int]]:
    """What a consumer with so much room gets, once all that is needed for it is read."""
    taker = Taker(count)
    queue.add_consumer(taker)
    queue.pump()
    while host.wanted:
        meanwhile()
        host.finish_load(piece)
        queue.pump()
    queue.remove_consumer(taker)
    return taker.got


def bodies(got: list[tuple[Batch, int]]) -> list[bytes]:
    return [body_of(batch.contents[at]) for batch, at in got]
