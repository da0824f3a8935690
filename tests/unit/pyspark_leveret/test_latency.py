"""Times between events of journals."""

from __future__ import annotations

import pyarrow as pa

from pyspark_leveret.jobs.analysis.latency import measure

Event = tuple[int, int, str, int, int]  # epoch, ms, kind, first, last


def measured(*events: Event) -> list[tuple[str, int, int]]:
    """Returns kind, milliseconds and count."""
    columns = dict(zip(("epoch", "ms", "kind", "first", "last"), map(list, zip(*events, strict=True)), strict=True))
    fixed = {"vhost": "/", "queue": "q", "id": 7, "node": "one"}
    table = pa.table({**{name: [value] * len(events) for name, value in fixed.items()}, **columns})
    found = measure(table, 60).to_pydict()
    return sorted(zip(found["kind"], found["ms"], found["count"], strict=True))


def test_an_ack_that_seems_to_come_before_its_delivery_took_no_time() -> None:
    told = measured((1, 1_000, "published", 1, 10), (1, 1_001, "acked", 1, 4), (1, 1_003, "delivered", 1, 10),
                    (1, 1_008, "acked", 5, 10))  # fmt: skip
    assert told == [("acked", 0, 4), ("acked", 5, 6), ("delivered", 3, 10)]


def test_an_ack_counts_from_the_last_delivery_of_its_epoch() -> None:
    told = measured((1, 1_000, "published", 1, 1), (1, 1_010, "delivered", 1, 1), (1, 1_020, "delivered", 1, 1),
                    (1, 1_025, "acked", 1, 1), (2, 1_400, "delivered", 1, 1), (2, 1_407, "acked", 1, 1))  # fmt: skip
    assert told == [("acked", 5, 1), ("acked", 7, 1), ("delivered", 10, 1)]
