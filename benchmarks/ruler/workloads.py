"""The workloads that brokers are compared by, and the code that runs one."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from benchmarks.ruler import calls
from benchmarks.ruler.calls import Connection
from benchmarks.ruler.load import Consumer, CountingConsumer, Driven, Publisher, drive

PREFIX: Final = "benchmark"
RICH_MESSAGES: Final = 1_000  # This many messages differ from each other before they repeat.


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What is published and consumed, by how many clients, and how far ahead publishers may be."""

    name: str
    about: str
    publishers: int = 1
    consumers: int = 1
    queues: int = 1
    body_bytes: int = 100
    body_bytes_max: int = 0  # If it is not 0, bodies differ: there are as many short ones as long ones.
    persistent: bool = False
    confirm: bool = False
    ack: bool = True
    window: int = 2_000  # publishes not yet confirmed, for each publisher
    prefetch: int = 2_000
    batch: int = 50  # messages in one send
    exchange: Literal["", "topic", "fanout"] = ""
    keys: int = 1
    bindings: int = 1
    rich: bool = False
    queue_type: str = ""  # Empty: the broker's default.

    @property
    def ack_every(self) -> int:
        return max(1, self.prefetch // 4) if self.ack else 0


WORKLOADS: Final = (
    Workload(
        name="mixed",
        about="as safe, with keys, sizes and ids of all kinds, 4 publishers, 10 queues",
        persistent=True,
        confirm=True,
        rich=True,
        body_bytes=20,
        body_bytes_max=4_000,
        exchange="topic",
        keys=1_000,
        bindings=100,
        publishers=4,
        consumers=10,
        queues=10,
        window=500,
        prefetch=200,
        batch=1,
    ),
    Workload(name="fast", about="transient, no confirms, no acks", ack=False),
    Workload(name="acked", about="transient, the consumer acks"),
    Workload(name="safe", about="persistent, confirmed, acked", persistent=True, confirm=True),
    Workload(
        name="trickle",
        about="as safe, with 10 at most in flight",
        persistent=True,
        confirm=True,
        window=10,
        prefetch=10,
        batch=1,
    ),
    Workload(
        name="many",
        about="as safe, 10 publishers, 10 queues, 10 consumers",
        persistent=True,
        confirm=True,
        publishers=10,
        consumers=10,
        queues=10,
        window=400,
        prefetch=400,
    ),
    Workload(
        name="rich",
        about="as safe, each with its own headers and id",
        persistent=True,
        confirm=True,
        rich=True,
    ),
    Workload(
        name="large",
        about="as safe, 64 KiB each",
        persistent=True,
        confirm=True,
        body_bytes=65_536,
        window=64,
        prefetch=64,
        batch=1,
    ),
    Workload(
        name="topic",
        about="as fast, 10,000 keys over 1,000 patterns",
        ack=False,
        exchange="topic",
        keys=10_000,
        bindings=1_000,
    ),
    Workload(
        name="fanout",
        about="as fast, each to 20 queues (deliveries)",
        ack=False,
        exchange="fanout",
        queues=20,
        consumers=20,
        batch=5,
    ),
)


@dataclass(frozen=True)
class Places:
    """Ports of the nodes at which queues are declared (their homes), and clients connect. Each kind uses them in turn.

    With as many queues as publishers and consumers, those of one number belong together.
    """

    homes: Sequence[int]
    publish: Sequence[int]
    consume: Sequence[int]


def run(port: int, workload: Workload, seconds: float, settle_s: float = 1.0) -> Driven:
    """Runs one workload against one node."""
    return run_at(Places([port], [port], [port]), workload, seconds, settle_s)


def run_at(places: Places, workload: Workload, seconds: float, settle_s: float = 1.0) -> Driven:
    """Runs one workload in queues of its own, which are deleted afterwards."""
    queues = [f"{PREFIX}.{number:05}" for number in range(workload.queues)]
    exchange = f"{PREFIX}.{workload.exchange}" if workload.exchange else ""
    with contextlib.ExitStack() as scenes, contextlib.ExitStack() as opened:
        admin = scenes.enter_context(scene(places.homes[0], [], exchange, workload.exchange))
        for number, home in enumerate(places.homes):
            mine = queues[number :: len(places.homes)]
            scenes.enter_context(scene(home, mine, queue_type=workload.queue_type))
        keys_of = bind_scene(admin, queues, exchange, workload)
        time.sleep(settle_s)  # Work left from the preparation is not part of the measurement.
        consumers = []
        for number in range(workload.consumers):
            connection = opened.enter_context(Connection(places.consume[number % len(places.consume)]))
            consumers.append(consumer(connection, [queues[number % len(queues)]], workload))
        publishers = []
        for number in range(workload.publishers):
            connection = opened.enter_context(Connection(places.publish[number % len(places.publish)]))
            publishers.append(publisher(connection, exchange, keys_of[number % len(keys_of)], workload))
        copies = len(queues) if workload.exchange == "fanout" else 1
        return drive(publishers, consumers, seconds=seconds, copies=copies)


def bind_scene(admin: Connection, queues: Sequence[str], exchange: str, workload: Workload) -> list[list[str]]:
    """Makes the bindings; returns the routing keys of each publisher, used in turn if there are fewer."""
    if workload.exchange == "fanout":
        for queue in queues:
            admin.bind(queue, exchange, "")
        return [[""]]
    if workload.exchange == "topic":  # Each key matches one of the patterns.
        for number in range(workload.bindings):
            admin.bind(queues[number % len(queues)], exchange, f"*.{number:04}.#")
        return [[f"k{number:05}.{number % workload.bindings:04}.x.y" for number in range(workload.keys)]]
    return [[queue] for queue in queues]


@contextlib.contextmanager
def scene(
    port: int, queues: Sequence[str], exchange: str = "", kind: str = "", queue_type: str = ""
) -> Iterator[Connection]:
    """Declares durable queues, and an exchange if it has a name; deletes them at the end."""
    with Connection(port) as admin:
        for queue in queues:
            admin.declare_queue(queue, {"x-queue-type": queue_type} if queue_type else {})
        if exchange:
            admin.declare_exchange(exchange, kind)
        yield admin
        if exchange:
            admin.delete_exchange(exchange)
        for queue in queues:
            admin.delete_queue(queue)


def consumer(connection: Connection, queues: Sequence[str], workload: Workload) -> Consumer:
    if workload.ack:
        connection.set_prefetch(workload.prefetch)
    kind = CountingConsumer if workload.body_bytes_max else Consumer
    return kind(connection, queues, workload.ack_every)


def publisher(connection: Connection, exchange: str, keys: Sequence[str], workload: Workload) -> Publisher:
    blobs = encode(exchange, keys, workload)
    return Publisher(connection, blobs, workload.batch, workload.window if workload.confirm else None)


def encode(exchange: str, keys: Sequence[str], workload: Workload) -> list[bytes]:
    """Returns blobs of `batch` messages each, in which every key occurs equally often."""
    batch, dice = workload.batch, random.Random(7)
    low, high = workload.body_bytes, workload.body_bytes_max or workload.body_bytes
    wanted = max(batch, len(keys), RICH_MESSAGES if workload.rich else 1)
    count = -(-wanted // batch) * batch
    bodies = [b"x" * round(low * (high / low) ** dice.random()) for _ in range(count)]
    messages = [
        calls.publish(
            exchange, keys[number % len(keys)], body, workload.persistent, f"m-{number:08}" if workload.rich else None
        )
        for number, body in enumerate(bodies)
    ]
    assert workload.body_bytes_max or len({len(message) for message in messages}) == 1  # Consumers count by length.
    return [b"".join(messages[at : at + batch]) for at in range(0, count, batch)]
