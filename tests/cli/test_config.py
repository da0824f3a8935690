from __future__ import annotations

from pathlib import Path

import pytest

from leveret.cli.config import _KEYS_OF, check_config, describe
from leveret.node.config import load
from leveret.node.settings import Settings


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "a.conf"


def test_what_holds_is_shown_with_its_source(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("heartbeat = 30\nlisteners.tcp.1 = 127.0.0.1:1\nlisteners.tcp.2 = 2\nraft.wal_max_entries = 1\n")
    assert check_config(str(file)) == 0
    shown = capsys.readouterr()
    lines = [" ".join(line.split()) for line in shown.out.splitlines()]
    assert f"heartbeat = 30 # {file}, line 1" in lines
    assert f"listeners.tcp = 127.0.0.1:1, 2 # {file}, line 2, {file}, line 3" in lines
    assert "channel_max = 2047" in lines
    assert "connection_max = infinity" in lines
    assert "tcp_listen_options.nodelay = true" in lines
    assert shown.err.startswith(f"leveret: warning: {file}, line 4: raft.wal_max_entries = 1: has no effect")


def test_the_cluster_is_shown_as_it_could_be_written(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(
        "cluster_formation.classic_config.nodes.1 = a@one\ncluster_formation.classic_config.nodes.2 = b@two:1"
    )
    assert check_config(str(file)) == 0
    lines = [line.partition("  #")[0].strip() for line in capsys.readouterr().out.splitlines()]
    nodes = "classic_config: a@one:25672, b@two:1; 2 found the cluster"
    assert f"cluster_formation.peer_discovery_backend = {nodes}" in lines
    assert "cluster.listener = 127.0.0.1:25672" in lines
    assert "net_ticktime = 4000ms" in lines
    file.write_text("join = one:1, [::1]:2")
    assert check_config(str(file)) == 0
    assert "join = one:1, [::1]:2" in capsys.readouterr().out


def test_what_does_not_hold(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("heartbeat = soon\n")
    assert check_config(str(file)) == 78
    shown = capsys.readouterr()
    assert shown.out == ""
    assert f"{file}, line 1: heartbeat = soon: not allowed" in shown.err


def test_passwords_are_not_shown(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("default_pass = geheim\nssl_options.password = secret\ncookie = oatmeal\n")
    assert check_config(str(file)) == 0
    shown = "".join(capsys.readouterr())
    assert "oatmeal" not in shown
    assert "geheim" not in shown
    assert "secret" not in shown


def test_every_setting_has_a_line() -> None:
    lines = describe(load([], {"HOME": "/home/ann"}))
    assert len(lines) == len(Settings.__dataclass_fields__) == len(_KEYS_OF)


def test_the_log_as_it_will_be(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text(
        "log.file = a.log\nlog.file.formatter = json\nlog.file.rotation.size = 1MB\nlog.file.rotation.date = $D0"
    )
    shown = "\n".join(describe(load([], {"HOME": "/home/ann"}, str(path))))
    assert "log.file.formatter = json, time rfc3339_space, level lc" in shown
    assert "log.file.rotation = date $D0, size 1048576, count 10" in shown
    assert "log.console.formatter = plaintext" in shown
    assert f"(files that were read) = {path}" in shown
