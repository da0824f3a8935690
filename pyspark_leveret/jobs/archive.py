"""`leveret pipeline archive`: writes queues to a lake of Parquet files, each message once. See `lake`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from pyspark_leveret.jobs import lake, pages
from pyspark_leveret.jobs.audit import width
from pyspark_leveret.jobs.support import job_status
from pyspark_leveret.jobs.support.common import access_of, follow, say, seconds
from pyspark_leveret.jobs.support.hadoop_files import Files
from pyspark_leveret.jobs.support.signals import GOES_ON, if_stopped

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

DESCRIPTION: Final = """\
Writes the messages of queues to a lake of Parquet files, by queue and day, each message exactly once: it continues
where it stopped, however it ended. Streams keep their messages. Messages of other queues are taken into a lease, and
acknowledged when their files are written.
"""

EXAMPLES: Final = """\
examples:
  leveret pipeline archive --subscribe events --to /data/lake
                                     the whole stream and new messages, once a minute, until it is stopped
  leveret pipeline archive --subscribe orders,returns --lease archive --to /data/lake --once --compact
                                     empties two queues, merges small files, and ends: for cron
  leveret pipeline archive --pattern 'leveret\\.journal\\..*' --to /data/journals --once
                                     keeps the journals for longer than the nodes do
  leveret pipeline archive --to /data/lake --compact
                                     only merges small files
"""

PAGE: Final = "_report.html"  # Spark reads no file whose name begins so.
PAGE_DAYS: Final = 7
LINES: Final = 20
COMPACT_EVERY: Final = 60  # Batches of an archive without --once.


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--subscribe", metavar="QUEUES", help="names of queues, separated by commas")
    parser.add_argument("--pattern", metavar="REGEX", help="queues whose whole name matches, instead of --subscribe")
    parser.add_argument(
        "--lease", metavar="NAME", help="name of the lease; needed for queues other than streams"
    )
    parser.add_argument("--to", metavar="PATH", required=True, help="the lake: a folder, hdfs://…, s3a://…")
    parser.add_argument("--checkpoint", metavar="PATH", help="folder for the progress (TO/_checkpoint)")
    parser.add_argument("--from", dest="start", choices=("earliest", "latest"), default="earliest",
                        help="where to begin a stream that is new to the archive (earliest)")  # fmt: skip
    parser.add_argument("--once", action="store_true", help="end when all that was there at the start is written")
    parser.add_argument(
        "--every", metavar="TIME", type=_seconds, default=60, help="how often files are written: 30s, 15m, 1h … (1m)"
    )
    parser.add_argument("--max-offsets", metavar="N", type=_above_zero, default=1_000_000,
                        help="at most N messages in a batch (1000000)")  # fmt: skip
    parser.add_argument("--compact", action="store_true", help="merge small files, at the end or from time to time")
    parser.add_argument("--file-size", metavar="MIB", type=_above_zero, default=lake.FILE_BYTES >> 20,
                        help="target size of files (128)")  # fmt: skip


def _above_zero(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return int(text)


def _seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        return seconds(text)
    if not 0 <= found < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time in seconds")
    return found


def run(spark: SparkSession, parsed: argparse.Namespace) -> int:
    if parsed.subscribe is None and parsed.pattern is None:
        if not parsed.compact:
            say("leveret pipeline archive: name queues with --subscribe or --pattern, or ask for --compact alone")
            return 64
        compact(spark, parsed.to, parsed.file_size << 20)
        job_status.found("compacted", report=write_page(spark, parsed.to))
        return 0
    if_stopped(GOES_ON, endless=not parsed.once)
    options = access_of(parsed)
    options |= {"subscribe": parsed.subscribe} if parsed.subscribe is not None else {}
    options |= {"subscribePattern": parsed.pattern} if parsed.pattern is not None else {}
    options |= {"lease": parsed.lease} if parsed.lease is not None else {"startingOffsets": parsed.start}
    options["maxOffsetsPerTrigger"] = str(parsed.max_offsets)
    every = 0 if parsed.once or not parsed.compact else COMPACT_EVERY
    query = archive(spark, options, parsed.to, parsed.checkpoint, once=parsed.once, every_s=parsed.every,
                    compact_every=every, file_bytes=parsed.file_size << 20)  # fmt: skip
    job_status.found(f"to {parsed.to}", report=parsed.to)
    rows = follow(query)
    say(f"{rows:,} messages were written to {parsed.to}" if rows else f"there was nothing new for {parsed.to}")
    if parsed.compact:
        compact(spark, parsed.to, parsed.file_size << 20)
    job_status.found(f"{rows:,} messages were written to {parsed.to}", report=write_page(spark, parsed.to))
    return 0


def archive(
    spark: SparkSession,
    options: Mapping[str, str],
    to: str,
    checkpoint: str | None = None,
    *,
    once: bool = False,
    every_s: float = 60,
    compact_every: int = 0,
    file_bytes: int = lake.FILE_BYTES,
) -> StreamingQuery:
    """Starts a query that writes to the lake `to`. `options` are those of a streaming `format("leveret")`. With
    `compact_every`, small files are put together after so many batches."""
    to = to.rstrip("/")
    lake.recover(Files(spark, to), to)
    given = {**options}
    if "lease" not in given:
        given.setdefault("startingOffsets", "earliest")

    def write(rows: DataFrame, batch: int) -> None:
        lake.write_batch(rows, to, lake.query_id(rows), batch)
        if compact_every and batch % compact_every == compact_every - 1:
            compact(rows.sparkSession, to, file_bytes)

    writer = spark.readStream.format("leveret").options(**given).load().writeStream.foreachBatch(write)
    writer = writer.option("checkpointLocation", checkpoint or f"{to}/_checkpoint")
    writer = writer.trigger(availableNow=True) if once else writer.trigger(processingTime=f"{every_s:g} seconds")
    return writer.start()


def write_page(spark: SparkSession, path: str) -> str:
    """Writes the page of the last days of a lake in place of the one before, prints a line for each queue and day, and
    returns the path of the page. A lake without messages gets none, and its own path is returned."""
    from pyspark.sql import functions as f

    path = path.rstrip("/")
    files = Files(spark, path)
    dates = lake.dates(files, path)[-PAGE_DAYS:]
    if not dates:
        return path
    ms = f.unix_millis(lake.arrival())
    rows = lake.read(spark, path).filter(f.col("date") >= dates[0])
    measures = (f.count("*").alias("messages"), f.min("offset").alias("first"), f.max("offset").alias("last"),
                f.min(ms).alias("begin_ms"), f.max(ms).alias("end_ms"))  # fmt: skip
    found = rows.groupBy("queue", "date").agg(*measures).orderBy(f.desc("date"), "queue").collect()
    days = [pages.Day(*row) for row in found]
    times = [at for row in days for at in (row.begin_ms, row.end_ms) if at is not None]
    width_ms = width(min(times, default=0), max(times, default=0))
    slots = rows.filter(ms.isNotNull()).groupBy(f.floor(ms / width_ms).alias("slot")).count().collect()
    for row in days[:LINES]:
        say(f"{row.queue}, {row.day}: {row.messages:,} messages, offsets {row.first:,} to {row.last:,}")
    files.delete(f"{path}/{PAGE}")
    files.create(f"{path}/{PAGE}", pages.of_lake(path, days, [(row.slot, row["count"]) for row in slots], width_ms))
    say(f"report: {path}/{PAGE}")
    return f"{path}/{PAGE}"


def compact(spark: SparkSession, path: str, file_bytes: int = lake.FILE_BYTES) -> int:
    """Puts small files together, and returns the number of days of queues that had some."""
    count = 0
    for plan in lake.compact(spark, path.rstrip("/"), file_bytes):
        count += 1
        what = plan.day[len(path.rstrip("/")) + 1 :]
        say(f"compacted {what}: {len(plan.folders)} batches, {plan.bytes / (1 << 20):,.1f} MiB")
    return count
