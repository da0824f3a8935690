"""A broker's node as a group of processes in a network namespace."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import IO, Protocol

from faults.machines.helper import Helper

AMQP_PORT = 5672
START_S = 90.0
STOP_S = 60.0


class NodeError(RuntimeError):
    """A node did not do what it was told."""


def until(condition: Callable[[], object], what: str, seconds: float) -> None:
    """Waits for a condition that no event reports. Raises NodeError."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not condition():
        if time.monotonic() > deadline:
            raise NodeError(f"after {seconds:g} s, still not: {what}")
        pause.wait(0.05)


class Process(Protocol):
    """A process that leads a group; a part of `subprocess.Popen`."""

    pid: int

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, sig: int, /) -> None: ...


def launch(command: list[str], environment: dict[str, str], log: IO[bytes]) -> Process:
    """Starts a process that writes all into the log."""
    return subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        text=True,
        start_new_session=True,
    )


class Node(ABC):
    """A node. Signals go to all its processes."""

    launch = staticmethod(launch)  # Tests have a quicker one.
    port = AMQP_PORT
    spare_descriptors = 20  # That it is left when clients are to use them up.
    founder: str  # The host of the node that it joins when its folder is empty; its own if it joins none.

    def __init__(self, number: int, host: str, space: str, folder: Path) -> None:
        self.number, self.host, self.space, self.folder = number, host, space, folder
        folder.mkdir(parents=True, exist_ok=True)
        self.data = folder / "data"
        self.clock_file = folder / "clock"  # By how much the time of day is wrong, in the form of libfaketime.
        self.disk: Helper | None = None
        self.process: Process | None = None
        self.is_frozen = False
        self.has_false_clock = False

    @property
    @abstractmethod
    def name(self) -> str:
        """Returns the name it has in its cluster."""

    @abstractmethod
    def command(self) -> list[str]: ...

    @abstractmethod
    def environment(self) -> dict[str, str]: ...

    @abstractmethod
    def is_ready(self) -> bool:
        """Returns whether it takes clients."""

    # -- Commands: each raises NodeError -------------------------------------------------------------------------

    @abstractmethod
    def copies(self) -> dict[str, tuple[str, frozenset[str], frozenset[str]]]:
        """Returns the master, the mirrors and the mirrors in sync of all queues."""

    @abstractmethod
    def set_policy(self, prefix: str, definition: dict[str, object], apply_to: str) -> None:
        """Sets a policy for all whose names begin so; a longer prefix has a higher priority."""

    @abstractmethod
    def set_parameter(self, component: str, name: str, value: dict[str, object]) -> None: ...

    @abstractmethod
    def set_memory_limit(self, size: int | None) -> None:
        """Sets the memory watermark in bytes; None for the usual one."""

    @abstractmethod
    def forget(self, name: str) -> None:
        """Has the cluster forget a node that is down."""

    @abstractmethod
    def links_run(self) -> bool:
        """Returns whether there are links of federations, and all of them run."""

    # -- Life ----------------------------------------------------------------------------------------------------

    def spawn(self) -> None:
        """Starts it without waiting for it."""
        assert self.process is None
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("LEVERET_", "RABBITMQ_"))
        }
        environment |= self.environment()
        if self.has_false_clock:
            self.set_clock(0)
        with open(self.folder / "output", "ab") as log:
            self.process = self.launch(["ip", "netns", "exec", self.space, *self.command()], environment, log)

    def await_ready(self, seconds: float = START_S) -> None:
        """Raises NodeError if it ends instead, or is not ready in time."""

        def is_settled() -> bool:
            return not self.is_running or self.is_ready()

        until(is_settled, f"{self.name} is ready", seconds)
        if not self.is_running:
            raise NodeError(f"{self.name} ended by itself:\n{self.log()[-3_000:]}")

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def kill(self) -> None:
        """Kills it with -9, and waits until it has ended."""
        if self.process is not None:
            self.signal(signal.SIGKILL)
            self.process.wait()
        self.process, self.is_frozen = None, False

    def stop(self) -> int:
        """Stops it in an orderly way; returns its exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise NodeError(f"{self.name} did not stop within {STOP_S:g} s") from None
        self.kill()  # What is left of its group.
        return code

    def freeze(self) -> None:
        self.signal(signal.SIGSTOP)
        self.is_frozen = True

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)
        self.is_frozen = False

    # -- Faults --------------------------------------------------------------------------------------------------

    def lose_power(self, seed: int, keep: float) -> int:
        """Kills it and has its disk forget; returns how many bytes had not been synced."""
        assert self.disk is not None
        self.kill()
        unsynced: int = self.disk("lose", seed=seed, keep=keep)["unsynced"]
        return unsynced

    def set_clock(self, offset_s: int) -> None:
        new = self.clock_file.with_suffix(".new")
        new.write_text(f"{offset_s:+d}s\n")
        new.rename(self.clock_file)

    def limit_descriptors(self, count: int) -> int:
        """Lets it open so many files and sockets; returns how many it could before."""
        before, most = resource.prlimit(self.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(self.pid, resource.RLIMIT_NOFILE, (count, most))
        return before

    def open_descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def log(self) -> str:
        return (self.folder / "output").read_text(errors="replace")

    def close(self) -> None:
        """Ends it and its disk for good."""
        if self.disk is not None:
            with contextlib.suppress(Exception):
                self.disk("go on")
        self.kill()
        if self.disk is not None:
            self.disk.close()
            self.disk = None
