"""What is known of each message, from the journals, the queues, and the ledgers of clients.

All of it becomes ranges of message numbers with a label, which `range_sweep.sweep` lays over each other. A message is
identified by

    vhost, queue, id    its queue; the id, because a queue may be deleted and declared again
    stay                "" as a rule. A queue without mirrors that moves to another node begins with new numbers there:
                        then the node, and how often the queue was there before
    life                0 as a rule: how many messages had that number before (see `range_sweep.lives`)
    number

| label | told by | |
|---|---|---|
| said | published | the publisher waits for a confirm of it |
| unsaid | published | the publisher does not |
| transient | published | it does not outlive its node |
| confirmed | confirmed | |
| acked | acked | |
| left | rejected, expired, dropped, dead-lettered | |
| settled | replicated, recovered | a mirror has noted that it left the queue, or a node knew so when it started |
| kept | recovered | a node that started still had it, with a publisher that waits for a confirm |
| copied | replicated | a mirror has it on its disk |
| delivered, behind | delivered | `behind`: after one with a higher number |
| moved, elsewhere | delivered, stopped | sent to another node with its queue; the whole stay ended so |
| deleted, untold | stopped | deleted with its queue; unknown, because `journal` was `off` |
| cut | promoted, started | its number was given to another message, or will be |
| present | the queue | it is in the queue |
| edge | the queue | not a label of messages: the first number that was not safe when the queue was read |
| client, received | ledgers | a publisher was told of the confirm; a consumer had it |

**The order of reading.** First the journals, to know which queues there are; then the queues; then the events that the
journals got meanwhile, so that a message acknowledged in between is not missing in both. Messages that came after a
queue was read, from `edge` on, are not judged. Journals get an event within a second, or with the next commit; so
between the two readings some time has to pass (`SETTLE_S`), most of which the reading itself takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pyspark_leveret.connect import PLANNING_PATIENCE_S, LeveretError, client, explained, new_client
from pyspark_leveret.jobs import journal
from pyspark_leveret.options import Access, Options

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

    from leveret.data.client import QueueInfo

SETTLE_S: Final = 2.0
SHORT_BYTES: Final = 32 << 20  # Of journals that are read in less time than Java takes to compile well.
SLACK_MS: Final = 1_000  # Clocks of nodes are at most so far apart.
JUMP_MS: Final = 5_000  # A clock that goes back by more was set.
PIECE: Final = 50_000_000  # Message numbers of a queue that one task asks for.
TASKS_MAX: Final = 200

KEYS: Final = ("vhost", "queue", "id", "stay", "life")
LABELS: Final = (
    "said", "unsaid", "kept", "confirmed", "acked", "left", "settled", "delivered", "behind", "moved", "elsewhere",
    "deleted", "untold", "cut", "present", "edge", "client", "received", "transient", "copied",
)  # fmt: skip
TIMED: Final = ("said", "confirmed", "acked", "client")
COLUMNS: Final = ("vhost", "queue", "id", "stay", "epoch", "first", "last", "label", "ms")
_PRESENT: Final = "vhost string, queue string, id bigint, stay string, epoch bigint, first bigint, last bigint"
_LAST_EPOCH: Final = 1 << 62


@dataclass(frozen=True)
class Journals:
    """The journals of a cluster."""

    names: tuple[str, ...]
    silent: tuple[str, ...]  # Nodes that do not run: their journals cannot be read.
    cluster: str | None = None  # The cluster's name; None if the user may not ask for it.
    bytes: int = 0  # Of those that can be read, approximately.

    @property
    def is_short(self) -> bool:
        return self.bytes < SHORT_BYTES


@dataclass(frozen=True)
class Kept:
    """Facts about the journals as a whole."""

    ends: Mapping[str, int]  # By node: the offset of the first message that was not read.
    begin_ms: int
    end_ms: int
    horizon_ms: int  # Events before this time may have been dropped by a journal.
    jumped: tuple[str, ...]  # Nodes whose clocks were set back, while a journal has dropped its beginning.
    left_out: bool  # Journals dropped events for lack of room.
    has_moves: bool


def access_from(options: Mapping[str, str]) -> Access:
    return Options({"subscribe": "any", **options}).source(streaming=False).access


def find_journals(access: Access) -> Journals:
    """Returns the journals of all nodes. Raises LeveretError if none can be read."""
    with explained(access, "look for journals"):
        found = client(replace(access, vhost="/"), PLANNING_PATIENCE_S).queues(pattern=journal.PATTERN)
    readable = [info for info in found if any(member.url is not None for member in info.members)]
    if not readable:
        raise LeveretError(
            "there is no journal to read: a policy with the key 'journal' makes nodes keep one, for example "
            "leveretctl set_policy journal '^orders' '{\"journal\": \"full\"}' (docs/journal.md)"
        )
    silent = tuple(info.master for info in found if info not in readable)
    with explained(access, "ask for the name of the cluster"):
        cluster = client(replace(access, vhost="/"), PLANNING_PATIENCE_S).cluster_name()
    return Journals(tuple(info.name for info in readable), silent, cluster, sum(info.bytes for info in readable))


def kept(events: DataFrame) -> Kept:
    """Computes the facts about the journals from all events."""
    from pyspark.sql import functions as f

    of_node = events.groupBy("node").agg(
        f.min("offset").alias("first"),
        f.max("offset").alias("last"),
        f.unix_millis(f.min("time")).alias("begin"),
        f.unix_millis(f.max("time")).alias("end"),
        f.max(f.col("kind") == "left-out").alias("left_out"),
        f.max(f.col("who").startswith("moving to ")).alias("moves"),
    )
    rows = of_node.collect()
    is_cut = any(row["first"] > 0 for row in rows)
    return Kept(
        ends={row.node: row["last"] + 1 for row in rows},
        begin_ms=min((row.begin for row in rows), default=0),
        end_ms=max((row.end for row in rows), default=0),
        horizon_ms=max((row.begin + SLACK_MS for row in rows if row["first"] > 0), default=0),
        jumped=_jumped(events) if is_cut else (),
        left_out=any(row.left_out for row in rows),
        has_moves=any(row.moves for row in rows),
    )


def _jumped(events: DataFrame) -> tuple[str, ...]:
    """Returns the nodes whose clocks were set back: what came before the beginning of a journal is a matter of time."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    messages = events.groupBy("node", "offset").agg(f.unix_millis(f.max("time")).alias("ms"))
    before = f.max("ms").over(Window.partitionBy("node").orderBy("offset").rowsBetween(Window.unboundedPreceding, -1))
    back = messages.withColumn("before", before).filter(f.col("ms") < f.col("before") - JUMP_MS)
    return tuple(sorted(row.node for row in back.select("node").distinct().collect()))


def with_stays(events: DataFrame, has_moves: bool) -> DataFrame:
    """Returns events with the column `stay`."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    if not has_moves:
        return events.withColumn("stay", f.lit(""))
    moved = events.filter(f.col("who").startswith("moving to ")).select("id").distinct()
    before = Window.partitionBy("id", "node").orderBy("offset", "position").rowsBetween(Window.unboundedPreceding, -1)
    is_end = (f.col("kind") == "stopped") & f.col("reason").isin("elsewhere", "abandoned")
    ends = f.coalesce(f.sum(f.when(is_end, 1).otherwise(0)).over(before), f.lit(0))
    stay = f.concat("node", f.lit("#"), ends.cast("string"))
    movers = events.join(f.broadcast(moved), "id", "left_semi").withColumn("stay", stay)
    others = events.join(f.broadcast(moved), "id", "left_anti").withColumn("stay", f.lit(""))
    return movers.select(others.columns).unionByName(others)


def find_cuts(events: DataFrame) -> DataFrame:
    """Finds where numbers were given to new messages: `id`, `stay`, `vhost`, `queue`, `from_epoch`, `through`, and the
    highest number that had been given before (`until`)."""
    from pyspark.sql import functions as f

    begun = (
        events.filter(f.col("kind").isin("promoted", "started") & (f.col("queue") != ""))
        .groupBy("vhost", "queue", "id", "stay", f.col("epoch").alias("from_epoch"))
        .agg(f.min("last").alias("through"))
    )
    given = (
        events.filter(
            f.col("kind").isin("published", "confirmed", "recovered")
            | ((f.col("kind") == "replicated") & (f.col("what") == "published") & (f.col("epoch") > 0))
        )
        .groupBy("id", "stay", "epoch")
        .agg(f.max("last").alias("given"))
    )
    return (
        begun.join(given, ["id", "stay"])
        .filter("epoch < from_epoch and given > through")
        .groupBy("vhost", "queue", "id", "stay", "from_epoch", "through")
        .agg(f.max("given").alias("until"))
    )


def told(events: DataFrame) -> DataFrame:
    """Returns a labelled range for each event that is about messages."""
    from pyspark.sql import functions as f

    kind, reason = f.col("kind"), f.col("reason")
    label = (
        f.when(
            kind == "published",
            f.when(f.col("transient"), "transient").when(f.col("said_first").isNotNull(), "said").otherwise("unsaid"),
        )
        .when((kind == "confirmed") & ~f.col("transient"), "confirmed")
        .when(kind == "acked", "acked")
        .when(kind.isin("rejected", "expired", "dropped", "dead-lettered"), "left")
        .when(kind.isin("replicated", "recovered") & (f.col("what") == "settled"), "settled")
        .when(kind == "recovered", "kept")
        .when((kind == "replicated") & (f.col("what") == "published"), "copied")
        .when((kind == "delivered") & f.col("who").startswith("moving to "), "moved")
        .when((kind == "delivered") & ~f.col("who").startswith("lease "), "delivered")
        .when((kind == "stopped") & (reason == "elsewhere"), "elsewhere")
        .when((kind == "stopped") & (reason == "deleted"), "deleted")
        .when((kind == "stopped") & (reason == "off"), "untold")
    )
    return (
        events.filter(f.col("queue") != "")
        .withColumns({"label": label, "ms": f.unix_millis("time")})
        .filter(f.col("label").isNotNull())
        .select(*COLUMNS)
    )


def behind(events: DataFrame) -> DataFrame:
    """Returns the ranges that were delivered after a message with a higher number."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    out = events.filter(
        (f.col("kind") == "delivered") & ~f.col("who").startswith("moving to ") & ~f.col("who").startswith("lease ")
    )
    order = Window.partitionBy("id", "stay").orderBy("epoch", "time", "offset", "position")
    highest = f.max("last").over(order.rowsBetween(Window.unboundedPreceding, -1))
    return (
        out.withColumns({"highest": highest, "label": f.lit("behind"), "ms": f.unix_millis("time")})
        .filter("first < highest")
        .withColumn("last", f.least("last", "highest"))
        .select(*COLUMNS)
    )


def cut_ranges(cuts: DataFrame) -> DataFrame:
    """Returns the ranges of messages that were lost in a cut."""
    from pyspark.sql import functions as f

    return cuts.select(
        "vhost", "queue", "id", "stay", (f.col("from_epoch") - 1).alias("epoch"), (f.col("through") + 1).alias("first"),
        f.col("until").alias("last"), f.lit("cut").alias("label"), f.lit(0).cast("bigint").alias("ms"),
    )  # fmt: skip


# -- Messages in the queues ----------------------------------------------------------------------------------------


def queues_told_of(events: DataFrame) -> dict[str, dict[int, str]]:
    """Returns ids and names of the queues in the journals, by vhost."""
    found: dict[str, dict[int, str]] = {}
    for row in events.filter("queue != ''").select("vhost", "queue", "id").distinct().toLocalIterator():
        found.setdefault(row.vhost, {})[row.id] = row.queue
    return found


def read_queues(spark: SparkSession, access: Access, wanted: Mapping[str, Mapping[int, str]]) -> DataFrame:
    """Returns the messages that queues have, as ranges with the label `present`, and the `edge` of each queue. Deleted
    queues, and other queues of the same name, are left out."""
    rows: list[tuple[str, str, int, int, int, bool]] = []
    edges: list[tuple[str, str, int, int]] = []
    for vhost, ids in wanted.items():
        with explained(access, f"list the queues of vhost '{vhost}'"):
            found = client(replace(access, vhost=vhost), PLANNING_PATIENCE_S).queues(pattern=".*")
        for info in found:
            if info.id in ids and not info.is_down:
                shift = 1 if info.type == "stream" else 0
                edges.append((vhost, info.name, info.id, info.next + shift))
                rows += [(vhost, info.name, info.id, first, last, shift > 0) for first, last in _pieces(info)]
    edge = spark.createDataFrame(edges, "vhost string, queue string, id bigint, edge bigint")
    pieces = spark.createDataFrame(
        rows, "vhost string, queue string, id bigint, first bigint, last bigint, is_stream boolean"
    ).repartition(max(1, min(len(rows), TASKS_MAX)))
    present = pieces.mapInArrow(_reader(access), _PRESENT).selectExpr("*", "'present' label", "0L ms")
    marks = edge.selectExpr(
        *("vhost", "queue", "id", "'' stay", f"{_LAST_EPOCH}L epoch"),
        "edge first",
        "edge last",
        "'edge' label",
        "0L ms",
    )
    return present.select(*COLUMNS).unionByName(marks)


def _pieces(info: QueueInfo) -> Iterator[tuple[int, int]]:
    last = info.next - 1
    step = last - info.first + 1 if info.type == "stream" else PIECE
    for first in range(info.first, last + 1, max(step, 1)):
        yield first, min(first + step - 1, last)


def _reader(access: Access) -> Any:
    """Makes the function that tasks run: it takes pieces of queues and yields the ranges that are there."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        schema = pa.schema(
            [("vhost", pa.string()), ("queue", pa.string()), ("id", pa.int64()), ("stay", pa.string())]
            + [(name, pa.int64()) for name in ("epoch", "first", "last")]
        )
        for batch in batches:
            for row in batch.to_pylist():
                for ranges in _live(replace(access, vhost=row["vhost"]), row):
                    count = len(ranges)
                    fixed = [[row[name]] * count for name in ("vhost", "queue", "id")]
                    columns = [*fixed, [""] * count, [_LAST_EPOCH] * count, *map(list, zip(*ranges, strict=True))]
                    yield pa.RecordBatch.from_arrays(
                        [pa.array(column, kind.type) for column, kind in zip(columns, schema, strict=True)],
                        schema=schema,
                    )

    return read


def _live(access: Access, row: Mapping[str, Any]) -> Iterator[Sequence[tuple[int, int]]]:
    first, last = row["first"], row["last"]
    if row["is_stream"]:  # A stream has no holes, and its numbers here begin with 1.
        yield [(first + 1, last + 1)]
        return
    from leveret.data.client import Refused

    with explained(access, f"read queue '{row['queue']}'"), new_client(access, 60.0) as reader:
        try:
            yield from reader.numbers(row["queue"], first, last)
        except Refused as refusal:
            if refusal.status != 404:  # A 404: deleted meanwhile. The journals, which are read later, tell so.
                raise


def at_home(present: DataFrame, events: DataFrame, has_moves: bool) -> DataFrame:
    """Assigns present messages to the last stay of their queue."""
    from pyspark.sql import functions as f

    if not has_moves:
        return present
    latest = (
        events.filter(f.col("stay") != "")
        .groupBy("id")
        .agg(f.max_by("stay", f.struct("time", "offset", "position")).alias("latest"))
    )
    joined = present.join(f.broadcast(latest), "id", "left")
    return joined.withColumn("stay", f.coalesce("latest", "stay")).select(*COLUMNS)


def filtered(events: DataFrame, vhost: str | None, pattern: str | None) -> DataFrame:
    """Returns the events of these queues, and all events of nodes."""
    from pyspark.sql import functions as f

    wanted: Column = f.col("queue") == ""
    theirs = f.lit(True)
    if vhost is not None:
        theirs = theirs & (f.col("vhost") == vhost)
    if pattern is not None:
        theirs = theirs & f.col("queue").rlike(f"^(?:{pattern})$")
    return events.filter(wanted | theirs)
