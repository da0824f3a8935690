"""A consumer: counts deliveries, acknowledges them, and measures how old they are.

Deliveries of a load are alike: same names, same sizes; only tag and body differ. `Shape` has the bytes of one delivery
and the positions that may differ. To check that n deliveries in a row have that shape, each fixed position is compared
in all of them at once: a slice with a step is one operation, whatever n is. Likewise one unpacking reads all time
stamps.
"""

from __future__ import annotations

import struct
import time
from collections import Counter
from typing import Final

from leveret.client import amqp
from leveret.client.amqp import BrokerError
from leveret.client.connection import Connection
from leveret.client.endpoint import Endpoint
from leveret.perf.histogram import Histogram
from leveret.perf.ledger import NAME, Ledger, channel_name
from leveret.perf.publisher import MARK, NAMED_BYTES_MIN, STAMP, STAMP_AT, STAMPED_BYTES_MIN

UNSENT_BYTES_MAX: Final = 1 << 20
TAG_BYTES: Final = 8
TAG: Final = "perf-"  # Consumer tags are this and the number of the queue.


class Shape:
    """The form of a delivery with one body frame, taken from an example."""

    def __init__(self, delivery: bytes, tag_at: int, body_at: int) -> None:
        """`tag_at`: position of the delivery tag, which the redelivered bit follows; `body_at`: position of the
        body."""
        self.bytes = len(delivery)
        body_end = len(delivery) - 1
        self.is_stamped = delivery.startswith(MARK, body_at) and body_end - body_at >= STAMPED_BYTES_MIN
        fixed_until = body_at + STAMP_AT if self.is_stamped else body_at
        positions = [*range(tag_at), *range(tag_at + TAG_BYTES + 1, fixed_until), body_end]
        self._fixed = [(position, delivery[position : position + 1]) for position in positions]
        self.queue = ""  # Its queue, if a ledger needs it.
        self._again_at = tag_at + TAG_BYTES
        before = body_at + STAMP_AT
        self._stamp = struct.Struct(f">{before}xQ{self.bytes - before - STAMP.size}x") if self.is_stamped else None
        before += STAMP.size
        self.is_named = self.is_stamped and body_end - body_at >= NAMED_BYTES_MIN
        self._name = struct.Struct(f">{before}xIQ{self.bytes - before - NAME.size}x" if self.is_named else ">")

    def fits(self, data: bytes, at: int, count: int) -> bool:
        """Says whether the `count` deliveries from `at` on have this shape."""
        end, step = at + count * self.bytes, self.bytes
        return all(data[at + position : end : step] == value * count for position, value in self._fixed)

    def stamps(self, data: bytes, at: int, count: int) -> Counter[tuple[int]] | None:
        """Counts deliveries by their time stamp; None if they have none."""
        if self._stamp is None:
            return None
        return Counter(self._stamp.iter_unpack(memoryview(data)[at : at + count * self.bytes]))

    def names(self, data: bytes, at: int, count: int) -> zip[tuple[tuple[int, int], int]]:
        """Returns publisher and number, and the redelivered bit, of each. Only for messages that have room for a
        name."""
        end = at + count * self.bytes
        names = self._name.iter_unpack(memoryview(data)[at:end])
        return zip(names, data[at + self._again_at : end : self.bytes], strict=True)


class Consumer(Endpoint):
    """`ack_every`: 0 consumes without acks, 1 acknowledges each message, n acknowledges n messages with one ack."""

    def __init__(
        self, connection: Connection, queues: list[str], *, prefetch: int, ack_every: int, ledger: Ledger | None = None
    ) -> None:
        self.ledger = ledger
        self.channel = "" if ledger is None else channel_name(connection.socket)
        self.names = queues
        self.ack_every = ack_every
        self.received = self.acked = self.cancelled = 0
        self.latency = Histogram()
        self._shape: Shape | None = None
        if prefetch:
            connection.set_prefetch(prefetch)
        self.queues = len(queues)
        for number, queue in enumerate(queues):
            connection.consume(queue, f"{TAG}{number:05}", no_ack=ack_every == 0, nowait=number > 0)
        super().__init__(connection)

    def wants_to_write(self) -> bool:
        return bool(self.unsent)

    def on_writable(self) -> None:
        self.send_unsent()
        if not self.unsent:
            self._ack()

    # -- Deliveries ------------------------------------------------------------------------------------------------

    def on_data(self, data: bytes) -> bytes:
        at = 0
        now_ns = time.time_ns()
        while True:
            shape = self._shape
            count = (len(data) - at) // shape.bytes if shape is not None else 0
            if shape is not None and count and shape.fits(data, at, count):
                for (stamp,), number in (shape.stamps(data, at, count) or {}).items():
                    self.latency.add(now_ns - stamp, number)
                self.received += count
                if self.ledger is not None and shape.is_named:
                    for (publisher, number), again in shape.names(data, at, count):
                        self._note(shape.queue, publisher, number, again & 1, now_ns)
                at += count * shape.bytes
                continue
            after = self._take_one(data, at, now_ns)
            if after is None:
                break
            at = after
        if not self.unsent:
            self._ack()
        return data[at:]

    def _take_one(self, data: bytes, at: int, now_ns: int) -> int | None:
        """Handles the next method or delivery frame by frame. Returns its end, or None if it is incomplete."""
        start, body_left, body, body_frames, tag_at, body_at = at, -1, b"", 0, 0, 0
        while body_left:
            if len(data) - at < amqp.OVERHEAD:
                return None
            kind, _, size = amqp.HEAD.unpack_from(data, at)
            end: int = at + amqp.HEAD.size + size
            if end >= len(data):
                return None
            if kind == amqp.METHOD:
                name = amqp.METHOD_ID.unpack_from(data, at + amqp.HEAD.size)
                if name != amqp.BASIC_DELIVER:
                    self._on_method(name, data[at + amqp.HEAD.size + amqp.METHOD_ID.size : end])
                    return end + 1
                consumer_tag_at = at + amqp.HEAD.size + amqp.METHOD_ID.size
                tag_at = consumer_tag_at + 1 + data[consumer_tag_at]
            elif kind == amqp.HEADER:
                body_left = int.from_bytes(data[at + amqp.HEAD.size + 4 : at + amqp.HEAD.size + 12], "big")
            elif kind == amqp.BODY:
                body, body_at, body_frames = (
                    body or data[at + amqp.HEAD.size : end],
                    at + amqp.HEAD.size,
                    body_frames + 1,
                )
                body_left -= size
            elif kind == amqp.HEARTBEAT:
                return end + 1
            at = end + 1
        self.received += 1
        queue = ""
        if self.ledger is not None and body.startswith(MARK) and len(body) >= NAMED_BYTES_MIN:
            queue = self._queue(data, start)
            publisher, number = NAME.unpack_from(body, STAMPED_BYTES_MIN)
            self._note(queue, publisher, number, data[tag_at + TAG_BYTES] & 1, now_ns)
        if body.startswith(MARK) and len(body) >= STAMPED_BYTES_MIN:
            self.latency.add(now_ns - STAMP.unpack_from(body, STAMP_AT)[0])
        # A message of another publisher may differ only by the mark, and must not become the shape.
        if body_frames == 1 and (body.startswith(MARK) or len(body) < STAMPED_BYTES_MIN):
            self._shape = Shape(data[start:at], tag_at - start, body_at - start)
            self._shape.queue = queue
        return at

    def _queue(self, data: bytes, start: int) -> str:
        """Returns the queue of a delivery, by its consumer tag."""
        at = start + amqp.HEAD.size + amqp.METHOD_ID.size
        tag = data[at + 1 : at + 1 + data[at]].decode()
        return self.names[int(tag.removeprefix(TAG))]

    def _note(self, queue: str, publisher: int, number: int, again: int, now_ns: int) -> None:
        if self.ledger is not None and publisher:  # Without a name it comes from a load without a ledger.
            self.ledger.note(queue, publisher, self.channel, number, number, now_ns // 1_000_000, bool(again))

    def _on_method(self, name: amqp.Name, arguments: bytes) -> None:
        if name == amqp.BASIC_CANCEL:
            self.cancelled += 1
            if self.cancelled == self.queues:
                raise BrokerError("the broker cancelled the consumer: its queue was deleted, or its node is gone")
        elif name not in (amqp.CONNECTION_BLOCKED, amqp.CONNECTION_UNBLOCKED):
            raise BrokerError(amqp.closing_text(name, arguments))

    # -- Acknowledgements ------------------------------------------------------------------------------------------

    def _ack(self) -> None:
        """Sends the acks that are due. Delivery tags count from 1, so the last tag is the number of deliveries."""
        if self.ack_every == 1 and self.received > self.acked:
            last = min(self.received, self.acked + UNSENT_BYTES_MAX // amqp.ACK_FRAME.size)
            self.unsent = memoryview(amqp.ack_each(self.acked + 1, last))
            self.acked = last
        elif self.ack_every > 1 and self.received - self.acked >= self.ack_every:
            self.acked = self.received - (self.received - self.acked) % self.ack_every
            self.unsent = memoryview(amqp.ack_through(self.acked))
        self.send_unsent()

    def ack_rest(self) -> None:
        """Acknowledges the rest at the end, fewer than `ack_every`."""
        if self.ack_every > 1 and self.received > self.acked and not self.unsent:
            self.acked = self.received
            self.unsent = memoryview(amqp.ack_through(self.acked))
            self.send_unsent()
