"""Spark elsewhere: a standalone cluster of two workers, one of which is lost, and Spark Connect.

Each is several Java processes, and takes long to start: `make soak-spark` (LEVERET_SPARK_LONG=1) has one test for each.
Else they are one: a session of Spark Connect, whose server is the driver on the standalone cluster.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leveret.data.client import DataClient
from tests.support.members import free_port
from tests.support.servers import ROOT, Server, until
from tests.system.mirrors.rings import fill_fast
from tests.system.spark.sessions import CONFIG

pytestmark = [pytest.mark.spark, pytest.mark.long]

LONG = "LEVERET_SPARK_LONG" in os.environ
STREAM = {"x-queue-type": "stream"}
COUNT = 90_000
START_S = 300.0


class Standalone:
    """A master and two workers with one core each, from the package that pip has installed."""

    def __init__(self, folder: Path) -> None:
        import pyspark

        self.spark_class = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
        self.folder = folder
        self.port = free_port()
        self.url = f"spark://127.0.0.1:{self.port}"
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> Standalone:
        named = "org.apache.spark.deploy"
        self._spawn(f"{named}.master.Master", "--host", "127.0.0.1", "--port", str(self.port), "--webui-port", "0")
        for _ in range(2):
            self._spawn(
                f"{named}.worker.Worker", "--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--webui-port", "0",
                "--work-dir", str(self.folder / "work"), self.url,
            )  # fmt: skip
        log = self.folder / "0.log"
        until(lambda: log.read_text().count("Registering worker") == 2, "two workers are there", START_S)
        return self

    def _spawn(self, *words: str) -> None:
        environment = {**os.environ, "SPARK_LOCAL_DIRS": str(self.folder / "local"), "SPARK_NO_DAEMONIZE": "1"}
        with open(self.folder / f"{len(self.processes)}.log", "w") as log:
            self.processes.append(
                subprocess.Popen(
                    [self.spark_class, *words], env=environment, stdout=log, stderr=log, start_new_session=True
                )
            )

    def lose_worker(self) -> None:
        """With its executors, by kill -9."""
        os.killpg(self.processes[-1].pid, signal.SIGKILL)

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def standalone(java: None, tmp_path: Path) -> Iterator[Standalone]:
    (tmp_path / "standalone").mkdir()
    cluster = Standalone(tmp_path / "standalone")
    try:
        yield cluster.start()
    finally:
        cluster.end()


class Driver:
    """`tests.system.spark.elsewhere`, with a stream to read and a queue to write."""

    def __init__(self, broker: Server, channel: Any, name: str, folder: Path, config: dict[str, str]) -> None:
        self.broker, self.folder, self.into = broker, folder, f"{name}-into"
        channel.queue_declare(name, durable=True, arguments=STREAM)
        channel.queue_declare(self.into, durable=True)
        fill_fast(broker, name, range(COUNT))  # type: ignore[arg-type]
        batch = {"servers": f"127.0.0.1:{broker.management_port}", "subscribe": name}
        plan = {
            "config": {**CONFIG, "spark.local.dir": str(folder / "local"), "spark.pyspark.python": sys.executable}
            | config,
            "batch": batch,
            "source": {**batch, "startingOffsets": "earliest", "minPartitions": "2"},
            "sink": {"servers": f"127.0.0.1:{broker.port}", "routingKey": self.into},
            "checkpoint": str(folder / "checkpoint"),
            "reached": str(folder / "reached"),
            "go": str(folder / "go"),
        }
        (folder / "plan.json").write_text(json.dumps(plan))
        os.mkfifo(folder / "go")
        self.going: int | None = None
        environment = {name: value for name, value in os.environ.items() if name != "SPARK_CONNECT_MODE_ENABLED"}
        with open(folder / "driver.log", "w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.system.spark.elsewhere", str(folder / "plan.json")],
                cwd=ROOT, env={**environment, "PYSPARK_PYTHON": sys.executable}, stdout=subprocess.PIPE, stderr=log,
                text=True, start_new_session=True,
            )  # fmt: skip

    def await_middle(self) -> None:
        """Until a task has published a part of its rows, and waits."""

        def is_there() -> bool:
            assert self.process.poll() is None, (self.folder / "driver.log").read_text()[-4000:]
            return (self.folder / "reached").exists()

        until(is_there, "a task is in the middle", START_S)
        with DataClient(f"127.0.0.1:{self.broker.management_port}") as client:
            until(lambda: client.queues([self.into])[0].messages > 0, "rows are published", 60.0)

    def finish(self) -> dict[str, Any]:
        self.going = os.open(self.folder / "go", os.O_RDWR)
        said, _ = self.process.communicate(timeout=START_S)
        assert self.process.returncode == 0, (self.folder / "driver.log").read_text()[-4000:]
        told: dict[str, Any] = json.loads(said.splitlines()[-1])
        return told

    def check(self) -> None:
        """Each row is there once."""
        with DataClient(f"127.0.0.1:{self.broker.management_port}") as client:
            [info] = client.queues([self.into])
            found = Counter(int(one.body) for sheet in client.read(self.into, info.first) for one in sheet)
        assert [number for number, times in found.items() if times > 1] == []
        assert sorted(found) == list(range(COUNT))

    def end(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()
        if self.going is not None:
            os.close(self.going)


def lose_an_executor(driver: Driver, standalone: Standalone) -> dict[str, Any]:
    try:
        driver.await_middle()
        standalone.lose_worker()
        told = driver.finish()
        driver.check()
        return told
    finally:
        driver.end()


def test_a_worker_is_lost_on_a_cluster_driven_by_connect(
    standalone: Standalone, data_broker: Server, data_channel: Any, name: str, tmp_path: Path
) -> None:
    config = {"spark.master": standalone.url, "spark.api.mode": "connect"}
    told = lose_an_executor(Driver(data_broker, data_channel, name, tmp_path, config), standalone)
    assert (told["rows"], told["session"]) == (COUNT, "pyspark.sql.connect.session")


@pytest.mark.skipif(not LONG, reason="long: make soak-spark")
def test_a_worker_is_lost_on_a_cluster(
    standalone: Standalone, data_broker: Server, data_channel: Any, name: str, tmp_path: Path
) -> None:
    config = {"spark.master": standalone.url}
    told = lose_an_executor(Driver(data_broker, data_channel, name, tmp_path, config), standalone)
    assert (told["rows"], told["session"]) == (COUNT, "pyspark.sql.session")


@pytest.mark.skipif(not LONG, reason="long: make soak-spark")
def test_connect(java: None, data_broker: Server, data_channel: Any, name: str, tmp_path: Path) -> None:
    driver = Driver(data_broker, data_channel, name, tmp_path, {"spark.remote": "local[2]"})
    try:
        told = driver.finish()
        driver.check()
        assert (told["rows"], told["session"]) == (COUNT, "pyspark.sql.connect.session")
    finally:
        driver.end()
