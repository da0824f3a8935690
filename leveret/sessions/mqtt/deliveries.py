"""Messages to a client: PUBLISH packets made of contents, in bundles, and the acknowledgements that come back.

A PUBLISH is a head (fixed header, topic), a packet identifier if it has one, a tail (properties), and the payload as it
is stored. For messages of one routing key with the same properties and size, head and tail are the same: they are made
once (a `Plan`), found by the bytes before the payload, and a message costs a comparison and a slice.

What a plan says depends on the client's subscriptions: a message has the highest QoS of those that match its topic, and
their subscription identifiers. A message whose topic matches none (see `routing_keys`), that the client published
itself and does not want, that is larger than the client takes, or that has expired, is settled unseen, and counted.

**QoS 1**: unacknowledged until PUBACK.

**QoS 2**: unacknowledged until PUBREC; from then on only the packet identifier is remembered (`releasing`), until
PUBCOMP. A client has a message once if the message has the same identifier whenever it is sent, and is not sent once
the client has let go of that identifier. For a session that outlives its connection that holds across everything that
can be lost, since

- the identifier is made of the message's number in its queue. Numbers are the same at every node, after a restart, and
  after a failover; the queue's node tells them to others (`DELIVER_NUMBERED`). If the identifier is in use, because of
  a message that is 65,535 numbers older, the message waits for it (`waiting`).
- nothing is sent before it is safe (`Consumer.is_exact`). Otherwise the message could be lost with its node, be
  published again and come under another number, and another message would have its own.
- PUBREC is agreed on in the cluster, before the message is settled: that the identifier is to be released (`releasing`)
  and that the client has the number (`taken`). It is a few bytes for all messages of a turn, with those of all other
  clients. The queue's log alone does not do: who knows that a message is settled, and only there, knows it when the
  queue has written it, and the queue may be elsewhere, or just lose its master.

If the process dies, or the queue's does, or the connection is lost,

    after PUBLISH is sent          the message comes again, under its identifier, with DUP; a client that has it does
                                   not take it again
    after PUBREC has come          likewise: the client answers with PUBREC again
    after that is agreed on        PUBREL is sent after the reconnect. Should the message come again, it is among those
                                   taken, and settled unseen
    after the message is settled   the same: that may have been lost with the queue's master
    after PUBREL is sent           the same
    after PUBCOMP has come         PUBREL is sent again, and the client answers again. Only when it is agreed on that
                                   the identifier is released, another message can have it
    after that                     the message is still among those taken, for good: see `metadata.client_sessions`

What is not covered: a message that was sent, and then is dropped by a limit, by its expiry, by an operator, or because
the client has unsubscribed and reconnected, before PUBREC has come. Its identifier stays with the client, which will
not take the message that has it next. And a queue without mirrors that moves away from a node that leaves the cluster:
its messages have other numbers then.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import repeat
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from leveret.base.range_set import RangeSet
from leveret.broker.client_ids.client_ids import SessionChange
from leveret.broker.remote.client_end import RemoteBatch
from leveret.metadata.mqtt.records import NumberRange
from leveret.protocol.mqtt import properties as p
from leveret.protocol.mqtt.packets import V5, Ack
from leveret.protocol.mqtt.primitives import encode_text, encode_varint
from leveret.protocol.mqtt.properties import Prop, write_properties
from leveret.protocol.mqtt.reason_codes import Reason, protocol_error
from leveret.sessions.mqtt.ack_runs import answers_to, ids_at, ranges_of
from leveret.sessions.mqtt.granted import Granted
from leveret.sessions.mqtt.messages import from_content, head_of, like, payload_of
from leveret.sessions.mqtt.shared_delivery import SharedDelivery, is_shared
from leveret.storage.format.queue_block import EXPIRES, PERSISTENT, REDELIVERED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from leveret.broker.broker import AnyQueue
    from leveret.broker.delivery.batch import Batch
    from leveret.broker.delivery.offsets import Start
    from leveret.broker.session.session import Session
    from leveret.broker.session.wanted import ConsumerWanted
    from leveret.metadata.model.records import QueueSpec
    from leveret.metadata.model.refusals import Refusal
    from leveret.metadata.mqtt.records import ClientSession
    from leveret.sessions.mqtt.connection import Connection
    from leveret.sessions.mqtt.messages import Message

IDS: Final = 65_535
PLANS_MAX: Final = 512
FORMS_MAX: Final = 64
PUBREL: Final = b"\x62\x02"


_NO_ALIASES: Final[dict[str, int]] = {}  # Of all clients that take none.


class Plan(NamedTuple):
    """How messages of one key, with the same properties and size, are sent."""

    head: bytes
    tail: bytes
    qos: int
    skip: int  # Where the payload begins in the content; 0: it is not one piece.


class Waiting(NamedTuple):
    """A message of QoS 2 that waits for its packet identifier."""

    packet_id: int
    number: int
    tag: int
    head: bytes
    rest: bytes  # What follows the packet identifier.


class Deliveries:
    """The delivering side of a connection."""

    __slots__ = (
        "acked", "alias_max", "aliases", "connection", "consumers", "dropped", "finishing", "inflight", "is_exact",
        "is_kept", "next_id", "received", "releasing", "session", "shared", "taken", "taken_of", "taken_through",
        "waiting", "window",
    )  # fmt: skip

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.session: Session | None = None
        self.consumers: dict[str, MqttConsumer] = {}  # By queue.
        self.window = 0  # How many packet identifiers may be in use.
        self.alias_max = 0
        self.aliases = _NO_ALIASES
        self.inflight: dict[int, int] = {}  # By packet identifier: the delivery tag.
        self.received: dict[int, int] = {}  # Those of QoS 2: the message's number, or 0 if it is not known.
        # Sets as dicts: ten thousand connections have them, and an empty dict is a third of an empty set.
        self.releasing: dict[int, None] = {}
        self.finishing: dict[int, None] = {}  # PUBCOMP has come, and is not agreed on.
        self.waiting: list[Waiting] = []  # Messages whose identifier is in use, and those behind them.
        self.is_exact = False  # There is, or was, a subscription of QoS 2, and the session outlives the connection.
        self.taken: RangeSet | None = None  # Numbers of QoS 2 messages that the client has,
        self.taken_of = ""  # as this queue has given them.
        self.taken_through = 0  # The highest of them.
        self.shared: SharedDelivery | None = None  # Of a client that has messages of shared subscriptions passed on.
        self.acked: list[int] = []  # Tags to be settled.
        self.is_kept = False
        self.next_id = 0
        self.dropped = 0

    def begin(self, session: Session, receive_max: int, alias_max: int, claimed: ClientSession) -> None:
        """The client has its session."""
        self.session = session
        self.window = min(receive_max, self.connection.limits.prefetch)
        self.alias_max = alias_max
        if alias_max:
            self.aliases = {}
        if claimed.releasing:
            self.releasing = dict.fromkeys(claimed.releasing)
        self.is_kept = self.connection.login_part.expiry_s > 0
        self.taken_of = claimed.taken_of
        self._take(claimed.taken)

    def _take(self, ranges: Iterable[tuple[int, int]]) -> None:
        for first, last in ranges:
            if self.taken is None:
                self.taken = RangeSet()
            self.taken.add(first, last)
            self.taken_through = max(self.taken_through, last)

    def number_by(self, queue: str) -> None:
        """The numbers of messages are those of this queue from now on."""
        if queue != self.taken_of:
            self.taken_of, self.taken, self.taken_through = queue, None, 0

    def has_taken(self, number: int) -> bool:
        return self.taken is not None and number in self.taken

    def expect_exact(self) -> None:
        """There is a subscription of QoS 2."""
        self.is_exact = self.is_kept

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
        return self.window - len(self.inflight) - len(self.releasing) - len(self.waiting)

    def room_of_group(self) -> int:
        """How many messages of a shared subscription can be sent: what is on its way to the own queue counts."""
        return self.room() - (0 if self.shared is None else self.shared.under_way)

    def pass_on(self, group: str, tag: int, content: bytes, key: bytes, kind: int) -> None:
        """Have a QoS 2 message of a shared subscription sent from the queue of the session: see `shared_delivery`."""
        if self.shared is None:
            self.shared = SharedDelivery(self.connection)
        self.shared.add(group, tag, content, key, kind)
        self.connection.broker.confirming[self] = None

    def is_used(self, packet_id: int) -> bool:
        return packet_id in self.inflight or packet_id in self.releasing or packet_id in self.finishing

    def identify(self, number: int | None) -> int:
        """A free packet identifier; that of the message's number, if it is known and free."""
        if number is None:  # Far from those that are made of numbers, most likely.
            self.next_id = (self.next_id - 1) % IDS
            number = self.next_id
        packet_id = 1 + number % IDS
        while self.is_used(packet_id):
            packet_id = packet_id % IDS + 1
        return packet_id

    def wait(self, waiting: Waiting) -> None:
        """Send a message when its identifier is free."""
        self.waiting.append(waiting)

    def _on_freed(self) -> None:
        """Packet identifiers are free: send the messages that wait for them."""
        waiting, output = self.waiting, self.connection.output
        while waiting and not self.is_used(waiting[0].packet_id):
            packet_id, number, tag, head, rest = waiting.pop(0)
            self.inflight[packet_id] = tag
            if head[0] & 6 == 4:
                self.received[packet_id] = number
            pieces = [head, packet_id.to_bytes(2, "big"), rest]
            output.put(pieces, sum(map(len, pieces)))

    def has_again(self, packet_id: int, number: int, tag: int) -> bool:
        """A message has come again; tell whether it is out under this identifier, on this connection. Its queue has
        another master, and the client is not sent it again."""
        if self.received.get(packet_id) != number:
            return False
        session = self.session
        assert session is not None
        former, self.inflight[packet_id] = self.inflight[packet_id], tag
        session.acknowledge(session.unacked.take_range(former, former))  # Its former master is gone.
        return True

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
        if not self.received.keys().isdisjoint(ids):
            raise protocol_error("PUBACK for a message of QoS 2")
        self.acked += map(self.inflight.pop, ids)
        if self.waiting:
            self._on_freed()

    def on_ack_packet(self, ack: Ack) -> None:
        """One with a reason or with properties."""
        packet_id = ack.packet_id
        if ack.kind == p.PUBREC and ack.reason >= 0x80:
            tag = self.inflight.pop(packet_id, None)
            self.received.pop(packet_id, None)
            if tag is not None:
                self.acked.append(tag)
                self._on_freed()
        elif ack.kind == p.PUBCOMP:
            self._on_completed((packet_id,))
        else:
            self._on_ack(ack.kind << 4, packet_id)

    def _on_received(self, ids: tuple[int, ...], answers: bytes) -> None:
        """PUBREC: the client has these QoS 2 messages. `answers`: PUBREL for each."""
        connection = self.connection
        if not self.received.keys() >= set(ids):
            raise protocol_error("PUBREC for a message of QoS 1")
        tags = list(map(self.inflight.pop, ids))
        numbers = list(map(self.received.pop, ids))
        self.releasing.update(dict.fromkeys(ids))
        if not self.is_kept:
            self.acked += tags
            connection.output.send(answers)
            return

        def on_agreed(refusal: Refusal | None) -> None:
            if connection.closed:
                return
            if refusal is not None:
                connection.end(Reason.SERVER_UNAVAILABLE, refusal.text)
                return
            self.settle_soon(*tags)
            connection.output.send(answers)

        taken = tuple(NumberRange(first, first + count - 1) for first, count in ranges_of(numbers) if first)
        self._take(taken)
        change = SessionChange(releasing=ranges_of(ids), taken_of=self.taken_of, taken=taken)
        connection.change_session(change, on_agreed)

    def _on_completed(self, ids: tuple[int, ...]) -> None:
        """PUBCOMP: the packet identifiers are free."""
        known = self.releasing.keys() & ids
        for packet_id in known:
            del self.releasing[packet_id]
        if self.is_kept and known:

            def on_agreed(refusal: Refusal | None) -> None:
                if refusal is None and not self.connection.closed:
                    for packet_id in known:
                        del self.finishing[packet_id]
                    self._on_freed()

            self.finishing.update(dict.fromkeys(known))
            self.connection.change_session(SessionChange(released=ranges_of(known)), on_agreed)
        else:
            self._on_freed()
        dirty = self.connection.broker.dirty
        for consumer in self.consumers.values():
            dirty[consumer.queue] = None

    def settle_soon(self, *tags: int) -> None:
        """Settle deliveries at the end of this turn: a queue that hands out must not be changed meanwhile."""
        self.acked += tags
        self.connection.broker.confirming[self] = None

    def send_confirms(self) -> None:
        if self.connection.closed:
            return
        if self.acked:
            self.settle()
        if self.shared is not None and self.shared.gathered:
            self.shared.flush()

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


@lru_cache(1_024)
def _packer(size: int) -> Callable[..., bytes]:
    """Packs a packet identifier and so many bytes behind it."""
    return Struct(f">H{size}s").pack


class MqttConsumer:
    """The consumer of one queue of a session. `group`: the subscription whose queue it shares with other clients."""

    __slots__ = (
        "begins_at", "cancels_on_failover", "connection", "deliveries", "exclusive", "forms", "group", "head",
        "is_high", "key", "no_ack", "output", "pack", "plans", "prefetch", "prefix", "priority", "qos", "queue",
        "session", "size", "skip", "spec", "tag", "tail", "timeout_ms", "unacked",
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
        self.spec: QueueSpec | None = None  # Of the queue, when it last delivered.
        self.pack = _packer(0)
        self.plans: dict[tuple[bytes, bytes], Plan | None] = {}
        self.forms: dict[bytes, Message] = {}  # By what comes before the payload: messages whose key tells the topic.
        self.forget_plans()

    def forget_plans(self) -> None:
        self.plans.clear()
        # The last plan that was used, if the payload is one piece: what messages look like that it fits.
        self.key = self.prefix = self.head = self.tail = b""
        self.size = self.skip = self.qos = 0

    # -- What its queue asks -------------------------------------------------------------------------------------

    @property
    def is_exact(self) -> bool:
        """Whether QoS 2 matters. A queue at another node is asked to be exact in any case: it cannot be told later."""
        if self.group or self.no_ack:
            return False
        return self.deliveries.is_exact or (self.deliveries.is_kept and not self.queue.is_local)

    def room(self, average_bytes: int) -> int:
        room = self.output.room(self.queue, average_bytes)
        if self.group:
            return min(room, self.deliveries.room_of_group())
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
        if self.no_ack:
            pieces = self._alike(0, first, contents, keys)
            if pieces is None:
                pieces = self._at_most_once(contents, keys)
        else:
            if self.deliveries.shared is not None and not self.group:
                self.deliveries.shared.on_delivered(keys)
            number = self._number_of(batch, lo)
            pieces = None if batch.redelivered else self._alike(number, first, contents, keys)
            if pieces is None:
                pieces = self._numbered(batch.kinds[lo:hi], number, first, contents, keys)
        if pieces:
            self.output.put(pieces, batch.average_bytes() * (hi - lo))

    def _number_of(self, batch: Batch, at: int) -> int:
        """The number of a message in the client's own queue; 0 if it is not known, or the queue is shared."""
        if self.group:
            return 0
        queue = self.queue
        if queue.spec is not self.spec:
            self.spec, view = queue.spec, queue.spec.view
            # After a forced promotion, numbers of messages that were lost are given again.
            self.deliveries.number_by(f"{queue.spec.id}.{0 if view is None else view.lossy}")
        if queue.is_local:
            return batch.first + at
        first = batch.first_number if isinstance(batch, RemoteBatch) else 0
        return first and first + at

    # -- Packets -------------------------------------------------------------------------------------------------

    def _alike(self, number: int, first_tag: int, contents: list[bytes], keys: list[bytes]) -> list[bytes] | None:
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
        if not number or number <= deliveries.taken_through or deliveries.waiting:
            return None
        first_id = 1 + number % IDS
        ids = range(first_id, first_id + count)
        if ids[-1] > IDS or not (
            deliveries.inflight.keys().isdisjoint(ids)
            and deliveries.releasing.keys().isdisjoint(ids)
            and deliveries.finishing.keys().isdisjoint(ids)
        ):
            return None
        deliveries.inflight.update(zip(ids, range(first_tag, first_tag + count), strict=True))
        if self.qos == 2:
            deliveries.received.update(zip(ids, range(number, number + count), strict=True))
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
        self, kinds: bytearray, number: int, first_tag: int, contents: list[bytes], keys: list[bytes]
    ) -> list[bytes]:
        deliveries, pieces = self.deliveries, list[bytes]()
        inflight = deliveries.inflight
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
            if kinds[at] & REDELIVERED:
                head = bytes((head[0] | 8,)) + head[1:]
            own = number and number + at
            if qos == 2 and self.group and deliveries.is_kept:
                deliveries.pass_on(self.group, tag, content, key, kinds[at] & (PERSISTENT | EXPIRES))
                continue
            if qos == 2 and own:
                if deliveries.has_taken(own):
                    deliveries.settle_soon(tag)  # The client has it already.
                    continue
                packet_id = 1 + own % IDS
                if deliveries.has_again(packet_id, own, tag):
                    continue
                if deliveries.waiting or deliveries.is_used(packet_id):
                    deliveries.wait(Waiting(packet_id, own, tag, head, tail + payload))
                    continue
            else:
                packet_id = deliveries.identify(own or None)
            inflight[packet_id] = tag
            if qos == 2:
                deliveries.received[packet_id] = own
            pieces += (head, packet_id.to_bytes(2, "big") + tail, payload)
        return pieces

    def _plan(self, key: bytes, content: bytes) -> Plan | None:
        """How a message is sent; None if it is not."""
        if self.skip and len(content) == self.size and content.startswith(self.prefix):
            skip, prefix = self.skip, self.prefix  # Nothing but the key differs from the last message.
        else:
            skip = head_of(content)
            prefix = content[:skip] if skip else content
        known = self.plans.get((key, prefix))
        if known is None:
            if (key, prefix) in self.plans:
                return None
            known, lasts = self._new_plan(key, content, skip, prefix)
            if lasts:
                if len(self.plans) >= PLANS_MAX:
                    self.plans.clear()
                self.plans[key, prefix] = known
            if known is None or not lasts:
                return known
        if skip:
            self.key, self.prefix, self.size, self.skip, self.qos = key, prefix, len(content), skip, known.qos
            if known.qos:
                self.head, self.tail = known.head, known.tail
                self.pack = _packer(len(known.tail))
            else:
                self.head, self.tail = known.head + known.tail, b""
        return known

    def _message(self, key: bytes, content: bytes, skip: int, prefix: bytes) -> Message | None:
        """The message that a content is. Messages that differ in nothing but topic and payload are read once."""
        form = self.forms.get(prefix) if skip else None
        if form is not None:
            return like(form, key[key[0] + 2 :])
        message = from_content(key[key[0] + 2 :], content)
        if skip and message is not None and message.is_told and message.expires_ms is None:
            if len(self.forms) >= FORMS_MAX:
                self.forms.clear()
            self.forms[prefix] = replace(message, properties=message.properties.copy())
        return message

    def _new_plan(self, key: bytes, content: bytes, skip: int, prefix: bytes) -> tuple[Plan | None, bool]:
        """The plan, and whether it is the same for the next message that looks like this one."""
        connection, deliveries = self.connection, self.deliveries
        message = self._message(key, content, skip, prefix)
        if message is None:
            return None, True
        group = self.group
        if not group and is_shared(key):
            group = key[1 : 1 + key[0]].decode()
        granted = connection.subscriptions.granted(message, self.is_high, group)
        if granted is None:
            if self.group or not group:
                return None, True
            granted = Granted(2, False, ())  # The client has left the group, and the message is its own.
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
