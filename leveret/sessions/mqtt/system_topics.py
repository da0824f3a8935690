"""Sends a client the topics below `$SYS` that it has subscribed to: figures of the node that it is connected to.

They are in no exchange, and nobody can publish them. Each client with such a subscription has a feed, which puts them
into the client's queue: all that a filter matches when the subscription begins, as retained messages; then those that
have changed, at the end of each interval, at the same time for all clients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.broker.delivery.batch import MESSAGE_OVERHEAD
from leveret.broker.session.session import arguments_of
from leveret.protocol.mqtt.topics import matches
from leveret.sessions.mqtt.messages import to_content
from leveret.sessions.mqtt.routing_keys import key_of

if TYPE_CHECKING:
    from leveret.sessions.mqtt.connection import Connection

SYSTEM: Final = "$SYS/"


class SystemFeed:
    """The system topics of one client."""

    __slots__ = ("connection", "interval", "sent")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.interval = self._interval()
        self.sent: dict[str, bytes] = {}  # The last payloads, by topic.

    def _interval(self) -> int:
        return self.connection.broker.now_ms // (self.connection.limits.sys_interval_s * 1_000)

    def send_all(self, topic_filter: str) -> None:
        """Send what a new subscription matches."""
        figures = self.connection.broker.mqtt_totals.figures()
        self._send({topic: one for topic, one in figures.items() if matches(topic_filter, topic)}, True)

    def on_tick(self) -> None:
        """Send what has changed, if the interval is over."""
        interval = self._interval()
        if interval != self.interval:
            self.interval = interval
            figures = self.connection.broker.mqtt_totals.figures()
            self._send({topic: one for topic, one in figures.items() if self.sent.get(topic) != one}, False)

    def _send(self, figures: dict[str, bytes], retained: bool) -> None:
        connection, parts = self.connection, self.connection.subscriptions
        vhost, limits, now_ms = connection.vhost, connection.limits, connection.broker.wall_ms
        assert vhost is not None
        for topic, payload in figures.items():
            found = max(((one.qos, name) for name, _, one in parts.index.find(topic)), default=None)
            if found is None:
                continue
            _, topic_filter = found
            queue = vhost.queues.get(parts.queue_of(topic_filter, parts.options[topic_filter]))
            if queue is not None:
                self.sent[topic] = payload
                content = to_content(topic, payload, 0, {}, limits.frame_max, now_ms, retain=True, retained=retained)
                key = arguments_of(limits.exchange, key_of(topic))[:-1]
                queue.enqueue([content], [key], 0, len(content) + MESSAGE_OVERHEAD, None)
