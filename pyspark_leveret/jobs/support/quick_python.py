"""A Python for Spark's processes that starts in a third of the time.

Spark has its Python processes import its own part from a zip file, which has no bytecode: all of it is compiled again
whenever one starts. A session starts several, and fails if one takes more than ten seconds, as happens on a machine
with much else to do. What pip has installed is the same, with bytecode. So they are started by a script that leaves the
zip file out of the path.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Final

_SCRIPT: Final = """#!/bin/sh
PYTHONPATH=$(printf %s "$PYTHONPATH" | tr : '\\n' | grep -v '/pyspark[.]zip$' | paste -s -d : -) exec {} "$@"
"""


def quick_python(folder: Path) -> str:
    """Makes the script in a folder, and returns its path; that of this Python if files there cannot be executed."""
    path = folder / "python"
    path.write_text(_SCRIPT.format(shlex.quote(sys.executable)))
    path.chmod(0o700)
    return str(path) if os.access(path, os.X_OK) else sys.executable
