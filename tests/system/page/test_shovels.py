"""Shovels on the page, in a real Chromium."""

from __future__ import annotations

import json

from tests.support.members import Cluster
from tests.support.servers import until
from tests.system.page.conftest import Open
from tests.system.page.test_browser import fill, toasted


def count(trio: Cluster, queue: str) -> int:
    channel = trio[0].connect().channel()
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def test_a_shovel_is_added_paused_resumed_and_deleted(open_page: Open, trio: Cluster) -> None:
    fill(trio, 0, "shovel source", 20)
    page = open_page("shovels")
    page.get_by_text("No shovels").wait_for()
    page.get_by_role("button", name="Add a shovel …").click()
    page.get_by_label("Name").fill("page <b>1</b>")
    value = {"src-uri": "amqp://", "src-queue": "shovel source", "dest-uri": "amqp://", "dest-queue": "shovel target"}
    page.get_by_label("Parameters").fill(json.dumps(value))
    page.get_by_role("button", name="Save").click()
    row = page.locator("tbody tr", has_text="page <b>1</b>")
    row.get_by_text("running").wait_for()
    until(lambda: "20" in row.inner_text(), "all to be moved")
    assert count(trio, "shovel target") == 20
    row.get_by_role("button", name="Pause").click()
    row.get_by_text("paused", exact=True).wait_for()
    row.get_by_role("button", name="Resume").click()
    row.get_by_text("running").wait_for()
    row.get_by_role("button", name="Restart").click()
    toasted(page, "restarted")
    row.get_by_role("button", name="Delete").click()
    page.locator("dialog").get_by_role("button", name="Delete").click()
    page.get_by_text("No shovels").wait_for()


def test_what_is_wrong_is_told(open_page: Open) -> None:
    page = open_page("shovels")
    page.get_by_role("button", name="Add a shovel …").click()
    page.get_by_label("Name").fill("bad")
    page.get_by_label("Parameters").fill('{"src-queue": "a", "dest-uri": "amqp://"}')
    page.get_by_role("button", name="Save").click()
    page.locator("dialog").get_by_text('Key "src-uri" not found in bad').wait_for()
    page.get_by_role("button", name="Cancel").click()


def test_messages_of_a_queue_are_moved(open_page: Open, trio: Cluster) -> None:
    fill(trio, 0, "move me", 15)
    page = open_page("queues/%2F/move%20me")
    page.get_by_role("button", name="Move messages …").click()
    page.get_by_label("To queue").fill("moved here")
    page.get_by_role("button", name="Move", exact=True).click()
    toasted(page, "Messages of move me are being moved")
    until(lambda: count(trio, "move me") == 0, "the queue to be empty")
    page.get_by_text("No shovels").wait_for()
    assert count(trio, "moved here") == 15
