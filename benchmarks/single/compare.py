"""Further comparisons of brokers: latency, a backlog, the start."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from benchmarks.ruler import calls
from benchmarks.ruler.brokers import Broker
from benchmarks.ruler.calls import Connection
from benchmarks.ruler.load import Driven, drive
from benchmarks.ruler.workloads import PREFIX, Workload, consumer, publisher, scene
from leveret.client import amqp

IDLE_S: Final = 1.0

BACKLOG: Final = Workload(
    name="backlog", about="fill, then drain", persistent=True, confirm=True, window=10_000, batch=100
)


@dataclass
class Latency:
    """Milliseconds for a persistent message that is alone in the broker."""

    confirm_p50: float
    confirm_p99: float
    deliver_p50: float
    deliver_p99: float


def latency(port: int, seconds: float, count_max: int = 5_000) -> Latency:
    """Publishes one at a time, and measures to its confirm in the first half, to its delivery in the second."""
    queue = f"{PREFIX}.latency"
    with scene(port, [queue]), Connection(port) as sender, Connection(port) as receiver:
        message = calls.publish("", queue, b"x" * 100, persistent=True)
        sender.select_confirms()
        receiver.consume(queue, "c", no_ack=False)

        def confirm() -> None:
            sender.expect(amqp.BASIC_ACK)

        def deliver() -> None:
            payload = receiver.expect(amqp.BASIC_DELIVER)
            receiver.read_frame()
            receiver.read_frame()
            tag = int.from_bytes(payload[2:10], "big")  # The consumer tag before it is one letter and its length.
            receiver.socket.sendall(amqp.ack_through(tag))

        def times_ms(awaited: Callable[[], None], other: Callable[[], None]) -> list[float]:
            times: list[float] = []
            until = time.perf_counter() + seconds / 2
            while len(times) < count_max and (len(times) < 2 or time.perf_counter() < until):
                began = time.perf_counter()
                sender.socket.sendall(message)
                awaited()
                times.append((time.perf_counter() - began) * 1_000)
                other()
            return times

        confirms, deliveries = times_ms(confirm, deliver), times_ms(deliver, confirm)
    return Latency(
        statistics.median(confirms), percentile_99(confirms), statistics.median(deliveries), percentile_99(deliveries)
    )


def percentile_99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[98]


@dataclass
class Started:
    seconds: float
    idle_bytes: int


def start(broker: Broker) -> Started:
    """Measures a broker without data, from nothing to its first connection, and its memory a moment later."""
    seconds = broker.start()
    time.sleep(IDLE_S)
    return Started(seconds, broker.resident_bytes())


@dataclass
class Backlog:
    """A queue without consumers that is filled and then drained."""

    messages: int
    fill_per_s: int
    drain_per_s: int
    bytes_per_message: float
    good: bool
    errors: list[str]

    def numbers(self) -> dict[str, float]:
        return {
            "messages": self.messages,
            "fill_per_s": self.fill_per_s,
            "drain_per_s": self.drain_per_s,
            "bytes_per_message": self.bytes_per_message,
        }


def backlog(broker: Broker, messages: int, settle_s: float) -> Backlog:
    queue = f"{PREFIX}.backlog"
    with scene(broker.port, [queue]):
        before = broker.resident_bytes()
        filled = fill(broker.port, queue, messages)
        time.sleep(settle_s)
        weight = broker.resident_bytes() - before
        drained = drain(broker.port, queue, filled.sent)
    return Backlog(
        filled.sent,
        round(filled.sent / filled.seconds),
        drained.per_s,
        weight / max(1, filled.sent),
        filled.is_good and drained.is_good,
        filled.errors + drained.errors,
    )


def patience_s(messages: int) -> float:
    """Returns how long to wait for that many: a broker slower than 4,000 a second has failed."""
    return 60 + messages / 4_000


def fill(port: int, queue: str, messages: int) -> Driven:
    """Publishes until `messages` (rounded up to whole batches) are confirmed."""
    with Connection(port) as connection:
        one = publisher(connection, "", [queue], BACKLOG)
        one.sent_max = messages
        result = drive([one], [], seconds=patience_s(messages), copies=0)
    if result.sent < messages:
        result.errors.append(f"only {result.sent} of {messages} were taken in time")
    return result


def drain(port: int, queue: str, messages: int) -> Driven:
    """Consumes until `messages` have come, with acks, and the queue is empty."""
    with Connection(port) as connection:
        one = consumer(connection, [queue], BACKLOG)
        result = drive([], [one], seconds=0, waiting=messages, finish_s=patience_s(messages))
        connection.socket.setblocking(True)
        one.ack_all()
        with Connection(port) as admin:
            left = admin.count_messages(queue)
    if left:
        result.errors.append(f"{left} more than expected are in the queue")
    return result
