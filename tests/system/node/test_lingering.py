"""After a connection has ended: its socket is read until the client closes it, and nobody waits for that."""

from __future__ import annotations

import asyncio
import resource
import shutil
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest

from leveret.node.sockets.lingering import (
    ASKED_S_MAX,
    DISCARDED_BYTES_MAX,
    ENDED_S,
    LINGERING_MAX,
    Lingerers,
    asked_s,
)
from leveret.protocol import methods as m
from leveret.protocol.frames import PROTOCOL_HEADER
from tests.support.certificates import issue
from tests.support.raw import RawClient, publish_frames
from tests.support.servers import Server, until
from tests.system.conftest import Start

ESTABLISHED = 1  # The first byte of Linux's TCP_INFO: neither end has closed the socket.
MESSAGES = publish_frames("", "nowhere", bytes(1000)) * 100


def state(client: RawClient) -> int:
    return client.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]


def pass_by(server: Server) -> None:
    """Another client is served meanwhile: the server has done all that it was to do at once."""
    with RawClient(server.port) as other:
        other.open()


def test_a_client_that_closes_with_publishes_under_way(broker: Server) -> None:
    """It is told of the end it asked for, can go on to write, and is the first to close the socket."""
    with RawClient(broker.port) as client:
        client.open()
        client.send(MESSAGES)
        client.method(m.ConnectionClose(200, "bye"), 0)
        for _ in range(20):
            client.send(MESSAGES)
        client.expect(m.ConnectionCloseOk)
        for _ in range(3):
            pass_by(broker)
            client.send(MESSAGES)
        assert state(client) == ESTABLISHED


def test_a_client_that_does_not_close_its_socket_is_cut(broker: Server) -> None:
    with RawClient(broker.port) as client:
        client.open(heartbeat_s=1)
        client.method(m.ConnectionClose(200, "bye"), 0)
        client.expect(m.ConnectionCloseOk)
        assert client.is_cut()


def test_a_client_that_writes_on_without_end_is_cut(broker: Server) -> None:
    with RawClient(broker.port) as client:
        client.open()
        client.method(m.ConnectionClose(200, "bye"), 0)
        client.expect(m.ConnectionCloseOk)
        piece = bytes(1 << 20)
        for _ in range(DISCARDED_BYTES_MAX // len(piece)):
            client.send(piece)
        with pytest.raises(ConnectionError):
            while True:
                client.send(piece)


def test_an_answered_close_of_the_broker_is_the_end(broker: Server) -> None:
    """The client sees it at once, though it is still writing."""
    with RawClient(broker.port) as client:
        client.open()
        client.method(m.ConnectionOpen(), 0)
        assert client.expect(m.ConnectionClose).reply_code == 504
        client.method(m.ConnectionCloseOk(), 0)
        client.send(MESSAGES)
        assert client.is_cut()


@pytest.mark.parametrize("words", [b"\0" * 8, b"GET / HTTP/1.1\r\n\r\n", b"\0" * 3_000_000], ids=["8", "18", "3000000"])
def test_a_stranger_gets_the_answer_whatever_it_sends(broker: Server, words: bytes) -> None:
    """The socket must not be closed with bytes unread: they would be answered with a reset, and the answer be lost."""
    for _ in range(20):
        with RawClient(broker.port) as client:
            client.send(words)
            pass_by(broker)
            assert client.socket.recv(100) == PROTOCOL_HEADER
            assert client.socket.recv(100) == b""


def test_a_refused_login_is_told_whatever_is_sent_behind_it(broker: Server) -> None:
    with RawClient(broker.port) as client:
        client.begin()
        client.log_in(response=b"\0guest\0wrong")
        client.send(MESSAGES)
        assert client.expect(m.ConnectionClose).reply_code == 403
        client.method(m.ConnectionCloseOk(), 0)
        assert client.socket.recv(100) == b""


def test_it_is_no_connection_any_more(start: Start) -> None:
    """It takes nobody's place, and a stop does not wait for it."""
    server = start("connection_max = 1\nunauthenticated_connections_max = 1\n")
    ended = []
    for _ in range(3):
        ended.append(RawClient(server.port).open())
        ended[-1].method(m.ConnectionClose(200, "bye"), 0)
        ended[-1].expect(m.ConnectionCloseOk)
    for _ in range(3):
        ended.append(RawClient(server.port))
        ended[-1].send(b"GET / HTTP/1.1\r\n\r\n")
        assert ended[-1].read(8) == PROTOCOL_HEADER
    with RawClient(server.port) as client:
        client.open()
        assert server.stop() == 0
    for each in ended:
        assert each.is_cut()
        each.socket.close()


def test_they_make_room_where_descriptors_are_short(start: Start) -> None:
    server = start()
    with RawClient(server.port) as ended:
        ended.open()
        ended.method(m.ConnectionClose(200, "bye"), 0)
        ended.expect(m.ConnectionCloseOk)
        pass_by(server)
        assert state(ended) == ESTABLISHED
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (102, 102))  # For one client.
        until(lambda: _is_let_in(server) and ended.is_cut(), "its place")


def _is_let_in(server: Server) -> bool:
    with RawClient(server.port) as other:
        other.begin()
        return True


# -- TLS -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return issue(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def tls_server(start: Start, certificates: Path) -> Server:
    return start(
        f"listeners.ssl.1 = 127.0.0.1:0\nssl_options.certfile = {certificates}/server.pem\n"
        f"ssl_options.keyfile = {certificates}/server.key\nssl_options.cacertfile = {certificates}/ca.pem\n"
    )


def tls_client(server: Server, certificates: Path) -> RawClient:
    client = RawClient(server.tls_port)
    context = ssl.create_default_context(cafile=f"{certificates}/ca.pem")
    client.socket = context.wrap_socket(client.socket, server_hostname="127.0.0.1")
    return client


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl on this machine")
def test_over_tls(tls_server: Server, certificates: Path) -> None:
    with tls_client(tls_server, certificates) as client:
        client.open()
        client.send(MESSAGES)
        client.method(m.ConnectionClose(200, "bye"), 0)
        for _ in range(20):
            client.send(MESSAGES)
        client.expect(m.ConnectionCloseOk)
        for _ in range(3):
            pass_by(tls_server)
            client.send(MESSAGES)
        assert state(client) == ESTABLISHED


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl on this machine")
def test_a_stranger_over_tls(tls_server: Server, certificates: Path) -> None:
    """There is no closing of one direction: it is cut when its time is over."""
    with tls_client(tls_server, certificates) as client:
        client.send(b"\0" * 1_000_000)
        pass_by(tls_server)
        assert client.read(8) == PROTOCOL_HEADER
        assert client.is_cut()


# -- By themselves -------------------------------------------------------------------------------------------------


class Wire(asyncio.Transport):
    """A socket that notes what becomes of it."""

    def __init__(self, *, half_closes: bool = True) -> None:
        super().__init__()
        self.half_closes = half_closes
        self.unsent = 0
        self.protocol: Any = None
        self.did: list[str] = []

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def can_write_eof(self) -> bool:
        return self.half_closes

    def write_eof(self) -> None:
        self.did.append("write_eof")

    def close(self) -> None:
        self.did.append("close")

    def abort(self) -> None:
        self.did.append("abort")


class Clock:
    """As much of a loop as is asked for."""

    def __init__(self) -> None:
        self.timers: list[tuple[float, Any]] = []

    def call_later(self, seconds: float, action: Any) -> Clock:
        self.timers.append((seconds, action))
        return self

    def cancel(self) -> None:
        self.timers.clear()


def lingering(seconds: float | None, **kind: bool) -> tuple[Lingerers, Wire, Clock]:
    clock, wire = Clock(), Wire(**kind)
    lingerers = Lingerers(clock)  # type: ignore[arg-type]
    lingerers.add(wire, seconds)
    return lingerers, wire, clock


def test_how_long() -> None:
    assert [asked_s(heartbeat_s) for heartbeat_s in (0, 1, 29, 30, 600)] == [30, 1, 29, 30, 30]
    assert lingering(7.0)[2].timers[0][0] == 7 and lingering(None)[2].timers[0][0] == ENDED_S < ASKED_S_MAX


def test_an_end_is_shown_only_where_the_broker_made_it() -> None:
    assert lingering(7.0)[1].did == []
    assert lingering(None)[1].did == ["write_eof"]
    assert lingering(None, half_closes=False)[1].did == []


@pytest.mark.parametrize(("unsent", "end"), [(0, "close"), (1, "abort")])
def test_when_the_time_is_over(unsent: int, end: str) -> None:
    lingerers, wire, clock = lingering(7.0)
    wire.unsent = unsent
    clock.timers[0][1]()
    assert wire.did == [end]
    wire.protocol.connection_lost(None)
    assert not lingerers.sockets and not clock.timers


def test_the_longest_make_room() -> None:
    clock = Clock()
    lingerers = Lingerers(clock)  # type: ignore[arg-type]
    wires = [Wire() for _ in range(LINGERING_MAX + 3)]
    for wire in wires:
        lingerers.add(wire, 7.0)
    assert len(lingerers.sockets) == LINGERING_MAX
    assert [wire.did for wire in wires[:4]] == [["abort"]] * 3 + [[]]
    lingerers.keep(-1)
    assert not lingerers.sockets
    lingerers.add(wires[0], 7.0)
    lingerers.close()
    assert wires[0].did == ["abort", "close"]
