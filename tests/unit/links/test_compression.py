"""Frames between nodes, made smaller, and what a peer could do with them."""

from __future__ import annotations

import random
import zlib

import pytest

from leveret.links.compression import BYTES_MIN, SKIPPED, BadPacked, Compressor, unpacked
from leveret.links.frame_types import PACKED, RING

MAX = 1 << 20
TEXT = b"an order of seven apples; " * 1_000


def test_there_and_back() -> None:
    compressor = Compressor()
    packed = compressor.packed(RING, [TEXT[:100], memoryview(TEXT)[100:]], MAX)
    assert packed is not None
    sent = b"".join(packed)
    assert len(sent) < len(TEXT) // 10
    assert unpacked(sent, len(TEXT)) == (RING, TEXT)
    assert (compressor.bytes_in, compressor.bytes_out) == (len(TEXT), len(sent))


def test_what_is_small_or_does_not_shrink_is_left_alone() -> None:
    compressor, noise = Compressor(), random.Random(1).randbytes(5_000)
    assert compressor.packed(RING, TEXT[: BYTES_MIN - 1], MAX) is None
    assert compressor.packed(RING, noise, MAX) is None
    for _ in range(SKIPPED):
        assert compressor.packed(RING, TEXT, MAX) is None, "not tried"
    assert compressor.packed(RING, TEXT, MAX) is not None


def test_more_than_a_frame_may_have_is_not_hidden() -> None:
    assert Compressor().packed(RING, TEXT, len(TEXT) - 1) is None


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        bytes([RING]),
        bytes([RING]) + b"no stream",
        bytes([RING]) + zlib.compress(TEXT)[:-5],
        bytes([RING]) + zlib.compress(TEXT) + b"more",
        bytes([RING]) + zlib.compress(bytes(50 << 20)),
        bytes([PACKED]) + zlib.compress(TEXT),
    ],
    ids=["empty", "no stream", "garbage", "cut off", "too long", "a bomb", "in itself"],
)
def test_what_is_refused(sent: bytes) -> None:
    with pytest.raises(BadPacked):
        unpacked(sent, 1 << 20)
