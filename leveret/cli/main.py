"""`leveret`: runs the command that the first word names, and loads only the code of that command.

A node should be ready in half a second, including the interpreter, so a command imports what it needs when it runs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from leveret import __version__
from leveret.base.exit_codes import OK, USAGE
from leveret.cli.guard import guarded

DESCRIPTION = """\
Leveret is a message broker that works with RabbitMQ's clients, tools and configuration files.
"""

EXAMPLES = """\
examples:
  leveret server                               run a node at 127.0.0.1:5672, with its data in ~/.leveret
  leveret server --port 5673 --data /tmp/try   run a second node beside it
  leveret server --join 127.0.0.1:25672 ...    join the cluster of a node; see leveret server --help
  leveret cluster start --data /tmp/hares      run three nodes on this machine
  leveret server --config rabbitmq.conf        use the configuration file of a RabbitMQ node
  leveret config check rabbitmq.conf           check a file, and show the settings it makes
  leveret log check ~/.leveret/leveret@localhost
                                               check the stored messages of a stopped node
  leveret recover ~/.leveret/leveret@localhost
                                               repair a node that does not start because files are damaged
  leveret perf -z 10 -f persistent -c 1000     put a load on any AMQP broker, and measure
  leveret pipeline audit                       find lost messages, with Spark; see leveret pipeline --help
  source <(leveret completion bash)            complete commands and options with TAB

Each command has its own --help.
"""

SERVER = """\
Runs one node in the foreground. It logs to stderr, prints "ready" with its addresses when clients can connect, and
stops in an orderly way on SIGTERM or Ctrl-C.
"""

SERVER_EXAMPLES = """\
examples:
  leveret server
  leveret server --name rabbit@one --port 5673 --data /var/lib/leveret/one
  leveret server --host 0.0.0.0 --config /etc/rabbitmq/rabbitmq.conf
  LEVERET_FSYNC=interval LEVERET_DEFAULT_USER=ann LEVERET_DEFAULT_PASS=... leveret server

a cluster:
  leveret server --name one@hostA --host 0.0.0.0 --cookie-file /etc/leveret.cookie
  leveret server --name two@hostB --host 0.0.0.0 --cookie-file /etc/leveret.cookie --join hostA:25672
all cores of a machine, as one service: see docs/scaling.md
  leveret server --processes 4
All nodes need the same cookie, a secret in a file that only its owner may read (or LEVERET_COOKIE). --join names the
cluster port of any member; a node that has data is already a member and ignores it. Alternatively, give every node the
same list; then they can be started at once, in any order, and form one cluster:
  cluster_formation.classic_config.nodes.1 = one@hostA
  cluster_formation.classic_config.nodes.2 = two@hostB:25672
or set cluster_formation.peer_discovery_backend = dns, with cluster_formation.dns.hostname and
cluster_formation.target_cluster_size_hint (the number of nodes). The node with the smallest name in the list founds the
cluster; without it, the others wait (discovery_retry_limit times discovery_retry_interval) and stop.
A node that is silent for net_ticktime (4 seconds) counts as down.

Every setting can be given in four ways; the first one found is used:
  an option            --port 5673
  LEVERET_<KEY>        LEVERET_PORT=5673, LEVERET_MAX_MESSAGE_SIZE=16MiB (dots of the key become _)
  RABBITMQ_*           RABBITMQ_NODE_PORT, RABBITMQ_NODENAME, RABBITMQ_CONFIG_FILE, ... as in RabbitMQ
  the file             heartbeat = 30: RabbitMQ's keys, and these: fsync, fsync_interval, segment_bytes,
                       content_cache_bytes, unauthenticated_connections_max, node_name, data_dir, host, port,
                       join, cookie, cookie_file, management_port, cluster.listener, cluster.port,
                       cluster.advertised_host, cluster.priority, cluster.operation_timeout,
                       cluster.refused_connection_is_proof,
                       cluster.ssl_options.* (TLS between nodes)
A key that is unknown, has a bad value, or asks for a feature that this version does not have stops the start.

exit codes: 0 stopped, 64 wrong usage, 65 stored data is damaged (see leveret recover), 69 an address is in use or no
            cluster was found, 70 internal error, 78 the configuration is not valid
"""

WITNESS = """\
Runs a witness: a voter of a cluster that keeps no queues and serves no clients. With two nodes and a witness on a third
machine, the loss of any one of the three leaves a majority. Prints "ready" when it has a vote. SIGTERM stops it.
"""

WITNESS_EXAMPLES = """\
examples:
  leveret witness --name witness@gamma --host 0.0.0.0 --cluster-host gamma --cookie-file /etc/leveret/cookie \\
      --join alpha:25672
leveretctl cluster_status lists it. To remove it, stop it and run leveretctl forget_cluster_node NAME at a node.

exit codes: those of leveret server
"""

CLUSTER_START = """\
Runs a cluster of N nodes on this machine, each in a process of its own, and stays in the foreground. Node i listens at
base port + i - 1. Prints "ready" with the ports when clients can connect to all of them. Ctrl-C or SIGTERM stops all
nodes in an orderly way. A node that dies is reported, not restarted.
"""

CLUSTER_EXAMPLES = """\
examples:
  leveret cluster start --data /tmp/hares
  leveret cluster start --data /tmp/hares                 later: the same nodes with their data
  leveret cluster start --data /tmp/hares --nodes 5       two more nodes join
  leveret cluster start --data /tmp/burrow --base-port 0  a second cluster, at free ports
  leveret cluster status --data /tmp/hares
  leveret cluster stop --data /tmp/hares
  LEVERET_FSYNC=never leveret cluster start --data /tmp/hares    variables apply to every node

The data of node i is in DIR/leveret<i>, its log in DIR/leveret<i>.log, the cookie of the cluster in DIR/cookie.
"""


RECOVER = """\
Repairs a node that does not start because stored messages or metadata are damaged. Damaged files are moved to
DIR/damaged, never deleted; everything else stays. When the node is then started as usual, it gets messages of mirrored
queues from their masters, and metadata from the other members. Damaged messages that only this node had are lost; they
are listed.
"""

RECOVER_EXAMPLES = """\
examples:
  leveret recover /var/lib/leveret/one
  leveret recover /var/lib/leveret/one --from hostB:25672
`leveret log check DIR` only checks the messages and changes nothing.

exit codes: 0 the node can be started, 64 wrong usage, 65 no other node has what is missing, 69 the node is running
"""

TRANSFER = """\
Moves all ready messages from queues of one AMQP broker, such as RabbitMQ, to the queues of the same names on another. A
message is acknowledged at the source when the target has confirmed it: if the transfer is interrupted, no message is
lost, and some may be there twice. Stop the publishers and consumers of the queues, or move them to the target, first.
"""

TRANSFER_EXAMPLES = """\
examples:
  leveret transfer --from amqp://ann:secret@old-host/ --to amqp://ann:secret@127.0.0.1/ --queue orders --queue carts
  leveret transfer --from amqp://ann:secret@old-host/shop --to amqp://ann:secret@127.0.0.1/shop \\
      --definitions definitions.json          all queues of the vhost shop in a file of rabbitmqctl export_definitions
  leveret transfer --from @old.uri --to env:NEW_URI --queue orders
                      takes the addresses from a file and a variable: every user can read command lines
docs/migrating-from-rabbitmq.md describes a whole migration.

exit codes: 0 moved, 64 wrong usage, 65 the file of definitions cannot be read, 69 a broker refused or closed the
            connection, 78 TLS failed
"""


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(USAGE, f"{self.prog}: {message}\nTry: {self.prog} --help\n")


def main(arguments: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words[:1] == ["pipeline"]:  # Its jobs have parsers of their own, which need Spark's packages.
        from leveret.cli.pipeline import pipeline

        return guarded("leveret", lambda: pipeline(words[1:]))
    parser = build_parser()
    parsed = parser.parse_args(words)
    if parsed.command is None:
        parser.print_help(sys.stderr)
        return USAGE
    return guarded("leveret", lambda: run(parsed))


def run(parsed: argparse.Namespace) -> int:
    match parsed.command:
        case "server":
            from leveret.cli.server import server

            return server(parsed)
        case "witness":
            from leveret.cli.server import witness

            return witness(parsed)
        case "cluster":
            from leveret.cli.cluster import cluster

            return cluster(parsed)
        case "config":
            from leveret.cli.config import check_config

            return check_config(parsed.file, parsed.all)
        case "log":
            from leveret.cli.log import check_log, repair_log

            return repair_log(parsed.folder) if parsed.action == "repair" else check_log(parsed.folder)
        case "recover":
            from leveret.cli.recover import recover

            return recover(parsed.folder, parsed.members)
        case "perf":
            from leveret.cli.perf import perf

            return perf(parsed)
        case "transfer":
            from leveret.cli.transfer import transfer

            return transfer(parsed)
        case "names":
            from leveret.cli.names import names

            return names(parsed.folder, parsed.force)
        case "completion":
            from leveret.cli.completion import script

            print(script("leveret", parsed.shell))
            return OK
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
    _add_witness(commands)
    _add_cluster(commands)
    _add_config(commands)
    _add_log(commands)
    _add_recover(commands)
    _add_perf(commands)
    _add_transfer(commands)
    commands.add_parser("pipeline", help="run a job of the data pipeline, with Spark", allow_abbrev=False)
    _add_names(commands)
    _add_completion(commands)
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
    # The values are checked with those of the file and the environment, by the same rules.
    server.add_argument("--name", metavar="NAME", help="name of the node (leveret@localhost)")
    server.add_argument("--data", metavar="DIR", help="data folder (~/.leveret/NAME)")
    server.add_argument("--host", metavar="HOST", help="address to listen at (127.0.0.1)")
    server.add_argument("--port", metavar="PORT", help="port for AMQP, 0 for any free port (5672)")
    server.add_argument("--config", metavar="FILE", help="configuration in the form of rabbitmq.conf")
    server.add_argument("--cluster-port", metavar="PORT", help="port for other nodes and leveretctl (PORT + 20000)")
    server.add_argument("--cluster-host", metavar="HOST", help="host that other nodes connect to (that of --host)")
    server.add_argument("--cookie-file", metavar="FILE", help="the secret that all nodes share (DIR/cookie)")
    server.add_argument(
        "--join", metavar="HOST:PORT", action="append", help="cluster port of a node to join; several can be given"
    )
    server.add_argument("--priority", metavar="0..255", help="in elections of the Raft leader; the highest wins (0)")
    server.add_argument("--processes", metavar="N", help="nodes that share this machine and its ports (1)")
    server.add_argument("--management-port", metavar="PORT", help="port for HTTP, 0 for any, or none (PORT + 10000)")


def _add_witness(commands: argparse._SubParsersAction[Parser]) -> None:
    witness = commands.add_parser(
        "witness",
        help="run a third voter for a cluster of two nodes",
        description=WITNESS,
        epilog=WITNESS_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    witness.add_argument("--name", metavar="NAME", help="name of the witness (leveret@localhost)")
    witness.add_argument("--data", metavar="DIR", help="data folder (~/.leveret/NAME)")
    witness.add_argument("--host", metavar="HOST", help="address to listen at (127.0.0.1)")
    witness.add_argument("--cluster-port", metavar="PORT", help="port for other nodes (25672)")
    witness.add_argument("--cluster-host", metavar="HOST", help="host that nodes connect to (that of --host)")
    witness.add_argument("--cookie-file", metavar="FILE", help="the secret that all nodes share (DIR/cookie)")
    witness.add_argument("--config", metavar="FILE", help="configuration in the form of rabbitmq.conf")
    witness.add_argument(
        "--join", metavar="HOST:PORT", action="append", default=[], type=_address, help="cluster port of a node"
    )


def _add_cluster(commands: argparse._SubParsersAction[Parser]) -> None:
    cluster = commands.add_parser(
        "cluster",
        help="run a whole cluster on this machine",
        description="Runs a whole cluster on this machine. Example: leveret cluster start --nodes 3 --data /tmp/hares",
        allow_abbrev=False,
    )
    actions = cluster.add_subparsers(dest="action", metavar="ACTION", required=True)
    start = actions.add_parser(
        "start",
        help="start a new cluster, or the one in the folder",
        description=CLUSTER_START,
        epilog=CLUSTER_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    start.add_argument("--nodes", metavar="N", help="number of nodes (3, or as many as the folder has)")
    start.add_argument("--host", metavar="HOST", help="address to listen at (127.0.0.1)")
    start.add_argument("--base-port", metavar="PORT", help="AMQP port of the first node, 0 for any free ports (5672)")
    start.add_argument("--cluster-base-port", metavar="PORT", help="cluster port of the first (base port + 20000)")
    start.add_argument("--management-base-port", metavar="PORT", help="HTTP port of the first (base port + 10000)")
    stop = actions.add_parser(
        "stop",
        help="stop all nodes, from another terminal",
        description="Stops all nodes, and waits until they have ended. Example: leveret cluster stop --data /tmp/hares",
        allow_abbrev=False,
    )
    status = actions.add_parser(
        "status",
        help="show which nodes are running, and where",
        description="Prints a line for each node. Exit code 69 if one of them is not running. Example: leveret cluster"
        " status --data /tmp/hares",
        allow_abbrev=False,
    )
    for action in (start, stop, status):
        action.add_argument("--data", metavar="DIR", required=True, help="folder of the cluster: data, logs, cookie")


def _add_config(commands: argparse._SubParsersAction[Parser]) -> None:
    config = commands.add_parser(
        "config",
        help="check a configuration file",
        description="Checks a configuration file. Example: leveret config check /etc/rabbitmq/rabbitmq.conf",
        allow_abbrev=False,
    )
    actions = config.add_subparsers(dest="action", metavar="ACTION", required=True)
    check = actions.add_parser(
        "check",
        help="report the errors of a file, or the settings it makes",
        description="Reads FILE and the environment like `leveret server --config FILE`, and prints the settings that"
        " differ from the defaults, as lines of such a file, with the place where each was set. Exit code 78 if the"
        " configuration is not valid, or names a folder that cannot be used. Example: leveret config check"
        " /etc/rabbitmq/rabbitmq.conf",
        allow_abbrev=False,
    )
    check.add_argument("file", metavar="FILE")
    check.add_argument("--all", action="store_true", help="print all settings, also those with their default value")


def _add_log(commands: argparse._SubParsersAction[Parser]) -> None:
    log = commands.add_parser(
        "log",
        help="check or repair the stored messages of a stopped node",
        description="Checks or repairs the stored messages of a stopped node. Example: leveret log check"
        " /var/lib/leveret/one",
        allow_abbrev=False,
    )
    actions = log.add_subparsers(dest="action", metavar="ACTION", required=True)
    check = actions.add_parser(
        "check",
        help="read all stored messages and report damage",
        description="Reads and verifies every byte of the node's log, and changes nothing. Exit code 65 if it is"
        " damaged. Example: leveret log check /var/lib/leveret/one",
        allow_abbrev=False,
    )
    repair = actions.add_parser(
        "repair",
        help="remove damaged parts, so that the node starts again",
        description="Removes damaged parts of the node's log, keeps the rest, and lists what is lost. To keep the"
        " damaged files, use leveret recover. Example: leveret log repair /var/lib/leveret/one",
        allow_abbrev=False,
    )
    for action in (check, repair):
        action.add_argument("folder", metavar="DIR", help="data folder of the node, which must not be running")


def _add_recover(commands: argparse._SubParsersAction[Parser]) -> None:
    recover = commands.add_parser(
        "recover",
        help="repair a stopped node with damaged files, with the help of other nodes",
        description=RECOVER,
        epilog=RECOVER_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    recover.add_argument("folder", metavar="DIR", help="data folder of the node, which must not be running")
    recover.add_argument(
        "--from",
        dest="members",
        metavar="HOST:PORT",
        type=_address,
        action="append",
        default=[],
        help="cluster port of another member, if the damaged metadata does not name one (may be repeated)",
    )


def _address(text: str) -> str:
    from leveret.node.cluster.consensus import split_address

    try:
        host, _ = split_address(text)
    except ValueError:
        host = ""
    if not host:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT")
    return text


def _add_perf(commands: argparse._SubParsersAction[Parser]) -> None:
    from leveret.perf import arguments

    perf = commands.add_parser(
        "perf",
        help="put a load on a broker, and measure it",
        description=arguments.DESCRIPTION,
        epilog=arguments.EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        add_help=False,  # -h is the address, as in PerfTest.
    )
    arguments.add_arguments(perf)


def _add_transfer(commands: argparse._SubParsersAction[Parser]) -> None:
    transfer = commands.add_parser(
        "transfer",
        help="move messages from another broker to this one",
        description=TRANSFER,
        epilog=TRANSFER_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    transfer.add_argument(
        "--from",
        metavar="URI",
        required=True,
        dest="source",
        help="amqp://user:password@host/vhost, or @FILE or env:NAME that has it",
    )
    transfer.add_argument("--to", metavar="URI", required=True, dest="target", help="the target, in the same form")
    transfer.add_argument("--queue", metavar="NAME", action="append", default=[], help="a queue; several can be given")
    transfer.add_argument("--definitions", metavar="FILE", help="move all queues of the source's vhost in this file")


def _add_names(commands: argparse._SubParsersAction[Parser]) -> None:
    names = commands.add_parser(
        "names",
        help="make rabbitmq-server, rabbitmqctl and RabbitMQ's other programs, for scripts that call them",
        description="Makes files in DIR with the names of RabbitMQ's programs, which run Leveret instead:"
        " rabbitmq-server, rabbitmqctl, rabbitmq-diagnostics, rabbitmq-queues, rabbitmq-streams, rabbitmq-upgrade,"
        " rabbitmq-plugins and rabbitmqadmin. Example: leveret names ~/leveret-bin",
        allow_abbrev=False,
    )
    names.add_argument("folder", metavar="DIR")
    names.add_argument("--force", action="store_true", help="replace files that are not Leveret's")


def _add_completion(commands: argparse._SubParsersAction[Parser]) -> None:
    completion = commands.add_parser(
        "completion",
        help="print a completion script for a shell",
        description="For bash, in this shell: source <(leveret completion bash). For zsh, save it as _leveret in a"
        " folder of $fpath; for fish, as ~/.config/fish/completions/leveret.fish. See also: leveretctl completion",
        allow_abbrev=False,
    )
    completion.add_argument("shell", choices=["bash", "zsh", "fish"])
