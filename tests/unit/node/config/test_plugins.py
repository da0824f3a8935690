"""RabbitMQ's list of enabled plugins: how it is read, and which ports follow from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from leveret.node.config import plugins, schema
from leveret.node.config.load import ConfigError, load
from leveret.node.config.settings import Listener, Settings
from tests.unit.node.config.configuration import HOME


def loaded(folder: Path, listed: str, text: str = "", **environ: str) -> Settings:
    file, conf = folder / "enabled_plugins", folder / "broker.conf"
    file.write_text(listed)
    conf.write_text(text)
    return load([], HOME | {plugins.FILE_VARIABLE: str(file)} | environ, str(conf)).settings


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("[rabbitmq_management,rabbitmq_prometheus].\n", ("rabbitmq_management", "rabbitmq_prometheus")),
        ("% mine\n[\n 'rabbitmq_mqtt' ,\n rabbitmq_stomp\n] .", ("rabbitmq_mqtt", "rabbitmq_stomp")),
        ("[].", ()),
        ("", ()),
        ("[rabbitmq_mqtt,rabbitmq_mqtt].", ("rabbitmq_mqtt",)),
    ],
)
def test_a_file_is_read_as_rabbitmq_reads_it(text: str, names: tuple[str, ...]) -> None:
    assert plugins.parse(text) == names


@pytest.mark.parametrize("text", ["rabbitmq_mqtt", "[rabbitmq_mqtt]", "[rabbitmq_mqtt rabbitmq_stomp].", "[1]."])
def test_another_file_stops_the_start(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="it should hold a list like"):
        loaded(tmp_path, text)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "etc" / "enabled_plugins"
    assert plugins.read(str(path)) is None
    plugins.write(str(path), ["rabbitmq_stomp", "rabbitmq_mqtt"])
    assert path.read_text() == "[rabbitmq_mqtt,rabbitmq_stomp].\n"
    assert plugins.read(str(path)) == ("rabbitmq_mqtt", "rabbitmq_stomp")


def test_ports_are_those_of_the_plugins_in_the_list(tmp_path: Path) -> None:
    settings = loaded(tmp_path, "[rabbitmq_web_mqtt,rabbitmq_stomp].")
    assert settings.web_mqtt_listeners == (Listener("", 15_675),)
    assert settings.mqtt_listeners == (Listener("", 1_883),)  # Which the one over WebSocket needs.
    assert settings.stomp_listeners == (Listener("", 61_613),)
    assert settings.management_listeners == settings.prometheus_listeners == ()
    settings = loaded(tmp_path, "[rabbitmq_management,rabbitmq_prometheus].", RABBITMQ_NODE_PORT="5673")
    assert settings.management_listeners == (Listener("", 15_672),)
    assert settings.prometheus_listeners == (Listener("", 15_692),)
    assert settings.mqtt_listeners == ()


def test_the_configuration_says_more_than_the_list(tmp_path: Path) -> None:
    text = "management.tcp.port = 8080\nmqtt.listeners.tcp.1 = 127.0.0.1:1999\n"
    settings = loaded(tmp_path, "[rabbitmq_mqtt].", text)
    assert settings.management_listeners == (Listener("", 8_080),)
    assert settings.mqtt_listeners == (Listener("127.0.0.1", 1_999),)
    assert loaded(tmp_path, "[rabbitmq_mqtt].", "mqtt.listeners.tcp = none\n").mqtt_listeners == ()


def test_a_list_in_the_environment_says_more_than_the_file(tmp_path: Path) -> None:
    settings = loaded(tmp_path, "[rabbitmq_mqtt].", RABBITMQ_ENABLED_PLUGINS="rabbitmq_stomp,rabbitmq_management")
    assert settings.stomp_listeners and settings.management_listeners and not settings.mqtt_listeners


def test_without_a_file_all_is_as_the_configuration_says(tmp_path: Path) -> None:
    settings = load([], HOME | {plugins.FILE_VARIABLE: str(tmp_path / "none")}).settings
    assert settings == load([], HOME).settings


def test_an_unknown_plugin_is_warned_about() -> None:
    names = "rabbitmq_auth_backend_ldap,rabbitmq_shovel"
    (warning,) = load([], HOME | {plugins.LIST_VARIABLE: names}).warnings
    assert "rabbitmq_auth_backend_ldap has no effect" in warning


def test_the_table_names_keys_and_fields() -> None:
    for port in plugins.PORTS.values():
        assert schema.find(port.key) is not None
        assert port.field in Settings.__dataclass_fields__
    for name, needed in plugins.NEEDS.items():
        assert {name, *needed} <= set(plugins.KNOWN)


def test_variables_can_be_in_a_file_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "rabbitmq-env.conf"
    file.write_text("# Mine.\nNODENAME=rabbit@one\nexport RABBITMQ_NODE_PORT='5699'  # A port.\n")
    environ = HOME | {"RABBITMQ_CONF_ENV_FILE": str(file)}
    settings = load([], environ).settings
    assert (settings.node_name, settings.tcp_listeners) == ("rabbit@one", (Listener("", 5_699),))
    assert load([], environ | {"RABBITMQ_NODENAME": "rabbit@two"}).settings.node_name == "rabbit@two"
    assert load([], HOME | {"RABBITMQ_CONF_ENV_FILE": str(tmp_path / "none")}).warnings == ()


@pytest.mark.parametrize("line", ["NODENAME=rabbit@$(hostname)", "if true", "NODENAME='x", "echo `date`"])
def test_other_shell_code_there_stops_the_start(tmp_path: Path, line: str) -> None:
    file = tmp_path / "rabbitmq-env.conf"
    file.write_text(f"\n{line}\n")
    with pytest.raises(ConfigError, match="line 2: only NAME=value is read here"):
        load([], HOME | {"RABBITMQ_CONF_ENV_FILE": str(file)})
