"""Properties of MQTT 5.0: what each is, in which packets it may stand, and what values it takes.

Properties are a dictionary by `Prop`. User properties are a list of pairs, and subscription identifiers a list, since
they may be there more than once; everything else is one value.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final, TypeAlias

from leveret.protocol.mqtt.primitives import Cursor, encode_binary, encode_text, encode_varint
from leveret.protocol.mqtt.reason_codes import MqttError, Reason, malformed, protocol_error


class Prop(IntEnum):
    PAYLOAD_FORMAT = 1
    MESSAGE_EXPIRY = 2
    CONTENT_TYPE = 3
    RESPONSE_TOPIC = 8
    CORRELATION_DATA = 9
    SUBSCRIPTION_ID = 11
    SESSION_EXPIRY = 17
    ASSIGNED_CLIENT_ID = 18
    SERVER_KEEP_ALIVE = 19
    AUTH_METHOD = 21
    AUTH_DATA = 22
    REQUEST_PROBLEM_INFO = 23
    WILL_DELAY = 24
    REQUEST_RESPONSE_INFO = 25
    RESPONSE_INFO = 26
    SERVER_REFERENCE = 28
    REASON_STRING = 31
    RECEIVE_MAXIMUM = 33
    TOPIC_ALIAS_MAXIMUM = 34
    TOPIC_ALIAS = 35
    MAXIMUM_QOS = 36
    RETAIN_AVAILABLE = 37
    USER_PROPERTY = 38
    MAXIMUM_PACKET_SIZE = 39
    WILDCARD_SUBSCRIPTIONS = 40
    SUBSCRIPTION_IDS = 41
    SHARED_SUBSCRIPTIONS = 42


Properties: TypeAlias = dict[Prop, Any]

# Packet types as they stand in the fixed header, and a place of its own for the properties of a will.
CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = 1, 2, 3, 4, 5, 6, 7
SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK, PINGREQ, PINGRESP, DISCONNECT, AUTH = 8, 9, 10, 11, 12, 13, 14, 15
WILL = 16

_MESSAGE: Final = frozenset((PUBLISH, WILL))
_ACKS: Final = frozenset((PUBACK, PUBREC, PUBREL, PUBCOMP))
_LOGIN: Final = frozenset((CONNECT, CONNACK))
_ALL: Final = frozenset(range(1, 17)) - {PINGREQ, PINGRESP}

_PLACES: Final[dict[Prop, frozenset[int]]] = {
    Prop.PAYLOAD_FORMAT: _MESSAGE,
    Prop.MESSAGE_EXPIRY: _MESSAGE,
    Prop.CONTENT_TYPE: _MESSAGE,
    Prop.RESPONSE_TOPIC: _MESSAGE,
    Prop.CORRELATION_DATA: _MESSAGE,
    Prop.SUBSCRIPTION_ID: frozenset((PUBLISH, SUBSCRIBE)),
    Prop.SESSION_EXPIRY: _LOGIN | {DISCONNECT},
    Prop.ASSIGNED_CLIENT_ID: frozenset((CONNACK,)),
    Prop.SERVER_KEEP_ALIVE: frozenset((CONNACK,)),
    Prop.AUTH_METHOD: _LOGIN | {AUTH},
    Prop.AUTH_DATA: _LOGIN | {AUTH},
    Prop.REQUEST_PROBLEM_INFO: frozenset((CONNECT,)),
    Prop.WILL_DELAY: frozenset((WILL,)),
    Prop.REQUEST_RESPONSE_INFO: frozenset((CONNECT,)),
    Prop.RESPONSE_INFO: frozenset((CONNACK,)),
    Prop.SERVER_REFERENCE: frozenset((CONNACK, DISCONNECT)),
    Prop.REASON_STRING: _ACKS | {CONNACK, SUBACK, UNSUBACK, DISCONNECT, AUTH},
    Prop.RECEIVE_MAXIMUM: _LOGIN,
    Prop.TOPIC_ALIAS_MAXIMUM: _LOGIN,
    Prop.TOPIC_ALIAS: frozenset((PUBLISH,)),
    Prop.MAXIMUM_QOS: frozenset((CONNACK,)),
    Prop.RETAIN_AVAILABLE: frozenset((CONNACK,)),
    Prop.USER_PROPERTY: _ALL,
    Prop.MAXIMUM_PACKET_SIZE: _LOGIN,
    Prop.WILDCARD_SUBSCRIPTIONS: frozenset((CONNACK,)),
    Prop.SUBSCRIPTION_IDS: frozenset((CONNACK,)),
    Prop.SHARED_SUBSCRIPTIONS: frozenset((CONNACK,)),
}

_BYTE: Final = 1
_SHORT: Final = 2
_LONG: Final = 4
_VARINT: Final = 0
_TEXT: Final = -1
_BINARY: Final = -2
_PAIR: Final = -3

_FORMS: Final[dict[Prop, int]] = {
    Prop.MESSAGE_EXPIRY: _LONG,
    Prop.CONTENT_TYPE: _TEXT,
    Prop.RESPONSE_TOPIC: _TEXT,
    Prop.CORRELATION_DATA: _BINARY,
    Prop.SUBSCRIPTION_ID: _VARINT,
    Prop.SESSION_EXPIRY: _LONG,
    Prop.ASSIGNED_CLIENT_ID: _TEXT,
    Prop.SERVER_KEEP_ALIVE: _SHORT,
    Prop.AUTH_METHOD: _TEXT,
    Prop.AUTH_DATA: _BINARY,
    Prop.WILL_DELAY: _LONG,
    Prop.RESPONSE_INFO: _TEXT,
    Prop.SERVER_REFERENCE: _TEXT,
    Prop.REASON_STRING: _TEXT,
    Prop.RECEIVE_MAXIMUM: _SHORT,
    Prop.TOPIC_ALIAS_MAXIMUM: _SHORT,
    Prop.TOPIC_ALIAS: _SHORT,
    Prop.USER_PROPERTY: _PAIR,
    Prop.MAXIMUM_PACKET_SIZE: _LONG,
}  # All others are a byte that is 0 or 1.

_NOT_ZERO: Final = frozenset((Prop.SUBSCRIPTION_ID, Prop.RECEIVE_MAXIMUM, Prop.MAXIMUM_PACKET_SIZE))

_READ: Final[dict[int, Callable[[Cursor], Any]]] = {
    _BYTE: Cursor.byte,
    _SHORT: lambda cursor: cursor.integer(2),
    _LONG: lambda cursor: cursor.integer(4),
    _VARINT: Cursor.varint,
    _TEXT: Cursor.text,
    _BINARY: Cursor.binary,
    _PAIR: lambda cursor: (cursor.text(), cursor.text()),
}

_WRITE: Final[dict[int, Callable[[Any], bytes]]] = {
    _BYTE: lambda value: bytes((value,)),
    _SHORT: lambda value: int.to_bytes(value, 2, "big"),
    _LONG: lambda value: int.to_bytes(value, 4, "big"),
    _VARINT: encode_varint,
    _TEXT: encode_text,
    _BINARY: encode_binary,
    _PAIR: lambda value: encode_text(value[0]) + encode_text(value[1]),
}


def read_properties(cursor: Cursor, place: int) -> Properties:
    """Read the properties of a packet of this type. Raises `MqttError` with the reason that the specification names."""
    size = cursor.varint()
    if not size:
        return {}
    if size > cursor.left():
        raise malformed("the properties are cut off")
    inner = Cursor(cursor.data, cursor.at, cursor.at + size)
    cursor.at += size
    found: Properties = {}
    while inner.left():
        number = inner.varint()
        try:
            prop = Prop(number)
        except ValueError:
            raise malformed(f"there is no property {number}") from None
        if place not in _PLACES[prop]:
            raise protocol_error(f"property {prop.name} in a packet of type {place}")
        value = _READ[_FORMS.get(prop, _BYTE)](inner)
        _check(prop, value)
        if prop is Prop.USER_PROPERTY or (prop is Prop.SUBSCRIPTION_ID and place == PUBLISH):
            found.setdefault(prop, []).append(value)
        elif prop in found:
            raise protocol_error(f"property {prop.name} more than once")
        else:
            found[prop] = [value] if prop is Prop.SUBSCRIPTION_ID else value
    return found


def _check(prop: Prop, value: Any) -> None:
    if prop not in _FORMS and value > 1:
        raise protocol_error(f"property {prop.name} is {value}")
    if prop in _NOT_ZERO and not value:
        raise protocol_error(f"property {prop.name} is 0")
    if prop is Prop.TOPIC_ALIAS and not value:
        raise MqttError(Reason.TOPIC_ALIAS_INVALID, "topic alias 0")


def write_properties(properties: Properties) -> bytes:
    """The properties with their length before them."""
    if not properties:
        return b"\0"
    parts: list[bytes] = []
    for prop, value in properties.items():
        write, number = _WRITE[_FORMS.get(prop, _BYTE)], bytes((prop,))
        if prop is Prop.USER_PROPERTY or prop is Prop.SUBSCRIPTION_ID:
            parts.extend(number + write(one) for one in value)
        else:
            parts.append(number + write(value))
    data = b"".join(parts)
    return encode_varint(len(data)) + data
