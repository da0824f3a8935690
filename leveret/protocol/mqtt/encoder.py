"""Packets to bytes, as each version has them."""

from __future__ import annotations

from leveret.protocol.mqtt import properties as p
from leveret.protocol.mqtt.packets import (
    V5,
    V31,
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
    Unsuback,
    Unsubscribe,
)
from leveret.protocol.mqtt.primitives import encode_binary, encode_text, encode_varint
from leveret.protocol.mqtt.properties import Properties, write_properties
from leveret.protocol.mqtt.reason_codes import return_code


def framed(head: int, body: bytes) -> bytes:
    return bytes((head,)) + encode_varint(len(body)) + body


def encode(packet: Packet, version: int) -> bytes:
    """Write a packet. AUTH exists in 5.0 only."""
    head, body = _written(packet, version)
    return framed(head, body)


def _properties(properties: Properties, version: int) -> bytes:
    return write_properties(properties) if version == V5 else b""


def _id(packet_id: int) -> bytes:
    return packet_id.to_bytes(2, "big")


def _written(packet: Packet, version: int) -> tuple[int, bytes]:
    match packet:
        case Publish():
            head = 0x30 | packet.dup << 3 | packet.qos << 1 | packet.retain
            middle = _id(packet.packet_id) if packet.qos else b""
            properties = _properties(packet.properties, version)
            return head, encode_text(packet.topic) + middle + properties + packet.payload
        case Ack():
            head = packet.kind << 4 | (2 if packet.kind == p.PUBREL else 0)
            return head, _id(packet.packet_id) + _reason(packet.reason, packet.properties, version)
        case Connect():
            return 0x10, _connect(packet)
        case Connack():
            code = packet.reason if version == V5 else return_code(packet.reason)
            present = packet.session_present if version != V31 else False
            return 0x20, bytes((present, code)) + _properties(packet.properties, version)
        case Subscribe():
            filters = b"".join(
                encode_text(one.topic_filter)
                + bytes((one.qos | one.no_local << 2 | one.retain_as_published << 3 | one.retain_handling << 4,))
                for one in packet.subscriptions
            )
            return 0x82, _id(packet.packet_id) + _properties(packet.properties, version) + filters
        case Suback():
            reasons = packet.reasons if version == V5 else [min(reason, 0x80) for reason in packet.reasons]
            return 0x90, _id(packet.packet_id) + _properties(packet.properties, version) + bytes(reasons)
        case Unsubscribe():
            filters = b"".join(map(encode_text, packet.filters))
            return 0xA2, _id(packet.packet_id) + _properties(packet.properties, version) + filters
        case Unsuback():
            reasons = packet.reasons if version == V5 else []
            return 0xB0, _id(packet.packet_id) + _properties(packet.properties, version) + bytes(reasons)
        case Pingreq():
            return 0xC0, b""
        case Pingresp():
            return 0xD0, b""
        case Disconnect():
            return 0xE0, _reason(packet.reason, packet.properties, version)
        case Auth():
            return 0xF0, _reason(packet.reason, packet.properties, version)


def _reason(reason: int, properties: Properties, version: int) -> bytes:
    """A reason and properties at the end of a packet. Reason 0 alone is left out."""
    if version != V5 or not (reason or properties):
        return b""
    return bytes((reason,)) + (write_properties(properties) if properties else b"")


def _connect(packet: Connect) -> bytes:
    version, will = packet.version, packet.will
    flags = packet.clean_start << 1
    parts = [encode_text(packet.client_id)]
    if will is not None:
        flags |= 4 | will.qos << 3 | will.retain << 5
        parts += [_properties(will.properties, version), encode_text(will.topic), encode_binary(will.payload)]
    if packet.username is not None:
        flags |= 128
        parts.append(encode_text(packet.username))
    if packet.password is not None:
        flags |= 64
        parts.append(encode_binary(packet.password))
    name = "MQIsdp" if version == V31 else "MQTT"
    start = encode_text(name) + bytes((version, flags)) + packet.keep_alive.to_bytes(2, "big")
    return start + _properties(packet.properties, version) + b"".join(parts)
