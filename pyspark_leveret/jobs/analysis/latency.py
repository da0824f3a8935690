"""Measures how long messages took from one event to another, from journals.

Journals tell of ranges, and a range that was published at once may be delivered in many parts, to several consumers,
and again after a requeue. So ranges are not matched with ranges: for each stretch of a queue's numbers (`STRETCH` of
them) there are arrays with a time for each number, and the events of the stretch are applied in order. The result has
no row for each message either, but a histogram in milliseconds, from which percentiles are exact.

| `kind` | from | to |
|---|---|---|
| confirmed | published | confirmed |
| delivered | published | delivered, for the first time |
| acked | delivered, for the last time before | acked |
| replicated | published | written at the mirror that tells so (`node`) |

Times are those of the commits in which events were written, by the clocks of their nodes. Between nodes a clock that is
ahead makes a time shorter; a time below zero counts as zero. A message whose first event was dropped has no time.

If messages were lost before they were confirmed, and their numbers given again, the later messages count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from pyspark.sql import DataFrame

STRETCH: Final = 1 << 16  # A task holds all events of one: about five a message if they come one by one.
KINDS: Final = ("confirmed", "delivered", "acked", "replicated")
MOVING: Final = "moving to %"  # The receiver when a queue moves to another node: no consumer.
_ROWS: Final = "vhost string, queue string, id bigint, node string, kind string, slot bigint, ms bigint, count bigint"


def histogram(events: DataFrame, slot_s: int) -> DataFrame:
    """Returns vhost, queue, id, node, kind, slot (of the end: the beginning of `slot_s` seconds, in seconds since
    1970), ms, count."""
    from pyspark.sql import functions as f

    told = events.filter(f.col("kind").isin("published", *KINDS) & (f.col("first") > 0)).filter(
        "(kind <> 'replicated' or what = 'published') and (kind <> 'delivered' or who not like '" + MOVING + "')"
    )
    ranges = _cut(
        told.select("vhost", "queue", "id", "epoch", "node", "kind", "first", "last", f.unix_millis("time").alias("ms"))
    )

    def measured(table: pa.Table) -> pa.Table:
        return measure(table, slot_s)

    return ranges.groupBy("id", "stretch").applyInArrow(measured, _ROWS)


def _cut(ranges: DataFrame) -> DataFrame:
    """Cuts ranges into parts that each lie in one `stretch`."""
    from pyspark.sql import functions as f

    numbers = f.sequence(f.floor(f.col("first") / STRETCH), f.floor(f.col("last") / STRETCH))
    begin = f.col("stretch") * STRETCH
    within = {"first": f.greatest("first", begin), "last": f.least("last", begin + STRETCH - 1)}
    return ranges.filter("first <= last").withColumn("stretch", f.explode(numbers)).withColumns(within)


def _order(event: tuple[Any, ...]) -> tuple[int, bool, int]:
    """Returns the place of an event: by epoch and time, and acks after all deliveries. An acknowledged message is
    delivered no more, but times are exact to some milliseconds only, and a fast ack may seem to come before its
    delivery."""
    epoch, ms, kind = event[:3]
    return epoch or 0, kind == "acked", ms


def measure(table: pa.Table, slot_s: int) -> pa.Table:
    """Returns the histogram of the events of one stretch of one queue's numbers."""
    import numpy as np
    import pyarrow as pa

    columns = {name: table.column(name).to_pylist() for name in ("epoch", "ms", "kind", "node", "first", "last")}
    events = sorted(zip(*columns.values(), strict=True), key=_order)
    low = min(columns["first"])
    times = _Times(max(columns["last"]) - low + 1)
    # All publishes first, whatever their times: a mirror's clock may be ahead of the master's.
    for _, ms, kind, _, first, last in events:
        if kind == "published":
            times.published[first - low : last - low + 1] = ms
    counts: dict[tuple[str, str, int, int], int] = {}
    for _, ms, kind, node, first, last in events:
        if kind == "published":
            continue
        since = times.since(kind, ms, slice(first - low, last - low + 1))
        values, numbers = np.unique(np.maximum(ms - since[since >= 0], 0), return_counts=True)
        slot = ms // 1000 // slot_s * slot_s
        for value, number in zip(values.tolist(), numbers.tolist(), strict=True):
            key = (node, kind, slot, value)
            counts[key] = counts.get(key, 0) + number
    rows: dict[str, list[Any]] = {
        name: [table.column(name)[0].as_py()] * len(counts) for name in ("vhost", "queue", "id")
    }
    for at, name in enumerate(("node", "kind", "slot", "ms")):
        rows[name] = [key[at] for key in counts]
    rows["count"] = list(counts.values())
    text, number_ = pa.string(), pa.int64()
    kinds = (text, text, number_, text, text, number_, number_, number_)
    return pa.table([pa.array(values, kind) for values, kind in zip(rows.values(), kinds, strict=True)], list(rows))


class _Times:
    """The times of the last events of each number, in ms; -1: none yet."""

    def __init__(self, count: int) -> None:
        import numpy as np

        self.published = np.full(count, -1, np.int64)
        self.delivered = np.full(count, -1, np.int64)

    def since(self, kind: str, ms: int, where: slice) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Returns for each number when the step began that this event ends; -1 if unknown."""
        import numpy as np

        if kind == "acked":
            return self.delivered[where].copy()
        if kind != "delivered":
            return self.published[where]
        since = np.where(self.delivered[where] < 0, self.published[where], -1)
        self.delivered[where] = ms
        return since
