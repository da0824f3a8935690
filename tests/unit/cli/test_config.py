from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from leveret.cli.config import check_config, describe
from leveret.node.config.config_as_text import pairs
from leveret.node.config.load import Loaded, load

ENVIRON = {"HOME": "/home/ann"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "a.conf"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))


def told(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_what_differs_is_shown_with_its_source_and_the_default(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text("heartbeat = 30\nchannel_max = 2047\nraft.wal_max_entries = 1\n")
    assert check_config(str(file)) == 0
    shown = capsys.readouterr()
    lines = told(shown.out)
    assert lines[0] == f"heartbeat = 30 # {file}, line 1; default: 60"
    assert lines[1] == f"channel_max = 2047 # {file}, line 2; the default"
    assert lines[2].startswith("# ") and "more settings have their defaults" in lines[2]
    assert len(lines) == 3
    assert shown.err.startswith(f"leveret: warning: {file}, line 3: raft.wal_max_entries = 1: has no effect")


def test_all_of_them(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("heartbeat = 30\n")
    assert check_config(str(file), True) == 0
    lines = told(capsys.readouterr().out)
    assert "channel_max = 2047 # the default" in lines
    assert "connection_max = infinity # the default" in lines
    assert "tcp_listen_options.nodelay = true # the default" in lines


def test_no_key_comes_twice_and_no_value_is_pythons(tmp_path: Path) -> None:
    lines = describe(load([], ENVIRON), ENVIRON, True)
    keys = [line.partition(" =")[0] for line in lines]
    assert len(keys) == len(set(keys))
    for line in lines:
        assert not any(word in line for word in ("frozenset", "Strategy.", "None", "False", "Listener(")), line


FILES = {
    "nothing": "",
    "listeners": "listeners.tcp.1 = 127.0.0.1:1\nlisteners.tcp.2 = 2\nlisteners.tcp.3 = ::1:3\n",
    "no tcp": "listeners.tcp = none\nlisteners.ssl.1 = 5671\n{tls}management.ssl.port = 15671\n"
    "management.tcp.port = none",
    "nodes": "cluster_formation.classic_config.nodes.1 = a@one\ncluster_formation.classic_config.nodes.2 = b@two:1",
    "dns": "cluster_formation.peer_discovery_backend = dns\ncluster_formation.dns.hostname = here.example\n"
    "cluster_formation.target_cluster_size_hint = 3",
    "join": "join = one:1, [::1]:2",
    "disc_copies": "cluster_nodes.disc_copies = queue1,queue2",
    "disc_copies of none": "cluster_nodes.disc_copies =",
    "disc_copies of nodes": "cluster_nodes.disc_copies = rabbit@host",
    "num_mirrors": "num_mirrors = 2\nmirroring_sync_max_throughput = 1MB\nmirroring_sync_batch_size = 5",
    "policy": "mirroring.default_policy.ha-mode = nodes\nmirroring.default_policy.ha-params = a@b, c@d\n"
    "mirroring.default_policy.ha-replication = async\n"
    "mirroring.default_policy.ha-replication-window = '{{\"messages\": 100}}'\nmirroring.spread = zone",
    "partitions": "cluster_partition_handling = pause_if_all_down\n"
    "cluster_partition_handling.pause_if_all_down.recover = autoheal\n"
    "cluster_partition_handling.pause_if_all_down.nodes.1 = a@b",
    "autoupgrade": "cluster_partition_handling = autoupgrade\ncluster_rebalance = run\n",
    "timer": "cluster_rebalance = timer\ncluster_rebalance.interval = 60s\ncluster_rebalance.moves_per_hour = 5",
    "log": "log.file = a.log\nlog.file.formatter = json\nlog.file.rotation.size = 1MB\nlog.file.rotation.date = $D0\n"
    "log.connection.level = debug\nlog.console.formatter.single_line = on\nlog.console = false",
    "users": "loopback_users = none\ndefault_user_tags.monitoring = true\nauth_mechanisms.1 = PLAIN\n"
    "default_permissions.write = '^a#b$'",
    "limits": "vm_memory_high_watermark.absolute = 1GB\ndisk_free_limit.relative = 1.5\nnet_ticktime = 2\n"
    "handshake_timeout = infinity\ntcp_listen_options.linger.on = true\ntcp_listen_options.linger.timeout = 0\n"
    "fsync = interval\nfsync_interval = 10\nnode.label.zone = a\nnode.capacity = 2.5\n"
    "management.cors.allow_origins.1 = *\nmanagement.path_prefix = /mq\nprometheus.tcp.port = none\n",
}


@pytest.mark.parametrize("name", FILES)
def test_what_is_shown_can_be_pasted_back(name: str, file: Path, tmp_path: Path) -> None:
    tls = ""
    if "{tls}" in FILES[name]:
        pem = tmp_path / "any.pem"
        pem.write_text("")
        tls = f"ssl_options.certfile = {pem}\nssl_options.keyfile = {pem}\n"
    file.write_text(FILES[name].format(tls=tls))
    first = load([], ENVIRON, str(file))
    for all_ in (False, True):
        again = tmp_path / "again.conf"
        again.write_text("\n".join(describe(first, ENVIRON, all_)))
        second: Loaded = load([], ENVIRON, str(again))
        assert replace(second.settings, config_files=()) == replace(first.settings, config_files=())
        assert not second.warnings
        assert pairs(second.settings) == pairs(first.settings)


def test_what_does_not_hold(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("heartbeat = soon\n")
    assert check_config(str(file)) == 78
    shown = capsys.readouterr()
    assert shown.out == ""
    assert f"{file}, line 1: heartbeat = soon: not allowed" in shown.err


@pytest.mark.parametrize("key", ["data_dir", "log.dir"])
def test_folders_that_the_server_could_not_use(file: Path, capsys: pytest.CaptureFixture[str], key: str) -> None:
    file.write_text(f"{key} = /proc/nope/here\n")
    assert check_config(str(file)) == 78
    assert f"{file}, line 1: {key}: cannot write in /proc" in capsys.readouterr().err
    (file.parent / "plain").write_text("")
    file.write_text(f"{key} = {file.parent}/plain/here\n")
    assert check_config(str(file)) == 78
    assert "plain is no folder" in capsys.readouterr().err


def test_passwords_are_not_shown(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("default_pass = geheim\nssl_options.password = secret\ncookie = oatmeal\n")
    for all_ in (False, True):
        assert check_config(str(file), all_) == 0
        shown = "".join(capsys.readouterr())
        assert "oatmeal" not in shown
        assert "geheim" not in shown
        assert "secret" not in shown
        assert "# default_pass = ********" in shown
