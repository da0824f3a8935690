"""Imports each module that standard input names, in a process of its own, and prints those that can be imported.

A line names a module and its *ground*: one of those that it imports. The process of a module is forked from that of its
ground. So nothing is loaded in it but what the module itself imports, and little of that has to be loaded once more for
each. Since no module imports itself through others, it makes no difference that the ground comes before the rest.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
import traceback
from pathlib import Path

# What many modules import from outside is loaded once, before the processes part.
PRELOADED = ("asyncio", "ssl", "json", "logging.handlers", "argparse", "h11", "uvloop", "zlib_ng", "http.client")


def import_alone(name: str, upon: dict[str, list[str]]) -> bool:
    """Imports a module in a new process, and from there each whose ground it is. Returns whether all of them could."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] == 0
    try:
        importlib.import_module(name)
    except BaseException:
        traceback.print_exc(limit=-3)
        sys.stderr.flush()
        os._exit(1)
    os.write(1, f"{name}\n".encode())
    os._exit(0 if import_all(name, upon) else 1)


def import_all(ground: str, upon: dict[str, list[str]]) -> bool:
    return all([import_alone(name, upon) for name in upon.get(ground, ())])


def main() -> int:
    sys.path.insert(0, str(Path(__file__).parents[2]))
    for name in PRELOADED:
        importlib.import_module(name)
    gc.disable()  # What is loaded stays.
    upon: dict[str, list[str]] = {}
    for line in sys.stdin.read().splitlines():
        name, _, ground = line.partition(" ")
        upon.setdefault(ground, []).append(name)
    return 0 if import_all("", upon) else 1


if __name__ == "__main__":
    raise SystemExit(main())
