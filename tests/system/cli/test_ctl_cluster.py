"""leveretctl and real nodes: three processes that become a cluster, lose members, and get them back."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pika
import pytest

from leveret.cli.ctl.main import main
from leveret.node.system import local_registry
from tests.support.members import free_port
from tests.support.servers import Server, until

NAMES = ("one@localhost", "two@localhost", "three@localhost")
CONFIG = "cluster.operation_timeout = 5s"
PERSISTENT = pika.BasicProperties(delivery_mode=2)


class Trio:
    """Three nodes with one cookie, each a cluster of its own as yet, and leveretctl."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.capsys = capsys
        self.cookie = folder / "shared.cookie"
        self.cookie.write_text("hares in a field")
        self.cookie.chmod(0o600)
        self.servers = {name: self.make(name) for name in NAMES}
        for server in self.servers.values():
            server.spawn(server.port)
        for server in self.servers.values():
            server.wait_until_ready()

    def make(self, name: str, folder: Path | None = None) -> Server:
        arguments = ("--name", name, "--cluster-port", str(free_port()), "--cookie-file", str(self.cookie))
        environment = {"LEVERET_RUNTIME_DIR": str(self.folder / "nodes")}
        server = Server(folder or self.folder / name, CONFIG, environment, arguments)
        server.port = free_port()
        return server

    def ctl(self, name: str, *arguments: str, code: int = 0) -> str:
        """What leveretctl prints; of an error, what it says about it."""
        ended = main(["-n", name, *arguments])
        shown = self.capsys.readouterr()
        assert ended == code, f"{arguments} at {name}: exit code {ended}\n{shown.out}{shown.err}"
        return shown.out if code == 0 else shown.err

    def join(self, name: str) -> None:
        self.ctl(name, "stop_app")
        assert self.ctl(name, "join_cluster", NAMES[0]) == f"Clustering node {name} with {NAMES[0]}\n"
        self.ctl(name, "start_app")

    def await_all(self, *names: str) -> None:
        """Until each of these sees the three."""
        for name in names:
            self.ctl(name, "await_online_nodes", "3", "--timeout", "60")

    def await_loss(self, lost: str, *names: str) -> None:
        """Until each of these misses that one."""
        for name in names:
            until(partial(self._misses, name, lost), f"{name} misses {lost}")

    def _misses(self, name: str, lost: str) -> bool:
        return lost not in self.status(name)["running_nodes"]

    def status(self, name: str) -> dict[str, Any]:
        status: dict[str, Any] = json.loads(self.ctl(name, "cluster_status", "--formatter", "json"))
        return status

    def rows(self, name: str, *arguments: str) -> list[list[str]]:
        return [line.split("\t") for line in self.ctl(name, *arguments, "--silent").splitlines()]

    def declare(self, name: str, queue: str, messages: int, arguments: dict[str, str] | None = None) -> None:
        channel = self.servers[name].channel(confirms=True)
        channel.queue_declare(queue, durable=True, arguments=arguments)
        for _ in range(messages):
            channel.basic_publish("", queue, b"x", PERSISTENT)

    def end(self) -> None:
        for server in self.servers.values():
            server.end()


@pytest.fixture
def trio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Trio]:
    monkeypatch.setenv("LEVERET_RUNTIME_DIR", str(tmp_path / "nodes"))
    trio = Trio(tmp_path, capsys)
    yield trio
    trio.end()


@pytest.fixture
def joined(trio: Trio) -> Trio:
    for name in NAMES[1:]:
        trio.join(name)
    trio.await_all(*NAMES)
    return trio


def everywhere(trio: Trio, seen: Callable[[str], object]) -> object:
    """What every node answers, which must be the same."""
    answers = [seen(name) for name in NAMES]
    assert answers[1:] == answers[:-1]
    return answers[0]


def test_every_node_answers_alike(joined: Trio) -> None:
    one, two, three = NAMES
    everywhere(joined, joined.status)
    status = joined.status(two)
    assert status["disk_nodes"] == status["running_nodes"] == sorted(NAMES)
    assert status["cluster_name"] == one
    for number, name in enumerate(NAMES):
        joined.declare(name, f"at-{name}", number)
    queues = everywhere(joined, lambda name: joined.rows(name, "list_queues", "name", "messages", "node", "state"))
    assert queues == [[f"at-{name}", str(number), name, "running"] for number, name in enumerate(NAMES)]
    assert joined.rows(three, "list_queues", "name", "--local") == [[f"at-{three}"]]
    joined.ctl(two, "add_user", "ann", "secret")
    assert everywhere(joined, lambda name: joined.rows(name, "list_users")) == [
        ["guest", "[administrator]"],
        ["ann", "[]"],
    ]
    connections = everywhere(joined, lambda name: joined.rows(name, "list_connections", "pid", "node"))
    assert isinstance(connections, list) and len(connections) == 3
    joined.ctl(one, "purge_queue", f"at-{three}")
    assert joined.rows(two, "list_queues", "messages", "--local") == [["1"]]
    assert joined.ctl(one, "close_all_connections", "bye").endswith("Closed 3 connections\n")
    assert joined.rows(two, "list_connections", "state") == [["closing"]] * 3  # Nobody reads at the other end.


def test_a_node_stops_is_forgotten_and_joins_again(joined: Trio) -> None:
    one, two, three = NAMES
    joined.declare(three, "only-there", 1)
    joined.declare(three, "given-up", 1)
    joined.ctl(three, "stop_app")
    joined.await_loss(three, one, two)
    assert "is down or inaccessible" in joined.ctl(two, "delete_queue", "given-up", "--if-empty", code=69)
    assert joined.ctl(two, "delete_queue", "given-up").endswith("how many messages it had is not known\n")
    assert joined.rows(two, "list_queues", "name", "messages", "state") == [["only-there", "", "down"]]
    assert joined.rows(two, "list_queues", "--online") == []
    assert "home node 'three@localhost' of durable queue" in joined.ctl(two, "purge_queue", "only-there", code=69)
    assert "already a member of this cluster" in joined.ctl(three, "join_cluster", one)
    joined.ctl(three, "start_app")
    joined.await_all(*NAMES)
    assert joined.rows(two, "list_queues", "name", "messages", "state") == [["only-there", "1", "running"]]
    assert "must be stopped with 'leveretctl -n three@localhost stop_app'" in joined.ctl(
        one, "forget_cluster_node", three, code=69
    )
    joined.ctl(three, "stop_app")
    joined.await_loss(three, one, two)
    joined.ctl(two, "forget_cluster_node", three)
    assert joined.status(one)["disk_nodes"] == [one, two]
    assert joined.rows(one, "list_queues", "name") == []
    joined.ctl(three, "reset")
    joined.ctl(three, "start_app")
    assert joined.status(three)["disk_nodes"] == [three]
    joined.join(three)
    joined.await_all(*NAMES)
    joined.ctl(three, "stop_app")
    joined.ctl(three, "reset")  # Leaves by itself.
    assert joined.status(one)["disk_nodes"] == [one, two]


def test_a_node_gets_another_name_and_goes_on_alone(joined: Trio) -> None:
    one, two, _ = NAMES
    old = joined.servers.pop(two)
    joined.ctl(two, "stop")
    assert old.wait() == 0
    assert two not in [entry.name for entry in local_registry.entries()]
    joined.await_loss(two, one)
    joined.ctl(one, "rename_cluster_node", two, "second@localhost")
    joined.servers["second"] = joined.make("second@localhost", old.folder).start()
    joined.await_all("second", one)
    assert "second@localhost" in joined.status(one)["disk_nodes"]
    for name in (one, NAMES[2]):
        joined.servers[name].kill()
    until(lambda: not joined.status("second")["has_majority"], "the majority is missed")
    assert "majority" in joined.ctl("second", "add_user", "ann", "x", code=69)
    joined.ctl("second", "stop_app")
    joined.ctl("second", "force_boot")
    joined.ctl("second", "start_app")
    assert joined.status("second")["disk_nodes"] == ["second@localhost"]
    joined.ctl("second", "add_user", "ann", "x")


def test_a_node_leaves_and_its_queues_stay(joined: Trio) -> None:
    one, two, three = NAMES
    joined.declare(three, "precious", 3)
    joined.servers[three].connections[-1].close()
    assert "Node three@localhost has left its cluster" in joined.ctl(three, "leave_cluster")
    assert joined.status(one)["disk_nodes"] == [one, two]
    ((name, messages, home),) = joined.rows(two, "list_queues", "name", "messages", "node")
    assert (name, messages) == ("precious", "3")
    assert home in (one, two)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl on this machine")
def test_a_cluster_port_with_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    make += ["-days", "2", "-subj", "/CN=node", "-addext", "subjectAltName=IP:127.0.0.1"]
    make += ["-keyout", f"{tmp_path}/node.key", "-out", f"{tmp_path}/node.pem"]
    subprocess.run(make, check=True, capture_output=True)
    config = (
        f"cluster.ssl_options.cacertfile = {tmp_path}/node.pem\n"
        f"cluster.ssl_options.certfile = {tmp_path}/node.pem\n"
        f"cluster.ssl_options.keyfile = {tmp_path}/node.key\n"
    )
    monkeypatch.setenv("LEVERET_RUNTIME_DIR", str(tmp_path / "nodes"))
    environment = {"LEVERET_RUNTIME_DIR": str(tmp_path / "nodes")}
    server = Server(tmp_path / "server", config, environment, ("--cluster-port", str(free_port()))).start()
    try:
        assert main(["check_running", "-q"]) == 0
        local_registry.withdraw("leveret@localhost", server.pid)
        address = ["--port", str(server.cluster_port), "--cookie-file", str(server.data / "cookie"), "ping", "-q"]
        assert main(address) == 69
        assert "Does it need TLS?" in capsys.readouterr().err
        files = ["--tls-cert-file", f"{tmp_path}/node.pem", "--tls-key-file", f"{tmp_path}/node.key"]
        assert main([*address, *files, "--tls-ca-cert-file", f"{tmp_path}/node.pem"]) == 0
    finally:
        server.end()


def test_who_has_another_cookie_is_turned_away(trio: Trio, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.cookie"
    wrong.write_text("foxes")
    wrong.chmod(0o600)
    text = trio.ctl(NAMES[0], "--cookie-file", str(wrong), "cluster_status", code=69)
    assert "different cookies" in text
    assert f"cookie from {wrong}" in text
    assert "name the cookie file of that node with --cookie-file" in text
    assert "foxes" not in text
