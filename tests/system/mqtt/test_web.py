"""MQTT over WebSocket as clients see it: paho-mqtt, and raw frames."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from paho.mqtt.enums import MQTTProtocolVersion
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Event, Ping, Pong, Request, TextMessage

from tests.support.certificates import issue
from tests.support.servers import PATIENCE_S, Server
from tests.system.mqtt.paho_client import Paho

CONFIG = "web_mqtt.tcp.listener = 127.0.0.1:0\nmqtt.listeners.tcp.1 = 127.0.0.1:0\nmqtt.login_timeout = 1500\n"
# MQTT 3.1.1, clean session, user guest with its password.
CONNECT = b"\x10\x1d\x00\x04MQTT\x04\xc2\x00\x00\x00\x03raw\x00\x05guest\x00\x05guest"
CONNACK = b"\x20\x02\x00\x00"


@pytest.fixture(scope="module")
def mqtt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("web"), CONFIG).start()
    yield server
    server.end()


class Raw:
    """A WebSocket whose frames a test makes."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self.frames = WSConnection(ConnectionType.CLIENT)
        self.events: list[Event] = []
        self.send(Request("127.0.0.1", "/ws", subprotocols=["mqtt"]))
        accepted = self.event()
        assert isinstance(accepted, AcceptConnection) and accepted.subprotocol == "mqtt"

    def send(self, *events: Event) -> None:
        self.socket.sendall(b"".join(map(self.frames.send, events)))

    def event(self) -> Event:
        while not self.events:
            data = self.socket.recv(65536)
            assert data, "the server has closed the socket"
            self.frames.receive_data(data)
            self.events += self.frames.events()
        return self.events.pop(0)

    def is_closed(self) -> bool:
        """Waits for the end of the socket."""
        while self.socket.recv(65536):
            pass
        return True


@pytest.mark.parametrize("version", [MQTTProtocolVersion.MQTTv311, MQTTProtocolVersion.MQTTv5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_publish_and_subscribe(mqtt: Server, version: Any, qos: int) -> None:
    subscriber = Paho(mqtt.web_mqtt_port, f"s{version}{qos}", version, transport="websockets")
    publisher = Paho(mqtt.web_mqtt_port, f"p{version}{qos}", version, transport="websockets")
    (reason,) = subscriber.subscribe(f"web/{version}/{qos}", qos)
    assert reason.value == qos
    payloads = [b"%d" % number * 100 for number in range(200)]
    for payload in payloads:
        publisher.client.publish(f"web/{version}/{qos}", payload, qos)
    assert [subscriber.message().payload for _ in payloads] == payloads
    subscriber.end()
    publisher.end()


def test_messages_larger_than_a_frame_and_clients_of_tcp(mqtt: Server) -> None:
    web = Paho(mqtt.web_mqtt_port, "large-web", transport="websockets")
    tcp = Paho(mqtt.mqtt_port, "large-tcp")
    payload = bytes(range(256)) * 4 * 1024 * 3
    for here, there in ((web, tcp), (tcp, web)):
        there.subscribe("large", qos=1)
        here.publish("large", payload, 1)
        assert there.message().payload == payload
        there.client.unsubscribe("large")
    web.end()
    tcp.end()


def test_a_will_of_a_lost_client(mqtt: Server) -> None:
    client = Paho(mqtt.web_mqtt_port, "web-dying", will=("web/wills", b"gone", 1), transport="websockets")
    watcher = Paho(mqtt.mqtt_port, "web-watcher")
    watcher.subscribe("web/wills", qos=1)
    sock = client.client.socket()
    assert sock is not None
    client.client.loop_stop()
    sock.close()
    assert watcher.message().payload == b"gone"
    watcher.end()


def test_packets_need_not_begin_with_frames(mqtt: Server) -> None:
    raw = Raw(mqtt.web_mqtt_port)
    raw.send(*(BytesMessage(CONNECT[place : place + 1], message_finished=not place % 3) for place in range(15)))
    raw.send(Ping(b"between"))
    assert raw.event() == Pong(b"between")
    raw.send(BytesMessage(CONNECT[15:] + b"\xc0", message_finished=True))
    assert raw.event() == BytesMessage(CONNACK)
    raw.send(BytesMessage(b"\x00"))
    assert raw.event() == BytesMessage(b"\xd0\x00")
    raw.send(CloseConnection(1000))
    close = raw.event()
    assert isinstance(close, CloseConnection) and close.code == 1000
    assert raw.is_closed()


def test_text_ends_the_connection(mqtt: Server) -> None:
    raw = Raw(mqtt.web_mqtt_port)
    raw.send(BytesMessage(CONNECT))
    assert raw.event() == BytesMessage(CONNACK)
    raw.send(TextMessage("text"))
    close = raw.event()
    assert isinstance(close, CloseConnection) and close.code == 1003
    assert raw.is_closed()


def test_a_client_that_disconnects_is_answered_with_a_close(mqtt: Server) -> None:
    raw = Raw(mqtt.web_mqtt_port)
    raw.send(BytesMessage(CONNECT))
    assert raw.event() == BytesMessage(CONNACK)
    raw.send(BytesMessage(b"\xe0\x00"), CloseConnection(1000))
    assert isinstance(raw.event(), CloseConnection)
    assert raw.is_closed()


def test_a_wrong_password_is_told_before_the_close(mqtt: Server) -> None:
    raw = Raw(mqtt.web_mqtt_port)
    raw.send(BytesMessage(CONNECT[:-5] + b"wrong"))
    assert raw.event() == BytesMessage(b"\x20\x02\x00\x04")
    assert isinstance(raw.event(), CloseConnection)


def test_other_paths_and_no_subprotocol(mqtt: Server) -> None:
    for target, subprotocols, status in (("/", ["mqtt"], b"404"), ("/ws", [], b"400")):
        with socket.create_connection(("127.0.0.1", mqtt.web_mqtt_port), PATIENCE_S) as sock:
            sock.sendall(WSConnection(ConnectionType.CLIENT).send(Request("h", target, subprotocols=subprotocols)))
            answer = b""
            while data := sock.recv(4096):
                answer += data
        assert answer.startswith(b"HTTP/1.1 " + status), answer


@pytest.mark.parametrize("sent", [b"", b"GET /ws HTTP/1.1\r\nHost:"])
def test_an_upgrade_has_to_come_in_time(mqtt: Server, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", mqtt.web_mqtt_port), PATIENCE_S) as sock:
        sock.sendall(sent)
        assert sock.recv(1) == b""


def test_tls(tmp_path: Path) -> None:
    folder = issue(tmp_path)
    config = (
        f"web_mqtt.ssl.ip = 127.0.0.1\nweb_mqtt.ssl.port = 0\nweb_mqtt.ssl.certfile = {folder}/server.pem\n"
        f"web_mqtt.ssl.keyfile = {folder}/server.key\n"
    )
    server = Server(tmp_path / "server", config).start()
    try:
        client = Paho(server.web_mqtt_tls_port, "tls", tls=f"{folder}/ca.pem", transport="websockets")
        client.subscribe("a")
        client.publish("a", b"x")
        assert client.message().payload == b"x"
        client.end()
    finally:
        server.end()
