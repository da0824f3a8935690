"""Where the time of a confirm goes: `python -m benchmarks.single.trace_latency`.

A node runs in a process of its own, in which the methods that a message passes through are wrapped so that they note
the time. Nothing of this is in the broker itself. The client sends one persistent message after the other, and notes
when it was sent, confirmed and delivered. Both processes read the same clock, so that their notes can be put in one
order: each stage of `STAGES` ends where the next one begins. Wrapping costs about a microsecond a stage.
"""

from __future__ import annotations

import argparse
import json
import select
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from benchmarks.ruler import calls
from benchmarks.ruler.brokers import ROOT, free_ports
from benchmarks.ruler.calls import Connection
from benchmarks.ruler.rabbitmq_programs import plain_environment
from benchmarks.ruler.workloads import PREFIX, scene
from leveret.client import amqp

MODULE: Final = "benchmarks.single.trace_latency"
WARM_UP: Final = 200
START_S: Final = 20.0
QUEUE: Final = f"{PREFIX}.traced"

# The notes in the order of a message, and the stage that ends with each.
STAGES: Final = (
    ("sent", ""),
    ("read", "the client's send, the kernel, the node's wake-up"),
    ("parsed", "frames, route, the queue's batch"),
    ("turn", "until the turn"),
    ("taking", "delivery to the consumer, socket written"),
    ("submitted", "the block, the group"),
    ("performing", "hand-over to the thread that writes"),
    ("writing", "the group's bytes"),
    ("syncing", "write to the page cache"),
    ("synced", "sync of the disk"),
    ("committed", "hand-over to the event loop, if it did not wait"),
    ("flushing", "confirm made"),
    ("confirmed", "socket written, the kernel, the client's wake-up"),
)


class Notes:
    """Times by name, in the node."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []

    def wrap(self, owner: Any, name: str, before: str = "", after: str = "") -> None:
        """Has calls of a method noted, at their beginning, their end, or both."""
        inner: Callable[..., Any] = getattr(owner, name)
        events, clock = self.events, time.perf_counter_ns

        def noted(*arguments: Any) -> Any:
            if before:
                events.append((before, clock()))
            try:
                return inner(*arguments)
            finally:
                if after:
                    events.append((after, clock()))

        setattr(owner, name, noted)


def run_node(file: str, arguments: Sequence[str]) -> None:
    """Runs a node, and writes its notes to `file` at the end."""
    from leveret.cli.main import main
    from leveret.node.node import Node
    from leveret.node.sockets.amqp_socket import AmqpSocket
    from leveret.node.storage import Storage
    from leveret.node.system.disk_thread import DiskThread
    from leveret.storage.segments.disk import FileDisk
    from leveret.storage.segments.disk_jobs import Write

    notes = Notes()
    notes.wrap(AmqpSocket, "data_received", "read", "parsed")
    notes.wrap(AmqpSocket, "flush", "flushing")
    notes.wrap(Node, "turn", "turn")
    notes.wrap(Storage, "_take_blocks", "taking")
    notes.wrap(DiskThread, "submit", "submitted")
    notes.wrap(Write, "perform", "performing")
    notes.wrap(FileDisk, "write", "writing")
    notes.wrap(FileDisk, "sync", "syncing", "synced")
    notes.wrap(Storage, "_on_committed", "committed")
    try:
        main(["server", *arguments])
    finally:
        Path(file).write_text(json.dumps(notes.events))


class Traced:
    """Times of one message, in nanoseconds."""

    def __init__(self, sent: int) -> None:
        self.sent = sent
        self.confirmed = self.delivered = 0


def send_one_by_one(port: int, count: int, pause_s: float) -> list[Traced]:
    with scene(port, [QUEUE]), Connection(port) as sender, Connection(port) as receiver:
        message = calls.publish("", QUEUE, b"x" * 100, persistent=True)
        sender.select_confirms()
        receiver.consume(QUEUE, "c", no_ack=False)
        return [_send(sender, receiver, message, pause_s) for _ in range(count)]


def _send(sender: Connection, receiver: Connection, message: bytes, pause_s: float) -> Traced:
    time.sleep(pause_s)
    one = Traced(time.perf_counter_ns())
    sender.socket.sendall(message)
    while not one.confirmed or not one.delivered:
        ready, _, _ = select.select([sender.socket, receiver.socket], (), (), START_S)
        now = time.perf_counter_ns()
        if sender.socket in ready:
            sender.expect(amqp.BASIC_ACK)
            one.confirmed = now
        if receiver.socket in ready:
            payload = receiver.expect(amqp.BASIC_DELIVER)
            receiver.read_frame()
            receiver.read_frame()
            one.delivered = now
            receiver.socket.sendall(amqp.ack_through(int.from_bytes(payload[2:10], "big")))
        if not ready:
            raise TimeoutError("no confirm and no delivery")
    return one


def stages_of(one: Traced, events: Sequence[tuple[str, int]]) -> dict[str, float] | None:
    """Returns the microseconds of each stage, by the note that ends it. None if the notes are not those of a message
    that was alone: the commit before it was still under way."""
    times: dict[str, int] = {"sent": one.sent, "confirmed": one.confirmed}
    wanted = [name for name, _ in STAGES[1:-1]]
    at = one.sent
    for name in wanted:
        found = next((when for what, when in events if what == name and when >= at), None)
        if found is None or found > one.confirmed:
            return None
        times[name] = at = found
    names = [name for name, _ in STAGES]
    return {later: (times[later] - times[earlier]) / 1_000 for earlier, later in pairwise(names)}


def table(messages: Sequence[Traced], events: list[tuple[str, int]]) -> str:
    """Returns the budget as a Markdown table."""
    rows: list[dict[str, float]] = []
    begin = 0
    for one in messages:
        while begin < len(events) and events[begin][1] < one.sent:
            begin += 1
        end = begin
        while end < len(events) and events[end][1] <= one.confirmed:
            end += 1
        found = stages_of(one, events[begin:end])
        if found is not None:
            rows.append(found)
    if len(rows) < 2:
        raise RuntimeError(f"{len(rows)} of {len(messages)} messages could be followed")
    lines = ["| stage of a confirm | median, µs | 99th, µs |", "| --- | ---: | ---: |"]
    for name, text in STAGES[1:]:
        values = [row[name] for row in rows]
        lines.append(f"| {text} | {statistics.median(values):.0f} | {_last_percent(values):.0f} |")
    for text, values in (
        ("publish to confirm", [(one.confirmed - one.sent) / 1_000 for one in messages]),
        ("publish to confirm, without the sync", [sum(row.values()) - row["synced"] for row in rows]),
        ("publish to delivery", [(one.delivered - one.sent) / 1_000 for one in messages]),
    ):
        lines.append(f"| **{text}** | {statistics.median(values):.0f} | {_last_percent(values):.0f} |")
    lines.append(f"\n{len(rows)} of {len(messages)} messages could be followed.")
    return "\n".join(lines)


def _last_percent(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[98]


def trace(count: int, pause_s: float, python: str = sys.executable) -> str:
    """Traces messages through a node of its own, and returns the table."""
    with tempfile.TemporaryDirectory(prefix="leveret-trace-") as folder:
        file = Path(folder) / "notes.json"
        amqp_port, cluster_port, management_port = free_ports(3)
        command = [python, "-m", MODULE, "--node", str(file), "--data", f"{folder}/data",]
        command += ["--port", str(amqp_port), "--cluster-port", str(cluster_port)]
        command += ["--management-port", str(management_port), "--name", "traced@localhost"]
        node = subprocess.Popen(
            command, cwd=ROOT, env=plain_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            _await_port(amqp_port, node)
            messages = send_one_by_one(amqp_port, WARM_UP + count, pause_s)[WARM_UP:]
        finally:
            node.send_signal(signal.SIGTERM)
            node.wait(START_S)
        events = [(name, when) for name, when in json.loads(file.read_text())]
    events.sort(key=lambda event: event[1])
    return table(messages, events)


def _await_port(port: int, node: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until and node.poll() is None:
        try:
            socket.create_connection((calls.HOST, port), 1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError("the node did not start")


def main() -> None:
    if sys.argv[1:2] == ["--node"]:
        run_node(sys.argv[2], sys.argv[3:])
        return
    parser = argparse.ArgumentParser(description="Shows where the time of a confirm goes.")
    parser.add_argument("--messages", type=int, default=2_000)
    parser.add_argument("--pause-ms", type=float, default=1.0, help="time between two messages (default: %(default)s)")
    options = parser.parse_args()
    print(trace(options.messages, options.pause_ms / 1_000))


if __name__ == "__main__":
    main()
