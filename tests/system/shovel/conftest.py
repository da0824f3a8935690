"""Two brokers in this process, between which messages are moved."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pika
import pika.exceptions
import pytest
from pika.adapters.blocking_connection import BlockingChannel

import leveret.testing
from leveret.testing import Broker


class Site:
    """One broker, and a channel to it."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        self.channel: BlockingChannel = self.connection.channel()
        self.channel.confirm_delivery()

    @property
    def url(self) -> str:
        return self.broker.url

    def queue(self, name: str, **arguments: Any) -> str:
        self.channel.queue_declare(name, durable=True, arguments=arguments)
        return name

    def fill(self, queue: str, count: int, first: int = 0) -> list[bytes]:
        bodies = [b"message %d" % number for number in range(first, first + count)]
        for body in bodies:
            self.channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2))
        return bodies

    def count(self, queue: str) -> int:
        found = {one.name: one.messages for one in self.broker.admin.queues()}
        return found.get(queue, -1)

    def take(self, queue: str) -> list[bytes]:
        bodies: list[bytes] = []
        while True:
            method, _, body = self.channel.basic_get(queue, auto_ack=True)
            if method is None:
                return bodies
            bodies.append(body)

    def shovel(self, name: str, **keys: Any) -> None:
        value = {key.replace("_", "-"): one for key, one in keys.items()}
        self.broker.admin.call("set_parameter", vhost="/", component="shovel", name=name, value=value)

    def statuses(self) -> dict[str, dict[str, Any]]:
        return {one["name"]: one for one in self.broker.admin.call("shovel_status")}

    def clear(self) -> None:
        for name in self.statuses():
            self.broker.admin.call("delete_shovel", vhost="/", name=name)
        self.broker.admin.delete_all()

    def close(self) -> None:
        with suppress(pika.exceptions.AMQPError):  # The broker may have been restarted.
            self.connection.close()


@pytest.fixture(scope="module")
def brokers() -> Iterator[tuple[Broker, Broker]]:
    with leveret.testing.broker() as here, leveret.testing.broker() as far:
        yield here, far


@pytest.fixture
def here(brokers: tuple[Broker, Broker]) -> Iterator[Site]:
    site = Site(brokers[0])
    yield site
    site.clear()
    site.close()


@pytest.fixture
def far(brokers: tuple[Broker, Broker]) -> Iterator[Site]:
    site = Site(brokers[1])
    yield site
    site.clear()
    site.close()
