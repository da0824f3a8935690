"""The audit as a stream: tells of messages that are late, and of those that went missing, while a cluster is at work.

What was confirmed and has not left its queue yet is *open*. Each batch of the journals' events is laid upon what was
open before (`ranges.sweep`), and what remains is what is open now, kept as Parquet in the checkpoint's folder, one
state a batch. A batch that is run again, after a crash, begins with the same state and writes the same one. So there is
no state in memory, what is kept is as large as what is unacknowledged, and Spark's checkpoint says where to go on.

| alarm | |
|---|---|
| late | confirmed more than so many seconds ago, and it waits, or is out with a consumer |
| missing | confirmed, late, and in two batches in a row neither told to have left nor in its queue |
| missing | confirmed, and its number was given again |

Each message raises one at most. An idle cluster tells nothing, but grows late: a clock (Spark's `rate` source) makes
batches when journals do not.

This is the alarm, not the verdict. Journals of different nodes are read at different times, so what one node tells may
come batches after what it belongs to; a queue without mirrors that moves counts anew, and is not followed there. The
batch (`audit`) knows the end of the story.
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
from pyspark_leveret.jobs.support.common import follow, say
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
TOLD_MAX: Final = 100  # Lines a batch; all are in the folder.
# Of what comes from a stream, Spark makes as many tasks in a shuffle as this says, however few rows there are, and a
# batch has a dozen shuffles: with Spark's default it would take longer on a small machine than the time between looks.
SHUFFLE_TASKS: Final = "spark.sql.shuffle.partitions"
DEFAULT, FEW = "200", "8"
Alarm = dict[str, Any]


class Watch:
    """What happens with each batch. `look` gives what is in the queues, as `evidence.read_queues` does."""

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
        # First the alarms: if the state is written and they are not, nobody would ever hear of them.
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
        for kind in ("open", "cuts"):  # The one before is needed if this batch runs again.
            shutil.rmtree(self._path(kind, number - 2), ignore_errors=True)

    def _path(self, kind: str, number: int) -> str:
        return os.path.join(self.folder, "state", f"{kind}-{number}")

    def _state(self, number: int) -> tuple[DataFrame, DataFrame]:
        found = [self._path(kind, number) for kind in ("open", "cuts")]
        if number < 0:
            return self.spark.createDataFrame([], STATE), self.spark.createDataFrame([], CUTS)
        return self.spark.read.schema(STATE).parquet(found[0]), self.spark.read.schema(CUTS).parquet(found[1])

    def _present(self, late: DataFrame) -> DataFrame:
        """What is in the queues that seem to be late."""
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
    """Ranges that open, and those that close."""
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
    """Ranges, less what had its number in an epoch before a cut and above it; and what of that was open."""
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
    """What is open now. What has been said of a range before is carried along like its time."""
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
    """Open ranges, split where some of their messages are in the queue, with the alarm that is due."""
    from pyspark.sql import functions as f

    there = present.filter("label = 'present'").select(*KEYS, f.col("first").alias("low"), f.col("last").alias("high"))
    edges = opened.select(*KEYS, "first", "last").withColumns({"label": f.lit("open"), "ms": f.lit(0)})
    marks = there.selectExpr(*KEYS, "low first", "high last", "'there' label", "0 ms")
    pieces = sweep(edges.unionByName(marks), KEYS, ("open", "there")).filter("open > 0")
    # Pieces lie within one stretch, and within one of the ranges that they come from.
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
    """One alarm for neighbours, with the time of the oldest of them."""
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
    """The running query."""
    from pyspark.sql import functions as f

    access = journal_facts.access_from({name: value for name, value in options.items() if name != "vhost"})
    journal_facts.find_journals(access)  # So that there is a word for it if there are none.
    if spark.conf.get(SHUFFLE_TASKS) == DEFAULT:
        spark.conf.set(SHUFFLE_TASKS, FEW)
    told = journal.read(spark, {**options, "vhost": "/"}, streaming=True)
    rate = spark.readStream.format("rate").option("rowsPerSecond", "1").load()
    clock = rate.select(*(f.lit(None).cast(field.dataType).alias(field.name) for field in told.schema))
    watch = Watch(
        spark, rules, checkpoint, out, lambda wanted: journal_facts.read_queues(spark, access, wanted), print_alarm
    )
    return (
        told.unionByName(clock)
        .writeStream.foreachBatch(watch.batch)
        .option("checkpointLocation", os.path.join(checkpoint, "stream"))
        .trigger(processingTime=f"{interval_s:g} seconds")
        .start()
    )


def print_alarm(alarm: Alarm) -> None:
    """A line of JSON."""
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
