from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.replication.frame_codec import PAYLOAD_ITEMS, BadFrame, Packer, Unpacker
from leveret.replication.ring_frames import (
    Attach,
    Blocks,
    Deny,
    Detach,
    Entry,
    Fetch,
    Frame,
    Got,
    Leave,
    Newer,
    Numbers,
    Piece,
    Poll,
    Pulse,
    Reset,
    Standing,
)
from leveret.storage.format.queue_block import PERSISTENT, Run
from tests.unit.replication.lab import GROUP, block

NUMBER = 1 << 61
RUNS = (
    Run(3, [b"a", b"bb"], [b"k", b"l"], bytearray((1, 3))),
    Run(9, [b"c" * 5_000], [b"k"], bytearray((0,))),
)
FRAMES: list[Frame] = [
    Attach(3, 4, ((1, 1), (3, 7)), 9),
    Attach(1, 1, (), 0),
    Detach(3),
    Deny(3),
    Blocks(3, 4, 5, 2, 8, ()),
    Blocks(3, 4, 5, 2, 8, (block(2, 9), block(3, 10, 5, (b"x", b"y" * 300)), block(3, 11, settled=((1, 2), (7, 7))))),
    Got(3, NUMBER),
    Numbers(3, (("n0", Entry("disk", NUMBER, 7, 5, True)), ("ü" * 40, Entry("", 0, 0, 0, False)))),
    Numbers(3, (("n0", Entry("disk", 9, 7, 5, False, ((1, 4), (9, 9)))), ("n1", Entry("disk", 9, 7, 5, True)))),
    Reset(3, 4, 9, ((1, 1), (3, 7)), 5, 12, 7),
    Fetch(3, 9, 2, 12, ((1, 2), (5, 5)), 1 << 20),
    Fetch(3, 9, 2, 12, (), 0),
    Fetch(3, 9, 2, 12, (), 1 << 20, 5),
    Piece(3, 9, 2, (), 12, ((3, 4), (9, 9)), RUNS, 10),
    Piece(3, 9, 2, ((1, 2), (5, 5)), 12, (), (), 10),
    Piece(3, 9, 2, (), 12, ((3, 4), (9, 9)), RUNS, 10, more=True),
    Piece(3, 9, 2, (), 12, ((3, 4), (9, 9)), RUNS, 10, ((3, 4, 1), (9, 9, 5))),
    Piece(3, 9, 2, ((3, 4),), 12, ((3, 4),), (), 10, ((3, 4, 1),)),
    Piece(3, 9, 2, ((3, 4),), 12, ((3, 4), (9, 9)), (), 10, requeued=((3, 3), (9, 9))),
    Piece(3, 9, 2, (), 12, ((3, 4), (9, 9)), RUNS, 10, ((3, 4, 1),), more=True, requeued=((4, 4),)),
    Pulse(3, True, 5),
    Pulse(3, False, 5),
    Leave(3),
    Poll(4, True, Standing(4, "d", 3, 9, False, True)),
    Standing(4, "d", 3, 9, True, True, False),
    Newer(4),
]


def join(payloads: list[list[Any]]) -> list[bytes]:
    return [b"".join(payload) for payload in payloads]


def decode(payloads: list[bytes]) -> list[tuple[int, Frame]]:
    unpacker = Unpacker()
    return [one for payload in payloads for one in unpacker.feed(payload)]


def plain(frame: Frame) -> Frame:
    """With blocks that can be compared."""
    if not isinstance(frame, Blocks):
        return frame
    same = [type(block(1, 1))(one.queue, one.epoch, one.number, one.time_ms, one.enqueued, one.settled, one.requeued,
                              one.delivered_through) for one in frame.blocks]  # fmt: skip
    return frame._replace(blocks=tuple(same))


@pytest.mark.parametrize("size", [40, 200, 1 << 20])
@pytest.mark.parametrize("frame", FRAMES, ids=lambda one: type(one).__name__)
def test_there_and_back(frame: Frame, size: int) -> None:
    packer = Packer(size)
    packer.add(GROUP, frame)
    payloads = join(packer.take())
    assert all(len(payload) <= size for payload in payloads)
    assert [(group, plain(one)) for group, one in decode(payloads)] == [(GROUP, frame)]
    assert packer.take() == []


def test_frames_of_many_groups_share_payloads() -> None:
    packer = Packer(4_000)
    for group in range(1_000):
        packer.add(group, Got(1, group))
    payloads = join(packer.take())
    assert len(payloads) <= 10
    assert decode(payloads) == [(group, Got(1, group)) for group in range(1_000)]


def test_large_contents_are_not_copied_on_their_way_out() -> None:
    content = b"x" * 100_000
    packer = Packer()
    packer.add(GROUP, Blocks(3, 4, 5, 2, 8, (block(3, 9, 1, (content,)),)))
    (payload,) = packer.take()
    assert any(part is content for part in payload)


@given(st.lists(st.sampled_from(FRAMES), max_size=12), st.integers(30, 3_000))
def test_any_mixture(frames: list[Frame], size: int) -> None:
    packer = Packer(size)
    for frame in frames:
        packer.add(GROUP, frame)
    payloads = join(packer.take())
    assert all(len(payload) <= size for payload in payloads)
    assert [plain(frame) for _, frame in decode(payloads)] == frames


def encoded(frame: Frame) -> bytes:
    packer = Packer()
    packer.add(GROUP, frame)
    return join(packer.take())[0]


@pytest.mark.parametrize("frame", FRAMES, ids=lambda one: type(one).__name__)
def test_cut_off(frame: Frame) -> None:
    data = encoded(frame)
    for end in range(1, len(data), max(1, len(data) // 60)):
        with pytest.raises(BadFrame):
            Unpacker().feed(data[:end])


def test_random_bytes_are_never_anything_but_a_bad_frame() -> None:
    rng = random.Random(1)
    wrong = 0
    for _ in range(4_000):
        data = bytearray(encoded(rng.choice(FRAMES)))
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            for _, frame in Unpacker().feed(bytes(data)):
                plain(frame)
        except BadFrame:
            wrong += 1
    assert wrong > 1_000


def test_a_block_whose_contents_were_damaged_is_no_block() -> None:
    """Every single bit of them counts, and it is not taken apart before that is known."""
    data = encoded(Blocks(3, 4, 5, 2, 8, (block(3, 9, 5, (b"x" * 40,)),)))
    at = data.index(b"x" * 40)
    for bit in range(320):
        damaged = bytearray(data)
        damaged[at + bit // 8] ^= 1 << bit % 8
        with pytest.raises(BadFrame, match="damaged on its way"):
            Unpacker().feed(bytes(damaged))


@pytest.mark.parametrize(
    "frame",
    [
        Blocks(3, 4, 5, 2, 8, (block(3, 10),)),
        Blocks(3, 4, 5, 2, 8, (block(3, 9), block(2, 10))),
        Blocks(3, 4, 5, 2, 8, (block(4, 9),)),
        Blocks(3, 4, NUMBER * 4, 2, 8, ()),
        Attach(3, 4, ((3, 1), (1, 7)), 9),
        Reset(3, 4, 9, ((1, 1), (3, 10)), 5, 12),
        Reset(3, 4, 9, ((1, 1),), 10, 12),
        Fetch(3, 9, 2, 12, ((5, 5), (1, 2)), 1),
        Fetch(3, 9, 2, 12, ((5, 4),), 1),
        Piece(3, 9, 4, (), 12, ((3, 4),), (), 10),
        Piece(3, 9, 2, (), 8, ((3, 4),), RUNS, 10),
        Piece(3, 9, 2, (), 8, ((3, 4),), (), 10, ((3, 9, 1),)),
        Piece(3, 9, 2, (), 8, ((3, 4),), (), 10, ((4, 4, 1), (3, 3, 1))),
        Piece(3, 9, 2, (), 8, ((3, 4),), (), 10, requeued=((2, 3),)),
        Piece(3, 9, 2, (), 8, ((3, 4),), (), 10, requeued=((3, 9),)),
        Piece(3, 9, 2, (), 8, ((3, 4),), (), 10, requeued=((4, 3),)),
        Piece(3, 9, 2, (), 8, ((3, 8),), (), 10, requeued=((6, 6), (4, 4), (7, 7))),
        Piece(3, 9, 2, (), NUMBER, ((3, NUMBER),), (), 10, requeued=tuple((at, at) for at in range(3, 40_000, 2))),
        Got(3, NUMBER * 4),
        Numbers(3, (("n0", Entry("disk", NUMBER * 4, 7, 5, True)),)),
    ],
    ids=str,
)
def test_what_no_ring_sends(frame: Frame) -> None:
    with pytest.raises(BadFrame):
        Unpacker().feed(encoded(frame))


def test_an_older_node_gets_no_field_that_it_does_not_know() -> None:
    """It would refuse a piece that has this field alone, and ask for it again for ever."""
    packer = Packer(knows_requeued=False)
    for piece in (frame for frame in FRAMES if isinstance(frame, Piece)):
        packer.add(GROUP, piece)
        assert join(packer.take())[0] == encoded(piece._replace(requeued=()))


def test_blocks_of_another_group() -> None:
    packer = Packer()
    packer.add(GROUP + 1, Blocks(3, 4, 5, 2, 8, (block(3, 9),)))
    with pytest.raises(BadFrame):
        Unpacker().feed(join(packer.take())[0])


def test_parts_must_follow_each_other() -> None:
    packer = Packer(60)
    packer.add(GROUP, Blocks(3, 4, 5, 2, 8, (block(3, 9, 1, (b"x" * 200,), kind=PERSISTENT),)))
    first = join(packer.take())[0]
    unpacker = Unpacker()
    assert unpacker.feed(first) == []
    with pytest.raises(BadFrame):
        unpacker.feed(encoded(Got(1, 1)))


def test_unknown_kinds_and_heads() -> None:
    for data in (bytes(14), b"\x00" * 8 + b"\xff\x00" + bytes(4), b"\x00" * 8 + b"\x05\x02" + bytes(4)):
        with pytest.raises(BadFrame):
            Unpacker().feed(data)


def test_a_payload_has_so_many_items_that_it_is_handled_soon() -> None:
    packer, unpacker = Packer(), Unpacker()
    for group in range(2 * PAYLOAD_ITEMS + 1):
        packer.add(group, Leave(3))
    payloads = [b"".join(parts) for parts in packer.take()]
    counts = [len(unpacker.feed(payload)) for payload in payloads]
    assert counts == [PAYLOAD_ITEMS, PAYLOAD_ITEMS, 1]
