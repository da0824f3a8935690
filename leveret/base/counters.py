"""Counters of messages.

They are raised where messages are handled in batches, so a batch costs one addition whatever its size.
`leveret.node.stats.stats_history` reads them every few seconds and computes rates, sums over queues and charts. Each
message is counted at three places:

- *its channel*, on the client's node: publishes and their outcome, deliveries and acknowledgements. Deliveries need no
  counter: the delivery tag is their number.
- *its exchange*, on the same node: publishes in, and the queues they were routed to (`ExchangeCounters`).
- *its queue*, on the queue's node.

Nothing is summed across them in the hot path. The counters of a channel or queue that has ended go to `Broker.ended`,
if statistics are sampled.
"""

from __future__ import annotations

from typing import Final

# Our names of the counters, and RabbitMQ's.
WORDS: Final = {
    "published": "publish",
    "confirmed": "confirm",
    "returned": "return_unroutable",
    "dropped": "drop_unroutable",
    "delivered": "deliver",
    "delivered_no_ack": "deliver_no_ack",
    "got": "get",
    "got_no_ack": "get_no_ack",
    "got_nothing": "get_empty",
    "redelivered": "redeliver",
    "acked": "ack",
    "read": "disk_reads",
    "written": "disk_writes",
}


class MessageCounters:
    """Counts the messages of a queue or a channel since it started on this node."""

    __slots__ = tuple(WORDS)

    def __init__(self) -> None:
        self.published = self.confirmed = self.returned = self.dropped = 0
        self.delivered = self.delivered_no_ack = self.got = self.got_no_ack = self.got_nothing = 0
        self.redelivered = self.acked = self.read = self.written = 0


class ExchangeCounters:
    """Counts the messages published to an exchange on this node, and the queues to which they were routed."""

    __slots__ = ("published_in", "published_out")

    def __init__(self) -> None:
        self.published_in = 0
        self.published_out = 0


class NodeCounters:
    """Counts events of a node since it started."""

    __slots__ = (
        "channels_closed", "channels_opened", "connections_closed", "connections_opened", "logins", "logins_refused",
        "mqtt_logins", "mqtt_logins_refused", "published", "queues_created", "queues_declared", "queues_deleted",
        "stomp_logins", "stomp_logins_refused", "unroutable",
    )  # fmt: skip

    def __init__(self) -> None:
        self.published = self.unroutable = 0
        self.connections_opened = self.connections_closed = self.channels_opened = self.channels_closed = 0
        self.queues_declared = self.queues_created = self.queues_deleted = 0
        self.logins = self.logins_refused = 0  # Over AMQP; the HTTP port counts its own.
        self.mqtt_logins = self.mqtt_logins_refused = 0
        self.stomp_logins = self.stomp_logins_refused = 0
