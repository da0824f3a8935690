"""Nodes that are forked are processes like those that are started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.networks import Network, why_not
from tests.support.processes.forked import NURSERIES, Forked, fork
from tests.support.servers import Server
from tests.system.conftest import Start


def started(start: Start) -> Server:
    """Starts a node that is not forked: an interpreter reads such variables when it starts."""
    return start("", {"PYTHONANYTHING": "1"})


def descriptors(server: Server) -> list[str]:
    """Returns what each of its descriptors is, in their order, without numbers and the names of folders."""
    folder = Path(f"/proc/{server.pid}/fd")
    found = [os.readlink(folder / str(number)) for number in sorted(int(one.name) for one in folder.iterdir())]
    return [one.replace(str(server.folder), "").partition(":[")[0] for one in found]


def signals(server: Server) -> dict[str, str]:
    lines = Path(f"/proc/{server.pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if line.startswith(("Sig", "Threads")) and "SigQ" not in line)


def test_it_has_what_a_process_has_that_was_started(start: Start) -> None:
    forked, usual = start(), started(start)
    assert isinstance(forked.process, Forked) and isinstance(usual.process, subprocess.Popen)
    assert descriptors(forked) == descriptors(usual)
    assert signals(forked) == signals(usual)


def test_it_ends_with_its_own_code(start: Start) -> None:
    servers = [start() for _ in range(NURSERIES)]
    assert [server.stop() for server in servers] == [0] * NURSERIES
    wrong = start("nonsense = 1", begin=False)
    wrong.spawn()
    assert wrong.wait() == 78
    killed = start()
    process = killed.process
    assert process is not None and process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    os.kill(killed.pid, signal.SIGKILL)
    assert process.wait(60) == process.poll() == -signal.SIGKILL


def test_it_has_its_own_environment(start: Start) -> None:
    server = start("", {"LEVERET_NODE_NAME": "hare@localhost"})
    assert "hare@localhost" in server.log()
    assert "hare@localhost" not in start().log()


def test_it_has_its_own_network(start: Start) -> None:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with Network(1) as network:
        server = start(begin=False)
        server.launcher = ("ip", "netns", "exec", network.namespace(1))
        server.start()
        assert isinstance(server.process, Forked)
        assert os.stat(f"/proc/{server.pid}/ns/net").st_ino == os.stat(f"/run/netns/{network.namespace(1)}").st_ino
        server.kill()


def test_it_has_its_own_group_and_writes_all_into_its_log(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "leveret"]
    with open(tmp_path / "log", "wb") as log:
        told = fork([*command, "--version"], os.environ, log, all_to_log=True)
        assert told.wait(60) == 0 and (tmp_path / "log").read_text().startswith("leveret")
        words = ["server", "--data", str(tmp_path / "data"), "--port", "0", "--cluster-port", "0"]
        leader = fork([*command, *words], {**os.environ, "HOME": str(tmp_path)}, log, all_to_log=True, own_group=True)
    assert os.getpgid(leader.pid) == leader.pid
    os.killpg(leader.pid, signal.SIGKILL)
    assert leader.wait(60) == -signal.SIGKILL
