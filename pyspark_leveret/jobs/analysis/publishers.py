"""Finds out who published which messages of a queue, and which messages were called safe and never came.

The master of a queue tells which numbers its messages got (`published`). For a client that is connected to another
node, the master knows only that node, and the node tells who the client is (`routed`). Both name the messages by a
producer and its numbers:

    node of the client    routed      the client's 1 … 500     are the producer's 301 … 800
    master                published   the producer's 301 … 800 are the queue's    1 … 500
    node of the client    safe        the producer's 301 … 800: the master has them safe, and the client may know

A node draws its name as a producer at each start, and numbers what it sends to a queue without a gap. So a number means
one message, whichever link it took, however often it was sent again, and whatever the clocks say. What was called safe
and was never published, though the master's journal is whole, contradicts the journals: most likely the master's disk
was put back to an earlier time. Such messages are *unmatched*, and nothing clean can be said of their queue.

**Journals of earlier versions** have no such numbers. There a bundle of messages had a number of its link (`token`),
which begins with 1 for each link. Such events belong together if they name the same node, queue and token, are less
than `BRIDGE_S` apart in time, and no other event fits as well. Everything else is unmatched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark_leveret.jobs.analysis.range_sweep import overlap, sweep

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

BRIDGE_S: Final = 300  # At most between the events `routed` of a node and `published` of the master.
NEAR_S: Final = 10  # So close to a change of the policy, nodes need not have told the same.
SENT: Final = ("vhost", "queue", "id", "stay", "epoch", "first", "last", "who", "said_first", "said_last")
_BUNDLE: Final = ("vhost", "queue", "id", "producer", "number_first", "number_last")
_CAME: Final = "kind = 'published' or (kind = 'recovered' and what = 'published')"
UNMATCHED: Final = ("vhost", "queue", "id", "who", "said_first", "said_last", "count", "ms")
_UNMATCHED: Final = (
    "vhost string, queue string, id bigint, who string, said_first bigint, said_last bigint, count bigint, ms bigint"
)


class Told(NamedTuple):
    """What there is in journals. Most have no events of earlier versions, and a join costs Spark seconds even if it is
    empty."""

    by_number: bool
    by_token: bool
    safe: bool
    again: bool

    @classmethod
    def of(cls, events: DataFrame) -> Told:
        is_routed = "kind = 'routed' and said_first is not null and"
        [row] = events.selectExpr(
            f"max({is_routed} producer is not null)", f"max({is_routed} producer is null and token > 0)",
            "max(kind = 'safe')", "max(kind = 'recovered' and what = 'published')",
        ).collect()  # fmt: skip
        return cls(*(bool(one) for one in row))


def publishes(events: DataFrame, told: Told) -> DataFrame:
    """Returns which channel published which messages: `who`, the numbers `first` to `last` of a queue, and `said_first`
    to `said_last`, the channel's own numbers, if it waits for confirms. Events that a node repeats after a start count
    only for messages without another event."""
    first = _publishes(events, events.filter("kind = 'published'"), told)
    if not told.again:
        return first
    first = first.localCheckpoint()  # It is needed twice, and has a large plan.
    retold = _publishes(events, events.filter("kind = 'recovered' and what = 'published'"), told)
    return first.unionByName(_less(retold, first).select(first.columns))


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


def _publishes(events: DataFrame, published: DataFrame, told: Told) -> DataFrame:
    from pyspark.sql import functions as f

    nodes = [row.node for row in events.select("node").distinct().collect()]
    found = published.filter("producer is null").filter(~f.col("who").isin(*nodes)).select(*SENT)
    if told.by_number:
        found = found.unionByName(_by_number(_routed(events), published))
    if told.by_token:
        found = found.unionByName(_by_token(_routed(events), published).filter("is_sure").select(*SENT))
    return found


def _routed(events: DataFrame) -> DataFrame:
    """Returns what the nodes of clients sent on. What was sent again was told again."""
    from pyspark.sql import functions as f

    return events.filter("kind = 'routed'").select(
        *_BUNDLE, "token", "place", "sampled", f.col("node").alias("via"), f.col("count").alias("bundled"),
        f.col("who").alias("sender"), f.col("said_first").alias("own_first"), f.col("said_last").alias("own_last"),
        f.col("time").alias("routed_time"),
    )  # fmt: skip


def _by_number(routed: DataFrame, published: DataFrame) -> DataFrame:
    """Returns messages whose publishers are known by the numbers of a producer."""
    from pyspark.sql import functions as f

    theirs = published.filter("producer is not null and number_last - number_first = last - first").select(
        *("vhost", "queue", "id", "stay", "epoch", "producer", "number_first", "number_last"),
        f.col("first").alias("numbered"),
    )
    ours = (
        routed.filter("producer is not null and own_first is not null")
        .selectExpr("id", "producer", "number_first first", "number_last last", "sender", "own_first", "own_last")
        .distinct()
    )
    shared = overlap(ours, theirs, ["id", "producer"], "number_first", "number_last")
    is_counted = f.col("own_last") - f.col("own_first") == f.col("last") - f.col("first")
    return shared.select(
        *("vhost", "queue", "id", "stay", "epoch"),
        (f.col("numbered") + f.col("low") - f.col("number_first")).alias("begin"),
        (f.col("numbered") + f.col("high") - f.col("number_first")).alias("end"),
        f.col("sender").alias("who"),
        f.when(is_counted, f.col("own_first") + f.col("low") - f.col("first"))
        .otherwise(f.col("own_first"))
        .alias("said_first"),
        f.when(is_counted, f.col("own_first") + f.col("high") - f.col("first"))
        .otherwise(f.col("own_last"))
        .alias("said_last"),
    ).withColumnsRenamed({"begin": "first", "end": "last"})  # fmt: skip


def _by_token(routed: DataFrame, published: DataFrame) -> DataFrame:
    """Returns messages that nodes of earlier versions told of, with `is_sure`: no other event fits as well."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    theirs = published.filter("producer is null and said_first = said_last and said_first > 0").select(
        *("vhost", "queue", "id", "stay", "epoch", "first", "last", "time"),
        f.col("who").alias("via"),
        f.col("said_first").alias("token"),
    )
    ours = routed.filter("token > 0").drop("vhost", "queue")
    apart = f.abs(f.unix_seconds("time") - f.unix_seconds("routed_time")) < BRIDGE_S
    begin = f.col("first") + f.col("place")
    pairs = theirs.join(ours, ["id", "via", "token"]).filter(apart)
    of_theirs = Window.partitionBy("id", "stay", "epoch", "first", "via", "token", "place")
    of_ours = Window.partitionBy("id", "via", "token", "place", "routed_time", "sender", "own_first")
    return pairs.select(
        *("vhost", "queue", "id", "stay", "epoch", "producer", "number_first", "number_last"),
        *("via", "token", "place", "routed_time"),
        begin.alias("begin"),
        f.least(f.col("last"), begin + f.col("bundled") - 1).alias("end"),
        f.col("sender").alias("who"),
        f.col("own_first").alias("said_first"),
        f.col("own_last").alias("said_last"),
        ((f.count("*").over(of_theirs) == 1) & (f.count("*").over(of_ours) == 1)).alias("is_sure"),
    ).withColumnsRenamed({"begin": "first", "end": "last"})  # fmt: skip


def coverage(events: DataFrame) -> DataFrame:
    """Returns for each `queue` whether journals tell of all its messages (`is_whole`), or a sample (`is_sampled`)."""
    from pyspark.sql import functions as f

    begun = f.when(f.col("kind") == "started", f.struct("epoch", "time", "last"))
    was_off = (f.col("kind") == "stopped") & (f.col("reason") == "off")
    of_id = events.filter("queue != ''").groupBy("queue", "id").agg(
        f.min(begun)["last"].alias("before"), f.max(was_off).alias("was_off"), f.max("sampled").alias("is_sampled")
    )  # fmt: skip
    is_whole = f.coalesce((f.col("before") == 0) & ~f.col("was_off"), f.lit(False))
    return of_id.groupBy("queue").agg(f.min(is_whole).alias("is_whole"), f.max("is_sampled").alias("is_sampled"))


def unanswered(events: DataFrame, told: Told) -> DataFrame:
    """Returns what nodes of clients sent on and nobody called safe, by the clients' own numbers: `queue`, `channel`,
    `said_first`, `said_last`. Earlier versions do not tell what was safe."""
    from pyspark.sql import functions as f

    keys = ("queue", "id", "producer")
    routed = _routed(events).filter("own_first is not null")
    parts = routed.filter("producer is not null").selectExpr(
        *keys, "number_first first", "number_last last", "'routed' label", "0L ms"
    )
    safe = events.filter("kind = 'safe'").selectExpr(
        *keys, "number_first first", "number_last last", "'safe' label", "0L ms"
    )
    open_ = sweep(parts.unionByName(safe), keys, ("routed", "safe")).filter("routed > 0 and safe = 0")
    senders = routed.selectExpr("id", "producer", "number_first", "number_last", "sender", "own_first", "own_last")
    named = overlap(open_, senders.distinct(), ["id", "producer"], "number_first", "number_last")
    shift = f.col("own_first") - f.col("number_first")
    by_number = named.filter("own_last - own_first = number_last - number_first").select(
        "queue",
        f.col("sender").alias("channel"),
        (f.col("low") + shift).alias("said_first"),
        (f.col("high") + shift).alias("said_last"),
    )
    by_token = routed.filter("producer is null and token > 0").selectExpr(
        "queue", "sender channel", "own_first said_first", "own_last said_last"
    )
    return by_number.unionByName(by_token) if told.by_number else by_token


# -- Called safe, and never published ------------------------------------------------------------------------------


def unmatched(events: DataFrame, horizon_ms: int, told: Told) -> DataFrame:
    """Returns what nodes of clients called safe, or in earlier versions only sent, and no master published.

    Left out is what may be missing for a good reason: before `horizon_ms` journals were cut; a journal that keeps a
    sample, was off, or began later than the other one, tells of less; a deleted queue took its messages with it.
    """
    from pyspark.sql import functions as f

    found = events.sparkSession.createDataFrame([], _UNMATCHED)
    if told.safe:
        found = found.unionByName(_unmatched_numbers(events))
    if told.by_token:
        found = found.unionByName(_unmatched_tokens(events))
    if not told.safe and not told.by_token:
        return found
    found = found.localCheckpoint()
    if found.isEmpty():
        return found
    queues = events.filter("queue != ''").groupBy("id").agg(
        f.max(f.col("sampled")).alias("is_sampled"),
        f.max((f.col("kind") == "stopped") & (f.col("reason") == "deleted")).alias("is_deleted"),
        f.collect_set(_ms_if((f.col("kind") == "stopped") & (f.col("reason") == "off"))).alias("off_ms"),
        f.min(_ms_if(f.col("kind") == "started")).alias("begun_ms"),
        f.min_by("last", _ms_if(f.col("kind") == "started")).alias("begun_last"),
    )  # fmt: skip
    near_ms = NEAR_S * 1000
    was_off = f.exists("off_ms", lambda at: f.abs(at - f.col("ms")) < near_ms)
    is_early = (f.col("begun_last") > 0) & (f.col("ms") < f.col("begun_ms") + near_ms)
    excused = f.col("is_sampled") | f.col("is_deleted") | was_off | is_early | (f.col("ms") < horizon_ms)
    return found.join(f.broadcast(queues), "id").filter(~f.coalesce(excused, f.lit(False))).select(*UNMATCHED)


def _ms_if(holds: Column) -> Column:
    from pyspark.sql import functions as f

    return f.when(holds, f.unix_millis("time"))


def _unmatched_numbers(events: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    keys = ("vhost", "queue", "id", "producer")
    is_known = events.columns.count("is_second") == 0  # Made-up events have been read in one go.
    safe = events.filter("kind = 'safe'" if is_known else "kind = 'safe' and not is_second")
    given = events.filter(f"producer is not null and ({_CAME})")
    routed = _routed(events)
    parts = safe.selectExpr(
        *keys, "number_first first", "number_last last", "'safe' label", "unix_millis(time) ms"
    ).unionByName(given.selectExpr(*keys, "number_first first", "number_last last", "'given' label", "0L ms"))
    lacking = sweep(parts, keys, ("safe", "given"), ("safe",)).filter("safe > 0 and given = 0")
    senders = (
        routed.filter("producer is not null")
        .selectExpr("id", "producer", "number_first", "number_last", "sender", "own_first", "own_last")
        .distinct()
    )
    named = overlap(lacking, senders, ["id", "producer"], "number_first", "number_last")
    is_counted = f.col("own_last") - f.col("own_first") == f.col("number_last") - f.col("number_first")
    return named.select(
        *("vhost", "queue", "id"),
        f.col("sender").alias("who"),
        f.when(is_counted, f.col("own_first") + f.col("low") - f.col("number_first")).alias("said_first"),
        f.when(is_counted, f.col("own_first") + f.col("high") - f.col("number_first")).alias("said_last"),
        (f.col("high") - f.col("low") + 1).alias("count"),
        f.col("safe_ms").cast("bigint").alias("ms"),
    )


def _unmatched_tokens(events: DataFrame) -> DataFrame:
    """Returns bundles of nodes of earlier versions, which did not tell what was safe."""
    from pyspark.sql import functions as f

    published = events.withColumn("stay", f.lit("")).filter(_CAME)
    sent = _routed(events).filter("producer is null and token > 0 and own_first is not null")
    key = ["id", "via", "token", "place", "routed_time"]
    once = published.dropDuplicates(["id", "who", "said_first", "first"])  # Some was told again after a start.
    known = _by_token(_routed(events), once).filter("is_sure").select(*key)
    return sent.join(known, key, "left_anti").select(
        *("vhost", "queue", "id"),
        f.col("sender").alias("who"),
        f.col("own_first").alias("said_first"),
        f.col("own_last").alias("said_last"),
        f.col("bundled").alias("count"),
        f.unix_millis("routed_time").alias("ms"),
    )
