"""`leveret server`."""

from __future__ import annotations

import argparse
import os
import sys

from leveret.base.exit_codes import CONFIG
from leveret.node.config.load import COMMAND, PROCESS, ConfigError, Given, Loaded, load

OPTIONS = {
    "name": "node_name",
    "data": "data_dir",
    "host": "host",
    "port": "port",
    "cluster_port": "cluster.port",
    "cluster_host": "cluster.advertised_host",
    "management_port": "management_port",
    "cookie_file": "cookie_file",
    "priority": "cluster.priority",
    "processes": "processes",
}


def witness(parsed: argparse.Namespace) -> int:
    return server(parsed, as_witness=True)


def server(parsed: argparse.Namespace, as_witness: bool = False) -> int:
    given = [
        Given(key, getattr(parsed, option), COMMAND, "--" + option.replace("_", "-"))
        for option, key in OPTIONS.items()
        if getattr(parsed, option, None) is not None
    ]
    if parsed.join:
        given.append(Given("join", ",".join(parsed.join), COMMAND, "--join"))
    return start(given, parsed.config, as_witness)


def start(given: list[Given], config_file: str | None, as_witness: bool = False) -> int:
    """Runs a node, or a witness, until it stops. Returns the exit code."""
    loaded = load_or_report(given, config_file)
    if loaded is None:
        return CONFIG
    if as_witness:
        from leveret.node.cluster import witness

        if loaded.settings.processes > 1:  # No error: all machines may have the same file.
            print("leveret: warning: processes: has no effect: a witness is one process", file=sys.stderr)
        return witness.run(loaded.settings)
    settings = loaded.settings
    place = os.environ.get(PROCESS)
    if place is None and settings.processes > 1:
        from leveret.cli import processes

        return processes.supervise(settings)
    from leveret.node.server import run

    if place is None:
        return run(settings)
    from leveret.cli import processes

    try:
        settings, members_beside = processes.node_at(settings, place)
    except ValueError as error:
        print(f"leveret: {error}", file=sys.stderr)
        return CONFIG
    return run(settings, members_beside)


def load_or_report(given: list[Given], config_file: str | None) -> Loaded | None:
    """The settings, its warnings printed; or None, its problems printed."""
    try:
        loaded = load(given, os.environ, config_file)
    except ConfigError as error:
        for problem in error.problems:
            print(f"leveret: {problem}", file=sys.stderr)
        return None
    if os.environ.get(PROCESS) is None:  # Else whoever started this process has said it.
        for warning in loaded.warnings:
            print(f"leveret: warning: {warning}", file=sys.stderr)
    return loaded
