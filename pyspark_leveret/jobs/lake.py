"""A lake: messages as Parquet files, by queue and day.

    LAKE/queue=orders/date=2026-11-15/batch=5d0c31f2a9b4-00000012/part-….parquet     of one batch of an archive
    LAKE/queue=orders/date=2026-11-15/batch=compacted-9f…/part-….parquet             of many, put together
    LAKE/_checkpoint/…                                                               how far the archive has come

Any program reads it as a table with the columns of messages (docs/spark.md), `date` and `batch`. The date is that of
the arrival of a message in its queue, in UTC wherever the job runs: a batch that is run again elsewhere must find its
files.

**Once.** Each batch has folders of its own, named after the query and the batch. They are written aside and renamed
when all are complete, in place of those of the same name (Spark calls it dynamic overwriting). Spark gives a batch that
it runs again the same rows, so they belong to the same days, and replace what an attempt before left. What becomes of a
process that dies:

    while it writes                 nothing is visible; the next attempt writes anew, and what was left is cleared away
    between two renames             some days of the batch are there, others not; the next attempt replaces all of them
    after all, before Spark knows   the same batch is written once more, in place of itself

**Compacting.** Small files make reading slow. Those of one queue and day are put together in a folder that nobody sees
(its name begins with a dot). A note of what it replaces is written, then the old ones are deleted, and the new one gets
its name. Whoever finds the note of a process that died does the rest. So a message is never twice in the lake; for a
moment, or until somebody does the rest, some may be missing.

The last batch of each query is left alone: Spark may run it again, and would not find what it has to replace. All
before it are certain, since a batch is begun when the one before is noted as done.
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
    """There is none, or it is not as it should be."""


# -- Rows ----------------------------------------------------------------------------------------------------------


def arrival() -> Column:
    """When a message came. Of very old logs it is not known: then when its publisher says that it was made, if it
    does."""
    from pyspark.sql import functions as f

    return f.coalesce("enqueued", "timestamp")


def read(spark: SparkSession, path: str) -> DataFrame:
    """All messages of a lake. Unlike `spark.read.parquet(path)`, it takes a queue named 0815 for text."""
    if not Files(spark, path).exists(path):
        raise BadLake(f"there is no lake {path}")
    kinds = {name: kind for name, kind in COLUMNS.items() if name != "queue"}
    schema = ", ".join(f"`{name}` {kind}" for name, kind in kinds.items())
    rows = (
        spark.read.schema(f"{schema}, queue string, `date` date, batch string").option("basePath", path).parquet(path)
    )
    return rows.select(*COLUMNS, "date", "batch")


def select(
    rows: DataFrame,
    queues: Sequence[str] = (),
    since: datetime | None = None,
    until: datetime | None = None,
    where: str | None = None,
) -> DataFrame:
    """Those that came from `since` on and before `until`. Only files of these queues and days are read. Raises BadLake
    if `where` is no condition on their columns."""
    from pyspark.sql import functions as f

    if queues:
        rows = rows.filter(f.col("queue").isin(*queues))
    if since is not None:
        rows = rows.filter((f.col("date") >= since.date()) & (arrival() >= since))
    if until is not None:
        rows = rows.filter((f.col("date") <= until.date()) & (arrival() < until))
    return rows if where is None else _filter(rows, where)


def _filter(rows: DataFrame, condition: str) -> DataFrame:
    from pyspark.errors import AnalysisException  # Also where it is no SQL at all.

    try:
        return rows.filter(condition)
    except AnalysisException as error:
        raise BadLake(f"{condition!r} cannot be understood: {first_line(error)}") from None


def write_batch(rows: DataFrame, path: str, query: str, batch: int) -> None:
    """The rows of a streaming query's batch, in place of what an attempt before has written of it."""
    from pyspark.sql import functions as f

    day = f.coalesce(f.floor(f.unix_micros(arrival()) / _DAY_US), f.lit(0)).cast("int")
    dated = rows.withColumn("date", f.date_add(f.lit(date(1970, 1, 1)), day))
    replace_folders(dated.withColumn("batch", f.lit(batch_name(query, batch))), path, PARTITIONS)


def replace_folders(rows: DataFrame, path: str, partitions: Sequence[str]) -> None:
    """Write rows, in place of the folders that they belong into."""
    writer = rows.write.mode("overwrite").option("partitionOverwriteMode", "dynamic")
    writer.partitionBy(*partitions).parquet(path)


def query_id(rows: DataFrame) -> str:
    """Of the streaming query that a batch belongs to, from within its foreachBatch: the same after every restart."""
    query: str | None = rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    if query is None:
        raise BadLake("Spark does not tell which query a batch belongs to")
    return query


def batch_name(query: str, batch: int) -> str:
    return f"{query.replace('-', '')[:12]}-{batch:08}"


# -- Tidying up ------------------------------------------------------------------------------------------------------


def recover(files: Files, path: str) -> None:
    """Do the rest of what a process that died had begun, and clear away what it had not come to the end of. What is not
    old may be somebody's who is at work."""
    old_ms = time.time() * 1000 - ABANDONED_MS
    for entry in files.entries(path):
        if entry.name.startswith(_STAGING) and entry.changed_ms < old_ms:
            files.delete(entry.path)
    for day in _days(files, path):
        if files.exists(f"{day}/{NOTE}"):
            _finish(files, day)
        for entry in files.entries(day):
            if entry.name.startswith(_HIDDEN) and entry.changed_ms < old_ms:
                files.delete(entry.path)  # There is no note of it: it may not be whole, and nothing was deleted.


@dataclass
class Plan:
    """What is put together in one folder: batches of one queue and day."""

    day: str
    folders: list[Entry] = field(default_factory=list)
    bytes: int = 0

    @property
    def id(self) -> str:
        """The same of the same folders."""
        return hashlib.sha256("\n".join(one.name for one in self.folders).encode()).hexdigest()[:16]


def plan_compaction(files: Files, path: str, file_bytes: int = FILE_BYTES) -> list[Plan]:
    """The days that have several small batches."""
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
    """Puts together what is small, day by day, and gives each as it is done. One process may do so at a time; archives
    may write meanwhile."""
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
    """What was put together takes the place of what it was made of."""
    if not all(files.exists(one.path) for one in plan.folders):
        files.delete(f"{plan.day}/{_HIDDEN}{plan.id}")
        raise BadLake(f"{plan.day} changes while it is compacted: do two processes compact it?")
    replaces = [one.name for one in plan.folders]
    note = {"version": 1, "hidden": f"{_HIDDEN}{plan.id}", "name": f"batch={_COMPACTED}{plan.id}", "replaces": replaces}
    if not files.create(f"{plan.day}/{NOTE}", json.dumps(note)):
        raise BadLake(f"{plan.day}/{NOTE} is there already: does another process compact this lake?")
    _finish(files, plan.day)


def _finish(files: Files, day: str) -> None:
    """Do what the note says, as far as it is not done."""
    try:
        note: dict[str, Any] = json.loads(files.read(f"{day}/{NOTE}"))
    except ValueError:  # Whoever wrote it died before it was whole, and so before anything was deleted.
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
