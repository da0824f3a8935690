"""RabbitMQ's programs, where they are installed: which they are, and how rabbitmqctl is run."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from typing import Final

# Debian's wrappers in the path would start them as another user, so the programs behind them come first.
SERVERS: Final = ("/usr/lib/rabbitmq/bin/rabbitmq-server", "rabbitmq-server")
CONTROLS: Final = ("/usr/lib/rabbitmq/bin/rabbitmqctl", "rabbitmqctl")


class ControlError(Exception):
    """rabbitmqctl is missing, has failed, or took too long; the text says which."""


def first_program(programs: Sequence[str]) -> str | None:
    return next((found for found in map(shutil.which, programs) if found), None)


def server_program() -> str | None:
    """Returns rabbitmq-server, if it can be run here."""
    return first_program(SERVERS) if shutil.which("epmd") else None


def plain_environment() -> dict[str, str]:
    """Returns the environment without settings of either broker."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("LEVERET_", "RABBITMQ_"))}


def control(
    words: Sequence[str],
    environment: Mapping[str, str],
    timeout_s: float,
    options: Sequence[str] = (),
    launcher: Sequence[str] = (),
) -> str:
    """Runs rabbitmqctl and returns what it prints. `launcher`: a command that runs it, in another namespace say. Raises
    ControlError."""
    program = first_program(CONTROLS)
    if program is None:
        raise ControlError("rabbitmqctl is not where rabbitmq-server is")
    try:
        done = subprocess.run(
            [*launcher, program, *options, *words],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ControlError(f"rabbitmqctl {words[0]} took more than {timeout_s:g} s") from None
    said = done.stdout.decode(errors="replace")
    if done.returncode:
        raise ControlError(f"rabbitmqctl {words[0]} failed:\n{said[-2_000:]}")
    return said
