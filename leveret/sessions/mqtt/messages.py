"""Messages of MQTT as contents of AMQP, and back.

What AMQP has a property for is that property: content type, correlation data, message expiry (in milliseconds). User
properties are headers, if each name is there once and is no name of ours; otherwise they are a header of their own,
since their order and number must stay. Everything else has a header that begins with `x-mqtt-`:

    x-mqtt-publish-qos, x-mqtt-dup       of the PUBLISH, as with RabbitMQ
    x-mqtt-topic                         where the routing key does not tell it: see `routing_keys`
    x-mqtt-retain                        it was published with the retain flag
    x-mqtt-retained                      it is here because of a subscription, and was retained before
    x-mqtt-publisher                     the client id, if that client has a subscription with "no local"
    x-mqtt-payload-format-indicator, x-mqtt-user-properties
    x-mqtt-published-ms                  when it came, if it expires
    x-reply-to-topic                     the routing key of the response topic, as with RabbitMQ
    x-mqtt-response-topic                the response topic, where that key does not tell it
    x-correlation-id                     correlation data that is no short string
    x-mqtt-content-type                  a content type that is longer than AMQP allows
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from leveret.broker.session.message import content_of
from leveret.protocol import frames
from leveret.protocol import properties as amqp
from leveret.protocol.cc_bcc import BCC
from leveret.protocol.mqtt.properties import Prop, Properties
from leveret.protocol.mqtt.topics import BadTopic, check_name
from leveret.protocol.tables import Field, Table, field_to_python
from leveret.sessions.mqtt.routing_keys import is_told_by, key_of, topic_of

QOS: Final = "x-mqtt-publish-qos"
DUP: Final = "x-mqtt-dup"
TOPIC: Final = "x-mqtt-topic"
RETAIN: Final = "x-mqtt-retain"
RETAINED: Final = "x-mqtt-retained"
PUBLISHER: Final = "x-mqtt-publisher"
PAYLOAD_FORMAT: Final = "x-mqtt-payload-format-indicator"
USER_PROPERTIES: Final = "x-mqtt-user-properties"
PUBLISHED_MS: Final = "x-mqtt-published-ms"
REPLY_TO: Final = "x-reply-to-topic"
RESPONSE_TOPIC: Final = "x-mqtt-response-topic"
CORRELATION: Final = "x-correlation-id"
CONTENT_TYPE: Final = "x-mqtt-content-type"

SHORT_BYTES_MAX: Final = 255
PLAIN_HEADERS_MAX: Final = 64  # User properties that are headers each; more of them are one header.
_TRUE: Final = Field("t", True)
_FALSE: Final = Field("t", False)


@dataclass(slots=True)
class Message:
    """A message on its way to an MQTT client."""

    topic: str
    qos: int | None  # None: it was not published by MQTT.
    retain: bool = False
    retained: bool = False
    publisher: str = ""
    is_told: bool = True  # By the routing key alone.
    properties: Properties = field(default_factory=dict)
    expires_ms: int | None = None  # After it came; and when that was, if it is known.
    published_ms: int | None = None


def headers_of(qos: int, dup: bool, publisher: str) -> Table:
    """The headers that every PUBLISH has."""
    table = {QOS: Field("b", qos), DUP: _TRUE if dup else _FALSE}
    if publisher:
        table[PUBLISHER] = Field("S", publisher)
    return table


def to_content(
    topic: str,
    payload: bytes,
    qos: int,
    properties: Properties,
    frame_max: int,
    now_ms: int,
    dup: bool = False,
    retain: bool = False,
    retained: bool = False,
    publisher: str = "",
    further: tuple[str, ...] = (),
) -> bytes:
    """The content of a PUBLISH. `now_ms`: the time of day. `further`: keys by which it is routed, too, if somebody else
    than a session routes it."""
    table = headers_of(qos, dup, publisher)
    if not is_told_by(key_of(topic), topic):
        table[TOPIC] = Field("S", topic)
    if retain:
        table[RETAIN] = _TRUE
    if retained:
        table[RETAINED] = _TRUE
    if further:
        table[BCC] = Field("A", [Field("S", key) for key in further])
    found = amqp.Properties(headers=table, delivery_mode=2 if qos else 1)
    if properties:
        _put_properties(found, table, properties, now_ms)
    return content_of(found, payload, frame_max)


def _put_properties(found: amqp.Properties, table: Table, properties: Properties, now_ms: int) -> None:
    content_type = properties.get(Prop.CONTENT_TYPE)
    if content_type is not None:
        if len(content_type.encode()) <= SHORT_BYTES_MAX:
            found.content_type = content_type
        else:
            table[CONTENT_TYPE] = Field("S", content_type)
    correlation = properties.get(Prop.CORRELATION_DATA)
    if correlation is not None:
        text = _short_text(correlation)
        if text is None:
            table[CORRELATION] = Field("x", correlation)
        else:
            found.correlation_id = text
    response = properties.get(Prop.RESPONSE_TOPIC)
    if response is not None:
        key = key_of(response)
        if is_told_by(key, response):
            table[REPLY_TO] = Field("S", key)
        else:
            table[RESPONSE_TOPIC] = Field("S", response)
    if properties.get(Prop.PAYLOAD_FORMAT):
        table[PAYLOAD_FORMAT] = Field("b", 1)
    expiry_s = properties.get(Prop.MESSAGE_EXPIRY)
    if expiry_s is not None:
        found.expiration = str(expiry_s * 1_000)
        table[PUBLISHED_MS] = Field("l", now_ms)
    pairs = properties.get(Prop.USER_PROPERTY)
    if pairs:
        if _are_plain(pairs):
            table.update((name, Field("S", value)) for name, value in pairs)
        else:
            table[USER_PROPERTIES] = Field("A", [Field("S", text) for pair in pairs for text in pair])


def _short_text(data: bytes) -> str | None:
    if len(data) > SHORT_BYTES_MAX:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _are_plain(pairs: list[tuple[str, str]]) -> bool:
    """They can be headers: each name once, and none that means something to a broker."""
    names = {name for name, _ in pairs}
    if len(names) < len(pairs) or len(pairs) > PLAIN_HEADERS_MAX:
        return False
    return not any(
        not name or name.lower().startswith("x-") or name in ("CC", "BCC") or len(name.encode()) > SHORT_BYTES_MAX
        for name in names
    )


def head_of(content: bytes) -> int:
    """Where the payload begins in a content whose body is one frame; 0 if it is none or several."""
    body = int.from_bytes(content[3:7], "big") + 8
    size = int.from_bytes(content[body + 3 : body + 7], "big")
    return body + 7 if size and body + 8 + size == len(content) else 0


def payload_of(content: bytes) -> bytes:
    return frames.split(content)[1]


def from_content(routing_key: bytes, content: bytes) -> Message | None:
    """The message that a content is. None if it has a topic that MQTT does not allow."""
    found = amqp.decode(frames.split(content)[0])
    table = found.headers or {}
    topic = _text(table, TOPIC)
    try:
        if topic is None:
            topic = topic_of(routing_key.decode())
        check_name(topic)
    except (UnicodeDecodeError, BadTopic):
        return None
    qos = table.get(QOS)
    level = qos.value if qos is not None and qos.value in (0, 1, 2) else None
    publisher, is_told = _text(table, PUBLISHER) or "", TOPIC not in table
    message = Message(topic, level, RETAIN in table, RETAINED in table, publisher, is_told)
    _read_properties(message, found, table)
    return message


def like(form: Message, routing_key: bytes) -> Message | None:
    """The message with this key that is otherwise like another one, whose key has told the topic."""
    try:
        topic = topic_of(routing_key.decode())
        check_name(topic)
    except (UnicodeDecodeError, BadTopic):
        return None
    properties = form.properties.copy() if form.properties else {}
    return Message(topic, form.qos, form.retain, form.retained, form.publisher, True, properties)


def _text(table: Table, name: str) -> str | None:
    one = table.get(name)
    if one is None or one.kind != "S" or not is_text(one.value):
        return None
    value: str = one.value
    return value


def is_text(value: str) -> bool:
    """MQTT can carry this string. AMQP's may have any bytes."""
    return "\0" not in value and not any("\ud800" <= one <= "\udfff" for one in value) and len(value) < 16_384


def _read_properties(message: Message, found: amqp.Properties, table: Table) -> None:
    properties = message.properties
    content_type = found.content_type or _text(table, CONTENT_TYPE)
    if content_type is not None and is_text(content_type):
        properties[Prop.CONTENT_TYPE] = content_type
    correlation = table.get(CORRELATION)
    if found.correlation_id is not None:
        properties[Prop.CORRELATION_DATA] = found.correlation_id.encode("utf-8", "surrogateescape")
    elif correlation is not None and correlation.kind == "x":
        properties[Prop.CORRELATION_DATA] = correlation.value
    response, reply_key = _text(table, RESPONSE_TOPIC), _text(table, REPLY_TO)
    if response is None and reply_key is not None:
        response = topic_of(reply_key)
    if response is not None and _is_name(response):
        properties[Prop.RESPONSE_TOPIC] = response
    if PAYLOAD_FORMAT in table:
        properties[Prop.PAYLOAD_FORMAT] = 1
    if found.expiration is not None and found.expiration.isascii() and found.expiration.isdigit():
        message.expires_ms = int(found.expiration)
        came = table.get(PUBLISHED_MS)
        message.published_ms = came.value if came is not None and came.kind == "l" else None
    pairs = _user_properties(table)
    if pairs:
        properties[Prop.USER_PROPERTY] = pairs


def _is_name(topic: str) -> bool:
    try:
        check_name(topic)
    except BadTopic:
        return False
    return True


def _user_properties(table: Table) -> list[tuple[str, str]]:
    packed = table.get(USER_PROPERTIES)
    if packed is not None and packed.kind == "A":
        texts = [one.value for one in packed.value if one.kind == "S" and is_text(one.value)]
        return list(zip(texts[0::2], texts[1::2], strict=False))
    pairs = []
    for name, one in table.items():
        if name.lower().startswith("x-") or name in ("CC", "BCC") or one.kind in "FAVx":
            continue
        value = one.value if one.kind == "S" else _shown(one)
        if is_text(name) and is_text(value):
            pairs.append((name, value))
    return pairs


def _shown(one: Field) -> str:
    value = field_to_python(one)
    return str(value).lower() if isinstance(value, bool) else str(value)
