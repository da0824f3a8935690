"""Reads the ledgers of clients: which messages a broker confirmed to them, and which they received.

A ledger is a file or a folder of Parquet, or of JSON lines. Columns:

| | published | consumed | |
|---|---|---|---|
| `queue` | yes | yes | |
| `message_id` | either | either | identifies the message |
| `number`, `last` | or | or | the publisher's number of the message, as confirms count; with `last`, a range of them |
| `publisher` | with number | with number | the publisher that counts |
| `channel` | yes | yes | the connection and channel as journals name them: `10.0.0.7:40000 -> 10.0.0.1:5672 (1)` |
| `confirmed_at` | yes | | milliseconds since 1970, or a timestamp |
| `received_at` | | yes | likewise |
| `redelivered` | | yes | as the broker said |
| `cluster` | yes | yes | the name of the cluster, as the broker said; may be missing |

With `number`, a ledger can be compared with the journals: they tell which numbers of a queue the publisher's numbers
became (`said`), so the client's and the nodes' records are about the same message. With `message_id` that is not
possible, and ledgers are compared only with each other. `leveret perf --ledger` writes numbers.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from pyspark_leveret.connect import LeveretError
from pyspark_leveret.jobs.analysis.range_sweep import overlap, sweep

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

TEXTS: Final = ("queue", "message_id", "publisher", "channel", "cluster")
LABELS: Final = ("client", "received", "known", "waiting")


def read(spark: SparkSession, path: str, at: str) -> DataFrame:
    """Reads a ledger as `queue`, `message_id`, `publisher`, `channel`, `first`, `last`, `ms`, `redelivered`. `at`: its
    column of times. Raises LeveretError."""
    from pyspark.sql import functions as f

    if "://" not in path and not os.path.exists(path):
        raise LeveretError(f"there is no ledger {path}")
    found = spark.read.parquet(path) if _is_parquet(path) else spark.read.json(path)
    if not found.columns:  # No line yet.
        found = spark.createDataFrame([], "queue string, number bigint")
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


def mapped(ledger: DataFrame, sent: DataFrame, label: str) -> DataFrame:
    """Turns a ledger, whose `channel` is that of the publisher, into labelled ranges of queues' numbers, with the
    publisher's own numbers as `own_first` and `own_last`."""
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


def waiting(ledger: DataFrame, sent: DataFrame) -> DataFrame:
    """Returns the publishers' own numbers of messages that a node has sent on, and nobody called safe."""
    entries = ledger.filter("first is not null").select("queue", "publisher", "channel", "first", "last", "ms")
    found = overlap(entries, sent, ["queue", "channel"], "said_first", "said_last")
    return found.selectExpr("queue", "publisher", "low first", "high last", "'waiting' label", "ms")


def surplus(published: DataFrame, sent: DataFrame) -> DataFrame:
    """Returns messages of publishers whose channels had the same name, where journals know fewer messages than were
    confirmed: `queue`, `count`, `ms`. Which of the publishers sent the known ones cannot be said."""
    from pyspark.sql import functions as f

    keys = ("queue", "channel")
    entries = published.filter("first is not null and publisher is not null").withColumn("label", f.lit("client"))
    columns = (*keys, "first", "last", "label", "ms")
    once = sweep(entries.select("publisher", *columns), [*keys, "publisher"], ("client",), ("client",))
    claimed = once.selectExpr(*keys, "first", "last", "'client' label", "cast(client_ms as bigint) ms")
    known = sent.filter("said_last - said_first = last - first").selectExpr(
        "queue", "who channel", "said_first first", "said_last last", "'known' label", "0L ms"
    )
    both = sweep(claimed.unionByName(known), keys, ("client", "known"), ("client",)).filter("client > known")
    lacking = both.filter("known > 0").selectExpr(
        "queue", "(last - first + 1) * (client - known) count", "cast(client_ms as bigint) ms"
    )
    return lacking.select("queue", "count", "ms")


def is_foreign(published: DataFrame, events: DataFrame) -> bool:
    """Returns whether no journal knows any channel of the ledger."""
    from pyspark.sql import functions as f

    channels = published.filter("first is not null").select("channel").distinct()
    known = events.filter(f.col("kind").isin("published", "recovered", "routed", "delivered"))
    return not channels.isEmpty() and channels.join(known, f.col("channel") == f.col("who"), "left_semi").isEmpty()


def with_channels(consumed: DataFrame, published: DataFrame) -> DataFrame:
    """Adds the publisher's channel to a consumer's ledger, which names the publisher; the publisher's ledger has
    both."""
    from pyspark.sql import functions as f

    named = published.select("publisher", "channel").filter("publisher is not null").distinct()
    return consumed.drop("channel").join(f.broadcast(named), "publisher", "left")


def compared(published: DataFrame, consumed: DataFrame | None, known: DataFrame, sent_on: DataFrame) -> DataFrame:
    """Returns segments of publishers' own numbers with counts: `client` (confirmed), `received`, `known` to
    journals, `waiting` (sent on by a node, and not called safe)."""
    from pyspark.sql import functions as f

    columns = ("queue", "publisher", "first", "last", "label", "ms")
    parts = published.filter("first is not null").withColumn("label", f.lit("client")).select(*columns)
    if consumed is not None:
        received = consumed.filter("first is not null").withColumn("label", f.lit("received")).select(*columns)
        parts = parts.unionByName(received)
    there = known.selectExpr("queue", "publisher", "own_first first", "own_last last", "'known' label", "ms")
    parts = parts.unionByName(there.select(*columns)).unionByName(sent_on.select(*columns))
    return sweep(parts, ["queue", "publisher"], LABELS, ["client", "received"])


def missing_ids(published: DataFrame, consumed: DataFrame | None) -> DataFrame:
    """Returns confirmed messages whose ids are in no consumer's ledger; all of them if there is none."""
    told = published.filter("message_id is not null").select("queue", "message_id", "channel", "ms")
    if consumed is None:
        return told
    return told.join(consumed.select("queue", "message_id"), ["queue", "message_id"], "left_anti")


def repeated_ids(consumed: DataFrame) -> DataFrame:
    """Returns ids that are in consumers' ledgers more than once."""
    from pyspark.sql import functions as f

    return (
        consumed.filter("message_id is not null")
        .groupBy("queue", "message_id")
        .agg(f.count("*").alias("times"), f.max("ms").alias("ms"))
        .filter("times > 1")
    )
