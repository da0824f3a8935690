"""What the log that people read is told of clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leveret.amqp.connection import Connection
    from leveret.amqp.errors import ProtocolError
    from leveret.broker.broker import Shell


class Notes:
    """Of one node."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell

    def _say(self, level: str, connection: Connection, text: str) -> None:
        self.shell.note("connection", level, f"connection {connection.describe()}: {text}")

    def opened(self, connection: Connection, vhost: str) -> None:
        self._say("info", connection, f"user '{connection.user}' authenticated and granted access to vhost '{vhost}'")

    def closed(self, connection: Connection) -> None:
        text = f"closing AMQP connection {connection.describe()}: {connection.close_reason}"
        self.shell.note("connection", "info", text)

    def login_refused(self, connection: Connection, user: str, reason: str) -> None:
        self._say("warning", connection, f"login of '{user}' refused: {reason}")

    def secret_updated(self, connection: Connection, reason: str) -> None:
        self._say("info", connection, f"user '{connection.user}' updated its secret, reason: {reason!r}")

    def connection_error(self, connection: Connection, error: ProtocolError) -> None:
        self._say("error", connection, str(error))

    def channel_error(self, connection: Connection, number: int, error: ProtocolError) -> None:
        self.shell.note("channel", "error", f"connection {connection.describe()}, channel {number}: {error}")
