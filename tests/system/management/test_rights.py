"""Every request of the HTTP API, asked by users who may not: nothing of another vhost is told, nothing is changed.

The list of requests is that of the reference, which a test holds complete. So a request that is added later is tried,
too.
"""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pika
import pytest

import leveret.testing
from leveret.testing import Broker
from tests.support.references.route_texts import BODIES

OPENAPI = Path(__file__).parents[3] / "docs" / "reference" / "openapi.json"
METHODS = ("GET", "PUT", "POST", "DELETE")
SECRET = "hushhush"  # In the names of all that eve may not see.
CONTENT = "treasure"  # In messages.
VALUES = {
    "vhost": "/", "queue": SECRET, "exchange": f"x.{SECRET}", "source": f"x.{SECRET}", "name": SECRET, "user": "guest",
    "node": "NODE", "connection": "CONNECTION", "channel": "CONNECTION (1)", "component": "shovel",
    "limit": "max-queues", "properties": SECRET, "flag": "quorum_queue", "id": SECRET, "topic": SECRET,
    "client_id": SECRET, "password": "word", "count": "1", "unit": "months", "port": "5672", "protocol": "amqp",
}  # fmt: skip
# What somebody with a login and without rights may ask for, since it says nothing of anybody else.
OWN = {
    "GET /api/whoami", "GET /api/auth", "POST /api/login", "GET /api/auth/hash_password/{password}", "GET /api/leases",
}  # fmt: skip
USERS = {"untagged": "", "eve": "management", "paula": "policymaker", "mona": "monitoring", "blind": "management"}
MAY_SEE = ("mona", "blind")  # Names, of all vhosts or of this one.


class Asker:
    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.connection = pika.BlockingConnection(
            pika.ConnectionParameters(
                "127.0.0.1", broker.port, client_properties={"connection_name": SECRET}, heartbeat=0
            )
        )
        ((self.name, self.node),) = [
            (one["name"], one["node"]) for one in json.loads(self.ask("guest", "GET", "/api/connections")[1])
        ]

    def ask(self, user: str | None, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        asked = http.client.HTTPConnection("127.0.0.1", self.broker.ports["management"], timeout=20)
        headers = {"content-type": "application/json"}
        if user is not None:
            headers["authorization"] = "Basic " + base64.b64encode(f"{user}:{user}".encode()).decode()
        try:
            asked.request(method, path, None if body is None else json.dumps(body), headers)
            answer = asked.getresponse()
            return answer.status, answer.read()
        finally:
            asked.close()

    def path(self, pattern: str) -> str:
        for name, value in VALUES.items():
            value = value.replace("CONNECTION", self.name).replace("NODE", self.node)
            pattern = pattern.replace(f"{{{name}}}", quote(value, safe=""))
        assert "{" not in pattern, f"{pattern}: give its parameter a value"
        return pattern


@pytest.fixture(scope="module")
def asker() -> Iterator[Asker]:
    with leveret.testing.broker(config="management.tcp.port = 0\nmanagement.tcp.ip = 127.0.0.1") as broker:
        asker = Asker(broker)
        channel = asker.connection.channel()
        channel.exchange_declare(f"x.{SECRET}", "topic", durable=True)
        channel.queue_declare(SECRET, durable=True)
        channel.queue_bind(SECRET, f"x.{SECRET}", SECRET)
        channel.queue_declare(f"s.{SECRET}", durable=True, arguments={"x-queue-type": "stream"})
        channel.confirm_delivery()
        channel.basic_publish("", SECRET, CONTENT.encode(), pika.BasicProperties(delivery_mode=2))
        broker.admin.set_policy(SECRET, SECRET, {"max-length": 1_000})
        shovel = {"src-uri": "amqp://", "src-queue": f"no.{SECRET}", "dest-uri": "amqp://", "dest-queue": SECRET}
        broker.admin.call("set_parameter", vhost="/", component="shovel", name=SECRET, value=shovel)
        broker.admin.call("set_parameter", vhost="/", component="federation-upstream", name=SECRET,
                          value={"uri": "amqp://127.0.0.1:1"})  # fmt: skip
        asker.ask("guest", "PUT", f"/api/leveret/jobs/%2F/{SECRET}", {"state": "ok", "summary": SECRET})
        asker.ask("guest", "PUT", "/api/vhosts/other", {})
        for user, tag in USERS.items():
            assert asker.ask("guest", "PUT", f"/api/users/{user}", {"password": user, "tags": tag})[0] == 201
            rights = {"configure": ".*", "write": ".*", "read": ".*"}
            assert asker.ask("guest", "PUT", f"/api/permissions/other/{user}", rights)[0] == 201
        nothing = {"configure": "^$", "write": "^$", "read": "^$"}
        assert asker.ask("guest", "PUT", "/api/permissions/%2F/blind", nothing)[0] == 201
        yield asker
        asker.connection.close()


def routes() -> list[tuple[str, str, str]]:
    """Returns (method and path, method, path) of all requests, those that read first."""
    paths = json.loads(OPENAPI.read_text())["paths"]
    found = [(method, path) for method in METHODS for path in paths if method.lower() in paths[path]]
    return [(f"{method} {path}", method, path) for method, path in found]


def state(asker: Asker) -> Any:
    status, definitions = asker.ask("guest", "GET", "/api/definitions")
    assert status == 200
    (queue,) = [one for one in asker.broker.admin.queues() if one.name == SECRET]
    known = json.loads(definitions)
    known["parameters"] = [one for one in known["parameters"] if one["component"] != "leveret-job"]
    return known, queue.messages, asker.connection.is_open


@pytest.mark.parametrize("user", [None, "untagged"])
def test_without_a_login_for_management(asker: Asker, user: str | None) -> None:
    let_in = []
    for route, method, pattern in routes():
        status, body = asker.ask(user, method, asker.path(pattern), BODIES.get(route))
        if status < 400 and route not in OWN:
            let_in.append(route)
        assert status >= 400 or (SECRET.encode() not in body and CONTENT.encode() not in body), route
    assert let_in == []


# Who may enter a vhost sees what it has, as in RabbitMQ, but no message without the permission to read.
@pytest.mark.parametrize("user", ["eve", "paula", "mona", "blind"])
def test_with_rights_elsewhere(asker: Asker, user: str) -> None:
    before = state(asker)
    told, faults = [], []
    for route, method, pattern in routes():
        status, body = asker.ask(user, method, asker.path(pattern), BODIES.get(route))
        if status == 500:
            faults.append((route, status, body))
        hidden = [CONTENT] if user in MAY_SEE else [CONTENT, SECRET]
        if status < 400 and any(one.encode() in body for one in hidden):
            told.append((route, body[:200]))
    assert faults == []
    assert told == []
    assert state(asker) == before
