from __future__ import annotations

import errno
from random import Random

import pytest

from leveret.cluster import commands as c
from leveret.cluster.codec import COMMAND_BYTES_MAX
from leveret.cluster.store import Metadata
from leveret.log.disk import FileDisk
from leveret.node import journal as module
from leveret.node.journal import Journal, JournalDamaged, JournalFull, JournalStopped, WriteBatch, WriteSnapshot
from tests.node.forgetful_disk import Crash, ForgetfulDisk

FIRST = "metadata/commands-00000000000000000001"


def command(number: int) -> c.Command:
    return c.SetGlobalParameter(f"p{number}", "x" * (number % 50))


def fill(journal: Journal, disk: ForgetfulDisk, *batches: int) -> None:
    """Write so many commands in each batch, numbered on."""
    for count in batches:
        for _ in range(count):
            journal.append(command(journal.last_index + 1))
        run(journal, disk)


def run(journal: Journal, disk: ForgetfulDisk) -> None:
    job = journal.take()
    assert job is not None
    job.perform(disk)
    journal.on_done(job)


def started(disk: ForgetfulDisk) -> Journal:
    journal = Journal(disk, "metadata")
    journal.recover()
    return journal


def recovered(disk: ForgetfulDisk) -> list[c.Command]:
    snapshot, commands = Journal(disk, "metadata").recover()
    assert snapshot is None
    return commands


def test_commands_come_back_in_order() -> None:
    disk = ForgetfulDisk()
    fill(started(disk), disk, 1, 3, 2)
    assert recovered(disk) == [command(number) for number in range(1, 7)]
    again = started(disk)
    assert again.last_index == again.durable_index == 6
    fill(again, disk, 1)
    assert recovered(disk) == [command(number) for number in range(1, 8)]


def test_on_a_real_disk(tmp_path: object) -> None:
    disk = FileDisk(str(tmp_path))
    journal = Journal(disk, "deep/metadata")
    assert journal.recover() == (None, [])
    index = journal.append(command(1))
    job = journal.take()
    assert job is not None
    job.perform(disk)
    assert journal.on_done(job) == index
    journal.put_snapshot(1, b"state")
    job = journal.take()
    assert isinstance(job, WriteSnapshot)
    job.perform(disk)
    journal.on_done(job)
    journal.append(command(2))
    job = journal.take()
    assert job is not None
    job.perform(disk)
    disk.close()
    assert Journal(FileDisk(str(tmp_path)), "deep/metadata").recover() == (b"state", [command(2)])


def test_what_gathers_during_a_write_goes_into_the_next() -> None:
    disk = ForgetfulDisk()
    journal = started(disk)
    assert journal.take() is None
    journal.append(command(1))
    first = journal.take()
    assert first is not None
    journal.append(command(2))
    journal.append(command(3))
    assert journal.pending_bytes > 0
    assert journal.take() is None  # One in flight.
    first.perform(disk)
    assert journal.on_done(first) == 1
    second = journal.take()
    assert isinstance(second, WriteBatch) and second.count == 2
    second.perform(disk)
    assert journal.on_done(second) == 3
    assert journal.pending_bytes == 0


def test_a_batch_and_what_waits_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = ForgetfulDisk()
    journal = started(disk)
    monkeypatch.setattr(module, "BATCH_BYTES_MAX", 100)
    monkeypatch.setattr(module, "PENDING_BYTES_MAX", 1000)
    with pytest.raises(JournalFull):
        while True:
            journal.append(command(journal.last_index + 1))
    last = journal.last_index
    jobs = 0
    while journal.durable_index < last:
        run(journal, disk)
        jobs += 1
    assert jobs >= 8
    assert len(recovered(disk)) == last
    assert module.BATCH_BYTES_MAX <= 2 * COMMAND_BYTES_MAX


# When the disk fails


def fail_once(disk: ForgetfulDisk, operation: str, number: int) -> None:
    def plan(what: str, path: str) -> None:
        if what == operation:
            disk.plan = lambda what, path: None
            raise OSError(number, "injected", path)

    disk.plan = plan


def attempt(journal: Journal, disk: ForgetfulDisk) -> str:
    job = journal.take()
    assert job is not None
    with pytest.raises(OSError) as failed:
        job.perform(disk)
    return journal.on_failed(job, failed.value)


@pytest.mark.parametrize("before", [0, 2])
def test_a_full_disk_is_waited_for(before: int) -> None:
    disk = ForgetfulDisk()
    journal = started(disk)
    if before:
        fill(journal, disk, before)
    length = disk.size(FIRST) if before else 0
    journal.append(command(before + 1))
    fail_once(disk, "write", errno.ENOSPC)
    waiting = journal.pending_bytes
    assert attempt(journal, disk) == "retry"
    assert disk.size(FIRST) == length
    assert journal.durable_index == before
    assert journal.pending_bytes == waiting
    journal.append(command(before + 2))
    run(journal, disk)
    assert journal.durable_index == before + 2
    assert recovered(disk) == [command(number) for number in range(1, before + 3)]


@pytest.mark.parametrize(
    ("operation", "number"),
    [("sync", errno.EIO), ("sync", errno.ENOSPC), ("write", errno.EIO), ("sync_folder", errno.EIO)],
)
def test_any_other_failure_is_for_good(operation: str, number: int) -> None:
    disk = ForgetfulDisk()
    journal = started(disk)
    journal.append(command(1))
    fail_once(disk, operation, number)
    assert attempt(journal, disk) == "stopped"
    assert journal.durable_index == 0
    assert journal.take() is None and not journal.snapshot_due
    with pytest.raises(JournalStopped):
        journal.append(command(2))


def test_a_snapshot_without_space_is_given_up_for_a_while() -> None:
    disk = ForgetfulDisk()
    journal = Journal(disk, "metadata", snapshot_after_bytes=400)
    journal.recover()
    while not journal.snapshot_due:
        fill(journal, disk, 1)
    journal.put_snapshot(journal.last_index, b"state" * 50)
    assert not journal.snapshot_due
    fail_once(disk, "write", errno.ENOSPC)
    assert attempt(journal, disk) == "retry"
    assert not journal.snapshot_due
    assert "snapshot.temporary" not in disk.names("metadata")
    while not journal.snapshot_due:
        fill(journal, disk, 1)
    last = journal.last_index
    assert recovered(disk) == [command(number) for number in range(1, last + 1)]
    journal.put_snapshot(last, b"other")
    run(journal, disk)
    assert Journal(disk, "metadata").recover() == (b"other", [])
    assert disk.names("metadata") == [f"snapshot-{last:020}"]


def test_a_snapshot_that_fails_after_its_writing_stops_the_journal() -> None:
    disk = ForgetfulDisk()
    journal = started(disk)
    fill(journal, disk, 2)
    journal.put_snapshot(2, b"state")
    fail_once(disk, "sync", errno.EIO)
    assert attempt(journal, disk) == "stopped"


# Snapshots


def test_a_snapshot_replaces_the_commands_before_it() -> None:
    disk = ForgetfulDisk()
    journal = started(disk)
    fill(journal, disk, 2, 2)
    journal.put_snapshot(4, b"four")
    run(journal, disk)
    assert disk.names("metadata") == ["snapshot-00000000000000000004"]
    fill(journal, disk, 1)
    assert Journal(disk, "metadata").recover() == (b"four", [command(5)])
    journal.put_snapshot(5, b"five")
    run(journal, disk)
    fill(journal, disk, 1)
    assert disk.names("metadata") == ["commands-00000000000000000006", "snapshot-00000000000000000005"]
    assert Journal(disk, "metadata").recover() == (b"five", [command(6)])


def test_a_snapshot_may_be_older_or_newer_than_what_is_written() -> None:
    disk = ForgetfulDisk()
    journal = started(disk)
    fill(journal, disk, 4)
    journal.put_snapshot(2, b"two")
    run(journal, disk)
    assert journal.durable_index == 4
    assert Journal(disk, "metadata").recover() == (b"two", [command(3), command(4)])
    journal.append(command(5))
    journal.append(command(6))
    journal.put_snapshot(6, b"six")
    run(journal, disk)
    assert journal.durable_index == 6  # By the snapshot alone.
    assert Journal(disk, "metadata").recover() == (b"six", [])


def test_snapshots_become_due_as_their_size_allows() -> None:
    disk = ForgetfulDisk()
    journal = Journal(disk, "metadata", snapshot_after_bytes=300)
    journal.recover()
    while not journal.snapshot_due:
        fill(journal, disk, 1)
    assert 300 < disk.size(FIRST) < 400
    journal.put_snapshot(journal.last_index, b"." * 1000)
    run(journal, disk)
    start = journal.last_index + 1
    while not journal.snapshot_due:
        fill(journal, disk, 1)
    assert 1000 < disk.size(f"metadata/commands-{start:020}") < 1100


# Damage


def test_a_torn_tail_is_cut_off() -> None:
    disk = ForgetfulDisk()
    fill(started(disk), disk, 2)
    whole = disk.size(FIRST)
    fill(started(disk), disk, 3)
    torn = disk.read(FIRST, 0, disk.size(FIRST))
    for length in range(whole, len(torn)):
        disk.write(FIRST, 0, [torn])
        disk.truncate(FIRST, length)
        assert recovered(disk) == [command(1), command(2)]
        assert disk.size(FIRST) == whole
        fill(started(disk), disk, 1)
        assert recovered(disk) == [command(1), command(2), command(3)]
        disk.truncate(FIRST, whole)


def test_damage_before_the_last_batch_is_refused() -> None:
    disk = ForgetfulDisk()
    journal = started(disk)
    fill(journal, disk, 2)
    middle = disk.size(FIRST)
    fill(journal, disk, 1)
    last = disk.size(FIRST)
    fill(journal, disk, 2)
    for offset in range(last):
        disk.flip(FIRST, offset, 0x11)
        at = 0 if offset < middle else middle
        with pytest.raises(JournalDamaged, match=f"{FIRST}: the batch at byte {at} is damaged; .* at byte"):
            recovered(disk)
        disk.flip(FIRST, offset, 0x11)
    assert len(recovered(disk)) == 5


def test_a_command_cannot_pass_for_a_batch() -> None:
    """A client puts the bytes of a batch into a name; they stay text when the batch around them is torn."""
    disk = ForgetfulDisk()
    journal = started(disk)
    fake = b"".join(module.pack_batch(9, [b"[]"])).decode("utf-8", "surrogateescape")
    fill(journal, disk, 1)
    journal.append(c.SetGlobalParameter("p", fake + fake.encode("utf-8", "surrogateescape").decode("latin-1")))
    run(journal, disk)
    disk.flip(FIRST, disk.size(FIRST) - 1, 1)
    assert recovered(disk) == [command(1)]


def test_missing_and_strange_files_are_refused() -> None:
    disk = ForgetfulDisk()
    journal = started(disk)
    fill(journal, disk, 2)
    journal.put_snapshot(1, b"one")
    run(journal, disk)
    fill(journal, disk, 2)
    names = disk.names("metadata")
    assert names == ["commands-00000000000000000001", "commands-00000000000000000003", "snapshot-00000000000000000001"]
    contents = {name: disk.read(f"metadata/{name}", 0, 1 << 20) for name in names}

    def broken(what: str) -> None:
        with pytest.raises(JournalDamaged, match=what):
            Journal(disk, "metadata").recover()
        for name, data in contents.items():
            if name in disk.names("metadata"):
                disk.delete(f"metadata/{name}")
            disk.write(f"metadata/{name}", 0, [data])

    disk.delete("metadata/commands-00000000000000000001")
    broken("metadata: commands 2 to 2 are missing; the first file begins with 3")
    disk.delete("metadata/snapshot-00000000000000000001")
    disk.delete("metadata/commands-00000000000000000001")
    broken("metadata: commands 1 to 2 are missing")
    disk.truncate("metadata/commands-00000000000000000001", 5)
    broken("commands-00000000000000000003: commands 1 to 2 before it are missing")
    for offset in range(len(contents["snapshot-00000000000000000001"])):
        disk.flip("metadata/snapshot-00000000000000000001", offset, 1)
        broken("snapshot-00000000000000000001: the snapshot of .* bytes does not match its checksum")
    disk.truncate("metadata/snapshot-00000000000000000001", 3)
    broken("snapshot of 3 bytes")
    disk.write("metadata/notes", 0, [b"of a person"])
    disk.write("metadata/commands-5", 0, [b""])
    broken("metadata/commands-5: not a name this program gives")
    disk.delete("metadata/commands-5")
    assert Journal(disk, "metadata").recover().snapshot == b"one"


def test_a_command_of_a_later_version_is_told() -> None:
    disk = ForgetfulDisk()
    disk.write(FIRST, 0, module.pack_batch(1, [b'[1,"NodeStarted","a"]', b'[1,"Teleport"]']))
    with pytest.raises(JournalDamaged, match="command 2 cannot be read: unknown command 'Teleport'"):
        recovered(disk)


# Crashes


class Node:
    """A store that lives by its journal, over crashes, beside a list of all it was ever told."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.disk = ForgetfulDisk()
        self.history: list[c.Command] = []
        self.known = 0  # Up to where somebody has been told that it is done.
        self.countdown = 0
        self.full = 0.0
        self.start()

    def plan(self, operation: str, path: str) -> None:
        self.countdown -= 1
        if self.countdown == 0:
            raise Crash
        if operation == "write" and self.rng.random() < self.full:
            raise OSError(errno.ENOSPC, "injected", path)

    def start(self) -> None:
        self.disk.plan = self.plan
        self.journal = Journal(self.disk, "metadata", snapshot_after_bytes=self.rng.choice((100, 1000)))
        full, self.full = self.full, 0.0  # What recovery writes is there already, and needs no space.
        try:
            snapshot, commands = self.journal.recover()
        finally:
            self.full = full
        self.store = Metadata()
        if snapshot is not None:
            self.store.restore(snapshot)
        for each in commands:
            self.store.apply(each)
        assert self.known <= self.store.index <= len(self.history)
        del self.history[self.store.index :]
        expected = Metadata()
        for each in self.history:
            expected.apply(each)
        assert self.store.snapshot() == expected.snapshot()
        assert self.journal.last_index == self.journal.durable_index == self.store.index
        # What was read may be shown to clients from now on.
        self.known = self.store.index

    def step(self) -> None:
        for _ in range(self.rng.randrange(4)):
            number = self.rng.randrange(6)
            each: c.Command = c.SetGlobalParameter(f"p{number}", self.rng.randrange(9))
            if self.rng.random() < 0.3:
                each = c.ClearGlobalParameter(f"p{number}")  # Often refused, which counts as well.
            self.history.append(each)
            self.store.apply(each)
            assert self.journal.append(each) == self.store.index
        if self.journal.snapshot_due:
            self.journal.put_snapshot(self.store.index, self.store.snapshot())
        job = self.journal.take()
        if job is None:
            return
        try:
            job.perform(self.disk)
        except OSError as error:
            assert self.journal.on_failed(job, error) == "retry"
        else:
            self.known = self.journal.on_done(job)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            try:
                self.step()
            except Crash:
                self.restart()

    def restart(self) -> None:
        while True:
            if self.rng.random() < 0.6:  # Else only the process died, and what was not synced still is not.
                self.disk.crash(self.rng)
            self.countdown = self.rng.choice((0, 3, 4, 5, 6, 20, 60))
            try:
                self.start()
                return
            except Crash:
                continue


@pytest.mark.parametrize("block", range(10))
def test_nothing_acknowledged_is_lost_at_any_crash(block: int) -> None:
    for seed in range(block * 20, block * 20 + 20):
        node = Node(Random(seed))
        node.full = node.rng.choice((0.0, 0.2))
        node.countdown = node.rng.randrange(1, 60)
        try:
            node.run(150)
        except BaseException:
            print(f"seed {seed}")
            raise


def test_a_crash_at_every_single_operation() -> None:
    """The same work again and again, each time cut off one operation later, until it is done without a crash."""
    crashes = 0
    for countdown in range(1, 1000):
        for seed in range(6):  # What survives the crash differs.
            node = Node(Random(7))
            node.countdown = countdown
            try:
                for _ in range(30):
                    node.step()
            except Crash:
                crashes += 1
                node.rng.seed(seed)
                node.restart()
            else:
                assert crashes > 100
                return
    raise AssertionError("the work never ended")
