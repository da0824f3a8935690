"""The same measurements with three real processes, to show how far the model can be trusted.

Queues are declared at one node and mirrored at all three. Processor time and memory of each node are read from /proc.
Then a second node gets one publish for each queue, and the time until all are confirmed is measured: once without a
fault, and once just after the master of all of them was killed with -9. The client's node holds such publishes until
there is a master, so the last confirm shows when the last queue is served. The three nodes and the client share this
machine's processors.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.clusters.cluster import converse
from benchmarks.ruler import calls
from benchmarks.ruler.brokers import Broker, Leveret, Policy, cluster
from benchmarks.ruler.calls import Connection
from benchmarks.single.growth import Point
from leveret.client import amqp
from leveret.client.amqp import BrokerError

NODES: Final = 3
DECLARERS: Final = 60
SETTLE_S: Final = 1.0
CLOCK_TICKS: Final = os.sysconf("SC_CLK_TCK")


def cross_check(queues: int, data: Path | None = None, away: bool = False) -> Point:
    """`away`: the queues' master is not the Raft leader."""
    with cluster(Leveret, NODES, data) as nodes:
        leader = _leader(nodes)
        master = nodes[(leader + 1) % NODES] if away else nodes[leader]
        others = [node for node in nodes if node is not master]
        nodes[0].set_policy(Policy("ha", ".*", {"ha-mode": "all"}))
        time.sleep(SETTLE_S)
        memory, busy = _memory(nodes), [_busy_s(node) for node in nodes]
        names = [f"queue-{number:06}" for number in range(queues)]
        declare_s = _declare(master, names)
        busy_us = [(_busy_s(node) - before) / queues * 1e6 for node, before in zip(nodes, busy, strict=True)]
        grown = [(after - before) / queues for after, before in zip(_memory(nodes), memory, strict=True)]
        with Connection(others[0].port) as one:
            asking = Asking(one, names)
            busy = [_busy_s(node) for node in others]
            calm_s = asking.serve()
            calm_busy_s = max(_busy_s(node) - before for node, before in zip(others, busy, strict=True))
            busy = [_busy_s(node) for node in others]
            master.strike()
            served_s = asking.serve()
            served_busy_s = max(_busy_s(node) - before for node, before in zip(others, busy, strict=True))
        master.bury()
    return {
        "queues": queues,
        "declares_per_s": queues / declare_s,
        "leader_us": busy_us[leader],
        "follower_us": (sum(busy_us) - busy_us[leader]) / (NODES - 1),
        "memory_bytes": sum(grown) / NODES,
        "calm_s": calm_s,
        "calm_busy_s": calm_busy_s,
        "served_s": served_s,
        "served_busy_s": served_busy_s,
    }


def _leader(nodes: Sequence[Broker]) -> int:
    assert isinstance(nodes[0], Leveret)
    leader = nodes[0].control("cluster_status")["leader"]
    return next(number for number, node in enumerate(nodes) if node.node == leader)


def _memory(nodes: Sequence[Broker]) -> list[int]:
    return [node.resident_bytes() for node in nodes]


def _busy_s(node: Broker) -> float:
    fields = Path(f"/proc/{node.pid()}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


def _declare(node: Broker, names: Sequence[str]) -> float:
    clients = min(DECLARERS, len(names))
    connections = [Connection(node.port) for _ in range(clients)]
    try:
        began = time.perf_counter()
        requests = [map(calls.declare, names[client::clients]) for client in range(clients)]
        converse(connections, requests, amqp.QUEUE_DECLARE)
        return time.perf_counter() - began
    finally:
        for connection in connections:
            connection.close()


class Asking:
    """Publishes one message to each queue, and again if it is refused: what was in flight to a node that died is
    refused."""

    def __init__(self, connection: Connection, names: Sequence[str]) -> None:
        self.connection, self.names = connection, names
        self.tag = 0
        self.open: dict[int, str] = {}  # Unanswered publishes, in the order of their tags.
        connection.select_confirms()

    def serve(self) -> float:
        """Returns the seconds until all are confirmed."""
        began = time.perf_counter()
        self._publish(self.names)
        while self.open:
            kind, payload = self.connection.read_frame()
            name = amqp.METHOD_ID.unpack_from(payload) if kind == amqp.METHOD else (0, 0)
            if name not in (amqp.BASIC_ACK, amqp.BASIC_NACK):
                raise BrokerError(f"neither confirmed nor refused: {payload[:200]!r}")
            tag, multiple = struct.unpack_from(">QB", payload, 4)
            told = [one for one in self.open if one <= tag] if multiple & 1 else [tag]
            queues = [self.open.pop(one) for one in told]
            if name == amqp.BASIC_NACK:
                self._publish(queues)
        return time.perf_counter() - began

    def _publish(self, names: Sequence[str]) -> None:
        for name in names:
            self.tag += 1
            self.open[self.tag] = name
        body = b"x" * 100
        self.connection.socket.sendall(b"".join(calls.publish("", name, body, persistent=True) for name in names))
