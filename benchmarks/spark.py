"""How fast Spark reads queues and publishes rows, with Parquet beside: `python -m benchmarks.spark --rows 1000000`.

Everything runs on one machine: the broker, Spark's JVM with its Python workers, and whatever else is there. So figures
are rates of the same run, one after the other, and what counts is how they compare. Each is the median of several.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from leveret.perf import wire
from leveret.perf.wire import Address, Connection
from pyspark_leveret.options import Access, Options
from pyspark_leveret.publisher import Publisher

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BODY_BYTES = 100
CHUNK_MESSAGES = 1_000
STREAM = {"x-queue-type": "stream"}


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
    """Publish so many persistent messages, confirmed; gives the rate."""
    connection = there.connection()
    connection.declare_queue(queue, arguments)
    connection.close()
    publisher = Publisher(there.access, f"benchmark/{queue}", 0)
    began = time.perf_counter()
    for first in range(0, count, CHUNK_MESSAGES):
        size = min(CHUNK_MESSAGES, count - first)
        bodies = (os.urandom(BODY_BYTES) for _ in range(size))  # Such as Parquet cannot shrink either.
        frames = [wire.publish("", queue, True, False, body, wire.FRAME_MAX) for body in bodies]
        publisher.send(b"".join(frames), size)
    publisher.finish()
    publisher.close()
    return count / (time.perf_counter() - began)


def session(folder: Path, cores: int) -> SparkSession:
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
        .getOrCreate()
    )


def cpu_s() -> float:
    """CPU time of all that this process has started: the node, the JVM, its workers. Says more than the clock where the
    machine has other things to do."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # Gone meanwhile.
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
    def __init__(self, spark: SparkSession, there: Node, folder: Path, rows: int, repeat: int) -> None:
        self.spark, self.there, self.folder, self.rows, self.repeat = spark, there, folder, rows, repeat
        self.trial = 0

    def source(self, queue: str, **more: str) -> dict[str, str]:
        return {"servers": f"127.0.0.1:{self.there.management}", "subscribe": queue, **more}

    def rate(self, label: str, act: Callable[[], None], count: int | None = None) -> float:
        rates, spent = [], []
        for _ in range(self.repeat):
            self.trial += 1
            began, used = time.perf_counter(), cpu_s()
            act()
            rates.append((count or self.rows) / (time.perf_counter() - began))
            spent.append((cpu_s() - used) * 1_000_000 / (count or self.rows))
        rate, cpu = statistics.median(rates), statistics.median(spent)
        spread = f"({min(rates):,.0f} to {max(rates):,.0f})"
        print(f"{label:<44} {rate:>11,.0f} rows/s   {spread:<28} {cpu:6.2f} s of CPU a million", flush=True)
        return rate

    def read(self, queue: str, schema: str | None = None, **more: str) -> None:
        reader: Any = self.spark.read.format("leveret").options(**self.source(queue, **more))
        (reader.schema(schema) if schema else reader).load().write.format("noop").mode("overwrite").save()

    def read_parquet(self) -> None:
        self.spark.read.parquet(str(self.folder / "rows")).write.format("noop").mode("overwrite").save()

    def stream_to_parquet(self, **given: str) -> None:
        messages = self.spark.readStream.format("leveret").options(**given).load()
        writer = messages.writeStream.format("parquet").option("path", str(self.folder / f"lake{self.trial}"))
        query = writer.option("checkpointLocation", str(self.folder / f"checkpoint{self.trial}"))
        query.trigger(availableNow=True).start().awaitTermination()

    def publish(self, count: int) -> None:
        rows = self.spark.range(0, count, 1, 2).selectExpr("rpad(cast(id as string), 100, 'x') body")
        given = {"servers": f"127.0.0.1:{self.there.amqp}", "routingKey": "into"}
        rows.write.format("leveret").options(**given).mode("append").save()

    def run(self) -> None:
        for queue, arguments in (("events", STREAM), ("orders", {})):
            print(f"filled '{queue}': {fill(self.there, queue, self.rows, arguments):,.0f} messages/s", flush=True)
        fill(self.there, "into", 1, {})
        messages = self.spark.read.format("leveret").options(**self.source("events")).load()
        messages.write.mode("overwrite").parquet(str(self.folder / "rows"))
        parquet = self.rate("spark.read.parquet, to noop", self.read_parquet)
        batch = self.rate("read a stream, all columns, to noop", lambda: self.read("events"))
        self.rate("read a classic queue, all columns, to noop", lambda: self.read("orders"))
        self.rate("read a stream, offset and body", lambda: self.read("events", "offset long, body binary"))
        for parts in (1, 2, 4):
            more = {"minPartitions": str(parts)}
            self.rate(f"read a stream, at least {parts} tasks", partial(self.read, "events", None, **more))
        again = self.rate("spark.read.parquet again", self.read_parquet)
        print(f"a stream is read at {2 * batch / (parquet + again):.2f} of Parquet's rate")
        given = self.source("events", startingOffsets="earliest", maxOffsetsPerTrigger="250000")
        self.rate("stream to Parquet, 250,000 a trigger", lambda: self.stream_to_parquet(**given))
        self.repeat = 1
        leased = self.source("orders", lease="benchmark", maxOffsetsPerTrigger="250000")
        self.rate("leased queue to Parquet, 250,000 a trigger", lambda: self.stream_to_parquet(**leased))
        count = min(self.rows, 500_000)
        self.rate("publish rows, confirmed", lambda: self.publish(count), count)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2)
    given = parser.parse_args()
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        print("Spark needs Java 17 or newer, and there is none", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="leveret-spark-") as name, node(Path(name) / "node") as there:
        spark = session(Path(name), given.cores)
        try:
            Bench(spark, there, Path(name), given.rows, given.repeat).run()
        finally:
            spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
