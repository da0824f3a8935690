"""Runs a load: declares queues, drives all clients until the end, and deletes what it declared.

A run ends when its time is over, or when all clients have published or consumed their number of messages. Then
publishers stop, and the run waits for the rest: for confirms until they are there, up to `FINISH_S`; for deliveries as
long as they still come, since not every message need arrive (a queue may be limited, or have other consumers).
"""

from __future__ import annotations

import secrets
import selectors
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import FrameType, TracebackType
from typing import Final, NamedTuple, Self

from leveret.client.address import Address
from leveret.client.amqp import BrokerError
from leveret.client.connection import Connection
from leveret.client.endpoint import Endpoint
from leveret.client.tls import problem
from leveret.perf.consumer import Consumer
from leveret.perf.histogram import Histogram
from leveret.perf.ledger import Ledger, cluster_name
from leveret.perf.options import Options
from leveret.perf.publisher import Publisher, Target
from leveret.perf.report import Counts, Interval, Result

SELECT_S: Final = 0.05
CHECK_S: Final = 0.005  # To check a thousand clients after every event would cost more than the events.
IDLE_S: Final = 0.5
FINISH_S: Final = 30.0


def run(options: Options, name: str, on_interval: Callable[[Interval], None]) -> Result:
    """Runs a load. Raises BrokerError if it cannot begin; later errors are in the result."""
    with ExitStack() as stack:
        ledgers = open_ledgers(options, name, stack)
        try:
            publishers, consumers = set_up(options, name, stack, ledgers)
        except OSError as error:
            raise BrokerError(problem(error)) from None
        return Driver(options, publishers, consumers, on_interval, ledgers).drive()


class Ledgers(NamedTuple):
    """The ledgers of publishers and of consumers, if there are such clients and the options ask for ledgers."""

    published: Ledger | None = None
    consumed: Ledger | None = None

    def all(self) -> list[Ledger]:
        return [one for one in self if one is not None]


def open_ledgers(options: Options, name: str, stack: ExitStack) -> Ledgers:
    folder = options.ledger
    if folder is None:
        return Ledgers()
    try:
        ledgers = Ledgers(
            Ledger(folder, "published", name, "confirmed_at") if options.publishers else None,
            Ledger(folder, "consumed", name, "received_at") if options.consumers else None,
        )
    except OSError as error:
        raise BrokerError(f"--ledger {folder}: {error.strerror or error}") from None
    for ledger in ledgers.all():
        stack.callback(ledger.close)
    return ledgers


def set_up(
    options: Options, name: str, stack: ExitStack, ledgers: Ledgers = Ledgers()  # noqa: B008 (immutable)
) -> tuple[list[Publisher], list[Consumer]]:
    """Declares queues, then connects consumers, then publishers. Pushes what has to be undone on the stack."""

    def connect(role: str, number: int) -> Connection:
        address = options.addresses[number % len(options.addresses)]
        connection = _connect(options, address, f"{name} {role} {number + 1}")
        stack.callback(connection.close)
        for ledger in ledgers.all():
            ledger.cluster = ledger.cluster or cluster_name(connection.server_properties)
        return connection

    if not options.predeclared:
        scene = connect("scene", 0)
        if not options.keep_queues:
            stack.callback(clear, options, name)
        declare(options, scene)
    consumers = [
        Consumer(
            connect("consumer", number),
            share(options.queues, number, options.consumers),
            prefetch=options.prefetch,
            ack_every=options.ack_every,
            ledger=ledgers.consumed,
        )
        for number in range(options.consumers)
    ]
    publishers = [
        Publisher(
            connect("publisher", number),
            targets(options, share(options.queues, number, options.publishers)),
            size=options.size,
            persistent=options.persistent,
            mandatory=options.mandatory,
            window=options.window,
            rate=options.rate,
            messages_max=options.publish_max,
            ledger=ledgers.published,
            name=1 + secrets.randbelow((1 << 32) - 1),
        )
        for number in range(options.publishers)
    ]
    return publishers, consumers


def _connect(options: Options, address: Address, name: str) -> Connection:
    return Connection(address, name, {"product": "leveret perf"}, options.tls if address.tls else None)


def share(queues: Sequence[str], number: int, of: int) -> list[str]:
    """Returns the queues of one client: every queue has a client, and every client a queue, whatever their numbers."""
    return list(queues[number::of]) or [queues[number % len(queues)]]


def targets(options: Options, queues: Sequence[str]) -> list[Target]:
    if options.key is not None:
        return [Target(options.exchange, options.key)]
    return [Target(options.exchange, queue) for queue in queues]


def declare(options: Options, connection: Connection) -> None:
    if options.exchange:
        connection.declare_exchange(options.exchange, options.exchange_type)
    for queue in options.queues:
        connection.declare_queue(queue, options.queue_arguments)
        if options.exchange:
            connection.bind(queue, options.exchange, queue if options.key is None else options.key)


def clear(options: Options, name: str) -> None:
    """Deletes the queues that this run declared. If that fails, a line on stderr says so."""
    first = options.addresses[0]
    try:
        connection = _connect(options, first, f"{name} end")
        try:
            for queue in options.queues:
                connection.delete_queue(queue)
        finally:
            connection.close()
    except (OSError, BrokerError) as error:
        print(f"leveret perf: queues {options.queues[0]} ... may be left behind: {error}", file=sys.stderr)


class Interruption:
    """Notes the first Ctrl-C, which ends the run between two steps: an exception inside a step could come after bytes
    were sent and before they were counted. A second Ctrl-C interrupts at once, as usual."""

    def __init__(self) -> None:
        self.happened = False
        self._usual: signal.Handlers | Callable[[int, FrameType | None], object] | int | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._usual = signal.getsignal(signal.SIGINT)
            if callable(self._usual):  # Otherwise the signal is ignored, as in a background job of a shell.
                signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.happened = True
        self._restore()

    def _restore(self) -> None:
        if callable(self._usual):
            signal.signal(signal.SIGINT, self._usual)


class Driver:
    """Runs the event loop of all clients, and counts."""

    def __init__(
        self,
        options: Options,
        publishers: Sequence[Publisher],
        consumers: Sequence[Consumer],
        on_interval: Callable[[Interval], None],
        ledgers: Ledgers = Ledgers(),  # noqa: B008 (immutable)
    ) -> None:
        self.options = options
        self.publishers = publishers
        self.consumers = consumers
        self.endpoints: list[Endpoint] = [*consumers, *publishers]
        self.on_interval = on_interval
        self.ledgers = ledgers
        self.result = Result()
        self._told = Counts()
        self._told_s = 0.0
        self._interruption = Interruption()

    def drive(self) -> Result:
        with selectors.DefaultSelector() as selector:
            began = self._told_s = time.perf_counter()
            for publisher in self.publishers:
                publisher.began_s = began
            for endpoint in self.endpoints:
                endpoint.register(selector)
            with self._interruption:
                self._publish(selector, began)
            now = time.perf_counter()
            if now - self._told_s > self.options.interval_s / 2 or not self.result.intervals:
                self._tell(now - began)
            self.result.finish(now - began, self._counts())
            try:
                self._finish(selector)
            except KeyboardInterrupt:
                self.result.errors.append("interrupted before everything was confirmed")
        self._sum_up()
        return self.result

    def _publish(self, selector: selectors.BaseSelector, began: float) -> None:
        options = self.options
        stop_at = None if options.seconds is None else began + options.seconds
        tell_at = began + options.interval_s
        now = began
        while not self._is_over(now, stop_at):
            self._step(selector, min(tell_at, stop_at or tell_at))
            now = time.perf_counter()
            if now >= tell_at:
                self._tell(now - began)
                tell_at += options.interval_s

    def _is_over(self, now: float, stop_at: float | None) -> bool:
        if self._interruption.happened:  # Ctrl-C: the usual end of a run without --time.
            return True
        if stop_at is not None and now >= stop_at:
            return True
        if any(endpoint.error is not None for endpoint in self.endpoints):
            return True
        wanted = self.options.consume_max
        if wanted is not None and self.consumers:
            return all(consumer.received >= wanted for consumer in self.consumers)
        return bool(self.publishers) and all(publisher.is_done for publisher in self.publishers)

    def _step(self, selector: selectors.BaseSelector, until_s: float) -> None:
        """Handles events for some milliseconds, or until a publisher or `until_s` is due."""
        step_end = time.perf_counter() + CHECK_S
        while True:
            now = time.perf_counter()
            for publisher in self.publishers if self.options.rate is not None else ():
                publisher.update_interest()
            dues = [due for publisher in self.publishers if (due := publisher.next_due_s()) is not None]
            timeout_s = min(until_s, now + SELECT_S, *dues) - now
            for key, events in selector.select(max(timeout_s, 0)):
                key.data.on_ready(events)
            if time.perf_counter() >= step_end:
                return

    def _finish(self, selector: selectors.BaseSelector) -> None:
        """Stops the publishers and waits for the rest; see the head of the module."""
        for publisher in self.publishers:
            publisher.stopped = True
            publisher.update_interest()
        end = time.perf_counter() + FINISH_S
        idle_since, seen = time.perf_counter(), -1
        while (now := time.perf_counter()) < end:
            counts = self._counts()
            if counts.received != seen:
                seen, idle_since = counts.received, now
            settled = all(one.is_settled for one in self.publishers if one.error is None)
            arrived = counts.received >= counts.sent * self.options.copies or now - idle_since > IDLE_S
            if settled and (arrived or not self.consumers):
                break
            self._step(selector, now + CHECK_S)
        for consumer in self.consumers:
            if consumer.error is None:
                consumer.ack_rest()

    def _counts(self) -> Counts:
        return Counts(
            sum(one.sent for one in self.publishers),
            sum(one.confirms.count - one.confirms.nacked for one in self.publishers),
            sum(one.confirms.nacked for one in self.publishers),
            sum(one.returned for one in self.publishers),
            sum(one.received for one in self.consumers),
        )

    def _tell(self, at_s: float) -> None:
        """Reports the interval since the last report, and adds its latencies to those of the run."""
        now = time.perf_counter()
        counts = self._counts()
        latency = Histogram().merge(one.latency for one in self.consumers)
        confirm = Histogram().merge(one.confirms.latency for one in self.publishers)
        for consumer in self.consumers:
            consumer.latency = Histogram()
        for publisher in self.publishers:
            publisher.confirms.latency = Histogram()
        blocked = sum(one.blocked for one in self.publishers)
        interval = Interval(at_s, max(now - self._told_s, 1e-6), counts.minus(self._told), latency, confirm, blocked)
        self._told, self._told_s = counts, now
        self.result.add(interval)
        for ledger in self.ledgers.all():
            ledger.flush()
        self.on_interval(interval)

    def _sum_up(self) -> None:
        result = self.result
        result.total = self._counts()
        result.latency.merge(one.latency for one in self.consumers)
        result.confirm.merge(one.confirms.latency for one in self.publishers)
        for kind, endpoints in (("publisher", self.publishers), ("consumer", self.consumers)):
            result.errors += [
                f"{kind} {at}: {one.error}" for at, one in enumerate(endpoints, 1) if one.error is not None
            ]
        unsettled = sum(one.sent - one.confirms.count for one in self.publishers if one.window and one.error is None)
        if unsettled:
            result.errors.append(f"{unsettled} messages were not confirmed within {FINISH_S:g} s after the end")
