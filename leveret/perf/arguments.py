"""The command line of `leveret perf`. Options have the names of RabbitMQ's PerfTest where it has the same option.

Every `leveret` command builds this parser, also one that starts a node, so this module imports as little as possible.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Final

DESCRIPTION: Final = """\
Publishes to an AMQP 0-9-1 broker and consumes from it, and prints rates and latencies each second: from the send of a
message to its arrival, and with -c from the send to the confirm.
"""

EXAMPLES: Final = """\
examples:
  leveret perf                                     one publisher, one consumer, at full speed, until Ctrl-C
  leveret perf -z 10 -f persistent -c 1000         ten seconds; persistent messages, at most 1000 unconfirmed
  leveret perf -z 30 -r 500 -f persistent -c 100   500 messages a second, to measure latency without a backlog
  leveret perf -x 4 -y 2 --queues 2 -q 200         four publishers, two queues with a consumer each, prefetch 200
  leveret perf -y 0 -C 100000 -u orders            publish 100,000 messages to queue "orders"
  leveret perf -x 0 -D 100000 -u orders            and consume them
  leveret perf -e events -t topic -k order.paid    publish to an exchange; each queue is bound to it with that key
  leveret perf -qa x-queue-type=quorum,x-max-length=1000000
  leveret perf --uri amqp://ann:secret@10.0.0.1/shop --uri amqp://ann:secret@10.0.0.2/shop    several nodes, in turn
  leveret perf --uri amqps://ann:secret@mq.example.com --cacert ca.pem    over TLS
  leveret perf -z 10 --json | jq .summary
  leveret perf -z 60 -f persistent -c 1000 -s 100 -u orders --ledger /tmp/ledger    then, with Spark:
  leveret pipeline audit --ledger /tmp/ledger      find lost messages

Queues and exchanges are durable. Queues that you did not name (with -u or --pattern) are deleted at the end.
A message shorter than 12 bytes has no room for a timestamp, so it has no latency.

exit codes: 0 success, 1 the broker refused something, closed a connection, or did not confirm; 64 wrong usage.
            Nacked and returned messages are counted, and are no error.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--uri",
        "-h",
        metavar="URI",
        action="append",
        help="address of the broker (amqp://guest:guest@127.0.0.1:5672/%%2F), or @FILE or env:NAME that contains it",
    )
    add("--cacert", metavar="FILE", help="with amqps://: CA certificates to trust (those of the system)")
    add("--cert", metavar="FILE", help="with amqps://: the client certificate")
    add("--key", metavar="FILE", help="the key of the client certificate, if it is in another file")
    add("--insecure", action="store_true", help="with amqps://: accept any certificate")
    add(
        "--publishers",
        "-x",
        "--producers",
        metavar="N",
        type=_count,
        default=1,
        help="number of publishing connections (1)",
    )
    add("--consumers", "-y", metavar="N", type=_count, default=1, help="number of consuming connections (1)")
    add("--size", "-s", metavar="BYTES", type=_count, default=12, help="size of a message (12)")
    add("--rate", "-r", metavar="N", type=_rate, default=0.0, help="messages a second for each publisher; 0: no limit")
    add("--confirm", "-c", metavar="N", type=_positive, help="use confirms; at most N unconfirmed for each publisher")
    add("--prefetch", "-q", "--qos", metavar="N", type=_prefetch, default=0, help="of each consumer; 0: no limit")
    acks = parser.add_mutually_exclusive_group()
    acks.add_argument("--autoack", "-a", action="store_true", help="consume without acknowledgements")
    acks.add_argument(
        "--multi-ack-every", "-A", metavar="N", type=_positive, default=1, help="one ack for N messages (1)"
    )
    add("--flag", "-f", action="append", choices=("persistent", "mandatory"), default=[], help="flag of messages")
    add("--persistent", action="store_true", help="the same as -f persistent")
    _add_places(parser)
    add("--time", "-z", metavar="SECONDS", type=_seconds, help="how long to publish (until Ctrl-C)")
    add("--pmessages", "-C", metavar="N", type=_positive, help="publish N messages with each publisher, then stop")
    add("--cmessages", "-D", metavar="N", type=_positive, help="consume N messages with each consumer, then stop")
    add("--interval", "-i", metavar="SECONDS", type=_seconds, default=1.0, help="time between two lines of output (1)")
    add("--json", action="store_true", help="print one JSON object to stdout at the end, and the lines to stderr")
    add("--quiet", action="store_true", help="print only the summary")
    add("--ledger", metavar="FOLDER", help="record confirmed and received messages there, for an audit")
    add("--help", action="help", help="show this help")


def _add_places(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--queues", metavar="N", type=_positive, help="number of queues (1)")
    names = parser.add_mutually_exclusive_group()
    names.add_argument("--queue", "-u", metavar="NAME", help="name of the queue")
    names.add_argument(
        "--pattern", "-qp", "--queue-pattern", metavar="NAME", help='pattern of the queue names, such as "perf-%%03d"'
    )
    add("--queue-args", "-qa", metavar="K=V,...", type=_arguments, default={}, help="arguments of the queues")
    add("--predeclared", "-p", action="store_true", help="use existing queues and exchanges, and declare nothing")
    add("--exchange", "-e", metavar="NAME", default="", help="exchange to publish to (the default exchange)")
    add("--type", "-t", metavar="TYPE", help="type of the exchange (direct)")
    add("--routing-key", "-k", metavar="KEY", help="routing key of all messages (the name of the queue)")


# -- Values --------------------------------------------------------------------------------------------------------


def _number(least: int, most: int | None, words: str) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least or (most is not None and int(text) > most):
            raise argparse.ArgumentTypeError(f"{text!r} is not {words}")
        return int(text)

    return read


_count = _number(0, None, "a whole number from 0 on")
_positive = _number(1, None, "a whole number from 1 on")
_prefetch = _number(0, 65_535, "a whole number from 0 to 65535")


def _seconds(text: str) -> float:
    value = _rate(text)
    if not value:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def _rate(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 on")
    return value


def _arguments(text: str) -> dict[str, bool | int | str]:
    """Parses x-max-length=10,x-queue-type=quorum: whole numbers, true and false, and texts."""
    found: dict[str, bool | int | str] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals or not name:
            raise argparse.ArgumentTypeError(f"{part!r} is not name=value")
        if value in ("true", "false"):
            found[name] = value == "true"
        else:
            found[name] = int(value) if value.removeprefix("-").isdecimal() else value
    return found
