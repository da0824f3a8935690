"""The audit: is everything that was confirmed accounted for?

    a  messages that were confirmed        journals: confirmed, or published with confirms; ledgers of clients
    b  what became of them at the nodes    journals: acked, expired, … at any node; queues: what they hold
    c  messages that consumers got         journals: acked; ledgers of clients

`journal_facts` turns all of it into ranges of numbers, and `range_sweep.sweep` lays them over each other. The result
are segments: neighbouring messages of one queue of which exactly the same is known. `judged` gives each segment its
fate; the rest is counting.

| fate | |
|---|---|
| accounted | acknowledged, left its queue in another regular way, is in its queue, or is in a consumer's ledger |
| deleted | was in a queue that was deleted |
| transient | does not outlive its node, which was stopped or killed |
| new | came while the audit was running |
| unknown | is nowhere, and a journal is incomplete, or the journals contradict each other |
| lost | was confirmed, is nowhere, and the journals are complete |
| withdrawn | was not confirmed, and its number was given again after a failover: its publisher sends it again |

No loss, but reported: **duplicated** (acknowledged twice, or twice in consumers' ledgers), **redelivered** (delivered
more than once), **reordered** (delivered for the first time after a later message), **late** (more than `late` seconds
between confirm and acknowledgement, or still waiting after that time).

A confirm counts from the publisher's side. Without a ledger, a message that was published with confirms counts as
confirmed, unless its number was given again: the events `confirmed` of the last second of a node that was killed may be
missing in its journal (docs/journal.md). What a client's node knows to be safe and no master tells of is unknown
(`publishers.unmatched`). With a ledger the ledger decides: what it has and complete journals do not know is lost.
docs/audit.md says what is assumed, and what is proved by what.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Final

from pyspark_leveret.connect import LeveretError
from pyspark_leveret.jobs import journal
from pyspark_leveret.jobs.analysis import faults, journal_facts, ledgers, publishers
from pyspark_leveret.jobs.analysis.range_sweep import lives, overlap, sweep
from pyspark_leveret.jobs.support import job_status
from pyspark_leveret.jobs.support.common import access_of, add_schedule, say

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

    Ledgers = tuple[DataFrame | None, DataFrame | None]  # Of publishers, and of consumers.

DESCRIPTION: Final = """\
Finds lost, duplicated and reordered messages. It reads the event journals of all nodes, the queues, and the ledgers of
clients if there are any, and reports what happened to every confirmed message. It covers queues whose policy has the
key 'journal'.
"""

REPEATS: Final = True  # It has the option --every.

EXAMPLES: Final = """\
examples:
  leveretctl set_policy watched '^orders' '{"journal": "full"}'    and from then on:
  leveret pipeline audit --out /data/audit                         prints a verdict, writes /data/audit/report.html
  leveret pipeline audit --servers one,two,three --queues 'orders\\..*' --late 5
  leveret perf -u orders -c 1000 --ledger /tmp/ledger; leveret pipeline audit --ledger /tmp/ledger
  leveret pipeline audit --every 1h --out /data/audit              runs every hour, and writes a new page
  leveret pipeline audit --follow --out /data/alarms               keeps running, and reports late and missing messages

exit codes: 0 nothing is lost, 1 something is lost, 2 unknown (there are no journals, parts of them are missing, or they
contradict each other: docs/audit.md), 130 interrupted
"""

OK: Final = 0
LOST: Final = 1
CANNOT_SAY: Final = 2
LATE_S: Final = 60.0
NEAR_S: Final = 10.0
POINTS: Final = 100  # About so many on the time axis of a chart.
STEPS: Final = 8  # Steps of latency from one power of two to the next.
AUDIT_STEPS: Final = 6
SHOWN: Final = 200  # Rows of a table in the report.
_KINDS: Final = {list: "array<string>", bool: "boolean", int: "bigint"}
TROUBLE: Final = ("lost", "unknown", "deleted", "duplicated", "redelivered", "reordered", "late")
COUNTS: Final = (
    "confirmed", "acked", "left", "present", "lost", "unknown", "deleted", "transient", "new", "withdrawn",
    "duplicated", "redelivered", "reordered", "late",
)  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """Numbers of messages by their fate. `confirmed` counts all that have to be accounted for."""

    confirmed: int = 0
    acked: int = 0
    left: int = 0
    present: int = 0
    lost: int = 0
    unknown: int = 0
    deleted: int = 0
    transient: int = 0
    new: int = 0
    withdrawn: int = 0
    duplicated: int = 0
    redelivered: int = 0
    reordered: int = 0
    late: int = 0
    queues: int = 0
    nodes: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()  # Nodes whose journals could not be read.
    jumped: tuple[str, ...] = ()  # Nodes whose clocks were set back, so that the beginning of journals is uncertain.
    unmatched: int = 0  # Of the unknown: nodes called them safe, and no master tells of them.
    is_foreign: bool = False  # No journal knows a channel of the ledger.
    is_crowded: bool = False  # Journals had no room for some events.
    begin_ms: int = 0
    end_ms: int = 0
    horizon_ms: int = 0

    @property
    def code(self) -> int:
        if self.lost:
            return LOST
        return CANNOT_SAY if self.unknown or not self.confirmed else OK

    @property
    def sentence(self) -> str:
        rest = [(self.acked, "acknowledged"), (self.left, "expired, rejected, dropped or dead-lettered")]
        rest += [(self.present, "still in the queue"), (self.deleted, "deleted with their queue")]
        rest += [(self.transient, "transient and gone with their node"), (self.new, "too new to judge")]
        parts = ", ".join(f"{count:,} {words}" for count, words in rest if count)
        queues = f"{self.queues} queue{'s' if self.queues != 1 else ''}"
        if not self.confirmed:
            return "CANNOT SAY: no journal tells of a confirmed message."
        if self.lost:
            return f"LOST: {self.lost:,} of {self.confirmed:,} confirmed messages are nowhere, in {queues} ({parts})."
        if self.unknown:
            return (
                f"CANNOT SAY: what became of {self.unknown:,} of {self.confirmed:,} messages is not known: "
                f"{'; '.join(self.reasons)}."
            )
        return f"NOTHING LOST: all {self.confirmed:,} confirmed messages of {queues} are accounted for: {parts}."


    @property
    def reasons(self) -> list[str]:
        """Why something is unknown."""
        why = [f"nodes {', '.join(self.silent)} do not run"] if self.silent else []
        if self.unmatched:
            why.append(
                f"nodes were told that {self.unmatched:,} messages are safe which no master's journal knows of "
                "(was a disk put back to an earlier time?)"
            )
        if self.is_foreign:
            why.append("no journal knows a channel of the ledger (is it of another cluster?)")
        if self.is_crowded:
            why.append("journals had no room for some events")
        if self.jumped:
            why.append(f"journals have dropped their beginning, and clocks were set back ({', '.join(self.jumped)})")
        return why or ["journals do not reach back so far, or tell of less than all messages"]


@dataclass(frozen=True)
class Rules:
    """Which messages are audited, and the limits."""

    queues: str | None = None  # A regular expression for names.
    vhost: str | None = None  # None: all.
    late_s: float = LATE_S
    near_s: float = NEAR_S
    published: str | None = None  # Paths of ledgers.
    consumed: str | None = None


@dataclass
class Audit:
    """The result. Tables of any size are DataFrames; what the report draws is collected."""

    verdict: Verdict
    queues: DataFrame
    channels: DataFrame
    findings: DataFrame
    faults: list[faults.Fault]
    width_ms: int
    rates: list[Row] = field(default_factory=list)  # bucket, kind, count
    latencies: list[Row] = field(default_factory=list)  # bucket, step, count


def step(number: int, text: str) -> None:
    say(f"step {number} of {AUDIT_STEPS}: {text}")


def before(parsed: argparse.Namespace) -> bool:
    """Checks that there are journals, before Spark is started, which takes a while. Returns whether there is little to
    do. Raises LeveretError."""
    found = journal_facts.find_journals(journal_facts.access_from({**access_of(parsed), "vhost": "/"}))
    return found.is_short and parsed.every is None and not parsed.follow


def audit(spark: SparkSession, options: Mapping[str, str], rules: Rules | None = None) -> Audit:
    """Runs the audit. `options` are those of `format("leveret")` for the broker. Raises LeveretError."""
    rules = rules or Rules()
    access = journal_facts.access_from({name: value for name, value in options.items() if name != "vhost"})
    journals = journal_facts.find_journals(access)
    if journals.silent:
        say(f"not readable, since their nodes do not run: the journals of {', '.join(journals.silent)}")
    # What is no ledger, or another cluster's, is refused at once.
    written = read_ledgers(spark, rules, journals.cluster)
    step(1, "reading the journals")
    first = _events(spark, options, rules, {"subscribe": ",".join(journals.names)})
    before = journal_facts.kept(first)
    step(2, f"have the journals of {', '.join(sorted(before.ends)) or 'nobody'}; looking into the queues")
    present = journal_facts.read_queues(spark, access, journal_facts.queues_told_of(first)).persist()
    found = present.filter("label = 'present'").agg({"first": "count"}).collect()[0][0]
    settled_at = time.monotonic() + journal_facts.SETTLE_S
    step(3, f"{found:,} ranges of messages are there; reading what the journals got meanwhile")
    time.sleep(max(0.0, settled_at - time.monotonic()))
    ends = {f"{journal.PREFIX}{node}": end for node, end in before.ends.items()}
    more = {"subscribe": ",".join(journals.names), "startingOffsets": json.dumps(ends)}
    second = _events(spark, options, rules, more)
    events = first.selectExpr("*", "false is_second").unionByName(second.selectExpr("*", "true is_second"))
    return examine(spark, events, present, rules, journals.silent, journals.cluster, written)


def _events(spark: SparkSession, options: Mapping[str, str], rules: Rules, more: Mapping[str, str]) -> DataFrame:
    from pyspark import StorageLevel

    found = journal.read(spark, {**options, "vhost": "/", **more})
    return journal_facts.filtered(found, rules.vhost, rules.queues).persist(StorageLevel.DISK_ONLY)


def examine(
    spark: SparkSession,
    events: DataFrame,
    present: DataFrame,
    rules: Rules,
    silent: tuple[str, ...] = (),
    cluster: str | None = None,
    written: Ledgers | None = None,
) -> Audit:
    """Judges events, as `journal.read` returns them, and the messages of queues, as `journal_facts.read_queues` does.
    Both are read many times, and should be persisted. `is_second` may mark events that were read after the queues.
    `cluster`: its name, for ledgers that have it. `written`: the ledgers, if they were read before. Raises
    LeveretError."""
    from pyspark.sql import functions as f

    now_ms = int(time.time() * 1000)
    published, consumed = written or read_ledgers(spark, rules, cluster)
    step(4, "gathering what was published, confirmed and acknowledged")
    kept = journal_facts.kept(events)
    events = journal_facts.with_stays(events, kept.has_moves)
    present = journal_facts.at_home(present, events, kept.has_moves)
    cuts: DataFrame | None = kept_apart(journal_facts.find_cuts(events))
    told = journal_facts.told(events).unionByName(journal_facts.behind(events)).unionByName(present)
    if cuts is None or cuts.isEmpty():
        cuts = None
    else:
        told = told.unionByName(journal_facts.cut_ranges(cuts))
    shape = publishers.Told.of(events)
    sent = kept_apart(publishers.publishes(events, shape))
    is_whole = not silent and not kept.left_out and not kept.jumped
    books = _Books(rules, sent, events, shape, kept.horizon_ms, is_whole, published, consumed)
    if published is not None:
        # A ledger that says that it is of this cluster needs no other sign of that.
        is_named = cluster is not None and published.filter("cluster is null").isEmpty()
        books.known = kept_apart(ledgers.mapped(published, sent, "client"))
        books.is_foreign = not is_named and ledgers.is_foreign(published, events)
    told = books.told(told)
    noted = kept_apart(books.found(publishers.unmatched(events, kept.horizon_ms, shape)))
    step(5, "laying all that is known of each message upon each other")
    segments = sweep(lives(told, cuts), journal_facts.KEYS, journal_facts.LABELS, journal_facts.TIMED).drop("edge")
    edges = present.filter("label = 'edge'").select("id", "stay", f.col("first").alias("edge"))
    segments = segments.join(f.broadcast(edges), ["id", "stay"], "left")
    judged_ = kept_apart(judged(segments, kept.horizon_ms, is_whole, now_ms, rules.late_s))
    all_findings = findings(judged_).unionByName(noted)
    step(6, "counting")
    troubles = faults.find(events)
    all_findings = kept_apart(joined_up(faults.near(spark, all_findings, troubles, rules.near_s)))
    whose = published_by(all_findings, sent)
    queues = kept_apart(per_queue(judged_, all_findings))
    sums = queues.agg(f.count("*").alias("queues"), *(f.sum(name).alias(name) for name in COUNTS)).collect()[0]
    verdict = Verdict(
        **{name: int(sums[name] or 0) for name in ("queues", *COUNTS)},
        nodes=tuple(sorted(kept.ends)), silent=silent, begin_ms=kept.begin_ms, end_ms=kept.end_ms,
        horizon_ms=kept.horizon_ms, jumped=kept.jumped, is_foreign=books.is_foreign, is_crowded=kept.left_out,
        unmatched=int(noted.filter("told_by = 'routed'").agg(f.sum("count")).collect()[0][0] or 0),
    )  # fmt: skip
    width_ms = width(kept.begin_ms, kept.end_ms)
    return Audit(
        verdict=verdict,
        queues=queues,
        channels=kept_apart(per_channel(events, sent, whose)),
        findings=kept_apart(_with_channels(all_findings, whose)),
        faults=troubles,
        width_ms=width_ms,
        rates=rates(events, width_ms),
        latencies=latencies(judged_, width_ms),
    )


def kept_apart(frame: DataFrame) -> DataFrame:
    """Computes a DataFrame now and cuts its plan: Spark goes over the whole plan at every step, and the plans of an
    audit grow large."""
    from pyspark import StorageLevel

    return frame.localCheckpoint(storageLevel=StorageLevel.DISK_ONLY)


@dataclass
class _Books:
    """The ledgers of clients, and what they find that journals alone do not."""

    rules: Rules
    sent: DataFrame
    events: DataFrame
    shape: publishers.Told
    horizon_ms: int
    is_whole: bool
    published: DataFrame | None = None
    consumed: DataFrame | None = None
    known: DataFrame | None = None
    is_foreign: bool = False

    def told(self, told: DataFrame) -> DataFrame:
        """Returns all ranges including those of the ledgers."""
        if self.published is None or self.known is None:
            return told
        told = told.unionByName(self.known.select(*journal_facts.COLUMNS))
        if self.consumed is not None:
            received = ledgers.mapped(ledgers.with_channels(self.consumed, self.published), self.sent, "received")
            told = told.unionByName(kept_apart(received.select(*journal_facts.COLUMNS)))
        return told

    def found(self, unmatched: DataFrame) -> DataFrame:
        """Returns the findings that are not about messages of the journals: `unmatched`, unless the ledger decides
        about them, and those of the ledgers."""
        from pyspark.sql import functions as f

        if self.published is not None:
            channels = self.published.filter("channel is not null").select(f.col("channel").alias("who")).distinct()
            unmatched = unmatched.join(f.broadcast(channels), "who", "left_anti")
        parts = [_noted_unmatched(unmatched)]
        if self.published is not None and self.known is not None:
            sent_on = ledgers.waiting(self.published, publishers.unanswered(self.events, self.shape))
            compared = kept_apart(ledgers.compared(self.published, self.consumed, self.known, sent_on))
            covered = compared.join(f.broadcast(publishers.coverage(self.events)), "queue", "left")
            parts.append(_noted(covered, self.rules, self.horizon_ms, self.is_whole and not self.is_foreign))
            fewer = ledgers.surplus(self.published, self.sent)
            parts.append(_noted_ids(fewer, f.col("count"), "lost" if self.is_whole else "unknown"))
            can_compare = self.consumed is not None and not self.consumed.filter("message_id is not null").isEmpty()
            missing = ledgers.missing_ids(self.published, self.consumed)
            parts.append(_noted_ids(missing, f.lit(1), "lost" if can_compare else "unknown"))
        if self.consumed is not None:
            parts.append(_noted_ids(ledgers.repeated_ids(self.consumed), f.lit(1), "duplicated"))
        found = parts[0]
        for one in parts[1:]:
            found = found.unionByName(one)
        return found


def read_ledgers(spark: SparkSession, rules: Rules, cluster: str | None) -> Ledgers:
    """Returns the ledgers of publishers and of consumers, None for those that are not given. Raises LeveretError."""

    def read(path: str | None, at: str) -> DataFrame | None:
        return None if path is None else _of_cluster(path, ledgers.read(spark, path, at), cluster)

    return read(rules.published, "confirmed_at"), read(rules.consumed, "received_at")


def _of_cluster(path: str, ledger: DataFrame, cluster: str | None) -> DataFrame:
    """Returns the ledger, if it is not of another cluster. Raises LeveretError."""
    ledger = ledger.persist()
    if cluster is not None:
        others = [row.cluster for row in ledger.filter(ledger.cluster != cluster).select("cluster").take(1)]
        if others:
            raise LeveretError(f"{path} is the ledger of cluster '{others[0]}', and the journals are of '{cluster}'")
    return ledger


# -- Judging -------------------------------------------------------------------------------------------------------


def judged(segments: DataFrame, horizon_ms: int, is_whole: bool, now_ms: int, late_s: float) -> DataFrame:
    """Adds `count`, `fate`, the time of the confirm (`promised_ms`) and the time until the ack to segments."""
    from pyspark.sql import functions as f

    def has(*labels: str) -> Column:
        found = f.lit(False)
        for label in labels:
            found = found | (f.col(label) > 0)
        return found

    promised = has("confirmed", "client") | (has("said", "kept") & ~has("cut"))
    accounted = has("acked", "left", "settled", "present", "received") | (has("moved") & has("elsewhere"))
    promised_ms = f.coalesce("client_ms", "confirmed_ms", "said_ms")
    excused = has("untold") | (f.coalesce(promised_ms, f.lit(0.0)) < horizon_ms) | f.lit(not is_whole)
    is_new = f.coalesce(f.col("first") >= f.col("edge"), f.lit(False))
    # A mirror had it on its disk, and whoever led the queue never told that it came.
    is_unheard = has("copied") & ~has("said", "unsaid", "transient", "kept") & ~accounted & ~has("deleted") & ~is_new
    fate = (
        f.when(
            ~promised,
            f.when(has("said", "kept") & has("cut") & ~accounted, "withdrawn").when(is_unheard, "unknown"),
        )
        .when(accounted, "accounted")
        .when(has("deleted"), "deleted")
        .when(has("transient") & ~has("said"), "transient")
        .when(is_new, "new")
        .when(excused, "unknown")
        .otherwise("lost")
    )
    latency = f.when(has("acked"), f.greatest(f.col("acked_ms") - promised_ms, f.lit(0.0)))
    waited = f.when(has("present") & ~has("acked"), f.lit(now_ms) - promised_ms)
    return segments.withColumns(
        {
            "count": f.col("last") - f.col("first") + 1,
            "fate": fate,
            "promised": promised,
            "promised_ms": promised_ms,
            "latency_ms": latency,
            "is_late": promised & (f.coalesce(latency, waited, f.lit(0.0)) > late_s * 1000),
        }
    )


def findings(segments: DataFrame) -> DataFrame:
    """Returns the findings: `kind`, `told_by`, `vhost`, `queue`, `id`, `first`, `last`, `count`, `at_ms`."""
    from pyspark.sql import functions as f

    fate = f.col("fate")
    last_ms = f.coalesce("acked_ms", "promised_ms")
    kinds = (
        ("lost", fate == "lost", f.col("promised_ms")),
        ("unknown", fate == "unknown", f.col("promised_ms")),
        ("deleted", fate == "deleted", f.col("promised_ms")),
        ("duplicated", f.col("acked") > 1, last_ms),
        ("redelivered", f.col("delivered") > 1, last_ms),
        ("reordered", (f.col("behind") > 0) & (f.col("delivered") == 1), last_ms),
        ("late", f.col("is_late"), last_ms),
    )
    options = [
        f.when(holds, f.struct(f.lit(kind).alias("kind"), at.cast("bigint").alias("at_ms")))
        for kind, holds, at in kinds
    ]
    return segments.withColumn("one", f.explode(f.array_compact(f.array(*options)))).select(
        "one.kind", f.lit("journal").alias("told_by"), *("vhost", "queue", "id", "first", "last", "count"), "one.at_ms"
    )


def joined_up(found: DataFrame) -> DataFrame:
    """Makes one finding of neighbouring ranges of which the same is found, near the same fault."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    key = ("kind", "told_by", "vhost", "queue", "id", "fault")
    order = Window.partitionBy(*key).orderBy("first", "last")
    reached = f.max("last").over(order.rowsBetween(Window.unboundedPreceding, -1))
    begins = f.when(f.col("first") <= reached + 1, 0).otherwise(1)  # Without numbers each stands alone.
    grouped = found.withColumn("begins", begins).withColumn("group", f.sum("begins").over(order)).groupBy(*key, "group")
    sums = (f.min("first").alias("first"), f.max("last").alias("last"), f.sum("count").alias("count"))
    return grouped.agg(*sums, f.min("at_ms").alias("at_ms")).select(*found.columns)


def _noted(segments: DataFrame, rules: Rules, horizon_ms: int, is_whole: bool) -> DataFrame:
    """Returns findings in publishers' own numbers: messages that no journal knows, and those that consumers got
    twice. What no journal knows is lost only if journals would know of it."""
    from pyspark.sql import functions as f

    missing = (f.col("client") > 0) & (f.col("received") == 0) & (f.col("known") == 0)
    twice = f.col("received") > 1
    is_told = f.coalesce(f.col("is_whole"), f.lit(False)) & f.lit(is_whole)
    is_told = is_told & (f.col("waiting") == 0) & (f.coalesce("client_ms", f.lit(horizon_ms)) >= horizon_ms)
    is_sampled = f.coalesce("is_sampled", f.lit(False))  # The verdict is about the sample.
    kind = f.when(missing & ~is_sampled, f.when(is_told, "lost").otherwise("unknown")).when(twice, "duplicated")
    return segments.withColumn("kind", kind).filter("kind is not null").select(
        "kind", f.lit("ledger").alias("told_by"), f.lit(rules.vhost or "/").alias("vhost"), "queue",
        f.lit(None).cast("bigint").alias("id"), "first", "last", (f.col("last") - f.col("first") + 1).alias("count"),
        f.coalesce("received_ms", "client_ms").cast("bigint").alias("at_ms"),
    )  # fmt: skip


def _noted_unmatched(unmatched: DataFrame) -> DataFrame:
    """Returns findings in publishers' own numbers."""
    return unmatched.selectExpr(
        "'unknown' kind", "'routed' told_by", "vhost", "queue", "cast(null as bigint) id", "said_first first",
        "said_last last", "count", "ms at_ms",
    )  # fmt: skip


def _noted_ids(ids: DataFrame, count: Column, kind: str) -> DataFrame:
    from pyspark.sql import functions as f

    nothing = f.lit(None).cast("bigint")
    return ids.groupBy("queue").agg(f.sum(count).alias("count"), f.min("ms").alias("at_ms")).select(
        f.lit(kind).alias("kind"), f.lit("ledger").alias("told_by"), f.lit("/").alias("vhost"), "queue",
        nothing.alias("id"), nothing.alias("first"), nothing.alias("last"), "count", "at_ms",
    )  # fmt: skip


def published_by(found: DataFrame, sent: DataFrame) -> DataFrame:
    """Returns who published the messages that are lost or unknown: `kind`, `vhost`, `queue`, `id`, `first`, `last` as
    in the findings, `channel`, and `count`. Messages without a known publisher are left out."""
    from pyspark.sql import functions as f

    whose = sent.selectExpr("id", "first low_sent", "last high_sent", "who channel")
    bad = found.filter(f.col("kind").isin("lost", "unknown") & f.col("id").isNotNull())
    key = ("kind", "vhost", "queue", "id", "first", "last")
    shared = overlap(bad.select(*key), whose, ["id"], "low_sent", "high_sent")
    return shared.select(*key, "channel", (f.col("high") - f.col("low") + 1).alias("count"))


def _with_channels(found: DataFrame, whose: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    key = ("kind", "vhost", "queue", "id", "first", "last")
    channels = whose.groupBy(*key).agg(f.concat_ws(", ", f.array_sort(f.collect_set("channel"))).alias("channel"))
    return found.join(channels, [*key], "left").withColumn("channel", f.coalesce("channel", f.lit("")))


# -- Counting ------------------------------------------------------------------------------------------------------


def per_queue(segments: DataFrame, found: DataFrame) -> DataFrame:
    """Returns a row for each queue, with `COUNTS`."""
    from pyspark.sql import functions as f

    promised, fate = f.col("promised"), f.col("fate")
    way = (
        f.when(~promised | (fate != "accounted"), fate)
        .when(f.col("present") > 0, "present")
        .when((f.col("left") > 0) & (f.col("acked") == 0), "left")
        .otherwise("acked")
    )
    ways = ("acked", "left", "present", "deleted", "transient", "new", "withdrawn")
    counted = segments.withColumn("way", way).groupBy("vhost", "queue").agg(
        f.sum(f.when(promised | (fate == "unknown"), f.col("count")).otherwise(0)).alias("promised"),
        *(f.sum(f.when(f.col("way") == name, f.col("count")).otherwise(0)).alias(name) for name in ways),
    )  # fmt: skip
    others = ("lost", "unknown", "duplicated", "redelivered", "reordered", "late")
    noted = found.groupBy("vhost", "queue").agg(
        *(f.sum(f.when(f.col("kind") == name, f.col("count")).otherwise(0)).alias(name) for name in others),
        # Messages that journals do not know were confirmed, too.
        f.sum(f.when((f.col("told_by") != "journal") & f.col("kind").isin("lost", "unknown"), f.col("count")))
        .alias("noted"),
    )  # fmt: skip
    joined = counted.join(noted, ["vhost", "queue"], "full").withColumn(
        "confirmed", f.coalesce("promised", f.lit(0)) + f.coalesce("noted", f.lit(0))
    )
    return joined.select("vhost", "queue", *(f.coalesce(name, f.lit(0)).alias(name) for name in COUNTS))


def per_channel(events: DataFrame, sent: DataFrame, whose: DataFrame) -> DataFrame:
    """Returns a row for each queue and channel: messages published by it, delivered to it, and lost of the
    published."""
    from pyspark.sql import functions as f

    def part(frame: DataFrame, name: str, count: Column) -> DataFrame:
        return (
            frame.groupBy("vhost", "queue", "channel").agg(f.sum(count).alias("count")).withColumn("what", f.lit(name))
        )

    published = part(sent.withColumnRenamed("who", "channel"), "published", f.col("last") - f.col("first") + 1)
    lost = whose.filter("kind = 'lost'")
    parts = published.unionByName(part(_taken(events), "delivered", f.col("count"))).unionByName(
        part(lost, "lost", f.col("count"))
    )
    what = ("published", "delivered", "lost")
    return parts.groupBy("vhost", "queue", "channel").agg(
        *(f.round(f.sum(f.when(f.col("what") == name, f.col("count")).otherwise(0))).cast("bigint").alias(name)
          for name in what)
    )  # fmt: skip


def _taken(events: DataFrame) -> DataFrame:
    """Returns deliveries with the channel that each went to. Consumers that took turns have a share of each range: what
    is told is not which messages one of them got, but how many of the ranges together."""
    from pyspark.sql import functions as f

    given = events.filter("kind = 'delivered'")
    alone = given.filter("who != ''").select("vhost", "queue", f.col("who").alias("channel"), "count")
    turns = given.filter("who = ''").withColumn("to", f.from_json("detail", "to map<string, bigint>")["to"])
    total = f.aggregate(f.map_values("to"), f.lit(0).cast("bigint"), lambda so_far, one: so_far + one)
    shares = turns.select("vhost", "queue", "count", total.alias("total"), f.explode("to").alias("channel", "taken"))
    named = shares.filter("channel != '' and total > 0")
    return alone.unionByName(named.select("vhost", "queue", "channel", f.expr("count * taken / total").alias("count")))


def width(begin_ms: int, end_ms: int) -> int:
    """Returns a round width for the steps of the time axis, of which there are about `POINTS`."""
    least = max((end_ms - begin_ms) / POINTS, 100)
    for unit in (100, 1_000, 10_000, 60_000, 600_000, 3_600_000, 86_400_000):
        for times in (1, 2, 5):
            if unit * times >= least:
                return unit * times
    return int(least)


def rates(events: DataFrame, width_ms: int) -> list[Row]:
    from pyspark.sql import functions as f

    bucket = f.floor(f.unix_millis("time") / width_ms).alias("bucket")
    kinds = f.col("kind").isin("published", "confirmed", "acked")
    return events.filter(kinds).groupBy(bucket, "kind").agg(f.sum("count").alias("count")).collect()


def latencies(segments: DataFrame, width_ms: int) -> list[Row]:
    """Counts times from confirm to ack: `step` is `STEPS` times the binary logarithm of the milliseconds plus one."""
    from pyspark.sql import functions as f

    bucket = f.floor(f.col("acked_ms") / width_ms).alias("bucket")
    step = f.floor(f.log2(f.col("latency_ms") + 1) * STEPS).alias("step")
    taken = segments.filter("promised and latency_ms is not null")
    return taken.groupBy(bucket, step).agg(f.sum("count").alias("count")).collect()


# -- The command ---------------------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_schedule(parser)
    add = parser.add_argument
    add("--out", metavar="FOLDER", help="folder for report and tables; with --follow, alarms")
    add("--queues", metavar="REGEX", help="only queues whose names match")
    add("--late", metavar="SECONDS", type=float, default=LATE_S, help=f"more from confirm to ack is late ({LATE_S:g})")
    add(
        "--near",
        metavar="SECONDS",
        type=float,
        default=NEAR_S,
        help=f"problems this close to a fault are attributed to it ({NEAR_S:g})",
    )
    add("--published", metavar="PATH", help="ledgers of publishers: JSON lines or Parquet")
    add("--consumed", metavar="PATH", help="ledgers of consumers")
    add("--ledger", metavar="FOLDER", help="both, as written by leveret perf --ledger")
    add("--follow", action="store_true", help="keep running, and report late and missing messages")
    add("--interval", metavar="SECONDS", type=float, default=10.0, help="with --follow: time between two checks (10)")
    add("--checkpoint", metavar="FOLDER", help="with --follow: folder for the progress (OUT/checkpoint)")


def run(spark: SparkSession, parsed: argparse.Namespace) -> int:
    from pyspark_leveret.jobs import report
    from pyspark_leveret.jobs.analysis import alarms

    options = access_of(parsed)
    rules = Rules(
        queues=parsed.queues,
        vhost=options.get("vhost"),
        late_s=parsed.late,
        near_s=parsed.near,
        published=_ledger(parsed.published, parsed.ledger, "published"),
        consumed=_ledger(parsed.consumed, parsed.ledger, "consumed"),
    )
    try:
        if parsed.follow:
            return alarms.run(spark, options, rules, parsed.out, parsed.checkpoint, parsed.interval)
        found = audit(spark, options, rules)
    except LeveretError as error:
        say(f"leveret pipeline audit: {error}")
        job_status.found(str(error), state="warning")
        return CANNOT_SAY
    if parsed.out is not None:
        write(spark, found, parsed.out)
        path = os.path.join(parsed.out, "report.html")
        with open(path, "w", encoding="utf-8") as file:
            file.write(report.page(found))
        say(f"report: {path}")
    print("\n".join(report.lines(found)), flush=True)
    job_status.found(
        found.verdict.sentence,
        {name: getattr(found.verdict, name) for name in ("queues", *COUNTS)},
        state="warning" if found.verdict.code == CANNOT_SAY else "",
        report="" if parsed.out is None else os.path.join(parsed.out, "report.html"),
    )
    return found.verdict.code


def _ledger(path: str | None, folder: str | None, name: str) -> str | None:
    if path is not None or folder is None:
        return path
    found = os.path.join(folder, name)
    return found if os.path.exists(found) else None


def write(spark: SparkSession, found: Audit, folder: str) -> None:
    """Writes verdict, queues, channels, faults and findings as Parquet, in place of those of an earlier run."""
    os.makedirs(folder, exist_ok=True)
    told = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(found.verdict).items()}
    kinds = {name: _KINDS[type(value)] for name, value in told.items()}
    schema = ", ".join(f"{name} {kind}" for name, kind in kinds.items())
    row = (found.verdict.sentence, found.verdict.code, *told.values())
    tables = {
        "verdict": spark.createDataFrame([row], f"sentence string, code bigint, {schema}"),
        "queues": found.queues,
        "channels": found.channels,
        "faults": faults.frame(spark, found.faults),
        "findings": found.findings,
    }
    for name, table in tables.items():
        table.coalesce(8).write.mode("overwrite").parquet(os.path.join(folder, name))
