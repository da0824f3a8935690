"""MQTT on the page, and a page that is an MQTT client itself, in a real Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from paho.mqtt.enums import MQTTProtocolVersion

from leveret.metadata.rules.passwords import SHA256, hash_password
from tests.support.members import Cluster
from tests.support.servers import ROOT, until
from tests.system.mqtt.paho_client import Paho
from tests.system.page.browser import Browser
from tests.system.page.conftest import Open
from tests.system.page.test_browser import toasted

BUNDLE = ROOT / "node_modules" / "mqtt" / "dist" / "mqtt.min.js"
# Subscribes, publishes to itself with each QoS, and gives what came.
CLIENT = """async (url) => {
    const login = {username: "guest", password: "guest", clientId: "in a browser"};
    const client = mqtt.connect(url, {...login, protocolVersion: 5, reconnectPeriod: 0});
    const came = [];
    const over = new Promise((resolve, reject) => {
        client.on("error", reject);
        client.on("message", (topic, payload, packet) => {
            came.push([topic, payload.toString(), packet.qos]);
            if (came.length === 3) resolve();
        });
    });
    await new Promise((resolve, reject) => { client.on("connect", resolve); client.on("error", reject); });
    await client.subscribeAsync("browser/#", {qos: 2});
    for (const qos of [0, 1, 2]) await client.publishAsync("browser/" + qos, "hare " + qos, {qos});
    await over;
    await client.endAsync();
    return came;
}"""


@pytest.fixture
def devices(trio: Cluster) -> Iterator[dict[str, Paho]]:
    made = {
        "meter": Paho(trio[0].mqtt_port, "meter <b>1</b>", MQTTProtocolVersion.MQTTv311, clean=False, keepalive=77),
        "lamp": Paho(trio[1].mqtt_port, "lamp"),
    }
    yield made
    for one in made.values():
        one.end()


def test_sessions(open_page: Open, trio: Cluster, devices: dict[str, Paho]) -> None:
    devices["meter"].subscribe("commands/+", 1)
    devices["lamp"].subscribe([("light", 0), ("heat", 1)])
    page = open_page("mqtt")
    page.locator("summary", has_text="Columns").click()
    page.get_by_label("Keep alive").check()
    page.locator("summary", has_text="Columns").click()
    meter, lamp = (page.locator("tbody tr", has_text=text) for text in ("meter <b>1</b>", "lamp"))
    of_meter, of_lamp = ("connected", "MQTT 3.1.1", "1 min 17 s", "n1"), ("connected", "MQTT 5.0", "n2")
    for row, words in ((meter, of_meter), (lamp, of_lamp)):
        for word in words:
            row.get_by_text(word).first.wait_for()
    devices["meter"].end()
    devices["lamp"].publish("commands/stop", b"now", 1)
    meter.get_by_text("disconnected").wait_for()
    until(lambda: "ago" in meter.inner_text() and "ends in" in meter.inner_text(), "since when it is offline is told")
    page.get_by_label("State").select_option("disconnected")
    lamp.wait_for(state="detached")
    page.get_by_role("link", name="meter <b>1</b>").click()
    page.get_by_role("heading", name="meter <b>1</b>").wait_for()
    page.locator("tbody tr", has_text="commands/+").wait_for()
    until(lambda: page.locator("dt:text-is('Messages') + dd").inner_text() == "1", "the waiting message is counted")
    page.get_by_role("button", name="Delete …").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    toasted(page, "Session deleted")
    page.get_by_role("heading", name="MQTT").wait_for()
    meter.wait_for(state="detached")
    page.get_by_role("link", name="lamp").click()
    page.get_by_text("Clean session").wait_for()
    assert page.locator("tbody tr").count() == 2  # Subscriptions that only its node knows.
    page.get_by_role("columnheader", name="QoS").get_by_role("button").click()
    until(lambda: page.locator("tbody td.main").all_inner_texts() == ["heat", "light"], "the highest QoS first")


def test_connections_have_the_client_id(open_page: Open, devices: dict[str, Paho]) -> None:
    page = open_page("connections")
    page.get_by_role("link", name="lamp").click()
    page.get_by_text("MQTT 5.0").wait_for()
    page.get_by_role("link", name="lamp").click()
    page.get_by_role("heading", name="Subscriptions").wait_for()


def test_retained_messages(open_page: Open, trio: Cluster, devices: dict[str, Paho]) -> None:
    for number in range(60):
        devices["lamp"].client.publish(f"rooms/{number:02}/light", b"on", 1, retain=True)
    devices["lamp"].publish("rooms/00/very/long " + "x" * 200, b"y" * 5_000, 1, retain=True)
    page = open_page("mqtt/retained")
    until(lambda: "61 retained messages" in page.locator(".count").inner_text(), "all are counted")
    assert page.locator("tbody tr").count() == 50
    page.get_by_role("button", name="Next").click()
    page.get_by_text("rooms/59/light").wait_for()
    box = page.get_by_label("Filter retained messages by name")
    box.fill("rooms/+/very/#")
    until(lambda: page.locator("tbody tr").count() == 1, "a topic filter finds the long one")
    assert "4.9 KiB" in page.locator("tbody tr").inner_text()
    box.fill("9/LIGHT")
    until(lambda: page.locator("tbody tr").count() == 6, "a part of topics finds six")
    page.locator("tbody tr", has_text="rooms/09/light").get_by_role("button", name="Delete …").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    toasted(page, "Retained message deleted")
    until(lambda: page.locator("tbody tr").count() == 5, "it is gone")


def test_who_may_only_look_cannot_delete(browser: Browser, trio: Cluster, devices: dict[str, Paho]) -> None:
    devices["lamp"].publish("kept", b"on", 1, retain=True)
    trio[0].control("add_user", name="looker", password_hash=hash_password("looker", b"salt"), hashing=SHA256)
    trio[0].control("set_user_tags", name="looker", tags=["monitoring"])
    page = browser.page()
    page.goto(f"http://127.0.0.1:{trio[0].management_port}/#/mqtt/retained")
    page.get_by_label("User").fill("looker")
    page.get_by_label("Password").fill("looker")
    page.keyboard.press("Enter")
    page.get_by_text("kept", exact=True).wait_for()
    assert page.get_by_role("button", name="Delete …").count() == 0
    page.get_by_role("link", name="Sessions").click()
    page.get_by_role("link", name="lamp").wait_for()
    assert page.get_by_role("button", name="Delete …").count() == 0
    page.context.close()


def test_on_a_phone(open_page: Open, devices: dict[str, Paho]) -> None:
    devices["lamp"].publish("phone/" + "x" * 300, b"y" * 300, 1, retain=True)
    for where, text in (("mqtt", "lamp"), ("mqtt/%2F/lamp", "Clean session"), ("mqtt/retained", "phone/")):
        page = open_page(where, viewport={"width": 390, "height": 844})
        page.get_by_text(text).first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, where


@pytest.mark.skipif(not BUNDLE.is_file(), reason="no mqtt.js: `make node-clients` installs it")
def test_a_page_as_a_client(browser: Browser, trio: Cluster) -> None:
    page = browser.page()
    page.add_script_tag(content=BUNDLE.read_text())
    came: Any = page.evaluate(CLIENT, f"ws://127.0.0.1:{trio[0].web_mqtt_port}/ws")
    assert came == [[f"browser/{qos}", f"hare {qos}", qos] for qos in (0, 1, 2)]
    page.context.close()
