"""`leveret names DIR`: makes RabbitMQ's programs, for scripts, images and test tools that call them by name.

Each is a file of a few lines that calls `leveret.cli.rabbitmq.programs` with the Python that made it. They are not
installed with the package: on a machine that has RabbitMQ, too, one of the two would hide the other.
"""

from __future__ import annotations

import os
import sys
from typing import Final

from leveret.base.exit_codes import OK, UNAVAILABLE

PROGRAMS: Final = (
    "rabbitmq-server", "rabbitmqctl", "rabbitmq-diagnostics", "rabbitmq-queues", "rabbitmq-streams",
    "rabbitmq-upgrade", "rabbitmq-plugins", "rabbitmqadmin",
)  # fmt: skip
# The shell starts Python, because a first line may name no path that has spaces or is long.
SCRIPT: Final = """\
#!/bin/sh
'''exec' '{python}' "$0" "$@"
' '''
# Made by leveret names.
from leveret.cli.rabbitmq.programs import main

main("{program}")
"""
MARK: Final = "# Made by leveret names."


def names(folder: str, force: bool) -> int:
    """Makes the programs in a folder. A file that is something else is left alone, unless `force`."""
    try:
        os.makedirs(folder, exist_ok=True)
        for program in PROGRAMS:
            path = os.path.join(folder, program)
            if not force and os.path.lexists(path) and not _is_ours(path):
                print(f"leveret: {path} exists, and was not made by leveret; --force replaces it", file=sys.stderr)
                return UNAVAILABLE
            _make(path, SCRIPT.format(python=sys.executable, program=program))
    except OSError as error:
        print(f"leveret: {error.filename or folder}: {error.strerror or error}", file=sys.stderr)
        return UNAVAILABLE
    print(f"{folder}: {', '.join(PROGRAMS)}")
    return OK


def _is_ours(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return MARK.encode() in file.read(1_000)
    except OSError:
        return False


def _make(path: str, text: str) -> None:
    unfinished = f"{path}.new"
    with open(unfinished, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(unfinished, 0o755)
    os.replace(unfinished, path)
