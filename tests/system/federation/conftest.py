"""Two brokers in this process: an upstream, and a downstream that takes messages from it."""

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
from tests.support.servers import until


class Site:
    """One broker, and a channel to it."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.connect()

    def connect(self) -> None:
        self.connection = pika.BlockingConnection(pika.URLParameters(self.broker.url))
        self.channel: BlockingChannel = self.connection.channel()
        self.channel.confirm_delivery()

    @property
    def url(self) -> str:
        return self.broker.url

    def queue(self, name: str, exchange: str = "", key: str = "") -> str:
        self.channel.queue_declare(name, durable=True)
        if exchange:
            self.channel.queue_bind(name, exchange, key)
        return name

    def exchange(self, name: str, kind: str = "topic") -> str:
        self.channel.exchange_declare(name, kind, durable=True)
        return name

    def publish(self, exchange: str, key: str, body: bytes = b"x", **properties: Any) -> None:
        self.channel.basic_publish(exchange, key, body, pika.BasicProperties(delivery_mode=2, **properties))

    def count(self, queue: str) -> int:
        return {one.name: one.messages for one in self.broker.admin.queues()}.get(queue, -1)

    def queues(self) -> list[str]:
        return sorted(one.name for one in self.broker.admin.queues())

    def exchanges(self) -> list[str]:
        return sorted(one.name for one in self.broker.admin.exchanges())

    def bindings(self, source: str) -> list[tuple[str, str]]:
        """The destinations and keys of what is bound to an exchange."""
        found = self.broker.admin.bindings()
        return sorted((one.destination_name, one.routing_key) for one in found if one.source_name == source)

    def take(self, queue: str) -> list[tuple[bytes, pika.BasicProperties]]:
        found: list[tuple[bytes, pika.BasicProperties]] = []
        while True:
            method, properties, body = self.channel.basic_get(queue, auto_ack=True)
            if method is None:
                return found
            found.append((body, properties))

    def parameter(self, component: str, name: str, value: Any) -> None:
        self.broker.admin.call("set_parameter", vhost="/", component=component, name=name, value=value)

    def upstream(self, name: str, uri: Any, **keys: Any) -> None:
        value = {"uri": uri, "reconnect-delay": 0.1, **{key.replace("_", "-"): one for key, one in keys.items()}}
        self.parameter("federation-upstream", name, value)

    def federate(self, pattern: str, apply_to: str = "exchanges", **definition: Any) -> None:
        keys = {key.replace("_", "-"): one for key, one in definition.items()}
        keys = keys or {"federation-upstream-set": "all"}
        self.broker.admin.set_policy("federate", pattern, keys, apply_to=apply_to)

    def links(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.broker.admin.call("federation_status")
        return found

    def until_runs(self, count: int = 1) -> list[dict[str, Any]]:
        """Wait for so many links, all of them running."""

        def all_run() -> bool:
            found = self.links()
            return len(found) == count and all(one["status"] == "running" for one in found)

        until(all_run, f"{count} links to run")
        return self.links()

    def clear(self) -> None:
        admin = self.broker.admin
        for policy in admin.policies():
            admin.clear_policy(policy.name)
        for one in admin.call("list_parameters", vhost="/"):
            admin.call("clear_parameter", vhost="/", component=one["component"], name=one["name"])
        until(lambda: not self.links(), "the links to end")
        admin.delete_all()

    def close(self) -> None:
        with suppress(pika.exceptions.AMQPError):  # The broker may have been restarted.
            self.connection.close()


@pytest.fixture(scope="module")
def brokers() -> Iterator[tuple[Broker, Broker]]:
    with leveret.testing.broker() as down, leveret.testing.broker() as up:
        yield down, up


@pytest.fixture
def down(brokers: tuple[Broker, Broker]) -> Iterator[Site]:
    """The broker that has the links."""
    brokers[0].admin.call("set_cluster_name", name="down")
    site = Site(brokers[0])
    yield site
    site.clear()
    site.close()


@pytest.fixture
def up(brokers: tuple[Broker, Broker], down: Site) -> Iterator[Site]:
    brokers[1].admin.call("set_cluster_name", name="up")
    site = Site(brokers[1])
    yield site
    down.clear()
    site.clear()
    site.close()
