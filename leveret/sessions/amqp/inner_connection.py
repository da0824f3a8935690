"""A connection of a client inside the node: it begins where a handshake ends.

Its user was checked by whoever opens it: by HTTP, or when the parameter of a shovel was set. It is not counted against
the limits of a vhost or a user, nor told of in the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from leveret.protocol.tables import table_from_python
from leveret.sessions.amqp.connection import Connection, Life
from leveret.sessions.amqp.origin_channel import PROPERTY

CHANNEL: Final = 1
CAPABILITIES: Final = ("publisher_confirms", "basic.nack", "connection.blocked", "consumer_cancel_notify")


class InnerConnection(Connection):
    """A connection past its handshake, with channel 1 open."""

    def open(
        self,
        user: str,
        vhost: str,
        frame_max: int,
        name: str,
        capabilities: tuple[str, ...],
        properties: Mapping[str, object] | None = None,
    ) -> None:
        """Enter a vhost, which must be there. `name`: of the connection, in listings."""
        self._become(Life.RUNNING)
        self.user = user
        self.on_tuned(frame_max, CHANNEL, 0)
        self.set_client_properties(table_from_python({"connection_name": name, **(properties or {})}))
        self.capabilities = dict.fromkeys(capabilities, True)
        self.vhost = self.broker.vhosts[vhost]
        self.login = self.broker.enter(self, user, vhost, self.number, counts=False)
        self.broker.on_connection_opened(self, self.login)
        self.set_origins(self.client_properties.get(PROPERTY) is True)
        self.channels[CHANNEL] = self.new_channel(CHANNEL)
        self.broker.connection_limits.on_channels(user, 1)  # Taken back with the channel.

    def _shut(self, reason: str) -> None:
        if not self.closed:
            self._become(Life.CLOSED)
            self.close_reason = reason
            self.rest = b""
            self.backlog.clear()
            self.broker.on_connection_closed(self)
