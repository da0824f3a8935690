"""Limits the number of TLS handshakes of clients.

An event loop that listens with TLS tells nobody of a connection before its handshake is over. Until then it holds a
descriptor and some tens of kilobytes of OpenSSL's, for as long as a handshake may take, and nothing limits how many
there are. So listeners with TLS accept sockets here. Each is counted (`Unauthenticated`) while the loop does
its handshake; if there are too many, one of them is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Final

from leveret.node.sockets.unauthenticated import Unauthenticated

logger = logging.getLogger("leveret.connection")

HANDSHAKES_MAX: Final = 1_024  # Handshakes at a time, of all listeners of a node.
SHORT: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
SHORT_S: Final = 1.0  # The pause after a shortage of descriptors or memory.

Accept = Callable[[], asyncio.Protocol]


class TlsHandshakes:
    """All TLS handshakes of one node."""

    def __init__(self, loop: asyncio.AbstractEventLoop, handshakes_max: int = HANDSHAKES_MAX) -> None:
        self.loop = loop
        self.handshakes_max = handshakes_max
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
        found = await self.loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        sockets: list[socket.socket] = []
        try:
            for family, _, _, _, address in dict.fromkeys(found):
                sockets.append(socket.create_server(address, family=family, backlog=backlog))
                sockets[-1].setblocking(False)
        except OSError:
            for one in sockets:
                one.close()
            raise
        return TlsServer(self, sockets, lambda client, peer: self._begin(client, peer, accept, tls, timeout_s))

    def _begin(
        self, client: socket.socket, host: str, accept: Accept, tls: ssl.SSLContext, timeout_s: float | None
    ) -> None:
        if len(self._under_way) >= self.handshakes_max:
            self._evict()
        self._under_way.add(client, host)
        task = self.loop.create_task(self._greet(client, accept, tls, timeout_s))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _greet(self, client: socket.socket, accept: Accept, tls: ssl.SSLContext, timeout_s: float | None) -> None:
        try:
            await self.loop.connect_accepted_socket(accept, client, ssl=tls, ssl_handshake_timeout=timeout_s)
        except OSError as error:  # Among them SSLError, which `tls_failures` has logged.
            logger.debug("a TLS handshake came to nothing: %s", error)
        finally:
            self._under_way.discard(client)

    def _evict(self) -> None:
        oldest = self._under_way.evict()
        assert oldest is not None
        _end(oldest)
        count = self._under_way.to_tell(self.loop.time())
        if count:
            logger.warning(
                "%d connections were closed in their TLS handshake: there are %d at a time", count, self.handshakes_max
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
