"""What people use RabbitMQ's HTTP API with, and the calls that they make."""

from __future__ import annotations

import glob
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import leveret.testing
from tests.management.scene import Scene
from tests.management.watching import CONFIG, Watched

# It comes with RabbitMQ, and is no part of this.
SCRIPTS = glob.glob("/usr/lib/rabbitmq/lib/*/plugins/rabbitmq_management-*/priv/www/cli/rabbitmqadmin")


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    with leveret.testing.broker(config=CONFIG) as broker, Scene(broker.port) as scene:
        scene.play(3)
        yield Watched(broker)


def rabbitmqadmin(watched: Watched, *arguments: str) -> Any:
    command = [sys.executable, SCRIPTS[0], "-P", str(watched.broker.ports["management"]), "-f", "raw_json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


@pytest.mark.skipif(not SCRIPTS, reason="RabbitMQ's management plugin is not installed")
@pytest.mark.parametrize(
    "arguments, name",
    [
        (("list", "queues"), "scene.busy"),
        (("list", "queues", "name", "messages", "message_stats.publish_details.rate"), "scene.busy"),
        (("list", "exchanges"), "scene.topic"),
        (("list", "bindings"), None),
        (("list", "channels"), None),
        (("list", "connections"), None),
        (("list", "consumers"), None),
        (("list", "nodes"), "leveret@localhost"),
        (("show", "overview"), None),
    ],
)
def test_rabbitmqadmin(watched: Watched, arguments: tuple[str, ...], name: str | None) -> None:
    answer = rabbitmqadmin(watched, *arguments)
    assert answer
    if name is not None:
        assert name in [row["name"] for row in answer]


@pytest.mark.skipif(not SCRIPTS, reason="RabbitMQ's management plugin is not installed")
def test_rabbitmqadmin_draws_tables(watched: Watched) -> None:
    command = [sys.executable, SCRIPTS[0], "-P", str(watched.broker.ports["management"]), "list", "queues"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert "scene.exclusive" in done.stdout


def test_flower(watched: Watched) -> None:
    rows = {row["name"]: row for row in watched.get("/api/queues/%2F")}
    for name in ("messages", "messages_ready", "messages_unacknowledged", "consumers"):
        assert isinstance(rows["scene.plain"][name], int)


def test_keda(watched: Watched) -> None:
    one = watched.get("/api/queues/%2F/scene.plain")
    assert one["messages"] == 3
    assert one["message_stats"]["publish_details"]["rate"] >= 0
    query = "page=1&use_regex=true&pagination=false&name=^scene.*&page_size=100"
    many = watched.get(f"/api/queues/%2F?{query}")
    assert sum(row["messages"] for row in many["items"] if row["name"] == "scene.plain") == 3


def test_exporter(watched: Watched) -> None:
    """What kbudde's rabbitmq_exporter reads."""
    overview = watched.get("/api/overview")
    assert overview["object_totals"].keys() == {"channels", "connections", "consumers", "exchanges", "queues"}
    assert overview["queue_totals"]["messages"] >= 0
    [node] = watched.get("/api/nodes")
    for name in (
        "mem_used", "mem_limit", "mem_alarm", "disk_free", "disk_free_alarm", "disk_free_limit", "fd_used", "fd_total",
        "sockets_used", "sockets_total", "partitions", "running", "uptime",
    ):  # fmt: skip
        assert name in node
    [memory] = [watched.get(f"/api/nodes/{node['name']}/memory")["memory"]]
    assert memory["total"].keys() == {"erlang", "rss", "allocated"}
    queue = next(row for row in watched.get("/api/queues") if row["name"] == "scene.busy")
    for name in ("vhost", "durable", "policy", "messages_ready", "memory", "consumer_utilisation", "state"):
        assert name in queue


def test_kombu(watched: Watched) -> None:
    """What pyrabbit does for kombu's `get_manager`."""
    assert watched.get("/api/overview")["rabbitmq_version"]
    assert [row["name"] for row in watched.get("/api/connections")] == [
        watched.get("/api/channels")[0]["connection_details"]["name"]
    ]
    assert watched.get("/api/bindings/%2F/e/scene.topic/q/scene.busy")[0]["routing_key"] == "a.#"
    key = watched.get("/api/queues/%2F/scene.plain/bindings")[1]["properties_key"]
    assert watched.get(f"/api/bindings/%2F/e/amq.headers/q/scene.plain/{key}")["arguments"]["count"] == 7
