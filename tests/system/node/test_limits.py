"""What strangers and crowds may cost."""

from __future__ import annotations

import os
import resource
import signal
import socket
from typing import Any

import pika
import pytest

from leveret.node.system.alarms import sockets_limit
from leveret.protocol import methods as m
from leveret.protocol.frames import METHOD, PROTOCOL_HEADER, frame
from leveret.protocol.tables import table_from_python
from tests.support.consumer import Consumer, fill, numbers, waiting
from tests.support.raw import RawClient
from tests.support.servers import Server, until
from tests.system.conftest import Start

CROWD = 5_000
DESCRIPTORS_SPARE = 500
PERSISTENT = pika.BasicProperties(delivery_mode=2)
LOGIN = PROTOCOL_HEADER + m.encode(0, m.ConnectionStartOk({}, "PLAIN", b"\0guest\0guest", "en_US"))
# All that it takes to open a channel, in one breath.
RUSH = LOGIN + b"".join(
    m.encode(number, method)
    for number, method in (
        (0, m.ConnectionTuneOk(2047, 131_072, 60)),
        (0, m.ConnectionOpen()),
        (1, m.ChannelOpen()),
    )
)


def is_refused(port: int) -> bool:
    """Whether a new connection is cut before it hears a word."""
    with RawClient(port) as client:
        try:
            client.send(PROTOCOL_HEADER)
        except ConnectionError:
            return True
        try:
            client.receive()
        except (EOFError, ConnectionError):
            return True
        return False


def knock(server: Server, words: bytes) -> RawClient:
    """Connect and say that, all before the server looks: how slow this process is does not count as being silent."""
    os.kill(server.pid, signal.SIGSTOP)
    try:
        client = RawClient(server.port)
        client.send(words)
    finally:
        os.kill(server.pid, signal.SIGCONT)
    return client


@pytest.mark.parametrize(
    ("words", "answers"),
    [(b"", []), (PROTOCOL_HEADER, [m.ConnectionStart]), (LOGIN, [m.ConnectionStart, m.ConnectionTune])],
    ids=["silent", "greeted", "logged in"],
)
def test_handshake_timeout(start: Start, words: bytes, answers: list[type[m.Method]]) -> None:
    """However far it got, a client that stops half-way is cut."""
    server = start("handshake_timeout = 1000")
    with knock(server, RUSH) as quick:
        while not isinstance(quick.receive(), m.ChannelOpenOk):
            pass
        with knock(server, words) as client:
            for answer in answers:
                client.expect(answer)
            assert client.is_cut()
            until(lambda: "{handshake_timeout,handshake}" in server.log(), "the log line")
        quick.method(m.BasicQos())  # Who is in stays in, and has been in for longer than a stranger may.
        quick.expect(m.BasicQosOk)


@pytest.mark.parametrize("size", [8193, 1 << 20, (1 << 32) - 1])
def test_large_frame_before_login(broker: Server, size: int) -> None:
    """Refused at its head: none of its body is waited for."""
    with RawClient(broker.port) as client:
        client.begin()
        client.send(b"\x01\x00\x00" + size.to_bytes(4, "big"))
        close = client.expect(m.ConnectionClose)
        assert close.reply_code == 501


def test_largest_frame_before_login(broker: Server) -> None:
    with RawClient(broker.port) as client:
        client.begin()
        start_ok = m.encode_payload(
            m.ConnectionStartOk(table_from_python({"pad": "x" * 8000}), "PLAIN", b"\0guest\0guest", "en_US")
        )
        missing = 8184 - len(start_ok)
        start_ok = m.encode_payload(
            m.ConnectionStartOk(table_from_python({"pad": "x" * (8000 + missing)}), "PLAIN", b"\0guest\0guest", "en_US")
        )
        assert len(start_ok) == 8184
        client.send(frame(METHOD, 0, start_ok))
        client.expect(m.ConnectionTune)


@pytest.mark.parametrize(
    "greeting",
    [
        b"AMQP\x00\x00\x09\x00",
        b"AMQP\x00\x01\x00\x00",
        b"AMQP\x03\x01\x00\x00",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01",
        b"AMQX",
        b"\x00" * 100_000,
    ],
)
def test_garbage_instead_of_a_greeting(broker: Server, greeting: bytes) -> None:
    """The answer says what is spoken here."""
    with RawClient(broker.port) as client:
        client.send(greeting)
        assert client.read(8) == PROTOCOL_HEADER
        with pytest.raises(EOFError):
            client.read(1)


def test_greeting_byte_by_byte(broker: Server) -> None:
    with RawClient(broker.port) as client:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in PROTOCOL_HEADER:
            client.send(bytes((byte,)))
        client.expect(m.ConnectionStart)


def test_cap_on_strangers(start: Start) -> None:
    """Only those who have not logged in count. Where there are too many, the oldest of them makes room."""
    server = start("unauthenticated_connections_max = 5\nhandshake_timeout = infinity")
    inside = [RawClient(server.port).open() for _ in range(3)]
    strangers = [RawClient(server.port) for _ in range(5)]
    for client in strangers:
        client.begin()
    strangers[0].log_in()
    strangers[0].expect(m.ConnectionTune)
    strangers[0].method(m.ConnectionTuneOk(2047, 131_072, 0), 0)
    strangers[0].method(m.ConnectionOpen(), 0)
    strangers[0].expect(m.ConnectionOpenOk)
    newcomers = [RawClient(server.port).open() for _ in range(10)]  # Each has the place for a moment.
    newcomers += [RawClient(server.port) for _ in range(4)]
    for client in newcomers[10:]:
        client.begin()
    assert all(client.is_cut() for client in strangers[1:4])
    strangers[4].log_in()
    strangers[4].expect(m.ConnectionTune)
    for client in [*inside, strangers[0], *newcomers[:10]]:  # Who has logged in stays.
        client.method(m.ChannelOpen(), 2)
        client.expect(m.ChannelOpenOk)
    assert server.log().count("that had not logged in were closed") == 1
    for client in inside + strangers + newcomers:
        client.socket.close()


def test_strangers_make_room_where_descriptors_are_short(start: Start) -> None:
    server = start("handshake_timeout = infinity")
    server.channel()
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (160, 160))
    strangers = [RawClient(server.port) for _ in range(sockets_limit(160) + 20)]
    inside = [RawClient(server.port).open() for _ in range(5)]
    assert "file descriptor limit alarm" not in server.log()
    for client in strangers + inside:
        client.socket.close()


def test_connection_max(start: Start) -> None:
    server = start("connection_max = 3")
    clients = [RawClient(server.port).open() for _ in range(3)]
    assert is_refused(server.port)
    clients[0].socket.close()
    until(lambda: not is_refused(server.port), "room for one more")
    assert "connection_max (3) is reached" in server.log()
    for client in clients:
        client.socket.close()


def crowd_size() -> int:
    """As many connections as this process may have, both ends counted where they share the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CROWD + DESCRIPTORS_SPARE
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return min(CROWD, limit - DESCRIPTORS_SPARE, sockets_limit(limit) - 2)


def test_so_many_descriptors_and_no_more(start: Start) -> None:
    """Who comes too late is turned away until somebody goes. Those who are there do not notice, nor does the disk."""
    server = start("unauthenticated_connections_max = 6000\nsegment_bytes = 1MiB\n")
    channel = server.channel(confirms=True)
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (160, 160))
    limit = sockets_limit(160)
    crowd = [RawClient(server.port).open() for _ in range(limit - 1)]
    assert is_refused(server.port) and is_refused(server.port)
    assert server.log().count("New connections will not be accepted until this alarm clears") == 1
    channel.queue_declare("q", durable=True)
    for _ in range(300):
        channel.basic_publish("", "q", bytes(10_000), PERSISTENT)
    assert waiting(channel, "q") == 300
    for client in crowd[: limit // 10]:
        client.socket.close()
    until(lambda: not is_refused(server.port), "there is room again")
    assert "file descriptor limit alarm cleared" in server.log()
    for client in crowd:
        client.socket.close()


def test_files_are_written_without_a_free_descriptor(start: Start) -> None:
    """The limit falls below what is open: nothing can be opened any more, and yet segments are begun and declarations
    are kept. Afterwards all is as before."""
    server = start("segment_bytes = 1MiB\n")
    channel = server.channel(confirms=True)
    channel.queue_declare("q", durable=True)
    _, hard = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{server.pid}/fd")), hard))
    for _ in range(300):
        channel.basic_publish("", "q", bytes(10_000), PERSISTENT)
    channel.queue_declare("r", durable=True)
    assert is_refused(server.port)
    assert len(server.segments()) > 2 and waiting(channel, "q") == 300
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (hard, hard))
    until(lambda: not is_refused(server.port), "connections are accepted again")
    server.kill()
    server.start()
    assert waiting(server.channel(), "q") == 300


def test_five_thousand_idle_connections(start: Start, record_property: Any, capsys: Any) -> None:
    """They cost little memory, and others hardly notice them."""
    size = crowd_size()
    server = start(
        "log.connection.level = warning\nunauthenticated_connections_max = 6000\nhandshake_timeout = infinity"
    )
    before = server.resident_bytes()
    crowd: list[RawClient] = []
    try:
        for _ in range(size):
            crowd.append(RawClient(server.port))
            crowd[-1].send(RUSH)
        for client in crowd:
            while not isinstance(client.receive(), m.ChannelOpenOk):
                pass
        each = (server.resident_bytes() - before) / size
        with capsys.disabled():
            print(f" [{size} connections with a channel, {each / 1024:.1f} KiB each]", end="")
        record_property("bytes_per_idle_connection", round(each))
        assert each < 16 * 1024
        channel = server.channel()
        channel.queue_declare("q", durable=True)
        consumer = Consumer(channel, "q", auto_ack=True)
        fill(channel, "q", range(1000), properties=pika.BasicProperties(delivery_mode=2))
        assert consumer.bodies(1000) == numbers(*range(1000))
        for client in crowd[:: size // 50]:
            client.method(m.BasicPublish(routing_key="nowhere"))
            client.send(frame(2, 1, b"\x00\x3c\x00\x00" + bytes(10)))
            client.method(m.BasicQos())
            client.expect(m.BasicQosOk)
    finally:
        for client in crowd:
            client.socket.close()
    until(lambda: server.channel().connection.is_open and len(open_sockets(server)) < 100, "the crowd to be gone")


def open_sockets(server: Server) -> list[str]:
    found = []
    for name in os.listdir(f"/proc/{server.pid}/fd"):
        try:
            target = os.readlink(f"/proc/{server.pid}/fd/{name}")
        except FileNotFoundError:
            continue
        if target.startswith("socket:"):
            found.append(target)
    return found
