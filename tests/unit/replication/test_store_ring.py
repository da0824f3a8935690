"""Members of the simulated ring, whose effects a real log performs beside the world's own lists: it must accept them
all, hold the same, and after a start give the same back."""

from __future__ import annotations

import random
from typing import Any

import pytest

from leveret.broker.mirrors.copy_store import MirrorStore, Reading
from leveret.replication.member import Member
from leveret.replication.ring_frames import Apply, Effect, Read, Write
from leveret.storage.format.queue_block import PERSISTENT
from leveret.storage.log import Log, LogOptions
from simulation.core.disk import FaultyDisk
from simulation.ring.parts import Node, replay
from simulation.ring.world import GROUP, Plan, World

OPTIONS = LogOptions(segment_bytes=1500, group_bytes=2000, compact_bytes=400, checkpoint_segments=2)


class Shadow:
    """The disk of one node, written as the world's lists say."""

    def __init__(self, writes: list[Write]) -> None:
        self.disk = FaultyDisk(random.Random(1))
        self.open()
        self.store.recovered(GROUP)
        waiting: list[Any] = []
        for write in writes:
            done = [block for block in waiting if block.number <= write.confirmed]
            self.store.apply(Apply(tuple(done)))
            waiting = waiting[len(done) :]
            self.store.write(GROUP, write)
            change: Any = write.change
            kind = type(change).__name__
            if kind == "Append":
                waiting += change.blocks
            elif kind == "Truncate":
                waiting = [block for block in waiting if block.number <= change.number]
            elif kind == "Restart":
                waiting = []
            self.flush()

    def open(self) -> None:
        self.log = Log(self.disk, "log", OPTIONS)
        self.log.recover([GROUP])
        self.store = MirrorStore(self.log.mirrors)

    def flush(self) -> dict[int, int]:
        synced: dict[int, int] = {}
        while (job := self.log.take() or self.log.maintenance()) is not None:
            job.perform(self.disk)
            self.log.on_done(job)
            if hasattr(job, "marks"):
                synced.update(self.store.synced(job))
        return synced

    def live(self) -> set[int]:
        return {seq for low, high in self.log.queue(GROUP).live for seq in range(low, high + 1)}


class ShadowWorld(World):
    def __init__(self, plan: Plan) -> None:
        self.shadows: dict[str, tuple[int, Shadow]] = {}
        self.pieces = 0
        super().__init__(plan)

    def shadow(self, node: Node) -> Shadow:
        """Made anew with each member."""
        known = self.shadows.get(node.name)
        if known is None or known[0] != node.generation:
            shadow = Shadow(node.writes)
            found, stored = replay(node.writes)
            shadow.disk.crash()
            shadow.open()
            assert shadow.store.recovered(GROUP) == found
            assert shadow.live() == set(stored.live)
            known = self.shadows[node.name] = (node.generation, shadow)
        return known[1]

    def perform(self, node: Node, member: Member, effect: Effect) -> None:
        shadow = self.shadow(node)
        if isinstance(effect, Write):
            shadow.store.write(GROUP, effect)
            if self.rng.random() < 0.5 and (synced := shadow.flush()):
                assert synced == {GROUP: effect.id}
        elif isinstance(effect, Apply):
            shadow.store.apply(effect)
        elif isinstance(effect, Read):
            reading = shadow.store.read(GROUP, effect.request)
            if reading.job is not None:
                job: Any = reading.job
                job.perform(shadow.disk)
                shadow.log.on_done(job)
            reading.answer(Check(node, reading))
            self.pieces += 1
        super().perform(node, member, effect)
        if isinstance(effect, Write | Apply):
            assert shadow.live() == set(node.stored.live)
            assert shadow.log.mirrors.lost(GROUP) == merged(node.stored.lost())


class Check:
    def __init__(self, node: Node, reading: Reading) -> None:
        self.live = node.stored.live
        self.request = reading.request

    def on_read(
        self, request: Any, live: Any, runs: Any, upto: int, counts: Any = (), marks: Any = (), requeued: Any = ()
    ) -> None:
        assert not counts and not marks and not requeued
        expected = {seq for seq in self.live if request.after < seq <= upto}
        assert {seq for low, high in live for seq in range(low, high + 1)} == expected
        for run in runs:
            for seq, content in enumerate(run.contents, run.first):
                assert self.live[seq] == content
                assert run.kinds[seq - run.first] in (0, PERSISTENT)


def merged(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for low, high in pairs:
        if found and found[-1][1] + 1 == low:
            found[-1] = (found[-1][0], high)
        else:
            found.append((low, high))
    return found


@pytest.mark.parametrize(("mode", "first"), [("safe", 0), ("safe", 6), ("lossy", 0), ("lossy", 6), ("async", 0)])
def test_the_log_does_what_members_want(mode: str, first: int) -> None:
    pieces = 0
    for seed in range(first, first + 6):
        world = ShadowWorld(Plan(seed, mode))
        world.run(30)
        pieces += world.pieces
    assert pieces
