"""Lists: columns, order, pages, names, and who may see what. As RabbitMQ 3.10.8 has answered the same questions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pika
import pytest

import leveret.testing
from leveret.management.api.common.listing import query_of, sort_key
from leveret.management.http.http_messages import Problem, Request
from leveret.node.system.time_slices import in_order
from tests.system.management.watching import CONFIG, Watched


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    with leveret.testing.broker(config=CONFIG) as broker:
        admin = broker.admin
        admin.add_vhost("v2")
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        channel = connection.channel()
        for name, count in (("a1", 2), ("a2", 5), ("b1", 0)):
            channel.queue_declare(name)
            for _ in range(count):
                channel.basic_publish("", name, b"x" * 10)
        yield Watched(broker)
        connection.close()


@pytest.mark.parametrize(
    "path, expected",
    [
        ("queues?name=a&columns=name", [{"name": "a1"}, {"name": "a2"}, {"name": "b1"}]),  # Only pages have a filter.
        ("queues?sort=name&sort_reverse=true&columns=name", [{"name": "b1"}, {"name": "a2"}, {"name": "a1"}]),
        ("queues?sort=messages&columns=name", [{"name": "b1"}, {"name": "a1"}, {"name": "a2"}]),
        ("queues?sort=messages_ready&sort_reverse=true&columns=name,messages",
         [{"name": "a2", "messages": 5}, {"name": "a1", "messages": 2}, {"name": "b1", "messages": 0}]),
        ("queues?sort=message_stats.publish&columns=name", [{"name": "b1"}, {"name": "a1"}, {"name": "a2"}]),
        ("queues?sort=message_bytes&sort_reverse=true&columns=name", [{"name": "a2"}, {"name": "a1"}, {"name": "b1"}]),
        ("queues?sort=no_such_column&columns=name", [{"name": "a1"}, {"name": "a2"}, {"name": "b1"}]),
        ("queues?columns=messages_details.rate,name,message_stats.nothing",
         [{"messages_details": {"rate": 0.0}, "name": name} for name in ("a1", "a2", "b1")]),
        ("queues/v2", []),
        ("queues/%2F/a1?columns=name,node", {"name": "a1", "node": "leveret@localhost"}),
        ("overview?columns=node,cluster_name", {"node": "leveret@localhost", "cluster_name": "leveret@localhost"}),
        ("consumers?page=1", []),
        ("connections/username/nobody", []),
        ("exchanges/%2F/absent/bindings/source", []),
        ("bindings/%2F/e/absent/q/absent", []),
        ("bindings?columns=source&sort=destination", [{"source": ""}] * 3),
    ],
)  # fmt: skip
def test_rows(watched: Watched, path: str, expected: Any) -> None:
    assert watched.get(f"/api/{path}") == expected


@pytest.mark.parametrize(
    "path, names, counts",
    [
        ("queues?page=1&name=a&columns=name&pagination=false", ["a1", "a2"], (2, 2, 1, 1, 100, 3)),
        ("queues?page=1&page_size=1&name=A&columns=name", ["a1"], (2, 1, 1, 2, 1, 3)),
        ("queues?page=2&page_size=2&columns=name&sort=name&sort_reverse=true", ["a1"], (3, 1, 2, 2, 2, 3)),
        ("queues?page=1&page_size=1&columns=name&sort=messages&sort_reverse=true", ["a2"], (3, 1, 1, 3, 1, 3)),
        ("queues?page=1&name=zzz", [], (0, 0, 1, 0, 100, 3)),
        ("queues?page=1&use_regex=true&name=^.2$&columns=name", ["a2"], (1, 1, 1, 1, 100, 3)),
        ("queues?page=1&use_regex=foo&name=a&columns=name", ["a1", "a2"], (2, 2, 1, 1, 100, 3)),
        ("channels?page=1&name=nobody", [], (0, 0, 1, 0, 100, 1)),
    ],
)
def test_page(watched: Watched, path: str, names: list[str], counts: tuple[int, ...]) -> None:
    page = watched.get(f"/api/{path}")
    assert [row["name"] for row in page["items"]] == names
    fields = ("filtered_count", "item_count", "page", "page_count", "page_size", "total_count")
    assert tuple(page[name] for name in fields) == counts


BAD_NAME = "Pagination parameters are invalid: name is no regular expression that could be used: "


@pytest.mark.parametrize(
    "query, reason",
    [
        ("page=abc", "Pagination parameters are invalid"),
        ("page=1&page_size=abc", "Pagination parameters are invalid"),
        ("page=1&page_size=0", "Invalid pagination parameters: page number 1, page size 0"),
        ("page=-1", "Invalid pagination parameters: page number -1, page size undefined"),
        ("page=2&name=zzz", "Page out of range, page: 2 page size: 100, len: 0"),
        ("page=1&use_regex=true&name=[", f"{BAD_NAME}unterminated character set at position 0"),
        ("page=1&use_regex=true&name=(a)(%5C1%2B)%2B", BAD_NAME),
        (f"page=1&use_regex=true&name={'a' * 1001}", "a pattern has at most 1000 characters"),
    ],
)
def test_refused(watched: Watched, query: str, reason: str) -> None:
    status, answer = watched.status(f"/api/queues?{query}")
    assert status == 400
    assert answer["reason"].startswith(reason)


@pytest.mark.parametrize("pattern", ["(L+)+$", "^(l|l)*$", "(l*)*x", ".*.*.*.*.*x"])
def test_no_pattern_holds_the_node(watched: Watched, pattern: str) -> None:
    """Python's matcher would not come back from any of these, and nobody else would be served."""
    connection = pika.BlockingConnection(pika.URLParameters(watched.broker.url))
    channel = connection.channel()
    channel.queue_declare("l" * 254 + "!", exclusive=True)
    page = watched.get(f"/api/queues?page=1&use_regex=true&name={quote(pattern)}&columns=name")
    assert "l" * 254 + "!" not in [row["name"] for row in page["items"]]
    matches = watched.get(f"/api/leveret/matches/%2F?pattern={quote(pattern)}")
    assert "l" * 254 + "!" not in matches["queues"]["names"]
    watched.broker.admin.set_policy("hostile", pattern, {"max-length": 7}, apply_to="queues")
    channel.queue_declare("l" * 253 + "!", exclusive=True)
    assert watched.get(f"/api/queues/%2F/{'l' * 253}!?columns=policy") == {"policy": None}
    watched.broker.admin.clear_policy("hostile")
    connection.close()


def test_who_sees_what(watched: Watched) -> None:
    admin = watched.broker.admin
    admin.add_user("none", "x", vhost=None)
    admin.add_user("man", "x", tags=["management"], vhost=None)
    admin.add_user("mon", "x", tags=["monitoring"], vhost=None)
    admin.set_permissions("man", "v2", ".*", ".*", ".*")
    for path in ("overview", "queues", "nodes", "connections", "bindings", "consumers", "channels", "exchanges"):
        assert watched.status(f"/api/{path}", "none:x") == (
            401,
            {"error": "not_authorised", "reason": "Not management user"},
        )
    assert watched.get("/api/queues", "man:x") == []
    assert watched.get("/api/connections", "man:x") == []
    assert watched.get("/api/overview", "man:x")["object_totals"]["queues"] == 0
    assert {row["vhost"] for row in watched.get("/api/exchanges", "man:x")} == {"v2"}
    assert watched.status("/api/nodes", "man:x")[1]["reason"] == "Not monitor user"
    assert watched.status("/api/queues/%2F", "man:x")[1]["reason"] == "User not authorised to access virtual host"
    assert watched.status("/metrics", "man:x")[0] == 401
    assert len(watched.get("/api/nodes", "mon:x")) == 1
    assert len(watched.get("/api/connections", "mon:x")) == 1
    assert watched.status("/metrics", "mon:x?")[0] == 401


def test_values_of_all_types_have_an_order() -> None:
    values: list[Any] = [None, -1, 2.5, 3, False, True, "a", "b", [], {"x": 1}]
    assert sorted(reversed(values), key=sort_key) == values


def test_sorting_in_slices_is_sorting() -> None:
    items = [(number * 7919) % 5003 for number in range(5003)]
    for reverse in (False, True):
        expected = sorted(items, reverse=reverse)
        assert asyncio.run(in_order(items, lambda one: one, reverse)) == expected
        assert asyncio.run(in_order(items, lambda one: one, reverse, 10)) == expected[:10]


def test_what_is_no_number_is_no_page() -> None:
    request = Request("GET", "/", [("page", "９")], {}, "")
    with pytest.raises(Problem):
        query_of(request)
