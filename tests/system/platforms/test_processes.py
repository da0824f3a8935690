"""`leveret server --processes 2`: two nodes that are one service."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from leveret.node.system import local_registry
from tests.support.servers import until

WAIT_S = 60.0
FIRST, SECOND = "leveret@localhost", "leveret-2@localhost"


def running(service: Service) -> set[str]:
    return {one["name"] for one in service.api("nodes") if one["running"]}


def free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


def cluster_port(count: int = 2) -> int:
    """A port with free ones after it, and as many a thousand further on."""
    for port in range(21_000 + os.getpid() % 1_000 * 4, 32_000, 4):
        try:
            for one in range(port, port + count):
                for each in (one, one + 1_000):
                    socket.create_server(("127.0.0.1", each)).close()
        except OSError:
            continue
        return port
    raise AssertionError("no ports")


class Service:
    """The process that a service manager would start."""

    def __init__(self, folder: Path, processes: int = 2) -> None:
        self.port, self.http = free_ports(2)
        self.cluster = cluster_port(processes)
        self.folder, self.processes = folder, processes
        self.notified = folder / "notify"
        self.manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.manager.bind(str(self.notified))
        self.manager.settimeout(WAIT_S)
        self.environ = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("RABBITMQ_", "LEVERET_"))},
            "HOME": str(folder),
            "LEVERET_RUNTIME_DIR": str(folder / "nodes"),
            "LEVERET_PROMETHEUS_TCP_PORT": "none",
        }
        self.log = open(folder / "log", "ab")  # noqa: SIM115 (closed by `close`)
        self.start()
        self.ready = self.wait_until_ready()
        assert self.process.stdout is not None
        self.page = next(self.process.stdout)

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "leveret", "server", "--processes", str(self.processes), "--port", str(self.port),
             "--data", str(self.folder / "data"), "--cluster-port", str(self.cluster), "--management-port",
             str(self.http)],
            env=self.environ | {"NOTIFY_SOCKET": str(self.notified)}, stdout=subprocess.PIPE, stderr=self.log,
            text=True,
        )  # fmt: skip

    def wait_until_ready(self) -> str:
        assert self.process.stdout is not None
        return next(line for line in self.process.stdout if line.startswith("ready"))

    def stop(self, number: signal.Signals = signal.SIGTERM, code: int = 0) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)
        assert self.process.wait(WAIT_S) == code
        assert self.process.stdout is not None
        self.process.stdout.close()

    def kill(self) -> None:
        """Kills all processes, none of which learns that another one has ended."""
        pids = [self.process.pid, *(one.pid for one in local_registry.entries())]
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                os.kill(pid, number)
        self.stop(code=-signal.SIGKILL)
        until(lambda: not local_registry.entries(), "all have ended")

    def close(self) -> None:
        self.stop()
        self.log.close()
        self.manager.close()

    def connect(self) -> pika.BlockingConnection:
        return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.port))

    def api(self, path: str, port: int = 0) -> Any:
        login = base64.b64encode(b"guest:guest").decode()
        asked = urllib.request.Request(f"http://127.0.0.1:{port or self.http}/api/{path}")
        asked.add_header("Authorization", f"Basic {login}")
        with urllib.request.urlopen(asked, timeout=WAIT_S) as answer:
            return json.load(answer)

    def ctl(self, *words: str, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "leveret.cli.ctl", *words],
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def pid(self, name: str) -> int:
        return local_registry.find(name).pid


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("service")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEVERET_RUNTIME_DIR", str(folder / "nodes"))
        made = Service(folder)
        try:
            yield made
        finally:
            made.close()


def test_it_is_one_service(service: Service) -> None:
    assert service.ready.split()[:2] == ["ready", "processes=2"] and f"amqp={service.port}" in service.ready
    assert service.page.startswith(f"page http://127.0.0.1:{service.http}  log in as guest, password guest")
    assert service.manager.recv(100) == b"READY=1"  # Once, when both are.
    nodes = service.api("nodes")
    assert {one["name"] for one in nodes if one["running"]} == {FIRST, SECOND}


def test_connections_and_masters_spread_over_both(service: Service) -> None:
    connections = [service.connect() for _ in range(32)]
    for number, connection in enumerate(connections):
        connection.channel().queue_declare(f"spread.{number}", durable=True)
    homes = Counter(one["node"] for one in service.api("queues") if one["name"].startswith("spread."))
    assert set(homes) == {FIRST, SECOND} and sum(homes.values()) == 32
    # A message can be published by a client of either, and is there for clients of either.
    for number, connection in enumerate(connections):
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", f"spread.{31 - number}", b"x", pika.BasicProperties(delivery_mode=2))
    for number, connection in enumerate(connections):
        assert connection.channel().basic_get(f"spread.{number}", auto_ack=True)[2] == b"x"
        connection.close()


def test_each_has_an_http_port_of_its_own_and_says_so(service: Service) -> None:
    for number, name in enumerate((FIRST, SECOND)):
        own = service.cluster + 1_000 + number
        assert service.api("overview", own)["node"] == name
        for port in (own, service.http):
            service.ctl("-n", name, "check_port_listener", str(port))


def test_a_port_of_one_process_alone_is_not_shared_by_mistake(service: Service) -> None:
    socket.create_server(("", service.http), reuse_port=True).close()  # As others of the same service may.
    for number in range(2):
        with pytest.raises(OSError, match="in use"):
            socket.create_server(("", service.cluster + 1_000 + number), reuse_port=True).close()


def test_no_queue_has_two_copies_on_the_machine(service: Service) -> None:
    service.ctl("set_policy", "all", "^mirrored", '{"ha-mode": "all"}')
    with service.connect() as connection:
        connection.channel().queue_declare("mirrored", durable=True)
    (found,) = [one for one in service.api("queues") if one["name"] == "mirrored"]
    assert found.get("slave_nodes", []) == []


def test_a_process_that_crashes_is_started_again(service: Service) -> None:
    with service.connect() as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for number in range(8):
            channel.queue_declare(f"kept.{number}", durable=True)
            channel.basic_publish("", f"kept.{number}", b"x", pika.BasicProperties(delivery_mode=2))
    before = service.pid(SECOND)
    os.kill(before, signal.SIGKILL)
    until(lambda: any(one.name == SECOND and one.pid != before for one in local_registry.entries()), "another process")
    service.ctl("-n", SECOND, "await_startup")
    assert service.process.poll() is None
    until(lambda: all(one["running"] for one in service.api("nodes")), "both nodes")
    with service.connect() as connection:
        for number in range(8):
            assert connection.channel().basic_get(f"kept.{number}", auto_ack=True)[2] == b"x"


def test_the_machine_is_drained_by_one_command(service: Service) -> None:
    told = service.ctl("drain", "--machine")
    assert f"Node {FIRST} is in maintenance" in told and f"Node {SECOND} is in maintenance" in told
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        service.connect()
    service.ctl("revive", "--machine")
    until(lambda: not any(one["being_drained"] for one in service.api("nodes")), "nodes in service")
    service.connect().close()


@pytest.mark.parametrize("commands", [("leave_cluster", "start_app"), ("stop_app", "reset", "start_app")])
def test_the_first_founds_no_second_cluster_when_it_has_left(service: Service, commands: tuple[str, ...]) -> None:
    for command in commands:
        service.ctl("-n", FIRST, command)
    members = [service.api("nodes", service.cluster + 1_000 + number) for number in range(2)]
    assert [{one["name"] for one in found} for found in members] == [{FIRST, SECOND}] * 2


def test_a_second_service_does_not_share_its_ports(service: Service, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "leveret", "server", "--processes", "2", "--port", str(service.port), "--data",
         str(tmp_path / "data"), "--cluster-port", "20500"],
        env=service.environ, capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 69 and "another process does" in done.stderr


def test_a_group_ends_with_its_terminal(service: Service, tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    port, cluster = free_ports(1)[0], cluster_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "leveret", "server", "--processes", "2", "--name", "tty@localhost", "--port", str(port),
         "--data", str(tmp_path / "data"), "--cluster-port", str(cluster), "--management-port", "none"],
        env=service.environ, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        try:
            assert next(line for line in process.stdout if line.startswith("ready"))
            process.send_signal(signal.SIGHUP)  # As the kernel does when the window is closed.
            assert process.wait(WAIT_S) == 0
        finally:
            process.kill()  # Its nodes end with it.
            os.close(ours)
            os.close(theirs)


def test_others_go_on_without_a_process_that_has_lost_its_data(tmp_path: Path) -> None:
    three = Service(tmp_path, 3)
    try:
        names = running(three)
        three.stop()
        shutil.rmtree(tmp_path / "data-2")
        three.start()
        assert three.wait_until_ready().startswith("ready processes=2 ")
        assert running(three) == names - {SECOND}
        three.ctl("-n", FIRST, "forget_cluster_node", SECOND)
        until(lambda: running(three) == names, "it has joined again")
    finally:
        three.close()


@pytest.mark.parametrize("has_vote", [True, False])
def test_one_of_two_goes_on_if_the_data_of_the_first_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_vote: bool
) -> None:
    monkeypatch.setenv("LEVERET_RUNTIME_DIR", str(tmp_path / "nodes"))
    two = Service(tmp_path)
    try:
        until(lambda: all(one["voter"] for one in two.api("leveret/cluster")["members"]), "both have a vote")
        if not has_vote:
            two.ctl("-n", SECOND, "stop_app")
        two.kill()
        shutil.rmtree(tmp_path / "data")
        two.start()
        words = ["-n", SECOND]
        until(lambda: any(one.name == SECOND for one in local_registry.entries()), "it can be asked")
        if has_vote:
            two.ctl(*words, "go_on_alone")
        else:
            for command in ("stop_app", "force_boot", "start_app"):
                two.ctl(*words, command)
        two.wait_until_ready()
        until(lambda: running(two) == {FIRST, SECOND}, "the first has joined the second")
    finally:
        two.close()


def test_stop_stops_all(service: Service) -> None:
    service.ctl("stop")
    assert service.process.wait(WAIT_S) == 0
    assert service.process.stdout is not None
    assert service.process.stdout.read() == ""  # All was told once.
    assert local_registry.entries() == []
