"""Pages of other origins in a real Chromium, over plain HTTP, where the operator has used the browser's own login."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

import leveret.testing
from tests.system.page.browser import Browser

# A form sends a name, `=` and a value as they are: together they are JSON.
FORM = """<form method="post" enctype="text/plain" action="http://node.example:%d/api/definitions">
<input name='{"users": [{"name": "mallory", "password_hash": "", "tags": "administrator", "x": "' value='"}]}'>
</form>"""
ASK = """async ([url, method, headers, body]) => {
    try {
        const answer = await fetch(url, {method, headers, body, credentials: "include"});
        return answer.status;
    } catch (error) {
        return String(error);
    }
}"""


class Site:
    """Serves one page under any name."""

    def __init__(self) -> None:
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                data = site.page.encode()
                self.send_response(200)
                self.send_header("content-type", "text/html")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *arguments: object) -> None:
                """Nobody reads it."""

        self.page = ""
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    site = Site()
    yield site
    site.close()


@pytest.fixture(scope="module")
def node(site: Site) -> Iterator[leveret.testing.Broker]:
    allowed = f"management.cors.allow_origins.1 = http://good.example:{site.port}"
    with leveret.testing.broker(config=f"management_port = 0\n{allowed}") as node:
        site.page = FORM % node.ports["management"]
        yield node


@pytest.fixture
def page(browser: Browser, node: leveret.testing.Broker) -> Iterator[Any]:
    """Of somebody who looked at the API with the browser's own login, which the browser remembers."""
    page = browser.page()
    page.goto(f"http://guest:guest@node.example:{node.ports['management']}/api/whoami")
    assert '"guest"' in page.content()
    yield page
    page.context.close()
    browser.errors.clear()  # The browser complains of what it is refused, which is what these are about.


def users(node: leveret.testing.Broker) -> set[str]:
    host: Any = node._running()
    return set(host._server.node.metadata.users)


def test_a_form_of_another_page_makes_no_administrator(node: leveret.testing.Broker, site: Site, page: Any) -> None:
    page.goto(f"http://evil.example:{site.port}/")
    page.evaluate("document.forms[0].submit()")
    page.wait_for_url("**/api/definitions")
    assert "pages of other origins must not change anything" in page.content()
    assert users(node) == {"guest"}


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("POST", "/api/definitions", {"content-type": "text/plain"}),
        ("POST", "/api/definitions", {"content-type": "application/json"}),
        ("PUT", "/api/users/mallory", {"content-type": "application/json"}),
        ("DELETE", "/api/users/guest", {}),
    ],
)
def test_nor_does_a_script(
    node: leveret.testing.Broker, site: Site, page: Any, method: str, path: str, headers: dict[str, str]
) -> None:
    page.goto(f"http://evil.example:{site.port}/")
    body = '{"users": [{"name": "mallory", "password_hash": "", "tags": "administrator"}], "tags": ""}'
    url = f"http://node.example:{node.ports['management']}{path}"
    told = page.evaluate(ASK, [url, method, headers, None if method == "DELETE" else body])
    assert "TypeError" in str(told)  # It is not shown the answer.
    assert users(node) == {"guest"}


def test_the_own_page_and_allowed_ones_go_on(node: leveret.testing.Broker, site: Site, page: Any) -> None:
    port = node.ports["management"]
    given = {"content-type": "application/json"}
    queue = f"http://node.example:{port}/api/queues/%2F/own"
    page.goto(f"http://node.example:{port}/api/whoami")
    assert page.evaluate(ASK, [queue, "PUT", given, "{}"]) == 201
    page.goto(f"http://good.example:{site.port}/")
    login = {"authorization": "Basic " + base64.b64encode(b"guest:guest").decode()}
    assert page.evaluate(ASK, [queue, "DELETE", login, None]) == 204
    page.goto(f"http://bad.example:{site.port}/")
    assert "TypeError" in str(page.evaluate(ASK, [queue, "PUT", login, "{}"]))


def test_the_web_page_over_plain_http(browser: Browser, node: leveret.testing.Broker) -> None:
    """It logs in, and changes something, under a name that is not localhost."""
    page = browser.page()
    browser.log_in(page, f"http://node.example:{node.ports['management']}/")
    sent = page.evaluate("isSecureContext")
    assert sent is False  # So the browser sends no Sec-Fetch-Site.
    page.context.close()
