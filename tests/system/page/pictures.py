"""Makes the pictures of docs/page.md anew: `make screenshots`.

A cluster of three is filled and used a little, so that there is something to see; every picture is then taken of the
real page in a real browser.
"""

from __future__ import annotations

import base64
import json
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any, Final

import pika

from tests.support.members import PERSISTENT, Cluster
from tests.system.page.browser import Browser, missing
from tests.system.page.conftest import CONFIG

FOLDER: Final = Path(__file__).parents[3] / "docs" / "images"
QUEUES: Final = ("orders.new", "orders.paid", "orders.shipped", "mail.out", "audit.log", "images.resize")
MIRRORED: Final = {"ha-mode": "all", "ha-sync-mode": "automatic"}
DESK: Final[dict[str, Any]] = {"viewport": {"width": 1280, "height": 860}}
PHONE: Final[dict[str, Any]] = {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2}
LEDGER: Final = "cluster?vhost=%2F&queue=ledger"
SHOP_S: Final = 75.0  # How long the shop has been open when the first picture is taken.


def named(node: Any, name: str) -> Any:
    parameters = pika.ConnectionParameters("127.0.0.1", node.port, client_properties={"connection_name": name})
    return pika.BlockingConnection(parameters)


class Shop(threading.Thread):
    """Orders come in waves and are worked on."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(daemon=True)
        self.front = named(cluster[0], "shop-frontend")
        self.worker = named(cluster[1], "order-worker")
        self.done = threading.Event()

    def run(self) -> None:
        orders, work = self.front.channel(), self.worker.channel()
        orders.confirm_delivery()
        work.basic_qos(prefetch_count=50)
        work.basic_consume("orders.new", lambda _, method, *__: work.basic_ack(method.delivery_tag))
        began = time.monotonic()
        number = 0
        while not self.done.is_set():
            wave = abs(time.monotonic() - began) % 40 - 20
            for _ in range(2 + int(abs(wave) / 2)):
                number += 1
                orders.basic_publish("shop", "order.new.eu", json.dumps({"order": number}).encode(), PERSISTENT)
            self.worker.process_data_events(0.02)
            self.done.wait(0.05)
        self.front.close()
        self.worker.close()


def furnish(cluster: Cluster) -> None:
    node = cluster[0]
    node.control("set_cluster_name", name="meadow")
    rule = {"vhost": "/", "priority": 0, "apply_to": "queues", "operator": False}
    node.control("set_policy", name="orders", pattern="^orders", definition=MIRRORED, **rule)
    channel = node.connect().channel()
    for name in QUEUES:
        channel.queue_declare(name, durable=True)
    channel.queue_declare("payments", durable=True, arguments={"x-queue-type": "quorum"})
    channel.queue_declare("events", durable=True, arguments={"x-queue-type": "stream"})
    channel.exchange_declare("shop", "topic", durable=True)
    for queue, key in (("orders.new", "order.new.#"), ("audit.log", "#"), ("orders.paid", "order.paid")):
        channel.queue_bind(queue, "shop", key)
    regions(channel)
    books = cluster[1].connect().channel()
    books.queue_declare("ledger", durable=True)
    books.confirm_delivery()
    for number in range(400):
        entry = {"entry": number, "amount": number * 7 % 100, "till": number % 4}
        books.basic_publish("", "ledger", json.dumps(entry).encode(), PERSISTENT)
    manual = {**MIRRORED, "ha-sync-mode": "manual"}
    node.control("set_policy", name="books", pattern="^ledger", definition=manual, **rule)
    report_jobs(f"http://127.0.0.1:{node.management_port}")


def regions(channel: Any) -> None:
    """More exchanges and queues, for the map."""
    for name, kind in (("shop.eu", "topic"), ("shop.us", "topic"), ("everything", "fanout")):
        channel.exchange_declare(name, kind, durable=True)
        channel.exchange_bind(name, "shop", "#" if kind == "fanout" else f"order.*.{name[-2:]}")
    channel.queue_bind("mail.out", "everything", "")
    for number in range(60):
        channel.queue_declare(f"worker.{number:02}", durable=True)
        channel.queue_bind(f"worker.{number:02}", "shop.eu" if number % 3 else "shop.us", f"order.{number}.#")


def report_jobs(url: str) -> None:
    now = int(time.time() * 1000)
    results: dict[str, dict[str, Any]] = {
        "audit": {
            "state": "ok", "summary": "Nothing was lost, duplicated or reordered.", "started": now - 192_000,
            "finished": now - 130_000, "figures": {"messages": 1_204_331, "lost": 0, "twice": 0},
            "report": "/data/audit/report.html",
        },
        "archive": {
            "state": "running", "summary": "Writing orders.new into the lake.", "started": now - 20_000,
            "figures": {"rows": 48_200, "files": 12},
        },
        "replication": {
            "state": "warning", "summary": "ledger was 14 s behind for a while, on n3.", "started": now - 4_000_000,
            "finished": now - 3_900_000, "figures": {"rings": 6, "worst lag": "14 s"},
        },
    }  # fmt: skip
    headers = {"authorization": "Basic " + base64.b64encode(b"guest:guest").decode()}
    for name, result in results.items():
        where = f"{url}/api/leveret/jobs/%2F/{name}"
        urllib.request.urlopen(urllib.request.Request(where, json.dumps(result).encode(), headers, method="PUT"))


class Camera:
    def __init__(self, browser: Browser, url: str) -> None:
        self.browser = browser
        self.url = url

    def open(self, where: str, **options: Any) -> Any:
        page = self.browser.page(**options)
        page.goto(f"{self.url}#/{where}")
        page.get_by_label("User").fill("guest")
        page.get_by_label("Password").fill("guest")
        page.keyboard.press("Enter")
        page.locator("main :is(table, .empty-title, svg.ring, svg.map, .job)").first.wait_for()
        page.wait_for_timeout(2_500)
        return page

    def take(self, page: Any, name: str, whole: bool = False) -> None:
        page.screenshot(path=str(FOLDER / f"page-{name}.png"), full_page=whole)
        print(f"page-{name}.png")


def main() -> None:
    why = missing()
    if why is not None:
        raise SystemExit(why)
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        cluster, browser = Cluster(Path(folder), CONFIG), Browser()
        try:
            cluster.start()
            furnish(cluster)
            shop = Shop(cluster)
            shop.start()
            camera = Camera(browser.start(), f"http://127.0.0.1:{cluster[0].management_port}/")
            threading.Event().wait(SHOP_S)
            still_life(camera)
            ring(camera, cluster)
            shop.done.set()
            shop.join()
        finally:
            browser.stop()
            cluster.end()


def still_life(camera: Camera) -> None:
    for mode, options in (("light", DESK), ("dark", {**DESK, "color_scheme": "dark"}), ("phone", PHONE)):
        camera.take(camera.open("overview", **options), f"overview-{mode}")
    camera.take(camera.open("queues", **DESK), "queues")
    camera.take(camera.open("queues", **PHONE), "queues-phone")
    camera.take(camera.open("jobs", **DESK), "jobs")
    page = camera.open("policies", **DESK)
    page.get_by_role("button", name="Add a policy …").click()
    page.get_by_label("Name", exact=True).fill("letters")
    page.get_by_label("Pattern").fill("^(orders|mail)")
    page.locator(".matched li").first.wait_for()
    camera.take(page, "policy")
    page = camera.open("queues/%2F/ledger", **DESK)
    page.get_by_role("button", name="Look at messages").click()
    page.locator(".message").first.scroll_into_view_if_needed()
    camera.take(page, "peek")
    page = camera.open("queues/%2F/orders.new", **DESK)
    page.get_by_role("button", name="10 min").click()
    page.wait_for_timeout(1_500)
    box = page.locator("figure.chart svg").nth(1).bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.93, box["y"] + box["height"] / 2)
    camera.take(page, "queue")
    camera.take(camera.open("nodes/n1@localhost", **DESK), "node")
    page = camera.open("topology", **DESK)
    page.locator('.map-node[aria-label="exchange shop.eu"]').click()
    page.locator("td .key").first.wait_for()
    camera.take(page, "topology")
    definitions(camera)


def definitions(camera: Camera) -> None:
    page = camera.open("admin", **DESK)
    queue = {"vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}
    document = {
        "vhosts": [{"name": "staging"}],
        "queues": [{**queue, "name": name} for name in ("orders.new", "orders.late", "invoices")],
        "policies": [{"vhost": "/", "name": "orders", "pattern": "^orders", "apply-to": "queues", "priority": 1,
                      "definition": MIRRORED}],
    }  # fmt: skip
    file = {"name": "shop.json", "mimeType": "application/json", "buffer": json.dumps(document).encode()}
    page.get_by_label("Import a file").set_input_files(file)
    page.get_by_role("region", name="Preview").wait_for()
    camera.take(page, "definitions")


def ring(camera: Camera, cluster: Cluster) -> None:
    """The ring of a queue whose mirrors are filled, and whose master is then lost."""
    page = camera.open(LEDGER, **DESK)
    camera.take(page, "ring-unsynchronised")
    page.get_by_role("button", name="Synchronise").click()
    page.get_by_text("all in sync").first.wait_for()
    camera.take(camera.open(LEDGER, **{**DESK, "color_scheme": "dark"}), "ring-dark")
    camera.take(camera.open(LEDGER, **PHONE), "ring-phone", whole=True)
    cluster[2].kill()
    page.locator('.ring [data-node="n3@localhost"][data-state="down"]').wait_for()
    page.wait_for_timeout(2_500)
    camera.take(page, "ring-node-down")


if __name__ == "__main__":
    main()
