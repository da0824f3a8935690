"""Finds faults of a cluster in its journals, and assigns findings to the fault that is closest in time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

FAULTS_MAX: Final = 1_000  # A node that dies makes a few, however many queues it had.
SCHEMA: Final = "at_ms bigint, kind string, node string, text string"


class Fault(NamedTuple):
    at_ms: int
    kind: str  # killed, stopped, link, minority, promoted, view
    node: str
    text: str


def find(events: DataFrame) -> list[Fault]:
    """Returns the faults by time. What several queues or nodes report within one second is one fault."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    kind, state = f.col("kind"), f.col("state")
    about_node = f.col("queue") == ""
    runs = events.filter(about_node & kind.isin("started", "stopped"))
    before = f.lag("kind").over(Window.partitionBy("node").orderBy("offset", "position"))
    ends = runs.withColumn("before", before).withColumn(
        "fault",
        f.when(kind == "stopped", "stopped").when((kind == "started") & (f.col("before") == "started"), "killed"),
    )
    others = events.filter(kind.isin("partition", "promoted", "view")).withColumns(
        {
            "before": f.lit(None).cast("string"),
            "fault": f.when((kind == "partition") & (state == "lost"), "link")
            .when((kind == "partition") & (state == "minority"), "minority")
            .when((kind == "promoted") & (f.col("epoch") > 1), "promoted")
            .when(kind == "view", "view"),
        }
    )
    told = ends.unionByName(others).filter("fault is not null")
    grouped = told.groupBy(
        f.floor(f.unix_millis("time") / 1000).alias("second"),
        "fault",
        f.when(f.col("fault") == "view", "").otherwise(f.col("node")).alias("node"),
        f.when(f.col("fault") == "view", "").otherwise(f.col("who")).alias("who"),
    ).agg(
        f.min(f.unix_millis("time")).alias("at_ms"),
        f.countDistinct("vhost", "queue").alias("queues"),
        f.max("forced").alias("forced"),
    )
    return [Fault(row.at_ms, row.fault, row.node, _text(row)) for row in grouped.orderBy("at_ms").take(FAULTS_MAX)]


def _text(row: Row) -> str:
    queues = f"{row.queues} queue{'s' if row.queues != 1 else ''}"
    match row.fault:
        case "killed":
            return f"{row.node} is there again, and had not stopped in order: it was killed"
        case "stopped":
            return f"{row.node} stopped in order"
        case "link":
            return f"{row.node} lost the link to {row.who}"
        case "minority":
            return f"{row.node} no longer reached the majority"
        case "promoted":
            by_force = ", by force: other copies may have had more" if row.forced else ""
            return f"{row.node} took over {queues} from {row.who or 'the master before'}{by_force}"
        case _:
            return f"the view of {queues} changed"


def frame(spark: SparkSession, found: Sequence[Fault]) -> DataFrame:
    return spark.createDataFrame([tuple(one) for one in found], SCHEMA)


def near(spark: SparkSession, findings: DataFrame, found: Sequence[Fault], seconds: float) -> DataFrame:
    """Returns findings with the column `fault`: the text of the closest fault within `seconds`, or ""."""
    from pyspark.sql import functions as f

    second = f.floor(f.col("at_ms") / 1000)
    if not found:
        return findings.withColumn("fault", f.lit(""))
    # Joined by second: there are few seconds, and perhaps many findings.
    known = f.broadcast(frame(spark, found).select(f.col("at_ms").alias("fault_ms"), "text"))
    seconds_of = findings.select(second.alias("second")).filter("second is not null").distinct()
    apart = f.abs(f.col("second") * 1000 + 500 - f.col("fault_ms"))
    closest = (
        seconds_of.join(known, apart <= seconds * 1000).groupBy("second").agg(f.min_by("text", apart).alias("text"))
    )
    joined = findings.withColumn("second", second).join(closest, "second", "left")
    return joined.select(*findings.columns, f.coalesce("text", f.lit("")).alias("fault"))
