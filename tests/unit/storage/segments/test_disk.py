from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest

from leveret.storage.segments import disk as module
from leveret.storage.segments.disk import Disk, FileDisk
from simulation.core.disk import Crashed, FaultyDisk


@pytest.fixture(params=["file", "faulty"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    return FileDisk(str(tmp_path)) if request.param == "file" else FaultyDisk(random.Random(1))


def test_files(disk: Disk) -> None:
    assert disk.names("a/b") == []
    disk.make_folder("a/b")
    disk.write("a/b/x", 0, [b"hello", b"", b" world"])
    disk.write("a/b/x", 6, [b"W"])
    assert disk.read("a/b/x", 0, 100) == b"hello World"
    assert disk.read("a/b/x", 6, 3) == b"Wor"
    assert disk.read("a/b/x", 50, 3) == b""
    assert disk.size("a/b/x") == 11
    disk.sync("a/b/x")
    disk.rename("a/b/x", "a/b/y")
    disk.write("a/b/x", 0, [b"another"])
    assert disk.read("a/b/y", 0, 5) == b"hello"
    disk.truncate("a/b/y", 2)
    assert disk.read("a/b/y", 0, 5) == b"he"
    assert disk.names("a/b") == ["x", "y"] and disk.names("a") == ["b"]
    disk.delete("a/b/x")
    disk.sync_folder("a/b")
    assert disk.names("a/b") == ["y"]
    assert disk.free_bytes() > 0
    with pytest.raises(OSError) as caught:
        disk.read("a/b/x", 0, 1)
    assert caught.value.errno == errno.ENOENT


def test_many_buffers_and_files_over_the_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_DESCRIPTORS_MAX", 3)
    disk = FileDisk(str(tmp_path))
    pieces = [bytes((index % 256,)) * (index % 7) for index in range(5000)]
    for name in "abcdefgh":
        disk.write(name, 3, pieces)
    for name in "abcdefgh":
        assert disk.read(name, 3, 1 << 20) == b"".join(pieces)
    assert len(disk._handles) <= 3
    disk.close()
    assert not disk._handles


def faulty() -> FaultyDisk:
    disk = FaultyDisk(random.Random(7), sector_bytes=4)
    disk.make_folder("f")
    return disk


def test_synced_bytes_and_names_survive_a_crash() -> None:
    disk = faulty()
    disk.write("f/x", 0, [b"12345678"])
    disk.sync("f/x")
    disk.sync_folder("f")
    for _ in range(20):
        disk.write("f/x", 4, [b"abcdefgh"])
        disk.rename("f/x", "f/y")
        disk.crash()
        [name] = disk.names("f")
        assert disk.read(f"f/{name}", 0, 4) == b"1234"
        assert disk.read(f"f/{name}", 4, 4) in (b"5678", b"abcd")
        disk.write(f"f/{name}", 4, [b"5678"])
        disk.truncate(f"f/{name}", 8)
        disk.sync(f"f/{name}")
        disk.rename(f"f/{name}", "f/x")
        disk.sync_folder("f")


def test_unsynced_names_may_vanish() -> None:
    outcomes = set()
    for seed in range(20):
        disk = FaultyDisk(random.Random(seed))
        disk.make_folder("f")
        disk.write("f/x", 0, [b"1"])
        disk.sync("f/x")
        disk.crash()
        outcomes.add(tuple(disk.names("f")))
    assert outcomes == {(), ("x",)}


def test_a_failed_sync_loses_its_pages_for_good() -> None:
    disk = faulty()
    disk.write("f/x", 0, [b"1234"])
    disk.sync("f/x")
    disk.sync_folder("f")
    disk.write("f/x", 0, [b"abcd"])
    disk.fail_sync_after = 0
    with pytest.raises(OSError) as caught:
        disk.sync("f/x")
    assert caught.value.errno == errno.EIO
    disk.sync("f/x")
    assert disk.read("f/x", 0, 4) == b"abcd"
    disk.crash()
    assert disk.read("f/x", 0, 4) == b"1234"


def test_full_disk_takes_what_fits() -> None:
    disk = faulty()
    disk.capacity_bytes = 6
    with pytest.raises(OSError) as caught:
        disk.write("f/x", 0, [b"12345678"])
    assert caught.value.errno == errno.ENOSPC
    assert disk.read("f/x", 0, 8) == b"123456"


def test_crash_at_a_change() -> None:
    disk = faulty()
    disk.crash_after = 1
    disk.write("f/x", 0, [b"1"])
    with pytest.raises(Crashed):
        disk.write("f/x", 0, [b"2"])
