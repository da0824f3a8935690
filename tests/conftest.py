"""Settings and fixtures of all tests."""

from __future__ import annotations

import gc
import re
from collections.abc import Generator

import hypothesis
import pytest

from tests.support.processes.order import Item, shared_out

# How long an example takes says what else runs on the machine, and nothing about it.
hypothesis.settings.register_profile("leveret", deadline=None)
hypothesis.settings.load_profile("leveret")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Spares the collector all modules and tests, of which nothing ever is garbage: it would look at a million objects
    again and again, while they are loaded and in each test that makes many."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        gc.set_threshold(20_000, 20, 50)  # As in a node.


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    processes: int = getattr(config, "workerinput", {}).get("workercount", 1)
    if processes > 1:
        tests = [Item(item.nodeid.partition("::")[0], item.get_closest_marker("spark") is not None) for item in items]
        items[:] = [items[place] for place in shared_out(tests, processes)]


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """For a queue or an exchange: no other test has it."""
    return re.sub(r"\W+", "-", request.node.nodeid.partition("::")[2])[-100:]
