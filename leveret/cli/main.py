"""`leveret`: the first word chooses a command, and only that command's code is loaded.

A node is to be on its feet in half a second, interpreter included, so what a command needs is imported when it runs.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from leveret import __version__
from leveret.cli.exits import INTERRUPTED, SOFTWARE, USAGE

DESCRIPTION = """\
Leveret is a message broker that RabbitMQ's clients, tools and habits work with unchanged.
"""

EXAMPLES = """\
examples:
  leveret server                               one node at 127.0.0.1:5672, its data in ~/.leveret
  leveret server --port 5673 --data /tmp/try   another one beside it
  leveret server --config rabbitmq.conf        with the configuration file of a RabbitMQ node
  leveret config check rabbitmq.conf           does the file hold, and what does it come to?
  leveret log check ~/.leveret/leveret@localhost

Each command has its own --help.
"""

SERVER = """\
Starts one node in the foreground. It logs to stderr, prints "ready" with its addresses once clients can connect, and
stops in order on SIGTERM or Ctrl-C.
"""

SERVER_EXAMPLES = """\
examples:
  leveret server
  leveret server --name rabbit@one --port 5673 --data /var/lib/leveret/one
  leveret server --host 0.0.0.0 --config /etc/rabbitmq/rabbitmq.conf
  LEVERET_FSYNC=interval LEVERET_DEFAULT_USER=ann LEVERET_DEFAULT_PASS=... leveret server

Every setting can be given in four ways; the first one found holds:
  an option            --port 5673
  LEVERET_<KEY>        LEVERET_PORT=5673, LEVERET_MAX_MESSAGE_SIZE=16MiB (dots of the key become _)
  RABBITMQ_*           RABBITMQ_NODE_PORT, RABBITMQ_NODENAME, RABBITMQ_CONFIG_FILE, ... as RabbitMQ has them
  the file             heartbeat = 30: RabbitMQ's keys, and ours: fsync, fsync_interval, segment_bytes,
                       content_cache_bytes, unauthenticated_connections_max, node_name, data_dir, host, port
A key that is unknown, has a bad value, or asks for what this version cannot do stops the start.

exit codes: 0 stopped in order, 64 wrong use, 70 broken, 78 the configuration does not hold
"""


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(USAGE, f"{self.prog}: {message}\nTry: {self.prog} --help\n")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = build_parser()
    parsed = parser.parse_args(arguments)
    if parsed.command is None:
        parser.print_help(sys.stderr)
        return USAGE
    try:
        return run(parsed)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of the output, `head` for one, has seen enough. Python would complain once more when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return INTERRUPTED
    except Exception:
        import traceback

        traceback.print_exc()
        print("leveret: this is a fault of the program; the lines above say where", file=sys.stderr)
        return SOFTWARE


def run(parsed: argparse.Namespace) -> int:
    match parsed.command:
        case "server":
            from leveret.cli.server import server

            return server(parsed)
        case "config":
            from leveret.cli.config import check_config

            return check_config(parsed.file)
        case "log":
            from leveret.cli.log import check_log, repair_log

            return repair_log(parsed.folder) if parsed.action == "repair" else check_log(parsed.folder)
    raise AssertionError(f"command {parsed.command} has a parser and no code")


def build_parser() -> Parser:
    parser = Parser(
        prog="leveret",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"leveret {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    _add_server(commands)
    _add_config(commands)
    _add_log(commands)
    return parser


def _add_server(commands: argparse._SubParsersAction[Parser]) -> None:
    server = commands.add_parser(
        "server",
        help="run one node of the broker",
        description=SERVER,
        epilog=SERVER_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    reserved = "reserved: this version opens no such listener"
    # The values are checked with those of the file and the environment, by the same rules.
    server.add_argument("--name", metavar="NAME", help="name of the node (leveret@localhost)")
    server.add_argument("--data", metavar="DIR", help="folder of its data (~/.leveret/NAME)")
    server.add_argument("--host", metavar="HOST", help="address to listen at (127.0.0.1)")
    server.add_argument("--port", metavar="PORT", help="port for AMQP, 0 for any (5672)")
    server.add_argument("--config", metavar="FILE", help="configuration in the form of rabbitmq.conf")
    server.add_argument("--cluster-port", metavar="PORT", help=reserved)
    server.add_argument("--management-port", metavar="PORT", help=reserved)
    server.add_argument("--cookie-file", metavar="FILE", help="reserved: this version talks to no other node")
    server.add_argument("--join", metavar="HOST:PORT", help="not available: this version runs as a single node")


def _add_config(commands: argparse._SubParsersAction[Parser]) -> None:
    config = commands.add_parser("config", help="check a configuration file", allow_abbrev=False)
    actions = config.add_subparsers(dest="action", metavar="ACTION", required=True)
    check = actions.add_parser(
        "check",
        help="say what is wrong with a file, or which settings it comes to",
        description="Reads FILE and the environment as `leveret server --config FILE` would, and prints the settings"
        " that hold with where each was given. Exit code 78 if the configuration does not hold.",
        allow_abbrev=False,
    )
    check.add_argument("file", metavar="FILE")


def _add_log(commands: argparse._SubParsersAction[Parser]) -> None:
    log = commands.add_parser("log", help="check or repair the stored messages of a stopped node", allow_abbrev=False)
    actions = log.add_subparsers(dest="action", metavar="ACTION", required=True)
    check = actions.add_parser(
        "check",
        help="read all stored messages and report damage",
        description="Reads every byte of the node's log and verifies it. Changes nothing. Exit code 65 if damaged.",
        allow_abbrev=False,
    )
    repair = actions.add_parser(
        "repair",
        help="cut out what is damaged, so that the node starts again",
        description="Sets damaged parts of the node's log aside and keeps the rest. What is lost is listed.",
        allow_abbrev=False,
    )
    for action in (check, repair):
        action.add_argument("folder", metavar="DIR", help="data folder of the node, which must not be running")
