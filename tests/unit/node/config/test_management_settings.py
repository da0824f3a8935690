"""Where the management port is, from what a person wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from leveret.node.config.load import COMMAND, ConfigError, Given, Loaded, load
from leveret.node.config.settings import Listener

HERE = "127.0.0.1"


def loaded(text: str, folder: Path, *given: tuple[str, str], **environ: str) -> Loaded:
    file = folder / "broker.conf"
    file.write_text(text)
    commands = [Given(key, value, COMMAND, f"--{key}") for key, value in given]
    return load(commands, {"HOME": "/home/ann", **environ}, str(file))


@pytest.mark.parametrize(
    ("text", "listeners"),
    [
        ("", (Listener(HERE, 15672),)),
        ("port = 5000", (Listener(HERE, 15000),)),
        ("port = 0", (Listener(HERE, 0),)),  # As with every port: any free one.
        ("host = 192.0.2.1", (Listener("192.0.2.1", 15672),)),
        ("listeners.tcp.default = 5672", (Listener("", 15672),)),
        ("management_port = 8080", (Listener(HERE, 8080),)),
        ("management_port = 0", (Listener(HERE, 0),)),
        ("management_port = none", ()),
        ("management.tcp.port = 8080", (Listener("", 8080),)),  # RabbitMQ's word means every interface.
        ("management.tcp.port = none", ()),
        ("management.tcp.port = 8080\nmanagement.tcp.ip = ::1", (Listener("::1", 8080),)),
        ("management.tcp.ip = ::1", (Listener("::1", 15672),)),
        ("management_port = 1\nmanagement.tcp.ip = ::1", (Listener("::1", 1),)),
    ],
)
def test_where_it_is(tmp_path: Path, text: str, listeners: tuple[Listener, ...]) -> None:
    found = loaded(text, tmp_path)
    assert found.settings.management_listeners == listeners
    assert found.settings.management_tls_listeners == ()
    assert found.warnings == ()


def test_the_stronger_source_holds(tmp_path: Path) -> None:
    text = "management.tcp.port = 1"
    assert loaded(text, tmp_path, ("management_port", "2")).settings.management_listeners == (Listener(HERE, 2),)
    by_variable = loaded("management_port = 1", tmp_path, LEVERET_MANAGEMENT_TCP_PORT="none").settings
    assert by_variable.management_listeners == ()
    with pytest.raises(ConfigError, match=r"either management_port or management\.tcp\.port"):
        loaded("management_port = 1\nmanagement.tcp.port = 2", tmp_path)


def test_a_port_that_cannot_be(tmp_path: Path) -> None:
    found = loaded("port = 60000\ncluster.port = 1", tmp_path)
    assert found.settings.management_listeners == (Listener(HERE, 0),)
    [warning] = found.warnings
    assert "60000 + 10000" in warning


def test_with_tls(tmp_path: Path) -> None:
    for name in ("cert", "key", "ca"):
        (tmp_path / name).write_text("")
    files = f"management.ssl.certfile = {tmp_path}/cert\nmanagement.ssl.keyfile = {tmp_path}/key\n"
    settings = loaded(f"management.ssl.port = 15671\n{files}", tmp_path).settings
    assert settings.management_listeners == ()  # As in RabbitMQ: the one that is asked for.
    assert settings.management_tls_listeners == (Listener("", 15671),)
    assert settings.management_tls is not None
    assert settings.management_tls.certfile == f"{tmp_path}/cert"
    both = loaded(f"management.ssl.port = 1\nmanagement.tcp.port = 2\n{files}", tmp_path).settings
    assert both.management_listeners == (Listener("", 2),)
    # Certificates for AMQP do, where no others are given.
    shared = f"ssl_options.certfile = {tmp_path}/cert\nssl_options.keyfile = {tmp_path}/key\nlisteners.ssl.1 = 5671\n"
    settings = loaded(f"{shared}management.ssl.port = 15671", tmp_path).settings
    assert settings.management_tls is not None
    assert settings.management_tls.keyfile == f"{tmp_path}/key"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("management.ssl.port = 1", "needs management.ssl.certfile"),
        ("management.ssl.port = 1\nmanagement.ssl.certfile = {0}/c\nmanagement.ssl.keyfile = {0}/c\n"
         "management.ssl.verify = verify_peer", "needs management.ssl.cacertfile"),
        ("management.ssl.port = 1\nmanagement.ssl.certfile = {0}/c\nmanagement.ssl.keyfile = {0}/c\n"
         "management.ssl.fail_if_no_peer_cert = true", "needs management.ssl.verify"),
        ("management.tcp.port = x", "or none"),
        ("management.path_prefix = broker", "a path such as /broker"),
        ("management.http.max_body_size = 0", "not allowed"),
        ("management.rates_mode = detailed", "not supported"),
    ],
)  # fmt: skip
def test_what_does_not_hold(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "c").write_text("")
    with pytest.raises(ConfigError, match=problem):
        loaded(text.format(tmp_path), tmp_path)


def test_limits_and_the_prefix(tmp_path: Path) -> None:
    text = "management.tcp.idle_timeout = 5s\nmanagement.tcp.request_timeout = 7000\nmanagement.path_prefix = /a/b/\n"
    settings = loaded(f"{text}management.http.max_body_size = 1MiB", tmp_path).settings
    assert (settings.management_idle_ms, settings.management_request_ms) == (5_000, 7_000)
    assert (settings.management_prefix, settings.management_body_bytes_max) == ("/a/b", 1 << 20)


def test_certificates_without_a_port_are_warned_about(tmp_path: Path) -> None:
    (tmp_path / "c").write_text("")
    [warning] = loaded(f"management.ssl.certfile = {tmp_path}/c", tmp_path).warnings
    assert "no management.ssl.port is given" in warning


@pytest.mark.parametrize(
    ("text", "listeners"),
    [
        ("", (Listener(HERE, 15692),)),
        ("port = 5000", (Listener(HERE, 15020),)),
        ("port = 0", ()),  # Nobody would look for it at any free port.
        ("management_port = none", ()),
        ("management_port = none\nprometheus.tcp.port = 9000", (Listener("", 9000),)),
        ("prometheus.tcp.port = none", ()),
        ("prometheus.tcp.ip = ::1", (Listener("::1", 15692),)),
        ("port = 60000", ()),
    ],
)
def test_where_metrics_are(tmp_path: Path, text: str, listeners: tuple[Listener, ...]) -> None:
    assert loaded(text, tmp_path).settings.prometheus_listeners == listeners


def test_metrics_that_somebody_wants(tmp_path: Path) -> None:
    assert not loaded("", tmp_path).settings.prometheus_is_wanted
    assert loaded("prometheus.tcp.port = 9000", tmp_path).settings.prometheus_is_wanted
