"""What clients wrote down themselves: which messages a broker confirmed to them, and which they received.

A ledger is a file or a folder of Parquet, or of JSON lines. Columns:

| | published | consumed | |
|---|---|---|---|
| `queue` | yes | yes | |
| `message_id` | either | either | what names a message, |
| `number`, `last` | or | or | or its publisher's own number, as confirms count them; `last`: up to this one |
| `publisher` | with number | with number | whose number |
| `channel` | yes | yes | the connection and channel as journals name them: `10.0.0.7:40000 -> 10.0.0.1:5672 (1)` |
| `confirmed_at` | yes | | milliseconds since 1970, or a timestamp |
| `received_at` | | yes | likewise |
| `redelivered` | | yes | as the broker said |

With `number`, a ledger can be laid upon the journals: those tell which numbers of a queue the publisher's own have
become (`said`), so what a client was told and what the nodes have noted are about the same message. With `message_id`
there is no such bridge, and only ledgers and queues are compared with each other. `leveret perf --ledger` writes
numbers.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from pyspark_leveret.connect import LeveretError
from pyspark_leveret.jobs.analysis.range_sweep import overlap, sweep

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

TEXTS: Final = ("queue", "message_id", "publisher", "channel")
LABELS: Final = ("client", "received", "known")
BRIDGE_S: Final = (
    300  # A node's word that it passed messages on, and the master's that they came, are not further apart.
)


def read(spark: SparkSession, path: str, at: str) -> DataFrame:
    """`queue`, `message_id`, `publisher`, `channel`, `first`, `last`, `ms`, `redelivered`. `at`: the column of
    times."""
    from pyspark.sql import functions as f

    if "://" not in path and not os.path.exists(path):
        raise LeveretError(f"there is no ledger {path}")
    found = spark.read.parquet(path) if _is_parquet(path) else spark.read.json(path)
    if "queue" not in found.columns or not {"message_id", "number"} & set(found.columns):
        raise LeveretError(
            f"{path} is no ledger: it has the columns {', '.join(found.columns) or '(none)'}, and 'queue' and "
            "'message_id' or 'number' are needed"
        )
    number = _or_null(found, "number", "bigint")
    return found.select(
        *(_or_null(found, name, "string").alias(name) for name in TEXTS),
        number.alias("first"),
        f.coalesce(_or_null(found, "last", "bigint"), number).alias("last"),
        _ms(found, at).alias("ms"),
        f.coalesce(_or_null(found, "redelivered", "boolean"), f.lit(False)).alias("redelivered"),
    )


def _is_parquet(path: str) -> bool:
    if os.path.isdir(path):
        return any(name.endswith(".parquet") for _, _, names in os.walk(path) for name in names)
    return path.endswith(".parquet")


def _or_null(frame: DataFrame, name: str, kind: str) -> Column:
    from pyspark.sql import functions as f

    return (f.col(name) if name in frame.columns else f.lit(None)).cast(kind)


def _ms(frame: DataFrame, name: str) -> Column:
    from pyspark.sql import functions as f

    kind = dict(frame.dtypes).get(name)
    if kind is None:
        return f.lit(None).cast("bigint")
    if kind in ("timestamp", "timestamp_ntz"):
        return f.unix_millis(f.col(name).cast("timestamp"))
    return f.col(name).cast("bigint") if kind != "string" else f.unix_millis(f.col(name).cast("timestamp"))


def publishes(events: DataFrame) -> DataFrame:
    """Which channel sent what: `who`, and the numbers `first` to `last` of a queue; with `said_first` and `said_last`,
    as many numbers of its own, if it waits for confirms. A client at another node than the master's is known there: the
    master names that node, and the node's word `routed` says who it was. What a node has told of again after a start
    counts where nobody has told of it before."""
    told = _publishes(events, events.filter("kind = 'published'"))
    again = events.filter("kind = 'recovered' and what = 'published'")
    if again.isEmpty():
        return told
    retold = _publishes(events, again)
    return told.unionByName(_less(retold, told).select(told.columns))


def _less(retold: DataFrame, told: DataFrame) -> DataFrame:
    """What of the first is not in the second."""
    keys = ("vhost", "queue", "id", "stay", "who", "shift", "spread")
    shaped = ("*", "said_first - first shift", "(said_last - said_first) - (last - first) spread")

    def labelled(frame: DataFrame, label: str) -> DataFrame:
        return frame.selectExpr(*shaped).selectExpr(*keys, "first", "last", f"'{label}' label", "epoch ms")

    both = labelled(told, "told").unionByName(labelled(retold, "retold"))
    left = sweep(both, keys, ("told", "retold"), ("retold",)).filter("told = 0 and retold > 0")
    # Told again and again, it has the epochs of several starts, and means the same message in each.
    return left.selectExpr(
        "*", "cast(retold_ms as bigint) epoch", "first + shift said_first", "last + shift + spread said_last"
    )


def _publishes(events: DataFrame, published: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    published = published.select(
        *("vhost", "queue", "id", "stay", "epoch", "first", "last", "who", "said_first", "said_last", "time")
    )
    routed = events.filter("kind = 'routed'").select(
        "id",
        f.col("node").alias("via"),
        f.get_json_object("detail", "$.token").cast("bigint").alias("token"),
        f.get_json_object("detail", "$.place").cast("bigint").alias("place"),
        f.col("count").alias("bundled"),
        f.col("who").alias("sender"),
        f.col("said_first").alias("own_first"),
        f.col("said_last").alias("own_last"),
        f.col("time").alias("routed_time"),
    )
    is_bundle = "via = who and token = said_first and token = said_last and token > 0"
    apart = f.abs(f.unix_seconds("time") - f.unix_seconds("routed_time")) < BRIDGE_S
    begin = f.col("first") + f.col("place")
    bundled = published.alias("p").join(routed.alias("r"), "id").filter(is_bundle).filter(apart)
    through_nodes = bundled.select(
        *("vhost", "queue", "id", "stay", "epoch"),
        begin.alias("first"),
        f.least(f.col("last"), begin + f.col("bundled") - 1).alias("last"),
        f.col("sender").alias("who"),
        f.col("own_first").alias("said_first"),
        f.col("own_last").alias("said_last"),
    )
    nodes = events.select(f.col("node").alias("who")).distinct()
    direct = published.drop("time").join(f.broadcast(nodes), "who", "left_anti")
    return direct.select(through_nodes.columns).unionByName(through_nodes)


def mapped(ledger: DataFrame, sent: DataFrame, label: str) -> DataFrame:
    """Ranges of queues' numbers with a label, of a ledger with `channel` as that of the publisher; and beside them
    which of the publisher's numbers they are, `own_first` and `own_last`."""
    from pyspark.sql import functions as f

    counted = sent.filter("said_last - said_first = last - first").select(
        *("vhost", "queue", "id", "stay", "epoch", "said_first", "said_last"),
        f.col("who").alias("channel"),
        f.col("first").alias("numbered"),
    )
    entries = ledger.filter("first is not null").select("publisher", "channel", "first", "last", "ms")
    shared = overlap(entries, counted, ["channel"], "said_first", "said_last")
    shift = f.col("numbered") - f.col("said_first")
    return shared.select(
        *("publisher", "vhost", "queue", "id", "stay", "epoch", "ms"),
        (f.col("low") + shift).alias("first"),
        (f.col("high") + shift).alias("last"),
        f.lit(label).alias("label"),
        f.col("low").alias("own_first"),
        f.col("high").alias("own_last"),
    )


def with_channels(consumed: DataFrame, published: DataFrame) -> DataFrame:
    """A consumer knows the publisher's name for itself; the publisher's ledger says which channel that was."""
    from pyspark.sql import functions as f

    named = published.select("publisher", "channel").filter("publisher is not null").distinct()
    return consumed.drop("channel").join(f.broadcast(named), "publisher", "left")


def compared(published: DataFrame, consumed: DataFrame | None, known: DataFrame) -> DataFrame:
    """Segments of publishers' own numbers: `client` (confirmed), `received`, and `known` to the journals."""
    from pyspark.sql import functions as f

    columns = ("queue", "publisher", "first", "last", "label", "ms")
    parts = published.filter("first is not null").withColumn("label", f.lit("client")).select(*columns)
    if consumed is not None:
        received = consumed.filter("first is not null").withColumn("label", f.lit("received")).select(*columns)
        parts = parts.unionByName(received)
    there = known.selectExpr("queue", "publisher", "own_first first", "own_last last", "'known' label", "ms")
    return sweep(parts.unionByName(there.select(*columns)), ["queue", "publisher"], LABELS, ["client", "received"])


def missing_ids(published: DataFrame, consumed: DataFrame | None) -> DataFrame:
    """Confirmed messages with ids that no consumer has noted."""
    told = published.filter("message_id is not null").select("queue", "message_id", "channel", "ms")
    if consumed is None:
        return told
    return told.join(consumed.select("queue", "message_id"), ["queue", "message_id"], "left_anti")


def repeated_ids(consumed: DataFrame) -> DataFrame:
    """Ids that consumers have noted more than once."""
    from pyspark.sql import functions as f

    return (
        consumed.filter("message_id is not null")
        .groupBy("queue", "message_id")
        .agg(f.count("*").alias("times"), f.max("ms").alias("ms"))
        .filter("times > 1")
    )
