"""Measures what other clients notice while somebody makes very many queues.

Three nodes with mirrored queues. Four publishers, each with one unconfirmed message at a time, and four consumers work
all the while; how many of their messages are confirmed a second is counted for some seconds, and then while

- `import`: definitions with 5,000 queues are imported,
- `one client`: a client declares 1,500 queues, each when the last is answered,
- `three clients`: three clients do so, one at each node.

Clients that make queues are processes of their own, so that they take no time from those that are counted. For each
bulk there is also the processor time of all nodes, and how many turns of their event loops took longer than 50 ms. On
a machine with other work these turns say little: a node that does not run for 50 ms has had a long turn, too.

    python -m benchmarks.clusters.bulk [--quick] [--only import]
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import multiprocessing
import selectors
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from benchmarks.clusters.cluster import BY_NAME, converse
from benchmarks.clusters.mirrors import set_policy
from benchmarks.ruler import calls
from benchmarks.ruler.brokers import Leveret, Policy, cluster
from benchmarks.ruler.calls import Connection
from benchmarks.ruler.load import SELECT_S, Consumer, Publisher
from benchmarks.ruler.workloads import PREFIX, consumer, publisher
from leveret.client import amqp
from leveret.client.endpoint import Endpoint

PARTS: Final = ("import", "one client", "three clients")
NODES: Final = 3
IMPORTED, QUICK_IMPORTED = 5_000, 60
DECLARED, QUICK_DECLARED = 1_500, 60
CALM_S, QUICK_CALM_S = 4.0, 0.2
SETTLE_S, QUICK_SETTLE_S = 1.0, 0.1
PAIRS: Final = 4  # Of a publisher and a consumer, with a queue of their own.
STAGED_AT_ONCE: Final = 1_000
LONG_TURN_S: Final = 0.05
POLICY: Final = Policy("all", "^", {"ha-mode": "all"})
STEADY: Final = dataclasses.replace(BY_NAME["trickle"], name="steady", window=1)
TICKS_PER_S: Final = 100  # Of a process's times in /proc.


@dataclasses.dataclass(frozen=True)
class Bulk:
    """The result of one bulk."""

    queues: int
    seconds: float
    before_per_s: float  # Messages of others that were confirmed before,
    during_per_s: float  # and meanwhile.
    processor_s: float  # Of all nodes, those messages included.
    long_turns: int

    @property
    def share(self) -> float:
        return self.during_per_s / self.before_per_s


class Traffic(threading.Thread):
    """Publishes, confirms, consumes and acknowledges, until it is stopped."""

    def __init__(self, publishers: Sequence[Publisher], consumers: Sequence[Consumer]) -> None:
        super().__init__(name="traffic")
        self.publishers = publishers
        self.endpoints: list[Endpoint] = [*consumers, *publishers]
        self.stopping = threading.Event()
        self.failure: Exception | None = None  # What has ended the thread.

    def run(self) -> None:
        try:
            self._run()
        except Exception as error:
            self.failure = error  # Whoever counts is told; otherwise it would wait for the next message for ever.

    def _run(self) -> None:
        with contextlib.closing(selectors.DefaultSelector()) as selector:
            for endpoint in self.endpoints:
                endpoint.register(selector)
            while not self.stopping.is_set():
                for key, events in selector.select(SELECT_S):
                    key.data.on_ready(events)

    def confirmed(self) -> int:
        if self.failure is not None:
            raise RuntimeError(f"the other traffic has failed: {self.failure!r}") from self.failure
        for endpoint in self.endpoints:
            if endpoint.error:
                raise RuntimeError(f"the other traffic has failed: {endpoint.error}")
        return sum(publisher.confirmed for publisher in self.publishers)


@contextlib.contextmanager
def traffic(nodes: Sequence[Leveret]) -> Iterator[Traffic]:
    with contextlib.ExitStack() as opened:
        queues = [f"{PREFIX}.steady.{number}" for number in range(PAIRS)]
        ports = [nodes[number % len(nodes)].port for number in range(PAIRS)]
        connections = [opened.enter_context(Connection(port)) for port in ports * 2]
        for connection, queue in zip(connections, queues, strict=False):
            connection.declare_queue(queue)
        takers = [consumer(one, [name], STEADY) for one, name in zip(connections, queues, strict=False)]
        givers = [publisher(one, "", [name], STEADY) for one, name in zip(connections[PAIRS:], queues, strict=True)]
        found = Traffic(givers, takers)
        found.start()
        try:
            yield found
        finally:
            found.stopping.set()
            found.join()


def measure(nodes: Sequence[Leveret], others: Traffic, queues: int, act: Callable[[], None], calm_s: float) -> Bulk:
    """Counts the traffic of others before a bulk, and during it."""
    time.sleep(calm_s / 4)
    confirmed, began = others.confirmed(), time.perf_counter()
    time.sleep(calm_s)
    while others.confirmed() == confirmed:  # A machine that has much else to do: there has to be something to compare.
        time.sleep(calm_s)
    before = (others.confirmed() - confirmed) / (time.perf_counter() - began)
    turns, worked = _long_turns(nodes), _processor_s(nodes)
    confirmed, began = others.confirmed(), time.perf_counter()
    act()
    took = time.perf_counter() - began
    during = (others.confirmed() - confirmed) / took
    return Bulk(queues, took, before, during, _processor_s(nodes) - worked, _long_turns(nodes) - turns)


def _long_turns(nodes: Sequence[Leveret]) -> int:
    count = 0
    for node in nodes:
        loop = node.control("local_node_details", settings=False)["event_loop"]
        count += sum(loop["counts"][loop["bounds_s"].index(LONG_TURN_S) + 1 :])
    return count


def _processor_s(nodes: Sequence[Leveret]) -> float:
    total = 0
    for node in nodes:
        fields = Path(f"/proc/{node.pid()}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS_PER_S


# -- Bulks ----------------------------------------------------------------------------------------------------------


def import_queues(node: Leveret, count: int) -> None:
    items = [
        {"vhost": "/", "name": f"{PREFIX}.imported.{number:05}", "durable": True, "auto_delete": False, "arguments": {}}
        for number in range(count)
    ]
    parts = [items[at : at + STAGED_AT_ONCE] for at in range(0, count, STAGED_AT_ONCE)]
    for part in parts:
        node.control("stage_definitions", id="bulk", section="queues", text=json.dumps(part))
    node.control("import_definitions", id="bulk", parts=len(parts), vhost=None, remarks={})


def declare_queues(ports: Sequence[int], count: int, prefix: str) -> None:
    """Has a process for each port declare so many queues."""
    clients = [
        multiprocessing.get_context("spawn").Process(target=declare_in_a_loop, args=(port, count, f"{prefix}.{number}"))
        for number, port in enumerate(ports)
    ]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    if any(client.exitcode for client in clients):
        raise RuntimeError("a client that declares queues has failed")


def declare_in_a_loop(port: int, count: int, prefix: str) -> None:
    with Connection(port) as connection:
        requests = (calls.declare(f"{prefix}.{number:05}") for number in range(count))
        converse([connection], [requests], amqp.QUEUE_DECLARE)


def run(parts: Sequence[str], quick: bool, data: Path | None = None) -> dict[str, Bulk]:
    imported, declared = (QUICK_IMPORTED, QUICK_DECLARED) if quick else (IMPORTED, DECLARED)
    calm_s, settle_s = (QUICK_CALM_S, QUICK_SETTLE_S) if quick else (CALM_S, SETTLE_S)
    found: dict[str, Bulk] = {}
    with cluster(Leveret, NODES, data) as nodes:
        set_policy(nodes[0], POLICY, NODES)
        ports = [node.port for node in nodes]
        bulks: dict[str, tuple[int, Callable[[], None]]] = {
            "import": (imported, lambda: import_queues(nodes[0], imported)),
            "one client": (declared, lambda: declare_queues(ports[-1:], declared, f"{PREFIX}.one")),
            "three clients": (NODES * declared, lambda: declare_queues(ports, declared, f"{PREFIX}.three")),
        }
        with traffic(nodes) as others:
            for part in parts:
                found[part] = measure(nodes, others, *bulks[part], calm_s)
                print(f"{part}: {found[part]}", file=sys.stderr, flush=True)
                time.sleep(settle_s)
    return found


def table(found: dict[str, Bulk]) -> str:
    lines = [
        "| bulk | queues | seconds | messages a second before | meanwhile | share | µs of processor, queue and node "
        "| turns over 50 ms |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, one in found.items():
        each_us = one.processor_s / NODES / one.queues * 1e6
        cells = (name, f"{one.queues:,}", f"{one.seconds:.1f}", f"{one.before_per_s:,.0f}", f"{one.during_per_s:,.0f}")
        lines.append(f"| {' | '.join(cells)} | {one.share:.2f} | {each_us:,.0f} | {one.long_turns} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.clusters.bulk", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="NAME", help=", ".join(PARTS))
    parser.add_argument("--quick", action="store_true", help="small amounts: shows that it works, not how fast")
    parser.add_argument("--data", type=Path, help="folder for the brokers' data (default: the system's temporary one)")
    options = parser.parse_args(arguments)
    print(table(run(options.only, options.quick, options.data)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
