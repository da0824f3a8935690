"""Bundles: there and back, in frames that fit, and nothing of a stranger's bytes is believed."""

from __future__ import annotations

import random

import pytest

from leveret.protocol import bundles
from leveret.protocol.bundles import BadBundle, Bundle, Row
from leveret.protocol.frames import HEAD, content
from leveret.protocol.header_shapes import HeaderShapes
from leveret.protocol.origins import MARK, source_of
from leveret.protocol.properties import DELICATE, KIND_EXPIRES, KIND_PERSISTENT, Properties, encode

SOURCE = source_of(b"a" * 32, 7, 9)
ARGUMENTS = b"\x01x\x03key\x01"


def message(body: bytes = b"hello", properties: Properties | None = None, frame_max: int = 0) -> bytes:
    return content(encode(properties or Properties(delivery_mode=2), len(body)), body, frame_max)


def rows(*contents: bytes) -> list[Row]:
    return list(bundles.rows_of(list(contents), HeaderShapes()))


@pytest.mark.parametrize("bodies", [[b"a"], [b"", b""], [b"one", b"two"], [b"", b"a", b"b" * 5_000], [b"x" * 9] * 400])
def test_there_and_back(bodies: list[bytes]) -> None:
    bundle = Bundle(SOURCE, 17, [message(body) for body in bodies])
    frame = b"".join(bundles.publish_frame(1, ARGUMENTS, bundles.packed(bundle)))
    kind, channel, size = HEAD.unpack_from(frame)
    assert (kind, channel, size) == (bundles.BUNDLE, 1, len(frame) - 8)
    assert bundles.read_publish(frame[7:-1]) == (ARGUMENTS, bundle)
    assert [(row.lo, row.hi) for row in rows(*bundle.contents)][-1][1] == len(bodies)


def test_the_first_messages_of_a_bundle() -> None:
    contents = [message(b"a" * size) for size in (3, 1, 2)]
    made = bundles.cut(bundles.packed(Bundle(SOURCE, 5, contents)), 2)
    assert bundles.read(made, 0) == Bundle(SOURCE, 5, contents[:2])


def test_a_mark() -> None:
    contents = [message(b"a"), message(b"bc")]
    made = bundles.marked(bundles.packed(Bundle(SOURCE, 5, contents)))
    assert bundles.read(made, 0) == Bundle(SOURCE, 5 | MARK, contents)
    assert bundles.read(bundles.cut(made, 1), 0) == Bundle(SOURCE, 5 | MARK, contents[:1])
    with pytest.raises(BadBundle):
        bundles.marked(made[:70])


@pytest.mark.parametrize("frame_max", [4_096, 10_000, 131_072])
@pytest.mark.parametrize("sizes", [[0, 50, 500, 3_000, 100_000], [0], [100], [3_000], [100_000]])
def test_portions_fit_into_frames_with_any_route(sizes: list[int], frame_max: int) -> None:
    draw = random.Random(1)
    contents = [message(bytes(draw.choice(sizes))) for _ in range(200)]
    portions = bundles.portions(contents, frame_max)
    assert [at for lo, hi in portions for at in range(lo, hi)] == list(range(200))
    longest = b"\xff" + b"e" * 255 + b"\xff" + b"k" * 255
    for lo, hi in portions:
        bundle = bundles.packed(Bundle(SOURCE, 1, contents[lo:hi]))
        published = b"".join(bundles.publish_frame(1, longest + b"\0", bundle))
        delivered = b"".join(bundles.delivery_frame(1, 1, False, longest, bundle))
        if bundles.fits(contents[lo], frame_max):
            assert len(published) <= frame_max and len(delivered) <= frame_max
        else:
            assert hi == lo + 1


def test_rows_are_of_one_kind() -> None:
    plain, transient = message(), message(properties=Properties())
    expiring = message(properties=Properties(delivery_mode=2, expiration="5"))
    assert rows(plain, plain, plain) == [Row(0, 3, KIND_PERSISTENT, True)]
    assert rows(plain, message(b"longer"), transient, expiring) == [
        Row(0, 2, KIND_PERSISTENT, False),
        Row(2, 3, 0, False),
        Row(3, 4, KIND_PERSISTENT | KIND_EXPIRES | DELICATE, False),
    ]


def test_headers_of_one_shape() -> None:
    made = [message(properties=Properties(delivery_mode=2, message_id=f"id {at:06}")) for at in range(50)]
    assert rows(*made) == [Row(0, 50, KIND_PERSISTENT, False)]
    with pytest.raises(BadBundle, match="another size"):
        rows(*made, made[0][:-1])


def test_bodies_in_several_frames() -> None:
    made = message(bytes(10_000), frame_max=4_096)
    assert rows(made, made) == [Row(0, 2, KIND_PERSISTENT, False)]
    broken = bytearray(made)
    broken[-1] = 0
    with pytest.raises(BadBundle, match="a body is malformed"):
        rows(made, bytes(broken))


def test_no_changed_byte_of_a_head_goes_unnoticed() -> None:
    """Whatever byte of the frames around a body is another one, in a message among others that are alike."""
    good = message(b"body")
    places = [at for at in range(len(good)) if not len(good) - 5 <= at < len(good) - 1]
    for at in places:
        broken = bytearray(good)
        broken[at] ^= 0x40
        try:
            found = rows(good, bytes(broken), good)
        except BadBundle:
            continue
        assert found != rows(good, good, good), f"byte {at}"


@pytest.mark.parametrize(
    "payload",
    [
        b"", b"\x01", b"\x00\x00", b"\xff\x00", ARGUMENTS, ARGUMENTS + SOURCE, ARGUMENTS + b"g" * 66 + bytes(12),
        ARGUMENTS + SOURCE + bytes(8) + b"\0\0\0\0", ARGUMENTS + SOURCE + bytes(8) + b"\xff\xff\xff\xff",
        ARGUMENTS + SOURCE + bytes(8) + b"\0\0\0\1" + b"\0\0\0\0", ARGUMENTS + SOURCE + bytes(8) + b"\0\0\0\1\0\0\0\2a",
        ARGUMENTS + SOURCE + bytes(8) + b"\0\0\0\2\0\0\0\1\0\0\0\2ab",
    ],
)  # fmt: skip
def test_what_is_no_bundle(payload: bytes) -> None:
    with pytest.raises(BadBundle):
        bundles.read_publish(payload)


@pytest.mark.parametrize("broken", [b"", b"a", bytes(30), message()[:-1], message() + b"\xce", message() * 2])
def test_what_is_no_message(broken: bytes) -> None:
    with pytest.raises(BadBundle):
        rows(broken)
    with pytest.raises(BadBundle):
        rows(message(), broken)
