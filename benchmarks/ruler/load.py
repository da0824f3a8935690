"""Publishers and consumers that cost next to nothing, all in one thread around one selector.

Clients and broker share the machine, so every cycle of a client is taken from the broker, and the faster broker suffers
more from it. Therefore:

- A publisher sends blobs of messages encoded beforehand.
- A consumer counts bytes, not messages. Names, keys and tags of one workload all have one length each, so that all its
  deliveries are equally long; the first one is parsed to learn how long. Anything but deliveries on that socket breaks
  the division, and the result says so (`stray`). Only where bodies differ in length, frames are looked at
  (`CountingConsumer`).
- One thread serves 2 or 2,000 connections; threads would contend for the interpreter.

A result is valid only if everything that was sent was delivered: `drive` continues after the last publish until every
confirm and every delivery has arrived, and the rate includes that time. A broker that accepts messages quickly and
delivers them slowly gains nothing.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.ruler.calls import Connection
from leveret.client import amqp
from leveret.client.amqp import BrokerError
from leveret.client.endpoint import Endpoint
from leveret.perf.publisher import Tally

SELECT_S = 0.02
CHECK_S = 0.005
FINISH_S = 120.0

_DELIVER = amqp.METHOD_ID.pack(*amqp.BASIC_DELIVER)

# Deliveries are counted and discarded, so all consumers may receive into the same buffer.
SCRATCH = bytearray(1 << 19)


class Publisher(Endpoint):
    """Sends one blob after the other, with at most `window` messages (and the current blob) unconfirmed."""

    def __init__(self, connection: Connection, blobs: Sequence[bytes], batch: int, window: int | None) -> None:
        if window is not None:
            connection.select_confirms()
        super().__init__(connection)
        self.blobs, self.batch, self.window = blobs, batch, window
        self.sent = 0
        self.sent_max: int | None = None
        self.stopped = False
        self.confirms = Tally()

    @property
    def nacked(self) -> int:
        return self.confirms.nacked

    @property
    def confirmed(self) -> int:
        return self.confirms.count - self.nacked

    @property
    def is_settled(self) -> bool:
        return not self.unsent and (self.window is None or self.confirms.count >= self.sent)

    def may_begin(self) -> bool:
        if self.stopped or (self.sent_max is not None and self.sent >= self.sent_max):
            return False
        return self.window is None or self.sent - self.confirms.count < self.window

    def wants_to_write(self) -> bool:
        return bool(self.unsent) or self.may_begin()

    def on_writable(self) -> None:
        if not self.unsent and self.may_begin():
            self.unsent = memoryview(self.blobs[self.sent // self.batch % len(self.blobs)])
            self.sent += self.batch
        self.send_unsent()

    def on_data(self, data: bytes) -> bytes:
        at = 0
        while len(data) - at >= amqp.OVERHEAD:
            _, _, size = amqp.HEAD.unpack_from(data, at)
            if len(data) - at < size + amqp.OVERHEAD:
                break
            self._on_method(data[at + amqp.HEAD.size : at + amqp.HEAD.size + size])
            at += size + amqp.OVERHEAD
        return data[at:]

    def _on_method(self, payload: bytes) -> None:
        name = amqp.METHOD_ID.unpack_from(payload)
        if name in (amqp.BASIC_ACK, amqp.BASIC_NACK):
            tag, flags = amqp.CONFIRM.unpack_from(payload, amqp.METHOD_ID.size)
            self.confirms.on_told(tag, bool(flags & 1), name == amqp.BASIC_NACK)
        elif name not in (amqp.CONNECTION_BLOCKED, amqp.CONNECTION_UNBLOCKED):
            raise BrokerError(f"a publisher got {payload[:200]!r}")


class Consumer(Endpoint):
    """Counts deliveries by their bytes, and acks all so far after every `ack_every`; 0 is a consumer without acks."""

    def __init__(self, connection: Connection, queues: Sequence[str], ack_every: int) -> None:
        for number, queue in enumerate(queues):
            connection.consume(queue, f"c{number:05}", no_ack=ack_every == 0)
        super().__init__(connection)
        self.ack_every = ack_every
        self.acked = 0
        self.delivery_bytes = 0  # Unknown before the first delivery.
        self.received_bytes = 0
        came, self.rest = self.rest, b""
        self.take_in(memoryview(came))

    @property
    def delivered(self) -> int:
        return self.received_bytes // self.delivery_bytes if self.delivery_bytes else 0

    @property
    def stray_bytes(self) -> int:
        return self.received_bytes % self.delivery_bytes if self.delivery_bytes else self.received_bytes

    def wants_to_write(self) -> bool:
        return bool(self.unsent)

    def on_writable(self) -> None:
        self.send_unsent()

    def on_readable(self) -> None:
        count = self.socket.recv_into(SCRATCH)
        if not count:
            raise BrokerError("the broker closed a consumer's connection")
        self.take_in(memoryview(SCRATCH)[:count])
        if self.ack_every and not self.unsent and self.delivered - self.acked >= self.ack_every:
            self.ack_all()

    def on_data(self, data: bytes) -> bytes:
        return data  # It was handled when it arrived.

    def take_in(self, data: memoryview) -> None:
        self.received_bytes += len(data)
        if not self.delivery_bytes:
            self.rest += data
            self._measure()

    def ack_all(self) -> None:
        self.acked = self.delivered
        self.unsent = memoryview(amqp.ack_through(self.acked))
        self.send_unsent()

    def _measure(self) -> None:
        """Learns the length of a delivery from the first one."""
        data, at, body_left = self.rest, 0, -1
        while body_left and len(data) - at >= amqp.HEAD.size:
            kind, _, size = amqp.HEAD.unpack_from(data, at)
            if len(data) - at < size + amqp.OVERHEAD:
                return
            payload = data[at + amqp.HEAD.size : at + amqp.HEAD.size + size]
            if kind == amqp.METHOD and amqp.METHOD_ID.unpack_from(payload) != amqp.BASIC_DELIVER:
                raise BrokerError(f"a consumer got {payload[:200]!r}")
            if kind == amqp.HEADER:
                body_left = int.from_bytes(payload[4:12], "big")
            elif kind == amqp.BODY:
                body_left -= size
            at += size + amqp.OVERHEAD
        if not body_left:
            self.delivery_bytes = at
            self.rest = b""


class CountingConsumer(Consumer):
    """Counts deliveries that differ in length: each has one frame with a body."""

    def __init__(self, connection: Connection, queues: Sequence[str], ack_every: int) -> None:
        self.counted = 0
        super().__init__(connection, queues, ack_every)

    @property
    def delivered(self) -> int:
        return self.counted

    @property
    def stray_bytes(self) -> int:
        return len(self.rest)

    def take_in(self, data: memoryview) -> None:
        rest = self.rest + data if self.rest else bytes(data)
        at, size = 0, len(rest)
        while size - at >= amqp.OVERHEAD:
            kind, end = rest[at], at + int.from_bytes(rest[at + 3 : at + 7], "big") + amqp.OVERHEAD
            if end > size:
                break
            if kind == amqp.BODY:
                self.counted += 1
            elif kind == amqp.METHOD and not rest.startswith(_DELIVER, at + amqp.HEAD.size):
                raise BrokerError(f"a consumer got {rest[at:end][:200]!r}")
            at = end
        self.rest = rest[at:]


@dataclass
class Driven:
    """The result of `drive`. Good only if everything sent was confirmed and delivered, and `errors` is empty."""

    seconds: float
    sent: int
    delivered: int
    expected: int
    nacked: int
    client_cpu: float  # Of one processor; near 1 the clients were measured, not the broker.
    errors: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        return not self.errors and not self.nacked and self.delivered == self.expected

    @property
    def per_s(self) -> int:
        return round(self.delivered / self.seconds)


def drive(
    publishers: Sequence[Publisher],
    consumers: Sequence[Consumer],
    *,
    seconds: float,
    copies: int = 1,
    waiting: int = 0,
    finish_s: float = FINISH_S,
    until: Callable[[], bool] | None = None,
) -> Driven:
    """Publish for `seconds` or up to each publisher's `sent_max`, then take in what is left, for `finish_s` at most.

    `until` is asked every few milliseconds, and may end the publishing before `seconds` have passed.
    Each message sent is expected `copies` times, and `waiting` messages are in the queues already. With `copies=0`
    nothing is expected but confirms.
    """
    selector = selectors.DefaultSelector()
    endpoints: list[Endpoint] = [*consumers, *publishers]
    for endpoint in endpoints:
        endpoint.register(selector)
    began, cpu = time.perf_counter(), time.process_time()
    stop_at, check_at, now = began + seconds, began, began
    while now < stop_at + finish_s:
        for key, events in selector.select(SELECT_S):
            key.data.on_ready(events)
        now = time.perf_counter()
        if now < check_at:
            continue
        check_at = now + CHECK_S  # Checking 2,000 endpoints after every event would cost more than the events.
        if any(endpoint.error for endpoint in endpoints):
            break
        if now < stop_at and until is not None and until():
            stop_at = now
        if now >= stop_at:
            for publisher in publishers:
                publisher.stopped = True
                publisher.update_interest()
        if any(publisher.may_begin() or not publisher.is_settled for publisher in publishers):
            continue
        due = waiting + copies * sum(publisher.sent for publisher in publishers)
        if sum(consumer.delivered for consumer in consumers) >= due:
            break
    took, cpu = time.perf_counter() - began, time.process_time() - cpu
    selector.close()
    return _sum_up(publishers, consumers, copies, waiting, took, cpu)


def _sum_up(
    publishers: Sequence[Publisher],
    consumers: Sequence[Consumer],
    copies: int,
    waiting: int,
    took: float,
    cpu: float,
) -> Driven:
    sent = sum(publisher.sent for publisher in publishers)
    unsettled = sum(not publisher.is_settled for publisher in publishers)
    stray = sum(consumer.stray_bytes for consumer in consumers)
    errors = [endpoint.error for endpoint in (*publishers, *consumers) if endpoint.error]
    if unsettled:
        errors.append(f"{unsettled} publishers still wait for confirms")
    if stray:
        errors.append(f"{stray} bytes came to consumers that are no whole deliveries")
    delivered = sum(consumer.delivered for consumer in consumers)
    nacked = sum(publisher.nacked for publisher in publishers)
    return Driven(took, sent, delivered, waiting + sent * copies, nacked, cpu / took, errors)
