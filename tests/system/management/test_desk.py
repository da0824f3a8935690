"""Our own paths of the HTTP API: what the page asks besides RabbitMQ's."""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Iterator
from typing import Any

import pika
import pytest

import leveret.testing
from leveret.management.api.extensions import jobs
from leveret.management.http.http_messages import Problem

PERSISTENT = pika.BasicProperties(delivery_mode=2, content_type="text/plain", headers={"n": 1, "kind": "test"})
CONFIG = "management_port = 0"


@pytest.fixture(scope="module")
def node() -> Iterator[leveret.testing.Broker]:
    with leveret.testing.broker(config=CONFIG) as node:
        call = node.admin.call
        for name, tags in (("plain", []), ("watcher", ["monitoring"]), ("maker", ["policymaker"])):
            node.admin.add_user(name, "secret", tags=tags)
        call("set_permissions", vhost="/", user="plain", configure="^leveret-job-nightly$", write="", read="")
        call("set_permissions", vhost="/", user="maker", configure="", write="", read="")
        yield node


@pytest.fixture
def channel(node: leveret.testing.Broker) -> Iterator[Any]:
    connection = pika.BlockingConnection(pika.URLParameters(node.url))
    channel = connection.channel()
    channel.confirm_delivery()
    yield channel
    connection.close()


def ask(
    node: leveret.testing.Broker, path: str, method: str = "GET", body: Any = None, user: str = "guest:guest"
) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", node.ports["management"], timeout=60)
    headers = {"Authorization": "Basic " + base64.b64encode(user.encode()).decode()}
    connection.request(method, f"/api/leveret/{path}", None if body is None else json.dumps(body), headers)
    response = connection.getresponse()
    data = response.read()
    connection.close()
    return response.status, json.loads(data) if data else None


def test_cluster(node: leveret.testing.Broker) -> None:
    status, told = ask(node, "cluster", user="watcher:secret")
    assert status == 200
    assert told["has_majority"] is True
    assert told["alarms"] == []
    assert [(one["name"], one["running"]) for one in told["members"]] == [(told["node"], True)]
    assert [(one["paused"], one["maintenance"]) for one in told["members"]] == [(False, None)]
    assert told["leader"] == told["node"] and told["spooled"] == 0
    for path in ("cluster", "rings", "jobs", "leases", "peek/%2F/q", "matches/%2F"):
        assert ask(node, path, user="plain:secret")[0] == 401, path  # It has no tag.


def test_alarms_are_told(node: leveret.testing.Broker) -> None:
    with node.faults.raise_alarm("memory"):
        assert [one["resource"] for one in ask(node, "cluster")[1]["alarms"]] == ["memory"]
    assert ask(node, "cluster")[1]["alarms"] == []


# -- Peeking -------------------------------------------------------------------------------------------------------


def test_peeking_changes_nothing(node: leveret.testing.Broker, channel: Any, name: str) -> None:
    channel.queue_declare(name, durable=True)
    for body in (b"one", b"\xff\xfe", "é".encode() * 10, b""):
        channel.basic_publish("", name, body, PERSISTENT)
    status, told = ask(node, f"peek/%2F/{name}?position=1&count=10&bytes=3")
    assert (status, told["ready"]) == (200, 4)
    found = told["messages"]
    assert [(one["position"], one["payload"], one["payload_encoding"]) for one in found] == [
        (1, "one", "string"), (2, "//4=", "base64"), (3, "é", "string"), (4, "", "string"),
    ]  # fmt: skip
    assert [(one["payload_bytes"], one["truncated"]) for one in found] == [
        (3, False),
        (2, False),
        (20, True),
        (0, False),
    ]
    assert found[0]["properties"] == {
        "content_type": "text/plain",
        "delivery_mode": 2,
        "headers": {"n": 1, "kind": "test"},
    }
    assert (found[0]["exchange"], found[0]["routing_key"], found[0]["redelivered"]) == ("", name, False)
    method, _, body = channel.basic_get(name)
    assert (body, method.redelivered) == (b"one", False)
    assert [one["position"] for one in ask(node, f"peek/%2F/{name}?position=3")[1]["messages"]] == [3]
    assert ask(node, f"peek/%2F/{name}?position=9")[1]["messages"] == []


def test_peeking_is_bounded_and_needs_the_right_to_read(node: leveret.testing.Broker, channel: Any, name: str) -> None:
    channel.queue_declare(name, durable=True)
    for query in ("count=51", "count=0", "position=0", "bytes=65537", "position=x"):
        assert ask(node, f"peek/%2F/{name}?{query}")[0] == 400, query
    assert ask(node, f"peek/%2F/{name}", user="maker:secret")[0] == 401
    assert ask(node, "peek/%2F/absent")[0] == 404
    assert ask(node, "peek/absent/absent")[0] == 404
    channel.queue_declare(f"{name}-s", durable=True, arguments={"x-queue-type": "stream"})
    status, told = ask(node, f"peek/%2F/{name}-s")
    assert (status, "stream" in told["reason"]) == (400, True)


# -- Whom a policy would reach -------------------------------------------------------------------------------------


def test_matches(node: leveret.testing.Broker, channel: Any, name: str) -> None:
    for kind in ("classic", "quorum"):
        channel.queue_declare(f"{name}.{kind}", durable=True, arguments={"x-queue-type": kind})
    channel.exchange_declare(f"{name}.x", "direct")

    def matched(query: str, user: str = "guest:guest") -> tuple[list[str], list[str]]:
        status, told = ask(node, f"matches/%2F?{query}", user=user)
        assert status == 200
        assert [told[kind]["count"] for kind in ("queues", "exchanges")] == [
            len(told[kind]["names"]) for kind in ("queues", "exchanges")
        ]
        return sorted(told["queues"]["names"]), told["exchanges"]["names"]

    both = [f"{name}.classic", f"{name}.quorum"]
    assert matched(f"pattern=^{name}&apply-to=all", "maker:secret") == (both, [f"{name}.x"])
    assert matched(f"pattern=^{name}&apply-to=queues") == (both, [])
    assert matched(f"pattern=^{name}&apply-to=queues&key=ha-mode") == (both[:1], [])  # Quorum queues do not know that.
    assert matched(f"pattern=^{name}&apply-to=exchanges") == ([], [f"{name}.x"])
    assert matched(f"pattern={name}.quorum$") == (both[1:], [])
    assert ask(node, "matches/%2F?pattern=(")[0] == 400
    assert ask(node, "matches/%2F?apply-to=nobody")[0] == 400
    assert ask(node, "matches/%2F?pattern=x", user="watcher:secret")[0] == 401


# -- Rings ---------------------------------------------------------------------------------------------------------


def test_the_ring_of_a_queue_without_mirrors(node: leveret.testing.Broker, channel: Any, name: str) -> None:
    channel.queue_declare(name, durable=True)
    status, told = ask(node, f"rings/%2F/{name}")
    assert (status, told["mirrored"]) == (200, False)
    assert [(one["role"], one["running"], one["in_sync"]) for one in told["members"]] == [("master", True, True)]
    assert ask(node, f"rings/%2F/{name}/move", "POST", {"node": told["master"]})[0] == 204
    assert ask(node, f"rings/%2F/{name}/move", "POST", {"node": "nobody@nowhere"})[0] == 400
    assert ask(node, f"rings/%2F/{name}/move", "POST", {})[0] == 400
    assert ask(node, f"rings/%2F/{name}/move", "POST", {"node": told["master"]}, "maker:secret")[0] == 401
    assert ask(node, f"rings/%2F/{name}/promote", "POST", {"node": told["master"]})[0] == 400
    assert ask(node, "rings/%2F/absent")[0] == 404


def test_rings_are_listed_by_name(node: leveret.testing.Broker, channel: Any, name: str) -> None:
    for one in "bdac":
        channel.queue_declare(f"{name}.{one}", durable=True, arguments={"x-queue-type": "quorum"})
    for limit, expected in ((2, "ab"), (10, "abcd")):
        status, told = ask(node, f"rings?name={name}.&limit={limit}")
        assert (status, [one["name"][-1] for one in told["rings"]]) == (200, list(expected))


# -- Leases --------------------------------------------------------------------------------------------------------


def test_leases(node: leveret.testing.Broker, channel: Any, name: str) -> None:
    channel.queue_declare(name, durable=True)
    node_port = node.ports["management"]
    connection = http.client.HTTPConnection("127.0.0.1", node_port, timeout=60)
    headers = {"Authorization": "Basic " + base64.b64encode(b"guest:guest").decode()}
    connection.request("PUT", f"/api/leases/%2F/{name}/reader", "{}", headers)
    assert connection.getresponse().status == 200
    connection.close()
    told = ask(node, "leases")[1]
    assert [(one["vhost"], one["queue"], one["name"]) for one in told["leases"]] == [("/", name, "reader")]
    assert (told["more"], told["missing"]) == (False, [])
    assert ask(node, f"leases/%2F/{name}/reader", "DELETE", user="maker:secret")[0] == 401
    assert ask(node, f"leases/%2F/{name}/reader", "DELETE")[0] == 204
    assert ask(node, "leases")[1]["leases"] == []


# -- Jobs ----------------------------------------------------------------------------------------------------------


def test_a_job_reports_with_no_more_than_a_permission(node: leveret.testing.Broker) -> None:
    result = {
        "state": "ok",
        "summary": "nothing lost",
        "started": 1,
        "finished": 2,
        "figures": {"lost": 0, "worst": "3 s"},
    }
    assert ask(node, "jobs/%2F/nightly", "PUT", result, "plain:secret")[0] == 204
    assert ask(node, "jobs/%2F/other", "PUT", result, "plain:secret")[0] == 401
    [told] = ask(node, "jobs", user="watcher:secret")[1]
    assert told.pop("reported") > 0
    assert told == {"vhost": "/", "name": "nightly", **result}
    assert ask(node, "jobs/%2F/nightly", "PUT", {"state": "failed"}, "plain:secret")[0] == 204
    assert [one["state"] for one in ask(node, "jobs")[1]] == ["failed"]
    exported = node.admin.call("list_parameters", vhost="/")
    assert [(one["component"], one["name"]) for one in exported] == [("leveret-job", "nightly")]
    assert ask(node, "jobs/%2F/nightly", "DELETE", user="plain:secret")[0] == 204
    assert ask(node, "jobs/%2F/nightly", "DELETE")[0] == 404
    assert ask(node, "jobs")[1] == []


@pytest.mark.parametrize(
    "bad",
    [
        {}, {"state": "splendid"}, {"state": "ok", "summary": 1}, {"state": "ok", "figures": []},
        {"state": "ok", "more": 1}, {"state": "ok", "figures": {"a": {}}}, {"state": "ok", "started": "now"},
        {"state": "ok", "started": float("nan")},
        {"state": "ok", "figures": {"a": float("inf")}}, {"state": "ok", "figures": {"a": True}},
        {"state": "ok", "figures": {str(number): number for number in range(21)}},
    ],
)  # fmt: skip
def test_a_result_that_is_none(bad: dict[str, Any]) -> None:
    with pytest.raises(Problem) as caught:
        jobs.checked(bad)
    assert caught.value.status == 400


def test_results_are_small_and_few(node: leveret.testing.Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    long = {"state": "ok", "detail": "x" * jobs.VALUE_BYTES_MAX}
    assert ask(node, "jobs/%2F/long", "PUT", long)[0] == 400
    monkeypatch.setattr(jobs, "JOBS_MAX", 1)
    assert ask(node, "jobs/%2F/first", "PUT", {"state": "ok"})[0] == 204
    assert ask(node, "jobs/%2F/second", "PUT", {"state": "ok"})[0] == 400
    assert ask(node, "jobs/%2F/first", "PUT", {"state": "running"})[0] == 204
    assert ask(node, "jobs/%2F/first", "DELETE")[0] == 204


def test_nobody_peeks_into_an_exclusive_queue(node: leveret.testing.Broker, channel: Any) -> None:
    channel.queue_declare("mine", exclusive=True)
    channel.basic_publish("", "mine", b"secret", PERSISTENT)
    status, told = ask(node, "peek/%2F/mine")
    assert status == 400
    assert told["reason"].startswith("405 cannot obtain exclusive access to locked queue 'mine' in vhost '/'")
    assert ask(node, "leases/%2F/mine/l", "DELETE")[0] == 400
