"""Messages to a client: PUBLISH packets made of contents, in bundles, and the acknowledgements that come back.

A PUBLISH is a head (fixed header, topic), a packet identifier if it has one, a tail (properties), and the payload as it
is stored. For messages of one routing key with the same properties and size, head and tail are the same: they are made
once (a `Plan`), found by the bytes before the payload, and a message costs a comparison and a slice.

What a plan says depends on the client's subscriptions: a message has the highest QoS of those that match its topic, and
their subscription identifiers. A message whose topic matches none (see `routing_keys`), that the client published
itself and does not want, that is larger than the client takes, or that has expired, is settled unseen, and counted.

**QoS 1**: unacknowledged until PUBACK. **QoS 2**: until PUBREC; from then on only the packet identifier is remembered
(`releasing`), until PUBCOMP. For a session that outlives its connection the cluster keeps it, from before PUBREL is
sent; a message that comes again although its PUBREC was known is settled unseen. Packet identifiers are made from a
message's number in its queue, so that a message that is sent again, to a client that has reconnected to the node of
that queue, has its first identifier again.
"""

from __future__ import annotations

from itertools import repeat
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from leveret.broker.client_ids.client_ids import SessionChange
from leveret.protocol.mqtt import properties as p
from leveret.protocol.mqtt.packets import V5, Ack
from leveret.protocol.mqtt.primitives import encode_text, encode_varint
from leveret.protocol.mqtt.properties import Prop, write_properties
from leveret.protocol.mqtt.reason_codes import Reason, protocol_error
from leveret.sessions.mqtt.ack_runs import answers_to, ids_at, ranges_of
from leveret.sessions.mqtt.messages import from_content, head_of, payload_of
from leveret.storage.format.queue_block import REDELIVERED

if TYPE_CHECKING:
    from collections.abc import Collection

    from leveret.broker.broker import AnyQueue
    from leveret.broker.delivery.batch import Batch
    from leveret.broker.delivery.offsets import Start
    from leveret.broker.session.session import Session
    from leveret.broker.session.wanted import ConsumerWanted
    from leveret.metadata.model.refusals import Refusal
    from leveret.sessions.mqtt.connection import Connection

IDS: Final = 65_535
PLANS_MAX: Final = 512
PUBREL: Final = b"\x62\x02"


class Plan(NamedTuple):
    """How messages of one key, with the same properties and size, are sent."""

    head: bytes
    tail: bytes
    qos: int
    skip: int  # Where the payload begins in the content; 0: it is not one piece.


class Deliveries:
    """The delivering side of a connection."""

    __slots__ = (
        "acked", "alias_max", "aliases", "connection", "consumers", "dropped", "inflight", "is_kept", "next_id",
        "received", "releasing", "session", "window",
    )  # fmt: skip

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.session: Session | None = None
        self.consumers: dict[str, MqttConsumer] = {}  # By queue.
        self.window = 0  # How many packet identifiers may be in use.
        self.alias_max = 0
        self.aliases: dict[str, int] = {}
        self.inflight: dict[int, int] = {}  # By packet identifier: the delivery tag.
        self.received: set[int] = set()  # Those of QoS 2.
        self.releasing: set[int] = set()
        self.acked: list[int] = []  # Tags to be settled.
        self.is_kept = False
        self.next_id = 0
        self.dropped = 0

    def begin(self, session: Session, receive_max: int, alias_max: int, releasing: Collection[int]) -> None:
        """The client has its session."""
        self.session = session
        self.window = min(receive_max, self.connection.limits.prefetch)
        self.alias_max = alias_max
        self.releasing = set(releasing)
        self.is_kept = self.connection.login_part.expiry_s > 0

    def send_releases(self) -> None:
        """Go on with what an earlier connection of the client did not complete."""
        for packet_id in sorted(self.releasing):
            self.connection.output.send(PUBREL + packet_id.to_bytes(2, "big"))

    def on_subscriptions(self) -> None:
        """The subscriptions have changed: what was made of them is void."""
        for consumer in self.consumers.values():
            consumer.forget_plans()

    # -- Packet identifiers --------------------------------------------------------------------------------------

    def room(self) -> int:
        return self.window - len(self.inflight) - len(self.releasing)

    def identify(self, number: int | None) -> int:
        """A free packet identifier; that of the message's number, if it is known and free."""
        if number is None:
            self.next_id = self.next_id % IDS + 1
            number = self.next_id - 1
        packet_id = 1 + number % IDS
        while packet_id in self.inflight or packet_id in self.releasing:
            packet_id = packet_id % IDS + 1
        return packet_id

    # -- Acknowledgements ----------------------------------------------------------------------------------------

    def on_acks(self, head: int, data: bytes, at: int, count: int) -> None:
        """So many packets with this head, at `at`, that are just an identifier each."""
        ids = ids_at(data, at, count)
        if 0 in ids:
            raise protocol_error("packet identifier 0")
        if head == 0x62:
            self.connection.publisher.on_releases(ids, data, at)
        elif head == 0x70:
            self._on_completed(ids)
        elif len(known := set(ids)) < count or not self.inflight.keys() >= known:
            # Some of an earlier connection, perhaps, or some twice.
            for packet_id in ids:
                self._on_ack(head, packet_id)
        elif head == 0x40:
            self._on_acknowledged(ids)
        else:
            self._on_received(ids, answers_to(data, at, count, 0x62))

    def _on_ack(self, head: int, packet_id: int) -> None:
        connection, answer = self.connection, PUBREL + packet_id.to_bytes(2, "big")
        if packet_id in self.inflight:
            if head == 0x40:
                self._on_acknowledged((packet_id,))
            else:
                self._on_received((packet_id,), answer)
        elif head == 0x50:
            if packet_id in self.releasing or connection.version != V5:
                connection.output.send(answer)
            else:
                connection.send(Ack(p.PUBREL, packet_id, Reason.PACKET_IDENTIFIER_NOT_FOUND))

    def _on_acknowledged(self, ids: tuple[int, ...]) -> None:
        """PUBACK: the client has these messages."""
        if not self.received.isdisjoint(ids):
            raise protocol_error("PUBACK for a message of QoS 2")
        self.acked += map(self.inflight.pop, ids)

    def on_ack_packet(self, ack: Ack) -> None:
        """One with a reason or with properties."""
        packet_id = ack.packet_id
        if ack.kind == p.PUBREC and ack.reason >= 0x80:
            tag = self.inflight.pop(packet_id, None)
            self.received.discard(packet_id)
            if tag is not None:
                self.acked.append(tag)
        elif ack.kind == p.PUBCOMP:
            self._on_completed((packet_id,))
        else:
            self._on_ack(ack.kind << 4, packet_id)

    def _on_received(self, ids: tuple[int, ...], answers: bytes) -> None:
        """PUBREC: the client has these QoS 2 messages. `answers`: PUBREL for each."""
        connection = self.connection
        if not self.received.issuperset(ids):
            raise protocol_error("PUBREC for a message of QoS 1")
        tags = list(map(self.inflight.pop, ids))
        self.received.difference_update(ids)
        self.releasing.update(ids)
        if not self.is_kept:
            self.acked += tags
            connection.output.send(answers)
            return

        def on_agreed(refusal: Refusal | None) -> None:
            if not connection.closed and refusal is None:
                self.settle_soon(*tags)
                connection.output.send(answers)

        connection.change_session(SessionChange(releasing=ranges_of(ids)), on_agreed)

    def _on_completed(self, ids: tuple[int, ...]) -> None:
        """PUBCOMP: the packet identifiers are free."""
        known = self.releasing.intersection(ids)
        self.releasing -= known
        if self.is_kept and known:
            self.connection.change_session(SessionChange(released=ranges_of(known)), lambda refusal: None)
        dirty = self.connection.broker.dirty
        for consumer in self.consumers.values():
            dirty[consumer.queue] = None

    def settle_soon(self, *tags: int) -> None:
        """Settle deliveries at the end of this turn: a queue that hands out must not be changed meanwhile."""
        self.acked += tags
        self.connection.broker.confirming[self] = None

    def send_confirms(self) -> None:
        if self.acked and not self.connection.closed:
            self.settle()

    def settle(self) -> None:
        """Settle what was acknowledged, in as few ranges as possible."""
        session = self.session
        assert session is not None
        tags, self.acked = sorted(self.acked), []
        first = last = tags[0]
        taken = []
        for tag in tags[1:]:
            if tag != last + 1:
                taken += session.unacked.take_range(first, last)
                first = tag
            last = tag
        taken += session.unacked.take_range(first, last)
        session.acknowledge(taken)


class MqttConsumer:
    """The consumer of one queue of a session. `group`: the subscription whose queue it shares with other clients."""

    __slots__ = (
        "begins_at", "cancels_on_failover", "connection", "deliveries", "exclusive", "group", "head", "is_high", "key",
        "no_ack", "output", "pack", "plans", "prefetch", "prefix", "priority", "qos", "queue", "session", "size",
        "skip", "tag", "tail", "timeout_ms", "unacked",
    )  # fmt: skip

    def __init__(
        self, connection: Connection, queue: AnyQueue, wanted: ConsumerWanted, start: Start | None, group: str
    ) -> None:
        session = connection.session
        assert session is not None
        self.connection = connection
        self.deliveries = connection.deliveries
        self.output = connection.output
        self.session = session
        self.queue = queue
        self.group = group
        self.tag = wanted.tag
        self.no_ack = wanted.no_ack
        self.is_high = not wanted.no_ack  # Its subscriptions have QoS 1 or 2.
        self.exclusive = wanted.exclusive
        self.prefetch = wanted.prefetch
        self.begins_at = start
        self.cancels_on_failover, self.priority, self.timeout_ms = session.consumer_options(wanted.arguments)
        self.unacked = 0
        self.pack = Struct(">H0s").pack
        self.plans: dict[tuple[bytes, bytes], Plan | None] = {}
        self.forget_plans()

    def forget_plans(self) -> None:
        self.plans.clear()
        # The last plan that was used, if the payload is one piece: what messages look like that it fits.
        self.key = self.prefix = self.head = self.tail = b""
        self.size = self.skip = self.qos = 0

    # -- What its queue asks -------------------------------------------------------------------------------------

    def room(self, average_bytes: int) -> int:
        room = self.output.room(self.queue, average_bytes)
        return room if self.no_ack else min(room, self.deliveries.room())

    def limit(self) -> int:
        return 0 if self.no_ack else self.prefetch

    def shares_prefetch(self) -> bool:
        return False

    def on_queue_deleted(self) -> None:
        self.session.forget_consumer(self.tag)
        self.connection.subscriptions.on_queue_deleted(self)

    def deliver(self, batch: Batch, lo: int, hi: int) -> None:
        first = self.session.on_delivered(self, batch, lo, hi)
        contents, keys = batch.contents[lo:hi], batch.keys[lo:hi]
        pieces = None if batch.redelivered else self._alike(batch, lo, first, contents, keys)
        if pieces is None:
            if self.no_ack:
                pieces = self._at_most_once(contents, keys)
            else:
                pieces = self._numbered(batch, lo, first, contents, keys)
        if pieces:
            self.output.put(pieces, batch.average_bytes() * (hi - lo))

    # -- Packets -------------------------------------------------------------------------------------------------

    def _alike(
        self, batch: Batch, lo: int, first_tag: int, contents: list[bytes], keys: list[bytes]
    ) -> list[bytes] | None:
        """The packets of messages that all look like the last one; None if they do not. Nothing but slices is made for
        each message."""
        count, prefix, size, skip = len(contents), self.prefix, self.size, self.skip
        if not skip or keys.count(self.key) != count:
            return None
        payloads = [one[skip:-1] for one in contents if len(one) == size and one.startswith(prefix)]
        if len(payloads) != count:
            return None
        deliveries = self.deliveries
        if not self.qos:
            pieces = [self.head] * (2 * count)
            pieces[1::2] = payloads
            if not self.no_ack:
                deliveries.settle_soon(*range(first_tag, first_tag + count))
            return pieces
        if not self.queue.is_local or self.group:
            return None
        first_id = 1 + (batch.first + lo) % IDS
        ids = range(first_id, first_id + count)
        if ids[-1] > IDS or not (deliveries.inflight.keys().isdisjoint(ids) and deliveries.releasing.isdisjoint(ids)):
            return None
        deliveries.inflight.update(zip(ids, range(first_tag, first_tag + count), strict=True))
        if self.qos == 2:
            deliveries.received.update(ids)
        pieces = [self.head] * (3 * count)
        pieces[1::3] = map(self.pack, ids, repeat(self.tail))
        pieces[2::3] = payloads
        return pieces

    def _at_most_once(self, contents: list[bytes], keys: list[bytes]) -> list[bytes]:
        pieces: list[bytes] = []
        for content, key in zip(contents, keys, strict=True):
            if key == self.key and len(content) == self.size and content.startswith(self.prefix):
                pieces.append(self.head)
                pieces.append(content[self.skip : -1])
                continue
            plan = self._plan(key, content)
            if plan is None:
                self.deliveries.dropped += 1
            else:
                pieces += (plan.head + plan.tail, content[plan.skip : -1] if plan.skip else payload_of(content))
        return pieces

    def _numbered(
        self, batch: Batch, lo: int, first_tag: int, contents: list[bytes], keys: list[bytes]
    ) -> list[bytes]:
        deliveries, pieces = self.deliveries, list[bytes]()
        inflight, kinds = deliveries.inflight, batch.kinds
        number = batch.first + lo if self.queue.is_local and not self.group else None
        for at, (content, key) in enumerate(zip(contents, keys, strict=True)):
            tag = first_tag + at
            if key == self.key and len(content) == self.size and content.startswith(self.prefix):
                head, tail, qos, skip = self.head, self.tail, self.qos, self.skip
            else:
                plan = self._plan(key, content)
                if plan is None:
                    deliveries.dropped += 1
                    deliveries.settle_soon(tag)
                    continue
                head, tail, qos, skip = plan
            payload = content[skip:-1] if skip else payload_of(content)
            if not qos:
                deliveries.settle_soon(tag)
                pieces += (head, tail, payload)
                continue
            again = kinds[lo + at] & REDELIVERED
            if again:
                head = bytes((head[0] | 8,)) + head[1:]
                if qos == 2 and number is not None and 1 + (number + at) % IDS in deliveries.releasing:
                    deliveries.settle_soon(tag)  # The client has it already.
                    continue
            packet_id = deliveries.identify(None if number is None else number + at)
            inflight[packet_id] = tag
            if qos == 2:
                deliveries.received.add(packet_id)
            pieces += (head, packet_id.to_bytes(2, "big") + tail, payload)
        return pieces

    def _plan(self, key: bytes, content: bytes) -> Plan | None:
        """How a message is sent; None if it is not."""
        skip = head_of(content)
        prefix = content[:skip] if skip else content
        known = self.plans.get((key, prefix))
        if known is None:
            if (key, prefix) in self.plans:
                return None
            known, lasts = self._new_plan(key, content, skip)
            if lasts:
                if len(self.plans) >= PLANS_MAX:
                    self.plans.clear()
                self.plans[key, prefix] = known
            if known is None or not lasts:
                return known
        if skip:
            self.key, self.prefix, self.size, self.skip, self.qos = key, prefix, len(content), skip, known.qos
            self.head, self.tail = (known.head, known.tail) if known.qos else (known.head + known.tail, b"")
            self.pack = Struct(f">H{len(known.tail)}s").pack
        return known

    def _new_plan(self, key: bytes, content: bytes, skip: int) -> tuple[Plan | None, bool]:
        """The plan, and whether it is the same for the next message that looks like this one."""
        connection, deliveries = self.connection, self.deliveries
        message = from_content(key[key[0] + 2 :], content)
        if message is None:
            return None, True
        granted = connection.subscriptions.granted(message, self.is_high, self.group)
        if granted is None:
            return None, True
        qos = 0 if self.no_ack else min(granted.qos, 1 if message.qos is None else message.qos)
        retain = message.retained or (message.retain and granted.retain_as_published)
        topic, tail, lasts, alias = message.topic, b"", True, 0
        if connection.version == V5:
            properties = message.properties
            if granted.identifiers:
                properties[Prop.SUBSCRIPTION_ID] = list(granted.identifiers)
            if message.expires_ms is not None:
                lasts = False
                now_ms = connection.broker.wall_ms
                waited_ms = 0 if message.published_ms is None else max(now_ms - message.published_ms, 0)
                if waited_ms >= message.expires_ms > 0:
                    return None, False
                properties[Prop.MESSAGE_EXPIRY] = -(-(message.expires_ms - waited_ms) // 1_000)
            if deliveries.alias_max:
                alias = deliveries.aliases.get(topic, 0)
                if alias:
                    properties[Prop.TOPIC_ALIAS], topic = alias, ""
                elif len(deliveries.aliases) < deliveries.alias_max:
                    alias = properties[Prop.TOPIC_ALIAS] = len(deliveries.aliases) + 1
                    lasts = False  # From the next one on, the alias does.
            tail = write_properties(properties)
        name, size = encode_text(topic), len(content) - skip - 1 if skip else len(payload_of(content))
        length = encode_varint(len(name) + (2 if qos else 0) + len(tail) + size)
        head = bytes((0x30 | qos << 1 | retain,)) + length + name
        if len(head) + (2 if qos else 0) + len(tail) + size > connection.client_packet_max:
            return None, True
        if alias and topic:
            deliveries.aliases[topic] = alias
        return Plan(head, tail, qos, skip), lasts
