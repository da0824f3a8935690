"""Writes log lines about clients, in RabbitMQ's words: operators have patterns for them.

A connection is named by the pid that `list_connections` shows, so that an operator can close the connection of a log
line. One that never sends anything (a load balancer that checks the port) is logged at debug level only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.base.visible_text import visible
from leveret.metadata.rules.permissions import shown_user
from leveret.protocol.methods import METHODS

if TYPE_CHECKING:
    from leveret.broker.node_interface import NodeInterface
    from leveret.metadata.model.records import QueueSpec
    from leveret.protocol.errors import ProtocolError
    from leveret.sessions.amqp.connection import Connection

LOST: Final = "client unexpectedly closed TCP connection"
CONNECTION_PID: Final = 1


def connection_pid(connection: Connection, channel: int = 0) -> str:
    """`<node.1.CONNECTION.CHANNEL>`, where channel 0 is the connection itself."""
    return f"<{connection.broker.node_name}.{CONNECTION_PID}.{connection.number}.{channel}>"


def _called(connection: Connection, *, name: bool = True, state: str = "") -> str:
    """`<pid> (127.0.0.1:40486 -> 127.0.0.1:5672 - its name, vhost: '/', user: 'ann')`, as far as it is known."""
    given = visible(connection.client_properties.get("connection_name") or "")
    parts = [f"{connection.peer} - {given}" if name and given else str(connection.peer)]
    if connection.vhost is not None:
        parts.append(f"vhost: '{visible(connection.vhost.name)}'")
    if connection.user:
        parts.append(f"user: '{visible(shown_user(connection.user))}'")
    if state:
        parts.append(f"state: {state}")
    return f"{connection_pid(connection)} ({', '.join(parts)})"


def _exception(what: str, error: ProtocolError) -> str:
    method = METHODS.get((error.class_id, error.method_id))
    name = "none" if method is None else method.name
    return f"operation {name} caused a {what} exception {error.code.name.lower()}: {visible(error.explanation)}"


class ClientLog:
    """The log lines about the clients of one node."""

    def __init__(self, node: NodeInterface) -> None:
        self.node = node

    def _say(self, level: str, text: str) -> None:
        self.node.note("connection", level, text)

    def accepted(self, connection: Connection) -> None:
        self._say("info", f"accepting AMQP connection {_called(connection)}")

    def opened(self, connection: Connection, vhost: str) -> None:
        pid, peer = connection_pid(connection), str(connection.peer)
        name = visible(connection.client_properties.get("connection_name") or "")
        if name:
            self._say("info", f"connection {pid} ({peer}) has a client-provided name: {name}")
            peer = f"{peer} - {name}"
        granted = f"user '{shown_user(connection.user)}' authenticated and granted access to vhost '{vhost}'"
        self._say("info", f"connection {pid} ({peer}): {visible(granted)}")

    def closed(self, connection: Connection) -> None:
        text, reason = f"closing AMQP connection {_called(connection)}", connection.close_reason
        if connection.leaving or connection.closing:
            self._say("info", text)
        elif reason != LOST:
            if not connection.greeted:
                self.accepted(connection)
            self._say("error", f"{text}:\n{visible(reason)}")
        else:
            self._say("warning" if connection.greeted else "debug", f"{text}:\n{reason}")

    def login_refused(self, connection: Connection, mechanism: str, reason: str) -> None:
        called = _called(connection, state="starting")
        self._say("error", f"Error on AMQP connection {called}:\n{visible(mechanism)} login refused: {visible(reason)}")

    def secret_updated(self, connection: Connection, reason: str) -> None:
        called = f"{connection_pid(connection)} ({connection.peer}): user '{visible(shown_user(connection.user))}'"
        self._say("info", f"connection {called} updated secret, reason: {visible(repr(reason))}")

    def connection_error(self, connection: Connection, error: ProtocolError) -> None:
        handshake = connection.handshake
        if handshake is None:
            called = _called(connection, state="running")
            self._say("error", f"Error on AMQP connection {called}, channel 0:\n {_exception('connection', error)}")
        elif not handshake.refused:
            called = _called(connection, state=handshake.state)
            self._say("error", f"Error on AMQP connection {called}:\n{visible(error.explanation)}")

    def channel_error(self, connection: Connection, number: int, error: ProtocolError) -> None:
        text = f"Channel error on connection {_called(connection, name=False)}, channel {number}:"
        self.node.note("channel", "error", f"{text}\n{_exception('channel', error)}")

    def dead_letters_unroutable(self, queue: QueueSpec, exchange: str | None, key: str | None, exists: bool) -> None:
        """Dead-lettered messages that must be kept are routed to no queue."""
        vhost = visible(queue.vhost)
        start = f"Cannot forward any dead-letter messages from source queue '{visible(queue.name)}' in vhost '{vhost}'"
        named = f"configured dead-letter-exchange exchange '{visible(exchange)}' in vhost '{vhost}'"
        if exists:
            given = "undefined" if key is None else visible(key)
            why = (
                f" with {named} and configured dead-letter-routing-key '{given}'. This can happen if the dead-letter "
                "routing topology is misconfigured (for example no queue bound to dead-letter-exchange or wrong "
                "dead-letter-routing-key configured). Fix this issue"
            )
        else:
            why = (
                f" because its {named} does not exist. Either create the configured dead-letter-exchange or "
                "re-configure the dead-letter-exchange policy for the source queue"
            )
        aim = "to prevent dead-lettered messages from piling up in the source queue"
        self.node.note("queue", "warning", f"{start}{why} {aim}. This message will not be logged again.")
