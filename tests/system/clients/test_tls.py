"""AMQP over TLS, with certificates made for the occasion."""

from __future__ import annotations

import shutil
import socket
import ssl
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.support.certificates import issue
from tests.support.servers import Server, until
from tests.system.conftest import Start

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl on this machine")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return issue(tmp_path_factory.mktemp("certificates"))


def config(certificates: Path, more: str = "") -> str:
    return f"""
listeners.ssl.1 = 127.0.0.1:0
ssl_options.certfile = {certificates}/server.pem
ssl_options.keyfile = {certificates}/server.key
ssl_options.cacertfile = {certificates}/ca.pem
{more}
"""


def client_context(certificates: Path, certificate: str | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=f"{certificates}/ca.pem")
    if certificate is not None:
        context.load_cert_chain(f"{certificates}/{certificate}.pem", f"{certificates}/{certificate}.key")
    return context


def connect(server: Server, context: ssl.SSLContext, credentials: Any = None) -> Any:
    options = pika.SSLOptions(context, "127.0.0.1")
    parameters = pika.ConnectionParameters("127.0.0.1", server.tls_port, ssl_options=options, heartbeat=0)
    if credentials is not None:
        parameters.credentials = credentials
    connection = pika.BlockingConnection(parameters)
    server.connections.append(connection)
    return connection


def test_messages_over_tls(start: Start, certificates: Path) -> None:
    """Both listeners serve; a message of many records arrives whole."""
    server = start(config(certificates))
    channel = connect(server, client_context(certificates)).channel()
    channel.confirm_delivery()
    channel.queue_declare("q")
    body = bytes(range(256)) * 10_000
    for _ in range(3):
        channel.basic_publish("", "q", body, pika.BasicProperties(delivery_mode=2))
    assert server.channel().basic_get("q", auto_ack=True)[2] == body
    seen: list[bytes] = []
    channel.basic_consume("q", lambda *message: seen.append(message[3]), auto_ack=True)
    while len(seen) < 2:
        channel.connection.process_data_events(1)
    assert seen == [body, body]
    connection = connect(server, client_context(certificates))
    assert server.stop() == 0
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as caught:
        connection.process_data_events(60)
    assert caught.value.reply_code == 320


def test_peer_must_have_a_certificate(start: Start, certificates: Path) -> None:
    server = start(config(certificates, "ssl_options.verify = verify_peer\nssl_options.fail_if_no_peer_cert = true"))
    assert connect(server, client_context(certificates, "client")).is_open
    with pytest.raises((pika.exceptions.AMQPConnectionError, ssl.SSLError)):
        connect(server, client_context(certificates))


@pytest.mark.parametrize(
    ("login_from", "name"), [("distinguished_name", "CN=client,O=shop"), ("common_name", "client")]
)
def test_login_by_certificate(start: Start, certificates: Path, login_from: str, name: str) -> None:
    """Who has the certificate is the user that its name says; nobody else gets in without a password."""
    server = start(
        config(
            certificates,
            "ssl_options.verify = verify_peer\nauth_mechanisms.1 = EXTERNAL\nauth_mechanisms.2 = PLAIN\n"
            f"ssl_cert_login_from = {login_from}\nloopback_users = none\ndefault_user = {name}\ndefault_pass = secret",
        )
    )
    external = pika.credentials.ExternalCredentials()
    channel = connect(server, client_context(certificates, "client"), external).channel()
    channel.queue_declare("q")
    channel.basic_publish("", "q", b"x", pika.BasicProperties(user_id=name))
    assert channel.basic_get("q")[2] == b"x"
    for stranger in ("server", None):  # The one has a certificate of nobody who is known here, the other has none.
        with pytest.raises(pika.exceptions.ProbableAuthenticationError) as caught:
            connect(server, client_context(certificates, stranger), external)
        assert "Login was refused using authentication mechanism EXTERNAL" in str(caught.value)
    assert connect(server, client_context(certificates), pika.PlainCredentials(name, "secret")).is_open


def test_certificates_count_only_if_they_are_checked(start: Start, certificates: Path) -> None:
    server = start(config(certificates, "auth_mechanisms.1 = EXTERNAL\ndefault_user = CN=client,O=shop"))
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        connect(server, client_context(certificates, "client"), pika.credentials.ExternalCredentials())


@pytest.mark.parametrize("says", ["certificate verify failed: ", "the client says: unknown ca", "wrong version number"])
def test_a_handshake_that_fails_is_told(start: Start, certificates: Path, says: str, tmp_path: Path) -> None:
    """Clients see the end of a connection, and no reason."""
    server = start(config(certificates, "ssl_options.verify = verify_peer"))
    if says == "wrong version number":
        with socket.create_connection(("127.0.0.1", server.tls_port), 10) as plain:
            plain.sendall(b"AMQP\x00\x00\x09\x01")
            assert plain.recv(1) == b""
    else:
        others = issue(tmp_path)
        context = client_context(certificates)
        context.load_cert_chain(f"{others}/client.pem", f"{others}/client.key")
        with pytest.raises((OSError, pika.exceptions.AMQPError)):
            connect(server, client_context(others) if says.endswith("unknown ca") else context)
    until(lambda: f"TLS server: handshake at the port for AMQP failed: {says}" in server.log(), "a line of the log")


def test_versions(start: Start, certificates: Path) -> None:
    server = start(config(certificates, "ssl_options.versions.1 = tlsv1.3"))
    assert connect(server, client_context(certificates)).is_open
    old = client_context(certificates)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises((pika.exceptions.AMQPConnectionError, ssl.SSLError)):
        connect(server, old)


@pytest.mark.parametrize("says", [b"AMQP\x00\x00\x09\x01", b""], ids=["plain", "silent"])
def test_no_tls_on_the_tls_port(start: Start, certificates: Path, says: bytes) -> None:
    """Cut, at once or after `ssl_handshake_timeout`, and the server is none the worse for it."""
    server = start(config(certificates, "ssl_handshake_timeout = 300"))
    with socket.create_connection(("127.0.0.1", server.tls_port), timeout=60) as plain:
        plain.sendall(says)
        answer = b""
        try:
            while data := plain.recv(4096):
                answer += data
        except ConnectionResetError:
            pass
        assert b"AMQP" not in answer
    assert connect(server, client_context(certificates)).is_open
