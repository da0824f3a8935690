"""The page with ten thousand queues: each view within a second, and half a second of the node's."""

from __future__ import annotations

import base64
import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

import leveret.testing
from tests.system.page.browser import Browser

pytestmark = pytest.mark.long

QUEUES = 10_000
VIEWS = (
    "overview", "cluster", "queues", "queues?sort=messages_ready&desc=true", "queues?sort=consumer_capacity",
    "queues?sort=message_stats.publish_details.rate", "queues?name=999", "queues?name=9%7B3%7D&regex=true",
    "queues?page=150", "queues/%2F/many.00042", "exchanges", "exchanges/%2F/amq.topic", "topology?limit=2000",
    "connections", "channels", "consumers", "mqtt", "stomp", "policies", "vhosts", "vhosts/%2F", "users", "users/guest",
    "shovels", "leases", "nodes/leveret@localhost", "admin",
)  # fmt: skip
# Opens a view and returns how long it took to be drawn, and its slowest request.
MEASURE = """async (where) => {
    const frame = () => new Promise(requestAnimationFrame);
    location.hash = '#/jobs';
    while (!document.title.startsWith('Jobs') || !document.querySelector('main .empty-title')) await frame();
    performance.clearResourceTimings();
    const began = performance.now();
    location.hash = `#/${where}`;
    const shown = 'main :is(table, .empty-title, svg.ring, svg.map, dl.facts)';
    while (document.title.startsWith('Jobs') || !document.querySelector(shown)) await frame();
    await frame();
    const requests = performance.getEntriesByType('resource').filter((one) => one.name.includes('/api/'));
    return [performance.now() - began, Math.max(...requests.map((one) => one.responseEnd - one.requestStart), 0)];
}"""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with leveret.testing.broker(config="management_port = 0") as broker:
        address = f"http://127.0.0.1:{broker.ports['management']}/"
        kept = {"vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}
        bound = {"vhost": "/", "source": "amq.topic", "destination_type": "queue", "arguments": {}}
        names = [f"many.{number:05}" for number in range(QUEUES)]
        document = {
            "queues": [{**kept, "name": name} for name in names],
            "bindings": [{**bound, "destination": name, "routing_key": name[-2:]} for name in names],
        }
        headers = {"authorization": "Basic " + base64.b64encode(b"guest:guest").decode()}
        urllib.request.urlopen(
            urllib.request.Request(f"{address}api/definitions", json.dumps(document).encode(), headers)
        )
        yield address


@pytest.fixture(scope="module")
def opened(browser: Browser, url: str) -> Iterator[Any]:
    page = browser.page()
    page.goto(f"{url}#/jobs")
    page.get_by_label("User").fill("guest")
    page.get_by_label("Password").fill("guest")
    page.keyboard.press("Enter")
    page.locator("header.bar").wait_for()
    yield page
    page.context.close()


@pytest.mark.parametrize("where", VIEWS)
def test_a_view_is_there_soon(opened: Any, where: str) -> None:
    tries = [opened.evaluate(MEASURE, where) for _ in range(3)]  # The machine may be busy with something else.
    drawn_ms, answered_ms = min(tries)
    assert drawn_ms < 1_000
    assert answered_ms < 500
