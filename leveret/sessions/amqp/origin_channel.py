"""The channels of a client that moves messages between brokers, and says of each where it came from.

It says so when it logs in, with the client property `leveret_origins`. Its messages may then have an origin among their
headers (`leveret.protocol.origins`), which is taken out before they are stored; each queue takes each origin once, in
any order (`leveret.broker.delivery.origins`). A message without an origin is published as by anybody else. One whose
origin says that it may have been brought before is marked as redelivered by the queues that take it: a consumer may
have seen it at a master that was lost, before any other node had it.

It may also send many in one frame, with their origins once (`leveret.protocol.bundles`): `on_bundle`.

A bundle of the channel is cut where the source changes or a number is left out. Mostly it is one piece.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.broker.delivery.batch import MESSAGE_OVERHEAD
from leveret.broker.delivery.origins import PRODUCER
from leveret.broker.delivery.publish_numbers import Origin
from leveret.broker.queue.dedup import SEQUENCE_MAX
from leveret.broker.remote.outbox import sent_again
from leveret.protocol import bundles
from leveret.protocol import methods as m
from leveret.protocol.errors import ReplyCode, protocol_error
from leveret.protocol.frames import HEADER_AT, body_size, rechannel
from leveret.protocol.header_shapes import HeaderShapes
from leveret.protocol.origins import MARK, OriginReader, with_origins
from leveret.protocol.properties import DELICATE
from leveret.sessions.amqp.channel import Channel
from leveret.sessions.amqp.publish_fast_path import frame_error
from leveret.storage.format.queue_block import SHARED

if TYPE_CHECKING:
    from leveret.broker.broker import AnyQueue
    from leveret.broker.delivery.confirms import Pending
    from leveret.broker.vhost import Route
    from leveret.sessions.amqp.connection import Connection

PROPERTY: Final = "leveret_origins"


class Piece:
    """Messages of one source with numbers in a row; without a source: those that tell of none. `first` may have the
    mark of an origin; then all of them have it."""

    __slots__ = ("contents", "first", "keys", "source")

    def __init__(self, source: bytes, first: int) -> None:
        self.source = source
        self.first = first
        self.contents: list[bytes] = []
        self.keys: list[bytes] = []

    @property
    def is_numbered(self) -> bool:
        return bool(self.source) and is_number(self.first)


def is_number(first: int) -> bool:
    """Tell whether messages of a source may begin with this number. It may have the mark of an origin."""
    return 0 < first & ~MARK <= SEQUENCE_MAX


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

    __slots__ = ("reader", "shapes")

    def __init__(self, connection: Connection, number: int) -> None:
        super().__init__(connection, number)
        self.reader = OriginReader()
        self.shapes = HeaderShapes()  # Of messages in bundles.

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
                if piece.is_numbered:
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
        origin, is_marked = Origin(PRODUCER + piece.source, piece.first & ~MARK, 0), piece.first & MARK
        for queue in queues:
            its_kind = sent_again(queue, kind) if is_marked else kind
            if broker.outboxes.produce(queue, origin, contents, piece.keys, its_kind, size, pending):
                self.connection.on_crowded(queue)
        if journal is not None:
            journal.end_publish()

    # -- Bundles -------------------------------------------------------------------------------------------------

    def on_bundle(self, payload: bytes) -> None:
        """Many messages in one frame."""
        if self.route is not None:
            raise self._unexpected()
        if self.transaction is not None or self.session.confirms is None:
            text = "bundles need confirms"
            raise protocol_error(ReplyCode.PRECONDITION_FAILED, text, m.BasicPublish)
        try:
            arguments, bundle = bundles.read_publish(payload)
            rows = list(bundles.rows_of(bundle.contents, self.shapes))
        except bundles.BadBundle as error:
            raise frame_error(bundles.BUNDLE, payload, f"a bundle is wrong: {error}") from None
        self._check_sizes(bundle.contents)
        route = self.find_route(arguments)
        for row in rows:
            contents = bundle.contents[row.lo : row.hi]
            first = bundle.first + row.lo
            if route.is_plain and is_number(first) and self._is_ordinary(row, contents[0]):
                self._publish_row(route, bundle.source, first, contents, row.kind & ~DELICATE)
            else:
                self._publish_singly(route, bundle.source, first, contents)

    def _is_ordinary(self, row: bundles.Row, content: bytes) -> bool:
        """Tell whether nothing of the properties of these messages, of which this is the first, has to be changed."""
        if row.kind & DELICATE:
            if not row.is_alike:
                return False
            self.check_properties(content, HEADER_AT)  # Those of all, since they are the same.
            copies, self.copies = self.copies, None
            return copies is None
        return True

    def _check_sizes(self, contents: list[bytes]) -> None:
        size_max = self.connection.limits.message_bytes_max
        if size_max < bundles.BYTES_MAX and (size := max(map(body_size, contents))) > size_max:
            text = f"message size {size} is larger than configured max size {size_max}"
            raise protocol_error(ReplyCode.PRECONDITION_FAILED, text, m.BasicPublish)

    def _publish_row(self, route: Route, source: bytes, first: int, contents: list[bytes], kind: int) -> None:
        """Messages of one kind, with nothing special to them."""
        session, count = self.session, len(contents)
        session.traffic.published += count
        route.counters.published_in += count
        route.counters.published_out += count * len(route.queues)
        if self.broker.refusing:
            self._refuse(count)
            return
        piece = Piece(source, first)
        piece.contents, piece.keys = contents, [route.key] * count
        assert session.confirms is not None
        pending = session.confirms.begin(count)
        pending.waiting += 1  # Until it was sent to all queues, for it must not be complete before.
        self._send_piece(route.queues, piece, kind, pending)
        pending.waiting -= 1
        if not pending.waiting:
            pending.confirms.on_complete(pending)

    def _publish_singly(self, route: Route, source: bytes, first: int, contents: list[bytes]) -> None:
        """Messages that are to be looked at one by one: as if each had come for itself, with its origin."""
        vhost = self.connection.vhost
        assert vhost is not None
        self.generation = vhost.generation
        for content in with_origins(contents, source, first):
            if self.closing:  # For what one of them was.
                return
            header_bytes = int.from_bytes(content[3:7], "big")
            self.connection.on_content(self, route, content[HEADER_AT : HEADER_AT + header_bytes], content)
