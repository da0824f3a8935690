"""Limits the number of TLS handshakes of clients, and reads the headers of proxies.

An event loop that listens with TLS tells nobody of a connection before its handshake is over. Until then it holds a
descriptor and some tens of kilobytes of OpenSSL's, for as long as a handshake may take, and nothing limits how many
there are. So listeners with TLS accept sockets here. Each is counted (`Unauthenticated`) while the loop does
its handshake; if there are too many, one of them is closed.

Listeners of the PROXY protocol (`proxy_protocol`) do so as well, with TLS or without: who the client is, is known when
the header was read, which comes before everything else. A connection that does not begin with one is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import Final

from leveret.node.sockets.proxy_protocol import BadHeader, Header, parse
from leveret.node.sockets.unauthenticated import Unauthenticated

logger = logging.getLogger("leveret.connection")

HANDSHAKES_MAX: Final = 1_024  # Handshakes at a time, of all listeners of a node.
SHORT: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
SHORT_S: Final = 1.0  # The pause after a shortage of descriptors or memory.

HEADER_S: Final = 5.0  # For the header of a proxy.

Accept = Callable[[], asyncio.Protocol]
AcceptProxied = Callable[[Header], asyncio.Protocol]


class TlsHandshakes:
    """All TLS handshakes of one node."""

    def __init__(self, loop: asyncio.AbstractEventLoop, handshakes_max: int = HANDSHAKES_MAX) -> None:
        self.loop = loop
        self.handshakes_max = handshakes_max
        self.shares_ports = False  # Other processes may listen at the port that is opened next.
        self._under_way: Unauthenticated[socket.socket] = Unauthenticated()
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(
        self,
        accept: Accept,
        host: str | None,
        port: int,
        tls: ssl.SSLContext,
        timeout_s: float | None,
        backlog: int = 100,
    ) -> TlsServer:
        """Listens like the loop's `create_server`. Raises OSError."""
        sockets = await self._bind(host, port, backlog)
        return TlsServer(
            self, sockets, lambda client, peer: self._begin(client, peer, self._greet(client, accept, tls, timeout_s))
        )

    async def listen_for_proxies(
        self,
        accept: AcceptProxied,
        host: str | None,
        port: int,
        tls: ssl.SSLContext | None,
        timeout_s: float | None,
        backlog: int = 100,
    ) -> TlsServer:
        """Listens for connections that begin with a header of the PROXY protocol. Raises OSError."""
        sockets = await self._bind(host, port, backlog)
        return TlsServer(
            self,
            sockets,
            lambda client, peer: self._begin(client, peer, self._greet_proxied(client, peer, accept, tls, timeout_s)),
        )

    async def _bind(self, host: str | None, port: int, backlog: int) -> list[socket.socket]:
        shares = self.shares_ports  # Of this call, whatever else is opened meanwhile.
        found = await self.loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        sockets: list[socket.socket] = []
        try:
            for family, _, _, _, address in dict.fromkeys(found):
                sockets.append(socket.create_server(address, family=family, backlog=backlog, reuse_port=shares))
                sockets[-1].setblocking(False)
        except OSError:
            for one in sockets:
                one.close()
            raise
        return sockets

    def _begin(self, client: socket.socket, host: str, greet: Coroutine[None, None, None]) -> None:
        if len(self._under_way) >= self.handshakes_max:
            self._evict()
        self._under_way.add(client, host)
        task = self.loop.create_task(greet)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _greet_proxied(
        self,
        client: socket.socket,
        peer: str,
        accept: AcceptProxied,
        tls: ssl.SSLContext | None,
        timeout_s: float | None,
    ) -> None:
        try:
            header = await asyncio.wait_for(self._header(client), HEADER_S)
        except (OSError, EOFError, BadHeader) as error:  # Among them TimeoutError.
            # Load balancers try ports without a word.
            level = logging.DEBUG if isinstance(error, EOFError) else logging.WARNING
            told = str(error) or "it sent no header of the PROXY protocol in time"
            logger.log(level, "a connection from %s is refused: %s", peer, told)
            self._under_way.discard(client)
            client.close()
        else:
            await self._greet(client, lambda: accept(header), tls, timeout_s)

    async def _header(self, client: socket.socket) -> Header:
        """Reads the header of a proxy, and not a byte behind it."""
        data = b""
        while True:
            found = parse(data)
            if isinstance(found, Header):
                return found
            more = await self.loop.sock_recv(client, found)
            if not more:
                raise EOFError("it was closed before its header of the PROXY protocol was whole")
            data += more

    async def _greet(
        self, client: socket.socket, accept: Accept, tls: ssl.SSLContext | None, timeout_s: float | None
    ) -> None:
        seconds = None if tls is None else timeout_s
        try:
            await self.loop.connect_accepted_socket(accept, client, ssl=tls, ssl_handshake_timeout=seconds)
        except OSError as error:  # Among them SSLError, which `tls_failures` has logged.
            logger.debug("a TLS handshake failed: %s", error)
        finally:
            self._under_way.discard(client)

    def _evict(self) -> None:
        oldest = self._under_way.evict()
        assert oldest is not None
        _end(oldest)
        count = self._under_way.to_tell(self.loop.time())
        if count:
            logger.warning(
                "%d connections were closed before or during their TLS handshake: at most %d may be under way",
                count,
                self.handshakes_max,
            )

    def close(self) -> None:
        for client in list(self._under_way):
            _end(client)


class TlsServer:
    """Listening sockets, with as much of asyncio's `Server` as is used here."""

    def __init__(
        self, entrance: TlsHandshakes, sockets: list[socket.socket], begin: Callable[[socket.socket, str], None]
    ) -> None:
        self.sockets = sockets
        self._loop = entrance.loop
        self._begin = begin
        self._tasks = [self._loop.create_task(self._accept(one)) for one in sockets]

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, address = await self._loop.sock_accept(listener)
            except OSError as error:  # No descriptors are left, or the client has disconnected.
                logger.debug("a connection for TLS could not be accepted: %s", error)
                await asyncio.sleep(SHORT_S if error.errno in SHORT else 0)
            else:
                self._begin(client, str(address[0]))
                await asyncio.sleep(0)  # Many connections here must not make other callbacks wait.

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for one in self.sockets:
            self._loop.remove_reader(one)
            one.close()


def _end(client: socket.socket) -> None:
    """Shuts a socket down. The loop, which owns it, notices."""
    with contextlib.suppress(OSError):
        client.shutdown(socket.SHUT_RDWR)
