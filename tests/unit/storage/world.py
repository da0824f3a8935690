"""A log on a faulty disk, beside a simple model of what it promised.

The model is independent of the log: per queue a list of blocks as they were appended, and plain dicts and sets. After
a crash the log may have come up at any block between the last one reported durable and the last one appended; the model
is folded up to there and compared.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from leveret.base.range_set import stretches
from leveret.storage.format.queue_block import PERSISTENT, REDELIVERED, SHARED, Block, Run
from leveret.storage.log import Log, LogOptions
from leveret.storage.segments.disk import Job
from leveret.storage.segments.disk_jobs import Compact, Load, Write
from simulation.core.disk import Crashed, FaultyDisk

Message = tuple[bytes, bytes, int]


@dataclass
class Step:
    """One appended block, or a base that was recovered."""

    order: int
    number: int
    stored: dict[int, Message]
    settled: set[int]
    requeued: set[int]
    delivered_through: int
    next_seq: int
    counts: dict[int, int] = field(default_factory=dict)
    marks: dict[bytes, bytes] = field(default_factory=dict)


@dataclass
class ModelQueue:
    base: dict[int, Message] = field(default_factory=dict)
    base_redelivered: set[int] = field(default_factory=set)
    base_counts: dict[int, int] = field(default_factory=dict)
    base_marks: dict[bytes, bytes] = field(default_factory=dict)
    base_delivered: int = 0
    base_number: int = 0
    base_next: int = 1
    steps: list[Step] = field(default_factory=list)
    durable: int = 0  # Block number.
    transient: dict[int, Message] = field(default_factory=dict)  # In memory, waiting.
    spilled: dict[int, Message] = field(default_factory=dict)

    @property
    def number(self) -> int:
        return self.steps[-1].number if self.steps else self.base_number

    @property
    def next_seq(self) -> int:
        return self.steps[-1].next_seq if self.steps else self.base_next

    def fold(self, number: int) -> dict[int, Message]:
        live = dict(self.base)
        for step in self.steps:
            if step.number <= number:
                live.update(step.stored)
                for seq in step.settled:
                    live.pop(seq, None)
        return live

    def counts(self, number: int) -> dict[int, int]:
        """How often messages were given back."""
        counts = dict(self.base_counts)
        for step in self.steps:
            if step.number <= number:
                counts.update(step.counts)
        return counts

    def marks(self, number: int) -> dict[bytes, bytes]:
        marks = dict(self.base_marks)
        for step in self.steps:
            if step.number <= number:
                marks.update(step.marks)
        return {key: value for key, value in marks.items() if value}

    def live(self) -> dict[int, Message]:
        return self.fold(self.number)


def ranges_of(numbers: set[int]) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if ranges and ranges[-1][1] + 1 == number:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ranges


def changed_marks(rng: random.Random, value: int) -> dict[bytes, bytes]:
    """Of few names, so that each is set and removed often."""
    names = [b"%d" % rng.randrange(4) for _ in range(rng.choice([0, 0, 1, 3]))]
    return {name: rng.choice([b"", b"%d" % value]) for name in names}


def flat(ranges) -> set[int]:  # type: ignore[no-untyped-def]
    return {number for low, high in ranges for number in range(low, high + 1)}


class World:
    def __init__(self, seed: int, sync: str | None = None) -> None:
        self.rng = rng = random.Random(seed)
        self.disk = FaultyDisk(rng, sector_bytes=rng.choice([32, 512]))
        self.options = LogOptions(
            segment_bytes=rng.choice([700, 2000, 6000]),
            segment_blocks=rng.choice([4, 40, 1000]),
            group_bytes=rng.choice([400, 2000, 100_000]),
            sync=sync or rng.choice(["always"] * 6 + ["interval", "never"]),  # type: ignore[arg-type]
            spares_max=rng.choice([0, 1, 4]),
            compact_bytes=rng.choice([200, 2000]),
            checkpoint_segments=rng.choice([1, 3, 8]),
            ahead_bytes=rng.choice([0, 2000, 8000]),
        )
        self.queues: dict[int, ModelQueue] = {}
        self.order = 0
        self.crashes = 0
        self.lost_forgets: set[int] = set()
        self.writing: Job | None = None
        self.upkeep: Job | None = None
        self.loads: list[tuple[Load, dict[int, Message]]] = []
        self.content_serial = 0
        self.calm = False  # No crashes but those the test asks for.
        self.log = self.new_log()

    def new_log(self) -> Log:
        while True:
            log = Log(self.disk, "log", self.options)
            try:
                log.recover(list(self.queues))
                return log
            except Crashed:
                self.crashes += 1
                self.die()

    def die(self) -> None:
        """The machine loses power, or only the process is killed: then all is still there, and still not synced."""
        if self.rng.random() < 0.7:
            self.disk.crash()
        self.disk.crash_after = self.disk.fail_sync_after = None

    # -- running -----------------------------------------------------------------

    def run(self, steps: int) -> None:
        for _ in range(steps):
            try:
                self.step()
            except Crashed:
                self.crash()
        self.disk.crash_after = self.disk.fail_sync_after = None
        self.disk.capacity_bytes = 1 << 40
        self.crash()
        self.check_space()

    def step(self) -> None:
        rng = self.rng
        choice = rng.random()
        if choice < 0.40:
            self.append()
        elif choice < 0.62:
            self.write()
        elif choice < 0.84:
            self.maintain()
        elif choice < 0.92:
            self.load()
        elif choice < 0.94:
            self.spill()
        elif choice < 0.95:
            self.forget()
        elif choice < 0.96:
            self.log.sync_due()
        elif choice < 0.97:
            used = self.disk.capacity_bytes - self.disk.free_bytes()
            self.disk.capacity_bytes = used + rng.randrange(3000)
        elif choice < 0.985:
            self.disk.capacity_bytes = 1 << 40
        elif choice < 0.988:
            self.disk.fail_sync_after = rng.randrange(5)
        elif self.disk.crash_after is None:
            self.disk.crash_after = rng.randrange(30)

    def message(self, kind: int) -> Message:
        rng = self.rng
        self.content_serial += 1
        size = rng.choice([0, 3, 20, 20, 100, 100, 700 if rng.random() < 0.1 else 30])
        content = b"%d:" % self.content_serial + rng.randbytes(size)
        return content, rng.choice([b"\0\1a", b"\0\1a", b"\1x\2bb"]), kind

    def append(self) -> None:
        rng = self.rng
        kind = SHARED if self.order % 4 == 3 else PERSISTENT | SHARED
        shared = self.message(kind) if rng.random() < 0.2 else None
        for _ in range(rng.choice([1, 1, 3])):
            number = rng.choice([1, 2, 3, 2**63 + 5])
            if number in self.lost_forgets:
                continue
            self.append_block(number, shared)

    def append_block(self, number: int, shared: Message | None) -> None:
        rng = self.rng
        queue = self.queues.setdefault(number, ModelQueue())
        first = queue.next_seq
        messages = [
            self.message(rng.choice([PERSISTENT] * 6 + [0, PERSISTENT | REDELIVERED]))
            for _ in range(rng.choice([0, 0, 1, 1, 2, 8]))
        ]
        if rng.random() < 0.5:
            messages = [(content, key, PERSISTENT) for content, key, _ in messages]
        if shared:
            messages.insert(rng.randrange(len(messages) + 1), shared)
        new = {first + index: message for index, message in enumerate(messages)}
        waiting = sorted({*queue.live(), *queue.transient, *queue.spilled, *new})
        settled: set[int] = set()
        if waiting and rng.random() < 0.7:
            if rng.random() < 0.6:
                settled = set(waiting[: rng.randrange(len(waiting) + 1)])
            else:
                settled = set(rng.sample(waiting, rng.randrange(len(waiting) + 1)))
        requeued = set(rng.sample(waiting, min(len(waiting), rng.choice([0, 0, 0, 2])))) - settled
        before = queue.steps[-1].delivered_through if queue.steps else queue.base_delivered
        delivered = max(before, *settled, *requeued, rng.choice(waiting), 0) if waiting else before
        stored = {seq: message for seq, message in new.items() if message[2] & PERSISTENT}
        self.order += 1
        known = queue.counts(queue.number)
        counts = {seq: known.get(seq, 0) + 1 for seq in requeued}
        marks = changed_marks(rng, self.order)
        following = first + len(messages)
        step = Step(self.order, queue.number + 1, stored, settled, requeued, delivered, following, counts, marks)
        queue.transient.update({seq: message for seq, message in new.items() if seq not in stored})
        for seq in settled:
            queue.transient.pop(seq, None)
            queue.spilled.pop(seq, None)
        queue.steps.append(step)
        run = None
        if messages:
            run = Run(first, [m[0] for m in messages], [m[1] for m in messages], bytearray(m[2] for m in messages))
        self.log.append(
            Block(
                number, 1, step.number, 1000 + self.order, run, ranges_of(settled), ranges_of(requeued), delivered,
                stretches(counts), marks,
            )
        )  # fmt: skip

    def perform(self, job: Job) -> None:
        try:
            job.perform(self.disk)
        except OSError as error:
            outcome = self.log.on_failed(job, error)
            if outcome == "stopped":
                assert self.log.take() is None and self.log.maintenance() is None
                raise Crashed from None
            return
        for block in self.log.on_done(job):
            queue = self.queues.get(block.queue)
            if queue is not None and (self.options.sync == "always"):
                queue.durable = max(queue.durable, block.number)
        if isinstance(job, Write) and job.sync and not self.log.gathered:
            for number, queue in self.queues.items():
                queue.durable = self.log.queue(number).number

    def write(self) -> None:
        if self.writing is None:
            self.writing = self.log.take()
            if self.writing is not None and self.rng.random() < 0.6:
                return  # Others work meanwhile.
        if self.writing is not None:
            job, self.writing = self.writing, None
            self.perform(job)

    def maintain(self) -> None:
        if self.upkeep is None:
            self.upkeep = self.log.maintenance(idle=self.rng.random() < 0.5)
            if self.upkeep is not None and self.rng.random() < 0.5:
                return
        if self.upkeep is not None:
            job, self.upkeep = self.upkeep, None
            self.perform(job)
            if isinstance(job, Compact) and not self.calm and self.rng.random() < 0.4:
                # Copies are gathered: settle some of them, and die around the write.
                self.append()
                self.disk.crash_after = self.rng.randrange(6)

    def spill(self) -> None:
        if not self.queues:
            return
        number = self.rng.choice(sorted(self.queues))
        queue = self.queues[number]
        runs = []
        for low, high in ranges_of(set(queue.transient)):
            messages = [queue.transient[seq] for seq in range(low, high + 1)]
            kinds = bytearray(message[2] for message in messages)
            runs.append(Run(low, [m[0] for m in messages], [m[1] for m in messages], kinds))
        self.log.spill(number, runs)
        queue.spilled.update(queue.transient)
        queue.transient.clear()

    def forget(self) -> None:
        """Only ever once for a number, except when its record is durable before the number comes again."""
        if not self.queues:
            return
        number = self.rng.choice(sorted(self.queues))
        self.log.forget(number)
        del self.queues[number]
        self.lost_forgets.add(number)
        if self.rng.random() < 0.7:
            self.drain()
            self.lost_forgets.discard(number)

    def drain(self) -> None:
        """Write everything."""
        self.disk.capacity_bytes = 1 << 40
        if self.writing is not None:
            job, self.writing = self.writing, None
            self.perform(job)
        self.log.sync_due()
        while (write := self.log.take()) is not None:
            if self.options.sync != "always":
                write.sync = True
            self.perform(write)

    # -- checking ----------------------------------------------------------------

    def load(self) -> None:
        if self.loads and self.rng.random() < 0.7:
            load, expected = self.loads.pop()
            load.perform(self.disk)
            self.log.on_done(load)
            self.check_load(load, expected)
            return
        if not self.queues:
            return
        number = self.rng.choice(sorted(self.queues))
        queue = self.queues[number]
        there = {**queue.live(), **queue.spilled}
        first = self.rng.randrange(1, queue.next_seq + 1)
        last = first + self.rng.choice([0, 5, 1000])
        job = self.log.load(number, first, last, self.rng.choice([1, 100, 10_000]))
        expected = {seq: message for seq, message in there.items() if first <= seq <= last}
        if job is None:
            assert not expected, f"queue {number}: load gives nothing, {sorted(expected)} wait"
            return
        self.loads.append((job, expected))

    @staticmethod
    def check_load(job, expected: dict[int, Message]) -> None:  # type: ignore[no-untyped-def]
        loaded: dict[int, Message] = {}
        for run in job.runs:
            for index, content in enumerate(run.contents):
                assert not loaded or run.first + index > max(loaded)
                loaded[run.first + index] = (content, run.keys[index], run.kinds[index])
        assert loaded or not expected
        wanted = {seq: message for seq, message in expected.items() if seq < job.next}
        assert sorted(loaded) == sorted(wanted)
        for seq, (content, key, kind) in wanted.items():
            assert loaded[seq][:2] == (content, key), f"message {seq} has another content"
            assert loaded[seq][2] & PERSISTENT == kind & PERSISTENT
            assert not loaded[seq][2] & SHARED
            assert loaded[seq][2] & REDELIVERED or not kind & REDELIVERED

    def crash(self) -> None:
        self.crashes += 1
        self.writing = self.upkeep = None
        self.loads = []
        self.die()
        if self.rng.random() < 0.3:
            self.disk.crash_after = self.rng.randrange(6)  # Recovery dies too.
        self.disk.capacity_bytes = 1 << 40
        self.log = self.new_log()
        self.disk.crash_after = None
        self.check_order()
        for number, queue in self.queues.items():
            self.check_queue(number, queue)

    def check_order(self) -> None:
        """Blocks of all queues survive up to one point of their common order."""
        kept = lost = None
        for number, queue in self.queues.items():
            up_to = self.log.queue(number).number
            for step in queue.steps:
                if step.number <= up_to:
                    kept = max(kept or 0, step.order)
                else:
                    lost = min(lost or 1 << 60, step.order)
        assert kept is None or lost is None or kept < lost

    def check_queue(self, number: int, queue: ModelQueue) -> None:
        found = self.log.queue(number)
        reached = found.number
        assert queue.durable <= reached <= queue.number, f"queue {number}: {reached}, durable {queue.durable}"
        live = queue.fold(reached)
        later = [step for step in queue.steps if step.number > reached]
        settled_later = {seq for step in later for seq in step.settled}
        begun = later[0].stored if later else {}
        actual = flat(found.live)
        assert set(live) - settled_later <= actual, f"queue {number} lost {set(live) - settled_later - actual}"
        assert actual <= {*live, *begun}, f"queue {number}: {actual - {*live, *begun}} came back"
        assert found.count == len(actual)
        self.check_redelivered(queue, found, reached, actual)
        counts = {seq: count for seq, count in queue.counts(reached).items() if seq in actual}
        assert found.counts == counts, f"queue {number}: given back {found.counts}, truly {counts}"
        queue.base_counts = counts
        assert found.marks.values() == queue.marks(reached) and all(value for _, value in found.marks.known.values())
        queue.base_marks = queue.marks(reached)
        contents = {**live, **begun}
        self.load_all(number, {seq: contents[seq] for seq in actual})
        queue.base = {seq: contents[seq] for seq in actual}
        queue.base_redelivered = flat(found.redelivered)
        queue.base_number = queue.durable = reached
        queue.base_next = found.next_seq
        queue.base_delivered = found.delivered_through
        queue.steps = []
        queue.transient = {}
        queue.spilled = {}

    @staticmethod
    def check_redelivered(queue: ModelQueue, found, reached: int, actual: set[int]) -> None:  # type: ignore[no-untyped-def]
        delivered = max(
            [queue.base_delivered, *(step.delivered_through for step in queue.steps if step.number <= reached)]
        )
        requeued = set(queue.base_redelivered)
        for step in queue.steps:
            if step.number <= reached:
                requeued |= step.requeued
        expected = {seq for seq in actual if seq <= delivered or seq in requeued}
        redelivered = flat(found.redelivered)
        assert expected <= redelivered <= actual
        assert all(seq <= found.delivered_through or seq in requeued for seq in redelivered)

    def load_all(self, number: int, expected: dict[int, Message]) -> None:
        at = 1
        seen: set[int] = set()
        while (job := self.log.load(number, at, 1 << 62, self.rng.choice([1, 5000]))) is not None:
            job.perform(self.disk)
            self.log.on_done(job)
            self.check_load(job, {seq: message for seq, message in expected.items() if seq >= at})
            seen |= {run.first + index for run in job.runs for index in range(len(run.contents))}
            at = job.next
        assert seen == set(expected)

    def settle_down(self) -> None:
        self.drain()
        if self.upkeep is not None:
            job, self.upkeep = self.upkeep, None
            self.perform(job)
        for load, expected in self.loads:
            load.perform(self.disk)
            self.log.on_done(load)
            self.check_load(load, expected)
        self.loads = []
        for _ in range(2000):
            next_job = self.log.take() or self.log.maintenance(idle=True)
            if next_job is None:
                return
            self.perform(next_job)
        raise AssertionError("maintenance never ends")

    def check_space(self) -> None:
        """What is on disk is in proportion to what lives, and nothing once nothing does."""
        self.settle_down()
        live = sum(
            len(content) + len(key) + 200 for queue in self.queues.values() for content, key, _ in queue.live().values()
        )
        room = self.options.segment_bytes + self.options.group_bytes + 4000
        lengths = sum(segment.length for segment in self.log.segment_table.values())
        assert lengths <= 4 * live + 2 * room, f"{lengths} bytes in segments for {live} live bytes"
        for number, queue in self.queues.items():
            if queue.next_seq > 1:
                self.order += 1
                everything = set(queue.live())
                step = Step(self.order, queue.number + 1, {}, everything, set(), queue.next_seq - 1, queue.next_seq)
                queue.steps.append(step)
                settled = [(1, queue.next_seq - 1)]
                self.log.append(Block(number, 1, step.number, 0, None, settled, [], queue.next_seq - 1))
        self.settle_down()
        # Less than a checkpoint's own size is not worth a checkpoint.
        spent = sum(segment.length for segment in self.log.segment_table.values() if segment.sealed)
        assert spent <= self.log.upkeep.checkpoint_bytes, f"{self.log.segments} segments for nothing"
        assert all(self.log.queue(number).message_bytes == 0 for number in self.queues)
        assert self.log.shares[0].live == 0 and self.log.pending_bytes == 0
        self.crash()
        assert all(not self.log.queue(number).live for number in self.queues)
