"""Counts what the MQTT clients of this node do, for the topics below `$SYS`.

Connections count for themselves. What they have counted is summed up when somebody asks, once in a turn at most, so it
costs nothing while nobody does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from leveret import __version__

if TYPE_CHECKING:
    from leveret.broker.broker import Broker


class Counts(NamedTuple):
    """The PUBLISH packets and the bytes of a connection."""

    received: int
    sent: int
    received_bytes: int
    sent_bytes: int


class Counted(Protocol):
    """A connection of an MQTT client."""

    def counts(self) -> Counts: ...

    def subscription_count(self) -> int: ...


class MqttTotals:
    """The figures of all MQTT clients of this node since it was started."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.connections: dict[Counted, None] = {}
        self.maximum = 0  # Connections at one time.
        self.past = Counts(0, 0, 0, 0)  # Of connections that are closed.
        self.figured_ms = -1
        self.figured: dict[str, bytes] = {}

    def enter(self, connection: Counted) -> None:
        self.connections[connection] = None
        self.maximum = max(self.maximum, len(self.connections))

    def leave(self, connection: Counted) -> None:
        if connection in self.connections:
            del self.connections[connection]
            self.past = Counts(*map(sum, zip(self.past, connection.counts(), strict=True)))

    def figures(self) -> dict[str, bytes]:
        """Return the payloads by topic, which is named as Mosquitto names it."""
        if self.figured_ms != self.broker.now_ms:
            self.figured_ms, self.figured = self.broker.now_ms, self._figure()
        return self.figured

    def _figure(self) -> dict[str, bytes]:
        broker = self.broker
        every = [self.past, *(one.counts() for one in self.connections)]
        received, sent, received_bytes, sent_bytes = map(sum, zip(*every, strict=True))
        connected = len(self.connections)
        disconnected = sum(not session.node for session in broker.client_ids.sessions())
        values = {
            "version": f"Leveret {__version__}",
            "uptime": f"{(broker.now_ms - broker.opened_ms) // 1_000} seconds",
            "clients/connected": connected,
            "clients/disconnected": disconnected,
            "clients/total": connected + disconnected,
            "clients/maximum": self.maximum,
            "messages/received": received,
            "messages/sent": sent,
            "publish/messages/received": received,
            "publish/messages/sent": sent,
            "bytes/received": received_bytes,
            "bytes/sent": sent_bytes,
            "retained messages/count": sum(map(len, broker.retained.indexes.values())),
            "subscriptions/count": sum(one.subscription_count() for one in self.connections),
        }
        return {f"$SYS/broker/{name}": str(value).encode() for name, value in values.items()}
