"""Mirrored queues beside others in one log on a faulty disk.

Each mirrored queue follows a *truth*, the log that its ring agreed on, as a member would: it takes blocks, now and then
some that never get confirmed and are cut off again, begins anew at a cut and fills up. What must be there after a crash
is what `simulation.ring.parts.replay` makes of some beginning of its writes, at least of those reported durable: plain
lists and dicts that share nothing with the log.
"""

from __future__ import annotations

from leveret.base.range_set import stretches
from leveret.broker.mirrors.copy_store import MirrorStore, Reading
from leveret.replication.catch_up import merged
from leveret.replication.packed_block import PackedBlock, pack_block
from leveret.replication.ring_frames import (
    Append,
    Apply,
    Change,
    Complete,
    Counts,
    Fill,
    Ranges,
    Recovered,
    Request,
    Restart,
    Truncate,
)
from leveret.replication.ring_frames import Write as WriteEffect
from leveret.storage.format.queue_block import PERSISTENT, Block, Run
from leveret.storage.format.queue_marks import Mark
from leveret.storage.log import Log
from leveret.storage.segments.disk import Job
from leveret.storage.segments.disk_jobs import Load
from leveret.storage.segments.disk_jobs import Write as WriteJob
from simulation.core.disk import Crashed
from simulation.ring.parts import Stored, replay

from .world import World, changed_marks, flat, ranges_of


def packed(block: Block) -> Block:
    meta, body = pack_block(block)
    return PackedBlock(meta, b"".join(body))


def fold(writes: list[WriteEffect], applied: int) -> tuple[Recovered, Stored]:
    found, stored = replay(writes)
    blocks = list(found.blocks)
    base = found.base
    while blocks and blocks[0].number <= applied:
        base = blocks[0].number
        stored.apply(blocks.pop(0))
    return found._replace(base=base, blocks=tuple(blocks), messages=stored.last), stored


class Copy:
    """One mirrored queue on this node, and the truth it follows."""

    def __init__(self, epoch: int = 1) -> None:
        self.truth: list[Block] = []  # The block with number n is at n - 1.
        self.epoch = epoch
        self.bump = False  # The next block of the truth opens an epoch.
        self.writes: list[WriteEffect] = []
        self.start = 0  # How many of them are of earlier lives.
        self.synced = 0
        self.applied = 0
        self.peak = 0

    def state(self) -> tuple[Recovered, Stored]:
        return fold(self.writes, self.applied)

    def truth_at(self, number: int) -> Stored:
        stored = Stored()
        for block in self.truth[:number]:
            stored.apply(block)
        return stored

    def counts_at(self, number: int) -> dict[int, int]:
        """How often messages that live there were given back. That rises with the number of the block."""
        counts = {
            seq: count for block in self.truth[:number] for low, high, count in block.counts
            for seq in range(low, high + 1)
        }  # fmt: skip
        live = self.truth_at(number).live
        return {seq: count for seq, count in counts.items() if seq in live}

    def requeued_at(self, number: int) -> set[int]:
        """Which messages that live there may have been delivered."""
        requeued = {seq for block in self.truth[:number] for seq in flat(block.requeued)}
        return requeued & set(self.truth_at(number).live)

    def marks_at(self, number: int) -> dict[bytes, tuple[int, bytes]]:
        """With the numbers of the blocks that set them."""
        marks = {key: (block.number, value) for block in self.truth[:number] for key, value in block.marks.items()}
        return {key: mark for key, mark in marks.items() if mark[1]}

    def history_to(self, number: int) -> tuple[tuple[int, int], ...]:
        found: list[tuple[int, int]] = []
        for block in self.truth[:number]:
            if not found or found[-1][0] != block.epoch:
                found.append((block.epoch, block.number))
        return tuple(found)

    def common(self, found: Recovered) -> int:
        """Up to where its log is the truth."""
        number = min(found.base, len(self.truth))
        for block in found.blocks:
            if block.number > len(self.truth) or self.truth[block.number - 1].epoch != block.epoch:
                break
            number = block.number
        return number

    def candidates(self) -> list[list[WriteEffect]]:
        """What may have survived: some beginning of the writes; of the first lost one, some of its blocks."""
        found = []
        for count in range(len(self.writes), self.synced - 1, -1):
            found.append(self.writes[:count])
            lost = self.writes[count] if count < len(self.writes) else None
            if lost is not None and isinstance(lost.change, Append):
                for blocks in range(len(lost.change.blocks) - 1, 0, -1):
                    part = lost._replace(change=Append(lost.change.blocks[:blocks]))
                    found.append([*self.writes[:count], part])
        return found


class WatchedLog(Log):
    done: list[WriteJob]

    def on_done(self, job: Job) -> list[Block]:
        blocks = super().on_done(job)
        if isinstance(job, WriteJob):
            self.done.append(job)
        return blocks


class MirrorWorld(World):
    log: WatchedLog

    def __init__(self, seed: int, sync: str | None = None) -> None:
        self.copies: dict[int, Copy] = {11: Copy(), 12: Copy()}
        self.absent: set[int] = set()
        self.lives = 0
        self.readings: list[tuple[int, Reading, dict[int, bytes]]] = []
        self.tally: dict[str, int] = {}
        super().__init__(seed, sync)

    def new_log(self) -> Log:
        while True:
            log = WatchedLog(self.disk, "log", self.options)
            log.done = []
            try:
                log.recover([*self.queues, *self.copies])
            except Crashed:
                self.crashes += 1
                self.die()
                continue
            self.store = MirrorStore(log.mirrors)
            for queue, copy in self.copies.items():
                copy.start = len(copy.writes)
                self.found = self.store.recovered(queue)
                self.check_recovered(queue, copy, self.found, log)
            return log

    # -- running -----------------------------------------------------------------------

    def step(self) -> None:
        if self.rng.random() < 0.5:
            super().step()
        else:
            self.mirror_step()

    def mirror_step(self) -> None:
        rng = self.rng
        if self.absent and rng.random() < 0.2:
            self.drain()
            self.lives += 1
            self.copies[self.absent.pop()] = copy = Copy(1000 * self.lives)
            assert self.store.recovered(next(q for q, one in self.copies.items() if one is copy)) == Recovered()
        queue = rng.choice(sorted(self.copies))
        copy = self.copies[queue]
        choice = rng.random()
        if choice < 0.25:
            self.grow(copy)
        elif choice < 0.55:
            self.follow(queue, copy)
        elif choice < 0.62:
            self.stray(queue, copy)
        elif choice < 0.82:
            self.confirm(queue, copy)
        elif choice < 0.86:
            self.begin_anew(queue, copy)
        elif choice < 0.94:
            self.fill(queue, copy)
        elif choice < 0.99:
            self.fetch(queue, copy)
        elif len(self.copies) > 1 and rng.random() < 0.3:
            del self.copies[queue]
            self.absent.add(queue)
            self.readings = [one for one in self.readings if one[0] != queue]
            self.store.left(queue)
            self.log.forget(queue)

    def count(self, what: str) -> None:
        self.tally[what] = self.tally.get(what, 0) + 1

    def write_change(self, queue: int, copy: Copy, change: Change) -> None:
        effect = WriteEffect(len(copy.writes) - copy.start + 1, change, copy.applied)
        copy.writes.append(effect)
        self.count(type(change).__name__)
        if isinstance(change, Append) and self.rng.random() < 0.7:
            effect = effect._replace(change=Append(tuple(map(packed, change.blocks))))
        self.store.write(queue, effect)

    def make_block(self, copy: Copy, number: int, epoch: int, first: int, live: list[int]) -> Block:
        rng = self.rng
        run = None
        size = rng.choice([0, 0, 1, 2, 6])
        if size:
            kinds = bytearray(rng.choice([PERSISTENT, PERSISTENT, 0]) for _ in range(size))
            contents = [(b"p" if kind else b"t") + self.message(kind)[0] for kind in kinds]
            run = Run(first, contents, [rng.choice([b"\0\1a", b"\1x\2bb"]) for _ in range(size)], kinds)
            live = [*live, *range(run.first, run.last + 1)]
        settled = set()
        if live and rng.random() < 0.6:
            settled = set(live[: rng.randrange(len(live) + 1)] if rng.random() < 0.5 else rng.sample(live, 1))
        requeued = set(rng.sample(live, 1)) - settled if live and rng.random() < 0.1 else set()
        queue = next(number for number, one in self.copies.items() if one is copy)
        counts = [(seq, seq, number) for seq in live if (seq + number) % 4 == 0 and seq not in settled]
        marks = changed_marks(rng, number)
        return Block(queue, epoch, number, 5, run, ranges_of(settled), ranges_of(requeued), 0, counts, marks)

    def grow(self, copy: Copy) -> None:
        """The ring agrees on another block."""
        if copy.bump:
            copy.bump, copy.epoch = False, copy.epoch + 1
            copy.truth.append(self.make_block(copy, len(copy.truth) + 1, copy.epoch, 1, []))
            copy.truth[-1].enqueued = None
            copy.truth[-1].settled, copy.truth[-1].requeued = [], []
            copy.truth[-1].counts, copy.truth[-1].marks = [], {}
            return
        stored = copy.truth_at(len(copy.truth))
        live = sorted(stored.live)
        copy.truth.append(self.make_block(copy, len(copy.truth) + 1, copy.epoch, stored.last + 1, live))

    def follow(self, queue: int, copy: Copy) -> None:
        """Take the next blocks; cut off what is in the way."""
        found, _ = copy.state()
        end = found.base + len(found.blocks)
        common = copy.common(found)
        if common < end:
            if len(copy.truth) > common:
                self.write_change(queue, copy, Truncate(common))
            return
        blocks = copy.truth[end : end + self.rng.choice([1, 1, 2, 4])]
        if blocks:
            self.write_change(queue, copy, Append(tuple(blocks)))

    def stray(self, queue: int, copy: Copy) -> None:
        """A block that its master will not get confirmed, with numbers that others will have."""
        found, stored = copy.state()
        end = found.base + len(found.blocks)
        if end != len(copy.truth) and copy.common(found) == end:
            return
        if copy.common(found) < end and len(copy.truth) > copy.common(found):
            return
        for block in found.blocks:
            stored.apply(block)
        epoch = found.blocks[-1].epoch if found.blocks else found.history[-1][0] if found.history else 1
        copy.bump = True
        self.count("stray")
        block = self.make_block(copy, end + 1, epoch, stored.last + 1, sorted(stored.live))
        self.write_change(queue, copy, Append((block,)))

    def confirm(self, queue: int, copy: Copy, number: int | None = None) -> None:
        found, _ = copy.state()
        limit = copy.common(found)
        if limit <= copy.applied:
            return
        upto = number or self.rng.randint(copy.applied + 1, limit)
        blocks = tuple(block for block in found.blocks if block.number <= upto)
        copy.applied = upto
        copy.peak = max(copy.peak, upto)
        self.count("Apply")
        self.store.apply(Apply(tuple(map(packed, blocks)) if self.rng.random() < 0.5 else blocks))
        self.check_live(queue, copy)

    def begin_anew(self, queue: int, copy: Copy) -> None:
        rng = self.rng
        keep = rng.random() < 0.6
        found, _ = copy.state()
        if keep:
            common = copy.common(found)
            if common > copy.applied:
                self.confirm(queue, copy, common)
            found, _ = copy.state()
        have: Ranges = ()
        if keep and found.complete:
            have = merged([(1, found.messages)])
        elif keep:
            have = merged([(1, found.after), *found.have, (found.bound + 1, found.messages)])
        if copy.applied > len(copy.truth):
            return
        cut = rng.randint(copy.applied, len(copy.truth)) if keep else rng.choice([0, len(copy.truth)])
        bound = copy.truth_at(cut).last
        self.count("kept" if have else "fresh")
        read_at = found.read_at if have else 0
        self.write_change(queue, copy, Restart(cut, copy.history_to(cut), bound, have, read_at))
        copy.applied = cut
        copy.peak = max(copy.peak, cut)
        self.readings = [one for one in self.readings if one[0] != queue]
        self.check_live(queue, copy)

    def fill(self, queue: int, copy: Copy) -> None:
        found, _ = copy.state()
        if found.complete:
            return
        if found.after >= found.bound and found.marked:
            if copy.applied >= found.read_at:
                self.write_change(queue, copy, Complete(found.read_at))
            return
        upto = min(found.bound, found.after + self.rng.choice([1, 5, 100]))
        read_at = self.rng.randint(found.cut, len(copy.truth))
        source = copy.truth_at(read_at)
        live = sorted(seq for seq in source.live if found.after < seq <= upto)
        lacking = [seq for seq in live if not any(low <= seq <= high for low, high in found.have)]
        runs = []
        for low, high in ranges_of(set(lacking)):
            contents = [source.live[seq] for seq in range(low, high + 1)]
            kinds = bytearray(PERSISTENT if content[:1] == b"p" else 0 for content in contents)
            runs.append(Run(low, contents, [b"k"] * len(contents), kinds))
        known = copy.counts_at(read_at)
        counts = tuple(stretches({seq: known[seq] for seq in live if seq in known}))
        marks = () if found.after else tuple((at, key, value) for key, (at, value) in copy.marks_at(read_at).items())
        requeued = tuple(ranges_of(copy.requeued_at(read_at) & set(live)))
        read_at = max(found.read_at, read_at)
        change = Fill(found.after, upto, tuple(ranges_of(set(live))), tuple(runs), read_at, counts, marks, requeued)
        self.write_change(queue, copy, change)
        self.check_live(queue, copy)

    def fetch(self, queue: int, copy: Copy) -> None:
        """Look now, read later, while others write and move."""
        if self.readings and self.rng.random() < 0.6:
            _, reading, live = self.readings.pop()
            if isinstance(reading.job, Load):
                reading.job.perform(self.disk)
                self.log.on_done(reading.job)
            reading.answer(Asker(reading.request, live))
            self.count("pieces")
            return
        _, stored = copy.state()
        if not stored.last:
            return
        rng = self.rng
        after = rng.randrange(stored.last)
        low = rng.randint(1, stored.last)
        have = () if rng.random() < 0.5 else ((low, rng.randint(low, stored.last)),)
        request = Request("x", 0, after, stored.last, have, rng.choice([0, 1, 50, 5000]), 0)
        self.readings.append((queue, self.store.read(queue, request), dict(stored.live)))

    # -- checking ----------------------------------------------------------------------

    def perform(self, job: Job) -> None:
        super().perform(job)
        done, self.log.done = self.log.done, []
        for write in done:
            for queue, number in self.store.synced(write).items():
                copy = self.copies[queue]
                assert copy.start + number <= len(copy.writes)
                if self.options.sync == "always":
                    copy.synced = copy.start + number

    def check_live(self, queue: int, copy: Copy) -> None:
        state, stored = copy.state()
        found = self.log.queue(queue)
        assert flat(found.live) == set(stored.live)
        assert found.next_seq - 1 == stored.last
        if state.complete:
            assert found.counts == copy.counts_at(copy.applied)
            assert flat(found.redelivered) == copy.requeued_at(copy.applied)
            assert found.marks.known == copy.marks_at(copy.applied)

    def check_recovered(self, queue: int, copy: Copy, found: Recovered, log: Log) -> None:
        for writes in copy.candidates():
            expected, stored = fold(writes, found.base)
            if expected == found:
                break
        else:
            raise AssertionError(f"queue {queue}: {found} is no beginning of what was written")
        assert found.base <= copy.peak
        assert not log.damage and not self.store.disk(queue)
        copy.writes, copy.applied = writes, found.base
        copy.start = copy.synced = len(writes)
        live = flat(log.queue(queue).live)
        assert live == set(stored.live), f"queue {queue} has {live}"
        if found.complete:
            assert log.queue(queue).counts == copy.counts_at(found.base)
            assert flat(log.queue(queue).redelivered) == copy.requeued_at(found.base)
            assert log.queue(queue).marks.known == copy.marks_at(found.base)
        assert log.mirrors.lost(queue) == ranges_of(set(range(1, stored.last + 1)) - live)
        self.check_contents(queue, log, stored)

    def check_contents(self, queue: int, log: Log, stored: Stored) -> None:
        at = 1
        seen: set[int] = set()
        while (job := log.load(queue, at, 1 << 62, self.rng.choice([1, 5000]))) is not None:
            job.perform(self.disk)
            log.on_done(job)
            for run in job.runs:
                for seq, content in enumerate(run.contents, run.first):
                    assert stored.live[seq] == content, f"queue {queue}: message {seq} has another content"
                    assert bool(run.kinds[seq - run.first] & PERSISTENT) == (content[:1] == b"p")
                    assert seq not in seen
                    seen.add(seq)
            at = job.next
        assert seen == set(stored.live)

    def crash(self) -> None:
        self.readings = []
        super().crash()

    def check_space(self) -> None:
        for queue in self.copies:
            self.consume_all(queue)
        self.drain()
        for queue, copy in self.copies.items():
            self.write_change(queue, copy, Truncate(copy.applied))  # So that the log knows what is confirmed.
        super().check_space()
        for queue, copy in self.copies.items():
            assert not self.log.queue(queue).live
            assert copy.state()[0].blocks == ()

    def consume_all(self, queue: int) -> None:
        copy = self.copies[queue]
        self.grow(copy)
        self.catch_up(queue, copy)
        _, stored = copy.state()
        settled = [(1, stored.last)] if stored.last else []
        copy.truth.append(Block(queue, copy.epoch, len(copy.truth) + 1, 0, None, settled, [], 0))
        self.catch_up(queue, copy)

    def catch_up(self, queue: int, copy: Copy) -> None:
        for _ in range(1000):
            self.follow(queue, copy)
            self.confirm(queue, copy)
            if not copy.state()[0].complete:
                self.fill(queue, copy)
            elif copy.applied == len(copy.truth):
                return
        raise AssertionError("it never follows")


class Asker:
    """Checks a piece."""

    def __init__(self, request: Request, live: dict[int, bytes]) -> None:
        self.request = request
        self.live = live

    def on_read(
        self,
        request: Request,
        live: Ranges,
        runs: tuple[Run, ...],
        upto: int,
        counts: Counts = (),
        marks: tuple[Mark, ...] = (),
        requeued: Ranges = (),
    ) -> None:
        assert request is self.request and request.after <= upto <= request.bound
        expected = {seq for seq in self.live if request.after < seq <= upto}
        assert flat(live) == expected and flat(requeued) <= expected
        sent = {seq: content for run in runs for seq, content in enumerate(run.contents, run.first)}
        had = flat(request.have)
        assert set(sent) == expected - had
        assert all(self.live[seq] == content for seq, content in sent.items())
        wanted = [seq for seq in self.live if request.after < seq <= request.bound and seq not in had]
        if not request.bytes_max:
            assert not sent and upto == (min(wanted) - 1 if wanted else request.bound)
        elif wanted:
            assert sent, "each piece brings something"
