"""A consumer on an AMQP channel: deliveries as bytes, made in bundles.

A delivery is the method frame, then the content as it is stored:

    frame head | 60 60 | consumer tag | delivery tag | redelivered | exchange, routing key | 0xCE | content
    └──────────── head ─────────────┘ └────── packed per message ─┘ └──────── tail ───────┘

For messages of one key, head and tail are made once; per message there is one `struct` call and the content, and the
list of pieces is filled by slices, so that no Python code runs per message. For the same reason a delivery is noted in
the session here, and not by a call of it (`Session.on_delivered`).
"""

from __future__ import annotations

from itertools import repeat
from struct import Struct
from typing import TYPE_CHECKING, Final

from leveret.broker.queue.delivery_limit import DeliveryLimit
from leveret.protocol.frames import END_BYTE, HEAD, METHOD, reframe
from leveret.storage.format.queue_block import REDELIVERED

if TYPE_CHECKING:
    from leveret.broker.broker import AnyQueue
    from leveret.broker.delivery.batch import Batch
    from leveret.broker.delivery.offsets import Start
    from leveret.broker.session.wanted import ConsumerWanted
    from leveret.sessions.amqp.channel import Channel

DELIVER: Final = b"\x00\x3c\x00\x3c"
UNLIMITED: Final = 1 << 30


class ChannelConsumer:
    """One basic.consume."""

    __slots__ = (
        "arguments", "as_stored", "begins_at", "cancels_on_failover", "channel", "exclusive", "head", "key", "no_ack",
        "output", "pack", "prefetch", "priority", "queue", "session", "tag", "tag_bytes", "tail", "timeout_ms",
        "unacked",
    )

    def __init__(
        self,
        channel: Channel,
        queue: AnyQueue,
        wanted: ConsumerWanted,
        start: Start | None = None,
    ) -> None:
        self.channel = channel
        self.session = channel.session
        self.output = channel.connection.output
        self.queue = queue
        self.tag = wanted.tag
        self.no_ack = wanted.no_ack
        self.exclusive = wanted.exclusive
        self.prefetch = 0 if wanted.no_ack else wanted.prefetch  # 0 is no limit.
        self.arguments = wanted.arguments
        self.begins_at = start
        self.cancels_on_failover, self.priority, self.timeout_ms = self.session.consumer_options(wanted.arguments)
        self.unacked = 0
        raw = wanted.tag.encode("utf-8", "surrogateescape")
        self.tag_bytes = bytes((len(raw),)) + raw
        # Stored contents are on channel 1, in frames within the node's frame_max: most consumers take them as they are.
        connection = channel.connection
        self.as_stored = channel.number == 1 and connection.frame_max >= connection.limits.frame_max > 0
        self.key = b""
        self.head = b""
        self.tail = b""
        self.pack = Struct(">QB").pack

    @property
    def who(self) -> str:
        return f"{self.channel.who} {self.tag}"

    def room(self, average_bytes: int) -> int:
        session = self.session
        room = self.output.room(self.queue, average_bytes)
        if room <= 0:
            return room
        if session.prefetch:
            shared = session.prefetch - session.consumed
            # Consumers without acknowledgements use up nothing of it, yet wait with the others while it is used up.
            if shared <= 0 or not self.no_ack:
                room = min(room, shared)
        if self.prefetch:
            room = min(room, self.prefetch - self.unacked)
        return room

    def limit(self) -> int:
        limits = [limit for limit in (self.prefetch, self.session.prefetch) if limit]
        return min(limits, default=0) if not self.no_ack else 0

    def shares_prefetch(self) -> bool:
        return bool(self.session.prefetch)

    def deliver(self, batch: Batch, lo: int, hi: int) -> None:
        session, count = self.session, hi - lo
        first_tag = session.delivery_tag + 1
        session.delivery_tag += count
        whole = count == len(batch.contents)
        contents = batch.contents if whole else batch.contents[lo:hi]
        keys = batch.keys if whole else batch.keys[lo:hi]
        key = keys[0]
        if self.as_stored and not batch.redelivered and keys.count(key) == count:
            if key is not self.key:
                self._use_key(key)
            pieces: list[bytes] = [b""] * (3 * count)
            pieces[0::3] = map(self.pack, repeat(self.head), range(first_tag, first_tag + count), repeat(0))
            pieces[1::3] = [self.tail] * count
            pieces[2::3] = contents
        else:
            kinds = batch.kinds if whole else batch.kinds[lo:hi]
            queue = self.queue
            if batch.redelivered and queue.is_local and (returns := queue.extension(DeliveryLimit)) is not None:
                contents = returns.labelled(batch, lo, hi)  # Else its own node has done so.
            pieces = self._one_by_one(first_tag, contents, keys, kinds)
        if session.prefetch:
            session.last_served = self
        # A delivery's method is about as long as our overhead.
        self.output.put(pieces, batch.average_bytes() * count)
        if not self.no_ack:
            self.unacked += count
            session.consumed += count
            session.unacked.add(first_tag, count, self.queue, self, batch, lo, session.broker.now_ms)
        else:
            session.traffic.delivered_no_ack += count
        if batch.redelivered:
            session.traffic.redelivered += batch.redelivered_within(lo, hi)
        firehose = session.login.vhost.firehose
        if firehose is not None:
            firehose.on_delivered(session, self.queue, batch, lo, hi)

    def _one_by_one(self, tag: int, contents: list[bytes], keys: list[bytes], kinds: bytearray) -> list[bytes]:
        pieces: list[bytes] = []
        number, frame_max = self.channel.number, self.channel.connection.frame_max
        for content, key, kind in zip(contents, keys, kinds, strict=True):
            if key is not self.key:
                self._use_key(key)
            if not self.as_stored:
                content = reframe(content, number, frame_max)
            pieces += (self.pack(self.head, tag, kind & REDELIVERED != 0), self.tail, content)
            tag += 1
        return pieces

    def _use_key(self, key: bytes) -> None:
        size = len(DELIVER) + len(self.tag_bytes) + 9 + len(key)
        head = HEAD.pack(METHOD, self.channel.number, size) + DELIVER + self.tag_bytes
        if len(head) != len(self.head):
            self.pack = Struct(f">{len(head)}sQB").pack
        self.key, self.head, self.tail = key, head, key + END_BYTE

    def on_queue_deleted(self) -> None:
        self.channel.on_consumer_ended(self.tag)
