"""How fast shovels move messages between two brokers with on-confirm: Leveret's, and RabbitMQ's in the same run.

    python -m benchmarks.shovel [--messages 300000] [--rounds 3]

Persistent messages of 100 bytes wait in a durable queue of one broker, which runs the shovel; its prefetch count is the
default of both, 1,000. Time runs from the first messages in the queue of the other broker until the last. Rounds
alternate between the brokers, and the medians are compared. Processor time is that of the two brokers, all threads
included: it depends less than a rate on what else the machine does.

Then a shovel between two queues of one Leveret, both URIs without a host, beside the workload `safe` at the same node.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import struct
import sys
import time
from collections.abc import Iterator
from typing import Final, NamedTuple

from benchmarks.ruler.brokers import Broker, Leveret, RabbitMQ, installed, prepared, running
from benchmarks.ruler.calls import HOST
from benchmarks.ruler.workloads import WORKLOADS, run
from leveret.client import amqp
from leveret.client.address import Address
from leveret.client.connection import Connection

BODY: Final = bytes(100)
BATCH: Final = 1_000
POLL_S: Final = 0.005
PART: Final = 10  # RabbitMQ gets a part of the messages: it takes as much longer for each.
HERE: Final = "amqp://"  # This cluster.
SAFE: Final = next(workload for workload in WORKLOADS if workload.name == "safe")
SAFE_S: Final = 3.0


class Measured(NamedTuple):
    """Messages a second, and the processor time of a message in microseconds, at the source and at the destination."""

    rate: float
    source_us: float
    destination_us: float

    def __str__(self) -> str:
        times = f"{self.source_us:.1f} µs" + (f" + {self.destination_us:.1f} µs" if self.destination_us else "")
        return f"{self.rate:,.0f}/s, {times} of processor time a message"


def connected(broker: Broker) -> Connection:
    return Connection(Address(HOST, broker.port, "guest", "guest", "/"), "benchmark")


def fill(broker: Broker, count: int) -> None:
    """Puts messages into the source, and waits until all are confirmed."""
    with connected(broker) as connection:
        connection.declare_queue("source")
        connection.select_confirms()
        blob = amqp.publish("", "source", True, False, BODY, connection.frame_max) * BATCH
        for last in range(BATCH, count + 1, BATCH):
            connection.socket.sendall(blob)
            confirmed = last - BATCH
            while confirmed < last:
                (number, _) = struct.unpack(">QB", connection.expect(amqp.BASIC_ACK))
                confirmed = max(confirmed, number)


def waiting(connection: Connection, queue: str) -> int:
    passive = b"\0\0" + amqp.short(queue) + bytes((amqp.PASSIVE,)) + amqp.table({})
    answer = connection.call(amqp.QUEUE_DECLARE, passive)
    return int.from_bytes(answer[1 + answer[0] : 5 + answer[0]], "big")


def set_shovel(source: Broker, destination: Broker, name: str) -> None:
    is_within = source is destination
    value = {
        "src-uri": HERE if is_within else f"amqp://{HOST}:{source.port}", "src-queue": "source",
        "dest-uri": HERE if is_within else f"amqp://{HOST}:{destination.port}", "dest-queue": "destination",
        "ack-mode": "on-confirm",
    }  # fmt: skip
    if isinstance(source, Leveret):
        source.control("set_parameter", vhost="/", component="shovel", name=name, value=value)
    elif isinstance(source, RabbitMQ):
        source.control("set_parameter", "shovel", name, json.dumps(value))


def clear_shovel(source: Broker, name: str) -> None:
    if isinstance(source, Leveret):
        source.control("delete_shovel", vhost="/", name=name)
    elif isinstance(source, RabbitMQ):
        source.control("clear_parameter", "shovel", name)


@contextlib.contextmanager
def pair(kind: type[Broker]) -> Iterator[tuple[Broker, Broker]]:
    with prepared(kind) as source, prepared(kind) as destination:
        for broker in (source, destination):
            if isinstance(broker, RabbitMQ):
                (broker.folder / "enabled_plugins").write_text("[rabbitmq_shovel].\n")
            broker.start()
        yield source, destination


def measure(source: Broker, destination: Broker, count: int, name: str) -> Measured:
    """The clock starts when the first messages have arrived: rabbitmqctl takes seconds."""
    fill(source, count)
    brokers = (source,) if source is destination else (source, destination)
    with connected(destination) as connection:
        connection.declare_queue("destination")
        set_shovel(source, destination, name)
        found = waiting(connection, "destination")
        while not found:
            time.sleep(POLL_S)
            found = waiting(connection, "destination")
        before = [broker.cpu_s() for broker in brokers]
        began, first = time.perf_counter(), found
        while found < count:
            time.sleep(POLL_S)
            found = waiting(connection, "destination")
        took = time.perf_counter() - began
        used = [broker.cpu_s() - cpu_s for broker, cpu_s in zip(brokers, before, strict=True)]
        times = [cpu_s / (count - first) * 1e6 for cpu_s in used]
        clear_shovel(source, name)
        connection.delete_queue("destination")
    return Measured((count - first) / took, times[0], times[1] if len(times) > 1 else 0.0)


def median(found: list[Measured]) -> Measured:
    return Measured(*map(statistics.median, zip(*found, strict=True)))


def between_two(kinds: list[type[Broker]], messages: int, rounds: int) -> None:
    results: dict[type[Broker], list[Measured]] = {kind: [] for kind in kinds}
    with contextlib.ExitStack() as stack:
        pairs = {kind: stack.enter_context(pair(kind)) for kind in kinds}
        for number in range(rounds):
            for kind, (source, destination) in pairs.items():
                count = messages if kind is Leveret else max(messages // PART, BATCH)
                results[kind].append(measure(source, destination, count - count % BATCH, f"round {number}"))
                print(f"round {number + 1}: {kind.name} {results[kind][-1]}", flush=True)
    medians = {kind: median(found) for kind, found in results.items()}
    for kind, one in medians.items():
        print(f"{kind.name}: {one} (median of {rounds})")
    if len(medians) == 2:
        ours, theirs = medians[Leveret], medians[RabbitMQ]
        less = (theirs.source_us + theirs.destination_us) / (ours.source_us + ours.destination_us)
        print(f"{ours.rate / theirs.rate:.1f} times as fast, with {less:.1f} times less processor time", flush=True)


def within_one(messages: int, rounds: int) -> None:
    moved, published = [], []
    with running(Leveret) as broker:
        for number in range(rounds):
            moved.append(measure(broker, broker, messages - messages % BATCH, f"round {number}"))
            published.append(run(broker.port, SAFE, SAFE_S).per_s)
            print(f"round {number + 1}: within one node {moved[-1]}; safe {published[-1]:,.0f}/s", flush=True)
    one, safe = median(moved), statistics.median(published)
    print(f"within one node: {one}; {one.rate / safe:.2f} of safe, {safe:,.0f}/s (medians of {rounds})")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shovel", description=__doc__.partition("\n")[0])
    parser.add_argument("--messages", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("between", "within"), help="two brokers, or two queues of one")
    options = parser.parse_args()
    if options.only != "within":
        between_two([kind for kind in (Leveret, RabbitMQ) if kind in installed()], options.messages, options.rounds)
    if options.only != "between":
        within_one(options.messages, options.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
