"""Whoever asks with TLS is never sent, and never goes, to a port without: each question carries a password."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from leveret.data.client import DataClient, Unreachable
from tests.support.certificates import issue
from tests.support.members import free_port
from tests.support.servers import Server


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return issue(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def trusted(folder: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(folder / "ca.pem"))


class Node:
    """Answers whatever is asked with one answer, and counts."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        node = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                node.asked += 1
                data = json.dumps(node.body).encode()
                self.send_response(node.status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *words: object) -> None:
                pass

        self.asked = 0
        self.status = 200
        self.body: dict[str, object] = {}
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if tls is not None:
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True)
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def nodes(folder: Path) -> Iterator[tuple[Node, Node]]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    pair = Node(context), Node()
    yield pair
    for node in pair:
        node.close()


def test_a_client_with_tls_follows_nobody_to_a_port_without(nodes: tuple[Node, Node], trusted: ssl.SSLContext) -> None:
    secret, plain = nodes
    secret.status, secret.body = 421, {"error": "elsewhere", "urls": [plain.url]}
    with DataClient(secret.url, tls=trusted, patience_s=0.1) as client, pytest.raises(Unreachable):
        client.wait("q", 1, 0)
    assert secret.asked and not plain.asked


def test_it_follows_to_a_port_with_tls_and_to_its_own_servers(
    nodes: tuple[Node, Node], trusted: ssl.SSLContext
) -> None:
    secret, plain = nodes
    secret.status, secret.body = 421, {"error": "elsewhere", "urls": [plain.url]}
    plain.body = {"next": 7}
    with DataClient([secret.url, plain.url], tls=trusted, patience_s=0.1) as client:
        assert client.wait("q", 1, 0) == 7  # Whoever made the client has named it.
    plain.status, plain.body = 421, {"error": "elsewhere", "urls": [secret.url]}
    secret.status, secret.body = 200, {"next": 8}
    with DataClient(plain.url, tls=trusted, patience_s=0.1) as client:
        assert client.wait("q", 1, 0) == 8


def test_a_node_with_both_names_the_port_of_the_kind_that_was_asked(
    tmp_path: Path, folder: Path, trusted: ssl.SSLContext
) -> None:
    ports = free_port(), free_port()
    server = Server(
        tmp_path / "both",
        f"""
management.tcp.port = {ports[0]}
management.tcp.ip = 127.0.0.1
management.ssl.port = {ports[1]}
management.ssl.ip = 127.0.0.1
management.ssl.cacertfile = {folder}/ca.pem
management.ssl.certfile = {folder}/server.pem
management.ssl.keyfile = {folder}/server.key
""",
    )
    server.start()
    server.channel().queue_declare("q", durable=True)
    for scheme, port in zip(("http", "https"), ports, strict=True):
        with DataClient(f"{scheme}://127.0.0.1:{port}", tls=trusted) as client:
            [found] = client.queues(["q"])
            assert [one.url for one in found.members] == [f"{scheme}://127.0.0.1:{port}"]
    server.stop()
