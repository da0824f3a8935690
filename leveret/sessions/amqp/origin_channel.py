"""The channels of a client that moves messages between brokers, and says of each where it came from.

It says so when it logs in, with the client property `leveret_origins`. Its messages may then have an origin among their
headers (`leveret.protocol.origins`), which is taken out before they are stored; each queue takes each origin once, in
any order (`leveret.broker.delivery.origins`). A message without an origin is published as by anybody else.

A bundle of the channel is cut where the source changes or a number is left out. Mostly it is one piece.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.broker.delivery.batch import MESSAGE_OVERHEAD
from leveret.broker.delivery.origins import PRODUCER
from leveret.broker.delivery.publish_numbers import Origin
from leveret.broker.queue.dedup import SEQUENCE_MAX
from leveret.protocol.frames import rechannel
from leveret.protocol.origins import OriginReader
from leveret.sessions.amqp.channel import Channel
from leveret.storage.format.queue_block import SHARED

if TYPE_CHECKING:
    from leveret.broker.broker import AnyQueue
    from leveret.broker.delivery.confirms import Pending
    from leveret.sessions.amqp.connection import Connection

PROPERTY: Final = "leveret_origins"


class Piece:
    """Messages of one source with numbers in a row; without a source: those that tell of none."""

    __slots__ = ("contents", "first", "keys", "source")

    def __init__(self, source: bytes, first: int) -> None:
        self.source = source
        self.first = first
        self.contents: list[bytes] = []
        self.keys: list[bytes] = []


def pieces_of(reader: OriginReader, contents: list[bytes], keys: list[bytes]) -> list[Piece]:
    """Cut a bundle into pieces, and take the origins out."""
    pieces: list[Piece] = []
    last, following, at = Piece(b"\xff", 0), 0, 0
    while at < len(contents):
        source, number, stripped = reader.take(contents[at])
        if source != last.source or (source and number != following):
            last = Piece(source, number)
            pieces.append(last)
        row = reader.take_row(contents, at + 1, number + 1) if source else []
        last.contents += (stripped, *row)
        last.keys += keys[at : at + 1 + len(row)]
        at += 1 + len(row)
        following = number + 1 + len(row)
    return pieces


class OriginChannel(Channel):
    """A channel on which messages with origins are published. Without confirms, origins are ignored."""

    __slots__ = ("reader",)

    def __init__(self, connection: Connection, number: int) -> None:
        super().__init__(connection, number)
        self.reader = OriginReader()

    def send(
        self, bundles: list[tuple[tuple[AnyQueue, ...], list[bytes], list[bytes]]], kind: int, pending: Pending | None
    ) -> None:
        if pending is None:
            plain = [
                (queues, [content for piece in pieces for content in piece.contents], keys)
                for queues, contents, keys in bundles
                for pieces in (pieces_of(self.reader, contents, keys),)
            ]
            super().send(plain, kind, None)
            return
        pending.waiting += 1  # Until all pieces are sent, for it must not be complete before.
        for queues, contents, keys in bundles:
            for piece in pieces_of(self.reader, contents, keys):
                if piece.source and 0 < piece.first <= SEQUENCE_MAX:
                    self._send_piece(queues, piece, kind, pending)
                else:
                    super().send([(queues, piece.contents, piece.keys)], kind, pending)
        pending.waiting -= 1
        if not pending.waiting:
            pending.confirms.on_complete(pending)

    def _send_piece(self, queues: tuple[AnyQueue, ...], piece: Piece, kind: int, pending: Pending) -> None:
        broker, contents = self.broker, piece.contents
        broker.totals.published += len(contents)
        size = broker.totals.sizes["amqp"].add(contents) + MESSAGE_OVERHEAD * len(contents)
        if self.number != 1:
            contents = [rechannel(content, 1) for content in contents]
        journal = broker.journal
        if journal is not None:
            journal.begin_publish(self.who)
        if len(queues) > 1:
            kind |= SHARED
        for queue in queues:
            origin = Origin(PRODUCER + piece.source, piece.first, 0)
            if broker.outboxes.produce(queue, origin, contents, piece.keys, kind, size, pending):
                self.connection.on_crowded(queue)
        if journal is not None:
            journal.end_publish()
