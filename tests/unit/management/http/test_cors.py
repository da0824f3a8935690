"""Pages of other origins: what they may do, and what browsers are told. As RabbitMQ 3.10.8, but for `*`."""

from __future__ import annotations

import base64
import http.client
from collections.abc import Iterator

import pytest

import leveret.testing
from leveret.management.http.cors import AllowedOrigins
from leveret.management.http.http_messages import Problem, Request
from tests.system.management.watching import CONFIG

TRUSTED = "https://one.example"
LOGIN = {"authorization": "Basic " + base64.b64encode(b"guest:guest").decode()}


@pytest.mark.parametrize(
    "method, site, allowed, more, refused",
    [
        ("POST", "cross-site", (), {}, True),
        ("DELETE", "same-site", (), {}, True),
        ("PUT", "same-origin", (), {}, False),
        ("POST", "none", (), {}, False),
        ("POST", None, (), {}, False),  # No browser.
        ("GET", "cross-site", (), {}, False),
        ("POST", "cross-site", (TRUSTED,), {"origin": TRUSTED}, False),
        ("POST", "cross-site", (TRUSTED,), {"origin": "https://two.example"}, True),
        ("POST", "cross-site", (TRUSTED,), {}, True),
        ("PUT", "cross-site", ("*",), {"origin": TRUSTED}, False),
        ("POST", "cross-site", ("*",), {"origin": TRUSTED, "content-type": "application/json"}, False),
        ("POST", "cross-site", ("*",), {"origin": TRUSTED, "content-type": "text/plain"}, True),  # As a form can.
        # Over plain HTTP browsers do not say more than the origin.
        ("POST", None, (), {"origin": "http://evil.example", "host": "node:15672"}, True),
        ("POST", None, (), {"origin": "http://evil.example:15672", "host": "node:15672"}, True),
        ("POST", None, (), {"origin": "null", "host": "node:15672"}, True),
        ("PUT", None, (), {"origin": "http://node:15673", "host": "node:15672"}, True),
        ("DELETE", None, (), {"origin": "http://node", "host": "node:15672"}, True),
        ("POST", None, (), {"origin": "http://node:15672@evil.example", "host": "node:15672"}, True),
        ("POST", None, (), {"origin": "http://node:15672.evil.example", "host": "node:15672"}, True),
        ("POST", None, (), {"origin": "", "host": ""}, True),
        ("PUT", None, (), {"origin": "http://node:15672", "host": "Node:15672"}, False),
        ("PUT", None, (), {"origin": "http://[::1]:15672", "host": "[::1]:15672"}, False),
        ("PUT", None, (), {"origin": "http://node", "host": "node:80"}, False),
        ("PUT", None, (), {"origin": "https://node:443", "host": "node"}, False),
        ("PUT", None, (), {"origin": "http://node:443", "host": "node"}, True),
        ("PUT", None, (), {"origin": "https://rabbit.example", "host": "10.0.0.1:15672",
                           "x-forwarded-host": "rabbit.example, inner"}, False),
        ("PUT", None, (), {"origin": "https://evil.example", "host": "10.0.0.1", "x-forwarded-host": "rabbit"}, True),
        ("GET", None, (), {"origin": "http://evil.example", "host": "node:15672"}, False),
        ("POST", None, (TRUSTED,), {"origin": TRUSTED, "host": "node:15672"}, False),
        ("POST", None, ("*",), {"origin": "http://evil.example", "host": "node", "content-type": "text/plain"}, True),
        ("POST", None, (), {"referer": "http://evil.example/page?http://node", "host": "node"}, True),
        ("POST", None, (), {"referer": "http://node/page", "host": "node"}, False),
        ("POST", "same-origin", (), {"origin": "http://other", "host": "node"}, False),  # A proxy changed the host.
    ],
)
def test_what_pages_of_others_may(
    method: str, site: str | None, allowed: tuple[str, ...], more: dict[str, str], refused: bool
) -> None:
    headers = more if site is None else {"sec-fetch-site": site, **more}
    asked = Request(method, "/", [], headers, "192.0.2.1")
    if refused:
        with pytest.raises(Problem) as caught:
            AllowedOrigins(allowed, 0).check(asked)
        assert caught.value.status == 403
    else:
        AllowedOrigins(allowed, 0).check(asked)


def told(port: int, method: str, path: str, headers: dict[str, str]) -> tuple[int, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path, headers=headers)
    response = connection.getresponse()
    response.read()
    connection.close()
    found = {name.lower(): value for name, value in response.getheaders()}
    return response.status, {name: value for name, value in found.items() if name.startswith(("access-", "vary"))}


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    origins = f"management.cors.allow_origins.1 = {TRUSTED}\nmanagement.cors.max_age = 3600"
    with leveret.testing.broker(config=f"{CONFIG}\n{origins}") as broker:
        yield broker.ports["management"]


OURS = {
    "vary": "origin", "access-control-allow-origin": TRUSTED, "access-control-allow-credentials": "true",
}  # fmt: skip


@pytest.mark.parametrize(
    "method, path, login, status",
    [
        ("GET", "/api/queues", True, 200),
        ("GET", "/api/queues", False, 401),
        ("GET", "/api/queues/%2F/absent", True, 404),
        ("PUT", "/api/queues/%2F/cors", True, 201),
    ],
)
def test_every_answer_says_who_may_see_it(port: int, method: str, path: str, login: bool, status: int) -> None:
    assert told(port, method, path, {"origin": TRUSTED, **(LOGIN if login else {})}) == (status, OURS)
    assert told(port, "GET", "/api/overview", {"origin": "https://two.example", **LOGIN}) == (200, {"vary": "origin"})


def test_what_browsers_ask_beforehand(port: int) -> None:
    asked = {"access-control-request-method": "PUT", "access-control-request-headers": "authorization, x-y"}
    status, headers = told(port, "OPTIONS", "/api/queues/%2F/x", {"origin": TRUSTED, **asked})
    assert status == 200
    assert headers == {
        **OURS,
        "access-control-allow-headers": "authorization, x-y",
        "access-control-allow-methods": "DELETE, GET, HEAD, OPTIONS, POST, PUT",
        "access-control-max-age": "3600",
    }
    assert told(port, "OPTIONS", "/api/queues/%2F/x", {"origin": "https://two.example", **asked})[1] == {
        "vary": "origin"
    }


def test_off_by_default_and_anybody_without_credentials() -> None:
    asked = Request("GET", "/", [], {"origin": TRUSTED}, "192.0.2.1")
    assert AllowedOrigins((), 0).headers(asked) == []
    assert AllowedOrigins(("*",), 0).headers(asked) == [("vary", "origin"), ("access-control-allow-origin", TRUSTED)]
