"""Addresses of brokers, as texts, in files and in variables."""

from __future__ import annotations

from pathlib import Path

import pytest

from leveret.client.address import Address, BadUri, parse_uri, read_uri


@pytest.mark.parametrize(
    ("uri", "address"),
    [
        ("amqp://h", Address("h", 5672, "guest", "guest", "/")),
        ("amqp://h/", Address("h", 5672, "guest", "guest", "/")),
        ("amqps://h/v", Address("h", 5671, "guest", "guest", "v", tls=True)),
        ("amqps://h:1", Address("h", 1, "guest", "guest", "/", tls=True)),
        ("amqp://h/%2F", Address("h", 5672, "guest", "guest", "/")),
        ("amqp://a:b%2Fc@h:1/x%20y", Address("h", 1, "a", "b/c", "x y")),
        ("amqp://[::1]:9/v", Address("::1", 9, "guest", "guest", "v")),
    ],
)
def test_uri(uri: str, address: Address) -> None:
    assert parse_uri(uri) == address


def test_bad_uri() -> None:
    with pytest.raises(BadUri):
        parse_uri("localhost:5672")


def test_an_address_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "uri"
    file.write_text("amqp://ann:secret@h/\n")
    assert read_uri(f"@{file}").password == "secret"
    file.write_text("secret")
    with pytest.raises(BadUri) as refused:
        read_uri(f"@{file}")
    assert "secret" not in str(refused.value)
    with pytest.raises(BadUri, match="No such file"):
        read_uri(f"@{tmp_path}/nothing")


def test_an_address_in_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEVERET_TEST_URI", "amqps://h")
    assert read_uri("env:LEVERET_TEST_URI").tls
    monkeypatch.delenv("LEVERET_TEST_URI")
    with pytest.raises(BadUri, match="the variable LEVERET_TEST_URI"):
        read_uri("env:LEVERET_TEST_URI")
