"""`leveret pipeline rollup`: figures for each queue and minute, from the journals.

As a function it makes one DataFrame of another. As a job it continues where it was, and adds to a table:

    OUT/date=2026-11-15/hour=14/…        the rows, by hour
    OUT/_events/date=…/hour=…/batch=…    recent events: later ones refer to them
    OUT/_checkpoint                      how far the journals were read
    OUT/_report.html                     the last day, to look at

Each batch first writes its events to folders of its own (as an archive does, see `lake`); then the hours of these
events are computed again from all events that are there. So it does not matter in how many batches the events of an
hour came, in which order the journals of the nodes were read, or whether a batch runs twice. Events are kept for
`KEEP_S` longer than the time in which earlier events are looked up (`--lookback`), by the clock of the latest event.
Events of a node that was away for longer belong to hours whose other events are gone, and are ignored.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from pyspark_leveret.jobs import journal, lake, rollup_page
from pyspark_leveret.jobs.analysis import journal_facts, latency
from pyspark_leveret.jobs.support import job_status
from pyspark_leveret.jobs.support.common import access_of, adapt, follow, say, seconds
from pyspark_leveret.jobs.support.hadoop_files import Files
from pyspark_leveret.jobs.support.signals import GOES_ON, if_stopped

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

DESCRIPTION: Final = """\
Computes figures for each queue and minute, from the journals of all nodes, as Parquet: how many messages were
published, confirmed, delivered, acknowledged, requeued, expired, dropped, dead-lettered and why; rates; and the time
from published to confirmed and to delivered, and from delivered to acknowledged. It continues where it stopped.
"""

EXAMPLES: Final = """\
examples:
  leveretctl set_policy journal '.*' '{"journal": "full"}'
                                     first enable the journals, without which there are no figures
  leveret pipeline rollup --out /data/figures
                                     adds what happened since the last run, for cron
  leveret pipeline rollup --out /data/figures --every 1h
                                     runs every hour, until it is stopped
  leveret pipeline rollup --out /data/november --lake /data/journals
                                     makes the whole table from archived journals

then, with Spark or any other program that reads Parquet:
  select minute, queue, published, deliver_p99_ms, reasons from parquet.`/data/figures` order by 1, 2
"""

PAGE: Final = "_report.html"  # Spark takes files with such names for no part of the table.
MINUTE_S: Final = 60
HOUR_S: Final = 3600
KEEP_S: Final = 24 * HOUR_S
LOOKBACK_S: Final = HOUR_S
COUNTED: Final = (
    "published", "confirmed", "delivered", "acked", "requeued", "rejected", "expired", "dropped", "dead-lettered",
    "refused",
)  # fmt: skip
RATED: Final = ("published", "delivered", "acked")
TIMED: Final = {"confirm": "confirmed", "deliver": "delivered", "ack": "acked"}
KEYS: Final = ("minute", "vhost", "queue")
_EVENTS: Final = (
    "node string, time timestamp, kind string, vhost string, queue string, first bigint, last bigint, count bigint, "
    "who string, id bigint, epoch bigint, reason string, what string, run string"
)
_OF_NODES: Final = "queue = '' and kind in ('started', 'stopped')"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", metavar="PATH", required=True, help="folder of the table")
    parser.add_argument("--continuous", action="store_true", help="run until it is stopped")
    parser.add_argument("--every", metavar="TIME", type=seconds, help="run every 30s, 15m, 1h …, until it is stopped")
    parser.add_argument("--lookback", metavar="SECONDS", type=seconds, default=LOOKBACK_S,
                        help="how far back to look for the publish of a message (3600)")  # fmt: skip
    parser.add_argument("--lake", metavar="PATH", help="read archived journals, and make the whole table")


def before(parsed: argparse.Namespace) -> bool:
    """Checks that there is a journal, before Spark is started. Returns whether there is little to do. Raises
    LeveretError."""
    if parsed.lake is not None:
        return False
    found = journal_facts.find_journals(journal_facts.access_from({**access_of(parsed), "vhost": "/"}))
    return found.is_short and parsed.every is None and not parsed.continuous


def run(spark: SparkSession, parsed: argparse.Namespace) -> int:
    out, is_continuous = parsed.out.rstrip("/"), parsed.continuous or parsed.every is not None
    if parsed.lake is not None:
        if is_continuous:
            say("leveret pipeline rollup: an archive is read once: leave --continuous and --every, or --lake out")
            return 64
        events = archived(spark, parsed.lake)
        lake.replace_folders(by_hour(rollup(events), "minute"), out, ("date", "hour"))
        write_page(spark, out)
    else:
        job_status.found(f"to {out}", report=out)
        if_stopped(GOES_ON, endless=is_continuous)
        every = parsed.every or MINUTE_S if is_continuous else None
        say("reading the journals")
        query = follow_journals(spark, access_of(parsed), out, every, parsed.lookback)
        follow(query)
    if is_continuous or not Files(spark, out).exists(f"{out}/{PAGE}"):
        say(f"figures are in {out}")
        job_status.found(f"figures are in {out}", report=out)
    else:
        say(f"figures are in {out}; report: {out}/{PAGE}")
        job_status.found(f"figures are in {out}", report=f"{out}/{PAGE}")
    return 0


def write_page(spark: SparkSession, out: str) -> None:
    """Writes the page of the last day, in place of the one before."""
    files = Files(spark, out)
    days = [entry.path for entry in files.entries(out) if entry.name.startswith("date=")][-2:]
    if not days:
        return
    text = rollup_page.page(spark.read.option("basePath", out).parquet(*days))
    files.delete(f"{out}/{PAGE}")
    files.create(f"{out}/{PAGE}", text)


# -- Figures ---------------------------------------------------------------------------------------------------------


def archived(spark: SparkSession, path: str) -> DataFrame:
    """Reads the events of archived journals."""
    from pyspark.sql import functions as f

    return journal.events(lake.read(spark, path).filter(f.col("queue").rlike(f"^{journal.PATTERN}$")))


def rollup(events: DataFrame) -> DataFrame:
    """Returns a row for each minute and queue with events."""
    known = counts(events).join(latencies(events), list(KEYS), "full")
    return known.join(cut_short(events), list(KEYS), "left").select(*KEYS, *_columns())


def cut_short(events: DataFrame) -> DataFrame:
    """Returns for each minute and queue the nodes that were killed then (`incomplete`): what they had not yet written
    into their journals, up to a second's events, is not counted."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    runs = (
        events.filter("run is not null")
        .groupBy("node", "run")
        .agg(
            f.min("time").alias("begun"),
            f.max("time").alias("ended"),
            f.max(f.expr("queue = '' and kind = 'stopped'")).alias("in_order"),
        )
    )
    following = f.lead("begun").over(Window.partitionBy("node").orderBy("begun"))
    killed = runs.withColumn("following", following).filter("following is not null and not in_order")
    minute = f.date_trunc("minute", "time")
    last = events.filter("queue <> ''").join(f.broadcast(killed.select("node", "run", "ended")), ["node", "run"])
    return (
        last.filter(minute == f.date_trunc("minute", "ended"))
        .groupBy(minute.alias("minute"), "vhost", "queue")
        .agg(f.array_sort(f.collect_set("node")).alias("incomplete"))
    )


def counts(events: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    told = events.filter(f.col("kind").isin(*COUNTED)).filter(f"kind <> 'delivered' or who not like '{latency.MOVING}'")
    cause = f.when(f.col("kind").isin("rejected", "expired", "dropped", "dead-lettered"), f.col("kind"))
    name = f.when(f.col("reason").isNull(), cause).otherwise(f.concat_ws(": ", cause, "reason"))
    by_reason = (
        told.withColumns({"minute": f.date_trunc("minute", "time"), "cause": f.when(cause.isNotNull(), name)})
        .groupBy(*KEYS, "kind", "cause")
        .agg(f.sum("count").alias("count"))
    )
    sums = [f.sum(f.when(f.col("kind") == kind, f.col("count")).otherwise(0)).alias(_name(kind)) for kind in COUNTED]
    reasons = f.collect_list(f.when(f.col("cause").isNotNull(), f.struct("cause", "count")))
    return by_reason.groupBy(*KEYS).agg(*sums, f.map_from_entries(reasons).alias("reasons"))


def latencies(events: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    found = latency.histogram(events, MINUTE_S).withColumn("minute", f.timestamp_seconds("slot"))
    measures = []
    for name, kind in TIMED.items():
        for percent in (50, 95, 99):
            value = f"percentile(ms, 0.{percent}, count) filter (where kind = '{kind}')"
            measures.append(f.expr(value).alias(f"{name}_p{percent}_ms"))
        measures.append(f.expr(f"max(ms) filter (where kind = '{kind}')").cast("double").alias(f"{name}_max_ms"))
    return found.filter(f.col("kind").isin(*TIMED.values())).groupBy(*KEYS).agg(*measures)


def _columns() -> list[Column]:
    from pyspark.sql import functions as f

    numbers = [f.coalesce(_name(kind), f.lit(0)).alias(_name(kind)) for kind in COUNTED]
    rates = [(f.coalesce(kind, f.lit(0)) / MINUTE_S).alias(f"{kind}_rate") for kind in RATED]
    times = [f.col(f"{name}_{which}_ms") for name in TIMED for which in ("p50", "p95", "p99", "max")]
    return [*numbers, *rates, *times, f.col("reasons"), f.col("incomplete")]


def _name(kind: str) -> str:
    return kind.replace("-", "_")


def by_hour(rows: DataFrame, column: str) -> DataFrame:
    """Adds `date` and `hour`, in UTC whatever the session's zone is."""
    from pyspark.sql import functions as f

    hours = f.floor(f.unix_seconds(column) / HOUR_S)
    day = f.date_add(f.lit(datetime(1970, 1, 1).date()), f.floor(hours / 24).cast("int"))
    return rows.withColumns({"date": day, "hour": (hours % 24).cast("int")})


# -- The job -----------------------------------------------------------------------------------------------------------


def follow_journals(
    spark: SparkSession,
    options: Mapping[str, str],
    out: str,
    every_s: int | None = None,
    lookback_s: int = LOOKBACK_S,
) -> StreamingQuery:
    """Starts a query that updates the table: until all is read (`every_s` is None), or for ever."""

    def update(events: DataFrame, batch: int) -> None:
        take_in(events, out, lake.batch_name(lake.query_id(events), batch), lookback_s)

    # Journals are bounded: a job that comes too late continues with a gap.
    given = {"failOnDataLoss": "false", **options}
    writer = journal.read(spark, given, streaming=True).writeStream.foreachBatch(update)
    writer = writer.option("checkpointLocation", f"{out}/_checkpoint")
    writer = (
        writer.trigger(availableNow=True) if every_s is None else writer.trigger(processingTime=f"{every_s} seconds")
    )
    return writer.start()


def take_in(events: DataFrame, out: str, batch: str, lookback_s: int) -> None:
    """Writes the events of a batch, and computes their hours again."""
    from pyspark.sql import functions as f

    adapt(events)
    spark, store = events.sparkSession, f"{out}/_events"
    names = [name.split()[0] for name in _EVENTS.split(", ")]
    kept = events.filter(f.col("kind").isin(*COUNTED) | f.expr(_OF_NODES)).select(*names)
    lake.replace_folders(by_hour(kept, "time").withColumn("batch", f.lit(batch)), store, ("date", "hour", "batch"))
    files = Files(spark, out)
    hours = _hours(files, store)
    changed = [hour for hour, folder in hours.items() if files.exists(f"{folder}/batch={batch}")]
    if not changed:
        return
    newest = max(hours)
    # From the files: the journals would be read once more.
    written = spark.read.schema(_EVENTS).parquet(*(f"{hours[hour]}/batch={batch}" for hour in changed))
    if not written.filter("queue = '' and kind = 'started'").isEmpty():  # The end of its last run may be long ago.
        stored = spark.read.schema(_EVENTS).option("basePath", store).parquet(*hours.values())
        ends = cut_short(stored).select(f.floor(f.unix_seconds("minute") / HOUR_S) * HOUR_S).distinct().collect()
        changed = sorted({*changed, *(row[0] for row in ends if row[0] in hours)})
    useful = [hour for hour in changed if hour > newest - KEEP_S]
    if useful:
        say(f"new events are stored; computing the figures of {len(useful)} hour{'s' if len(useful) > 1 else ''}")
        needed = [folder for hour, folder in hours.items() if hour + HOUR_S > min(useful) - lookback_s]
        # Spark reads folders of several hours as one table only with its base path.
        stored = spark.read.schema(_EVENTS).option("basePath", store).parquet(*needed).select(*names)
        wanted = f.floor(f.unix_seconds("minute") / HOUR_S) * HOUR_S
        made = by_hour(rollup(stored).filter(wanted.isin(*useful)), "minute")
        lake.replace_folders(made, out, ("date", "hour"))
        write_page(spark, out)
        _tell_incomplete(cut_short(stored).filter(wanted.isin(*useful)))
    for hour, folder in hours.items():
        if hour <= newest - KEEP_S - lookback_s:
            files.delete(folder)


def _tell_incomplete(found: DataFrame) -> None:
    from pyspark.sql import functions as f

    rows = found.select("minute", f.explode("incomplete").alias("node")).distinct().orderBy("minute", "node").collect()
    for row in rows:
        say(f"incomplete: {row.node} was killed at {row.minute:%H:%M}, and what it had not told yet is not counted")


def _hours(files: Files, store: str) -> dict[int, str]:
    """Returns the folder of each hour with events, by its beginning in seconds since 1970."""
    found = {}
    for day in files.entries(store):
        for hour in files.entries(day.path) if day.name.startswith("date=") else ():
            if hour.name.startswith("hour="):
                begin = datetime.fromisoformat(day.name[5:]).replace(tzinfo=UTC).timestamp()
                found[int(begin) + int(hour.name[5:]) * HOUR_S] = hour.path
    return found
