"""Ends a command with an exit code, whatever happens in it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from leveret.base.exit_codes import INTERRUPTED, SOFTWARE


def guarded(program: str, run: Callable[[], int]) -> int:
    """Runs a program and returns its exit code, also when it is interrupted or fails."""
    try:
        return run()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of the output, such as `head`, has closed it. Python would complain again when it flushes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return INTERRUPTED
    except Exception:
        import traceback

        traceback.print_exc()
        print(f"{program}: this is a bug; the lines above show where", file=sys.stderr)
        return SOFTWARE
