"""The edge between a socket and its connection: heartbeats, closing, sizes."""

from __future__ import annotations

import socket
import time
from typing import Any

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker

from leveret.protocol import methods as m
from leveret.protocol.frames import HEARTBEAT, HEARTBEAT_FRAME
from tests.support.raw import RawClient
from tests.support.servers import Server, until
from tests.system.conftest import Start


def test_heartbeats_keep_an_idle_client(broker: Server, name: str) -> None:
    connection = broker.connect(heartbeat=2)
    channel = connection.channel()
    connection.process_data_events(5.2)  # It would be cut after four, and a few ticks later at most.
    channel.queue_declare(name)
    assert connection.is_open


def test_server_sends_heartbeats_and_cuts_the_silent(broker: Server) -> None:
    with RawClient(broker.port) as client:
        silent_since = time.monotonic()
        client.open(heartbeat_s=1)
        kinds = []
        with pytest.raises(EOFError):
            while True:
                kinds.append(client.frame()[0])
        assert len(kinds) >= 2 and set(kinds) == {HEARTBEAT}
        assert time.monotonic() - silent_since >= 1.5  # Two intervals, less what the clock rounds.
    until(lambda: "missed heartbeats from client" in broker.log(), "the log line")


def test_heartbeats_from_the_client_are_enough(broker: Server) -> None:
    with RawClient(broker.port) as client:
        client.open(heartbeat_s=2)
        for _ in range(6):  # The server's beat is the clock: one each second. Two intervals are over after four.
            assert client.frame()[0] == HEARTBEAT
            client.send(HEARTBEAT_FRAME)
        client.method(m.BasicQos())
        client.expect(m.BasicQosOk)


def test_shutdown_tells_clients(start: Start) -> None:
    server = start()
    connection = server.connect()
    connection.channel().queue_declare("q")
    with RawClient(server.port) as raw, RawClient(server.port) as stranger:
        raw.open()
        stranger.begin()
        assert server.stop() == 0
        close = raw.expect(m.ConnectionClose)
        assert (close.reply_code, close.failed_class_id, close.failed_method_id) == (320, 0, 0)
        assert close.reply_text == "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'"
        assert stranger.is_cut()
    with pytest.raises(ConnectionClosedByBroker) as caught:
        connection.process_data_events(60)
    assert caught.value.reply_code == 320


def test_closing_by_the_client(broker: Server) -> None:
    with RawClient(broker.port) as client:
        client.open()
        client.method(m.ConnectionClose(200, "bye"), 0)
        client.expect(m.ConnectionCloseOk)
        client.socket.shutdown(socket.SHUT_WR)  # It is the client's part to end the socket.
        assert client.is_cut()


def test_message_too_large(start: Start) -> None:
    """The channel dies, at the header, and the connection is fit for more."""
    connection = start("max_message_size = 1000").connect()
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("q")
    channel.basic_publish("", "q", b"x" * 1000)
    with pytest.raises(ChannelClosedByBroker) as caught:
        channel.basic_publish("", "q", b"x" * 1001)
    assert caught.value.reply_code == 406
    assert caught.value.reply_text == (
        "PRECONDITION_FAILED - message size 1001 is larger than configured max size 1000"
    )
    again = connection.channel()
    assert len(again.basic_get("q", auto_ack=True)[2]) == 1000
    assert again.basic_get("q") == (None, None, None)
    large = connection.channel()
    with pytest.raises(ChannelClosedByBroker):
        large.confirm_delivery()
        large.basic_publish("", "q", b"x" * 1_000_000)
    assert again.basic_get("q") == (None, None, None)


@pytest.mark.parametrize(
    ("tune", "text"),
    [
        ((2048, 131_072), "negotiated channel_max = 2048 is higher than the maximum allowed value (2047)"),
        ((0, 131_072), "negotiated channel_max = 0 is higher than the maximum allowed value (2047)"),
        ((1, 131_073), "negotiated frame_max = 131073 is higher than the maximum allowed value (131072)"),
        ((1, 4095), "negotiated frame_max = 4095 is lower than the minimum allowed value (4096)"),
    ],
)
def test_tune_out_of_bounds(broker: Server, tune: tuple[int, int], text: str) -> None:
    with RawClient(broker.port) as client:
        client.begin()
        client.log_in()
        client.expect(m.ConnectionTune)
        client.method(m.ConnectionTuneOk(*tune, 0), 0)
        close = client.expect(m.ConnectionClose)
        assert (close.reply_code, close.reply_text) == (530, f"NOT_ALLOWED - {text}")


def test_channel_max(broker: Server) -> None:
    connection = broker.connect(channel_max=3)
    channels = [connection.channel() for _ in range(3)]
    assert [channel.channel_number for channel in channels] == [1, 2, 3]
    channels[1].close()
    assert connection.channel().channel_number == 2


def test_frame_larger_than_agreed(broker: Server, name: str) -> None:
    with RawClient(broker.port) as client:
        client.open(frame_max=4096)
        client.send(b"\x03\x00\x01" + (4097).to_bytes(4, "big"))
        close = client.expect(m.ConnectionClose)
        assert close.reply_code == 501


@pytest.mark.parametrize("count", [1, 100])
def test_loss_of_a_client_gives_back_what_it_had(broker: Server, name: str, count: int) -> None:
    channel = broker.channel(confirms=True)
    channel.queue_declare(name)
    for _ in range(count):
        channel.basic_publish("", name, b"x", pika.BasicProperties(delivery_mode=2))
    with RawClient(broker.port) as client:
        client.open()
        client.method(m.BasicConsume(queue=name))
        client.expect(m.BasicConsumeOk)
        client.expect(m.BasicDeliver)
    got: list[Any] = []
    channel.basic_consume(name, lambda *message: got.append(message[1].redelivered))
    while len(got) < count:
        channel.connection.process_data_events(1)
    assert got == [True] * count
