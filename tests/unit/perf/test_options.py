"""What can be asked for, and what does not go together."""

from __future__ import annotations

import argparse

import pytest

from leveret.cli.main import main
from leveret.client.address import Address
from leveret.perf.arguments import add_arguments
from leveret.perf.options import Options, to_options


def options(*words: str) -> Options:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add_arguments(parser)
    return to_options(parser.parse_args(words), "perf-1")


def test_defaults() -> None:
    found = options()
    assert found == Options(addresses=(Address("127.0.0.1", 5672, "guest", "guest", "/"),), queues=("perf-1-00001",))
    assert found.copies == 1


def test_short_words() -> None:
    words = "-h amqp://h -x 2 -y 3 -s 100 -r 5.5 -c 10 -q 20 -A 4 -f persistent -f mandatory -e e -t topic -k k -z 7"
    found = options(
        *words.split(), "--queues", "2", "--pattern", "q%d", "-qa", "a=1,b=true,c=x,d=-2", "-C", "8", "-D", "9"
    )
    assert (found.publishers, found.consumers, found.size, found.rate, found.window) == (2, 3, 100, 5.5, 10)
    assert (found.prefetch, found.ack_every, found.persistent, found.mandatory) == (20, 4, True, True)
    assert (found.exchange, found.exchange_type, found.key, found.seconds) == ("e", "topic", "k", 7)
    assert (found.queues, found.keep_queues, found.publish_max, found.consume_max) == (("q1", "q2"), True, 8, 9)
    assert found.queue_arguments == {"a": 1, "b": True, "c": "x", "d": -2}
    assert found.copies == 2


def test_how_many_copies() -> None:
    assert options("--queues", "3").copies == 1
    assert options("--queues", "3", "-e", "e").copies == 1
    assert options("--queues", "3", "-e", "e", "-k", "k").copies == 3
    assert options("--queues", "3", "-e", "e", "-t", "fanout").copies == 3


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("-x 0 -y 0", "nothing to do"),
        ("-t fanout", "--type needs an --exchange"),
        ("-k a", "--routing-key needs an --exchange"),
        ("-u q --queues 2", "--queue names one queue"),
        ("-p", "--predeclared needs --queue"),
        ("-p -u q -qa a=1", "--queue-args are for queues that are declared"),
        ("--pattern q --queues 2", "has no single %d"),
        ("--pattern q%d%d", "has no single %d"),
        ("--queues 100001", "at most 100000 queues"),
        ("--uri http://x", "use amqp://"),
        ("--uri amqp://x:y", "Port could not be cast"),
        ("--uri amqp://x/?heartbeat=1", "parameters in the address"),
    ],
)
def test_what_does_not_go_together(words: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["perf", *words.split()]) == 64
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", ["-x -1", "-s x", "-r -1", "-c 0", "-q 65536", "-z 0", "-qa a", "-a -A 5", "-f fast", "-u a --pattern b"]
)
def test_bad_values(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["perf", *words.split()])
    assert ended.value.code == 64
    assert "Try: leveret perf --help" in capsys.readouterr().err


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["perf", "--help"])
    shown = capsys.readouterr().out
    assert "examples:\n  leveret perf" in shown and "exit codes:" in shown
