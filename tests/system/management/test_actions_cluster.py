"""What is asked of one node and done by another."""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import pika
import pytest

import leveret.testing
from tests.support.servers import until


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[leveret.testing.Broker]]:
    with leveret.testing.cluster(3, config="management_port = 0") as cluster:
        yield list(cluster.brokers)


Ask = Callable[..., tuple[int, Any]]


@pytest.fixture(scope="module")
def ask(nodes: list[leveret.testing.Broker]) -> Ask:
    def ask(method: str, path: str, body: Any = None, at: int = 0) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", nodes[at].ports["management"], timeout=60)
        headers = {"authorization": "Basic " + base64.b64encode(b"guest:guest").decode()}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        data = response.read()
        connection.close()
        return response.status, json.loads(data) if data else None

    return ask


def masters(nodes: list[leveret.testing.Broker], start: str) -> dict[str, str]:
    rows = nodes[0].admin.call("list_queues", vhost="/", columns=["name", "node"])["rows"]
    return {name: node for name, node in rows if name.startswith(start)}


def test_a_queue_is_declared_where_it_is_wanted(nodes: list[leveret.testing.Broker], ask: Ask) -> None:
    assert ask("PUT", "/api/queues/%2F/there", {"durable": True, "node": nodes[1].name}) == (201, None)
    assert masters(nodes, "there") == {"there": nodes[1].name}
    assert ask("PUT", "/api/queues/%2F/there", {"durable": True, "node": nodes[2].name}) == (204, None)
    status, told = ask("PUT", "/api/queues/%2F/bad", {"node": nodes[1].name, "arguments": {"x-message-ttl": -1}})
    assert (status, told["reason"]) == (
        400,
        "invalid arg 'x-message-ttl' for queue 'bad' in vhost '/': {value_negative,-1}",
    )
    status, told = ask("PUT", "/api/queues/%2F/bad", {"node": "nobody@nowhere"})
    assert (status, told["reason"]) == (400, "Node nobody@nowhere could not be contacted")


def test_messages_of_a_queue_elsewhere(nodes: list[leveret.testing.Broker], ask: Ask) -> None:
    ask("PUT", "/api/queues/%2F/far", {"durable": True, "node": nodes[2].name})
    for payload in ("one", "two", "three"):
        body = {"properties": {}, "routing_key": "far", "payload": payload, "payload_encoding": "string"}
        assert ask("POST", "/api/exchanges/%2F/amq.default/publish", body) == (200, {"routed": True})
    look = {"count": 10, "ackmode": "ack_requeue_true", "encoding": "auto"}
    for redelivered in (False, True):
        got = ask("POST", "/api/queues/%2F/far/get", look, at=1)[1]
        assert [(one["payload"], one["redelivered"]) for one in got] == [
            (payload, redelivered) for payload in ("one", "two", "three")
        ]
    take = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}
    assert [one["payload"] for one in ask("POST", "/api/queues/%2F/far/get", take)[1]] == ["one"]
    assert [one["payload"] for one in ask("POST", "/api/queues/%2F/far/get", look, at=2)[1]] == ["two", "three"]
    assert ask("DELETE", "/api/queues/%2F/far/contents", at=1)[0] == 204
    assert ask("POST", "/api/queues/%2F/far/get", look)[1] == []


def test_masters_are_spread(nodes: list[leveret.testing.Broker], ask: Ask) -> None:
    policy = {"pattern": "^spread", "definition": {"ha-mode": "all", "ha-sync-mode": "automatic"}}
    assert ask("PUT", "/api/policies/%2F/spread", policy)[0] == 201
    for number in range(6):
        assert ask("PUT", f"/api/queues/%2F/spread{number}", {"durable": True, "node": nodes[0].name})[0] == 201

    def all_in_sync() -> bool:
        rows = nodes[0].admin.call("list_queues", vhost="/", columns=["name", "synchronised_slave_pids"])["rows"]
        return all(len(synchronised) == 2 for name, synchronised in rows if name.startswith("spread"))

    until(all_in_sync, "all mirrors have everything")
    assert ask("POST", "/api/queues/%2F/spread0/actions", {"action": "sync"}, at=1)[0] == 204
    assert ask("POST", "/api/queues/%2F/spread0/actions", {"action": "move", "node": nodes[1].name}, at=2)[0] == 204
    assert masters(nodes, "spread0") == {"spread0": nodes[1].name}
    status, told = ask("POST", "/api/queues/%2F/spread0/actions", {"action": "promote", "node": nodes[2].name})
    assert status == 400
    assert "move_queue_master" in told["reason"]

    assert ask("POST", "/api/rebalance/queues", at=1)[0] == 204

    def is_spread() -> bool:
        counts = [list(masters(nodes, "").values()).count(node.name) for node in nodes]
        return max(counts) - min(counts) < 2

    until(is_spread, "masters are spread")
    assert ask("GET", "/api/health/checks/node-is-mirror-sync-critical") == (200, {"status": "ok"})


def test_a_connection_elsewhere_is_closed_by_its_name(nodes: list[leveret.testing.Broker], ask: Ask) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(nodes[1].url))
    names = [row[0] for row in nodes[1].admin.call("local_connections", columns=["name"], after=0)["rows"]]
    assert len(names) == 1
    assert ask("DELETE", f"/api/connections/{quote(names[0], safe='')}", at=0) == (204, None)
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="Closed via management plugin"):
        connection.process_data_events(60)
    until(lambda: ask("DELETE", f"/api/connections/{quote(names[0], safe='')}", at=0)[0] == 404, "it is gone")


def test_the_health_of_another_node(nodes: list[leveret.testing.Broker], ask: Ask) -> None:
    assert ask("GET", f"/api/healthchecks/node/{nodes[2].name}") == (200, {"status": "ok"})
    assert ask("GET", "/api/health/checks/node-is-quorum-critical") == (200, {"status": "ok"})


def test_nothing_of_it_is_left(nodes: list[leveret.testing.Broker]) -> None:
    """A request's channel goes with the request."""
    for node in nodes:
        until(lambda node=node: node.admin.call("list_channels", columns=["name"])["rows"] == [], "all are gone")  # type: ignore[misc]
