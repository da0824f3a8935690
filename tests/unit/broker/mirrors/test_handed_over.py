"""A master whose own disk holds everybody up hands over what is not confirmed yet: see `tests.support.ring_world`."""

from __future__ import annotations

import pytest

from leveret.broker.delivery.confirms import DOUBTED, Confirms
from leveret.metadata.model import commands as c
from tests.support.control_world import cluster
from tests.support.ring_world import Rings

ONE, TWO, THREE = "one@host", "two@host", "three@host"


class Handed(Rings):
    """Published, by a client of another node, at a master whose disk does not answer, which has handed over."""

    def __init__(self) -> None:
        super().__init__(cluster(ONE, THREE, TWO))
        self.number = self.declare("q", ONE, TWO, THREE)
        self.told: list[tuple[int, bool, int]] = []
        self.confirms = Confirms(lambda: self.told.extend(self.confirms.take()), is_of_link=True)
        self.stuck.add(ONE)
        queue = self.servers[ONE].world.queue("q")
        pending = self.confirms.begin(1)
        queue.enqueue([b"x"], [b""], 1, 1, pending)
        self.tick(40)
        spec = self.servers[THREE].world.metadata.queues["/", "q"]
        assert spec.node != ONE and spec.view is not None and spec.view.disk_of(ONE) is not None
        assert self.servers[spec.node].world.queue("q").ready_count == 1
        self.heir = spec.node


@pytest.fixture
def rings() -> Handed:
    return Handed()


def test_it_is_confirmed_when_the_slow_disk_has_it(rings: Handed) -> None:
    assert not rings.told, "if the others die now, this disk has to have it"
    rings.stuck.clear()
    rings.servers[ONE].world.broker.mirrors.on_synced(rings.number, 1_000)
    rings.tick()
    assert [refused for *_, refused in rings.told] == [False]


def test_it_is_in_doubt_when_the_slow_node_leaves_the_ring(rings: Handed) -> None:
    """Whoever sent it sends it again to the next master."""
    mirror = rings.copy(rings.heir, rings.number)
    assert mirror.member.change_ring(tuple(name for name in (TWO, THREE)))
    rings.servers[rings.heir].world.broker.mirrors.touched[mirror] = None
    rings.run()
    assert [refused for *_, refused in rings.told] == [DOUBTED]


def test_nobody_waits_when_the_queue_is_deleted(rings: Handed) -> None:
    rings._propose(c.DeleteQueue("/", "q", rings.number))
    assert [refused for *_, refused in rings.told] == [False]
