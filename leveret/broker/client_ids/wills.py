"""Publishes the wills that are due, each once.

The leader publishes them, in the order of their numbers. It may be lost meanwhile, or lose its majority and not know it
yet, and the next leader publishes the same wills again. So they are published as those of a named producer (see
`broker.queue.dedup`): a queue takes each number once, whoever sends it. A will stays in the metadata until all its
queues have it.

**In rounds.** Up to `ROUND` wills are published together, each naming the one that went to the same queue before it, so
that no queue takes a later one and misses an earlier one. When all are answered, those that arrived are reported
(`WillsPublished`), and the next round begins with those that did not, after a moment: a queue may be out of reach while
its next master is elected. A will that a queue has not taken for `PATIENCE_MS` is given up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.broker.delivery.batch import MESSAGE_OVERHEAD
from leveret.broker.delivery.confirms import Pending
from leveret.broker.delivery.publish_numbers import Origin
from leveret.metadata.mqtt.commands import WillsPublished
from leveret.protocol.cc_bcc import further_keys, without_bcc
from leveret.protocol.frames import HEAD, HEADER_AT
from leveret.protocol.properties import DELICATE, headers, survey

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.metadata.mqtt.records import DueWill
    from leveret.metadata.store import Applied

PRODUCER: Final = b"will of a client"
ROUND: Final = 250
ROUND_MS: Final = 10_000  # After so long a round is given up.
RETRY_MS: Final = 500
PATIENCE_MS: Final = 60_000


class Publishing(Pending):
    """A will that was sent to its queues. `will.number` is its number."""

    __slots__ = ("will",)

    def __init__(self, wills: Wills, will: DueWill) -> None:
        super().__init__(wills, will.number, will.number)
        self.will = will


class Wills:
    """Publishes wills while this node leads."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.open: dict[int, Publishing] = {}  # By number: sent in this round, and not answered.
        self.answered: list[int] = []
        self.missed: dict[int, int] = {}  # By number: since when it was tried in vain.
        self.is_reporting = False
        self.began_ms = 0
        self.next_ms = 0  # When the next round may begin.
        self.published = 0

    def lead(self) -> None:
        """Called in each tick at the leader."""
        if self.is_reporting:
            return
        if self.open:
            if self.broker.now_ms - self.began_ms >= ROUND_MS:
                self._give_up()
            return
        if self.answered:
            self._report()
        elif self.broker.metadata.wills and self.broker.now_ms >= self.next_ms:
            self._begin()

    def _begin(self) -> None:
        self.began_ms = self.broker.now_ms
        wills = [will for _, will in zip(range(ROUND), self.broker.metadata.wills.values(), strict=False)]
        through: dict[int, int] = {}
        for will in wills:
            self._publish(will, through)
        if not self.open:
            self._report()

    def _publish(self, will: DueWill, through: dict[int, int]) -> None:
        broker, vhost = self.broker, self.broker.vhosts.get(will.vhost)
        if vhost is None or (will.vhost, will.exchange) not in broker.metadata.exchanges:
            self.answered.append(will.number)
            return
        # A topic that AMQP cannot tell has a second key, which only the router is to see.
        keys = [will.routing_key, *further_keys(headers(will.content, HEADER_AT) or {})]
        content = without_bcc(will.content)
        _, _, header_bytes = HEAD.unpack_from(content)
        kind = survey(content, HEADER_AT, HEADER_AT + header_bytes) & ~DELICATE
        key = _short(will.exchange) + _short(will.routing_key)
        pending = self.open[will.number] = Publishing(self, will)
        broker.totals.published += 1
        for queue in vhost.route(will.exchange, keys, content):
            origin = Origin(PRODUCER, will.number, through.get(queue.spec.id, 0))
            through[queue.spec.id] = will.number
            size = len(content) + MESSAGE_OVERHEAD
            broker.outboxes.produce(queue, origin, [content], [key], kind, size, pending)
        if not pending.waiting:
            self.on_complete(pending)

    def on_complete(self, pending: Pending) -> None:
        """All queues of a will have answered."""
        if self.open.pop(pending.first, None) is None:
            return
        now_ms = self.broker.now_ms
        if pending.refused and now_ms - self.missed.setdefault(pending.first, now_ms) < PATIENCE_MS:
            self.next_ms = now_ms + RETRY_MS
        else:
            self.published += not pending.refused
            self.answered.append(pending.first)

    def _give_up(self) -> None:
        for pending in list(self.open.values()):
            pending.mark_refused()
            self.on_complete(pending)
            pending.give_up()

    def _report(self) -> None:
        numbers, self.answered = tuple(self.answered), []
        if not numbers:
            return

        def on_agreed(applied: Applied) -> None:
            self.is_reporting = False
            if applied.refused is None:
                for number in numbers:
                    self.missed.pop(number, None)

        self.is_reporting = True
        self.broker.propose(WillsPublished(numbers), on_agreed)


def _short(text: str) -> bytes:
    data = text.encode("utf-8", "surrogateescape")
    return bytes((len(data),)) + data
