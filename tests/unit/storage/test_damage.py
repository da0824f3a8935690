"""Bits that flip in what was synced are harmless or reported, and repair drops no more than what is reported."""

from __future__ import annotations

import random
from zlib import crc32

import pytest

from leveret.storage.check import check, repair
from leveret.storage.format.block_format import GROUP_HEAD
from leveret.storage.format.errors import LogDamaged
from leveret.storage.format.queue_block import Block, Run
from leveret.storage.log import Log, LogOptions
from leveret.storage.segments.disk_jobs import Write
from simulation.core.disk import FaultyDisk

from .world import Message, World, flat


def calm_world(seed: int) -> tuple[World, tuple[int, int]]:
    """A world without faults, all written; and segment and offset of the last group, which has no witness yet."""
    world = World(seed, "always")
    world.calm = True
    last = (0, 0)
    for _ in range(120):
        choice = world.rng.random()
        if choice < 0.5:
            world.append()
        elif choice < 0.55:
            world.maintain()
        write = world.log.take() if world.rng.random() < 0.4 else None
        if write is not None:
            last = (write.segment, write.offset)
            world.perform(write)
    while (job := world.log.take() or world.log.maintenance(idle=True)) is not None:
        if isinstance(job, Write):
            last = (job.segment, job.offset)
        world.perform(job)
    return world, last


def load_everything(world: World, log: Log, number: int) -> dict[int, bytes]:
    at = 1
    found = {}
    while (job := log.load(number, at, 1 << 62, 1000)) is not None:
        job.perform(world.disk)
        log.on_done(job)
        for run in job.runs:
            found.update({run.first + index: content for index, content in enumerate(run.contents)})
        at = job.next
    return found


@pytest.mark.parametrize("seed", range(150))
def test_flip(seed: int) -> None:
    world, last = calm_world(seed)
    expected = {number: queue.live() for number, queue in world.queues.items()}
    rng = random.Random(seed)
    folder = rng.choice(["log/segments"] * 5 + ["log"])
    names = [name for name in world.disk.names(folder) if "." in name or name == "checkpoint"]
    if not names:
        return
    path = f"{folder}/{rng.choice(names)}"
    offset = rng.randrange(world.disk.size(path))
    world.disk.flip(path, offset, rng.randrange(8))
    unwitnessed = path == f"log/segments/{last[0]:016x}.log" and offset >= last[1]
    try:
        log = Log(world.disk, "log", world.options)
        log.recover(list(world.queues))
        for number, messages in expected.items():
            loaded = load_everything(world, log, number)
            if unwitnessed:
                assert all(messages[seq][0] == content for seq, content in loaded.items() if seq in messages)
            else:
                assert loaded == {seq: message[0] for seq, message in messages.items()}
    except LogDamaged as error:
        assert any(item.file == path for item in error.items), f"{path} at {offset}, but: {error}"
        assert not check(world.disk, "log").good
        check_repair(world, expected, path)


def check_repair(world: World, expected: dict[int, dict[int, Message]], path: str) -> None:
    report = repair(world.disk, "log", ())
    assert any(item.file == path for item in report.damages)
    after = check(world.disk, "log")
    assert after.good, str(after)
    log = Log(world.disk, "log", world.options)
    log.recover(list(world.queues))
    vague = any(item.queue is None for item in report.damages)
    for number, messages in expected.items():
        loaded = load_everything(world, log, number)
        assert set(loaded) == flat(log.queue(number).live)
        named = {
            seq
            for item in report.damages
            if item.queue == number and item.first is not None and item.last is not None
            for seq in range(item.first, item.last + 1)
        }
        lost = set(messages) - set(loaded)
        assert vague or lost <= named, f"queue {number} lost {lost - named} without a word"
        assert vague or set(loaded) <= set(messages)
        for seq, content in loaded.items():
            assert seq not in messages or messages[seq][0] == content


# -- single cases ----------------------------------------------------------------------------------------


def filled(groups: int, options: LogOptions | None = None) -> tuple[FaultyDisk, Log]:
    disk = FaultyDisk(random.Random(1))
    log = Log(disk, "log", options or LogOptions())
    log.recover([])
    for index in range(groups):
        run = Run(1 + index, [b"content %d" % index], [b"\0\1k"], bytearray([1]))
        log.append(Block(7, 1, 1 + index, 0, run, [], [], 0))
        perform_all(disk, log)
    return disk, log


def perform_all(disk: FaultyDisk, log: Log) -> None:
    while (job := log.take() or log.maintenance(idle=True)) is not None:
        job.perform(disk)
        log.on_done(job)


def recovered(disk: FaultyDisk) -> Log:
    log = Log(disk, "log", LogOptions())
    log.recover([7])
    return log


FIRST = "log/segments/0000000000000001.log"


def test_body_damage_names_queue_block_and_message() -> None:
    disk, _ = filled(3)
    data = disk.read(FIRST, 0, disk.size(FIRST))
    disk.flip(FIRST, data.index(b"content 1"), 0)
    with pytest.raises(LogDamaged) as caught:
        recovered(disk)
    [item] = caught.value.items
    assert (item.file, item.queue, item.number, item.first, item.last) == (FIRST, 7, 2, 2, 2)
    assert "leveret recover" in str(caught.value)
    report = repair(disk, "log", ())
    assert [item.number for item in report.damages] == [2]
    assert list(recovered(disk).queue(7).live) == [(1, 1), (3, 3)]


def test_damaged_group_head_is_found_by_later_groups() -> None:
    disk, _ = filled(3)
    disk.flip(FIRST, 20, 3)
    with pytest.raises(LogDamaged, match=r"\.log at 0"):
        recovered(disk)
    repair(disk, "log", ())
    assert list(recovered(disk).queue(7).live) == [(2, 3)]


def test_the_last_group_has_no_witness_and_counts_as_torn() -> None:
    disk, _ = filled(3)
    disk.flip(FIRST, disk.size(FIRST) - 1, 3)
    notes: list[str] = []
    log = Log(disk, "log", LogOptions())
    log.recover([7], notes.append)
    assert list(log.queue(7).live) == [(1, 2)]
    assert any("unfinished write cut off" in note for note in notes)


def test_missing_segment_in_the_middle() -> None:
    disk, log = filled(40, LogOptions(segment_bytes=500))
    assert log.segments > 4
    disk.delete("log/segments/0000000000000003.log")
    with pytest.raises(LogDamaged, match=r"0000000000000003\.log at 0: the segment is missing"):
        recovered(disk)
    report = repair(disk, "log", ())
    assert not report.good
    assert check(disk, "log").good
    live = flat(recovered(disk).queue(7).live)
    assert 30 < len(live) < 40


def test_damaged_index_of_a_good_segment_is_made_anew() -> None:
    disk, _ = filled(20, LogOptions(segment_bytes=500))
    aside = FIRST.replace(".log", ".index")
    disk.flip(aside, disk.size(aside) // 2, 1)
    notes: list[str] = []
    log = Log(disk, "log", LogOptions(segment_bytes=500))
    log.recover([7], notes.append)
    assert any("made anew" in note for note in notes)
    assert log.queue(7).count == 20
    perform_all(disk, log)
    assert check(disk, "log").notes == []


def test_damaged_index_of_a_damaged_segment() -> None:
    disk, _ = filled(20, LogOptions(segment_bytes=500))
    aside = FIRST.replace(".log", ".index")
    disk.flip(aside, disk.size(aside) // 2, 1)
    data = disk.read(FIRST, 0, disk.size(FIRST))
    disk.flip(FIRST, data.index(b"content 1"), 0)
    with pytest.raises(LogDamaged, match=r"queue 7, block 2, messages 2\.\.2"):
        recovered(disk)


def test_cut_off_segment() -> None:
    disk, _ = filled(20, LogOptions(segment_bytes=500))
    disk.truncate(FIRST, 300)
    with pytest.raises(LogDamaged, match="the file ends too early"):
        recovered(disk)


def test_the_last_segment_lacks_an_end_that_a_checkpoint_has_seen() -> None:
    """Repair wrote the end of the file again, went on behind it, and never came to its end."""
    disk, log = filled(3)
    log.upkeep.checkpoint_due = True
    perform_all(disk, log)
    disk.truncate(FIRST, disk.size(FIRST) - 5)
    with pytest.raises(LogDamaged):
        recovered(disk)
    assert repair(disk, "log", ()).damages[0].number == 3
    assert list(recovered(disk).queue(7).live) == [(1, 2)]


def test_damage_met_while_loading_is_reported_and_repaired() -> None:
    disk, _ = filled(20, LogOptions(segment_bytes=500))
    data = disk.read(FIRST, 0, disk.size(FIRST))
    disk.flip(FIRST, data.index(b"content 1"), 0)
    log = recovered(disk)  # The index is good, so that the start does not read contents.
    job = log.load(7, 1, 20, 10_000)
    assert job is not None
    with pytest.raises(LogDamaged, match=r"0000000000000001\.log") as caught:
        job.perform(disk)
    assert log.on_failed(job, caught.value) == "retry"
    assert [item.number for item in repair(disk, "log", ()).damages if item.queue == 7][:1] == [2]
    assert flat(recovered(disk).queue(7).live) == set(range(1, 21)) - {2}


def test_newer_format_is_refused_with_a_clear_text() -> None:
    disk, _ = filled(2)
    log = recovered(disk)
    assert log.queue(7).count == 2
    head = bytearray(disk.read(FIRST, 0, 64))
    head[4] = 9
    size = GROUP_HEAD.size
    head[size - 4 : size] = crc32(head[: size - 4]).to_bytes(4, "little")
    disk.write(FIRST, 0, [bytes(head)])
    with pytest.raises(LogDamaged, match="format version 9"):
        recovered(disk)


def test_check_of_an_empty_folder() -> None:
    report = check(FaultyDisk(random.Random(1)), "log")
    assert report.good and "0 segments" in str(report)
