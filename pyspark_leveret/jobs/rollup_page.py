"""Shows the figures of a rollup as one HTML file: rates and times of the last day, and the busiest queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark_leveret.jobs import report
from pyspark_leveret.jobs.support.charts import Line, Mark, chart

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

DAY_S: Final = 24 * 3600
MINUTE_MS: Final = 60_000
RATES: Final = ("published", "delivered", "acked")
TIMES: Final = {"confirm": "published to confirmed", "deliver": "published to delivered", "ack": "delivered to acked"}
COUNTS: Final = ("published", "confirmed", "delivered", "acked", "requeued", "rejected", "expired", "dropped",
                 "dead_lettered", "refused")  # fmt: skip


def page(figures: DataFrame) -> str:
    """Draws the last day of the table that a rollup writes."""
    from pyspark.sql import functions as f

    [end] = figures.agg(f.max("minute")).collect()
    second = f.unix_seconds("minute")
    last = figures.filter(second > f.unix_seconds(f.lit(end[0])) - DAY_S) if end[0] is not None else figures
    sums = [f.sum(name).alias(name) for name in COUNTS]
    slowest = [f.max(f"{name}_p99_ms").alias(name) for name in TIMES]
    lacking = f.array_distinct(f.flatten(f.collect_list("incomplete"))).alias("incomplete")
    minutes = last.groupBy((second * 1000).alias("ms")).agg(*sums, *slowest, lacking).orderBy("ms").collect()
    queues = last.groupBy("vhost", "queue").agg(*sums, *slowest).orderBy(f.desc("published"), "queue")
    return _html(minutes, queues.limit(report.ROWS).collect())


def _html(minutes: list[Row], queues: list[Row]) -> str:
    if not minutes:
        parts = ["<h1>Figures of queues</h1>", '<p class="dim">No journal tells of anything yet.</p>']
    else:
        begin, end = minutes[0].ms, minutes[-1].ms + MINUTE_MS
        marks = [
            Mark(row.ms, str(number), f"{', '.join(row.incomplete)} killed: counts of this minute are incomplete")
            for number, row in enumerate((row for row in minutes if row.incomplete), 1)
        ]
        known = {row.ms: row for row in minutes}
        axis = range(begin, end, MINUTE_MS)
        rates = [Line(name, [(ms, known[ms][name] / 60 if ms in known else 0.0) for ms in axis]) for name in RATES]
        times = [Line(text, [(ms, known[ms][name] if ms in known else None) for ms in axis])
                 for name, text in TIMES.items()]  # fmt: skip
        listed = [(mark.number, report.moment(mark.at_ms), mark.text) for mark in marks]
        shown = [name for name in COUNTS if name in RATES or any(row[name] for row in queues)]
        unit = "milliseconds, 99th percentile of the slowest queue"
        parts = [
            "<h1>Figures of queues</h1>",
            f'<p class="dim">By the minute, from {report.day(begin)} to {report.day(end)}.</p>',
            "<h2>Throughput</h2>",
            chart("Messages a second over time", "messages a second, all queues", rates, marks, begin, end),
            "<h2>How long it took</h2>",
            chart("Milliseconds over time", unit, times, marks, begin, end),
            report.table(("#", "when", "what"), listed),
            "<h2>Queues</h2>",
            report.table(
                ("vhost", "queue", *(name.replace("_", "-") for name in shown), "ack p99, ms"),
                [(row.vhost, row.queue, *(row[name] for name in shown), _whole(row.ack)) for row in queues],
            ),
        ]
    return report.document("Leveret figures", parts)


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
