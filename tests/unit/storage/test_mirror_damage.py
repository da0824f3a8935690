"""Damage to a mirrored queue stops the start. Once it is repaired, the copy has what is good, and is another one.

A copy that lacks something its disk once promised to hold, and is taken for the one it was, could lead its queue with a
hole. So after any damage a copy is whole, or has another disk number.
"""

from __future__ import annotations

import os
import random

import pytest

from leveret.broker.mirrors.copy_store import MirrorStore
from leveret.replication.ring_frames import Append, Apply, Change, Complete, Fill, Recovered, Restart, Truncate
from leveret.replication.ring_frames import Write as WriteEffect
from leveret.storage.check import check, repair
from leveret.storage.format.errors import LogDamaged
from leveret.storage.format.queue_block import PERSISTENT, Block, Run
from leveret.storage.log import Log, LogOptions
from leveret.storage.segments.block_reader import Place
from leveret.storage.segments.disk_jobs import Compact, Write
from simulation.core.disk import Crashed, FaultyDisk

from .mirror_world import Copy, MirrorWorld
from .world import flat, ranges_of

_FIRST, _END = map(int, os.environ.get("LEVERET_LOG_SEEDS", "0-150").split("-"))


def calm_world(seed: int) -> tuple[MirrorWorld, tuple[int, int]]:
    """Mirrored queues only, no faults, all written; and the last group, which nothing vouches for."""
    world = MirrorWorld(seed, "always")
    world.calm = True
    last = (0, 0)
    for _ in range(150):
        choice = world.rng.random()
        if choice < 0.7:
            world.mirror_step()
        elif choice < 0.8:
            world.maintain()
        elif (write := world.log.take()) is not None:
            last = (write.segment, write.offset)
            world.perform(write)
    while (job := world.log.take() or world.log.maintenance(idle=True)) is not None:
        if isinstance(job, Write):
            last = (job.segment, job.offset)
        world.perform(job)
    return world, last


def start(world: MirrorWorld) -> tuple[Log, MirrorStore]:
    log = Log(world.disk, "log", world.options)
    log.recover(list(world.copies))
    return log, MirrorStore(log.mirrors)


def mend(world: MirrorWorld) -> None:
    """What an operator does about a start that was refused. If it was not, nothing that counts was damaged, or it is
    found when it is read."""
    before = {path: world.disk.read(path, 0, world.disk.size(path)) for path in files(world.disk)}
    try:
        start(world)
    except LogDamaged:
        assert before == {path: world.disk.read(path, 0, world.disk.size(path)) for path in files(world.disk)}
        assert repair(world.disk, "log", list(world.copies)).damages
        assert check(world.disk, "log").good


def files(disk: FaultyDisk) -> list[str]:
    inside = (f"{folder}/{name}" for folder in ("log", "log/segments") for name in disk.names(folder))
    return [path for path in inside if path != "log/segments"]


def write_all(world: MirrorWorld, log: Log) -> None:
    while (job := log.take() or log.maintenance(idle=True)) is not None:
        try:
            job.perform(world.disk)
        except LogDamaged as error:
            assert log.on_failed(job, error) == "retry"
        else:
            log.on_done(job)


def catch_up(queue: int, copy: Copy, found: Recovered, store: MirrorStore) -> None:
    """What its ring does for a member that is behind, or lacks messages."""
    number = 0

    def write(change: Change, confirmed: int) -> None:
        nonlocal number
        number += 1
        store.write(queue, WriteEffect(number, change, confirmed))

    if [item for item in found.history if item[1] <= found.base] != list(copy.history_to(found.base)):
        write(Restart(0, (), 0, (), 0), found.base)  # It is one of a former life, or of no life at all.
        found = Recovered()
    common = copy.common(found)
    if found.blocks and common < found.blocks[-1].number:
        write(Truncate(common), found.base)
    end = max(common, found.base)
    new = tuple(copy.truth[end:])
    if new:
        write(Append(new), found.base)
    store.apply(Apply((*(block for block in found.blocks if block.number <= common), *new)))
    if not found.complete:
        truth = copy.truth_at(len(copy.truth)).live
        live = {seq for seq in truth if found.after < seq <= found.bound}
        lacking = {seq for seq in live if not any(low <= seq <= high for low, high in found.have)}
        runs = []
        for low, high in ranges_of(lacking):
            contents = [truth[seq] for seq in range(low, high + 1)]
            kinds = bytearray(PERSISTENT if content[:1] == b"p" else 0 for content in contents)
            runs.append(Run(low, contents, [b"k"] * len(contents), kinds))
        write(Fill(found.after, found.bound, tuple(ranges_of(live)), tuple(runs), len(copy.truth)), len(copy.truth))
        write(Complete(len(copy.truth)), len(copy.truth))
    write(Append((Block(queue, copy.epoch + 1, len(copy.truth) + 1, 0, None, [], [], 0),)), len(copy.truth))


def is_whole(copy: Copy, found: Recovered) -> bool:
    expected = copy.state()[0]
    return found._replace(base=0, blocks=(), messages=0) == expected._replace(base=0, blocks=(), messages=0) and (
        found.base + len(found.blocks) == expected.base + len(expected.blocks)
    )


@pytest.mark.parametrize("seed", range(_FIRST, _END))
def test_flip(seed: int) -> None:
    world, last = calm_world(seed)
    rng = random.Random(seed)
    names = [name for name in world.disk.names("log/segments") if not name.endswith("spare")]
    if not names:
        return
    paths = [f"log/segments/{name}" for name in names]
    if rng.random() < 0.2 and "checkpoint" in world.disk.names("log"):
        paths = ["log/checkpoint"]
    path = rng.choice(paths)
    if rng.random() < 0.1:
        world.disk.delete(path)
        unwitnessed = path.endswith(f"{last[0]:016x}.log")
    else:
        offset = rng.randrange(world.disk.size(path))
        world.disk.flip(path, offset, rng.randrange(8))
        unwitnessed = path == f"log/segments/{last[0]:016x}.log" and offset >= last[1]
    if unwitnessed:
        return  # As if it had never been written.
    mend(world)
    log, store = start(world)
    disks = {queue: store.disk(queue) for queue in world.copies}
    for queue, copy in world.copies.items():
        found = store.recovered(queue)
        assert disks[queue] or is_whole(copy, found), "it lost something, and does not say so"
        catch_up(queue, copy, found, store)
    write_all(world, log)
    world.disk.crash()
    log, store = start(world)
    for queue, copy in world.copies.items():
        found = store.recovered(queue)
        assert found.complete and found.base == len(copy.truth) and store.disk(queue) == disks[queue]
        stored = copy.truth_at(len(copy.truth))
        assert flat(log.queue(queue).live) == set(stored.live)
        try:
            world.check_contents(queue, log, stored)
        except LogDamaged as error:  # An index vouched for the segment, and its contents were not read before.
            assert [item.file for item in error.items] == [path]


# -- single cases ----------------------------------------------------------------------------------------


FIRST = "log/segments/0000000000000001.log"
Q, OTHER, PLAIN = 7, 8, 9


class Node:
    def __init__(self, options: LogOptions | None = None) -> None:
        self.options = options or LogOptions()
        self.disk = FaultyDisk(random.Random(1))
        self.open()

    def open(self) -> None:
        self.log = Log(self.disk, "log", self.options)
        self.log.recover([Q, OTHER, PLAIN])
        self.store = MirrorStore(self.log.mirrors)

    def mend(self, mirrored: tuple[int, ...] = (Q,), what: str | None = None) -> None:
        """It does not start, is repaired, and does."""
        with pytest.raises(LogDamaged, match=what):
            self.open()
        repair(self.disk, "log", mirrored)
        assert check(self.disk, "log").good
        self.open()

    def append(self, number: int, queue: int = Q, settled: list[tuple[int, int]] | None = None, apply: int = 0) -> None:
        """A block of one message, its own number, in a group of its own."""
        run = Run(number, [b"content %d" % number], [b"\0\1k"], bytearray([1]))
        block = Block(queue, 1, number, 0, run, settled or [], [], 0)
        if queue == PLAIN:
            self.log.append(block)
        else:
            self.log.mirrors.append(block, None, apply)
        self.flush()

    def apply(self, first: int, last: int, queue: int = Q) -> None:
        for number in range(first, last + 1):
            run = Run(number, [b""], [b""], bytearray([1]))
            self.log.mirrors.apply([Block(queue, 1, number, 0, run, [], [], 0)])

    def flush(self, idle: bool = False) -> None:
        while (job := self.log.take() or (self.log.maintenance(idle=True) if idle else None)) is not None:
            job.perform(self.disk)
            self.log.on_done(job)

    def spoil(self, content: bytes, path: str = FIRST) -> None:
        self.disk.flip(path, self.disk.read(path, 0, self.disk.size(path)).index(content), 0)


def test_the_log_ends_before_a_damaged_block_and_others_go_on() -> None:
    node = Node()
    for number in range(1, 6):
        node.append(number)
        node.append(number, PLAIN)
    at = node.disk.read(FIRST, 0, node.disk.size(FIRST)).index(b"content 3")
    node.disk.flip(FIRST, at, 0)
    node.mend(what="queue 7, block 3")
    found = node.store.recovered(Q)
    assert (found.base, [block.number for block in found.blocks], found.complete) == (0, [1, 2], True)
    assert node.store.disk(Q) and node.log.queue(PLAIN).count == 5
    disk = node.store.disk(Q)
    node.open()
    assert node.store.disk(Q) == disk and len(node.store.recovered(Q).blocks) == 2


def test_a_queue_that_is_not_mirrored_loses_just_what_is_damaged() -> None:
    node = Node()
    for number in range(1, 4):
        node.append(number, PLAIN)
        node.append(number)
    node.spoil(b"content 2")
    node.mend(what="queue 9, block 2")
    assert flat(node.log.queue(PLAIN).live) == {1, 3} and not node.store.disk(Q)


def test_a_copy_of_which_nothing_is_left_is_another_one() -> None:
    """To the log it looks like one that has never been. As the one it was, it would be in sync, with nothing in it."""
    node = Node(LogOptions(segment_bytes=300))
    for number in range(1, 4):
        node.append(number)
    for number in range(1, 10):
        node.append(number, PLAIN)
    node.disk.delete(FIRST)
    node.mend((Q,), "the segment is missing")
    assert node.store.disk(Q) and not node.store.recovered(Q).blocks
    disk = node.store.disk(Q)
    node.open()
    assert node.store.disk(Q) == disk


def test_without_a_checkpoint_no_copy_is_what_it_was() -> None:
    node = Node(LogOptions(segment_bytes=500, checkpoint_segments=1))
    for number in range(1, 21):
        node.append(number)
    node.apply(1, 20)
    node.append(21, apply=20)
    node.append(1, OTHER)
    node.flush(idle=True)
    node.disk.flip("log/checkpoint", 30, 0)
    node.mend((Q, OTHER), "log/checkpoint")
    assert node.store.disk(Q) and node.store.disk(OTHER)


def test_blind_damage_spares_the_queue_that_has_all_its_records() -> None:
    node = Node()
    node.append(1)
    node.append(1, OTHER)
    node.append(2)
    size = node.disk.size(FIRST)
    node.append(3)
    node.append(2, OTHER)
    node.disk.flip(FIRST, size + 20, 3)
    node.mend((Q, OTHER))
    assert node.store.disk(Q) and [block.number for block in node.store.recovered(Q).blocks] == [1, 2]
    assert not node.store.disk(OTHER) and [block.number for block in node.store.recovered(OTHER).blocks] == [1, 2]


def test_blind_damage_may_have_hit_the_last_record_of_any() -> None:
    node = Node()
    node.append(1)
    node.append(1, OTHER)
    size = node.disk.size(FIRST)
    node.append(2)
    node.append(3)
    node.disk.flip(FIRST, size + 20, 3)
    node.mend((Q, OTHER))
    assert node.store.disk(Q) and node.store.disk(OTHER)
    assert [block.number for block in node.store.recovered(OTHER).blocks] == [1]


def test_lost_contents_of_applied_messages_are_to_be_filled() -> None:
    node = Node(LogOptions(segment_bytes=500, checkpoint_segments=1))
    for number in range(1, 21):
        node.append(number)
    node.apply(1, 20)
    node.append(21, apply=20)
    node.flush(idle=True)
    assert node.log.upkeep.through > 2
    node.disk.delete(FIRST.replace("1.log", "2.log"))
    node.mend()
    found = node.store.recovered(Q)
    live = flat(node.log.queue(Q).live)
    lost = set(range(1, 21)) - live
    assert lost and live
    assert (found.complete, found.base, found.cut, found.bound, found.after) == (False, 20, 20, 20, 0)
    assert flat(found.have) == live
    assert [block.number for block in found.blocks] == [21]
    assert node.store.disk(Q)


def test_a_damaged_place_does_not_confirm_what_stands_before_it() -> None:
    """Behind the damage another block has the number, and its successor notes it as confirmed."""
    node = Node()
    node.append(1)
    node.append(2)
    size = node.disk.size(FIRST)
    node.log.mirrors.truncate(Q, 1, 1)
    run = Run(2, [b"the true one"], [b"k"], bytearray([1]))
    node.log.mirrors.append(Block(Q, 2, 2, 0, run, [], [], 0), None, 1)
    node.flush()
    node.log.mirrors.append(Block(Q, 2, 3, 0, None, [], [], 0), None, 2)
    node.flush()
    node.disk.flip(FIRST, size + 20, 3)
    node.mend()
    found = node.store.recovered(Q)
    assert found.base == 0 and [block.epoch for block in found.blocks] == [1, 1]
    assert not node.log.queue(Q).live


def test_a_copy_behind_the_damage_confirms_nothing() -> None:
    node = Node()
    node.append(1)
    node.append(2)
    size = node.disk.size(FIRST)
    node.log.mirrors.truncate(Q, 1, 0)
    true = Block(Q, 2, 2, 0, Run(2, [b"the true one"], [b"k"], bytearray([1])), [], [], 0)
    node.log.mirrors.append(true, None, 0)
    node.flush()
    node.apply(1, 1)
    node.log.mirrors.apply([true])
    queue = node.log.queue(Q)
    [ref, _] = queue.refs
    place = Place(FIRST, 1, ref.offset, ref.length, [(1, 1)], 1, 1)
    compact = Compact(1, FIRST, [(queue, place)], [])
    compact.perform(node.disk)
    node.log.upkeep._moving += node.log.gather_moved(compact.entries)
    node.flush()
    node.disk.flip(FIRST, size + 20, 3)
    node.mend()
    found = node.store.recovered(Q)
    assert (found.base, [block.epoch for block in found.blocks]) == (0, [1, 1]) and node.store.disk(Q)


def test_a_copy_that_begins_anew_stays_another_one() -> None:
    node = Node()
    for number in range(1, 4):
        node.append(number)
    node.spoil(b"content 2")
    node.mend()
    disk = node.store.disk(Q)
    node.log.mirrors.restart(Q, 9, ((5, 1),), 30, (), 0, 0)
    node.flush()
    node.open()
    assert node.store.disk(Q) == disk != 0 and node.store.recovered(Q).cut == 9


def test_repair_marks_what_it_drops() -> None:
    node = Node()
    for number in range(1, 5):
        node.append(number)
    node.spoil(b"content 2")
    assert not check(node.disk, "log").good
    node.mend(())
    assert node.store.disk(Q) and [block.number for block in node.store.recovered(Q).blocks] == [1]


def test_a_repair_that_dies_while_it_lets_damage_go() -> None:
    for after in range(12):
        node = Node()
        for number in range(1, 5):
            node.append(number)
            node.append(number, OTHER)
        node.spoil(b"content 2")
        node.disk.crash_after = after
        try:
            repair(node.disk, "log", (Q, OTHER))
        except Crashed:
            node.disk.crash()
        node.disk.crash_after = None
        repair(node.disk, "log", (Q, OTHER))
        node.open()
        assert node.store.disk(Q) and [block.number for block in node.store.recovered(Q).blocks] == [1]
        assert len(node.store.recovered(OTHER).blocks) == 4 and not node.store.disk(OTHER)
