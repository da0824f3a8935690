"""PUBLISH packets of a client: from bytes to queues, and PUBACK, PUBREC and PUBCOMP back.

Three things keep the hot path short, as with AMQP (`sessions.amqp.publish_fast_path`):

- *Routes are remembered.* Where a topic leads is looked up once, by its bytes, until a binding, a queue or a permission
  of the vhost changes.
- *Publishes travel in bundles.* Contents of one kind, bound for the same queues, gather until something else comes
  along, and go to the queues together (`submit`). One confirm stands for all of them.
- *The head of a content is made once* for each QoS and size of payload. A content is that head, the payload and a byte.

Publishes with properties, with the retain flag, or to topics whose route depends on the message take the longer way,
through `Publish`.

**QoS 1 and 2** are acknowledged when every queue has the message safe: PUBACK, or PUBREC. The packet identifiers of
QoS 2 publishes whose PUBREL has not come are remembered (`received`), so that a PUBLISH that is sent again is not
published again. For a session that outlives its connection they are part of what the cluster keeps of it: they are
agreed on before the message is published, each with a number of its own; a bundle has consecutive ones. The message is
published under that number, by a producer that is named after the session; should the client send it again after its
node was lost, wherever it connects then, queues that have the number pass it over (see `broker.queue.dedup`).

**A refused QoS 2 publish** may be in some of its queues. With the refusal its identifier is free, but nobody says that
the client has read it. If the client sends the message again (DUP), it must not get another number, and if it sends
another message that was lost on its first way (DUP, too), that one must not get the number of the first. The two look
alike, so both are refused: the first had to be, and the second is in no queue. So the cluster keeps the identifiers of
the last refusals, with 0 instead of a number. A publish without DUP is a new message. With the PUBREL of a message that
was numbered after a refusal was sent, the client has read the refusal, or it would have sent the refused one again
first; then the cluster forgets it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from leveret.broker.client_ids.client_ids import SessionChange
from leveret.broker.delivery.publish_numbers import Origin
from leveret.broker.fanout import FEW
from leveret.broker.session.checks import Refused
from leveret.broker.session.message import content_of
from leveret.broker.session.session import arguments_of
from leveret.metadata.mqtt.records import RetainedMessage
from leveret.protocol import frames
from leveret.protocol import properties as amqp
from leveret.protocol.errors import ReplyCode
from leveret.protocol.mqtt import properties as p
from leveret.protocol.mqtt.decoder import decode
from leveret.protocol.mqtt.encoder import encode
from leveret.protocol.mqtt.packets import V5, Ack, Publish
from leveret.protocol.mqtt.properties import Prop, write_properties
from leveret.protocol.mqtt.reason_codes import MqttError, Reason, protocol_error
from leveret.protocol.mqtt.topics import BadTopic, check_name, text_of
from leveret.sessions.mqtt.ack_runs import answers_to, numbered_ranges, ranges_of
from leveret.sessions.mqtt.messages import headers_of, to_content
from leveret.sessions.mqtt.routing_keys import exact_key_of, is_told_by, key_of
from leveret.storage.format.queue_block import EXPIRES, PERSISTENT

if TYPE_CHECKING:
    from leveret.broker.broker import AnyQueue
    from leveret.broker.delivery.confirms import Pending
    from leveret.broker.vhost import Route
    from leveret.metadata.model.refusals import Refusal
    from leveret.metadata.mqtt.records import ClientSession
    from leveret.sessions.mqtt.connection import Connection

Answer: TypeAlias = bytes | Callable[[Reason], None]  # The acknowledgement of a publish, or who is told instead.

ROUTES_MAX: Final = 1_024
HEADS_MAX: Final = 256
BUNDLE_MAX: Final = 4_096
AGREEING_BYTES_MAX: Final = 4 << 20
REFUSED_MAX: Final = 256  # How many refusals are remembered of a session.
NOT_SENT: Final = 1 << 62  # Higher than any number.
ALIAS_IN_USE: Final = "a topic alias that was not set"
ACK_OF_QOS: Final = {1: b"\x40\x02", 2: b"\x50\x02"}
KIND_OF_QOS: Final = {1: p.PUBACK, 2: p.PUBREC}


class TopicRoute(NamedTuple):
    """Where the publishes of a client to one topic go."""

    topic: str
    route: Route
    further: tuple[str, ...]  # Keys beside that of the route: see `routing_keys`.
    is_plain: bool


class Phase(Enum):
    """What has become of a QoS 2 publish."""

    KNOWN = "an earlier connection had it; it is published again under its number if it is sent again"
    UNDER_WAY = "PUBREC is sent when the message is safe"
    ANSWERED = "PUBREC is sent"


class Publisher:
    """The publishing side of a connection."""

    __slots__ = (
        "agreeing_bytes", "aliases", "answers", "connection", "contents", "expected", "generation", "heads", "is_held",
        "is_numbered", "keys", "kind", "last_number", "name", "numbered", "open_count", "phases", "publisher_name",
        "queues", "received", "refused", "route_of", "through",
    )  # fmt: skip

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.generation = -1
        self.route_of: dict[bytes, TopicRoute] = {}
        self.aliases: dict[int, bytes] = {}
        self.heads: dict[int, bytes] = {}  # By size and QoS: the content up to the payload.
        self.publisher_name = ""  # The client id, if a subscription wants none of its own messages.
        # The publishes gathered: all of one kind, and bound for the same queues.
        self.contents: list[bytes] = []
        self.keys: list[bytes] = []
        self.expected: list[Answer] = []  # Their acknowledgements.
        self.queues: tuple[AnyQueue, ...] = ()
        self.kind = 0
        self.numbered: TopicRoute | None = None  # They are of QoS 2, and this topic's, and get numbers.
        self.answers: dict[int, Answer] = {}  # By the number of a publish among the session's.
        self.open_count = 0  # QoS 1 and 2 publishes that are not acknowledged.
        # QoS 2.
        self.phases: dict[int, Phase] = {}  # By packet identifier; without PUBREL so far.
        self.received: dict[int, int] = {}  # The numbers of those that an earlier connection had.
        # Whose refusal the client may not have read, the oldest first; and the last number when it was sent.
        self.refused: dict[int, int] = {}
        self.is_numbered = False  # The session outlives the connection.
        self.agreeing_bytes = 0  # Of publishes whose numbers are not agreed on.
        self.is_held = False  # Because of so many of them.
        self.last_number = 0
        self.name = b""
        self.through: dict[int, int] = {}  # By a queue's id: the last number that was sent there.

    def begin(self, is_numbered: bool, claimed: ClientSession, publisher_name: str) -> None:
        """The client has its session."""
        self.is_numbered = is_numbered
        self.name = b"mqtt %d" % claimed.born
        self.received = {packet_id: number for packet_id, number in claimed.received.items() if number}
        refused = [packet_id for packet_id, number in claimed.received.items() if not number]
        self.refused = dict.fromkeys(refused, claimed.last_number)
        self.phases = dict.fromkeys(self.received, Phase.KNOWN)
        self.last_number = claimed.last_number
        self.publisher_name = publisher_name

    def set_publisher(self, client_id: str) -> None:
        """The client has a subscription that wants none of its own messages (the client id), or no longer (nothing)."""
        if client_id != self.publisher_name:
            self.publisher_name = client_id
            self.heads.clear()

    # -- From bytes to contents ----------------------------------------------------------------------------------

    def check_routes(self) -> None:
        """Forget the routes if a queue, a binding or a permission has changed."""
        vhost = self.connection.vhost
        if vhost is not None and self.generation != vhost.generation:
            self.route_of.clear()
            self.generation = vhost.generation

    def on_publish(self, head: int, data: bytes, begin: int, start: int, end: int) -> int:
        """A PUBLISH packet, which begins at `begin`; data[start:end] is what follows its fixed header. Gives where what
        was taken in ends: packets behind it that look the same are taken in with it."""
        at = start + 2
        body = at + (data[start] << 8 | data[start + 1]) if end - start > 2 else end + 1
        topic_route = self.route_of.get(data[at:body])
        is_v5 = self.connection.version == V5
        qos = head >> 1 & 3
        payload = body + (2 if qos else 0) + is_v5
        if (
            topic_route is None
            or head & 0x09  # Retained, or sent again.
            or payload > end
            or qos == 3
            or (qos == 2 and (data[body] << 8 | data[body + 1]) in self.phases)
            or (is_v5 and data[payload - 1])  # It has properties.
            or not topic_route.is_plain
        ):
            packet = decode(self.connection.version, head, data, start, end)
            assert isinstance(packet, Publish)
            self._on_packet(packet)
            return end
        route = topic_route.route
        kind = PERSISTENT if qos else 0
        numbered = topic_route if qos == 2 and self.is_numbered else None
        if (
            route.queues is not self.queues
            or kind != self.kind
            or numbered is not self.numbered
            or len(self.contents) >= BUNDLE_MAX
        ):
            self.submit()
            self.queues, self.kind, self.numbered = route.queues, kind, numbered
        most = BUNDLE_MAX
        if len(route.queues) > FEW:
            most = self.connection.broker.fanout.portion(len(route.queues)) - len(self.contents)
            if most <= 0:
                self.submit()
                self.connection.rest_from_spreading()
                return begin
        content = self._content(qos, data[payload:end])
        before, length = len(self.contents), end - begin
        self.contents.append(content)
        try:
            if qos:
                return self._take_numbered(qos, data, begin, body, payload, length, most)
            return self._take_alike(data, begin, payload, length, most)
        finally:  # What came before a packet that ends the connection is published.
            if qos:
                del self.contents[len(self.expected) :]
            count = len(self.contents) - before
            self.keys += [route.key] * count
            route.counters.published_in += count
            route.counters.published_out += count * len(route.queues)

    def _take_alike(self, data: bytes, begin: int, payload: int, length: int, most: int) -> int:
        """Take all following publishes that look just like the one at `begin`. Gives where they end."""
        prefix, skip = data[begin:payload], payload - begin
        head = self.heads.get((length - skip) << 2)
        at, last = begin + length, min(len(data) - length, begin + length * (most - 1))
        if head is None:
            return at
        append, join, tail = self.contents.append, b"".join, frames.END_BYTE
        while at <= last and data.startswith(prefix, at):
            append(join((head, data[at + skip : at + length], tail)))
            at += length
        return at

    def _take_numbered(
        self, qos: int, data: bytes, begin: int, body: int, payload: int, length: int, most: int
    ) -> int:
        """The same for QoS 1 and 2, the one at `begin` included: packet identifiers are different."""
        prefix, skip, place = data[begin:body], payload - begin, body - begin
        tail = data[body + 2 : payload]  # Of MQTT 5.0: no properties.
        head, answer = self.heads.get((length - skip) << 2 | qos), ACK_OF_QOS[qos]
        at, last = begin, min(len(data) - length, begin + length * (most - 1))
        contents, expected, phases = self.contents, self.expected, self.phases
        while True:
            packet_id = data[at + place : at + place + 2]
            if packet_id == b"\0\0":
                raise protocol_error("packet identifier 0")
            self._count()
            expected.append(answer + packet_id)
            if qos == 2:
                phases[packet_id[0] << 8 | packet_id[1]] = Phase.UNDER_WAY
            at += length
            if (
                head is None
                or at > last
                or not data.startswith(prefix, at)
                or not data.startswith(tail, at + place + 2)
                or (qos == 2 and (data[at + place] << 8 | data[at + place + 1]) in phases)
            ):
                return at
            contents.append(b"".join((head, data[at + skip : at + length], frames.END_BYTE)))

    def _content(self, qos: int, payload: bytes) -> bytes:
        size = len(payload)
        head = self.heads.get(size << 2 | qos)
        if head is None:
            table = headers_of(qos, False, self.publisher_name)
            found = amqp.Properties(headers=table, delivery_mode=2 if qos else 1)
            content = content_of(found, payload, self._frame_max)
            if not payload or size + frames.OVERHEAD > self._frame_max > 0:
                return content
            if len(self.heads) >= HEADS_MAX:
                self.heads.clear()
            self.heads[size << 2 | qos] = content[: -size - 1]
            return content
        return b"".join((head, payload, frames.END_BYTE))

    @property
    def _frame_max(self) -> int:
        return self.connection.limits.frame_max

    def _count(self) -> None:
        limit = self.connection.limits.receive_max
        self.open_count += 1
        if self.open_count > limit and self.connection.version == V5:
            raise MqttError(Reason.RECEIVE_MAXIMUM_EXCEEDED, f"more than {limit} publishes without an answer")

    # -- The longer way ------------------------------------------------------------------------------------------

    def _on_packet(self, packet: Publish) -> None:
        self.connection.on_publish()
        topic = self._topic(packet)
        if Prop.SUBSCRIPTION_ID in packet.properties:
            raise protocol_error("a client sends no subscription identifier")
        if packet.qos == 2 and (self._is_known(packet.packet_id) or self._is_refused(packet)):
            return
        if packet.qos:
            self._count()
        try:
            found = self._find_route(topic)
        except Refused as refused:
            self._refuse(packet, refused.refusal)
            return
        is_special = packet.retain or packet.properties or packet.dup or packet.packet_id in self.phases
        if is_special or not found.is_plain:
            self.submit()
            self._publish(packet, found)
        else:
            self._gather(packet, found)

    def _gather(self, packet: Publish, found: TopicRoute) -> None:
        """The first publish on a route: like those that follow."""
        self.submit()
        route = found.route
        self.queues, self.kind = route.queues, PERSISTENT if packet.qos else 0
        self.numbered = found if packet.qos == 2 and self.is_numbered else None
        self.contents.append(self._content(packet.qos, packet.payload))
        self.keys.append(route.key)
        if packet.qos:
            self.expected.append(ACK_OF_QOS[packet.qos] + packet.packet_id.to_bytes(2, "big"))
            if packet.qos == 2:
                self.phases[packet.packet_id] = Phase.UNDER_WAY
        route.counters.published_in += 1
        route.counters.published_out += len(route.queues)

    def _topic(self, packet: Publish) -> bytes:
        """The topic that the packet names, by its alias if need be."""
        alias, topic = packet.properties.pop(Prop.TOPIC_ALIAS, None), packet.topic.encode()
        if alias is None:
            return topic
        if alias > self.connection.limits.topic_alias_max:
            raise MqttError(Reason.TOPIC_ALIAS_INVALID, f"topic alias {alias}")
        if topic:
            self.aliases[alias] = topic
        elif alias not in self.aliases:
            raise MqttError(Reason.PROTOCOL_ERROR, ALIAS_IN_USE)
        return topic or self.aliases[alias]

    def _find_route(self, topic: bytes) -> TopicRoute:
        known = self.route_of.get(topic)
        if known is not None:
            return known
        name = text_of(topic)
        self._check_name(name)
        session, connection = self.connection.session, self.connection
        assert session is not None and connection.vhost is not None
        key = key_of(name)
        route = session.find_route(arguments_of(connection.limits.exchange, key))
        further = () if is_told_by(key, name) else (exact_key_of(name),)
        is_plain = route.is_plain and not further
        if len(self.route_of) >= ROUTES_MAX:
            self.route_of.clear()
        found = self.route_of[topic] = TopicRoute(name, route, further, is_plain)
        return found

    @staticmethod
    def _check_name(name: str) -> None:
        try:
            check_name(name)
        except BadTopic as error:
            raise MqttError(Reason.TOPIC_NAME_INVALID, str(error)) from None
        if name.startswith(("$share/", "$SYS/")):
            raise MqttError(Reason.TOPIC_NAME_INVALID, "clients do not publish to $share and $SYS")

    def _refuse(self, packet: Publish, refusal: Refusal) -> None:
        """The client may not publish there."""
        connection = self.connection
        unauthorized = refusal.code == ReplyCode.ACCESS_REFUSED
        reason = Reason.NOT_AUTHORIZED if unauthorized else Reason.IMPLEMENTATION_SPECIFIC_ERROR
        if packet.qos and connection.version == V5:
            self.submit()
            self.open_count -= 1
            answer = Ack(KIND_OF_QOS[packet.qos], packet.packet_id, reason, connection.told(refusal.text))
            if packet.qos == 2 and packet.packet_id in self.received:
                self._give_up(packet.packet_id, answer)
            else:
                connection.send(answer)
        elif not unauthorized or connection.limits.disconnects_unauthorized:
            raise MqttError(reason, refusal.text)
        elif packet.qos:  # MQTT 3 has no other answer.
            self.submit()
            self.tell(ACK_OF_QOS[packet.qos] + packet.packet_id.to_bytes(2, "big"), Reason.SUCCESS)

    # -- One message ---------------------------------------------------------------------------------------------

    def _publish(self, packet: Publish, found: TopicRoute) -> None:
        content = to_content(
            found.topic,
            packet.payload,
            packet.qos,
            packet.properties,
            self._frame_max,
            self.connection.broker.wall_ms,
            packet.dup,
            packet.retain,
            publisher=self.publisher_name,
        )
        if packet.qos == 2 and self.is_numbered:
            self._number(packet, found, content)
        else:
            if packet.qos == 2:
                self.phases[packet.packet_id] = Phase.UNDER_WAY
            self._keep_and_send(packet, found, content, 0)

    def _keep_and_send(self, packet: Publish, found: TopicRoute, content: bytes, number: int) -> None:
        """Keep the message if it is to be retained, and send it to its queues. It is acknowledged after both."""
        answer: Answer = ACK_OF_QOS[packet.qos] + packet.packet_id.to_bytes(2, "big") if packet.qos else b""
        if packet.retain:
            broker, vhost = self.connection.broker, self.connection.vhost
            assert vhost is not None
            expiry_s = packet.properties.get(Prop.MESSAGE_EXPIRY)
            expires_ms = 0 if expiry_s is None else broker.wall_ms + expiry_s * 1_000
            message = RetainedMessage(found.topic, packet.payload, packet.qos, kept_properties(packet), expires_ms)
            both = _Both(self, answer)
            if packet.qos:
                answer = both.on_sent
            broker.retained.keep(vhost.name, found.topic, message if packet.payload else None, both.on_kept)
            if broker.retained.is_crowded():
                self.connection.on_crowded(broker.retained)  # type: ignore[arg-type]  # It can be asked the same.
        self._send_one(packet, found, content, answer, number)

    def _send_one(self, packet: Publish, found: TopicRoute, content: bytes, answer: Answer, number: int) -> None:
        session = self.connection.session
        assert session is not None
        queues = session.queues_of(found.route, content, found.further)
        if not queues:
            totals = self.connection.broker.totals
            totals.published += 1
            totals.unroutable += 1
            totals.sizes["mqtt"].add((content,))
            session.traffic.published += 1
            session.traffic.dropped += 1
            if answer:
                self.tell(answer, Reason.NO_MATCHING_SUBSCRIBERS)
            return
        kind = PERSISTENT if packet.qos else 0
        if Prop.MESSAGE_EXPIRY in packet.properties:
            kind |= EXPIRES
        self._send(queues, [content], [found.route.key], kind, [answer] if answer else [], number)

    # -- Bundles -------------------------------------------------------------------------------------------------

    def submit(self) -> None:
        """Hand the gathered publishes to their queues."""
        if self.contents:
            contents, keys, expected = self.contents, self.keys, self.expected
            self.contents, self.keys, self.expected = [], [], []
            if self.numbered is not None:
                self._number_all(self.numbered, contents, keys, expected)
            else:
                self._send(self.queues, contents, keys, self.kind, expected, 0)

    def _send(
        self,
        queues: tuple[AnyQueue, ...],
        contents: list[bytes],
        keys: list[bytes],
        kind: int,
        expected: Sequence[Answer],
        number: int,
    ) -> None:
        """Messages of one kind. `number`: under which the first of QoS 2 messages is published."""
        connection, session = self.connection, self.connection.session
        assert session is not None
        connection.on_publish()
        connection.broker.totals.sizes["mqtt"].add(contents)
        pending, enqueue = None, None
        if expected:
            session.confirm(self._on_ready)
            assert session.confirms is not None
            pending = session.confirms.begin(len(contents))
            self.answers.update(zip(range(pending.first, pending.last + 1), expected, strict=True))
            if number:
                enqueue = partial(self._produce, contents, keys, pending, number)
        if session.publish_bundle(queues, contents, keys, kind, pending, enqueue):
            connection.rest_from_spreading()

    # -- Acknowledgements ----------------------------------------------------------------------------------------

    def _on_ready(self) -> None:
        self.connection.broker.confirming[self] = None

    def send_confirms(self) -> None:
        """Acknowledge the publishes whose fate is known since the last time."""
        session, answers = self.connection.session, self.answers
        if session is None or session.confirms is None or self.connection.closed:
            return
        out: list[bytes] = []
        for number, multiple, refused in session.confirms.take():
            numbers = list(takewhile(number.__ge__, answers)) if multiple else [number]
            for answer in list(map(answers.pop, numbers)):
                if refused or not isinstance(answer, bytes):
                    self.tell(answer, Reason.QUOTA_EXCEEDED if refused else Reason.SUCCESS)
                    if self.connection.closed:
                        return
                else:
                    if answer[0] == 0x50:
                        self.phases[answer[2] << 8 | answer[3]] = Phase.ANSWERED
                    else:
                        self.open_count -= 1
                    out.append(answer)
        if out:
            self.connection.output.send(b"".join(out))

    def tell(self, answer: Answer, reason: Reason) -> None:
        """Acknowledge a publish, or refuse it. Only MQTT 5.0 has a word for that: other clients lose the connection, so
        that they send the message again."""
        if not isinstance(answer, bytes):
            answer(reason)
            return
        connection = self.connection
        if connection.closed:
            return
        packet_id, failed = answer[2] << 8 | answer[3], reason >= 0x80
        if failed and connection.version != V5:
            connection.end(reason, "a queue refused the message")
            return
        if answer[0] == 0x40 or failed:
            self.open_count -= 1
        if answer[0] == 0x50:
            if failed and packet_id in self.received:
                self._give_up(packet_id, Ack(p.PUBREC, packet_id, reason))
                return
            if failed:
                self.phases.pop(packet_id, None)
            else:
                self.phases[packet_id] = Phase.ANSWERED
        if reason and connection.version == V5:
            connection.output.send(encode(Ack(answer[0] >> 4, packet_id, reason), V5))
        else:
            connection.output.send(answer)

    # -- QoS 2 ---------------------------------------------------------------------------------------------------

    def _is_known(self, packet_id: int) -> bool:
        """This PUBLISH came before, on this connection: it is not published again."""
        phase = self.phases.get(packet_id)
        if phase is Phase.ANSWERED:
            self.submit()
            self.connection.output.send(b"\x50\x02" + packet_id.to_bytes(2, "big"))
        return phase is Phase.ANSWERED or phase is Phase.UNDER_WAY

    def _is_refused(self, packet: Publish) -> bool:
        """This PUBLISH may have been refused before: it is refused again. MQTT 3 has no word for that."""
        if not packet.dup or packet.packet_id not in self.refused or self.connection.version != V5:
            return False
        self.submit()
        self.connection.send(Ack(p.PUBREC, packet.packet_id, Reason.QUOTA_EXCEEDED))
        self.refused[packet.packet_id] = max(self.refused[packet.packet_id], self.last_number)
        return True

    def _number(self, packet: Publish, found: TopicRoute, content: bytes) -> None:
        """A QoS 2 publish of a session that outlives its connection: it is published under a number of its own."""
        connection, packet_id = self.connection, packet.packet_id
        number = self.received.get(packet_id)
        self.phases[packet_id] = Phase.UNDER_WAY
        if number is not None:  # An earlier connection had it, and perhaps published it.
            self._keep_and_send(packet, found, content, number)
            return
        self.last_number += 1
        number = self.received[packet_id] = self.last_number
        self.refused.pop(packet_id, None)

        def on_agreed(refusal: Refusal | None) -> None:
            self._on_agreed(len(content))
            if connection.closed:
                return
            if refusal is not None:
                connection.end(Reason.SERVER_UNAVAILABLE, refusal.text)
                return
            self.check_routes()
            try:
                route = self._find_route(found.topic.encode())
            except Refused as refused:  # A permission was taken away, or the exchange deleted, in the meantime.
                self.phases.pop(packet_id, None)
                self.connection.end(Reason.NOT_AUTHORIZED, refused.refusal.text)
                return
            self._keep_and_send(packet, route, content, number)

        self._await(len(content))
        connection.change_session(SessionChange(received=((packet_id, 1, number),)), on_agreed)

    def _number_all(self, found: TopicRoute, contents: list[bytes], keys: list[bytes], expected: list[Answer]) -> None:
        """Likewise, for several that were not sent before: their numbers follow each other."""
        connection, count, size = self.connection, len(contents), sum(map(len, contents))
        ids = [answer[2] << 8 | answer[3] for answer in expected if isinstance(answer, bytes)]
        number = self.last_number + 1
        self.last_number += count
        self.received.update(zip(ids, range(number, number + count), strict=True))
        for packet_id in ids if self.refused else ():
            self.refused.pop(packet_id, None)

        def on_agreed(refusal: Refusal | None) -> None:
            self._on_agreed(size)
            if connection.closed:
                return
            if refusal is not None:
                connection.end(Reason.SERVER_UNAVAILABLE, refusal.text)
                return
            self.check_routes()
            try:
                route = self._find_route(found.topic.encode())
            except Refused as refused:  # A permission was taken away, or the exchange deleted, in the meantime.
                connection.end(Reason.NOT_AUTHORIZED, refused.refusal.text)
                return
            if route.is_plain:
                self._send(route.route.queues, contents, keys, PERSISTENT, expected, number)
                return
            for at, (content, answer) in enumerate(zip(contents, expected, strict=True)):
                packet = Publish(found.topic, b"", 2)
                self._send_one(packet, route, content, answer, number + at)
                if connection.closed:
                    return

        self._await(size)
        connection.change_session(SessionChange(received=numbered_ranges(ids, number)), on_agreed)

    def _await(self, size: int) -> None:
        """So many bytes wait for agreement on their numbers. If they are too many, nothing more is read for now."""
        self.agreeing_bytes += size
        if self.agreeing_bytes > AGREEING_BYTES_MAX and not self.is_held:
            self.is_held = True
            self.connection.hold()

    def _on_agreed(self, size: int) -> None:
        self.agreeing_bytes -= size
        if self.is_held and self.agreeing_bytes <= AGREEING_BYTES_MAX and not self.connection.closed:
            self.is_held = False
            self.connection.release()

    def _produce(
        self,
        contents: list[bytes],
        keys: list[bytes],
        pending: Pending,
        number: int,
        queue: AnyQueue,
        kind: int,
        size: int,
    ) -> bool:
        target = queue.spec.id
        previous = min(self.through.get(target, 0), number - 1)
        self.through[target] = number + len(contents) - 1
        origin = Origin(self.name, number, previous)
        return self.connection.broker.outboxes.produce(queue, origin, contents, keys, kind, size, pending)

    def on_releases(self, ids: tuple[int, ...], data: bytes, at: int) -> None:
        """PUBREL packets in a row, which are at `at`."""
        phases, received, count = self.phases, self.received, len(ids)
        if not phases.keys() >= set(ids) or len(set(ids)) < count:
            for packet_id in ids:
                self.on_release(packet_id)
            return
        self.open_count -= count - list(map(phases.pop, ids)).count(Phase.KNOWN)
        kept = {packet_id: received.pop(packet_id) for packet_id in ids if packet_id in received} if received else {}
        answers = answers_to(data, at, count, 0x70)
        if kept:
            self._complete([*kept, *self._read_refusals(max(kept.values()))], answers)
        else:
            self.connection.output.send(answers)

    def on_release(self, packet_id: int) -> None:
        """PUBREL: the client will not send this message again."""
        connection = self.connection
        phase, number = self.phases.pop(packet_id, None), self.received.pop(packet_id, None)
        if phase is None:
            if connection.version == V5:
                connection.send(Ack(p.PUBCOMP, packet_id, Reason.PACKET_IDENTIFIER_NOT_FOUND))
            else:
                connection.output.send(b"\x70\x02" + packet_id.to_bytes(2, "big"))
            return
        if phase is not Phase.KNOWN:
            self.open_count -= 1
        if number is None:
            connection.output.send(b"\x70\x02" + packet_id.to_bytes(2, "big"))
            return

        self._complete([packet_id, *self._read_refusals(number)], b"\x70\x02" + packet_id.to_bytes(2, "big"))

    def _read_refusals(self, number: int) -> list[int]:
        """Forget the refusals that were sent before this number was given, and return their packet identifiers."""
        read = [packet_id for packet_id, last_number in self.refused.items() if last_number < number]
        for packet_id in read:
            del self.refused[packet_id]
        return read

    def _give_up(self, packet_id: int, answer: Ack) -> None:
        """A QoS 2 publish that has a number is refused, so its identifier is free. The next message that has it must
        not be taken for this one, which some queue may have: the client is told when the cluster has forgotten the
        number, and knows of the refusal."""
        del self.received[packet_id]
        self.phases[packet_id] = Phase.UNDER_WAY
        self.refused[packet_id] = NOT_SENT
        oldest = list(self.refused)[:-REFUSED_MAX]
        for one in oldest:
            del self.refused[one]
        change = SessionChange(received=((packet_id, 1, 0),), completed=ranges_of(oldest))

        def on_agreed() -> None:
            self.phases.pop(packet_id, None)
            if packet_id in self.refused:
                self.refused[packet_id] = self.last_number

        self._change(change, encode(answer, V5), on_agreed)

    def _complete(self, ids: Iterable[int], answer: bytes) -> None:
        """Have the cluster forget packet identifiers, then answer."""
        self._change(SessionChange(completed=ranges_of(ids)), answer)

    def _change(self, change: SessionChange, answer: bytes, then: Callable[[], None] = lambda: None) -> None:
        connection = self.connection

        def on_agreed(refusal: Refusal | None) -> None:
            if connection.closed:
                return
            if refusal is not None:
                connection.end(Reason.SERVER_UNAVAILABLE, refusal.text)
                return
            then()
            connection.output.send(answer)

        connection.change_session(change, on_agreed)

    def forget(self) -> None:
        """The connection is over."""
        self.contents, self.keys, self.expected = [], [], []
        self.route_of.clear()
        self.answers.clear()


class _Both:
    """The acknowledgement of a publish that is to be retained, too: it waits for the queues and for the cluster."""

    def __init__(self, publisher: Publisher, answer: Answer) -> None:
        self.publisher = publisher
        self.answer = answer
        self.sent: Reason | None = None
        self.kept: Reason | None = None

    def on_sent(self, reason: Reason) -> None:
        self.sent = reason
        self._look()

    def on_kept(self, refusal: Refusal | None) -> None:
        self.kept = Reason.SUCCESS if refusal is None else Reason.QUOTA_EXCEEDED
        self._look()

    def _look(self) -> None:
        if self.answer and self.sent is not None and self.kept is not None:
            self.publisher.tell(self.answer, max(self.sent, self.kept))


def kept_properties(packet: Publish) -> bytes:
    """The properties with which a retained message is sent on. Its expiry is known apart."""
    return write_properties(
        {prop: value for prop, value in packet.properties.items() if prop is not Prop.MESSAGE_EXPIRY}
    )
