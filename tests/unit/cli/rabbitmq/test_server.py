"""`rabbitmq-server`: RabbitMQ's folders, names and defaults."""

from __future__ import annotations

from pathlib import Path

import pytest

from leveret.cli.rabbitmq.server import apply_defaults, server
from leveret.node.config.load import PLUGINS, Given, load
from leveret.node.config.settings import Listener

PORT = Given("listeners.tcp.default", "5672", PLUGINS, "rabbitmq-server")


def defaults(etc: Path, var: Path, host: str = "burrow.example.org", **environ: str) -> dict[str, str]:
    apply_defaults(environ, host, str(etc), str(var))
    return environ


def test_files_are_read_where_rabbitmq_has_them(tmp_path: Path) -> None:
    etc, var = tmp_path / "etc", tmp_path / "var"
    assert defaults(etc, tmp_path / "none") == {"RABBITMQ_NODENAME": "rabbit@burrow"}
    (etc / "conf.d").mkdir(parents=True)
    var.mkdir()
    (etc / "rabbitmq.conf").write_text("heartbeat = 11\nchannel_max = 12\n")
    (etc / "conf.d" / "20-mine.conf").write_text("heartbeat = 21\n")
    (etc / "conf.d" / "notes.txt").write_text("no configuration")
    (etc / "enabled_plugins").write_text("[rabbitmq_mqtt].")
    (etc / "rabbitmq-env.conf").write_text("DEFAULT_USER=ann\n")
    settings = load([PORT], defaults(etc, var)).settings
    assert (settings.heartbeat_s, settings.channel_max, settings.default_user) == (21, 12, "ann")
    assert settings.mqtt_listeners and not settings.management_listeners
    assert settings.data_dir == str(var / "mnesia" / "rabbit@burrow")
    assert settings.tcp_listeners == (Listener("", 5_672),)


def test_the_environment_says_more(tmp_path: Path) -> None:
    (tmp_path / "enabled_plugins").write_text("[rabbitmq_mqtt].")
    environ = {"RABBITMQ_ENABLED_PLUGINS_FILE": "/operator/plugins", "RABBITMQ_MNESIA_BASE": "/data"}
    found = defaults(tmp_path, tmp_path, **environ, RABBITMQ_NODENAME="hare")
    assert found == {**environ, "RABBITMQ_NODENAME": "hare@burrow"}
    found = defaults(tmp_path, tmp_path / "none", RABBITMQ_USE_LONGNAME="true")
    assert found["RABBITMQ_NODENAME"] == "rabbit@burrow.example.org"


def test_listeners_of_the_configuration_win(tmp_path: Path) -> None:
    (tmp_path / "rabbitmq.conf").write_text("listeners.tcp.1 = 127.0.0.1:5699\n")
    settings = load([PORT], defaults(tmp_path, tmp_path / "none", HOME="/home/ann")).settings
    assert settings.tcp_listeners == (Listener("127.0.0.1", 5_699),)


def test_a_container_made_anew_goes_on_as_the_node_it_was(tmp_path: Path) -> None:
    """Docker gives it another host name unless it is told one."""
    (tmp_path / "mnesia" / "rabbit@b3a1").mkdir(parents=True)
    assert defaults(tmp_path / "none", tmp_path, "77fe")["RABBITMQ_NODENAME"] == "rabbit@b3a1"
    (tmp_path / "mnesia" / "rabbit-2@b3a1").mkdir()  # Its second process.
    assert defaults(tmp_path / "none", tmp_path, "77fe")["RABBITMQ_NODENAME"] == "rabbit@b3a1"
    (tmp_path / "mnesia" / "rabbit@77fe").mkdir()
    assert defaults(tmp_path / "none", tmp_path, "77fe")["RABBITMQ_NODENAME"] == "rabbit@77fe"


def test_other_options_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert server(["--port", "1"]) == 64
    assert "only -detached is understood" in capsys.readouterr().err
