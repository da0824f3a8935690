"""TLS handshakes that nobody finishes, with both event loops."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
import uvloop

from leveret.node.sockets import tls_handshakes
from leveret.node.sockets.proxy_protocol import Ends, Header
from leveret.node.sockets.tls_handshakes import TlsHandshakes
from tests.support.certificates import issue


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return issue(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(params=["asyncio", "uvloop"])
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        yield runner


class Echo(asyncio.Protocol):
    made = 0
    lost = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert transport.get_extra_info("ssl_object") is not None
        assert transport.get_extra_info("peername")[0] == "127.0.0.1"
        self.transport = cast(asyncio.Transport, transport)
        Echo.made += 1

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        Echo.lost += 1


def test_those_who_do_not_finish_make_room(runner: asyncio.Runner, folder: Path) -> None:
    async def attack() -> None:
        loop = asyncio.get_running_loop()
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(folder / "server.pem", folder / "server.key")
        entrance = TlsHandshakes(loop, handshakes_max=5)
        server = await entrance.listen(Echo, "127.0.0.1", 0, context, 60.0)
        port = server.sockets[0].getsockname()[1]
        made, lost = Echo.made, Echo.lost
        silent = []
        for _ in range(20):
            one = socket.create_connection(("127.0.0.1", port))
            one.setblocking(False)
            silent.append(one)
        asked = ssl.create_default_context(cafile=folder / "ca.pem")
        for _ in range(5):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=asked)
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
            writer.close()
        for one in silent[:15]:
            with contextlib.suppress(ConnectionError):
                assert await loop.sock_recv(one, 1) == b""
        assert len(entrance._under_way) <= 5
        entrance.close()
        for one in silent[15:]:
            with contextlib.suppress(ConnectionError):
                assert await loop.sock_recv(one, 1) == b""
        server.close()
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", port)
        for one in silent:
            one.close()
        while entrance._tasks or Echo.lost < lost + 5:
            await asyncio.sleep(0)
        assert (Echo.made, Echo.lost) == (made + 5, lost + 5)

    runner.run(attack())


def test_an_address_that_is_taken(runner: asyncio.Runner, folder: Path) -> None:
    async def listen_twice() -> None:
        entrance = TlsHandshakes(asyncio.get_running_loop())
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        server = await entrance.listen(Echo, "127.0.0.1", 0, context, 60.0)
        with pytest.raises(OSError):
            await entrance.listen(Echo, "127.0.0.1", server.sockets[0].getsockname()[1], context, 60.0)
        server.close()

    runner.run(listen_twice())


class Named(asyncio.Protocol):
    """Answers with the address that a header has, and what came behind it."""

    def __init__(self, header: Header) -> None:
        self.header = header

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        assert self.header.ends == Ends("192.0.2.7", 1, "192.0.2.1", 2)
        self.transport.write(data)


LINE = b"PROXY TCP4 192.0.2.7 192.0.2.1 1 2\r\n"


@pytest.mark.parametrize("with_tls", [False, True])
def test_headers_of_proxies(runner: asyncio.Runner, folder: Path, with_tls: bool) -> None:
    async def pass_on() -> None:
        entrance = TlsHandshakes(asyncio.get_running_loop())
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(folder / "server.pem", folder / "server.key")
        tls = context if with_tls else None
        server = await entrance.listen_for_proxies(Named, "127.0.0.1", 0, tls, 60.0)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])
        if with_tls:
            writer.write(LINE)
            await writer.start_tls(ssl.create_default_context(cafile=folder / "ca.pem"), server_hostname="127.0.0.1")
            writer.write(b"hello")
        else:
            writer.write(LINE + b"hello")
        assert await reader.readexactly(5) == b"hello"
        writer.close()
        server.close()

    runner.run(pass_on())


def test_clients_without_a_header(runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those who say something else are refused at once, the silent when their time is over, or there are too many."""

    async def attack() -> None:
        entrance = TlsHandshakes(asyncio.get_running_loop(), handshakes_max=5)
        server = await entrance.listen_for_proxies(Named, "127.0.0.1", 0, None, None)
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"AMQP\0\0\x09\x01")
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(6)]
        assert await silent[0][0].read() == b""
        silent[1][1].write(LINE + b"hello")
        assert await silent[1][0].readexactly(5) == b"hello"
        entrance.close()
        for place in (2, 3, 4, 5):
            assert await silent[place][0].read() == b""
        monkeypatch.setattr(tls_handshakes, "HEADER_S", 0.05)
        reader, late = await asyncio.open_connection("127.0.0.1", port)
        late.write(LINE[:10])
        assert await reader.read() == b""
        for _, writer in (*silent, (reader, late)):
            writer.close()
        server.close()

    runner.run(attack())
