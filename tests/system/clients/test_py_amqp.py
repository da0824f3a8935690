"""The server as py-amqp sees it, on which kombu and Celery rest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import amqp
import pytest

from tests.support.servers import Server


@pytest.fixture
def connection(broker: Server) -> Iterator[Any]:
    connection = amqp.Connection(f"127.0.0.1:{broker.port}", "guest", "guest")
    connection.connect()
    yield connection
    connection.close()


def test_a_queue_is_deleted_by_the_channel_that_consumes_from_it(connection: Any, name: str) -> None:
    """py-amqp takes a cancellation that comes before the answer for an error of the call."""
    channel = connection.channel()
    cancelled: list[str] = []
    channel.queue_declare(name, auto_delete=False)
    channel.basic_consume(name, consumer_tag="c", callback=lambda message: None, on_cancel=cancelled.append)
    assert channel.queue_delete(name) == 0
    while not cancelled:
        connection.drain_events(timeout=30)
    assert cancelled == ["c"]
    channel.queue_declare(name)  # The channel is as good as before.


def test_many_declarations_on_many_channels(connection: Any, name: str) -> None:
    channels = [connection.channel() for _ in range(10)]
    for number in range(100):
        answer = channels[number % 10].queue_declare(f"{name}-{number}", exclusive=True)
        assert answer.queue == f"{name}-{number}"
