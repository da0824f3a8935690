from __future__ import annotations

from dataclasses import replace

import pytest

from leveret.broker.mirrors.copy_store import MirrorStore
from leveret.broker.mirrors.status import copy_pid, down, figures, is_syncing, lags, own_copy, state, synchronised
from leveret.broker.remote.client_end import ClientEnd
from tests.support.control_world import FakeServer, cluster
from tests.support.ring_world import Rings


@pytest.fixture
def rings() -> Rings:
    return Rings(cluster("a", "b", "c"))


def unsynced(rings: Rings) -> int:
    """A queue of which b lacks five messages of seven."""
    number = rings.declare("q", "a")
    rings.publish("a", "q", 5)
    rings.add_member(number, "b")
    rings.publish("a", "q", 2)
    return number


def test_what_stands_for_a_copy() -> None:
    assert copy_pid("one@host", 7) == "<one@host.2.7.0>"


def test_mirrors_that_have_all_are_not_behind(rings: Rings) -> None:
    number = rings.declare("q", "a", "b", "c")
    rings.publish("a", "q", 5)
    mirror = rings.copy("a", number)
    assert [tuple(lag) for lag in lags(mirror, mirrors_store(rings, "a"), 9_000)] == [
        ("b", True, True, True, 0, 0, 0.0),
        ("c", True, True, True, 0, 0, 0.0),
    ]
    assert lags(rings.copy("b", number), mirrors_store(rings, "b"), 9_000) == []
    assert own_copy(mirror, mirrors_store(rings, "a")).messages == 5
    copy = own_copy(rings.copy("c", number), mirrors_store(rings, "c"))
    assert (copy.leads, copy.in_sync, copy.complete, copy.filling, copy.messages) == (False, True, True, False, 5)
    assert synchronised(mirror) == ["b", "c"]
    assert state(mirror) == "running"


def test_mirrors_of_a_queue_that_nobody_used_are_not_behind(rings: Rings) -> None:
    number = rings.declare("q", "a", "b", "c")
    mirror = rings.copy("a", number)
    assert mirror.member.tail.end == 0, "no block before the first message"
    assert [tuple(lag) for lag in lags(mirror, mirrors_store(rings, "a"), 9_000)] == [
        ("b", True, True, True, 0, 0, 0.0),
        ("c", True, True, True, 0, 0, 0.0),
    ]
    assert (synchronised(mirror), state(mirror)) == (["b", "c"], "running")
    rings.kill("c")
    (_, gone) = lags(mirror, mirrors_store(rings, "a"), 9_000)
    assert (gone.node, gone.running, gone.messages) == ("c", False, None)


def mirrors_store(rings: Rings, name: str) -> MirrorStore:
    store = rings.servers[name].world.broker.mirrors.store
    assert store is not None
    return store


def test_a_copy_counts_what_is_not_known_to_be_confirmed(rings: Rings) -> None:
    number = rings.declare("q", "a", "b")
    rings.publish("a", "q", 5)
    rings.publish("a", "q", 4)
    queue = rings.servers["a"].world.queue("q")
    queue.purge()
    rings.servers["b"].world.broker.mirrors.packers.clear()  # Nothing more is confirmed.
    rings.run()
    mirror = rings.copy("b", number)
    assert mirror.member.tail.end > mirror.member.confirmed
    assert own_copy(mirror, mirrors_store(rings, "b")).messages == 0
    rings.publish("a", "q", 2)
    assert own_copy(mirror, mirrors_store(rings, "b")).messages == 2


def test_a_lag_counts_messages_bytes_and_time_since_the_oldest(rings: Rings) -> None:
    number = rings.declare("q", "a", "b", "c")
    rings.publish("a", "q", 5)
    mirror = rings.copy("a", number)
    master, tail = mirror.member.master, mirror.member.tail
    assert master is not None
    before = tail.end
    # What c says no longer arrives.
    rings.servers["c"].world.broker.mirrors.packers.clear()
    rings.publish("a", "q", 3)
    rings.publish("a", "q", 4)
    (other, behind) = lags(mirror, mirrors_store(rings, "a"), 3_500)
    assert (other.node, other.messages, other.bytes) == ("b", 0, 0)
    assert (behind.node, behind.messages, behind.seconds) == ("c", 7, 2.5)
    assert behind.bytes == tail.bytes_between(before, tail.end) > 0


def test_nothing_is_said_of_who_is_away(rings: Rings) -> None:
    number = rings.declare("q", "a", "b", "c")
    rings.publish("a", "q", 1)
    rings.kill("c")
    mirror = rings.copy("a", number)
    (_, gone) = lags(mirror, mirrors_store(rings, "a"), 0)
    assert tuple(gone[:3]) == ("c", False, True)
    assert (gone.messages, gone.bytes, gone.seconds) == (None, None, None)


def test_one_that_is_being_filled_lacks_what_still_lives_of_what_came_before_it(rings: Rings) -> None:
    number = unsynced(rings)
    (filling,) = lags(rings.copy("a", number), mirrors_store(rings, "a"), 0)
    assert filling == ("b", True, False, False, 5, None, None)
    copy = own_copy(rings.copy("b", number), mirrors_store(rings, "b"))
    assert (copy.complete, copy.filling, copy.messages, copy.filled, copy.to_fill) == (False, False, 2, 0, 5)


@pytest.mark.parametrize(
    ("policy", "ordered", "syncing"),
    [(True, None, True), (False, None, False), (False, True, True), (True, False, False)],
)
def test_a_queue_is_syncing_while_a_mirror_that_runs_is_to_be_filled(
    rings: Rings, policy: bool, ordered: bool | None, syncing: bool
) -> None:
    number = unsynced(rings)
    mirror = rings.copy("a", number)
    mirror.member.options = replace(mirror.member.options, filling=policy)
    mirror.member.ordered = ordered
    assert is_syncing(mirror) is syncing
    assert state(mirror) == ("syncing" if syncing else "running")
    mirror.member.links -= {"b"}
    assert not is_syncing(mirror)


def test_a_master_without_the_majority(rings: Rings) -> None:
    number = rings.declare("q", "a", "b")
    rings.servers["a"].world.broker.mirrors.on_majority(False)
    rings.run()
    assert state(rings.copy("a", number)) == "minority"


def test_figures_of_a_node(rings: Rings) -> None:
    rings.declare("one", "a", "b", "c")
    rings.declare("two", "b", "a")
    rings.declare("three", "a", "c")
    rings.kill("c")
    rings.publish("a", "one", 1)

    def of(server: FakeServer) -> dict[str, int | float]:
        mirrors = server.world.broker.mirrors
        return figures(mirrors, mirrors.store, mirrors.journal.counts, 2_000)

    found = of(rings.servers["a"])
    assert (found["masters"], found["mirrors"]) == (2, 1)
    assert found["masters_without_synchronised_mirror"] == 1
    assert found["synchronised_mirrors_of_masters"] == 1
    assert found["promotions"] == found["forced_promotions"] == 0
    assert of(rings.servers["b"])["mirrors_not_synchronised"] == 0
    rings.tick()
    rings.kill("a")
    rings.tick()
    found = of(rings.servers["b"])
    assert (found["masters"], found["promotions"]) == (2, 1)
    assert found["view_changes"] >= 2


def test_a_queue_whose_master_is_out_of_reach_is_down(rings: Rings) -> None:
    rings.declare("here", "a", "b")
    rings.declare("there", "b", "a")
    broker = rings.servers["a"].world.broker
    broker.client_ends["b"] = ClientEnd(broker, "b")
    assert down(broker) == 0
    del broker.client_ends["b"]
    assert down(broker) == 1
