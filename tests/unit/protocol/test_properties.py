from __future__ import annotations

import struct
from typing import Any

import pamqp.commands
import pamqp.header
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.protocol import properties
from leveret.protocol.properties import BadProperties, Properties
from leveret.protocol.tables import Field, table_from_python

text = st.none() | st.binary(max_size=60).map(lambda data: data.decode("utf-8", "surrogateescape"))
octet = st.none() | st.integers(0, 255)
headers = st.none() | st.dictionaries(st.text(max_size=10), st.booleans() | st.text(max_size=20), max_size=3).map(
    table_from_python
)
any_properties = st.builds(
    Properties,
    *(
        text,
        text,
        headers,
        octet,
        octet,
        text,
        text,
        text,
        text,
        st.none() | st.integers(0, 2**64 - 1),
        text,
        text,
        text,
    ),
    text,
)


def header(flags: int, fields: bytes = b"", class_id: int = 60, weight: int = 0) -> bytes:
    return struct.pack(">HHQH", class_id, weight, 1, flags) + fields


@given(any_properties, st.integers(0, 2**64 - 1))
def test_round_trip(given_: Properties, size: int) -> None:
    payload = properties.encode(given_, size)
    properties.check(payload)
    assert properties.decode(payload) == given_
    assert properties.body_size(payload) == size


@given(any_properties)
def test_look_ups_find_what_is_there(given_: Properties) -> None:
    payload = properties.encode(given_, 1)
    for start, data in ((0, payload), (7, b"\x02......" + payload + b"\xce\x03 body")):
        properties.check(data, start, start + len(payload))
        assert properties.decode(data, start, start + len(payload)) == given_
        assert properties.is_persistent(data, start) == (given_.delivery_mode == 2)
        assert properties.delivery_mode(data, start) == given_.delivery_mode
        assert properties.priority(data, start) == given_.priority
        assert properties.expiration(data, start) == given_.expiration
        assert properties.headers(data, start) == given_.headers
        assert properties.user_id(data, start) == given_.user_id
        assert properties.message_id(data, start) == given_.message_id
        assert properties.reply_to(data, start) == given_.reply_to
        assert properties.timestamp(data, start) == given_.timestamp
        assert properties.has(data, properties.USER_ID | properties.HEADERS, start) == (
            given_.user_id is not None or given_.headers is not None
        )
    assert properties.survey(payload, 0, len(payload)) & 1 == (given_.delivery_mode == 2)


@given(any_properties, st.binary(min_size=1, max_size=3))
def test_too_short_and_too_long(given_: Properties, more: bytes) -> None:
    payload = properties.encode(given_, 1)
    for wrong in [*(payload[:end] for end in range(len(payload))), payload + more]:
        with pytest.raises(BadProperties):
            properties.check(wrong)
        with pytest.raises(BadProperties):
            properties.survey(wrong, 0, len(wrong))
    # Cut by its bounds, though the data goes on.
    for end in range(len(payload)):
        with pytest.raises(BadProperties):
            properties.check(payload, 0, end)


plain_text = st.text(min_size=1, max_size=20)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "content_type": plain_text,
            "content_encoding": plain_text,
            "headers": st.dictionaries(st.text(min_size=1, max_size=10), st.text(max_size=10), min_size=1, max_size=3),
            "delivery_mode": st.sampled_from([1, 2]),
            "priority": st.integers(1, 9),
            "correlation_id": plain_text,
            "reply_to": plain_text,
            "expiration": plain_text,
            "message_id": plain_text,
            "user_id": st.just("guest"),
            "app_id": plain_text,
        },
    )
)
def test_same_bytes_as_pamqp(values: dict[str, Any]) -> None:
    if "headers" in values:
        values["headers"] = dict(sorted(values["headers"].items()))
    theirs = pamqp.header.ContentHeader(0, 5, pamqp.commands.Basic.Properties(**values)).marshal()
    if "headers" in values:
        values["headers"] = table_from_python(values["headers"])
    assert properties.encode(Properties(**values), 5) == theirs


@pytest.mark.parametrize(
    "payload",
    [
        header(0, class_id=61),
        header(0, weight=5),
        header(0x0001),
        header(0x0001, b"\x00\x00"),
        header(0x8000, b"\x05a"),
        header(0x1000),
        header(0x0040, b"1234567"),
        header(0x2000, b"\x00\x00\x00\x03\x01kq"),
        header(0x2000, b"\x00\x00\x00\x09"),
        b"",
    ],
)
def test_refused(payload: bytes) -> None:
    with pytest.raises(BadProperties):
        properties.check(payload)
    with pytest.raises(BadProperties):
        properties.decode(payload)


def test_headers_may_not_reach_into_the_body() -> None:
    payload = header(0x2000, b"\x00\x00\x00\x03\x01k")
    with pytest.raises(BadProperties):
        properties.check(payload + b"V", 0, len(payload))


def test_flag_without_meaning_is_ignored() -> None:
    properties.check(header(0x0002))
    assert properties.decode(header(0x1002, b"\x02")) == Properties(delivery_mode=2)


def test_unknown_delivery_mode_is_not_persistent() -> None:
    assert not properties.is_persistent(header(0x1000, b"\x03"))
    assert properties.survey(header(0x1000, b"\x03"), 0, 15) == properties.DELICATE


@pytest.mark.parametrize(
    "wrong",
    [
        Properties(content_type="x" * 256),
        Properties(priority=256),
        Properties(timestamp=-1),
        Properties(user_id="\ud800"),
        Properties(headers={"k": Field("b", 200)}),
    ],
)
def test_what_cannot_be_written(wrong: Properties) -> None:
    with pytest.raises(BadProperties):
        properties.encode(wrong, 0)


def test_body_size_must_fit() -> None:
    with pytest.raises(BadProperties):
        properties.encode(Properties(), 2**64)
