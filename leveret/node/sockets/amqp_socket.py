"""A client's socket: moves bytes between the transport and the AMQP connection, and decides when to stop reading.

To stop reading is the only way to slow a publisher down; TCP carries it to the other end. There are five reasons for
it, each with its own end:

- *held*: the connection waits for the answer to its last request; or it has published during a memory or disk alarm,
  was sent connection.blocked, and waits for the end of the alarm; or publishes to many queues have used up the turn,
  and it waits for one of the next.
- *paced*: it fills a queue faster than the consumers there empty it. It may go on when the queue is down to half, or
  after a short while in any case, since stuck consumers are no reason to stop a publisher for ever.
- *behind*: too much waits for the disk.
- *away*: it publishes to a queue of another node, which takes no more for now.
- *deaf*: it does not read the answers (messages got and returned, confirms) to its requests, and sends more.

A consumer that does not read gets no more deliveries above a limit of unsent bytes. That limit is far below the one for
being deaf, so that a client that writes its acks before it reads on never blocks itself.
"""

from __future__ import annotations

import asyncio
import logging
from sys import intern
from typing import TYPE_CHECKING, Final, cast

from leveret.base.hosts import is_loopback
from leveret.node.sockets.certificates import LoginFrom, login_name
from leveret.node.sockets.lingering import asked_s
from leveret.sessions.amqp.connection import Connection
from leveret.sessions.peer import Peer

if TYPE_CHECKING:
    from leveret.broker.client_connection import ClientConnection
    from leveret.node.node import Node
    from leveret.node.sockets.proxy_protocol import Header

logger = logging.getLogger("leveret.connection")

HELD: Final = 1
PACED: Final = 2
BEHIND: Final = 4
DEAF: Final = 8
AWAY: Final = 16

UNSENT_BYTES_MAX: Final = 512 * 1024
UNHEARD_BYTES_MAX: Final = 8 << 20
APART_BYTES: Final = 4096  # Pieces of this size on average are not joined to be written.
CLOSE_TIMEOUT_S: Final = 10.0
PACE_S: Final = 0.02


class AmqpSocket(asyncio.Protocol):
    """The socket of one accepted AMQP connection."""

    __slots__ = ("closing_at", "connection", "header", "node", "paused", "timer", "transport")

    connection: ClientConnection

    def __init__(self, node: Node, header: Header | None = None) -> None:
        self.node = node
        self.header = header  # Of the PROXY protocol.
        self.paused = 0
        self.closing_at: float | None = None
        self.timer: asyncio.TimerHandle | None = None

    # -- Calls by the transport ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        peer = peer_of(self.transport, self.node.settings.ssl_cert_login_from, self.header)
        self.connection = self.new_connection(peer)
        self.connection.attend(self._on_released, self._on_entered)
        if not self.node.on_accepted(self):
            self.transport.abort()
            return
        self.transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)
        self.node.set_socket_options(self.transport.get_extra_info("socket"))
        timeout_ms = self.login_timeout_ms()
        if timeout_ms is not None:
            self.timer = self.node.loop.call_later(timeout_ms / 1000, self._on_handshake_timeout)

    def new_connection(self, peer: Peer) -> ClientConnection:
        return Connection(self.node.broker, peer, self.node.limits)

    def login_timeout_ms(self) -> int | None:
        return self.node.settings.handshake_timeout_ms

    def data_received(self, data: bytes) -> None:
        connection, node = self.connection, self.node
        node.set_clock()
        try:
            connection.receive(data)
        except Exception:  # A bug must affect this client only, and be logged.
            logger.exception("connection %s: internal error", connection.describe())
            connection.close(541, "")
        if connection.held:
            self.pause(HELD)
        if connection.crowded_queue is not None and (queue := connection.take_crowded_queue()) is not None:
            if queue.is_local:
                self.pause(PACED)
                node.paced[self] = queue
                node.loop.call_later(PACE_S, self._on_paced)
            elif node.broker.alarm is None:  # During an alarm it is read until it publishes again.
                self.pause(AWAY)
                node.away[self] = queue
        if connection.has_published and not connection.closing:
            node.on_published(self)
        node.schedule()

    def pause_writing(self) -> None:
        self.connection.output.set_writable(False)

    def resume_writing(self) -> None:
        connection = self.connection
        connection.output.set_writable(True)
        self.resume(DEAF)
        if connection.closed:
            self.flush()  # Writes its last answer, if that is not written yet.
        elif connection.on_room():
            self.node.schedule()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.connection.on_socket_lost()
        self.node.on_lost(self)
        self.connection.leave_alone()
        self.node.schedule()

    # -- Pausing and resuming reading ----------------------------------------------------------------------------

    def pause(self, reason: int) -> None:
        if not self.paused and not self.transport.is_closing():
            self.transport.pause_reading()
        self.paused |= reason

    def resume(self, reason: int) -> None:
        if self.paused & reason:
            self.paused &= ~reason
            if not self.paused and not self.transport.is_closing():
                self.transport.resume_reading()

    def _on_entered(self) -> None:
        self.node.unauthenticated.discard(self)
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def _on_released(self) -> None:
        self.resume(HELD)

    def _on_paced(self) -> None:
        self.node.paced.pop(self, None)
        self.resume(PACED)

    # -- Writing -------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Writes the output of the connection."""
        connection = self.connection
        output = connection.output
        if output.pieces:
            is_apart = output.size > APART_BYTES * len(output.pieces)
            pieces = output.take()
            if is_apart:
                self.transport.writelines(pieces)
                output.on_written(sum(map(len, pieces)))
            else:
                data = b"".join(pieces)
                self.transport.write(data)
                output.on_written(len(data))
            if not output.is_writable and self.transport.get_write_buffer_size() > UNHEARD_BYTES_MAX:
                self.pause(DEAF)
        if connection.closed and output.is_writable:
            self._linger()
        elif (connection.closed or connection.closing) and self.closing_at is None:
            self.closing_at = self.node.loop.time()
            self.resume(~HELD)  # Reads on until the answer to the close; what comes before it is ignored.
        elif output.is_writable and connection.on_room():
            self.node.schedule()

    def _linger(self) -> None:
        """Hands the socket of a connection that is over, and has written nearly all of its output, to `lingering`: it
        is no connection any more, and the client is to close the socket."""
        transport, connection = self.transport, self.connection
        if self.paused and not transport.is_closing():
            transport.resume_reading()
        self.paused = 0
        self.connection_lost(None)
        if not transport.is_closing():
            seconds = asked_s(connection.heartbeat_s) if connection.was_asked_to_close else None
            self.node.lingerers.add(transport, seconds)

    def on_tick(self, now_ms: int) -> None:
        """Checks heartbeats, and ends a client that does not answer a close, or does not read the answer to its own."""
        if self.closing_at is not None:
            if self.node.loop.time() - self.closing_at > CLOSE_TIMEOUT_S:
                self.transport.abort()
        elif not self.connection.on_tick(now_ms, listening=not self.paused & ~DEAF):
            self.connection.blame(f"missed heartbeats from client, timeout: {self.connection.heartbeat_s}s")
            self.transport.abort()

    def evict(self) -> None:
        """Ends a connection that has not logged in, because a newer one needs its place."""
        self.transport.abort()

    def _on_handshake_timeout(self) -> None:
        if self.connection.vhost is None:
            self.connection.blame("{handshake_timeout,handshake}")
            self.transport.abort()


def peer_of(transport: asyncio.BaseTransport, login_from: LoginFrom, header: Header | None) -> Peer:
    host, port = (transport.get_extra_info("peername") or ("", 0))[:2]
    local_host, local_port = (transport.get_extra_info("sockname") or ("", 0))[:2]
    loopback = is_loopback(host) if header is None else header.is_loopback(host)
    if header is not None and header.ends is not None:
        host, port, local_host, local_port = header.ends
    tls = transport.get_extra_info("ssl_object") is not None
    certificate = login_name(transport, login_from) if tls else None
    web = transport.get_extra_info("websocket", False)
    # Very many connections come from a few hosts.
    return Peer(intern(host), port, intern(local_host), local_port, loopback, tls, certificate, web)
