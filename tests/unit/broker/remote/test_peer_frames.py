"""Messages and numbers between nodes, there and back."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.broker.delivery.publish_numbers import NAME_BYTES_MAX, Origin
from leveret.broker.remote import peer_frames as w
from leveret.links.proposals import BadFrame

keys = st.builds(
    lambda exchange, key: bytes((len(exchange),)) + exchange + bytes((len(key),)) + key,
    st.sampled_from([b"", b"amq.topic"]),
    st.sampled_from([b"", b"k", b"k" * 255]),
)
messages = st.lists(st.tuples(st.binary(min_size=1, max_size=5), keys, st.integers(0, 255)), min_size=1, max_size=20)


@given(messages, st.binary(max_size=9), st.binary(max_size=9))
def test_a_run_there_and_back(run: list[tuple[bytes, bytes, int]], before: bytes, after: bytes) -> None:
    contents, keys, kinds = [list(column) for column in zip(*run, strict=True)]
    data = before + b"".join(w.pack_run(contents, keys, bytes(kinds))) + after
    unpacked, end = w.unpack_run(data, len(before))
    assert unpacked == (contents, keys, bytearray(kinds))
    assert data[end:] == after


def test_a_run_cut_short_is_refused() -> None:
    for contents in ([b"abc", b"abc"], [b"abc", b"d"]):
        data = b"".join(w.pack_run(contents, [b"\0\1k", b"\0\0"], bytes(2)))
        for size in range(len(data)):
            with pytest.raises(BadFrame):
                w.unpack_run(data[:size], 0)


KEY = b"\0\x01k"
STRETCH = struct.pack(">IIH3s", 1, 2, 3, KEY)


@pytest.mark.parametrize(
    "data",
    [
        w.U32.pack(0),
        w.U32.pack(w.COUNT_MAX + 1),
        w.U32.pack(2) + bytes(2) + STRETCH + w.U32.pack(w.UNIFORM),  # Contents of no bytes.
        w.U32.pack(2) + bytes(2) + STRETCH + w.U32.pack(w.UNIFORM | 0x7FFF_FFFF) + b"x",
        w.U32.pack(2) + bytes(2) + STRETCH + struct.pack(">II", 1, 0xFFFF_FFFF) + b"x",
        w.U32.pack(2) + bytes(2) + struct.pack(">IIH3s", 1, 1, 3, KEY) + struct.pack(">II", 1, 1) + b"xy",
        w.U32.pack(2) + bytes(2) + struct.pack(">IIH3s", 1, 3, 3, KEY) + struct.pack(">II", 1, 1) + b"xy",
        w.U32.pack(2) + bytes(2) + w.U32.pack(3) + bytes(100),
        # Keys that are no exchange and routing key.
        w.U32.pack(1) + bytes(1) + struct.pack(">IIH", 1, 1, 0) + struct.pack(">I", 1) + b"x",
        w.U32.pack(1) + bytes(1) + struct.pack(">IIH3s", 1, 1, 3, b"\5ab") + struct.pack(">I", 1) + b"x",
        w.U32.pack(1) + bytes(1) + struct.pack(">IIH3s", 1, 1, 3, b"\0\2a") + struct.pack(">I", 1) + b"x",
    ],
)
def test_a_run_that_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(BadFrame):
        w.unpack_run(data, 0)


def test_entries() -> None:
    assert w.unpack_all(w.VERDICT, w.VERDICT.pack(1, 2, 3) + w.VERDICT.pack(0, 9, 9)) == [(1, 2, 3), (0, 9, 9)]
    assert w.unpack_all(w.VERDICT, b"") == []
    assert w.unpack_one(w.U64, b"x" + w.U64.pack(7), 1) == (7,)
    with pytest.raises(BadFrame):
        w.unpack_all(w.VERDICT, bytes(w.VERDICT.size + 1))
    with pytest.raises(BadFrame):
        w.unpack_one(w.U64, bytes(8), 1)


def test_an_origin_there_and_back() -> None:
    for origin in (Origin(b"p", 1, 0), Origin(b"q" * NAME_BYTES_MAX, (1 << 62) + 9, (1 << 62) + 8)):
        data = b"before" + w.pack_origin(origin) + b"after"
        found, end = w.unpack_origin(data, 6)
        assert found == origin and data[end:] == b"after"
        for size in range(6, end):
            with pytest.raises(BadFrame):
                w.unpack_origin(data[:size], 6)


@pytest.mark.parametrize(
    "origin", [Origin(b"", 1, 0), Origin(b"p" * 129, 1, 0), Origin(b"p", 0, 0), Origin(b"p", 3, 3)]
)
def test_an_origin_that_is_none_is_refused(origin: Origin) -> None:
    with pytest.raises(BadFrame):
        w.unpack_origin(w.pack_origin(origin), 0)
