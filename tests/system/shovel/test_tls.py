"""Shovels over TLS: the query parameters of URIs, and logging in with a certificate."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import leveret.testing
from leveret.testing import Broker
from tests.support.certificates import issue, openssl
from tests.support.servers import until
from tests.system.shovel.conftest import Site

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl on this machine")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = issue(tmp_path_factory.mktemp("certificates"))
    openssl(
        "pkcs8", "-topk8", "-v2", "aes128", "-passout", "pass:key secret", "-in", f"{folder}/client.key",
        "-out", f"{folder}/locked.key",
    )  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def brokers(folder: Path) -> Iterator[tuple[Broker, Broker]]:
    """Two brokers whose clients have to show a certificate, and can log in with it."""
    config = f"""
        listeners.ssl.1 = 127.0.0.1:0
        ssl_options.certfile = {folder}/server.pem
        ssl_options.keyfile = {folder}/server.key
        ssl_options.cacertfile = {folder}/ca.pem
        ssl_options.verify = verify_peer
        ssl_options.fail_if_no_peer_cert = true
        ssl_cert_login_from = common_name
        auth_mechanisms.1 = PLAIN
        auth_mechanisms.2 = AMQPLAIN
        auth_mechanisms.3 = EXTERNAL
    """
    with leveret.testing.broker(config=config) as here, leveret.testing.broker(config=config) as far:
        yield here, far


@pytest.fixture(autouse=True)
def user(here: Site, far: Site) -> None:
    """Have the user whose name is in the client's certificate."""
    for site in (here, far):
        site.broker.admin.add_user("client", "unknown to all")
        site.broker.admin.set_permissions("client", configure=".*", write=".*", read=".*")


def uri(
    site: Site, folder: Path, query: str = "", login: str = "", host: str = "127.0.0.1", key: str = "client"
) -> str:
    shown = f"cacertfile={folder}/ca.pem&certfile={folder}/client.pem&keyfile={folder}/{key}.key"
    return f"amqps://{login}{host}:{site.broker.ports['amqps']}?{shown}{query}"


def connections(site: Site) -> list[dict[str, Any]]:
    columns = ("name", "user", "auth_mechanism", "ssl", "timeout", "channel_max", "client_properties")
    found = site.broker.admin.call("list_connections", columns=list(columns))
    rows = [dict(zip(columns, row, strict=True)) for row in found["rows"]]
    return [one for one in rows if "Shovel" in str(one["client_properties"])]


def test_both_ends_with_certificates(here: Site, far: Site, folder: Path) -> None:
    bodies = here.fill(here.queue("a"), 500)
    query = "&auth_mechanism=external&heartbeat=7&channel_max=5&verify=verify_peer"
    here.shovel(
        "s", src_uri=uri(here, folder, query), src_queue="a", dest_uri=uri(far, folder, query), dest_queue="b",
        src_prefetch_count=100,
    )  # fmt: skip
    until(lambda: far.count("b") == 500 and here.count("a") == 0, "all to be moved")
    assert far.take("b") == bodies
    for site in (here, far):
        (one,) = connections(site)
        found = (one["user"], one["auth_mechanism"], one["ssl"], one["timeout"], one["channel_max"])
        assert found == ("client", "EXTERNAL", True, 7, 5)
    assert here.statuses()["s"]["state"] == "running"


@pytest.mark.parametrize(
    ("query", "login", "host", "key", "mechanism"),
    [
        ("", "", "127.0.0.1", "client", "EXTERNAL"),
        ("", "guest:guest@", "127.0.0.1", "client", "PLAIN"),
        ("&auth_mechanism=amqplain", "guest:guest@", "127.0.0.1", "client", "AMQPLAIN"),
        ("&auth_mechanism=external&auth_mechanism=plain", "guest:guest@", "127.0.0.1", "client", "EXTERNAL"),
        ("&password=key%20secret", "", "127.0.0.1", "locked", "EXTERNAL"),
        ("&server_name_indication=127.0.0.1", "", "localhost", "client", "EXTERNAL"),
        ("&server_name_indication=disable", "", "localhost", "client", "EXTERNAL"),
        ("&verify=verify_none", "", "localhost", "client", "EXTERNAL"),
        ("&depth=3&fail_if_no_peer_cert=true&connection_timeout=20000", "", "127.0.0.1", "client", "EXTERNAL"),
    ],
)
def test_parameters(
    here: Site, far: Site, folder: Path, query: str, login: str, host: str, key: str, mechanism: str
) -> None:
    here.fill(here.queue("a"), 5)
    here.shovel("s", src_uri="amqp://", src_queue="a", dest_uri=uri(far, folder, query, login, host, key))
    far.queue("a")
    until(lambda: far.count("a") == 5, f"all to be moved: {here.statuses()}")
    (one,) = connections(far)
    assert (one["auth_mechanism"], one["user"]) == (mechanism, "guest" if "PLAIN" in mechanism else "client")
    assert "secret" not in str(here.statuses())


@pytest.fixture
def quiet_port() -> Iterator[int]:
    """A port where somebody listens and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_what_cannot_be_says_why(here: Site, far: Site, folder: Path, quiet_port: int) -> None:
    port = far.broker.ports["amqps"]
    plain = far.broker.ports["amqp"]
    shown = f"certfile={folder}/client.pem&keyfile={folder}/client.key"
    faults = {
        f"amqps://127.0.0.1:{port}?{shown}": "certificate is not trusted: ",
        f"amqps://127.0.0.1:{port}?cacertfile={folder}/ca.pem": "certificate",
        uri(far, folder, host="localhost"): "certificate is not trusted: Hostname mismatch",
        uri(far, folder, "&server_name_indication=far.example"): "certificate is not trusted: Hostname mismatch",
        uri(far, folder, key="locked", query="&password=wrong"): f"with keyfile {folder}/locked.key: ",
        uri(far, folder, key="locked"): f"with keyfile {folder}/locked.key: ",
        uri(far, folder, key="ca"): "key values mismatch",
        f"amqps://127.0.0.1:{port}?cacertfile={folder}/none.pem": f"cacertfile {folder}/none.pem: No such file",
        f"amqps://127.0.0.1:{port}?cacertfile={folder}/ca.key": f"cacertfile {folder}/ca.key: ",
        f"amqps://127.0.0.1:{port}?certfile={folder}/none.pem": f"certfile {folder}/none.pem: No such file",
        f"amqps://127.0.0.1:{plain}?{shown}": "the server does not use TLS there",
        uri(far, folder, "&auth_mechanism=plain", "guest:false@"): "ACCESS_REFUSED",
        f"amqp://127.0.0.1:{plain}?auth_mechanism=external": "none of EXTERNAL",
        f"amqps://127.0.0.1:{quiet_port}?connection_timeout=200": "did not answer within 0.2 s",
        f"amqp://127.0.0.1:{quiet_port}?connection_timeout=200": "did not answer within 0.2 s",
        f"amqp://127.0.0.1:{port}?connection_timeout=2000": "is it a broker",
    }
    for number, fault in enumerate(faults):
        here.shovel(f"{number}", src_uri=fault, src_queue="a", dest_uri="amqp://", dest_queue="b", reconnect_delay=0)
    until(lambda: all(one["state"] == "terminated" for one in here.statuses().values()), "all to fail")
    found = here.statuses()
    for number, text in enumerate(faults.values()):
        assert text in found[str(number)]["reason"], found[str(number)]["reason"]
    assert "wrong" not in str(found) and "false" not in str([one["reason"] for one in found.values()])


def test_a_certificate_that_no_user_has(here: Site, far: Site, folder: Path) -> None:
    far.broker.admin.call("delete_user", name="client")
    here.shovel("s", src_uri=uri(far, folder), src_queue="a", dest_uri="amqp://", dest_queue="b")
    until(lambda: here.statuses()["s"]["state"] == "terminated", "it to fail")
    assert "ACCESS_REFUSED" in here.statuses()["s"]["reason"]
