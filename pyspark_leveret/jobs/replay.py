"""`leveret pipeline replay`: publishes messages of a lake again, in the order of their arrival, each once.

**First they are copied.** The requested rows go to a spool, sorted by time and cut into parts of some thousands; the
first part is published when the spool is complete. So the lake may change meanwhile: an archive may add to it, and
small files may be put together. The spool needs room for everything that is replayed.

**Then they are published**, part after part, and each part is noted when all of it is confirmed. If the job dies, the
same command continues with the first part that is not noted. That part may have been published, or half of it. Its rows
are numbered

    name = replay / id of the spool / task        number = part << 32 | row

like those of the sink, and the broker takes each number once (`sink.publisher`). The rows and their order are in the
spool, so they are the same in every attempt. RabbitMQ does not know such numbers: there, an interrupted part is
published again from its beginning.

    CHECKPOINT/request.json       the request, and the id
    CHECKPOINT/spool/…            the rows; complete if it has _SUCCESS
    CHECKPOINT/done/00000012      part 12 is confirmed
    CHECKPOINT/finished           all parts are confirmed; then the spool is deleted

After that the same command does nothing, unless --again is given: a user who repeats it because a machine was lost
cannot know how far it had come.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pyspark_leveret.connect import LeveretError
from pyspark_leveret.jobs import lake
from pyspark_leveret.jobs.support import job_status
from pyspark_leveret.jobs.support.common import access_of, say
from pyspark_leveret.jobs.support.hadoop_files import Files
from pyspark_leveret.jobs.support.rate_limit import Pace
from pyspark_leveret.jobs.support.signals import GOES_ON, if_stopped
from pyspark_leveret.options import Options, SinkOptions
from pyspark_leveret.schema import COLUMNS, OF_QUEUES
from pyspark_leveret.sink.publisher import Publisher

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

DESCRIPTION: Final = """\
Publishes messages of a lake (see: leveret pipeline archive) again, in their order of arrival, each exactly once: if it
is interrupted, the same command continues where it stopped. --servers names AMQP ports (host, amqp://host:5672).
"""

EXAMPLES: Final = """\
examples:
  leveret pipeline replay --from /data/lake --queue orders --since 2026-11-01 --until 2026-11-02T12:00 --rate 5000
                                     to their original exchange, with their original routing key
  leveret pipeline replay --from /data/lake --queue orders --own-queue
                                     only to the queue that they were archived from
  leveret pipeline replay --from /data/lake --where "headers['tenant'] = '7' and content_type like '%json'" \\
      --exchange repair --routing-key again
  leveret pipeline replay --from /data/lake --since 2026-11-01 --dry-run
                                     only counts them
"""

PART_ROWS: Final = 200_000
PART_S: Final = 30.0  # With a rate: the duration of a part, so that little is repeated.
PART_ROWS_MIN: Final = 1_000
# Headers that brokers write or read and that are no text. A lake has them as JSON text, which a broker would refuse.
LEFT_OUT: Final = ("x-death", "x-delivery-count", "CC", "BCC")
_PUBLISHED: Final = tuple(name for name in COLUMNS if name not in OF_QUEUES)
_SPOOLED: Final = ("queue", "place", *_PUBLISHED)


@dataclass(frozen=True)
class Request:
    """What is replayed, and where to; without `exchange` or `routing_key`, those of each message. Each request is a
    replay of its own."""

    lake: str
    queues: tuple[str, ...] = ()
    since: str | None = None
    until: str | None = None
    where: str | None = None
    exchange: str | None = None
    routing_key: str | None = None
    own_queue: bool = False
    vhost: str = "/"
    parallel: int = 1  # Part of the request: the assignment of rows to tasks must not change.

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]


class BadRequest(LeveretError):
    """A request that contradicts itself, or the one that was begun."""


SPEAKS_AMQP: Final = True
REPORT_TO: Final = job_status.NOWHERE  # Its --servers are AMQP ports.


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--from", dest="lake", metavar="PATH", required=True, help="the lake")
    parser.add_argument(
        "--queue", metavar="NAME", action="append", default=[], help="only this queue (may be repeated)"
    )
    parser.add_argument(
        "--since", metavar="TIME", type=_time, help="2026-11-01, 2026-11-01T12:00, or with a zone: +01:00 (UTC)"
    )
    parser.add_argument("--until", metavar="TIME", type=_time, help="only messages that arrived before this time")
    parser.add_argument("--where", metavar="SQL", help="only rows that match this condition")
    parser.add_argument("--exchange", metavar="NAME", help="instead of the original exchange")
    parser.add_argument("--routing-key", metavar="KEY", help="instead of the original routing key")
    parser.add_argument("--own-queue", action="store_true", help="only to the queue that each message was in")
    parser.add_argument("--rate", metavar="N", type=_rate, help="at most N messages a second")
    parser.add_argument("--parallel", metavar="N", type=int, choices=range(1, 65), default=1,
                        help="publishers; with several, order is kept only within each queue (1)")  # fmt: skip
    parser.add_argument("--checkpoint", metavar="PATH", help="folder for the progress (LAKE/_replay/…)")
    parser.add_argument("--again", action="store_true", help="from the beginning, even if it was replayed before")
    parser.add_argument("--dry-run", action="store_true", help="only count")


def _time(text: str) -> datetime:
    try:
        said = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time like 2026-11-01T12:00") from None
    return said.replace(tzinfo=UTC) if said.tzinfo is None else said.astimezone(UTC)


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0.001 <= rate <= 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of messages a second")
    return rate


def run(spark: SparkSession, parsed: argparse.Namespace) -> int:
    request = Request(
        parsed.lake.rstrip("/"),
        tuple(parsed.queue),
        None if parsed.since is None else parsed.since.isoformat(),
        None if parsed.until is None else parsed.until.isoformat(),
        parsed.where,
        parsed.exchange,
        parsed.routing_key,
        parsed.own_queue,
        parsed.vhost or "/",
        parsed.parallel,
    )
    try:
        if parsed.dry_run:
            rows, first, last = counted(spark, request)
            print(f"{rows:,} messages" + (f", from {first:%F %T} to {last:%F %T} UTC" if first and last else ""))
            return 0
        if_stopped(GOES_ON)
        began_at = time.monotonic()
        done = replay(spark, access_of(parsed), request, parsed.checkpoint, parsed.rate, again=parsed.again)
    except (BadRequest, lake.BadLake) as error:
        say(f"leveret pipeline replay: {error}")
        return 64
    took_s = time.monotonic() - began_at
    say(f"{done:,} messages were published in {took_s:,.1f} s")
    job_status.found(f"{done:,} messages were published", {"messages": done})
    return 0


def counted(spark: SparkSession, request: Request) -> tuple[int, datetime | None, datetime | None]:
    """Describes how many messages are requested, and when they arrived."""
    from pyspark.sql import functions as f

    rows = chosen(spark, request)
    [row] = rows.agg(f.count("*"), f.min(lake.arrival()), f.max(lake.arrival())).collect()
    return row[0], row[1], row[2]


def replay(
    spark: SparkSession,
    options: Mapping[str, str],
    request: Request,
    checkpoint: str | None = None,
    rate: float | None = None,
    *,
    again: bool = False,
    part_rows: int | None = None,
    tell: Callable[[str], None] = say,
) -> int:
    """Publishes the requested messages, or those that an earlier attempt left, and returns their number. `options` are
    those of `format("leveret")` as a sink."""
    if rate is not None and request.parallel > 1:
        raise BadRequest("a rate is kept by one publisher: leave --rate or --parallel out")
    if request.own_queue and (request.exchange is not None or request.routing_key is not None):
        raise BadRequest("--own-queue says where messages go: leave --exchange and --routing-key out")
    target = Options({**options, "vhost": request.vhost}).sink()
    spool = Spool(spark, request, checkpoint or f"{request.lake}/_replay/{request.digest}")
    if again:
        spool.files.delete(spool.path)
    if spool.is_finished():
        tell(f"this was replayed before, says {spool.path}; --again replays it again")
        return 0
    Publisher(target.access, "replay", 0).close()  # A wrong password fails now, not after an hour of sorting.
    if not spool.open(part_rows or _part_rows(rate), target, tell):
        tell(f"nothing in {request.lake} is what was asked for")
        return 0
    parts, done = spool.parts(), spool.done()
    if done:
        tell(f"going on: {len(done)} of {len(parts)} parts were published before")
    total, ended_at = 0, time.time()
    for number, path in parts:
        if number in done:
            continue
        began_at = time.time()
        job = Job(target, spool.id, number, rate, ended_at)
        count = _publish_part(spark, path, job, request.parallel)
        ended_at = time.time()
        spool.note(number)
        total += count
        speed = count / max(ended_at - began_at, 1e-3)
        tell(f"part {number + 1} of {len(parts)}: {count:,} messages, {speed:,.0f} a second")
    spool.finish()
    return total


def _part_rows(rate: float | None) -> int:
    return PART_ROWS if rate is None else min(max(int(rate * PART_S), PART_ROWS_MIN), PART_ROWS)


def chosen(spark: SparkSession, request: Request) -> DataFrame:
    """Returns the requested rows of the lake."""
    since, until = (None if text is None else datetime.fromisoformat(text) for text in (request.since, request.until))
    return lake.select(lake.read(spark, request.lake), request.queues, since, until, request.where)


def messages(rows: DataFrame, request: Request, user: str) -> DataFrame:
    """Returns rows as they are to be published, with `queue` and the columns of their order."""
    from pyspark.sql import functions as f

    changed = {
        # A broker refuses messages whose user_id is not the publisher's user.
        "user_id": f.when(f.col("user_id") == user, f.col("user_id")),
        "headers": f.map_filter("headers", lambda key, _: ~key.isin(*LEFT_OUT)),
    }
    if request.own_queue:
        changed |= {"exchange": f.lit(""), "routing_key": f.col("queue")}
    if request.exchange is not None:
        changed["exchange"] = f.lit(request.exchange)
    if request.routing_key is not None:
        changed["routing_key"] = f.lit(request.routing_key)
    return rows.select("queue", "offset", lake.arrival().alias("came"), *_PUBLISHED).withColumns(changed)


class Spool:
    """The rows to publish, in a folder of their own."""

    def __init__(self, spark: SparkSession, request: Request, path: str) -> None:
        self.spark = spark
        self.request = request
        self.path = path.rstrip("/")
        self.files = Files(spark, self.path)
        self.id = ""

    def open(self, part_rows: int, target: SinkOptions, tell: Callable[[str], None]) -> bool:
        """Fills the spool, or finds it as an earlier attempt left it. Returns False without any rows: then nothing is
        kept, so that the same command looks again later."""
        from pyspark_leveret.sink.encoding import check_columns

        if self.files.exists(f"{self.path}/spool/_SUCCESS"):
            self._check()
            return True
        # The default place is inside the lake: created before the check, it would pass as a lake.
        rows = messages(chosen(self.spark, self.request), self.request, target.access.user)
        self.files.delete(self.path)  # Nothing was published yet.
        count = rows.count()
        if not count:
            return False
        self.id = uuid.uuid4().hex
        self.files.create(
            f"{self.path}/request.json", json.dumps({"version": 1, "id": self.id, "request": _plain(self.request)})
        )
        tell(f"{count:,} messages; they are sorted now, and kept in {self.path} until they are published")
        self._fill(rows, max(-(-count // part_rows), 1))
        check_columns(self._read(f"{self.path}/spool").drop("place").schema.fields, target)
        return True

    def _fill(self, rows: DataFrame, parts: int) -> None:
        from pyspark.sql import functions as f

        order = ("came", "queue", "offset")
        spread = rows.coalesce(1) if parts == 1 else rows.repartitionByRange(parts, *order)
        placed = spread.sortWithinPartitions(*order).withColumn("place", f.monotonically_increasing_id())
        placed.select(*_SPOOLED).write.mode("overwrite").parquet(f"{self.path}/spool")

    def parts(self) -> list[tuple[int, str]]:
        """Returns the files in the order of rows: each has the number of its task in its name, and tasks are in that
        order."""
        names = [one for one in self.files.entries(f"{self.path}/spool") if one.name.startswith("part-")]
        return [(int(one.name.split("-")[1]), one.path) for one in names]

    def done(self) -> set[int]:
        return {int(one.name) for one in self.files.entries(f"{self.path}/done") if one.name.isdecimal()}

    def note(self, part: int) -> None:
        self.files.create(f"{self.path}/done/{part:08}", "")

    def finish(self) -> None:
        self.files.create(f"{self.path}/finished", "")
        self.files.delete(f"{self.path}/spool")
        self.files.delete(f"{self.path}/done")

    def is_finished(self) -> bool:
        if not self.files.exists(f"{self.path}/finished"):
            return False
        self._check()
        return True

    def _check(self) -> None:
        said = json.loads(self.files.read(f"{self.path}/request.json"))
        if said["request"] != _plain(self.request):
            raise BadRequest(f"{self.path} is the checkpoint of another replay: {said['request']}")
        self.id = said["id"]

    def _read(self, path: str) -> DataFrame:
        return self.spark.read.schema(spool_schema()).parquet(path)


def _plain(request: Request) -> Any:
    return json.loads(json.dumps(asdict(request)))


def spool_schema() -> str:
    kinds = {**COLUMNS, "place": "bigint"}
    return ", ".join(f"`{name}` {kinds[name]}" for name in _SPOOLED)


# -- Publishing --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """Settings for tasks. `idle_since`: the end of the part before, by the wall clock of the driver."""

    target: SinkOptions
    id: str
    part: int
    rate: float | None
    idle_since: float


def _publish_part(spark: SparkSession, path: str, job: Job, parallel: int) -> int:
    rows = spark.read.schema(spool_schema()).parquet(path)
    spread = rows.coalesce(1) if parallel == 1 else rows.repartition(parallel, "queue")
    placed = spread.sortWithinPartitions("place").select(*_PUBLISHED)
    counts = placed.mapInArrow(partial(publish_rows, job), "count bigint").collect()
    return sum(row[0] for row in counts)


def publish_rows(job: Job, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Makes the function that tasks run: it publishes rows and yields their number."""
    import pyarrow as pa
    from pyspark import TaskContext

    from pyspark_leveret.sink.encoding import Encoder
    from pyspark_leveret.sink.writer import CHUNK_BYTES, ROW_BITS

    task = TaskContext.get()
    assert task is not None
    name = f"replay/{job.id}/{task.partitionId()}"
    publisher = Publisher(job.target.access, name, job.part << ROW_BITS)
    try:
        encoder = Encoder(job.target, publisher.frame_max)
        pace = None if job.rate is None else Pace(job.rate, time.time() - job.idle_since)
        count = 0
        for batch in paced(batches, pace):
            for frames, more in encoder.chunks(encoder.rows(batch), CHUNK_BYTES):
                publisher.send(frames, more)
                count += more
        publisher.finish()
    finally:
        publisher.close()
    yield pa.RecordBatch.from_pydict({"count": [count]})


def paced(batches: Iterable[pa.RecordBatch], pace: Pace | None) -> Iterator[pa.RecordBatch]:
    """Yields the same rows in pieces, each when it may be published."""
    for batch in batches:
        if pace is None:
            yield batch
            continue
        at = 0
        while at < batch.num_rows:
            count = pace.take(batch.num_rows - at)
            yield batch.slice(at, count)
            at += count
