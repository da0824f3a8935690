"""Two nodes and a witness, as the page and the API show them."""

from __future__ import annotations

import base64
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.members import Cluster, Member
from tests.support.servers import until
from tests.system.mirrors.rings import declare, list_copies, mirror
from tests.system.mirrors.test_witness import NAME, Witness
from tests.system.page.browser import Browser
from tests.system.page.conftest import CONFIG


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path, f"{CONFIG}\nnet_ticktime = 2", size=2)
    try:
        yield cluster.start()
    finally:
        cluster.end()


@pytest.fixture
def witness(pair: Cluster, tmp_path: Path) -> Iterator[Witness]:
    witness = Witness(tmp_path / "witness", pair[0].cluster_port)
    try:
        witness.start()
        yield witness
    finally:
        witness.end()


def ask(node: Member, path: str) -> Any:
    word = base64.b64encode(b"guest:guest").decode()
    url = f"http://127.0.0.1:{node.management_port}/api/{path}"
    with urllib.request.urlopen(urllib.request.Request(url, headers={"Authorization": f"Basic {word}"})) as answer:
        return json.load(answer)


def test_the_api_tells_it_apart(pair: Cluster, witness: Witness) -> None:
    row = {"name": NAME, "type": "witness", "running": True, "voter": True, "partitions": []}
    until(lambda: all(ask(node, "nodes")[-1] == row for node in pair), "it is listed last")
    for node in pair:
        assert [one["type"] for one in ask(node, "nodes")] == ["disc", "disc", "witness"]
        assert ask(node, f"nodes/{NAME}") == row
        assert ask(node, "overview")["witnesses"] == [row]
    mirror(pair[0], "^m", **{"ha-sync-mode": "automatic"})
    for number in range(4):
        declare(pair[0], f"m{number}")
    pair[0].control("rebalance")
    copies = list_copies(pair[0]).values()
    assert {name for one in copies for name in (one.master, *one.mirrors)} == {node.name for node in pair}
    witness.end()
    until(lambda: ask(pair[0], "nodes")[-1] == {**row, "running": False}, "it is missing")


def test_the_page_shows_it(browser: Browser, pair: Cluster, witness: Witness, tmp_path: Path) -> None:
    browser.errors.clear()
    page = browser.page()
    browser.log_in(page, f"http://127.0.0.1:{pair[0].management_port}/#/cluster")
    card = page.locator(f'.node[data-node="{NAME}"]')
    card.get_by_text("witness", exact=True).wait_for()
    card.get_by_text("running").wait_for()
    assert card.locator("dl, meter, .meter").count() == 0
    assert page.locator(".node.witness").count() == 1 and page.locator(".node").count() == 3
    page.locator(".node-facts").nth(1).wait_for()
    page.screenshot(path=str(tmp_path / "cluster.png"))
    page.goto(f"http://127.0.0.1:{pair[0].management_port}/#/overview")
    row = page.get_by_role("region", name="Nodes").get_by_role("row").filter(has_text="witness")
    row.wait_for()
    assert "NaN" not in row.inner_text() and "undefined" not in row.inner_text()
    page.screenshot(path=str(tmp_path / "overview.png"))
    witness.end()
    row.get_by_text("down").wait_for()
    page.get_by_text("Witness down:").wait_for()
    page.context.close()
    assert browser.errors == []
