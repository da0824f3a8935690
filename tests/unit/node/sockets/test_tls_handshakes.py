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
