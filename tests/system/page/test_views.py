"""Views of the page in a real Chromium: charts, lists, and the pages of single objects."""

from __future__ import annotations

import base64
import json
import urllib.request
from typing import Any
from urllib.parse import quote

from tests.support.members import Cluster
from tests.support.servers import until
from tests.system.page.conftest import Open
from tests.system.page.test_browser import fill, shown, toasted

NASTY = '<img src=x onerror="window.harmed=1">'


def http(trio: Cluster, method: str, path: str, body: Any = None) -> Any:
    headers = {"authorization": "Basic " + base64.b64encode(b"guest:guest").decode()}
    data = None if body is None else json.dumps(body).encode()
    url = f"http://127.0.0.1:{trio[0].management_port}/api/{path}"
    with urllib.request.urlopen(urllib.request.Request(url, data, headers, method=method)) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def go(page: Any, where: str) -> None:
    page.evaluate(f"location.hash = {json.dumps('#/' + where)}")


def heading(page: Any, text: str) -> None:
    page.locator("h1", has_text=text).wait_for()


# -- Charts --------------------------------------------------------------------------------------------------------


def test_ranges_of_charts(page: Any, trio: Cluster) -> None:
    fill(trio, 0, "charted", 5)
    channel = trio[0].connect().channel()
    channel.basic_qos(prefetch_count=1)
    channel.basic_consume("charted", lambda *_: None)
    [connection] = [one for one in http(trio, "GET", "connections") if one["channels"]][:1]
    name = quote(connection["name"], safe="")
    views = (
        ("overview", 2), ("queues/%2F/charted", 2), ("nodes/n1@localhost", 5), ("vhosts/%2F", 3),
        ("exchanges/%2F/amq.topic", 1), (f"connections/{name}", 1), (f"channels/{name}%20(1)", 1),
    )  # fmt: skip
    for where, count in views:
        go(page, where)
        until(lambda count=count: page.locator("figure.chart").count() == count, f"{count} charts of {where}")  # type: ignore[misc]
        heights = page.evaluate("[...document.querySelectorAll('figure.chart svg')].map(e => e.clientHeight)")
        assert len(set(heights)) == 1, where
    go(page, "queues/%2F/charted")
    ranges = page.get_by_role("group", name="Time range of charts")
    ticks = {"10 min": "−10 min", "1 h": "−60 min", "8 h": "−8 h", "1 d": "−24 h", "1 min": "−60 s"}
    for title, tick in ticks.items():
        ranges.get_by_role("button", name=title, exact=True).click()
        page.locator("figure.chart").first.get_by_text(tick).wait_for()
    channel.connection.close()


def test_a_chart_tells_the_values_of_another_time(page: Any) -> None:
    chart = page.locator("figure.chart").first
    chart.locator("svg .dot").first.wait_for()
    until(lambda: len(chart.locator("path.line").first.get_attribute("d").split("L")) > 3, "the chart has points")
    box = chart.locator("svg").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + box["height"] / 2)
    chart.locator(".chart-time").wait_for()
    page.mouse.move(0, 0)
    chart.locator(".chart-time").wait_for(state="detached")
    chart.locator("svg").focus()
    page.keyboard.press("ArrowLeft")
    chart.locator(".chart-time").wait_for()


# -- Lists ---------------------------------------------------------------------------------------------------------


def test_columns_are_chosen_and_kept(page: Any, trio: Cluster) -> None:
    fill(trio, 0, "columned", 1)
    go(page, "queues")
    page.locator("summary", has_text="Columns").click()
    assert page.get_by_role("columnheader", name="Memory").count() == 0
    page.locator(".choices").get_by_label("Memory").check()
    page.get_by_role("columnheader", name="Memory").wait_for()
    page.locator(".choices").get_by_label("State").uncheck()
    page.get_by_role("columnheader", name="State").wait_for(state="detached")
    page.get_by_role("columnheader", name="Memory").get_by_role("button").click()
    until(lambda: "sort=memory" in page.url, "the node sorts by it")
    page.reload()
    page.get_by_role("columnheader", name="Memory").wait_for()
    page.locator("summary", has_text="Columns").click()
    page.get_by_role("button", name="As usual").click()
    page.get_by_role("columnheader", name="State").wait_for()


def test_many_queues_are_deleted_after_a_question_with_their_number(page: Any, trio: Cluster) -> None:
    channel = trio[0].connect().channel()
    for number in range(70):
        channel.queue_declare(f"bulk-{number:02}", durable=True)
    channel.queue_declare(f"bulk-{NASTY}")
    go(page, "queues?name=bulk-")
    page.get_by_label("Pick bulk-03", exact=True).check()
    shown(page, "1 picked")
    page.get_by_label("Pick all of this page").check()
    shown(page, "50 picked")
    page.get_by_role("button", name="Pick all 71").click()
    shown(page, "71 picked")
    page.get_by_role("button", name="Delete …").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("heading", name="Delete 71 queues?").wait_for()
    dialog.get_by_text("and 51 more").wait_for()
    dialog.get_by_role("button", name="Delete", exact=True).click()
    toasted(page, "Deleted 71 queues")
    shown(page, "No queues match")
    assert http(trio, "GET", "queues?page=1&name=bulk-&columns=name")["filtered_count"] == 0


def test_a_list_that_is_here_whole_is_sorted_here(page: Any) -> None:
    go(page, "admin")
    flags = page.get_by_role("region", name="Feature flags")
    flags.get_by_role("button", name="Name").click()
    names = flags.locator("tbody td.main").all_inner_texts()
    assert names == sorted(names)
    flags.get_by_role("button", name="Name").click()
    until(lambda: flags.locator("tbody td.main").all_inner_texts() == names[::-1], "the other way round")


def test_such_a_list_is_sorted_on_a_tablet_too(open_page: Open) -> None:
    """There are no headings to click on."""
    page = open_page("admin", viewport={"width": 820, "height": 1000})
    ports = page.get_by_role("region", name="Listeners").locator('td[data-label="Port"]')
    page.get_by_label("Sort listeners by").select_option("Port")
    until(lambda: found(ports) == sorted(found(ports), reverse=True), "the highest port first")
    page.get_by_role("button", name="Turn the order of listeners round").click()
    until(lambda: found(ports) == sorted(found(ports)), "the lowest port first")


def found(ports: Any) -> list[int]:
    return [int(text) for text in ports.all_inner_texts()]


def test_the_refresh_can_be_stopped(page: Any, trio: Cluster) -> None:
    page.get_by_label("Refresh").select_option("off")
    go(page, "queues?name=by.hand")
    shown(page, "No queues match")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    trio[0].connect().channel().queue_declare("by.hand", durable=True)
    until(lambda: sum("leveret/cluster" in url for url in asked) >= 3, "problems are still watched")
    assert not [url for url in asked if "/api/queues" in url]
    page.get_by_role("button", name="Refresh now").click()
    page.get_by_role("link", name="by.hand").wait_for()
    page.get_by_label("Refresh").select_option("usual")


def test_what_is_not_of_now_is_not_called_in_sync(page: Any, trio: Cluster) -> None:
    rule = {"vhost": "/", "name": "old", "pattern": "^old$", "priority": 0, "apply_to": "queues", "operator": False}
    trio[0].control("set_policy", **rule, definition={"ha-mode": "all", "ha-sync-mode": "automatic"})
    fill(trio, 0, "old", 3)
    go(page, "cluster?vhost=%2F&queue=old")
    ring = page.locator(".ring-card")
    ring.get_by_text("all in sync").wait_for()
    page.get_by_label("Refresh").select_option("off")
    page.evaluate("{ const now = Date.now; Date.now = () => now() + 20_000; }")  # Nobody waits for it.
    ring.get_by_text("unknown").wait_for()
    shown(page, "As of")
    assert page.get_by_text("all in sync").count() == 0
    page.get_by_role("button", name="Refresh now").click()
    ring.get_by_text("all in sync").wait_for()
    page.get_by_label("Refresh").select_option("usual")


# -- Pages of single objects ---------------------------------------------------------------------------------------


def test_a_node(page: Any) -> None:
    page.get_by_role("region", name="Nodes").get_by_role("link", name="n2").click()
    heading(page, "n2")
    for title in ("Memory by what holds it", "Event loop", "Agreement on metadata (Raft)", "Listeners", "Message log"):
        page.get_by_role("heading", name=title).wait_for()
    links = page.get_by_role("region", name="Links")
    assert sorted(links.locator("tbody td.main").all_inner_texts()) == ["n1", "n3"]
    assert links.get_by_text("up", exact=True).count() == 2
    page.get_by_role("region", name="Settings that differ").get_by_text("management.tcp.port").wait_for()
    assert "hares in a field" not in page.content()  # The cookie.


def test_a_channel_and_its_consumer(page: Any, trio: Cluster) -> None:
    channel = trio[0].connect().channel()
    channel.queue_declare("heard", exclusive=True)
    channel.basic_qos(prefetch_count=7)
    channel.basic_consume("heard", lambda *_: None, consumer_tag=NASTY)
    go(page, "consumers?name=heard")
    row = page.locator("tbody tr", has_text="heard")
    row.get_by_text(NASTY).wait_for()
    row.get_by_role("link").nth(1).click()
    page.get_by_role("heading", name="Consumers").wait_for()
    assert page.locator(".tile", has_text="Consumers").locator(".tile-value").inner_text() == "1"
    page.get_by_role("region", name="Consumers").get_by_text(NASTY).wait_for()
    page.locator(".facts").get_by_role("link").first.click()
    page.get_by_role("button", name="Close …").wait_for()
    channel.connection.close()


def test_a_virtual_host_and_its_limits(page: Any) -> None:
    go(page, "vhosts")
    page.get_by_role("button", name="Add a virtual host …").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill(NASTY)
    dialog.get_by_label("Tags").fill("a,b")
    dialog.get_by_role("button", name="Add").click()
    page.get_by_role("link", name=NASTY).click()
    heading(page, NASTY)
    page.get_by_role("region", name="Limits").get_by_role("button", name="Set").nth(1).click()
    dialog.get_by_label("Queues", exact=True).fill("12")
    dialog.get_by_role("button", name="Set").click()
    page.get_by_role("region", name="Limits").get_by_role("cell", name="12").wait_for()
    page.get_by_role("region", name="Limits").get_by_role("button", name="Clear").click()
    page.get_by_role("region", name="Limits").get_by_role("cell", name="12").wait_for(state="detached")
    page.get_by_role("region", name="Permissions").get_by_role("link", name="guest").wait_for()
    page.get_by_role("button", name="Delete …").click()
    dialog.get_by_role("button", name="Delete", exact=True).click()
    heading(page, "Virtual hosts")


def test_a_user_and_what_it_may(page: Any, trio: Cluster) -> None:
    go(page, "users")
    page.get_by_role("button", name="Add a user …").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("ann")
    dialog.get_by_label("Password").fill("secret")
    dialog.get_by_role("button", name="Save").click()
    page.get_by_role("link", name="ann", exact=True).click()
    heading(page, "ann")
    page.get_by_role("button", name="Set permissions …").click()
    dialog.get_by_label("Write").fill("^out")
    dialog.get_by_role("button", name="Save").click()
    page.get_by_role("region", name="Permissions", exact=True).get_by_text("^out").wait_for()
    page.get_by_role("button", name="Set topic permissions …").click()
    dialog.get_by_label("Read").fill("^eu\\.")
    dialog.get_by_role("button", name="Save").click()
    topics = page.get_by_role("region", name="Topic permissions")
    topics.get_by_text("^eu\\.").wait_for()
    topics.get_by_role("button", name="Edit").click()
    dialog.get_by_label("Read").fill("^us\\.")
    dialog.get_by_role("button", name="Save").click()
    topics.get_by_text("^us\\.").wait_for()
    page.get_by_role("region", name="Limits").get_by_role("button", name="Set").first.click()
    dialog.get_by_label("Connections", exact=True).fill("3")
    dialog.get_by_role("button", name="Set").click()
    page.get_by_role("region", name="Limits").get_by_role("cell", name="3", exact=True).wait_for()
    assert http(trio, "GET", "user-limits/ann")[0]["value"] == {"max-connections": 3}
    page.get_by_role("button", name="Delete …").click()
    dialog.get_by_role("button", name="Delete", exact=True).click()
    heading(page, "Users")


# -- The cluster ---------------------------------------------------------------------------------------------------


def test_the_cluster_is_renamed(page: Any) -> None:
    go(page, "admin")
    page.get_by_role("button", name="Rename …").click()
    page.get_by_role("dialog").get_by_label("Name", exact=True).fill("meadow")
    page.get_by_role("dialog").get_by_role("button", name="Rename").click()
    page.locator("header .cluster-name", has_text="meadow").wait_for()
    page.get_by_role("region", name="Listeners").get_by_text("http/prometheus").first.wait_for()


def test_definitions_are_exported_previewed_and_imported(page: Any, trio: Cluster) -> None:
    trio[0].connect().channel().queue_declare("defined", durable=True)
    go(page, "admin")
    page.get_by_role("button", name="Export").wait_for()
    got: list[Any] = []
    page.on("download", lambda file: got.append(file))  # noqa: PLW0108  # Playwright marks it, and cannot mark a method.
    page.get_by_role("button", name="Export").click()
    until(lambda: bool(got), "the file is there")
    path = page._browser.wait(got[0].path())
    document = json.loads(path.read_text())
    assert "defined" in [one["name"] for one in document["queues"]]
    document["queues"].append({**document["queues"][0], "name": NASTY})
    document["vhosts"].append({"name": "imported"})
    file = path.with_suffix(".json")
    file.write_text(json.dumps(document))
    page.get_by_label("Import a file").set_input_files(str(file))
    preview = page.get_by_role("region", name="Preview")
    preview.wait_for()
    at = preview.locator("td.main").all_inner_texts().index("queues")
    cells = preview.locator("tbody tr").nth(at).locator("td").all_inner_texts()
    assert (cells[1], cells[2]) == ("1", "0")
    preview.get_by_text("1 added").first.wait_for()
    preview.get_by_role("button", name="Import: 2 added, 0 changed …").click()
    page.get_by_role("dialog").get_by_role("button", name="Import", exact=True).click()
    toasted(page, "imported")
    assert http(trio, "GET", "vhosts/imported")["name"] == "imported"
    http(trio, "DELETE", "vhosts/imported")
    http(trio, "DELETE", f"queues/%2F/{quote(NASTY, safe='')}")
    file = path.with_suffix(".broken")
    file.write_text("{")
    page.get_by_label("Import a file").set_input_files(str(file))
    shown(page, "is not valid JSON")
