"""The brokers that are measured: each a process of its own on loopback, with a data folder that goes when it goes."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Final

from benchmarks.wire import HOST, BrokerError, Connection

START_TIMEOUT_S: Final = 90.0
STOP_TIMEOUT_S: Final = 60.0
POLL_S: Final = 0.002
ROOT: Final = Path(__file__).parent.parent
RABBITMQ_PROGRAMS: Final = ("/usr/lib/rabbitmq/bin/rabbitmq-server", "rabbitmq-server")


class Broker(ABC):
    """A broker in `folder`, not started. It may be started again after `stop` or `kill`, with the same data."""

    name: ClassVar[str]

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self.version = ""
        folder.mkdir(parents=True, exist_ok=True)

    @abstractmethod
    def command(self) -> list[str]: ...

    @abstractmethod
    def environment(self) -> dict[str, str]: ...

    def pid(self) -> int:
        """Of the process that holds the messages."""
        assert self.process is not None
        return self.process.pid

    def start(self, timeout_s: float = START_TIMEOUT_S) -> float:
        """Seconds from the start of the process to the first connection that is open."""
        assert self.process is None
        with (self.folder / "output.log").open("ab") as output:
            began = time.perf_counter()
            self.process = subprocess.Popen(
                self.command(),
                cwd=ROOT,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for the benchmark, which then stops the broker in order.
            )
        while time.perf_counter() - began < timeout_s:
            try:
                with Connection(self.port, timeout_s) as connection:
                    took = time.perf_counter() - began
                    self.version = self.version or connection.version
                    return took
            except (OSError, BrokerError):
                if self.process.poll() is not None:
                    break
                time.sleep(POLL_S)
        self.kill()
        raise BrokerError(f"{self.name} did not start:\n{self.last_words()}")

    def last_words(self) -> str:
        return (self.folder / "output.log").read_text(errors="replace")[-2_000:]

    def stop(self) -> float:
        """Stop in order; the seconds it took."""
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

    def kill(self) -> None:
        """As kill -9, with all that it started."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    def resident_bytes(self) -> int:
        pid = self.pid()
        with contextlib.suppress(FileNotFoundError):  # Not every system has /proc; those have ps.
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("VmRSS:"):
                    return int(line.split()[1]) << 10
        return int(subprocess.check_output(["ps", "-o", "rss=", "-p", str(pid)])) << 10


class Leveret(Broker):
    name = "leveret"

    def command(self) -> list[str]:
        data = str(self.folder / "data")
        return [sys.executable, "-m", "leveret", "server", "--host", HOST, "--port", str(self.port), "--data", data]

    def environment(self) -> dict[str, str]:
        """Settings of the shell do not reach it, and it may keep compiled bytecode, as one that is installed does."""
        return {key: value for key, value in _plain_environment().items() if key != "PYTHONDONTWRITEBYTECODE"}


class RabbitMQ(Broker):
    """A node without plugins. Its epmd is its own too: one that others use, or that stays behind, is nobody's wish."""

    name = "rabbitmq"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.distribution_port, self.epmd_port = free_port(), free_port()
        self.epmd: subprocess.Popen[bytes] | None = None
        (folder / "home").mkdir(exist_ok=True)
        (folder / "enabled_plugins").write_text("[].\n")
        (folder / "rabbitmq.conf").write_text("loopback_users.guest = true\n")

    @staticmethod
    def program() -> str | None:
        """Debian's own wrapper in the path would start it as another user, so the program behind comes first."""
        found = (shutil.which(program) for program in RABBITMQ_PROGRAMS)
        return next((program for program in found if program and shutil.which("epmd")), None)

    def command(self) -> list[str]:
        program = self.program()
        assert program is not None
        return [program]

    def environment(self) -> dict[str, str]:
        folder = self.folder
        return _plain_environment() | {
            "HOME": str(folder / "home"),
            "RABBITMQ_NODENAME": f"benchmark{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": HOST,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self.distribution_port),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"-kernel inet_dist_use_interface {{{HOST.replace('.', ',')}}}",
            "ERL_EPMD_ADDRESS": HOST,
            "ERL_EPMD_PORT": str(self.epmd_port),
        }

    def pid(self) -> int:
        return int((self.folder / "pid").read_text())

    def start(self, timeout_s: float = START_TIMEOUT_S) -> float:
        if self.epmd is None:
            command = ["epmd", "-address", HOST, "-port", str(self.epmd_port)]
            self.epmd = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
        return super().start(timeout_s)

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


def _plain_environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith(("LEVERET_", "RABBITMQ_"))}


def free_port() -> int:
    with socket.create_server((HOST, 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def installed() -> list[type[Broker]]:
    """Leveret, and RabbitMQ if it is here."""
    return [Leveret, RabbitMQ] if RabbitMQ.program() else [Leveret]


@contextlib.contextmanager
def prepared(kind: type[Broker], data: Path | None = None) -> Iterator[Broker]:
    """A broker that is not started yet, in a new folder under `data` (default: the system's for temporary files)."""
    folder = Path(tempfile.mkdtemp(prefix=f"{kind.name}-benchmark-", dir=data))
    broker = kind(folder)
    try:
        yield broker
    finally:
        broker.kill()
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def running(kind: type[Broker], data: Path | None = None) -> Iterator[Broker]:
    """A started broker. Its data is thrown away afterwards, so it need not stop in order."""
    with prepared(kind, data) as broker:
        broker.start()
        yield broker
