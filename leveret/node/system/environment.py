"""The interface between a node and its machine: clocks, random numbers, files, sockets, threads.

A node uses them only through its `Environment`, so that the simulation can replace it: with a clock that jumps, a disk
that forgets what was not synced, a network with partitions. `RealEnvironment` is the one in production.
"""

from __future__ import annotations

import asyncio
import os
import random
import resource
import secrets
import time
from collections.abc import Callable
from typing import Protocol

from leveret.node.system import data_folder
from leveret.node.system.alarms import resident_bytes, total_memory_bytes
from leveret.node.system.allocator import Trimmer
from leveret.node.system.data_folder import Place
from leveret.node.system.disk_thread import DiskThread
from leveret.storage.segments.disk import Disk, FileDisk


class Performer(Protocol):
    """Does work outside the event loop, one piece after the other."""

    def submit(
        self,
        work: Callable[[], None],
        then: Callable[[Exception | None], None],
        wait_s: float = 0.0,
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        """Run `work()` elsewhere, then `then(error)` in the loop. Calls `meanwhile()`, if given, and waits for the
        work, but no longer than `wait_s`: if it is done by then, `then` was called when this returns."""

    def stop(self) -> None:
        """Finish what was submitted, then end."""


class Inherited(Protocol):
    """The locked data folder of another node that has died. That node cannot start until it is released."""

    disk: Disk

    def release(self) -> None: ...


class Environment(Protocol):
    """What one node uses of its machine."""

    loop: asyncio.AbstractEventLoop
    disk: Disk
    random_source: random.Random

    def worker(self, name: str) -> Performer: ...

    def wall_ms(self) -> int:
        """Returns the time of day, which may jump."""

    def precise_s(self) -> float:
        """Returns the time of a clock that never jumps, for short spans."""

    def random_bytes(self, count: int) -> bytes: ...

    def memory_used(self) -> int: ...

    def memory_total(self) -> int: ...

    def descriptors_max(self) -> int:
        """Returns how many files and sockets may be open; -1: there is no limit."""

    def memory_unused(self) -> int:
        """Returns how much memory the allocator keeps though it was freed."""

    def has_unused_memory(self) -> bool:
        """Returns whether that is so much that it should be returned to the system."""

    def release_memory(self) -> None:
        """Returns freed memory to the system. That may take a while; it is done in a thread."""

    def yield_to_writer(self) -> None:
        """Lets another thread have the interpreter now."""

    def yield_processor(self) -> None:
        """Lets another process have the processor now, if one is waiting for it."""

    def place(self) -> Place | None:
        """Returns where the lock is by which others on the same machine see whether this node runs."""

    def is_held(self, place: Place) -> bool:
        """Returns whether the node with that lock can be seen from here, and runs."""

    def take(self, place: Place) -> Inherited | None:
        """Locks the data folder of that node. Returns None if the node runs, or cannot be seen from here."""

    def close(self) -> None:
        """Closes the files, when the node has stopped."""


class RealEnvironment:
    """The machine itself."""

    def __init__(self, loop: asyncio.AbstractEventLoop, data_dir: str, files: FileDisk | None = None) -> None:
        self.loop = loop
        self.files = FileDisk(data_dir) if files is None else files
        self.disk: Disk = self.files
        self.random_source = random.Random()
        self.trimmer = Trimmer()

    def worker(self, name: str) -> Performer:
        return DiskThread(self.loop, name)

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def precise_s(self) -> float:
        return time.perf_counter()

    def random_bytes(self, count: int) -> bytes:
        return secrets.token_bytes(count)

    def memory_used(self) -> int:
        return resident_bytes()

    def memory_total(self) -> int:
        return total_memory_bytes()

    def descriptors_max(self) -> int:
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]

    def memory_unused(self) -> int:
        self.trimmer.look()
        return self.trimmer.unused_bytes

    def has_unused_memory(self) -> bool:
        return self.trimmer.look()

    def release_memory(self) -> None:
        self.trimmer.trim()

    def yield_to_writer(self) -> None:
        time.sleep(0)

    def yield_processor(self) -> None:
        if hasattr(os, "sched_yield"):  # Not every Unix has it.
            os.sched_yield()

    def place(self) -> Place | None:
        return data_folder.place_of(self.files.root)

    def is_held(self, place: Place) -> bool:
        return data_folder.is_held(place)

    def take(self, place: Place) -> Inherited | None:
        return data_folder.take(place)

    def close(self) -> None:
        self.files.close()
