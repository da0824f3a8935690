from __future__ import annotations

import errno
import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import pytest

from leveret.node.cluster.consensus_log import (
    SNAPSHOT_SHARE,
    Cleanup,
    ConsensusLog,
    ConsensusLogDamaged,
    ConsensusLogStopped,
    Recovered,
    load_identity,
)
from leveret.raft import Raft, Role
from leveret.raft.membership import Member, Membership
from leveret.raft.messages import Entry, HardState, Kind, Snapshot, SnapshotChunk, SnapshotMeta
from leveret.storage.segments.disk import FileDisk
from simulation.core.disk import Crashed, FaultyDisk
from tests.support.mutating import check_meaning
from tests.unit.raft.mutations import MUTATIONS, Mutation, put

FIRST = "raft/log-00000000000000000001"
US = Membership((Member("a", "node a", "host:1"), Member("b", "node b", "host:2", 3)))


def entries(first: int, *terms: int, data: bytes = b"") -> list[Entry]:
    return [Entry(at, term, Kind.COMMAND, data or b"%d/%d" % (at, term)) for at, term in enumerate(terms, first)]


def new_disk(seed: int = 1) -> FaultyDisk:
    return FaultyDisk(Random(seed))


def opened(disk: FaultyDisk, segment_bytes: int = 1 << 20, after: int = 1 << 20) -> tuple[ConsensusLog, Recovered]:
    log = ConsensusLog(disk, "raft", segment_bytes, after)
    return log, log.recover()


def save(
    log: ConsensusLog,
    disk: FaultyDisk,
    *new: Entry,
    state: HardState | None = None,
    commit: int = 0,
    snapshot: Snapshot | None = None,
) -> None:
    log.save(state, list(new), commit, snapshot)
    job = log.take()
    assert job is not None
    job.perform(disk)
    log.on_done(job)


def own_snapshot(log: ConsensusLog, disk: FaultyDisk, index: int, term: int, data: bytes = b"state") -> None:
    job = log.put_snapshot(Snapshot(SnapshotMeta(index, term, US), data))
    assert job is not None
    job.perform(disk)
    log.on_snapshot_done(job)


def clean(log: ConsensusLog, disk: FaultyDisk, *in_use: int) -> Cleanup | None:
    job = log.cleanup(in_use)
    if job is not None:
        job.perform(disk)
        log.on_cleaned(job)
    return job


def terms(recovered: Recovered) -> list[tuple[int, int]]:
    return [(entry.index, entry.term) for entry in recovered.entries]


# What was saved comes back


def test_nothing_is_there_at_first() -> None:
    recovered = opened(new_disk())[1]
    assert recovered.last_index == 0
    assert recovered == (HardState(), None, [], 0)


def test_state_and_entries_come_back() -> None:
    disk = new_disk()
    log, _ = opened(disk)
    save(log, disk, *entries(1, 1, 1), state=HardState(1, "a"))
    save(log, disk, Entry(3, 1, Kind.MEMBERSHIP, b"\x00\xff"), commit=2)
    save(log, disk, state=HardState(4, None), commit=3)
    disk.crash()
    log, recovered = opened(disk)
    assert recovered.hard_state == HardState(4, None)
    assert recovered.entries == [*entries(1, 1, 1), Entry(3, 1, Kind.MEMBERSHIP, b"\x00\xff")]
    assert recovered.commit == 3
    save(log, disk, *entries(4, 4))
    assert terms(opened(disk)[1]) == [(1, 1), (2, 1), (3, 1), (4, 4)]


def test_the_vote_comes_back() -> None:
    disk = new_disk()
    log, _ = opened(disk)
    save(log, disk, state=HardState(7, "b"))
    disk.crash()
    assert opened(disk)[1].hard_state == HardState(7, "b")


def test_on_a_real_disk(tmp_path: Path) -> None:
    disk = FileDisk(str(tmp_path))
    assert load_identity(disk, "deep/raft", "uuid-1") == "uuid-1"
    log = ConsensusLog(disk, "deep/raft")
    recovered = log.found(Member("uuid-1", "one", "host:1"))
    raft = Raft("uuid-1", lambda limit: 0, hard_state=recovered.hard_state, entries=recovered.entries)
    raft.campaign()
    while (ready := raft.ready()) is not None:
        if ready.must_sync:
            log.save(ready.hard_state, ready.entries, ready.commit, ready.snapshot)
            job = log.take()
            assert job is not None
            job.perform(disk)
            log.on_done(job)
        raft.advance(ready)
    assert raft.role is Role.LEADER and raft.applied == 2
    disk.close()
    again = FileDisk(str(tmp_path))
    assert load_identity(again, "deep/raft", "uuid-2") == "uuid-1"
    recovered = ConsensusLog(again, "deep/raft").recover()
    assert recovered.hard_state == HardState(2, "uuid-1") and recovered.last_index == 2
    again.close()


def test_a_later_batch_replaces_a_tail() -> None:
    disk = new_disk()
    log, _ = opened(disk)
    save(log, disk, *entries(1, 1, 1, 1, 1))
    save(log, disk, *entries(3, 2))
    disk.crash()
    assert terms(opened(disk)[1]) == [(1, 1), (2, 1), (3, 2)]


def test_one_job_at_a_time() -> None:
    disk = new_disk()
    log, _ = opened(disk)
    assert log.take() is None
    log.save(None, entries(1, 1), 0, None)
    assert log.take() is not None
    assert log.take() is None
    with pytest.raises(AssertionError):
        log.save(None, entries(2, 1), 0, None)


def test_files_are_begun_anew() -> None:
    disk = new_disk()
    log, _ = opened(disk, segment_bytes=100)
    for index in range(1, 21):
        save(log, disk, *entries(index, 1))
    assert len(disk.names("raft")) > 5
    disk.crash()
    assert opened(disk)[1].last_index == 20


def test_a_new_file_is_there_after_a_crash() -> None:
    for seed in range(20):
        disk = new_disk(seed)
        log, _ = opened(disk)
        save(log, disk, *entries(1, 1))
        disk.crash()
        assert opened(disk)[1].last_index == 1


# Snapshots


def test_a_snapshot_replaces_what_is_before_it() -> None:
    disk = new_disk()
    log, _ = opened(disk, segment_bytes=100)
    for index in range(1, 11):
        save(log, disk, *entries(index, 1))
    own_snapshot(log, disk, 8, 1)
    clean(log, disk)
    save(log, disk, *entries(11, 2), state=HardState(2, "b"), commit=10)
    disk.crash()
    log, recovered = opened(disk)
    assert recovered.snapshot == Snapshot(SnapshotMeta(8, 1, US), b"state")
    assert terms(recovered) == [(9, 1), (10, 1), (11, 2)]
    assert recovered.commit == 10 and recovered.hard_state == HardState(2, "b")
    assert log.snapshot_index == 8


def test_the_last_batch_stays_even_if_a_snapshot_has_all() -> None:
    """Or term and vote would be gone with it."""
    disk = new_disk()
    log, _ = opened(disk)
    save(log, disk, *entries(1, 1, 1), state=HardState(5, "b"))
    own_snapshot(log, disk, 2, 1)
    assert clean(log, disk) is None
    log.save(None, entries(3, 5), 0, None)
    job = log.take()
    assert job is not None
    assert clean(log, disk) is None  # The new file is not written yet.
    disk.crash()
    assert opened(disk)[1].hard_state == HardState(5, "b")


def test_a_snapshot_is_due_when_the_log_has_grown() -> None:
    disk = new_disk()
    log, _ = opened(disk, after=100)
    save(log, disk, *entries(1, 1))
    assert not log.snapshot_due(1)
    save(log, disk, *entries(2, 1, data=b"x" * 200))
    assert log.snapshot_due(2)
    own_snapshot(log, disk, 2, 1, b"y" * 1000 * SNAPSHOT_SHARE)
    assert not log.snapshot_due(2)
    save(log, disk, *entries(3, 1, data=b"x" * 500))
    assert not log.snapshot_due(3)  # It would cost more than it saves.
    save(log, disk, *entries(4, 1, data=b"x" * 500))
    assert log.snapshot_due(4)
    disk.crash()
    log = opened(disk, after=100)[0]
    assert log.snapshot_due(4) and not log.snapshot_due(2)


def test_the_leaders_snapshot_voids_the_log() -> None:
    disk = new_disk()
    log, _ = opened(disk)
    save(log, disk, *entries(1, 1, 1, 1, 1, 1, 1, 1, 1))
    save(log, disk, state=HardState(3), snapshot=Snapshot(SnapshotMeta(5, 2, US), b"theirs"), commit=5)
    assert terms(opened(disk)[1]) == []
    save(log, disk, *entries(6, 3))
    disk.crash()
    recovered = opened(disk)[1]
    assert terms(recovered) == [(6, 3)]
    assert recovered.snapshot is not None and recovered.snapshot.data == b"theirs"
    assert recovered.hard_state == HardState(3)


def test_the_leaders_snapshot_is_there_after_a_crash() -> None:
    for seed in range(20):
        disk = new_disk(seed)
        log, _ = opened(disk)
        save(log, disk, state=HardState(1))
        save(log, disk, snapshot=Snapshot(SnapshotMeta(5, 1, US), b"theirs"))
        disk.crash()
        assert opened(disk)[1].last_index == 5


def test_a_crash_between_the_leaders_snapshot_and_its_batch() -> None:
    """The snapshot is on disk, the reset is not: entries of another history must not come back with later batches."""
    disk = new_disk()
    log, _ = opened(disk)
    save(log, disk, *entries(1, 1, 1, 1, 1, 1, 1, 1, 1), state=HardState(2))
    own_snapshot(log, disk, 5, 2)  # As an interrupted install leaves it: entry 5 of the log has term 1.
    disk.crash()
    log, recovered = opened(disk)
    assert terms(recovered) == [] and recovered.last_index == 5 and recovered.commit == 5
    save(log, disk, *entries(6, 2))
    disk.crash()
    assert terms(opened(disk)[1]) == [(6, 2)]


def test_an_older_snapshot_is_not_taken() -> None:
    disk = new_disk()
    log, _ = opened(disk)
    save(log, disk, snapshot=Snapshot(SnapshotMeta(9, 1, US), b"new"))
    assert log.put_snapshot(Snapshot(SnapshotMeta(5, 1, US), b"old")) is None


def test_a_snapshot_being_written_may_be_overtaken() -> None:
    disk = new_disk()
    log, _ = opened(disk)
    save(log, disk, *entries(1, 1, 1, 1))
    job = log.put_snapshot(Snapshot(SnapshotMeta(2, 1, US), b"own"))
    assert job is not None
    assert log.put_snapshot(Snapshot(SnapshotMeta(3, 1, US), b"own")) is None  # One at a time.
    save(log, disk, snapshot=Snapshot(SnapshotMeta(9, 1, US), b"theirs"))
    job.perform(disk)
    log.on_snapshot_done(job)
    assert log.snapshot_index == 9
    clean(log, disk)
    recovered = opened(disk)[1]
    assert recovered.snapshot is not None and recovered.snapshot.data == b"theirs"


def test_chunks_are_read_from_disk() -> None:
    disk = new_disk()
    log, _ = opened(disk)
    save(log, disk, *entries(1, 1, 1))
    own_snapshot(log, disk, 1, 1, b"0123456789")
    own_snapshot(log, disk, 2, 1, b"abc")
    meta = SnapshotMeta(1, 1, US)
    pieces = []
    for offset in (0, 4, 8, 12):
        fill = log.fill(SnapshotChunk("a", "b", 1, meta, offset), 4)
        assert fill is not None
        fill.perform(disk)
        pieces.append(fill.chunk.data)
        assert fill.chunk.total == 10 and fill.chunk.offset == offset
    assert pieces == [b"0123", b"4567", b"89", b""]
    clean(log, disk, 1)  # In use.
    assert log.fill(SnapshotChunk("a", "b", 1, meta, 0), 4) is not None
    assert "snapshot-00000000000000000001" in disk.names("raft")
    clean(log, disk)
    assert log.fill(SnapshotChunk("a", "b", 1, meta, 0), 4) is None
    assert "snapshot-00000000000000000001" not in disk.names("raft")


# A crash at every point


@pytest.mark.parametrize("seed", range(12))
def test_a_crash_at_any_change_loses_nothing_acknowledged(seed: int) -> None:
    for crash_after in range(0, 60, 1):
        disk = new_disk(seed * 1000 + crash_after)
        log, _ = opened(disk, segment_bytes=150)
        acknowledged, state = 0, HardState()
        try:
            disk.crash_after = crash_after
            for index in range(1, 16):
                wanted = HardState(index, "b")
                save(log, disk, *entries(index, 1), state=wanted)
                acknowledged, state = index, wanted
                if index % 4 == 0:
                    own_snapshot(log, disk, index - 1, 1)
                clean(log, disk)
        except Crashed:
            pass
        disk.crash()
        recovered = opened(disk)[1]
        assert recovered.last_index in (acknowledged, acknowledged + 1)
        assert recovered.hard_state.term in (state.term, state.term + 1)


# Torn and damaged


def test_a_torn_batch_is_cut_off() -> None:
    disk = new_disk()
    log, _ = opened(disk)
    save(log, disk, *entries(1, 1, 1))
    whole = disk.size(FIRST)
    save(log, disk, *entries(3, 1))
    disk.truncate(FIRST, disk.size(FIRST) - 3)
    log, recovered = opened(disk)
    assert recovered.last_index == 2
    assert disk.size(FIRST) == whole
    save(log, disk, *entries(3, 2))
    disk.crash()
    assert terms(opened(disk)[1])[-1] == (3, 2)


def test_a_torn_batch_full_of_zeros_is_cut_off() -> None:
    disk = new_disk()
    log, _ = opened(disk)
    save(log, disk, *entries(1, 1, 1))
    end = disk.size(FIRST)
    disk.write(FIRST, end, [bytes(500)])
    assert opened(disk)[1].last_index == 2
    assert disk.size(FIRST) == end


def test_damage_before_a_whole_batch_is_refused() -> None:
    disk = new_disk()
    log, _ = opened(disk)
    save(log, disk, *entries(1, 1))
    middle = disk.size(FIRST)
    save(log, disk, *entries(2, 1))
    end = disk.size(FIRST)
    save(log, disk, *entries(3, 1))
    disk.flip(FIRST, middle + 30, 3)
    with pytest.raises(ConsensusLogDamaged, match=f"{FIRST}: batch 2 at byte {middle} is damaged.* at byte {end}"):
        opened(disk)


def test_every_flipped_bit_is_damage_or_a_torn_last_batch() -> None:
    disk = new_disk()
    log, _ = opened(disk)
    for index in range(1, 4):
        save(log, disk, *entries(index, 1))
    last = disk.size(FIRST) * 2 // 3
    for offset in range(disk.size(FIRST)):
        disk.flip(FIRST, offset, 5)
        if offset < last:
            with pytest.raises(ConsensusLogDamaged):
                opened(disk)
        else:
            stored = disk.read(FIRST, 0, disk.size(FIRST))
            assert opened(disk)[1].last_index == 2
            disk.write(FIRST, 0, [stored])
        disk.flip(FIRST, offset, 5)


def test_damage_at_the_end_of_a_file_that_has_a_successor_is_refused() -> None:
    disk = new_disk()
    log, _ = opened(disk, segment_bytes=1)
    for index in range(1, 4):
        save(log, disk, *entries(index, 1))
    second = "raft/log-00000000000000000002"
    disk.truncate(second, disk.size(second) - 1)
    with pytest.raises(ConsensusLogDamaged, match="batches 2 to 2 before it are missing"):
        opened(disk)


def test_a_missing_file_is_refused() -> None:
    disk = new_disk()
    log, _ = opened(disk, segment_bytes=1)
    for index in range(1, 5):
        save(log, disk, *entries(index, 1))
    disk.delete("raft/log-00000000000000000003")
    with pytest.raises(ConsensusLogDamaged, match="log-00000000000000000004: batches 3 to 3"):
        opened(disk)
    disk.delete("raft/log-00000000000000000004")
    disk.delete(FIRST)
    with pytest.raises(ConsensusLogDamaged, match="entries 1 to 1 are missing"):
        opened(disk)


def test_a_damaged_or_missing_snapshot_is_refused() -> None:
    disk = new_disk()
    log, _ = opened(disk)
    save(log, disk, snapshot=Snapshot(SnapshotMeta(9, 1, US), b"theirs"))
    path = "raft/snapshot-00000000000000000009"
    for offset in (3, 20, 45, disk.size(path) - 1):
        disk.flip(path, offset, 1)
        with pytest.raises(ConsensusLogDamaged, match=f"{path}: the .* not match"):
            opened(disk)
        disk.flip(path, offset, 1)
    disk.rename(path, "raft/snapshot-00000000000000000008")
    with pytest.raises(ConsensusLogDamaged, match="is the snapshot at index 9"):
        opened(disk)
    disk.delete("raft/snapshot-00000000000000000008")
    with pytest.raises(ConsensusLogDamaged, match="after a snapshot at 9, which is missing"):
        opened(disk)


def test_a_command_that_looks_like_a_batch_is_not_one() -> None:
    disk = new_disk()
    log, _ = opened(disk)
    save(log, disk, *entries(1, 1))
    batch = disk.read(FIRST, 0, disk.size(FIRST))
    save(log, disk, *entries(2, 1, data=batch * 3))
    disk.truncate(FIRST, disk.size(FIRST) - 1)  # Torn, with whole batches inside.
    assert opened(disk)[1].last_index == 1


def test_a_strange_name_is_refused() -> None:
    disk = new_disk()
    opened(disk)
    disk.write("raft/log-1", 0, [b""])
    with pytest.raises(ConsensusLogDamaged, match="not a name"):
        opened(disk)


def test_an_unfinished_snapshot_is_deleted() -> None:
    disk = new_disk()
    opened(disk)
    disk.write("raft/snapshot-00000000000000000009.temporary", 0, [b"half"])
    assert opened(disk)[1].snapshot is None
    assert disk.names("raft") == []


# When the disk fails


def test_without_space_the_same_batch_is_tried_again() -> None:
    disk = new_disk()
    log, _ = opened(disk)
    save(log, disk, *entries(1, 1))
    size = disk.size(FIRST)
    disk.capacity_bytes = size + 20
    log.save(HardState(3, "a"), entries(2, 1), 1, None)
    for _ in range(3):
        job = log.take()
        assert job is not None
        with pytest.raises(OSError) as caught:
            job.perform(disk)
        assert caught.value.errno == errno.ENOSPC
        assert log.on_failed(job, caught.value) == "retry"
        assert disk.size(FIRST) == size
    disk.capacity_bytes = 1 << 30
    job = log.take()
    assert job is not None
    job.perform(disk)
    log.on_done(job)
    disk.crash()
    assert opened(disk)[1][::3] == (HardState(3, "a"), 1)


def test_without_space_for_snapshots() -> None:
    disk = new_disk()
    log, _ = opened(disk, after=10)
    save(log, disk, *entries(1, 1))
    disk.capacity_bytes = disk.size(FIRST) + 20
    assert log.snapshot_due(1)
    job = log.put_snapshot(Snapshot(SnapshotMeta(1, 1, US), b"x" * 100))
    assert job is not None
    with pytest.raises(OSError) as caught:
        job.perform(disk)
    assert log.on_snapshot_failed(job, caught.value) == "retry"
    assert not log.snapshot_due(1)  # Not in every turn of a full disk.
    assert disk.names("raft") == [FIRST.partition("/")[2]]
    log.save(None, [], 0, Snapshot(SnapshotMeta(9, 1, US), b"x" * 100))
    batch = log.take()
    assert batch is not None
    with pytest.raises(OSError) as caught:
        batch.perform(disk)
    assert log.on_failed(batch, caught.value) == "retry"
    assert disk.names("raft") == [FIRST.partition("/")[2]]


def test_a_failed_sync_stops_for_good() -> None:
    disk = new_disk()
    log, _ = opened(disk)
    save(log, disk, *entries(1, 1))
    disk.fail_sync_after = 0
    log.save(None, entries(2, 1), 0, None)
    job = log.take()
    assert job is not None
    with pytest.raises(OSError) as caught:
        job.perform(disk)
    assert log.on_failed(job, caught.value) == "stopped"
    assert log.take() is None and log.cleanup() is None and not log.snapshot_due(1)
    assert log.put_snapshot(Snapshot(SnapshotMeta(1, 1, US), b"x")) is None
    with pytest.raises(ConsensusLogStopped):
        log.save(None, entries(2, 1), 0, None)


def test_what_a_failed_sync_left_readable_is_made_durable_at_the_next_start() -> None:
    disk = new_disk()
    log, _ = opened(disk)
    save(log, disk, *entries(1, 1, data=b"x" * 700))
    disk.fail_sync_after = 0
    log.save(HardState(4, "b"), entries(2, 1, data=b"y" * 2000), 0, None)
    job = log.take()
    assert job is not None
    with pytest.raises(OSError):
        job.perform(disk)
    assert opened(disk)[1].last_index == 2  # The process alone was restarted: the kernel shows what it has.
    disk.crash()
    recovered = opened(disk)[1]
    assert recovered.last_index == 2 and recovered.hard_state == HardState(4, "b")


# Identity, founding, forcing


def test_the_identity_is_made_once() -> None:
    disk = new_disk()
    assert load_identity(disk, "raft", "one") == "one"
    disk.crash()
    assert load_identity(disk, "raft", "two") == "one"
    opened(disk)
    disk.flip("raft/identity", 1, 1)
    with pytest.raises(ConsensusLogDamaged, match="raft/identity: does not match"):
        load_identity(disk, "raft", "three")


def test_a_lost_identity_beside_a_log_is_refused() -> None:
    disk = new_disk()
    load_identity(disk, "raft", "one")
    log, _ = opened(disk)
    save(log, disk, *entries(1, 1))
    disk.delete("raft/identity")
    with pytest.raises(ConsensusLogDamaged, match="is missing, and the log beside it is not"):
        load_identity(disk, "raft", "two")


def test_an_interrupted_first_start_begins_again() -> None:
    for seed in range(30):
        disk = new_disk(seed)
        disk.crash_after = seed % 6
        try:
            load_identity(disk, "raft", "one")
        except Crashed:
            pass
        disk.crash()
        assert load_identity(disk, "raft", "two") in ("one", "two")


def test_force_alone_makes_a_node_lead_that_has_no_majority() -> None:
    disk = new_disk()
    log, _ = opened(disk)
    save(log, disk, snapshot=Snapshot(SnapshotMeta(5, 2, US), b"state"), state=HardState(3, "b"))
    save(log, disk, *entries(6, 3, 3))
    member = Member("a", "node a", "host:9")
    recovered = ConsensusLog(disk, "raft").force_alone(member)
    disk.crash()
    assert opened(disk)[1][0] == recovered.hard_state == HardState(4, None)
    raft = Raft(
        "a",
        lambda limit: 0,
        hard_state=recovered.hard_state,
        snapshot=recovered.meta,
        entries=recovered.entries,
        commit=recovered.commit,
    )
    assert raft.membership == Membership((member,))
    raft.campaign()
    while (ready := raft.ready()) is not None:
        raft.advance(ready)
    assert raft.role is Role.LEADER and raft.applied == 9  # Two entries, the membership, its own first.


# Would these tests notice?


def checks() -> list[Callable[[], None]]:
    """All tests above that need no arguments."""
    here = [value for name, value in globals().items() if name.startswith("test_") and callable(value)]
    return [value for value in here if not inspect.signature(value).parameters]


LOG_MUTATIONS = [one for one in MUTATIONS if one.noticed_by == "log tests"]


@pytest.mark.parametrize("mutation", LOG_MUTATIONS, ids=lambda one: one.name)
def test_a_deliberate_bug_is_noticed(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, mutation)
    crashes = [partial(test_a_crash_at_any_change_loses_nothing_acknowledged, seed) for seed in range(12)]
    everything: list[Callable[[], None]] = [*checks(), *crashes]
    for check in everything:
        try:
            check()
        except (Exception, Crashed) as error:
            check_meaning(error)
            return
    pytest.fail(f"nobody noticed: {mutation.name}")
