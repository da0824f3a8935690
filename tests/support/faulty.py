"""`leveret server` in a process of its own in which files in a folder cause faults while it runs.

    fail-sync      syncing a file fails from now on, with EIO; what would have been synced is not
    stall-sync     syncing a file takes until this is gone
    clock          by how many seconds the time of day is wrong
    versions       "2 3": the versions of the protocol between nodes that it speaks (read at the start)

Real failed syncs and clock jumps need drivers that most machines lack. So the process's own `os.fdatasync` and `time`
are replaced, and everything else is real: the files, the threads, the links, the other nodes. (A real disk stall is
possible with `fsfreeze`, see `test_disks`, where file systems can be mounted.)

    launcher = (sys.executable, "-m", "tests.support.faulty", FOLDER), before the command that would start the node
"""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

LOOK_S: Final = 0.02


def spoil(folder: Path) -> None:
    sync, time_ns, now, never = os.fdatasync, time.time_ns, time.time, threading.Event()

    def fdatasync(descriptor: int) -> None:
        if (folder / "fail-sync").exists():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        while (folder / "stall-sync").exists():
            never.wait(LOOK_S)
        sync(descriptor)

    def offset_s() -> int:
        try:
            return int((folder / "clock").read_text() or "0")
        except FileNotFoundError:
            return 0

    replacements: dict[tuple[Any, str], Callable[..., Any]] = {
        (os, "fdatasync"): fdatasync,
        (time, "time_ns"): lambda: time_ns() + offset_s() * 1_000_000_000,
        (time, "time"): lambda: now() + offset_s(),
    }
    for (module, name), function in replacements.items():
        setattr(module, name, function)


def speak(versions: tuple[int, int]) -> None:
    from leveret.node.sockets.peer_socket import PeersOptions

    of_link = PeersOptions.of_link
    PeersOptions.of_link = lambda self: of_link(self)._replace(versions=versions)  # type: ignore[method-assign]


def main() -> int:
    folder, arguments = Path(sys.argv[1]), sys.argv[2:]
    assert arguments[1:3] == ["-m", "leveret"], arguments
    spoil(folder)
    if (folder / "versions").exists():
        low, high = (folder / "versions").read_text().split()
        speak((int(low), int(high)))
    from leveret.cli.main import main as leveret

    return leveret(arguments[3:])


if __name__ == "__main__":
    sys.exit(main())
