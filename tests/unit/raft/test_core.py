"""What the scenarios cannot say in words: limits, results, the shape of a Ready."""

from __future__ import annotations

from itertools import chain

import pytest

from leveret.raft import AddLearner, Busy, Kind, Member, NotLeader, Options, Proposed, Raft, Update, bootstrap
from leveret.raft.messages import ENTRY_BYTES_MAX, Append, AppendResponse, Heartbeat, HeartbeatResponse
from tests.unit.raft.lab import Lab


def alone(**options: int) -> Raft:
    hard_state, entry = bootstrap(Member("a", "node a", "host:1"))
    raft = Raft("a", lambda limit: 0, Options(**options), hard_state=hard_state, entries=[entry])
    raft.campaign()
    drain(raft)
    return raft


def drain(raft: Raft) -> list[bytes]:
    applied = []
    while (ready := raft.ready()) is not None:
        applied += [entry.data for entry in ready.committed if entry.kind is Kind.COMMAND]
        raft.advance(ready)
    return applied


def test_a_founder_leads_and_knows_itself() -> None:
    raft = alone()
    assert raft.is_leader and raft.term == 2 and raft.applied == 2
    assert raft.membership.get("a") == Member("a", "node a", "host:1")
    assert raft.propose(b"x") == Proposed(3, 2)
    assert drain(raft) == [b"x"]
    assert raft.ready() is None


def test_a_disk_of_an_earlier_time_is_noticed() -> None:
    """A leader commits at a follower only what it has said to have stored."""
    hard_state, entry = bootstrap(Member("a", "node a", "host:1"))
    raft = Raft("a", lambda limit: 0, hard_state=hard_state, entries=[entry])
    raft.step(Heartbeat("b", "a", 2, 1))
    assert not raft.has_forgotten and raft.log.commit == 1
    raft.step(Heartbeat("b", "a", 2, 2))
    assert raft.has_forgotten and raft.log.commit == 1


def test_one_ready_at_a_time() -> None:
    raft = alone()
    raft.propose(b"x")
    ready = raft.ready()
    assert ready is not None
    raft.propose(b"y")
    with pytest.raises(AssertionError):
        raft.ready()
    raft.advance(ready)
    with pytest.raises(AssertionError):
        raft.advance(ready)
    assert drain(raft) == [b"x", b"y"]


def test_what_arrives_during_a_write_makes_one_batch() -> None:
    raft = alone()
    raft.propose(b"0")
    ready = raft.ready()
    assert ready is not None and len(ready.entries) == 1
    for number in range(100):
        raft.propose(b"%d" % number)
    raft.advance(ready)
    batch = raft.ready()
    assert batch is not None and len(batch.entries) == 100 and batch.must_sync


def test_refusals_say_why() -> None:
    raft = alone(uncommitted_max=1)
    raft.propose(b"x")
    with pytest.raises(Busy, match="1 entries with 1 bytes wait to be committed"):
        raft.propose(b"y")
    drain(raft)
    with pytest.raises(ValueError, match="at most"):
        raft.propose(bytes(ENTRY_BYTES_MAX + 1))
    stranger = Raft("z", lambda limit: 0)
    with pytest.raises(NotLeader, match="no leader is known") as caught:
        stranger.propose(b"x")
    assert caught.value.leader is None
    with pytest.raises(ValueError, match="not another voter"):
        raft.transfer("a")


def test_bytes_are_limited_too() -> None:
    raft = alone(uncommitted_bytes_max=10)
    raft.propose(b"0123456789")
    with pytest.raises(Busy):
        raft.propose(b"x")
    drain(raft)
    raft.propose(b"x")


def test_committed_entries_come_in_portions() -> None:
    raft = alone(committed_max=3, committed_bytes_max=8)
    for number in range(10):
        raft.propose(b"%d" % number)
    portions: list[list[bytes]] = []
    while (ready := raft.ready()) is not None:
        portions.append([entry.data for entry in ready.committed])
        raft.advance(ready)
    assert max(map(len, portions)) == 3
    assert list(chain(*portions)) == [b"%d" % number for number in range(10)]
    for _ in range(4):
        raft.propose(b"12345")
    while (ready := raft.ready()) is not None:
        assert len(ready.committed) <= 1
        raft.advance(ready)


def test_messages_are_limited_in_bytes() -> None:
    lab = Lab(append_bytes_max=10, inflight_bytes_max=25).play("voters a b c\n elect a\n cut b\n propose a xxxxxxxx")
    raft = lab.nodes["a"].raft
    lab.node("a")
    for _ in range(5):
        raft.propose(b"12345")
    lab.pump("a")
    appends = [message for message in lab.nodes["a"].early if isinstance(message, Append) and message.to == "c"]
    sizes = [sum(len(entry.data) for entry in message.entries) for message in appends]
    assert sizes == [10, 10]  # With the eight bytes before, the window is full.
    lab.play("heal\n settle\n quiet a 3\n expect c last=7\n expect b last=7")


def test_a_leader_knows_what_all_have_applied() -> None:
    lab = Lab().play("voters a b c\n elect a\n cut c\n propose a x\n settle")
    raft = lab.nodes["a"].raft
    assert raft.applied_by(["b"]) == 2
    assert raft.applied_by(["b", "c"]) == 1
    assert raft.applied_by([]) == raft.applied_by(["stranger"]) == 2
    lab.play("heal\n quiet a 2")
    assert raft.applied_by(["b", "c"]) == 2
    with pytest.raises(NotLeader):
        lab.nodes["b"].raft.applied_by([])


def test_a_leader_knows_its_better() -> None:
    lab = Lab().play("voters a b c\n priority c 2\n elect a")
    raft = lab.nodes["a"].raft
    assert raft.preferred == "c"
    raft.change(Update(Member("a", "node a", "elsewhere:1", 2)))
    lab.play("settle")
    assert raft.preferred is None
    member = lab.nodes["b"].raft.membership.get("a")
    assert member is not None and member.address == "elsewhere:1"  # Everyone learns it from the log.
    assert lab.nodes["b"].raft.preferred is None


def test_compaction_keeps_what_is_asked_for() -> None:
    raft = alone()
    for number in range(10):
        raft.propose(b"%d" % number)
    drain(raft)
    meta = raft.snapshot_meta(8)
    assert meta is not None and (meta.index, meta.term) == (8, 2)
    assert meta.membership.voter_ids == ("a",)
    assert raft.compact(meta, keep=3)
    assert raft.log.offset == 5 and raft.last_index == 12
    assert not raft.compact(meta)
    assert raft.membership.voter_ids == ("a",)


def test_a_snapshot_in_use_is_named() -> None:
    lab = Lab(chunk_bytes=2).play("voters a b c\n elect a\n cut c\n propose a x\n settle\n compact a\n propose a y")
    raft = lab.nodes["a"].raft
    raft.step(HeartbeatResponse("c", "a", 1))
    raft.step(AppendResponse("c", "a", 1, False, 2, 1, 1))
    lab.pump("a")
    assert raft.snapshots_in_use == {2}
    lab.play("settle\n heal\n quiet a 40\n expect c applied=3")
    assert raft.snapshots_in_use == set()


def test_too_large_a_snapshot_is_not_taken() -> None:
    script = """
    voters a b c
    a gets SnapshotChunk from b term=3 index=5 meta_term=2 data=four
    expect a applied=0
    expect a sent SnapshotResponse received=0
    a gets SnapshotChunk from b term=3 index=5 meta_term=2 data=all
    expect a applied=5
    """
    Lab(snapshot_bytes_max=3).play(script)


def test_two_incarnations_of_one_name_do_not_meet() -> None:
    raft = alone()
    raft.change(AddLearner(Member("b1", "node b", "host:2")))
    drain(raft)
    with pytest.raises(ValueError, match="remove that incarnation first"):
        raft.change(AddLearner(Member("b2", "node b", "host:2")))


@pytest.mark.parametrize(
    "wrong",
    [
        {"heartbeat_ticks": 10},
        {"heartbeat_ticks": 0},
        {"chunk_bytes": 0},
        {"chunk_bytes": 1 << 30},
        {"inflight_max": 0},
        {"append_bytes_max": 1 << 30},
    ],
)
def test_options_that_make_no_sense(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError):
        Options(**wrong)
