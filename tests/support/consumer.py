"""Helpers for tests with pika."""

from __future__ import annotations

import time
from typing import Any

from tests.support.servers import PATIENCE_S


class Consumer:
    """Collects deliveries; `take` waits for the next ones."""

    def __init__(self, channel: Any, queue: str, **options: Any) -> None:
        self.channel = channel
        self.queue = queue
        self.seen: list[tuple[Any, Any, bytes]] = []
        self.tag = channel.basic_consume(queue, self._on_message, **options)

    def _on_message(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        self.seen.append((method, properties, body))

    def take(self, number: int, seconds: float = PATIENCE_S) -> list[tuple[Any, Any, bytes]]:
        """Returns the next deliveries; fails if there are fewer."""
        deadline = time.monotonic() + seconds
        while len(self.seen) < number:
            assert time.monotonic() < deadline, f"after {seconds:g} s, {len(self.seen)} deliveries instead of {number}"
            self.channel.connection.process_data_events(0.1)
        taken, self.seen = self.seen[:number], self.seen[number:]
        return taken

    def bodies(self, number: int) -> list[bytes]:
        return [body for _, _, body in self.take(number)]

    def is_idle(self) -> bool:
        """Returns whether no delivery is in flight: after two answers on this channel, earlier deliveries have
        arrived."""
        for _ in range(2):
            self.channel.queue_declare(self.queue, passive=True)
        self.channel.connection.process_data_events(0)
        return not self.seen


def get_all(channel: Any, queue: str) -> list[bytes]:
    """Gets all ready messages, without acknowledgements."""
    taken = []
    while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
        taken.append(got[2])
    return taken


def waiting(channel: Any, queue: str) -> int:
    number: int = channel.queue_declare(queue, passive=True).method.message_count
    return number


def fill(channel: Any, queue: str, numbers: range, **options: Any) -> None:
    for number in numbers:
        channel.basic_publish("", queue, b"%d" % number, **options)


def numbers(*wanted: int) -> list[bytes]:
    return [b"%d" % number for number in wanted]
