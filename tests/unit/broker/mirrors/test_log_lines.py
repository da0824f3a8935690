from __future__ import annotations

import pytest

from leveret.broker.mirrors import log_lines
from tests.support.control_world import cluster
from tests.support.ring_world import Rings


@pytest.fixture
def rings() -> Rings:
    return Rings(cluster("a", "b", "c"))


def told(rings: Rings, node: str) -> list[str]:
    """What a node has noted of its queue since the last time, without what each line begins with."""
    notes = rings.servers[node].world.notes
    found = [text.removeprefix("Mirrored queue 'q' in vhost '/': ") for kind, _, text in notes if kind == "mirroring"]
    notes.clear()
    return found


def test_a_queue_is_born_and_its_master_dies(rings: Rings) -> None:
    number = rings.declare("q", "a", "b", "c")
    assert told(rings, "a") == [
        f"Adding mirror on node b: <b.2.{number}.0>",
        f"Adding mirror on node c: <c.2.{number}.0>",
    ]
    assert told(rings, "b") == []
    rings.kill("a")
    rings.tick()
    heir = "b" if rings.copy("b", number).member.master is not None else "c"
    lines = told(rings, heir)
    assert lines[:2] == [
        f"Secondary replica of queue <{heir}.2.{number}.0> detected replica <a.2.{number}.0> to be down",
        f"Promoting mirror <{heir}.2.{number}.0> to leader",
    ]
    rings.kill("c" if heir == "b" else "b")
    assert told(rings, heir)[0].startswith(f"Primary replica of queue <{heir}.2.{number}.0> detected replica <")


def test_members_come_and_go(rings: Rings) -> None:
    number = rings.declare("q", "a", "b")
    told(rings, "a")
    mirror = rings.copy("a", number)
    rings.publish("a", "q", 3)
    assert mirror.member.change_ring(("a", "c"))
    rings.servers["a"].world.broker.mirrors.touched[mirror] = None
    rings.run()
    lines = told(rings, "a")
    assert lines[:2] == [f"Adding mirror on node c: <c.2.{number}.0>", "Dropping queue mirror on node b"]


def test_only_what_a_mirror_lacks_is_counted(rings: Rings) -> None:
    """One that returns has most of a long queue."""
    number = rings.declare("q", "a")
    rings.publish("a", "q", 30)
    rings.add_member(number, "b")
    rings.publish("a", "q", 12)
    mirror, mirrors = rings.copy("a", number), rings.servers["a"].world.broker.mirrors
    told(rings, "a")
    mirrors.order_sync(mirror, True)
    assert told(rings, "a")[0] == "Synchronising: 30 messages to synchronise"


def test_a_sync_on_demand(rings: Rings) -> None:
    number = rings.declare("q", "a")
    rings.publish("a", "q", 3)
    mirror, mirrors = rings.copy("a", number), rings.servers["a"].world.broker.mirrors
    rings.add_member(number, "b")
    told(rings, "a")
    mirrors.order_sync(mirror, True)
    assert told(rings, "a") == ["Synchronising: 3 messages to synchronise", "Synchronising: mirrors [b] to sync"]
    mirrors.order_sync(mirror, False)
    assert told(rings, "a") == ["Synchronising: stopped, mirrors [b] are not synchronised"]
    mirrors.order_sync(mirror, True)
    rings.tick()
    assert told(rings, "a")[-1] == "Synchronising: complete"
    assert mirror.ordered is None
    mirrors.order_sync(mirror, True)
    assert told(rings, "a") == ["Synchronising: all mirrors already synced"]


def test_a_promotion_by_force_is_a_warning(rings: Rings) -> None:
    number = rings.declare("q", "a")
    mirrors = rings.servers["b"].world.broker.mirrors
    rings.publish("a", "q", 3)
    rings.add_member(number, "b")
    rings.kill("a")
    told(rings, "b")
    assert mirrors.force(rings.copy("b", number))
    rings.run()
    notes = [(level, text.partition("': ")[2]) for _, level, text in rings.servers["b"].world.notes]
    assert ("info", f"Promoting mirror <b.2.{number}.0> to leader") in notes
    assert ("warning", "Promoted by force: messages that this copy lacked are lost") in notes
    assert mirrors.journal.counts.forced_promotions == 1


def test_lines_have_a_budget(rings: Rings) -> None:
    number = rings.declare("q", "a", "b")
    world = rings.servers["a"].world
    journal, mirror = world.broker.mirrors.journal, rings.copy("a", number)
    world.notes.clear()
    for line in range(log_lines.LINES_MAX * 2):
        journal.note(mirror, str(line))
    assert len(world.notes) < log_lines.LINES_MAX
    left_out = log_lines.LINES_MAX * 2 - len(world.notes)
    world.notes.clear()
    journal.tick()
    assert world.notes == []  # More may come.
    journal.tick()
    assert world.notes == [("mirroring", "info", f"Mirrored queues: {left_out} more lines like these")]
    for _ in range(log_lines.LINES_MAX):
        journal.tick()
    world.notes.clear()
    journal.note(mirror, "again")
    assert len(world.notes) == 1
