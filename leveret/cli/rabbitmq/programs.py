"""Runs one of RabbitMQ's programs, by its name."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

from leveret.base.exit_codes import USAGE

CTL = ("rabbitmqctl", "rabbitmq-diagnostics", "rabbitmq-queues", "rabbitmq-streams", "rabbitmq-upgrade")


def main(program: str) -> NoReturn:
    """Called by the files that `leveret names` makes."""
    sys.exit(run(program, sys.argv[1:]))


def run(program: str, words: Sequence[str]) -> int:
    if program == "rabbitmq-server":
        from leveret.cli.rabbitmq.server import server

        return server(words)
    if program in CTL:
        from leveret.cli.ctl.main import main as ctl

        return ctl(words)
    if program == "rabbitmq-plugins":
        from leveret.cli.ctl.main import PLUGIN_COMMANDS
        from leveret.cli.ctl.main import main as ctl

        return ctl(words, PLUGIN_COMMANDS)
    if program == "rabbitmqadmin":
        from leveret.cli.rabbitmq.admin import admin

        return admin(words)
    print(f"leveret: there is no program {program}", file=sys.stderr)
    return USAGE
