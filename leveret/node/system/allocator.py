"""Returns memory that was freed to the system.

Python takes memory from two places. Objects of up to 512 bytes live in *arenas* of its own, of a megabyte each: one is
given back when the last object in it is gone. All that is larger (contents, long lists, buffers) comes from the C
library's `malloc`, which keeps what is freed for later calls, because to return it and to fetch it again costs time.
After a backlog is gone that can be gigabytes, and to the system, to a container's limit and to our own memory alarm
they are still in use.

So the node looks every `memory_monitor_interval` at how much `malloc` keeps. If that has grown by `TRIM_BYTES` since it
was last returned, and had at the look before, it is returned (`malloc_trim`): whole pages, wherever in the heap they
lie. So what a busy node frees and takes again at once is not returned.

What remains are arenas of which some objects still live. They are used again before new memory is taken.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final, NamedTuple

TRIM_BYTES: Final = 32 << 20


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


def heap() -> Heap | None:
    """Returns the figures of the heap; None where they are not known."""
    if _MALLINFO is None:
        return None
    found = _MALLINFO()
    return Heap(found.uordblks + found.hblkhd, found.fordblks)


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
