"""When freed memory is given back, and that it is."""

from __future__ import annotations

import subprocess
import sys

import pytest

from leveret.node.system import allocator
from leveret.node.system.allocator import TRIM_BYTES, Heap, Trimmer

MIB = 1 << 20


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What the C library would say is free; the last one holds."""
    told = [0]
    monkeypatch.setattr(allocator, "heap", lambda: Heap(100 * MIB, told[-1]))
    monkeypatch.setattr(allocator, "_TRIM", lambda pad: 1)
    return told


def test_little_is_kept_for_the_next_who_asks(free: list[int]) -> None:
    trimmer = Trimmer()
    free.append(TRIM_BYTES)
    assert not trimmer.look()
    assert not trimmer.look() and trimmer.unused_bytes == TRIM_BYTES


def test_what_was_returned_is_not_returned_again(free: list[int]) -> None:
    """To the C library, returned pages are still free."""
    trimmer = Trimmer()
    free.append(500 * MIB)
    assert not trimmer.look()  # It may be wanted at once.
    assert trimmer.look()
    trimmer.trim()
    assert not trimmer.look() and trimmer.unused_bytes == 0
    free.append(500 * MIB + TRIM_BYTES + 1)
    assert not trimmer.look()
    assert trimmer.look()


def test_what_is_used_again_and_freed_again_is_returned_again(free: list[int]) -> None:
    trimmer = Trimmer()
    free.append(500 * MIB)
    trimmer.trim()
    free.append(100 * MIB)
    assert not trimmer.look()
    free.append(400 * MIB)
    trimmer.look()
    assert trimmer.look() and trimmer.unused_bytes == 300 * MIB


def test_another_c_library(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_MALLINFO", "_TRIM"):
        monkeypatch.setattr(allocator, name, None)
    trimmer = Trimmer()
    assert not trimmer.look()
    trimmer.trim()
    assert trimmer.unused_bytes == 0


@pytest.mark.skipif(allocator.heap() is None, reason="the C library does not say what is free")
def test_lists_of_a_backlog_go_back_to_the_system() -> None:
    """In a process of its own, whose heap nothing else has cut up. Between the lists that go are some that stay."""
    program = """
from leveret.node.system.alarms import resident_bytes
from leveret.node.system.allocator import Trimmer
trimmer = Trimmer()
queues = [[] for _ in range(3_000)]
before = resident_bytes()
for _ in range(100):
    for queue in queues:
        queue += [None] * 100
grown = resident_bytes() - before
kept = queues[::250]
del queues, queue
trimmer.look()
assert trimmer.look(), trimmer.unused_bytes
trimmer.trim()
assert not trimmer.look()
print(grown, resident_bytes() - before)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    grown, left = map(int, ended.stdout.split())
    assert grown > 64 * MIB and left < 16 * MIB


@pytest.mark.skipif(allocator.heap() is None, reason="the C library does not say what is free")
def test_what_is_freed_and_taken_again_is_not_fetched_again() -> None:
    """Reads of a quarter of a megabyte, and what is cut out of them. Each page that is fetched is a fault."""
    program = """
import resource
from leveret.node.system.alarms import resident_bytes
from leveret.node.system.allocator import Trimmer, keep_freed_memory
keep_freed_memory()
def use():
    for _ in range(100):
        held = [bytes(250_000) for _ in range(20)]
        kept = [data[:65_536] for data in held]
use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
large = resident_bytes()
Trimmer().trim()
print(large - resident_bytes())
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    faults, returned = map(int, ended.stdout.split())
    assert faults < 1_000, "100 times 1,500 pages are used"
    assert returned > 4 * MIB
