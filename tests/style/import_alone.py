"""Imports each module that standard input names, in a process of its own, and prints those that fail."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from pathlib import Path

# What many modules import from outside is loaded once, before the processes part.
PRELOADED = ("asyncio", "ssl", "json", "logging.handlers", "argparse", "h11", "uvloop", "zlib_ng", "http.client")


def import_alone(name: str) -> bool:
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] == 0
    try:
        importlib.import_module(name)
    except BaseException:
        print(name)
        traceback.print_exc(limit=-3, file=sys.stdout)
        sys.stdout.flush()
        os._exit(1)
    os._exit(0)


def main() -> int:
    sys.path.insert(0, str(Path(__file__).parents[2]))
    for name in PRELOADED:
        importlib.import_module(name)
    failed = [name for name in sys.stdin.read().split() if not import_alone(name)]
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
