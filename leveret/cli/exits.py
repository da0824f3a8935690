"""What a command ends with: sysexits.h, as RabbitMQ's tools have it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

OK = 0
USAGE = 64
DATA_ERROR = 65
UNAVAILABLE = 69
SOFTWARE = 70
CONFIG = 78
INTERRUPTED = 130


def guarded(program: str, run: Callable[[], int]) -> int:
    """The exit code of a program, also where it does not get to its end."""
    try:
        return run()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of the output, `head` for one, has seen enough. Python would complain once more when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return INTERRUPTED
    except Exception:
        import traceback

        traceback.print_exc()
        print(f"{program}: this is a fault of the program; the lines above say where", file=sys.stderr)
        return SOFTWARE
