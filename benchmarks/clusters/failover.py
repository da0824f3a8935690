"""Measures what clients at other nodes notice when the master of a mirrored queue is killed with -9.

- `pause`: messages flow at an even rate, so that the longest time without a confirm, and without a delivery, is the
  cost of losing the master. Before that, such a gap is a millisecond or two (`calm_s`).
- `promotion`: a queue has many messages and no consumers. How long until another node delivers its first message, and
  until a publish is confirmed? A broker that looks at each message first is slow here.

Every node is the master in turn, since the lost node may also be the Raft leader, and then nobody can be promoted
before there is another leader. The node is restarted after each round.

Nothing confirmed may be missing afterwards: bodies are numbered, and those that came are compared with what was
confirmed. Some may come twice.
"""

from __future__ import annotations

import contextlib
import re
import selectors
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.ruler import calls
from benchmarks.ruler.brokers import Broker
from benchmarks.ruler.calls import Connection
from benchmarks.ruler.load import Consumer, Publisher
from benchmarks.ruler.workloads import PREFIX
from benchmarks.single.compare import fill
from leveret.client import amqp
from leveret.client.amqp import BrokerError

QUEUE = f"{PREFIX}.failover"
PER_S = 2_000
CALM_S, AFTER_S = 1.0, 2.0
QUICK_CALM_S, QUICK_AFTER_S = 0.2, 0.5
TICK_S = 0.0005
WINDOW = 20_000  # Publishes that may wait for confirms while there is no master.
PREFETCH = 200
PATIENCE_S = 60.0
RETRY_S = 0.005
NUMBER = re.compile(rb"m-(\d{8})")


@contextlib.contextmanager
def lost_master(nodes: Sequence[Broker], number: int) -> Iterator[tuple[Broker, Broker, Broker]]:
    """Yields a queue whose master is node `number`, and two other nodes. Afterwards deletes the queue and restarts
    the master."""
    master, *others = (nodes[(number + step) % len(nodes)] for step in range(len(nodes)))
    with Connection(master.port) as admin:
        admin.declare_queue(QUEUE)
    master.await_copies(QUEUE, len(nodes))
    yield master, others[0], others[-1]
    master.bury()
    with Connection(others[0].port) as admin:
        admin.delete_queue(QUEUE)
    master.start()


# -- A pause --------------------------------------------------------------------------------------------------------


@dataclass
class Pause:
    confirm_s: float  # The longest time without a confirm, from just before the kill on.
    deliver_s: float
    calm_s: float  # The longest time of both kinds before the kill.
    sent: int
    nacked: int
    again: int  # Delivered more than once.
    lost: int
    errors: list[str]

    @property
    def is_good(self) -> bool:
        return not self.lost and not self.errors


class Paced(Publisher):
    """Publishes at an even rate."""

    began = 0.0
    per_s = PER_S

    def may_begin(self) -> bool:
        return self.sent < (time.perf_counter() - self.began) * self.per_s and super().may_begin()


class Keeping(Consumer):
    """Records every delivery, to find messages that came twice or not at all."""

    def __init__(self, connection: Connection, queues: Sequence[str], ack_every: int) -> None:
        self.kept = bytearray()
        super().__init__(connection, queues, ack_every)

    def take_in(self, data: memoryview) -> None:
        self.kept += data
        super().take_in(data)

    def numbers(self) -> list[bytes]:
        return NUMBER.findall(self.kept)


class Gaps:
    """The longest time between two moments at which a count rose."""

    def __init__(self, now: float) -> None:
        self.longest = 0.0
        self._count, self._at = 0, now

    def note(self, count: int, now: float) -> None:
        if count != self._count:
            self.longest = max(self.longest, now - self._at)
            self._count, self._at = count, now

    def end(self, now: float) -> float:
        """Returns the longest gap, counting the one that lasts until now."""
        return max(self.longest, now - self._at)


def pause(nodes: Sequence[Broker], number: int, calm_s: float = CALM_S, after_s: float = AFTER_S) -> Pause:
    """Kills the master, which is node `number`, while messages flow from a second node to a third."""
    with lost_master(nodes, number) as (master, near, far), Connection(near.port) as one, Connection(far.port) as other:
        other.set_prefetch(PREFETCH)
        consumer = Keeping(other, [QUEUE], 1)
        count = round((calm_s + after_s) * PER_S)
        blobs = [calls.publish("", QUEUE, b"m-%08d" % each + b"x" * 90, persistent=True) for each in range(count)]
        publisher = Paced(one, blobs, 1, WINDOW)
        publisher.sent_max = count
        return stream(publisher, consumer, master.strike, calm_s, PATIENCE_S + calm_s + after_s)


def stream(publisher: Paced, consumer: Keeping, strike: Callable[[], None], calm_s: float, patience_s: float) -> Pause:
    """Lets messages flow, and calls `strike`, which must return at once, after a while."""
    with contextlib.closing(selectors.DefaultSelector()) as selector:
        publisher.began = now = began = time.perf_counter()
        publisher.register(selector)
        consumer.register(selector)
        confirms = deliveries = Gaps(now)
        calm = 0.0
        struck = False
        while now < began + patience_s:
            for key, events in selector.select(TICK_S):
                key.data.on_ready(events)
            now = time.perf_counter()
            if publisher.error or consumer.error:
                break
            if now > began + calm_s / 2 and confirms is deliveries:
                confirms, deliveries = Gaps(now), Gaps(now)  # Both flow by now.
            if now > began + calm_s and not struck:
                calm = max(confirms.longest, deliveries.longest)
                confirms, deliveries = Gaps(now), Gaps(now)
                strike()
                struck = True
            confirms.note(publisher.confirmed, now)
            deliveries.note(consumer.delivered, now)
            publisher.update_interest()
            if publisher.sent == publisher.sent_max and publisher.is_settled and _is_complete(publisher, consumer):
                break
    numbers = consumer.numbers()
    came = len(set(numbers))
    settled = publisher.is_settled
    return Pause(
        confirms.longest if settled else confirms.end(now),
        deliveries.longest if came >= publisher.confirmed else deliveries.end(now),
        calm,
        publisher.sent,
        publisher.nacked,
        len(numbers) - came,
        max(0, publisher.confirmed - came),
        [error for error in (publisher.error, consumer.error) if error] + ([] if settled else ["not all confirmed"]),
    )


def _is_complete(publisher: Publisher, consumer: Keeping) -> bool:
    return consumer.delivered >= publisher.confirmed and len(set(consumer.numbers())) >= publisher.confirmed


# -- A promotion ------------------------------------------------------------------------------------------------------


@dataclass
class Promotion:
    get_s: float
    confirm_s: float
    waiting: int
    lost: int
    fill_per_s: int

    @property
    def is_good(self) -> bool:
        return not self.lost


def promotion(nodes: Sequence[Broker], number: int, messages: int) -> Promotion:
    """Kills the master of a queue with that many messages; gets one at a second node, and publishes one at a third."""
    with lost_master(nodes, number) as (master, near, far):
        filled = fill(master.port, QUEUE, messages)
        if not filled.is_good and filled.errors:
            raise BrokerError(f"could not fill: {filled.errors}")
        master.await_copies(QUEUE, len(nodes))
        getting, publishing = Getting(near.port), Publishing(far.port)
        master.strike()
        began = time.perf_counter()
        with contextlib.closing(getting), contextlib.closing(publishing):
            await_both(getting, publishing, began)
            with Connection(near.port) as admin:
                left = admin.count_messages(QUEUE)
            expected = filled.sent + publishing.done - getting.asked
            lost = max(0, expected - left)
            rate = round(filled.sent / filled.seconds)
            return Promotion(getting.at - began, publishing.at - began, filled.sent, lost, rate)


class Attempt(ABC):
    """Something that is tried until it succeeds. A broker may refuse it at first, which closes the channel."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.at = 0.0
        self.done = self.asked = 0
        self.connection = self.open()

    def open(self) -> Connection:
        return Connection(self.port)

    def ask(self) -> None:
        self.asked += 1
        self.connection.socket.sendall(self.request())

    @abstractmethod
    def request(self) -> bytes: ...

    @abstractmethod
    def is_done(self, name: tuple[int, int]) -> bool: ...

    def on_readable(self) -> None:
        kind, payload = self.connection.read_frame()
        if kind == amqp.METHOD and self.is_done(amqp.METHOD_ID.unpack_from(payload)):
            self.at, self.done = time.perf_counter(), 1
        else:
            raise BrokerError(f"refused: {payload[:200]!r}")

    def close(self) -> None:
        self.connection.close()


class Getting(Attempt):
    def request(self) -> bytes:
        return calls.get(QUEUE)

    def is_done(self, name: tuple[int, int]) -> bool:
        return name == calls.BASIC_GET_OK


class Publishing(Attempt):
    def open(self) -> Connection:
        connection = super().open()
        connection.select_confirms()
        return connection

    def request(self) -> bytes:
        return calls.publish("", QUEUE, b"x" * 100, persistent=True)

    def is_done(self, name: tuple[int, int]) -> bool:
        return name == amqp.BASIC_ACK


def await_both(first: Attempt, second: Attempt, began: float) -> None:
    with contextlib.closing(selectors.DefaultSelector()) as selector:

        def ask(attempt: Attempt) -> None:
            attempt.ask()
            selector.register(attempt.connection.socket, selectors.EVENT_READ, attempt)

        ask(first)
        ask(second)
        while not (first.done and second.done):
            left_s = began + PATIENCE_S - time.perf_counter()
            if left_s <= 0:
                raise BrokerError(f"nobody led {QUEUE} within {PATIENCE_S} s")
            for key, _ in selector.select(left_s):
                attempt: Attempt = key.data
                try:
                    attempt.on_readable()
                    if attempt.done:
                        selector.unregister(key.fileobj)
                except (OSError, BrokerError):
                    selector.unregister(key.fileobj)
                    attempt.close()
                    time.sleep(RETRY_S)  # A broker that refuses at once would be asked without end.
                    attempt.connection = attempt.open()
                    ask(attempt)
