"""Bytes to packets. Whatever is wrong with them is an `MqttError` with the reason that the specification names.

`packet_end` finds where a packet ends before anything of it is read, so that one that is too large is refused by its
first five bytes, and one that has not arrived whole costs nothing. `decode` reads one whole packet, with the rules of
the version that the connection speaks. A CONNECT says its version itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from leveret.protocol.mqtt import properties as p
from leveret.protocol.mqtt.packets import (
    V5,
    V31,
    V311,
    Ack,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Publish,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)
from leveret.protocol.mqtt.primitives import Cursor
from leveret.protocol.mqtt.properties import Properties, read_properties
from leveret.protocol.mqtt.reason_codes import MqttError, Reason, malformed, protocol_error
from leveret.protocol.mqtt.topics import BadTopic, check_name

_LEVELS: Final = {("MQIsdp", 3): V31, ("MQTT", 4): V311, ("MQTT", 5): V5}

# The reasons that each packet can have.
_ACK_REASONS: Final = frozenset((0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99))
_RELEASE_REASONS: Final = frozenset((0x00, 0x92))
_DISCONNECT_REASONS: Final = frozenset(
    (0x00, 0x04, *range(0x80, 0x84), 0x87, 0x89, 0x8B, *range(0x8D, 0x91), *range(0x93, 0xA3))
)
_AUTH_REASONS: Final = frozenset((0x00, 0x18, 0x19))


class Span(NamedTuple):
    """Where a packet's variable part is in the data."""

    start: int
    end: int


class UnsupportedVersion(MqttError):
    """A CONNECT of a version that is not spoken here. `level` is the one it names."""

    def __init__(self, level: int) -> None:
        super().__init__(Reason.UNSUPPORTED_PROTOCOL_VERSION, f"protocol level {level} is not supported")
        self.level = level


def packet_end(data: bytes | bytearray, at: int, packet_max: int) -> Span | None:
    """Where the packet at `at` has its variable part; its end may lie beyond the data. None: its length is not there
    yet. `packet_max` counts the whole packet."""
    value, shift, place, size = 0, 0, at + 1, len(data)
    while place < size:
        byte = data[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            if place - at + value > packet_max:
                raise MqttError(Reason.PACKET_TOO_LARGE, f"a packet of {place - at + value} bytes")
            return Span(place, place + value)
        shift += 7
        if shift > 21:
            raise malformed("the remaining length has more than four bytes")
    return None


def names_v5(data: bytes) -> bool:
    """Whether the data begins as a CONNECT of MQTT 5.0, whatever else may be wrong with it."""
    if data[0] >> 4 != p.CONNECT:
        return False
    place = next((at for at in range(1, 5) if data[at : at + 1] < b"\x80"), 0)
    return place > 0 and data[place + 1 :].startswith(b"\0\4MQTT\5")


def decode(version: int, head: int, data: bytes, start: int, end: int) -> Packet:
    """Read the packet whose first byte is `head`, and whose variable part is data[start:end]."""
    kind = head >> 4
    read = _READERS.get(kind)
    if read is None:
        raise malformed(f"packet type {kind}")
    if kind != p.PUBLISH and head & 15 != (2 if kind in (p.PUBREL, p.SUBSCRIBE, p.UNSUBSCRIBE) else 0):
        raise malformed(f"flags {head & 15} in a packet of type {kind}")
    if kind == p.AUTH and version != V5:
        raise malformed("packet type 15")
    return read(version, head, Cursor(data, start, end))


def _properties(version: int, cursor: Cursor, place: int) -> Properties:
    return read_properties(cursor, place) if version == V5 else {}


def _packet_id(cursor: Cursor) -> int:
    packet_id = cursor.integer(2)
    if not packet_id:
        raise protocol_error("packet identifier 0")
    return packet_id


def _topic(cursor: Cursor) -> str:
    topic = cursor.text()
    try:
        check_name(topic)
    except BadTopic as error:
        raise MqttError(Reason.TOPIC_NAME_INVALID, str(error)) from None
    return topic


def _check_message(properties: Properties) -> None:
    response = properties.get(p.Prop.RESPONSE_TOPIC)
    if response is not None:
        try:
            check_name(response)
        except BadTopic as error:
            raise protocol_error(f"response topic: {error}") from None


def _connect(version: int, head: int, cursor: Cursor) -> Connect:
    name, level = cursor.text(), cursor.byte()
    if name not in ("MQTT", "MQIsdp"):
        raise MqttError(Reason.UNSUPPORTED_PROTOCOL_VERSION, f"protocol '{name[:20]}'")
    found = _LEVELS.get((name, level))
    if found is None:
        raise UnsupportedVersion(level)
    version, flags = found, cursor.byte()
    if flags & 1:
        raise malformed("the reserved flag of CONNECT is set")
    has_will, qos, retain = bool(flags & 4), flags >> 3 & 3, bool(flags & 32)
    has_password, has_username = bool(flags & 64), bool(flags & 128)
    if qos == 3 or (not has_will and (qos or retain)):
        raise malformed("will flags that make no sense")
    if has_password and not has_username and version != V5:
        raise malformed("a password without a user name")
    keep_alive = cursor.integer(2)
    properties = _properties(version, cursor, p.CONNECT)
    if p.Prop.AUTH_DATA in properties and p.Prop.AUTH_METHOD not in properties:
        raise protocol_error("authentication data without a method")
    client_id = cursor.text()
    will = None
    if has_will:
        will_properties = _properties(version, cursor, p.WILL)
        _check_message(will_properties)
        topic = _topic(cursor)
        will = Will(topic, cursor.binary(), qos, retain, will_properties)
    username = cursor.text() if has_username else None
    password = cursor.binary() if has_password else None
    cursor.finish()
    return Connect(version, client_id, bool(flags & 2), keep_alive, will, username, password, properties)


def _connack(version: int, head: int, cursor: Cursor) -> Connack:
    flags, reason = cursor.byte(), cursor.byte()
    if flags > 1:
        raise malformed("reserved flags of CONNACK are set")
    properties = _properties(version, cursor, p.CONNACK)
    cursor.finish()
    return Connack(bool(flags), reason, properties)


def _publish(version: int, head: int, cursor: Cursor) -> Publish:
    qos, dup = head >> 1 & 3, bool(head & 8)
    if qos == 3:
        raise malformed("QoS 3")
    if dup and not qos:
        raise malformed("DUP with QoS 0")
    topic = cursor.text()
    packet_id = _packet_id(cursor) if qos else 0
    properties = _properties(version, cursor, p.PUBLISH)
    if topic or p.Prop.TOPIC_ALIAS not in properties:
        try:
            check_name(topic)
        except BadTopic as error:
            if not topic and version == V5:
                raise protocol_error("neither a topic nor an alias") from None
            raise MqttError(Reason.TOPIC_NAME_INVALID, str(error)) from None
    _check_message(properties)
    return Publish(topic, cursor.rest(), qos, bool(head & 1), dup, packet_id, properties)


def _ack(version: int, head: int, cursor: Cursor) -> Ack:
    kind, packet_id, reason, properties = head >> 4, _packet_id(cursor), 0, Properties()
    if version == V5 and cursor.left():
        reason = cursor.byte()
        if reason not in (_RELEASE_REASONS if kind in (p.PUBREL, p.PUBCOMP) else _ACK_REASONS):
            raise protocol_error(f"reason {reason:#x} in a packet of type {kind}")
        if cursor.left():
            properties = read_properties(cursor, kind)
    cursor.finish()
    return Ack(kind, packet_id, reason, properties)


def _subscribe(version: int, head: int, cursor: Cursor) -> Subscribe:
    packet_id = _packet_id(cursor)
    properties = _properties(version, cursor, p.SUBSCRIBE)
    subscriptions = []
    while cursor.left():
        topic_filter, options = cursor.text(), cursor.byte()
        if options & (0xC0 if version == V5 else 0xFC):
            raise malformed("reserved bits of subscription options are set")
        qos, handling = options & 3, options >> 4 & 3
        if qos == 3:
            raise malformed("QoS 3")
        if handling == 3:
            raise protocol_error("retain handling 3")
        subscriptions.append(Subscription(topic_filter, qos, bool(options & 4), bool(options & 8), handling))
    if not subscriptions:
        raise protocol_error("SUBSCRIBE without a filter")
    return Subscribe(packet_id, subscriptions, properties)


def _suback(version: int, head: int, cursor: Cursor) -> Suback:
    packet_id = _packet_id(cursor)
    properties = _properties(version, cursor, p.SUBACK)
    return Suback(packet_id, list(cursor.rest()), properties)


def _unsubscribe(version: int, head: int, cursor: Cursor) -> Unsubscribe:
    packet_id = _packet_id(cursor)
    properties = _properties(version, cursor, p.UNSUBSCRIBE)
    filters = []
    while cursor.left():
        filters.append(cursor.text())
    if not filters:
        raise protocol_error("UNSUBSCRIBE without a filter")
    return Unsubscribe(packet_id, filters, properties)


def _unsuback(version: int, head: int, cursor: Cursor) -> Unsuback:
    packet_id = _packet_id(cursor)
    properties = _properties(version, cursor, p.UNSUBACK)
    return Unsuback(packet_id, list(cursor.rest()), properties)


def _pingreq(version: int, head: int, cursor: Cursor) -> Pingreq:
    cursor.finish()
    return Pingreq()


def _pingresp(version: int, head: int, cursor: Cursor) -> Pingresp:
    cursor.finish()
    return Pingresp()


def _disconnect(version: int, head: int, cursor: Cursor) -> Disconnect:
    reason, properties = 0, Properties()
    if version == V5 and cursor.left():
        reason = cursor.byte()
        if reason not in _DISCONNECT_REASONS:
            raise protocol_error(f"reason {reason:#x} in DISCONNECT")
        if cursor.left():
            properties = read_properties(cursor, p.DISCONNECT)
    cursor.finish()
    return Disconnect(reason, properties)


def _auth(version: int, head: int, cursor: Cursor) -> Auth:
    reason, properties = 0, Properties()
    if cursor.left():
        reason = cursor.byte()
        if reason not in _AUTH_REASONS:
            raise protocol_error(f"reason {reason:#x} in AUTH")
        if cursor.left():
            properties = read_properties(cursor, p.AUTH)
    cursor.finish()
    return Auth(reason, properties)


_READERS: Final[dict[int, Callable[[int, int, Cursor], Packet]]] = {
    p.CONNECT: _connect,
    p.CONNACK: _connack,
    p.PUBLISH: _publish,
    p.PUBACK: _ack,
    p.PUBREC: _ack,
    p.PUBREL: _ack,
    p.PUBCOMP: _ack,
    p.SUBSCRIBE: _subscribe,
    p.SUBACK: _suback,
    p.UNSUBSCRIBE: _unsubscribe,
    p.UNSUBACK: _unsuback,
    p.PINGREQ: _pingreq,
    p.PINGRESP: _pingresp,
    p.DISCONNECT: _disconnect,
    p.AUTH: _auth,
}
