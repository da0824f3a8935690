"""Runs `leveret` in a process whose time of day is wrong by as much as a file says.

    python -m faults.machines.false_clock FILE server --data …

`time.time` and `time.time_ns` are replaced; clocks that do not jump are not. RabbitMQ has libfaketime instead,
with which `time.sleep(0)` fails in Python.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path


def falsify(file: Path) -> None:
    now, now_ns = time.time, time.time_ns

    def offset_s() -> int:
        return int(file.read_text().strip().rstrip("s"))

    time.time = lambda: now() + offset_s()
    time.time_ns = lambda: now_ns() + offset_s() * 1_000_000_000


def main() -> int:
    falsify(Path(sys.argv[1]))
    from leveret.cli.main import main as leveret

    return leveret(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
