"""What proves that the other one of two nodes is dead: see `leveret.node.cluster.two_nodes` and `folder`."""

from __future__ import annotations

import json
import os
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from leveret.links.proposals import BadFrame
from leveret.node.cluster.consensus import AdminError
from leveret.node.cluster.consensus_log import ConsensusLog, load_identity
from leveret.node.cluster.two_nodes import (
    HOPE_IN_SILENCE_S,
    HOPE_S,
    SIGNS_BYTES_MAX,
    TwoNodes,
    _read_signs,
    read_remains,
)
from leveret.node.system.data_folder import METADATA, FolderInUse, Place, folder_lock, is_held, place_of, take
from leveret.raft import Member
from leveret.storage.segments.disk import FileDisk

OWN = "a" * 32


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_lock_tells_who_lives(tmp_path: Path) -> None:
    folder = str(tmp_path)
    assert place_of(folder) is None  # No node was ever there.
    with folder_lock(folder):
        place = place_of(folder)
        assert place is not None and is_held(place) and take(place) is None
    assert not is_held(place)
    taken = take(place)
    assert taken is not None and is_held(place)
    with pytest.raises(FolderInUse), folder_lock(folder):
        raise AssertionError("two work in one folder")
    taken.release()
    with folder_lock(folder):
        pass


def test_a_start_waits_while_another_node_reads(tmp_path: Path) -> None:
    with folder_lock(str(tmp_path)):
        place = place_of(str(tmp_path))
    assert place is not None
    taken = take(place)
    assert taken is not None
    threading.Timer(0.2, taken.release).start()
    with folder_lock(str(tmp_path), 60.0):
        assert is_held(place)


def test_another_folder_in_the_same_place_proves_nothing(tmp_path: Path) -> None:
    """A copy that was put back, or what a container has under the same name."""
    folder, copy = tmp_path / "node", tmp_path / "copy"
    folder.mkdir()
    with folder_lock(str(folder)):
        place = place_of(str(folder))
        assert place is not None
        shutil.copytree(folder, copy)
        assert take(place._replace(folder=str(copy))) is None
    os.rename(folder, tmp_path / "away")
    os.rename(copy, folder)
    assert take(place) is None and not is_held(place)


def test_a_lock_of_another_machine_proves_nothing(tmp_path: Path) -> None:
    with folder_lock(str(tmp_path)):
        place = place_of(str(tmp_path))
    assert place is not None
    assert take(place._replace(machine="another boot")) is None


def test_what_a_dead_node_left_is_read_and_not_touched(tmp_path: Path) -> None:
    disk = FileDisk(str(tmp_path))
    load_identity(disk, METADATA, OWN)
    ConsensusLog(disk, METADATA).found(Member(OWN, "one@host", "host:1"))
    (tmp_path / METADATA / "snapshot-00000000000000000009.temporary").write_bytes(b"unfinished")
    before = contents(tmp_path)
    remains = read_remains(disk, OWN)
    assert remains.hard_state.term == 1 and [entry.index for entry in remains.entries] == [1]
    assert contents(tmp_path) == before
    with pytest.raises(AdminError, match="another node's by now"):
        read_remains(disk, "b" * 32)
    disk.close()


def test_signs_of_life() -> None:
    told = {"place": ["boot", "/data", 1, 2], "trusts": False}
    assert _read_signs(json.dumps(told).encode()) == (False, Place("boot", "/data", 1, 2))
    assert _read_signs(b'{"place": null, "trusts": true}') == (True, None)
    assert _read_signs(b'{"place": null, "trusts": 0}') == (True, None)  # Whatever is not a clear no.


@pytest.mark.parametrize(
    "payload", [b"", b"[]", b'{"trusts": false}', b'{"place": [1], "trusts": false}', b" " * (SIGNS_BYTES_MAX + 1)]
)
def test_signs_that_cannot_be_read(payload: bytes) -> None:
    with pytest.raises(BadFrame):
        _read_signs(payload)


class Loop:
    def __init__(self) -> None:
        self.now = 50.0

    def time(self) -> float:
        return self.now


def lonely(name: str = "leveret@beta") -> tuple[TwoNodes, Loop]:
    """Returns one of two voters on the same machine, linked with the other, which leads."""
    one, other = Member(OWN, name, "beta:1"), Member("b" * 32, "leveret@alpha", "alpha:1")
    loop = Loop()
    connected = {other.name: other.id}
    raft = SimpleNamespace(membership=SimpleNamespace(voters=(one, other)), dismiss=lambda member_id: False)
    cluster = SimpleNamespace(
        raft=raft,
        me=one,
        is_voter=True,
        connected=connected,
        settings=SimpleNamespace(trusts_refusals=False),
        environment=SimpleNamespace(loop=loop),
        consensus=SimpleNamespace(has_majority_without=lambda peer: not peer),
        doubt_of_members=lambda: "",
        is_running=lambda name: name in connected,
    )
    two = TwoNodes(cast(Any, cluster))
    two.places[other.id] = Place("boot", "/data", 1, 2)
    return two, loop


@pytest.mark.parametrize(("is_silent", "hope_s"), [(False, HOPE_S), (True, HOPE_IN_SILENCE_S)])
def test_a_node_hopes_for_a_proof_only_for_a_moment_more_if_the_other_one_was_silent(
    is_silent: bool, hope_s: float
) -> None:
    two, loop = lonely()
    assert not two.is_hopeful()
    two.on_losing("leveret@alpha", is_silent)
    assert two.is_hopeful()
    loop.now += hope_s - 0.01
    assert two.is_hopeful()
    loop.now += 0.02
    assert not two.is_hopeful()


def test_clients_that_are_disconnected_are_told_the_command_that_goes_on() -> None:
    two, _ = lonely()
    two.on_losing("leveret@alpha", is_silent=True)
    advice = "To go on without leveret@alpha: leveretctl -n leveret@beta go_on_alone; what that costs: cluster_status"
    assert two.advice() == advice
    assert two.closing_text("closed") == f"closed. {advice}"
