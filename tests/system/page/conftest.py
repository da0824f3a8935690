"""A cluster of three, and a browser to look at it with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.members import Cluster, Member
from tests.system.clusters.conftest import pytest_runtest_makereport
from tests.system.page.browser import Browser, missing

__all__ = ["pytest_runtest_makereport"]

CONFIG = (
    "management.tcp.port = 0\nmanagement.tcp.ip = 127.0.0.1\n"
    "mqtt.listeners.tcp.1 = 127.0.0.1:0\nweb_mqtt.tcp.listener = 127.0.0.1:0\nstomp.listeners.tcp.1 = 127.0.0.1:0"
)

Open = Callable[..., Any]


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    why = missing()
    if why is not None:
        pytest.skip(why)
    browser = Browser()
    try:
        yield browser.start()
    finally:
        browser.stop()


@pytest.fixture(scope="package")
def fragile(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Named so that the logs of its nodes are shown if a test fails. Nobody starts it who has no browser."""
    cluster = Cluster(tmp_path_factory.mktemp("page"), CONFIG)
    try:
        yield cluster.start()
    finally:
        cluster.end()


@pytest.fixture
def trio(fragile: Cluster) -> Cluster:
    if any(not node.is_running for node in fragile):
        fragile.start()
    return fragile


@pytest.fixture
def open_page(browser: Browser, trio: Cluster) -> Iterator[Open]:
    """Log in at a node and open a part of the page: `open_page("queues")`."""
    pages: list[Any] = []
    browser.errors.clear()

    def open_one(where: str = "overview", at: Member = trio[0], **options: Any) -> Any:
        page = browser.page(**options)
        pages.append(page)
        browser.log_in(page, f"http://127.0.0.1:{at.management_port}/#/{where}")
        return page

    yield open_one
    for page in pages:
        page.context.close()
    assert browser.errors == []


@pytest.fixture
def page(open_page: Open) -> Iterator[Any]:
    """The overview. Whatever names tests give: no script in one of them may run."""
    page = open_page()
    yield page
    assert page.evaluate("window.harmed") is None
