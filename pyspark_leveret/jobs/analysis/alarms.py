"""The audit as a stream: raises alarms for messages that are late or missing while a cluster is at work.

A message that was confirmed and has not left its queue is *open*. Each batch of journal events is laid over the ranges
that were open before (`range_sweep.sweep`); the rest is open now, and is written as Parquet to the checkpoint's folder,
one state for each batch. A batch that runs again, after a crash, begins with the same state and writes the same one. So
there is no state in memory, the state is as large as the unacknowledged messages, and Spark's checkpoint says where to
continue.

| alarm | |
|---|---|
| late | confirmed longer ago than `late_s`, and ready or unacknowledged |
| missing | confirmed, late, and in two batches in a row neither settled in a journal nor in its queue |
| missing | confirmed, and its number was given to another message |

Each message raises one alarm at most. An idle cluster writes no events, while messages become late: a clock (Spark's
`rate` source) makes batches when journals do not.

This is an alarm, not a verdict. Journals of different nodes are read at different times, so related events may be
batches apart; a queue without mirrors that moves begins with new numbers, and is not followed. The batch job (`audit`)
sees everything.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from pyspark_leveret.jobs import journal
from pyspark_leveret.jobs.analysis import journal_facts
from pyspark_leveret.jobs.analysis.range_sweep import cut, sweep
from pyspark_leveret.jobs.support import job_status
from pyspark_leveret.jobs.support.common import adapt, follow, say
from pyspark_leveret.jobs.support.signals import BEGINS_ANEW, GOES_ON, if_stopped

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pyspark_leveret.jobs.audit import Rules

KEYS: Final = ("vhost", "queue", "id")
STATE: Final = (
    "vhost string, queue string, id bigint, first bigint, last bigint, ms bigint, epoch bigint, alarmed int, "
    "suspect int"
)
PRESENT: Final = "vhost string, queue string, id bigint, first bigint, last bigint, label string"
CUTS: Final = "id bigint, from_epoch bigint, through bigint"
ALARMS: Final = ("at", "alarm", "vhost", "queue", "first", "last", "count", "since")
TOLD_MAX: Final = 100  # Lines for each batch; the folder has all alarms.
# In a streaming query a shuffle has as many tasks as this setting says, however few rows there are, and a batch has a
# dozen shuffles: with Spark's default a batch would take longer on a small machine than the trigger interval.
SHUFFLE_TASKS: Final = "spark.sql.shuffle.partitions"
DEFAULT, FEW = "200", "8"
Alarm = dict[str, Any]


class Alarms:
    """Handles the batches of the query. `look` reads the messages of queues, as `journal_facts.read_queues` does."""

    def __init__(
        self,
        spark: SparkSession,
        rules: Rules,
        folder: str,
        out: str | None,
        look: Callable[[Mapping[str, Mapping[int, str]]], DataFrame],
        tell: Callable[[Alarm], None],
    ) -> None:
        self.spark = spark
        self.rules = rules
        self.folder = folder
        self.out = out
        self.look = look
        self.tell = tell

    def batch(self, rows: DataFrame, number: int) -> None:
        from pyspark.sql import functions as f

        now_ms = int(time.time() * 1000)
        adapt(rows)
        events = journal_facts.filtered(rows.filter("kind is not null"), self.rules.vhost, self.rules.queues).persist()
        before, cuts = self._state(number - 1)
        cuts = cuts.unionByName(_cuts(events)).distinct()
        known = before.selectExpr(*KEYS, "first", "last", "'open' label", "ms", "epoch", "alarmed", "suspect")
        came = _came(events).selectExpr(*KEYS, "first", "last", "label", "ms", "epoch", "0 alarmed", "0 suspect")
        whole, lost = _without_cut(known.unionByName(came), cuts)
        opened = _laid(whole, now_ms - int(self.rules.late_s * 1000)).persist()
        late = opened.filter("is_late and alarmed = 0")
        here = self._present(late)
        marked = _laid_upon(opened, here).persist()
        alarms = _alarms(marked, now_ms).unionByName(_cut_alarms(lost, now_ms))
        found = alarms.withColumn("batch", f.lit(number)).persist()
        # Alarms before the state: if the process died between the two, they would never be raised.
        self._raise(found, number)
        state = marked.selectExpr(
            *KEYS, "first", "last", "ms", "epoch",
            "case when alarm is null then alarmed else 1 end alarmed",
            "case when is_late and alarmed = 0 and alarm is null then 1 else 0 end suspect",
        )  # fmt: skip
        state.coalesce(4).write.mode("overwrite").parquet(self._path("open", number))
        cuts.coalesce(1).write.mode("overwrite").parquet(self._path("cuts", number))
        for old in (events, opened, marked, found):
            old.unpersist()
        for kind in ("open", "cuts"):  # The state before is needed if this batch runs again.
            shutil.rmtree(self._path(kind, number - 2), ignore_errors=True)

    def _path(self, kind: str, number: int) -> str:
        return os.path.join(self.folder, "state", f"{kind}-{number}")

    def _state(self, number: int) -> tuple[DataFrame, DataFrame]:
        found = [self._path(kind, number) for kind in ("open", "cuts")]
        if number < 0:
            return self.spark.createDataFrame([], STATE), self.spark.createDataFrame([], CUTS)
        return self.spark.read.schema(STATE).parquet(found[0]), self.spark.read.schema(CUTS).parquet(found[1])

    def _present(self, late: DataFrame) -> DataFrame:
        """Reads the messages of the queues that have late ones."""
        wanted: dict[str, dict[int, str]] = {}
        for row in late.select(*KEYS).distinct().collect():
            wanted.setdefault(row.vhost, {})[row.id] = row.queue
        if not wanted:
            return self.spark.createDataFrame([], PRESENT)
        return self.look(wanted)

    def _raise(self, alarms: DataFrame, number: int) -> None:
        told = alarms.orderBy("since").take(TOLD_MAX + 1)
        for row in told[:TOLD_MAX]:
            self.tell({name: row[name] for name in ALARMS})
        if told:
            job_status.show()
        if len(told) > TOLD_MAX:
            say(f"more than {TOLD_MAX} alarms in batch {number}")
        if self.out is not None and told:
            alarms.coalesce(1).write.mode("overwrite").parquet(os.path.join(self.out, f"batch={number}"))


def _came(events: DataFrame) -> DataFrame:
    """Returns the ranges that the events open and close."""
    from pyspark.sql import functions as f

    told = journal_facts.told(events.withColumn("stay", f.lit("")))
    kinds = {"confirmed": "open", "acked": "gone", "left": "gone", "settled": "gone", "moved": "gone"}
    kinds |= {"deleted": "gone", "untold": "gone"}
    label = f.lit(None).cast("string")
    for known, meant in kinds.items():
        label = f.when(f.col("label") == known, meant).otherwise(label)
    return told.withColumn("label", label).filter("label is not null")


def _cuts(events: DataFrame) -> DataFrame:
    begun = events.filter("kind in ('promoted', 'started') and queue != '' and epoch > 1")
    return begun.selectExpr("id", "epoch from_epoch", "last through")


def _without_cut(ranges: DataFrame, cuts: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Removes messages that were lost in a cut from ranges. Returns the rest, and the open ones among the lost."""
    from pyspark.sql import functions as f

    known = cuts.groupBy("id").agg(f.collect_list(f.struct("from_epoch", "through")).alias("cuts"))
    after = f.filter("cuts", lambda one: one["from_epoch"] > f.col("epoch"))
    through = f.array_min(f.transform(after, lambda one: one["through"]))
    joined = ranges.join(f.broadcast(known), "id", "left").withColumn("through", through).drop("cuts")
    kept = joined.withColumn("last", f.least("last", "through")).drop("through").filter("first <= last")
    lost = joined.filter("label = 'open' and last > through and alarmed = 0")
    lost = lost.withColumn("first", f.greatest("first", f.col("through") + 1)).drop("through")
    return kept, lost


def _laid(ranges: DataFrame, late_before_ms: int) -> DataFrame:
    """Returns the ranges that are open now. Earlier alarms and suspicions are carried along like the time."""
    from pyspark.sql import functions as f

    carried = ("open", "alarmed", "suspect", "epoch")
    parts = ranges.select(*KEYS, "first", "last", "label", "ms")
    for name in ("alarmed", "suspect", "epoch"):
        more = ranges.filter("label = 'open'").withColumns({"label": f.lit(name), "ms": f.col(name).cast("bigint")})
        parts = parts.unionByName(more.select(*parts.columns))
    laid = sweep(parts, KEYS, ("open", "gone", "alarmed", "suspect", "epoch"), carried)
    return laid.filter("open > 0 and gone = 0").select(
        *KEYS, "first", "last",
        f.col("open_ms").cast("bigint").alias("ms"), f.col("epoch_ms").cast("bigint").alias("epoch"),
        f.ceil("alarmed_ms").cast("int").alias("alarmed"), f.floor("suspect_ms").cast("int").alias("suspect"),
        (f.col("open_ms") < late_before_ms).alias("is_late"),
    )  # fmt: skip


def _laid_upon(opened: DataFrame, present: DataFrame) -> DataFrame:
    """Splits open ranges where some of their messages are in the queue, and adds the alarm that is due."""
    from pyspark.sql import functions as f

    there = present.filter("label = 'present'").select(*KEYS, f.col("first").alias("low"), f.col("last").alias("high"))
    edges = opened.select(*KEYS, "first", "last").withColumns({"label": f.lit("open"), "ms": f.lit(0)})
    marks = there.selectExpr(*KEYS, "low first", "high last", "'there' label", "0 ms")
    pieces = sweep(edges.unionByName(marks), KEYS, ("open", "there")).filter("open > 0")
    # Each piece lies within one stretch, and within one of the original ranges.
    both = cut(opened).alias("o").join(cut(pieces).alias("p"), [*KEYS, "stretch"])
    inside = both.filter("p.first >= o.first and p.last <= o.last")
    alarm = f.when(
        f.col("is_late") & (f.col("alarmed") == 0),
        f.when(f.col("there") > 0, "late").when(f.col("suspect") > 0, "missing"),
    )
    return inside.select(
        *KEYS, f.col("p.first").alias("first"), f.col("p.last").alias("last"), "o.ms", "epoch", "alarmed", "suspect",
        "is_late", alarm.alias("alarm"),
    )  # fmt: skip


def _alarms(marked: DataFrame, now_ms: int) -> DataFrame:
    return _told(marked.filter("alarm is not null"), now_ms)


def _cut_alarms(lost: DataFrame, now_ms: int) -> DataFrame:
    from pyspark.sql import functions as f

    return _told(lost.withColumn("alarm", f.lit("missing")), now_ms)


def _told(ranges: DataFrame, now_ms: int) -> DataFrame:
    """Joins neighbouring ranges to one alarm, with the time of the oldest."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    order = Window.partitionBy("alarm", *KEYS).orderBy("first")
    begins = f.coalesce((f.col("first") > f.lag("last").over(order) + 1).cast("int"), f.lit(1))
    stretch = f.sum(begins).over(order.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    together = ranges.select("alarm", *KEYS, "first", "last", "ms", stretch.alias("stretch"))
    joined = together.groupBy("alarm", *KEYS, "stretch").agg(
        f.min("first").alias("first"), f.max("last").alias("last"), f.min("ms").alias("ms")
    )
    return joined.select(
        f.timestamp_millis(f.lit(now_ms)).alias("at"), "alarm", "vhost", "queue", "first", "last",
        (f.col("last") - f.col("first") + 1).alias("count"),
        f.timestamp_millis(f.col("ms").cast("bigint")).alias("since"),
    )  # fmt: skip


# -- The command ---------------------------------------------------------------------------------------------------


def start(
    spark: SparkSession, options: Mapping[str, str], rules: Rules, checkpoint: str, out: str | None, interval_s: float
) -> Any:
    """Starts the query. Raises LeveretError if there is no journal."""
    from pyspark.sql import functions as f

    access = journal_facts.access_from({name: value for name, value in options.items() if name != "vhost"})
    journal_facts.find_journals(access)  # Raises a clear error if there are none.
    if spark.conf.get(SHUFFLE_TASKS) == DEFAULT:
        spark.conf.set(SHUFFLE_TASKS, FEW)
    told = journal.read(spark, {**options, "vhost": "/"}, streaming=True)
    rate = spark.readStream.format("rate").option("rowsPerSecond", "1").load()
    clock = rate.select(*(f.lit(None).cast(field.dataType).alias(field.name) for field in told.schema))
    alarms = Alarms(
        spark, rules, checkpoint, out, lambda wanted: journal_facts.read_queues(spark, access, wanted), print_alarm
    )
    return (
        told.unionByName(clock)
        .writeStream.foreachBatch(alarms.batch)
        .option("checkpointLocation", os.path.join(checkpoint, "stream"))
        .trigger(processingTime=f"{interval_s:g} seconds")
        .start()
    )


def print_alarm(alarm: Alarm) -> None:
    """Prints an alarm as a line of JSON, and sets it as the job's result."""
    shown = {
        name: value.replace(tzinfo=value.tzinfo or UTC).isoformat() if isinstance(value, datetime) else value
        for name, value in alarm.items()
    }
    print(json.dumps(shown), file=sys.stdout, flush=True)
    summary = f"{alarm['alarm']}: {alarm['count']:,} messages of {alarm['queue']} in {alarm['vhost']}"
    job_status.found(summary, state="failed" if alarm["alarm"] == "missing" else "warning")


def run(
    spark: SparkSession,
    options: Mapping[str, str],
    rules: Rules,
    out: str | None,
    checkpoint: str | None,
    interval_s: float,
) -> int:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="leveret-audit-") as passing:
        folder = checkpoint or (os.path.join(out, "checkpoint") if out is not None else passing)
        if checkpoint is None and out is None:
            say("without --out or --checkpoint, another start begins from the beginning")
        alarms = os.path.join(out, "alarms") if out is not None else None
        if_stopped(GOES_ON if folder != passing else BEGINS_ANEW, endless=True)
        query = start(spark, options, rules, folder, alarms, interval_s)
        say(f"watching; late is more than {rules.late_s:g} s from confirm to ack. Ctrl-C ends it")
        follow(query)
    return 0
