"""The socket of an MQTT client: as that of an AMQP client (`amqp_socket`), with another machine behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.node.sockets.amqp_socket import AmqpSocket
from leveret.sessions.mqtt.connection import Connection

if TYPE_CHECKING:
    from leveret.broker.client_connection import ClientConnection
    from leveret.sessions.peer import Peer

WEB_SUBPROTOCOLS: Final = ("mqtt",)


class MqttSocket(AmqpSocket):
    """The socket of one accepted MQTT connection."""

    __slots__ = ()

    def new_connection(self, peer: Peer) -> ClientConnection:
        return Connection(self.node.broker, peer, self.node.mqtt_limits)

    def login_timeout_ms(self) -> int | None:
        return self.node.settings.mqtt_login_timeout_ms
