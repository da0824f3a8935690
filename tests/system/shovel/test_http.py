"""Shovels over HTTP: RabbitMQ's paths, codes, texts and rights."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pika
import pytest

import leveret.testing
from leveret.testing import Broker
from tests.support.servers import call_api, until

VALUE = {"src-uri": "amqp://", "src-queue": "a", "dest-uri": "amqp://u:secret@127.0.0.1:1", "dest-queue": "b"}
NAME = "parameters/shovel/%2F/s"
CONFIG = """
management.tcp.port = 0
management.tcp.ip = 127.0.0.1
prometheus.tcp.port = 0
prometheus.tcp.ip = 127.0.0.1
"""
ONE = "shovels/vhost/%2F/s"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with leveret.testing.broker(config=CONFIG) as broker:
        broker.admin.add_user("pat", "pat", tags=["policymaker"])
        broker.admin.add_user("may", "may", tags=["management"])
        yield broker


def ask(broker: Broker, method: str, path: str, body: Any = None, user: str = "guest") -> tuple[int, Any]:
    return call_api(broker.ports["management"], method, path, body, user)


def test_the_life_of_a_shovel(broker: Broker) -> None:
    assert ask(broker, "GET", "shovels") == (200, [])
    assert ask(broker, "PUT", NAME, {"value": VALUE})[0] == 201
    assert ask(broker, "PUT", NAME, {"value": {**VALUE, "reconnect-delay": 7}})[0] == 204
    status, found = ask(broker, "GET", NAME)
    assert status == 200 and "secret" not in json.dumps(found)
    until(lambda: ask(broker, "GET", ONE)[1]["state"] == "terminated", "its failure")
    status, one = ask(broker, "GET", ONE)
    assert (one["name"], one["vhost"], one["type"]) == ("s", "/", "dynamic")
    assert "Connection refused" in one["reason"] and one["next_attempt"] and "secret" not in json.dumps(one)
    assert ask(broker, "GET", "shovels/%2F")[1][0]["name"] == "s"
    assert ask(broker, "PUT", f"{ONE}/pause")[0] == 204
    assert ask(broker, "GET", ONE)[1]["state"] == "paused"
    assert ask(broker, "PUT", f"{ONE}/resume")[0] == 204
    assert ask(broker, "DELETE", f"{ONE}/restart")[0] == 204
    assert ask(broker, "DELETE", ONE)[0] == 204
    for method, path in (("DELETE", ONE), ("DELETE", f"{ONE}/restart"), ("GET", ONE), ("PUT", f"{ONE}/pause")):
        assert ask(broker, method, path)[0] == 404
    assert ask(broker, "GET", "shovels/none")[0] == 404
    assert ask(broker, "GET", NAME)[0] == 404


def test_faults(broker: Broker) -> None:
    status, told = ask(broker, "PUT", NAME, {"value": {"dest-uri": "amqp://", "src-queue": "a"}})
    assert (status, told["error"]) == (400, "bad_request")
    assert told["reason"] == 'Validation failed\n\nKey "src-uri" not found in s\n'
    assert ask(broker, "PUT", NAME, {"value": 5})[0] == 400
    assert ask(broker, "PUT", NAME, {})[0] == 400
    status, told = ask(broker, "PUT", NAME, {"value": {**VALUE, "src-uri": "amqp:///none"}})
    assert 'user "guest" may not connect to vhost "none"' in told["reason"]


def test_rights(broker: Broker) -> None:
    assert ask(broker, "PUT", NAME, {"value": VALUE}, "may")[0] == 401
    assert ask(broker, "PUT", NAME, {"value": VALUE}, "pat")[0] == 201
    assert ask(broker, "DELETE", ONE, None, "may")[0] == 401
    assert [one["name"] for one in ask(broker, "GET", "shovels", None, "may")[1]] == ["s"]
    _, definitions = ask(broker, "GET", "definitions")
    (parameter,) = definitions["parameters"]
    assert parameter["component"] == "shovel" and "secret" in json.dumps(parameter)
    assert ask(broker, "DELETE", NAME, None, "pat")[0] == 204
    assert ask(broker, "POST", "definitions", {"parameters": [parameter]})[0] == 204
    assert ask(broker, "DELETE", ONE, None, "pat")[0] == 204


def metrics(broker: Broker) -> dict[str, float]:
    """What Prometheus would read of shovels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.ports['prometheus']}/metrics", timeout=30) as answer:
        lines = [
            line for line in answer.read().decode().splitlines() if "_shovel_" in line and not line.startswith("#")
        ]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def test_metrics(broker: Broker) -> None:
    name = 'metered "one"\nline'
    broker.admin.call(
        "set_parameter",
        vhost="/",
        component="shovel",
        name=name,
        value={**VALUE, "dest-uri": "amqp://", "src-delete-after": 7},
    )
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        channel.queue_declare("a", durable=True)
        for _ in range(5):
            channel.basic_publish("", "a", b"x" * 100)
    labels = '{vhost="/",shovel="metered \\"one\\"\\nline"}'
    forwarded = f"rabbitmq_shovel_messages_forwarded_total{labels}"
    until(lambda: metrics(broker).get(forwarded) == 5, "five messages to be moved")
    found = metrics(broker)
    assert found['rabbitmq_shovel_dynamic{status="running"}'] == 1
    assert found[f"rabbitmq_shovel_messages_pending{labels}"] == 0
    assert found[f"rabbitmq_shovel_messages_remaining{labels}"] == 2
    assert 500 < found[f"rabbitmq_shovel_bytes_forwarded_total{labels}"] < 2_000
    broker.admin.call("pause_shovel", vhost="/", name=name, paused=True)
    assert metrics(broker) == {}
    broker.admin.call("pause_shovel", vhost="/", name=name, paused=False)
    until(lambda: metrics(broker).get(forwarded) == 5, "it to go on with its count")
    broker.admin.call("delete_shovel", vhost="/", name=name)
    until(lambda: metrics(broker) == {}, "nothing to be told of it")


def test_connections_of_a_shovel_that_an_operator_set_have_a_user_to_be_read(broker: Broker) -> None:
    value = {"src-uri": "amqp://", "src-queue": "a", "dest-uri": "amqp://", "dest-queue": "b"}
    broker.admin.call("set_parameter", vhost="/", component="shovel", name="s", value=value)
    until(lambda: ask(broker, "GET", ONE)[1]["state"] == "running", "it to run")
    for path in ("connections", "channels"):
        rows = [one for one in ask(broker, "GET", path)[1] if one["name"].startswith("direct")]
        assert [one["user"] for one in rows] == ["none", "none"]
    assert ask(broker, "DELETE", ONE)[0] == 204
