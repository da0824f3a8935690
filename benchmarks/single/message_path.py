"""Which files and functions one message passes through: `python -m benchmarks.single.message_path [--nodes 3]`.

Nodes run in processes of their own, in which every call of a function of Leveret is counted between two signals. The
client publishes one persistent message, waits for its confirm and its delivery, and acknowledges it. With several
nodes, the queue has a mirror on each. What the nodes call by themselves in the same time, without a message, is counted
before and left out: ticks, heartbeats and samples are not the message's.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

from benchmarks.ruler import calls
from benchmarks.ruler.brokers import ROOT, Leveret, Policy, cluster
from benchmarks.ruler.calls import Connection
from benchmarks.ruler.workloads import PREFIX, scene
from leveret.client import amqp

MODULE: Final = "benchmarks.single.message_path"
QUEUE: Final = f"{PREFIX}.path"
WARM_UP: Final = 50
WINDOW_S: Final = 0.3  # Time enough for a message, the sync of its ack, and some ticks.
IDLE_WINDOWS: Final = 5
WAIT_S: Final = 30.0
PACKAGE: Final = str(ROOT / "leveret")


class Counted:
    """Counts calls in this process, by file and function, while it is switched on."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.calls: Counter[tuple[str, str]] = Counter()
        self.is_on = False
        self.windows = 0

    def watch(self) -> None:
        """Has calls of this thread and of all threads to come counted. SIGUSR1 begins a window, SIGUSR2 ends it."""
        signal.signal(signal.SIGUSR1, self._begin)
        signal.signal(signal.SIGUSR2, self._end)
        threading.setprofile(self._on_event)
        sys.setprofile(self._on_event)

    def _on_event(self, frame: FrameType, event: str, argument: Any) -> None:
        if self.is_on and event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            self.calls[frame.f_code.co_filename[len(PACKAGE) + 1 :], frame.f_code.co_qualname] += 1

    def _begin(self, number: int, frame: FrameType | None) -> None:
        self.calls.clear()
        self.is_on = True

    def _end(self, number: int, frame: FrameType | None) -> None:
        self.is_on = False
        self.windows += 1
        rows = [[file, function, count] for (file, function), count in self.calls.items()]
        part = self.file.with_suffix(".part")
        part.write_text(json.dumps(rows))
        part.rename(f"{self.file}.{self.windows}")


class Profiled(Leveret):
    """A node whose calls are counted."""

    def __init__(self, folder: Path, beside: Profiled | None = None) -> None:
        super().__init__(folder, beside)
        self.windows = 0

    def command(self) -> list[str]:
        started = super().command()
        assert started[1:3] == ["-m", "leveret"]
        return [started[0], "-m", MODULE, "--node", str(self.folder / "calls"), *started[3:]]

    def begin(self) -> None:
        os.kill(self.pid(), signal.SIGUSR1)

    def end(self) -> Counter[tuple[str, str]]:
        """Returns the calls since `begin`."""
        self.windows += 1
        os.kill(self.pid(), signal.SIGUSR2)
        found = self.folder / f"calls.{self.windows}"
        until = time.monotonic() + WAIT_S
        while not found.exists():
            if time.monotonic() > until:
                raise TimeoutError("the node did not write its calls")
            time.sleep(0.01)
        return Counter({(file, function): count for file, function, count in json.loads(found.read_text())})


@contextmanager
def window(nodes: Sequence[Profiled], found: Counter[tuple[str, str]]) -> Iterator[None]:
    """Adds to `found` what all nodes call meanwhile."""
    for node in nodes:
        node.begin()
    yield
    for node in nodes:
        found += node.end()


def send(sender: Connection, receiver: Connection) -> None:
    """Has one message published, confirmed, delivered and acknowledged."""
    sender.socket.sendall(calls.publish("", QUEUE, b"x" * 100, persistent=True))
    sender.expect(amqp.BASIC_ACK)
    payload = receiver.expect(amqp.BASIC_DELIVER)
    receiver.read_frame()
    receiver.read_frame()
    receiver.socket.sendall(amqp.ack_through(int.from_bytes(payload[2:10], "big")))


def profile(count: int) -> tuple[Counter[tuple[str, str]], set[tuple[str, str]]]:
    """Returns the calls of one message in all nodes, and the functions that are called without one, too."""
    with cluster(Profiled, count) as nodes:
        if count > 1:
            nodes[0].set_policy(Policy("ha", ".*", {"ha-mode": "all"}))
        port = nodes[0].port
        with scene(port, [QUEUE]), Connection(port) as sender, Connection(port) as receiver:
            sender.select_confirms()
            receiver.consume(QUEUE, "c", no_ack=False)
            for _ in range(WARM_UP):
                send(sender, receiver)
            time.sleep(2 * WINDOW_S)
            idle: Counter[tuple[str, str]] = Counter()
            for _ in range(IDLE_WINDOWS):
                with window(nodes, idle):
                    time.sleep(WINDOW_S)
            called: Counter[tuple[str, str]] = Counter()
            with window(nodes, called):
                send(sender, receiver)
                time.sleep(WINDOW_S)
    return called, set(idle)


def report(called: Counter[tuple[str, str]], idle: set[tuple[str, str]]) -> str:
    """Returns the files in the order of their calls, each with its functions."""
    own = {key: count for key, count in called.items() if key not in idle}
    files = {file: [key for key in own if key[0] == file] for file in dict.fromkeys(file for file, _ in own)}
    lines = [f"{len(files)} files, {len(own)} functions, {sum(own.values())} calls"]
    for file, keys in files.items():
        lines.append(f"{file}: " + ", ".join(f"{name} {own[file, name]}" for _, name in keys))
    lines.append(f"also called without a message: {len([key for key in called if key in idle])} functions")
    return "\n".join(lines)


def main() -> None:
    if sys.argv[1:2] == ["--node"]:
        from leveret.cli.main import main as run

        Counted(Path(sys.argv[2])).watch()
        sys.exit(run(sys.argv[3:]))
    parser = argparse.ArgumentParser(description="Counts the files and functions that one message passes through.")
    parser.add_argument("--nodes", type=int, default=1, help="with more than one, the queue is mirrored on all")
    print(report(*profile(parser.parse_args().nodes)))


if __name__ == "__main__":
    main()
