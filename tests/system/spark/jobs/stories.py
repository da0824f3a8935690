"""Journals as nodes would have written them, for audits of made-up events."""

from __future__ import annotations

import json
from typing import Any

from pyspark_leveret.jobs import audit as job
from pyspark_leveret.jobs import journal
from pyspark_leveret.jobs.analysis import journal_facts
from pyspark_leveret.jobs.audit import Audit, Rules

ONE, TWO = "one@a", "two@b"
WHO = "10.0.0.7:40000 -> 10.0.0.1:5672 (1)"
HIM = "10.0.0.8:40000 -> 10.0.0.2:5672 (1)"
HER = "10.0.0.9:40000 -> 10.0.0.1:5672 (1)"
START_MS = 1_790_000_000_000


class Story:
    """Journals of several nodes, told event by event. A second passes between two messages."""

    def __init__(self) -> None:
        self.ms = START_MS
        self.offsets: dict[str, int] = {}
        self.rows: list[tuple[int, bytearray]] = []
        self.there: list[tuple[str, str, int, str, int, int, int, str, int]] = []

    def tell(self, node: str, *events: list[Any]) -> Story:
        offset = self.offsets.get(node, 0)
        self.offsets[node] = offset + 1
        body = {"node": node, "run": "r", "ms": self.ms, "events": events}
        self.rows.append((offset, bytearray(json.dumps(body).encode())))
        self.ms += 1_000
        return self

    def holds(self, queue: str, first: int, last: int, edge: int, id: int = 7) -> Story:
        for low, high, label in ((first, last, "present"), (edge, edge, "edge")):
            self.there.append(("/", queue, id, "", 1 << 62, low, high, label, 0))
        return self

    def events(self, spark: Any) -> Any:
        return journal.events(spark.createDataFrame(self.rows, "offset bigint, body binary").coalesce(1)).persist()

    def present(self, spark: Any) -> Any:
        kinds = "vhost string, queue string, id bigint, stay string, epoch bigint, first bigint, last bigint"
        there = spark.createDataFrame(self.there, f"{kinds}, label string, ms bigint").coalesce(1).persist()
        return there.select(*journal_facts.COLUMNS)

    def examine(self, spark: Any, rules: Rules | None = None, cluster: str | None = None) -> Audit:
        return job.examine(spark, self.events(spark), self.present(spark), rules or Rules(), cluster=cluster)


def event(
    kind: str, first: int, last: int, who: str = "", queue: str = "q", epoch: int = 1, **detail: Any
) -> list[Any]:
    id = detail.pop("id", 7)
    return [kind, "/", queue, first, last, last - first + 1, who, {"id": id, "epoch": epoch, **detail}]


def came(
    first: int, last: int, epoch: int = 1, said: int | None = None, who: str = WHO, **more: Any
) -> list[list[Any]]:
    """Published and confirmed."""
    own = first if said is None else said
    told = {"said": [own, own + last - first], "epoch": epoch, **more}
    return [event("published", first, last, who, **told), event("confirmed", first, last, who, **told)]
