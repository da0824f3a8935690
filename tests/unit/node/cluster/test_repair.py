"""What `leveret recover` finds and does in the folder of a stopped node. With other nodes: `mirrors/test_damage.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from leveret.cli.recover import _recover, recover
from leveret.metadata.model.commands import AddVhost
from leveret.node.cluster import repair
from leveret.node.cluster.consensus_log import ConsensusLog, ConsensusLogDamaged, load_identity
from leveret.node.system.data_folder import METADATA, folder_lock
from leveret.raft import AddLearner, BadChange, Entry, Kind, Member, Membership, Promote, Replace
from leveret.raft.membership import encode_membership
from leveret.storage.segments.disk import FileDisk
from tests.support.servers import prepare

OWN, OTHER = "0123456789abcdef" * 2, "f" * 32


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Of a node that is one of two members."""
    prepare(tmp_path, [AddVhost("/")])
    disk = FileDisk(str(tmp_path))
    log = ConsensusLog(disk, METADATA)
    last = log.recover().last_index
    members = Membership((Member(OWN, "leveret@localhost", "127.0.0.1:25672"),))
    for change in (AddLearner(Member(OTHER, "two@host", "host:1234")), Promote(OTHER)):
        members, last = members.changed(change), last + 1
        log.save(None, [Entry(last, 1, Kind.MEMBERSHIP, encode_membership(members))], last, None)
        job = log.take()
        assert job is not None
        job.perform(disk)
        log.on_done(job)
    disk.close()
    return tmp_path


def spoil(data: Path, at: int | None = None) -> None:
    (path,) = (data / METADATA).glob("log-*")
    stored = bytearray(path.read_bytes())
    stored[len(stored) // 2 if at is None else at] ^= 1
    path.write_bytes(stored)


def notes(data: Path) -> tuple[str, str]:
    return (data / "join").read_text(), (data / "replace").read_text()


def test_whom_to_ask_is_found_behind_the_damage(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spoil(data, 60)
    assert recover(str(data), []) == 0
    assert notes(data) == ("host:1234", OWN)
    assert "host:1234" in capsys.readouterr().out
    assert sorted(path.name.partition("-")[0] for path in (data / "damaged/1/metadata").iterdir()) == [
        "identity",
        "log",
    ]
    assert list((data / METADATA).iterdir()) == []


def test_without_a_readable_identity_the_name_must_do(data: Path) -> None:
    (data / METADATA / "identity").write_bytes(b"nonsense")
    assert recover(str(data), []) == 0
    assert notes(data) == ("127.0.0.1:25672 host:1234", "unknown")


def test_nobody_can_be_found(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (data / METADATA).glob("log-*"):
        path.write_bytes(bytes(path.stat().st_size))
    (data / METADATA / "identity").unlink()
    before = sorted(path.name for path in (data / METADATA).iterdir())
    assert recover(str(data), []) == 65
    assert "--from" in capsys.readouterr().err
    assert sorted(path.name for path in (data / METADATA).iterdir()) == before
    assert recover(str(data), ["host:1"]) == 0
    assert notes(data) == ("host:1", "unknown")


def test_a_node_that_was_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepare(tmp_path, [AddVhost("/")])
    disk = FileDisk(str(tmp_path))
    log = ConsensusLog(disk, METADATA)
    last = log.recover().last_index
    size = sum(path.stat().st_size for path in (tmp_path / METADATA).glob("log-*"))
    log.save(None, [Entry(last + 1, 1, Kind.NOOP, b"")], last + 1, None)
    job = log.take()
    assert job is not None
    job.perform(disk)
    disk.close()
    spoil(tmp_path, size - 1)
    assert recover(str(tmp_path), []) == 65
    shown = capsys.readouterr().err
    assert "leveret@localhost was the only node of its cluster" in shown and "backup" in shown
    assert not (tmp_path / "damaged").exists() and not (tmp_path / "join").exists()


def test_interrupted_at_any_file_it_is_run_again(data: Path) -> None:
    """Meanwhile the node does not start: there is a log without an identity."""
    spoil(data, 60)
    disk = FileDisk(str(data))
    rename, done = disk.rename, 0

    def stop_after_one(old: str, new: str) -> None:
        nonlocal done
        if old.startswith(f"{METADATA}/"):
            done += 1
            if done > 1:
                raise KeyboardInterrupt
        rename(old, new)

    disk.rename = stop_after_one  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        _recover(disk, str(data), [])
    with pytest.raises(ConsensusLogDamaged):
        load_identity(disk, METADATA, OTHER)
    disk.close()
    assert recover(str(data), []) == 0
    assert notes(data) == ("host:1234", OWN)
    assert load_identity(FileDisk(str(data)), METADATA, OTHER) == OTHER


def test_nothing_to_do(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert recover(str(data), []) == 0
    assert capsys.readouterr().out == "nothing is damaged\n"
    with folder_lock(str(data)):
        assert recover(str(data), []) == 69
    assert recover(str(tmp_path / "elsewhere"), []) == 64


def test_a_member_is_replaced_in_one_step() -> None:
    """By a learner: of three voters there are two, until it has caught up."""
    voters = tuple(Member(one * 32, f"{one}@host", "host:1") for one in "abc")
    members = Membership(voters)
    comes = Member("d" * 32, "c@host", "host:1")
    after = members.changed(Replace("c" * 32, comes))
    assert (after.voters, after.learners) == (voters[:2], (comes,))
    with pytest.raises(BadChange):
        members.changed(Replace("x" * 32, comes))
    with pytest.raises(BadChange):
        members.changed(Replace("a" * 32, comes))  # That name is somebody else's.
    with pytest.raises(BadChange):
        Membership(voters[:1]).changed(Replace("a" * 32, comes._replace(name="a@host")))
    assert repair.others_of(after, "a" * 32) == ["host:1", "host:1"]
