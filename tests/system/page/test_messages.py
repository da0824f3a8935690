"""Messages, the firehose and the map in a real Chromium."""

from __future__ import annotations

import socket
from typing import Any

from tests.support.members import PERSISTENT, Cluster
from tests.support.servers import until
from tests.system.page.test_browser import fill, shown, toasted
from tests.system.page.test_views import NASTY, go, heading, http


def ready(trio: Cluster, queue: str) -> int:
    return int(trio[0].connect().channel().queue_declare(queue, passive=True).method.message_count)


def bodies(page: Any) -> list[str]:
    return list(page.locator(".message pre").all_inner_texts())


def test_messages_are_got_in_four_ways(page: Any, trio: Cluster) -> None:
    channel = trio[1].connect().channel()
    channel.queue_declare("got.dead", durable=True)
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "got.dead"}
    channel.queue_declare("got", durable=True, arguments=letters)
    channel.confirm_delivery()
    for body in ("one", "two", NASTY):
        channel.basic_publish("", "got", body.encode(), PERSISTENT)
    go(page, "queues/%2F/got")

    def get(mode: str, *expected: str) -> None:
        page.get_by_role("button", name="Get messages …").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Messages", exact=True).fill(str(len(expected)))
        dialog.get_by_label("Then").select_option(mode)
        dialog.get_by_role("button", name="Get", exact=True).click()
        dialog.wait_for(state="detached")
        until(lambda: bodies(page) == list(expected), f"{expected} are shown")

    get("ack_requeue_true", "one", "two", NASTY)
    assert page.locator(".message").get_by_text("redelivered").count() == 0
    get("reject_requeue_true", "one")
    page.locator(".message").get_by_text("redelivered").wait_for()
    get("ack_requeue_false", "one")
    assert ready(trio, "got") == 2
    get("reject_requeue_false", "two")
    until(lambda: ready(trio, "got.dead") == 1, "the rejected one is dead-lettered")
    assert ready(trio, "got") == 1


def test_messages_are_searched_and_deleted(page: Any, trio: Cluster) -> None:
    fill(trio, 1, "searched", 40)
    go(page, "queues/%2F/searched")
    box = page.get_by_label("Search in messages")
    box.fill('"number": 3')
    page.keyboard.press("Enter")
    until(lambda: len(bodies(page)) == 10, "ten are found, and there are more")
    page.get_by_role("button", name="Search on →").click()
    until(lambda: bodies(page) == ['{"number": 39}'], "the rest")
    page.locator(".message").get_by_role("button", name="Delete …").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    toasted(page, "Message deleted")
    assert ready(trio, "searched") == 39
    box.fill('"number": 2')
    page.keyboard.press("Enter")
    until(lambda: '{"number": 2}' in bodies(page), "others are found")
    page.get_by_role("button", name="Delete all that match …").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    toasted(page, "11 messages deleted")
    assert ready(trio, "searched") == 28
    box.fill("nothing has this")
    page.keyboard.press("Enter")
    shown(page, "No ready message contains that")


def size(page: Any) -> str:
    return str(page.locator(".tile", has_text="Size").locator(".tile-value").inner_text())


def test_a_stream_is_looked_into(page: Any, trio: Cluster) -> None:
    channel = trio[2].connect().channel()
    channel.queue_declare("brook", durable=True, arguments={"x-queue-type": "stream"})
    channel.confirm_delivery()
    for number in range(20):
        channel.basic_publish("", "brook", f"drop {number}".encode(), PERSISTENT)
    go(page, "queues/%2F/brook")
    until(lambda: "B" in size(page) and size(page) != "0 B", "the size of its messages is told")
    page.get_by_label("From offset").fill("7")
    page.get_by_role("button", name="Look", exact=True).click()
    until(lambda: bodies(page)[:1] == ["drop 7"], "from that offset on")
    page.get_by_role("button", name="Next →").click()
    until(lambda: bodies(page)[:1] == ["drop 12"], "the next")
    page.get_by_role("button", name="Last").click()
    until(lambda: bodies(page)[-1:] == ["drop 19"], "the last")
    page.get_by_label("or time").fill("2001-01-01T00:00:00")
    page.get_by_role("button", name="Look", exact=True).click()
    until(lambda: bodies(page)[:1] == ["drop 0"], "from that time on")


def test_the_firehose_is_switched_and_watched(page: Any, trio: Cluster) -> None:
    fill(trio, 0, "traced", 1)
    go(page, "tracing")
    page.get_by_role("button", name="Switch on …").click()
    page.get_by_role("dialog").get_by_role("button", name="Switch on").click()
    shown(page, "at n1, n2, n3")
    page.get_by_role("button", name="Watch").click()
    page.get_by_role("button", name="Stop").wait_for()
    channel = trio[1].connect().channel()
    channel.confirm_delivery()
    channel.basic_publish("", "traced", NASTY.encode())
    page.locator(".message", has_text="publish").get_by_text(NASTY).wait_for()
    channel.basic_get("traced", auto_ack=True)
    page.locator(".message", has_text="deliver").first.wait_for()
    page.get_by_role("button", name="Stop").click()
    names = "queues?columns=name"
    until(lambda: not [one for one in http(trio, "GET", names) if "trace-" in one["name"]], "no queue is left")
    page.get_by_role("button", name="Switch off").click()
    page.get_by_role("button", name="Switch off").wait_for(state="detached")
    assert http(trio, "GET", "leveret/tracing/%2F")["nodes"] == []


def test_the_map_is_readable_with_hundreds_of_queues(page: Any, trio: Cluster) -> None:
    channel = trio[0].connect().channel()
    for name in ("hub", "hub.eu", f"hub.{NASTY}"):
        channel.exchange_declare(name, "topic")
    channel.exchange_bind("hub.eu", "hub", "eu.#")
    channel.exchange_bind(f"hub.{NASTY}", "hub", "x")
    for number in range(200):
        channel.queue_declare(f"hub-{number:03}", durable=True)
        channel.queue_bind(f"hub-{number:03}", "hub.eu", f"key.{number}")
    go(page, "exchanges/%2F/hub.eu?page=4")
    page.get_by_role("link", name="hub-199").wait_for()
    page.get_by_role("link", name="Map").click()
    heading(page, "Topology")
    box = page.get_by_label("Filter by name")
    assert box.input_value() == "hub.eu"
    box.fill("hub")
    page.locator('.map-node[aria-label="queues 200 queues"]').wait_for()
    nodes = page.locator(".map-node")
    until(lambda: nodes.count() == 4, "three exchanges, and one box for two hundred queues")
    page.locator('.map-node[aria-label="exchange hub.eu"]').click()
    page.get_by_role("region", name="Bindings of the chosen").get_by_role("cell", name="key.7", exact=True).wait_for()
    page.locator('.map-node[aria-label="queues 200 queues"]').focus()
    page.keyboard.press("Enter")
    until(lambda: nodes.count() == 203, "the box is opened")
    overlaps = page.evaluate(
        """[...document.querySelectorAll('.map-node rect')].map(e => [e.x.baseVal.value, e.y.baseVal.value].join())
            .some((place, at, all) => all.indexOf(place) !== at)"""
    )
    assert not overlaps
    page.get_by_label("At most").select_option("100")
    shown(page, "more connections are not shown")
    for number in range(200):
        channel.queue_delete(f"hub-{number:03}")


def test_stomp_connections(page: Any, trio: Cluster) -> None:
    go(page, "stomp")
    shown(page, "They need a listener")
    listeners = http(trio, "GET", "overview?columns=listeners")["listeners"]
    port = next(one["port"] for one in listeners if one["protocol"] == "stomp" and one["node"].startswith("n1@"))
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"CONNECT\naccept-version:1.2\nhost:/\nlogin:guest\npasscode:guest\n\n\0")
        assert client.recv(100).startswith(b"CONNECTED")
        page.locator("tbody tr", has_text="STOMP 1.2").wait_for()
        assert page.locator("tbody tr").count() == 1
        page.get_by_label("Pick all of this page").check()
        page.get_by_role("button", name="Close …").click()
        page.get_by_role("dialog").get_by_role("button", name="Close", exact=True).click()
        toasted(page, "Closed 1 connection")


def test_federation_links(page: Any) -> None:
    """As a node with federation answers."""
    links = [
        {"node": "n1@localhost", "queue": "orders", "upstream_queue": "orders", "type": "queue", "vhost": "/",
         "upstream": NASTY, "id": "0a1b2c3d", "status": "error", "error": "{auth_failure}", "uri": "amqp://far",
         "timestamp": "2026-11-17 20:00:00"},
        {"node": "n2@localhost", "exchange": "logs", "upstream_exchange": "logs", "type": "exchange", "vhost": "/",
         "upstream": "east", "id": "1a1b2c3d", "status": "running", "uri": "amqp://east",
         "timestamp": "2026-11-17 20:00:00"},
    ]  # fmt: skip
    upstreams = [{"vhost": "/", "name": "east", "component": "federation-upstream", "value": {"uri": "amqp://east"}}]
    page.route("**/api/federation-links", lambda route: route.fulfill(json=links))
    page.route("**/api/parameters/federation-upstream", lambda route: route.fulfill(json=upstreams))
    go(page, "federation")
    table = page.get_by_role("region", name="Links")
    table.get_by_text(NASTY).wait_for()
    table.get_by_text("{auth_failure}").wait_for()
    assert table.get_by_role("link").all_inner_texts() == ["orders", "logs"]
    page.get_by_role("region", name="Upstreams").get_by_text("amqp://east").wait_for()
    restarted: list[str] = []

    def on_restart(route: Any) -> Any:
        restarted.append(route.request.url)
        return route.fulfill(status=204)

    page.route("**/restart", on_restart)
    table.get_by_role("button", name="Restart").nth(1).click()
    toasted(page, "Link restarted")
    assert restarted[0].endswith("/api/federation-links/vhost/%2F/1a1b2c3d/n2%40localhost/restart")
    page.unroute_all()
