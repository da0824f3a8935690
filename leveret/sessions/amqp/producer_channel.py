"""The channels of a producer: a client that numbers its messages, so that none is taken twice. See `broker.producers`.

It says so when it logs in, among its client properties: a name, and the number after which it goes on. The n-th message
that it publishes on the connection then has that number plus n. Nothing is added to the messages, so every client
library can do it; and since confirms number a channel's publishes from 1 as well, message, confirm and number belong
together.

Hence three conditions. Only channel 1 publishes, because nobody could tell in which order those of two channels count.
It asks for confirms before it does: whoever does not listen to refusals cannot send again. And when that channel is
closed, nothing more is published on the connection: with an error, frames that were on their way are not heard, and the
client and the broker would no longer count the same. Publishes that lead nowhere, and those that are refused, have
their numbers like all others.

Nothing of this is on the way of other publishers. Where these have one bundle for each of several queues at a time (see
`intake`), a producer has one in all, so that its messages have numbers in a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from leveret.broker.delivery.batch import MESSAGE_OVERHEAD, begin_sharing
from leveret.broker.delivery.publish_numbers import NAME_BYTES_MAX, Origin
from leveret.broker.fanout import FEW
from leveret.broker.queue.dedup import NODES, SEQUENCE_MAX
from leveret.protocol import methods as m
from leveret.protocol.errors import ReplyCode, protocol_error
from leveret.sessions.amqp.channel import Channel
from leveret.storage.format.queue_block import SHARED

if TYPE_CHECKING:
    from leveret.broker.broker import AnyQueue
    from leveret.broker.delivery.confirms import Pending
    from leveret.sessions.amqp.connection import Connection

NAME: Final = "leveret_producer"
SEQUENCE: Final = "leveret_sequence"
TARGETS_MIN: Final = 1_000  # From so many on it is looked whether some of them are gone.


class BadProducer(Exception):
    """The client properties that name a producer are wrong."""


class Producer:
    """The producer that a connection has named in its client properties."""

    __slots__ = ("is_spent", "name", "sequence")

    def __init__(self, name: bytes, sequence: int) -> None:
        self.name = name
        self.sequence = sequence  # Of the last message before its first.
        self.is_spent = False  # The channel on which it has published is closed.

    def __str__(self) -> str:
        return f"producer '{self.name.decode()}'"


def producer_of(properties: Mapping[str, object]) -> Producer | None:
    """Return the producer that the client properties name, if any. Raises `BadProducer`."""
    name, sequence = properties.get(NAME), properties.get(SEQUENCE)
    if name is None and sequence is None:
        return None
    if not isinstance(name, str) or not name:
        raise BadProducer(f"{NAME} must be a string that is not empty")
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        raise BadProducer(f"{NAME} must be UTF-8") from None
    if len(encoded) > NAME_BYTES_MAX:
        raise BadProducer(f"{NAME} has {len(encoded)} bytes, and at most {NAME_BYTES_MAX} are allowed")
    if encoded.startswith(NODES):
        raise BadProducer(f"{NAME} begins like the names that nodes use themselves")
    if not isinstance(sequence, int) or isinstance(sequence, bool):
        raise BadProducer(f"{SEQUENCE} must be an integer, the number of the last message before those to come")
    if not 0 <= sequence <= SEQUENCE_MAX:
        raise BadProducer(f"{SEQUENCE} {sequence} is not between 0 and {SEQUENCE_MAX}")
    return Producer(encoded, sequence)


class ProducerChannel(Channel):
    """A channel of a producer. The first one publishes."""

    __slots__ = ("hole", "producer", "targets", "through")

    def __init__(self, connection: Connection, number: int, producer: Producer) -> None:
        super().__init__(connection, number)
        self.producer = producer
        self.through: dict[int, int] = {}  # By a queue's id: the last number that was sent there.
        self.targets = TARGETS_MIN  # How many these may be before they are looked through.
        self.hole = 0  # The last number that was sent to no queue, though it should have been.

    def is_idle(self) -> bool:
        return super().is_idle() and self._may_publish()

    def _may_publish(self) -> bool:
        return self.number == 1 and self.session.confirms is not None and not self.producer.is_spent

    def on_method(self, method: m.Method) -> None:
        if self.route is None and isinstance(method, m.BasicPublish):
            raise self._refusal(method)
        if self.route is None and isinstance(method, m.TxSelect):
            text = f"{self.producer} cannot have transactions: what they hold back has no number"
            raise protocol_error(ReplyCode.PRECONDITION_FAILED, text, method)
        super().on_method(method)

    def _refusal(self, method: m.BasicPublish) -> Exception:
        """Why it does not publish."""
        if self.number != 1:
            text = f"{self.producer} publishes on channel 1 only"
            return protocol_error(ReplyCode.CHANNEL_ERROR, text, method)
        if self.producer.is_spent:
            text = f"{self.producer} has published on a channel that is closed; it needs a new connection to go on"
            return protocol_error(ReplyCode.CHANNEL_ERROR, text, method)
        text = f"{self.producer} must ask for confirms before it publishes"
        return protocol_error(ReplyCode.PRECONDITION_FAILED, text, method)

    def release_all(self) -> None:
        confirms = self.session.confirms
        if confirms is not None and confirms.published:
            self.producer.is_spent = True
        super().release_all()

    # -- Publishing ----------------------------------------------------------------------------------------------

    def send(
        self, bundles: list[tuple[tuple[AnyQueue, ...], list[bytes], list[bytes]]], kind: int, pending: Pending | None
    ) -> None:
        ((queues, contents, keys),) = bundles  # One, so that the numbers of its messages are in a row.
        assert pending is not None and self.number == 1
        first, last = self.producer.sequence + pending.first, self.producer.sequence + pending.last
        journal = self.broker.journal
        if journal is not None:
            journal.begin_publish(self.who)
        self.broker.totals.published += len(contents)
        size = self.broker.totals.sizes["amqp"].add(contents) + MESSAGE_OVERHEAD * len(contents)
        broker = self.broker
        if len(queues) > 1:
            kind |= SHARED
        shared = begin_sharing(broker, contents, size, len(queues))
        try:
            for queue in queues:
                previous = max(self.through.get(queue.spec.id, 0), self.hole)
                self.through[queue.spec.id] = last
                origin = Origin(self.producer.name, first, previous)
                if broker.outboxes.produce(queue, origin, contents, keys, kind, size, pending):
                    self.connection.on_crowded(queue)
        finally:
            if shared is not None:
                shared.end()
        if len(queues) > FEW:
            self._on_spread(len(contents), len(queues))
        if journal is not None:
            journal.end_publish()
        if len(self.through) > self.targets:
            self._forget_deleted()
        if not pending.waiting:
            pending.confirms.on_complete(pending)

    def _forget_deleted(self) -> None:
        known = self.broker.queues_by_id
        self.through = {number: last for number, last in self.through.items() if number in known}
        self.targets = max(TARGETS_MIN, 2 * len(self.through))

    def _refuse(self, count: int) -> None:
        super()._refuse(count)
        confirms = self.session.confirms
        assert confirms is not None
        self.hole = self.producer.sequence + confirms.published
