"""`leveret cluster`: what it plans, and real nodes that it starts, loses, stops and starts again."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from leveret.cli import cluster as subject
from leveret.cli import processes
from leveret.cli.cluster import Plan, Planned, Wrong, make_plan, read_plan, sole_starter, write_plan
from leveret.cli.main import main
from leveret.node import server as node_server
from leveret.node.config.settings import Settings
from leveret.node.system.data_folder import folder_lock
from tests.support.servers import read_line

START_S = 60.0


def planned(before: Plan | None = None, /, **options: str) -> Plan:
    names = ("nodes", "host", "base", "cluster_base", "management_base")
    nodes, host, base, cluster_base, management_base = (options.get(name) for name in names)
    return make_plan("/hares", before, nodes, host, base, cluster_base, management_base)


def ports(plan: Plan) -> list[tuple[int, int]]:
    return [(node.amqp, node.cluster) for node in plan.nodes]


# Plans


def test_three_nodes_from_the_usual_ports_on() -> None:
    plan = planned()
    assert [node.name for node in plan.nodes] == ["leveret1@localhost", "leveret2@localhost", "leveret3@localhost"]
    assert ports(plan) == [(5672, 25672), (5673, 25673), (5674, 25674)]
    assert (plan.host, plan.founded) == ("127.0.0.1", False)


def test_other_ports() -> None:
    assert ports(planned(nodes="2", base="7000")) == [(7000, 27000), (7001, 27001)]
    assert ports(planned(nodes="1", base="7000", cluster_base="1")) == [(7000, 1)]
    assert [node.management for node in planned(nodes="2").nodes] == [15672, 15673]
    assert planned(nodes="1", management_base="8080").nodes[0].management == 8080
    free = [port for both in ports(planned(base="0")) for port in both]
    assert len(set(free)) == 6
    assert min(free) > 0


@pytest.mark.parametrize(
    "options",
    [
        {"nodes": "0"},
        {"nodes": "33"},
        {"nodes": "three"},
        {"base": "-1"},
        {"base": "65534"},
        {"base": "45534"},
        {"cluster_base": "65535"},
        {"management_base": "65535"},
        {"base": "55535", "cluster_base": "1"},
        {"host": "a b"},
        {"host": "192.0.2.1", "base": "0"},  # Not of this machine.
    ],
)
def test_options_that_cannot_be(options: dict[str, str]) -> None:
    with pytest.raises(Wrong):
        planned(**options)


def test_the_first_node_founds_and_the_others_join_it() -> None:
    plan = planned(nodes="2")
    first, second = (plan.command(node) for node in plan.nodes)
    assert "--join" not in first
    assert second[second.index("--join") + 1] == "127.0.0.1:25672"
    assert first[first.index("--data") + 1] == "/hares/leveret1"
    assert first[first.index("--cookie-file") + 1] == second[second.index("--cookie-file") + 1] == "/hares/cookie"


def test_each_node_is_one_process_whatever_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two such nodes, the second process of one and the first of the other would have the same cluster port."""
    run: list[Settings] = []

    def note(settings: Settings) -> int:
        run.append(settings)
        return 0

    monkeypatch.setattr(node_server, "run", note)
    monkeypatch.setattr(processes, "supervise", note)
    monkeypatch.setenv("LEVERET_PROCESSES", "2")
    plan = make_plan(str(tmp_path), None, "2", None, None, None)
    (tmp_path / "cookie").write_text("0123456789abcdef" * 2)
    (tmp_path / "cookie").chmod(0o600)
    assert [main(plan.command(node)) for node in plan.nodes] == [0, 0]
    assert [settings.processes for settings in run] == [1, 1]


def test_once_founded_no_node_founds_again() -> None:
    """The folder of the first may be gone; it must not begin a second cluster beside the others."""
    plan = planned(nodes="3")._replace(founded=True)
    for node in plan.nodes:
        joins = [word for word in plan.command(node) if word.startswith("127.0.0.1:")]
        assert joins == [f"127.0.0.1:{other.cluster}" for other in plan.nodes if other != node]


def test_a_folder_keeps_the_ports_by_which_its_nodes_know_each_other() -> None:
    before = Plan(
        "/hares",
        "127.0.0.1",
        (Planned("leveret1@localhost", 1, 11, 21), Planned("leveret2@localhost", 2, 12, 22)),
        True,
    )
    assert planned(before) == before
    assert [node.management for node in planned(before, base="7000").nodes] == [17000, 17001]
    assert ports(planned(before, base="7000")) == [(7000, 11), (7001, 12)]
    more = planned(before, nodes="3")
    assert ports(more)[:2] == [(1, 11), (2, 12)]
    assert more.nodes[2].name == "leveret3@localhost"
    with pytest.raises(Wrong, match="has 2 nodes"):
        planned(before, nodes="1")


def test_a_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    plan = planned()._replace(folder=str(tmp_path), founded=True)
    assert read_plan(str(tmp_path)) is None
    write_plan(plan)
    assert read_plan(str(tmp_path)) == plan
    for nonsense in "", "[]", '{"host": "", "nodes": [{}]}':
        (tmp_path / subject.STATE).write_text(nonsense)
        with pytest.raises(Wrong, match="cannot be read"):
            read_plan(str(tmp_path))


def test_one_start_at_a_time(tmp_path: Path) -> None:
    with (
        sole_starter(str(tmp_path)),
        pytest.raises(Wrong, match=f"started by process {os.getpid()}"),
        sole_starter(str(tmp_path)),
    ):
        pass
    with sole_starter(str(tmp_path)):
        pass


@pytest.mark.parametrize("action", ["stop", "status"])
def test_a_folder_without_a_cluster(action: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", action, "--data", str(tmp_path)]) == 64
    assert "no cluster was started in" in capsys.readouterr().err


def test_status_of_a_cluster_that_does_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_plan(planned(nodes="2")._replace(folder=str(tmp_path)))
    assert main(["cluster", "status", "--data", str(tmp_path)]) == 69
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert all("not running" in line for line in lines)
    assert main(["cluster", "stop", "--data", str(tmp_path)]) == 0
    assert "no node" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["cluster"], ["cluster", "start"], ["cluster", "begin", "--data", "/"]])
def test_wrong_use(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 64


def test_help_teaches_by_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["cluster", "start", "--help"])
    assert "examples:\n  leveret cluster start --data" in capsys.readouterr().out


def test_a_node_that_runs_already_is_not_started_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "leveret2").mkdir()
    with folder_lock(str(tmp_path / "leveret2")):
        assert main(["cluster", "start", "--data", str(tmp_path)]) == 69
        assert "leveret2@localhost is already running" in capsys.readouterr().err
        write_plan(planned()._replace(folder=str(tmp_path)))
        assert main(["cluster", "stop", "--data", str(tmp_path)]) == 69
        assert "leveret2@localhost is still running" in capsys.readouterr().err


# Real nodes


class Run:
    """`leveret cluster` as a process, and what it prints."""

    def __init__(self, folder: Path, name: str = "hares") -> None:
        self.data = folder / name
        self.environment = {**os.environ, "HOME": str(folder), "LEVERET_RUNTIME_DIR": str(folder / "nodes")}
        self.process: subprocess.Popen[str] | None = None
        self.lines: list[str] = []

    def start(self, *options: str) -> None:
        assert self.process is None
        command = [sys.executable, "-m", "leveret", "cluster", "start", "--data", str(self.data), *options]
        self.process = subprocess.Popen(command, env=self.environment, stdout=subprocess.PIPE, text=True)
        self.lines = []

    def line(self, beginning: str) -> str:
        """The next line that begins with this; spaces before it do not count."""
        assert self.process is not None and self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if line.strip().startswith(beginning):
                return line.strip()
        raise AssertionError(f"{beginning!r} did not come; but {''.join(self.lines)}\n{self.logs()}")

    def ready(self) -> list[int]:
        """The AMQP ports, once the cluster stands."""
        return [int(port) for port in self.line("ready ").partition("amqp=")[2].partition(" ")[0].split(",")]

    def rest(self) -> tuple[str, int]:
        """All that it still prints, and its exit code."""
        process, self.process = self.process, None
        assert process is not None
        text, _ = process.communicate(timeout=START_S)
        return text, process.returncode

    def logs(self) -> str:
        return "\n".join(f"{path.name}:\n{path.read_text()[-3000:]}" for path in sorted(self.data.glob("*.log")))

    def end(self) -> None:
        """Nothing may be left behind, whatever state the test leaves."""
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.communicate(timeout=START_S)
            except subprocess.TimeoutExpired:
                self.process.send_signal(signal.SIGTERM)  # The second one kills the nodes.
                self.process.communicate()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    run = Run(tmp_path)
    yield run
    run.end()


def test_a_cluster_is_started_loses_a_node_is_stopped_and_goes_on(run: Run) -> None:
    run.start("--base-port", "0")
    ports = run.ready()
    assert len(set(ports)) == 3
    for port in ports:
        socket.create_connection(("127.0.0.1", port)).close()
    assert stat.S_IMODE((run.data / "cookie").stat().st_mode) == 0o600
    assert json.loads((run.data / "cluster.json").read_text())["founded"] is True

    kill = run.line("kill -9 ")
    os.kill(int(kill.split()[2]), signal.SIGKILL)
    assert "was killed by SIGKILL" in run.line("leveret1@localhost (pid ")
    run.line("to start it again:")
    command = ["leveret", *shlex.split(run.line(""))[1:]]
    again = subprocess.Popen(
        [sys.executable, "-m", *command],
        env=run.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert read_line(again, START_S).startswith("ready ")
    finally:
        again.terminate()
        assert again.communicate(timeout=START_S) is not None

    assert run.process is not None
    run.process.send_signal(signal.SIGTERM)
    text, code = run.rest()
    assert (text.splitlines()[-2:], code) == (["stopping all nodes", "all nodes have stopped"], 0)

    run.start()
    assert run.ready() == ports
    with pytest.raises(subprocess.CalledProcessError) as refused:
        subprocess.run(
            [sys.executable, "-m", "leveret", "cluster", "start", "--data", str(run.data)],
            env=run.environment,
            capture_output=True,
            text=True,
            check=True,
        )
    assert refused.value.returncode == 69
    assert "is already running" in refused.value.stderr
    status = [sys.executable, "-m", "leveret", "cluster", "status", "--data", str(run.data)]
    shown = subprocess.run(status, env=run.environment, capture_output=True, text=True, check=True).stdout
    assert [line.split("  ")[-1].partition(",")[0] for line in shown.splitlines()] == ["running"] * 3
    stop = [sys.executable, "-m", "leveret", "cluster", "stop", "--data", str(run.data)]
    assert subprocess.run(stop, env=run.environment, capture_output=True, text=True, check=True).stdout.startswith(
        "all"
    )
    assert run.rest()[1] == 0


def test_what_is_printed_of_two_nodes_is_true(run: Run) -> None:
    run.start("--base-port", "0", "--nodes", "2")
    assert len(run.ready()) == 2
    run.line("try")

    def do() -> str:
        line = run.line("")
        command = line if line.startswith("kill") else line[line.index("-c ") :]
        words = shlex.split(command, comments=True)
        words = words if words[0] == "kill" else [sys.executable, *words]
        return subprocess.run(words, env=run.environment, capture_output=True, text=True, check=True).stdout

    do()  # Publish.
    run.line("")  # List queues.
    do()  # Kill the master.
    fate = "leveret1@localhost, the queue's master: leveret2@localhost takes over, and is the only voter until"
    assert fate in run.lines[-1]
    assert do() == "b'hello'\n"


def test_a_taken_port_ends_the_start_with_the_reason(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        base = taken.getsockname()[1]
        run.start("--nodes", "1", "--base-port", str(base), "--cluster-base-port", "0")
        text, code = run.rest()
    assert code == 69
    assert f"cannot listen at 127.0.0.1:{base}" in text
    assert "choose others with --base-port" in text
    run.start("--nodes", "1", "--base-port", "0")  # What was remembered of the failed start does not stand in the way.
    assert len(run.ready()) == 1


def test_two_clusters_side_by_side(run: Run, tmp_path: Path) -> None:
    """Their nodes have the same names. Each gets its own policy, and says how its own nodes are reached."""
    run.start("--nodes", "2", "--base-port", "0")
    run.ready()
    beside = Run(tmp_path, "burrow")
    try:
        beside.start("--nodes", "2", "--base-port", "0")
        beside.ready()
        beside.line("try")
        beside.line("")
        listing = shlex.split(beside.line(""))
        options = listing[1 : listing.index("list_queues")]
        asked = ["--quiet", "--formatter", "json", "list_policies"]
        shown = subprocess.run(
            [sys.executable, "-m", "leveret.cli.ctl", *options, *asked],
            env=run.environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert [policy["name"] for policy in json.loads(shown)] == ["mirror-all"]
    finally:
        beside.end()


def test_a_policy_that_could_not_be_set_is_due_at_the_next_start(run: Run) -> None:
    run.start("--nodes", "2", "--base-port", "0")
    run.ready()
    assert run.process is not None
    run.process.send_signal(signal.SIGTERM)
    assert run.rest()[1] == 0
    plan = run.data / "cluster.json"
    written = json.loads(plan.read_text())
    assert written["policy_due"] is False
    plan.write_text(json.dumps({**written, "policy_due": True}))
    run.start()
    run.ready()
    assert json.loads(plan.read_text())["policy_due"] is False
