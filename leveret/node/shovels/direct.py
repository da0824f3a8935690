"""Connections of shovels to their own cluster: no socket, a pipe within the process.

Everything else is as for any client: the same bytes, the same back-pressure, the same permissions, those of the user
who set the shovel's parameter. Bytes arrive in the next pass of the event loop and never within the call that writes
them, since a node writes in the midst of its turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from leveret.client.machine import Closed
from leveret.metadata.rules.permissions import OPERATOR
from leveret.node.sockets.amqp_socket import AmqpSocket
from leveret.sessions.amqp.handshake import CAPABILITIES as SERVER_CAPABILITIES
from leveret.sessions.amqp.inner_connection import CAPABILITIES, InnerConnection
from leveret.sessions.peer import Peer

if TYPE_CHECKING:
    from leveret.client.amqp import Table
    from leveret.node.node import Node

HIGH_BYTES: Final = 512 << 10
SERVER_PROPERTIES: Final = b"".join(name.encode() for name in SERVER_CAPABILITIES)


class PipeEnd(asyncio.Transport):
    """One end of a pipe, as the transport of the protocol there."""

    def __init__(self, loop: asyncio.AbstractEventLoop, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.loop = loop
        self.protocol = protocol
        self.peer: PipeEnd
        self.inbox: list[bytes] = []
        self.inbox_bytes = 0
        self.high = HIGH_BYTES
        self.reads = True
        self.is_due = False
        self.is_paused = False  # This end was told not to write.
        self.has_ended = False  # The other end is closed; what it wrote before is in the inbox.
        self.is_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.is_closed or self.has_ended:
            return
        self.peer._arrive(bytes(data))
        if self.peer.inbox_bytes > self.high and not self.is_paused:
            self.is_paused = True
            self.protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def _arrive(self, data: bytes) -> None:
        if not self.is_closed:
            self.inbox.append(data)
            self.inbox_bytes += len(data)
            self._wake()

    def _wake(self) -> None:
        if not self.is_due and not self.is_closed and (self.inbox or self.has_ended) and self.reads:
            self.is_due = True
            self.loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        self.is_due = False
        if self.is_closed or not self.reads:
            return
        if self.inbox:
            data, self.inbox, self.inbox_bytes = b"".join(self.inbox), [], 0
            self.protocol.data_received(data)
            if self.peer.is_paused and self.inbox_bytes <= self.peer.high // 2:
                self.peer.is_paused = False
                self.peer.protocol.resume_writing()
            self._wake()
        elif self.has_ended:
            self.close()

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True
        self._wake()

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self.inbox, self.inbox_bytes = [], 0
        self.loop.call_soon(self.protocol.connection_lost, None)
        self.peer.has_ended = True
        self.peer.reads = True  # An end is seen even by who does not read.
        self.peer._wake()

    def abort(self) -> None:
        self.close()

    def get_write_buffer_size(self) -> int:
        return self.peer.inbox_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = HIGH_BYTES if high is None else high

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


class DirectSocket(AmqpSocket):
    """The broker's end of the pipe."""

    def open(self, transport: asyncio.Transport, user: str, vhost: str, name: str, properties: Table) -> None:
        node = self.node
        self.transport = transport
        number = node.broker.connection_count + 1
        connection = InnerConnection(node.broker, Peer("direct", number, node.settings.node_name, 0, True), node.limits)
        self.connection = connection
        connection.attend(self._on_released, self._on_entered)
        node.clients[self] = None
        node.by_output[connection.output] = self
        node.set_clock()
        connection.open(user, vhost, node.limits.frame_max, name, CAPABILITIES, dict(properties))

    def _linger(self) -> None:
        self.connection_lost(None)
        self.transport.close()


def connect(
    node: Node, protocol: asyncio.Protocol, user: str, vhost: str, name: str, properties: Table
) -> asyncio.Transport:
    """Connect a client's protocol to this node as a user; without a name: the operator. Raises Closed."""
    broker = node.broker
    if node.pausing.paused or not broker.arrivals.is_open:
        raise Closed("this node is paused")
    if user and user not in broker.metadata.users:
        raise Closed(f"user '{user}' does not exist")
    who = user or OPERATOR
    if vhost not in broker.vhosts:
        raise Closed(f"vhost {vhost} not found")
    if not broker.permissions.may_enter(who, vhost):
        raise Closed(f"access to vhost '{vhost}' refused for user '{user}'")
    server = DirectSocket(node)
    here, there = PipeEnd(node.loop, protocol), PipeEnd(node.loop, server)
    here.peer, there.peer = there, here
    server.open(there, who, vhost, name, properties)
    return here
