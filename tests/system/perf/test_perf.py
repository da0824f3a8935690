"""`leveret perf` against a real broker."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import leveret.testing
from leveret.cli.main import main
from leveret.perf.report import Result
from leveret.perf.runner import Driver
from leveret.testing import Broker
from tests.support.servers import ROOT

SECOND = "leveret2@localhost"
Perf = Callable[..., tuple[int, Any]]


@pytest.fixture(scope="module")
def shared() -> Iterator[Broker]:
    with leveret.testing.broker() as running:
        yield running


@pytest.fixture
def subject(shared: Broker) -> Iterator[Broker]:
    yield shared
    shared.faults.clear()
    shared.admin.delete_all()


@pytest.fixture
def perf(subject: Broker, capsys: pytest.CaptureFixture[str]) -> Perf:
    """The exit code, and the JSON object."""

    def run(*words: str) -> tuple[int, Any]:
        code = main(["perf", "--uri", subject.url, "--json", *words])
        out = capsys.readouterr().out
        return code, json.loads(out) if out else None

    return run


def test_all_arrives(perf: Perf, subject: Broker) -> None:
    code, found = perf("-C", "5000", "-s", "100", "-c", "100", "-q", "50", "-f", "persistent")
    summary = found["summary"]
    assert (code, found["errors"]) == (0, [])
    assert (summary["sent"], summary["confirmed"], summary["received"], summary["nacked"]) == (5_000, 5_000, 5_000, 0)
    for name in ("latency_ms", "confirm_latency_ms"):
        values = list(summary[name].values())
        assert list(summary[name]) == ["min", "median", "75th", "95th", "99th", "max"]
        assert values == sorted(values) and values[0] >= 0
    assert len(found["intervals"]) >= 1
    assert subject.admin.queues() == []


@pytest.mark.parametrize(
    "words",
    [
        "-a",
        "-A 7 -q 20",
        "-s 0",
        "-s 300000 -C 5",
        "-x 3 -y 2 --queues 2 -c 10",
        "-x 1 -y 3 --queues 2 -c 5",
        "-x 2 -y 1 --queues 5 -e e -t direct",
        "-r 5000 -c 10",
        "-f mandatory -f persistent -a",
    ],
)
def test_each_arrives_once(perf: Perf, words: str) -> None:
    messages = () if "-C" in words else ("-C", "300")
    code, found = perf(*words.split(), *messages)
    summary = found["summary"]
    assert (code, found["errors"]) == (0, [])
    assert summary["received"] == summary["sent"] > 0
    assert (summary["latency_ms"] is None) == ("-s 0" in words)


def test_each_arrives_at_every_queue(perf: Perf) -> None:
    _, found = perf("--queues", "3", "-y", "3", "-e", "events", "-t", "topic", "-k", "a.b", "-C", "100", "-c", "10")
    assert (found["summary"]["sent"], found["summary"]["received"]) == (100, 300)


def test_put_in_and_take_out(perf: Perf, subject: Broker) -> None:
    arguments = ("-u", "orders", "-qa", "x-unknown=1")
    assert perf("-y", "0", "-C", "200", "-c", "50", *arguments)[1]["summary"]["received"] == 0
    assert subject.admin.queue("orders").messages == 200
    code, found = perf("-x", "0", "-D", "200", "-u", "orders", "-p", "-A", "30")
    assert (code, found["summary"]["received"], found["summary"]["sent"]) == (0, 200, 0)
    assert subject.admin.queue("orders").durable


def test_unroutable(perf: Perf, subject: Broker) -> None:
    _, found = perf("-y", "0", "-u", "q", "-C", "10", "-c", "5", "-e", "amq.direct", "-f", "mandatory")
    assert found["summary"]["returned"] == 0
    subject.admin.delete_queue("q")
    code, found = perf("-y", "0", "-u", "q", "-p", "-C", "10", "-c", "5", "-f", "mandatory")
    assert (code, found["summary"]["returned"], found["summary"]["confirmed"]) == (0, 10, 10)


def test_nacks(perf: Perf, subject: Broker) -> None:
    with subject.faults.refuse_publishes():
        code, found = perf("-C", "20", "-c", "5", "-y", "0")
    assert (code, found["summary"]["nacked"], found["summary"]["confirmed"]) == (0, 20, 0)


def test_what_the_broker_refuses(subject: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(*words: str) -> str:
        assert main(["perf", "--uri", subject.url, "-z", "1", *words]) == 1
        captured = capsys.readouterr()
        assert captured.out == ""
        return captured.err

    assert "404 NOT_FOUND - no queue 'missing' in vhost '/'" in refused("-u", "missing", "-p")
    assert "unknown exchange type 'odd'" in refused("-e", "x", "-t", "odd")
    assert "403 ACCESS_REFUSED" in refused("--uri", subject.url_of("/", "guest", "wrong"), "-x", "2")
    assert subject.admin.queues() == []


def test_no_broker_there(subject: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    """But the door for other nodes."""
    assert main(["perf", "--uri", f"amqp://127.0.0.1:{subject.ports['cluster']}"]) == 1
    assert "is it a broker" in capsys.readouterr().err


def test_nobody_there(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert main(["perf", "--uri", f"amqp://127.0.0.1:{port}"]) == 1
    assert capsys.readouterr().err == f"leveret perf: 127.0.0.1:{port}: Connection refused\n"


class Lines:
    """Runs the tool as a process, and waits for what it says."""

    def __init__(self, subject: Broker, *words: str) -> None:
        command = [sys.executable, "-m", "leveret", "perf", "--uri", subject.url, *words]
        heeded = signal.signal(signal.SIGINT, signal.default_int_handler)  # A shell's background job is born without.
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        signal.signal(signal.SIGINT, heeded)

    def until(self, word: str) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if word in line:
                return line
        raise AssertionError(f"it never said {word!r}")

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err


def test_lines_until_interrupted(subject: Broker) -> None:
    tool = Lines(subject, "-r", "200", "-c", "10", "-i", "0.05", "-f", "persistent")
    assert "confirm ms: median" in tool.until("latency ms: median")
    tool.until("0.1 s")
    os.kill(tool.process.pid, signal.SIGINT)
    code, out, err = tool.end()
    assert (code, err) == (0, "")
    assert f"\n{out}".count("\nin ") == 1
    assert all(word in out for word in ("sent ", "confirmed ", "received ", "99th", "max"))
    assert subject.admin.queues() == []


def test_output_that_nobody_reads(subject: Broker) -> None:
    tool = Lines(subject, "-r", "200", "-i", "0.01")
    tool.until(" s ")
    assert tool.process.stdout is not None and tool.process.stderr is not None
    tool.process.stdout.close()
    assert (tool.process.wait(60), tool.process.stderr.read()) == (130, "")
    tool.process.stderr.close()
    assert subject.admin.queues() == []


@pytest.mark.parametrize("lost", ["publisher 1", "consumer 1"])
def test_a_connection_that_goes_away(subject: Broker, lost: str) -> None:
    """Ends the run. (Whether others that go with it are still seen to go depends on which of them goes first.)"""
    tool = Lines(subject, "-r", "200", "-i", "0.05")
    tool.until(" s ")
    (name,) = (one.client_name for one in subject.admin.connections() if one.client_name.endswith(lost))
    assert subject.faults.drop_connections(name) == 1
    code, _, err = tool.end()
    assert (code, err) == (1, f"leveret perf: {lost}: the broker closed the connection\n")


def test_blocked(subject: Broker) -> None:
    tool = Lines(subject, "-r", "200", "-i", "0.05", "-c", "10")
    tool.until(" s ")
    fault = subject.faults.raise_alarm("memory")
    tool.until("1 publishers blocked by the broker")
    fault.clear()
    while "blocked" in tool.until(" s "):
        pass
    os.kill(tool.process.pid, signal.SIGINT)
    assert tool.end()[0] == 0


def test_several_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections go to them in turn; the first of all sets the scene."""
    seen: list[str] = []
    drive = Driver.drive
    with leveret.testing.cluster(2) as cluster:

        def look(driver: Driver) -> Result:
            rows = cluster.admin.call("list_connections", columns=["node"], after=None)["rows"]
            rows += cluster.admin.call("list_connections", columns=["node"], after={"node": SECOND, "after": 0})["rows"]
            seen.extend(row[0] for row in rows)
            return drive(driver)

        monkeypatch.setattr(Driver, "drive", look)
        words = [word for url in cluster.urls for word in ("--uri", url)]
        assert main(["perf", *words, "-x", "2", "-y", "2", "-C", "50", "-c", "10", "--quiet"]) == 0
    assert Counter(seen) == {"leveret1@localhost": 3, SECOND: 2}


@pytest.mark.parametrize(
    "words", ["-C 3000", "-x 2 -y 2 --queues 4 -C 700", "-C 200 -r 2000 -A 7 -q 20", "-C 3 -s 200000"]
)
def test_ledgers_have_every_message_once(perf: Perf, tmp_path: Path, words: str) -> None:
    code, found = perf("-s", "64", "-c", "100", *words.split(), "--ledger", str(tmp_path))
    assert code == 0
    seen = {}
    for kind, at in (("published", "confirmed_at"), ("consumed", "received_at")):
        [file] = (tmp_path / kind).iterdir()
        entries = [json.loads(line) for line in file.read_text().splitlines()]
        assert len(entries) < found["summary"]["sent"] or len(entries) <= 3
        assert all(entry[at] > 1_700_000_000_000 and " -> " in entry["channel"] for entry in entries)
        assert {entry["cluster"] for entry in entries} == {"leveret@localhost"}
        seen[kind] = Counter(
            (entry["queue"], entry["publisher"], number)
            for entry in entries
            for number in range(entry["number"], entry["last"] + 1)
        )
    assert seen["published"] == seen["consumed"] and set(seen["consumed"].values()) == {1}
    assert len(seen["published"]) == found["summary"]["sent"]


def test_a_ledger_has_no_message_that_was_nacked(perf: Perf, subject: Broker, tmp_path: Path) -> None:
    limited = "x-max-length=5,x-overflow=reject-publish"
    perf("-y", "0", "-C", "50", "-s", "64", "-c", "10", "-qa", limited, "--ledger", str(tmp_path), "-u", "small")
    assert [folder.name for folder in tmp_path.iterdir()] == ["published"]  # Without consumers there is no other.
    [file] = (tmp_path / "published").iterdir()
    entries = [json.loads(line) for line in file.read_text().splitlines()]
    noted = sum(entry["last"] - entry["number"] + 1 for entry in entries)
    assert noted == sum(queue.messages for queue in subject.admin.queues())


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("-s 64", "needs --confirm"),
        ("-c 10", "use --size 24 or more"),
        ("-c 10 -s 64 -e x", "needs the default exchange"),
    ],
)
def test_a_ledger_needs(words: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["perf", "--ledger", "there", *words.split()]) == 64
    assert why in capsys.readouterr().err
