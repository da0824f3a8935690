"""Publishers and consumers at all nodes keep books while nodes are killed, frozen and started again at random.

What must hold, whatever happened: every confirmed message is delivered at least once, and of one publisher and queue
the messages are seen for the first time in the order in which they were published.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pika

from tests.support.members import PERSISTENT, Cluster, Member

SECONDS = 15.0
DRAIN_SECONDS = 60.0
LOST = (pika.exceptions.AMQPError, OSError)


class Publisher(threading.Thread):
    """Publishes numbers to one queue, each until it is confirmed."""

    def __init__(self, name: str, queue: str, nodes: Cluster, stop: threading.Event, rng: random.Random) -> None:
        super().__init__(name=name)
        self.queue, self.nodes, self.halt, self.rng = queue, nodes, stop, rng
        self.confirmed: list[int] = []
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.halt.is_set():
                try:
                    self._publish(connect(self.rng.choice(self.nodes.nodes)))
                except LOST:
                    self.halt.wait(0.1)
        except BaseException as error:
            self.failure = error

    def _publish(self, connection: Any) -> None:
        channel = connection.channel()
        channel.confirm_delivery()
        number = self.confirmed[-1] + 1 if self.confirmed else 0
        while not self.halt.is_set():
            try:
                channel.basic_publish("", self.queue, f"{self.name} {number}".encode(), PERSISTENT)
            except pika.exceptions.NackError:
                self.halt.wait(0.05)
                continue
            self.confirmed.append(number)
            number += 1


class Reader(threading.Thread):
    """Consumes one queue, and notes what it sees."""

    def __init__(self, queue: str, nodes: Cluster, stop: threading.Event, rng: random.Random) -> None:
        super().__init__(name=f"reader of {queue}")
        self.queue, self.nodes, self.halt, self.rng = queue, nodes, stop, rng
        self.seen: dict[str, dict[int, None]] = {}
        self.deliveries = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.halt.is_set():
                try:
                    self._consume(connect(self.rng.choice(self.nodes.nodes)))
                except LOST:
                    self.halt.wait(0.1)
        except BaseException as error:
            self.failure = error

    def _consume(self, connection: Any) -> None:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=20)
        cancelled: list[Any] = []
        channel.add_on_cancel_callback(cancelled.append)
        channel.basic_consume(self.queue, self._on_message)
        while not self.halt.is_set() and not cancelled:
            connection.process_data_events(0.1)
        connection.close()

    def _on_message(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        publisher, number = body.decode().split()
        seen = self.seen.setdefault(publisher, {})
        seen.setdefault(int(number))  # Only the first time counts.
        self.deliveries += 1
        channel.basic_ack(method.delivery_tag)


def connect(node: Member) -> Any:
    parameters = pika.ConnectionParameters(
        "127.0.0.1", node.port, heartbeat=2, socket_timeout=2, stack_timeout=3, blocked_connection_timeout=10
    )
    return pika.BlockingConnection(parameters)


def test_nothing_confirmed_is_lost(nodes: Cluster, name: str) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    queues = [f"{name}-{number}" for number in range(3)]
    for node, queue in zip(nodes, queues, strict=True):
        node.channel().queue_declare(queue, durable=True)
    stop_publishing, stop = threading.Event(), threading.Event()
    publishers = [
        Publisher(f"p{number}", queues[number % 3], nodes, stop_publishing, random.Random(rng.random()))
        for number in range(6)
    ]
    readers = [Reader(queue, nodes, stop, random.Random(rng.random())) for queue in queues]
    threads: list[Publisher | Reader] = [*publishers, *readers]
    for thread in threads:
        thread.start()
    try:
        torment(nodes, rng, lambda: any(thread.failure for thread in threads))
        nodes.mend()
        stop_publishing.set()
        for publisher in publishers:
            publisher.join()
        by_queue = {reader.queue: reader for reader in readers}
        deadline = time.monotonic() + DRAIN_SECONDS

        def missing() -> dict[str, list[int]]:
            return {
                one.name: gone
                for one in publishers
                if (gone := sorted(set(one.confirmed) - set(by_queue[one.queue].seen.get(one.name, ()))))
            }

        while missing() and time.monotonic() < deadline:
            stop.wait(0.1)
        assert not missing(), f"confirmed and never seen (seed {seed})"
    finally:
        stop_publishing.set()
        stop.set()
        for thread in threads:
            thread.join()
    for thread in threads:
        if thread.failure is not None:
            raise thread.failure
    for reader in readers:
        for name, numbers in reader.seen.items():
            assert list(numbers) == sorted(numbers), f"{name} to {reader.queue}, out of order (seed {seed})"
    total = sum(len(publisher.confirmed) for publisher in publishers)
    print(f"{total} confirmed, {sum(reader.deliveries for reader in readers)} deliveries")
    assert total > 500


def torment(nodes: Cluster, rng: random.Random, is_over: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    pause = threading.Event()
    while time.monotonic() < deadline and not is_over():
        victims = rng.sample(nodes.nodes, 2 if rng.random() < 0.15 else 1)
        for node in victims:
            if rng.random() < 0.25:
                node.freeze()
            elif rng.random() < 0.25:
                node.stop()
            else:
                node.kill()
        pause.wait(rng.choice((0.0, 0.3, 1.5)))
        for node in victims:
            if node.frozen:
                node.thaw()
            elif not node.is_running:
                node.spawn()
        for node in victims:
            if node.fresh:
                node.wait_until_ready()
        pause.wait(rng.choice((0.1, 0.5, 2.0)))

