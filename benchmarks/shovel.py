"""How fast shovels move messages between two brokers with on-confirm: Leveret's, and RabbitMQ's in the same run.

    python -m benchmarks.shovel [--messages 300000] [--rounds 3]

Persistent messages of 100 bytes wait in a durable queue of one broker. Time runs from setting the shovel until the last
message is in the queue of the other. Rounds alternate between the brokers, and the medians are compared.
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
from typing import Final

from benchmarks.ruler.brokers import Broker, Leveret, RabbitMQ, installed, prepared
from benchmarks.ruler.calls import HOST
from leveret.client import amqp
from leveret.client.address import Address
from leveret.client.connection import Connection

BODY: Final = bytes(100)
BATCH: Final = 1_000
POLL_S: Final = 0.005
PART: Final = 5  # RabbitMQ gets a part of the messages: it takes as much longer for each.


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
    value = {
        "src-uri": f"amqp://{HOST}:{source.port}", "src-queue": "source",
        "dest-uri": f"amqp://{HOST}:{destination.port}", "dest-queue": "destination", "ack-mode": "on-confirm",
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


def measure(source: Broker, destination: Broker, count: int, name: str) -> float:
    """Returns messages a second. The clock starts when the first messages have arrived: rabbitmqctl takes seconds."""
    fill(source, count)
    with connected(destination) as connection:
        connection.declare_queue("destination")
        set_shovel(source, destination, name)
        found = waiting(connection, "destination")
        while not found:
            time.sleep(POLL_S)
            found = waiting(connection, "destination")
        began, first = time.perf_counter(), found
        while found < count:
            time.sleep(POLL_S)
            found = waiting(connection, "destination")
        took = time.perf_counter() - began
        clear_shovel(source, name)
        connection.delete_queue("destination")
    return (count - first) / took


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shovel", description=__doc__.partition("\n")[0])
    parser.add_argument("--messages", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    kinds: list[type[Broker]] = [kind for kind in (Leveret, RabbitMQ) if kind in installed()]
    rates: dict[str, list[float]] = {kind.name: [] for kind in kinds}
    with contextlib.ExitStack() as stack:
        pairs = {kind: stack.enter_context(pair(kind)) for kind in kinds}
        for number in range(options.rounds):
            for kind, (source, destination) in pairs.items():
                count = options.messages if kind is Leveret else max(options.messages // PART, BATCH)
                count -= count % BATCH
                rate = measure(source, destination, count, f"round {number}")
                rates[kind.name].append(rate)
                print(f"round {number + 1}: {kind.name} {rate:,.0f}/s", flush=True)
    medians = {name: statistics.median(found) for name, found in rates.items()}
    for name, median in medians.items():
        print(f"{name}: {median:,.0f} messages a second (median of {options.rounds})")
    if len(medians) == 2:
        print(f"{medians[Leveret.name] / medians[RabbitMQ.name]:.1f} times as fast")
    return 0


if __name__ == "__main__":
    sys.exit(main())
