"""A disk forgets exactly what was not synced."""

from __future__ import annotations

import errno
import stat

import pytest

from faults.machines.forgetful import SECTOR, ForgetfulDisk
from faults.machines.fuse import ROOT, Later, Refused

FILE, FOLDER = stat.S_IFREG | 0o640, stat.S_IFDIR | 0o750


def names(disk: ForgetfulDisk, folder: int = ROOT) -> list[str]:
    return [name for name, _ in disk.names(folder)]


def content(disk: ForgetfulDisk, name: str) -> bytes:
    return disk.read(disk.lookup(ROOT, name).number, 0, 1 << 20)


def stored(disk: ForgetfulDisk, name: str, data: bytes = b"") -> int:
    number = disk.make(ROOT, name, FILE).number
    disk.write(number, 0, data)
    disk.sync(number)
    disk.sync(ROOT)
    return number


def test_what_was_not_synced_is_gone() -> None:
    disk = ForgetfulDisk()
    number = stored(disk, "a", b"one")
    disk.write(number, 3, b"two")
    disk.write(number, 0, b"X")
    assert content(disk, "a") == b"Xnetwo"
    assert disk.lose(1, 0.0) == 4
    assert content(disk, "a") == b"one"


def test_a_truncation_needs_a_sync_too() -> None:
    disk = ForgetfulDisk()
    number = stored(disk, "a", b"abcdef")
    disk.resize(number, 2)
    disk.lose(1, 0.0)
    assert content(disk, "a") == b"abcdef"
    disk.resize(number, 2)
    disk.sync(number)
    disk.lose(1, 0.0)
    assert content(disk, "a") == b"ab"


def test_entries_need_a_sync_of_their_folder() -> None:
    disk = ForgetfulDisk()
    stored(disk, "kept")
    number = disk.make(ROOT, "new", FILE).number
    disk.write(number, 0, b"x")
    disk.sync(number)  # The file, not its folder.
    disk.remove(ROOT, "kept", False)
    assert names(disk) == ["new"]
    disk.lose(1, 0.0)
    assert names(disk) == ["kept"]


def test_entries_that_are_stored_with_their_files() -> None:
    disk = ForgetfulDisk()
    disk.stores_entries_with_files = True
    folder = disk.make(ROOT, "folder", FOLDER).number
    number = disk.make(folder, "a", FILE).number
    disk.make(ROOT, "empty", FOLDER)
    disk.sync(number)
    disk.make(ROOT, "late", FILE)
    disk.lose(1, 0.0)
    assert names(disk) == ["empty", "folder"] and names(disk, folder) == ["a"]


def test_a_rename_happens_or_not() -> None:
    for seed in range(20):
        disk = ForgetfulDisk()
        stored(disk, "old", b"1")
        stored(disk, "other", b"2")
        disk.rename(ROOT, "old", ROOT, "other")
        disk.lose(seed, 0.5)
        found = {name: content(disk, name) for name in names(disk)}
        assert found in ({"old": b"1", "other": b"2"}, {"other": b"1"})


def test_a_folder_that_was_not_synced_takes_its_files_along() -> None:
    disk = ForgetfulDisk()
    folder = disk.make(ROOT, "folder", FOLDER).number
    number = disk.make(folder, "a", FILE).number
    disk.sync(number)
    disk.sync(folder)
    disk.lose(1, 0.0)
    assert names(disk) == []
    with pytest.raises(Refused):
        disk.attributes(number)


def test_torn_writes_keep_whole_sectors() -> None:
    shapes = set()
    for seed in range(30):
        disk = ForgetfulDisk()
        number = stored(disk, "a", b"." * 4 * SECTOR)
        disk.write(number, 100, b"x" * 2 * SECTOR)
        disk.lose(seed, 0.5)
        after = content(disk, "a")
        sectors = [after[100:SECTOR], after[SECTOR : 2 * SECTOR], after[2 * SECTOR : 2 * SECTOR + 100]]
        assert all(len(set(sector)) == 1 for sector in sectors)
        assert after[:100] == b"." * 100 and after[2 * SECTOR + 100 :] == b"." * (2 * SECTOR - 100)
        shapes.add(bytes(sector[0] for sector in sectors))
    assert len(shapes) > 4


def test_a_failed_sync_is_not_made_up_for_by_the_next() -> None:
    disk = ForgetfulDisk()
    number = stored(disk, "a", b"one")
    disk.write(number, 0, b"two")
    disk.is_failing = True
    with pytest.raises(Refused) as caught:
        disk.sync(number)
    assert caught.value.number == errno.EIO
    disk.is_failing = False
    disk.sync(number)
    assert content(disk, "a") == b"two"
    disk.lose(1, 0.0)
    assert content(disk, "a") == b"one"


def test_a_disk_that_stalls_and_one_that_is_full() -> None:
    disk = ForgetfulDisk()
    number = stored(disk, "a", b"one")
    disk.is_stalled = True
    with pytest.raises(Later):
        disk.write(number, 0, b"two")
    with pytest.raises(Later):
        disk.sync(number)
    disk.is_stalled, disk.is_full = False, True
    with pytest.raises(Refused) as caught:
        disk.write(number, 0, b"two")
    assert caught.value.number == errno.ENOSPC and disk.free_bytes()[0] == 0
    assert content(disk, "a") == b"one"


def test_a_slow_sync_is_done_later() -> None:
    disk = ForgetfulDisk()
    number = stored(disk, "a", b"one")
    disk.sync_s = 0.01
    disk.write(number, 0, b"two")
    with pytest.raises(Later):
        disk.sync(number)
    assert disk.unsynced_bytes() == 3
    disk.sync_now(number)
    assert disk.unsynced_bytes() == 0


def test_a_disk_that_lies_says_that_it_has_synced() -> None:
    disk = ForgetfulDisk()
    number = stored(disk, "a", b"one")
    disk.is_lying = True
    disk.write(number, 0, b"two")
    disk.sync(number)
    disk.lose(1, 0.0)
    assert content(disk, "a") == b"one"
