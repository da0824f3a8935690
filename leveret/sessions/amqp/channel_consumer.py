"""A consumer on an AMQP channel: deliveries as bytes, made in bundles.

A delivery is the method frame, then the content as it is stored:

    frame head | 60 60 | consumer tag | delivery tag | redelivered | exchange, routing key | 0xCE | content
    └──────────── head ─────────────┘ └────── packed per message ─┘ └──────── tail ───────┘

The head depends on the length of the key only. Per message there is one `struct` call and the content, and the list of
pieces is filled by slices, so that no Python code runs per message. For the same reason a delivery is noted in
the session here, and not by a call of it (`Session.on_delivered`).

A shovel may have asked for bundles (`leveret.protocol.bundles`), which have the method and the origin once for many.
"""

from __future__ import annotations

from itertools import groupby, repeat
from struct import Struct
from typing import TYPE_CHECKING, Final

from leveret.broker.delivery.consumer import wants_origins
from leveret.broker.queue.delivery_limit import DeliveryLimit
from leveret.protocol import bundles
from leveret.protocol.frames import END_BYTE, HEAD, METHOD, reframe
from leveret.protocol.origins import with_origins
from leveret.storage.format.queue_block import REDELIVERED

if TYPE_CHECKING:
    from leveret.broker.broker import AnyQueue
    from leveret.broker.delivery.batch import Batch
    from leveret.broker.delivery.offsets import Start
    from leveret.broker.session.wanted import ConsumerWanted
    from leveret.sessions.amqp.channel import Channel

DELIVER: Final = b"\x00\x3c\x00\x3c"
UNLIMITED: Final = 1 << 30


class Heads(dict[int, bytes]):
    """The beginnings of a consumer's deliveries up to its tag, by the length of the key."""

    __slots__ = ("channel", "tag")

    def __init__(self, channel: int, tag: str) -> None:
        self.channel = channel
        raw = tag.encode("utf-8", "surrogateescape")
        self.tag = bytes((len(raw),)) + raw

    def __missing__(self, key_bytes: int) -> bytes:
        size = len(DELIVER) + len(self.tag) + 9 + key_bytes
        head = self[key_bytes] = HEAD.pack(METHOD, self.channel, size) + DELIVER + self.tag
        return head


class ChannelConsumer:
    """One basic.consume."""

    is_exact = False

    __slots__ = (
        "arguments", "as_stored", "begins_at", "cancels_on_failover", "channel", "exclusive", "has_origins",
        "heads", "in_bundles", "no_ack", "output", "pack", "prefetch", "priority", "queue", "session", "tag",
        "timeout_ms", "unacked",
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
        # Stored contents are on channel 1, in frames within the node's frame_max: most consumers take them as they are.
        connection = channel.connection
        self.as_stored = channel.number == 1 and connection.frame_max >= connection.limits.frame_max > 0
        self.has_origins = wants_origins(self)
        self.in_bundles = self.as_stored and self.has_origins and self._asks_for_bundles()
        self.heads = Heads(channel.number, wanted.tag)
        self.pack = Struct(f">{HEAD.size + len(DELIVER) + len(self.heads.tag)}sQB").pack

    @property
    def who(self) -> str:
        return f"{self.channel.who} {self.tag}"

    def _asks_for_bundles(self) -> bool:
        asked = self.arguments.get(bundles.ARGUMENT)
        return asked is not None and asked.value is True

    def room(self, average_bytes: int) -> int:
        session = self.session
        room = self.output.room(self.queue, average_bytes)
        if room <= 0:
            return room
        if self.has_origins and self.queue.is_local and not self.queue.host.features.has_origins(self.queue):
            return 0  # The queue goes on by itself.
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
        if self.as_stored and not batch.redelivered and not self.has_origins and keys.count(key) == count:
            head, tail = self.heads[len(key)], key + END_BYTE
            pieces: list[bytes] = [b""] * (3 * count)
            pieces[0::3] = map(self.pack, repeat(head), range(first_tag, first_tag + count), repeat(0))
            pieces[1::3] = [tail] * count
            pieces[2::3] = contents
        else:
            kinds = batch.kinds if whole else batch.kinds[lo:hi]
            queue = self.queue
            if batch.redelivered and queue.is_local and (returns := queue.extension(DeliveryLimit)) is not None:
                contents = returns.labelled(batch, lo, hi)  # Else its own node has done so.
            if self.in_bundles and queue.is_local and (sources := queue.host.features.sources_of(queue, batch, lo, hi)):
                pieces = []
                for source, start, stop in sources:
                    some = slice(start - lo, stop - lo)
                    tag = first_tag + start - lo
                    pieces += self._bundled(tag, source, batch.first + start, contents[some], keys[some], kinds[some])
            else:
                if self.has_origins and queue.is_local:
                    contents = queue.host.features.with_origins(queue, batch, lo, hi, contents)
                pieces = self._of_many_keys(first_tag, contents, keys, kinds)
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

    def _of_many_keys(self, tag: int, contents: list[bytes], keys: list[bytes], kinds: bytearray) -> list[bytes]:
        count = len(contents)
        if not self.as_stored:
            number, frame_max = self.channel.number, self.channel.connection.frame_max
            contents = [reframe(content, number, frame_max) for content in contents]
        heads = map(self.heads.__getitem__, map(len, keys))
        pieces: list[bytes] = [b""] * (4 * count)
        pieces[0::4] = map(self.pack, heads, range(tag, tag + count), [kind & REDELIVERED != 0 for kind in kinds])
        pieces[1::4] = keys
        pieces[2::4] = [END_BYTE] * count
        pieces[3::4] = contents
        return pieces

    def _bundled(
        self, tag: int, source: bytes, number: int, contents: list[bytes], keys: list[bytes], kinds: bytearray
    ) -> list[bytes]:
        """Return the frames of messages of one source, of which the first has this tag and number."""
        pieces: list[bytes] = []
        channel, frame_max = self.channel.number, self.channel.connection.frame_max
        for key, returned, start, stop in _stretches(keys, kinds):
            stretch = contents[start:stop]
            for lo, hi in bundles.portions(stretch, frame_max):
                some, at = stretch[lo:hi], start + lo
                if bundles.fits(some[0], frame_max):
                    bundle = bundles.packed(bundles.Bundle(source, number + at, some))
                    pieces += bundles.delivery_frame(channel, tag + at, returned, key, bundle)
                else:
                    some = with_origins(some, source, number + at)
                    pieces += self._of_many_keys(tag + at, some, [key], kinds[at : at + 1])
        return pieces

    def on_queue_deleted(self) -> None:
        self.channel.on_consumer_ended(self.tag)


def _stretches(keys: list[bytes], kinds: bytearray) -> list[tuple[bytes, bool, int, int]]:
    """Return neighbours with the same key, delivered again or not, and which places they have."""
    count = len(keys)
    if keys.count(keys[0]) == count and kinds.count(kinds[0]) == count:
        return [(keys[0], kinds[0] & REDELIVERED != 0, 0, count)]
    found, at = [], 0
    for (key, returned), some in groupby(zip(keys, [kind & REDELIVERED != 0 for kind in kinds], strict=True)):
        stop = at + sum(1 for _ in some)
        found.append((key, returned, at, stop))
        at = stop
    return found
