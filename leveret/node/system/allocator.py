"""Decides how much freed memory the process keeps, and returns the rest to the system.

Python takes memory from two places. Objects of up to 512 bytes live in *arenas* of its own, of a megabyte each: one is
given back when the last object in it is gone. All that is larger (contents, long lists, buffers) comes from the C
library's `malloc`, which keeps what is freed for later calls, because to return it and to fetch it again costs time.
After a backlog is gone that can be gigabytes, and to the system, to a container's limit and to our own memory alarm
they are still in use.

So the node looks every `memory_monitor_interval` at how much `malloc` keeps. If that has grown by `TRIM_BYTES` since it
was last returned, and had at the look before, it is returned (`malloc_trim`): whole pages, wherever in the heap they
lie. So what a busy node frees and takes again at once is not returned.

For the same reason `malloc` itself is told to keep as much (`keep_freed_memory`). By default it returns the end of its
heap as soon as some hundred kilobytes are free there. A node that reads and forgets messages of 64 KiB would fetch most
of its pages anew with each read, which took a tenth of its time.

What remains are arenas of which some objects still live. They are used again before new memory is taken.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final, NamedTuple

TRIM_BYTES: Final = 32 << 20
STEP_BYTES: Final = 1 << 20  # By this much the heap grows.
# What is larger has pages of its own, which the system fetches and clears each time. The highest value that is allowed.
APART_BYTES: Final = 32 << 20
# Parameters of mallopt, from malloc.h.
_M_TRIM_THRESHOLD: Final = -1
_M_TOP_PAD: Final = -2
_M_MMAP_THRESHOLD: Final = -3


class Heap(NamedTuple):
    """The figures of the C library's heap."""

    used_bytes: int  # Handed out.
    free_bytes: int  # Freed. Of that, pages that were returned occupy no memory.


class _Mallinfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


def _function(name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(ctypes.CDLL(None), name, None)
    if function is not None:
        function.restype, function.argtypes = result, list(arguments)
    return function


# None where the C library is another than glibc, or an old one.
_MALLINFO: Final = _function("mallinfo2", _Mallinfo)
_TRIM: Final = _function("malloc_trim", ctypes.c_int, ctypes.c_size_t)
_SET: Final = _function("mallopt", ctypes.c_int, ctypes.c_int, ctypes.c_int)


def heap() -> Heap | None:
    """Returns the figures of the heap; None where they are not known."""
    if _MALLINFO is None:
        return None
    found = _MALLINFO()
    return Heap(found.uordblks + found.hblkhd, found.fordblks)


def keep_freed_memory() -> None:
    """Has the heap keep up to `TRIM_BYTES` at its end, where the C library can."""
    if _TRIM is not None and _SET is not None:  # What can not be returned later is not kept either.
        _SET(_M_TRIM_THRESHOLD, TRIM_BYTES)
        _SET(_M_TOP_PAD, STEP_BYTES)
        _SET(_M_MMAP_THRESHOLD, APART_BYTES)


def release_memory() -> None:
    """Returns freed memory to the system, where the C library can."""
    if _TRIM is not None:
        _TRIM(0)


class Trimmer:
    """Decides when it is worth returning memory, and does it."""

    def __init__(self) -> None:
        self.returned_bytes = 0  # What was free, and returned, the last time; less, if some of it is used again.
        self.unused_bytes = 0  # What is free and still occupies memory, as of the last look.

    def look(self) -> bool:
        """Returns whether much is free, and was at the last look too."""
        now = heap()
        if now is None:
            return False
        self.returned_bytes = min(self.returned_bytes, now.free_bytes)
        before, self.unused_bytes = self.unused_bytes, now.free_bytes - self.returned_bytes
        return min(before, self.unused_bytes) > TRIM_BYTES

    def trim(self) -> None:
        release_memory()
        now = heap()
        self.returned_bytes = 0 if now is None else now.free_bytes
        self.unused_bytes = 0
