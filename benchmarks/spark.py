"""How fast Spark reads queues and publishes rows, with Parquet beside: `make bench-spark`.

Everything runs on one machine: the broker, Spark's JVM with its Python workers, and whatever else is there. So figures
are rates of the same run, and what counts is how they compare. Each is the median of several. The Parquet file has the
same rows and columns, and is read in turn with the queue, both after the same number of reads that do not count.
Seconds of CPU say more than the clock where the machine has other things to do.

What reading costs others is measured with the workload `safe`: alone, beside one process that reads a queue as fast as
it is given it, and beside Spark, which takes processors for itself.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.ruler import workloads
from leveret.client import amqp
from leveret.client.address import Address
from leveret.client.connection import Connection
from pyspark_leveret.options import Access, Options
from pyspark_leveret.sink.publisher import Publisher

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BODY_BYTES = 100
CHUNK_MESSAGES = 1_000
STREAM = {"x-queue-type": "stream"}
SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
MIDDLE = 1_000_000  # The size at which more than reading is measured, or the largest below.
WARM = 6
PUBLISHED_MAX = 1_000_000
TRIGGER = 250_000
SAFE_S = 3.0
SLOW_START = "failed to connect back"  # An error of a streaming query's Python process on a busy machine.
# Reads a queue again and again, and discards what it gets.
READER = """
import sys
from leveret.data.client import DataClient
with DataClient(sys.argv[1]) as client:
    while True:
        for sheet in client.read("events", 0, int(sys.argv[2]) - 1, 8 << 20):
            pass
"""


class Node(NamedTuple):
    amqp: int
    management: int

    @property
    def access(self) -> Access:
        return Options({"servers": f"127.0.0.1:{self.amqp}", "routingKey": "-"}).sink().access

    def connection(self) -> Connection:
        return Connection(Address("127.0.0.1", self.amqp, "guest", "guest", "/"), "benchmark")


@contextmanager
def node(folder: Path) -> Iterator[Node]:
    command = [sys.executable, "-m", "leveret", "server", "--data", str(folder)]
    command += ["--port", "0", "--cluster-port", "0", "--management-port", "0"]
    with open(folder.parent / "node.log", "w", encoding="utf-8") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert process.stdout is not None
        words = process.stdout.readline().split()
        ports = dict(word.split("=", 1) for word in words if "=" in word)
        try:
            yield Node(_port(ports["amqp"]), _port(ports["management"]))
        finally:
            process.terminate()
            process.wait()


def _port(text: str) -> int:
    return int(text.rpartition(":")[2])


def fill(there: Node, queue: str, count: int, arguments: dict[str, str]) -> float:
    """Publishes that many more persistent messages, confirmed; returns the rate."""
    connection = there.connection()
    connection.declare_queue(queue, arguments)
    connection.close()
    publisher = Publisher(there.access, f"benchmark/{uuid.uuid4().hex}", 0)
    began = time.perf_counter()
    for first in range(0, count, CHUNK_MESSAGES):
        size = min(CHUNK_MESSAGES, count - first)
        bodies = (os.urandom(BODY_BYTES) for _ in range(size))  # Parquet cannot compress these either.
        frames = [amqp.publish("", queue, True, False, body, amqp.FRAME_MAX) for body in bodies]
        publisher.send(b"".join(frames), size)
    publisher.finish()
    publisher.close()
    return count / (time.perf_counter() - began)


def session(folder: Path, cores: int, java_options: str = "") -> SparkSession:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    return (
        SparkSession.builder.master(f"local[{cores}]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.log.level", "ERROR")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.extraJavaOptions", java_options)
        .getOrCreate()
    )


def cpu_s() -> float:
    """Returns CPU time of everything that this process has started: the node, the JVM, its workers. On a busy
    machine it says more than the clock."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # Ended meanwhile.
            parents[int(entry.name)] = int(fields[1])
            ticks[int(entry.name)] = sum(map(int, fields[11:15]))  # Its own, and those of children that have ended.
    ours = {os.getpid()}
    for _ in range(len(parents)):
        more = {pid for pid, parent in parents.items() if parent in ours} - ours
        if not more:
            break
        ours |= more
    return sum(ticks[pid] for pid in ours) / os.sysconf("SC_CLK_TCK")


class Bench:
    def __init__(self, spark: SparkSession, there: Node, folder: Path, repeat: int) -> None:
        self.spark, self.there, self.folder, self.repeat = spark, there, folder, repeat
        self.trial = 0
        self.parquet = 0.0  # How fast the same rows were read from Parquet.

    def source(self, queue: str, **more: str) -> dict[str, str]:
        return {"servers": f"127.0.0.1:{self.there.management}", "subscribe": queue, **more}

    def measure(self, label: str, count: int, act: Callable[[], object], repeat: int | None = None) -> None:
        """Measures rows a second, and prints a line of the table."""
        from pyspark.errors import PySparkException

        found = []
        for _ in range(repeat or self.repeat):
            try:
                found.append(self.once(count, act))
            except PySparkException as error:
                if SLOW_START not in str(error):
                    raise
                print(f"{label:<44} a Python process took longer than the ten seconds that Spark gives it", flush=True)
        if found:
            self.show(label, count, found)

    def once(self, count: int, act: Callable[[], object]) -> tuple[float, float]:
        """Returns rows a second, and seconds of CPU for a million of them."""
        self.trial += 1
        began, used = time.perf_counter(), cpu_s()
        act()
        return count / (time.perf_counter() - began), (cpu_s() - used) * 1_000_000 / count

    def show(self, label: str, count: int, found: Sequence[tuple[float, float]]) -> float:
        rate = statistics.median(rate for rate, _ in found)
        cpu = statistics.median(cpu for _, cpu in found)
        beside = f"{self.parquet:>12,.0f} {rate / self.parquet:>6.2f}" if self.parquet else " " * 19
        print(f"{label:<44} {count:>11,} {rate:>11,.0f} {beside} {cpu:>9.2f}", flush=True)
        return rate

    # -- What is measured ------------------------------------------------------------------------------------------

    def read(self, queue: str, schema: str | None = None, **more: str) -> None:
        reader: Any = self.spark.read.format("leveret").options(**self.source(queue, **more))
        (reader.schema(schema) if schema else reader).load().write.format("noop").mode("overwrite").save()

    def read_parquet(self, count: int) -> None:
        self.spark.read.parquet(str(self.folder / f"rows{count}")).write.format("noop").mode("overwrite").save()

    def stream_to_parquet(self, **given: str) -> None:
        messages = self.spark.readStream.format("leveret").options(**given).load()
        writer = messages.writeStream.format("parquet").option("path", str(self.folder / f"lake{self.trial}"))
        query = writer.option("checkpointLocation", str(self.folder / f"checkpoint{self.trial}"))
        query.trigger(availableNow=True).start().awaitTermination()

    def publish(self, count: int) -> None:
        rows = self.spark.range(0, count, 1, 2).selectExpr("rpad(cast(id as string), 100, 'x') body")
        given = {"servers": f"127.0.0.1:{self.there.amqp}", "routingKey": "into"}
        rows.write.format("leveret").options(**given).mode("append").save()

    # -- The table -------------------------------------------------------------------------------------------------

    def run(self, sizes: Sequence[int]) -> None:
        print(f"{'':<44} {'rows':>11} {'rows/s':>11} {'Parquet':>12} {'ratio':>6} {'CPU s/M':>9}")
        filled = 0
        middle = max((size for size in sizes if size <= MIDDLE), default=min(sizes))
        for size in sorted(sizes):
            fill(self.there, "events", size - filled, STREAM)
            filled = size
            self.reading(size)
            if size == middle:
                self.partitions(size)
                self.headers(size)
                self.filters(size)
                self.streaming(size)
                self.publishing(min(size, PUBLISHED_MAX))
                self.beside_others(size)

    def reading(self, size: int) -> None:
        """Reads all of a stream, and the same rows from Parquet, in turn. Measured is a session that has been at
        work for a while: Java compiles for minutes what it runs often, so both begin with `WARM` reads."""
        messages = self.spark.read.format("leveret").options(**self.source("events")).load()
        messages.write.mode("overwrite").parquet(str(self.folder / f"rows{size}"))
        acts: dict[str, Callable[[], object]] = {
            "spark.read.parquet, to noop": partial(self.read_parquet, size),
            "read, all columns, to noop": partial(self.read, "events"),
            "read, offset and body": partial(self.read, "events", "offset long, body binary"),
        }
        for _ in range(WARM if size <= MIDDLE else 1):
            for act in acts.values():
                act()
        found: dict[str, list[tuple[float, float]]] = {label: [] for label in acts}
        for _ in range(self.repeat):
            for label, act in acts.items():
                found[label].append(self.once(size, act))
        self.parquet = 0.0
        for label, figures in found.items():
            rate = self.show(label, size, figures)
            self.parquet = self.parquet or rate

    def partitions(self, size: int) -> None:
        for parts in (1, 2, 4):
            self.measure(f"read, {parts} partition{'s' if parts > 1 else ''}", size, partial(self.read_in, parts))

    def read_in(self, parts: int) -> None:
        """Reads in so many tasks: the source makes at least as many, and the rest is merged here."""
        given = self.source("events", minPartitions=str(parts))
        messages: Any = self.spark.read.format("leveret").options(**given).load()
        messages.coalesce(parts).write.format("noop").mode("overwrite").save()

    def streaming(self, size: int) -> None:
        limit = str(TRIGGER)
        given = self.source("events", startingOffsets="earliest", maxOffsetsPerTrigger=limit)
        self.measure("stream to Parquet", size, lambda: self.stream_to_parquet(**given))
        # Each run is a separate query.
        leased = self.source("orders", lease="benchmark", leaseTakeover="true", maxOffsetsPerTrigger=limit)
        for _ in range(2):
            fill(self.there, "orders", size, {})
            self.measure("leased queue to Parquet", size, lambda: self.stream_to_parquet(**leased), 1)

    def headers(self, size: int) -> None:
        """Headers that are all alike, and such that all differ, as ids in them do."""
        for label, trace in (("alike", "'0'"), ("that all differ", "cast(id as string)")):
            self.spread(label, size, f"map('trace', md5({trace}), 'kind', 'order') headers", "'same'")
            self.measure(f"read, headers {label}", size, partial(self.read, label))

    def filters(self, size: int) -> None:
        """One of a hundred routing keys in turn, and a hundredth of the offsets: filtered by Spark, and by the source.
        Rates are those of all rows."""
        self.spread("keys", size, "'t' content_type", "concat('k', cast(id % 100 as string))")
        for enabled in ("false", "true"):
            self.spark.conf.set("spark.sql.python.filterPushdown.enabled", enabled)
            for condition in ("routing_key = 'k7'", f"offset >= {size - size // 100}"):
                label = f"{condition.partition(' ')[0]} = 1 %, by {'the source' if enabled == 'true' else 'Spark'}"
                self.measure(label, size, partial(self.read_where, condition))
        self.spark.conf.unset("spark.sql.python.filterPushdown.enabled")

    def spread(self, queue: str, size: int, column: str, key: str) -> None:
        """Fills a stream by an exchange, with any routing keys and one more column."""
        with self.there.connection() as connection:
            connection.declare_queue(queue, STREAM)
            connection.declare_exchange(f"to {queue}", "fanout")
            connection.bind(queue, f"to {queue}", "")
        body = "rpad(md5(cast(id as string)), 100, 'x') body"
        rows = self.spark.range(0, size, 1, 2).selectExpr(body, column, f"{key} routing_key")
        given = {"servers": f"127.0.0.1:{self.there.amqp}", "exchange": f"to {queue}"}
        rows.write.format("leveret").options(**given).mode("append").save()

    def read_where(self, condition: str) -> None:
        messages: Any = self.spark.read.format("leveret").options(**self.source("keys")).load()
        messages.where(condition).write.format("noop").mode("overwrite").save()

    def publishing(self, count: int) -> None:
        fill(self.there, "into", 1, {})
        self.measure("publish rows, confirmed", count, lambda: self.publish(count))

    def beside_others(self, size: int) -> None:
        """Measures in turn, several times: other load of the machine changes, and is the same for neighbours."""
        safe = next(one for one in workloads.WORKLOADS if one.name == "safe")

        def rate() -> float:
            return workloads.run(self.there.amqp, safe, SAFE_S).per_s

        print(f"\n{'messages published, confirmed, consumed':<44} {'':>11} {'a second':>11} {'alone':>12} {'ratio':>6}")
        rate()
        ways = {
            "safe, beside one that reads all the time": partial(self.beside_reader, rate, size),
            "safe, beside Spark that reads all the time": partial(self.beside_spark, rate),
        }
        found: dict[str, list[tuple[float, float]]] = {label: [] for label in ways}
        before = rate()
        for _ in range(self.repeat):
            for label, way in ways.items():
                beside, after = way(), rate()
                found[label].append((beside, (before + after) / 2))
                before = after
        for label, pairs in found.items():
            beside, alone = (statistics.median(column) for column in zip(*pairs, strict=True))
            ratio = statistics.median(one / other for one, other in pairs)
            print(f"{label:<44} {'':>11} {beside:>11,.0f} {alone:>12,.0f} {ratio:>6.2f}", flush=True)
        print()

    def beside_reader(self, rate: Callable[[], float], size: int) -> float:
        command = [sys.executable, "-c", READER, f"127.0.0.1:{self.there.management}", str(size)]
        reader = subprocess.Popen(command)
        try:
            return rate()
        finally:
            reader.kill()
            reader.wait()

    def beside_spark(self, rate: Callable[[], float]) -> float:
        ended = threading.Event()

        def read_on() -> None:
            while not ended.is_set():
                self.read("events")

        reading = threading.Thread(target=read_on)
        reading.start()
        try:
            return rate()
        finally:
            ended.set()
            reading.join()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, metavar="ROWS")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--java-options", default="", help="of Spark's JVM, such as those that docs/spark.md advises")
    given = parser.parse_args()
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        print("Spark needs Java 17 or newer, and there is none: make java", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="leveret-spark-") as name, node(Path(name) / "node") as there:
        spark = session(Path(name), given.cores, given.java_options)
        try:
            Bench(spark, there, Path(name), given.repeat).run(given.sizes)
        finally:
            spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
