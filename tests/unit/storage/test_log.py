from __future__ import annotations

import random
from pathlib import Path

import pytest

from leveret.storage.format.errors import LogStopped
from leveret.storage.format.queue_block import Block, Run
from leveret.storage.log import Log, LogOptions
from leveret.storage.segments.disk import FileDisk
from leveret.storage.segments.disk_jobs import Checkpoint, Load, Reclaim, Write
from simulation.core.disk import FaultyDisk

SMALL = LogOptions(segment_bytes=2000)
FIRST = "log/segments/0000000000000001.log"


class Node:
    """A log with its disk, and a queue that numbers its blocks and messages."""

    def __init__(self, options: LogOptions = SMALL) -> None:
        self.disk = FaultyDisk(random.Random(1))
        self.options = options
        self.log = Log(self.disk, "log", options)
        self.log.recover([])
        self.numbers: dict[int, int] = {}
        self.seqs: dict[int, int] = {}

    def append(
        self,
        count: int = 0,
        settled: list[tuple[int, int]] | None = None,
        queue: int = 1,
        kind: int = 1,
        size: int = 50,
        first: int | None = None,
        requeued: list[tuple[int, int]] | None = None,
        delivered: int = 0,
        counts: list[tuple[int, int, int]] | None = None,
        marks: dict[bytes, bytes] | None = None,
    ) -> Block:
        number = self.numbers[queue] = self.numbers.get(queue, 0) + 1
        start = first or self.seqs.get(queue, 1)
        run = None
        if count:
            contents = [b"%d" % seq + bytes(size) for seq in range(start, start + count)]
            run = Run(start, contents, [b"\0\1k"] * count, bytearray([kind]) * count)
            self.seqs[queue] = max(self.seqs.get(queue, 1), start + count)
        block = Block(queue, 1, number, 0, run, settled or [], requeued or [], delivered, counts, marks)
        self.log.append(block)
        return block

    def flush(self) -> list[Block]:
        blocks = []
        while (write := self.log.take()) is not None:
            write.perform(self.disk)
            blocks += self.log.on_done(write)
        return blocks

    def settle_down(self) -> None:
        while (job := self.log.take() or self.log.maintenance(idle=True)) is not None:
            job.perform(self.disk)
            self.log.on_done(job)

    def restart(self, known: list[int] | None = None) -> Log:
        self.disk.crash()
        self.log = Log(self.disk, "log", self.options)
        self.log.recover([1] if known is None else known)
        return self.log

    def load(self, queue: int = 1, first: int = 1) -> list[Run]:
        job = self.log.load(queue, first, 1 << 60, 1 << 30)
        if job is None:
            return []
        job.perform(self.disk)
        self.log.on_done(job)
        return job.runs


def seqs(runs: list[Run]) -> list[int]:
    return [seq for run in runs for seq in range(run.first, run.last + 1)]


def test_one_write_at_a_time_for_all_that_gathered() -> None:
    node = Node()
    a = node.append(1)
    write = node.log.take()
    assert write is not None
    b, c = node.append(1), node.append(1, queue=2)
    assert node.log.take() is None
    assert node.log.pending_bytes > 0
    write.perform(node.disk)
    assert node.log.on_done(write) == [a]
    assert node.flush() == [b, c]
    assert node.log.pending_bytes == 0
    assert node.log.take() is None


def test_a_block_larger_than_a_group_is_durable_with_its_last_part() -> None:
    node = Node(LogOptions(group_bytes=1000))
    block = node.append(30, size=90)
    write = node.log.take()
    assert write is not None
    write.perform(node.disk)
    assert node.log.on_done(write) == []
    log = node.restart()
    assert log.queue(1).number == 0 and 0 < log.queue(1).count < 30
    log.append(block)  # Sent again: what is there already is not stored twice.
    assert node.flush() == [block]
    assert log.queue(1).count == 30
    assert node.restart().queue(1).count == 30
    assert seqs(node.load()) == list(range(1, 31))


def test_a_message_larger_than_a_group() -> None:
    node = Node(LogOptions(group_bytes=1000))
    node.append(3, size=5000)
    node.flush()
    assert node.restart().queue(1).number == 1
    assert [len(content) for run in node.load() for content in run.contents] == [5001] * 3


def test_what_is_settled_before_it_is_written_is_not_written() -> None:
    node = Node()
    node.append(10, size=5000)
    node.append(settled=[(1, 9)])
    node.flush()
    assert node.disk.size("log/segments/0000000000000001.log") < 6000
    log = node.restart()
    assert (list(log.queue(1).live), log.queue(1).next_seq, log.queue(1).number) == ([(10, 10)], 11, 2)


def test_one_old_message_pins_almost_nothing() -> None:
    node = Node(LogOptions(segment_bytes=20_000))
    node.append(1)
    for index in range(200):
        node.append(10)
        node.flush()
        node.append(settled=[(2 + index * 10, 11 + index * 10)])
        node.flush()
    node.settle_down()
    assert node.log.segments <= 2
    assert list(node.restart().queue(1).live) == [(1, 1)]
    assert node.load()[0].contents == [b"1" + bytes(50)]


def test_one_message_in_each_segment() -> None:
    node = Node(LogOptions(segment_bytes=5000))
    for index in range(50):
        node.append(40, size=100)
        node.flush()
        node.append(settled=[(40 * index + 2, 40 * index + 40)])
        node.settle_down()
    assert node.log.segments <= 10  # Of 50.
    node.restart()
    assert seqs(node.load()) == list(range(1, 2001, 40))


def test_dead_files_are_used_again() -> None:
    node = Node()
    for _ in range(60):
        node.append(5, [(1, node.seqs[1] - 1)] if node.seqs else [])
        node.settle_down()
    names = node.disk.names("log/segments")
    assert len(names) < 10
    assert sum(name.endswith(".spare") for name in names) <= node.options.spares_max
    assert max(node.log.segment_table) > 5
    assert node.restart().queue(1).count == 5
    assert seqs(node.load()) == list(range(296, 301))


def test_a_segment_that_is_being_read_stays() -> None:
    node = Node()
    node.append(40)
    node.flush()
    load = node.log.load(1, 1, 40, 1 << 20)
    assert load is not None
    node.append(settled=[(1, 40)])
    for _ in range(40):
        node.append(1)
        node.settle_down()
    load.perform(node.disk)
    assert seqs(load.runs) == list(range(1, 41))
    assert 1 in node.log.segment_table
    node.log.on_done(load)
    node.settle_down()
    assert 1 not in node.log.segment_table


def test_load_gives_what_is_not_written_yet_too() -> None:
    node = Node()
    node.append(3)
    node.flush()
    node.append(3)
    write = node.log.take()
    node.append(3, [(5, 5)])
    runs = node.load()
    assert [run.first for run in runs] == [1, 6] and seqs(runs) == [1, 2, 3, 4, 6, 7, 8, 9]
    assert write is not None


def test_load_in_pieces() -> None:
    node = Node()
    for _ in range(10):
        node.append(5)
    node.flush()
    found: list[int] = []
    at = 1
    while (load := node.log.load(1, at, 48, 300)) is not None:
        load.perform(node.disk)
        node.log.on_done(load)
        found += seqs(load.runs)
        assert len(seqs(load.runs)) <= 10
        at = load.next
    assert found == list(range(1, 49))


def test_redelivered_after_a_restart() -> None:
    node = Node()
    node.append(10, delivered=3)
    node.append(requeued=[(6, 7)], settled=[(1, 1)], delivered=3)
    node.flush()
    assert list(node.log.queue(1).redelivered) == [(6, 7)]
    log = node.restart()
    assert list(log.queue(1).redelivered) == [(2, 3), (6, 7)]
    assert [kind for run in node.load() for kind in run.kinds] == [3, 3, 1, 1, 3, 3, 1, 1, 1]


def test_transient_messages_are_not_written_but_counted() -> None:
    node = Node()
    node.append(5, kind=0)
    node.append(2)
    node.flush()
    log = node.restart()
    assert (list(log.queue(1).live), log.queue(1).next_seq) == ([(6, 7)], 8)


def test_spilled_messages_can_be_loaded_until_a_restart() -> None:
    node = Node()
    node.append(3, kind=0)
    node.append(3)
    node.append(3, kind=0)
    contents = [b"%d" % seq for seq in range(1, 4)]
    node.log.spill(1, [Run(1, contents, [b"k"] * 3, bytearray(3)), Run(7, contents, [b"k"] * 3, bytearray(3))])
    write = node.log.take()
    assert isinstance(write, Write)
    write.perform(node.disk)
    node.log.on_done(write)
    assert write.spilled == [(1, 1, 3), (1, 7, 9)]
    assert seqs(node.load()) == list(range(1, 10))
    assert node.load()[0].contents[:3] == contents
    node.append(settled=[(2, 7)])
    assert seqs(node.load()) == [1, 8, 9]
    assert not node.restart().queue(1).live.count_within(1, 3)
    assert not node.log.queue(1).spilled


def test_a_settle_may_come_before_its_message() -> None:
    """A mirror that fills up from below sees new settles first."""
    node = Node()
    node.append(5, [(3, 4)], first=100)
    node.append(10, first=1)
    node.flush()
    assert list(node.log.queue(1).live) == [(1, 2), (5, 10), (100, 104)]
    assert seqs(node.load()) == [1, 2, *range(5, 11), *range(100, 105)]
    assert list(node.restart().queue(1).live) == [(1, 2), (5, 10), (100, 104)]


def test_unknown_and_forgotten_queues_are_dead() -> None:
    node = Node()
    node.append(5, queue=1)
    node.append(5, queue=2)
    node.flush()
    log = node.restart([2])
    assert 1 not in log.queues and log.queue(2).count == 5
    node.flush()
    log = node.restart([1, 2])
    assert log.queue(1).count == 0, "it was dead once"
    log.forget(2)
    node.settle_down()
    assert node.restart([1, 2]).queue(2).number == 0


def test_a_full_disk_loses_nothing() -> None:
    node = Node()
    node.append(5)
    node.flush()
    node.disk.capacity_bytes = node.disk.capacity_bytes - node.disk.free_bytes() + 100
    blocks = [node.append(5), node.append(5, queue=2)]
    write = node.log.take()
    assert write is not None
    with pytest.raises(OSError) as caught:
        write.perform(node.disk)
    assert node.log.on_failed(write, caught.value) == "retry"
    assert node.log.pending_bytes > 0
    blocks.append(node.append(1))
    node.disk.capacity_bytes = 1 << 30
    assert node.flush() == blocks
    assert node.restart([1, 2]).queue(1).count == 11


def test_small_groups_overwrite_zeros_that_were_written_ahead() -> None:
    node = Node(LogOptions(ahead_bytes=8000))
    node.append(1)
    node.flush()
    size = node.disk.size(FIRST)
    for _ in range(10):
        node.append(1)
        node.flush()
        assert node.disk.size(FIRST) == size
    notes: list[str] = []
    log = Log(node.disk, "log", node.options)
    log.recover([1], notes.append)
    assert list(log.queue(1).live) == [(1, 11)] and not any("cut off" in note for note in notes)


def test_large_groups_write_nothing_ahead() -> None:
    node = Node(LogOptions(ahead_bytes=8000))
    node.append(100)
    node.flush()
    assert node.disk.size(FIRST) == node.log.disk_bytes


def test_a_spare_file_is_overwritten_to_its_end_before_zeros_are_written() -> None:
    node = Node(LogOptions(segment_bytes=4000, ahead_bytes=8000))
    for _ in range(2):
        node.append(60)
        node.flush()
    node.append(0, [(1, 120)])
    node.settle_down()
    assert node.log.spares
    size = min(node.log.spares.values())
    node.append(60)
    node.flush()
    node.append(1)
    node.flush()
    name = max(name for name in node.disk.names("log/segments") if name.endswith("log"))
    assert node.disk.size(f"log/segments/{name}") < size + 8000
    assert node.restart().queue(1).count == 61


def test_a_group_is_written_without_zeros_if_there_is_no_space_for_both() -> None:
    node = Node(LogOptions(ahead_bytes=8000))
    node.append(1)
    node.disk.capacity_bytes = node.disk.capacity_bytes - node.disk.free_bytes() + 2000
    assert len(node.flush()) == 1
    assert node.disk.size(FIRST) == node.log.disk_bytes
    node.append(1)
    assert len(node.flush()) == 1
    assert node.restart().queue(1).count == 2


def test_a_full_disk_gets_the_spare_files_back() -> None:
    node = Node()
    for _ in range(4):
        node.append(60)
        node.flush()
    node.append(1, [(1, 240)])
    node.settle_down()
    assert node.log.spares
    node.append(400)
    node.disk.capacity_bytes = node.disk.capacity_bytes - node.disk.free_bytes()
    write = node.log.take()
    assert write is not None
    with pytest.raises(OSError) as caught:
        write.perform(node.disk)
    assert node.log.on_failed(write, caught.value) == "retry"
    job = node.log.maintenance()
    assert isinstance(job, Reclaim)
    job.perform(node.disk)
    node.log.on_done(job)
    assert not node.log.spares and not [name for name in node.disk.names("log/segments") if name.endswith("spare")]
    assert node.disk.free_bytes() > 0


def test_a_full_disk_when_a_segment_is_begun() -> None:
    node = Node()
    node.append(60)
    node.flush()
    node.disk.capacity_bytes = node.disk.capacity_bytes - node.disk.free_bytes() + 10
    node.append(5)
    for _ in range(2):
        write = node.log.take()
        assert write is not None and write.segment == 2
        with pytest.raises(OSError) as caught:
            write.perform(node.disk)
        assert node.log.on_failed(write, caught.value) == "retry"
    node.disk.capacity_bytes = 1 << 30
    node.flush()
    assert node.restart().queue(1).count == 65


def test_a_failed_sync_stops_the_log_for_good() -> None:
    node = Node()
    node.append(5)
    node.flush()
    node.append(5)
    node.disk.fail_sync_after = 0
    write = node.log.take()
    assert write is not None
    with pytest.raises(OSError) as caught:
        write.perform(node.disk)
    assert node.log.on_failed(write, caught.value) == "stopped"
    assert node.log.take() is None and node.log.maintenance() is None and node.log.stopped
    with pytest.raises(LogStopped):
        node.append(1)
    assert node.restart().queue(1).count == 5


def test_what_a_failed_sync_left_readable_is_written_again_at_start() -> None:
    """The process ends, the machine does not: its memory still shows what never reached the disk."""
    node = Node()
    node.append(5)
    node.disk.fail_sync_after = 0
    write = node.log.take()
    assert write is not None
    with pytest.raises(OSError):
        write.perform(node.disk)
    node.log = Log(node.disk, "log", node.options)
    node.log.recover([1])
    seen = node.log.queue(1).count
    assert node.restart().queue(1).count == seen == 5


def test_on_real_files(tmp_path: Path) -> None:
    disk = FileDisk(str(tmp_path))
    log = Log(disk, "log", SMALL)
    log.recover([])
    for number in range(1, 101):
        first = number * 3
        contents = [b"%d" % seq + bytes(40) for seq in range(first, first + 3)]
        run = Run(first, contents, [b"\0\0"] * 3, bytearray(b"\1" * 3))
        log.append(Block(1, 1, number, 0, run, [(first, first)] if number % 10 else [(3, first)], [], 0))
        while (job := log.take() or log.maintenance(idle=True)) is not None:
            job.perform(disk)
            log.on_done(job)
    live = list(log.queue(1).live)
    assert log.segments < 6
    disk.close()
    again = Log(FileDisk(str(tmp_path)), "log", SMALL)
    again.recover([1])
    assert list(again.queue(1).live) == live
    load = again.load(1, 1, 1000, 1 << 20)
    assert load is not None
    load.perform(again.disk)
    assert seqs(load.runs) == [seq for low, high in live for seq in range(low, high + 1)]
    for run in load.runs:
        assert run.contents == [b"%d" % seq + bytes(40) for seq in range(run.first, run.last + 1)]


def test_sync_when_it_is_due() -> None:
    node = Node(LogOptions(sync="interval"))
    node.append(1)
    write = node.log.take()
    assert write is not None and not write.sync
    write.perform(node.disk)
    assert len(node.log.on_done(write)) == 1
    assert node.log.take() is None
    node.log.sync_due()
    write = node.log.take()
    assert write is not None and write.sync and not write.entries
    write.perform(node.disk)
    assert node.log.on_done(write) == []
    node.log.sync_due()
    assert node.log.take() is None, "nothing to sync"
    assert node.restart().queue(1).count == 1


def test_a_start_goes_on_where_the_log_ended() -> None:
    node = Node(LogOptions())
    for _ in range(5):
        node.append(2)
        node.flush()
        node.restart()
    assert node.log.segments == 1
    assert seqs(node.load()) == list(range(1, 11))


def test_a_checkpoint_waits_for_what_it_contains() -> None:
    node = Node()
    node.append(60)
    node.flush()
    node.append(1, [(1, 60)])
    node.flush()
    node.append(1)
    job = node.log.maintenance()
    assert not isinstance(job, Checkpoint)
    node.flush()
    job = node.log.maintenance()
    assert isinstance(job, Checkpoint)
    job.perform(node.disk)
    node.log.on_done(job)
    assert isinstance(node.log.maintenance(), Reclaim)


def test_counts_and_bytes_follow_settles() -> None:
    node = Node()
    node.append(100, size=98)
    node.flush()
    queue = node.log.queue(1)
    assert queue.message_bytes == 100 * 98 + sum(len(str(seq)) for seq in range(1, 101))
    node.append(settled=[(1, 50)])
    assert queue.count == 50 and abs(queue.message_bytes - 5000) < 100
    node.append(settled=[(51, 100)])
    assert queue.message_bytes == 0
    assert isinstance(node.log.load(1, 1, 100, 10), Load | None)


def test_options_are_checked() -> None:
    with pytest.raises(ValueError):
        LogOptions(sync="sometimes")  # type: ignore[arg-type]
    with pytest.raises(ValueError):
        LogOptions(segment_bytes=1 << 40)


# -- how often messages were given back -------------------------------------------------------------


def test_counts_outlive_a_restart_and_go_with_their_messages() -> None:
    node = Node()
    node.append(10)
    node.append(requeued=[(2, 5)], counts=[(2, 4, 1), (5, 5, 3)])
    node.append(requeued=[(3, 3)], counts=[(3, 3, 2)])
    node.append(settled=[(4, 4)])
    node.append(counts=[(4, 4, 9), (5, 5, 2)])  # Too late; and of two the larger holds.
    node.flush()
    assert node.log.queues[1].counts == {2: 1, 3: 2, 5: 3}
    assert node.restart().queues[1].counts == {2: 1, 3: 2, 5: 3}


@pytest.mark.parametrize("sealed", [True, False])
def test_counts_outlive_the_segment_they_were_written_to(sealed: bool) -> None:
    """In the indexes of segments, in checkpoints, and when messages are moved."""
    node = Node(LogOptions(segment_bytes=2_000, checkpoint_segments=1 if sealed else 1000, sparse_percent=90))
    node.append(3)
    node.flush()
    node.append(requeued=[(1, 2)], counts=[(1, 1, 4), (2, 2, 1)])
    node.flush()
    for _ in range(20):
        node.append(20)
        node.flush()
        last = node.seqs[1] - 1
        node.append(settled=[(last - 18, last)])
        node.flush()
        node.settle_down()
    through = node.log.upkeep.through
    assert (through > 1) or not sealed
    node.append(counts=[(3, 3, 7)], settled=[(2, 2)])
    node.flush()
    assert node.restart().queues[1].counts == {1: 4, 3: 7}
    node.settle_down()
    assert node.restart().queues[1].counts == {1: 4, 3: 7}


def test_counts_of_what_was_never_written_are_dropped_at_start() -> None:
    node = Node()
    node.append(2, kind=0)
    node.append(counts=[(1, 1, 2)], requeued=[(1, 1)])
    node.flush()
    assert node.restart().queues[1].counts == {}


def test_marks_outlive_a_start_and_the_last_word_holds() -> None:
    node = Node()
    node.append(2, marks={b"a": b"1", b"b": b"1"})
    node.append(marks={b"a": b"2", b"c": b"3"})
    node.append(marks={b"b": b"", b"never": b""})
    node.flush()
    assert node.log.queues[1].marks.values() == {b"a": b"2", b"c": b"3"}
    assert node.restart().queues[1].marks.known == {b"a": (2, b"2"), b"c": (2, b"3")}


def test_marks_are_in_indexes_and_checkpoints() -> None:
    """Whatever segment they were set in, and whichever of them are gone."""
    node = Node()
    node.append(3, marks={b"old": b"1", b"gone": b"1"})
    for turn in range(60):
        node.append(3, settled=[(4 + 3 * turn, 5 + 3 * turn)], marks={b"new": b"%d" % turn})
        node.flush()
    node.append(marks={b"gone": b""}, settled=[(1, 3)])
    node.log.upkeep.checkpoint_due = True
    node.settle_down()
    assert any(name.endswith(".index") for name in node.disk.names("log/segments"))
    assert "checkpoint" in node.disk.names("log")
    for _ in range(2):
        assert node.restart().queues[1].marks.values() == {b"old": b"1", b"new": b"59"}
        node.settle_down()


def test_a_checkpoint_knows_better_than_blocks_that_are_read_again() -> None:
    """The queue was mirrored when a name was removed: that record is in the checkpoint, and is not read again."""
    node = Node()
    node.append(1, marks={b"a": b"1"})
    mirrors = node.log.mirrors
    block = Block(1, 2, 2, 0, None, [], [], 0, None, {b"a": b"", b"b": b"2"})
    mirrors.append(block, None, 1)
    mirrors.apply([block])
    mirrors.truncate(1, 2, 2)
    node.flush()
    node.log.upkeep.checkpoint_due = True
    node.settle_down()
    assert "checkpoint" in node.disk.names("log")
    assert node.restart().queues[1].marks.values() == {b"b": b"2"}


def test_a_forgotten_queue_takes_its_marks_along() -> None:
    node = Node()
    node.append(1, marks={b"a": b"1"})
    node.flush()
    node.log.forget(1)
    node.numbers.clear()
    node.append(1, first=10, marks={b"b": b"1"})
    node.flush()
    assert node.restart().queues[1].marks.values() == {b"b": b"1"}
