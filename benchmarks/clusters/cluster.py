"""Measures clusters of each broker in turn: the nodes are processes on one machine, joined over loopback.

Three questions:

- `away`: what does a message cost whose clients are not at the queue's home? The queues are declared at the first of
  three nodes; publishers and consumers are where each of `WAYS` puts them.
- `spread`: does another node add throughput, if queues are spread over the nodes and clients are at their queue's home?
  All nodes and the clients share the processors of one machine. So this shows what nodes take from each other, and a
  gain only as long as there are processors left.
- `declares`: what does agreement cost? Queues declared a second by one client that waits for each answer, by 20, and by
  one that sends all its declares at once, on ten channels.

Clusters of one size run at the same time and take turns; the others idle.
"""

from __future__ import annotations

import contextlib
import dataclasses
import selectors
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.ruler import calls
from benchmarks.ruler.brokers import Broker, cluster
from benchmarks.ruler.calls import Connection
from benchmarks.ruler.load import Driven
from benchmarks.ruler.workloads import PREFIX, WORKLOADS, Places, Workload, run_at
from leveret.client import amqp

PARTS: Final = ("away", "spread", "declares")
SIZES: Final = {"away": (3,), "spread": (1, 2, 3), "declares": (1, 3)}
SETTLE_S, QUICK_SETTLE_S = 1.0, 0.1

BY_NAME: Final = {workload.name: workload for workload in WORKLOADS}


class Way(NamedTuple):
    """Where clients are, by the number of the node; all queues are at node 0."""

    name: str
    about: str
    publish: int
    consume: int
    workloads: tuple[str, ...]


MAIN: Final = ("safe", "many")
AWAY: Final = ("fast", "acked", "safe", "trickle", "many", "rich", "large")
WAYS: Final = (
    Way("home", "published and consumed at the queue's node", 0, 0, MAIN),
    Way("consumed away", "published at the queue's node, consumed at another", 0, 1, MAIN),
    Way("both away", "published and consumed at another node", 1, 1, AWAY),
    Way("three nodes", "published at a second node, consumed at a third", 1, 2, AWAY),
)

# Six queues can be spread evenly over one, two and three nodes.
SPREAD: Final = dataclasses.replace(
    BY_NAME["many"], name="spread", about="safe in six queues", publishers=6, consumers=6, queues=6
)

DECLARERS: Final = (1, 20)
DECLARE_SECONDS_MAX: Final = 2.0
CHANNELS: Final = 10
AT_ONCE, QUICK_AT_ONCE = 1_000, 50  # Declares on these channels.
PIPELINED: Final = f"{CHANNELS} channels of 1"  # The name of that row; other rows have the number of clients.

Rates = dict[str, dict[str, float]]  # row → broker → per second


def sizes(parts: Sequence[str]) -> list[int]:
    """Returns the sizes of the clusters that are needed."""
    return sorted({size for part in parts for size in SIZES[part]})


class Clusters:
    """Measures clusters of `kinds`. The results are in its fields, with keys that JSON can have."""

    def __init__(
        self,
        kinds: Sequence[type[Broker]],
        rounds: int,
        seconds: float,
        quick: bool,
        data: Path | None,
        tell: Callable[[str], None],
    ) -> None:
        self.kinds, self.rounds, self.seconds, self.quick = kinds, rounds, seconds, quick
        self.data, self.tell = data, tell
        self.away: dict[str, Rates] = {}  # By way, then by workload.
        self.spread: Rates = {}  # By number of nodes.
        self.declares: dict[str, Rates] = {}  # By number of nodes, then by number of clients, or `PIPELINED`.
        self.rounds_run: list[dict[str, Any]] = []
        self.problems: list[str] = []

    def run(self, size: int, parts: Sequence[str]) -> list[Broker]:
        """Measures what `parts` need with so many nodes, and returns the nodes, which are stopped again."""
        measures = {"spread": self._spread, "away": self._away, "declares": self._declares}
        with contextlib.ExitStack() as started:
            clusters: list[list[Broker]] = []
            for kind in self.kinds:
                self.tell(f"starting {kind.name}, nodes: {size}")
                clusters.append(started.enter_context(cluster(kind, size, self.data)))
            for part, measure in measures.items():
                if part in parts and size in SIZES[part]:
                    measure(clusters)
        return [node for nodes in clusters for node in nodes]

    # -- Messages ------------------------------------------------------------------------------------------------

    def _away(self, clusters: Sequence[Sequence[Broker]]) -> None:
        for way in WAYS:
            for name in way.workloads:
                if self.quick and name not in MAIN:
                    continue

                def places(nodes: Sequence[Broker], way: Way = way) -> Places:
                    return Places([nodes[0].port], [nodes[way.publish].port], [nodes[way.consume].port])

                rates = self._workload(f"{way.name}, {name}", BY_NAME[name], clusters, places)
                self.away.setdefault(way.name, {})[name] = rates

    def _spread(self, clusters: Sequence[Sequence[Broker]]) -> None:
        def places(nodes: Sequence[Broker]) -> Places:
            ports = [node.port for node in nodes]
            return Places(ports, ports, ports)

        size = len(clusters[0])
        self.spread[str(size)] = self._workload(f"spread over {size}", SPREAD, clusters, places)

    def _workload(
        self,
        title: str,
        workload: Workload,
        clusters: Sequence[Sequence[Broker]],
        places: Callable[[Sequence[Broker]], Places],
    ) -> dict[str, float]:
        """Returns the median of each broker."""
        rates: dict[str, list[float]] = {nodes[0].name: [] for nodes in clusters}
        for number in range(1, self.rounds + 1):
            for nodes in clusters:
                result = run_at(places(nodes), workload, self.seconds, QUICK_SETTLE_S if self.quick else SETTLE_S)
                self._note(title, number, nodes[0].name, result)
                rates[nodes[0].name].append(result.per_s)
        return {name: statistics.median(values) for name, values in rates.items()}

    def _note(self, title: str, number: int, broker: str, result: Driven) -> None:
        where = f"{title}, round {number}, {broker}"
        self.tell(f"{where}: {result.per_s:,}/s, client {result.client_cpu:.0%} of a processor")
        if not result.is_good:
            self.problems.append(f"{where}: {result}")
            self.tell(f"PROBLEM {self.problems[-1]}")
        self.rounds_run.append(
            {"workload": title, "round": number, "broker": broker, "per_s": result.per_s} | dataclasses.asdict(result)
        )

    # -- Metadata ------------------------------------------------------------------------------------------------

    def _declares(self, clusters: Sequence[Sequence[Broker]]) -> None:
        size = len(clusters[0])
        rows = self.declares[str(size)] = {}
        for clients in DECLARERS:
            rates: dict[str, list[float]] = {nodes[0].name: [] for nodes in clusters}
            for number in range(1, self.rounds + 1):
                for nodes in clusters:
                    seconds = min(self.seconds, DECLARE_SECONDS_MAX)
                    # Backwards: a single client is not at the node that founded the cluster, perhaps the leader.
                    rate = declares([node.port for node in reversed(nodes)], clients, seconds)
                    rates[nodes[0].name].append(rate)
                    where = f"declares, {size} nodes, {clients} clients, round {number}, {nodes[0].name}"
                    self.tell(f"{where}: {rate:,.0f}/s")
            rows[str(clients)] = {name: statistics.median(values) for name, values in rates.items()}
        rates = {nodes[0].name: [] for nodes in clusters}
        for number in range(1, self.rounds + 1):
            for nodes in clusters:
                rate = pipelined(nodes[-1].port, QUICK_AT_ONCE if self.quick else AT_ONCE)
                rates[nodes[0].name].append(rate)
                self.tell(f"declares, {size} nodes, {PIPELINED} client, round {number}, {nodes[0].name}: {rate:,.0f}/s")
        rows[PIPELINED] = {name: statistics.median(values) for name, values in rates.items()}


def declares(ports: Sequence[int], clients: int, seconds: float) -> float:
    """Returns durable queues declared a second by `clients` connections, spread over the nodes. The queues are
    deleted afterwards."""
    names: list[list[str]] = [[] for _ in range(clients)]

    def requests(client: int, until: float) -> Iterator[bytes]:
        while not names[client] or time.perf_counter() < until:
            names[client].append(f"{PREFIX}.{client:02}.{len(names[client]):07}")
            yield calls.declare(names[client][-1])

    with contextlib.ExitStack() as opened:
        connections = [opened.enter_context(Connection(ports[client % len(ports)])) for client in range(clients)]
        began = time.perf_counter()
        converse(connections, [requests(client, began + seconds) for client in range(clients)], amqp.QUEUE_DECLARE)
        took = time.perf_counter() - began
        converse(connections, [map(calls.delete, mine) for mine in names], amqp.QUEUE_DELETE)
    return sum(map(len, names)) / took


def pipelined(port: int, count: int) -> float:
    """Returns durable queues declared a second by one connection that waits for no answer. The queues are deleted
    afterwards."""
    with Connection(port) as connection:
        _send_all(connection, [calls.open_channel(channel) for channel in range(2, CHANNELS + 1)], amqp.CHANNEL_OPEN)
        named = [(f"{PREFIX}.{number:07}", 1 + number % CHANNELS) for number in range(count)]
        began = time.perf_counter()
        _send_all(connection, [calls.declare(*one) for one in named], amqp.QUEUE_DECLARE)
        took = time.perf_counter() - began
        _send_all(connection, [calls.delete(*one) for one in named], amqp.QUEUE_DELETE)
    return count / took


def _send_all(connection: Connection, requests: Sequence[bytes], name: tuple[int, int]) -> None:
    connection.socket.sendall(b"".join(requests))
    for _ in requests:
        connection.expect(calls.answer_to(name))


def converse(connections: Sequence[Connection], requests: Sequence[Iterator[bytes]], name: tuple[int, int]) -> None:
    """Sends each connection's own requests, the next one when the last is answered, until all are answered."""
    with contextlib.closing(selectors.DefaultSelector()) as selector:
        for connection, mine in zip(connections, requests, strict=True):
            connection.socket.sendall(next(mine))
            selector.register(connection.socket, selectors.EVENT_READ, (connection, mine))
        while selector.get_map():
            for key, _ in selector.select():
                connection, mine = key.data
                connection.expect(calls.answer_to(name))
                request = next(mine, None)
                if request is None:
                    selector.unregister(connection.socket)
                else:
                    connection.socket.sendall(request)
