"""The brokers that are measured: each a process of its own on loopback, with a data folder that is deleted with it.

A cluster is a first node and others `beside` it: they have its cookie and join it when they first start.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import resource
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, ClassVar, Final, NamedTuple, Self, TypeVar

from benchmarks.ruler.calls import HOST, Connection
from benchmarks.ruler.rabbitmq_programs import ControlError, control, plain_environment, server_program
from leveret.client.amqp import BrokerError
from leveret.links.frame_types import CONTROL
from leveret.links.link import Identity
from leveret.node.sockets.peer_socket import CallFailed, call

START_TIMEOUT_S: Final = 90.0
STOP_TIMEOUT_S: Final = 60.0
CONTROL_TIMEOUT_S: Final = 90.0
FILL_TIMEOUT_S: Final = 600.0
POLL_S: Final = 0.002
COPIES_POLL_S: Final = 0.02
ROOT: Final = Path(__file__).parent.parent.parent


class Policy(NamedTuple):
    name: str
    pattern: str
    definition: Mapping[str, Any]


class Server(ABC):
    """The process of a broker in `folder`, not started. It may be started again after `stop` or `kill`, with the same
    data."""

    name: ClassVar[str]

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None
        self.version = ""
        folder.mkdir(parents=True, exist_ok=True)

    @abstractmethod
    def command(self) -> list[str]: ...

    @abstractmethod
    def environment(self) -> dict[str, str]: ...

    @abstractmethod
    def ask_version(self, timeout_s: float) -> str:
        """Opens a connection and returns the broker's version; raises OSError or BrokerError if it is not ready."""

    def pid(self) -> int:
        """Returns the process that holds the messages."""
        assert self.process is not None
        return self.process.pid

    def start(self, timeout_s: float = START_TIMEOUT_S) -> float:
        """Returns the seconds from the start of the process to the first open connection."""
        assert self.process is None
        with (self.folder / "output.log").open("ab") as output:
            began = time.perf_counter()
            self.process = self.launch(self.command(), output)
        while time.perf_counter() - began < timeout_s:
            try:
                self.version = self.ask_version(timeout_s)
                return time.perf_counter() - began
            except (OSError, BrokerError):
                if self.process.poll() is not None:
                    break
                time.sleep(POLL_S)
        self.kill()
        raise BrokerError(f"{self.name} did not start:\n{self.last_words()}")

    def launch(self, command: list[str], output: IO[bytes]) -> subprocess.Popen[bytes]:
        """Starts the process, without waiting for it."""
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C is for the benchmark, which then stops the broker.
        )

    def last_words(self) -> str:
        return (self.folder / "output.log").read_text(errors="replace")[-2_000:]

    def stop(self) -> float:
        """Stops it in an orderly way, and returns the seconds it took."""
        if self.process is None:
            return 0.0
        began = time.perf_counter()
        os.kill(self.pid(), signal.SIGTERM)
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BrokerError(f"{self.name} did not stop within {STOP_TIMEOUT_S} s:\n{self.last_words()}") from None
        self.process = None
        return time.perf_counter() - began

    def strike(self) -> None:
        """Kills it with -9, with all processes it started. Returns at once; call `bury` before it is started again."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def bury(self) -> None:
        """Waits for the end of a killed process."""
        if self.process is not None:
            self.process.wait()
            self.process = None

    def kill(self) -> None:
        """Kills it for good, with what it shares with nodes beside it."""
        self.strike()
        self.bury()

    def cpu_s(self) -> float:
        """Returns the processor time that its process has taken so far."""
        fields = Path(f"/proc/{self.pid()}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_bytes(self) -> int:
        pid = self.pid()
        with contextlib.suppress(FileNotFoundError):  # Systems without /proc have ps.
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("VmRSS:"):
                    return int(line.split()[1]) << 10
        return int(subprocess.check_output(["ps", "-o", "rss=", "-p", str(pid)])) << 10


class Broker(Server):
    """A node of a broker that speaks AMQP and forms clusters.

    One that is `beside` another joins it at its first start, so the other must run by then.
    """

    def __init__(self, folder: Path, beside: Self | None = None) -> None:
        super().__init__(folder)
        self.beside = beside
        self.port, self.cluster_port = free_ports(2)
        self.node = f"benchmark{self.port}@localhost"

    @abstractmethod
    def set_policy(self, policy: Policy) -> None: ...

    @abstractmethod
    def await_copies(self, queue: str, copies: int) -> None:
        """Waits until that many nodes have all of the queue, including its master."""

    def ask_version(self, timeout_s: float) -> str:
        with Connection(self.port, timeout_s) as connection:
            return self.version or connection.version

    def add_copies(self, policy: Policy, queue: str, copies: int) -> tuple[float, float]:
        """Sets a policy that gives the queue more copies, and waits for them; returns when it was set and when they
        were in sync, in seconds of the system's clock."""
        began = time.time()
        self.set_policy(policy)
        self.await_copies(queue, copies)
        return began, time.time()


class Leveret(Broker):
    name = "leveret"

    def __init__(self, folder: Path, beside: Self | None = None) -> None:
        super().__init__(folder, beside)
        self.cookie: Path = beside.cookie if beside else folder / "cookie"
        if beside is None:
            self.cookie.touch(mode=0o600)
            self.cookie.write_text(secrets.token_hex())

    def command(self) -> list[str]:
        command = [sys.executable, "-m", "leveret", "server", "--name", self.node]
        command += ["--host", HOST, "--port", str(self.port), "--data", str(self.folder / "data")]
        command += ["--cluster-port", str(self.cluster_port), "--cookie-file", str(self.cookie)]
        command += ["--management-port", "0"]
        if self.beside is not None:
            command += ["--join", f"{HOST}:{self.beside.cluster_port}"]
        return command

    def environment(self) -> dict[str, str]:
        """Returns an environment without the shell's settings, in which bytecode may be kept, as in an installed
        package."""
        return {key: value for key, value in plain_environment().items() if key != "PYTHONDONTWRITEBYTECODE"}

    def set_policy(self, policy: Policy) -> None:
        name, pattern, definition = policy
        arguments = {"vhost": "/", "name": name, "pattern": pattern, "definition": definition}
        self.control("set_policy", **arguments, priority=0, apply_to="queues", operator=False)

    def await_copies(self, queue: str, copies: int) -> None:
        columns = ["name", "synchronised_slave_pids"]
        until = time.monotonic() + FILL_TIMEOUT_S
        while time.monotonic() < until:
            rows = self.control("list_queues", vhost="/", columns=columns, after=None)["rows"]
            found = dict(rows).get(queue)
            if 1 + len(found or ()) >= copies:
                return
            time.sleep(COPIES_POLL_S)
        raise BrokerError(f"{queue} did not get {copies} copies within {FILL_TIMEOUT_S} s")

    def control(self, command: str, /, **arguments: Any) -> Any:
        """Does what leveretctl would do, without starting it: another process would take its share of what is
        measured."""
        asked = json.dumps({"command": command, "arguments": arguments}).encode()
        me, cookie = Identity("benchmarks", os.urandom(16)), self.cookie.read_bytes()
        try:
            raw = asyncio.run(call((HOST, self.cluster_port), CONTROL, asked, CONTROL_TIMEOUT_S, me, cookie, None))
        except (OSError, CallFailed) as error:
            raise BrokerError(f"{command}: {error}") from None
        answer = json.loads(raw)
        if "error" in answer:
            raise BrokerError(f"{command}: {answer['error']['text']}")
        return answer["ok"]


ON_LOOPBACK: Final = f"-kernel inet_dist_use_interface {{{HOST.replace('.', ',')}}}"


class RabbitMQ(Broker):
    """A node without plugins. It has its own epmd: one that others use, or that stays behind, would disturb.

    Nodes beside it share that epmd, and cannot be reached once it is gone.
    """

    name = "rabbitmq"

    def __init__(self, folder: Path, beside: Self | None = None) -> None:
        super().__init__(folder, beside)
        self.home: Path = beside.home if beside else folder / "home"  # The cookie is there.
        self.epmd_port: int = beside.epmd_port if beside else free_ports(1)[0]
        self.epmd: subprocess.Popen[bytes] | None = None
        self.joined = beside is None
        self.home.mkdir(exist_ok=True)
        (folder / "enabled_plugins").write_text("[].\n")
        (folder / "rabbitmq.conf").write_text("loopback_users.guest = true\n")

    @staticmethod
    def program() -> str | None:
        return server_program()

    def command(self) -> list[str]:
        program = self.program()
        assert program is not None
        return [program]

    def environment(self) -> dict[str, str]:
        folder = self.folder
        return plain_environment() | {
            "HOME": str(self.home),
            "RABBITMQ_NODENAME": self.node,
            "RABBITMQ_NODE_IP_ADDRESS": HOST,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self.cluster_port),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": ON_LOOPBACK,
            "RABBITMQ_CTL_ERL_ARGS": ON_LOOPBACK,
            "ERL_EPMD_ADDRESS": HOST,
            "ERL_EPMD_PORT": str(self.epmd_port),
        }

    def pid(self) -> int:
        return int((self.folder / "pid").read_text())

    def start(self, timeout_s: float = START_TIMEOUT_S) -> float:
        if self.epmd is None and self.beside is None:
            command = ["epmd", "-address", HOST, "-port", str(self.epmd_port)]
            self.epmd = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
        took = super().start(timeout_s)
        if not self.joined:
            assert self.beside is not None
            began = time.perf_counter()
            for words in (["stop_app"], ["join_cluster", self.beside.node], ["start_app"]):
                self.control(*words)
            self.joined = True
            took += time.perf_counter() - began
        return took

    def set_policy(self, policy: Policy) -> None:
        definition = json.dumps(policy.definition)
        self.control("set_policy", policy.name, policy.pattern, definition, "--apply-to", "queues")

    def await_copies(self, queue: str, copies: int) -> None:
        self.control("eval", _awaiting(queue, copies) + "Wait().", timeout_s=FILL_TIMEOUT_S)

    def add_copies(self, policy: Policy, queue: str, copies: int) -> tuple[float, float]:
        """Does all of it in the node: rabbitmqctl takes seconds to start, and a processor while it does."""
        words = ("/", policy.name, policy.pattern, json.dumps(policy.definition), "0", "queues", "guest")
        setting = f"rabbit_policy:parse_set({', '.join(map(_binary, words))})"
        clock = "os:system_time(millisecond)"
        body = f"Began = {clock}, ok = {setting}, Wait(), {{Began, {clock}}}."
        answer = self.control("eval", _awaiting(queue, copies) + body, timeout_s=FILL_TIMEOUT_S)
        began, ended = re.findall(r"\d+", answer)[-2:]
        return int(began) / 1_000, int(ended) / 1_000

    def control(self, *words: str, timeout_s: float = CONTROL_TIMEOUT_S) -> str:
        try:
            return control(words, self.environment(), timeout_s, ("--node", self.node))
        except ControlError as error:
            raise BrokerError(str(error)) from None

    def stop(self) -> float:
        try:
            return super().stop()
        finally:
            self._stop_epmd()

    def kill(self) -> None:
        super().kill()
        self._stop_epmd()

    def _stop_epmd(self) -> None:
        if self.epmd is not None:
            self.epmd.kill()
            self.epmd.wait()
            self.epmd = None


def _binary(text: str) -> str:
    """Returns a text as an Erlang binary."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'<<"{escaped}">>'


def _awaiting(queue: str, copies: int) -> str:
    """Returns Erlang code that names a function `Wait`, which waits until a queue has that many copies in sync."""
    count = "length(amqqueue:get_sync_slave_pids(Q))"
    step = f"case {count} >= {copies - 1} of true -> ok; false -> timer:sleep(20), Again() end"
    lookup = f"{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r({_binary('/')}, queue, {_binary(queue)}))"
    return f"Wait = fun Again() -> {lookup}, {step} end, "


S = TypeVar("S", bound=Server)
B = TypeVar("B", bound=Broker)


def free_ports(count: int) -> list[int]:
    """Returns different free ports: each is held until all are found."""
    with contextlib.ExitStack() as held:
        listeners = [held.enter_context(socket.create_server((HOST, 0))) for _ in range(count)]
        return [listener.getsockname()[1] for listener in listeners]


def raise_file_limit() -> None:
    """Raises the limit of open files: 2,000 connections need as many here and in the broker, which inherits the
    limit."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def installed() -> list[type[Broker]]:
    """Returns Leveret, and RabbitMQ if it is installed."""
    return [Leveret, RabbitMQ] if RabbitMQ.program() else [Leveret]


@contextlib.contextmanager
def prepared(kind: type[B], data: Path | None = None, beside: B | None = None) -> Iterator[B]:
    """Returns a broker that is not started yet, in a new folder under `data` (default: the system's temporary one)."""
    folder = new_folder(kind, data)
    with kept(kind(folder, beside)) as broker:
        yield broker


def new_folder(kind: type[Server], data: Path | None) -> Path:
    return Path(tempfile.mkdtemp(prefix=f"{kind.name}-benchmark-", dir=data))


@contextlib.contextmanager
def kept(server: S) -> Iterator[S]:
    """Kills the server at the end, and deletes its folder: its data is not needed, so it need not stop in an orderly
    way."""
    try:
        yield server
    finally:
        server.kill()
        shutil.rmtree(server.folder, ignore_errors=True)


@contextlib.contextmanager
def running(kind: type[B], data: Path | None = None) -> Iterator[B]:
    """Yields a started broker, which is gone afterwards."""
    with prepared(kind, data) as broker:
        broker.start()
        yield broker


@contextlib.contextmanager
def cluster(kind: type[B], size: int, data: Path | None = None) -> Iterator[list[B]]:
    """Yields started nodes that are one cluster, founded by the first. All are gone afterwards, started or not."""
    with contextlib.ExitStack() as started:
        nodes: list[B] = []
        for _ in range(size):
            node = started.enter_context(prepared(kind, data, nodes[0] if nodes else None))
            node.start()
            nodes.append(node)
        yield nodes
