"""Clusters for tests: `cluster` is shared by those who leave it as it was, `nodes` by those who break it."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.members import Cluster, StartCluster

LOG_CHARACTERS_SHOWN = 6_000


logging.getLogger("pika").setLevel(logging.CRITICAL)  # It has much to say on each connection that a node loses.


@pytest.fixture(scope="package")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        yield cluster.start()
    finally:
        cluster.end()


@pytest.fixture
def cluster(sound: Cluster) -> Iterator[Cluster]:
    """Three nodes that stay up. Tests use names from `name`."""
    yield sound
    sound.disconnect()


@pytest.fixture(scope="package")
def fragile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    # Who comes back often is taken back ever later, in proportion to this. A busy machine stands still for a second.
    cluster = Cluster(tmp_path_factory.mktemp("fragile"), "net_ticktime = 2\ncluster.operation_timeout = 5000")
    try:
        yield cluster
    finally:
        cluster.end()


@pytest.fixture
def nodes(fragile: Cluster) -> Iterator[Cluster]:
    """Three nodes to kill, freeze and start again; whole and empty again before the next test begins."""
    try:
        fragile.mend()
        fragile.clear()
    except (RuntimeError, AssertionError):
        fragile.begin_anew()  # A test that failed must not take the others along.
    yield fragile
    fragile.disconnect()


@pytest.fixture
def steady(nodes: Cluster) -> Iterator[Cluster]:
    """The same, and who is left alone serves on: what a minority can do is no matter while it is paused."""
    nodes.nodes[0].control("set_partition_handling", strategy="ignore")
    yield nodes
    nodes.mend()
    nodes.nodes[0].control("clear_partition_handling")


@pytest.fixture
def start_cluster(tmp_path: Path) -> Iterator[StartCluster]:
    """Start a cluster of one's own: `start_cluster("heartbeat = 1", size=2)`."""
    clusters: list[Cluster] = []

    def start(config: str = "", *, begin: bool = True, **options: Any) -> Cluster:
        cluster = Cluster(tmp_path / f"cluster{len(clusters) + 1}", config, **options)
        clusters.append(cluster)
        return cluster.start() if begin else cluster

    start.clusters = clusters  # type: ignore[attr-defined]
    yield start
    for cluster in clusters:
        cluster.end()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What the nodes of a failed test logged."""
    report = yield
    if report.failed:
        funcargs = getattr(item, "funcargs", {})
        clusters = list(getattr(funcargs.get("start_cluster"), "clusters", ()))
        clusters += [funcargs[name] for name in ("sound", "fragile") if name in funcargs]
        for node in (node for cluster in clusters for node in cluster):
            log = node.log()[-LOG_CHARACTERS_SHOWN:] if (node.folder / "server.err").exists() else "never started"
            report.sections.append((f"log of {node.folder}", log))
    return report
