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

TEXTS: Final = ("queue", "message_id", "publisher", "channel")
LABELS: Final = ("client", "received", "known")
BRIDGE_S: Final = 300  # At most between the events `routed` of a node and `published` of the master.


def read(spark: SparkSession, path: str, at: str) -> DataFrame:
    """Reads a ledger as `queue`, `message_id`, `publisher`, `channel`, `first`, `last`, `ms`, `redelivered`. `at`: its
    column of times. Raises LeveretError."""
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
    """Returns which channel published which messages: `who`, the numbers `first` to `last` of a queue, and `said_first`
    to `said_last`, the channel's own numbers, if it waits for confirms. For a client at another node, the master's
    event names that node, and the event `routed` of the node names the client. Events that a node repeats after a start
    count only for messages without another event."""
    told = _publishes(events, events.filter("kind = 'published'"))
    again = events.filter("kind = 'recovered' and what = 'published'")
    if again.isEmpty():
        return told
    retold = _publishes(events, again)
    return told.unionByName(_less(retold, told).select(told.columns))


def _less(retold: DataFrame, told: DataFrame) -> DataFrame:
    """Returns the ranges of `retold` that are not in `told`."""
    keys = ("vhost", "queue", "id", "stay", "who", "shift", "spread")
    shaped = ("*", "said_first - first shift", "(said_last - said_first) - (last - first) spread")

    def labelled(frame: DataFrame, label: str) -> DataFrame:
        return frame.selectExpr(*shaped).selectExpr(*keys, "first", "last", f"'{label}' label", "epoch ms")

    both = labelled(told, "told").unionByName(labelled(retold, "retold"))
    left = sweep(both, keys, ("told", "retold"), ("retold",)).filter("told = 0 and retold > 0")
    # After several starts it has several epochs, and is the same message in each: any will do.
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


def with_channels(consumed: DataFrame, published: DataFrame) -> DataFrame:
    """Adds the publisher's channel to a consumer's ledger, which names the publisher; the publisher's ledger has
    both."""
    from pyspark.sql import functions as f

    named = published.select("publisher", "channel").filter("publisher is not null").distinct()
    return consumed.drop("channel").join(f.broadcast(named), "publisher", "left")


def compared(published: DataFrame, consumed: DataFrame | None, known: DataFrame) -> DataFrame:
    """Returns segments of publishers' own numbers with counts: `client` (confirmed), `received`, `known` to
    journals."""
    from pyspark.sql import functions as f

    columns = ("queue", "publisher", "first", "last", "label", "ms")
    parts = published.filter("first is not null").withColumn("label", f.lit("client")).select(*columns)
    if consumed is not None:
        received = consumed.filter("first is not null").withColumn("label", f.lit("received")).select(*columns)
        parts = parts.unionByName(received)
    there = known.selectExpr("queue", "publisher", "own_first first", "own_last last", "'known' label", "ms")
    return sweep(parts.unionByName(there.select(*columns)), ["queue", "publisher"], LABELS, ["client", "received"])


def missing_ids(published: DataFrame, consumed: DataFrame | None) -> DataFrame:
    """Returns confirmed messages whose ids are in no consumer's ledger."""
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
