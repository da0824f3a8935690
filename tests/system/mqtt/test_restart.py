"""QoS 1 and 2 over the death of a node: what was acknowledged is there, and what is sent again is there once."""

from __future__ import annotations

import socket

import pytest

from leveret.protocol.mqtt import packets as k
from leveret.protocol.mqtt import properties as p
from leveret.protocol.mqtt.decoder import decode, packet_end
from leveret.protocol.mqtt.encoder import encode
from leveret.protocol.mqtt.properties import Prop
from tests.support.members import free_port
from tests.support.servers import PATIENCE_S
from tests.system.conftest import Start

LASTING = {Prop.SESSION_EXPIRY: 1_000}


class Raw:
    """A client that sends and reads single packets of MQTT 5.0."""

    def __init__(self, port: int, client_id: str, clean: bool) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self.data = b""
        self.send(k.Connect(k.V5, client_id, clean, 60, None, "guest", b"guest", dict(LASTING)))
        self.connack = self.read(k.Connack)

    def send(self, packet: k.Packet) -> None:
        self.socket.sendall(encode(packet, k.V5))

    def read(self, kind: type[k.Packet]) -> k.Packet:
        while (span := packet_end(self.data, 0, 1 << 28)) is None or span.end > len(self.data):
            more = self.socket.recv(65_536)
            assert more, "the server closed the connection"
            self.data += more
        packet = decode(k.V5, self.data[0], self.data, *span)
        self.data = self.data[span.end :]
        assert isinstance(packet, kind), packet
        return packet

    def close(self) -> None:
        self.socket.close()


def test_a_killed_node(start: Start) -> None:
    port = free_port()
    server = start(f"mqtt.listeners.tcp.1 = 127.0.0.1:{port}\n")
    subscriber = Raw(port, "subscriber", clean=True)
    subscriber.send(k.Subscribe(1, [k.Subscription("t", 2)]))
    assert subscriber.read(k.Suback) == k.Suback(1, [2])
    subscriber.close()
    publisher = Raw(port, "publisher", clean=True)
    publisher.send(k.Publish("t", b"first", 1, packet_id=1))
    assert publisher.read(k.Ack) == k.Ack(p.PUBACK, 1)
    for number in (2, 3):
        publisher.send(k.Publish("t", b"%d" % number, 2, packet_id=number))
        assert publisher.read(k.Ack) == k.Ack(p.PUBREC, number)
    server.kill()
    server.start()
    again = Raw(port, "publisher", clean=False)
    assert isinstance(again.connack, k.Connack) and again.connack.session_present
    for number in (2, 3):  # As if PUBREC had been lost.
        again.send(k.Publish("t", b"%d" % number, 2, dup=True, packet_id=number))
        assert again.read(k.Ack) == k.Ack(p.PUBREC, number)
        again.send(k.Ack(p.PUBREL, number))
        assert again.read(k.Ack) == k.Ack(p.PUBCOMP, number)
    again.send(k.Publish("t", b"last", 1, packet_id=4))
    assert again.read(k.Ack) == k.Ack(p.PUBACK, 4)
    back = Raw(port, "subscriber", clean=False)
    assert isinstance(back.connack, k.Connack) and back.connack.session_present
    got = [back.read(k.Publish) for _ in range(4)]
    assert [one.payload for one in got if isinstance(one, k.Publish)] == [b"first", b"2", b"3", b"last"]
    with pytest.raises(TimeoutError):
        back.socket.settimeout(0.5)
        back.read(k.Publish)
