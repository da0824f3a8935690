"""Range reads give what a model of the queue holds, whatever was settled, shared, spilled or is in memory only."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from leveret.data.sheet import Sheet, decode
from leveret.node.stats.sheet_reader import RangeRead
from leveret.storage.format.errors import LogDamaged
from leveret.storage.format.queue_block import EXPIRES, PERSISTENT, REDELIVERED, SHARED, Block, Run
from leveret.storage.log import Log, LogOptions
from simulation.core.disk import FaultyDisk

KEYS = (b"\x00\x01a", b"\x02ex\x02bb")


class World:
    """A log with two queues, and what of the first should be found in it."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.disk = FaultyDisk(random.Random(seed))
        self.log = Log(self.disk, "log", LogOptions(segment_bytes=3000, group_bytes=4000))
        self.log.recover([])
        self.number = 0
        self.next = 1
        self.live: dict[int, tuple[bytes, bytes, int, int]] = {}  # content, key, kind, ms
        self.memory: list[Run] = []

    def publish(self) -> None:
        rng, count, ms = self.rng, self.rng.randint(1, 40), 1000 + 10 * self.number
        contents = [b"%d:" % n + bytes(rng.randint(0, 60)) for n in range(self.next, self.next + count)]
        keys = sorted(rng.choice(KEYS) for _ in range(count))
        kinds = bytearray(rng.choice((PERSISTENT, PERSISTENT | EXPIRES, PERSISTENT | SHARED)) for _ in range(count))
        times = [(0, ms), (count // 2, ms + 1)] if count > 3 and rng.random() < 0.5 else []
        run = Run(self.next, contents, keys, kinds, times)
        for at, (one, key, kind) in enumerate(zip(contents, keys, kinds, strict=True)):
            came = ms + 1 if times and at >= count // 2 else ms
            self.live[self.next + at] = (one, key, kind & ~SHARED, came)
        self.next += count
        twin = Run(run.first, contents[:], keys[:], kinds[:], times[:])
        self._append(1, ms, run, [], [])
        self._append(2, ms, twin, [], [])

    def keep(self, spill: bool) -> None:
        """Transient messages: in memory, or put away."""
        count = self.rng.randint(1, 5)
        contents = [b"t%d" % n for n in range(self.next, self.next + count)]
        run = Run(self.next, contents, [KEYS[0]] * count, bytearray(count))
        self.live |= {self.next + at: (one, KEYS[0], 0, 0) for at, one in enumerate(contents)}
        self.next += count
        if spill:
            self.log.spill(1, [run])
        else:
            self.memory.append(run)

    def settle(self) -> None:
        first = self.rng.randint(1, self.next)
        last = min(first + self.rng.choice((0, 0, 1, 30)), self.next - 1)
        if last < first or any(run.first <= last and run.last >= first for run in self.memory):
            return
        self._append(1, 0, None, [(first, last)], [])
        for number in range(first, last + 1):
            self.live.pop(number, None)

    def give_back(self) -> None:
        number = self.rng.randint(1, self.next)
        if self.live.get(number, (b"", b"", 0, 0))[2] & PERSISTENT:
            self._append(1, 0, None, [], [(number, number)])
            content, key, kind, ms = self.live[number]
            self.live[number] = (content, key, kind | REDELIVERED, ms)

    def _append(
        self, queue: int, ms: int, run: Run | None, settled: list[tuple[int, int]], requeued: list[tuple[int, int]]
    ) -> None:
        self.number += 1
        self.log.append(Block(queue, 1, self.number, ms, run, settled, requeued, 0))

    def write(self) -> None:
        while (job := self.log.take() or self.log.maintenance(idle=True)) is not None:
            job.perform(self.disk)
            self.log.on_done(job)

    def read(self, first: int, last: int, bytes_max: int) -> tuple[Sheet, RangeRead]:
        load = self.log.load(1, first, last, bytes_max)
        memory = [
            run.cut(max(first - run.first, 0), len(run))
            for run in self.memory
            if run.first <= last and run.last >= first
        ]
        job = RangeRead(load, memory, last, bytes_max)
        job.perform(self.disk)
        if load is not None:
            self.log.on_done(load)
        return decode(b"".join(job.sheet)), job

    def found(self, first: int, last: int, bytes_max: int) -> dict[int, tuple[bytes, bytes, int, int]]:
        found = {}
        while first <= last:
            sheet, job = self.read(first, last, bytes_max)
            assert first < sheet.next <= last + 1
            assert len(sheet.body) <= bytes_max or sheet.count == 1
            assert all(one.messages for one in job.parts)
            for message in sheet:
                assert first <= message.number < sheet.next
                key = bytes((len(message.exchange),)) + message.exchange
                key += bytes((len(message.routing_key),)) + message.routing_key
                found[message.number] = (bytes(message.content), key, message.kind, message.ms)
            first = sheet.next
        return found


def check(world: World, first: int, last: int, bytes_max: int) -> None:
    found = world.found(first, last, bytes_max)
    wanted = {number: one for number, one in world.live.items() if first <= number <= last}
    if world.log.gathered:  # When they came is said where they are written.
        found = {number: (*one[:3], 0) for number, one in found.items()}
        wanted = {number: (*one[:3], 0) for number, one in wanted.items()}
    assert found == wanted


@pytest.mark.parametrize("seed", range(12))
def test_what_lives_is_read(seed: int) -> None:
    world = World(seed)
    rng = world.rng
    for _ in range(60):
        act = rng.choice((world.publish, world.publish, world.settle, world.settle, world.give_back))
        act()
        if rng.random() < 0.2:
            world.keep(spill=rng.random() < 0.5)
        if rng.random() < 0.3:
            world.write()
        if rng.random() < 0.3:
            first = rng.randint(1, world.next)
            last = rng.randint(first, world.next)
            check(world, first, last, rng.choice((1, 200, 5000)))
    world.write()
    check(world, 1, world.next - 1, 1 << 20)


def test_whole_blocks_pass_as_they_are() -> None:
    """Nothing is copied of a block of which all is wanted but its short columns."""
    world = World(1)
    for _ in range(5):
        world.number += 1
        contents = [b"x" * 100] * 10
        run = Run(world.next, contents, [KEYS[0]] * 10, bytearray((PERSISTENT,)) * 10)
        world.log.append(Block(1, 1, world.number, 7, run, [], [], 0))
        world.next += 10
    world.write()
    _, job = world.read(1, 50, 1 << 20)
    assert [part.ranges for part in job.parts] == [[(1, 10)], [(11, 20)], [(21, 30)], [(31, 40)], [(41, 50)]]
    assert all(isinstance(piece, memoryview) for part in job.parts for piece in part.body)
    assert [len(piece) for piece in job.sheet[1:]] == [1000] * 5


def test_a_large_message_comes_alone() -> None:
    world = World(1)
    run = Run(1, [b"a", b"b" * 500, b"c"], [KEYS[0]] * 3, bytearray((PERSISTENT,)) * 3)
    world.log.append(Block(1, 1, 1, 7, run, [], [], 0))
    world.write()
    sheets = [world.read(first, 3, 100)[0] for first in (1, 2, 3)]
    assert [(list(sheet.numbers()), sheet.next) for sheet in sheets] == [([1], 2), ([2], 3), ([3], 4)]
    assert all(one.next == two.ranges[0][0] for one, two in pairwise(sheets))


def test_damage_is_found() -> None:
    world = World(1)
    for content in (b"a" * 100, b"b" * 100):
        world.number += 1
        run = Run(world.number, [content], [KEYS[0]], bytearray((PERSISTENT,)))
        world.log.append(Block(1, 1, world.number, 7, run, [], [], 0))
        world.write()
    [path] = [f"log/segments/{name}" for name in world.disk.names("log/segments") if name.endswith(".log")]
    data = world.disk.read(path, 0, world.disk.size(path))
    at = data.index(b"b" * 100)
    world.disk.write(path, at, [b"X"])
    with pytest.raises(LogDamaged, match="checksum"):
        world.read(1, 2, 1 << 20)
    assert [one.number for one in world.read(1, 1, 1 << 20)[0]] == [1]
