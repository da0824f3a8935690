"""The log file of a running node."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from leveret.cli.ctl.main import main as ctl
from tests.support.members import Member
from tests.support.servers import until
from tests.system.conftest import Start


def test_a_node_follows_a_hangup_and_a_level(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that a tool moved away, and a level that is changed while it runs."""
    path = tmp_path / "node.log"
    server = start(f"log.file = {path}\nlog.file.formatter = json\nlog.connection.level = none")
    server.connect().close()
    assert "accepting" not in path.read_text()
    monkeypatch.setenv("HOME", str(server.folder))
    assert ctl(["set_log_level", "info", "--category", "connection", "-q"]) == 0
    server.connect().close()
    until(lambda: '"domain":"rabbitmq.connection"' in path.read_text(), "the line of a category")
    path.rename(tmp_path / "old.log")
    assert server.process is not None
    server.process.send_signal(signal.SIGHUP)
    until(lambda: path.exists() and "opened anew" in path.read_text(), "a new file")


def test_a_hangup_does_not_kill_a_node_that_starts_again(tmp_path: Path) -> None:
    """Before its new program has a handler of the signal."""
    node, done = Member(tmp_path / "one", "one@localhost", ""), threading.Event()

    def hang_up() -> None:
        while not done.wait(0.02) and node.is_running:
            os.kill(node.pid, signal.SIGHUP)

    node.start()
    hanging_up = threading.Thread(target=hang_up)
    try:
        hanging_up.start()
        node.control("restart_node")
        until(lambda: not node.is_running or node.log().count("startup complete") == 2, "it serves again")
        assert node.is_running
    finally:
        done.set()
        hanging_up.join()
        node.end()
