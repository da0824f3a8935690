from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from leveret.broker.delivery.batch import Gap, GapRead, Span
from leveret.broker.mirrors.copy_store import MirrorStore, restore_queue, stored_marks
from leveret.broker.queue.delivery_limit import DeliveryLimit
from leveret.broker.queue.features import Features
from leveret.broker.queue.queue import Queue
from leveret.metadata.model.records import QueueSpec
from leveret.metadata.rules.queue_rules import QueueRules
from leveret.replication.packed_block import PackedBlock, pack_block
from leveret.replication.ring_frames import (
    Append,
    Apply,
    Change,
    Complete,
    Fill,
    Recovered,
    Request,
    Restart,
    Started,
    Truncate,
    Write,
)
from leveret.storage import mirror_log
from leveret.storage.format.errors import FormatError
from leveret.storage.format.queue_block import PERSISTENT, REDELIVERED, SHARED, Block, Run
from leveret.storage.log import Log, LogOptions
from simulation.core.disk import FaultyDisk

Q = 7
PLAIN = 9


def run(first: int, count: int, kind: int = PERSISTENT) -> Run:
    contents = [b"content %d" % seq for seq in range(first, first + count)]
    return Run(first, contents, [b"\0\1k"] * count, bytearray([kind]) * count)


def block(
    number: int, enqueued: Run | None = None, settled: list[tuple[int, int]] | None = None, epoch: int = 1, **more: Any
) -> Block:
    requeued, through, counts = more.get("requeued", []), more.get("through", 0), more.get("counts")
    return Block(Q, epoch, number, 5, enqueued, settled or [], requeued, through, counts, more.get("marks"))


def packed(one: Block) -> PackedBlock:
    meta, body = pack_block(one)
    return PackedBlock(meta, b"".join(body))


class Node:
    def __init__(self) -> None:
        self.disk = FaultyDisk(random.Random(1))
        self.open([])

    def open(self, known: list[int]) -> None:
        self.log = Log(self.disk, "log", LogOptions())
        self.log.recover(known)
        self.store = MirrorStore(self.log.mirrors)
        self.written = 0
        self.confirmed = 0

    def restart(self) -> Recovered:
        self.disk.crash()
        self.open([Q, PLAIN])
        return self.recovered()

    def recovered(self) -> Recovered:
        found = self.store.recovered(Q)
        self.confirmed = found.base
        return found

    def write(self, change: Change) -> int:
        self.written += 1
        self.store.write(Q, Write(self.written, change, self.confirmed))
        return self.written

    def append(self, *blocks: Block) -> int:
        return self.write(Append(blocks))

    def apply(self, *blocks: Block) -> None:
        self.confirmed = blocks[-1].number
        self.store.apply(Apply(blocks))

    def flush(self) -> list[dict[int, int]]:
        synced = []
        while (job := self.log.take()) is not None:
            job.perform(self.disk)
            self.log.on_done(job)
            synced.append(self.store.synced(job))
        return synced

    def live(self) -> list[tuple[int, int]]:
        return list(self.log.queue(Q).live)

    def load(self) -> list[Run]:
        job = self.log.load(Q, 1, 1 << 60, 1 << 30)
        if job is None:
            return []
        job.perform(self.disk)
        self.log.on_done(job)
        return job.runs


@pytest.fixture
def node() -> Node:
    node = Node()
    assert node.recovered() == Recovered()
    return node


def test_one_write_and_one_sync_for_all_queues(node: Node) -> None:
    node.append(block(1, run(1, 3)))
    node.log.append(Block(PLAIN, 1, 1, 0, run(1, 2), [], [], 0))
    last = node.append(block(2), block(3))
    syncs = node.disk.changes
    assert node.flush() == [{Q: last}]
    assert node.disk.changes - syncs == 3  # A write, a sync, and the name of a new file.


def test_a_block_counts_when_it_is_applied(node: Node) -> None:
    blocks = [block(1, run(1, 5)), block(2, run(6, 1), [(2, 3)])]
    node.append(*map(packed, blocks))
    node.flush()
    assert node.live() == [] and node.load() == []
    node.apply(*map(packed, blocks))
    assert node.live() == [(1, 1), (4, 6)]
    assert [run.first for run in node.load()] == [1, 4]


def test_applied_before_it_is_written(node: Node) -> None:
    """A mirror that is not in sync may learn that a block is confirmed before its disk has it."""
    blocks = [packed(block(1, run(1, 5))), block(2, run(6, 2))]
    node.append(*blocks)
    node.apply(*blocks)
    assert node.load() == [run(1, 7)]
    node.flush()
    assert node.load() == [run(1, 7)]
    assert node.log.shares[0].live == 0


def test_a_start_applies_what_was_noted_as_confirmed(node: Node) -> None:
    blocks = [block(1, run(1, 2)), block(2, run(3, 2), [(1, 1)]), block(3, run(5, 1))]
    node.append(*blocks[:2])
    node.flush()
    node.apply(blocks[0])
    node.append(packed(blocks[2]))
    node.flush()
    node.apply(*blocks[1:])  # Of this nobody writes anything.
    found = node.restart()
    assert found == Recovered(base=1, history=((1, 1),), messages=2, blocks=tuple(blocks[1:]))
    assert node.live() == [(1, 2)]
    node.apply(*found.blocks)
    assert node.live() == [(2, 5)]


def test_durability_follows_writes(node: Node) -> None:
    node.append(block(1), block(2, run(1, 2)))
    job = node.log.take()
    assert job is not None
    node.write(Truncate(1))
    node.append(block(2, run(1, 1), epoch=2))
    job.perform(node.disk)
    node.log.on_done(job)
    assert node.store.synced(job) == {Q: 1}
    assert node.flush() == [{Q: 3}]
    found = node.restart()
    assert found.history == ((1, 1), (2, 2)) and [one.epoch for one in found.blocks] == [1, 2]
    node.apply(*found.blocks)
    assert node.load() == [run(1, 1)]


def test_what_was_cut_off_never_shows_again(node: Node) -> None:
    """Its messages' numbers are given to others, in blocks that are cut differently."""
    node.append(block(1, run(1, 2)), block(2, run(3, 4)))
    node.flush()
    node.write(Truncate(0))
    other = Run(1, [b"x%d" % at for at in range(6)], [b"k"] * 6, bytearray(b"\1" * 6))
    node.append(block(1, None, epoch=2), block(2, other, epoch=2))
    node.apply(block(1, None, epoch=2), block(2, other, epoch=2))
    node.append(block(3, epoch=2))
    node.flush()
    assert node.load() == [other]
    for _ in range(2):
        node.log.upkeep.checkpoint_due = True
        while (job := node.log.take() or node.log.maintenance(idle=True)) is not None:
            job.perform(node.disk)
            node.log.on_done(job)
        node.restart()
        assert node.load() == [other]
    assert node.log.upkeep.through


def test_a_member_that_begins_anew_and_fills(node: Node) -> None:
    first = block(1, run(1, 4))
    node.append(first, block(2))
    node.apply(first)
    node.write(Restart(9, ((1, 1), (3, 5)), 20, ((1, 4),), 6))
    node.confirmed = 9
    node.flush()
    found = node.restart()
    assert found == Recovered(9, ((1, 1), (3, 5)), 20, (), False, 6, 9, 20, 0, ((1, 4),))
    node.write(Fill(0, 10, ((2, 3), (7, 8)), (run(7, 2),), 11))
    node.append(block(10, None, [(8, 8), (15, 15)], epoch=3))
    node.apply(block(10, None, [(8, 8), (15, 15)], epoch=3))
    node.write(Fill(10, 20, ((14, 16),), (run(14, 3),), 11))
    node.flush()
    found = node.restart()
    assert (found.base, found.after, found.read_at, found.complete) == (10, 20, 11, False)
    assert node.live() == [(2, 3), (7, 7), (14, 14), (16, 16)]
    assert [run.contents[0] for run in node.load()] == [b"content 2", b"content 7", b"content 14", b"content 16"]
    assert node.store.lost(Q) == [(1, 1), (4, 6), (8, 13), (15, 15), (17, 20)]
    node.write(Complete(11))
    node.flush()
    found = node.restart()
    assert (found.complete, found.read_at, found.have) == (True, 11, ((1, 4),))


def test_beginning_anew_with_nothing(node: Node) -> None:
    node.append(block(1, run(1, 4)))
    node.apply(block(1, run(1, 4)))
    node.flush()
    node.write(Restart(5, ((2, 1),), 9, (), 0, 4))
    assert node.live() == [] and node.log.queue(Q).message_bytes == 0
    node.flush()
    assert node.restart() == Recovered(5, ((2, 1),), 9, (), False, 0, 5, 9, delivered=4)
    assert node.live() == []


def test_transient_messages_stay(node: Node) -> None:
    """A copy that lacked them would not be what its numbers say."""
    mixed = Run(1, [b"a", b"b"], [b"k", b"k"], bytearray((0, PERSISTENT)))
    for one in (block(1, mixed), packed(block(2, run(3, 2, 0)))):
        node.append(one)
        node.apply(one)
    node.append(block(3))
    node.flush()
    assert node.restart().base == 2
    assert [bytes(run.kinds) for run in node.load()] == [b"\0\1\0\0"]


def test_contents_shared_by_several_queues_are_stored_once(node: Node) -> None:
    content = bytes(5000)
    shared = Run(1, [content, b"own"], [b"k", b"k"], bytearray((PERSISTENT | SHARED, PERSISTENT)))
    node.append(block(1, shared))
    node.log.append(Block(PLAIN, 1, 1, 0, shared, [], [], 0))
    node.flush()
    assert node.disk.size("log/segments/0000000000000001.log") < 6000
    [one] = node.restart().blocks
    assert one.enqueued == Run(1, [content, b"own"], [b"k", b"k"], bytearray((PERSISTENT, PERSISTENT)))


def test_a_member_is_not_told_of_its_predecessors_writes(node: Node) -> None:
    node.append(block(1))
    job = node.log.take()
    assert job is not None
    node.store.left(Q)
    node.log.forget(Q)
    assert node.recovered() == Recovered()
    node.written = 0
    node.append(block(1, epoch=4))
    job.perform(node.disk)
    node.log.on_done(job)
    assert node.store.synced(job) == {}
    assert node.flush() == [{Q: 1}]
    assert [one.epoch for one in node.restart().blocks] == [4]


def test_a_queue_that_becomes_mirrored() -> None:
    node = Node()
    node.log.append(Block(Q, 3, 1, 0, run(1, 3), [], [], 0))
    node.log.append(Block(Q, 3, 2, 0, None, [(1, 1)], [], 0))
    assert node.recovered() == Recovered(base=2, history=((3, 1),), messages=3)
    node.append(block(3, run(4, 1), epoch=4))
    node.flush()
    found = node.restart()
    assert (found.base, found.history, [one.number for one in found.blocks]) == (2, ((3, 1), (4, 3)), [3])
    assert node.live() == [(2, 3)]
    with pytest.raises(AssertionError, match="ring"):
        node.log.append(Block(Q, 3, 4, 0, None, [], [], 0))


def test_a_queue_that_is_mirrored_for_a_while() -> None:
    node = Node()
    node.log.append(Block(Q, 1, 1, 0, run(1, 3), [], [], 0))
    node.recovered()
    stray = block(2, run(4, 2), epoch=2)
    node.append(stray)
    node.write(Truncate(1))
    kept = [block(2, None, [(1, 1)], epoch=3), block(3, run(4, 1), epoch=3)]
    node.append(*kept)
    node.store.release(Q, kept)
    more = Run(5, [b"content 5"], [b"\0\1k"], bytearray(b"\1"))
    node.log.append(Block(Q, 4, 4, 0, more, [(2, 2)], [], 0))
    node.flush()
    for _ in range(2):  # From the segment, then from a checkpoint.
        node.disk.crash()
        node.open([Q])
        assert (node.live(), node.log.queue(Q).number, node.log.queue(Q).epoch) == ([(3, 5)], 4, 4)
        assert node.load() == [run(3, 3)]
        node.log.upkeep.checkpoint_due = True
        while (job := node.log.take() or node.log.maintenance(idle=True)) is not None:
            job.perform(node.disk)
            node.log.on_done(job)
    assert node.recovered() == Recovered(base=4, history=((4, 1),), messages=5)
    node.append(block(5, run(6, 1), epoch=5))
    node.flush()
    found = node.restart()
    assert (found.base, found.history, len(found.blocks), node.live()) == (4, ((4, 1), (5, 5)), 1, [(3, 5)])
    node.disk.crash()
    node.open([Q])
    node.store.release(Q)  # The node learns at its start that the queue is mirrored no longer.
    assert node.live() == [(3, 6)]
    node.log.append(Block(Q, 6, 6, 0, None, [(3, 3)], [], 0))
    node.flush()
    node.disk.crash()
    node.open([Q])
    assert node.load() == [run(4, 3)]


def test_a_block_that_is_not_what_its_head_says_is_not_written(node: Node) -> None:
    """One whose contents were damaged on their way never comes so far: see `test_blocks`."""
    bad = packed(block(1, run(1, 1)))
    bad.body = bad.body[1:]
    with pytest.raises(FormatError):
        node.append(bad)
    assert node.log.take() is None


def test_a_queue_that_becomes_mirrored_brings_what_only_memory_held(node: Node) -> None:
    """Also after a restart, and in the place where it was."""
    node.open([Q])
    plain = [Block(Q, 1, 1, 0, run(1, 4), [], [], 0), Block(Q, 1, 2, 0, run(8, 3), [(2, 2)], [], 2)]
    for one in plain:
        node.log.append(one)
    node.store.adopt(Q, 1, 15, [run(5, 3, 0), run(12, 1, 0)])
    found = node.recovered()
    assert found._replace(after=0) == Recovered(2, ((1, 1),), 14, delivered=2)
    assert node.live() == [(1, 1), (3, 10), (12, 12)]
    node.append(block(3, run(15, 1), [(6, 6)], epoch=2))
    node.flush()
    node.apply(block(3, run(15, 1), [(6, 6)], epoch=2))
    for _ in range(2):
        assert [one.first for one in node.load()] == [1, 3, 7, 12, 15]
        assert [bytes(one.kinds) for one in node.load()][3] == b"\0"
        live, upto, job = node.log.mirrors.fetch(Q, 0, 14, [], 1 << 20)
        assert (live, upto) == ([(1, 1), (3, 5), (7, 10), (12, 12)], 14) and job is not None
        node.append(block(4, epoch=2))
        node.flush()
        found = node.restart()
        assert (found.base, found.complete, found.messages) == (3, True, 15)
        node.write(Truncate(3))


def test_messages_that_came_in_no_block_count_as_one(node: Node) -> None:
    """Else who has no block would be taken for one that lacks nothing."""
    node.open([Q])
    node.store.adopt(Q, 3, 4, [run(1, 3, 0)])
    found = node.recovered()
    assert (found.base, found.history, found.messages) == (1, ((3, 1),), 3)
    node.append(block(2, epoch=4))
    node.flush()
    found = node.restart()
    assert (found.base, found.history[0], found.messages, [one.number for one in found.blocks]) == (1, (3, 1), 3, [2])
    assert node.load() == [run(1, 3, 0)]


def spilled_queue(node: Node) -> None:
    """Messages 1 to 12, of which 3, 4 and 9 are persistent. The others are spilled; then the queue is mirrored."""
    node.open([Q])
    node.log.spill(Q, [run(1, 2, 0)])
    node.log.append(Block(Q, 1, 1, 0, run(3, 2), [], [], 0))
    node.flush()
    node.log.spill(Q, [run(5, 4, 0), run(10, 3, 0)])
    node.log.append(Block(Q, 1, 2, 0, run(9, 1), [], [], 0))
    node.store.adopt(Q, 1, 13, [])
    node.recovered()


def adopt_spilled(node: Node, bytes_max: int, between: Callable[[], None] = lambda: None) -> list[int]:
    """Store the next of them. Gives their numbers, which were read before something else happened."""
    job: Any = node.store.spilled(Q, bytes_max)
    if job is None:
        return []
    job.perform(node.disk)
    node.log.on_done(job)
    between()
    for one in job.runs:
        node.write(Fill(one.last, one.last, (), (one,), 0))
    return [seq for one in job.runs for seq in range(one.first, one.last + 1)]


def numbers_of(runs: list[Run]) -> list[int]:
    return [int(content.split()[1]) for one in runs for content in one.contents]


def test_spilled_messages_are_stored_piece_by_piece(node: Node) -> None:
    spilled_queue(node)
    pieces = []
    while piece := adopt_spilled(node, 1):
        pieces.append(piece)
        assert numbers_of(node.load()) == list(range(1, 13)), "wherever they are"
        assert not node.log.queue(Q).spilled.count_within(1, piece[-1])
    assert pieces == [[1, 2], [5, 6, 7, 8], [10, 11, 12]]
    assert node.live() == [(1, 12)]
    node.flush()
    live, upto, job = node.log.mirrors.fetch(Q, 0, 12, [], 1 << 20)
    assert (live, upto) == ([(1, 12)], 12) and job is not None
    assert node.log.mirrors.fetch(Q, 0, 12, [], 1 << 20, 5)[:2] == ([(1, 5)], 5)
    assert node.log.mirrors.fetch(Q, 5, 12, [], 1 << 20, 7)[:2] == ([(6, 12)], 12)
    job.perform(node.disk)
    node.log.on_done(job)
    assert numbers_of(job.runs) == list(range(1, 13))
    for _ in range(2):
        assert numbers_of(node.load()) == list(range(1, 13))
        assert [bytes(one.kinds) for one in node.load()] == [b"\0\0\1\1\0\0\0\0\1\0\0\0"]
        node.restart()


def test_a_start_knows_those_that_were_stored_by_then(node: Node) -> None:
    spilled_queue(node)
    adopt_spilled(node, 1)
    node.flush()
    adopt_spilled(node, 1)
    found = node.restart()
    assert numbers_of(node.load()) == [1, 2, 3, 4, 9] and node.live() == [(1, 4), (9, 9)]
    assert found.complete and found.messages == 12, "numbers are not used again"


def test_spilled_messages_that_are_settled_meanwhile(node: Node) -> None:
    """Before they are read, after it, and in a block that counts only later."""
    spilled_queue(node)
    one, other = block(3, settled=[(1, 1), (6, 6)], epoch=2), block(4, settled=[(7, 11)], epoch=2)

    def settle() -> None:
        node.append(one, other)
        node.apply(one)

    adopt_spilled(node, 1 << 20, settle)
    assert node.live() == [(2, 5), (7, 12)] and not node.log.queue(Q).spilled
    node.apply(other)
    node.flush()
    node.append(block(5, epoch=2))
    node.flush()
    for _ in range(2):
        assert numbers_of(node.load()) == [2, 3, 4, 5, 12] and node.live() == [(2, 5), (12, 12)]
        node.restart()
        node.write(Truncate(4))


def test_spilled_messages_that_came_back_say_so(node: Node) -> None:
    """Also where the block that tells of it takes effect before they are stored."""
    spilled_queue(node)
    told = block(3, requeued=[(2, 2), (9, 10)], epoch=2)
    node.append(told)
    node.apply(told)
    while adopt_spilled(node, 1):
        pass
    node.append(block(4, epoch=2))
    node.flush()
    for _ in range(2):
        kinds = {one.first + at: kind for one in node.load() for at, kind in enumerate(one.kinds)}
        assert [number for number, kind in kinds.items() if kind & REDELIVERED] == [2, 9, 10]
        node.restart()
        node.write(Truncate(3))


def test_spilled_messages_of_a_copy_that_leads_no_longer(node: Node) -> None:
    spilled_queue(node)
    node.flush()
    node.store.drop_spilled(Q)
    assert node.store.spilled(Q, 1) is None and numbers_of(node.load()) == [3, 4, 9]
    node.store.drop_spilled(Q)
    spilled_queue(node := Node())
    node.write(Restart(2, ((1, 1),), 12, ((1, 12),), 0))
    assert node.store.spilled(Q, 1) is None and numbers_of(node.load()) == [3, 4, 9]


def test_reading_for_another_member(node: Node) -> None:
    node.append(block(1, run(1, 10)), block(2, run(11, 10), [(3, 3)]))
    node.apply(block(1, run(1, 10)), block(2, run(11, 10), [(3, 3)]))
    node.flush()
    got: list[tuple[Any, ...]] = []

    class Member:
        def on_read(self, *answer: Any) -> None:
            got.append(answer[1:])

    def read(after: int, have: tuple[tuple[int, int], ...], bytes_max: int) -> tuple[Any, ...]:
        reading = node.store.read(Q, Request("n2", 0, after, 20, have, bytes_max, 2))
        if reading.job is not None:
            job: Any = reading.job
            job.perform(node.disk)
            node.log.on_done(job)
        reading.answer(Member())
        return got.pop()

    assert read(0, (), 0) == ((), (), 0, (), (), ())
    assert read(0, ((1, 5),), 0) == (((1, 2), (4, 5)), (), 5, (), (), ())
    assert read(0, ((1, 20),), 0) == (((1, 2), (4, 20)), (), 20, (), (), ())
    live, runs, upto, *_ = read(4, ((7, 8),), 40)
    assert (live, upto) == (((5, upto),), upto) and upto < 20
    assert [seq for one in runs for seq in range(one.first, one.last + 1)][:3] == [5, 6, 9]
    live, runs, upto, *_ = read(0, (), 1 << 20)
    assert (live, upto) == (((1, 2), (4, 20)), 20)
    assert [(one.first, one.last) for one in runs] == [(1, 2), (4, 20)]


# -- how often messages were given back --------------------------------------------------------------


def test_counts_are_applied_with_their_block_and_outlive_a_restart(node: Node) -> None:
    blocks = [block(1, run(1, 5)), block(2, counts=[(1, 2, 1), (4, 4, 1)]), block(3, counts=[(2, 2, 2)])]
    node.append(*map(packed, blocks))
    node.flush()
    assert node.log.queue(Q).counts == {}
    node.apply(*map(packed, blocks[:2]))
    assert node.log.queue(Q).counts == {1: 1, 2: 1, 4: 1}
    node.append(block(4, settled=[(1, 1)]))  # Its record says that the first two are confirmed.
    node.flush()
    found = node.restart()
    assert node.log.queue(Q).counts == {1: 1, 2: 1, 4: 1}
    assert [one.counts for one in found.blocks] == [[(2, 2, 2)], []]
    node.apply(*found.blocks)
    assert node.log.queue(Q).counts == {2: 2, 4: 1}


def test_a_piece_says_how_often_all_that_live_were_given_back(node: Node) -> None:
    blocks = [block(1, run(1, 6)), block(2, counts=[(1, 1, 7), (2, 3, 1), (6, 6, 2)])]
    node.append(*blocks)
    node.apply(*blocks)
    got: list[Any] = []

    class Member:
        def on_read(self, *answer: Any) -> None:
            got.append(answer[4])

    node.store.read(Q, Request("n2", 0, 1, 4, ((1, 6),), 0, 2)).answer(Member())
    assert got == [((2, 3, 1),)]


def test_marks_are_applied_with_their_block_and_a_piece_has_them_all(node: Node) -> None:
    blocks = [block(1, run(1, 3), marks={b"a": b"1", b"b": b"1"}), block(2, marks={b"a": b"", b"c": b"2"})]
    node.append(*map(packed, blocks), block(3, marks={b"d": b"3"}))
    assert not node.log.queue(Q).marks
    node.apply(*map(packed, blocks))
    node.append(block(4))
    node.flush()
    found = node.restart()
    assert node.log.queue(Q).marks.known == {b"b": (1, b"1"), b"c": (2, b"2")}
    assert [one.marks for one in found.blocks] == [{b"d": b"3"}, {}]
    got: list[Any] = []

    class Member:
        def on_read(self, *answer: Any) -> None:
            got.append(answer[5])

    for after in (0, 1):
        node.store.read(Q, Request("n2", 0, after, 3, ((1, 3),), 0, 2)).answer(Member())
    assert got == [((1, b"b", b"1"), (2, b"c", b"2")), ()]
    assert stored_marks(node.store.stored(Q), found.blocks) == {b"b": b"1", b"c": b"2", b"d": b"3"}


def test_a_copy_that_is_filled_has_the_marks_of_its_source_and_no_others(node: Node) -> None:
    """What it had is void, and what was removed since does not come back with an older table."""
    old = block(1, run(1, 3), marks={b"former": b"1"})
    node.append(old)
    node.apply(old)
    node.write(Restart(5, ((1, 1),), 3, ((1, 3),), 0))
    later = block(6, marks={b"gone": b"", b"new": b"6", b"both": b"6"})
    node.append(later)
    node.apply(later)
    node.write(Fill(0, 3, ((1, 3),), (), 5, (), ((2, b"gone", b"2"), (3, b"stays", b"3"), (4, b"both", b"4"))))
    node.flush()
    expected = {b"stays": b"3", b"new": b"6", b"both": b"6"}
    assert node.log.queue(Q).marks.values() == expected
    found = node.restart()
    assert (found.complete, found.marked, node.log.queue(Q).marks.values()) == (False, True, expected)
    node.write(Complete(6))
    node.flush()
    node.restart()
    assert node.log.queue(Q).marks.known == {b"stays": (3, b"3"), b"new": (6, b"6"), b"both": (6, b"6")}


def test_a_copy_that_is_filled_takes_over_what_was_counted_before(node: Node) -> None:
    """Whether it hears of a later return before the message comes, or after it."""
    node.write(Restart(5, ((1, 1),), 4, (), 0))
    later = block(6, counts=[(2, 2, 3)])
    node.append(later)
    node.apply(later)
    node.write(Fill(0, 4, ((2, 4),), (run(2, 3),), 5, ((2, 2, 2), (4, 4, 1))))
    node.flush()
    assert node.log.queue(Q).counts == {2: 3, 4: 1}
    node.append(block(7, counts=[(4, 4, 2)], settled=[(2, 2)]))
    node.apply(block(7, counts=[(4, 4, 2)], settled=[(2, 2)]))
    node.append(block(8))
    node.flush()
    node.restart()
    assert node.log.queue(Q).counts == {4: 2}


# -- which messages may have been delivered ------------------------------------------------------------


def test_a_piece_says_which_of_all_that_live_may_have_been_delivered(node: Node) -> None:
    """Also of those whose contents the asker has: a priority queue has no other word about them."""
    blocks = [block(1, run(1, 6), requeued=[(1, 3)]), block(2, requeued=[(5, 6)], settled=[(2, 2)])]
    node.append(*blocks)
    node.apply(*blocks)
    got: list[Any] = []

    class Member:
        def on_read(self, *answer: Any) -> None:
            got.append((answer[3], answer[6]))

    for after, have, bound in ((0, ((1, 6),), 6), (2, ((1, 6),), 5), (0, ((1, 1),), 6)):
        node.store.read(Q, Request("n2", 0, after, bound, have, 0, 2)).answer(Member())
    assert got == [(6, ((1, 1), (3, 3), (5, 6))), (5, ((3, 3), (5, 5))), (2, ((1, 1),))]


def test_what_a_hand_over_says_of_deliveries_is_for_its_master_alone(node: Node) -> None:
    """A client may have the message. Whoever gets the copy, by a piece or a checkpoint, must not give it out as new."""
    blocks = [block(1, run(1, 4), requeued=[(1, 4)]), block(2, requeued=[(2, 2)], settled=[(3, 3)])]
    node.append(*blocks)
    node.apply(blocks[0])
    node.flush()
    got: list[Any] = []

    class Member:
        def on_read(self, *answer: Any) -> None:
            got.append((marked(answer[2]), answer[6]))

    def marked(runs: Iterable[Run]) -> list[int]:
        return [one.first + at for one in runs for at, kind in enumerate(one.kinds) if kind & REDELIVERED]

    node.store.unmark(Q, [(1, 3)])
    assert marked(node.load()) == [4]
    reading = node.store.read(Q, Request("n2", 0, 0, 4, (), 1 << 20, 1))
    job: Any = reading.job
    job.perform(node.disk)
    node.log.on_done(job)
    reading.answer(Member())
    assert got == [([1, 2, 3, 4], ((1, 4),))]
    node.apply(blocks[1])
    assert marked(node.load()) == [2, 4], "its client has given it back"
    node.log.upkeep.checkpoint_due = True
    while (task := node.log.take() or node.log.maintenance(idle=True)) is not None:
        task.perform(node.disk)
        node.log.on_done(task)
    node.restart()
    assert node.log.upkeep.through and marked(node.load()) == [1, 2, 4]


def test_a_copy_that_leads_again_has_no_word_of_an_earlier_hand_over(node: Node) -> None:
    blocks = [block(1, run(1, 2), requeued=[(1, 2)])]
    node.append(*blocks)
    node.apply(*blocks)
    node.store.unmark(Q, [(1, 2)])
    queue = Queue(QueueSpec(Q, "/", "q"), Host(node))  # type: ignore[arg-type]
    restore_queue(queue, node.store.stored(Q), Started(8, 5, (), False))
    assert [kind & REDELIVERED for one in node.load() for kind in one.kinds] == [REDELIVERED] * 2


def test_a_piece_names_a_limited_number_of_ranges(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_log, "PIECE_RANGES_MAX", 2)
    blocks = [block(1, run(1, 9), requeued=[(2, 2), (4, 5), (7, 7), (9, 9)])]
    node.append(*blocks)
    node.apply(*blocks)
    got: list[Any] = []

    class Member:
        def on_read(self, *answer: Any) -> None:
            got.append((answer[1], answer[3], answer[6]))

    for after in (0, 5):
        node.store.read(Q, Request("n2", 0, after, 9, ((1, 9),), 0, 1)).answer(Member())
    assert got == [(((1, 5),), 5, ((2, 2), (4, 5))), (((6, 9),), 9, ((7, 7), (9, 9)))]


def test_a_copy_that_returns_learns_what_may_have_been_delivered_meanwhile(node: Node) -> None:
    """Whether it has the message, gets it with the piece, or heard in a block that it is settled."""
    old = block(1, run(1, 3), requeued=[(1, 1)])
    node.append(old)
    node.apply(old)
    node.write(Restart(5, ((1, 1),), 5, ((1, 3),), 0))
    later = block(6, settled=[(3, 3)])
    node.append(later)
    node.apply(later)
    node.write(Fill(0, 5, ((1, 5),), (run(4, 2),), 5, requeued=((2, 4),)))
    node.flush()
    assert list(node.log.queue(Q).redelivered) == [(1, 2), (4, 4)]
    node.restart()
    assert list(node.log.queue(Q).redelivered) == [(1, 2), (4, 4)]
    node.write(Complete(6))
    node.flush()
    loaded = [(one.first + at, kind) for one in node.load() for at, kind in enumerate(one.kinds)]
    assert [number for number, kind in loaded if kind & REDELIVERED] == [1, 2, 4]


def test_a_new_master_knows_what_the_tail_counts(node: Node) -> None:
    blocks = [block(1, run(1, 5)), block(2, counts=[(1, 2, 1)])]
    tail = [block(3, run(6, 1), counts=[(2, 2, 2), (6, 6, 1)]), block(4, settled=[(1, 1)], counts=[(1, 1, 2)])]
    node.append(*blocks, *tail)
    node.apply(*blocks)
    host = Host(node)
    host.rules = QueueRules(counts_returns=True, delivery_limit=1)
    queue = Queue(QueueSpec(Q, "/", "q"), host)  # type: ignore[arg-type]
    restore_queue(queue, node.store.stored(Q), Started(8, 5, tuple(tail), False))
    returns = queue.extension(DeliveryLimit)
    assert returns is not None and returns.counts == {2: 2, 6: 1} and returns.overdue == {2}


# -- promotion -----------------------------------------------------------------------------------------


class Host:
    def __init__(self, node: Node) -> None:
        self.node = node
        self.dirty: dict[Any, None] = {}
        self.content_bytes = self.unlogged_bytes = 0
        self.sharing = None
        self.content_bytes_max = self.spill_bytes_max = 1 << 40
        self.now_ms = self.policy_version = 0
        self.rules = QueueRules()
        self.features = Features()

    def rules_of(self, spec: QueueSpec) -> QueueRules:
        return self.rules

    def counts_of(self, queue: Queue) -> dict[int, int]:
        return {}

    def load(self, queue: Queue, read: GapRead) -> None:
        job = self.node.log.load(Q, read.first, read.last, 30)
        assert job is not None
        job.perform(self.node.disk)
        self.node.log.on_done(job)
        queue.on_loaded(read, job.runs, job.next)


def promote(node: Node, tail: list[Block]) -> tuple[Queue, list[tuple[int, Any]]]:
    queue = Queue(QueueSpec(Q, "/", "q"), Host(node))  # type: ignore[arg-type]
    number = (tail[-1].number if tail else node.confirmed) + 1
    batches = restore_queue(queue, node.store.stored(Q), Started(8, number, tuple(tail), False))
    assert (queue.number, queue.epoch) == (number, 8)
    return queue, batches


def drain(queue: Queue) -> list[tuple[int, bytes, int]]:
    """(number, content, kind) of all that waits, in order."""
    found = []
    while queue.ready:
        got = queue.get()
        if isinstance(got, tuple):
            batch, at = got
            found.append((batch.first + at, batch.contents[at], batch.kinds[at]))
    assert queue.ready_count == 0
    return found


def test_a_promoted_queue_is_what_is_stored_plus_the_tail(node: Node) -> None:
    applied = [block(1, run(1, 10)), block(2, run(11, 5), [(4, 4)], through=2)]
    tail = [
        packed(block(3, run(16, 4), [(1, 2), (12, 13)], through=6)),
        packed(block(4, run(20, 2), [(17, 17), (20, 21)], requeued=[(9, 9), (18, 18)])),
        packed(block(5, None, [(15, 15)])),
    ]
    node.append(*applied, *tail)
    node.flush()
    node.apply(*applied)
    queue, batches = promote(node, list(tail))
    assert queue.ready_count == 12 and queue.next_seq == 22 and queue.delivered_through == 6
    assert [(gap.first, gap.last, gap.count) for gap in queue.ready if isinstance(gap, Gap)] == [
        (3, 11, 8),
        (14, 14, 1),
    ]
    assert [number for number, _ in batches] == [3, 4]
    assert not any(batch.logged or batch.all_logged for _, batch in batches)
    assert batches[1][1].left == 0
    assert queue.memory_bytes == queue.host.content_bytes == batches[0][1].size
    waiting = drain(queue)
    assert [seq for seq, _, _ in waiting] == [3, 5, 6, 7, 8, 9, 10, 11, 14, 16, 18, 19]
    assert queue.unacked_count == 12
    assert all(content == b"content %d" % seq for seq, content, _ in waiting)
    assert {seq for seq, _, kind in waiting if kind & REDELIVERED} == {3, 5, 6, 9, 18}


def test_the_tail_takes_effect_behind_a_promoted_queue(node: Node) -> None:
    """Gaps read back before and after the tail is applied give the same."""
    first = block(1, run(1, 20))
    tail = [block(2, run(21, 1), [(1, 5), (10, 10)])]
    node.append(first, *tail)
    node.flush()
    node.apply(first)
    early, _ = promote(node, tail)
    late, batches = promote(node, tail)
    expected = [*range(6, 10), *range(11, 22)]
    assert [seq for seq, _, _ in drain(early)] == expected
    node.apply(*tail)
    late.on_logged(batches[0][1])
    assert batches[0][1].logged
    assert [seq for seq, _, _ in drain(late)] == expected


def test_a_promoted_queue_without_a_tail(node: Node) -> None:
    queue, batches = promote(node, [])
    assert (queue.ready_count, list(queue.ready), batches, queue.next_seq) == (0, [], [], 1)
    node.append(block(1, run(1, 3), [(2, 2)]))
    node.apply(block(1, run(1, 3), [(2, 2)]))
    queue, _ = promote(node, [])
    [gap] = queue.ready
    assert isinstance(gap, Gap) and (gap.first, gap.last, gap.count) == (1, 3, 2)


def test_everything_is_in_the_tail(node: Node) -> None:
    tail = [packed(block(1, run(1, 3))), packed(block(2, None, [(1, 1), (3, 3)]))]
    node.append(*tail)
    queue, batches = promote(node, list(tail))
    [span] = queue.ready
    assert isinstance(span, Span) and (span.first, span.last, span.batch.left) == (2, 2, 1)
    assert len(batches) == 1 and queue.ready_count == 1


def test_a_copy_without_a_record_takes_no_space() -> None:
    node = Node()
    store = node.store
    assert store.recovered(Q) == Recovered() and store.disk(Q) == 0
    assert not store.stored(Q).live and store.stored(Q).next_seq == 1 and store.lost(Q) == []
    assert Q not in node.log.queues
    store.write(Q, Write(1, Append((packed(block(1, run(1, 3))),)), 0))
    assert Q in node.log.queues and node.flush() == [{Q: 1}]
