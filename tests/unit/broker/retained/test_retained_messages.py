from __future__ import annotations

import time

import pytest

from leveret.broker.retained import retained_messages
from leveret.broker.retained.retained_messages import Limits, RetainedMessages
from leveret.metadata.model import commands as c
from leveret.metadata.model.refusals import Refusal
from leveret.metadata.mqtt.commands import KeepRetained, RetainedRow
from leveret.metadata.mqtt.records import RetainedMessage
from leveret.metadata.store import Applied, Metadata
from tests.support.brokers import Cluster
from tests.support.machines import World

TOPICS = 100_000


class Told(list[Refusal | None]):
    """What `then` was told."""

    def __call__(self, refused: Refusal | None) -> None:
        self.append(refused)


def keep(world: World, topic: str, payload: bytes, expires_ms: int = 0) -> Told:
    told = Told()
    message = RetainedMessage(topic, payload, expires_ms=expires_ms) if payload else None
    world.broker.retained.keep("/", topic, message, told)
    return told


def found(world: World, topic_filter: str) -> dict[str, bytes]:
    return {one.topic: one.payload for one in world.broker.retained.find("/", topic_filter)}


def test_the_last_message_is_found_by_name_and_by_wildcard() -> None:
    world = World()
    for topic, payload in (("a/b", b"1"), ("a/c", b"2"), ("a/b", b"3"), ("$x/y", b"4"), ("d", b"5")):
        told = keep(world, topic, payload)
        world.turn()
        assert told == [None]
    assert found(world, "a/b") == {"a/b": b"3"}
    assert found(world, "a/+") == {"a/b": b"3", "a/c": b"2"}
    assert found(world, "#") == {"a/b": b"3", "a/c": b"2", "d": b"5"}
    assert found(world, "$x/#") == {"$x/y": b"4"}
    keep(world, "a/b", b"")
    world.turn()
    assert found(world, "a/#") == {"a/c": b"2"}


def test_what_gathers_in_a_turn_is_one_command_with_the_last_message_of_each_topic() -> None:
    world = World()
    world.holds_metadata = True
    answers = [keep(world, f"t{number % 3}", b"%d" % number) for number in range(1000)]
    world.turn()
    ((command, _),) = world.proposals
    assert isinstance(command, KeepRetained) and len(command.rows) == 3
    assert not any(answers)
    world.release_metadata()
    assert all(told == [None] for told in answers)
    assert found(world, "#") == {"t0": b"999", "t1": b"997", "t2": b"998"}
    assert world.broker.retained.waiting_bytes == 0


def test_while_a_command_is_under_way_the_next_gathers() -> None:
    world = World()
    world.holds_metadata = True
    first = keep(world, "a", b"1")
    world.turn()
    second, third = keep(world, "a", b"2"), keep(world, "b", b"3")
    world.turn()
    assert len(world.proposals) == 1
    world.release_metadata()
    assert first == [None] and second == third == []
    world.turn()
    assert second == third == [None]
    assert found(world, "#") == {"a": b"2", "b": b"3"}


def test_what_is_not_agreed_on_yet_is_found_at_this_node() -> None:
    world = World()
    keep(world, "a", b"1")
    keep(world, "b", b"1")
    world.turn()
    world.holds_metadata = True
    keep(world, "a", b"2")
    world.turn()
    keep(world, "c", b"3")
    keep(world, "b", b"")
    assert found(world, "#") == {"a": b"2", "c": b"3"}
    assert found(world, "a") == {"a": b"2"} and found(world, "b") == {}


def test_without_agreement_the_publisher_is_refused() -> None:
    world = World()
    world.holds_metadata = True
    told = keep(world, "a", b"1")
    world.turn()
    ((_, then),) = world.proposals
    refused = Refusal(541, "no majority")
    then(Applied(0, refused, ()))
    assert told == [refused] and found(world, "#") == {}
    assert world.broker.retained.refused == 1


def test_limits() -> None:
    world = World()
    world.broker.retained.limits = Limits(messages_max=2, bytes_max=100, message_bytes_max=50)
    (large,) = keep(world, "a", bytes(51))
    assert large is not None and large.code == 406
    answers = [keep(world, topic, b"1") for topic in "abc"]
    world.turn()
    assert answers[:2] == [[None], [None]]
    ((refused,),) = answers[2:]
    assert refused is not None and refused.code == 406
    assert set(found(world, "#")) == {"a", "b"}


def test_publishers_are_held_back_and_at_last_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retained_messages, "CROWDED_BYTES", 500)
    monkeypatch.setattr(retained_messages, "WAITING_BYTES_MAX", 1000)
    world = World()
    world.holds_metadata = True
    answers = [keep(world, f"t{number}", b"x") for number in range(5)]
    assert world.broker.retained.is_crowded()
    answers += [keep(world, f"u{number}", b"x") for number in range(5)]
    assert answers[0] == [] and answers[-1][0] is not None
    world.holds_metadata = False
    world.turn()
    assert not world.broker.retained.is_crowded() and len(found(world, "#")) == 9


def test_large_commands_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retained_messages, "ROWS_MAX", 10)
    world = World()
    world.holds_metadata = True
    for number in range(25):
        keep(world, f"t{number}", b"x")
    rows = []
    while True:
        world.turn()
        if not world.proposals:
            break
        ((command, then),) = world.proposals
        world.proposals.clear()
        assert isinstance(command, KeepRetained)
        rows.append(len(command.rows))
        world.apply(command, then)
    assert rows == [10, 10, 5] and len(found(world, "#")) == 25


def test_messages_expire_and_the_leader_has_them_deleted() -> None:
    world = World()
    world.broker.wall_ms = 1_000
    keep(world, "a", b"1", expires_ms=5_000)
    keep(world, "b", b"1", expires_ms=9_000)
    keep(world, "c", b"1")
    world.turn()
    world.broker.wall_ms = 5_000
    assert set(found(world, "#")) == {"b", "c"}
    assert world.metadata.retained.count("/") == 3
    world.broker.lead()
    assert world.metadata.retained.count("/") == 2
    keep(world, "b", b"2", expires_ms=20_000)
    world.turn()
    world.broker.wall_ms = 10_000
    world.broker.lead()
    assert found(world, "#") == {"b": b"2", "c": b"1"}


def test_all_nodes_find_the_same_in_one_order() -> None:
    cluster = Cluster("x", "y", "z")
    for round_ in range(5):
        for name in "xyz":
            keep(cluster[name], "t", f"{name}{round_}".encode())
            keep(cluster[name], f"own/{name}", b"%d" % round_)
        cluster.run()
        states = [found(cluster[name], "#") for name in "xyz"]
        assert states[0] == states[1] == states[2]
        assert states[0]["t"] in {f"{name}{round_}".encode() for name in "xyz"}
        assert len(states[0]) == 4


def test_a_vhost_takes_its_messages_along() -> None:
    world = World()
    world.apply(c.AddVhost("v"))
    world.broker.retained.keep("v", "t", RetainedMessage("t", b"1"), Told())
    world.turn()
    assert len(world.broker.retained.find("v", "t")) == 1
    world.apply(c.DeleteVhost("v"))
    assert not world.broker.retained.find("v", "t") and not world.broker.retained.indexes
    told = Told()
    world.broker.retained.keep("v", "t", RetainedMessage("t", b"1"), told)
    assert told[0] is not None and told[0].code == 404


def test_a_hundred_thousand_topics_are_found_in_less_than_a_second() -> None:
    world = World()
    rows = []
    for number in range(TOPICS):
        topic = f"site/{number % 100}/device/{number}/state"
        rows.append(RetainedRow("/", topic, RetainedMessage(topic, b"x" * 20)))
    world.apply(KeepRetained(tuple(rows), 1 << 30, 1 << 30))
    begun = time.thread_time()
    assert len(found(world, "site/+/device/+/state")) == TOPICS
    assert len(found(world, "#")) == TOPICS
    assert len(found(world, "site/7/#")) == TOPICS // 100
    assert time.thread_time() - begun < 3  # Three searches.
    copy = Metadata()
    copy.restore(world.metadata.snapshot())
    assert copy.retained == world.metadata.retained


def test_a_restarted_node_has_what_was_kept() -> None:
    world = World()
    keep(world, "a/b", b"1")
    world.turn()
    fresh = World()
    fresh.metadata.restore(world.metadata.snapshot())
    assert [one.payload for one in RetainedMessages(fresh.broker).find("/", "a/+")] == [b"1"]
