"""The server as STOMP clients see it: stomp.py, raw WebSockets, and the other protocols beside them."""

from __future__ import annotations

import base64
import json
import socket
import ssl
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, BytesMessage, Event, Request, TextMessage

from tests.support.certificates import issue
from tests.support.servers import PATIENCE_S, Server
from tests.system.mqtt.paho_client import Paho
from tests.system.stomp.stomp_client import StompPy

CONFIG = """stomp.listeners.tcp.1 = 127.0.0.1:0
web_stomp.tcp.listener = 127.0.0.1:0
mqtt.listeners.tcp.1 = 127.0.0.1:0
"""
CONNECT = b"CONNECT\naccept-version:1.2\nlogin:guest\npasscode:guest\n\n\0"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("stomp"), CONFIG).start()
    yield server
    server.end()


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])
def test_send_and_subscribe(server: Server, version: str) -> None:
    consumer, producer = StompPy(server.stomp_port, version), StompPy(server.stomp_port, version, (5_000, 5_000))
    name = f"/queue/test {version}"
    consumer.client.subscribe(name, id="1", ack="client")
    for number in range(200):
        headers = {"persistent": "true", "number": str(number), "receipt": f"r{number}"}
        producer.client.send(name, f"body {number} é", headers=headers)
    assert [producer.receipt() for _ in range(200)] == [f"r{number}" for number in range(200)]
    got = [consumer.message() for _ in range(200)]
    assert [(one.headers["number"], one.body) for one in got] == [(str(n), f"body {n} é") for n in range(200)]
    last = got[-1].headers
    if version == "1.2":
        consumer.client.ack(last["ack"], receipt="acked")
    elif version == "1.1":
        consumer.client.ack(last["message-id"], "1", receipt="acked")
    else:
        consumer.client.ack(last["message-id"], receipt="acked")
    assert consumer.receipt() == "acked"
    consumer.end()
    producer.end()
    again = StompPy(server.stomp_port, version)
    again.client.subscribe(name, id="1", ack="auto")
    again.client.send(name, "last")
    assert again.message().body == "last"
    again.end()


def test_transactions_and_nacks(server: Server) -> None:
    client = StompPy(server.stomp_port)
    client.client.subscribe("/queue/tx", id="1", ack="client-individual")
    transaction = client.client.begin()
    for number in range(3):
        client.client.send("/queue/tx", str(number), transaction=transaction)
    client.client.commit(transaction)
    got = [client.message() for _ in range(3)]
    assert [one.body for one in got] == ["0", "1", "2"]
    client.client.nack(got[1].headers["ack"])
    back = client.message()
    assert back.body == "1" and back.headers["redelivered"] == "true"
    client.end()


def test_errors_and_the_end(server: Server) -> None:
    client = StompPy(server.stomp_port)
    client.client.subscribe("/amq/queue/not there", id="1")
    name, frame = client.event()
    assert name == "error" and frame.headers["message"] == "not_found"
    assert client.event()[0] == "disconnected"


def test_with_amqp_and_mqtt(server: Server) -> None:
    stomp, mqtt = StompPy(server.stomp_port), Paho(server.mqtt_port, "with stomp")
    stomp.client.subscribe("/topic/rooms.#", id="1")
    mqtt.subscribe("rooms/#", 1)
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", server.port))
    channel = connection.channel()
    channel.queue_declare("from stomp", durable=True)
    stomp.client.send("/topic/rooms.kitchen", "21.5")
    assert stomp.message().body == "21.5" and bytes(mqtt.message().payload) == b"21.5"
    mqtt.publish("rooms/hall", b"18", 1)
    got = stomp.message()
    assert (got.headers["destination"], got.body) == ("/topic/rooms.hall", "18")
    headers = {"content-type": "a/b", "colour": "red", "receipt": "1"}
    stomp.client.send("/amq/queue/from stomp", "x", headers=headers)
    assert stomp.receipt() == "1"
    _, properties, body = channel.basic_get("from stomp", auto_ack=True)
    assert (properties.content_type, properties.headers["colour"], body) == ("a/b", "red", b"x")
    properties = pika.BasicProperties(headers={"n": 5, "s": "a:b\n"}, reply_to="somewhere")
    channel.basic_publish("amq.topic", "rooms.x", b"from amqp", properties)
    got = stomp.message()
    assert (got.headers["n"], got.headers["s"], got.body) == ("5", "a:b\n", "from amqp")
    assert got.headers["reply-to"] == "/reply-queue/somewhere"
    connection.close()
    stomp.end()
    mqtt.end()


class Web:
    """A WebSocket whose frames a test makes."""

    def __init__(self, port: int, *subprotocols: str, login: bytes | None = None) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self.frames = WSConnection(ConnectionType.CLIENT)
        self.events: list[Event] = []
        headers = [] if login is None else [(b"authorization", b"Basic " + base64.b64encode(login))]
        self.send(Request("127.0.0.1", "/ws", subprotocols=list(subprotocols), extra_headers=headers))
        accepted = self.event()
        assert isinstance(accepted, AcceptConnection)
        self.subprotocol = accepted.subprotocol

    def send(self, *events: Event) -> None:
        self.socket.sendall(b"".join(map(self.frames.send, events)))

    def event(self) -> Event:
        while not self.events:
            data = self.socket.recv(65536)
            assert data, "the server has closed the socket"
            self.frames.receive_data(data)
            self.events += self.frames.events()
        return self.events.pop(0)


@pytest.mark.parametrize("kind", [TextMessage, BytesMessage])
@pytest.mark.parametrize("offered", [(), ("v10.stomp", "v11.stomp", "v12.stomp"), ("v10.stomp",)])
def test_web_sockets(server: Server, kind: type[Event], offered: tuple[str, ...]) -> None:
    web = Web(server.web_stomp_port, *offered)
    assert web.subprotocol == (None if not offered else offered[-1])

    def say(data: bytes) -> None:
        web.send(kind(data=data.decode() if kind is TextMessage else data))  # type: ignore[call-arg]

    say(CONNECT[:20])
    say(CONNECT[20:])
    answer = web.event()
    assert isinstance(answer, TextMessage) and answer.data.startswith("CONNECTED\n")
    say("SUBSCRIBE\nid:1\ndestination:/queue/web é\n\n\0SEND\ndestination:/queue/web é\n\nhallo é\0".encode())
    answer = web.event()
    assert isinstance(answer, TextMessage) and answer.data.endswith("\n\nhallo é\0\n")
    web.send(BytesMessage(data="SEND\ndestination:/queue/web é\n\n".encode() + b"\xff\xfe\0"))
    binary = web.event()
    assert isinstance(binary, BytesMessage) and binary.data.endswith(b"\n\n\xff\xfe\0\n")
    web.socket.close()


def test_tls_and_certificates(tmp_path: Path) -> None:
    folder = issue(tmp_path)
    config = (
        "stomp.listeners.ssl.1 = 127.0.0.1:0\nstomp.ssl_cert_login = true\nssl_cert_login_from = common_name\n"
        f"ssl_options.certfile = {folder}/server.pem\nssl_options.keyfile = {folder}/server.key\n"
        f"ssl_options.cacertfile = {folder}/ca.pem\nssl_options.verify = verify_peer\ndefault_user = client\n"
    )
    server = Server(tmp_path / "server", config).start()
    try:
        context = ssl.create_default_context(cafile=f"{folder}/ca.pem")
        context.load_cert_chain(f"{folder}/client.pem", f"{folder}/client.key")
        plain = socket.create_connection(("127.0.0.1", server.stomp_tls_port), PATIENCE_S)
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as secure:
            secure.sendall(b"CONNECT\naccept-version:1.2\n\n\0")
            assert secure.recv(65536).startswith(b"CONNECTED\n")
    finally:
        server.end()


def test_a_web_socket_whose_request_has_a_login(tmp_path: Path) -> None:
    user = "default_user = web\ndefault_pass = with:colons\n"
    listener = "web_stomp.tcp.listener = 127.0.0.1:0\nweb_stomp.use_http_auth = true\n"
    server = Server(tmp_path, user + listener).start()

    def answer(login: bytes | None, connect: str) -> str:
        web = Web(server.web_stomp_port, login=login)
        web.send(TextMessage(f"CONNECT\naccept-version:1.2\n{connect}\n\0"))
        event = web.event()
        assert isinstance(event, TextMessage)
        web.socket.close()
        return event.data.partition("\n\n")[0].replace("\n", "|")

    assert answer(b"web:with:colons", "").startswith("CONNECTED|")
    assert answer(b"web:with:colons", "login:guest\npasscode:wrong\n").startswith("CONNECTED|")
    assert answer(b"web:wrong", "login:web\npasscode:with:colons\n").startswith("ERROR|message:Bad CONNECT|")
    assert answer(None, "login:web\npasscode:with:colons\n").startswith("CONNECTED|")
    assert answer(None, "").startswith("ERROR|message:Bad CONNECT|")
    for bad in (b"Basic !", b"Basic " + base64.b64encode(b"no colon"), b"Bearer x"):
        with socket.create_connection(("127.0.0.1", server.web_stomp_port), PATIENCE_S) as raw:
            request = WSConnection(ConnectionType.CLIENT)
            raw.sendall(request.send(Request("127.0.0.1", "/ws", extra_headers=[(b"authorization", bad)])))
            assert raw.recv(100).startswith(b"HTTP/1.1 400")
    server.end()


def test_consumers_are_listed_as_those_of_amqp(tmp_path: Path) -> None:
    listeners = "management.tcp.ip = 127.0.0.1\nmanagement.tcp.port = 0\n"
    server = Server(tmp_path, CONFIG + listeners).start()
    stomp, mqtt = StompPy(server.stomp_port), Paho(server.mqtt_port, "listed")
    stomp.client.subscribe("/queue/listed", id="1", ack="client", headers={"prefetch-count": "7", "x-priority": "3"})
    stomp.client.send("/queue/listed", "x")
    stomp.message()
    mqtt.subscribe("listed/#", 1)
    request = urllib.request.Request(f"http://127.0.0.1:{server.management_port}/api/consumers")
    request.add_header("Authorization", f"Basic {base64.b64encode(b'guest:guest').decode()}")
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        rows = {row["queue"]["name"]: row for row in json.load(answer)}
    mine = rows["listed"]
    assert (mine["consumer_tag"], mine["ack_required"], mine["prefetch_count"]) == ("T_1", True, 7)
    assert mine["arguments"] == {"x-priority": 3}
    assert mine["channel_details"]["user"] == "guest" and mine["channel_details"]["number"] == 1
    (session,) = (row for name, row in rows.items() if name.startswith("mqtt-subscription-"))
    assert session["ack_required"] and session["channel_details"]["connection_name"].endswith(str(server.mqtt_port))
    stomp.end()
    mqtt.end()
    server.end()
