"""A node that starts with definitions, and with more commands than Raft gives out at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from leveret.node.cluster import consensus
from leveret.node.cluster.consensus_log import ConsensusLog
from leveret.node.config.settings import Listener, Settings
from leveret.testing.runners import Inside, NotRunning
from tests.support.rabbitmq import DEFINITIONS

EXPORT = DEFINITIONS


def host(folder: Path, **more: Any) -> Inside:
    here = Listener("127.0.0.1", 0)
    return Inside(
        Settings(data_dir=str(folder / "data"), tcp_listeners=(here,), cluster_listener=here, cookie="rye", **more),
        synced=False,
    )


def answer(node: Inside, command: str, **arguments: Any) -> Any:
    told = node.ask({"command": command, "arguments": arguments})
    assert "ok" in told, told
    return told["ok"]


def test_definitions_are_loaded_at_each_start_and_come_instead_of_guest(tmp_path: Path) -> None:
    for _ in range(2):
        node = host(tmp_path, load_definitions=str(EXPORT))
        node.start()
        try:
            users = {one["user"] for one in answer(node, "list_users")}
            assert users == {"defs-ann", "defs-bob", "defs-cleo", "defs-dan", "defs-eve"}
            queues = answer(node, "list_queues", vhost="defs-shop", columns=["name"])["rows"]
            assert ["brief"] in queues  # Which is not durable.
            answer(node, "authenticate_user", name="defs-cleo", password="cleo secret")
        finally:
            node.stop()


def test_definitions_that_are_wrong_stop_the_start(tmp_path: Path) -> None:
    path = tmp_path / "definitions.json"
    path.write_text(json.dumps({"vhosts": [{"name": 5}]}))
    with pytest.raises(NotRunning, match=r"(?s)definitions in .* cannot be loaded:.*vhosts\[0\] '5': name must be"):
        host(tmp_path, load_definitions=str(path)).start()


def test_a_snapshot_waits_until_all_is_given_out_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = host(tmp_path)
    node.start()
    for number in range(20):
        answer(node, "add_vhost", name=f"v{number}", description=None, tags=None)
    node.stop()
    monkeypatch.setattr(consensus, "APPLIED_AT_ONCE", 4)
    monkeypatch.setattr(ConsensusLog, "_growth_wanted", lambda log: 0)
    for _ in range(2):  # The second from the snapshot of the first.
        node = host(tmp_path)
        node.start()
        try:
            assert len(answer(node, "list_vhosts", columns=["name"])["rows"]) == 21
        finally:
            node.stop()
