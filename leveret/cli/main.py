"""`leveret`: the first word chooses a command, and only that command's code is loaded.

A node is to be on its feet in half a second, interpreter included, so what a command needs is imported when it runs.
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
Leveret is a message broker that RabbitMQ's clients, tools and habits work with unchanged.
"""

EXAMPLES = """\
examples:
  leveret server                               one node at 127.0.0.1:5672, its data in ~/.leveret
  leveret server --port 5673 --data /tmp/try   another one beside it
  leveret server --join 127.0.0.1:25672 ...    as a member of a node's cluster; see leveret server --help
  leveret cluster start --data /tmp/hares      three nodes on this machine
  leveret server --config rabbitmq.conf        with the configuration file of a RabbitMQ node
  leveret config check rabbitmq.conf           does the file hold, and what does it come to?
  leveret log check ~/.leveret/leveret@localhost
  leveret recover ~/.leveret/leveret@localhost   a node that does not start, for its files are damaged
  leveret perf -z 10 -f persistent -c 1000     how fast is it? A load for any AMQP broker
  leveret pipeline audit                       was anything lost? A job for Spark; see leveret pipeline --help
  source <(leveret completion bash)            the TAB key completes commands and options from now on

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

a cluster:
  leveret server --name one@hostA --host 0.0.0.0 --cookie-file /etc/leveret.cookie
  leveret server --name two@hostB --host 0.0.0.0 --cookie-file /etc/leveret.cookie --join hostA:25672
All nodes need the same cookie, a secret in a file that only its owner may read (or LEVERET_COOKIE). --join names the
cluster port of any member; a node that has data of its own stays in its cluster and ignores it. Instead, every node can
be given the same list; then they can be started all at once, and form one cluster when all are there:
  cluster_formation.classic_config.nodes.1 = one@hostA
  cluster_formation.classic_config.nodes.2 = two@hostB:25672
or cluster_formation.peer_discovery_backend = dns, with cluster_formation.dns.hostname, and
cluster_formation.target_cluster_size_hint = the number of nodes. A node without data whose list names it the smallest
founds the cluster; if it is missing, the others wait (discovery_retry_limit times discovery_retry_interval) and stop.
net_ticktime (4 seconds) is the silence after which a node counts as gone.

Every setting can be given in four ways; the first one found holds:
  an option            --port 5673
  LEVERET_<KEY>        LEVERET_PORT=5673, LEVERET_MAX_MESSAGE_SIZE=16MiB (dots of the key become _)
  RABBITMQ_*           RABBITMQ_NODE_PORT, RABBITMQ_NODENAME, RABBITMQ_CONFIG_FILE, ... as RabbitMQ has them
  the file             heartbeat = 30: RabbitMQ's keys, and ours: fsync, fsync_interval, segment_bytes,
                       content_cache_bytes, unauthenticated_connections_max, node_name, data_dir, host, port,
                       join, cookie, cookie_file, management_port, cluster.listener, cluster.port,
                       cluster.advertised_host, cluster.priority, cluster.operation_timeout,
                       cluster.refused_connection_is_proof,
                       cluster.ssl_options.* (TLS between nodes)
A key that is unknown, has a bad value, or asks for what this version cannot do stops the start.

exit codes: 0 stopped in order, 64 wrong use, 65 stored data is damaged (see leveret recover), 69 an address is taken or
            no cluster was found, 70 broken, 78 the configuration does not hold
"""

WITNESS = """\
Runs a witness: a voter of a cluster that keeps no queues and serves no clients. With two nodes and a witness on a third
machine, the loss of any one of the three leaves a majority. Prints "ready" when it counts. SIGTERM stops it.
"""

WITNESS_EXAMPLES = """\
examples:
  leveret witness --name witness@gamma --host 0.0.0.0 --cluster-host gamma --cookie-file /etc/leveret/cookie \\
      --join alpha:25672
leveretctl cluster_status at a node lists it. To remove it: stop it, then at a node: leveretctl forget_cluster_node NAME

exit codes: as leveret server
"""

CLUSTER_START = """\
Starts a cluster of N nodes on this machine, each a `leveret server` of its own, and stays in the foreground. Node i
listens at base port + i - 1. Prints "ready" with the ports once clients can connect to all of them. Ctrl-C or SIGTERM
stops all nodes in order. A node that dies is reported, not started again.
"""

CLUSTER_EXAMPLES = """\
examples:
  leveret cluster start --data /tmp/hares
  leveret cluster start --data /tmp/hares                 again: the same nodes with their data
  leveret cluster start --data /tmp/hares --nodes 5       two more nodes join
  leveret cluster start --data /tmp/burrow --base-port 0  beside it, at free ports
  leveret cluster status --data /tmp/hares
  leveret cluster stop --data /tmp/hares
  LEVERET_FSYNC=never leveret cluster start --data /tmp/hares    variables hold for every node

The data of node i is in DIR/leveret<i>, its log in DIR/leveret<i>.log, the cookie of all in DIR/cookie.
"""


RECOVER = """\
For a node that does not start because stored messages or metadata are damaged. What is damaged is set aside in
DIR/damaged, never deleted; what is good stays. Messages of mirrored queues come back from their masters, metadata comes
back from the other members, when the node is started as usual. Messages that only this node had, and that are damaged,
are lost; they are listed.
"""

RECOVER_EXAMPLES = """\
examples:
  leveret recover /var/lib/leveret/one
  leveret recover /var/lib/leveret/one --from hostB:25672
`leveret log check DIR` looks at the messages and changes nothing.

exit codes: 0 the node can be started, 64 wrong use, 65 nobody has what would be needed, 69 the node is running
"""

TRANSFER = """\
Moves all messages that wait in queues of one AMQP broker, a RabbitMQ say, into the queues of the same names of another.
A message is acknowledged at the source when the target has confirmed it: if this is interrupted, none is lost, and some
may be there twice. Consumers and publishers of the queues should be stopped, or have moved already.
"""

TRANSFER_EXAMPLES = """\
examples:
  leveret transfer --from amqp://ann:secret@old-host/ --to amqp://ann:secret@127.0.0.1/ --queue orders --queue carts
  leveret transfer --from amqp://ann:secret@old-host/shop --to amqp://ann:secret@127.0.0.1/shop \\
      --definitions definitions.json          all queues of the vhost shop in a file of rabbitmqctl export_definitions
  leveret transfer --from @old.uri --to env:NEW_URI --queue orders
                      addresses from a file and from a variable: a command line can be read by everybody on the machine
docs/migrating-from-rabbitmq.md has the whole way.

exit codes: 0 moved, 64 wrong use, 65 no such file of definitions, 69 a broker refused or went away, 78 TLS
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
    server.add_argument("--data", metavar="DIR", help="folder of its data (~/.leveret/NAME)")
    server.add_argument("--host", metavar="HOST", help="address to listen at (127.0.0.1)")
    server.add_argument("--port", metavar="PORT", help="port for AMQP, 0 for any (5672)")
    server.add_argument("--config", metavar="FILE", help="configuration in the form of rabbitmq.conf")
    server.add_argument("--cluster-port", metavar="PORT", help="port for other nodes and leveretctl (PORT + 20000)")
    server.add_argument("--cluster-host", metavar="HOST", help="host under which other nodes reach it (that of --host)")
    server.add_argument("--cookie-file", metavar="FILE", help="the secret that all nodes share (DIR/cookie)")
    server.add_argument(
        "--join", metavar="HOST:PORT", action="append", help="cluster port of a node to join; several can be given"
    )
    server.add_argument("--priority", metavar="0..255", help="in elections; the node with the highest leads (0)")
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
    witness.add_argument("--name", metavar="NAME", help="its name in the cluster (leveret@localhost)")
    witness.add_argument("--data", metavar="DIR", help="its folder (~/.leveret/NAME)")
    witness.add_argument("--host", metavar="HOST", help="address to listen at (127.0.0.1)")
    witness.add_argument("--cluster-port", metavar="PORT", help="port for the nodes (25672)")
    witness.add_argument("--cluster-host", metavar="HOST", help="host under which nodes reach it (that of --host)")
    witness.add_argument("--cookie-file", metavar="FILE", help="the secret that all nodes share (DIR/cookie)")
    witness.add_argument("--config", metavar="FILE", help="configuration in the form of rabbitmq.conf")
    witness.add_argument(
        "--join", metavar="HOST:PORT", action="append", default=[], type=_address, help="cluster port of a node"
    )


def _add_cluster(commands: argparse._SubParsersAction[Parser]) -> None:
    cluster = commands.add_parser("cluster", help="run a whole cluster on this machine", allow_abbrev=False)
    actions = cluster.add_subparsers(dest="action", metavar="ACTION", required=True)
    start = actions.add_parser(
        "start",
        help="start its nodes, or go on with those of the folder",
        description=CLUSTER_START,
        epilog=CLUSTER_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    start.add_argument("--nodes", metavar="N", help="how many nodes (3, or as many as the folder has)")
    start.add_argument("--host", metavar="HOST", help="address to listen at (127.0.0.1)")
    start.add_argument("--base-port", metavar="PORT", help="AMQP port of the first node, 0 for any free ones (5672)")
    start.add_argument("--cluster-base-port", metavar="PORT", help="cluster port of the first (base port + 20000)")
    start.add_argument("--management-base-port", metavar="PORT", help="HTTP port of the first (base port + 10000)")
    stop = actions.add_parser("stop", help="stop all nodes, from another terminal", allow_abbrev=False)
    status = actions.add_parser(
        "status",
        help="which nodes run, and where",
        description="A line for each node. Exit code 69 if one of them is not running.",
        allow_abbrev=False,
    )
    for action in (start, stop, status):
        action.add_argument("--data", metavar="DIR", required=True, help="folder of the cluster: data, logs, cookie")


def _add_config(commands: argparse._SubParsersAction[Parser]) -> None:
    config = commands.add_parser("config", help="check a configuration file", allow_abbrev=False)
    actions = config.add_subparsers(dest="action", metavar="ACTION", required=True)
    check = actions.add_parser(
        "check",
        help="say what is wrong with a file, or which settings it comes to",
        description="Reads FILE and the environment as `leveret server --config FILE` would, and prints the settings"
        " that are not as by default, in the form of such a file, with where each was given. Exit code 78 if the"
        " configuration does not hold, or names a folder that cannot be used.",
        allow_abbrev=False,
    )
    check.add_argument("file", metavar="FILE")
    check.add_argument("--all", action="store_true", help="print all settings, also those that are as by default")


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


def _add_recover(commands: argparse._SubParsersAction[Parser]) -> None:
    recover = commands.add_parser(
        "recover",
        help="get a stopped node with damaged files on its feet, from what other nodes have",
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
        help="cluster port of another member, if its metadata is so damaged that it cannot say (may be repeated)",
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
        help="put a load on a broker, and measure",
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
    transfer.add_argument("--to", metavar="URI", required=True, dest="target", help="the same, where they are to go")
    transfer.add_argument("--queue", metavar="NAME", action="append", default=[], help="a queue; several can be given")
    transfer.add_argument("--definitions", metavar="FILE", help="all queues of the source's vhost that this file has")


def _add_completion(commands: argparse._SubParsersAction[Parser]) -> None:
    completion = commands.add_parser(
        "completion",
        help="print a script with which a shell completes this command",
        description="For bash, in this shell: source <(leveret completion bash). For zsh, save it as _leveret in a"
        " folder of $fpath; for fish, as ~/.config/fish/completions/leveret.fish. See also: leveretctl completion",
        allow_abbrev=False,
    )
    completion.add_argument("shell", choices=["bash", "zsh", "fish"])
