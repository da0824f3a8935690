from __future__ import annotations

import random

import pytest

from leveret.broker.mirrors.copy_store import MirrorStore
from leveret.storage.format.queue_block import Block, Run
from leveret.storage.log import Log, LogOptions
from leveret.storage.mirror_log import outside, without
from leveret.storage.segments.disk_jobs import Checkpoint, Compact, Write
from leveret.storage.segments.mirror_copy import MirrorCopy, Unapplied
from simulation.core.disk import FaultyDisk

Q, PLAIN = 7, 9
SMALL = LogOptions(segment_bytes=1000, checkpoint_segments=100)


class Node:
    def __init__(self, options: LogOptions = SMALL) -> None:
        self.options = options
        self.disk = FaultyDisk(random.Random(1))
        self.log = Log(self.disk, "log", options)
        self.log.recover([])
        self.number = 0

    def append(
        self, first: int = 0, count: int = 0, settled: list[tuple[int, int]] | None = None, confirmed: int = 0
    ) -> Block:
        self.number += 1
        run = None
        if count:
            contents = [b"%d:" % seq + bytes(100) for seq in range(first, first + count)]
            run = Run(first, contents, [b"k"] * count, bytearray(b"\1" * count))
        block = Block(Q, 1, self.number, 0, run, settled or [], [], 0)
        self.log.mirrors.append(block, None, confirmed)
        return block

    def perform(self, job: Write | Checkpoint | Compact) -> None:
        job.perform(self.disk)
        self.log.on_done(job)

    def flush(self) -> None:
        while (job := self.log.take()) is not None:
            self.perform(job)

    def settle_down(self) -> None:
        while (job := self.log.take() or self.log.maintenance(idle=True)) is not None:
            job.perform(self.disk)
            self.log.on_done(job)

    def restart(self) -> MirrorCopy:
        self.disk.crash()
        self.log = Log(self.disk, "log", self.options)
        self.log.recover([Q, PLAIN])
        mirror = self.log.queue(Q).mirror
        assert mirror is not None
        return mirror

    def load(self) -> list[int]:
        job = self.log.load(Q, 1, 1 << 60, 1 << 30)
        if job is None:
            return []
        job.perform(self.disk)
        self.log.on_done(job)
        found = {run.first + at: content for run in job.runs for at, content in enumerate(run.contents)}
        assert all(content.startswith(b"%d:" % seq) for seq, content in found.items())
        assert sum(map(len, job.runs)) == len(found) == self.log.queue(Q).count
        return sorted(found)

    def fill_segments(self, count: int) -> None:
        """With messages of another queue that are settled at once."""
        for _ in range(count):
            queue = self.log.queue(PLAIN)
            first = queue.next_seq
            run = Run(first, [bytes(900)], [b"k"], bytearray(b"\1"))
            self.log.append(Block(PLAIN, 1, queue.number + 1, 0, run, [], [], 0))
            self.flush()
            self.log.append(Block(PLAIN, 1, queue.number + 1, 0, None, [(first, first)], [], 0))
            self.flush()


def test_a_copy_notes_what_is_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else wrote that block 2 is confirmed, which settled message 1 before message 2 was moved without it."""
    node = Node()
    blocks = [node.append(1, 2), node.append(settled=[(1, 1)])]
    node.append(confirmed=1)
    node.flush()
    node.log.mirrors.apply(blocks)
    node.fill_segments(3)
    monkeypatch.setattr(node.log.upkeep, "_checkpoint_wanted", lambda current: False)
    job = node.log.maintenance(idle=True)
    while job is not None and not isinstance(job, Compact):
        job.perform(node.disk)
        node.log.on_done(job)
        job = node.log.maintenance(idle=True)
    assert isinstance(job, Compact)
    node.perform(job)
    node.flush()
    mirror = node.restart()
    assert mirror.base == 2 and node.load() == [2]


def test_a_waiting_block_is_moved_as_it_is() -> None:
    node = Node(LogOptions(segment_bytes=4000))
    node.append(1, 2, settled=[(2, 2)])
    node.append(settled=[(1, 1)])
    node.flush()
    node.fill_segments(30)
    node.settle_down()
    assert min(node.log.segment_table) > 1
    for _ in range(2):
        mirror = node.restart()
        assert [(item.number, item.first, item.count) for item in mirror.tail] == [(1, 1, 2), (2, 0, 0)]
        assert [block.settled for block in mirror.blocks] == [[(2, 2)], [(1, 1)]]
        assert not node.log.queue(Q).live
        node.fill_segments(30)
        node.settle_down()
    node.log.mirrors.apply(mirror.take_blocks()[:1])
    assert node.load() == [1]


def test_a_waiting_block_alone_keeps_no_more_than_itself() -> None:
    node = Node()
    node.append(1, 1)
    node.flush()
    node.fill_segments(60)
    node.settle_down()
    assert node.log.segments <= 3


def test_no_checkpoint_while_the_place_of_a_void_block_is_unknown() -> None:
    node = Node(LogOptions(segment_bytes=1000, checkpoint_segments=1))
    node.append(1, 1)
    node.fill_segments(3)
    node.append(2, 1)
    write = node.log.take()
    assert write is not None
    node.log.mirrors.truncate(Q, 1, 0)
    job = node.log.maintenance(idle=True)
    while job is not None:
        assert not isinstance(job, Checkpoint)
        job.perform(node.disk)
        node.log.on_done(job)
        job = node.log.maintenance(idle=True)
    assert node.log.upkeep.snapshot_serial == 0
    node.perform(write)
    mirror = node.log.queue(Q).mirror
    assert mirror is not None and len(mirror.void) == 1 and node.log.mirrors.voiding == 0
    node.settle_down()
    assert node.log.upkeep.through
    assert len(node.restart().void) <= 1


def test_a_filling_counts_with_its_last_word() -> None:
    node = Node(LogOptions(group_bytes=300))
    node.log.mirrors.restart(Q, 5, ((1, 1),), 9, ((4, 4),), 0, 5)
    node.flush()
    runs = [Run(seq, [b"%d:" % seq + bytes(200)], [b"k"], bytearray(b"\1")) for seq in (2, 3, 6, 7)]
    # What is stored lies between some of them: two references, thus two records.
    node.log.mirrors.fill(Q, 0, 9, [(2, 3), (6, 7)], runs, 5, 5)
    write = node.log.take()
    assert write is not None
    node.perform(write)
    mirror = node.restart()
    assert mirror.after == 0 and not node.log.queue(Q).live and len(mirror.void) == 1
    node.log.mirrors.fill(Q, 0, 4, [(3, 3)], runs[1:2], 6, 5)
    node.log.mirrors.fill(Q, 4, 9, [(6, 7)], runs[2:], 6, 5)
    node.flush()
    for _ in range(3):
        assert node.restart().after == 9
        assert node.load() == [3, 6, 7]
        node.log.upkeep.checkpoint_due = True
        node.settle_down()
        assert node.restart().after == 9
        assert node.load() == [3, 6, 7]


def test_a_mirror_may_hear_that_a_message_was_given_back_before_it_has_it() -> None:
    """It was read where it comes from before that."""
    node = Node()
    node.log.mirrors.restart(Q, 5, ((1, 1),), 9, (), 0, 5)
    node.number = 5
    node.number += 1
    block = Block(Q, 1, node.number, 0, None, [(3, 3)], [(2, 4), (8, 8)], 0)
    node.log.mirrors.append(block, None, 5)
    node.log.mirrors.apply([block])
    run = Run(2, [b"2:", b"3:", b"4:"], [b"k"] * 3, bytearray(b"\1" * 3))
    node.log.mirrors.fill(Q, 0, 9, [(2, 4)], [run], 6, 6)
    node.log.mirrors.complete(Q, 6, 6)
    node.flush()
    for _ in range(2):
        assert node.load() == [2, 4]
        assert list(node.log.queue(Q).redelivered) == [(2, 2), (4, 4)]
        node.log.upkeep.checkpoint_due = True
        node.settle_down()
        node.restart()


def test_messages_that_come_twice_are_stored_once() -> None:
    node = Node()
    node.log.mirrors.restart(Q, 5, ((1, 1),), 9, ((1, 1),), 0, 5)
    run = Run(2, [b"2:", b"3:", b"4:"], [b"k"] * 3, bytearray(b"\1" * 3))
    node.log.mirrors.fill(Q, 0, 9, [(2, 4)], [run], 5, 5)
    node.log.mirrors.fill(Q, 0, 9, [(2, 4)], [run], 5, 5)
    node.flush()
    assert node.load() == [2, 3, 4]
    node.restart()
    assert node.load() == [2, 3, 4]


def test_a_full_disk_loses_nothing() -> None:
    node = Node()
    blocks = [node.append(1, 2)]
    node.disk.capacity_bytes = 50
    write = node.log.take()
    assert write is not None
    with pytest.raises(OSError) as caught:
        write.perform(node.disk)
    assert node.log.on_failed(write, caught.value) == "retry"
    node.log.mirrors.apply(blocks)
    assert node.load() == [1, 2]
    node.disk.capacity_bytes = 1 << 30
    node.append(confirmed=1)
    node.flush()
    assert node.load() == [1, 2]
    assert node.restart().base == 1 and node.load() == [1, 2]


def test_state_in_a_checkpoint() -> None:
    mirror = MirrorCopy(3, 2)
    mirror.serial, mirror.begun, mirror.complete, mirror.read_at = 17, True, False, 4
    mirror.cut, mirror.bound, mirror.after, mirror.have, mirror.disk = 5, 6, 7, ((8, 9),), (1 << 64) - 1
    mirror.void = {(1, 10), (2, 11), (3, 12)}
    item = Unapplied(2, 4, 20, 3, 99)
    item.segment, item.offset, item.length, item.extra = 2, 5, 6, 7
    mirror.add_item(item)
    queue, back = MirrorCopy.unpack(mirror.pack(Q, {1, 2}))
    assert queue == Q and back.void == {(1, 10), (2, 11)}
    for name in ("serial", "begun", "base", "history", "complete", "read_at", "cut", "bound", "after", "have", "disk"):
        assert getattr(back, name) == getattr(mirror, name), name
    [again] = back.tail
    for name in ("epoch", "number", "first", "count", "bytes", "segment", "offset", "length", "extra"):
        assert getattr(again, name) == getattr(item, name), name


def test_ranges() -> None:
    assert outside(1, 10, [(0, 2), (4, 4), (9, 20)]) == [(3, 3), (5, 8)]
    assert outside(1, 2, []) == [(1, 2)] and outside(3, 2, []) == [] and outside(1, 3, [(5, 6)]) == [(1, 3)]
    assert without([(1, 5), (8, 9)], [(2, 3), (5, 8)]) == [(1, 1), (4, 4), (9, 9)]


# -- what lies in segments that stay for the sake of others ----------------------------------------------------


def pin(node: Node) -> None:
    """A message of another queue that is not settled keeps the segment, and is large, so that it is not emptied."""
    queue = node.log.queue(PLAIN)
    run = Run(queue.next_seq, [bytes(10_000)], [b"k"], bytearray(b"\1"))
    node.log.append(Block(PLAIN, 1, queue.number + 1, 0, run, [], [], 0))
    node.flush()


def checkpoint(node: Node) -> None:
    node.log.upkeep.checkpoint_due = True
    node.settle_down()


def replace_by_others(node: Node, number: int) -> None:
    """Cut off the blocks from `number` on; their messages' numbers go to one block with other bounds."""
    node.log.mirrors.truncate(Q, number - 1, 0)
    node.number = number - 1
    block = node.append(1, 6)
    node.log.mirrors.apply([block])
    node.append(confirmed=number)
    node.flush()


def check_places(node: Node) -> None:
    for _ in range(2):
        assert node.load() == [1, 2, 3, 4, 5, 6]
        checkpoint(node)
        node.restart()


@pytest.mark.parametrize("restarts", [False, True])
def test_copies_of_what_was_cut_off_are_void(restarts: bool) -> None:
    node = Node(LogOptions(segment_bytes=3000, sparse_percent=60))
    node.append(1, 1)
    node.append(2, 1)
    pin(node)
    node.fill_segments(3)
    compact = Compact(1, "log/segments/0000000000000001.log", [], [
        (node.log.queue(Q), item) for item in node.log.queue(Q).mirror.tail  # type: ignore[union-attr]
    ])  # fmt: skip
    compact.perform(node.disk)
    node.log.upkeep._moving += node.log.gather_moved(compact.entries)
    node.flush()
    if restarts:
        mirror = node.restart()
        assert {item.segment for item in mirror.tail} != {1}
        assert len(mirror.void) == 2
    replace_by_others(node, 1)
    check_places(node)


def test_a_life_that_ended_in_an_older_segment() -> None:
    """The record that ends it is the first of the next segment, which goes before the older one does."""
    node = Node(LogOptions(segment_bytes=2000, sparse_percent=70))
    blocks = [node.append(1, 1), node.append(2, 1)]
    node.log.mirrors.apply(blocks)
    pin(node)
    node.log.mirrors.restart(Q, 0, (), 0, (), 0, 2)
    node.number = 0
    block = node.append(1, 6)
    node.log.mirrors.apply([block])
    node.append(confirmed=1)
    node.flush()
    assert len(node.log.segment_table) == 2
    node.fill_segments(4)
    checkpoint(node)
    assert 1 in node.log.segment_table and 2 not in node.log.segment_table
    node.restart()
    check_places(node)


def test_a_filling_between_what_is_stored() -> None:
    node = Node()
    block = node.append(4, 1)
    node.log.mirrors.apply([block])
    node.log.mirrors.restart(Q, 5, ((1, 1),), 9, ((4, 4),), 0, 5)
    runs = [Run(seq, [b"%d:" % seq], [b"k"], bytearray(b"\1")) for seq in (2, 3, 6, 8)]
    node.log.mirrors.fill(Q, 0, 9, [(2, 4), (6, 6), (8, 8)], runs, 5, 5)
    node.flush()
    for _ in range(2):
        assert node.load() == [2, 3, 4, 6, 8]
        node.restart()
        assert len(node.log.queue(Q).refs) == 3


@pytest.mark.parametrize("kinds", [b"\1\0\1", b"\0\1\1", b"\1\1\0", b"\1\0\1\1\0\1"])
def test_transient_messages_stored_later_hide_no_others(kinds: bytes) -> None:
    """A queue of persistent and transient messages becomes mirrored: then the log is given the transient ones, too."""
    node = Node()
    count = len(kinds)
    contents = [b"%d:" % seq for seq in range(1, count + 1)]
    run = Run(1, contents, [b"k"] * count, bytearray(kinds))
    node.log.append(Block(Q, 1, 1, 0, run, [], [], 0))
    node.flush()
    lacking = [run.cut(at, at + 1) for at, kind in enumerate(kinds) if not kind]
    MirrorStore(node.log.mirrors).adopt(Q, 1, count + 1, lacking)
    node.flush()
    assert node.load() == list(range(1, count + 1))
    for seq in range(1, count + 1):
        job = node.log.load(Q, seq, seq, 1 << 30)
        assert job is not None
        job.perform(node.disk)
        node.log.on_done(job)
        assert [run.contents for run in job.runs] == [[b"%d:" % seq]]
    node.restart()
    assert node.load() == list(range(1, count + 1))
    node.log.queue(Q).settle([(1, 2)])
    node.log.queue(Q).settle([(3, count)])
    assert node.log.queue(Q).refs.bytes == 0
