"""The socket of a STOMP client: as that of an AMQP client (`amqp_socket`), with another machine behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from leveret.node.sockets.amqp_socket import AmqpSocket
from leveret.sessions.stomp.connection import Connection

if TYPE_CHECKING:
    from leveret.broker.client_connection import ClientConnection
    from leveret.sessions.peer import Peer

STOMP_SUBPROTOCOLS: Final = ("v12.stomp", "v11.stomp", "v10.stomp")


class StompSocket(AmqpSocket):
    """The socket of one accepted STOMP connection."""

    __slots__ = ()

    def new_connection(self, peer: Peer) -> ClientConnection:
        return Connection(self.node.broker, peer, self.node.stomp_limits)

    def on_http_login(self, user: str, password: str) -> None:
        """The request for a WebSocket has told who the client is (`web_stomp.use_http_auth`)."""
        cast(Connection, self.connection).login_part.given = user, password

    def login_timeout_ms(self) -> int | None:
        return self.node.settings.stomp_login_timeout_ms
