"""Exactly once, whoever is killed: the driver at every step, the master in the middle of a batch.

There are three real nodes, with mirrored queues. What is read are leased queues and streams; what is written, Parquet
and messages. `make soak-spark` (LEVERET_SPARK_LONG=1) tries every step with both kinds of queues; else it is the four
in which something could go wrong.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from leveret.data.client import DataClient
from pyspark_leveret.jobs.support.quick_python import quick_python
from tests.support.members import Cluster, Member
from tests.support.servers import ROOT, until
from tests.system.mirrors.rings import await_in_sync, fill_fast, mirror
from tests.system.spark.sessions import CONFIG, ended
from tests.system.spark.stuck import FIRST, start

pytestmark = pytest.mark.spark

STREAM = {"x-queue-type": "stream"}
START_S = 120.0
COUNT = 3 * FIRST
LARGE = 2_000  # Messages of 5,000 bytes: more than are read at a time.
LONG = "LEVERET_SPARK_LONG" in os.environ
DRIVER_S = 1_200.0 if LONG else 300.0
STEPS = ("taken", "planned", "reading", "sunk", "logged", "acked")
# Whether it is a stream, and the step at which it stops. Those that stop in the sink publish; the others write Parquet.
QUERIES = [(False, "taken"), (True, "reading"), (False, "sunk"), (False, "logged")]
if LONG:
    QUERIES = [(stream, step) for stream in (False, True) for step in STEPS]


def servers(nodes: Cluster) -> str:
    return ",".join(f"127.0.0.1:{node.management_port}" for node in nodes if node.is_running)


def amqp_servers(nodes: Cluster) -> str:
    return ",".join(f"127.0.0.1:{node.port}" for node in nodes)


def prepare(node: Member, queue: str, stream: bool, count: int, padding: int = 0) -> None:
    """A queue that is filled with numbers, beginning with 0."""
    channel = node.channel()
    channel.queue_declare(queue, durable=True, arguments=STREAM if stream else {})
    if count:
        fill_fast(node, queue, range(count), padding=padding)


def numbers_in(folder: Path) -> list[int]:
    """What Spark takes for committed there."""
    import pyarrow.parquet as pq

    names: list[str] = []
    for log in sorted((folder / "_spark_metadata").iterdir()):
        if log.name.isdigit():
            names += [json.loads(line)["path"] for line in log.read_text().splitlines()[1:]]
    tables = [pq.read_table(name.removeprefix("file://"), columns=["body"], partitioning=None) for name in names]
    return sorted(int(body) for table in tables for body in table.column("body").to_pylist())


def numbers_of(client: DataClient, queue: str) -> list[int]:
    [info] = client.queues([queue])
    return sorted(int(one.body) for sheet in client.read(queue, info.first, info.next - 1) for one in sheet)


def check_once(client: DataClient, query: dict[str, Any], count: int) -> None:
    queue, sink = query["source"]["subscribe"], query["sink"]
    found = numbers_in(Path(sink["path"])) if "path" in sink else numbers_of(client, sink["routingKey"])
    assert [one for one, times in Counter(found).items() if times > 1] == [], f"{queue}: twice"
    assert found == list(range(count)), queue
    if "lease" in query["source"]:
        [info] = client.queues([queue])
        assert (info.messages, [view.acked for view in info.leases]) == (0, [count]), queue


def planned(nodes: Cluster, name: str, folder: Path) -> list[dict[str, Any]]:
    """The queries, whose queues are filled and in sync."""
    node, queries = nodes[0], list[dict[str, Any]]()
    mirror(node, name)
    for stream, step in QUERIES:
        kind = f"{'stream' if stream else 'leased'}-{step}"
        queue, into = f"{name}-{kind}", f"{name}-{kind}-into"
        prepare(node, queue, stream, COUNT)
        sink = {"path": str(folder / kind)}
        if step == "sunk":
            prepare(node, into, False, 0)
            sink = {"servers": amqp_servers(nodes), "routingKey": into}
        source = {"subscribe": queue, "servers": servers(nodes), "maxOffsetsPerTrigger": str(FIRST)}
        source |= {"minPartitions": "2", **({"startingOffsets": "earliest"} if stream else {"lease": "lake"})}
        mark, checkpoint = str(folder / f"{kind}.mark"), str(folder / f"{kind}.checkpoint")
        queries.append({"source": source, "sink": sink, "step": step, "mark": mark, "checkpoint": checkpoint})
        await_in_sync(node, queue, nodes)
    return queries


@pytest.fixture
def killed(trio: Cluster, name: str, tmp_path: Path) -> Iterator[list[dict[str, Any]]]:
    """Queries of a driver that was killed when each of them was at its step."""
    queries = planned(trio, name, tmp_path)
    config = {**CONFIG, "spark.master": "local[8]", "spark.local.dir": str(tmp_path / "local")}
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"config": config, "queries": queries}))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": quick_python(tmp_path)}
    with open(tmp_path / "driver.log", "w") as log:
        driver = subprocess.Popen(
            [sys.executable, "-m", "tests.system.spark.stuck", str(plan)],
            cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:

        def is_there() -> bool:
            assert driver.poll() is None, (tmp_path / "driver.log").read_text()[-4000:]
            return all(Path(query["mark"]).exists() for query in queries)

        until(is_there, "each query has come to its step", DRIVER_S)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)  # The driver and its JVM, whose other children notice.
        driver.wait()
    yield queries


def test_a_driver_that_is_killed_at_every_step(spark: Any, trio: Cluster, killed: list[dict[str, Any]]) -> None:
    """One driver, several queries, each at another step of its second batch. Another driver takes them over."""
    for query in killed:
        ended(partial(start, spark, query, "leveret"))
    with DataClient(servers(trio).split(",")) as client:
        for query in killed:
            check_once(client, query, COUNT)


def test_a_master_that_is_killed_in_the_middle_of_a_batch(spark: Any, trio: Cluster, name: str, tmp_path: Path) -> None:
    """A task of each query has read a part, and gets the rest from elsewhere; likewise what it publishes."""
    master, *others = trio
    mirror(master, name)
    reached, go_on = tmp_path / "reached", tmp_path / "go"
    reached.mkdir()
    os.mkfifo(go_on)
    queries: list[dict[str, Any]] = []
    for kind, stream in (("leased", False), ("stream", True), ("sink", False)):
        queue = f"{name}-{kind}"
        prepare(master, queue, stream, LARGE, 5_000)
        source = {"subscribe": queue, "servers": servers(trio)}
        source |= {"startingOffsets": "earliest"} if stream else {"lease": "lake"}
        sink = {"path": str(tmp_path / kind)}
        if kind == "sink":
            prepare(master, f"{name}-into", False, 0)
            sink = {"servers": amqp_servers(trio), "routingKey": f"{name}-into"}
        queries.append({"source": source, "sink": sink, "checkpoint": str(tmp_path / f"{kind}.checkpoint")})
        await_in_sync(others[0], queue, trio)
    await_in_sync(others[0], f"{name}-into", trio)

    def gate(queue: str) -> Any:
        def through(batches: Iterator[Any]) -> Iterator[Any]:
            for batch in batches:
                yield batch.slice(0, 50)
                (reached / queue).touch()
                go_on.open().close()  # A pipe: until somebody has it open for writing.
                yield batch.slice(50)

        return through

    begun: list[Any] = []
    try:
        for query in queries:
            messages = spark.readStream.format("leveret").options(**query["source"]).load()
            rows = messages.mapInArrow(gate(query["source"]["subscribe"]), messages.schema)
            if "path" in query["sink"]:
                writer = rows.writeStream.format("parquet").options(**query["sink"])
            else:
                writer = rows.select("body").writeStream.format("leveret").options(**query["sink"])
            begun.append(writer.option("checkpointLocation", query["checkpoint"]).trigger(availableNow=True).start())
            until(lambda: len(list(reached.iterdir())) == len(begun), "its batch is in work", START_S)
        master.kill()
    finally:
        going = os.open(go_on, os.O_RDWR)  # Whatever went wrong: others need the tasks' places.
    try:
        for one in begun:
            one.awaitTermination()
    finally:
        os.close(going)
    with DataClient(servers(trio).split(",")) as client:
        for query in queries:
            check_once(client, query, LARGE)
