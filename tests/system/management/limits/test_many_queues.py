"""With very many queues, whatever is asked, nobody else waits longer than a slice.

What is measured is the processor time that the broker's thread spends between two turns of its loop. The clock on the
wall would also count what other programs of the machine do meanwhile.
"""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import leveret.testing
from leveret.metadata.model.commands import DeclareQueue
from tests.system.management.watching import CONFIG, Watched

QUEUES = 20_000
HELD_S_MAX = 0.02  # A slice of a millisecond, and a step that cannot be cut: a copy of a list, some rows sorted.


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    with leveret.testing.broker(config=CONFIG) as broker:
        watched = Watched(broker)
        watched.get("/api/overview")  # It imports what it needs when it is first asked.
        watched.inside(_declare)
        yield watched


async def _declare(node: Any) -> None:
    """As if the cluster had agreed on them: that takes its time, and is not what is looked at here."""
    home = node.settings.node_name
    for number in range(QUEUES):
        name = f"many.{number * 7919 % QUEUES:05}"
        node.cluster.consensus._apply_command(DeclareQueue("/", name, False, False, False, {}, None, home, None))


class Gaps:
    """How long the loop was held, at most."""

    def __init__(self, watched: Watched) -> None:
        self.watched = watched
        self.longest_s = 0.0
        self.is_over = threading.Event()

    def __enter__(self) -> Gaps:
        async def begin(node: Any) -> None:
            self.task = asyncio.get_running_loop().create_task(self._run())

        gc.collect()
        gc.disable()  # What the collector does in a test's process is not the broker's doing.
        self.watched.inside(begin)
        return self

    def __exit__(self, *_: object) -> None:
        self.is_over.set()

        async def end(node: Any) -> None:
            await self.task

        self.watched.inside(end)
        gc.enable()

    async def _run(self) -> None:
        before = time.thread_time()
        while not self.is_over.is_set():
            await asyncio.sleep(0)
            now = time.thread_time()
            self.longest_s = max(self.longest_s, now - before)
            before = now


@pytest.mark.parametrize(
    "path, rows",
    [
        ("/api/queues?page=37&page_size=500&columns=name", 500),
        ("/api/queues?page=1&page_size=500", 500),
        ("/api/queues?page=1&page_size=100&name=^many.*7$&use_regex=true", 100),
        ("/api/queues?page=1&page_size=100&sort=messages&sort_reverse=true", 100),
        ("/api/queues?page=1&page_size=100&sort=message_stats.publish_details.rate", 100),
        ("/api/queues?page=1&page_size=100&sort=policy", 100),
        ("/api/queues?disable_stats=true&enable_queue_totals=true", QUEUES),
        ("/api/bindings", QUEUES),
    ],
)
def test_lists(watched: Watched, path: str, rows: int) -> None:
    with Gaps(watched) as gaps:
        status, body = watched.raw(path)
    assert status == 200
    answer = json.loads(body)
    assert len(answer if isinstance(answer, list) else answer["items"]) == rows
    assert gaps.longest_s < HELD_S_MAX


def test_order_and_counts(watched: Watched) -> None:
    page = watched.get("/api/queues?page=3&page_size=500&columns=name")
    assert [row["name"] for row in page["items"]] == [f"many.{number:05}" for number in range(1_000, 1_500)]
    assert (page["total_count"], page["page_count"]) == (QUEUES, QUEUES // 500)
    assert watched.get("/api/overview")["object_totals"]["queues"] == QUEUES


def test_sampling(watched: Watched) -> None:
    with Gaps(watched) as gaps:
        watched.sample()
        watched.sample()
    assert gaps.longest_s < HELD_S_MAX


@pytest.mark.parametrize(
    "command, columns, rows",
    [
        ("list_queues", ["name", "message_bytes"], 1_000),
        ("list_bindings", ["source_name", "destination_name", "routing_key"], 1_000),
        ("list_leases", ["name"], 0),
    ],
)
def test_what_leveretctl_lists(watched: Watched, command: str, columns: list[str], rows: int) -> None:
    after, cursors = None, []
    with Gaps(watched) as gaps:
        for _ in range(3):
            page = watched.broker.admin.call(command, vhost="/", columns=columns, after=after)
            assert len(page["rows"]) == rows
            after = page["next"]
            cursors.append(after)
            if after is None:
                break
    assert len(set(map(str, cursors))) == len(cursors)
    assert gaps.longest_s < HELD_S_MAX


@pytest.mark.parametrize("path", ["/metrics", "/metrics/detailed?family=queue_coarse_metrics"])
def test_metrics(watched: Watched, path: str) -> None:
    with Gaps(watched) as gaps:
        text = watched.metrics(path)
    assert ("rabbitmq_queues 20000" in text) == (path == "/metrics")
    assert text.count('rabbitmq_detailed_queue_messages{vhost="/",queue="many.') in (0, QUEUES)
    assert gaps.longest_s < HELD_S_MAX
