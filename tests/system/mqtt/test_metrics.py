"""MQTT clients in the metrics, with RabbitMQ's labels."""

from __future__ import annotations

import json
import socket
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import pytest
from paho.mqtt.enums import MQTTProtocolVersion

from leveret.protocol.mqtt.encoder import encode
from leveret.protocol.mqtt.packets import V311, Connect
from tests.support.servers import PATIENCE_S, Server
from tests.system.mqtt.paho_client import Paho

CONFIG = """
mqtt.listeners.tcp.1 = 127.0.0.1:0
web_mqtt.tcp.listener = 127.0.0.1:0
management.tcp.ip = 127.0.0.1
management.tcp.port = 0
prometheus.tcp.ip = 127.0.0.1
prometheus.tcp.port = 0
"""


@pytest.fixture
def mqtt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("mqtt"), CONFIG).start()
    yield server
    server.end()


def ask(port: int, path: str, method: str = "GET") -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    request.add_header("Authorization", f"Basic {b64encode(b'guest:guest').decode()}")
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        text: str = answer.read().decode()
    return text


def metrics(server: Server) -> dict[str, int]:
    lines = (line.rpartition(" ") for line in ask(server.prometheus_port, "/metrics").splitlines())
    wanted = ("global_publishers", "global_consumers", "auth_attempts", "connections")
    names = tuple(f"rabbitmq_{name}" for name in wanted)
    return {name: int(value) for name, _, value in lines if name.startswith(names)}


def attempts(server: Server, method: str = "GET") -> dict[str, Any]:
    (node,) = json.loads(ask(server.management_port, "/api/nodes"))
    text = ask(server.management_port, f"/api/auth/attempts/{node['name']}", method)
    return {one["protocol"]: one for one in json.loads(text)} if text else {}


def test_clients_are_counted_by_protocol(mqtt: Server) -> None:
    versions = {
        "mqtt310": MQTTProtocolVersion.MQTTv31,
        "mqtt311": MQTTProtocolVersion.MQTTv311,
        "mqtt50": MQTTProtocolVersion.MQTTv5,
    }
    clients = {name: Paho(mqtt.mqtt_port, name, version) for name, version in versions.items()}
    clients["over WebSocket"] = Paho(mqtt.web_mqtt_port, "web", transport="websockets")
    clients["over WebSocket"].publish("a", b"x", 1)
    clients["mqtt310"].publish("a", b"x", 1)
    for topic in ("a", "b"):
        clients["mqtt50"].subscribe(topic, qos=1)
    clients["mqtt311"].subscribe("a", qos=0)
    clients["mqtt311"].publish("c", b"x", 1)
    with socket.create_connection(("127.0.0.1", mqtt.mqtt_port), PATIENCE_S) as stranger:
        stranger.sendall(encode(Connect(V311, "stranger", username="guest", password=b"wrong"), V311))
        assert stranger.recv(100) == b"\x20\x02\0\4"
    found = metrics(mqtt)
    assert found["rabbitmq_connections"] == 4
    for name, publishers, consumers in (("amqp091", 0, 0), ("mqtt310", 1, 0), ("mqtt311", 1, 1), ("mqtt50", 1, 1)):
        assert found[f'rabbitmq_global_publishers{{protocol="{name}"}}'] == publishers
        assert found[f'rabbitmq_global_consumers{{protocol="{name}"}}'] == consumers
    for name, count in (("total", 5), ("succeeded_total", 4), ("failed_total", 1)):
        assert found[f'rabbitmq_auth_attempts_{name}{{protocol="mqtt"}}'] == count
        assert found[f'rabbitmq_auth_attempts_{name}{{protocol="amqp091"}}'] == 0
    told = attempts(mqtt)
    assert "amqp091" not in told and told["mqtt"] == {
        "protocol": "mqtt", "auth_attempts": 5, "auth_attempts_failed": 1, "auth_attempts_succeeded": 4,
    }  # fmt: skip
    attempts(mqtt, "DELETE")
    assert "mqtt" not in attempts(mqtt)
    for client in clients.values():
        client.end()
