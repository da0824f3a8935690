"""The page in a real Chromium, with a real cluster behind it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from paho.mqtt.enums import MQTTProtocolVersion

from tests.support.members import PERSISTENT, Cluster
from tests.support.servers import until
from tests.system.mqtt.paho_client import Paho
from tests.system.page.browser import Browser
from tests.system.page.conftest import Open

MANUAL = {"ha-mode": "all", "ha-sync-mode": "manual"}


def shown(page: Any, text: str) -> None:
    """Wait until the page shows it."""
    page.get_by_text(text).first.wait_for()


def toasted(page: Any, text: str) -> None:
    """Wait until the page has said it, for some seconds."""
    until(lambda: any(text in one for one in page.evaluate("window.toasted")), f"{text!r} is said")


def fill(cluster: Cluster, at: int, queue: str, count: int) -> None:
    channel = cluster[at].connect().channel()
    channel.queue_declare(queue, durable=True)
    channel.confirm_delivery()
    for number in range(count):
        channel.basic_publish("", queue, json.dumps({"number": number}).encode(), PERSISTENT)


def member(page: Any, node: str, state: str) -> Any:
    return page.locator(f'.ring [data-node="{node}"][data-state="{state}"]')


def test_logging_in_and_out(browser: Browser, trio: Cluster) -> None:
    page = browser.page()
    url = f"http://127.0.0.1:{trio[0].management_port}/"
    page.goto(url)
    page.locator("input[name=user]:focus").wait_for()
    page.keyboard.type("guest")
    page.keyboard.press("Tab")
    page.keyboard.type("wrong")
    page.keyboard.press("Enter")
    shown(page, "The user or the password is wrong")
    page.get_by_label("Password").fill("guest")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Overview").wait_for()
    assert "guest" not in page.url
    page.reload()
    page.get_by_role("heading", name="Overview").wait_for()  # The session lasts as long as the tab.
    other = page.context.new_page()
    other.goto(url)
    other.get_by_role("heading", name="Overview").wait_for()  # Another tab of the same browser asks for no password.
    page.get_by_role("button", name="Log out").click()
    for one in (page, other):
        one.get_by_role("button", name="Log in").wait_for()
        assert one.evaluate("sessionStorage.length") == 0
    stranger = browser.page()
    stranger.goto(url)
    shown(stranger, "A new broker has the user guest with the password guest")
    stranger.context.close()
    page.context.close()


def test_overview(open_page: Open, trio: Cluster) -> None:
    fill(trio, 0, "overviewed", 25)
    page = open_page()
    nodes = page.get_by_role("region", name="Nodes")
    for name in ("n1", "n2", "n3"):
        nodes.get_by_role("link", name=name).wait_for()
    assert page.get_by_role("img", name="Messages per second").count() == 1
    tile = page.locator(".tile", has_text="Ready").locator(".tile-value")
    until(lambda: int(tile.inner_text().replace(",", "")) >= 25, "the messages are counted")


def test_alarms_are_told_on_every_page(open_page: Open, trio: Cluster) -> None:
    page = open_page("jobs")
    trio[1].control("set_disk_limit", limit={"bytes": 1 << 59})
    try:
        page.locator(".troubles").get_by_text("Disk space alarm").wait_for()
        assert "on n2" in page.locator(".troubles").inner_text()
    finally:
        trio[1].control("set_disk_limit", limit={"bytes": 1})
    page.locator(".trouble").wait_for(state="detached")


def test_maintenance_is_told_on_every_page(open_page: Open, trio: Cluster) -> None:
    page = open_page("cluster")
    trio[2].control("drain", move_unmirrored=None)
    try:
        page.locator(".troubles").get_by_text("In maintenance").wait_for()
        assert "n3" in page.locator(".troubles").inner_text()
        page.locator(".node .badges").get_by_text("draining").wait_for()
    finally:
        trio[2].control("revive")
    page.locator(".trouble").wait_for(state="detached")


def test_every_section_shows_something(open_page: Open) -> None:
    page = open_page()
    for name in page.locator("nav#nav a").all_inner_texts():
        page.get_by_role("navigation", name="Sections").get_by_role("link", name=name).click()
        page.get_by_role("heading", name=name, level=1).wait_for()
        page.locator("main :is(table, .empty-title, svg.ring, svg.map, .badge)").first.wait_for()
        assert page.locator(".failure").count() == 0, name


def test_publish_and_peek(open_page: Open, trio: Cluster) -> None:
    fill(trio, 1, "letters", 3)
    page = open_page("queues/%2F/letters")
    page.get_by_role("button", name="Publish …").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Contents").fill("a hare <b>runs</b>")
    dialog.get_by_label("Properties").fill("{")
    dialog.get_by_role("button", name="Publish").click()
    dialog.get_by_text("The properties:").wait_for()  # What is wrong is said, and what was typed is still there.
    dialog.get_by_label("Properties").fill('{"headers": {"colour": "brown"}}')
    dialog.get_by_role("button", name="Publish").click()
    toasted(page, "Message published")
    page.get_by_role("button", name="Look at messages").focus()
    page.keyboard.press("Enter")
    page.locator(".message").nth(3).wait_for()
    assert page.evaluate("document.activeElement.innerText") == "Look again"  # And not the top of the page.
    assert page.locator(".message pre").all_inner_texts() == [
        '{"number": 0}', '{"number": 1}', '{"number": 2}', "a hare <b>runs</b>",
    ]  # fmt: skip
    page.locator(".message").nth(3).get_by_text("Properties").click()
    shown(page, "brown")
    method, _, body = trio[0].connect().channel().basic_get("letters", auto_ack=True)
    assert (method.redelivered, body) == (False, b'{"number": 0}')  # It was only looked at.


def test_forms_choose_what_nobody_has_chosen(open_page: Open, trio: Cluster) -> None:
    """Whoever leaves a list of choices alone gets what it shows, which is the first of them."""
    trio[0].control("add_vhost", name="another", description="", tags=[])
    page = open_page("queues")
    for section, button, kind in (("queues", "Add a queue", "classic"), ("exchanges", "Add an exchange", "direct")):
        page.get_by_role("link", name=section.capitalize()).click()
        page.get_by_role("button", name=button).click()
        dialog = page.get_by_role("dialog")
        assert dialog.get_by_label("Virtual host").input_value() == "/"
        assert dialog.get_by_label("Type").input_value() == kind
        dialog.get_by_label("Name").fill("left.alone")
        page.keyboard.press("Enter")
        dialog.wait_for(state="detached")
        page.get_by_role("link", name="left.alone").wait_for()
    page.get_by_role("link", name="Policies").click()
    page.get_by_role("button", name="Add an operator policy").click()
    dialog = page.get_by_role("dialog")
    assert dialog.get_by_label("Virtual host").input_value() == "/"
    dialog.get_by_label("Pattern").fill("^left")
    dialog.locator(".matched").get_by_text("left.alone").wait_for()
    page.keyboard.press("Escape")
    trio[0].control("delete_vhost", name="another")


def test_policy_then_synchronise(open_page: Open, trio: Cluster) -> None:
    fill(trio, 0, "ledger", 200)
    page = open_page("policies")
    page.get_by_role("button", name="Add a policy …").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name", exact=True).fill("ledgers")
    dialog.get_by_label("Pattern").fill("^led(")
    dialog.get_by_text("not a valid regular expression").wait_for()
    dialog.get_by_label("Pattern").fill("^ledg")
    dialog.locator(".matched").get_by_text("ledger", exact=True).wait_for()
    assert dialog.get_by_text("1 queue", exact=True).count() == 1
    dialog.get_by_label("Definition").fill(json.dumps(MANUAL))
    dialog.get_by_role("button", name="Save").click()
    toasted(page, "ledgers saved")

    page.goto(page.url.partition("#")[0] + "#/cluster?vhost=%2F&queue=ledger")
    member(page, "n1@localhost", "master").wait_for()
    member(page, "n2@localhost", "unsynced").wait_for()
    page.get_by_role("button", name="Synchronise").click()
    for name in ("n2@localhost", "n3@localhost"):
        member(page, name, "synced").wait_for()
    shown(page, "n3 is in sync")
    shown(page, "all in sync")


def test_a_node_is_killed_and_the_ring_closes(open_page: Open, trio: Cluster) -> None:
    trio[0].control(
        "set_policy", vhost="/", name="rings", pattern="^watched", priority=0, apply_to="queues", operator=False,
        definition={"ha-mode": "all", "ha-sync-mode": "automatic"},
    )  # fmt: skip
    fill(trio, 1, "watched", 20)  # So its master is the second node, and the page is of the first.
    page = open_page("cluster?vhost=%2F&queue=watched")
    member(page, "n2@localhost", "master").wait_for()
    member(page, "n3@localhost", "synced").wait_for()
    assert page.locator(".ring .link").count() == 3
    trio[1].kill()
    member(page, "n2@localhost", "down").wait_for()
    page.locator('.ring [data-state="master"]').wait_for()
    until(lambda: page.locator(".ring .link").count() == 2, "the ring is closed")
    page.locator(".troubles").get_by_text("Node down:").wait_for()
    shown(page, "is the master now")
    page.get_by_role("link", name="Queues").click()  # It is told on every page.
    page.get_by_role("heading", name="Queues", level=1).wait_for()
    assert "n2" in page.locator(".troubles").inner_text()
    trio.start()
    until(lambda: page.locator(".trouble").count() == 0, "nothing is wrong any more")


def test_a_node_that_is_down_leads_nothing_whatever_was_loaded_before(open_page: Open, trio: Cluster) -> None:
    """Though no answer about rings comes any more."""
    trio[0].control(
        "set_policy", vhost="/", name="rings", pattern="^known", priority=0, apply_to="queues", operator=False,
        definition={"ha-mode": "all", "ha-sync-mode": "automatic"},
    )  # fmt: skip
    fill(trio, 1, "known", 20)
    page = open_page("cluster?vhost=%2F&queue=known")
    member(page, "n2@localhost", "master").wait_for()
    page.locator(".ring-card").get_by_text("all in sync").wait_for()
    unanswered: list[Any] = []

    def hold(route: Any) -> None:
        unanswered.append(route)

    page.route("**/api/leveret/rings*/**", hold)
    page.route("**/api/leveret/rings?*", hold)
    trio[1].kill()
    page.locator(".troubles").get_by_text("Node down:").wait_for()
    member(page, "n2@localhost", "down").wait_for()
    assert page.get_by_text("all in sync").count() == 0
    page.locator(".ring-card").get_by_text("no master").wait_for()
    page.unroute_all()
    for route in unanswered:
        route.abort()
    trio.start()
    until(lambda: page.locator(".trouble").count() == 0, "nothing is wrong any more")


def test_the_node_that_serves_the_page_goes(open_page: Open, trio: Cluster) -> None:
    page = open_page("queues", at=trio[2])
    page.get_by_role("heading", name="Queues", level=1).wait_for()
    trio[2].kill()
    shown(page, "This node does not answer.")
    assert page.get_by_role("heading", name="Queues", level=1).count() == 1  # What was seen last stays.


def test_pages_filters_and_order(open_page: Open, trio: Cluster) -> None:
    channel = trio[0].connect().channel()
    for number in range(120):
        channel.queue_declare(f"many-{number:03}", durable=True)
    page = open_page("queues")
    box = page.get_by_label("Filter queues by name")
    box.fill("many-")
    until(lambda: "name=many-" in page.url, "what is typed counts when the typing stops")
    shown(page, "Page")
    assert page.locator("tbody tr").count() == 50
    page.get_by_role("button", name="Next").click()
    page.get_by_role("link", name="many-050").wait_for()
    page.get_by_role("button", name="Name").click()
    page.get_by_role("link", name="many-119").wait_for()
    assert page.locator("th[aria-sort=descending]").count() == 1
    box.focus()
    page.keyboard.press("End")
    page.keyboard.type("07")
    until(lambda: page.locator("tbody tr").count() == 10, "ten are left")
    assert page.evaluate("document.activeElement.type") == "search"  # Being drawn anew does not take the focus away.
    page.reload()
    until(lambda: page.locator("tbody tr").count() == 10, "the filter is part of the address")


def test_consumers_are_filtered_as_queues_are(open_page: Open, trio: Cluster) -> None:
    """The node does it for queues, and the page itself for consumers."""
    channel = trio[0].connect().channel()
    for name in ("read.One", "read.two"):
        channel.queue_declare(name, exclusive=True)
        channel.basic_consume(name, lambda *_: None)
    page = open_page("consumers")
    box = page.get_by_label("Filter consumers by name")
    for words, pattern, left in (("READ.", False, 2), ("read.o", False, 1), ("^read.(one|three)$", True, 1)):
        page.get_by_label("Pattern").set_checked(pattern)
        box.fill(words)
        until(lambda left=left: page.locator("tbody tr").count() == left, f"{left} for {words}")  # type: ignore[misc]
    assert " consumer" in page.locator(".count").inner_text().removesuffix("s")
    channel.connection.close()


def test_by_keyboard(open_page: Open) -> None:
    page = open_page("queues")
    page.get_by_role("button", name="Add a queue …").wait_for()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    assert "#/queues" in page.url
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.innerText") == "Add a queue …"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    page.get_by_role("dialog").wait_for()
    assert page.evaluate("document.activeElement.closest('dialog') !== null")
    page.keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="detached")
    assert page.evaluate("document.activeElement.innerText") == "Add a queue …"  # Where it came from.


CUT = """[...document.querySelectorAll('main *')].filter(one => one.getBoundingClientRect().right > innerWidth + 1
    && !one.closest('.map-box, pre, svg')).map(one => one.outerHTML.slice(0, 100))"""
# Words that are broken because their place is too narrow: a title or a button of two lines and one word.
BROKEN = """[...document.querySelectorAll('main th, main button, main dt, main .badge, main .tile-name')].filter(one =>
    one.clientHeight > 0 && !/\\s/.test(one.innerText.trim()) && one.getClientRects().length > 1)
    .map(one => one.innerText)"""


# Words of cells that stand on two lines, although a line of their own would hold them.
TORN = """[...document.querySelectorAll('main td')].flatMap((cell) => {
    const found = [], walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT), range = document.createRange();
    for (let text; text = walker.nextNode();) for (const word of text.data.matchAll(/\\S+/g)) {
        range.setStart(text, word.index);
        range.setEnd(text, word.index + word[0].length);
        const lines = new Set([...range.getClientRects()].map((one) => Math.round(one.top)));
        if (lines.size > 1 && word[0].length < 25) found.push(`${word[0]} in ${cell.outerHTML.slice(0, 100)}`);
    }
    return found;
})"""


@pytest.mark.parametrize("width", [390, 820, 1024, 1180, 1280])
def test_on_phones_tablets_and_laptops_and_in_the_dark(open_page: Open, trio: Cluster, width: int) -> None:
    fill(trio, 0, "a.rather.long.name.of.a.queue.that.somebody.has.thought.of.in.a.hurry", 3)
    far = {"src-uri": "amqp://127.0.0.1:1", "dest-uri": "amqp://broker.example.org:25672"}
    shovel = {**far, "src-queue": "orders", "dest-queue": "orders.of.the.north"}
    trio[0].control("add_vhost", name="warehouse.north", description=None, tags=None)
    trio[0].control("set_parameter", vhost="/", component="shovel", name="moves", value=shovel)
    Paho(trio[2].mqtt_port, "sensor.of.the.south", MQTTProtocolVersion.MQTTv311, clean=False).end()  # It is offline.
    devices = [Paho(trio[at].mqtt_port, name) for at, name in enumerate(("meter.of.the.north", "light"))]
    try:
        look_at_every_section(
            open_page("overview", viewport={"width": width, "height": 1000}, color_scheme="dark"), width
        )
    finally:
        devices.append(Paho(trio[2].mqtt_port, "sensor.of.the.south", MQTTProtocolVersion.MQTTv311))  # Forgotten.
        for device in devices:
            device.end()
        trio[0].control("clear_parameter", vhost="/", component="shovel", name="moves")
        trio[0].control("delete_vhost", name="warehouse.north")


def look_at_every_section(page: Any, width: int) -> None:
    """Nothing is cut, and no word is broken."""
    page.get_by_role("heading", name="Overview").wait_for()
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert max(int(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(",")) < 60
    names = page.locator("nav#nav a").evaluate_all("all => all.map(one => one.innerText || one.textContent)")
    for name in names:
        if width < 700:
            page.get_by_role("button", name="Menu").click()
        page.get_by_role("navigation", name="Sections").get_by_role("link", name=name).click()
        page.get_by_role("heading", name=name, level=1).wait_for()
        page.locator("main :is(table, .empty-title, svg.ring, svg.map, .badge)").first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        assert page.evaluate(CUT) == [], name
        assert page.evaluate(BROKEN) == [], name
        assert page.evaluate(TORN) == [], name


def test_queues_are_rebalanced(open_page: Open, trio: Cluster) -> None:
    for number in range(9):
        trio[0].connect().channel().queue_declare(f"crowded{number}", durable=True)
    page = open_page("cluster")
    page.get_by_role("button", name="Rebalance queues …").click()
    shown(page, "queues would move.")
    page.get_by_role("button", name="Rebalance", exact=True).click()
    toasted(page, "Rebalancing started")

    def is_spread() -> bool:
        rows = trio[1].control("list_queues", vhost="/", columns=["node"])["rows"]
        return len({node for (node,) in rows}) == 3

    until(is_spread, "queues are led by all nodes")
