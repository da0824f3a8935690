"""The command line of `leveret perf`. Options have the names of RabbitMQ's PerfTest where it has the same option.

Every `leveret` command builds this parser, also one that starts a node, so this module imports as little as possible.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Final

DESCRIPTION: Final = """\
Publishes to a broker and consumes from it, and says each second how fast that went and how long messages took: from
the send of a message to its arrival, and with -c from the send to the confirm. Any AMQP 0-9-1 broker will do.
"""

EXAMPLES: Final = """\
examples:
  leveret perf                                     one publisher, one consumer, as fast as it goes, until Ctrl-C
  leveret perf -z 10 -f persistent -c 1000         ten seconds; persistent messages, at most 1000 of them unconfirmed
  leveret perf -z 30 -r 500 -f persistent -c 100   500 messages a second: what is the latency when the broker is calm?
  leveret perf -x 4 -y 2 --queues 2 -q 200         four publishers, two queues with a consumer each, prefetch 200
  leveret perf -y 0 -C 100000 -u orders            put 100,000 messages into queue "orders", and
  leveret perf -x 0 -D 100000 -u orders            take them out again
  leveret perf -e events -t topic -k order.paid    through an exchange; each queue is bound to it with that key
  leveret perf -qa x-queue-type=quorum,x-max-length=1000000
  leveret perf --uri amqp://ann:secret@10.0.0.1/shop --uri amqp://ann:secret@10.0.0.2/shop    several nodes, in turn
  leveret perf --uri amqps://ann:secret@mq.example.com --cacert ca.pem    over TLS
  leveret perf -z 10 --json | jq .summary
  leveret perf -z 60 -f persistent -c 1000 -s 100 -u orders --ledger /tmp/ledger    then, with Spark:
  leveret pipeline audit --ledger /tmp/ledger      was anything lost?

Queues and exchanges are durable. Queues that you did not name (with -u or --pattern) are deleted at the end.
A message shorter than 12 bytes has no room for the time, and no latency.

exit codes: 0 done, 1 the broker refused something, closed a connection, or left confirms out; 64 wrong use.
            Publishes that it nacked or returned are counted, and are no error.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--uri",
        "-h",
        metavar="URI",
        action="append",
        help="of the broker (amqp://guest:guest@127.0.0.1:5672/%%2F), or @FILE or env:NAME that has it",
    )
    add("--cacert", metavar="FILE", help="with amqps://: certificates to trust (those the system trusts)")
    add("--cert", metavar="FILE", help="with amqps://: a certificate to show")
    add("--key", metavar="FILE", help="its key, if that is in another file")
    add("--insecure", action="store_true", help="with amqps://: trust anybody")
    add(
        "--publishers",
        "-x",
        "--producers",
        metavar="N",
        type=_count,
        default=1,
        help="how many connections publish (1)",
    )
    add("--consumers", "-y", metavar="N", type=_count, default=1, help="how many connections consume (1)")
    add("--size", "-s", metavar="BYTES", type=_count, default=12, help="of a message (12)")
    add("--rate", "-r", metavar="N", type=_rate, default=0.0, help="messages a second for each publisher; 0: no limit")
    add("--confirm", "-c", metavar="N", type=_positive, help="confirms; at most N messages of a publisher unconfirmed")
    add("--prefetch", "-q", "--qos", metavar="N", type=_prefetch, default=0, help="of each consumer; 0: no limit")
    acks = parser.add_mutually_exclusive_group()
    acks.add_argument("--autoack", "-a", action="store_true", help="consume without acknowledgements")
    acks.add_argument(
        "--multi-ack-every", "-A", metavar="N", type=_positive, default=1, help="one ack for N messages (1)"
    )
    add("--flag", "-f", action="append", choices=("persistent", "mandatory"), default=[], help="of messages")
    add("--persistent", action="store_true", help="the same as -f persistent")
    _add_places(parser)
    add("--time", "-z", metavar="SECONDS", type=_seconds, help="how long to publish (until Ctrl-C)")
    add("--pmessages", "-C", metavar="N", type=_positive, help="publish so many for each publisher, and end")
    add("--cmessages", "-D", metavar="N", type=_positive, help="consume so many for each consumer, and end")
    add("--interval", "-i", metavar="SECONDS", type=_seconds, default=1.0, help="between two lines of output (1)")
    add("--json", action="store_true", help="one JSON object to stdout at the end, lines to stderr")
    add("--quiet", action="store_true", help="no lines in between")
    add("--ledger", metavar="FOLDER", help="write down there what was confirmed and what was received, for an audit")
    add("--help", action="help", help="show this, and end")


def _add_places(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--queues", metavar="N", type=_positive, help="how many (1)")
    names = parser.add_mutually_exclusive_group()
    names.add_argument("--queue", "-u", metavar="NAME", help="the name of the only queue")
    names.add_argument(
        "--pattern", "-qp", "--queue-pattern", metavar="NAME", help='names of --queues, as in "perf-%%03d"'
    )
    add("--queue-args", "-qa", metavar="K=V,...", type=_arguments, default={}, help="arguments of the queues")
    add("--predeclared", "-p", action="store_true", help="use queues and exchange as they are, and declare nothing")
    add("--exchange", "-e", metavar="NAME", default="", help="to publish to (the default exchange)")
    add("--type", "-t", metavar="TYPE", help="of the exchange (direct)")
    add("--routing-key", "-k", metavar="KEY", help="for all messages (the name of the queue)")


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
