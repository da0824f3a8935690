"""How many messages went which way: counters that somebody else reads now and then.

They are raised where messages are handled in bundles, so a bundle costs an addition whatever its size; a rate, a sum
over queues or a chart is made of them by whoever wants one (`leveret.node.stats.stats_history`), every few seconds and
not here. Each message is counted once at each of three places that know something of their own:

- *its channel*, where the client is: what it published, what became of that, what it was given and acknowledged. What
  was given is not even counted: the delivery tag says it.
- *its exchange*, likewise: what came in, and how many queues it reached in sum (`Passage`).
- *its queue*, at its home.

Nothing is added up across them in the hot path. What a channel or a queue had counted when it ended goes to
`Broker.ended`, if somebody samples.
"""

from __future__ import annotations

from typing import Final

# Our names, and RabbitMQ's.
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


class Traffic:
    """Messages since a queue or a channel came to be here."""

    __slots__ = tuple(WORDS)

    def __init__(self) -> None:
        self.published = self.confirmed = self.returned = self.dropped = 0
        self.delivered = self.delivered_no_ack = self.got = self.got_no_ack = self.got_nothing = 0
        self.redelivered = self.acked = self.read = self.written = 0


class Passage:
    """Messages that came to an exchange at this node, and the queues they reached, added up."""

    __slots__ = ("came", "went")

    def __init__(self) -> None:
        self.came = 0
        self.went = 0


class Totals:
    """Of a node since it started."""

    __slots__ = (
        "channels_closed", "channels_opened", "connections_closed", "connections_opened", "logins", "logins_refused",
        "published", "queues_created", "queues_declared", "queues_deleted", "unroutable",
    )  # fmt: skip

    def __init__(self) -> None:
        self.published = self.unroutable = 0
        self.connections_opened = self.connections_closed = self.channels_opened = self.channels_closed = 0
        self.queues_declared = self.queues_created = self.queues_deleted = 0
        self.logins = self.logins_refused = 0  # Over AMQP; those over HTTP are counted there.
