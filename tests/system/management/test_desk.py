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
    for query in ("count=51", "offset=-1", "time=x"):
        assert ask(node, f"peek/%2F/{name}-s?{query}")[0] == 400, query
    assert ask(node, f"peek/%2F/{name}-s", user="maker:secret")[0] == 401


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


# -- Views of the page ---------------------------------------------------------------------------------------------


def test_a_node_tells_about_itself(node: leveret.testing.Broker) -> None:
    status, told = ask(node, "nodes/leveret@localhost")
    assert status == 200
    assert (told["raft"]["role"], told["links"]) == ("leader", [])
    assert {"amqp", "http"} <= {one["protocol"] for one in told["listeners"]}
    settings = {one["key"]: one for one in told["settings"]}
    assert not settings["management.tcp.port"]["is_default"]
    assert settings["default_pass"]["value"] == "********"
    status, told = ask(node, "nodes/leveret@localhost", user="watcher:secret")
    assert (status, "settings" in told, "event_loop" in told) == (200, False, True)
    assert ask(node, "nodes/leveret@localhost", user="maker:secret")[0] == 401
    assert ask(node, "nodes/nobody@localhost")[0] == 404


def test_the_topology_is_bounded(node: leveret.testing.Broker, channel: Any) -> None:
    channel.exchange_declare("hub", "topic")
    channel.exchange_declare("spoke", "fanout")
    channel.exchange_bind("spoke", "hub", "far.#")
    for number in range(5):
        channel.queue_declare(f"leaf{number}", exclusive=True)
        for key in range(7):
            channel.queue_bind(f"leaf{number}", "hub", f"key{key}")
    _, told = ask(node, "topology/%2F?name=hub")
    assert told["exchanges"] == {"hub": "topic", "spoke": "fanout"}
    assert (len(told["edges"]), told["left_out"]) == (6, 0)
    leaf = next(one for one in told["edges"] if one["destination"] == "leaf3")
    assert (leaf["count"], len(leaf["keys"])) == (7, 5)
    _, told = ask(node, "topology/%2F?limit=2")
    assert (len(told["edges"]), told["left_out"]) == (2, 4)
    assert [one["destination"] for one in ask(node, "topology/%2F?name=LEAF4")[1]["edges"]] == ["leaf4"]
    assert ask(node, "topology/nowhere")[0] == 404
    assert ask(node, "topology/%2F?limit=1000000")[0] == 400
    assert ask(node, "topology/%2F", user="plain:secret")[0] == 401
    status, page = ask(node, "bindings/%2F/hub?page=2&page_size=10&sort=routing_key&name=leaf")
    assert (status, page["filtered_count"], len(page["items"])) == (200, 35, 10)
    assert ask(node, "bindings/%2F/no-such-exchange?page=1")[0] == 404
    for name in ("hub", "spoke"):
        channel.exchange_delete(name)


def test_consumers_in_pages(node: leveret.testing.Broker, channel: Any) -> None:
    channel.queue_declare("listened", exclusive=True)
    for number in range(12):
        channel.basic_consume("listened", lambda *_: None, consumer_tag=f"tag{number:02}")
    _, page = ask(node, "consumers?page=2&page_size=5&sort=consumer_tag&sort_reverse=true&name=listened")
    assert page["filtered_count"] == 12
    assert [one["consumer_tag"] for one in page["items"]] == [f"tag{number:02}" for number in (6, 5, 4, 3, 2)]
    assert ask(node, "consumers", user="plain:secret")[0] == 401


def test_the_firehose_is_switched(node: leveret.testing.Broker) -> None:
    assert ask(node, "tracing/%2F")[1]["nodes"] == []
    assert ask(node, "tracing/%2F", "PUT", {"tracing": True})[1]["nodes"] == ["leveret@localhost"]
    assert ask(node, "tracing/%2F", "PUT", {"tracing": "yes"})[0] == 400
    assert ask(node, "tracing/%2F", "PUT", {"tracing": False}, user="maker:secret")[0] == 401
    assert ask(node, "tracing/%2F", "PUT", {"tracing": False})[1]["nodes"] == []
    assert ask(node, "tracing/nowhere", "PUT", {"tracing": True})[0] == 404


def test_a_preview_changes_nothing(node: leveret.testing.Broker) -> None:
    document = {
        "vhosts": [{"name": "/"}, {"name": "new"}],
        "users": [{"name": "watcher", "password_hash": "", "tags": ["management"], "limits": {"max-channels": 1}}],
        "permissions": [{"user": "watcher", "vhost": "new", "configure": "", "write": "", "read": ""}],
        "queues": [{"vhost": "new", "name": "q", "durable": True, "auto_delete": False, "arguments": {}}],
        "bindings": [
            {"vhost": "new", "source": "amq.topic", "destination": "q", "destination_type": "queue", "routing_key": "k",
             "arguments": {}},
        ],
    }  # fmt: skip
    status, told = ask(node, "definitions/preview", "POST", document)
    assert (status, told["problems"]) == (200, [])
    parts = {
        name: (part["added"]["names"], part["changed"]["names"], part["same"])
        for name, part in told["sections"].items()
    }
    assert parts == {
        "vhosts": (["new"], ["/"], 0),  # Which had a description.
        "users": (["limits of watcher"], ["watcher"], 0),
        "permissions": (["new: watcher"], [], 0),
        "queues": (["new: q"], [], 0),
        "bindings": (["new: amq.topic → q (k)"], [], 0),
    }
    assert ask(node, "topology/new")[0] == 404  # There is still no such vhost.
    _, told = ask(node, "definitions/preview", "POST", {"queues": [{"vhost": "none", "name": "q"}]})
    assert told["problems"]
    assert ask(node, "definitions/preview", "POST", document, user="maker:secret")[0] == 401
    _, told = ask(node, "definitions/preview/%2F", "POST", {"users": document["users"]})
    assert told["sections"] == {}  # A file for one vhost brings no users.


# -- Single messages -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [{}, {"x-max-priority": 3}, {"x-queue-type": "quorum"}])
def test_messages_are_found_and_deleted(node: leveret.testing.Broker, channel: Any, arguments: dict[str, Any]) -> None:
    channel.queue_declare("haystack", durable=True, arguments=arguments)
    for number in range(60):
        headers = {"mark": "needle" if number % 20 == 7 else ""}
        marked = pika.BasicProperties(delivery_mode=2, priority=number % 4, headers=headers)
        channel.basic_publish("", "haystack", f"body {number}".encode(), marked)
    _, told = ask(node, "search/%2F/haystack?text=needle&count=2")
    first = told["messages"]
    assert len(first) == 2
    cursor = ",".join(map(str, told["cursor"]))
    _, told = ask(node, f"search/%2F/haystack?text=needle&cursor={cursor}")
    found = first + told["messages"]
    assert sorted(one["payload"] for one in found) == ["body 27", "body 47", "body 7"]
    assert told["cursor"] is None
    wrong = {"number": found[0]["number"], "id": found[1]["id"]}
    chosen = {"number": found[2]["number"], "id": found[2]["id"]}
    assert ask(node, "messages/%2F/haystack/delete", "POST", {"messages": [wrong, chosen]})[1] == {"deleted": 1}
    assert ask(node, "messages/%2F/haystack/delete", "POST", {"messages": [chosen]})[1] == {"deleted": 0}
    _, told = ask(node, "messages/%2F/haystack/delete", "POST", {"text": "needle"})
    assert (told["deleted"], told["cursor"]) == (2, None)
    left = []
    while (got := channel.basic_get("haystack", auto_ack=True))[0] is not None:
        assert not got[0].redelivered
        left.append(int(got[2].split()[1]))
    expected = [number for number in range(60) if number % 20 != 7]
    if "x-max-priority" in arguments:
        expected.sort(key=lambda number: -min(number % 4, 3))
    assert left == expected
    channel.queue_delete("haystack")


def test_messages_on_disk_are_found_and_deleted(node: leveret.testing.Broker, channel: Any) -> None:
    """The log holds the rest of a long queue: they are read from there."""
    channel.queue_declare("deep", durable=True, arguments={"x-queue-mode": "lazy"})
    for number in range(400):
        channel.basic_publish("", "deep", f"{number} ".encode() + b"x" * 20_000, PERSISTENT)
    _, told = ask(node, "messages/%2F/deep/delete", "POST", {"text": "77 x"})
    deleted = told["deleted"]
    while told["cursor"] is not None:
        _, told = ask(node, "messages/%2F/deep/delete", "POST", {"text": "77 x", "cursor": told["cursor"]})
        deleted += told["deleted"]
    assert deleted == 4
    assert channel.queue_declare("deep", durable=True, passive=True).method.message_count == 396
    left = [int(channel.basic_get("deep", auto_ack=True)[2].split()[0]) for _ in range(396)]
    assert left == [number for number in range(400) if number % 100 != 77]
    channel.queue_delete("deep")


@pytest.mark.parametrize(
    ("path", "method", "body"),
    [
        ("search/%2F/bounded", "GET", None),
        (f"search/%2F/bounded?text={'x' * 1001}", "GET", None),
        ("search/%2F/bounded?text=a&cursor=1", "GET", None),
        ("search/%2F/bounded?text=a&cursor=-1,2", "GET", None),
        ("search/%2F/bounded?text=a&count=51", "GET", None),
        ("messages/%2F/bounded/delete", "POST", {}),
        ("messages/%2F/bounded/delete", "POST", {"text": ""}),
        ("messages/%2F/bounded/delete", "POST", {"text": "a", "cursor": [1]}),
        ("messages/%2F/bounded/delete", "POST", {"text": "a", "cursor": [True, 1]}),
        ("messages/%2F/bounded/delete", "POST", {"messages": []}),
        ("messages/%2F/bounded/delete", "POST", {"messages": [{"number": 0, "id": ""}]}),
        ("messages/%2F/bounded/delete", "POST", {"messages": [{"number": 1, "id": ""}] * 501}),
    ],
)
def test_bounds_of_searches(
    node: leveret.testing.Broker, channel: Any, path: str, method: str, body: Any
) -> None:
    channel.queue_declare("bounded", durable=True)
    assert ask(node, path, method, body)[0] == 400
    where = path.partition("?")[0] + "?text=a"
    assert ask(node, where, method, body, user="maker:secret")[0] == 401  # It may not read.


def test_a_stream_is_looked_into(node: leveret.testing.Broker, channel: Any) -> None:
    channel.queue_declare("river", durable=True, arguments={"x-queue-type": "stream"})
    for number in range(30):
        channel.basic_publish("", "river", f"drop {number}".encode(), PERSISTENT)
    _, told = ask(node, "peek/%2F/river?count=3")
    assert (told["first"], told["next"], [one["offset"] for one in told["messages"]]) == (0, 30, [0, 1, 2])
    _, told = ask(node, "peek/%2F/river?offset=28&count=10")
    assert [one["payload"] for one in told["messages"]] == ["drop 28", "drop 29"]
    came = told["messages"][0]["time"]
    assert ask(node, f"peek/%2F/river?time={came + 3_600_000}")[1]["messages"] == []
    assert ask(node, f"peek/%2F/river?time={came - 3_600_000}&count=1")[1]["messages"][0]["offset"] == 0
    assert ask(node, "search/%2F/river?text=drop")[0] == 400
    assert ask(node, "messages/%2F/river/delete", "POST", {"text": "drop"})[0] == 400
    channel.queue_delete("river")
