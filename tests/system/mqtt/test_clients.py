"""The server as MQTT clients see it: paho-mqtt, and mosquitto's command lines where they are installed."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from paho.mqtt.enums import MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from leveret.protocol.mqtt.encoder import encode
from leveret.protocol.mqtt.packets import V311, Connack, Connect, Disconnect
from tests.support.certificates import issue
from tests.support.servers import PATIENCE_S, Server
from tests.system.mqtt.paho_client import Paho

VERSIONS = (MQTTProtocolVersion.MQTTv31, MQTTProtocolVersion.MQTTv311, MQTTProtocolVersion.MQTTv5)
CONFIG = "mqtt.listeners.tcp.1 = 127.0.0.1:0\n"


@pytest.fixture(scope="module")
def mqtt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("mqtt"), CONFIG).start()
    yield server
    server.end()


def properties_of(kind: int, **values: Any) -> Any:
    properties: Any = Properties(kind)  # type: ignore[no-untyped-call]
    for name, value in values.items():
        setattr(properties, name, value)
    return properties


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_publish_and_subscribe(mqtt: Server, version: Any, qos: int) -> None:
    subscriber = Paho(mqtt.mqtt_port, f"s{version}{qos}", version)
    publisher = Paho(mqtt.mqtt_port, f"p{version}{qos}", version)
    topic = f"test/{version}.{qos}"
    (reason,) = subscriber.subscribe(f"{topic}/#", qos)
    assert reason.value == qos
    payloads = [b"%d" % number * 100 for number in range(200)]
    for payload in payloads:
        publisher.client.publish(f"{topic}/a", payload, qos)
    got = [subscriber.message() for _ in payloads]
    assert [one.payload for one in got] == payloads
    assert {(one.topic, one.qos) for one in got} == {(f"{topic}/a", qos)}
    subscriber.end()
    publisher.end()


def test_a_session_goes_on(mqtt: Server) -> None:
    expiry = properties_of(PacketTypes.CONNECT, SessionExpiryInterval=600)
    first = Paho(mqtt.mqtt_port, "lasting", clean_start=True, properties=expiry)
    first.subscribe("lasting/+", qos=1)
    first.end()
    publisher = Paho(mqtt.mqtt_port, "lasting-p")
    for number in range(10):
        publisher.publish("lasting/x", b"%d" % number, 1)
    second = Paho(mqtt.mqtt_port, "lasting", clean_start=False, properties=expiry)
    assert [second.message().payload for _ in range(10)] == [b"%d" % number for number in range(10)]
    third = Paho(mqtt.mqtt_port, "lasting", clean_start=False, properties=expiry)
    name, reason = second.event()
    assert name == "disconnect" and reason.value == 0x8E
    second.client.loop_stop()
    third.end()
    publisher.end()


def test_wills_and_retained_messages(mqtt: Server) -> None:
    client = Paho(mqtt.mqtt_port, "dying", will=("wills/dying", b"gone", 1, True))
    watcher = Paho(mqtt.mqtt_port, "watcher")
    watcher.subscribe("wills/#", qos=1)
    sock = client.client.socket()
    assert sock is not None
    client.client.loop_stop()
    sock.close()
    message = watcher.message()
    assert (message.topic, message.payload, message.retain) == ("wills/dying", b"gone", False)
    late = Paho(mqtt.mqtt_port, "late")
    late.subscribe("+/dying", qos=1)
    message = late.message()
    assert (message.topic, message.payload, message.retain) == ("wills/dying", b"gone", True)
    watcher.end()
    late.end()


def test_requests_and_answers(mqtt: Server) -> None:
    asker, answerer = Paho(mqtt.mqtt_port, "asker"), Paho(mqtt.mqtt_port, "answerer")
    answerer.subscribe("questions", options=SubscribeOptions(qos=1))
    asker.subscribe("answers/asker", qos=1)
    pairs = [("a", "1"), ("a", "2")]
    properties = properties_of(
        PacketTypes.PUBLISH, ResponseTopic="answers/asker", CorrelationData=b"\0\1", UserProperty=pairs
    )
    asker.publish("questions", b"?", 1, properties=properties)
    question: Any = answerer.message().properties
    assert question.UserProperty == pairs
    answer = properties_of(PacketTypes.PUBLISH, CorrelationData=question.CorrelationData)
    answerer.publish(question.ResponseTopic, b"!", 1, properties=answer)
    got: Any = asker.message()
    assert got.payload == b"!" and got.properties.CorrelationData == b"\0\1"
    asker.end()
    answerer.end()


def test_with_amqp(mqtt: Server) -> None:
    client = Paho(mqtt.mqtt_port, "both")
    client.subscribe("from/amqp/#", qos=1)
    connection = pika.BlockingConnection(pika.URLParameters(mqtt.url))
    channel = connection.channel()
    channel.queue_declare("to-amqp")
    channel.queue_bind("to-amqp", "amq.topic", "to.amqp.*")
    channel.basic_publish("amq.topic", "from.amqp.x", b"a", pika.BasicProperties(content_type="text/plain"))
    message: Any = client.message()
    assert (message.topic, message.payload) == ("from/amqp/x", b"a")
    assert message.properties.ContentType == "text/plain"
    client.publish("to/amqp/x", b"b", 1)
    method, properties, body = channel.basic_get("to-amqp", auto_ack=True)
    assert (method.routing_key, body) == ("to.amqp.x", b"b")
    assert properties.headers == {"x-mqtt-publish-qos": 1, "x-mqtt-dup": False} and properties.delivery_mode == 2
    connection.close()
    client.end()


def test_tls(tmp_path: Path) -> None:
    folder = issue(tmp_path)
    config = (
        f"mqtt.listeners.ssl.1 = 127.0.0.1:0\nssl_options.certfile = {folder}/server.pem\n"
        f"ssl_options.keyfile = {folder}/server.key\n"
    )
    server = Server(tmp_path / "server", config).start()
    try:
        client = Paho(server.mqtt_tls_port, "tls", tls=f"{folder}/ca.pem")
        client.subscribe("a")
        client.publish("a", b"x")
        assert client.message().payload == b"x"
        client.end()
    finally:
        server.end()


@pytest.mark.skipif(shutil.which("mosquitto_pub") is None, reason="needs mosquitto-clients")
@pytest.mark.parametrize("version", ["mqttv31", "mqttv311", "mqttv5"])
@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_mosquitto(mqtt: Server, version: str, qos: str) -> None:
    common = ["-h", "127.0.0.1", "-p", str(mqtt.mqtt_port), "-u", "guest", "-P", "guest", "-V", version, "-q", qos]
    topic = f"mosquitto/{version}.{qos}"
    published = subprocess.run(
        ["mosquitto_pub", *common, "-t", topic, "-m", "hello", "-r"], timeout=PATIENCE_S, check=True
    )
    assert not published.returncode
    got = subprocess.run(
        ["mosquitto_sub", *common, "-t", f"{topic}/#", "-C", "1", "-F", "%t %p %r"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert got.stdout == f"{topic} hello 1\n"


def test_the_server_closes_the_socket_after_disconnect(mqtt: Server) -> None:
    with socket.create_connection(("127.0.0.1", mqtt.mqtt_port), timeout=PATIENCE_S) as client:
        client.sendall(encode(Connect(V311, "leaves", keep_alive=60), V311) + encode(Disconnect(), V311))
        heard = b""
        while data := client.recv(1000):
            heard += data
    assert heard == encode(Connack(), V311)
