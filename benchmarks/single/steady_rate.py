"""Latency at a steady rate: messages are sent one by one at fixed times, however long the broker takes.

The time of a message counts from the moment at which it was due, so that messages which wait in the client behind a
slow broker count in full. One thread sends, reads confirms and reads deliveries. It waits in `select`, whose timeout
has microseconds; that of epoll has milliseconds.
"""

from __future__ import annotations

import select
import statistics
import struct
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Final

from benchmarks.ruler import calls
from benchmarks.ruler.brokers import Broker
from benchmarks.ruler.calls import Connection
from benchmarks.ruler.workloads import PREFIX, scene
from leveret.client import amqp
from leveret.client.amqp import BrokerError

RATES: Final = (500, 1_000, 2_000, 5_000, 10_000, 20_000)  # Messages a second.
BODY_BYTES: Final = 100
WARM_UP_S: Final = 0.3  # Messages of this time are sent and not counted.
FINISH_S: Final = 20.0
READ_BYTES: Final = 1 << 18
NUMBER: Final = struct.Struct(">Q")


@dataclass
class Steady:
    """Milliseconds of messages at one rate, and the processor time that the broker took for each."""

    rate: int
    confirm_p50: float
    confirm_p99: float
    deliver_p50: float
    deliver_p99: float
    cpu_us: float  # Microseconds of the broker's processes for a message, all included.

    def numbers(self) -> dict[str, float]:
        return asdict(self)


class _Stream:
    """Cuts the frames out of what arrives on one socket."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.rest = bytes(connection.received)

    def frames(self) -> list[tuple[int, bytes]]:
        data = self.connection.socket.recv(READ_BYTES)
        if not data:
            raise BrokerError("the broker closed the connection")
        data, at, found = self.rest + data, 0, []
        while len(data) - at >= amqp.OVERHEAD:
            kind, _, size = amqp.HEAD.unpack_from(data, at)
            end = at + size + amqp.OVERHEAD
            if end > len(data):
                break
            found.append((kind, data[at + amqp.HEAD.size : end - 1]))
            at = end
        self.rest = data[at:]
        return found


class SteadyLoad:
    """One publisher with confirms, and a consumer with acknowledgements for each queue, in one thread."""

    def __init__(self, port: int, queues: Sequence[str], opened: ExitStack) -> None:
        self.sender = _Stream(opened.enter_context(Connection(port)))
        self.sender.connection.select_confirms()
        self.receivers: list[_Stream] = []
        for queue in queues:
            connection = opened.enter_context(Connection(port))
            connection.consume(queue, "c", no_ack=False)
            self.receivers.append(_Stream(connection))
        frames = [calls.publish("", queue, bytes(BODY_BYTES), persistent=True) for queue in queues]
        self.parts = [(frame[: -BODY_BYTES - 1], frame[-BODY_BYTES - 1 + NUMBER.size :]) for frame in frames]
        self.due: list[float] = []
        self.confirmed: list[float] = []  # Times of confirms, by number; 0: there is none yet.
        self.delivered: list[float] = []
        self.through = 0  # So many messages are confirmed without a gap.
        self.base = 0  # Messages of earlier runs on the same channel.
        self.open_confirms = self.open_deliveries = 0

    def run(self, rate: int, count: int) -> None:
        """Sends so many messages, and waits until all are confirmed and delivered."""
        by_socket = {stream.connection.socket: stream for stream in (self.sender, *self.receivers)}
        send, parts, kinds = self.sender.connection.socket.sendall, self.parts, len(self.parts)
        self.due, self.confirmed, self.delivered = [0.0] * count, [0.0] * count, [0.0] * count
        self.open_confirms = self.open_deliveries = count
        sent, step, began, clock = 0, 1 / rate, time.perf_counter() + 0.01, time.perf_counter
        next_at, give_up_at = began, began + count * step + FINISH_S
        while self.open_confirms or self.open_deliveries:
            now = clock()
            while sent < count and next_at <= now:
                self.due[sent] = next_at
                before, after = parts[sent % kinds]
                send(before + NUMBER.pack(sent) + after)
                sent += 1
                next_at = began + sent * step
                now = clock()
            if now > give_up_at:
                raise BrokerError(f"{self.open_confirms} confirms and {self.open_deliveries} deliveries did not come")
            for ready in select.select(by_socket, (), (), max(0.0, next_at - now) if sent < count else 0.5)[0]:
                self._on_readable(by_socket[ready])

    def _on_readable(self, stream: _Stream) -> None:
        frames, now = stream.frames(), time.perf_counter()
        last_tag = 0
        for kind, payload in frames:
            if kind == amqp.BODY:
                number = NUMBER.unpack_from(payload)[0]
                self.open_deliveries -= not self.delivered[number]
                self.delivered[number] = now
            elif kind == amqp.METHOD:
                name = amqp.METHOD_ID.unpack_from(payload)
                if name == amqp.BASIC_ACK:
                    tag, multiple = amqp.CONFIRM.unpack_from(payload, amqp.METHOD_ID.size)
                    self._on_confirm(tag, multiple, now)
                elif name == amqp.BASIC_DELIVER:
                    last_tag = NUMBER.unpack_from(payload, amqp.METHOD_ID.size + 2)[0]
                else:
                    raise BrokerError(f"got {payload[:200]!r}")
        if last_tag:
            stream.connection.socket.sendall(amqp.ack_through(last_tag))

    def _on_confirm(self, tag: int, multiple: int, now: float) -> None:
        last = tag - self.base - 1
        for number in range(self.through if multiple & 1 else last, last + 1):
            if not self.confirmed[number]:
                self.confirmed[number] = now
                self.open_confirms -= 1
        while self.through < len(self.confirmed) and self.confirmed[self.through]:
            self.through += 1

    def next_run(self) -> None:
        self.base += len(self.due)
        self.through = 0


def times(due: Sequence[float], came: Sequence[float]) -> list[float]:
    return [(at - wanted) * 1_000 for wanted, at in zip(due, came, strict=True)]


def percentile(values: Sequence[float], of_100: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[of_100 - 1]


def steady(broker: Broker, rate: int, seconds: float, queues: int = 1) -> Steady:
    """Measures one rate, in queues of its own."""
    names = [f"{PREFIX}.steady.{number}" for number in range(queues)]
    with scene(broker.port, names), ExitStack() as opened:
        load = SteadyLoad(broker.port, names, opened)
        load.run(rate, max(2, round(rate * WARM_UP_S)))
        load.next_run()
        before = broker.cpu_s()
        load.run(rate, max(2, round(rate * seconds)))
        cpu_s = broker.cpu_s() - before
    confirms, deliveries = times(load.due, load.confirmed), times(load.due, load.delivered)
    return Steady(
        rate,
        statistics.median(confirms),
        percentile(confirms, 99),
        statistics.median(deliveries),
        percentile(deliveries, 99),
        cpu_s / len(confirms) * 1e6,
    )
