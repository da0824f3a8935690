"""A broker with a management port, three nodes that may be killed, and one Spark session for all tests that need one.

Spark takes long to start and much memory, so there should be one of it however many processes run the tests. Tests that
use it are marked `spark`, and `tests/support/processes/order.py` gives them all to one process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyspark_leveret.jobs.support.quick_python import quick_python
from tests.support.members import Cluster
from tests.support.servers import Server
from tests.system.spark.sessions import CONFIG, missing

CLUSTER = "management.tcp.port = 0\nmanagement.tcp.ip = 127.0.0.1"


@pytest.fixture(scope="package")
def data_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Tests use names from `name`, and clean up nothing."""
    server = Server(tmp_path_factory.mktemp("data"), arguments=("--management-port", "0")).start()
    yield server
    server.end()


@pytest.fixture
def data_channel(data_broker: Server) -> Iterator[Any]:
    connection = data_broker.connect()
    channel = connection.channel()
    channel.confirm_delivery()
    yield channel
    if connection.is_open:
        connection.close()
    data_broker.connections.remove(connection)


@pytest.fixture(scope="package")
def _trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("trio"), CLUSTER)
    yield cluster
    cluster.end()


@pytest.fixture
def trio(_trio: Cluster) -> Iterator[Cluster]:
    """Three nodes with management ports, whole again before each test."""
    try:
        _trio.mend()
    except (RuntimeError, AssertionError):
        _trio.begin_anew()  # A test that failed must not take the others along.
    yield _trio
    _trio.disconnect()


@pytest.fixture(scope="package")
def java() -> None:
    reason = missing()
    if reason:
        pytest.skip(reason)


@pytest.fixture(scope="package")
def spark(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from pyspark.sql import SparkSession

    folder: Path = tmp_path_factory.mktemp("spark")
    os.environ["PYSPARK_PYTHON"] = quick_python(folder)
    builder = SparkSession.builder.master("local[4]")  # Some tests have tasks that wait for something.
    for name, value in CONFIG.items():
        builder = builder.config(name, value)
    session = (
        builder.config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.local.dir", str(folder / "local"))
        .getOrCreate()
    )
    yield session
    session.stop()
