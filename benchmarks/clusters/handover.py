"""Measures what clients notice when the master of a queue is moved on request.

- `hand_over`: of a mirrored queue, to a mirror in sync. Messages flow at 10,000 a second, published at the third of
  three nodes and consumed at the next master. The longest time without a confirm, and without a delivery, is the cost
  of the change.
- `move`: of a queue without mirrors and with 100,000 messages. Publishing continues at the same rate; the duration of
  the move is measured, too.

No message may be missing, delivered twice, or out of order.
"""

from __future__ import annotations

import contextlib
import selectors
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from benchmarks.clusters.failover import (
    PATIENCE_S,
    PREFETCH,
    QUEUE,
    TICK_S,
    WINDOW,
    Gaps,
    Keeping,
    Paced,
    Pause,
    stream,
)
from benchmarks.ruler import calls
from benchmarks.ruler.brokers import Broker, Leveret
from benchmarks.ruler.calls import Connection
from benchmarks.ruler.load import drive
from benchmarks.single.compare import fill
from leveret.client.amqp import BrokerError

PER_S = 10_000
CALM_S, AFTER_S = 1.0, 1.0
QUICK_CALM_S, QUICK_AFTER_S = 0.2, 0.4
WAITING, QUICK_WAITING = 100_000, 2_000


class Fast(Paced):
    per_s = PER_S


@dataclass
class Planned(Pause):
    whole_s: float = 0.0  # From the command to its answer.
    disorder: int = 0  # Messages that came after one that was sent later.
    problems: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        return not (self.lost or self.again or self.nacked or self.disorder or self.errors or self.problems)


class Order(threading.Thread):
    """Gives the command while messages flow."""

    def __init__(self, node: Leveret, target: Broker) -> None:
        super().__init__()
        assert isinstance(target, Leveret)
        self.node, self.target = node, target.node
        self.took_s = 0.0
        self.problems: list[str] = []

    def run(self) -> None:
        began = time.perf_counter()
        try:
            self.node.control("move_queue_master", vhost="/", name=QUEUE, node=self.target)
        except BrokerError as error:
            self.problems.append(str(error))
        self.took_s = time.perf_counter() - began


def hand_over(nodes: Sequence[Broker], number: int, quick: bool) -> Planned:
    """Moves the master from node `number` to the next."""
    master, target, other = (nodes[(number + step) % len(nodes)] for step in range(3))
    with Connection(master.port) as admin:
        admin.declare_queue(QUEUE)
        master.await_copies(QUEUE, len(nodes))
        try:
            return _measure(other, target, master, target, quick)
        finally:
            admin.delete_queue(QUEUE)


def move(nodes: Sequence[Broker], number: int, quick: bool) -> Planned:
    """The same for a queue without mirrors and with many messages, which are consumed afterwards."""
    master, target, other = (nodes[(number + step) % len(nodes)] for step in range(3))
    with Connection(master.port) as admin:
        admin.declare_queue(QUEUE)
        filled = fill(master.port, QUEUE, QUICK_WAITING if quick else WAITING)
        if not filled.is_good and filled.errors:
            raise BrokerError(f"could not fill: {filled.errors}")
        try:
            return _measure(other, None, master, target, quick, filled.sent)
        finally:
            admin.delete_queue(QUEUE)


def _measure(
    publish_at: Broker, consume_at: Broker | None, master: Broker, target: Broker, quick: bool, waiting: int = 0
) -> Planned:
    """`consume_at` None: nothing is consumed before all is over."""
    calm_s, after_s = (QUICK_CALM_S, QUICK_AFTER_S) if quick else (CALM_S, AFTER_S)
    count = round((calm_s + after_s) * PER_S)
    blobs = [calls.publish("", QUEUE, b"m-%08d" % each + b"x" * 90, persistent=True) for each in range(count)]
    assert isinstance(master, Leveret)
    order = Order(master, target)
    with Connection(publish_at.port) as one, contextlib.ExitStack() as opened:
        publisher = Fast(one, blobs, 1, WINDOW)
        publisher.sent_max = count
        if consume_at is not None:
            consumer = _consume(opened, consume_at, PREFETCH)
            found = stream(publisher, consumer, order.start, calm_s, PATIENCE_S)
            order.join()
        else:
            found = _publish(publisher, order.start, calm_s)
            order.join()
            consumer = _consume(opened, target, 0)
            drive([], [consumer], seconds=0, waiting=waiting + publisher.confirmed, finish_s=PATIENCE_S)
            numbers = consumer.numbers()
            found.lost = max(0, waiting + publisher.confirmed - consumer.delivered)
            found.again = len(numbers) - len(set(numbers))
    numbers = consumer.numbers()
    disorder = sum(before > after for before, after in pairwise(numbers))
    return Planned(**vars(found), whole_s=order.took_s, disorder=disorder, problems=order.problems)


def _consume(opened: contextlib.ExitStack, node: Broker, prefetch: int) -> Keeping:
    connection = opened.enter_context(Connection(node.port))
    if prefetch:
        connection.set_prefetch(prefetch)
    return Keeping(connection, [QUEUE], 1)


def _publish(publisher: Fast, strike: Callable[[], None], calm_s: float) -> Pause:
    """Like `stream`, without a consumer."""
    with contextlib.closing(selectors.DefaultSelector()) as selector:
        publisher.began = now = began = time.perf_counter()
        publisher.register(selector)
        confirms, calm, struck = Gaps(now), 0.0, False
        while now < began + PATIENCE_S and not publisher.error:
            for key, events in selector.select(TICK_S):
                key.data.on_ready(events)
            now = time.perf_counter()
            if now > began + calm_s and not struck:
                calm, confirms, struck = confirms.longest, Gaps(now), True
                strike()
            confirms.note(publisher.confirmed, now)
            publisher.update_interest()
            if publisher.sent == publisher.sent_max and publisher.is_settled:
                break
    errors = [publisher.error] if publisher.error else [] if publisher.is_settled else ["not all confirmed"]
    return Pause(confirms.end(now), 0.0, calm, publisher.sent, publisher.nacked, 0, 0, errors)
