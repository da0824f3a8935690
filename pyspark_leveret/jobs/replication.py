"""`leveret pipeline replication`: how far mirrors were behind their masters over time, with views and promotions.

For each queue, the master's journal has the published numbers, and each mirror's the numbers that it has written. Time
is cut into slots. At the end of a slot, the *level* of a node is the highest number in its journal so far, and a mirror
is `behind` by the difference of the master's level and its own. A master that becomes a mirror continues from its level.
A view that names a mirror as in sync lifts it to the master's level of that time: what was settled while it was away is
never written there, and a mirror that was killed has not told of all that it had written.
Numbers that were published and never confirmed may be withdrawn by a promotion, so the level of a queue is that of the
latest epoch.

The time from published to written is measured for each message (`latency`), by the clocks of two nodes.

| table | a row | columns |
|---|---|---|
| `lag` | slot, queue, mirror | time, vhost, queue, id, mirror, master, behind, replicated, filled, rate (messages a second, both), lag_p50_ms, lag_p95_ms, lag_max_ms |
| `mirrors` | queue, mirror | vhost, queue, id, mirror, replicated, filled, behind_max, behind_end, lag_p95_ms, lag_max_ms |
| `happenings` | view, promotion, sync, link, start or stop of a node | time, kind, node, vhost, queue, id, text |
"""  # noqa: E501

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Any, Final

from pyspark_leveret.jobs import journal, report, rollup
from pyspark_leveret.jobs.analysis import journal_facts, latency
from pyspark_leveret.jobs.support import job_status
from pyspark_leveret.jobs.support.charts import Line, Mark, chart
from pyspark_leveret.jobs.support.common import access_of, add_schedule, say
from pyspark_leveret.jobs.support.hadoop_files import Files

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

DESCRIPTION: Final = """\
Reports lag and throughput of every mirror over time, from the journals of all nodes, with view changes, promotions and
synchronisations on the same axis, as an HTML page and Parquet tables.
"""

REPEATS: Final = True  # It has the option --every.

EXAMPLES: Final = """\
examples:
  leveretctl set_policy journal '.*' '{"journal": "full"}'
                                     first enable the journals, without which there is nothing to report
  leveret pipeline replication --servers one,two,three --out /data/replication
                                     writes report.html, lag, mirrors, happenings
  leveret pipeline replication --out /data/replication --step 1 --queue orders
                                     one queue, second by second
  leveret pipeline replication --out /data/november --lake /data/journals
                                     from archived journals (leveret pipeline archive)
"""

SLOTS_MAX: Final = 600  # A chart cannot show more.
STEPS_S: Final = (1, 2, 5, 10, 30, 60, 300, 900, 3600, 21_600, 86_400)
QUEUES_MAX: Final = 20  # Drawn at most.
LINES_MAX: Final = 3
MARKS_MAX: Final = 60
_KEYS: Final = ("vhost", "queue", "id")

Point = tuple[int, float | None]  # Milliseconds since 1970, and a value.


@dataclass(frozen=True)
class Replication:
    lag: DataFrame
    mirrors: DataFrame
    happenings: DataFrame
    begin_ms: int
    end_ms: int
    step_s: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_schedule(parser)
    parser.add_argument("--out", metavar="PATH", required=True, help="folder for the report and the tables")
    parser.add_argument(
        "--queue", metavar="NAME", action="append", default=[], help="only this queue (may be repeated)"
    )
    parser.add_argument(
        "--step", metavar="SECONDS", type=_step, help="length of an interval (default: some hundred intervals)"
    )
    parser.add_argument("--lake", metavar="PATH", help="read archived journals instead of those of the nodes")


def _step(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 86_400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds up to a day")
    return int(text)


def before(parsed: argparse.Namespace) -> bool:
    """Checks that there is a journal, before Spark is started. Returns whether there is little to do. Raises
    LeveretError."""
    if parsed.lake is not None:
        return False
    found = journal_facts.find_journals(journal_facts.access_from({**access_of(parsed), "vhost": "/"}))
    return found.is_short and parsed.every is None


def run(spark: SparkSession, parsed: argparse.Namespace) -> int:
    out = parsed.out.rstrip("/")
    if parsed.lake is not None:
        events = rollup.archived(spark, parsed.lake)
    else:
        events = journal.read(spark, access_of(parsed))
    found = replication(events.cache(), parsed.queue, parsed.step)
    if found is None:
        say("leveret pipeline replication: no journal tells of anything: is there a policy with 'journal'?")
        return 69
    say(f"from {report.day(found.begin_ms)} to {report.day(found.end_ms)}, in slots of {found.step_s} s")
    found = write(spark, found, out)
    files = Files(spark, out)
    files.delete(f"{out}/report.html")
    files.create(f"{out}/report.html", page(found))
    print(f"{out}/report.html")
    [worst] = found.mirrors.agg({"behind_max": "max", "lag_max_ms": "max", "mirror": "count"}).collect()
    behind, lag = worst["max(behind_max)"] or 0, worst["max(lag_max_ms)"] or 0
    count = worst["count(mirror)"]
    job_status.found(
        f"{count} mirrors, at most {behind:,} messages behind",
        {"mirrors": count, "behind at most": behind, "lag at most (ms)": lag},
        report=f"{out}/report.html",
    )
    return 0


def write(spark: SparkSession, found: Replication, out: str) -> Replication:
    """Writes the tables, and returns them as read back, so that nothing is computed twice."""
    written: dict[str, DataFrame] = {}
    for name, rows in (("lag", found.lag), ("mirrors", None), ("happenings", found.happenings)):
        made = mirrors(written["lag"]) if rows is None else rows
        made.write.mode("overwrite").parquet(f"{out}/{name}")
        written[name] = spark.read.schema(made.schema).parquet(f"{out}/{name}")
        say(f"{out}/{name} is written")
    return replace(found, lag=written["lag"], mirrors=written["mirrors"], happenings=written["happenings"])


# -- Tables --------------------------------------------------------------------------------------------------------


def replication(events: DataFrame, queues: Sequence[str] = (), step_s: int | None = None) -> Replication | None:
    """Makes the tables; returns None without events. Reads the events several times: cache them."""
    from pyspark.sql import functions as f

    [span] = events.agg(f.min(f.unix_millis("time")), f.max(f.unix_millis("time"))).collect()
    if span[0] is None:
        return None
    step = step_s or fitting_step(span[1] - span[0])
    chosen = events.filter(f.col("queue").isin(*queues) | (f.col("queue") == "")) if queues else events
    lag = lags(chosen, step)
    return Replication(lag, mirrors(lag), happenings(chosen), span[0], span[1], step)


def fitting_step(spread_ms: int) -> int:
    """Returns the shortest slot with at most `SLOTS_MAX` of them."""
    return next((step for step in STEPS_S if spread_ms / 1000 / step <= SLOTS_MAX), STEPS_S[-1])


def lags(events: DataFrame, step_s: int) -> DataFrame:
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    kind, what = f.col("kind"), f.col("what")
    slot = (f.floor(f.unix_seconds("time") / step_s) * step_s).alias("slot")
    told = events.filter(kind.isin("published", "replicated", "promoted", "started", "view") & (f.col("queue") != ""))
    leads = f.when(~kind.isin("replicated", "view"), f.struct("epoch", "last", "node"))
    nodes = told.groupBy(*_KEYS, "node", slot).agg(
        f.max(f.when(kind != "view", f.col("last"))).alias("level"),
        _sum(what == "published").alias("replicated"),
        _sum(what == "filled").alias("filled"),
        f.max(leads).alias("leader"),
        f.max(f.when(kind == "published", f.col("time"))).alias("given_at"),
        f.max(f.when(kind == "view", f.struct("epoch", "time", "in_sync"))).alias("view"),
    )
    slots = nodes.groupBy(*_KEYS, "slot").agg(
        f.max("leader").alias("leader"), f.max("given_at").alias("given_at"), f.max("view").alias("view")
    )
    members = told.groupBy(*_KEYS, "node").agg(f.max(kind == "replicated").alias("mirrors"))
    mirrored = members.groupBy(*_KEYS).agg(f.max("mirrors").alias("has"), f.collect_set("node").alias("nodes"))
    grid = slots.join(mirrored.filter("has"), list(_KEYS)).select(*slots.columns, f.explode("nodes").alias("node"))
    so_far = (
        Window.partitionBy(*_KEYS, "node").orderBy("slot").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    before = Window.partitionBy(*_KEYS, "node").orderBy("slot").rowsBetween(Window.unboundedPreceding, -1)
    # If messages came after the view, within its slot, the level of the slot before is the one that is certain.
    in_sync_at = f.when(f.col("view.time") >= f.coalesce("given_at", "view.time"), f.col("leader")).otherwise(
        f.col("leader_before")
    )["last"]
    levels = (
        grid.join(nodes.drop("leader", "given_at", "view"), [*_KEYS, "node", "slot"], "left")
        .withColumns({"leader_before": f.max("leader").over(before), "leader": f.max("leader").over(so_far)})
        .withColumn("reached", f.when(f.array_contains("view.in_sync", f.col("node")), in_sync_at))
        .withColumn("level", f.max(f.greatest("level", "reached")).over(so_far))
        .filter("level is not null and leader is not null and leader.node <> node")
    )
    joined = levels.join(_times(events, step_s), [*_KEYS, "node", "slot"], "left")
    replicated, filled = f.coalesce("replicated", f.lit(0)), f.coalesce("filled", f.lit(0))
    return joined.select(
        f.timestamp_seconds("slot").alias("time"),
        *_KEYS,
        f.col("node").alias("mirror"),
        f.col("leader.node").alias("master"),
        f.greatest(f.col("leader.last") - f.col("level"), f.lit(0)).alias("behind"),
        replicated.alias("replicated"),
        filled.alias("filled"),
        ((replicated + filled) / step_s).alias("rate"),
        *("lag_p50_ms", "lag_p95_ms", "lag_max_ms"),
    )


def _sum(where: Column) -> Column:
    from pyspark.sql import functions as f

    return f.sum(f.when((f.col("kind") == "replicated") & where, f.col("count")).otherwise(0))


def _times(events: DataFrame, step_s: int) -> DataFrame:
    """Returns the times from published to written at a mirror."""
    from pyspark.sql import functions as f

    found = latency.histogram(events.filter(f.col("kind").isin("published", "replicated")), step_s)
    return (
        found.filter("kind = 'replicated'")
        .groupBy(*_KEYS, "node", "slot")
        .agg(
            f.expr("percentile(ms, 0.5, count)").alias("lag_p50_ms"),
            f.expr("percentile(ms, 0.95, count)").alias("lag_p95_ms"),
            f.max("ms").cast("double").alias("lag_max_ms"),
        )
    )


def mirrors(lag: DataFrame) -> DataFrame:
    """Sums up all slots. The 95th percentile is that of the worst slot. A node that is the master at the end is behind
    nobody then."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    leads = f.max_by("master", "time").over(Window.partitionBy(*_KEYS)) == f.col("mirror")
    return lag.withColumn("leads", leads).groupBy(*_KEYS, "mirror").agg(
        f.sum("replicated").alias("replicated"),
        f.sum("filled").alias("filled"),
        f.max("behind").alias("behind_max"),
        f.when(~f.max("leads"), f.max_by("behind", "time")).alias("behind_end"),
        f.max("lag_p95_ms").alias("lag_p95_ms"),
        f.max("lag_max_ms").alias("lag_max_ms"),
    )


def happenings(events: DataFrame) -> DataFrame:
    """Returns the events of queues and nodes by time, each once, however many journals have it."""
    from pyspark.sql import functions as f

    kind, of_node = f.col("kind"), f.col("queue") == ""
    version = f.get_json_object("detail", "$.version")
    in_sync = f.array_join("in_sync", ", ")
    force = f.when(f.col("forced"), ", by force").otherwise("")
    text = (
        f.when(kind == "view", f.format_string("view %s: master %s, in sync %s", version, "who", in_sync))
        .when(kind == "promoted", f.format_string("%s took over from %s%s", "node", "who", force))
        .when(kind == "sync", f.format_string("sync %s, missing %s", "state", f.array_join("missing", ", ")))
        .when(kind == "partition", f.concat_ws(" ", f.concat("node", f.lit(":")), "state", "who"))
        .when(of_node, f.concat_ws(" ", "node", "kind"))
    )
    chosen = kind.isin("view", "promoted", "sync", "partition") | (of_node & kind.isin("started", "stopped"))
    told = events.filter(chosen).withColumn("text", text)
    once = f.when(kind == "view", f.lit("")).otherwise(f.concat_ws("/", "node", "offset", "position"))
    return (
        told.groupBy("kind", *_KEYS, "text", once.alias("once"))
        .agg(f.min("time").alias("time"), f.min_by("node", "time").alias("node"))
        .select("time", "kind", "node", *_KEYS, "text")
    )


# -- The page ------------------------------------------------------------------------------------------------------


def page(found: Replication) -> str:
    from pyspark.sql import functions as f

    worst = found.mirrors.orderBy(f.desc("behind_max"), f.desc("replicated"), "vhost", "queue", "mirror")
    rows = worst.limit(QUEUES_MAX * 10).collect()
    queues = list(dict.fromkeys((row.vhost, row.queue, row.id) for row in rows))[:QUEUES_MAX]
    ids = [id for _, _, id in queues]
    told = found.happenings.filter(f.col("id").isNull() | f.col("id").isin(*ids))
    marked = told.filter("kind <> 'partition' or text like '%lost%'").orderBy("time").limit(MARKS_MAX).collect()
    series = found.lag.filter(f.col("id").isin(*ids)).orderBy("time").collect() if ids else []
    parts = [
        "<h1>Replication</h1>",
        f'<p class="dim">From {report.day(found.begin_ms)} to {report.day(found.end_ms)}, '
        f"in slots of {found.step_s} s. Times between nodes are by their clocks.</p>",
        report.table(
            ("queue", "mirror", "messages", "filled", "behind at most", "behind at the end", "slowest, ms"),
            [(row.queue, *row[3:8], _whole(row.lag_max_ms)) for row in rows],
        )
        or '<p class="dim">No journal tells of a mirror.</p>',
    ]
    for vhost, queue, id in queues:
        mine = [row for row in series if row.id == id]
        here = [row for row in marked if row.id is None or row.id == id]
        parts.append(f"<h2>{escape(queue)} <span class='dim'>in {escape(vhost)}</span></h2>")
        parts.append(_section(mine, here, found))
    return report.document("Leveret replication", parts)


def _section(rows: Sequence[Row], happened: Sequence[Row], found: Replication) -> str:
    marks = [Mark(_ms(row.time), str(number), row.text) for number, row in enumerate(happened, 1)]
    names = sorted(
        {row.mirror for row in rows}, key=lambda name: -max(row.behind for row in rows if row.mirror == name)
    )
    shown = sorted(names[:LINES_MAX])
    charts = [
        chart(f"Mirrors: {unit}", unit, _lines(rows, shown, column, found.step_s), marks, found.begin_ms, found.end_ms)
        for unit, column in (
            ("messages behind", "behind"),
            ("messages a second", "rate"),
            ("milliseconds from published to written, 95 %", "lag_p95_ms"),
        )
    ]
    left = "" if len(names) <= LINES_MAX else f'<p class="dim">Not drawn: {escape(", ".join(names[LINES_MAX:]))}</p>'
    listed = [(number, report.moment(_ms(row.time)), row.text) for number, row in enumerate(happened, 1)]
    return "".join(charts) + left + report.table(("#", "when", "what"), listed)


def _lines(rows: Sequence[Row], names: Sequence[str], column: str, step_s: int) -> list[Line]:
    return [
        Line(name, _whole_line([(_ms(row.time), row[column]) for row in rows if row.mirror == name], column, step_s))
        for name in names
    ]


def _whole_line(points: Sequence[Point], column: str, step_s: int) -> list[Point]:
    """Adds slots in which nothing happened, which have no rows: nothing was written then, and a mirror stayed as far
    behind as it was."""
    whole: list[Point] = []
    for at, value in points:
        if whole and at - whole[-1][0] > step_s * 1000:
            before, last = whole[-1]
            still = last if column == "behind" else 0.0 if column == "rate" else None
            whole += [(before + step_s * 1000, still), (at - step_s * 1000, still)]
        whole.append((at, value))
    return whole


def _ms(time: Any) -> int:
    from datetime import UTC

    return int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
