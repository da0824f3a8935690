"""What is sent on to a node without room is noticed, and only that: the clients are at a, the queue is at b."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from leveret.metadata.rules.partition_handling import PartitionHandling, Strategy
from simulation.checkers.room_checker import ROOM_S
from simulation.core.machine import DISK_RESERVE
from simulation.scenarios.spooled import Spooling
from tests.support.brokers import Cluster
from tests.support.machines import publish
from tests.support.remote import client_with_queue, cut, remote_queue


class Watched:
    """A cluster whose spools at a are observed. `full`: nodes whose disks have no room, which a does not know."""

    def __init__(self, *full: str) -> None:
        self.cluster = Cluster("a", "b", "c", home="b")
        self.failures: list[str] = []
        self.machines = {name: self._machine(name) for name in "abc"}
        self.world = Mock(machines=list(self.machines.values()), fail=self.failures.append)
        self.world.scheduler.now = 0.0
        self.spooling = Spooling(self.world)
        self.spooling.tight = {name: self.machines[name] for name in full}
        self.set_strategy(Strategy.AUTOHEAL)
        client = client_with_queue(self.cluster)
        self.observe()
        cut(self.cluster)
        client.feed(publish(1, "", "q", b"1 ", delivery_mode=2))
        self.cluster.run()
        self.observe()

    @staticmethod
    def _machine(name: str) -> Any:
        disk = SimpleNamespace(free_bytes=lambda: DISK_RESERVE - 1)
        return SimpleNamespace(name=name, node_name=name, lives=1, loop=None, disk=disk)

    def set_strategy(self, strategy: Strategy) -> None:
        for member in self.cluster.members.values():
            member.broker.partition_handling = PartitionHandling(strategy)

    def observe(self) -> None:
        self.spooling.observe_spools(self.machines["a"], self.cluster["a"].broker.spools)

    def wait(self) -> None:
        """Passes the time in which all nodes learn how much room there is."""
        for _ in range(4):
            self.world.scheduler.now += ROOM_S / 3
            self.observe()

    def join(self) -> None:
        """Connects a and b: what is spooled is sent on."""
        self.cluster.join("a", "b")
        self.cluster.run()
        (spool,) = self.cluster["a"].broker.spools.by_target.values()
        assert (spool.count, spool.sent) == (0, 1)


def test_what_is_sent_on_to_a_full_disk_is_noticed() -> None:
    watched = Watched("b")
    watched.wait()
    watched.join()
    watched.observe()
    assert watched.failures == ["a.1 sends on to b, whose disk has room for too little since 0.000000"]


def test_what_was_sent_on_before_a_queue_came_to_a_full_disk_does_not_count() -> None:
    watched = Watched("c")
    watched.join()
    watched.wait()
    remote = remote_queue(watched.cluster)
    remote.spec = replace(remote.spec, node="c")
    watched.observe()
    assert watched.failures == []


@pytest.mark.parametrize("is_observed", [False, True])
def test_what_another_strategy_sends_on_does_not_count(is_observed: bool) -> None:
    watched = Watched("b")
    watched.wait()
    watched.set_strategy(Strategy.IGNORE)
    watched.join()
    if is_observed:
        watched.observe()
    watched.set_strategy(Strategy.AUTOHEAL)
    watched.observe()
    assert watched.failures == []
