"""Hypothesis strategies for MQTT packets that are valid."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from leveret.protocol.mqtt import packets as k
from leveret.protocol.mqtt import properties as p
from leveret.protocol.mqtt.properties import Prop

TEXTS = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=12)
BYTES = st.binary(max_size=40)
NAMES = TEXTS.filter(lambda text: text and "+" not in text and "#" not in text)
IDS = st.integers(1, 65_535)
SHORTS = st.integers(0, 65_535)
LONGS = st.integers(0, (1 << 32) - 1)
BITS = st.integers(0, 1)

VALUES: dict[Prop, st.SearchStrategy[Any]] = {
    Prop.PAYLOAD_FORMAT: BITS,
    Prop.MESSAGE_EXPIRY: LONGS,
    Prop.CONTENT_TYPE: TEXTS,
    Prop.RESPONSE_TOPIC: NAMES,
    Prop.CORRELATION_DATA: BYTES,
    Prop.SUBSCRIPTION_ID: st.integers(1, 268_435_455),
    Prop.SESSION_EXPIRY: LONGS,
    Prop.ASSIGNED_CLIENT_ID: TEXTS,
    Prop.SERVER_KEEP_ALIVE: SHORTS,
    Prop.AUTH_METHOD: TEXTS,
    Prop.AUTH_DATA: BYTES,
    Prop.REQUEST_PROBLEM_INFO: BITS,
    Prop.WILL_DELAY: LONGS,
    Prop.REQUEST_RESPONSE_INFO: BITS,
    Prop.RESPONSE_INFO: TEXTS,
    Prop.SERVER_REFERENCE: TEXTS,
    Prop.REASON_STRING: TEXTS,
    Prop.RECEIVE_MAXIMUM: IDS,
    Prop.TOPIC_ALIAS_MAXIMUM: SHORTS,
    Prop.TOPIC_ALIAS: IDS,
    Prop.MAXIMUM_QOS: BITS,
    Prop.RETAIN_AVAILABLE: BITS,
    Prop.USER_PROPERTY: st.tuples(TEXTS, TEXTS),
    Prop.MAXIMUM_PACKET_SIZE: st.integers(1, (1 << 32) - 1),
    Prop.WILDCARD_SUBSCRIPTIONS: BITS,
    Prop.SUBSCRIPTION_IDS: BITS,
    Prop.SHARED_SUBSCRIPTIONS: BITS,
}


@st.composite
def properties(draw: st.DrawFn, place: int, version: int) -> p.Properties:
    if version != k.V5:
        return {}
    allowed = [prop for prop in Prop if place in p._PLACES[prop]]
    found: p.Properties = {}
    for prop in draw(st.lists(st.sampled_from(allowed), unique=True, max_size=6)):
        if prop is Prop.USER_PROPERTY or (prop is Prop.SUBSCRIPTION_ID and place == p.PUBLISH):
            found[prop] = draw(st.lists(VALUES[prop], min_size=1, max_size=3))
        else:
            value = draw(VALUES[prop])
            found[prop] = [value] if prop is Prop.SUBSCRIPTION_ID else value
    if Prop.AUTH_DATA in found:
        found.setdefault(Prop.AUTH_METHOD, "m")
    return found


@st.composite
def packets(draw: st.DrawFn, version: int) -> k.Packet:
    """A packet of any type that a connection of this version can carry."""

    def having(place: int) -> p.Properties:
        return draw(properties(place, version))

    kind = draw(st.integers(1, 15 if version == k.V5 else 14))
    if kind == p.CONNECT:
        will = None
        if draw(st.booleans()):
            will = k.Will(draw(NAMES), draw(BYTES), draw(st.integers(0, 2)), draw(st.booleans()), having(p.WILL))
        username = draw(st.none() | TEXTS)
        password = draw(st.none() | BYTES) if username is not None or version == k.V5 else None
        clean, keep = draw(st.booleans()), draw(SHORTS)
        return k.Connect(version, draw(TEXTS), clean, keep, will, username, password, having(p.CONNECT))
    if kind == p.CONNACK:
        if version != k.V5:
            return k.Connack(version == k.V311 and draw(st.booleans()))
        return k.Connack(draw(st.booleans()), draw(st.sampled_from((0, 0x80, 0x86))), having(kind))
    if kind == p.PUBLISH:
        qos, found = draw(st.integers(0, 2)), having(kind)
        topic = draw(NAMES)
        if Prop.TOPIC_ALIAS in found and draw(st.booleans()):
            topic = ""
        dup, retain = qos > 0 and draw(st.booleans()), draw(st.booleans())
        return k.Publish(topic, draw(BYTES), qos, retain, dup, draw(IDS) if qos else 0, found)
    if kind in (p.PUBACK, p.PUBREC, p.PUBREL, p.PUBCOMP):
        allowed = (0, 0x92) if kind in (p.PUBREL, p.PUBCOMP) else (0, 0x10, 0x80, 0x97)
        reason = draw(st.sampled_from(allowed)) if version == k.V5 else 0
        return k.Ack(kind, draw(IDS), reason, having(kind))
    if kind == p.SUBSCRIBE:
        flag = st.booleans() if version == k.V5 else st.just(False)
        handling = st.integers(0, 2) if version == k.V5 else st.just(0)
        one = st.builds(k.Subscription, TEXTS, st.integers(0, 2), flag, flag, handling)
        return k.Subscribe(draw(IDS), draw(st.lists(one, min_size=1, max_size=4)), having(kind))
    if kind == p.SUBACK:
        reasons = draw(st.lists(st.sampled_from((0, 1, 2, 0x80)), min_size=1, max_size=4))
        return k.Suback(draw(IDS), reasons, having(kind))
    if kind == p.UNSUBSCRIBE:
        return k.Unsubscribe(draw(IDS), draw(st.lists(TEXTS, min_size=1, max_size=4)), having(kind))
    if kind == p.UNSUBACK:
        reasons = draw(st.lists(st.sampled_from((0, 0x11)), min_size=1, max_size=4)) if version == k.V5 else []
        return k.Unsuback(draw(IDS), reasons, having(kind))
    if kind == p.PINGREQ:
        return k.Pingreq()
    if kind == p.PINGRESP:
        return k.Pingresp()
    if kind == p.DISCONNECT:
        return k.Disconnect(draw(st.sampled_from((0, 4, 0x8E))) if version == k.V5 else 0, having(kind))
    return k.Auth(draw(st.sampled_from((0, 0x18, 0x19))), having(kind))
