"""MQTT clients joined to the machine by bytes: what a client sends, and the packets that it gets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from leveret.protocol.mqtt import packets as k
from leveret.protocol.mqtt import properties as p
from leveret.protocol.mqtt.decoder import decode, packet_end
from leveret.protocol.mqtt.encoder import encode
from leveret.sessions.mqtt.connection import Connection
from leveret.sessions.mqtt.limits import MqttLimits
from leveret.sessions.peer import Peer
from tests.support.machines import World

LOOPBACK: Final = Peer("127.0.0.1", 40_000, "127.0.0.1", 1883, True)
PACKET_MAX: Final = 1 << 28


class MqttClient:
    """One client of a world. Answers to messages are sent by the test."""

    def __init__(self, world: World, limits: MqttLimits | None = None, peer: Peer = LOOPBACK) -> None:
        self.world = world
        self.version = k.V5
        self.connection = Connection(world.broker, peer, limits or MqttLimits())
        world.clients[self.connection.output] = self
        self.got: list[k.Packet] = []
        self.data = b""
        self.paused = False

    def flush(self) -> None:
        output = self.connection.output
        if self.paused:
            output.set_writable(False)
            return
        pieces = output.take()
        output.on_written(sum(map(len, pieces)))
        self.data += b"".join(pieces)
        while (span := packet_end(self.data, 0, PACKET_MAX)) is not None and span.end <= len(self.data):
            self.got.append(decode(self.version, self.data[0], self.data, *span))
            self.data = self.data[span.end :]
        if self.connection.on_room():
            self.world.broker.writers[self.connection.output] = None

    def send_bytes(self, data: bytes) -> list[k.Packet]:
        self.connection.receive(data)
        return self.heard()

    def send(self, *packets: k.Packet) -> list[k.Packet]:
        """Send these in one piece; give what comes back."""
        return self.send_bytes(b"".join(encode(packet, self.version) for packet in packets))

    def heard(self) -> list[k.Packet]:
        self.world.turn()
        got, self.got = self.got, []
        return got

    def connect(
        self,
        client_id: str = "c",
        version: int = k.V5,
        clean: bool = True,
        properties: p.Properties | None = None,
        **options: Any,
    ) -> list[k.Packet]:
        self.version = version
        options.setdefault("username", "guest")
        options.setdefault("password", b"guest")
        return self.send(k.Connect(version, client_id, clean, properties=properties or {}, **options))

    def subscribe(self, *filters: str, qos: int = 0, packet_id: int = 1, **options: Any) -> list[k.Packet]:
        found = options.pop("properties", {})
        wanted = [k.Subscription(one, qos, **options) for one in filters]
        return self.send(k.Subscribe(packet_id, wanted, found))

    def unsubscribe(self, *filters: str, packet_id: int = 2) -> list[k.Packet]:
        return self.send(k.Unsubscribe(packet_id, list(filters)))

    def publish(
        self, topic: str, payload: bytes = b"x", qos: int = 0, packet_id: int = 0, **more: Any
    ) -> list[k.Packet]:
        return self.send(k.Publish(topic, payload, qos, packet_id=packet_id or (7 if qos else 0), **more))

    def lose(self) -> None:
        """The socket is gone."""
        self.connection.on_socket_lost()
        self.world.turn()


def connected(world: World, client_id: str = "c", version: int = k.V5, **options: Any) -> MqttClient:
    """A client that has its CONNACK."""
    client = MqttClient(world, options.pop("limits", None))
    answer = client.connect(client_id, version, **options)
    assert len(answer) >= 1 and isinstance(answer[0], k.Connack) and not answer[0].reason, answer
    client.got = answer[1:]
    return client


def messages(packets: Iterable[k.Packet]) -> list[tuple[str, bytes, int]]:
    """Topic, payload and QoS of the PUBLISH packets."""
    return [(one.topic, one.payload, one.qos) for one in packets if isinstance(one, k.Publish)]


def ack(kind: int, packet: k.Packet) -> k.Ack:
    assert isinstance(packet, k.Publish | k.Ack)
    return k.Ack(kind, packet.packet_id)
