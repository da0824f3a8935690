"""What a request may cost: how large it may be, what is looked at before its body is, and what its answer shows."""

from __future__ import annotations

import base64
import http.client
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

import leveret.testing
from leveret.management.http.json_decoding import DEPTH_MAX
from leveret.management.http.routes import Router

MEBIBYTE = 1 << 20
PUBLISH = "/api/exchanges/%2F/amq.fanout/publish"


@pytest.fixture(scope="module")
def node() -> Iterator[leveret.testing.Broker]:
    with leveret.testing.broker(config="management_port = 0") as node:
        for name, tags in (("plain", ""), ("manager", "management")):
            assert ask(node, "PUT", f"/api/users/{name}", {"password": "p", "tags": tags}).status == 201
            permissions = {"configure": "", "write": "^amq.direct$", "read": "^mine$"}
            assert ask(node, "PUT", f"/api/permissions/%2F/{name}", permissions).status == 201
        for name in ("mine", "others"):
            assert ask(node, "PUT", f"/api/queues/%2F/{name}", {"durable": True}).status == 201
        yield node


class Answer:
    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.body = response.read()

    @property
    def reason(self) -> Any:
        return json.loads(self.body)["reason"]


def basic(user: str) -> str:
    return "Basic " + base64.b64encode(user.encode()).decode()


def ask(node: leveret.testing.Broker, method: str, path: str, body: Any = None, user: str = "guest:guest") -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", node.ports["management"], timeout=60)
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    connection.request(method, path, data, {"authorization": basic(user), "content-type": "application/json"})
    answer = Answer(connection.getresponse())
    connection.close()
    return answer


def ask_by_head(node: leveret.testing.Broker, method: str, path: str, size: int | None, user: str | None) -> Answer:
    """The answer that comes before any of the body is sent. Without a size, the body would come in chunks."""
    lines = [f"{method} {path} HTTP/1.1", "host: 127.0.0.1", "content-type: application/json"]
    lines.append("transfer-encoding: chunked" if size is None else f"content-length: {size}")
    if user is not None:
        lines.append(f"authorization: {basic(user)}")
    with socket.create_connection(("127.0.0.1", node.ports["management"]), timeout=60) as sock:
        sock.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        response = http.client.HTTPResponse(sock)
        response.begin()
        return Answer(response)


# -- Before a body is taken in -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "size", "user", "status"),
    [
        ("POST", "/api/login", 20_000, None, 413),
        ("POST", "/api/login", 10 * MEBIBYTE, None, 413),
        ("GET", "/", 10_000, None, 413),
        ("GET", "/api/auth", 10_000, None, 413),
        ("OPTIONS", "/api/definitions", 10_000, None, 413),
        ("GET", "/api/definitions", 10_000, "guest:guest", 413),
        ("POST", "/api/definitions", 10 * MEBIBYTE, "manager:p", 401),
        ("POST", "/api/definitions/%2F", None, "manager:p", 401),
        ("POST", "/api/definitions", 10 * MEBIBYTE + 1, "guest:guest", 413),
        ("POST", PUBLISH, 9 * MEBIBYTE, "manager:p", 400),
        ("POST", PUBLISH, 9 * MEBIBYTE, "plain:p", 401),
        ("POST", "/api/exchanges/none/amq.direct/publish", None, "manager:p", 404),
        ("POST", "/api/rebalance/queues", 20_000, "guest:guest", 413),
        ("PUT", "/api/leases/%2F/mine/l", 20_000, "plain:p", 413),
        ("POST", "/api/leases/%2F/mine/l/take", 9 * MEBIBYTE, "plain:p", 413),
        ("POST", "/api/leases/%2F/mine/l/ack", 9 * MEBIBYTE, "plain:p", 413),
        ("PUT", "/api/queues/%2F/q", 9 * MEBIBYTE, "manager:p", 413),
        ("PUT", "/api/leveret/jobs/%2F/j", 9 * MEBIBYTE, "manager:p", 413),
        ("PUT", "/api/nothing", 9 * MEBIBYTE, "manager:p", 404),
        ("PUT", "/api/overview", 9 * MEBIBYTE, "manager:p", 405),
        ("POST", "/api/definitions", 10 * MEBIBYTE, "guest:wrong", 401),
    ],
)
def test_a_body_that_is_not_taken(
    node: leveret.testing.Broker, method: str, path: str, size: int | None, user: str | None, status: int
) -> None:
    assert ask_by_head(node, method, path, size, user).status == status


def test_a_body_in_chunks_is_bounded_too(node: leveret.testing.Broker) -> None:
    with socket.create_connection(("127.0.0.1", node.ports["management"]), timeout=60) as sock:
        sock.sendall(b"POST /api/login HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        sock.sendall(b"8000\r\n" + b"x" * 0x8000)
        response = http.client.HTTPResponse(sock)
        response.begin()
        assert response.status == 413


def test_most_routes_take_little() -> None:
    """Whoever adds one that takes as much as the server says who may send that."""
    router = Router()

    async def never(request: Any) -> Any:
        raise AssertionError

    router.add("PUT", "/a", never)
    assert router.route("PUT", "/a")[0].body_bytes_max == 256 << 10


@pytest.mark.parametrize("path", ["/api/leases/%2F/others/l", "/api/leases/%2F/absent/l"])
def test_a_lease_is_looked_up_before_its_body_is_read(node: leveret.testing.Broker, path: str) -> None:
    status = 401 if "others" in path else 404
    assert ask(node, "PUT", path, b"no json", "plain:p").status == status
    for action in ("take", "ack"):
        assert ask(node, "POST", f"{path}/{action}", b"no json", "plain:p").status == status


# -- What is in it -------------------------------------------------------------------------------------------------


DEEP = b'{"arguments":' + b"[" * 100_000 + b"]" * 100_000 + b"}"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/bindings/%2F/e/amq.direct/q/mine"), ("PUT", "/api/queues/%2F/q"),
        ("PUT", "/api/exchanges/%2F/x"), ("PUT", "/api/users/u"), ("PUT", "/api/policies/%2F/p"),
        ("PUT", "/api/parameters/c/%2F/n"),
        ("PUT", "/api/vhosts/v"), ("POST", "/api/queues/%2F/mine/get"), ("POST", "/api/queues/%2F/mine/actions"),
        ("POST", "/api/users/bulk-delete"), ("POST", PUBLISH), ("POST", "/api/definitions"),
        ("POST", "/api/definitions/%2F"), ("PUT", "/api/cluster-name"), ("PUT", "/api/vhost-limits/%2F/max-queues"),
    ],
)  # fmt: skip
def test_deep_json(node: leveret.testing.Broker, method: str, path: str) -> None:
    assert ask(node, method, path, DEEP).reason in ("not_json", "failed_to_parse_json")
    less = DEEP.replace(b"[" * 90_000, b"").replace(b"]" * 90_000, b"")
    assert ask(node, method, path, less).status == 400
    assert len(less) > DEPTH_MAX


def test_deep_json_for_a_lease(node: leveret.testing.Broker) -> None:
    body = b'{"owner":' + b"[" * 5_000 + b"]" * 5_000 + b"}"
    answer = ask(node, "PUT", "/api/leases/%2F/mine/l", body, "plain:p")
    assert answer.status == 400 and "deep" in answer.reason


def test_very_many_values_become_no_metadata(node: leveret.testing.Broker) -> None:
    body = b'{"arguments":{"a":[' + b"0," * 110_000 + b"0]}}"
    assert ask(node, "PUT", "/api/queues/%2F/q", body).reason == "not_json"


def test_an_import_of_empty_values_is_refused_before_it_fills_the_memory(node: leveret.testing.Broker) -> None:
    """Three million objects of two bytes would be two hundred megabytes, and take long to throw away."""
    body = b'{"queues": [' + b"{}," * (3 * MEBIBYTE) + b"{}]}"
    for path in ("/api/definitions", "/api/definitions/%2F", "/api/leveret/definitions/preview"):
        answer = ask(node, "POST", path, body)
        assert (answer.status, answer.reason) == (400, "failed_to_parse_json")


def test_a_large_import_works(node: leveret.testing.Broker) -> None:
    queues = [
        {"name": f"q{number}", "vhost": "/", "durable": True, "auto_delete": False, "arguments": {"x-max-length": 9}}
        for number in range(300)
    ]
    users = [{"name": f"u{number}", "password_hash": "", "tags": ["x" * 200] * 20} for number in range(600)]
    body = json.dumps({"queues": queues, "users": users}).encode()
    assert len(body) > 2 * MEBIBYTE
    assert ask(node, "POST", "/api/definitions", body).status == 204
    assert ask(node, "GET", "/api/queues/%2F/q299").status == 200
    assert len(json.loads(ask(node, "GET", "/api/users/u499").body)["tags"]) > 0


def test_a_large_message(node: leveret.testing.Broker) -> None:
    text = 'é"\\\n\U0001f407' * 300_000
    body = {"properties": {}, "routing_key": "mine", "payload": text, "payload_encoding": "string"}
    assert json.loads(ask(node, "POST", "/api/exchanges/%2F/amq.default/publish", body).body) == {"routed": True}
    get = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}
    assert json.loads(ask(node, "POST", "/api/queues/%2F/mine/get", get).body)[0]["payload"] == text


def test_what_was_wrong_is_shown_in_short(node: leveret.testing.Broker) -> None:
    body = {"properties": {}, "routing_key": "q", "payload": "!" * 100_000, "payload_encoding": "base64"}
    answer = ask(node, "POST", PUBLISH, body)
    assert answer.reason[0] == "not_base64" and len(answer.body) < 2_000


# -- Answers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/api/users", "/api/definitions", "/api/overview", "/api/nothing", "/api/auth"])
def test_nobody_keeps_an_answer(node: leveret.testing.Broker, path: str) -> None:
    headers = ask(node, "GET", path).headers
    assert headers["cache-control"] == "no-store"
    assert headers["x-content-type-options"] == "nosniff"


def test_the_page_is_kept_and_asked_for(node: leveret.testing.Broker) -> None:
    headers = ask(node, "GET", "/").headers
    assert (headers["cache-control"], headers["x-content-type-options"]) == ("no-cache", "nosniff")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("rabbit_me-1.json", "attachment; filename=rabbit_me-1.json"),
        ("%D0%96.json", "attachment; filename*=UTF-8''%D0%96.json"),
        ("%EF%BC%A1", "attachment; filename*=UTF-8''%EF%BC%A1"),
        ("a%0d%0aset-cookie:x", None),
        ("a%22b", None),
    ],
)
def test_the_name_of_a_download(node: leveret.testing.Broker, name: str, told: str | None) -> None:
    answer = ask(node, "GET", f"/api/definitions?download={name}")
    assert answer.status == 200
    assert answer.headers.get("content-disposition") == told
    assert "queues" in json.loads(answer.body)
