"""Reads the journals of all nodes as one table of events (docs/journal.md), as a batch or a stream.

A message of a journal is a JSON text with many events, each a list of eight. Here each event is a row; the details that
most jobs need have columns of their own, and `detail` has all of them as JSON. `time` is that of the event, if it has
one, or else of its message.

Events of one node are ordered by (`offset`, `position`): offsets rise over restarts, and a position is the place within
a message. Events of different nodes are ordered only by `time`, by their clocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

PREFIX: Final = "leveret.journal."
PATTERN: Final = r"leveret\.journal\..*"
_MESSAGE: Final = "node string, run string, ms bigint, events array<array<string>>"
_DETAIL: Final = (
    "id bigint, epoch bigint, said array<bigint>, transient boolean, reason string, what string, state string, "
    "forced boolean, version bigint, ring array<string>, in_sync array<string>, missing array<string>, "
    "to string, token bigint, place bigint, block bigint, ms bigint, producer string, numbers array<bigint>, "
    "sampled boolean"
)


def read(spark: SparkSession, options: Mapping[str, str], streaming: bool = False) -> DataFrame:
    """Reads events. `options` are those of `format("leveret")`: servers, user, …; subscribe and startingOffsets for
    less than all nodes and all events."""
    given = {"vhost": "/", **options}
    if not {"subscribe", "subscribePattern"} & set(given):
        given["subscribePattern"] = PATTERN
    if streaming:
        given.setdefault("startingOffsets", "earliest")
    reader = spark.readStream if streaming else spark.read
    return events(reader.format("leveret").schema("offset bigint, body binary").options(**given).load())


def events(messages: DataFrame) -> DataFrame:
    """Returns one row for each event of messages with `offset` and `body`."""
    from pyspark.sql import functions as f

    message = f.from_json(f.col("body").cast("string"), _MESSAGE)
    exploded = (
        messages.select("offset", message.alias("message"))
        .select("offset", "message.node", "message.run", "message.ms", f.posexplode("message.events"))
        .withColumnsRenamed({"pos": "position", "col": "event"})
    )
    event, detail = f.col("event"), f.from_json(f.col("event")[7], _DETAIL)
    return exploded.select(
        "node",
        "run",
        "ms",
        "offset",
        "position",
        event[0].alias("kind"),
        event[1].alias("vhost"),
        event[2].alias("queue"),
        event[3].cast("bigint").alias("first"),
        event[4].cast("bigint").alias("last"),
        event[5].cast("bigint").alias("count"),
        event[6].alias("who"),
        detail.alias("told"),
        event[7].alias("detail"),
    ).select(
        *("node", "run", f.timestamp_millis(f.coalesce("told.ms", "ms")).alias("time"), "offset", "position"),
        *("kind", "vhost", "queue", "first", "last", "count", "who"),
        *("told.id", "told.epoch"),
        f.col("told.said")[0].alias("said_first"),
        f.col("told.said")[1].alias("said_last"),
        f.coalesce("told.transient", f.lit(False)).alias("transient"),
        *("told.reason", "told.what", "told.state"),
        f.coalesce("told.forced", f.lit(False)).alias("forced"),
        *("told.ring", "told.in_sync", "told.missing", "told.token", "told.place", "told.producer"),
        f.col("told.numbers")[0].alias("number_first"),
        f.col("told.numbers")[1].alias("number_last"),
        f.coalesce("told.sampled", f.lit(False)).alias("sampled"),
        "detail",
    )
