"""Processes of `leveret` that are forked from one that has imported it already.

A node that starts needs 0.4 s of processor time to import its modules, and a tenth of that for all the rest; the tests
start more than a thousand. So a test process keeps *nurseries*: fresh interpreters that have imported what a node
imports, have run nothing of it, and fork. What is forked is a process like any other: it has its own arguments,
environment, folder, files and signals, ends as an interpreter ends, and can run its command line anew.

There are two nurseries, which fork by turns: strings have other hashes in the second, so the nodes of a cluster still
go through their sets and dictionaries in different orders.

A nursery and the test process share a socket. The test process sends what to run, with three descriptors: where
the process writes its output and its errors, and where the nursery writes the exit code. The nursery answers with the
process id.

A command that begins with `ip netns exec NAME` is forked too: the process enters that network before it does anything.
"""

from __future__ import annotations

import array
import ctypes
import importlib
import itertools
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, TypedDict

ROOT = Path(__file__).parents[3]
NURSERIES = 2
PRELOADED = ("leveret.cli.main", "leveret.cli.server", "leveret.node.server")
REQUEST_BYTES_MAX = 1 << 20
# What an interpreter, the loader or the allocator reads once, before any of it can be set.
READ_AT_START = ("PYTHON", "LD_", "MALLOC_", "GLIBC_")
IN_A_NETWORK = ["ip", "netns", "exec"]
NETWORKS = "/run/netns"
CLONE_NEWNET = 0x40000000

_turns = itertools.count()


class Asked(TypedDict):
    command: list[str]
    environment: dict[str, str]
    network: str  # The name of a namespace; "" for the one of the tests.
    own_group: bool


class Forked:
    """A process that a nursery has forked. Its methods are those of `subprocess.Popen`."""

    def __init__(self, pid: int, stdout: IO[str] | None, ended: int) -> None:
        self.pid = pid
        self.stdout = stdout
        self.returncode: int | None = None
        self._ended = ended  # Its exit code can be read here when it has ended.

    def poll(self) -> int | None:
        return self._await_end(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._await_end(timeout)
        if code is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        return code

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        """Waits until it has ended; returns what of its output nobody has read, which has to be little."""
        self.wait(timeout)
        assert self.stdout is not None
        with self.stdout:
            return self.stdout.read(), None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _await_end(self, seconds: float | None) -> int | None:
        if self.returncode is None and _readable(self._ended, seconds):
            self.returncode = int(os.read(self._ended, 16) or -signal.SIGKILL)  # Nothing: the nursery was killed.
            os.close(self._ended)
        return self.returncode


Process = subprocess.Popen[str] | Forked


def can_fork(command: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Returns whether the command, started in this process's environment with these changes, may be forked."""
    _, words = _network_and_words(command)
    is_leveret = sys.platform == "linux" and words[:3] == [sys.executable, "-m", "leveret"]
    return is_leveret and not any(name.startswith(READ_AT_START) for name in environment)


def fork(
    command: Sequence[str], environment: Mapping[str, str], log: IO[bytes], all_to_log: bool = False,
    own_group: bool = False,
) -> Forked:  # fmt: skip
    """Starts `python -m leveret ...`. The environment is all it has; `log` is where it writes its errors, and with
    `all_to_log` its output, which can be read from `stdout` otherwise. With `own_group` signals can be sent to its
    group, the process and those that it starts."""
    network, words = _network_and_words(command)
    output, its_output = (None, os.dup(log.fileno())) if all_to_log else os.pipe()
    ended, its_end = os.pipe()
    nursery = _nursery(next(_turns) % NURSERIES)
    try:
        asked = Asked(command=words, environment=dict(environment), network=network, own_group=own_group)
        pid = nursery.fork(asked, (its_output, log.fileno(), its_end))
    finally:
        os.close(its_output)
        os.close(its_end)
    return Forked(pid, None if output is None else os.fdopen(output, encoding="utf-8"), ended)


def _network_and_words(command: Sequence[str]) -> tuple[str, list[str]]:
    words = list(command)
    return (words[3], words[4:]) if words[:3] == IN_A_NETWORK else ("", words)


class Nursery:
    """An interpreter that forks. It ends with the test process."""

    def __init__(self) -> None:
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, __file__, str(theirs.fileno())]
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, pass_fds=[theirs.fileno()])

    def fork(self, asked: Asked, descriptors: Sequence[int]) -> int:
        """Returns the id of the process."""
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
        self.socket.sendmsg([json.dumps(asked).encode()], [rights])
        return int(self.socket.recv(16))


@cache
def _nursery(number: int) -> Nursery:
    return Nursery()


def _readable(descriptor: int, seconds: float | None) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        return bool(selector.select(seconds))


# -- In the nursery --------------------------------------------------------------------------------------------------


def main() -> int:
    sys.path[0] = str(ROOT)  # As with `-m`, rather than the folder of this file.
    for name in PRELOADED:
        importlib.import_module(name)
    with socket.socket(fileno=int(sys.argv[1])) as tests:
        child = fork_what_is_asked_for(tests)
    return 0 if child is None else run_as_if_started(*child)


def fork_what_is_asked_for(tests: socket.socket) -> tuple[Asked, list[int]] | None:
    """Returns None when the test process has ended; and in each process that it forks what this process is to be."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C is meant for the test process.
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    ends: dict[int, int] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(tests, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while True:
            ready = [key.fileobj for key, _ in selector.select()]
            if woken in ready:
                os.read(woken, 64)
                report_ends(ends)
            if tests not in ready:
                continue
            data, descriptors, _, _ = socket.recv_fds(tests, REQUEST_BYTES_MAX, 3)
            if not data:
                return None
            *outputs, end = descriptors
            asked: Asked = json.loads(data)
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                for descriptor in (woken, wake, end, *ends.values()):
                    os.close(descriptor)
                return asked, outputs
            if asked["own_group"]:
                os.setpgid(pid, pid)  # Here, so that it is so before anybody knows the process.
            ends[pid] = end
            for descriptor in outputs:
                os.close(descriptor)
            tests.send(b"%d" % pid)


def report_ends(ends: dict[int, int]) -> None:
    while ends:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        end = ends.pop(pid)
        try:
            os.write(end, b"%d" % os.waitstatus_to_exitcode(status))
        except BrokenPipeError:
            pass  # The test process has ended.
        os.close(end)


def run_as_if_started(asked: Asked, outputs: list[int]) -> int:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, descriptor in enumerate(outputs, 1):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(asked["environment"])
    time.tzset()
    if asked["network"]:
        enter(asked["network"])
    sys.orig_argv[:] = asked["command"]
    sys.argv[:] = ["leveret", *asked["command"][3:]]
    from leveret.cli.main import main as leveret

    return leveret()


def enter(network: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(f"{NETWORKS}/{network}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(descriptor, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns: {network}")
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    raise SystemExit(main())
