"""Shapes of content headers: what they match is just what a walk over the properties would have found in order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.protocol.frames import HEADER_AT, content, split
from leveret.protocol.header_shapes import BYTES_MAX, LENGTHS_MAX, TRIES_MAX, HeaderShapes, shape
from leveret.protocol.properties import DELICATE, Properties, encode, survey
from leveret.protocol.tables import Field

HEADERS = {
    "tenant": Field("S", "t1"),
    "attempt": Field("I", 3),
    "nested": Field("F", {"a": Field("S", "b")}),
    "ratio": Field("d", 0.5),
}
RICH = Properties(
    content_type="application/json", headers=HEADERS, delivery_mode=2, message_id="m-0001", timestamp=1_700_000_000
)


def framed(properties: Properties, body: bytes = b"body") -> bytes:
    """Return a content: a header frame and a body frame, of channel 1."""
    return content(encode(properties, len(body)), body, 131_072)


def header_frame(data: bytes) -> bytes:
    return data[: HEADER_AT + len(split(data)[0]) + 1]


def matches(one: bytes, other: bytes) -> bool:
    pattern = shape(header_frame(one))
    assert pattern is not None
    return pattern.match(other) is not None


def changed(**values: Any) -> bytes:
    given = {name: getattr(RICH, name) for name in Properties.__slots__}
    return framed(Properties(**{**given, **values}))


def test_other_values_of_the_same_length_match() -> None:
    assert matches(framed(RICH), framed(RICH, b"a longer body"))
    assert matches(framed(RICH), changed(message_id="m-0002", timestamp=5))
    assert matches(framed(RICH), changed(headers={**HEADERS, "tenant": Field("S", "\x00\n"), "attempt": Field("I", 4)}))


@pytest.mark.parametrize(
    "values",
    [
        {"message_id": "m-00001"},
        {"delivery_mode": 1},
        {"type": "t"},
        {"headers": {**HEADERS, "attempt": Field("i", 3)}},
        {"headers": {**HEADERS, "nested": Field("F", {"a": Field("S", "c")})}},
        {"headers": {**HEADERS, "ratio": Field("d", 0.25)}},
        {"headers": {("tenanT" if name == "tenant" else name): value for name, value in HEADERS.items()}},
        {"content_type": "application/jso", "message_id": "m-00010"},  # Of the same length as a whole.
    ],
)
def test_another_layout_does_not_match(values: dict[str, Any]) -> None:
    assert not matches(framed(RICH), changed(**values))


@pytest.mark.parametrize(
    "values",
    [
        {"expiration": "1000"},
        {"user_id": "guest"},
        {"reply_to": "q"},
        {"headers": {"CC": Field("A", [Field("S", "k")])}},
        {"headers": {"BCC": Field("A", [])}},
    ],
)
def test_what_must_be_examined_has_no_shape(values: dict[str, Any]) -> None:
    assert shape(header_frame(changed(**values))) is None


def test_the_body_frame_must_have_the_size_of_the_header() -> None:
    data = bytearray(framed(RICH))
    data[len(header_frame(bytes(data))) + 6] += 1
    assert not matches(framed(RICH), bytes(data))


@given(st.data())
def test_whatever_matches_would_have_passed_the_walk(data: st.DataObject) -> None:
    """Some bytes of a header are changed. If the shape still matches, the walk finds the same kind of message."""
    headers = data.draw(
        st.dictionaries(
            st.text("abC", min_size=1, max_size=3),
            st.one_of(
                st.text("xyzC", max_size=4).map(lambda text: Field("S", text)),
                st.integers(0, 255).map(lambda number: Field("I", number)),
                st.booleans().map(lambda flag: Field("t", flag)),
                st.just(Field("V", None)),
                st.just(Field("A", [Field("S", "in")])),
            ),
            max_size=3,
        )
    )
    one = framed(
        Properties(
            headers=headers or None,
            delivery_mode=data.draw(st.sampled_from([None, 1, 2])),
            message_id=data.draw(st.none() | st.text("m1", max_size=4)),
            priority=data.draw(st.none() | st.integers(0, 9)),
        )
    )
    frame = header_frame(one)
    pattern = shape(frame)
    if pattern is None:
        return
    other = bytearray(one)
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(frame) - 1))
        other[at] = data.draw(st.sampled_from([0, 1, 2, 67, 83, 255]))
    kind = survey(one, HEADER_AT, len(frame) - 1)
    if pattern.match(bytes(other)) is not None:
        assert survey(bytes(other), HEADER_AT, len(frame) - 1) & ~DELICATE == kind & ~DELICATE


def test_a_shape_is_made_when_a_length_comes_again() -> None:
    shapes = HeaderShapes()
    shapes.learn(header_frame(framed(RICH)), 1)
    assert not shapes.known
    shapes.learn(header_frame(changed(message_id="m-0002")), 1)
    ((pattern, kind),) = shapes.known.values()
    assert kind == 1 and pattern.match(changed(message_id="m-0003"))


def test_shapes_are_bounded() -> None:
    shapes = HeaderShapes()
    for _ in range(2):
        for size in range(2 * LENGTHS_MAX):
            shapes.learn(header_frame(changed(message_id="m" * size)), 1)
    assert len(shapes.known) == LENGTHS_MAX
    long = HeaderShapes()
    for _ in range(3):
        long.learn(header_frame(changed(headers={"long": Field("S", "x" * BYTES_MAX)})), 1)
    assert not long.known
    patterns = set()
    fickle = HeaderShapes()
    for mode in range(2 * TRIES_MAX):
        fickle.learn(header_frame(changed(delivery_mode=mode)), 1)
        patterns |= {pattern for pattern, _ in fickle.known.values()}
    assert len(patterns) == TRIES_MAX - 1
