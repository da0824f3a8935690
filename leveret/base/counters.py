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

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
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


class SizeCounters:
    """Counts published messages by their size: properties and body, without the heads of the frames around them.

    A bundle of messages of one length costs little more than its sum. Lengths are sorted into RabbitMQ's ranges when
    somebody wants to know, or when there are too many different ones.
    """

    __slots__ = ("_counts", "_sum", "lengths", "recent")

    BOUNDS: Final = (100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000, 50_000_000, 100_000_000)
    HEADS: Final = 30  # Of the bytes of a content: of the header frame and one body frame.
    DIFFERENT_MAX: Final = 4_096
    UNCOUNTED_MAX: Final = 1_024

    def __init__(self) -> None:
        self.recent: Counter[int] = Counter()  # By the length of a content.
        self.lengths: list[int] = []  # Of contents in bundles of several lengths, to be counted many at a time.
        self._counts = [0] * (len(self.BOUNDS) + 1)
        self._sum = 0

    def add(self, contents: Sequence[bytes]) -> int:
        """Counts contents, of which there is at least one. Returns the sum of their lengths."""
        recent, count, first = self.recent, len(contents), len(contents[0])
        if count == 1:
            total, is_like_first = first, True
        else:
            lengths = list(map(len, contents))
            total, is_like_first = sum(lengths), lengths.count(first) == count
        if is_like_first:
            recent[first] = recent.get(first, 0) + count
        else:
            self.lengths += lengths
            if len(self.lengths) > self.UNCOUNTED_MAX:
                self._count()
        if len(recent) > self.DIFFERENT_MAX:
            self._sort()
        return total

    def histogram(self) -> tuple[list[int], int]:
        """Returns how many messages are in each range, the last one without an end, and the sum of all sizes."""
        self._sort()
        return list(self._counts), self._sum

    def _count(self) -> None:
        self.recent.update(self.lengths)
        self.lengths.clear()

    def _sort(self) -> None:
        self._count()
        for length, count in self.recent.items():
            size = max(0, length - self.HEADS)
            self._counts[bisect_left(self.BOUNDS, size)] += count
            self._sum += size * count
        self.recent.clear()


class NodeCounters:
    """Counts events of a node since it started."""

    __slots__ = (
        "channels_closed", "channels_opened", "connections_closed", "connections_opened", "logins", "logins_refused",
        "mqtt_logins", "mqtt_logins_refused", "published", "queues_created", "queues_declared", "queues_deleted",
        "sizes", "stomp_logins", "stomp_logins_refused", "unroutable",
    )  # fmt: skip

    def __init__(self) -> None:
        self.published = self.unroutable = 0
        self.connections_opened = self.connections_closed = self.channels_opened = self.channels_closed = 0
        self.queues_declared = self.queues_created = self.queues_deleted = 0
        self.logins = self.logins_refused = 0  # Over AMQP; the HTTP port counts its own.
        self.mqtt_logins = self.mqtt_logins_refused = 0
        self.stomp_logins = self.stomp_logins_refused = 0
        self.sizes = {protocol: SizeCounters() for protocol in ("amqp", "mqtt", "stomp")}
