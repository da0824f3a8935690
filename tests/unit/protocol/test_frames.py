from __future__ import annotations

import struct

import pamqp.body
import pamqp.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.protocol import frames, properties
from leveret.protocol.frames import BadContent
from leveret.protocol.properties import Properties

HEADERS = st.builds(
    Properties, content_type=st.none() | st.text(max_size=20), delivery_mode=st.sampled_from([None, 1, 2])
)
FRAME_MAX = st.sampled_from([0, 9, 10, 64, 300, 4096])
CHANNELS = st.sampled_from([1, 2, 255, 256, 65535])


def make(of: Properties, body: bytes, frame_max: int, channel: int = 1) -> bytes:
    return frames.content(properties.encode(of, len(body)), body, frame_max, channel)


def walk(data: bytes) -> list[tuple[int, int, bytes]]:
    """An independent reader of frames."""
    found = []
    while data:
        kind, channel, size = struct.unpack_from(">BHI", data)
        assert data[7 + size] == 0xCE
        found.append((kind, channel, data[7 : 7 + size]))
        data = data[8 + size :]
    return found


@given(HEADERS, st.binary(max_size=400), FRAME_MAX, CHANNELS)
def test_content_is_cut_into_frames(of: Properties, body: bytes, frame_max: int, channel: int) -> None:
    first, *rest = walk(make(of, body, frame_max, channel))
    assert first == (2, channel, properties.encode(of, len(body)))
    assert all((kind, number) == (3, channel) for kind, number, _ in rest)
    assert b"".join(payload for _, _, payload in rest) == body
    room = (frame_max or 1000) - 8
    assert len(rest) == -(-len(body) // room)
    assert all(len(payload) == room for _, _, payload in rest[:-1])


@given(HEADERS, st.binary(max_size=400), FRAME_MAX, CHANNELS)
def test_rechannel_and_split(of: Properties, body: bytes, frame_max: int, channel: int) -> None:
    content = make(of, body, frame_max)
    assert frames.body_size(content) == len(body)
    assert frames.split(content) == (properties.encode(of, len(body)), body)
    moved = frames.rechannel(content, channel)
    assert moved == make(of, body, frame_max, channel)
    assert frames.rechannel(moved, 1) == content


@given(HEADERS, st.binary(max_size=400), FRAME_MAX, FRAME_MAX, CHANNELS)
def test_reframe(of: Properties, body: bytes, before: int, after: int, channel: int) -> None:
    content = make(of, body, before)
    sent = frames.reframe(content, channel, after)
    assert frames.split(sent) == frames.split(content)
    assert {number for _, number, _ in walk(sent)} == {channel}
    if after:
        assert all(len(payload) + 8 <= after for kind, _, payload in walk(sent) if kind == 3)
    if after == 0 or 0 < before <= after:
        assert sent == make(of, body, before, channel)  # What fits is not cut anew.


def test_nothing_is_copied_where_nothing_changes() -> None:
    content = make(Properties(), b"body", 0)
    assert frames.rechannel(content, 1) is content
    assert frames.reframe(content, 1, 4096) is content


def test_frame_is_pamqps() -> None:
    assert frames.frame(frames.BODY, 7, b"body") == pamqp.frame.marshal(pamqp.body.ContentBody(b"body"), 7)
    assert frames.frame(frames.HEARTBEAT, 0, b"") == frames.HEARTBEAT_FRAME


GOOD = make(Properties(delivery_mode=2), b"0123456789", 12)


def test_every_prefix_is_refused() -> None:
    for end in range(len(GOOD)):
        with pytest.raises(BadContent):
            frames.split(GOOD[:end])


def patched(at: int, byte: int) -> bytes:
    return GOOD[:at] + bytes((byte,)) + GOOD[at + 1 :]


SECOND = 8 + 15


@pytest.mark.parametrize(
    "content",
    [
        patched(0, 3),  # no header first
        patched(SECOND - 1, 0),  # no frame end
        patched(SECOND, 2),  # a second header
        patched(SECOND + 11, 0),  # no frame end of a body
        patched(SECOND + 6, 200),  # a body longer than the content
        patched(3, 255),  # a header longer than the content
        patched(18, 11),  # another size announced
        GOOD + GOOD,
        frames.frame(frames.HEADER, 1, b"short"),
    ],
)
def test_split_refuses(content: bytes) -> None:
    with pytest.raises(BadContent):
        frames.split(content)


@pytest.mark.parametrize("content", [b"", patched(0, 3), patched(3, 255), patched(SECOND + 6, 200), GOOD[: SECOND + 5]])
def test_rewriting_refuses_what_it_cannot_walk(content: bytes) -> None:
    with pytest.raises(BadContent):
        frames.rechannel(content, 2)
    with pytest.raises(BadContent):
        frames.reframe(content, 2, 10)


def test_frame_max_without_room() -> None:
    with pytest.raises(BadContent):
        make(Properties(), b"body", 8)
