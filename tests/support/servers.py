"""Real servers for tests: `leveret server` as a process of its own, on ports that the system chose.

A `Server` can be stopped in order, killed, and started again on the same data; what it logs is kept, and shown by
`conftest` when the test fails. All addresses are 127.0.0.1, but for nodes in networks of their own (`networks`).
"""

from __future__ import annotations

import base64
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pika

from leveret.metadata.command_codec import encode_command
from leveret.metadata.model.commands import Command
from leveret.node.cluster.consensus_log import ConsensusLog, load_identity
from leveret.node.system.data_folder import METADATA
from leveret.raft import Entry, Kind, Member
from leveret.storage.segments.disk import FileDisk
from tests.support.processes.forked import Process, can_fork, fork

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0  # For events that must come. They mostly come at once, except on a machine that stalls or is busy.
START_S = 60.0  # Half a second, except on such a machine.
STOP_S = 60.0


class Server:
    """One node. `start` returns when clients can connect."""

    host = "127.0.0.1"
    launcher: tuple[str, ...] = ()  # A command that runs the node's command, if any.

    def __init__(
        self,
        folder: Path,
        config: str = "",
        environment: Mapping[str, str] | None = None,
        arguments: Iterable[str] = (),
    ) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.config = config
        self.environment = dict(environment or {})
        self.arguments = tuple(arguments)
        self.port = self.tls_port = self.cluster_port = self.management_port = self.prometheus_port = 0
        self.mqtt_port = self.mqtt_tls_port = self.web_mqtt_port = self.web_mqtt_tls_port = 0
        self.stomp_port = self.stomp_tls_port = self.web_stomp_port = 0
        self.process: Process | None = None
        self.connections: list[Any] = []
        folder.mkdir(parents=True, exist_ok=True)

    # -- Life ----------------------------------------------------------------------------------------------------

    def start(self, port: int = 0) -> Server:
        """Raises RuntimeError, with the log in its text, if the node does not come up."""
        self.spawn(port)
        return self.wait_until_ready()

    def wait_until_ready(self, seconds: float = START_S) -> Server:
        process = self.process
        assert process is not None
        line = read_line(process, seconds)
        if not line.startswith("ready "):
            self.kill()
            raise RuntimeError(f"no ready line but {line!r}, exit code {process.returncode}:\n{self.log()[-4000:]}")
        for word in line.split()[1:]:
            protocol, _, number = word.partition("=")
            if protocol == "amqp":
                self.port = int(number)
            elif protocol == "amqps":
                self.tls_port = int(number)
            elif protocol == "mqtt":
                self.mqtt_port = int(number)
            elif protocol == "mqtts":
                self.mqtt_tls_port = int(number)
            elif protocol == "web_mqtt":
                self.web_mqtt_port = int(number)
            elif protocol == "web_mqtts":
                self.web_mqtt_tls_port = int(number)
            elif protocol == "stomp":
                self.stomp_port = int(number)
            elif protocol == "stomps":
                self.stomp_tls_port = int(number)
            elif protocol == "web_stomp":
                self.web_stomp_port = int(number)
            elif protocol == "cluster":
                self.cluster_port = int(number)
            elif protocol == "prometheus":
                self.prometheus_port = int(number)
            else:
                self.management_port = int(number)
        return self

    def spawn(self, port: int = 0) -> Process:
        """Starts the process without waiting for it."""
        assert self.process is None
        command = [*self.launcher, sys.executable, "-m", "leveret", "server", "--data", str(self.data)]
        command += ["--port", str(port), *self.arguments]
        if "--cluster-port" not in self.arguments and "cluster.port" not in self.config:
            # The default would be 20,000 above, a port that the system may have given to a connection.
            command += ["--cluster-port", "0"]
        if "--management-port" not in self.arguments and "management." not in self.config:
            command += ["--management-port", "none"]  # The same; and few tests use it.
        if self.config:
            file = self.folder / "leveret.conf"
            file.write_text(self.config)
            command += ["--config", str(file)]
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith(("LEVERET_", "RABBITMQ_"))
        }
        environment = {**inherited, "HOME": str(self.folder), **self.environment}
        with open(self.folder / "server.err", "ab") as log:
            if can_fork(command, self.environment):
                self.process = fork(command, environment, log)
            else:
                self.process = subprocess.Popen(
                    command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=log, text=True
                )
        return self.process

    def kill(self) -> None:
        """Kills it with -9, and waits until it has ended."""
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.communicate()

    def stop(self) -> int:
        """Stops it with SIGTERM, and returns the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """Waits until it ends by itself, and returns the exit code."""
        process, self.process = self.process, None
        assert process is not None
        try:
            process.communicate(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise
        return process.wait()

    def end(self) -> None:
        """Cleans up after a test. The server is stopped first: it may be blocked and answer no close."""
        self.kill()
        for connection in self.connections:
            try:
                while connection.is_open:
                    connection.process_data_events(1)
            except pika.exceptions.AMQPError:
                pass  # The client has noticed, and closed its socket.

    # -- Talking to it -------------------------------------------------------------------------------------------

    def connect(self, user: str = "guest", password: str = "guest", **parameters: Any) -> Any:
        """Returns a pika connection, which is closed after the test."""
        parameters.setdefault("heartbeat", 0)
        for patience in ("blocked_connection_timeout", "socket_timeout", "stack_timeout"):
            parameters.setdefault(patience, PATIENCE_S)
        credentials = parameters.pop("credentials", None) or pika.PlainCredentials(user, password)
        connection = pika.BlockingConnection(
            pika.ConnectionParameters(self.host, self.port, credentials=credentials, **parameters)
        )
        self.connections.append(connection)
        return connection

    def channel(self, confirms: bool = False, **parameters: Any) -> Any:
        """Returns a channel on a connection of its own."""
        channel = self.connect(**parameters).channel()
        if confirms:
            channel.confirm_delivery()
        return channel

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@{self.host}:{self.port}/"

    # -- Looking at it -------------------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def log(self) -> str:
        return (self.folder / "server.err").read_text(errors="replace")

    def resident_bytes(self) -> int:
        with open(f"/proc/{self.pid}/status") as status:
            for line in status:
                if line.startswith("VmRSS:"):
                    return int(line.split()[1]) * 1024
        raise AssertionError("no VmRSS")

    def busy_s(self) -> float:
        """Returns its processor time since the start, on all cores. Unlike elapsed time, it hardly depends on the
        load of the machine."""
        with open(f"/proc/{self.pid}/stat") as status:
            fields = status.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def disk_bytes(self) -> int:
        """Returns the disk usage of the data: blocks, not lengths, since space may be allocated ahead."""
        total = 0
        for folder, _, names in os.walk(self.data):
            for name in names:
                try:
                    total += os.stat(os.path.join(folder, name)).st_blocks * 512
                except FileNotFoundError:
                    pass  # Removed meanwhile.
        return total

    def segments(self) -> list[Path]:
        """Returns the files of the message log, oldest first."""
        return sorted(path for path in self.data.rglob("*.log") if path.is_file())


def read_line(process: Process, seconds: float) -> str:
    """Returns the next line of its output; "" at the end of it or after that time."""
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        if not selector.select(seconds):
            return ""
    return process.stdout.readline().strip()


def prepare(data: Path, commands: Iterable[Command], name: str = "leveret@localhost") -> None:
    """Writes metadata into the folder of a node that has not started yet, as if it had founded a cluster."""
    data.mkdir(parents=True, exist_ok=True)
    disk = FileDisk(str(data))
    member = Member(load_identity(disk, METADATA, "0123456789abcdef" * 2), name, "127.0.0.1:25672")
    log = ConsensusLog(disk, METADATA)
    log.found(member)
    origin = bytes(16)
    entries = [Entry(2 + at, 1, Kind.COMMAND, origin + encode_command(one)) for at, one in enumerate(commands)]
    log.save(None, entries, 1 + len(entries), None)
    job = log.take()
    assert job is not None
    job.perform(disk)
    disk.close()


def call_api(port: int, method: str, path: str, body: Any = None, user: str = "guest") -> tuple[int, Any]:
    """Sends a request to the management port, as a user whose password is its name; returns status and JSON."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/api/{path}", method=method)
    request.add_header("authorization", "Basic " + base64.b64encode(f"{user}:{user}".encode()).decode())
    request.add_header("content-type", "application/json")
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(request, data, timeout=30) as answer:
            text = answer.read()
            return answer.status, json.loads(text) if text else None
    except urllib.error.HTTPError as error:
        with error:
            text = error.read()
            return error.code, json.loads(text) if text else None


def until(condition: Callable[[], object], what: str, seconds: float = PATIENCE_S) -> None:
    """Waits for a condition that no event reports."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"after {seconds:g} s, still not: {what}")
        pause.wait(0.02)
