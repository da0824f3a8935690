"""Two nodes and a witness: the loss of any one of the three leaves a majority."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.consumer import get_all, numbers
from tests.support.members import COOKIE, Cluster, Refused, StartCluster, free_port
from tests.support.servers import START_S, read_line, until
from tests.system.mirrors.rings import await_in_sync, await_master, declare, fill_fast, list_copies, mirror

NAME = "w@localhost"
QUEUE = "q"


class Witness:
    """A process of `leveret witness`."""

    def __init__(self, folder: Path, join: int) -> None:
        self.folder, self.join, self.port = folder, join, free_port()
        self.process: subprocess.Popen[str] | None = None

    def spawn(self) -> subprocess.Popen[str]:
        words = [sys.executable, "-m", "leveret", "witness", "--name", NAME, "--data", str(self.folder)]
        words += ["--cluster-port", str(self.port), "--join", f"127.0.0.1:{self.join}"]
        environment = {**os.environ, "LEVERET_COOKIE": COOKIE, "LEVERET_NET_TICKTIME": "2"}
        with open(f"{self.folder}.err", "ab") as log:
            self.process = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=log, text=True)
        return self.process

    def start(self) -> None:
        assert read_line(self.spawn(), START_S) == f"ready cluster={self.port}"

    def end(self, how: signal.Signals = signal.SIGKILL) -> int:
        process, self.process = self.process, None
        if process is None:
            return 0
        process.send_signal(how)
        process.communicate()
        return process.returncode


@pytest.fixture
def pair(start_cluster: StartCluster) -> Cluster:
    pair: Cluster = start_cluster("net_ticktime = 2\ncluster.operation_timeout = 5000", size=2)
    return pair


@pytest.fixture
def witness(pair: Cluster, tmp_path: Path) -> Iterator[Witness]:
    witness = Witness(tmp_path / "witness", pair[0].cluster_port)
    try:
        witness.start()
        mirror(pair[0], QUEUE, **{"ha-sync-mode": "automatic"})
        declare(pair[0], QUEUE)
        await_in_sync(pair[0], QUEUE, pair)
        yield witness
    finally:
        witness.end()


def test_it_is_told_apart(pair: Cluster, witness: Witness) -> None:
    one, other = pair
    status = other.status()
    told = {"name": NAME, "address": f"127.0.0.1:{witness.port}", "voter": True, "running": True}
    assert status["witnesses"] == [told]
    names = [one.name, other.name]
    assert status["disk_nodes"] == status["running_nodes"] == names and len(status["members"]) == 2
    for number in range(6):  # Nothing is placed there.
        declare(one, f"{QUEUE}{number}")
    assert {name for copies in list_copies(one).values() for name in (copies.master, *copies.mirrors)} <= set(names)
    with pytest.raises(Refused, match="is running"):
        one.control("forget_cluster_node", name=NAME)
    assert witness.end(signal.SIGTERM) == 0
    until(lambda: not one.status()["witnesses"][0]["running"], "it is missing")
    witness.start()  # With its folder it is the same one.
    until(lambda: one.status()["witnesses"] == [told], "it is back")
    witness.end()
    until(lambda: not one.status()["witnesses"][0]["running"], "it is missing")
    one.control("forget_cluster_node", name=NAME)
    assert one.status()["witnesses"] == [] and one.status()["has_majority"]


@pytest.mark.parametrize("leads", [True, False], ids=["leader", "follower"])
def test_a_node_is_lost_without_any_proof(pair: Cluster, witness: Witness, leads: bool) -> None:
    leader = pair.leader() if leads else None
    lost = leader or pair.others(pair.leader())[0]
    left = pair.others(lost)[0]
    fill_fast(left, QUEUE, range(10))
    os.unlink(lost.data / "lock")
    lost.freeze()  # Nobody knows whether it lives.
    await_master(left, QUEUE, [left])  # Until then a publish may be refused.
    fill_fast(left, QUEUE, range(10, 20))
    until(lambda: left.status()["leader"] == left.name, "the witness does not keep the leadership")
    assert left.control("local_partition")["pauses"] == 0
    assert len(left.status()["members"]) == 2 and all(one["voter"] for one in left.status()["members"])
    lost.thaw()
    pair.wait_until_whole()
    await_in_sync(left, QUEUE, pair)
    assert sorted(get_all(lost.channel(), QUEUE)) == sorted(numbers(*range(20)))


def test_a_witness_is_lost(pair: Cluster, witness: Witness) -> None:
    witness.end()
    fill_fast(pair[0], QUEUE, range(10))
    declare(pair[1], "another")
    assert all(node.control("local_partition")["pauses"] == 0 for node in pair)


def test_folders_are_not_mixed_up(pair: Cluster, witness: Witness) -> None:
    witness.end()
    words = [sys.executable, "-m", "leveret", "server", "--name", NAME, "--data", str(witness.folder), "--port", "0"]
    words += ["--cluster-port", str(witness.port)]
    environment = {**os.environ, "LEVERET_COOKIE": COOKIE}
    ended = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 69 and "is the folder of a witness" in ended.stderr
    pair[1].stop()
    witness.folder = pair[1].data
    ended_too = witness.spawn()
    assert ended_too.wait(START_S) == 69
