"""A lake: messages as Parquet files, by queue and day.

    LAKE/queue=orders/date=2026-11-15/batch=5d0c31f2a9b4-00000012/part-….parquet     of one batch of an archive
    LAKE/queue=orders/date=2026-11-15/batch=compacted-9f…/part-….parquet             of many, put together
    LAKE/_checkpoint/…                                                               how far the archive has come

Any program reads it as a table with the columns of messages (docs/spark.md), `date` and `batch`. The date is the day on
which a message arrived in its queue, in UTC wherever the job runs: a batch that runs again elsewhere must find its
files.

**Exactly once.** Each batch has folders of its own, named after the query and the batch. They are written to a
temporary place and renamed when all are complete, in place of folders of the same name (Spark calls it dynamic
overwriting). Spark gives a batch that it runs again the same rows, so they belong to the same days, and replace the
rows of the attempt before. If the process dies

    while it writes                 nothing is visible; the next attempt writes again, and deletes the leftovers
    between two renames             some days of the batch are there, others not; the next attempt replaces all of them
    before Spark notes the batch    the same batch is written once more, in place of itself

**Compacting.** Small files make reading slow. The files of one queue and day are put together in a hidden folder (its
name begins with a dot). Then a note lists the folders that it replaces, these are deleted, and the new one is renamed.
A process that finds the note of one that died completes the work. So a message is never twice in the lake; for a
moment, or until the work is completed, some may be missing.

The last batch of each query is left alone: Spark may run it again, and would not find what it has to replace. All
batches before it are final, since a batch begins when the one before is noted as done.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Final

from pyspark_leveret.connect import LeveretError
from pyspark_leveret.jobs.support.common import first_line
from pyspark_leveret.jobs.support.hadoop_files import Entry, Files
from pyspark_leveret.schema import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

PARTITIONS: Final = ("queue", "date", "batch")
FILE_BYTES: Final = 128 << 20
ABANDONED_MS: Final = 86_400_000
NOTE: Final = "_compacting.json"
_STAGING: Final = ".spark-staging"
_HIDDEN: Final = ".compacting-"
_COMPACTED: Final = "compacted-"
_BATCH: Final = re.compile(r"batch=([0-9a-f]{12})-(\d{8,})")
_DAY_US: Final = 86_400_000_000


class BadLake(LeveretError):
    """There is no lake, or it cannot be read."""


# -- Rows ----------------------------------------------------------------------------------------------------------


def arrival() -> Column:
    """Returns when a message arrived in its queue. Very old logs do not have it; then the publisher's timestamp, if
    any."""
    from pyspark.sql import functions as f

    return f.coalesce("enqueued", "timestamp")


def read(spark: SparkSession, path: str) -> DataFrame:
    """Reads all messages of a lake. Unlike `spark.read.parquet(path)`, it keeps a queue named 0815 as text."""
    if not Files(spark, path).exists(path):
        raise BadLake(f"there is no lake {path}")
    kinds = {name: kind for name, kind in COLUMNS.items() if name != "queue"}
    schema = ", ".join(f"`{name}` {kind}" for name, kind in kinds.items())
    rows = (
        spark.read.schema(f"{schema}, queue string, `date` date, batch string").option("basePath", path).parquet(path)
    )
    return rows.select(*COLUMNS, "date", "batch")


def dates(files: Files, path: str) -> list[date]:
    """Returns the days of which a lake has messages, in order."""
    names = {day.rstrip("/").rpartition("/")[2].partition("=")[2] for day in _days(files, path)}
    return sorted(date.fromisoformat(name) for name in names)


def select(
    rows: DataFrame,
    queues: Sequence[str] = (),
    since: datetime | None = None,
    until: datetime | None = None,
    where: str | None = None,
) -> DataFrame:
    """Selects messages that arrived from `since` on and before `until`. Reads only the files of these queues and days.
    Raises BadLake if `where` is no condition on the columns."""
    from pyspark.sql import functions as f

    if queues:
        rows = rows.filter(f.col("queue").isin(*queues))
    if since is not None:
        rows = rows.filter((f.col("date") >= since.date()) & (arrival() >= since))
    if until is not None:
        rows = rows.filter((f.col("date") <= until.date()) & (arrival() < until))
    return rows if where is None else _filter(rows, where)


def _filter(rows: DataFrame, condition: str) -> DataFrame:
    from pyspark.errors import AnalysisException  # Raised for a syntax error, too.

    try:
        return rows.filter(condition)
    except AnalysisException as error:
        raise BadLake(f"{condition!r} cannot be understood: {first_line(error)}") from None


def write_batch(rows: DataFrame, path: str, query: str, batch: int) -> None:
    """Writes a batch of a streaming query, in place of what an earlier attempt wrote."""
    from pyspark.sql import functions as f

    day = f.coalesce(f.floor(f.unix_micros(arrival()) / _DAY_US), f.lit(0)).cast("int")
    dated = rows.withColumn("date", f.date_add(f.lit(date(1970, 1, 1)), day))
    replace_folders(dated.withColumn("batch", f.lit(batch_name(query, batch))), path, PARTITIONS)


def replace_folders(rows: DataFrame, path: str, partitions: Sequence[str]) -> None:
    """Writes rows, and replaces the folders that they belong to."""
    writer = rows.write.mode("overwrite").option("partitionOverwriteMode", "dynamic")
    writer.partitionBy(*partitions).parquet(path)


def query_id(rows: DataFrame) -> str:
    """Returns the id of the streaming query of a batch, inside foreachBatch: the same after every restart."""
    query: str | None = rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    if query is None:
        raise BadLake("Spark does not tell which query a batch belongs to")
    return query


def batch_name(query: str, batch: int) -> str:
    return f"{query.replace('-', '')[:12]}-{batch:08}"


# -- Compacting ------------------------------------------------------------------------------------------------------


def recover(files: Files, path: str) -> None:
    """Completes the compactions of processes that died, and deletes their incomplete folders. Only old ones: others may
    belong to a running process."""
    old_ms = time.time() * 1000 - ABANDONED_MS
    for entry in files.entries(path):
        if entry.name.startswith(_STAGING) and entry.changed_ms < old_ms:
            files.delete(entry.path)
    for day in _days(files, path):
        if files.exists(f"{day}/{NOTE}"):
            _finish(files, day)
        for entry in files.entries(day):
            if entry.name.startswith(_HIDDEN) and entry.changed_ms < old_ms:
                files.delete(entry.path)  # Without a note it may be incomplete, and nothing was deleted.


@dataclass
class Plan:
    """Batches of one queue and day that are put together in one folder."""

    day: str
    folders: list[Entry] = field(default_factory=list)
    bytes: int = 0

    @property
    def id(self) -> str:
        """Returns the same name for the same folders."""
        return hashlib.sha256("\n".join(one.name for one in self.folders).encode()).hexdigest()[:16]


def plan_compaction(files: Files, path: str, file_bytes: int = FILE_BYTES) -> list[Plan]:
    """Finds the days that have several small batches."""
    found = [(day, entry) for day in _days(files, path) for entry in files.entries(day) if entry.is_folder]
    last: dict[str, int] = {}
    for _, entry in found:
        match = _BATCH.fullmatch(entry.name)
        if match is not None:
            last[match[1]] = max(last.get(match[1], -1), int(match[2]))
    plans: dict[str, Plan] = {}
    for day, entry in found:
        match = _BATCH.fullmatch(entry.name)
        if match is not None and int(match[2]) == last[match[1]]:
            continue
        if match is None and not entry.name.startswith(f"batch={_COMPACTED}"):
            continue
        size = files.total_bytes(entry.path)
        if size < file_bytes:
            plan = plans.setdefault(day, Plan(day))
            plan.folders.append(entry)
            plan.bytes += size
    return [plan for plan in plans.values() if len(plan.folders) > 1]


def compact(spark: SparkSession, path: str, file_bytes: int = FILE_BYTES) -> Iterator[Plan]:
    """Puts small batches together, day by day, and yields each day when it is done. One process may do so at a time;
    archives may write meanwhile."""
    files = Files(spark, path)
    for day in _days(files, path):
        if files.exists(f"{day}/{NOTE}"):
            _finish(files, day)
    for plan in plan_compaction(files, path, file_bytes):
        _compact_day(spark, files, plan, file_bytes)
        yield plan


def _compact_day(spark: SparkSession, files: Files, plan: Plan, file_bytes: int) -> None:
    hidden = f"{plan.day}/{_HIDDEN}{plan.id}"
    rows = spark.read.schema(_stored_schema()).parquet(*(one.path for one in plan.folders))
    count = -(-plan.bytes // file_bytes)
    spread = rows.coalesce(1) if count == 1 else rows.repartitionByRange(count, "offset")
    spread.sortWithinPartitions("offset").write.mode("overwrite").parquet(hidden)
    before, after = rows.count(), spark.read.schema(_stored_schema()).parquet(hidden).count()
    if before != after:
        raise BadLake(f"{hidden} has {after} rows, and should have {before}: nothing was replaced")
    swap(files, plan)


def swap(files: Files, plan: Plan) -> None:
    """Replaces batches by the folder into which they were put together."""
    if not all(files.exists(one.path) for one in plan.folders):
        files.delete(f"{plan.day}/{_HIDDEN}{plan.id}")
        raise BadLake(f"{plan.day} changes while it is compacted: do two processes compact it?")
    replaces = [one.name for one in plan.folders]
    note = {"version": 1, "hidden": f"{_HIDDEN}{plan.id}", "name": f"batch={_COMPACTED}{plan.id}", "replaces": replaces}
    if not files.create(f"{plan.day}/{NOTE}", json.dumps(note)):
        raise BadLake(f"{plan.day}/{NOTE} is there already: does another process compact this lake?")
    _finish(files, plan.day)


def _finish(files: Files, day: str) -> None:
    """Completes what a note describes."""
    try:
        note: dict[str, Any] = json.loads(files.read(f"{day}/{NOTE}"))
    except ValueError:  # The note is incomplete: its process died before anything was deleted.
        files.delete(f"{day}/{NOTE}")
        return
    hidden = f"{day}/{note['hidden']}"  # Names, not paths: the lake may have been moved to another place.
    if files.exists(hidden):
        for name in note["replaces"]:
            files.delete(f"{day}/{name}")
        files.rename(hidden, f"{day}/{note['name']}")
    files.delete(f"{day}/{NOTE}")


def _days(files: Files, path: str) -> Iterator[str]:
    for queue in files.entries(path):
        if queue.is_folder and queue.name.startswith("queue="):
            for day in files.entries(queue.path):
                if day.is_folder and day.name.startswith("date="):
                    yield day.path


def _stored_schema() -> str:
    return ", ".join(f"`{name}` {kind}" for name, kind in COLUMNS.items() if name != "queue")
