"""Journals for tests of jobs, without the nodes that would write them."""

from __future__ import annotations

import json
from typing import Any

BEGIN_MS = 1_794_747_600_000  # 2026-11-15 13:00:00 UTC


def event(kind: str, queue: str = "q", first: int = 0, last: int = 0, who: str = "", **detail: Any) -> list[Any]:
    """`id` and `epoch` are 1, unless something else is said."""
    count = detail.pop("count", last - first + 1 if last else 0)
    about = {"id": 1, "epoch": 1, **detail} if queue else detail
    return [kind, "/" if queue else "", queue, first, last, count, who, about]


class Journals:
    """Messages of several nodes, in the order in which they are told."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, bytes]] = []

    def tell(self, seconds: float, *events: list[Any], node: str = "n1", run: str = "r") -> None:
        body = {"node": node, "run": run, "ms": BEGIN_MS + round(seconds * 1000), "events": list(events)}
        self.rows.append((len(self.rows), json.dumps(body).encode()))

    def events(self, spark: Any) -> Any:
        from pyspark_leveret.jobs import journal

        return journal.events(spark.createDataFrame(self.rows, "offset bigint, body binary"))
