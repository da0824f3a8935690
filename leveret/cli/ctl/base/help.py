"""`leveretctl help`: lists all commands in groups, or shows one command with an example."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from leveret.cli.ctl.base.command import Command
from leveret.cli.ctl.base.parse import FORMATTERS

Style = Callable[[str], str]

GROUPS: Final = (
    "Help", "Nodes", "Cluster", "Users", "Access Control", "Monitoring, observability and health checks", "Parameters",
    "Policies", "Virtual hosts", "Configuration and Environment", "Feature flags", "Operations", "Shovels",
    "Federation", "Queues", "Mirrored queues", "Upgrades and maintenance", "Plugin Management",
)  # fmt: skip

GENERAL: Final = f"""\
The following options are accepted by all commands, before or after their name.

short      | long                    | description
-----------|-------------------------|--------------------------------
-?         | --help                  | displays command help
-n <node>  | --node <node>           | a node on this machine by its name, or name@host:clusterport
           | --host <host>           | host of the node (127.0.0.1)
           | --port <port>           | cluster port of the node (25672)
           | --cookie-file <file>    | file with the cluster's cookie (the cookie in the node's data folder);
           |                         | also LEVERET_COOKIE_FILE, LEVERET_COOKIE
           | --tls-cert-file <file>  | for a cluster port with TLS, with --tls-key-file and --tls-ca-cert-file
-t <n>     | --timeout <n>           | operation timeout in seconds
-q         | --quiet                 | suppress informational messages
-s         | --silent                | suppress informational messages and table header row
           | --no-table-headers      | suppress the table header row
-p <vhost> | --vhost <vhost>         | for commands that are scoped to a virtual host, virtual host to use (/)
           | --formatter <formatter> | {", ".join(FORMATTERS)}
-l         | --longnames             | has no effect: node names are used as they are

Without -n, --host and --port, the command goes to the node leveret@localhost of this user on this machine, or to the
only one that is running. LEVERET_NODE_NAME names another."""

EXAMPLES: Final = """\
  leveretctl status                                     show the state of the local node
  leveretctl list_queues name messages consumers        show how many messages each queue has
  leveretctl -n two@localhost cluster_status            ask another node on this machine
  leveretctl add_user ann < password.txt && leveretctl set_permissions ann '.*' '.*' '.*'
  leveretctl --host 10.0.0.7 --cookie-file cluster.cookie cluster_status
  leveretctl -q check_alarms || echo "there are alarms"
  leveretctl set_log_level debug --category mirroring   then follow the log: leveretctl log_tail_stream
  source <(leveretctl completion bash)                  complete commands, options and columns with TAB

  To make a cluster of two nodes, which need the same cookie (leveret server --cookie-file FILE):
  leveretctl -n two@localhost stop_app
  leveretctl -n two@localhost join_cluster one@localhost
  leveretctl -n two@localhost start_app
  leveretctl await_online_nodes 2"""

EXIT_CODES: Final = """\
  0 success   64 wrong usage   65 bad data   67 no such user   69 not available or refused   70 error   75 timeout
  78 no usable cookie"""


def overview(commands: Iterable[Command], bold: Style) -> str:
    found = list(commands)
    width = max(len(command.name) for command in found) + 2
    parts = [
        "",
        bold("Usage"),
        "",
        "leveretctl [--node <node>] [--timeout <timeout>] [--quiet] <command> [<command options>]",
        "",
        "Available commands:",
        "",
    ]
    for group in GROUPS:
        here = sorted((command for command in found if command.group == group), key=lambda command: command.name)
        if not here:
            continue
        parts += [f"{bold(group)}:", ""]
        parts += [f"   {command.name:{width}}{command.about}" for command in here]
        parts.append("")
    parts += [bold("Examples"), "", EXAMPLES, "", bold("General Options"), "", GENERAL, "", bold("Exit codes"), ""]
    parts += [EXIT_CODES, "", "Use 'leveretctl help <command>' to learn more about a specific command, with an example"]
    return "\n".join(parts)


def usage_line(command: Command) -> str:
    return f"leveretctl [--node <node>] [--quiet] {command.name} {command.usage}".rstrip()


def usage(command: Command, bold: Style) -> str:
    return f"{bold('Usage')}\n\n{usage_line(command)}"


def describe(command: Command, bold: Style) -> str:
    about = command.about if command.about.endswith(".") else f"{command.about}."
    parts = ["", usage(command, bold), "", about]
    if command.more:
        parts += ["", *textwrap.wrap(command.more, 100, break_long_words=False, break_on_hyphens=False)]
    if command.columns:
        parts += ["", bold("Columns"), "", *textwrap.wrap(", ".join(command.columns), 100)]
    parts += ["", bold("Example"), "", f"  {command.example}", "", bold("General Options"), "", GENERAL]
    return "\n".join(parts)


def unknown(name: str, known: Mapping[str, Command]) -> str:
    """Returns the error for an unknown command, with the most similar command if there is one."""
    import difflib

    near = difflib.get_close_matches(name, known, 1, 0.75)
    text = f"\nCommand '{name}' not found."
    if near:
        return f"{text}\nDid you mean '{near[0]}'?\n"
    return f"{text}\nSee 'leveretctl help' for all commands.\n"
