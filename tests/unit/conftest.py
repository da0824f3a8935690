"""A cluster for the tests of remote queues."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.brokers import Cluster


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Clients at a, queues at b. Whatever a test does, nothing is left of it at the end."""
    cluster = Cluster("a", "b", home="b")
    yield cluster
    cluster.held.clear()
    cluster.behind.clear()
    for member in cluster.members.values():
        member.crowded = member.holds_disk = member.holds_loads = False
    for sender, receiver in list(cluster.deaf):
        cluster.drain(sender, receiver)
    for first, second in (("a", "b"),):
        if (first, second) not in cluster.links:
            cluster.join(first, second)
    cluster.run()
    cluster.finish()
