"""RabbitMQ 3.10.8 as upstream, as downstream, in a circle and in a chain of three. Skipped if it is not installed."""

from __future__ import annotations

import base64
import json
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pika
import pytest

from benchmarks.ruler.brokers import RabbitMQ, free_ports, prepared
from leveret.base.json_values import Json
from leveret.cli.ctl.queues.federation import COLUMNS, MORE
from leveret.client.amqp import BrokerError
from leveret.metadata.federation.parameters import UPSTREAM, UPSTREAM_SET, faults_of
from tests.support.servers import until
from tests.system.federation.conftest import Site

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(RabbitMQ.program() is None, reason="RabbitMQ is not installed"),
]


class Rabbit:
    """A RabbitMQ with its federation plugin, and a channel to it."""

    def __init__(self, broker: RabbitMQ, management_port: int) -> None:
        self.broker = broker
        self.management_port = management_port
        self.url = f"amqp://guest:guest@127.0.0.1:{broker.port}/%2F"
        self.connection = pika.BlockingConnection(pika.URLParameters(self.url))
        self.channel = self.connection.channel()
        self.channel.confirm_delivery()

    def upstream(self, name: str, uri: str, **keys: Any) -> None:
        value = {"uri": uri, "reconnect-delay": 1, **{key.replace("_", "-"): one for key, one in keys.items()}}
        self.broker.control("set_parameter", "federation-upstream", name, json.dumps(value))

    def federate(self, pattern: str, apply_to: str = "exchanges") -> None:
        definition = json.dumps({"federation-upstream-set": "all"})
        self.broker.control("set_policy", "federate", pattern, definition, "--apply-to", apply_to)

    def clear(self) -> None:
        for words in (("clear_policy", "federate"), ("clear_parameter", "federation-upstream", "u")):
            with suppress(BrokerError):  # It was not set.
                self.broker.control(*words)

    def queue(self, name: str, exchange: str = "", key: str = "") -> str:
        self.channel.queue_declare(name, durable=True)
        if exchange:
            self.channel.queue_bind(name, exchange, key)
        return name

    def exchange(self, name: str, kind: str = "topic") -> str:
        self.channel.exchange_declare(name, kind, durable=True)
        return name

    def publish(self, exchange: str, key: str, body: bytes = b"x") -> None:
        self.channel.basic_publish(exchange, key, body, pika.BasicProperties(delivery_mode=2))

    def count(self, queue: str) -> int:
        return int(self.channel.queue_declare(queue, passive=True).method.message_count)

    def take(self, queue: str) -> list[tuple[bytes, Any]]:
        found: list[tuple[bytes, Any]] = []
        while True:
            method, properties, body = self.channel.basic_get(queue, auto_ack=True)
            if method is None:
                return found
            found.append((body, properties))

    def links(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.broker.control("federation_status", "--formatter", "json", "-q"))
        return found


@pytest.fixture(scope="module")
def rabbit_broker() -> Iterator[Rabbit]:
    with prepared(RabbitMQ) as broker:
        assert isinstance(broker, RabbitMQ)
        (port,) = free_ports(1)
        (broker.folder / "enabled_plugins").write_text("[rabbitmq_federation,rabbitmq_federation_management].\n")
        with (broker.folder / "rabbitmq.conf").open("a") as config:
            config.write(f"management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {port}\n")
        broker.start()
        broker.control("set_cluster_name", "rabbit")
        site = Rabbit(broker, port)
        yield site
        site.connection.close()


@pytest.fixture
def rabbit(rabbit_broker: Rabbit) -> Iterator[Rabbit]:
    yield rabbit_broker
    rabbit_broker.clear()
    for name in ("x", "y"):
        rabbit_broker.channel.exchange_delete(name)
    for name in ("q", "r"):
        rabbit_broker.channel.queue_delete(name)


def bodies(found: list[tuple[bytes, Any]]) -> list[bytes]:
    return sorted(body for body, _ in found)


def test_from_rabbitmq(down: Site, rabbit: Rabbit) -> None:
    down.queue("q", down.exchange("x"), "red.#")
    down.upstream("u", rabbit.url)
    down.federate("^x$")
    down.until_runs()
    for key in ("red.1", "blue.1", "red.2"):
        rabbit.publish("x", key, key.encode())
    until(lambda: down.count("q") == 2, "what is bound here")
    (first, properties), _ = down.take("q")
    (hop,) = properties.headers["x-received-from"]
    assert first == b"red.1" and (hop["cluster-name"], hop["vhost"], hop["exchange"]) == ("rabbit", "/", "x")
    down.queue("q", "x", "blue.#")
    until(lambda: "blue.#" in rabbit.broker.control("list_bindings", "-q"), "the binding to be passed on")
    rabbit.publish("x", "blue.2", b"blue.2")
    until(lambda: down.count("q") == 1, "the next message")
    assert "federation: x -> down" in rabbit.broker.control("list_queues", "-q", "name")
    assert "x-federation-upstream" in rabbit.broker.control("list_exchanges", "-q", "name", "type")
    down.broker.admin.clear_policy("federate")
    until(lambda: "federation: x" not in rabbit.broker.control("list_queues", "-q", "name"), "the queue to go")


def test_to_rabbitmq(down: Site, rabbit: Rabbit) -> None:
    """Leveret is the upstream here."""
    rabbit.queue("q", rabbit.exchange("x"), "red.#")
    rabbit.upstream("u", down.url)
    rabbit.federate("^x$")
    until(lambda: [one["status"] for one in rabbit.links()] == ["running"], "RabbitMQ's link to run")
    until(lambda: any(key == "red.#" for _, key in down.bindings("x")), "RabbitMQ's binding")
    kinds = {one.name: one.type for one in down.broker.admin.exchanges()}
    assert kinds["federation: x -> rabbit B"] == "x-federation-upstream"
    for key in ("red.1", "blue.1", "red.2"):
        down.publish("x", key, key.encode())
    until(lambda: rabbit.count("q") == 2, "what is bound there")
    (first, properties), _ = rabbit.take("q")
    (hop,) = properties.headers["x-received-from"]
    assert first == b"red.1" and (hop["cluster-name"], hop["vhost"], hop["exchange"]) == ("down", "/", "x")
    until(lambda: down.count("federation: x -> rabbit") == 0, "RabbitMQ's acknowledgements")
    rabbit.clear()
    until(lambda: not any(name.startswith("federation") for name in down.queues()), "RabbitMQ to clean up")


def test_a_loop(down: Site, rabbit: Rabbit) -> None:
    down.queue("q", down.exchange("x"), "#")
    rabbit.queue("q", rabbit.exchange("x"), "#")
    down.upstream("u", rabbit.url, max_hops=5)
    rabbit.upstream("u", down.url, max_hops=5)
    down.federate("^x$")
    rabbit.federate("^x$")
    down.until_runs()
    until(lambda: [one["status"] for one in rabbit.links()] == ["running"], "RabbitMQ's link to run")
    until(lambda: any(key == "#" and to.startswith("fed") for to, key in down.bindings("x")), "RabbitMQ's binding")
    down.publish("x", "k", b"from down")
    rabbit.publish("x", "k", b"from rabbit")
    until(lambda: down.count("q") == 2 and rabbit.count("q") == 2, "both everywhere")
    down.publish("x", "k", b"last")
    until(lambda: down.count("q") == 3 and rabbit.count("q") == 3, "each once")
    assert bodies(down.take("q")) == bodies(rabbit.take("q")) == [b"from down", b"from rabbit", b"last"]


def test_a_chain_of_three_with_two_hops(down: Site, up: Site, rabbit: Rabbit) -> None:
    """From up to RabbitMQ to down: bindings travel against the messages, over both links."""
    for site in (up, down, rabbit):
        site.exchange("x")
    down.queue("q", "x", "far.#")
    rabbit.upstream("u", up.url, max_hops=2)
    rabbit.federate("^x$")
    down.upstream("u", rabbit.url, max_hops=2)
    down.federate("^x$")
    down.until_runs()
    until(lambda: any(key == "far.#" for _, key in up.bindings("x")), "the binding to come to the far end")
    up.publish("x", "far.1", b"from up")
    until(lambda: down.count("q") == 1, "the message over two links")
    ((body, properties),) = down.take("q")
    hops = [one["cluster-name"] for one in properties.headers["x-received-from"]]
    assert (body, hops) == (b"from up", ["rabbit", "up"])
    down.upstream("u", rabbit.url, max_hops=1)
    until(lambda: not any(key == "far.#" for _, key in up.bindings("x")), "the binding to be taken back")
    down.until_runs()


def test_queues_both_ways(down: Site, rabbit: Rabbit) -> None:
    down.queue("q")
    rabbit.queue("q")
    down.upstream("u", rabbit.url)
    rabbit.upstream("u", down.url)
    down.federate("^q$", "queues")
    rabbit.federate("^q$", "queues")
    down.until_runs()
    until(lambda: [one["status"] for one in rabbit.links()] == ["running"], "RabbitMQ's link to run")
    for home, away in ((rabbit, down), (down, rabbit)):
        for number in range(10):
            home.publish("", "q", b"%d" % number)
        channel = away.connection.channel()
        got: list[bytes] = []
        channel.basic_consume("q", lambda _c, _m, _p, body, got=got: got.append(body), auto_ack=True)

        def has_all(away: Any = away, got: list[bytes] = got) -> bool:
            away.connection.process_data_events(0.05)
            return len(got) >= 10

        until(has_all, "all to come to the consumer")
        assert sorted(got) == [b"%d" % number for number in range(10)]
        channel.close()


def test_texts_of_faults(rabbit: Rabbit) -> None:
    """All faults of a value at once, in the same order and words."""
    value: Json = {
        "bogus": 1, "max-hops": "x", "ack-mode": "maybe", "trust-user-id": 1, "resource-cleanup-mode": "x",
        "exchange": 1, "prefetch-count": "y", "bind-nowait": 2, "channel-use-mode": "z",
    }  # fmt: skip
    elements: list[Json] = [value, {"upstream": 5}]
    values: dict[str, Json] = {UPSTREAM: value, UPSTREAM_SET: elements}
    name = "u"
    for component, one in values.items():
        with pytest.raises(BrokerError) as refused:
            rabbit.broker.control("set_parameter", component, name, json.dumps(one))
        told = "".join(str(refused.value).split())
        faults = ["".join(fault.split()) for fault in faults_of(component, name, one, "/")]
        assert len(faults) > 8 and [fault for fault in faults if fault not in told] == []
        assert sorted(faults, key=told.index) == faults


def test_fields_of_listings(down: Site, rabbit: Rabbit) -> None:
    """Whatever RabbitMQ tells of a link is told here under the same name."""
    rabbit.exchange("x")
    rabbit.queue("q")
    rabbit.upstream("u", down.url)
    rabbit.federate("^[xq]$", "all")
    until(lambda: [one["status"] for one in rabbit.links()] == ["running"] * 2, "RabbitMQ's links to run")
    assert all(set(one) <= {*COLUMNS, *MORE} for one in rabbit.links())
    request = urllib.request.Request(f"http://127.0.0.1:{rabbit.management_port}/api/federation-links")
    request.add_header("authorization", "Basic " + base64.b64encode(b"guest:guest").decode())
    with urllib.request.urlopen(request, timeout=30) as answer:
        theirs = json.loads(answer.read())
    down.exchange("x")
    down.queue("q")
    down.upstream("v", rabbit.url)
    down.federate("^[xq]$", "all")
    ours = {one["type"]: {*one, "local_channel"} for one in down.until_runs(2)}
    assert {one["type"] for one in theirs} == {"exchange", "queue"}
    assert [set(one) - ours[one["type"]] for one in theirs] == [set(), set()]
