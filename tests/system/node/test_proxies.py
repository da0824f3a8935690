"""Listeners of the PROXY protocol: AMQP, MQTT, STOMP and WebSocket, with TLS and without."""

from __future__ import annotations

import base64
import json
import socket
import ssl
import struct
import urllib.request
from collections.abc import Iterator
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, BytesMessage, Event, Request

from leveret.node.sockets.proxy_protocol import SIGNATURE
from leveret.protocol import methods as m
from leveret.protocol.frames import PROTOCOL_HEADER
from leveret.protocol.tables import table_from_python
from tests.support.certificates import issue
from tests.support.servers import PATIENCE_S, Server, until

CLIENT, ENTRANCE = ("192.0.2.7", 56324), ("198.51.100.1", 443)
USER = ("remote", "secret")
LINE = b"PROXY TCP4 192.0.2.7 198.51.100.1 56324 443\r\n"
PACKED = IPv4Address(CLIENT[0]).packed + IPv4Address(ENTRANCE[0]).packed + struct.pack("!HH", CLIENT[1], ENTRANCE[1])
BINARY = SIGNATURE + struct.pack("!BBH", 0x21, 0x11, len(PACKED) + 6) + PACKED + b"\x04\x00\x03abc"
LOCAL = SIGNATURE + struct.pack("!BBH", 0x20, 0, 0)
UNKNOWN = b"PROXY UNKNOWN\r\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return issue(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[Server]:
    config = (
        "listeners.ssl.1 = 127.0.0.1:0\nmqtt.listeners.tcp.1 = 127.0.0.1:0\nweb_mqtt.tcp.listener = 127.0.0.1:0\n"
        f"ssl_options.certfile = {folder}/server.pem\nssl_options.keyfile = {folder}/server.key\n"
        "proxy_protocol = true\nmqtt.proxy_protocol = true\nweb_mqtt.proxy_protocol = true\n"
        "stomp.listeners.tcp.1 = 127.0.0.1:0\nstomp.proxy_protocol = true\n"
        "web_stomp.tcp.listener = 127.0.0.1:0\nweb_stomp.proxy_protocol = true\n"
        "management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = 0\n"
    )
    server = Server(tmp_path_factory.mktemp("proxied"), config).start()
    ask(server, "PUT", "/api/users/remote", {"password": USER[1], "tags": ""})
    ask(server, "PUT", "/api/permissions/%2F/remote", {"configure": ".*", "write": ".*", "read": ".*"})
    yield server
    server.end()


def ask(server: Server, method: str, path: str, body: Any = None) -> Any:
    request = urllib.request.Request(f"http://127.0.0.1:{server.management_port}{path}", method=method)
    request.add_header("Authorization", "Basic " + base64.b64encode(b"guest:guest").decode())
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(request, data, timeout=PATIENCE_S) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def shown(
    server: Server, sock: socket.socket, protocol: str = "AMQP 0-9-1"
) -> list[tuple[tuple[str, int], tuple[str, int]]]:
    """Returns the two ends of each connection, when there is one."""
    found: list[dict[str, Any]] = []

    def is_there() -> bool:
        found[:] = [one for one in ask(server, "GET", "/api/connections") if one.get("peer_host")]
        return bool(found)

    until(is_there, "a connection in the list")
    assert {one["protocol"] for one in found} == {protocol}
    ends = [((one["peer_host"], one["peer_port"]), (one["host"], one["port"])) for one in found]
    sock.close()
    until(lambda: not ask(server, "GET", "/api/connections"), "an empty list of connections")
    return ends


def connect(port: int, first: bytes) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
    sock.sendall(first)
    return sock


def amqp(user: tuple[str, str]) -> bytes:
    """Returns all that a client says up to the open connection."""
    told = table_from_python({"capabilities": {"authentication_failure_close": True}})
    login = m.ConnectionStartOk(told, "PLAIN", b"\0%b\0%b" % (user[0].encode(), user[1].encode()), "en_US")
    methods = (login, m.ConnectionTuneOk(2047, 131_072, 60), m.ConnectionOpen())
    return PROTOCOL_HEADER + b"".join(m.encode(0, method) for method in methods)


def mqtt(user: tuple[str, str]) -> bytes:
    texts = (b"c", user[0].encode(), user[1].encode())
    body = b"\x00\x04MQTT\x04\xc2\x00\x00" + b"".join(struct.pack("!H", len(one)) + one for one in texts)
    return b"\x10" + bytes([len(body)]) + body


def stomp(user: tuple[str, str]) -> bytes:
    return f"CONNECT\naccept-version:1.2\nlogin:{user[0]}\npasscode:{user[1]}\n\n\0".encode()


def read_until(sock: socket.socket | ssl.SSLSocket, wanted: bytes) -> bytes:
    data = b""
    while wanted not in data:
        more = sock.recv(65536)
        assert more, data
        data += more
    return data


OPEN_OK = m.encode(0, m.ConnectionOpenOk())


@pytest.mark.parametrize("header", [LINE, BINARY])
def test_amqp(server: Server, header: bytes) -> None:
    sock = connect(server.port, header + amqp(USER))
    read_until(sock, OPEN_OK)
    assert shown(server, sock) == [(CLIENT, ENTRANCE)]


@pytest.mark.parametrize("header", [LINE, BINARY])
def test_stomp(server: Server, header: bytes) -> None:
    sock = connect(server.stomp_port, header + stomp(USER))
    read_until(sock, b"CONNECTED")
    assert shown(server, sock, "STOMP 1.2") == [(CLIENT, ENTRANCE)]


def test_stomp_over_a_web_socket(server: Server) -> None:
    frames = WSConnection(ConnectionType.CLIENT)
    sock = connect(server.web_stomp_port, LINE + frames.send(Request("127.0.0.1", "/ws")))
    frames.receive_data(read_until(sock, b"\r\n\r\n"))
    sock.sendall(frames.send(BytesMessage(stomp(USER))))
    read_until(sock, b"CONNECTED")
    assert shown(server, sock, "Web STOMP 1.2") == [(CLIENT, ENTRANCE)]


def test_a_header_in_pieces(server: Server) -> None:
    with connect(server.port, b"") as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for place in range(len(LINE)):
            sock.sendall(LINE[place : place + 1])
        sock.sendall(PROTOCOL_HEADER)
        read_until(sock, b"PLAIN")


@pytest.mark.parametrize("header", [LINE, UNKNOWN])
def test_guest_stays_where_it_is(server: Server, header: bytes) -> None:
    """The proxy is on this machine, the client is not, or nobody knows."""
    with connect(server.port, header + amqp(("guest", "guest"))) as sock:
        read_until(sock, b"ACCESS_REFUSED")
    with connect(server.mqtt_port, header + mqtt(("guest", "guest"))) as sock:
        assert read_until(sock, b"\x20\x02\x00")[3] in (4, 5)
    with connect(server.stomp_port, header + stomp(("guest", "guest"))) as sock:
        assert b"non-loopback access denied" in read_until(sock, b"\0")


@pytest.mark.parametrize("header", [LOCAL, b"PROXY TCP4 127.0.0.1 127.0.0.1 1 2\r\n"])
def test_guest_on_this_machine(server: Server, header: bytes) -> None:
    with connect(server.port, header + amqp(("guest", "guest"))) as sock:
        read_until(sock, OPEN_OK)


def test_a_proxy_that_does_not_know_its_client(server: Server) -> None:
    sock = connect(server.port, UNKNOWN + amqp(USER))
    own = sock.getsockname()
    read_until(sock, OPEN_OK)
    assert shown(server, sock) == [(own, ("127.0.0.1", server.port))]


def test_before_tls(server: Server, folder: Path) -> None:
    context = ssl.create_default_context(cafile=folder / "ca.pem")
    context.check_hostname = False
    sock = context.wrap_socket(connect(server.tls_port, BINARY))
    sock.sendall(amqp(USER))
    read_until(sock, OPEN_OK)
    assert shown(server, sock) == [(CLIENT, ENTRANCE)]


@pytest.mark.parametrize("header", [LINE, BINARY])
def test_mqtt(server: Server, header: bytes) -> None:
    sock = connect(server.mqtt_port, header + mqtt(USER))
    read_until(sock, b"\x20\x02\x00\x00")
    assert shown(server, sock, "MQTT 3.1.1") == [(CLIENT, ENTRANCE)]


def test_websocket(server: Server) -> None:
    frames = WSConnection(ConnectionType.CLIENT)
    sock = connect(server.web_mqtt_port, LINE + frames.send(Request("h", "/ws", subprotocols=["mqtt"])))
    events: list[Event] = []
    while not events:
        frames.receive_data(sock.recv(65536))
        events += frames.events()
    assert isinstance(events[0], AcceptConnection)
    sock.sendall(frames.send(BytesMessage(mqtt(USER))))
    read_until(sock, b"\x20\x02\x00\x00")
    assert shown(server, sock, "Web MQTT 3.1.1") == [(CLIENT, ENTRANCE)]


def test_no_header(server: Server) -> None:
    for port in (server.port, server.tls_port, server.mqtt_port, server.web_mqtt_port):
        for first in (amqp(USER), mqtt(USER), b"GET /ws HTTP/1.1\r\n", b"PROXY TCP4 x y 1 2\r\n"):
            with connect(port, first) as sock:
                try:
                    assert sock.recv(100) == b""
                except ConnectionResetError:
                    pass  # The server has not read all of it.
