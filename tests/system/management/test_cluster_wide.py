"""Any node tells of all: queues and clients of others, and figures that are added up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pika
import pytest

import leveret.testing
from leveret.management.api.common.aggregate import added
from tests.support.servers import until
from tests.system.management.watching import CONFIG, Watched


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Watched]]:
    with leveret.testing.cluster(2, config=CONFIG) as cluster:
        yield [Watched(node) for node in cluster.brokers]


def test_from_any_node(nodes: list[Watched]) -> None:
    here, there = nodes
    connection = pika.BlockingConnection(pika.URLParameters(there.broker.url))
    channel = connection.channel()
    channel.queue_declare("far", arguments={"x-queue-master-locator": "client-local"})
    other = pika.BlockingConnection(pika.URLParameters(here.broker.url))
    through = other.channel()
    through.confirm_delivery()
    for watched in nodes:
        watched.tick = 0
        watched.sample()
    for _ in range(10):
        through.basic_publish("", "far", b"x")
    channel.basic_consume("far", lambda *_: None, consumer_tag="c")
    for watched in nodes:
        watched.sample()
    for watched in nodes:
        row = watched.get("/api/queues/%2F/far")
        assert (row["node"], row["messages"], row["consumers"]) == (there.broker.name, 10, 1)
        assert row["message_stats"]["publish_details"]["rate"] == 2.0
        assert [one["consumer_tag"] for one in row["consumer_details"]] == ["c"]
        assert sorted(one["node"] for one in watched.get("/api/connections")) == sorted(
            one.broker.name for one in nodes
        )
        assert watched.get("/api/exchanges/%2F/amq.default")["message_stats"]["publish_in"] == 10
        overview = watched.get("/api/overview")
        assert overview["message_stats"]["publish"] == overview["message_stats"]["confirm"] == 10
        assert overview["object_totals"]["connections"] == 2
        assert [one["running"] for one in watched.get("/api/nodes")] == [True, True]
    other.close()
    connection.close()


def test_figures_are_added_up() -> None:
    def of(value: int, times: list[int]) -> dict[str, object]:
        samples = [{"sample": value, "timestamp": time} for time in times]
        return {"ack": value, "ack_details": {"rate": 1.5, "avg": 1.0, "avg_rate": 0.5, "samples": samples}}

    assert added([of(1, [10, 5]), of(2, [15, 10, 5])]) == {
        "ack": 3,
        "ack_details": {
            "rate": 3.0,
            "avg": 2.0,
            "avg_rate": 1.0,
            "samples": [{"sample": 3, "timestamp": 10}, {"sample": 3, "timestamp": 5}],
        },
    }
    assert added([]) == {}


def test_a_mirrored_queue(nodes: list[Watched]) -> None:
    here, there = nodes
    here.broker.admin.set_policy("all", "^mirrored", {"ha-mode": "all", "ha-sync-mode": "automatic"})
    with pika.BlockingConnection(pika.URLParameters(here.broker.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("mirrored", durable=True)
        channel.basic_publish("", "mirrored", b"x", pika.BasicProperties(delivery_mode=2))
    for watched in nodes:
        row = watched.get("/api/queues/%2F/mirrored")
        assert (row["node"], row["policy"]) == (here.broker.name, "all")
        assert row["slave_nodes"] == row["synchronised_slave_nodes"] == [there.broker.name]
        assert [one["node"] for one in row["ring"]] == [here.broker.name, there.broker.name]
        assert [(one["node"], one["in_sync"]) for one in row["mirrors"]] == [(there.broker.name, True)]
    text = here.metrics("/metrics/per-object")
    assert 'rabbitmq_queue_mirrors_synchronised{vhost="/",queue="mirrored"} 1\n' in text
    assert "rabbitmq_mirrored_queues_masters 1\n" in text
    assert "rabbitmq_mirrored_queues_mirrors 1\n" in there.metrics()


def test_a_mirror_that_lacks_messages(nodes: list[Watched]) -> None:
    here, there = nodes
    arguments = {"x-queue-master-locator": "client-local"}
    with pika.BlockingConnection(pika.URLParameters(here.broker.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("lacking", durable=True, arguments=arguments)
        for _ in range(7):
            channel.basic_publish("", "lacking", bytes(100), pika.BasicProperties(delivery_mode=2))
        here.broker.admin.set_policy("manual", "^lacking", {"ha-mode": "all", "ha-sync-mode": "manual"})

        def mirrors() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = here.get("/api/queues/%2F/lacking").get("mirrors", [])
            return found

        until(lambda: bool(mirrors()) and mirrors()[0]["messages"] is not None, "the lag is known")
        (mirror,) = mirrors()
        assert (mirror["node"], mirror["in_sync"], mirror["complete"]) == (there.broker.name, False, False)
        assert mirror["messages"] == 7
        assert mirror["bytes"] >= 700
        text = here.metrics("/metrics/per-object")
        assert 'rabbitmq_queue_mirror_lag_messages{vhost="/",queue="lacking"} 7\n' in text
        for _ in range(3):
            channel.basic_get("lacking", auto_ack=True)
        until(lambda: mirrors()[0]["messages"] == 4, "consumed messages are not missing")


def test_a_node_that_is_gone(nodes: list[Watched]) -> None:
    """The last test: what it had is shown from the metadata."""
    here, there = nodes
    for watched, names in ((there, ("left", "left-too")), (here, ("near",))):
        with pika.BlockingConnection(pika.URLParameters(watched.broker.url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            for name in names:
                channel.queue_declare(name, durable=True, arguments={"x-queue-master-locator": "client-local"})
                channel.basic_publish("", name, b"x", pika.BasicProperties(delivery_mode=2))
    there.broker.kill()
    until(lambda: here.get("/api/queues/%2F/left")["state"] == "down", "it is missed")
    found = [row["name"] for row in here.get("/api/queues?columns=name&sort=messages")]
    shown = [name for name in found if name in ("left", "left-too", "near")]
    assert shown == ["left", "left-too", "near"]  # Of those of the other node, nothing is known: they are the first.
    rows = {row["name"]: row["running"] for row in here.get("/api/nodes")}
    assert rows == {here.broker.name: True, there.broker.name: False}
    assert here.get("/api/overview")["object_totals"]["queues"] == len(found)
