"""Packets of all versions to bytes and back; bytes that are no packets, and what they are called."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.protocol.mqtt import packets as k
from leveret.protocol.mqtt import properties as p
from leveret.protocol.mqtt.decoder import UnsupportedVersion, decode, packet_end
from leveret.protocol.mqtt.encoder import encode, framed
from leveret.protocol.mqtt.primitives import VARINT_MAX, Cursor, encode_text, encode_varint
from leveret.protocol.mqtt.properties import Prop
from leveret.protocol.mqtt.reason_codes import MqttError, Reason
from tests.unit.protocol.mqtt.strategies import packets

VERSIONS = st.sampled_from((k.V31, k.V311, k.V5))
LARGEST = VARINT_MAX + 5


def read(data: bytes, version: int) -> k.Packet:
    span = packet_end(data, 0, LARGEST)
    assert span is not None and span.end == len(data)
    return decode(version, data[0], data, *span)


@given(VERSIONS.flatmap(lambda version: st.tuples(st.just(version), packets(version))))
def test_there_and_back(case: tuple[int, k.Packet]) -> None:
    version, packet = case
    data = encode(packet, version)
    assert read(data, version) == packet
    assert encode(read(data, version), version) == data


@given(VERSIONS.flatmap(lambda version: st.tuples(st.just(version), packets(version))), st.data())
def test_packets_that_are_cut_off_or_too_long(case: tuple[int, k.Packet], data: st.DataObject) -> None:
    """Never anything but an `MqttError`."""
    version, packet = case
    whole = encode(packet, version)
    span = packet_end(whole, 0, LARGEST)
    assert span is not None
    body = whole[span.start :]
    cut = body[: data.draw(st.integers(0, len(body)))] + data.draw(st.binary(max_size=3))
    try:
        decode(version, whole[0], cut, 0, len(cut))
    except MqttError as error:
        assert error.reason >= 0x80


@given(VERSIONS, st.binary(max_size=60))
def test_noise(version: int, data: bytes) -> None:
    try:
        span = packet_end(data, 0, 1_000)
        if span is not None and span.end <= len(data):
            decode(version, data[0], data, *span)
    except MqttError as error:
        assert error.reason >= 0x80


@given(VERSIONS, st.integers(1, 15), st.binary(max_size=40))
def test_noise_with_a_right_head(version: int, kind: int, body: bytes) -> None:
    head = kind << 4 | (2 if kind in (p.PUBREL, p.SUBSCRIBE, p.UNSUBSCRIBE) else 0)
    try:
        decode(version, head, body, 0, len(body))
    except MqttError as error:
        assert error.reason >= 0x80


@given(st.integers(0, VARINT_MAX))
def test_variable_byte_integers(value: int) -> None:
    data = encode_varint(value)
    cursor = Cursor(data, 0, len(data))
    assert cursor.varint() == value and not cursor.left()


@pytest.mark.parametrize(("value", "size"), [(0, 1), (127, 1), (128, 2), (16_383, 2), (16_384, 3), (VARINT_MAX, 4)])
def test_sizes_of_variable_byte_integers(value: int, size: int) -> None:
    assert len(encode_varint(value)) == size


# -- The specification's limits, and what breaking them is called --------------------------------------------------


def test_a_packet_is_refused_by_its_head() -> None:
    head = b"\x30" + encode_varint(1_000)
    assert packet_end(head, 0, 1_003) == (3, 1_003)
    with pytest.raises(MqttError) as caught:
        packet_end(head, 0, 1_002)
    assert caught.value.reason is Reason.PACKET_TOO_LARGE
    for size in range(3):
        assert packet_end(head[:size], 0, 1) is None or size == 3
    with pytest.raises(MqttError) as caught:
        packet_end(b"\x30\xff\xff\xff\xff\x01", 0, LARGEST)
    assert caught.value.reason is Reason.MALFORMED_PACKET


def connect(flags: int = 2, name: str = "MQTT", level: int = 5, rest: bytes = b"\0\0\0") -> bytes:
    return framed(0x10, encode_text(name) + bytes((level, flags)) + b"\0\x3c" + rest)


CONNECT_WITH = [
    (connect(flags=3), Reason.MALFORMED_PACKET),  # The reserved flag.
    (connect(flags=0x1E), Reason.MALFORMED_PACKET),  # Will with QoS 3.
    (connect(flags=0x0A), Reason.MALFORMED_PACKET),  # A QoS, and no will.
    (connect(flags=0x22), Reason.MALFORMED_PACKET),  # Retained, and no will.
    (connect(flags=0x42, level=4, rest=b"\0\0\0\1p"), Reason.MALFORMED_PACKET),  # A password without a name.
    (connect(rest=b"\5\x21\0\x0a\0\0"), Reason.MALFORMED_PACKET),  # Properties beyond the end.
    (connect(rest=b"\3\x21\0\0\0\0"), Reason.PROTOCOL_ERROR),  # Receive maximum 0.
    (connect(rest=b"\5\x27\0\0\0\0\0\0"), Reason.PROTOCOL_ERROR),  # Maximum packet size 0.
    (connect(rest=b"\4\x17\1\x17\1\0\0"), Reason.PROTOCOL_ERROR),  # A property twice.
    (connect(rest=b"\2\x17\2\0\0"), Reason.PROTOCOL_ERROR),  # Neither 0 nor 1.
    (connect(rest=b"\2\x01\1\0\0"), Reason.PROTOCOL_ERROR),  # A property of PUBLISH.
    (connect(rest=b"\2\x7f\1\0\0"), Reason.MALFORMED_PACKET),  # No property.
    (connect(rest=b"\3\x16\0\0\0\0"), Reason.PROTOCOL_ERROR),  # Authentication data without a method.
    (connect(rest=b"\x80\0\0\0"), Reason.MALFORMED_PACKET),  # More bytes for a length than it needs.
    (connect(rest=b"\0\0\1\0"), Reason.MALFORMED_PACKET),  # U+0000.
    (connect(rest=b"\0\0\2\xff\xff"), Reason.MALFORMED_PACKET),  # No UTF-8.
    (connect(rest=b"\0\0\3\xed\xa0\x80"), Reason.MALFORMED_PACKET),  # A surrogate.
    (connect(rest=b"\0\0\0x"), Reason.MALFORMED_PACKET),  # Something behind the end.
    (connect(flags=6, rest=b"\0\0\0\0\0\3a/#\0\0"), Reason.TOPIC_NAME_INVALID),  # A will with a wildcard.
    (connect(name="MQTX"), Reason.UNSUPPORTED_PROTOCOL_VERSION),
    (connect(level=6), Reason.UNSUPPORTED_PROTOCOL_VERSION),
    (connect(name="MQIsdp", level=5), Reason.UNSUPPORTED_PROTOCOL_VERSION),
]
OTHERS = [
    (b"\x00\0", Reason.MALFORMED_PACKET),  # Type 0.
    (framed(0x36, b"\0\1a\0\1\0"), Reason.MALFORMED_PACKET),  # QoS 3.
    (framed(0x38, b"\0\1a\0"), Reason.MALFORMED_PACKET),  # DUP with QoS 0.
    (framed(0x32, b"\0\1a\0\0\0"), Reason.PROTOCOL_ERROR),  # Packet identifier 0.
    (framed(0x30, b"\0\1+\0"), Reason.TOPIC_NAME_INVALID),
    (framed(0x30, b"\0\0\0"), Reason.PROTOCOL_ERROR),  # Neither a topic nor an alias.
    (framed(0x30, b"\0\1a\3\x23\0\0"), Reason.TOPIC_ALIAS_INVALID),
    (framed(0x30, b"\0\1a\4\x08\0\1#"), Reason.PROTOCOL_ERROR),  # A response topic with a wildcard.
    (framed(0x30, b"\0\2a\0\0"), Reason.MALFORMED_PACKET),  # U+0000.
    (framed(0x60, b"\0\1"), Reason.MALFORMED_PACKET),  # PUBREL without its flag.
    (framed(0x41, b"\0\1"), Reason.MALFORMED_PACKET),  # PUBACK with a flag.
    (framed(0x40, b"\0\0"), Reason.PROTOCOL_ERROR),
    (framed(0x40, b"\0\1\x04"), Reason.PROTOCOL_ERROR),  # A reason that PUBACK cannot have.
    (framed(0x62, b"\0\1\x10"), Reason.PROTOCOL_ERROR),
    (framed(0x80, b"\0\1\0\0\1a\0"), Reason.MALFORMED_PACKET),  # SUBSCRIBE without its flag.
    (framed(0x82, b"\0\1\0"), Reason.PROTOCOL_ERROR),  # SUBSCRIBE of nothing.
    (framed(0x82, b"\0\1\0\0\1a\3"), Reason.MALFORMED_PACKET),  # QoS 3.
    (framed(0x82, b"\0\1\0\0\1a\x30"), Reason.PROTOCOL_ERROR),  # Retain handling 3.
    (framed(0x82, b"\0\1\0\0\1a\x40"), Reason.MALFORMED_PACKET),  # Reserved bits.
    (framed(0x82, b"\0\1\2\x0b\0\0\1a\0"), Reason.PROTOCOL_ERROR),  # Subscription identifier 0.
    (framed(0x82, b"\0\1\0\0\1a"), Reason.MALFORMED_PACKET),  # A filter without options.
    (framed(0xA2, b"\0\1\0"), Reason.PROTOCOL_ERROR),  # UNSUBSCRIBE from nothing.
    (framed(0xC0, b"\0"), Reason.MALFORMED_PACKET),
    (framed(0xE0, b"\x01"), Reason.PROTOCOL_ERROR),
    (framed(0xF0, b"\x01"), Reason.PROTOCOL_ERROR),
]


@pytest.mark.parametrize(("data", "reason"), CONNECT_WITH + OTHERS)
def test_what_is_wrong_is_called(data: bytes, reason: Reason) -> None:
    with pytest.raises(MqttError) as caught:
        read(data, k.V5)
    assert caught.value.reason is reason


def test_older_versions() -> None:
    with pytest.raises(MqttError):
        read(framed(0xF0, b""), k.V311)
    with pytest.raises(MqttError):
        read(framed(0x82, b"\0\1\0\1a\4"), k.V311)  # No local is no option there.
    with pytest.raises(UnsupportedVersion) as caught:
        read(connect(level=2), k.V311)
    assert caught.value.level == 2
    assert read(connect(level=4, rest=b"\0\1c"), 0) == k.Connect(k.V311, "c", True, 60)
    assert encode(k.Connack(False, Reason.BAD_USER_NAME_OR_PASSWORD), k.V311) == b"\x20\2\0\4"
    assert encode(k.Connack(False, Reason.QUOTA_EXCEEDED), k.V311) == b"\x20\2\0\3"
    assert encode(k.Connack(True), k.V31) == b"\x20\2\0\0"
    assert encode(k.Suback(1, [2, Reason.NOT_AUTHORIZED]), k.V311) == b"\x90\4\0\1\2\x80"
    assert encode(k.Unsuback(1, [0]), k.V311) == b"\xb0\2\0\1"


def test_subscription_identifiers() -> None:
    """Several in a PUBLISH, one in a SUBSCRIBE."""
    packet = k.Publish("a", b"", properties={Prop.SUBSCRIPTION_ID: [1, 300]})
    assert read(encode(packet, k.V5), k.V5) == packet
    with pytest.raises(MqttError) as caught:
        read(framed(0x82, b"\0\1\4\x0b\1\x0b\2\0\1a\0"), k.V5)
    assert caught.value.reason is Reason.PROTOCOL_ERROR
